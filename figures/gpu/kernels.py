"""What the compiler made of the kernels, counted without a GPU.

kernels.py FOLDER NVCC CUOBJDUMP BUDGETS [FILE.cu ...]

Compiles each file for sm_80 and sm_90a (those with Hopper's instructions only for
that) into FOLDER and prints, as CSV, a row
for each kernel: what it takes of a multiprocessor, and its inner loop (the
innermost with the most multiply-adds) by kinds of instructions. The kernels
that have one are also shown on stderr, and so is what is over the BUDGETS; then
the exit status is 1. No kernel may spill in its loop, or elsewhere more bytes
than its budget says, and the compiler may serialise no wgmma. Code that a loop
branches around counts as if it ran, unless a loop in it multiplies by HMMA in a
loop of HGMMA: that is a rare way, and left out.

  multiply_adds   of a lane and an instruction of the loop (an FFMA alone is 1)
  useful          part of a quarter's cycles in which it would multiply and add
                  if nothing overlapped, by CYCLES below: a lower bound
  overlapped      the same if tensor cores and all the rest overlapped wholly
  between         instructions from one HGMMA to the next, at most, where they
                  are of one product; softmax: those that are between products
  in_flight       bytes that a multiprocessor's threads ask of memory in a turn
                  of the loop; what TMA asks is not in it
  executed        instructions of the shortest way round the loop: what a forward
                  branch in it skips is left out
  hidden          of a loop that waits for products twice, how many exponentials
                  stand before the last wait; late: multiplications behind the
                  last exponential
  local           loads and stores of what was spilled, in the loop
  ahead           words of 32 bits of global memory that a lane has under way at
                  once, at most, straight down the whole kernel: who uses what a
                  load brings waits for it and for those before
"""

import collections
import csv
import os
import re
import subprocess
import sys

CHECKED = ("sm_80", "sm_90a")
SHOWN = ("kernel", "architecture", "registers", "spills", "serialised", "shared", "dynamic",
         "blocks", "loop", "executed", "HGMMA", "HMMA", "FFMA", "MUFU", "multiply_adds", "useful",
         "overlapped", "between", "softmax", "hidden", "late", "ahead")
APART = 64  # instructions and more between two HGMMA: they are of two products
KINDS = ("HGMMA", "HMMA", "FFMA", "MUFU", "LDSM", "LDGSTS", "LDG", "LDS")
# Cycles of a quarter of a multiprocessor for an instruction of a warp: CUDA's
# programming guide, throughput of arithmetic instructions; dense products from
# the architectures' white papers (1,024 and 2,048 multiply-adds a cycle).
CYCLES = {"sm_80": {"FFMA": 2, "MUFU": 8}, "sm_90a": {"FFMA": 1, "MUFU": 8}}
PRODUCTS = {"sm_80": 256, "sm_90a": 512}
# What a multiprocessor has.
REGISTERS, THREADS, SHARED = 65536, 2048, {"sm_80": 164 << 10, "sm_90a": 228 << 10}


def multiply_adds(opcode):
    """Of a whole warp."""
    if opcode.startswith("FFMA"):
        return 32
    shape = re.match(r"HMMA\.(16)(8)(8|16)\b", opcode) or re.match(
        r"HGMMA\.64x(\d+)x(16)\b", opcode)
    if shape is None:
        return 0
    product = 16  # rows of a warp, also of the four that share an HGMMA
    for size in shape.groups()[-2:]:
        product *= int(size)
    return product


def loads(opcode):
    """Bytes that a lane asks of global memory."""
    if not re.match(r"LDG(STS)?\b", opcode):
        return 0
    width = re.search(r"\.(128|64|U?S?16|U?S?8)\b", opcode)
    bits = int(re.sub(r"\D", "", width[1])) if width else 32
    return bits // 8


def kernels_of(text):
    """Of each kernel its instructions: address, opcode, where a branch goes, operands."""
    code, kernels = None, {}
    for line in text.splitlines():
        found = re.match(r"\s*Function : (\S+)", line)
        if found:
            code = kernels[found[1]] = []
        found = re.match(r"\s*/\*([0-9a-f]{4,})\*/\s+(?:@!?\w+ )?\s*([A-Z]\S*)([^;]*);", line)
        if found and code is not None:
            target = re.search(r"0x[0-9a-f]+", found[3]) if found[2].startswith("BRA") else None
            code.append((int(found[1], 16), found[2], int(target[0], 16) if target else None,
                         found[3]))
    return kernels


def shortest(loop):
    """How many instructions a turn of a loop executes at least."""
    count, skip_to = 0, 0
    for at, _, to, _ in loop:
        if at >= skip_to:
            count += 1
            skip_to = to if to is not None and at < to <= loop[-1][0] else 0
    return count


