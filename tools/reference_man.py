"""reference_man.py - the reference as man pages, for reference.py: man3 has a page for each function and
type, one for each header, dcomm(3), dcomm-environment(3) and dcomm-nccl(3); man1 has one for each tool."""
import os
import re
import textwrap

import reference_rest as rest
from reference_read import blocks, plain, read, sentence

NCCL = ("NCCL's calls, made by dcomm. Names, types, values and layouts are NCCL's. If a call has no remark, it "
        "is as in NCCL's documentation. Each exists as pnccl... too.")
STATUS = ("DCOMM_OK (0), or a negative status; dcomm_last_error(3) then returns a sentence that names the "
          "argument, the ranks and the values. dcomm_status(3) lists all statuses.")


def escape(text):
    """Text as roff takes it."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("`", "")
    text = text.translate({ord(c): r for c, r in {"–": "\\[en]", "²": "\\[S2]", "→": "\\[->]"}.items()})
    return re.sub(r"^([.'])", r"\\&\1", text, flags=re.M)


def filled(text, italic=()):
    """A paragraph, with names of parameters in italics, in lines of moderate length."""
    text = "\n".join(textwrap.wrap(text, 90, break_long_words=False, break_on_hyphens=False))
    text = escape(text)
    for name in italic:
        text = re.sub(r"(?<![\w\\.>])%s(?!\w)" % re.escape(name), r"\\fI%s\\fR" % name, text)
    return re.sub(r"^([.'])", r"\\&\1", text, flags=re.M)


def verbatim(lines):
    """Lines as they are."""
    return [".PP", ".EX"] + [escape(line) or "\\&" for line in lines] + [".EE"]


def prose(comment, italic=()):
    """A comment's blocks."""
    out = []
    for kind, body in comment:
        if kind == "p":
            out += [".PP", filled(body, italic)]
        elif kind == "list":
            for item in body:
                out += [".IP \\(bu 2", filled(item, italic)]
        else:
            out += verbatim(body)
    return out


def synopsis(text):
    """A declaration, a parameter on each line if it is long."""
    if len(text) <= 76 or "(" not in text:
        return text.split("\n")
    head, _, rest_of = text.partition("(")
    if head.startswith("typedef"):
        head, _, rest_of = text.partition(")(")
        head += ")"
    lines, line = [], head + "("
    for part in re.split(r"(?<=,) ", rest_of):
        if len(line) + len(part) > 76:
            lines.append(line.rstrip())
            line = "    "
        line += part + " "
    return lines + [line.rstrip()]


def declaration(symbol):
    """Return the lines that declare a symbol."""
    if symbol.kind in ("struct", "enum"):
        return [f"typedef {symbol.kind} {symbol.name} {symbol.name};"]
    if symbol.kind in ("macro", "constant"):
        return [symbol.text]
    return synopsis(symbol.text + ";")


def fields(symbol):
    """The fields of a struct or the values of an enum."""
    out, section = [], ""
    for member in symbol.members:
        if member.section != section:
            section = member.section
            out += [".SS " + escape(section[:1].upper() + section[1:])]
        out += [".TP", "\\fB" + escape(member.text) + "\\fR", filled(plain(member.comment)) or "\\&"]
    return out


def header_page(header):
    """The name of a header's page."""
    return "dcomm-" + header.name[:-2]


def title(name, number, version):
    return [".nr HY 0", f'.TH "{name}" {number} "" "dcomm {version}" "dcomm"', ".ad l"]


def named(names, brief):
    if re.match(r"[A-Z][a-z]", brief):
        brief = brief[0].lower() + brief[1:]
    return [".SH NAME", escape(", ".join(names)) + " \\- " + escape(" ".join(brief.split()))]


