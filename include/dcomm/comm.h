/* comm.h - contexts, how ranks find each other, and the life of a communicator. */
#ifndef DCOMM_COMM_H
#define DCOMM_COMM_H

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The transport of one rank: UCX, the connections, and their progress. A process usually has one
 * context. It may have several, each for a rank of its own. Communicators share a context and keep
 * it alive. */
typedef struct dcomm_context dcomm_context;
/* An ordered group of ranks that run collectives together. */
typedef struct dcomm_comm dcomm_comm;
/* An outstanding non-blocking operation. */
typedef struct dcomm_request dcomm_request;

#define DCOMM_ID_BYTES 128 /* length of a dcomm_id */
/* The name of a rendezvous: addresses, port and a 128-bit secret. One rank creates it and passes
 * it to the others by any means (a file, MPI, a socket). It is plain bytes and may be copied.
 * Everyone who has it can join: keep it as secret as the training data. */
typedef struct dcomm_id {
    uint8_t bytes[DCOMM_ID_BYTES]; /* opaque */
} dcomm_id;

/* Gather `bytes` bytes from every rank, in rank order, into `all` (size * bytes). Return 0, or an
 * error code of your own. dcomm calls it from the thread that creates the communicator, several
 * times, in the same order on every rank. */
typedef int (*dcomm_allgather_fn)(const void *mine, size_t bytes, void *all, void *user);

/* All zero means the defaults. Strings are copied. */
typedef struct dcomm_context_opts {
    /* Start a thread that makes progress while the caller computes (default: no; environment
     * DCOMM_PROGRESS_THREAD=1). */
    bool progress_thread;
    /* Network interface towards other hosts, such as "eth0" (default: DCOMM_IFACE, else the
     * interface towards MASTER_ADDR, else that of the default route, else the first that is up;
     * the loopback only if there is no other; of those that NCCL_SOCKET_IFNAME admits). */
    const char *iface;
    /* Id of this host. Ranks share memory only if their host ids are equal and if they can pass
     * each other file descriptors. That needs one user, and one network namespace or one /dev/shm
     * (default: DCOMM_HOSTID, else the machine's boot id). */
    const char *host_id;
} dcomm_context_opts;

/* Open a context; opts may be NULL. It closes when its creator has destroyed it, its last
 * communicator is destroyed, and its last memory from dcomm_mem_alloc is freed.
 * Errors: DCOMM_ERR_INVALID, DCOMM_ERR_TRANSPORT (UCX), DCOMM_ERR_SYSTEM (no socket, no thread). */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_context_create(const dcomm_context_opts *opts,
                                                          dcomm_context **context_p);
/* Release the creator's hold on a context and set *context_p to NULL. The context closes when
 * nothing uses it any more (dcomm_context_create). NULL and *context_p NULL are fine. */
DCOMM_API dcomm_status dcomm_context_destroy(dcomm_context **context_p);

/* Make progress once, without blocking, on every communicator of the context. Every wait does the
 * same. Call it in long computations if there is no progress thread. After some calls in a row
 * without progress, it yields the core. */
DCOMM_API dcomm_status dcomm_context_progress(dcomm_context *context);

/* Ways in which the ranks of a communicator meet. */
typedef enum dcomm_boot {
    DCOMM_BOOT_AUTO = 0,      /* read the launcher's environment: torchrun, Open MPI, MPICH, Slurm.
                                 A program without a launcher is one rank. An incomplete environment
                                 (RANK without WORLD_SIZE) is DCOMM_ERR_INVALID.
                                 DCOMM_JOIN=1 makes it DCOMM_BOOT_JOIN */
    DCOMM_BOOT_ID = 1,        /* opts.id, opts.rank, opts.size */
    DCOMM_BOOT_ALLGATHER = 2, /* opts.allgather, opts.rank, opts.size */
    DCOMM_BOOT_JOIN = 3       /* opts.id (zero: that in the file that DCOMM_JOIN_FILE names): join a
                                 communicator that grows (dcomm_comm_grow) */
} dcomm_boot;

/* Actions after an error, when the communicator is poisoned: all its calls fail (docs/errors.md),
 * and it does one of these. */
