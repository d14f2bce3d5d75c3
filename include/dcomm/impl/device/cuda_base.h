/* cuda_base.h - what all calls of CUDA's runtime share: the current device, error messages, the
 * driver's functions. */
#ifndef DCOMMI_CUDA_BASE_H
#define DCOMMI_CUDA_BASE_H

#include "device.h"

#ifdef DCOMM_WITH_CUDA

#include <cuda_runtime_api.h>

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

/* Make a device the calling thread's current one (-1: keep it): streams and events belong to that.
 * While any thread captures a stream, CUDA refuses other threads' calls that could harm a capture,
 * and ends the capture. Calls from here to leave have nothing to do with it, so relax that
 * mode. */
static dcommi_device_before dcommi_cuda_enter(int number)
{
    dcommi_device_before before = {.device = -1, .mode = cudaStreamCaptureModeRelaxed};
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    int current = -1;
    if (cudaThreadExchangeStreamCaptureMode(&mode) == cudaSuccess) {
        before.mode = (int)mode;
    }
    if (number >= 0 && (cudaGetDevice(&current) != cudaSuccess || current != number)) {
        (void)cudaSetDevice(number);
        before.device = current;
    }
    return before;
}

static void dcommi_cuda_leave(dcommi_device_before before)
{
    enum cudaStreamCaptureMode mode = (enum cudaStreamCaptureMode)before.mode;
    if (before.device >= 0) {
        (void)cudaSetDevice(before.device);
    }
    (void)cudaThreadExchangeStreamCaptureMode(&mode);
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

/* Find a function of the driver, without linking it. */
static dcomm_status dcommi_cuda_entry(const char *symbol, void **entry)
{
    enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    *entry = NULL;
#if CUDART_VERSION >= 12050
    cudaError_t error =
        cudaGetDriverEntryPointByVersion(symbol, entry, 12000, cudaEnableDefault, &found);
#else
    cudaError_t error = cudaGetDriverEntryPoint(symbol, entry, cudaEnableDefault, &found);
#endif
    DCOMMI_CUDA_TRY(-1, error, "cudaGetDriverEntryPoint");
    return *entry != NULL && found == cudaDriverEntryPointSuccess
               ? DCOMM_OK
               : dcommi_fail(DCOMM_ERR_UNSUPPORTED, "the driver has no %s", symbol);
}

#endif
#endif
