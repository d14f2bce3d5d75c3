#!/usr/bin/env python3
"""mutants.py [OPTION]... [WORD]... - plant the mistakes of tests/mutants.txt, one at a time, and see that the
test that each of them names fails. With WORDs, only those whose file, test or description has one of them.

    --list       print them
    --check      only see that the lines which they change are there, once each, in a function
    --dir DIR    where the copy of the working tree and its build are (default: build-mutants)
    --again      also those that died in an earlier run in DIR
    --report     print docs/results/mutants.md from the outcomes in DIR

The working tree is left alone. In the copy each mistake is in a function of its own beside the right one, and
DCOMM_MUTANT in the environment says which of them is called: so all are compiled at once. Those in CUDA C++
are planted one by one. What failed must pass without the mistake. Exit status 1: a mistake survived, or its
lines are not there once."""
import argparse
import collections
import datetime
import filecmp
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TABLE = "tests/mutants.txt"
MESON = ["-Dtests=true", "-Dmutants=true", "-Doptimization=1", "-Ddebug=false", "-Dwerror=false",
         "-Dc_args=-w"]
SECONDS = 500 # of a whole test; 120 of each case
WHICH = """#ifndef DCOMMI_MUTANT
#define DCOMMI_MUTANT
#include <stdlib.h>
static inline int dcommi_mutant(void)
{
    static int which = -1;
    if (which < 0) {
        const char *given = getenv("DCOMM_MUTANT");
        which = given != NULL ? atoi(given) : 0;
    }
    return which;
}
/* Before a test clears the environment. */
__attribute__((constructor)) static inline void dcommi_mutant_read(void)
{
    (void)dcommi_mutant();
}
#endif
"""


class Wrong(Exception):
    pass


class Mutant:
    """A mistake: lines of a file, by what they are replaced, and the test that must fail."""

    def __init__(self, head, where):
        parts = [part.strip() for part in head.split("|")]
        if len(parts) != 3:
            raise Wrong(f"{where}: '{head}' is not FILE | TEST | DESCRIPTION")
        self.file, self.test, self.what = parts
        self.where, self.old, self.new = where, [], []
        self.alone = self.file.endswith(".cuh")

    def key(self):
        text = "\n".join([self.file, self.test, *self.old, "", *self.new])
        return int(hashlib.sha256(text.encode()).hexdigest()[:7], 16) + 1

    def room(self):
        return os.path.dirname(self.file).replace("include/dcomm/impl/", "").replace("include/dcomm/", "")

    def at(self, lines):
        """Return the index of the first of its lines."""
        bare, n = [line.strip() for line in lines], len(self.old)
        found = [i for i in range(len(lines) - n + 1) if n > 0 and bare[i:i + n] == self.old]
        if len(found) != 1:
            raise Wrong(f"{self.where}: {self.file} has these lines {len(found)} times: "
                        + " / ".join(self.old))
        return found[0]

    def plant(self, lines):
        """Return the lines of its file with the mistake."""
        at = self.at(lines)
        indent = lines[at][:len(lines[at]) - len(lines[at].lstrip())]
        return lines[:at] + [indent + line for line in self.new] + lines[at + len(self.old):]

    def function(self, lines):
        """Return where the function begins, where its body does, and behind its end."""
        begin = end = self.at(lines)
        while begin >= 0 and lines[begin] != "{":
            begin -= 1
        while end < len(lines) and lines[end] != "}":
            end += 1
        first = begin
        while first > 0 and not re.search(r"^$|[;}]$|\*/$|^#|\\$", lines[first - 1]):
            first -= 1
        if first < 0 or "}" in lines[begin:end] or not lines[first].strip():
            raise Wrong(f"{self.where}: these lines are in no function")
        return first, begin, end + 1

    def call(self, lines):
        """Return the name of its function and a call of it with the same arguments."""
        first, begin, _ = self.function(lines)
        signature = " ".join(line.strip() for line in lines[first:begin])
        depth, at = 1, len(signature) - 1
        while depth > 0:
            at -= 1
            depth += {")": 1, "(": -1}.get(signature[at], 0)
        name = re.search(r"\w+$", signature[:at]).group()
        parts, depth = [""], 0
        for c in signature[at + 1:-1]:
            depth += {"(": 1, ")": -1}.get(c, 0)
            parts = parts + [""] if c == "," and depth == 0 else parts[:-1] + [parts[-1] + c]
        arguments = []
        for part in parts:
            pointer = re.search(r"\(\*(\w+)\)", part)
            plain = re.search(r"(\w+)\s*(\[[^]]*\])*$", part)
            if part.strip() != "void":
                arguments.append((pointer or plain).group(1))
        returns = "" if re.search(r"\bvoid (\w+ )*" + name, signature) else "return "
        wrong = f"{name}_m{self.key()}"
        call = f"{returns}{wrong}({', '.join(arguments)});" + ("" if returns else " return;")
        return name, wrong, f"    if (dcommi_mutant() == {self.key()}) {{ {call} }}"


