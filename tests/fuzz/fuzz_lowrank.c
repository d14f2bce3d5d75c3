/* fuzz_lowrank.c - any bytes as the wire of randk or powersgd. */
#define _GNU_SOURCE
#pragma GCC diagnostic ignored "-Wunused-function"
#include "decode.h"

static const char *const specs[] = {"randk:k=0.05",           "randk:k=3,scale=none,nonfinite=pass",
                                    "powersgd:rank=1",        "powersgd:rank=3,nonfinite=pass",
                                    "powersgd:rank=2,rows=5", NULL};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    decode_any(specs, data, size);
    return 0;
}
