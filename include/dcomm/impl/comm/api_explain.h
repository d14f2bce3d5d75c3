/* api_explain.h - the public read-out of the choice: every algorithm with its price. */
#ifndef DCOMMI_API_EXPLAIN_H
#define DCOMMI_API_EXPLAIN_H

#include "../model/api_model.h"
#include "call.h"

/* Fill in the rows for a shape. `chosen` is what runs, `forced` whether somebody asked for it. */
static void dcommi_explain_rows(const dcommi_chooser *c, const dcommi_shape *s,
                                const dcommi_algo *chosen, bool forced, dcomm_alternative *rows,
                                int max, int *n_p)
{
    dcommi_price price, best = {.ps = 0};
    const dcommi_algo *algo;
    int n = 0;
    bool known = chosen != NULL && dcommi_choice_price(c, s, chosen, DCOMMI_PRICE_LIMIT,
                                                       DCOMMI_CHOICE_BUDGET, &best) >= 0;
    for (; (algo = s->coding != NULL ? dcommi_coded_at(s->coll, n) : dcommi_algo_at(s->coll, n)) !=
           NULL;
         n++) {
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
            bool close = price.ps <= dcommi_choice_close(s, best.ps);
            dcommi_snprintf(row->why, sizeof row->why, "%.2f times the price of %s%s",
                            (double)price.ps / (double)best.ps, chosen->name,
                            close ? ", too close to tell" : "");
        } else {
            snprintf(row->why, sizeof row->why, "nothing to choose between");
        }
    }
    if (n_p != NULL) {
        *n_p = n;
    }
}

/* A call as it would be, for explanations. */
typedef struct dcommi_explained {
    dcommi_shape shape;
    dcommi_coding coding; /* the shape's */
    const char *name;     /* of the algorithm that is asked for; NULL: none */
    bool soft;            /* by the communicator */
} dcommi_explained;

/* What is said of it, in rows of its own kind. */
typedef dcomm_status (*dcommi_explain_fn)(dcommi_chooser *c, const dcommi_explained *e, void *rows,
                                          int max, int *n_p);

static dcomm_status dcommi_explain_say(dcommi_chooser *c, const dcommi_explained *e,
                                       dcommi_explain_fn say, void *rows, int max, int *n_p)
{
    if (max < 0 || (rows == NULL && max > 0)) {
        return dcommi_fail(DCOMM_ERR_INVALID, "rows is NULL, or max is %d", max);
    }
    return say(c, e, rows, max, n_p);
}

static dcomm_status dcommi_explain_in(dcomm_comm *comm, dcomm_coll coll, size_t count,
                                      dcomm_dtype dtype, dcomm_op op, const dcomm_coll_opts *opts,
                                      dcommi_explain_fn say, void *rows, int max, int *n_p)
{
    dcommi_explained e;
    dcomm_coll_opts decided;
    opts = opts != NULL ? opts : &dcommi_default_opts;
    DCOMMI_TRY(dcommi_auto_peek(comm, coll, count, dtype, op, &opts, &decided));
    DCOMMI_TRY(dcommi_shape_begin(comm, coll, count, dtype, op, 0, opts, &e.shape));
    DCOMMI_TRY(dcommi_coded_begin(&e.shape, opts, &e.coding));
    e.soft = opts->algo == NULL;
    e.name = e.soft ? comm->algo : opts->algo;
    dcommi_comm_lock(comm);
    dcomm_status status = dcommi_explain_say(comm->chooser, &e, say, rows, max, n_p);
    dcommi_comm_unlock(comm);
    return status;
}

