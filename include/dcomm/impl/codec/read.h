/* read.h - read the input of codecs of thin matrices and of few values: count numbers that are not
 * finite, and with a residual store the sum first. Also check the f32 numbers of wires. */
#ifndef DCOMMI_CODEC_READ_H
#define DCOMMI_CODEC_READ_H

#include "codec.h"
#include "../../../../kernels/cpu/tally_pieces.h"

enum { DCOMMI_READ_BLOCK = DCOMMI_TALLY_ZEROS, DCOMMI_READ_LINE = 16 };

static void dcommi_read_one(dcommi_encoding *call, size_t i)
{
    bool adds = call->residual != NULL;
    float x = call->x[i], sum = adds ? x + call->residual[i] : x;
    if (dcommi_f32_nonfinite(x)) {
        dcommi_codec_nonfinite(call, i);
        sum = adds ? call->residual[i] : 0;
    }
    if (dcommi_f32_nonfinite(sum)) { /* the sum of two large numbers, or a residual's fault */
        call->report.clipped++;
        sum = dcommi_f32_bounded(sum);
    }
    if (adds) {
        call->next[i] = sum;
    }
}

/* Count numbers that are not finite. With a residual, store next = x + residual, where such
 * numbers count as 0. With a ledger, set its sums as if nothing were sent. */
static void dcommi_read_all(dcommi_encoding *call)
{
    const dcommi_codec_kernels *kernels = dcommi_codec_kernels_get();
    bool adds = call->residual != NULL;
    for (size_t i = 0, n; i < call->count; i += n) {
        size_t left = call->count - i;
        n = left >= DCOMMI_READ_BLOCK ? DCOMMI_READ_BLOCK : left & ~(size_t)(DCOMMI_READ_LINE - 1);
        if (n == 0 || kernels->measure(call->x + i, n, false) >= 0x7f800000u) {
            n = n == 0 ? left : n;
            for (size_t at = i; at < i + n; at++) {
                dcommi_read_one(call, at);
            }
        } else if (adds && kernels->add_measure(call->x + i, call->residual + i, call->next + i, n,
                                                false) >= 0x7f800000u) {
            for (size_t at = i; at < i + n; at++) {
                if (dcommi_f32_nonfinite(call->next[at])) { /* likewise */
                    call->report.clipped++;
                    call->next[at] = dcommi_f32_bounded(call->next[at]);
                }
            }
        }
        if (call->tally != NULL) { /* while they are in the cache */
            dcommi_tally_nothing(call->tally, i, adds ? call->next + i : NULL, n);
        }
    }
}

/* Only count the numbers that are not finite. */
static void dcommi_read_count(dcommi_encoding *call)
{
    dcommi_encoding plain = *call;
    plain.residual = NULL;
    plain.tally = NULL;
    dcommi_read_all(&plain);
    call->report = plain.report;
}

static dcomm_status dcommi_read_range(const dcomm_codec *codec)
{
    return dcommi_fail(
        DCOMM_ERR_RANGE,
        "%s: a number that is not finite, without nonfinite=pass: the sum of what was "
        "encoded is beyond f32",
        codec->ops->name);
}

/* Check n numbers of a wire, aligned or not: without nonfinite=pass they must be finite. Wires of
 * a linear codec may have been summed, so there the sum is out of range, not the wire corrupt. */
static dcomm_status dcommi_read_check(const dcomm_codec *codec, const void *values, size_t n)
{
    uint32_t odd = 0; /* the highest bit is set if a number is not finite */
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, (const char *)values + 4 * i, 4);
        odd |= (bits & 0x7fffffffu) + 0x00800000u;
    }
    if (odd >> 31 == 0 || codec->nonfinite == DCOMMI_NONFINITE_PASS) {
        return DCOMM_OK;
    }
    return dcommi_codec_has(codec, DCOMMI_CODEC_LINEAR)
               ? dcommi_read_range(codec)
               : dcommi_fail(DCOMM_ERR_CORRUPT,
                             "%s: a number that is not finite, without nonfinite=pass",
                             codec->ops->name);
}

#endif
