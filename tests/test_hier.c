/* test_hier.c - hierarchical algorithms: proved by the plan checker for every placement of ranks,
 * the bytes between hosts counted, and run by processes that are several hosts. */
#define _GNU_SOURCE
#define DCOMM_IMPLEMENTATION
#include "conformance.h"

#define RANKS_MAX 64

/* How ranks are placed on hosts. */
typedef enum placement { BLOCK, CYCLIC, UNEVEN, LOPSIDED, SHUFFLED, PLACEMENTS } placement;

static int host_of(placement p, int rank, int n, int hosts)
{
    int each = (n + hosts - 1) / hosts;
    switch (p) {
    case BLOCK:
        return rank / each;
    case CYCLIC:
        return rank % hosts;
    case UNEVEN: /* host k has about k+1 shares */
        for (int k = 0, end = 0; k < hosts; k++) {
            end += dcommi_max64(1, 2 * (k + 1) * n / (hosts * (hosts + 1)));
            if (rank < end) {
                return k;
            }
        }
        return hosts - 1;
    case LOPSIDED: /* one rank on each host but the first */
        return rank < n - hosts + 1 ? 0 : rank - (n - hosts);
    default:
        return (int)(dcommi_mix(77, (uint64_t)rank) % (uint64_t)hosts);
    }
}

typedef struct call {
    dcomm_coll coll;
    const char *name;
    int n, hosts, root, lanes, packages; /* packages: of four ranks, within each host */
    placement place;
    size_t count;
    int64_t chunk;
    bool in_place, average;
} call;

static const char *text_of(const call *c)
{
    static char text[200];
    snprintf(text, sizeof text,
             "%s of %s, %d ranks, %d hosts, placement %d, count %zu, chunk %" PRId64
             ", root %d, lanes %d, in place %d",
             c->name, dcomm_coll_name(c->coll), c->n, c->hosts, c->place, c->count, c->chunk,
             c->root, c->lanes, c->in_place);
    return text;
}

static dcommi_groups *groups_of(const call *c)
{
    static const uint8_t kinds[2] = {DCOMMI_LEVEL_HOST, DCOMMI_LEVEL_PACKAGE};
    int64_t ids[2 * RANKS_MAX];
    int seen[RANKS_MAX] = {0};
    for (int r = 0; r < c->n; r++) {
        ids[r] = host_of(c->place, r, c->n, c->hosts);
        ids[c->n + r] = seen[ids[r]]++ / 4;
    }
    dcommi_groups *g = dcommi_groups_make(c->n, c->packages ? 2 : 1, kinds, ids);
    cr_assert(g != NULL);
    return g;
}

static bool is_v(dcomm_coll coll)
{
    return coll == DCOMM_COLL_REDUCE_SCATTERV || coll == DCOMM_COLL_ALLGATHERV;
}

typedef struct facts {
    dcomm_check_report report;
    int64_t out[RANKS_MAX], in[RANKS_MAX]; /* bytes that leave and enter each host */
    int64_t messages[RANKS_MAX][RANKS_MAX];
    int64_t host_bytes[RANKS_MAX]; /* of the blocks of its ranks */
    int64_t between;               /* packages of one host */
    int host[RANKS_MAX], ranks[RANKS_MAX];
    int hosts;
} facts;

static size_t counts[RANKS_MAX], displs[RANKS_MAX];

