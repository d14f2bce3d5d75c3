/* bucket_agree.h - ranks compare what they have registered, so that a difference is a sentence on
 * all of them and not a wrong sum. */
#ifndef DCOMMI_BUCKET_AGREE_H
#define DCOMMI_BUCKET_AGREE_H

#include "bucket_layout.h"

#define DCOMMI_BKT_OPTIONS(X)                         \
    X(bucket_bytes, b->opts.bucket_bytes)             \
    X(first_bytes, b->opts.first_bytes)               \
    X(sum, b->opts.sum)                               \
    X(weighted, b->opts.weighted)                     \
    X(rebuild, b->opts.rebuild)                       \
    X(sharded, b->opts.sharded)                       \
    X(values, b->has_values)                          \
    X(feedback, dcommi_bkt_feedback_id(b))            \
    X(coll.deterministic, b->opts.coll.deterministic) \
    X(coll.registered, b->opts.coll.registered) \
    X(coll.huge_pages, b->opts.coll.huge_pages)

enum {
#define DCOMMI_BKT_COUNT(name, value) +1
    DCOMMI_BKT_NOPTIONS = 0 DCOMMI_BKT_OPTIONS(DCOMMI_BKT_COUNT)
#undef DCOMMI_BKT_COUNT
};

/* What one rank tells the others. */
typedef struct dcommi_bkt_card {
    int64_t status;
    uint64_t options[DCOMMI_BKT_NOPTIONS];
    uint64_t nparams, hash;
    char text[DCOMMI_TEXT_MAX]; /* why status is an error; its parameter that differs */
} dcommi_bkt_card;

static uint64_t dcommi_bkt_text_hash(uint64_t h, const char *text)
{
    for (; *text != 0; text++) {
        h = dcommi_mix(h, (uint8_t)*text);
    }
    return dcommi_mix(h, 0x100);
}

static uint64_t dcommi_bkt_feedback_id(const dcomm_buckets *b)
{
    return b->has_feedback ? 1 + (uint64_t)b->feedback_opts.variant : 0;
}

static const char *dcommi_bkt_codec_name(const dcomm_buckets *b, const dcommi_bkt_param *p)
{
    const dcomm_codec *codec = b->kinds[p->kind].codec;
    return codec != NULL ? dcomm_codec_spec(codec) : "no codec";
}

static uint64_t dcommi_bkt_param_hash(const dcomm_buckets *b, size_t i)
{
    const dcommi_bkt_param *p = &b->params[i];
    uint64_t h = dcommi_bkt_text_hash(p->count, p->name);
    return dcommi_bkt_text_hash(dcommi_mix(h, (uint64_t)p->dtype), dcommi_bkt_codec_name(b, p));
}

static void dcommi_bkt_describe(const dcomm_buckets *b, size_t i, char *text, size_t room)
{
    if (i >= b->nparams) {
        snprintf(text, room, "no parameter %zu", i);
        return;
    }
    const dcommi_bkt_param *p = &b->params[i];
    snprintf(text, room, "\"%.80s\" of %zu %s with %.80s", p->name, p->count,
             dcomm_dtype_name(p->dtype), dcommi_bkt_codec_name(b, p));
}

/* Every rank's card, and the first error among them, on all ranks. *cards_p is the caller's. */
static dcomm_status dcommi_bkt_exchange(const dcomm_buckets *b, const dcommi_bkt_card *own,
                                        dcommi_bkt_card **cards_p)
{
    dcommi_bkt_card *cards = dcommi_calloc((size_t)b->size, sizeof *cards);
    *cards_p = cards;
    if (cards == NULL) { /* the others must not wait */
        dcomm_comm_abort(b->comm, dcomm_last_error());
        return DCOMM_ERR_NO_MEMORY;
    }
    DCOMMI_TRY(dcomm_allgather(b->comm, own, cards, sizeof *own, DCOMM_U8, NULL));
    for (int r = 0; r < b->size; r++) {
        if (cards[r].status < 0) {
            cards[r].text[sizeof cards[r].text - 1] = 0;
            return r == b->rank ? dcommi_fail((dcomm_status)own->status, "%s", own->text)
                                : dcommi_fail((dcomm_status)cards[r].status, "rank %d: %s", r,
                                              cards[r].text);
        }
    }
    return DCOMM_OK;
}

/* Whether all ranks have come this far without an error. */
static dcomm_status dcommi_bkt_all_good(const dcomm_buckets *b, dcomm_status status)
{
    dcommi_bkt_card own = {.status = status}, *cards;
    snprintf(own.text, sizeof own.text, "%.399s", status < 0 ? dcomm_last_error() : "");
    status = dcommi_bkt_exchange(b, &own, &cards);
    dcommi_free(cards);
    return status;
}

