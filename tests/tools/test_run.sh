#!/usr/bin/env bash
# test_run.sh BUILD - dcomm-run: exit codes, ends of ranks, signals, binding, environment.
cd "$(dirname "$0")/../.." || exit 2
. tests/lib/lib.sh
run=${1:-build}/dcomm-run

# ---- command line ----
expect "--help" 0 "^usage: dcomm-run -n N" "$run" --help
expect "no -n" 2 "-n is missing" "$run" true
expect "-n 0" 2 "-n 0: it must be a whole number from 1 to " "$run" -n 0 true
expect "no program" 2 "program is missing" "$run" -n 1
expect "unknown --bind" 2 "--bind all: .all. is none of auto, slice, core, none" "$run" -n 1 --bind all true
expect "unknown option" 2 "unknown option.*: --nosuch" "$run" -n 1 --nosuch true
expect "--nnodes alone" 2 "needs --node-rank" "$run" -n 1 --nnodes 2 true
expect "--master without port" 2 "HOST:PORT" "$run" -n 1 --nnodes 2 --node-rank 0 --master a true
expect "--node-rank too large" 2 "less than --nnodes" \
    "$run" -n 1 --nnodes 2 --node-rank 2 --master a:1 true
expect "a program that is not there" 127 "cannot run nosuch-program: No such file" \
    "$run" -n 3 nosuch-program
expect "a program that is none" 126 "cannot run /etc/passwd: Permission" "$run" -n 3 /etc/passwd

# ---- how ranks end ----
check "all good" "$run" -n 3 true
expect "first failure is the exit status" 5 "rank 1 \(pid [0-9]+\) exited with status 5; ending the other 2" \
    timeout 10 "$run" -n 3 -- sh -c '[ $RANK = 1 ] && exit 5; exec sleep 60'
expect "death by a signal" 137 "rank 2 .* was killed by signal 9 \(Killed\)" \
    timeout 10 "$run" -n 3 -- sh -c '[ $RANK = 2 ] && kill -9 $$; exec sleep 60'
expect "SIGKILL for who ignores SIGTERM" 3 "outlived SIGTERM by 2 s" \
    timeout 10 "$run" -n 2 -- sh -c '[ $RANK = 0 ] && sleep 0.3 && exit 3; trap "" TERM; while :; do sleep 1; done'
expect "a stopped rank ends too" 4 "rank 0" \
    timeout 10 "$run" -n 2 -- sh -c '[ $RANK = 0 ] && sleep 0.3 && exit 4; kill -STOP $$'
expect "--timeout" 124 "not done after 0.3 s" timeout 10 "$run" -n 2 --timeout 0.3 sleep 60
expect "--keep-going lets others finish" 7 "finished" \
    timeout 10 "$run" -n 2 --keep-going -- sh -c '[ $RANK = 0 ] && exit 7; sleep 0.3; echo finished'


# ---- ranks that are started again ----
# Rank 1 dies once a communicator is whole (then the file is there), and joins in its second life.
again='[ -z "$DCOMM_JOIN" ] || { echo "rank $RANK joins by $DCOMM_JOIN_FILE"; exit 0; }
    [ $RANK = 1 ] && : >$DCOMM_JOIN_FILE && kill -9 $$; sleep 0.5'
expect "--restart" 0 "rank 1 joins by .*/dcomm-run-[a-zA-Z0-9]*/id" timeout 10 "$run" -n 3 --restart 1 -- sh -c "$again"
expect "--restart says so" 0 "rank 1 .* was killed by signal 9 \(Killed\); started again \(1 of 2\)$" \
    timeout 10 "$run" -n 3 --restart 2 -- sh -c "$again"
expect "--restart ends" 3 "started again \(2 of 2\).*rank 0 .* exited with status 3; ending the other 1" \
    sh -c 'timeout 10 "$0" -n 2 --restart 2 -- sh -c "[ \$RANK = 1 ] && exec sleep 60; exit 3" 2>&1 | tr "\n" " "; exit 3' "$run"
