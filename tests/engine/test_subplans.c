/* test_subplans.c - plans that call plans, stages that make the next plan from received data, and
 * unchecked plans: each must be refused by name. */
#define _GNU_SOURCE
#include "conformance.h"

/* ---- CALL: sub-plans of groups, nested, in a loop ---- */

#define ROUNDS 3
#define GROUPED 512 /* bytes of a round */

typedef struct grouped {
    dcomm_plan *inner[MAX], *middle[MAX], *outer[MAX];
} grouped;

static dcomm_plan *algorithm(const char *name, int r, int n, int64_t bytes)
{
    dcomm_check_spec spec = {
        .coll = DCOMM_COLL_ALLREDUCE, .count = (size_t)bytes / 4, .dtype = DCOMM_F32};
    dcomm_plan *plan = NULL;
    RANKS_OK(dcomm_plan_create(&spec, DCOMM_SUM, r, n, &(dcomm_coll_opts){.algo = name}, &plan));
    return plan;
}

/* Even and odd ranks sum apart, twice: once into OUT, once into its second half. Then all ranks
 * sum the result by a ring, whose counters and slots lie behind those of this plan. */
static void make_grouped(grouped *g, int r, int n)
{
    int members = (n - r % 2 + 1) / 2;
    int64_t group[MAX], all[MAX];
    dcomm_builder *b = malloc(sizeof *b);
    PROCS_TRUE(b != NULL);
    for (int i = 0; i < n; i++) {
        all[i] = i;
        group[i] = 2 * i + r % 2;
    }
    g->inner[r] = algorithm("recursive_doubling", r / 2, members, GROUPED);
    /* The group's `middle` plan calls `inner` with the identity as its rank table, in a loop over
     * rounds. */
    dcommi_build_begin(b, "middle", r / 2, members, DCOMM_F32, DCOMM_SUM);
    b->head.in_bytes = b->head.out_bytes = ROUNDS * GROUPED;
    const int64_t tags = 8; /* alike on all ranks, whose groups differ in size */
    PROCS_TRUE(g->inner[r]->ntags <= tags);
    PROCS_TRUE(g->inner[r]->ncounters == 0 && g->inner[r]->nslots == 0);
    dcomm_build_tags(b, ROUNDS * tags);
    int64_t at = dcomm_build_table(b, all, (size_t)members);
    int c = dcomm_build_loop(b, 0, num(ROUNDS));
    dcomm_build_call(
        b, 0, g->inner[r], at, dcomm_at(DCOMM_SPACE_IN, dcomm_linear(0, c, GROUPED), GROUPED),
        dcomm_at(DCOMM_SPACE_OUT, dcomm_linear(0, c, GROUPED), GROUPED), dcomm_linear(0, c, tags));
    dcomm_build_end(b, 0);
    RANKS_OK(dcommi_build_finish(b, &g->middle[r]));

    static dcomm_plan *rings[MAX];
    rings[r] = algorithm("ring", r, n, ROUNDS * GROUPED);
    dcommi_build_begin(b, "outer", r, n, DCOMM_F32, DCOMM_SUM);
    b->head.in_bytes = ROUNDS * GROUPED;
    b->head.out_bytes = 2 * ROUNDS * GROUPED;
    uint16_t ready = dcomm_build_counter(b);
    int64_t own = dcomm_build_tags(b, ROUNDS * tags), ring = dcomm_build_tags(b, rings[r]->ntags);
    b->head.ncounters += rings[r]->ncounters;
    b->head.nslots += 1 + rings[r]->nslots;
    at = dcomm_build_table(b, group, (size_t)members);
    int64_t everyone = dcomm_build_table(b, all, (size_t)n);
    dcomm_build_call(b, 0, g->middle[r], at, in(0, ROUNDS * GROUPED), out(0, ROUNDS * GROUPED),
                     num(own));
    dcomm_build_signal(b, 0, ready, num(r), num(1));
    dcomm_build_wait(b, 1, ready, num(1));
    dcomm_step *s = dcomm_build_call(b, 1, rings[r], everyone, out(0, ROUNDS * GROUPED),
                                     out(ROUNDS * GROUPED, ROUNDS * GROUPED), num(ring));
    s->slot = 1;
    s->word = 1;
    RANKS_OK(dcommi_build_finish(b, &g->outer[r]));
    free(b);
}

