#!/usr/bin/env bash
# test_plan.sh BUILD - dcomm-plan: text, proof, picture, JSON, exit statuses.
cd "$(dirname "$0")/../.." || exit 2
. tests/lib/lib.sh
build=${1:-build}
if [ ! -x "$build/dcomm-plan" ]; then
    skip "dcomm-plan" "it is not built"
    finish
fi
plan=$build/dcomm-plan

# drawn PATTERN COUNT: so many lines of the picture match.
drawn() {
    local found
    found=$(grep -cE -e "$1" "$scratch/ring.svg")
    echo "$found lines match $1"
    [ "$found" -eq "$2" ]
}

# commented FILE ARGUMENTS: the comment of FILE that names this command shows what it prints, in lines of its own.
commented() {
    local file=$1 words=$scratch/words
    shift
    awk -v command="dcomm-plan $*" 'index($0, command) {on = 1; next}
        on && /^ \*     / {print substr($0, 3); seen = 1; next}
        seen {exit}' "$file" | tr -s ' \n' '\n' >"$words"
    [ -s "$words" ] && "$plan" "$@" | tr -s ' \n' '\n' | diff <(sed '/^$/d' "$words") -
}

expect "help lists the algorithms" 0 "all-reduce +hier" "$plan" --help
expect "a plan as text" 0 "recv_reduce OUT\[" "$plan" allreduce ring -n 4 --count 4096
for algo in ring tree; do
    check "as the header of $algo.h shows it" commented include/dcomm/impl/algo/$algo.h \
        allreduce $algo -n 4 --rank 1 --count 1000 --chunk 500
done
expect "another rank's" 0 "rank 3 of 4" "$plan" allreduce ring -n 4 --rank 3
expect "a proof" 0 "^right: 24 messages, 0 signals, longest chain 6," \
    "$plan" all-reduce ring -n 4 --count 4096 --check
expect "its JSON" 0 '"right":true.*"chain_messages":6' \
    "$plan" allreduce ring -n 4 --count 4096 --json -
check "a picture" "$plan" allreduce ring -n 4 --count 4096 --svg "$scratch/ring.svg"
check "with an arrow for each message" drawn '^<path d="M' 24
check "a long buffer's picture" "$plan" allreduce ring -n 4 --svg "$scratch/ring.svg"
check "shows one chunk" drawn '^<path d="M' 24
check "or each, if that is wanted" "$plan" allreduce ring -n 4 --all-chunks --svg "$scratch/ring.svg"
check "with all their messages" drawn '^<path d="M' 768
check "or those of this size" "$plan" allreduce ring -n 4 --chunk 512K --svg "$scratch/ring.svg"
check "which are two to a block" drawn '^<path d="M' 48
expect "the check is that of the real plans" 0 "^right: 768 messages" \
    "$plan" allreduce ring -n 4 --check --svg "$scratch/ring.svg"
check "it fits a narrow screen, and has a ground of its own" \
    drawn 'viewBox.*max-width:100%|<rect .*fill="#fff"/>$' 2
check "which is well-formed" python3 -c \
    'import sys, xml.dom.minidom; xml.dom.minidom.parse(sys.argv[1])' "$scratch/ring.svg"
expect "ranks on several hosts" 0 "^right: 24 messages" \
    "$plan" allreduce ring -n 4 --count 4096 --hosts 0,1,0,1 --check
expect "what they say to each other" 0 "^between hosts: 12 messages or reads, 49152 bytes" \
    "$plan" allreduce ring -n 4 --count 4096 --hosts 0,1,0,1 --check
expect "ranks dealt to hosts out of order" 0 "^right: " \
    "$plan" allreduce tree -n 8 --ranks-per-host 3 --shuffle --check
expect "a host too few" 2 "names 2 hosts for 4 ranks" "$plan" allreduce ring -n 4 --hosts 0,1
expect "no list of hosts" 2 "--hosts 0,x: it must be a whole number for each rank" "$plan" allreduce ring -n 2 --hosts 0,x
expect "no such operation" 2 "unknown operation: 'allreduced' is none of all-reduce, " "$plan" allreduced ring -n 4
expect "no such algorithm" 2 "rung" "$plan" allreduce rung -n 4
expect "too many ranks" 2 "-n 65: it must be a whole number from 1 to 64 " "$plan" allreduce ring -n 65
expect "a rank that is not there" 2 "below RANKS" "$plan" allreduce ring -n 4 --rank 4
finish
