"""Attention held on end on this GPU, ours beside others', and decode in graphs.

held.py prefill|decode LIBRARY [OTHER.so ...]

LIBRARY is libheld.so, our kernels (held.cu), and each other one is the same, built
otherwise: its kernel takes part under its file's name. Each kernel's answer is
first held against its definition in fp64. Prompts, one of them in a sliding window too,
then run for a while without a pause, in shuffled order, two rounds of each table, a matrix product among them; what takes
less than a millisecond in graphs. The clock is cycles over nanoseconds, by a
kernel before and behind; utilisation is in percent of 4,096 operations a cycle
and multiprocessor. A step of decode is timed in a graph of several, with keys and
values that no cache holds. Where the library is the emulator's, sizes are a
512th of what their names say, ours run in the place of others', and the numbers
mean nothing. Status 1: a kernel of ours is wrong.
"""

import array
import ctypes
import datetime
import math
import pathlib
import random
import statistics
import subprocess
import sys
import time

TOKENS, KEYS = (2048, 4096, 8192, 16384, 32768), (2048, 8192, 65536, 131072)
WINDOW = {16384: 4096}  # of a prompt
SECONDS, ROUNDS, STEPS = 0.15, 2, 21
NO_CACHE = 192 << 20  # bytes of keys and values
BRIEF = 1  # milliseconds
SIDE = 8192
PLACES = 1024  # multiprocessors at most
OPERATIONS = 4096  # of a multiprocessor and cycle, in bf16


class Size(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64)
                for name in ("heads", "kv_heads", "dim", "rows", "start", "keys", "window")]


def pointer(address):
    return ctypes.c_void_p(address)


class Device:
    """Our kernels and the clock; those below have tensors, streams and time."""

    def __init__(self, library):
        self.library, self.built = library, {}
        self.spies = self.integers(4 * PLACES)

    def kernel(self, name, rows, start, keys, window, merge=False):
        """What runs one of ours on q, k, v, and into out and lse; from another
        library if the name is FILE:NAME."""
        size = Size(*self.shape, rows, start, keys, window)
        other, _, name = name.rpartition(":")
        library = self.built[other] if other else self.library
        library.held_new.restype = ctypes.c_void_p
        case = library.held_new(name.encode(), ctypes.byref(size))
        if not case:
            raise MemoryError(f"{name}: no such kernel, or no memory")

        def run(*tensors):
            error = library.held_run(
                pointer(case), ctypes.c_bool(merge), *(pointer(self.at(t)) for t in tensors),
                pointer(self.stream()))
            if error:
                raise RuntimeError(f"{name}: CUDA's error {error}")
        return run

    def clocks(self, turn):
        error = self.library.held_clocks(pointer(self.at(self.spies) + 16 * PLACES * turn),
                                         2 * self.processors, pointer(self.stream()))
        if error:
            raise RuntimeError(f"clocks: CUDA's error {error}")

    def megahertz(self):
        all_of = self.list_of(self.spies)
        before, behind = all_of[:2 * PLACES], all_of[2 * PLACES:]
        return 1e3 * statistics.median(
            (behind[n] - before[n]) / (behind[n + 1] - before[n + 1])
            for n in range(0, 2 * PLACES, 2) if before[n + 1] and behind[n + 1] > before[n + 1])


