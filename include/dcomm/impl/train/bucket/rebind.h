/* rebind.h - buckets move to another communicator. Their ranks meet there (meet.h), maybe with
 * ranks that create theirs, and all go on at one place of the run (join.h). Until all ranks have
 * come there without an error, the buckets stay with their old communicator as they are. */
#ifndef DCOMMI_BUCKET_REBIND_H
#define DCOMMI_BUCKET_REBIND_H

#include "save.h"

/* The parts of buckets that belong to one communicator. */
typedef struct dcommi_bkt_seat {
    dcomm_comm *comm;
    int rank, size;
    uint64_t *cards;
    dcommi_bkt_paces *paces;
    dcommi_bkt_sight *sights;
} dcommi_bkt_seat;

/* Buckets on their way. */
typedef struct dcommi_bkt_move {
    dcommi_bkt_seat other; /* the seat that they do not use: the new one, then the old one */
    dcomm_buckets_rebind_info info;
    dcommi_bkt_front *front;
    bool deals;                /* their order is another one, and they are built anew: */
    dcommi_bkt_layout layout;  /* so */
    size_t nbuckets;           /* before the move */
    size_t **shards;           /* of each bucket that stays */
    dcomm_feedback **heritage; /* of each legacy the states of all buckets */
} dcommi_bkt_move;

static void dcommi_bkt_swap_seats(dcomm_buckets *b, dcommi_bkt_seat *seat)
{
    const dcommi_bkt_seat was = {b->comm, b->rank, b->size, b->cards, b->paces, b->sights};
    b->comm = seat->comm;
    b->rank = seat->rank;
    b->size = seat->size;
    b->cards = seat->cards;
    b->paces = seat->paces;
    b->sights = seat->sights;
    *seat = was;
}

/* Leave a communicator, and free what others may have read until then. */
static void dcommi_bkt_leave_seat(dcommi_bkt_seat *seat)
{
    (void)dcomm_comm_destroy(&seat->comm); /* its error is known */
    dcommi_free(seat->cards);
    dcommi_bkt_paces_free(seat->paces);
    dcommi_free(seat->sights);
}

static void dcommi_bkt_move_free(dcommi_bkt_move *m)
{
    dcommi_bkt_layout_free(&m->layout);
    for (size_t i = 0; m->shards != NULL && i < m->nbuckets; i++) {
        dcommi_free(m->shards[i]);
    }
    for (size_t i = 0; m->heritage != NULL && i < DCOMMI_BKT_LEGACIES * m->nbuckets; i++) {
        dcomm_feedback_destroy(&m->heritage[i]);
    }
    dcommi_free(m->shards);
    dcommi_free(m->heritage);
}

/* ---- before the meeting ---- */

/* End a step that is under way or has failed. Afterwards nothing uses the buckets' memory but peers
 * that have not heard of that, and residuals are in host memory. */
static dcomm_status dcommi_bkt_halt(dcomm_buckets *b)
{
    if (atomic_load(&b->open)) {
        (void)dcommi_bkt_good(b, dcommi_fail(DCOMM_ERR_ABORTED,
                                             "buckets: rank %d has called dcomm_buckets_rebind in "
                                             "step %" PRIu64,
                                             b->rank, b->steps));
    }
    dcommi_bkt_drain(b);
    for (size_t i = 0; i < b->layout.n; i++) {
        dcomm_feedback *fb = b->layout.buckets[i].feedback;
        if (fb != NULL && fb->begun) {
            dcomm_feedback_fail(fb);
        }
        DCOMMI_TRY(dcommi_feedback_home("dcomm_buckets_rebind", fb));
    }
    return DCOMM_OK;
}

/* Return true if the last step that has sent has no verdict yet. */
static bool dcommi_bkt_pending(const dcomm_buckets *b)
{
    return b->scaler != NULL && !atomic_load(&b->open) && b->scaler->judged != b->sent_steps;
}

/* Say where this rank is in its run. b has its old seat. */
static dcommi_bkt_run dcommi_bkt_run_of(const dcomm_buckets *b)
{
    dcommi_bkt_run run = {.carries = 1,
                          .done = b->sent_steps - dcommi_bkt_pending(b),
                          .undone = b->undone,
                          .rank = (uint64_t)b->met_rank,
                          .ranks = (uint64_t)b->met_size,
                          .watched = b->watched,
                          .scale = b->watched ? dcommi_f64_bits(b->scale) : 0,
                          .good = b->watched ? b->good : 0,
                          .nheirs = b->nlegacies};
    for (size_t i = 0; i < b->nlegacies; i++) {
        run.heirs[i] = b->legacies[i].rank;
    }
    return run;
}

