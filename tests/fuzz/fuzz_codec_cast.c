/* fuzz_codec_cast.c - any bytes as a wire of f16 and bf16. */
#define _GNU_SOURCE
#pragma GCC diagnostic ignored "-Wunused-function"
#include "decode.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const specs[] = {"f16", "bf16", "f16:nonfinite=pass", "bf16:nonfinite=pass",
                                        NULL};
    decode_any(specs, data, size);
    return 0;
}