typedef enum dcomm_on_error {
    DCOMM_ON_ERROR_DEFAULT = 0, /* what DCOMM_ERRORS=return|print|abort says, else print */
    DCOMM_ON_ERROR_RETURN = 1,  /* nothing more */
    DCOMM_ON_ERROR_PRINT = 2,   /* pass the rank and the error sentence to the logger (or stderr)
                                   once */
    DCOMM_ON_ERROR_ABORT = 3    /* print, then call abort(); also if creation fails */
} dcomm_on_error;

#define DCOMM_QUORUM_NONE (-1)   /* dcomm_comm_opts.quorum: any number of ranks goes on */
#define DCOMM_CONNECTIONS_MAX 16 /* most connections between two ranks on different hosts */

/* All zero means the defaults. Strings are copied. */
typedef struct dcomm_comm_opts {
    /* ---- how the ranks meet ---- */

    dcomm_context *context; /* (default: a new one that lives as long as the communicator) */
    dcomm_context_opts context_opts; /* for that new context */
    dcomm_boot boot;                 /* (default: DCOMM_BOOT_AUTO) */
    int rank, size;                  /* with DCOMM_BOOT_ID and DCOMM_BOOT_ALLGATHER */
    dcomm_id id;                     /* with DCOMM_BOOT_ID and DCOMM_BOOT_JOIN */
    dcomm_allgather_fn allgather;    /* with DCOMM_BOOT_ALLGATHER */
    void *allgather_user;            /* passed to allgather */

    /* ---- every operation; all ranks take rank 0's algo, deterministic and chunk_bytes ---- */

    /* Seconds for creation and for each operation. INFINITY: no limit; the loss of a peer is an
     * error all the same, and the log names the ranks that an operation has waited 300 s for
     * (default: DCOMM_TIMEOUT, else 300). */
    double timeout_s;
    /* Use this algorithm for every operation that has it; other operations choose theirs. If a
     * call must fold in rank order (deterministic, accumulate, an ordered operator) and the
     * algorithm cannot, the call fails with DCOMM_ERR_UNSUPPORTED (default: DCOMM_ALGO, else
     * "auto"). */
    const char *algo;
    bool deterministic; /* always fold in rank order (default: DCOMM_DETERMINISTIC, else no) */
    size_t chunk_bytes; /* bytes of one piece in a pipeline of long messages (default: DCOMM_CHUNK,
                           else chosen for each algorithm) */

    /* ---- this machine and network; all ranks take rank 0's tune and connections ---- */

    /* 1: measure the costs of messages, copies and folds, once per process and set of hosts, and
     * choose algorithms by them. That takes less than a second (docs/results/model.md). The
     * numbers are read instead if DCOMM_TUNE_FILE names a file, or if an earlier run on this host
     * kept them (DCOMM_TUNE_CACHE). -1: choose by built-in numbers (default: DCOMM_TUNE=1|0, else
     * 1). */
    int tune;
    /* Connections from a rank to a rank of another host, 1 to DCOMM_CONNECTIONS_MAX. Several are
     * faster if the network limits each one. Communicators of a context share connections: the
     * communicator that was created or tuned last decides (default: DCOMM_CONNECTIONS; else, if
     * tuning measures, the fewest that nearly fill the link; else the number in the tuning that is
     * read; else 1). */
    int connections;

    /* ---- errors; for this rank alone ---- */

    dcomm_on_error on_error; /* also for communicators derived from this one (default:
                                DCOMM_ON_ERROR_DEFAULT) */

    /* ---- failed ranks; all ranks take rank 0's ---- */

    /* dcomm_comm_agree, and dcomm_comm_shrink without a list, go on if so many ranks are left: a
     * number above half of the ranks, or DCOMM_QUORUM_NONE for any number. It also holds in a
     * communicator of the same or of the remaining ranks (dup, shrink); a number does not hold
     * among the fewer ranks of a split (default: 0; of the ranks that are not certainly dead, more
     * than half must be left, or half with the lowest one; docs/errors.md). */
    int quorum;

    /* ---- every communicator of the context; all ranks take rank 0's ---- */

    /* Seconds after which a process that does not run counts as dead: one that is stopped
     * (SIGSTOP), or whose machine or network is silent. A process that computes is never meant, nor
     * one that a debugger holds. INFINITY: none (default: DCOMM_LIVENESS_S, else 10;
     * DCOMM_LIVENESS_S=0: none). */
    double liveness_s;
} dcomm_comm_opts;

