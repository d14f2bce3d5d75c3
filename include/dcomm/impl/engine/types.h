/* types.h - contexts, communicators and runs as the engine sees them. */
#ifndef DCOMMI_TYPES_H
#define DCOMMI_TYPES_H

#include "../../tune.h"
#include "../algo/algo.h"
#include "../plan/cursor.h"
#include "../device/device.h"
#include "../base/factor.h"
#include "../transport/local/fill.h"
#include "../transport/message.h"
#include "../boot/host.h"
#include "../boot/place.h"

#define DCOMMI_WINDOW 64       /* collectives that a rank may be ahead of any peer it sends to */
#define DCOMMI_CREDIT_EVERY 16 /* completions after which silent peers are told */
#define DCOMMI_HISTORY 256     /* past operations whose signatures can still be asked for */
#define DCOMMI_BUCKETS 1024    /* of a communicator's match table */
#define DCOMMI_RTS_MAPPED 8192 /* likewise from memory that the receiver can map */
#define DCOMMI_RTS_BYTES 32768 /* on one host, longer sends wait in the sender's memory */
/* Outputs from here on are stored past the caches. Where neither buffer is in a cache that takes a
 * quarter less from 64 KiB to 1 MiB; where both are (one call after another on the same 64 or 256
 * KiB and nothing else) it takes a quarter more. */
#define DCOMMI_PAST_RESULT ((int64_t)64 << 10)
/* Return true if a step stores a result of `bytes` so. */
static inline bool dcommi_result_past(const dcomm_step *step, int64_t bytes)
{
    return (step->flags & DCOMM_STEP_RESULT) && step->dst.space == DCOMM_SPACE_OUT &&
           bytes >= DCOMMI_PAST_RESULT;
}

#define DCOMMI_BULK_RESULT ((int64_t)256 << 10) /* operations from here on move much */
#define DCOMMI_PULL_BLOCK 65536                 /* bytes read from a peer before they are folded */

typedef struct dcommi_run dcommi_run;
typedef struct dcommi_frame dcommi_frame;
typedef struct dcommi_lane dcommi_lane;
typedef struct dcommi_move dcommi_move;
typedef struct dcommi_pull dcommi_pull;
typedef struct dcommi_script dcommi_script;
typedef struct dcommi_device dcommi_device;
typedef struct dcommi_own dcommi_own;     /* region.h */
typedef struct dcommi_map dcommi_map;     /* region.h */
typedef struct dcommi_coded dcommi_coded; /* coded/run.h */

/* ---- matching ---- */

enum dcommi_node_class {
    DCOMMI_NODE_POSTED,   /* a receive that waits for its message */
    DCOMMI_NODE_SENT,     /* an RTS that waits for FIN or PULL */
    DCOMMI_NODE_PULL,     /* a READ that waits for its reply */
    DCOMMI_NODE_EXPOSED,  /* what a peer has exposed to a run */
    DCOMMI_NODE_EARLY,    /* a message for a receive that is not posted yet */
    DCOMMI_NODE_EARLY_RUN /* a signal or exposition for a run or stage that is not there yet */
};

typedef struct dcommi_match_node {
    struct dcommi_match_node *next;
    uint64_t seq;
    uint32_t tag; /* EXPOSED: the slot */
    int32_t peer; /* EARLY_RUN: 0 */
    uint16_t stage;
    uint8_t stream;
    uint8_t cls;
} dcommi_match_node;

/* A message that came before anybody asked for it. */
typedef struct dcommi_early {
    dcommi_match_node node;
    dcommi_header header;
    dcommi_transport *transport;
    void *desc; /* the transport's, to be fetched or released; NULL: data is a copy of ours */
    void *data; /* NULL: still at the sender */
    size_t len;
} dcommi_early;

/* A peer's memory that this run may read. */
typedef struct dcommi_exposed {
    dcommi_match_node node;
    struct dcommi_exposed *next_of_run;
    uint64_t address, len;
    uint32_t region; /* that it lies in, of the peer's; 0: none */
    uint16_t device; /* 1 + number of the device that it lies on; 0: host memory */
} dcommi_exposed;

