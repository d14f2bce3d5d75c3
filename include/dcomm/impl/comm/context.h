/* context.h - the life of a context: transports, peers, the optional progress thread. */
#ifndef DCOMMI_CONTEXT_H
#define DCOMMI_CONTEXT_H

#include "../engine/lives.h"
#include "../base/float_env.h"
#include "../boot/host.h"
#include "../transport/local/local.h"
#include "../base/pause.h"
#include "../base/sha256.h"
#include "../transport/net.h"
#include "../boot/here.h"

/* ---- progress thread ---- */

/* Idle passes before the thread naps between looks at the streams that runs wait for. */
#define DCOMMI_GATED_SPIN 200

static void *dcommi_progress_main(void *user)
{
    dcomm_context *context = user;
    if (dcommi_devices != NULL) {
        dcommi_devices->own_thread();
    }
    while (atomic_load_explicit(&context->stop, memory_order_acquire) == 0) {
        bool idle = true;
        if (dcommi_token_try(context)) {
            idle = !dcommi_progress(context) &&
                   (context->active == 0 ||
                    (context->active == context->ngated && context->idle > DCOMMI_GATED_SPIN));
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

/* Start the progress thread if there is none. A caller that ties operations to streams does not
 * wait for them, so nobody else would progress them. */
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

/* Set how long a rank spins before it yields. With a core to itself it loses nothing by spinning.
 * Where ranks share cores, the rank that is waited for needs the core. Look twice even then: data
 * from another core may be on its way. */
static void dcommi_patience(dcomm_context *context, bool crowded)
{
    context->spin_limit = crowded ? 2 : 2000;
    context->script_yields = crowded ? 16 : 0;
    context->script_pauses =
        crowded || !dcommi_isa_is_intel() ? 0 : dcommi_pauses_within(DCOMMI_FIRST_LOOK);
}

/* Return true if the launcher says that ranks share cores. This counts until the ranks of a
 * communicator have told each other where they run. */
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
    DCOMMI_NEED(context_p);
    *context_p = NULL;
    pthread_once(&dcommi_fork_once, dcommi_watch_forks);
    DCOMMI_TRY(dcommi_check_fork());
    dcommi_env_check();
    dcommi_net_prepare();
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
    const int used = dcommi_devices != NULL ? dcommi_devices->in_use() : -1;
    if (used >= 0) {
        /* Load kernels and pin memory before a stream can wait. The first use reports an error. */
        dcommi_device *device;
        (void)dcommi_device_of(context, used, &device);
    }
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
        dcommi_iface chosen; /* a bad name is refused when the network is opened */
        dcommi_net_iface(context->iface, chosen);
        status = dcommi_topo_here(chosen, &context->place);
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

/* Open the network and the control socket, because other hosts take part. The caller holds the
 * token. */
static dcomm_status dcommi_context_open_net(dcomm_context *context)
{
    if (context->net == NULL) {
        dcommi_transport_handlers handlers = {context, dcommi_on_message, dcommi_on_peer_lost,
                                              dcommi_on_corrupt};
        DCOMMI_TRY(dcommi_net_open(&handlers, context->iface[0] != 0 ? context->iface : NULL,
                                   &context->net));
    }
    return context->control == NULL ? dcommi_ctl_open(context, context->net->iface) : DCOMM_OK;
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
    DCOMMI_NEED(context);
    DCOMMI_TRY(dcommi_check_fork());
    dcommi_progress_or_yield(context);
    return DCOMM_OK;
}

#endif
