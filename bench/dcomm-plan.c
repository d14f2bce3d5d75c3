/* dcomm-plan.c - show an algorithm's plan as text or as a picture, and check it. It needs no other
 * rank. */
#define _GNU_SOURCE
#define DCOMM_IMPLEMENTATION
#include "dcomm/all.h"
#include "plan-svg.h"
#include "tool.h"

#include <ctype.h>

typedef struct arguments {
    dcomm_check_spec spec;
    dcomm_coll_opts opts;
    int nranks, rank; /* rank -1: no rank was given */
    bool check, all_chunks;
    int per_host; /* 0: the hosts are in `hosts` */
    bool shuffle;
    int hosts[DCOMMI_CHECK_RANKS], nhosts; /* nhosts: number of hosts that were given */
    const char *svg, *json;
    tool_out svg_out, json_out;
} arguments;

static const char usage[] =
    "usage: dcomm-plan OP ALGO -n RANKS [options]\n"
    "\n"
    "Prints what rank 0 (or --rank) does when OP runs by ALGO on RANKS ranks (1 to 64).\n"
    "\n"
    "  -n RANKS         number of ranks\n"
    "  --count N        elements, as the operation counts them (default: 1048576)\n"
    "  --dtype TYPE     float double half bf16 int8 uint8 int32 uint32 int64 uint64\n"
    "                   (default: float)\n"
    "  --root R         (default: 0)\n"
    "  --inplace        the input lies in the output buffer\n"
    "  --deterministic  fold in rank order\n"
    "  --lanes L        parallel rings or trees (default: 1)\n"
    "  --chunk BYTES    pipelining grain (default: the algorithm's own)\n"
    "  --hosts H,H,...  the host of each rank (default: all on one)\n"
    "  --ranks-per-host K  the same, K ranks to a host\n"
    "  --shuffle        deal the ranks to the hosts out of order\n"
    "  --rank R         print this rank's plan (default: 0, when nothing else is asked for)\n"
    "  --check          prove all ranks' plans right; print what they cost, and with hosts what\n"
    "                   goes between them\n"
    "  --svg FILE       draw all ranks' messages, of one chunk where there is no --chunk\n"
    "  --all-chunks     draw every chunk\n"
    "  --json FILE      write what --check finds as JSON\n"
    "  --help, --version\n"
    "\n"
    "A FILE is \"-\" for standard output; what else is printed then goes to standard error.\n"
    "Exit status: 0 good, 1 the check refused the plans, " TOOL_USAGE_HELP ".\n"
    "\n"
    "Operations and their algorithms:\n";

static void print_usage(FILE *f)
{
    fputs(usage, f);
    for (int coll = 0; coll < DCOMM_COLL_COUNT; coll++) {
        dcomm_algo_info info = {0};
        int column = 0;
        for (int i = 0; dcomm_algo_get_info((dcomm_coll)coll, i, &info) == DCOMM_OK; i++) {
            if (i == 0) {
                column = fprintf(f, "  %-16s", dcomm_coll_name((dcomm_coll)coll));
            } else if (column + 1 + (int)strlen(info.name) > TOOL_COLUMNS) {
                column = fprintf(f, "\n%18s", "") - 1;
            }
            column += fprintf(f, " %s", info.name);
        }
        fputs(column > 0 ? "\n" : "", f);
    }
}

/* Return true if two names are equal, ignoring '-', '_' and case. */
static bool same_name(const char *a, const char *b)
{
    for (;;) {
        while (*a == '-' || *a == '_') {
            a++;
        }
        while (*b == '-' || *b == '_') {
            b++;
        }
        if (tolower((unsigned char)*a) != tolower((unsigned char)*b)) {
            return false;
        }
        if (*a == '\0') {
            return true;
        }
        a++;
        b++;
    }
}

static bool parse_coll(const char *text, dcomm_coll *coll)
{
    for (int i = 0; i < DCOMM_COLL_COUNT; i++) {
        if (same_name(text, dcomm_coll_name((dcomm_coll)i))) {
            *coll = (dcomm_coll)i;
            return true;
        }
    }
    return false;
}

static bool parse_dtype(const char *text, dcomm_dtype *dtype)
{
    static const char *const names[DCOMM_DTYPE_COUNT] = {
        "double", "float", "half", "bf16", "int8", "uint8", "int32", "uint32", "int64", "uint64"};
    for (int i = 0; i < DCOMM_DTYPE_COUNT; i++) {
        if (same_name(text, names[i]) || same_name(text, dcomm_dtype_name((dcomm_dtype)i))) {
            *dtype = (dcomm_dtype)i;
            return true;
        }
    }
    return numbers_word_at(text, strlen(text), names, DCOMM_DTYPE_COUNT) >= 0;
}

