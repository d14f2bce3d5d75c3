/* memory.c - allocations. A device's memory is a file in memory that is mapped twice: where the
 * program sees it but cannot access it, and where this library reads and writes it. */
#define _GNU_SOURCE
#include "memory.h"
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE ((size_t)4096)

static cuhost_arena arenas[CUHOST_DEVICES_MAX]; /* all guarded by the lock */
static cuhost_block *blocks;                    /* sorted by address */
static size_t n_blocks, room_blocks;

/* ---- the table of blocks ---- */

/* Return the first block that ends behind p. */
static size_t block_at(const void *p)
{
    size_t low = 0, high = n_blocks;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if ((uintptr_t)blocks[middle].base + blocks[middle].bytes <= (uintptr_t)p) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

cuhost_block *cuhost_block_around(const void *p)
{
    size_t i = block_at(p);
    return i < n_blocks && (uintptr_t)blocks[i].base <= (uintptr_t)p ? &blocks[i] : NULL;
}

bool cuhost_block_add(const cuhost_block *block)
{
    if (n_blocks == room_blocks) {
        size_t room = room_blocks > 0 ? 2 * room_blocks : 64;
        cuhost_block *more = realloc(blocks, room * sizeof *more);
        if (more == NULL) {
            return false;
        }
        blocks = more;
        room_blocks = room;
    }
    size_t i = block_at(block->base);
    memmove(&blocks[i + 1], &blocks[i], (n_blocks - i) * sizeof *blocks);
    blocks[i] = *block;
    n_blocks++;
    return true;
}

void cuhost_block_remove(cuhost_block *block)
{
    size_t i = (size_t)(block - blocks);
    memmove(block, block + 1, (--n_blocks - i) * sizeof *blocks);
}

static size_t used_of(int device)
{
    size_t used = 0;
    for (size_t i = 0; i < n_blocks; i++) {
        used +=
            blocks[i].owner == CUHOST_OF_ARENA && blocks[i].device == device ? blocks[i].bytes : 0;
    }
    return used;
}

/* ---- device memory ---- */

bool cuhost_map_twice(int fd, size_t offset, size_t bytes, char **seen, char **alias)
{
    const int flags = MAP_SHARED | MAP_NORESERVE;
    *seen = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    *alias = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, fd, (off_t)offset);
    if (*seen != MAP_FAILED && *alias != MAP_FAILED) {
        return true;
    }
    if (*seen != MAP_FAILED) {
        munmap(*seen, bytes);
    }
    if (*alias != MAP_FAILED) {
        munmap(*alias, bytes);
    }
    return false;
}

static bool open_arena(cuhost_arena *a)
{
    if (a->base != NULL) {
        return true;
    }
    a->fd = memfd_create("cuda_host", MFD_CLOEXEC);
    if (a->fd < 0) {
        return false;
    }
    if (ftruncate(a->fd, (off_t)CUHOST_DEVICE_BYTES) != 0 ||
        !cuhost_map_twice(a->fd, 0, CUHOST_DEVICE_BYTES, &a->base, &a->alias)) {
        close(a->fd);
        a->base = NULL;
        return false;
    }
    return true;
}

const cuhost_arena *cuhost_arena_of(int device)
{
    return &arenas[device];
}

/* Return the lowest gap between the arena's blocks that holds `bytes`, or NULL. */
static char *find_room(const cuhost_arena *a, size_t bytes)
{
    char *at = a->base;
    for (size_t i = block_at(a->base); i <= n_blocks; i++) {
        char *end = a->base + CUHOST_DEVICE_BYTES;
        if (i < n_blocks && (char *)blocks[i].base < end) {
            end = blocks[i].base;
        }
        if ((size_t)(end - at) >= bytes) {
            return at;
        }
        if (end == a->base + CUHOST_DEVICE_BYTES) {
            break;
        }
        at = (char *)blocks[i].base + blocks[i].bytes;
    }
    return NULL;
}

