#!/usr/bin/env bash
# test_soak.sh BUILD - a minute of kills, stops, cuts and newcomers at random; tools/soak.sh has more.
cd "$(dirname "$0")/../.." || exit 2
. tests/lib/lib.sh
soak=${1:-build}/tests/soak
seconds=60
full && seconds=600

expect "soak.sh --help" 0 "^ *tools/soak.sh \[--hours H" tools/soak.sh --help
expect "an unknown argument" 2 "soak: --nosuch; soak \[--seconds" "$soak" --nosuch
expect "$seconds s of trials" 0 "^0 hangs, 0 disagreements, 0 unrecovered, 0 wrong sums, 0 lost" \
    "$soak" --seconds $seconds --seed 1
finish