static void run_grouped(world *w)
{
    grouped g;
    static float mine[ROUNDS * GROUPED / 4], got[2 * ROUNDS * GROUPED / 4];
    dcomm_check_report report;
    const int half = ROUNDS * GROUPED / 4;
    for (int r = 0; r < w->n; r++) {
        make_grouped(&g, r, w->n);
    }
    dcomm_check_spec spec = {.coll = DCOMM_COLL_PLAN, .dtype = DCOMM_F32};
    dcomm_status status =
        dcomm_plan_check((const dcomm_plan *const *)g.outer, w->n, &spec, &report);
    PROCS_CHECK(status == DCOMM_OK, "grouped, %d ranks: %s", w->n, report.message);
    for (int again = 0; again < AGAIN; again++) {
        for (int i = 0; i < half; i++) {
            mine[i] = (float)(i % 50 + w->rank + again);
        }
        RANKS_OK(dcomm_plan_run(w->comm, g.outer[w->rank], mine, got, NULL, 17, NULL));
        for (int i = 0; i < half; i++) {
            float apart = 0, all = 0;
            for (int r = 0; r < w->n; r++) {
                apart += r % 2 == w->rank % 2 ? (float)(i % 50 + r + again) : 0;
            }
            for (int r = 0; r < w->n; r++) { /* each member adds the group's sum */
                all += (float)(i % 50 + r + again) * (float)((w->n - r % 2 + 1) / 2);
            }
            PROCS_CHECK(got[i] == apart && got[half + i] == all,
                        "rank %d of %d, element %d: %g %g, not %g %g", w->rank, w->n, i,
                        (double)got[i], (double)got[half + i], (double)apart, (double)all);
        }
    }
    drop(g.outer, w->n);
    drop(g.middle, w->n);
    drop(g.inner, w->n);
}

/* ---- CALL in a loop of plans that signal and expose ---- */

#define TIMES 5
#define PORTION 200000 /* bytes of one time: long enough for peers to read */

enum { OWN_RANGES, SAME_COUNTERS, SAME_SLOTS, TOO_FEW_COUNTERS, NEGATIVE_SLOT };

/* Sum TIMES portions, each by two_shot into OUT and by a ring from there into the second half of
 * OUT. `how` says whether each call has its own counters and slots. */
static void make_repeated(dcomm_plan **plan, dcomm_plan *sub[2], int r, int n, int how)
{
    dcomm_builder *b = malloc(sizeof *b);
    int64_t all[MAX];
    PROCS_TRUE(b != NULL);
    for (int i = 0; i < n; i++) {
        all[i] = i;
    }
    sub[0] = algorithm("two_shot", r, n, PORTION);
    sub[1] = algorithm("ring", r, n, PORTION);
    PROCS_TRUE(sub[0]->nslots > 0 && sub[0]->ncounters > 0 && sub[1]->ncounters > 0);
    dcommi_build_begin(b, "repeated", r, n, DCOMM_F32, DCOMM_SUM);
    b->head.in_bytes = TIMES * PORTION;
    b->head.out_bytes = 2 * TIMES * PORTION;
    b->head.ncounters = 3; /* those of the sub-plans lie behind these */
    b->head.nslots = 2;
    int64_t group = dcomm_build_table(b, all, (size_t)n);
    int d = dcomm_build_loop(b, 0, num(TIMES));
    for (int k = 0; k < 2; k++) {
        int64_t to = k == 0 ? 0 : TIMES * PORTION;
        int64_t counters = how == SAME_COUNTERS ? 0 : sub[k]->ncounters;
        int64_t slots = how == SAME_SLOTS ? 0 : sub[k]->nslots;
        dcomm_step *s =
            dcomm_build_call(b, 0, sub[k], group,
                             dcomm_at(k == 0 ? DCOMM_SPACE_IN : DCOMM_SPACE_OUT,
                                      dcomm_linear(0, d, PORTION), PORTION),
                             dcomm_at(DCOMM_SPACE_OUT, dcomm_linear(to, d, PORTION), PORTION),
                             dcomm_linear(b->head.ntags, d, sub[k]->ntags));
        s->slot = 2; /* the cursor adds up all parts of the base */
        s->value = dcomm_linear(b->head.ncounters - 2, d, counters);
        s->word = 1;
        s->peer = dcomm_linear(how == NEGATIVE_SLOT ? -2 : (int64_t)b->head.nslots - 1, d, slots);
        b->head.ntags += TIMES * sub[k]->ntags;
        b->head.ncounters += TIMES * sub[k]->ncounters - (how == TOO_FEW_COUNTERS);
        b->head.nslots += TIMES * sub[k]->nslots;
    }
    dcomm_build_end(b, 0);
    RANKS_OK(dcommi_build_finish(b, plan));
    free(b);
}

