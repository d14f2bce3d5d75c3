/* grow.h - a communicator of the ranks of another one and of newcomers.
 *
 * Newcomers wait in a lobby at rank 0 (boot/lobby.h). In each attempt, rank 0 invites some of them
 * and tells the old ranks where to meet; then all create a communicator as any creation does. An
 * agreement of the old ranks confirms it: all have their part, and none of them has failed. Only
 * then do the newcomers hear that they are in. An attempt that a newcomer has spoilt is repeated
 * with those that are left, without newcomers if need be.
 *
 * A thread creates the part, while the caller looks for deaths of old ranks. A rank that cannot go
 * on fails the old communicator: no other rank then has a part that all have confirmed. */
#ifndef DCOMMI_COMM_GROW_H
#define DCOMMI_COMM_GROW_H

#include "create.h"
#include "shrink.h"

#define DCOMMI_GROW_SALT 0x67726f77u /* of ids, as DCOMMI_SHRINK_SALT */
#define DCOMMI_GROW_SLICE_S 1.0      /* rank 0 tells the others that it waits, so often */
#define DCOMMI_GROW_NAP 500000       /* nanoseconds between looks at newcomers and ranks */
#define DCOMMI_GROW_REPORT_S 2.0     /* seconds for newcomers to leave an attempt that failed */
#define DCOMMI_GROW_LOOK_S 0.02      /* seconds between looks if the old communicator failed */

/* The next action, which rank 0 tells the others. */
enum { DCOMMI_GROW_WAITS = 1, DCOMMI_GROW_TRIES, DCOMMI_GROW_FAILS };

typedef struct dcommi_grow_word {
    int32_t what;
    int32_t newcomers; /* of the attempt; 0: a communicator of the same ranks */
    double timeout_s;
    dcomm_id id;          /* of the attempt's rendezvous */
    dcommi_boot_word why; /* FAILS */
} dcommi_grow_word;

typedef struct dcommi_growth {
    dcommi_grow_word word;
    dcomm_comm *comm;
    dcommi_agreement *g;
    dcomm_comm *part; /* the new communicator, as far as this rank is concerned */
    dcomm_tuning tuning;
    /* rank 0: */
    dcommi_lobby *lobby;
    dcommi_attempt attempt;
    int most; /* newcomers */
    double until;
} dcommi_growth;

/* Return the error of the old communicator. If it has none, fail it with `status` and the sentence
 * of dcommi_message, which other ranks get as this rank's. */
static dcomm_status dcommi_grow_poison(dcomm_comm *comm, dcomm_status status)
{
    char why[DCOMMI_MESSAGE_MAX];
    memcpy(why, dcommi_message, sizeof why);
    dcommi_token_take(comm->context);
    if (atomic_load(&comm->poisoned) == 0) {
        dcommi_poison(comm, status, "rank %d: %s", comm->rank, why);
    }
    dcommi_token_release(comm->context);
    return dcommi_fail((dcomm_status)atomic_load(&comm->poisoned), "%s", comm->message);
}

static bool dcommi_grow_poisoned(const dcommi_growth *w)
{
    return atomic_load_explicit(&w->comm->poisoned, memory_order_acquire) != 0;
}

static void dcommi_grow_nap(const dcommi_growth *w)
{
    dcommi_progress_or_yield(w->comm->context);
    nanosleep(&(struct timespec){.tv_nsec = DCOMMI_GROW_NAP}, NULL);
}

/* ---- rank 0 ---- */

/* Check rank 0's arguments, and open the lobby. */
static dcomm_status dcommi_grow_open(dcommi_growth *w, const dcomm_id *id, int max_new,
                                     double wait_s)
{
    if (max_new < 1) {
        return dcommi_fail(DCOMM_ERR_INVALID, "max_new is %d; it must be 1 or more", max_new);
    }
    if (!(wait_s >= 0)) {
        return dcommi_fail(DCOMM_ERR_INVALID, "wait_s is %g; it must be 0 or more", wait_s);
    }
    const int room = DCOMMI_RDV_SIZE_MAX - w->comm->size;
    w->most = max_new < room ? max_new : room;
    w->until = dcommi_now() + wait_s;
    dcommi_token_take(w->comm->context);
    dcomm_status status = dcommi_lobby_of(&w->comm->context->lobbies, id, &w->lobby);
    dcommi_token_release(w->comm->context);
    return status;
}

