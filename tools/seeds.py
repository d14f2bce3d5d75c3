#!/usr/bin/env python3
"""Mean and spread of the final losses that train-seeds.sh has left in a directory.

seeds.py [--modes] DIRECTORY; --modes prints what modes cost: bytes, seconds and staleness.
"""
import glob
import json
import os
import statistics
import sys


def read(out):
    """Return the name and the runs of each configuration, in their order."""
    names = sorted(glob.glob(os.path.join(out, "*.name")),
                   key=lambda name: int(os.path.basename(name).split(".")[0]))
    rows = []
    for name in names:
        runs = [json.load(open(path)) for path in sorted(glob.glob(name[:-5] + "-*.json"))]
        rows.append((open(name).read().strip(), runs))
    return rows


def spread(losses):
    deviation = statistics.stdev(losses) if len(losses) > 1 else 0
    return (f"{len(losses)} | {statistics.mean(losses):.4f} | {min(losses):.4f} to "
            f"{max(losses):.4f} | {deviation:.4f}")


def print_configurations(rows):
    exact = {run["seed"]: run["final_loss"] for run in rows[0][1]}
    first = statistics.mean(exact.values())
    bytes0 = rows[0][1][0]["wire_bytes"]
    print("| configuration | seeds | mean loss | lowest to highest | deviation | above exact | "
          "seed by seed | wire less by |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for name, runs in rows:
        losses = [run["final_loss"] for run in runs]
        above = [100 * (run["final_loss"] / exact[run["seed"]] - 1) for run in runs
                 if run["seed"] in exact]
        print(f"| {name} | {spread(losses)} | "
              f"{100 * (statistics.mean(losses) / first - 1):+.1f}% | {min(above):+.1f} to "
              f"{max(above):+.1f}% | {bytes0 / runs[0]['wire_bytes']:.1f}x |")


def print_modes(rows):
    print("| mode | seeds | mean loss | lowest to highest | deviation | KB a step and rank | "
          "seconds | of these communication | staleness p50, p95, p99 |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for name, runs in rows:
        def mean(value):
            return statistics.mean(value(run) for run in runs)
        bytes_a_step = mean(lambda run: run["wire_bytes_total"] / run["nranks"] / run["steps"])
        taus = [mean(lambda run, i=i: run["staleness"][i]) for i in range(3)]
        print(f"| {name} | {spread([run['final_loss'] for run in runs])} | "
              f"{bytes_a_step / 1e3:.0f} | {mean(lambda run: run['train_s']):.1f} | "
              f"{mean(lambda run: run['comm_s']):.1f} | "
              + (", ".join(f"{tau:.2f}" for tau in taus) if any(taus) else "none") + " |")


def main():
    modes = sys.argv[1] == "--modes"
    (print_modes if modes else print_configurations)(read(sys.argv[-1]))


main()
