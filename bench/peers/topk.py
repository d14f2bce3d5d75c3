#!/usr/bin/env python3
"""Time exact top-k on one core: dcomm's codec beside std::nth_element, numpy's partition and torch's
topk, each where it is installed. dcomm's time includes the packed wire, the others' end with indices.

  bench/peers/topk.py [--build build] [--count 67108864] [--share 0.01] [--rounds 5] [--json FILE]
                      [--check TIMES]

numpy and torch are looked for in BUILD/peers/venv first (bench/peers/setup.sh installs numpy there, and
torch with WITH_TORCH=1); a peer that is not there is named and left out.
With --check, the exit status is 1 where a peer takes less than TIMES times dcomm's time. Exit: 0 good,
1 slower than --check allows, 2 usage, 3 dcomm's or no peer's program could be run."""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
VENV = "DCOMM_TOPK_IN_VENV"


def seconds(rounds, run):
    run()
    took = []
    for _ in range(rounds):
        start = time.perf_counter()
        run()
        took.append(time.perf_counter() - start)
    return statistics.median(took)


def dcomm(args):
    program = os.path.join(args.build, "codec-speed")
    with tempfile.NamedTemporaryFile("r") as out:
        subprocess.run([program, "-c", f"topk:k={args.share}", "-e", str(args.count), "-n",
                        str(args.rounds), "--json", out.name], check=True, stdout=subprocess.DEVNULL)
        row = json.load(out)["results"][0]
    return 4e-9 * args.count / (row["encode_per_memcpy"] * row["memcpy_GBps"])


def nth_element(args):
    program = os.path.join(args.build, "peers", "topk-nth")
    os.makedirs(os.path.dirname(program), exist_ok=True)
    source = os.path.join(HERE, "topk-nth.cc")
    subprocess.run(["g++", "-std=c++17", "-O3", "-march=native", source, "-o", program], check=True)
    version = subprocess.run(["g++", "-dumpfullversion"], capture_output=True, text=True, check=True)
    out = subprocess.run([program, str(args.count), str(args.share), str(args.rounds + 1)],
                         capture_output=True, text=True, check=True).stdout.split()
    return "libstdc++ " + version.stdout.strip(), statistics.median(float(t) for t in out[1:])


def numpy_partition(args):
    import numpy
    x = numpy.random.default_rng(1).standard_normal(args.count, dtype=numpy.float32)
    k = int(args.share * args.count)

    def run():
        magnitude = numpy.abs(x)
        kth = numpy.partition(magnitude, args.count - k)[args.count - k]
        index = numpy.flatnonzero(magnitude >= kth)
        assert len(index) >= k
        return x[index]
    return "numpy " + numpy.__version__, seconds(args.rounds, run)


def torch_topk(args):
    import torch
    torch.set_num_threads(1)
    x = torch.randn(args.count)
    k = int(args.share * args.count)

    def run():
        index = torch.topk(x.abs(), k, sorted=False).indices
        return x[index]
    return "torch " + torch.__version__, seconds(args.rounds, run)


def main():
    parser = argparse.ArgumentParser(description=__doc__, add_help=True,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build")
    parser.add_argument("--count", type=int, default=64 << 20)
    parser.add_argument("--share", type=float, default=0.01)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json")
    parser.add_argument("--check", type=float)
    args = parser.parse_args()
    python = os.path.join(args.build, "peers", "venv", "bin", "python")
    if os.access(python, os.X_OK) and VENV not in os.environ:
        os.environ[VENV] = "1"
        os.execv(python, [python] + sys.argv)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    try:
        ours = dcomm(args)
    except (OSError, subprocess.CalledProcessError) as e:
        print(f"topk.py: codec-speed: {e}", file=sys.stderr)
        return 3
    rows = [{"peer": "dcomm topk", "time_s": ours, "times_dcomm": 1.0}]
    for name, run in (("std::nth_element", nth_element), ("numpy partition", numpy_partition),
                      ("torch topk", torch_topk)):
        try:
            version, took = run(args)
        except (ImportError, OSError, subprocess.CalledProcessError) as e:
            print(f"topk.py: not to be had: {name}: {e}", file=sys.stderr)
            continue
        rows.append({"peer": name, "version": version, "time_s": took, "times_dcomm": took / ours})
    print(f"top-{args.share:.3%} of {args.count} f32, one core, median of {args.rounds}")
    print(f"{'':<18} {'version':<18} {'ms':>9} {'GB/s':>7} {'dcomm x':>8}")
    for row in rows:
        print(f"{row['peer']:<18} {row.get('version', ''):<18} {1e3 * row['time_s']:9.1f} "
              f"{4e-9 * args.count / row['time_s']:7.2f} {row['times_dcomm']:8.1f}")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as out:
            json.dump({"schema": 1, "count": args.count, "share": args.share, "results": rows}, out,
                      indent=1)
    if len(rows) == 1:
        return 3
    slow = args.check and any(row["times_dcomm"] < args.check for row in rows[1:])
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
