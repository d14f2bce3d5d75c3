#!/usr/bin/env python3
"""Print the cases of the run-for-real matrix, one per line: the arguments of dcomm-run's -n and of
dcomm-perf. Every case runs each algorithm of its operation.

By default each pair of values of two parameters meets in some case, of a few values of each; with --full
every operation runs with every number of ranks, type and operator at every size up to 300 KB, in place too
where it can, and in f32 and bf16 up to 16 MB."""
import itertools
import random
import sys

REDUCING = ["allreduce", "reduce_scatter", "reduce"]
ROOTED = ["broadcast", "reduce", "gather", "scatter"]
NEVER_IN_PLACE = ["alltoallv", "sendrecv", "barrier"]
MB = 1 << 20
PARAMETERS = {
    "op": ["allreduce", "reduce_scatter", "allgather", "broadcast", "reduce", "gather", "scatter",
           "alltoall", "alltoallv", "sendrecv", "barrier"],
    "ranks": [1, 2, 3, 4, 5, 8],
    "dtype": ["double", "float", "bf16", "int8", "uint32", "int64"],
    "redop": ["sum", "prod", "min", "max", "avg"],
    "bytes": [0, 27, 4109, 65531, MB + 13],
    "inplace": [False, True],
    "root": ["first", "last"],
}


def sensible(case):
    """What does not apply to an operation keeps its first value, and barriers have no size."""
    if case["op"] not in REDUCING and case["redop"] != "sum":
        return False
    if case["op"] in NEVER_IN_PLACE and case["inplace"]:
        return False
    if case["op"] not in ROOTED and case["root"] != "first":
        return False
    return case["op"] != "barrier" or (case["bytes"] == 0 and case["dtype"] == "double")


def pairs(case):
    return set(itertools.combinations(sorted(case.items()), 2))


def repaired(case, rng, fixed):
    """Make a case sensible by changing only what is not fixed; None if that is impossible."""
    case = dict(case)
    for name, value in (("redop", "sum"), ("inplace", False), ("root", "first"), ("bytes", 0),
                        ("dtype", "double")):
        if sensible(case):
            return case
        if name not in fixed and (name not in ("bytes", "dtype") or case["op"] == "barrier"):
            case[name] = value
    if not sensible(case) and "op" not in fixed:
        fitting = [op for op in PARAMETERS["op"] if sensible({**case, "op": op})]
        if fitting:
            case["op"] = rng.choice(fitting)
    return case if sensible(case) else None


def pairwise():
    """Few cases that cover every pair, by greedy choice among random candidates."""
    rng = random.Random(1)
    left = []
    for (a, x), (b, y) in itertools.combinations(
            [(name, v) for name in sorted(PARAMETERS) for v in PARAMETERS[name]], 2):
        if a != b:
            left.append(((a, x), (b, y)))
    open_pairs = set(left)
    for pair in left:
        if pair not in open_pairs:
            continue
        best = None
        for _ in range(30):
            case = {name: rng.choice(values) for name, values in PARAMETERS.items()}
            case.update(dict(pair))
            case = repaired(case, rng, dict(pair))
            if case and (best is None or len(pairs(case) & open_pairs) > best[0]):
                best = (len(pairs(case) & open_pairs), case)
        open_pairs.discard(pair)
        if best:
            open_pairs -= pairs(best[1])
            yield best[1]


def line(case):
    size, redop, dtype = case["bytes"], case["redop"], case["dtype"]
    words = [str(case["ranks"]), case["op"], "-d", dtype, "-b", str(size), "-e", str(size or 1)]
    if case["op"] in REDUCING:
        words += ["-o", redop]
    if case["inplace"]:
        words.append("--inplace")
    if case["root"] == "last":
        words += ["-r", str(case["ranks"] - 1)]
    return " ".join(words)


def full():
    for op, ranks in itertools.product(PARAMETERS["op"], range(1, 10)):
        common = f"{ranks} {op} " + ("-o all " if op in REDUCING else "")
        for inplace in ["", " --inplace"][: 1 if op in NEVER_IN_PLACE else 2]:
            if op == "barrier":
                yield common.strip()
                continue
            # Everything from nothing over odd sizes to several chunks; the largest, which take
            # most of the time, in two types.
            yield f"{common}-d all -b 0 -e 64K -f 16{inplace}"
            yield f"{common}-d all -b 27 -e 300K -f 99{inplace}"
            if op in ROOTED and ranks > 1:
                yield f"{common}-d all -b 27 -e 300K -f 99 -r {ranks - 1}{inplace}"
        if op != "barrier":
            yield f"{ranks} {op} -d float,bf16 -b {MB + 13} -e 16M -f 4"


if __name__ == "__main__":
    cases = full() if "--full" in sys.argv[1:] else map(line, pairwise())
    for case in cases:
        print(case)
