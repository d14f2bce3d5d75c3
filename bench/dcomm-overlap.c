/* dcomm-overlap.c - measure how much communication gradient buckets hide behind backward, by
 * bucket size. */
#define _GNU_SOURCE
#include "overlap_args.h"
#include "work.h"

#include <math.h>
#include <time.h>

typedef struct overlap_row {
    size_t bucket_bytes, nbuckets;
    double step, backward, exposed, alone, model; /* seconds of the slowest rank */
    double hidden, over;                          /* percent */
    dcomm_bucket_time spread;                     /* distribution over this rank's steps */
} overlap_row;

typedef struct overlap {
    overlap_args a;
    dcomm_comm *comm;
    int rank, size;
    float *grads;
    size_t count;      /* elements of one parameter */
    double units;      /* units of arithmetic per parameter */
    double backward_s; /* seconds of backward alone on the slowest rank */
    overlap_row rows[OVERLAP_SIZES];
    dcomm_scaler *scaler;
    busy_seen busy; /* rank 0's */
    tool_out json, trace;
} overlap;

/* Run one step. b NULL: run backward alone. */
static dcomm_status run_step(overlap *o, dcomm_buckets *b)
{
    dcomm_status status = DCOMM_OK;
    for (int p = o->a.params - 1; p >= 0 && status >= 0; p--) {
        float *grad = o->grads + (size_t)p * o->count;
        for (int c = 0; c < o->a.calls && status >= 0; c++) {
            work(o->units / o->a.calls);
            if (b != NULL && !o->a.none && !o->a.thread) {
                status = dcomm_buckets_progress(b);
            }
        }
        grad[0] = (float)(o->rank + p);
        if (b != NULL && status >= 0) {
            status = dcomm_param_mark_ready(b, (size_t)p, NULL);
        }
    }
    if (b != NULL && status >= 0) {
        status = dcomm_buckets_wait(b);
    }
    if (b != NULL && status >= 0 && o->scaler != NULL) {
        dcomm_scaler_verdict verdict;
        status = dcomm_scaler_step(o->scaler, &verdict);
    }
    return status;
}

static int by_value(const void *x, const void *y)
{
    const double *a = x, *b = y;
    return (*a > *b) - (*a < *b);
}

static dcomm_status make_buckets(overlap *o, size_t bytes, dcomm_buckets **b_p)
{
    static dcomm_bucket_param params[OVERLAP_PARAMS];
    size_t whole = (size_t)o->a.params * o->count * sizeof *o->grads;
    dcomm_buckets_opts opts = {.bucket_bytes = bytes > 0 ? bytes : whole,
                               .first_bytes = bytes > 0 ? 0 : whole,
                               .codec = o->a.codec,
                               .coll.algo = o->a.algo,
                               .trace_steps = o->a.trace != NULL ? 3 : 0};
    for (int p = 0; p < o->a.params; p++) {
        params[p] = (dcomm_bucket_param){
            .grad = o->grads + (size_t)p * o->count, .count = o->count, .dtype = DCOMM_F32};
    }
    return dcomm_buckets_create(o->comm, params, (size_t)o->a.params, &opts, b_p);
}

/* Predict the time of a step by the model: buckets become ready as backward goes on, and are sent
 * one after another. */
static dcomm_status predict(overlap *o, dcomm_buckets *b, size_t nbuckets, double *seconds)
{
    double done = 0;
    size_t seen = 0;
    for (size_t k = 0; k < nbuckets; k++) {
        dcomm_bucket_info info;
        dcomm_alternative rows[32];
        dcomm_codec *codec = NULL;
        dcomm_coll_opts opts = {.algo = o->a.algo};
        dcomm_explanation e = {.coll = DCOMM_COLL_ALLREDUCE,
                               .dtype = DCOMM_F32,
                               .op = DCOMM_AVG,
                               .opts = &opts,
                               .alternatives = rows,
                               .max_alternatives = 32};
        dcomm_status status = dcomm_bucket_get_info(b, k, &info);
        if (status >= 0 && info.codec != NULL) {
            status = dcomm_codec_create(info.codec, &codec);
        }
        opts.codec = codec;
        if (status >= 0) {
            e.count = info.count;
            status = dcomm_comm_explain(dcomm_buckets_comm(b), &e);
        }
        dcomm_codec_destroy(&codec);
        if (status < 0) {
            return status;
        }
        double price = NAN;
        for (int i = 0; i < e.nalternatives && i < 32; i++) {
            price = rows[i].chosen && rows[i].seconds >= 0 ? rows[i].seconds : price;
        }
        seen += info.nparams;
        double ready = o->backward_s * (double)seen / o->a.params;
        done = (done > ready ? done : ready) + price;
    }
    *seconds = done > o->backward_s ? done : o->backward_s;
    return DCOMM_OK;
}

