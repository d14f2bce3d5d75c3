/* fuzz_codec_fp8.c - any bytes as a wire of fp8. */
#define _GNU_SOURCE
#pragma GCC diagnostic ignored "-Wunused-function"
#include "decode.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const specs[] = {"fp8", "fp8:type=e5m2", "fp8:nonfinite=pass", NULL};
    decode_any(specs, data, size);
    return 0;
}
