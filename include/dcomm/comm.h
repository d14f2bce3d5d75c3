/* comm.h - contexts, how ranks find each other, the life of a communicator. */
#ifndef DCOMM_COMM_H
#define DCOMM_COMM_H

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One rank's transport: UCX, the connections, the progress. Usually one per process; several work
 * (each is a rank of its own). Communicators share it and keep it alive. */
typedef struct dcomm_context dcomm_context;
/* An ordered group of ranks that run collectives together. */
typedef struct dcomm_comm dcomm_comm;
/* An outstanding non-blocking operation. */
typedef struct dcomm_request dcomm_request;

#define DCOMM_ID_BYTES 128
/* Names a rendezvous: addresses, port and a 128-bit secret. Made by one rank, handed to the others
 * by whatever means the program has (a file, MPI, a socket); plain bytes, safe to copy. Whoever
 * holds it can join: keep it as secret as the training data. */
typedef struct dcomm_id {
    uint8_t bytes[DCOMM_ID_BYTES];
} dcomm_id;

/* Gathers `bytes` bytes from every rank, in rank order, into `all` (size * bytes). Called from the
 * thread that creates the communicator, several times, in the same order on every rank. Returns 0
 * or an error of its own. */
typedef int (*dcomm_allgather_fn)(const void *mine, size_t bytes, void *all, void *user);

typedef struct dcomm_context_opts {
    bool progress_thread; /* a thread that progresses while the caller computes (default: no;
                             environment DCOMM_PROGRESS_THREAD=1) */
    const char *iface;    /* network interface for other hosts, e.g. "eth0" (default: DCOMM_IFACE,
                             else the one towards MASTER_ADDR, else the default route's, else
                             the first that is up; the loopback only when there is no other) */
    const char *host_id;  /* ranks share memory only where this is equal (default: DCOMM_HOSTID,
                             else the machine's boot id) and where they can hand each other
                             descriptors: one user, and one network namespace or one /dev/shm */
} dcomm_context_opts;

/* Open a context. It is closed when its creator has destroyed it and neither a communicator nor
 * memory from dcomm_mem_alloc is left.
 * Errors: DCOMM_ERR_TRANSPORT (UCX), DCOMM_ERR_SYSTEM (no socket, no thread). */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_context_create(const dcomm_context_opts *opts,
                                                          dcomm_context **context_p);
DCOMM_API dcomm_status dcomm_context_destroy(dcomm_context **context_p);

/* Progress every communicator of the context once, without blocking. Any wait does the same; call
 * it in long computations when there is no progress thread. Yields the core where nothing has
 * happened for some calls. */
DCOMM_API dcomm_status dcomm_context_progress(dcomm_context *context);

typedef enum dcomm_boot {
    DCOMM_BOOT_AUTO = 0,     /* the launcher's environment: torchrun, Open MPI, MPICH, Slurm; a
                                program without a launcher is one rank. Half a description (RANK
                                without WORLD_SIZE) is DCOMM_ERR_INVALID */
    DCOMM_BOOT_ID = 1,       /* opts.id, opts.rank, opts.size */
    DCOMM_BOOT_ALLGATHER = 2 /* opts.allgather, opts.rank, opts.size */
} dcomm_boot;

/* Actions of a communicator that is poisoned, beside failing its calls (docs/errors.md). */
typedef enum dcomm_on_error {
    DCOMM_ON_ERROR_DEFAULT = 0, /* as DCOMM_ERRORS=return|print|abort says, else print */
    DCOMM_ON_ERROR_RETURN = 1,  /* nothing more */
    DCOMM_ON_ERROR_PRINT = 2,   /* tell the logger (or stderr) once: rank and sentence */
    DCOMM_ON_ERROR_ABORT = 3    /* the same, then abort(); also where creation fails */
} dcomm_on_error;

#define DCOMM_CONNECTIONS_MAX 16 /* between two ranks on different hosts */

