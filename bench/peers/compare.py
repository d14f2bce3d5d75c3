#!/usr/bin/env python3
"""Times dcomm and other libraries side by side: the same rule, the same cores, in turns."""
import argparse
import json
import os
import pathlib
import signal
import statistics
import sys

import libraries
from libraries import Failure, cores

GOOD, TOO_SLOW, USAGE, FAILED = 0, 1, 2, 3
WRONG_RESULT = 1  # of dcomm-perf and the peers' programs
OPS = ["allreduce", "reduce_scatter", "allgather", "broadcast", "alltoall"]
BLOCK_OPS = {"reduce_scatter", "allgather", "alltoall"}  # a buffer holds one block per rank
LAUNCHED = [name for name in libraries.PEERS if name != "gloo"]  # by an mpirun
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
MEMORY = {"ordinary": "host", "huge": "huge", "registered": "registered"}  # as programs call it


# ---- command line ----

def byte_count(text):
    number, unit = (text[:-1], UNITS.get(text[-1:].upper())) if text else ("", None)
    value = int(number) * unit if unit else int(text)
    if value < 0:
        raise ValueError
    return value


def list_of(allowed):
    def words(text):
        names = text.split(",")
        if not set(names) <= set(allowed):
            raise ValueError
        return names
    return words


def rank_list(text):
    ranks = [int(n) for n in text.split(",")]
    if min(ranks) < 2:
        raise ValueError
    return ranks


def positive_int(text):
    if int(text) < 1:
        raise ValueError
    return int(text)


