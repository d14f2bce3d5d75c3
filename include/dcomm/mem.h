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
 * huge pages, if the kernel gives them (dcomm_mem_get_info tells). It is in memory from the
 * start: a host that has not enough gives an error here and no SIGBUS later.
 *
 * Each such memory keeps one file descriptor open until it is freed. Where no descriptor is left
 * (ulimit -n), the memory is served as ordinary memory is (dcomm_mem_info.shared is false).
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
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_mem_alloc(dcomm_context *context, size_t bytes,
                                                     void **ptr_p);
/* Free memory from dcomm_mem_alloc or dcomm_mem_alloc_device and set *ptr_p to NULL. No operation
 * on it may be outstanding; after an error its communicator must be destroyed first
 * (docs/errors.md). NULL and *ptr_p NULL are good. Errors: DCOMM_ERR_INVALID (not from one of them,
 * or not its beginning). */
DCOMM_API dcomm_status dcomm_mem_free(void **ptr_p);

/* The same of a device: memory of the calling thread's current device, a whole number of 2 MiB so
 * that nothing else is shared with it, aligned as cudaMalloc's and not zeroed. Processes of this
 * host whose devices can read it open it once, by CUDA IPC, and their kernels read it where it
 * lies: nothing goes through host memory then. All others are served as with other device memory,
 * and so is everybody at the first operations, until they have heard of it. It may be used wherever
 * other device memory may.
 *
 * context: whose communicators' peers may open it; NULL: nobody's until dcomm_mem_share.
 *
 * Freed memory is the device's again when the peers that have opened it have shut it, which they do
 * in their next call on device memory or when they destroy the last communicator with this rank,
 * while none of their streams waits for an operation; what a process that has ended had open is
 * shut. A call that allocates or frees, destroys a communicator or starts an operation on device
 * memory gives back what can be by then, and may take as long as cudaFree. What a peer that lives
 * on never shuts goes with this process.
 *
 * Errors: DCOMM_ERR_INVALID (ptr_p is NULL), DCOMM_ERR_UNSUPPORTED (built without DCOMM_WITH_CUDA),
 * DCOMM_ERR_NO_MEMORY, DCOMM_ERR_SYSTEM (CUDA's, in the sentence). *ptr_p is NULL then, and also
 * for 0 bytes. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_mem_alloc_device(dcomm_context *context, size_t bytes,
                                                            void **ptr_p);
/* Let peers of one more context open all of the memory from dcomm_mem_alloc_device that `ptr`
 * points into; counted. unshare takes that back, with no operation on it of this context's
 * outstanding; dcomm_mem_free does so for all. Errors: DCOMM_ERR_INVALID (no such memory; context
 * is NULL; unshare: was not given to it), DCOMM_ERR_NO_MEMORY. */
DCOMM_API dcomm_status dcomm_mem_share(dcomm_context *context, const void *ptr);
DCOMM_API dcomm_status dcomm_mem_unshare(dcomm_context *context, const void *ptr);

typedef struct dcomm_mem_info {
    void *base;        /* what dcomm_mem_alloc or dcomm_mem_alloc_device gave */
    size_t bytes;      /* of it; may be more than was asked for */
    size_t huge_bytes; /* of them, how many lie on huge pages */
    bool shared;       /* ranks of this host can map or open it */
    int device;        /* whose memory it is; -1: the host's */
} dcomm_mem_info;
/* What is known of the registered memory that `ptr` points into.
 * Errors: DCOMM_ERR_INVALID (none does, info is NULL). */
DCOMM_API dcomm_status dcomm_mem_get_info(const void *ptr, dcomm_mem_info *info);

#ifdef __cplusplus
}
#endif
#endif
