/* comm_life.h - communicators: created over a rendezvous, derived from each other, shrunk after an
 * error, destroyed. */
#ifndef DCOMMI_COMM_LIFE_H
#define DCOMMI_COMM_LIFE_H

#include "boot.h"
#include "cache.h"
#include "context.h"
#include "select.h"

#define DCOMMI_GOODBYE_S 5.0 /* how long destroy waits for its peers */

/* ---- making and freeing ---- */

static dcomm_comm *dcommi_comm_new(dcomm_context *context)
{
    dcomm_comm *comm = dcommi_alloc(sizeof *comm);
    if (comm != NULL) {
        comm->refs = 1;
        pthread_mutex_init(&comm->lock, NULL);
        comm->context = context;
        if (context != NULL) {
            atomic_fetch_add(&context->refs, 1);
        }
    }
    return comm;
}

static void dcommi_comm_free(dcomm_comm *comm)
{
    while (comm->free_runs != NULL) {
        dcommi_run *run = comm->free_runs;
        comm->free_runs = run->next;
        dcommi_free(run->memory);
        dcommi_free(run);
    }
    dcommi_cache_clear(comm);
    for (int r = 0; comm->members != NULL && r < comm->size; r++) {
        dcommi_free(comm->members[r].hostname);
    }
    dcommi_free(comm->members);
    dcommi_free(comm->names[0]);
    dcommi_free(comm->names[1]);
    pthread_mutex_destroy(&comm->lock);
    dcommi_free(comm);
}

/* The creator lets go of a communicator and of its context. Runs hold only the communicator: the
 * last of them may end while the context closes. */
