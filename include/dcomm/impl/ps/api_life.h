/* api_life.h - creates, serves and destroys a parameter server, and its replica beside it. */
#ifndef DCOMMI_API_PS_LIFE_H
#define DCOMMI_API_PS_LIFE_H

#include "life.h"

/* A replica is a parameter server of its own (state machine replication: Schneider, ACM Computing
 * Surveys 22(4), 1990): workers push to both and end clocks of both. With staleness 0 the order in
 * which messages come does not matter, so that both have the same rows after each clock. */
static dcomm_status dcommi_ps_make_twin(dcomm_comm *comm, const dcomm_ps_param *params,
                                        size_t nparams, const dcomm_ps_opts *opts, dcomm_ps *ps)
{
    dcomm_ps *twin = NULL;
    DCOMMI_TRY(dcommi_ps_make(comm, params, nparams, opts, 1, &twin));
    dcommi_token_take(ps->comm->context);
    twin->twin = ps;
    ps->twin = twin;
    dcommi_token_release(ps->comm->context);
    return DCOMM_OK;
}

DCOMM_API dcomm_status dcomm_ps_create(dcomm_comm *comm, const dcomm_ps_param *params,
                                       size_t nparams, const dcomm_ps_opts *opts, dcomm_ps **ps_p)
{
    DCOMMI_NEED(comm);
    DCOMMI_NEED(params);
    DCOMMI_NEED(opts);
    DCOMMI_NEED(ps_p);
    *ps_p = NULL;
    dcomm_ps *ps = NULL;
    DCOMMI_TRY(dcommi_ps_make(comm, params, nparams, opts, 0, &ps));
    const dcomm_status status =
        opts->replicas > 0 ? dcommi_ps_make_twin(comm, params, nparams, opts, ps) : DCOMM_OK;
    if (status < 0) {
        return dcommi_ps_give_up(ps, status);
    }
    *ps_p = ps;
    return DCOMM_OK;
}

DCOMM_API dcomm_status dcomm_ps_serve(dcomm_ps *ps)
{
    DCOMMI_TRY(dcommi_ps_check_call("dcomm_ps_serve", ps));
    if (ps->server < 0) {
        return dcommi_fail(DCOMM_ERR_INVALID,
                           "dcomm_ps_serve: rank %d holds no rows: %d of %d ranks "
                           "are servers",
                           ps->rank, ps->nservers, ps->size);
    }
    const dcomm_status status = dcommi_ps_serve_all(ps, "dcomm_ps_serve");
    return status < 0 || ps->twin == NULL ? status
                                          : dcommi_ps_serve_all(ps->twin, "dcomm_ps_serve");
}

DCOMM_API dcomm_status dcomm_ps_destroy(dcomm_ps **ps_p)
{
    if (ps_p == NULL || *ps_p == NULL) {
        return DCOMM_OK;
    }
    DCOMMI_TRY(dcommi_check_fork());
    dcomm_ps *ps = *ps_p;
    *ps_p = NULL;
    char why[DCOMMI_MESSAGE_MAX];
    dcomm_ps *both[2] = {ps, ps->twin};
    const int n = ps->twin != NULL ? 2 : 1;
    dcomm_status status = DCOMM_OK, ended = DCOMM_OK;
    for (int k = 0; k < n; k++) {
        DCOMMI_THEN(status, dcommi_ps_leave(both[k]));
    }
    for (int k = 0; k < n && ps->server >= 0; k++) {
        DCOMMI_THEN(status, dcommi_ps_serve_all(both[k], "dcomm_ps_destroy"));
    }
    const double until = dcommi_now() + ps->opts.timeout_s;
    for (int k = 0; k < n; k++) {
        while (dcommi_ps_leaving(both[k]) && dcommi_now() < until) {
            dcommi_progress_or_yield(ps->comm->context);
        }
    }
    snprintf(why, sizeof why, "%s", dcomm_last_error());
    for (int k = n - 1; k >= 0; k--) { /* what waits for a replica is told by it */
        const dcomm_status one = dcommi_ps_end(both[k]);
        ended = ended < 0 ? ended : one;
    }
    return status < 0 ? dcommi_fail(status, "%s", why) : ended;
}

#endif
