#!/usr/bin/env bash
# fuzz.sh TARGET - run a fuzz target for DCOMM_FUZZ_SECONDS (default 3). Its corpus grows in the build
# directory, from the seeds in tests/fuzz/corpus; what crashes it is written beside the corpus.
set -u
name=$(basename "$1")
seeds=$(cd "$(dirname "$0")" && pwd)/../fuzz/corpus/$name
corpus=$(dirname "$1")/../corpus/$name
mkdir -p "$corpus"
[ -d "$seeds" ] || seeds=
exec "$1" -max_total_time="${DCOMM_FUZZ_SECONDS:-3}" -timeout=10 -rss_limit_mb=1024 -print_final_stats=1 \
    -artifact_prefix="$corpus." "$corpus" $seeds
