/* fuzz_codec_qsgd.c - any bytes as a wire of qsgd and tern. */
#define _GNU_SOURCE
#pragma GCC diagnostic ignored "-Wunused-function"
#include "decode.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const specs[] = {"qsgd", "qsgd:bits=8",         "qsgd:bits=2", "qsgd:bits=1",
                                        "tern", "qsgd:nonfinite=pass", NULL};
    decode_any(specs, data, size);
    return 0;
}