/* Make the plans of all ranks, check them, count what crosses between hosts. */
static void examine(const call *c, facts *f)
{
    dcomm_plan *plans[RANKS_MAX];
    dcommi_groups *groups = groups_of(c);
    const dcommi_algo *algo = dcommi_algo_find(c->coll, c->name);
    cr_assert(algo != NULL, "%s", text_of(c));
    memset(f, 0, sizeof *f);
    f->hosts = groups->count[0];
    size_t at = 0;
    for (int r = 0; r < c->n; r++) {
        counts[r] =
            is_v(c->coll) ? (c->count * (size_t)(r + 2)) % 1999 * (size_t)(r % 5 != 3) : c->count;
        displs[r] = at;
        at += counts[r];
        f->host[r] = (int)dcommi_group_of(groups, 0, r);
        f->ranks[f->host[r]]++;
        f->host_bytes[f->host[r]] += 4 * (int64_t)counts[r];
    }
    for (int r = 0; r < c->n; r++) {
        dcommi_shape s = {.coll = c->coll,
                          .rank = r,
                          .nranks = c->n,
                          .root = c->root,
                          .dtype = DCOMM_F32,
                          .op = c->average ? DCOMM_AVG : DCOMM_SUM,
                          .count = c->count,
                          .in_place = c->in_place,
                          .lanes = c->lanes > 0 ? c->lanes : 1,
                          .chunk_bytes = c->chunk,
                          .memory = c->in_place ? DCOMMI_MEMORY_ANY : DCOMMI_MEMORY_REGISTERED,
                          .groups = groups,
                          .counts = is_v(c->coll) ? counts : NULL,
                          .displs = is_v(c->coll) ? displs : NULL};
        dcomm_status status = dcommi_plan_make(&s, algo, &plans[r]);
        cr_assert_eq(status, DCOMM_OK, "%s: %s", text_of(c), dcomm_last_error());
    }
    dcomm_check_spec spec = {.coll = c->coll,
                             .count = c->count,
                             .dtype = DCOMM_F32,
                             .root = c->root,
                             .in_place = c->in_place,
                             .counts = is_v(c->coll) ? counts : NULL};
    dcommi_check_trace trace = {0};
    dcomm_status status =
        dcommi_check_plans((const dcomm_plan *const *)plans, c->n, &spec, &f->report, &trace);
    cr_assert_eq(status, DCOMM_OK, "%s: %s", text_of(c), f->report.message);
    for (size_t i = 0; i < trace.n; i++) {
        const dcommi_check_event *e = &trace.event[i];
        if (e->peer < 0 || e->kind == DCOMM_STEP_EXPOSE || e->kind == DCOMM_STEP_SIGNAL) {
            continue;
        }
        int depth = dcommi_groups_depth(groups, e->rank, e->peer);
        if (depth == 0) {
            f->out[f->host[e->peer]] += e->bytes;
            f->in[f->host[e->rank]] += e->bytes;
            f->messages[f->host[e->peer]][f->host[e->rank]]++;
        }
        f->between += depth == 1 ? e->bytes : 0;
    }
    dcommi_groups_free(&groups);
    dcommi_free(trace.event);
    drop(plans, c->n);
}

static const struct {
    dcomm_coll coll;
    const char *name;
} algorithms[] = {
    {DCOMM_COLL_ALLREDUCE, "hier"},         {DCOMM_COLL_ALLREDUCE, "hier_leader"},
    {DCOMM_COLL_BROADCAST, "hier"},         {DCOMM_COLL_BROADCAST, "hier_leader"},
    {DCOMM_COLL_REDUCE_SCATTER, "hier"},    {DCOMM_COLL_ALLGATHER, "hier"},
    {DCOMM_COLL_REDUCE_SCATTERV, "hier"},   {DCOMM_COLL_ALLGATHERV, "hier"},
    {DCOMM_COLL_ALLTOALL, "hier"},          {DCOMM_COLL_REDUCE_SCATTER, "hier_leader"},
    {DCOMM_COLL_ALLGATHER, "hier_leader"},  {DCOMM_COLL_REDUCE_SCATTERV, "hier_leader"},
    {DCOMM_COLL_ALLGATHERV, "hier_leader"}, {DCOMM_COLL_ALLTOALL, "hier_leader"},
};
enum { ALGORITHMS = sizeof algorithms / sizeof algorithms[0] };

static bool whole(dcomm_coll coll)
{
    return coll == DCOMM_COLL_ALLREDUCE || coll == DCOMM_COLL_BROADCAST;
}

