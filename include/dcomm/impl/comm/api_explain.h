/* api_explain.h - the public read-out of the choice: every algorithm with its price, and every path
 * that bytes of device memory may take. */
#ifndef DCOMMI_API_EXPLAIN_H
#define DCOMMI_API_EXPLAIN_H

#include "api_paths.h"

/* Fill in at most `max` rows for a shape, and return how many algorithms there are. `chosen` runs;
 * `forced`: the call or the communicator names it. */
static int dcommi_explain_rows(const dcommi_chooser *c, const dcommi_shape *s,
                               const dcommi_algo *chosen, bool forced, dcomm_alternative *rows,
                               int max)
{
    dcommi_price price, best = {.ps = 0};
    const dcommi_algo *algo;
    int n = 0;
    bool known = max > 0 && dcommi_choice_price(c, s, chosen, DCOMMI_PRICE_LIMIT,
                                                DCOMMI_CHOICE_BUDGET, &best) >= 0;
    for (; (algo = dcommi_algo_number(s->coding != NULL, s->coll, n)) != NULL; n++) {
        if (n >= max) {
            continue;
        }
        dcomm_alternative *row = &rows[n];
        memset(row, 0, sizeof *row);
        row->algo = algo->name;
        row->seconds = -1;
        row->chosen = algo == chosen;
        row->assumed = dcommi_device_assumed(&c->tuning, s->memory);
        if (algo->note != NULL) {
            algo->note(s, row->note, sizeof row->note);
        }
        dcomm_status status =
            dcommi_choice_price(c, s, algo, DCOMMI_PRICE_LIMIT, DCOMMI_CHOICE_BUDGET, &price);
        if (status < 0) {
            snprintf(row->why, sizeof row->why, "%.190s", dcommi_message);
            continue;
        }
        row->seconds = 1e-12 * (double)price.ps;
        if (row->chosen) {
            continue;
        }
        if (forced) {
            snprintf(row->why, sizeof row->why, "%s is asked for", chosen->name);
        } else if (known && best.ps > 0) {
            bool close = price.ps <= dcommi_choice_close(best.ps);
            dcommi_snprintf(row->why, sizeof row->why, "%.2f times the price of %s%s",
                            (double)price.ps / (double)best.ps, chosen->name,
                            close ? ", too close to tell" : "");
        } else {
            snprintf(row->why, sizeof row->why, "nothing to choose between");
        }
    }
    return n;
}

/* Explain the choice for the shape of a call. `name` is the algorithm that the call or, if `soft`,
 * the communicator asks for; NULL: none. */
static dcomm_status dcommi_explain_shape(dcommi_chooser *c, const dcommi_shape *s, const char *name,
                                         bool soft, dcomm_explanation *e)
{
    const dcommi_algo *chosen = NULL;
    DCOMMI_TRY(dcommi_algo_pick(s, name, soft, c, &chosen));
    bool forced = name != NULL && strcmp(name, chosen->name) == 0;
    e->algo = chosen->name;
    e->nalternatives =
        dcommi_explain_rows(c, s, chosen, forced, e->alternatives, e->max_alternatives);
    e->npaths = dcommi_explain_paths(c, s, name, soft, e->paths, e->max_paths);
    return DCOMM_OK;
}

static dcomm_status dcommi_explain_comm(dcomm_comm *comm, dcomm_explanation *e)
{
    const dcomm_coll_opts *opts = e->opts != NULL ? e->opts : &dcommi_default_opts;
    dcommi_shape s;
    dcommi_coding coding;
    dcomm_coll_opts decided;
    DCOMMI_TRY(dcommi_auto_peek(comm, e->coll, e->count, e->dtype, e->op, &opts, &decided));
    DCOMMI_TRY(dcommi_shape_begin(comm, e->coll, e->count, e->dtype, e->op, 0, opts, &s));
    DCOMMI_TRY(dcommi_coded_begin(&s, opts, &coding));
    const bool soft = opts->algo == NULL;
    dcommi_comm_lock(comm);
    dcomm_status status =
        dcommi_explain_shape(comm->chooser, &s, soft ? comm->algo : opts->algo, soft, e);
    dcommi_comm_unlock(comm);
    return status;
}

