#!/usr/bin/env bash
# test_trainer.sh BUILD - the trainer: its gradients, and that N ranks do what one rank does.
cd "$(dirname "$0")/../.." || exit 2
. tests/lib/lib.sh
build=${1:-build}
. tests/lib/trainer.sh

check "gradients are the derivatives of the loss" "$trainer" --gradcheck
check "1 rank" train one 1
check "the loss falls" falls one
# 10 sequences on 3 or 4 ranks: uneven parts.
for n in 2 3 4; do
    check "$n ranks" train "$n" "$n"
    check "$n ranks end at the loss of one" same final_loss 1e-3 one "$n"
done
check "more ranks than sequences" train many 3 --batch 2
check "3 ranks, deterministic" train fixed 3 --deterministic
check "deterministic ends at the loss of one rank" same final_loss 1e-3 one fixed
check "the same in small chunks" env DCOMM_CHUNK=4096 "$build/dcomm-run" -n 3 -- "$trainer" \
    --steps 40 --batch 10 --seq 32 --dim 32 --sample 0 --deterministic --json "$scratch/chunks.json"
check "deterministic means the same bits" same checksum 0 fixed chunks
for kib in 1 1024 $(full && echo 30); do
    check "in buckets of $kib KiB" train buckets 3 --deterministic --buckets $kib
    check "the same bits in buckets of $kib KiB" same checksum 0 fixed buckets
done
check "a scaled loss" train scaled 3 --deterministic --buckets 30 --loss-scale 1024
check "a scale that is a power of two changes no bit" same checksum 0 fixed scaled
check "an infinite gradient is reported, and the scale halved" says \
    "step    11  skipped: gradient layer1.norm1[10] of rank 1 is inf; loss scale 512" \
    spoiled 3 --buckets 30 --loss-scale 1024 --spoil 10:1
check "a report says what was hidden" says "of the shorter" hidden 2 --buckets 30 --report
check "training recovers" falls spoiled
check "its loss is near that of a run without" same final_loss 0.05 fixed spoiled
check "buckets, a progress thread, more ranks than sequences" \
    env DCOMM_PROGRESS_THREAD=1 "$build/dcomm-run" -n 3 -- "$trainer" --steps 40 --batch 2 \
    --seq 32 --dim 32 --sample 0 --buckets 20 --trace "$scratch"
check "the trace is JSON" python3 -m json.tool "$scratch/rank2.json" /dev/null
for codec in qsgd:bits=8 topk:k=0.1 powersgd:rank=2; do
    check "buckets through $codec" train coded 3 --codec $codec --feedback classic --buckets 50
    check "the loss falls with buckets through $codec" falls coded
done
check "a file of one's own" train own 2 --text LICENSE --seq 8
for codec in bf16 sign randk:k=0.5 $(full && echo qsgd:bits=8 topk:k=0.1 powersgd:rank=2); do
    check "through $codec" train coded 3 --codec $codec --feedback classic
    check "the loss falls with $codec" falls coded
done
check "through qsgd, 8 bits, without feedback" train q8 3 --codec qsgd:bits=8
check "ends near the exact loss" same final_loss 0.03 one q8
check "with DGC" train dgc 2 --codec topk:k=0.05 --feedback dgc --warmup 20
check "with EF21" train ef21 2 --codec topk:k=0.2 --feedback ef21
frozen="--optimizer frozen --exact-steps 15"
check "a frozen variance, exactly" train frozen 3 $frozen
check "ends near Adam" same final_loss 0.03 one frozen
check "a frozen variance, signs" train signs 3 $frozen --codec sign --feedback classic
check "ends near it as well" same final_loss 0.1 one signs
check "a frozen variance, top-k" train sparse 2 $frozen --codec topk:k=0.05 --feedback dgc --warmup 15
check "the loss falls with it" falls sparse
export DCOMM_TUNE=1 # a codec is worth it by what the network was measured to do
check "codec auto" train auto 2 --codec auto
export DCOMM_TUNE=0
check "codec auto ends near the exact loss" same final_loss 0.03 one auto
expect "no such optimizer" 2 "not a value of this option" "$trainer" --optimizer rmsprop
expect "no such codec" 2 "no codec 'zip'" train zip 2 --codec zip
expect "feedback of nothing" 2 "feedback is for --codec" "$trainer" --feedback classic
check "gradients as files" train dump 2 --dump "$scratch" --dump-steps 2
check "of each rank and step" test -s "$scratch/rank1-step1.npy"
expect "no such directory" 2 "cannot write gradients to /proc/none" train dump 2 --dump /proc/none
expect "a text that is too short" 2 "are too few for --seq" "$trainer" --text LICENSE --seq 512
expect "no such text" 2 "No such file" "$trainer" --text /nonexistent
expect "unknown option" 2 "unknown option" "$trainer" --speed 11
expect "impossible width" 2 "multiple of 8 and of --heads" "$trainer" --dim 24 --heads 5
finish