/* ---- proofs ---- */

static void prove(int from, int to, bool every_placement)
{
    static facts f;
    int pick = 0;
    for (int a = 0; a < ALGORITHMS; a++) {
        for (int n = from; n <= to; n += every_placement ? 1 : proof_step()) {
            for (int hosts = 1; hosts <= 8 && hosts <= n; hosts++) {
                for (placement p = BLOCK; p < PLACEMENTS; p++, pick++) {
                    if (!every_placement &&
                        ((n + hosts + a) % PLACEMENTS != (int)p || (n / 5 + hosts + a) % 6 != 0)) {
                        continue;
                    }
                    bool big = whole(algorithms[a].coll);
                    size_t sizes[] = {1, 300, big ? 40000 : 1500, big ? 3001 : 7};
                    call c = {.coll = algorithms[a].coll,
                              .name = algorithms[a].name,
                              .n = n,
                              .hosts = hosts,
                              .place = p,
                              .count = sizes[pick % 4],
                              .chunk = pick % 3 == 0   ? 10000
                                       : pick % 3 == 1 ? 0
                                                       : 1500,
                              .root = algorithms[a].coll == DCOMM_COLL_BROADCAST ? pick % n : 0,
                              .lanes = 1 + pick % 2,
                              .packages = pick % 7 == 0,
                              .average = pick % 5 == 0,
                              .in_place = pick % 3 == 1};
                    examine(&c, &f);
                }
            }
        }
    }
}

Test(hier, proved_up_to_12_ranks, .timeout = 120)
{
    prove(1, 12, true);
}

Test(hier, proved_up_to_64_ranks, .timeout = 240)
{
    prove(13, 64, false);
}

/* 512 hosts of eight ranks: no plan grows with the square of anything. */
Test(hier, plans_of_4096_ranks, .timeout = 60)
{
    static const uint8_t kinds[1] = {DCOMMI_LEVEL_HOST};
    const int n = 4096;
    int64_t *ids = malloc((size_t)n * sizeof *ids);
    size_t *each = malloc((size_t)n * sizeof *each), *begin = malloc((size_t)n * sizeof *begin);
    cr_assert(ids != NULL && each != NULL && begin != NULL);
    for (int r = 0; r < n; r++) {
        ids[r] = r % 512;
        each[r] = 1000;
        begin[r] = 1000 * (size_t)r;
    }
    dcommi_groups *groups = dcommi_groups_make(n, 1, kinds, ids);
    cr_assert(groups != NULL);
    for (int a = 0; a < ALGORITHMS; a++) {
        dcomm_plan *plan = NULL;
        dcommi_shape s = {.coll = algorithms[a].coll,
                          .rank = 1234,
                          .nranks = n,
                          .dtype = DCOMM_F32,
                          .op = DCOMM_SUM,
                          .count = whole(algorithms[a].coll) ? (size_t)1 << 28 : 1000,
                          .lanes = 1,
                          .groups = groups,
                          .counts = is_v(algorithms[a].coll) ? each : NULL,
                          .displs = is_v(algorithms[a].coll) ? begin : NULL};
        dcomm_status status =
            dcommi_plan_make(&s, dcommi_algo_find(s.coll, algorithms[a].name), &plan);
        cr_assert_eq(status, DCOMM_OK, "%s of %s: %s", algorithms[a].name, dcomm_coll_name(s.coll),
                     dcomm_last_error());
        cr_expect_leq(dcommi_plan_bytes(plan), (size_t)8 << 20, "%s of %s: %zu bytes",
                      algorithms[a].name, dcomm_coll_name(s.coll), dcommi_plan_bytes(plan));
        dcommi_free(plan);
    }
    dcommi_groups_free(&groups);
    free(ids);
    free(each);
    free(begin);
}

/* ---- bytes between hosts ---- */

