/* perf_mem.h - allocate a pool of buffers in any kind of memory, including dcomm's registered
 * memory. */
#ifndef PERF_MEM_H
#define PERF_MEM_H

#include "dcomm.h"
#include "perf_cuda.h"

/* Allocate the memory of a pool. Return false if there is none. */
static bool perf_mem_open(perf_pool *pool, dcomm_context *context)
{
    void *p = NULL;
    if (pool->mem != PERF_MEM_REGISTERED) {
        return perf_pool_alloc(pool) &&
               (!perf_mem_on_device(pool->mem) || perf_cuda_open(pool, context));
    }
    if (dcomm_mem_alloc(context, pool->bytes, &p) < 0) {
        return false;
    }
    pool->memory = p;
    return true;
}

static void perf_mem_close(perf_pool *pool)
{
    if (pool->mem != PERF_MEM_REGISTERED) {
        perf_cuda_close(pool);
        perf_pool_free(pool);
    } else if (pool->memory != NULL) {
        void *p = pool->memory;
        dcomm_mem_free(&p);
        pool->memory = NULL;
    }
}

#endif
