/* test_levels.c - hierarchical algorithms over two, three and four levels: proved for equal and
 * unequal groups in any order of ranks, what crosses each level counted, the levels seen at work at
 * once, and run by processes whose places are made up. */
#define _GNU_SOURCE
#define DCOMM_IMPLEMENTATION
#define DCOMMI_HIER_DIVIDE_MIN 2 /* small groups are divided as well */
#include "conformance.h"

#define RANKS_MAX 64
#define LEVELS 3 /* of groups, the ranks not counted */

/* How large the parts of a group are, and how ranks are numbered. */
typedef enum sizes { EQUAL, NEARLY, GROWING, RANDOM, SIZES } sizes;
typedef enum numbers { BLOCK, CYCLIC, SHUFFLED, NUMBERS } numbers;

typedef struct call {
    dcomm_coll coll;
    const char *name;
    int n, levels, parts[LEVELS], root;
    sizes sizes;
    numbers numbers;
    size_t count;
    int64_t chunk;
    bool in_place;
} call;

static const char *text_of(const call *c)
{
    static char text[256];
    snprintf(text, sizeof text,
             "%s of %s, %d ranks, %d levels of %d, %d and %d parts, sizes %d, numbers %d, count "
             "%zu, chunk %" PRId64 ", root %d, in place %d",
             c->name, dcomm_coll_name(c->coll), c->n, c->levels, c->parts[0], c->parts[1],
             c->parts[2], c->sizes, c->numbers, c->count, c->chunk, c->root, c->in_place);
    return text;
}

/* Which of `parts` parts of a group of `size` has its rank number i. */
static int part_of(const call *c, int level, int i, int size, int parts)
{
    if (parts > size) {
        parts = size;
    }
    switch (c->sizes) {
    case GROWING:
        for (int k = 0, end = 0; k < parts; k++) {
            end += (int)dcommi_max64(1, 2 * (k + 1) * size / (parts * (parts + 1)));
            if (i < end) {
                return k;
            }
        }
        return parts - 1;
    case RANDOM:
        return (int)(dcommi_mix((uint64_t)(level + 5), (uint64_t)i) % (uint64_t)parts);
    default:
        return i * parts / size;
    }
}

static dcommi_groups *groups_of(const call *c)
{
    static const uint8_t kinds[LEVELS] = {DCOMMI_LEVEL_HOST, DCOMMI_LEVEL_PACKAGE,
                                          DCOMMI_LEVEL_NUMA};
    int64_t at[LEVELS][RANKS_MAX], ids[LEVELS * RANKS_MAX];
    int rank[RANKS_MAX];
    for (int l = 0; l < c->levels; l++) { /* by place in the tree */
        for (int i = 0; i < c->n; i++) {
            int before = 0, size = 0;
            for (int j = 0; j < c->n; j++) {
                bool same = l == 0 || at[l - 1][j] == at[l - 1][i];
                size += same;
                before += same && j < i;
            }
            int64_t part = part_of(c, l, before, size, c->parts[l]);
            at[l][i] = (l > 0 ? at[l - 1][i] * 100 : 0) + part;
        }
    }
    for (int i = 0; i < c->n; i++) {
        rank[i] = i;
    }
    if (c->numbers == CYCLIC) { /* deal the ranks round the hosts */
        int next = 0;
        for (int turn = 0; turn < c->n; turn++) {
            for (int host = 0; host < c->n; host++) {
                for (int i = 0, seen = 0; i < c->n; i++) {
                    if (at[0][i] == host && seen++ == turn) {
                        rank[i] = next++;
                    }
                }
            }
        }
    } else if (c->numbers == SHUFFLED) {
        for (int i = c->n - 1; i > 0; i--) {
            int j = (int)(dcommi_mix(99, (uint64_t)i) % (uint64_t)(i + 1)), r = rank[i];
            rank[i] = rank[j];
            rank[j] = r;
        }
    }
    for (int l = 0; l < c->levels; l++) {
        for (int i = 0; i < c->n; i++) {
            ids[l * c->n + rank[i]] = at[l][i];
        }
    }
    dcommi_groups *g = dcommi_groups_make(c->n, c->levels, kinds, ids);
    cr_assert(g != NULL);
    return g;
}

static bool is_v(dcomm_coll coll)
{
    return coll == DCOMM_COLL_REDUCE_SCATTERV || coll == DCOMM_COLL_ALLGATHERV;
}

static bool whole(dcomm_coll coll)
{
    return coll == DCOMM_COLL_ALLREDUCE || coll == DCOMM_COLL_BROADCAST;
}

static size_t counts[RANKS_MAX], displs[RANKS_MAX];

static dcommi_shape shape_of(const call *c, const dcommi_groups *groups)
{
    size_t at = 0;
    for (int r = 0; r < c->n; r++) {
        counts[r] =
            is_v(c->coll) ? (c->count * (size_t)(r + 2)) % 1999 * (size_t)(r % 5 != 3) : c->count;
        displs[r] = at;
        at += counts[r];
    }
    return (dcommi_shape){.coll = c->coll,
                          .nranks = c->n,
                          .root = c->root,
                          .dtype = DCOMM_F32,
                          .op = DCOMM_SUM,
                          .count = c->count,
                          .in_place = c->in_place,
                          .lanes = 1,
                          .chunk_bytes = c->chunk,
                          .groups = groups,
                          .counts = is_v(c->coll) ? counts : NULL,
                          .displs = is_v(c->coll) ? displs : NULL};
}

