/* test_levels.c - hierarchical algorithms over two, three and four levels: proved for equal and
 * unequal groups in any order of ranks, the bytes across each level counted, and levels observed
 * to work at the same time. test_levels_run.c runs them. */
#define _GNU_SOURCE
#define DCOMM_IMPLEMENTATION
#include "levels.h"
#include "full.h"

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
                          .memory = c->in_place ? DCOMMI_MEMORY_ANY : DCOMMI_MEMORY_REGISTERED,
                          .groups = groups,
                          .counts = is_v(c->coll) ? counts : NULL,
                          .displs = is_v(c->coll) ? displs : NULL};
}

static void drop(dcomm_plan **plans, int n)
{
    for (int r = 0; r < n; r++) {
        dcommi_free(plans[r]);
    }
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

/* Prove the plans, and count the bytes that cross each level. A message counts at the coarsest
 * level that separates its two ranks. */
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
    prove(1, 12, 1, DCOMM_TEST_RANK_STEP > 1 ? 71 : test_full() ? 11 : 37);
}

Test(levels, proved_up_to_32_ranks, .timeout = 240)
{
    prove(13, 32, (test_full() ? 1 : 9) * DCOMM_TEST_RANK_STEP,
          test_full() && DCOMM_TEST_RANK_STEP == 1 ? 31 : 71);
}

Test(levels, proved_up_to_64_ranks, .timeout = 240)
{
    prove(36, 64, (test_full() ? 7 : 14) * DCOMM_TEST_RANK_STEP, test_full() ? 71 : 143);
}

/* ---- bytes ---- */

/* Return the bytes that docs give for a group of `size` ranks in n parts, the leading part with
 * `first` ranks. S: bytes of the buffer or of all blocks; size/N of them belong to the group. */
static int64_t formula(const call *c, int size, int n, int first, bool top, bool home)
{
    int64_t all = 4 * (int64_t)c->count * (whole(c->coll) ? 1 : c->n), own = all / c->n * size;
    bool leader = strcmp(c->name, "hier_leader") == 0;
    int64_t inward = all / c->n * (size - first); /* the group's blocks from or to its leader */
    switch (c->coll) {
    case DCOMM_COLL_ALLREDUCE:
        return 2 * (n - 1) * all;
    case DCOMM_COLL_BROADCAST:
        return (n - 1) * all + (!leader && home && !top ? all / n * (n - 1) : 0);
    case DCOMM_COLL_ALLTOALL: /* a rank has N blocks; leaders aside, groups are cut equally */
        if (leader && !top) {
            return 2 * inward * c->n;
        }
        return own * c->n / n * (n - 1);
    default:
        return (n - 1) * all + (leader && !top ? inward : 0);
    }
}

/* Add the bytes that a group and its subgroups should send, at the level that separates their
 * parts. */
static void expect(const call *c, const dcommi_groups *g, int begin, int end, int level,
                   int64_t wanted[LEVELS + 1])
{
    int starts[RANKS_MAX + 1], n = 0, at = level;
    bool home = false;
    for (; at < g->nlevels && n <= 1; at++) {
        n = 0;
        for (int i = begin; i < end; i++) {
            if (i == begin ||
                dcommi_group_of(g, at, g->order[i]) != dcommi_group_of(g, at, g->order[i - 1])) {
                starts[n++] = i;
            }
        }
    }
    if (n <= 1 || n == end - begin) { /* the parts are single ranks */
        n = end - begin;
        for (int i = 0; i < n; i++) {
            starts[i] = begin + i;
        }
    }
    starts[n] = end;
    for (int i = begin; i < end; i++) {
        home = home || g->order[i] == c->root;
    }
    if (n > 1) {
        int depth = dcommi_groups_depth(g, g->order[begin], g->order[starts[1]]);
        wanted[depth] += formula(c, end - begin, n, starts[1] - begin, level == 0, home);
        for (int i = 0; i < n; i++) {
            expect(c, g, starts[i], starts[i + 1], depth + 1, wanted);
        }
    }
}

/* Groups are equal, so all forms divide them. The bytes must match the documentation exactly. */
Test(levels, each_level_carries_what_is_written, .timeout = 60)
{
    static const struct {
        int n, levels, parts[LEVELS];
    } trees[] = {{8, 1, {2}},     {8, 2, {2, 2}},     {16, 2, {4, 2}},    {16, 3, {2, 2, 2}},
                 {12, 2, {3, 2}}, {24, 3, {3, 2, 2}}, {32, 3, {4, 2, 2}}, {16, 3, {1, 2, 4}}};
    for (size_t i = 0; i < sizeof trees / sizeof trees[0]; i++) {
        for (int a = 0; a < ALGORITHMS; a++) {
            for (int k = 0; k < NUMBERS && !is_v(algorithms[a].coll); k++) {
                int64_t crossed[LEVELS + 1], wanted[LEVELS + 1] = {0};
                if (!test_full() && ((int)i + a) % NUMBERS != k) {
                    continue;
                }
                bool big = whole(algorithms[a].coll);
                call c = {.coll = algorithms[a].coll,
                          .name = algorithms[a].name,
                          .n = trees[i].n,
                          .levels = trees[i].levels,
                          .parts = {trees[i].parts[0], trees[i].parts[1], trees[i].parts[2]},
                          .numbers = (numbers)k,
                          .root = algorithms[a].coll == DCOMM_COLL_BROADCAST ? 3 : 0,
                          .count = big ? 3 << 18 : 24000};
                dcommi_groups *groups = groups_of(&c);
                expect(&c, groups, 0, c.n, 0, wanted);
                examine(&c, groups, crossed);
                for (int l = 0; l <= groups->nlevels; l++) {
                    cr_expect_eq(crossed[l], wanted[l],
                                 "%s: %" PRId64 " bytes cross level %d, not %" PRId64, text_of(&c),
                                 crossed[l], l, wanted[l]);
                }
                dcommi_groups_free(&groups);
            }
        }
    }
}

