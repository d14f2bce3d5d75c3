/* engine.h - the only progress loop: starts runs, hands arrivals to them, runs their lanes,
 * finishes them. Whoever holds the context's token is in here, one thread at a time. */
#ifndef DCOMMI_ENGINE_H
#define DCOMMI_ENGINE_H

#include "failure.h"

#include <sched.h>

#define DCOMMI_CHECK_EVERY 0.05 /* seconds between looks at idle runs */
#define DCOMMI_TURN 64          /* passes in a row by one waiting thread */
/* What is kept for communicators that do not exist here yet. */
#define DCOMMI_STRAYS_MAX 65536
#define DCOMMI_STRAY_BYTES_MAX ((size_t)256 << 20)

/* ---- the life of a run ---- */

static void dcommi_cached_release(dcomm_comm *comm, dcommi_cached *cached);

/* Drop a reference; the last one gives the run back to its communicator. */
static void dcommi_run_unref(dcommi_run *run)
{
    if (atomic_fetch_sub_explicit(&run->refs, 1, memory_order_acq_rel) != 1) {
        return;
    }
    dcomm_comm *comm = run->comm;
    while (run->pulls != NULL) {
        dcommi_pull_free(run->pulls);
    }
    while (run->children != NULL) { /* of a run that failed: transfers used their scratch */
        dcommi_frame *frame = run->children;
        run->children = frame->next;
        dcommi_free(frame);
    }
    pthread_mutex_lock(&comm->lock);
    if (run->cached != NULL) {
        dcommi_cached_release(comm, run->cached);
        run->cached = NULL;
    }
    run->next = comm->free_runs;
    comm->free_runs = run;
    bool last = --comm->refs == 0;
    pthread_mutex_unlock(&comm->lock);
    if (last) {
        dcommi_comm_free(comm);
    }
}

/* Memory for a plan's lanes, words, counters, offers and scratch, kept from run to run. Words are
 * zero but for those that a stage before left. */
static dcomm_status dcommi_run_bind(dcommi_run *run, const dcomm_plan *plan, const uint64_t *words,
                                    uint32_t nwords)
{
    size_t lanes = (plan->nlanes * sizeof(dcommi_lane) + 63) & ~(size_t)63;
    size_t word_bytes = (plan->nwords * sizeof(uint64_t) + 63) & ~(size_t)63;
    size_t counters = (plan->ncounters * sizeof(uint64_t) + 63) & ~(size_t)63;
    size_t offers = (plan->nslots * sizeof(*run->offers) + 63) & ~(size_t)63;
    size_t zeroed = lanes + word_bytes + counters + offers;
    size_t need = zeroed + (size_t)plan->scratch_bytes;
    if (run->memory_len < need) {
        uint8_t *bigger = dcommi_alloc_raw(need);
        if (bigger == NULL) {
            return DCOMM_ERR_NO_MEMORY;
        }
        dcommi_free(run->memory);
        run->memory = bigger;
        run->memory_len = need;
    }
    uint8_t *memory = run->memory;
    if (zeroed > 0) {
        dcommi_zero(memory, zeroed);
    }
    run->plan = plan;
    dcommi_frame *root = &run->root;
    dcommi_zero(root, sizeof *root);
    dcommi_frame_bind(root, run, plan, (dcommi_lane *)memory);
    root->words = (uint64_t *)(memory + lanes);
    run->counters = (uint64_t *)(memory + lanes + word_bytes);
    run->offers = (struct dcommi_offer *)(memory + lanes + word_bytes + counters);
    if (nwords > 0) {
        memcpy(root->words, words, (nwords < plan->nwords ? nwords : plan->nwords) * sizeof *words);
    }
    root->space[DCOMM_SPACE_IN] = (uint8_t *)(uintptr_t)run->in;
    root->space_len[DCOMM_SPACE_IN] = plan->in_bytes;
    root->space[DCOMM_SPACE_OUT] = run->out;
    root->space_len[DCOMM_SPACE_OUT] = plan->out_bytes;
    root->space[DCOMM_SPACE_SCRATCH] = memory + zeroed;
    root->space_len[DCOMM_SPACE_SCRATCH] = plan->scratch_bytes;
    root->space[DCOMM_SPACE_STATE] = run->state;
    root->space_len[DCOMM_SPACE_STATE] = plan->state_bytes;
    return DCOMM_OK;
}

