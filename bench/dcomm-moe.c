/* dcomm-moe.c - measure the time to bring tokens to experts and back, for routings of different
 * skew. */
#define _GNU_SOURCE
#include "moe_args.h"
#include "work.h"

typedef struct moe_row {
    const char *skew;
    double route, dispatch, combine, step[3], exchange, permute; /* seconds; permute: / memcpy's
                                                                    rate */
    double cv, imbalance, drop_rate, flat_s, hier_s;
    double rank_bytes, network_bytes;
    bool hier, wrong;
} moe_row;

typedef struct moe_bench {
    moe_args a;
    dcomm_comm *comm;
    int rank, size;
    moe_routes routes;
    float *x, *y, *weights;
    int32_t *experts;
    double units;  /* units of work of a step's experts */
    double *times; /* [5 * steps] */
    moe_row rows[MOE_SKEWS_MAX];
    busy_seen busy; /* rank 0's */
    tool_out out;
} moe_bench;

enum { MOE_ROUTE, MOE_DISPATCH, MOE_COMBINE, MOE_STEP, MOE_PERMUTE, MOE_TIMES };

static void fill(moe_bench *b)
{
    uint64_t state = moe_routes_seed(b->rank);
    for (size_t t = 0; t < b->a.tokens; t++) {
        moe_routes_token(&b->routes, &state, b->experts + t * (size_t)b->a.k);
    }
    for (size_t i = 0; i < b->a.tokens * (size_t)b->a.k; i++) {
        b->weights[i] = 1 / (float)b->a.k;
    }
    for (size_t i = 0; i < b->a.tokens * b->a.hidden; i++) {
        b->x[i] = (float)((i * 7 + (size_t)b->rank * 3) % 31 + 1);
    }
}

/* Do the work of the experts for one chunk, with calls that make progress in between. */
static dcomm_status experts_work(const moe_bench *b, dcomm_moe *m)
{
    enum { PIECES = 16 };
    dcomm_status status = DCOMM_OK;
    for (int i = 0; i < PIECES && b->units > 0 && status >= 0; i++) {
        work(b->units / b->a.chunks / PIECES);
        status = dcomm_moe_progress(m);
    }
    return status;
}

/* Run one step with identity experts, and take the times of its parts. */
static dcomm_status run_step(moe_bench *b, dcomm_moe *m, double *times)
{
    dcomm_moe_batch batch;
    double start = perf_now();
    dcomm_status status = dcomm_moe_route(m, b->a.tokens, b->experts, b->weights);
    double routed = perf_now();
    for (int c = 0; c < b->a.chunks && status >= 0; c++) {
        status = dcomm_moe_dispatch_start(m, c, b->x);
    }
    double spent = 0;
    for (int c = 0; c < b->a.chunks && status >= 0; c++) {
        status = dcomm_moe_dispatch_wait(m, c, &batch);
        double here = perf_now();
        status = status >= 0 ? experts_work(b, m) : status;
        status = status >= 0 ? dcomm_moe_combine_start(m, c, batch.rows) : status;
        spent += c + 1 < b->a.chunks ? perf_now() - here : 0;
        times[MOE_DISPATCH] = here - routed - spent;
    }
    for (int c = 0; c < b->a.chunks && status >= 0; c++) {
        status = dcomm_moe_combine_wait(m, c, b->y);
    }
    double end = perf_now();
    times[MOE_ROUTE] = routed - start;
    times[MOE_STEP] = end - start;
    times[MOE_COMBINE] = end - routed - times[MOE_DISPATCH];
    return status;
}

/* Return the bytes per second of memcpy for as many bytes as one permutation moves. */
static double memcpy_rate(size_t bytes)
{
    bytes = bytes > 4096 ? bytes : 4096;
    char *from = aligned_alloc(64, (bytes + 63) / 64 * 64),
         *to = aligned_alloc(64, (bytes + 63) / 64 * 64);
    double times[9];
    if (from == NULL || to == NULL) {
        free(from);
        free(to);
        return NAN;
    }
    memset(from, 1, bytes);
    memset(to, 2, bytes);
    for (int i = 0; i < 9; i++) {
        double start = perf_now();
        memcpy(to, from, bytes);
        times[i] = perf_now() - start;
        __asm__ volatile("" : : "r"(to) : "memory");
    }
    free(from);
    free(to);
    return (double)bytes / perf_median(times, 9);
}