/* ---- levels at work at once ---- */

/* Return the coarsest level that separates the ranks of a call; a larger number is a finer
 * level. */
static int level_of(const dcommi_groups *g, const dcommi_sim_actor *a, const dcomm_step *step)
{
    int level = g->nlevels;
    const int64_t *rank = a->plan->table + step->group;
    for (int i = 1; i < a->plan->subs[step->sub]->nranks; i++) {
        int depth = dcommi_groups_depth(g, (int)rank[0], (int)rank[i]);
        level = depth < level ? depth : level;
    }
    return level;
}

/* Return the chunk of a lane that is in a call, if the plan is a pipeline of two flows; else
 * -1. */
static int64_t chunk_of(const dcommi_sim_actor *a, uint32_t lane)
{
    const dcommi_sim_lane *l = &a->root->lanes[lane];
    return l->cursor.at.depth > 0 ? lane % 2 + 2 * l->cursor.at.index[0] : -1;
}

static dcomm_status plan_get(void *user, int rank, const dcomm_plan **plan_p)
{
    *plan_p = ((dcomm_plan **)user)[rank];
    return DCOMM_OK;
}

static void plan_put(void *user, const dcomm_plan *plan)
{
    (void)user;
    (void)plan;
}

/* Return true if a rank works at two levels at once. In rounds of blocks the lanes with messages
 * between hosts wait at a fence; otherwise both lanes are in calls. */
static bool overlap_of(const dcommi_groups *g, const dcommi_sim_actor *a)
{
    for (uint32_t i = 0; i < a->plan->nlanes; i++) {
        const dcommi_sim_lane *far = &a->root->lanes[i];
        bool calls = far->state == DCOMMI_SIM_CALLING;
        if (calls ? level_of(g, a, &far->cursor.steps[far->cursor.at.pc - 1]) > 0
                  : far->state != DCOMMI_SIM_FENCED || far->pending == 0) {
            continue;
        }
        for (uint32_t k = 0; k < a->plan->nlanes; k++) {
            const dcommi_sim_lane *near = &a->root->lanes[k];
            if (near->state == DCOMMI_SIM_CALLING &&
                level_of(g, a, &near->cursor.steps[near->cursor.at.pc - 1]) > 0 &&
                (!calls || chunk_of(a, k) != chunk_of(a, i))) {
                return true;
            }
        }
    }
    return false;
}

/* Run plans on the model's network. Count how often a rank has one chunk crossing level 0 and
 * another in a finer level at the same time. */
static int64_t overlaps(const call *c)
{
    dcomm_plan *plans[RANKS_MAX];
    dcommi_groups *groups = groups_of(c);
    dcommi_terrain t;
    dcomm_tuning tuning;
    int64_t seen = 0;
    make_plans(c, groups, plans);
    cr_assert_eq(dcomm_tuning_uniform(1, 0.1, 0.02, &tuning), DCOMM_OK);
    cr_assert_eq(dcommi_terrain_make(groups, c->n, &tuning, DCOMMI_MEMORY_ANY, &t), DCOMM_OK);
    dcommi_plans source = {.get = plan_get, .put = plan_put, .user = plans};
    dcommi_sim s = {.terrain = &t, .period = c->n, .limit = INT64_MAX >> 2, .budget = 1 << 28};
    cr_assert_eq(dcommi_sim_open(&s, &source), DCOMM_OK, "%s", dcomm_last_error());
    while (s.nheap > 0 && s.status == DCOMM_OK) {
        dcommi_sim_event e = dcommi_sim_pop(&s);
        s.now = e.time;
        if (e.kind == DCOMMI_SIM_LANE) {
            dcommi_sim_lane_run(&s, e.at.lane);
        } else if (e.kind == DCOMMI_SIM_SIGNAL) {
            dcommi_sim_signal(&s, &s.actor[e.at.signal.actor], e.at.signal.counter, e.value);
        } else {
            dcommi_sim_happen(&s, e.kind, e.at.msg);
        }
        for (int r = 0; r < c->n && s.left == c->n; r++) {
            seen += overlap_of(groups, &s.actor[r]);
        }
    }
    cr_assert(s.status == DCOMM_OK && s.left == 0, "%s: %d left, %s", text_of(c), (int)s.left,
              dcomm_last_error());
    dcommi_sim_close(&s, &source);
    dcommi_groups_free(&groups);
    drop(plans, c->n);
    return seen;
}

Test(levels, work_at_once, .timeout = 60)
{
    for (int a = 0; a < ALGORITHMS; a++) {
        for (int levels = 1; levels <= LEVELS && !is_v(algorithms[a].coll); levels++) {
            call c = {.coll = algorithms[a].coll,
                      .name = algorithms[a].name,
                      .n = 16,
                      .levels = levels,
                      .parts = {2, 2, 2},
                      .count = whole(algorithms[a].coll) ? 1 << 21 : 1 << 17,
                      .chunk = 512 << 10};
            cr_expect_gt(overlaps(&c), 0, "%s", text_of(&c));
        }
    }
}
