#!/usr/bin/env python3
"""Times dcomm and other libraries side by side: the same rule, the same cores, in turns."""
import argparse
import json
import os
import pathlib
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
GOOD, TOO_SLOW, USAGE, FAILED = 0, 1, 2, 3
OPS = ["allreduce", "reduce_scatter", "allgather", "broadcast", "alltoall"]
BLOCK_OPS = {"reduce_scatter", "allgather", "alltoall"}  # a buffer holds one block per rank
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
PEERS = {  # how `mpirun --version` names the family, and the Debian package
    "openmpi": ("Open", "libopenmpi-dev openmpi-bin"),
    "mpich": ("HYDRA", "libmpich-dev mpich"),
}


class Failure(Exception):
    """A sentence for the user."""


def byte_count(text):
    number, unit = (text[:-1], UNITS.get(text[-1:].upper())) if text else ("", None)
    value = int(number) * unit if unit else int(text)
    if value < 4:
        raise ValueError
    return value


def rank_list(text):
    ranks = [int(n) for n in text.split(",")]
    if min(ranks) < 2:
        raise ValueError
    return ranks


def peer_list(text):
    names = text.split(",")
    if not set(names) <= set(PEERS):
        raise ValueError
    return names


def positive_int(text):
    if int(text) < 1:
        raise ValueError
    return int(text)


def parse_args():
    parser = argparse.ArgumentParser(
        description="Compares dcomm with Open MPI and MPICH on this machine, f32 sum, each rank "
                    "bound to a core. Per size and round each library runs once, in turns; times "
                    "are medians over the rounds of the time that dcomm-perf defines.",
        epilog="exit: 0 good, 1 slower than --check allows, 2 usage, 3 a run failed or nothing to "
               "compare with")
    parser.add_argument("--op", choices=OPS, default="allreduce")
    parser.add_argument("-n", type=rank_list, default=[2], metavar="N[,N]", dest="ranks",
                        help="numbers of ranks (2)")
    parser.add_argument("--rounds", type=positive_int, default=5, help="(5)")
    parser.add_argument("--min", type=byte_count, default=4, metavar="BYTES",
                        help="smallest size (4, or 4 for each rank); K, M, G: powers of 1024")
    parser.add_argument("--max", type=byte_count, default=64 << 20, metavar="BYTES",
                        help="largest size (64M)")
    parser.add_argument("--factor", type=positive_int, default=4, help="between sizes (4)")
    parser.add_argument("--algo", default="auto", help="dcomm's algorithm (auto)")
    parser.add_argument("--inplace", action="store_true", help="all sides in place")
    parser.add_argument("--peers", type=peer_list, metavar="NAMES",
                        help="of openmpi,mpich (those that are installed)")
    parser.add_argument("--check", type=float, metavar="RATIO",
                        help="exit with 1 where dcomm takes more than RATIO times a peer's time")
    parser.add_argument("--json", metavar="FILE", help="write all times there")
    parser.add_argument("--build", default=str(ROOT / "build"), metavar="DIR",
                        help="where dcomm-run and dcomm-perf are (build)")
    parser.add_argument("--openmpi-args", default="", metavar="ARGS", help="more for mpirun")
    parser.add_argument("--mpich-args", default="", metavar="ARGS", help="more for mpirun")
    parser.add_argument("--iterations", type=positive_int,
                        help="timed iterations of each run (as many as take about 0.3 s)")
    parser.add_argument("--timeout", type=float, default=120, help="seconds for one run (120)")
    args = parser.parse_args()
    if args.factor < 2:
        parser.error("--factor is at least 2")
    if args.max < args.min:
        parser.error("--max is smaller than --min")
    return args


# ---- programs ----