/* An operation that a rank has refused, or several in a row (refusal.h). */
typedef struct dcommi_refusal {
    struct dcommi_refusal *next;
    uint64_t from, to;
    int rank;  /* that refused it */
    bool over; /* here, too; false: still to come */
    char text[];
} dcommi_refusal;

/* ---- runs ---- */

enum dcommi_lane_state {
    DCOMMI_LANE_READY = 0,
    DCOMMI_LANE_MOVE,    /* the step's move is under way */
    DCOMMI_LANE_FENCE,   /* asynchronous moves are */
    DCOMMI_LANE_COUNTER, /* a counter is too low */
    DCOMMI_LANE_EXPOSE,  /* a peer has not exposed yet */
    DCOMMI_LANE_CREDIT,  /* too far ahead of a peer */
    DCOMMI_LANE_CALL,    /* a sub-plan runs */
    DCOMMI_LANE_DONE
};

struct dcommi_lane {
    dcommi_frame *frame;
    dcommi_lane *next_ready;
    dcommi_cursor cursor;
    uint8_t state;
    bool queued;
    bool forwarded;   /* the SEND or COPY that comes next has been done */
    uint32_t pending; /* asynchronous moves under way */
    uint32_t counter; /* what it waits for, where it waits */
    uint64_t target;
    int32_t peer;
};

/* A plan being executed: the run's own, or a sub-plan's. */
struct dcommi_frame {
    dcommi_run *run;
    dcommi_lane *caller; /* that waits for this frame; NULL: it is the run's own */
    dcommi_frame *next;  /* in run->children */
    dcommi_scope scope;
    uint8_t *space[DCOMM_SPACE_SCRATCH + 1];
    int64_t space_len[DCOMM_SPACE_SCRATCH + 1];
    uint64_t *words;
    uint32_t lanes_left;
    uint8_t on_device;    /* bit 1 << space: it lies on run->device */
    void *device_scratch; /* to be given back; NULL: none */
    uint8_t *shared;      /* likewise, a part of the context's scratch that peers map */
    dcommi_lane *lanes;
};

enum dcommi_move_kind { DCOMMI_MOVE_SEND, DCOMMI_MOVE_RECV, DCOMMI_MOVE_FOLD, DCOMMI_MOVE_REPLY };

/* A send or receive under way. */
struct dcommi_move {
    dcommi_op op; /* first: the transport gives it back */
    dcommi_match_node node;
    dcommi_lane *lane;
    dcommi_run *run;
    dcommi_move *next; /* in run->moves */
    dcommi_move **prev;
    dcommi_pull *pull; /* of a PULL node */
    uint8_t pull_block;
    uint8_t kind;
    bool async, final, past, in_transport;
    bool device; /* buf, dst and src are memory of run->device */
    uint8_t nsrc, msg_at;
    int32_t forward_rank; /* FOLD: whom the step behind sends the result; -1: nobody */
    uint32_t forward_tag;
    int32_t word; /* absolute pointer is lane->frame->words + word */
    uint8_t *buf; /* SEND: payload; RECV: dst; FOLD: stage */
    size_t len;   /* SEND: payload; RECV, FOLD: most that may arrive */
    uint8_t *dst;
    struct dcommi_slot *slot; /* pinned memory that it has (jobs.h); NULL: none */
    const void *src[DCOMMI_FOLD_SOURCES];
    size_t arrived;
};

/* All that ranks must agree on, kept for the sentence that says they do not. */
typedef struct dcommi_signature {
    uint32_t hash;  /* of what is below, combined with chain: headers have it */
    uint32_t chain; /* stands for all collectives before, so that the next one finds what they left
                       undiscovered; 0: none, or point-to-point */
    uint32_t dtype, op;
    uint8_t coll;
    int32_t root;
    uint64_t count;
    const char *algo;
} dcommi_signature;