static dcomm_status take_stats(moe_bench *b, dcomm_moe *m, moe_row *row)
{
    dcomm_moe_stats s;
    dcomm_status status = dcomm_moe_get_stats(m, &s);
    double total = 0;
    for (int r = 0; r < b->size && status >= 0; r++) {
        double bytes = (double)s.rank_bytes[r];
        row->rank_bytes = bytes > row->rank_bytes ? bytes : row->rank_bytes;
        total += (double)s.rank_rows[r];
    }
    if (status >= 0) {
        row->cv = s.cv;
        row->drop_rate = s.drop_rate;
        row->hier = s.hier;
        row->flat_s = s.flat_s;
        row->hier_s = s.hier_s;
        row->network_bytes = (double)s.network_bytes;
        row->imbalance = total > 0 ? (double)s.rank_rows[s.heaviest_rank] * b->size / total : NAN;
    }
    return status;
}

/* Return true if y is wrong. With identity experts and weights 1/k, y equals x except for
 * rounding, if nothing is dropped or encoded. */
static bool wrong_result(const moe_bench *b)
{
    for (size_t i = 0; i < b->a.tokens * b->a.hidden && b->a.capacity == 0 && b->a.codec == NULL;
         i++) {
        if (fabsf(b->y[i] - b->x[i]) > 1e-4f * b->x[i]) {
            return true;
        }
    }
    return false;
}

static dcomm_status measure_steps(moe_bench *b, moe_row *row)
{
    dcomm_moe_opts opts = {.experts = (size_t)b->a.experts,
                           .hidden = b->a.hidden,
                           .k = b->a.k,
                           .dtype = DCOMM_F32,
                           .chunks = b->a.chunks,
                           .form = b->a.form,
                           .algo = b->a.algo,
                           .capacity = b->a.capacity,
                           .policy = b->a.reroute ? DCOMM_MOE_REROUTE : DCOMM_MOE_DROP,
                           .codec = b->a.codec,
                           .registered = b->a.registered};
    dcomm_moe *m = NULL;
    int steps = b->a.steps;
    double rate = NAN;
    dcomm_status status = dcomm_moe_create(b->comm, &opts, &m);
    for (int i = -PERF_WARMUP; i < steps && status >= 0; i++) {
        double times[MOE_TIMES] = {0};
        dcomm_moe_stats s;
        status = dcomm_barrier(b->comm, NULL);
        status = status >= 0 ? run_step(b, m, times) : status;
        status = status >= 0 ? dcomm_moe_get_stats(m, &s) : status;
        if (status >= 0 && s.permute_bytes > 0) {
            rate = isnan(rate) ? memcpy_rate((size_t)s.permute_bytes / 2) : rate;
            times[MOE_PERMUTE] = s.permute_s / (double)s.permute_bytes * rate;
        }
        busy_look(&b->busy);
        status = status >= 0 ? tool_slowest(b->comm, times, MOE_TIMES) : status;
        for (int k = 0; k < MOE_TIMES && i >= 0; k++) {
            b->times[k * steps + i] = times[k];
        }
    }
    if (status >= 0) {
        row->route = perf_median(b->times + MOE_ROUTE * steps, steps);
        row->dispatch = perf_median(b->times + MOE_DISPATCH * steps, steps);
        row->combine = perf_median(b->times + MOE_COMBINE * steps, steps);
        row->permute = 1 / perf_median(b->times + MOE_PERMUTE * steps, steps);
        double *step = b->times + MOE_STEP * steps;
        row->step[0] = perf_median(step, steps);
        busy_row(&b->busy, step[0], row->step[0]);
        row->step[1] = step[(steps - 1) * 95 / 100];
        row->step[2] = step[(steps - 1) * 99 / 100];
        row->wrong = wrong_result(b);
        status = take_stats(b, m, row);
    }
    dcomm_moe_destroy(&m);
    return status;
}

