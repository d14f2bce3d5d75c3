/* job.h - a call that waits for the end of its group. */
#ifndef DCOMMI_NCCL_JOB_H
#define DCOMMI_NCCL_JOB_H

#include "life.h"
#include "types.h"

typedef enum dcommi_nccl_kind {
    DCOMMI_NCCL_CREATE, /* already begun: wait until it is ready */
    DCOMMI_NCCL_DERIVE, /* split or shrink */
    DCOMMI_NCCL_COLL
} dcommi_nccl_kind;

typedef struct dcommi_nccl_job {
    struct dcommi_nccl_job *next;
    dcommi_nccl_kind kind;
    struct ncclComm *comm;
    ncclComm_t *out; /* CREATE, DERIVE: the caller's handle */
    ncclResult_t result;
    char text[DCOMMI_NCCL_TEXT];
    pthread_t thread;
    bool threaded, done;
    /* DERIVE */
    bool shrink;
    int color, key, n;
    int *excluded; /* the job owns it */
    struct ncclComm *made;
    /* COLL */
    dcomm_coll coll;
    const void *in;
    void *recv;
    size_t count;
    dcomm_dtype dtype;
    dcomm_op op;
    bool premul;             /* DCOMM_PREMUL_SUM, by one of the next two */
    const void *scalar;      /* in memory that the device reads; NULL: use factor */
    unsigned char factor[8]; /* a value of dtype */
    int root;                /* send, receive: the peer */
    cudaStream_t stream;
    bool undecided;           /* codec "auto" must still decide */
    const dcomm_codec *codec; /* NULL: exact */
} dcommi_nccl_job;

/* Keep the result and sentence of a dcomm call for the thread that ends the group. */
static void dcommi_nccl_keep(dcommi_nccl_job *j, dcomm_status status)
{
    j->result = dcommi_nccl_from(status);
    if (status < 0) {
        memcpy(j->text, dcommi_nccl_text, sizeof j->text);
    }
}

#endif
