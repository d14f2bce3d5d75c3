#!/usr/bin/env python3
"""Expand include/dcomm/all.h into the one header that is shipped, include/dcomm.h, and
include/dcomm/nccl/all.h into include/dcomm_nccl.h, which includes that.

  tools/amalgamate.py            write both
  tools/amalgamate.py --check    exit 1, and show where, if one of them is stale

A part with an include guard is expanded once, where it is first included. One without is a
template. A template that is included several times stands at the header's end, once, and each place
that needs it includes the header itself, with DCOMMI_TEMPLATE to say which template.

System includes stay where they are first needed. Parts of an implementation lose their guards, which
all.h's own replace, and their blank lines. One that both headers have keeps its guard, because a
program includes both."""
import argparse
import collections
import difflib
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PUBLIC = os.path.join(ROOT, "include", "dcomm")
SHIPPED = "dcomm.h"  # one that is shipped is included, not expanded
# What a program may leave out: public parts may stand under these conditions.
OPTIONAL = {f"ifndef DCOMM_NO_{what}" for what in ("COMM", "CHECK", "TRAIN")}
# What holds wherever a condition does: there stand the parts that C and CUDA share.
EITHER = "if defined(DCOMM_IMPLEMENTATION) || defined(DCOMM_CUDA_IMPLEMENTATION)"
IMPLIED = {"ifdef DCOMM_IMPLEMENTATION": EITHER, "ifdef DCOMM_CUDA_IMPLEMENTATION": EITHER}

SECTIONS = set(IMPLIED)  # in which a part's own guard and blank lines are not needed

INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"\s*(/\*.*\*/)?\s*$')
DIRECTIVE = re.compile(r"^\s*#\s*(if|ifdef|ifndef|elif|else|endif|define|undef)\b\s*(.*)$")
SYSTEM = re.compile(r"^\s*#\s*include\s+<([^>]+)>")
MACRO = re.compile(r"DCOMMI_\w+")


class Refused(Exception):
    pass


def guard_of(lines):
    """The include guard of a part: its first two directives are #ifndef X and #define X."""
    found = [m.groups() for m in map(DIRECTIVE.match, lines) if m]
    if len(found) > 1 and found[0][0] == "ifndef" and found[1] == ("define", found[0][1]):
        return found[0][1]
    return None


class Amalgam:
    def __init__(self, source, name, shared=(), templates=()):
        self.source = source
        self.name = name  # of the header
        self.shared = shared  # paths of parts that another header has as well
        self.templates = dict.fromkeys(templates)  # at the end -> conditions of the last include
        self.included = collections.Counter()  # templates that are in no other one
        self.out = []
        self.expanded = {}  # path -> conditions under which it was expanded
        self.system = {}  # likewise of system includes
        self.conditions = []
        self.open = []  # parts being expanded, outermost first
        self.macros = {}  # DCOMMI_ macros that are no include guards -> still defined

    def directive(self, name, line, guard):
        kind, rest = line
        if kind in ("if", "ifdef", "ifndef"):
            self.conditions.append(kind + " " + rest if rest != guard else None)
        elif kind in ("elif", "else"):
            self.conditions[-1] = f"{self.conditions[-1]} {kind} {rest}"
        elif kind == "endif":
            if not self.conditions:
                raise Refused(f"{name}: #endif without #if")
            self.conditions.pop()
        else:
            macro = MACRO.match(rest)
            own = f"ifndef {rest}" in self.conditions  # all.h's guards of the implementations
            if macro and macro.group() != guard and not own:
                self.macros[macro.group()] = kind == "define"

    def implied(self, there, now):
        """Does all hold now that held there?"""
        return set(there) <= set(now) | {IMPLIED[c] for c in now if c in IMPLIED}

    def repeated(self, line):
        """Has a system include been made where it holds here too?"""
        found = SYSTEM.match(line)
        now = [c for c in self.conditions if c]
        if found and found.group(1) in self.system and self.implied(self.system[found.group(1)], now):
            return True
        if found:
            self.system[found.group(1)] = now
        return False

    def add(self, path):
        name = os.path.relpath(path, ROOT)
        if path in self.open:
            raise Refused(f"{name} includes itself")
        try:
            with open(path, encoding="utf-8") as f:
                lines = f.read().splitlines()
        except OSError as e:
            raise Refused(f"{name}, included by {self.open[-1]}: {e.strerror}") from e
        now = [c for c in self.conditions if c]
        guard = guard_of(lines)
        if path in self.expanded and guard:
            there = self.expanded[path]
            if not self.implied(there, now):
                raise Refused(f"{name} is needed by {os.path.relpath(self.open[-1], ROOT)}, but was "
                              f"expanded under '#{there[-1]}': include it earlier in all.h")
            return
        if path in self.templates and self.open:
            self.templates[path] = list(self.conditions)
            number = list(self.templates).index(path) + 1
            self.out += [f"#define DCOMMI_TEMPLATE {number} /* {name} */",
                         f'#include "{self.name}"', "#undef DCOMMI_TEMPLATE"]
            return
        if not guard and path != self.source and not any(p in self.included for p in self.open):
            self.included[path] += 1
        private = [c for c in now if c not in OPTIONAL]
        if private and os.path.dirname(path) == PUBLIC:
            raise Refused(f"{name} is public, but first included under '#{private[-1]}'")
        self.expanded[path] = now
        self.open.append(path)
        depth = len(self.conditions)
        top = path == self.source
        inside = bool(SECTIONS & set(now))
        if not top:
            self.out.append(f"/* ==== {name} " + "=" * max(4, 85 - len(name)) + " */")
        comment = top
        for line in lines:
            if line.startswith(("<<<<<<< ", ">>>>>>> ")):
                raise Refused(f"{name} holds an unresolved merge: {line}")
            if comment:  # all.h's own comment speaks of the parts
                comment = "*/" not in line
                continue
            include = INCLUDE.match(line)
            if include and include.group(1) != SHIPPED:
                self.add(os.path.normpath(os.path.join(os.path.dirname(path), include.group(1))))
                continue
            found = DIRECTIVE.match(line)
            if found:
                self.directive(name, found.groups(), guard)
            ends = found and found.group(1) == "endif" and len(self.conditions) == depth
            of_guard = guard and found and (found.group(2) == guard or ends)
            needless = not line.strip() or (of_guard and path not in self.shared)
            if not (inside and needless) and not self.repeated(line):
                self.out.append(line.rstrip())
        if len(self.conditions) != depth:
            raise Refused(f"{name}: #if without #endif")
        self.open.pop()

    def text(self, comment):
        self.add(self.source)
        repeated = [path for path, times in self.included.items() if times > 1]
        if repeated:
            return Amalgam(self.source, self.name, self.shared, repeated).text(comment)
        body, self.out = self.out, []
        for number, (path, self.conditions) in enumerate(self.templates.items(), 1):
            self.out.append(f"#{'el' if number > 1 else ''}if DCOMMI_TEMPLATE == {number}")
            self.add(path)
        templates = "\n".join(self.out)
        left = sorted(m for m, defined in self.macros.items() if defined)
        undefs = "".join(f"#undef {m}\n" for m in left)
        text = "\n".join(body).strip() + "\n"
        if undefs:
            text += f"\n/* ==== helper macros end here {'=' * 59} */\n{undefs}"
        if templates:
            text = (f"#ifndef DCOMMI_TEMPLATE\n{text}#else /* a template, for an include above */\n"
                    f"{templates}\n#endif\n#endif\n")
        return comment + text