def embed(text, mutants):
    """Return the text of a file with these mistakes beside what is right."""
    lines = text.split("\n")
    by_function = collections.defaultdict(list)
    for m in mutants:
        by_function[m.function(lines)].append(m)
    out = list(lines)
    for (first, begin, end), several in sorted(by_function.items(), reverse=True):
        copies, calls = [], []
        for m in several:
            name, wrong, call = m.call(lines)
            planted = m.plant(lines)
            body = planted[first:end + len(planted) - len(lines)]
            at = next(i for i in range(begin - first, -1, -1) if name in body[i])
            body[at] = re.sub(rf"\b{name}\b", wrong, body[at])
            copies += body + [""]
            calls.append(call)
        out[first:end] = copies + lines[first:begin + 1] + calls + lines[begin + 1:end]
    guard = next((i + 1 for i, line in enumerate(lines) if line.startswith("#define ")
                  and lines[i - 1].startswith("#ifndef ")), None)
    if guard is None:  # a source
        guard = next(i for i, line in enumerate(lines) if line.startswith("#include"))
    return "\n".join(out[:guard] + WHICH.split("\n") + out[guard:])


def read_table():
    mutants = []
    with open(os.path.join(ROOT, TABLE), encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            line = line.strip()
            if not line or line.startswith("#"):
                continue
            if line[0] not in "+-":
                mutants.append(Mutant(line, f"{TABLE}:{number}"))
            else:
                (mutants[-1].old if line[0] == "-" else mutants[-1].new).append(line[1:].strip())
    return mutants


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def write(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def check(mutants):
    """Return how many of them do not fit their files."""
    bad = 0
    for m in mutants:
        try:
            lines = read(os.path.join(ROOT, m.file)).split("\n")
            m.at(lines) if m.alone else m.call(lines)
        except (Wrong, OSError) as e:
            print(e)
            bad += 1
    return bad


def run(command, cwd, seconds=None, env=None):
    """Return the status (None: out of time) and what the command printed."""
    process = subprocess.Popen(command, cwd=cwd, env={**os.environ, **(env or {})}, text=True,
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, start_new_session=True, errors="replace")
    try:
        text, _ = process.communicate(timeout=seconds)
        return process.returncode, text
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return None, process.communicate()[0]


class Copy:
    """A copy of the working tree with all mistakes, and its build."""

    def __init__(self, folder):
        self.tree, self.build = os.path.join(folder, "tree"), os.path.join(folder, "build")
        self.outcomes_path, self.outcomes = os.path.join(folder, "outcomes.json"), {}
        if os.path.exists(self.outcomes_path):
            self.outcomes = json.loads(read(self.outcomes_path))
        self.good = {}  # cases, by whether they pass without a mistake

    def refresh(self, mutants):
        """Write what has changed, so that little is compiled again, and configure."""
        listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT,
                                stdout=subprocess.PIPE, check=True, text=True).stdout.split("\0")
        files = {name for name in listed if name and os.path.isfile(os.path.join(ROOT, name))}
        embedded = collections.defaultdict(list)
        for m in mutants:
            if not m.alone:
                embedded[m.file].append(m)
        for top, _, names in os.walk(self.tree):
            for name in names:
                path = os.path.join(top, name)
                if os.path.relpath(path, self.tree) not in files:
                    os.remove(path)
        for name in files:
            source, to = os.path.join(ROOT, name), os.path.join(self.tree, name)
            os.makedirs(os.path.dirname(to), exist_ok=True)
            if name in embedded:
                text = embed(read(source), embedded[name])
                if not os.path.exists(to) or read(to) != text:
                    write(to, text)
            elif not (os.path.exists(to) and filecmp.cmp(source, to, shallow=False)):
                shutil.copy(source, to)
        if not os.path.exists(os.path.join(self.build, "build.ninja")):
            self.must(["meson", "setup", self.build, self.tree, *MESON])
        self.must(["ninja", "-C", self.build, "build.ninja"])
        info = os.path.join(self.build, "meson-info")
        self.tests = {t["name"]: t for t in json.loads(read(os.path.join(info, "intro-tests.json")))}
        self.targets = {t["id"]: t["filename"]
                        for t in json.loads(read(os.path.join(info, "intro-targets.json")))}

    def must(self, command):
        status, text = run(command, self.tree)
        if status != 0:
            raise Wrong(f"{' '.join(command)}:\n{text[-4000:]}")

    def compile(self, test):
        """Build what a test needs."""
        if test not in self.tests:
            raise Wrong(f"{TABLE}: tests/meson.build has no test '{test}'")
        programs = [os.path.relpath(path, self.build) for id in self.tests[test]["depends"]
                    for path in self.targets[id]]
        if programs:
            self.must(["ninja", "-C", self.build, "-j", "1", *programs])

    def passes(self, test, which, case=None):
        """Run a test, or a case of it; return whether it passed, and the first case that failed."""
        t = self.tests[test]
        command = [os.path.join(self.build, c) if os.path.isfile(os.path.join(self.build, c)) else c
                   for c in t["cmd"]]
        if os.path.basename(command[0]) == "suite.sh":
            command += ["--fail-fast", "--timeout", "120"]
            command += ["--filter", case.replace("::", "/")] if case is not None else []
        status, text = run(command, self.build, SECONDS, {**t["env"], "DCOMM_MUTANT": str(which)})
        failed = re.search(r"^not ok - (\w+::\w+|.*)", text, re.MULTILINE)
        return status == 0, "time-out" if status is None else failed.group(1) if failed else "exit status"

    def try_one(self, mutant):
        """Return "died" or "SURVIVED", and the case that noticed."""
        # What tests compile alone has kernels from the generated header.
        path = os.path.join(self.tree, "include/dcomm.h" if mutant.alone else mutant.file)
        whole = read(path)
        self.compile(mutant.test)
        if mutant.alone:
            write(path, "\n".join(mutant.plant(whole.split("\n"))))
        try:
            good, case = self.passes(mutant.test, mutant.key())
        finally:
            if mutant.alone:
                write(path, whole)
        if good:
            return "SURVIVED", ""
        key = mutant.test, case if "::" in case else None
        if key not in self.good:
            self.good[key] = self.passes(key[0], 0, key[1])[0]
        if not self.good[key]:
            raise Wrong(f"{mutant.test}: {case} fails without a mistake")
        return "died", case

    def remember(self, mutant, outcome, case):
        self.outcomes[str(mutant.key())] = [outcome, case, datetime.date.today().isoformat()]
        write(self.outcomes_path, json.dumps(self.outcomes, indent=0))


def run_all(copy, mutants, everything, again):
    """Return how many did not die."""
    counts = collections.Counter()
    copy.refresh(everything)
    for m in sorted(mutants, key=lambda m: m.test):
        outcome, case, *_ = copy.outcomes.get(str(m.key()), ["", ""])
        if again or outcome != "died":
            try:
                outcome, case = copy.try_one(m)
            except Wrong as e:
                outcome, case = "ERROR", str(e)
            copy.remember(m, outcome, case)
        counts[outcome] += 1
        print(f"{outcome:9} {m.room()}/{os.path.basename(m.file)}: {m.what} ({m.test}: {case})", flush=True)
    print(f"{counts['died']} died, {counts['SURVIVED']} survived"
          + (f", {counts['ERROR']} went wrong" if counts["ERROR"] else ""))
    return counts["SURVIVED"] + counts["ERROR"]


def report(copy, mutants):
    rooms = collections.OrderedDict()
    for m in mutants:
        rooms.setdefault(m.room(), []).append(m)
    state = {m: copy.outcomes.get(str(m.key()), ["not tried", "", ""]) for m in mutants}
    counts = collections.Counter(s[0] for s in state.values())
    print("# Planted mistakes\n")
    print("`tools/mutants.py` plants one mistake at a time, runs the test that must notice it, and prints this")
    print("page with `--report`. [tests/mutants.txt](../../tests/mutants.txt) has the mistakes.\n")
    print(f"{max(s[2] for s in state.values())}: "
          + ", ".join(f"{counts[k]} {k.lower()}" for k in sorted(counts)) + ".\n")
    print("| Room | Mistakes | Died | Tests that notice |\n| --- | ---: | ---: | --- |")
    for room, ms in rooms.items():
        died = sum(state[m][0] == "died" for m in ms)
        print(f"| {room} | {len(ms)} | {died} | {', '.join(sorted({m.test for m in ms}))} |")
    print(f"| all | {len(mutants)} | {counts['died']} | |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter,
                                     usage=argparse.SUPPRESS)
    parser.add_argument("words", nargs="*", metavar="WORD", help=argparse.SUPPRESS)
    for flag in "--list", "--check", "--again", "--report":
        parser.add_argument(flag, action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--dir", default=os.path.join(ROOT, "build-mutants"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    everything = read_table()
    mutants = [m for m in everything
               if not args.words or any(w in f"{m.file} {m.test} {m.what}" for w in args.words)]
    if args.list:
        for m in mutants:
            print(f"{m.file} | {m.test} | {m.what}")
        return 0
    bad = check(mutants)
    if bad or args.check:
        print(f"{len(mutants)} mistakes, {bad} that do not fit")
        return bad > 0 or not mutants
    copy = Copy(os.path.abspath(args.dir))
    if args.report:
        report(copy, mutants)
        return 0
    return run_all(copy, mutants, everything, args.again) > 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Wrong as e:
        sys.exit(f"mutants.py: {e}")
