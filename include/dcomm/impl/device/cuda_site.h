/* cuda_site.h - what the process has of a device, for all contexts together: its kernels, loaded
 * beforehand; one pair of queues; one pool of memory; pinned host memory that is kept. It is made
 * at the first use and never given back. */
#ifndef DCOMMI_DEVICE_CUDA_SITE_H
#define DCOMMI_DEVICE_CUDA_SITE_H

#include "cuda_base.h"

#ifdef DCOMM_WITH_CUDA

/* Bytes of free memory that the pool keeps. Beyond that CUDA returns it to the system when somebody
 * waits for a stream, an event or the device. */
#ifndef DCOMMI_CUDA_POOL_KEEP
#define DCOMMI_CUDA_POOL_KEEP ((uint64_t)256 << 20)
#endif

typedef struct dcommi_cuda_site {
    cudaStream_t stream[DCOMMI_QUEUES];
    cudaMemPool_t pool;
    bool flushes; /* a NIC's writes are to be flushed before kernels read them */
} dcommi_cuda_site;

static _Atomic(dcommi_cuda_site *) dcommi_cuda_sites[DCOMMI_CUDA_DEVICES];

/* ---- streams ---- */

/* Warn of what lets a stream that waits for a rank hold up the streams that this rank needs. */
static void dcommi_cuda_warn(void)
{
    static _Atomic int told;
    const char *connections = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    if (connections != NULL && strcmp(connections, "1") == 0 && atomic_exchange(&told, 1) == 0) {
        dcommi_log(DCOMMI_LOG_WARN,
                   "CUDA_DEVICE_MAX_CONNECTIONS is 1: streams of one priority share one hardware "
                   "queue, where one that waits for a collective holds up the others; dcomm's own "
                   "have the greatest priority, so give none of yours that");
    }
}

/* Create a stream. `first`: with the greatest priority. Such streams never wait for a rank, and
 * have hardware queues apart from those of streams that may. */
static dcomm_status dcommi_cuda_stream_make(int device, bool first, cudaStream_t *stream_p)
{
    int least = 0, greatest = 0;
    DCOMMI_CUDA_TRY(device, cudaDeviceGetStreamPriorityRange(&least, &greatest),
                    "cudaDeviceGetStreamPriorityRange");
    DCOMMI_CUDA_TRY(
        device,
        cudaStreamCreateWithPriority(stream_p, cudaStreamNonBlocking, first ? greatest : least),
        "cudaStreamCreateWithPriority");
    return DCOMM_OK;
}

/* ---- memory ---- */

/* Make a pool of our own: the device's default pool returns free memory to the system whenever
 * anybody waits for anything. Reuse must not make a stream wait for another, which may wait for
 * a rank. */
static dcomm_status dcommi_cuda_pool(int device, cudaMemPool_t *pool_p)
{
    const struct cudaMemPoolProps props = {
        .allocType = cudaMemAllocationTypePinned,
        .location = {.type = cudaMemLocationTypeDevice, .id = device}};
    uint64_t keep = DCOMMI_CUDA_POOL_KEEP;
    int never = 0;
    cudaMemPool_t pool;
    DCOMMI_CUDA_TRY(device, cudaMemPoolCreate(&pool, &props), "cudaMemPoolCreate");
    *pool_p = pool;
    DCOMMI_CUDA_TRY(device, cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep),
                    "cudaMemPoolSetAttribute");
    DCOMMI_CUDA_TRY(
        device, cudaMemPoolSetAttribute(pool, cudaMemPoolReuseAllowInternalDependencies, &never),
        "cudaMemPoolSetAttribute");
    return DCOMM_OK;
}

/* Return true if the writes of a NIC into the device's memory need a flush before kernels read
 * them: a kernel that is launched behind them may overtake them. */
static bool dcommi_cuda_needs_flush(int device)
{
    int order = cudaGPUDirectRDMAWritesOrderingOwner, how = 0;
    if (cudaDeviceGetAttribute(&order, cudaDevAttrGPUDirectRDMAWritesOrdering, device) !=
            cudaSuccess ||
        cudaDeviceGetAttribute(&how, cudaDevAttrGPUDirectRDMAFlushWritesOptions, device) !=
            cudaSuccess) {
        (void)cudaGetLastError();
        return false;
    }
    return order < cudaGPUDirectRDMAWritesOrderingOwner &&
           (how & cudaFlushGPUDirectRDMAWritesOptionHost) != 0;
}

/* ---- kernels ---- */

/* Load all kernels beforehand. A kernel that CUDA loads at its first launch may wait for all that
 * the device's streams hold, and one of them may wait for the rank that launches it. */
static dcomm_status dcommi_cuda_load_all(void)
{
    static _Atomic int told;
    dcomm_status status = dcomm_cuda_load();
    if (status == DCOMM_ERR_UNSUPPORTED) {
        if (atomic_exchange(&told, 1) == 0) {
            dcommi_log(DCOMMI_LOG_WARN, "%s", dcommi_message);
        }
        status = DCOMM_OK;
    }
    return status;
}

/* ---- the site ---- */

