/* dcomm-perf.c - measure and check one collective over sizes, algorithms, types and operators. */
#define _GNU_SOURCE
#include "perf_out.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Time the call, or args->row calls in a row, on this rank after a barrier. Set *seconds to the
 * time of one call. */
static dcomm_status perf_timed_call(perf_run *run, perf_case *c, const dcomm_coll_opts *opts,
                                    double *seconds)
{
    perf_pool_next(&c->pool);
    perf_case_turn(c);
    perf_case_renew(c);
    dcomm_status status = dcomm_barrier(run->comm, NULL);
    if (status < 0) {
        return status;
    }
    double start = perf_now();
    if (c->pool.device != NULL) {
        perf_cuda_begin();
    }
    status = perf_case_call(c, run->comm, opts);
    for (int i = 1; i < run->args->row && status >= 0; i++) {
        perf_pool_next(&c->pool);
        perf_case_turn(c);
        status = perf_case_call(c, run->comm, opts);
    }
    double took = c->pool.device != NULL ? perf_cuda_end() : perf_now() - start;
    *seconds = took / run->args->row;
    return status < 0 ? status : dcomm_comm_status(run->comm);
}

/* Warm up, and agree on the number of timed iterations: rank 0 decides. */
static dcomm_status perf_warm_up(perf_run *run, perf_case *c, const dcomm_coll_opts *opts,
                                 int *iterations)
{
    double fastest = INFINITY;
    double start = perf_now();
    for (int i = 0; i < run->args->warmup || (i == 0 && run->args->iterations == 0); i++) {
        double unused = 0;
        dcomm_status status = perf_timed_call(run, c, opts, &unused);
        if (status < 0) {
            return status;
        }
        fastest = fmin(fastest, perf_now() - start);
        busy_look(&run->busy);
        start = perf_now();
    }
    if (run->args->iterations > 0) {
        *iterations = run->args->iterations;
        return DCOMM_OK;
    }
    int32_t agreed = perf_iterations(fastest);
    dcomm_status status = dcomm_broadcast(run->comm, &agreed, &agreed, 1, DCOMM_I32, 0, NULL);
    *iterations = agreed;
    return status;
}

/* Measure the time of the slowest rank in each iteration. */
static dcomm_status perf_measure(perf_run *run, perf_case *c, const dcomm_coll_opts *opts,
                                 perf_row *row)
{
    int iterations = 0;
    dcomm_status status = perf_warm_up(run, c, opts, &iterations);
    if (status < 0) {
        return status;
    }
    double *times = calloc((size_t)iterations, sizeof *times);
    if (times == NULL) {
        fprintf(stderr, "dcomm-perf: no memory for %d times\n", iterations);
        return DCOMM_ERR_NO_MEMORY;
    }
    for (int i = 0; i < iterations && status >= 0; i++) {
        status = perf_timed_call(run, c, opts, &times[i]);
    }
    busy_look(&run->busy);
    if (status >= 0) {
        status = dcomm_allreduce(run->comm, times, times, (size_t)iterations, DCOMM_F64, DCOMM_MAX,
                                 NULL);
    }
    if (status >= 0) {
        row->median_s = perf_median(times, iterations); /* it sorts the times */
        row->min_s = times[0];
        if (iterations >= PERF_MIN_ITERATIONS) {
            busy_row(&run->busy, row->min_s, row->median_s);
        }
    }
    free(times);
    return status;
}

/* Make one call that is not timed. Take the bytes that it moved, and check its result. */
static dcomm_status perf_examine(perf_run *run, perf_case *c, const dcomm_coll_opts *opts,
                                 perf_row *row)
{
    dcomm_stats before = {0}, after = {0};
    size_t size = dcomm_dtype_size(c->values.dtype);
    size_t most = c->send_count > c->recv_count ? c->send_count : c->recv_count;
    memset(c->work, 0xa5, most * size); /* an element that is not written must not look right */
    if (c->pool.device != NULL && !perf_cuda_copy(&c->pool, false)) {
        return DCOMM_ERR_SYSTEM;
    }
    perf_case_renew(c);
    dcomm_status status = dcomm_comm_get_stats(run->comm, &before);
    if (status >= 0) {
        status = perf_case_call(c, run->comm, opts);
    }
    if (status >= 0 && c->pool.device != NULL) {
        status = perf_cuda_copy(&c->pool, true) ? dcomm_comm_status(run->comm) : DCOMM_ERR_SYSTEM;
    }
    if (status >= 0) {
        status = dcomm_comm_get_stats(run->comm, &after);
    }
    if (status < 0) {
        return status;
    }
    row->wire_bytes = after.bytes_sent - before.bytes_sent + after.bytes_read - before.bytes_read;
    row->hash = perf_hash(c->recv, perf_case_result_bytes(c));
    if (run->args->check) {
        perf_case_check(c, &row->errors);
    }
    return DCOMM_OK;
}