static void drop_repeated(dcomm_plan **plan, dcomm_plan *sub[][2], int n)
{
    for (int r = 0; r < n; r++) {
        dcommi_free(plan[r]);
        dcommi_free(sub[r][0]);
        dcommi_free(sub[r][1]);
    }
}

static void run_repeated(world *w)
{
    dcomm_plan *plan[MAX], *sub[MAX][2];
    const size_t all = TIMES * PORTION / 4;
    float *mine = malloc(4 * all), *got = malloc(8 * all);
    dcomm_check_report report;
    PROCS_TRUE(mine != NULL && got != NULL);
    for (int r = 0; r < w->n; r++) {
        make_repeated(&plan[r], sub[r], r, w->n, OWN_RANGES);
    }
    dcomm_check_spec spec = {.coll = DCOMM_COLL_PLAN, .dtype = DCOMM_F32};
    dcomm_status status = dcomm_plan_check((const dcomm_plan *const *)plan, w->n, &spec, &report);
    PROCS_CHECK(status == DCOMM_OK, "repeated, %d ranks: %s", w->n, report.message);
    for (int again = 0; again < AGAIN; again++) {
        for (size_t i = 0; i < all; i++) {
            mine[i] = (float)((int)(i % 61) + w->rank + again);
        }
        RANKS_OK(dcomm_plan_run(w->comm, plan[w->rank], mine, got, NULL, 20, NULL));
        for (size_t i = 0; i < all; i++) {
            int n = w->n;
            float sum = (float)(((int)(i % 61) + again) * n + n * (n - 1) / 2);
            PROCS_CHECK(got[i] == sum && got[all + i] == (float)n * sum,
                        "rank %d of %d, element %zu: %g %g, not %g", w->rank, n, i, (double)got[i],
                        (double)got[all + i], (double)sum);
        }
    }
    free(mine);
    free(got);
    drop_repeated(plan, sub, w->n);
}

Test(subplans, called_again_with_the_same_counters_or_slots, .timeout = 60)
{
    static const struct {
        int how;
        const char *says;
    } tries[] = {{OWN_RANGES, ""},
                 {SAME_COUNTERS, "nothing"},
                 {SAME_SLOTS, "exposed to rank"},
                 {TOO_FEW_COUNTERS, "counters"},
                 {NEGATIVE_SLOT, "slots -1"}};
    for (int n = 2; n <= 5; n++) {
        for (size_t k = 0; k < sizeof tries / sizeof tries[0]; k++) {
            dcomm_plan *plan[MAX], *sub[MAX][2];
            dcomm_check_report report;
            for (int r = 0; r < n; r++) {
                make_repeated(&plan[r], sub[r], r, n, tries[k].how);
            }
            dcomm_check_spec spec = {.coll = DCOMM_COLL_PLAN, .dtype = DCOMM_F32};
            dcomm_status status =
                dcomm_plan_check((const dcomm_plan *const *)plan, n, &spec, &report);
            cr_expect_eq(status, k == 0 ? DCOMM_OK : DCOMM_ERR_PLAN, "%d ranks, %d: %s", n,
                         tries[k].how, report.message);
            cr_expect(strstr(report.message, tries[k].says) != NULL, "%d ranks, %d: %s", n,
                      tries[k].how, report.message);
            drop_repeated(plan, sub, n);
        }
    }
}

