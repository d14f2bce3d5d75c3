#!/usr/bin/env python3
"""reference.py - the reference of dcomm, from the comments in its public headers, its tools' help texts, and
the tables of environment variables and of NCCL's calls.

  tools/reference.py OUT           write OUT/man3, OUT/man1 and OUT/html
  tools/reference.py --check       print a line for each symbol, option or variable that nothing describes,
                                   and for each function that no example calls; exit status 1 if there is one.
                                   A comment above several declarations describes those that it names
  tools/reference.py --list        print the name of each public function
  tools/reference.py --help-of T   print the help text of tool T, as its source has it
  tools/reference.py --install MAN DOC   for meson: the same below its prefix, MAN and DOC

The same sources give the same bytes."""
import argparse
import collections
import os
import re
import sys

sys.dont_write_bytecode = True  # `meson install` may run this as another user
import reference_html
import reference_man
import reference_read as reader
import reference_rest as rest


class Page:
    """A function, functions that one comment describes, or a type."""

    def __init__(self, header, symbols):
        self.header = header
        lead = next((s for s in symbols if s.kind == "function"), symbols[0])
        blocking = lead.name.replace("dcomm_i", "dcomm_", 1)
        lead = next((s for s in symbols if s.name == blocking), lead)
        self.name, self.kind, self.section = lead.name, lead.kind, lead.section
        self.symbols = sorted(symbols, key=lambda s: (s.kind != "callback", s.name != self.name))
        self.comment, self.errors = reader.errors(symbols[0].lead.comment)
        names = list(dict.fromkeys(p.name for s in symbols for p in s.parameters if p.name))
        self.comment, self.arguments = reader.arguments(self.comment, names)
        self.brief = reader.sentence(symbols[0].lead.comment)
        self.example = None


class Reference:
    """All that is described."""

    def __init__(self):
        self.headers = reader.read_headers()
        self.tools, self.variables, self.macros = rest.read_tools(), rest.read_variables(), rest.read_macros()
        self.examples, self.old_names = rest.read_examples(), reader.old_names()
        self.nccl = rest.read_nccl()
        self.version = next(s for h in self.headers for s in h.symbols
                            if s.name == "DCOMM_VERSION_STRING").text.split('"')[1]
        self.pages = []
        for header in self.headers:
            groups = {}
            for symbol in header.symbols:
                groups.setdefault(id(symbol.lead), []).append(symbol)
            header.pages = [Page(header, symbols) for symbols in groups.values()]
            self.pages += header.pages
        for page in self.pages:
            page.example = self.example(page)

    def example(self, page):
        """The smallest example that calls one of a page's functions, or that uses its type."""
        found = [(len(rest.excerpt(e.text, s.name)), i, e) for i, e in enumerate(self.examples)
                 for s in page.symbols if rest.uses(e.text, s.name)]
        return min(found)[2] if found else None

    def see_also(self, page):
        """Names of other pages of the same header and section, the nearest ones."""
        near = [p for p in page.header.pages if p.section == page.section]
        at = near.index(page)
        near = sorted(near, key=lambda p: (abs(near.index(p) - at), near.index(p)))[1:7]
        return sorted((p.name for p in near if p.kind not in ("macro", "constant")), key=str.lower)


def unnamed(found, comment):
    """Return those of the declarations below one comment that it does not name, if there are several. A
    non-blocking function goes with its blocking form, a callback with the function that takes it."""
    names = {s.name for s in found}
    taken = " ".join(p.type for s in found if s.kind == "function" for p in s.parameters)
    alone = [s for s in found if s.name.replace("dcomm_i", "dcomm_", 1) not in names - {s.name}
             and not (s.kind == "callback" and s.name in taken)]
    return [s.name for s in alone if len(alone) > 1 and not re.search(r"\b%s\b" % s.name, comment)]