/* Parse a whole number in [low, high]; K, M, G stand for powers of 1024. */
static bool parse_number(const char *text, int64_t low, int64_t high, int64_t *value)
{
    size_t number = 0;
    bool good = numbers_size(text, (uint64_t)low, (uint64_t)high, &number);
    *value = good ? (int64_t)number : *value;
    return good;
}

/* Parse "H,H,..." into a->hosts. */
static bool parse_hosts(const char *text, arguments *a)
{
    a->nhosts = 0;
    while (a->nhosts < DCOMMI_CHECK_RANKS) {
        uint64_t host = 0;
        const char *end = dcommi_text_digits(text, &host);
        if (end == NULL || host > INT32_MAX || (*end != ',' && *end != '\0')) {
            break;
        }
        a->hosts[a->nhosts++] = (int)host;
        if (*end == '\0') {
            return true;
        }
        text = end + 1;
    }
    return numbers_want("it must be a whole number for each rank, such as 0,0,1,1");
}

/* Set the host of each rank from the options. */
static bool place_ranks(arguments *a)
{
    if (a->nhosts > 0 && a->nhosts != a->nranks) {
        tool_say("--hosts names %d hosts for %d ranks (--help shows the options)", a->nhosts,
                 a->nranks);
        return false;
    }
    for (int r = 0; r < a->nranks && a->nhosts == 0; r++) {
        a->hosts[r] = a->per_host > 0 ? r / a->per_host : 0;
    }
    for (int r = a->nranks - 1; r > 0 && a->shuffle; r--) {
        int other = (int)(dcommi_mix((uint64_t)a->nranks, (uint64_t)r) % (uint64_t)(r + 1));
        int host = a->hosts[r];
        a->hosts[r] = a->hosts[other];
        a->hosts[other] = host;
    }
    a->spec.hosts = a->hosts;
    return true;
}

/* Parse the command line. Return -1 to go on, else the exit status. */
static int parse(int argc, char **argv, arguments *a)
{
    enum {
        COUNT = 256,
        DTYPE,
        ROOT,
        INPLACE,
        ORDER,
        LANES,
        CHUNK,
        HOSTS,
        PER_HOST,
        SHUFFLE,
        RANK,
        ALL_CHUNKS,
        CHECK,
        SVG,
        JSON,
        VERSION
    };
    static const struct option options[] = {{"count", 1, NULL, COUNT},
                                            {"dtype", 1, NULL, DTYPE},
                                            {"root", 1, NULL, ROOT},
                                            {"inplace", 0, NULL, INPLACE},
                                            {"deterministic", 0, NULL, ORDER},
                                            {"lanes", 1, NULL, LANES},
                                            {"chunk", 1, NULL, CHUNK},
                                            {"hosts", 1, NULL, HOSTS},
                                            {"ranks-per-host", 1, NULL, PER_HOST},
                                            {"shuffle", 0, NULL, SHUFFLE},
                                            {"rank", 1, NULL, RANK},
                                            {"all-chunks", 0, NULL, ALL_CHUNKS},
                                            {"check", 0, NULL, CHECK},
                                            {"svg", 1, NULL, SVG},
                                            {"json", 1, NULL, JSON},
                                            {"help", 0, NULL, 'h'},
                                            {"version", 0, NULL, VERSION},
                                            {NULL, 0, NULL, 0}};
    int option;
    int64_t root = 0, rank = -1, lanes = 0, nranks = 0, number = 0;
    opterr = 0;
    a->spec.count = 1 << 20;
    a->spec.dtype = DCOMM_F32;
    while ((option = getopt_long(argc, argv, "n:h", options, NULL)) != -1) {
        bool good = true;
        switch (option) {
        case 'n':
            good = parse_number(optarg, 1, DCOMMI_CHECK_RANKS, &nranks);
            break;
        case COUNT:
            good = parse_number(optarg, 0, INT64_MAX / 1024, &number);
            a->spec.count = (size_t)number;
            break;
        case DTYPE:
            good = parse_dtype(optarg, &a->spec.dtype);
            break;
        case ROOT:
            good = parse_number(optarg, 0, DCOMMI_CHECK_RANKS, &root);
            break;
        case INPLACE:
            a->spec.in_place = true;
            break;
        case ORDER:
            a->spec.rank_order = a->opts.deterministic = true;
            break;
        case LANES:
            good = parse_number(optarg, 1, DCOMM_PLAN_MAX_LANES, &lanes);
            break;
        case CHUNK:
            good = parse_number(optarg, 1, INT64_MAX / 1024, &number);
            a->opts.chunk_bytes = (size_t)number;
            break;
        case HOSTS:
            good = parse_hosts(optarg, a);
            break;
        case PER_HOST:
            good = parse_number(optarg, 1, DCOMMI_CHECK_RANKS, &number);
            a->per_host = (int)number;
            break;
        case SHUFFLE:
            a->shuffle = true;
            break;
        case RANK:
            good = parse_number(optarg, 0, DCOMMI_CHECK_RANKS, &rank);
            break;
        case ALL_CHUNKS:
            a->all_chunks = true;
            break;
        case CHECK:
            a->check = true;
            break;
        case SVG:
            a->svg = optarg;
            break;
        case JSON:
            a->json = optarg;
            break;
        case 'h':
            print_usage(stdout);
            return TOOL_GOOD;
        case VERSION:
            tool_print_version();
            return TOOL_GOOD;
        default:
            return tool_refuse_option(argv);
        }
        if (!good) {
            return tool_refuse_value(option, options, optarg);
        }
    }
    if (argc - optind != 2 || nranks == 0 || rank >= nranks || root >= nranks) {
        return tool_refuse("OP, ALGO and -n RANKS are needed, and ranks below RANKS", NULL);
    }
    if (!parse_coll(argv[optind], &a->spec.coll)) {
        const char *names[DCOMM_COLL_COUNT];
        for (int i = 0; i < DCOMM_COLL_COUNT; i++) {
            names[i] = dcomm_coll_name((dcomm_coll)i);
        }
        numbers_word_at(argv[optind], strlen(argv[optind]), names, DCOMM_COLL_COUNT);
        return tool_refuse("unknown operation", numbers_wanted);
    }
    a->opts.algo = argv[optind + 1];
    a->opts.lanes = (int)lanes;
    a->spec.root = (int)root;
    a->nranks = (int)nranks;
    a->rank = (int)rank;
    return place_ranks(a) ? -1 : TOOL_USAGE;
}