def run(command, timeout, env=None):
    """Output of a command; Failure where it fails. Ranks of a run that hangs are ended too: first
    by the launcher, which knows them, then by force."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, env=env,
                               start_new_session=True)
    shown = shlex.join(map(str, command))
    try:
        output, _ = process.communicate(timeout=timeout)
    except BaseException as error:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            pass
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
        if isinstance(error, subprocess.TimeoutExpired):
            raise Failure(f"not done after {timeout:g} s: {shown}") from None
        raise
    if process.returncode != 0:
        raise Failure(f"exit status {process.returncode}: {shown}\n{output.strip()}")
    return output


def find_peer(name, build):
    """The peer's mpirun and our program built with its mpicc; Failure where it is missing. Debian
    names both with a suffix; elsewhere the plain names may belong to either family."""
    family, packages = PEERS[name]
    for suffix in ("." + name, ""):
        mpicc, mpirun = shutil.which("mpicc" + suffix), shutil.which("mpirun" + suffix)
        if mpicc and mpirun and family in run([mpirun, "--version"], 20):
            break
    else:
        raise Failure(f"{name} is not installed (Debian: apt-get install {packages})")
    program = build / "peers" / f"mpi-perf-{name}"
    program.parent.mkdir(parents=True, exist_ok=True)
    run([mpicc, "-O2", "-std=c11", HERE / "mpi-perf.c", "-o", program, "-lm"], 120)
    return mpirun, program


def build_probe(build):
    """core-pair and the first two cores, or None where there is no compiler or one core."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    pair = [str(core) for core in sorted(os.sched_getaffinity(0))[:2]]
    if compiler is None or len(pair) < 2:
        return None
    program = build / "peers" / "core-pair"
    program.parent.mkdir(parents=True, exist_ok=True)
    run([compiler, "-O2", "-std=c11", HERE / "core-pair.c", "-o", program, "-lpthread"], 120)
    return [str(program)] + pair


def busy_cores():
    """How many cores others keep busy now. The load average would count our own last run too."""
    def ticks():
        with open("/proc/stat", encoding="ascii") as file:
            values = [int(text) for text in file.readline().split()[1:9]]
        return sum(values), values[3] + values[4]  # all, idle
    total, idle = ticks()
    time.sleep(0.5)
    total, idle = (after - before for after, before in zip(ticks(), (total, idle)))
    return (1 - idle / max(total, 1)) * (os.cpu_count() or 1)


def cores():
    return len(os.sched_getaffinity(0))


def launcher(name, mpirun, ranks, args):
    """How each library starts ranks with rank i on core i, round robin where there are more ranks
    than cores."""
    crowded = ranks > cores()
    if name == "dcomm":
        return [str(args.build / "dcomm-run"), "-n", str(ranks), "--bind", "core", "--"]
    if name == "mpich":
        return [mpirun, "-n", str(ranks), "-bind-to", "core"] + shlex.split(args.mpich_args)
    bind = "core:overload-allowed" if crowded else "core"
    command = [mpirun, "-n", str(ranks), "--map-by", "core", "--bind-to", bind,
               "--mca", "pml", "ob1", "--mca", "btl", "vader,self"]
    if crowded:
        command += ["--oversubscribe", "--mca", "mpi_yield_when_idle", "1"]
    if os.geteuid() == 0:
        command.append("--allow-run-as-root")
    return command + shlex.split(args.openmpi_args)


def measure(side, bytes_, args):
    """One run's only row, and the cores of the ranks where the program tells them."""
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "row.json")
        command = side["command"] + ["-b", str(bytes_), "-e", str(bytes_), "--json", file]
        # mpirun's own variables, where this runs under one, would confuse the ranks.
        env = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI_COMM_", "PMI"))}
        run(command, args.timeout, env)
        with open(file, encoding="utf-8") as opened:
            report = json.load(opened)
    if len(report["results"]) != 1:
        raise Failure(f"not one row but {len(report['results'])}: {shlex.join(command)}")
    return report


# ---- one table ----

