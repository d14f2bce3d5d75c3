/* meet.h - the ranks of a new communicator learn where each of them runs, become peers, and
 * connect with those on other hosts. */
#ifndef DCOMMI_COMM_MEET_H
#define DCOMMI_COMM_MEET_H

#include "comm.h"
#include "reach.h"

/* Find out which ranks share a host and its parts. */
static dcomm_status dcommi_comm_groups(dcomm_comm *comm, const dcommi_cards *cards,
                                       const int64_t *host)
{
    comm->places = dcommi_calloc((size_t)comm->size, sizeof *comm->places);
    for (int r = 0; comm->places != NULL && r < comm->size; r++) {
        comm->places[r] = cards->card[r].place;
    }
    comm->groups =
        comm->places != NULL ? dcommi_place_groups(comm->size, host, comm->places) : NULL;
    if (comm->groups == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    comm->nhosts = comm->groups->count[0];
    if (comm->rank == 0 && !dcommi_cards_threads(cards, comm->size)) {
        dcommi_place_warn(comm->groups, comm->places);
    }
    return DCOMM_OK;
}

/* The data that ranks tell each other in creation. */
typedef struct dcommi_gathering {
    dcommi_cards local, net; /* with the addresses of that transport; net: with several hosts
                              * only */
    int64_t *host;           /* of each rank */
} dcommi_gathering;

static void dcommi_gathering_free(dcommi_gathering *m)
{
    dcommi_cards_free(&m->local);
    dcommi_cards_free(&m->net);
    dcommi_free(m->host);
}

/* ---- control connections ---- */

/* Return true if two ranks are to be connected. Both compute the same answer. With many ranks only
 * some pairs are, besides those that beat. */
static bool dcommi_comm_pair_connects(const dcomm_comm *comm, int a, int b)
{
    const uint64_t one_of = (uint64_t)dcommi_ceil_div(comm->size, DCOMMI_CTL_MOST);
    return dcommi_mix((uint64_t)(a < b ? a : b), (uint64_t)(a < b ? b : a)) % one_of == 0;
}

/* Return how many connections are not open; failed ones count only if `failed_too`. *rank (may be
 * NULL) becomes the first rank without one. The caller holds the token. */
static int dcommi_comm_unconnected(const dcomm_comm *comm, bool failed_too, int *rank)
{
    int n = 0;
    for (const dcommi_ctl_line *l = comm->context->control->lines; l != NULL; l = l->next) {
        for (int r = 0; l->state < DCOMMI_CTL_OPEN && r < comm->size; r++) {
            if (comm->members[r].peer == l->peer && (failed_too || l->error == 0)) {
                n++;
                if (rank != NULL && (n == 1 || r < *rank)) {
                    *rank = r;
                }
            }
        }
    }
    return n;
}

static void dcommi_comm_warn_unconnected(const dcomm_comm *comm)
{
    int rank = 0, n = dcommi_comm_unconnected(comm, true, &rank);
    if (n > 0) {
        const dcommi_ctl_line *l = dcommi_ctl_line_to(comm->context, comm->members[rank].peer);
        char where[DCOMMI_SOCK_TEXT];
        dcommi_addr_text(&l->where, where);
        dcommi_log(DCOMMI_LOG_WARN,
                   "rank %d has no control connection with rank %d%s, which listens at %s: %s; "
                   "their death may be noticed late",
                   comm->rank, rank, n > 1 ? " and others" : "", where,
                   l->error != 0 ? strerror(l->error) : "it did not come in time");
    }
}

/* Connect to the ranks on other hosts. A connection that fails is logged and is no error: a death
 * is then noticed as late as UCX and the queries notice it. */
static dcomm_status dcommi_comm_control(dcomm_comm *comm, const dcommi_card *cards,
                                        const dcommi_boot *boot)
{
    dcomm_context *context = comm->context;
    uint8_t key[DCOMMI_CTL_KEY];
    dcommi_hmac h;
    dcommi_hmac_begin(&h, boot->client.secret, DCOMMI_RDV_KEY);
    dcommi_hmac_add(&h, "dcomm control 1", 16);
    dcommi_hmac_add(&h, cards[0].control_nonce, sizeof cards[0].control_nonce);
    dcommi_hmac_end(&h, key);
    bool whole = comm->size <= DCOMMI_CTL_MOST;
    int *first = dcommi_beat_firsts(comm, false); /* alike on all ranks, whoever is lost */
    dcomm_status status = first != NULL ? DCOMM_OK : DCOMM_ERR_NO_MEMORY;
    dcommi_token_take(context);
    context->liveness_s = comm->liveness_s;
    for (int r = 0; r < comm->size && status >= 0; r++) {
        dcommi_addr where;
        int peer = comm->members[r].peer;
        if (peer < 0 || context->peers[peer].same_host) {
            continue;
        }
        if (!dcommi_card_address(&cards[r], &where)) {
            whole = false;
            continue;
        }
        const bool beats = dcommi_beat_with(comm, first, r);
        if (beats || dcommi_comm_pair_connects(comm, comm->rank, r)) {
            status = dcommi_ctl_want(context, peer, &where, key, beats);
        }
    }
    if (status >= 0 && comm->liveness_s < DCOMMI_LIMIT_MAX_S) {
        status = dcommi_beat_start(context);
    }
    dcommi_token_release(context);
    dcommi_free(first);
    double start = dcommi_now();
    double until =
        start + (comm->timeout_s < 2 * DCOMMI_CTL_S ? comm->timeout_s / 2 : DCOMMI_CTL_S);
    while (status >= 0) {
        dcommi_token_take(context);
        dcommi_ctl_look(context);
        const bool alarmed = dcommi_boot_alarmed(boot); /* the agreement then says why */
        bool over = dcommi_comm_unconnected(comm, false, NULL) == 0 || dcommi_now() >= until;
        if (over && !alarmed) {
            dcommi_comm_warn_unconnected(comm);
            comm->all_connected = whole && dcommi_comm_unconnected(comm, true, NULL) == 0;
        }
        dcommi_token_release(context);
        if (over || alarmed) {
            break;
        }
        double nap = dcommi_now() + 0.02;
        if (dcommi_sock_wait(context->control->epoll, POLLIN, nap < until ? nap : until,
                             &comm->cancel) == DCOMM_ERR_ABORTED) {
            status = dcommi_rdv_cancelled();
        }
    }
    return status;
}

/* Find out on which hosts the ranks are, and open the network if there are several. */
static dcomm_status dcommi_comm_locate(dcomm_comm *comm, dcommi_boot *boot, dcommi_gathering *m)
{
    dcomm_context *context = comm->context;
    dcommi_transport *local = context->local;
    dcommi_card card;
    dcommi_card_fill(comm, &card);
    card.local_address = (uint32_t)local->address_len;
    DCOMMI_TRY(dcommi_random_bytes(&card.nonce, sizeof card.nonce));
    DCOMMI_TRY(dcommi_random_bytes(card.control_nonce, sizeof card.control_nonce));
    DCOMMI_TRY(dcommi_cards_swap(boot, &card, local->address, local->address_len, &m->local));
    DCOMMI_TRY(dcommi_cards_compute_alike(&m->local, boot));
    m->host = dcommi_calloc((size_t)comm->size, sizeof *m->host);
    DCOMMI_TRY(dcommi_comm_reach(comm, boot, m->local.card, m->local.extra, m->host));
    DCOMMI_TRY(dcommi_comm_groups(comm, &m->local, m->host));
    dcommi_token_take(context);
    if (dcommi_place_crowded(comm->groups, comm->places, comm->rank)) {
        dcommi_patience(context, true);
    }
    dcomm_status status = dcommi_reach_net(comm, m->local.card, m->host);
    dcommi_token_release(context);
    if (status < 0 || comm->nhosts == 1) {
        return status;
    }
    card.local_address = 0;
    card.net_address = (uint32_t)context->net->address_len;
    card.takes_device = context->net->takes_device;
    dcommi_card_control(context, &card);
    return dcommi_cards_swap(boot, &card, context->net->address, context->net->address_len,
                             &m->net);
}

/* Take over the settings of rank 0. */
static void dcommi_comm_adopt(dcomm_comm *comm, const dcommi_gathering *m)
{
    const dcommi_card *first = &m->local.card[0];
    comm->id = dcommi_mix(first->nonce, 1);
    comm->timeout_s = first->timeout_s;
    comm->liveness_s = first->liveness_s;
    comm->chunk_bytes = (int64_t)first->chunk_bytes;
    comm->deterministic = first->deterministic != 0;
    comm->tunes = first->tunes != 0;
    comm->connections = (int)(first->connections <= DCOMM_CONNECTIONS_MAX ? first->connections : 0);
    comm->quorum = dcommi_quorum_fits(first->quorum, comm->size) ? first->quorum : 0;
    memcpy(comm->algo, first->algo, sizeof comm->algo);
    comm->device_ucx = comm->nhosts > 1;
    for (int r = 0; r < comm->size; r++) {
        comm->device_ucx = comm->device_ucx && m->net.card[r].takes_device != 0;
    }
}

/* Make one rank a peer. The caller holds the token. */
static dcomm_status dcommi_comm_peer(dcomm_comm *comm, const dcommi_gathering *m, int r)
{
    dcomm_context *context = comm->context;
    bool near = m->host[r] == m->host[comm->rank];
    const dcommi_cards *cards = near ? &m->local : &m->net;
    const dcommi_card *card = &cards->card[r];
    int peer;
    DCOMMI_TRY(dcommi_peer_add(context, card, near, cards->extra[r],
                               near ? card->local_address : card->net_address, &peer));
    comm->members[r].peer = peer;
    void *common = NULL; /* of a known peer, too: its memory may have been missing before */
    dcomm_status status =
        near ? context->local->call->common(context->local, peer, &common) : DCOMM_OK;
    return status == DCOMM_OK || status == DCOMM_ERR_NO_MEMORY
               ? status
               : dcommi_fail(DCOMM_ERR_SYSTEM,
                             "the memory of rank %d cannot be mapped (see ulimit -n and -v)", r);
}

static dcomm_status dcommi_comm_peers(dcomm_comm *comm, const dcommi_gathering *m)
{
    dcomm_context *context = comm->context;
    dcomm_status status = DCOMM_OK;
    dcommi_token_take(context);
    for (int r = 0; r < comm->size && status >= 0; r++) {
        comm->members[r].hostname = dcommi_strdup(m->local.card[r].hostname);
        status = comm->members[r].hostname == NULL ? DCOMM_ERR_NO_MEMORY
                 : r != comm->rank                 ? dcommi_comm_peer(comm, m, r)
                                                   : DCOMM_OK;
    }
    for (int r = 0; r < comm->size; r++) { /* drop what no peer has used */
        context->local->call->forget(context->local, m->local.extra[r],
                                     m->local.card[r].local_address);
    }
    dcommi_token_release(context);
    return status;
}

#endif
