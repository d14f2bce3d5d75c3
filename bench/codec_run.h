/* codec_run.h - sum several ranks' gradients in one process, encoded as the collectives encode
 * them: by two shots, by a ring that encodes at each hop, or by an all-gather, with or without
 * error feedback, over many steps. */
#ifndef CODEC_RUN_H
#define CODEC_RUN_H

#include "codec_args.h"

#include <unistd.h>

/* Results of one step's sum. */
typedef struct codec_step {
    uint64_t step;
    dcomm_ledger ledger; /* errors of the sum against the exact sum */
    double nmse_all;     /* nmse of the sum over all steps so far */
    double residual_norm, contraction;
    double fill_in;        /* share of the result's elements that are not 0 */
    double fill_k;         /* sparse codecs: elements of the sum / elements that one rank sent */
    dcomm_ledger feedback; /* errors of the step's encodings, with feedback */
    double error_all, exact_all;    /* sums of squares for nmse_all */
    uint64_t count, filled, summed; /* elements; nonzero elements of the result and of the sum */
    uint64_t chosen;                /* elements that all ranks sent of their own gradients */
    uint64_t wire_bytes;            /* bytes that all ranks send */
    uint64_t nonfinite, clipped, kept, encoded;
} codec_step;

typedef struct codec_run {
    const codec_args *args;
    const codec_input *input;
    dcomm_codec *codec;
    dcomm_codec_info info;
    size_t n;
    uint32_t ranks;
    bool linear; /* linear codec: the sum is not encoded again */
    dcomm_feedback **fb;
    float *x, *sum, *result;   /* a gradient; the sum of decoded gradients; the result */
    double *exact, *exact_all; /* exact sum of one step and of all steps */
    double *all;               /* results added up over all steps */
    unsigned char *wire;
    size_t capacity;
    void *workspace;
    codec_step now;
} codec_run;

/* Return the first element of shard q. Shards consist of whole granules. */
static size_t codec_shard(const codec_run *run, uint32_t q)
{
    size_t granules = run->n / run->info.granule + (run->n % run->info.granule != 0);
    size_t at = granules / run->ranks * q + granules % run->ranks * q / run->ranks;
    return at * run->info.granule < run->n ? at * run->info.granule : run->n;
}

static void codec_run_free(codec_run *run)
{
    for (uint32_t r = 0; run->fb != NULL && r < run->ranks; r++) {
        dcomm_feedback_destroy(&run->fb[r]);
    }
    free(run->fb);
    free(run->x);
    free(run->sum);
    free(run->result);
    free(run->exact);
    free(run->exact_all);
    free(run->all);
    free(run->wire);
    free(run->workspace);
    dcomm_codec_destroy(&run->codec);
}

static void *codec_array(size_t n, size_t size)
{
    size_t bytes = (n * size + 63) & ~(size_t)63;
    void *p = aligned_alloc(64, bytes + 64);
    if (p != NULL) {
        memset(p, 0, bytes + 64);
    }
    return p;
}

/* Return true if the residuals of all ranks fit into memory. Without this check, the kernel would
 * kill the process later. */
static bool codec_run_fits(const codec_run *run)
{
    double page = (double)sysconf(_SC_PAGESIZE), pages = (double)sysconf(_SC_PHYS_PAGES);
    double states = run->args->opts.variant == DCOMM_FEEDBACK_CLASSIC ? 1 : 2;
    double need = (double)run->n * run->ranks *
                  (states * (run->args->opts.bf16 ? 2 : 4) + (run->info.linear ? 4 : 0));
    if (run->args->feedback && need > 0.8 * page * pages) {
        fprintf(stderr, "dcomm-codec: the residuals of %u ranks take %.1f GB, more than there is\n",
                run->ranks, need * 1e-9);
        return false;
    }
    return true;
}