/* Signals and expositions that came before this stage was there. */
static void dcommi_run_take_early(dcommi_run *run)
{
    dcomm_comm *comm = run->comm;
    dcommi_match_node key =
        dcommi_key(DCOMMI_NODE_EARLY_RUN, run->stream, run->seq, run->stage, 0, 0);
    while (run->active && comm->early_count > 0) {
        dcommi_early *early = (dcommi_early *)dcommi_match_take_oldest(comm, &key);
        if (early == NULL) {
            return;
        }
        comm->early_count--;
        dcommi_run_told(run, &early->header);
        dcommi_early_free(early);
    }
}

static void dcommi_run_forget_exposed(dcommi_run *run)
{
    while (run->exposed_list != NULL) {
        dcommi_exposed *e = run->exposed_list;
        run->exposed_list = e->next_of_run;
        dcommi_match_remove(run->comm, &e->node);
        dcommi_free(e);
    }
}

static void dcommi_run_return_plan(dcommi_run *run)
{
    if (run->give_back != NULL) {
        run->give_back(run->give_back_user, run->plan);
    }
    run->give_back = NULL;
}

static void dcommi_advance_done(dcomm_comm *comm);
static void dcommi_send_credit(dcomm_comm *comm, int rank, uint8_t stream);

/* Take a run out of the engine with its result. */
static void dcommi_run_finish(dcommi_run *run, dcomm_status status)
{
    dcomm_comm *comm = run->comm;
    dcomm_context *context = comm->context;
    run->active = false;
    *(run->prev != NULL ? &run->prev->next : &comm->runs) = run->next;
    *(run->next != NULL ? &run->next->prev : &comm->last_run) = run->prev;
    context->active--;
    if (status < 0) {
        dcommi_lane **at = &context->ready_first;
        context->ready_last = NULL;
        while (*at != NULL) {
            if ((*at)->frame->run == run) {
                *at = (*at)->next_ready;
            } else {
                context->ready_last = *at;
                at = &(*at)->next_ready;
            }
        }
        for (dcommi_move *move = run->moves, *next; move != NULL; move = next) {
            next = move->next;
            dcommi_match_remove(comm, &move->node);
            move->lane = NULL;
            if (!move->in_transport) {
                dcommi_move_free(move);
            }
        }
    }
    dcommi_run_forget_exposed(run);
    dcommi_run_return_plan(run);
    dcommi_free(run->peers);
    run->peers = NULL;
    if (run->stream == DCOMMI_STREAM_COLL) {
        dcommi_advance_done(comm);
    } else if (run->signature.coll == DCOMM_COLL_RECV && status == DCOMM_OK) {
        dcommi_member *m = &comm->members[run->p2p_peer];
        if (++m->p2p_completed - m->p2p_told >= DCOMMI_CREDIT_EVERY) {
            dcommi_send_credit(comm, run->p2p_peer, DCOMMI_STREAM_P2P);
        }
    }
    comm->stats.operations += status == DCOMM_OK;
    run->next_finished = context->finished; /* the engine may still stand in one of its lanes */
    context->finished = run;
    atomic_store_explicit(&run->status, status, memory_order_release);
}

