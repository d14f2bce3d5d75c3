/* create.h - create a communicator: settings, and the public calls. */
#ifndef DCOMMI_COMM_CREATE_H
#define DCOMMI_COMM_CREATE_H

#include "join.h"

/* ---- settings ---- */

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

/* Return what an error does: the caller's choice, else that of DCOMM_ERRORS. */
static dcomm_on_error dcommi_on_error(const dcomm_comm_opts *opts)
{
    double choice = DCOMM_ON_ERROR_PRINT - DCOMM_ON_ERROR_RETURN;
    if (opts != NULL && opts->on_error != DCOMM_ON_ERROR_DEFAULT) {
        return opts->on_error;
    }
    dcommi_env_read("DCOMM_ERRORS", &choice);
    return (dcomm_on_error)(DCOMM_ON_ERROR_RETURN + (int)choice);
}

/* Fill in the settings of a communicator: the caller's, else those of the environment. */
static dcomm_status dcommi_comm_settings(dcomm_comm *comm)
{
    const dcomm_comm_opts *opts = &comm->opts;
    const char *algo = dcommi_env("DCOMM_ALGO");
    double timeout_s = 300, liveness_s = 10, connections = 0, chunk = 0;
    DCOMMI_TRY(dcommi_env_read("DCOMM_TIMEOUT", &timeout_s));
    DCOMMI_TRY(dcommi_env_read("DCOMM_LIVENESS_S", &liveness_s));
    DCOMMI_TRY(dcommi_env_read("DCOMM_CONNECTIONS", &connections));
    DCOMMI_TRY(dcommi_env_read("DCOMM_CHUNK", &chunk));
    comm->timeout_s = opts->timeout_s != 0 ? opts->timeout_s : timeout_s;
    if (!(comm->timeout_s > 0)) {
        return dcommi_fail(DCOMM_ERR_INVALID, "timeout_s is %g; it must be > 0", comm->timeout_s);
    }
    if (!(opts->liveness_s >= 0)) {
        return dcommi_fail(DCOMM_ERR_INVALID,
                           "liveness_s is %g; it may be seconds above 0, INFINITY for none, or 0 "
                           "for the default",
                           opts->liveness_s);
    }
    comm->liveness_s = opts->liveness_s > 0 ? opts->liveness_s : liveness_s;
    comm->liveness_s = comm->liveness_s > 0 ? comm->liveness_s : INFINITY; /* DCOMM_LIVENESS_S=0 */
    algo = opts->algo != NULL ? opts->algo : algo != NULL ? algo : "auto";
    if (strlen(algo) >= sizeof comm->algo) {
        return dcommi_fail(DCOMM_ERR_INVALID, "algorithm \"%s\": the name is too long", algo);
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
    /* Copy the strings: creation may go on in a thread after the caller has freed them. */
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
        return dcommi_fail(DCOMM_ERR_INVALID,
                           "connections is %d; it may be 1 to %d, or 0 for the default",
                           opts->connections, DCOMM_CONNECTIONS_MAX);
    }
    comm->quorum = opts->quorum;
    comm->chunk_bytes = opts->chunk_bytes != 0 ? (int64_t)opts->chunk_bytes : (int64_t)chunk;
    if (comm->chunk_bytes < 0) {
        return dcommi_fail(DCOMM_ERR_INVALID, "chunk_bytes is %" PRId64 "; it must be 0 or more",
                           comm->chunk_bytes);
    }
    return DCOMM_OK;
}

/* ---- the calls ---- */

/* Create the communicator, in the caller's thread or in one of its own. */
static dcomm_status dcommi_comm_build(dcomm_comm *comm)
{
    const bool joins = dcommi_boot_kind(&comm->opts) == DCOMM_BOOT_JOIN;
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
        status =
            joins ? dcommi_comm_join(comm) : dcommi_comm_found(comm, comm->timeout_s, NULL, NULL);
    }
    if (status >= 0) {
        dcommi_comm_enter(comm);
    }
    if (status >= 0 && !joins && comm->rank == 0 && comm->size > 1) {
        dcommi_join_file_mark();
    }
    return status;
}

static void *dcommi_comm_create_main(void *user)
{
    dcomm_comm *comm = user;
    dcomm_status status = dcommi_comm_build(comm);
    if (status < 0) { /* else the engine owns the message: a peer may be lost already */
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
    DCOMMI_NEED(comm);
    int ready = atomic_load_explicit(&comm->ready, memory_order_acquire);
    if (ready < 0) {
        atomic_store_explicit(&comm->told, true, memory_order_relaxed);
    } else if (ready == DCOMM_IN_PROGRESS) {
        sched_yield(); /* a caller that polls must leave the core to the creator */
    }
    return ready < 0 ? dcommi_fail((dcomm_status)ready, "%s", comm->message) : (dcomm_status)ready;
}

#endif
