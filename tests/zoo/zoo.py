"""The bug zoo: which of thirty-one known faults does a ring have?

Give zoo.run a function attend(q, k, v, shards) -> (o, lse):
  q       [new tokens][heads][dim], sequence after sequence
  k, v    [tokens][kv heads][dim or value dim]; of each sequence the cached, then the new
  o, lse  [new tokens][heads][value dim] and [new tokens][heads], natural logarithm
  shards  "ranks"; "sequences", each with "first" (its first position), "cached" and "new"
          (how many); "cached" and "new": of each rank, spans [sequence, start, count, step]
          of the positions that it holds. Whoever places tokens himself may ignore these.
Attention is causal and scaled by 1/sqrt(dim). README.md here has the rest."""
import ast
import importlib
import json
import math
import pathlib
import struct
import sys

HERE = pathlib.Path(__file__).resolve().parent
UNITS = {"float64": 2.0 ** -53, "float32": 2.0 ** -24, "bfloat16": 2.0 ** -9}


def read_npy(path):
    """An array as nested lists."""
    data = path.read_bytes()
    end = 10 + int.from_bytes(data[8:10], "little")
    head = ast.literal_eval(data[10:end].decode())
    numbers = list(struct.unpack(f"<{math.prod(head['shape'])}{'fd'[head['descr'] == '<f8']}", data[end:]))
    for length in head["shape"][:0:-1]:
        numbers = [numbers[i:i + length] for i in range(0, len(numbers), length)]
    return numbers


def load(name):
    case = json.loads((HERE / "cases" / name / "case.json").read_text())
    return {**case, **{n: read_npy(HERE / "cases" / name / f"{n}.npy") for n in ("q", "k", "v", "o", "lse")}}


def one_rank(shards):
    """The same tokens, all on one rank."""
    whole = lambda first, count: [[n, s["first"] + first(s), count(s), 1]
                                  for n, s in enumerate(shards["sequences"]) if count(s)]
    return {**shards, "ranks": 1, "cached": [whole(lambda s: 0, lambda s: s["cached"])],
            "new": [whole(lambda s: s["cached"], lambda s: s["new"])]}


def flat(x):
    return [n for item in x for n in flat(item)] if isinstance(x, list) else [float(x)]


def ask(attend, case, shards, array):
    """The errors of o and lse, largest over all numbers."""
    o, lse = attend(*(array(case[n]) for n in ("q", "k", "v")), shards)
    errors = []
    for found, wanted in ((o, case["o"]), (lse, case["lse"])):
        found, wanted = flat(found.tolist() if hasattr(found, "tolist") else found), flat(wanted)
        if len(found) != len(wanted):
            raise ValueError(f"{len(found)} numbers where {len(wanted)} belong")
        errors.append(max(abs(a - b) if math.isfinite(a) else math.inf for a, b in zip(found, wanted)))
    return errors


def verdict(attend, case, array, unit):
    """What is wrong with a case: "error", or "o", "lse", "o+lse", each with "nan" where it is not finite; ""
    if nothing is. And why."""
    try:
        if case["after"]:
            before = load(case["after"])
            ask(attend, before, before["shards"], array)
        errors = ask(attend, case, case["shards"], array)
        alone = ask(attend, case, one_rank(case["shards"]), array)
    except NotImplementedError:
        return "", "not asked"
    except Exception as problem:  # whatever it is, it is the answer
        return "error", repr(problem)
    # As good as one rank, and as good as the case allows at this precision.
    bad = [name + " nan" * math.isinf(error) for name, error, one, bound in zip(("o", "lse"), errors, alone, case["bounds"])
           if error > max(2 * one, unit * bound / 2) or error > unit * bound]
    return "+".join(bad), f"o off by {errors[0]:.2g}, lse by {errors[1]:.2g}"


def diagnose(seen, faults):
    """The faults that explain what was seen: {case: verdict}. All that each of them breaks is broken so,
    and no other that breaks more is among them. If there are none, "like" the nearest."""
    items = set(seen.items())
    signs = {f["name"]: set(f["breaks"].items()) for f in faults}
    fit = [name for name, sign in signs.items() if sign <= items]
    if fit or not items:
        return [name for name in fit if not any(signs[name] < signs[other] for other in fit)]
    return ["like " + max(signs, key=lambda name: len(signs[name] & items) / len(signs[name] | items))]


def run(attend, array=lambda x: x, precision="float32", out=sys.stdout):
    """Ask for all cases; array makes tensors of nested lists (torch.tensor, numpy.array). Returns what was
    seen and the faults that explain it."""
    seen = {}
    for name in json.loads((HERE / "cases.json").read_text()):
        what, why = verdict(attend, load(name), array, UNITS[precision])
        print(f"{name:16} {what or '-' * (why == 'not asked') or 'right':13} {why}", file=out)
        seen.update({name: what} if what else {})
    faults = json.loads((HERE / "faults.json").read_text())
    named = diagnose(seen, faults)
    for name in named:
        fault = next(f for f in faults if f["name"] == name.removeprefix("like "))
        print(f"{name}: {fault['what']} ({fault['who']})", file=out)
    print(f"{len(seen)} cases are wrong, {len(named)} faults named", file=out)
    return seen, named


if __name__ == "__main__":  # python3 tests/zoo/zoo.py MODULE FUNCTION [PRECISION]
    sys.path.insert(0, ".")
    sys.exit(run(getattr(importlib.import_module(sys.argv[1]), sys.argv[2]), precision=(*sys.argv, "float32")[3])[0] != {})