static cudaError_t allocate(void **ptr, size_t bytes)
{
    cudaError_t status = cuhost_enter();
    if (status != cudaSuccess || ptr == NULL) {
        return cuhost_result(status != cudaSuccess ? status : cudaErrorInvalidValue);
    }
    *ptr = NULL;
    if (bytes == 0) {
        return cudaSuccess;
    }
    if (bytes > CUHOST_DEVICE_BYTES || cuhost_fault_malloc()) {
        return cuhost_result(cudaErrorMemoryAllocation);
    }
    bytes = (bytes + PAGE - 1) / PAGE * PAGE;
    int device = cuhost_current();
    cuhost_arena *a = &arenas[device];
    pthread_mutex_lock(&cuhost_lock);
    char *base = open_arena(a) ? find_room(a, bytes) : NULL;
    if (base != NULL) {
        const cuhost_block block = {
            base,   bytes, a->alias + (base - a->base), cudaMemoryTypeDevice, CUHOST_OF_ARENA,
            device, -1};
        *ptr = cuhost_block_add(&block) ? base : NULL;
    }
    pthread_mutex_unlock(&cuhost_lock);
    return cuhost_result(*ptr != NULL ? cudaSuccess : cudaErrorMemoryAllocation);
}

cudaError_t cudaMalloc(void **ptr, size_t bytes)
{
    cudaError_t status = cuhost_enter_unsafe();
    return status != cudaSuccess ? cuhost_result(status) : allocate(ptr, bytes);
}

/* Return the device of memory that cudaFree can free, or -1. */
static int device_of(const void *ptr)
{
    pthread_mutex_lock(&cuhost_lock);
    const cuhost_block *b = cuhost_block_around(ptr);
    bool good = b != NULL && b->base == ptr &&
                (b->owner == CUHOST_OF_ARENA || b->type == cudaMemoryTypeManaged);
    int device = good ? b->device : -1;
    pthread_mutex_unlock(&cuhost_lock);
    return device;
}

/* Call under the lock. */
static void release_block(cuhost_block *b)
{
    if (b->owner == CUHOST_OF_ARENA) {
        const cuhost_arena *a = &arenas[b->device];
        (void)fallocate(a->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                        (off_t)((char *)b->base - a->base), (off_t)b->bytes);
    } else if (b->owner == CUHOST_OF_HEAP) {
        free(b->base);
    }
    cuhost_block_remove(b);
}

static void release_at(void *ptr)
{
    pthread_mutex_lock(&cuhost_lock);
    cuhost_block *b = cuhost_block_around(ptr);
    if (b != NULL) {
        release_block(b);
    }
    pthread_mutex_unlock(&cuhost_lock);
}

/* Return true if another process has the memory open. CUDA does not define the effect of freeing
 * it then. */