static dcomm_status measure(overlap *o, overlap_row *row)
{
    dcomm_buckets *b = NULL;
    dcomm_buckets_info all;
    dcomm_buckets_report report;
    double *steps = calloc((size_t)o->a.steps * 3, sizeof *steps);
    dcomm_status status = steps != NULL ? DCOMM_OK : DCOMM_ERR_NO_MEMORY;
    if (status >= 0) {
        status = make_buckets(o, row->bucket_bytes, &b);
    }
    if (status >= 0) {
        status = dcomm_buckets_calibrate(b, 5);
    }
    if (status >= 0 && o->a.scaler) {
        status = dcomm_scaler_create(b, &(dcomm_scaler_opts){.scale = 1, .growth = 1}, &o->scaler);
    }
    for (int i = -2; i < o->a.steps && status >= 0; i++) {
        status = dcomm_barrier(o->comm, NULL);
        double start = perf_now();
        status = status >= 0 ? run_step(o, b) : status;
        double seconds = perf_now() - start, exposed = 0, backward = 0;
        if (status >= 0 && (status = dcomm_buckets_get_report(b, &report)) >= 0) {
            busy_look(&o->busy);
            exposed = report.exposed.last;
            backward = report.backward.last;
            status = tool_slowest(o->comm, &seconds, 1);
        }
        if (i >= 0) {
            steps[i] = seconds;
            steps[o->a.steps + i] = exposed;
            steps[2 * o->a.steps + i] = backward;
        }
    }
    if (status >= 0) {
        for (int k = 0; k < 3; k++) {
            qsort(steps + k * o->a.steps, (size_t)o->a.steps, sizeof *steps, by_value);
        }
        row->step = steps[o->a.steps / 2];
        busy_row(&o->busy, steps[0], row->step);
        row->exposed = steps[o->a.steps + o->a.steps / 2];
        row->backward = steps[2 * o->a.steps + o->a.steps / 2];
        row->alone = report.alone_s;
        row->spread = report.step;
        status = dcomm_buckets_get_info(b, &all);
        row->nbuckets = all.nbuckets;
    }
    double *const agreed[] = {&row->exposed, &row->backward, &row->alone};
    for (int k = 0; k < 3 && status >= 0; k++) {
        status = tool_slowest(o->comm, agreed[k], 1);
    }
    if (status >= 0) {
        status = predict(o, b, all.nbuckets, &row->model);
    }
    char name[40];
    if (status >= 0 && o->trace.file != NULL) {
        status = dcomm_buckets_trace(b, tool_path(&o->trace, name));
    }
    dcomm_scaler_destroy(&o->scaler);
    dcomm_buckets_destroy(&b);
    free(steps);
    return status;
}

/* Choose the amount of arithmetic in backward, and measure its time alone. */
static dcomm_status settle_backward(overlap *o)
{
    dcomm_buckets *b = NULL;
    dcomm_buckets_report report;
    double wanted = o->a.backward_ms * 1e-3;
    dcomm_status status = DCOMM_OK;
    if (wanted == 0) {
        status = make_buckets(o, 0, &b);
        if (status >= 0) {
            status = dcomm_buckets_calibrate(b, 5);
        }
        if (status >= 0) {
            status = dcomm_buckets_get_report(b, &report);
        }
        wanted = status >= 0 ? report.alone_s : 0;
        dcomm_buckets_destroy(&b);
    }
    if (status >= 0) {
        status = tool_slowest(o->comm, &wanted, 1);
    }
    o->units = wanted / work_unit() / o->a.params;
    double times[5] = {0};
    for (int i = 0; i < 5 && status >= 0; i++) {
        double start = perf_now();
        run_step(o, NULL);
        times[i] = perf_now() - start;
        status = tool_slowest(o->comm, &times[i], 1);
    }
    qsort(times, 5, sizeof *times, by_value);
    o->backward_s = times[2];
    return status;
}

static bool wrong_result(const overlap *o)
{
    for (int p = 0; p < o->a.params && o->a.codec == NULL; p++) {
        float wanted = (float)p + (float)(o->size - 1) / 2;
        if (fabsf(o->grads[(size_t)p * o->count] - wanted) > 1e-3f) {
            return true;
        }
    }
    return false;
}

/* ---- output ---- */

static const char *progress_name(const overlap *o)
{
    return o->a.thread ? "thread" : o->a.none ? "none" : "calls";
}

static void print_rows(const overlap *o)
{
    printf("%d ranks, %.1f MiB in %d gradients, backward %.3f ms alone, progress by %s\n", o->size,
           (double)(o->count * sizeof(float)) * o->a.params / 1048576, o->a.params,
           o->backward_s * 1e3, progress_name(o));
    printf("%10s %7s %9s %9s %9s %9s %8s %7s %9s\n", "bucket", "buckets", "step", "backward",
           "exposed", "alone", "hidden%", "over%", "model");
    for (size_t i = 0; i < o->a.nbuckets; i++) {
        const overlap_row *r = &o->rows[i];
        printf("%10zu %7zu %9.3f %9.3f %9.3f %9.3f %8.1f %7.1f %9.3f\n", r->bucket_bytes,
               r->nbuckets, r->step * 1e3, r->backward * 1e3, r->exposed * 1e3, r->alone * 1e3,
               r->hidden, r->over, r->model * 1e3);
    }
    busy_print(&o->busy);
}

