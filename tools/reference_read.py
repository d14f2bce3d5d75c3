"""reference_read.py - the public headers as data, for reference.py: declarations and their comments."""
import collections
import glob
import os
import re

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
OMITTED = ("all.h", "old_names.h")  # a list of includes; names that are gone soon
ORDER = ("base.h", "comm.h", "coll.h", "mem.h", "tune.h", "bucket.h", "scaler.h", "moe.h", "checkpoint.h",
         "fingerprint.h", "share.h", "ps.h", "compress.h", "feedback.h", "ledger.h", "plan.h", "build.h",
         "check.h", "cuda.h")  # of reading; others follow

# A comment is blocks: ("p", text), ("list", [text...]) or ("code", [line...]). A section is a title and the
# comment below it. `names` of a member may be several: "int rank, size;".
Section = collections.namedtuple("Section", "title comment")
Member = collections.namedtuple("Member", "names text comment section")
Parameter = collections.namedtuple("Parameter", "name type")


class Symbol:
    """A function, type, callback, constant or macro. `lead` is the first symbol that has the same comment."""

    def __init__(self, kind, name, text, comment, section, lead):
        self.kind, self.name, self.text, self.comment, self.section = kind, name, text, comment, section
        self.members, self.parameters, self.returns = [], [], ""
        self.lead = lead or self

    def __repr__(self):
        return f"{self.kind} {self.name}"


class Header:
    """A header: its comment, its sections in order, and its symbols in order."""

    def __init__(self, name):
        self.name, self.comment, self.sections, self.symbols = name, [], [], []


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as f:
        return f.read()


# ---- comments ----

def comment_lines(text):
    """The lines of a comment without its frame; further indentation stays."""
    lines = text[2:-2].split("\n")
    lines[1:] = [re.sub(r"^\s*\*(?: |$)", "", line) if re.match(r"\s*\*", line) else line.strip()
                 for line in lines[1:]]
    lines[0] = lines[0].strip()
    return [line.rstrip() for line in lines]


def blocks(lines):
    """The blocks of a comment's lines."""
    found, kind = [], None
    for line in lines:
        indent = len(line) - len(line.lstrip())
        if not line:
            kind = None
        elif line.startswith("- "):
            if kind != "list":
                found.append(("list", []))
            found[-1][1].append(line[2:])
            kind = "list"
        elif kind == "list" and indent == 2:
            found[-1][1][-1] += " " + line.strip()
        elif indent >= 2:
            if kind is None and found and found[-1][0] == "code":
                found[-1][1].append("")
            elif kind != "code":
                found.append(("code", []))
            found[-1][1].append(line)
            kind = "code"
        elif kind == "p":
            found[-1] = ("p", found[-1][1] + " " + line)
        else:
            found.append(("p", line))
            kind = "p"
    return found


def plain(comment):
    """All words of a comment."""
    return " ".join(text if kind == "p" else " ".join(text) for kind, text in comment)


def sentence(comment):
    """The first sentence of a comment, without its full stop."""
    text = next((text for kind, text in comment if kind == "p"), "")
    return re.split(r"(?<!\w\.\w)(?<!St)\.(?:\s|$)|: (?=all |true )", text)[0].rstrip(".:")


def mentions(text, name):
    """Return true if a type's comment speaks of a member. Of a value the last words of its name will do."""
    words = name.split("_") if name.isupper() or name.startswith("DCOMM_") else [name]
    tails = ["_".join(words[i:]) for i in range(len(words))]
    return any(re.search(r"\b%s\b" % re.escape(tail), text, re.I) for i, tail in enumerate(tails)
               if len(tail) > 1 and (i < 2 or tail not in ("COUNT", "MAX")))


def errors(comment):
    """A comment without what it says of errors, and that."""
    rest, said = [], []
    for kind, text in comment:
        if kind == "p" and said and not rest[-1:] == [None]:
            said.append((kind, text))
            continue
        m = re.search(r"(?:^|(?<=[.;] ))Errors\b[^:.]{0,60}: ", text) if kind == "p" else None
        if m:
            if text[:m.start()].strip():
                rest.append(("p", text[:m.start()].strip()))
            scope = text[m.start() + len("Errors"):m.end() - 2].strip(" ,")
            said.append(("p", (scope[:1].upper() + scope[1:] + ": " if scope else "") + text[m.end():]))
        else:
            rest.append((kind, text))
    return rest, said


def arguments(comment, names):
    """A comment without the sentences that begin with the name of an argument, and those by argument."""
    rest, said = [], {}
    begins = re.compile(r"[`*]?(%s)`?(?=:| may be | is | are | has | must | need )" % "|".join(names))
    for kind, text in comment:
        if kind != "p" or not names:
            rest.append((kind, text))
            continue
        kept, last = [], None
        for one in re.split(r"(?<=\.)\s+", text):
            m = begins.match(one)
            last = m.group(1) if m else last if last and re.match(r"(?:It|They)\b", one) else None
            if last and (kept or rest):
                said[last] = (said.get(last, "") + " " + re.sub(r"^`?\w+`?: ", "", one)).strip()
            else:
                kept.append(one)
        if kept:
            rest.append((kind, " ".join(kept)))
    return rest, [(name, said[name]) for name in names if name in said]


