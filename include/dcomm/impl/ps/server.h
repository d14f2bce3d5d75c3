/* server.h - a server: takes workers' messages in their order, answers pulls when clocks allow it,
 * and ends clocks. With the token. */
#ifndef DCOMMI_PS_SERVER_H
#define DCOMMI_PS_SERVER_H

#include "../engine/silence.h"
#include "encode.h"
#include "stash.h"

/* ---- answers ---- */

/* Send a message to a rank; this one gets it at once. */
static void dcommi_ps_tell(dcomm_ps *ps, int rank, dcommi_header *h, const void *data, size_t len)
{
    h->type = DCOMMI_MSG_SERVICE;
    if (rank != ps->rank) {
        /* A rank that cannot be told is noticed elsewhere. */
        (void)dcommi_send_header(ps->comm, rank, h, data, len);
        return;
    }
    h->comm = ps->comm->id;
    h->src = (uint32_t)rank;
    const dcommi_arrival arrival = {
        .peer = -1, .header = h, .header_len = sizeof *h, .data = data, .len = len};
    ps->comm->service->on_message(ps->comm, h, NULL, &arrival);
}

/* Values on their way to a worker. */
typedef struct dcommi_ps_reply {
    dcommi_op op; /* first */
    dcomm_ps *ps;
    size_t len;
    uint8_t values[];
} dcommi_ps_reply;

static void dcommi_ps_replied(dcommi_op *op, dcomm_status status)
{
    dcommi_ps_reply *reply = (dcommi_ps_reply *)op;
    (void)status; /* a worker that is lost is noticed elsewhere */
    reply->ps->value_bytes -= reply->len;
    dcommi_ps_op_ends(reply->ps);
    dcommi_free(reply);
}

/* Put a message behind those of a list. */
static void dcommi_ps_append(dcommi_ps_job **list, dcommi_ps_job *job)
{
    while (*list != NULL) {
        list = &(*list)->next;
    }
    *list = job;
}

/* Answer a pull with a copy of its rows, which stay of one moment. Return false without memory. */
static bool dcommi_ps_answer(dcomm_ps *ps, const dcommi_ps_job *job)
{
    const dcommi_ps_table *t = &ps->tables[job->header.tag];
    const size_t len = (size_t)job->header.b * dcommi_ps_answer_row(ps, job->header.tag);
    dcommi_header h = {.slot = DCOMMI_PS_VALUES,
                       .seq = job->header.seq,
                       .tag = job->header.tag,
                       .a = ps->clock.closed};
    dcommi_ps_from *f = &ps->from[job->from];
    const dcomm_dtype dtype = ps->params[h.tag].pulled;
    const bool here = job->from == ps->rank;
    const bool as_it_is = here && dtype == DCOMM_F32 && job->header.stage == 0;
    dcommi_ps_reply *reply = as_it_is ? NULL : dcommi_huge_alloc(sizeof *reply + len);
    if (!as_it_is && reply == NULL) {
        return false;
    }
    dcommi_ps_catch_up(&ps->clock, job->from);
    f->seen[h.tag] = ps->updates[h.tag];
    f->own[h.tag] = 0;
    if (as_it_is) { /* this worker takes the values at once, so they need no copy */
        dcommi_ps_tell(ps, ps->rank, &h, t->value + (job->header.a - t->first) * t->cols, len);
        return true;
    }
    reply->op = (dcommi_op){.done = dcommi_ps_replied};
    reply->ps = ps;
    reply->len = len;
    dcommi_ps_copy(t, &job->header, job->data, reply->values, dtype);
    if (here) {
        dcommi_ps_tell(ps, ps->rank, &h, reply->values, len);
        dcommi_free(reply);
        return true;
    }
    h.type = DCOMMI_MSG_SERVICE;
    ps->value_bytes += len;
    dcommi_ps_op_begins(ps);
    if (dcommi_post(ps->comm, job->from, &h, reply->values, len, &reply->op) != DCOMM_IN_PROGRESS) {
        dcommi_ps_replied(&reply->op, DCOMM_OK);
    }
    return true;
}

