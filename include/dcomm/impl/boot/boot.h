/* boot.h - brings the ranks of a new communicator together: by the launcher, by an id, or by the
 * caller's all-gather. */
#ifndef DCOMMI_BOOT_H
#define DCOMMI_BOOT_H

#include "../../comm.h"
#include "id.h"
#include "launcher.h"
#include "pmi.h"
#include "pmix.h"

#define DCOMMI_BOOT_LINGER_S 1.0 /* seconds that a server waits for the others to leave */
#define DCOMMI_BOOT_PORT_S 2.0   /* seconds to wait for an earlier communicator's or job's port */
#define DCOMMI_BOOT_FEW \
    256 /* ranks up to which the caller's all-gather reports an error without memory */

typedef struct dcommi_boot {
    int rank, size;
    int local_rank; /* rank within the host as the launcher counts, -1 if it does not say */
    /* private: */
    bool open;
    dcomm_allgather_fn allgather; /* NULL: client */
    void *allgather_user;
    uint64_t few[DCOMMI_BOOT_FEW]; /* for the caller's all-gather: one word of each rank */
    uint64_t *words;               /* `few`, or allocated memory */
    bool agreed;                   /* no rank waits for another any more */
    bool guilty;                   /* this rank is why creation failed */
    bool counted;
    uint32_t generation;
    dcommi_rdv_client client;
    dcommi_rdv_server *server; /* NULL: another process serves */
} dcommi_boot;

/* Number of the launcher's communicators that this process has created or is creating. It tells a
 * slow rank of one communicator from ranks of the next one at the same port. Every rank creates
 * them in the same order. Failed attempts do not count, so that ranks can meet although they have
 * tried a different number of times. */
static _Atomic uint32_t dcommi_boot_generation;

/* Number of ids that the process manager was asked to share. The process manager pairs the
 * attempts of ranks itself and takes a key only once, so failed attempts count. */
static _Atomic uint32_t dcommi_boot_shares;

/* A rank's message at the end of a part of creation, which may be followed by data of that part,
 * or a rank's message in place of taking part. */
typedef struct dcommi_boot_word {
    int32_t status;
    char text[252];
} dcommi_boot_word;

static dcommi_boot_word dcommi_boot_word_of(dcomm_status status)
{
    dcommi_boot_word mine = {.status = status};
    if (status < 0) {
        snprintf(mine.text, sizeof mine.text, "%.250s", dcommi_message);
    }
    return mine;
}

/* Return another rank's status, with its sentence. */
static dcomm_status dcommi_boot_word_read(const void *blob, size_t len, int rank)
{
    dcommi_boot_word theirs = {.status = DCOMM_ERR_CORRUPT};
    if (len >= sizeof theirs) {
        memcpy(&theirs, blob, sizeof theirs);
        theirs.text[sizeof theirs.text - 1] = 0;
    }
    return theirs.status >= 0
               ? DCOMM_OK
               : dcommi_fail(theirs.status >= DCOMMI_STATUS_LAST ? (dcomm_status)theirs.status
                                                                 : DCOMM_ERR_CORRUPT,
                             "rank %d: %s", rank, theirs.text);
}

/* ---- ids ---- */

static dcomm_status dcommi_boot_join_id(dcommi_boot *boot, const dcomm_id *id)
{
    dcommi_id_parts parts;
    uint8_t key[DCOMMI_RDV_KEY];
    DCOMMI_TRY(dcommi_id_parse(id, &parts));
    dcommi_id_key(&parts, key);
    dcommi_rdv_target target;
    dcommi_rdv_server *server = dcommi_id_target(&parts, key, &target);
    if (server != NULL) {
        /* Several ranks may live in this process: rank 0 adopts the server. */
        if (boot->rank == 0) {
            boot->server = server;
        } else {
            dcommi_rdv_server_forget(server);
        }
    }
    if (boot->size == 1) {
        return DCOMM_OK;
    }
    return dcommi_rdv_join(&boot->client, &target, key, 0);
}

/* ---- launchers ---- */

