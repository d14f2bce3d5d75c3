#!/usr/bin/env bash
# test_slurm.sh BUILD - ranks that srun starts: a Slurm of two nodes on this machine, of its own.
cd "$(dirname "$0")/../.." || exit 2
. tests/lib/lib.sh
perf=${1:-build}/dcomm-perf
run=${1:-build}/dcomm-run
PATH=$PATH:/usr/sbin:/sbin
if [ ! -x "$perf" ]; then
    skip "Slurm" "dcomm-perf is not built"
    finish
fi
for tool in munged slurmctld slurmd srun sbatch; do
    if ! command -v $tool >/dev/null; then
        skip "Slurm" "$tool is not installed"
        finish
    fi
done

# Only what this script started, by the pid that each daemon wrote; what it leaves is not wanted.
stop() {
    local pids
    [ ! -e "$scratch/slurmctld.pid" ] || timeout 5 scancel -u "$user" 2>/dev/null
    pids=$(cat "$scratch"/slurmd.*.pid "$scratch"/slurmctld.pid "$scratch"/munged.pid 2>/dev/null)
    if [ -n "$pids" ]; then
        kill $pids 2>/dev/null
        for _ in $(seq 10); do
            kill -0 $pids 2>/dev/null || break
            sleep 0.1
        done
        kill -9 $pids 2>/dev/null
    fi
    rm -rf "$scratch"
}
trap stop EXIT

# A job that runs the tests is not the one that they look at.
unset ${!SLURM_@} ${!PMI@} 2>/dev/null
host=$(hostname -s)
user=$(id -un)
port=$((11000 + $$ % 4000 * 2))
export SLURM_CONF=$scratch/slurm.conf
chmod 755 "$scratch"
cat >"$SLURM_CONF" <<CONF
ClusterName=dcomm
SlurmctldHost=$host(127.0.0.1)
SlurmUser=$user
SlurmdUser=$user
AuthType=auth/munge
AuthInfo=socket=$scratch/munge.sock
CredType=cred/munge
SlurmctldPort=$port
StateSaveLocation=$scratch/state
SlurmdSpoolDir=$scratch/spool.%n
SlurmctldPidFile=$scratch/slurmctld.pid
SlurmdPidFile=$scratch/slurmd.%n.pid
SlurmctldLogFile=$scratch/slurmctld.log
SlurmdLogFile=$scratch/slurmd.%n.log
SelectType=select/linear
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SlurmdParameters=config_overrides
NodeName=n1 NodeHostname=$host NodeAddr=127.0.0.1 Port=$((port + 1)) CPUs=8
NodeName=n2 NodeHostname=$host NodeAddr=127.0.0.1 Port=$((port + 8001)) CPUs=8
PartitionName=all Nodes=n1,n2 Default=YES State=UP
CONF
mkdir "$scratch/state"
head -c 128 /dev/urandom >"$scratch/munge.key"
chmod 400 "$scratch/munge.key"
up() {
    munged --force --socket "$scratch/munge.sock" --key-file "$scratch/munge.key" \
        --pid-file "$scratch/munged.pid" --seed-file "$scratch/munge.seed" \
        --log-file "$scratch/munged.log" && slurmctld && slurmd -N n1 && slurmd -N n2 || return 1
    for _ in $(seq 100); do
        [ "$(sinfo -h -t idle -o %D)" = 2 ] && return
        sleep 0.1
    done
    sinfo
    tail -n 5 "$scratch"/*.log
    return 1
}
# A Slurm that does not start here (ports, rights, another version) says nothing about dcomm.
if ! up >"$out" 2>&1; then
    sed 's/^/# /' "$out"
    skip "Slurm" "its daemons do not start here"
    finish
fi

# step ARGUMENTS...: an all-reduce under srun.
step() {
    DCOMM_TIMEOUT=${DCOMM_TIMEOUT:-20} timeout 60 srun -Q --overcommit "$@" "$perf" allreduce -b 4 -e 4K -f 32 -n 2 -w 1
}

good="^ +4096 .* auto:"
for mpi in none pmi2 pmix; do
    if ! srun --mpi=list 2>&1 | grep -qw $mpi; then
        skip "--mpi=$mpi" "this Slurm has no such plugin"
        continue
    fi
    expect "--mpi=$mpi" 0 "$good" step -N 1 -n 4 --mpi=$mpi
    DCOMM_SECRET=hush expect "--mpi=$mpi, with a secret" 0 "$good" step -N 1 -n 4 --mpi=$mpi
done

export DCOMM_SECRET=hush
# The nodes' names are in no name service.
MASTER_ADDR=localhost expect "two nodes" 0 "$good" step -N 2 -n 4
DCOMM_TIMEOUT=2 expect "a node without an address" 3 "rendezvous within 2 s; last attempt: n1: " \
    step -N 2 -n 2
WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=$((port + 1000)) \
    expect "exports for PyTorch, without RANK" 0 "$good" step -N 1 -n 2
expect "dcomm-run in a task" 0 "$good" \
    timeout 60 srun -Q -N 1 -n 1 "$run" -n 2 "$perf" allreduce -b 4K -e 4K -n 2 -w 1

# batch: a script is one rank, its steps are several, also two at a time.
batch() {
    {
        echo '#!/bin/sh'
        echo "srun -n 2 --overlap '$perf' allreduce -b 4 -e 4 -n 2 &"
        echo "srun -n 2 --overlap '$perf' allreduce -b 4 -e 4 -n 2 &"
        echo "wait; '$perf' allreduce -b 4 -e 4 -n 2; touch '$scratch/batch.done'"
    } >"$scratch/batch"
    sbatch -Q -N 1 -n 4 -o "$scratch/batch.out" "$scratch/batch" || return 1
    for _ in $(seq 300); do
        [ ! -e "$scratch/batch.done" ] || break
        sleep 0.1
    done
    cat "$scratch/batch.out"
    [ "$(grep -c 'allreduce, 2 ranks' "$scratch/batch.out")" = 2 ] &&
        [ "$(grep -c 'allreduce, 1 rank' "$scratch/batch.out")" = 1 ]
}
check "a batch script and its steps" batch
finish
