/* moe_args.h - the command line of dcomm-moe. */
#ifndef MOE_ARGS_H
#define MOE_ARGS_H

#include "dcomm/all.h"
#include "moe_routes.h"
#include "perf_json.h"
#include "perf_mem.h"
#include "tool_ranks.h"

enum { MOE_SKEWS_MAX = 16 };

typedef struct moe_args {
    size_t tokens, hidden, rotate;
    int experts, k, chunks, steps;
    dcomm_moe_form form;
    double capacity, work_ms;
    bool reroute, registered, exchange_only, wide;
    perf_mem mem;
    const char *algo, *codec, *json;
    char *skew_text;
    const char *skews[MOE_SKEWS_MAX];
    int nskews;
} moe_args;

static void moe_help(void)
{
    puts(
        "usage: dcomm-moe [options]      under a launcher\n"
        "Tokens to experts and back, with made-up routings; f32 rows.\n"
        "  --tokens N        of each rank (1024)\n"
        "  --hidden N        elements of a row (1024: 4 KB)\n"
        "  --experts N       of all ranks, in order and evenly (4 for each rank)\n"
        "  --k N             experts of a token (2)\n"
        "  --skew A,B,...    uniform; zipf:S; hot: a token's first is always expert 0;\n"
        "                    adversarial: all go to the last k; hosts:M: a token's are on one of\n"
        "                    M hosts (uniform,zipf:1,hot,adversarial)\n"
        "  --form F          auto, flat, hier (auto)\n"
        "  --algo NAME       of all-to-all-v, between all ranks (auto)\n"
        "  --chunks N        (1)\n"
        "  --work MS         what the experts of a rank take for all rows of a step, by\n"
        "                    arithmetic between calls of dcomm_moe_progress (0)\n"
        "  --capacity X      times the even share (no limit)\n"
        "  --reroute         what an expert has no room for goes to another (it is dropped)\n"
        "  --codec SPEC      of dispatched rows (exact)\n"
        "  --registered      the object's buffers are from dcomm_mem_alloc\n"
        "  --steps N         timed steps (20)\n"
        "  --exchange        the all-to-all-v alone, for bench/peers/moe.py\n"
        "  --mem KIND        its buffers: host, huge, registered (host)\n"
        "  --rotate BYTES    its iterations take turns with buffers of so many bytes (128 MiB)\n"
        "  --wide            all columns: p95, net MB, cv and permute as well\n"
        "  --json FILE       write all of it as JSON (\"-\": standard output; the table then goes\n"
        "                    to standard error)\n"
        "  --help, --version\n"
        "\n"
        "Times are of the slowest rank, in us: medians, and of the whole step (route, dispatch,\n"
        "identity experts, combine) 50, 95 and 99 of 100 steps take no more. MB: of one dispatch,\n"
        "the busiest rank's, and the busiest host's over the network. cv: coefficient of\n"
        "variation of the experts' load. imbal: rows of the busiest rank over the mean. permute:\n"
        "the rate at which rows are brought into order, over that of one memcpy of as many bytes,\n"
        "slowest rank. alltoallv: a plain dcomm_alltoallv of the same counts. A last line says so\n"
        "if the machine was busy while it was measured.\n"
        "exit: 0 good, 1 wrong result, " TOOL_USAGE_HELP ",\n"
        "      3 communication error");
}

static bool moe_parse_skews(moe_args *a, const char *text)
{
    free(a->skew_text);
    a->skew_text = strdup(text);
    a->nskews = 0;
    for (char *at = a->skew_text; at != NULL && a->nskews < MOE_SKEWS_MAX;) {
        char *comma = strchr(at, ',');
        a->skews[a->nskews++] = at;
        at = comma != NULL ? comma + 1 : NULL;
        if (comma != NULL) {
            *comma = 0;
        }
        moe_routes known; /* a check of the name only, with the most experts possible */
        const char *skew = a->skews[a->nskews - 1];
        if (!moe_routes_make(&known, 1, MOE_EXPERTS_MAX, 1, 1, skew)) {
            snprintf(numbers_wanted, sizeof numbers_wanted,
                     "no such skew: '%.50s'; there are uniform, zipf:S, hot, adversarial, hosts:M",
                     skew);
            return false;
        }
        if (comma == NULL) {
            return true;
        }
    }
    return false;
}

