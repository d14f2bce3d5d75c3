/* device.c - devices, and errors. */
#define _GNU_SOURCE
#include "host.h"
#include "../../include/dcomm/impl/base/text.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

pthread_mutex_t cuhost_lock = PTHREAD_MUTEX_INITIALIZER;

static _Thread_local cudaError_t last;
static cudaError_t stays[CUHOST_DEVICES_MAX]; /* under the lock */

static int device_count(void)
{
    const char *text = getenv("DCOMM_HOST_DEVICES"), *visible = getenv("CUDA_VISIBLE_DEVICES");
    int seen = visible != NULL && *visible != 0;
    int64_t n = 8;
    if (text != NULL) {
        dcommi_text_integer(text, 0, CUHOST_DEVICES_MAX, &n);
    }
    while (visible != NULL && (visible = strchr(visible, ',')) != NULL) {
        visible++;
        seen++;
    }
    return getenv("CUDA_VISIBLE_DEVICES") != NULL && seen < n ? seen : (int)n;
}

/* Return the bus number of a device, which does not depend on its number in this process. */
static int bus_of(int device)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    for (int i = 0; visible != NULL && i < device; i++) {
        visible = strchr(visible, ',');
        visible += visible != NULL;
    }
    return 1 + (visible != NULL ? atoi(visible) : device);
}

cudaError_t cuhost_result(cudaError_t error)
{
    if (error != cudaSuccess) { /* also for cudaErrorNotReady, as in CUDA */
        last = error;
    }
    return error;
}

cudaError_t cuhost_stays(int device, cudaError_t error)
{
    pthread_mutex_lock(&cuhost_lock);
    if (stays[device] == cudaSuccess) {
        stays[device] = error;
    }
    error = stays[device];
    pthread_mutex_unlock(&cuhost_lock);
    return error;
}

void cuhost_forget_errors(void)
{
    pthread_mutex_lock(&cuhost_lock);
    memset(stays, 0, sizeof stays);
    pthread_mutex_unlock(&cuhost_lock);
    cuhost_write_all();
    last = cudaSuccess;
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t error = last;
    last = cudaSuccess;
    return error != cudaSuccess ? error : cuhost_stays(cuhost_current(), cudaSuccess);
}

cudaError_t cudaPeekAtLastError(void)
{
    return last != cudaSuccess ? last : cuhost_stays(cuhost_current(), cudaSuccess);
}

