/* perf_mem.h - the kinds of memory that buffers can be in. */
#ifndef PERF_MEM_H
#define PERF_MEM_H

#include "dcomm.h"
#include "perf_rule.h"

#include <stdlib.h>

typedef enum perf_mem {
    PERF_MEM_HOST,
    PERF_MEM_HUGE,
    PERF_MEM_REGISTERED,
    PERF_MEM_COUNT
} perf_mem;

static const char *const perf_mems[PERF_MEM_COUNT] = {
    [PERF_MEM_HOST] = "host", [PERF_MEM_HUGE] = "huge", [PERF_MEM_REGISTERED] = "registered"};

/* Room for `bytes` and the guard; NULL without memory. */
static char *perf_mem_alloc(perf_mem kind, dcomm_context *context, size_t bytes)
{
    void *p = NULL;
    switch (kind) {
    case PERF_MEM_HUGE:
        return perf_alloc_huge(bytes);
    case PERF_MEM_REGISTERED:
        return dcomm_mem_alloc(context, bytes + PERF_GUARD, &p) == DCOMM_OK ? p : NULL;
    default:
        return perf_alloc(bytes);
    }
}

static void perf_mem_free(perf_mem kind, char *at)
{
    void *p = at;
    if (kind == PERF_MEM_REGISTERED) {
        dcomm_mem_free(&p);
    } else {
        free(p);
    }
}

#endif
