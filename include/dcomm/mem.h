/* mem.h - memory that the ranks of a host can map from each other. */
#ifndef DCOMM_MEM_H
#define DCOMM_MEM_H

#include "comm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Registered memory: collectives on it (on all of it or any part) are read by the other ranks of
 * the host straight from where it lies, without a system call and without a copy in between.
 * Nothing else differs: it may be used wherever other memory may, by one rank and not by another,
 * and by any communicator of the context; ranks of other hosts, and ranks of this one that cannot
 * map it, are served as with ordinary memory. The first operation on it tells the peers, so it is
 * no faster.
 *
 * The memory is zeroed, starts at a page, and from 256 KiB on at 2 MiB and is a whole number of
 * huge pages, if the kernel gives them (dcomm_mem_query tells). It is in memory from the
 * start: a host that has not enough gives an error here and no SIGBUS later.
 *
 * It is placed on the NUMA node of the thread that allocates it. Freed memory is the system's again
 * when the peers that have mapped it have heard of it, in their next progress.
 *
 * It belongs to the caller until dcomm_mem_free, whatever becomes of communicators and of `context`
 * (a communicator's: dcomm_comm_context): the context is closed when also its last such memory is
 * free. All of it goes with the process. These functions may be called from any thread.
 *
 * Errors of alloc: DCOMM_ERR_INVALID (context or ptr_p is NULL), DCOMM_ERR_SYSTEM (no shared memory
 * of that size: the sentence says what to raise), DCOMM_ERR_NO_MEMORY. *ptr_p is NULL then, and
 * also for 0 bytes. */
DCOMM_API dcomm_status dcomm_mem_alloc(dcomm_context *context, size_t bytes, void **ptr_p);
/* Free memory from dcomm_mem_alloc and set *ptr_p to NULL. No operation on it may be outstanding;
 * after an error its communicator must be destroyed first (docs/errors.md). NULL and *ptr_p NULL
 * are good. Errors: DCOMM_ERR_INVALID (not from dcomm_mem_alloc, or not its beginning). */
DCOMM_API dcomm_status dcomm_mem_free(void **ptr_p);

typedef struct dcomm_mem_info {
    void *base;        /* what dcomm_mem_alloc gave */
    size_t bytes;      /* of it; may be more than was asked for */
    size_t huge_bytes; /* of them, how many lie on huge pages */
    bool shared;       /* ranks of this host can map it */
} dcomm_mem_info;
/* What is known of the registered memory that `ptr` points into.
 * Errors: DCOMM_ERR_INVALID (none does, info is NULL). */
DCOMM_API dcomm_status dcomm_mem_query(const void *ptr, dcomm_mem_info *info);

#ifdef __cplusplus
}
#endif
#endif
