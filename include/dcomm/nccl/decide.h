/* decide.h - choose the codec of a group's all-reduces. For codec "auto", the ranks of a
 * communicator agree on a codec for each count and dtype. They do so at the end of the first group
 * that has such a call. */
#ifndef DCOMMI_NCCL_DECIDE_H
#define DCOMMI_NCCL_DECIDE_H

#include "job.h"

static bool dcommi_nccl_codes(const dcommi_nccl_job *j)
{
    return j->kind == DCOMMI_NCCL_COLL && j->comm->codec != NULL &&
           j->coll == DCOMM_COLL_ALLREDUCE && dcommi_nccl_is_float(j->dtype) &&
           (j->op == DCOMM_SUM || j->op == DCOMM_AVG || j->op == DCOMM_PREMUL_SUM);
}

static bool dcommi_nccl_decided(dcommi_nccl_job *j)
{
    const struct ncclComm *comm = j->comm;
    const size_t n =
        comm->ndecided < DCOMMI_NCCL_DECISIONS ? comm->ndecided : DCOMMI_NCCL_DECISIONS;
    for (size_t i = 0; i < n; i++) {
        if (comm->decided[i].count == j->count && comm->decided[i].dtype == j->dtype) {
            j->codec = comm->decided[i].codec;
            return true;
        }
    }
    return false;
}

/* Decide the undecided jobs of one communicator, in the order of the calls: that order is the same
 * on its other ranks. `arg` is the first of these jobs. */
static void *dcommi_nccl_decide(void *arg)
{
    dcommi_nccl_job *first = arg;
    struct ncclComm *comm = first->comm;
    const dcommi_nccl_before before = dcommi_nccl_enter(comm);
    for (dcommi_nccl_job *j = first; j != NULL; j = j->next) {
        if (j->comm != comm || !j->undecided || dcommi_nccl_decided(j)) {
            continue;
        }
        const dcomm_codec *taken = NULL;
        dcommi_nccl_keep(
            j, dcomm_codec_decide(comm->comm, comm->codec, j->count, j->dtype, true, &taken));
        if (j->result == ncclSuccess) {
            j->codec = taken == comm->codec ? comm->candidate : taken;
            comm->decided[comm->ndecided++ % DCOMMI_NCCL_DECISIONS] =
                (dcommi_nccl_decision){j->count, j->dtype, j->codec};
        }
    }
    dcommi_nccl_leave(comm, before);
    return NULL;
}

/* Return true if `j` is the first undecided job of its communicator. */
static bool dcommi_nccl_leads(const dcommi_nccl_job *first, const dcommi_nccl_job *j)
{
    for (const dcommi_nccl_job *k = first; k != j; k = k->next) {
        if (k->undecided && k->comm == j->comm) {
            return false;
        }
    }
    return j->undecided;
}

/* Choose the codecs of all jobs. A rank that decides waits for the other ranks. This thread may
 * own some of those, so each communicator decides in its own thread, unless it is the only one. */
static void dcommi_nccl_decide_all(dcommi_nccl_job *first)
{
    int leaders = 0;
    for (dcommi_nccl_job *j = first; j != NULL; j = j->next) {
        if (dcommi_nccl_codes(j)) {
            j->codec = j->comm->codec;
            j->undecided = j->comm->candidate != NULL && !dcommi_nccl_decided(j);
        }
        leaders += dcommi_nccl_leads(first, j);
    }
    for (dcommi_nccl_job *j = first; leaders > 0 && j != NULL; j = j->next) {
        if (dcommi_nccl_leads(first, j)) {
            j->threaded =
                leaders > 1 && pthread_create(&j->thread, NULL, dcommi_nccl_decide, j) == 0;
            if (!j->threaded) {
                (void)dcommi_nccl_decide(j);
            }
        }
    }
    for (dcommi_nccl_job *j = first; leaders > 0 && j != NULL; j = j->next) {
        if (j->threaded) {
            pthread_join(j->thread, NULL);
            j->threaded = false;
        }
    }
}

#endif