/* All lanes of the current plan have ended. */
static void dcommi_stage_done(dcommi_run *run)
{
    const dcomm_plan *plan = run->plan;
    if (plan->next == NULL) {
        dcommi_run_finish(run, DCOMM_OK);
        return;
    }
    dcomm_status status = DCOMM_OK;
    uint32_t nwords = plan->nwords;
    uint64_t *words = dcommi_calloc(nwords, sizeof *words);
    const dcomm_plan *next = NULL;
    if (words == NULL) {
        status = DCOMM_ERR_NO_MEMORY;
    } else {
        memcpy(words, run->root.words, nwords * sizeof *words);
        next = plan->next(plan->next_user, words, nwords, &status);
    }
    if (status >= 0 && next != NULL) {
        void (*give_back)(void *, const dcomm_plan *) = plan->release;
        void *user = plan->next_user;
        dcommi_run_forget_exposed(run);
        dcommi_run_return_plan(run);
        run->give_back = give_back;
        run->give_back_user = user;
        run->plan = next; /* also when it cannot be bound: it is the one to be given back */
        run->stage++;
        status = dcommi_run_bind(run, next, words, nwords);
    }
    dcommi_free(words);
    if (status < 0) {
        char text[DCOMMI_MESSAGE_MAX];
        snprintf(text, sizeof text, "rank %d: stage %d of %s failed: %s", run->comm->rank,
                 run->stage, run->plan->name, dcomm_strerror(status));
        dcommi_poison(run->comm, status, -1, text);
    } else if (next == NULL) {
        dcommi_run_finish(run, DCOMM_OK);
    } else {
        dcommi_run_event(run);
        dcommi_frame_start(&run->root);
        dcommi_run_take_early(run);
        if (run->active && run->root.lanes_left == 0) {
            dcommi_stage_done(run);
        }
    }
}

/* A submitted run enters the engine. */
static void dcommi_run_start(dcommi_run *run)
{
    dcomm_comm *comm = run->comm;
    dcomm_context *context = comm->context;
    dcommi_run *before = comm->last_run;
    if (DCOMMI_UNLIKELY(run->stream == DCOMMI_STREAM_COLL && run->seq < comm->entered)) {
        while (before != NULL && (before->stream != DCOMMI_STREAM_COLL || before->seq > run->seq)) {
            before = before->prev;
        }
    }
    run->prev = before;
    run->next = before != NULL ? before->next : comm->runs;
    *(before != NULL ? &before->next : &comm->runs) = run;
    *(run->next != NULL ? &run->next->prev : &comm->last_run) = run;
    run->active = true;
    context->active++;
    context->idle = 0;
    if (run->stream == DCOMMI_STREAM_COLL) {
        dcommi_history *entry = &comm->history[run->seq % DCOMMI_HISTORY];
        entry->seq = run->seq;
        entry->known = true;
        entry->signature = run->signature;
        if (run->signature.coll == DCOMM_COLL_PLAN) {
            entry->signature.algo = "the caller's own"; /* the plan and its name may go */
        }
        comm->started++;
        if (run->seq >= comm->entered) {
            comm->entered = run->seq + 1;
        }
    }
    int poisoned = atomic_load(&comm->poisoned);
    if (poisoned != 0) {
        dcommi_run_finish(run, (dcomm_status)poisoned);
        return;
    }
    dcomm_status status = dcommi_run_bind(run, run->plan, NULL, 0);
    if (status < 0) {
        dcommi_poison(comm, status, -1, dcommi_message);
        return;
    }
    if (run->plan->nwords > 0 && run->premul != 0) {
        memcpy(run->root.words, &run->premul, sizeof run->premul);
    }
    if (run->plan->nlanes == 0) {
        dcommi_stage_done(run);
        return;
    }
    dcommi_frame_start(&run->root);
    dcommi_run_take_early(run);
}

/* ---- credits ---- */

static void dcommi_send_credit(dcomm_comm *comm, int rank, uint8_t stream)
{
    dcommi_header h = {.type = DCOMMI_MSG_CREDIT, .stream = stream};
    if (stream == DCOMMI_STREAM_P2P) {
        h.a = comm->members[rank].p2p_completed;
        comm->members[rank].p2p_told = h.a;
    }
    dcommi_send_header(comm, rank, &h, NULL, 0);
}

/* The oldest run has changed: tell ranks that send to us and have not heard for long. */
static void dcommi_advance_done(dcomm_comm *comm)
{
    if (comm->started != comm->entered) {
        return; /* some number below has not come yet: nothing above it counts */
    }
    uint64_t done = comm->entered;
    for (dcommi_run *run = comm->runs; run != NULL; run = run->next) {
        if (run->stream == DCOMMI_STREAM_COLL) {
            done = run->seq < done ? run->seq : done;
            break;
        }
    }
    if (done == comm->done) {
        return;
    }
    bool round = done / DCOMMI_CREDIT_EVERY != comm->done / DCOMMI_CREDIT_EVERY;
    comm->done = done;
    if (!round || atomic_load(&comm->poisoned) != 0) {
        return;
    }
    for (int r = 0; r < comm->size; r++) {
        dcommi_member *m = &comm->members[r];
        if (m->heard && !m->gone && done - m->told >= DCOMMI_CREDIT_EVERY) {
            dcommi_send_credit(comm, r, DCOMMI_STREAM_COLL);
        }
    }
}

