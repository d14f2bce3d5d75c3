/* crossover_args.h - the command line of dcomm-crossover. */
#ifndef CROSSOVER_ARGS_H
#define CROSSOVER_ARGS_H

#include "dcomm/all.h"
#include "tool_ranks.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CROSS_ALGOS = 16, CROSS_ROTATE = 64 << 20 };

typedef struct cross_op {
    const char *name;
    dcomm_coll coll;
    bool blocks; /* `bytes` counts the blocks of all ranks together */
} cross_op;

static const cross_op cross_ops[] = {
    {"allreduce", DCOMM_COLL_ALLREDUCE, false}, {"reduce_scatter", DCOMM_COLL_REDUCE_SCATTER, true},
    {"allgather", DCOMM_COLL_ALLGATHER, true},  {"broadcast", DCOMM_COLL_BROADCAST, false},
    {"reduce", DCOMM_COLL_REDUCE, false},       {"alltoall", DCOMM_COLL_ALLTOALL, true},
};
enum { CROSS_OPS = sizeof cross_ops / sizeof cross_ops[0] };

typedef struct cross_args {
    const cross_op *op;
    size_t begin, end, chunk;
    double factor;
    const char *names; /* names of algorithms, with commas; NULL: all */
    const char *json, *svg, *save, *tuning_file;
    bool model; /* use only the model: no communicator */
    bool registered;
    int nranks, hosts, iterations, row;
    dcomm_tuning tuning;
    double alpha_us, beta_ns, gamma_ns; /* NaN: the numbers come from a file */
} cross_args;

static void cross_help(void)
{
    printf(
        "usage: dcomm-crossover [OP] [options]             under a launcher: measure and predict\n"
        "       dcomm-crossover [OP] --model M -n N [options]   the model alone\n"
        "Times of the algorithms over sizes, where each pair of them crosses over, and a fit of\n"
        "alpha, beta and gamma.\n"
        "OP: allreduce (default) reduce_scatter allgather broadcast reduce alltoall\n"
        "  -b, -e SIZE  from SIZE to SIZE bytes; K, M, G are powers of 1024 (1K, 64M)\n"
        "  -f FACTOR    each size is the one before times FACTOR (2)\n"
        "  -i ITERS     timed iterations (as many as take about 0.3 s)\n"
        "  -m CALLS     calls of an iteration, in a row without a barrier; the time is of one "
        "(1).\n"
        "               Between hosts, take some: a barrier lets ranks go a message's way apart,\n"
        "               and the links rest meanwhile\n"
        "  --algo A,B   only these (all of OP)\n"
        "  --chunk BYTES    pipelining grain (measured: the algorithms' own; --model: messages "
        "are\n"
        "               whole, as the closed forms have them)\n"
        "  --registered buffers from dcomm_mem_alloc, which the choice is told\n"
        "  --model alpha_us=A,beta_ns_per_B=B,gamma_ns_per_B=G   a uniform network: every rank\n"
        "               sends one message and receives one at the same time, each taking\n"
        "               A + bytes*B; folding takes G a byte\n"
        "  --model FILE the network that a tuning file describes\n"
        "  -n N         ranks, with --model\n"
        "  --hosts M    hosts, N/M ranks next to each other on each, with --model (1)\n"
        "  --save FILE  write what the communicator measured as a tuning file (DCOMM_TUNE_FILE)\n"
        "  --json FILE  write all of it as JSON\n"
        "  --svg FILE   draw it\n"
        "  --help, --version\n"
        "A FILE is \"-\" for standard output; the table then goes to standard error.\n"
        "\n"
        "Sizes: the buffer of allreduce, broadcast and reduce; all blocks together of the others.\n"
        "Measured: median over iterations of the slowest rank's time, ranks aligned by a barrier;\n"
        "iterations take turns with buffers of 64 MB together, so that the caches hold none.\n"
        "Predicted: by the numbers that the communicator chooses by. Fitted: by one alpha, beta\n"
        "and gamma for all ranks, fitted to all measured times. A last line says so if the "
        "machine\n"
        "was busy while it was measured.\n"
        "exit: 0 good, " TOOL_USAGE_HELP ", 3 communication error\n");
}

static bool cross_parse_bytes(const char *text, size_t *bytes)
{
    return numbers_size(text, 1, SIZE_MAX >> 8, bytes);
}

/* Parse "alpha_us=1,beta_ns_per_B=2,gamma_ns_per_B=3" in any order. A missing number is 0. */
static bool cross_parse_model(const char *text, cross_args *a)
{
    static const char *const keys[] = {"alpha_us=", "beta_ns_per_B=", "gamma_ns_per_B="};
    double *values[] = {&a->alpha_us, &a->beta_ns, &a->gamma_ns};
    a->alpha_us = a->beta_ns = a->gamma_ns = 0;
    while (*text != 0) {
        int k = 0;
        while (k < 3 && strncmp(text, keys[k], strlen(keys[k])) != 0) {
            k++;
        }
        if (k == 3) {
            return false;
        }
        const char *end = dcommi_text_decimal(text + strlen(keys[k]), values[k]);
        if (end == NULL || (*end != 0 && *end != ',')) {
            return false;
        }
        text = *end == ',' ? end + 1 : end;
    }
    return true;
}

