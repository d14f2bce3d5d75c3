/* correction.h - trials correct the model's prices of all-reduces within a host by factors. */
#ifndef DCOMMI_CORRECTION_H
#define DCOMMI_CORRECTION_H

#include "../../tune.h"
#include "../algo/table.h"

#define DCOMMI_CORRECTION_ONE 1024
#define DCOMMI_CORRECTION_LEAST 128 /* beyond these, the trial ran something else */
#define DCOMMI_CORRECTION_MOST 8192

/* The corrections of all tried algorithms, for one kind of memory. */
typedef struct dcommi_corrections {
    int n;
    struct dcommi_correction {
        const dcommi_algo *algo;
        int64_t n, bytes[DCOMM_CURVE_POINTS], factor[DCOMM_CURVE_POINTS]; /* in 1024ths */
    } of[DCOMM_TRIALS];
} dcommi_corrections;

/* Kinds of memory that have trials: those of host memory, which are the first kinds (ordinary,
 * huge, registered). */
enum { DCOMMI_TRIALS_KINDS = DCOMMI_MEMORY_REGISTERED + 1 };

/* Add the factor at `bytes`: a trial took `took` ps, and the model's price is `price` ps. */
static void dcommi_correction_add(struct dcommi_correction *to, int64_t bytes, int64_t took,
                                  int64_t price)
{
    int64_t factor = took / dcommi_max64(price / DCOMMI_CORRECTION_ONE, 1);
    factor = dcommi_min64(dcommi_max64(factor, DCOMMI_CORRECTION_LEAST), DCOMMI_CORRECTION_MOST);
    to->bytes[to->n] = bytes;
    to->factor[to->n++] = factor;
}

/* Return the factor at `bytes`, interpolated between trials. Outside of them it is that of the
 * nearest one. */
static int64_t dcommi_correction_at(const struct dcommi_correction *k, int64_t bytes)
{
    int64_t from = k->bytes[0], at = k->factor[0];
    for (int64_t i = 1; i < k->n && bytes > from; i++) {
        int64_t to = k->bytes[i], part = dcommi_min64(bytes, to) - from;
        at += (k->factor[i] - at) * part / dcommi_max64(to - from, 1);
        from = to;
    }
    return at;
}

/* Return the bytes of the shortest trial; INT64_MAX: there are no trials. */
static int64_t dcommi_corrections_from(const dcommi_corrections *k)
{
    int64_t from = INT64_MAX;
    for (int i = 0; i < k->n; i++) {
        from = dcommi_min64(from, k->of[i].bytes[0]);
    }
    return from;
}

/* Return the factor of an algorithm's price for a call of so many bytes, in 1024ths. Where others
 * were tried and this one was too slow to be tried, it gets at least their largest factor. */
static int64_t dcommi_correction_of(const dcommi_corrections corrections[DCOMMI_TRIALS_KINDS],
                                    const dcommi_shape *s, const dcommi_algo *algo, int64_t bytes)
{
    int64_t own = DCOMMI_CORRECTION_ONE, most = own, to = 0;
    const struct dcommi_correction *tried = NULL;
    if (s->coll != DCOMM_COLL_ALLREDUCE || s->memory > DCOMMI_MEMORY_REGISTERED ||
        s->coding != NULL) {
        return own;
    }
    const dcommi_corrections *k = &corrections[s->memory];
    int64_t from = dcommi_corrections_from(k);
    if (s->memory == DCOMMI_MEMORY_HUGE && bytes < from) { /* pages do not matter to short calls */
        k = &corrections[DCOMMI_MEMORY_ANY];
        from = dcommi_corrections_from(k);
    }
    for (int i = 0; i < k->n; i++) {
        const struct dcommi_correction *of = &k->of[i];
        most = dcommi_max64(most, dcommi_correction_at(of, bytes));
        to = dcommi_max64(to, of->bytes[of->n - 1]);
        tried = of->algo == algo ? of : tried;
    }
    if (tried != NULL) {
        int64_t at = dcommi_min64(dcommi_max64(bytes, from), to);
        own = dcommi_correction_at(tried, bytes);
        if (at >= tried->bytes[0] && at <= tried->bytes[tried->n - 1]) {
            return own;
        }
    }
    return dcommi_max64(own, most);
}

#endif
