/* perf_args.h - the command line of dcomm-perf. */
#ifndef PERF_ARGS_H
#define PERF_ARGS_H

#include "dcomm.h"
#include "perf_mem.h"
#include "perf_rule.h"
#include "tool_ranks.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum perf_op {
    PERF_ALLREDUCE,
    PERF_REDUCE_SCATTER,
    PERF_ALLGATHER,
    PERF_BROADCAST,
    PERF_REDUCE,
    PERF_GATHER,
    PERF_SCATTER,
    PERF_ALLTOALL,
    PERF_ALLTOALLV,
    PERF_SENDRECV,
    PERF_BARRIER,
    PERF_OP_COUNT
} perf_op;

typedef struct perf_op_info {
    const char *name;
    dcomm_coll coll;
    bool reduces, rooted, in_place;
} perf_op_info;

static const perf_op_info perf_ops[PERF_OP_COUNT] = {
    [PERF_ALLREDUCE] = {"allreduce", DCOMM_COLL_ALLREDUCE, true, false, true},
    [PERF_REDUCE_SCATTER] = {"reduce_scatter", DCOMM_COLL_REDUCE_SCATTER, true, false, true},
    [PERF_ALLGATHER] = {"allgather", DCOMM_COLL_ALLGATHER, false, false, true},
    [PERF_BROADCAST] = {"broadcast", DCOMM_COLL_BROADCAST, false, true, true},
    [PERF_REDUCE] = {"reduce", DCOMM_COLL_REDUCE, true, true, true},
    [PERF_GATHER] = {"gather", DCOMM_COLL_GATHER, false, true, true},
    [PERF_SCATTER] = {"scatter", DCOMM_COLL_SCATTER, false, true, true},
    [PERF_ALLTOALL] = {"alltoall", DCOMM_COLL_ALLTOALL, false, false, true},
    [PERF_ALLTOALLV] = {"alltoallv", DCOMM_COLL_ALLTOALLV, false, false, false},
    [PERF_SENDRECV] = {"sendrecv", DCOMM_COLL_SEND, false, false, false},
    [PERF_BARRIER] = {"barrier", DCOMM_COLL_BARRIER, false, false, false},
};

static const char *const perf_dtypes[DCOMM_DTYPE_COUNT] = {
    [DCOMM_F64] = "double", [DCOMM_F32] = "float",  [DCOMM_F16] = "half",  [DCOMM_BF16] = "bf16",
    [DCOMM_I8] = "int8",    [DCOMM_U8] = "uint8",   [DCOMM_I32] = "int32", [DCOMM_U32] = "uint32",
    [DCOMM_I64] = "int64",  [DCOMM_U64] = "uint64",
};

static const char *const perf_redops[] = {
    [DCOMM_SUM] = "sum", [DCOMM_PROD] = "prod", [DCOMM_MIN] = "min",
    [DCOMM_MAX] = "max", [DCOMM_AVG] = "avg",
};
enum { PERF_REDOP_COUNT = sizeof perf_redops / sizeof perf_redops[0], PERF_ALGO_MAX = 32 };

typedef struct perf_args {
    perf_op op;
    size_t begin, end;
    double factor;
    bool dtypes[DCOMM_DTYPE_COUNT], redops[PERF_REDOP_COUNT]; /* true: wanted */
    int root;
    int iterations;  /* 0: chosen by the time of a call */
    int warmup, row; /* untimed iterations; calls per iteration */
    bool check, in_place, deterministic, all_algos, wide;
    char *algo_text;
    const char *algos[PERF_ALGO_MAX]; /* they point into algo_text */
    int nalgos;
    int lanes;
    size_t chunk, rotate;
    perf_mem mem;
    const char *codec; /* NULL: exact */
    bool feedback;
    const char *json;
} perf_args;