/* Let rank 0 make an id and the process manager share it, and join. */
static dcomm_status dcommi_boot_managed(dcommi_boot *boot, const dcommi_launcher *l)
{
    char key[32], text[2 * DCOMM_ID_BYTES + 1] = "", got[2 * DCOMM_ID_BYTES + 1] = "";
    double deadline = dcommi_now() + boot->client.timeout_s;
    const _Atomic int *cancel = boot->client.cancel;
    dcomm_id id;
    snprintf(key, sizeof key, "dcomm-%" PRIu32, atomic_fetch_add(&dcommi_boot_shares, 1));
    if (boot->rank == 0) {
        DCOMMI_TRY(dcomm_id_create(&id));
        dcommi_id_hex(&id, text);
    }
    char *mine = boot->rank == 0 ? text : NULL;
    dcomm_status status =
        l->meeting == DCOMMI_MEET_PMI
            ? dcommi_pmi_share(l->pmi_fd, key, mine, got, sizeof got, deadline, cancel)
            : dcommi_pmix_share(key, mine, got, sizeof got, deadline, cancel);
    if (status == DCOMM_OK && !dcommi_id_unhex(got, &id)) {
        status =
            dcommi_fail(DCOMM_ERR_RENDEZVOUS, "the process manager did not return rank 0's id");
    }
    if (status == DCOMM_OK) {
        boot->client.timeout_s = dcommi_now() < deadline ? deadline - dcommi_now() : 0;
        return dcommi_boot_join_id(boot, &id);
    }
    if (boot->rank == 0) {
        /* Adopt the server, to which no rank will come, so that closing ends it. */
        dcommi_id_parts parts;
        uint8_t id_key[DCOMMI_RDV_KEY];
        dcommi_id_unhex(text, &id);
        if (dcommi_id_parse(&id, &parts) == DCOMM_OK) {
            dcommi_id_key(&parts, id_key);
            boot->server = dcommi_rdv_server_find(id_key, parts.port);
        }
    }
    return status;
}

/* Fail because the port is taken, and say who holds it. */
static dcomm_status dcommi_boot_taken(const dcommi_boot *boot, const dcommi_launcher *l,
                                      dcommi_rdv_target *target)
{
    char note[DCOMMI_SOCK_TEXT + DCOMMI_RDV_REASON_MAX + 8] = "";
    target->host = l->host;
    switch (dcommi_rdv_ask(target, l->key, boot->client.cancel, note, sizeof note)) {
    case DCOMMI_RDV_FOREIGN:
        return dcommi_fail(DCOMM_ERR_RENDEZVOUS, "rank 0 cannot serve: %s", note);
    case DCOMMI_RDV_STRANGE:
        return dcommi_fail(DCOMM_ERR_RENDEZVOUS,
                           "rank 0 cannot serve: a job with another secret meets at port %u; give "
                           "each job its own MASTER_PORT or DCOMM_PORT",
                           l->port);
    case DCOMMI_RDV_TAKEN:
        return dcommi_fail(DCOMM_ERR_RENDEZVOUS,
                           "rank 0 cannot serve: another rank 0 of the same job (%.120s) serves at "
                           "port %u; end it, or give each job its own MASTER_PORT or DCOMM_PORT, "
                           "and its own DCOMM_JOB=word",
                           l->job, l->port);
    default:
        return dcommi_fail(DCOMM_ERR_RENDEZVOUS,
                           "rank 0 cannot serve: another program, which is no rank 0 of dcomm, "
                           "holds port %u (%.150s); choose another MASTER_PORT or DCOMM_PORT",
                           l->port, note);
    }
}

/* Serve as rank 0 at the launcher's address. Retry for a while on failure, because without a
 * server no rank can be told anything. */
static dcomm_status dcommi_boot_serve(dcommi_boot *boot, const dcommi_launcher *l,
                                      dcommi_rdv_target *target)
{
    dcommi_addr on[DCOMMI_SOCK_ADDRS];
    const char *why = "";
    double patience = dcommi_now() + DCOMMI_BOOT_PORT_S;
    int n = l->loopback ? dcommi_addr_resolve(l->host, l->port, on, DCOMMI_SOCK_ADDRS, &why) : 0;
    for (int turn = 0;; turn++) {
        const dcommi_addr *at = n > 0 ? &on[turn % n] : NULL;
        dcomm_status status =
            dcommi_rdv_server_start(at, l->port, l->key, boot->generation, l->job, &boot->server);
        bool taken = errno == EADDRINUSE;
        const bool memory = status == DCOMM_ERR_NO_MEMORY;
        if (!memory && (status != DCOMM_ERR_SYSTEM || (!taken && turn + 1 >= n))) {
            return status;
        }
        if (dcommi_now() > patience) {
            return taken ? dcommi_boot_taken(boot, l, target) : status;
        }
        if (dcommi_sock_pause(0.05, boot->client.cancel) < 0) {
            return dcommi_rdv_cancelled();
        }
    }
}

