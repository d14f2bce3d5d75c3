/* run.h - the data of a compressed plan's run for its codec. */
#ifndef DCOMMI_CODED_RUN_H
#define DCOMMI_CODED_RUN_H

#include "../../feedback/linear.h"
#include "../engine.h"

/* The codec of one run, and its state. Codec and report belong to the caller, and stay until the
 * run is over. */
struct dcommi_coded {
    struct dcommi_coded *next; /* in a communicator's free list */
    const dcomm_codec *codec;
    dcomm_codec_key key;
    dcomm_feedback *feedback;   /* NULL: none */
    dcomm_feedback_step begins; /* how its step begins */
    bool begun;
    uint32_t rank;
    const dcommi_device_handle *device; /* the device of the run; NULL: none */
    dcomm_codec_report *report;         /* NULL: not wanted */
    dcomm_ledger *ledger;               /* likewise */
    dcomm_ledger *replaced;             /* the feedback state's own ledger meanwhile */
    void *workspace;
    size_t workspace_len;
    bool linear;                   /* encodings are summed before they are decoded (linear.h) */
    const float *whole;            /* linear: the numbers to encode, which may lie on a device */
    size_t count;                  /* linear: how many */
    struct dcommi_spread *spread;  /* of coded_sparse (sparse.h); NULL: not needed yet */
    dcomm_status found;            /* this rank's verdict (verdict.h) */
    char said[DCOMMI_MESSAGE_MAX]; /* and its message */
};

static dcomm_status dcommi_coded_workspace(dcommi_coded *c, size_t need)
{
    if (need > c->workspace_len) {
        dcommi_free(c->workspace);
        c->workspace = dcommi_alloc_raw(need);
        c->workspace_len = c->workspace != NULL ? need : 0;
    }
    return need == 0 || c->workspace != NULL ? DCOMM_OK : DCOMM_ERR_NO_MEMORY;
}

/* Return DCOMM_OK for numbers that are not finite, or a sum beyond f32, and remember the status
 * for the run's end: its wires are complete, so it has not failed. Return any other status as it
 * is. */
static dcomm_status dcommi_coded_judge(dcommi_coded *c, dcomm_status status,
                                       const dcomm_codec_report *report)
{
    const bool numbers = status == DCOMM_ERR_INVALID && report->nonfinite > 0;
    if (status != DCOMM_ERR_RANGE && !numbers) {
        return status;
    }
    if (c->found == DCOMM_OK || status > c->found) {
        c->found = status;
        snprintf(c->said, sizeof c->said, "%s", dcommi_message);
    }
    return DCOMM_OK;
}

/* Begin a step of error feedback before the first encoding. `src` is element `first`. */
static dcomm_status dcommi_coded_begin_feedback(dcommi_coded *c, const float *src, uint64_t first)
{
    const dcommi_feedback_place *place = c->feedback->worker.place;
    const int device = c->device != NULL ? c->device->number : -1;
    if (c->begun) {
        return DCOMM_OK;
    }
    if (device != (place != NULL ? place->device : -1)) {
        return dcommi_fail(DCOMM_ERR_INVALID,
                           "opts.feedback was given to another call before this one began, and its "
                           "residuals lie on device %d now, not %d (-1: host memory)",
                           place != NULL ? place->device : -1, device);
    }
    /* A plan that encodes only a part has no more than that part; each encoding brings its own. */
    c->begins.x = c->begins.partly ? src : src - first;
    DCOMMI_TRY(dcommi_feedback_begin(c->feedback, &c->begins));
    c->begun = c->feedback->collective = true;
    c->replaced = c->feedback->ledger;
    c->feedback->ledger = c->ledger != NULL ? c->ledger : c->replaced;
    return DCOMM_OK;
}

/* Encode without feedback. */
static dcomm_status dcommi_coded_plain(dcommi_coded *c, const float *x, size_t count,
                                       const dcomm_codec_key *key, void *wire, size_t room,
                                       size_t *bytes, dcomm_codec_report *report)
{
    DCOMMI_TRY(dcommi_coded_workspace(c, dcomm_codec_workspace_bytes(c->codec, count)));
    return c->ledger == NULL
               ? dcomm_encode(c->codec, x, count, key, wire, room, bytes, c->workspace, report)
               : dcomm_encode_ledger(c->codec, x, NULL, NULL, count, key, wire, room, bytes,
                                     c->workspace, report, c->ledger);
}

/* Return the key of an encoding. A rank's own encoding and the owner's encoding of the sum have
 * the same elements, but must not share random numbers. */
static dcomm_codec_key dcommi_coded_key(const dcommi_coded *c, const dcomm_codec_place *place)
{
    dcomm_codec_key key = c->key;
    key.first = place->first;
    key.rank = c->rank ^ place->round << 31;
    return key;
}

/* Return the ledger of a run's encodings; NULL: none. */
static dcomm_ledger *dcommi_coded_ledger(const dcommi_coded *c)
{
    return c->feedback != NULL ? c->feedback->ledger : c->ledger;
}

static void dcommi_coded_tell(dcommi_coded *c, const dcomm_codec_place *place,
                              const dcomm_codec_report *r)
{
    dcomm_codec_report *all = c->report;
    if (all == NULL) {
        return;
    }
    if (r->nonfinite > 0 && r->first_nonfinite + place->first < all->first_nonfinite) {
        all->first_nonfinite = r->first_nonfinite + (size_t)place->first;
    }
    all->bytes += r->bytes;
    all->kept += r->kept;
    all->clipped += r->clipped;
    all->nonfinite += r->nonfinite;
}

#endif
