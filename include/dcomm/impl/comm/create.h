/* create.h - communicators: made, and created over a rendezvous. */
#ifndef DCOMMI_COMM_CREATE_H
#define DCOMMI_COMM_CREATE_H

#include "../engine/fast/board.h"
#include "../engine/cache.h"
#include "reach.h"
#include "select.h"

/* ---- making and freeing ---- */

static dcomm_comm *dcommi_comm_new(dcomm_context *context)
{
    dcomm_comm *comm = dcommi_alloc(sizeof *comm);
    if (comm != NULL) {
        atomic_fetch_add(&dcommi_in_use, 1);
        comm->refs = 1;
        comm->context = context;
        if (context != NULL) {
            atomic_fetch_add(&context->refs, 1);
            atomic_fetch_add(&context->holders, 1);
        }
    }
    return comm;
}

static void dcommi_comm_free(dcomm_comm *comm)
{
    dcommi_coded_free_all(comm);
    while (comm->free_runs != NULL) {
        dcommi_run *run = comm->free_runs;
        comm->free_runs = run->next;
        dcommi_free(run->memory);
        dcommi_free(run);
    }
    dcommi_recent_clear(comm);
    dcommi_cache_clear(comm);
    dcommi_refusals_free(comm);
    dcommi_free(comm->scratch);
    dcommi_free(comm->posts);
    for (int r = 0; comm->members != NULL && r < comm->size; r++) {
        dcommi_free(comm->members[r].hostname);
    }
    dcommi_free(comm->members);
    dcommi_groups_free(&comm->groups);
    dcommi_free(comm->chooser);
    if (comm->context != NULL) {
        dcommi_context_unhold(comm->context);
    }
    dcommi_free(comm->places);
    dcommi_free(comm->names[0]);
    dcommi_free(comm->names[1]);
    dcommi_free(comm);
    atomic_fetch_sub(&dcommi_in_use, 1);
}

/* The creator lets go of a communicator and of its context. Runs hold only the communicator: the
 * last of them may end while the context closes. */
static void dcommi_comm_drop(dcomm_comm *comm)
{
    dcomm_context *context = comm->context;
    dcommi_comm_lock(comm);
    bool last = --comm->refs == 0;
    dcommi_comm_unlock(comm);
    if (last) {
        dcommi_comm_free(comm);
    }
    if (context != NULL) {
        dcommi_context_release(context);
    }
}

/* Let the engine see it, and give it what has come for it. */
static void dcommi_comm_enter(dcomm_comm *comm)
{
    dcomm_context *context = comm->context;
    dcommi_token_take(context);
    comm->next = context->comms;
    context->comms = comm;
    dcommi_board_open(comm);
    for (int r = 0; r < comm->size; r++) {
        int peer = comm->members[r].peer;
        if (peer >= 0 && context->peers[peer].lost) {
            char text[DCOMMI_MESSAGE_MAX];
            snprintf(text, sizeof text, "rank %d was lost before: %s", r, context->peers[peer].why);
            dcommi_poison(comm, DCOMM_ERR_PEER, -1, text);
        }
    }
    dcommi_deliver_strays(context, comm);
    dcommi_token_release(context);
}

/* ---- creation over a rendezvous ---- */

/* Why this thread's last creation failed, for the caller that goes on without its communicator. */
static _Thread_local struct {
    dcomm_on_error on_error;
    char text[DCOMMI_MESSAGE_MAX];
} dcommi_uncreated;

static dcomm_status dcommi_creation_failed(dcomm_on_error on_error, dcomm_status status)
{
    dcommi_uncreated.on_error = on_error;
    memcpy(dcommi_uncreated.text, dcommi_message, sizeof dcommi_uncreated.text);
    if (on_error == DCOMM_ON_ERROR_ABORT) {
        dcommi_log(DCOMMI_LOG_ERROR, "no communicator was created: %s: %s", dcomm_strerror(status),
                   dcommi_message);
        abort();
    }
    return status;
}

