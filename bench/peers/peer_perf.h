/* peer_perf.h - times another library's collectives by the rule of dcomm-perf: the same clock,
 * iterations, buffers and barrier, the same JSON rows; f32, sum. C and C++. A program includes it,
 * defines the functions declared first, which are all that differs, and calls peer_main. */
#ifndef PEER_PERF_H
#define PEER_PERF_H

#include "../perf_json.h"
#include "../perf_rule.h"

#include <getopt.h>
#include <limits.h>
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

static const char *const peer_ops[PEER_OP_COUNT] = {"allreduce", "reduce_scatter", "allgather",
                                                    "broadcast", "alltoall"};

typedef struct peer_args {
    peer_op op;
    size_t begin, end, factor, rotate;
    int iterations, warmup, row; /* iterations 0: adapt; row: calls of an iteration */
    bool check, in_place;
    perf_mem mem;
    const char *json;
} peer_args;

typedef struct peer_case {
    peer_op op;
    int rank, nranks;
    bool in_place;
    size_t count;                  /* of the call; for ops with blocks: of one block */
    size_t send_count, recv_count; /* elements of this rank's buffers */
    size_t bytes;                  /* the larger buffer's */
    perf_pool pool;
    float *input; /* what this rank sends, never written by the call */
    float *work;  /* the result; in place: input and result */
} peer_case;

/* ---- what each library defines; errors end the program, with a message ---- */

static void peer_library_name(char *name, size_t len);
static bool peer_can(peer_op op, bool in_place);
static void peer_barrier(void);
static void peer_call(const peer_case *c);
/* Each value's largest over all ranks, on all ranks. */
static void peer_max(double *values, int n);
static void peer_abort(int status);

static const char peer_usage_text[] =
    "usage: OP [options], under the library's own launcher or dcomm-run\n"
    "OP: allreduce reduce_scatter allgather broadcast alltoall; f32, sum\n"
    "  -b BYTES     smallest size (4)\n"
    "  -e BYTES     largest size (67108864, or -b where that is larger)\n"
    "  -f FACTOR    from one size to the next (4)\n"
    "  -n ITERS     timed iterations (as many as take about 0.3 s, at least 5)\n"
    "  -m CALLS     calls of an iteration in a row, without a barrier between (1)\n"
    "  -w WARMUP    untimed iterations (3)\n"
    "  -c 0|1       check every element (1)\n"
    "  --inplace    in place; broadcast always is\n"
    "  --mem host|huge   ordinary memory, or memory advised to be on huge pages (host)\n"
    "  --rotate BYTES    iterations take turns with buffers of so many bytes (0: always the same)\n"
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
    c->count = blocks ? share : whole;
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

/* Return the start of this rank's data for a call in place. */
static float *peer_send_at(const peer_case *c)
{
    return c->work + (c->op == PEER_ALLGATHER ? (size_t)c->rank * c->count : 0);
}

/* In place, the call has overwritten its input: bring it back. */
static void peer_renew(peer_case *c)
{
    if (c->in_place && c->send_count > 0) {
        memcpy(peer_send_at(c), c->input, c->send_count * sizeof(float));
    }
}

static void peer_turn(peer_case *c)
{
    c->input = (float *)(void *)perf_pool_input(&c->pool, c->pool.now);
    c->work = (float *)(void *)perf_pool_work(&c->pool, c->pool.now);
}

static bool peer_open(peer_case *c, const peer_args *args, size_t bytes)
{
    peer_shape(c, bytes);
    if (!perf_pool_shape(&c->pool, c->send_count * sizeof(float), c->bytes, args->rotate,
                         args->mem) ||
        !perf_pool_alloc(&c->pool)) {
        return false;
    }
    for (int pair = c->pool.pairs - 1; pair >= 0; pair--) {
        c->pool.now = pair;
        peer_turn(c);
        for (size_t i = 0; i < c->send_count; i++) {
            c->input[i] = peer_value(c->rank, i);
        }
        memset(c->work, 0x5a, c->bytes + PERF_GUARD);
    }
    return true;
}