static const struct {
    cudaError_t error;
    const char *name, *text;
} errors[] = {
#define ERROR(error, text)  \
    {                       \
        error, #error, text \
    }
    ERROR(cudaSuccess, "no error"),
    ERROR(cudaErrorInvalidValue, "invalid argument"),
    ERROR(cudaErrorMemoryAllocation, "out of memory"),
    ERROR(cudaErrorInvalidPitchValue, "invalid pitch argument"),
    ERROR(cudaErrorNoDevice, "no CUDA-capable device is detected"),
    ERROR(cudaErrorInvalidDevice, "invalid device ordinal"),
    ERROR(cudaErrorDeviceUninitialized, "invalid device context"),
    ERROR(cudaErrorMapBufferObjectFailed, "mapping of buffer object failed"),
    ERROR(cudaErrorPeerAccessUnsupported, "peer access is not supported between these two devices"),
    ERROR(cudaErrorOperatingSystem, "OS call failed or operation not supported on this OS"),
    ERROR(cudaErrorInvalidResourceHandle, "invalid resource handle"),
    ERROR(cudaErrorSymbolNotFound, "named symbol not found"),
    ERROR(cudaErrorNotReady, "device not ready"),
    ERROR(cudaErrorIllegalAddress, "an illegal memory access was encountered"),
    ERROR(cudaErrorPeerAccessAlreadyEnabled, "peer access is already enabled"),
    ERROR(cudaErrorPeerAccessNotEnabled, "peer access has not been enabled"),
    ERROR(cudaErrorHostMemoryAlreadyRegistered,
          "part or all of the requested memory range is already mapped"),
    ERROR(cudaErrorHostMemoryNotRegistered,
          "pointer does not correspond to a registered memory region"),
    ERROR(cudaErrorLaunchFailure, "unspecified launch failure"),
    ERROR(cudaErrorNotPermitted, "operation not permitted"),
    ERROR(cudaErrorNotSupported, "operation not supported"),
    ERROR(cudaErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing"),
    ERROR(cudaErrorStreamCaptureInvalidated,
          "operation failed due to a previous error during capture"),
    ERROR(cudaErrorStreamCaptureUnmatched, "capture was not initiated in this stream"),
    ERROR(cudaErrorStreamCaptureImplicit,
          "operation would make the legacy stream depend on a capturing blocking stream"),
#undef ERROR
};

static size_t error_index(cudaError_t error)
{
    size_t i = 0;
    while (i < sizeof errors / sizeof errors[0] && errors[i].error != error) {
        i++;
    }
    return i;
}

const char *cudaGetErrorString(cudaError_t error)
{
    size_t i = error_index(error);
    return i < sizeof errors / sizeof errors[0] ? errors[i].text : "unknown error";
}

const char *cudaGetErrorName(cudaError_t error)
{
    size_t i = error_index(error);
    return i < sizeof errors / sizeof errors[0] ? errors[i].name : "cudaErrorUnknown";
}

cudaError_t cudaGetDeviceCount(int *count)
{
    if (count == NULL) {
        return cuhost_result(cudaErrorInvalidValue);
    }
    *count = device_count();
    return cuhost_result(*count > 0 ? cudaSuccess : cudaErrorNoDevice);
}

bool cuhost_bad_device(int device)
{
    return device < 0 || device >= device_count();
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *prop, int device)
{
    if (prop == NULL || cuhost_bad_device(device)) {
        return cuhost_result(prop == NULL ? cudaErrorInvalidValue : cudaErrorInvalidDevice);
    }
    *prop = (cudaDeviceProp){.totalGlobalMem = CUHOST_DEVICE_BYTES,
                             .major = 9,
                             .multiProcessorCount = 1,
                             .warpSize = 32,
                             .maxThreadsPerBlock = 1024,
                             .pciBusID = bus_of(device),
                             .unifiedAddressing = 1,
                             .canMapHostMemory = 1,
                             .asyncEngineCount = 2,
                             .concurrentKernels = 1};
    snprintf(prop->name, sizeof prop->name, "host stand-in %d", device);
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attr, int device)
{
    cudaDeviceProp prop;
    if (value == NULL || cuhost_bad_device(device)) {
        return cuhost_result(value == NULL ? cudaErrorInvalidValue : cudaErrorInvalidDevice);
    }
    (void)cudaGetDeviceProperties(&prop, device);
    switch (attr) {
    case cudaDevAttrMultiProcessorCount:
        *value = prop.multiProcessorCount;
        break;
    case cudaDevAttrPciBusId:
        *value = prop.pciBusID;
        break;
    case cudaDevAttrPciDeviceId:
        *value = prop.pciDeviceID;
        break;
    case cudaDevAttrPciDomainId:
        *value = prop.pciDomainID;
        break;
    case cudaDevAttrUnifiedAddressing:
        *value = prop.unifiedAddressing;
        break;
    case cudaDevAttrComputeCapabilityMajor:
        *value = prop.major;
        break;
    case cudaDevAttrComputeCapabilityMinor:
        *value = prop.minor;
        break;
    case cudaDevAttrManagedMemory:
        *value = 1;
        break;
    case cudaDevAttrGPUDirectRDMAFlushWritesOptions:
        *value = cudaFlushGPUDirectRDMAWritesOptionHost;
        break;
    case cudaDevAttrGPUDirectRDMAWritesOrdering:
        *value = cuhost_fault_unordered() ? cudaGPUDirectRDMAWritesOrderingNone
                                          : cudaGPUDirectRDMAWritesOrderingAllDevices;
        break;
    default:
        return cuhost_result(cudaErrorInvalidValue);
    }
    return cudaSuccess;
}

cudaError_t cudaDeviceFlushGPUDirectRDMAWrites(enum cudaFlushGPUDirectRDMAWritesTarget target,
                                               enum cudaFlushGPUDirectRDMAWritesScope scope)
{
    cudaError_t status = cuhost_enter();
    bool known = target == cudaFlushGPUDirectRDMAWritesTargetCurrentDevice &&
                 (scope == cudaFlushGPUDirectRDMAWritesToOwner ||
                  scope == cudaFlushGPUDirectRDMAWritesToAllDevices);
    if (status == cudaSuccess && known) {
        cuhost_count_flush();
    }
    return cuhost_result(status != cudaSuccess || known ? status : cudaErrorInvalidValue);
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int len, int device)
{
    char id[16];
    if (text == NULL || cuhost_bad_device(device)) {
        return cuhost_result(text == NULL ? cudaErrorInvalidValue : cudaErrorInvalidDevice);
    }
    int n = snprintf(id, sizeof id, "0000:%02x:00.0", (unsigned)bus_of(device) & 0xff);
    if (len <= n) {
        return cuhost_result(cudaErrorInvalidValue);
    }
    memcpy(text, id, (size_t)n + 1);
    return cudaSuccess;
}

/* Every device can access every other's memory from the start, so enabling it changes nothing.
 * CUDA's programs accept that, because they know cudaErrorPeerAccessAlreadyEnabled. */
cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
    if (can == NULL || cuhost_bad_device(device) || cuhost_bad_device(peer)) {
        return cuhost_result(can == NULL ? cudaErrorInvalidValue : cudaErrorInvalidDevice);
    }
    *can = device != peer && !cuhost_fault_apart();
    return cudaSuccess;
}

