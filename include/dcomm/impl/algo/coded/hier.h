/* hier.h - all-reduce over several hosts, compressed only between them. The ranks of a host
 * reduce-scatter exactly, the owners of a shard exchange it encoded, then each host all-gathers.
 * The levels overlap as in hier/hier.h, whose pipeline this uses.
 *
 * The owner of a shard keeps the residual of that shard only: the rounding error of its host's
 * sum. With coded_two_shot, the error of the second encoding goes to the same residual, because
 * the rank that encodes a sum has also encoded its host's part of it. */
#ifndef DCOMMI_ALGO_CODED_HIER_H
#define DCOMMI_ALGO_CODED_HIER_H

#include "coded.h"
#include "../hier/hier.h"

static dcomm_status dcommi_coded_hier(const dcommi_shape *s, dcomm_builder *b)
{
    dcommi_hier h;
    bool flat;
    DCOMMI_TRY(dcommi_coded_able(s, b));
    dcomm_status status = dcommi_hier_open(s, b, &h, &flat);
    if (status == DCOMM_OK && (flat || !h.between_hosts)) {
        status = dcommi_fail(DCOMM_ERR_UNSUPPORTED,
                             "coded_hier needs several hosts, one of them with several ranks");
    } else if (status == DCOMM_OK && s->coding->clips) {
        status = dcommi_fail(DCOMM_ERR_UNSUPPORTED,
                             "coded_hier cannot run with feedback that clips: it sees the sum of a "
                             "host piece by piece, and clipping needs the norm of the whole");
    } else if (status == DCOMM_OK && s->coding->differences) {
        status =
            dcommi_fail(DCOMM_ERR_UNSUPPORTED,
                        "coded_hier cannot run with EF21: a rank has the estimate of its shard "
                        "alone, and EF21 needs that of the whole tensor");
    } else if (status == DCOMM_OK) {
        b->head.codec_partly = true;
        h.shards = h.smallest;
        status = dcommi_hier_allreduce_of(&h);
    }
    dcommi_hier_close(&h);
    return status;
}

#endif