/* Answer the pulls that may be answered now, in the order in which they came. */
static void dcommi_ps_answer_all(dcomm_ps *ps)
{
    for (dcommi_ps_job **at = &ps->pulls; *at != NULL;) {
        dcommi_ps_job *job = *at;
        const bool room = ps->value_bytes < DCOMMI_PS_VALUE_BYTES;
        if (!dcommi_ps_may_pull(&ps->clock, job->from) || !room || !dcommi_ps_answer(ps, job)) {
            at = &job->next;
            continue;
        }
        *at = job->next;
        dcommi_ps_job_free(job);
    }
}

/* ---- clocks ---- */

/* End the open clock: average its pushes, and update the rows. */
static void dcommi_ps_close_one(dcomm_ps *ps)
{
    int workers = 0;
    for (int r = 0; r < ps->size; r++) {
        workers += dcommi_ps_ended(&ps->clock, r) || dcommi_ps_has_stash(ps, r);
    }
    for (size_t i = 0; i < ps->nparams; i++) {
        dcommi_ps_stash_apply(ps, i, workers);
    }
    for (int r = 0; r < ps->size; r++) {
        dcommi_ps_unstash(ps, r, false);
    }
    if (ps->clock.last >= 0) {
        ps->last_counts[ps->clock.last]++;
    }
    ps->stats.updates++;
    dcommi_ps_close(&ps->clock, dcommi_now());
}

static void dcommi_ps_from_pump(dcomm_ps *ps, int worker);

/* End all clocks that can end, and let those go on that have waited for that. */
static void dcommi_ps_go_on(dcomm_ps *ps)
{
    const double now = dcommi_now();
    while (dcommi_ps_may_close(&ps->clock, now)) {
        dcommi_ps_close_one(ps);
        for (int r = 0; r < ps->size; r++) {
            dcommi_ps_from_pump(ps, r);
        }
    }
    dcommi_ps_answer_all(ps);
}

/* ---- workers that go ---- */

/* Forget the messages of a worker that has died or left. Those that the transport still fetches
 * free themselves. */
static void dcommi_ps_forget(dcomm_ps *ps, int worker)
{
    dcommi_ps_from *f = &ps->from[worker];
    dcommi_ps_job **at = &ps->pulls;
    while (*at != NULL) {
        dcommi_ps_job *job = *at;
        if (job->from == worker) {
            *at = job->next;
            dcommi_ps_job_free(job);
        } else {
            at = &job->next;
        }
    }
    while (f->queue != NULL) {
        dcommi_ps_job *job = f->queue;
        f->queue = job->next;
        if (job->fetching) {
            job->dropped = true;
        } else {
            dcommi_ps_job_free(job);
        }
    }
    f->queued = 0;
}

/* Take a worker out. What it pushed in a clock that it has not ended is dropped. */
static void dcommi_ps_worker_gone(dcomm_ps *ps, int worker)
{
    if (!ps->clock.of[worker].works) {
        return;
    }
    ps->clock.of[worker].works = false;
    dcommi_ps_forget(ps, worker);
    dcommi_ps_unstash(ps, worker, true);
    dcommi_ps_go_on(ps);
}

/* Take out a worker that has sent what cannot be right, and tell it. */
static void dcommi_ps_refuse(dcomm_ps *ps, int worker, const char *what)
{
    char text[DCOMMI_TEXT_MAX];
    snprintf(text, sizeof text, "the server on rank %d has dropped worker %d, which %s", ps->rank,
             worker, what);
    dcommi_log(DCOMMI_LOG_WARN, "%s", text);
    dcommi_header h = {.slot = DCOMMI_PS_DROPPED};
    dcommi_ps_tell(ps, worker, &h, text, strlen(text));
    dcommi_ps_worker_gone(ps, worker);
}

/* ---- messages ---- */

/* Tell a worker how many of its messages have been handled. */
static void dcommi_ps_ack(dcomm_ps *ps, int worker)
{
    dcommi_ps_from *f = &ps->from[worker];
    if (f->next - f->acked >= DCOMMI_PS_ACK_EVERY && ps->clock.of[worker].works) {
        dcommi_header h = {.slot = DCOMMI_PS_ACK, .a = f->next};
        f->acked = f->next;
        dcommi_ps_tell(ps, worker, &h, NULL, 0);
    }
}

