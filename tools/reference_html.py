"""reference_html.py - the reference as HTML, for reference.py: index.html, a page for each header, for
NCCL's calls, the tools, the environment variables, the examples and the
cheatsheet. No script: the browser searches."""
import html
import os
import re
import textwrap

import reference_man as man
import reference_rest as rest
from reference_read import plain, read, sentence

CSS = """\
:root { --ink: #1c2733; --soft: #5b6b7b; --line: #d9e0e7; --paper: #fff; --tint: #f4f7fa; --link: #0b5fa5 }
@media (prefers-color-scheme: dark) {
  :root { --ink: #dfe6ee; --soft: #93a3b5; --line: #34424f; --paper: #12181f; --tint: #1b242d;
    --link: #6db3f2 }
}
* { box-sizing: border-box }
body { margin: 0; color: var(--ink); background: var(--paper); font: 16px/1.5 system-ui, sans-serif }
a { color: var(--link); text-decoration: none } a:hover { text-decoration: underline }
header { padding: .6rem 1.5rem; border-bottom: 1px solid var(--line); background: var(--tint) }
header a { margin-right: .9rem; white-space: nowrap } header a.here { font-weight: 600; color: var(--ink) }
.columns { display: flex; max-width: 82rem; margin: 0 auto }
nav.side { flex: 0 0 20rem; padding: 1rem 1rem 2rem 1.5rem; font-size: 14px; position: sticky; top: 0;
  max-height: 100vh; overflow: auto; border-right: 1px solid var(--line) }
nav.side a { display: block; padding: .08rem 0; overflow-wrap: anywhere }
nav.side b { display: block; margin-top: .9rem; color: var(--soft) }
main { flex: 1; min-width: 0; padding: .5rem 2rem 6rem } p, li { max-width: 46rem }
p.many { max-width: none; column-width: 19rem; font-size: 14px; overflow-wrap: anywhere }
p.many a { display: block }
h1 { font-size: 1.7rem }
h2 { margin: 2.5rem 0 .5rem; padding-bottom: .2rem; border-bottom: 1px solid var(--line) }
h3 { margin: 2rem 0 .4rem; font: 600 1.1rem ui-monospace, monospace; overflow-wrap: anywhere }
h4 { margin: 1rem 0 .3rem; font-size: .95rem; color: var(--soft) }
pre, code, var { font: 14px/1.45 ui-monospace, monospace } var { font-style: italic }
pre { padding: .6rem .9rem; background: var(--tint); border: 1px solid var(--line); border-radius: 5px;
  overflow: auto } td pre { margin: 0 }
table { border-collapse: collapse; width: 100%; font-size: 15px }
td, th { padding: .3rem .7rem .3rem 0; text-align: left; vertical-align: top;
  border-bottom: 1px solid var(--line) }
td:first-child { font: 14px/1.5 ui-monospace, monospace; width: 36% }
td.group { color: var(--soft); font: 600 14px system-ui, sans-serif; padding-top: 1rem }
table.page td:first-child { font: inherit } table.list td:first-child { width: 21rem }
table.short td:first-child, table.arguments td:first-child { width: 10rem }
details { margin: .6rem 0 } summary { cursor: pointer; color: var(--soft) }
:target { scroll-margin-top: 1rem } h3:target, tr:target, span:target { background: #ffe9a8; color: #1c2733 }
@media (max-width: 60rem) {
  .columns { display: block } nav.side { position: static; max-height: 16rem; border: 0 }
}
"""


STATUS = ("Functions that return dcomm_status return DCOMM_OK, or a negative status; dcomm_last_error then "
          "returns a sentence that names the argument, the ranks and the values.")
INTRODUCTION = """\
<p>Collective communication and gradient compression for training in C and C++: one header,
<code>dcomm.h</code>. This is the reference of its interface. The <a href="cheatsheet.html">cheatsheet</a>
has the most used of it on a page; <a href="#functions">all functions and types</a> are listed below.</p>"""