/* Create an id, on one rank. A thread of this process serves the rendezvous until all `size` ranks
 * have come or the communicator that uses the id is destroyed; for dcomm_comm_grow, until the
 * context closes. Children that are forked afterwards
 * may be the ranks. The id needs no destroy call.
 * Errors: DCOMM_ERR_INVALID, DCOMM_ERR_SYSTEM (no socket, no randomness). */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_id_create(dcomm_id *id);

/* Create a communicator; collective over all its ranks. opts may be NULL. Creation, including the
 * measurements of opts.tune, fails on all ranks or on none, and may be tried again. A rank that
 * fails alone (bad options, no shared memory, no memory) takes up to 5 s to tell the others. Their
 * error sentence names that rank.
 * Errors: DCOMM_ERR_RENDEZVOUS or DCOMM_ERR_TIMEOUT (the sentence names the missing ranks),
 * DCOMM_ERR_AUTH (wrong secret), DCOMM_ERR_MISMATCH (sizes or versions differ), DCOMM_ERR_INVALID,
 * DCOMM_ERR_NO_MEMORY, DCOMM_ERR_TRANSPORT, DCOMM_ERR_UNSUPPORTED (there are several hosts, and
 * some ranks are compiled with DCOMM_NO_UCX). */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_comm_create(const dcomm_comm_opts *opts,
                                                       dcomm_comm **comm_p);
/* Start to create a communicator, without blocking. *comm_p exists at once, and dcomm_comm_ready
 * tells when it can be used. Until then any other call on it fails with DCOMM_ERR_INVALID, except
 * dcomm_comm_destroy, which cancels the creation. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_comm_create_start(const dcomm_comm_opts *opts,
                                                             dcomm_comm **comm_p);
/* Return DCOMM_OK if the communicator can be used, DCOMM_IN_PROGRESS if it cannot yet, or the
 * error that creation failed with. */
DCOMM_API dcomm_status dcomm_comm_ready(dcomm_comm *comm);

/* Close a communicator and set *comm_p to NULL. NULL and *comm_p NULL are fine. No other thread
 * may be inside a call on it: abort, join, then destroy. Waits until the outstanding operations
 * are complete or have timed out; dcomm_comm_abort ends them at once. The caller must still wait
 * for their requests or free them. Then waits up to 5 s until its peers close the communicator,
 * too; after an error, some 20 ms, or up to 0.5 s if peers may still read the caller's memory.
 * Errors: DCOMM_ERR_INVALID (this thread has queued operations on it in a group); the error that
 * poisoned the communicator, if the program has not seen it. It has seen the error if a call or a
 * wait has returned it or will, or if dcomm_comm_status, _error, _ready, _agree or _shrink was
 * called since. The communicator is closed in any case. */
DCOMM_API dcomm_status dcomm_comm_destroy(dcomm_comm **comm_p);

