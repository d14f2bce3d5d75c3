/* life.h - how communicators of NCCL's face begin and end. */
#ifndef DCOMMI_NCCL_LIFE_H
#define DCOMMI_NCCL_LIFE_H

#include "options.h"

/* ---- the beginning ---- */

static ncclResult_t dcommi_nccl_new(struct ncclComm **comm_p)
{
    struct ncclComm *comm = calloc(1, sizeof *comm);
    *comm_p = comm;
    if (comm == NULL) {
        return dcommi_nccl_no_memory();
    }
    comm->blocking = true;
    return dcommi_nccl_cuda("cudaGetDevice", cudaGetDevice(&comm->device));
}

/* Release a registered buffer, which the caller has taken off comm's list. */
static void dcommi_nccl_unregister(const struct ncclComm *comm, dcommi_nccl_registered *r)
{
    if (r->shared) { /* the call fails, harmlessly, if the memory is already freed */
        (void)dcomm_mem_unshare(dcomm_comm_context(comm->comm), r->buff);
    }
    free(r);
}

/* Free a communicator, after its end or if its creation failed. */
static void dcommi_nccl_discard(struct ncclComm *comm)
{
    if (comm != NULL) {
        while (comm->registered != NULL) {
            dcommi_nccl_registered *r = comm->registered;
            comm->registered = r->next;
            dcommi_nccl_unregister(comm, r);
        }
        (void)dcomm_comm_destroy(&comm->comm);
        (void)dcomm_codec_destroy(&comm->codec);
        (void)dcomm_codec_destroy(&comm->candidate);
        free(comm->last);
        free(comm);
    }
}

static void dcommi_nccl_enlist(struct ncclComm *comm)
{
    pthread_once(&dcommi_nccl_once, dcommi_nccl_register_exit);
    pthread_mutex_lock(&dcommi_nccl_lock);
    if (atomic_exchange(&dcommi_nccl_pid, getpid()) != getpid()) { /* the first, maybe of a child */
        dcommi_nccl_all = NULL;
        dcommi_nccl_closing = 0;
    }
    comm->next = dcommi_nccl_all;
    dcommi_nccl_all = comm;
    pthread_mutex_unlock(&dcommi_nccl_lock);
}

/* Return the time-out of a communicator: the program's or the user's, else none, as in NCCL. A
 * rank may come late for good reasons, such as a slow checkpoint. */
static double dcommi_nccl_timeout(const dcommi_nccl_options *o)
{
    const char *set = getenv("DCOMM_TIMEOUT");
    return o->timeout_s > 0 ? o->timeout_s : set != NULL && *set != '\0' ? 0 : INFINITY;
}

/* Begin to create a communicator. dcommi_nccl_await waits until it is ready. */
static ncclResult_t dcommi_nccl_begin(struct ncclComm **comm_p, int nranks, const ncclUniqueId *id,
                                      int rank, const ncclConfig_t *config)
{
    _Static_assert(sizeof(ncclUniqueId) == sizeof(dcomm_id), "one is the other");
    dcommi_nccl_options o;
    struct ncclComm *comm = NULL;
    if (comm_p == NULL) {
        return dcommi_nccl_fail(ncclInvalidArgument, "comm is NULL");
    }
    *comm_p = NULL;
    if (nranks < 1 || rank < 0 || rank >= nranks) {
        return dcommi_nccl_fail(ncclInvalidArgument, "rank %d of %d ranks", rank, nranks);
    }
    ncclResult_t result = dcommi_nccl_new(&comm);
    if (result == ncclSuccess) {
        result = dcommi_nccl_configure(comm, config, getenv("DCOMM_CODEC"), &o);
    }
    if (result == ncclSuccess) {
        dcomm_comm_opts opts = {.boot = DCOMM_BOOT_ID,
                                .rank = rank,
                                .size = nranks,
                                .algo = o.algo,
                                .deterministic = o.deterministic,
                                .chunk_bytes = o.chunk_bytes,
                                .timeout_s = dcommi_nccl_timeout(&o),
                                .context_opts.progress_thread = true};
        memcpy(&opts.id, id, sizeof opts.id);
        result = dcommi_nccl_from(dcomm_comm_create_start(&opts, &comm->comm));
    }
    if (result != ncclSuccess) {
        dcommi_nccl_discard(comm);
        return result;
    }
    dcommi_nccl_enlist(comm);
    *comm_p = comm;
    return ncclSuccess;
}

