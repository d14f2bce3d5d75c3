/* dcomm-topo.c - show a topology: this machine or that of an lstopo XML file, the cores to which
 * ranks would be bound, or the places of a job's ranks. It also shows which algorithm would
 * run. */
#define _GNU_SOURCE
#define DCOMM_IMPLEMENTATION
#include "dcomm/all.h"
#include "run_bind.h"
#include "tool.h"
#include "topo_ranks.h"
#include "topo_tree.h"

#include <ctype.h>

#define RANKS_MAX 4096

typedef struct arguments {
    const char *xml, *json;
    int nranks; /* 0: not given */
    enum run_bind bind;
    bool explain;
    const char *codec;    /* NULL: exact */
    dcomm_coll_opts mem;  /* promises of --mem about buffers */
    const char *mem_name; /* NULL: nothing */
    dcomm_coll coll;
    size_t bytes;
} arguments;

/* The facts to print and to write. */
typedef struct report {
    const arguments *a;
    hwloc_topology_t topology; /* NULL: ranks of a job, maybe on many machines */
    tree_ranks bound;
    ranks_view view;  /* n 0: no ranks */
    const char *algo; /* the algorithm that would run */
    dcomm_alternative rows[32];
    int nrows;
    dcomm_path paths[4]; /* of device memory */
    int npaths;
    size_t count;
    dcomm_verdict verdict; /* verdict on --codec; text "": none */
} report;

static const char usage[] =
    "usage: dcomm-topo [options]\n"
    "\n"
    "Shows this machine as dcomm sees it. Under dcomm-run, mpirun or srun: where the ranks are,\n"
    "the groups that they form and the order of rings through them.\n"
    "\n"
    "  --xml FILE             a machine as lstopo writes it (lstopo FILE.xml), in place of this\n"
    "                         one\n"
    "  -n N                   where dcomm-run would bind N ranks\n"
    "  --bind slice|core|none|auto  and how, on an idle machine (default: auto)\n"
    "  --explain OP BYTES     the algorithm that OP would run, and the others that it has; BYTES\n"
    "                         of float elements as dcomm-perf counts them, with K, M or G\n"
    "  --codec SPEC           with --explain allreduce, in a job: whether this codec is worth it,\n"
    "                         and the compressed algorithms\n"
    "  --mem KIND             with --explain, for buffers that are host (default), huge,\n"
    "                         registered, cuda, or cuda-shared, which peers on the host read\n"
    "                         where it lies; by what path the bytes go, and what other paths\n"
    "                         would take\n"
    "  --json FILE            write the same as JSON (\"-\": standard output, and nothing else)\n"
    "  --help                 this text\n"
    "  --version              " TOOL_VERSION_HELP "\n"
    "\n"
    "Exit status: 0 good, 1 no memory, " TOOL_USAGE_HELP ",\n"
    "3 the ranks cannot communicate.\n";

/* Return true if two names are equal, ignoring '-', '_' and case. */
static bool same_name(const char *a, const char *b)
{
    for (;; a++, b++) {
        a += strspn(a, "-_");
        b += strspn(b, "-_");
        if (*a == 0 || tolower((unsigned char)*a) != tolower((unsigned char)*b)) {
            return *a == *b;
        }
    }
}

/* Parse the name of an operation; v-collectives and point-to-point are not allowed. */
static bool parse_coll(const char *text, dcomm_coll *coll)
{
    const char *names[DCOMM_COLL_COUNT];
    int n = 0;
    for (int i = DCOMM_COLL_ALLREDUCE; i <= DCOMM_COLL_ALLTOALL; i++) {
        names[n++] = dcomm_coll_name((dcomm_coll)i);
        if (same_name(text, dcomm_coll_name((dcomm_coll)i))) {
            *coll = (dcomm_coll)i;
            return true;
        }
    }
    return numbers_word_at(text, strlen(text), names, n) >= 0;
}

static bool parse_mem(const char *text, arguments *a)
{
    static const char *const kinds[] = {"host", "huge", "registered", "cuda", "cuda-shared"};
    const bool open = strcmp(text, "cuda-shared") == 0;
    a->mem = (dcomm_coll_opts){.huge_pages = strcmp(text, "huge") == 0,
                               .registered = open || strcmp(text, "registered") == 0,
                               .device = open || strcmp(text, "cuda") == 0};
    a->mem_name = text;
    return numbers_word_at(text, strlen(text), kinds, sizeof kinds / sizeof *kinds) >= 0;
}

