#!/usr/bin/env python3
"""Whether dcomm's <nccl.h> says what NCCL's own does: every call's type, every value, every layout.

  tests/nccl/nccl_abi.py NCCL_H CUDA_INCLUDE [CXX]

A C++ program that prints the type of each function, the value of each name and the place of each
field of dcomm's header is compiled with either header, by their names in turn, and what it prints is
compared. Differences of releases are let pass: the version, tags that have it in their names, and
fields and results that a newer one has behind the others. What NCCL_H declares and dcomm's does not is an error
where it is of dcomm's release or an older one, and else said. Exit status 0, or 1 for a difference."""
import os
import re
import subprocess
import sys
import tempfile

OURS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "nccl", "include", "nccl.h")
TEXT = os.path.join(os.path.dirname(OURS), "..", "..", "include", "dcomm_nccl.h")
GROWS = ("sizeof ncclConfig_t", "initial ncclConfig_t.size", "ncclNumResults")
RELEASE = ("NCCL_MINOR", "NCCL_PATCH", "NCCL_SUFFIX", "NCCL_VERSION_CODE", "version")


def read(path):
    with open(path, encoding="utf-8") as f:
        return re.sub(r"/\*.*?\*/|//[^\n]*", "", f.read(), flags=re.S)


def names():
    """What dcomm's header has: calls, values, and the fields of structs."""
    text = read(TEXT)
    text = text[:text.index("#undef DCOMM_NCCL_CALL")]
    calls = re.findall(r"^DCOMM_NCCL_CALL\(.*?, (nccl\w+),", text, re.M)
    values = re.findall(r"^\s*(nccl\w+) = ", text, re.M) + re.findall(r"\{ (nccl\w+) = ", text)
    values += re.findall(r"^#define (NCCL_\w+) [^\\\n]", text, re.M)
    structs = {name: re.findall(r"(\w+)(?:\[\w+\])?;", body) for body, name in
               re.findall(r"typedef struct \w* ?\{([^}]*)\} (\w+);", text)}
    types = set(re.findall(r"\b(nccl\w+_t)\b", text)) | set(structs)
    return calls, values, structs, sorted(types)


def program(known):
    """By the names that both headers have."""
    calls, values, structs, types = names()
    calls, values, types = ([n for n in some if n in known] for some in (calls, values, types))
    structs = {name: fields for name, fields in structs.items() if name in known}
    out = ['#include <nccl.h>', '#include <cstddef>', '#include <iostream>', '#include <typeinfo>',
           'template <class T> void say(const char *name, T v) { std::cout << name << " = " << v << "\\n"; }',
           'int main()', '{']
    for call in [p + c for c in calls for p in ("", "p")]:
        out.append(f'    say("{call}", typeid(decltype({call})).name());')
    for value in values:
        if not value.endswith(("_NULL", "_PTR", "_INITIALIZER")):
            out.append(f'    say("{value}", {value});')
    for t in types:
        out.append(f'    say("{t}", typeid({t}).name());')
        out.append(f'    say("sizeof {t}", sizeof({t}));')
    for struct, fields in structs.items():
        out += [f'    say("{struct}.{f}", offsetof({struct}, {f}));' for f in fields]
    for struct, first in (("ncclConfig_t", "NCCL_CONFIG_INITIALIZER"),
                          ("ncclSimInfo_t", "NCCL_SIM_INFO_INITIALIZER")):
        out.append(f"    {struct} first_{struct} = {first};")
        out += [f'    say("initial {struct}.{f}", first_{struct}.{f} ? (long)first_{struct}.{f} : 0);'
                for f in structs[struct]]
    out += [f'    say("NCCL_VERSION{v}", NCCL_VERSION{v});' for v in ("(2, 8, 3)", "(2, 27, 0)")]
    return "\n".join(out + ["}", ""])


def printed(header, known, cuda, cxx):
    with tempfile.TemporaryDirectory() as folder:
        source, binary = os.path.join(folder, "abi.cpp"), os.path.join(folder, "abi")
        with open(source, "w", encoding="utf-8") as f:
            f.write(program(known))
        subprocess.run([cxx, "-std=c++17", "-w", "-DNCCL_OS_LINUX", "-I", os.path.dirname(header), "-I", cuda,
                        "-o", binary, source], check=True)
        run = subprocess.run([binary], check=True, capture_output=True, text=True)
    return dict(line.split(" = ", 1) for line in run.stdout.splitlines())


def plain(text):
    """Without the releases that tags name."""
    text = re.sub(r"\d+(nccl(?:Config|SimInfo))_v\d+", r"\1", text)
    return re.sub(r"\d+ncclWindow(?:_vidmem)?", "ncclWindow", text)


def main():
    if len(sys.argv) not in (3, 4):
        print(__doc__, file=sys.stderr)
        return 2
    theirs, cuda = sys.argv[1:3]
    cxx = (sys.argv + ["c++"])[3]
    known = set(re.findall(r"\b(?:nccl|NCCL_)\w+", read(theirs)))
    ours, wanted = printed(OURS, known, cuda, cxx), printed(theirs, known, cuda, cxx)
    release = f"{wanted['NCCL_MAJOR']}.{wanted['NCCL_MINOR']}.{wanted['NCCL_PATCH']}"
    newer = int(wanted["NCCL_MINOR"]) > int(ours["NCCL_MINOR"])
    bad = 0
    for name, value in ours.items():
        grown = newer and name in GROWS and int(wanted[name]) > int(value)
        if plain(wanted[name]) != plain(value) and not grown and not name.endswith(RELEASE):
            print(f"{name} is {value}, and {wanted[name]} in NCCL {release}")
            bad += 1
    more = known - set(re.findall(r"\b(?:nccl|NCCL_)\w+", read(TEXT)))
    more = {name for name in more if not re.search(r"_v\d+$|_vidmem$|^NCCL_H_$", name)}
    if more:
        print(f"NCCL {release} has, and dcomm not: {' '.join(sorted(more))}")
        bad += 0 if newer else len(more)
    calls = [c for c in names()[0] if c not in known]
    if calls:
        print(f"dcomm has, and NCCL {release} not: {' '.join(calls)}")
    print(f"{len(ours)} of dcomm's names, {bad} not as in NCCL {release}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
