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


def parse_bytes(text):
    number, unit = (text[:-1], UNITS.get(text[-1:].upper())) if text else ("", None)
    value = int(number) * unit if unit else int(text)
    if value < 4:
        raise ValueError
    return value


def parse_ranks(text):
    ranks = [int(n) for n in text.split(",")]
    if min(ranks) < 2:
        raise ValueError
    return ranks


def parse_peers(text):
    names = text.split(",")
    if not set(names) <= set(PEERS):
        raise ValueError
    return names


def parse_positive(text):
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
    parser.add_argument("-n", type=parse_ranks, default=[2], metavar="N[,N]", dest="ranks",
                        help="numbers of ranks (2)")
    parser.add_argument("--rounds", type=parse_positive, default=5, help="(5)")
    parser.add_argument("--min", type=parse_bytes, default=4, metavar="BYTES",
                        help="smallest size (4, or 4 for each rank); K, M, G: powers of 1024")
    parser.add_argument("--max", type=parse_bytes, default=64 << 20, metavar="BYTES",
                        help="largest size (64M)")
    parser.add_argument("--factor", type=parse_positive, default=4, help="between sizes (4)")
    parser.add_argument("--algo", default="auto", help="dcomm's algorithm (auto)")
    parser.add_argument("--inplace", action="store_true", help="all sides in place")
    parser.add_argument("--peers", type=parse_peers, metavar="NAMES",
                        help="of openmpi,mpich (those that are installed)")
    parser.add_argument("--check", type=float, metavar="RATIO",
                        help="exit with 1 where dcomm takes more than RATIO times a peer's time")
    parser.add_argument("--json", metavar="FILE", help="write all times there")
    parser.add_argument("--build", default=str(ROOT / "build"), metavar="DIR",
                        help="where dcomm-run and dcomm-perf are (build)")
    parser.add_argument("--openmpi-args", default="", metavar="ARGS", help="more for mpirun")
    parser.add_argument("--mpich-args", default="", metavar="ARGS", help="more for mpirun")
    parser.add_argument("--iterations", type=parse_positive,
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
    """Rows of all rounds. Each round begins with another library, so that none always follows the
    same one."""
    names = list(sides)
    rounds = {name: [] for name in names}
    for i in range(args.rounds):
        for k in range(len(names)):
            name = names[(i + k) % len(names)]
            report = measure(sides[name], size, args)
            note_cores(name, sides[name], report, ranks)
            hardware.update(report.get("hardware", {}))
            rounds[name].append(report["results"][0])
    if len({row["bytes"] for rows in rounds.values() for row in rows}) != 1:
        raise Failure(f"the sides moved different numbers of bytes at {size}")
    return rounds


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
    cells = [f"{'bytes':>10}  {'dcomm algo':<24} {'dcomm µs':>11} {'spread':>7}"]
    for name in list(sides)[1:]:
        cells.append(f"{label(name, ranks) + ' µs':>18} {'spread':>7} {'ratio':>7}")
    print("  ".join(cells), flush=True)


def print_row(found):
    own = found["dcomm"]
    cells = [f"{own['bytes']:>10}  {own['algo']:<24} {own['time_us_med']:>11.2f} "
             f"{own['spread']:>7.0%}"]
    for name in list(found)[1:]:
        row = found[name]
        cells.append(f"{row['time_us_med']:>18.2f} {row['spread']:>7.0%} {row['ratio']:>7.2f}")
    print("  ".join(cells), flush=True)


def compare(ranks, peers, args, hardware):
    sides = make_sides(ranks, peers, args)
    crowded = ranks > cores()
    print(f"\n# {args.op}, {ranks} ranks on {min(ranks, cores())} cores, {args.rounds} rounds; "
          "ratio: dcomm's time over the peer's; spread: (max - min) / median over rounds")
    if crowded:
        print("# more ranks than cores: dcomm yields, Open MPI is told to yield"
              + ("; MPICH only spins, its times say nothing of its algorithms"
                 if "mpich" in peers else ""))
    for name, side in sides.items():
        print(f"# {name}: {shlex.join(side['command'])} -b BYTES -e BYTES")
    print_heading(sides, ranks)
    results = []
    for size in sizes(ranks, args):
        rounds = compare_size(size, sides, args, ranks, hardware)
        found = {name: summarize(name, rows) for name, rows in rounds.items()}
        for name in peers:
            found[name]["ratio"] = found["dcomm"]["time_us_med"] / found[name]["time_us_med"]
            found[name]["spins"] = name == "mpich" and crowded
        print_row(found)
        results += found.values()
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
    load = os.getloadavg()[0]
    if load > 0.5:
        print(f"WARNING: this machine is busy (load {load:.1f}): the times below compare nothing",
              file=sys.stderr)
    hardware = {}
    tables = [compare(ranks, peers, args, hardware) for ranks in args.ranks]
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({"schema": 1, "tool": "compare-peers", "hardware": hardware,
                       "load_before": load, "rounds": args.rounds, "missing": missing,
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