/* What a header says of its sender's progress. */
static void dcommi_learn_done(dcomm_comm *comm, const dcommi_header *h)
{
    dcommi_member *m = &comm->members[h->src];
    m->heard = true;
    uint64_t done = m->done + (uint32_t)(h->done - (uint32_t)m->done);
    bool news = (uint32_t)(h->done - (uint32_t)m->done) < UINT32_MAX / 2 && done != m->done;
    if (news) {
        m->done = done;
    }
    if (h->type == DCOMMI_MSG_CREDIT && h->stream == DCOMMI_STREAM_P2P && h->a > m->p2p_done) {
        m->p2p_done = h->a;
        news = true;
    }
    if (h->type == DCOMMI_MSG_CREDIT && h->b != 0) { /* it may never have sent to us before */
        dcommi_send_credit(comm, (int)h->src, h->stream);
    }
    if (news) {
        m->asked = false;
        for (dcommi_run *run = comm->runs; run != NULL; run = run->next) {
            dcommi_run_wake(run, DCOMMI_LANE_CREDIT, (int64_t)h->src);
        }
    }
}

/* ---- arrivals ---- */

static bool dcommi_is_buried(const dcomm_context *context, uint64_t id)
{
    for (unsigned i = 0; i < 64; i++) {
        if (context->buried[i] == id) {
            return true;
        }
    }
    return false;
}

static dcomm_comm *dcommi_comm_find(dcomm_context *context, uint64_t id)
{
    dcomm_comm *comm = context->comms;
    while (comm != NULL && comm->id != id) {
        comm = comm->next;
    }
    return comm;
}

/* Whether a peer that keeps to the window can be at this operation: what is kept is bounded. */
static bool dcommi_within_window(const dcomm_comm *comm, const dcommi_header *h)
{
    uint64_t done =
        h->stream == DCOMMI_STREAM_COLL ? comm->done : comm->members[h->src].p2p_completed;
    return h->seq < done + DCOMMI_WINDOW;
}

/* DATA, RTS, EXPOSE or SIGNAL for which there is no receive or no run yet. */
static dcommi_verdict dcommi_keep_early(dcomm_comm *comm, const dcommi_header *h,
                                        dcommi_transport *transport, const dcommi_arrival *arrival,
                                        uint8_t cls)
{
    if (h->stream == DCOMMI_STREAM_COLL) {
        const dcommi_history *entry = &comm->history[h->seq % DCOMMI_HISTORY];
        dcommi_run *run = dcommi_run_find(comm, h);
        bool known = entry->known && entry->seq == h->seq;
        if (h->seq < comm->done || (known && run == NULL)) { /* it is over here */
            if (known && entry->signature.hash != h->signature) {
                dcommi_query(comm, (int)h->src, h->stream, h->seq, &entry->signature);
            }
            return DCOMMI_CONSUMED;
        }
        if (run != NULL && run->signature.hash != h->signature) {
            dcommi_suspect_mismatch(comm, run, h, arrival->len);
            return DCOMMI_CONSUMED;
        }
    }
    if (!dcommi_within_window(comm, h)) {
        return DCOMMI_CONSUMED;
    }
    dcommi_verdict verdict;
    dcommi_early *early = dcommi_early_make(transport, h, arrival, &verdict);
    if (early == NULL) {
        dcommi_poison(comm, DCOMM_ERR_NO_MEMORY, -1, dcommi_message);
        return DCOMMI_CONSUMED;
    }
    dcommi_early_keep(comm, early, cls);
    return verdict;
}

