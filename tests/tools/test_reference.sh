#!/usr/bin/env bash
# test_reference.sh BUILD - tools/reference.py: everything public is described, and its pages are in order.
cd "$(dirname "$0")/../.." || exit 2
. tests/lib/lib.sh
build=$(realpath "${1:-build}")
pages=$scratch/pages
export PYTHONDONTWRITEBYTECODE=1

# ---- everything is described ----
check "all that is public is described" tools/reference.py --check

# A copy of what the reference reads, with an omission of each kind.
tree=$scratch/tree
mkdir -p "$tree/tools"
cp tools/*.py "$tree/tools/"
cp -r include bench docs examples nccl README.md "$tree/"
plant() { # FILE PATTERN TEXT: TEXT above the first line that matches
    sed -i "0,/$2/s//$3\n&/" "$tree/include/dcomm/$1"
}
plant comm.h '^\/\* An ordered group' '\nDCOMM_API int dcomm_planted_function(void);\n'
plant comm.h '^\/\* An ordered group' '\ntypedef struct dcomm_planted_type dcomm_planted_type;\n'
plant comm.h '^\/\* An ordered group' '\n#define DCOMM_PLANTED_MACRO 1\n'
plant comm.h '^\/\* An ordered group' '\n\/* Do. *\/\nDCOMM_API int dcomm_planted_alone(void);\n'
plant comm.h '^DCOMM_API int dcomm_comm_size' 'DCOMM_API int dcomm_planted_neighbour(void);'
plant comm.h '^    dcomm_boot boot;' '    int planted_field;'
plant ledger.h '^    uint64_t clipped, nonfinite' '    double planted_below;'
plant comm.h '^    DCOMM_BOOT_ID = 1' '    DCOMM_PLANTED_VALUE = 7,'
plant nccl\/face.h '^DCOMM_NCCL_CALL(ncclResult_t, ncclMemFree' \
    'DCOMM_NCCL_CALL(ncclResult_t, ncclPlanted, (int one));'
plant impl/base/environment.h '^    {.name = "DCOMM_CMA"' '    {.name = "DCOMM_PLANTED_VARIABLE"},'
plant impl/base/environment.h '^#include' '#ifdef DCOMM_PLANTED_OPTION\n#endif'
plant ../../bench/run_options.h '^ *{"nnodes"' '{"planted-option", no_argument, NULL, TAG},'
plant ../../docs/cheatsheet.md '^## Tools' 'Call `dcomm_planted_name`.\n'
"$tree/tools/reference.py" --check >"$scratch/planted" 2>&1
ok "an omission is exit status 1" $(($? != 1))
missed() { # NAME PATTERN
    check "$1 is missed" grep -qE "$2" "$scratch/planted"
}
missed "a function without a comment" '^include/dcomm/comm.h: function dcomm_planted_function has no comment'
missed "a type without a comment" '^include/dcomm/comm.h: type dcomm_planted_type has no comment'
missed "a macro without a comment" '^include/dcomm/comm.h: macro DCOMM_PLANTED_MACRO has no comment'
missed "a field without a comment" '/comm.h: field planted_field of dcomm_comm_opts has no comment'
missed "a function that shares a comment with the next one" 'comm.h: .* above dcomm_planted_neighbour has other'
missed "and the next one" '^include/dcomm/comm.h: the comment above dcomm_comm_size has other declarations'
missed "a field below another one's comment" '/ledger.h: field planted_below of dcomm_ledger has no comment of its own or'
missed "a value without a comment" '/comm.h: value DCOMM_PLANTED_VALUE of dcomm_boot has no comment'
missed "a function without an example" 'no example calls dcomm_planted_alone'
missed "a variable that no table has" '^docs/environment.md: no row for .* DCOMM_PLANTED_VARIABLE'
missed "a macro that no table has" '^docs/cheatsheet.md: no row for the macro DCOMM_PLANTED_OPTION'
missed "a call of NCCL's that no table has" "^docs/from-nccl.md: no row for NCCL's call ncclPlanted"
missed "an option that no help text has" '^bench/dcomm-run: --help does not have the option --planted-option'
missed "a name that does not exist" '^docs/cheatsheet.md: there is no dcomm_planted_name'
check "nothing else is missed" grep -q ', 16 not described$' "$scratch/planted"

# ---- the pages ----
check "the pages are written" tools/reference.py "$pages"
again() {
    PYTHONHASHSEED=7 tools/reference.py "$pages.again" && diff -r "$pages" "$pages.again"
}
check "the same sources give the same pages" again
lint() {
    local said
    said=$(cd "$pages" && groff -man -ww -z man[13]/*.[13] 2>&1) # aliases name pages by man3/
    [ -z "$said" ] || { echo "$said"; return 1; }
}
if command -v groff >/dev/null; then
    check "groff has nothing against the man pages" lint
else
    skip "man pages" "groff is not installed"
fi
functions() { # every exported function has a man page and a place in the HTML
    local name status=0
    {
        grep -hoE '^DCOMM_API [^(]*\(' include/dcomm/*.h | grep -oE 'dcomm_\w+\($' | tr -d '('
        nm -g --defined-only "$build/libdcomm_one.a" 2>/dev/null | sed -n 's/.* T \(dcomm_\w*\)$/\1/p'
    } | sort -u >"$scratch/functions"
    [ "$(wc -l <"$scratch/functions")" -gt 200 ] || { echo "too few functions"; return 1; }
    while read -r name; do
        [ -s "$pages/man3/$name.3" ] && grep -q " id=$name>" "$pages"/html/*.html ||
            { echo "$name has no page"; status=1; }
    done <"$scratch/functions"
    return $status
}
check "every exported function has its page" functions
nccl() { # so has each function that the library exports
    local name status=0
    gcc -E -I include -I nccl/host include/dcomm_nccl.h | grep -oE '\bnccl[A-Z]\w+ ?\(' | tr -d ' (' | sort -u \
        >"$scratch/nccl"
    [ "$(wc -l <"$scratch/nccl")" -gt 35 ] || { echo "too few functions"; return 1; }
    while read -r name; do
        grep -q " id=$name>" "$pages/html/nccl.html" &&
            grep -q "\b$name(" "$pages/man3/dcomm-nccl.3" || { echo "$name is not listed"; status=1; }
    done <"$scratch/nccl"
    return $status
}
check "so has every call of NCCL's" nccl
tools() { # what is described is what the tools say; dcomm-plan's help ends with a list that it makes
    local tool text status=0
    for tool in "$build"/dcomm-*; do
        [ -x "$tool" ] && [ -f "$tool" ] || continue
        text=$(tools/reference.py --help-of "$(basename "$tool")")
        [[ $("$tool" --help 2>&1) == "$text"* ]] && [ -s "$pages/man1/$(basename "$tool").1" ] ||
            { echo "$tool says something else"; status=1; }
    done
    return $status
}
check "man pages say what the tools say" tools
links() {
    python3 - "$pages/html" <<'END'
import html.parser, os, sys
folder, faults, ids, links = sys.argv[1], [], set(), []
VOID = ("meta", "link", "br", "span")


class Page(html.parser.HTMLParser):
    def handle_starttag(self, tag, attrs):
        if tag not in VOID:
            self.open.append(tag)
        for key, value in attrs:
            at = (self.file, value)
            if key == "id":
                faults.extend([f"{self.file}: {value} twice"] if at in ids else [])
                ids.add(at)
            elif key == "href":
                links.append(at)
        if tag == "script":
            faults.append(f"{self.file}: a script")

    def handle_endtag(self, tag):
        if tag not in VOID and self.open.pop() != tag:
            faults.append(f"{self.file}:{self.getpos()[0]}: </{tag}>")


for file in sorted(os.listdir(folder)):
    if file.endswith(".html"):
        page = Page()
        page.file, page.open = file, []
        page.feed(open(os.path.join(folder, file), encoding="utf-8").read())
        faults.extend([f"{file}: {page.open} stay open"] if page.open else [])
for file, to in links:
    target, _, mark = to.partition("#")
    target = target or file
    if not os.path.exists(os.path.join(folder, target)) or (mark and (target, mark) not in ids):
        faults.append(f"{file}: a link to {to}")
print("\n".join(faults), len(links), "links")
sys.exit(bool(faults) or len(links) < 1000)
END
}
check "tags of the HTML pages match, and links lead somewhere" links
installed() {
    MESON_INSTALL_DESTDIR_PREFIX=$scratch/prefix tools/reference.py --install share/man share/doc/dcomm &&
        diff -r "$pages/man3" "$scratch/prefix/share/man/man3" &&
        diff -r "$pages/html" "$scratch/prefix/share/doc/dcomm"
}
check "meson installs the same pages" installed
finish
