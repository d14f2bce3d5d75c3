/* scratch.h - memory for the scratch that plans expose (scratch_shared). The context has one
 * region for it, which peers on the host map like registered memory, in parts of
 * DCOMMI_SHARED_SCRATCH bytes. A run that finds no free part, or needs more, gets ordinary memory,
 * which peers read by other means. */
#ifndef DCOMMI_SCRATCH_H
#define DCOMMI_SCRATCH_H

#include "device/copy_in.h"

#define DCOMMI_SCRATCH_PARTS 2

struct dcommi_scratch {
    dcommi_own own; /* base NULL: no such memory is available */
    unsigned taken; /* a bit for each part */
};

/* Return the context's scratch region, made when first needed. With the token. */
static struct dcommi_scratch *dcommi_scratch_of(dcomm_context *context)
{
    struct dcommi_scratch *scratch = context->scratch;
    if (scratch != NULL) {
        return scratch;
    }
    context->scratch = scratch = dcommi_alloc(sizeof *scratch);
    if (scratch == NULL) {
        return NULL;
    }
    dcommi_own *own = &scratch->own;
    own->context = context;
    own->len = (size_t)DCOMMI_SCRATCH_PARTS * DCOMMI_SHARED_SCRATCH;
    dcomm_status status = dcommi_own_create(own, false);
    DCOMMI_THEN(status, dcommi_own_enter(own));
    if (status < 0) {
        dcommi_log(DCOMMI_LOG_INFO, "peers cannot map scratch of this rank: %s", dcommi_message);
        dcommi_own_destroy(own);
    }
    return scratch;
}

/* Take a part of at least `bytes` bytes. NULL: there is none. With the token. */
static uint8_t *dcommi_scratch_take(dcomm_context *context, int64_t bytes)
{
    struct dcommi_scratch *scratch =
        bytes <= DCOMMI_SHARED_SCRATCH ? dcommi_scratch_of(context) : NULL;
    for (unsigned i = 0; scratch != NULL && scratch->own.base != NULL && i < DCOMMI_SCRATCH_PARTS;
         i++) {
        if ((scratch->taken >> i & 1) == 0) {
            scratch->taken |= 1u << i;
            return scratch->own.base + (size_t)i * DCOMMI_SHARED_SCRATCH;
        }
    }
    return NULL;
}

static void dcommi_scratch_give(const dcomm_context *context, const uint8_t *at)
{
    struct dcommi_scratch *scratch = context->scratch;
    scratch->taken &= ~(1u << (size_t)(at - scratch->own.base) / DCOMMI_SHARED_SCRATCH);
}

/* Free the region of a context that closes. */
static void dcommi_scratch_free(dcomm_context *context)
{
    struct dcommi_scratch *scratch = context->scratch;
    if (scratch != NULL && scratch->own.base != NULL) {
        if (scratch->own.id != 0) {
            dcommi_own_leave(&scratch->own);
        }
        dcommi_own_destroy(&scratch->own);
    }
    dcommi_free(scratch != NULL ? scratch->own.readers : NULL);
    dcommi_free(scratch);
    context->scratch = NULL;
}

#endif
