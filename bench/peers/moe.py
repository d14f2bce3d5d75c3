#!/usr/bin/env python3
"""Times dcomm's all-to-all-v of experts' rows beside Open MPI's and MPICH's, in turns."""
import argparse
import pathlib
import re
import statistics
import sys

import libraries
from libraries import Failure

GOOD, TOO_SLOW, USAGE, FAILED = 0, 1, 2, 3


def parse_args():
    parser = argparse.ArgumentParser(
        description="The same rows between the same ranks by dcomm, Open MPI and MPICH: the "
                    "routings of dcomm-moe. Each library runs once a round, in turns, by one rule "
                    "(bench/peers/README.md); ratios are of neighbours in time.",
        epilog="exit: 0 good, 1 slower than --check allows, 2 usage, 3 a run failed")
    parser.add_argument("-n", type=int, default=2, metavar="N", dest="ranks", help="ranks (2)")
    parser.add_argument("--tokens", type=int, default=1024, help="of each rank (1024)")
    parser.add_argument("--hidden", type=int, default=1024, help="elements of a row, f32 (1024)")
    parser.add_argument("--experts", type=int, help="(4 for each rank)")
    parser.add_argument("--k", type=int, default=2, help="experts of a token (2)")
    parser.add_argument("--skew", default="zipf:1", help="one of dcomm-moe's, or several (zipf:1)")
    parser.add_argument("--mem", choices=["host", "huge", "registered"], default="host",
                        help="of buffers; registered: dcomm's, the peers' huge (host)")
    parser.add_argument("--rotate", type=int, default=128 << 20, help="bytes (128 MiB)")
    parser.add_argument("--rounds", type=int, default=5, help="(5)")
    parser.add_argument("--steps", type=int, default=20, help="timed iterations of a run (20)")
    parser.add_argument("--peers", default="openmpi,mpich", help="(openmpi,mpich)")
    parser.add_argument("--check", type=float, metavar="RATIO",
                        help="exit with 1 where dcomm takes more than RATIO times a peer's time")
    parser.add_argument("--timeout", type=float, default=120, help="seconds of one run (120)")
    parser.add_argument("--build", default=str(libraries.ROOT / "build"), metavar="DIR")
    args = parser.parse_args()
    args.build = pathlib.Path(args.build).resolve()
    args.experts = args.experts or 4 * args.ranks
    args.peer_args, args.yields, args.hosts = {}, False, None
    return args


def commands(args, skew):
    """What each library runs."""
    found = {"dcomm": libraries.on_this_machine("dcomm", None, args.ranks, args) + [
        str(args.build / "dcomm-moe"), "--exchange", "--tokens", str(args.tokens),
        "--hidden", str(args.hidden), "--experts", str(args.experts), "--k", str(args.k),
        "--skew", skew, "--rotate", str(args.rotate), "--steps", str(args.steps),
        "--mem", args.mem]}
    for name in args.peers.split(","):
        launcher, program, _ = libraries.build("moe-" + name, args.build)
        found[name] = libraries.on_this_machine(name, launcher, args.ranks, args) + [
            program, str(args.tokens), str(args.hidden), str(args.experts), str(args.k), skew,
            str(args.rotate), str(args.steps), "host" if args.mem == "host" else "huge"]
    return found


def measure(command, args):
    output = libraries.run(command, args.timeout)
    match = re.search(r"alltoallv ([0-9.]+) us$", output, re.MULTILINE)
    if match is None:
        raise Failure(f"no time in: {output.strip()}")
    return float(match[1])


def compare(args, skew):
    """A table's rows; the largest ratio."""
    sides = commands(args, skew)
    names, times = list(sides), {name: [] for name in sides}
    for i in range(args.rounds):
        for k in range(len(names)):
            name = names[(i + k) % len(names)]
            times[name].append(measure(sides[name], args))
    worst = 0
    for name in names:
        ratios = [mine / other for mine, other in zip(times["dcomm"], times[name])]
        median = statistics.median(times[name])
        spread = (max(times[name]) - min(times[name])) / median
        spins = name in libraries.NO_YIELD and args.ranks > len(libraries.cores())
        note = "spins" if spins else ""
        print(f"{skew:14} {name:8} {median:12.1f} {spread:7.2f} {statistics.median(ratios):7.3f} "
              f"{min(ratios):7.3f}..{max(ratios):.3f}  {note}", flush=True)
        worst = max(worst, statistics.median(ratios) if name != "dcomm" else 0)
    return worst


def main():
    args = parse_args()
    try:
        print(f"# all-to-all-v, {args.ranks} ranks, {args.tokens} tokens each, k {args.k}, "
              f"{args.experts} experts, rows of {4 * args.hidden} bytes, {args.mem} memory, "
              f"{args.rounds} rounds\n"
              f"{'skew':14} {'library':8} {'us':>12} {'spread':>7} {'ratio':>7}  least..most")
        worst = max([compare(args, skew) for skew in args.skew.split(",")])
    except Failure as error:
        print(f"moe.py: {error}", file=sys.stderr)
        return FAILED
    if args.check and worst > args.check:
        print(f"too slow: {worst:.3f} times a peer's time; at most {args.check:g} is allowed")
        return TOO_SLOW
    return GOOD


if __name__ == "__main__":
    sys.exit(main())