def parse_args():
    parser = argparse.ArgumentParser(
        description="Compares dcomm with other libraries on this machine, f32 sum, each rank bound "
                    "to a core. Per size and round each library runs once, in turns; times are "
                    "medians over the rounds of the time that dcomm-perf defines.",
        epilog="exit: 0 good, 1 slower than --check allows, 2 usage, 3 a run failed or nothing to "
               "compare with, 77 --hosts is forbidden here")
    parser.add_argument("--ops", "--op", type=list_of(OPS), default=["allreduce"],
                        metavar="OP[,OP]", help="of " + " ".join(OPS) + " (allreduce)")
    parser.add_argument("-n", type=rank_list, default=[2], metavar="N[,N]", dest="ranks",
                        help="numbers of ranks (2)")
    parser.add_argument("--mem", type=list_of(MEMORY), default=["ordinary"], metavar="KIND[,KIND]",
                        help="ordinary; huge: advised to be on huge pages, on all sides; "
                             "registered: dcomm's from dcomm_mem_alloc, peers' as huge (ordinary)")
    parser.add_argument("--peer-mem", choices=["ordinary", "huge"],
                        help="the peers' memory, where it shall not be as --mem says")
    parser.add_argument("--rotate", type=byte_count, default=128 << 20, metavar="BYTES",
                        help="iterations take turns with buffers of so many bytes a rank, at most "
                             "512 of them; 0: always the same ones (128M)")
    parser.add_argument("--rounds", type=positive_int, default=5, help="(5)")
    parser.add_argument("--min", type=byte_count, default=4, metavar="BYTES",
                        help="smallest size (4, or 4 for each rank); K, M, G: powers of 1024")
    parser.add_argument("--max", type=byte_count, default=64 << 20, metavar="BYTES",
                        help="largest size (64M)")
    parser.add_argument("--factor", type=positive_int, default=4, help="between sizes (4)")
    parser.add_argument("--algo", default="auto", help="dcomm's algorithm (auto)")
    parser.add_argument("--forced", metavar="NAMES|all",
                        help="time these algorithms of dcomm too, and name the best beside auto")
    parser.add_argument("--inplace", action="store_true", help="all sides in place")
    parser.add_argument("--peers", metavar="NAMES",
                        type=list_of(libraries.PEERS + list(libraries.YARDSTICKS) + ["none"]),
                        help="of " + ",".join(libraries.PEERS) + "; limit: a signal each way and "
                             "a copy of input to result, on one host; bare: the loops of an "
                             "all-reduce of two to eight ranks alone; or none (those installed)")
    parser.add_argument("--yield", action="store_true", dest="yields",
                        help="tell peers to yield; with more ranks than cores they always are")
    parser.add_argument("--check", type=float, metavar="RATIO",
                        help="exit with 1 where dcomm takes more than RATIO times a peer's time, "
                             "or that of its best forced algorithm")
    parser.add_argument("--json", metavar="FILE", help="write all times there")
    parser.add_argument("--build", default=str(libraries.ROOT / "build"), metavar="DIR",
                        help="where dcomm-run and dcomm-perf are (build)")
    for name in LAUNCHED:
        parser.add_argument(f"--{name}-args", default="", metavar="ARGS", help="more for mpirun")
    parser.add_argument("--iterations", type=positive_int,
                        help="timed iterations of each run (as many as take about 0.3 s)")
    parser.add_argument("--row", type=positive_int, metavar="CALLS",
                        help="calls of an iteration, one after the other without a barrier "
                             "between; times are of one (1)")
    parser.add_argument("--warmup", type=int, help="untimed iterations (3)")
    parser.add_argument("--timeout", type=float, default=120, help="seconds for one run (120)")
    hosts = parser.add_argument_group(
        "emulated hosts, made by bench/cluster.sh; -n does not count then")
    hosts.add_argument("--hosts", type=positive_int, metavar="M")
    hosts.add_argument("--ranks-per-host", type=positive_int, default=2, metavar="K", help="(2)")
    hosts.add_argument("--rate", default="1gbit", help="of each link, as tc writes it (1gbit)")
    hosts.add_argument("--order", choices=["block", "cyclic"], default="block",
                       help="cyclic: neighbouring ranks sit on different hosts (block)")
    args = parser.parse_args()
    if args.factor < 2:
        parser.error("--factor is at least 2")
    if args.max < args.min:
        parser.error("--max is smaller than --min")
    if args.hosts == 1:
        parser.error("--hosts is at least 2")
    for name in libraries.YARDSTICKS:
        if args.hosts and name in (args.peers or []):
            parser.error(f"--peers {name} is one host's; --hosts prints the links' limit")
    args.peer_args = {name: getattr(args, name + "_args")
                      for name in LAUNCHED}
    return args


# ---- one table ----

