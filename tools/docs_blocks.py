#!/usr/bin/env python3
"""docs_blocks.py DIRECTORY FILE... - write each fenced block of these pages to a file of its own.

Prints a line per block: the page and line where it begins, its language ("sh" where none is named and its
lines are commands, else "text"), and the file. A block behind a line "<!-- not tested: REASON -->" or
"<!-- tested by FILE -->" has the language "skip" or "by", and the reason or file. README's table of tools gives
one more block of "sh". The tests compile and run these files; reference.py takes its examples from here."""
import os
import re
import sys

COMMAND = re.compile(r"^(build|tools|bench|dcomm)/|^(cc|make|meson|ninja|nvcc|ldd|dcomm-run|\./\w+)\b")
MARK = re.compile(r"^<!-- (not tested:|tested by) (.+) -->$")


def blocks(path):
    """(line, language or "", text, the line before) of each block, and of the tools' table. A block of a list
    is indented."""
    with open(path, encoding="utf-8") as file:
        lines = file.read().split("\n")
    start = None
    for i, line in enumerate(lines):
        if line.lstrip().startswith("```") and start is None:
            start, indent = i, len(line) - len(line.lstrip())
        elif start is not None and line == " " * indent + "```":
            text = [inside[indent:] for inside in lines[start + 1:i]]
            yield start + 1, lines[start][indent + 3:].strip(), text, lines[start - 1]
            start = None
    if start is not None:
        sys.exit(f"{path}:{start + 1}: a block without an end")
    rows = [(i, m.group(1)) for i, m in enumerate(re.match(r"\| `(build/[^`]+)` \|", line)
                                                  for line in lines) if m]
    if rows:
        yield rows[0][0] + 1, "sh", [command for _, command in rows], ""


def main():
    directory, paths = sys.argv[1], sys.argv[2:]
    for path in paths:
        for line, language, text, before in blocks(path):
            at = f"{path}:{line}"
            mark = MARK.match(before)
            if mark:
                print(at, "by" if mark.group(1) == "tested by" else "skip", mark.group(2), sep="\t")
                continue
            if not language:
                language = "sh" if all(map(COMMAND.match, filter(None, text))) else "text"
            name = os.path.join(directory, re.sub(r"\W", "_", at) + "." + language)
            with open(name, "w", encoding="utf-8") as file:
                file.write("\n".join(text) + "\n")
            print(at, language, name, sep="\t")


if __name__ == "__main__":
    main()
