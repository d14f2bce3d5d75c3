/* check.h - the plan checker: executes all ranks' plans together on symbolic contributions.
 *
 * Messages are matched by (source, destination, tag), so what meets what does not depend on timing,
 * and one execution that goes as far as it can decides whether there is a deadlock. Order is proved
 * by vector clocks: a race that this execution happens to survive is found all the same. Waiting
 * on counters needs to know which signals may come early, so executions are repeated, each with the
 * orders that the one before has proved, until nothing is missing or nothing is added.
 *
 * Lengths that are known at run time only are tried at their maximum, at 0, 1 and at random; words
 * that come out of the caller's data count as such. A stage after the first is checked where the
 * words that it is made from are known (lengths received, constants); where they are data, only the
 * stages before it are, without their results. */
#ifndef DCOMMI_CHECK_H
#define DCOMMI_CHECK_H

#include "stage.h"

/* Do lengths depend on the data? Then several are tried. */
static bool dcommi_check_plan_varies(const dcomm_plan *p)
{
    for (uint32_t i = 0; i < p->noperands; i++) {
        if (p->operands[i].length.kind == DCOMM_EXPR_WORD) {
            return true;
        }
    }
    for (uint32_t i = 0; i < p->nsteps; i++) {
        const dcomm_step *s = &p->steps[i];
        if (s->kind == DCOMM_STEP_ENCODE || s->kind == DCOMM_STEP_RECODE ||
            s->dst.length.kind == DCOMM_EXPR_WORD || s->value.kind == DCOMM_EXPR_WORD) {
            return true;
        }
    }
    for (uint32_t i = 0; i < p->nsubs; i++) {
        if (p->subs[i] != NULL && dcommi_check_plan_varies(p->subs[i])) {
            return true;
        }
    }
    return p->next != NULL;
}

static void dcommi_check_pass_free(dcommi_check *c)
{
    for (dcommi_check_mem *m = c->mems; m != NULL; m = m->next) {
        dcommi_free(m->cell);
    }
    for (size_t i = 0; i < c->nencodings; i++) {
        dcommi_free(c->encoding[i].runs.run);
        memset(&c->encoding[i], 0, sizeof c->encoding[i]);
    }
    c->mems = NULL;
    c->nencodings = 0;
    c->pool.n = 0;
    c->pool.free = 0;
}

