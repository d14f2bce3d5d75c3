#!/usr/bin/env python3
"""inside.py SOURCE OUT DEPFILE - copy the parts to the folder OUT so that tests can link what is private.

In the copy no function is static, and its body counts only in the half of the implementation that has the
part's room: where DCOMMI_INSIDE is 1 or 2. Two halves compile side by side. A test that includes parts of the
copy sees declarations alone and compiles in a second. Inline functions, constants and what other macros than
DCOMMI_TWO_FORMS define stay as they are. OUT/declarations.h changes when a declaration does, OUT/parts.h when
anything does; what is compiled from the copy includes one of them."""
import hashlib
import os
import re
import sys

BEFORE_SIGNATURE = re.compile(r"^$|[;}]$|\*/$|^#")
ENDS = re.compile(r";\s*(/\*.*)?$")
KEPT = re.compile(r"\binline\b|\bstruct\b.*\{$|_TARGET\b|_INLINE\b|\bDCOMMI_LOOP\b|\bDCOMMI_LANE\b")


def is_constant(declarator):
    """`static const T x` and `T *const x` are, `static const T *x` is not."""
    return "const" in re.split(r"[\s*]+", declarator.rpartition("*")[2])


# These rooms, and the folds that cpu.h chooses from, take compilers half of the time.
SECOND = re.compile(r"/(impl/(comm|engine|train)/|kernels/cpu/cpu\.h)")


class Copy:
    def __init__(self, path, text):
        self.half = 2 if SECOND.search(path) else 1
        self.lines, self.out, self.seen = text.split("\n"), [f'#line 1 "{path}"'], []
        at = 0
        while at < len(self.lines):
            if self.lines[at] == "{":
                at = self.function(at)
            elif self.lines[at].startswith("static ") and not KEPT.search(self.lines[at]):
                at = self.static(at)
            elif self.lines[at].startswith("DCOMMI_TWO_FORMS("):  # public functions, which headers declare
                at = self.private(at, self.lines[at:self.lines.index("", at)])
            else:
                at = self.keep(at, at + 1)
        self.text = "\n".join(self.out)

    def keep(self, at, end):
        self.out += self.lines[at:end]
        self.seen += self.lines[at:end]
        return end

    def private(self, at, body, otherwise=""):
        """What only the implementation has; its lines begin at `at`."""
        end = at + len(body)
        self.out += [f"#if DCOMMI_INSIDE == {self.half}", f"#line {at + 1}", *body, "#else", otherwise,
                     "#endif", f"#line {end + 1}"]
        return end

    def function(self, at):
        """A body; its signature is at the end of what is out."""
        end = self.lines.index("}", at) + 1
        first = len(self.out)
        while not BEFORE_SIGNATURE.search(self.out[first - 1]):
            first -= 1
        if KEPT.search(" ".join(self.out[first:])):
            return self.keep(at, end)
        self.out[first] = re.sub(r"\bstatic ", "", self.out[first])
        return self.private(at, self.lines[at:end], ";")

    def static(self, at):
        """A declaration or definition that begins with `static`."""
        end = at
        while not ENDS.search(self.lines[end]):
            if self.lines[end + 1] == "{":  # function() sees to it
                return self.keep(at, end + 1)
            end += 1
        end += 1
        whole = self.lines[at:end]
        declarator = re.split(r"=|;", "\n".join(whole))[0].rstrip()
        whole[0] = whole[0].replace("static ", "", 1)
        if declarator.endswith(")") and "(*" not in declarator.partition(")")[0]:
            self.out += whole
            self.seen += whole
            return end
        if is_constant(declarator.partition("[")[0]):
            return self.keep(at, end)
        extern = declarator.replace("static", "extern", 1).replace("\n", " ") + ";"
        self.out.append(extern)
        self.seen.append(extern)
        return self.private(at, whole)


def write(path, text):
    """Leave a file alone that is so already: what was compiled from it is still good."""
    try:
        with open(path, encoding="utf-8") as file:
            if file.read() == text:
                return
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def main():
    source, to, depfile = sys.argv[1:]
    paths = sorted(os.path.join(folder, name) for top in ("include/dcomm", "kernels")
                   for folder, _, names in os.walk(os.path.join(source, top))
                   for name in names if name.endswith(".h"))
    seen, everything = hashlib.sha256(), hashlib.sha256()
    for path in paths:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        copy = Copy(path, text)
        write(os.path.join(to, os.path.relpath(path, source)), copy.text)
        seen.update("\n".join(copy.seen).encode())
        everything.update(copy.text.encode())
    write(os.path.join(to, "declarations.h"), f"/* {seen.hexdigest()} */\n")
    write(os.path.join(to, "parts.h"), f"/* {everything.hexdigest()} */\n")
    write(depfile, f"{to}/declarations.h {to}/parts.h: {' '.join(paths)}\n")


if __name__ == "__main__":
    main()