typedef struct dcomm_comm_opts {
    dcomm_context *context; /* (default: a new one that lives as long as the communicator) */
    dcomm_context_opts context_opts; /* for that new one */
    dcomm_boot boot;                 /* (default: DCOMM_BOOT_AUTO) */
    int rank, size;                  /* with DCOMM_BOOT_ID and DCOMM_BOOT_ALLGATHER */
    dcomm_id id;                     /* with DCOMM_BOOT_ID */
    dcomm_allgather_fn allgather;    /* with DCOMM_BOOT_ALLGATHER */
    void *allgather_user;
    double timeout_s;   /* creation and every operation (default: DCOMM_TIMEOUT, else 300) */
    const char *algo;   /* algorithm forced for every call of an operation that has it; other
                           operations choose theirs. Where it cannot fold in rank order and a call
                           asks for that (deterministic, accumulate, an ordered operator), the call
                           fails with DCOMM_ERR_UNSUPPORTED (default: DCOMM_ALGO, else "auto"); rank
                           0's is taken by all ranks */
    bool deterministic; /* fold in rank order always (default: DCOMM_DETERMINISTIC, else no);
                           rank 0's is taken by all ranks */
    size_t chunk_bytes; /* pipelining grain of long messages (default: DCOMM_CHUNK, else
                           chosen per algorithm); rank 0's is taken by all ranks */
    int tune;           /* 1: measure what things cost, once per process and set of hosts, so that
                           algorithms are chosen by it: 0.2 s on a host, 0.6 s where ranks share
                           its cores or links are slow (or read it, where DCOMM_TUNE_FILE names a
                           file, or where an earlier run on this host has kept it:
                           DCOMM_TUNE_CACHE); -1: choose by built-in numbers (default:
                           DCOMM_TUNE=1|0, else 1); rank 0's is taken by all ranks */
    int connections;    /* over which a rank sends to a rank of another host, 1 to 16. Several are
                           faster where the network limits each by itself (default:
                           DCOMM_CONNECTIONS, else chosen: as few as nearly fill the link, where
                           tuning measures, those of the tuning where it is read, else 1); rank 0's
                           is taken by all ranks. Communicators of a context share connections: the
                           one created or tuned last decides */
    dcomm_on_error on_error; /* of this rank alone; communicators derived from this one do alike
                                (default: DCOMM_ON_ERROR_DEFAULT) */
} dcomm_comm_opts;

/* Make an id on one rank, and serve the rendezvous from a thread of this process until all `size`
 * ranks have come or the communicator that uses it is destroyed. Children that are forked after it
 * may be the ranks.
 * Errors: DCOMM_ERR_INVALID, DCOMM_ERR_SYSTEM (no socket, no randomness). */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_id_create(dcomm_id *id);

/* Create a communicator; collective over all its ranks. opts may be NULL. It may be tried again
 * after an error. Measuring (opts.tune) included, it fails on all ranks or on none. A rank that
 * fails alone (bad options, no shared memory, no memory) takes up to 5 s to tell the others, whose
 * sentence names it. Errors: DCOMM_ERR_RENDEZVOUS or DCOMM_ERR_TIMEOUT (who is missing),
 * DCOMM_ERR_AUTH (wrong secret), DCOMM_ERR_MISMATCH (sizes, versions), DCOMM_ERR_INVALID,
 * DCOMM_ERR_NO_MEMORY, DCOMM_ERR_TRANSPORT. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_comm_create(const dcomm_comm_opts *opts,
                                                       dcomm_comm **comm_p);
/* The same without blocking: *comm_p exists at once; dcomm_comm_ready tells when it can be used.
 * Any other call on it before then fails with DCOMM_ERR_INVALID; destroying it cancels. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_comm_create_start(const dcomm_comm_opts *opts,
                                                             dcomm_comm **comm_p);
/* DCOMM_OK, DCOMM_IN_PROGRESS, or why creation failed. */
DCOMM_API dcomm_status dcomm_comm_ready(dcomm_comm *comm);

/* Close a communicator and set *comm_p to NULL. No other thread may be inside a call on it: abort,
 * join, then destroy. Waits until the operations that are outstanding are complete or have timed
 * out (dcomm_comm_abort before it ends them at once); their requests are still to be waited for, or
 * freed. Then waits up to 5 s for the goodbyes of its peers. NULL and *comm_p NULL are good.
 * Errors: DCOMM_ERR_INVALID (this thread has queued operations on it in a group); the error that
 * poisoned the communicator, where nobody has looked at it: no call and no wait has returned it,
 * nor will the wait for an outstanding request; dcomm_comm_status, _error, _ready and _shrink were
 * not called since. The communicator is closed all the same. */
DCOMM_API dcomm_status dcomm_comm_destroy(dcomm_comm **comm_p);

