#!/usr/bin/env bash
# Folds and conversions give the same bytes whatever compiler, language level, flags and
# instruction set: compiles same_bytes.c in each way and compares its hash with the recorded one.
# A compiler that is not installed is skipped.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
expected=92e1372b6ad77eec
failed=0
ran=0

check() {
    local out
    command -v "$1" >/dev/null || { echo "skip: $* (not installed)"; return; }
    "$@" -o "$work/same_bytes" "$here/same_bytes.c" -lpthread || { failed=1; return; }
    out=$("$work/same_bytes") || { echo "FAIL: $* (did not run)"; failed=1; return; }
    ran=$((ran + 1))
    while read -r hash isa; do
        if [ "$hash" != "$expected" ]; then
            echo "FAIL: $*, $isa: $hash, expected $expected"
            failed=1
        fi
    done <<<"$out"
}

native=-march=native
[ "$(uname -m)" = x86_64 ] || native=-mcpu=native
check gcc -std=c11 -O0
check gcc -std=gnu17 -O2
check gcc -std=gnu17 -O3 $native -ffp-contract=fast
check clang -std=c11 -O0
check clang -std=gnu17 -O2 $native -ffp-contract=fast
check clang -std=gnu17 -O3
[ "$failed" = 0 ] && [ "$ran" -gt 0 ] && echo "same bytes in $ran builds"