/* Every host sends and takes no more than this, and all of them no more than that. */
static void expect_bytes(const call *c, const facts *f)
{
    int64_t one = 4 * (int64_t)c->count, m = f->hosts, total = 0, all = 0;
    /* Shards are whole cache lines, so one host's may be longer than another's. */
    int64_t slack = whole(c->coll) ? 64 * 16 * 8 : 0;
    bool leader = strcmp(c->name, "hier_leader") == 0;
    for (int k = 0; k < m; k++) {
        all += f->host_bytes[k];
    }
    for (int k = 0; k < m; k++) {
        int64_t g = f->ranks[k], out, in;
        switch (c->coll) {
        case DCOMM_COLL_ALLREDUCE:
            out = in = 2 * (m - 1) * one / m;
            break;
        case DCOMM_COLL_BROADCAST: /* all hosts together, below */
            out = (m - 1) * one;
            in = one;
            break;
        case DCOMM_COLL_REDUCE_SCATTER:
        case DCOMM_COLL_REDUCE_SCATTERV:
            out = all - f->host_bytes[k];
            in = (m - 1) * f->host_bytes[k];
            in = leader ? dcommi_max64(all, in) : in;
            break;
        case DCOMM_COLL_ALLTOALL:
            out = in = g * (c->n - g) * one;
            break;
        default: /* a ring of leaders passes on what comes */
            out = (m - 1) * f->host_bytes[k];
            out = leader ? dcommi_max64(all, out) : out;
            in = all - f->host_bytes[k];
            break;
        }
        cr_expect_leq(f->out[k], out + slack, "%s: host %d of %d ranks sends %" PRId64, text_of(c),
                      k, f->ranks[k], f->out[k]);
        cr_expect_leq(f->in[k], in + slack, "%s: host %d of %d ranks takes %" PRId64, text_of(c), k,
                      f->ranks[k], f->in[k]);
        total += f->out[k];
        for (int j = 0; j < m && c->coll == DCOMM_COLL_ALLTOALL; j++) {
            /* To each rank there, in parts; over several levels or by leaders to one, in chunks. */
            int64_t messages = f->ranks[j] * dcommi_ceil_div(g * one, DCOMMI_HIER_MESSAGE);
            if (leader) {
                messages = dcommi_ceil_div(c->n * one, DCOMMI_HIER_CHUNK);
            } else if (c->packages && c->place < UNEVEN) {
                messages = g * dcommi_ceil_div(c->n * one, DCOMMI_HIER_CHUNK);
            }
            cr_expect_eq(f->messages[k][j], j != k ? messages : 0, "%s: %" PRId64 " messages",
                         text_of(c), f->messages[k][j]);
        }
    }
    if (c->coll == DCOMM_COLL_ALLREDUCE) {
        cr_expect_eq(total, 2 * (m - 1) * one, "%s: %" PRId64, text_of(c), total);
    } else if (c->coll == DCOMM_COLL_BROADCAST) {
        cr_expect_eq(total, (m - 1) * one, "%s: %" PRId64, text_of(c), total);
    } else if (c->coll != DCOMM_COLL_ALLTOALL) {
        cr_expect_eq(total, (m - 1) * all, "%s: %" PRId64, text_of(c), total);
    }
}

Test(hier, each_host_sends_as_little_as_possible, .timeout = 120)
{
    static facts f;
    static const struct {
        int n, hosts, packages;
    } sizes[] = {{4, 2, 0}, {6, 3, 0}, {8, 4, 0}, {7, 3, 0}, {5, 3, 0}, {16, 4, 0}, {32, 2, 1}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        for (int a = 0; a < ALGORITHMS; a++) {
            for (placement p = BLOCK; p < PLACEMENTS; p++) {
                call c = {.coll = algorithms[a].coll,
                          .name = algorithms[a].name,
                          .n = sizes[i].n,
                          .hosts = sizes[i].hosts,
                          .packages = sizes[i].packages,
                          .place = p,
                          .root = algorithms[a].coll == DCOMM_COLL_BROADCAST ? 1 : 0,
                          .count = whole(algorithms[a].coll) ? 1000000 + 17 : 20000};
                examine(&c, &f);
                expect_bytes(&c, &f);
            }
        }
    }
}

