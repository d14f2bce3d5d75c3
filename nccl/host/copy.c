/* copy.c - copies and fills, as work on streams. */
#define _GNU_SOURCE
#include "host.h"
#include <stdlib.h>
#include <string.h>

typedef struct copy {
    void *dst;
    const void *src;
    size_t bytes;
    enum cudaMemoryType to, from;
    void *staged; /* a copy of pageable memory, which is the caller's again; NULL: none */
} copy;

static cudaError_t run_copy(void *arg)
{
    const copy *c = arg;
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

/* Whether the kind of copy that the caller names is what the pointers are. Pinned memory counts as
 * either, for devices reach it. */
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

/* Pageable memory is read before the call returns, and when it is written the call waits. */
cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
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
    cudaError_t status = cuhost_enqueue(stream, CUHOST_COPY, run_copy,
                                        c.staged != NULL ? release_copy : NULL, &c, sizeof c);
    if (status != cudaSuccess) {
        free(c.staged);
    } else if (c.to == cudaMemoryTypeUnregistered && !captured) {
        status = cuhost_drain(stream);
    }
    return cuhost_result(status);
}

cudaError_t cudaMemcpy(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind)
{
    cudaError_t status = cuhost_enter_unsafe();
    status = status != cudaSuccess ? status : cudaMemcpyAsync(dst, src, bytes, kind, NULL);
    return cuhost_result(status != cudaSuccess ? status : cuhost_drain(NULL));
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

cudaError_t cudaMemset(void *dst, int value, size_t bytes)
{
    cudaError_t status = cuhost_enter_unsafe();
    status = status != cudaSuccess ? status : cudaMemsetAsync(dst, value, bytes, NULL);
    return cuhost_result(status != cudaSuccess ? status : cuhost_drain(NULL));
}