static ncclResult_t dcommi_nccl_await(const struct ncclComm *comm)
{
    dcomm_status status;
    while ((status = dcomm_comm_ready(comm->comm)) == DCOMM_IN_PROGRESS) {
        dcommi_nccl_nap();
    }
    return dcommi_nccl_from(status);
}

/* ---- the end ---- */

/* Wait until the enqueued operations are over, whether they succeeded or failed. */
static void dcommi_nccl_quiesce(struct ncclComm *comm)
{
    dcommi_nccl_before before = dcommi_nccl_enter(comm);
    for (size_t i = 0; i < comm->nlast; i++) {
        (void)cudaEventSynchronize(comm->last[i].event);
    }
    if (comm->unnoted) {
        (void)cudaDeviceSynchronize();
    }
    dcommi_nccl_leave(comm, before);
}

static void dcommi_nccl_end(struct ncclComm *comm)
{
    dcommi_nccl_quiesce(comm);
    dcommi_nccl_before before = dcommi_nccl_enter(comm);
    for (size_t i = 0; i < comm->nlast; i++) {
        (void)cudaEventDestroy(comm->last[i].event);
    }
    if (dcomm_comm_ready(comm->comm) == DCOMM_OK) {
        dcommi_nccl_summarize(comm);
    }
    dcommi_nccl_leave(comm, before);
    dcommi_nccl_discard(comm);
    pthread_mutex_lock(&dcommi_nccl_lock);
    dcommi_nccl_closing--;
    pthread_mutex_unlock(&dcommi_nccl_lock);
}

/* End a communicator in a thread of its own: ending ranks wait for each other's goodbye, and one
 * thread of the program may own them all. At exit the process waits for these threads. */
static void *dcommi_nccl_end_main(void *comm)
{
    dcommi_nccl_own_thread = true;
    dcommi_nccl_end(comm);
    return NULL;
}

static ncclResult_t dcommi_nccl_close(struct ncclComm *comm)
{
    pthread_t thread;
    const pid_t owner = atomic_load(&dcommi_nccl_pid);
    if (owner != 0 && owner != getpid()) {
        return dcommi_nccl_fail(ncclInvalidUsage, "comm is of the process that forked this one");
    }
    pthread_mutex_lock(&dcommi_nccl_lock);
    struct ncclComm **at = &dcommi_nccl_all;
    while (*at != NULL && *at != comm) {
        at = &(*at)->next;
    }
    bool known = *at == comm;
    if (known) {
        *at = comm->next;
        dcommi_nccl_closing++;
    }
    pthread_mutex_unlock(&dcommi_nccl_lock);
    if (!known) {
        return dcommi_nccl_fail(ncclInvalidArgument, "comm is none, or was destroyed before");
    }
    if (pthread_create(&thread, NULL, dcommi_nccl_end_main, comm) == 0) {
        pthread_detach(thread);
    } else {
        dcommi_nccl_end(comm);
    }
    return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    if (comm == NULL) {
        return dcommi_nccl_fail(ncclInvalidArgument, "ncclCommFinalize: comm is NULL");
    }
    DCOMMI_NCCL_TRY(dcommi_nccl_await(comm));
    dcommi_nccl_quiesce(comm);
    return dcomm_comm_status(comm->comm) == DCOMM_OK
               ? ncclSuccess
               : dcommi_nccl_fail(dcommi_nccl_result(dcomm_comm_status(comm->comm)), "%s",
                                  dcomm_comm_error(comm->comm));
}

/* Destroy a communicator. If it is the process's last one, wait until all have ended: the program
 * may then reset devices or unload this library. */
ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    if (comm == NULL) {
        return ncclSuccess;
    }
    DCOMMI_NCCL_TRY(dcommi_nccl_close(comm));
    pthread_mutex_lock(&dcommi_nccl_lock);
    if (dcommi_nccl_all == NULL) {
        dcommi_nccl_await_ends(INFINITY);
    }
    pthread_mutex_unlock(&dcommi_nccl_lock);
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    if (comm == NULL) {
        return ncclSuccess;
    }
    if (dcomm_comm_ready(comm->comm) == DCOMM_OK) {
        (void)dcomm_comm_abort(comm->comm, "ncclCommAbort was called");
    }
    return dcommi_nccl_close(comm);
}

DCOMMI_NCCL_CALL(ncclCommFinalize);
DCOMMI_NCCL_CALL(ncclCommDestroy);
DCOMMI_NCCL_CALL(ncclCommAbort);

#endif
