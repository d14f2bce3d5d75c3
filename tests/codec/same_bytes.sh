#!/usr/bin/env bash
# Folds and conversions, and what codecs write, are the same bytes whatever compiler, language level,
# flags and instruction set: compiles same_bytes.c and codec_bytes.c in each way and compares their
# hashes with the recorded ones. A compiler that is not installed is skipped. The everyday run takes the
# ways that differ most; with DCOMM_TEST_FULL=1 it takes all, and each instruction set encodes 10^8 numbers
# (some minutes).
set -eu
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
source=same_bytes.c
expected=92e1372b6ad77eec
arguments=()
builds=0

# one NUMBER COMPILER FLAGS...: what it finds, into a file of its own.
one() {
    local program=$work/$1 out hash isa
    shift
    command -v "$1" >/dev/null || { echo "# skipped: $source, $* (not installed)"; return; }
    "$@" -o "$program" "$here/$source" -lm -lpthread ||
        { echo "not ok - $source, $* (does not compile)"; return; }
    out=$("$program" "${arguments[@]}") || { echo "not ok - $source, $*: $out"; return; }
    while read -r hash isa; do
        if [ "$hash" = "$expected" ]; then
            echo "ok - $source, $*, $isa"
        else
            echo "not ok - $source, $*, $isa: $hash, expected $expected"
        fi
    done <<<"$out"
}

check() { # two at once: most of it is compiling
    [ "$(jobs -pr | wc -l)" -lt 2 ] || wait -n
    builds=$((builds + 1))
    one "build$builds" "$@" >"$work/said.$builds" 2>&1 &
}

native=-march=native
[ "$(uname -m)" = x86_64 ] || native=-mcpu=native
full=
[ "${DCOMM_TEST_FULL:-0}" != 1 ] || full=1
# Everyday, each compiler optimizes one of the two sources, with contraction.
check clang -std=gnu17 -O2 $native -ffp-contract=fast
if [ $full ]; then
    check gcc -std=c11 -O0
    check gcc -std=gnu17 -O3 $native -ffp-contract=fast
    check gcc -std=gnu17 -O2
    check clang -std=c11 -O0
    check clang -std=gnu17 -O3
fi
source=codec_bytes.c
expected=a874eec69a0b14fe
check gcc -std=gnu17 -O1 $native -ffp-contract=fast
if [ $full ]; then
    check clang -std=gnu17 -O2 $native -ffp-contract=fast
    check gcc -std=c11 -O1
    check gcc -std=gnu17 -O3 $native -ffp-contract=fast
    arguments=(100000000)
    expected=a8d9a2a1def6245c
    check gcc -std=gnu17 -O2
fi
wait
cat "$work"/said.*
! grep -q '^not ok' "$work"/said.*
