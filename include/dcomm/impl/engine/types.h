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
#define DCOMMI_CREDIT_EVERY 16 /* completions after which silent peers are told of them */
#define DCOMMI_HISTORY 256     /* past operations whose signatures a communicator keeps */
#define DCOMMI_BUCKETS 1024    /* of a communicator's match table */
#define DCOMMI_RTS_MAPPED 8192 /* bytes: as below, if the receiver can map the memory */
#define DCOMMI_RTS_BYTES 32768 /* bytes: on one host, longer sends wait in the sender's memory */
/* Store outputs of at least this many bytes with nontemporal stores. This pays where neither
 * buffer is in a cache. It costs time where both are, as with repeated calls on the same
 * buffers. */
#define DCOMMI_PAST_RESULT ((int64_t)64 << 10)
/* Return true if `step` stores into an output of `bytes` bytes with nontemporal stores. */
static inline bool dcommi_result_past(const dcomm_step *step, int64_t bytes)
{
    return (step->flags & DCOMM_STEP_RESULT) && step->dst.space == DCOMM_SPACE_OUT &&
           bytes >= DCOMMI_PAST_RESULT;
}

#define DCOMMI_BULK_RESULT ((int64_t)256 << 10) /* bytes: such operations move much */
#define DCOMMI_PULL_BLOCK 65536                 /* bytes read from a peer before they are folded */

typedef struct dcommi_run dcommi_run;
typedef struct dcommi_frame dcommi_frame;
typedef struct dcommi_lane dcommi_lane;
typedef struct dcommi_move dcommi_move;
typedef struct dcommi_pull dcommi_pull;
typedef struct dcommi_script dcommi_script;
typedef struct dcommi_device dcommi_device;
typedef struct dcommi_own dcommi_own;             /* region.h */
typedef struct dcommi_map dcommi_map;             /* region.h */
typedef struct dcommi_coded dcommi_coded;         /* coded/run.h */
typedef struct dcommi_agreement dcommi_agreement; /* agreement.h */

/* Functions of a room above, for a communicator whose messages of type SERVICE that room handles,
 * and which no lost rank fails. With the token. */
typedef struct dcommi_service {
    dcommi_verdict (*on_message)(struct dcomm_comm *comm, const dcommi_header *h,
                                 dcommi_transport *transport, const dcommi_arrival *arrival);
    void (*on_lost)(struct dcomm_comm *comm, int rank); /* or it has left; perhaps told before */
    void (*on_failed)(struct dcomm_comm *comm);         /* the communicator */
    void (*check)(struct dcomm_comm *comm, double now); /* about 20 times a second */
} dcommi_service;

/* ---- matching ---- */