static bool open_elsewhere(void *ptr)
{
    struct flock lock = {.l_type = F_WRLCK};
    pthread_mutex_lock(&cuhost_lock);
    const cuhost_block *b = cuhost_block_around(ptr);
    bool is_open = false;
    if (b != NULL && b->owner == CUHOST_OF_ARENA) {
        lock.l_start = (off_t)((char *)b->base - arenas[b->device].base);
        lock.l_len = (off_t)b->bytes;
        is_open = fcntl(arenas[b->device].fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
    }
    pthread_mutex_unlock(&cuhost_lock);
    return is_open;
}

/* Wait for all work on the device first, as CUDA does. Memory that another process has open is not
 * freed; the device fails. */
cudaError_t cudaFree(void *ptr)
{
    cudaError_t status = cuhost_enter_unsafe();
    if (status == cudaErrorNotPermitted || status == cudaErrorStreamCaptureUnsupported ||
        ptr == NULL) {
        return cuhost_result(status);
    }
    int device = device_of(ptr);
    if (device < 0) {
        return cuhost_result(cudaErrorInvalidValue);
    }
    status = cuhost_settle(device);
    if (open_elsewhere(ptr)) {
        return cuhost_result(cuhost_stays(device, cudaErrorIllegalAddress));
    }
    release_at(ptr);
    return cuhost_result(status);
}

/* Free all but memory of other processes, which cudaIpcCloseMemHandle unmaps. */
void cuhost_free_all(int device)
{
    pthread_mutex_lock(&cuhost_lock);
    for (size_t i = n_blocks; i-- > 0;) {
        if (blocks[i].device == device && blocks[i].owner != CUHOST_OF_PEER) {
            release_block(&blocks[i]);
        }
    }
    pthread_mutex_unlock(&cuhost_lock);
}

cudaError_t cudaMallocPitch(void **ptr, size_t *pitch, size_t width, size_t height)
{
    const size_t row = 512;
    if (pitch == NULL || width > SIZE_MAX - row) {
        return cuhost_result(cudaErrorInvalidValue);
    }
    *pitch = (width + row - 1) / row * row;
    return height > 0 && *pitch > SIZE_MAX / height ? cuhost_result(cudaErrorMemoryAllocation)
                                                    : cudaMalloc(ptr, *pitch * height);
}

/* Allocate at once, instead of when the stream gets there: work on the stream cannot tell. */
cudaError_t cudaMallocAsync(void **ptr, size_t bytes, cudaStream_t stream)
{
    return cuhost_capturing(stream) ? cuhost_result(cudaErrorStreamCaptureUnsupported)
                                    : allocate(ptr, bytes);
}

static cudaError_t run_release(void *arg)
{
    release_at(*(void **)arg);
    return cudaSuccess;
}

cudaError_t cudaFreeAsync(void *ptr, cudaStream_t stream)
{
    if (ptr == NULL || device_of(ptr) < 0) {
        return cuhost_result(cudaErrorInvalidValue);
    }
    return cuhost_result(
        cuhost_capturing(stream)
            ? cudaErrorStreamCaptureUnsupported
            : cuhost_enqueue(stream, CUHOST_ORDER, run_release, NULL, &ptr, sizeof ptr));
}

struct cuhost_pool {
    int device;
    int flags[3]; /* of reuse */
    uint64_t kept;
};

cudaError_t cudaMemPoolCreate(cudaMemPool_t *pool, const struct cudaMemPoolProps *props)
{
    if (pool == NULL || props == NULL || props->allocType != cudaMemAllocationTypePinned ||
        props->location.type != cudaMemLocationTypeDevice) {
        return cuhost_result(cudaErrorInvalidValue);
    }
    *pool = malloc(sizeof **pool);
    if (*pool == NULL) {
        return cuhost_result(cudaErrorMemoryAllocation);
    }
    **pool = (struct cuhost_pool){.device = props->location.id, .flags = {1, 1, 1}};
    return cudaSuccess;
}

static void *pool_value(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, size_t *bytes)
{
    bool kept = attribute == cudaMemPoolAttrReleaseThreshold;
    if (pool == NULL || attribute < cudaMemPoolReuseFollowEventDependencies ||
        attribute > cudaMemPoolAttrReleaseThreshold) {
        return NULL;
    }
    *bytes = kept ? sizeof pool->kept : sizeof pool->flags[0];
    return kept ? (void *)&pool->kept : &pool->flags[attribute - 1];
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value)
{
    size_t bytes = 0;
    void *at = pool_value(pool, attribute, &bytes);
    if (at == NULL || value == NULL) {
        return cuhost_result(cudaErrorInvalidValue);
    }
    memcpy(at, value, bytes);
    return cudaSuccess;
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value)
{
    size_t bytes = 0;
    const void *at = pool_value(pool, attribute, &bytes);
    if (at == NULL || value == NULL) {
        return cuhost_result(cudaErrorInvalidValue);
    }
    memcpy(value, at, bytes);
    return cudaSuccess;
}

cudaError_t cudaMallocFromPoolAsync(void **ptr, size_t bytes, cudaMemPool_t pool,
                                    cudaStream_t stream)
{
    return pool == NULL || pool->device != cuhost_current() ? cuhost_result(cudaErrorInvalidValue)
                                                            : cudaMallocAsync(ptr, bytes, stream);
}

cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool)
{
    free(pool);
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *available, size_t *total)
{
    if (available == NULL || total == NULL) {
        return cuhost_result(cudaErrorInvalidValue);
    }
    (void)cuhost_enter();
    pthread_mutex_lock(&cuhost_lock);
    *total = CUHOST_DEVICE_BYTES;
    *available = CUHOST_DEVICE_BYTES - used_of(cuhost_current());
    pthread_mutex_unlock(&cuhost_lock);
    return cudaSuccess;
}

