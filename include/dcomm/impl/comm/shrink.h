/* shrink.h - a communicator of the ranks that are left.
 *
 * The ranks agree on a list of failed ranks. Each makes its part of the new communicator, whose id
 * follows from the decision's number. Another agreement confirms that: if it names the same failed
 * ranks and all have their part, all use it. If one has none, all fail. If more ranks have failed,
 * its list is the next one. Every rank passes through the same decisions, so nobody counts calls. A
 * part is unknown to the engine until it is confirmed.
 *
 * With a list of the caller's, these ranks count as certainly dead, in an agreement of its own. */
#ifndef DCOMMI_COMM_SHRINK_H
#define DCOMMI_COMM_SHRINK_H

#include "api_coll.h"
#include "derive.h"
#include "failed.h"

#define DCOMMI_SHRINK_SALT 0x736872696e6bu /* of ids: split counts its children */

/* Make this rank's part of a communicator without the ranks of g->list. It can have none if one of
 * the others has failed for it, and is alive for those that decide: as many ranks as a quorum asks
 * for are left, but they do not all reach each other. */
static dcomm_status dcommi_shrink_make(dcommi_agreement *g)
{
    const dcomm_comm *comm = g->comm;
    int *ranks = dcommi_calloc((size_t)comm->size, sizeof *ranks), size = 0;
    if (ranks == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    dcomm_status status = DCOMM_OK;
    dcommi_token_take(comm->context);
    for (int r = 0; r < comm->size; r++) {
        if (!dcommi_bit(g->list, r)) {
            ranks[size++] = r;
            status = dcommi_bit(dcommi_agree_look(g->agree, DCOMMI_AGREE_FAILED), r)
                         ? DCOMM_ERR_QUORUM
                         : status;
        }
    }
    dcommi_token_release(comm->context);
    DCOMMI_THEN(status,
                dcommi_comm_make(comm, ranks, size,
                                 dcommi_mix(dcommi_mix(g->key, DCOMMI_SHRINK_SALT), g->taken),
                                 comm->quorum, &g->part));
    dcommi_free(ranks);
    return status;
}

/* Check the caller's list against the agreed one: a rank that the caller wants must be alive. */
static dcomm_status dcommi_shrink_wanted(const dcommi_agreement *g, const uint64_t *excluded)
{
    char text[112];
    uint64_t *more = g->out;
    bool any = false;
    for (int i = 0; excluded != NULL && i < g->agree->nwords; i++) {
        more[i] = g->list[i] & ~excluded[i];
        any = any || more[i] != 0;
    }
    if (!any) {
        return DCOMM_OK;
    }
    const bool several = dcommi_set_text(more, g->comm->size, text, sizeof text);
    return dcommi_fail(DCOMM_ERR_PEER, "%s, which the list does not exclude, %s failed", text,
                       several ? "have" : "has");
}

/* Pass through decisions until one confirms the list of the one before. */
static dcomm_status dcommi_shrink_agree(dcommi_agreement *g, const uint64_t *excluded)
{
    const double until = dcommi_now() + g->comm->timeout_s;
    const size_t bytes = (size_t)g->agree->nwords * sizeof(uint64_t);
    for (;;) {
        DCOMMI_TRY(dcommi_agreement_reach(g, "shrink", dcommi_agreement_word(g), until));
        dcommi_token_take(g->comm->context);
        const uint64_t *last = dcommi_agree_look(g->agree, DCOMMI_AGREE_LAST);
        const uint64_t word = g->agree->last;
        const bool confirmed = g->listed && memcmp(last, g->list, bytes) == 0;
        memcpy(g->list, last, bytes);
        dcommi_token_release(g->comm->context);
        g->listed = !confirmed;
        if (confirmed) {
            g->status = DCOMM_OK;
            dcomm_status status = dcommi_agreement_parts(word, "shrunk communicator");
            if (status < 0) {
                dcommi_agreement_drop_part(g);
            }
            return status;
        }
        dcommi_agreement_drop_part(g);
        dcomm_status wanted = dcommi_shrink_wanted(g, excluded);
        if (wanted < 0) {
            g->listed = false;
            return wanted;
        }
        g->status = dcommi_shrink_make(g);
    }
}

/* Find the agreement for a list of the caller's, or make it. Its members are the other ranks. */
static dcomm_status dcommi_shrink_without(dcomm_comm *comm, const uint64_t *excluded,
                                          dcommi_agreement **g_p)
{
    uint64_t key = dcommi_mix(comm->id, DCOMMI_SHRINK_SALT);
    for (int i = 0; i < dcommi_agree_nwords(comm->size); i++) {
        key = dcommi_mix(key, excluded[i]);
    }
    dcommi_token_take(comm->context);
    *g_p = dcommi_agreement_find(comm, key);
    if (*g_p == NULL && dcommi_agreements_spare(comm) == DCOMM_OK) {
        *g_p = comm->spare;
        comm->spare = NULL;
        (*g_p)->key = key;
        const dcommi_agree_link link = dcommi_agreement_link(*g_p);
        for (int r = 0; r < comm->size; r++) {
            if (dcommi_bit(excluded, r)) {
                dcommi_agree_learn((*g_p)->agree, &link, r, true);
            }
        }
        (*g_p)->next = comm->agreements;
        comm->agreements = *g_p;
        (void)dcommi_agreements_spare(comm); /* for the next list */
    }
    dcommi_token_release(comm->context);
    return *g_p != NULL ? DCOMM_OK : DCOMM_ERR_NO_MEMORY;
}

static dcomm_status dcommi_shrink_check(const dcomm_comm *comm, const int *excluded, int n)
{
    if (n < 0 || (n > 0 && excluded == NULL)) {
        return dcommi_fail(DCOMM_ERR_INVALID, "excluded is %s with n = %d",
                           excluded == NULL ? "NULL" : "given", n);
    }
    for (int i = 0; i < n; i++) {
        if (excluded[i] < 0 || excluded[i] >= comm->size || excluded[i] == comm->rank) {
            return dcommi_fail(DCOMM_ERR_INVALID, "excluded[%d] is rank %d%s; there are %d", i,
                               excluded[i], excluded[i] == comm->rank ? ", the caller itself" : "",
                               comm->size);
        }
    }
    return DCOMM_OK;
}

DCOMM_API dcomm_status dcomm_comm_shrink(dcomm_comm *comm, const int *excluded, int n,
                                         dcomm_comm **new_p)
{
    uint64_t named[DCOMMI_AGREE_RANKS / 64] = {0};
    dcommi_agreement *g;
    DCOMMI_NEED(new_p);
    *new_p = NULL;
    DCOMMI_TRY(dcommi_agreement_for(comm, "shrink", DCOMMI_AGREE_SHRINK, &g));
    DCOMMI_TRY(dcommi_shrink_check(comm, excluded, n));
    for (int i = 0; i < n; i++) {
        dcommi_bit_set(named, excluded[i]);
    }
    dcomm_status status = n > 0 ? dcommi_shrink_without(comm, named, &g) : DCOMM_OK;
    DCOMMI_THEN(status, dcommi_shrink_agree(g, n > 0 ? named : NULL));
    if (status < 0) {
        dcommi_say_failed(comm->on_error, comm->rank, status, dcommi_message);
        return status;
    }
    *new_p = g->part;
    g->part = NULL;
    dcommi_comm_begin(*new_p);
    return DCOMM_OK;
}

#endif
