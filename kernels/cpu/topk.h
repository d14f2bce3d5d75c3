/* topk.h - select the k elements of largest magnitude, exactly; ties go to the lower index.
 *
 * One pass keeps the elements that reach a threshold. A sample of the input suggests it, a little
 * below the k-th magnitude, so that few more than k are kept; the selection among them is exact.
 * The threshold affects only the time. If too many are kept, they are cut to the k largest in
 * between. The first of equals stay, so that a later element must exceed the least of them. If
 * fewer than k are kept, a second pass starts anew. A number that is not finite reaches every
 * threshold, so none is missed. */
#ifndef DCOMMI_CPU_TOPK_H
#define DCOMMI_CPU_TOPK_H

#include "topk_scan.h"
#include "tally_pieces.h"
#include "../topk_sample.h"

#define DCOMMI_TOPK_BLOCK 4096 /* elements between two checks of the room left */
#define DCOMMI_TOPK_BINS 2048
#define DCOMMI_TOPK_STREAM ((size_t)1 << 17) /* elements from which `next` is streamed */

typedef struct dcommi_topk {
    const float *x;
    const float *residual;  /* finite, or NULL; see cpu/topk_scan.h */
    float *next;            /* may be the residual */
    size_t count;           /* at most UINT32_MAX */
    size_t k;               /* numbers that are not finite are the largest; else they are 0 */
    bool pass;              /* numbers that are not finite are the largest; else they are zeros */
    uint32_t *bits, *index; /* room for dcommi_topk_room elements each; finally the selection */
    size_t room;
    size_t have; /* elements kept so far; finally those selected */
    size_t seen; /* of these, the number checked for not being finite */
    size_t nonfinite, first_nonfinite;
    size_t clipped;      /* sums beyond the largest number, which replaced them */
    dcommi_tally *tally; /* sums as if nothing were selected, from the first pass; NULL: none */
} dcommi_topk;

/* Return the number of elements that `bits` and `index` need room for. */
static size_t dcommi_topk_room(size_t count, size_t k)
{
    size_t sample = count / DCOMMI_TOPK_SAMPLE + DCOMMI_TOPK_LEAST + DCOMMI_TOPK_LINE;
    size_t twice = k > count / 2 ? count : 2 * k;
    size_t most = twice + 2 * DCOMMI_TOPK_BLOCK > sample ? twice + 2 * DCOMMI_TOPK_BLOCK : sample;
    return (most < count ? most : count) + DCOMMI_TOPK_SLACK;
}

/* Return the k-th largest magnitude of n numbers, none below `low`; 1 <= k <= n. *equal_p: how
 * many of the k equal it. Work digit by digit: count the numbers in bins of 2^shift, the last bin
 * open above. Then continue with the bin of the k-th; once it holds few numbers, copy them. */
static uint32_t dcommi_topk_kth(const uint32_t *bits, size_t n, size_t k, uint32_t low,
                                size_t *equal_p)
{
    uint32_t few[DCOMMI_TOPK_BLOCK + 1];
    uint32_t high = DCOMMI_ABS_BITS;
    /* The threshold `low` is close below the k-th magnitude: start with fine bins. */
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

/* Count a number that is not finite. */
static inline void dcommi_topk_count(dcommi_topk *t, size_t index)
{
    t->first_nonfinite = t->nonfinite == 0 ? index : t->first_nonfinite;
    t->nonfinite++;
}

/* Count newly kept numbers that are not finite. Unless they pass, they become 0 and stay only if
 * the threshold is 0. For scans without a residual. */
static void dcommi_topk_tame(dcommi_topk *t, uint32_t threshold)
{
    uint32_t odd = 0; /* the highest bit is set if there is one */
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

/* Cut the kept elements to the k largest. Return the least magnitude that a later element
 * needs. */
static uint32_t dcommi_topk_cut(dcommi_topk *t, size_t k, uint32_t threshold)
{
    dcommi_topk_tame(t, threshold);
    if (t->have <= k) {
        return threshold;
    }
    size_t equal = 0;
    uint32_t kth = DCOMMI_ABS_BITS;
    if (k > 0) { /* elements kept before the last cut may equal threshold - 1 */
        kth = dcommi_topk_kth(t->bits, t->have, k, threshold > 0 ? threshold - 1 : 0, &equal);
    }
    size_t to = dcommi_topk_filter_get()(t->bits, t->index, t->have, kth, equal,
                                         t->residual != NULL ? t->next : NULL);
    t->have = to;
    t->seen = to;
    return kth < DCOMMI_INF_BITS ? kth + 1 : DCOMMI_INF_BITS;
}

/* Handle element i, whose sum with the residual is not finite. */
static void dcommi_topk_odd(dcommi_topk *t, size_t i, uint32_t threshold)
{
    float left = t->residual[i];
    float sum = t->x[i] + left;
    uint32_t b = dcommi_f32_bits(t->x[i]);
    bool odd = (b & DCOMMI_ABS_BITS) >= DCOMMI_INF_BITS;
    if (odd) {
        dcommi_topk_count(t, i);
        sum = left;
    }
    if (!odd || !t->pass) {
        t->clipped += (dcommi_f32_bits(sum) & DCOMMI_ABS_BITS) >= DCOMMI_INF_BITS;
        b = dcommi_f32_bits(dcommi_f32_bounded(sum));
    }
    bool finite = (b & DCOMMI_ABS_BITS) < DCOMMI_INF_BITS;
    bool keep = (b & DCOMMI_ABS_BITS) >= threshold;
    t->bits[t->have] = b;
    t->index[t->have] = (uint32_t)i;
    t->have += keep;
    t->next[i] = !finite ? left : keep ? 0 : dcommi_f32_from_bits(b);
}

/* Add n elements to the ledger as if none were sent: compared with zeros, all held back. Call it
 * before the scan, which may overwrite the residual. */
static void dcommi_topk_tally(const dcommi_topk *t, size_t at, size_t n)
{
    static const float none[DCOMMI_TOPK_BLOCK];
    dcommi_tally_compare(t->tally, at, none, n);
    if (t->residual != NULL) {
        dcommi_tally_held(t->tally, t->x + at, t->residual + at, n);
    }
}

/* Pass once over x or, with `again`, over the sums that an earlier pass left in `next`. */
static void dcommi_topk_pass(dcommi_topk *t, uint32_t threshold, bool again)
{
    dcommi_topk_scan_fn scan = dcommi_topk_scan_get();
    const float *x = again ? t->next : t->x;
    bool adds = t->residual != NULL && !again;
    /* With ordinary stores, a `next` of its own would first be read into the cache. */
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

/* Return a magnitude that, as far as a sample tells, slightly more than k elements reach: `spare`
 * standard deviations more. 0: the sample cannot tell. */
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

/* Select the k largest; or, if not `exact`, at most k of those that reach the threshold. The
 * selected elements end up in `bits` and `index`, by index. With a residual, next is 0 for these
 * and the sum elsewhere; for a number passed on that is not finite, it is the old residual. */
static void dcommi_topk_run(dcommi_topk *t, uint32_t threshold, bool exact)
{
    t->nonfinite = 0;
    t->clipped = 0;
    if (exact && t->pass && t->residual != NULL) {
        threshold = 0; /* avoid a second pass: `next` lacks numbers that are not finite */
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