/* ---- host memory ---- */

static cudaError_t host_memory(void **ptr, size_t bytes, enum cudaMemoryType type)
{
    cudaError_t status = cuhost_enter_unsafe();
    if (status != cudaSuccess || ptr == NULL) {
        return cuhost_result(status != cudaSuccess ? status : cudaErrorInvalidValue);
    }
    *ptr = NULL;
    if (bytes == 0) {
        return cudaSuccess;
    }
    if (cuhost_rules().alloc_waits) {
        (void)cuhost_settle(cuhost_current());
    }
    size_t whole = (bytes + PAGE - 1) / PAGE * PAGE;
    void *base = whole >= bytes && !cuhost_fault_malloc() ? aligned_alloc(PAGE, whole) : NULL;
    if (base == NULL) {
        return cuhost_result(cudaErrorMemoryAllocation);
    }
    const cuhost_block block = {base, whole, base, type, CUHOST_OF_HEAP, cuhost_current(), -1};
    pthread_mutex_lock(&cuhost_lock);
    bool added = cuhost_block_add(&block);
    pthread_mutex_unlock(&cuhost_lock);
    if (!added) {
        free(base);
        return cuhost_result(cudaErrorMemoryAllocation);
    }
    *ptr = base;
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **ptr, size_t bytes, unsigned flags)
{
    return (flags & ~7u) != 0 ? cuhost_result(cudaErrorInvalidValue)
                              : host_memory(ptr, bytes, cudaMemoryTypeHost);
}

cudaError_t cudaMallocHost(void **ptr, size_t bytes)
{
    return host_memory(ptr, bytes, cudaMemoryTypeHost);
}

cudaError_t cudaMallocManaged(void **ptr, size_t bytes, unsigned flags)
{
    return flags != cudaMemAttachGlobal ? cuhost_result(cudaErrorInvalidValue)
                                        : host_memory(ptr, bytes, cudaMemoryTypeManaged);
}

/* Return the block of host memory that begins at ptr, or NULL. Call under the lock. */
static cuhost_block *host_block(void *ptr, cuhost_owner owner)
{
    cuhost_block *b = cuhost_block_around(ptr);
    return b != NULL && b->base == ptr && b->owner == owner && b->type == cudaMemoryTypeHost ? b
                                                                                             : NULL;
}

/* Forget a block of host memory that begins at ptr. */
static cudaError_t forget(void *ptr, cuhost_owner owner, cudaError_t otherwise)
{
    cudaError_t status = cuhost_enter_unsafe();
    if (status == cudaErrorNotPermitted || status == cudaErrorStreamCaptureUnsupported) {
        return cuhost_result(status);
    }
    const bool waits = cuhost_rules().free_waits;
    pthread_mutex_lock(&cuhost_lock);
    cuhost_block *b = host_block(ptr, owner);
    if (b != NULL && waits) {
        const int device = b->device;
        pthread_mutex_unlock(&cuhost_lock);
        (void)cuhost_settle(device);
        pthread_mutex_lock(&cuhost_lock);
        b = host_block(ptr, owner);
    }
    if (b != NULL) {
        cuhost_block_remove(b);
    }
    pthread_mutex_unlock(&cuhost_lock);
    return cuhost_result(b != NULL ? cudaSuccess : otherwise);
}

cudaError_t cudaFreeHost(void *ptr)
{
    if (ptr == NULL) {
        return cudaSuccess;
    }
    cudaError_t status = forget(ptr, CUHOST_OF_HEAP, cudaErrorInvalidValue);
    if (status == cudaSuccess) {
        free(ptr);
    }
    return status;
}

