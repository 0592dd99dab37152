"""What others' kernels do on this GPU, beside a product and a copy of PyTorch's.

rivals.py prefill|decode ... [LONGRING]

Prints what `longring bench --on cuda --csv` prints, in the same words: cuDNN's
attention (PyTorch's default on Hopper is another, and slower), FlashAttention 3
and 4 and FlashInfer where they can be imported. Every size has fresh random
inputs, every round times all of its kernels in turn by events, and afterwards the
last row of each answer is held against its definition: one that is wrong is left
out, and said on stderr. What takes less than a millisecond is timed in a CUDA
graph of several calls, each with inputs that no cache holds, or Python's launches
would be what is timed. With LONGRING, our kernels at the same sizes come right
behind, and their ratios to the fastest rival.
"""

import functools
import importlib
import itertools
import statistics
import subprocess
import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

HEADS, KV_HEADS, DIM, ROUNDS = 64, 8, 128, 21
TOKENS, KEYS = (2048, 4096, 8192, 16384, 32768), (2048, 8192, 65536, 131072)
NO_CACHE = 192 << 20  # bytes of inputs, of which a cache holds a third at most
BRIEF = 1  # milliseconds; calls below are timed in graphs
SIDE = 8192


def numbers(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def cudnn(q, k, v, causal):
    """[1, tokens, heads, dim] as all of these."""
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return torch.nn.functional.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=causal,
            enable_gqa=True).transpose(1, 2)


def with_fa3(module):
    def fa3(q, k, v, causal):
        # Splits only where there is one query; 0 lets it choose.
        out = module.flash_attn_func(q, k, v, causal=causal, num_splits=int(q.shape[1] > 1))
        return out[0] if isinstance(out, tuple) else out

    return fa3


def with_fa4(module):
    def fa4(q, k, v, causal):
        out = module.flash_attn_func(q, k, v, causal=causal)
        return out[0] if isinstance(out, tuple) else out

    return fa4


def with_flashinfer(module):
    def flashinfer(q, k, v, causal):
        if q.shape[1] == 1:
            return module.single_decode_with_kv_cache(q[0, 0], k[0], v[0],
                                                      use_tensor_cores=True)[None, None]
        return module.single_prefill_with_kv_cache(q[0], k[0], v[0], causal=causal)[None]

    return flashinfer


def first_line(error):
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]


def rivals():
    found = {"cudnn": cudnn}
    for name, modules, make in (
            ("fa3", ("flash_attn_interface", "fa3_fwd_interface"), with_fa3),
            ("fa4", ("flash_attn.cute",), with_fa4),  # package flash-attn-4
            ("flashinfer", ("flashinfer",), with_flashinfer)):
        why = []
        for module in modules:
            try:
                found[name] = make(importlib.import_module(module))
                break
            except Exception as error:  # built for another PyTorch, say
                why.append(f"{module}: {first_line(error)}")
        if name not in found:
            print(f"no {name}: {'; '.join(why)}", file=sys.stderr)
    return found


def error_of(out, q, k, v):
    """Of the last row and head, which sees all keys."""
    keys, values = k[0, :, -1].double(), v[0, :, -1].double()
    weights = torch.softmax(keys @ q[0, -1, -1].double() / DIM**0.5, 0)
    right = weights @ values
    return float((out[0, -1, -1].double() - right).norm() / right.norm())


def milliseconds(work):
    begun, over = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begun.record()
    work()
    over.record()
    over.synchronize()
    return begun.elapsed_time(over)


