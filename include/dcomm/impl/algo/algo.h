/* algo.h - the table of algorithms: what every file of algo/ registers and everything else looks
 * up. */
#ifndef DCOMMI_ALGO_H
#define DCOMMI_ALGO_H

#include "../plan/build.h"

/* Appends the steps for `shape` to `b` (begun by the caller, who also finishes it). The caller has
 * already handled nranks == 1 and zero-byte operations, and set head.in_bytes and out_bytes. */
typedef dcomm_status (*dcommi_algo_fn)(const dcommi_shape *shape, dcomm_builder *b);

typedef struct dcommi_algo {
    const char *name;
    dcomm_coll coll;
    dcommi_algo_fn make;
    bool rank_order; /* can fold in rank order */
    /* Write what it leaves aside of the groups, as a sentence. Only algorithms that work level by
     * level have one. */
    void (*note)(const dcommi_shape *shape, char *text, size_t len);
    const char *cost;
    const char *source;
} dcommi_algo;

/* Return true if the operation folds what ranks contribute. */
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

/* Bytes of one element, and of `count`. */
static inline int64_t dcommi_shape_bytes(const dcommi_shape *s, size_t count)
{
    return (int64_t)(count * dcomm_dtype_size(s->dtype));
}

/* Where this rank's input lies. `in_base` is where it begins in OUT when the call is in place
 * (0, or rank*block for all-gather and gather). */
typedef struct dcommi_input {
    dcomm_space space;
    int64_t base;
} dcommi_input;

static inline dcommi_input dcommi_input_of(const dcommi_shape *s, int64_t in_base)
{
    dcommi_input in = {s->in_place ? DCOMM_SPACE_OUT : DCOMM_SPACE_IN, s->in_place ? in_base : 0};
    return in;
}

/* `total` bytes cut into blocks of `chunks` chunks each: all equal, whole elements, the
 * tail cut off at `total`. Block b starts at b*block. */
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
    /* Cache lines keep chunks from sharing one; tiny blocks would only become uneven by it. */
    int64_t lines = dcommi_element_lines(element);
    int64_t grain = share >= 64 * lines * p.chunks ? lines : element;
    p.chunk = dcommi_ceil_div(dcommi_ceil_div(share, p.chunks), grain) * grain;
    p.block = p.chunk * p.chunks;
    return p;
}

/* Build an operation level by level, each of which may be built the same way (hier/hier.h). */
static dcomm_status dcommi_hier_make(const dcommi_shape *s, dcomm_builder *b);

#endif
