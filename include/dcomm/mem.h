/* mem.h - memory that the ranks of a host can map from each other. */
#ifndef DCOMM_MEM_H
#define DCOMM_MEM_H

#include "comm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Allocate registered memory: in collectives, the other ranks of the host read it (all of it or any
 * part) in place, without a system call and without a copy. It may be used wherever other memory
 * may, by some ranks and not by others, and by any communicator of the context. Ranks of other
 * hosts, and ranks that cannot map it, are served as with ordinary memory. The first operation on
 * it tells the peers and is no faster.
 *
 * The memory is zeroed and page-aligned; from 256 KiB on it is aligned to 2 MiB and a whole number
 * of huge pages, if the kernel gives them (dcomm_mem_get_info tells). All pages are allocated at
 * once: a host without enough memory gives an error here, not SIGBUS later. It lies on the NUMA
 * node of the calling thread. Each allocation keeps one file descriptor open; if none is left
 * (ulimit -n), it is served as ordinary memory (dcomm_mem_info.shared is false).
 *
 * The caller owns it until dcomm_mem_free, even if communicators and `context` (a communicator's is
 * dcomm_comm_context) are destroyed: the context closes when its last memory is freed, too. The end
 * of the process frees all. The functions of this header may be called from any thread.
 *
 * Errors: DCOMM_ERR_INVALID (context or ptr_p is NULL), DCOMM_ERR_SYSTEM (no shared memory of that
 * size: the sentence says what to raise), DCOMM_ERR_NO_MEMORY. *ptr_p is NULL then, and also for 0
 * bytes. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_mem_alloc(dcomm_context *context, size_t bytes,
                                                     void **ptr_p);
/* Free memory from dcomm_mem_alloc or dcomm_mem_alloc_device and set *ptr_p to NULL. NULL and
 * *ptr_p NULL are fine. No operation on it may be outstanding; after an error, destroy its
 * communicator first (docs/errors.md). The system gets host memory back when the peers that mapped
 * it make progress next.
 * Errors: DCOMM_ERR_INVALID (not from one of them, or not its beginning). */
DCOMM_API dcomm_status dcomm_mem_free(void **ptr_p);

/* Allocate registered memory on the calling thread's current device: a whole number of 2 MiB, so
 * that nothing else is shared with it, aligned as cudaMalloc's and not zeroed. Processes of this
 * host whose devices can read it open it once, by CUDA IPC, and their kernels read it in place:
 * nothing goes through host memory then. Other ranks, and all ranks in the first operations until
 * they know it, are served as with other device memory. It may be used wherever other device memory
 * may.
 *
 * context: peers of its communicators may open the memory; NULL: no peer until dcomm_mem_share.
 *
 * The device gets freed memory back when all peers that opened it have closed it: in their next
 * call on device memory, when they destroy the last communicator with this rank, or when they end,
 * but not while one of their streams waits for an operation. A call that allocates or frees,
 * destroys a communicator or starts an operation on device memory then returns it to CUDA and may
 * take as long as cudaFree. Memory that a peer never closes lasts as long as this process.
 *
 * Errors: DCOMM_ERR_INVALID (ptr_p is NULL), DCOMM_ERR_UNSUPPORTED (built without DCOMM_WITH_CUDA),
 * DCOMM_ERR_NO_MEMORY, DCOMM_ERR_SYSTEM (CUDA's, in the sentence). *ptr_p is NULL then, and also
 * for 0 bytes. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_mem_alloc_device(dcomm_context *context, size_t bytes,
                                                            void **ptr_p);
/* Let peers of one more context open the whole allocation of dcomm_mem_alloc_device that `ptr`
 * points into. Calls are counted.
 * Errors: DCOMM_ERR_INVALID (no such memory; context is NULL), DCOMM_ERR_NO_MEMORY. */
DCOMM_API dcomm_status dcomm_mem_share(dcomm_context *context, const void *ptr);
/* Take one dcomm_mem_share back; no operation of this context on the memory may be outstanding.
 * dcomm_mem_free takes all back.
 * Errors: DCOMM_ERR_INVALID (no such memory; context is NULL, or has no share of it). */
DCOMM_API dcomm_status dcomm_mem_unshare(dcomm_context *context, const void *ptr);

/* An allocation of registered memory. */
typedef struct dcomm_mem_info {
    void *base;        /* pointer from dcomm_mem_alloc or dcomm_mem_alloc_device */
    size_t bytes;      /* size of the allocation; may be more than was asked for */
    size_t huge_bytes; /* bytes of it on huge pages */
    bool shared;       /* ranks of this host can map or open it */
    int device;        /* number of its device; -1: host memory */
} dcomm_mem_info;
/* Describe the registered memory that `ptr` points into in *info.
 * Errors: DCOMM_ERR_INVALID (it points into none, info is NULL). */
DCOMM_API dcomm_status dcomm_mem_get_info(const void *ptr, dcomm_mem_info *info);

#ifdef __cplusplus
}
#endif
#endif
