#!/usr/bin/env python3
"""Check the house: which rooms the parts live in, and which way their includes go.

tools/house.rooms lists the rooms from the ground up. A part includes parts of its own room and of rooms
before it in that list. A function of another file is declared in a public header or in a door of its own
room, nowhere else. A file has at most 600 lines. A header of include/dcomm/impl compiles alone (by CC, gcc).

tools/house.allow lists the files that are longer today, with their lines. It only shrinks: a file that
needs no exception any more fails as well.
Without an option: check all of that; exit status 1 if something is wrong."""
import argparse
import collections
import concurrent.futures
import html
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PARTS = ("include/dcomm", "kernels")
IMPL = "include/dcomm/impl"
MOST_LINES = 600
PICTURE = "docs/img/house.svg"
ALLOWED = "tools/house.allow"
GROUND = ("public", "kernels", "base")  # rooms that all others use
SHIPPED = ("dcomm.h", "dcomm_nccl.h")  # generated, so no parts
ADVICE = {
    "include": "move the code, or let the lower room declare a table that the upper one fills in",
    "declare": "include the header that defines it, or declare it once, in a door of its room",
    "lines": "cut the file into two, one idea each",
    "alone": "include what the header uses",
}

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"', re.M)
NOISE = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)
DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.M)
ATTRIBUTE = re.compile(r"__attribute__\s*\(\(.*?\)\)", re.S)
FUNCTION = re.compile(r"^[\w\s*]*?[\s*](dcommi?_\w+)\s*\([^=]*\)\s*$")


class Refused(Exception):
    """The house cannot be read."""


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as f:
        return f.read()


def write(path, text):
    with open(os.path.join(ROOT, path), "w", encoding="utf-8") as f:
        f.write(text)


Room = collections.namedtuple("Room", "rank name folder doors")


def read_rooms():
    """The rooms by folder, from lines "name folder door..."; the ground comes first."""
    rooms = {}
    for line in read("tools/house.rooms").splitlines():
        words = line.split("#")[0].split()
        if words:
            if len(words) < 2 or words[1] in rooms:
                raise Refused(f"tools/house.rooms: not a new room: {line}")
            doors = tuple(f"{words[1]}/{door}" for door in words[2:])
            rooms[words[1]] = Room(len(rooms), words[0], words[1], doors)
    return rooms


def room_of(path, rooms):
    """The room of the nearest folder around a part. Between impl's rooms there is no place."""
    folder = os.path.dirname(path)
    while folder and folder not in rooms and folder != IMPL:
        folder = os.path.dirname(folder)
    if folder not in rooms:
        raise Refused(f"{path} is in no room: move it into one, or add a room to tools/house.rooms")
    return rooms[folder]


def functions(text):
    """The names of the library's functions that a text declares, and that it defines."""
    text = ATTRIBUTE.sub(" ", DIRECTIVE.sub("", NOISE.sub(" ", text)))
    declared, defined = set(), set()
    depth = start = 0
    for mark in re.finditer(r"[{};]", text):
        if mark.group() == "}":
            depth = max(0, depth - 1)
        elif depth == 0:
            chunk = text[start:mark.start()].strip()
            found = FUNCTION.match(chunk)
            if found and "typedef" not in chunk:
                (declared if mark.group() == ";" else defined).add(found.group(1))
            depth += mark.group() == "{" and chunk != "extern"  # extern "C" encloses functions
        elif mark.group() == "{":
            depth += 1
        if depth == 0:
            start = mark.end()
    return declared, defined


class Part:
    def __init__(self, path, rooms):
        text = read(path)
        self.path, self.room = path, room_of(path, rooms)
        self.lines = text.count("\n")
        self.declared, self.defined = functions(text)
        self.includes = [os.path.normpath(os.path.join(os.path.dirname(path), name))
                         for name in INCLUDE.findall(text) if name not in SHIPPED]
        first = re.search(r"^[ \t]*#[ \t]*include\b.*", text, re.M)
        self.first = self.includes[0] if first and INCLUDE.match(first.group()) else None

    @property
    def name(self):
        """The path as messages and the list of exceptions have it: short where it is of impl."""
        return self.path[len(IMPL) + 1:] if self.path.startswith(IMPL + "/") else self.path