static int print_plan(const dcomm_plan *plan)
{
    size_t needed = 0;
    dcomm_plan_print(plan, NULL, 0, &needed);
    char *text = malloc(needed + 1);
    if (text == NULL) {
        return TOOL_WRONG;
    }
    dcomm_plan_print(plan, text, needed + 1, NULL);
    tool_fold_lines(stdout, text, 4);
    free(text);
    return TOOL_GOOD;
}

static void json_string(FILE *f, const char *text)
{
    fputc('"', f);
    for (; *text != '\0'; text++) {
        if (*text == '"' || *text == '\\') {
            fputc('\\', f);
        }
        fputc((unsigned char)*text < ' ' ? ' ' : *text, f);
    }
    fputc('"', f);
}

static void write_json(FILE *f, const arguments *a, const dcomm_check_report *r)
{
    fprintf(f, "{\"schema\":1,\"op\":");
    json_string(f, dcomm_coll_name(a->spec.coll));
    fprintf(f, ",\"algo\":");
    json_string(f, a->opts.algo);
    fprintf(f, ",\"nranks\":%d,\"count\":%zu,\"dtype\":", a->nranks, a->spec.count);
    json_string(f, dcomm_dtype_name(a->spec.dtype));
    fprintf(f, ",\"right\":%s,\"message\":", r->message[0] == '\0' ? "true" : "false");
    json_string(f, r->message);
    fprintf(f,
            ",\"messages\":%" PRId64 ",\"signals\":%" PRId64 ",\"chain_messages\":%" PRId64
            ",\"max_rank_bytes\":%" PRId64 ",\"total_bytes\":%" PRId64 "}\n",
            r->messages, r->signals, r->steps, r->max_rank_bytes, r->total_bytes);
}

static bool draw(FILE *f, const arguments *a, const dcommi_check_trace *trace)
{
    char title[160];
    snprintf(title, sizeof title, "%s, %.64s, %d ranks", dcomm_coll_name(a->spec.coll),
             a->opts.algo, a->nranks);
    return svg_write(f, trace, a->nranks, title);
}

/* Count messages and payload bytes between ranks on different hosts. */
static void count_crossings(const arguments *a, const dcommi_check_trace *trace, int64_t *messages,
                            int64_t *bytes)
{
    *messages = *bytes = 0;
    for (size_t i = 0; i < trace->n; i++) {
        const dcommi_check_event *e = &trace->event[i];
        if (e->peer >= 0 && a->hosts[e->peer] != a->hosts[e->rank] &&
            e->kind != DCOMM_STEP_SIGNAL && e->kind != DCOMM_STEP_EXPOSE) {
            ++*messages;
            *bytes += e->bytes;
        }
    }
}

