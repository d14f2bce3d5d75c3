/* topk.h - the k elements of largest magnitude, exactly, ties to the lower index.
 *
 * One pass keeps what reaches a threshold that a sample of the input suggests: a little below the
 * k-th magnitude, so that few more than k are kept, and the choice among them is exact. The
 * threshold decides the time alone: when too many are kept they are cut to the k largest in between
 * (the first of equals, so that later elements must exceed the least of them), and when fewer than
 * k are, a second pass starts from nothing. A number that is not finite reaches every threshold, so
 * that none is missed. */
#ifndef DCOMMI_CPU_TOPK_H
#define DCOMMI_CPU_TOPK_H

#include "topk_scan.h"
#include "tally_pieces.h"
#include "../topk_sample.h"

#define DCOMMI_TOPK_BLOCK 4096 /* elements between two looks at the room that is left */
#define DCOMMI_TOPK_BINS 2048
#define DCOMMI_TOPK_STREAM ((size_t)1 << 17) /* elements from which `next` is streamed */

typedef struct dcommi_topk {
    const float *x;
    const float *residual;  /* or NULL; see cpu/topk_scan.h. Finite. */
    float *next;            /* may be the residual */
    size_t count;           /* at most UINT32_MAX */
    size_t k;               /* wanted; at most count */
    bool pass;              /* numbers that are not finite are the largest; else they are zeros */
    uint32_t *bits, *index; /* room for dcommi_topk_room elements each; then what was selected */
    size_t room;
    size_t have; /* kept so far; in the end what was selected */
    size_t seen; /* of these, how many were looked at for numbers that are not finite */
    size_t nonfinite, first_nonfinite;
    size_t clipped;      /* sums beyond the largest number, which they became */
    dcommi_tally *tally; /* of a selection of nothing, taken in the first pass; NULL: none */
} dcommi_topk;

/* How many elements `bits` and `index` must have room for. */
static size_t dcommi_topk_room(size_t count, size_t k)
{
    size_t sample = count / DCOMMI_TOPK_SAMPLE + DCOMMI_TOPK_LEAST + DCOMMI_TOPK_LINE;
    size_t twice = k > count / 2 ? count : 2 * k;
    size_t most = twice + 2 * DCOMMI_TOPK_BLOCK > sample ? twice + 2 * DCOMMI_TOPK_BLOCK : sample;
    return (most < count ? most : count) + DCOMMI_TOPK_SLACK;
}

/* The k-th largest magnitude of n, 1 <= k <= n, none below `low`; *equal_p: how many equal to it
 * are among the k. Digit by digit: how many fall into each of the bins of 2^shift, the last open
 * above, and then only those of the bin that the k-th is in, which soon are few. */
static uint32_t dcommi_topk_kth(const uint32_t *bits, size_t n, size_t k, uint32_t low,
                                size_t *equal_p)
{
    uint32_t few[DCOMMI_TOPK_BLOCK + 1];
    uint32_t high = DCOMMI_ABS_BITS;
    /* Fine bins at once where a threshold says that the k-th is not far above it. */
    unsigned shift = low < DCOMMI_NORMAL_BITS ? 20 : 13;
    while (low < high) {
        uint32_t bin[DCOMMI_TOPK_BINS] = {0};
        const uint32_t last = DCOMMI_TOPK_BINS - 1;
        for (size_t i = 0; i < n; i++) {
            uint32_t above = (bits[i] & DCOMMI_ABS_BITS) - low;
            if (above <= high - low) {
                above >>= shift;
                bin[above < last ? above : last]++;
            }
        }
        uint32_t b = last;
        for (; bin[b] < k; b--) {
            k -= bin[b];
        }
        uint32_t past = b < last ? ((uint32_t)1 << shift) - 1 : UINT32_MAX;
        low += b << shift;
        high = high - low > past ? low + past : high;
        for (shift = 0; (high - low) >> shift >= DCOMMI_TOPK_BINS;) {
            shift++;
        }
        if (bin[b] <= DCOMMI_TOPK_BLOCK && n > DCOMMI_TOPK_BLOCK) {
            size_t found = 0;
            for (size_t i = 0; found < bin[b]; i++) {
                uint32_t key = bits[i] & DCOMMI_ABS_BITS;
                few[found] = key;
                found += key - low <= high - low;
            }
            bits = few;
            n = found;
        }
    }
    *equal_p = k;
    return low;
}