def make_sides(ranks, peers, args):
    more = [args.op, "--algo", args.algo]
    common = ["-n", str(args.iterations)] if args.iterations else []
    # MPI's broadcast has one buffer: so must dcomm's, or its root copies as well.
    if args.inplace or args.op == "broadcast":
        common.append("--inplace")
    dcomm = launcher("dcomm", None, ranks, args) + [str(args.build / "dcomm-perf")]
    sides = {"dcomm": {"command": dcomm + more + common, "cores": None}}
    for name, (mpirun, program) in peers.items():
        command = launcher(name, mpirun, ranks, args) + [str(program), args.op] + common
        sides[name] = {"command": command, "cores": None}
    return sides


def sizes(ranks, args):
    least = 4 * ranks if args.op in BLOCK_OPS else 4
    size = max(args.min, least)
    while size <= args.max:
        yield size
        size *= args.factor


def note_cores(name, side, report, ranks):
    if side["cores"] is None and "cores" in report:
        side["cores"] = report["cores"]
        side["version"] = report["version"]
        used = len(set(report["cores"]))
        if -1 in report["cores"] or used < min(ranks, cores()):
            print(f"WARNING: {name}'s ranks are not on cores of their own: {report['cores']} "
                  "(-1: not bound)", file=sys.stderr)


def compare_size(size, sides, args, ranks, hardware):
    """Rows of all rounds, and how far apart two cores were in each. Each round begins with another
    library, so that none always follows the same one."""
    names = list(sides)
    rounds = {name: [] for name in names}
    pair_ns = []
    for i in range(args.rounds):
        if args.probe:
            pair_ns.append(float(run(args.probe, args.timeout)))
        for k in range(len(names)):
            name = names[(i + k) % len(names)]
            report = measure(sides[name], size, args)
            note_cores(name, sides[name], report, ranks)
            hardware.update(report.get("hardware", {}))
            rounds[name].append(report["results"][0])
    if len({row["bytes"] for rows in rounds.values() for row in rows}) != 1:
        raise Failure(f"the sides moved different numbers of bytes at {size}")
    return rounds, pair_ns


def summarize(name, rows):
    times = [row["time_us_med"] for row in rows]
    median = statistics.median(times)
    kept = {key: rows[0][key] for key in ("op", "algo", "dtype", "redop", "nranks", "bytes",
                                          "count", "inplace")}
    return {"library": name, **kept, "time_us_med": median,
            "time_us_min": min(row["time_us_min"] for row in rows),
            "spread": (max(times) - min(times)) / median, "rounds_us": times}


def label(name, ranks):
    spins = name == "mpich" and ranks > cores()
    return name + (" (spins)" if spins else "")


def print_heading(sides, ranks):
    cells = [f"{'bytes':>10} {'pair ns':>8}  {'dcomm algo':<23} {'dcomm µs':>11} {'spread':>7}"]
    for name in list(sides)[1:]:
        cells.append(f"{label(name, ranks) + ' µs':>18} {'spread':>7} {'ratio':>7} "
                     f"{'of rounds':>12}")
    print("  ".join(cells), flush=True)


def print_row(found, pair_ns):
    own = found["dcomm"]
    pair = f"{statistics.median(pair_ns):.0f}" if pair_ns else "-"
    cells = [f"{own['bytes']:>10} {pair:>8}  {own['algo']:<23} {own['time_us_med']:>11.2f} "
             f"{own['spread']:>7.0%}"]
    for name in list(found)[1:]:
        row = found[name]
        extent = f"{min(row['rounds_ratio']):.2f}..{max(row['rounds_ratio']):.2f}"
        cells.append(f"{row['time_us_med']:>18.2f} {row['spread']:>7.0%} {row['ratio']:>7.2f} "
                     f"{extent:>12}")
    print("  ".join(cells), flush=True)


