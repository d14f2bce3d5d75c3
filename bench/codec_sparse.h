/* codec_sparse.h - sum several ranks' selections as coded_sparse does, in one process: there are
 * balanced regions, and the owner of each region adds up and selects again. */
#ifndef CODEC_SPARSE_H
#define CODEC_SPARSE_H

#include "codec_run.h"
#include "dcomm/impl/codec/exchange.h"

typedef struct codec_spread {
    dcommi_exchange_pairs *chosen; /* selected elements of each rank */
    dcommi_exchange_pairs sum;     /* sum of one region */
    uint32_t *samples, *begin, *agreed;
    const void **src;
    size_t *len, *end;
    size_t m, nagreed;
    uint64_t *keys;
    float *lost;
} codec_spread;

static void codec_spread_free(codec_run *run, codec_spread *s)
{
    for (uint32_t r = 0; s->chosen != NULL && r < run->ranks; r++) {
        dcommi_exchange_free(&s->chosen[r]);
    }
    dcommi_exchange_free(&s->sum);
    free(s->chosen);
    free(s->samples);
    free(s->begin);
    free(s->agreed);
    free(s->src);
    free(s->len);
    free(s->end);
    free(s->keys);
    free(s->lost);
}

static dcomm_status codec_spread_make(codec_run *run, codec_spread *s)
{
    size_t p = run->ranks, most = dcommi_topk_most(codec_now(run), run->n);
    s->m = dcommi_exchange_samples(codec_now(run), run->n, p);
    s->chosen = calloc(p, sizeof *s->chosen);
    s->samples = malloc(p * (s->m + 1) * sizeof *s->samples);
    s->begin = malloc((p + 1) * sizeof *s->begin);
    s->agreed = malloc(run->n * sizeof *s->agreed);
    s->src = malloc(p * sizeof *s->src);
    s->len = malloc(p * sizeof *s->len);
    s->end = malloc(p * sizeof *s->end);
    s->keys = malloc(2 * p * (most + s->m) * sizeof *s->keys);
    s->lost = malloc(run->n * sizeof *s->lost);
    bool good = s->chosen != NULL && s->samples != NULL && s->begin != NULL && s->agreed != NULL &&
                s->src != NULL && s->len != NULL && s->end != NULL && s->keys != NULL &&
                s->lost != NULL;
    return good ? DCOMM_OK : DCOMM_ERR_NO_MEMORY;
}

/* Select on each rank, and compute the regions from samples of the selected indices. */
static dcomm_status codec_spread_select(codec_run *run, codec_spread *s)
{
    const dcomm_codec *codec = codec_now(run);
    for (uint32_t r = 0; r < run->ranks; r++) {
        size_t bytes;
        uint32_t *samples = s->samples + r * (s->m + 1);
        input_fill(run->input, r, run->now.step, 0, run->n, run->x);
        codec_exact(run);
        DCOMMI_TRY(codec_begin(run, r, false));
        DCOMMI_TRY(codec_encode(run, r, run->x, 0, run->n, &bytes));
        DCOMMI_TRY(dcomm_decode_add(codec, run->wire, bytes, run->sum, run->n));
        DCOMMI_TRY(dcommi_exchange_read(codec, run->wire, bytes, run->n, 0, run->n, &s->chosen[r]));
        dcommi_exchange_sift(&s->chosen[r]);
        dcommi_exchange_sample(&s->chosen[r], run->n, s->m, samples);
        s->src[r] = samples;
        s->len[r] = 4 * (s->m + 1);
    }
    run->now.chosen = run->now.kept;
    run->now.wire_bytes = run->ranks * 4 * (s->m + 1);
    return dcommi_exchange_regions(s->src, s->len, run->ranks, s->m, run->n, run->n, s->keys,
                                   s->end, s->begin);
}

/* Do the work of rank d, the owner of region d: add up, select again, and write the result. */
static dcomm_status codec_spread_own(codec_run *run, codec_spread *s, uint32_t d)
{
    const dcomm_codec *codec = codec_now(run);
    uint32_t base = s->begin[d];
    size_t count = s->begin[d + 1] - base, total = 0, clipped = 0;
    for (uint32_t r = 0; r < run->ranks; r++) {
        const dcommi_exchange_pairs *p = &s->chosen[r];
        size_t from = dcommi_sparse_lower(p->index, p->n, base), i = from;
        for (; i < p->n && p->index[i] < s->begin[d + 1]; i++) {
            s->keys[total++] = (uint64_t)(p->index[i] - base) << 32 | p->bits[i];
        }
        s->end[r] = total;
        run->now.wire_bytes += r != d ? dcommi_topk_bytes(codec, count, i - from) : 0;
    }
    const uint64_t *keys = dcommi_exchange_merge(s->keys, s->keys + total, s->end, run->ranks);
    dcommi_exchange_pairs *sum = &s->sum;
    DCOMMI_TRY(dcommi_exchange_reserve(sum, total));
    dcommi_exchange_add(codec, keys, total, sum, &clipped);
    dcommi_exchange_select(sum, dcommi_exchange_quota(codec, run->n, run->ranks));
    for (size_t i = 0; i < sum->n; i++) {
        s->lost[i] = dcommi_f32_from_bits(sum->bits[i]);
    }
    run->now.wire_bytes +=
        4 + dcommi_exchange_write(codec, sum, 0, sum->n, 0, count, run->wire, &clipped);
    run->now.clipped += clipped;
    for (size_t i = 0; i < sum->n; i++) {
        float sent = dcommi_f32_from_bits(sum->bits[i]);
        run->result[base + sum->index[i]] = sent;
        s->agreed[s->nagreed++] = base + sum->index[i];
        s->lost[i] = dcommi_f32_nonfinite(sent) ? 0 : s->lost[i] - sent;
    }
    return run->fb == NULL
               ? DCOMM_OK
               : dcomm_feedback_give_back(run->fb[d], base, sum->index, s->lost, sum->n, NULL, 0);
}

/* Give back to rank r's residual the elements that r selected but no owner did. */
static dcomm_status codec_spread_back(codec_run *run, codec_spread *s, uint32_t r)
{
    const dcommi_exchange_pairs *p = &s->chosen[r];
    for (size_t i = 0; i < p->n; i++) {
        float value = dcommi_f32_from_bits(p->bits[i]);
        s->lost[i] = dcommi_f32_nonfinite(value) ? 0 : value;
    }
    return dcomm_feedback_give_back(run->fb[r], 0, p->index, s->lost, p->n, s->agreed, s->nagreed);
}

static dcomm_status codec_sparse(codec_run *run)
{
    codec_spread s = {0};
    if (!dcommi_codec_is(run->codec, DCOMMI_IS_SPLIT)) {
        return dcommi_fail(DCOMM_ERR_UNSUPPORTED, "--aggregate sparse is for topk and threshold");
    }
    dcomm_status status = codec_spread_make(run, &s);
    memset(run->result, 0, run->n * sizeof *run->result);
    status = status == DCOMM_OK ? codec_spread_select(run, &s) : status;
    for (uint32_t d = 0; status == DCOMM_OK && d < run->ranks; d++) {
        status = codec_spread_own(run, &s, d);
    }
    for (uint32_t r = 0; status == DCOMM_OK && run->fb != NULL && r < run->ranks; r++) {
        status = codec_spread_back(run, &s, r);
    }
    codec_spread_free(run, &s);
    return status;
}

#endif