static dcomm_status dcommi_boot_tcp(dcommi_boot *boot, const dcommi_launcher *l)
{
    dcommi_rdv_target target = {.host = l->host,
                                .port = l->port,
                                .secret_hint = "DCOMM_SECRET or DCOMM_SECRET_FILE",
                                .job = l->job,
                                .local_rank = (uint16_t)(l->local_rank > 0 ? l->local_rank : 0)};
    static _Atomic int process;
    if (atomic_exchange(&process, (int)getpid()) != (int)getpid()) {
        atomic_store(&dcommi_boot_generation, 0); /* a forked child has created none itself */
    }
    boot->generation = atomic_fetch_add(&dcommi_boot_generation, 1);
    boot->counted = true;
    if (boot->rank == 0) {
        if (!l->secret && !l->loopback) {
            static atomic_flag warned = ATOMIC_FLAG_INIT;
            if (!atomic_flag_test_and_set(&warned)) {
                dcommi_log(DCOMMI_LOG_WARN,
                           "ranks meet at %s:%u without authentication: whoever reaches that port "
                           "can join; set DCOMM_SECRET or DCOMM_SECRET_FILE on all ranks",
                           l->host, l->port);
            }
        }
        DCOMMI_TRY(dcommi_boot_serve(boot, l, &target));
        target.host = NULL;
        target.addrs[0] = boot->server->self;
        target.naddrs = 1;
        target.exists = true;
    }
    return dcommi_rdv_join(&boot->client, &target, l->key, boot->generation);
}

/* Warn that no launcher describes this rank, if the variable `hint` suggests several ranks. */
static void dcommi_boot_warn_alone(const char *hint)
{
    static atomic_flag warned = ATOMIC_FLAG_INIT;
    if (hint != NULL && !atomic_flag_test_and_set(&warned)) {
        dcommi_log(DCOMMI_LOG_WARN,
                   "this process is a communicator of one rank, but %s=%.64s is set: for several "
                   "ranks set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, or use dcomm-run, "
                   "torchrun, mpirun or srun",
                   hint, dcommi_env(hint));
    }
}

static dcomm_status dcommi_boot_auto(dcommi_boot *boot)
{
    dcommi_launcher l;
    DCOMMI_TRY(dcommi_launcher_detect(&l));
    boot->local_rank = l.local_rank;
    if (l.size == 0) {
        DCOMMI_TRY(dcommi_pmix_world(&l.rank, &l.size));
        if (l.size < 1 || l.rank >= l.size) {
            return dcommi_fail(DCOMM_ERR_RENDEZVOUS,
                               "PMIx says that this process is rank %d of %d, which is impossible",
                               l.rank, l.size);
        }
    }
    boot->rank = l.rank;
    boot->size = l.size;
    boot->client.rank = (uint32_t)l.rank;
    boot->client.size = (uint32_t)l.size;
    if (l.size == 1) {
        dcommi_boot_warn_alone(l.hint);
        return DCOMM_OK;
    }
    if (l.meeting == DCOMMI_MEET_TCP) {
        return dcommi_boot_tcp(boot, &l);
    }
    dcomm_status status = dcommi_boot_managed(boot, &l);
    if (status == DCOMM_ERR_UNSUPPORTED && l.meeting == DCOMMI_MEET_PMIX) {
        if (l.host[0] != '\0') {
            if (boot->server != NULL) {
                dcommi_rdv_server_retire(boot->server, 0);
                boot->server = NULL;
            }
            return dcommi_boot_tcp(boot, &l);
        }
        char why[256];
        snprintf(why, sizeof why, "%.255s", dcommi_message);
        return dcommi_fail(DCOMM_ERR_UNSUPPORTED,
                           "%s started this rank, but its PMIx cannot be used (%s); install "
                           "libpmix.so.2, set MASTER_ADDR and MASTER_PORT, or pass an id",
                           l.name, why);
    }
    return status;
}

