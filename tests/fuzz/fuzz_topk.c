/* fuzz_topk.c - any bytes as the wire of a sparse codec: refused, or elements of the right number.
 */
#define _GNU_SOURCE
#pragma GCC diagnostic ignored "-Wunused-function"
#include "decode.h"

enum { MOST = 1 << 17 };

static const char *const specs[] = {"topk:k=0.01,nonfinite=pass",
                                    "topk:k=0.5,values=f16",
                                    "topk:k=3,values=bf16",
                                    "threshold:k=0.02",
                                    "threshold:k=0.5",
                                    "threshold:k=0.1,values=bf16",
                                    "topk+qsgd:k=0.1,bits=4",
                                    "topk+qsgd:k=0.02,bits=2,bucket=256,nonfinite=pass"};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static float x[MOST], y[MOST];
    if (size < 4) {
        return 0;
    }
    /* Only one array in eight is long, because long arrays take long. */
    size_t most = data[3] >= 224 ? MOST : MOST / 16;
    size_t count = (data[1] + 256u * data[2] + 65536u * data[3]) % most;
    dcomm_codec *codec = NULL;
    if (dcomm_codec_create(specs[data[0] % (sizeof specs / sizeof *specs)], &codec) != DCOMM_OK) {
        abort();
    }
    size -= 4;
    uint8_t *wire = malloc(size > 0 ? size : 1); /* exact size: shows reads past the end */
    memcpy(wire, data + 4, size);
    for (int fix = 0; fix < 2; fix++) {
        decode_once(codec, wire, size, count, codec->nonfinite != DCOMMI_NONFINITE_PASS);
        memset(y, 0, count * sizeof *y);
        dcomm_status status = dcomm_decode(codec, wire, size, x, count);
        if (status != dcomm_decode_add(codec, wire, size, y, count)) {
            abort();
        }
        uint32_t kept = 0, set = 0;
        if (size >= 4) {
            memcpy(&kept, wire, 4);
        }
        for (size_t i = 0; status == DCOMM_OK && i < count; i++) {
            set += x[i] != 0;
            if (x[i] != y[i] && x[i] == x[i]) {
                abort();
            }
        }
        if (set > kept) {
            abort();
        }
        /* Pass the checks that random bytes fail: set the number of elements that fits. */
        for (uint32_t k = 0; k <= count && size >= 4; k++) {
            if (dcommi_topk_bytes(codec, count, k) == size) {
                memcpy(wire, &k, 4);
                break;
            }
        }
    }
    free(wire);
    dcomm_codec_destroy(&codec);
    return 0;
}
