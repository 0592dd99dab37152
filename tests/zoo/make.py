"""Write cases/, cases.json and faults.json: python3 tests/zoo/make.py [FOLDER]. The same bytes every time.

Numbers are multiples of 1/16 below 2 in size, which bf16 holds exactly, so that every precision begins with
the same ones. What is right is computed dense, in double precision and without any rank."""
import json
import math
import pathlib
import struct
import sys

import planted
import zoo

DIM = 4


def numbers(seed):
    state = seed * 0x9E3779B97F4A7C15 % 2 ** 64 or 1
    while True:
        state ^= state >> 12
        state = (state ^ state << 25) % 2 ** 64
        state ^= state >> 27
        yield ((state * 0x2545F4914F6CDD1D % 2 ** 64 >> 40) % 63 - 31) / 16


def zigzag(start, count, ranks):
    """Of each rank, the (first, count) that the paper gives it: chunks i and 2N - 1 - i."""
    chunk = -(-count // (2 * ranks))
    cut = lambda n: (start + min(n * chunk, count), min((n + 1) * chunk, count) - min(n * chunk, count))
    return [[c for c in (cut(r), cut(2 * ranks - 1 - r)) if c[1] > 0] for r in range(ranks)]


def place(ranks, sequences):
    """Who holds what. A history such as "6+d2" is a prefill of 6 and two steps; a step's token goes to the
    ranks in turn. New tokens are a prefill, or one step where new is 1."""
    shards = {"ranks": ranks, "sequences": [], "cached": [[] for _ in range(ranks)], "new": [[] for _ in range(ranks)]}
    for n, (history, new, *first) in enumerate(sequences):
        at = begin = first[0] if first else 0
        for turn in filter(None, history.split("+")):
            steps = turn.startswith("d")
            for part in range(int(turn[1:]) if steps else 1):
                held = zigzag(at, int(turn), ranks) if not steps else \
                    [[(at, 1)] if (n + part) % ranks == r else [] for r in range(ranks)]
                for r in range(ranks):
                    shards["cached"][r] += [[n, a, c, 1] for a, c in held[r]]
                at += 1 if steps else int(turn)
        held = zigzag(at, new, ranks) if new > 1 else [[(at, 1)] if (n + at) % ranks == r else [] for r in range(ranks)]
        for r in range(ranks):
            shards["new"][r] += [[n, a, c, 1] for a, c in held[r]]
        shards["sequences"].append({"first": begin, "cached": at - begin, "new": new, "history": history})
    return shards


def dense(q, k, v, sequences):
    """What is right; and how much of a rounding unit o and lse may be off, to first order: a score's d + 2
    roundings of sums of that size, a weight for each key, and a result's own."""
    o, lse, bounds = [], [], [0.0, 0.0]
    asked = before = 0
    groups = len(q[0]) // len(k[0])
    for s in sequences:
        for i in range(s["new"]):
            o.append([]), lse.append([])
            for h, mine in enumerate(q[asked + i]):
                seen = range(before, before + s["cached"] + i + 1)
                products = [[a * b / math.sqrt(len(mine)) for a, b in zip(mine, k[j][h // groups])] for j in seen]
                scores = [math.fsum(p) for p in products]
                largest = max(scores)
                weights = [math.exp(x - largest) for x in scores]
                total = math.fsum(weights)
                out = [math.fsum(w * v[j][h // groups][d] for w, j in zip(weights, seen)) / total
                       for d in range(len(v[0][0]))]
                score = (len(mine) + 2) * max(sum(map(abs, p)) for p in products) + len(scores)
                size = max(abs(x) for j in seen for x in v[j][h // groups])
                bounds = [max(bounds[0], 2 * size * (score + 4)), max(bounds[1], score + 4 + abs(largest) + math.log(total))]
                o[-1].append(out), lse[-1].append(largest + math.log(total))
        asked += s["new"]
        before += s["cached"] + s["new"]
    return o, lse, [round(b, 1) for b in bounds]


def loud(q, k, v, shards):
    """All scores of head 0 near 100, of head 1 near -110."""
    lift = lambda row, first: [[first[h]] + head[1:] for h, head in enumerate(row)]
    return [lift(r, (16.0, 16.0)) for r in q], [lift(r, (12.5, -13.75)) for r in k], v


def steep(q, k, v, shards):
    """Head 0 likes the keys of rank 0 more, by 100, head 1 those of rank 1."""
    lift = lambda row, first: [[first[h]] + head[1:] for h, head in enumerate(row)]
    own = [n for _, first, count, _ in shards["cached"][0] + shards["new"][0] for n in range(first, first + count)]
    return [lift(r, (16.0, 16.0)) for r in q], [lift(r, (12.5, 0.0) if n in own else (0.0, 12.5)) for n, r in enumerate(k)], v


def balanced(q, k, v, shards):
    """Keys whose mean is 0."""
    return q, [row if n % 2 == 0 else [[-x for x in head] for head in k[n - 1]] for n, row in enumerate(k)], v


def deep(q, k, v, shards):
    """All scores near -20000."""
    return [[[-128.0] + h[1:] for h in r] for r in q], [[[312.0] + h[1:] for h in r] for r in k], v


FAR = 2 ** 31 - 4
# Name: ranks, [(history, new tokens[, first position])], heads, kv heads, value dim, change, after, what it asks.
CASES = {
    "alone": (1, [("", 6)], 2, 1, DIM, None, None, "a causal mask and a scale, without any ring"),
    "balanced": (1, [("7", 1)], 2, 1, DIM, balanced, None, "keys of mean 0, on one rank"),
    "merge": (2, [("7", 1)], 2, 1, DIM, None, None, "two partials, nothing masked, nothing empty"),
    "many": (16, [("31", 1)], 2, 1, DIM, None, None, "sixteen partials of one query"),
    "loud": (2, [("7", 1)], 2, 2, DIM, loud, None, "scores near 100 and -110: exp alone is infinite or 0"),
    "steep": (2, [("7", 1)], 2, 2, DIM, steep, None, "one side outweighs the other by exp(100)"),
    "deep": (1, [("", 3)], 2, 1, DIM, deep, None, "scores near -20000, below what stands for a mask in places"),
    "even": (2, [("", 8)], 2, 1, DIM, None, None, "two ranks, 2N divides the tokens"),
    "three": (3, [("", 12)], 2, 1, DIM, None, None, "three ranks, so that one hop of two can be missing"),
    "square": (4, [("", 8)], 2, 1, DIM, None, None, "four ranks, which may be two groups of two"),
    "odd": (2, [("", 7)], 2, 1, DIM, None, None, "2N does not divide the tokens, and a slot stays unused"),
    "few": (4, [("", 2)], 2, 1, DIM, None, None, "fewer tokens than ranks"),
    "one": (3, [("", 1)], 2, 1, DIM, None, None, "one token, two ranks without any"),
    "firsts": (3, [("", 1)] * 3, 2, 1, DIM, None, None, "three first tokens, each on a rank of its own"),
    "cached": (2, [("8", 4)], 2, 1, DIM, None, None, "new tokens behind a cache"),
    "unequal": (3, [("6+d2", 6)], 2, 1, DIM, None, None, "a cache that is longer on some ranks"),
    "documents": (2, [("", 4), ("", 4)], 2, 1, DIM, None, None, "two sequences in one call"),
    "batch": (2, [("4", 1), ("4", 1)], 2, 1, DIM, None, None, "one step of two conversations"),
    "ragged": (3, [("3", 2), ("", 5), ("4+d1", 1)], 2, 1, DIM, None, None, "three sequences, three lengths, three pasts"),
    "heads": (2, [("", 4)], 6, 2, DIM, None, None, "three query heads to each of two key heads"),
    "values": (2, [("5", 1)], 2, 2, 2, None, None, "values of fewer numbers than keys"),
    "grouped-values": (2, [("5", 1)], 4, 2, 2, None, None, "such values, and grouped heads"),
    "before": (2, [("3", 1), ("9", 1)], 2, 1, DIM, None, None, "one step of a short and a long conversation"),
    "after": (2, [("9", 1), ("3", 1)], 2, 1, DIM, None, "before", "the same again, the long one first"),
    "far": (2, [("", 8, FAR)], 2, 1, DIM, None, None, "positions on both sides of 2^31"),
}

# Name, what it does, and who had it: project, issue or pull request, date of what is cited.
FAULTS = [
    ("lse-base-2", "partials' LSE in base 2, merged as natural logarithms", "vllm-project/vllm#47079", "2026-06-29"),
    ("lse-returned-base-2", "partials merged rightly, and the LSE returned in base 2", "flashinfer-ai/flashinfer#2113", "2025-11-19"),
    ("lse-zero", "the kernel returns LSE 0, so a merge is a mean", "meta-pytorch/attention-gym#37", "2024-09-11"),
    ("lse-centred", "keys less their mean, and the LSE not put right", "ROCm/aiter#3334", "2026-05-25"),
    ("lse-aliased", "the LSE overwritten before the old side is weighed by it", "local-inference-lab/vllm#468", "2026-08-22"),
    ("exp-lse", "weights exp(LSE), no maximum taken off", "NVIDIA/TransformerEngine#716", "2024-03-13"),
    ("exp-difference", "log(1 + exp(new - old)) overflows", "jzhang38/EasyContext#14", "2024-04-18"),
    ("bf16-partials", "partials rounded to bf16, more of them with every rank", "zhuzilin/ring-flash-attention#42", "2024-06-27"),
    ("empty-infinite", "an empty partial has LSE +infinity", "Dao-AILab/flash-attention#978", "2024-06-03"),
    ("two-empties", "two empty partials merge to NaN", "flashinfer-ai/flashinfer#4051", "2026-07-19"),
    ("zero-times-nan", "an empty partial's output is scaled by 0 and not skipped", "local-inference-lab/vllm#284", "2026-08-12"),
    ("mask-finite", "a masked score is -10000", "ohdearquant/lattice#361", "2026-06-25"),
    ("mask-local", "the mask compares places in a rank's own rows", "lightseekorg/tokenspeed#364", "2026-06-05"),
    ("mask-top-left", "the mask of new tokens begins at position 0, not behind the cache", "gittensor-ai-lab/sparkinfer#3", "2026-06-23"),
    ("mask-next", "a token sees the one after it", "flashinfer-ai/flashinfer#348", "2024-07-02"),
    ("mask-full", "all blocks of a ring attended in full", "NVIDIA/TensorRT-LLM#13821", "2026-05-07"),
    ("mask-off-if-cached", "no mask where there is a cache", "mlx-node/mlx-node#24", "2026-03-02"),
    ("int32", "positions in 32 bits (there: offsets)", "thu-ml/SageAttention#386", "2026-08-11"),
    ("documents", "sequences of one call see each other", "axolotl-ai-cloud/axolotl#3608", "2026-07-21"),
    ("zigzag-as-chunks", "tokens dealt zigzag, positions counted as if in whole chunks", "feifeibear/long-context-attention#53", "2024-05-04"),
    ("rank-order", "ranks counted by rows in one place, by columns in another", "NVIDIA/TensorRT-LLM#10350", "2025-12-30"),
    ("rounded-down", "the length rounded down to what the ranks divide", "NVIDIA/TransformerEngine#1930", "2025-07-06"),
    ("must-divide", "an error of shapes where 2N does not divide the tokens", "jzhang38/EasyContext#47", "2024-09-09"),
    ("empty-rank", "an error where a rank has nothing", "NVIDIA/TensorRT-LLM#15383", "2026-06-15"),
    ("slots-attended", "rows behind a rank's own length attended", "vllm-project/vllm#48003", "2026-07-08"),
    ("slots-nan", "unused slots masked by adding -infinity, to NaN", "deepbeepmeep/Wan2GP#1628", "2026-03-21"),
    ("never-rotated", "keys never leave their rank", "sgl-project/sglang#33353", "2026-08-03"),
    ("graph-stale", "lengths of the first call kept for the next", "vllm-project/vllm#36070", "2026-03-05"),
    ("heads-modulo", "query head h asks key head h mod H", "onnx/onnx#7274", "2025-09-02"),
    ("scale-of-values", "scores scaled by the width of the wrong head", "vllm-project/vllm#48658", "2026-07-14"),
    ("value-width", "an error of shapes where values are narrower and heads grouped", "NVIDIA/TransformerEngine#2868", "2026-04-11"),
    ("hop-lost", "the last of N - 1 hops left out", "a mutant of ours", ""),
    ("hop-twice", "N hops, and the own keys twice", "a mutant of ours", ""),
    ("mask-self", "a token does not see itself", "a mutant of ours", ""),
    ("new-key-everywhere", "a step's new key kept by every rank", "a mutant of ours", ""),
    ("lse-of-last", "the last partial's LSE returned", "a mutant of ours", ""),
]


def write_npy(path, tensor, letter):
    shape, at = [], tensor
    while isinstance(at, list):
        shape.append(len(at))
        at = at[0]
    head = f"{{'descr': '<f{'84'[letter == 'f']}', 'fortran_order': False, 'shape': ({', '.join(map(str, shape))}), }}"
    head += " " * (-(len(head) + 11) % 64) + "\n"
    flat = zoo.flat(tensor)
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode() + struct.pack(f"<{len(flat)}{letter}", *flat))


def tensors(case, seed):
    """A case, as zoo.load has it, with the numbers of a seed."""
    ranks, sequences, heads, kv_heads, value_dim, change, after, what = case
    shards, draw = place(ranks, sequences), numbers(seed)
    fresh = sum(s["new"] for s in shards["sequences"])
    whole = fresh + sum(s["cached"] for s in shards["sequences"])
    q, k, v = ([[[next(draw) for _ in range(d)] for _ in range(h)] for _ in range(n)]
               for n, h, d in ((fresh, heads, DIM), (whole, kv_heads, DIM), (whole, kv_heads, value_dim)))
    if change:
        q, k, v = change(q, k, v, shards)
    o, lse, bounds = dense(q, k, v, shards["sequences"])
    return {"what": what, "after": after, "bounds": bounds, "shards": shards, "q": q, "k": k, "v": v, "o": o, "lse": lse}


def broken(fault):
    """What a planted fault, or none, breaks: {case: verdict}."""
    kept, attend = {}, lambda *tensors: planted.attend(*tensors, fault, kept=kept)
    found = {name: zoo.verdict(attend, zoo.load(name), lambda x: x, zoo.UNITS["float32"])[0] for name in CASES}
    return {name: what for name, what in found.items() if what}


def write(folder, seed=1):
    for n, (name, case) in enumerate(CASES.items()):
        home, made = folder / "cases" / name, tensors(case, seed + n)
        home.mkdir(parents=True, exist_ok=True)
        for tensor, letter in zip(("q", "k", "v", "o", "lse"), "fffdd"):
            write_npy(home / f"{tensor}.npy", made.pop(tensor), letter)
        (home / "case.json").write_text(json.dumps(made) + "\n")
    (folder / "cases.json").write_text(json.dumps(list(CASES)) + "\n")
    zoo.HERE = folder
    if broken(None):
        raise SystemExit(f"a right ring breaks {broken(None)}")
    lines = [json.dumps({"name": name, "what": what, "who": who, "date": date, "breaks": broken(name)})
             for name, what, who, date in FAULTS]
    (folder / "faults.json").write_text("[\n" + ",\n".join(lines) + "\n]\n")


if __name__ == "__main__":
    write(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else zoo.HERE)