# ---- headers ----

TOKEN = re.compile(r'/\*.*?\*/|"(?:\\.|[^"\\\n])*"|[{}();,]|\n|[^\S\n]+|[^\s{}();,"/]+|/', re.S)
DIRECTIVE = re.compile(r"[ \t]*#((?:[^\n\\]|\\.|\\\n)*)\n?")


def items(text):
    """Yield the contents of a header or of a struct's body, in order: ("blank",), ("comment", text, follows: it
    is on the line of what comes before), ("directive", text), ("declaration", text)."""
    at, line_start, newlines, declared = 0, True, 0, []
    depth = 0
    while at < len(text):
        if line_start and not depth:
            m = DIRECTIVE.match(text, at)
            if m and not "".join(declared).strip():
                at, newlines = m.end(), 1
                yield ("directive", m.group(1))
                continue
        token = TOKEN.match(text, at).group()
        at += len(token)
        line_start = token == "\n" or (line_start and token.isspace())
        if token == "\n":
            newlines += 1
            if newlines == 2 and not "".join(declared).strip():
                yield ("blank",)
        if "".join(declared).strip() or not (token.isspace() or token.startswith("/*")):
            declared.append(token)
            depth += {"{": 1, "(": 1, "}": -1, ")": -1}.get(token, 0)
            if token.strip():
                newlines = 0
            if not depth and token == ";":
                yield ("declaration", "".join(declared))
                declared = []
        elif token.startswith("/*"):
            yield ("comment", token, newlines == 0)
            newlines = 0
    if "".join(declared).strip():
        yield ("declaration", "".join(declared))


def bare(text):
    """A declaration without comments, on one line."""
    return re.sub(r"\s+", " ", re.sub(r"/\*.*?\*/", " ", text, flags=re.S)).strip()


def split(text, by):
    """Text cut at a character outside of parentheses."""
    parts, depth = [""], 0
    for c in text:
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(c, 0)
        if c == by and not depth:
            parts.append("")
        else:
            parts[-1] += c
    return [part.strip() for part in parts]


def declared_name(text):
    """The name that a declarator declares."""
    m = re.search(r"\(\*(\w+)\)\s*\(", text) or re.search(r"(\w+)\s*(?:\[[^\]]*\]\s*)*$", text)
    return m.group(1) if m else ""


def expand(body, macros):
    """An enum's body with tables of X(...) written out, each row's text as its comment."""
    for m in re.finditer(r"#define (\w+)\(([^)]*)\) ([^\n]*)\n", body):
        use = re.search(r"(\w+_TABLE)\(%s\)" % m.group(1), body)
        if use and use.group(1) in macros:
            names, rows = split(m.group(2), ","), []
            for row in re.findall(r"X\(((?:[^()\"]|\"[^\"]*\")*)\)(?=\s*(?:X|$|\\))", macros[use.group(1)]):
                values, value = split(row, ","), m.group(3).rstrip(" ,")
                for name, text in zip(names, values):
                    value = re.sub(r"\b%s\b" % name, text, value.replace("##" + name, text))
                rows.append(f"{value}, /* {values[-1].strip(chr(34))} */")
            body = body.replace(use.group(0), "\n".join(rows) + "\n")
    return re.sub(r"^[ \t]*#[^\n]*\n", "", body, flags=re.M)


def members(body, is_enum):
    """The members of a struct or the values of an enum. A comment above is of the member below it, and of the
    next ones while none has a comment of its own."""
    found, leading, section, first = [], [], "", True
    if is_enum:  # a value ends like a field does
        body = re.sub(r",(?=(?:\s*/\*.*?\*/)*\s*(?:\w+\s*(?:=|,|$)|$))", ";", body, flags=re.S)
        body = re.sub(r"(\w)(\s*(?:/\*(?:(?!\*/).)*\*/\s*)*)$", r"\1;\2", body, count=1, flags=re.S)
    for kind, *rest in items(body):
        if kind == "blank":
            leading = []
        elif kind == "comment":
            lines = comment_lines(rest[0])
            m = re.match(r"-{3,} (.*?) -{2,}$", lines[0])
            if m:
                section, leading = m.group(1), []
            elif rest[1] and found:
                found[-1] = found[-1]._replace(comment=(leading if first else []) + blocks(lines))
                leading = []
            else:
                leading, first = blocks(lines), True
        elif kind == "declaration":
            text = bare(rest[0]).rstrip(";").strip()
            if text:
                names = [declared_name(part.split("=")[0]) for part in split(text, ",")]
                first = bool(leading) and not (found and found[-1].comment is leading)
                found.append(Member(names, text, leading, section))
    return found


