/* graph.c - capture: collect the work that is put on a stream in a list, which can be launched on
 * streams any number of times. */
#define _GNU_SOURCE
#include "stream.h"
#include <stdlib.h>

struct CUgraphExec_st {
    struct CUgraph_st list;
};

static void empty(struct CUgraph_st *graph)
{
    while (graph->first != NULL) {
        cuhost_work *w = graph->first;
        graph->first = w->next;
        free(w);
    }
    graph->last = &graph->first;
}

static _Thread_local enum cudaStreamCaptureMode own_mode; /* initially Global */

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    if (mode == NULL || (unsigned)*mode > cudaStreamCaptureModeRelaxed) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUstreamCaptureMode before = own_mode;
    own_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode)
{
    if (mode == NULL || (unsigned)*mode > cudaStreamCaptureModeRelaxed) {
        return cuhost_result(cudaErrorInvalidValue);
    }
    cuhost_context(); /* this call makes a context, and the driver's does not */
    return (cudaError_t)cuThreadExchangeStreamCaptureMode(mode);
}

cudaError_t cuhost_enter_unsafe(void)
{
    return cuhost_unharmed(cuhost_enter());
}

cudaError_t cuhost_unharmed(cudaError_t status)
{
    if (own_mode == cudaStreamCaptureModeRelaxed) {
        return status;
    }
    pthread_mutex_lock(&cuhost_lock);
    for (struct CUstream_st *s = cuhost_streams(); s != NULL; s = s->next) {
        bool respected =
            pthread_equal(s->capturer, pthread_self())
                ? s->mode != cudaStreamCaptureModeRelaxed
                : own_mode == cudaStreamCaptureModeGlobal && s->mode == cudaStreamCaptureModeGlobal;
        if (s->capture == cudaStreamCaptureStatusActive && respected) {
            s->capture = cudaStreamCaptureStatusInvalidated;
            status = cudaErrorStreamCaptureUnsupported;
        }
    }
    pthread_mutex_unlock(&cuhost_lock);
    return status;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status)
{
    (void)cuhost_enter();
    pthread_mutex_lock(&cuhost_lock);
    struct CUstream_st *s = cuhost_find(stream);
    cudaError_t error = s == NULL        ? cudaErrorInvalidResourceHandle
                        : status == NULL ? cudaErrorInvalidValue
                                         : cudaSuccess;
    if (error == cudaSuccess) {
        *status = s->capture;
    }
    pthread_mutex_unlock(&cuhost_lock);
    return cuhost_result(error);
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    cudaError_t status = cuhost_enter();
    if (status != cudaSuccess) {
        return cuhost_result(status);
    }
    if ((unsigned)mode > cudaStreamCaptureModeRelaxed) {
        return cuhost_result(cudaErrorInvalidValue);
    }
    if (stream == NULL || stream == cudaStreamLegacy) {
        return cuhost_result(cudaErrorStreamCaptureUnsupported);
    }
    struct CUgraph_st *graph = calloc(1, sizeof *graph);
    if (graph == NULL) {
        return cuhost_result(cudaErrorMemoryAllocation);
    }
    graph->last = &graph->first;
    pthread_mutex_lock(&cuhost_lock);
    struct CUstream_st *s = cuhost_find(stream);
    if (s == NULL || s->capture != cudaStreamCaptureStatusNone) {
        status = s == NULL ? cudaErrorInvalidResourceHandle : cudaErrorInvalidValue;
    } else {
        s->graph = graph;
        s->capture = cudaStreamCaptureStatusActive;
        s->mode = mode;
        s->capturer = pthread_self();
    }
    pthread_mutex_unlock(&cuhost_lock);
    if (status != cudaSuccess) {
        free(graph);
    }
    return cuhost_result(status);
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    if (graph == NULL) {
        return cuhost_result(cudaErrorInvalidValue);
    }
    *graph = NULL;
    cudaError_t status = cudaErrorInvalidResourceHandle;
    pthread_mutex_lock(&cuhost_lock);
    struct CUstream_st *s = cuhost_find(stream);
    struct CUgraph_st *ended = NULL;
    if (s != NULL) {
        status = s->capture == cudaStreamCaptureStatusNone     ? cudaErrorStreamCaptureUnmatched
                 : s->capture == cudaStreamCaptureStatusActive ? cudaSuccess
                                                               : cudaErrorStreamCaptureInvalidated;
        ended = s->graph;
        s->graph = NULL;
        s->capture = cudaStreamCaptureStatusNone;
    }
    pthread_mutex_unlock(&cuhost_lock);
    if (status == cudaSuccess) {
        *graph = ended;
    } else if (ended != NULL) {
        cudaGraphDestroy(ended);
    }
    return cuhost_result(status);
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    if (graph == NULL) {
        return cuhost_result(cudaErrorInvalidValue);
    }
    empty(graph);
    free(graph);
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags)
{
    if (exec == NULL || graph == NULL || flags != 0) {
        return cuhost_result(cudaErrorInvalidValue);
    }
    *exec = calloc(1, sizeof **exec);
    if (*exec == NULL) {
        return cuhost_result(cudaErrorMemoryAllocation);
    }
    struct CUgraph_st *list = &(*exec)->list;
    list->last = &list->first;
    for (const cuhost_work *w = graph->first; w != NULL; w = w->next) {
        *list->last = cuhost_work_new(w->kind, w->run, NULL, w->arg, w->bytes);
        if (*list->last == NULL) {
            (void)cudaGraphExecDestroy(*exec);
            *exec = NULL;
            return cuhost_result(cudaErrorMemoryAllocation);
        }
        list->last = &(*list->last)->next;
    }
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    cudaError_t status = exec == NULL ? cudaErrorInvalidValue : cudaSuccess;
    const cuhost_work *w = exec != NULL ? exec->list.first : NULL;
    for (; w != NULL && status == cudaSuccess; w = w->next) {
        status = cuhost_enqueue(stream, w->kind, w->run, NULL, w->arg, w->bytes);
    }
    return cuhost_result(status);
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    if (exec == NULL) {
        return cuhost_result(cudaErrorInvalidValue);
    }
    empty(&exec->list);
    free(exec);
    return cudaSuccess;
}
