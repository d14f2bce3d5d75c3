/* agree.h - compare the registrations of all ranks, so that a difference becomes an error on all
 * of them and not a wrong sum. */
#ifndef DCOMMI_BUCKET_AGREE_H
#define DCOMMI_BUCKET_AGREE_H

#include "meet.h"

static const char *dcommi_bkt_codec_name(const dcomm_buckets *b, const dcommi_bkt_param *p)
{
    const dcomm_codec *codec = b->kinds[p->kind].codec;
    return codec != NULL ? dcomm_codec_spec(codec) : "no codec";
}

static uint64_t dcommi_bkt_param_hash(const dcomm_buckets *b, size_t i)
{
    const dcommi_bkt_param *p = &b->params[i];
    uint64_t h = dcommi_mix_text(p->count, p->name);
    h = dcommi_mix(h, (uint64_t)p->dtype << 1 | p->aside);
    h = dcommi_mix(h, p->place);
    const dcommi_bkt_feedback_words w = dcommi_bkt_feedback_of(&b->kinds[p->kind]);
    for (size_t k = 0; k < sizeof w.word / sizeof *w.word; k++) {
        h = dcommi_mix(h, w.word[k]);
    }
    return dcommi_mix_text(h, dcommi_bkt_codec_name(b, p));
}

/* Write the options of error feedback for a message about a difference; "" if there is none. */
static void dcommi_bkt_feedback_text(const dcommi_bkt_kind *kind, char *text, size_t room)
{
    static const char *const variants[] = {"classic", "EF21", "DGC"};
    const dcomm_feedback_opts *o = &kind->feedback;
    text[0] = 0;
    if (kind->has_feedback) {
        dcommi_snprintf(text, room,
                        " and feedback (%s, bf16 %d, scale %d, seed %" PRIu64 ", tensor %" PRIu32
                        ", momentum %g, clip %g, warmup_steps %" PRIu64 ")",
                        (unsigned)o->variant < 3 ? variants[o->variant] : "unknown", o->bf16,
                        o->scale, o->seed, o->tensor, o->momentum, o->clip, o->warmup_steps);
    }
}

static void dcommi_bkt_describe(const dcomm_buckets *b, size_t i, char *text, size_t room)
{
    if (i >= b->nparams) {
        snprintf(text, room, "no parameter %zu", i);
        return;
    }
    const dcommi_bkt_param *p = &b->params[i];
    char more[256];
    int n = 0;
    if (p->place > 0) { /* ranks may number their devices differently */
        n = snprintf(more, sizeof more, " on the rank's device no. %zu", p->place);
    }
    dcommi_bkt_feedback_text(&b->kinds[p->kind], more + n, sizeof more - (size_t)n);
    snprintf(text, room, "\"%.80s\" of %zu %s%s with %.80s%.199s", p->name, p->count,
             dcomm_dtype_name(p->dtype), p->aside ? ", aside," : "", dcommi_bkt_codec_name(b, p),
             more);
}

/* Return the options for the buckets' own exchanges. */
static inline dcomm_coll_opts dcommi_bkt_patience(const dcomm_buckets *b)
{
    double s = b->opts.coll.timeout_s;
    return (dcomm_coll_opts){.timeout_s = s > 0 ? s : 0};
}

/* Make a card with the status of this rank's part, and the message of an error. */
static dcommi_bkt_card dcommi_bkt_card_of(dcomm_status status)
{
    dcommi_bkt_card own = {.status = status};
    snprintf(own.text, sizeof own.text, "%.399s", status < 0 ? dcommi_message : "");
    return own;
}

/* Exchange the cards of all ranks, and return the first error among them on all ranks. The caller
 * gives *cards_p back. */