class Writer:
    """Knows where each name is described."""

    def __init__(self, reference):
        self.reference, self.where = reference, {}
        for header in reference.headers:
            page = header.name[:-2] + ".html"
            for symbol in header.symbols:
                self.where[symbol.name] = f"{page}#{symbol.name}"
                for member in symbol.members if symbol.kind == "enum" else []:
                    self.where.update({name: f"{page}#{name}" for name in member.names})
        for file, found in (("environment.html", reference.variables), ("index.html", reference.macros)):
            for row in found:
                self.where.update({name: f"{file}#{name}" for name in row.names if name not in self.where})
        self.where.update({tool.name: f"tools.html#{tool.name}" for tool in reference.tools})
        self.where.update({call.name: f"nccl.html#{call.name}" for call in reference.nccl})
        self.where.update({h.name: h.name[:-2] + ".html" for h in reference.headers})
        self.files = {h.name[:-2] + ".html": h.name[:-2] for h in reference.headers}

    # ---- pieces ----

    def link(self, text, own=()):
        """Escaped text, in which each name but a page's own leads to its description."""
        def anchor(m):
            at = self.where.get(m.group())
            return f'<a href="{at}">{m.group()}</a>' if at and m.group() not in own else m.group()
        return re.sub(r"(?<![\w/-])(?:dcomm-[a-z]+\b|\w+\.h\b|(?:dcomm_|DCOMM_|nccl)\w+)(?!\w)", anchor,
                      html.escape(text, quote=False))

    def inline(self, text, own=(), variables=()):
        """A paragraph: names are links, `code` and parameters stand out."""
        text = re.sub(r"`([^`]+)`", r"<code>\1</code>", self.link(text, own))
        for name in variables:
            text = re.sub(r"(?<![\w.#>/-])(\*?%s)(?![\w(])(?![^<]*</(?:a|code)>)" % re.escape(name),
                          r"<var>\1</var>", text)
        return text

    def prose(self, comment, own=(), variables=()):
        out = []
        for kind, body in comment:
            if kind == "p":
                out.append(f"<p>{self.inline(body, own, variables)}</p>")
            elif kind == "list":
                out += ["<ul>"] + [f"<li>{self.inline(i, own, variables)}</li>" for i in body] + ["</ul>"]
            else:
                out.append(f"<pre>{self.link(textwrap.dedent(chr(10).join(body)), own)}</pre>")
        return out

    def markdown(self, text):
        """A cell of a page's table, or a line of it."""
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text)
        text = re.sub(r"\*\*([\w ]+)\*\*", r"<b>\1</b>", self.inline(text))
        return re.sub(r"\*(\w+)\*", r"<em>\1</em>", text)

    def fields(self, symbol):
        """A table of a struct's fields or an enum's values."""
        out, section = ["<table>"], ""
        for member in symbol.members:
            if member.section != section:
                section = member.section
                out.append(f'<tr><td class=group colspan=2>{self.inline(section)}</td></tr>')
            mark = f" id={member.names[0]}" if symbol.kind == "enum" else ""
            said = " ".join(self.inline(body) if kind == "p" else self.inline(" ".join(body))
                            for kind, body in member.comment)
            out.append(f"<tr{mark}><td>{self.link(member.text, member.names)}</td><td>{said}</td></tr>")
        return out + ["</table>"]

    def example(self, page):
        name = next(s.name for s in page.symbols if rest.uses(page.example.text, s.name))
        where = page.example.where
        at = self.anchor(page.example)
        source = f'<a href="examples.html#{at}">{where}</a>' if at else html.escape(where)
        lines = "\n".join(rest.excerpt(page.example.text, name))
        return [f"<details><summary>Example</summary><p>From {source}:</p>",
                f"<pre>{self.link(lines)}</pre></details>"]

    @staticmethod
    def anchor(example):
        """The place of a whole program in examples.html."""
        name = os.path.basename(example.where) if example.where.startswith("examples/") else ""
        return re.sub(r"\W", "-", name)

    @staticmethod
    def marks(row):
        """The names of a table's row, for links to lead to."""
        return "<br>".join(f"<span id={name}>{name}</span>" for name in row.names)

    def save(self, out, name, title, body, side=()):
        """Write a page: the headers on top, what is on this page at the side."""
        files = [("index.html", "dcomm"), ("cheatsheet.html", "cheatsheet")] + list(self.files.items()) + [
            ("nccl.html", "nccl"), ("tools.html", "tools"), ("environment.html", "environment"),
            ("examples.html", "examples")]
        here = {name: " class=here"}
        top = "".join(f'<a href="{file}"{here.get(file, "")}>{text}</a>\n' for file, text in files)
        aside = "<nav class=side>\n" + "\n".join(side) + "\n</nav>\n" if side else ""
        text = ("<!doctype html>\n<html lang=en>\n<meta charset=utf-8>\n"
                f"<title>{html.escape(title)}</title>\n"
                f'<meta name=viewport content="width=device-width">\n<link rel=stylesheet href="style.css">\n'
                f"<header>\n{top}</header>\n<div class=columns>\n{aside}<main>\n" + "\n".join(body) +
                "\n</main>\n</div>\n</html>\n")
        with open(os.path.join(out, name), "w", encoding="utf-8") as f:
            f.write(text)

    # ---- pages ----

    def symbol(self, page):
        """The entry of a function or a type."""
        own = [s.name for s in page.symbols]
        variables = sorted({p.name for s in page.symbols for p in s.parameters
                            if len(p.name) > 1 or "*" in p.type})
        out = [f"<h3 id={s.name}>{s.name}</h3>" for s in page.symbols[:1]]
        out += [f"<span id={s.name}></span>" for s in page.symbols[1:]]
        lines = [line for s in page.symbols if not s.members for line in man.declaration(s)]
        if lines:
            out.append(f"<pre>{self.link(chr(10).join(lines), own)}</pre>")
        out += self.prose(page.comment, own, variables)
        if page.arguments:
            out.append("<table class=arguments>")
            out += [f"<tr><td><var>{name}</var></td><td>{self.inline(text, own, variables)}</td></tr>"
                    for name, text in page.arguments] + ["</table>"]
        for symbol in page.symbols:
            out += self.fields(symbol) if symbol.members else []
        if page.errors:
            out += ["<h4>Errors</h4>"] + self.prose(page.errors, own, variables)
        if page.example and page.kind not in ("macro", "constant"):
            out += self.example(page)
        return out

    def constants(self, page):
        """A row of macros or constants."""
        lines = "<br>".join(f"<span id={s.name}>{self.link(s.text, [s.name])}</span>" for s in page.symbols)
        return [f"<tr><td>{lines}</td><td>{self.inline(page.comment[0][1])}</td></tr>"]

    def header(self, out, header):
        """A header's page."""
        comments = {s.title: s.comment for s in header.sections}
        said = header.comment[0][1]
        body = [f"<h1>{header.name}</h1>", f"<p>{self.inline(said[:1].upper() + said[1:])}</p>"]
        body += self.prose(header.comment[1:])
        side, section, called, table = [], "", False, False
        for page in header.pages:
            constant = page.kind in ("macro", "constant") and len(page.comment) == 1
            if table and (not constant or page.section != section):
                body.append("</table>")
                table = False
            if page.section != section:
                section = page.section
                body.append(f"<h2>{self.inline(section[:1].upper() + section[1:])}</h2>")
                body += self.prose(comments[section])
                side.append(f"<b>{html.escape(section)}</b>")
            if constant:
                body += ["<table>"] * (not table) + self.constants(page)
                table = True
            else:
                body += self.symbol(page)
            side += [f'<a href="#{s.name}">{s.name}</a>' for s in page.symbols]
            called = called or any(s.returns == "dcomm_status" for s in page.symbols)
        body += ["</table>"] * table
        if called:
            body.insert(2, f"<p>{self.link(STATUS)}</p>")
        self.save(out, header.name[:-2] + ".html", f"{header.name} - dcomm", body, side)

    def index(self, out):
        r = self.reference
        body = [f"<h1>dcomm {r.version}</h1>", INTRODUCTION, "<h2>Headers</h2>",
                "<p><code>dcomm.h</code> holds all of them.</p>", "<table class=short>"]
        for header in r.headers:
            brief = self.inline(sentence(header.comment))
            body.append(f"<tr><td>{self.link(header.name)}</td><td>{brief}</td></tr>")
        body += ['<tr><td><a href="nccl.html">dcomm_nccl.h</a></td>',
                 "<td>NCCL's calls, made by dcomm</td></tr>"]
        body += ["</table>", "<h2>Tools</h2>", "<table class=short>"]
        body += [f"<tr><td>{self.link(t.name)}</td><td>{self.inline(man.brief(t))}</td></tr>"
                 for t in r.tools]
        body += ["</table>", "<h2 id=macros>Macros that a program defines</h2>",
                 "<p>Wherever it includes <code>dcomm.h</code>, before it.</p>", "<table class=list>"]
        body += [f"<tr><td>{self.marks(row)}</td><td>{self.markdown(row.cells[-1])}</td></tr>"
                 for row in r.macros]
        body += ["</table>", "<h2 id=functions>All functions and types</h2>", "<table class=list>"]
        entries = [(s.name, p) for p in r.pages for s in p.symbols if p.kind not in ("macro", "constant")]
        for name, page in sorted(entries, key=lambda e: e[0].lower()):
            body.append(f"<tr><td>{self.link(name)}</td><td>{self.inline(page.brief, [name])}</td></tr>")
        constants = [s.name for p in r.pages for s in p.symbols if p.kind in ("macro", "constant")]
        constants += [name for p in r.pages for s in p.symbols if s.kind == "enum"
                      for m in s.members for name in m.names]
        body += ["</table>", "<h2 id=constants>All constants</h2>", "<p class=many>"]
        body += [f"{self.link(name)}" for name in sorted(constants)]
        body += ["</p>", "<h2 id=old>Old names</h2>", "<p>Inline functions of this version, unless "
                 "<code>DCOMM_NO_OLD_NAMES</code> is defined.</p>", "<table class=list>"]
        body += [f"<tr><td>{old}</td><td>{self.link(new)}</td></tr>" for old, new in r.old_names]
        self.save(out, "index.html", "dcomm", body + ["</table>"])

    def tools(self, out):
        body, side = ["<h1>Tools</h1>"], []
        for tool in self.reference.tools:
            side.append(f'<a href="#{tool.name}">{tool.name}</a>')
            usage = html.escape("\n".join(tool.usage))
            body += [f"<h2 id={tool.name}>{tool.name}</h2>", f"<pre>{usage}</pre>"]
            table = False
            for block in tool.blocks:
                if (block[0] == "option") != table:
                    table = not table
                    body.append("<table>" if table else "</table>")
                if table:
                    lines = "\n".join(rest.laid_out(block[2]))
                    said = f"<pre>{self.link(lines)}</pre>" if lines else self.link(block[2])
                    body.append(f"<tr><td>{html.escape(block[1])}</td><td>{said}</td></tr>")
                else:
                    body.append(f"<p>{self.link(block[1], [tool.name])}</p>")
            body += ["</table>"] * table
        self.save(out, "tools.html", "dcomm's tools", body, side)

    def nccl(self, out):
        body, side, section = ["<h1>dcomm_nccl.h</h1>"] + [f"<p>{self.link(man.NCCL)}</p>"], [], None
        for call in self.reference.nccl:
            if call.section != section:
                body += ["</table>"] * (section is not None)
                section = call.section
                body += [f"<h2>{self.inline(section[:1].upper() + section[1:])}</h2>", "<table>"]
                side.append(f"<b>{html.escape(section)}</b>")
            side.append(f'<a href="#{call.name}">{call.name}</a>')
            text = self.link(chr(10).join(man.synopsis(call.text)), [call.name])
            said = " ".join(self.markdown(t) for t in man.nccl_said(call))
            body.append(f"<tr id={call.name}><td><pre>{text}</pre></td><td>{said}</td></tr>")
        self.save(out, "nccl.html", "NCCL's calls", body + ["</table>"], side)

    def environment(self, out):
        body, side, section = ["<h1>Environment variables</h1>"], [], None
        body += self.page("docs/environment.md", stop="## ")
        for row in self.reference.variables:
            if row.section != section:
                body += ["</table>"] * (section is not None)
                section = row.section
                body += [f"<h2>{html.escape(section)}</h2>", "<table>"]
                side.append(f"<b>{html.escape(section)}</b>")
            side += [f'<a href="#{name}">{name}</a>' for name in row.names]
            values, default, text = (row.cells + ["", ""])[:3]
            said = self.markdown(text) or "see its script"
            said += f"<br>May be: {self.markdown(values)}" if values else ""
            said += f"<br>Default: {self.markdown(default)}" if default else ""
            body.append(f"<tr><td>{self.marks(row)}</td><td>{said}</td></tr>")
        self.save(out, "environment.html", "dcomm's environment variables", body + ["</table>"], side)

    def page(self, path, stop=None):
        """A page of docs/, as far as this reference needs Markdown: headings, tables, lists, code."""
        out, kind, block = [], None, []

        def close():
            nonlocal kind, block
            if kind == "code":
                out.append(f"<pre>{self.link(chr(10).join(block))}</pre>")
            elif kind == "table":
                cells = [[self.markdown(c.strip()) for c in line.strip("|").split(" | ")] for line in block]
                out.append("<table class=page>")
                for row in cells if any(cells[0]) else cells[2:]:
                    mark = "th" if row is cells[0] else "td"
                    if not set("".join(row)) <= set("-: |"):
                        out.append("<tr>" + "".join(f"<{mark}>{c}</{mark}>" for c in row) + "</tr>")
                out.append("</table>")
            elif kind == "list":
                out.append("<ul>" + "".join(f"<li>{self.markdown(i)}</li>\n" for i in block) + "</ul>")
            elif kind == "p":
                out.append(f"<p>{self.markdown(' '.join(block))}</p>")
            kind, block = None, []
        for line in read(path).split("\n")[1:]:
            if stop and line.startswith(stop):
                break
            if line.startswith("```"):
                opened = kind == "code"
                close()
                kind = None if opened else "code"
            elif kind == "code":
                block.append(line)
            elif not line or line.startswith("<!--"):
                close()
            elif line.startswith("#"):
                close()
                title = line.lstrip("# ")
                out.append(f"<h2 id={re.sub(chr(92) + 'W+', '-', title.lower())}>{self.markdown(title)}</h2>")
            else:
                now = "table" if line.startswith("|") else "list" if line.startswith("- ") else kind or "p"
                if now != kind:
                    close()
                    kind = now
                if now == "list" and not line.startswith("- "):
                    block[-1] += " " + line.strip()
                else:
                    block.append(line[2:] if now == "list" else line)
        close()
        return out

    def examples(self, out):
        used = sorted({page.example.where for page in self.reference.pages if page.example})
        body = ["<h1>Examples</h1>", "<p>Whole programs. Shorter examples stand with what they show.</p>"]
        side = []
        for example in sorted(self.reference.examples, key=lambda e: e.where):
            at = self.anchor(example)
            if at and example.where in used:
                body.append(f"<h2 id={at}>{example.where}</h2>")
                body.append(f"<pre>{self.link(example.text.rstrip())}</pre>")
                side.append(f'<a href="#{at}">{example.where}</a>')
        self.save(out, "examples.html", "dcomm's examples", body, side)


def write(reference, out):
    """Write all pages into OUT."""
    os.makedirs(out, exist_ok=True)
    writer = Writer(reference)
    with open(os.path.join(out, "style.css"), "w", encoding="utf-8") as f:
        f.write(CSS)
    writer.index(out)
    for header in reference.headers:
        writer.header(out, header)
    writer.nccl(out)
    writer.tools(out)
    writer.environment(out)
    writer.examples(out)
    title = read("docs/cheatsheet.md").split("\n")[0].lstrip("# ")
    writer.save(out, "cheatsheet.html", title, [f"<h1>{title}</h1>"] + writer.page("docs/cheatsheet.md"))
