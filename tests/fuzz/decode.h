/* decode.h - shared by the fuzz targets of decoders: any bytes as a wire, for a count that the
 * bytes choose or one whose wires are just as long. A decoder must stay within bounds, refuse or
 * give finite numbers, and do the same with every instruction set. */
#ifndef DCOMM_FUZZ_DECODE_H
#define DCOMM_FUZZ_DECODE_H

#define DCOMM_NO_COMM
#define DCOMM_IMPLEMENTATION
#include "dcomm/all.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { DECODE_MOST = 1 << 14 };

/* Return the largest count whose wires are no longer than `bytes`. */
static size_t decode_count(const dcomm_codec *codec, size_t bytes)
{
    size_t low = 0, high = DECODE_MOST;
    while (low < high) {
        size_t middle = (low + high + 1) / 2;
        if (dcomm_codec_max_bytes(codec, middle) <= bytes) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    return low;
}

/* Recode the sum of three copies of the wire: it is refused as the wire is, or has the same sum on
 * every instruction set. `first`, of capacity `most`, holds portable C's result. */
static void decode_recode(const dcomm_codec *codec, const uint8_t *wire, size_t bytes, size_t count,
                          dcomm_status decoded, bool portable, uint8_t *first, size_t most)
{
    const void *wires[3] = {wire, wire, wire};
    const size_t lengths[3] = {bytes, bytes, bytes};
    const dcomm_codec_key key = {.seed = 1};
    static size_t first_length;
    size_t length = 0;
    uint8_t *again = malloc(most + 1);
    dcomm_status status =
        again == NULL ? DCOMM_ERR_NO_MEMORY
                      : dcomm_recode(codec, wires, lengths, 3, 0.25f, NULL, NULL, count, &key,
                                     portable ? first : again, most, &length, NULL, NULL);
    /* DCOMM_ERR_RANGE: the sum is not finite. */
    if (status != DCOMM_ERR_NO_MEMORY && status != decoded &&
        !(decoded == DCOMM_OK && status == DCOMM_ERR_RANGE)) {
        abort();
    }
    if (portable) {
        first_length = length;
    } else if (status == DCOMM_OK &&
               (length != first_length || memcmp(again, first, length) != 0)) {
        abort();
    }
    free(again);
}

static void decode_once(const dcomm_codec *codec, const uint8_t *wire, size_t bytes, size_t count,
                        bool finite)
{
    float *x = malloc(count * sizeof *x + 1), *first = malloc(count * sizeof *x + 1);
    const size_t most = dcomm_codec_max_bytes(codec, count);
    uint8_t *recoded = malloc(most + 1);
    dcomm_status status = DCOMM_OK;
    for (int isa = 0;
         x != NULL && first != NULL && recoded != NULL && isa <= (int)dcommi_isa_best(); isa++) {
        dcommi_isa_force(isa);
        dcomm_status now = dcomm_decode(codec, wire, bytes, x, count);
        /* DCOMM_ERR_RANGE: a linear codec's wire may be a sum of wires that is beyond f32. */
        if (now != DCOMM_OK && now != DCOMM_ERR_CORRUPT &&
            !(now == DCOMM_ERR_RANGE && finite && dcommi_codec_has(codec, DCOMMI_CODEC_LINEAR))) {
            abort();
        }
        if (isa == 0) {
            status = now;
            memcpy(first, x, now == DCOMM_OK ? count * sizeof *x : 0);
        } else if (now != status) {
            abort();
        }
        for (size_t i = 0; now == DCOMM_OK && i < count; i++) {
            if ((finite && dcommi_f32_nonfinite(x[i])) || (x[i] == x[i] && x[i] != first[i])) {
                abort();
            }
        }
        const void *wires[3] = {wire, wire, wire};
        const size_t lengths[3] = {bytes, bytes, bytes};
        if (dcomm_decode_add(codec, wire, bytes, x, count) != status ||
            dcomm_decode_sum(codec, wires, lengths, 3, x, count) != status) {
            abort();
        }
        decode_recode(codec, wire, bytes, count, status, isa == 0, recoded, most);
    }
    free(x);
    free(first);
    free(recoded);
}

/* Decode with one of `specs`, which ends with NULL. The first byte chooses it, the next two bytes
 * the count. */
static void decode_any(const char *const *specs, const uint8_t *data, size_t size)
{
    size_t n = 0;
    while (specs[n] != NULL) {
        n++;
    }
    dcomm_codec *codec = NULL;
    if (size < 3 || dcomm_codec_create(specs[data[0] % n], &codec) != DCOMM_OK) {
        return;
    }
    bool finite = codec->nonfinite != DCOMMI_NONFINITE_PASS;
    size_t bytes = size - 3, fits = decode_count(codec, bytes);
    decode_once(codec, data + 3, bytes, (size_t)(data[1] | (data[2] & 0x3f) << 8), finite);
    size_t exact = dcomm_codec_max_bytes(codec, fits);
    uint8_t *wire = malloc(exact + 1);
    if (wire != NULL && exact <= bytes) {
        memcpy(wire, data + 3, exact); /* exact size: shows reads past the end */
        decode_once(codec, wire, exact, fits, finite);
        if (exact >= 4 && codec->bucketing.bucket != 0) { /* passes checks that random bytes fail */
            for (size_t at = fits == 0 ? exact
                                       : exact - 4 * ((fits - 1) / codec->bucketing.bucket + 1);
                 at + 4 <= exact; at += 4) {
                const float step = 0.5f;
                memcpy(wire + at, &step, 4);
            }
            decode_once(codec, wire, exact, fits, finite);
        }
    }
    free(wire);
    dcomm_codec_destroy(&codec);
}

#endif
