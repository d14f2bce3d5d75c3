/* stream.c - streams: each is a queue of work with a thread that runs it in order. */
#define _GNU_SOURCE
#include "stream.h"
#include <signal.h>
#include <stdlib.h>
#include <string.h>

static struct CUstream_st *streams;                      /* both guarded by the lock */
static struct CUstream_st *defaults[CUHOST_DEVICES_MAX]; /* the default stream of each device */

struct CUstream_st *cuhost_streams(void)
{
    return streams;
}

/* ---- the thread of a stream ---- */

static void run_work(struct CUstream_st *s, cuhost_work *w)
{
    bool dropped = w->kind < CUHOST_ORDER && cuhost_stays(s->device, cudaSuccess) != cudaSuccess;
    if (!dropped) {
        cudaError_t error = cuhost_fault(w->kind);
        cuhost_inside(w->kind == CUHOST_CALL);
        if (error == cudaSuccess) {
            error = w->run(w->arg);
        }
        cuhost_inside(false);
        cuhost_count(w->kind);
        if (error != cudaSuccess) {
            cuhost_stays(s->device, error);
        }
    }
    if (w->release != NULL) {
        w->release(w->arg);
    }
}

static void unlink_stream(struct CUstream_st *s)
{
    struct CUstream_st **at = &streams;
    while (*at != s) {
        at = &(*at)->next;
    }
    *at = s->next;
}

static void *work_off(void *arg)
{
    struct CUstream_st *s = arg;
    cuhost_set_current(s->device);
    pthread_mutex_lock(&cuhost_lock);
    for (;;) {
        while (s->first == NULL && !s->closing) {
            pthread_cond_wait(&s->more, &cuhost_lock);
        }
        cuhost_work *w = s->first;
        if (w == NULL) {
            break;
        }
        s->first = w->next;
        if (s->first == NULL) {
            s->last = &s->first;
        }
        cuhost_begins(s, w);
        const bool mark = w->kind == CUHOST_MARK;
        s->completed += mark; /* a call that has waited for a mark finds the stream idle */
        pthread_mutex_unlock(&cuhost_lock);
        run_work(s, w);
        pthread_mutex_lock(&cuhost_lock);
        s->completed += !mark;
        cuhost_ends(s, w);
        free(w);
    }
    unlink_stream(s);
    pthread_mutex_unlock(&cuhost_lock);
    pthread_cond_destroy(&s->more);
    free(s);
    return NULL;
}

/* Call under the lock. The new thread blocks all signals, because they belong to the program. */
static struct CUstream_st *start_stream(int device, bool blocking, int priority)
{
    sigset_t all, before;
    pthread_t thread;
    struct CUstream_st *s = calloc(1, sizeof *s);
    if (s == NULL) {
        return NULL;
    }
    s->device = device;
    s->blocking = blocking;
    s->priority = priority;
    s->channel = cuhost_channel_of(device, priority);
    s->last = &s->first;
    pthread_cond_init(&s->more, NULL);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&thread, NULL, work_off, s);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed != 0) {
        pthread_cond_destroy(&s->more);
        free(s);
        return NULL;
    }
    pthread_detach(thread);
    s->next = streams;
    streams = s;
    return s;
}

/* ---- the stream of a thread: cudaStreamPerThread ---- */

static pthread_once_t own_once = PTHREAD_ONCE_INIT;
static pthread_key_t own_key; /* value: one stream for each device */

static void end_own(void *arg)
{
    struct CUstream_st **own = arg;
    pthread_mutex_lock(&cuhost_lock);
    for (int d = 0; d < CUHOST_DEVICES_MAX; d++) {
        if (own[d] != NULL) {
            own[d]->closing = true;
            pthread_cond_signal(&own[d]->more);
        }
    }
    pthread_mutex_unlock(&cuhost_lock);
    free(own);
}

static void make_own_key(void)
{
    pthread_key_create(&own_key, end_own);
}

