/* shape.h - the arguments of an algorithm: the call, which ranks are near each other, and the
 * sizes of a codec's encodings. */
#ifndef DCOMMI_SHAPE_H
#define DCOMMI_SHAPE_H

#include "../../plan.h"
#include "groups.h"

/* The facts about a codec that an algorithm may use: sizes, not data. */
typedef struct dcommi_coding {
    const dcomm_plan_codec *codec;
    const char *spec; /* its name and options, for people */
    /* Longest encoding of `count` f32, in bytes; grows with count. */
    size_t (*max_bytes)(const void *sizes, size_t count);
    const void *sizes;
    uint64_t hash;    /* of the codec with all its options */
    int64_t granule;  /* elements; pieces should begin at multiples of it */
    bool whole;       /* encode as much as possible at once */
    int parts;        /* parts of an encoding that are summed in turn, as f32; 0: not linear */
    int64_t part[3];  /* bytes: part i begins at part[i] and ends at part[i + 1] */
    int rounds;       /* sums in all; sum i is of part i % parts */
    bool feedback;    /* error feedback: rounding errors are kept for the next call */
    bool variant;     /* another variant of feedback than the classic one */
    bool clips;       /* feedback clips a rank's gradient by its norm */
    bool differences; /* feedback sends differences (EF21) */
    uint32_t cost_length, cost_encode, cost_decode; /* dcomm_plan: codec_length and so on */
    /* Codecs that select elements, and can send a region's elements apart: the steps of
     * coded_sparse. NULL: other codecs. */
    const dcomm_plan_codec *spread;
    int64_t most; /* elements that are selected, at most */
    /* Longest encoding of `kept` selected elements of `count`, in bytes; grows with both. */
    size_t (*part_bytes)(const void *sizes, size_t count, size_t kept);
    size_t (*samples)(const void *sizes, size_t count, size_t nranks); /* that a rank sends */
} dcommi_coding;

/* The kind of memory that the caller promises for the buffers of all ranks. */
enum dcommi_memory {
    DCOMMI_MEMORY_ANY,
    DCOMMI_MEMORY_HUGE,
    DCOMMI_MEMORY_REGISTERED,
    DCOMMI_MEMORY_DEVICE,
    DCOMMI_MEMORY_OPEN, /* device memory that peers on the host read in place */
    DCOMMI_MEMORY_UCX,  /* device memory that UCX moves between hosts */
    DCOMMI_MEMORY_KINDS
};

/* Bytes: the longest message that is sent eagerly from device memory, on every transport. Longer
 * ones are offered first (rendezvous). */
#define DCOMMI_DEVICE_EAGER 32768

/* All that an algorithm may know about a call. */
typedef struct dcommi_shape {
    dcomm_coll coll;
    int rank, nranks, root;
    dcomm_dtype dtype;
    dcomm_op op;
    size_t count;                /* elements: the collective's own count argument */
    bool in_place;               /* the input lies in OUT, where the collective's rules put it */
    bool rank_order;             /* fold in rank order or refuse */
    enum dcommi_memory memory;   /* the memory that all ranks promised */
    int lanes;                   /* parallel instances, >= 1 */
    int64_t chunk_bytes;         /* bytes of a pipeline chunk; 0: the algorithm's own default */
    const dcommi_groups *groups; /* which ranks are near each other; NULL: unknown */
    const dcommi_coding *coding; /* NULL: without compression */
    bool apart;                  /* compressed: aligned f32 input must be made first */
    /* v-collectives: elements, [nranks] each; displacements are never NULL here. All-to-all-v:
     * counts/displs are the receiving side, send_counts/send_displs the sending side. */
    const size_t *counts, *displs;
    const size_t *send_counts, *send_displs;
    /* All-to-all-v: matrix[from * nranks + to] is the number of elements that rank `from` sends to
     * rank `to`. NULL: each rank knows only its own counts. */
    const size_t *matrix;
} dcommi_shape;

#endif
