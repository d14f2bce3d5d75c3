/* card.h - cards: with them ranks describe themselves while a communicator is created. Fill in,
 * exchange and check them. */
#ifndef DCOMMI_COMM_CARD_H
#define DCOMMI_COMM_CARD_H

#include "../boot/boot.h"
#include "context.h"

/* The facts that one rank sends to the others when a communicator is created. The layout is fixed.
 * Version, byte order and header size are checked before any other field is used. */
typedef struct dcommi_card {
    uint32_t magic, version;
    uint8_t uuid[16];
    uint64_t nonce;                        /* the nonce of rank 0 makes the communicator's id */
    uint8_t control_nonce[16];             /* that of rank 0 makes the key of control
                                            * connections */
    uint8_t control_address[16];           /* where this rank listens for them */
    uint32_t control_family, control_port; /* family 4 or 6; 0: it does not listen */
    uint64_t started, pid_space;
    int32_t pid, size;
    double timeout_s, liveness_s;
    uint64_t chunk_bytes;
    uint32_t deterministic, tunes;
    uint32_t local_address, net_address; /* bytes of the addresses behind the card */
    uint32_t connections, takes_device;  /* UCX connections; UCX takes device memory */
    uint32_t float_env;                  /* DCOMMI_FLOAT_ bits of the caller's thread */
    int32_t quorum;
    char algo[32];
    char hostname[64];
    char host_id[DCOMMI_HOST_ID_MAX];
    dcommi_site place;
} dcommi_card;

#define DCOMMI_CARD_MAGIC 0x44434f4du
#define DCOMMI_CARD_VERSION (DCOMM_VERSION_MAJOR * 10000u + DCOMM_VERSION_MINOR * 100u + 10u)

static void dcommi_card_fill(dcomm_comm *comm, dcommi_card *card)
{
    memset(card, 0, sizeof *card);
    card->magic = DCOMMI_CARD_MAGIC;
    card->version = DCOMMI_CARD_VERSION;
    memcpy(card->uuid, comm->context->uuid, sizeof card->uuid);
    card->pid = (int32_t)getpid();
    card->started = dcommi_process_started(getpid());
    card->pid_space = dcommi_watch_me().pid_space;
    card->size = comm->size;
    card->timeout_s = comm->timeout_s;
    card->liveness_s = comm->liveness_s;
    card->chunk_bytes = (uint64_t)comm->chunk_bytes;
    card->deterministic = comm->deterministic;
    card->tunes = comm->tunes;
    card->connections = (uint32_t)comm->connections;
    card->float_env = dcommi_float_env();
    card->quorum = comm->quorum;
    memcpy(card->algo, comm->algo, sizeof card->algo);
    gethostname(card->hostname, sizeof card->hostname - 1);
    memcpy(card->host_id, comm->context->host_id, sizeof card->host_id);
    card->place = comm->context->place;
}

/* Read the card at the start of a rank's blob, and check it. */
static dcomm_status dcommi_card_parse(const uint8_t *blob, size_t len, int rank, int size,
                                      dcommi_card *card)
{
    if (len == sizeof(dcommi_boot_word)) { /* a refusal instead of a card */
        DCOMMI_TRY(dcommi_boot_word_read(blob, len, rank));
    }
    if (len < sizeof *card) {
        return dcommi_fail(DCOMM_ERR_CORRUPT,
                           "rank %d sent a description of %zu bytes; it has at least %zu", rank,
                           len, sizeof *card);
    }
    memcpy(card, blob, sizeof *card);
    card->algo[sizeof card->algo - 1] = 0;
    card->hostname[sizeof card->hostname - 1] = 0;
    card->host_id[sizeof card->host_id - 1] = 0;
    if (card->magic != DCOMMI_CARD_MAGIC || card->version != DCOMMI_CARD_VERSION) {
        return dcommi_fail(DCOMM_ERR_MISMATCH,
                           "rank %d runs another dcomm or byte order (version word %u, here %u)",
                           rank, card->version, DCOMMI_CARD_VERSION);
    }
    if (card->size != size) {
        return dcommi_fail(DCOMM_ERR_MISMATCH,
                           "rank %d was started as one of %d ranks, this rank as one of %d", rank,
                           card->size, size);
    }
    if ((uint64_t)card->local_address + card->net_address != len - sizeof *card) {
        return dcommi_fail(DCOMM_ERR_CORRUPT, "rank %d sent addresses of a wrong length", rank);
    }
    return dcommi_place_check(&card->place, rank);
}

/* ---- where a rank listens for control connections ---- */

static void dcommi_card_control(const dcomm_context *context, dcommi_card *card)
{
    const dcommi_addr *a = &context->control->address;
    bool v4 = a->any.sa_family == AF_INET;
    card->control_family = v4 ? 4 : 6;
    card->control_port = ntohs(v4 ? a->v4.sin_port : a->v6.sin6_port);
    memcpy(card->control_address, v4 ? (const void *)&a->v4.sin_addr : &a->v6.sin6_addr,
           v4 ? sizeof a->v4.sin_addr : sizeof a->v6.sin6_addr);
}

/* Find the address where a rank listens. Return false if it does not listen. */
static bool dcommi_card_address(const dcommi_card *card, dcommi_addr *a)
{
    memset(a, 0, sizeof *a);
    if (card->control_family == 4) {
        a->any.sa_family = AF_INET;
        memcpy(&a->v4.sin_addr, card->control_address, sizeof a->v4.sin_addr);
    } else {
        a->any.sa_family = AF_INET6;
        memcpy(&a->v6.sin6_addr, card->control_address, sizeof a->v6.sin6_addr);
    }
    dcommi_addr_set_port(a, (uint16_t)card->control_port);
    return card->control_family == 4 || card->control_family == 6;
}