static struct CUstream_st *find_own(int device)
{
    pthread_once(&own_once, make_own_key);
    struct CUstream_st **own = pthread_getspecific(own_key);
    if (own == NULL) {
        own = calloc(CUHOST_DEVICES_MAX, sizeof(struct CUstream_st *));
        if (own == NULL || pthread_setspecific(own_key, own) != 0) {
            free(own);
            return NULL;
        }
    }
    if (own[device] == NULL) {
        own[device] = start_stream(device, true, CUHOST_PRIORITY_LEAST);
        if (own[device] != NULL) {
            own[device]->own = true;
        }
    }
    return own[device];
}

/* ---- putting work on a stream ---- */

struct CUstream_st *cuhost_find(cudaStream_t handle)
{
    if (handle == cudaStreamPerThread) {
        return find_own(cuhost_current());
    }
    if (handle == NULL || handle == cudaStreamLegacy) {
        int device = cuhost_current();
        if (defaults[device] == NULL) {
            defaults[device] = start_stream(device, false, CUHOST_PRIORITY_LEAST);
            if (defaults[device] != NULL) {
                defaults[device]->own = true;
            }
        }
        return defaults[device];
    }
    for (struct CUstream_st *s = streams; s != NULL; s = s->next) {
        if (s == handle && !s->closing) {
            return s;
        }
    }
    return NULL;
}

cuhost_work *cuhost_work_new(cuhost_kind kind, cuhost_run_fn run, void (*release)(void *arg),
                             const void *arg, size_t bytes)
{
    cuhost_work *w = malloc(sizeof *w + bytes);
    if (w != NULL) {
        *w = (cuhost_work){.kind = kind, .run = run, .release = release, .bytes = bytes};
        memcpy(w->arg, arg, bytes);
    }
    return w;
}

cudaError_t cuhost_push(struct CUstream_st *s, cuhost_kind kind, cuhost_run_fn run,
                        void (*release)(void *arg), const void *arg, size_t bytes)
{
    if (s->capture == cudaStreamCaptureStatusInvalidated) {
        return cudaErrorStreamCaptureInvalidated;
    }
    if (s->capture == cudaStreamCaptureStatusActive && release != NULL) {
        s->capture = cudaStreamCaptureStatusInvalidated;
        return cudaErrorStreamCaptureUnsupported;
    }
    cuhost_work *w = cuhost_work_new(kind, run, release, arg, bytes);
    if (w == NULL) {
        return cudaErrorMemoryAllocation;
    }
    cuhost_work ***last = s->graph != NULL ? &s->graph->last : &s->last;
    **last = w;
    *last = &w->next;
    if (s->graph == NULL) {
        s->submitted++;
        cuhost_queued(s, w);
        pthread_cond_signal(&s->more);
    }
    return cudaSuccess;
}

/* Order s with other streams of its device: the default stream waits for blocking streams, and
 * they for it. */
static cudaError_t order(struct CUstream_st *s)
{
    struct CUstream_st *first = defaults[s->device];
    cudaError_t status = cudaSuccess;
    for (struct CUstream_st *t = streams; t != NULL && status == cudaSuccess; t = t->next) {
        bool before = s == first ? t->blocking : s->blocking && t == first;
        if (t->device != s->device || !before) {
            continue;
        }
        if (s == first && t->capture != cudaStreamCaptureStatusNone) {
            t->capture = cudaStreamCaptureStatusInvalidated;
            return cudaErrorStreamCaptureImplicit;
        }
        if (t->submitted != t->completed && s->capture == cudaStreamCaptureStatusNone) {
            cuhost_mark *mark = cuhost_mark_put(t);
            status = mark == NULL ? cudaErrorMemoryAllocation : cuhost_mark_await(s, mark);
            if (mark != NULL) {
                cuhost_mark_drop(mark);
            }
        }
    }
    return status;
}

cudaError_t cuhost_enqueue(cudaStream_t stream, cuhost_kind kind, cuhost_run_fn run,
                           void (*release)(void *arg), const void *arg, size_t bytes)
{
    cudaError_t status = cuhost_enter();
    return status != cudaSuccess ? status : cuhost_put(stream, kind, run, release, arg, bytes);
}