/* Even a ring that enters and leaves each host once passes all ranks' blocks through it. */
Test(hier, a_flat_ring_sends_more, .timeout = 20)
{
    static facts flat, f;
    call c = {.coll = DCOMM_COLL_ALLREDUCE,
              .name = "ring",
              .n = 8,
              .hosts = 2,
              .place = CYCLIC,
              .count = 1 << 20};
    examine(&c, &flat);
    c.name = "hier";
    examine(&c, &f);
    cr_expect_eq(f.out[0], 4 << 20);
    cr_expect_eq(4 * flat.out[0], 7 * f.out[0]);
}

/* ---- what is divided within a host ---- */

/* Two hosts of two packages of four: parts of 8 KiB cross between packages twice each, shorter ones
 * as often as there are ranks that want them. */
Test(hier, long_parts_are_divided, .timeout = 20)
{
    static facts f;
    static const struct {
        dcomm_coll coll;
        int shares; /* of the buffer, or blocks, that a rank has */
    } tries[] = {{DCOMM_COLL_ALLREDUCE, 8}, {DCOMM_COLL_ALLGATHER, 1}};
    for (size_t i = 0; i < sizeof tries / sizeof tries[0]; i++) {
        for (int64_t part = 4096; part <= 8192; part += 4096) {
            call c = {.coll = tries[i].coll,
                      .name = "hier",
                      .n = 16,
                      .hosts = 2,
                      .packages = 1,
                      .count = (size_t)(part / 4 * tries[i].shares)};
            bool sum = c.coll == DCOMM_COLL_ALLREDUCE;
            int64_t all = part * (sum ? 8 : 16), once = 2 * all * (sum ? 2 : 1);
            examine(&c, &f);
            cr_expect_eq(f.between, part < 8192 ? 4 * once : once, "%s: %" PRId64, text_of(&c),
                         f.between);
        }
    }
}

/* What is exposed is limited: a piece that one level has cut is not cut again by the next. */
Test(hier, plans_of_long_blocks_over_many_levels, .timeout = 20)
{
    static const uint8_t kinds[] = {DCOMMI_LEVEL_HOST, DCOMMI_LEVEL_PACKAGE, DCOMMI_LEVEL_NUMA,
                                    DCOMMI_LEVEL_CACHE};
    enum { N = 64, LEVELS = sizeof kinds };
    int64_t ids[LEVELS * N];
    for (int i = 0; i < LEVELS * N; i++) {
        ids[i] = i % N / (32 >> i / N); /* two of each in each */
    }
    dcommi_groups *groups = dcommi_groups_make(N, LEVELS, kinds, ids);
    cr_assert(groups != NULL && groups->nlevels == LEVELS);
    for (int a = 0; a < ALGORITHMS; a++) {
        for (int rank = 0; rank < N && !is_v(algorithms[a].coll); rank += 21) {
            dcomm_plan *plan = NULL;
            dcommi_shape s = {.coll = algorithms[a].coll,
                              .rank = rank,
                              .nranks = N,
                              .dtype = DCOMM_F32,
                              .op = DCOMM_SUM,
                              .count = (size_t)1 << (whole(algorithms[a].coll) ? 30 : 24),
                              .lanes = 1,
                              .groups = groups};
            cr_expect_eq(dcommi_plan_make(&s, dcommi_algo_find(s.coll, algorithms[a].name), &plan),
                         DCOMM_OK, "%s of %s: %s", algorithms[a].name, dcomm_coll_name(s.coll),
                         dcomm_last_error());
            dcommi_free(plan);
        }
    }
    dcommi_groups_free(&groups);
}

/* ---- through the interface ---- */