def order_of(opcodes):
    """Exponentials before the last wait for products, multiplications behind the
    last exponential: blank where a loop does not wait twice."""
    waits = [n for n, op in enumerate(opcodes) if op.startswith("WARPGROUP.DEPBAR")]
    exponentials = [n for n, op in enumerate(opcodes) if op.startswith("MUFU.EX2")]
    if len(waits) < 2 or not exponentials:
        return "", ""
    return (sum(n < waits[-1] for n in exponentials),
            sum(op.startswith("FMUL") for op in opcodes[exponentials[-1]:]))


def without(rare, loop):
    return [one for one in loop if not any(low < one[0] < high for low, high in rare)]


def inner_loop(code):
    """The instructions of that loop without loops that multiply which has the most
    multiply-adds; of those with as many, the shortest."""
    # A branch back over the end of the program comes from a wait that is begun again.
    ends = [at for at, op, _, _ in code if op == "EXIT"]
    spans = {(to, at) for at, _, to, _ in code
             if to is not None and to <= at and not any(to < end < at for end in ends)}
    work = {s: sum(multiply_adds(op) for at, op, _, _ in code if s[0] <= at <= s[1])
            for s in spans}
    best, most = [], 0
    for low, high in sorted(spans, key=lambda s: s[1] - s[0]):
        inside = [s for s in spans if low <= s[0] and s[1] <= high and s != (low, high) and work[s]]
        rare = [(at, to) for at, _, to, _ in code if to is not None and low < at and to <= high
                and any(at < a and b < to for a, b in inside)]
        if all(any(at < a and b < to for at, to in rare) and
               not any(a <= at <= b and op.startswith("HGMMA") for at, op, _, _ in code)
               for a, b in inside):
            loop = without(rare, [one for one in code if low <= one[0] <= high])
            multiplies = sum(multiply_adds(op) for _, op, _, _ in loop)
            if multiplies > most:
                best, most = loop, multiplies
    return best


