/* shrink.h - a communicator of the ranks that are left.
 *
 * The parent may be unusable, so the id of a shrunk communicator comes from what all survivors
 * know: who they are, and the number of the attempt. Ranks may have tried a different number of
 * times. So all use the highest number that a survivor announces (SHRINK). A rank that hears a
 * higher number while it waits follows, unless the sender has completed the attempt that this rank
 * still waits in. A survivor without memory for an attempt announces that as well, so nobody waits
 * for it. */
#ifndef DCOMMI_COMM_SHRINK_H
#define DCOMMI_COMM_SHRINK_H

#include "api_coll.h"
#include "derive.h"

typedef struct dcommi_shrink {
    dcomm_comm *comm;
    int *ranks, size; /* the survivors: members without shrink_out */
    uint64_t set;     /* a hash of the survivors */
    uint64_t number;  /* of the attempt */
    double until;
} dcommi_shrink;

/* Return the highest attempt that a survivor has begun. `waiting`: skip survivors that have
 * completed our attempt. */
static uint64_t dcommi_shrink_highest(const dcommi_shrink *s, bool waiting)
{
    uint64_t highest = s->number;
    dcommi_token_take(s->comm->context);
    for (int r = 0; r < s->comm->size; r++) {
        const dcommi_member *m = &s->comm->members[r];
        if (!m->shrink_out && m->shrink_set == s->set && m->shrink_try > highest &&
            (!waiting || m->shrink_done < s->number)) {
            highest = m->shrink_try;
        }
    }
    dcommi_token_release(s->comm->context);
    return highest;
}

/* Announce this rank's attempt, and the status with which it gave that up (DCOMM_OK: it did
 * not). */
static dcomm_status dcommi_shrink_say(const dcommi_shrink *s, dcomm_status failed)
{
    dcomm_comm *comm = s->comm;
    dcomm_status status = DCOMM_OK;
    dcommi_token_take(comm->context);
    for (int r = 0; r < comm->size; r++) {
        const dcommi_member *m = &comm->members[r];
        if (!m->shrink_out && m->peer >= 0 && !m->gone && !comm->context->peers[m->peer].lost) {
            dcommi_header h = {.type = DCOMMI_MSG_SHRINK,
                               .a = s->set,
                               .b = s->number,
                               .tag = (uint32_t)-failed,
                               .seq = comm->shrunk_set == s->set ? comm->shrunk_try : 0};
            dcomm_status sent = dcommi_send_header(comm, r, &h, NULL, 0);
            status =
                sent == DCOMM_ERR_NO_MEMORY ? sent : status; /* a lost peer is noticed elsewhere */
        }
    }
    dcommi_token_release(comm->context);
    return status;
}

/* Begin the attempt with this number, and announce it unless it is 1, with which all begin. */
static dcomm_status dcommi_shrink_begin(dcommi_shrink *s, uint64_t number)
{
    dcomm_comm *comm = s->comm;
    s->number = number;
    comm->shrink_tries = number > comm->shrink_tries ? number : comm->shrink_tries;
    return number > 1 ? dcommi_shrink_say(s, DCOMM_OK) : DCOMM_OK;
}

/* Give up an attempt on this rank alone, for the reason in dcommi_message. Announce it, because
 * the others wait. */
static dcomm_status dcommi_shrink_give_up(const dcommi_shrink *s, dcomm_status status)
{
    char why[DCOMMI_MESSAGE_MAX];
    memcpy(why, dcommi_message, sizeof why);
    if (dcommi_shrink_say(s, status) < 0) { /* try again: this memory was free a moment ago */
        dcommi_shrink_say(s, status);
    }
    memcpy(dcommi_message, why, sizeof why);
    return status;
}

/* Return the error with which another survivor has given up this attempt, or DCOMM_IN_PROGRESS.
 * `made` is the communicator of the attempt. */
static dcomm_status dcommi_shrink_others(const dcommi_shrink *s, dcomm_comm *made)
{
    dcomm_status status = DCOMM_IN_PROGRESS;
    dcommi_token_take(s->comm->context);
    for (int i = 0; i < s->size; i++) {
        const int r = s->ranks[i];
        const dcommi_member *m = &s->comm->members[r];
        if (m->shrink_set == s->set && m->shrink_try == s->number && m->shrink_failed < 0) {
            made->members[i].gone = true; /* it may have no communicator, so no goodbye comes */
            status = dcommi_fail((dcomm_status)m->shrink_failed,
                                 "rank %d could not make its part of the shrunk communicator: %s",
                                 r, dcomm_strerror((dcomm_status)m->shrink_failed));
        }
    }
    dcommi_token_release(s->comm->context);
    return status;
}

/* Make one attempt: every survivor enters a barrier of the new communicator. DCOMM_IN_PROGRESS:
 * another attempt has begun, with the number s->number. */
