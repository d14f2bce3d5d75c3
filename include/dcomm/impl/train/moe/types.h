/* types.h - the types of dispatch and combine.
 *
 * Rows move through one stage (flat) or two (hierarchical: to one rank of each host, and from
 * there to the ranks inside). A stage has entries: copies of its source rows in the order in which
 * they are sent. Forth, entries are gathered and exchanged. Back, they are exchanged and summed
 * into their source rows. The source rows of the first stage are the tokens, those of the second
 * are what the first has brought. */
#ifndef DCOMMI_MOE_TYPES_H
#define DCOMMI_MOE_TYPES_H

#include "../../../moe.h"
#include "../../comm/api_coll.h"
#include "../../comm/api_mem.h"

enum { DCOMMI_MOE_FORTH, DCOMMI_MOE_BACK, DCOMMI_MOE_WAYS };

/* A buffer. When it grows, its content is lost. */
typedef struct dcommi_moe_memory {
    unsigned char *at;
    size_t bytes;
    bool registered;
} dcommi_moe_memory;

/* Tables of chunks and ranks are [chunks * n], in rows; `_at` counts from the chunk's first. */
typedef struct dcommi_moe_stage {
    dcomm_comm *comm[DCOMMI_MOE_WAYS]; /* one for each way, which has its own order */
    int n;
    bool weighted;  /* its entries have weights, and are those that experts get */
    size_t *matrix; /* [chunks * n * n] rows that each rank sends each, forth */
    size_t *send, *send_at, *recv, *recv_at;
    size_t *send_first, *recv_first; /* [chunks + 1] rows before a chunk */
    size_t *source_first;            /* [chunks + 1] source rows before a chunk */
    uint32_t *from;                  /* [entries] source row */
    float *weight;                   /* [entries] */
    uint32_t *name; /* [entries] flat: token * k + j; hierarchical: its place in `heard` */
    size_t *start; /* [sources + 1] its entries in `entry`, in the order in which they are summed */
    uint32_t *entry;
    size_t from_room, start_room;
    dcommi_moe_memory sent[DCOMMI_MOE_WAYS], received[DCOMMI_MOE_WAYS];
} dcommi_moe_stage;

/* A pass over a chunk: forth or back, with values or gradients. */
typedef enum dcommi_moe_pass {
    DCOMMI_MOE_DISPATCH,
    DCOMMI_MOE_COMBINE,
    DCOMMI_MOE_COMBINE_BACKWARD,
    DCOMMI_MOE_DISPATCH_BACKWARD,
    DCOMMI_MOE_PASSES
} dcommi_moe_pass;

typedef struct dcommi_moe_op {
    bool started, done; /* in this step */
    int stage;          /* whose exchange is under way */
    dcomm_request *request;
} dcommi_moe_op;

/* The passes that have been started one way, in that order. */
typedef struct dcommi_moe_queue {
    struct dcommi_moe_turn {
        int pass, chunk;
    } * turns;       /* [2 * chunks] */
    size_t first, n; /* first: the first that has not begun its last exchange */
} dcommi_moe_queue;

struct dcomm_moe {
    dcomm_comm *comm;                  /* its own: routing, and forth */
    dcomm_comm *back;                  /* and back */
    dcomm_comm *host[DCOMMI_MOE_WAYS]; /* the ranks of this host; NULL: no such form */
    int rank, size, nhosts;
    dcomm_moe_opts opts; /* without pointers, but for algo, which is the table's */
    dcomm_codec *codec;
    size_t row, wire, stride; /* bytes of a row; of one that is dispatched; the larger of them */
    void *workspace;          /* of the codec */
    dcomm_status failed;
    char message[DCOMMI_MESSAGE_MAX];

    /* Experts stand in the order of their ranks, expert e at place[e]. */
    int *owner;          /* [experts] */
    int *expert_at;      /* [experts] */
    uint32_t *place;     /* [experts] */
    size_t *place_first; /* [size + 1] places of a rank */
    /* Ranks of hosts. */
    int *host_of, *seat; /* [size] seat: number among its host's ranks */
    int *host_ranks;     /* [size] in the order of hosts */
    int *host_first;     /* [nhosts + 1] */
    int *gate;           /* [nhosts] the rank of each host that this rank's rows go to */

    /* The step. */
    size_t tokens, steps;
    bool hier;
    size_t *chunk_first; /* [chunks + 1] tokens before a chunk */
    int32_t *slots;      /* [tokens * k] places; -1: none */
    float *weights;
    size_t slots_room, weights_room;
    uint32_t *card, *cards; /* the ranks' messages: head, counts [chunks * experts], and rows for
                             * each host [chunks * nhosts] */
    size_t card_len;
    uint32_t *seen;   /* [nhosts] */
    size_t *cursor;   /* [experts + size] */
    size_t *scaled;   /* [4 * size + size * size] counts, displacements, and all ranks' counts */
    size_t *seg_at;   /* [local experts * size] */
    float *dots;      /* of the weighted stage's entries */
    float *dots_back; /* hierarchical: of this rank's own tokens */
    uint32_t *told, *heard; /* hierarchical: the row and the weight of each entry */
    size_t told_room, heard_room, dots_room, dots_back_room;
    uint32_t *told_slot; /* [told] token * k + j */
    size_t told_slot_room;
    dcommi_moe_stage outer, inner;
    dcommi_moe_memory batch[2], coded; /* batch: values, gradients */
    size_t *batch_first;               /* [local experts + 1] */
    dcommi_moe_op *ops;                /* [passes * chunks] */
    dcommi_moe_queue queue[DCOMMI_MOE_WAYS];
    int under_way; /* passes of chunks */
    int at_work;   /* chunks that experts have and have not given back */

