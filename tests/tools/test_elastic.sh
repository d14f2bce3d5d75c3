#!/usr/bin/env bash
# test_elastic.sh BUILD - the trainer when ranks die: --elastic, --checkpoint, --resume.
cd "$(dirname "$0")/../.." || exit 2
. tests/lib/lib.sh
build=${1:-build}
export DCOMM_TUNE=0 # to measure what things cost takes longer than what is tested
export DCOMM_TIMEOUT=60
trainer=$build/examples/trainer
if [ ! -x "$trainer" ]; then
    skip "the trainer when ranks die" "not built"
    finish
fi
dir=$scratch/checkpoints

# train NAME RANKS OPTIONS...: a short run; its JSON goes to $scratch/NAME.json. Ranks that die are left
# alone, and do not count: it is the JSON that says if training has come to its end.
train() {
    local name=$1 ranks=$2
    shift 2
    rm -f "$scratch/$name.json"
    timeout 120 "$build/dcomm-run" -n "$ranks" --keep-going -- "$trainer" --steps 40 --batch 10 \
        --seq 32 --dim 32 --sample 0 --log-every 1000 --json "$scratch/$name.json" "$@"
    local status=$?
    [ $status -eq 0 ] || [ -s "$scratch/$name.json" ]
}

# is NAME EXPRESSION: a condition on the JSON of a run.
is() {
    python3 - "$scratch/$1.json" "$2" <<'PY'
import json, sys
run = json.load(open(sys.argv[1]))
print({key: run[key] for key in run if key != "loss"})
sys.exit(not eval(sys.argv[2], {}, run))
PY
}

# The same bits: of the weights after all steps.
same() {
    local sum
    sum=$(grep -o '"checksum":"[^"]*"' "$scratch/$1.json") && grep "$sum" "$scratch/$2.json"
}

# ---- how far final losses of undisturbed runs with other seeds lie apart ----

seeds=$(full && echo 1 2 3 4 5 6 7 8 || echo 1 2 3)
for seed in $seeds; do
    check "undisturbed, seed $seed" train "seed$seed" 2 --seed "$seed"
done
# within NAME: its final loss is not further from the mean of those than the furthest of them.
within() {
    python3 - "$scratch" "$1" $seeds <<'PY'
import json, sys
losses = [json.load(open(f"{sys.argv[1]}/seed{s}.json"))["final_loss"] for s in sys.argv[3:]]
loss = json.load(open(f"{sys.argv[1]}/{sys.argv[2]}.json"))["final_loss"]
mean = sum(losses) / len(losses)
spread = max(abs(x - mean) for x in losses)
print(f"final loss {loss:.4f}; of {len(losses)} seeds {mean:.4f}, at most {spread:.4f} from it")
sys.exit(not abs(loss - mean) <= spread)
PY
}

# ---- ranks die ----

# dies WORDS RANKS LOST OPTIONS...: those that are left end within the spread.
dies() {
    local words=$1 ranks=$2 lost=$3
    shift 3
    check "$words" train died "$ranks" --elastic "$@"
    check "$words: $lost lost, $((ranks - lost)) left" is died "lost == $lost and nranks == $((ranks - lost))"
    check "$words: its loss is within the spread" within died
    case " $* " in
    *" --codec "*) ;; # residuals have died, too
    *)
        check "$words: but for rounding, it is that of an undisturbed run" is died \
            "abs(final_loss - $first) < 1e-3"
        ;;
    esac
}
first=$(python3 -c "import json; print(json.load(open('$scratch/seed1.json'))['final_loss'])")
dies "2 ranks, 0 dies as it computes" 2 1 --die 5:0
dies "3 ranks, 2 dies in its buckets, then 0 before the update" 3 2 --die 20:2:sum --die 30:0:update \
    --buckets 30 --loss-scale 1024
dies "4 ranks, two die, one as the others recover" 4 2 --die 10:1:sum --die 10:0:recover
if full; then
    dies "3 ranks, 0 and 1 die before the update" 3 2 --die 0:1:update --die 30:0:update
    dies "4 ranks, three die in one step" 4 3 --die 25:1:sum --die 25:0:sum --die 25:3:compute
    dies "through a codec" 3 1 --die 25:1:sum --codec topk:k=0.3 --feedback classic