def read_parts(rooms):
    parts = {}
    for top in PARTS:
        for folder, _, files in os.walk(os.path.join(ROOT, top)):
            for file in files:
                path = os.path.relpath(os.path.join(folder, file), ROOT)
                if file.endswith((".h", ".cuh")) and file != "all.h":  # the list of the parts
                    parts[path] = Part(path, rooms)
    for part in parts.values():
        for path in part.includes:
            if path not in parts:
                raise Refused(f"{part.path} includes {path}, which is not a part")
    return dict(sorted(parts.items()))


def alone(parts):
    """The headers of impl that do not compile alone, with the compiler's first error. A header that
    another one includes before anything else has been compiled alone when that one compiles."""
    compiler = os.environ.get("CC", "gcc").split()
    wanted = {p for p in parts if p.startswith(IMPL + "/")}
    shown = {parts[p].first for p in wanted}

    def error_of(path):
        done = subprocess.run(compiler + ["-fsyntax-only", "-w", "-x", "c", "-std=c11", "-D_GNU_SOURCE",
                                          "-Iinclude", path], cwd=ROOT, capture_output=True, text=True)
        said = [line for line in done.stderr.splitlines() if "error" in line] + [done.stderr.strip()]
        return said[0] if done.returncode else None

    failed, good, now = {}, set(), sorted(wanted - shown)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        while now:
            for path, error in zip(now, pool.map(error_of, now)):
                if error:
                    failed[path] = error
                while not error and path in wanted and path not in good:
                    good.add(path)
                    path = parts[path].first
            left = wanted - good - set(failed)
            now = sorted(left - {parts[p].first for p in left}) or sorted(left)
    return failed


def faults(parts, compiled=True):
    """What is against the rules, in sentences; and the files that are too long: their lines by name."""
    found, owners = [], collections.defaultdict(list)
    for part in parts.values():
        for name in part.defined:
            owners[name].append(part)
    for part in parts.values():
        for other in map(parts.get, part.includes):
            if other.room.rank > part.room.rank:
                found.append(f"{part.path} of {part.room.name} includes {other.path} of {other.room.name}: "
                             + ADVICE["include"])
        for name in sorted(part.declared) if part.room.rank > 0 else ():
            theirs = owners[name]
            if theirs and part not in theirs and not any(part.path in p.room.doors for p in theirs):
                path, room = theirs[0].path, theirs[0].room.name
                found.append(f"{part.path} is no door of {room}, and declares {name} of {path}: "
                             + ADVICE["declare"])
    for path, error in alone(parts).items() if compiled else ():
        found.append(f"{path} does not compile alone: {error}: " + ADVICE["alone"])
    return found, {part.name: part.lines for part in parts.values() if part.lines > MOST_LINES}


def read_allowed():
    """The lines that long files may have, by name: from lines "lines FILE 650"."""
    allowed = {}
    for line in read(ALLOWED).splitlines():
        words = line.split("#")[0].split()
        if words:
            if len(words) != 3 or words[0] != "lines" or not words[2].isdigit():
                raise Refused(f"{ALLOWED}: only the length of a file may be an exception, not: {line}")
            allowed[words[1]] = int(words[2])
    return allowed


def write_allowed(kept):
    head = [line for line in read(ALLOWED).splitlines() if line.startswith("#")]
    write(ALLOWED, "\n".join(head + [f"lines {name} {n}" for name, n in sorted(kept.items())]) + "\n")


def judge(long, allowed):
    """What is wrong with long files, and the exceptions that are still needed, as tight as they can be."""
    wrong = [f"{ALLOWED}: 'lines {name}' is no longer needed: run tools/house.py --tighten"
             for name in allowed if name not in long]
    for name, lines in long.items():
        if lines > allowed.get(name, 0):
            most = f", {allowed[name]} in {ALLOWED}" if name in allowed else ""
            wrong.append(f"{name} has {lines} lines{most}: {ADVICE['lines']}")
    return wrong, {name: min(lines, allowed[name]) for name, lines in long.items() if name in allowed}


