/* sparse.h - the codec's steps of coded_sparse (algo/coded/sparse.h). With error feedback, a
 * residual is cleared where the element is in the result. An element that this rank selected and
 * no owner did goes back whole. What an owner's rounding took away goes to the owner's
 * residual. */
#ifndef DCOMMI_CODED_SPARSE_H
#define DCOMMI_CODED_SPARSE_H

#include "run.h"
#include "../../algo/coded/sparse.h"
#include "../../codec/exchange.h"

/* The regions of a run. */
struct dcommi_spread {
    size_t count;
    uint32_t nranks;
    dcommi_exchange_pairs chosen; /* what this rank selected */
    dcommi_exchange_pairs agreed; /* what the owners selected */
    dcommi_exchange_pairs back;   /* for the residual, if that lies on a device */
    dcommi_exchange_pairs read;
    uint32_t *begin; /* [nranks + 1] */
    size_t *end;     /* [nranks] */
    size_t regions;  /* room of begin and end */
    uint64_t *keys;
    size_t keys_room; /* bytes, as lost_room is */
    float *lost;      /* values for the residual */
    size_t lost_room;
    float *out;
};

static void dcommi_spread_free(struct dcommi_spread *s)
{
    if (s != NULL) {
        dcommi_exchange_free(&s->chosen);
        dcommi_exchange_free(&s->agreed);
        dcommi_exchange_free(&s->back);
        dcommi_exchange_free(&s->read);
        dcommi_free(s->begin);
        dcommi_free(s->end);
        dcommi_free(s->keys);
        dcommi_free(s->lost);
        dcommi_free(s);
    }
}

/* Provide an array of at least `need` bytes. The contents of a shorter one are lost. */
static dcomm_status dcommi_spread_room(void *array_p, size_t *room, size_t need)
{
    void *array;
    memcpy(&array, array_p, sizeof array);
    if (need > *room) {
        dcommi_free(array);
        array = dcommi_alloc_raw(need);
        memcpy(array_p, &array, sizeof array);
        *room = array != NULL ? need : 0;
    }
    return need <= *room ? DCOMM_OK : DCOMM_ERR_NO_MEMORY;
}

/* ---- encode ---- */

static void dcommi_spread_told(dcommi_coded *c, size_t bytes, size_t clipped)
{
    dcomm_ledger *ledger = dcommi_coded_ledger(c);
    if (c->report != NULL) {
        c->report->bytes += bytes;
        c->report->clipped += clipped;
    }
    if (ledger != NULL) {
        dcomm_ledger_encoded(ledger, 0, &(dcomm_codec_report){.bytes = bytes, .clipped = clipped});
    }
}

