/* ps_args.h - the command line of dcomm-ps. */
#ifndef PS_ARGS_H
#define PS_ARGS_H

#include "dcomm/all.h"
#include "perf_json.h"
#include "perf_rule.h"
#include "tool_ranks.h"

enum { PS_ROWS_MAX = 16 };

typedef struct ps_args {
    size_t bytes, cols, listed; /* listed: rows of a step; 0: all */
    int servers[PS_ROWS_MAX];   /* 0: all ranks */
    int nservers, staleness, steps;
    bool dedicated;
    dcomm_dtype pull_dtype;
    const char *algo, *json;
} ps_args;

static void ps_help(void)
{
    puts(
        "usage: dcomm-ps [options]      under a launcher\n"
        "Steps of a parameter server: each worker pushes a gradient of a table of f32, ends its\n"
        "clock, and pulls the table, for number after number of servers. Beside it an all-reduce\n"
        "of as many bytes.\n"
        "  --bytes SIZE      of the table; K, M, G are powers of 1024 (64M)\n"
        "  --cols N          elements of a row (1024)\n"
        "  --listed N        push and pull N rows by a list, spread over the table (all, by "
        "range)\n"
        "  --servers A,B,... numbers of servers; 0: all ranks (1,0)\n"
        "  --dedicated       servers are no workers\n"
        "  --staleness S     0, bulk-synchronous; more, stale-synchronous; async (0)\n"
        "  --pull TYPE       type of pulled values on the wire: f32, f16, bf16 (f32)\n"
        "  --algo NAME       of the all-reduce (chosen by the library)\n"
        "  --steps N         timed steps of each row (10)\n"
        "  --json FILE       write all of it as JSON (\"-\": standard output; the table then goes\n"
        "                    to standard error)\n"
        "  --help, --version\n"
        "\n"
        "Times are of the slowest rank, in ms: medians, and of the whole step 95 of 100 take no\n"
        "more. A pull contains the wait for the other workers. net MB: bytes of values over the\n"
        "busiest link between hosts, of a step's push and of its pull, added. A last line says so\n"
        "if the machine was busy while it was measured.\n"
        "exit: 0 good, 1 wrong result, " TOOL_USAGE_HELP ",\n"
        "      3 communication error");
}

/* Parse numbers of servers such as "1,2,0". */
static bool ps_parse_servers(const char *list, ps_args *a)
{
    for (a->nservers = 0; a->nservers < PS_ROWS_MAX; list++) {
        char one[16];
        const size_t length = strcspn(list, ",");
        snprintf(one, sizeof one, "%.*s", length < 15 ? (int)length : 15, list);
        if (!numbers_int(one, 0, 1 << 20, &a->servers[a->nservers++])) {
            return false;
        }
        list += length;
        if (*list == '\0') {
            return true;
        }
    }
    return numbers_want("at most 16 numbers");
}

static bool ps_parse_pull(const char *text, dcomm_dtype *dtype)
{
    static const char *const names[] = {"f32", "f16", "bf16"};
    static const dcomm_dtype dtypes[] = {DCOMM_F32, DCOMM_F16, DCOMM_BF16};
    int which = 0;
    const bool good = numbers_word(text, names, 3, &which);
    *dtype = dtypes[which];
    return good;
}

static int ps_parse(ps_args *a, int argc, char **argv, bool *done)
{
    static const struct option options[] = {{"bytes", required_argument, NULL, 'b'},
                                            {"cols", required_argument, NULL, 'c'},
                                            {"listed", required_argument, NULL, 'l'},
                                            {"servers", required_argument, NULL, 's'},
                                            {"dedicated", no_argument, NULL, 'd'},
                                            {"staleness", required_argument, NULL, 't'},
                                            {"pull", required_argument, NULL, 'p'},
                                            {"algo", required_argument, NULL, 'a'},
                                            {"steps", required_argument, NULL, 'n'},
                                            {"json", required_argument, NULL, 'j'},
                                            {"help", no_argument, NULL, 'h'},
                                            {"version", no_argument, NULL, 'V'},
                                            {NULL, 0, NULL, 0}};
    *a = (ps_args){.bytes = (size_t)64 << 20, .cols = 1024, .steps = 10, .pull_dtype = DCOMM_F32};
    ps_parse_servers("1,0", a);
    opterr = 0;
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        bool good = true;
        switch (c) {
        case 'b':
            good = numbers_size(optarg, sizeof(float), (uint64_t)1 << 40, &a->bytes);
            break;
        case 'c':
            good = numbers_size(optarg, 1, (uint64_t)1 << 30, &a->cols);
            break;
        case 'l':
            good = numbers_size(optarg, 1, (uint64_t)1 << 40, &a->listed);
            break;
        case 's':
            good = ps_parse_servers(optarg, a);
            break;
        case 'd':
            a->dedicated = true;
            break;
        case 't':
            if (strcmp(optarg, "async") == 0) {
                a->staleness = DCOMM_PS_ASYNC;
            } else {
                good = numbers_int(optarg, 0, 1 << 20, &a->staleness);
            }
            break;
        case 'p':
            good = ps_parse_pull(optarg, &a->pull_dtype);
            break;
        case 'a':
            a->algo = optarg;
            break;
        case 'n':
            good = numbers_int(optarg, 1, 100000, &a->steps);
            break;
        case 'j':
            a->json = optarg;
            break;
        case 'h':
            return tool_show_help(ps_help, done);
        case 'V':
            return tool_show_version(done);
        default:
            return tool_refuse_option(argv);
        }
        if (!good) {
            return tool_refuse_value(c, options, optarg);
        }
    }
    if (a->algo != NULL && !tool_algos(a->algo, DCOMM_COLL_ALLREDUCE, false, NULL, 0)) {
        return tool_refuse("--algo", numbers_wanted);
    }
    if (a->listed > a->bytes / (a->cols * sizeof(float))) {
        return tool_refuse("--listed", "more rows than the table has (--bytes / --cols / 4)");
    }
    return optind == argc ? TOOL_GOOD : tool_refuse("not an option", argv[optind]);
}

#endif
