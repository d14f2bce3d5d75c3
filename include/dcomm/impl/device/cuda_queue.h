/* cuda_queue.h - a context's use of a device by CUDA's runtime: its queues, its memory and the
 * kernels on queue IN. */
#ifndef DCOMMI_DEVICE_CUDA_QUEUE_H
#define DCOMMI_DEVICE_CUDA_QUEUE_H

#include "../../plan.h"
#include "cuda_shared.h"

#ifdef DCOMM_WITH_CUDA

/* Return the number of the device whose memory `at` is; -1: host memory. Managed memory is the
 * device's. */
static int dcommi_cuda_locate(const void *at)
{
    static _Atomic int absent; /* no driver, or no device: never ask again */
    struct cudaPointerAttributes a;
    if (at == NULL || atomic_load_explicit(&absent, memory_order_relaxed) != 0) {
        return -1;
    }
    cudaError_t error = cudaPointerGetAttributes(&a, at);
    if (error == cudaSuccess) {
        return a.type == cudaMemoryTypeDevice || a.type == cudaMemoryTypeManaged ? a.device : -1;
    }
    (void)cudaGetLastError();
    if (error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver) {
        atomic_store(&absent, 1);
    }
    return -1;
}

static dcomm_status dcommi_cuda_streams(dcommi_device_handle *d)
{
    for (int q = 0; q < DCOMMI_QUEUES; q++) {
        cudaStream_t stream;
        DCOMMI_CUDA_TRY(d->number, cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
                        "cudaStreamCreateWithFlags");
        d->stream[q] = stream;
    }
    return DCOMM_OK;
}

/* Make a pool of our own, which keeps free memory. The device's default pool returns it to the
 * system whenever anybody waits for anything. */
static dcomm_status dcommi_cuda_pool(dcommi_device_handle *d)
{
    const struct cudaMemPoolProps props = {
        .allocType = cudaMemAllocationTypePinned,
        .location = {.type = cudaMemLocationTypeDevice, .id = d->number}};
    uint64_t keep = UINT64_MAX;
    cudaMemPool_t pool;
    DCOMMI_CUDA_TRY(d->number, cudaMemPoolCreate(&pool, &props), "cudaMemPoolCreate");
    d->pool = pool;
    DCOMMI_CUDA_TRY(d->number,
                    cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep),
                    "cudaMemPoolSetAttribute");
    return DCOMM_OK;
}

/* Load all kernels beforehand. A kernel that CUDA loads at its first launch may wait for all that
 * the device's streams hold, and one of them may wait for the rank that launches it. */
static dcomm_status dcommi_cuda_load_all(int device)
{
    static _Atomic uint64_t loaded; /* a bit for each device */
    static _Atomic int told;
    const uint64_t bit = device < 64 ? (uint64_t)1 << device : 0;
    if ((atomic_load(&loaded) & bit) != 0) {
        return DCOMM_OK;
    }
    dcomm_status status = dcomm_cuda_load();
    if (status >= 0) {
        atomic_fetch_or(&loaded, bit);
    }
    if (status == DCOMM_ERR_UNSUPPORTED) {
        if (atomic_exchange(&told, 1) == 0) {
            dcommi_log(DCOMMI_LOG_WARN, "%s", dcommi_message);
        }
        status = DCOMM_OK;
    }
    return status;
}

static dcomm_status dcommi_cuda_open(dcommi_device_handle *d)
{
    dcommi_device_before before = dcommi_cuda_enter(d->number);
    dcomm_status status = dcommi_cuda_load_all(d->number);
    DCOMMI_THEN(status, dcommi_cuda_streams(d));
    DCOMMI_THEN(status, dcommi_cuda_pool(d));
    dcommi_cuda_leave(before);
    return status;
}

/* Close the queues, whose work has all been seen to end. */
static void dcommi_cuda_close(dcommi_device_handle *d)
{
    dcommi_device_before before = dcommi_cuda_enter(d->number);
    for (unsigned i = 0; i < d->nevents; i++) {
        (void)cudaEventDestroy((cudaEvent_t)d->events[i]);
    }
    for (int q = 0; q < DCOMMI_QUEUES; q++) {
        if (d->stream[q] != NULL) {
            (void)cudaStreamDestroy((cudaStream_t)d->stream[q]);
        }
    }
    if (d->pool != NULL) {
        (void)cudaMemPoolDestroy((cudaMemPool_t)d->pool);
    }
    dcommi_cuda_leave(before);
}

/* Allocate host memory that every device reads and writes itself, at this address. */
static dcomm_status dcommi_cuda_pin(size_t bytes, void **memory_p)
{
    dcommi_device_before before = dcommi_cuda_enter(-1);
    return dcommi_cuda_called(
        before, -1, cudaHostAlloc(memory_p, bytes, cudaHostAllocPortable | cudaHostAllocMapped),
        "cudaHostAlloc");
}

