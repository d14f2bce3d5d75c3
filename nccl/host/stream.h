/* stream.h - the structure of streams, marks and graphs. */
#ifndef CUDA_HOST_STREAM_H
#define CUDA_HOST_STREAM_H

#include "host.h"

/* Priorities of streams: a greater one is a lesser number, as in CUDA. They have no effect,
 * because the host schedules the threads. */
#define CUHOST_PRIORITY_LEAST 0
#define CUHOST_PRIORITY_GREATEST (-5)

struct CUgraph_st {
    cuhost_work *first, **last;
};

struct CUstream_st {
    struct CUstream_st *next; /* list of all streams */
    int device;
    bool blocking; /* waits for the default stream, and vice versa */
    bool own;      /* a thread's, or a device's default stream: the program cannot destroy it */
    int priority;
    bool closing; /* destroyed by the program; ends when its work is done */
    pthread_cond_t more;
    cuhost_work *first, **last;
    uint64_t submitted, completed;
    unsigned queued;                /* entries that take room, and have not ended */
    struct cuhost_channel *channel; /* hardware queue; NULL: its own */
    struct CUgraph_st *graph;       /* of the current capture */
    enum cudaStreamCaptureStatus capture;
    enum cudaStreamCaptureMode mode; /* of the current capture */
    pthread_t capturer;              /* thread that began the current capture */
};

/* A point in a stream's work that others can wait for. */
typedef struct cuhost_mark {
    int refs;
    bool done;
    double time_s;
    pthread_cond_t reached;
} cuhost_mark;

/* Call all of these under the lock. */

/* Return the stream of a handle, or NULL. */
struct CUstream_st *cuhost_find(cudaStream_t handle);
struct CUstream_st *cuhost_streams(void);
/* Put work on a stream, or into the graph that is being captured from it. On failure the caller
 * still owns the resources in arg. */
cudaError_t cuhost_push(struct CUstream_st *s, cuhost_kind kind, cuhost_run_fn run,
                        void (*release)(void *arg), const void *arg, size_t bytes);
/* Put a mark behind all work of a stream. It has two references, one of which is the caller's.
 * NULL: no memory. */
cuhost_mark *cuhost_mark_put(struct CUstream_st *s);
/* Let the stream wait for the mark. */
cudaError_t cuhost_mark_await(struct CUstream_st *s, cuhost_mark *mark);
void cuhost_mark_wait(cuhost_mark *mark);
void cuhost_mark_drop(cuhost_mark *mark);

/* ---- rules.c; call under the lock too ---- */

/* Find a stream, and wait until its queue has room. */
struct CUstream_st *cuhost_room(cudaStream_t stream);
/* Take the lock of the device's context if it is the rule, and return true if so. */
bool cuhost_hold(int device);
/* Do the same for a call of the program that waits for a stream or an event. */
bool cuhost_hold_sync(int device);
void cuhost_let_go(int device, bool held);
/* A kernel has been put on the stream: wait for it if it is the rule. */
void cuhost_launched(struct CUstream_st *s);
/* Choose the hardware queue of a new stream. */
struct cuhost_channel *cuhost_channel_of(int device, int priority);
/* Work is put on a stream; its turn comes (wait for it); it has run. */
void cuhost_queued(struct CUstream_st *s, cuhost_work *w);
void cuhost_begins(struct CUstream_st *s, const cuhost_work *w);
void cuhost_ends(struct CUstream_st *s, const cuhost_work *w);

cuhost_work *cuhost_work_new(cuhost_kind kind, cuhost_run_fn run, void (*release)(void *arg),
                             const void *arg, size_t bytes);

#endif
