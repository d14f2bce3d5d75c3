/* tally.h - the sums of a ledger, piece by piece: of what lies in the cache as it is encoded. */
#ifndef DCOMMI_TALLY_H
#define DCOMMI_TALLY_H

#include "../../../kernels/codec_isa.h"

#define DCOMMI_TALLY_PIECE ((size_t)1 << 16) /* elements that one loop takes */

/* All pieces of a call but the last are of whole vectors, so that element i is in lane i % 8. */
static void dcommi_tally_by(void (*loop)(dcommi_tally *, const float *, const float *, size_t),
                            dcommi_tally *t, const float *a, const float *b, size_t n)
{
    size_t whole = n / 16 * 16;
    for (size_t at = 0; at < whole; at += DCOMMI_TALLY_PIECE) {
        size_t left = whole - at;
        loop(t, a + at, b + at, left < DCOMMI_TALLY_PIECE ? left : DCOMMI_TALLY_PIECE);
    }
    if (whole < n) { /* zeros add nothing */
        float rest[2][16] = {{0}};
        memcpy(rest[0], a + whole, (n - whole) * sizeof(float));
        memcpy(rest[1], b + whole, (n - whole) * sizeof(float));
        loop(t, rest[0], rest[1], 16);
    }
}

/* Elements [at, at + n) of what is compared, of which y arrives. */
static void dcommi_tally_compare(dcommi_tally *t, size_t at, const float *y, size_t n)
{
    if (t->x != NULL) {
        dcommi_tally_by(dcommi_codec_kernels_get()->compare, t, t->x + at, y, n);
        t->seen -= (16 - n % 16) % 16; /* the zeros behind the last element */
    }
}

static void dcommi_tally_held(dcommi_tally *t, const float *sent, const float *next, size_t n)
{
    dcommi_tally_by(dcommi_codec_kernels_get()->held, t, sent, next, n);
}

#endif
