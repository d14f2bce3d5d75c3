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
        counts[r] = is_v(c->coll) ? (c->count * (size_t)(r + 2)) % 1999 * (size_t)(r % 5 != 3)
                                  : c->count;
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
                          .groups = groups,
                          .counts = is_v(c->coll) ? counts : NULL,
                          .displs = is_v(c->coll) ? displs : NULL};
        dcomm_status status = dcommi_plan_make(&s, algo, &plans[r]);
        cr_assert_eq(status, DCOMM_OK, "%s: %s", text_of(c), dcomm_last_error());
    }
    dcommi_groups_free(&groups);
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
        if (e->peer >= 0 && e->kind != DCOMM_STEP_EXPOSE && e->kind != DCOMM_STEP_SIGNAL &&
            f->host[e->rank] != f->host[e->peer]) {
            f->out[f->host[e->peer]] += e->bytes;
            f->in[f->host[e->rank]] += e->bytes;
            f->messages[f->host[e->peer]][f->host[e->rank]]++;
        }
    }
    dcommi_free(trace.event);
    drop(plans, c->n);
}

static const struct {
    dcomm_coll coll;
    const char *name;
} algorithms[] = {
    {DCOMM_COLL_ALLREDUCE, "hier"},       {DCOMM_COLL_ALLREDUCE, "hier_leader"},
    {DCOMM_COLL_BROADCAST, "hier"},       {DCOMM_COLL_BROADCAST, "hier_leader"},
    {DCOMM_COLL_REDUCE_SCATTER, "hier"},  {DCOMM_COLL_ALLGATHER, "hier"},
    {DCOMM_COLL_REDUCE_SCATTERV, "hier"}, {DCOMM_COLL_ALLGATHERV, "hier"},
    {DCOMM_COLL_ALLTOALL, "hier"},
};
enum { ALGORITHMS = sizeof algorithms / sizeof algorithms[0] };

static bool whole(dcomm_coll coll)
{
    return coll == DCOMM_COLL_ALLREDUCE || coll == DCOMM_COLL_BROADCAST;
}

/* ---- proofs ---- */

static void prove(int from, int to, int step)
{
    static facts f;
    int pick = 0;
    for (int a = 0; a < ALGORITHMS; a++) {
        for (int n = from; n <= to; n += step) {
            for (int hosts = 1; hosts <= 8 && hosts <= n; hosts++) {
                for (placement p = BLOCK; p < PLACEMENTS; p++, pick++) {
                    bool big = whole(algorithms[a].coll);
                    size_t sizes[] = {1, 300, big ? 40000 : 1500, big ? 3001 : 7};
                    call c = {.coll = algorithms[a].coll,
                              .name = algorithms[a].name,
                              .n = n,
                              .hosts = hosts,
                              .place = p,
                              .count = sizes[pick % 4],
                              .chunk = pick % 3 == 0 ? 10000 : pick % 3 == 1 ? 0 : 1500,
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
    prove(1, 12, 1);
}

Test(hier, proved_up_to_64_ranks, .timeout = 240)
{
    prove(13, 64, 17);
}
