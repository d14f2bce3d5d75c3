/* group.h - groups. ncclGroupEnd starts together the calls that its thread made since
 * ncclGroupStart. A call outside a group is a group of one. */
#ifndef DCOMMI_NCCL_GROUP_H
#define DCOMMI_NCCL_GROUP_H

#include "decide.h"

static _Thread_local struct {
    int depth;
    dcommi_nccl_job *first, **last;
    ncclResult_t result; /* of the first refused call */
    char text[DCOMMI_NCCL_TEXT];
} dcommi_nccl_group;

/* ---- derived communicators ---- */

static void *dcommi_nccl_derive(void *arg)
{
    dcommi_nccl_job *j = arg;
    dcomm_comm *comm = NULL;
    j->done = true;
    dcomm_status status = j->shrink ? dcomm_comm_shrink(j->comm->comm, j->excluded, j->n, &comm)
                                    : dcomm_comm_split(j->comm->comm, j->color, j->key, &comm);
    dcommi_nccl_keep(j, status);
    j->made->comm = comm;
    return NULL;
}

/* Run the group's splits and shrinks. Each waits for its other ranks, and this thread may own them
 * too. So those of different communicators run at once, in threads; those of one run in turn. */
static void dcommi_nccl_derive_all(dcommi_nccl_job *first)
{
    for (dcommi_nccl_job *from = first; from != NULL;) {
        dcommi_nccl_job *rest = NULL;
        for (dcommi_nccl_job *j = from; j != NULL; j = j->next) {
            bool taken = false;
            if (j->kind != DCOMMI_NCCL_DERIVE || j->done) {
                continue;
            }
            for (dcommi_nccl_job *k = from; k != j && !taken; k = k->next) {
                taken = k->threaded && k->comm == j->comm;
            }
            if (taken) {
                rest = rest != NULL ? rest : j;
                continue;
            }
            j->threaded = pthread_create(&j->thread, NULL, dcommi_nccl_derive, j) == 0;
            if (!j->threaded) {
                (void)dcommi_nccl_derive(j);
            }
        }
        for (dcommi_nccl_job *j = from; j != NULL; j = j->next) {
            if (j->threaded) {
                pthread_join(j->thread, NULL);
                j->threaded = false;
            }
        }
        from = rest;
    }
}

/* Finish a split or shrink in the caller's thread: hand out the communicator or the error. */
static ncclResult_t dcommi_nccl_derived(dcommi_nccl_job *j)
{
    if (j->result == ncclSuccess && j->made->comm != NULL) {
        dcommi_nccl_enlist(j->made);
        *j->out = j->made;
        j->made = NULL;
    } /* else an error, or NCCL_SPLIT_NOCOLOR: dcommi_nccl_drop_job discards it */
    return j->result == ncclSuccess ? ncclSuccess : dcommi_nccl_fail(j->result, "%s", j->text);
}

/* ---- collectives ---- */

static dcomm_status dcommi_nccl_call(const dcommi_nccl_job *j)
{
    dcomm_comm *c = j->comm->comm;
    const bool counts = j->codec != NULL && dcommi_nccl_summary_path() != NULL;
    const dcomm_coll_opts opts = {.stream = j->stream != NULL ? (void *)j->stream
                                                              : (void *)cudaStreamLegacy,
                                  .device = true,
                                  .premul_p = !j->premul          ? NULL
                                              : j->scalar != NULL ? j->scalar
                                                                  : j->factor,
                                  .premul_on_stream = j->scalar != NULL,
                                  .codec = j->codec,
                                  .codec_ledger = counts ? &j->comm->ledger : NULL};
    switch (j->coll) {
    case DCOMM_COLL_ALLREDUCE:
        return dcomm_allreduce(c, j->in, j->recv, j->count, j->dtype, j->op, &opts);
    case DCOMM_COLL_REDUCE:
        return dcomm_reduce(c, j->in, j->recv, j->count, j->dtype, j->op, j->root, &opts);
    case DCOMM_COLL_REDUCE_SCATTER:
        return dcomm_reduce_scatter(c, j->in, j->recv, j->count, j->dtype, j->op, &opts);
    case DCOMM_COLL_ALLGATHER:
        return dcomm_allgather(c, j->in, j->recv, j->count, j->dtype, &opts);
    case DCOMM_COLL_BROADCAST:
        return dcomm_broadcast(c, j->in, j->recv, j->count, j->dtype, j->root, &opts);
    case DCOMM_COLL_ALLTOALL:
        return dcomm_alltoall(c, j->in, j->recv, j->count, j->dtype, &opts);
    case DCOMM_COLL_GATHER:
        return dcomm_gather(c, j->in, j->recv, j->count, j->dtype, j->root, &opts);
    case DCOMM_COLL_SCATTER:
        return dcomm_scatter(c, j->in, j->recv, j->count, j->dtype, j->root, &opts);
    case DCOMM_COLL_SEND:
        return dcomm_send(c, j->in, j->count, j->dtype, j->root, &opts);
    default:
        return dcomm_recv(c, j->recv, j->count, j->dtype, j->root, &opts);
    }
}

