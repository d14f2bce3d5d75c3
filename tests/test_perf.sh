#!/bin/sh
# test_perf.sh - dcomm-perf: every operation is right, JSON fits its schema, exit codes are kept.
# usage: tests/test_perf.sh BUILD_DIR
set -u
build=${1:-build}
here=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

check() { # what, wanted status, command...
    what=$1 wanted=$2
    shift 2
    "$@" >"$work/out" 2>&1
    got=$?
    if [ "$got" -ne "$wanted" ]; then
        echo "FAIL $what: exit $got, wanted $wanted"
        sed 's/^/    /' "$work/out"
        failed=1
    fi
}

perf() { # ranks, arguments of dcomm-perf...
    ranks=$1
    shift
    timeout 120 "$build/dcomm-run" -n "$ranks" -- "$build/dcomm-perf" "$@"
}

for op in allreduce reduce_scatter allgather broadcast reduce gather scatter alltoall alltoallv \
          sendrecv barrier; do
    check "$op" 0 perf 3 $op -b 0 -e 70000 -f 17 -d float,int8 -n 2 -w 1 --json "$work/$op.json"
    check "$op schema" 0 python3 - "$here/docs/dcomm-perf.schema.json" "$work/$op.json" <<'PY'
import json, sys
import jsonschema
schema, document = (json.load(open(name)) for name in sys.argv[1:])
jsonschema.validate(document, schema)
assert document["results"], "no rows"
assert all(row["wrong"] == 0 for row in document["results"])
PY
done
for op in allreduce reduce_scatter allgather broadcast reduce gather scatter alltoall; do
    check "$op in place" 0 perf 3 $op -b 12 -e 70000 -f 17 -n 2 -w 1 --inplace
done
check "root 2" 0 perf 3 reduce -r 2 -b 400 -e 400 -n 2 -o all -d all
check "--help" 0 "$build/dcomm-perf" --help
check "no operation" 2 "$build/dcomm-perf"
check "unknown operation" 2 "$build/dcomm-perf" allreduced
check "bad size" 2 "$build/dcomm-perf" allreduce -b 4x
check "bad type" 2 "$build/dcomm-perf" allreduce -d float,flat
check "bad memory" 2 "$build/dcomm-perf" allreduce --mem floppy
check "bad algorithm" 2 perf 2 allreduce -b 4 -e 4 --algo no_such
check "in place alltoallv" 2 "$build/dcomm-perf" alltoallv --inplace
check "root out of range" 2 perf 2 broadcast -r 2

[ $failed -eq 0 ] && echo "PASS test_perf"
exit $failed