static void write_json(const overlap *o, FILE *file)
{
    char text[BUSY_TEXT];
    fprintf(file,
            "{\"schema\":1,\"tool\":\"dcomm-overlap\",\"nranks\":%d,\"bytes\":%zu,\"params\":%d,"
            "\"progress\":\"%s\",\"codec\":\"%s\",\"backward_ms\":%.6g,\"busy\":%s,\"results\":[",
            o->size, o->count * sizeof(float) * (size_t)o->a.params, o->a.params, progress_name(o),
            o->a.codec != NULL ? o->a.codec : "none", o->backward_s * 1e3,
            busy_was(&o->busy, text) ? "true" : "false");
    for (size_t i = 0; i < o->a.nbuckets; i++) {
        const overlap_row *r = &o->rows[i];
        fprintf(file,
                "%s\n{\"bucket_bytes\":%zu,\"buckets\":%zu,\"step_ms\":%.6g,\"backward_ms\":%.6g,"
                "\"exposed_ms\":%.6g,\"alone_ms\":%.6g,\"hidden_percent\":%.6g,"
                "\"over_percent\":%.6g,\"step_ms_p50\":%.6g,\"step_ms_p95\":%.6g,"
                "\"step_ms_p99\":%.6g,\"model_ms\":",
                i > 0 ? "," : "", r->bucket_bytes, r->nbuckets, r->step * 1e3, r->backward * 1e3,
                r->exposed * 1e3, r->alone * 1e3, r->hidden, r->over, r->spread.p50 * 1e3,
                r->spread.p95 * 1e3, r->spread.p99 * 1e3);
        fprintf(file, isfinite(r->model) ? "%.6g}" : "null}", r->model * 1e3);
    }
    fprintf(file, "]}\n");
}

/* Compute the percentages, when the shortest communication is known. */
static void compare(overlap *o)
{
    double shortest = INFINITY;
    for (size_t i = 0; i < o->a.nbuckets; i++) {
        shortest = fmin(shortest, o->rows[i].alone);
    }
    double ideal = fmax(o->backward_s, shortest);
    for (size_t i = 0; i < o->a.nbuckets; i++) {
        overlap_row *r = &o->rows[i];
        r->hidden = 100 * (o->backward_s + r->alone - r->step) / fmin(o->backward_s, r->alone);
        r->over = 100 * (r->step / ideal - 1);
    }
}

static int run_all(overlap *o)
{
    dcomm_comm_opts opts = {.context_opts = {.progress_thread = o->a.thread}};
    dcomm_status status = dcomm_comm_create(&opts, &o->comm);
    o->rank = dcomm_comm_rank(o->comm);
    o->size = dcomm_comm_size(o->comm);
    o->count = o->a.bytes / sizeof *o->grads / (size_t)o->a.params;
    o->count += o->count == 0;
    o->grads = calloc(o->count * (size_t)o->a.params, sizeof *o->grads);
    status = status >= 0 && o->grads == NULL ? DCOMM_ERR_NO_MEMORY : status;
    if (status >= 0) {
        bool opened =
            o->rank != 0 || (tool_open(&o->json, o->a.json) && tool_open(&o->trace, o->a.trace));
        int result = tool_agree(o->comm, opened ? TOOL_GOOD : TOOL_USAGE);
        if (result != TOOL_GOOD) {
            return result;
        }
        o->busy.ours = o->rank == 0 ? tool_ranks_here(o->comm) : 0;
    }
    if (status >= 0) {
        status = settle_backward(o);
    }
    bool wrong = false;
    for (size_t i = 0; i < o->a.nbuckets && status >= 0; i++) {
        o->rows[i].bucket_bytes = o->a.buckets[i];
        status = measure(o, &o->rows[i]);
        wrong = wrong || (status >= 0 && wrong_result(o));
    }
    if (status < 0) {
        fprintf(stderr, "dcomm-overlap: rank %d: %s\n", o->rank, dcomm_last_error());
        return TOOL_COMM;
    }
    compare(o);
    int result = wrong ? TOOL_WRONG : TOOL_GOOD;
    if (o->rank == 0) {
        print_rows(o);
        if (o->json.file != NULL) {
            write_json(o, o->json.file);
        }
        bool json = tool_close(&o->json), trace = tool_close(&o->trace);
        result = result == TOOL_GOOD && !(json && trace) ? TOOL_USAGE : result;
    }
    return result;
}

int main(int argc, char **argv)
{
    static overlap o;
    bool done = false;
    tool_begin(true);
    int result = overlap_parse(&o.a, argc, argv, &done);
    if (result != TOOL_GOOD || done) {
        return tool_end(result);
    }
    result = run_all(&o);
    dcomm_comm_destroy(&o.comm);
    free(o.grads);
    return tool_end(result);
}