def symbol_page(reference, page):
    """A page of functions, or of a type."""
    italic = sorted({p.name for s in page.symbols for p in s.parameters if len(p.name) > 1})
    functions = [s for s in page.symbols if s.kind in ("function", "callback")] or page.symbols
    out = title(page.name, 3, reference.version) + named([s.name for s in functions], page.brief)
    out += [".SH SYNOPSIS"] + verbatim(['#include "dcomm.h"', ""] +
                                       [line for s in page.symbols for line in declaration(s)])
    out += [".SH DESCRIPTION"] + (prose(page.comment, italic) or prose(page.errors, italic))
    out += [".PP", filled(f"{header_page(page.header)}(3) says what this header's functions have in common.")]
    if page.arguments:
        out += [".SH ARGUMENTS"]
    for name, text in page.arguments:
        out += [".TP", f"\\fI{escape(name)}\\fR", filled(text, italic)]
    for symbol in page.symbols:
        if symbol.members:
            out += [".SH " + ("VALUES" if symbol.kind == "enum" else "FIELDS")] + fields(symbol)
    if any(s.kind == "function" and s.returns == "dcomm_status" for s in page.symbols):
        out += [".SH RETURN VALUE", filled(STATUS)]
    if page.errors:
        out += [".SH ERRORS"] + prose(page.errors, italic)
    if page.example:
        name = next(s.name for s in page.symbols if rest.uses(page.example.text, s.name))
        out += [".SH EXAMPLE", filled(f"From {page.example.where}:")]
        out += verbatim(rest.excerpt(page.example.text, name))
    also = reference.see_also(page) + [header_page(page.header), "dcomm"]
    return out + [".SH SEE ALSO", ",\n".join(f".BR {escape(n)} (3)" for n in also).replace(",\n", " ,\n")]


def overview(reference, header):
    """A header's page: its comment, and what it declares."""
    out = title(header_page(header), 3, reference.version)
    out += named([header_page(header)], sentence(header.comment))
    out += [".SH SYNOPSIS"] + verbatim(['#include "dcomm.h"'])
    said = header.comment[0][1]
    out += [".SH DESCRIPTION", filled(said[:1].upper() + said[1:])] + prose(header.comment[1:])
    comments = {s.title: s.comment for s in header.sections}
    section = None
    for page in header.pages:
        if page.section != section or section is None:
            section = page.section
            out += [".SH " + escape((section or "Interface").upper())] + prose(comments.get(section, []))
        if page.kind in ("macro", "constant"):
            for symbol in page.symbols:
                out += [".TP" if symbol is page.symbols[0] else ".TQ"]
                out += ["\\fB" + escape(symbol.text) + "\\fR"]
            out += [filled(page.comment[0][1])]
            out += [".RS"] + prose(page.comment[1:]) + [".RE"] if page.comment[1:] else []
        else:
            names = [s.name for s in page.symbols]
            out += [".TP", "\\fB" + escape(", ".join(names)) + "\\fR", filled(page.brief) or "\\&"]
    return out + [".SH SEE ALSO", ".BR dcomm (3)"]


def library_page(reference):
    """dcomm(3): where to begin."""
    out = title("dcomm", 3, reference.version)
    out += named(["dcomm"], "collective communication and gradient compression in one header")
    out += [".SH SYNOPSIS"] + verbatim([
        "#define DCOMM_IMPLEMENTATION /* in one C file */", '#include "dcomm.h"', "",
        "cc -O2 program.c -lucp -lucs -luct -lhwloc -lm -lpthread -ldl"])
    out += [".SH HEADERS", "Each part of the interface has a page, and so has each function and type."]
    for header in reference.headers:
        out += [".TP", f".BR {escape(header_page(header))} (3)", filled(sentence(header.comment))]
    out += [".TP", ".BR dcomm\\-nccl (3)", "NCCL's calls, made by dcomm"]
    out += [".SH TOOLS"]
    for tool in reference.tools:
        out += [".TP", f".BR {escape(tool.name)} (1)", filled(brief(tool))]
    out += [".SH MACROS OF A PROGRAM", "Defined before dcomm.h is included."]
    out += table(reference.macros)
    out += [".SH ENVIRONMENT", ".BR dcomm\\-environment (3)\nlists all variables."]
    out += [".SH OLD NAMES", "Inline functions of this version, unless DCOMM_NO_OLD_NAMES is defined:"]
    for old, new in reference.old_names:
        out += [".TP", escape(old), escape(new) + "(3)"]
    return out


def table(found):
    """Rows of a page's table."""
    out = []
    for row in found:
        cells = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", cell).replace("*", "") for cell in row.cells]
        out += [".TP", "\\fB" + escape(", ".join(row.names)) + "\\fR"]
        out += [filled(cells[-1].rstrip(".")) or "(see its script)"]
        if len(cells) == 3 and cells[0]:
            out += [".br", filled("It may be: " + cells[0] + ".")]
        if len(cells) == 3 and cells[1]:
            out += [".br", filled("Default: " + cells[1] + ".")]
    return out