static void dcommi_cuda_unpin(void *memory)
{
    if (memory != NULL) {
        dcommi_device_before before = dcommi_cuda_enter(-1);
        (void)cudaFreeHost(memory);
        dcommi_cuda_leave(before);
    }
}

/* Allocate memory in the order of a stream. */
static dcomm_status dcommi_cuda_alloc(dcommi_device_handle *d, void *stream, size_t bytes,
                                      void **memory_p)
{
    dcommi_device_before before = dcommi_cuda_enter(d->number);
    return d->pool == NULL
               ? dcommi_cuda_called(before, d->number,
                                    cudaMallocAsync(memory_p, bytes, (cudaStream_t)stream),
                                    "cudaMallocAsync")
               : dcommi_cuda_called(before, d->number,
                                    cudaMallocFromPoolAsync(memory_p, bytes, (cudaMemPool_t)d->pool,
                                                            (cudaStream_t)stream),
                                    "cudaMallocFromPoolAsync");
}

static void dcommi_cuda_release(int device, void *stream, void *memory)
{
    if (memory != NULL) {
        dcommi_device_before before = dcommi_cuda_enter(device);
        (void)cudaFreeAsync(memory, (cudaStream_t)stream);
        dcommi_cuda_leave(before);
    }
}

/* Copy dst <- src, either of which may be pinned host memory. */
static dcomm_status dcommi_cuda_copy(int device, void *stream, void *dst, const void *src,
                                     size_t len)
{
    dcommi_device_before before = dcommi_cuda_enter(device);
    return dcommi_cuda_called(
        before, device, cudaMemcpyAsync(dst, src, len, cudaMemcpyDefault, (cudaStream_t)stream),
        "cudaMemcpyAsync");
}

/* Fold dst[i] <- src[s][i], like dcommi_host_reduce. Operands beyond what one launch takes are
 * folded onto the result, in the same order. */
static dcomm_status dcommi_cuda_reduce(dcommi_device_handle *d, void *dst, const void *const *src,
                                       size_t nsrc, size_t count, dcomm_dtype dtype, dcomm_op op,
                                       int64_t divisor)
{
    const void *at[DCOMM_CUDA_OPERANDS];
    dcomm_status status = DCOMM_OK;
    dcommi_device_before before = dcommi_cuda_enter(d->number);
    for (size_t done = 0; done < nsrc && status >= 0;) {
        size_t n = 0;
        if (done > 0) {
            at[n++] = dst;
        }
        while (n < DCOMM_CUDA_OPERANDS && done < nsrc) {
            at[n++] = src[done++];
        }
        status = dcomm_cuda_reduce(dst, at, n, count, dtype, op, done == nsrc ? divisor : 1,
                                   d->stream[DCOMMI_QUEUE_IN]);
    }
    dcommi_cuda_leave(before);
    return status;
}

static dcomm_status dcommi_cuda_scale(int device, void *stream, void *dst, const void *src,
                                      size_t count, dcomm_dtype dtype, double factor)
{
    dcommi_device_before before = dcommi_cuda_enter(device);
    return dcommi_cuda_done(before, dcomm_cuda_scale(dst, src, count, dtype, factor, stream));
}

static dcomm_status dcommi_cuda_to_f32(dcommi_device_handle *d, float *dst, const void *src,
                                       size_t count, dcomm_dtype dtype, double factor)
{
    dcommi_device_before before = dcommi_cuda_enter(d->number);
    return dcommi_cuda_done(
        before, dcomm_cuda_to_f32(dst, src, count, dtype, factor, d->stream[DCOMMI_QUEUE_IN]));
}

static dcomm_status dcommi_cuda_from_f32(dcommi_device_handle *d, void *dst, const float *src,
                                         size_t count, dcomm_dtype dtype)
{
    dcommi_device_before before = dcommi_cuda_enter(d->number);
    return dcommi_cuda_done(
        before, dcomm_cuda_from_f32(dst, src, count, dtype, d->stream[DCOMMI_QUEUE_IN]));
}

static dcomm_status dcommi_cuda_code_on(const dcommi_device_code *c, void *workspace, void *stream)
{
    switch (c->kind) {
    case DCOMM_STEP_ENCODE:
        return c->ledger == NULL
                   ? dcomm_cuda_encode(c->codec, c->src[0], c->residual, c->next, c->count, &c->key,
                                       c->dst, c->dst_len, workspace, c->report, stream)
                   : dcomm_cuda_encode_ledger(c->codec, c->src[0], c->residual, c->next, c->count,
                                              &c->key, c->dst, c->dst_len, workspace, c->report,
                                              c->ledger, stream);
    case DCOMM_STEP_RECODE:
        return dcomm_cuda_recode(c->codec, c->src, c->len, c->n, c->factor, c->residual, c->next,
                                 c->count, &c->key, c->dst, c->dst_len, workspace, c->report,
                                 stream);
    default:
        return (c->adds ? dcomm_cuda_decode_add : dcomm_cuda_decode_sum)(
            c->codec, c->src, c->len, c->n, c->dst, c->count, workspace, c->report, stream);
    }
}

