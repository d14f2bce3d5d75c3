#!/usr/bin/env python3
"""Compare what ptxas says each kernel needs with a checked-in table.

  tests/kernels/cuda_resources.py LOG             LOG: what nvcc -Xptxas -v wrote; exit 1 where it is worse
  tests/kernels/cuda_resources.py LOG --update    write the table

A row is a kernel on an architecture: registers, bytes of stack, bytes spilled. More registers than
in the table are worse when fewer threads fit on a multiprocessor for it; any byte of stack or
spills that is not in the table is worse. Kernels and architectures may not be missing either way,
but for architectures that this toolkit does not have."""
import argparse
import os
import re
import subprocess
import sys

TABLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "cuda_resources.tsv")
ENTRY = re.compile(
    r"Compiling entry function '(\S+)' for '(\S+)'.*?(\d+) bytes stack frame, "
    r"(\d+) bytes spill stores, (\d+) bytes spill loads.*?Used (\d+) registers", re.S)
REGISTERS = 65536  # of a multiprocessor
HEADER = "kernel\tarch\tregisters\tstack\tspilled"


def demangled(names):
    text = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True,
                          check=True).stdout.split("\n")
    return {n: re.sub(r"^void |\(dcommi_cuda_\w+\)$|dcommi_cuda_", "", t)
            for n, t in zip(names, text)}


def of_log(path):
    with open(path, encoding="utf-8") as f:
        found = ENTRY.findall(f.read())
    names = demangled(sorted({n for n, *_ in found}))
    return {(names[n], arch): (int(registers), int(stack), int(stores) + int(loads))
            for n, arch, stack, stores, loads, registers in found}


def of_table():
    with open(TABLE, encoding="utf-8") as f:
        rows = [line.rstrip("\n").split("\t") for line in f
                if not line.startswith(("#", "kernel\t"))]
    return {(r[0], r[1]): tuple(map(int, r[2:])) for r in rows}


def worse(now, then):
    """Warps that fit, in steps of four as registers are given out."""
    warps = [REGISTERS // (32 * ((r[0] + 7) // 8 * 8)) // 4 for r in (now, then)]
    return warps[0] < warps[1] or now[1] > then[1] or now[2] > then[2]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("log")
    parser.add_argument("--update", action="store_true", help="write the table")
    args = parser.parse_args()
    now = of_log(args.log)
    if not now:
        print("cuda_resources: no kernels in " + args.log, file=sys.stderr)
        return 1
    if args.update:
        with open(TABLE, "w", encoding="utf-8") as f:
            f.write("# What each kernel needs; written by tests/kernels/cuda_resources.py --update.\n")
            f.write(HEADER + "\n")
            for key in sorted(now):
                f.write("\t".join(map(str, key + now[key])) + "\n")
        return 0
    then = of_table()
    archs = {arch for _, arch in now}
    bad = 0
    for key in sorted(set(now) | {k for k in then if k[1] in archs}):
        if key not in now or key not in then:
            where = "only in the table" if key not in now else "not in the table"
        elif worse(now[key], then[key]):
            where = "registers, stack, spilled: %d %d %d, in the table %d %d %d" % (
                now[key] + then[key])
        else:
            continue
        print("%s %s: %s" % (key + (where,)))
        bad = 1
    if bad:
        print("see tests/kernels/cuda_resources.py --help")
    return bad


if __name__ == "__main__":
    sys.exit(main())
