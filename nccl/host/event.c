/* event.c - marks in streams, and events. An event is the mark that was recorded last. */
#define _GNU_SOURCE
#include "stream.h"
#include <stdlib.h>
#include <time.h>

/* ---- marks ---- */

void cuhost_mark_drop(cuhost_mark *mark)
{
    if (--mark->refs == 0) {
        pthread_cond_destroy(&mark->reached);
        free(mark);
    }
}

static void release_mark(void *arg)
{
    pthread_mutex_lock(&cuhost_lock);
    cuhost_mark_drop(*(cuhost_mark **)arg);
    pthread_mutex_unlock(&cuhost_lock);
}

static cudaError_t reach_mark(void *arg)
{
    cuhost_mark *mark = *(cuhost_mark **)arg;
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    pthread_mutex_lock(&cuhost_lock);
    mark->time_s = (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
    mark->done = true;
    pthread_cond_broadcast(&mark->reached);
    pthread_mutex_unlock(&cuhost_lock);
    return cudaSuccess;
}

static cudaError_t await_mark(void *arg)
{
    pthread_mutex_lock(&cuhost_lock);
    cuhost_mark_wait(*(cuhost_mark **)arg);
    pthread_mutex_unlock(&cuhost_lock);
    return cudaSuccess;
}

void cuhost_mark_wait(cuhost_mark *mark)
{
    while (!mark->done) {
        pthread_cond_wait(&mark->reached, &cuhost_lock);
    }
}

cuhost_mark *cuhost_mark_put(struct CUstream_st *s)
{
    cuhost_mark *mark = calloc(1, sizeof *mark);
    if (mark == NULL) {
        return NULL;
    }
    mark->refs = 2;
    pthread_cond_init(&mark->reached, NULL);
    if (cuhost_push(s, CUHOST_MARK, reach_mark, release_mark, &mark, sizeof mark) != cudaSuccess) {
        mark->refs = 1;
        cuhost_mark_drop(mark);
        return NULL;
    }
    return mark;
}

cudaError_t cuhost_mark_await(struct CUstream_st *s, cuhost_mark *mark)
{
    cudaError_t status = cuhost_push(s, CUHOST_WAIT, await_mark, release_mark, &mark, sizeof mark);
    mark->refs += status == cudaSuccess;
    return status;
}

/* ---- events ---- */

struct CUevent_st {
    cuhost_mark *mark; /* NULL: never recorded */
    int device;        /* only streams of this device can record it */
    bool timed;
};

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    cudaError_t status = cuhost_enter();
    if (status != cudaSuccess) {
        return cuhost_result(status);
    }
    if (event == NULL ||
        (flags & ~(unsigned)(cudaEventBlockingSync | cudaEventDisableTiming)) != 0) {
        return cuhost_result(cudaErrorInvalidValue);
    }
    *event = calloc(1, sizeof **event);
    if (*event == NULL) {
        return cuhost_result(cudaErrorMemoryAllocation);
    }
    (*event)->timed = (flags & cudaEventDisableTiming) == 0;
    (*event)->device = cuhost_current();
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    return cudaEventCreateWithFlags(event, cudaEventDefault);
}

static void set_mark(cudaEvent_t event, cuhost_mark *mark)
{
    if (event->mark != NULL) {
        cuhost_mark_drop(event->mark);
    }
    event->mark = mark;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    if (event == NULL || cuhost_enter() == cudaErrorNotPermitted) {
        return cuhost_result(event == NULL ? cudaErrorInvalidResourceHandle
                                           : cudaErrorNotPermitted);
    }
    pthread_mutex_lock(&cuhost_lock);
    set_mark(event, NULL);
    pthread_mutex_unlock(&cuhost_lock);
    free(event);
    return cudaSuccess;
}

/* Do nothing: as work on the default stream it waits for blocking streams, so that a mark comes
 * after it. */