static void make_plans(const call *c, const dcommi_groups *groups, dcomm_plan **plans)
{
    const dcommi_algo *algo = dcommi_algo_find(c->coll, c->name);
    dcommi_shape s = shape_of(c, groups);
    cr_assert(algo != NULL, "%s", text_of(c));
    for (s.rank = 0; s.rank < c->n; s.rank++) {
        cr_assert_eq(dcommi_plan_make(&s, algo, &plans[s.rank]), DCOMM_OK, "%s: %s", text_of(c),
                     dcomm_last_error());
    }
}

/* Prove the plans, and count the bytes that cross each level: by the coarsest at which the two
 * ranks are apart. */
static void examine(const call *c, const dcommi_groups *groups, int64_t crossed[LEVELS + 1])
{
    dcomm_plan *plans[RANKS_MAX];
    make_plans(c, groups, plans);
    dcomm_check_spec spec = {.coll = c->coll,
                             .count = c->count,
                             .dtype = DCOMM_F32,
                             .root = c->root,
                             .in_place = c->in_place,
                             .counts = is_v(c->coll) ? counts : NULL};
    dcommi_check_trace trace = {0};
    dcomm_check_report report;
    dcomm_status status =
        dcommi_check_plans((const dcomm_plan *const *)plans, c->n, &spec, &report, &trace);
    cr_assert_eq(status, DCOMM_OK, "%s: %s", text_of(c), report.message);
    memset(crossed, 0, (LEVELS + 1) * sizeof *crossed);
    for (size_t i = 0; i < trace.n; i++) {
        const dcommi_check_event *e = &trace.event[i];
        if (e->peer >= 0 && e->kind != DCOMM_STEP_EXPOSE && e->kind != DCOMM_STEP_SIGNAL) {
            crossed[dcommi_groups_depth(groups, e->rank, e->peer)] += e->bytes;
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
    {DCOMM_COLL_REDUCE_SCATTER, "hier"},  {DCOMM_COLL_REDUCE_SCATTER, "hier_leader"},
    {DCOMM_COLL_ALLGATHER, "hier"},       {DCOMM_COLL_ALLGATHER, "hier_leader"},
    {DCOMM_COLL_REDUCE_SCATTERV, "hier"}, {DCOMM_COLL_REDUCE_SCATTERV, "hier_leader"},
    {DCOMM_COLL_ALLGATHERV, "hier"},      {DCOMM_COLL_ALLGATHERV, "hier_leader"},
    {DCOMM_COLL_ALLTOALL, "hier"},        {DCOMM_COLL_ALLTOALL, "hier_leader"},
};
enum { ALGORITHMS = sizeof algorithms / sizeof algorithms[0] };

/* ---- proofs ---- */

static void prove(int from, int to, int step, int every)
{
    static const int shapes[][LEVELS] = {{2, 2, 2}, {3, 2, 2}, {2, 4, 2}, {4, 2, 4},
                                         {1, 2, 3}, {2, 1, 3}, {5, 3, 2}, {8, 2, 2}};
    enum { SHAPES = sizeof shapes / sizeof shapes[0] };
    int64_t crossed[LEVELS + 1];
    int pick = 0;
    for (int n = from; n <= to; n += step) {
        for (int a = 0; a < ALGORITHMS; a++) {
            for (int k = 0; k < SHAPES * SIZES * NUMBERS * LEVELS; k++) {
                if ((k + 7 * a + 13 * n) % every != 0) {
                    continue;
                }
                const int *parts = shapes[k % SHAPES];
                bool big = whole(algorithms[a].coll);
                size_t counted[] = {1, 300, big ? 40000 : 1500, big ? 3001 : 7};
                pick++;
                call c = {.coll = algorithms[a].coll,
                          .name = algorithms[a].name,
                          .n = n,
                          .levels = 1 + k / (SHAPES * SIZES * NUMBERS),
                          .parts = {parts[0], parts[1], parts[2]},
                          .sizes = (sizes)(k / SHAPES % SIZES),
                          .numbers = (numbers)(k / (SHAPES * SIZES) % NUMBERS),
                          .count = counted[pick % 4],
                          .chunk = pick % 3 == 0   ? 10000
                                   : pick % 3 == 1 ? 0
                                                   : 1500,
                          .root = algorithms[a].coll == DCOMM_COLL_BROADCAST ? pick % n : 0,
                          .in_place = pick % 5 < 2};
                dcommi_groups *groups = groups_of(&c);
                examine(&c, groups, crossed);
                dcommi_groups_free(&groups);
            }
        }
    }
}

Test(levels, proved_up_to_12_ranks, .timeout = 240)
{
    prove(1, 12, 1, 11);
}

Test(levels, proved_up_to_32_ranks, .timeout = 240)
{
    prove(13, 32, DCOMM_TEST_RANK_STEP, 31);
}

Test(levels, proved_up_to_64_ranks, .timeout = 240)
{
    prove(36, 64, 4 * DCOMM_TEST_RANK_STEP, 71);
}