/* Count one that is not finite. */
static inline void dcommi_topk_count(dcommi_topk *t, size_t index)
{
    t->first_nonfinite = t->nonfinite == 0 ? index : t->first_nonfinite;
    t->nonfinite++;
}

/* Treat what was newly kept and is not finite, as a scan without a residual finds it. */
static void dcommi_topk_tame(dcommi_topk *t, uint32_t threshold)
{
    uint32_t odd = 0; /* its highest bit: whether there is one */
    for (size_t i = t->seen; i < t->have; i++) {
        odd |= (t->bits[i] & DCOMMI_ABS_BITS) + DCOMMI_NORMAL_BITS;
    }
    size_t to = odd >> 31 == 0 ? t->have : t->seen;
    for (size_t i = to; i < t->have; i++) {
        uint32_t b = t->bits[i];
        bool keep = true;
        if ((b & DCOMMI_ABS_BITS) >= DCOMMI_INF_BITS) {
            dcommi_topk_count(t, t->index[i]);
            if (!t->pass) {
                b = 0;
                keep = threshold == 0;
            }
        }
        t->bits[to] = b;
        t->index[to] = t->index[i];
        to += keep;
    }
    t->have = to;
    t->seen = to;
}

/* Cut what was kept to the k largest. Returns the least magnitude that a later element needs. */
static uint32_t dcommi_topk_cut(dcommi_topk *t, size_t k, uint32_t threshold)
{
    dcommi_topk_tame(t, threshold);
    if (t->have <= k) {
        return threshold;
    }
    size_t equal = 0;
    uint32_t kth = DCOMMI_ABS_BITS;
    if (k > 0) { /* what was kept earlier may equal the threshold less one */
        kth = dcommi_topk_kth(t->bits, t->have, k, threshold > 0 ? threshold - 1 : 0, &equal);
    }
    size_t to = dcommi_topk_filter_get()(t->bits, t->index, t->have, kth, equal,
                                         t->residual != NULL ? t->next : NULL);
    t->have = to;
    t->seen = to;
    return kth < DCOMMI_INF_BITS ? kth + 1 : DCOMMI_INF_BITS;
}

/* The element at i, whose sum with the residual is not finite. */
static void dcommi_topk_odd(dcommi_topk *t, size_t i, uint32_t threshold)
{
    float left = t->residual[i];
    float sum = t->x[i] + left;
    uint32_t b = dcommi_f32_bits(sum);
    if ((dcommi_f32_bits(t->x[i]) & DCOMMI_ABS_BITS) >= DCOMMI_INF_BITS) {
        dcommi_topk_count(t, i);
        b = t->pass ? b : dcommi_f32_bits(left);
    } else {
        t->clipped++;
        b--;
    }
    bool finite = (b & DCOMMI_ABS_BITS) < DCOMMI_INF_BITS;
    bool keep = (b & DCOMMI_ABS_BITS) >= threshold;
    t->bits[t->have] = b;
    t->index[t->have] = (uint32_t)i;
    t->have += keep;
    t->next[i] = !finite ? left : keep ? 0 : dcommi_f32_from_bits(b);
}

/* What n elements are to a ledger if none of them is sent: compared with zeros, and all held back.
 * Before the scan, which may store where the residual is. */
static void dcommi_topk_tally(const dcommi_topk *t, size_t at, size_t n)
{
    static const float none[DCOMMI_TOPK_BLOCK];
    dcommi_tally_compare(t->tally, at, none, n);
    if (t->residual != NULL) {
        dcommi_tally_held(t->tally, t->x + at, t->residual + at, n);
    }
}