fi
if full; then
    for ranks in 2 3 4; do
        for place in compute sum agree update; do
            for rank in $(seq 0 $((ranks - 1))); do
                for step in 0 13 39; do
                    dies "$ranks ranks, $rank dies at step $step, $place" "$ranks" 1 --die $step:$rank:$place \
                        $([ $((step + rank)) -lt 14 ] && echo --buckets 30)
                done
            done
        done
    done
    for i in $(seq 8); do # algorithms that give the sum to some ranks before others
        for place in sum agree; do
            dies "binomial, $place, $i" 4 2 --algo binomial --die 10:2:$place --die 20:3:$place
            dies "tree, $place, $i" 4 2 --algo tree --die 10:2:$place --die 20:3:$place
        done
    done
    for rank in 0 1 2 3; do
        dies "$rank dies as the others recover" 4 2 --die 10:$(((rank + 1) % 4)):sum --die 10:$rank:recover
        dies "$rank dies as buckets are made anew" 4 2 --buckets 30 --die 10:$(((rank + 1) % 4)):sum \
            --die 10:$rank:recover
    done
fi

# killed NAME RANKS TIMES OPTIONS...: kill -9 from outside, of ranks at random, once training has begun.
killed() {
    local name=$1 ranks=$2 times=$3 said=$scratch/killed.said pids victim job
    shift 3
    train "$name" "$ranks" --elastic "$@" >"$said" 2>&1 &
    job=$!
    until grep -q "^step " "$said" || ! kill -0 $job; do
        sleep 0.01
    done
    for _ in $(seq "$times"); do
        sleep "0.$((RANDOM % 300 + 100))"
        mapfile -t pids < <(pgrep -f -- "^$trainer .*--json $scratch/$name.json")
        [ ${#pids[@]} -gt 1 ] || break
        victim=${pids[RANDOM % ${#pids[@]}]}
        kill -9 "$victim" && echo "killed $victim"
    done
    wait $job
    local status=$?
    cat "$said"
    return $status
}
for i in $(full && seq 20 || echo 1); do
    check "killed at any moment, $i" killed any 4 2 --steps 100
    check "killed at any moment, $i: all steps are done" is any "len(loss) == 100 and 0 < min(loss)"
done

# ---- ranks come back ----

# joins WORDS RANKS JOINED OPTIONS...: so many newcomers wait already when ranks die by the options.
joins() {
    local words=$1 ranks=$2 joined=$3 pids=() status=0
    shift 3
    export DCOMM_JOIN_FILE=$scratch/join
    rm -f "$DCOMM_JOIN_FILE"
    for _ in $(seq "$joined"); do
        DCOMM_JOIN=1 timeout 60 "$trainer" --steps 40 --batch 10 --seq 32 --dim 32 --sample 0 --elastic "$@" \
            >>"$scratch/joiners" 2>&1 &
        pids+=($!)
    done
    sleep 0.3
    check "$words" train back "$ranks" --elastic "$@"
    for pid in "${pids[@]}"; do
        wait "$pid" || status=$?
    done
    unset DCOMM_JOIN_FILE
    cp "$scratch/joiners" "$out"
    ok "$words: newcomers end well" $status
    check "$words: $joined joined" is back "joined == $joined and nranks == $ranks - lost + joined"
    check "$words: its loss is within the spread" within back
}
joins "3 ranks, 0 dies and one comes" 3 1 --die 3:0:sum --buckets 30 --loss-scale 1024
if full; then
    joins "2 ranks, 1 dies and comes back" 2 1 --die 10:1:compute
    joins "4 ranks, two die and come back" 4 2 --die 4:1:update --die 4:3:sum
    joins "with checkpoints" 3 1 --die 4:2:sum --checkpoint "$dir" --every 3
    rm -rf "$dir"
    joins "error feedback, in buckets" 3 1 --die 4:2:sum --buckets 30 --codec topk:k=0.3 --feedback classic
    joins "error feedback" 3 1 --die 4:2:sum --codec topk:k=0.3 --feedback classic
fi

# ---- checkpoints ----

save=(--deterministic --seed 3 --checkpoint "$dir" --every 5)
check "undisturbed" train whole 3 --deterministic --seed 3
# saved WORDS OPTIONS...: all ranks are killed by these options; --resume then ends with the same bits.
resumes() {
    local words=$1
    shift
    rm -rf "$dir"
    "$build/dcomm-run" -n 3 --timeout 60 -- "$trainer" --steps 40 --batch 10 --seq 32 --dim 32 \
        --sample 0 --log-every 1000 "${save[@]}" "$@" >"$scratch/said" 2>&1
    check "$words" test $? -gt 128
    check "$words: goes on" train again 3 "${save[@]}" --resume
    check "$words: with the same bits" same whole again
}
resumes "killed in a sum" --die 25:0:sum
check "it did go on from a checkpoint" is again "resumed == 20"
check "two generations are kept" test "$(cd "$dir" && echo *)" = "step-00000035 step-00000040"
resumes "killed while a file is written" --die 15:2:write
check "the one before was taken" is again "resumed == 10"
resumes "killed before the manifest has its name" --die 20:0:manifest
check "the one before was taken then, too" is again "resumed == 15"
if full; then
    resumes "killed while the first file is written" --die 5:0:write
    check "there was none to go on from" is again "resumed == 0"
    for step in 5 10 25 40; do
        for place in 0:write 1:write 2:write 0:manifest; do
            resumes "killed at step $step, $place" --die $step:$place
        done
    done
    for i in $(seq 10); do
        rm -rf "$dir"
        check "killed at any moment" bash -c "
            \"$build/dcomm-run\" -n 3 -- \"$trainer\" --steps 40 --batch 10 --seq 32 --dim 32 --sample 0 \
                ${save[*]} & sleep 0.$((RANDOM % 90 + 10)); kill -9 \$(pgrep -P \$!) \$!; wait; true"
        check "killed at any moment: goes on" train again 3 "${save[@]}" --resume
        check "killed at any moment: with the same bits" same whole again
    done
fi

# goes_on WORDS RANKS STEP OPTIONS...: the directory's checkpoints, as they are now.
goes_on() {
    local words=$1 ranks=$2 step=$3
    shift 3
    check "$words" train again "$ranks" "${save[@]}" --resume "$@"
    check "$words: from step $step" is again "resumed == $step and abs(final_loss - $loss) < 0.02"
}
loss=$(python3 -c "import json; print(json.load(open('$scratch/whole.json'))['final_loss'])")
stopped() { # after step 25, whose checkpoint is not complete, on 3 ranks
    rm -rf "$dir"
    "$build/dcomm-run" -n 3 --timeout 60 -- "$trainer" --steps 40 --batch 10 --seq 32 --dim 32 \
        --sample 0 "${save[@]}" --die 25:0 "$@" >"$scratch/said" 2>&1
}
stopped
cp -r "$dir" "$scratch/stopped"
for ranks in 2 4 $(full && echo 1 5); do
    rm -rf "$dir"
    cp -r "$scratch/stopped" "$dir"
    goes_on "on $ranks ranks in place of 3" "$ranks" 20
done
# keeps OPTIONS...: what these options keep from step to step is in a checkpoint.
keeps() {
    check "undisturbed, $*" train coded 3 --deterministic --seed 3 "$@"
    stopped "$@"
    cp -r "$dir" "$scratch/coded"
    check "goes on, $*" train again 3 "${save[@]}" --resume "$@"
    check "with the same bits, $*" same coded again
    check "from a checkpoint, $*" is again "resumed == 20"
    rm -rf "$dir"
    mv "$scratch/coded" "$dir"
    check "on 2 ranks, $*" train again 2 "${save[@]}" --resume "$@"
    check "from a checkpoint on 2 ranks, $*" is again "resumed == 20 and final_loss < 3.5"
}
keeps --codec topk:k=0.2 --feedback classic --buckets 30 --loss-scale 1024 --scale-interval 7
if full; then
    keeps --codec topk:k=0.2 --feedback dgc --warmup 20
    keeps --codec qsgd:bits=8 --feedback ef21 --buckets 30
    keeps --buckets 30 --loss-scale 1024 --scale-interval 7
    keeps --optimizer frozen --exact-steps 15 --codec topk:k=0.1 --feedback dgc --warmup 15
    keeps --optimizer frozen --exact-steps 30
fi

# Damage: the files of two generations, of steps 15 and 20.
rm -rf "$scratch/stopped/step-00000025"
# damaged WORDS STATUS SENTENCE COMMAND [OPTIONS...]: after the command in the directory, the trainer says so.
damaged() {
    local words=$1 status=$2 sentence=$3 command=$4
    shift 4
    rm -rf "$dir"
    cp -r "$scratch/stopped" "$dir"
    (cd "$dir" && eval "$command") >/dev/null 2>&1
    expect "$words" "$status" "$sentence" "$build/dcomm-run" -n 3 --timeout 60 -- "$trainer" --steps 40 \
        --batch 10 --seq 32 --dim 32 --sample 0 --json "$scratch/again.json" "${save[@]}" --resume "$@"
}
spoil() { # FILE BYTE
    printf x | dd of="$1" bs=1 seek="$2" conv=notrunc
}
new=step-00000020 old=step-00000015
damaged "a byte is wrong" 0 "$new/rank-1 is damaged" "spoil $new/rank-1 1000"
check "a byte is wrong: goes on from the older one" is again "resumed == 15"
check "a byte is wrong: with the same bits" same whole again
if full; then
    damaged "a file is missing" 0 "cannot read .*$new/rank-2: No such file" "rm $new/rank-2"
    damaged "a file is too short" 0 "$new/rank-0 is damaged" "truncate -s -4 $new/rank-0"
    damaged "a file is too long" 0 "$new/rank-0 is longer than" "truncate -s +4 $new/rank-0"
    damaged "a manifest is wrong" 0 "$new/manifest is damaged" "spoil $new/manifest 40"
    damaged "a manifest of nothing" 0 "$new/manifest is damaged" "truncate -s 0 $new/manifest"
    damaged "a manifest is missing" 0 "step 20 is not complete" "rm $new/manifest"
    check "goes on from the older one" is again "resumed == 15"
fi
both() {
    spoil $new/rank-1 1000
    rm $old/rank-2
}
damaged "both generations are bad" 2 "no checkpoint in $dir can be read" both
if full; then
    damaged "both generations are bad: the newer" 2 "$new/rank-1 is damaged" both
    damaged "both generations are bad: the older" 2 "cannot read .*$old/rank-2: No such file" both
fi
damaged "another model" 2 "of another model" true --layers 1
damaged "another codec" 3 "does not fit the options" true --codec qsgd:bits=4 --feedback classic
expect "a directory with checkpoints, without --resume" 1 "has a checkpoint of step 20" \
    train other 3 "${save[@]}"
expect "a directory that cannot be made" 0 "no checkpoint of step 5: cannot make /proc/none" \
    train other 2 --checkpoint /proc/none --every 5
expect "--resume of nothing" 2 "is for --checkpoint" "$trainer" --resume
expect "--elastic and times of buckets" 2 "does not go with --report" "$trainer" --elastic --buckets 9 --report
expect "--elastic and momenta of ranks" 2 "does not go with --optimizer frozen" "$trainer" --elastic \
    --optimizer frozen

# ---- both ----

rm -rf "$dir"
check "a rank dies, then all" test -n "$("$build/dcomm-run" -n 3 --keep-going --timeout 60 -- "$trainer" \
    --steps 40 --batch 10 --seq 32 --dim 32 --sample 0 "${save[@]}" --elastic --die 8:0:sum \
    --die 15:2:write --die 25:1:compute 2>&1)"
check "the last one has written on" test -e "$dir/step-00000020/rank-0" -a ! -e "$dir/step-00000020/rank-1"
expect "goes on with three ranks again" 0 "checkpoints held training up .* one in [0-9]+ s" \
    train again 3 "${save[@]}" --elastic --resume
check "with what one rank wrote" is again "resumed == 20 and abs(final_loss - $loss) < 0.02"
finish
