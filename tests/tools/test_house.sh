#!/usr/bin/env bash
# test_house.sh - tools/house.py on a small house of two rooms.
cd "$(dirname "$0")/../.." || exit 2
. tests/lib/lib.sh
house=$PWD/tools/house.py

# part FILE LINE...: a part of the small house, with an include guard.
part() {
    local guard file=include/dcomm/impl/$1
    guard=$(tr 'a-z/.' 'A-Z__' <<<"$1")
    shift
    { printf '#ifndef %s\n#define %s\n' "$guard" "$guard"; printf '%s\n' "$@" '#endif'; } >"$file"
}

# tree: a fresh small house, entered. The upper room uses the lower one; a door declares what is below.
tree() {
    rm -rf "$scratch/tree"
    mkdir -p "$scratch/tree"/{tools,docs/img,kernels,include/dcomm/impl/{low/deep,high}}
    cd "$scratch/tree" || exit 2
    cp "$house" tools/
    printf '# Two rooms.\n%s\n' 'public include/dcomm' 'kernels kernels' \
        'low include/dcomm/impl/low door.h' 'high include/dcomm/impl/high' >tools/house.rooms
    echo '# Exceptions.' >tools/house.allow
    printf '# low: what is low\n' >include/dcomm/impl/low/README.md
    part low/door.h 'static int dcommi_deep(int n);'
    part low/deep/deep.h '#include "../door.h"' 'static int dcommi_deep(int n)' '{' '    return n;' '}'
    part high/top.h '#include "../low/deep/deep.h"' 'static int dcommi_top(void)' '{' \
        '    return dcommi_deep(1);' '}'
    tools/house.py --svg docs/img/house.svg
}

tree
expect "a house in order" 0 '^3 parts in 4 rooms, 0 exceptions, 0 faults$' tools/house.py
expect "rooms and arrows are shown" 0 '^high: 1 files, 8 lines; includes of low 1$' tools/house.py --show
picture() {
    grep -q '>what is low<' docs/img/house.svg && grep -q 'stroke="#678"' docs/img/house.svg &&
        ! grep -q '#c00' docs/img/house.svg
}
check "rooms and arrows are drawn" picture

part low/up.h '#include "../high/top.h"'
expect "an include against the order" 1 'impl/low/up.h of low includes .*impl/high/top.h of high: move' \
    tools/house.py --quick
tools/house.py --svg docs/img/house.svg
check "it is drawn in red" grep -q '#c00' docs/img/house.svg
echo 'include low/up.h -> high/top.h' >>tools/house.allow
expect "an exception that is none" 1 'only the length of a file may be an exception' tools/house.py --quick
echo '# Exceptions.' >tools/house.allow
rm include/dcomm/impl/low/up.h
expect "the picture is stale" 1 'house.svg is stale' tools/house.py

tree
part high/borrow.h 'static int dcommi_deep(int n);'
expect "a function of another file is declared" 1 \
    'high/borrow.h is no door of low, and declares dcommi_deep of .*low/deep/deep.h: include' tools/house.py

tree
for _ in {1..600}; do echo; done >>include/dcomm/impl/high/top.h
expect "a long file" 1 'high/top.h has 608 lines: cut' tools/house.py
echo 'lines high/top.h 610' >>tools/house.allow
expect "a long file that is listed" 0 ' 1 exceptions, 0 faults' tools/house.py
tools/house.py --tighten
check "--tighten lowers its number" grep -qx 'lines high/top.h 608' tools/house.allow
echo >>include/dcomm/impl/high/top.h
expect "a long file that grows" 1 'has 609 lines, 608 in tools/house.allow: cut' tools/house.py
part high/top.h
expect "an exception that nothing needs" 1 "'lines high/top.h' is no longer needed" tools/house.py
tools/house.py --tighten
check "--tighten drops it" test "$(cat tools/house.allow)" = '# Exceptions.'
tools/house.py --svg docs/img/house.svg
expect "a house in order again" 0 ' 0 exceptions, 0 faults' tools/house.py

tree
part high/bad.h 'static dcommi_unknown x;'
part high/first.h '#include "bad.h"'
expect "a header that does not compile alone" 1 \
    'high/bad.h does not compile alone: .*dcommi_unknown' tools/house.py
expect "--quick compiles nothing" 0 ' 0 faults' tools/house.py --quick
part high/bad.h 'typedef int dcommi_unknown;' 'static dcommi_unknown x;'
expect "one that compiles by now" 0 ' 0 faults' tools/house.py

tree
part lost.h
expect "a part in no room" 1 'impl/lost.h is in no room: move it' tools/house.py
tree
part high/lost.h '#include "gone.h"'
expect "a missing part" 1 'high/lost.h includes .*high/gone.h, which is not a part' tools/house.py
finish