/* ---- stages: counts, then as much data as they say, then a farewell ---- */

#define MOST 300 /* floats from one rank to another */

typedef struct staged {
    int rank, n;
    int made, released;
    const dcomm_plan *open[2]; /* the next plan is made before the last one is freed */
} staged;

static int sent(int from, int to, int again)
{
    return (from * 7 + to * 13 + again * 31) % MOST * (from != (to + again) % 3);
}

static void staged_release(void *user, const dcomm_plan *plan)
{
    staged *s = user;
    PROCS_TRUE(plan != NULL && (plan == s->open[0] || plan == s->open[1]));
    s->open[plan == s->open[1]] = NULL;
    s->released++;
    dcommi_free((void *)(uintptr_t)plan);
}

/* Word f*n + t holds, on every rank, the number of floats from rank f to rank t. */
static const dcomm_plan *staged_data(void *user, const uint64_t *words, uint32_t nwords,
                                     dcomm_status *status);

static const dcomm_plan *staged_end(void *user, const uint64_t *words, uint32_t nwords,
                                    dcomm_status *status)
{
    (void)user;
    (void)words;
    (void)nwords;
    *status = DCOMM_OK;
    return NULL;
}

static const dcomm_plan *staged_bye(void *user, const uint64_t *words, uint32_t nwords,
                                    dcomm_status *status)
{
    staged *s = user;
    dcomm_builder *b = malloc(sizeof *b);
    dcomm_plan *plan = NULL;
    (void)words;
    PROCS_TRUE(b != NULL && nwords == (uint32_t)(s->n * s->n));
    dcommi_build_begin(b, "bye", s->rank, s->n, DCOMM_F32, DCOMM_SUM);
    b->head.nwords = nwords;
    b->head.out_bytes = 8;
    uint16_t bye = dcomm_build_counter(b);
    dcomm_build_signal(b, 0, bye, num(DCOMM_ALL_PEERS), num(1));
    dcomm_build_wait(b, 0, bye, num(s->n - 1));
    dcomm_build_copy(b, 0, out(0, 8), word(1), 0); /* words live from stage to stage */
    b->head.next = staged_end;
    b->head.release = staged_release;
    b->head.next_user = s;
    *status = dcommi_build_finish(b, &plan);
    free(b);
    s->made++;
    PROCS_TRUE(s->open[0] == NULL || s->open[1] == NULL);
    s->open[s->open[0] != NULL] = plan;
    return plan;
}

static const dcomm_plan *staged_data(void *user, const uint64_t *words, uint32_t nwords,
                                     dcomm_status *status)
{
    staged *s = user;
    int n = s->n, r = s->rank;
    dcomm_builder *b = malloc(sizeof *b);
    dcomm_plan *plan = NULL;
    PROCS_TRUE(b != NULL && nwords == (uint32_t)(n * n));
    dcommi_build_begin(b, "data", r, n, DCOMM_F32, DCOMM_SUM);
    b->head.in_bytes = 4 * MOST * n;
    b->head.out_bytes = 8 + 4 * MOST * n;
    b->head.nwords = nwords;
    dcomm_build_tags(b, 1);
    int64_t at = 8; /* packed in rank order */
    for (int p = 0; p < n; p++) {
        int64_t come = 4 * (int64_t)words[p * n + r], go = 4 * (int64_t)words[r * n + p];
        come = come > 4 * MOST ? 4 * MOST : come; /* the checker passes its own words */
        go = go > 4 * MOST ? 4 * MOST : go;
        if (p == r) {
            dcomm_build_copy(b, 0, out(at, go), in(4 * MOST * p, go), 0);
        } else {
            dcomm_build_send(b, 0, in(4 * MOST * p, go), num(p), num(0), DCOMM_STEP_ASYNC);
            dcomm_build_recv(b, 1, out(at, come), num(p), num(0), DCOMM_STEP_ASYNC);
        }
        at += come;
    }
    b->head.next = staged_bye;
    b->head.release = staged_release;
    b->head.next_user = s;
    *status = dcommi_build_finish(b, &plan);
    free(b);
    s->made++;
    PROCS_TRUE(s->open[0] == NULL || s->open[1] == NULL);
    s->open[s->open[0] != NULL] = plan;
    return plan;
}

