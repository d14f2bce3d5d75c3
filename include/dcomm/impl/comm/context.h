/* context.h - the life of a context: transports, peers, the optional progress thread. */
#ifndef DCOMMI_CONTEXT_H
#define DCOMMI_CONTEXT_H

#include "../base/captured.h"
#include "../engine/engine.h"
#include "../base/float_env.h"
#include "../transport/host.h"
#include "../transport/local/local.h"
#include "../base/pause.h"
#include "../base/sha256.h"
#include "../boot/topo.h"
#include "../transport/ucx/ucx.h"

/* ---- forked children ---- */

static _Atomic int dcommi_in_use; /* contexts and communicators, those under way included */
static _Atomic int dcommi_forked;
static pthread_once_t dcommi_fork_once = PTHREAD_ONCE_INIT;

/* A child of a process that uses nothing of dcomm may begin anew; the rendezvous looks after
 * itself. */
static void dcommi_in_child(void)
{
    if (atomic_load(&dcommi_in_use) != 0) {
        atomic_store(&dcommi_forked, 1);
    }
}

static void dcommi_watch_forks(void)
{
    pthread_atfork(NULL, NULL, dcommi_in_child);
}

static inline dcomm_status dcommi_check_fork(void)
{
    if (DCOMMI_UNLIKELY(atomic_load_explicit(&dcommi_forked, memory_order_relaxed) != 0)) {
        return dcommi_fail(DCOMM_ERR_FORKED,
                           "process %d was forked while its parent had a context or communicator, "
                           "whose connections it shares; fork before the first is created or after "
                           "the last is destroyed, or use exec",
                           (int)getpid());
    }
    return DCOMM_OK;
}

/* ---- peers ---- */

/* What one rank tells the others of itself when a communicator is created. Fixed layout; checked
 * for version, byte order and header size before anything else is believed. */
typedef struct dcommi_card {
    uint32_t magic, version;
    uint8_t uuid[16];
    uint64_t nonce;                        /* rank 0's makes the communicator's id */
    uint8_t control_nonce[16];             /* rank 0's makes the key of its control connections */
    uint8_t control_address[16];           /* where this rank listens for them */
    uint32_t control_family, control_port; /* 4 or 6, 0: it does not */
    uint64_t started, pid_space;
    int32_t pid, size;
    double timeout_s;
    uint64_t chunk_bytes;
    uint32_t deterministic, tunes;
    uint32_t local_address, net_address; /* lengths of what follows the card */
    uint32_t connections, takes_device;  /* UCX's, of memory of one */
    uint32_t float_env, unused;          /* DCOMMI_FLOAT_ bits of the caller's thread */
    char algo[32];
    char hostname[64];
    char host_id[DCOMMI_HOST_ID_MAX];
    dcommi_site place;
} dcommi_card;

#define DCOMMI_CARD_MAGIC 0x44434f4du
#define DCOMMI_CARD_VERSION (DCOMM_VERSION_MAJOR * 10000u + DCOMM_VERSION_MINOR * 100u + 9u)

/* The context's number for a peer, new or known; `address` is what the transport to it wants. */
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
    /* In another pid namespace that pid is another process here, to be neither read nor taken for
     * the peer's life. */
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

/* ---- progress thread ---- */

static void *dcommi_progress_main(void *user)
{
    dcomm_context *context = user;
    while (atomic_load_explicit(&context->stop, memory_order_acquire) == 0) {
        bool idle = true;
        if (dcommi_token_try(context)) {
            idle = !dcommi_progress(context) && context->active == 0;
            dcommi_token_release(context);
        }
        if (idle) {
            struct timespec nap = {0, 50000};
            nanosleep(&nap, NULL); /* nothing is outstanding: peers can wait this long */
        } else {
            sched_yield();
        }
    }
    return NULL;
}

static dcomm_status dcommi_context_start_thread(dcomm_context *context)
{
    int error = pthread_create(&context->thread, NULL, dcommi_progress_main, context);
    if (error != 0) {
        return dcommi_fail(DCOMM_ERR_SYSTEM, "no progress thread: %s", strerror(error));
    }
    atomic_store_explicit(&context->has_thread, true, memory_order_release);
    return DCOMM_OK;
}

/* Who ties operations to streams does not wait for them: somebody else must see to them. */
static dcomm_status dcommi_context_need_thread(dcomm_context *context)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    if (DCOMMI_LIKELY(atomic_load_explicit(&context->has_thread, memory_order_acquire))) {
        return DCOMM_OK;
    }
    pthread_mutex_lock(&lock);
    dcomm_status status =
        atomic_load(&context->has_thread) ? DCOMM_OK : dcommi_context_start_thread(context);
    pthread_mutex_unlock(&lock);
    return status;
}

/* ---- create and destroy ---- */

/* How long to wait at what cost. With a core to itself a rank loses nothing by spinning; where
 * ranks share cores, the one that is waited for must get the core: it is looked for twice, since
 * what comes from another core may be on its way. */
static void dcommi_patience(dcomm_context *context, bool crowded)
{
    context->spin_limit = crowded ? 2 : 2000;
    context->script_yields = crowded ? 16 : 0;
    context->script_pauses =
        crowded || !dcommi_isa_is_intel() ? 0 : dcommi_pauses_within(DCOMMI_FIRST_LOOK);
}

/* What launchers say, until the ranks of a communicator have told each other where they run. */
static bool dcommi_launched_crowded(void)
{
    const char *local = dcommi_env("LOCAL_WORLD_SIZE");
    int64_t ranks = 0;
    return local != NULL && dcommi_text_integer(local, 0, INT_MAX, &ranks) &&
           ranks > sysconf(_SC_NPROCESSORS_ONLN);
}