/* Measure a plain all-to-all-v of the same rows. */
static dcomm_status measure_exchange(moe_bench *b, moe_row *row)
{
    size_t bytes = b->a.hidden * sizeof(float);
    moe_routes_rows w = {0};
    perf_pool pool;
    bool good = moe_routes_rows_make(&b->routes, b->rank, &w) &&
                perf_pool_shape(&pool, w.sent * bytes, w.received * bytes, b->a.rotate, b->a.mem) &&
                perf_mem_open(&pool, dcomm_comm_context(b->comm));
    if (!good) {
        free(w.send);
        return DCOMM_ERR_NO_MEMORY;
    }
    memset(pool.memory, 1, pool.bytes);
    for (int r = 0; r < 4 * b->size; r++) { /* all four arrays lie in one piece of memory */
        w.send[r] *= b->a.hidden;
    }
    dcomm_status status = DCOMM_OK;
    for (int i = -PERF_WARMUP; i < b->a.steps && status >= 0; i++) {
        status = dcomm_barrier(b->comm, NULL);
        double start = perf_now();
        if (status >= 0) {
            status = dcomm_alltoallv(b->comm, perf_pool_input(&pool, pool.now), w.send, w.send_at,
                                     perf_pool_work(&pool, pool.now), w.recv, w.recv_at, DCOMM_F32,
                                     &(dcomm_coll_opts){.algo = b->a.algo});
        }
        double seconds = perf_now() - start;
        busy_look(&b->busy);
        status = status >= 0 ? tool_slowest(b->comm, &seconds, 1) : status;
        if (i >= 0) {
            b->times[i] = seconds;
        }
        perf_pool_next(&pool);
    }
    row->exchange = perf_median(b->times, b->a.steps);
    perf_mem_close(&pool);
    free(w.send);
    return status;
}

/* ---- output ---- */

static void print_head(const moe_bench *b)
{
    printf("%d ranks, %zu tokens each, rows of %zu bytes, %d experts, k %d, %d chunks\n", b->size,
           b->a.tokens, b->a.hidden * sizeof(float), b->a.experts, b->a.k, b->a.chunks);
    if (!b->a.wide) {
        printf("%-14s %-5s %9s %8s %8s %8s %8s %8s %8s %6s %6s\n", "skew", "form", "alltoallv",
               "route", "dispatch", "combine", "p50", "p99", "MB", "imbal", "drop%");
        return;
    }
    printf("%-14s %-5s %9s %9s %9s %9s %9s %9s %9s %8s %8s %6s %6s %6s %8s\n", "skew", "form",
           "alltoallv", "route", "dispatch", "combine", "p50", "p95", "p99", "MB", "net MB", "cv",
           "imbal", "drop%", "permute");
}

static void print_row(const moe_row *r, bool wide)
{
    if (!wide) {
        printf("%-14s %-5s %9.1f %8.1f %8.1f %8.1f %8.1f %8.1f %8.2f %6.2f %6.2f\n", r->skew,
               r->hier ? "hier" : "flat", r->exchange * 1e6, r->route * 1e6, r->dispatch * 1e6,
               r->combine * 1e6, r->step[0] * 1e6, r->step[2] * 1e6, r->rank_bytes * 1e-6,
               r->imbalance, r->drop_rate * 100);
        return;
    }
    printf("%-14s %-5s %9.1f %9.1f %9.1f %9.1f %9.1f %9.1f %9.1f %8.2f %8.2f %6.2f %6.2f %6.2f "
           "%8.2f\n",
           r->skew, r->hier ? "hier" : "flat", r->exchange * 1e6, r->route * 1e6, r->dispatch * 1e6,
           r->combine * 1e6, r->step[0] * 1e6, r->step[1] * 1e6, r->step[2] * 1e6,
           r->rank_bytes * 1e-6, r->network_bytes * 1e-6, r->cv, r->imbalance, r->drop_rate * 100,
           r->permute);
}

static void write_json(const moe_bench *b)
{
    char text[BUSY_TEXT];
    perf_json j = {.file = b->out.file, .first = true};
    perf_json_open(&j, NULL, '{');
    perf_json_int(&j, "schema", 1);
    perf_json_text(&j, "tool", "dcomm-moe");
    perf_json_text(&j, "version", dcomm_version());
    perf_json_int(&j, "nranks", b->size);
    perf_json_int(&j, "tokens", (int64_t)b->a.tokens);
    perf_json_int(&j, "row_bytes", (int64_t)(b->a.hidden * sizeof(float)));
    perf_json_int(&j, "experts", b->a.experts);
    perf_json_int(&j, "k", b->a.k);
    perf_json_int(&j, "chunks", b->a.chunks);
    perf_json_number(&j, "work_ms", b->a.work_ms);
    perf_json_bool(&j, "busy", busy_was(&b->busy, text));
    perf_json_open(&j, "results", '[');
    for (int i = 0; i < b->a.nskews; i++) {
        const moe_row *r = &b->rows[i];
        perf_json_open(&j, NULL, '{');
        perf_json_text(&j, "skew", r->skew);
        perf_json_number(&j, "alltoallv_us", r->exchange * 1e6);
        if (b->a.exchange_only) {
            perf_json_null(&j, "form");
        } else {
            perf_json_bool(&j, "wrong", r->wrong);
            perf_json_text(&j, "form", r->hier ? "hier" : "flat");
            perf_json_number(&j, "route_us", r->route * 1e6);
            perf_json_number(&j, "dispatch_us", r->dispatch * 1e6);
            perf_json_number(&j, "combine_us", r->combine * 1e6);
            perf_json_number(&j, "step_us_p50", r->step[0] * 1e6);
            perf_json_number(&j, "step_us_p95", r->step[1] * 1e6);
            perf_json_number(&j, "step_us_p99", r->step[2] * 1e6);
            perf_json_number(&j, "rank_bytes", r->rank_bytes);
            perf_json_number(&j, "network_bytes", r->network_bytes);
            perf_json_number(&j, "cv", r->cv);
            perf_json_number(&j, "imbalance", r->imbalance);
            perf_json_number(&j, "drop_rate", r->drop_rate);
            perf_json_number(&j, "permute_per_memcpy", r->permute);
            perf_json_number(&j, "model_flat_us", r->flat_s * 1e6);
            perf_json_number(&j, "model_hier_us", r->hier_s * 1e6);
        }
        perf_json_close(&j, '}');
    }
    perf_json_close(&j, ']');
    perf_json_close(&j, '}');
    fputc('\n', j.file);
}