class Table:
    """One operation, number of ranks and kind of memory, over sizes."""

    def __init__(self, op, ranks, mem, peers, args, probes):
        self.op, self.ranks, self.mem, self.args, self.probes = op, ranks, mem, args, probes
        self.crowded = ranks > len(cores())
        dcomm = (None, str(args.build / "dcomm-perf"), {})
        self.peer_mem = args.peer_mem or ("ordinary" if mem == "ordinary" else "huge")
        mem = (MEMORY[mem], MEMORY[self.peer_mem])
        self.sides = [libraries.Side("dcomm", dcomm, op, ranks, mem, args, args.algo)]
        self.peers = [name for name in peers
                      if op in {"gloo": libraries.GLOO_OPS, **libraries.YARDSTICKS}.get(name, OPS)
                      and (name != libraries.BARE or (2 <= ranks <= 8 and not args.inplace))]
        for name in self.peers:
            self.sides.append(libraries.Side(name, peers[name], op, ranks, mem, args))
        self.forced = []
        if args.forced:
            for algo in libraries.forced_algorithms(args.forced, dcomm, op, ranks, mem, args):
                self.forced.append("dcomm:" + algo)
                self.sides.append(libraries.Side("dcomm:" + algo, dcomm, op, ranks, mem, args, algo))
        self.hardware, self.results, self.goodput, self.retries = {}, [], [], []

    def sizes(self):
        least = 4 * self.ranks if self.op in BLOCK_OPS else 4
        size = max(self.args.min, least)
        while size <= self.args.max:
            yield size
            size *= self.args.factor

    def measure_once(self, side, size):
        """A run of hours must not end because one launch went wrong: once more then, and it is
        told. A wrong result ends it."""
        try:
            return side.measure(size, self.args.timeout)
        except Failure as error:
            if error.status in (WRONG_RESULT, USAGE):
                raise
            print(f"WARNING: {side.name} failed at {size} bytes; once more: {error}",
                  file=sys.stderr)
            self.retries.append(f"{side.name} {size}")
            return side.measure(size, self.args.timeout)

    def measure(self, size):
        """Rows of all rounds. Each round begins with another library, so that none always follows
        the same one."""
        rounds = {side.name: [] for side in self.sides}
        if self.args.hosts:
            self.goodput.append(libraries.goodput(self.args))
        self.probes.copy()
        for i in range(self.args.rounds):
            self.probes.trip()
            for k in range(len(self.sides)):
                side = self.sides[(i + k) % len(self.sides)]
                report = self.measure_once(side, size)
                self.hardware.update(report.get("hardware", {}))
                rounds[side.name].append(report["results"][0])
        if len({row["bytes"] for rows in rounds.values() for row in rows}) != 1:
            raise Failure(f"the sides moved different numbers of bytes at {size}")
        return rounds

    def summarize(self, rounds):
        found = {}
        own = [row["time_us_med"] for row in rounds["dcomm"]]
        for name, rows in rounds.items():
            times = [row["time_us_med"] for row in rows]
            median = statistics.median(times)
            kept = {key: rows[0][key] for key in ("op", "algo", "dtype", "redop", "nranks", "bytes",
                                                  "count", "inplace", "mem")}
            busbw = rows[0]["busbw_GBps"] * rows[0]["time_us_med"] / median
            found[name] = {"library": name, **kept, "time_us_med": median,
                           "time_us_min": min(row["time_us_min"] for row in rows),
                           "spread": (max(times) - min(times)) / median, "rounds_us": times,
                           "busbw_GBps": busbw}
            if self.probes.copy_two:
                found[name]["busbw_per_copy"] = busbw / statistics.median(self.probes.copy_two)
            if self.args.hosts:
                limit = libraries.link_limit_us(self.op, kept["bytes"], self.args.hosts,
                                                self.args.ranks_per_host, self.goodput[-1])
                found[name]["limit_us"] = limit
                found[name]["time_per_limit"] = median / limit if limit else None
            if name != "dcomm":
                # Of neighbours in time: the machine may change its pace between rounds.
                ratios = [mine / other for mine, other in zip(own, times)]
                found[name]["ratio"] = statistics.median(ratios)
                found[name]["rounds_ratio"] = ratios
                found[name]["spins"] = name in libraries.NO_YIELD and self.crowded
        return found

    def best_forced(self, found):
        return min((found[name] for name in self.forced), key=lambda row: row["time_us_med"])

    def label(self, name):
        return name + (" (spins)" if self.crowded and name in libraries.NO_YIELD else "")

    def print_heading(self):
        args = self.args
        where = (f"{args.hosts} hosts, links of {args.rate}, numbered by {args.order}"
                 if args.hosts else f"{min(self.ranks, len(cores()))} cores")
        print(f"\n# {self.op}, {self.ranks} ranks on {where}, {self.mem} memory "
              f"(peers: {self.peer_mem}), {args.rounds} rounds\n"
              "# times: medians over rounds; spread: (max - min) / median; busbw in GB/s\n"
              "# ratio: dcomm's time over the peer's in the same round; median, least..most of "
              "rounds")
        if args.hosts:
            print("# of limit: dcomm's time over that of the links alone, at the goodput measured "
                  "just before")
        else:
            print("# of copy: busbw over the rate at which two cores copy; "
                  "pair: a cache line's way from one core to another and back")
        if args.row:
            print(f"# {args.row} calls in a row without a barrier between; times are of one")
        if self.crowded:
            print("# more ranks than cores: dcomm yields, peers are told to yield"
                  + ("; MPICH only spins, its times say nothing of its algorithms"
                     if "mpich" in self.peers else ""))
        for side in self.sides:
            if side.name not in self.forced:
                print(f"# {side.name}: {side.shown()} -b BYTES -e BYTES")
        cells = [f"{'bytes':>10} {'pair ns':>8}  {'dcomm algo':<23} {'dcomm µs':>11} {'spread':>7} "
                 f"{'busbw':>7} {'of limit' if args.hosts else 'of copy':>8}"]
        for name in self.peers:
            cells.append(f"{self.label(name) + ' µs':>18} {'spread':>7} {'ratio':>7} "
                         f"{'of rounds':>12}")
        if self.forced:
            cells.append(f"{'best forced':<20} {'µs':>11} {'ratio':>7}")
        print("  ".join(cells), flush=True)

    def print_row(self, found):
        own = found["dcomm"]
        pair = f"{self.probes.trips_ns[-1]:.0f}" if self.probes.trips_ns else "-"
        share = own.get("time_per_limit" if self.args.hosts else "busbw_per_copy")
        share = "-" if share is None else f"{share:.3f}"
        cells = [f"{own['bytes']:>10} {pair:>8}  {own['algo']:<23} {own['time_us_med']:>11.2f} "
                 f"{own['spread']:>7.0%} {own['busbw_GBps']:>7.2f} {share:>8}"]
        for name in self.peers:
            row = found[name]
            extent = f"{min(row['rounds_ratio']):.2f}..{max(row['rounds_ratio']):.2f}"
            cells.append(f"{row['time_us_med']:>18.2f} {row['spread']:>7.0%} {row['ratio']:>7.2f} "
                         f"{extent:>12}")
        if self.forced:
            best = self.best_forced(found)
            cells.append(f"{best['algo']:<20} {best['time_us_med']:>11.2f} {best['ratio']:>7.2f}")
        print("  ".join(cells), flush=True)

    def run(self):
        self.print_heading()
        first = len(self.probes.trips_ns)
        for size in self.sizes():
            found = self.summarize(self.measure(size))
            self.print_row(found)
            self.results += found.values()
            if self.forced:
                self.best_forced(found)["best_forced"] = True
        self.print_footing(self.probes.trips_ns[first:])

    def print_footing(self, trips):
        for side in self.sides[1:1 + len(self.peers)]:
            print(f"# {side.name} was {side.version}, its ranks on cores {side.cores}")
            local = self.args.ranks_per_host if self.args.hosts else self.ranks
            used = set(side.cores or [])
            if side.name != "gloo" and (-1 in used or len(used) < min(local, len(cores()))):
                print(f"WARNING: {side.name}'s ranks are not on cores of their own: {side.cores} "
                      "(-1: not bound)", file=sys.stderr)
        if self.retries:
            print(f"# failed once and were run again: {', '.join(self.retries)}")
        if self.goodput:
            print(f"# a link's goodput: {min(self.goodput) * 1e-6:.1f} to "
                  f"{max(self.goodput) * 1e-6:.1f} MB/s")
        if self.probes.copy_two:
            print(f"# one core copies {statistics.median(self.probes.copy_one):.1f} GB/s, two "
                  f"{statistics.median(self.probes.copy_two):.1f}")
        if trips and max(trips) > 1.5 * min(trips):
            print(f"# the cores' distance changed on the way, {min(trips):.0f} to "
                  f"{max(trips):.0f} ns: trust ratios, not times")

    def as_json(self):
        args = self.args
        cluster = {"hosts": args.hosts, "ranks_per_host": args.ranks_per_host, "rate": args.rate,
                   "order": args.order, "goodput_Bps": self.goodput} if args.hosts else None
        return {"op": self.op, "nranks": self.ranks, "mem": self.mem, "peer_mem": self.peer_mem,
                "rotate_bytes": args.rotate, "row": args.row or 1,
                "oversubscribed": self.crowded, "retries": self.retries, "cluster": cluster,
                "sides": {side.name: {"command": side.shown(), "cores": side.cores,
                                      "version": side.version} for side in self.sides},
                "results": self.results}


