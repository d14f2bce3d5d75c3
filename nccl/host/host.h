/* host.h - what the files of the host stand-in share. One lock guards all of its state; work on
 * streams runs outside of it. */
#ifndef CUDA_HOST_PRIVATE_H
#define CUDA_HOST_PRIVATE_H

#include "cuda.h"
#include "cuda_host.h"
#include "cuda_runtime_api.h"
#include <pthread.h>
#include <stdbool.h>

#define CUHOST_DEVICES_MAX 64
#define CUHOST_DEVICE_BYTES ((size_t)16 << 30)

extern pthread_mutex_t cuhost_lock;

/* ---- work: what a stream does, in order ---- */

typedef enum cuhost_kind {
    CUHOST_COPY,   /* moves bytes: can be late, and fail */
    CUHOST_KERNEL, /* can be late */
    CUHOST_CALL,   /* the program's own function */
    CUHOST_ORDER   /* marks and waits: these run after an error too */
} cuhost_kind;

typedef cudaError_t (*cuhost_run_fn)(void *arg);

typedef struct cuhost_work {
    struct cuhost_work *next;
    cuhost_kind kind;
    cuhost_run_fn run;
    void (*release)(void *arg); /* what arg owns, after the run; NULL: nothing */
    size_t bytes;               /* of arg */
    _Alignas(16) unsigned char arg[];
} cuhost_work;

/* Put work on a stream; *arg is copied. Anywhere but in a host function. */
cudaError_t cuhost_enqueue(cudaStream_t stream, cuhost_kind kind, cuhost_run_fn run,
                           void (*release)(void *arg), const void *arg, size_t bytes);
/* Wait until all work that the stream holds now is done. */
cudaError_t cuhost_drain(cudaStream_t stream);
cudaError_t cuhost_drain_device(int device);
/* All streams of a device but the default one are destroyed. */
void cuhost_close_streams(int device);
/* The stream is being captured, or was until that failed. */
bool cuhost_capturing(cudaStream_t stream);
/* What every call begins with that could harm captures: cuhost_enter, and whether one is under way
 * that the calling thread's mode respects, which has failed then. */
cudaError_t cuhost_enter_unsafe(void);

/* ---- devices (device.c) ---- */

/* Leave an error for cudaGetLastError, and give it back. */
cudaError_t cuhost_result(cudaError_t error);
int cuhost_current(void);
void cuhost_set_current(int device);
/* What every call begins with: whether the calling thread may make it, and the error that stays. */
cudaError_t cuhost_enter(void);
/* The calling thread runs a host function, from which no call is allowed. */
void cuhost_inside(bool yes);
/* An error of work on a device's stream, which stays; cudaSuccess: what there is. */
cudaError_t cuhost_stays(int device, cudaError_t error);
void cuhost_forget_errors(void);

/* ---- memory (memory.c) ---- */

/* Where the bytes at ptr can be read and written by this library, and of what kind they are; NULL
 * where the range leaves its allocation. */
void *cuhost_access(const void *ptr, size_t bytes, enum cudaMemoryType *type);
/* The same for kernels, which reach device, pinned and managed memory alone; NULL otherwise. */
void *cuhost_reach(const void *ptr, size_t bytes);
/* All memory that was allocated while a device was the current one is given back. */
void cuhost_free_all(int device);
/* The base and length of the allocation of device memory around ptr; false: there is none. */
bool cuhost_range(const void *ptr, void **base, size_t *bytes);

/* ---- faults (faults.c) ---- */

/* Before work runs: late, if it is to be, and failing, if it is to fail. */
cudaError_t cuhost_fault(cuhost_kind kind);
bool cuhost_fault_malloc(void);
bool cuhost_fault_open(void);
bool cuhost_fault_apart(void); /* devices do not reach each other */
void cuhost_count_copy(enum cudaMemoryType to, enum cudaMemoryType from, size_t bytes);
void cuhost_count(cuhost_kind kind);

#endif