/* Write where this rank is: all go on there. */
static void dcommi_bkt_write_front(dcomm_buckets *b, dcommi_bkt_front *front)
{
    const bool pending = dcommi_bkt_pending(b), broken = pending || atomic_load(&b->open);
    const dcomm_scaler *s = b->scaler;
    *front = (dcommi_bkt_front){.steps = pending ? b->base_before : b->base,
                                .sent_steps = b->sent_steps - pending,
                                .built = (uint64_t)b->built,
                                .nbuckets = b->layout.n,
                                .has_scaler = s != NULL};
    if (s != NULL) {
        front->scale = b->scale;
        front->good = b->good;
        front->scaler_steps = s->steps;
        front->scaler_skipped = s->skipped;
        front->scaler_opts = s->opts;
    }
    dcommi_bkt_errors *errors = dcommi_bkt_front_errors(front);
    for (size_t i = 0; i < b->layout.n; i++) {
        const dcommi_bkt *k = &b->layout.buckets[i];
        if (k->feedback != NULL) {
            errors[i].step = broken ? k->before : k->feedback->step;
            errors[i].tensor = k->feedback->opts.tensor;
        }
    }
    memcpy(dcommi_bkt_front_sequence(b, front), b->sequence, b->nparams * sizeof *b->sequence);
}

/* ---- at the meeting ---- */

static dcomm_status dcommi_bkt_stale(const dcommi_bkt_legacy *legacy, uint64_t step,
                                     const dcommi_bkt_front *front)
{
    return dcommi_fail(
        DCOMM_ERR_INVALID,
        "dcomm_buckets_rebind: the state of the former rank %zu was saved before step "
        "%" PRIu64 ", and the ranks go on at step %" PRIu64
        "; what that rank has sent in between would count twice",
        legacy->rank, step, front->steps);
}

