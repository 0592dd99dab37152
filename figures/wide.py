"""Our micro-kernel beside BLIS's for AVX-512, in small pages and in huge ones.

wide.py LONGRING   in turns, on a processor with AVX-512 and two units of it: wide.csv

Rates are medians of rounds; fraction is of the multiply-adds in registers, in huge pages.
"""

import csv
import ctypes
import os
import statistics
import subprocess
import sys

ROUNDS = 7
NO_HUGE_PAGES = 41  # prctl's PR_SET_THP_DISABLE
SETTINGS = {"blis": ({"BLIS_ARCH_TYPE": "skx"}, True), "ours": ({}, True), "huge": ({}, False)}
PARTS = ["--tokens", "4096,8192", "--keys", "65536", "--only",
         "fma,micro,read,full,causal,decode,ring", "--rounds", "3", "--csv"]


def run(longring, variables, small):
    def begin():
        if small:
            ctypes.CDLL(None).prctl(NO_HUGE_PAGES, 1, 0, 0, 0)

    lines = subprocess.run([longring, "bench", *PARTS], env={**os.environ, **variables}, text=True,
                           preexec_fn=begin, capture_output=True, check=True).stdout.splitlines()
    head = [line for line in lines if line.startswith("#")]
    return head, list(csv.DictReader(line for line in lines if not line.startswith("#")))


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    seen, kinds = {}, {}
    for _ in range(ROUNDS):
        for name, (variables, small) in SETTINGS.items():
            head, rows = run(sys.argv[1], variables, small)
            if name == "huge" and not any("ours" in line for line in head):
                sys.exit("wide.py: this processor does not take the kernel for AVX-512")
            for row in rows:
                kinds[row["what"]] = row["unit"]
                seen.setdefault(row["what"], {}).setdefault(name, []).append(float(row["rate"]))
    print("what,blis,ours,huge,unit,fraction")
    rates = {what: {n: statistics.median(r) for n, r in by.items()} for what, by in seen.items()}
    for what, by in rates.items():
        if not what.endswith("/micro"):
            print(what, *(f"{by[name]:.4g}" for name in SETTINGS), kinds[what],
                  f"{by['huge'] / rates['fma']['huge']:.4g}", sep=",")


main()
