/* shape.h - the arguments that an algorithm sees: the call, who is near whom, and what a codec
 * does to sizes. */
#ifndef DCOMMI_SHAPE_H
#define DCOMMI_SHAPE_H

#include "../../plan.h"
#include "groups.h"

/* The facts about a codec that an algorithm may use: sizes, not data. */
typedef struct dcommi_coding {
    const dcomm_plan_codec *codec;
    size_t (*max_bytes)(const void *sizes, size_t count); /* for so many f32; grows with count */
    const void *sizes;
    uint64_t hash;    /* of the codec with all its options */
    int64_t granule;  /* elements, at whose multiples pieces had best begin */
    bool whole;       /* encode as much as possible at once */
    int parts;        /* of an encoding, that can be summed as f32 one after the other; 0: none */
    int64_t part[3];  /* bytes: where they begin, and where the last one ends */
    int rounds;       /* sums; round i is of part i % parts */
    bool feedback;    /* what is rounded away is kept, of contributions and of sums, */
    bool variant;     /* in another way than the classic one, */
    bool clips;       /* a rank's gradient is clipped by its norm, */
    bool differences; /* or what is sent is a difference (EF21) */
    uint32_t cost_length, cost_encode, cost_decode; /* as in dcomm_plan */
    /* Of selected elements that can be sent apart: how; NULL: they cannot. */
    const dcomm_plan_codec *spread;
    int64_t most;                                                       /* are selected */
    size_t (*part_bytes)(const void *sizes, size_t count, size_t kept); /* grows with both */
    size_t (*samples)(const void *sizes, size_t count, size_t nranks);
} dcommi_coding;

/* The kind of memory that the caller promises for all ranks' buffers. */
enum dcommi_memory {
    DCOMMI_MEMORY_ANY,
    DCOMMI_MEMORY_HUGE,
    DCOMMI_MEMORY_REGISTERED,
    DCOMMI_MEMORY_DEVICE,
    DCOMMI_MEMORY_OPEN, /* a device's, which peers on the host read where it lies */
    DCOMMI_MEMORY_UCX,  /* a device's, which UCX moves between hosts */
    DCOMMI_MEMORY_KINDS
};

/* A longer message out of device memory is offered. It is sent with its message on every transport.
 */
#define DCOMMI_DEVICE_EAGER 32768

/* All that an algorithm may know about a call. */
typedef struct dcommi_shape {
    dcomm_coll coll;
    int rank, nranks, root;
    dcomm_dtype dtype;
    dcomm_op op;
    size_t count;                /* the collective's own count argument, elements */
    bool in_place;               /* the input lies in OUT, where the collective's rules put it */
    bool rank_order;             /* fold in rank order or refuse */
    enum dcommi_memory memory;   /* what the choice may count on */
    int lanes;                   /* parallel instances, >= 1 */
    int64_t chunk_bytes;         /* pipelining grain, 0: the algorithm's own default */
    const dcommi_groups *groups; /* who is near whom; NULL: nothing is known */
    const dcommi_coding *coding; /* NULL: without compression */
    bool apart;                  /* compressed: the f32 to be coded have to be made first */
    /* v-collectives, elements: [nranks] each; displacements are never NULL here. All-to-all-v:
     * counts/displs are the receiving side, send_counts/send_displs the sending side. */
    const size_t *counts, *displs;
    const size_t *send_counts, *send_displs;
    /* All-to-all-v: what each rank sends to each, [from * nranks + to]; NULL: each knows its own.
     */
    const size_t *matrix;
} dcommi_shape;

#endif