cudaError_t cuhost_put(cudaStream_t stream, cuhost_kind kind, cuhost_run_fn run,
                       void (*release)(void *arg), const void *arg, size_t bytes)
{
    pthread_mutex_lock(&cuhost_lock);
    struct CUstream_st *s = cuhost_room(stream);
    cudaError_t status = s == NULL ? cudaErrorInvalidResourceHandle : order(s);
    if (status == cudaSuccess) {
        status = cuhost_push(s, kind, run, release, arg, bytes);
    }
    if (status == cudaSuccess && kind == CUHOST_KERNEL) {
        cuhost_launched(s);
    }
    pthread_mutex_unlock(&cuhost_lock);
    return status;
}

bool cuhost_capturing(cudaStream_t stream)
{
    pthread_mutex_lock(&cuhost_lock);
    struct CUstream_st *s = cuhost_find(stream);
    bool yes = s != NULL && s->capture != cudaStreamCaptureStatusNone;
    pthread_mutex_unlock(&cuhost_lock);
    return yes;
}

/* ---- waiting for a stream ---- */

cudaError_t cuhost_drain(cudaStream_t stream)
{
    cudaError_t status = cuhost_enter();
    if (status != cudaSuccess) {
        return status;
    }
    pthread_mutex_lock(&cuhost_lock);
    struct CUstream_st *s = cuhost_find(stream);
    cuhost_mark *mark = NULL;
    if (s == NULL) {
        status = cudaErrorInvalidResourceHandle;
    } else if (s->capture != cudaStreamCaptureStatusNone) {
        s->capture = cudaStreamCaptureStatusInvalidated;
        status = cudaErrorStreamCaptureUnsupported;
    } else if ((status = order(s)) == cudaSuccess) {
        mark = cuhost_mark_put(s);
        status = mark == NULL ? cudaErrorMemoryAllocation : cudaSuccess;
    }
    int device = s != NULL ? s->device : 0;
    if (mark != NULL) {
        bool held = cuhost_hold_sync(device);
        cuhost_mark_wait(mark);
        cuhost_mark_drop(mark);
        cuhost_let_go(device, held);
    }
    pthread_mutex_unlock(&cuhost_lock);
    return status != cudaSuccess ? status : cuhost_stays(device, cudaSuccess);
}

cudaError_t cuhost_drain_device(int device)
{
    cudaError_t status = cudaSuccess;
    size_t n = 0, i = 0;
    pthread_mutex_lock(&cuhost_lock);
    for (struct CUstream_st *s = streams; s != NULL; s = s->next) {
        n += s->device == device;
    }
    cuhost_mark **marks = calloc(n + 1, sizeof *marks);
    if (marks == NULL) {
        pthread_mutex_unlock(&cuhost_lock);
        return cudaErrorMemoryAllocation;
    }
    for (struct CUstream_st *s = streams; s != NULL; s = s->next) {
        if (s->device == device && s->capture != cudaStreamCaptureStatusNone) {
            status = cudaErrorStreamCaptureUnsupported;
        } else if (s->device == device && (marks[i++] = cuhost_mark_put(s)) == NULL) {
            status = cudaErrorMemoryAllocation;
        }
    }
    for (i = 0; i < n; i++) {
        if (marks[i] != NULL) {
            cuhost_mark_wait(marks[i]);
            cuhost_mark_drop(marks[i]);
        }
    }
    pthread_mutex_unlock(&cuhost_lock);
    free(marks);
    return status != cudaSuccess ? status : cuhost_stays(device, cudaSuccess);
}

/* ---- the calls ---- */

/* A priority outside of the range is the nearest one, as in CUDA. */
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority)
{
    cudaError_t status = cuhost_enter();
    if (status != cudaSuccess) {
        return cuhost_result(status);
    }
    if (stream == NULL || (flags & ~(unsigned)cudaStreamNonBlocking) != 0) {
        return cuhost_result(cudaErrorInvalidValue);
    }
    pthread_mutex_lock(&cuhost_lock);
    priority = priority > CUHOST_PRIORITY_LEAST      ? CUHOST_PRIORITY_LEAST
               : priority < CUHOST_PRIORITY_GREATEST ? CUHOST_PRIORITY_GREATEST
                                                     : priority;
    *stream = start_stream(cuhost_current(), (flags & cudaStreamNonBlocking) == 0, priority);
    pthread_mutex_unlock(&cuhost_lock);
    return cuhost_result(*stream == NULL ? cudaErrorMemoryAllocation : cudaSuccess);
}