static dcomm_status codec_run_feedback(codec_run *run)
{
    run->fb = calloc(run->ranks, sizeof(dcomm_feedback *));
    for (uint32_t r = 0; run->fb != NULL && r < run->ranks; r++) {
        dcomm_feedback_opts opts = run->args->opts;
        opts.seed = run->input->seed;
        opts.in_place = true; /* no step fails, so none is retried */
        dcomm_status status = dcomm_feedback_create(run->codec, run->n, &opts, &run->fb[r]);
        if (status != DCOMM_OK) {
            return status;
        }
        dcomm_feedback_set_ledger(run->fb[r], &run->now.feedback);
    }
    return run->fb != NULL ? DCOMM_OK : DCOMM_ERR_NO_MEMORY;
}

/* Make a run. The run owns the codec afterwards, even after an error. */
static dcomm_status codec_run_make(codec_run *run, const codec_args *args, dcomm_codec *codec)
{
    *run = (codec_run){.args = args,
                       .input = &args->input,
                       .codec = codec,
                       .n = args->input.n,
                       .ranks = args->ranks};
    dcomm_status status = dcomm_codec_get_info(codec, run->n, &run->info);
    if (status != DCOMM_OK || !codec_run_fits(run)) {
        return status != DCOMM_OK ? status : DCOMM_ERR_NO_MEMORY;
    }
    run->linear = run->info.linear;
    if (args->feedback) {
        status = codec_run_feedback(run);
        if (status != DCOMM_OK) {
            return status;
        }
    }
    run->capacity =
        args->feedback ? dcomm_feedback_max_bytes(run->fb[0], run->n) : run->info.max_bytes;
    run->x = codec_array(run->n, sizeof(float));
    run->sum = codec_array(run->n, sizeof(float));
    run->result = codec_array(run->n, sizeof(float));
    run->exact = codec_array(run->n, sizeof(double));
    run->exact_all = codec_array(run->n, sizeof(double));
    run->all = codec_array(run->n, sizeof(double));
    run->wire = codec_array(run->capacity, 1);
    run->workspace = codec_array(dcomm_codec_workspace_bytes(codec, run->n), 1);
    bool good = run->x != NULL && run->sum != NULL && run->result != NULL && run->exact != NULL &&
                run->exact_all != NULL && run->all != NULL && run->wire != NULL &&
                run->workspace != NULL;
    return good ? DCOMM_OK : DCOMM_ERR_NO_MEMORY;
}

/* ---- encodings ---- */

/* Add an encoding's report to the step. A gradient that is not finite is no error here: the report
 * counts it. */
static dcomm_status codec_seen(codec_run *run, dcomm_status status, size_t count,
                               const dcomm_codec_report *report, size_t bytes)
{
    if (status != DCOMM_OK && report->nonfinite == 0) {
        return status;
    }
    run->now.wire_bytes += bytes;
    run->now.nonfinite += report->nonfinite;
    run->now.clipped += report->clipped;
    run->now.kept += report->kept;
    run->now.encoded += count;
    return DCOMM_OK;
}

/* Encode x as rank `rank`; x holds elements [first, first + count). */
static dcomm_status codec_encode(codec_run *run, uint32_t rank, const float *x, size_t first,
                                 size_t count, size_t *bytes)
{
    dcomm_codec_report report = {0};
    dcomm_status status;
    *bytes = 0;
    if (run->fb != NULL) {
        status = dcomm_feedback_encode(run->fb[rank], first, count, run->wire, run->capacity, bytes,
                                       &report);
    } else {
        dcomm_codec_key key = {
            .seed = run->input->seed, .step = run->now.step, .first = first, .rank = rank};
        status = dcomm_encode(run->codec, x, count, &key, run->wire, run->capacity, bytes,
                              run->workspace, &report);
    }
    return codec_seen(run, status, count, &report, *bytes);
}

