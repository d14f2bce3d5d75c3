/* fuzz_lowrank.c - any bytes as the wire of randk or powersgd: refused for their length alone, and
 * decoded within bounds. */
#define _GNU_SOURCE
#pragma GCC diagnostic ignored "-Wunused-function"
#include "../../include/dcomm/impl/base_impl.h"
#include "../../include/dcomm/impl/api_codec.h"

enum { MOST = 1 << 12 };

static const char *const specs[] = {"randk:k=0.05", "randk:k=3,scale=none", "powersgd:rank=1",
                                    "powersgd:rank=3", "powersgd:rank=2,rows=5"};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static float y[MOST];
    if (size < 3) {
        return 0;
    }
    size_t count = (data[1] + 256u * data[2]) % MOST;
    dcomm_codec *codec = NULL;
    if (dcomm_codec_create(specs[data[0] % (sizeof specs / sizeof *specs)], &codec) != DCOMM_OK) {
        abort();
    }
    size_t need = dcomm_codec_max_bytes(codec, count);
    float *x = malloc(count > 0 ? count * sizeof *x : 1); /* exactly as long */
    for (int fix = 0; fix < 2; fix++) {
        size_t len = fix == 0 ? size - 3 : need;
        uint8_t *wire = calloc(1, len > 0 ? len : 1);
        memcpy(wire, data + 3, size - 3 < len ? size - 3 : len);
        memset(y, 0, sizeof y);
        dcomm_status wanted = len == need ? DCOMM_OK : DCOMM_ERR_CORRUPT;
        if (dcomm_decode(codec, wire, len, x, count) != wanted ||
            dcomm_decode_add(codec, wire, len, y, count) != wanted) {
            abort();
        }
        for (size_t i = 0; wanted == DCOMM_OK && i < count; i++) {
            if (x[i] != y[i] && x[i] == x[i]) {
                abort();
            }
        }
        free(wire);
    }
    free(x);
    dcomm_codec_destroy(&codec);
    return 0;
}
