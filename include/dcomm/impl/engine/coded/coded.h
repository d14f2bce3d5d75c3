/* coded.h - compressed calls: the codec's steps, which calls are compressed, and what the
 * algorithm may know of the codec. */
#ifndef DCOMMI_CODED_H
#define DCOMMI_CODED_H

#include "../../../coll.h"
#include "linear.h"
#include "sparse.h"
#include "../../algo/table.h"

/* A shorter tensor is not worth two more kernels and the codec's error. */
#define DCOMMI_CODED_MIN 2048 /* elements; coll.h and docs/compressed-allreduce.md name it */

static dcomm_status dcommi_coded_step_encode(void *user, const dcomm_codec_place *place,
                                             const void *src, size_t src_len, void *dst,
                                             size_t dst_len, size_t *encoded)
{
    dcommi_coded *c = user;
    size_t count = src_len / sizeof(float);
    dcomm_codec_report report = {.first_nonfinite = SIZE_MAX};
    if (c == NULL) {
        return dcommi_fail(DCOMM_ERR_PLAN, "the plan runs without a codec");
    }
    dcomm_codec_key key = dcommi_coded_key(c, place);
    dcomm_status status;
    if (dcommi_linear_powersgd(c)) {
        return dcommi_linear_encode(c, place, src, src_len, dst, dst_len, encoded);
    }
    if (c->feedback != NULL) {
        DCOMMI_TRY(dcommi_coded_begin_feedback(c, src, place->first));
        status = dcommi_feedback_encode_of(c->feedback, src, place->first, count, dst, dst_len,
                                           encoded, &report);
    } else {
        status = dcommi_coded_plain(c, src, count, &key, dst, dst_len, encoded, &report);
    }
    dcommi_coded_tell(c, place, &report);
    return dcommi_coded_judge(c, status, &report);
}

static dcomm_status dcommi_coded_divide(float *x, size_t len, const dcomm_codec_place *place)
{
    const void *src = x;
    return place->divisor > 1 ? dcommi_host_reduce(x, &src, 1, len / sizeof *x, DCOMM_F32,
                                                   DCOMM_AVG, place->divisor)
                              : DCOMM_OK;
}

/* Count the nonzero elements in the sum of sparse wires. */
static void dcommi_coded_fill(dcommi_coded *c, const float *x, size_t count, size_t nsrc)
{
    if (c->report == NULL || !dcommi_codec_has(c->codec, DCOMMI_CODEC_SPARSE)) {
        return;
    }
    size_t nonzero = 0;
    for (size_t i = 0; i < count; i++) {
        nonzero += x[i] != 0;
    }
    c->report->nonzero += nonzero;
    c->report->summed += nsrc > 1 ? nonzero : 0; /* else an owner has selected again */
}

static dcomm_status dcommi_coded_step_decode(void *user, const dcomm_codec_place *place,
                                             const void *const *src, const size_t *src_len,
                                             size_t nsrc, void *dst, size_t dst_len)
{
    dcommi_coded *c = user;
    size_t count = dst_len / sizeof(float);
    if (c == NULL) {
        return dcommi_fail(DCOMM_ERR_PLAN, "the plan runs without a codec");
    }
    dcomm_status status = dcomm_decode_sum(c->codec, src, src_len, nsrc, dst, count);
    if (status < 0) { /* wires that cannot be decoded give no result */
        return dcommi_coded_judge(c, status, NULL);
    }
    DCOMMI_TRY(dcommi_coded_divide(dst, dst_len, place));
    dcommi_coded_fill(c, dst, count, nsrc);
    if (dcommi_linear_powersgd(c)) {
        DCOMMI_TRY(dcommi_linear_remember(c, src[0]));
    }
    return c->feedback != NULL ? dcomm_feedback_finish(c->feedback, place->first, count, dst)
                               : DCOMM_OK;
}