/* The first call on a communicator that is NULL: was its creation's failure overlooked? */
static void dcommi_say_uncreated(void)
{
    if (dcommi_uncreated.text[0] != 0 && dcommi_uncreated.on_error != DCOMM_ON_ERROR_RETURN) {
        dcommi_log(DCOMMI_LOG_ERROR,
                   "a call on a communicator that is NULL, for it was not created: %s",
                   dcommi_uncreated.text);
    }
    dcommi_uncreated.text[0] = 0;
}

/* Return what an error is to do: the caller's choice, else DCOMM_ERRORS'. */
static dcomm_on_error dcommi_on_error(const dcomm_comm_opts *opts)
{
    double choice = DCOMM_ON_ERROR_PRINT - DCOMM_ON_ERROR_RETURN;
    if (opts != NULL && opts->on_error != DCOMM_ON_ERROR_DEFAULT) {
        return opts->on_error;
    }
    dcommi_env_read("DCOMM_ERRORS", &choice);
    return (dcomm_on_error)(DCOMM_ON_ERROR_RETURN + (int)choice);
}

/* Defaults: the environment's where the caller has not said. */
static dcomm_status dcommi_comm_settings(dcomm_comm *comm)
{
    const dcomm_comm_opts *opts = &comm->opts;
    const char *algo = dcommi_env("DCOMM_ALGO");
    double timeout_s = 300, connections = 0, chunk = 0;
    DCOMMI_TRY(dcommi_env_read("DCOMM_TIMEOUT", &timeout_s));
    DCOMMI_TRY(dcommi_env_read("DCOMM_CONNECTIONS", &connections));
    DCOMMI_TRY(dcommi_env_read("DCOMM_CHUNK", &chunk));
    comm->timeout_s = opts->timeout_s != 0 ? opts->timeout_s : timeout_s;
    if (!(comm->timeout_s > 0)) {
        return dcommi_fail(DCOMM_ERR_INVALID, "timeout_s is %g; it must be > 0", comm->timeout_s);
    }
    algo = opts->algo != NULL ? opts->algo : algo != NULL ? algo : "auto";
    if (strlen(algo) >= sizeof comm->algo) {
        return dcommi_fail(DCOMM_ERR_INVALID, "algorithm \"%s\" is too long a name", algo);
    }
    bool known = strcmp(algo, "auto") == 0 || algo[0] == 0;
    for (size_t i = 0; i < DCOMMI_ALGO_COUNT && !known; i++) {
        known = strcmp(dcommi_algo_table[i].name, algo) == 0;
    }
    if (!known) {
        return dcommi_fail(DCOMM_ERR_INVALID, "no operation has an algorithm \"%s\" (DCOMM_ALGO)",
                           algo);
    }
    snprintf(comm->algo, sizeof comm->algo, "%s", algo);
    /* Creation may go on in a thread when the caller's strings are gone. */
    dcomm_context_opts *names = &comm->opts.context_opts;
    const char **copied[2] = {&names->iface, &names->host_id};
    for (int i = 0; i < 2; i++) {
        if (*copied[i] != NULL) {
            comm->names[i] = dcommi_strdup(*copied[i]);
            if (comm->names[i] == NULL) {
                return DCOMM_ERR_NO_MEMORY;
            }
            *copied[i] = comm->names[i];
        }
    }
    comm->opts.algo = NULL;
    comm->on_error = dcommi_on_error(opts);
    comm->deterministic = opts->deterministic || dcommi_env_flag("DCOMM_DETERMINISTIC", false);
    comm->tunes = opts->tune != 0 ? opts->tune > 0 : dcommi_env_flag("DCOMM_TUNE", true);
    comm->connections = opts->connections != 0 ? opts->connections : (int)connections;
    if (comm->connections < 0 || comm->connections > DCOMM_CONNECTIONS_MAX) {
        return dcommi_fail(DCOMM_ERR_INVALID, "connections is %d; it may be 1 to %d, or 0: chosen",
                           opts->connections, DCOMM_CONNECTIONS_MAX);
    }
    comm->chunk_bytes = opts->chunk_bytes != 0 ? (int64_t)opts->chunk_bytes : (int64_t)chunk;
    if (comm->chunk_bytes < 0) {
        return dcommi_fail(DCOMM_ERR_INVALID, "chunk_bytes is %" PRId64, comm->chunk_bytes);
    }
    return DCOMM_OK;
}

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
    card->chunk_bytes = (uint64_t)comm->chunk_bytes;
    card->deterministic = comm->deterministic;
    card->tunes = comm->tunes;
    card->connections = (uint32_t)comm->connections;
    card->float_env = dcommi_float_env();
    memcpy(card->algo, comm->algo, sizeof card->algo);
    gethostname(card->hostname, sizeof card->hostname - 1);
    memcpy(card->host_id, comm->context->host_id, sizeof card->host_id);
    card->place = comm->context->place;
}