def signature(symbol, text):
    """Fill in a function's or a callback's parameters and what it returns."""
    m = re.match(r"(?:typedef )?(.*?)(?:\(\*\w+\)|\b\w+)\s*\((.*)\)$", text)
    if m:
        symbol.returns = m.group(1).strip()
        for part in split(m.group(2), ","):
            if part and part != "void":
                name = declared_name(part)
                symbol.parameters.append(Parameter(name, part))


def in_c(path):
    """A header without what C++ needs."""
    return re.sub(r'#ifdef __cplusplus\n(?:extern "C" \{|\})\n#endif\n', "", read(path))


def read_header(name):
    """Parse a public header."""
    header = Header(name)
    macros, comment, section, lead, last, guard = {}, [], "", None, None, None
    by_name = {}

    def add(kind, name, text):
        nonlocal lead, last
        symbol = Symbol(kind, name, text, comment, section, lead if comment else None)
        lead = lead or (symbol if comment else None)
        if name in by_name:  # defined twice, for two compilers
            return by_name[name]
        header.symbols.append(symbol)
        by_name[name] = last = symbol
        return symbol

    def remember(lines):
        nonlocal comment, section, lead
        m = re.match(r"-{3,} (.*?) -{2,}$", lines[0])
        if m:
            section, comment = m.group(1), []
            header.sections.append(Section(section, blocks(lines[1:])))
        elif not header.comment and not guard:
            header.comment = blocks([re.sub(r"^%s - " % re.escape(name), "", lines[0])] + lines[1:])
        else:
            comment = blocks(lines)
        lead = None

    for kind, *rest in items(in_c("include/dcomm/" + name)):
        if kind == "blank":
            comment, lead = [], None
        elif kind == "comment":
            if rest[1] and last:
                last.comment, last.lead = blocks(comment_lines(rest[0])), last
            else:
                remember(comment_lines(rest[0]))
        elif kind == "directive":
            guard = guard or rest[0]
            m = re.match(r"\s*define (DCOMM_\w+)(\([^)]*\))?[ \t]*(.*)$", rest[0], re.S)
            if m and "ifndef " + m.group(1) != guard.strip():
                said = re.search(r"/\*.*?\*/\s*$", m.group(3), re.S)
                macros[m.group(1)] = m.group(3)
                value = bare(m.group(3).replace("\\\n", "\n"))
                known = m.group(1) in by_name
                value = value if len(value) < 60 else "..."  # a table
                symbol = add("macro", m.group(1), f"#define {m.group(1)}{m.group(2) or ''} {value}".strip())
                if said and not known:
                    symbol.comment, symbol.lead = blocks(comment_lines(said.group())), symbol
        else:
            declaration(rest[0], add, macros)
    return header


def declaration(text, add, macros):
    """Add the symbols of one declaration of a header."""
    one = bare(text).rstrip(";").strip()
    m = re.match(r"(?:typedef )?(struct|enum)(?: (\w+))? ?\{(.*)\}\s*(\w*)$",
                 re.sub(r"\s*;\s*$", "", text.strip()), re.S)
    if m:
        body = expand(m.group(3), macros)
        found = members(body, m.group(1) == "enum")
        name = m.group(4) or m.group(2)
        if name:
            add(m.group(1), name, one).members = found
        for value in found if not name else []:  # an enum of constants
            add("constant", value.names[0], "enum { " + value.text + " }")
    elif one.startswith("typedef"):
        opaque = re.match(r"typedef struct (\w+) (\w+)$", one)
        if opaque:
            add("type", opaque.group(2), one)
        else:
            signature(add("callback", declared_name(re.sub(r"\)\s*\(.*", ")()", one)), one), one)
    elif one.startswith("DCOMM_API"):
        one = re.sub(r"^DCOMM_API (?:DCOMM_CHECKED )?", "", one)
        name = re.search(r"(\w+)\s*\(", one).group(1)
        signature(add("function", name, one), one)


def read_headers():
    """All public headers."""
    names = {os.path.basename(p) for p in glob.glob(os.path.join(ROOT, "include/dcomm/*.h"))}
    names -= set(OMITTED)
    return [read_header(name) for name in [n for n in ORDER if n in names] + sorted(names - set(ORDER))]


def old_names():
    """Pairs of an old name and the one that it calls."""
    text = read("include/dcomm/old_names.h")
    return [(m.group(1), next(n for n in re.findall(r"\b(dcomm_\w+)\(", m.group(2)) if n != m.group(1)))
            for m in re.finditer(r"\b(dcomm_\w+)\((?:[^)]|\n)*\)\n\{\n(.*?)\n\}", text, re.S)]
