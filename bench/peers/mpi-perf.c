/* mpi-perf.c - times an MPI library's collectives by the rule of dcomm-perf, for comparison:
 * the same clock, iterations, buffers and barrier, the same JSON rows. f32, sum. */
#define _GNU_SOURCE
#include "../perf_json.h"
#include "../perf_rule.h"

#include <getopt.h>
#include <limits.h>
#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PEER_GOOD = 0, PEER_WRONG = 1, PEER_USAGE = 2, PEER_COMM = 3 };

typedef enum peer_op {
    PEER_ALLREDUCE,
    PEER_REDUCE_SCATTER,
    PEER_ALLGATHER,
    PEER_BROADCAST,
    PEER_ALLTOALL,
    PEER_OP_COUNT
} peer_op;

static const char *const peer_ops[PEER_OP_COUNT] = {
    [PEER_ALLREDUCE] = "allreduce", [PEER_REDUCE_SCATTER] = "reduce_scatter",
    [PEER_ALLGATHER] = "allgather", [PEER_BROADCAST] = "broadcast",
    [PEER_ALLTOALL] = "alltoall",
};

typedef struct peer_args {
    peer_op op;
    size_t begin, end, factor;
    int iterations, warmup; /* iterations 0: adapt */
    bool check, in_place;
    const char *json;
} peer_args;

typedef struct peer_case {
    peer_op op;
    int rank, nranks;
    bool in_place;
    int count;                     /* of the call; for ops with blocks: of one block */
    size_t send_count, recv_count; /* elements of this rank's buffers */
    size_t bytes;                  /* the larger buffer's */
    float *input;                  /* what this rank sends, never written by the call */
    float *work;                   /* the result; in place: input and result */
} peer_case;

static const char usage[] =
    "usage: mpi-perf OP [options], under mpirun\n"
    "OP: allreduce reduce_scatter allgather broadcast alltoall; f32, sum\n"
    "  -b BYTES     smallest size (4)\n"
    "  -e BYTES     largest size (67108864, or -b where that is larger)\n"
    "  -f FACTOR    from one size to the next (4)\n"
    "  -n ITERS     timed iterations (as many as take about 0.3 s, at least 5)\n"
    "  -w WARMUP    untimed iterations (3)\n"
    "  -c 0|1       check every element (1)\n"
    "  --inplace    in place, by MPI_IN_PLACE; broadcast always is\n"
    "  --json FILE  rank 0 writes the results there, in rows as dcomm-perf's\n"
    "Time is the median over iterations of the slowest rank's time, ranks aligned by a barrier\n"
    "before each.\n"
    "exit: 0 good, 1 wrong result, 2 usage, 3 communication error\n";

/* ---- one operation at one size ---- */

/* Small whole numbers: any order of additions gives the same sum. */
static float peer_value(int rank, size_t i)
{
    return (float)((i * 7 + (size_t)rank * 3) % 31 + 1);
}

static void peer_shape(peer_case *c, size_t bytes)
{
    size_t n = (size_t)c->nranks;
    size_t whole = bytes / sizeof(float);
    size_t share = whole / n;
    bool blocks = c->op != PEER_ALLREDUCE && c->op != PEER_BROADCAST;
    c->count = (int)(blocks ? share : whole);
    c->send_count = blocks ? share * n : whole;
    c->recv_count = c->send_count;
    c->bytes = c->send_count * sizeof(float);
    if (c->op == PEER_ALLGATHER) {
        c->send_count = share;
    } else if (c->op == PEER_REDUCE_SCATTER) {
        c->recv_count = share;
    } else if (c->op == PEER_BROADCAST && c->rank != 0) {
        c->send_count = 0;
    }
}

/* Where the call's own data begins in place. */
static float *peer_send_at(const peer_case *c)
{
    bool own_block = c->op == PEER_ALLGATHER;
    return c->work + (own_block ? (size_t)c->rank * (size_t)c->count : 0);
}

/* In place, the call has overwritten its input: bring it back. */
static void peer_renew(peer_case *c)
{
    if (c->in_place && c->send_count > 0) {
        memcpy(peer_send_at(c), c->input, c->send_count * sizeof(float));
    }
}

static void peer_free(peer_case *c)
{
    free(c->input);
    free(c->work);
}

