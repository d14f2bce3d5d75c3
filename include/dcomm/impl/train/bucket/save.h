/* save.h - buckets between runs: their order, step, scaler and error feedback as bytes, loaded by
 * the same or another number of ranks. Loaded bytes come from outside and are not trusted. */
#ifndef DCOMMI_BUCKET_SAVE_H
#define DCOMMI_BUCKET_SAVE_H

#include "rebuild.h"
#include "../../feedback/save.h"
#include "../scaler.h"

#define DCOMMI_BKT_MAGIC 0x316b626d6d6f6364u /* "dcommbk1" */

/* The head of a saved state, in little-endian order. After it come the order from which the
 * buckets were dealt (u32, padded to 8 bytes), the scaler's state if there is one, for each bucket
 * the length of its error feedback and its bytes, padded to 8; and a hash of all that. */
typedef struct dcommi_bkt_head {
    uint64_t magic, shape; /* shape: a hash of what is registered */
    uint64_t nparams, nbuckets, ranks, rank;
    uint64_t steps, sent_steps, built, scaler_bytes;
} dcommi_bkt_head;

/* Return a hash of what all ranks have registered alike: counts, types and codecs. */
static uint64_t dcommi_bkt_shape(const dcomm_buckets *b)
{
    uint64_t hash = b->nparams;
    for (size_t i = 0; i < b->nparams; i++) {
        const dcommi_bkt_param *p = &b->params[i];
        const dcomm_codec *codec = b->kinds[p->kind].codec;
        hash = dcommi_mix(dcommi_mix(hash, p->count), (uint64_t)p->dtype);
        hash = dcommi_mix_text(hash, codec != NULL ? codec->spec : "");
    }
    return hash;
}

/* Return the bytes from the head to the end of the scaler's state. */
static size_t dcommi_bkt_front_bytes(const dcommi_bkt_head *h)
{
    return sizeof *h + dcommi_feedback_padded(h->nparams * sizeof(uint32_t)) + h->scaler_bytes;
}

static dcommi_bkt_head dcommi_bkt_head_of(const dcomm_buckets *b)
{
    return (dcommi_bkt_head){.magic = DCOMMI_BKT_MAGIC,
                             .shape = dcommi_bkt_shape(b),
                             .nparams = b->nparams,
                             .nbuckets = b->layout.n,
                             .ranks = (uint64_t)b->size,
                             .rank = (uint64_t)b->rank,
                             .steps = b->steps,
                             .sent_steps = b->sent_steps,
                             .built = (uint64_t)b->built,
                             .scaler_bytes = b->scaler != NULL ? DCOMM_SCALER_BYTES : 0};
}

DCOMM_API size_t dcomm_buckets_save_bytes(const dcomm_buckets *b)
{
    if (b == NULL) {
        return 0;
    }
    const dcommi_bkt_head head = dcommi_bkt_head_of(b);
    size_t bytes = dcommi_bkt_front_bytes(&head) + sizeof(uint64_t);
    for (size_t i = 0; i < b->layout.n; i++) {
        bytes += sizeof(uint64_t) +
                 dcommi_feedback_padded(dcomm_feedback_save_bytes(b->layout.buckets[i].feedback));
    }
    return bytes;
}

DCOMM_API dcomm_status dcomm_buckets_save(dcomm_buckets *b, void *to, size_t capacity)
{
    DCOMMI_TRY(dcommi_bkt_check("dcomm_buckets_save", b));
    DCOMMI_TRY(dcommi_bkt_check_idle("dcomm_buckets_save", b, b));
    const size_t bytes = dcomm_buckets_save_bytes(b);
    if (to == NULL || capacity < bytes) {
        return dcommi_fail(DCOMM_ERR_INVALID,
                           "dcomm_buckets_save: %s; it takes %zu bytes, and capacity is %zu",
                           to == NULL ? "to is NULL" : "there is no room", bytes, capacity);
    }
    const dcommi_bkt_head head = dcommi_bkt_head_of(b);
    unsigned char *at = to;
    memset(at, 0, bytes);
    memcpy(at, &head, sizeof head);
    memcpy(at + sizeof head, b->sequence, b->nparams * sizeof *b->sequence);
    at += dcommi_bkt_front_bytes(&head);
    if (b->scaler != NULL) {
        DCOMMI_TRY(dcomm_scaler_save(b->scaler, at - head.scaler_bytes));
    }
    for (size_t i = 0; i < b->layout.n; i++) {
        const dcomm_feedback *fb = b->layout.buckets[i].feedback;
        const uint64_t one = dcomm_feedback_save_bytes(fb);
        memcpy(at, &one, sizeof one);
        at += sizeof one;
        DCOMMI_TRY(fb != NULL ? dcomm_feedback_save(fb, at, one) : DCOMM_OK);
        at += dcommi_feedback_padded(one);
    }
    const uint64_t hash = dcommi_feedback_hash(to, bytes - sizeof hash);
    memcpy(at, &hash, sizeof hash);
    return DCOMM_OK;
}