/* Wait for newcomers for a while. Return true if enough have come or the time is up. */
static bool dcommi_grow_collect(const dcommi_growth *w)
{
    const double quarter = w->comm->timeout_s / 4, now = dcommi_now();
    const double slice = now + (quarter < DCOMMI_GROW_SLICE_S ? quarter : DCOMMI_GROW_SLICE_S);
    for (;;) {
        const double at = dcommi_now();
        if (dcommi_lobby_waiting(w->lobby) >= w->most || at >= w->until) {
            return true;
        }
        if (at >= slice || dcommi_grow_poisoned(w)) {
            return false;
        }
        dcommi_grow_nap(w);
    }
}

/* Begin an attempt. A newcomer whose host is silent does not hold it up for longer than an old
 * rank would. */
static dcomm_status dcommi_grow_try(dcommi_growth *w)
{
    const double most = 2 * w->comm->liveness_s;
    w->word.what = DCOMMI_GROW_TRIES;
    w->word.timeout_s = w->comm->timeout_s < most ? w->comm->timeout_s : most;
    w->attempt.newcomers = 0;
    if (w->most > 0) {
        DCOMMI_TRY(
            dcommi_attempt_begin(w->lobby, w->comm->size, w->most, w->word.timeout_s, &w->attempt));
    }
    w->word.newcomers = w->attempt.newcomers;
    w->word.id = w->attempt.id;
    return DCOMM_OK;
}

/* Note that an attempt has failed, for the reason in dcommi_message. Return DCOMM_OK if it may
 * succeed without the newcomers that have spoilt it. */
static dcomm_status dcommi_grow_retry(dcommi_growth *w, dcomm_status failed)
{
    char why[DCOMMI_MESSAGE_MAX];
    memcpy(why, dcommi_message, sizeof why);
    const double quarter = w->comm->timeout_s / 4;
    const double until =
        dcommi_now() + (quarter < DCOMMI_GROW_REPORT_S ? quarter : DCOMMI_GROW_REPORT_S);
    dcommi_rdv_guests guests = dcommi_attempt_guests(w->lobby, &w->attempt);
    while (guests.reported < guests.there && dcommi_now() < until && !dcommi_grow_poisoned(w)) {
        dcommi_grow_nap(w);
        guests = dcommi_attempt_guests(w->lobby, &w->attempt);
    }
    dcommi_attempt_end(w->lobby, &w->attempt, false, false);
    w->most = (int)guests.reported;
    return w->most < w->attempt.newcomers ? DCOMM_OK : dcommi_fail(failed, "%s", why);
}

/* Find the next word to the others. `status`: of opening, or of the last attempt. */
static void dcommi_grow_next(dcommi_growth *w, dcomm_status status)
{
    if (status < 0 && w->word.what == DCOMMI_GROW_TRIES && w->attempt.newcomers > 0) {
        status = dcommi_grow_retry(w, status);
        DCOMMI_THEN(status, dcommi_grow_try(w));
    } else if (status >= 0) {
        w->word.what = DCOMMI_GROW_WAITS;
        status = dcommi_grow_collect(w) ? dcommi_grow_try(w) : DCOMM_OK;
    }
    if (status < 0) {
        w->word.what = DCOMMI_GROW_FAILS;
        w->word.why = dcommi_boot_word_of(status);
    }
}

/* End rank 0's part in the last attempt: its newcomers are in, or wait for the next one. */
static void dcommi_grow_end(dcommi_growth *w, dcomm_status status)
{
    if (w->lobby != NULL && w->attempt.newcomers > 0) {
        dcommi_attempt_end(w->lobby, &w->attempt, status >= 0, status < 0);
    }
}

/* ---- an attempt ---- */

/* The work of the thread that founds the new communicator. */
typedef struct dcommi_grow_founding {
    dcommi_growth *w;
    dcomm_status status;
    char why[DCOMMI_MESSAGE_MAX];
    _Atomic bool over;
} dcommi_grow_founding;

static void *dcommi_grow_found_main(void *user)
{
    dcommi_grow_founding *f = user;
    dcommi_growth *w = f->w;
    f->status = dcommi_comm_found(w->part, w->word.timeout_s, &w->tuning, NULL);
    memcpy(f->why, dcommi_message, sizeof f->why);
    atomic_store_explicit(&f->over, true, memory_order_release);
    return NULL;
}

