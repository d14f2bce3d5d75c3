/* meet.h - ranks meet on a communicator: the cards that they exchange, and where they go on if some
 * of them bring buckets from another communicator. */
#ifndef DCOMMI_BUCKET_MEET_H
#define DCOMMI_BUCKET_MEET_H

#include "layout.h"

static uint64_t dcommi_bkt_value_codec_hash(const dcomm_buckets *b)
{
    return b->value_codec != NULL ? dcommi_mix_text(1, dcomm_codec_spec(b->value_codec)) : 0;
}

/* The options that all ranks must set alike. */
#define DCOMMI_BKT_OPTIONS(X)                                \
    X(bucket_bytes, b->opts.bucket_bytes)                    \
    X(first_bytes, b->opts.first_bytes)                      \
    X(sum, b->opts.sum)                                      \
    X(weighted, b->opts.weighted)                            \
    X(unused, b->opts.unused)                                \
    X(rebuild, b->opts.rebuild)                              \
    X(sharded, b->opts.sharded)                              \
    X(values, b->has_values)                                 \
    X(value_codec, dcommi_bkt_value_codec_hash(b))           \
    X(feedback, b->has_feedback)                             \
    X(feedback->variant, b->feedback_opts.variant)           \
    X(feedback->bf16, b->feedback_opts.bf16)                 \
    X(feedback->scale, b->feedback_opts.scale)               \
    X(feedback->seed, b->feedback_opts.seed)                 \
    X(feedback->tensor, b->feedback_opts.tensor)             \
    X(feedback->warmup_steps, b->feedback_opts.warmup_steps) \
    X(coll.deterministic, b->opts.coll.deterministic)        \
    X(coll.accumulate, b->opts.coll.accumulate)              \
    X(predivide, b->opts.predivide)                          \
    X(coll.lanes, b->opts.coll.lanes)                        \
    X(coll.chunk_bytes, b->opts.coll.chunk_bytes)            \
    X(coll.registered, b->opts.coll.registered)              \
    X(coll.huge_pages, b->opts.coll.huge_pages)              \
    X(coll.device, b->opts.coll.device)                      \
    X(coll.codec_seed, b->opts.coll.codec_seed)
#define DCOMMI_BKT_REALS(X)                          \
    X(feedback->momentum, b->feedback_opts.momentum) \
    X(feedback->clip, b->feedback_opts.clip)

enum {
#define DCOMMI_BKT_COUNT(name, value) +1
    DCOMMI_BKT_NOPTIONS = 0 DCOMMI_BKT_OPTIONS(DCOMMI_BKT_COUNT),
    DCOMMI_BKT_NREALS = 0 DCOMMI_BKT_REALS(DCOMMI_BKT_COUNT)
#undef DCOMMI_BKT_COUNT
};

/* The place of a rank in its run, when ranks meet on a new communicator. */
typedef struct dcommi_bkt_run {
    uint64_t carries;     /* it brings its buckets; 0: it creates them */
    uint64_t done;        /* steps that have sent and are complete: with a scaler, judged */
    uint64_t undone;      /* it had completed one more, and has undone it */
    uint64_t rank, ranks; /* its rank in the last meeting, and the number of ranks there */
    uint64_t watched;     /* it has a scaler ... */
    uint64_t scale, good; /* ... that stands here; scale by its bits */
    uint64_t nheirs, heirs[DCOMMI_BKT_LEGACIES]; /* it inherits from so many ranks: these */
} dcommi_bkt_run;

/* A rank's message to the others. */
typedef struct dcommi_bkt_card {
    int64_t status;
    dcommi_bkt_run run;
    uint64_t options[DCOMMI_BKT_NOPTIONS + DCOMMI_BKT_NREALS]; /* a real number by its bits */
    uint64_t nparams, hash;
    char text[DCOMMI_TEXT_MAX]; /* message of the error, or the parameter that differs */
} dcommi_bkt_card;

/* Return the rank that stands for a rank of the communicator before: itself, or its heir among the
 * legacies before number `until` of rank `last`; -1: none. *alive: itself. */
