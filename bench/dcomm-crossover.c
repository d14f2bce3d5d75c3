/* dcomm-crossover.c - find the sizes where one algorithm becomes cheaper than another, measured
 * and by the model. */
#define _GNU_SOURCE
#include "crossover_out.h"
#include "perf_mem.h"

/* ---- measuring ---- */

static dcomm_status cross_call(const cross_sweep *s, dcomm_comm *comm, const void *in, void *out,
                               size_t count, const dcomm_coll_opts *opts)
{
    switch (s->args->op->coll) {
    case DCOMM_COLL_ALLREDUCE:
        return dcomm_allreduce(comm, in, out, count, DCOMM_F32, DCOMM_SUM, opts);
    case DCOMM_COLL_REDUCE_SCATTER:
        return dcomm_reduce_scatter(comm, in, out, count, DCOMM_F32, DCOMM_SUM, opts);
    case DCOMM_COLL_ALLGATHER:
        return dcomm_allgather(comm, in, out, count, DCOMM_F32, opts);
    case DCOMM_COLL_BROADCAST:
        return dcomm_broadcast(comm, in, out, count, DCOMM_F32, 0, opts);
    case DCOMM_COLL_REDUCE:
        return dcomm_reduce(comm, in, out, count, DCOMM_F32, DCOMM_SUM, 0, opts);
    default:
        return dcomm_alltoall(comm, in, out, count, DCOMM_F32, opts);
    }
}

static dcomm_status cross_timed(const cross_sweep *s, dcomm_comm *comm, perf_pool *pool,
                                size_t count, const dcomm_coll_opts *opts, double *seconds)
{
    dcomm_status status = dcomm_barrier(comm, NULL);
    double start = perf_now();
    for (int i = 0; i < s->args->row && status >= 0; i++) {
        const void *in = perf_pool_input(pool, pool->now);
        void *out = perf_pool_work(pool, pool->now);
        status = cross_call(s, comm, in, out, count, opts);
        perf_pool_next(pool);
    }
    *seconds = (perf_now() - start) / s->args->row;
    return status;
}

/* Measure the median of the slowest rank's times. Return DCOMM_ERR_UNSUPPORTED if the algorithm
 * refuses the call. */
static dcomm_status cross_measure(cross_sweep *s, dcomm_comm *comm, const char *algo,
                                  size_t bytes, perf_pool *pool, double *median)
{
    dcomm_coll_opts opts = {
        .algo = algo, .chunk_bytes = s->args->chunk, .registered = s->args->registered};
    size_t count = cross_count(s, bytes);
    double fastest = INFINITY, seconds = 0;
    for (int i = 0; i < PERF_WARMUP; i++) {
        dcomm_status status = cross_timed(s, comm, pool, count, &opts, &seconds);
        if (status < 0) {
            return status;
        }
        fastest = fmin(fastest, seconds * s->args->row);
        busy_look(&s->busy);
    }
    int32_t n = s->args->iterations > 0 ? s->args->iterations : perf_iterations(fastest);
    dcomm_status status = dcomm_broadcast(comm, &n, &n, 1, DCOMM_I32, 0, NULL);
    double *times = status >= 0 ? calloc((size_t)n, sizeof *times) : NULL;
    if (times == NULL) {
        return status < 0 ? status : DCOMM_ERR_NO_MEMORY;
    }
    for (int i = 0; i < n && status >= 0; i++) {
        status = cross_timed(s, comm, pool, count, &opts, &times[i]);
    }
    busy_look(&s->busy);
    if (status >= 0) {
        status = dcomm_allreduce(comm, times, times, (size_t)n, DCOMM_F64, DCOMM_MAX, NULL);
    }
    *median = perf_median(times, n);
    if (n >= PERF_MIN_ITERATIONS) {
        busy_row(&s->busy, times[0], *median);
    }
    free(times);
    return status;
}