enum dcommi_node_class {
    DCOMMI_NODE_POSTED,   /* a receive that waits for its message */
    DCOMMI_NODE_SENT,     /* an RTS that waits for FIN or PULL */
    DCOMMI_NODE_PULL,     /* a READ that waits for its reply */
    DCOMMI_NODE_EXPOSED,  /* memory that a peer has exposed to a run */
    DCOMMI_NODE_EARLY,    /* a message for a receive that is not posted yet */
    DCOMMI_NODE_EARLY_RUN /* a SIGNAL or EXPOSE for a run or stage that has not begun */
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

/* A message that came before its receive or run. */
typedef struct dcommi_early {
    dcommi_match_node node;
    dcommi_header header;
    dcommi_transport *transport;
    void *desc; /* the transport's: fetch or release it; NULL: `data` is our own copy */
    void *data; /* NULL: the payload is still at the sender */
    size_t len;
} dcommi_early;

/* A peer's memory that this run may read. */
typedef struct dcommi_exposed {
    dcommi_match_node node;
    struct dcommi_exposed *next_of_run;
    uint64_t address, len;
    uint32_t region; /* the peer's region that contains it; 0: none */
    uint16_t device; /* 1 + number of the device that has it; 0: host memory */
} dcommi_exposed;

/* An operation, or several in a row, that a rank has refused (refusal.h). */
typedef struct dcommi_refusal {
    struct dcommi_refusal *next;
    uint64_t from, to;
    int rank;  /* the rank that refused it */
    bool over; /* true: it is over here, too; false: it is still to come */
    char text[];
} dcommi_refusal;

/* ---- runs ---- */

enum dcommi_lane_state {
    DCOMMI_LANE_READY = 0,
    DCOMMI_LANE_MOVE,    /* the step's move is under way */
    DCOMMI_LANE_FENCE,   /* asynchronous moves are under way */
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
    bool forwarded;   /* the next SEND or COPY has been done already */
    uint32_t pending; /* asynchronous moves under way */
    uint32_t counter; /* COUNTER: the counter that it waits for */
    uint64_t target;
    int32_t peer;
};

/* A plan being executed: the run's own, or a sub-plan's. */
struct dcommi_frame {
    dcommi_run *run;
    dcommi_lane *caller; /* the lane that waits for this frame; NULL: it is the run's own */
    dcommi_frame *next;  /* in run->children */
    dcommi_scope scope;
    uint8_t *space[DCOMM_SPACE_SCRATCH + 1];
    int64_t space_len[DCOMM_SPACE_SCRATCH + 1];
    uint64_t *words;
    uint32_t lanes_left;
    uint8_t on_device;    /* bit 1 << space: that space lies on run->device */
    void *device_scratch; /* scratch to be released; NULL: none */
    uint8_t *shared;      /* scratch in the context's region that peers map; NULL: none */
    dcommi_lane *lanes;
};

enum dcommi_move_kind { DCOMMI_MOVE_SEND, DCOMMI_MOVE_RECV, DCOMMI_MOVE_FOLD, DCOMMI_MOVE_REPLY };

/* A send or receive under way. */
struct dcommi_move {
    dcommi_op op; /* first: the transport returns a pointer to it */
    dcommi_match_node node;
    dcommi_lane *lane;
    dcommi_run *run;
    dcommi_move *next; /* in run->moves */
    dcommi_move **prev;
    dcommi_pull *pull; /* the pull that a PULL node serves */
    uint8_t pull_block;
    uint8_t kind;
    bool async, final, past, in_transport;
    bool device; /* buf, dst and src are memory of run->device */
    uint8_t nsrc, msg_at;
    int32_t forward_rank; /* FOLD: the rank to which the next step sends the result; -1: none */
    uint32_t forward_tag;
    int32_t word; /* RECV: index of the frame's word for the length; -1: none; PULL: the piece */
    uint8_t *buf; /* SEND: payload; RECV: dst; FOLD: stage */
    size_t len;   /* SEND: payload; RECV, FOLD: the most that may arrive */
    uint8_t *dst;
    struct dcommi_slot *slot; /* its pinned memory (jobs.h); NULL: none */
    const void *src[DCOMMI_FOLD_SOURCES];
    size_t arrived;
};

/* The arguments on which ranks must agree, kept for the error message if they do not. */
typedef struct dcommi_signature {
    uint32_t hash;  /* of the fields below, combined with chain; every header carries it */
    uint32_t chain; /* stands for all earlier collectives, so that a mismatch which they missed is
                       found later; 0: none, or point-to-point */
    uint32_t dtype, op;
    uint8_t coll;
    int32_t root;
    uint64_t count;
    const char *algo;
} dcommi_signature;

typedef struct dcommi_peer_state {
    uint8_t entry; /* the dcommi_entry that it last reported */
    bool replied;  /* it has answered since the last query */
    bool known;    /* it has answered some query */
    double asked;  /* when the first query was sent that it has not answered */
    char where[64];
} dcommi_peer_state;

/* The arguments of a collective call, packed into a few words: the key of the plan cache
 * (cache.h). Fields do not overlap, so equal keys mean equal arguments. Counts that differ by
 * rank, and codecs, enter as two independent hashes. */
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
    uint64_t used; /* clock of its last use, for eviction */
    int refs;
    bool retired; /* out of the cache: free it at the last release */
    dcomm_plan *plan;
    dcomm_plan *inner;     /* the plan that `plan` calls; NULL: none */
    dcommi_script *script; /* NULL: none */
} dcommi_cached;