/* Check the plans. With `picture`, draw the events that the checker saw. */
static int examine(arguments *a, dcomm_plan *const *plans, bool picture)
{
    dcomm_check_report report;
    dcommi_check_trace trace = {0};
    dcomm_status status =
        dcommi_check_plans((const dcomm_plan *const *)plans, a->nranks, &a->spec, &report, &trace);
    bool good = status == DCOMM_OK;
    if (!good) {
        tool_say("%s", dcomm_last_error());
    } else if (a->check && !picture) {
        printf("right: %" PRId64 " messages, %" PRId64 " signals, longest chain %" PRId64
               ", at most %" PRId64 " bytes from a rank,\n       %" PRId64 " bytes in all\n",
               report.messages, report.signals, report.steps, report.max_rank_bytes,
               report.total_bytes);
        if (a->nhosts > 0 || a->per_host > 0) {
            int64_t messages, bytes;
            count_crossings(a, &trace, &messages, &bytes);
            printf("between hosts: %" PRId64 " messages or reads, %" PRId64 " bytes\n", messages,
                   bytes);
        }
    }
    if (picture && trace.n > 0) {
        FILE *svg = a->svg_out.file; /* tool_close reports its write errors */
        good = (draw(svg, a, &trace) || ferror(svg) != 0) && good;
    }
    if (a->json != NULL && !picture) {
        write_json(a->json_out.file, a, &report);
    }
    dcommi_free(trace.event);
    return good ? TOOL_GOOD : TOOL_WRONG;
}

static void destroy_plans(dcomm_plan **plans, int nranks)
{
    for (int r = 0; r < nranks; r++) {
        if (plans[r] != NULL) {
            dcomm_plan_destroy(&plans[r]);
        }
    }
}

static int create_plans(const arguments *a, const dcomm_coll_opts *opts, dcomm_plan **plans)
{
    for (int r = 0; r < a->nranks; r++) {
        if (dcomm_plan_create(&a->spec, DCOMM_SUM, r, a->nranks, opts, &plans[r]) < 0) {
            tool_say("%s", dcomm_last_error());
            return TOOL_USAGE;
        }
    }
    return TOOL_GOOD;
}

/* Draw the plans. Use a single chunk, which shows the algorithm best, unless chunks were asked
 * for. */
static int picture(arguments *a)
{
    dcomm_plan *plans[DCOMMI_CHECK_RANKS] = {NULL};
    dcomm_coll_opts opts = a->opts;
    if (opts.chunk_bytes == 0 && !a->all_chunks) {
        size_t most = (size_t)INT64_MAX / 1024, one = sizeof(double) * (size_t)a->nranks;
        opts.chunk_bytes = a->spec.count > most / one ? most : one * a->spec.count + 1;
    }
    int result = create_plans(a, &opts, plans);
    if (result == TOOL_GOOD) {
        result = examine(a, plans, true);
    }
    destroy_plans(plans, a->nranks);
    return result;
}

int main(int argc, char **argv)
{
    arguments a = {0};
    tool_begin(false);
    int result = parse(argc, argv, &a);
    if (result >= 0) {
        return tool_end(result);
    }
    size_t cells = (size_t)a.nranks * (size_t)a.nranks;
    size_t *counts = calloc(cells, sizeof *counts);
    dcomm_plan *plans[DCOMMI_CHECK_RANKS] = {NULL};
    for (size_t i = 0; counts != NULL && i < cells; i++) {
        counts[i] = a.spec.count;
    }
    a.spec.counts = counts;
    result = counts != NULL ? create_plans(&a, &a.opts, plans) : TOOL_WRONG;
    if (result == TOOL_GOOD && !(tool_open(&a.svg_out, a.svg) && tool_open(&a.json_out, a.json))) {
        result = TOOL_USAGE;
    }
    bool examined = a.check || a.json != NULL;
    if (result == TOOL_GOOD && (a.rank >= 0 || (!examined && a.svg == NULL))) {
        result = print_plan(plans[a.rank < 0 ? 0 : a.rank]);
    }
    if (result == TOOL_GOOD && examined) {
        result = examine(&a, plans, false);
    }
    if (a.svg != NULL && result != TOOL_USAGE) {
        int drawn = picture(&a);
        result = result == TOOL_GOOD ? drawn : result;
    }
    destroy_plans(plans, a.nranks);
    free(counts);
    bool drawn = tool_close(&a.svg_out), written = tool_close(&a.json_out);
    return tool_end(result == TOOL_GOOD && !(drawn && written) ? TOOL_USAGE : result);
}