/* ---- the interface ---- */

/* Leave after a creation that ended with `status`. If this process serves the others, wait until
 * they have left, at most DCOMMI_BOOT_LINGER_S. After an error wait until they have heard of it,
 * at most DCOMMI_RDV_TELL_S. */
static void dcommi_boot_close(dcommi_boot *boot, dcomm_status status)
{
    if (!boot->open) {
        return;
    }
    boot->open = false;
    dcommi_rdv_leave(&boot->client);
    if (boot->server != NULL) {
        dcommi_rdv_server_retire(boot->server,
                                 status < 0 ? DCOMMI_RDV_TELL_S : DCOMMI_BOOT_LINGER_S);
    }
    if (boot->counted && status < 0) {
        uint32_t mine = boot->generation + 1; /* unless another creation has begun meanwhile */
        atomic_compare_exchange_strong(&dcommi_boot_generation, &mine, boot->generation);
    }
    if (boot->words != boot->few) {
        dcommi_free(boot->words);
    }
}

static dcomm_status dcommi_boot_given(dcommi_boot *boot, const dcomm_comm_opts *opts)
{
    if (opts->size < 1 || opts->size > DCOMMI_RDV_SIZE_MAX || opts->rank < 0 ||
        opts->rank >= opts->size) {
        return dcommi_fail(DCOMM_ERR_INVALID,
                           "opts.rank is %d and opts.size is %d: a rank is from 0 to size - 1",
                           opts->rank, opts->size);
    }
    boot->rank = opts->rank;
    boot->size = opts->size;
    boot->client.rank = (uint32_t)opts->rank;
    boot->client.size = (uint32_t)opts->size;
    if (opts->boot == DCOMM_BOOT_ID) {
        return dcommi_boot_join_id(boot, &opts->id);
    }
    if (opts->allgather == NULL) {
        return dcommi_fail(DCOMM_ERR_INVALID, "opts.boot is DCOMM_BOOT_ALLGATHER, but "
                                              "opts.allgather is NULL");
    }
    boot->allgather = opts->allgather;
    boot->allgather_user = opts->allgather_user;
    boot->words = boot->size <= DCOMMI_BOOT_FEW
                      ? boot->few
                      : dcommi_calloc((size_t)boot->size, sizeof *boot->words);
    return boot->words != NULL ? DCOMM_OK : DCOMM_ERR_NO_MEMORY;
}

static dcomm_status dcommi_boot_by_caller(dcommi_boot *boot, const void *mine, size_t len,
                                          void **all_p, size_t **lens_p);

/* Tell the others that this rank cannot go on, for the reason in dcommi_message. They hear it in
 * their present or next round. */
static void dcommi_boot_tell(dcommi_boot *boot, dcomm_status status)
{
    if (!boot->open || boot->agreed) {
        return;
    }
    boot->agreed = true;
    char why[DCOMMI_MESSAGE_MAX];
    memcpy(why, dcommi_message, sizeof why);
    boot->guilty = boot->allgather != NULL || boot->client.fd >= 0;
    if (boot->allgather != NULL) {
        dcommi_boot_word mine = dcommi_boot_word_of(status);
        void *all = NULL;
        size_t *lens = NULL;
        dcommi_boot_by_caller(boot, &mine, sizeof mine, &all, &lens);
        dcommi_free(all);
        dcommi_free(lens);
    } else if (boot->client.fd >= 0) {
        boot->client.failed = status;
        memcpy(boot->client.why, why, sizeof why);
        dcommi_rdv_announce(&boot->client, dcommi_now() + DCOMMI_BOOT_LINGER_S);
        dcommi_rdv_drop(&boot->client);
    }
    memcpy(dcommi_message, why, sizeof why);
}

/* All-gather among one rank. */
static int dcommi_boot_alone(const void *mine, size_t bytes, void *all, void *user)
{
    (void)user;
    memcpy(all, mine, bytes);
    return 0;
}

