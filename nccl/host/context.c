/* context.c - contexts: a device has one, its primary context, from the first call that needs it.
 * Which calls need one is what CUDA 13.0's runtime does. */
#define _GNU_SOURCE
#include "host.h"

struct CUctx_st {
    bool exists; /* under the lock */
};

static struct CUctx_st contexts[CUHOST_DEVICES_MAX];
static _Thread_local CUcontext current; /* NULL: none */
static _Thread_local int chosen;        /* by cudaSetDevice; where no context is current */
static _Thread_local bool inside;       /* a host function */

static void make(int device)
{
    pthread_mutex_lock(&cuhost_lock);
    contexts[device].exists = true;
    pthread_mutex_unlock(&cuhost_lock);
    current = &contexts[device];
}

int cuhost_current(void)
{
    return current != NULL ? (int)(current - contexts) : chosen;
}

void cuhost_set_current(int device)
{
    current = &contexts[device];
}

void cuhost_inside(bool yes)
{
    inside = yes;
}

cudaError_t cuhost_enter_as_is(void)
{
    return inside ? cudaErrorNotPermitted : cuhost_stays(cuhost_current(), cudaSuccess);
}

void cuhost_context(void)
{
    if (!inside) {
        make(cuhost_current());
    }
}

cudaError_t cuhost_enter(void)
{
    cuhost_context();
    if (!inside) {
        pthread_mutex_lock(&cuhost_lock);
        cuhost_driver(cuhost_current());
        pthread_mutex_unlock(&cuhost_lock);
    }
    return cuhost_enter_as_is();
}

uint64_t cuhost_contexts(void)
{
    uint64_t devices = 0;
    for (int d = 0; d < CUHOST_DEVICES_MAX; d++) {
        devices |= (uint64_t)contexts[d].exists << d;
    }
    return devices;
}

void cuhost_context_end(int device)
{
    pthread_mutex_lock(&cuhost_lock);
    contexts[device].exists = false;
    pthread_mutex_unlock(&cuhost_lock);
}

cudaError_t cudaGetDevice(int *device)
{
    if (device == NULL) {
        return cuhost_result(cudaErrorInvalidValue);
    }
    *device = cuhost_current();
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    if (inside) {
        return cuhost_result(cudaErrorNotPermitted);
    }
    if (cuhost_bad_device(device)) {
        return cuhost_result(cudaErrorInvalidDevice);
    }
    chosen = device;
    make(device);
    return cudaSuccess;
}

/* ---- of the driver ---- */

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    if (context == NULL || device < 0 || device >= CUHOST_DEVICES_MAX) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_lock(&cuhost_lock);
    contexts[device].exists = true;
    pthread_mutex_unlock(&cuhost_lock);
    *context = &contexts[device];
    return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *context)
{
    if (context == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *context = current;
    return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context)
{
    bool known = context == NULL;
    pthread_mutex_lock(&cuhost_lock);
    for (int d = 0; d < CUHOST_DEVICES_MAX; d++) {
        known = known || (context == &contexts[d] && contexts[d].exists);
    }
    pthread_mutex_unlock(&cuhost_lock);
    if (!known || inside) {
        return known ? CUDA_ERROR_NOT_PERMITTED : CUDA_ERROR_INVALID_CONTEXT;
    }
    current = context;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *device)
{
    if (device == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (current == NULL) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    *device = cuhost_current();
    return CUDA_SUCCESS;
}
