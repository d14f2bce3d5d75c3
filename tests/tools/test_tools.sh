#!/usr/bin/env bash
# test_tools.sh BUILD - what all tools have in common: --version, the width of --help, outputs that cannot be
# written, "-" for standard output, unknown names.
cd "$(dirname "$0")/../.." || exit 2
. tests/lib/lib.sh
build=${1:-build}
export DCOMM_TUNE=0 # to measure what things cost takes longer than what is tested
version=$(sed -n 's/^#define DCOMM_VERSION_STRING "\(.*\)"/\1/p' include/dcomm/base.h)
tools=(run perf crossover overlap moe topo plan reduce codec)
for tool in "${tools[@]}"; do
    if [ ! -x "$build/dcomm-$tool" ]; then
        skip "the tools" "dcomm-$tool is not built"
        finish
    fi
done

two=("$build/dcomm-run" -n 2 --bind none --)
# small TOOL ARGUMENTS...: the tool, with little to do.
small() {
    local tool=$1 run=() words=()
    shift
    case $tool in
    run) words=(-n 1 --bind none) && set -- "$@" true ;;
    perf) run=("${two[@]}") && words=(allreduce -b 4 -e 16 -n 2) ;;
    crossover) run=("${two[@]}") && words=(-b 4 -e 16 -f 4 -i 2 --algo ring,one_shot) ;;
    overlap) run=("${two[@]}") && words=(--bytes 4K --params 2 --steps 2 --buckets 0 --backward-ms 1) ;;
    moe) run=("${two[@]}") && words=(--tokens 4 --hidden 4 --steps 2 --rotate 0 --skew uniform) ;;
    topo) words=(--xml tests/data/topo/server.xml -n 4) ;;
    plan) words=(allreduce ring -n 4 --count 64) ;;
    reduce) words=(-b 8 -e 8 -n 2 -s 2) ;;
    codec) words=(--codec bf16 --input gaussian:n=1K --time 0) ;;
    esac
    timeout 60 "${run[@]}" "$build/dcomm-$tool" "${words[@]}" "$@"
}
help_fits() { # and speaks of the common options
    "$1" --help >"$scratch/help" || return 1
    ! grep -nE '.{101}' "$scratch/help" && grep -q -e --version "$scratch/help"
}
full() { # TOOL ARGUMENTS...: it ends with 2 and a sentence, its standard output being a full disk
    small "$@" 2>"$scratch/said" >/dev/full
    local status=$?
    cat "$scratch/said"
    [ $status -eq 2 ] && grep -q "dcomm-$1: cannot write standard output: " "$scratch/said"
}
closed() { # TOOL: the same with a pipe that nobody reads
    {
        sleep 0.2
        small "$1" 2>"$scratch/said"
        echo $? >"$scratch/status"
    } | true
    cat "$scratch/said"
    [ "$(cat "$scratch/status")" = 2 ] && grep -q "dcomm-$1: cannot write standard output: " "$scratch/said"
}
fits() { # TOOL ARGUMENTS...: nothing that it prints is wider than 100 columns
    small "$@" >"$scratch/printed" 2>&1 && ! grep -vE '^dcomm' "$scratch/printed" | grep -E '.{101}'
}
alone() { # TOOL: standard output has the JSON and nothing else
    small "$1" --json - 2>"$scratch/said" >"$scratch/json"
    local status=$?
    cat "$scratch/said" "$scratch/json"
    [ $status -eq 0 ] && python3 -m json.tool "$scratch/json" /dev/null
}

for tool in "${tools[@]}"; do
    program=$build/dcomm-$tool
    expect "dcomm-$tool: --version" 0 "^dcomm-$tool ${version//./\\.}$" "$program" --version
    check "dcomm-$tool: --help is not wider than 100 columns" help_fits "$program"
    expect "dcomm-$tool: an unknown option" 2 "^dcomm-$tool: unknown option.*--nosuch" "$program" --nosuch
    expect "dcomm-$tool: no such folder" 2 "^dcomm-$tool: cannot write /nosuch/file: No such file" \
        small "$tool" --json /nosuch/file
    expect "dcomm-$tool: a full disk" 2 "^dcomm-$tool: cannot write /dev/full: No space left" \
        small "$tool" --json /dev/full
    if [ "$tool" != run ]; then # which prints nothing itself
        check "dcomm-$tool: standard output on a full disk" full "$tool"
        check "dcomm-$tool: a pipe that nobody reads" closed "$tool"
    fi
    check "dcomm-$tool: no line is wider than 100 columns" fits "$tool"
    check "dcomm-$tool: JSON to standard output" alone "$tool"
done
check "dcomm-topo: nor is an explanation" fits topo --explain allreduce 1M --mem cuda
check "dcomm-plan: nor is one of a plan with hosts" fits plan --ranks-per-host 2 --rank 3 --chunk 16 \
    --inplace --lanes 2 --check
check "dcomm-codec: nor is one of a table with all columns" fits codec --time 1 --ranks 3 --steps 3 \
    --feedback classic --codec topk:k=0.01,values=bf16
check "dcomm-codec: nor is one of a sweep" fits codec --sweep --time 1 --ranks 2
check "dcomm-codec: nor is one of its list" fits codec --list
check "dcomm-reduce: nor is one of all types" fits reduce -d all
for option in "crossover --svg" "plan --svg" "codec --svg"; do
    read -r tool name <<<"$option"
    expect "dcomm-$tool: a picture to standard output" 0 "<svg " small "$tool" "$name" -
done
expect "dcomm-crossover: a tuning file to standard output" 0 "^source = " small crossover --save -
expect "dcomm-overlap: a trace to standard output" 0 "process_name" small overlap --trace -
expect "one output alone is standard output" 2 "only one output" small plan --json - --svg -
expect "a file is refused before anything is measured" 2 "cannot write" \
    timeout 20 "${two[@]}" "$build/dcomm-perf" allreduce -b 4 -e 4 -n 1000000000 --json /nosuch/file
expect "dcomm-reduce: an unknown type" 2 "-d f33: 'f33' is none of all, " "$build/dcomm-reduce" -d f33
expect "dcomm-moe: an unknown skew" 2 "no such skew: 'steep'" "$build/dcomm-moe" --skew uniform,steep
streams() { # the first row comes long before the last, and the tool ends when nobody reads on
    timeout 20 "${two[@]}" "$build/dcomm-perf" allreduce -b 4 -e 1M -f 1.01 --algo ring \
        2>"$scratch/said" | grep -m 1 -E '^ +4 '
    local status=("${PIPESTATUS[@]}")
    cat "$scratch/said"
    [ "${status[0]}" -eq 2 ] && [ "${status[1]}" -eq 0 ]
}
check "dcomm-perf: rows stream" streams
finish
