#!/usr/bin/env python3
"""tests.py BUILD LABEL - the tests of a build directory that have this label, as Meson knows them; with
DCOMM_TEST_FULL=1 those of LABEL-full too, each with twenty times as long.

A line each: the name; "beside" others or "alone"; the protocol; the command, limited to its time. Those
that run beside others come first."""
import json
import os
import shlex
import sys


def main():
    build, label = sys.argv[1:]
    full = bool(os.environ.get("DCOMM_TEST_FULL"))
    labels = {label, label + "-full"} if full else {label}
    with open(os.path.join(build, "meson-info", "intro-tests.json"), encoding="utf-8") as file:
        tests = [t for t in json.load(file) if labels & {s.split(":")[-1] for s in t["suite"]}]
    factor = 20 if full else 1
    for t in sorted(tests, key=lambda t: not t["is_parallel"]):
        env = [f"{key}={value}" for key, value in t["env"].items()]
        # Meson names what it built from the build directory on.
        cmd = [os.path.join(build, c) if os.path.isfile(os.path.join(build, c)) else c for c in t["cmd"]]
        command = ["timeout", "-k", "10", str(t["timeout"] * factor), "env", *env, *cmd]
        print(t["name"], "beside" if t["is_parallel"] else "alone", t["protocol"], shlex.join(command),
              sep="\t")


if __name__ == "__main__":
    main()