static dcomm_plan *staged_first(staged *s)
{
    int n = s->n, r = s->rank;
    dcomm_builder *b = malloc(sizeof *b);
    dcomm_plan *plan = NULL;
    PROCS_TRUE(b != NULL);
    dcommi_build_begin(b, "counts", r, n, DCOMM_F32, DCOMM_SUM);
    b->head.in_bytes = 4 * MOST * n + 8 * n; /* the counts lie behind the data */
    b->head.out_bytes = 8 + 4 * MOST * n;
    b->head.nwords = (uint32_t)(n * n);
    dcomm_build_tags(b, 1);
    dcomm_operand mine = in(4 * MOST * n, 8 * n);
    dcomm_build_copy(b, 0, dcomm_span(DCOMM_SPACE_WORDS, 8 * n * r, 8 * n), mine, 0);
    for (int p = 0; p < n; p++) {
        if (p != r) {
            dcomm_build_send(b, 0, mine, num(p), num(0), DCOMM_STEP_ASYNC);
            dcomm_build_recv(b, 0, dcomm_span(DCOMM_SPACE_WORDS, 8 * n * p, 8 * n), num(p), num(0),
                             DCOMM_STEP_ASYNC);
        }
    }
    b->head.next = staged_data;
    b->head.release = staged_release;
    b->head.next_user = s;
    RANKS_OK(dcommi_build_finish(b, &plan));
    free(b);
    return plan;
}

static void run_staged(world *w)
{
    int n = w->n, r = w->rank;
    staged all[MAX];
    dcomm_plan *plans[MAX];
    dcomm_check_report report;
    uint8_t *mine = malloc((size_t)(4 * MOST + 8) * MAX), *got = malloc(8 + 4 * MOST * MAX);
    PROCS_TRUE(mine != NULL && got != NULL);
    for (int p = 0; p < n; p++) {
        all[p] = (staged){.rank = p, .n = n};
        plans[p] = staged_first(&all[p]);
    }
    dcomm_check_spec spec = {.coll = DCOMM_COLL_PLAN, .dtype = DCOMM_F32};
    dcomm_status status = dcomm_plan_check((const dcomm_plan *const *)plans, n, &spec, &report);
    PROCS_CHECK(status == DCOMM_OK, "staged, %d ranks: %s", n, report.message);
    PROCS_TRUE(all[r].made == all[r].released);
    int made = all[r].made;
    for (int again = 0; again < AGAIN; again++) {
        for (int p = 0; p < n; p++) {
            uint64_t count = (uint64_t)sent(r, p, again);
            memcpy(mine + 4 * MOST * n + 8 * p, &count, 8);
            for (int i = 0; i < MOST; i++) {
                float x = (float)(i + 1000 * r + 100000 * p + again);
                memcpy(mine + 4 * (MOST * p + i), &x, 4);
            }
        }
        memset(got, 0, 8 + 4 * MOST * MAX);
        RANKS_OK(dcomm_plan_run(w->comm, plans[r], mine, got, NULL, 18, NULL));
        size_t at = 8;
        for (int p = 0; p < n; p++) {
            for (int i = 0; i < sent(p, r, again); i++, at += 4) {
                float x, want = (float)(i + 1000 * p + 100000 * r + again);
                memcpy(&x, got + at, 4);
                PROCS_CHECK(x == want, "rank %d of %d from %d, element %d: %g, not %g", r, n, p, i,
                            (double)x, (double)want);
            }
        }
        uint64_t second;
        memcpy(&second, got, 8);
        PROCS_TRUE(second == (uint64_t)(n > 1 ? sent(0, 1, again) : 0) || n == 1);
        PROCS_CHECK(all[r].made == made + 2 * (again + 1) && all[r].made == all[r].released,
                    "%d made, %d released", all[r].made, all[r].released);
    }
    free(mine);
    free(got);
    drop(plans, n);
}

/* ---- plans that were never checked ---- */

static int fault;

