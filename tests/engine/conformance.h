/* conformance.h - hand-written plans for the engine's tests: make them, check them, run them on
 * several ranks. */
#ifndef CONFORMANCE_H
#define CONFORMANCE_H

#include "ranks.h"

#include "dcomm/impl/plan/build.h"

#include <criterion/criterion.h>

#define MAX 8
#define AGAIN 5 /* runs of each plan: a run is reused */

typedef struct world {
    int rank, n;
    dcomm_comm *comm;
    void *state;
} world;

typedef void (*maker)(dcomm_builder *b, int r, int n);

static dcomm_plan *make(maker fn, const char *name, int r, int n)
{
    dcomm_builder *b = malloc(sizeof *b);
    dcomm_plan *plan = NULL;
    PROCS_TRUE(b != NULL);
    dcommi_build_begin(b, name, r, n, DCOMM_F32, DCOMM_SUM);
    fn(b, r, n);
    PROCS_CHECK(dcommi_build_finish(b, &plan) == DCOMM_OK, "%s", dcommi_message);
    free(b);
    return plan;
}

/* Make and check every rank's plan. */
static void make_all(maker fn, const char *name, const world *w, dcomm_plan **plans)
{
    dcomm_check_report report;
    for (int r = 0; r < w->n; r++) {
        plans[r] = make(fn, name, r, w->n);
    }
    dcomm_check_spec spec = {.coll = DCOMM_COLL_PLAN, .dtype = DCOMM_F32};
    if (w->rank == 0) {
        dcomm_status status =
            dcomm_plan_check((const dcomm_plan *const *)plans, w->n, &spec, &report);
        PROCS_CHECK(status == DCOMM_OK, "%s, %d ranks: %s", name, w->n, report.message);
    }
}

static void drop(dcomm_plan **plans, int n)
{
    for (int r = 0; r < n; r++) {
        dcommi_free(plans[r]);
    }
}

static dcomm_operand in(int64_t at, int64_t len)
{
    return dcomm_span(DCOMM_SPACE_IN, at, len);
}

static dcomm_operand out(int64_t at, int64_t len)
{
    return dcomm_span(DCOMM_SPACE_OUT, at, len);
}

static dcomm_operand scratch(int64_t at, int64_t len)
{
    return dcomm_span(DCOMM_SPACE_SCRATCH, at, len);
}

static dcomm_operand word(int64_t index)
{
    return dcomm_span(DCOMM_SPACE_WORDS, 8 * index, 8);
}

static dcomm_expr num(int64_t x)
{
    return dcomm_const(x);
}

/* Return `o` with the length that word `index` holds. */
static dcomm_operand as_long(dcomm_operand o, int64_t index)
{
    o.length = dcommi_word(index);
    return o;
}

static dcomm_step *step_of(dcomm_builder *b, int lane, dcomm_step_kind kind, dcomm_operand dst,
                           const dcomm_operand *src, size_t n)
{
    dcomm_step *s = dcommi_build_step(b, lane, kind);
    PROCS_TRUE(s != NULL);
    s->dst = dst;
    dcommi_build_sources(b, s, src, n);
    return s;
}

/* Run `fn` in `n` processes at `place`. */
static void on(int n, ranks_place place, procs_fn fn)
{
    int ended[PROCS_MAX];
    cr_assert_eq(procs_run(n, 50, fn, &place, ended), 0, "%d ranks, %s", n,
                 ranks_place_name(place));
}

#define PLACE(suite, name, place, fn)  \
    Test(suite, name, .timeout = 60)   \
    {                                  \
        for (int n = 2; n <= 5; n++) { \
            on(n, place, fn);          \
        }                              \
    }
#define PLACES(suite, fn)                       \
    PLACE(suite, one_host, RANKS_LOCAL, fn)     \
    PLACE(suite, by_message, RANKS_MESSAGE, fn) \
    PLACE(suite, hosts, RANKS_HOSTS, fn)        \
    PLACE(suite, pairs, RANKS_PAIRS, fn)

#endif