/* ---- loading ---- */

static dcomm_status dcommi_bkt_corrupt(size_t rank, const char *why)
{
    return dcommi_fail(DCOMM_ERR_CORRUPT, "buckets: the state of rank %zu: %s", rank, why);
}

/* Check one state against what is registered, and read its head. `rank` is for messages. */
static dcomm_status dcommi_bkt_read_head(const dcomm_buckets *b, const unsigned char *state,
                                         size_t bytes, size_t rank, dcommi_bkt_head *h)
{
    uint64_t hash;
    if (bytes < sizeof *h + sizeof hash) {
        return dcommi_bkt_corrupt(rank, "it is too short");
    }
    memcpy(h, state, sizeof *h);
    memcpy(&hash, state + bytes - sizeof hash, sizeof hash);
    if (h->magic != DCOMMI_BKT_MAGIC ||
        hash != dcommi_feedback_hash(state, bytes - sizeof hash)) {
        return dcommi_bkt_corrupt(rank, "these bytes are no state of buckets, or not all of one");
    }
    if (h->shape != dcommi_bkt_shape(b) || h->nparams != b->nparams) {
        return dcommi_fail(DCOMM_ERR_INVALID,
                           "buckets: the state of rank %zu is of %" PRIu64
                           " parameters, and here are %zu; their number, counts, types and codecs "
                           "must be the same",
                           rank, h->nparams, b->nparams);
    }
    if ((h->scaler_bytes != 0 && h->scaler_bytes != DCOMM_SCALER_BYTES) ||
        dcommi_bkt_front_bytes(h) > bytes - sizeof hash || h->built > INT32_MAX) {
        return dcommi_bkt_corrupt(rank, "a value of its head is out of range");
    }
    return DCOMM_OK;
}

/* Check also that a state is the one that the caller says. */
static dcomm_status dcommi_bkt_load_head(const dcomm_buckets *b, const unsigned char *state,
                                         size_t bytes, size_t rank, size_t nstates,
                                         dcommi_bkt_head *h)
{
    DCOMMI_TRY(dcommi_bkt_read_head(b, state, bytes, rank, h));
    if (h->ranks != nstates || h->rank != rank) {
        return dcommi_fail(DCOMM_ERR_INVALID,
                           "dcomm_buckets_load: states[%zu] of %zu is of rank %" PRIu64
                           " of %" PRIu64,
                           rank, nstates, h->rank, h->ranks);
    }
    if (h->scaler_bytes != 0 && b->scaler == NULL) {
        return dcommi_fail(DCOMM_ERR_INVALID, "dcomm_buckets_load: a scaler was saved with it; call "
                                              "dcomm_scaler_create first");
    }
    return DCOMM_OK;
}

/* Read the order of a state, which must have each parameter once. */
static dcomm_status dcommi_bkt_load_sequence(const dcomm_buckets *b, const unsigned char *state,
                                             size_t rank, uint32_t *sequence)
{
    bool *seen = dcommi_calloc(b->nparams + 1, sizeof *seen);
    bool good = seen != NULL;
    memcpy(sequence, state + sizeof(dcommi_bkt_head), b->nparams * sizeof *sequence);
    for (size_t i = 0; i < b->nparams && good; i++) {
        good = sequence[i] < b->nparams && !seen[sequence[i]];
        seen[good ? sequence[i] : 0] = true;
    }
    dcommi_free(seen);
    return good            ? DCOMM_OK
           : seen == NULL ? DCOMM_ERR_NO_MEMORY
                          : dcommi_bkt_corrupt(rank, "its order does not have each parameter once");
}

/* A walk through the error feedback of one state. */
typedef struct dcommi_bkt_walk {
    const unsigned char *at;
    size_t left;
} dcommi_bkt_walk;