/* Fill in the communicator's prices of all algorithms at this size. */
static void cross_explain(cross_sweep *s, dcomm_comm *comm, int size)
{
    dcomm_alternative rows[CROSS_ALGOS];
    dcomm_coll_opts opts = {.chunk_bytes = s->args->chunk, .registered = s->args->registered};
    dcomm_explanation e = {.coll = s->args->op->coll,
                           .count = cross_count(s, s->bytes[size]),
                           .dtype = DCOMM_F32,
                           .opts = &opts,
                           .alternatives = rows,
                           .max_alternatives = CROSS_ALGOS};
    if (dcomm_comm_explain(comm, &e) < 0) {
        return;
    }
    for (int i = 0; i < e.nalternatives && i < CROSS_ALGOS; i++) {
        for (int a = 0; a < s->nalgos; a++) {
            if (strcmp(rows[i].algo, s->algo[a]) == 0 && rows[i].seconds > 0) {
                *cross_time(s, CROSS_PREDICTED, size, a) = rows[i].seconds;
            }
        }
    }
}

static dcomm_status cross_measure_all(cross_sweep *s, dcomm_comm *comm)
{
    dcomm_status status = DCOMM_OK;
    for (int i = 0; i < s->nsizes && status >= 0; i++) {
        perf_pool pool;
        size_t most = s->bytes[i] + 4 * (size_t)s->nranks;
        perf_mem mem = s->args->registered ? PERF_MEM_REGISTERED : PERF_MEM_HOST;
        if (!perf_pool_shape(&pool, most, most, CROSS_ROTATE, mem) ||
            !perf_mem_open(&pool, dcomm_comm_context(comm))) {
            return DCOMM_ERR_NO_MEMORY;
        }
        memset(pool.memory, 0, pool.bytes);
        cross_explain(s, comm, i);
        for (int a = 0; a < s->nalgos && status >= 0; a++) {
            status = cross_measure(s, comm, s->algo[a], s->bytes[i], &pool,
                                   cross_time(s, CROSS_MEASURED, i, a));
            if (status == DCOMM_ERR_UNSUPPORTED) { /* all ranks refuse the same calls */
                *cross_time(s, CROSS_MEASURED, i, a) = NAN;
                status = DCOMM_OK;
            }
        }
        perf_mem_close(&pool);
    }
    return status;
}

/* ---- the sweep ---- */

static bool cross_wanted(const char *names, const char *name)
{
    size_t len = strlen(name);
    for (const char *at = names; at != NULL; at = strchr(at, ',')) {
        at += *at == ',';
        if (strncmp(at, name, len) == 0 && (at[len] == 0 || at[len] == ',')) {
            return true;
        }
    }
    return names == NULL || strcmp(names, "all") == 0;
}

/* Choose the sizes and algorithms, and allocate memory for the times. */
static int cross_open(cross_sweep *s)
{
    dcomm_algo_info info;
    for (int i = 0; dcomm_algo_get_info(s->args->op->coll, i, &info) == DCOMM_OK; i++) {
        if (cross_wanted(s->args->names, info.name) && s->nalgos < CROSS_ALGOS) {
            s->algo[s->nalgos++] = info.name;
        }
    }
    s->bytes = calloc(1024, sizeof *s->bytes);
    for (double b = (double)s->args->begin;
         s->bytes != NULL && b <= (double)s->args->end * 1.000001 && s->nsizes < 1024;
         b *= s->args->factor) {
        s->bytes[s->nsizes++] = (size_t)b / 4 * 4;
    }
    size_t cells = (size_t)s->nsizes * (size_t)s->nalgos;
    for (int k = 0; k < CROSS_KINDS; k++) {
        s->time[k] = calloc(cells, sizeof *s->time[k]);
        for (size_t i = 0; s->time[k] != NULL && i < cells; i++) {
            s->time[k][i] = NAN;
        }
    }
    s->hosts = calloc((size_t)s->nranks, sizeof *s->hosts);
    if (s->bytes == NULL || s->time[CROSS_FITTED] == NULL || s->hosts == NULL) {
        fprintf(stderr, "dcomm-crossover: no memory\n");
        return TOOL_COMM;
    }
    return TOOL_GOOD;
}