class Card(Device):
    part, shape, seconds = 1, (64, 8, 128), SECONDS

    def __init__(self, library):
        import torch
        import rivals
        self.torch, self.others = torch, rivals
        torch.set_grad_enabled(False)
        torch.manual_seed(1)
        about = torch.cuda.get_device_properties(0)
        self.processors = about.multi_processor_count
        self.name = f"{about.name} (CUDA {torch.version.cuda}, PyTorch {torch.__version__})"
        self.sides = [self.numbers(SIDE, SIDE) for _ in range(3)]
        super().__init__(library)

    def numbers(self, *shape):
        return self.torch.randn(*shape, device="cuda", dtype=self.torch.bfloat16)

    def floats(self, *shape):
        return self.torch.full(shape, math.nan, device="cuda")

    def integers(self, count):
        return self.torch.zeros(count, device="cuda", dtype=self.torch.int64)

    def list_of(self, tensor):
        return tensor.tolist()

    def row(self, tensor, row):
        return tensor[row].double().flatten().tolist()

    def rows(self, tensor, first, count):
        return tensor[first:first + count]

    def at(self, tensor):
        return tensor.data_ptr()

    def stream(self):
        return self.torch.cuda.current_stream().cuda_stream

    def mark(self):
        event = self.torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self, begun, over):
        over.synchronize()
        return begun.elapsed_time(over)

    def graph(self, run, calls):
        graph = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.graph(graph):
            for turn in range(calls):
                run(turn)
        return graph.replay

    def definition(self, q, k, v, row, hidden, seen):
        """Outputs and LSEs of a row's heads in fp64, over keys hidden to seen - 1."""
        heads = q[row].double().view(self.shape[1], -1, self.shape[2])
        scores = heads @ k[hidden:seen].double().permute(1, 2, 0) / self.shape[2]**0.5
        out = self.torch.softmax(scores, -1) @ v[hidden:seen].double().transpose(0, 1)
        return out.flatten().tolist(), self.torch.logsumexp(scores, -1).flatten().tolist()

    def rivals(self):
        """Of q, k and v, and whether it is causal, each returns its output."""
        found = self.others.rivals()
        return {name: lambda q, k, v, causal, attend=found[name]:
                attend(q[None], k[None], v[None], causal)[0]
                for name in ("cudnn", "fa3") if name in found}

    def product(self):
        self.torch.matmul(self.sides[0], self.sides[1], out=self.sides[2])


class Buffer:
    def __init__(self, address, host, *shape):
        self.address, self.host, self.shape = address, host, shape


class Pretended(Device):
    """The emulator, by way of its CUDA."""
    part, shape, seconds, processors, name = 512, (4, 2, 64), 0, 2, "emulator"

    def __init__(self, library):
        self.seed, queue = random.Random(1), pointer(0)
        library.emulator_begin(bytes(64))
        library.emulator_pretend_hopper(ctypes.c_bool(True))
        self.need(library.cudaStreamCreateWithFlags(ctypes.byref(queue), 1))
        self.queue, self.library = queue, library
        super().__init__(library)

    def need(self, error):
        if error:
            raise RuntimeError(f"CUDA's error {error}")

    def sent(self, numbers, *shape):
        memory, count = pointer(0), ctypes.c_size_t(len(numbers) * numbers.itemsize)
        self.need(self.library.cudaMalloc(ctypes.byref(memory), count))
        self.need(self.library.cudaMemcpy(memory, numbers.tobytes(), count, 1))
        return Buffer(memory.value, numbers, *shape)

    def numbers(self, *shape):
        return self.sent(array.array("H", (self.seed.getrandbits(16) & 0xBFFF  # below 2
                                           for _ in range(math.prod(shape)))), *shape)

    def floats(self, *shape):
        return self.sent(array.array("f", [math.nan] * math.prod(shape)), *shape)

    def integers(self, count):
        return self.sent(array.array("q", [0] * count), count)

    def list_of(self, tensor):
        self.mark()
        count = len(tensor.host) * tensor.host.itemsize
        memory = ctypes.create_string_buffer(count)
        self.need(self.library.cudaMemcpy(memory, pointer(tensor.address), ctypes.c_size_t(count),
                                          2))
        return array.array(tensor.host.typecode, memory.raw)

    def row(self, tensor, row):
        wide = math.prod(tensor.shape[1:])
        return self.list_of(tensor)[row * wide:(row + 1) * wide]

    def rows(self, tensor, first, count):
        wide = math.prod(tensor.shape[1:])
        return Buffer(tensor.address + first * wide * tensor.host.itemsize,
                      tensor.host[first * wide:(first + count) * wide], count, *tensor.shape[1:])

    def at(self, tensor):
        return tensor.address

    def stream(self):
        return self.queue.value

    def mark(self):
        self.need(self.library.cudaStreamSynchronize(self.queue))
        return time.perf_counter()

    def between(self, begun, over):
        return 1e3 * (over - begun)

    def graph(self, run, calls):
        return lambda: [run(turn) for turn in range(calls)]

    def vector(self, tensor, row, head):
        first = (row * tensor.shape[1] + head) * self.shape[2]
        halves = tensor.host[first:first + self.shape[2]]  # the upper ones of floats
        return array.array("f", b"".join((n << 16).to_bytes(4, "little") for n in halves))

    def definition(self, q, k, v, row, hidden, seen):
        heads, kv_heads, dim = self.shape
        outs, sums = [], []
        for head in range(heads):
            query, of = self.vector(q, row, head), head * kv_heads // heads
            scores = [sum(map(float.__mul__, query, self.vector(k, n, of))) / dim**0.5
                      for n in range(hidden, seen)]
            weights = [math.exp(score - max(scores)) for score in scores]
            values = [self.vector(v, n, of) for n in range(hidden, seen)]
            outs += [sum(map(float.__mul__, weights, column)) / sum(weights)
                     for column in zip(*values)]
            sums.append(max(scores) + math.log(sum(weights)))
        return outs, sums

    def rivals(self):
        def ours(q, k, v, causal):
            rows, keys = q.shape[0], k.shape[0]
            start = keys - 1 if rows == 1 else 0 if causal else keys
            out = self.floats(*q.shape)
            self.kernel("few" if rows == 1 else "hopper-plain", rows, start, keys, 0)(
                q, k, v, out, self.floats(*q.shape[:2]))
            return out
        return {"cudnn": ours, "fa3": ours}

    def product(self):
        pass