/* Return how the ranks meet. A process that was started again joins (docs/errors.md). */
static dcomm_boot dcommi_boot_kind(const dcomm_comm_opts *opts)
{
    const dcomm_boot kind = opts != NULL ? opts->boot : DCOMM_BOOT_AUTO;
    return kind == DCOMM_BOOT_AUTO && dcommi_env_flag("DCOMM_JOIN", false) ? DCOMM_BOOT_JOIN : kind;
}

/* Meet as `opts` and the environment say. On failure close the boot. */
static dcomm_status dcommi_boot_begin(dcommi_boot *boot, const dcomm_comm_opts *opts)
{
    const dcomm_boot kind = dcommi_boot_kind(opts);
    double timeout_s = boot->client.timeout_s;
    dcomm_status status;
    if (kind == DCOMM_BOOT_AUTO) {
        status = dcommi_boot_auto(boot);
    } else if (kind == DCOMM_BOOT_ID || kind == DCOMM_BOOT_ALLGATHER) {
        status = dcommi_boot_given(boot, opts);
    } else {
        status = dcommi_fail(DCOMM_ERR_INVALID, "opts.boot=%d is no dcomm_boot", (int)kind);
    }
    boot->client.timeout_s = timeout_s;
    if (boot->size == 1 && boot->allgather == NULL) {
        boot->allgather = dcommi_boot_alone;
        boot->words = boot->few;
    }
    if (status < 0) {
        char why[DCOMMI_MESSAGE_MAX]; /* closing may fail too: keep the first reason */
        memcpy(why, dcommi_message, sizeof why);
        dcommi_boot_close(boot, status);
        memcpy(dcommi_message, why, sizeof why);
    }
    return status;
}

static dcommi_boot dcommi_boot_new(double timeout_s, const _Atomic int *cancel)
{
    return (dcommi_boot){.open = true,
                         .local_rank = -1,
                         .client = {.fd = -1, .timeout_s = timeout_s, .cancel = cancel}};
}

/* Connect as `opts` (which may be NULL) and the environment say, and wait for all ranks. Block at
 * most `timeout_s` seconds, apart from name look-ups and the caller's all-gather. Return
 * DCOMM_ERR_ABORTED soon after *cancel becomes non-zero; `cancel` may be NULL. `cancel` must stay
 * valid until close. A failed boot is closed already. */
static dcomm_status dcommi_boot_open(const dcomm_comm_opts *opts, double timeout_s,
                                     const _Atomic int *cancel, dcommi_boot *boot)
{
    *boot = dcommi_boot_new(timeout_s, cancel);
    return dcommi_boot_begin(boot, opts);
}

/* Meet the others only to tell them that this rank has failed with `status`, for the reason in
 * dcommi_message. Block at most DCOMMI_RDV_TELL_S seconds, apart from what dcommi_boot_open
 * excepts. Nobody waits for a newcomer. */
static void dcommi_boot_announce(const dcomm_comm_opts *opts, double timeout_s,
                                 const _Atomic int *cancel, dcomm_status status)
{
    if (dcommi_boot_kind(opts) == DCOMM_BOOT_JOIN) {
        return;
    }
    char why[DCOMMI_MESSAGE_MAX];
    memcpy(why, dcommi_message, sizeof why);
    timeout_s = timeout_s > 0 && timeout_s < DCOMMI_RDV_TELL_S ? timeout_s : DCOMMI_RDV_TELL_S;
    dcommi_boot boot = dcommi_boot_new(timeout_s, cancel);
    boot.client.failed = status;
    memcpy(boot.client.why, why, sizeof why);
    if (dcommi_boot_begin(&boot, opts) == DCOMM_OK) {
        memcpy(dcommi_message, why, sizeof why);
        dcommi_boot_tell(&boot, status); /* by the caller's all-gather */
        dcommi_boot_close(&boot, status);
    }
    memcpy(dcommi_message, why, sizeof why);
}

/* Return true if the rendezvous has failed or ended since the last round. The next round tells
 * why. */
static bool dcommi_boot_alarmed(const dcommi_boot *boot)
{
    struct pollfd p = {.fd = boot->client.fd, .events = POLLIN};
    return dcommi_sys_poll(&p, 1, 0) > 0;
}

