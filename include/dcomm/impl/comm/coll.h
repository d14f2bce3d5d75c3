/* coll.h - the collectives: each applies the rules for its buffers and leaves the rest to
 * call.h. */
#ifndef DCOMMI_COMM_COLL_H
#define DCOMMI_COMM_COLL_H

#include "api_auto.h"
#include "overlap.h"

/* Return true if the output of a reduce-scatter or scatter is the rank's own part of the input.
 * That counts as in place, too. It needs no plan of its own: algorithms write this part only when
 * they read it last. */
static bool dcommi_output_inside(const dcommi_shape *s, const void *in, const void *out)
{
    size_t at = s->displs != NULL ? s->displs[s->rank] : s->count * (size_t)s->rank;
    bool takes = s->coll == DCOMM_COLL_REDUCE_SCATTER || s->coll == DCOMM_COLL_REDUCE_SCATTERV ||
                 s->coll == DCOMM_COLL_SCATTER || s->coll == DCOMM_COLL_SCATTERV;
    return takes && in != NULL && (const char *)in + dcommi_shape_bytes(s, at) == (const char *)out;
}

/* Check the buffers of a call, which are where the plan expects them, and run the call. */
static dcomm_status dcommi_call_placed(dcomm_comm *comm, dcommi_shape *s, const void *in, void *out,
                                       bool in_place, const dcomm_coll_opts *opts,
                                       dcomm_request **request_p)
{
    int64_t in_bytes, out_bytes;
    dcommi_shape_spaces(s, &in_bytes, &out_bytes);
    DCOMMI_TRY(dcommi_check_buffer(s, "sendbuf", in, in_bytes));
    DCOMMI_TRY(dcommi_check_buffer(s, "recvbuf", out, out_bytes));
    s->in_place = in_place && out != NULL;
    s->apart = s->dtype != DCOMM_F32 || s->op == DCOMM_PREMUL_SUM || (uintptr_t)in % 4 != 0 ||
               (uintptr_t)out % 4 != 0;
    const bool one = in_place || dcommi_output_inside(s, in, out);
    DCOMMI_TRY(dcommi_check_overlap(s, in, one ? 0 : in_bytes, out, out_bytes));
    return dcommi_collective(comm, s, in, out, -1, opts, request_p);
}

/* Run a call on the caller's buffers. If `aliased`, it is in place when `in` lies `alias` bytes
 * behind `out`. */
static dcomm_status dcommi_call_buffers(dcomm_comm *comm, dcommi_shape *s, const void *in,
                                        void *out, int64_t alias, bool aliased,
                                        const dcomm_coll_opts *opts, dcomm_request **request_p)
{
    const void *own = out != NULL ? (const uint8_t *)out + alias : NULL;
    in = in == DCOMM_IN_PLACE ? own : in;
    return dcommi_call_placed(comm, s, in, out, aliased && in == own, opts, request_p);
}

/* ---- frequent calls ---- */

/* Turn the caller's buffers of all-reduce, reduce-scatter, all-gather, all-to-all and broadcast
 * into those that the plan reads and writes. `bytes` is the length of one block. Return true if
 * both are the same memory. */
static inline bool dcommi_buffers_find(const dcomm_comm *comm, dcomm_coll coll, int root,
                                       size_t bytes, const void **in, void **out)
{
    const uintptr_t own = (uintptr_t)*out + bytes * (size_t)comm->rank;
    if (coll == DCOMM_COLL_REDUCE_SCATTER) {
        /* In place the output is a part of the input (dcommi_output_inside). */
        if (*in == DCOMM_IN_PLACE) {
            *in = *out;
            *out = *out != NULL ? (void *)own : NULL;
        }
        return false;
    }
    if (coll == DCOMM_COLL_BROADCAST && comm->rank != root) {
        *in = NULL;
        return false;
    }
    void *same = coll == DCOMM_COLL_ALLGATHER && *out != NULL ? (void *)own : *out;
    *in = *in == DCOMM_IN_PLACE ? same : *in;
    return *in == same;
}

/* Try a frequent call on the fast path. If its plan is cached, such a call has been checked
 * before. DCOMM_IN_PROGRESS: the caller takes the ordinary path. */
