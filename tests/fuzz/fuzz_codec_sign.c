/* fuzz_codec_sign.c - any bytes as a wire of sign. */
#define _GNU_SOURCE
#pragma GCC diagnostic ignored "-Wunused-function"
#include "decode.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const specs[] = {"sign", "sign:bucket=1024", "sign:nonfinite=pass", NULL};
    decode_any(specs, data, size);
    return 0;
}