/* Execute everything once. */
static dcomm_status dcommi_check_pass(dcommi_check *c)
{
    dcommi_check_made *made = dcommi_calloc((size_t)c->n * DCOMMI_CHECK_STAGES, sizeof *made);
    size_t nmade = 0;
    if (made == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    c->status = DCOMM_OK;
    c->budget = DCOMMI_CHECK_BUDGET;
    c->finding[0] = '\0';
    c->stage = 0;
    c->waited = false;
    c->edges = 0;
    c->messages = c->signals = c->steps = 0;
    c->spec_holds = c->spec->coll < DCOMM_COLL_SEND && (c->scenario != DCOMMI_CHECK_SHORTEST);
    memset(c->log, 0, sizeof c->log);
    if (c->trace != NULL) {
        c->trace->n = 0;
    }
    for (int i = 0; i < c->n; i++) {
        memset(&c->rank[i], 0, sizeof c->rank[i]);
        c->rank[i].plan = c->plans[i];
        c->rank[i].heard = (uint64_t)1 << i;
    }
    dcomm_status status = dcommi_check_stages(c, made, &nmade);
    while (nmade-- > 0) {
        const dcomm_plan *maker = made[nmade].maker;
        if (maker->release != NULL) {
            maker->release(maker->next_user, made[nmade].plan);
        }
    }
    dcommi_free(made);
    c->total_bytes = 0;
    for (int i = 0; i < c->n; i++) {
        c->total_bytes += c->rank[i].bytes;
    }
    dcommi_check_pass_free(c);
    return status;
}

/* Passes until the order of everything is proved, or no further order is. */
static dcomm_status dcommi_check_scenario(dcommi_check *c)
{
    dcomm_status status = DCOMM_OK;
    uint64_t edges = 0;
    c->has_old_log = false;
    for (int pass = 0; pass < 16; pass++) {
        status = dcommi_check_pass(c);
        dcommi_check_blocks_free(&c->log_blocks);
        c->log_blocks = c->blocks;
        c->blocks = NULL;
        memcpy(c->old_log, c->log, sizeof c->log);
        bool settled = !c->waited || (c->has_old_log && c->edges == edges);
        edges = c->edges;
        /* The first pass has no order from counters at all, so its depth of messages is wrong. */
        bool counted = !c->waited || c->has_old_log;
        c->has_old_log = true;
        if (status < 0 || (counted && c->finding[0] == '\0') || settled) {
            break;
        }
    }
    dcommi_check_blocks_free(&c->log_blocks);
    if (status == DCOMM_OK && c->finding[0] != '\0') {
        status = dcommi_fail(DCOMM_ERR_PLAN, "%s", c->finding);
    }
    return status;
}

static void dcommi_check_fill_report(const dcommi_check *c, dcomm_check_report *report)
{
    report->messages = c->messages;
    report->signals = c->signals;
    report->total_bytes = c->total_bytes;
    report->steps = c->steps;
    report->max_rank_bytes = 0;
    for (int i = 0; i < c->n; i++) {
        report->max_rank_bytes = dcommi_max64(report->max_rank_bytes, c->rank[i].bytes);
    }
}

/* dcomm_plan_check, and what happened, if trace is not NULL (free trace->event). */
static dcomm_status dcommi_check_plans(const dcomm_plan *const *plans, int nranks,
                                       const dcomm_check_spec *spec, dcomm_check_report *report,
                                       dcommi_check_trace *trace)
{
    static const int order[DCOMMI_CHECK_SCENARIOS] = {DCOMMI_CHECK_LONGEST, DCOMMI_CHECK_SHORTEST,
                                                      DCOMMI_CHECK_ONE, DCOMMI_CHECK_RANDOM,
                                                      DCOMMI_CHECK_RANDOM_TOO};
    if (report != NULL) {
        memset(report, 0, sizeof *report);
    }
    if (plans == NULL || spec == NULL || nranks < 1 || nranks > DCOMMI_CHECK_RANKS) {
        return dcommi_fail(DCOMM_ERR_INVALID, "dcomm_plan_check: %s, for %d ranks of at most %d",
                           plans == NULL  ? "plans is NULL"
                           : spec == NULL ? "spec is NULL"
                                          : "bad nranks",
                           nranks, DCOMMI_CHECK_RANKS);
    }
    DCOMMI_TRY(dcommi_check_spec_valid(spec, nranks));
    dcomm_status status = DCOMM_OK;
    dcommi_check *c = dcommi_alloc(sizeof *c);
    if (c == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    c->plans = plans;
    c->n = nranks;
    c->all = nranks == 64 ? ~(uint64_t)0 : ((uint64_t)1 << nranks) - 1;
    c->spec = spec;
    c->trace = trace;
    c->element = (int64_t)dcomm_dtype_size(spec->dtype);
    c->reduces = spec->coll == DCOMM_COLL_ALLREDUCE || spec->coll == DCOMM_COLL_REDUCE ||
                 spec->coll == DCOMM_COLL_REDUCE_SCATTER ||
                 spec->coll == DCOMM_COLL_REDUCE_SCATTERV;
    bool varies = false;
    uint32_t budget = DCOMMI_CHECK_SUBPLANS;
    for (int i = 0; i < nranks && status == DCOMM_OK; i++) {
        char where[24];
        snprintf(where, sizeof where, "rank %d", i);
        status = plans[i] == NULL ? dcommi_fail(DCOMM_ERR_INVALID, "plans[%d] is NULL", i)
                                  : dcommi_check_plan_valid(plans[i], where, 0, &budget);
        varies = varies || (status == DCOMM_OK && dcommi_check_plan_varies(plans[i]));
    }
    c->averages =
        status == DCOMM_OK && c->reduces && nranks > 1 && plans[0]->op == (unsigned)DCOMM_AVG;
    for (int i = 0; i < (varies ? DCOMMI_CHECK_SCENARIOS : 1) && status == DCOMM_OK; i++) {
        c->scenario = order[i];
        status = dcommi_check_scenario(c);
        if (i == 0 && report != NULL && status == DCOMM_OK) {
            dcommi_check_fill_report(c, report);
        }
        c->trace = NULL; /* it is of the longest lengths, like the report */
    }
    if (status < 0 && report != NULL) {
        snprintf(report->message, sizeof report->message, "%s", dcommi_message);
    }
    dcommi_free(c->pool.reader);
    dcommi_free(c->arrived.run);
    dcommi_free(c->given.run);
    dcommi_free(c->folded.run);
    dcommi_free(c->merged.run);
    dcommi_free(c->encoding);
    dcommi_free(c->free_vc);
    dcommi_free(c->ready);
    dcommi_free(c->message);
    dcommi_free(c);
    return status;
}

dcomm_status dcomm_plan_check(const dcomm_plan *const *plans, int nranks,
                              const dcomm_check_spec *spec, dcomm_check_report *report)
{
    return dcommi_check_plans(plans, nranks, spec, report, NULL);
}

#endif