typedef struct dcommi_peer_state {
    uint8_t entry; /* dcommi_entry as last heard */
    bool replied;  /* since the last query */
    char where[64];
} dcommi_peer_state;

/* A collective call as the caller gave it, in a few words: plans are found by it (cache.h). Fields
 * do not overlap, so that a call has the key of another only where it has the same arguments.
 * Counts that differ by rank, and codecs, are in it by two independent hashes. */
typedef struct dcommi_call_key {
    uint64_t call; /* root, operation, kind of memory, deterministic, in place */
    uint64_t type; /* dtype, operator */
    uint64_t mode; /* lanes, accumulate */
    uint64_t count, chunk;
    uint64_t counts[2];
} dcommi_call_key;

/* A cached plan with its users counted. */
typedef struct dcommi_cached {
    struct dcommi_cached *next; /* in its bucket */
    dcommi_call_key key;
    const char *asked; /* the algorithm that the call named; NULL: none */
    dcommi_signature signature;
    uint64_t used; /* clock for eviction */
    int refs;
    bool retired; /* not in the cache any more: free at the last release */
    dcomm_plan *plan;
    dcomm_plan *inner;     /* called by plan; NULL without */
    dcommi_script *script; /* NULL without */
} dcommi_cached;

/* The tie of a run to a stream of the caller's (gate.h). */
typedef struct dcommi_gate {
    void *stream;                  /* NULL: no gate */
    enum dcommi_stream_kind kind;  /* of the stream, where it has been asked for */
    int device;                    /* that was current when it was given */
    void *before;                  /* event behind what the stream held; NULL: that has been done */
    struct dcommi_gate_word *word; /* for which the stream waits; NULL: it does not */
    uint32_t value;
} dcommi_gate;

struct dcommi_run {
    dcomm_comm *comm;
    dcommi_run *next, *prev;    /* comm's active runs, by sequence number */
    dcommi_run *next_submitted; /* in the context's submission queue */
    dcommi_run *next_group;     /* in the thread's group */
    dcommi_run *next_finished;  /* in the context, until the engine has left it */
    dcommi_run *next_gated;     /* in the context, until its stream has come to it */
    dcommi_cached *cached;
    dcomm_op op;            /* held until the run is given back */
    const dcomm_plan *plan; /* of the current stage */
    dcommi_signature signature;
    uint64_t seq;
    uint8_t stream;
    int32_t p2p_peer;
    uint16_t stage;
    void (*give_back)(void *user, const dcomm_plan *plan); /* of the stage before, for plan */
    void *give_back_user;
    const void *in;
    void *out;
    dcommi_device *device; /* in and out are its memory; NULL: the host's */
    dcommi_gate gate;
    unsigned jobs;        /* of the device's under way */
    dcommi_coded *coded;  /* what this run brings along for its codec; NULL: nothing */
    dcomm_status verdict; /* with which a compressed run will end (verdict.h), by... */
    int32_t verdict_rank; /* ...the numbers of this rank */
    uint32_t mark;        /* of that, in the signature of what it sends; 0: none */
    dcommi_factor factor; /* where the plan begins with it as a word */
    bool factored;
    bool refused;       /* nothing runs: it stands for a call that this rank has refused */
    char *why;          /* of a run that fails alone, or is refused; NULL: comm->message says it */
    _Atomic int status; /* DCOMM_IN_PROGRESS until complete */
    bool active, blocking, queued; /* queued: in a group that has not ended */
    _Atomic int refs;              /* its user, the engine, moves that the transport holds */
    double timeout_s, submitted_at, idle_since, next_query;
    double ended_at; /* where comm->timed */
    uint64_t events, events_seen;
    dcommi_frame root;
    dcommi_frame *children;
    dcommi_move *moves;
    dcommi_pull *pulls;
    dcommi_exposed *exposed_list;
    uint64_t *counters;
    struct dcommi_offer {
        uint8_t *base;
        int64_t len;
        bool device;
    } * offers;               /* [nslots] of what we exposed */
    dcommi_peer_state *peers; /* [size], from the first query on */
    uint32_t next_pull;
    uint8_t *memory; /* lanes, words, counters, scratch */
    size_t memory_len;
};