/* Return an entry for the last operation on `stream`: the stream's own, or one whose operation is
 * over, or a new one. Return NULL if there is no memory, or CUDA creates no event. */
static dcommi_nccl_last *dcommi_nccl_place(struct ncclComm *comm, cudaStream_t stream)
{
    for (size_t i = 0; i < comm->nlast; i++) {
        if (comm->last[i].stream == stream) {
            return &comm->last[i];
        }
    }
    for (size_t i = 0; i < comm->nlast; i++) {
        if (cudaEventQuery(comm->last[i].event) != cudaErrorNotReady) {
            return &comm->last[i];
        }
        (void)cudaGetLastError(); /* the program must not find cudaErrorNotReady */
    }
    if (comm->nlast == comm->last_room) {
        const size_t room = 2 * comm->last_room + 4;
        dcommi_nccl_last *more = realloc(comm->last, room * sizeof *more);
        if (more == NULL) {
            return NULL;
        }
        comm->last = more;
        comm->last_room = room;
    }
    dcommi_nccl_last *last = &comm->last[comm->nlast];
    if (cudaEventCreateWithFlags(&last->event, cudaEventDisableTiming) != cudaSuccess) {
        return NULL;
    }
    comm->nlast++;
    return last;
}

/* Record an event after the communicator's last operation on the stream. Without one, the end waits
 * for all work of the device. */
static void dcommi_nccl_note(const dcommi_nccl_job *j)
{
    dcommi_nccl_last *last = dcommi_nccl_place(j->comm, j->stream);
    if (last != NULL) {
        last->stream = j->stream;
        (void)cudaEventRecord(last->event, j->stream);
    } else {
        (void)cudaGetLastError();
        j->comm->unnoted = true;
    }
}

static bool dcommi_nccl_to_itself(const dcommi_nccl_job *j)
{
    return j->kind == DCOMMI_NCCL_COLL &&
           (j->coll == DCOMM_COLL_SEND || j->coll == DCOMM_COLL_RECV) &&
           j->root == dcomm_comm_rank(j->comm->comm);
}

/* Copy a rank's message to itself, on the stream of `recv`. The copy starts after the earlier work
 * of both streams; later work of both streams starts after the copy. */
static ncclResult_t dcommi_nccl_copy(const dcommi_nccl_job *send, const dcommi_nccl_job *recv)
{
    cudaEvent_t event = NULL;
    size_t bytes = 0;
    if (recv->count != send->count || recv->dtype != send->dtype) {
        return dcommi_nccl_fail(
            ncclInvalidUsage, "rank %d sends %zu %s to itself, and receives %zu %s", send->root,
            send->count, dcomm_dtype_name(send->dtype), recv->count, dcomm_dtype_name(recv->dtype));
    }
    if (__builtin_mul_overflow(send->count, dcomm_dtype_size(send->dtype), &bytes)) {
        return dcommi_nccl_fail(ncclInvalidArgument, "rank %d sends %zu %s to itself", send->root,
                                send->count, dcomm_dtype_name(send->dtype));
    }
    const bool two = send->stream != recv->stream;
    cudaError_t error =
        two ? cudaEventCreateWithFlags(&event, cudaEventDisableTiming) : cudaSuccess;
    if (error == cudaSuccess && two) {
        error = cudaEventRecord(event, send->stream);
    }
    if (error == cudaSuccess && two) {
        error = cudaStreamWaitEvent(recv->stream, event, 0);
    }
    if (error == cudaSuccess) {
        error = cudaMemcpyAsync(recv->recv, send->in, bytes, cudaMemcpyDefault, recv->stream);
    }
    if (error == cudaSuccess && two) {
        error = cudaEventRecord(event, recv->stream);
    }
    if (error == cudaSuccess && two) {
        error = cudaStreamWaitEvent(send->stream, event, 0);
    }
    if (event != NULL) {
        (void)cudaEventDestroy(event);
    }
    return dcommi_nccl_cuda("a copy within a rank", error);
}

