/* comm_shrink.h - a communicator of those ranks that are left.
 *
 * The parent may be beyond use, so the id of a shrunk communicator comes from what the survivors
 * know alike: who they are, and the number of the attempt. Ranks may have tried a different number
 * of times. So all go by the highest number that a survivor says (SHRINK): one that hears a higher
 * number while it waits follows, unless the sender has got through the attempt that this rank still
 * waits in. */
#ifndef DCOMMI_COMM_SHRINK_H
#define DCOMMI_COMM_SHRINK_H

#include "comm_life.h"

typedef struct dcommi_shrink {
    dcomm_comm *comm;
    bool *out;
    int *ranks, size; /* that stay */
    uint64_t set;     /* their hash */
    uint64_t number;  /* of the attempt */
    double until;
} dcommi_shrink;

/* The highest attempt that a survivor has begun. `waiting`: and for which it has given up ours. */
static uint64_t dcommi_shrink_highest(const dcommi_shrink *s, bool waiting)
{
    uint64_t highest = s->number;
    dcommi_token_take(s->comm->context);
    for (int i = 0; i < s->size; i++) {
        const dcommi_member *m = &s->comm->members[s->ranks[i]];
        if (m->shrink_set == s->set && m->shrink_try > highest &&
            (!waiting || m->shrink_done < s->number)) {
            highest = m->shrink_try;
        }
    }
    dcommi_token_release(s->comm->context);
    return highest;
}

/* Go by this number, and say so: the first is what everybody begins with. */
static void dcommi_shrink_begin(dcommi_shrink *s, uint64_t number)
{
    dcomm_comm *comm = s->comm;
    s->number = number;
    dcommi_token_take(comm->context);
    comm->shrink_tries = number > comm->shrink_tries ? number : comm->shrink_tries;
    for (int i = 0; i < s->size && number > 1; i++) {
        const dcommi_member *m = &comm->members[s->ranks[i]];
        if (m->peer >= 0 && !m->gone && !comm->context->peers[m->peer].lost) {
            dcommi_header h = {.type = DCOMMI_MSG_SHRINK,
                               .a = s->set,
                               .b = number,
                               .seq = comm->shrunk_set == s->set ? comm->shrunk_try : 0};
            dcommi_send_header(comm, s->ranks[i], &h, NULL, 0);
        }
    }
    dcommi_token_release(comm->context);
}

/* One attempt: every survivor enters a barrier of the new communicator. DCOMM_IN_PROGRESS: another
 * attempt has begun, which is s->number now. */
static dcomm_status dcommi_shrink_try(dcommi_shrink *s, dcomm_comm **new_p)
{
    dcomm_request *request = NULL;
    dcomm_coll_opts opts = {.timeout_s = s->until - dcommi_now()};
    if (opts.timeout_s <= 0) {
        return DCOMM_ERR_TIMEOUT;
    }
    DCOMMI_TRY(dcommi_comm_derive(s->comm, s->ranks, s->size, dcommi_mix(s->set, s->number),
                                  DCOMM_ON_ERROR_RETURN, new_p)); /* its failure is an attempt's */
    dcomm_status status = dcomm_ibarrier(*new_p, &opts, &request);
    uint64_t highest = s->number;
    while (status >= 0 && highest == s->number &&
           (status = dcomm_test(&request)) == DCOMM_IN_PROGRESS) {
        highest = dcommi_shrink_highest(s, true);
        dcommi_progress_or_yield(s->comm->context);
    }
    if (status == DCOMM_OK) {
        return DCOMM_OK;
    }
    char why[DCOMMI_MESSAGE_MAX];
    memcpy(why, dcommi_message, sizeof why);
    /* A survivor has given up, for its time is over: the others try again while they have time. */
    if (status == DCOMM_ERR_TIMEOUT || status == DCOMM_ERR_ABORTED) {
        highest = dcommi_shrink_highest(s, false);
        highest = highest > s->number ? highest : s->number + 1;
    }
    if (highest > s->number && dcommi_now() < s->until) {
        dcommi_shrink_begin(s, highest); /* before the others hear that the old one is over */
        status = DCOMM_IN_PROGRESS;
    }
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
    for (int r = 0; r < comm->size; r++) {
        if (!s->out[r]) {
            s->ranks[s->size++] = r;
            s->set = dcommi_mix(s->set, (uint64_t)r + 1);
        }
    }
    s->number = comm->shrink_tries + 1;
    dcommi_shrink_begin(s, dcommi_shrink_highest(s, false));
    dcomm_status status;
    do {
        status = dcommi_shrink_try(s, new_p);
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
    if (new_p == NULL) {
        return dcommi_fail(DCOMM_ERR_INVALID, "new_p is NULL");
    }
    *new_p = NULL;
    DCOMMI_TRY(dcommi_check_comm(comm));
    DCOMMI_TRY(dcommi_check_no_group("shrink"));
    atomic_store(&comm->told, true); /* who shrinks knows why */
    if (n < 0 || (n > 0 && excluded == NULL)) {
        return dcommi_fail(DCOMM_ERR_INVALID, "excluded is %s with n = %d",
                           excluded == NULL ? "NULL" : "given", n);
    }
    dcommi_shrink s = {.comm = comm};
    s.out = dcommi_calloc((size_t)comm->size, sizeof *s.out);
    s.ranks = dcommi_calloc((size_t)comm->size, sizeof *s.ranks);
    dcomm_status status = s.out == NULL || s.ranks == NULL ? DCOMM_ERR_NO_MEMORY : DCOMM_OK;
    for (int i = 0; i < n && status >= 0; i++) {
        if (excluded[i] < 0 || excluded[i] >= comm->size || excluded[i] == comm->rank) {
            status = dcommi_fail(
                DCOMM_ERR_INVALID, "excluded[%d] is rank %d%s; there are %d", i, excluded[i],
                excluded[i] == comm->rank ? ", the caller itself" : "", comm->size);
        } else {
            s.out[excluded[i]] = true;
        }
    }
    if (status >= 0) {
        status = dcommi_shrink_agree(&s, new_p);
    }
    dcommi_free(s.out);
    dcommi_free(s.ranks);
    return status;
}

#endif
