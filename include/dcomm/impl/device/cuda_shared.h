/* cuda_shared.h - device memory that another process opens, by CUDA IPC. */
#ifndef DCOMMI_CUDA_SHARED_H
#define DCOMMI_CUDA_SHARED_H

#include "cuda_base.h"

#ifdef DCOMM_WITH_CUDA

/* Return where a device sits. This is the same for all processes of a host, however each numbers
 * its devices; 0: unknown. */
static uint64_t dcommi_cuda_place(int device)
{
    int domain = 0, bus = 0, slot = 0;
    if (cudaDeviceGetAttribute(&domain, cudaDevAttrPciDomainId, device) != cudaSuccess ||
        cudaDeviceGetAttribute(&bus, cudaDevAttrPciBusId, device) != cudaSuccess ||
        cudaDeviceGetAttribute(&slot, cudaDevAttrPciDeviceId, device) != cudaSuccess) {
        (void)cudaGetLastError();
        return 0;
    }
    return (uint64_t)1 << 63 | (uint64_t)(uint32_t)domain << 16 | (uint64_t)(uint8_t)bus << 8 |
           (uint8_t)slot;
}

/* Allocate by cudaMalloc: CUDA IPC does not know the memory of pools. */
static dcomm_status dcommi_cuda_shared_alloc(int device, size_t bytes, void **memory_p,
                                             dcommi_device_key *key)
{
    cudaIpcMemHandle_t handle;
    _Static_assert(sizeof handle == sizeof key->handle, "a handle has 64 bytes");
    memset(key, 0, sizeof *key);
    dcommi_device_before before = dcommi_cuda_enter(device);
    cudaError_t error = cudaMalloc(memory_p, bytes);
    if (error == cudaSuccess) {
        if (cudaIpcGetMemHandle(&handle, *memory_p) == cudaSuccess) {
            key->place = dcommi_cuda_place(device);
            memcpy(key->handle, &handle, sizeof handle);
        } else {
            (void)cudaGetLastError();
        }
    }
    dcommi_cuda_leave(before);
    DCOMMI_CUDA_TRY(device, error, "cudaMalloc");
    return DCOMM_OK;
}

static void dcommi_cuda_shared_free(int device, void *memory)
{
    dcommi_device_before before = dcommi_cuda_enter(device);
    if (cudaFree(memory) != cudaSuccess) {
        (void)cudaGetLastError();
    }
    dcommi_cuda_leave(before);
}

/* Return true if a device can read memory of the device that sits at `place`. */
static bool dcommi_cuda_reaches(int device, uint64_t place)
{
    int n = 0, can = 0;
    if (place == 0 || dcommi_cuda_place(device) == place) {
        return place != 0;
    }
    if (cudaGetDeviceCount(&n) != cudaSuccess) {
        n = 0;
    }
    for (int i = 0; i < n && can == 0; i++) {
        if (i != device && dcommi_cuda_place(i) == place &&
            cudaDeviceCanAccessPeer(&can, device, i) != cudaSuccess) {
            can = 0;
        }
    }
    (void)cudaGetLastError();
    return can != 0;
}

/* Check that an allocation contains these bytes from `memory` on. A peer's word may be wrong, and
 * a kernel that reads beyond the end fails the device for good. */
static dcomm_status dcommi_cuda_holds(void *memory, size_t bytes)
{
    dcommi_cuda_address base = 0, at = (dcommi_cuda_address)(uintptr_t)memory;
    size_t all = 0;
    DCOMMI_TRY(dcommi_cuda_need_driver("memory of peers"));
    int error = dcommi_cuda_driver.range(&base, &all, at);
    if (error != 0) {
        return dcommi_fail(DCOMM_ERR_SYSTEM, "cuMemGetAddressRange returns %d", error);
    }
    return base <= at && at - base <= all && bytes <= all - (size_t)(at - base)
               ? DCOMM_OK
               : dcommi_fail(DCOMM_ERR_CORRUPT,
                             "it is shorter than the %zu bytes that were offered", bytes);
}

static dcomm_status dcommi_cuda_peer_open(int device, const dcommi_device_key *key, size_t bytes,
                                          void **memory_p)
{
    cudaIpcMemHandle_t handle;
    dcomm_status status = DCOMM_OK;
    memcpy(&handle, key->handle, sizeof handle);
    dcommi_device_before before = dcommi_cuda_enter(device);
    if (!dcommi_cuda_reaches(device, key->place)) {
        status = dcommi_fail(DCOMM_ERR_UNSUPPORTED,
                             "it lies on a device that device %d cannot read", device);
    } else {
        cudaError_t error = cudaIpcOpenMemHandle(memory_p, handle, cudaIpcMemLazyEnablePeerAccess);
        if (error != cudaSuccess) {
            status = dcommi_cuda_failed(device, error, "cudaIpcOpenMemHandle");
        } else if ((status = dcommi_cuda_holds(*memory_p, bytes)) < 0) {
            (void)cudaIpcCloseMemHandle(*memory_p);
        }
    }
    dcommi_cuda_leave(before);
    return status;
}

static void dcommi_cuda_peer_close(int device, void *memory)
{
    dcommi_device_before before = dcommi_cuda_enter(device);
    if (cudaIpcCloseMemHandle(memory) != cudaSuccess) {
        (void)cudaGetLastError();
    }
    dcommi_cuda_leave(before);
}

#endif
#endif