static uint64_t perf_join_hashes(perf_run *run, const perf_case *c, const uint64_t *hashes,
                                 perf_row *row)
{
    if (c->op == PERF_REDUCE || c->op == PERF_GATHER) {
        return hashes[c->root];
    }
    uint64_t joined = hashes[0];
    for (int r = 1; r < run->nranks; r++) {
        if (!perf_case_is_uniform(c)) {
            joined = perf_mix(joined ^ perf_mix(hashes[r] + (uint64_t)r));
        } else if (hashes[r] != hashes[0]) {
            row->errors.wrong++;
            if (run->rank == 0) {
                fprintf(stderr, "dcomm-perf: rank %d's result is not bitwise that of rank 0\n", r);
            }
        }
    }
    return joined;
}

/* Combine the findings of all ranks. */
static dcomm_status perf_join(perf_run *run, const perf_case *c, perf_row *row)
{
    perf_errors *e = &row->errors;
    uint64_t *hashes = calloc((size_t)run->nranks, sizeof *hashes);
    if (hashes == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    dcomm_status status = dcomm_allgather(run->comm, &row->hash, hashes, 1, DCOMM_U64, NULL);
    double most[2] = {e->relerr_max, e->ulp_max};
    uint64_t sums[2] = {e->wrong, e->measured};
    if (status >= 0) {
        status = dcomm_allreduce(run->comm, most, most, 2, DCOMM_F64, DCOMM_MAX, NULL);
    }
    if (status >= 0) {
        status = dcomm_allreduce(run->comm, sums, sums, 2, DCOMM_U64, DCOMM_SUM, NULL);
    }
    if (status >= 0) {
        status =
            dcomm_allreduce(run->comm, &e->bias_sum, &e->bias_sum, 1, DCOMM_F64, DCOMM_SUM, NULL);
    }
    if (status >= 0) {
        status = dcomm_allreduce(run->comm, &row->wire_bytes, &row->wire_bytes, 1, DCOMM_U64,
                                 DCOMM_MAX, NULL);
    }
    /* Keep at least this rank's own count: a broken all-reduce must not hide it. */
    e->wrong = sums[0] > e->wrong ? sums[0] : e->wrong;
    e->measured = sums[1];
    e->relerr_max = most[0];
    e->ulp_max = most[1];
    if (status >= 0) {
        row->hash = perf_join_hashes(run, c, hashes, row);
    }
    free(hashes);
    return status;
}

static int perf_comm_error(const perf_run *run, const char *what, dcomm_status status)
{
    fprintf(stderr, "dcomm-perf: rank %d: %s: %s: %s\n", run->rank, what, dcomm_status_name(status),
            dcomm_last_error());
    return TOOL_COMM;
}

/* Name the algorithm, such as "auto:ring": the option, and the choice. */
static void perf_name_algo(perf_run *run, const perf_case *c, const char *algo,
                           const dcomm_coll_opts *opts, char *text, size_t len)
{
    dcomm_explanation e = {.coll = perf_ops[c->op].coll,
                           .count = c->count,
                           .dtype = c->values.dtype,
                           .op = perf_ops[c->op].reduces ? c->values.op : DCOMM_SUM,
                           .opts = opts};
    snprintf(text, len, "%s", algo);
    if (opts->algo == NULL && dcomm_comm_explain(run->comm, &e) == DCOMM_OK) {
        snprintf(text, len, "%s:%s", algo, e.algo);
    }
}

/* Use the codec of the command line, if the case can be compressed. */
static int perf_codec(perf_run *run, perf_case *c, dcomm_coll_opts *opts, dcomm_feedback **feedback)
{
    bool floats = c->op == PERF_ALLREDUCE && perf_is_float(c->values.dtype) && c->count > 0;
    bool sums = c->values.op == DCOMM_SUM || c->values.op == DCOMM_AVG;
    c->values.lossy = run->codec != NULL && floats && sums;
    if (!c->values.lossy) {
        return TOOL_GOOD;
    }
    opts->codec = run->codec;
    if (run->args->feedback) {
        dcomm_feedback_opts how = {.scale = true};
        if (dcomm_feedback_create(run->codec, c->count, &how, feedback) < 0) {
            return tool_refuse("--feedback", dcomm_last_error());
        }
        opts->feedback = *feedback;
    }
    return TOOL_GOOD;
}

/* Measure one row. If the call is refused, all ranks refuse it before anything is sent. */
static int perf_row_of(perf_run *run, perf_case *c, const char *algo, dcomm_coll_opts *opts,
                       perf_row *row)
{
    const perf_args *args = run->args;
    int result = tool_agree(run->comm, tool_printed() ? TOOL_GOOD : TOOL_USAGE);
    if (result != TOOL_GOOD) {
        return result; /* nothing reads the rows any more */
    }
    dcomm_codec_report report = {0};
    opts->codec_report = opts->codec != NULL ? &report : NULL;
    dcomm_status status = perf_examine(run, c, opts, row);
    if (status == DCOMM_ERR_UNSUPPORTED && args->all_algos) {
        if (run->rank == 0) {
            fprintf(stderr, "# %s %s: refused: %s\n", algo, perf_dtypes[c->values.dtype],
                    dcomm_last_error());
        }
        return TOOL_GOOD;
    }
    if (opts->algo != NULL && (status == DCOMM_ERR_UNSUPPORTED || status == DCOMM_ERR_INVALID)) {
        return tool_refuse(algo, dcomm_last_error());
    }
    const dcomm_codec *taken = opts->codec; /* "auto" may stand for another codec by now */
    if (status >= 0 && report.bytes > 0 && opts->algo == NULL) {
        status = dcomm_codec_decide(run->comm, opts->codec, c->count, c->values.dtype, opts->device,
                                    &taken);
    }
    dcomm_verdict verdict;
    if (status >= 0 && run->rank == 0 && opts->codec != NULL && opts->algo == NULL &&
        strncmp(dcomm_codec_spec(opts->codec), "auto", 4) == 0 &&
        dcomm_codec_measure(run->comm, opts->codec, c->count, opts->device, &verdict) >= 0) {
        printf("# measured once more: %s\n", verdict.text);
    }
    if (status >= 0) {
        if (report.bytes > 0) {
            snprintf(row->codec, sizeof row->codec, "%s%s", dcomm_codec_spec(taken),
                     opts->feedback != NULL && taken == opts->codec ? " with feedback" : "");
        }
        row->report = report;
        opts->codec_report = NULL; /* reading the whole result must not be timed */
        perf_name_algo(run, c, algo, opts, row->algo, sizeof row->algo);
        status = perf_join(run, c, row);
    }
    if (status >= 0) {
        status = perf_measure(run, c, opts, row);
    }
    if (status < 0) {
        return perf_comm_error(run, algo, status);
    }
    run->wrong += row->errors.wrong;
    perf_report(run, c, row);
    return TOOL_GOOD;
}

/* Measure one algorithm, with the codec if the case takes one. */
static int perf_one(perf_run *run, perf_case *c, const char *algo)
{
    const perf_args *args = run->args;
    dcomm_coll_opts opts = {.algo = strcmp(algo, "auto") == 0 ? NULL : algo,
                            .deterministic = args->deterministic,
                            .lanes = args->lanes,
                            .chunk_bytes = args->chunk,
                            .registered = args->mem == PERF_MEM_REGISTERED ||
                                          args->mem == PERF_MEM_CUDA_SHARED,
                            .huge_pages = args->mem == PERF_MEM_HUGE,
                            .device = perf_mem_on_device(args->mem),
                            .stream = perf_mem_on_device(args->mem) ? perf_cuda_stream() : NULL};
    perf_row row = {.min_s = NAN, .median_s = NAN, .checked = args->check, .codec = "none"};
    dcomm_feedback *feedback = NULL;
    int result = perf_codec(run, c, &opts, &feedback);
    if (result == TOOL_GOOD) {
        result = perf_row_of(run, c, algo, &opts, &row);
    }
    dcomm_feedback_destroy(&feedback);
    return result;
}

/* Measure every algorithm of the operation; "auto" if it has none. */
static int perf_every_algo(perf_run *run, perf_case *c)
{
    dcomm_coll coll = perf_ops[c->op].coll;
    dcomm_algo_info info;
    int result = TOOL_GOOD;
    int i = 0;
    dcomm_status (*get)(dcomm_coll, int, dcomm_algo_info *) =
        run->codec != NULL ? dcomm_coded_algo_get_info : dcomm_algo_get_info;
    for (; result == TOOL_GOOD && get(coll, i, &info) == DCOMM_OK; i++) {
        result = perf_one(run, c, info.name);
    }
    return i == 0 ? perf_one(run, c, "auto") : result;
}

/* Measure the wanted algorithms at one size, type and operator. */
static int perf_size(perf_run *run, dcomm_dtype dtype, dcomm_op op, size_t bytes)
{
    const perf_args *args = run->args;
    perf_case c = {.op = args->op,
                   .values = {.dtype = dtype, .op = op, .nranks = run->nranks},
                   .rank = run->rank,
                   .nranks = run->nranks,
                   .root = args->root,
                   .in_place = args->in_place};
    if (!perf_case_open(&c, bytes, args->rotate, args->mem, dcomm_comm_context(run->comm))) {
        bool named = args->mem == PERF_MEM_REGISTERED || args->mem == PERF_MEM_CUDA_SHARED;
        fprintf(stderr, "dcomm-perf: rank %d: no memory for buffers of %zu bytes%s%s\n", run->rank,
                bytes, named ? ": " : "", named ? dcomm_last_error() : "");
        return TOOL_COMM;
    }
    if (run->rank == 0) {
        perf_pool_report(&c.pool);
    }
    int result = TOOL_GOOD;
    for (int i = 0; i < args->nalgos && result == TOOL_GOOD; i++) {
        result = strcmp(args->algos[i], "all") == 0 ? perf_every_algo(run, &c)
                                                    : perf_one(run, &c, args->algos[i]);
    }
    perf_case_free(&c);
    return result;
}

static int perf_sweep(perf_run *run, dcomm_dtype dtype, dcomm_op op)
{
    const perf_args *args = run->args;
    size_t bytes = args->begin;
    for (;;) {
        int result = perf_size(run, dtype, op, bytes);
        if (result != TOOL_GOOD) {
            return result;
        }
        double next = bytes == 0 ? (double)dcomm_dtype_size(dtype) : (double)bytes * args->factor;
        if (next > (double)args->end) {
            return TOOL_GOOD;
        }
        bytes = (size_t)next > bytes ? (size_t)next : bytes + 1;
    }
}

static int perf_all(perf_run *run)
{
    const perf_args *args = run->args;
    bool reduces = perf_ops[args->op].reduces;
    if (args->op == PERF_BARRIER) {
        return perf_size(run, DCOMM_U8, DCOMM_OP_COUNT, 0);
    }
    for (int dtype = 0; dtype < DCOMM_DTYPE_COUNT; dtype++) {
        for (int op = 0; op < PERF_REDOP_COUNT; op++) {
            if (!args->dtypes[dtype] || !(reduces ? args->redops[op] : op == 0)) {
                continue;
            }
            int result =
                perf_sweep(run, (dcomm_dtype)dtype, reduces ? (dcomm_op)op : DCOMM_OP_COUNT);
            if (result != TOOL_GOOD) {
                return result;
            }
        }
    }
    return TOOL_GOOD;
}

/* Check the options that need a communicator, then measure. */
static int perf_main(perf_run *run)
{
    run->rank = dcomm_comm_rank(run->comm);
    run->nranks = dcomm_comm_size(run->comm);
    if (run->args->root >= run->nranks) {
        return tool_refuse("-r is not a rank", NULL);
    }
    if (perf_mem_on_device(run->args->mem) && !perf_rates_measure(run->comm, &run->rates)) {
        fprintf(stderr, "dcomm-perf: rank %d: no copies of a device could be measured\n",
                run->rank);
        return TOOL_COMM;
    }
    bool opened = run->rank != 0 || tool_open(&run->out, run->args->json);
    int result = tool_agree(run->comm, opened ? TOOL_GOOD : TOOL_USAGE);
    if (result != TOOL_GOOD) {
        return result;
    }
    if (run->rank == 0) {
        run->busy.ours = tool_ranks_here(run->comm);
        perf_print_header(run);
        run->json = (perf_json){.file = run->out.file, .first = true};
        perf_start_json(run);
    }
    result = perf_all(run);
    perf_finish(run);
    if (!tool_close(&run->out)) {
        return TOOL_USAGE;
    }
    if (result == TOOL_GOOD && run->wrong > 0) {
        if (run->rank == 0) {
            printf("# %" PRIu64 " wrong\n", run->wrong);
        }
        result = TOOL_WRONG;
    }
    return result;
}

int main(int argc, char **argv)
{
    perf_args args;
    bool done = false;
    tool_begin(true);
    int result = perf_parse(argc, argv, &args, &done);
    if (result == TOOL_GOOD && !done) {
        perf_run run = {.args = &args};
        dcomm_status status = DCOMM_OK;
        if (args.codec != NULL && dcomm_codec_create(args.codec, &run.codec) < 0) {
            result = tool_refuse("--codec", dcomm_last_error());
        } else if ((status = dcomm_comm_create(NULL, &run.comm)) < 0) {
            result = perf_comm_error(&run, "no communicator", status);
        } else {
            result = perf_main(&run);
            dcomm_comm_destroy(&run.comm);
        }
        dcomm_codec_destroy(&run.codec);
    }
    free(args.algo_text);
    return tool_end(result);
}
