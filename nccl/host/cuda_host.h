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
} cuda_host_faults;

/* Set the faults of the whole process. Clear the sticky error of an earlier fault. */
void cuda_host_set_faults(const cuda_host_faults *faults);

typedef struct cuda_host_traffic {
    uint64_t copies, bytes;
} cuda_host_traffic;
/* Copies, kernels and host functions that have run. */
typedef struct cuda_host_counts {
    cuda_host_traffic to_device, to_host, on_device;
    uint64_t kernels;
    uint64_t host_functions;
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
