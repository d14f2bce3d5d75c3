/* call.h - the steps of every collective call: check the arguments, pick the algorithm, find or
 * make the plan, number the operation, hand it to the engine. */
#ifndef DCOMMI_CALL_H
#define DCOMMI_CALL_H

#include "../engine/coded/device.h"
#include "../engine/factored.h"
#include "../engine/fast/fast.h"
#include "key.h"
#include "submit.h"

/* ---- checks ---- */

static const dcomm_coll_opts dcommi_default_opts;

/* Fill in the parts of a shape that all calls have, and check them. */
static dcomm_status dcommi_shape_begin(dcomm_comm *comm, dcomm_coll coll, size_t count,
                                       dcomm_dtype dtype, dcomm_op op, int root,
                                       const dcomm_coll_opts *opts, dcommi_shape *s)
{
    DCOMMI_TRY(dcommi_check_comm(comm));
    const char *name = dcomm_coll_name(coll);
    size_t element = dcomm_dtype_size(dtype);
    if (element == 0) {
        return dcommi_fail(DCOMM_ERR_INVALID, "%s: there is no dtype %d", name, (int)dtype);
    }
    if (!dcommi_op_known(op)) {
        return dcommi_fail(DCOMM_ERR_INVALID, "%s: there is no op %d", name, (int)op);
    }
    if (DCOMMI_UNLIKELY(dcommi_dtype_is_opaque(dtype)) && dcommi_coll_folds(coll) &&
        !dcommi_op_is_user(op)) {
        return dcommi_fail(
            DCOMM_ERR_UNSUPPORTED,
            "%s: op %s cannot reduce an opaque dtype of %zu bytes; make an operator of "
            "your own by dcomm_op_create",
            name, dcomm_op_name(op), element);
    }
    if (root < 0 || root >= comm->size) {
        return dcommi_fail(DCOMM_ERR_INVALID, "%s: rank %d is not one of the %d ranks", name, root,
                           comm->size);
    }
    if (count > (size_t)INT64_MAX / 2 / element / (size_t)comm->size) {
        return dcommi_fail(DCOMM_ERR_INVALID,
                           "%s: count %zu of %zu-byte elements on %d ranks "
                           "exceeds 2^62 bytes",
                           name, count, element, comm->size);
    }
    if (opts->lanes < 0 || opts->lanes > DCOMM_PLAN_MAX_LANES / 4) {
        return dcommi_fail(DCOMM_ERR_INVALID, "%s: opts.lanes is %d; it may be 0 to %d", name,
                           opts->lanes, DCOMM_PLAN_MAX_LANES / 4);
    }
    if (opts->accumulate != 0 && opts->accumulate != DCOMM_F32) {
        return dcommi_fail(DCOMM_ERR_UNSUPPORTED,
                           "%s: opts.accumulate is %d; it may be DCOMM_F32 or 0, the default", name,
                           (int)opts->accumulate);
    }
    if (opts->timeout_s < 0 || opts->chunk_bytes > (size_t)INT64_MAX / 2) {
        return dcommi_fail(DCOMM_ERR_INVALID,
                           "%s: opts.timeout_s is %g and must be 0 or more, or opts.chunk_bytes is "
                           "%zu and must be below 2^62",
                           name, opts->timeout_s, opts->chunk_bytes);
    }
    if (opts->premul_on_stream && (opts->stream == NULL || opts->premul_p == NULL)) {
        return dcommi_fail(DCOMM_ERR_INVALID, "%s: opts.premul_on_stream is set, and %s is NULL",
                           name, opts->stream == NULL ? "opts.stream" : "opts.premul_p");
    }
    if (DCOMMI_UNLIKELY((opts->codec != NULL || opts->feedback != NULL) &&
                        dcommi_algo_number(true, coll, 0) == NULL)) {
        return dcommi_fail(DCOMM_ERR_UNSUPPORTED,
                           "%s has no compressed form; all-reduce, reduce-scatter and all-gather "
                           "have one",
                           name);
    }
    dcommi_zero(s, sizeof *s);
    s->coll = coll;
    s->rank = comm->rank;
    s->nranks = comm->size;
    s->root = root;
    s->dtype = dtype;
    s->op = op;
    s->count = count;
    s->groups = comm->groups;
    s->lanes = opts->lanes > 0 ? opts->lanes : 1;
    s->chunk_bytes = opts->chunk_bytes > 0 ? (int64_t)opts->chunk_bytes : comm->chunk_bytes;
    if (s->chunk_bytes > 0) {
        s->chunk_bytes = dcommi_ceil_div(s->chunk_bytes, 64) * 64; /* whole cache lines */
    }
    bool once = opts->accumulate == DCOMM_F32 && (dtype == DCOMM_F16 || dtype == DCOMM_BF16);
    s->rank_order = dcommi_coll_folds(coll) &&
                    (opts->deterministic || comm->deterministic || once || dcommi_op_ordered(op));
    s->memory = coll != DCOMM_COLL_BARRIER ? dcommi_opts_memory(opts) : DCOMMI_MEMORY_ANY;
    if (s->memory == DCOMMI_MEMORY_DEVICE && comm->device_ucx) {
        s->memory = DCOMMI_MEMORY_UCX;
    }
    if (dcommi_memory_of_device(s->memory) && s->chunk_bytes == 0) {
        s->chunk_bytes = DCOMMI_SLOT_BYTES; /* bytes that cross the bus at a time, on every rank */
    }
    return DCOMM_OK;
}

