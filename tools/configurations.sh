# configurations.sh - sourced: ways to sum the gradients, a name and the trainer's options for it.
# Needs $steps, of the training. Error feedback goes with an optimizer whose update is linear in the
# gradients, Adam with its variance frozen after exact steps; docs/codecs.md says why.
exact_steps=$(((3 * steps + 9) / 10))
frozen="--optimizer frozen --exact-steps $exact_steps"
sparse="$frozen --feedback dgc --warmup $((4 * steps / 10))"
configurations=(
    "exact|"
    "bf16|--codec bf16"
    "qsgd 8 bit|--codec qsgd:bits=8"
    "qsgd 4 bit|--codec qsgd:bits=4"
    "qsgd 2 bit|--codec qsgd:bits=2"
    "top-k 1%, feedback|--codec topk:k=0.01 $sparse"
    "top-k 0.1%, feedback|--codec topk:k=0.001 $sparse"
    "top-k 1%, no feedback|--codec topk:k=0.01 $frozen"
    "sign, feedback|--codec sign --feedback classic $frozen"
    "PowerSGD rank 2, feedback|--codec powersgd:rank=2 --feedback classic"
    "PowerSGD rank 4, feedback|--codec powersgd:rank=4 --feedback classic"
)
