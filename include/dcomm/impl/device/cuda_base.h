/* cuda_base.h - what all calls of CUDA's runtime share: error messages, the driver's functions, the
 * calling thread's device. */
#ifndef DCOMMI_CUDA_BASE_H
#define DCOMMI_CUDA_BASE_H

#include "device.h"

#ifdef DCOMM_WITH_CUDA

#include <cuda_runtime_api.h>
#include <pthread.h>

/* Report a failed call. `device`: the device of the call; -1: none, or the message names it
 * anyway. */
static dcomm_status dcommi_cuda_failed(int device, cudaError_t error, const char *what)
{
    char on[32] = "";
    (void)cudaGetLastError(); /* reported here: the program must not find it again */
    if (device >= 0) {
        snprintf(on, sizeof on, " on device %d", device);
    }
    return dcommi_fail(error == cudaErrorMemoryAllocation ? DCOMM_ERR_NO_MEMORY : DCOMM_ERR_SYSTEM,
                       "%s%s: %s", what, on, cudaGetErrorString(error));
}

#define DCOMMI_CUDA_TRY(device, call, what)                             \
    do {                                                                \
        cudaError_t dcommi_cuda_error = (call);                         \
        if (DCOMMI_UNLIKELY(dcommi_cuda_error != cudaSuccess)) {        \
            return dcommi_cuda_failed(device, dcommi_cuda_error, what); \
        }                                                               \
    } while (0)

/* ---- the driver's functions, found without linking it ---- */

typedef unsigned long long dcommi_cuda_address;

/* All of them are in the driver of CUDA 12, or none is used. `stream` is a runtime's or driver's
 * stream: these are the same. */
static struct dcommi_cuda_driver {
    bool complete;
    const char *lacks; /* the function that is missing; NULL: there is no driver */
    int (*init)(unsigned flags);
    int (*context_get)(void **context_p);
    int (*context_set)(void *context);
    int (*context_device)(int *device_p);
    int (*context_retain)(void **context_p, int device);
    int (*capture_mode)(int *mode);
    int (*loading_mode)(int *mode);
    int (*range)(dcommi_cuda_address *base, size_t *bytes, dcommi_cuda_address at);
    int (*wait)(cudaStream_t stream, dcommi_cuda_address word, uint32_t value, unsigned flags);
    int (*write)(cudaStream_t stream, dcommi_cuda_address word, uint32_t value, unsigned flags);
} dcommi_cuda_driver;

static cudaError_t dcommi_cuda_entry(const char *symbol, void **entry)
{
    enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    *entry = NULL;
#if CUDART_VERSION >= 12050
    cudaError_t error =
        cudaGetDriverEntryPointByVersion(symbol, entry, 12000, cudaEnableDefault, &found);
#else
    cudaError_t error = cudaGetDriverEntryPoint(symbol, entry, cudaEnableDefault, &found);
#endif
    (void)cudaGetLastError();
    if (found != cudaDriverEntryPointSuccess) {
        *entry = NULL;
    }
    return error;
}

static void dcommi_cuda_find_driver(void)
{
    struct dcommi_cuda_driver *d = &dcommi_cuda_driver;
    const struct {
        const char *name;
        void *at; /* a pointer to a function */
    } wanted[] = {
        {"cuInit", &d->init},
        {"cuCtxGetCurrent", &d->context_get},
        {"cuCtxSetCurrent", &d->context_set},
        {"cuCtxGetDevice", &d->context_device},
        {"cuDevicePrimaryCtxRetain", &d->context_retain},
        {"cuThreadExchangeStreamCaptureMode", &d->capture_mode},
        {"cuModuleGetLoadingMode", &d->loading_mode},
        {"cuMemGetAddressRange", &d->range},
        {"cuStreamWaitValue32", &d->wait},
        {"cuStreamWriteValue32", &d->write},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        void *entry = NULL;
        cudaError_t error = dcommi_cuda_entry(wanted[i].name, &entry);
        if (entry == NULL) {
            d->lacks =
                error == cudaSuccess || error == cudaErrorSymbolNotFound ? wanted[i].name : NULL;
            return;
        }
        memcpy(wanted[i].at, &entry, sizeof entry); /* ISO C has no such cast */
    }
    d->complete = d->init(0) == 0;
}

/* Return true if there is a driver, of CUDA 12 or newer. */
static bool dcommi_cuda_ready(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, dcommi_cuda_find_driver);
    return dcommi_cuda_driver.complete;
}

static dcomm_status dcommi_cuda_need_driver(const char *what)
{
    if (DCOMMI_LIKELY(dcommi_cuda_ready())) {
        return DCOMM_OK;
    }
    return dcommi_cuda_driver.lacks == NULL
               ? dcommi_fail(DCOMM_ERR_UNSUPPORTED, "%s: there is no CUDA driver, or no device",
                             what)
               : dcommi_fail(DCOMM_ERR_UNSUPPORTED,
                             "%s needs %s, which the driver does not have: it must be CUDA 12's or "
                             "newer",
                             what, dcommi_cuda_driver.lacks);
}

