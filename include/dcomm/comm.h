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
                             else boot id, namespaces and host name) */
} dcomm_context_opts;

/* Open a context. It is closed when its creator has destroyed it and no communicator is left.
 * Errors: DCOMM_ERR_TRANSPORT (UCX), DCOMM_ERR_SYSTEM (e.g. /dev/shm too small). */
DCOMM_API dcomm_status dcomm_context_create(const dcomm_context_opts *opts,
                                            dcomm_context **context_p);
DCOMM_API dcomm_status dcomm_context_destroy(dcomm_context **context_p);

/* Progress every communicator of the context once, without blocking. Any wait does the same; call
 * it in long computations when there is no progress thread. */
DCOMM_API dcomm_status dcomm_context_progress(dcomm_context *context);

typedef enum dcomm_boot {
    DCOMM_BOOT_AUTO = 0,     /* the launcher's environment: torchrun, Open MPI, MPICH, Slurm; a
                                program without a launcher is one rank */
    DCOMM_BOOT_ID = 1,       /* opts.id, opts.rank, opts.size */
    DCOMM_BOOT_ALLGATHER = 2 /* opts.allgather, opts.rank, opts.size */
} dcomm_boot;

typedef struct dcomm_comm_opts {
    dcomm_context *context; /* (default: a new one that lives as long as the communicator) */
    dcomm_context_opts context_opts; /* for that new one */
    dcomm_boot boot;                 /* (default: DCOMM_BOOT_AUTO) */
    int rank, size;                  /* with DCOMM_BOOT_ID and DCOMM_BOOT_ALLGATHER */
    dcomm_id id;                     /* with DCOMM_BOOT_ID */
    dcomm_allgather_fn allgather;    /* with DCOMM_BOOT_ALLGATHER */
    void *allgather_user;
    double timeout_s;   /* creation and every operation (default: DCOMM_TIMEOUT, else 300) */
    const char *algo;   /* algorithm forced for every call where it applies (default:
                           DCOMM_ALGO, else "auto"); rank 0's is taken by all ranks */
    bool deterministic; /* fold in rank order always (default: DCOMM_DETERMINISTIC, else no);
                           rank 0's is taken by all ranks */
    size_t chunk_bytes; /* pipelining grain of long messages (default: DCOMM_CHUNK, else
                           chosen per algorithm); rank 0's is taken by all ranks */
    int tune;           /* 1: measure what things cost, some milliseconds once per process and set
                           of hosts, so that algorithms are chosen by it (or read it, where
                           DCOMM_TUNE_FILE names a file); -1: choose by built-in numbers (default:
                           DCOMM_TUNE=1|0, else 1); rank 0's is taken by all ranks */
} dcomm_comm_opts;

/* Make an id on one rank, and serve the rendezvous from a thread of this process until all `size`
 * ranks have come or the communicator that uses it is destroyed.
 * Errors: DCOMM_ERR_INVALID, DCOMM_ERR_SYSTEM (no socket, no randomness). */
DCOMM_API dcomm_status dcomm_id_create(dcomm_id *id);

/* Create a communicator; collective over all its ranks. opts may be NULL.
 * Errors: DCOMM_ERR_RENDEZVOUS or DCOMM_ERR_TIMEOUT (who is missing), DCOMM_ERR_AUTH (wrong
 * secret), DCOMM_ERR_MISMATCH (sizes, versions), DCOMM_ERR_INVALID, DCOMM_ERR_TRANSPORT. */
DCOMM_API dcomm_status dcomm_comm_create(const dcomm_comm_opts *opts, dcomm_comm **comm_p);
/* The same without blocking: *comm_p exists at once; dcomm_comm_ready tells when it can be used.
 * Any other call on it before then fails with DCOMM_ERR_INVALID; destroying it cancels. */
DCOMM_API dcomm_status dcomm_comm_create_start(const dcomm_comm_opts *opts, dcomm_comm **comm_p);
/* DCOMM_OK, DCOMM_IN_PROGRESS, or why creation failed. */
DCOMM_API dcomm_status dcomm_comm_ready(dcomm_comm *comm);

/* Close a communicator and set *comm_p to NULL. No other thread may be inside a call on it: abort,
 * join, then destroy. Waits up to 5 s for the goodbyes of its peers.
 * Outstanding requests fail with DCOMM_ERR_ABORTED. NULL and *comm_p NULL are good. */
DCOMM_API dcomm_status dcomm_comm_destroy(dcomm_comm **comm_p);

/* Split by colour (ranks with equal colour end up together, ordered by key, then by old rank);
 * collective. A negative colour takes part and gets *new_p = NULL. Like dup and shrink it waits,
 * and so cannot stand between dcomm_group_start and dcomm_group_end. */
DCOMM_API dcomm_status dcomm_comm_split(dcomm_comm *comm, int color, int key, dcomm_comm **new_p);
/* A communicator with the same ranks and a message space of its own; collective. */
DCOMM_API dcomm_status dcomm_comm_dup(dcomm_comm *comm, dcomm_comm **new_p);
/* A communicator without the n ranks in `excluded`; collective over the others, which must all
 * name the same ranks. Works after an error, which is what it is for. Survivors keep their order.
 * Errors: DCOMM_ERR_INVALID (own rank excluded, bad rank), DCOMM_ERR_TIMEOUT, DCOMM_ERR_PEER. */
DCOMM_API dcomm_status dcomm_comm_shrink(dcomm_comm *comm, const int *excluded, int n,
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

#ifdef __cplusplus
}
#endif
#endif