static void dcommi_comm_drop(dcomm_comm *comm)
{
    dcomm_context *context = comm->context;
    pthread_mutex_lock(&comm->lock);
    bool last = --comm->refs == 0;
    pthread_mutex_unlock(&comm->lock);
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

static char *dcommi_strdup(const char *text)
{
    size_t len = strlen(text) + 1;
    char *copy = dcommi_alloc_raw(len);
    if (copy != NULL) {
        memcpy(copy, text, len);
    }
    return copy;
}

/* Defaults: the environment's where the caller has not said. */
static dcomm_status dcommi_comm_settings(dcomm_comm *comm)
{
    const dcomm_comm_opts *opts = &comm->opts;
    const char *timeout = getenv("DCOMM_TIMEOUT"), *algo = getenv("DCOMM_ALGO");
    const char *deterministic = getenv("DCOMM_DETERMINISTIC"), *chunk = getenv("DCOMM_CHUNK");
    comm->timeout_s = opts->timeout_s;
    if (comm->timeout_s == 0) {
        comm->timeout_s = timeout != NULL ? strtod(timeout, NULL) : 300.0;
    }
    if (!(comm->timeout_s > 0)) {
        return dcommi_fail(DCOMM_ERR_INVALID, "timeout_s (DCOMM_TIMEOUT) is %g; it must be > 0",
                           comm->timeout_s);
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
    comm->deterministic =
        opts->deterministic || (deterministic != NULL && atoi(deterministic) != 0);
    comm->chunk_bytes = (int64_t)opts->chunk_bytes;
    if (comm->chunk_bytes == 0 && chunk != NULL) {
        comm->chunk_bytes = strtoll(chunk, NULL, 10);
    }
    if (comm->chunk_bytes < 0) {
        return dcommi_fail(DCOMM_ERR_INVALID, "chunk_bytes (DCOMM_CHUNK) is %" PRId64,
                           comm->chunk_bytes);
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
    card->size = comm->size;
    card->timeout_s = comm->timeout_s;
    card->chunk_bytes = (uint64_t)comm->chunk_bytes;
    card->deterministic = comm->deterministic;
    memcpy(card->algo, comm->algo, sizeof card->algo);
    gethostname(card->hostname, sizeof card->hostname - 1);
    memcpy(card->host_id, comm->context->host_id, sizeof card->host_id);
}

/* The card at the start of a rank's blob, if it is one of ours. */
static dcomm_status dcommi_card_parse(const uint8_t *blob, size_t len, int rank, int size,
                                      dcommi_card *card)
{
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
    return DCOMM_OK;
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
    for (int r = 0; r < boot->size; r++) {
        DCOMMI_TRY(
            dcommi_card_parse(cards->all + at, cards->lens[r], r, boot->size, &cards->card[r]));
        cards->extra[r] = cards->all + at + sizeof(dcommi_card);
        at += cards->lens[r];
    }
    return DCOMM_OK;
}

/* Number the hosts in order of their lowest rank. */
static void dcommi_comm_hosts(dcomm_comm *comm, const dcommi_cards *cards)
{
    comm->nhosts = 0;
    for (int r = 0; r < comm->size; r++) {
        comm->members[r].host = -1;
        for (int q = 0; q < r && comm->members[r].host < 0; q++) {
            if (strcmp(cards->card[q].host_id, cards->card[r].host_id) == 0) {
                comm->members[r].host = comm->members[q].host;
            }
        }
        if (comm->members[r].host < 0) {
            comm->members[r].host = comm->nhosts++;
        }
    }
}

static dcomm_status dcommi_comm_meet(dcomm_comm *comm, dcommi_boot *boot, dcommi_cards *cards)
{
    dcomm_context *context = comm->context;
    dcommi_card card;
    comm->rank = boot->rank;
    comm->size = boot->size;
    comm->members = dcommi_calloc((size_t)comm->size, sizeof *comm->members);
    if (comm->members == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    /* First who and where, so that the network is opened only when some rank is elsewhere. */
    dcommi_card_fill(comm, &card);
    DCOMMI_TRY(dcommi_cards_exchange(boot, &card, sizeof card, cards));
    dcommi_comm_hosts(comm, cards);
    dcommi_cards_free(cards);
    dcommi_token_take(context);
    dcomm_status status = comm->nhosts > 1 ? dcommi_context_open_net(context) : DCOMM_OK;
    size_t local = context->local->address_len;
    size_t net = status >= 0 && comm->nhosts > 1 ? context->net->address_len : 0;
    uint8_t *blob = dcommi_alloc(sizeof card + local + net);
    if (blob != NULL) {
        card.local_address = (uint32_t)local;
        card.net_address = (uint32_t)net;
        if (dcommi_random_bytes(&card.nonce, sizeof card.nonce) < 0) {
            status = DCOMM_ERR_SYSTEM;
        }
        memcpy(blob, &card, sizeof card);
        memcpy(blob + sizeof card, context->local->address, local);
        if (net > 0) {
            memcpy(blob + sizeof card + local, context->net->address, net);
        }
    }
    dcommi_token_release(context);
    if (blob == NULL || status < 0) {
        dcommi_free(blob);
        return blob == NULL ? DCOMM_ERR_NO_MEMORY : status;
    }
    status = dcommi_cards_exchange(boot, blob, sizeof card + local + net, cards);
    dcommi_free(blob);
    DCOMMI_TRY(status);

    const dcommi_card *first = &cards->card[0];
    comm->id = dcommi_mix(first->nonce, 1);
    comm->timeout_s = first->timeout_s;
    comm->chunk_bytes = (int64_t)first->chunk_bytes;
    comm->deterministic = first->deterministic != 0;
    memcpy(comm->algo, first->algo, sizeof comm->algo);
    dcommi_token_take(context);
    for (int r = 0; r < comm->size && status >= 0; r++) {
        dcommi_member *m = &comm->members[r];
        m->peer = -1;
        m->hostname = dcommi_strdup(cards->card[r].hostname);
        if (m->hostname == NULL) {
            status = DCOMM_ERR_NO_MEMORY;
        } else if (r != comm->rank) {
            status = dcommi_peer_add(context, &cards->card[r], cards->extra[r],
                                     cards->extra[r] + cards->card[r].local_address, &m->peer);
        }
    }
    dcommi_token_release(context);
    return status;
}

/* Everything that creation does, in the caller's thread or one of its own. */
static dcomm_status dcommi_comm_build(dcomm_comm *comm)
{
    dcommi_boot *boot = NULL;
    dcommi_cards cards = {0};
    dcomm_status status = DCOMM_OK;
    if (comm->context == NULL) {
        if (comm->opts.context != NULL) {
            comm->context = comm->opts.context;
            atomic_fetch_add(&comm->context->refs, 1);
        } else {
            status = dcomm_context_create(&comm->opts.context_opts, &comm->context);
        }
    }
    if (status >= 0) {
        status = dcommi_boot_open(&comm->opts, comm->timeout_s, &comm->cancel, &boot);
    }
    if (status >= 0) {
        status = dcommi_comm_meet(comm, boot, &cards);
    }
    dcommi_cards_free(&cards);
    dcommi_boot_close(boot);
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
        return DCOMM_ERR_NO_MEMORY;
    }
    if (opts != NULL) {
        comm->opts = *opts;
    }
    dcomm_status status = dcommi_comm_settings(comm);
    if (status < 0) {
        dcommi_comm_drop(comm);
        return status;
    }
    *comm_p = comm;
    return DCOMM_OK;
}

DCOMM_API dcomm_status dcomm_comm_create(const dcomm_comm_opts *opts, dcomm_comm **comm_p)
{
    DCOMMI_TRY(dcommi_comm_prepare(opts, comm_p));
    dcomm_status status = dcommi_comm_build(*comm_p);
    if (status < 0) {
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
        dcommi_comm_drop(comm);
        *comm_p = NULL;
        return dcommi_fail(DCOMM_ERR_SYSTEM, "no thread to create the communicator in: %s",
                           strerror(error));
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
    return ready < 0 ? dcommi_fail((dcomm_status)ready, "%s", comm->message) : (dcomm_status)ready;
}

/* ---- derived communicators ---- */

/* A communicator of some ranks of another, in the order given; every one of them derives the same
 * id from the parent's and `salt`. */
static dcomm_status dcommi_comm_derive(dcomm_comm *parent, const int *ranks, int size,
                                       uint64_t salt, dcomm_comm **new_p)
{
    dcomm_comm *comm = dcommi_comm_new(parent->context);
    if (comm == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    comm->id = dcommi_mix(parent->id, salt);
    comm->size = size;
    comm->rank = -1;
    comm->timeout_s = parent->timeout_s;
    comm->chunk_bytes = parent->chunk_bytes;
    comm->deterministic = parent->deterministic;
    memcpy(comm->algo, parent->algo, sizeof comm->algo);
    comm->members = dcommi_calloc((size_t)size, sizeof *comm->members);
    int *hosts = dcommi_calloc((size_t)parent->nhosts, sizeof *hosts);
    bool bad = comm->members == NULL || hosts == NULL;
    for (int i = 0; i < size && !bad; i++) {
        const dcommi_member *from = &parent->members[ranks[i]];
        dcommi_member *m = &comm->members[i];
        if (hosts[from->host] == 0) {
            hosts[from->host] = ++comm->nhosts;
        }
        m->host = hosts[from->host] - 1;
        m->peer = from->peer;
        m->hostname = dcommi_strdup(from->hostname);
        bad = m->hostname == NULL;
        if (ranks[i] == parent->rank) {
            comm->rank = i;
        }
    }
    dcommi_free(hosts);
    if (bad) {
        dcommi_comm_drop(comm);
        return DCOMM_ERR_NO_MEMORY;
    }
    dcommi_token_take(parent->context);
    for (int i = 0; i < size; i++) {
        if (comm->members[i].peer >= 0) {
            parent->context->peers[comm->members[i].peer].users++;
        }
    }
    dcommi_token_release(parent->context);
    dcommi_comm_enter(comm);
    *new_p = comm;
    return DCOMM_OK;
}

static dcomm_status dcommi_check_comm(const dcomm_comm *comm);
static dcomm_status dcommi_check_no_group(const char *what);

typedef struct dcommi_color {
    int32_t color, key, rank;
} dcommi_color;

static int dcommi_color_compare(const void *a, const void *b)
{
    const dcommi_color *x = a, *y = b;
    if (x->key != y->key) {
        return x->key < y->key ? -1 : 1;
    }
    return x->rank < y->rank ? -1 : 1;
}

/* The number of a derivation, the same on all ranks, which derive in the same order. */
static uint64_t dcommi_comm_next_child(dcomm_comm *comm)
{
    pthread_mutex_lock(&comm->lock);
    uint64_t n = ++comm->children;
    pthread_mutex_unlock(&comm->lock);
    return n;
}

DCOMM_API dcomm_status dcomm_comm_split(dcomm_comm *comm, int color, int key, dcomm_comm **new_p)
{
    if (new_p == NULL) {
        return dcommi_fail(DCOMM_ERR_INVALID, "new_p is NULL");
    }
    *new_p = NULL;
    DCOMMI_TRY(dcommi_check_comm(comm));
    DCOMMI_TRY(dcommi_check_no_group("split"));
    uint64_t child = dcommi_comm_next_child(comm);
    dcommi_color mine = {color, key, comm->rank};
    dcommi_color *all = dcommi_calloc((size_t)comm->size, sizeof *all);
    int *ranks = dcommi_calloc((size_t)comm->size, sizeof *ranks);
    dcomm_status status = all == NULL || ranks == NULL ? DCOMM_ERR_NO_MEMORY : DCOMM_OK;
    if (status >= 0) {
        status = dcomm_allgather(comm, &mine, all, sizeof mine, DCOMM_U8, NULL);
    }
    if (status >= 0 && color >= 0) {
        int size = 0;
        for (int r = 0; r < comm->size; r++) {
            if (all[r].color == color) {
                all[size++] = all[r];
            }
        }
        qsort(all, (size_t)size, sizeof *all, dcommi_color_compare);
        for (int i = 0; i < size; i++) {
            ranks[i] = all[i].rank;
        }
        status =
            dcommi_comm_derive(comm, ranks, size, dcommi_mix(child, (uint64_t)color + 1), new_p);
    }
    dcommi_free(all);
    dcommi_free(ranks);
    return status;
}

DCOMM_API dcomm_status dcomm_comm_dup(dcomm_comm *comm, dcomm_comm **new_p)
{
    DCOMMI_TRY(dcommi_check_comm(comm));
    if (new_p == NULL) {
        return dcommi_fail(DCOMM_ERR_INVALID, "new_p is NULL");
    }
    return dcomm_comm_split(comm, 0, comm->rank, new_p);
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
    if (n < 0 || (n > 0 && excluded == NULL)) {
        return dcommi_fail(DCOMM_ERR_INVALID, "excluded is %s with n = %d",
                           excluded == NULL ? "NULL" : "given", n);
    }
    bool *out = dcommi_calloc((size_t)comm->size, sizeof *out);
    int *ranks = dcommi_calloc((size_t)comm->size, sizeof *ranks);
    dcomm_status status = out == NULL || ranks == NULL ? DCOMM_ERR_NO_MEMORY : DCOMM_OK;
    for (int i = 0; i < n && status >= 0; i++) {
        if (excluded[i] < 0 || excluded[i] >= comm->size || excluded[i] == comm->rank) {
            status = dcommi_fail(
                DCOMM_ERR_INVALID, "excluded[%d] is rank %d%s; there are %d", i, excluded[i],
                excluded[i] == comm->rank ? ", the caller itself" : "", comm->size);
        } else {
            out[excluded[i]] = true;
        }
    }
    if (status >= 0) {
        /* The parent may be beyond use, so the id comes from what the survivors know alike: who
         * they are, and how often they have shrunk it. Derivations they have not counted alike. */
        uint64_t salt = dcommi_mix(comm->id, 0x736872696e6bu);
        pthread_mutex_lock(&comm->lock);
        salt = dcommi_mix(salt, ++comm->shrinks);
        pthread_mutex_unlock(&comm->lock);
        int size = 0;
        for (int r = 0; r < comm->size; r++) {
            if (!out[r]) {
                ranks[size++] = r;
                salt = dcommi_mix(salt, (uint64_t)r + 1);
            }
        }
        status = dcommi_comm_derive(comm, ranks, size, salt, new_p);
    }
    dcommi_free(out);
    dcommi_free(ranks);
    if (status >= 0) {
        status = dcomm_barrier(*new_p, NULL); /* all survivors have come, with the same list */
        if (status < 0) {
            dcomm_comm_destroy(new_p);
        }
    }
    return status;
}

/* ---- abort and destroy ---- */

DCOMM_API dcomm_status dcomm_comm_abort(dcomm_comm *comm, const char *reason)
{
    DCOMMI_TRY(dcommi_check_comm(comm));
    pthread_mutex_lock(&comm->lock);
    if (atomic_load(&comm->abort_wanted) == 0) {
        snprintf(comm->abort_reason, sizeof comm->abort_reason, "rank %d aborted: %s", comm->rank,
                 reason != NULL ? reason : "no reason given");
        atomic_store(&comm->abort_wanted, 1);
    }
    pthread_mutex_unlock(&comm->lock);
    atomic_store(&comm->context->aborts, 1);
    /* Whoever progresses at this moment may be about to stop; a callback may also be our caller. */
    for (int i = 0; i < 1000 && atomic_load(&comm->context->aborts) != 0; i++) {
        if (dcommi_token_try(comm->context)) {
            dcommi_progress(comm->context);
            dcommi_token_release(comm->context);
        } else {
            sched_yield();
        }
    }
    return DCOMM_OK;
}

/* Whether a peer that we have spoken with has not said goodbye yet, or the transport still holds
 * memory of the caller's. */
static bool dcommi_comm_awaits(dcomm_comm *comm)
{
    dcommi_token_take(comm->context);
    bool awaits = comm->in_transport > 0;
    for (int r = 0; r < comm->size && !awaits; r++) {
        const dcommi_member *m = &comm->members[r];
        awaits = m->peer >= 0 && (m->heard || m->addressed) && !m->gone &&
                 !comm->context->peers[m->peer].lost;
    }
    dcommi_token_release(comm->context);
    return awaits;
}

DCOMM_API dcomm_status dcomm_comm_destroy(dcomm_comm **comm_p)
{
    if (comm_p == NULL || *comm_p == NULL) {
        return DCOMM_OK;
    }
    dcomm_comm *comm = *comm_p;
    DCOMMI_TRY(dcommi_check_fork());
    *comm_p = NULL;
    if (comm->has_creator) {
        atomic_store(&comm->cancel, 1);
        pthread_join(comm->creator, NULL);
        if (atomic_load(&comm->ready) != DCOMM_OK) {
            dcommi_comm_drop(comm);
            return DCOMM_OK;
        }
    }
    dcomm_context *context = comm->context;
    dcommi_token_take(context);
    dcommi_start_submitted(context);
    bool failed = atomic_load(&comm->poisoned) != 0;
    if (comm->runs != NULL) {
        dcommi_poison(comm, DCOMM_ERR_ABORTED, -1, "the communicator was destroyed meanwhile");
        failed = true;
    }
    for (int r = 0; r < comm->size; r++) {
        dcommi_member *m = &comm->members[r];
        if (m->peer < 0 || context->peers[m->peer].lost) {
            continue;
        }
        /* Processes of this host see this one end, also those that it has never spoken with: they
         * must not take it for dead. */
        bool spoken = m->heard || m->addressed;
        if (spoken || (context->peers[m->peer].same_host && !m->gone)) {
            dcommi_header h = {.type = DCOMMI_MSG_GOODBYE, .a = comm->entered};
            dcommi_send_header(comm, r, &h, NULL, 0);
            m->addressed = spoken; /* nobody waits for the answer to a goodbye */
        }
    }
    dcommi_token_release(context);
    /* A peer may still have to read from us, or to be told of the error. */
    double until = dcommi_now() + (failed ? 0.5 : DCOMMI_GOODBYE_S);
    while (dcommi_comm_awaits(comm) && dcommi_now() < until) {
        dcommi_progress_or_yield(context);
    }
    dcommi_token_take(context);
    dcomm_comm **at = &context->comms;
    while (*at != comm) {
        at = &(*at)->next;
    }
    *at = comm->next;
    context->buried[context->nburied++ % 64] = comm->id;
    dcommi_match_clear(comm);
    dcommi_progress(context);
    for (int r = 0; r < comm->size; r++) {
        int peer = comm->members[r].peer;
        if (peer >= 0 && --context->peers[peer].users == 0 && context->peers[peer].lost) {
            dcommi_transport *t = context->peers[peer].transport;
            t->call->remove_peer(t, peer, true);
        }
    }
    dcommi_token_release(context);
    dcommi_comm_drop(comm);
    return DCOMM_OK;
}

/* ---- read-out ---- */

static bool dcommi_comm_usable(const dcomm_comm *comm)
{
    return comm != NULL && atomic_load_explicit(&comm->ready, memory_order_acquire) == DCOMM_OK;
}

DCOMM_API int dcomm_comm_rank(const dcomm_comm *comm)
{
    return dcommi_comm_usable(comm) ? comm->rank : -1;
}

DCOMM_API int dcomm_comm_size(const dcomm_comm *comm)
{
    return dcommi_comm_usable(comm) ? comm->size : -1;
}

DCOMM_API dcomm_context *dcomm_comm_context(const dcomm_comm *comm)
{
    return dcommi_comm_usable(comm) ? comm->context : NULL;
}

DCOMM_API dcomm_status dcomm_comm_status(const dcomm_comm *comm)
{
    return comm != NULL ? (dcomm_status)atomic_load_explicit(&comm->poisoned, memory_order_acquire)
                        : DCOMM_ERR_INVALID;
}

DCOMM_API const char *dcomm_comm_error(const dcomm_comm *comm)
{
    if (comm == NULL) {
        return "";
    }
    bool failed = atomic_load_explicit(&comm->poisoned, memory_order_acquire) != 0 ||
                  atomic_load_explicit(&comm->ready, memory_order_acquire) < 0;
    return failed ? comm->message : "";
}

DCOMM_API int dcomm_comm_host(const dcomm_comm *comm, int rank)
{
    return dcommi_comm_usable(comm) && rank >= 0 && rank < comm->size ? comm->members[rank].host
                                                                      : -1;
}

DCOMM_API const char *dcomm_comm_hostname(const dcomm_comm *comm, int rank)
{
    return dcommi_comm_usable(comm) && rank >= 0 && rank < comm->size ? comm->members[rank].hostname
                                                                      : NULL;
}

DCOMM_API dcomm_status dcomm_comm_stats(const dcomm_comm *comm, dcomm_stats *stats)
{
    DCOMMI_TRY(dcommi_check_comm(comm));
    if (stats == NULL) {
        return dcommi_fail(DCOMM_ERR_INVALID, "stats is NULL");
    }
    DCOMMI_TRY(dcommi_check_comm(comm));
    dcommi_token_take(comm->context);
    pthread_mutex_lock((pthread_mutex_t *)(uintptr_t)&comm->lock);
    *stats = comm->stats;
    pthread_mutex_unlock((pthread_mutex_t *)(uintptr_t)&comm->lock);
    dcommi_token_release(comm->context);
    return DCOMM_OK;
}

#endif