static inline dcomm_status dcommi_fast_attempt(dcomm_comm *comm, dcomm_coll coll, const void *in,
                                               void *out, size_t count, dcomm_dtype dtype,
                                               dcomm_op op, int root, const dcomm_coll_opts *opts,
                                               dcomm_request **request_p)
{
    if (!dcommi_fast_asked(comm, opts, request_p) || !dcommi_fast_first(coll, op) || out == NULL ||
        (in == NULL && coll != DCOMM_COLL_BROADCAST)) {
        return DCOMM_IN_PROGRESS;
    }
    const size_t bytes = count * dcomm_dtype_size(dtype), all = bytes * (size_t)comm->size;
    bool in_place = dcommi_buffers_find(comm, coll, root, bytes, &in, &out);
    if (coll == DCOMM_COLL_BROADCAST && comm->rank == root && in == NULL) {
        return DCOMM_IN_PROGRESS;
    }
    const bool reads_all = coll == DCOMM_COLL_REDUCE_SCATTER || coll == DCOMM_COLL_ALLTOALL;
    const bool writes_all = coll == DCOMM_COLL_ALLGATHER || coll == DCOMM_COLL_ALLTOALL;
    const bool inside = coll == DCOMM_COLL_REDUCE_SCATTER &&
                        (const char *)in + bytes * (size_t)comm->rank == (const char *)out;
    if (DCOMMI_UNLIKELY(!in_place && !inside && in != NULL &&
                        dcommi_overlaps(in, (int64_t)(reads_all ? all : bytes), out,
                                        (int64_t)(writes_all ? all : bytes)))) {
        return DCOMM_IN_PROGRESS;
    }
    const dcommi_call_key key = dcommi_call_key_of(coll, count, dtype, op, root, in_place, opts);
    return dcommi_call_fast(comm, &key, opts, in, out);
}

static inline dcomm_status dcommi_call_often(dcomm_comm *comm, dcomm_coll coll, const void *in,
                                             void *out, size_t count, dcomm_dtype dtype,
                                             dcomm_op op, int root, const dcomm_coll_opts *opts,
                                             dcomm_request **request_p)
{
    dcommi_shape s;
    dcomm_status fast =
        dcommi_fast_attempt(comm, coll, in, out, count, dtype, op, root, opts, request_p);
    if (DCOMMI_LIKELY(fast != DCOMM_IN_PROGRESS)) {
        return fast;
    }
    opts = opts != NULL ? opts : &dcommi_default_opts;
    DCOMMI_TRY(dcommi_shape_begin(comm, coll, count, dtype, op, root, opts, &s));
    dcommi_coding coding;
    DCOMMI_TRY(dcommi_coded_begin(&s, opts, &coding));
    bool in_place =
        dcommi_buffers_find(comm, coll, root, (size_t)dcommi_shape_bytes(&s, count), &in, &out);
    return dcommi_call_placed(comm, &s, in, out, in_place, opts, request_p);
}

static dcomm_status dcommi_allreduce(dcomm_comm *comm, const void *sendbuf, void *recvbuf,
                                     size_t count, dcomm_dtype dtype, dcomm_op op,
                                     const dcomm_coll_opts *opts, dcomm_request **request_p)
{
    dcommi_shape s;
    dcomm_coll_opts decided;
    const dcomm_codec *automatic = dcommi_auto_of(opts);
    if (automatic != NULL) {
        DCOMMI_TRY(dcommi_auto_begin(comm, automatic, count, dtype, op, request_p == NULL, &opts,
                                     &decided));
    }
    dcomm_status fast = dcommi_fast_attempt(comm, DCOMM_COLL_ALLREDUCE, sendbuf, recvbuf, count,
                                            dtype, op, 0, opts, request_p);
    if (DCOMMI_LIKELY(fast != DCOMM_IN_PROGRESS)) {
        return fast;
    }
    opts = opts != NULL ? opts : &dcommi_default_opts;
    DCOMMI_TRY(dcommi_shape_begin(comm, DCOMM_COLL_ALLREDUCE, count, dtype, op, 0, opts, &s));
    dcommi_coding coding;
    DCOMMI_TRY(dcommi_coded_begin(&s, opts, &coding));
    bool in_place = dcommi_buffers_find(comm, s.coll, 0, 0, &sendbuf, &recvbuf);
    return dcommi_call_placed(comm, &s, sendbuf, recvbuf, in_place, opts, request_p);
}

