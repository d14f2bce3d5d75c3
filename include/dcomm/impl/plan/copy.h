/* copy.h - copy a plan, with the sub-plans that it calls, into one block of memory. */
#ifndef DCOMMI_PLAN_COPY_H
#define DCOMMI_PLAN_COPY_H

#include "../../plan.h"
#include "../base/util.h"

/* Return the bytes of a plan and of all plans that it calls. */
static size_t dcommi_plan_bytes(const dcomm_plan *p)
{
    size_t bytes = sizeof *p + p->nsteps * sizeof *p->steps + p->noperands * sizeof *p->operands +
                   p->ntable * sizeof *p->table + p->nsubs * sizeof(dcomm_plan *) +
                   p->nlanes * sizeof *p->lanes;
    bytes = (bytes + 15) & ~(size_t)15;
    for (uint32_t i = 0; i < p->nsubs; i++) {
        bytes += dcommi_plan_bytes(p->subs[i]);
    }
    return bytes;
}

static void *dcommi_plan_put(uint8_t **at, const void *data, size_t bytes)
{
    uint8_t *to = *at;
    if (bytes > 0) {
        memcpy(to, data, bytes);
    }
    *at += bytes;
    return to;
}

/* Copy a plan and its sub-plans to *at, which must be aligned and have room. *at moves behind the
 * copy. */
static const dcomm_plan *dcommi_plan_copy(uint8_t **at, const dcomm_plan *p)
{
    uint8_t *begin = *at;
    dcomm_plan *plan = dcommi_plan_put(at, p, sizeof *p);
    plan->steps = dcommi_plan_put(at, p->steps, p->nsteps * sizeof *p->steps);
    plan->operands = dcommi_plan_put(at, p->operands, p->noperands * sizeof *p->operands);
    plan->table = dcommi_plan_put(at, p->table, p->ntable * sizeof *p->table);
    const dcomm_plan **subs =
        dcommi_plan_put(at, (const void *)p->subs, p->nsubs * sizeof(dcomm_plan *));
    plan->lanes = dcommi_plan_put(at, p->lanes, p->nlanes * sizeof *p->lanes);
    *at = begin + (((size_t)(*at - begin) + 15) & ~(size_t)15);
    for (uint32_t i = 0; i < p->nsubs; i++) {
        subs[i] = dcommi_plan_copy(at, p->subs[i]);
    }
    plan->subs = subs;
    return plan;
}

#endif