static void perf_help(FILE *out)
{
    fputs(
        "usage: dcomm-perf OP [options], under dcomm-run, mpirun, srun or torchrun's variables\n"
        "OP: allreduce reduce_scatter allgather broadcast reduce gather scatter alltoall\n"
        "    alltoallv sendrecv barrier\n"
        "  -b BYTES     smallest size (4); K, M and G are powers of 1024; 0 is a size too\n"
        "  -e BYTES     largest size (64M, or -b where that is larger)\n"
        "  -f FACTOR    from one size to the next (4)\n"
        "  -d TYPE      float double half bf16 int8 uint8 int32 uint32 int64 uint64 (float);\n"
        "               several with commas, or all\n"
        "  -o OP        sum prod min max avg (sum); several with commas, or all\n"
        "  -r ROOT      for broadcast, reduce, gather, scatter (0)\n"
        "  -n ITERS     timed iterations (as many as take about 0.3 s, at least 5)\n"
        "  -m CALLS     calls of an iteration, one after the other with no barrier between; the\n"
        "               time is of one (1); not with --inplace\n"
        "  -w WARMUP    untimed iterations (3)\n"
        "  -c 0|1       check every element against an f64 reference (1)\n"
        "  --algo A     auto, names, all, or several with commas (auto); with all, those that\n"
        "               refuse are reported and left out\n"
        "  --mem KIND   of the buffers: host, huge (host memory advised to huge pages),\n"
        "               registered (dcomm_mem_alloc), or on a stream, timed by its events: cuda,\n"
        "               cuda-shared (dcomm_mem_alloc_device)\n"
        "               (a build with DCOMM_WITH_CUDA; ranks of a host take turns with devices)\n"
        "  --rotate BYTES   iterations take turns with buffers of so many bytes, at most 512 of\n"
        "               them, so that the caches hold none (0: always the same buffers)\n"
        "  --inplace    in place; not for alltoallv, sendrecv, barrier\n"
        "  --deterministic  fold in rank order\n"
        "  --lanes L    parallel rings or trees (the algorithm's own)\n"
        "  --chunk BYTES    pipelining grain (the algorithm's own)\n"
        "  --codec SPEC     compress, for example with bf16 or qsgd:bits=4 (docs/codecs.md):\n"
        "               floats in allreduce only. relerr, bias and ulp are then of what the codec\n"
        "               makes of numbers from 0.5 to 2; what differs by rank, or is not finite, "
        "is\n"
        "               wrong. auto, or auto:SPEC: where the model's verdict is that it is worth "
        "it\n"
        "  --feedback   with error feedback\n"
        "  --wide       all columns: count, relerr, bias, ulp, wire and hash as well\n"
        "  --json FILE  rank 0 writes the results there (docs/dcomm-perf.schema.json; \"-\":\n"
        "               standard output; the table then goes to standard error)\n"
        "  --help, --version\n"
        "\n"
        "Time is the median over iterations of the slowest rank's time, ranks aligned by a\n"
        "barrier before each. That barrier lets ranks go one after the other, which the time of\n"
        "a short call holds too, and that of many in a row (-m) does not. Bytes and busbw are\n"
        "those of nccl-tests: bytes is the larger of a rank's send and receive buffers; busbw is\n"
        "algbw times 2(n-1)/n for allreduce, (n-1)/n for reduce_scatter, allgather, gather,\n"
        "scatter, alltoall(v), and 1 for the others.\n"
        "sendrecv sends to the next rank of a ring and receives from the one before. alltoallv\n"
        "sends ((7i+3j) mod 5)/2 of an even share from rank i to rank j; its bytes are the\n"
        "average of what the ranks send. wire is the most payload that one rank sends or reads\n"
        "from its peers. hash is of the result, over all ranks where their results differ.\n"
        "A last line says so if the machine was busy while it was measured.\n"
        "exit: 0 good, 1 wrong result, " TOOL_USAGE_HELP ",\n"
        "      3 communication error\n",
        out);
}

/* Mark each name of a comma list in `wanted`; "all" marks all. Return false if a name is
 * unknown. */
static bool perf_parse_names(const char *text, const char *const *names, int n, bool *wanted)
{
    bool all = strcmp(text, "all") == 0;
    memset(wanted, all, (size_t)n * sizeof *wanted);
    return all || numbers_words(text, names, n, wanted);
}

/* Split the list of algorithms. perf_check_names checks the names later, when the operation is
 * known. */
static bool perf_parse_algos(const char *text, perf_args *args)
{
    args->all_algos = false;
    args->nalgos = 0;
    free(args->algo_text);
    args->algo_text = strdup(text);
    if (args->algo_text == NULL) {
        return false;
    }
    char *save = NULL;
    for (char *name = strtok_r(args->algo_text, ",", &save); name != NULL;
         name = strtok_r(NULL, ",", &save)) {
        if (args->nalgos == PERF_ALGO_MAX) {
            return false;
        }
        args->all_algos = args->all_algos || strcmp(name, "all") == 0;
        args->algos[args->nalgos++] = name;
    }
    return args->nalgos > 0;
}

/* Check --algo and --codec, when the operation is known. */
static int perf_check_names(const perf_args *args)
{
    static const char *const more[] = {"auto", "all"};
    dcomm_coll coll = perf_ops[args->op].coll;
    for (int i = 0; i < args->nalgos; i++) {
        if (!tool_algos(args->algos[i], coll, args->codec != NULL, more, 2)) {
            return tool_refuse("--algo", numbers_wanted);
        }
    }
    return tool_codec(args->codec) ? TOOL_GOOD : tool_refuse("--codec", dcomm_last_error());
}

/* Parse the command line. Return TOOL_GOOD, or TOOL_USAGE after an error message. Set *done after
 * --help or --version. */
