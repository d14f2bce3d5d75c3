#!/usr/bin/env python3
"""performance.py - tables and plots of docs/performance.md from what compare.py wrote.

  tools/performance.py FOLDER DOCS NAME...  for each, FOLDER/NAME.json becomes DOCS/results/NAME.md
                                        and, where Python has matplotlib, DOCS/img/NAME.svg
  tools/performance.py --targets FOLDER what the project wants to reach, and what it did, from all
                                        files of FOLDER
"""
import json
import pathlib
import statistics
import sys

NAMES = {"dcomm": "dcomm", "openmpi": "Open MPI", "mpich": "MPICH", "gloo": "Gloo",
         "ucc": "UCC", "intelmpi": "Intel MPI", "oneccl": "oneCCL", "limit": "the limit",
         "bare": "bare loops"}
COLORS = {"dcomm": "#d62728", "openmpi": "#1f77b4", "mpich": "#2ca02c", "gloo": "#9467bd",
          "ucc": "#17becf", "intelmpi": "#ff7f0e", "oneccl": "#8c564b", "limit": "#7f7f7f",
          "bare": "#bcbd22"}
KIB, MIB = 1 << 10, 1 << 20


def load(file):
    return json.loads(pathlib.Path(file).read_text(encoding="utf-8"))


def number(value):
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}" if value < 100 else f"{value:.0f}"


def by_size(table):
    """{bytes: {library: row}}, smallest first."""
    sizes = {}
    for row in table["results"]:
        sizes.setdefault(row["bytes"], {})[row["library"]] = row
    return dict(sorted(sizes.items()))


def peers_of(table):
    return [name for name in table["sides"] if name in NAMES and name != "dcomm"]


def title(table):
    where = "bound to two cores"
    if table["cluster"]:
        c = table["cluster"]
        goodput = statistics.median(c["goodput_Bps"]) * 1e-6
        where = (f"{c['hosts']} emulated hosts of {c['ranks_per_host']}, links of {c['rate']} "
                 f"(goodput {goodput:.1f} MB/s), "
                 + ("neighbours on one host" if c["order"] == "block" else
                    "neighbours on different hosts"))
    row = table.get("row", 1)
    return (f"{table['op']}, {table['nranks']} ranks, {where}, {table['mem']} memory "
            f"(peers: {table['peer_mem']})" + (f", {row} calls in a row" if row > 1 else ""))


def best_forced(rows):
    return next((row for row in rows.values() if row.get("best_forced")), None)


# ---- Markdown ----