/* A valid header for a communicator that exists. */
static dcommi_verdict dcommi_dispatch(dcomm_comm *comm, const dcommi_header *h,
                                      dcommi_transport *transport, const dcommi_arrival *arrival)
{
    dcommi_learn_done(comm, h);
    switch (h->type) {
    case DCOMMI_MSG_DATA:
    case DCOMMI_MSG_RTS: {
        dcommi_match_node key =
            dcommi_key(DCOMMI_NODE_POSTED, h->stream, h->seq, h->stage, (int32_t)h->src, h->tag);
        dcommi_match_node *node = dcommi_match_take(comm, &key);
        if (node == NULL) {
            return dcommi_keep_early(comm, h, transport, arrival, DCOMMI_NODE_EARLY);
        }
        dcommi_move *move = (dcommi_move *)((char *)node - offsetof(dcommi_move, node));
        return dcommi_deliver(move, h, transport, arrival->data, arrival->desc);
    }
    case DCOMMI_MSG_PULL:
    case DCOMMI_MSG_FIN:
        dcommi_on_answer(comm, h);
        return DCOMMI_CONSUMED;
    case DCOMMI_MSG_EXPOSE:
    case DCOMMI_MSG_SIGNAL: {
        dcommi_run *run = dcommi_run_find(comm, h);
        if (run == NULL || run->stage != h->stage) {
            if (run != NULL && h->stage < run->stage) {
                return DCOMMI_CONSUMED;
            }
            return dcommi_keep_early(comm, h, transport, arrival, DCOMMI_NODE_EARLY_RUN);
        }
        dcommi_run_told(run, h);
        return DCOMMI_CONSUMED;
    }
    case DCOMMI_MSG_READ: {
        dcommi_run *run = dcommi_run_find(comm, h);
        if (run != NULL && run->stage == h->stage) {
            dcommi_on_read(comm, run, h);
        }
        return DCOMMI_CONSUMED;
    }
    case DCOMMI_MSG_READ_REPLY:
        return dcommi_on_read_reply(comm, h, transport, arrival->data, arrival->desc);
    case DCOMMI_MSG_QUERY:
        dcommi_on_query(comm, h, arrival->data, arrival->len);
        return DCOMMI_CONSUMED;
    case DCOMMI_MSG_REPLY:
        dcommi_on_reply(comm, h, arrival->data, arrival->len);
        return DCOMMI_CONSUMED;
    case DCOMMI_MSG_ABORT: {
        char text[DCOMMI_TEXT_MAX + 1];
        dcommi_peer_text(text, arrival->data, arrival->len);
        int64_t status = (int64_t)h->a;
        dcommi_poison(comm,
                      status < 0 && status >= DCOMM_ERR_INTERNAL ? (dcomm_status)status
                                                                 : DCOMM_ERR_ABORTED,
                      (int)h->src, text);
        return DCOMMI_CONSUMED;
    }
    case DCOMMI_MSG_GOODBYE:
        comm->members[h->src].gone = true;
        comm->members[h->src].gone_after = h->a;
        return DCOMMI_CONSUMED;
    default: /* CREDIT: learned above */
        return DCOMMI_CONSUMED;
    }
}

/* A message for a communicator that does not exist here yet. */
static dcommi_verdict dcommi_stray_keep(dcomm_context *context, const dcommi_header *h,
                                        dcommi_transport *transport, const dcommi_arrival *arrival)
{
    size_t bytes = arrival->data != NULL ? arrival->len : 0;
    if (context->nstrays >= DCOMMI_STRAYS_MAX ||
        context->stray_bytes + bytes > DCOMMI_STRAY_BYTES_MAX) {
        dcommi_log(context->strays_dropped++ == 0 ? DCOMMI_LOG_WARN : DCOMMI_LOG_INFO,
                   "a message of rank %u for a communicator that is not created here is dropped: "
                   "%zu messages, %zu bytes are kept",
                   h->src, context->nstrays, context->stray_bytes);
        return DCOMMI_CONSUMED;
    }
    dcommi_verdict verdict = DCOMMI_CONSUMED;
    dcommi_stray *stray = dcommi_alloc(sizeof *stray);
    dcommi_early *early = stray != NULL ? dcommi_early_make(transport, h, arrival, &verdict) : NULL;
    if (early == NULL) {
        dcommi_free(stray);
        return DCOMMI_CONSUMED;
    }
    *stray = (dcommi_stray){.early = early};
    *(context->last_stray != NULL ? &context->last_stray->next : &context->strays) = stray;
    context->last_stray = stray;
    context->nstrays++;
    context->stray_bytes += bytes;
    return verdict;
}

