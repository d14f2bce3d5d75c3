/* copy.c - copies and fills, as work on streams. */
#define _GNU_SOURCE
#include "host.h"
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct copy {
    void *dst;
    const void *src;
    size_t bytes;
    enum cudaMemoryType to, from;
    void *staged; /* a copy of pageable memory, which the caller may reuse; NULL: none */
    bool late;    /* the caller has gone on, and finds out if it relies on the bytes */
} copy;

static cudaError_t run_copy(void *arg)
{
    const copy *c = arg;
    if (c->late) {
        nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
    }
    memmove(c->dst, c->src, c->bytes);
    cuhost_count_copy(c->to, c->from, c->bytes);
    return cudaSuccess;
}

static void release_copy(void *arg)
{
    free(((copy *)arg)->staged);
}

static bool fits(enum cudaMemoryType type, bool device)
{
    return type == cudaMemoryTypeManaged || (type == cudaMemoryTypeDevice) == device;
}

/* Return true if the pointers match the kind of copy that the caller names. Pinned memory counts
 * as either, because devices can access it. */
static bool right_kind(const copy *c, enum cudaMemcpyKind kind)
{
    switch (kind) {
    case cudaMemcpyHostToHost:
        return fits(c->to, false) && fits(c->from, false);
    case cudaMemcpyHostToDevice:
        return (fits(c->to, true) || c->to == cudaMemoryTypeHost) && fits(c->from, false);
    case cudaMemcpyDeviceToHost:
        return fits(c->to, false) && (fits(c->from, true) || c->from == cudaMemoryTypeHost);
    case cudaMemcpyDeviceToDevice:
        return c->to != cudaMemoryTypeUnregistered && c->from != cudaMemoryTypeUnregistered;
    case cudaMemcpyDefault:
        return true;
    }
    return false;
}

/* Read pageable memory before returning. If pageable memory is written, wait. *late_p: of
 * cudaMemcpy; becomes true if it does not wait for the end. */
static cudaError_t copy_on(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind,
                           cudaStream_t stream, bool *late_p)
{
    copy c = {.bytes = bytes};
    c.dst = cuhost_access(dst, bytes, &c.to);
    c.src = cuhost_access(src, bytes, &c.from);
    if (bytes == 0) {
        return cuhost_result(cuhost_enter());
    }
    if (dst == NULL || src == NULL || c.dst == NULL || c.src == NULL || !right_kind(&c, kind)) {
        return cuhost_result(cudaErrorInvalidValue);
    }
    bool captured = cuhost_capturing(stream);
    if (c.from == cudaMemoryTypeUnregistered && !captured) {
        c.staged = malloc(bytes);
        if (c.staged == NULL) {
            return cuhost_result(cudaErrorMemoryAllocation);
        }
        memcpy(c.staged, src, bytes);
        c.src = c.staged;
    }
    if (late_p != NULL) {
        *late_p = c.late = c.from != cudaMemoryTypeHost && c.to == cudaMemoryTypeDevice;
    }
    cudaError_t status = cuhost_enqueue(stream, CUHOST_COPY, run_copy,
                                        c.staged != NULL ? release_copy : NULL, &c, sizeof c);
    if (status != cudaSuccess) {
        free(c.staged);
    } else if (c.to == cudaMemoryTypeUnregistered && !captured) {
        status = cuhost_drain(stream);
    }
    return cuhost_result(status);
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    return copy_on(dst, src, bytes, kind, stream, NULL);
}

/* Like CUDA, do not wait for the end of a copy within devices, nor for that of pageable memory to a
 * device: once that was read, only work that is put on a stream later finds it there. */
cudaError_t cudaMemcpy(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind)
{
    bool late = false;
    cudaError_t status = cuhost_enter_unsafe();
    status = status != cudaSuccess ? status : copy_on(dst, src, bytes, kind, NULL, &late);
    return cuhost_result(status != cudaSuccess || late ? status : cuhost_drain(NULL));
}

typedef struct fill {
    void *dst;
    int value;
    size_t bytes;
} fill;

static cudaError_t run_fill(void *arg)
{
    const fill *f = arg;
    memset(f->dst, f->value, f->bytes);
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *dst, int value, size_t bytes, cudaStream_t stream)
{
    const fill f = {cuhost_reach(dst, bytes), value, bytes};
    if (bytes > 0 && f.dst == NULL) {
        return cuhost_result(cudaErrorInvalidValue);
    }
    return cuhost_result(cuhost_enqueue(stream, CUHOST_KERNEL, run_fill, NULL, &f, sizeof f));
}

