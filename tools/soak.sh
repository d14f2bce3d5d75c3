#!/usr/bin/env bash
# soak.sh - ranks are killed, stopped, cut off and started again at random, on this host and on emulated
# ones, for hours. Every sum is checked and every decision compared; it ends with counts and percentiles,
# and with 1 if a rank hung, disagreed, did not recover, was wrong or was lost with another.
#
#   tools/soak.sh [--hours H | --seconds S] [--seed N] [--trial SEED] [--verbose]
#
# The default is 60 seconds. --trial repeats the trial of one seed, which messages name. Builds into
# build-soak. Without the right to make a network of its own, cuts are left out, which the end tells.
set -eu
cd "$(dirname "$0")/.."

args=()
while [ $# -gt 0 ]; do
    case $1 in
    --hours)
        [ $# -gt 1 ] || { echo "soak.sh: --hours needs a value" >&2; exit 2; }
        args+=(--seconds "$(awk -v h="$2" 'BEGIN { print h * 3600 }')")
        shift
        ;;
    -h | --help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;;
    *) args+=("$1") ;;
    esac
    shift
done

if [ -d /usr/lib/ccache ]; then
    export PATH=/usr/lib/ccache:$PATH CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! { [ -f build-soak/build.ninja ] || meson setup build-soak -Dtests=true -Doptimization=2; } >"$log" 2>&1 ||
    ! ninja -C build-soak tests/soak >>"$log" 2>&1; then
    cat "$log" >&2
    exit 1
fi
exec build-soak/tests/soak "${args[@]}"