/* Handle a message whose turn it is, and take it over. */
static void dcommi_ps_handle(dcomm_ps *ps, dcommi_ps_job *job)
{
    const dcommi_header *h = &job->header;
    job->next = NULL;
    switch (h->slot) {
    case DCOMMI_PS_PUSH:
        if (ps->opts.staleness == 0) {
            ps->stats.late += ps->clock.of[job->from].clock < ps->clock.closed;
            dcommi_ps_stash_add(ps, job);
            return;
        }
        dcommi_ps_push_apply(ps, job->from, h, job->data);
        break;
    case DCOMMI_PS_PULL:
        dcommi_ps_append(&ps->pulls, job);
        return;
    case DCOMMI_PS_CLOCK:
        dcommi_ps_stash_whole(ps, job->from);
        dcommi_ps_clock_end(&ps->clock, job->from, h->a, dcommi_now());
        break;
    default: /* LEAVE */
        dcommi_ps_worker_gone(ps, job->from);
    }
    dcommi_ps_job_free(job);
}

static void dcommi_ps_fetched(dcommi_op *op, dcomm_status status)
{
    dcommi_ps_job *job = (dcommi_ps_job *)op;
    dcomm_ps *ps = job->ps;
    job->fetching = false;
    if (job->dropped || ps->closed) {
        dcommi_ps_job_free(job);
    } else if (status < 0) {
        dcommi_ps_worker_gone(ps, job->from);
    } else {
        dcommi_ps_from_pump(ps, job->from);
        dcommi_ps_go_on(ps);
    }
    dcommi_ps_op_ends(ps);
}

/* Bring a message's payload here. Return true if it is here. */
static bool dcommi_ps_fetch(dcomm_ps *ps, dcommi_ps_job *job)
{
    if (job->desc == NULL || job->fetching) {
        return !job->fetching;
    }
    job->data = job->data != NULL ? job->data : dcommi_huge_alloc(job->len);
    if (job->data == NULL) {
        return false; /* dcommi_ps_server_check tries again */
    }
    void *desc = job->desc;
    job->desc = NULL;
    job->fetching = true;
    job->op.done = dcommi_ps_fetched;
    dcommi_ps_op_begins(ps);
    const dcomm_status status =
        job->transport->call->fetch(job->transport, desc, job->data, job->len, &job->op);
    if (status == DCOMM_IN_PROGRESS) {
        return false;
    }
    job->fetching = false;
    dcommi_ps_op_ends(ps);
    if (status < 0) {
        dcommi_ps_worker_gone(ps, job->from); /* frees the job */
    }
    return status >= 0;
}

/* Return true if a message must wait for the end of the open clock. */
static bool dcommi_ps_too_early(const dcomm_ps *ps, const dcommi_ps_job *job)
{
    return ps->opts.staleness == 0 && dcommi_ps_ended(&ps->clock, job->from) &&
           (job->header.slot == DCOMMI_PS_PUSH || job->header.slot == DCOMMI_PS_CLOCK);
}

/* Return true if a message fits those before it and this server's rows. */
static bool dcommi_ps_fits(const dcomm_ps *ps, const dcommi_ps_job *job)
{
    const dcommi_header *h = &job->header;
    return h->slot == DCOMMI_PS_CLOCK
               ? dcommi_ps_clock_fits(&ps->clock, job->from, h->a)
               : h->stage == 0 ||
                     dcommi_ps_valid_list(&ps->tables[h->tag],
                                          (const uint64_t *)(const void *)job->data, h->b);
}