/* Any message. What cannot be right is dropped: it is not from a dcomm of ours. */
static dcommi_verdict dcommi_on_message(void *user, dcommi_transport *transport,
                                        const dcommi_arrival *arrival)
{
    dcomm_context *context = user;
    dcommi_header h;
    dcommi_verdict verdict = DCOMMI_CONSUMED;
    bool lies_at_sender = arrival->data == NULL && arrival->len > 0;
    if (dcommi_header_parse(arrival->header, arrival->header_len, arrival->len, &h) &&
        !(lies_at_sender && h.type != DCOMMI_MSG_DATA && h.type != DCOMMI_MSG_READ_REPLY)) {
        dcomm_comm *comm = dcommi_comm_find(context, h.comm);
        bool known = comm != NULL && h.src < (uint32_t)comm->size && (int)h.src != comm->rank &&
                     dcommi_peer_of(comm, (int)h.src)->transport == transport;
        if (known && atomic_load_explicit(&comm->poisoned, memory_order_relaxed) == 0) {
            verdict = dcommi_dispatch(comm, &h, transport, arrival);
        } else if (known && h.type == DCOMMI_MSG_GOODBYE) {
            comm->members[h.src].gone = true;
        } else if (known && h.type == DCOMMI_MSG_QUERY) {
            dcommi_send_abort(comm, (int)h.src);
        } else if (comm == NULL && !dcommi_is_buried(context, h.comm) &&
                   h.type != DCOMMI_MSG_QUERY) {
            verdict = dcommi_stray_keep(context, &h, transport, arrival);
        }
    }
    if (verdict == DCOMMI_CONSUMED && lies_at_sender) {
        transport->call->release(transport, arrival->desc);
        return DCOMMI_KEEP;
    }
    return verdict;
}

/* A communicator is there now: what came for it meanwhile. */
static void dcommi_deliver_strays(dcomm_context *context, dcomm_comm *comm)
{
    dcommi_stray *left = context->strays;
    context->strays = context->last_stray = NULL;
    while (left != NULL) {
        dcommi_stray *stray = left;
        dcommi_early *early = stray->early;
        left = stray->next;
        if (early->header.comm != comm->id) {
            stray->next = NULL;
            *(context->last_stray != NULL ? &context->last_stray->next : &context->strays) = stray;
            context->last_stray = stray;
            continue;
        }
        context->nstrays--;
        context->stray_bytes -= early->data != NULL ? early->len : 0;
        dcommi_arrival arrival = {.peer = -1,
                                  .header = &early->header,
                                  .header_len = sizeof early->header,
                                  .data = early->data,
                                  .len = early->len,
                                  .desc = early->desc};
        bool kept = dcommi_on_message(context, early->transport, &arrival) == DCOMMI_KEEP;
        if (kept) {
            early->desc = NULL;
            early->data = NULL;
        }
        dcommi_early_free(early);
        dcommi_free(stray);
    }
}

static void dcommi_on_peer_lost(void *user, dcommi_transport *transport, int peer, const char *why)
{
    (void)transport;
    dcommi_peer_lost(user, peer, why);
}

/* ---- progress ---- */

static inline bool dcommi_token_try(dcomm_context *context)
{
    return atomic_exchange_explicit(&context->token, 1, memory_order_acquire) == 0;
}

static inline void dcommi_token_release(dcomm_context *context)
{
    atomic_store_explicit(&context->token, 0, memory_order_release);
}

static void dcommi_token_take(dcomm_context *context)
{
    while (!dcommi_token_try(context)) {
        sched_yield();
    }
}

