/* arrivals.h - the dispatch of each message: credits, early messages, messages for communicators
 * that do not exist here yet. */
#ifndef DCOMMI_ARRIVALS_H
#define DCOMMI_ARRIVALS_H

#include "control.h"
#include "reply.h"
#include "runs.h"

#define DCOMMI_LATER_MIN 1024 /* bytes: longer payloads may be left for a second look */

/* Limits of the messages kept for communicators that do not exist here yet. */
#define DCOMMI_STRAYS_MAX 65536
#define DCOMMI_STRAY_BYTES_MAX ((size_t)256 << 20)

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

static void dcommi_advance_done(dcomm_comm *comm)
{
    if (comm->started != comm->entered) {
        return; /* a lower number has not come yet: nothing above it counts */
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

/* Note how much the sender of a header has completed, and wake lanes that wait for it. */
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

/* Remember that this process has left a communicator: late messages for it are dropped. */
static void dcommi_bury(dcomm_context *context, uint64_t id)
{
    context->buried[context->nburied++ % DCOMMI_BURIED] = id;
}

static bool dcommi_is_buried(const dcomm_context *context, uint64_t id)
{
    for (unsigned i = 0; i < DCOMMI_BURIED; i++) {
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

/* Return true if a peer that keeps to the window can be at this operation. This bounds the
 * messages that are kept. */
static bool dcommi_within_window(const dcomm_comm *comm, const dcommi_header *h)
{
    uint64_t done =
        h->stream == DCOMMI_STREAM_COLL ? comm->done : comm->members[h->src].p2p_completed;
    return h->seq < done + DCOMMI_WINDOW;
}

/* Keep a DATA, RTS, OFFER, EXPOSE or SIGNAL that has no receive or no run yet. */
static dcommi_verdict dcommi_keep_early(dcomm_comm *comm, const dcommi_header *h,
                                        dcommi_transport *transport, const dcommi_arrival *arrival,
                                        uint8_t cls)
{
    if (h->stream == DCOMMI_STREAM_COLL) {
        const dcommi_history *entry = &comm->history[h->seq % DCOMMI_HISTORY];
        dcommi_run *run = dcommi_run_find(comm, h);
        bool known = entry->known && entry->seq == h->seq;
        const dcommi_refusal *refusal =
            comm->refusals != NULL ? dcommi_refusal_find(comm, h->seq) : NULL;
        if (DCOMMI_UNLIKELY(refusal != NULL && refusal->over)) {
            dcommi_refusal_answer(comm, h);
            return DCOMMI_CONSUMED;
        }
        if (h->seq < comm->done || (known && run == NULL)) { /* it is over here */
            if (known && entry->signature.hash != h->signature) {
                dcommi_query(comm, (int)h->src, h->stream, h->seq, &entry->signature);
            }
            return DCOMMI_CONSUMED;
        }
        if (run != NULL && !dcommi_run_accepts(run, h)) {
            dcommi_suspect_mismatch(comm, run, h, arrival->len);
            return DCOMMI_CONSUMED;
        }
    }
    if (!dcommi_within_window(comm, h)) {
        return DCOMMI_CONSUMED;
    }
    dcommi_verdict verdict;
    dcommi_early *early = dcommi_early_make(transport, h, arrival, &verdict);
    if (!dcommi_have(comm, early)) {
        return DCOMMI_CONSUMED;
    }
    dcommi_early_keep(comm, early, cls);
    return verdict;
}

static unsigned dcommi_bcast_drain(dcomm_comm *comm, dcommi_member *m);

static void dcommi_on_goodbye(dcomm_comm *comm, const dcommi_header *h)
{
    comm->members[h->src].gone = comm->context->appoints = true;
    comm->members[h->src].gone_after = h->a;
    if (h->b != 0) { /* it has not entered: it waits for no goodbye of ours */
        comm->members[h->src].heard = false;
    }
    dcommi_agreements_learn(comm);
    if (DCOMMI_UNLIKELY(comm->service != NULL)) {
        comm->service->on_lost(comm, (int)h->src);
    }
}

/* Hear of a lost rank from another one. Each rank sees a death itself, sooner or later; only
 * agreements need it at once. Silence not all ranks see: take the sender's word. */
static void dcommi_on_lost(dcomm_comm *comm, int rank, bool proven)
{
    for (dcommi_agreement *g = comm->agreements; g != NULL && proven; g = g->next) {
        const dcommi_agree_link link = dcommi_agreement_link(g);
        dcommi_agree_learn(g->agree, &link, rank, true);
    }
    if (!proven) {
        dcommi_peer_lost(comm->context, comm->members[rank].peer,
                         "another rank gave it up, because it was silent", false);
    }
}

/* Handle a valid header for a communicator that exists. */
static dcommi_verdict dcommi_dispatch(dcomm_comm *comm, const dcommi_header *h,
                                      dcommi_transport *transport, const dcommi_arrival *arrival)
{
    dcommi_learn_done(comm, h);
    switch (h->type) {
    case DCOMMI_MSG_DATA:
    case DCOMMI_MSG_OFFER:
    case DCOMMI_MSG_RTS: {
        dcommi_match_node key =
            dcommi_key(DCOMMI_NODE_POSTED, h->stream, h->seq, h->stage, (int32_t)h->src, h->tag);
        dcommi_match_node *node = dcommi_match_take(comm, &key);
        if (node == NULL) {
            /* A ready lane may be about to want this message. Waiting for it saves a copy. */
            if (arrival->stays && arrival->len >= DCOMMI_LATER_MIN &&
                comm->context->ready_first != NULL) {
                return DCOMMI_LATER;
            }
            return dcommi_keep_early(comm, h, transport, arrival, DCOMMI_NODE_EARLY);
        }
        dcommi_move *move = dcommi_move_of(node);
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
    case DCOMMI_MSG_READ_SENT:
        dcommi_on_read_sent(comm, h);
        return DCOMMI_CONSUMED;
    case DCOMMI_MSG_READ_REPLY:
        return dcommi_on_read_reply(comm, h, transport, arrival->data, arrival->desc);
    case DCOMMI_MSG_QUERY:
        dcommi_on_query(comm, h, arrival->data, arrival->len);
        return DCOMMI_CONSUMED;
    case DCOMMI_MSG_REPLY:
        dcommi_on_reply(comm, h, arrival->data, arrival->len);
        return DCOMMI_CONSUMED;
    case DCOMMI_MSG_ABORT: {
        comm->members[h->src].told_us = true;
        dcommi_bcast_drain(comm, &comm->members[h->src]); /* its slots hold earlier messages */
        char text[DCOMMI_TEXT_MAX + 1];
        dcommi_peer_text(text, arrival->data, arrival->len);
        int64_t status = (int64_t)h->a;
        const uint64_t lost = h->b - 1;
        if (atomic_load(&comm->poisoned) == 0 && lost < (uint64_t)comm->size) { /* pass it on */
            comm->lost = h->b;
            comm->lost_proven = h->tag != 0;
        }
        dcommi_poison_by(comm,
                         status < 0 && status >= DCOMMI_STATUS_LAST ? (dcomm_status)status
                                                                    : DCOMM_ERR_ABORTED,
                         (int)h->src, text);
        if (lost < (uint64_t)comm->size && comm->members[lost].peer >= 0) {
            dcommi_on_lost(comm, (int)lost, h->tag != 0);
        }
        return DCOMMI_CONSUMED;
    }
    case DCOMMI_MSG_REFUSED:
        dcommi_bcast_drain(comm, &comm->members[h->src]); /* likewise */
        dcommi_on_refused(comm, h, arrival->data, arrival->len);
        return DCOMMI_CONSUMED;
    case DCOMMI_MSG_GOODBYE:
        dcommi_on_goodbye(comm, h);
        return DCOMMI_CONSUMED;
    case DCOMMI_MSG_AGREE:
        dcommi_on_agree(comm, h, arrival->data, arrival->len);
        return DCOMMI_CONSUMED;
    case DCOMMI_MSG_SERVICE:
        return comm->service != NULL
                   ? comm->service->on_message(comm, h, transport, arrival)
                   : DCOMMI_CONSUMED;
    case DCOMMI_MSG_REGION_ASK:
    case DCOMMI_MSG_REGION:
    case DCOMMI_MSG_REGION_GONE:
    case DCOMMI_MSG_REGION_SHUT:
        dcommi_on_region_message(comm, h, arrival->data);
        return DCOMMI_CONSUMED;
    default: /* CREDIT: learned above */
        return DCOMMI_CONSUMED;
    }
}

/* Note that a message for a communicator that does not exist here yet is lost. An operation that
 * waits for it there must not wait for ever. */
static void dcommi_stray_lose(dcomm_context *context, uint64_t comm)
{
    context->missed[context->nmissed++ % DCOMMI_MISSED] = comm;
}

static bool dcommi_strays_lost(const dcomm_context *context, const dcomm_comm *comm)
{
    bool lost = false;
    for (unsigned i = 0; i < DCOMMI_MISSED; i++) {
        lost = lost || context->missed[i] == comm->id;
    }
    return lost;
}

/* Keep a message for a communicator that does not exist here yet. */
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
        dcommi_stray_lose(context, h->comm);
        return DCOMMI_CONSUMED;
    }
    dcommi_verdict verdict = DCOMMI_CONSUMED;
    dcommi_stray *stray = dcommi_alloc(sizeof *stray);
    dcommi_early *early = stray != NULL ? dcommi_early_make(transport, h, arrival, &verdict) : NULL;
    if (early == NULL) {
        dcommi_free(stray);
        dcommi_stray_lose(context, h->comm);
        return DCOMMI_CONSUMED;
    }
    *stray = (dcommi_stray){.early = early};
    *(context->last_stray != NULL ? &context->last_stray->next : &context->strays) = stray;
    context->last_stray = stray;
    context->nstrays++;
    context->stray_bytes += bytes;
    return verdict;
}

/* Handle any message. Drop what cannot be right: it is not from a dcomm of ours. */
static dcommi_verdict dcommi_on_message(void *user, dcommi_transport *transport,
                                        const dcommi_arrival *arrival)
{
    dcomm_context *context = user;
    dcommi_header h;
    dcommi_verdict verdict = DCOMMI_CONSUMED;
    bool lies_at_sender = arrival->data == NULL && arrival->len > 0;
    if (dcommi_header_parse(arrival->header, arrival->header_len, arrival->len, &h) &&
        !(lies_at_sender && h.type != DCOMMI_MSG_DATA && h.type != DCOMMI_MSG_READ_REPLY &&
          h.type != DCOMMI_MSG_SERVICE)) {
        dcomm_comm *comm = dcommi_comm_find(context, h.comm);
        bool known = comm != NULL && h.src < (uint32_t)comm->size && (int)h.src != comm->rank &&
                     dcommi_peer_of(comm, (int)h.src)->transport == transport;
        if (known && atomic_load_explicit(&comm->poisoned, memory_order_relaxed) == 0) {
            verdict = dcommi_dispatch(comm, &h, transport, arrival);
        } else if (known && h.type == DCOMMI_MSG_GOODBYE) {
            dcommi_on_goodbye(comm, &h);
        } else if (known && h.type == DCOMMI_MSG_ABORT) {
            comm->members[h.src].told_us = true;
        } else if (known && h.type == DCOMMI_MSG_AGREE) {
            dcommi_on_agree(comm, &h, arrival->data, arrival->len);
        } else if (known && h.type == DCOMMI_MSG_REGION_SHUT) {
            dcommi_on_region_message(comm, &h, NULL);
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

/* Handle the messages in a rank's broadcast slots. */
static unsigned dcommi_bcast_drain(dcomm_comm *comm, dcommi_member *m)
{
    dcommi_arrival arrival;
    unsigned n = 0;
    while (dcommi_bcast_peek(m, &arrival)) {
        if (dcommi_on_message(comm->context, comm->context->local, &arrival) == DCOMMI_LATER) {
            return n + 1;
        }
        dcommi_bcast_pass(m);
        n++;
    }
    return n;
}

static unsigned dcommi_bcast_progress(dcomm_context *context)
{
    unsigned n = 0;
    for (dcomm_comm *comm = context->comms; comm != NULL; comm = comm->next) {
        for (int r = 0; r < comm->size && comm->bcast != NULL; r++) {
            n += dcommi_bcast_drain(comm, &comm->members[r]);
        }
    }
    return n;
}

/* Poll a rank's broadcast slots for the last time. */
static void dcommi_bcast_part(dcomm_comm *comm, dcommi_member *m)
{
    if (m->bcast != NULL) {
        dcommi_bcast_drain(comm, m);
        dcommi_bcast_let_go(comm, m->bcast);
        m->bcast = NULL;
    }
}

/* Stop polling the others' broadcast slots. They may become another communicator's when this rank
 * has said goodbye. */
static void dcommi_bcast_leave(dcomm_comm *comm)
{
    for (int r = 0; r < comm->size; r++) {
        dcommi_bcast_part(comm, &comm->members[r]);
    }
    comm->attached = true;
}

/* Deliver what came for a communicator before it existed here. */
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
    if (dcommi_strays_lost(context, comm)) {
        dcommi_poison(comm, DCOMM_ERR_NO_MEMORY,
                      "there was no memory for messages that came before the communicator was "
                      "created here");
    }
}

/* Fail the communicator of a corrupt message: a rank that waits for the message must not wait
 * on. */
static void dcommi_on_corrupt(void *user, dcommi_transport *transport,
                              const dcommi_arrival *arrival)
{
    dcommi_header h;
    if (arrival->header_len < sizeof h) {
        return;
    }
    memcpy(&h, arrival->header, sizeof h);
    dcomm_comm *comm = dcommi_comm_find(user, h.comm);
    if (comm != NULL && h.src < (uint32_t)comm->size && (int)h.src != comm->rank &&
        dcommi_peer_of(comm, (int)h.src)->transport == transport &&
        atomic_load_explicit(&comm->poisoned, memory_order_relaxed) == 0) {
        dcommi_poison(comm, DCOMM_ERR_CORRUPT,
                      "rank %d got a part of a message from rank %u that does not fit the others",
                      comm->rank, (unsigned)h.src);
    }
}

static void dcommi_on_peer_lost(void *user, dcommi_transport *transport, int peer, const char *why,
                                dcommi_loss how)
{
    dcomm_context *context = user;
    /* A control connection tells more: that it has left communicators, or that we count as dead. */
    if (context->control != NULL && (transport == context->net || how == DCOMMI_LOSS_SILENT)) {
        dcommi_ctl_look(context);
    }
    for (dcomm_comm *comm = context->comms; comm != NULL; comm = comm->next) {
        for (int r = 0; r < comm->size; r++) {
            if (comm->members[r].peer == peer) { /* its last messages */
                dcommi_bcast_part(comm, &comm->members[r]);
            }
        }
    }
    if (how == DCOMMI_LOSS_GIVEN_UP) {
        dcommi_given_up(context, peer);
    } else {
        dcommi_peer_lost(context, peer, why, how == DCOMMI_LOSS_PROVEN);
    }
}

#endif