/* Explain the choice for e->nranks ranks in `groups`, without a communicator. */
static dcomm_status dcommi_explain_groups(const dcommi_groups *groups, dcomm_explanation *e)
{
    const dcomm_coll_opts *opts = e->opts != NULL ? e->opts : &dcommi_default_opts;
    const dcomm_tuning *tuning = e->tuning;
    dcomm_tuning usual;
    dcommi_shape s;
    dcommi_coding coding;
    dcomm_comm fake; /* only for the checks of a call */
    memset(&fake, 0, sizeof fake);
    fake.size = e->nranks;
    fake.device_ucx = tuning != NULL && tuning->device_ucx != 0 && !dcommi_within_host(groups);
    fake.groups = (dcommi_groups *)(uintptr_t)groups; /* read only */
    if (tuning == NULL) {
        dcomm_tuning_default(&usual);
        tuning = &usual;
    }
    DCOMMI_TRY(dcommi_shape_begin(&fake, e->coll, e->count, e->dtype, e->op, 0, opts, &s));
    DCOMMI_TRY(dcommi_coded_begin(&s, opts, &coding));
    dcommi_chooser *c = dcommi_alloc(sizeof *c);
    dcomm_status status =
        c == NULL ? DCOMM_ERR_NO_MEMORY : dcommi_chooser_set(c, groups, e->nranks, tuning);
    if (status >= 0) {
        status = dcommi_explain_shape(c, &s, opts->algo, false, e);
    }
    dcommi_free(c);
    return status;
}

static dcomm_status dcommi_explain_hosts(dcomm_explanation *e)
{
    dcommi_groups *groups = NULL;
    DCOMMI_TRY(dcommi_groups_of_hosts(e->hosts, e->nranks, &groups));
    dcomm_status status = dcommi_explain_groups(groups, e);
    dcommi_groups_free(&groups);
    return status;
}

DCOMM_API dcomm_status dcomm_comm_explain(dcomm_comm *comm, dcomm_explanation *e)
{
    if (e == NULL) {
        return dcommi_fail(DCOMM_ERR_INVALID, "explanation is NULL");
    }
    e->algo = NULL;
    e->nalternatives = e->npaths = 0;
    if (e->max_alternatives < 0 || (e->alternatives == NULL && e->max_alternatives > 0)) {
        return dcommi_fail(
            DCOMM_ERR_INVALID,
            "max_alternatives is %d; it must be 0 or more, and 0 if alternatives is NULL",
            e->max_alternatives);
    }
    if (e->max_paths < 0 || (e->paths == NULL && e->max_paths > 0)) {
        return dcommi_fail(DCOMM_ERR_INVALID,
                           "max_paths is %d; it must be 0 or more, and 0 if paths is NULL",
                           e->max_paths);
    }
    if (comm == NULL && e->nranks < 1) {
        return dcommi_fail(DCOMM_ERR_INVALID, "comm is NULL and nranks is %d; it must be 1 or more",
                           e->nranks);
    }
    if (comm != NULL && (e->nranks != 0 || e->hosts != NULL || e->tuning != NULL)) {
        return dcommi_fail(DCOMM_ERR_INVALID,
                           "nranks, hosts or tuning is set, but comm is not NULL: they describe "
                           "ranks without a communicator");
    }
    return comm != NULL ? dcommi_explain_comm(comm, e) : dcommi_explain_hosts(e);
}

DCOMM_API dcomm_status dcomm_comm_get_tuning(dcomm_comm *comm, dcomm_tuning *tuning)
{
    DCOMMI_TRY(dcommi_check_comm(comm));
    DCOMMI_NEED(tuning);
    dcommi_comm_lock(comm);
    *tuning = comm->chooser->tuning;
    dcommi_comm_unlock(comm);
    return DCOMM_OK;
}

#endif
