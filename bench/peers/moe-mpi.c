/* moe-mpi.c - an MPI library's all-to-all-v of the rows that dcomm-moe's routings send, timed as
 * dcomm-moe --exchange times dcomm's: each iteration after a barrier, as its slowest rank's time,
 * with buffers in turns; the median. */
#define _GNU_SOURCE
#include "../moe_routes.h"
#include "../perf_rule.h"

#include <mpi.h>

enum { GOOD = 0, WRONG = 1, USAGE = 2 };

typedef struct peer {
    moe_routes routes;
    moe_routes_rows rows;
    size_t hidden;
    int rank, nranks, steps;
    int *send, *send_at, *recv, *recv_at;
    perf_pool pool;
} peer;

/* Every row is full of a number that says whose it is. */
static float value_of(int rank)
{
    return (float)(rank + 1);
}

static bool open_buffers(peer *p, size_t rotate, perf_mem mem)
{
    size_t bytes = p->hidden * sizeof(float), n = (size_t)p->nranks;
    if (!moe_routes_rows_make(&p->routes, p->rank, &p->rows) ||
        !perf_pool_shape(&p->pool, p->rows.sent * bytes, p->rows.received * bytes, rotate, mem) ||
        !perf_pool_alloc(&p->pool) || (p->send = calloc(4 * n, sizeof *p->send)) == NULL) {
        return false;
    }
    p->send_at = p->send + n;
    p->recv = p->send + 2 * n;
    p->recv_at = p->send + 3 * n;
    for (size_t r = 0; r < n; r++) {
        p->send[r] = (int)(p->rows.send[r] * p->hidden);
        p->send_at[r] = (int)(p->rows.send_at[r] * p->hidden);
        p->recv[r] = (int)(p->rows.recv[r] * p->hidden);
        p->recv_at[r] = (int)(p->rows.recv_at[r] * p->hidden);
    }
    memset(p->pool.memory, 0, p->pool.bytes);
    for (int pair = 0; pair < p->pool.pairs; pair++) {
        float *input = (float *)(void *)perf_pool_input(&p->pool, pair);
        for (size_t i = 0; i < p->rows.sent * p->hidden; i++) {
            input[i] = value_of(p->rank);
        }
    }
    return true;
}

static void exchange(peer *p)
{
    MPI_Alltoallv(perf_pool_input(&p->pool, p->pool.now), p->send, p->send_at, MPI_FLOAT,
                  perf_pool_work(&p->pool, p->pool.now), p->recv, p->recv_at, MPI_FLOAT,
                  MPI_COMM_WORLD);
}

static bool right(const peer *p)
{
    const float *got = (const float *)(void *)perf_pool_work(&p->pool, 0);
    for (int r = 0; r < p->nranks; r++) {
        for (int i = 0; i < p->recv[r]; i++) {
            if (got[p->recv_at[r] + i] != value_of(r)) {
                return false;
            }
        }
    }
    return true;
}

static double measure(peer *p)
{
    double *times = calloc((size_t)p->steps, sizeof *times), median;
    if (times == NULL) {
        MPI_Abort(MPI_COMM_WORLD, USAGE);
        return 0;
    }
    for (int i = -PERF_WARMUP; i < p->steps; i++) {
        MPI_Barrier(MPI_COMM_WORLD);
        double start = perf_now();
        exchange(p);
        double seconds = perf_now() - start;
        MPI_Allreduce(MPI_IN_PLACE, &seconds, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
        if (i >= 0) {
            times[i] = seconds;
        }
        perf_pool_next(&p->pool);
    }
    median = perf_median(times, p->steps);
    free(times);
    return median;
}

static int run(peer *p, char **argv)
{
    size_t rotate = strtoull(argv[6], NULL, 10);
    p->hidden = strtoull(argv[2], NULL, 10);
    p->steps = atoi(argv[7]);
    perf_mem mem = strcmp(argv[8], "huge") == 0 ? PERF_MEM_HUGE : PERF_MEM_HOST;
    if (!moe_routes_make(&p->routes, strtoull(argv[1], NULL, 10), atoi(argv[3]), atoi(argv[4]),
                         p->nranks, argv[5]) ||
        p->steps < 1 || !open_buffers(p, rotate, mem)) {
        fprintf(stderr, "moe-mpi: arguments that cannot be, or no memory\n");
        MPI_Abort(MPI_COMM_WORLD, USAGE);
    }
    exchange(p);
    int good = right(p);
    MPI_Allreduce(MPI_IN_PLACE, &good, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    double median = measure(p);
    if (p->rank == 0) {
        printf("%-14s alltoallv %.1f us%s\n", argv[5], median * 1e6, good ? "" : " WRONG");
    }
    perf_pool_free(&p->pool);
    free(p->rows.send);
    free(p->send);
    return good ? GOOD : WRONG;
}

int main(int argc, char **argv)
{
    static peer p;
    p.nranks = 1;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &p.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &p.nranks);
    int result = USAGE;
    if (argc == 9) {
        result = run(&p, argv);
    } else if (p.rank == 0) {
        fprintf(stderr, "usage: moe-mpi TOKENS HIDDEN EXPERTS K SKEW ROTATE STEPS host|huge\n");
    }
    MPI_Finalize();
    return result;
}