static int cross_network(const char *text, cross_args *a)
{
    a->model = true;
    a->alpha_us = a->beta_ns = a->gamma_ns = NAN;
    dcomm_status status;
    if (strchr(text, '=') != NULL && access(text, R_OK) != 0) {
        if (!cross_parse_model(text, a)) {
            return tool_refuse("not alpha_us=..,beta_ns_per_B=..,gamma_ns_per_B=..", text);
        }
        status = dcomm_tuning_uniform(a->alpha_us, a->beta_ns, a->gamma_ns, &a->tuning);
    } else {
        status = dcomm_tuning_load(text, &a->tuning);
    }
    return status < 0 ? tool_refuse("--model", dcomm_last_error()) : TOOL_GOOD;
}

/* Parse the command line. Return TOOL_GOOD, or TOOL_USAGE after an error message. Set *done after
 * --help or --version. */
static int cross_parse(int argc, char **argv, cross_args *a, bool *done)
{
    enum { ALGO = 256, CHUNK, REGISTERED, MODEL, HOSTS, SAVE, JSON, SVG, HELP, VERSION };
    static const struct option options[] = {
        {"algo", required_argument, NULL, ALGO},
        {"chunk", required_argument, NULL, CHUNK},
        {"registered", no_argument, NULL, REGISTERED},
        {"model", required_argument, NULL, MODEL},
        {"hosts", required_argument, NULL, HOSTS},
        {"save", required_argument, NULL, SAVE},
        {"json", required_argument, NULL, JSON},
        {"svg", required_argument, NULL, SVG},
        {"help", no_argument, NULL, HELP},
        {"version", no_argument, NULL, VERSION},
        {NULL, 0, NULL, 0},
    };
    static const char *const all[] = {"all"};
    *a = (cross_args){.op = &cross_ops[0], .begin = 1024, .end = 64 << 20, .factor = 2, .row = 1};
    opterr = 0;
    for (int c; (c = getopt_long(argc, argv, "b:e:f:i:m:n:h", options, NULL)) != -1;) {
        bool good = true;
        int status = TOOL_GOOD;
        switch (c) {
        case 'b':
            good = cross_parse_bytes(optarg, &a->begin);
            break;
        case 'e':
            good = cross_parse_bytes(optarg, &a->end);
            break;
        case 'f':
            good = numbers_real(optarg, 1.1, 1e6, &a->factor);
            break;
        case 'i':
            good = numbers_int(optarg, 1, INT_MAX, &a->iterations);
            break;
        case 'm':
            good = numbers_int(optarg, 1, INT_MAX, &a->row);
            break;
        case 'n':
            good = numbers_int(optarg, 1, 65536, &a->nranks);
            break;
        case ALGO:
            a->names = optarg;
            break;
        case CHUNK:
            good = cross_parse_bytes(optarg, &a->chunk);
            break;
        case REGISTERED:
            a->registered = true;
            break;
        case MODEL:
            status = cross_network(optarg, a);
            break;
        case HOSTS:
            good = numbers_int(optarg, 1, INT_MAX, &a->hosts);
            break;
        case SAVE:
            a->save = optarg;
            break;
        case JSON:
            a->json = optarg;
            break;
        case SVG:
            a->svg = optarg;
            break;
        case 'h':
        case HELP:
            return tool_show_help(cross_help, done);
        case VERSION:
            return tool_show_version(done);
        default:
            return tool_refuse_option(argv);
        }
        if (status != TOOL_GOOD || !good) {
            return good ? status : tool_refuse_value(c, options, optarg);
        }
    }
    const char *ops[CROSS_OPS];
    int op = 0;
    for (int i = 0; i < CROSS_OPS; i++) {
        ops[i] = cross_ops[i].name;
    }
    if (optind < argc && !numbers_word(argv[optind], ops, CROSS_OPS, &op)) {
        return tool_refuse("not an OP", numbers_wanted);
    }
    if (optind + 1 < argc) {
        return tool_refuse("one OP is enough", argv[optind + 1]);
    }
    a->op = &cross_ops[op];
    if (a->names != NULL && !tool_algos(a->names, a->op->coll, false, all, 1)) {
        return tool_refuse("--algo", numbers_wanted);
    }
    if (a->end < a->begin || a->begin < 4) {
        return tool_refuse("sizes begin at 4 bytes, and -e is not below -b", NULL);
    }
    if (a->model != (a->nranks > 0) || (a->model && a->nranks < 2)) {
        return tool_refuse("--model wants -n of at least 2, and -n wants --model", NULL);
    }
    if (a->hosts > 0 && (!a->model || a->hosts > a->nranks || a->nranks % a->hosts != 0)) {
        return tool_refuse("--hosts goes with --model, and divides -n", NULL);
    }
    if (a->model && a->registered) {
        return tool_refuse("--registered is of what is measured, not of --model", NULL);
    }
    if (a->model && a->save != NULL) {
        return tool_refuse("--save wants something measured, not --model", NULL);
    }
    if (a->model && a->chunk == 0) {
        a->chunk = (size_t)1 << 40; /* no message is cut into chunks */
    }
    return TOOL_GOOD;
}

#endif
