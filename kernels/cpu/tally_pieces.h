/* tally_pieces.h - take the sums of a ledger piece by piece, while a piece is in the cache. */
#ifndef DCOMMI_TALLY_PIECES_H
#define DCOMMI_TALLY_PIECES_H

#include "codec_isa.h"

#include <math.h>
#include <string.h>

#define DCOMMI_TALLY_PIECE ((size_t)1 << 16) /* elements that one loop takes */

/* Run `loop` over n elements, in pieces. Every piece of a call but the last must be whole vectors,
 * so that element i is in lane i % 8. */
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

/* Compare elements [at, at + n) of the input with y, their decoded values. */
static void dcommi_tally_compare(dcommi_tally *t, size_t at, const float *y, size_t n)
{
    if (t->x != NULL) {
        dcommi_tally_by(dcommi_codec_kernels_get()->compare, t, t->x + at, y, n);
        t->seen -= (16 - n % 16) % 16; /* do not count the zeros behind the last element */
    }
}

static void dcommi_tally_held(dcommi_tally *t, const float *sent, const float *next, size_t n)
{
    dcommi_tally_by(dcommi_codec_kernels_get()->held, t, sent, next, n);
}

/* ---- for codecs that send some elements: sums as if nothing were sent, then corrections ---- */

#define DCOMMI_TALLY_ZEROS 1024

/* Add elements [at, at + n) as if nothing of them were sent; n <= DCOMMI_TALLY_ZEROS. With
 * feedback (e is not NULL), all of e is held back. */
static void dcommi_tally_nothing(dcommi_tally *t, size_t at, const float *e, size_t n)
{
    static const float zeros[DCOMMI_TALLY_ZEROS];
    dcommi_tally_compare(t, at, zeros, n);
    if (e != NULL) {
        dcommi_tally_held(t, zeros, e, n);
    }
}

/* Correct the sums: element `index` is sent as y. */
static void dcommi_tally_sent(dcommi_tally *t, size_t index, float y)
{
    const size_t lane = index % DCOMMI_LEDGER_LANES;
    if (t->x != NULL) {
        const float a = t->x[index];
        const double x = (double)a, e = (double)(y - a), sign = a < 0 ? -1 : a > 0 ? 1 : 0;
        t->sum[DCOMMI_LEDGER_YY][lane] += (double)y * (double)y;
        t->sum[DCOMMI_LEDGER_XY][lane] += x * (double)y;
        t->sum[DCOMMI_LEDGER_EE][lane] -= x * x;
        t->sum[DCOMMI_LEDGER_EE][lane] += e * e;
        t->sum[DCOMMI_LEDGER_SIGNED][lane] += sign * e + fabs(x);
    }
}

/* Correct the sums: not all of e is held back, only `next`. e is y + next up to rounding. */
static void dcommi_tally_left(dcommi_tally *t, size_t index, float e, float y, float next)
{
    const size_t lane = index % DCOMMI_LEDGER_LANES;
    const float again = y + next;
    t->sum[DCOMMI_LEDGER_RESIDUAL][lane] -= (double)e * (double)e;
    t->sum[DCOMMI_LEDGER_RESIDUAL][lane] += (double)next * (double)next;
    t->sum[DCOMMI_LEDGER_ENCODED][lane] -= (double)e * (double)e;
    t->sum[DCOMMI_LEDGER_ENCODED][lane] += (double)again * (double)again;
}

/* Return a sum over its lanes. */
static double dcommi_tally_sum(const dcommi_tally *t, int which)
{
    double sum = 0;
    for (size_t lane = 0; lane < DCOMMI_LEDGER_LANES; lane++) {
        sum += t->sum[which][lane];
    }
    return sum;
}

/* Set `done` if the corrected sums are usable. They are not if a y - x or y + next was not finite,
 * because such elements should be left out. Nor are they if hardly anything remains, which is then
 * rounding error of the terms subtracted. In these cases the library decodes and counts again. */
static void dcommi_tally_whole(dcommi_tally *t)
{
    const double least = 0x1p-24;
    for (size_t lane = 0; lane < DCOMMI_LEDGER_LANES; lane++) {
        if (!isfinite(t->sum[DCOMMI_LEDGER_EE][lane]) ||
            !isfinite(t->sum[DCOMMI_LEDGER_ENCODED][lane])) {
            return;
        }
        t->sum[DCOMMI_LEDGER_EE][lane] = dcommi_f64_max(t->sum[DCOMMI_LEDGER_EE][lane], 0);
        t->sum[DCOMMI_LEDGER_RESIDUAL][lane] =
            dcommi_f64_max(t->sum[DCOMMI_LEDGER_RESIDUAL][lane], 0);
    }
    const double ee = dcommi_tally_sum(t, DCOMMI_LEDGER_EE);
    const double xx = dcommi_tally_sum(t, DCOMMI_LEDGER_XX);
    const double left = dcommi_tally_sum(t, DCOMMI_LEDGER_RESIDUAL);
    const double encoded = dcommi_tally_sum(t, DCOMMI_LEDGER_ENCODED);
    t->done = ee >= least * xx && left >= least * encoded;
}

#endif