/* Read the legacies, now that it is known where all go on. */
static dcomm_status dcommi_bkt_read_legacies(const dcomm_buckets *b, dcommi_bkt_move *m)
{
    const dcommi_bkt_errors *errors = dcommi_bkt_front_errors(m->front);
    m->heritage = dcommi_calloc(DCOMMI_BKT_LEGACIES * b->layout.n, sizeof *m->heritage);
    if (m->heritage == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    for (size_t l = 0; l < b->nlegacies; l++) {
        const dcommi_bkt_legacy *legacy = &b->legacies[l];
        dcommi_bkt_head h;
        if (legacy->state == NULL) {
            continue;
        }
        memcpy(&h, legacy->state, sizeof h);
        if (h.sent_steps != m->front->sent_steps || m->deals ||
            memcmp(legacy->state + sizeof h, b->sequence, b->nparams * sizeof *b->sequence) != 0) {
            return dcommi_bkt_stale(legacy, h.steps, m->front);
        }
        const size_t front = dcommi_bkt_front_bytes(&h);
        dcommi_bkt_walk walk = {legacy->state + front, legacy->bytes - front - sizeof(uint64_t)};
        for (size_t i = 0; i < b->layout.n; i++) {
            dcomm_feedback **to = &m->heritage[l * b->layout.n + i];
            DCOMMI_TRY(dcommi_bkt_load_one(b, &b->layout.buckets[i], &walk, legacy->rank, to));
            if (*to != NULL && (*to)->step != errors[i].step) {
                return dcommi_bkt_stale(legacy, h.steps, m->front);
            }
        }
    }
    return DCOMM_OK;
}

/* Allocate all that the move takes. */
static dcomm_status dcommi_bkt_pack_up(dcomm_buckets *b, dcommi_bkt_move *m)
{
    const uint32_t *sequence = dcommi_bkt_front_sequence(b, m->front);
    const size_t order = b->nparams * sizeof *sequence;
    m->nbuckets = b->layout.n;
    m->deals = memcmp(b->sequence, sequence, order) != 0 || b->layout.n != m->front->nbuckets;
    if (m->deals) {
        DCOMMI_TRY(dcommi_bkt_build(b, sequence, &m->layout));
    }
    b->cards = dcommi_bkt_cards_make(b);
    b->paces = dcommi_bkt_paces_make(b);
    b->sights = b->watched ? dcommi_calloc((size_t)b->size + 1, sizeof *b->sights) : NULL;
    m->shards = dcommi_calloc(b->layout.n, sizeof *m->shards);
    if (b->cards == NULL || b->paces == NULL || (b->watched && b->sights == NULL) ||
        m->shards == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < b->layout.n && b->opts.sharded && !m->deals; i++) {
        m->shards[i] = dcommi_bkt_cut(b, &b->layout.buckets[i]);
        if (m->shards[i] == NULL) {
            return DCOMM_ERR_NO_MEMORY;
        }
    }
    return dcommi_bkt_read_legacies(b, m);
}

/* Meet the other ranks, on the new seat. `run` is of the old one. */
static dcomm_status dcommi_bkt_meet_all(dcomm_buckets *b, dcommi_bkt_move *m, dcomm_status status,
                                        const dcommi_bkt_run *run)
{
    DCOMMI_THEN(status, dcommi_bkt_introduce_devices(b));
    DCOMMI_TRY(dcommi_bkt_agree(b, status, run, &m->info));
    m->front = dcommi_borrow(b->comm, 1, dcommi_bkt_front_room(b));
    if (m->front == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    if (b->rank == m->info.source) {
        dcommi_bkt_write_front(b, m->front);
    }
    DCOMMI_TRY(dcommi_bkt_pass_front(b, m->front, m->info.source));
    return dcommi_bkt_all_good(b, dcommi_bkt_pack_up(b, m));
}

/* ---- behind the meeting ---- */

/* Forget the step that was under way. */
static void dcommi_bkt_forget_step(dcomm_buckets *b)
{
    for (size_t i = 0; i < b->nparams; i++) {
        atomic_store(&b->params[i].mark, DCOMMI_BKT_IDLE);
        b->params[i].touched = false;
    }
    for (size_t i = 0; i < b->layout.n; i++) {
        dcommi_bkt *k = &b->layout.buckets[i];
        if (k->event != NULL) {
            dcommi_devices->stream_unmark(k->device->number, k->event);
            k->event = NULL;
        }
        atomic_store(&k->pending, k->nparams);
        atomic_store(&k->finished, false);
        k->alone_s = 0;
    }
    atomic_store(&b->marked, 0);
    b->begun = b->told = b->cards_here = false;
    b->step = (dcomm_buckets_step){0};
    b->seen = (dcommi_bkt_sight){0};
    b->next = 0;
    atomic_store(&b->open, false);
    atomic_store(&b->failed, 0);
    b->message[0] = 0;
    dcommi_bkt_closing(b, false);
}

/* Use the order of the front. Gradients inside buckets move. */
static void dcommi_bkt_deal_anew(dcomm_buckets *b, dcommi_bkt_move *m)
{
    double lost = 0;
    for (size_t i = 0; i < b->layout.n; i++) {
        const dcomm_feedback *fb = b->layout.buckets[i].feedback;
        lost += b->layout.buckets[i].lost;
        if (fb != NULL && m->front->sent_steps > 0) { /* before the first step there were none */
            (void)dcommi_feedback_norm2(&fb->worker, &lost); /* which are in host memory */
            (void)dcommi_feedback_norm2(&fb->owner, &lost);
        }
    }
    for (size_t i = 0; i < m->layout.n; i++) {
        dcommi_bkt_move_grads(b, &m->layout.buckets[i]);
    }
    dcommi_bkt_layout_free(&b->layout);
    dcommi_bkt_settle(b, &m->layout);
    m->layout = (dcommi_bkt_layout){0};
    memcpy(b->sequence, dcommi_bkt_front_sequence(b, m->front), b->nparams * sizeof *b->sequence);
    if (b->layout.n > 0) {
        b->layout.buckets[0].lost = lost;
    }
}

/* Bring each bucket to the front: its shards, its residuals. */
static dcomm_status dcommi_bkt_go_back(dcomm_buckets *b, dcommi_bkt_move *m)
{
    const dcommi_bkt_errors *errors = dcommi_bkt_front_errors(m->front);
    for (size_t i = 0; i < b->layout.n; i++) {
        dcommi_bkt *k = &b->layout.buckets[i];
        if (!m->deals && b->opts.sharded) {
            dcommi_free(k->shards);
            k->shards = m->shards[i];
            m->shards[i] = NULL;
        }
        if (k->feedback == NULL) {
            continue;
        }
        bool reset;
        k->feedback->opts.tensor = (uint32_t)errors[i].tensor;
        DCOMMI_TRY(dcommi_feedback_back(k->feedback, errors[i].step, &reset, &k->lost));
        b->reset += reset;
        for (size_t l = 0; l < b->nlegacies; l++) {
            const dcomm_feedback *from = m->heritage[l * b->layout.n + i];
            if (from != NULL) {
                dcommi_feedback_inherit(k->feedback, from);
            }
        }
    }
    for (size_t l = 0; l < b->nlegacies; l++) {
        b->legacies[l].state = NULL;
    }
    return DCOMM_OK;
}

/* Settle on the new seat. The old communicator ends first: until then its peers may use the
 * buckets' memory. Nobody waits for those who are not here. */
static dcomm_status dcommi_bkt_arrive_at(dcomm_buckets *b, dcommi_bkt_move *m)
{
    const double timeout_s = b->comm->timeout_s;
    if (m->info.left > 0 && dcomm_comm_status(m->other.comm) == DCOMM_OK) {
        dcomm_comm_abort(m->other.comm, "its buckets have moved to another communicator");
    }
    dcommi_bkt_leave_seat(&m->other);
    dcommi_bkt_drain_devices(b, timeout_s);
    dcommi_bkt_forget_step(b);
    b->undone = m->info.undone;
    if (m->deals) {
        dcommi_bkt_deal_anew(b, m);
    }
    dcommi_bkt_stand(b, m->front);
    b->built_at = b->built_at < b->sent_steps ? b->built_at : b->sent_steps;
    if (b->scaler != NULL) {
        dcommi_scaler_stand(b->scaler, m->front);
    }
    return dcommi_bkt_go_back(b, m);
}

/* Forget the legacies that were not taken. */
static void dcommi_bkt_forget_legacies(dcomm_buckets *b)
{
    size_t n = 0;
    for (size_t i = 0; i < b->nlegacies; i++) {
        if (b->legacies[i].state == NULL) {
            b->legacies[n++] = b->legacies[i];
        }
    }
    b->nlegacies = n;
}

/* ---- the public calls ---- */

DCOMM_API dcomm_status dcomm_buckets_rebind(dcomm_buckets *b, dcomm_comm *comm)
{
    DCOMMI_NEED(b);
    DCOMMI_NEED(comm);
    DCOMMI_TRY(dcommi_check_fork());
    DCOMMI_TRY(dcommi_check_no_group("dcomm_buckets_rebind"));
    dcommi_bkt_move m = {.deals = false};
    DCOMMI_TRY(dcomm_comm_dup(comm, &m.other.comm));
    m.other.comm->timed = true;
    m.other.rank = m.other.comm->rank;
    m.other.size = m.other.comm->size;
    const dcomm_on_error on_error = b->comm->on_error;
    b->comm->on_error = DCOMM_ON_ERROR_RETURN; /* the caller leaves it */
    dcomm_status status = dcommi_bkt_halt(b);
    const dcommi_bkt_run run = dcommi_bkt_run_of(b);
    dcommi_bkt_swap_seats(b, &m.other);
    status = dcommi_bkt_meet_all(b, &m, status, &run);
    if (status >= 0) {
        status = dcommi_bkt_arrive_at(b, &m);
        dcommi_give_back(b->comm, m.front);
        status = dcommi_bkt_good(b, dcommi_bkt_unite(b, status, &m.info));
    } else {
        char why[DCOMMI_MESSAGE_MAX];
        snprintf(why, sizeof why, "%s", dcomm_last_error());
        dcommi_bkt_swap_seats(b, &m.other);
        dcommi_bkt_leave_seat(&m.other);
        b->comm->on_error = on_error;
        status = dcommi_fail(status, "%s", why);
    }
    dcommi_bkt_move_free(&m);
    dcommi_bkt_forget_legacies(b);
    return status;
}

DCOMM_API dcomm_status dcomm_buckets_inherit(dcomm_buckets *b, const void *state, size_t bytes)
{
    dcommi_bkt_head h;
    DCOMMI_NEED(b);
    DCOMMI_NEED(state);
    DCOMMI_TRY(dcommi_bkt_read_head(b, state, bytes, (size_t)b->met_rank, &h));
    if (h.ranks != (uint64_t)b->met_size || h.rank >= h.ranks || h.rank == (uint64_t)b->met_rank) {
        return dcommi_fail(DCOMM_ERR_INVALID,
                           "dcomm_buckets_inherit: the state is of rank %" PRIu64 " of %" PRIu64
                           ", and this was rank %d of %d",
                           h.rank, h.ranks, b->met_rank, b->met_size);
    }
    for (size_t i = 0; i < b->nlegacies; i++) {
        if (b->legacies[i].rank == h.rank && b->legacies[i].state == NULL) {
            return DCOMM_OK; /* a rebind that has failed has taken it */
        }
    }
    if (b->nlegacies == DCOMMI_BKT_LEGACIES) {
        return dcommi_fail(DCOMM_ERR_INVALID,
                           "dcomm_buckets_inherit: this rank inherits from %d ranks already; give "
                           "the state to another rank",
                           DCOMMI_BKT_LEGACIES);
    }
    b->legacies[b->nlegacies++] = (dcommi_bkt_legacy){state, bytes, (size_t)h.rank};
    return DCOMM_OK;
}

DCOMM_API dcomm_status dcomm_buckets_get_rebind(const dcomm_buckets *b,
                                                dcomm_buckets_rebind_info *info)
{
    DCOMMI_NEED(b);
    DCOMMI_NEED(info);
    *info = b->rebound;
    return DCOMM_OK;
}

#endif
