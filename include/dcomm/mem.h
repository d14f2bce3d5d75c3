/* mem.h - registered memory, which other ranks of the host can map. */
#ifndef DCOMM_MEM_H
#define DCOMM_MEM_H

#include "comm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Allocate registered memory. In collectives, the other ranks of the host read it (all of it or
 * any part) in place, without a system call and without a copy. It may be used wherever other
 * memory may. Some ranks may use it while others do not, and any communicator of the context may
 * use it. For ranks of other hosts, and for ranks that cannot map it, it works like ordinary
 * memory. The first operation on it only announces it to the peers and is no faster.
 *
 * The memory is zeroed and page-aligned. From 256 KiB on it is aligned to 2 MiB and a whole number
 * of huge pages, if the kernel gives them (dcomm_mem_get_info tells). All pages are allocated at
 * once: if the host has not enough memory, this call returns an error, and no SIGBUS follows
 * later. The memory lies on the NUMA node of the calling thread. Each allocation keeps one file
 * descriptor open. If none is left (ulimit -n), the memory works like ordinary memory
 * (dcomm_mem_info.shared is false).
 *
 * The caller owns the memory until dcomm_mem_free, even if communicators and `context` are
 * destroyed: the context stays open until its last memory is freed. dcomm_comm_context returns the
 * context of a communicator. The end of the process frees all memory. The functions of this header
 * may be called from any thread.
 *
 * Errors: DCOMM_ERR_INVALID (context or ptr_p is NULL), DCOMM_ERR_SYSTEM (no shared memory of that
 * size: the sentence names the limit to raise), DCOMM_ERR_NO_MEMORY. *ptr_p is NULL then, and also
 * for 0 bytes. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_mem_alloc(dcomm_context *context, size_t bytes,
                                                     void **ptr_p);
/* Free memory from dcomm_mem_alloc or dcomm_mem_alloc_device and set *ptr_p to NULL. NULL and
 * *ptr_p NULL are fine. No operation on it may be outstanding; after an error, destroy its
 * communicator first (docs/errors.md). The system gets host memory back after the peers that
 * mapped it have made progress.
 * Errors: DCOMM_ERR_INVALID (not from one of these functions, or not the beginning of an
 * allocation). */
DCOMM_API dcomm_status dcomm_mem_free(void **ptr_p);

/* Allocate registered memory on the calling thread's current device. Its size is a whole number of
 * 2 MiB, so that no other allocation is shared along with it. It is aligned as memory of
 * cudaMalloc is, and not zeroed. Processes of this host whose devices can read it open it once, by
 * CUDA IPC. Then their kernels read it in place, and nothing goes through host memory. For other
 * ranks, and for all ranks in the first operations until they know it, it works like other device
 * memory. It may be used wherever other device memory may.
 *
 * context: the peers of its communicators may open the memory; NULL: no peer may open it until
 * dcomm_mem_share.
 *
 * The device gets freed memory back after all peers that opened it have closed it. A peer closes
 * it in its next call on device memory, when it destroys its last communicator with this rank, or
 * when it ends. It does not close it while one of its streams waits for an operation. Afterwards,
 * the next call of this process that allocates or frees such memory, destroys a communicator or
 * starts an operation on device memory returns the memory to CUDA. That call may take as long as
 * cudaFree. Memory that a peer never closes lasts as long as this process.
 *
 * Errors: DCOMM_ERR_INVALID (ptr_p is NULL), DCOMM_ERR_UNSUPPORTED (built without
 * DCOMM_WITH_CUDA), DCOMM_ERR_NO_MEMORY, DCOMM_ERR_SYSTEM (an error of CUDA, which the sentence
 * names). *ptr_p is NULL then, and also for 0 bytes. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_mem_alloc_device(dcomm_context *context, size_t bytes,
                                                            void **ptr_p);
/* Let the peers of one more context open an allocation of dcomm_mem_alloc_device. They may open
 * the whole allocation that `ptr` points into. Calls are counted.
 * Errors: DCOMM_ERR_INVALID (no such memory; context is NULL), DCOMM_ERR_NO_MEMORY. */
DCOMM_API dcomm_status dcomm_mem_share(dcomm_context *context, const void *ptr);
/* Undo one dcomm_mem_share. No operation of this context on the memory may be outstanding.
 * dcomm_mem_free undoes all of them.
 * Errors: DCOMM_ERR_INVALID (no such memory; context is NULL, or the memory is not shared with
 * it). */
DCOMM_API dcomm_status dcomm_mem_unshare(dcomm_context *context, const void *ptr);

/* Facts about an allocation of registered memory. */
typedef struct dcomm_mem_info {
    void *base;        /* beginning, as dcomm_mem_alloc or dcomm_mem_alloc_device returned it */
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
