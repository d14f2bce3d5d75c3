/* exchange.h - arithmetic of a sparse all-reduce on the elements that ranks selected: cut the
 * index space into regions with about equally many elements, pack a region's elements, add up
 * those that arrive, and select again.
 *
 * The regions are those of Li and Hoefler, PPoPP 2022. With regions of equal length, gradients
 * whose large elements lie together would send everything to one rank. The ends follow from
 * regular samples (Shi and Schaeffer 1992): each rank names m of its elements, evenly spaced among
 * them, and the merged samples are cut into N. Merging the ranks' quantiles, instead of averaging
 * them, balances regions even if ranks select from different places. */
#ifndef DCOMMI_EXCHANGE_H
#define DCOMMI_EXCHANGE_H

#include "topk.h"

#define DCOMMI_EXCHANGE_SAMPLES 8 /* samples of a rank for each region */

/* Elements in ascending order of index. `room` may exceed n. */
typedef struct dcommi_exchange_pairs {
    uint32_t *index, *bits; /* bits: those of an f32 */
    size_t n, room;
} dcommi_exchange_pairs;

static inline void dcommi_exchange_free(dcommi_exchange_pairs *p)
{
    dcommi_free(p->index);
    dcommi_free(p->bits);
    *p = (dcommi_exchange_pairs){0};
}

/* Make room for n elements, and 128 more, because readers and selections may write a little past
 * the end. Growing loses the contents. */
static dcomm_status dcommi_exchange_reserve(dcommi_exchange_pairs *p, size_t n)
{
    if (p->room > n) {
        return DCOMM_OK;
    }
    dcommi_exchange_free(p);
    p->index = dcommi_alloc_raw(4 * (n + 128));
    p->bits = dcommi_alloc_raw(4 * (n + 128));
    p->room = p->index != NULL && p->bits != NULL ? n + 1 : 0;
    return p->room > 0 ? DCOMM_OK : DCOMM_ERR_NO_MEMORY;
}

/* Return the number of samples that each of n ranks names; next function: the number of elements
 * that an owner sends on. */
static inline size_t dcommi_exchange_samples(const dcomm_codec *codec, size_t count, size_t n)
{
    size_t most = dcommi_topk_most(codec, count), wanted = DCOMMI_EXCHANGE_SAMPLES * n;
    return most < 1 ? 1 : most < wanted ? most : wanted;
}

static inline size_t dcommi_exchange_quota(const dcomm_codec *codec, size_t count, size_t n)
{
    size_t k = dcommi_codec_wanted(codec, count);
    return k / n + (k % n != 0);
}

/* ---- packed elements ---- */

/* Read a wire of `least` to `most` elements, out of an array of `count`. */
static dcomm_status dcommi_exchange_read(const dcomm_codec *codec, const void *wire, size_t bytes,
                                         size_t count, size_t least, size_t most,
                                         dcommi_exchange_pairs *p)
{
    dcommi_topk_wire w;
    float value[DCOMMI_TOPK_CHUNK];
    p->n = 0;
    DCOMMI_TRY(dcommi_topk_open_some(codec, wire, bytes, count, least, most, &w));
    size_t kept = w.reader.kept;
    DCOMMI_TRY(dcommi_exchange_reserve(p, kept));
    p->n = dcommi_sparse_next(&w.reader, count, p->index, kept + 64);
    for (size_t at = 0; at < p->n; at += DCOMMI_TOPK_CHUNK) {
        size_t n = p->n - at < DCOMMI_TOPK_CHUNK ? p->n - at : DCOMMI_TOPK_CHUNK;
        dcommi_topk_values(codec, &w, at, n, value);
        memcpy(p->bits + at, value, 4 * n);
    }
    return DCOMM_OK;
}

/* Remove zeros. They carry no information, and in the later selection they would compete with
 * elements whose sum is 0. Those matter: ranks hold residuals of opposite signs for them. */
static void dcommi_exchange_sift(dcommi_exchange_pairs *p)
{
    size_t to = 0;
    for (size_t i = 0; i < p->n; i++) {
        p->index[to] = p->index[i];
        p->bits[to] = p->bits[i];
        to += (p->bits[i] & DCOMMI_ABS_BITS) != 0;
    }
    p->n = to;
}

/* Write elements [from, to), whose indices lie in [base, base + count), to `out`, and return the
 * bytes. Set `bits` to the values that a reader gets. */
static size_t dcommi_exchange_write(const dcomm_codec *codec, dcommi_exchange_pairs *p, size_t from,
                                    size_t to, uint32_t base, size_t count, unsigned char *out,
                                    size_t *clipped)
{
    size_t n = to - from;
    dcommi_sparse_head head = {(uint32_t)n};
    int values = (int)codec->value[DCOMMI_TOPK_VALUES];
    memcpy(out, &head, sizeof head);
    unsigned char *at = out + DCOMMI_SPARSE_HEAD;
    for (size_t i = from; i < to; i++) {
        uint32_t b = p->bits[i];
        if (values == DCOMMI_TOPK_F32) {
            b = dcommi_topk_flush(b);
            memcpy(at + 4 * (i - from), &b, 4);
        } else {
            bool bf16 = values == DCOMMI_TOPK_BF16;
            uint16_t h = dcommi_topk_half(b, bf16, clipped);
            memcpy(at + 2 * (i - from), &h, 2);
            b = dcommi_f32_bits(dcommi_topk_from_half(h, bf16));
        }
        p->bits[i] = b;
        p->index[i] -= base;
    }
    dcommi_sparse_pack(p->index + from, n, count, at + dcommi_topk_value_bytes(codec, n));
    for (size_t i = from; i < to; i++) {
        p->index[i] += base;
    }
    return dcommi_topk_bytes(codec, count, n);
}

