/* reach.h - agreement of the ranks of a new communicator: an error on one rank is an error on all,
 * and all learn which of them share memory. */
#ifndef DCOMMI_COMM_REACH_H
#define DCOMMI_COMM_REACH_H

#include "card.h"

/* In the last of so many rounds, ranks that cannot be reached yet count as unreachable. */
#define DCOMMI_REACH_ROUNDS 500
#define DCOMMI_REACH_NAP 2000000 /* nanoseconds between rounds */

/* The verdicts of all ranks. */
typedef struct dcommi_verdicts {
    uint8_t *all;
    size_t *lens;
} dcommi_verdicts;

static void dcommi_verdicts_free(dcommi_verdicts *v)
{
    dcommi_free(v->all);
    dcommi_free(v->lens);
    *v = (dcommi_verdicts){0};
}

/* Tell this rank's status and hear those of the others. Return this rank's error or the first of
 * theirs. `mine` has `len` bytes and begins with a boot word, which is filled in here. */
static dcomm_status dcommi_comm_say(const dcomm_comm *comm, dcommi_boot *boot, dcomm_status status,
                                    void *mine, size_t len, dcommi_verdicts *v)
{
    dcommi_boot_word card = dcommi_boot_word_of(status);
    void *all = NULL;
    size_t at = 0;
    memcpy(mine, &card, sizeof card);
    boot->guilty = boot->guilty || status < 0;
    dcomm_status exchanged = dcommi_boot_allgather(boot, mine, len, &all, &v->lens);
    if (exchanged < 0) {
        return status < 0 ? status : exchanged;
    }
    v->all = all;
    for (int r = 0; r < comm->size; at += v->lens[r++]) {
        status = status < 0 ? status : dcommi_boot_word_read(v->all + at, v->lens[r], r);
    }
    boot->agreed = boot->agreed || status < 0;
    return status;
}

/* Exchange statuses. No rank goes on before every rank can be reached. */
static dcomm_status dcommi_comm_agree(const dcomm_comm *comm, dcommi_boot *boot,
                                      dcomm_status status)
{
    dcommi_boot_word mine;
    dcommi_verdicts v = {0};
    status = dcommi_comm_say(comm, boot, status, &mine, sizeof mine, &v);
    dcommi_verdicts_free(&v);
    return status;
}

/* ---- which ranks share memory ---- */

/* The state of the search. A rank's words: how many ranks it has still to greet, then the ranks
 * that it cannot reach. */
typedef struct dcommi_reach {
    const dcommi_card *card; /* every rank's */
    const uint8_t **address; /* of every rank's local transport */
    uint8_t *done;           /* ranks that were greeted, or cannot be */
    uint8_t *mine;           /* a boot word, then this rank's words */
    size_t nlost;
    char why[DCOMMI_MESSAGE_MAX]; /* of the first rank that cannot be reached */
    dcommi_verdicts said;
    size_t *at; /* where each rank's words begin in `said` */
} dcommi_reach;

static int32_t dcommi_reach_word(const uint8_t *words, size_t i)
{
    int32_t word;
    memcpy(&word, words + i * sizeof word, sizeof word);
    return word;
}

static void dcommi_reach_put(dcommi_reach *reach, size_t i, int32_t word)
{
    memcpy(reach->mine + sizeof(dcommi_boot_word) + i * sizeof word, &word, sizeof word);
}

static void dcommi_reach_greeting(const dcomm_comm *comm, bool begins)
{
    dcommi_token_take(comm->context);
    comm->context->local->call->greeting(comm->context->local, begins);
    dcommi_token_release(comm->context);
}

/* Greet the ranks that are left, and return how many still are. */
static int32_t dcommi_reach_greet(const dcomm_comm *comm, dcommi_reach *reach, int round)
{
    dcommi_transport *t = comm->context->local;
    int32_t left = 0;
    for (int r = 0; r < comm->size; r++) {
        if (r == comm->rank || reach->done[r] ||
            strcmp(reach->card[r].host_id, comm->context->host_id) != 0) {
            continue;
        }
        dcomm_status status =
            t->call->greet(t, reach->address[r], reach->card[r].local_address, round == 1);
        if (status == DCOMM_IN_PROGRESS && round < DCOMMI_REACH_ROUNDS) {
            left++;
            continue;
        }
        reach->done[r] = 1;
        if (status != DCOMM_OK) {
            if (reach->nlost == 0) {
                snprintf(reach->why, sizeof reach->why, "%s",
                         status < 0 ? dcommi_message : "it takes nothing in");
            }
            dcommi_reach_put(reach, 1 + reach->nlost++, r);
        }
    }
    return left;
}

