#!/usr/bin/env python3
"""first-difference.py A B - find the first step in which two runs differ, from their logs.

A line counts if it is "step NUMBER  NAME HASH", as the trainer prints it with --hash-every: NAME is "weights"
or a tensor's name without spaces, and HASH has 16 digits (dcomm_fingerprint). Other lines are ignored. If a
step is there twice, because a run went back, its last hash counts. Exit status: 0 if the runs are the same in
all steps that both have, 1 if not, 2 if there is nothing to compare.
"""
import re
import sys

LINE = re.compile(r"^step\s+(\d+)\s+(\S+)\s+([0-9a-f]{16})\s*$")


def read(path):
    """Return {step: {name: hash}}; names are in the order of the log."""
    steps = {}
    with open(path, encoding="utf-8", errors="replace") as log:
        for line in log:
            found = LINE.match(line)
            if found:
                steps.setdefault(int(found[1]), {})[found[2]] = found[3]
    return steps


def main(paths):
    if len(paths) != 2 or paths[0].startswith("-"):
        print(__doc__.strip())
        return 0 if paths in (["-h"], ["--help"]) else 2
    try:
        a, b = (read(path) for path in paths)
    except OSError as error:
        print(f"first-difference.py: {error}", file=sys.stderr)
        return 2
    both, same, before = sorted(a.keys() & b.keys()), 0, None
    for step in both:
        for name in (name for name in a[step] if name in b[step]):
            if a[step][name] != b[step][name]:
                after = "at the first hash" if before is None else f"they are the same until step {before}"
                print(f"step {step}: {name} differs: {a[step][name]} and {b[step][name]}; {after}")
                return 1
            same += 1
        before = step
    if same == 0:
        print("first-difference.py: no step and name is in both logs", file=sys.stderr)
        return 2
    print(f"the same: {same} hashes of {len(both)} steps, the last one {both[-1]}; "
          f"only in one log: {len(a.keys() ^ b.keys())} steps")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