/* Parse the command line. Return -1 to go on, else the exit status. */
static int parse(int argc, char **argv, arguments *a)
{
    enum { XML = 256, BIND, EXPLAIN, CODEC, MEM, JSON, VERSION };
    static const struct option options[] = {
        {"xml", 1, NULL, XML},     {"bind", 1, NULL, BIND}, {"explain", 1, NULL, EXPLAIN},
        {"codec", 1, NULL, CODEC}, {"json", 1, NULL, JSON}, {"mem", 1, NULL, MEM},
        {"help", 0, NULL, 'h'},    {"version", 0, NULL, VERSION}, {NULL, 0, NULL, 0}};
    int option;
    opterr = 0;
    while ((option = getopt_long(argc, argv, "n:h", options, NULL)) != -1) {
        bool good = true;
        switch (option) {
        case 'n':
            good = numbers_int(optarg, 1, RANKS_MAX, &a->nranks);
            break;
        case XML:
            a->xml = optarg;
            break;
        case BIND:
            good = run_bind_parse(optarg, &a->bind);
            break;
        case EXPLAIN:
            if (!parse_coll(optarg, &a->coll)) {
                return tool_refuse("--explain: unknown operation", numbers_wanted);
            }
            if (optind >= argc || !numbers_size(argv[optind++], 0, SIZE_MAX >> 16, &a->bytes)) {
                return tool_refuse("no number of bytes behind --explain", optarg);
            }
            a->explain = true;
            break;
        case CODEC:
            a->codec = optarg;
            break;
        case MEM:
            good = parse_mem(optarg, a);
            break;
        case JSON:
            a->json = optarg;
            break;
        case 'h':
            if (tool_is_first()) {
                fputs(usage, stdout);
            }
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
    return optind < argc ? tool_refuse("not an option", argv[optind]) : -1;
}

/* ---- ranks that do not exist yet ---- */

/* List the hardware threads that dcomm-run would give to ranks: on this machine, those that this
 * process may use. */
static void read_cpus(const arguments *a, hwloc_topology_t topology, run_cpus *cpus)
{
    cpus->count = 0;
    if (a->xml == NULL) {
        run_bind_read(cpus);
        return;
    }
    hwloc_obj_t pu = NULL;
    while ((pu = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_PU, pu)) != NULL) {
        if (pu->os_index < RUN_CPUS_MAX && cpus->count < RUN_CPUS_MAX) {
            hwloc_obj_t core = hwloc_get_ancestor_obj_by_type(topology, HWLOC_OBJ_CORE, pu);
            hwloc_obj_t package = hwloc_get_ancestor_obj_by_type(topology, HWLOC_OBJ_PACKAGE, pu);
            cpus->cpu[cpus->count++] =
                (run_cpu){.cpu = (int)pu->os_index,
                          .package = package != NULL ? (int)package->logical_index : 0,
                          .core = (int)(core != NULL ? core : pu)->logical_index};
        }
    }
    run_bind_sort(cpus);
}

/* Compute where a->nranks ranks would be bound. Return false if there is no memory. */
static bool place_ranks(report *r)
{
    static run_cpus cpus;
    static cpu_set_t mask[RUN_CPUS_MAX / CPU_SETSIZE];
    size_t n = (size_t)r->a->nranks;
    read_cpus(r->a, r->topology, &cpus);
    dcommi_site *sites = calloc(n, sizeof *sites);
    int64_t *host = calloc(n, sizeof *host);
    r->bound.set = calloc(n, sizeof *r->bound.set);
    r->view.sites = sites;
    if (sites == NULL || host == NULL || r->bound.set == NULL) {
        free(host);
        return false;
    }
    for (int i = 0; i < (int)n; i++, r->bound.n++) {
        hwloc_bitmap_t set = hwloc_bitmap_alloc();
        r->bound.set[i] = set;
        if (set == NULL) {
            break;
        }
        run_bind_mask(&cpus, run_bind_choose(&cpus, r->a->bind, (int)n), i, (int)n, mask);
        for (int k = 0; k < cpus.count; k++) {
            if (CPU_ISSET_S((size_t)cpus.cpu[k].cpu, sizeof mask, mask)) {
                hwloc_bitmap_set(set, (unsigned)cpus.cpu[k].cpu);
            }
        }
        dcommi_topo_locate(r->topology, set, NULL, &sites[i]);
    }
    r->view.n = (int)n;
    r->view.groups = r->bound.n == (int)n ? dcommi_place_groups((int)n, host, sites) : NULL;
    free(host);
    return r->view.groups != NULL;
}

/* ---- the choice ---- */

/* Return the count argument for `bytes` bytes of floats in the longer one of the two buffers. */
static size_t explain_count(const arguments *a, int nranks)
{
    bool whole = a->coll == DCOMM_COLL_ALLREDUCE || a->coll == DCOMM_COLL_BROADCAST ||
                 a->coll == DCOMM_COLL_REDUCE;
    return a->bytes / sizeof(float) / (size_t)(whole ? 1 : nranks);
}

/* Price all algorithms: with the communicator's numbers, or, if comm is NULL, with the built-in
 * numbers for ranks at the places in the report. */
static dcomm_status explain(report *r, dcomm_comm *comm)
{
    r->count = explain_count(r->a, r->view.n);
    const int most = (int)(sizeof r->rows / sizeof *r->rows);
    const int paths = (int)(sizeof r->paths / sizeof *r->paths);
    dcomm_codec *codec = NULL;
    dcomm_status status = r->a->codec != NULL ? dcomm_codec_create(r->a->codec, &codec) : DCOMM_OK;
    dcomm_coll_opts opts = r->a->mem;
    opts.codec = codec;
    dcomm_explanation e = {.coll = r->a->coll,
                           .count = r->count,
                           .dtype = DCOMM_F32,
                           .opts = &opts,
                           .nranks = comm != NULL ? 0 : r->view.n,
                           .alternatives = r->rows,
                           .max_alternatives = most,
                           .paths = r->paths,
                           .max_paths = opts.device ? paths : 0};
    if (status >= 0) {
        status =
            comm != NULL ? dcomm_comm_explain(comm, &e) : dcommi_explain_groups(r->view.groups, &e);
    }
    if (status >= 0 && codec != NULL && comm != NULL && r->count > 0) {
        status = dcomm_codec_measure(comm, codec, r->count, opts.device, &r->verdict);
    }
    dcomm_codec_destroy(&codec);
    r->algo = e.algo;
    r->nrows = e.nalternatives < most ? e.nalternatives : most;
    r->npaths = opts.device ? e.npaths : 0;
    return status;
}

/* Describe the path of bytes from rank to rank for buffers of the kind of --mem. Return NULL
 * without --mem. */
static const char *explain_path(const report *r)
{
    static const char staged[] = "staged: copied out to pinned memory, sent, copied in and folded "
                                 "on the device, piece by piece";
    static const char direct[] = "direct: read from the peer's memory by the kernel that folds it, "
                                 "once it has been opened";
    static const char mixed[] = "mixed: between ranks of a host read from the peer's memory by the "
                                "kernel that folds it, once it has been opened; between hosts "
                                "staged through pinned memory";
    static const char ucx[] = "ucx: between hosts sent by UCX out of the device's memory and "
                              "received into it; on a host staged through pinned memory";
    static const char both[] = "mixed: between ranks of a host read from the peer's memory by the "
                               "kernel that folds it, once it has been opened; between hosts sent "
                               "by UCX out of the device's memory and received into it";
    for (int i = 0; i < r->npaths; i++) {
        const dcomm_path *path = &r->paths[i];
        if (path->taken) {
            return path->ucx_pairs > 0       ? (path->direct_pairs > 0 ? both : ucx)
                   : path->direct_pairs == 0 ? staged
                   : path->staged_pairs == 0 ? direct
                                             : mixed;
        }
    }
    return r->a->mem_name == NULL ? NULL
           : r->a->mem.registered
               ? "on a host read from the peer's memory, which is mapped; between "
                 "hosts messages of UCX"
               : "on a host messages through mapped memory, and long ones read from "
                 "the peer by the kernel; between hosts messages of UCX";
}

static void explain_us(double seconds, bool assumed, char text[40])
{
    if (seconds >= 0) {
        snprintf(text, 40, "%.2f us%s", 1e6 * seconds, assumed ? " (assumed)" : "");
    } else {
        snprintf(text, 40, "-");
    }
}

static void explain_print_paths(const report *r)
{
    bool assumed = false;
    for (int i = 0; i < r->npaths; i++) {
        const dcomm_path *path = &r->paths[i];
        char price[40], by_ucx[40] = "", text[400];
        explain_us(path->seconds, path->assumed, price);
        if (path->ucx_pairs > 0) {
            snprintf(by_ucx, sizeof by_ucx, ", %" PRId64 " by UCX", path->ucx_pairs);
        }
        assumed = assumed || path->assumed;
        int column = printf("%c %-8s %-18s %24s  ", path->taken ? '*' : ' ', path->name,
                            path->algo != NULL ? path->algo : "-", price);
        snprintf(text, sizeof text, "pairs: %" PRId64 " direct, %" PRId64 " staged%s%s%s",
                 path->direct_pairs, path->staged_pairs, by_ucx, path->why[0] != 0 ? "; " : "",
                 path->why);
        tool_fold(stdout, (size_t)column, 11, text);
    }
    if (assumed) {
        printf("assumed: by numbers of devices that nobody has measured; a tuning file can bring "
               "others\n");
    }
}

static void explain_print(const report *r)
{
    const char *path = explain_path(r);
    printf("%s of %zu bytes (count %zu) on %d rank%s: %s\n", dcomm_coll_name(r->a->coll),
           r->a->bytes, r->count, r->view.n, r->view.n == 1 ? "" : "s", r->algo);
    for (int i = 0; i < r->nrows; i++) {
        const dcomm_alternative *row = &r->rows[i];
        char price[40], text[400];
        explain_us(row->seconds, row->assumed, price);
        int column = printf("%c %-18s %*s  ", row->chosen ? '*' : ' ', row->algo,
                            row->assumed ? 24 : 14, price);
        snprintf(text, sizeof text, "%s%s%s", row->why,
                 row->why[0] != 0 && row->note[0] != 0 ? "; " : "", row->note);
        tool_fold(stdout, (size_t)column, (size_t)column, text);
    }
    if (path != NULL) {
        tool_fold(stdout, (size_t)printf("%s memory: ", r->a->mem_name), 2, path);
        explain_print_paths(r);
    }
    if (r->verdict.text[0] != 0) {
        tool_fold(stdout, 0, 2, r->verdict.text);
    }
}

static void explain_json_us(perf_json *j, double seconds)
{
    if (seconds >= 0) {
        perf_json_number(j, "predicted_us", 1e6 * seconds);
    } else {
        perf_json_null(j, "predicted_us");
    }
}

static void explain_json_paths(perf_json *j, const report *r)
{
    perf_json_open(j, "paths", '[');
    for (int i = 0; i < r->npaths; i++) {
        const dcomm_path *path = &r->paths[i];
        perf_json_open(j, NULL, '{');
        perf_json_text(j, "name", path->name);
        if (path->algo != NULL) {
            perf_json_text(j, "algo", path->algo);
        } else {
            perf_json_null(j, "algo");
        }
        explain_json_us(j, path->seconds);
        perf_json_bool(j, "assumed", path->assumed);
        perf_json_bool(j, "taken", path->taken);
        perf_json_int(j, "direct_pairs", path->direct_pairs);
        perf_json_int(j, "staged_pairs", path->staged_pairs);
        perf_json_int(j, "ucx_pairs", path->ucx_pairs);
        perf_json_text(j, "why_not", path->why);
        perf_json_close(j, '}');
    }
    perf_json_close(j, ']');
}

static void explain_json(perf_json *j, const report *r)
{
    perf_json_open(j, "explain", '{');
    perf_json_text(j, "op", dcomm_coll_name(r->a->coll));
    perf_json_int(j, "bytes", (int64_t)r->a->bytes);
    perf_json_int(j, "count", (int64_t)r->count);
    perf_json_text(j, "algo", r->algo);
    perf_json_open(j, "algos", '[');
    for (int i = 0; i < r->nrows; i++) {
        const dcomm_alternative *row = &r->rows[i];
        perf_json_open(j, NULL, '{');
        perf_json_text(j, "name", row->algo);
        explain_json_us(j, row->seconds);
        perf_json_bool(j, "assumed", row->assumed);
        perf_json_text(j, "why_not", row->why);
        perf_json_text(j, "note", row->note);
        perf_json_close(j, '}');
    }
    perf_json_close(j, ']');
    if (r->a->mem_name != NULL) {
        perf_json_text(j, "mem", r->a->mem_name);
        perf_json_text(j, "path", explain_path(r));
    }
    if (r->npaths > 0) {
        explain_json_paths(j, r);
    }
    if (r->verdict.text[0] != 0) {
        perf_json_text(j, "verdict", r->verdict.text);
    }
    perf_json_close(j, '}');
}

/* ---- output ---- */

static void print(const report *r)
{
    if (r->topology != NULL) {
        tree_print(r->topology, hwloc_get_root_obj(r->topology), &r->bound, 0);
    } else {
        ranks_print_tree(&r->view);
    }
    if (r->view.n > 0) {
        putchar('\n');
        ranks_print_table(&r->view);
        putchar('\n');
        ranks_print_groups(&r->view);
    }
    if (r->algo != NULL) {
        putchar('\n');
        explain_print(r);
    }
}

static void write_json(const report *r, FILE *file)
{
    perf_json j = {.file = file, .first = true};
    perf_json_open(&j, NULL, '{');
    perf_json_int(&j, "schema", 1);
    perf_json_text(&j, "tool", "dcomm-topo");
    perf_json_text(&j, "version", dcomm_version());
    if (r->topology != NULL) {
        tree_json(&j, r->topology, "machine", hwloc_get_root_obj(r->topology));
    } else {
        perf_json_null(&j, "machine");
    }
    if (r->view.n > 0) {
        ranks_json(&j, &r->view);
    }
    if (r->algo != NULL) {
        explain_json(&j, r);
    }
    perf_json_close(&j, '}');
    fputc('\n', j.file);
}

static int show(const report *r)
{
    tool_out out;
    if (!tool_open(&out, r->a->json)) {
        return TOOL_USAGE;
    }
    if (!tool_stdout_taken) {
        print(r);
    }
    if (out.file != NULL) {
        write_json(r, out.file);
    }
    return tool_close(&out) ? TOOL_GOOD : TOOL_USAGE;
}

static int failed(dcomm_status status, int result)
{
    tool_say("%s: %s", dcomm_strerror(status), dcomm_last_error());
    return result;
}

/* Show one machine, with ranks that do not exist yet or without ranks. */
static int show_machine(const arguments *a)
{
    report r = {.a = a};
    int result = TOOL_GOOD;
    dcomm_status status = dcommi_topo_load(a->xml, &r.topology);
    if (status < 0) {
        return failed(status, TOOL_USAGE);
    }
    if (a->nranks > 0 && !place_ranks(&r)) {
        tool_say("no memory for %d ranks", a->nranks);
        result = TOOL_WRONG;
    }
    if (result == TOOL_GOOD && a->explain && (status = explain(&r, NULL)) < 0) {
        result = failed(status, TOOL_USAGE);
    }
    result = result == TOOL_GOOD ? show(&r) : result;
    for (int i = 0; i < r.bound.n; i++) {
        hwloc_bitmap_free(r.bound.set[i]);
    }
    free(r.bound.set);
    free((void *)(uintptr_t)r.view.sites);
    dcommi_free((void *)(uintptr_t)r.view.groups);
    hwloc_topology_destroy(r.topology);
    return result;
}

/* Show the ranks of a job. Only rank 0 prints. */
static int show_job(const arguments *a)
{
    report r = {.a = a};
    dcomm_comm *comm = NULL;
    int result = TOOL_GOOD;
    if (a->xml != NULL) {
        setenv("DCOMM_TOPO_XML", a->xml, 1);
    }
    dcomm_status status = dcomm_comm_create(NULL, &comm);
    if (status < 0) {
        return failed(status, TOOL_COMM);
    }
    r.view =
        (ranks_view){.n = comm->size, .groups = comm->groups, .sites = comm->places, .comm = comm};
    if (comm->rank == 0) {
        status = a->explain ? explain(&r, comm) : DCOMM_OK;
        result = status < 0 ? failed(status, TOOL_USAGE) : show(&r);
    }
    dcomm_comm_destroy(&comm);
    return result;
}

int main(int argc, char **argv)
{
    arguments a = {0};
    dcommi_launcher launcher;
    tool_begin(true);
    int result = parse(argc, argv, &a);
    if (result >= 0) {
        return tool_end(result);
    }
    if (a.nranks == 0) { /* with -n the ranks do not exist yet */
        dcomm_status status = dcommi_launcher_detect(&launcher);
        if (status < 0) {
            return failed(status, TOOL_COMM);
        }
        if (launcher.size != 1) {
            return tool_end(show_job(&a));
        }
    }
    if (a.explain && a.nranks == 0) {
        return tool_refuse("--explain needs ranks: -n N, or a launcher", NULL);
    }
    return tool_end(show_machine(&a));
}
