"""The zoo before the program: python3 tests/zoo/longring.py [--precision P] [OPTION...], where longring
attend gets the options (--ranks N instead of a case's own). $LONGRING is the program."""
import os
import pathlib
import subprocess
import sys
import tempfile

import make
import zoo


def attend(q, k, v, shards, options=()):
    if any(s["first"] for s in shards["sequences"]):
        raise NotImplementedError("its sequences begin at 0")
    if "decode" in options and any(s["new"] > 1 for s in shards["sequences"]):
        raise NotImplementedError("no decode step")
    if shards["ranks"] == 1:
        options = [*options, "--ranks", "1"]
    with tempfile.TemporaryDirectory() as folder:
        at = lambda name: str(pathlib.Path(folder, name + ".npy"))
        for name, tensor in (("q", q), ("k", k), ("v", v)):
            make.write_npy(pathlib.Path(at(name)), tensor, "f")
        subprocess.run([os.environ.get("LONGRING", "build/longring"), "attend", "--q", at("q"), "--k", at("k"),
                        "--v", at("v"), "--out", at("o"), "--lse", at("lse"), "--ranks", str(shards["ranks"]),
                        "--lengths", ",".join(str(s["new"]) for s in shards["sequences"]), "--history",
                        ",".join(s["history"] or "0" for s in shards["sequences"]), *options],
                       check=True, capture_output=True)
        return tuple(zoo.read_npy(pathlib.Path(at(name))) for name in ("o", "lse"))


if __name__ == "__main__":
    given = sys.argv[1:]
    precision = "float32"
    if given[:1] == ["--precision"]:
        precision, given = given[1], given[2:]
    sys.exit(zoo.run(lambda *tensors: attend(*tensors, given), precision=precision)[0] != {})