/* Split by colour; collective. Ranks with equal colour form a communicator, ordered by key, then
 * by old rank. A rank with a negative colour takes part and gets *new_p = NULL. Split, dup and
 * shrink wait for other ranks, so do not call them between dcomm_group_start and dcomm_group_end.
 * If one rank has no memory for its part, all ranks get an error and may try again. If a rank has
 * not even the memory to take part, `comm` is poisoned. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_comm_split(dcomm_comm *comm, int color, int key,
                                                      dcomm_comm **new_p);
/* Create a communicator with the same ranks and with messages of its own; collective. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_comm_dup(dcomm_comm *comm, dcomm_comm **new_p);
/* Create a communicator of the ranks that are left, in their old order; n is 0. The ranks agree on
 * the failed ones, as dcomm_comm_agree does, and succeed or fail alike, even if more ranks fail
 * meanwhile. Ranks may have called it a different number of times.
 * With n > 0 the ranks in `excluded` are left out instead, dead or alive. All other ranks call it,
 * and name the same ranks. They must be alive, and may be any number.
 * Errors, on all ranks alike: DCOMM_ERR_NO_MEMORY (the sentence names the rank), DCOMM_ERR_PEER (a
 * rank that was to stay has failed); and those of dcomm_comm_agree. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_comm_shrink(dcomm_comm *comm, const int *excluded, int n,
                                                       dcomm_comm **new_p);
/* Create a communicator of the ranks of `comm` and of newcomers; collective over `comm`. The ranks
 * keep their numbers; the newcomers follow, in the order in which they came. Returns as soon as
 * max_new newcomers have come, or after wait_s seconds (INFINITY: no limit) with those that have:
 * with none, it is a communicator of the same ranks. All ranks get it, or all an error. Settings
 * and tuning are those of `comm`; a number for dcomm_comm_opts.quorum holds as long as it is above
 * half of the ranks.
 *
 * Newcomers create their part with DCOMM_BOOT_JOIN, on any host. They may come before the others
 * grow, or between two grows: then they wait, for their timeout_s at most. The id is one that rank
 * 0 itself has created for this purpose (dcomm_id_create). It serves any number of grows, until the
 * context of `comm` closes. If rank 0 passes NULL, it creates an id by itself and writes it to the
 * file that DCOMM_JOIN_FILE names.
 *
 * id, max_new (at least 1) and wait_s (at least 0) count at rank 0; other ranks may pass anything.
 * A newcomer that dies meanwhile costs its place and nothing else. If a rank of `comm` dies, all
 * others get an error, and `comm` is poisoned: shrink it and grow the result. Newcomers that wait
 * may join that, if rank 0 lives; those that came by the file also if it does not.
 * Errors, on all ranks of `comm` alike: DCOMM_ERR_INVALID (rank 0's arguments), DCOMM_ERR_PEER (the
 * sentence names the rank), those of dcomm_comm_create without `comm` being poisoned, the error
 * that has poisoned `comm`, and those of dcomm_comm_agree, which poison it. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_comm_grow(dcomm_comm *comm, const dcomm_id *id,
                                                     int max_new, double wait_s,
                                                     dcomm_comm **new_p);
/* Fail every outstanding and future operation on every rank with DCOMM_ERR_ABORTED and `reason`
 * (NULL: none). May be called from any thread; does not block. */
DCOMM_API dcomm_status dcomm_comm_abort(dcomm_comm *comm, const char *reason);
/* The same as dcomm_comm_abort. */
DCOMM_API dcomm_status dcomm_comm_revoke(dcomm_comm *comm, const char *reason);

/* ---- failed ranks ----
 *
 * A rank has failed if its process has ended, if the connection with it is broken, or if it has
 * destroyed the communicator. These calls work after an error, too. */

/* Tell which ranks have failed as far as this rank knows now. Other ranks may know of others.
 * Writes the first `max` of them to ranks[max], in order, and their number to *n (NULL: not
 * wanted). Errors: DCOMM_ERR_INVALID. */
DCOMM_API dcomm_status dcomm_comm_failed(dcomm_comm *comm, int *ranks, int max, int *n);
/* Agree with all ranks that are left on the bits that each of them has in *flags, and on the failed
 * ranks; collective over those that are left. All of them get the same, whoever fails meanwhile.
 * The bits of failed ranks do not count. Writes the bits to *flags (NULL: all bits are set here,
 * and the result is not wanted) and the failed ranks as dcomm_comm_failed does. `comm` stays as it
 * is. The ranks are agreed on one decision after another, and each of them gets every decision. It
 * does not matter how often a rank has called: a call after DCOMM_ERR_TIMEOUT or DCOMM_ERR_QUORUM
 * takes part in the same decision, with the bits of the first call. Errors: DCOMM_ERR_TIMEOUT (here
 * alone, after the communicator's timeout_s: the sentence names the ranks that have not come, and
 * nothing is decided), DCOMM_ERR_QUORUM (too few ranks are left, see dcomm_comm_opts.quorum;
 * nothing is decided), DCOMM_ERR_PEER (the others count this rank as failed), DCOMM_ERR_UNSUPPORTED
 * (above 16384 ranks), DCOMM_ERR_INVALID. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_comm_agree(dcomm_comm *comm, uint64_t *flags,
                                                      int *failed, int max, int *n);

/* Return the caller's rank, from 0; -1 if comm is NULL or not created yet. */
DCOMM_API int dcomm_comm_rank(const dcomm_comm *comm);
/* Return the number of ranks; -1 if comm is NULL or not created yet. */
DCOMM_API int dcomm_comm_size(const dcomm_comm *comm);
/* Return the context; NULL if comm is NULL or not created yet. */
DCOMM_API dcomm_context *dcomm_comm_context(const dcomm_comm *comm);
/* Return the error that poisoned the communicator (DCOMM_OK: none). */
DCOMM_API dcomm_status dcomm_comm_status(const dcomm_comm *comm);
/* Return the sentence of that error ("": none). It is valid until the communicator is
 * destroyed. */