/* One pass over x, or with `again` over the sums that an earlier one left in `next`. */
static void dcommi_topk_pass(dcommi_topk *t, uint32_t threshold, bool again)
{
    dcommi_topk_scan_fn scan = dcommi_topk_scan_get();
    const float *x = again ? t->next : t->x;
    bool adds = t->residual != NULL && !again;
    /* `next` in memory of its own would first be read from there. */
    bool stream = adds && t->next != t->residual && t->count >= DCOMMI_TOPK_STREAM;
    size_t room = t->room - DCOMMI_TOPK_SLACK;
    t->have = 0;
    t->seen = 0;
    for (size_t i = 0; i < t->count;) {
        size_t n = t->count - i < DCOMMI_TOPK_BLOCK ? t->count - i : DCOMMI_TOPK_BLOCK;
        size_t done;
        if (room - t->have < n) {
            dcommi_settle();
            threshold = dcommi_topk_cut(t, t->k, threshold);
        }
        if (t->tally != NULL) {
            dcommi_topk_tally(t, i, n);
        }
        t->have = scan(x + i, adds ? t->residual + i : NULL, adds ? t->next + i : NULL, n,
                       (uint32_t)i, threshold, t->bits, t->index, t->have, stream, &done);
        i += done;
        if (done < n) {
            dcommi_topk_odd(t, i++, threshold);
        }
        t->seen = adds ? t->have : t->seen;
    }
    dcommi_settle();
    dcommi_topk_tame(t, threshold);
}

/* A magnitude that some more than k elements reach, `spare` standard deviations more, as far as a
 * sample tells; 0 where that cannot be told. */
static uint32_t dcommi_topk_guess(dcommi_topk *t, double spare)
{
    size_t lines = (size_t)dcommi_topk_sample_lines(t->count);
    size_t rank = (size_t)dcommi_topk_sample_rank(lines, t->count, t->k, spare);
    if (t->k == 0 || rank == 0) {
        return t->k == 0 ? DCOMMI_INF_BITS : 0;
    }
    size_t n = 0;
    for (size_t l = 0; l < lines; l++) {
        size_t at = (size_t)dcommi_topk_sample_at(l, lines, t->count);
        for (size_t i = 0; i < DCOMMI_TOPK_LINE; i++) {
            float sum = t->residual == NULL ? t->x[at + i] : t->x[at + i] + t->residual[at + i];
            t->bits[n++] = dcommi_f32_bits(sum);
        }
    }
    size_t equal;
    uint32_t guess = dcommi_topk_kth(t->bits, n, rank, 0, &equal);
    return guess < DCOMMI_INF_BITS ? guess : DCOMMI_INF_BITS;
}

/* Exactly the k largest; or, where not exact, of those that reach the threshold at most k. The
 * selected elements lie in `bits` and `index`, by index. With a residual, next is zero at these and
 * the sum elsewhere; where a number is passed on that is not finite, it is what the residual was.
 */
static void dcommi_topk_run(dcommi_topk *t, uint32_t threshold, bool exact)
{
    t->nonfinite = 0;
    t->clipped = 0;
    if (exact && t->pass && t->residual != NULL) {
        threshold = 0; /* what is not finite is not in `next`: there must be no second pass */
    }
    dcommi_topk_pass(t, threshold, false);
    t->tally = NULL;
    if (exact && t->have < t->k && threshold > 0) {
        bool again = t->residual != NULL;
        for (size_t i = 0; again && i < t->have; i++) {
            t->next[t->index[i]] = dcommi_f32_from_bits(t->bits[i]);
        }
        t->nonfinite = again ? t->nonfinite : 0;
        dcommi_topk_pass(t, 0, again);
        dcommi_topk_cut(t, t->k, 0);
        for (size_t i = 0; again && i < t->have; i++) {
            t->next[t->index[i]] = 0;
        }
        return;
    }
    dcommi_topk_cut(t, t->k, threshold);
}

#endif