static dcomm_status dcommi_shrink_try(dcommi_shrink *s, dcomm_comm **new_p)
{
    dcomm_request *request = NULL;
    /* Name the algorithm, since a choice would need memory. */
    dcomm_coll_opts opts = {.timeout_s = s->until - dcommi_now(), .algo = "dissemination"};
    if (opts.timeout_s <= 0) {
        return DCOMM_ERR_TIMEOUT;
    }
    dcomm_status status =
        dcommi_comm_derive(s->comm, s->ranks, s->size, dcommi_mix(s->set, s->number),
                           DCOMM_ON_ERROR_RETURN, new_p); /* only the attempt fails */
    if (status < 0) {
        return dcommi_shrink_give_up(s, status);
    }
    status = dcommi_barrier(*new_p, &opts, &request);
    if (status < 0) {
        dcommi_shrink_give_up(s, status);
    }
    uint64_t highest = s->number;
    while (status >= 0 && highest == s->number &&
           (status = dcomm_test(&request)) == DCOMM_IN_PROGRESS) {
        highest = dcommi_shrink_highest(s, true);
        status = highest == s->number ? dcommi_shrink_others(s, *new_p) : status;
        dcommi_progress_or_yield(s->comm->context);
    }
    if (status == DCOMM_OK) {
        return DCOMM_OK;
    }
    /* A survivor ran out of time and gave up. The others try again while they have time. */
    if (status == DCOMM_ERR_TIMEOUT || status == DCOMM_ERR_ABORTED) {
        highest = dcommi_shrink_highest(s, false);
        highest = highest > s->number ? highest : s->number + 1;
    }
    if (highest > s->number && dcommi_now() < s->until) {
        /* Announce the new attempt before the others hear that the old one is over. */
        status = dcommi_shrink_begin(s, highest);
        status = status < 0 ? dcommi_shrink_give_up(s, status) : DCOMM_IN_PROGRESS;
    }
    char why[DCOMMI_MESSAGE_MAX];
    memcpy(why, dcommi_message, sizeof why);
    if (request != NULL) {
        dcomm_comm_abort(*new_p, "another attempt at shrinking has begun");
        dcomm_status ended = dcomm_wait(&request);
        (void)ended; /* nobody needs its result */
    }
    dcomm_comm_destroy(new_p);
    memcpy(dcommi_message, why, sizeof why);
    return status;
}

static dcomm_status dcommi_shrink_agree(dcommi_shrink *s, dcomm_comm **new_p)
{
    dcomm_comm *comm = s->comm;
    s->until = dcommi_now() + comm->timeout_s;
    s->set = dcommi_mix(comm->id, 0x736872696e6bu);
    s->ranks = dcommi_calloc((size_t)comm->size, sizeof *s->ranks);
    dcomm_status status = s->ranks != NULL ? DCOMM_OK : DCOMM_ERR_NO_MEMORY;
    for (int r = 0; r < comm->size; r++) {
        if (!comm->members[r].shrink_out) {
            s->set = dcommi_mix(s->set, (uint64_t)r + 1);
            if (s->ranks != NULL) {
                s->ranks[s->size++] = r;
            }
        }
    }
    s->number = comm->shrink_tries + 1;
    dcomm_status begun = dcommi_shrink_begin(s, dcommi_shrink_highest(s, false));
    status = status < 0 ? status : begun;
    do {
        status = status < 0 ? dcommi_shrink_give_up(s, status) : dcommi_shrink_try(s, new_p);
    } while (status == DCOMM_IN_PROGRESS);
    if (status < 0) {
        dcommi_say_failed(comm->on_error, comm->rank, status, dcommi_message);
        return status;
    }
    dcommi_token_take(comm->context);
    (*new_p)->on_error = comm->on_error;
    dcommi_token_release(comm->context);
    comm->shrunk_set = s->set;
    comm->shrunk_try = s->number;
    return DCOMM_OK;
}

DCOMM_API dcomm_status dcomm_comm_shrink(dcomm_comm *comm, const int *excluded, int n,
                                         dcomm_comm **new_p)
{
    DCOMMI_NEED(new_p);
    *new_p = NULL;
    DCOMMI_TRY(dcommi_check_comm(comm));
    DCOMMI_TRY(dcommi_check_no_group("shrink"));
    atomic_store(&comm->told, true); /* a caller that shrinks knows of the error */
    if (n < 0 || (n > 0 && excluded == NULL)) {
        return dcommi_fail(DCOMM_ERR_INVALID, "excluded is %s with n = %d",
                           excluded == NULL ? "NULL" : "given", n);
    }
    dcommi_shrink s = {.comm = comm};
    for (int r = 0; r < comm->size; r++) {
        comm->members[r].shrink_out = false;
    }
    for (int i = 0; i < n; i++) {
        if (excluded[i] < 0 || excluded[i] >= comm->size || excluded[i] == comm->rank) {
            return dcommi_fail(DCOMM_ERR_INVALID, "excluded[%d] is rank %d%s; there are %d", i,
                               excluded[i], excluded[i] == comm->rank ? ", the caller itself" : "",
                               comm->size);
        }
        comm->members[excluded[i]].shrink_out = true;
    }
    dcomm_status status = dcommi_shrink_agree(&s, new_p);
    dcommi_free(s.ranks);
    return status;
}

#endif
