"""reference_rest.py - what the reference has beside the headers, as data for reference.py: the tools' help
texts, the environment variables, the macros of a program, NCCL's calls, and the examples that CI compiles."""
import collections
import glob
import os
import re
import textwrap

import docs_blocks
from reference_read import ROOT, bare, blocks, comment_lines, in_c, items, plain, read

# Blocks of a help text: ("p", text) and ("option", tag, text).
Tool = collections.namedtuple("Tool", "name usage blocks options")
Row = collections.namedtuple("Row", "names cells section")
Example = collections.namedtuple("Example", "where line text")
NcclCall = collections.namedtuple("NcclCall", "name text section by said")

LITERAL = r'"(?:\\.|[^"\\])*"'


def paths(pattern):
    """Files of the project, in order."""
    return [os.path.relpath(p, ROOT) for p in sorted(glob.glob(os.path.join(ROOT, pattern), recursive=True))]


# ---- tools ----

def unquote(literal):
    """Return the text of a C string literal."""
    return re.sub(r"\\(.)", lambda m: {"n": "\n", "t": "\t"}.get(m.group(1), m.group(1)), literal[1:-1])


def source_of(name):
    """A tool's source, with the headers of bench/ that it includes."""
    seen, todo = [], [f"bench/{name}.c"]
    while todo:
        path = todo.pop(0)
        if path not in seen and os.path.exists(os.path.join(ROOT, path)):
            seen.append(path)
            todo += ["bench/" + file for file in re.findall(r'#include "([\w-]+\.h)"', read(path))]
    return [read(path) for path in seen]


def help_text(name, sources):
    """The help text that stands in a tool's source: literals, and the arguments of their conversions."""
    everything = "\n".join(sources)
    piece = r"(?:%s|\b[A-Z_]+_HELP\b)" % LITERAL
    first = r'"(?:\\.|[^"\\])*usage: %s(?:\\.|[^"\\])*"' % re.escape(name)
    run = re.search(r"((?:%s\s*)*%s\s*(?:%s\s*)*)(?:,([^;]*?)\))?" % (piece, first, piece), everything)
    arguments = re.findall(r"\w+", run.group(2) or "")

    def string(text):
        parts = re.findall(LITERAL + r"|\b[A-Z_]+_HELP\b", text)
        macros = dict(re.findall(r"#define (\w+_HELP) (%s)" % LITERAL, everything))
        return "".join(unquote(macros.get(part, part)) for part in parts)

    def argument(match):
        if not arguments or match.group() == "%%":
            return match.group()
        word = arguments.pop(0)
        text = re.search(r"\b%s\[\] =\s*((?:%s|\s)*);" % (word, LITERAL), everything)
        number = re.search(r"\b%s = (\d+)" % word, everything)
        return string(text.group(1)) if text else number.group(1) if number else word
    return re.sub(r"%[sd%]", argument, string(run.group(1)))


def help_blocks(text):
    """A help text's usage, and its blocks. A line of an option begins with two spaces and a dash."""
    text = re.sub(r"^dcomm-\w+ - (.*)\n+", r"\1.\n\n", text)
    usage = re.search(r"usage: (.*\n(?:       dcomm-.*\n)*)", text)
    text = text.replace(usage.group(0), "")
    found = []
    for line in text.split("\n"):
        m = re.match(r"  (-\S.*?)(?:  +(\S.*))?$", line)
        short = m and not m.group(2) and re.match(r"(-\S+(?: [A-Z][A-Z,|]*)?) ([a-z(].*)$", m.group(1))
        if m:
            tag, said = short.groups() if short else (m.group(1), m.group(2) or "")
            found.append(("option", tag, said))
        elif line.startswith("     ") and found and found[-1][0] == "option":
            found[-1] = ("option", found[-1][1], found[-1][2] + "\n" + line)
        elif not line.strip():
            found.append(("p", ""))
        elif found and found[-1][0] == "p" and found[-1][1]:
            found[-1] = ("p", found[-1][1] + "\n" + line)
        else:
            found.append(("p", line))
    found = [b for b in found if b[1]]
    if found[-1][1].endswith(":"):  # a list that the program makes
        found[-1] = ("p", found[-1][1] + " --help lists them.")
    return [line.strip() for line in usage.group(1).strip().split("\n")], found


def read_tools():
    """The tools that are installed. `options` are those that getopt_long takes."""
    tools = []
    for path in paths("bench/dcomm-*.c"):
        name = os.path.basename(path)[:-2]
        sources = source_of(name)
        own = next(s for s in sources if "getopt_long(" in s)
        options = ["--" + o for o in re.findall(r'\{"([\w-]+)", (?:no|required)_argument', own)]
        short = re.search(r'getopt_long\(argc, argv, "\+?([^"]*)"', own).group(1)
        options += ["-" + c for c in short.replace(":", "") if c != "h"]  # -h is --help
        tools.append(Tool(name, *help_blocks(help_text(name, sources)), options))
    return tools


def laid_out(text):
    """The lines of an option's text if some are further in than others, else none."""
    first, *more = text.split("\n")
    depths = {len(line) - len(line.lstrip()) for line in more}
    return [first] + textwrap.dedent("\n".join(more)).split("\n") if len(depths) > 1 else []