def table_lines(table):
    peers = peers_of(table)
    forced = any(row.get("best_forced") for row in table["results"])
    share = "time/limit" if table["cluster"] else "busbw/copy"
    head = ["bytes", "algorithm", "dcomm µs", "spread", "busbw GB/s", share]
    for name in peers:
        head += [NAMES[name] + " µs", "dcomm's time over it"]
    if forced:
        head += ["best forced", "µs", "auto over it"]
    lines = ["| " + " | ".join(head) + " |",
             "| ---: | --- |" + " ---: |" * (len(head) - 2)]
    for size, rows in by_size(table).items():
        own = rows["dcomm"]
        part = own.get("time_per_limit") if table["cluster"] else own.get("busbw_per_copy")
        cells = [f"{size:,}", own["algo"].replace("auto:", ""), number(own["time_us_med"]),
                 f"{own['spread']:.0%}", number(own["busbw_GBps"]), number(part)]
        for name in peers:
            row = rows[name]
            low, high = min(row["rounds_ratio"]), max(row["rounds_ratio"])
            ratio = f"{row['ratio']:.2f}"
            cells += [number(row["time_us_med"]) + (" (spins)" if row["spins"] else ""),
                      f"{'**' + ratio + '**' if row['ratio'] > 1 else ratio} ({low:.2f}..{high:.2f})"]
        if forced:
            best = best_forced(rows)
            cells += [best["algo"], number(best["time_us_med"]), f"{best['ratio']:.2f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def markdown(name, report):
    hardware = report["hardware"]
    lines = [f"# {name}", "", f"{hardware['cpu']}, {hardware['cores']} cores; {report['rounds']} "
             "rounds, medians; ratios of neighbours in time, least..most of the rounds in brackets; "
             "above 1 dcomm is slower."]
    if report["copy_two_cores_GBps"]:
        trips = report["pair_ns"]
        lines.append(f"One core copied {statistics.median(report['copy_one_core_GBps']):.1f} GB/s, "
                     f"two together {statistics.median(report['copy_two_cores_GBps']):.1f}; a cache "
                     f"line took {min(trips):.0f} to {max(trips):.0f} ns from one core to the other "
                     "and back.")
    if report["busy_cores_before"] > 0.2:
        lines.append(f"**Others kept {report['busy_cores_before']:.1f} cores busy when it began.**")
    for reason in report["missing"].values():
        lines.append(f"Missing: {reason.splitlines()[0]}.")
    for table in report["tables"]:
        versions = [side["version"] for side in table["sides"].values() if side["version"]]
        lines += ["", "## " + title(table), "", "Beside dcomm "
                  + ", ".join(dict.fromkeys(versions)) + ".", ""] + table_lines(table)
    return "\n".join(lines) + "\n"


# ---- plots ----

def plot(file, report):
    try:
        import matplotlib
        matplotlib.use("svg")
        import matplotlib.pyplot as plt
    except ImportError:
        print("performance.py: no plots: Python has no matplotlib (Debian: python3-matplotlib)",
              file=sys.stderr)
        return
    matplotlib.rcParams["svg.hashsalt"] = "dcomm"  # the same file from the same numbers
    tables = report["tables"]
    figure, axes = plt.subplots(len(tables), 2, figsize=(11, 3.6 * len(tables)), squeeze=False)
    for (left, right), table in zip(axes, tables):
        sizes = by_size(table)
        for library in ["dcomm"] + peers_of(table):
            rows = [rows[library] for rows in sizes.values()]
            style = {"color": COLORS[library], "label": NAMES[library], "marker": ".",
                     "linewidth": 2 if library == "dcomm" else 1}
            left.loglog(list(sizes), [row["time_us_med"] for row in rows], **style)
            right.semilogx(list(sizes), [row["busbw_GBps"] for row in rows], **style)
        if any(best_forced(rows) for rows in sizes.values()):
            left.loglog(list(sizes), [best_forced(rows)["time_us_med"] for rows in sizes.values()],
                        "k+", label="best forced")
        limits = [(size, rows["dcomm"].get("limit_us")) for size, rows in sizes.items()]
        if table["cluster"] and all(limit for _, limit in limits):
            left.loglog(*zip(*limits), "k--", linewidth=0.8, label="the links' limit")
        elif report["copy_two_cores_GBps"]:
            right.axhline(statistics.median(report["copy_two_cores_GBps"]), color="black",
                          linestyle="--", linewidth=0.8, label="two cores copy")
        left.set_ylabel("time, µs")
        right.set_ylabel("busbw, GB/s")
        for axis in (left, right):
            axis.set_xscale("log", base=2)
            axis.set_xlabel("bytes")
            axis.grid(True, alpha=0.3)
        left.set_title(title(table), fontsize=8, loc="left")
        left.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(file, metadata={"Date": None})
    plt.close(figure)


# ---- targets ----

class Targets:
    """Each line: what is wanted, and the worst case found."""

    def __init__(self, reports):
        self.tables = [(report, table) for report in reports for table in report["tables"]]

    def rows(self, op="allreduce", nranks=None, mem=None, cluster=False, low=0, high=1 << 62,
             in_row=False):
        for report, table in self.tables:
            if (table["op"] in op.split(",") and (nranks is None or table["nranks"] == nranks)
                    and (table.get("row", 1) > 1) == in_row and (mem is None or table["mem"] == mem) and bool(table["cluster"]) == cluster):
                for size, rows in by_size(table).items():
                    if low <= size <= high:
                        yield (f"{table['op']} {table['nranks']} {size:,} B"
                           + (" in a row" if in_row else "")), table, rows

    def most(self, text, limit, values):
        """All values, of (place, value), are at most the limit."""
        self.report(text, limit, sorted(values, key=lambda pair: -pair[1]),
                    lambda value: value <= limit, "≤")

    def least(self, text, limit, values):
        self.report(text, limit, sorted(values, key=lambda pair: pair[1]),
                    lambda value: value >= limit, "≥")

    @staticmethod
    def report(text, limit, values, good, sign):
        if not values:
            print(f"  ?     {text}: not measured")
            return
        missed = [f"{place} {value:.3f}" for place, value in values if not good(value)]
        place, value = values[0]
        print(f"{'met   ' if not missed else 'MISSED'}  {text}: {sign} {limit:g} wanted, "
              f"{len(values) - len(missed)} of {len(values)} so, worst {value:.3f} ({place})")
        for line in missed[1:]:
            print(f"            {line}")

    def ratios(self, names, **where):
        for place, table, rows in self.rows(**where):
            for name in names:
                if name in rows and not rows[name].get("spins"):
                    yield f"{place} {name}", rows[name]["ratio"]

    def shares(self, **where):
        for place, _, rows in self.rows(**where):
            if rows["dcomm"].get("busbw_per_copy") is not None:
                yield place, rows["dcomm"]["busbw_per_copy"]

    def run(self):
        three = ["openmpi", "mpich", "gloo"]
        two = {"nranks": 2, "mem": "ordinary"}
        mid = {"low": 64 * KIB, "high": 16 * MIB}
        self.most("1 two ranks, not slower than Open MPI, MPICH, Gloo", 1, self.ratios(three, **two))
        self.most("1 two ranks, 64 KB to 16 MB, twice Open MPI", 0.5,
                  self.ratios(["openmpi"], **two, **mid))
        self.least("1 huge pages, busbw per copy rate, 1 to 16 MB", 0.35,
                   self.shares(nranks=2, mem="huge", low=MIB, high=16 * MIB))
        self.most("1 registered, 64 KB to 16 MB, three times Open MPI", 1 / 3,
                  self.ratios(["openmpi"], nranks=2, mem="registered", **mid))
        self.least("1 registered, busbw per copy rate at 1 MB", 0.6,
                   self.shares(nranks=2, mem="registered", low=MIB, high=MIB))
        self.least("1 registered, busbw per copy rate at 16 MB", 0.5,
                   self.shares(nranks=2, mem="registered", low=16 * MIB, high=16 * MIB))
        four = {"nranks": 4, "mem": "ordinary"}
        for in_row, calls in ((False, "aligned"), (True, "in a row")):
            self.most(f"2 two ranks, 4 B to 1 KB, calls {calls}, of Open MPI's time", 0.6,
                      self.ratios(["openmpi"], **two, high=KIB, in_row=in_row))
            self.most(f"3 four ranks, calls {calls}, faster than Open MPI", 1,
                      self.ratios(["openmpi"], **four, in_row=in_row))
            self.most(f"3 four ranks, up to 16 KB, calls {calls}, 1.5 times Open MPI", 1 / 1.5,
                      self.ratios(["openmpi"], **four, high=16 * KIB, in_row=in_row))
        self.most("3 four ranks, from 1 MB, 1.5 times Open MPI", 1 / 1.5,
                  self.ratios(["openmpi"], **four, low=MIB))
        self.most("4 all-to-all and all-gather from 4 KB, the fastest peer", 1,
                  self.ratios(three, op="alltoall,allgather", low=4 * KIB))
        self.most("5 hosts, 16 and 64 MB, of the links' limit", 1.08,
                  ((f"{place} {table['cluster']['order']}", rows["dcomm"]["time_per_limit"])
                   for place, table, rows in self.rows(cluster=True, low=16 * MIB)))
        self.most("5 hosts, from 4 KB, Open MPI", 1,
                  self.ratios(["openmpi"], cluster=True, low=4 * KIB))
        for where, text in (({}, ""), ({"in_row": True}, ", in a row"), ({"cluster": True}, ", hosts")):
            self.most(f"6 auto, of the best forced algorithm{text}", 1.15,
                      ((f"{place} {best['algo']}", best["ratio"]) for place, best in
                       ((place, best_forced(rows)) for place, _, rows in self.rows(**where))
                       if best))


def main():
    arguments = sys.argv[1:]
    if len(arguments) == 2 and arguments[0] == "--targets":
        files = sorted(pathlib.Path(arguments[1]).glob("*.json"))
        reports = [load(file) for file in files]
        Targets([r for r in reports if r.get("tool") == "compare-peers"]).run()
        return 0
    if len(arguments) < 3 or arguments[0].startswith("-"):
        print(__doc__.strip())
        return 0 if arguments in (["-h"], ["--help"]) else 2
    docs = pathlib.Path(arguments[1])
    for folder in ("results", "img"):
        (docs / folder).mkdir(parents=True, exist_ok=True)
    for name in arguments[2:]:
        report = load(pathlib.Path(arguments[0]) / f"{name}.json")
        file = docs / "results" / f"{name}.md"
        file.write_text(markdown(name, report), encoding="utf-8")
        plot(docs / "img" / f"{name}.svg", report)
        print(f"{name}: {file}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