static void cross_close(cross_sweep *s)
{
    free(s->bytes);
    free(s->hosts);
    for (int k = 0; k < CROSS_KINDS; k++) {
        free(s->time[k]);
    }
}

static bool cross_open_outputs(cross_sweep *s)
{
    return tool_open(&s->json, s->args->json) && tool_open(&s->svg, s->args->svg) &&
           tool_open(&s->save, s->args->save);
}

/* Write the table and the files that were asked for. Only rank 0 calls it. */
static int cross_report(cross_sweep *s)
{
    if (!s->args->model) {
        cross_fit(s);
    }
    cross_print(s);
    if (s->args->model && !isnan(s->args->alpha_us)) {
        cross_print_closed_forms(s);
    }
    char name[40];
    if (s->save.file != NULL &&
        dcomm_tuning_save(&s->args->tuning, tool_path(&s->save, name)) < 0) {
        return tool_refuse("--save", dcomm_last_error());
    }
    if (s->json.file != NULL) {
        cross_json(&(perf_json){.file = s->json.file, .first = true}, s);
    }
    if (s->svg.file != NULL) {
        cross_svg(s->svg.file, s);
    }
    bool json = tool_close(&s->json), svg = tool_close(&s->svg), save = tool_close(&s->save);
    return json && svg && save ? TOOL_GOOD : TOOL_USAGE;
}

static int cross_alone(cross_sweep *s)
{
    if (!cross_open_outputs(s)) {
        return TOOL_USAGE;
    }
    for (int r = 0; r < s->nranks && s->args->hosts > 0; r++) {
        s->hosts[r] = r / (s->nranks / s->args->hosts);
    }
    for (int i = 0; i < s->nsizes; i++) {
        for (int a = 0; a < s->nalgos; a++) {
            *cross_time(s, CROSS_PREDICTED, i, a) =
                cross_price(s, s->algo[a], s->bytes[i], &s->args->tuning);
        }
    }
    return cross_report(s);
}

static int cross_together(cross_args *args, cross_sweep *s)
{
    dcomm_comm *comm = NULL;
    dcomm_status status = dcomm_comm_create(NULL, &comm);
    if (status < 0) {
        fprintf(stderr, "dcomm-crossover: no communicator: %s\n", dcomm_last_error());
        return TOOL_COMM;
    }
    s->rank = dcomm_comm_rank(comm);
    s->nranks = dcomm_comm_size(comm);
    dcomm_comm_get_tuning(comm, &args->tuning);
    int result =
        s->nranks > 1 ? cross_open(s) : tool_refuse("one rank has nothing to choose", NULL);
    for (int r = 0; r < s->nranks && result == TOOL_GOOD; r++) {
        s->hosts[r] = dcomm_comm_host(comm, r);
    }
    if (s->rank == 0 && result == TOOL_GOOD) {
        s->busy.ours = tool_ranks_here(comm);
        result = cross_open_outputs(s) ? TOOL_GOOD : TOOL_USAGE;
    }
    result = s->nranks > 1 ? tool_agree(comm, result) : result;
    if (result == TOOL_GOOD) {
        status = cross_measure_all(s, comm);
        if (status < 0) {
            fprintf(stderr, "dcomm-crossover: rank %d: %s\n", s->rank, dcomm_last_error());
            result = TOOL_COMM;
        }
    }
    dcomm_comm_destroy(&comm);
    return result == TOOL_GOOD && s->rank == 0 ? cross_report(s) : result;
}

int main(int argc, char **argv)
{
    cross_args args;
    bool done = false;
    tool_begin(true);
    int result = cross_parse(argc, argv, &args, &done);
    if (result != TOOL_GOOD || done) {
        return tool_end(result);
    }
    cross_sweep sweep = {.args = &args, .nranks = args.nranks, .fit = {NAN, NAN, NAN}};
    if (!args.model) {
        result = cross_together(&args, &sweep);
    } else {
        result = cross_open(&sweep);
        result = result == TOOL_GOOD ? cross_alone(&sweep) : result;
    }
    cross_close(&sweep);
    return tool_end(result);
}