/* Pair sends of ranks to themselves with the receives, in order, and copy the messages. */
static ncclResult_t dcommi_nccl_copy_own(dcommi_nccl_job *first)
{
    ncclResult_t result = ncclSuccess;
    for (dcommi_nccl_job *a = first; a != NULL; a = a->next) {
        if (a->done || !dcommi_nccl_to_itself(a)) {
            continue;
        }
        dcommi_nccl_job *b = a->next;
        while (b != NULL &&
               (b->done || !dcommi_nccl_to_itself(b) || b->comm != a->comm || b->coll == a->coll)) {
            b = b->next;
        }
        a->done = true;
        ncclResult_t one;
        if (b == NULL) {
            one = dcommi_nccl_fail(ncclInvalidUsage,
                                   "rank %d sends to itself, or receives, and the group has no "
                                   "call that meets it",
                                   a->root);
        } else {
            const bool sends = a->coll == DCOMM_COLL_SEND;
            dcommi_nccl_before before = dcommi_nccl_enter(a->comm);
            b->done = true;
            one = dcommi_nccl_copy(sends ? a : b, sends ? b : a);
            dcommi_nccl_note(sends ? b : a); /* the copy is on the receive's stream */
            dcommi_nccl_leave(a->comm, before);
        }
        result = result == ncclSuccess ? one : result;
    }
    return result;
}

static ncclResult_t dcommi_nccl_call_all(dcommi_nccl_job *first)
{
    ncclResult_t result = dcommi_nccl_copy_own(first);
    int n = 0;
    dcommi_nccl_decide_all(first);
    for (dcommi_nccl_job *j = first; j != NULL; j = j->next) {
        if (j->kind == DCOMMI_NCCL_COLL && j->result != ncclSuccess) { /* no codec was decided */
            ncclResult_t one = dcommi_nccl_fail(j->result, "%s", j->text);
            result = result == ncclSuccess ? one : result;
            j->done = true;
        }
        n += j->kind == DCOMMI_NCCL_COLL && !j->done;
    }
    if (n > 1) {
        (void)dcomm_group_start();
    }
    for (dcommi_nccl_job *j = first; j != NULL; j = j->next) {
        if (j->kind == DCOMMI_NCCL_COLL && !j->done) {
            dcommi_nccl_before before = dcommi_nccl_enter(j->comm);
            ncclResult_t one = dcommi_nccl_from(dcommi_nccl_call(j));
            dcommi_nccl_leave(j->comm, before);
            j->done = one != ncclSuccess; /* a failed call enqueues nothing */
            result = result == ncclSuccess ? one : result;
        }
    }
    if (n > 1) {
        ncclResult_t one = dcommi_nccl_from(dcomm_group_end());
        result = result == ncclSuccess ? one : result;
    }
    for (dcommi_nccl_job *j = first; j != NULL; j = j->next) {
        if (j->kind == DCOMMI_NCCL_COLL && !j->done) {
            dcommi_nccl_before before = dcommi_nccl_enter(j->comm);
            dcommi_nccl_note(j);
            dcommi_nccl_leave(j->comm, before);
        }
    }
    return result;
}

/* ---- the group ---- */

/* Return the result of a refused call. In a group, keep it too: ncclGroupEnd returns it again. */
static ncclResult_t dcommi_nccl_refused(ncclResult_t result)
{
    if (dcommi_nccl_group.depth > 0 && result > ncclSuccess && result != ncclInProgress &&
        dcommi_nccl_group.result == ncclSuccess) {
        dcommi_nccl_group.result = result;
        memcpy(dcommi_nccl_group.text, dcommi_nccl_text, sizeof dcommi_nccl_text);
    }
    return result;
}

