/* dcomm-perf.c - measures and checks one collective over sizes, algorithms, types and operators. */
#define _GNU_SOURCE
#include "perf_args.h"
#include "perf_case.h"
#include "perf_json.h"
#include "perf_rates.h"
#include "perf_rule.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct perf_run {
    const perf_args *args;
    dcomm_comm *comm;
    int rank, nranks;
    dcomm_codec *codec; /* NULL: exact */
    perf_json json;
    perf_rates rates;
    uint64_t wrong;
} perf_run;

typedef struct perf_row {
    char algo[64], codec[320];
    double min_s, median_s; /* NaN: not measured */
    uint64_t wire_bytes, hash;
    perf_errors errors;
    bool checked;
    dcomm_codec_report report; /* of this rank; all 0 without a codec */
} perf_row;

/* The call, or so many in a row, timed on this rank, after a barrier; the time of one. */
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

/* Warm up, and agree on how many iterations to time: rank 0 decides. */
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
        double now = perf_now();
        fastest = fmin(fastest, now - start);
        start = now;
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

/* Times of the slowest rank, iteration by iteration. */
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
    if (status >= 0) {
        status = dcomm_allreduce(run->comm, times, times, (size_t)iterations, DCOMM_F64, DCOMM_MAX,
                                 NULL);
    }
    if (status >= 0) {
        row->median_s = perf_median(times, iterations); /* sorts */
        row->min_s = times[0];
    }
    free(times);
    return status;
}

