/* host.h - shared by the files of the host stand-in. One lock guards all of its state; work on
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

/* ---- work: the operations of a stream, in order ---- */

typedef enum cuhost_kind {
    CUHOST_COPY,   /* moves bytes; can be late, and fail */
    CUHOST_KERNEL, /* can be late, and fail */
    CUHOST_CALL,   /* a function of the program */
    CUHOST_ORDER,  /* an order of other streams or of memory; these run even after an error */
    CUHOST_WAIT,   /* waits for another stream or a word; the same */
    CUHOST_MARK    /* tells that the stream has come so far; the same */
} cuhost_kind;

typedef cudaError_t (*cuhost_run_fn)(void *arg);

typedef struct cuhost_work {
    struct cuhost_work *next;
    cuhost_kind kind;
    cuhost_run_fn run;
    void (*release)(void *arg); /* frees the resources in arg, after the run; NULL: none */
    bool counts;                /* takes room in the stream's queue */
    uint64_t number;            /* in its channel */
    size_t bytes;               /* of arg */
    _Alignas(16) unsigned char arg[];
} cuhost_work;

/* Put work on a stream; *arg is copied. Not allowed in a host function. */
cudaError_t cuhost_enqueue(cudaStream_t stream, cuhost_kind kind, cuhost_run_fn run,
                           void (*release)(void *arg), const void *arg, size_t bytes);
/* Do the same in a call that has begun. */
cudaError_t cuhost_put(cudaStream_t stream, cuhost_kind kind, cuhost_run_fn run,
                       void (*release)(void *arg), const void *arg, size_t bytes);
/* Wait until all work that the stream holds now is done. */
cudaError_t cuhost_drain(cudaStream_t stream);
cudaError_t cuhost_drain_device(int device);
/* Destroy all streams of a device, except the default ones and threads' own. */
void cuhost_close_streams(int device);
/* Return true if the stream is being captured, or its capture has failed but not ended. */
bool cuhost_capturing(cudaStream_t stream);
/* Begin a call that could harm captures: do cuhost_enter. If a capture is under way that the
 * calling thread's mode respects, fail, and invalidate it. */
cudaError_t cuhost_enter_unsafe(void);
/* Do the same for a call that has begun with this status. */
cudaError_t cuhost_unharmed(cudaError_t status);

/* ---- devices (device.c) ---- */

/* Leave an error for cudaGetLastError, and return it. */
cudaError_t cuhost_result(cudaError_t error);
bool cuhost_bad_device(int device);
/* Set the device's sticky error unless it has one, and return it; cudaSuccess: only return it. */
cudaError_t cuhost_stays(int device, cudaError_t error);
void cuhost_forget_errors(void);
/* Write the words that devices have not written because they had failed. */
void cuhost_write_all(void);

/* ---- contexts (context.c) ---- */

/* Return the device of the calling thread: that of its context, else that of cudaSetDevice. */
int cuhost_current(void);
/* Make a context current that exists. */
void cuhost_set_current(int device);
/* Give a thread without a context its device's. */
void cuhost_context(void);
/* Begin a call into the driver: do cuhost_context and cuhost_driver. Fail if the calling thread may
 * not make the call, or return the device's sticky error. */
cudaError_t cuhost_enter(void);
/* Begin a call that makes no context, and does not wait for the driver. */
cudaError_t cuhost_enter_as_is(void);
/* Note if the calling thread runs a host function, which must not make calls. */
void cuhost_inside(bool yes);
/* Return a bit for each device that has a context. Call under the lock. */
uint64_t cuhost_contexts(void);
void cuhost_context_end(int device);

/* ---- rules (rules.c) ---- */

cuda_host_rules cuhost_rules(void);
/* Wait while a call of another thread holds the lock of the device's context. Call under
 * cuhost_lock. */
void cuhost_driver(int device);
/* Wait in the driver for all work on the device's streams. */
cudaError_t cuhost_settle(int device);

/* ---- memory (memory.c) ---- */

/* Return the address where this library can read and write the bytes at ptr, and set their type.
 * NULL: the range leaves its allocation. */
void *cuhost_access(const void *ptr, size_t bytes, enum cudaMemoryType *type);
/* Do the same for kernels, which can access only device, pinned and managed memory; NULL
 * otherwise. */
void *cuhost_reach(const void *ptr, size_t bytes);
/* Free all memory that was allocated while the device was the current one. */
void cuhost_free_all(int device);
/* Get the base and length of the allocation of device memory around ptr; false: there is none. */
bool cuhost_range(const void *ptr, void **base, size_t *bytes);

/* ---- faults (faults.c) ---- */

/* Apply faults before work runs: delay it, or return an error. */
cudaError_t cuhost_fault(cuhost_kind kind);
bool cuhost_fault_malloc(void);
bool cuhost_fault_open(void);
bool cuhost_fault_apart(void);     /* devices cannot access each other */
bool cuhost_fault_unordered(void); /* a NIC's writes need a flush */
void cuhost_count_flush(void);
void cuhost_count_copy(enum cudaMemoryType to, enum cudaMemoryType from, size_t bytes);
void cuhost_count(cuhost_kind kind);

#endif