DCOMM_API dcomm_status dcomm_context_create(const dcomm_context_opts *opts,
                                            dcomm_context **context_p)
{
    dcomm_context_opts defaults = {0};
    if (context_p == NULL) {
        return dcommi_fail(DCOMM_ERR_INVALID, "context_p is NULL");
    }
    *context_p = NULL;
    pthread_once(&dcommi_fork_once, dcommi_watch_forks);
    DCOMMI_TRY(dcommi_check_fork());
    dcommi_env_check();
    dcommi_captured_warn_host();
    dcommi_ucx_tame_once();
    opts = opts != NULL ? opts : &defaults;
    dcomm_context *context = dcommi_alloc(sizeof *context);
    if (context == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    atomic_fetch_add(&dcommi_in_use, 1);
    atomic_store(&context->refs, 1);
    atomic_store(&context->holders, 1);
    dcommi_token_own(context);
    dcommi_patience(context, dcommi_launched_crowded());
    dcomm_status status = dcommi_random_bytes(context->uuid, sizeof context->uuid);
    dcommi_host_identity(opts->host_id, context->host_id);
    if (status >= 0 && opts->iface != NULL) {
        if (strlen(opts->iface) >= sizeof context->iface) {
            status = dcommi_fail(DCOMM_ERR_INVALID, "iface \"%s\" is too long", opts->iface);
        } else {
            snprintf(context->iface, sizeof context->iface, "%s", opts->iface);
        }
    }
    if (status >= 0) {
        status = dcommi_topo_here(context->iface, &context->place);
    }
    if (status >= 0) {
        dcommi_transport_handlers handlers = {context, dcommi_on_message, dcommi_on_peer_lost,
                                              dcommi_on_corrupt};
        status = dcommi_local_open(&handlers, &context->local);
    }
    if (status >= 0 && (opts->progress_thread || dcommi_env_flag("DCOMM_PROGRESS_THREAD", false))) {
        status = dcommi_context_start_thread(context);
    }
    if (status < 0) {
        dcommi_context_release(context);
        return status;
    }
    *context_p = context;
    return DCOMM_OK;
}

/* Other hosts take part: open the network. With the token. */
static dcomm_status dcommi_context_open_net(dcomm_context *context)
{
    if (context->net == NULL) {
        dcommi_captured_warn_net();
        dcommi_transport_handlers handlers = {context, dcommi_on_message, dcommi_on_peer_lost,
                                              dcommi_on_corrupt};
        DCOMMI_TRY(dcommi_ucx_open_net(&handlers, context->iface[0] != 0 ? context->iface : NULL,
                                       &context->net));
    }
    return context->control == NULL ? dcommi_ctl_open(context, context->net->iface) : DCOMM_OK;
}

/* A run may outlive what its context had open, and still asks whose the context is. */
static void dcommi_context_unhold(dcomm_context *context)
{
    if (atomic_fetch_sub(&context->holders, 1) == 1) {
        dcommi_free(context);
    }
}

static dcomm_status dcommi_context_release(dcomm_context *context)
{
    if (atomic_fetch_sub(&context->refs, 1) != 1) {
        return DCOMM_OK;
    }
    if (context->has_thread) {
        atomic_store_explicit(&context->stop, 1, memory_order_release);
        pthread_join(context->thread, NULL);
    }
    while (context->strays != NULL) {
        dcommi_stray *stray = context->strays;
        context->strays = stray->next;
        dcommi_early_free(stray->early);
        dcommi_free(stray);
    }
    dcommi_scratch_free(context);
    dcommi_regions_free(context);
    dcommi_ctl_close(context);
    if (context->net != NULL) {
        context->net->call->close(context->net, 1.0, false);
    }
    if (context->local != NULL) {
        context->local->call->close(context->local, 1.0, false);
    }
    while (context->finished != NULL) { /* ended by the close */
        dcommi_run *run = context->finished;
        context->finished = run->next_finished;
        dcommi_run_unref(run);
    }
    while (context->free_moves != NULL) {
        dcommi_move *move = context->free_moves;
        context->free_moves = move->next;
        dcommi_free(move);
    }
    while (context->free_controls != NULL) {
        dcommi_control *control = context->free_controls;
        context->free_controls = control->next;
        dcommi_free(control);
    }
    dcommi_gates_drop(context);
    dcommi_devices_free(context);
    dcommi_free(context->staging);
    dcommi_free((void *)context->pointers);
    dcommi_free(context->lengths);
    dcommi_free(context->pieces);
    dcommi_free(context->peers);
    dcommi_context_unhold(context);
    dcommi_shared_reclaim();
    atomic_fetch_sub(&dcommi_in_use, 1);
    return DCOMM_OK;
}

DCOMM_API dcomm_status dcomm_context_destroy(dcomm_context **context_p)
{
    if (context_p == NULL || *context_p == NULL) {
        return DCOMM_OK;
    }
    DCOMMI_TRY(dcommi_check_fork());
    dcomm_context *context = *context_p;
    *context_p = NULL;
    return dcommi_context_release(context);
}

DCOMM_API dcomm_status dcomm_context_progress(dcomm_context *context)
{
    if (context == NULL) {
        return dcommi_fail(DCOMM_ERR_INVALID, "context is NULL");
    }
    DCOMMI_TRY(dcommi_check_fork());
    dcommi_progress_or_yield(context);
    return DCOMM_OK;
}

#endif