static dcomm_status dcommi_check_buffer(const dcommi_shape *s, const char *name, const void *buffer,
                                        int64_t bytes)
{
    return buffer == NULL && bytes > 0
               ? dcommi_fail(DCOMM_ERR_INVALID, "%s: %s is NULL and %" PRId64 " bytes long",
                             dcomm_coll_name(s->coll), name, bytes)
               : DCOMM_OK;
}

/* ---- devices and streams ---- */

static void dcommi_place_text(int number, char *text, size_t len)
{
    if (number < 0) {
        snprintf(text, len, "in host memory");
    } else {
        snprintf(text, len, "on device %d", number);
    }
}

/* Find where the buffers of a call lie, and check that they lie in the same memory. *device_p
 * NULL: host memory. Without a stream, wait for the default one: cudaMemcpy returns before the
 * bytes are there. */
static dcomm_status dcommi_call_place(dcomm_comm *comm, const dcommi_shape *s, const void *in,
                                      int64_t in_bytes, const void *out, int64_t out_bytes,
                                      const dcomm_coll_opts *opts, dcommi_device **device_p)
{
    const char *name = dcomm_coll_name(s->coll);
    *device_p = NULL;
    if (opts->stream != NULL) {
        if (dcommi_devices == NULL) {
            return dcommi_fail(DCOMM_ERR_UNSUPPORTED,
                               "%s: opts.stream needs an implementation built with DCOMM_WITH_CUDA",
                               name);
        }
        DCOMMI_TRY(dcommi_devices->stream_check(name, opts->stream));
        DCOMMI_TRY(dcommi_context_need_thread(comm->context));
    }
    int from = in_bytes > 0 ? dcommi_device_locate(in) : -2;
    int to = out_bytes > 0 ? dcommi_device_locate(out) : -2;
    int number = from > to ? from : to;
    if (DCOMMI_LIKELY(number < 0)) {
        return DCOMM_OK;
    }
    if (from != to && from != -2 && to != -2) {
        char in_text[32], out_text[32];
        dcommi_place_text(from, in_text, sizeof in_text);
        dcommi_place_text(to, out_text, sizeof out_text);
        return dcommi_fail(DCOMM_ERR_INVALID,
                           "%s: sendbuf lies %s and recvbuf %s; they must lie together", name,
                           in_text, out_text);
    }
    size_t element = dcommi_dtype_is_opaque(s->dtype) ? 1 : dcomm_dtype_size(s->dtype);
    if ((in_bytes > 0 && (uintptr_t)in % element != 0) ||
        (out_bytes > 0 && (uintptr_t)out % element != 0)) {
        return dcommi_fail(
            DCOMM_ERR_INVALID,
            "%s: %s on device %d is not aligned to the %zu bytes of its elements", name,
            in_bytes > 0 && (uintptr_t)in % element != 0 ? "sendbuf" : "recvbuf", number, element);
    }
    if (s->op >= DCOMM_OP_USER) {
        return dcommi_fail(DCOMM_ERR_UNSUPPORTED,
                           "%s: an operator of the caller's own works on host memory, and sendbuf "
                           "or recvbuf lies on device %d",
                           name, number);
    }
    if (opts->stream == NULL) {
        DCOMMI_TRY(dcommi_default_await(name, comm->context, number,
                                        opts->timeout_s > 0 ? opts->timeout_s : comm->timeout_s));
    }
    DCOMMI_TRY(dcommi_device_of(comm->context, number, device_p));
    dcommi_memory_serve(comm->context, *device_p);
    dcommi_shared_reclaim();
    return DCOMM_OK;
}