static dcomm_status dcommi_coded_step_recode(void *user, const dcomm_codec_place *place,
                                             const void *const *src, const size_t *src_len,
                                             size_t nsrc, void *stage, size_t stage_len, void *dst,
                                             size_t dst_len, size_t *encoded)
{
    dcommi_coded *c = user;
    size_t count = stage_len / sizeof(float);
    (void)stage;
    if (c == NULL) {
        return dcommi_fail(DCOMM_ERR_PLAN, "the plan runs without a codec");
    }
    dcomm_codec_key key = dcommi_coded_key(c, place);
    dcomm_codec_report report = {0};
    float factor = 1.0f / (float)place->divisor;
    dcomm_status status;
    if (c->feedback != NULL && c->begins.partly) {
        status = dcommi_feedback_recode_here(c->feedback, src, src_len, nsrc, place->divisor,
                                             place->first, count, dst, dst_len, encoded, &report);
    } else if (c->feedback != NULL) {
        status = dcomm_feedback_recode(c->feedback, src, src_len, nsrc, factor, place->first, count,
                                       dst, dst_len, encoded, &report);
    } else {
        DCOMMI_TRY(dcommi_coded_workspace(c, dcomm_codec_recode_workspace_bytes(c->codec, count)));
        status = dcomm_recode(c->codec, src, src_len, nsrc, factor, NULL, NULL, count, &key, dst,
                              dst_len, encoded, c->workspace, &report);
        if (status >= 0 && c->ledger != NULL) { /* the input to compare is not available */
            dcomm_ledger_encoded(c->ledger, count, &report);
        }
    }
    if (status >= 0 || report.nonfinite > 0) {
        dcommi_coded_tell(c, place, &report);
    }
    return dcommi_coded_judge(c, status, &report);
}

static const dcomm_plan_codec dcommi_coded_codec = {
    .name = "codec",
    .encode = dcommi_coded_step_encode,
    .decode = dcommi_coded_step_decode,
    .recode = dcommi_coded_step_recode,
};

/* ---- the call ---- */

static size_t dcommi_coding_max_bytes(const void *sizes, size_t count)
{
    return dcomm_codec_max_bytes(sizes, count);
}

/* Return the codec of a call; NULL: none. While DGC warms up, it is not the one in the call's
 * options. */
static const dcomm_codec *dcommi_coded_codec_of(const dcomm_coll_opts *opts)
{
    return opts->feedback != NULL ? dcomm_feedback_codec(opts->feedback) : opts->codec;
}

/* Return the elements of the tensor that a call compresses: in a reduce-scatter and an all-gather
 * those of all blocks. */
static size_t dcommi_coded_elements(const dcommi_shape *s)
{
    size_t count = s->coll == DCOMM_COLL_ALLREDUCE ? s->count : s->count * (size_t)s->nranks;
    for (int r = 0; s->counts != NULL && r < s->nranks; r++) {
        count += s->counts[r];
    }
    return count;
}

/* Describe a call's codec: for its algorithm, and for the ranks to agree on. */
static dcomm_status dcommi_coding_of(const dcomm_coll_opts *opts, size_t count,
                                     dcommi_coding *coding)
{
    const dcomm_codec *codec = dcommi_coded_codec_of(opts);
    dcomm_codec_info info;
    DCOMMI_TRY(dcomm_codec_get_info(codec, count, &info));
    memset(coding, 0, sizeof *coding);
    coding->codec = &dcommi_coded_codec;
    coding->spec = dcomm_codec_spec(codec);
    coding->max_bytes = dcommi_coding_max_bytes;
    coding->sizes = codec;
    coding->granule = (int64_t)info.granule;
    coding->whole = info.sparse || info.linear;
    dcommi_linear_parts(codec, count, coding);
    dcommi_spread_offer(codec, count, coding);
    coding->hash = dcommi_mix_text(0x5851f42d4c957f2du, coding->spec);
    if (opts->feedback != NULL) { /* EF21 sends differences, which no other variant can add */
        bool differences = opts->feedback->opts.variant == DCOMM_FEEDBACK_EF21;
        coding->feedback = true;
        coding->variant = opts->feedback->opts.variant != DCOMM_FEEDBACK_CLASSIC;
        coding->clips = opts->feedback->opts.clip > 0;
        coding->differences = differences;
        coding->hash = dcommi_mix(coding->hash, differences);
        coding->hash = differences ? dcommi_mix(coding->hash, 1) : coding->hash;
    }
    return DCOMM_OK;
}