def undocumented(reference):
    """A line for each thing that nothing describes."""
    faults, defined = [], set()
    for header in reference.headers:
        where = "include/dcomm/" + header.name
        for symbol in header.symbols:
            defined.add(symbol.name)
            comment = reader.plain(symbol.lead.comment)
            if not comment:
                faults.append(f"{where}: {symbol.kind} {symbol.name} has no comment above it")
            below = collections.Counter(id(member.comment) for member in symbol.members)
            for member in symbol.members:
                word = "value" if symbol.kind == "enum" else "field"
                own = reader.plain(member.comment) if below[id(member.comment)] == 1 else ""
                shared = comment + " " + reader.plain(member.comment)
                faults += [f"{where}: {word} {name} of {symbol.name} has no comment of its own or by name"
                           for name in member.names if not own and not reader.mentions(shared, name)]
        for page in header.pages:
            comment = reader.plain(page.symbols[0].lead.comment)
            faults += [f"{where}: the comment above {name} has other declarations below it, too: name all"
                       for name in unnamed(page.symbols, comment) if comment]
    called = {s.name for p in reference.pages if p.kind == "function" and p.example for s in p.symbols}
    faults += [f"include/dcomm/{p.header.name}: no example calls {p.name}: add one to docs/snippets.md"
               for p in reference.pages if p.kind == "function" and p.name not in called]
    variables = rest.known_variables()
    names = {name for row in reference.variables for name in row.names if any(row.cells)}
    faults += [f"docs/environment.md: no row for the environment variable {name}"
               for name in variables if name not in names]
    names = {name for row in reference.macros for name in row.names if any(row.cells)}
    faults += [f"docs/cheatsheet.md: no row for the macro {name}"
               for name in rest.known_macros(defined) if name not in names]
    calls, said = {call.name for call in reference.nccl}, rest.read_nccl_rows()
    faults += [f"docs/from-nccl.md: no row for NCCL's call {name}" for name in sorted(calls - set(said))]
    known = defined.union(variables, names)
    known.update(name for h in reference.headers for s in h.symbols for m in s.members for name in m.names)
    made = re.findall(r"\b(?:dcomm|DCOMM)_\w+", " ".join(by for by, _ in said.values()))
    faults += [f"docs/from-nccl.md: there is no {name}"
               for name in sorted((set(said) - calls) | (set(made) - known))]
    faults += [f"{page}: there is no {name}" for page in ("docs/cheatsheet.md", "docs/snippets.md")
               for name in sorted(set(re.findall(r"\b(?:dcomm|DCOMM)_\w+", reader.read(page))) - known)]
    for tool in reference.tools:
        faults += [f"bench/{tool.name}: --help does not have the option {option}" for option in tool.options
                   if not rest.named_by(tool, option)]
    return faults


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("out", nargs="?", metavar="OUT")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--help-of", metavar="T")
    parser.add_argument("--install", nargs=2, metavar=("MAN", "DOC"))
    args = parser.parse_args()
    if args.help_of:
        print(rest.help_text(args.help_of, rest.source_of(args.help_of)), end="")
        return 0
    reference = Reference()
    functions = [s.name for p in reference.pages for s in p.symbols if s.kind == "function"]
    if args.list:
        print("\n".join(functions))
    elif args.check:
        faults = undocumented(reference)
        print("\n".join(faults + [f"{len(functions)} functions, {len(reference.pages)} pages, "
                                  f"{len(reference.tools)} tools, {len(faults)} not described"]))
        return 1 if faults else 0
    elif args.install:
        prefix = os.environ["MESON_INSTALL_DESTDIR_PREFIX"]
        reference_man.write(reference, os.path.join(prefix, args.install[0]))
        reference_html.write(reference, os.path.join(prefix, args.install[1]))
    elif args.out:
        reference_man.write(reference, args.out)
        reference_html.write(reference, os.path.join(args.out, "html"))
    else:
        parser.print_usage(sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
