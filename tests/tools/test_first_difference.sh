#!/usr/bin/env bash
# test_first_difference.sh - tools/first-difference.py names the first step and tensor in which logs differ.
cd "$(dirname "$0")/../.." || exit 2
. tests/lib/lib.sh
tool=tools/first-difference.py

# log FILE: hashes of three steps among other lines.
log() {
    printf '%s\n' "step     5  loss 2.25" \
        "step     5  w1 00000000000000aa" "step     5  w2 00000000000000ab" \
        "step    10  w1 00000000000000ba" "step    10  w2 00000000000000bb" \
        "step    15  w1 00000000000000ca" "step    15  w2 00000000000000cb" "final loss 1.5" >"$1"
}
a=$scratch/a b=$scratch/b
log "$a"
log "$b"
expect "equal logs" 0 '^the same: 6 hashes of 3 steps, the last one 15; only in one log: 0' "$tool" "$a" "$b"
sed -i 's/bb$/bc/; s/ca$/cc/' "$b"
expect "the first tensor that differs" 1 \
    '^step 10: w2 differs: 00000000000000bb and 00000000000000bc; they are the same until step 5' \
    "$tool" "$a" "$b"
sed -i 's/aa$/ac/' "$b"
expect "the first step" 1 '^step 5: w1 differs: .* at the first hash' "$tool" "$a" "$b"
log "$b"
sed -i 's/bb$/bc/' "$b"
echo "step    10  w2 00000000000000bb" >>"$b"
expect "a step that was done again" 0 'the same: 6' "$tool" "$a" "$b"
sed -i '/step *15/d' "$b"
expect "a log that ends sooner" 0 'the last one 10; only in one log: 1 steps' "$tool" "$a" "$b"
echo "step    20  w1 0000000000000000" >"$b"
expect "nothing to compare" 2 'no step and name' "$tool" "$a" "$b"
expect "a log that is not there" 2 'No such file' "$tool" "$a" "$scratch/none"
expect "no logs" 2 'first-difference.py A B' "$tool"
expect "help" 0 'first-difference.py A B' "$tool" --help
finish
