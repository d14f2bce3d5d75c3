/* ipc.c - device memory of another process. It opens the file of that process's arena through
 * /proc and maps the part that holds the allocation. A file lock on that part tells the owner that
 * it is open; the owner must not free it before it is closed. */
#define _GNU_SOURCE
#include "memory.h"
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct handle {
    uint64_t offset, bytes;
    int32_t pid, fd, device;
} handle;

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *out, void *ptr)
{
    cudaError_t status = cuhost_enter();
    if (status != cudaSuccess || out == NULL) {
        return cuhost_result(status != cudaSuccess ? status : cudaErrorInvalidValue);
    }
    handle h = {.pid = (int32_t)getpid()};
    pthread_mutex_lock(&cuhost_lock);
    const cuhost_block *b = cuhost_block_around(ptr);
    if (b == NULL || b->owner != CUHOST_OF_ARENA) {
        status = cudaErrorInvalidValue;
    } else {
        const cuhost_arena *a = cuhost_arena_of(b->device);
        h.offset = (uint64_t)((char *)b->base - a->base);
        h.bytes = b->bytes;
        h.fd = a->fd;
        h.device = b->device;
    }
    pthread_mutex_unlock(&cuhost_lock);
    memset(out, 0, sizeof *out);
    memcpy(out, &h, sizeof h);
    return cuhost_result(status);
}

cudaError_t cudaIpcOpenMemHandle(void **ptr, cudaIpcMemHandle_t in, unsigned flags)
{
    cudaError_t status = cuhost_enter_unsafe();
    if (status != cudaSuccess || ptr == NULL || flags != cudaIpcMemLazyEnablePeerAccess) {
        return cuhost_result(status != cudaSuccess ? status : cudaErrorInvalidValue);
    }
    handle h;
    char path[64], *seen = NULL, *alias = NULL;
    *ptr = NULL;
    memcpy(&h, &in, sizeof h);
    if (h.pid == (int32_t)getpid()) {
        return cuhost_result(cudaErrorDeviceUninitialized);
    }
    if (cuhost_fault_open()) {
        return cuhost_result(cudaErrorMapBufferObjectFailed);
    }
    snprintf(path, sizeof path, "/proc/%d/fd/%d", h.pid, h.fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    struct flock lock = {.l_type = F_RDLCK, .l_start = (off_t)h.offset, .l_len = (off_t)h.bytes};
    if (fd < 0 || fcntl(fd, F_OFD_SETLK, &lock) != 0 ||
        !cuhost_map_twice(fd, h.offset, h.bytes, &seen, &alias)) {
        if (fd >= 0) {
            close(fd);
        }
        return cuhost_result(cudaErrorInvalidValue);
    }
    const cuhost_block block = {seen,           h.bytes,  alias, cudaMemoryTypeDevice,
                                CUHOST_OF_PEER, h.device, fd};
    pthread_mutex_lock(&cuhost_lock);
    bool added = cuhost_block_add(&block);
    pthread_mutex_unlock(&cuhost_lock);
    if (!added) {
        munmap(seen, h.bytes);
        munmap(alias, h.bytes);
        close(fd);
        return cuhost_result(cudaErrorMemoryAllocation);
    }
    *ptr = seen;
    return cudaSuccess;
}

/* Wait for all work on the device first, as CUDA may do. */
cudaError_t cudaIpcCloseMemHandle(void *ptr)
{
    cudaError_t status = cuhost_enter_unsafe();
    if (status == cudaErrorNotPermitted) {
        return cuhost_result(status);
    }
    status = cuhost_settle(cuhost_current());
    pthread_mutex_lock(&cuhost_lock);
    cuhost_block *b = cuhost_block_around(ptr);
    if (b == NULL || b->owner != CUHOST_OF_PEER || b->base != ptr) {
        status = cudaErrorInvalidValue;
    } else {
        munmap(b->base, b->bytes);
        munmap(b->alias, b->bytes);
        close(b->fd);
        cuhost_block_remove(b);
    }
    pthread_mutex_unlock(&cuhost_lock);
    return cuhost_result(status);
}