/* ---- regions ---- */

/* Merge the ascending runs of `a`, which lie one behind the other; end[r] is the end of run r.
 * Compare the upper 32 bits; of equal keys the earlier run's comes first. Return the result's
 * array, a or b. */
static uint64_t *dcommi_exchange_merge(uint64_t *a, uint64_t *b, size_t *end, size_t runs)
{
    while (runs > 1) {
        size_t from = 0, to = 0;
        for (size_t r = 0; r < runs; r += 2) {
            size_t i = from, middle = end[r], j = middle;
            size_t last = r + 1 < runs ? end[r + 1] : middle;
            while (i < middle && j < last) {
                bool right = a[j] >> 32 < a[i] >> 32;
                b[to++] = right ? a[j] : a[i];
                j += right;
                i += !right;
            }
            memcpy(b + to, a + i, (middle - i) * sizeof *a);
            to += middle - i;
            memcpy(b + to, a + j, (last - j) * sizeof *a);
            to += last - j;
            from = last;
            end[r / 2] = last;
        }
        runs = (runs + 1) / 2;
        uint64_t *swap = a;
        a = b;
        b = swap;
    }
    return a;
}

/* Write the number of elements that this rank selected, and m of their indices. */
static void dcommi_exchange_sample(const dcommi_exchange_pairs *p, size_t count, size_t m,
                                   uint32_t *out)
{
    out[0] = (uint32_t)p->n;
    for (uint64_t j = 0; j < m; j++) {
        uint64_t of = p->n > 0 ? p->n : count, at = (2 * j + 1) * of / (2 * m);
        out[1 + j] = p->n > 0 ? p->index[at] : (uint32_t)at;
    }
}

/* Compute the regions from n ranks' samples: region d is [begin[d], begin[d + 1]). `keys` needs
 * room for all samples twice, `end` for n numbers. */
static dcomm_status dcommi_exchange_regions(const void *const *src, const size_t *len, size_t n,
                                            size_t m, size_t count, size_t most, uint64_t *keys,
                                            size_t *end, uint32_t *begin)
{
    uint64_t total = 0, before = 0;
    for (size_t r = 0; r < n; r++) {
        const unsigned char *in = src[r];
        uint32_t weight = 0, last = 0;
        bool good = len[r] == 4 * (m + 1);
        memcpy(&weight, in, good ? 4 : 0);
        for (size_t j = 0; good && j < m; j++) {
            uint32_t index;
            memcpy(&index, in + 4 * (j + 1), 4);
            good = index >= last && index < count;
            last = index;
            keys[r * m + j] = (uint64_t)index << 32 | weight;
        }
        if (!good || weight > most) {
            return dcommi_fail(DCOMM_ERR_CORRUPT,
                               "the samples of rank %zu, %zu bytes, are no %zu ascending indices "
                               "below %zu of at most %zu",
                               r, len[r], m, count, most);
        }
        total += weight * (uint64_t)m;
        end[r] = (r + 1) * m;
    }
    const uint64_t *sorted = dcommi_exchange_merge(keys, keys + n * m, end, n);
    size_t d = 1;
    begin[0] = 0;
    for (size_t i = 0; i < n * m && total > 0; i++) {
        before += (uint32_t)sorted[i];
        for (; d < n && before >= total / n * d + (total % n * d + n - 1) / n; d++) {
            begin[d] = (uint32_t)(sorted[i] >> 32) + 1;
        }
    }
    for (; d < n; d++) {
        begin[d] = (uint32_t)(total > 0 ? count : (uint64_t)count * d / n);
    }
    begin[n] = (uint32_t)count;
    return DCOMM_OK;
}

/* ---- sums ---- */

/* Add up elements with equal indices among n sorted elements, in their order. */
static void dcommi_exchange_add(const dcomm_codec *codec, const uint64_t *sorted, size_t n,
                                dcommi_exchange_pairs *p, size_t *clipped)
{
    bool pass = codec->nonfinite == DCOMMI_NONFINITE_PASS;
    p->n = 0;
    for (size_t i = 0; i < n;) {
        uint64_t index = sorted[i] >> 32;
        float sum = dcommi_f32_from_bits((uint32_t)sorted[i]);
        for (i++; i < n && sorted[i] >> 32 == index; i++) {
            sum += dcommi_f32_from_bits((uint32_t)sorted[i]);
        }
        if (!pass && dcommi_f32_nonfinite(sum)) {
            sum = dcommi_f32_bounded(sum);
            ++*clipped;
        }
        sum = dcommi_f32_canonical(sum);
        p->index[p->n] = (uint32_t)index;
        p->bits[p->n++] = dcommi_f32_bits(sum);
    }
}

/* Keep the `most` elements of largest magnitude; ties go to the lower index. */
static void dcommi_exchange_select(dcommi_exchange_pairs *p, size_t most)
{
    if (p->n > most && most > 0) {
        size_t equal;
        uint32_t kth = dcommi_topk_kth(p->bits, p->n, most, 0, &equal);
        p->n = dcommi_topk_filter_get()(p->bits, p->index, p->n, kth, equal, NULL);
    }
}

#endif
