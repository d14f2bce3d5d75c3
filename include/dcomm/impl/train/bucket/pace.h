/* pace.h - find stragglers. Each rank measures its own time in a step, in which it waits for no
 * other, and sends it with the next step's card. The ranks of a step then differ by how late they
 * were ready, and no clock is compared with another one. */
#ifndef DCOMMI_BUCKET_PACE_H
#define DCOMMI_BUCKET_PACE_H

#include "types.h"

/* A rank is slow if its own time is above the median by this part and by these seconds. The seconds
 * are more than what the measure is wrong by. */
#define DCOMMI_BKT_SLOW 0.1
#define DCOMMI_BKT_SLOW_S 1e-3
/* Steps in a row in which a rank is slow before the log names it: more than a page fault, a file or
 * another program on its machine takes. bucket.h names these three. */
enum { DCOMMI_BKT_SLOW_STEPS = 20 };

/* ---- the cards that carry it ---- */

static uint64_t *dcommi_bkt_cards_make(const dcomm_buckets *b)
{
    return dcommi_calloc((size_t)b->size, DCOMMI_BKT_CARD_WORDS * sizeof *b->cards);
}

static const uint64_t *dcommi_bkt_card_from(const dcomm_buckets *b, int rank)
{
    return b->cards + (size_t)rank * DCOMMI_BKT_CARD_WORDS;
}

/* ---- life ---- */

static void dcommi_bkt_paces_free(dcommi_bkt_paces *p)
{
    if (p != NULL) {
        dcommi_free(p->ranks);
        dcommi_free(p->sorted);
        dcommi_free(p->late);
        dcommi_free(p);
    }
}

static dcommi_bkt_paces *dcommi_bkt_paces_make(const dcomm_buckets *b)
{
    const size_t size = (size_t)b->size;
    dcommi_bkt_paces *p = dcommi_calloc(1, sizeof *p);
    if (p == NULL) {
        return NULL;
    }
    p->own = -1;
    p->ranks = dcommi_calloc(size, sizeof *p->ranks);
    p->sorted = dcommi_calloc(size, sizeof *p->sorted);
    p->late = dcommi_calloc(b->history, size * sizeof *p->late);
    if (p->ranks == NULL || p->sorted == NULL || p->late == NULL) {
        dcommi_bkt_paces_free(p);
        return NULL;
    }
    return p;
}

/* ---- steps ---- */

/* Note this rank's own time in a step that has sent and has just ended. */
static void dcommi_bkt_paces_note(dcomm_buckets *b, double end_at)
{
    dcommi_bkt_paces *p = b->paces;
    double filled_at = 0;
    for (size_t i = 0; i < b->layout.n; i++) {
        const dcommi_bkt *k = &b->layout.buckets[i];
        filled_at = k->filled_at > filled_at ? k->filled_at : filled_at;
    }
    const double own = filled_at - p->since - p->waited;
    p->own = p->since == 0 || b->layout.n == 0 ? -1 : own > 0 ? own : 0;
    p->since = end_at;
    p->waited = 0;
}

static int dcommi_bkt_by_time(const void *x, const void *y)
{
    const double *a = x, *c = y;
    return (*a > *c) - (*a < *c);
}

/* Count a rank's slow steps, and say once that it is slow. */
static void dcommi_bkt_pace_judge(const dcomm_buckets *b, int rank, double median)
{
    dcommi_bkt_pace *pace = &b->paces->ranks[rank];
    const double late = pace->own - median;
    pace->slow = late > DCOMMI_BKT_SLOW * median && late > DCOMMI_BKT_SLOW_S ? pace->slow + 1 : 0;
    if (pace->slow < DCOMMI_BKT_SLOW_STEPS || pace->told) {
        return;
    }
    pace->told = true;
    if (b->rank == 0) {
        dcommi_log(DCOMMI_LOG_WARN,
                   "buckets: rank %d on %s was slow in %d steps in a row: in the last one it "
                   "was ready after %.4g ms, and the median rank after %.4g ms "
                   "(dcomm_buckets_get_stragglers has more)",
                   rank, b->comm->members[rank].hostname, DCOMMI_BKT_SLOW_STEPS, pace->own * 1e3,
                   median * 1e3);
    }
}

/* Compare the ranks' times of the step before, from the cards of this one. All ranks do the same.
 * A rank that has created its buckets meanwhile does not know its time yet. */
static void dcommi_bkt_paces_compare(dcomm_buckets *b)
{
    dcommi_bkt_paces *p = b->paces;
    const size_t size = (size_t)b->size;
    size_t last = 0;
    for (size_t r = 0; r < size; r++) {
        const double own =
            dcommi_f64_from_bits(dcommi_bkt_card_from(b, (int)r)[DCOMMI_BKT_CARD_OWN]);
        if (!(own >= 0 && own <= FLT_MAX)) {
            return;
        }
        p->ranks[r].own = p->sorted[r] = own;
        last = own > p->ranks[last].own ? r : last;
    }
    qsort(p->sorted, size, sizeof *p->sorted, dcommi_bkt_by_time);
    for (size_t r = 0; r < size; r++) {
        p->late[p->steps % b->history * size + r] = (float)(p->ranks[r].own - p->sorted[0]);
        dcommi_bkt_pace_judge(b, (int)r, p->sorted[(size - 1) / 2]);
    }
    if (size > 1) {
        p->ranks[last].last++;
        p->ranks[last].caused_s += (p->sorted[size - 1] - p->sorted[size - 2]) * (double)(size - 1);
    }
    p->steps++;
}

#endif
