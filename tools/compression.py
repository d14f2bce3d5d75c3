#!/usr/bin/env python3
"""compression.py - compressed beside exact all-reduce across emulated hosts, in turns; Markdown for
docs/results/compression.md. Needs build/ (release), root for the hosts, and idle cores.

  tools/compression.py [--rounds N] [--hosts M] [--ranks-per-host K] [--rate R] [--bytes B]
                       [--exact ALGOS] [--build DIR] [--out FILE] [SPEC...]

A SPEC that ends in "+ef" is run with error feedback. Of the exact algorithms the fastest of each
round is what that round's codecs are compared with."""
import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile

SPECS = ["bf16", "qsgd:bits=8", "qsgd:bits=4", "sign+ef", "topk:k=0.01+ef"]


def measure(options, arguments):
    """The rows of one run of dcomm-perf across the hosts."""
    with tempfile.TemporaryDirectory() as folder:
        report = os.path.join(folder, "perf.json")
        command = ["bench/cluster.sh", "--build", options.build, "--hosts", str(options.hosts),
                   "--ranks-per-host", str(options.ranks_per_host), "--rate", options.rate,
                   "--timeout", "300", "--", os.path.join(options.build, "dcomm-perf"),
                   "allreduce", "-b", options.bytes, "-e", options.bytes, "-w", "2",
                   "-n", str(options.iterations), "--json", report, *arguments]
        run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if run.returncode != 0:
            sys.exit(f"compression.py: {' '.join(command)}: exit {run.returncode}\n{run.stdout}")
        with open(report, encoding="utf-8") as file:
            return json.load(file)


def table(options, times, ratios, hardware):
    size = (f"{options.bytes} of f32, {options.hosts} hosts of {options.ranks_per_host}, "
            f"{options.rate}")
    yield f"# Compressed all-reduce across emulated hosts, {datetime.date.today()}\n"
    yield f"{hardware}. With a codec, dcomm chose the algorithm.\n"
    yield "```\ntools/compression.py " + " ".join(sys.argv[1:]) + "\n```\n"
    yield (f"Rounds in turns: {options.rounds}, each the median of {options.iterations} calls; "
           "medians. The ratio is to the fastest exact algorithm of the same round.\n")
    yield f"| {size} | ran | ms | exact/it | least to most |"
    yield "| --- | --- | ---: | ---: | --- |"
    for name, (algo, ms) in times.items():
        line = ratios.get(name)
        told = "1 | "
        if line:
            told = f"{statistics.median(line):.2f} | {min(line):.2f} to {max(line):.2f}"
        yield f"| {name} | {algo.removeprefix('auto:')} | {statistics.median(ms):.1f} | {told} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--iterations", type=int, default=5)
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--ranks-per-host", type=int, default=1)
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--bytes", default="64M")
    parser.add_argument("--exact", default="auto,ring,halving_doubling,one_shot")
    parser.add_argument("--build", default="build")
    parser.add_argument("--out")
    parser.add_argument("specs", nargs="*", default=SPECS)
    options = parser.parse_args()
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    times, ratios, hardware = {}, {}, ""
    for _ in range(options.rounds):
        report = measure(options, ["--algo", options.exact])
        hardware = f"{report['hardware']['cpu']}, {report['hardware']['cores']} cores"
        best = min(report["results"], key=lambda row: row["time_us_med"])
        times.setdefault("exact, the fastest", [best["algo"], []])[1].append(
            best["time_us_med"] / 1e3)
        for spec in options.specs:
            feedback = spec.endswith("+ef")
            codec = spec.removesuffix("+ef")
            row = measure(options, ["--codec", codec] + ["--feedback"] * feedback)["results"][0]
            name = codec + (", with feedback" if feedback else "")
            times.setdefault(name, [row["algo"], []])[1].append(row["time_us_med"] / 1e3)
            ratios.setdefault(name, []).append(best["time_us_med"] / row["time_us_med"])
            print(f"{name}: {times[name][1][-1]:.1f} ms, {ratios[name][-1]:.2f}", file=sys.stderr)
    text = "\n".join(table(options, times, ratios, hardware)) + "\n"
    if options.out:
        with open(options.out, "w", encoding="utf-8") as file:
            file.write(text)
    print(text, end="")


if __name__ == "__main__":
    main()
