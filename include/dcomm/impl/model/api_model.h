/* api_model.h - the public functions of the model: a uniform network, the price of plans. */
#ifndef DCOMMI_API_MODEL_H
#define DCOMMI_API_MODEL_H

#include "run.h"
#include "tuning_file.h"

#define DCOMMI_PRICE_LIMIT (INT64_MAX >> 2)    /* ps: about a month */
#define DCOMMI_PRICE_BUDGET ((int64_t)1 << 32) /* steps; more would take too long to price */

static dcomm_curve dcommi_curve_line(double ns_per_B)
{
    dcomm_curve c = {.n = 2, .bytes = {0, 1 << 20}, .ps = {0, 0}};
    c.ps[1] = (int64_t)(ns_per_B * 1e3 * (double)c.bytes[1] + 0.5);
    return c;
}

DCOMM_API dcomm_status dcomm_tuning_uniform(double alpha_us, double beta_ns_per_B,
                                            double gamma_ns_per_B, dcomm_tuning *tuning)
{
    const double most = 1e6;
    DCOMMI_NEED(tuning);
    memset(tuning, 0, sizeof *tuning);
    /* Negated, so that a NaN is refused too. */
    if (!(alpha_us >= 0 && alpha_us <= most && beta_ns_per_B >= 0 && beta_ns_per_B <= most / 1e3 &&
          gamma_ns_per_B >= 0 && gamma_ns_per_B <= most / 1e3)) {
        return dcommi_fail(DCOMM_ERR_INVALID,
                           "alpha is %g us, beta %g ns/B, gamma %g ns/B: alpha may be 0 to 1e6, "
                           "the others 0 to 1000",
                           alpha_us, beta_ns_per_B, gamma_ns_per_B);
    }
    dcomm_link link = {.alpha_ps = (int64_t)(alpha_us * 1e6 + 0.5)};
    link.signal_ps = link.alpha_ps;
    link.message = dcommi_curve_line(beta_ns_per_B);
    link.fold = dcommi_curve_line(gamma_ns_per_B);
    for (int k = 0; k < DCOMM_LINK_COUNT; k++) {
        tuning->link[k] = link;
    }
    tuning->fold = link.fold;
    dcommi_snprintf(tuning->source, sizeof tuning->source,
                    "alpha %g us, beta %g ns/B, gamma %g ns/B", alpha_us, beta_ns_per_B,
                    gamma_ns_per_B);
    return DCOMM_OK;
}

/* Make groups from a table of host numbers. NULL: all ranks are on one host. */
static dcomm_status dcommi_groups_of_hosts(const int *hosts, int nranks, dcommi_groups **groups_p)
{
    static const uint8_t kinds[] = {DCOMMI_LEVEL_HOST};
    int64_t *ids = dcommi_calloc((size_t)nranks, sizeof *ids);
    for (int r = 0; ids != NULL && hosts != NULL && r < nranks; r++) {
        ids[r] = hosts[r];
    }
    *groups_p = ids != NULL ? dcommi_groups_make(nranks, 1, kinds, ids) : NULL;
    dcommi_free(ids);
    return *groups_p != NULL ? DCOMM_OK : DCOMM_ERR_NO_MEMORY;
}

static dcomm_status dcommi_plans_listed(void *user, int rank, const dcomm_plan **plan_p)
{
    *plan_p = ((const dcomm_plan *const *)user)[rank];
    return DCOMM_OK;
}

static void dcommi_plans_keep(void *user, const dcomm_plan *plan)
{
    (void)user;
    (void)plan;
}

DCOMM_API dcomm_status dcomm_plan_price(const dcomm_plan *const *plans, int nranks,
                                        const int *hosts, const dcomm_tuning *tuning,
                                        double *seconds)
{
    if (plans == NULL || nranks < 1 || tuning == NULL || seconds == NULL) {
        return dcommi_fail(DCOMM_ERR_INVALID, "plans, tuning or seconds is NULL, or nranks is %d",
                           nranks);
    }
    *seconds = 0;
    for (int r = 0; r < nranks; r++) {
        char where[32];
        uint32_t budget = DCOMMI_CHECK_SUBPLANS;
        snprintf(where, sizeof where, "rank %d", r);
        if (plans[r] == NULL || plans[r]->rank != r || plans[r]->nranks != nranks) {
            return dcommi_fail(DCOMM_ERR_PLAN, "plans[%d] is not the plan of rank %d of %d", r, r,
                               nranks);
        }
        DCOMMI_TRY(dcommi_check_plan_valid(plans[r], where, 0, &budget));
    }
    dcommi_groups *groups = NULL;
    dcommi_terrain terrain;
    dcommi_price price;
    dcommi_plans source = {
        .get = dcommi_plans_listed, .put = dcommi_plans_keep, .user = (void *)(uintptr_t)plans};
    DCOMMI_TRY(dcommi_groups_of_hosts(hosts, nranks, &groups));
    dcomm_status status = dcommi_terrain_make(groups, nranks, tuning, DCOMMI_MEMORY_ANY, &terrain);
    if (status >= 0) {
        status =
            dcommi_price_plans(&terrain, &source, DCOMMI_PRICE_LIMIT, DCOMMI_PRICE_BUDGET, &price);
    }
    dcommi_groups_free(&groups);
    if (status >= 0) {
        *seconds = 1e-12 * (double)price.ps;
    }
    return status;
}

#endif