static dcomm_status dcommi_barrier(dcomm_comm *comm, const dcomm_coll_opts *opts,
                                   dcomm_request **request_p)
{
    dcommi_shape s;
    if (dcommi_fast_asked(comm, opts, request_p)) {
        const dcommi_call_key key =
            dcommi_call_key_of(DCOMM_COLL_BARRIER, 0, DCOMM_U8, DCOMM_SUM, 0, false, opts);
        dcomm_status fast = dcommi_call_fast(comm, &key, opts, NULL, NULL);
        if (DCOMMI_LIKELY(fast != DCOMM_IN_PROGRESS)) {
            return fast;
        }
    }
    opts = opts != NULL ? opts : &dcommi_default_opts;
    DCOMMI_TRY(dcommi_shape_begin(comm, DCOMM_COLL_BARRIER, 0, DCOMM_U8, DCOMM_SUM, 0, opts, &s));
    return dcommi_collective(comm, &s, NULL, NULL, -1, opts, request_p);
}

/* ---- the others ---- */

static dcomm_status dcommi_reduce_to(dcomm_comm *comm, const void *sendbuf, void *recvbuf,
                                     size_t count, dcomm_dtype dtype, dcomm_op op, int root,
                                     const dcomm_coll_opts *opts, dcomm_request **request_p)
{
    dcommi_shape s;
    opts = opts != NULL ? opts : &dcommi_default_opts;
    DCOMMI_TRY(dcommi_shape_begin(comm, DCOMM_COLL_REDUCE, count, dtype, op, root, opts, &s));
    if (sendbuf == DCOMM_IN_PLACE && comm->rank != root) {
        sendbuf = recvbuf;
    }
    return dcommi_call_buffers(comm, &s, sendbuf, recvbuf, 0, comm->rank == root, opts, request_p);
}

/* ---- counts that differ by rank ---- */

/* Check counts. Without displacements, fill in packed ones. Replace those beyond the last element
 * by 0: with a count of 0 they may be anything. The caller frees *packed. */