static dcomm_status codec_encode_owned(codec_run *run, uint32_t rank, size_t first, size_t count,
                                       size_t *bytes)
{
    dcomm_codec_report report = {0};
    dcomm_status status;
    *bytes = 0;
    if (run->fb != NULL) {
        status = dcomm_feedback_encode_owned(run->fb[rank], run->sum + first, 1, first, count,
                                             run->wire, run->capacity, bytes, &report);
    } else {
        dcomm_codec_key key = {.seed = run->input->seed,
                               .step = run->now.step,
                               .first = first,
                               .rank = rank | DCOMMI_FEEDBACK_OWNER};
        status = dcomm_encode(run->codec, run->sum + first, count, &key, run->wire, run->capacity,
                              bytes, run->workspace, &report);
    }
    return codec_seen(run, status, count, &report, *bytes);
}

static const dcomm_codec *codec_now(codec_run *run)
{
    return run->fb != NULL ? dcomm_feedback_codec(run->fb[0]) : run->codec;
}

/* ---- algorithms of the sum ---- */

static void codec_exact(codec_run *run)
{
    for (size_t i = 0; i < run->n; i++) {
        run->exact[i] += isfinite(run->x[i]) ? (double)run->x[i] : 0;
    }
}

static dcomm_status codec_begin(codec_run *run, uint32_t r, bool owns)
{
    if (run->fb == NULL) {
        return DCOMM_OK;
    }
    size_t first = owns ? codec_shard(run, r) : 0;
    dcomm_feedback_step step = {.x = run->x,
                                .own_first = first,
                                .own_count = owns ? codec_shard(run, r + 1) - first : 0,
                                .rank = r,
                                .nranks = run->ranks};
    return dcomm_feedback_begin(run->fb[r], &step);
}

/* Encode every rank's gradient, in one piece or with `shards` in one piece per rank. Add up the
 * decoded pieces in run->sum, in rank order. */
static dcomm_status codec_first_shot(codec_run *run, bool shards)
{
    uint32_t pieces = shards ? run->ranks : 1;
    for (uint32_t r = 0; r < run->ranks; r++) {
        input_fill(run->input, r, run->now.step, 0, run->n, run->x);
        codec_exact(run);
        DCOMMI_TRY(codec_begin(run, r, shards));
        for (uint32_t q = 0; q < pieces; q++) {
            size_t first = shards ? codec_shard(run, q) : 0, bytes;
            size_t count = (shards ? codec_shard(run, q + 1) : run->n) - first;
            DCOMMI_TRY(codec_encode(run, r, run->x + first, first, count, &bytes));
            DCOMMI_TRY(dcomm_decode_add(codec_now(run), run->wire, bytes, run->sum + first, count));
        }
    }
    run->now.chosen = run->now.kept;
    return DCOMM_OK;
}

static dcomm_status codec_two_shot(codec_run *run)
{
    DCOMMI_TRY(codec_first_shot(run, true));
    for (uint32_t q = 0; q < run->ranks; q++) {
        size_t first = codec_shard(run, q), count = codec_shard(run, q + 1) - first, bytes;
        DCOMMI_TRY(codec_encode_owned(run, q, first, count, &bytes));
        DCOMMI_TRY(dcomm_decode(codec_now(run), run->wire, bytes, run->result + first, count));
    }
    return DCOMM_OK;
}

static dcomm_status codec_allgather(codec_run *run)
{
    DCOMMI_TRY(codec_first_shot(run, false));
    memcpy(run->result, run->sum, run->n * sizeof *run->result);
    return DCOMM_OK;
}

/* Sum by a ring. Chunk q travels from rank q + 1 to its owner q. Each hop adds its own part and
 * encodes the sum. */
static dcomm_status codec_ring(codec_run *run)
{
    for (uint32_t r = 0; r < run->ranks; r++) {
        input_fill(run->input, r, run->now.step, 0, run->n, run->x);
        codec_exact(run);
        DCOMMI_TRY(codec_begin(run, r, false));
    }
    for (uint32_t q = 0; q < run->ranks; q++) {
        size_t first = codec_shard(run, q), count = codec_shard(run, q + 1) - first, bytes = 0;
        for (uint32_t s = 0; s < run->ranks; s++) {
            uint32_t r = (q + 1 + s) % run->ranks;
            input_fill(run->input, r, run->now.step, first, count, run->x + first);
            if (s > 0) {
                DCOMMI_TRY(
                    dcomm_decode_add(codec_now(run), run->wire, bytes, run->x + first, count));
            }
            DCOMMI_TRY(codec_encode(run, r, run->x + first, first, count, &bytes));
        }
        DCOMMI_TRY(dcomm_decode(codec_now(run), run->wire, bytes, run->result + first, count));
    }
    return DCOMM_OK;
}