static int dcommi_bkt_stands_for(const dcomm_buckets *b, const dcommi_bkt_card *cards,
                                 uint64_t rank, int last, uint64_t until, bool *alive)
{
    for (int r = 0; r < b->size; r++) {
        if (cards[r].run.carries != 0 && cards[r].run.rank == rank) {
            *alive = true;
            return r;
        }
    }
    *alive = false;
    for (int r = 0; r <= last; r++) {
        for (uint64_t i = 0; i < cards[r].run.nheirs && (r < last || i < until); i++) {
            if (cards[r].run.heirs[i] == rank) {
                return r;
            }
        }
    }
    return -1;
}

/* Check that no residual is there twice: each legacy is of a rank that is not here, and has one
 * heir. */
static dcomm_status dcommi_bkt_check_heirs(const dcomm_buckets *b, const dcommi_bkt_card *cards)
{
    for (int r = 0; r < b->size; r++) {
        for (uint64_t i = 0; i < cards[r].run.nheirs; i++) {
            const uint64_t of = cards[r].run.heirs[i];
            bool alive;
            const int other = dcommi_bkt_stands_for(b, cards, of, r, i, &alive);
            if (other >= 0) {
                return dcommi_fail(DCOMM_ERR_INVALID,
                                   "dcomm_buckets_rebind: rank %d inherits from the former rank "
                                   "%" PRIu64 ", and %s rank %d",
                                   r, of, alive ? "that is now" : "so does", other);
            }
        }
    }
    return DCOMM_OK;
}

/* Check that the scalers of the ranks that bring one stand alike. */
static dcomm_status dcommi_bkt_check_scalers(const dcomm_buckets *b, const dcommi_bkt_card *cards,
                                             int source)
{
    const dcommi_bkt_run *x = &cards[source].run;
    for (int r = 0; r < b->size; r++) {
        const dcommi_bkt_run *y = &cards[r].run;
        if (y->carries != 0 && y->watched != x->watched) {
            return dcommi_fail(DCOMM_ERR_MISMATCH,
                               "dcomm_buckets_rebind: rank %d has %s scaler, and rank %d has %s",
                               source, x->watched != 0 ? "a" : "no", r,
                               y->watched != 0 ? "one" : "none");
        }
        if (y->carries != 0 && y->done == x->done && (y->scale != x->scale || y->good != x->good)) {
            return dcommi_fail(DCOMM_ERR_MISMATCH,
                               "dcomm_buckets_rebind: the scaler is at %.17g after %" PRIu64
                               " good steps on rank %d, and at %.17g after %" PRIu64 " on rank %d",
                               dcommi_f64_from_bits(x->scale), x->good, source,
                               dcommi_f64_from_bits(y->scale), y->good, r);
        }
    }
    return DCOMM_OK;
}

/* Return true if error feedback is kept for any parameter. */
static bool dcommi_bkt_keeps_errors(const dcomm_buckets *b)
{
    for (size_t i = 0; i < b->nkinds; i++) {
        if (b->kinds[i].has_feedback) {
            return true;
        }
    }
    return false;
}

/* Find out from the cards of all ranks where they go on, as all of them do. */
static dcomm_status dcommi_bkt_meet(const dcomm_buckets *b, const dcommi_bkt_card *cards,
                                    dcomm_buckets_rebind_info *info)
{
    uint64_t heirs = 0;
    *info = (dcomm_buckets_rebind_info){.source = -1};
    for (int r = 0; r < b->size; r++) {
        const dcommi_bkt_run *run = &cards[r].run;
        info->carried += run->carries != 0;
        heirs += run->nheirs;
        const dcommi_bkt_run *best = info->source >= 0 ? &cards[info->source].run : NULL;
        if (run->carries != 0 && (best == NULL || run->done < best->done ||
                                  (run->done == best->done && run->undone < best->undone))) {
            info->source = r;
        }
    }
    if (info->carried == 0) {
        return DCOMM_OK;
    }
    DCOMMI_TRY(dcommi_bkt_check_scalers(b, cards, info->source));
    DCOMMI_TRY(dcommi_bkt_check_heirs(b, cards));
    const dcommi_bkt_run *source = &cards[info->source].run, *own = &cards[b->rank].run;
    info->joined = b->size - info->carried;
    info->left = source->ranks > (uint64_t)info->carried ? (int)source->ranks - info->carried : 0;
    info->missing =
        dcommi_bkt_keeps_errors(b) && (uint64_t)info->left > heirs ? info->left - (int)heirs : 0;
    info->undone = own->undone != 0 || (own->carries != 0 && own->done > source->done);
    return DCOMM_OK;
}

#endif