static dcomm_status dcommi_check_counts(const dcommi_shape *s, const char *name,
                                        const size_t *counts, const size_t **displs,
                                        size_t **packed)
{
    size_t limit = (size_t)INT64_MAX / 2 / dcomm_dtype_size(s->dtype), sum = 0, end = 0;
    const size_t *given = *displs;
    bool beyond = given == NULL;
    *packed = NULL;
    if (counts == NULL) {
        return dcommi_fail(DCOMM_ERR_INVALID, "%s: %s is NULL", dcomm_coll_name(s->coll), name);
    }
    for (int r = 0; r < s->nranks; r++) {
        size_t at = given != NULL ? given[r] : sum;
        if (counts[r] > 0 &&
            (counts[r] > limit || at > limit - counts[r] || sum > limit - counts[r])) {
            return dcommi_fail(DCOMM_ERR_INVALID,
                               "%s: %s[%d] is %zu, at displacement %zu: more than 2^62 bytes",
                               dcomm_coll_name(s->coll), name, r, counts[r], at);
        }
        sum += counts[r];
        end = counts[r] > 0 && at + counts[r] > end ? at + counts[r] : end;
    }
    for (int r = 0; r < s->nranks && !beyond; r++) {
        beyond = given[r] > end; /* its count is 0 */
    }
    if (!beyond) {
        return DCOMM_OK;
    }
    *packed = dcommi_calloc((size_t)s->nranks, sizeof **packed);
    if (*packed == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    sum = 0;
    for (int r = 0; r < s->nranks; r++) {
        (*packed)[r] = given == NULL ? sum : given[r] > end ? 0 : given[r];
        sum += counts[r];
    }
    *displs = *packed;
    return DCOMM_OK;
}

/* Run gather, scatter, or a call that lists counts: reduce-scatter-v, all-gather-v, gather-v or
 * scatter-v. */
static dcomm_status dcommi_call_blocks(dcomm_comm *comm, dcomm_coll coll, const void *in, void *out,
                                       size_t count, const size_t *counts, const size_t *displs,
                                       dcomm_dtype dtype, dcomm_op op, int root,
                                       const dcomm_coll_opts *opts, dcomm_request **request_p)
{
    dcommi_shape s;
    size_t *packed = NULL;
    opts = opts != NULL ? opts : &dcommi_default_opts;
    DCOMMI_TRY(dcommi_shape_begin(comm, coll, count, dtype, op, root, opts, &s));
    bool gathers =
        coll == DCOMM_COLL_GATHER || coll == DCOMM_COLL_GATHERV || coll == DCOMM_COLL_ALLGATHERV;
    bool scatters = coll == DCOMM_COLL_SCATTER || coll == DCOMM_COLL_SCATTERV;
    bool at_root = comm->rank == root || !dcommi_coll_rooted(coll);
    int64_t own = dcommi_shape_bytes(&s, count) * comm->rank;
    if (coll != DCOMM_COLL_GATHER && coll != DCOMM_COLL_SCATTER) {
        DCOMMI_TRY(dcommi_check_counts(&s, "counts", counts, &displs, &packed));
        s.counts = counts;
        s.displs = displs;
        own = dcommi_shape_bytes(&s, displs[comm->rank]);
    }
    dcommi_coding coding;
    dcomm_status status = dcommi_coded_begin(&s, opts, &coding);
    if (status >= 0 && in == DCOMM_IN_PLACE && !at_root) {
        status = dcommi_fail(DCOMM_ERR_INVALID, "%s: only the root, rank %d, works in place",
                             dcomm_coll_name(coll), root);
    } else if (in == DCOMM_IN_PLACE && !gathers && out != NULL) { /* `out` is the whole buffer */
        in = out;
        out = (uint8_t *)out + own;
    }
    in = scatters && !at_root ? NULL : in;
    if (status >= 0) {
        status = dcommi_call_buffers(comm, &s, in, out, gathers ? own : 0, gathers && at_root, opts,
                                     request_p);
    }
    dcommi_free(packed);
    return status;
}

/* Check that the caller's matrix agrees with this rank's own counts. */
static dcomm_status dcommi_check_matrix(const dcommi_shape *s, const size_t *matrix,
                                        const size_t *send, const size_t *recv)
{
    size_t n = (size_t)s->nranks, me = (size_t)s->rank;
    for (size_t r = 0; r < n && matrix != NULL; r++) {
        if (matrix[me * n + r] != send[r] || matrix[r * n + me] != recv[r]) {
            return dcommi_fail(DCOMM_ERR_INVALID,
                               "all-to-all-v: ranks %zu and %zu send each other %zu and %zu "
                               "elements by opts.matrix, but %zu and %zu by the counts of rank %zu",
                               me, r, matrix[me * n + r], matrix[r * n + me], send[r], recv[r], me);
        }
    }
    return DCOMM_OK;
}

static dcomm_status dcommi_alltoallv(dcomm_comm *comm, const void *sendbuf,
                                     const size_t *sendcounts, const size_t *sdispls, void *recvbuf,
                                     const size_t *recvcounts, const size_t *rdispls,
                                     dcomm_dtype dtype, const dcomm_coll_opts *opts,
                                     dcomm_request **request_p)
{
    dcommi_shape s;
    size_t *packed_send = NULL, *packed_recv = NULL;
    opts = opts != NULL ? opts : &dcommi_default_opts;
    DCOMMI_TRY(dcommi_shape_begin(comm, DCOMM_COLL_ALLTOALLV, 0, dtype, DCOMM_SUM, 0, opts, &s));
    if (sendbuf == DCOMM_IN_PLACE) {
        return dcommi_fail(DCOMM_ERR_INVALID, "all-to-all-v cannot work in place");
    }
    dcomm_status status = dcommi_check_counts(&s, "sendcounts", sendcounts, &sdispls, &packed_send);
    if (status >= 0) {
        status = dcommi_check_counts(&s, "recvcounts", recvcounts, &rdispls, &packed_recv);
    }
    if (status >= 0 && sendcounts[comm->rank] != recvcounts[comm->rank]) {
        status = dcommi_fail(DCOMM_ERR_INVALID,
                             "all-to-all-v: rank %d sends %zu elements to itself and expects %zu",
                             comm->rank, sendcounts[comm->rank], recvcounts[comm->rank]);
    }
    if (status >= 0) {
        status = dcommi_check_matrix(&s, opts->matrix, sendcounts, recvcounts);
    }
    if (status >= 0) {
        s.counts = recvcounts;
        s.displs = rdispls;
        s.matrix = opts->matrix;
        s.send_counts = sendcounts;
        s.send_displs = sdispls;
        status = dcommi_call_buffers(comm, &s, sendbuf, recvbuf, 0, false, opts, request_p);
    }
    dcommi_free(packed_send);
    dcommi_free(packed_recv);
    return status;
}

/* ---- point-to-point ---- */

static dcomm_status dcommi_p2p(dcomm_comm *comm, dcomm_coll coll, const void *in, void *out,
                               size_t count, dcomm_dtype dtype, int peer,
                               const dcomm_coll_opts *opts, dcomm_request **request_p)
{
    dcommi_shape s;
    opts = opts != NULL ? opts : &dcommi_default_opts;
    DCOMMI_TRY(dcommi_shape_begin(comm, coll, count, dtype, DCOMM_SUM, peer, opts, &s));
    if (peer == comm->rank) {
        return dcommi_fail(DCOMM_ERR_INVALID, "%s: peer is %d, which is this rank itself",
                           dcomm_coll_name(coll), peer);
    }
    DCOMMI_TRY(dcommi_check_buffer(&s, "buf", coll == DCOMM_COLL_SEND ? in : out,
                                   dcommi_shape_bytes(&s, count)));
    return dcommi_collective(comm, &s, in, out, peer, opts, request_p);
}

/* ---- plans of the caller's own ---- */

static dcomm_status dcommi_run_plan(dcomm_comm *comm, const dcomm_plan *plan, const void *in,
                                    void *out, uint32_t signature, const dcomm_coll_opts *opts,
                                    dcomm_request **request_p)
{
    opts = opts != NULL ? opts : &dcommi_default_opts;
    DCOMMI_TRY(dcommi_check_comm(comm));
    if (plan == NULL || plan->rank != comm->rank || plan->nranks != comm->size) {
        return dcommi_fail(DCOMM_ERR_INVALID, "plan is %s; this is rank %d of %d",
                           plan == NULL ? "NULL" : "for another rank or number of ranks",
                           comm->rank, comm->size);
    }
    if (dcomm_dtype_size((dcomm_dtype)plan->dtype) == 0 || !dcommi_op_known((dcomm_op)plan->op)) {
        return dcommi_fail(DCOMM_ERR_INVALID,
                           "plan %s: dtype %" PRIu32 " or op %" PRIu32 " does not exist",
                           plan->name, plan->dtype, plan->op);
    }
    uint32_t budget = DCOMMI_CHECK_SUBPLANS;
    DCOMMI_TRY(dcommi_check_plan_valid(plan, "plan", 0, &budget)); /* its indices can be trusted */
    dcommi_shape s = {
        .coll = DCOMM_COLL_PLAN, .dtype = (dcomm_dtype)plan->dtype, .op = (dcomm_op)plan->op};
    dcommi_device *device = NULL;
    DCOMMI_TRY(
        dcommi_call_place(comm, &s, in, plan->in_bytes, out, plan->out_bytes, opts, &device));
    DCOMMI_TRY(dcommi_check_op_hold("plan", (dcomm_op)plan->op));
    dcommi_run *run = dcommi_run_of_plan(comm, plan, in, out, signature);
    if (run == NULL) {
        dcommi_op_drop((dcomm_op)plan->op);
        return DCOMM_ERR_NO_MEMORY;
    }
    run->device = device;
    dcommi_run_stream(run, opts->stream);
    return dcommi_run_launch(run, opts->timeout_s > 0 ? opts->timeout_s : comm->timeout_s,
                             request_p);
}

#endif