struct dcomm_request {
    dcommi_run run; /* a request is its run */
};

/* ---- communicators ---- */

typedef struct dcommi_history {
    uint64_t seq;
    bool known;
    dcommi_signature signature;
} dcommi_history;

typedef struct dcommi_member {
    int peer;                                /* the context's number for it; -1: this rank itself */
    uint64_t done;                           /* collectives that it has told us it completed */
    uint64_t told;                           /* what we told it of ours */
    _Atomic uint64_t p2p_sent, p2p_received; /* operations called here, towards and from it */
    uint64_t p2p_done; /* of our sends, received there as far as we were told */
    uint64_t p2p_completed, p2p_told;
    bool heard;                 /* has sent to us: gets credits and a goodbye */
    bool addressed;             /* we have sent to it: gets a goodbye */
    bool gone;                  /* has said goodbye */
    bool asked;                 /* for credit, and has not answered */
    struct dcommi_bcast *bcast; /* where it writes what all shall read (bcast.h); NULL: none */
    uint64_t bcast_read;        /* messages that we have had from there */
    uint64_t gone_after;
    uint64_t shrink_set, shrink_try, shrink_done; /* its last SHRINK: a, b and seq */
    int shrink_failed; /* and with which status it gave that up; 0: not */
    bool shrink_out;   /* our call of shrink leaves it out */
    char *hostname;
} dcommi_member;

#define DCOMMI_CACHE_PLANS 64
#define DCOMMI_CACHE_BUCKETS 128

struct dcomm_comm {
    dcomm_context *context;
    dcomm_comm *next; /* in the context */
    int refs;         /* its creator, its runs; with lock */
    uint64_t id;
    int rank, size, nhosts;
    dcommi_groups *groups;
    struct dcommi_chooser *chooser; /* with lock */
    dcommi_site *places;            /* [size] */
    dcommi_member *members;
    double timeout_s;
    char algo[32];
    bool deterministic;
    bool tunes;      /* measures what things cost when it is created */
    bool timed;      /* its runs note when they end */
    bool device_ucx; /* UCX moves device memory between the hosts, on all ranks */
    int connections; /* to each rank on another host; 0: as tuning says */
    int64_t chunk_bytes;
    _Atomic int lock;                  /* sequence numbers, plan cache, free runs */
    uint8_t *scratch;                  /* of scripts */
    struct dcommi_bcast_writer *bcast; /* our own slots; NULL: none */
    bool attached;                     /* we poll the broadcast slots of all others */
    uint64_t next_seq;
    uint32_t chain;                  /* of the next collective; with lock */
    uint64_t children;               /* communicators derived so far, for their ids */
    uint64_t shrink_tries;           /* attempts at shrinking it */
    uint64_t shrunk_set, shrunk_try; /* the last that succeeded, and which ranks were left then */
    dcommi_run *free_runs;
    dcommi_coded *free_coded; /* with lock */
    dcommi_cached *cache[DCOMMI_CACHE_BUCKETS];
    int ncached;
    uint64_t cache_clock;
    /* below: only with the context's token */
    dcommi_run *runs, *last_run;
    uint64_t entered; /* one more than the highest number that has reached the engine */
    uint64_t started; /* how many have: fewer while a group of another thread holds some back */
    uint64_t done;    /* collectives completed, without gaps */
    dcommi_match_node *table[DCOMMI_BUCKETS];
    dcommi_history history[DCOMMI_HISTORY];
    size_t early_bytes, early_count;
    dcommi_refusal *refusals; /* newest first */
    dcommi_filler filler;     /* of slots that peers map */
    dcommi_ways folds;        /* of memory that ranks map from each other: as a filler's `ahead` */
    size_t in_transport;      /* moves whose buffers the transport may still touch */
    dcomm_stats stats;
    _Atomic int abort_wanted;
    char abort_reason[DCOMMI_TEXT_MAX];
    _Atomic int poisoned; /* the status, 0: none */
    _Atomic bool told;    /* the caller has been given it, or has asked */
    dcomm_on_error on_error;
    char message[DCOMMI_MESSAGE_MAX];
    /* non-blocking creation */
    _Atomic int ready; /* DCOMM_IN_PROGRESS, DCOMM_OK or why not */
    _Atomic int cancel;
    pthread_t creator;
    bool has_creator;
    dcomm_comm_opts opts;
    char *names[2]; /* the strings of opts.context_opts */
};