/* Load the next bucket's error feedback from one state; *fb_p is NULL if there is none. */
static dcomm_status dcommi_bkt_load_one(const dcomm_buckets *b, const dcommi_bkt *k,
                                        dcommi_bkt_walk *w, size_t rank, dcomm_feedback **fb_p)
{
    uint64_t bytes;
    *fb_p = NULL;
    if (w->left < sizeof bytes) {
        return dcommi_bkt_corrupt(rank, "it has fewer buckets");
    }
    memcpy(&bytes, w->at, sizeof bytes);
    w->at += sizeof bytes;
    w->left -= sizeof bytes;
    if (bytes > w->left || dcommi_feedback_padded(bytes) > w->left) {
        return dcommi_bkt_corrupt(rank, "a bucket goes beyond its end");
    }
    if ((bytes > 0) != (k->feedback != NULL)) {
        return dcommi_fail(DCOMM_ERR_INVALID,
                           "buckets: the state of rank %zu has %s error feedback where "
                           "the buckets have %s",
                           rank, bytes > 0 ? "" : "no", bytes > 0 ? "none" : "some");
    }
    if (bytes > 0) {
        DCOMMI_TRY(dcomm_feedback_load(b->kinds[k->kind].codec, w->at, bytes, fb_p));
        if ((*fb_p)->count != k->count || (*fb_p)->opts.variant != k->feedback->opts.variant ||
            (*fb_p)->opts.bf16 != k->feedback->opts.bf16) {
            return dcommi_fail(DCOMM_ERR_INVALID,
                               "buckets: the state of rank %zu is of other buckets or "
                               "another error feedback: bucket_bytes, first_bytes and feedback must "
                               "be the same",
                               rank);
        }
    }
    w->at += dcommi_feedback_padded(bytes);
    w->left -= dcommi_feedback_padded(bytes);
    return DCOMM_OK;
}

/* Load the error feedback of all buckets of a layout from the states at `walks` (left 0: not
 * given). */
static dcomm_status dcommi_bkt_load_feedback(const dcomm_buckets *b, dcommi_bkt_layout *layout,
                                             dcommi_bkt_walk *walks, size_t nstates)
{
    const bool own = nstates == (size_t)b->size;
    dcomm_feedback **old = dcommi_calloc(nstates, sizeof *old), *fb;
    dcomm_status status = old != NULL ? DCOMM_OK : DCOMM_ERR_NO_MEMORY;
    for (size_t i = 0; i < layout->n && status == DCOMM_OK; i++) {
        dcommi_bkt *k = &layout->buckets[i];
        for (size_t r = 0; r < nstates && status == DCOMM_OK; r++) {
            if (walks[r].left > 0 && (!own || r == (size_t)b->rank)) {
                status = dcommi_bkt_load_one(b, k, &walks[r], r, &old[r]);
            }
        }
        fb = NULL;
        if (status == DCOMM_OK && own) {
            fb = old[b->rank];
            old[b->rank] = NULL;
        } else if (status == DCOMM_OK && k->feedback != NULL) {
            status = dcomm_feedback_reshard((const dcomm_feedback *const *)old, nstates,
                                            (uint32_t)b->rank, (uint32_t)b->size, &fb, NULL);
        }
        if (fb != NULL) {
            dcomm_feedback_destroy(&k->feedback);
            k->feedback = fb;
        }
        for (size_t r = 0; old != NULL && r < nstates; r++) {
            dcomm_feedback_destroy(&old[r]);
        }
    }
    dcommi_free(old);
    return status;
}

/* Read the states for this rank. *h becomes the head of one of them, sequence[nparams] its order,
 * *scaler_p its scaler's state. *layout gets the error feedback. */