/* Check that error feedback fits a call. */
static dcomm_status dcommi_coded_check_feedback(const dcommi_shape *s, const dcomm_coll_opts *opts)
{
    const dcomm_feedback *fb = opts->feedback;
    if (fb == NULL) {
        return DCOMM_OK;
    }
    const size_t count = dcommi_coded_elements(s);
    if (!dcommi_coll_folds(s->coll)) {
        return dcommi_fail(DCOMM_ERR_UNSUPPORTED,
                           "%s: opts.feedback is for sums; what an all-gather's codec drops is not "
                           "sent again, because the next call sends the numbers anew",
                           dcomm_coll_name(s->coll));
    }
    if (s->coll != DCOMM_COLL_ALLREDUCE && fb->opts.variant == DCOMM_FEEDBACK_EF21) {
        return dcommi_fail(DCOMM_ERR_UNSUPPORTED,
                           "%s cannot run with EF21: a rank would have the estimate of its block "
                           "alone, and EF21 needs that of the whole tensor",
                           dcomm_coll_name(s->coll));
    }
    if (fb->count != count ||
        (opts->codec != NULL && strcmp(opts->codec->spec, fb->codec->spec) != 0)) {
        return dcommi_fail(DCOMM_ERR_INVALID,
                           "%s: opts.feedback was made for %zu elements and codec %s; the call has "
                           "%zu elements and %s",
                           dcomm_coll_name(s->coll), fb->count, fb->codec->spec, count,
                           opts->codec != NULL ? opts->codec->spec : "the same codec");
    }
    /* A call behind another one on the same stream is checked when that has ended and this one
     * begins. But the step's number decides beforehand what linear codecs draw and what warms
     * up. */
    bool behind = opts->stream != NULL && fb->opts.warmup_steps == 0 &&
                  !dcommi_codec_has(fb->codec, DCOMMI_CODEC_LINEAR);
    if (!behind && (fb->stale || fb->begun)) {
        return dcommi_fail(DCOMM_ERR_INVALID, "%s: opts.feedback is %s", dcomm_coll_name(s->coll),
                           fb->stale ? "stale, because a collective with it failed; see "
                                       "dcomm_feedback_recover"
                                     : "in use by another call");
    }
    return DCOMM_OK;
}

/* Return true if compressed calls can have an operator. */
static bool dcommi_coded_op(dcomm_op op)
{
    return op == DCOMM_SUM || op == DCOMM_AVG || op == DCOMM_PREMUL_SUM;
}

/* Return true if a call with a codec is compressed. All its ranks decide alike. */
static bool dcommi_coded_wanted(const dcommi_shape *s, const dcomm_coll_opts *opts)
{
    bool named = opts->algo != NULL && dcommi_coded_find(s->coll, opts->algo) != NULL;
    return s->nranks > 1 && dcommi_coded_elements(s) > 0 && s->dtype <= DCOMM_BF16 &&
           (named || dcommi_coded_elements(s) >= DCOMMI_CODED_MIN);
}

/* Return true if a codec can encode each block of a reduce-scatter or all-gather on its own. */
static bool dcommi_coded_by_block(const dcomm_codec *codec)
{
    return !codec->automatic && !dcommi_codec_has(codec, DCOMMI_CODEC_SPARSE | DCOMMI_CODEC_LINEAR);
}

static dcomm_status dcommi_coded_check_blocks(const dcommi_shape *s, const dcomm_codec *codec)
{
    if (!dcommi_coded_by_block(codec)) {
        return dcommi_fail(DCOMM_ERR_UNSUPPORTED,
                           "%s cannot use codec %.64s: %s; take a codec of blocks, such as qsgd",
                           dcomm_coll_name(s->coll), dcomm_codec_spec(codec),
                           codec->automatic ? "auto decides about all-reduces alone"
                                            : "it chooses what to send from the whole tensor, and "
                                              "here each block is encoded on its own");
    }
    return DCOMM_OK;
}