/* Handle the messages of a worker whose turn it is. */
static void dcommi_ps_from_pump(dcomm_ps *ps, int worker)
{
    dcommi_ps_from *f = &ps->from[worker];
    while (f->queue != NULL && f->queue->header.seq == f->next &&
           !dcommi_ps_too_early(ps, f->queue) && dcommi_ps_fetch(ps, f->queue)) {
        dcommi_ps_job *job = f->queue;
        if (!dcommi_ps_fits(ps, job)) {
            dcommi_ps_refuse(ps, worker, "sent a list of rows or a clock that cannot be right");
            return;
        }
        const dcomm_status status =
            job->header.slot == DCOMMI_PS_PUSH ? dcommi_ps_unpack(ps, job) : DCOMM_OK;
        if (status == DCOMM_ERR_NO_MEMORY) {
            return; /* dcommi_ps_server_check tries again */
        }
        if (status < 0) {
            dcommi_ps_refuse(ps, worker, "sent encoded rows that cannot be right");
            return;
        }
        f->queue = job->next;
        f->queued--;
        f->next++;
        dcommi_ps_handle(ps, job);
        dcommi_ps_ack(ps, worker);
    }
}

/* Keep a worker's message until its turn. */
static dcommi_verdict dcommi_ps_take(dcomm_ps *ps, const dcommi_header *h,
                                     dcommi_transport *transport, const dcommi_arrival *arrival)
{
    const int worker = (int)h->src;
    dcommi_ps_from *f = &ps->from[worker];
    if (!ps->clock.of[worker].works) {
        return DCOMMI_CONSUMED; /* it has been told, or has left */
    }
    ps->heard_at = dcommi_now();
    dcommi_ps_job **at = &f->queue;
    while (*at != NULL && (*at)->header.seq < h->seq) {
        at = &(*at)->next;
    }
    if (!dcommi_ps_valid(ps, h, arrival->len) || h->seq < f->next ||
        h->seq - f->next >= 2 * DCOMMI_PS_WINDOW || (*at != NULL && (*at)->header.seq == h->seq)) {
        dcommi_ps_refuse(ps, worker, "sent a message that cannot be right");
        return DCOMMI_CONSUMED;
    }
    const bool here = arrival->data != NULL && arrival->len > 0;
    dcommi_ps_job *job = dcommi_alloc(sizeof *job);
    uint8_t *data = job != NULL && here ? dcommi_huge_alloc(arrival->len) : NULL;
    if (job == NULL || (here && data == NULL)) {
        dcommi_free(job);
        dcommi_ps_refuse(ps, worker, "sent a message for which there is no memory");
        return DCOMMI_CONSUMED;
    }
    if (here) {
        memcpy(data, arrival->data, arrival->len);
    }
    *job = (dcommi_ps_job){.next = *at,
                           .ps = ps,
                           .from = worker,
                           .header = *h,
                           .transport = transport,
                           .desc = here || arrival->len == 0 ? NULL : arrival->desc,
                           .len = arrival->len,
                           .data = data};
    *at = job;
    f->queued++;
    const bool kept = job->desc != NULL;
    dcommi_ps_from_pump(ps, worker);
    dcommi_ps_go_on(ps);
    return kept ? DCOMMI_KEEP : DCOMMI_CONSUMED;
}

/* ---- on time ---- */

/* Tell the workers of pulls that wait for whom they wait. */
static void dcommi_ps_report(dcomm_ps *ps, double now)
{
    const int awaited = dcommi_ps_awaited(&ps->clock);
    for (dcommi_ps_job *job = ps->pulls; job != NULL && awaited >= 0; job = job->next) {
        if (now >= job->next_told && !dcommi_ps_may_pull(&ps->clock, job->from)) {
            dcommi_header h = {.slot = DCOMMI_PS_WAITS,
                               .seq = job->header.seq,
                               .a = (uint64_t)awaited,
                               .b = ps->clock.of[awaited].clock};
            job->next_told = now + DCOMMI_PS_WAITS_S;
            dcommi_ps_tell(ps, job->from, &h, NULL, 0);
        }
    }
}

static void dcommi_ps_server_check(dcomm_ps *ps, double now)
{
    for (int r = 0; r < ps->size; r++) {
        dcommi_ps_from_pump(ps, r); /* for want of memory before */
        if (ps->clock.of[r].works && r != ps->rank) {
            dcommi_suspect_look(ps->comm, r, now, dcommi_silence_every(ps->comm->context));
        }
    }
    dcommi_ps_go_on(ps);
    dcommi_ps_report(ps, now);
}

#endif
