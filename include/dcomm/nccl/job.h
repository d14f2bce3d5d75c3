/* job.h - what is kept of a call until the group that it is in ends. */
#ifndef DCOMMI_NCCL_JOB_H
#define DCOMMI_NCCL_JOB_H

#include "life.h"
#include "types.h"

typedef enum dcommi_nccl_kind {
    DCOMMI_NCCL_CREATE, /* begun: wait for it */
    DCOMMI_NCCL_DERIVE, /* split or shrink */
    DCOMMI_NCCL_COLL
} dcommi_nccl_kind;

typedef struct dcommi_nccl_job {
    struct dcommi_nccl_job *next;
    dcommi_nccl_kind kind;
    struct ncclComm *comm;
    ncclComm_t *out; /* of CREATE and DERIVE */
    ncclResult_t result;
    char text[DCOMMI_NCCL_TEXT];
    pthread_t thread;
    bool threaded, done;
    /* DERIVE */
    bool shrink;
    int color, key, n;
    int *excluded; /* the job's own */
    struct ncclComm *made;
    /* COLL */
    dcomm_coll coll;
    const void *in;
    void *recv;
    size_t count;
    dcomm_dtype dtype;
    dcomm_op op;
    const dcommi_nccl_op *premul;
    unsigned char factor[8]; /* of premul, a value of dtype */
    int root;                /* or the peer */
    cudaStream_t stream;
    bool undecided;           /* codec "auto" */
    const dcomm_codec *codec; /* NULL: exact */
} dcommi_nccl_job;

/* What came of a call of dcomm's, for the thread that ends the group. */
static void dcommi_nccl_keep(dcommi_nccl_job *j, dcomm_status status)
{
    j->result = dcommi_nccl_from(status);
    if (status < 0) {
        memcpy(j->text, dcommi_nccl_text, sizeof j->text);
    }
}

#endif