/* Give a shape its codec, if one is to be used. */
static dcomm_status dcommi_coded_begin(dcommi_shape *s, const dcomm_coll_opts *opts,
                                       dcommi_coding *coding)
{
    s->coding = NULL;
    if (opts->codec == NULL && opts->feedback == NULL) {
        return DCOMM_OK;
    }
    DCOMMI_TRY(dcommi_coded_check_feedback(s, opts));
    if (!dcommi_coded_op(s->op)) {
        return dcommi_fail(DCOMM_ERR_UNSUPPORTED,
                           "%s: a codec cannot compress operator %s, only sums and averages",
                           dcomm_coll_name(s->coll), dcomm_op_name(s->op));
    }
    if (s->coll != DCOMM_COLL_ALLREDUCE) {
        DCOMMI_TRY(dcommi_coded_check_blocks(s, dcommi_coded_codec_of(opts)));
    }
    if (dcommi_coded_wanted(s, opts)) {
        DCOMMI_TRY(dcommi_coding_of(opts, dcommi_coded_elements(s), coding));
        s->coding = coding;
    }
    return DCOMM_OK;
}

/* Make the coded part of a run; with comm->lock. */
static dcomm_status dcommi_coded_new(dcomm_comm *comm, const dcomm_coll_opts *opts,
                                     dcommi_coded **coded_p)
{
    dcommi_coded *c = comm->free_coded;
    if (c != NULL) {
        comm->free_coded = c->next;
    } else if ((c = dcommi_alloc(sizeof *c)) == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    c->codec = dcommi_coded_codec_of(opts);
    c->feedback = opts->feedback;
    c->begun = false;
    c->found = DCOMM_OK;
    c->device = NULL;
    c->rank = (uint32_t)comm->rank;
    c->report = opts->codec_report;
    c->ledger = opts->codec_ledger;
    if (c->report != NULL) {
        *c->report = (dcomm_codec_report){.first_nonfinite = SIZE_MAX};
    }
    *coded_p = c;
    return DCOMM_OK;
}

/* Complete the coded part of a call that has its plan and its number. */
static void dcommi_coded_numbered(dcommi_coded *c, const dcomm_coll_opts *opts,
                                  const dcomm_plan *plan, uint64_t seq)
{
    c->linear = plan->codec_linear;
    c->begins = (dcomm_feedback_step){.own_first = (size_t)plan->recoded_first,
                                      .own_count = (size_t)plan->recoded_count,
                                      .rank = c->rank,
                                      .nranks = (uint32_t)plan->nranks,
                                      .average = plan->op == DCOMM_AVG,
                                      .partly = plan->codec_partly};
    c->key = (dcomm_codec_key){.seed = opts->codec_seed,
                               .step = opts->codec_step != 0 ? opts->codec_step : seq + 1};
}

/* Hash what the random numbers depend on, for the call's signature: where encodings are summed,
 * all ranks must draw the same. The plan cannot tell, because it serves all steps. */
static uint32_t dcommi_coded_agreed(const dcommi_coded *c)
{
    if (!c->linear) {
        return 0;
    }
    const dcomm_feedback *fb = c->feedback;
    uint64_t h =
        dcommi_mix(fb != NULL ? fb->opts.seed : c->key.seed, fb != NULL ? fb->step : c->key.step);
    h = dcommi_mix(h, fb != NULL ? fb->opts.tensor : c->key.tensor);
    return (uint32_t)(h ^ (h >> 32));
}

/* End the codec's part of a run. Residuals become those of the next step or, after a failure,
 * stale. */
static void dcommi_coded_end(dcommi_coded *c, dcomm_status status)
{
    if (c->feedback == NULL) {
        return;
    }
    if (c->begun) {
        c->feedback->ledger = c->replaced;
    }
    if (status < 0) {
        dcommi_coded_left(c);
        dcomm_feedback_fail(c->feedback);
    } else if (c->begun && dcomm_feedback_commit(c->feedback) < 0) {
        dcommi_log(DCOMMI_LOG_ERROR, "error feedback: %s", dcommi_message);
    } else if (!c->begun && c->begins.partly) {
        dcommi_feedback_skip(c->feedback);
    }
}

/* Return a coded part to the free list. With comm->lock. */
static void dcommi_coded_drop(dcomm_comm *comm, dcommi_coded *c)
{
    if (c != NULL) {
        c->next = comm->free_coded;
        comm->free_coded = c;
    }
}

static void dcommi_coded_free_all(dcomm_comm *comm)
{
    while (comm->free_coded != NULL) {
        dcommi_coded *c = comm->free_coded;
        comm->free_coded = c->next;
        dcommi_free(c->workspace);
        dcommi_spread_free(c->spread);
        dcommi_free(c);
    }
}

#endif
