/* api_build.h - create, finish and destroy a caller's builder. */
#ifndef DCOMMI_API_BUILD_H
#define DCOMMI_API_BUILD_H

#include "check_valid.h"

DCOMM_API dcomm_status dcomm_build_create(const char *name, int rank, int nranks, dcomm_dtype dtype,
                                          dcomm_op op, dcomm_builder **b_p)
{
    DCOMMI_NEED(b_p);
    *b_p = NULL;
    if (name == NULL || nranks < 1 || rank < 0 || rank >= nranks) {
        return dcommi_fail(DCOMM_ERR_INVALID,
                           "dcomm_build_create: name is %s, rank is %d, nranks is %d: a rank is "
                           "from 0 to nranks-1",
                           name != NULL ? name : "NULL", rank, nranks);
    }
    dcomm_builder *b = dcommi_alloc(sizeof *b);
    if (b == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    dcommi_build_begin(b, name, rank, nranks, dtype, op);
    *b_p = b;
    return DCOMM_OK;
}

DCOMM_API void dcomm_build_buffers(dcomm_builder *b, int64_t in_bytes, int64_t out_bytes)
{
    if (b != NULL) {
        b->head.in_bytes = in_bytes;
        b->head.out_bytes = out_bytes;
    }
}

DCOMM_API void dcomm_build_destroy(dcomm_builder **b_p)
{
    if (b_p != NULL && *b_p != NULL) {
        dcommi_build_discard(*b_p);
        dcommi_free(*b_p);
        *b_p = NULL;
    }
}

DCOMM_API dcomm_status dcomm_build_finish(dcomm_builder **b_p, dcomm_plan **plan_p)
{
    if (plan_p != NULL) {
        *plan_p = NULL;
    }
    if (b_p == NULL || *b_p == NULL || plan_p == NULL) {
        dcomm_build_destroy(b_p);
        return dcommi_fail(DCOMM_ERR_INVALID, "dcomm_build_finish: the %s is NULL",
                           plan_p == NULL ? "plan_p" : "builder");
    }
    char where[96];
    uint32_t budget = DCOMMI_CHECK_SUBPLANS;
    dcommi_snprintf(where, sizeof where, "%.64s, rank %d", (*b_p)->head.name, (*b_p)->head.rank);
    dcomm_plan *plan = NULL;
    dcomm_status status = dcommi_build_finish(*b_p, &plan);
    if (status >= 0) {
        status = dcommi_check_plan_valid(plan, where, 0, &budget);
    }
    dcomm_build_destroy(b_p);
    if (status < 0) {
        dcommi_free(plan);
        return status;
    }
    *plan_p = plan;
    return DCOMM_OK;
}

#endif