static void bad(dcomm_builder *b, int r, int n)
{
    b->head.in_bytes = b->head.out_bytes = 64;
    b->head.nwords = 1;
    b->head.ncounters = 1;
    b->head.nslots = 1;
    dcomm_build_tags(b, 1);
    if (r > 0) { /* the others wait for a message that never comes */
        dcomm_build_recv(b, 0, out(0, 8), num(0), num(0), 0);
        return;
    }
    dcomm_step *s;
    switch (fault) {
    case 0:
        dcomm_build_copy(b, 0, out(60, 8), in(0, 8), 0);
        break;
    case 1:
        dcomm_build_send(b, 0, in(INT64_MAX - 4, 8), num(1), num(0), 0);
        break;
    case 2:
        dcomm_build_send(b, 0, in(0, 8), num(0), num(0), 0);
        break;
    case 3:
        dcomm_build_send(b, 0, in(0, 8), num(n), num(0), 0);
        break;
    case 4:
        dcomm_build_recv(b, 0, out(0, 8), num(1), num(0), 0);
        b->lanes[0].steps[0].word = 1;
        break;
    case 5:
        dcomm_build_wait(b, 0, 1, num(1));
        break;
    case 6:
        dcomm_build_wait(b, 0, 0, num(-1));
        break;
    case 7:
        dcomm_build_expose(b, 0, in(0, 8), 1, num(DCOMM_ALL_PEERS));
        break;
    case 8:
        s = dcommi_build_step(b, 0, DCOMM_STEP_COMPUTE);
        s->dst = out(0, 8);
        break;
    default:
        s = dcommi_build_step(b, 0, DCOMM_STEP_ENCODE);
        s->dst = out(0, 8);
        dcommi_build_sources(b, s, &(dcomm_operand){.space = DCOMM_SPACE_IN}, 1);
        break;
    }
}

static int refuse(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    ranks_settle(rank, n, RANKS_LOCAL);
    dcomm_comm *comm = ranks_join(rank, n, s, NULL);
    dcomm_plan *plan = make(bad, "bad", rank, n);
    uint8_t data[64] = {0}, got[64];
    /* The call itself refuses faults that do not depend on the run; no other rank hears of
     * them. */
    bool by_call = fault == 4 || fault == 5 || fault >= 7;
    dcomm_status status = DCOMM_ERR_PLAN;
    if (rank == 0 || !by_call) {
        status = dcomm_plan_run(comm, plan, data, got, NULL, 19, NULL);
        PROCS_CHECK(
            strstr(dcomm_last_error(), by_call ? "lane 0 step 0" : "rank 0, lane 0, step 0"), "%s",
            dcomm_last_error());
    }
    PROCS_CHECK(status == DCOMM_ERR_PLAN, "fault %d, rank %d: %s: %s", fault, rank,
                dcomm_status_name(status), dcomm_last_error());
    PROCS_CHECK(dcomm_comm_status(comm) == (by_call ? DCOMM_OK : DCOMM_ERR_PLAN), "fault %d: %s",
                fault, dcomm_comm_error(comm));
    plan->nranks++;
    PROCS_TRUE(dcomm_plan_run(comm, plan, data, got, NULL, 19, NULL) == DCOMM_ERR_INVALID);
    PROCS_TRUE(dcomm_plan_run(comm, NULL, data, got, NULL, 19, NULL) == DCOMM_ERR_INVALID);
    dcommi_free(plan);
    return ranks_leave(&comm);
}

Test(subplans, refuses, .timeout = 60)
{
    int ended[PROCS_MAX];
    for (fault = 0; fault < 10; fault++) {
        cr_assert_eq(procs_run(2, 20, refuse, NULL, ended), 0, "fault %d", fault);
    }
}

/* ---- all of them, on each kind of place ---- */

static int conform(int rank, int n, procs_shared *s, void *arg)
{
    ranks_settle(rank, n, *(ranks_place *)arg);
    world w = {.rank = rank, .n = n, .comm = ranks_join(rank, n, s, NULL)};
    run_grouped(&w);
    run_repeated(&w);
    run_staged(&w);
    return ranks_leave(&w.comm);
}

PLACES(subplans, conform)