/* One call by itself: what it moved, what it computed. */
static dcomm_status perf_examine(perf_run *run, perf_case *c, const dcomm_coll_opts *opts,
                                 perf_row *row)
{
    dcomm_stats before = {0}, after = {0};
    size_t size = dcomm_dtype_size(c->values.dtype);
    size_t most = c->send_count > c->recv_count ? c->send_count : c->recv_count;
    memset(c->work, 0xa5, most * size); /* what is not written must not look right */
    if (c->pool.device != NULL && !perf_cuda_copy(&c->pool, false)) {
        return DCOMM_ERR_SYSTEM;
    }
    perf_case_renew(c);
    dcomm_status status = dcomm_comm_stats(run->comm, &before);
    if (status >= 0) {
        status = perf_case_call(c, run->comm, opts);
    }
    if (status >= 0 && c->pool.device != NULL) {
        status = perf_cuda_copy(&c->pool, true) ? dcomm_comm_status(run->comm) : DCOMM_ERR_SYSTEM;
    }
    if (status >= 0) {
        status = dcomm_comm_stats(run->comm, &after);
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

/* Bring the ranks' findings together. */
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
    /* A rank's own count stays: a broken all-reduce must not hide it. */
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

static void perf_cpu_name(char name[128])
{
    snprintf(name, 128, "unknown CPU");
    FILE *file = fopen("/proc/cpuinfo", "r");
    if (file == NULL) {
        return;
    }
    for (char line[256]; fgets(line, sizeof line, file) != NULL;) {
        if (sscanf(line, "model name : %127[^\n]", name) == 1) {
            break;
        }
    }
    fclose(file);
}

static void perf_print_header(const perf_run *run)
{
    char cpu[128];
    perf_cpu_name(cpu);
    int hosts = 0;
    for (int r = 0; r < run->nranks; r++) {
        int host = dcomm_comm_host(run->comm, r) + 1;
        hosts = host > hosts ? host : hosts;
    }
    int cores = (int)sysconf(_SC_NPROCESSORS_ONLN);
    printf("# dcomm %s: %s, %d rank%s on %d host%s; %s, %d cores\n", dcomm_version(),
           perf_ops[run->args->op].name, run->nranks, run->nranks == 1 ? "" : "s", hosts,
           hosts == 1 ? "" : "s", cpu, cores);
    dcomm_tuning tuning;
    if (hosts > 1 && dcomm_comm_tuning(run->comm, &tuning) == DCOMM_OK) {
        printf("# between hosts: %d connection%s for each pair of ranks\n", (int)tuning.connections,
               tuning.connections == 1 ? "" : "s");
    }
    if (run->args->mem != PERF_MEM_HOST) {
        printf("# memory: %s\n", perf_mem_names[run->args->mem]);
    }
    if (run->rates.pinned > 0) {
        printf("# copies by all ranks at once, each: %.3g GB/s out of the device and as much in, "
               "%.3g GB/s within it\n",
               run->rates.pinned, run->rates.within);
    }
    printf("# time: of the slowest rank, over the iterations; algbw, busbw: from the median\n");
    printf("#%12s %12s %7s %6s  %-24s %11s %11s %8s %8s %8s %9s %9s %8s %12s  %s\n", "bytes",
           "count", "type", "redop", "algo", "min(us)", "median(us)", "algbw", "busbw", "wrong",
           "relerr", "bias", "ulp", "wire(B)", "hash");
    fflush(stdout);
}

static void perf_start_json(perf_run *run)
{
    char cpu[128];
    perf_cpu_name(cpu);
    perf_json *j = &run->json;
    perf_json_open(j, NULL, '{');
    perf_json_int(j, "schema", 1);
    perf_json_text(j, "tool", "dcomm-perf");
    perf_json_text(j, "version", dcomm_version());
    perf_json_open(j, "hardware", '{');
    perf_json_text(j, "cpu", cpu);
    perf_json_int(j, "cores", sysconf(_SC_NPROCESSORS_ONLN));
    if (run->rates.pinned > 0) {
        perf_json_number(j, "pinned_GBps", run->rates.pinned);
        perf_json_number(j, "device_GBps", run->rates.within);
    }
    perf_json_close(j, '}');
    perf_json_open(j, "results", '[');
}

/* A number in `width` columns, or a dash for what was not measured. */
static void perf_print_number(int width, const char *format, double value)
{
    char text[32] = "-";
    if (!isnan(value)) {
        snprintf(text, sizeof text, format, value);
    }
    printf(" %*s", width, text);
}

static void perf_report(perf_run *run, const perf_case *c, const perf_row *row)
{
    if (run->rank != 0) {
        return;
    }
    const perf_op_info *op = &perf_ops[c->op];
    const perf_errors *e = &row->errors;
    const char *redop = op->reduces ? perf_redops[c->values.op] : NULL;
    double algbw = c->bytes > 0 ? (double)c->bytes / row->median_s * 1e-9 : NAN;
    double busbw = algbw * perf_bus_factor(c->op, c->nranks);
    bool measured = e->measured > 0;
    double relerr = measured ? e->relerr_max : NAN;
    double bias = measured ? e->bias_sum / (double)e->measured : NAN;
    double ulp = measured ? e->ulp_max : NAN;
    double wrong = row->checked ? (double)e->wrong : NAN;
    bool has_result = c->op != PERF_BARRIER;

    printf(" %12zu %12zu %7s %6s  %-24s", c->bytes, c->count, perf_dtypes[c->values.dtype],
           redop != NULL ? redop : "-", row->algo);
    perf_print_number(11, "%.2f", row->min_s * 1e6);
    perf_print_number(11, "%.2f", row->median_s * 1e6);
    perf_print_number(8, "%.2f", algbw);
    perf_print_number(8, "%.2f", busbw);
    perf_print_number(8, "%.0f", wrong);
    perf_print_number(9, "%.1e", relerr);
    perf_print_number(9, "%.1e", bias);
    perf_print_number(8, "%.2f", ulp);
    printf(" %12" PRIu64 "  ", row->wire_bytes);
    if (has_result) {
        printf("%016" PRIx64 "\n", row->hash);
    } else {
        printf("-\n");
    }
    const dcomm_codec_report *r = &row->report;
    double fill = r->summed > 0 && r->kept > 0 ? (double)r->summed / (double)r->kept : NAN;
    if (!isnan(fill)) {
        printf("#   k %zu; the sum has %.3f k elements, of at most %d k; the result has %.3f k\n",
               r->kept, fill, c->nranks, (double)r->nonzero / (double)r->kept);
    }
    fflush(stdout);

    perf_json *j = &run->json;
    char hash[17];
    snprintf(hash, sizeof hash, "%016" PRIx64, row->hash);
    perf_json_open(j, NULL, '{');
    perf_json_text(j, "op", op->name);
    perf_json_text(j, "algo", row->algo);
    perf_json_text(j, "codec", row->codec);
    perf_json_text(j, "dtype", perf_dtypes[c->values.dtype]);
    if (redop != NULL) {
        perf_json_text(j, "redop", redop);
    } else {
        perf_json_null(j, "redop");
    }
    perf_json_int(j, "nranks", c->nranks);
    perf_json_int(j, "bytes", (int64_t)c->bytes);
    perf_json_int(j, "count", (int64_t)c->count);
    perf_json_bool(j, "inplace", c->in_place);
    perf_json_text(j, "mem", perf_mem_names[c->pool.mem]);
    perf_json_number(j, "time_us_min", row->min_s * 1e6);
    perf_json_number(j, "time_us_med", row->median_s * 1e6);
    perf_json_number(j, "algbw_GBps", algbw);
    perf_json_number(j, "busbw_GBps", busbw);
    perf_json_int(j, "wire_bytes", (int64_t)row->wire_bytes);
    perf_json_number(j, "relerr_max", relerr);
    perf_json_number(j, "bias_mean", bias);
    perf_json_number(j, "ulp_max", ulp);
    perf_json_number(j, "wrong", wrong);
    perf_json_number(j, "fill_in", fill);
    perf_json_number(j, "fill_in_share", fill / c->nranks);
    perf_json_number(j, "result_fill", (double)r->nonzero / (isnan(fill) ? NAN : (double)r->kept));
    if (has_result) {
        perf_json_text(j, "hash", hash);
    } else {
        perf_json_null(j, "hash");
    }
    perf_json_close(j, '}');
}

static int perf_comm_error(const perf_run *run, const char *what, dcomm_status status)
{
    fprintf(stderr, "dcomm-perf: rank %d: %s: %s: %s\n", run->rank, what, dcomm_status_name(status),
            dcomm_last_error());
    return PERF_COMM;
}

/* "auto:ring": the choice, and what was chosen. */
static void perf_name_algo(perf_run *run, const perf_case *c, const char *algo,
                           const dcomm_coll_opts *opts, char *text, size_t len)
{
    const char *chosen = NULL;
    snprintf(text, len, "%s", algo);
    dcomm_op op = perf_ops[c->op].reduces ? c->values.op : DCOMM_SUM;
    if (opts->algo == NULL &&
        dcomm_explain(run->comm, perf_ops[c->op].coll, c->count, c->values.dtype, op, opts,
                      &chosen) == DCOMM_OK &&
        chosen != NULL) {
        snprintf(text, len, "%s:%s", algo, chosen);
    }
}

/* The codec of the command line, where the case can be compressed. */
static int perf_codec(perf_run *run, perf_case *c, dcomm_coll_opts *opts, dcomm_feedback **feedback)
{
    bool floats = c->op == PERF_ALLREDUCE && perf_is_float(c->values.dtype) && c->count > 0;
    bool sums = c->values.op == DCOMM_SUM || c->values.op == DCOMM_AVG;
    c->values.lossy = run->codec != NULL && floats && sums;
    if (!c->values.lossy) {
        return PERF_GOOD;
    }
    opts->codec = run->codec;
    if (run->args->feedback) {
        dcomm_feedback_opts how = {.scale = true};
        if (dcomm_feedback_create(run->codec, c->count, &how, feedback) < 0) {
            return perf_usage("--feedback", dcomm_last_error());
        }
        opts->feedback = *feedback;
    }
    return PERF_GOOD;
}

/* One row. Every rank refuses alike, before anything is sent. */
static int perf_row_of(perf_run *run, perf_case *c, const char *algo, dcomm_coll_opts *opts,
                       perf_row *row)
{
    const perf_args *args = run->args;
    dcomm_codec_report report = {0};
    opts->codec_report = opts->codec != NULL ? &report : NULL;
    dcomm_status status = perf_examine(run, c, opts, row);
    if (status == DCOMM_ERR_UNSUPPORTED && args->all_algos) {
        if (run->rank == 0) {
            fprintf(stderr, "# %s %s: refused: %s\n", algo, perf_dtypes[c->values.dtype],
                    dcomm_last_error());
        }
        return PERF_GOOD;
    }
    if (opts->algo != NULL && (status == DCOMM_ERR_UNSUPPORTED || status == DCOMM_ERR_INVALID)) {
        return perf_usage(algo, dcomm_last_error());
    }
    const dcomm_codec *taken = opts->codec; /* "auto" may be another by now */
    if (status >= 0 && report.bytes > 0 && opts->algo == NULL) {
        status = dcomm_codec_decide(run->comm, opts->codec, c->count, c->values.dtype, opts->device,
                                    &taken);
    }
    dcomm_verdict verdict;
    if (status >= 0 && run->rank == 0 && opts->codec != NULL && opts->algo == NULL &&
        strncmp(dcomm_codec_spec(opts->codec), "auto", 4) == 0 &&
        dcomm_codec_verdict(run->comm, opts->codec, c->count, opts->device, &verdict) >= 0) {
        printf("# measured once more: %s\n", verdict.text);
    }
    if (status >= 0) {
        if (report.bytes > 0) {
            snprintf(row->codec, sizeof row->codec, "%s%s", dcomm_codec_spec(taken),
                     opts->feedback != NULL && taken == opts->codec ? " with feedback" : "");
        }
        row->report = report;
        opts->codec_report = NULL; /* which looks at the whole result: not within the time */
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
    return PERF_GOOD;
}

/* An algorithm, with the codec where it has one. */
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
    if (result == PERF_GOOD) {
        result = perf_row_of(run, c, algo, &opts, &row);
    }
    dcomm_feedback_destroy(&feedback);
    return result;
}

/* All that the operation has; auto where there is nothing to choose. */
static int perf_every_algo(perf_run *run, perf_case *c)
{
    dcomm_coll coll = perf_ops[c->op].coll;
    dcomm_algo_info info;
    int result = PERF_GOOD;
    int i = 0;
    dcomm_status (*get)(dcomm_coll, int, dcomm_algo_info *) =
        run->codec != NULL ? dcomm_coded_algo_get : dcomm_algo_get;
    for (; result == PERF_GOOD && get(coll, i, &info) == DCOMM_OK; i++) {
        result = perf_one(run, c, info.name);
    }
    return i == 0 ? perf_one(run, c, "auto") : result;
}

/* The wanted algorithms at one size, type and operator. */
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
        return PERF_COMM;
    }
    if (run->rank == 0) {
        perf_pool_report(&c.pool);
    }
    int result = PERF_GOOD;
    for (int i = 0; i < args->nalgos && result == PERF_GOOD; i++) {
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
        if (result != PERF_GOOD) {
            return result;
        }
        double next = bytes == 0 ? (double)dcomm_dtype_size(dtype) : (double)bytes * args->factor;
        if (next > (double)args->end) {
            return PERF_GOOD;
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
            if (result != PERF_GOOD) {
                return result;
            }
        }
    }
    return PERF_GOOD;
}