def loads_ahead(code):
    under_way, most = [], 0  # registers of each load
    for _, op, _, operands in code:
        used = {int(n) + i for n, pair in re.findall(r"\bR(\d+)\b(\.64)?", operands)
                for i in range(2 if pair else 1)}
        to = re.match(r"\W*R(\d+)\b", operands) if re.match(r"LDG\b", op) else None
        if to is not None:
            used.discard(int(to[1]))
        waits = [n for n, registers in enumerate(under_way) if used & registers]
        under_way = under_way[max(waits, default=-1) + 1:]
        if to is not None:
            under_way.append({int(to[1]) + i for i in range(max(1, loads(op) // 4))})
        most = max(most, sum(map(len, under_way)))
    return most


def kind_of(opcode):
    first = opcode.split(".")[0]
    return first if first in KINDS else "other"


def cycles(opcode, arch):
    if opcode.startswith("H") and multiply_adds(opcode):
        return multiply_adds(opcode) / PRODUCTS[arch]
    return CYCLES[arch].get(kind_of(opcode), 1)


def gaps_of(loop):
    """How many instructions lie between each HGMMA and the next; behind the last
    comes the first of the next turn."""
    at = [n for n, op in enumerate(loop) if op.startswith("HGMMA")]
    return [(b - a - 1) % len(loop) for a, b in zip(at, at[1:] + at[:1])]


def resources(report):
    """What ptxas says of each kernel, by its name."""
    found, name = collections.defaultdict(dict), None
    for line in report.splitlines():
        entry = re.search(r"Compiling entry function '(\S+)'", line)
        name = entry[1] if entry else name
        for key, pattern in (("stack", r"(\d+) bytes stack frame"),
                             ("spills", r"(\d+) bytes spill stores"),
                             ("registers", r"Used (\d+) registers"),
                             ("shared", r"(\d+) bytes smem")):
            number = re.search(pattern, line)
            if number and name:
                found[name].setdefault(key, int(number[1]))
        serial = re.search(r"\(C75\d\d\)(?:.*'(\S+)')?", line)
        if serial:
            of = serial[1] or name
            found[of]["serialised"] = found[of].get("serialised", 0) + 1
    return found


def plain(name):
    """`attend` of _Z6attend19cp_device_attention."""
    found = re.match(r"_Z(?:N\d+_GLOBAL__\S+?|L)?(\d+)(\w+)", name)
    return found[2][:int(found[1])] if found else name


def architectures(path):
    with open(path) as lines:
        return CHECKED[1:] if '/hopper.h"' in lines.read() else CHECKED


def count(folder, nvcc, cuobjdump, path, arch):
    cubin = os.path.join(folder, f"{os.path.basename(path)}.{arch}.cubin")
    made = subprocess.run([nvcc, "-O3", "-std=c++17", "-arch", arch, "-cubin", "-Xptxas", "-v",
                           "-I.", "-Isrc", "-o", cubin, path], capture_output=True, text=True)
    if made.returncode:
        sys.exit(made.stderr)
    taken = resources(made.stdout + made.stderr)
    text = subprocess.run([cuobjdump, "-sass", cubin], check=True, capture_output=True,
                          text=True).stdout
    for name, code in kernels_of(text).items():
        yield plain(name), dict(taken[name], ahead=loads_ahead(code)), inner_loop(code)


def row_of(name, arch, taken, loop, given):
    """given: of the budgets, its threads and dynamic shared memory."""
    executed, loop = shortest(loop) if loop else 0, [op for _, op, _, _ in loop]
    kinds = collections.Counter(map(kind_of, loop))
    work = sum(map(multiply_adds, loop))
    spent = sum(cycles(op, arch) for op in loop)
    useful = sum(cycles(op, arch) for op in loop if multiply_adds(op))
    row = {"kernel": name, "architecture": arch, "registers": taken.get("registers", 0)}
    for key in ("spills", "stack", "serialised", "shared"):
        row[key] = taken.get(key, 0)
    threads, dynamic = int(given.get("threads") or 0), int(given.get("dynamic") or 0)
    row["dynamic"], row["threads"], row["blocks"] = dynamic, threads or "", ""
    if threads:
        row["blocks"] = min(REGISTERS // (-(-row["registers"] // 8) * 8 * threads),
                            THREADS // threads,
                            SHARED[arch] // (row["shared"] + dynamic + 1024))
    row["loop"] = len(loop)
    row.update({kind: kinds[kind] for kind in KINDS + ("other",)})
    row["multiply_adds"] = f"{work / 32 / len(loop):.2f}" if work else "0"
    row["useful"] = f"{useful / spent:.2f}" if work else "0"
    tensor = any(op.startswith("H") for op in loop if multiply_adds(op))
    most = max(useful, spent - useful) if tensor else spent
    row["overlapped"] = f"{useful / most:.2f}" if work else "0"
    gaps = gaps_of(loop)
    row["between"] = max([n for n in gaps if n < APART], default="")
    row["softmax"] = sum(n for n in gaps if n >= APART) if gaps else ""
    row["in_flight"] = sum(map(loads, loop)) * threads * (row["blocks"] or 0)
    row["executed"] = executed
    row["hidden"], row["late"] = order_of(loop)
    row["local"] = sum(op.startswith(("LDL", "STL")) for op in loop)
    row["ahead"] = taken["ahead"]
    return row


def over(row, given):
    """What a row has more of than it may, and less than it must."""
    name = f"{row['kernel']} for {row['architecture']}"
    most = {"spills": given.get("spills") or 0, "local": 0 if given.get("hidden") else None, "serialised": 0, "registers": given.get("registers"),
            "all shared": given.get("shared"), "executed": given.get("executed"),
            "late": 0 if given.get("hidden") else None}
    seen = dict(row, **{"all shared": row["shared"] + row["dynamic"]})
    for key, limit in most.items():
        if limit not in (None, "") and seen[key] > int(limit):
            yield f"{name}: {key} {seen[key]}, of {limit} at most"
    for key in ("useful", "overlapped", "multiply_adds", "hidden", "in_flight", "ahead"):
        if given.get(key) and float(row[key] or 0) < float(given[key]):
            yield f"{name}: {key} {row[key]}, of {given[key]} at least"


def show(row):
    print(*(f"{row[name]!s:<{max(len(name), 15 if name == 'kernel' else 3)}}" for name in SHOWN),
          file=sys.stderr)


def main():
    folder, nvcc, cuobjdump, table, *files = sys.argv[1:]
    with open(table) as lines:
        kept = csv.DictReader(line for line in lines if not line.startswith("#"))
        budgets = {(b["kernel"], b["architecture"]): b for b in kept}
    os.makedirs(folder, exist_ok=True)
    wrong, out = [], None
    for path in files:
        for arch in architectures(path):
            for name, taken, loop in count(folder, nvcc, cuobjdump, path, arch):
                given = budgets.pop((name, arch), {})
                row = row_of(name, arch, taken, loop, given)
                if out is None:
                    out = csv.DictWriter(sys.stdout, row, lineterminator="\n")
                    out.writeheader()
                    show({name: name for name in SHOWN})
                out.writerow(row)
                if row["loop"]:
                    show(row)
                wrong += over(row, given)
    wrong += [f"{name} for {arch}: no such kernel, but a budget" for name, arch in budgets]
    print(*wrong, sep="\n", end="\n" if wrong else "", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
