#!/usr/bin/env python3
"""Mean and spread of the final losses that train-seeds.sh has left in a directory."""
import glob
import json
import os
import statistics
import sys


def main():
    out = sys.argv[1]
    rows = []
    for name in sorted(glob.glob(os.path.join(out, "*.name")), key=lambda n: int(
            os.path.basename(n).split(".")[0])):
        runs = [json.load(open(path)) for path in sorted(glob.glob(name[:-5] + "-*.json"))]
        rows.append((open(name).read().strip(), runs))
    exact = {run["seed"]: run["final_loss"] for run in rows[0][1]}
    first = statistics.mean(exact.values())
    bytes0 = rows[0][1][0]["wire_bytes"]
    print("| configuration | seeds | mean loss | lowest to highest | deviation | above exact | "
          "seed by seed | wire less by |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for name, runs in rows:
        losses = [run["final_loss"] for run in runs]
        deviation = statistics.stdev(losses) if len(losses) > 1 else 0
        above = [100 * (run["final_loss"] / exact[run["seed"]] - 1) for run in runs
                 if run["seed"] in exact]
        print(f"| {name} | {len(losses)} | {statistics.mean(losses):.4f} | {min(losses):.4f} to "
              f"{max(losses):.4f} | {deviation:.4f} | "
              f"{100 * (statistics.mean(losses) / first - 1):+.1f}% | {min(above):+.1f} to "
              f"{max(above):+.1f}% | {bytes0 / runs[0]['wire_bytes']:.1f}x |")


main()