def arrows(parts):
    """(room, room that it includes) -> how many includes, between different rooms."""
    count = collections.Counter()
    for part in parts.values():
        for other in map(parts.get, part.includes):
            if other.room is not part.room:
                count[part.room, other.room] += 1
    return count


def show(rooms, parts):
    count = arrows(parts)
    for room in reversed(rooms.values()):
        used = ", ".join(f"{b.name} {n}" + " (upward)" * (b.rank > a.rank)
                         for (a, b), n in sorted(count.items(), key=lambda c: c[0][1].rank) if a == room)
        inside = [p.lines for p in parts.values() if p.room == room]
        print(f"{room.name}: {len(inside)} files, {sum(inside)} lines; includes of {used or 'nothing'}")


def idea(room):
    """What the first line of a room's README says behind the name."""
    try:
        return read(f"{room.folder}/README.md").splitlines()[0].partition(": ")[2]
    except OSError:
        return ""


def draw(rooms, parts):
    """The rooms on their ground floor. At their right an arrow leads to each room that they include; those
    that lead upward are red, at the left. All rooms use the ground floor, which therefore has no arrows."""
    ground, above = ([r for r in rooms.values() if (r.name in GROUND) is low] for low in (True, False))
    left, wide, high, step = 70, 480, 30, 46
    top = {room: 20 + step * (len(above) - 1 - n) for n, room in enumerate(above)}
    boxes = [(left, top[room], wide, room, idea(room)) for room in above]
    boxes += [(left + n * wide // len(ground), 30 + step * len(above), wide // len(ground) - 8, room, "")
              for n, room in enumerate(ground)]
    out = [f'<rect x="{x}" y="{y}" width="{w}" height="{high}" rx="4" fill="#eef3f8" stroke="#456"/>'
           f'<text x="{x + 10}" y="{y + 20}" font-weight="bold">{room.name}</text>'
           f'<text x="{x + 110}" y="{y + 20}">{html.escape(words)}</text>' for x, y, w, room, words in boxes]
    drawn = collections.Counter()
    for a, b in sorted(arrows(parts), key=lambda pair: (pair[0].rank, -pair[1].rank)):
        if a in above and b in above:
            x, way, color = (left, -1, "#c00") if b.rank > a.rank else (left + wide, 1, "#678")
            drawn[a] += 1
            y, end = top[a] + 3 + drawn[a] * 5 % 24, top[b] + high // 2
            bow = x + way * (24 + abs(end - y) * 9 // 20)
            out.append(f'<path d="M{x} {y}C{bow} {y} {bow} {end} {x + way * 6} {end}" fill="none" '
                       f'stroke="{color}"/><path d="M{x} {end}l{way * 9} -4v8z" fill="{color}"/>')
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + wide + 220}" '
            f'height="{80 + step * len(above)}" font-family="sans-serif" font-size="13">\n'
            '<rect width="100%" height="100%" fill="white"/>\n' + "\n".join(out) + "\n</svg>\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="do not compile each header alone")
    parser.add_argument("--show", action="store_true", help="print the rooms and the arrows")
    parser.add_argument("--svg", metavar="FILE", help="draw the rooms and the arrows")
    parser.add_argument("--tighten", action="store_true", help="drop exceptions that are no longer needed")
    args = parser.parse_args()
    try:
        rooms = read_rooms()
        parts = read_parts(rooms)
        if args.show:
            return show(rooms, parts)
        if args.svg:
            return write(os.path.abspath(args.svg), draw(rooms, parts))
        wrong, long = faults(parts, not args.quick and not args.tighten)
        too_long, kept = judge(long, read_allowed())
        wrong += too_long
        if args.tighten:
            return write_allowed(kept)
        if read(PICTURE) != draw(rooms, parts):
            wrong.append(f"{PICTURE} is stale: run tools/house.py --svg {PICTURE}")
    except (OSError, Refused) as e:
        print(f"house: {e}", file=sys.stderr)
        return 1
    for sentence in wrong:
        print(f"house: {sentence}", file=sys.stderr)
    print(f"{len(parts)} parts in {len(rooms)} rooms, {len(kept)} exceptions, {len(wrong)} faults")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
