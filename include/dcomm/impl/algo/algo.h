/* algo.h - the entry of the table of algorithms (table.h), and helpers that all of them use. */
#ifndef DCOMMI_ALGO_H
#define DCOMMI_ALGO_H

#include "../plan/build.h"

/* Append the steps for `shape` to `b`. The caller begins and finishes `b`, handles nranks == 1 and
 * zero-byte operations itself, and sets head.in_bytes and head.out_bytes. */
typedef dcomm_status (*dcommi_algo_fn)(const dcommi_shape *shape, dcomm_builder *b);

typedef struct dcommi_algo {
    const char *name;
    dcomm_coll coll;
    dcommi_algo_fn make;
    bool rank_order; /* can fold in rank order */
    /* Write a sentence about groups that the algorithm cannot use. NULL: it does not work level by
     * level. */
    void (*note)(const dcommi_shape *shape, char *text, size_t len);
    const char *cost;
    const char *source;
} dcommi_algo;

/* Return true if the operation folds the ranks' contributions. */
static inline bool dcommi_coll_folds(dcomm_coll coll)
{
    return coll == DCOMM_COLL_ALLREDUCE || coll == DCOMM_COLL_REDUCE_SCATTER ||
           coll == DCOMM_COLL_REDUCE_SCATTERV || coll == DCOMM_COLL_REDUCE;
}

/* Return true if the operation has a root. */
static inline bool dcommi_coll_rooted(dcomm_coll coll)
{
    return coll == DCOMM_COLL_BROADCAST || coll == DCOMM_COLL_REDUCE || coll == DCOMM_COLL_GATHER ||
           coll == DCOMM_COLL_SCATTER || coll == DCOMM_COLL_GATHERV || coll == DCOMM_COLL_SCATTERV;
}

/* Return the bytes of `count` elements. */
static inline int64_t dcommi_shape_bytes(const dcommi_shape *s, size_t count)
{
    return (int64_t)(count * dcomm_dtype_size(s->dtype));
}

/* The place of this rank's input. */
typedef struct dcommi_input {
    dcomm_space space;
    int64_t base;
} dcommi_input;

/* Return the place of this rank's input. in_base: bytes; where it begins in OUT when the call is
 * in place (0, or rank*block for all-gather and gather). */
static inline dcommi_input dcommi_input_of(const dcommi_shape *s, int64_t in_base)
{
    dcommi_input in = {s->in_place ? DCOMM_SPACE_OUT : DCOMM_SPACE_IN, s->in_place ? in_base : 0};
    return in;
}

/* A buffer cut into equal blocks of `chunks` chunks each, in whole elements. Block b begins at
 * b*block; the last ones are cut off at the end of the buffer. */
typedef struct dcommi_partition {
    int64_t block, chunk; /* bytes */
    int64_t chunks;       /* of a block */
} dcommi_partition;

static inline dcommi_partition dcommi_partition_make(int64_t total, int64_t nblocks,
                                                     int64_t chunk_bytes, int64_t element)
{
    dcommi_partition p = {.chunks = 1};
    int64_t share = dcommi_ceil_div(total, nblocks);
    if (chunk_bytes > 0) {
        p.chunks = dcommi_max64(1, dcommi_ceil_div(share, chunk_bytes));
    }
    /* Cut at cache lines, so that two chunks do not share one. Short blocks would become uneven:
     * cut them at elements. */
    int64_t lines = dcommi_element_lines(element);
    int64_t grain = share >= 64 * lines * p.chunks ? lines : element;
    p.chunk = dcommi_ceil_div(dcommi_ceil_div(share, p.chunks), grain) * grain;
    p.block = p.chunk * p.chunks;
    return p;
}

/* Build an operation level by level. Each level may be built the same way again (hier/hier.h). */
static dcomm_status dcommi_hier_make(const dcommi_shape *s, dcomm_builder *b);

#endif