def named_by(tool, option):
    """Return true if a tool's help text names an option."""
    return any(re.search(r"(?<![\w-])%s(?![\w-])" % re.escape(option), b[1]) for b in tool.blocks)


# ---- tables ----

def rows(path, word):
    """The rows of a page's tables whose first cell names macros or variables like `word`."""
    section, found = "", []
    for line in read(path).split("\n"):
        if line.startswith("## "):
            section = line[3:]
        cells = [cell.strip() for cell in line[1:-1].split("|")] if line.startswith("| `") else []
        names = re.findall(r"`(%s)`" % word, cells[0]) if cells else []
        if names:
            found.append(Row(names, cells[1:], section))
    return found


def read_variables():
    """The environment variables, as docs/environment.md describes them."""
    return rows("docs/environment.md", r"DCOMM_\w+")


def known_variables():
    """The environment variables that the library reads or knows the names of."""
    names = set(re.findall(r'\.name = "(DCOMM_\w+)"', read("include/dcomm/impl/base/environment.h")))
    for path in paths("include/dcomm/impl/**/*.h") + paths("nccl/**/*.[ch]"):
        names.update(re.findall(r'\b(?:getenv|dcommi_env\w*)\("(DCOMM_\w+)"', read(path)))
    return sorted(names)


def read_macros():
    """The macros that a program defines before it includes dcomm.h, as the cheatsheet has them."""
    return [row for row in rows("docs/cheatsheet.md", r"DCOMM_[A-Z_]+") if "defines" in row.section]


def known_macros(defined):
    """The macros that the headers ask for, without those that they define themselves."""
    asked = set()
    for path in paths("include/dcomm/**/*.h"):
        for line in re.findall(r"^#\s*(?:if|ifdef|ifndef|elif)\b(.*)", read(path), re.M):
            asked.update(re.findall(r"\bDCOMM_[A-Z_]+\b", line))
    return sorted(name for name in asked if not name.endswith("_H") and name not in defined)


# ---- NCCL's calls ----

def read_nccl_rows():
    """A pair for each of NCCL's calls in docs/from-nccl.md: dcomm's calls that make it, and what differs, with
    the text of the notes that a cell names."""
    page = "docs/from-nccl.md"
    notes = {m.group(1): " ".join(m.group(2).split())
             for m in re.finditer(r"^(\d+)\. ((?:.+\n)(?:   .+\n)*)", read(page), re.M)}

    def said(cell):
        text = [re.sub(r" ?\(?\bnotes? [\d, ]+\)?", "", cell)]
        text += [notes[n] for m in re.findall(r"\bnotes? ([\d, ]+)", cell) for n in re.findall(r"\d+", m)]
        return " ".join(t[:1].upper() + t[1:] + "." * (t[-1] != ".") for t in text if t)
    return {name: (row.cells[0] if len(row.cells) > 1 else "", said(row.cells[-1]))
            for row in rows(page, r"nccl\w+") if row.section == "Call by call" for name in row.names}


def read_nccl():
    """NCCL's calls in the order of their header."""
    found, section, comment, said = [], "", "", read_nccl_rows()
    for kind, *rest in items(in_c("include/dcomm/nccl/face.h")):
        if kind == "comment":
            lines = comment_lines(rest[0])
            title = re.match(r"-{3,} (.*?) -{2,}$", lines[0])
            section, comment = (title.group(1), "") if title else (section, plain(blocks(lines)))
        elif kind == "declaration":
            m = re.match(r"DCOMM_NCCL_CALL\(([^,]*), (\w+), \((.*)\)\);$", bare(rest[0]))
            if m:
                text = re.sub(r"(\w) \* (?=\w)", r"\1 *", f"{m.group(1)} {m.group(2)}({m.group(3)})")
                by, differs = said.get(m.group(2), ("", ""))
                found.append(NcclCall(m.group(2), text, section, by.replace("`", ""), differs or comment))
            comment = ""
    return found


# ---- examples ----

def read_examples():
    """Programs of examples/, and blocks of C of README.md and docs/, which CI compiles."""
    found = [Example(path, 1, read(path)) for path in
             paths("examples/*.c") + paths("examples/*.cpp")]
    for path in ["README.md"] + paths("docs/*.md"):
        for line, language, text, before in docs_blocks.blocks(os.path.join(ROOT, path)):
            if language == "c" and "not tested" not in before:
                found.append(Example(path, line, "\n".join(text) + "\n"))
    return found


def uses(text, name):
    """Return true if a program in C uses a name, outside of comments."""
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S) if name in text else ""
    return re.search(r"\b%s\b" % name, text) is not None


def excerpt(text, name, most=24):
    """A program if it is short, else the paragraph of its first use of a name, or the lines around that."""
    lines = text.rstrip("\n").split("\n")
    if len(lines) <= most:
        return lines
    at = next(i for i, line in enumerate(lines) if uses(line, name))
    first = next((i for i in range(at, -1, -1) if not lines[i].strip()), -1) + 1
    last = next((i for i in range(at, len(lines)) if not lines[i].strip()), len(lines))
    first, last = max(first, at - most // 2), min(last, at + most // 2)
    return ["..."] * (first > 0) + lines[first:last] + ["..."] * (last < len(lines))