/* Return true if a factor, or a conversion, is applied to the input before it is summed. */
static bool dcommi_call_factored(const dcommi_shape *s)
{
    return s->coding != NULL ? s->apart : s->op == DCOMM_PREMUL_SUM && dcommi_coll_folds(s->coll);
}

/* Find the plan of a shape in the cache, or make it. The caller holds comm->lock. */
static dcomm_status dcommi_plan_find(dcomm_comm *comm, const dcommi_shape *s,
                                     const dcommi_call_key *key, const char *forced,
                                     dcommi_cached **cached_p)
{
    *cached_p = dcommi_cache_find(comm, key, forced);
    if (DCOMMI_LIKELY(*cached_p != NULL)) {
        comm->stats.plans_reused++;
        return DCOMM_OK;
    }
    const dcommi_algo *algo = NULL;
    DCOMMI_TRY(dcommi_algo_pick(s, forced != NULL ? forced : comm->algo, forced == NULL,
                                comm->chooser, &algo));
    dcomm_plan *plan = NULL, *inner = NULL;
    if (dcommi_call_factored(s)) { /* this plan contains the plan of the sum itself */
        dcommi_shape sum = *s;
        sum.in_place = s->coding != NULL && s->coll == DCOMM_COLL_ALLREDUCE;
        if (s->coding != NULL) {
            sum.dtype = DCOMM_F32;
            sum.op = s->op == DCOMM_PREMUL_SUM ? DCOMM_SUM : s->op;
        }
        DCOMMI_TRY(dcommi_plan_make(&sum, algo, &inner));
        dcomm_status status = dcommi_plan_factored(s, inner, &plan);
        if (status < 0) {
            dcommi_free(inner);
            return status;
        }
    } else {
        DCOMMI_TRY(dcommi_plan_make(s, algo, &plan));
    }
    /* Keep string literals, which outlive the call. "" and "auto" leave the choice to the
     * communicator. */
    const char *asked = forced == NULL                    ? NULL
                        : strcmp(forced, algo->name) == 0 ? algo->name
                        : forced[0] == 0                  ? ""
                                                          : "auto";
    *cached_p = dcommi_cache_add(comm, key, asked, plan, inner);
    if (*cached_p == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    (*cached_p)->signature = (dcommi_signature){.hash = dcommi_shape_signature(s, algo),
                                                .coll = (uint8_t)s->coll,
                                                .dtype = (uint32_t)s->dtype,
                                                .op = (uint32_t)s->op,
                                                .root = s->root,
                                                .count = s->count,
                                                .algo = algo->name};
    if (s->coll != DCOMM_COLL_SEND && s->coll != DCOMM_COLL_RECV) {
        (*cached_p)->script = dcommi_script_make(comm, plan);
    }
    return DCOMM_OK;
}

/* ---- the call ---- */

/* Return true for the most frequent calls, whose callers try the fast path before any check.
 * Exclude an operator of the caller's, which must be held first, and a factor, which must be
 * read. */
static inline bool dcommi_fast_first(dcomm_coll coll, dcomm_op op)
{
    return op <= DCOMM_AVG && (coll <= DCOMM_COLL_BROADCAST || coll == DCOMM_COLL_ALLTOALL ||
                               coll == DCOMM_COLL_BARRIER);
}

/* Try a call on the fast path, by its key. */
static inline dcomm_status dcommi_call_fast(dcomm_comm *comm, const dcommi_call_key *key,
                                            const dcomm_coll_opts *opts, const void *in, void *out)
{
    const bool limited = opts != NULL && opts->timeout_s > 0;
    return dcommi_fast_call(comm, key, opts != NULL ? opts->algo : NULL, in, out,
                            limited ? opts->timeout_s : comm->timeout_s);
}

static dcommi_factor dcommi_factor_of(const dcomm_coll_opts *opts, dcomm_op op, dcomm_dtype dtype)
{
    return op != DCOMM_PREMUL_SUM ? dcommi_factor_plain(1, dtype)
           : opts->premul_p != NULL
               ? dcommi_factor_read(opts->premul_p, dtype)
               : dcommi_factor_plain(opts->premul != 0 ? opts->premul : 1, dtype);
}

/* Run a checked shape; the caller holds its operator (see dcommi_collective). */
static dcomm_status dcommi_collective_held(dcomm_comm *comm, const dcommi_shape *s, const void *in,
                                           void *out, int p2p, const dcomm_coll_opts *opts,
                                           dcomm_request **request_p)
{
    dcommi_cached *cached = NULL;
    dcommi_device *device = NULL;
    double timeout_s = opts->timeout_s > 0 ? opts->timeout_s : comm->timeout_s;
    if (dcommi_devices != NULL || opts->stream != NULL) {
        int64_t in_bytes, out_bytes;
        dcommi_shape_spaces(s, &in_bytes, &out_bytes);
        DCOMMI_TRY(dcommi_call_place(comm, s, in, in_bytes, out, out_bytes, opts, &device));
    }
    if (s->coding != NULL && opts->feedback != NULL) {
        DCOMMI_TRY(dcommi_feedback_follow(dcomm_coll_name(s->coll), opts->feedback,
                                          device != NULL ? device->handle.number : -1));
    }
    union dcommi_late *late = NULL;
    if (dcommi_call_factored(s) && opts->premul_on_stream) {
        DCOMMI_TRY(dcommi_late_copy(opts->stream, opts->premul_p, s->dtype, &late));
    }
    const dcommi_call_key key = dcommi_shape_key(s, opts);
    if (device == NULL && p2p < 0 && !dcommi_fast_first(s->coll, s->op) &&
        dcommi_fast_asked(comm, opts, request_p)) {
        dcomm_status fast = dcommi_call_fast(comm, &key, opts, in, out);
        if (fast != DCOMM_IN_PROGRESS) {
            return fast;
        }
    }
    dcommi_comm_lock(comm);
    dcomm_status status = dcommi_plan_find(comm, s, &key, opts->algo, &cached);
    if (status < 0) {
        dcommi_comm_unlock(comm);
        return status;
    }
    dcommi_coded *coded = NULL;
    if (s->coding != NULL) {
        status = dcommi_coded_new(comm, opts, &coded);
    }
    dcommi_run *run = NULL;
    if (status < 0) {
        dcommi_cached_release(cached);
    } else if ((run = dcommi_run_of(comm, cached, in, out)) == NULL) {
        dcommi_coded_drop(comm, coded);
        status = DCOMM_ERR_NO_MEMORY;
    }
    if (status < 0) {
        dcommi_comm_unlock(comm);
        return status;
    }
    run->device = device;
    dcommi_run_stream(run, opts->stream);
    run->factored = dcommi_call_factored(s);
    run->late = late;
    if (run->factored && late == NULL) {
        run->factor = dcommi_factor_of(opts, s->op, s->dtype);
    }
    if (coded != NULL) {
        dcommi_coded_numbered(coded, opts, run->plan, comm->next_seq);
        coded->device = device != NULL ? &device->handle : NULL;
        run->signature.hash ^= dcommi_coded_agreed(coded);
        run->coded = coded;
    }
    if (p2p < 0) {
        run->seq = dcommi_number(comm, &run->signature);
    } else {
        run->stream = DCOMMI_STREAM_P2P;
        run->p2p_peer = p2p;
        dcommi_member *m = &comm->members[p2p];
        run->seq =
            atomic_fetch_add(s->coll == DCOMM_COLL_SEND ? &m->p2p_sent : &m->p2p_received, 1);
    }
    dcommi_comm_unlock(comm);
    return dcommi_run_launch(run, timeout_s, request_p);
}

/* Hold an operator for the call `name`, or fail if there is no such operator. */
static dcomm_status dcommi_check_op_hold(const char *name, dcomm_op op)
{
    return dcommi_op_hold(op)
               ? DCOMM_OK
               : dcommi_fail(DCOMM_ERR_INVALID, "%s: there is no op %d", name, (int)op);
}

/* Run a checked shape on its buffers. `p2p` is the other rank of SEND and RECV, else -1. */
static dcomm_status dcommi_collective(dcomm_comm *comm, const dcommi_shape *s, const void *in,
                                      void *out, int p2p, const dcomm_coll_opts *opts,
                                      dcomm_request **request_p)
{
    DCOMMI_TRY(dcommi_check_op_hold(dcomm_coll_name(s->coll), s->op));
    dcomm_status status = dcommi_collective_held(comm, s, in, out, p2p, opts, request_p);
    dcommi_op_drop(s->op);
    return status;
}

#endif