DCOMM_API const char *dcomm_comm_error(const dcomm_comm *comm);
/* Return the number of the host that a rank is on. Hosts are numbered from 0 in the order of their
 * lowest rank. Ranks that share memory have equal numbers. -1 for a bad rank. */
DCOMM_API int dcomm_comm_host(const dcomm_comm *comm, int rank);
/* Return the name of the machine that a rank runs on; NULL for a bad rank. It lives as long as the
 * communicator. */
DCOMM_API const char *dcomm_comm_hostname(const dcomm_comm *comm, int rank);

/* ---- topology: which ranks are near each other ----
 *
 * The ranks of a communicator form groups, level by level, from coarse to fine: host, package
 * (socket), NUMA node, last-level cache, core. On machines with several packages in a NUMA node,
 * NUMA nodes come before packages. A group lies within one group of the level above. Level 0 is
 * always the host. Another level exists only if it divides a group of the level above. The
 * topology is read when the context is created; derived communicators keep it
 * (docs/topology.md). */

/* Parts of a machine that ranks can share. */
typedef enum dcomm_level_kind {
    DCOMM_LEVEL_HOST = 0,    /* a host, or a part of it whose ranks share memory */
    DCOMM_LEVEL_PACKAGE = 1, /* a socket */
    DCOMM_LEVEL_NUMA = 2,    /* a NUMA node */
    DCOMM_LEVEL_CACHE = 3,   /* the last-level cache */
    DCOMM_LEVEL_CORE = 4     /* a core */
} dcomm_level_kind;

/* A level of the topology. */
typedef struct dcomm_level {
    dcomm_level_kind kind; /* kind of the part that the ranks of a group share */
    const char *name;      /* "host", "package", "numa", "cache", "core" */
    int groups;            /* number of groups */
} dcomm_level;

/* The place where a rank runs. Numbers are hwloc's logical indices on the rank's machine. */
typedef struct dcomm_place {
    int package, numa, cache, core; /* -1: the rank may run on several, or there is none */
    int cpus;                       /* number of hardware threads that it may run on; 0: unknown */
    bool bound;        /* the scheduler cannot move it to where another rank of its host runs */
    char cpu_list[64]; /* those hardware threads, by the system's numbers: "0-3,8" */
    char nic[16];      /* device of the network interface towards other hosts, or "none" */
    char gpu[16];      /* PCI address of the nearest GPU, or "none" */
} dcomm_place;

/* Return the number of levels, 1 to 5; -1 if comm is NULL or not created yet. */
DCOMM_API int dcomm_comm_level_count(const dcomm_comm *comm);
/* Describe level 0, 1, ... in *info.
 * Errors: DCOMM_ERR_INVALID (past the last level, NULL). */
DCOMM_API dcomm_status dcomm_comm_get_level(const dcomm_comm *comm, int level, dcomm_level *info);
/* Return the group of a rank at a level; groups are numbered from 0 in order of their lowest rank.
 * -1 for a bad rank or level. */
DCOMM_API int dcomm_comm_group(const dcomm_comm *comm, int level, int rank);
/* Return the rank at a position of the order in which rings pass through the ranks. In this order
 * the ranks of a group are neighbours, at every level. -1 for a bad position. */
DCOMM_API int dcomm_comm_order(const dcomm_comm *comm, int position);
/* Say in *place where a rank runs.
 * Errors: DCOMM_ERR_INVALID (bad rank, NULL). */
DCOMM_API dcomm_status dcomm_comm_get_place(const dcomm_comm *comm, int rank, dcomm_place *place);

#ifdef __cplusplus
}
#endif
#endif
