/* dcomm-ps.c - measure the time to push gradients to a parameter server and to pull values, for
 * numbers of servers, beside an all-reduce of as many bytes. */
#define _GNU_SOURCE
#include "ps_args.h"

enum { PS_PUSH, PS_PULL, PS_STEP, PS_TIMES };

typedef struct ps_row {
    int servers;
    double push, pull, step, step_p95; /* seconds */
    double network_bytes;
    bool wrong;
} ps_row;

typedef struct ps_bench {
    ps_args a;
    dcomm_comm *comm;
    int rank, size;
    size_t nrows, npart; /* rows of the table, and of a step */
    uint64_t *list;      /* [npart]; NULL: all rows */
    float *grad, *value; /* [npart * cols] */
    double *times;       /* [PS_TIMES * steps] */
    double allreduce;    /* seconds */
    ps_row rows[PS_ROWS_MAX];
    busy_seen busy; /* rank 0's */
    tool_out out;
} ps_bench;

/* ---- who sends how much ---- */

/* Return the rank of a server; opts.servers in ps.h. */
static int ps_server(const ps_bench *b, int servers, int k)
{
    return (int)((int64_t)k * b->size / servers);
}

static bool ps_works(const ps_bench *b, int servers, int rank)
{
    bool serves = false;
    for (int k = 0; k < servers; k++) {
        serves = serves || ps_server(b, servers, k) == rank;
    }
    return !b->a.dedicated || !serves;
}

/* Return the bytes that cross the busiest link between hosts in one direction, if every worker
 * moves its rows to every server; `most` of all hosts, sent or received. */
static double ps_network(const ps_bench *b, int servers, double bytes)
{
    double most = 0;
    for (int h = 0; h < b->size; h++) {
        double sent = 0, received = 0;
        for (int r = 0; r < b->size; r++) {
            for (int k = 0; k < servers && ps_works(b, servers, r); k++) {
                const int from = dcomm_comm_host(b->comm, r);
                const int to = dcomm_comm_host(b->comm, ps_server(b, servers, k));
                sent += from != to && from == h ? bytes / servers : 0;
                received += from != to && to == h ? bytes / servers : 0;
            }
        }
        most = sent > most ? sent : most;
        most = received > most ? received : most;
    }
    return most;
}

/* ---- measuring ---- */

static dcomm_status ps_step(const ps_bench *b, dcomm_ps *ps, double *times)
{
    const double start = perf_now();
    dcomm_status status = b->list != NULL
                              ? dcomm_ps_push_rows(ps, 0, b->list, b->npart, b->grad, NULL)
                              : dcomm_ps_push(ps, 0, 0, b->npart, b->grad, NULL);
    const double pushed = perf_now();
    status = status >= 0 ? dcomm_ps_clock(ps) : status;
    if (status >= 0) {
        status = b->list != NULL ? dcomm_ps_pull_rows(ps, 0, b->list, b->npart, b->value, NULL)
                                 : dcomm_ps_pull(ps, 0, 0, b->npart, b->value, NULL);
    }
    const double end = perf_now();
    times[PS_PUSH] = pushed - start;
    times[PS_PULL] = end - pushed;
    times[PS_STEP] = end - start;
    return status;
}

/* Return true if pulled values are wrong. With staleness 0 they follow from the number of clocks,
 * and each fits 16 bits. */
static bool ps_wrong(const ps_bench *b, int clocks)
{
    for (size_t i = 0; i < b->npart * b->a.cols && b->a.staleness == 0; i++) {
        const float must = -(float)clocks / 64 * b->grad[i];
        if (fabsf(b->value[i] - must) > 0.01f * fabsf(must)) {
            return true;
        }
    }
    return false;
}