class Case:
    """Inputs of one size, and what runs on them."""

    def __init__(self, device, rows, start, keys, sets=1, window=0):
        self.device, self.start, self.keys, self.sets = device, start, keys, sets
        self.window = window
        heads, kv_heads, dim = device.shape
        self.q = device.numbers(rows, heads, dim)
        self.k, self.v = (device.numbers(sets * keys, kv_heads, dim) for _ in range(2))
        self.out, self.lse = device.floats(rows, heads, dim), device.floats(rows, heads)
        self.runs, self.wrong = {}, False

    def inputs(self, turn):
        first = turn % self.sets * self.keys
        return (self.q, *(self.device.rows(t, first, self.keys) for t in (self.k, self.v)))

    def error(self, out, lse, more):
        """What is wrong with some rows; more: what a merge adds to an LSE."""
        rows = self.q.shape[0]
        for row in sorted({0, rows // 2, rows - 1}):
            past = self.start + row + 1
            wanted, sums = self.device.definition(
                *self.inputs(0), row, max(0, past - self.window) if self.window else 0,
                min(self.keys, past))
            got = self.device.row(out, row)
            apart = math.dist(got, wanted) / math.hypot(*wanted)
            if not apart < (0.02 if lse is None else 0.01):
                return f"row {row} is off by {apart:.2g} of it"
            apart = 0 if lse is None else max(
                abs(a - b - more) for a, b in zip(self.device.row(lse, row), sums))
            if not apart < 0.003:
                return f"the LSE of row {row} is off by {apart:.2g}"
        return None

    def enter(self, name, run, out, lse=None, more=0.0):
        """Let it take part if its answer, which out returns, is right."""
        try:
            wrong = self.error(out(), lse, more)
        except Exception as error:  # of another's, which is no reason to stop
            wrong = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        if wrong is None:
            self.runs[name] = run
            return
        print(f"{name} of {self.q.shape[0]} rows over {self.keys} keys: {wrong}",
              file=sys.stderr, flush=True)
        self.wrong |= lse is not None

    def enter_ours(self, name, kernel, merge=False):
        place = (self.q.shape[0], self.start, self.keys, self.window)
        alone = self.device.kernel(kernel, *place)
        attend = self.device.kernel(kernel, *place, True) if merge else alone

        def run(turn=0):
            attend(*self.inputs(turn), self.out, self.lse)

        def out():  # merged with itself, it is what it was, and twice as much
            alone(*self.inputs(0), self.out, self.lse)
            if merge:
                run()
            return self.out
        self.enter(name, run, out, self.lse, math.log(2) if merge else 0.0)

    def enter_rivals(self, rivals, causal):
        for name, attend in rivals.items():
            def run(turn=0, attend=attend):
                return attend(*self.inputs(turn), causal)
            self.enter(name, run, run)


def held(device, attend, seconds):
    """Milliseconds of a call, and the clock, while nothing else runs."""
    def once(run):
        begun = device.mark()
        run()
        return max(device.between(begun, device.mark()), 1e-3)
    attend()
    run, calls, spent = attend, 1, once(attend)
    if spent < BRIEF:
        calls = math.ceil(BRIEF / spent) if seconds else 2
        run = device.graph(lambda turn: attend(), calls)
        run()
        spent = once(run)
    for _ in range(int(seconds / 3 * 1e3 / spent)):
        run()
    times = max(2, int(seconds * 1e3 / spent))
    device.clocks(0)
    begun = device.mark()
    for _ in range(times):
        run()
    over = device.mark()
    device.clocks(1)
    return device.between(begun, over) / times / calls, device.megahertz()


def prefill(device):
    """Yields whether a size went well."""
    rivals = device.rivals()
    print("what,call,tflops,mhz,utilisation")
    for size in TOKENS:
        for kind in ("causal", "full") + ("window",) * (size in WINDOW):
            rows = size // device.part
            window = WINDOW[size] // device.part if kind == "window" else 0
            case = Case(device, rows, rows if kind == "full" else 0, rows, window=window)
            case.enter_ours("hopper", "hopper")
            if kind == "window":
                case.enter_ours("tiles", "tiles")
            else:
                case.enter_ours("hopper-plain", "hopper-plain")
            for other in device.built:
                case.enter_ours(other, f"{other}:hopper")
            if kind == "full":
                case.enter_ours("merged", "hopper", True)
            if kind != "window":
                case.enter_rivals(rivals, kind == "causal")
            case.runs["product"] = device.product
            before = rows - window if kind == "window" else 0  # more than a window's
            pairs = (rows * rows if kind == "full" else
                     (rows * (rows + 1) - before * (before + 1)) / 2)
            got = {name: [] for name in case.runs}
            for _ in range(ROUNDS if device.seconds else 1):
                for name in random.sample(list(case.runs), len(case.runs)):
                    got[name].append(held(device, case.runs[name], device.seconds))
            for name, spent in got.items():
                work = (2 * SIDE**3 if name == "product" else
                        4 * device.shape[0] * device.shape[2] * pairs)
                milliseconds, mhz = map(statistics.mean, zip(*spent))
                rate = work / milliseconds / 1e9
                busy = rate * 1e8 / (device.processors * OPERATIONS * mhz)
                print(f"{kind}/{size}/{name},1,{rate:.4g},{mhz:.0f},{busy:.3g}", flush=True)
            yield not case.wrong


def decode(device):
    rivals = device.rivals()
    print("what,call,us,gbytes")
    for size in KEYS:
        keys, (_, kv_heads, dim) = size // device.part, device.shape
        moved = 4 * keys * kv_heads * dim
        case = Case(device, 1, keys - 1, keys,
                    max(3, NO_CACHE // moved) if device.seconds else 2)
        case.enter_ours("few", "few")
        case.enter_ours("hopper-few", "hopper-few")
        for other in device.built:
            case.enter_ours(other, f"{other}:hopper-few")
        case.enter_rivals(rivals, False)
        graphs = {name: device.graph(run, case.sets) for name, run in case.runs.items()}
        times = {name: [] for name in graphs}
        for turn in range(STEPS + 1 if device.seconds else 2):
            for name, replay in graphs.items():
                replay()  # while it runs, the host launches what is timed
                begun = device.mark()
                replay()
                spent = device.between(begun, device.mark())
                if turn > 0:
                    times[name].append(1e3 * spent / case.sets)
        for name, spent in times.items():
            middle = statistics.median(spent)
            print(f"decode/{size}/{name},1,{middle:.4g},{moved / middle / 1e3:.4g}", flush=True)
        yield not case.wrong


def main():
    kinds = {"prefill": prefill, "decode": decode}
    if len(sys.argv) < 3 or sys.argv[1] not in kinds:
        sys.exit(__doc__)
    library, *others = map(ctypes.CDLL, sys.argv[2:])
    device = (Pretended if hasattr(library, "emulator_begin") else Card)(library)
    device.built = {pathlib.Path(path).stem: other
                           for path, other in zip(sys.argv[3:], others)}
    random.seed(1)
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True,
                            text=True, check=False).stdout.strip() or "unknown"
    print(f"# machine: {device.name}", f"# date: {datetime.date.today()}", f"# commit: {commit}",
          f"# command: held.py {sys.argv[1]}: {device.shape[0]}/{device.shape[1]} heads of "
          f"{device.shape[2]} in bf16", sep="\n")
    # All sizes, also behind one that is wrong.
    sys.exit(0 if all(list(kinds[sys.argv[1]](device))) else 1)


if __name__ == "__main__":
    main()
