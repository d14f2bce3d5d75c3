/* test_hier.c - hierarchical algorithms: the plan checker proves them for every placement of
 * ranks, and the bytes between hosts are counted. test_hier_run.c runs them. */
#define _GNU_SOURCE
#define DCOMM_IMPLEMENTATION
#include <criterion/criterion.h>

#include "dcomm/all.h"

#include "hier_algorithms.h"
#include "proof_step.h"

#define RANKS_MAX 64

/* The placement of ranks on hosts. */
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
    int n, hosts, root, lanes, packages; /* packages: each host has packages of four ranks */
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
    int64_t host_bytes[RANKS_MAX]; /* bytes of the blocks of the host's ranks */
    int64_t between;               /* bytes between packages of one host */
    int host[RANKS_MAX], ranks[RANKS_MAX];
    int hosts;
} facts;

static size_t counts[RANKS_MAX], displs[RANKS_MAX];

/* Make the plans of all ranks, check them, and count the bytes that cross between hosts. */
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
    for (int r = 0; r < c->n; r++) {
        dcommi_free(plans[r]);
    }
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
                    if ((DCOMM_TEST_RANK_STEP > 1 || !test_full()) && every_placement &&
                        pick % 11 != 0) {
                        continue;
                    }
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

/* Plans of 512 hosts with eight ranks each: no plan may grow with the square of anything. */
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

/* Expect that no host sends or receives more than its limit, nor all hosts together more than
 * theirs. */
static void expect_bytes(const call *c, const facts *f)
{
    int64_t one = 4 * (int64_t)c->count, m = f->hosts, total = 0, all = 0;
    /* Shards are whole cache lines, so one host's shard may be longer than another's. */
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
        case DCOMM_COLL_BROADCAST: /* the sum over all hosts is checked below */
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
        default: /* in a ring of leaders each host passes on other hosts' blocks */
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
            /* A host sends each remote rank its data in parts. Leaders, and algorithms over
             * several levels, send chunks to one rank. */
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
                if (!test_full() && ((int)i + a + (int)p) % 2 != 0) {
                    continue;
                }
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

/* A flat ring enters and leaves each host once, but still passes all ranks' blocks through it. */
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

/* ---- parts that are divided within a host ---- */

/* Two hosts with two packages of four ranks. A part of 8 KiB crosses between a host's packages
 * once, a shorter one once for each rank that needs it. Sums cross on their way in and out. */
Test(hier, long_parts_are_divided, .timeout = 20)
{
    static facts f;
    static const struct {
        dcomm_coll coll;
        int shares; /* a rank's shares of the buffer, or its blocks */
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

/* The number of exposed pieces is limited: a level must not cut a piece that the level above has
 * cut. */
Test(hier, plans_of_long_blocks_over_many_levels, .timeout = 20)
{
    static const uint8_t kinds[] = {DCOMMI_LEVEL_HOST, DCOMMI_LEVEL_PACKAGE, DCOMMI_LEVEL_NUMA,
                                    DCOMMI_LEVEL_CACHE};
    enum { N = 64, LEVELS = sizeof kinds };
    int64_t ids[LEVELS * N];
    for (int i = 0; i < LEVELS * N; i++) {
        ids[i] = i % N / (32 >> i / N); /* two groups in each group of the level above */
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
