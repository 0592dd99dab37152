"""A ring over N ranks in plain Python, right unless a fault is planted in it.

attend(..., fault=NAME) has that fault and no other. Partials are merged in the order in which
their keys come: "pass-kv" begins with a rank's own, "pass-q" goes through the ranks. Slots
that hold no token are NaN, and so is the output of a partial that attended to nothing."""
import itertools
import math
import struct

NAN, INF = math.nan, math.inf


def exp(x):
    """As float32 has it: infinite above 88.7, nothing below -104."""
    return NAN if math.isnan(x) else INF if x > 88.72 else 0.0 if x < -104 else math.exp(x)


def log(x):
    return -INF if x == 0 else INF if x == INF else math.log(x)


def bf16(x):
    if not math.isfinite(x):
        return x
    bits = struct.unpack("<I", struct.pack("<f", x))[0]
    return struct.unpack("<f", struct.pack("<I", (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000))[0]


def merge(a, b, fault):
    """Two partials (o, lse) of a query, over keys that are apart."""
    (o, lse), (add, add_lse) = a, b
    larger = max(lse, add_lse)
    if larger == -INF and fault != "two-empties":
        return [0.0] * len(o), -INF
    if fault == "exp-lse":
        mine, other = exp(lse), exp(add_lse)
        total = log(mine + other)
        weights = (mine / (mine + other), other / (mine + other)) if mine + other > 0 else (0.0, 0.0)
        if mine + other == INF:
            weights = (NAN, NAN)
    elif fault == "exp-difference" and lse > -INF:
        total = lse + log(1 + exp(add_lse - lse))
        weights = (exp(lse - total), exp(add_lse - total))
    else:
        mine, other = exp(lse - larger), exp(add_lse - larger)
        total = larger + log(mine + other)
        weights = (mine / (mine + other), other / (mine + other))
        if fault == "lse-aliased":
            weights = (1.0 if lse > -INF else 0.0, exp(add_lse - total))
    if fault != "zero-times-nan":
        o = [0.0] * len(o) if weights[0] == 0 else o
        add = [0.0] * len(add) if weights[1] == 0 else add
    return [weights[0] * x + weights[1] * y for x, y in zip(o, add)], total


def sees(query, key, fault):
    """Does a query see a key? Both are rows: see row_of."""
    if fault == "documents":
        return key["at"] <= query["at"]
    if key["sequence"] != query["sequence"]:
        return False
    if fault == "mask-full" or (fault == "mask-off-if-cached" and query["cached"] and query["new"] > 1):
        return True
    mine, other = query["position"], key["position"]
    if fault == "mask-local":
        mine, other = query["local"], key["local"]
    if fault == "int32":
        mine, other = ((x + 2 ** 31) % 2 ** 32 - 2 ** 31 for x in (mine, other))
    mine += {"mask-top-left": -query["cached"], "mask-next": 1, "mask-self": -1}.get(fault, 0)
    return other <= mine


def partial(query, q, block, keys, values, scale, fault):
    """(o, lse) of one query and head over a block."""
    dim = len(values[0]) if values else 0
    scores, weighed = [], []
    for row, k, v in zip(block, keys, values):
        if row is None and fault not in ("slots-attended", "slots-nan"):
            continue
        if row is None and fault == "slots-attended":
            k, v = [0.0] * len(k), [0.0] * dim
        seen = row is None and fault == "slots-attended" or row is not None and sees(query, row, fault)
        score = scale * sum(a * b for a, b in zip(q, k)) + (0.0 if seen else -INF if fault == "slots-nan" else 0.0)
        if seen or fault == "mask-finite" or math.isnan(score):
            scores.append(score if seen or math.isnan(score) else -10000.0)
            weighed.append(v)
    if not scores:
        return [NAN] * dim, {"empty-infinite": INF, "lse-zero": 0.0}.get(fault, -INF)
    largest = NAN if any(map(math.isnan, scores)) else max(scores)
    weights = [exp(s - largest) for s in scores]
    total = sum(weights)
    o = [sum(w * v[d] for w, v in zip(weights, weighed)) / total for d in range(dim)]
    lse = largest + (NAN if math.isnan(total) else log(total))
    if fault == "lse-centred":
        held = [k for row, k in zip(block, keys) if row is not None]
        lse -= scale * sum(a * sum(k[d] for k in held) / len(held) for d, a in enumerate(q))
    return ([bf16(x) for x in o] if fault == "bf16-partials" else o,
            {"lse-base-2": lse / math.log(2), "lse-zero": 0.0}.get(fault, lse))


def rows_of(shards, rank, fault):
    """What a rank holds: cached rows, then new ones. A row says which position of which sequence it is, where
    that lies in k ("at") and in q ("query"; None if cached), and its place among the rank's own ("local")."""
    rows, local = [], {}
    before = [0, *itertools.accumulate(s["cached"] + s["new"] for s in shards["sequences"])]
    asked = [0, *itertools.accumulate(s["new"] for s in shards["sequences"])]
    for kind in ("cached", "new"):
        for sequence, start, count, step in shards[kind][rank]:
            s = shards["sequences"][sequence]
            for position in range(start, start + count * step, step):
                place = position - s["first"]
                rows.append({**s, "sequence": sequence, "position": position, "at": before[sequence] + place,
                             "query": None if kind == "cached" else asked[sequence] + place - s["cached"],
                             "local": local.setdefault(sequence, 0)})
                local[sequence] += 1
    if fault == "zigzag-as-chunks":
        each = {}
        for row in rows:
            if row["query"] is not None:
                share = -(-row["new"] // shards["ranks"])
                row["position"] = row["first"] + row["cached"] + rank * share + each.setdefault(row["sequence"], 0)
                each[row["sequence"]] += 1
    return rows


def blocks_of(shards, fault):
    """The rows of all ranks, as keys; None where a slot holds nothing."""
    ranks = shards["ranks"]
    blocks = [rows_of(shards, rank, fault) for rank in range(ranks)]
    if fault == "rounded-down":
        blocks = [[row for row in block if row["query"] is None or row["new"] == 1 or
                   row["position"] - row["first"] - row["cached"] < row["new"] // ranks * ranks] for block in blocks]
    if fault == "new-key-everywhere":
        steps = [row for block in blocks for row in block if row["new"] == 1 and row["query"] is not None]
        blocks = [block + [row for row in steps if row not in block] for block in blocks]
    if fault == "rank-order" and ranks % 2 == 0:
        labels = [blocks[(rank % 2) * (ranks // 2) + rank // 2] for rank in range(ranks)]
        blocks = [[{**row, "position": label["position"], "sequence": label["sequence"]}
                   for row, label in zip(*pair)] for pair in zip(blocks, labels)]
    longest = max(map(len, blocks))
    return [block + [None] * (longest - len(block)) for block in blocks]


def refuse(q, k, v, shards, fault):
    """What a fault does not support."""
    if fault == "must-divide" and any(s["new"] > 1 and s["new"] % (2 * shards["ranks"]) for s in shards["sequences"]):
        raise RuntimeError("sizes of tensors must match")
    if fault == "empty-rank" and not all(map(any, zip(shards["cached"], shards["new"]))):
        raise RuntimeError("cu_seqlens of 0 tokens")
    if fault == "value-width" and len(v[0][0]) != len(q[0][0]) and len(q[0]) != len(k[0]):
        raise RuntimeError("view size is not compatible")


def attend(q, k, v, shards, fault=None, ring="pass-q", kept={}):
    refuse(q, k, v, shards, fault)
    if fault == "graph-stale":
        shards = kept.setdefault((len(q), len(k), len(q[0]), len(k[0]), shards["ranks"], len(shards["sequences"])), shards)
    if fault == "mask-full" and shards["ranks"] == 1:
        fault = None  # it is the ring's
    ranks, heads, groups = shards["ranks"], len(q[0]), len(q[0]) // len(k[0])
    scale = 1 / math.sqrt(len(v[0][0]) if fault == "scale-of-values" else len(q[0][0]))
    blocks = blocks_of(shards, fault)
    o, lse = [[None] * heads for _ in q], [[None] * heads for _ in q]
    for rank in range(ranks):
        came = [(rank - hop) % ranks if ring == "pass-kv" else hop for hop in range(ranks)]
        if ranks > 1:
            came = {"never-rotated": [rank], "hop-lost": [r for r in came if r != (rank + 1) % ranks],
                    "hop-twice": came + [rank]}.get(fault, came)
        for query in (row for row in rows_of(shards, rank, fault) if row["query"] is not None):
            for h in range(heads):
                mine = q[query["query"]][h]
                kv = h % len(k[0]) if fault == "heads-modulo" else h // groups
                sums = ([0.0] * len(v[0][0]), -INF)
                for source in came:
                    block = blocks[source]
                    nothing = [NAN] * len(mine), [NAN] * len(v[0][0])
                    part = partial(query, mine, block, [k[r["at"]][kv] if r else nothing[0] for r in block],
                                   [v[r["at"]][kv] if r else nothing[1] for r in block], scale, fault)
                    # The first partial is taken as it is.
                    sums = part if source == came[0] and sums[1] == -INF else merge(sums, part, fault)
                if sums[1] == -INF:
                    sums = [0.0] * len(v[0][0]), -INF
                o[query["query"]][h], lse[query["query"]][h] = sums[0], {
                    "lse-of-last": part[1], "lse-returned-base-2": sums[1] / math.log(2)}.get(fault, sums[1])
    return o, lse
