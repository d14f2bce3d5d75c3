#!/usr/bin/env bash
# test_perf.sh BUILD - dcomm-perf: every operation is right, its JSON fits the schema, exit codes.
cd "$(dirname "$0")/../.." || exit 2
. tests/lib/lib.sh
build=${1:-build}
export DCOMM_TUNE=0 # to measure what things cost takes longer than what is tested
if [ ! -x "$build/dcomm-perf" ]; then
    skip "dcomm-perf" "not built"
    finish
fi

# perf RANKS ARGUMENTS...
perf() {
    local ranks=$1
    shift
    timeout 120 "$build/dcomm-run" -n "$ranks" -- "$build/dcomm-perf" "$@"
}

# schema FILE: it fits docs/dcomm-perf.schema.json, and every row in it is right.
schema() {
    python3 - docs/dcomm-perf.schema.json "$1" <<'PY'
import json, sys
import jsonschema
schema, document = (json.load(open(name)) for name in sys.argv[1:])
jsonschema.validate(document, schema)
assert document["results"], "no rows"
assert all(row["wrong"] == 0 for row in document["results"]), "wrong elements"
PY
}

for op in allreduce reduce_scatter allgather broadcast reduce gather scatter alltoall alltoallv \
          sendrecv barrier; do
    check "$op" perf 3 $op -b 0 -e 70000 -f 17 -d float,int8 -n 2 -w 1 --json "$scratch/$op.json"
    if python3 -c 'import jsonschema' 2>/dev/null; then
        check "$op: JSON" schema "$scratch/$op.json"
    else
        skip "$op: JSON" "python3-jsonschema is not installed"
    fi
done
for op in allreduce reduce_scatter allgather broadcast reduce gather scatter alltoall; do
    check "$op in place" perf 3 $op -b 12 -e 70000 -f 17 -n 2 -w 1 --inplace
done
for mem in huge registered; do
    check "memory: $mem" perf 2 allreduce -b 4 -e 300000 -f 17 -n 3 --mem $mem \
        --json "$scratch/$mem.json"
    check "memory: $mem in the JSON" grep -q "\"mem\": *\"$mem\"" "$scratch/$mem.json"
done
if [ -x "$build/nccl/dcomm-perf-host-cuda" ]; then
    for op in allreduce alltoall sendrecv reduce_scatter; do
        check "memory of a device that the host stands in for: $op" timeout 120 "$build/dcomm-run" -n 2 -- \
            "$build/nccl/dcomm-perf-host-cuda" $op -b 4 -e 3M -f 17 -n 3 --mem cuda
    done
    check "a device's, in place" timeout 120 "$build/dcomm-run" -n 2 -- \
        "$build/nccl/dcomm-perf-host-cuda" allgather -b 4 -e 3M -f 17 -n 3 --mem cuda --inplace
    check "memory of a device that peers open" timeout 120 "$build/dcomm-run" -n 3 -- \
        "$build/nccl/dcomm-perf-host-cuda" allreduce -b 4 -e 3M -f 17 -n 3 --mem cuda-shared
fi
expect "memory of a device, without CUDA" 3 "DCOMM_WITH_CUDA" perf 2 allreduce -b 4 -e 4 --mem cuda
check "every type and operator, another root" perf 3 reduce -r 2 -b 400 -e 400 -n 2 -o all -d all
check "buffers that take turns" perf 3 allreduce -b 100 -e 3M -f 30000 -n 5 --rotate 1M
check "buffers that take turns, in place" perf 3 allgather -b 120 -e 3M -f 300 -n 5 --rotate 1M --inplace
expect "memory on huge pages" 0 " 4194304 " perf 2 alltoall -b 4M -e 4M -n 2 --mem huge
expect "auto says what it chose, by what was measured" 0 " auto:[a-z]" env DCOMM_TUNE=1 \
    "$build/dcomm-run" -n 2 -- "$build/dcomm-perf" allreduce -b 4 -e 4 -n 2

expect "--help" 0 "^usage: dcomm-perf OP" "$build/dcomm-perf" --help
expect "no operation" 2 "give one OP" "$build/dcomm-perf"
expect "unknown operation" 2 "unknown OP: .allreduced. is none of allreduce, " "$build/dcomm-perf" allreduced
expect "bad size" 2 "-b 4x: it must be a whole number from 0 to " "$build/dcomm-perf" allreduce -b 4x
expect "bad type" 2 "float,flat" "$build/dcomm-perf" allreduce -d float,flat
expect "bad memory" 2 "floppy" "$build/dcomm-perf" allreduce --mem floppy
expect "unknown option" 2 "unknown option" "$build/dcomm-perf" allreduce --nosuch
expect "bad algorithm" 2 "--algo: .no_such. is none of hier," perf 2 allreduce -b 4 -e 4 --algo ring,no_such
expect "a codec that is none" 2 "--codec: " perf 2 allreduce -b 4 -e 4 --codec qsgd:bits=99
wide() { # the usual table has fewer columns than all, and no line is wider than 100
    perf 2 allreduce -b 4 -e 4 -n 2 --algo halving_doubling >"$scratch/table" 2>/dev/null || return 1
    cat "$scratch/table"
    ! grep -E '.{101}' "$scratch/table" && grep -q '^#  *bytes .* wrong$' "$scratch/table" &&
        perf 2 allreduce -b 4 -e 4 -n 2 --wide 2>/dev/null | grep -q ' wire(B)  *hash$'
}
check "all columns only with --wide" wide
busy() { # as many loops as there are processors
    local loops=() i status=0
    for ((i = 0; i < $(nproc); i++)); do
        (while :; do :; done) &
        loops+=($!)
    done
    perf 2 allreduce -b 4 -e 4 -n 5 --json "$scratch/busy.json" || status=1
    kill "${loops[@]}"
    return $status
}
expect "a busy machine is said" 0 "^# this machine was busy while it was measured: " busy
check "and in the JSON" grep -q '"busy":true' "$scratch/busy.json"
expect "in place alltoallv" 2 "inplace" "$build/dcomm-perf" alltoallv --inplace
expect "root out of range" 2 "not a rank" perf 2 broadcast -r 2
finish