# ---- all of them ----

def check(tables, limit):
    """GOOD or TOO_SLOW, after a sentence for each size that is too slow."""
    compared = [row for table in tables for row in table.results
                if "ratio" in row and row["library"] not in libraries.YARDSTICKS
                and (row["library"] in table.peers or row.get("best_forced"))]
    slow = [row for row in compared if row["ratio"] > limit]
    for row in slow:
        print(f"too slow: {row['op']} of {row['bytes']} bytes, {row['nranks']} ranks: "
              f"{row['ratio']:.2f} times {row['library']}'s time; at most {limit:g} is allowed")
    worst = max(compared, key=lambda row: row["ratio"])
    print(f"check: {len(slow)} of {len(compared)} times above {limit:g}; worst ratio "
          f"{worst['ratio']:.2f} ({worst['library']}, {worst['bytes']} bytes)")
    return TOO_SLOW if slow else GOOD


def find_peers(args):
    """The installed ones, and why the others are missing."""
    wanted = [] if args.peers == ["none"] else args.peers or libraries.PEERS
    peers, missing = {}, {}
    for name in wanted:
        try:
            peers[name] = libraries.build(name, args.build)
        except Failure as error:
            missing[name] = str(error)
            print(f"MISSING: {error}", file=sys.stderr)
    if (not peers and not args.forced) or (args.peers and missing):
        raise Failure("nothing to compare with: " + (", ".join(missing) or "no peers, no --forced"))
    return peers, missing