expect "--restart, but others are done" 4 "rank 1 .* exited with status 4$" \
    timeout 10 "$run" -n 2 --restart 2 -- sh -c '[ $RANK = 0 ] && exit 0; sleep 0.5; exit 4'
expect "--restart in the results" 0 '"rank":1,"exit_status":0,"signal":null,"time_s":[0-9.]*,"restarts":1' \
    timeout 10 "$run" -n 3 --restart 1 --json - -- sh -c "$again"
expect "--restart on several machines" 2 "needs DCOMM_JOIN_FILE" \
    "$run" -n 1 --restart 1 --nnodes 2 --node-rank 0 --master a:1 true
leaves_nothing() {
    TMPDIR=$scratch timeout 10 "$run" -n 2 --restart 1 -- sh -c 'touch $DCOMM_JOIN_FILE $DCOMM_JOIN_FILE.7' &&
        ! ls -d "$scratch"/dcomm-run-* 2>/dev/null
}
check "--restart leaves no file" leaves_nothing
restarted() { # OPTIONS: a rank that was killed is a rank again
    DCOMM_IFACE=lo timeout 60 "$run" -n 3 --restart 1 "$@" -- "$scratch/restarted"
}
check "a program that is restarted" gcc -std=c11 -D_GNU_SOURCE -O0 -I include -o "$scratch/restarted" \
    tests/tools/restarted.c "$(dirname "$run")/libdcomm_one.a" -lucp -lucs -luct -lhwloc -lm -lpthread -ldl
expect "a rank that was started again joins" 0 "2 of 3: the sum is 3" restarted
expect "and on another host" 0 "2 of 3: the sum is 3" restarted --host-id-every 1
# No communicator is whole yet, so nobody would let it join.
for where in creation start; do
    expect "killed before its $where is over" 0 "2 of 3: the sum is 3" \
        env DIES_ONCE="$scratch/died_in_$where" DIES_IN=$where DCOMM_IFACE=lo timeout 15 \
        "$run" -n 3 --restart 1 -- "$scratch/restarted"
done
expect "all ranks are started again" 0 "rank 1 .*; no rank can be joined: all are started again \(1 of 1\)$" \
    env DIES_ONCE="$scratch/died" DIES_IN=creation DCOMM_IFACE=lo timeout 15 \
    "$run" -n 3 --restart 1 -- "$scratch/restarted"
expect "the last rank has failed" 0 "all are started again \(1 of 1\)$" timeout 10 "$run" -n 1 --restart 1 -- sh -c \
    '[ -n "${DCOMM_JOIN:-}" ] || [ -e '"$scratch/once"' ] && exit; : >$DCOMM_JOIN_FILE; : >'"$scratch/once"'; exit 1'

grandchildren() {
    timeout 10 "$run" -n 2 -- sh -c '[ $RANK = 0 ] && sleep 0.3 && exit 6; sleep 7654.'$$' & wait'
    [ $? -eq 6 ] && sleep 0.1 && ! pgrep -f "sleep 7654.$$"
}
check "what a rank started ends with it" grandchildren

killed_launcher() {
    "$run" -n 2 sleep 7655.$$ &
    local pid=$! tries
    for tries in $(seq 50); do
        [ "$(pgrep -fc "^sleep 7655.$$")" = 2 ] && break
        sleep 0.1
    done
    [ "$(pgrep -fc "^sleep 7655.$$")" = 2 ] || return 1
    kill -9 $pid
    for tries in $(seq 50); do
        pgrep -f "^sleep 7655.$$" >/dev/null || return 0
        sleep 0.1
    done
    return 1
}
check "ranks do not outlive the launcher" killed_launcher