/* The same of ranks that are nowhere yet, in these groups. */
static dcomm_status dcommi_explain_groups(const dcomm_tuning *tuning, int nranks,
                                          const dcommi_groups *groups, dcomm_coll coll,
                                          size_t count, dcomm_dtype dtype,
                                          const dcomm_coll_opts *opts, dcommi_explain_fn say,
                                          void *rows, int max, int *n_p)
{
    dcomm_tuning usual;
    dcomm_comm fake; /* in name only: the checks of a call */
    memset(&fake, 0, sizeof fake);
    fake.size = nranks;
    fake.device_ucx = tuning != NULL && tuning->device_ucx != 0 && !dcommi_within_host(groups);
    fake.groups = (dcommi_groups *)(uintptr_t)groups; /* read only */
    opts = opts != NULL ? opts : &dcommi_default_opts;
    if (tuning == NULL) {
        dcomm_tuning_default(&usual);
        tuning = &usual;
    }
    dcommi_explained e = {.name = opts->algo};
    dcommi_chooser *c = dcommi_alloc(sizeof *c);
    dcomm_status status =
        c == NULL ? DCOMM_ERR_NO_MEMORY : dcommi_chooser_set(c, groups, nranks, tuning);
    if (status >= 0) {
        status = dcommi_shape_begin(&fake, coll, count, dtype, DCOMM_SUM, 0, opts, &e.shape);
    }
    if (status >= 0) {
        status = dcommi_coded_begin(&e.shape, opts, &e.coding);
    }
    if (status >= 0) {
        status = dcommi_explain_say(c, &e, say, rows, max, n_p);
    }
    dcommi_free(c);
    return status;
}

/* And on these hosts. */
static dcomm_status dcommi_explain_hosts(const dcomm_tuning *tuning, int nranks, const int *hosts,
                                         dcomm_coll coll, size_t count, dcomm_dtype dtype,
                                         const dcomm_coll_opts *opts, dcommi_explain_fn say,
                                         void *rows, int max, int *n_p)
{
    dcommi_groups *groups = NULL;
    if (nranks < 1) {
        return dcommi_fail(DCOMM_ERR_INVALID, "nranks is %d", nranks);
    }
    DCOMMI_TRY(dcommi_groups_of_hosts(hosts, nranks, &groups));
    dcomm_status status = dcommi_explain_groups(tuning, nranks, groups, coll, count, dtype, opts,
                                                say, rows, max, n_p);
    dcommi_groups_free(&groups);
    return status;
}

static dcomm_status dcommi_explain_algos(dcommi_chooser *c, const dcommi_explained *e, void *rows,
                                         int max, int *n_p)
{
    const dcommi_algo *chosen = NULL;
    DCOMMI_TRY(dcommi_algo_pick(&e->shape, e->name, e->soft, c, &chosen));
    bool forced = e->name != NULL && strcmp(e->name, chosen->name) == 0;
    dcommi_explain_rows(c, &e->shape, chosen, forced, rows, max, n_p);
    return DCOMM_OK;
}

DCOMM_API dcomm_status dcomm_explain_all(dcomm_comm *comm, dcomm_coll coll, size_t count,
                                         dcomm_dtype dtype, dcomm_op op,
                                         const dcomm_coll_opts *opts, dcomm_alternative *rows,
                                         int max, int *n_p)
{
    return dcommi_explain_in(comm, coll, count, dtype, op, opts, dcommi_explain_algos, rows, max,
                             n_p);
}

DCOMM_API dcomm_status dcomm_explain_on(const dcomm_tuning *tuning, int nranks, const int *hosts,
                                        dcomm_coll coll, size_t count, dcomm_dtype dtype,
                                        const dcomm_coll_opts *opts, dcomm_alternative *rows,
                                        int max, int *n_p)
{
    return dcommi_explain_hosts(tuning, nranks, hosts, coll, count, dtype, opts,
                                dcommi_explain_algos, rows, max, n_p);
}

DCOMM_API dcomm_status dcomm_comm_get_tuning(dcomm_comm *comm, dcomm_tuning *tuning)
{
    DCOMMI_TRY(dcommi_check_comm(comm));
    if (tuning == NULL) {
        return dcommi_fail(DCOMM_ERR_INVALID, "tuning is NULL");
    }
    dcommi_comm_lock(comm);
    *tuning = comm->chooser->tuning;
    dcommi_comm_unlock(comm);
    return DCOMM_OK;
}

#endif