Test(hier, chosen_between_hosts_with_several_ranks, .timeout = 20)
{
    static const int two[4] = {7, 3, 7, 3}, four[4] = {0, 1, 2, 3};
    static const struct {
        const int *hosts;
        size_t count;
        bool rank_order, hier;
    } tries[] = {{two, 1 << 20, false, true},
                 {two, 100, false, true},
                 {two, 1 << 20, true, false},
                 {four, 1 << 20, false, false},
                 {NULL, 1 << 20, false, false}};
    for (size_t k = 0; k < sizeof tries / sizeof tries[0]; k++) {
        dcomm_plan *plan[4];
        dcomm_check_report report;
        dcomm_check_spec spec = {.coll = DCOMM_COLL_ALLREDUCE,
                                 .count = tries[k].count,
                                 .dtype = DCOMM_F32,
                                 .rank_order = tries[k].rank_order,
                                 .hosts = tries[k].hosts};
        for (int r = 0; r < 4; r++) {
            cr_assert_eq(dcomm_plan_create(&spec, DCOMM_SUM, r, 4, NULL, &plan[r]), DCOMM_OK, "%s",
                         dcomm_last_error());
            cr_expect_eq(strcmp(plan[r]->name, "hier") == 0, tries[k].hier, "%zu: %s", k,
                         plan[r]->name);
        }
        cr_expect_eq(dcomm_plan_check((const dcomm_plan *const *)plan, 4, &spec, &report), DCOMM_OK,
                     "%s", report.message);
        for (int r = 0; r < 4; r++) {
            dcomm_plan_destroy(&plan[r]);
        }
    }
    dcomm_plan *plan = NULL;
    dcomm_check_spec spec = {.coll = DCOMM_COLL_ALLREDUCE,
                             .count = 100,
                             .dtype = DCOMM_F32,
                             .hosts = two,
                             .rank_order = true};
    cr_expect_eq(
        dcomm_plan_create(&spec, DCOMM_SUM, 0, 4, &(dcomm_coll_opts){.algo = "hier"}, &plan),
        DCOMM_ERR_UNSUPPORTED);
    cr_expect_null(plan);
}

/* What the explanation says of hier. */
static const char *note_of(const dcommi_groups *groups, dcomm_coll coll, size_t count)
{
    static dcomm_alternative rows[32];
    int n = 0;
    cr_assert_eq(dcommi_explain_groups(NULL, groups->nranks, groups, coll, count, DCOMM_F32, NULL,
                                       dcommi_explain_algos, rows, 32, &n),
                 DCOMM_OK, "%s", dcomm_last_error());
    for (int i = 0; i < n; i++) {
        if (strcmp(rows[i].algo, "hier") == 0) {
            return rows[i].note;
        }
        cr_expect(rows[i].note[0] == 0 || strcmp(rows[i].algo, "hier_leader") == 0);
    }
    return "?";
}

Test(hier, what_is_not_divided_is_explained, .timeout = 20)
{
    static const uint8_t kinds[2] = {DCOMMI_LEVEL_HOST, DCOMMI_LEVEL_PACKAGE};
    static const struct {
        const char *hosts, *packages;
        dcomm_coll coll;
        const char *note;
    } tries[] = {
        {"00001111", "00110011", DCOMM_COLL_ALLREDUCE, ""},
        {"00001111", "00110011", DCOMM_COLL_ALLGATHER, ""},
        {"00000111", "00000000", DCOMM_COLL_ALLGATHER, ""},
        {"00000111", "00000000", DCOMM_COLL_ALLREDUCE,
         "of each host 3 ranks own a part, as the smallest has"},
        {"00010", "00000", DCOMM_COLL_BROADCAST,
         "of each host 1 rank owns a part, as the smallest has"},
        {"0000001111", "0111110011", DCOMM_COLL_ALLREDUCE,
         "host 0 is one group: its packages cannot own equally much"},
        {"0000111111", "0011000111", DCOMM_COLL_REDUCE_SCATTER, ""},
        {"0000111111", "0011000011", DCOMM_COLL_REDUCE_SCATTER,
         "host 1 is one group: its packages cannot own equally much"},
        {"0000", "0000", DCOMM_COLL_ALLREDUCE, "no level divides the ranks: it is two_shot"},
        {"0123", "0000", DCOMM_COLL_ALLGATHER, "no level divides the ranks: it is ring"},
    };
    for (size_t i = 0; i < sizeof tries / sizeof tries[0]; i++) {
        int64_t ids[2 * RANKS_MAX];
        int n = (int)strlen(tries[i].hosts);
        for (int r = 0; r < n; r++) {
            ids[r] = tries[i].hosts[r];
            ids[n + r] = tries[i].packages[r];
        }
        dcommi_groups *groups = dcommi_groups_make(n, 2, kinds, ids);
        cr_assert(groups != NULL);
        cr_expect_str_eq(note_of(groups, tries[i].coll, 1 << 18), tries[i].note, "%zu", i);
        dcommi_groups_free(&groups);
    }
}