static int run_all(moe_bench *b)
{
    dcomm_status status = dcomm_comm_create(NULL, &b->comm);
    b->rank = dcomm_comm_rank(b->comm);
    b->size = dcomm_comm_size(b->comm);
    b->a.experts = b->a.experts > 0 ? b->a.experts : 4 * b->size;
    b->units = b->a.work_ms > 0 ? b->a.work_ms * 1e-3 / work_unit() : 0;
    size_t rows = b->a.tokens > 0 ? b->a.tokens : 1;
    b->x = calloc(rows * b->a.hidden, sizeof *b->x);
    b->y = calloc(rows * b->a.hidden, sizeof *b->y);
    b->experts = calloc(rows, MOE_K_MAX * sizeof *b->experts);
    b->weights = calloc(rows, MOE_K_MAX * sizeof *b->weights);
    b->times = calloc((size_t)b->a.steps, MOE_TIMES * sizeof *b->times);
    if (b->x == NULL || b->y == NULL || b->experts == NULL || b->weights == NULL ||
        b->times == NULL) {
        fprintf(stderr, "dcomm-moe: no memory\n");
        return TOOL_COMM;
    }
    if (status >= 0) {
        bool opened = b->rank != 0 || tool_open(&b->out, b->a.json);
        int result = tool_agree(b->comm, opened ? TOOL_GOOD : TOOL_USAGE);
        if (result != TOOL_GOOD) {
            return result;
        }
        b->busy.ours = b->rank == 0 ? tool_ranks_here(b->comm) : 0;
    }
    if (status >= 0 && b->rank == 0 && !b->a.exchange_only) {
        print_head(b);
    }
    bool wrong = false;
    for (int i = 0; i < b->a.nskews && status >= 0; i++) {
        moe_row *row = &b->rows[i];
        row->skew = b->a.skews[i];
        if (!moe_routes_make(&b->routes, b->a.tokens, b->a.experts, b->a.k, b->size, row->skew)) {
            return tool_refuse("too few experts for --skew", row->skew);
        }
        fill(b);
        status = measure_exchange(b, row);
        status = status >= 0 && !b->a.exchange_only ? measure_steps(b, row) : status;
        wrong = wrong || row->wrong;
        if (status >= 0 && b->rank == 0 && !b->a.exchange_only) {
            print_row(row, b->a.wide);
        } else if (status >= 0 && b->rank == 0) {
            printf("%-14s alltoallv %.1f us\n", row->skew, row->exchange * 1e6);
        }
    }
    if (status < 0) {
        fprintf(stderr, "dcomm-moe: rank %d: %s\n", b->rank, dcomm_last_error());
        return TOOL_COMM;
    }
    busy_print(&b->busy);
    if (b->out.file != NULL) {
        write_json(b);
    }
    bool written = tool_close(&b->out);
    return wrong ? TOOL_WRONG : written ? TOOL_GOOD : TOOL_USAGE;
}

int main(int argc, char **argv)
{
    static moe_bench b;
    bool done = false;
    tool_begin(true);
    int result = moe_parse(&b.a, argc, argv, &done);
    if (result == TOOL_GOOD && !done) {
        result = run_all(&b);
        dcomm_comm_destroy(&b.comm);
    }
    free(b.a.skew_text);
    free(b.x);
    free(b.y);
    free(b.experts);
    free(b.weights);
    free(b.times);
    return tool_end(result);
}