cudaError_t cudaStreamCreate(cudaStream_t *stream)
{
    return cudaStreamCreateWithFlags(stream, cudaStreamDefault);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    return cudaStreamCreateWithPriority(stream, flags, CUHOST_PRIORITY_LEAST);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    cudaError_t status = cuhost_enter();
    if (least != NULL) {
        *least = CUHOST_PRIORITY_LEAST;
    }
    if (greatest != NULL) {
        *greatest = CUHOST_PRIORITY_GREATEST;
    }
    return cuhost_result(status);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    cudaError_t status = cuhost_enter() == cudaErrorNotPermitted ? cudaErrorNotPermitted
                                                                 : cudaErrorInvalidResourceHandle;
    pthread_mutex_lock(&cuhost_lock);
    struct CUstream_st *s = stream > cudaStreamPerThread ? cuhost_find(stream) : NULL;
    if (s != NULL && status != cudaErrorNotPermitted) {
        s->closing = true;
        pthread_cond_signal(&s->more);
        status = cudaSuccess;
    }
    pthread_mutex_unlock(&cuhost_lock);
    return cuhost_result(status);
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    cudaError_t status = cuhost_enter_unsafe();
    return cuhost_result(status != cudaSuccess ? status : cuhost_drain(stream));
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    cudaError_t status = cuhost_enter_unsafe();
    if (status != cudaSuccess) {
        return cuhost_result(status);
    }
    pthread_mutex_lock(&cuhost_lock);
    struct CUstream_st *s = cuhost_find(stream);
    status = s == NULL                      ? cudaErrorInvalidResourceHandle
             : s->submitted != s->completed ? cudaErrorNotReady
                                            : cudaSuccess;
    pthread_mutex_unlock(&cuhost_lock);
    return cuhost_result(status);
}

/* Copy a stream's description for a query, unless it has no place for its answer. */
static cudaError_t describe(cudaStream_t stream, const void *answer, struct CUstream_st *copy)
{
    pthread_mutex_lock(&cuhost_lock);
    const struct CUstream_st *s = cuhost_find(stream);
    cudaError_t status = s == NULL        ? cudaErrorInvalidResourceHandle
                         : answer == NULL ? cudaErrorInvalidValue
                                          : cudaSuccess;
    if (status == cudaSuccess) {
        *copy = *s;
    }
    pthread_mutex_unlock(&cuhost_lock);
    return cuhost_result(status);
}

cudaError_t cudaStreamGetDevice(cudaStream_t stream, int *device)
{
    struct CUstream_st s;
    cudaError_t status = describe(stream, device, &s);
    if (status == cudaSuccess) {
        *device = s.device;
    }
    return status;
}

cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned *flags)
{
    struct CUstream_st s;
    cudaError_t status = cuhost_enter();
    status = status != cudaSuccess ? cuhost_result(status) : describe(stream, flags, &s);
    if (status == cudaSuccess) {
        *flags = s.own || s.blocking ? cudaStreamDefault : cudaStreamNonBlocking;
    }
    return status;
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority)
{
    struct CUstream_st s;
    cudaError_t status = cuhost_enter();
    status = status != cudaSuccess ? cuhost_result(status) : describe(stream, priority, &s);
    if (status == cudaSuccess) {
        *priority = s.priority;
    }
    return status;
}

void cuhost_close_streams(int device)
{
    pthread_mutex_lock(&cuhost_lock);
    for (struct CUstream_st *s = streams; s != NULL; s = s->next) {
        if (s->device == device && !s->own) {
            s->closing = true;
            pthread_cond_signal(&s->more);
        }
    }
    pthread_mutex_unlock(&cuhost_lock);
}

typedef struct host_call {
    cudaHostFn_t fn;
    void *user;
} host_call;

static cudaError_t run_call(void *arg)
{
    const host_call *c = arg;
    c->fn(c->user);
    return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void *user)
{
    const host_call c = {fn, user};
    if (fn == NULL) {
        return cuhost_result(cudaErrorInvalidValue);
    }
    return cuhost_result(cuhost_enqueue(stream, CUHOST_CALL, run_call, NULL, &c, sizeof c));
}