static dcomm_status dcommi_bkt_exchange(dcomm_buckets *b, const dcommi_bkt_card *own,
                                        dcommi_bkt_card **cards_p)
{
    dcomm_coll_opts opts = dcommi_bkt_patience(b);
    dcommi_bkt_card *cards = dcommi_borrow(b->comm, (size_t)b->size + 1, sizeof *cards);
    *cards_p = cards;
    if (cards == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    cards[b->size] = *own;
    DCOMMI_TRY(dcomm_allgather(b->comm, &cards[b->size], cards, sizeof *own, DCOMM_U8, &opts));
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

/* Check that all ranks have come this far without an error. */
static dcomm_status dcommi_bkt_all_good(dcomm_buckets *b, dcomm_status status)
{
    dcommi_bkt_card own = dcommi_bkt_card_of(status), *cards;
    status = dcommi_bkt_exchange(b, &own, &cards);
    dcommi_give_back(b->comm, cards);
    return status;
}

/* Return an error that names the first parameter in which a rank differs from rank 0. All ranks
 * call this. */
static dcomm_status dcommi_bkt_name_difference(dcomm_buckets *b, const dcommi_bkt_card *cards)
{
    uint64_t least = cards[0].nparams;
    for (int r = 1; r < b->size; r++) {
        least = cards[r].nparams < least ? cards[r].nparams : least;
    }
    dcomm_coll_opts opts = dcommi_bkt_patience(b);
    uint64_t *hashes = dcommi_borrow(b->comm, least + 1, sizeof *hashes);
    dcommi_bkt_card *theirs = NULL, own = {.nparams = least};
    if (hashes == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < least && b->rank == 0; i++) {
        hashes[i] = dcommi_bkt_param_hash(b, i);
    }
    dcomm_status status = dcomm_broadcast(b->comm, hashes, hashes, least, DCOMM_U64, 0, &opts);
    for (size_t i = 0; i < least && status >= 0 && own.nparams == least; i++) {
        own.nparams = hashes[i] != dcommi_bkt_param_hash(b, i) ? i : least;
    }
    DCOMMI_TRY(status);
    hashes[least] = own.nparams;
    DCOMMI_TRY(
        dcomm_allreduce(b->comm, DCOMM_IN_PLACE, &hashes[least], 1, DCOMM_U64, DCOMM_MIN, &opts));
    uint64_t first = hashes[least];
    dcommi_give_back(b->comm, hashes);
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
    dcommi_give_back(b->comm, theirs);
    return status;
}

/* Compare rank r's options with rank 0's. The first `whole` of n are whole numbers, the rest real
 * ones. `what` names their owner. */
static dcomm_status dcommi_bkt_compare_options(const char *what, const char *const *names,
                                               int whole, int n, const dcommi_bkt_card *cards,
                                               int r)
{
    for (int i = 0; i < n; i++) {
        const uint64_t x = cards[0].options[i], y = cards[r].options[i];
        if (x != y && i < whole) {
            return dcommi_fail(DCOMM_ERR_MISMATCH,
                               "%s: opts.%s is %" PRIu64 " on rank 0 and %" PRIu64 " on rank %d",
                               what, names[i], x, y, r);
        }
        if (x != y) {
            return dcommi_fail(DCOMM_ERR_MISMATCH,
                               "%s: opts.%s is %.17g on rank 0 and %.17g on rank %d", what,
                               names[i], dcommi_f64_from_bits(x), dcommi_f64_from_bits(y), r);
        }
    }
    return DCOMM_OK;
}

/* Check that all ranks have registered the same, with the same options. `status` is the result of
 * this rank's registration, `run` its place in its run. *info becomes where the ranks go on. */
static dcomm_status dcommi_bkt_agree(dcomm_buckets *b, dcomm_status status,
                                     const dcommi_bkt_run *run, dcomm_buckets_rebind_info *info)
{
    dcommi_bkt_card own = dcommi_bkt_card_of(status), *cards;
    own.run = *run;
    own.nparams = b->nparams;
    static const char *const names[] = {
#define DCOMMI_BKT_NAME(name, value) #name,
        DCOMMI_BKT_OPTIONS(DCOMMI_BKT_NAME) DCOMMI_BKT_REALS(DCOMMI_BKT_NAME)
#undef DCOMMI_BKT_NAME
    };
    if (status >= 0) {
        const uint64_t values[] = {
#define DCOMMI_BKT_VALUE(name, value) (uint64_t)(value),
#define DCOMMI_BKT_REAL(name, value) dcommi_f64_bits(value),
            DCOMMI_BKT_OPTIONS(DCOMMI_BKT_VALUE) DCOMMI_BKT_REALS(DCOMMI_BKT_REAL)
#undef DCOMMI_BKT_VALUE
#undef DCOMMI_BKT_REAL
        };
        memcpy(own.options, values, sizeof values);
        for (size_t i = 0; i < b->nparams; i++) {
            own.hash = dcommi_mix(own.hash, dcommi_bkt_param_hash(b, i));
        }
    }
    status = dcommi_bkt_exchange(b, &own, &cards);
    bool alike = true;
    for (int r = 1; r < b->size && status >= 0; r++) {
        status = dcommi_bkt_compare_options("buckets", names, DCOMMI_BKT_NOPTIONS,
                                            DCOMMI_BKT_NOPTIONS + DCOMMI_BKT_NREALS, cards, r);
        alike = alike && cards[r].nparams == cards[0].nparams && cards[r].hash == cards[0].hash;
    }
    if (status >= 0 && !alike) {
        status = dcommi_bkt_name_difference(b, cards);
    }
    DCOMMI_THEN(status, dcommi_bkt_meet(b, cards, info));
    dcommi_give_back(b->comm, cards);
    return status;
}

#endif