static dcomm_status dcommi_bkt_load_all(const dcomm_buckets *b, const void *const *states,
                                        const size_t *bytes, size_t nstates, dcommi_bkt_head *h,
                                        uint32_t *sequence, dcommi_bkt_layout *layout,
                                        const unsigned char **scaler_p)
{
    const bool own = nstates == (size_t)b->size;
    size_t given = 0;
    if (states == NULL || bytes == NULL || (own && states[b->rank] == NULL)) {
        return dcommi_fail(DCOMM_ERR_INVALID, "dcomm_buckets_load: %s is NULL",
                           states == NULL ? "states" : bytes == NULL ? "bytes" : "this rank's state");
    }
    dcommi_bkt_walk *walks = dcommi_calloc(nstates + 1, sizeof *walks);
    dcomm_status status = walks != NULL ? DCOMM_OK : DCOMM_ERR_NO_MEMORY;
    for (size_t r = 0; r < nstates && status == DCOMM_OK; r++) {
        dcommi_bkt_head one;
        if (states[r] == NULL || (own && r != (size_t)b->rank)) {
            continue;
        }
        status = dcommi_bkt_load_head(b, states[r], bytes[r], r, nstates, &one);
        if (status == DCOMM_OK && given++ == 0) {
            *h = one;
            status = dcommi_bkt_load_sequence(b, states[r], r, sequence);
            *scaler_p = (const unsigned char *)states[r] + dcommi_bkt_front_bytes(h) -
                        h->scaler_bytes;
        } else if (status == DCOMM_OK && (one.steps != h->steps || one.built != h->built)) {
            status = dcommi_fail(DCOMM_ERR_INVALID,
                                 "dcomm_buckets_load: the state of rank %zu is of step %" PRIu64
                                 ", another of step %" PRIu64,
                                 r, one.steps, h->steps);
        }
        if (status == DCOMM_OK) {
            const size_t front = dcommi_bkt_front_bytes(&one);
            walks[r] = (dcommi_bkt_walk){(const unsigned char *)states[r] + front,
                                         bytes[r] - front - sizeof(uint64_t)};
        }
    }
    if (status == DCOMM_OK && given == 0) {
        status = dcommi_fail(DCOMM_ERR_INVALID, "dcomm_buckets_load: no state was given");
    }
    status = status == DCOMM_OK ? dcommi_bkt_build(b, sequence, layout) : status;
    if (status == DCOMM_OK && layout->n != h->nbuckets) {
        status = dcommi_fail(DCOMM_ERR_INVALID,
                             "dcomm_buckets_load: %" PRIu64 " buckets were saved, and here are %zu: "
                             "bucket_bytes and first_bytes must be the same",
                             h->nbuckets, layout->n);
    }
    status = status == DCOMM_OK ? dcommi_bkt_load_feedback(b, layout, walks, nstates) : status;
    dcommi_free(walks);
    return status;
}

/* Check that all ranks have the same order and are at the same place in the run. */
static dcomm_status dcommi_bkt_load_agrees(dcomm_buckets *b, const dcommi_bkt_head *h,
                                           const uint32_t *sequence)
{
    uint64_t hash = dcommi_mix(dcommi_mix(h->steps, h->sent_steps), h->built);
    for (size_t i = 0; i < b->nparams; i++) {
        hash = dcommi_mix(hash, sequence[i]);
    }
    dcomm_coll_opts opts = dcommi_bkt_patience(b);
    uint64_t *least = dcommi_borrow(b->comm, 2, sizeof *least);
    if (least == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    least[0] = hash;
    least[1] = ~hash;
    dcomm_status status =
        dcomm_allreduce(b->comm, DCOMM_IN_PLACE, least, 2, DCOMM_U64, DCOMM_MIN, &opts);
    const bool alike = least[0] == ~least[1];
    dcommi_give_back(b->comm, least);
    return status < 0 || alike ? status
                               : dcommi_fail(DCOMM_ERR_MISMATCH,
                                             "dcomm_buckets_load: ranks have states of different "
                                             "steps or runs");
}

DCOMM_API dcomm_status dcomm_buckets_load(dcomm_buckets *b, const void *const *states,
                                          const size_t *bytes, size_t nstates)
{
    DCOMMI_TRY(dcommi_bkt_check("dcomm_buckets_load", b));
    DCOMMI_TRY(dcommi_bkt_check_idle("dcomm_buckets_load", b, b));
    dcommi_bkt_head h = {0};
    dcommi_bkt_layout layout = {0};
    const unsigned char *scaler = NULL;
    uint32_t *sequence = dcommi_calloc(b->nparams, sizeof *sequence);
    dcomm_status status = sequence == NULL ? DCOMM_ERR_NO_MEMORY
                                           : dcommi_bkt_load_all(b, states, bytes, nstates, &h,
                                                                 sequence, &layout, &scaler);
    status = dcommi_bkt_all_good(b, status);
    DCOMMI_THEN(status, dcommi_bkt_load_agrees(b, &h, sequence));
    if (status >= 0 && h.scaler_bytes > 0) {
        status = dcommi_bkt_all_good(b, dcomm_scaler_load(b->scaler, scaler));
    }
    if (status < 0) {
        dcommi_bkt_layout_free(&layout);
        dcommi_free(sequence);
        return status;
    }
    for (size_t i = 0; i < layout.n; i++) {
        dcommi_bkt_move_grads(b, &layout.buckets[i]);
    }
    dcommi_bkt_layout_free(&b->layout);
    dcommi_bkt_settle(b, &layout);
    dcommi_free(b->sequence);
    b->sequence = sequence;
    b->built = (int)h.built;
    b->steps = h.steps;
    b->base = b->base_before = b->steps;
    b->sent_steps = b->built_at = h.sent_steps;
    if (b->scaler != NULL) {
        b->scaler->judged = b->sent_steps; /* the scaler has seen every step */
    }
    return dcommi_bkt_decide(b);
}

#endif
