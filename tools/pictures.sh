#!/usr/bin/env bash
# pictures.sh - draw the pictures of docs/algorithms.md from the plans themselves.
set -eu
cd "$(dirname "$0")/.."
mkdir -p docs/img
grep -o 'img/[a-z_0-9-]*\.svg' docs/algorithms.md | sort -u | while read -r path; do
    name=${path#img/}
    name=${name%.svg}
    build/dcomm-plan "${name%%-*}" "${name#*-}" -n 4 --count 64 --svg "docs/$path" >/dev/null
done