static ncclResult_t dcommi_nccl_created(const dcommi_nccl_job *j)
{
    if (!j->comm->blocking) {
        return ncclInProgress;
    }
    ncclResult_t result = dcommi_nccl_await(j->comm);
    if (result != ncclSuccess) {
        *j->out = NULL;
        (void)dcommi_nccl_close(j->comm);
    }
    return result;
}

/* Release what a job owns. */
static void dcommi_nccl_drop_job(const dcommi_nccl_job *j)
{
    dcommi_nccl_discard(j->made);
    free(j->excluded);
}

static void dcommi_nccl_drop_jobs(dcommi_nccl_job *first)
{
    while (first != NULL) {
        dcommi_nccl_job *next = first->next;
        dcommi_nccl_drop_job(first);
        free(first);
        first = next;
    }
}

static ncclResult_t dcommi_nccl_end_group(void)
{
    if (--dcommi_nccl_group.depth > 0) {
        return ncclSuccess;
    }
    dcommi_nccl_job *first = dcommi_nccl_group.first;
    ncclResult_t result = dcommi_nccl_group.result;
    char text[DCOMMI_NCCL_TEXT];
    memcpy(text, dcommi_nccl_group.text, sizeof text);
    dcommi_nccl_group.first = NULL;
    dcommi_nccl_group.result = ncclSuccess;
    dcommi_nccl_derive_all(first);
    for (dcommi_nccl_job *j = first; j != NULL; j = j->next) {
        ncclResult_t one = j->kind == DCOMMI_NCCL_CREATE   ? dcommi_nccl_created(j)
                           : j->kind == DCOMMI_NCCL_DERIVE ? dcommi_nccl_derived(j)
                                                           : ncclSuccess;
        if (one != ncclSuccess && (result == ncclSuccess || result == ncclInProgress)) {
            result = one;
            memcpy(text, dcommi_nccl_text, sizeof text);
        }
    }
    ncclResult_t one = dcommi_nccl_call_all(first);
    dcommi_nccl_drop_jobs(first);
    if (one != ncclSuccess && (result == ncclSuccess || result == ncclInProgress)) {
        return one;
    }
    return result == ncclSuccess || result == ncclInProgress ? result
                                                             : dcommi_nccl_fail(result, "%s", text);
}

/* Append a job to the thread's group, which then owns what the job owns. Outside a group, start it
 * at once. */
static ncclResult_t dcommi_nccl_submit(const dcommi_nccl_job *job)
{
    dcommi_nccl_job *j = malloc(sizeof *j);
    if (j == NULL) {
        dcommi_nccl_drop_job(job);
        if (job->kind == DCOMMI_NCCL_CREATE) {
            *job->out = NULL;
            (void)dcommi_nccl_close(job->comm);
        }
        return dcommi_nccl_refused(dcommi_nccl_no_memory());
    }
    *j = *job;
    if (dcommi_nccl_group.first == NULL) {
        dcommi_nccl_group.last = &dcommi_nccl_group.first;
    }
    *dcommi_nccl_group.last = j;
    dcommi_nccl_group.last = &j->next;
    if (dcommi_nccl_group.depth > 0) {
        return ncclSuccess;
    }
    dcommi_nccl_group.depth = 1;
    return dcommi_nccl_end_group();
}

ncclResult_t ncclGroupStart(void)
{
    dcommi_nccl_group.depth++;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void)
{
    return dcommi_nccl_group.depth == 0
               ? dcommi_nccl_fail(ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart")
               : dcommi_nccl_end_group();
}

ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t *info)
{
    (void)info;
    if (dcommi_nccl_group.depth > 0 && --dcommi_nccl_group.depth == 0) {
        dcommi_nccl_drop_jobs(dcommi_nccl_group.first);
        dcommi_nccl_group.first = NULL;
        dcommi_nccl_group.result = ncclSuccess;
    }
    return dcommi_nccl_fail(ncclInvalidUsage,
                            "ncclGroupSimulateEnd: dcomm prices single collectives "
                            "(dcomm_comm_explain, dcomm-crossover), and not groups");
}

DCOMMI_NCCL_CALL(ncclGroupStart);
DCOMMI_NCCL_CALL(ncclGroupEnd);
DCOMMI_NCCL_CALL(ncclGroupSimulateEnd);

#endif