/* Fill in a site, in its device. What fails leaves what it has made to the process. */
static dcomm_status dcommi_cuda_site_fill(int device, dcommi_cuda_site *site)
{
    dcommi_cuda_warn();
    DCOMMI_TRY(dcommi_cuda_load_all());
    for (int q = 0; q < DCOMMI_QUEUES; q++) {
        DCOMMI_TRY(dcommi_cuda_stream_make(device, true, &site->stream[q]));
    }
    site->flushes = dcommi_cuda_needs_flush(device);
    return dcommi_cuda_pool(device, &site->pool);
}

/* Return what the process has of a device, made at the first call. That may wait for the device, so
 * a thread that calls does it, at the first use of the device. */
static dcomm_status dcommi_cuda_site_of(int device, dcommi_cuda_site **site_p)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    if (device < 0 || device >= DCOMMI_CUDA_DEVICES) {
        return dcommi_fail(DCOMM_ERR_UNSUPPORTED, "device %d is not one of the first %d", device,
                           DCOMMI_CUDA_DEVICES);
    }
    *site_p = atomic_load_explicit(&dcommi_cuda_sites[device], memory_order_acquire);
    if (DCOMMI_LIKELY(*site_p != NULL)) {
        return DCOMM_OK;
    }
    DCOMMI_TRY(dcommi_cuda_need_driver("device memory"));
    dcomm_status status = DCOMM_OK;
    pthread_mutex_lock(&lock);
    dcommi_cuda_site *site = atomic_load(&dcommi_cuda_sites[device]);
    if (site == NULL) {
        site = dcommi_alloc(sizeof *site);
        status = site != NULL ? DCOMM_OK : DCOMM_ERR_NO_MEMORY;
        dcommi_device_before before = dcommi_cuda_enter(device);
        DCOMMI_THEN(status, dcommi_cuda_site_fill(device, site));
        dcommi_cuda_leave(before);
        if (status >= 0) {
            atomic_store_explicit(&dcommi_cuda_sites[device], site, memory_order_release);
        } else {
            dcommi_free(site);
        }
    }
    pthread_mutex_unlock(&lock);
    *site_p = site;
    return status;
}

/* ---- pinned memory ---- */

/* Pinned memory that nobody uses. cudaFreeHost waits for all that devices do, and a stream may wait
 * for this very rank; so it is kept. */
struct dcommi_cuda_pinned {
    struct dcommi_cuda_pinned *next;
    void *memory;
    size_t bytes;
};
static struct dcommi_cuda_pinned *dcommi_cuda_pinned_free, *dcommi_cuda_pinned_used;
static pthread_mutex_t dcommi_cuda_pinned_lock = PTHREAD_MUTEX_INITIALIZER;

/* Move the first block for which `memory` (NULL: any of `bytes`) fits between the lists. */
static struct dcommi_cuda_pinned *dcommi_cuda_pinned_move(struct dcommi_cuda_pinned **from,
                                                          struct dcommi_cuda_pinned **to,
                                                          const void *memory, size_t bytes)
{
    pthread_mutex_lock(&dcommi_cuda_pinned_lock);
    struct dcommi_cuda_pinned **at = from;
    while (*at != NULL && (memory != NULL ? (*at)->memory != memory : (*at)->bytes != bytes)) {
        at = &(*at)->next;
    }
    struct dcommi_cuda_pinned *block = *at;
    if (block != NULL) {
        *at = block->next;
        block->next = *to;
        *to = block;
    }
    pthread_mutex_unlock(&dcommi_cuda_pinned_lock);
    return block;
}

/* Allocate host memory that every device reads and writes itself, at this address. `device`: one
 * that the program uses. */
static dcomm_status dcommi_cuda_pin(int device, size_t bytes, void **memory_p)
{
    const size_t page = 4096, whole = (bytes + page - 1) / page * page;
    struct dcommi_cuda_pinned *block =
        dcommi_cuda_pinned_move(&dcommi_cuda_pinned_free, &dcommi_cuda_pinned_used, NULL, whole);
    if (block == NULL) {
        block = dcommi_alloc(sizeof *block);
        if (block == NULL) {
            return DCOMM_ERR_NO_MEMORY;
        }
        block->bytes = whole;
        dcommi_device_before before = dcommi_cuda_enter(device);
        cudaError_t error =
            cudaHostAlloc(&block->memory, whole, cudaHostAllocPortable | cudaHostAllocMapped);
        dcommi_cuda_leave(before);
        if (error != cudaSuccess) {
            dcommi_free(block);
            return dcommi_cuda_failed(-1, error, "cudaHostAlloc");
        }
        pthread_mutex_lock(&dcommi_cuda_pinned_lock);
        block->next = dcommi_cuda_pinned_used;
        dcommi_cuda_pinned_used = block;
        pthread_mutex_unlock(&dcommi_cuda_pinned_lock);
    }
    *memory_p = block->memory;
    return DCOMM_OK;
}

static void dcommi_cuda_unpin(void *memory)
{
    if (memory != NULL) {
        (void)dcommi_cuda_pinned_move(&dcommi_cuda_pinned_used, &dcommi_cuda_pinned_free, memory,
                                      0);
    }
}

#endif
#endif
