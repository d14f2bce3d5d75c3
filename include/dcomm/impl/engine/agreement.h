/* agreement.h - the agreements of a communicator: their messages, and what the engine knows of
 * ranks that have failed. They work on a failed communicator, too. agree.h has the protocol.
 *
 * A communicator has one for dcomm_comm_agree, one for dcomm_comm_shrink and one for
 * dcomm_comm_grow, and another for each list of ranks that the caller leaves out. A message of one
 * that this rank does not have yet is dropped: when it has it, it sends its state, or asks for the
 * others'. */
#ifndef DCOMMI_AGREEMENT_H
#define DCOMMI_AGREEMENT_H

#include "agree.h"
#include "post.h"

#define DCOMMI_AGREE_RANKS 16384 /* most ranks: messages have a bit for each */
#define DCOMMI_AGREE_TELL_S 0.25 /* seconds between reports of the ranks that have not come */
#define DCOMMI_AGREE_PROOF_S 0.5 /* seconds that too few ranks wait for proofs of deaths */

/* Keys of the agreements that each communicator has. */
enum { DCOMMI_AGREE_FLAGS = 1, DCOMMI_AGREE_SHRINK = 2, DCOMMI_AGREE_GROW = 3 };

struct dcommi_agreement {
    dcommi_agreement *next;
    dcomm_comm *comm;
    uint64_t key;
    uint64_t taken; /* decisions that a caller has got */
    bool busy;      /* a caller waits for one */
    bool again;     /* a message was not sent */
    double next_tell;
    double stuck_since; /* 0: enough ranks are left */
    /* shrink: */
    bool listed;               /* the last decision was a list, which the next one confirms */
    dcomm_status status;       /* of making `part` */
    dcomm_comm *part;          /* this rank's, of the ranks that are not in `list`; NULL: none */
    uint64_t *list, *in, *out; /* sets of ranks; messages */
    dcommi_agree *agree;
};

/* ---- send ---- */

static void dcommi_agreement_send(void *user, int rank, const dcommi_agree_message *m)
{
    dcommi_agreement *g = user;
    dcomm_comm *comm = g->comm;
    const dcommi_member *to = &comm->members[rank];
    if (to->gone || comm->context->peers[to->peer].lost) {
        return;
    }
    const size_t words = (size_t)g->agree->nwords, bytes = words * sizeof(uint64_t);
    g->out[0] = m->value;
    memcpy(g->out + 1, m->failed, bytes);
    memcpy(g->out + 1 + words, m->proven, bytes);
    memcpy(g->out + 1 + 2 * words, m->out, bytes);
    dcommi_header h = {.type = DCOMMI_MSG_AGREE,
                       .stage = m->stuck,
                       .slot = m->what,
                       .signature = (uint32_t)m->accepted,
                       .seq = m->number,
                       .tag = (uint32_t)m->ballot,
                       .a = m->word,
                       .b = g->key};
    /* Nobody else sends it again. A peer that cannot be reached counts as lost before long. */
    if (dcommi_send_header(comm, rank, &h, g->out, (1 + 3 * words) * sizeof(uint64_t)) < 0) {
        g->again = true;
    }
}

static dcommi_agree_link dcommi_agreement_link(dcommi_agreement *g)
{
    return (dcommi_agree_link){dcommi_agreement_send, g};
}

/* ---- open and close ---- */

/* Make an agreement. NULL without memory. The engine knows it when it is in comm->agreements. */
static dcommi_agreement *dcommi_agreement_new(dcomm_comm *comm, uint64_t key, int quorum)
{
    const size_t words = (size_t)dcommi_agree_nwords(comm->size), letter = 1 + 3 * words;
    dcommi_agreement *g = dcommi_alloc(sizeof *g + (words + 2 * letter) * sizeof(uint64_t) +
                                       dcommi_agree_bytes(comm->size));
    if (g == NULL) {
        return NULL;
    }
    g->comm = comm;
    g->key = key;
    g->list = (uint64_t *)(g + 1);
    g->in = g->list + words;
    g->out = g->in + letter;
    g->agree = (dcommi_agree *)(g->out + letter);
    dcommi_agree_init(g->agree, comm->size, comm->rank, quorum, key != DCOMMI_AGREE_FLAGS);
    return g;
}

/* Have an agreement for the next list of a caller's. */
static dcomm_status dcommi_agreements_spare(dcomm_comm *comm)
{
    if (comm->spare == NULL && comm->size <= DCOMMI_AGREE_RANKS) {
        comm->spare = dcommi_agreement_new(comm, 0, DCOMM_QUORUM_NONE);
        return comm->spare != NULL ? DCOMM_OK : DCOMM_ERR_NO_MEMORY;
    }
    return DCOMM_OK;
}

/* Make the agreements that every communicator has, and one for a list of the caller's, so that no
 * rank lacks the memory when it needs them. */