/* ---- the calling thread's device ---- */

#define DCOMMI_CUDA_DEVICES 64

static int dcommi_cuda_current(void)
{
    int device = 0;
    return cudaGetDevice(&device) == cudaSuccess ? device : 0;
}

/* Return the device that the calling thread uses; -1: it has no context yet. */
static int dcommi_cuda_in_use(void)
{
    void *context = NULL;
    int device = -1;
    return dcommi_cuda_ready() && dcommi_cuda_driver.context_get(&context) == 0 &&
                   context != NULL && dcommi_cuda_driver.context_device(&device) == 0
               ? device
               : -1;
}

#define DCOMMI_CUDA_EAGER 1 /* CU_MODULE_EAGER_LOADING */

static bool dcommi_cuda_waits;

static void dcommi_cuda_find_waits(void)
{
    const char *blocking = getenv("CUDA_LAUNCH_BLOCKING");
    int mode = DCOMMI_CUDA_EAGER;
    dcommi_cuda_waits = (blocking != NULL && *blocking != 0 && strcmp(blocking, "0") != 0) ||
                        (dcommi_cuda_ready() && dcommi_cuda_driver.loading_mode(&mode) == 0 &&
                         mode != DCOMMI_CUDA_EAGER);
}

/* Return true if no stream may wait for a rank: where launches wait for their kernels, as a
 * debugger wants it, and where kernels are loaded when they are first launched. What is launched
 * behind a loading waits for all streams, and this rank's part of an operation may be behind it.
 * Neither changes in a process. */
static bool dcommi_cuda_synchronous(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, dcommi_cuda_find_waits);
    return dcommi_cuda_waits;
}

static _Thread_local bool dcommi_cuda_own_thread;

/* Make the calling thread one of the library's own: it keeps the device that it used last. */
static void dcommi_cuda_is_own_thread(void)
{
    int mode = cudaStreamCaptureModeRelaxed;
    if (dcommi_cuda_ready()) {
        (void)dcommi_cuda_driver.capture_mode(&mode);
        dcommi_cuda_own_thread = true;
    }
}

/* Return the primary context of a device, which this call makes if there is none; NULL: it
 * failed. */
static void *dcommi_cuda_context_of(int device)
{
    static _Atomic(void *) contexts[DCOMMI_CUDA_DEVICES];
    void *context = NULL;
    if (device < 0 || device >= DCOMMI_CUDA_DEVICES) {
        return NULL;
    }
    context = atomic_load_explicit(&contexts[device], memory_order_acquire);
    if (context == NULL && dcommi_cuda_driver.context_retain(&context, device) == 0) {
        atomic_store_explicit(&contexts[device], context, memory_order_release);
    }
    return context;
}

/* Let the calling thread use a device until leave: streams and events belong to that. It is the
 * driver's context that is exchanged: cudaSetDevice would make one on device 0 when the thread
 * returns to "none". A context of the program's own for the device stays.
 *
 * While any thread captures a stream, CUDA refuses other threads' calls that could harm a capture,
 * and ends the capture. Calls from here to leave have nothing to do with it, so relax that
 * mode. */
static dcommi_device_before dcommi_cuda_enter(int number)
{
    dcommi_device_before before = {.mode = cudaStreamCaptureModeRelaxed};
    int current = -1;
    void *context = NULL;
    if (!dcommi_cuda_ready()) {
        return before;
    }
    if (!dcommi_cuda_own_thread) {
        (void)dcommi_cuda_driver.capture_mode(&before.mode);
    }
    if (dcommi_cuda_driver.context_get(&before.context) != 0 ||
        (before.context != NULL && dcommi_cuda_driver.context_device(&current) == 0 &&
         current == number)) {
        return before;
    }
    context = dcommi_cuda_context_of(number);
    before.changed = context != NULL && dcommi_cuda_driver.context_set(context) == 0;
    return before;
}

static void dcommi_cuda_leave(dcommi_device_before before)
{
    if (dcommi_cuda_own_thread || !dcommi_cuda_ready()) {
        return;
    }
    if (before.changed) {
        (void)dcommi_cuda_driver.context_set(before.context);
    }
    (void)dcommi_cuda_driver.capture_mode(&before.mode);
}

/* Leave the device, and return the status of what was done there. */
static dcomm_status dcommi_cuda_done(dcommi_device_before before, dcomm_status status)
{
    dcommi_cuda_leave(before);
    return status;
}

/* Leave the device, and report the result of a runtime call. */
static dcomm_status dcommi_cuda_called(dcommi_device_before before, int device, cudaError_t error,
                                       const char *what)
{
    dcommi_cuda_leave(before);
    return error == cudaSuccess ? DCOMM_OK : dcommi_cuda_failed(device, error, what);
}

#endif
#endif
