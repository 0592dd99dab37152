"""What decoding a token takes of the host and of a graph, counted without a GPU.

plans.py LONGRING TINY_MODEL

LONGRING is the program on the emulator, which prints what it counted. Tiny
models of 2 and 4 blocks generate 8 and 24 tokens, and differences of the counts
are of a layer and of a token. Prints CSV, and on stderr what is over BUDGETS;
then the exit status is 1. The ranks are those of one process.

  graph_nodes     of a layer, a rank's
  host_calls      of a token, all ranks' together: to CUDA, NCCL and cuBLASLt,
                  but for questions whether something is over
"""

import os
import re
import struct
import subprocess
import sys
import tempfile

# ranks: graph nodes, host calls, at most
BUDGETS = {1: (11, 10), 4: (21, 30), 16: (57, 100)}
PROMPT, FEW, MANY = 34, 8, 24


def write_ids(path):
    """Some tokens as numpy writes them."""
    ids = [20 + 7 * n % 40 for n in range(PROMPT)]
    head = f"{{'descr': '<i4', 'fortran_order': False, 'shape': ({PROMPT},), }}"
    head = head.ljust(117) + "\n"
    with open(path, "wb") as out:
        out.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode())
        out.write(struct.pack(f"<{PROMPT}i", *ids))


def counted(longring, folder, layers, ranks, tokens):
    made = subprocess.run(
        [longring, "logits", "--model", f"{folder}/{layers}", "--tokens", f"{folder}/ids",
         "--generate", str(tokens), "--on", "cuda", "--ranks", str(ranks)],
        env=dict(os.environ, EMULATOR_COUNT="1"), capture_output=True, text=True)
    if made.returncode:
        sys.exit(made.stderr)
    return {word: int(number) for word, number in re.findall(r"(\w+) (\d+)", made.stderr)}


def main():
    longring, tiny_model = sys.argv[1:]
    wrong = []
    print("ranks,graph_nodes,graph_nodes_most,host_calls,host_calls_most")
    with tempfile.TemporaryDirectory() as folder:
        write_ids(f"{folder}/ids")
        for layers in (2, 4):
            subprocess.run([tiny_model, f"{folder}/{layers}", str(layers)], check=True)
        for ranks, most in BUDGETS.items():
            few = counted(longring, folder, 2, ranks, FEW)
            deep = counted(longring, folder, 4, ranks, FEW)
            many = counted(longring, folder, 2, ranks, MANY)
            seen = ((deep["graph_nodes"] - few["graph_nodes"]) / 2 / ranks,
                    (many["calls"] - few["calls"]) / (MANY - FEW))
            print(f"{ranks},{seen[0]:g},{most[0]},{seen[1]:g},{most[1]}")
            wrong += [f"{ranks} ranks: {number:g} {what}, of {limit} at most"
                      for number, limit, what in zip(seen, most, (
                          "graph nodes a layer", "host calls a token")) if number > limit]
    print(*wrong, sep="\n", end="\n" if wrong else "", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
