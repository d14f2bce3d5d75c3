/* failed.h - which ranks have failed: this rank's knowledge, and the agreement of all. */
#ifndef DCOMMI_COMM_FAILED_H
#define DCOMMI_COMM_FAILED_H

#include "life.h"

/* ---- sentences ---- */

static bool dcommi_set_has(const void *set, size_t rank)
{
    return dcommi_bit(set, (int)rank);
}

/* Write "rank 3", "ranks 0-2, 5" or "no rank". Return true for several. */
static bool dcommi_set_text(const uint64_t *set, int size, char *text, size_t len)
{
    return dcommi_ranks_text(dcommi_set_has, set, size, "no rank", text, len);
}

/* Say for which ranks a call of `what` has waited in vain. A coordinator knows it, and has told the
 * others, unless it has not come itself. */
static dcomm_status dcommi_agreement_late(dcommi_agreement *g, const char *what)
{
    dcommi_agree *a = g->agree;
    uint64_t *missing = dcommi_agree_set(a, DCOMMI_AGREE_MISSING);
    char late[112];
    if (a->followed == a->rank) {
        dcommi_agree_miss(a);
    } else if (dcommi_agree_empty(a, DCOMMI_AGREE_MISSING)) {
        dcommi_bit_set(missing, a->followed);
    }
    const bool several = dcommi_set_text(missing, a->size, late, sizeof late);
    return dcommi_fail(DCOMM_ERR_TIMEOUT, "%s timed out after %.3g s: %s %s not %s", what,
                       g->comm->timeout_s, late, several ? "have" : "has",
                       a->proposed ? "answered" : "come");
}

static dcomm_status dcommi_agreement_few(const dcommi_agreement *g, const char *what)
{
    const dcommi_agree *a = g->agree;
    char failed[112], proven[112];
    dcommi_set_text(dcommi_agree_look(a, DCOMMI_AGREE_FAILED), a->size, failed, sizeof failed);
    dcommi_set_text(dcommi_agree_look(a, DCOMMI_AGREE_PROVEN), a->size, proven, sizeof proven);
    return dcommi_fail(DCOMM_ERR_QUORUM,
                       "%s: too few of %d ranks are left to go on: %s failed, and of them %s is "
                       "certainly dead; the others may be alive and go on (opts.quorum)",
                       what, a->size, failed, proven);
}

static dcomm_status dcommi_agreement_outcast(const dcommi_agreement *g, const char *what)
{
    return dcommi_fail(DCOMM_ERR_PEER,
                       "%s: this rank, %d, counts as failed: the others have agreed on that", what,
                       g->comm->rank);
}

/* ---- parts of a new communicator ---- */

/* Return the word by which a rank says that it has its part, or why not. Of all that have none, the
 * lowest rank's is the decision's. */
static uint64_t dcommi_agreement_word(const dcommi_agreement *g)
{
    return g->status < 0 ? (uint64_t)g->comm->rank << 8 | (uint64_t)-g->status : UINT64_MAX;
}

/* Read the word of a decision: do all ranks have their part of `what`? */
static dcomm_status dcommi_agreement_parts(uint64_t word, const char *what)
{
    const int status = (int)(word & 0xff);
    return word == UINT64_MAX
               ? DCOMM_OK
               : dcommi_fail(status <= -DCOMMI_STATUS_LAST ? (dcomm_status)-status
                                                           : DCOMM_ERR_CORRUPT,
                             "rank %d could not make its part of the %s: %s", (int)(word >> 8),
                             what, dcomm_strerror((dcomm_status)-status));
}

/* ---- agree ---- */

/* Return true if too few ranks are left, and have been for a while: a death that one connection
 * tells of is proven a moment later by another one. */
static bool dcommi_agreement_stuck(dcommi_agreement *g)
{
    const double now = dcommi_now();
    g->stuck_since = !g->agree->stuck ? 0 : g->stuck_since > 0 ? g->stuck_since : now;
    return g->agree->stuck && now >= g->stuck_since + DCOMMI_AGREE_PROOF_S;
}

/* Return how a caller's decision stands. With the token. A message that was not sent for lack of
 * memory goes first, unless it is late: others may wait for it, and this rank may compute next. */
static dcomm_status dcommi_agreement_status(dcommi_agreement *g, const char *what, bool late)
{
    const dcommi_agree *a = g->agree;
    if (a->outcast) {
        return dcommi_agreement_outcast(g, what);
    }
    if (a->number > g->taken && g->again && !late) {
        return DCOMM_IN_PROGRESS;
    }
    if (a->number > g->taken) {
        g->taken = a->number;
        dcommi_agreement_expel(g);
        return DCOMM_OK;
    }
    return dcommi_agreement_stuck(g) ? dcommi_agreement_few(g, what) : DCOMM_IN_PROGRESS;
}

/* Take part in the decision that this rank does not have yet, and wait for it until `until`. After
 * DCOMM_ERR_TIMEOUT and DCOMM_ERR_QUORUM the rank still takes part. */
