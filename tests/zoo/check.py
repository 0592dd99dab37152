"""Is the zoo sound? python3 tests/zoo/check.py [matrix|owners]

The committed files are those that make.py writes; a right ring passes all cases in both orders of merging;
each planted fault is named, and no other; and with other numbers it breaks the same. matrix prints instead
which fault breaks which case, and owners who had it, as CSV."""
import io
import json
import pathlib
import sys
import tempfile

import make
import planted
import zoo

# A query's own keys come first there, and are never nothing.
NEVER_SEEN = ["two-empties"]


def named(fault):
    kept = {}
    return zoo.run(lambda *t: planted.attend(*t, fault, "pass-kv", kept), out=io.StringIO())[1]


def same(a, b):
    """Are two files the same? In the last digits of o and lse, one exp is not as good as another."""
    if not b.exists() or a.name not in ("o.npy", "lse.npy"):
        return b.exists() and a.read_bytes() == b.read_bytes()
    pairs = zip(zoo.flat(zoo.read_npy(a)), zoo.flat(zoo.read_npy(b)))
    return a.stat().st_size == b.stat().st_size and all(abs(x - y) <= 1e-13 * (1 + abs(y)) for x, y in pairs)


def main():
    bad, committed = [], zoo.HERE
    faults = json.loads((committed / "faults.json").read_text())
    for fault in [None] + [f["name"] for f in faults]:
        found = named(fault)
        if found != ([fault] if fault and fault not in NEVER_SEEN else []):
            bad.append(f"{fault or 'no fault'} in pass-kv is taken for {', '.join(found) or 'right'}")
    for f in faults:
        if zoo.diagnose(f["breaks"], faults) != [f["name"]]:
            bad.append(f"{f['name']} in pass-q is taken for {', '.join(zoo.diagnose(f['breaks'], faults))}")
    with tempfile.TemporaryDirectory() as folder:
        again = pathlib.Path(folder)
        make.write(again)
        bad += [f"{file} is not as make.py writes it" for file in
                (path.relative_to(again) for path in again.rglob("*") if path.is_file())
                if not same(again / file, committed / file)]
        make.write(again, 1000)
        if (again / "faults.json").read_text() != (committed / "faults.json").read_text():
            bad.append("with other numbers, faults break other cases")
    print("\n".join(bad) if bad else f"{len(faults)} faults and {len(make.CASES)} cases: each fault is named")
    return len(bad) > 0


def matrix():
    print("fault,case,verdict,x,y")
    for y, fault in enumerate(json.loads((zoo.HERE / "faults.json").read_text())):
        for x, case in enumerate(make.CASES):
            if case in fault["breaks"]:
                verdict = fault["breaks"][case]
                kind = "error" if verdict == "error" else "nan" if "nan" in verdict else verdict
                print(f"{fault['name']},{case},{kind},{x + 1},{y + 1}")


def owners():
    print("fault,who,when,y")
    for y, fault in enumerate(json.loads((zoo.HERE / "faults.json").read_text())):
        owner, _, rest = fault["who"].rpartition("/")
        fork = " fork" if owner == "local-inference-lab" else ""
        print(f"{fault['name']},{rest.replace('#', fork + ' ')},{fault['date'][:7]},{y + 1}")


if __name__ == "__main__":
    sys.exit({"matrix": matrix, "owners": owners}.get((*sys.argv, "")[1], main)())
