#!/usr/bin/env python3
"""warnings.py BUILD [--unbuilt] - every source as this build directory would compile it, without making
code: what its compiler says of each, and exit 1 if it says anything. --unbuilt: only those that have not
been compiled there."""
import concurrent.futures
import json
import os
import re
import subprocess
import sys


def main():
    build = sys.argv[1]
    unbuilt = "--unbuilt" in sys.argv[2:]
    commands = {}
    with open(os.path.join(build, "compile_commands.json"), encoding="utf-8") as file:
        for entry in json.load(file):
            if unbuilt and os.path.exists(os.path.join(build, entry["output"])):
                continue
            command = re.sub(r" -M[QF] \S+| -MD| -o \S+", "", entry["command"])
            commands[command.replace(" -c ", " -fsyntax-only ")] = entry["file"]

    def check(command):
        run = subprocess.run(command, shell=True, cwd=build, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True)
        return run.returncode != 0 or run.stdout.strip() != "", command, run.stdout

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(check, commands))
    for bad, command, said in results:
        if bad:
            print(commands[command], command, said, sep="\n")
    print(f"{len(results)} sources")
    return 1 if not results or any(bad for bad, _, _ in results) else 0


if __name__ == "__main__":
    sys.exit(main())