/* ---- contexts ---- */

typedef struct dcommi_remote {
    uint8_t uuid[16];
    dcommi_transport *transport;
    pid_t pid;
    uint64_t started; /* start time of that process, 0: unknown */
    bool same_host, lost;
    bool cannot_read_us; /* it asked us to send by message instead */
    bool unreadable;     /* we may not read its memory */
    bool takes_device;   /* UCX moves device memory between it and us */
    int users;           /* communicators */
    char why[160];
} dcommi_remote;

#define DCOMMI_MISSED 16

/* A message for a communicator that does not exist here yet. */
typedef struct dcommi_stray {
    struct dcommi_stray *next;
    dcommi_early *early;
} dcommi_stray;

struct dcomm_context {
    _Atomic int refs;    /* its creator, its communicators, its registered memory */
    _Atomic int holders; /* of its memory: it itself, communicators that runs keep */
    _Atomic int token;   /* who holds it progresses (token.h) */
    _Atomic int sharing, owner_in;
    bool
        open_stores; /* results stored past the caches since dcommi_settle_stores; with the token */
    const char *owner;
    uint8_t uuid[16];
    char host_id[DCOMMI_HOST_ID_MAX];
    char iface[64];
    dcommi_site place;
    _Atomic(dcommi_run *) submitted;
    dcommi_transport *local, *net;
    struct dcommi_ctl *control; /* connections with ranks on other hosts (control.h); NULL: none */
    dcommi_remote *peers;
    size_t npeers, peers_capacity;
    dcomm_comm *comms;
    dcommi_lane *ready_first, *ready_last;
    dcommi_move *free_moves;
    struct dcommi_control *free_controls;
    dcommi_stray *strays, *last_stray;
    size_t nstrays, stray_bytes, strays_dropped;
    uint64_t buried[64]; /* ids of communicators that are no more */
    unsigned nburied;
    uint64_t missed[DCOMMI_MISSED]; /* ids of communicators whose early messages were lost */
    unsigned nmissed;
    struct dcommi_regions *regions; /* NULL: never needed (region.h) */
    struct dcommi_scratch *scratch; /* NULL: never needed (scratch.h) */
    _Atomic int memory_due;         /* peers' device memory is to be opened or shut */
    uint8_t *staging;               /* blocks read from peers */
    size_t staging_len;
    const void **pointers;
    struct dcommi_piece *pieces;
    size_t *lengths;
    size_t pointers_capacity, pieces_capacity, lengths_capacity;
    size_t active; /* runs under way */
    dcommi_run *finished;
    dcommi_run *gated;                /* wait for their streams, in order of their coming */
    _Atomic(dcommi_device *) devices; /* that operations have used */
    dcommi_device *straight_device;   /* whose memory UCX moves itself; NULL: none yet */
    size_t straight;                  /* moves of it under way */
    _Atomic int aborts;               /* some communicator has abort_wanted */
    unsigned idle;                    /* polls in a row in which nothing happened */
    unsigned busy;                    /* polls in which something did */
    _Atomic unsigned spin_limit;      /* polls before yielding the core */
    _Atomic unsigned script_yields;   /* how often before a script leaves a wait to the engine */
    _Atomic unsigned script_pauses;   /* before the first look of a script's wait */
    double next_check;
    _Atomic bool has_thread;
    _Atomic int stop;
    pthread_t thread;
};

#endif
