/* pieces.h - the sources of a COPY or REDUCE, in our own memory or in peers'. They are copied or
 * folded at once where this rank can read all of them. */
#ifndef DCOMMI_PIECES_H
#define DCOMMI_PIECES_H

#include "receive.h"

/* The destination of a step. */
typedef struct dcommi_target {
    uint8_t *dst;
    bool past;     /* use nontemporal stores */
    bool ahead;    /* prefetch the sources */
    uint8_t *also; /* the result of a fold goes there, too; NULL: nowhere else */
} dcommi_target;

/* One source of a fold: our own memory, or a rank's. */
typedef struct dcommi_piece {
    const uint8_t *local; /* NULL: it is the rank's */
    int rank;
    uint16_t slot;
    bool by_message;
    bool device;      /* it lies on a device */
    bool opened;      /* local is the rank's device memory, opened: valid in this pass only */
    bool straight;    /* UCX receives it in device memory itself */
    bool sent;        /* it is the payload of the rank's OFFER, not exposed memory */
    uint32_t region;  /* the rank's region that contains it; 0: none */
    uint64_t address; /* in that rank's process */
    uint64_t offset;  /* in the exposed memory */
} dcommi_piece;

/* Fold `src` into `to` from byte `at` on. */
static dcomm_status dcommi_fold_pieces(dcommi_lane *lane, const dcommi_target *to, size_t at,
                                       const void *const *src, size_t nsrc, size_t len, bool final)
{
    const dcomm_plan *plan = lane->frame->scope.plan;
    size_t element = dcomm_dtype_size((dcomm_dtype)plan->dtype);
    lane->frame->run->comm->context->open_stores |= to->past;
    unsigned how = (to->past ? DCOMMI_FOLD_STREAM : 0) |
                   (to->ahead ? DCOMMI_FOLD_AHEAD | DCOMMI_FOLD_NEAR : 0);
    return dcommi_host_reduce_both(
        to->dst + at, to->also != NULL ? to->also + at : NULL, src, nsrc, len / element,
        (dcomm_dtype)plan->dtype, (dcomm_op)plan->op,
        final && plan->op == DCOMM_AVG ? lane->frame->run->plan->nranks : 1, how);
}

/* Fold on queue IN of the run's device. */
static dcomm_status dcommi_fold_on_device(dcommi_lane *lane, uint8_t *dst, const void *const *src,
                                          size_t nsrc, size_t len, bool final)
{
    const dcomm_plan *plan = lane->frame->scope.plan;
    dcommi_device_handle *d = &lane->frame->run->device->handle;
    return d->call->reduce(d, dst, src, nsrc, len / dcomm_dtype_size((dcomm_dtype)plan->dtype),
                           (dcomm_dtype)plan->dtype, (dcomm_op)plan->op,
                           final && plan->op == DCOMM_AVG ? lane->frame->run->plan->nranks : 1);
}

/* Return the length of a block (bytes, whole elements) so that the blocks of all pieces stay in
 * cache. */
static size_t dcommi_pull_grain(const dcomm_plan *plan, size_t npieces)
{
    size_t grain = (size_t)8 * DCOMMI_PULL_BLOCK / (npieces > 0 ? npieces : 1);
    grain = grain > DCOMMI_PULL_BLOCK ? DCOMMI_PULL_BLOCK : grain < 4096 ? 4096 : grain;
    return (size_t)dcommi_whole_elements((int64_t)grain,
                                         (int64_t)dcomm_dtype_size((dcomm_dtype)plan->dtype));
}

/* Return the address at which a piece can be read in place now; NULL: it must be fetched. */
static inline const uint8_t *dcommi_piece_here(dcomm_comm *comm, const dcommi_piece *piece,
                                               size_t at, size_t len)
{
    return piece->local != NULL ? piece->local + at
                                : dcommi_resolve_peer_memory(comm, piece->rank, piece->region,
                                                             piece->address + at, len);
}

/* Fold from the callers' memory. Trials tell whether to prefetch: the data may be in a cache or
 * not. */
static dcomm_status dcommi_fold_mapped(dcommi_lane *lane, const dcommi_target *to,
                                       const void *const *src, size_t n, size_t len, bool final)
{
    dcommi_ways *ways = &lane->frame->run->comm->folds;
    dcommi_target how = *to;
    dcommi_way way = dcommi_ways_begin(ways);
    how.ahead = way.second;
    dcomm_status status = dcommi_fold_pieces(lane, &how, 0, src, n, len, final);
    dcommi_ways_end(ways, &way, len, 1);
    return status;
}

/* Copy or fold from memory that can all be read in place. DCOMM_ERR_UNSUPPORTED: a part cannot. */
static dcomm_status dcommi_pull_mapped(dcommi_lane *lane, const dcommi_target *to,
                                       const dcommi_piece *pieces, size_t n, size_t len, bool fold,
                                       bool final)
{
    dcomm_comm *comm = lane->frame->run->comm;
    const void **src = comm->context->pointers;
    for (size_t i = 0; i < n; i++) {
        src[i] = dcommi_piece_here(comm, &pieces[i], 0, len);
        if (src[i] == NULL) {
            return DCOMM_ERR_UNSUPPORTED;
        }
    }
    for (size_t i = 0; i < n; i++) {
        comm->stats.bytes_mapped += pieces[i].local == NULL ? len : 0;
    }
    if (fold) {
        bool callers = lane->frame->shared == NULL && len >= DCOMMI_AHEAD_LEAST;
        return callers ? dcommi_fold_mapped(lane, to, src, n, len, final)
                       : dcommi_fold_pieces(lane, to, 0, src, n, len, final);
    }
    dcommi_result_copy(comm->context, to->dst, src[0], len, to->past);
    return DCOMM_OK;
}

/* Fold from memory that this process can all map or read. DCOMM_ERR_UNSUPPORTED: a part cannot be
 * read. */
static dcomm_status dcommi_pull_direct(dcommi_lane *lane, const dcommi_target *to,
                                       const dcommi_piece *pieces, size_t n, size_t len, bool final)
{
    dcomm_comm *comm = lane->frame->run->comm;
    size_t grain = dcommi_pull_grain(lane->frame->scope.plan, n);
    uint8_t *staging = dcommi_staging(comm->context, n * grain);
    if (staging == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    const void **src = comm->context->pointers;
    for (size_t at = 0; at < len; at += grain) {
        size_t part = len - at < grain ? len - at : grain;
        for (size_t i = 0; i < n; i++) {
            src[i] = dcommi_piece_here(comm, &pieces[i], at, part);
            if (src[i] != NULL) {
                comm->stats.bytes_mapped += pieces[i].local == NULL ? part : 0;
                continue;
            }
            uint8_t *block = staging + i * grain;
            DCOMMI_TRY(dcommi_read_part(
                dcommi_read_process(comm, pieces[i].rank, block, pieces[i].address + at, part), at,
                pieces[i].rank));
            src[i] = block;
        }
        DCOMMI_TRY(dcommi_fold_pieces(lane, to, at, src, n, part, final));
    }
    return DCOMM_OK;
}

#endif