/* Split by colour (ranks with equal colour end up together, ordered by key, then by old rank);
 * collective. A negative colour takes part and gets *new_p = NULL. Like dup and shrink it waits,
 * and so cannot stand between dcomm_group_start and dcomm_group_end. Where one rank has no memory
 * for its part, all get an error, and may try again; where it cannot even take part,
 * `comm` is poisoned. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_comm_split(dcomm_comm *comm, int color, int key,
                                                      dcomm_comm **new_p);
/* A communicator with the same ranks and a message space of its own; collective. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_comm_dup(dcomm_comm *comm, dcomm_comm **new_p);
/* A communicator without the n ranks in `excluded`; collective over the others, which must all
 * name the same ranks. Works after an error, which is what it is for. Survivors keep their order.
 * Waits for the others at most as long as the communicator's operations; after an error it can be
 * called again, also by ranks that have called it a different number of times.
 * Errors: DCOMM_ERR_INVALID (own rank excluded, bad rank), DCOMM_ERR_NO_MEMORY (here, or on a rank
 * that the sentence names), DCOMM_ERR_TIMEOUT, DCOMM_ERR_PEER. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_comm_shrink(dcomm_comm *comm, const int *excluded, int n,
                                                       dcomm_comm **new_p);
/* Fail every outstanding and future operation on every rank with DCOMM_ERR_ABORTED and `reason`
 * (NULL: none given). From any thread; does not block. */
DCOMM_API dcomm_status dcomm_comm_abort(dcomm_comm *comm, const char *reason);

/* -1, -1 and NULL of NULL, and of a communicator that is not created yet. */
DCOMM_API int dcomm_comm_rank(const dcomm_comm *comm);
DCOMM_API int dcomm_comm_size(const dcomm_comm *comm);
DCOMM_API dcomm_context *dcomm_comm_context(const dcomm_comm *comm);
/* The error that poisoned the communicator (DCOMM_OK: none), and its sentence ("": none; valid
 * until the communicator is destroyed). */
DCOMM_API dcomm_status dcomm_comm_status(const dcomm_comm *comm);
DCOMM_API const char *dcomm_comm_error(const dcomm_comm *comm);
/* Index of the host that a rank is on: ranks that share memory have equal numbers, from 0 in
 * order of lowest rank. -1 for a bad rank. */
DCOMM_API int dcomm_comm_host(const dcomm_comm *comm, int rank);
/* Name of the machine that a rank runs on. NULL for a bad rank; owned by the communicator. */
DCOMM_API const char *dcomm_comm_hostname(const dcomm_comm *comm, int rank);

/* ---- topology: who is near whom ----
 *
 * The ranks of a communicator form groups, level by level, coarsest first: those of one host, then
 * of one package (socket), NUMA node, last-level cache, core; NUMA nodes come before packages on
 * machines with several packages in a node. A group lies within one group of the level above. Level
 * 0 is always the host; of the others only those are there that divide a group
 * of the level above. What is known is read when the context is created, and kept by the
 * communicators that are derived from one (docs/topology.md). */

typedef enum dcomm_level_kind {
    DCOMM_LEVEL_HOST = 0,
    DCOMM_LEVEL_PACKAGE = 1,
    DCOMM_LEVEL_NUMA = 2,
    DCOMM_LEVEL_CACHE = 3,
    DCOMM_LEVEL_CORE = 4
} dcomm_level_kind;

typedef struct dcomm_level {
    dcomm_level_kind kind; /* what the ranks of one of its groups share */
    const char *name;      /* "host", "package", "numa", "cache", "core" */
    int groups;
} dcomm_level;

/* Where a rank runs. Numbers are hwloc's logical indices on the rank's machine. */
typedef struct dcomm_place {
    int package, numa, cache, core; /* -1: it may run on several, or there is none */
    int cpus;                       /* hardware threads that it may run on; 0: not known */
    bool bound;        /* the scheduler cannot move it to where another rank of its host runs */
    char cpu_list[64]; /* those hardware threads, by the system's numbers: "0-3,8" */
    char nic[16];      /* device of the network interface towards other hosts, or "none" */
    char gpu[16];      /* PCI address of the nearest GPU, or "none" */
} dcomm_place;

/* Number of levels, 1 to 5; -1 of NULL and of a communicator that is not created yet. */
DCOMM_API int dcomm_comm_level_count(const dcomm_comm *comm);
/* Level 0, 1, ...; DCOMM_ERR_INVALID past the last one. */
DCOMM_API dcomm_status dcomm_comm_get_level(const dcomm_comm *comm, int level, dcomm_level *info);
/* The group of a rank at a level; groups are numbered from 0 in order of their lowest rank. -1 for
 * a bad rank or level. */
DCOMM_API int dcomm_comm_group(const dcomm_comm *comm, int level, int rank);
/* The rank at a position of the order in which rings pass through the ranks: at every level the
 * ranks of a group stand next to each other. -1 for a bad position. */
DCOMM_API int dcomm_comm_order(const dcomm_comm *comm, int position);
/* Where a rank runs. Errors: DCOMM_ERR_INVALID (bad rank, NULL). */
DCOMM_API dcomm_status dcomm_comm_get_place(const dcomm_comm *comm, int rank, dcomm_place *place);

#ifdef __cplusplus
}
#endif
#endif