cudaError_t cudaHostRegister(void *ptr, size_t bytes, unsigned flags)
{
    cudaError_t status = cuhost_enter_unsafe();
    if (status != cudaSuccess || ptr == NULL || bytes == 0 || (flags & ~15u) != 0) {
        return cuhost_result(status != cudaSuccess ? status : cudaErrorInvalidValue);
    }
    const cuhost_block block = {
        ptr, bytes, ptr, cudaMemoryTypeHost, CUHOST_OF_PROGRAM, cuhost_current(), -1};
    if (cuhost_rules().alloc_waits) {
        (void)cuhost_settle(cuhost_current());
    }
    pthread_mutex_lock(&cuhost_lock);
    size_t i = block_at(ptr);
    if (i < n_blocks && (uintptr_t)blocks[i].base < (uintptr_t)ptr + bytes) {
        status = cudaErrorHostMemoryAlreadyRegistered;
    } else if (!cuhost_block_add(&block)) {
        status = cudaErrorMemoryAllocation;
    }
    pthread_mutex_unlock(&cuhost_lock);
    return cuhost_result(status);
}

cudaError_t cudaHostUnregister(void *ptr)
{
    return forget(ptr, CUHOST_OF_PROGRAM, cudaErrorHostMemoryNotRegistered);
}

cudaError_t cudaHostGetDevicePointer(void **device, void *host, unsigned flags)
{
    enum cudaMemoryType type = cudaMemoryTypeUnregistered;
    if (device == NULL || flags != 0 || cuhost_access(host, 1, &type) == NULL ||
        type != cudaMemoryTypeHost) {
        return cuhost_result(cudaErrorInvalidValue);
    }
    *device = host;
    return cudaSuccess;
}

/* ---- properties of pointers ---- */

void *cuhost_access(const void *ptr, size_t bytes, enum cudaMemoryType *type)
{
    pthread_mutex_lock(&cuhost_lock);
    const cuhost_block *b = cuhost_block_around(ptr);
    char *at = (char *)(uintptr_t)ptr;
    *type = b != NULL ? b->type : cudaMemoryTypeUnregistered;
    if (b != NULL) {
        size_t offset = (size_t)(at - (char *)b->base);
        at = bytes <= b->bytes - offset ? (char *)b->alias + offset : NULL;
        if (at == NULL && b->owner == CUHOST_OF_PROGRAM) { /* not all of it is registered */
            at = (char *)(uintptr_t)ptr;
            *type = cudaMemoryTypeUnregistered;
        }
    }
    pthread_mutex_unlock(&cuhost_lock);
    return at;
}

void *cuhost_reach(const void *ptr, size_t bytes)
{
    enum cudaMemoryType type = cudaMemoryTypeUnregistered;
    void *at = cuhost_access(ptr, bytes, &type);
    return type != cudaMemoryTypeUnregistered ? at : NULL;
}

void *cuda_host_peek(const void *device_ptr, size_t bytes)
{
    enum cudaMemoryType type = cudaMemoryTypeUnregistered;
    void *at = cuhost_access(device_ptr, bytes, &type);
    return type == cudaMemoryTypeDevice ? at : NULL;
}

bool cuhost_range(const void *ptr, void **base, size_t *bytes)
{
    pthread_mutex_lock(&cuhost_lock);
    const cuhost_block *b = cuhost_block_around(ptr);
    bool good = b != NULL && b->type == cudaMemoryTypeDevice;
    if (good) {
        *base = b->base;
        *bytes = b->bytes;
    }
    pthread_mutex_unlock(&cuhost_lock);
    return good;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *ptr)
{
    cudaError_t status = cuhost_enter_as_is();
    if (status != cudaSuccess || attributes == NULL) {
        return cuhost_result(status != cudaSuccess ? status : cudaErrorInvalidValue);
    }
    void *p = (void *)(uintptr_t)ptr;
    pthread_mutex_lock(&cuhost_lock);
    const cuhost_block *b = cuhost_block_around(ptr);
    attributes->type = b != NULL ? b->type : cudaMemoryTypeUnregistered;
    attributes->device = b != NULL ? b->device : cudaInvalidDeviceId;
    attributes->devicePointer = b != NULL ? p : NULL;
    attributes->hostPointer = attributes->type != cudaMemoryTypeDevice ? p : NULL;
    pthread_mutex_unlock(&cuhost_lock);
    return cudaSuccess;
}