/* ---- on real hosts: processes that read each other's memory or talk over the network ---- */

typedef struct running {
    int rank, n;
    dcomm_comm *comm;
    bool in_place;
    dcomm_coll_opts opts;
    float *given, *got; /* room for n blocks */
} running;

static float value(int rank, size_t i)
{
    return (float)((int)(i * 7 + (size_t)rank * 31) % 201 - 100);
}

static float value_of_sum(int n, size_t i)
{
    float sum = 0;
    for (int r = 0; r < n; r++) {
        sum += value(r, i);
    }
    return sum;
}

/* Run an operation once, `count` elements per block, and look at every element. */
static void run_once(const running *w, dcomm_coll coll, size_t count, int root)
{
    size_t n = (size_t)w->n, me = (size_t)w->rank, all = n * count, mine = me * count;
    size_t got_at = 0, got_count = count;
    bool gathers = coll == DCOMM_COLL_ALLGATHER, sums = coll == DCOMM_COLL_REDUCE_SCATTER;
    float *in = w->in_place ? w->got : w->given;
    for (size_t i = 0; i < all; i++) {
        w->got[i] = -1e9f;
    }
    for (size_t i = 0; i < all; i++) {
        in[i] =
            !w->in_place || !gathers || (i >= mine && i < mine + count) ? value(w->rank, i) : -1e9f;
    }
    switch (coll) {
    case DCOMM_COLL_ALLREDUCE:
        RANKS_OK(dcomm_allreduce(w->comm, in, w->got, count, DCOMM_F32, DCOMM_SUM, &w->opts));
        break;
    case DCOMM_COLL_BROADCAST:
        RANKS_OK(dcomm_broadcast(w->comm, in, w->got, count, DCOMM_F32, root, &w->opts));
        break;
    case DCOMM_COLL_REDUCE_SCATTER:
        got_at = w->in_place ? mine : 0;
        RANKS_OK(dcomm_reduce_scatter(w->comm, in, w->got + got_at, count, DCOMM_F32, DCOMM_SUM,
                                      &w->opts));
        break;
    case DCOMM_COLL_ALLGATHER:
        got_count = all;
        RANKS_OK(dcomm_allgather(w->comm, in + mine, w->got, count, DCOMM_F32, &w->opts));
        break;
    default:
        got_count = all;
        RANKS_OK(dcomm_alltoall(w->comm, in, w->got, count, DCOMM_F32, &w->opts));
        break;
    }
    for (size_t i = 0; i < got_count; i++) {
        int from = (int)(i / count);
        float want = coll == DCOMM_COLL_ALLREDUCE   ? value_of_sum(w->n, i)
                     : sums                         ? value_of_sum(w->n, mine + i)
                     : coll == DCOMM_COLL_BROADCAST ? value(root, i)
                     : gathers                      ? value(from, i)
                                                    : value(from, mine + i % count);
        float got = w->got[got_at + i];
        PROCS_CHECK(got == want,
                    "%s of %s, rank %d of %d, %zu elements, in place %d: [%zu] %g, not %g",
                    w->opts.algo, dcomm_coll_name(coll), w->rank, w->n, count, w->in_place, i,
                    (double)got, (double)want);
    }
}

