/* ledger.h - add to a ledger's sums and derive its results from them. */
#ifndef DCOMMI_LEDGER_H
#define DCOMMI_LEDGER_H

#include "../../ledger.h"
#include "../../../../kernels/root.h"
#include "../../../../kernels/cpu/tally_pieces.h"

#include <math.h>

static void dcommi_ledger_derive(dcomm_ledger *l)
{
    const double *s = l->sums;
    double xx = s[DCOMMI_LEDGER_XX], yy = s[DCOMMI_LEDGER_YY], ee = s[DCOMMI_LEDGER_EE];
    l->nmse = ee > 0 ? ee / xx : 0;
    l->cosine = s[DCOMMI_LEDGER_XY] / dcommi_sqrt(xx * yy);
    l->mean_signed_error =
        s[DCOMMI_LEDGER_X] > 0 ? s[DCOMMI_LEDGER_SIGNED] / s[DCOMMI_LEDGER_X] : 0;
    l->bits = l->encoded > 0 ? 8 * (double)l->wire_bytes / (double)l->encoded : 0;
    l->contraction =
        s[DCOMMI_LEDGER_RESIDUAL] > 0 ? s[DCOMMI_LEDGER_RESIDUAL] / s[DCOMMI_LEDGER_ENCODED] : 0;
}

/* Add the sums of one call. */
static void dcommi_ledger_add(dcomm_ledger *ledger, const dcommi_tally *t)
{
    ledger->count += t->seen;
    for (int k = 0; k < DCOMMI_LEDGER_LANES; k++) {
        for (int s = 0; s < DCOMMI_LEDGER_SUMS; s++) {
            ledger->sums[s] += t->sum[s][k];
        }
    }
    dcommi_ledger_derive(ledger);
}

DCOMM_API void dcomm_ledger_compare(dcomm_ledger *ledger, const float *x, const float *y,
                                    size_t count)
{
    dcommi_tally t = {.x = x};
    dcommi_tally_compare(&t, 0, y, count);
    dcommi_ledger_add(ledger, &t);
}

/* Compute the error in f64, because x is wider than f32. */
DCOMM_API void dcomm_ledger_compare_f64(dcomm_ledger *ledger, const double *x, const float *y,
                                        size_t count)
{
    dcommi_tally t = {.seen = count};
    for (size_t i = 0; i < count; i++) {
        const size_t k = i % DCOMMI_LEDGER_LANES;
        double b = (double)y[i], e = b - x[i];
        if (!(fabs(e) <= 1.7e308)) { /* e is finite only if both are */
            t.seen--;
            continue;
        }
        t.sum[DCOMMI_LEDGER_XX][k] += x[i] * x[i];
        t.sum[DCOMMI_LEDGER_YY][k] += b * b;
        t.sum[DCOMMI_LEDGER_XY][k] += x[i] * b;
        t.sum[DCOMMI_LEDGER_EE][k] += e * e;
        t.sum[DCOMMI_LEDGER_SIGNED][k] += x[i] < 0 ? -e : x[i] > 0 ? e : 0;
        t.sum[DCOMMI_LEDGER_X][k] += fabs(x[i]);
    }
    dcommi_ledger_add(ledger, &t);
}

DCOMM_API void dcomm_ledger_encoded(dcomm_ledger *ledger, size_t count,
                                    const dcomm_codec_report *report)
{
    ledger->encoded += count;
    ledger->wire_bytes += report->bytes;
    ledger->kept += report->kept;
    ledger->clipped += report->clipped;
    ledger->nonfinite += report->nonfinite;
    dcommi_ledger_derive(ledger);
}

DCOMM_API void dcomm_ledger_merge(dcomm_ledger *ledger, const dcomm_ledger *other)
{
    ledger->count += other->count;
    ledger->encoded += other->encoded;
    ledger->wire_bytes += other->wire_bytes;
    ledger->kept += other->kept;
    ledger->clipped += other->clipped;
    ledger->nonfinite += other->nonfinite;
    ledger->residual_norm = dcommi_sqrt(ledger->residual_norm * ledger->residual_norm +
                                        other->residual_norm * other->residual_norm);
    ledger->missing += other->missing;
    ledger->carried =
        dcommi_sqrt(ledger->carried * ledger->carried + other->carried * other->carried);
    ledger->lost = dcommi_sqrt(ledger->lost * ledger->lost + other->lost * other->lost);
    for (int s = 0; s < DCOMMI_LEDGER_SUMS; s++) {
        ledger->sums[s] += other->sums[s];
    }
    dcommi_ledger_derive(ledger);
}

/* Count residuals that have come to other ranks: the ranks that are missing, and the squares of
 * what was carried and lost. */
static inline void dcommi_ledger_moved(dcomm_ledger *ledger, uint64_t missing, double carried,
                                       double lost)
{
    ledger->missing += missing;
    ledger->carried = dcommi_sqrt(carried);
    ledger->lost = dcommi_sqrt(ledger->lost * ledger->lost + lost);
}

#endif