def write_json(tables, probes, busy, missing, args):
    with open(args.json, "w", encoding="utf-8") as file:
        json.dump({"schema": 1, "tool": "compare-peers", "hardware": tables[0].hardware,
                   "busy_cores_before": busy, "rounds": args.rounds, "missing": missing,
                   "copy_one_core_GBps": probes.copy_one, "copy_two_cores_GBps": probes.copy_two,
                   "pair_ns": probes.trips_ns,
                   "tables": [table.as_json() for table in tables]}, file, indent=1)
        file.write("\n")


def main():
    args = parse_args()
    if args.hosts:
        if "DCOMM_CLUSTER" not in os.environ:
            os.execv(libraries.CLUSTER,
                     [str(libraries.CLUSTER), "--hosts", str(args.hosts), "--rate", args.rate,
                      "--outside", "--", sys.executable, *sys.argv])
        args.ranks = [args.hosts * args.ranks_per_host]
    args.build = pathlib.Path(args.build).resolve()
    for tool in ("dcomm-run", "dcomm-perf"):
        if not (args.build / tool).exists():
            raise Failure(f"{args.build / tool} is missing: build first (meson setup build && "
                          "ninja -C build)")
    peers, missing = find_peers(args)
    probes = libraries.Probes(args.build)
    busy = libraries.busy_cores()
    if busy > 0.2:
        print(f"WARNING: others keep {busy:.1f} cores busy: the times below compare nothing",
              file=sys.stderr)
    tables = []
    for op in args.ops:
        for ranks in args.ranks:
            for mem in args.mem:
                tables.append(Table(op, ranks, mem, peers, args, probes))
                tables[-1].run()
                if args.json:
                    write_json(tables, probes, busy, missing, args)
    return check(tables, args.check) if args.check else GOOD


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (Failure, OSError) as error:
        print(f"compare.py: {error}", file=sys.stderr)
        sys.exit(FAILED)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
