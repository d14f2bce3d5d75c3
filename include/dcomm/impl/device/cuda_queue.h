/* cuda_queue.h - a context's use of a device by CUDA's runtime: memory in a stream's order, and the
 * kernels on queue IN. */
#ifndef DCOMMI_DEVICE_CUDA_QUEUE_H
#define DCOMMI_DEVICE_CUDA_QUEUE_H

#include "../../plan.h"
#include "cuda_shared.h"
#include "cuda_site.h"

#ifdef DCOMM_WITH_CUDA

/* Return the number of the device whose memory `at` is; -1: host memory. Managed memory is the
 * device's. The question makes no context. */
static int dcommi_cuda_locate(const void *at)
{
    struct cudaPointerAttributes a;
    if (at == NULL || !dcommi_cuda_ready()) {
        return -1;
    }
    if (cudaPointerGetAttributes(&a, at) != cudaSuccess) {
        (void)cudaGetLastError();
        return -1;
    }
    return a.type == cudaMemoryTypeDevice || a.type == cudaMemoryTypeManaged ? a.device : -1;
}

static dcomm_status dcommi_cuda_ready_for(int device)
{
    dcommi_cuda_site *site;
    return dcommi_cuda_site_of(device, &site);
}

static dcomm_status dcommi_cuda_open(dcommi_device_handle *d)
{
    dcommi_cuda_site *site;
    void *words = NULL;
    DCOMMI_TRY(dcommi_cuda_site_of(d->number, &site));
    DCOMMI_TRY(dcommi_cuda_pin(d->number, DCOMMI_QUEUES * DCOMMI_CACHE_LINE, &words));
    memset(words, 0, DCOMMI_QUEUES * DCOMMI_CACHE_LINE);
    d->pinned = words;
    for (int q = 0; q < DCOMMI_QUEUES; q++) {
        d->stream[q] = site->stream[q];
        d->word[q] = (_Atomic uint32_t *)words + (size_t)q * DCOMMI_CACHE_LINE / sizeof(uint32_t);
    }
    return DCOMM_OK;
}

/* Give the words back, unless a device that has failed may still write them. */
static void dcommi_cuda_close(dcommi_device_handle *d, bool broken)
{
    if (!broken) {
        dcommi_cuda_unpin(d->pinned);
    }
}

/* Allocate memory in the order of a stream. */
static dcomm_status dcommi_cuda_alloc(int device, void *stream, size_t bytes, void **memory_p)
{
    dcommi_cuda_site *site;
    DCOMMI_TRY(dcommi_cuda_site_of(device, &site));
    dcommi_device_before before = dcommi_cuda_enter(device);
    return dcommi_cuda_called(
        before, device, cudaMallocFromPoolAsync(memory_p, bytes, site->pool, (cudaStream_t)stream),
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

/* ---- how far a device has come ---- */

/* Ask a queue, which never waits for a rank: an error of any work stays with the device. */
static dcomm_status dcommi_cuda_health(int device)
{
    dcommi_cuda_site *site;
    DCOMMI_TRY(dcommi_cuda_site_of(device, &site));
    dcommi_device_before before = dcommi_cuda_enter(device);
    cudaError_t error = cudaStreamQuery(site->stream[DCOMMI_QUEUE_OUT]);
    if (error == cudaErrorNotReady) {
        (void)cudaGetLastError(); /* CUDA keeps this as an error, too */
        error = cudaSuccess;
    }
    return dcommi_cuda_called(before, -1, error, "the device reports");
}

static void dcommi_cuda_flush(int device)
{
    dcommi_cuda_site *site = atomic_load_explicit(&dcommi_cuda_sites[device], memory_order_acquire);
    if (site != NULL && site->flushes) {
        dcommi_device_before before = dcommi_cuda_enter(device);
        (void)cudaDeviceFlushGPUDirectRDMAWrites(cudaFlushGPUDirectRDMAWritesTargetCurrentDevice,
                                                 cudaFlushGPUDirectRDMAWritesToOwner);
        dcommi_cuda_leave(before);
    }
}

#endif

#endif