    /* Books. */
    dcomm_moe_stats stats;
    uint64_t *by_place, *demand, *load, *rank_rows, *rank_bytes;
    struct dcommi_moe_traffic *traffic; /* [size] */
    double expert_s, left_at;           /* left_at 0: the experts are not at work */
};

#define DCOMMI_MOE_HEAD 4 /* words of a card: status, expert time (2), rerouted rows */

/* ---- reading the cards ---- */

static inline uint32_t *dcommi_moe_counts(const dcomm_moe *m, uint32_t *card, int chunk)
{
    return card + DCOMMI_MOE_HEAD + (size_t)chunk * m->opts.experts;
}

static inline uint32_t *dcommi_moe_card_of(const dcomm_moe *m, int rank)
{
    return m->cards + (size_t)rank * m->card_len;
}

/* Return the rows of a rank's tokens for an expert. */
static inline size_t dcommi_moe_count(const dcomm_moe *m, int rank, int chunk, size_t place)
{
    return dcommi_moe_counts(m, dcommi_moe_card_of(m, rank), chunk)[place];
}

/* Return the rows of a rank's tokens for all experts of another rank. */
static inline size_t dcommi_moe_between(const dcomm_moe *m, int from, int to, int chunk)
{
    size_t rows = 0;
    for (size_t p = m->place_first[to]; p < m->place_first[to + 1]; p++) {
        rows += dcommi_moe_count(m, from, chunk, p);
    }
    return rows;
}

/* Return, for each host, how many of a rank's tokens go to any expert there. */
static inline uint32_t *dcommi_moe_unique(const dcomm_moe *m, uint32_t *card, int chunk)
{
    return dcommi_moe_counts(m, card, m->opts.chunks) + (size_t)chunk * (size_t)m->nhosts;
}

/* Return the rank of a host through which a rank's rows go. */
static inline int dcommi_moe_gate(const dcomm_moe *m, int from, int host)
{
    int ranks = m->host_first[host + 1] - m->host_first[host];
    return m->host_ranks[m->host_first[host] + m->seat[from] % ranks];
}

static inline dcommi_moe_stage *dcommi_moe_first(dcomm_moe *m)
{
    return m->hier ? &m->outer : &m->inner;
}

/* Return true if rows arrive in the order of the batch: a rank with one expert needs no second
 * place for them. */
static inline bool dcommi_moe_direct(const dcomm_moe *m)
{
    return !m->hier && m->place_first[m->rank + 1] - m->place_first[m->rank] <= 1;
}

/* Return the rows that a chunk brings to the experts of this rank; 0: no such chunk. */
static inline size_t dcommi_moe_chunk_rows(const dcomm_moe *m, int c)
{
    const size_t *first = m->inner.recv_first;
    return c >= 0 && c < m->opts.chunks ? first[c + 1] - first[c] : 0;
}

/* ---- memory ---- */

/* Refuse memory of a device, since the host moves rows and reads tables. */
static dcomm_status dcommi_moe_on_host(const dcomm_moe *m, const char *call, const char *what,
                                       const void *at)
{
    int device = dcommi_device_locate(at);
    return device < 0 ? DCOMM_OK
                      : dcommi_fail(DCOMM_ERR_UNSUPPORTED,
                                    "%s: rank %d has %s on device %d, and experts take host "
                                    "memory alone",
                                    call, m->rank, what, device);
}

static void dcommi_moe_release(dcommi_moe_memory *memory)
{
    if (memory->registered) {
        void *at = memory->at;
        dcomm_mem_free(&at);
    } else {
        dcommi_free(memory->at);
    }
    *memory = (dcommi_moe_memory){.at = NULL};
}

/* Make room for so many bytes, and for an eighth more if it must grow, since loads go up and
 * down. */
static dcomm_status dcommi_moe_reserve(const dcomm_moe *m, dcommi_moe_memory *memory, size_t bytes)
{
    if (bytes <= memory->bytes) {
        return DCOMM_OK;
    }
    dcommi_moe_release(memory);
    size_t wanted = bytes + bytes / 8;
    void *at = NULL;
    if (m->opts.registered && dcomm_mem_alloc(m->comm->context, wanted, &at) >= 0) {
        memory->registered = true;
    } else {
        at = dcommi_huge_alloc(wanted);
    }
    if (at == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    memory->at = at;
    memory->bytes = wanted;
    return DCOMM_OK;
}

#endif