DCOMM = """\
/* dcomm.h {version} - collective communication in one header.
 * GENERATED from include/dcomm/ by tools/amalgamate.py: do not edit.
 *
 * Include it wherever dcomm is used. In exactly one C file, before any other header:
 *     #define DCOMM_IMPLEMENTATION
 *     #include "dcomm.h"
 * and link with -lucp -lucs -luct -lhwloc -lm -lpthread -ldl. With the kernels of
 * cuda.h, in exactly one .cu file:
 *     #define DCOMM_CUDA_IMPLEMENTATION
 *     #include "dcomm.h"
 * The file keeps its name, dcomm.h, because it includes itself.
 *
 * Macros that leave something out, if defined wherever it is included:
 *     DCOMM_NO_UCX    the network: ranks of one host only; link without -lucp -lucs -luct
 *     DCOMM_NO_HWLOC  packages, caches and cores: a host is flat; link without -lhwloc
 *     DCOMM_NO_TRAIN  buckets, scaler, experts, the interval of checkpoints
 *     DCOMM_NO_CHECK  the checker of plans
 *     DCOMM_NO_COMM   all but the codecs; link with -lm alone */
"""
NCCL = """\
/* dcomm_nccl.h {version} - NCCL's calls, made by dcomm: include it in place of <nccl.h>, or put
 * nccl/include first on the include path, and link dcomm's libnccl.so.2.
 * GENERATED from include/dcomm/nccl/ by tools/amalgamate.py: do not edit.
 *
 * In place of the library, one C file may hold the implementation, beside dcomm.h:
 *     #define DCOMM_IMPLEMENTATION
 *     #define DCOMM_WITH_CUDA
 *     #define DCOMM_NCCL_IMPLEMENTATION
 *     #include "dcomm_nccl.h"
 * and one .cu file dcomm's kernels. */
"""
HEADERS = [("dcomm/all.h", "dcomm.h", DCOMM), ("dcomm/nccl/all.h", "dcomm_nccl.h", NCCL)]


def version():
    with open(os.path.join(PUBLIC, "base.h"), encoding="utf-8") as f:
        found = re.search(r'#define DCOMM_VERSION_STRING "([^"]+)"', f.read())
    if not found:
        raise Refused("no DCOMM_VERSION_STRING in include/dcomm/base.h")
    return found.group(1)


def renew(target, wanted, check):
    """Write a header, or only say whether it is stale; whether it is good now."""
    name = os.path.relpath(target, ROOT)
    try:
        with open(target, encoding="utf-8") as f:
            present = f.read()
    except FileNotFoundError:
        present = ""
    if present == wanted:
        return True
    if check:
        diff = list(difflib.unified_diff(present.splitlines(), wanted.splitlines(),
                                         name, "generated", lineterm="", n=1))
        print("\n".join(diff[:30]), file=sys.stderr)
        print(f"{name} is stale: run tools/amalgamate.py and commit it", file=sys.stderr)
        return False
    with open(target, "w", encoding="utf-8") as f:
        f.write(wanted)
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only say whether one is stale")
    args = parser.parse_args()
    include = os.path.join(ROOT, "include")
    try:
        now = version()
        wanted, shared = [], set()
        for source, target, comment in reversed(HEADERS):  # what the second header has is shared
            amalgam = Amalgam(os.path.join(include, source), target, shared)
            wanted.append((os.path.join(include, target), amalgam.text(comment.replace("{version}", now))))
            shared = set(amalgam.expanded)
    except Refused as e:
        print(f"amalgamate: {e}", file=sys.stderr)
        return 1
    return 0 if all([renew(*header, args.check) for header in wanted]) else 1


if __name__ == "__main__":
    sys.exit(main())