static bool peer_open(peer_case *c, size_t bytes)
{
    peer_shape(c, bytes);
    c->input = (float *)perf_alloc(c->send_count * sizeof(float));
    c->work = (float *)perf_alloc(c->bytes);
    if (c->input == NULL || c->work == NULL) {
        peer_free(c);
        return false;
    }
    for (size_t i = 0; i < c->send_count; i++) {
        c->input[i] = peer_value(c->rank, i);
    }
    memset(c->work, 0x5a, c->bytes + PERF_GUARD);
    return true;
}

static int peer_call(peer_case *c)
{
    const void *send = c->in_place ? MPI_IN_PLACE : c->input;
    MPI_Comm world = MPI_COMM_WORLD;
    switch (c->op) {
    case PEER_ALLREDUCE:
        return MPI_Allreduce(send, c->work, c->count, MPI_FLOAT, MPI_SUM, world);
    case PEER_REDUCE_SCATTER:
        return MPI_Reduce_scatter_block(send, c->work, c->count, MPI_FLOAT, MPI_SUM, world);
    case PEER_ALLGATHER:
        return MPI_Allgather(send, c->count, MPI_FLOAT, c->work, c->count, MPI_FLOAT, world);
    case PEER_BROADCAST:
        return MPI_Bcast(c->work, c->count, MPI_FLOAT, 0, world);
    default:
        return MPI_Alltoall(send, c->count, MPI_FLOAT, c->work, c->count, MPI_FLOAT, world);
    }
}

static float peer_wanted(const peer_case *c, size_t i)
{
    size_t count = (size_t)c->count;
    size_t first = c->op == PEER_REDUCE_SCATTER ? (size_t)c->rank * count : 0;
    float sum = 0;
    switch (c->op) {
    case PEER_ALLREDUCE:
    case PEER_REDUCE_SCATTER:
        for (int r = 0; r < c->nranks; r++) {
            sum += peer_value(r, first + i);
        }
        return sum;
    case PEER_ALLGATHER:
        return peer_value((int)(i / count), i % count);
    case PEER_BROADCAST:
        return peer_value(0, i);
    default:
        return peer_value((int)(i / count), (size_t)c->rank * count + i % count);
    }
}

static uint64_t peer_check(const peer_case *c)
{
    uint64_t wrong = 0;
    for (size_t i = 0; i < c->recv_count; i++) {
        wrong += c->work[i] != peer_wanted(c, i);
    }
    const unsigned char *guard = (const unsigned char *)c->work + c->bytes;
    for (int i = 0; i < PERF_GUARD; i++) {
        wrong += guard[i] != 0x5a;
    }
    return wrong;
}

/* ---- timing: step by step what dcomm-perf does ---- */

/* MPI's default error handler ends the program with a message, so results need no look. */
static double peer_timed_call(peer_case *c)
{
    peer_renew(c);
    MPI_Barrier(MPI_COMM_WORLD);
    double start = perf_now();
    peer_call(c);
    return perf_now() - start;
}

static int peer_warm_up(const peer_args *args, peer_case *c)
{
    double fastest = 1e9;
    double start = perf_now();
    for (int i = 0; i < args->warmup || (i == 0 && args->iterations == 0); i++) {
        peer_timed_call(c);
        double now = perf_now();
        fastest = now - start < fastest ? now - start : fastest;
        start = now;
    }
    int iterations = args->iterations > 0 ? args->iterations : perf_iterations(fastest);
    MPI_Bcast(&iterations, 1, MPI_INT, 0, MPI_COMM_WORLD);
    return iterations;
}

