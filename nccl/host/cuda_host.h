/* cuda_host.h - the tests' controls of the host stand-in's devices: faults, counts, memory. */
#ifndef CUDA_HOST_H
#define CUDA_HOST_H

#include "cuda_runtime_api.h"
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* All zero: no faults. */
typedef struct cuda_host_faults {
    double delay_s;       /* each copy and kernel starts this much late */
    uint64_t shuffle;     /* not 0: it starts late by 0 to 2 delay_s, at random with this seed, so
                           * that work on different streams completes in any order */
    unsigned fail_copy;   /* the n-th copy from now on fails; 1: the next one; 0: none */
    unsigned fail_kernel; /* likewise for kernels */
    unsigned fail_malloc; /* likewise for device and pinned memory: cudaErrorMemoryAllocation */
    unsigned fail_open;   /* likewise for IPC handles: cudaErrorMapBufferObjectFailed */
    bool no_peer_access;  /* devices cannot access each other's memory */
    bool rdma_unordered;  /* a NIC's writes need cudaDeviceFlushGPUDirectRDMAWrites, as before
                           * Hopper; the counts tell that it was called */
} cuda_host_faults;

/* Set the faults of the whole process. Clear the sticky error of an earlier fault. */
void cuda_host_set_faults(const cuda_host_faults *faults);

/* Rules by which CUDA may hold up its callers. A rule that is 0 is off. The environment variable
 * CUDA_HOST_HARSH sets them before a test does: it has the words in brackets, as in
 * "queue=64,lock", or is 1, which sets all but [sync]. */
typedef struct cuda_host_rules {
    unsigned queue;   /* [queue] A stream holds this many entries at most (1024). A call that
                       * would put more on it waits in the driver. 0: any number */
    bool lock;        /* [lock] What waits in the driver holds the lock of the device's context,
                       * for which all other calls there wait */
    bool free_waits;  /* [free] cudaFreeHost and cudaHostUnregister wait in the driver for all of
                       * the device's streams, as cudaFree, cudaIpcCloseMemHandle and the launch
                       * of a kernel that is not loaded always do */
    bool alloc_waits; /* [alloc] cudaHostAlloc and cudaHostRegister do too */
    bool load_waits;  /* [load] dcomm_cuda_load does too */
    bool sync_holds;  /* [sync] cudaStreamSynchronize, cudaEventSynchronize and
                       * cudaDeviceSynchronize wait in the driver */
    unsigned connections; /* [connections] CUDA_DEVICE_MAX_CONNECTIONS (8): the streams of a
                           * priority share this many hardware queues, and a stream that waits
                           * holds up those of its queue. 0: each has its own */
    bool launch_blocking; /* CUDA_LAUNCH_BLOCKING=1: a launch waits in the driver for its kernel */
} cuda_host_rules;

/* Set the rules of the whole process, for calls and streams to come. */
void cuda_host_set_rules(const cuda_host_rules *rules);

typedef struct cuda_host_traffic {
    uint64_t copies, bytes;
} cuda_host_traffic;
/* Copies, kernels and host functions that have run, and flushes of a NIC's writes. */
typedef struct cuda_host_counts {
    cuda_host_traffic to_device, to_host, on_device;
    uint64_t kernels;
    uint64_t host_functions;
    uint64_t flushes;
    uint64_t contexts; /* a bit for each device that has a context now */
} cuda_host_counts;
void cuda_host_get_counts(cuda_host_counts *counts);

/* Return the address where the host can read and write device memory, which it cannot access
 * otherwise. For tests that inspect memory without an operation on a stream. NULL: no such
 * memory. */
void *cuda_host_peek(const void *device_ptr, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