static int perf_parse(int argc, char **argv, perf_args *args, bool *done)
{
    enum {
        ALGO = 256,
        MEM,
        ROTATE,
        IN_PLACE,
        DETERMINISTIC,
        LANES,
        CHUNK,
        CODEC,
        FEEDBACK,
        WIDE,
        JSON,
        HELP,
        VERSION
    };
    static const struct option long_options[] = {
        {"algo", required_argument, NULL, ALGO},
        {"mem", required_argument, NULL, MEM},
        {"rotate", required_argument, NULL, ROTATE},
        {"inplace", no_argument, NULL, IN_PLACE},
        {"deterministic", no_argument, NULL, DETERMINISTIC},
        {"lanes", required_argument, NULL, LANES},
        {"chunk", required_argument, NULL, CHUNK},
        {"codec", required_argument, NULL, CODEC},
        {"feedback", no_argument, NULL, FEEDBACK},
        {"wide", no_argument, NULL, WIDE},
        {"json", required_argument, NULL, JSON},
        {"help", no_argument, NULL, HELP},
        {"version", no_argument, NULL, VERSION},
        {NULL, 0, NULL, 0},
    };
    *args = (perf_args){.begin = 4, .factor = 4, .warmup = PERF_WARMUP, .row = 1, .check = true};
    args->dtypes[DCOMM_F32] = true;
    args->redops[DCOMM_SUM] = true;
    size_t end = 0;
    int check = 1, mem = 0;
    if (!perf_parse_algos("auto", args)) {
        return tool_refuse("no memory", NULL);
    }
    opterr = 0;
    for (int c; (c = getopt_long(argc, argv, "b:e:f:d:o:r:n:m:w:c:h", long_options, NULL)) != -1;) {
        bool good = true;
        switch (c) {
        case 'b':
            good = numbers_size(optarg, 0, (uint64_t)1 << 40, &args->begin);
            break;
        case 'e':
            good = numbers_size(optarg, 1, (uint64_t)1 << 40, &end);
            break;
        case 'f':
            good = numbers_real(optarg, 1.001, 1e6, &args->factor);
            break;
        case 'd':
            good = perf_parse_names(optarg, perf_dtypes, DCOMM_DTYPE_COUNT, args->dtypes);
            break;
        case 'o':
            good = perf_parse_names(optarg, perf_redops, PERF_REDOP_COUNT, args->redops);
            break;
        case 'r':
            good = numbers_int(optarg, 0, INT_MAX, &args->root);
            break;
        case 'n':
            good = numbers_int(optarg, 1, INT_MAX, &args->iterations);
            break;
        case 'm':
            good = numbers_int(optarg, 1, INT_MAX, &args->row);
            break;
        case 'w':
            good = numbers_int(optarg, 0, INT_MAX, &args->warmup);
            break;
        case 'c':
            good = numbers_int(optarg, 0, 1, &check);
            args->check = check == 1;
            break;
        case ALGO:
            good = perf_parse_algos(optarg, args);
            break;
        case MEM:
            good = numbers_word(optarg, perf_mem_names, PERF_MEM_COUNT, &mem);
            args->mem = (perf_mem)mem;
            break;
        case ROTATE:
            good = numbers_size(optarg, 0, (uint64_t)1 << 40, &args->rotate);
            break;
        case IN_PLACE:
            args->in_place = true;
            break;
        case DETERMINISTIC:
            args->deterministic = true;
            break;
        case LANES:
            good = numbers_int(optarg, 1, INT_MAX, &args->lanes);
            break;
        case CHUNK:
            good = numbers_size(optarg, 0, (uint64_t)1 << 40, &args->chunk);
            break;
        case CODEC:
            args->codec = strcmp(optarg, "none") == 0 ? NULL : optarg;
            break;
        case FEEDBACK:
            args->feedback = true;
            break;
        case WIDE:
            args->wide = true;
            break;
        case JSON:
            args->json = optarg;
            break;
        case 'h':
        case HELP:
            if (tool_is_first()) {
                perf_help(stdout);
            }
            *done = true;
            return TOOL_GOOD;
        case VERSION:
            return tool_show_version(done);
        default:
            return tool_refuse_option(argv);
        }
        if (!good) {
            return tool_refuse_value(c, long_options, optarg);
        }
    }
    if (optind + 1 != argc) {
        return tool_refuse("give one OP, such as allreduce", NULL);
    }
    const char *ops[PERF_OP_COUNT];
    for (int i = 0; i < PERF_OP_COUNT; i++) {
        ops[i] = perf_ops[i].name;
    }
    int op = 0;
    if (!numbers_word(argv[optind], ops, PERF_OP_COUNT, &op)) {
        return tool_refuse("unknown OP", numbers_wanted);
    }
    args->op = (perf_op)op;
    if (end != 0 && end < args->begin) {
        return tool_refuse("-e is smaller than -b", NULL);
    }
    size_t usual = (size_t)64 << 20;
    args->end = end != 0 ? end : args->begin > usual ? args->begin : usual;
    if (args->in_place && args->row > 1) {
        return tool_refuse("in place, calls in a row (-m) would sum sums", NULL);
    }
    if (args->in_place && !perf_ops[args->op].in_place) {
        return tool_refuse("--inplace does not go with this OP", argv[optind]);
    }
    return perf_check_names(args);
}

#endif
