/* watch.h - look for non-finite gradients as they become ready, for a scaler (scaler.h). All ranks
 * hear of them after the last bucket (on a device: when that has its result). None goes through a
 * codec. */
#ifndef DCOMMI_BUCKET_WATCH_H
#define DCOMMI_BUCKET_WATCH_H

#include "agree.h"
#include "look.h"
#include "../../base/scan.h"

enum { DCOMMI_BKT_LOOK = 32768 }; /* bytes looked at and copied while they are in the L1 cache */

/* Copy a gradient to its place, if that is elsewhere, and look at it. Return the index of its
 * first element that is not finite, or its count. */
static size_t dcommi_bkt_look(const dcommi_bkt_param *p, unsigned char *place)
{
    const unsigned char *from = p->grad != NULL ? p->grad : place;
    size_t element = dcomm_dtype_size(p->dtype), block = DCOMMI_BKT_LOOK / element, bad = p->count;
    for (size_t at = 0; at < p->count; at += block) {
        size_t n = p->count - at < block ? p->count - at : block;
        if (bad == p->count) {
            size_t i = dcommi_scan(from + at * element, n, p->dtype);
            bad = i < n ? at + i : bad;
        }
        if (from != place) {
            memcpy(place + at * element, from + at * element, n * element);
        }
    }
    return bad;
}

/* Note that element `index` of parameter p is not finite. A rank reports the one that was ready
 * first. The caller holds b->lock. */
static void dcommi_bkt_note(dcomm_buckets *b, const dcommi_bkt_param *p, uint64_t order,
                            uint64_t index, double value)
{
    if (b->seen.found == 0 || order < b->seen.found) {
        b->seen.found = order;
        b->seen.param = (uint64_t)(p - b->params);
        b->seen.index = index;
        b->seen.value = dcommi_f64_bits(value);
    }
}

static void dcommi_bkt_saw(dcomm_buckets *b, const dcommi_bkt_param *p, size_t index)
{
    unsigned char *place = dcommi_bkt_place(b, p);
    uint64_t order = 1 + atomic_load_explicit(&b->marked, memory_order_relaxed);
    pthread_mutex_lock(&b->lock);
    dcommi_bkt_note(b, p, order, index, dcommi_load_real(place, index, p->dtype));
    pthread_mutex_unlock(&b->lock);
    if (b->kinds[p->kind].codec != NULL) {
        memset(place, 0, p->bytes); /* the step will not count, but residuals remain */
    }
}

/* Copy a gradient on a device to its place, and let a kernel look at it. */
static dcomm_status dcommi_bkt_watch_there(const dcomm_buckets *b, const dcommi_bkt_param *p,
                                           unsigned char *place)
{
    if (p->grad != place) {
        DCOMMI_TRY(dcommi_bkt_copy(&b->layout.buckets[p->bucket], place, p->grad, p->bytes));
    }
    return dcommi_bkt_look_there(b, p, place, p->count, 1, b->kinds[p->kind].codec != NULL);
}

/* Note what kernels have seen of this step's gradients on devices. All have been marked, so their
 * order is known. The caller holds b->lock. */
static void dcommi_bkt_note_there(dcomm_buckets *b)
{
    for (size_t i = 0; i < b->nparams && b->seen_there != NULL; i++) {
        const dcomm_cuda_sight *sight = &b->seen_there[i];
        if (sight->index != UINT64_MAX) {
            dcommi_bkt_note(b, &b->params[i], 1 + (uint64_t)b->params[i].order, sight->index,
                            sight->value);
        }
    }
}

/* Tell all ranks what this one has seen. All buckets are started, so all gradients in host memory
 * were looked at. The caller holds b->lock. */
static dcomm_status dcommi_bkt_tell(dcomm_buckets *b)
{
    if (!b->watched || b->told || !dcommi_bkt_looked(b)) {
        return DCOMM_OK;
    }
    dcomm_coll_opts opts = dcommi_bkt_patience(b);
    dcommi_bkt_note_there(b);
    if (b->opts.weighted && b->factor == 0) {
        b->seen.found = 0; /* this rank's gradients were not sent */
    }
    b->seen.scale = dcommi_f64_bits(b->scale);
    b->seen.good = b->good;
    b->sights[b->size] = b->seen;
    b->seen = (dcommi_bkt_sight){0};
    b->told = true;
    return dcomm_iallgather(b->comm, &b->sights[b->size], b->sights, sizeof *b->sights, DCOMM_U8,
                            &opts, &b->sights_request);
}

/* Return the rank whose non-finite gradient was ready first; -1: there is none. */
static int dcommi_bkt_first_sight(const dcomm_buckets *b)
{
    int first = -1;
    for (int r = 0; r < b->size; r++) {
        uint64_t found = b->sights[r].found;
        if (found > 0 && (first < 0 || found < b->sights[first].found)) {
            first = r;
        }
    }
    return first;
}

#endif