static cudaError_t nothing(void *arg)
{
    (void)arg;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    int device = -1;
    if (event == NULL) {
        return cuhost_result(cudaErrorInvalidResourceHandle);
    }
    cudaError_t status = cudaStreamGetDevice(stream, &device);
    if (status == cudaSuccess && device != event->device) {
        status = cudaErrorInvalidResourceHandle;
    }
    if (status == cudaSuccess) {
        status = cuhost_enqueue(stream, CUHOST_ORDER, nothing, NULL, "", 0);
    }
    if (status != cudaSuccess) {
        return cuhost_result(status);
    }
    pthread_mutex_lock(&cuhost_lock);
    struct CUstream_st *s = cuhost_find(stream);
    cuhost_mark *mark = NULL;
    if (s != NULL) {
        bool captured = s->capture != cudaStreamCaptureStatusNone;
        mark = cuhost_mark_put(s);
        status = mark != NULL ? cudaSuccess
                 : captured   ? cudaErrorStreamCaptureUnsupported
                              : cudaErrorMemoryAllocation;
    }
    if (mark != NULL) {
        set_mark(event, mark);
    }
    pthread_mutex_unlock(&cuhost_lock);
    return cuhost_result(status);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    cudaError_t status = cuhost_enter();
    if (status != cudaSuccess) {
        return cuhost_result(status);
    }
    if (event == NULL || flags != 0) {
        return cuhost_result(event == NULL ? cudaErrorInvalidResourceHandle
                                           : cudaErrorInvalidValue);
    }
    pthread_mutex_lock(&cuhost_lock);
    struct CUstream_st *s = cuhost_room(stream);
    if (s == NULL) {
        status = cudaErrorInvalidResourceHandle;
    } else if (event->mark != NULL) {
        status = cuhost_mark_await(s, event->mark);
    }
    pthread_mutex_unlock(&cuhost_lock);
    return cuhost_result(status);
}

/* Begin a call that asks an event, which makes no context. */
static cudaError_t ask(cudaEvent_t event)
{
    cudaError_t status = cuhost_unharmed(cuhost_enter_as_is());
    if (status != cudaSuccess || event == NULL) {
        return status != cudaSuccess ? status : cudaErrorInvalidResourceHandle;
    }
    pthread_mutex_lock(&cuhost_lock);
    cuhost_driver(event->device);
    pthread_mutex_unlock(&cuhost_lock);
    return cuhost_stays(event->device, cudaSuccess);
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    cudaError_t status = ask(event);
    if (status != cudaSuccess) {
        return cuhost_result(status);
    }
    pthread_mutex_lock(&cuhost_lock);
    bool done = event->mark == NULL || event->mark->done;
    pthread_mutex_unlock(&cuhost_lock);
    return cuhost_result(done ? cudaSuccess : cudaErrorNotReady);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    cudaError_t status = ask(event);
    if (status != cudaSuccess) {
        return cuhost_result(status);
    }
    const int device = event->device;
    pthread_mutex_lock(&cuhost_lock);
    cuhost_mark *mark = event->mark;
    if (mark != NULL) {
        mark->refs++;
        bool held = cuhost_hold_sync(device);
        cuhost_mark_wait(mark);
        cuhost_mark_drop(mark);
        cuhost_let_go(device, held);
    }
    pthread_mutex_unlock(&cuhost_lock);
    return cuhost_result(cuhost_stays(device, cudaSuccess));
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end)
{
    cudaError_t status = cuhost_enter_as_is();
    if (status != cudaSuccess) {
        return cuhost_result(status);
    }
    if (ms == NULL || start == NULL || end == NULL) {
        return cuhost_result(cudaErrorInvalidValue);
    }
    pthread_mutex_lock(&cuhost_lock);
    if (!start->timed || !end->timed || start->mark == NULL || end->mark == NULL) {
        status = cudaErrorInvalidResourceHandle;
    } else if (!start->mark->done || !end->mark->done) {
        status = cudaErrorNotReady;
    } else {
        *ms = (float)(1e3 * (end->mark->time_s - start->mark->time_s));
    }
    pthread_mutex_unlock(&cuhost_lock);
    return cuhost_result(status);
}