/* The communicator exists: check what needed it, then measure. */
static int perf_main(perf_run *run)
{
    run->rank = dcomm_comm_rank(run->comm);
    run->nranks = dcomm_comm_size(run->comm);
    if (run->args->root >= run->nranks) {
        return perf_usage("-r is not a rank", NULL);
    }
    if (perf_mem_on_device(run->args->mem) && !perf_rates_measure(run->comm, &run->rates)) {
        fprintf(stderr, "dcomm-perf: rank %d: no copies of a device could be measured\n",
                run->rank);
        return PERF_COMM;
    }
    int result = PERF_GOOD;
    if (run->rank == 0) {
        perf_print_header(run);
        if (run->args->json != NULL) {
            run->json.file = fopen(run->args->json, "w");
            if (run->json.file == NULL) {
                fprintf(stderr, "dcomm-perf: cannot write %s: %s\n", run->args->json,
                        strerror(errno));
                return PERF_USAGE;
            }
            run->json.first = true;
            perf_start_json(run);
        }
    }
    result = perf_all(run);
    if (run->json.file != NULL) {
        perf_json_close(&run->json, ']');
        perf_json_close(&run->json, '}');
        fputc('\n', run->json.file);
        if (fclose(run->json.file) != 0) {
            fprintf(stderr, "dcomm-perf: cannot write %s: %s\n", run->args->json, strerror(errno));
            return PERF_USAGE;
        }
    }
    if (result == PERF_GOOD && run->wrong > 0) {
        if (run->rank == 0) {
            printf("# %" PRIu64 " wrong\n", run->wrong);
        }
        result = PERF_WRONG;
    }
    return result;
}

int main(int argc, char **argv)
{
    perf_args args;
    bool done = false;
    int result = perf_parse(argc, argv, &args, &done);
    if (result == PERF_GOOD && !done) {
        perf_run run = {.args = &args};
        dcomm_status status = DCOMM_OK;
        if (args.codec != NULL && dcomm_codec_create(args.codec, &run.codec) < 0) {
            result = perf_usage("--codec", dcomm_last_error());
        } else if ((status = dcomm_comm_create(NULL, &run.comm)) < 0) {
            result = perf_comm_error(&run, "no communicator", status);
        } else {
            result = perf_main(&run);
            dcomm_comm_destroy(&run.comm);
        }
        dcomm_codec_destroy(&run.codec);
    }
    free(args.algo_text);
    return result;
}
