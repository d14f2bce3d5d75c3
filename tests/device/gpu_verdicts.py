#!/usr/bin/env python3
"""What is wanted of collectives on a device, and whether dcomm-perf's files in a folder have it.

  tests/device/gpu_verdicts.py FOLDER    perf2-cuda.json, perf2-cuda-shared.json, perf2-qsgd.json, perf4-...

Rates are those of the same run, of each rank while all copy. All-reduce of n ranks and S bytes, at
the largest size:
  staged: each rank sends, and receives, 2(n-1)/n S through pinned memory, which is the bus bandwidth;
  direct: each rank reads S and writes S/n to reduce its part, and copies (n-1)/n S from the others; a
    copy's rate counts what it reads once, and it writes as much;
  compressed: the staged time of exact numbers over its own, beside the ratio of bytes on the wire.
What is missed is said, and is no failure: exit status 0, or 2 for a file that is none of theirs."""
import json
import os
import sys


def longest(folder, name):
    """The row of most bytes, by the choice that dcomm made, and the copies' rates."""
    path = os.path.join(folder, name)
    if not os.path.exists(path):
        return None, {}
    with open(path, encoding="utf-8") as f:
        run = json.load(f)
    rows = [r for r in run["results"]
            if r["time_us_med"] and (r["algo"].startswith("auto") or r["codec"] != "none")]
    return max(rows, key=lambda r: r["bytes"], default=None), run["hardware"]


def say(what, got, wanted, text):
    verdict = "not measured" if got is None else "met" if got >= wanted else "missed"
    print(f"# {what}: {verdict}" + (f"; {text}, {got:.2f} for {wanted:.2f}" if got is not None else ""))


def size(row):
    return f"{row['bytes'] / 2 ** 20:g} MiB by {row['algo']}"


def main():
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    for n in (2, 4):
        row, rates = longest(sys.argv[1], f"perf{n}-cuda.json")
        got = text = None
        if row is not None and rates.get("pinned_GBps"):
            got = row["busbw_GBps"] / rates["pinned_GBps"]
            text = (f"{size(row)}: {row['busbw_GBps']:.1f} GB/s of {rates['pinned_GBps']:.1f} "
                    "that pinned copies reach")
        say(f"staged, {n} ranks on one device", got, 0.8, text)
    for n in (2, 4):
        row, rates = longest(sys.argv[1], f"perf{n}-cuda-shared.json")
        got = text = None
        if row is not None and rates.get("device_GBps"):
            moved = (1 + 1 / n + 2 * (n - 1) / n) * row["bytes"] / 2
            least = moved / rates["device_GBps"] / 1e3
            got = least / row["time_us_med"]
            text = (f"{size(row)}: {row['time_us_med']:.0f} us, and {least:.0f} at "
                    f"{rates['device_GBps']:.0f} GB/s, the rate of a device's copies")
        say(f"direct, {n} ranks on one device", got, 0.8, text)
    exact, _ = longest(sys.argv[1], "perf2-cuda.json")
    coded, _ = longest(sys.argv[1], "perf2-qsgd.json")
    got = text = None
    wanted = 0.0
    if exact is not None and coded is not None and exact["bytes"] == coded["bytes"]:
        got = exact["time_us_med"] / coded["time_us_med"]
        wanted = exact["wire_bytes"] / coded["wire_bytes"] / 2
        text = (f"{size(coded)}: {coded['time_us_med']:.0f} us, exact {exact['time_us_med']:.0f}, "
                f"with {2 * wanted:.1f} times the bytes")
    say("compressed, 2 ranks on one device, of the exact time", got, wanted, text)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (KeyError, ValueError) as e:
        print(f"gpu_verdicts.py: {e!r}", file=sys.stderr)
        sys.exit(2)