def environment_page(reference):
    out = title("dcomm-environment", 3, reference.version)
    out += named(["dcomm-environment"], "environment variables that dcomm reads")
    said = read("docs/environment.md").split("\n## ")[0].replace("*", "")
    out += [".SH DESCRIPTION"] + prose(blocks(said.split("\n")[1:]))
    section = None
    for row in reference.variables:
        if row.section != section:
            section = row.section
            out += [".SH " + escape(section.upper())]
        out += table([row])
    return out + [".SH SEE ALSO", ".BR dcomm (3)"]


def nccl_said(call):
    """What makes one of NCCL's calls, and what differs."""
    return [f"By {call.by}."] * bool(call.by) + [call.said] * bool(call.said) or ["As in NCCL."]


def nccl_page(reference):
    out = title("dcomm-nccl", 3, reference.version) + named(["dcomm-nccl"], "NCCL's calls, made by dcomm")
    out += [".SH SYNOPSIS"] + verbatim(['#include "dcomm_nccl.h" /* or <nccl.h> */'])
    out += [".SH DESCRIPTION", filled(NCCL)]
    section = None
    for call in reference.nccl:
        if call.section != section:
            section = call.section
            out += [".SH " + escape(section.upper())]
        out += [".TP", "\\fB" + escape(call.text) + "\\fR"]
        out += [filled(re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", " ".join(nccl_said(call))))]
    return out + [".SH SEE ALSO", ".BR dcomm (3)"]


def brief(tool):
    """Return a tool's purpose, as README's table has it or its help begins."""
    row = re.search(r"^\| `[^`|]*\b%s(?![\w-])[^`|]*` \| (.*?) (?:\(\[.*\) )?\|$" % tool.name,
                    read("README.md"), re.M)
    text = row.group(1) if row else " ".join(next(b[1] for b in tool.blocks if b[0] == "p").split())
    return re.split(r"(?<=[a-z0-9])\. |\.$", text)[0]


def tool_page(reference, tool):
    out = title(tool.name, 1, reference.version) + named([tool.name], brief(tool))
    out += [".SH SYNOPSIS"] + verbatim(tool.usage)
    heading = None
    for block in tool.blocks:
        wanted = "OPTIONS" if block[0] == "option" else (
            "DESCRIPTION" if heading in (None, "DESCRIPTION") else "NOTES")
        if wanted != heading:
            heading = wanted
            out += [".SH " + heading]
        if block[0] == "p":
            out += [".PP", filled(block[1])]
        elif rest.laid_out(block[2]):
            lines = [escape(line) for line in rest.laid_out(block[2])]
            out += [".TP", "\\fB" + escape(block[1]) + "\\fR", ".EX"] + lines + [".EE"]
        else:
            out += [".TP", "\\fB" + escape(block[1]) + "\\fR", filled(block[2]) or "\\&"]
    others = [t.name for t in reference.tools if t is not tool]
    return out + [".SH SEE ALSO", " ,\n".join(f".BR {escape(n)} (1)" for n in others) + " ,\n.BR dcomm (3)"]


def write(reference, out):
    """Write all pages below OUT/man3 and OUT/man1."""
    for number in ("man3", "man1"):
        os.makedirs(os.path.join(out, number), exist_ok=True)

    def save(name, lines):
        with open(os.path.join(out, "man" + name[-1], name), "w", encoding="utf-8") as f:
            f.write("\n".join(line for line in lines if line) + "\n")
    for page in reference.pages:
        if page.kind not in ("macro", "constant"):
            save(page.name + ".3", symbol_page(reference, page))
            for symbol in page.symbols:
                if symbol.name != page.name:
                    save(symbol.name + ".3", [f".so man3/{page.name}.3"])
    for header in reference.headers:
        save(header_page(header) + ".3", overview(reference, header))
    save("dcomm.3", library_page(reference))
    save("dcomm-environment.3", environment_page(reference))
    save("dcomm-nccl.3", nccl_page(reference))
    for tool in reference.tools:
        save(tool.name + ".1", tool_page(reference, tool))