static size_t dcommi_cuda_code_bytes(const dcommi_device_code *c)
{
    return c->kind == DCOMM_STEP_ENCODE && c->ledger != NULL
               ? dcomm_cuda_ledger_workspace_bytes(c->codec, c->count)
           : c->kind == DCOMM_STEP_ENCODE ? dcomm_cuda_workspace_bytes(c->codec, c->count)
           : c->kind == DCOMM_STEP_RECODE ? dcomm_cuda_recode_workspace_bytes(c->codec, c->count)
                                          : dcomm_cuda_decode_workspace_bytes(c->codec, c->count);
}

/* Run dcomm_cuda_ledger_compare on queue IN. */
static dcomm_status dcommi_cuda_compare(dcommi_device_handle *d, dcomm_cuda_ledger *ledger,
                                        const float *x, const float *y, const float *next,
                                        size_t count)
{
    void *room = NULL;
    if (count == 0) {
        return DCOMM_OK;
    }
    DCOMMI_TRY(dcommi_device_alloc(d, dcomm_cuda_compare_workspace_bytes(count), &room));
    dcommi_device_before before = dcommi_cuda_enter(d->number);
    dcomm_status status =
        dcomm_cuda_ledger_compare(ledger, x, y, next, count, room, d->stream[DCOMMI_QUEUE_IN]);
    dcommi_cuda_leave(before);
    dcommi_device_release(d, room);
    return status;
}

static dcomm_status dcommi_cuda_scatter(dcommi_device_handle *d, float *x, size_t count,
                                        const uint32_t *index, const float *value, size_t n,
                                        bool add)
{
    dcommi_device_before before = dcommi_cuda_enter(d->number);
    return dcommi_cuda_done(
        before, dcomm_cuda_scatter(x, count, index, value, n, add, d->stream[DCOMMI_QUEUE_IN]));
}

static dcomm_status dcommi_cuda_clip(dcommi_device_handle *d, dcomm_cuda_clip *clip, const float *g,
                                     size_t count, double most)
{
    void *room = NULL;
    DCOMMI_TRY(dcommi_device_alloc(d, dcomm_cuda_feedback_clip_workspace_bytes(count), &room));
    dcommi_device_before before = dcommi_cuda_enter(d->number);
    dcomm_status status =
        dcomm_cuda_feedback_clip(clip, g, count, most, room, d->stream[DCOMMI_QUEUE_IN]);
    dcommi_cuda_leave(before);
    dcommi_device_release(d, room);
    return status;
}

static dcomm_status dcommi_cuda_clipped(dcommi_device_handle *d, float *u, const float *g,
                                        const dcomm_cuda_clip *clip, float momentum,
                                        const float *before, size_t count)
{
    dcommi_device_before device = dcommi_cuda_enter(d->number);
    return dcommi_cuda_done(device, dcomm_cuda_feedback_clipped(u, g, clip, momentum, before, count,
                                                                d->stream[DCOMMI_QUEUE_IN]));
}

static dcomm_status dcommi_cuda_code(dcommi_device_handle *d, const dcommi_device_code *c);

/* Decode what a recoding with feedback has sent, for its ledger. Its input is gone by then. */
static dcomm_status dcommi_cuda_recoded(dcommi_device_handle *d, const dcommi_device_code *c)
{
    const void *wire = c->dst;
    const size_t bytes = dcomm_codec_max_bytes(c->codec, c->count);
    void *sent = NULL;
    DCOMMI_TRY(dcommi_device_alloc(d, c->count * sizeof(float), &sent));
    const dcommi_device_code decode = {.kind = DCOMM_STEP_DECODE,
                                       .codec = c->codec,
                                       .count = c->count,
                                       .src = &wire,
                                       .len = &bytes,
                                       .n = 1,
                                       .dst = sent,
                                       .report = c->report};
    dcomm_status status = dcommi_cuda_code(d, &decode);
    DCOMMI_THEN(status, dcommi_cuda_compare(d, c->ledger, NULL, sent, c->next, c->count));
    dcommi_device_release(d, sent);
    return status;
}

/* Run a codec's step. A temporary workspace is released in the queue's order, behind the
 * kernels. */
