/* ledger.h - the sums behind a ledger, in one pass and in a fixed order. */
#ifndef DCOMMI_LEDGER_H
#define DCOMMI_LEDGER_H

#include "../ledger.h"
#include "util.h"

#include <math.h>

/* Places in dcomm_ledger.sums. */
enum {
    DCOMMI_LEDGER_XX,       /* x^2 */
    DCOMMI_LEDGER_YY,       /* y^2 */
    DCOMMI_LEDGER_XY,       /* x y */
    DCOMMI_LEDGER_EE,       /* (y-x)^2 */
    DCOMMI_LEDGER_SIGNED,   /* sign(x) (y-x) */
    DCOMMI_LEDGER_X,        /* |x| */
    DCOMMI_LEDGER_ENCODED,  /* (gradient + residual)^2 */
    DCOMMI_LEDGER_RESIDUAL, /* residual^2, of each encoding */
    DCOMMI_LEDGER_SUMS
};

/* Elements are dealt to this many sums, so that the compiler may use vectors without changing the
 * order of any addition. */
enum { DCOMMI_LEDGER_LANES = 8 };

static void dcommi_ledger_derive(dcomm_ledger *l)
{
    const double *s = l->sums;
    double xx = s[DCOMMI_LEDGER_XX], yy = s[DCOMMI_LEDGER_YY], ee = s[DCOMMI_LEDGER_EE];
    l->nmse = ee > 0 ? ee / xx : 0;
    l->cosine = s[DCOMMI_LEDGER_XY] / sqrt(xx * yy);
    l->mean_signed_error =
        s[DCOMMI_LEDGER_X] > 0 ? s[DCOMMI_LEDGER_SIGNED] / s[DCOMMI_LEDGER_X] : 0;
    l->bits = l->encoded > 0 ? 8 * (double)l->wire_bytes / (double)l->encoded : 0;
    l->contraction =
        s[DCOMMI_LEDGER_RESIDUAL] > 0 ? s[DCOMMI_LEDGER_RESIDUAL] / s[DCOMMI_LEDGER_ENCODED] : 0;
}

/* One element's part of the sums. The error is taken in f64, where the difference of two numbers of
 * which neither is tiny beside the other is exact. */
#define DCOMMI_LEDGER_ONE(X, Y, LANE)                                      \
    do {                                                                   \
        double x_ = (double)(X), y_ = (double)(Y), e_ = y_ - x_;           \
        bool good_ = fabs(x_) <= 1.7e308 && fabs(y_) <= 1.7e308;           \
        x_ = good_ ? x_ : 0;                                               \
        y_ = good_ ? y_ : 0;                                               \
        e_ = good_ ? e_ : 0;                                               \
        seen[LANE] += good_;                                               \
        sum[DCOMMI_LEDGER_XX][LANE] += x_ * x_;                            \
        sum[DCOMMI_LEDGER_YY][LANE] += y_ * y_;                            \
        sum[DCOMMI_LEDGER_XY][LANE] += x_ * y_;                            \
        sum[DCOMMI_LEDGER_EE][LANE] += e_ * e_;                            \
        sum[DCOMMI_LEDGER_SIGNED][LANE] += x_ < 0 ? -e_ : x_ > 0 ? e_ : 0; \
        sum[DCOMMI_LEDGER_X][LANE] += fabs(x_);                            \
    } while (0)

#define DCOMMI_LEDGER_COMPARE(NAME, TYPE)                                               \
    static void NAME(dcomm_ledger *ledger, const TYPE *x, const float *y, size_t count) \
    {                                                                                   \
        double sum[DCOMMI_LEDGER_X + 1][DCOMMI_LEDGER_LANES] = {{0}};                   \
        uint64_t seen[DCOMMI_LEDGER_LANES] = {0};                                       \
        size_t i = 0;                                                                   \
        for (; i + DCOMMI_LEDGER_LANES <= count; i += DCOMMI_LEDGER_LANES) {            \
            for (int k = 0; k < DCOMMI_LEDGER_LANES; k++) {                             \
                DCOMMI_LEDGER_ONE(x[i + (size_t)k], y[i + (size_t)k], k);               \
            }                                                                           \
        }                                                                               \
        for (int k = 0; i < count; i++, k++) {                                          \
            DCOMMI_LEDGER_ONE(x[i], y[i], k);                                           \
        }                                                                               \
        for (int k = 0; k < DCOMMI_LEDGER_LANES; k++) {                                 \
            ledger->count += seen[k];                                                   \
            for (int s = 0; s <= DCOMMI_LEDGER_X; s++) {                                \
                ledger->sums[s] += sum[s][k];                                           \
            }                                                                           \
        }                                                                               \
        dcommi_ledger_derive(ledger);                                                   \
    }

DCOMMI_LEDGER_COMPARE(dcommi_ledger_compare_f32, float)
DCOMMI_LEDGER_COMPARE(dcommi_ledger_compare_wide, double)

DCOMM_API void dcomm_ledger_compare(dcomm_ledger *ledger, const float *x, const float *y,
                                    size_t count)
{
    dcommi_ledger_compare_f32(ledger, x, y, count);
}

DCOMM_API void dcomm_ledger_compare_f64(dcomm_ledger *ledger, const double *x, const float *y,
                                        size_t count)
{
    dcommi_ledger_compare_wide(ledger, x, y, count);
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

/* Count what an encoding with feedback held back: of e, `next` is left. */
static void dcommi_ledger_held(dcomm_ledger *ledger, const float *sent, const float *next,
                               size_t count)
{
    double encoded[DCOMMI_LEDGER_LANES] = {0}, held[DCOMMI_LEDGER_LANES] = {0};
    for (size_t i = 0; i < count; i++) {
        double r = (double)next[i], e = (double)sent[i] + r;
        bool good = fabs(e) <= 1.7e308; /* the wire may carry what is not finite */
        encoded[i % DCOMMI_LEDGER_LANES] += good ? e * e : 0;
        held[i % DCOMMI_LEDGER_LANES] += good ? r * r : 0;
    }
    for (int k = 0; k < DCOMMI_LEDGER_LANES; k++) {
        ledger->sums[DCOMMI_LEDGER_ENCODED] += encoded[k];
        ledger->sums[DCOMMI_LEDGER_RESIDUAL] += held[k];
    }
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
    ledger->residual_norm = hypot(ledger->residual_norm, other->residual_norm);
    for (int s = 0; s < DCOMMI_LEDGER_SUMS; s++) {
        ledger->sums[s] += other->sums[s];
    }
    dcommi_ledger_derive(ledger);
}

#undef DCOMMI_LEDGER_ONE
#undef DCOMMI_LEDGER_COMPARE
#endif