/* Run one round: greet, tell and hear. *more: another round is needed. */
static dcomm_status dcommi_reach_round(const dcomm_comm *comm, dcommi_boot *boot,
                                       dcommi_reach *reach, dcomm_status status, int round,
                                       bool *more)
{
    dcommi_boot_word alone;
    uint8_t *mine = status >= 0 ? reach->mine : (uint8_t *)&alone;
    size_t len = sizeof alone;
    if (status >= 0) {
        dcommi_token_take(comm->context);
        status = comm->context->local->call->listen(comm->context->local);
        dcommi_reach_put(reach, 0, dcommi_reach_greet(comm, reach, round));
        dcommi_token_release(comm->context);
        len += (1 + reach->nlost) * sizeof(int32_t);
    }
    dcommi_verdicts_free(&reach->said);
    DCOMMI_TRY(dcommi_comm_say(comm, boot, status, mine, len, &reach->said));
    *more = false;
    size_t at = 0;
    for (int r = 0; r < comm->size; r++) {
        size_t n = reach->said.lens[r];
        if (n < sizeof alone + sizeof(int32_t) || (n - sizeof alone) % sizeof(int32_t) != 0) {
            return dcommi_fail(DCOMM_ERR_CORRUPT,
                               "rank %d sent a bad list of the ranks that it reaches: %zu bytes", r,
                               n);
        }
        reach->at[r] = at + sizeof alone;
        *more = *more || dcommi_reach_word(reach->said.all + reach->at[r], 0) > 0;
        at += n;
    }
    return DCOMM_OK;
}

static size_t dcommi_reach_lost(const dcommi_reach *reach, int r)
{
    return (reach->said.lens[r] - sizeof(dcommi_boot_word)) / sizeof(int32_t) - 1;
}

/* Return true if rank a has said that it cannot reach rank b. */
static bool dcommi_reach_cannot(const dcommi_reach *reach, int a, int b)
{
    for (size_t i = 0; i < dcommi_reach_lost(reach, a); i++) {
        if (dcommi_reach_word(reach->said.all + reach->at[a], 1 + i) == b) {
            return true;
        }
    }
    return false;
}

/* Set host[r] to the first rank on r's host. Ranks with one identity are on one host if each can
 * hand its memory to each other of them. All ranks come to the same result. */
static void dcommi_reach_hosts(const dcomm_comm *comm, const dcommi_reach *reach, int64_t *host)
{
    for (int r = 0; r < comm->size; r++) {
        host[r] = r;
        for (int g = 0; g < r && host[r] == r; g++) {
            bool joins =
                host[g] == g && strcmp(reach->card[g].host_id, reach->card[r].host_id) == 0;
            for (int m = g; m < r && joins; m++) {
                joins = host[m] != g ||
                        (!dcommi_reach_cannot(reach, r, m) && !dcommi_reach_cannot(reach, m, r));
            }
            host[r] = joins ? g : r;
        }
    }
}

/* Warn on one rank only: the first that cannot reach some other. */
static void dcommi_reach_warn(const dcomm_comm *comm, const dcommi_reach *reach)
{
    int first = 0;
    while (first < comm->size && dcommi_reach_lost(reach, first) == 0) {
        first++;
    }
    if (first == comm->rank) {
        dcommi_log(
            DCOMMI_LOG_WARN,
            "rank %d cannot share memory with rank %d, though both name the same machine (%s); "
            "such ranks talk over the network, which is slower. Containers share memory if "
            "they share a network namespace or " DCOMMI_DOOR_FOLDER,
            comm->rank, dcommi_reach_word(reach->mine + sizeof(dcommi_boot_word), 1), reach->why);
    }
}

/* Hand our memory to the ranks with our host identity, and find out which ranks share a host.
 * `host` is NULL if there was no memory for it. */
static dcomm_status dcommi_comm_reach(const dcomm_comm *comm, dcommi_boot *boot,
                                      const dcommi_card *card, const uint8_t **address,
                                      int64_t *host)
{
    size_t n = (size_t)comm->size;
    dcommi_reach reach = {.card = card, .address = address, .done = dcommi_calloc(n, 1)};
    reach.mine = dcommi_alloc(sizeof(dcommi_boot_word) + (1 + n) * sizeof(int32_t));
    reach.at = dcommi_calloc(n, sizeof *reach.at);
    bool room = reach.done != NULL && reach.mine != NULL && reach.at != NULL && host != NULL;
    dcomm_status status = room ? DCOMM_OK : DCOMM_ERR_NO_MEMORY;
    bool more = true;
    dcommi_reach_greeting(comm, true);
    for (int round = 1; more; round++) {
        status = dcommi_reach_round(comm, boot, &reach, status, round, &more);
        more = more && status >= 0;
        if (more) { /* this user's sockets are used up: let peers take them in */
            nanosleep(&(struct timespec){.tv_nsec = DCOMMI_REACH_NAP}, NULL);
        }
    }
    dcommi_reach_greeting(comm, false);
    if (status >= 0) {
        dcommi_reach_hosts(comm, &reach, host);
        dcommi_reach_warn(comm, &reach);
    }
    dcommi_verdicts_free(&reach.said);
    dcommi_free(reach.at);
    dcommi_free(reach.mine);
    dcommi_free(reach.done);
    return status;
}

/* Open the network if there are several hosts. An error names two ranks that need it. The caller
 * holds the token. */
static dcomm_status dcommi_reach_net(const dcomm_comm *comm, const dcommi_card *card,
                                     const int64_t *host)
{
    int far = 1;
    while (far < comm->size && host[far] == host[0]) {
        far++;
    }
    dcomm_status status = far < comm->size ? dcommi_context_open_net(comm->context) : DCOMM_OK;
    return status >= 0 ? status
                       : dcommi_fail(status,
                                     "rank 0 is on host %s (identity %.40s), rank %d on host %s "
                                     "(identity %.40s): %s",
                                     card[0].hostname, card[0].host_id, far, card[far].hostname,
                                     card[far].host_id, dcommi_message);
}

#endif
