/* verdict.h - the end of a compressed call if the numbers of some rank cannot be encoded, or
 * a sum is beyond f32: every rank ends it with the same status, and the communicator goes on.
 *
 * The rank that finds them sends what its codec makes of the rest, so that no rank waits for it.
 * From then on, its messages of this run carry a mark in their signature, which says why and whose
 * numbers they are. A rank that receives the mark carries it, too. Each rank's result has the
 * numbers of all ranks, so the mark reaches every rank with the data. The result of a
 * reduce-scatter has not. But a rank sends a chunk only when it has encoded that chunk of all
 * blocks, so there the mark reaches every rank, too. Of several marks, "not finite" comes before
 * "too large", and then the lowest rank's. */
#ifndef DCOMMI_VERDICT_H
#define DCOMMI_VERDICT_H

#include "../device/jobs.h"

static inline uint32_t dcommi_verdict_mark(dcomm_status status, int32_t rank)
{
    return (uint32_t)dcommi_mix((uint64_t)(uint32_t)-status << 32, (uint32_t)rank) | 1;
}

static void dcommi_verdict_take(dcommi_run *run, dcomm_status status, int32_t rank)
{
    if (run->verdict == DCOMM_OK || status > run->verdict ||
        (status == run->verdict && rank < run->verdict_rank)) {
        run->verdict = status;
        run->verdict_rank = rank;
        run->mark = dcommi_verdict_mark(status, rank);
    }
}

/* Return true if a message's signature is the run's with a mark, and take that verdict. */
static bool dcommi_verdict_heard(dcommi_run *run, uint32_t signature)
{
    static const dcomm_status known[] = {DCOMM_ERR_INVALID, DCOMM_ERR_RANGE};
    for (int32_t rank = 0; run->coded != NULL && rank < run->comm->size; rank++) {
        for (int k = 0; k < 2; k++) {
            if ((run->signature.hash ^ dcommi_verdict_mark(known[k], rank)) == signature) {
                dcommi_verdict_take(run, known[k], rank);
                return true;
            }
        }
    }
    return false;
}

/* Return true if a message is one of this run's. */
static inline bool dcommi_run_accepts(dcommi_run *run, const dcommi_header *h)
{
    return DCOMMI_LIKELY(h->signature == run->signature.hash) ||
           dcommi_verdict_heard(run, h->signature);
}

#endif