static int moe_parse(moe_args *a, int argc, char **argv, bool *done)
{
    static const struct option options[] = {
        {"tokens", required_argument, NULL, 't'},  {"hidden", required_argument, NULL, 'd'},
        {"experts", required_argument, NULL, 'e'}, {"k", required_argument, NULL, 'k'},
        {"skew", required_argument, NULL, 's'},    {"form", required_argument, NULL, 'f'},
        {"chunks", required_argument, NULL, 'c'},  {"capacity", required_argument, NULL, 'p'},
        {"reroute", no_argument, NULL, 'r'},       {"codec", required_argument, NULL, 'o'},
        {"registered", no_argument, NULL, 'g'},    {"steps", required_argument, NULL, 'n'},
        {"exchange", no_argument, NULL, 'x'},      {"mem", required_argument, NULL, 'm'},
        {"work", required_argument, NULL, 'v'},    {"algo", required_argument, NULL, 'a'},
        {"rotate", required_argument, NULL, 'w'},  {"json", required_argument, NULL, 'j'},
        {"help", no_argument, NULL, 'h'},          {"version", no_argument, NULL, 'V'},
        {"wide", no_argument, NULL, 'W'},          {NULL, 0, NULL, 0}};
    static const char *const forms[] = {"auto", "flat", "hier"};
    int which = 0;
    *a = (moe_args){.tokens = 1024, .hidden = 1024, .k = 2, .steps = 20, .chunks = 1};
    a->rotate = (size_t)128 << 20;
    moe_parse_skews(a, "uniform,zipf:1,hot,adversarial");
    opterr = 0;
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        bool good = true;
        switch (c) {
        case 't':
            good = numbers_size(optarg, 0, 1 << 24, &a->tokens);
            break;
        case 'd':
            good = numbers_size(optarg, 1, 1 << 20, &a->hidden);
            break;
        case 'e':
            good = numbers_int(optarg, 1, MOE_EXPERTS_MAX, &a->experts);
            break;
        case 'k':
            good = numbers_int(optarg, 1, MOE_K_MAX, &a->k);
            break;
        case 's':
            good = moe_parse_skews(a, optarg);
            break;
        case 'f':
            good = numbers_word(optarg, forms, 3, &which);
            a->form = (dcomm_moe_form)which;
            break;
        case 'a':
            a->algo = optarg;
            break;
        case 'c':
            good = numbers_int(optarg, 1, 1024, &a->chunks);
            break;
        case 'p':
            good = numbers_real(optarg, 1e-6, 1e9, &a->capacity);
            break;
        case 'v':
            good = numbers_real(optarg, 0, 1e6, &a->work_ms);
            break;
        case 'r':
            a->reroute = true;
            break;
        case 'o':
            a->codec = optarg;
            break;
        case 'g':
            a->registered = true;
            break;
        case 'n':
            good = numbers_int(optarg, 1, 100000, &a->steps);
            break;
        case 'x':
            a->exchange_only = true;
            break;
        case 'm':
            good = numbers_word(optarg, perf_mem_names, PERF_MEM_CUDA, &which);
            a->mem = (perf_mem)which;
            break;
        case 'w':
            good = numbers_size(optarg, 0, (size_t)1 << 36, &a->rotate);
            break;
        case 'j':
            a->json = optarg;
            break;
        case 'h':
            return tool_show_help(moe_help, done);
        case 'V':
            return tool_show_version(done);
        case 'W':
            a->wide = true;
            break;
        default:
            return tool_refuse_option(argv);
        }
        if (!good) {
            return tool_refuse_value(c, options, optarg);
        }
    }
    if (a->algo != NULL && !tool_algos(a->algo, DCOMM_COLL_ALLTOALLV, false, NULL, 0)) {
        return tool_refuse("--algo", numbers_wanted);
    }
    if (!tool_codec(a->codec)) {
        return tool_refuse("--codec", dcomm_last_error());
    }
    return optind == argc ? TOOL_GOOD : tool_refuse("not an option", argv[optind]);
}

#endif
