/* check.h - the plan checker: executes all ranks' plans together on symbolic contributions.
 *
 * Messages match by (source, destination, tag), so matching does not depend on timing. One
 * execution that goes as far as it can thus decides whether the plans deadlock. Vector clocks
 * prove order, so the checker finds a race even if this execution survives it. To order a WAIT,
 * the checker must know which signals may come early. So it repeats the execution, each time with
 * the orders that the pass before has proved, until none is missing or none is added.
 *
 * Run-time lengths are tried at their maximum, at 0, at 1 and at random. Words read from the
 * caller's data count as run-time lengths. A later stage is checked if the words that make it are
 * known (received lengths, constants). If they are data, the checker stops before that stage and
 * does not check results. */
#ifndef DCOMMI_CHECK_H
#define DCOMMI_CHECK_H

#include "stage.h"

/* Return true if lengths depend on the data, so that the checker must try several. */
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

/* Execute all plans once. */
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

/* Repeat passes until every order is proved, or until a pass proves no more. */
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
        /* The first pass has no order from counters, so its depth of messages is wrong. */
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

/* Do as dcomm_plan_check. Record events if `trace` is not NULL; the caller frees trace->event. */
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
        return dcommi_fail(DCOMM_ERR_INVALID,
                           "dcomm_plan_check: %s; nranks is %d and may be 1 to %d",
                           plans == NULL  ? "plans is NULL"
                           : spec == NULL ? "spec is NULL"
                                          : "nranks is out of range",
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
        c->trace = NULL; /* the trace covers the longest lengths, like the report */
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