/* The first parameter in which a rank differs from rank 0: all ranks are here. */
static dcomm_status dcommi_bkt_name_difference(const dcomm_buckets *b, const dcommi_bkt_card *cards)
{
    uint64_t least = cards[0].nparams;
    for (int r = 1; r < b->size; r++) {
        least = cards[r].nparams < least ? cards[r].nparams : least;
    }
    uint64_t *hashes = dcommi_calloc(least, sizeof *hashes);
    dcommi_bkt_card *theirs = NULL, own = {.nparams = least};
    dcomm_status status = hashes != NULL ? DCOMM_OK : DCOMM_ERR_NO_MEMORY;
    status = dcommi_bkt_all_good(b, status);
    if (status < 0) {
        dcommi_free(hashes);
        return status;
    }
    for (size_t i = 0; i < least && b->rank == 0; i++) {
        hashes[i] = dcommi_bkt_param_hash(b, i);
    }
    status = dcomm_broadcast(b->comm, hashes, hashes, least, DCOMM_U64, 0, NULL);
    for (size_t i = 0; i < least && status >= 0 && own.nparams == least; i++) {
        own.nparams = hashes[i] != dcommi_bkt_param_hash(b, i) ? i : least;
    }
    dcommi_free(hashes);
    DCOMMI_TRY(status);
    uint64_t first = own.nparams;
    DCOMMI_TRY(dcomm_allreduce(b->comm, &first, &first, 1, DCOMM_U64, DCOMM_MIN, NULL));
    dcommi_bkt_describe(b, first, own.text, sizeof own.text);
    status = dcommi_bkt_exchange(b, &own, &theirs);
    if (status >= 0) {
        int other = b->size - 1;
        for (int r = b->size - 1; r > 0; r--) {
            bool differs =
                first < least ? theirs[r].nparams == first : cards[r].nparams != cards[0].nparams;
            other = differs ? r : other;
        }
        theirs[0].text[sizeof own.text - 1] = theirs[other].text[sizeof own.text - 1] = 0;
        status = dcommi_fail(DCOMM_ERR_MISMATCH,
                             "buckets: parameter %" PRIu64
                             " is not the same on all ranks: rank 0 has %.180s, rank %d has %.180s",
                             first, theirs[0].text, other, theirs[other].text);
    }
    dcommi_free(theirs);
    return status;
}

/* All ranks have registered the same, with the same options. `status` is what became of this
 * rank's registration. */
static dcomm_status dcommi_bkt_agree(const dcomm_buckets *b, dcomm_status status)
{
    static const char *const names[] = {
#define DCOMMI_BKT_NAME(name, value) #name,
        DCOMMI_BKT_OPTIONS(DCOMMI_BKT_NAME)
#undef DCOMMI_BKT_NAME
    };
    dcommi_bkt_card own = {.status = status, .nparams = b->nparams}, *cards;
    snprintf(own.text, sizeof own.text, "%.399s", status < 0 ? dcomm_last_error() : "");
    if (status >= 0) {
        const uint64_t values[] = {
#define DCOMMI_BKT_VALUE(name, value) (uint64_t)(value),
            DCOMMI_BKT_OPTIONS(DCOMMI_BKT_VALUE)
#undef DCOMMI_BKT_VALUE
        };
        memcpy(own.options, values, sizeof values);
        for (size_t i = 0; i < b->nparams; i++) {
            own.hash = dcommi_mix(own.hash, dcommi_bkt_param_hash(b, i));
        }
    }
    status = dcommi_bkt_exchange(b, &own, &cards);
    bool alike = true;
    for (int r = 1; r < b->size && status >= 0; r++) {
        for (int i = 0; i < DCOMMI_BKT_NOPTIONS && status >= 0; i++) {
            if (cards[r].options[i] != cards[0].options[i]) {
                status = dcommi_fail(DCOMM_ERR_MISMATCH,
                                     "buckets: opts.%s is %" PRIu64 " on rank 0 and %" PRIu64
                                     " on rank %d",
                                     names[i], cards[0].options[i], cards[r].options[i], r);
            }
        }
        alike = alike && cards[r].nparams == cards[0].nparams && cards[r].hash == cards[0].hash;
    }
    if (status >= 0 && !alike) {
        status = dcommi_bkt_name_difference(b, cards);
    }
    dcommi_free(cards);
    return status;
}

#endif