static float peer_wanted(const peer_case *c, size_t i)
{
    size_t first = c->op == PEER_REDUCE_SCATTER ? (size_t)c->rank * c->count : 0;
    float sum = 0;
    switch (c->op) {
    case PEER_ALLREDUCE:
    case PEER_REDUCE_SCATTER:
        for (int r = 0; r < c->nranks; r++) {
            sum += peer_value(r, first + i);
        }
        return sum;
    case PEER_ALLGATHER:
        return peer_value((int)(i / c->count), i % c->count);
    case PEER_BROADCAST:
        return peer_value(0, i);
    default:
        return peer_value((int)(i / c->count), (size_t)c->rank * c->count + i % c->count);
    }
}

static double peer_check(const peer_case *c)
{
    double wrong = 0;
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

static double peer_timed_call(const peer_args *args, peer_case *c)
{
    perf_pool_next(&c->pool);
    peer_turn(c);
    peer_renew(c);
    peer_barrier();
    double start = perf_now();
    peer_call(c);
    for (int i = 1; i < args->row; i++) {
        perf_pool_next(&c->pool);
        peer_turn(c);
        peer_call(c);
    }
    return (perf_now() - start) / args->row;
}

static int peer_warm_up(const peer_args *args, peer_case *c)
{
    double fastest = 1e9;
    double start = perf_now();
    for (int i = 0; i < args->warmup || (i == 0 && args->iterations == 0); i++) {
        peer_timed_call(args, c);
        double now = perf_now();
        fastest = now - start < fastest ? now - start : fastest;
        start = now;
    }
    int iterations = args->iterations > 0 ? args->iterations : perf_iterations(fastest);
    double agreed = c->rank == 0 ? iterations : 0; /* rank 0 decides */
    peer_max(&agreed, 1);
    return (int)agreed;
}

static bool peer_measure(const peer_args *args, peer_case *c, double *min_s, double *median_s)
{
    int iterations = peer_warm_up(args, c);
    double *times = (double *)calloc((size_t)iterations, sizeof *times);
    if (times == NULL) {
        fprintf(stderr, "no memory for %d times\n", iterations);
        return false;
    }
    for (int i = 0; i < iterations; i++) {
        times[i] = peer_timed_call(args, c);
    }
    peer_max(times, iterations);
    *median_s = perf_median(times, iterations); /* sorts */
    *min_s = times[0];
    free(times);
    return true;
}

/* ---- report ---- */

/* The one core that this rank may use; -1 where it is not bound to one. */
static int peer_core(void)
{
    cpu_set_t mask;
    if (sched_getaffinity(0, sizeof mask, &mask) != 0 || CPU_COUNT(&mask) != 1) {
        return -1;
    }
    return sched_getcpu();
}

static void peer_start_json(perf_json *j, const char *library, int nranks, const double *cores)
{
    perf_json_open(j, NULL, '{');
    perf_json_int(j, "schema", 1);
    perf_json_text(j, "tool", "peer-perf");
    perf_json_text(j, "version", library);
    perf_json_open(j, "cores", '[');
    for (int r = 0; r < nranks; r++) {
        perf_json_int(j, NULL, (int64_t)cores[r]);
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
    fflush(stdout);
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
    perf_json_int(j, "count", (int64_t)c->count);
    perf_json_bool(j, "inplace", c->in_place);
    perf_json_text(j, "mem", perf_mem_names[c->pool.mem]);
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
    if (bytes / sizeof(float) > INT_MAX || !peer_open(&c, args, bytes)) {
        fprintf(stderr, "rank %d: %zu bytes are too many\n", c.rank, bytes);
        peer_abort(PEER_COMM);
    }
    if (c.rank == 0) {
        perf_pool_report(&c.pool);
    }
    double wrong = 0;
    memset(c.work, 0xa5, c.bytes); /* what is not written must not look right */
    peer_renew(&c);
    peer_call(&c);
    if (args->check) {
        wrong = peer_check(&c);
    }
    peer_max(&wrong, 1);
    double min_s = NAN, median_s = NAN;
    if (!peer_measure(args, &c, &min_s, &median_s)) {
        peer_abort(PEER_COMM);
    }
    if (c.rank == 0) {
        peer_report(json, &c, library, min_s, median_s, args->check ? wrong : NAN);
    }
    perf_pool_free(&c.pool);
    if (wrong > 0 && c.rank == 0) {
        fprintf(stderr, "%s: %s of %zu bytes: %.0f wrong elements on a rank\n", library,
                peer_ops[c.op], bytes, wrong);
    }
    return wrong > 0 ? PEER_WRONG : PEER_GOOD;
}

static int peer_all(const peer_args *args, int rank, int nranks)
{
    char library[64];
    perf_json json;
    peer_case c;
    memset(&json, 0, sizeof json);
    memset(&c, 0, sizeof c);
    json.first = true;
    c.op = args->op;
    c.in_place = args->in_place || args->op == PEER_BROADCAST;
    c.rank = rank;
    c.nranks = nranks;
    peer_library_name(library, sizeof library);
    double *cores = (double *)calloc((size_t)nranks, sizeof *cores);
    if (cores == NULL) {
        peer_abort(PEER_COMM);
    }
    for (int r = 0; r < nranks; r++) {
        cores[r] = r == rank ? peer_core() : -1;
    }
    peer_max(cores, nranks);
    if (rank == 0 && args->json != NULL) {
        json.file = fopen(args->json, "w");
        if (json.file == NULL) {
            perror(args->json);
            peer_abort(PEER_USAGE);
        }
        peer_start_json(&json, library, nranks, cores);
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

static bool peer_parse_mem(const char *text, perf_mem *mem)
{
    for (int i = 0; i < PERF_MEM_REGISTERED; i++) {
        if (strcmp(text, perf_mem_names[i]) == 0) {
            *mem = (perf_mem)i;
            return true;
        }
    }
    return false;
}

static bool peer_parse(int argc, char **argv, peer_args *args)
{
    enum { ROTATE = 256, MEM };
    static const struct option long_options[] = {
        {"inplace", no_argument, NULL, 'p'},
        {"json", required_argument, NULL, 'j'},
        {"rotate", required_argument, NULL, ROTATE},
        {"mem", required_argument, NULL, MEM},
        {NULL, 0, NULL, 0},
    };
    const size_t usual = (size_t)64 << 20;
    memset(args, 0, sizeof *args);
    args->begin = 4;
    args->factor = 4;
    args->warmup = PERF_WARMUP;
    args->row = 1;
    args->check = true;
    for (int o; (o = getopt_long(argc, argv, "b:e:f:n:m:w:c:", long_options, NULL)) != -1;) {
        unsigned long long value = 0;
        if (o == ROTATE || (o < 256 && strchr("befnmwc", o) != NULL)) {
            char *end = NULL;
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
        case 'm':
            args->row = value < 1 ? 1 : value < INT_MAX ? (int)value : INT_MAX;
            break;
        case 'w':
            args->warmup = value < INT_MAX ? (int)value : INT_MAX;
            break;
        case 'c':
            args->check = value != 0;
            break;
        case ROTATE:
            args->rotate = (size_t)value;
            break;
        case MEM:
            if (!peer_parse_mem(optarg, &args->mem)) {
                return false;
            }
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
    return args->op != PEER_OP_COUNT && args->begin > 0 && args->factor > 1 &&
           (args->row == 1 || !args->in_place);
}

/* The library is up: all else. */
static int peer_main(int argc, char **argv, int rank, int nranks)
{
    peer_args args;
    opterr = rank == 0;
    if (!peer_parse(argc, argv, &args)) {
        if (rank == 0) {
            fputs(peer_usage_text, stderr);
        }
        return PEER_USAGE;
    }
    if (!peer_can(args.op, args.in_place)) {
        if (rank == 0) {
            fprintf(stderr, "this library does not have this operation\n");
        }
        return PEER_USAGE;
    }
    return peer_all(&args, rank, nranks);
}

#endif