def compare(ranks, peers, args, hardware):
    sides = make_sides(ranks, peers, args)
    crowded = ranks > cores()
    print(f"\n# {args.op}, {ranks} ranks on {min(ranks, cores())} cores, {args.rounds} rounds\n"
          "# times: medians over rounds; spread: (max - min) / median\n"
          "# ratio: dcomm's time over the peer's in the same round; median, least..most of rounds\n"
          "# pair: a cache line's way from one core to another and back")
    if crowded:
        print("# more ranks than cores: dcomm yields, Open MPI is told to yield"
              + ("; MPICH only spins, its times say nothing of its algorithms"
                 if "mpich" in peers else ""))
    for name, side in sides.items():
        print(f"# {name}: {shlex.join(side['command'])} -b BYTES -e BYTES")
    print_heading(sides, ranks)
    results, trips = [], []
    for size in sizes(ranks, args):
        rounds, pair_ns = compare_size(size, sides, args, ranks, hardware)
        found = {name: summarize(name, rows) for name, rows in rounds.items()}
        for name in peers:
            # Of neighbours in time: the machine may change its pace between rounds.
            ratios = [own / peer for own, peer in zip(found["dcomm"]["rounds_us"],
                                                      found[name]["rounds_us"])]
            found[name]["ratio"] = statistics.median(ratios)
            found[name]["rounds_ratio"] = ratios
            found[name]["spins"] = name == "mpich" and crowded
        found["dcomm"]["pair_ns"] = pair_ns
        print_row(found, pair_ns)
        results += found.values()
        trips += pair_ns
    for name in peers:
        print(f"# {name} was {sides[name]['version']}, its ranks on cores {sides[name]['cores']}")
    if trips and max(trips) > 1.5 * min(trips):
        print(f"# the cores' distance changed on the way, {min(trips):.0f} to {max(trips):.0f} ns: "
              "trust ratios, not times")
    return {"nranks": ranks, "oversubscribed": crowded, "sides": sides, "results": results}


def check(tables, limit):
    """GOOD or TOO_SLOW, after a sentence for each size that is too slow."""
    compared = [row for table in tables for row in table["results"] if "ratio" in row]
    slow = [row for row in compared if row["ratio"] > limit]
    for row in slow:
        print(f"too slow: {row['op']} of {row['bytes']} bytes, {row['nranks']} ranks: "
              f"{row['ratio']:.2f} times {row['library']}'s time; at most {limit:g} is allowed")
    worst = max(compared, key=lambda row: row["ratio"])
    print(f"check: {len(slow)} of {len(compared)} times above {limit:g}; worst ratio "
          f"{worst['ratio']:.2f} ({worst['library']}, {worst['bytes']} bytes)")
    return TOO_SLOW if slow else GOOD


def main():
    args = parse_args()
    args.build = pathlib.Path(args.build).resolve()
    for tool in ("dcomm-run", "dcomm-perf"):
        if not (args.build / tool).exists():
            raise Failure(f"{args.build / tool} is missing: build first (meson setup build && "
                          "ninja -C build)")
    peers, missing = {}, {}
    for name in args.peers or PEERS:
        try:
            peers[name] = find_peer(name, args.build)
        except Failure as error:
            missing[name] = str(error)
            print(f"MISSING: {error}", file=sys.stderr)
    if not peers or (args.peers and missing):
        raise Failure("nothing to compare with: " + ", ".join(missing))
    args.probe = build_probe(args.build)
    busy = busy_cores()
    if busy > 0.2:
        print(f"WARNING: others keep {busy:.1f} cores busy: the times below compare nothing",
              file=sys.stderr)
    hardware = {}
    tables = [compare(ranks, peers, args, hardware) for ranks in args.ranks]
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({"schema": 1, "tool": "compare-peers", "hardware": hardware,
                       "busy_cores_before": busy, "rounds": args.rounds, "missing": missing,
                       "tables": tables}, file, indent=1)
            file.write("\n")
    return check(tables, args.check) if args.check else GOOD


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (Failure, OSError) as error:
        print(f"compare.py: {error}", file=sys.stderr)
        sys.exit(FAILED)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
