/* call.h - what every collective call does: check the arguments, pick the algorithm, find or make
 * the plan, number the operation, hand it to the engine. */
#ifndef DCOMMI_CALL_H
#define DCOMMI_CALL_H

#include "../engine/fast/express.h"
#include "../engine/coded/device.h"
#include "comm.h"

/* ---- checks ---- */

static const dcomm_coll_opts dcommi_default_opts;

static inline enum dcommi_memory dcommi_opts_memory(const dcomm_coll_opts *opts)
{
    return opts == NULL       ? DCOMMI_MEMORY_ANY
           : opts->device     ? (opts->registered ? DCOMMI_MEMORY_OPEN : DCOMMI_MEMORY_DEVICE)
           : opts->registered ? DCOMMI_MEMORY_REGISTERED
           : opts->huge_pages ? DCOMMI_MEMORY_HUGE
                              : DCOMMI_MEMORY_ANY;
}

/* Fill in the parts of a shape that all calls have, and check them. */
static dcomm_status dcommi_shape_begin(dcomm_comm *comm, dcomm_coll coll, size_t count,
                                       dcomm_dtype dtype, dcomm_op op, int root,
                                       const dcomm_coll_opts *opts, dcommi_shape *s)
{
    DCOMMI_TRY(dcommi_check_comm(comm));
    const char *name = dcomm_coll_name(coll);
    size_t element = dcomm_dtype_size(dtype);
    if (element == 0) {
        return dcommi_fail(DCOMM_ERR_INVALID, "%s: dtype is %d, which is none", name, (int)dtype);
    }
    if (!dcommi_op_known(op)) {
        return dcommi_fail(DCOMM_ERR_INVALID, "%s: op is %d, which is none", name, (int)op);
    }
    if (DCOMMI_UNLIKELY(dcommi_dtype_is_opaque(dtype)) && dcommi_coll_folds(coll) &&
        !dcommi_op_is_user(op)) {
        return dcommi_fail(
            DCOMM_ERR_UNSUPPORTED,
            "%s: op is %s and dtype an opaque one of %zu bytes, which only operators "
            "of the caller's own reduce (dcomm_op_create)",
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
        return dcommi_fail(DCOMM_ERR_INVALID, "%s: opts.timeout_s is %g, opts.chunk_bytes %zu",
                           name, opts->timeout_s, opts->chunk_bytes);
    }
    if (DCOMMI_UNLIKELY((opts->codec != NULL || opts->feedback != NULL) &&
                        coll != DCOMM_COLL_ALLREDUCE)) {
        return dcommi_fail(DCOMM_ERR_UNSUPPORTED, "%s has no compressed form; all-reduce has",
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
        s->chunk_bytes = dcommi_ceil_div(s->chunk_bytes, 64) * 64; /* whole lines */
    }
    bool once = opts->accumulate == DCOMM_F32 && (dtype == DCOMM_F16 || dtype == DCOMM_BF16);
    s->rank_order = dcommi_coll_folds(coll) &&
                    (opts->deterministic || comm->deterministic || once || dcommi_op_ordered(op));
    s->memory = coll != DCOMM_COLL_BARRIER ? dcommi_opts_memory(opts) : DCOMMI_MEMORY_ANY;
    if (s->memory == DCOMMI_MEMORY_DEVICE && comm->device_ucx) {
        s->memory = DCOMMI_MEMORY_UCX;
    }
    if (dcommi_memory_of_device(s->memory) && s->chunk_bytes == 0) {
        s->chunk_bytes = DCOMMI_SLOT_BYTES; /* what goes over the bus at a time, on every rank */
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

/* Where the buffers of a call lie, all on one side: *device_p NULL is the host's memory. */
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
    DCOMMI_TRY(dcommi_device_of(comm->context, number, device_p));
    dcommi_memory_serve(comm->context, *device_p);
    dcommi_shared_reclaim();
    return DCOMM_OK;
}

/* ---- keys ---- */

static void dcommi_mix_counts(uint64_t key[2], const size_t *values, int n)
{
    for (int i = 0; values != NULL && i < n; i++) {
        key[0] = dcommi_mix(key[0], values[i]);
        key[1] = dcommi_mix(key[1], values[i] ^ 0x5bd1e9955bd1e995u);
    }
}

/* What the ranks must agree on, as a number. */
static uint32_t dcommi_shape_signature(const dcommi_shape *s, const dcommi_algo *algo)
{
    if (s->coll == DCOMM_COLL_SEND || s->coll == DCOMM_COLL_RECV) { /* one's is the other's */
        uint64_t pair = dcommi_mix(s->count, (uint64_t)s->dtype);
        return (uint32_t)(pair ^ (pair >> 32));
    }
    uint64_t h = dcommi_mix((uint64_t)s->dtype << 32 | (uint64_t)s->op, s->count);
    h = dcommi_mix(h, (uint64_t)s->coll);
    h = dcommi_mix(h, (uint64_t)s->root << 32 | (uint64_t)s->lanes << 8 |
                          (uint64_t)(s->memory >= DCOMMI_MEMORY_REGISTERED) << 1 | s->rank_order);
    h = dcommi_mix(h, (uint64_t)s->chunk_bytes);
    if (s->coding != NULL) {
        h = dcommi_mix(dcommi_mix(h, s->coding->hash), (uint64_t)(algo - dcommi_coded_table));
    } else {
        h = dcommi_mix(h, (uint64_t)(algo - dcommi_algo_table));
    }
    uint64_t key[2] = {h, h};
    if (s->send_counts == NULL) { /* all-to-all-v: each pair of ranks has counts of its own */
        dcommi_mix_counts(key, s->counts, s->nranks);
    }
    dcommi_mix_counts(key, s->matrix, s->nranks * s->nranks);
    h = key[0];
    return (uint32_t)(h ^ (h >> 32));
}

static dcommi_plan_key dcommi_shape_key(const dcommi_shape *s, const char *algo)
{
    dcommi_plan_key key = {.call = (uint64_t)(uint32_t)s->root << 32 | (uint64_t)s->coll,
                           .type = (uint64_t)s->dtype << 32 | (uint64_t)s->op,
                           .mode = (uint64_t)s->lanes << 8 | (uint64_t)s->memory << 2 |
                                   (uint64_t)s->rank_order << 1 | s->in_place,
                           .count = s->count,
                           .chunk = (uint64_t)s->chunk_bytes};
    for (; algo != NULL && *algo != 0; algo++) {
        key.mode = key.mode * 0x100000001b3u ^ (uint8_t)*algo;
    }
    if (s->coding != NULL) {
        key.counts[0] = s->coding->hash;
        key.counts[1] = 1 | (uint64_t)s->apart << 1 | (uint64_t)s->coding->feedback << 2 |
                        (uint64_t)s->coding->variant << 3 | (uint64_t)s->coding->clips << 4;
    }
    if (s->counts != NULL) {
        key.counts[0] = 1;
        key.counts[1] = 2;
        dcommi_mix_counts(key.counts, s->counts, s->nranks);
        dcommi_mix_counts(key.counts, s->displs, s->nranks);
        dcommi_mix_counts(key.counts, s->send_counts, s->nranks);
        dcommi_mix_counts(key.counts, s->send_displs, s->nranks);
        dcommi_mix_counts(key.counts, s->matrix, s->nranks * s->nranks);
    }
    return key;
}

/* ---- submission ---- */

/* With comm->lock. */
static dcommi_run *dcommi_run_new(dcomm_comm *comm)
{
    dcommi_run *run = comm->free_runs;
    if (run != NULL) {
        comm->free_runs = run->next;
        uint8_t *memory = run->memory;
        size_t memory_len = run->memory_len;
        dcommi_zero(run, sizeof *run);
        run->memory = memory;
        run->memory_len = memory_len;
    } else {
        run = dcommi_alloc(sizeof(dcomm_request));
        if (run == NULL) {
            return NULL;
        }
    }
    run->comm = comm;
    atomic_store_explicit(&run->refs, 2, memory_order_relaxed); /* its user's and the engine's */
    atomic_store_explicit(&run->status, DCOMM_IN_PROGRESS, memory_order_relaxed);
    comm->refs++;
    return run;
}

/* The sentence of a run that has failed: its verdict, who has refused it, or why the communicator
 * is poisoned. */
static void dcommi_run_why(const dcommi_run *run, dcomm_status status)
{
    const char *call = dcomm_coll_name((dcomm_coll)run->signature.coll);
    if (run->why != NULL && status == DCOMM_ERR_MISMATCH) {
        dcommi_fail(status, "%s", run->why);
    } else if (DCOMMI_LIKELY(run->verdict != status)) {
        dcommi_fail(status, "%s", run->comm->message);
    } else if (run->verdict_rank == run->comm->rank) {
        dcommi_fail(status, "%s #%" PRIu64 ", rank %d: %s", call, run->seq, run->verdict_rank,
                    run->coded->said);
    } else {
        dcommi_fail(status, "%s #%" PRIu64 ": rank %d found %s; its own error names the first",
                    call, run->seq, run->verdict_rank,
                    status == DCOMM_ERR_RANGE ? "sums of finite numbers that are beyond f32"
                                              : "inputs that are not finite");
    }
}

static dcomm_status dcommi_run_wait(dcommi_run *run)
{
    int status;
    while ((status = atomic_load_explicit(&run->status, memory_order_acquire)) ==
           DCOMM_IN_PROGRESS) {
        dcommi_progress_for(run->comm->context, run);
    }
    if (status < 0) {
        dcommi_run_why(run, (dcomm_status)status);
        if (atomic_load_explicit(&run->comm->poisoned, memory_order_relaxed) != 0) {
            atomic_store_explicit(&run->comm->told, true, memory_order_relaxed);
        }
    }
    dcommi_run_unref(run);
    return (dcomm_status)status;
}

/* The same within the call that started the run: if it fails, the call was none that is refused. */
static dcomm_status dcommi_run_wait_here(dcommi_run *run)
{
    dcomm_status status = dcommi_run_wait(run);
    if (DCOMMI_UNLIKELY(status < 0)) {
        dcommi_this_group.ran = true;
    }
    return status;
}

/* The stream that a run is to be tied to; NULL: none. */
static void dcommi_run_stream(dcommi_run *run, void *stream)
{
    if (DCOMMI_UNLIKELY(stream != NULL)) {
        run->gate.stream = stream;
        run->gate.device = dcommi_devices->current();
    }
}

/* Tie a run to its stream by one half of the gate. It has its number: if that fails, other ranks
 * must not wait for it. */
static dcomm_status dcommi_run_tie(dcommi_run *run, dcomm_status (*half)(dcommi_run *))
{
    dcomm_status status = half(run);
    if (status < 0) {
        char why[DCOMMI_MESSAGE_MAX];
        memcpy(why, dcommi_message, sizeof why);
        dcomm_comm_abort(run->comm, why);
        dcommi_fail(status, "%s", why);
    }
    return status;
}

/* Start a run in the order of its stream. Nobody waits for a blocking one: its stream does. */
static dcomm_status dcommi_run_put(dcommi_run *run)
{
    bool blocking = run->blocking;
    dcomm_status status = dcommi_run_tie(run, dcommi_gate_mark);
    if (status >= 0) {
        status = dcommi_run_tie(run, dcommi_gate_hold);
    }
    dcommi_submit(run->comm->context, run);
    if (blocking) {
        dcommi_run_unref(run);
    }
    return status;
}

/* A run is filled in and numbered: start it, or queue it in the thread's group. request_p NULL:
 * the call is blocking. */
static dcomm_status dcommi_run_launch(dcommi_run *run, double timeout_s, dcomm_request **request_p)
{
    dcommi_group *group = &dcommi_this_group;
    run->timeout_s = timeout_s;
    run->blocking = request_p == NULL;
    if (request_p != NULL) {
        *request_p = (dcomm_request *)run;
    }
    if (group->depth > 0) {
        run->queued = true;
        *(group->last != NULL ? &group->last->next_group : &group->first) = run;
        group->last = run;
        return DCOMM_OK;
    }
    if (DCOMMI_UNLIKELY(run->gate.stream != NULL)) {
        return dcommi_run_put(run);
    }
    dcommi_submit(run->comm->context, run);
    return request_p == NULL ? dcommi_run_wait_here(run) : DCOMM_OK;
}

/* Take the number of a collective that this rank refuses, and tell the others why: they must not
 * wait for it. */
static void dcommi_refuse(dcomm_comm *comm)
{
    char why[DCOMMI_MESSAGE_MAX];
    memcpy(why, dcommi_message, sizeof why);
    dcommi_comm_lock(comm);
    dcommi_run *run = dcommi_run_new(comm);
    if (run != NULL) {
        run->refused = true;
        run->why = dcommi_strdup(why);
        run->stream = DCOMMI_STREAM_COLL;
        run->seq = comm->next_seq++;
        comm->chain = 0; /* the others have no signature of it from here */
    }
    dcommi_comm_unlock(comm);
    if (run == NULL || run->why == NULL) {
        dcomm_comm_abort(comm, why);
    }
    if (run != NULL) {
        dcommi_submit(comm->context, run);
        dcommi_run_unref(run);
    }
    memcpy(dcommi_message, why, sizeof why);
}

/* A call has failed. Unless its run had been started, or the communicator has failed, this rank
 * refuses it. Within a group the error also becomes the group's. comm NULL: not a collective. */
static dcomm_status dcommi_call_failed(dcomm_comm *comm, dcomm_status status)
{
    dcommi_group *group = &dcommi_this_group;
    const bool ran = group->ran;
    group->ran = false;
    if (comm != NULL && status != DCOMM_ERR_FORKED && !ran &&
        atomic_load_explicit(&comm->ready, memory_order_acquire) == DCOMM_OK && comm->size > 1 &&
        atomic_load(&comm->poisoned) == 0 && atomic_load(&comm->abort_wanted) == 0) {
        dcommi_refuse(comm);
    }
    if (group->depth > 0 && group->status == DCOMM_OK) {
        group->status = status;
        memcpy(group->message, dcommi_message, sizeof group->message);
    }
    return status;
}

/* The plan of a shape, from the cache or made now; with comm->lock. */
static dcomm_status dcommi_plan_find(dcomm_comm *comm, const dcommi_shape *s, const char *forced,
                                     dcommi_cached **cached_p)
{
    dcommi_plan_key key = dcommi_shape_key(s, forced);
    *cached_p = dcommi_cache_find(comm, &key);
    if (DCOMMI_LIKELY(*cached_p != NULL)) {
        return DCOMM_OK;
    }
    const dcommi_algo *algo = NULL;
    DCOMMI_TRY(dcommi_algo_pick(s, forced != NULL ? forced : comm->algo, forced == NULL,
                                comm->chooser, &algo));
    dcomm_plan *plan = NULL, *inner = NULL;
    if (s->coding != NULL && s->apart) {
        dcommi_shape sum = *s;
        sum.dtype = DCOMM_F32;
        sum.op = s->op == DCOMM_PREMUL_SUM ? DCOMM_SUM : s->op;
        sum.in_place = true;
        DCOMMI_TRY(dcommi_plan_make(&sum, algo, &inner));
        dcomm_status status = dcommi_plan_coded(s, inner, &plan);
        if (status < 0) {
            dcommi_free(inner);
            return status;
        }
    } else if (s->op == DCOMM_PREMUL_SUM && dcommi_coll_folds(s->coll)) {
        dcommi_shape sum = *s;
        sum.in_place = false;
        DCOMMI_TRY(dcommi_plan_make(&sum, algo, &inner));
        dcomm_status status = dcommi_plan_premul(s, inner, &plan);
        if (status < 0) {
            dcommi_free(inner);
            return status;
        }
    } else {
        DCOMMI_TRY(dcommi_plan_make(s, algo, &plan));
    }
    *cached_p = dcommi_cache_add(comm, &key, plan, inner);
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

/* A run of a cached plan, whose reference it takes over; with comm->lock. */
static dcommi_run *dcommi_run_of(dcomm_comm *comm, dcommi_cached *cached, const void *in, void *out)
{
    dcommi_run *run = dcommi_run_new(comm);
    if (run == NULL) {
        dcommi_cached_release(comm, cached);
        return NULL;
    }
    dcommi_op_hold((dcomm_op)cached->plan->op); /* as its caller does */
    run->op = (dcomm_op)cached->plan->op;
    run->cached = cached;
    run->plan = cached->plan;
    run->signature = cached->signature;
    run->stream = DCOMMI_STREAM_COLL;
    run->p2p_peer = -1;
    run->in = in;
    run->out = out;
    return run;
}

/* A numbered run of a plan that is not from the cache, whose operator is held and is the run's from
 * now on; NULL without memory. */
static dcommi_run *dcommi_run_of_plan(dcomm_comm *comm, const dcomm_plan *plan, const void *in,
                                      void *out, uint32_t signature)
{
    dcommi_comm_lock(comm);
    dcommi_run *run = dcommi_run_new(comm);
    if (run != NULL) {
        run->op = (dcomm_op)plan->op;
        run->plan = plan;
        run->in = in;
        run->out = out;
        run->signature = (dcommi_signature){.hash = signature,
                                            .coll = DCOMM_COLL_PLAN,
                                            .dtype = plan->dtype,
                                            .op = plan->op,
                                            .algo = plan->name};
        run->p2p_peer = -1;
        run->seq = dcommi_number(comm, &run->signature);
    }
    dcommi_comm_unlock(comm);
    return run;
}

/* ---- scripts ---- */

/* The engine takes over at op k. With the token, which it gives back. */
static dcomm_status dcommi_express_leave(dcommi_express *e, uint32_t k, double timeout_s)
{
    dcomm_comm *comm = e->comm;
    dcomm_context *context = comm->context;
    dcommi_comm_lock(comm);
    e->cached->refs++;
    dcommi_run *run =
        dcommi_run_of(comm, e->cached, e->base[DCOMM_SPACE_IN], e->base[DCOMM_SPACE_OUT]);
    dcommi_comm_unlock(comm);
    if (run == NULL) {
        dcommi_poison(comm, DCOMM_ERR_NO_MEMORY, -1, dcommi_message);
        dcommi_token_release(context);
        return DCOMM_ERR_NO_MEMORY;
    }
    run->seq = e->seq;
    run->signature = e->signature;
    run->timeout_s = timeout_s;
    run->blocking = true;
    dcommi_run_start(run);
    if (run->active) {
        dcommi_express_resume(e, run, k);
    }
    dcommi_progress(context);
    dcommi_token_release(context);
    return dcommi_run_wait_here(run);
}

/* Run the script of a plan that is held by a reference. With the token, which it gives back. */
static inline dcomm_status dcommi_express_go(dcommi_express *e, double timeout_s)
{
    dcomm_comm *comm = e->comm;
    uint32_t k = dcommi_express_run(e);
    if (DCOMMI_UNLIKELY(k < e->cached->script->nops)) {
        dcomm_status status = dcommi_express_leave(e, k, timeout_s);
        atomic_store_explicit(&comm->running, NULL, memory_order_release);
        return status;
    }
    atomic_store_explicit(&comm->running, NULL, memory_order_release);
    dcommi_token_release(comm->context);
    return DCOMM_OK;
}

/* A call in a few numbers, by which a recent one is known. Never 0; 1: none that could be. */
static inline uint64_t dcommi_call_code(dcomm_coll coll, dcomm_dtype dtype, dcomm_op op, int root,
                                        bool in_place, enum dcommi_memory memory)
{
    if (DCOMMI_UNLIKELY((unsigned)dtype > 255 || (unsigned)op > 255)) {
        return 1;
    }
    return (uint64_t)1 << 63 | (uint64_t)memory << 60 | (uint64_t)(uint32_t)root << 25 |
           (uint64_t)in_place << 24 | (uint64_t)coll << 16 | (uint64_t)dtype << 8 | (uint64_t)op;
}

/* Options that say nothing, but for an algorithm's name and what is in the call's code. */
static inline bool dcommi_opts_plain(const dcomm_coll_opts *opts)
{
    return opts == NULL || (!opts->deterministic && opts->timeout_s == 0 && opts->premul == 0 &&
                            opts->accumulate == 0 && opts->lanes == 0 && opts->chunk_bytes == 0 &&
                            opts->codec == NULL && opts->feedback == NULL && opts->stream == NULL);
}

/* Whether a call may be one of those. */
static inline bool dcommi_call_recent(const dcomm_comm *comm, const dcomm_coll_opts *opts,
                                      dcomm_request *const *request_p)
{
    return request_p == NULL && dcommi_opts_plain(opts) && comm != NULL &&
           atomic_load_explicit(&comm->ready, memory_order_acquire) == DCOMM_OK;
}

/* A blocking call with plain options that was made a moment ago, with buffers elsewhere perhaps.
 * DCOMM_IN_PROGRESS: it must go the long way. */
static inline dcomm_status dcommi_call_again(dcomm_comm *comm, uint64_t code, size_t count,
                                             const dcomm_coll_opts *opts, const void *in, void *out)
{
    dcommi_express e;
    if (dcommi_this_group.depth > 0 || dcommi_device_locate(in) >= 0 ||
        dcommi_device_locate(out) >= 0 ||
        atomic_load_explicit(&dcommi_forked, memory_order_relaxed) != 0 ||
        !dcommi_token_enter(comm->context)) {
        return DCOMM_IN_PROGRESS;
    }
    dcommi_cached *cached = dcommi_recent_find(comm, code, count, opts != NULL ? opts->algo : NULL);
    if (cached != NULL && dcommi_express_able(comm, cached->script) &&
        dcommi_express_begin(&e, comm, cached, in, out)) {
        comm->stats.plans_reused++;
        return dcommi_express_go(&e, comm->timeout_s);
    }
    dcommi_token_release(comm->context);
    return DCOMM_IN_PROGRESS;
}

/* ---- the call ---- */

static dcommi_factor dcommi_factor_of(const dcomm_coll_opts *opts, dcomm_op op, dcomm_dtype dtype)
{
    return op != DCOMM_PREMUL_SUM ? dcommi_factor_plain(1, dtype)
           : opts->premul_p != NULL
               ? dcommi_factor_read(opts->premul_p, dtype)
               : dcommi_factor_plain(opts->premul != 0 ? opts->premul : 1, dtype);
}

/* The call itself: dcommi_collective with the operator held. */
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
    dcommi_comm_lock(comm);
    dcomm_status status = dcommi_plan_find(comm, s, opts->algo, &cached);
    if (status < 0) {
        dcommi_comm_unlock(comm);
        return status;
    }
    if (cached->script != NULL && request_p == NULL && dcommi_this_group.depth == 0 &&
        device == NULL && opts->stream == NULL) {
        const char *named = opts->algo != NULL ? cached->signature.algo : NULL;
        if (dcommi_opts_plain(opts) && s->op <= DCOMM_AVG && !dcommi_dtype_is_opaque(s->dtype) &&
            (named == NULL || strcmp(named, opts->algo) == 0)) {
            uint64_t code =
                dcommi_call_code(s->coll, s->dtype, s->op, s->root, s->in_place, s->memory);
            if (dcommi_recent_find(comm, code, s->count, named) == NULL) {
                dcommi_recent_set(comm, code, s->count, named, cached);
            }
        }
        if (dcommi_token_try(comm->context)) {
            dcommi_express e;
            if (dcommi_express_able(comm, cached->script) &&
                dcommi_express_begin(&e, comm, cached, in, out)) {
                dcommi_comm_unlock(comm);
                status = dcommi_express_go(&e, timeout_s);
                dcommi_comm_lock(comm);
                dcommi_cached_release(comm, cached);
                dcommi_comm_unlock(comm);
                return status;
            }
            dcommi_token_release(comm->context);
        }
    }
    dcommi_coded *coded = NULL;
    if (s->coding != NULL) {
        status = dcommi_coded_new(comm, opts, &coded);
    }
    dcommi_run *run = NULL;
    if (status < 0) {
        dcommi_cached_release(comm, cached);
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
    run->factored =
        s->coding != NULL ? s->apart : s->op == DCOMM_PREMUL_SUM && dcommi_coll_folds(s->coll);
    if (run->factored) {
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

/* Hold an operator for a call by name, or say that there is none. */
static dcomm_status dcommi_check_op_hold(const char *name, dcomm_op op)
{
    return dcommi_op_hold(op)
               ? DCOMM_OK
               : dcommi_fail(DCOMM_ERR_INVALID, "%s: op is %d, which is none", name, (int)op);
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