static bool bad_peer(int peer)
{
    return cuhost_bad_device(peer) || peer == cuhost_current();
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags)
{
    (void)cuhost_enter();
    return cuhost_result(flags != 0       ? cudaErrorInvalidValue
                         : bad_peer(peer) ? cudaErrorInvalidDevice
                                          : cudaSuccess);
}

cudaError_t cudaDeviceDisablePeerAccess(int peer)
{
    (void)cuhost_enter();
    return cuhost_result(bad_peer(peer) ? cudaErrorInvalidDevice : cudaSuccess);
}

cudaError_t cudaDeviceSynchronize(void)
{
    cudaError_t status = cuhost_enter_unsafe();
    const int device = cuhost_current();
    return cuhost_result(status != cudaSuccess       ? status
                         : cuhost_rules().sync_holds ? cuhost_settle(device)
                                                     : cuhost_drain_device(device));
}

cudaError_t cudaDeviceGetByPCIBusId(int *device, const char *text)
{
    char id[16];
    if (device == NULL || text == NULL) {
        return cuhost_result(cudaErrorInvalidValue);
    }
    for (int i = 0; !cuhost_bad_device(i); i++) {
        if (cudaDeviceGetPCIBusId(id, sizeof id, i) == cudaSuccess && strcmp(id, text) == 0) {
            *device = i;
            return cudaSuccess;
        }
    }
    return cuhost_result(cudaErrorInvalidDevice);
}

static unsigned device_flags[CUHOST_DEVICES_MAX]; /* under the lock */

cudaError_t cudaSetDeviceFlags(unsigned flags)
{
    if ((flags & ~0x1fu) != 0) {
        return cuhost_result(cudaErrorInvalidValue);
    }
    pthread_mutex_lock(&cuhost_lock);
    device_flags[cuhost_current()] = flags;
    pthread_mutex_unlock(&cuhost_lock);
    return cudaSuccess;
}

cudaError_t cudaGetDeviceFlags(unsigned *flags)
{
    if (flags == NULL) {
        return cuhost_result(cudaErrorInvalidValue);
    }
    pthread_mutex_lock(&cuhost_lock);
    *flags = device_flags[cuhost_current()];
    pthread_mutex_unlock(&cuhost_lock);
    return cudaSuccess;
}

cudaError_t cudaDeviceReset(void)
{
    cudaError_t status = cuhost_unharmed(cuhost_enter_as_is());
    if (status == cudaErrorNotPermitted || status == cudaErrorStreamCaptureUnsupported) {
        return cuhost_result(status);
    }
    const int device = cuhost_current();
    (void)cuhost_drain_device(device);
    cuhost_close_streams(device);
    cuhost_free_all(device);
    pthread_mutex_lock(&cuhost_lock);
    stays[device] = cudaSuccess;
    device_flags[device] = 0;
    pthread_mutex_unlock(&cuhost_lock);
    cuhost_context_end(device);
    last = cudaSuccess;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    if (version == NULL) {
        return cuhost_result(cudaErrorInvalidValue);
    }
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    return cudaDriverGetVersion(version);
}