/* Like CUDA, do not wait for the end. */
cudaError_t cudaMemset(void *dst, int value, size_t bytes)
{
    cudaError_t status = cuhost_enter_unsafe();
    return status != cudaSuccess ? cuhost_result(status) : cudaMemsetAsync(dst, value, bytes, NULL);
}

/* ---- rows ---- */

/* Check that all rows exist, before the first is copied. */
static cudaError_t rows_fit(const void *at, size_t pitch, size_t width, size_t height)
{
    enum cudaMemoryType type = cudaMemoryTypeUnregistered;
    if (height == 0) {
        return cudaSuccess;
    }
    if (width > pitch) {
        return cudaErrorInvalidPitchValue;
    }
    return cuhost_access(at, (height - 1) * pitch + width, &type) != NULL ? cudaSuccess
                                                                          : cudaErrorInvalidValue;
}

cudaError_t cudaMemcpy2DAsync(void *dst, size_t dst_pitch, const void *src, size_t src_pitch,
                              size_t width, size_t height, enum cudaMemcpyKind kind,
                              cudaStream_t stream)
{
    cudaError_t status = cuhost_enter();
    if (status == cudaSuccess) {
        status = rows_fit(dst, dst_pitch, width, height);
    }
    if (status == cudaSuccess) {
        status = rows_fit(src, src_pitch, width, height);
    }
    for (size_t row = 0; row < height && status == cudaSuccess; row++) {
        status = cudaMemcpyAsync((char *)dst + row * dst_pitch, (const char *)src + row * src_pitch,
                                 width, kind, stream);
    }
    return cuhost_result(status);
}

cudaError_t cudaMemcpy2D(void *dst, size_t dst_pitch, const void *src, size_t src_pitch,
                         size_t width, size_t height, enum cudaMemcpyKind kind)
{
    cudaError_t status = cuhost_enter_unsafe();
    if (status == cudaSuccess) {
        status = cudaMemcpy2DAsync(dst, dst_pitch, src, src_pitch, width, height, kind, NULL);
    }
    return cuhost_result(status != cudaSuccess ? status : cuhost_drain(NULL));
}

cudaError_t cudaMemset2DAsync(void *dst, size_t pitch, int value, size_t width, size_t height,
                              cudaStream_t stream)
{
    cudaError_t status = cuhost_enter();
    if (status == cudaSuccess) {
        status = rows_fit(dst, pitch, width, height);
    }
    for (size_t row = 0; row < height && status == cudaSuccess; row++) {
        status = cudaMemsetAsync((char *)dst + row * pitch, value, width, stream);
    }
    return cuhost_result(status);
}

cudaError_t cudaMemset2D(void *dst, size_t pitch, int value, size_t width, size_t height)
{
    cudaError_t status = cuhost_enter_unsafe();
    if (status == cudaSuccess) {
        status = cudaMemset2DAsync(dst, pitch, value, width, height, NULL);
    }
    return cuhost_result(status != cudaSuccess ? status : cuhost_drain(NULL));
}

/* ---- from device to device ---- */

static bool of_device(const void *ptr, int device)
{
    struct cudaPointerAttributes is;
    return cudaPointerGetAttributes(&is, ptr) == cudaSuccess && is.type == cudaMemoryTypeDevice &&
           is.device == device;
}

cudaError_t cudaMemcpyPeerAsync(void *dst, int dst_device, const void *src, int src_device,
                                size_t bytes, cudaStream_t stream)
{
    int devices = 0;
    cudaError_t status = cuhost_enter();
    (void)cudaGetDeviceCount(&devices);
    if (status == cudaSuccess &&
        (dst_device < 0 || dst_device >= devices || src_device < 0 || src_device >= devices)) {
        status = cudaErrorInvalidDevice;
    }
    if (status == cudaSuccess && bytes > 0 &&
        (!of_device(dst, dst_device) || !of_device(src, src_device))) {
        status = cudaErrorInvalidValue;
    }
    return status != cudaSuccess
               ? cuhost_result(status)
               : cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToDevice, stream);
}

/* Do not wait for the end, as in CUDA; work that is put on a stream later does. */
cudaError_t cudaMemcpyPeer(void *dst, int dst_device, const void *src, int src_device, size_t bytes)
{
    cudaError_t status = cuhost_enter_unsafe();
    return status != cudaSuccess
               ? cuhost_result(status)
               : cudaMemcpyPeerAsync(dst, dst_device, src, src_device, bytes, NULL);
}
