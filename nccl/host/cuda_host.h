/* cuda_host.h - what tests can do to the host stand-in's devices, and ask of them. */
#ifndef CUDA_HOST_H
#define CUDA_HOST_H

#include "cuda_runtime_api.h"
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* All zero: nothing goes wrong. */
typedef struct cuda_host_faults {
    double delay_s;       /* each copy and kernel begins so much late */
    uint64_t shuffle;     /* not 0: it begins late by 0 to 2 delay_s, by chance with this seed, so
                             that what is on different streams completes in any order */
    unsigned fail_copy;   /* the n-th copy from now on fails, 1 the next one; 0: none */
    unsigned fail_kernel; /* likewise of kernels */
    unsigned fail_malloc; /* likewise of device and pinned memory: cudaErrorMemoryAllocation */
    unsigned fail_open;   /* and of memory of other processes: cudaErrorMapBufferObjectFailed */
    bool no_peer_access;  /* devices do not reach each other's memory */
} cuda_host_faults;

/* From now on, in the whole process; the error that stays from an earlier fault is forgotten. */
void cuda_host_set_faults(const cuda_host_faults *faults);

typedef struct cuda_host_traffic {
    uint64_t copies, bytes;
} cuda_host_traffic;
/* What has run. */
typedef struct cuda_host_counts {
    cuda_host_traffic to_device, to_host, on_device;
    uint64_t kernels;
    uint64_t host_functions;
} cuda_host_counts;
void cuda_host_get_counts(cuda_host_counts *counts);

/* Where the host can read and write device memory from which it is otherwise kept: for tests that
 * look at what is there without an operation on a stream. NULL: no such memory. */
void *cuda_host_peek(const void *device_ptr, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