/* The card at the start of a rank's blob, if it is one of ours. */
static dcomm_status dcommi_card_parse(const uint8_t *blob, size_t len, int rank, int size,
                                      dcommi_card *card)
{
    if (len == sizeof(dcommi_boot_word)) { /* it cannot take part */
        DCOMMI_TRY(dcommi_boot_word_read(blob, len, rank));
    }
    if (len < sizeof *card) {
        return dcommi_fail(DCOMM_ERR_CORRUPT, "rank %d sent %zu bytes about itself, less than %zu",
                           rank, len, sizeof *card);
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
        return dcommi_fail(DCOMM_ERR_MISMATCH, "rank %d says there are %d ranks, this one %d", rank,
                           card->size, size);
    }
    if ((uint64_t)card->local_address + card->net_address != len - sizeof *card) {
        return dcommi_fail(DCOMM_ERR_CORRUPT, "rank %d sent addresses of a wrong length", rank);
    }
    return dcommi_place_check(&card->place, rank);
}

/* Every rank's blob, parsed: cards[size] and where each blob starts. */
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
    for (int r = 0; r < boot->size;
         r++) { /* a rank that cannot take part comes to no other round */
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

/* Send a card with an address behind it, and receive all ranks'. */
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

/* Who is where. */
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

/* Something to choose algorithms by: the numbers of `from`, or the built-in ones. */
static dcomm_status dcommi_comm_chooser(dcomm_comm *comm, const dcommi_chooser *from)
{
    dcomm_tuning tuning;
    dcomm_tuning_default(&tuning);
    tuning.device_ucx = comm->device_ucx;
    tuning.connections = comm->connections > 0 ? comm->connections : tuning.connections;
    comm->chooser = dcommi_alloc(sizeof *comm->chooser);
    return comm->chooser != NULL ? dcommi_chooser_set(comm->chooser, comm->groups, comm->size,
                                                      from != NULL ? &from->tuning : &tuning)
                                 : DCOMM_ERR_NO_MEMORY;
}

/* Be ready to send to all ranks; over so many connections to each on another host. With the token.
 */
static void dcommi_comm_connections(dcomm_comm *comm, int connections)
{
    for (int r = 0; r < comm->size; r++) {
        int peer = comm->members[r].peer;
        dcommi_transport *t = peer >= 0 ? comm->context->peers[peer].transport : NULL;
        if (t != NULL && t->call->connect != NULL) {
            t->call->connect(t, peer, connections);
        }
    }
}

/* The data that ranks tell each other in creation. */
typedef struct dcommi_gathering {
    dcommi_cards local, net; /* with the addresses of that transport; net: where there are hosts */
    int64_t *host;           /* of each rank */
} dcommi_gathering;

static void dcommi_gathering_free(dcommi_gathering *m)
{
    dcommi_cards_free(&m->local);
    dcommi_cards_free(&m->net);
    dcommi_free(m->host);
}

/* ---- control connections ---- */

static void dcommi_card_control(const dcomm_context *context, dcommi_card *card)
{
    const dcommi_addr *a = &context->control->address;
    bool v4 = a->any.sa_family == AF_INET;
    card->control_family = v4 ? 4 : 6;
    card->control_port = ntohs(v4 ? a->v4.sin_port : a->v6.sin6_port);
    memcpy(card->control_address, v4 ? (const void *)&a->v4.sin_addr : &a->v6.sin6_addr,
           v4 ? sizeof a->v4.sin_addr : sizeof a->v6.sin6_addr);
}

/* False: the rank has none. */
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

/* Return true if two ranks are to be connected; both see it alike. */
static bool dcommi_comm_pair_connects(const dcomm_comm *comm, int a, int b)
{
    const uint64_t one_of = (uint64_t)dcommi_ceil_div(comm->size, DCOMMI_CTL_MOST);
    return dcommi_mix((uint64_t)(a < b ? a : b), (uint64_t)(a < b ? b : a)) % one_of == 0;
}

/* Return how many connections are still to come, or, if `failed_too`, are not there. *rank (may be
 * NULL) becomes the first of those ranks. With the token. */
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

/* Connect with the ranks of other hosts. What cannot be connected is named, and is no error: then
 * a death is found as late as UCX and the queries find it. */
static dcomm_status dcommi_comm_control(dcomm_comm *comm, const dcommi_card *cards,
                                        const uint8_t secret[DCOMMI_RDV_KEY])
{
    dcomm_context *context = comm->context;
    uint8_t key[DCOMMI_CTL_KEY];
    dcommi_hmac h;
    dcommi_hmac_begin(&h, secret, DCOMMI_RDV_KEY);
    dcommi_hmac_add(&h, "dcomm control 1", 16);
    dcommi_hmac_add(&h, cards[0].control_nonce, sizeof cards[0].control_nonce);
    dcommi_hmac_end(&h, key);
    dcomm_status status = DCOMM_OK;
    dcommi_token_take(context);
    for (int r = 0; r < comm->size && status >= 0; r++) {
        dcommi_addr where;
        int peer = comm->members[r].peer;
        if (peer >= 0 && !context->peers[peer].same_host &&
            dcommi_comm_pair_connects(comm, comm->rank, r) &&
            dcommi_card_address(&cards[r], &where)) {
            status = dcommi_ctl_want(context, peer, &where, key);
        }
    }
    dcommi_token_release(context);
    double start = dcommi_now();
    double until =
        start + (comm->timeout_s < 2 * DCOMMI_CTL_S ? comm->timeout_s / 2 : DCOMMI_CTL_S);
    while (status >= 0) {
        dcommi_token_take(context);
        dcommi_ctl_look(context);
        bool over = dcommi_comm_unconnected(comm, false, NULL) == 0 || dcommi_now() >= until;
        if (over) {
            dcommi_comm_warn_unconnected(comm);
        }
        dcommi_token_release(context);
        if (over) {
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

/* Each rank folds results for itself where that is faster, so all must compute alike. All see the
 * same cards, and fail alike. */
static dcomm_status dcommi_cards_compute_alike(const dcommi_cards *cards, dcommi_boot *boot)
{
    for (int r = 1; r < boot->size; r++) {
        uint32_t first = cards->card[0].float_env, other = cards->card[r].float_env;
        if (other != first) {
            char mine[80], theirs[80];
            dcommi_float_env_text(first, mine, sizeof mine);
            dcommi_float_env_text(other, theirs, sizeof theirs);
            boot->agreed = true;
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
    dcomm_status status = comm->nhosts > 1 ? dcommi_context_open_net(context) : DCOMM_OK;
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
    comm->chunk_bytes = (int64_t)first->chunk_bytes;
    comm->deterministic = first->deterministic != 0;
    comm->tunes = first->tunes != 0;
    comm->connections = (int)(first->connections <= DCOMM_CONNECTIONS_MAX ? first->connections : 0);
    memcpy(comm->algo, first->algo, sizeof comm->algo);
    comm->device_ucx = comm->nhosts > 1;
    for (int r = 0; r < comm->size; r++) {
        comm->device_ucx = comm->device_ucx && m->net.card[r].takes_device != 0;
    }
}

/* One rank as a peer. With the token. */
static dcomm_status dcommi_comm_peer(dcomm_comm *comm, const dcommi_gathering *m, int r)
{
    dcomm_context *context = comm->context;
    bool near = m->host[r] == m->host[comm->rank];
    const dcommi_cards *cards = near ? &m->local : &m->net;
    const dcommi_card *card = &cards->card[r];
    size_t known = context->npeers;
    int peer;
    DCOMMI_TRY(dcommi_peer_add(context, card, near, cards->extra[r],
                               near ? card->local_address : card->net_address, &peer));
    comm->members[r].peer = peer;
    void *common = NULL;
    dcomm_status status = near && context->npeers > known
                              ? context->local->call->common(context->local, peer, &common)
                              : DCOMM_OK;
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
    for (int r = 0; r < comm->size; r++) { /* those that were known already, or failed */
        context->local->call->forget(context->local, m->local.extra[r],
                                     m->local.card[r].local_address);
    }
    dcommi_token_release(context);
    return status;
}

/* A tuner measures on a communicator that is being created (tune_comm.h). */
struct dcommi_tuner;
static dcomm_status dcommi_tuner_new(dcomm_comm *comm, struct dcommi_tuner **t_p);
static dcomm_status dcommi_tuner_run(struct dcommi_tuner *t, dcomm_comm *comm,
                                     const dcomm_tuning *given, bool again);
static void dcommi_tuner_free(struct dcommi_tuner *t);

/* Whatever may fail on one rank alone comes before the ranks agree. *tuner_p: what is to be
 * measured with afterwards; NULL: nothing is. */
static dcomm_status dcommi_comm_meet(dcomm_comm *comm, dcommi_boot *boot,
                                     struct dcommi_tuner **tuner_p)
{
    dcommi_gathering m = {0};
    comm->rank = boot->rank;
    comm->members = dcommi_calloc((size_t)boot->size, sizeof *comm->members);
    if (comm->members == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    comm->size = boot->size;
    for (int r = 0; r < comm->size; r++) {
        comm->members[r].peer = -1;
    }
    dcomm_status status = dcommi_comm_locate(comm, boot, &m);
    if (status >= 0) {
        dcommi_comm_adopt(comm, &m);
        status = dcommi_comm_chooser(comm, NULL);
        status = status >= 0 ? dcommi_comm_peers(comm, &m) : status;
        if (status >= 0 && comm->nhosts > 1 && comm->context->control != NULL) {
            status = dcommi_comm_control(comm, m.net.card, boot->client.secret);
        }
        if (status >= 0 && comm->tunes && comm->size > 1) {
            status = dcommi_tuner_new(comm, tuner_p);
        }
        status = dcommi_comm_agree(comm, boot, status);
    }
    if (status >= 0) {
        int connections = (int)comm->chooser->tuning.connections;
        connections = comm->connections > 0 ? comm->connections : connections;
        dcommi_token_take(comm->context);
        dcommi_comm_connections(comm, connections > 0 ? connections : 1);
        dcommi_token_release(comm->context);
    }
    dcommi_gathering_free(&m);
    return status;
}

/* Meet the others, measure, and agree with them that all have a communicator now. */
static dcomm_status dcommi_comm_found(dcomm_comm *comm, dcommi_boot *boot)
{
    struct dcommi_tuner *tuner = NULL;
    dcomm_status status = dcommi_comm_meet(comm, boot, &tuner);
    if (status >= 0 && tuner != NULL) {
        status = dcommi_comm_agree(comm, boot, dcommi_tuner_run(tuner, comm, NULL, false));
    }
    dcommi_tuner_free(tuner);
    return status;
}

/* Everything that creation does, in the caller's thread or one of its own. */
static dcomm_status dcommi_comm_build(dcomm_comm *comm)
{
    dcommi_boot boot = {.open = false};
    dcomm_status status = DCOMM_OK;
    if (comm->context == NULL) {
        if (comm->opts.context != NULL) {
            comm->context = comm->opts.context;
            atomic_fetch_add(&comm->context->refs, 1);
        } else {
            status = dcomm_context_create(&comm->opts.context_opts, &comm->context);
        }
        if (status >= 0) {
            atomic_fetch_add(&comm->context->holders, 1);
        } else {
            dcommi_boot_announce(&comm->opts, comm->timeout_s, &comm->cancel, status);
        }
    }
    if (status >= 0) {
        status = dcommi_boot_open(&comm->opts, comm->timeout_s, &comm->cancel, &boot);
    }
    if (status >= 0) {
        status = dcommi_comm_found(comm, &boot);
    }
    if (status < 0) {
        dcommi_boot_tell(&boot, status);
    }
    dcommi_boot_close(&boot, status);
    if (status >= 0) {
        dcommi_comm_enter(comm);
    }
    return status;
}

static void *dcommi_comm_create_main(void *user)
{
    dcomm_comm *comm = user;
    dcomm_status status = dcommi_comm_build(comm);
    if (status < 0) { /* else the message is the engine's: a peer may be lost already */
        memcpy(comm->message, dcommi_message, sizeof comm->message);
        if (atomic_load(&comm->cancel) == 0) {
            dcommi_creation_failed(comm->on_error, status);
        }
    }
    atomic_store_explicit(&comm->ready, status, memory_order_release);
    return NULL;
}

static dcomm_status dcommi_comm_prepare(const dcomm_comm_opts *opts, dcomm_comm **comm_p)
{
    if (comm_p == NULL) {
        return dcommi_fail(DCOMM_ERR_INVALID, "comm_p is NULL");
    }
    *comm_p = NULL;
    pthread_once(&dcommi_fork_once, dcommi_watch_forks);
    DCOMMI_TRY(dcommi_check_fork());
    dcomm_comm *comm = dcommi_comm_new(NULL);
    if (comm == NULL) {
        dcommi_boot_announce(opts, opts != NULL ? opts->timeout_s : 0, NULL, DCOMM_ERR_NO_MEMORY);
        return dcommi_creation_failed(dcommi_on_error(opts), DCOMM_ERR_NO_MEMORY);
    }
    if (opts != NULL) {
        comm->opts = *opts;
    }
    dcomm_status status = dcommi_comm_settings(comm);
    if (status < 0) {
        dcommi_boot_announce(&comm->opts, comm->timeout_s, NULL, status);
        dcommi_comm_drop(comm);
        return dcommi_creation_failed(dcommi_on_error(opts), status);
    }
    *comm_p = comm;
    return DCOMM_OK;
}

DCOMM_API dcomm_status dcomm_comm_create(const dcomm_comm_opts *opts, dcomm_comm **comm_p)
{
    DCOMMI_TRY(dcommi_comm_prepare(opts, comm_p));
    dcomm_status status = dcommi_comm_build(*comm_p);
    if (status < 0) {
        dcommi_creation_failed((*comm_p)->on_error, status);
        dcommi_comm_drop(*comm_p);
        *comm_p = NULL;
    }
    return status;
}

DCOMM_API dcomm_status dcomm_comm_create_start(const dcomm_comm_opts *opts, dcomm_comm **comm_p)
{
    DCOMMI_TRY(dcommi_comm_prepare(opts, comm_p));
    dcomm_comm *comm = *comm_p;
    atomic_store(&comm->ready, DCOMM_IN_PROGRESS);
    int error = pthread_create(&comm->creator, NULL, dcommi_comm_create_main, comm);
    if (error != 0) {
        dcomm_status status = dcommi_fail(
            DCOMM_ERR_SYSTEM, "no thread to create the communicator in: %s", strerror(error));
        dcommi_boot_announce(&comm->opts, comm->timeout_s, NULL, status);
        dcommi_comm_drop(comm);
        *comm_p = NULL;
        return status;
    }
    comm->has_creator = true;
    return DCOMM_OK;
}

DCOMM_API dcomm_status dcomm_comm_ready(dcomm_comm *comm)
{
    if (comm == NULL) {
        return dcommi_fail(DCOMM_ERR_INVALID, "comm is NULL");
    }
    int ready = atomic_load_explicit(&comm->ready, memory_order_acquire);
    if (ready < 0) {
        atomic_store_explicit(&comm->told, true, memory_order_relaxed);
    } else if (ready == DCOMM_IN_PROGRESS) {
        sched_yield(); /* who asks in a loop must leave the core to the thread that creates */
    }
    return ready < 0 ? dcommi_fail((dcomm_status)ready, "%s", comm->message) : (dcomm_status)ready;
}

#endif
