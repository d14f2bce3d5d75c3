/* stream.h - what a stream is, for the files that deal with streams, marks and graphs. */
#ifndef CUDA_HOST_STREAM_H
#define CUDA_HOST_STREAM_H

#include "host.h"

struct CUgraph_st {
    cuhost_work *first, **last;
};

struct CUstream_st {
    struct CUstream_st *next; /* of all that are alive */
    int device;
    bool blocking; /* waits for the default stream, and it for this one */
    bool own;      /* a thread's, or a device's default one: the program does not destroy it */
    bool closing;  /* destroyed by the program: ends when its work is done */
    pthread_cond_t more;
    cuhost_work *first, **last;
    uint64_t submitted, completed;
    struct CUgraph_st *graph; /* of the capture that is under way */
    enum cudaStreamCaptureStatus capture;
    enum cudaStreamCaptureMode mode; /* of that capture */
    pthread_t capturer;              /* the thread that began it */
};

/* A point in a stream's work that others can wait for. */
typedef struct cuhost_mark {
    int refs;
    bool done;
    double time_s;
    pthread_cond_t reached;
} cuhost_mark;

/* All of these under the lock. */

/* The stream that a handle means, or NULL. */
struct CUstream_st *cuhost_find(cudaStream_t handle);
struct CUstream_st *cuhost_streams(void);
/* Put work on a stream, or into the graph that is being captured from it. On failure what arg owns
 * is still the caller's. */
cudaError_t cuhost_push(struct CUstream_st *s, cuhost_kind kind, cuhost_run_fn run,
                        void (*release)(void *arg), const void *arg, size_t bytes);
/* A mark behind all that a stream holds; two references, of which the caller has one. NULL: no
 * memory. */
cuhost_mark *cuhost_mark_put(struct CUstream_st *s);
/* The stream goes on when the mark is reached. */
cudaError_t cuhost_mark_await(struct CUstream_st *s, cuhost_mark *mark);
void cuhost_mark_wait(cuhost_mark *mark);
void cuhost_mark_drop(cuhost_mark *mark);

cuhost_work *cuhost_work_new(cuhost_kind kind, cuhost_run_fn run, void (*release)(void *arg),
                             const void *arg, size_t bytes);

#endif