static dcomm_status dcommi_cuda_code(dcommi_device_handle *d, const dcommi_device_code *c)
{
    size_t need = c->workspace == NULL ? dcommi_cuda_code_bytes(c) : 0;
    void *workspace = NULL;
    if (need > 0) {
        DCOMMI_TRY(dcommi_device_alloc(d, need, &workspace));
    }
    dcommi_device_before before = dcommi_cuda_enter(d->number);
    dcomm_status status = dcommi_cuda_code_on(c, c->workspace != NULL ? c->workspace : workspace,
                                              d->stream[DCOMMI_QUEUE_IN]);
    dcommi_cuda_leave(before);
    dcommi_device_release(d, workspace);
    return status >= 0 && c->kind == DCOMM_STEP_RECODE && c->residual != NULL &&
                   c->ledger != NULL && c->count > 0
               ? dcommi_cuda_recoded(d, c)
               : status;
}

static dcomm_status dcommi_cuda_matrix_on(const dcommi_device_matrix *m, void *workspace,
                                          void *stream)
{
    switch (m->kind) {
    case DCOMMI_MATRIX_START:
        return dcomm_cuda_powersgd_start(&m->shape, &m->key, m->q, stream);
    case DCOMMI_MATRIX_P:
        return dcomm_cuda_powersgd_p(&m->shape, m->x, m->q, m->p, m->report, stream);
    case DCOMMI_MATRIX_ORTHONORMAL:
        return dcomm_cuda_powersgd_orthonormal(&m->shape, m->p, stream);
    case DCOMMI_MATRIX_Q:
        return dcomm_cuda_powersgd_q(&m->shape, m->x, m->p, m->q, m->report, stream);
    default:
        return m->ledger == NULL
                   ? dcomm_cuda_powersgd_product(&m->shape, m->p, m->q, m->to, m->how, stream)
                   : dcomm_cuda_powersgd_product_ledger(&m->shape, m->p, m->q, m->x, m->to,
                                                        workspace, m->ledger, stream);
    }
}

static dcomm_status dcommi_cuda_matrix(dcommi_device_handle *d, const dcommi_device_matrix *m)
{
    void *room = NULL;
    if (m->ledger != NULL && m->shape.count > 0) {
        DCOMMI_TRY(
            dcommi_device_alloc(d, dcomm_cuda_compare_workspace_bytes(m->shape.count), &room));
    }
    dcommi_device_before before = dcommi_cuda_enter(d->number);
    dcomm_status status = dcommi_cuda_matrix_on(m, room, d->stream[DCOMMI_QUEUE_IN]);
    dcommi_cuda_leave(before);
    dcommi_device_release(d, room);
    return status;
}

/* ---- events ---- */

/* Record an event behind all that a stream holds now. `event` NULL: make a new one. */
static dcomm_status dcommi_cuda_record(int device, void *stream, cudaEvent_t event,
                                       const char *what, void **event_p)
{
    cudaError_t error = cudaSuccess;
    dcommi_device_before before = dcommi_cuda_enter(device);
    if (event == NULL) {
        error = cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    }
    if (error == cudaSuccess) {
        error = cudaEventRecord(event, (cudaStream_t)stream);
        if (error == cudaSuccess) {
            *event_p = event;
        } else {
            (void)cudaEventDestroy(event);
        }
    }
    return dcommi_cuda_called(before, device, error, what);
}

/* Record an event behind all that a queue holds. */
static dcomm_status dcommi_cuda_mark(dcommi_device_handle *d, enum dcommi_queue queue,
                                     void **event_p)
{
    return dcommi_cuda_record(d->number, d->stream[queue],
                              d->nevents > 0 ? (cudaEvent_t)d->events[--d->nevents] : NULL,
                              "cudaEventRecord", event_p);
}

/* Return DCOMM_IN_PROGRESS, DCOMM_OK or the error of work before the event. */
static dcomm_status dcommi_cuda_poll(void *event)
{
    dcommi_device_before before = dcommi_cuda_enter(-1);
    cudaError_t error = cudaEventQuery((cudaEvent_t)event);
    dcommi_cuda_leave(before);
    if (error == cudaErrorNotReady) {
        (void)cudaGetLastError(); /* CUDA keeps this as an error, too */
        return DCOMM_IN_PROGRESS;
    }
    DCOMMI_CUDA_TRY(-1, error, "the device reports");
    return DCOMM_OK;
}

/* Take back an event that has happened, or never will. */
static void dcommi_cuda_over(dcommi_device_handle *d, void *event)
{
    if (d->nevents < DCOMMI_EVENTS_KEPT) {
        d->events[d->nevents++] = event;
    } else {
        (void)cudaEventDestroy((cudaEvent_t)event);
    }
}

#endif

#endif