/* ---- the cards of all ranks ---- */

/* The blobs of all ranks, parsed. */
typedef struct dcommi_cards {
    uint8_t *all;
    size_t *lens;
    dcommi_card *card;
    const uint8_t **extra; /* addresses behind each card */
} dcommi_cards;

static void dcommi_cards_free(dcommi_cards *cards)
{
    dcommi_free(cards->all);
    dcommi_free(cards->lens);
    dcommi_free(cards->card);
    dcommi_free((void *)cards->extra);
    memset(cards, 0, sizeof *cards);
}

static dcomm_status dcommi_cards_exchange(dcommi_boot *boot, const void *mine, size_t len,
                                          dcommi_cards *cards)
{
    memset(cards, 0, sizeof *cards);
    void *all = NULL;
    DCOMMI_TRY(dcommi_boot_allgather(boot, mine, len, &all, &cards->lens));
    cards->all = all;
    cards->card = dcommi_calloc((size_t)boot->size, sizeof *cards->card);
    cards->extra = dcommi_calloc((size_t)boot->size, sizeof *cards->extra);
    if (cards->card == NULL || cards->extra == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    size_t at = 0;
    for (int r = 0; r < boot->size; r++) { /* after a refusal there is no other round */
        boot->agreed = boot->agreed || cards->lens[r] == sizeof(dcommi_boot_word);
    }
    for (int r = 0; r < boot->size; r++) {
        DCOMMI_TRY(
            dcommi_card_parse(cards->all + at, cards->lens[r], r, boot->size, &cards->card[r]));
        cards->extra[r] = cards->all + at + sizeof(dcommi_card);
        at += cards->lens[r];
    }
    return DCOMM_OK;
}

/* Return true if all ranks are threads of one process: no launcher can bind those. */
static bool dcommi_cards_threads(const dcommi_cards *cards, int size)
{
    const dcommi_card *first = cards->card;
    bool threads = true;
    for (const dcommi_card *c = first; c < first + size; c++) {
        threads = threads && c->pid == first->pid && c->started == first->started &&
                  c->pid_space == first->pid_space && strcmp(c->host_id, first->host_id) == 0;
    }
    return threads;
}

/* Send a card followed by an address, and receive those of all ranks. */
static dcomm_status dcommi_cards_swap(dcommi_boot *boot, const dcommi_card *card,
                                      const void *address, size_t len, dcommi_cards *cards)
{
    uint8_t *blob = dcommi_alloc_raw(sizeof *card + len);
    if (blob == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    memcpy(blob, card, sizeof *card);
    memcpy(blob + sizeof *card, address, len);
    dcomm_status status = dcommi_cards_exchange(boot, blob, sizeof *card + len, cards);
    dcommi_free(blob);
    return status;
}

/* Check that all ranks compute floats alike, since each may fold results itself where that is
 * faster. All ranks see the same cards, so all fail alike. */
static dcomm_status dcommi_cards_compute_alike(const dcommi_cards *cards, dcommi_boot *boot)
{
    for (int r = 1; r < boot->size; r++) {
        uint32_t first = cards->card[0].float_env, other = cards->card[r].float_env;
        if (other != first) {
            char mine[80], theirs[80];
            dcommi_float_env_text(first, mine, sizeof mine);
            dcommi_float_env_text(other, theirs, sizeof theirs);
            boot->agreed = true;
            boot->guilty = r == boot->rank;
            return dcommi_fail(
                DCOMM_ERR_MISMATCH,
                "rank %d computes with floats as rank 0 does not: it %s, rank 0 %s, so "
                "that results would differ in bits. Programs and libraries linked "
                "with -Ofast or -ffast-math flush denormals: link all ranks alike",
                r, theirs, mine);
        }
    }
    return DCOMM_OK;
}

/* ---- a rank as a peer ---- */

/* Return in *peer_p the context's number for a peer, new or known. `address` is what the transport
 * to the peer needs. */
static dcomm_status dcommi_peer_add(dcomm_context *context, const dcommi_card *card, bool same_host,
                                    const void *address, size_t address_len, int *peer_p)
{
    for (size_t i = 0; i < context->npeers; i++) {
        if (memcmp(context->peers[i].uuid, card->uuid, sizeof card->uuid) == 0) {
            context->peers[i].users++;
            *peer_p = (int)i;
            return DCOMM_OK;
        }
    }
    DCOMMI_TRY(dcommi_grow((void **)&context->peers, &context->peers_capacity, context->npeers + 1,
                           sizeof *context->peers));
    dcommi_remote *peer = &context->peers[context->npeers];
    memset(peer, 0, sizeof *peer);
    memcpy(peer->uuid, card->uuid, sizeof card->uuid);
    peer->pid = card->pid;
    peer->started = card->started;
    peer->same_host = same_host;
    peer->transport = peer->same_host ? context->local : context->net;
    peer->takes_device = peer->transport->takes_device && card->takes_device != 0;
    peer->users = 1;
    peer->unreadable = !dcommi_env_flag("DCOMM_CMA", true);
    /* In another pid namespace this pid names another process here. Do not read that process, and
     * do not watch it in the peer's place. */
    if (peer->same_host && (dcommi_watch_foreign(dcommi_watch_me().pid_space, card->pid_space) ||
                            dcommi_process_started(peer->pid) != peer->started)) {
        peer->unreadable = true;
        peer->started = 0;
    }
    DCOMMI_TRY(peer->transport->call->add_peer(peer->transport, (int)context->npeers, address,
                                               address_len));
    *peer_p = (int)context->npeers++;
    return DCOMM_OK;
}

#endif