static dcomm_status dcommi_agreements_open(dcomm_comm *comm)
{
    for (uint64_t key = DCOMMI_AGREE_FLAGS;
         key <= DCOMMI_AGREE_GROW && comm->size <= DCOMMI_AGREE_RANKS; key++) {
        dcommi_agreement *g = dcommi_agreement_new(comm, key, comm->quorum);
        if (g == NULL) {
            return DCOMM_ERR_NO_MEMORY;
        }
        g->next = comm->agreements;
        comm->agreements = g;
    }
    return dcommi_agreements_spare(comm);
}

static void dcommi_agreements_free(dcomm_comm *comm)
{
    while (comm->agreements != NULL) {
        dcommi_agreement *g = comm->agreements;
        comm->agreements = g->next;
        dcommi_free(g);
    }
    dcommi_free(comm->spare);
    comm->spare = NULL;
}

static dcommi_agreement *dcommi_agreement_find(const dcomm_comm *comm, uint64_t key)
{
    dcommi_agreement *g = comm->agreements;
    while (g != NULL && g->key != key) {
        g = g->next;
    }
    return g;
}

/* ---- receive ---- */

/* Return true if a set has no bits beyond the ranks. */
static bool dcommi_agreement_fits(const dcommi_agree *a, const uint64_t *set)
{
    return a->size % 64 == 0 || set[a->nwords - 1] >> a->size % 64 == 0;
}

/* Handle a message of an agreement. Drop what cannot be right. */
static void dcommi_on_agree(dcomm_comm *comm, const dcommi_header *h, const void *data, size_t len)
{
    dcommi_agreement *g = dcommi_agreement_find(comm, h->b);
    if (g == NULL) {
        return;
    }
    dcommi_agree *a = g->agree;
    const size_t words = (size_t)a->nwords;
    const int32_t accepted = (int32_t)h->signature;
    if (len != (1 + 3 * words) * sizeof(uint64_t) || h->slot == 0 || h->slot >= DCOMMI_AGREE_END ||
        h->tag >= (uint32_t)a->size || accepted < -1 || accepted >= a->size) {
        return;
    }
    memcpy(g->in, data, len);
    const dcommi_agree_message m = {.what = (uint8_t)h->slot,
                                    .stuck = h->stage != 0,
                                    .ballot = (int32_t)h->tag,
                                    .accepted = accepted,
                                    .number = h->seq,
                                    .word = h->a,
                                    .value = g->in[0],
                                    .failed = g->in + 1,
                                    .proven = g->in + 1 + words,
                                    .out = g->in + 1 + 2 * words};
    if (dcommi_agreement_fits(a, m.failed) && dcommi_agreement_fits(a, m.proven) &&
        dcommi_agreement_fits(a, m.out)) {
        const dcommi_agree_link link = dcommi_agreement_link(g);
        dcommi_agree_on(a, &link, (int)h->src, &m);
    }
}

/* ---- what the engine knows ---- */

/* Tell the agreements which ranks are lost or have left. */
static void dcommi_agreements_learn(dcomm_comm *comm)
{
    for (int r = 0; r < comm->size && comm->agreements != NULL; r++) {
        const dcommi_member *m = &comm->members[r];
        const dcommi_remote *p = m->peer >= 0 ? &comm->context->peers[m->peer] : NULL;
        if (p == NULL || (!m->gone && !p->lost)) {
            continue;
        }
        const bool proven = (m->gone || p->proven) && !p->gave_us_up;
        for (dcommi_agreement *g = comm->agreements; g != NULL; g = g->next) {
            const dcommi_agree_link link = dcommi_agreement_link(g);
            dcommi_agree_learn(g->agree, &link, r, proven);
        }
    }
}

/* Give up the ranks that a decision leaves out, though this rank may still hear from them, and tell
 * them: our end must not prove to them that they may go on. Ranks on a caller's list are not dead.
 */
static void dcommi_agreement_expel(const dcommi_agreement *g)
{
    const dcomm_comm *comm = g->comm;
    for (int r = 0; g->key <= DCOMMI_AGREE_GROW && r < comm->size; r++) {
        const dcommi_member *m = &comm->members[r];
        if (dcommi_bit(dcommi_agree_look(g->agree, DCOMMI_AGREE_LAST), r) && m->peer >= 0 &&
            !m->gone) {
            dcommi_peer_lost(comm->context, m->peer, "the others have agreed that it has failed",
                             false);
        }
    }
}

/* Look after the agreements, about 20 times a second. */
static void dcommi_agreements_check(dcomm_comm *comm, double now)
{
    dcommi_agreements_learn(comm);
    for (dcommi_agreement *g = comm->agreements; g != NULL; g = g->next) {
        const dcommi_agree_link link = dcommi_agreement_link(g);
        if (g->again) {
            g->again = false;
            dcommi_agree_repeat(g->agree, &link);
        }
        if (now >= g->next_tell) {
            g->next_tell = now + DCOMMI_AGREE_TELL_S;
            dcommi_agree_tell(g->agree, &link);
        }
    }
}

#endif