def from_graph(run, calls):
    """A call's time, of so many in a graph with inputs of their own."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for turn in range(calls):
            run(turn)

    def time():
        graph.replay()  # while it runs, the host launches what is timed
        return milliseconds(graph.replay) / calls

    time()
    return time


def timer(name, run, calls):
    """What times run(turn) once more each time it is called."""
    run(0)  # makes what is made at a first time
    turns = itertools.count()

    def eager():
        return milliseconds(functools.partial(run, next(turns)))

    if min(eager() for _ in range(3)) >= BRIEF:
        return eager
    try:
        return from_graph(run, calls)
    except Exception as error:
        torch.cuda.synchronize()
        print(f"{name}: cannot be captured, so Python's launches are timed with it: "
              f"{first_line(error)}", file=sys.stderr, flush=True)
        return eager


def kernel_of(work):
    """The name of the kernel that takes longest, if the profiler says."""
    try:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
            work(0)
            torch.cuda.synchronize()
        events = [e for e in seen.events() if e.device_type == torch.autograd.DeviceType.CUDA]
        return max(events, key=lambda e: e.time_range.elapsed_us()).name
    except Exception as error:
        return f"not known ({first_line(error)})"


def ceilings():
    a, b, c = (numbers(SIDE, SIDE) for _ in range(3))
    big, copy = numbers(2 * SIDE, SIDE), torch.empty(2 * SIDE, SIDE, device="cuda",
                                                     dtype=torch.bfloat16)
    works = {"product": (f"product/{SIDE}", 2 * SIDE**3 / 1e12, "TFLOP/s",
                         lambda turn: torch.matmul(a, b, out=c)),
             "copy": ("copy", 2 * big.nbytes / 1e9, "GB/s", lambda turn: copy.copy_(big))}
    return {of: (name, work, unit, timer(name, run, 4))
            for of, (name, work, unit, run) in works.items()}


def spread(values):
    return f"{statistics.median(values):.4g},{min(values):.4g},{max(values):.4g}"


def case(kind, size, limit, found):
    """Times of the ceiling and of all rivals, in turn; their rates by name."""
    decode = kind == "decode"
    name, of_work, unit, base = limit
    tokens = 1 if decode else size
    bytes_of_set = 2 * DIM * (tokens * HEADS + 2 * size * KV_HEADS)
    sets = [(numbers(1, tokens, HEADS, DIM), numbers(1, size, KV_HEADS, DIM),
             numbers(1, size, KV_HEADS, DIM)) for _ in range(-(-NO_CACHE // bytes_of_set))]
    work = (2 * sets[0][1].nbytes / 1e9 if decode else
            4 * HEADS * DIM * size * (size / 2 if kind == "causal" else size) / 1e12)
    works, timers, times = {}, {"": base}, {"": []}
    for rival, attend in list(found.items()):
        def run(turn, attend=attend):
            return attend(*sets[turn % len(sets)], kind == "causal")
        try:
            error = error_of(run(0), *sets[0])
            if not error < 0.02:
                raise ValueError(f"the last row is off by {error:.2g} of it")
            print(f"# {kind}/{size}/{rival}: {kernel_of(run)}", flush=True)
            timers[rival] = timer(f"{kind}/{size}/{rival}", run, len(sets))
            works[rival], times[rival] = run, []
        except Exception as error:  # one that cannot is no reason to stop, nor to ask again
            print(f"{kind}/{size}/{rival}: {first_line(error)}", file=sys.stderr)
            del found[rival]
    for turn in range(ROUNDS + 1):
        for rival, time in timers.items():
            spent = time()
            if turn > 0:
                times[rival].append(spent)
    rates = {}
    for rival, run in works.items():
        error = error_of(run(0), *sets[0])
        if not error < 0.02:
            print(f"{kind}/{size}/{rival}: wrong after timing, {error:.2g}", file=sys.stderr)
            continue
        middle = statistics.median(times[rival])
        rates[rival] = 1e3 * work / middle
        parts = [work / t / (of_work / b) for t, b in zip(times[rival], times[""])]
        print(f"peer/{kind}/{size}/{rival},{rates[rival]:.4g},{unit},{middle:.4g},"
              f"{spread(parts)},{name},{ROUNDS}", flush=True)
    return rates


def ours(longring, kind, size, rates):
    option = "--keys" if kind == "decode" else "--tokens"
    text = subprocess.run([longring, "bench", "--on", "cuda", "--csv", "--only", kind, option,
                           str(size)], check=True, capture_output=True, text=True).stdout
    best = max(rates, key=rates.get) if rates else None
    for line in text.splitlines():
        cells = line.split(",")
        if cells[0].startswith(kind):
            print(line)
            if best:
                ratio = float(cells[1]) / rates[best]
                print(f"ratio/{cells[0]},{cells[1]},{cells[2]},{cells[3]},{ratio:.4g},,,"
                      f"{best},{cells[8]}", flush=True)


def main():
    kinds = [word for word in sys.argv[1:] if word in ("prefill", "decode")]
    others = [word for word in sys.argv[1:] if word not in kinds]
    if not kinds or len(others) > 1:
        sys.exit(__doc__)
    torch.set_grad_enabled(False)
    torch.manual_seed(1)
    print(f"# {torch.cuda.get_device_name()}, PyTorch {torch.__version__}, "
          f"cuDNN {torch.backends.cudnn.version()}")
    print("what,rate,unit,milliseconds,fraction,fraction_low,fraction_high,of,rounds")
    limits, found = ceilings(), rivals()
    for what, of_work, unit, time in limits.values():
        middle = statistics.median(time() for _ in range(ROUNDS))
        print(f"peer/{what},{1e3 * of_work / middle:.4g},{unit},,,,,,{ROUNDS}", flush=True)
    cases = [("causal", n) for n in TOKENS] + [("full", n) for n in TOKENS]
    cases = cases * ("prefill" in kinds) + [("decode", n) for n in KEYS] * ("decode" in kinds)
    left = {kind: dict(found) for kind in ("causal", "full", "decode")}
    for kind, size in cases:
        rates = case(kind, size, limits["copy" if kind == "decode" else "product"], left[kind])
        if others:
            torch.cuda.empty_cache()
            ours(others[0], kind, size, rates)


if __name__ == "__main__":
    main()