static dcomm_status measure(ps_bench *b, ps_row *row)
{
    const int servers = row->servers, steps = b->a.steps;
    const bool works = ps_works(b, servers, b->rank);
    const dcomm_ps_param param = {
        .name = "table", .rows = b->nrows, .cols = b->a.cols, .dtype = DCOMM_F32};
    const dcomm_ps_opts opts = {.servers = servers,
                                .dedicated = b->a.dedicated,
                                .staleness = b->a.staleness,
                                .lr = 1.0 / 64,
                                .pull_dtype = b->a.pull_dtype};
    dcomm_ps *ps = NULL;
    dcomm_status status = dcomm_ps_create(b->comm, &param, 1, &opts, &ps);
    for (int i = -PERF_WARMUP; i < steps && status >= 0; i++) {
        double times[PS_TIMES] = {0};
        status = dcomm_barrier(b->comm, NULL);
        status = status >= 0 && works ? ps_step(b, ps, times) : status;
        busy_look(&b->busy);
        status = status >= 0 ? tool_slowest(b->comm, times, PS_TIMES) : status;
        for (int k = 0; k < PS_TIMES && i >= 0; k++) {
            b->times[k * steps + i] = times[k];
        }
    }
    if (status >= 0) {
        const size_t pulled = dcomm_dtype_size(b->a.pull_dtype);
        const double numbers = (double)b->npart * (double)b->a.cols;
        row->push = perf_median(b->times + PS_PUSH * steps, steps);
        row->pull = perf_median(b->times + PS_PULL * steps, steps);
        double *step = b->times + PS_STEP * steps;
        row->step = perf_median(step, steps);
        row->step_p95 = step[(steps - 1) * 95 / 100];
        busy_row(&b->busy, step[0], row->step);
        row->network_bytes = ps_network(b, servers, numbers * sizeof(float)) +
                             ps_network(b, servers, numbers * (double)pulled);
        row->wrong = works && ps_wrong(b, PERF_WARMUP + steps);
    }
    const dcomm_status ended = dcomm_ps_destroy(&ps);
    return status >= 0 ? ended : status;
}

/* Measure an all-reduce of a step's gradient. */
static dcomm_status measure_allreduce(ps_bench *b)
{
    const dcomm_coll_opts opts = {.algo = b->a.algo};
    const size_t count = b->npart * b->a.cols;
    dcomm_status status = DCOMM_OK;
    for (int i = -PERF_WARMUP; i < b->a.steps && status >= 0; i++) {
        status = dcomm_barrier(b->comm, NULL);
        const double start = perf_now();
        status = status >= 0 ? dcomm_allreduce(b->comm, b->grad, b->value, count, DCOMM_F32,
                                               DCOMM_SUM, &opts)
                             : status;
        double seconds = perf_now() - start;
        busy_look(&b->busy);
        status = status >= 0 ? tool_slowest(b->comm, &seconds, 1) : status;
        if (i >= 0) {
            b->times[i] = seconds;
        }
    }
    b->allreduce = perf_median(b->times, b->a.steps);
    return status;
}

/* ---- output ---- */

static void print_head(const ps_bench *b)
{
    char staleness[16] = "async";
    if (b->a.staleness >= 0) {
        snprintf(staleness, sizeof staleness, "%d", b->a.staleness);
    }
    printf("# dcomm-ps: %d ranks, %zu of %zu rows of %zu bytes, staleness %s\n", b->size, b->npart,
           b->nrows, b->a.cols * sizeof(float), staleness);
    printf("%7s %10s %10s %10s %10s %10s %10s\n", "servers", "push", "pull", "step", "p95",
           "allreduce", "net MB");
}

static void print_row(const ps_bench *b, const ps_row *r)
{
    printf("%7d %10.3f %10.3f %10.3f %10.3f %10.3f %10.3f\n", r->servers, r->push * 1e3,
           r->pull * 1e3, r->step * 1e3, r->step_p95 * 1e3, b->allreduce * 1e3,
           r->network_bytes * 1e-6);
}

static void write_json(const ps_bench *b)
{
    char text[BUSY_TEXT];
    perf_json j = {.file = b->out.file, .first = true};
    perf_json_open(&j, NULL, '{');
    perf_json_int(&j, "schema", 1);
    perf_json_text(&j, "tool", "dcomm-ps");
    perf_json_text(&j, "version", dcomm_version());
    perf_json_int(&j, "nranks", b->size);
    perf_json_int(&j, "rows", (int64_t)b->nrows);
    perf_json_int(&j, "step_rows", (int64_t)b->npart);
    perf_json_int(&j, "row_bytes", (int64_t)(b->a.cols * sizeof(float)));
    if (b->a.staleness >= 0) {
        perf_json_int(&j, "staleness", b->a.staleness);
    } else {
        perf_json_null(&j, "staleness");
    }
    perf_json_bool(&j, "dedicated", b->a.dedicated);
    perf_json_text(&j, "pull_dtype", dcomm_dtype_name(b->a.pull_dtype));
    perf_json_number(&j, "allreduce_us", b->allreduce * 1e6);
    perf_json_bool(&j, "busy", busy_was(&b->busy, text));
    perf_json_open(&j, "results", '[');
    for (int i = 0; i < b->a.nservers; i++) {
        const ps_row *r = &b->rows[i];
        perf_json_open(&j, NULL, '{');
        perf_json_int(&j, "servers", r->servers);
        perf_json_number(&j, "push_us", r->push * 1e6);
        perf_json_number(&j, "pull_us", r->pull * 1e6);
        perf_json_number(&j, "step_us_p50", r->step * 1e6);
        perf_json_number(&j, "step_us_p95", r->step_p95 * 1e6);
        perf_json_number(&j, "network_bytes", r->network_bytes);
        perf_json_bool(&j, "wrong", r->wrong);
        perf_json_close(&j, '}');
    }
    perf_json_close(&j, ']');
    perf_json_close(&j, '}');
    fputc('\n', j.file);
}

