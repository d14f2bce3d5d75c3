/* hier.h - compressed all-reduce over several hosts, compressed between them only:
 * within a host ranks reduce-scatter exactly, owners of a shard exchange it encoded, then each host
 * all-gathers. The levels overlap as in hier/hier.h, whose pipeline this is.
 *
 * Feedback keeps what the encoder of a shard loses of its host's sum: the owner of a shard has a
 * residual for that shard only. With two shots, what the second one loses goes there too, for the
 * rank that encodes a sum has encoded its host's part of it. */
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