/* Ties a run to a stream of the caller (gate.h). */
typedef struct dcommi_gate {
    void *stream;                  /* NULL: no gate */
    enum dcommi_stream_kind kind;  /* of the stream, once it has been asked for */
    int device;                    /* the device that was current at the call */
    struct dcommi_gate_word *word; /* words that the stream writes and waits for; NULL: none */
    uint32_t value;
    bool coming; /* the stream has yet to come to the run */
    bool failed; /* and never will */
} dcommi_gate;

struct dcommi_run {
    dcomm_comm *comm;
    dcommi_run *next, *prev;    /* comm's active runs, by sequence number */
    dcommi_run *next_submitted; /* in the context's submission queue */
    dcommi_run *next_group;     /* in the thread's group */
    dcommi_run *next_finished;  /* in the context, until the engine has left its lanes */
    dcommi_run *next_gated;     /* in the context, until its stream has reached it */
    dcommi_cached *cached;
    dcomm_op op;            /* kept registered until the run is given back */
    const dcomm_plan *plan; /* of the current stage */
    dcommi_signature signature;
    uint64_t seq;
    uint8_t stream;
    int32_t p2p_peer;
    uint16_t stage;
    void (*give_back)(void *user, const dcomm_plan *plan); /* returns `plan` to the stage before */
    void *give_back_user;
    const void *in;
    void *out;
    dcommi_device *device; /* in and out are its memory; NULL: host memory */
    dcommi_gate gate;
    unsigned jobs;        /* jobs under way on the device */
    dcommi_coded *coded;  /* the run's data for its codec; NULL: none */
    dcomm_status verdict; /* status with which a compressed run will end (verdict.h) */
    int32_t verdict_rank; /* the rank whose numbers caused it */
    uint32_t mark;        /* the verdict's mark in the signatures that it sends; 0: none */
    dcommi_factor factor; /* the first words of the plan, if `factored` */
    bool factored;
    union dcommi_late *late; /* where the factor will be when the run starts; NULL: it is there */
    bool refused;            /* nothing runs: this rank has refused the call */
    char *why;          /* error of a run that fails alone, or is refused; NULL: comm->message */
    _Atomic int status; /* DCOMM_IN_PROGRESS until complete */
    bool active, blocking, queued; /* queued: in a group that has not ended */
    bool told_long;                /* the log has its sentence about a long wait */
    _Atomic int refs;              /* of its user, the engine, moves in the transport */
    double timeout_s, submitted_at, idle_since, next_query;
    double reached_at; /* when its stream had come to it; 0: it did not wait for one; set if
                        * comm->timed */
    double ended_at;   /* likewise */
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
    } * offers;               /* [nslots], memory that we exposed */
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

/* The head of memory for an exchange of the communicator's own (comm/loan.h). */
typedef struct dcommi_loan {
    struct dcommi_loan *next;
    bool vain; /* the communicator had failed before: the exchange moves nothing */
} dcommi_loan;