/* ---- the run ---- */

static bool make(ps_bench *b)
{
    b->nrows = b->a.bytes / (b->a.cols * sizeof(float));
    b->nrows = b->nrows > 0 ? b->nrows : 1;
    b->npart = b->a.listed > 0 ? b->a.listed : b->nrows;
    const size_t count = b->npart * b->a.cols;
    b->grad = malloc(count * sizeof *b->grad);
    b->value = malloc(count * sizeof *b->value);
    b->times = calloc((size_t)b->a.steps, PS_TIMES * sizeof *b->times);
    b->list = b->a.listed > 0 ? malloc(b->npart * sizeof *b->list) : NULL;
    if (b->grad == NULL || b->value == NULL || b->times == NULL ||
        (b->a.listed > 0 && b->list == NULL)) {
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        b->grad[i] = (float)(i % 7);
        b->value[i] = 0;
    }
    for (size_t j = 0; j < b->npart && b->list != NULL; j++) {
        b->list[j] = j * (b->nrows / b->npart);
    }
    return true;
}

/* Replace 0 by all ranks. Return false if a number of servers is not possible. */
static bool take_servers(ps_bench *b)
{
    for (int i = 0; i < b->a.nservers; i++) {
        b->rows[i].servers = b->a.servers[i] > 0 ? b->a.servers[i] : b->size;
        if (b->rows[i].servers > b->size - b->a.dedicated) {
            return false;
        }
    }
    return true;
}

static int run_all(ps_bench *b)
{
    dcomm_status status = dcomm_comm_create(NULL, &b->comm);
    b->rank = dcomm_comm_rank(b->comm);
    b->size = dcomm_comm_size(b->comm);
    if (status >= 0 && !take_servers(b)) {
        return tool_refuse("--servers",
                           "more than there are ranks (with --dedicated, one must work)");
    }
    if (!make(b)) {
        fprintf(stderr, "dcomm-ps: no memory\n");
        return TOOL_COMM;
    }
    if (status >= 0) {
        const bool opened = b->rank != 0 || tool_open(&b->out, b->a.json);
        const int result = tool_agree(b->comm, opened ? TOOL_GOOD : TOOL_USAGE);
        if (result != TOOL_GOOD) {
            return result;
        }
        b->busy.ours = b->rank == 0 ? tool_ranks_here(b->comm) : 0;
        status = measure_allreduce(b);
    }
    if (status >= 0 && b->rank == 0) {
        print_head(b);
    }
    bool wrong = false;
    for (int i = 0; i < b->a.nservers && status >= 0; i++) {
        status = measure(b, &b->rows[i]);
        wrong = wrong || b->rows[i].wrong;
        if (status >= 0 && b->rank == 0) {
            print_row(b, &b->rows[i]);
        }
    }
    if (status < 0) {
        fprintf(stderr, "dcomm-ps: rank %d: %s\n", b->rank, dcomm_last_error());
        return TOOL_COMM;
    }
    busy_print(&b->busy);
    if (b->out.file != NULL) {
        write_json(b);
    }
    const bool written = tool_close(&b->out);
    return wrong ? TOOL_WRONG : written ? TOOL_GOOD : TOOL_USAGE;
}

int main(int argc, char **argv)
{
    static ps_bench b;
    bool done = false;
    tool_begin(true);
    int result = ps_parse(&b.a, argc, argv, &done);
    if (result == TOOL_GOOD && !done) {
        result = run_all(&b);
        dcomm_comm_destroy(&b.comm);
    }
    free(b.list);
    free(b.grad);
    free(b.value);
    free(b.times);
    return tool_end(result);
}