static dcomm_status dcommi_boot_call(const dcommi_boot *boot, const void *mine, size_t bytes,
                                     void *all)
{
    int rc = boot->allgather(mine, bytes, all, boot->allgather_user);
    return rc == 0
               ? DCOMM_OK
               : dcommi_fail(DCOMM_ERR_RENDEZVOUS, "opts.allgather failed with %d on rank %d of %d",
                             rc, boot->rank, boot->size);
}

/* Gather by the caller's all-gather: first the lengths, then whether each rank has memory for the
 * blobs, then the blobs, padded to the longest. The middle round exists because no rank may wait
 * for a rank without memory. */
static dcomm_status dcommi_boot_by_caller(dcommi_boot *boot, const void *mine, size_t len,
                                          void **all_p, size_t **lens_p)
{
    size_t n = (size_t)boot->size, longest = 0, total = 0;
    uint64_t word = len;
    size_t *lens = dcommi_calloc(n, sizeof *lens);
    uint8_t *padded = NULL, *all = NULL;
    dcomm_status status = dcommi_boot_call(boot, &word, sizeof word, boot->words);
    for (size_t r = 0; r < n && status == DCOMM_OK; r++) {
        if (boot->words[r] > DCOMMI_RDV_BLOB_MAX) {
            status = dcommi_fail(DCOMM_ERR_CORRUPT,
                                 "opts.allgather returned wrong bytes: %" PRIu64
                                 " as a length, for rank %zu",
                                 boot->words[r], r);
            break;
        }
        longest = boot->words[r] > longest ? (size_t)boot->words[r] : longest;
    }
    if (status == DCOMM_OK) {
        for (size_t r = 0; r < n && lens != NULL; r++) {
            lens[r] = (size_t)boot->words[r];
        }
        padded = dcommi_alloc(longest);
        all = dcommi_calloc(n, longest);
        word = lens == NULL || padded == NULL || all == NULL;
        status = dcommi_boot_call(boot, &word, sizeof word, boot->words);
    }
    for (size_t r = 0; r < n && status == DCOMM_OK; r++) {
        if (word != 0) {
            status = DCOMM_ERR_NO_MEMORY;
        } else if (boot->words[r] != 0) {
            status = dcommi_fail(DCOMM_ERR_NO_MEMORY, "rank %zu has no memory to take part", r);
        }
    }
    if (status == DCOMM_OK && longest > 0) {
        if (len > 0) {
            memcpy(padded, mine, len);
        }
        status = dcommi_boot_call(boot, padded, longest, all);
    }
    for (size_t r = 0; r < n && status == DCOMM_OK; r++) {
        memmove(all + total, all + r * longest, lens[r]);
        total += lens[r];
    }
    dcommi_free(padded);
    if (status < 0) {
        boot->agreed = true; /* the others have failed as well, or are in another round */
        dcommi_free(all);
        dcommi_free(lens);
        return status;
    }
    *all_p = all;
    *lens_p = lens;
    return DCOMM_OK;
}

/* Give every rank's blob to every rank. *all_p is the concatenation, (*lens_p)[size] the lengths
 * in bytes; the caller frees both with dcommi_free. A blob has at most 1 MiB. Block at most
 * `timeout_s` of dcommi_boot_open. After an error only tell and close are allowed. A rank that has
 * sent its blob has memory for the result if no blob is longer than its own. So no rank fails
 * alone in a last round of equal blobs. */
static dcomm_status dcommi_boot_allgather(dcommi_boot *boot, const void *mine, size_t len,
                                          void **all_p, size_t **lens_p)
{
    *all_p = NULL;
    *lens_p = NULL;
    if (len > DCOMMI_RDV_BLOB_MAX) {
        return dcommi_fail(DCOMM_ERR_UNSUPPORTED,
                           "rank %d has %zu bytes for the other ranks; the limit is %u", boot->rank,
                           len, DCOMMI_RDV_BLOB_MAX);
    }
    return boot->allgather != NULL ? dcommi_boot_by_caller(boot, mine, len, all_p, lens_p)
                                   : dcommi_rdv_gather(&boot->client, mine, len, all_p, lens_p);
}

#endif