static bool peer_measure(const peer_args *args, peer_case *c, double *min_s, double *median_s)
{
    int iterations = peer_warm_up(args, c);
    double *times = calloc((size_t)iterations, sizeof *times);
    if (times == NULL) {
        fprintf(stderr, "mpi-perf: no memory for %d times\n", iterations);
        return false;
    }
    for (int i = 0; i < iterations; i++) {
        times[i] = peer_timed_call(c);
    }
    MPI_Allreduce(MPI_IN_PLACE, times, iterations, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    *median_s = perf_median(times, iterations); /* sorts */
    *min_s = times[0];
    free(times);
    return true;
}

/* ---- report ---- */

/* "openmpi-4.1.4" of "Open MPI v4.1.4, package: ...", "mpich-4.0.2" of "MPICH Version: 4.0.2". */
static void peer_library(char *name, size_t len)
{
    char text[MPI_MAX_LIBRARY_VERSION_STRING];
    int unused = 0;
    char version[32] = "unknown";
    MPI_Get_library_version(text, &unused);
    const char *family = "mpi";
    if (sscanf(text, "Open MPI v%31[0-9.]", version) == 1) {
        family = "openmpi";
    } else if (sscanf(text, "MPICH Version: %31[0-9.]", version) == 1) {
        family = "mpich";
    }
    snprintf(name, len, "%s-%s", family, version);
}

/* The one core that this rank may use; -1 where it is not bound to one. */
static int peer_core(void)
{
    cpu_set_t mask;
    if (sched_getaffinity(0, sizeof mask, &mask) != 0 || CPU_COUNT(&mask) != 1) {
        return -1;
    }
    return sched_getcpu();
}

static void peer_start_json(perf_json *j, const char *library, int nranks, const int *cores)
{
    perf_json_open(j, NULL, '{');
    perf_json_int(j, "schema", 1);
    perf_json_text(j, "tool", "mpi-perf");
    perf_json_text(j, "version", library);
    perf_json_open(j, "cores", '[');
    for (int r = 0; r < nranks; r++) {
        perf_json_int(j, NULL, cores[r]);
    }
    perf_json_close(j, ']');
    perf_json_open(j, "results", '[');
}

static void peer_report(perf_json *j, const peer_case *c, const char *library, double min_s,
                        double median_s, double wrong)
{
    double n = c->nranks;
    double factor = c->op == PEER_ALLREDUCE   ? 2 * (n - 1) / n
                    : c->op == PEER_BROADCAST ? 1
                                              : (n - 1) / n;
    double algbw = c->bytes > 0 ? (double)c->bytes / median_s * 1e-9 : NAN;
    bool reduces = c->op == PEER_ALLREDUCE || c->op == PEER_REDUCE_SCATTER;
    printf("%-14s %12zu  %-16s %11.2f %11.2f\n", peer_ops[c->op], c->bytes, library, min_s * 1e6,
           median_s * 1e6);
    if (j->file == NULL) {
        return;
    }
    perf_json_open(j, NULL, '{');
    perf_json_text(j, "op", peer_ops[c->op]);
    perf_json_text(j, "algo", library);
    perf_json_text(j, "codec", "none");
    perf_json_text(j, "dtype", "float");
    if (reduces) {
        perf_json_text(j, "redop", "sum");
    } else {
        perf_json_null(j, "redop");
    }
    perf_json_int(j, "nranks", c->nranks);
    perf_json_int(j, "bytes", (int64_t)c->bytes);
    perf_json_int(j, "count", c->count);
    perf_json_bool(j, "inplace", c->in_place);
    perf_json_text(j, "mem", "host");
    perf_json_number(j, "time_us_min", min_s * 1e6);
    perf_json_number(j, "time_us_med", median_s * 1e6);
    perf_json_number(j, "algbw_GBps", algbw);
    perf_json_number(j, "busbw_GBps", algbw * factor);
    static const char *const unmeasured[] = {"wire_bytes", "relerr_max", "bias_mean", "ulp_max"};
    for (int i = 0; i < 4; i++) {
        perf_json_null(j, unmeasured[i]);
    }
    perf_json_number(j, "wrong", wrong);
    perf_json_null(j, "hash");
    perf_json_close(j, '}');
}

/* ---- the program ---- */

static int peer_size(const peer_args *args, peer_case c, size_t bytes, const char *library,
                     perf_json *json)
{
    if (bytes / sizeof(float) > INT_MAX || !peer_open(&c, bytes)) {
        fprintf(stderr, "mpi-perf: rank %d: %zu bytes are too many\n", c.rank, bytes);
        MPI_Abort(MPI_COMM_WORLD, PEER_COMM);
    }
    uint64_t wrong = 0;
    memset(c.work, 0xa5, c.bytes); /* what is not written must not look right */
    peer_renew(&c);
    peer_call(&c);
    if (args->check) {
        wrong = peer_check(&c);
    }
    MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
    double min_s = NAN, median_s = NAN;
    if (!peer_measure(args, &c, &min_s, &median_s)) {
        MPI_Abort(MPI_COMM_WORLD, PEER_COMM);
    }
    if (c.rank == 0) {
        peer_report(json, &c, library, min_s, median_s, args->check ? (double)wrong : NAN);
    }
    peer_free(&c);
    if (wrong > 0 && c.rank == 0) {
        fprintf(stderr, "mpi-perf: %s of %zu bytes: %" PRIu64 " wrong elements\n", peer_ops[c.op],
                bytes, wrong);
    }
    return wrong > 0 ? PEER_WRONG : PEER_GOOD;
}

static int peer_main(const peer_args *args)
{
    char library[64];
    perf_json json = {.first = true};
    peer_case c = {.op = args->op, .in_place = args->in_place || args->op == PEER_BROADCAST};
    MPI_Comm_rank(MPI_COMM_WORLD, &c.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &c.nranks);
    peer_library(library, sizeof library);
    int *cores = calloc((size_t)c.nranks, sizeof *cores);
    if (cores == NULL) {
        MPI_Abort(MPI_COMM_WORLD, PEER_COMM);
    }
    int core = peer_core();
    MPI_Gather(&core, 1, MPI_INT, cores, 1, MPI_INT, 0, MPI_COMM_WORLD);
    if (c.rank == 0 && args->json != NULL) {
        json.file = fopen(args->json, "w");
        if (json.file == NULL) {
            perror(args->json);
            MPI_Abort(MPI_COMM_WORLD, PEER_USAGE);
        }
        peer_start_json(&json, library, c.nranks, cores);
    }
    free(cores);
    int result = PEER_GOOD;
    for (size_t bytes = args->begin; bytes <= args->end; bytes *= args->factor) {
        int one = peer_size(args, c, bytes, library, &json);
        result = one != PEER_GOOD ? one : result;
    }
    if (json.file != NULL) {
        perf_json_close(&json, ']');
        perf_json_close(&json, '}');
        fputc('\n', json.file);
        if (fclose(json.file) != 0) {
            perror(args->json);
            return PEER_USAGE;
        }
    }
    return result;
}

static bool peer_parse(int argc, char **argv, peer_args *args)
{
    static const struct option long_options[] = {
        {"inplace", no_argument, NULL, 'p'},
        {"json", required_argument, NULL, 'j'},
        {NULL, 0, NULL, 0},
    };
    const size_t usual = (size_t)64 << 20;
    *args = (peer_args){.begin = 4, .factor = 4, .warmup = PERF_WARMUP, .check = true};
    for (int o; (o = getopt_long(argc, argv, "b:e:f:n:w:c:", long_options, NULL)) != -1;) {
        char *end = NULL;
        unsigned long long value = 0;
        if (strchr("befnwc", o) != NULL) {
            value = strtoull(optarg, &end, 10);
            if (*optarg < '0' || *optarg > '9' || *end != '\0') {
                return false;
            }
        }
        switch (o) {
        case 'b':
            args->begin = (size_t)value;
            break;
        case 'e':
            args->end = (size_t)value;
            break;
        case 'f':
            args->factor = (size_t)value;
            break;
        case 'n':
            args->iterations = value < INT_MAX ? (int)value : INT_MAX;
            break;
        case 'w':
            args->warmup = value < INT_MAX ? (int)value : INT_MAX;
            break;
        case 'c':
            args->check = value != 0;
            break;
        case 'p':
            args->in_place = true;
            break;
        case 'j':
            args->json = optarg;
            break;
        default:
            return false;
        }
    }
    if (args->end == 0) {
        args->end = args->begin > usual ? args->begin : usual;
    }
    args->op = PEER_OP_COUNT;
    for (int i = 0; i < PEER_OP_COUNT && optind + 1 == argc; i++) {
        if (strcmp(argv[optind], peer_ops[i]) == 0) {
            args->op = (peer_op)i;
        }
    }
    return args->op != PEER_OP_COUNT && args->begin > 0 && args->factor > 1;
}

int main(int argc, char **argv)
{
    peer_args args;
    int rank = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    opterr = rank == 0;
    int result = PEER_USAGE;
    if (peer_parse(argc, argv, &args)) {
        result = peer_main(&args);
    } else if (rank == 0) {
        fputs(usage, stderr);
    }
    MPI_Finalize();
    return result;
}