static dcomm_status dcommi_agreement_reach(dcommi_agreement *g, const char *what, uint64_t word,
                                           double until)
{
    dcomm_comm *comm = g->comm;
    const dcommi_agree_link link = dcommi_agreement_link(g);
    dcommi_token_take(comm->context);
    const bool busy = g->busy;
    g->busy = true;
    if (!busy && g->agree->number == g->taken) {
        dcommi_agreements_learn(comm);
        dcommi_agree_join(g->agree, &link, word);
    }
    dcommi_token_release(comm->context);
    if (busy) {
        return dcommi_fail(DCOMM_ERR_INVALID, "%s: another thread is in this call", what);
    }
    dcomm_status status = DCOMM_IN_PROGRESS;
    while (status == DCOMM_IN_PROGRESS) {
        dcommi_progress_or_yield(comm->context);
        dcommi_token_take(comm->context);
        const bool late = dcommi_now() > until;
        status = dcommi_agreement_status(g, what, late);
        if (status == DCOMM_IN_PROGRESS && late) {
            status = dcommi_agreement_late(g, what);
        }
        g->busy = status == DCOMM_IN_PROGRESS;
        dcommi_token_release(comm->context);
    }
    return status;
}

/* Find an agreement that every communicator has, for the call `what`. */
static dcomm_status dcommi_agreement_for(dcomm_comm *comm, const char *what, uint64_t key,
                                         dcommi_agreement **g)
{
    DCOMMI_TRY(dcommi_check_comm(comm));
    DCOMMI_TRY(dcommi_check_no_group(what));
    atomic_store(&comm->told, true); /* such a caller knows of the error */
    *g = dcommi_agreement_find(comm, key);
    return *g != NULL
               ? DCOMM_OK
               : dcommi_fail(DCOMM_ERR_UNSUPPORTED, "%s: there are %d ranks; at most %d can agree",
                             what, comm->size, DCOMMI_AGREE_RANKS);
}

/* Write the ranks for which `has` holds to ranks[max], and how many there are to *n. */
static void dcommi_ranks_list(bool (*has)(const void *of, size_t rank), const void *of, int size,
                              int *ranks, int max, int *n)
{
    int found = 0;
    for (int r = 0; r < size; r++) {
        if (has(of, (size_t)r) && found++ < max) {
            ranks[found - 1] = r;
        }
    }
    if (n != NULL) {
        *n = found;
    }
}

static dcomm_status dcommi_check_list(const int *ranks, int max)
{
    return max < 0 || (max > 0 && ranks == NULL)
               ? dcommi_fail(DCOMM_ERR_INVALID, "the list of ranks is %s with max = %d",
                             ranks == NULL ? "NULL" : "given", max)
               : DCOMM_OK;
}

DCOMM_API dcomm_status dcomm_comm_agree(dcomm_comm *comm, uint64_t *flags, int *failed, int max,
                                        int *n)
{
    dcommi_agreement *g;
    DCOMMI_TRY(dcommi_agreement_for(comm, "agree", DCOMMI_AGREE_FLAGS, &g));
    DCOMMI_TRY(dcommi_check_list(failed, max));
    const uint64_t word = flags != NULL ? *flags : UINT64_MAX;
    DCOMMI_TRY(dcommi_agreement_reach(g, "agree", word, dcommi_now() + comm->timeout_s));
    dcommi_token_take(comm->context);
    if (flags != NULL) {
        *flags = g->agree->last;
    }
    dcommi_ranks_list(dcommi_set_has, dcommi_agree_look(g->agree, DCOMMI_AGREE_LAST), comm->size,
                      failed, max, n);
    dcommi_token_release(comm->context);
    return DCOMM_OK;
}

/* ---- failed ---- */

/* Return true if this rank knows that another one has failed or left. With the token. */
static bool dcommi_member_failed(const void *of, size_t rank)
{
    const dcomm_comm *comm = of;
    const dcommi_member *m = &comm->members[rank];
    bool failed = m->peer >= 0 && (m->gone || comm->context->peers[m->peer].lost);
    for (const dcommi_agreement *g = comm->agreements; g != NULL; g = g->next) {
        failed =
            failed || (g->key <= DCOMMI_AGREE_GROW &&
                       dcommi_bit(dcommi_agree_look(g->agree, DCOMMI_AGREE_FAILED), (int)rank));
    }
    return failed;
}

DCOMM_API dcomm_status dcomm_comm_failed(dcomm_comm *comm, int *ranks, int max, int *n)
{
    DCOMMI_TRY(dcommi_check_comm(comm));
    DCOMMI_TRY(dcommi_check_list(ranks, max));
    dcommi_token_take(comm->context);
    dcommi_progress(comm->context);
    dcommi_ranks_list(dcommi_member_failed, comm, comm->size, ranks, max, n);
    dcommi_token_release(comm->context);
    return DCOMM_OK;
}

#endif