typedef struct dcommi_member {
    int peer;                                /* the context's number for it; -1: this rank */
    uint64_t done;                           /* collectives that it has reported complete */
    uint64_t told;                           /* our own count that it was last told */
    _Atomic uint64_t p2p_sent, p2p_received; /* sends to it and receives from it, called here */
    uint64_t p2p_done;                       /* sends to it that it has reported received */
    uint64_t p2p_completed, p2p_told;
    bool heard;                 /* has sent to us, so it gets credits and a goodbye */
    bool addressed;             /* we have sent to it, so it gets a goodbye */
    bool gone;                  /* has said goodbye */
    bool told_us;               /* has told us of the communicator's error */
    bool asked;                 /* we have asked it for credit, and it has not answered */
    struct dcommi_bcast *bcast; /* its broadcast slots (bcast.h); NULL: none */
    uint64_t bcast_read;        /* messages that we have read there */
    uint64_t gone_after;
    char *hostname;
} dcommi_member;

#define DCOMMI_CACHE_PLANS 64
#define DCOMMI_CACHE_BUCKETS 128

struct dcomm_comm {
    dcomm_context *context;
    dcomm_comm *next; /* in the context's list */
    int refs;         /* of its creator and its runs; with lock */
    uint64_t id;
    int rank, size, nhosts;
    dcommi_groups *groups;
    struct dcommi_chooser *chooser; /* with lock */
    dcommi_site *places;            /* [size] */
    dcommi_member *members;
    double timeout_s, liveness_s;
    char algo[32];
    bool deterministic;
    bool tunes;         /* is tuned when it is created */
    bool timed;         /* its runs record when they end */
    bool all_connected; /* we have a control connection with each rank on another host, and so, as
                           far as we know, have all */
    bool leaves;        /* this rank says goodbye: a loss is of no concern to it any more */
    bool seen_by_all;   /* the death that poisoned it, by all ranks themselves */
    bool device_ucx;    /* UCX of all ranks moves device memory between hosts */
    int quorum;         /* ranks that must be left to go on; 0: the default; below 0: any number */
    int connections;    /* to each rank on another host; 0: from the tuning */
    int64_t chunk_bytes;
    _Atomic int lock;                  /* protects sequence numbers, plan cache, free runs */
    uint8_t *scratch;                  /* for scripts */
    struct dcommi_bcast_writer *bcast; /* our own slots; NULL: none */
    bool attached;                     /* we poll the broadcast slots of all others */
    uint64_t lost;      /* 1 + the rank whose loss poisoned it; 0: none. ABORT tells it ... */
    bool lost_proven;   /* ... and if its death is certain */
    dcommi_loan *loans; /* of exchanges under way, and of those that have failed; with lock */
    bool by_another;    /* another rank has found the error, or its loss is the error */
    uint64_t next_seq;
    uint32_t chain;    /* for the next collective; with lock */
    uint64_t children; /* communicators derived so far, for their ids */
    dcommi_run *free_runs;
    dcommi_coded *free_coded; /* with lock */
    dcommi_cached *cache[DCOMMI_CACHE_BUCKETS];
    int ncached;
    uint64_t cache_clock;
    /* below: only with the context's token */
    dcommi_run *runs, *last_run;
    uint64_t entered; /* 1 + the highest number that has reached the engine */
    uint64_t started; /* how many have: fewer while a group of another thread holds some back */
    uint64_t done;    /* collectives completed, without gaps */
    dcommi_match_node *table[DCOMMI_BUCKETS];
    dcommi_history history[DCOMMI_HISTORY];
    size_t early_bytes, early_count;
    dcommi_refusal *refusals; /* newest first */
    dcommi_agreement *agreements;
    dcommi_agreement *spare;       /* for the next list of ranks that a caller leaves out */
    const dcommi_service *service; /* NULL: none */
    void *served;                  /* for the service */
    dcommi_filler filler;          /* for slots that peers map */
    dcommi_ways folds;             /* trials of prefetching, for folds of memory that ranks map from
                                      each other */
    size_t in_transport;           /* moves whose buffers the transport may still touch */
    dcomm_stats stats;
    _Atomic int abort_wanted;
    char abort_reason[DCOMMI_TEXT_MAX];
    _Atomic int poisoned; /* the error status; 0: none */
    _Atomic bool told;    /* the caller has got the error, or has asked for it */
    dcomm_on_error on_error;
    char message[DCOMMI_MESSAGE_MAX];
    /* non-blocking creation */
    _Atomic int ready; /* DCOMM_IN_PROGRESS, DCOMM_OK or the error */
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
    uint64_t started; /* start time of that process; 0: unknown */
    bool same_host, lost;
    bool proven; /* its death: its process has ended, or its control connection was reset. A lost
                    peer without it is only silent, or sent bytes that cannot be right */
    bool gave_us_up; /* it counts us as dead. Its end proves nothing: it may have agreed with others
                        to go on without us */
    bool cannot_read_us; /* it has asked for payloads by message instead */
    bool unreadable;     /* we may not read its memory */
    bool takes_device;   /* UCX moves device memory between it and us */
    int users;           /* communicators that have it */
    double looked_at; /* when its process was last looked at, and the time of cores that it had */
    uint64_t ticks;   /* used then (silence.h) */
    bool stopped;     /* then */
    double stopped_s; /* seconds for which it was seen stopped since it last ran */
    char why[160];
} dcommi_remote;