typedef struct layout {
    int n, hosts;
    placement place;
} layout;

/* Operators that divide or multiply: at the end, once, and before, once. */
static void run_scaled(running *w, const char *algo)
{
    enum { COUNT = 50000 };
    w->opts = (dcomm_coll_opts){.algo = algo};
    for (int k = 0; k < 2; k++) {
        w->opts.premul = k == 1 ? w->rank + 1 : 0;
        for (size_t i = 0; i < COUNT; i++) {
            w->given[i] = value(w->rank, i);
        }
        RANKS_OK(dcomm_allreduce(w->comm, w->given, w->got, COUNT, DCOMM_F32,
                                 k == 0 ? DCOMM_AVG : DCOMM_PREMUL_SUM, &w->opts));
        for (size_t i = 0; i < COUNT; i++) {
            float want = 0;
            for (int r = 0; r < w->n; r++) {
                want += value(r, i) * (k == 0 ? 1 : (float)(r + 1));
            }
            want /= k == 0 ? (float)w->n : 1;
            float gap = w->got[i] - want;
            PROCS_CHECK(gap < 1e-4f && gap > -1e-4f,
                        "%s, rank %d of %d, operator %d: [%zu] %g, not %g", algo, w->rank, w->n, k,
                        i, (double)w->got[i], (double)want);
        }
    }
}

static int run_all(int rank, int n, procs_shared *s, void *arg)
{
    static const size_t sizes[] = {1, 37, 1100, 30000, 400000};
    const layout *at = arg;
    char host[16];
    ranks_settle(rank, n, RANKS_LOCAL);
    snprintf(host, sizeof host, "h%d", host_of(at->place, rank, n, at->hosts));
    setenv("DCOMM_HOSTID", host, 1);
    running w = {.rank = rank, .n = n, .comm = ranks_join(rank, n, s, NULL)};
    for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++) {
        w.given = malloc(4 * sizes[k] * (size_t)n);
        w.got = malloc(4 * sizes[k] * (size_t)n);
        PROCS_TRUE(w.given != NULL && w.got != NULL);
        for (int a = 0; a < ALGORITHMS; a++) {
            if (is_v(algorithms[a].coll) || (!whole(algorithms[a].coll) && sizes[k] > 100000)) {
                continue;
            }
            for (int way = 0; way < 4; way++) {
                w.in_place = way % 2;
                w.opts = (dcomm_coll_opts){.algo = algorithms[a].name,
                                           .lanes = 1 + way / 2,
                                           .chunk_bytes = way >= 2 ? 20000 : 0};
                run_once(&w, algorithms[a].coll, sizes[k], (int)(k + (size_t)way) % n);
            }
        }
        if (sizes[k] >= 50000) {
            run_scaled(&w, "hier");
            run_scaled(&w, "hier_leader");
        }
        free(w.given);
        free(w.got);
    }
    return ranks_leave(&w.comm);
}

Test(hier, right_on_real_hosts, .timeout = 240)
{
    static const layout layouts[] = {
        {4, 2, BLOCK},    {4, 2, CYCLIC}, {5, 2, CYCLIC}, {6, 3, BLOCK}, {6, 3, CYCLIC},
        {4, 2, LOPSIDED}, {5, 3, BLOCK},  {6, 3, UNEVEN}, {3, 1, BLOCK}, {3, 3, BLOCK}};
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        int ended[PROCS_MAX];
        layout at = layouts[i];
        cr_assert_eq(procs_run(at.n, 100, run_all, &at, ended), 0, "%d ranks, %d hosts, %d", at.n,
                     at.hosts, at.place);
    }
}