/* Start what other threads have submitted, oldest first. */
static void dcommi_start_submitted(dcomm_context *context)
{
    dcommi_run *run = atomic_exchange_explicit(&context->submitted, NULL, memory_order_acquire);
    dcommi_run *ordered = NULL;
    while (run != NULL) {
        dcommi_run *next = run->next_submitted;
        run->next_submitted = ordered;
        ordered = run;
        run = next;
    }
    while (ordered != NULL) {
        dcommi_run *next = ordered->next_submitted;
        dcommi_run_start(ordered);
        ordered = next;
    }
}

static void dcommi_housekeeping(dcomm_context *context)
{
    double now = dcommi_now();
    if (now < context->next_check) {
        return;
    }
    context->next_check = now + DCOMMI_CHECK_EVERY;
    for (dcomm_comm *comm = context->comms; comm != NULL; comm = comm->next) {
        if (atomic_load(&comm->poisoned) == 0) {
            dcommi_comm_check(comm, now);
        }
    }
}

/* One pass, with the token. Returns whether anything happened. */
static bool dcommi_progress(dcomm_context *context)
{
    if (atomic_load_explicit(&context->submitted, memory_order_relaxed) != NULL) {
        dcommi_start_submitted(context);
    }
    if (atomic_load_explicit(&context->aborts, memory_order_relaxed) != 0) {
        atomic_store(&context->aborts, 0);
        for (dcomm_comm *comm = context->comms; comm != NULL; comm = comm->next) {
            int wanted = 1; /* 2: taken up, so that the reason stays as it is */
            if (atomic_compare_exchange_strong(&comm->abort_wanted, &wanted, 2)) {
                dcommi_poison(comm, DCOMM_ERR_ABORTED, -1, comm->abort_reason);
            }
        }
    }
    unsigned n = context->local->call->progress(context->local);
    if (context->net != NULL) {
        n += context->net->call->progress(context->net);
    }
    while (context->ready_first != NULL) {
        dcommi_lane *lane = context->ready_first;
        context->ready_first = lane->next_ready;
        if (context->ready_first == NULL) {
            context->ready_last = NULL;
        }
        lane->queued = false;
        dcommi_lane_run(lane);
        n++;
    }
    while (context->finished != NULL) {
        dcommi_run *run = context->finished;
        context->finished = run->next_finished;
        dcommi_run_unref(run);
        n++;
    }
    if (n > 0) {
        context->idle = 0;
        context->busy++;
        if ((context->busy & 1023) == 0) {
            dcommi_housekeeping(context);
        }
        return true;
    }
    context->idle++;
    if ((context->idle & 255) == 0) {
        dcommi_housekeeping(context);
    }
    return false;
}

/* Progress if nobody else does, until `run` (may be NULL: once) is complete or it is another
 * thread's turn; give the core away when there has been nothing to do for long. */
static void dcommi_progress_for(dcomm_context *context, const dcommi_run *run)
{
    bool yield = true;
    if (dcommi_token_try(context)) {
        for (int i = 0; i < DCOMMI_TURN; i++) {
            yield = !dcommi_progress(context) && context->idle > context->spin_limit;
            if (yield || run == NULL ||
                atomic_load_explicit(&run->status, memory_order_relaxed) != DCOMM_IN_PROGRESS) {
                break;
            }
        }
        dcommi_token_release(context);
    }
    if (yield) {
        sched_yield();
    }
}

static void dcommi_progress_or_yield(dcomm_context *context)
{
    dcommi_progress_for(context, NULL);
}

/* Hand a run to the engine: at once where the token is free, else by the queue. */
static void dcommi_submit(dcomm_context *context, dcommi_run *run)
{
    if (dcommi_token_try(context)) {
        if (atomic_load_explicit(&context->submitted, memory_order_relaxed) != NULL) {
            dcommi_start_submitted(context);
        }
        dcommi_run_start(run);
        dcommi_progress(context);
        dcommi_token_release(context);
        return;
    }
    dcommi_run *head = atomic_load_explicit(&context->submitted, memory_order_relaxed);
    do {
        run->next_submitted = head;
    } while (!atomic_compare_exchange_weak_explicit(&context->submitted, &head, run,
                                                    memory_order_release, memory_order_relaxed));
}

#endif