#define DCOMMI_MISSED 16
#define DCOMMI_BURIED 64

/* A message for a communicator that does not exist here yet. */
typedef struct dcommi_stray {
    struct dcommi_stray *next;
    dcommi_early *early;
} dcommi_stray;

struct dcomm_context {
    _Atomic int refs;    /* of its creator, its communicators, its registered memory */
    _Atomic int holders; /* of this struct: the open context, communicators */
    _Atomic int token;   /* its holder makes progress (token.h) */
    _Atomic int sharing, owner_in;
    bool open_stores; /* nontemporal stores since dcommi_settle_stores; with the token */
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
    _Atomic size_t unsent; /* control messages that wait in the transports */
    dcommi_stray *strays, *last_stray;
    size_t nstrays, stray_bytes, strays_dropped;
    uint64_t buried[DCOMMI_BURIED]; /* ids of communicators that this process has left */
    unsigned nburied;
    uint64_t missed[DCOMMI_MISSED]; /* ids of communicators whose early messages were lost */
    unsigned nmissed;
    struct dcommi_regions *regions; /* NULL: never needed (region.h) */
    struct dcommi_scratch *scratch; /* NULL: never needed (scratch.h) */
    _Atomic int memory_due;         /* peers' device memory is to be opened or closed */
    uint8_t *staging;               /* blocks read from peers */
    size_t staging_len;
    const void **pointers;
    struct dcommi_piece *pieces;
    size_t *lengths;
    size_t pointers_capacity, pieces_capacity, lengths_capacity;
    size_t active; /* runs under way */
    dcommi_run *finished;
    dcommi_run *gated; /* runs that wait for their streams, oldest first */
    size_t ngated;
    _Atomic(dcommi_device *) devices; /* used by operations so far */
    dcommi_device *straight_device;   /* UCX moves memory of this device; NULL: of none */
    size_t straight;                  /* moves by UCX of such memory under way */
    _Atomic int aborts;               /* some communicator has abort_wanted */
    unsigned idle;                    /* polls in a row in which nothing happened */
    unsigned busy;                    /* polls in which something happened */
    _Atomic unsigned spin_limit;      /* polls before yielding the core */
    _Atomic unsigned script_yields;   /* yields before a script leaves a wait to the engine */
    _Atomic unsigned script_pauses;   /* pauses before the first poll of a script's wait */
    double next_watch, next_check;    /* coarse clock */
    double liveness_s;                /* of the communicator created last; INFINITY: off */
    bool appoints;                    /* ranks have failed or left: others may have to beat */
    struct dcommi_lobby *lobbies;     /* of ids by which communicators have grown; with the token */
    _Atomic bool has_thread;
    _Atomic int stop;
    bool hurries; /* its last communicator had failed, so it closes without waiting for peers */
    pthread_t thread;
};

#endif