/* Make an empty part, with the settings of the old communicator. */
static dcomm_status dcommi_grow_prepare(dcommi_growth *w)
{
    dcomm_comm *comm = w->comm;
    const int size = comm->size + w->word.newcomers;
    w->part = dcommi_comm_new(comm->context);
    if (w->part == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    dcommi_comm_inherit(w->part, comm, dcommi_quorum_fits(comm->quorum, size) ? comm->quorum : 0);
    w->part->tunes = true; /* all take over rank 0's numbers */
    w->part->opts = (dcomm_comm_opts){
        .boot = DCOMM_BOOT_ID, .rank = comm->rank, .size = size, .id = w->word.id};
    dcommi_comm_lock(comm);
    w->tuning = comm->chooser->tuning;
    dcommi_comm_unlock(comm);
    return DCOMM_OK;
}

/* Create the new communicator with the newcomers. Give up if an old rank has failed, or, on rank 0,
 * if a newcomer is lost. */
static dcomm_status dcommi_grow_found(dcommi_growth *w)
{
    dcommi_grow_founding f = {.w = w};
    pthread_t thread;
    dcomm_status status = dcommi_grow_prepare(w);
    const int error = status >= 0 ? pthread_create(&thread, NULL, dcommi_grow_found_main, &f) : 0;
    if (error != 0) {
        status = dcommi_fail(DCOMM_ERR_SYSTEM, "grow: no thread to create the communicator in: %s",
                             strerror(error));
    }
    if (status < 0) { /* the other ranks wait for this one */
        if (w->comm->rank == 0) {
            dcommi_attempt_forget(&w->word.id);
        }
        return dcommi_grow_poison(w->comm, status);
    }
    bool lost = false;
    while (!atomic_load_explicit(&f.over, memory_order_acquire)) {
        lost = lost ||
               (w->comm->rank == 0 &&
                (int)dcommi_attempt_guests(w->lobby, &w->attempt).there < w->attempt.newcomers);
        if (lost || dcommi_grow_poisoned(w)) {
            atomic_store(&w->part->cancel, 1);
        }
        dcommi_grow_nap(w);
    }
    pthread_join(thread, NULL);
    return f.status >= 0 ? DCOMM_OK
           : f.status == DCOMM_ERR_ABORTED && lost
               ? dcommi_fail(DCOMM_ERR_PEER, "grow: a newcomer was lost")
               : dcommi_fail(f.status, "%s", f.why);
}

/* Make a communicator of the same ranks. */
static dcomm_status dcommi_grow_copy(dcommi_growth *w)
{
    const dcomm_comm *comm = w->comm;
    int *ranks = dcommi_calloc((size_t)comm->size, sizeof *ranks);
    if (ranks == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    for (int r = 0; r < comm->size; r++) {
        ranks[r] = r;
    }
    dcomm_status status = dcommi_comm_make(
        comm, ranks, comm->size, dcommi_mix(dcommi_mix(w->g->key, DCOMMI_GROW_SALT), w->g->taken),
        comm->quorum, &w->part);
    dcommi_free(ranks);
    return status;
}

static void dcommi_grow_drop(dcommi_growth *w)
{
    if (w->part != NULL) {
        if (w->word.newcomers > 0) {
            dcommi_comm_abandon_peers(w->part);
        }
        dcommi_comm_drop(w->part);
        w->part = NULL;
    }
}

/* Return the result of an agreement on an attempt. Ranks that have failed spoil it. */
static dcomm_status dcommi_grow_decided(dcommi_growth *w, dcomm_status tried)
{
    dcommi_agree *a = w->g->agree;
    char why[DCOMMI_MESSAGE_MAX], failed[112];
    memcpy(why, dcommi_message, sizeof why);
    dcommi_token_take(w->comm->context);
    const bool whole = dcommi_agree_empty(a, DCOMMI_AGREE_LAST);
    const bool several =
        dcommi_set_text(dcommi_agree_look(a, DCOMMI_AGREE_LAST), a->size, failed, sizeof failed);
    const uint64_t word = a->last;
    dcommi_token_release(w->comm->context);
    if (!whole) {
        dcommi_fail(DCOMM_ERR_PEER, "grow: %s %s failed", failed, several ? "have" : "has");
        return dcommi_grow_poison(w->comm, DCOMM_ERR_PEER);
    }
    return tried < 0 ? dcommi_fail(tried, "%s", why)
                     : dcommi_agreement_parts(word, "grown communicator");
}

/* Agree that all old ranks have their part. A rank that has none does not wait for the agreement
 * once the old communicator has failed: nobody can succeed any more. */
static dcomm_status dcommi_grow_confirm(dcommi_growth *w, dcomm_status tried)
{
    const double until = dcommi_now() + w->comm->timeout_s + DCOMMI_RDV_TELL_S;
    char why[DCOMMI_MESSAGE_MAX];
    memcpy(why, dcommi_message, sizeof why);
    w->g->status = tried;
    dcomm_status status;
    bool vain, waits;
    do {
        const double now = dcommi_now(), soon = now + DCOMMI_GROW_LOOK_S;
        vain = tried < 0 && dcommi_grow_poisoned(w);
        status = dcommi_agreement_reach(w->g, "grow", dcommi_agreement_word(w->g),
                                        vain         ? now
                                        : tried >= 0 ? until
                                                     : soon);
        waits = status == DCOMM_ERR_TIMEOUT && !vain && dcommi_now() < until;
    } while (waits);
    if (status < 0) {
        return dcommi_grow_poison(w->comm, status);
    }
    memcpy(dcommi_message, why, sizeof why);
    return dcommi_grow_decided(w, tried);
}

/* ---- the call ---- */

/* Grow. `status`: of rank 0's arguments. */
static dcomm_status dcommi_grow_run(dcommi_growth *w, dcomm_status status)
{
    for (;;) {
        if (w->comm->rank == 0) {
            dcommi_grow_next(w, status);
        }
        status = dcomm_broadcast(w->comm, &w->word, &w->word, sizeof w->word, DCOMM_U8, 0, NULL);
        if (status < 0) {
            if (w->comm->rank == 0 && w->word.what == DCOMMI_GROW_TRIES) {
                dcommi_attempt_forget(&w->word.id);
            }
            return dcommi_grow_poison(w->comm, status);
        }
        if (w->word.what == DCOMMI_GROW_FAILS) {
            return w->comm->rank == 0
                       ? dcommi_fail((dcomm_status)w->word.why.status, "%s", w->word.why.text)
                       : dcommi_boot_word_read(&w->word.why, sizeof w->word.why, 0);
        }
        if (w->word.what == DCOMMI_GROW_TRIES) {
            status = w->word.newcomers > 0 ? dcommi_grow_found(w) : dcommi_grow_copy(w);
            status = dcommi_grow_confirm(w, status);
            if (status >= 0) {
                return status;
            }
            dcommi_grow_drop(w);
            if (dcommi_grow_poisoned(w)) {
                return dcommi_grow_poison(w->comm, status);
            }
        }
    }
}

DCOMM_API dcomm_status dcomm_comm_grow(dcomm_comm *comm, const dcomm_id *id, int max_new,
                                       double wait_s, dcomm_comm **new_p)
{
    dcommi_agreement *g;
    DCOMMI_NEED(new_p);
    *new_p = NULL;
    DCOMMI_TRY(dcommi_agreement_for(comm, "grow", DCOMMI_AGREE_GROW, &g));
    if (atomic_load(&comm->poisoned) != 0) {
        return dcommi_grow_poison(comm, DCOMM_OK);
    }
    dcommi_growth *w = dcommi_borrow(comm, 1, sizeof *w);
    if (w == NULL) {
        return dcommi_grow_poison(comm, DCOMM_ERR_NO_MEMORY);
    }
    w->comm = comm;
    w->g = g;
    dcomm_status status = comm->rank == 0 ? dcommi_grow_open(w, id, max_new, wait_s) : DCOMM_OK;
    status = dcommi_grow_run(w, status);
    dcommi_grow_end(w, status);
    if (status < 0) {
        dcommi_grow_drop(w);
        dcommi_say_failed(comm->on_error, comm->rank, status, dcommi_message);
    } else if (w->word.newcomers > 0) {
        dcommi_comm_enter(w->part);
    } else {
        dcommi_comm_begin(w->part);
    }
    *new_p = w->part;
    dcommi_give_back(comm, w);
    return status < 0 ? status : DCOMM_OK;
}

#endif