/* Defined in codec_sparse.h and codec_lowrank.h. */
static dcomm_status codec_sparse(codec_run *run);
static dcomm_status codec_lowrank(codec_run *run);

/* ---- steps ---- */

static void codec_accumulate(codec_run *run)
{
    for (size_t i = 0; i < run->n; i++) {
        run->all[i] += isfinite(run->result[i]) ? (double)run->result[i] : 0;
        run->exact_all[i] += run->exact[i];
        double e = run->all[i] - run->exact_all[i];
        run->now.error_all += e * e;
        run->now.exact_all += run->exact_all[i] * run->exact_all[i];
    }
}

/* Compute the ratios from the counts. */
static void codec_step_rate(codec_step *s, uint32_t ranks, bool sparse, bool feedback)
{
    s->nmse_all = s->error_all > 0 ? s->error_all / s->exact_all : 0;
    s->fill_in = (double)s->filled / (double)s->count;
    s->fill_k = sparse && s->chosen > 0 ? (double)s->summed * ranks / (double)s->chosen : NAN;
    s->contraction = feedback ? s->feedback.contraction : NAN;
    s->residual_norm = feedback ? sqrt(s->feedback.sums[DCOMMI_LEDGER_RESIDUAL]) : NAN;
}

/* Add the same step of another tensor. */
static void codec_step_merge(codec_step *s, const codec_step *other)
{
    s->step = other->step;
    dcomm_ledger_merge(&s->ledger, &other->ledger);
    dcomm_ledger_merge(&s->feedback, &other->feedback);
    s->error_all += other->error_all;
    s->exact_all += other->exact_all;
    s->count += other->count;
    s->filled += other->filled;
    s->summed += other->summed;
    s->chosen += other->chosen;
    s->wire_bytes += other->wire_bytes;
    s->nonfinite += other->nonfinite;
    s->clipped += other->clipped;
    s->kept += other->kept;
    s->encoded += other->encoded;
}

static dcomm_status codec_run_step(codec_run *run, uint64_t step)
{
    run->now = (codec_step){.step = step, .count = run->n};
    memset(run->sum, 0, run->n * sizeof *run->sum);
    memset(run->exact, 0, run->n * sizeof *run->exact);
    bool whole = run->linear || run->ranks == 1;
    bool products = run->ranks > 1 && dcommi_codec_is(run->codec, DCOMMI_IS_PRODUCTS);
    DCOMMI_TRY(products                                   ? codec_lowrank(run)
               : whole || run->args->way == WAY_ALLGATHER ? codec_allgather(run)
               : run->args->way == WAY_RING               ? codec_ring(run)
               : run->args->way == WAY_SPARSE             ? codec_sparse(run)
                                                          : codec_two_shot(run));
    for (uint32_t r = 0; run->fb != NULL && r < run->ranks; r++) {
        /* each rank turns its own copy of the result into the estimate */
        memcpy(run->x, run->result, run->n * sizeof *run->x);
        DCOMMI_TRY(dcomm_feedback_finish(run->fb[r], 0, run->n, run->x));
        DCOMMI_TRY(dcomm_feedback_commit(run->fb[r]));
    }
    if (run->fb != NULL) {
        memcpy(run->result, run->x, run->n * sizeof *run->x);
    }
    for (size_t i = 0; i < run->n; i++) {
        run->now.filled += run->result[i] != 0;
        run->now.summed += run->sum[i] != 0;
    }
    dcomm_ledger_compare_f64(&run->now.ledger, run->exact, run->result, run->n);
    codec_accumulate(run);
    codec_step_rate(&run->now, run->ranks, run->info.sparse, run->fb != NULL);
    return DCOMM_OK;
}

#endif