# signalled SIGNAL: ranks that note the signal and exit with 0.
signalled() {
    local flag=$scratch/$1 status
    "$run" -n 2 -- sh -c 'trap "touch '"$flag"'.$RANK; exit 0" '"$1"'; touch '"$flag"'.up.$RANK; while :; do sleep 0.05; done' &
    local pid=$! tries
    for tries in $(seq 100); do
        [ -e "$flag.up.0" ] && [ -e "$flag.up.1" ] && break
        sleep 0.05
    done
    kill -"$1" $pid
    wait $pid
    status=$?
    echo "exit status $status"
    [ -e "$flag.0" ] && [ -e "$flag.1" ] && [ $status -eq 0 ]
}
check "SIGTERM is passed on" signalled TERM
check "SIGHUP is passed on" signalled HUP
# A background job of a script ignores SIGINT, and its children inherit that; python resets it.
interrupted() {
    python3 - "$run" <<'END'
import signal, subprocess, sys, time
p = subprocess.Popen([sys.argv[1], "-n", "2", "sleep", "60"],
                     preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
time.sleep(0.5)
p.send_signal(signal.SIGINT)
sys.exit(p.wait(10) != 130)
END
}
check "SIGINT is passed on" interrupted

# ---- environment ----
expect "torchrun's variables" 0 "^2 of 3, 2 of 3 here, at 127.0.0.1$" \
    "$run" -n 3 -- sh -c 'echo $RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE here, at $MASTER_ADDR'
expect "several machines" 0 "^5 of 6, 1 of 2 here, at ::1 29500 s$" \
    env DCOMM_SECRET=s "$run" -n 2 --nnodes 3 --node-rank 2 --master '[::1]:29500' -- \
    sh -c 'echo $RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE here, at $MASTER_ADDR $MASTER_PORT $DCOMM_SECRET'
expect "ranks that alternate between machines" 0 "^\[5\] 5 of 6$" \
    env DCOMM_SECRET=s "$run" -n 2 --tag-output --rank-order cyclic --nnodes 3 --node-rank 2 \
    --master h:1 -- sh -c 'echo $RANK of $WORLD_SIZE'
expect "unknown --rank-order" 2 "--rank-order any: .any. is none of block, cyclic" "$run" -n 1 --rank-order any true
expect "several machines without a secret" 0 "will not authenticate" \
    env -u DCOMM_SECRET -u DCOMM_SECRET_FILE "$run" -n 1 --nnodes 2 --node-rank 0 --master h:1 true

same_and_fresh() {
    local i
    for i in 1 2; do
        DCOMM_SECRET=old DCOMM_SECRET_FILE=/old "$run" -n 3 -- \
            sh -c 'echo $DCOMM_SECRET $DCOMM_SECRET_FILE $MASTER_PORT $DCOMM_PORT $DCOMM_JOB' | sort -u
    done >"$scratch/secrets"
    cat "$scratch/secrets"
    [ "$(sort -u "$scratch/secrets" | grep -cE '^[0-9a-f]{32} [0-9]+ [0-9]+ [0-9a-f]{16}$')" = 2 ] &&
        [ "$(wc -l <"$scratch/secrets")" = 2 ]
}
check "one secret and one job a run, fresh ones each time" same_and_fresh

host_ids() {
    "$run" -n 5 --host-id-every 2 -- sh -c 'echo $RANK $DCOMM_HOSTID' | sort >"$scratch/ids"
    cat "$scratch/ids"
    [ "$(cut -d' ' -f2 "$scratch/ids" | sed 's/.*-//' | tr '\n' ' ')" = "0 0 1 1 2 " ] &&
        [ "$(cut -d' ' -f2 "$scratch/ids" | sed 's/-[0-9]*$//' | sort -u | wc -l)" = 1 ]
}
check "--host-id-every" host_ids

# ---- binding ----
allowed() {
    sed -n 's/^Cpus_allowed_list:\s*//p' /proc/self/status
}
cpus=$(nproc)
masks() { # rank and mask of each rank
    "$run" "$@" -- sh -c 'echo $RANK $(sed -n "s/^Cpus_allowed_list:\s*//p" /proc/self/status)' | sort -n
}
bound() { # every rank has a CPU, and together they have no more than this process
    masks "$@" | tee "$scratch/masks"
    [ "$(awk 'NF == 2' "$scratch/masks" | wc -l)" = "$2" ]
}
check "--bind slice" bound -n 2 --bind slice
check "--bind core" bound -n 2 --bind core
round_robin() {
    bound -n $((cpus + 1)) --bind slice || return 1
    [ "$(grep -cE ' [0-9]+$' "$scratch/masks")" = $((cpus + 1)) ] &&
        [ "$(cut -d' ' -f2 "$scratch/masks" | sort -u | wc -l)" = "$cpus" ]
}
check "more ranks than cores share them round robin" round_robin
unbound() {
    [ "$(masks -n 2 --bind none | cut -d' ' -f2 | sort -u)" = "$(allowed)" ]
}
check "--bind none" unbound
crowded() {
    [ "$(masks -n $((cpus + 1)) 2>"$scratch/said" | cut -d' ' -f2 | sort -u)" = "$(allowed)" ] &&
        [ "$(grep -c "not bound to cores: $((cpus + 1)) ranks share" "$scratch/said")" = 1 ]
}
check "more ranks than cores are not bound, and one line says so" crowded
busy() {
    local pid status=0
    (while :; do :; done) &
    pid=$!
    [ "$(masks -n 1 2>"$scratch/said" | cut -d' ' -f2)" = "$(allowed)" ] &&
        grep -q "not bound to cores: other programs use [0-9.]* of the" "$scratch/said" || status=1
    kill $pid
    wait $pid 2>/dev/null
    cat "$scratch/said"
    return $status
}
check "ranks are not bound where others use a core" busy
within() {
    local one
    one=$(allowed | sed 's/[-,].*//')
    [ "$(taskset -c "$one" "$run" -n 2 --bind slice -- sh -c 'sed -n "s/^Cpus_allowed_list:\s*//p" /proc/self/status' | sort -u)" = "$one" ]
}
check "stays within the launcher's own cores" within
alone() {
    [ "$(masks -n 1 | cut -d' ' -f2)" = "$(allowed)" ]
}
check "one rank gets all cores" alone

# ---- output ----
pipes() { # a rank that writes to nobody dies of it, as it does without dcomm-run
    "$run" -n 1 --bind none -- sh -c 'grep SigIgn: /proc/self/status' | grep -qE '[02468ace][0-9a-f]{3}$'
}
check "ranks do not inherit an ignored SIGPIPE" pipes
expect "--tag-output" 0 "^\[1\] a line without end$" \
    "$run" -n 2 --tag-output -- printf 'a line without end'
long_output() {
    "$run" -n 2 --bind none --tag-output -- sh -c 'seq 20000; seq 20000 >&2' >"$scratch/o" 2>"$scratch/e"
    [ "$(wc -l <"$scratch/o")" = 40000 ] && [ "$(wc -l <"$scratch/e")" = 40000 ] &&
        [ "$(grep -c '^\[0\] 20000$' "$scratch/e")" = 1 ] && ! grep -vqE '^\[[01]\] [0-9]+$' "$scratch/o"
}
check "--tag-output keeps every line whole" long_output
stdin_of_rank_0() {
    [ "$(echo word | "$run" -n 3 -- sh -c 'read -r w; echo "$RANK:$w"' | sort | tr '\n' ' ')" = "0:word 1: 2: " ]
}
check "rank 0 alone reads standard input" stdin_of_rank_0
how_it_ended() {
    "$run" -n 2 --json "$scratch/j" -- sh -c 'test $RANK = 0 || kill -9 $$; sleep 9' 2>/dev/null
    [ $? = 137 ] && python3 - "$scratch/j" <<'END'
import json, sys
j = json.load(open(sys.argv[1]))
assert j["schema"] == 1 and j["status"] == 137
assert [(r["rank"], r["exit_status"], r["signal"]) for r in j["ranks"]] == [(0, None, 15), (1, None, 9)]
assert all(0 <= r["time_s"] < 5 for r in j["ranks"])
END
}
check "--json says how each rank ended" how_it_ended
json_alone() { # of --json -: what ranks print is on standard error
    [ "$("$run" -n 2 --bind none --json - echo word 2>"$scratch/said" |
        python3 -c 'import json, sys; print(json.load(sys.stdin)["status"])')" = 0 ] &&
        [ "$(grep -c '^word$' "$scratch/said")" = 2 ]
}
check "--json - is standard output, which has nothing else" json_alone
finish