static dcomm_status dcommi_spread_begin(dcommi_coded *c, size_t count)
{
    if (c->spread == NULL && (c->spread = dcommi_alloc(sizeof *c->spread)) == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    c->spread->count = count;
    c->spread->nranks = 0;
    c->spread->agreed.n = c->spread->back.n = 0;
    return DCOMM_OK;
}

static dcomm_status dcommi_spread_selected(dcommi_coded *c, const void *wire, size_t bytes)
{
    struct dcommi_spread *s = c->spread;
    DCOMMI_TRY(dcommi_exchange_read(c->codec, wire, bytes, s->count, 0,
                                    dcommi_topk_most(c->codec, s->count), &s->chosen));
    dcommi_exchange_sift(&s->chosen);
    return DCOMM_OK;
}

static dcomm_status dcommi_spread_select(dcommi_coded *c, const float *x, size_t count, void *wire,
                                         size_t room, size_t *bytes)
{
    static const dcomm_codec_place all = {.divisor = 1};
    dcomm_codec_report report = {.first_nonfinite = SIZE_MAX};
    dcomm_status status;
    DCOMMI_TRY(dcommi_spread_begin(c, count));
    if (c->feedback != NULL) {
        DCOMMI_TRY(dcommi_coded_begin_feedback(c, x, 0));
        DCOMMI_TRY(dcommi_feedback_remember(c->feedback));
        status = dcomm_feedback_encode(c->feedback, 0, count, wire, room, bytes, &report);
    } else {
        dcomm_codec_key key = dcommi_coded_key(c, &all);
        status = dcommi_coded_plain(c, x, count, &key, wire, room, bytes, &report);
    }
    dcomm_ledger *ledger = dcommi_coded_ledger(c);
    if (ledger != NULL) { /* this wire stays here; what is sent is told apart */
        ledger->wire_bytes -= report.bytes;
    }
    report.bytes = 0;
    dcommi_coded_tell(c, &all, &report);
    DCOMMI_TRY(dcommi_coded_judge(c, status, &report));
    return dcommi_spread_selected(c, wire, *bytes);
}

static dcomm_status dcommi_spread_region(const dcommi_coded *c, const dcomm_codec_place *place)
{
    const struct dcommi_spread *s = c->spread;
    return s != NULL && place->first < s->nranks
               ? DCOMM_OK
               : dcommi_fail(DCOMM_ERR_PLAN, "there is no region %" PRIu64, place->first);
}

/* Encode the elements of a region that this rank selected. */
static dcomm_status dcommi_spread_part(dcommi_coded *c, const dcomm_codec_place *place, void *wire,
                                       size_t room, size_t *bytes)
{
    struct dcommi_spread *s = c->spread;
    size_t clipped = 0;
    DCOMMI_TRY(dcommi_spread_region(c, place));
    uint32_t base = s->begin[place->first], end = s->begin[place->first + 1];
    size_t from = dcommi_sparse_lower(s->chosen.index, s->chosen.n, base);
    size_t to = dcommi_sparse_lower(s->chosen.index, s->chosen.n, end);
    if (dcommi_topk_bytes(c->codec, end - base, to - from) > room) {
        return dcommi_fail(DCOMM_ERR_PLAN, "%zu elements do not fit %zu bytes", to - from, room);
    }
    *bytes =
        dcommi_exchange_write(c->codec, &s->chosen, from, to, base, end - base, wire, &clipped);
    dcommi_spread_told(c, place->first != c->rank ? *bytes : 0, 0);
    return DCOMM_OK;
}

static dcomm_status dcommi_spread_encode_step(void *user, const dcomm_codec_place *place,
                                              const void *src, size_t src_len, void *dst,
                                              size_t dst_len, size_t *encoded)
{
    dcommi_coded *c = user;
    if (c == NULL || (place->round != DCOMMI_SPREAD_SELECT && c->spread == NULL)) {
        return dcommi_fail(DCOMM_ERR_PLAN, "the plan runs without a codec");
    }
    if (place->round == DCOMMI_SPREAD_SELECT) {
        return dcommi_spread_select(c, src, src_len / sizeof(float), dst, dst_len, encoded);
    }
    if (place->round == DCOMMI_SPREAD_PART) {
        return dcommi_spread_part(c, place, dst, dst_len, encoded);
    }
    dcommi_exchange_sample(&c->spread->chosen, c->spread->count, dst_len / 4 - 1, dst);
    dcommi_spread_told(c, dst_len, 0);
    *encoded = dst_len;
    return DCOMM_OK;
}

/* Return s->lost, the values of `p`, to the worker's residual, except elements that are `agreed`.
 * If the residual lies on a device, keep them in `back` until the result goes there. */
static dcomm_status dcommi_spread_return(dcommi_coded *c, const dcommi_exchange_pairs *p,
                                         uint32_t base, const dcommi_exchange_pairs *agreed)
{
    struct dcommi_spread *s = c->spread;
    dcommi_exchange_pairs *back = &s->back;
    const bool estimates = c->feedback->opts.variant == DCOMM_FEEDBACK_EF21;
    if (c->device == NULL) {
        return dcomm_feedback_give_back(c->feedback, base, p->index, s->lost, p->n, agreed->index,
                                        agreed->n);
    }
    if (back->n == 0) {
        const size_t quota = dcommi_exchange_quota(c->codec, s->count, s->nranks);
        DCOMMI_TRY(dcommi_exchange_reserve(back, s->chosen.n + quota));
    }
    for (size_t i = 0, k = 0; i < p->n; i++) {
        for (; k < agreed->n && agreed->index[k] < p->index[i]; k++) {
        }
        if (k == agreed->n || agreed->index[k] != p->index[i]) {
            back->index[back->n] = base + p->index[i];
            back->bits[back->n++] = dcommi_f32_bits(estimates ? -s->lost[i] : s->lost[i]);
        }
    }
    return DCOMM_OK;
}

/* ---- the owner ---- */

/* Keep what rounding took from the owner's sums. `sent` has the sums as the others get them. */
static dcomm_status dcommi_spread_keep(dcommi_coded *c, const dcommi_exchange_pairs *sent,
                                       const float *sums, uint32_t base, uint32_t divisor)
{
    struct dcommi_spread *s = c->spread;
    for (size_t i = 0; i < sent->n; i++) {
        float lost =
            dcommi_feedback_plus(sums[i], -(float)divisor, dcommi_f32_from_bits(sent->bits[i]));
        s->lost[i] = dcommi_f32_nonfinite(lost) ? 0 : lost;
    }
    return dcommi_spread_return(c, sent, base, &(dcommi_exchange_pairs){0});
}

static dcomm_status dcommi_spread_gather(dcommi_coded *c, const void *const *src,
                                         const size_t *src_len, size_t n, size_t count,
                                         uint64_t **keys_p, size_t *total_p)
{
    struct dcommi_spread *s = c->spread;
    size_t total = 0, at = 0, most = dcommi_topk_most(c->codec, s->count);
    for (size_t r = 0; r < n; r++) {
        dcommi_sparse_head head = {0};
        memcpy(&head, src[r], src_len[r] < sizeof head ? 0 : sizeof head);
        total += head.kept < most ? head.kept : most;
    }
    DCOMMI_TRY(dcommi_spread_room(&s->keys, &s->keys_room, (2 * total + 1) * sizeof *s->keys));
    for (size_t r = 0; r < n; r++) {
        DCOMMI_TRY(dcommi_exchange_read(c->codec, src[r], src_len[r], count, 0, most, &s->read));
        for (size_t i = 0; i < s->read.n; i++) {
            s->keys[at++] = (uint64_t)s->read.index[i] << 32 | s->read.bits[i];
        }
        s->end[r] = at;
    }
    *keys_p = dcommi_exchange_merge(s->keys, s->keys + total, s->end, n);
    *total_p = total;
    return DCOMM_OK;
}

/* Select and encode a region's sum at its owner: a u32, the number of elements in the sum, then
 * the elements that go on. */
static dcomm_status dcommi_spread_owner_step(void *user, const dcomm_codec_place *place,
                                             const void *const *src, const size_t *src_len,
                                             size_t nsrc, void *stage, size_t stage_len, void *dst,
                                             size_t dst_len, size_t *encoded)
{
    dcommi_coded *c = user;
    (void)stage;
    (void)stage_len;
    if (c == NULL) {
        return dcommi_fail(DCOMM_ERR_PLAN, "the plan runs without a codec");
    }
    DCOMMI_TRY(dcommi_spread_region(c, place));
    struct dcommi_spread *s = c->spread;
    uint32_t base = s->begin[place->first], end = s->begin[place->first + 1];
    uint64_t *keys;
    size_t total, clipped = 0;
    if (nsrc != s->nranks) {
        return dcommi_fail(DCOMM_ERR_PLAN, "%zu parts of %u ranks", nsrc, s->nranks);
    }
    DCOMMI_TRY(dcommi_spread_gather(c, src, src_len, nsrc, end - base, &keys, &total));
    dcommi_exchange_pairs *p = &s->read;
    DCOMMI_TRY(dcommi_exchange_reserve(p, total));
    DCOMMI_TRY(dcommi_spread_room(&s->lost, &s->lost_room, (2 * total + 1) * sizeof *s->lost));
    dcommi_exchange_add(c->codec, keys, total, p, &clipped);
    uint32_t summed = (uint32_t)p->n;
    dcommi_exchange_select(p, dcommi_exchange_quota(c->codec, s->count, nsrc));
    if (dcommi_topk_bytes(c->codec, end - base, p->n) + 4 > dst_len) {
        return dcommi_fail(DCOMM_ERR_PLAN, "%zu elements do not fit %zu bytes", p->n, dst_len);
    }
    float *sums = s->lost + total;
    for (size_t i = 0; i < p->n; i++) {
        sums[i] = dcommi_f32_from_bits(p->bits[i]);
        p->bits[i] = dcommi_f32_bits(sums[i] * (1.0f / (float)place->divisor));
    }
    memcpy(dst, &summed, sizeof summed);
    *encoded = 4 + dcommi_exchange_write(c->codec, p, 0, p->n, 0, end - base,
                                         (unsigned char *)dst + 4, &clipped);
    dcommi_spread_told(c, *encoded, clipped);
    return c->feedback != NULL ? dcommi_spread_keep(c, p, sums, base, place->divisor) : DCOMM_OK;
}

/* ---- decode ---- */

/* Return the elements that this rank selected and no owner did to the residual. */
static dcomm_status dcommi_spread_give_back(dcommi_coded *c)
{
    struct dcommi_spread *s = c->spread;
    DCOMMI_TRY(dcommi_spread_room(&s->lost, &s->lost_room, (s->chosen.n + 1) * sizeof *s->lost));
    for (size_t i = 0; i < s->chosen.n; i++) {
        float value = dcommi_f32_from_bits(s->chosen.bits[i]);
        s->lost[i] = dcommi_f32_nonfinite(value) ? 0 : value;
    }
    return dcommi_spread_return(c, &s->chosen, 0, &s->agreed);
}

/* Add a region's result to what is agreed. */
static dcomm_status dcommi_spread_agree(dcommi_coded *c, const dcomm_codec_place *place,
                                        const void *src, size_t src_len, void *dst)
{
    DCOMMI_TRY(dcommi_spread_region(c, place));
    struct dcommi_spread *s = c->spread;
    uint32_t base = s->begin[place->first], end = s->begin[place->first + 1], summed = 0;
    size_t quota = dcommi_exchange_quota(c->codec, s->count, s->nranks);
    if (place->first == 0) {
        s->out = dst;
        DCOMMI_TRY(dcommi_exchange_reserve(&s->agreed, quota * s->nranks));
    }
    memcpy(&summed, src, src_len < 4 ? 0 : 4);
    size_t kept = summed < quota ? summed : quota;
    if (src_len < 4 || summed > end - base) {
        return dcommi_fail(DCOMM_ERR_CORRUPT,
                           "the result of region %" PRIu64
                           ", %zu bytes, is of %u among %u elements",
                           place->first, src_len, summed, end - base);
    }
    DCOMMI_TRY(dcommi_exchange_read(c->codec, (const unsigned char *)src + 4, src_len - 4,
                                    end - base, kept, kept, &s->read));
    size_t nonzero = 0;
    for (size_t i = 0; i < s->read.n; i++) {
        s->agreed.index[s->agreed.n] = base + s->read.index[i];
        s->agreed.bits[s->agreed.n++] = s->read.bits[i];
        nonzero += (s->read.bits[i] & DCOMMI_ABS_BITS) != 0;
    }
    if (c->report != NULL) {
        c->report->summed += summed;
        c->report->nonzero += nonzero;
    }
    return place->first + 1 == s->nranks && c->feedback != NULL ? dcommi_spread_give_back(c)
                                                                : DCOMM_OK;
}

static dcomm_status dcommi_spread_result(dcommi_coded *c, const dcomm_codec_place *place,
                                         const void *src, size_t src_len, void *dst)
{
    const size_t before = c->spread->agreed.n;
    DCOMMI_TRY(dcommi_spread_agree(c, place, src, src_len, dst));
    struct dcommi_spread *s = c->spread;
    if (place->first == 0) {
        memset(s->out, 0, s->count * sizeof *s->out);
    }
    for (size_t i = before; i < s->agreed.n; i++) {
        s->out[s->agreed.index[i]] = dcommi_f32_from_bits(s->agreed.bits[i]);
    }
    return place->first + 1 == s->nranks && c->feedback != NULL
               ? dcomm_feedback_finish(c->feedback, 0, s->count, s->out)
               : DCOMM_OK;
}

static dcomm_status dcommi_spread_decode_step(void *user, const dcomm_codec_place *place,
                                              const void *const *src, const size_t *src_len,
                                              size_t nsrc, void *dst, size_t dst_len)
{
    dcommi_coded *c = user;
    (void)dst_len;
    if (c == NULL || c->spread == NULL) {
        return dcommi_fail(DCOMM_ERR_PLAN, "the plan runs without a codec");
    }
    struct dcommi_spread *s = c->spread;
    if (place->round == DCOMMI_SPREAD_RESULT) {
        return dcommi_spread_result(c, place, src[0], src_len[0], dst);
    }
    if (nsrc > s->regions) {
        dcommi_free(s->begin);
        dcommi_free(s->end);
        s->begin = dcommi_alloc_raw((nsrc + 1) * sizeof *s->begin);
        s->end = dcommi_alloc_raw(nsrc * sizeof *s->end);
        s->regions = s->begin != NULL && s->end != NULL ? nsrc : 0;
    }
    size_t m = dcommi_exchange_samples(c->codec, s->count, nsrc);
    DCOMMI_TRY(nsrc <= s->regions ? DCOMM_OK : DCOMM_ERR_NO_MEMORY);
    DCOMMI_TRY(dcommi_spread_room(&s->keys, &s->keys_room, 2 * nsrc * m * sizeof *s->keys));
    DCOMMI_TRY(dcommi_exchange_regions(src, src_len, nsrc, m, s->count,
                                       dcommi_topk_most(c->codec, s->count), s->keys, s->end,
                                       s->begin));
    s->nranks = (uint32_t)nsrc;
    return DCOMM_OK;
}

static const dcomm_plan_codec dcommi_spread_codec = {
    .name = "sparse exchange",
    .encode = dcommi_spread_encode_step,
    .decode = dcommi_spread_decode_step,
    .recode = dcommi_spread_owner_step,
};

/* ---- what the algorithm may know ---- */

static size_t dcommi_spread_part_bytes(const void *codec, size_t count, size_t kept)
{
    return dcommi_topk_bytes(codec, count, kept);
}

static size_t dcommi_spread_samples(const void *codec, size_t count, size_t nranks)
{
    return dcommi_exchange_samples(codec, count, nranks);
}

/* Describe a codec that selects elements. Decoding costs the filling with zeros and, until it is
 * measured, about eight times copying for each element. */
static void dcommi_spread_offer(const dcomm_codec *codec, size_t count, dcommi_coding *coding)
{
    if (!dcommi_codec_is(codec, DCOMMI_IS_SELECTION) || count == 0 || count > UINT32_MAX) {
        return;
    }
    coding->most = (int64_t)dcommi_topk_most(codec, count);
    int64_t cost = 64 + 8 * 1024 * coding->most / (int64_t)count;
    coding->cost_decode = (uint32_t)dcommi_min64(cost, 1024);
    if (dcommi_codec_is(codec, DCOMMI_IS_SPLIT)) {
        coding->spread = &dcommi_spread_codec;
        coding->part_bytes = dcommi_spread_part_bytes;
        coding->samples = dcommi_spread_samples;
    }
}

#endif
