/* fuzz_exchange.c - any bytes as a part of a sparse exchange and as samples: refused, or ascending
 * elements in range and regions in order. */
#define _GNU_SOURCE
#pragma GCC diagnostic ignored "-Wunused-function"
#include "dcomm/impl/base/base_impl.h"
#include "dcomm/impl/codec/api_codec.h"
#include "dcomm/impl/codec/exchange.h"

enum { MOST = 1 << 17, RANKS = 5 };

static const char *const specs[] = {"topk:k=0.01,nonfinite=pass", "topk:k=0.5,values=f16",
                                    "threshold:k=0.02,values=bf16", "topk:k=3"};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_part(const dcomm_codec *codec, const uint8_t *wire, size_t size, size_t count)
{
    dcommi_exchange_pairs p = {0};
    dcomm_status status = dcommi_exchange_read(codec, wire, size, count, 0, count / 2, &p);
    if (status != DCOMM_OK && status != DCOMM_ERR_CORRUPT) {
        abort();
    }
    for (size_t i = 0; status == DCOMM_OK && i < p.n; i++) {
        if (p.index[i] >= count || (i > 0 && p.index[i] <= p.index[i - 1])) {
            abort();
        }
    }
    dcommi_exchange_free(&p);
}

static void read_samples(const uint8_t *wire, size_t size, size_t count)
{
    static uint64_t keys[MOST];
    uint32_t begin[RANKS + 1];
    const void *src[RANKS];
    size_t len[RANKS], end[RANKS], m = size / 4 / RANKS;
    if (m < 2 || 2 * RANKS * (m - 1) > MOST) {
        return;
    }
    for (size_t r = 0; r < RANKS; r++) {
        src[r] = wire + 4 * m * r;
        len[r] = 4 * m;
    }
    dcomm_status status =
        dcommi_exchange_regions(src, len, RANKS, m - 1, count, UINT32_MAX, keys, end, begin);
    for (size_t d = 0; status == DCOMM_OK && d < RANKS; d++) {
        if (begin[d] > begin[d + 1] || begin[d + 1] > count) {
            abort();
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 4) {
        return 0;
    }
    size_t count = (data[1] + 256u * data[2] + 65536u * data[3]) % MOST;
    dcomm_codec *codec = NULL;
    if (dcomm_codec_create(specs[data[0] % (sizeof specs / sizeof *specs)], &codec) != DCOMM_OK) {
        abort();
    }
    size -= 4;
    uint8_t *wire = malloc(size > 0 ? size : 1); /* exact size: shows reads past the end */
    memcpy(wire, data + 4, size);
    read_samples(wire, size, count);
    read_part(codec, wire, size, count);
    for (uint32_t k = 0; k <= count && size >= 4; k++) { /* the number of elements that fits */
        if (dcommi_topk_bytes(codec, count, k) == size) {
            memcpy(wire, &k, 4);
            read_part(codec, wire, size, count);
            break;
        }
    }
    free(wire);
    dcomm_codec_destroy(&codec);
    return 0;
}
