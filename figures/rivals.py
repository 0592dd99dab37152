"""Another program that does what longring does, timed in turn with it.

rivals.py torch LONGRING         PyTorch's attention: bench-torch.csv
rivals.py llama LONGRING MODEL   llama.cpp, by llama-cpp-python: bench-llama.csv
rivals.py bf16 LONGRING MODEL    PyTorch's attention in bf16, and our own fp32
                                 with a model: bench-bf16.csv

Within a round ours is measured against what the machine can do in the same
second, as longring bench does, and then the rival does the same work; ratios
are of rounds. Prints CSV. Not a test: nothing fails when one of them is slow.
"""

import os
import statistics
import subprocess
import sys
import time


def torch_rival(kinds=("full", "causal", "decode"), number="float32", place="threads"):
    import torch

    torch.set_grad_enabled(False)
    torch.set_num_threads(os.cpu_count())
    attend = torch.nn.functional.scaled_dot_product_attention
    heads, kv_heads, dim = 8, 2, 128  # those of longring bench
    made = {}
    options = {"enable_gqa": True}
    try:
        attend(*(torch.zeros(1, h, 1, dim) for h in (heads, kv_heads, kv_heads)), **options)
    except TypeError:  # before 2.5: heads of a group get copies of their keys
        kv_heads, options = heads, {}

    def work(kind, keys):
        if (kind, keys) not in made:
            made.clear()
            shapes = ((heads, 1 if kind == "decode" else keys), (kv_heads, keys), (kv_heads, keys))
            made[kind, keys] = [(torch.rand(1, h, n, dim) - 0.5).to(getattr(torch, number))
                                for h, n in shapes]
        start = time.perf_counter()
        attend(*made[kind, keys], is_causal=kind == "causal", **options)
        return time.perf_counter() - start

    for kind, flag, sizes in (("full", "--tokens", (2048, 4096, 8192)),
                              ("causal", "--tokens", (2048, 4096, 8192)),
                              ("decode", "--keys", (32768, 65536))):
        for size in sizes if kind in kinds else ():
            yield (["--on", place, "--only", kind, flag, str(size)], 5,
                   {f"{kind}/{size}": lambda kind=kind, size=size: work(kind, size)})


def llama_rival(path):
    import llama_cpp
    import numpy

    prompts, count = (512, 2048, 7000), 32
    threads = os.cpu_count()
    model = llama_cpp.Llama(path, n_ctx=max(prompts) + count + 8, n_threads=threads,
                            n_threads_batch=threads, n_batch=2048, n_ubatch=512,
                            verbose=False)

    def best():
        scores = llama_cpp.llama_get_logits_ith(model._ctx.ctx, -1)
        return int(numpy.ctypeslib.as_array(scores, (model.n_vocab(),)).argmax())

    def read(prompt):
        model.reset()
        start = time.perf_counter()
        model.eval([(7919 * i + 1) % model.n_vocab() for i in range(prompt)])
        best()
        return time.perf_counter() - start

    def generate():
        start = time.perf_counter()
        for _ in range(count):
            model.eval([best()])
        best()
        return time.perf_counter() - start

    for prompt in prompts:
        yield (["--model", path, "--ranks", "1", "--prompt", str(prompt)], 3,
               {f"pp{prompt}/1": lambda prompt=prompt: read(prompt),
                f"tg{count}@d{prompt}/1": generate})


def bf16_rivals(longring, path):
    place = "threads-bf16"
    yield from torch_rival(("full", "causal"), "bfloat16", place)

    def in_fp32(name, arguments):
        return float(ours(longring, arguments)[1][name]["milliseconds"]) / 1e3

    for prompt in (512, 2048, 7000):
        name = f"pp{prompt}/1"
        call = ["--model", path, "--ranks", "1", "--generate", "1", "--prompt", str(prompt)]
        yield (["--on", place, *call], 5,
               {name: lambda name=name, call=call: in_fp32(name, call)})


def ours(longring, arguments):
    """The lines of the head, and the rows by their names."""
    text = subprocess.run([longring, "bench", "--csv", "--rounds", "1", *arguments],
                          check=True, capture_output=True, text=True).stdout
    lines = text.splitlines()
    head = [line for line in lines if line.startswith("#")]
    names, *rows = [line.split(",") for line in lines[len(head):]]
    return head, {row[0]: dict(zip(names, row)) for row in rows}


def spread(values):
    return f"{statistics.median(values):.4g},{min(values):.4g},{max(values):.4g}"


def main():
    if len(sys.argv) < 3 or sys.argv[1] not in ("torch", "llama", "bf16"):
        sys.exit(__doc__)
    longring = sys.argv[2]
    cases = (torch_rival() if sys.argv[1] == "torch" else
             llama_rival(sys.argv[3]) if sys.argv[1] == "llama" else
             bf16_rivals(longring, sys.argv[3]))
    headed = False
    for arguments, rounds, works in cases:
        for work in works.values():
            work()  # warms up
        seen = {name: [] for name in works}
        for _ in range(rounds):
            head, rows = ours(longring, arguments)
            for name, work in works.items():
                seen[name].append((rows[name], work()))
        if not headed:
            print(*head[:3], sep="\n")
            print("# command:", *(os.path.basename(word) for word in sys.argv))
            print("what,rate,unit,milliseconds,fraction,fraction_low,fraction_high,of,"
                  "peer_rate,ratio,ratio_low,ratio_high,rounds")
            headed = True
        for name, pairs in seen.items():
            rates = [float(row["rate"]) for row, _ in pairs]
            milliseconds = [float(row["milliseconds"]) for row, _ in pairs]
            ratios = [1e3 * seconds / ms for ms, (_, seconds) in zip(milliseconds, pairs)]
            peers = [rate / ratio for rate, ratio in zip(rates, ratios)]
            print(f"{name},{statistics.median(rates):.4g},{pairs[0][0]['unit']},"
                  f"{statistics.median(milliseconds):.4g},"
                  f"{spread([float(row['fraction']) for row, _ in pairs])},"
                  f"{pairs[0][0]['of']},{statistics.median(peers):.4g},"
                  f"{spread(ratios)},{rounds}", flush=True)


try:
    main()
except ImportError as error:
    sys.exit(f"rivals.py: {error}")
