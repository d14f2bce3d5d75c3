/* api_auto.h - codec "auto": rank 0 decides whether an all-reduce is compressed, and tells the
 * other ranks once for each class of calls. */
#ifndef DCOMMI_API_AUTO_H
#define DCOMMI_API_AUTO_H

#include "api_verdict.h"
#include "loan.h"

/* Return the codec of a call if that is "auto", else NULL. */
static inline const dcomm_codec *dcommi_auto_of(const dcomm_coll_opts *opts)
{
    const dcomm_codec *codec = opts == NULL             ? NULL
                               : opts->feedback != NULL ? opts->feedback->codec
                                                        : opts->codec;
    return codec != NULL && codec->automatic ? codec : NULL;
}

/* Return the key of a call's class, never 0. Lengths are rounded to the grid of the choice, and
 * options that do not change the verdict are left out. */
static uint64_t dcommi_auto_key(const dcomm_codec *codec, const dcommi_shape *s)
{
    dcommi_shape plain = *s;
    plain.rank_order = false;
    plain.memory = dcommi_memory_of_device(s->memory) ? DCOMMI_MEMORY_DEVICE : DCOMMI_MEMORY_ANY;
    plain.lanes = 1;
    plain.chunk_bytes = 0;
    plain.coding = NULL;
    uint64_t key = dcommi_choice_key(&plain);
    for (const char *at = codec->spec; *at != 0; at++) {
        key = dcommi_mix(key, (uint8_t)*at);
    }
    return key | 1;
}

static int dcommi_auto_known(dcomm_comm *comm, uint64_t key)
{
    int taken = DCOMMI_AUTO_UNKNOWN;
    dcommi_comm_lock(comm);
    const dcommi_chooser *c = comm->chooser;
    size_t n = c->ndecided < DCOMMI_DECISIONS ? c->ndecided : DCOMMI_DECISIONS;
    for (size_t i = 0; i < n && taken == DCOMMI_AUTO_UNKNOWN; i++) {
        taken = c->decided[i].key == key ? c->decided[i].taken : DCOMMI_AUTO_UNKNOWN;
    }
    dcommi_comm_unlock(comm);
    return taken;
}

/* Broadcast rank 0's decision and remember it. If rank 0 cannot decide, such calls stay exact. */
static dcomm_status dcommi_auto_agree(dcomm_comm *comm, const dcomm_codec *codec,
                                      const dcommi_shape *call, double timeout_s, int *taken)
{
    dcomm_coll_opts opts = {.timeout_s = timeout_s};
    const uint64_t key = dcommi_auto_key(codec, call);
    uint64_t *word = dcommi_borrow(comm, 1, sizeof *word);
    if (word == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    *word = DCOMMI_AUTO_EXACT;
    if (comm->rank == 0) {
        dcomm_verdict v;
        if (dcommi_verdict_judge(comm, codec, call, &v, taken) >= 0) {
            *word = (uint64_t)*taken;
            dcommi_log(DCOMMI_LOG_INFO, "%s", v.text);
        } else {
            dcommi_log(DCOMMI_LOG_WARN, "codec auto is exact for %zu elements: %s", call->count,
                       dcommi_message);
        }
    }
    dcommi_shape s;
    dcomm_status status =
        dcommi_shape_begin(comm, DCOMM_COLL_BROADCAST, 1, DCOMM_U64, DCOMM_SUM, 0, &opts, &s);
    s.in_place = true;
    DCOMMI_THEN(status, dcommi_collective(comm, &s, word, word, -1, &opts, NULL));
    *taken = (int)*word;
    dcommi_give_back(comm, word);
    DCOMMI_TRY(status);
    dcommi_comm_lock(comm);
    dcommi_chooser *c = comm->chooser;
    c->decided[c->ndecided++ % DCOMMI_DECISIONS] = (struct dcommi_decision){key, *taken};
    dcommi_comm_unlock(comm);
    return DCOMM_OK;
}

/* Fill in the shape of a call. *open: "auto" decides about the call. It does not if the call is
 * never compressed, if the codec cannot encode it, or if `opts` names the algorithm. */
static dcomm_status dcommi_auto_shape(dcomm_comm *comm, size_t count, dcomm_dtype dtype,
                                      dcomm_op op, const dcomm_coll_opts *opts, dcommi_shape *s,
                                      bool *open)
{
    DCOMMI_TRY(dcommi_shape_begin(comm, DCOMM_COLL_ALLREDUCE, count, dtype, op, 0, opts, s));
    *open = dcommi_coded_op(op) && dcommi_coded_wanted(s, opts) &&
            dcomm_codec_max_bytes(dcommi_auto_of(opts), count) != SIZE_MAX &&
            (opts->algo == NULL || opts->algo[0] == 0 || strcmp(opts->algo, "auto") == 0);
    return DCOMM_OK;
}

/* Copy the options of a call to `own`, with the codec that the decision `taken` stands for. */
static void dcommi_auto_take(const dcomm_codec *codec, int taken, const dcomm_coll_opts *opts,
                             dcomm_coll_opts *own)
{
    *own = *opts;
    if (taken == DCOMMI_AUTO_CODEC) {
        return;
    }
    own->feedback = NULL;
    own->codec = taken == DCOMMI_AUTO_CAST ? codec->cast : NULL;
    if (own->codec == NULL && own->codec_report != NULL) {
        *own->codec_report = (dcomm_codec_report){.first_nonfinite = SIZE_MAX};
    }
}

/* Replace the options of a call whose codec is "auto". `blocking`: the ranks may agree on a
 * decision now. */
static dcomm_status dcommi_auto_begin(dcomm_comm *comm, const dcomm_codec *codec, size_t count,
                                      dcomm_dtype dtype, dcomm_op op, bool blocking,
                                      const dcomm_coll_opts **opts_p, dcomm_coll_opts *own)
{
    dcommi_shape s;
    bool open;
    DCOMMI_TRY(dcommi_auto_shape(comm, count, dtype, op, *opts_p, &s, &open));
    DCOMMI_TRY(dcommi_coded_check_feedback(&s, *opts_p));
    if (!open) {
        bool exact =
            dcommi_coded_op(op) &&
            (dcomm_codec_max_bytes(codec, count) == SIZE_MAX ||
             ((*opts_p)->algo != NULL && dcommi_algo_find(s.coll, (*opts_p)->algo) != NULL));
        dcommi_auto_take(codec, exact ? DCOMMI_AUTO_EXACT : DCOMMI_AUTO_CODEC, *opts_p, own);
        *opts_p = own;
        return DCOMM_OK;
    }
    int taken = dcommi_auto_known(comm, dcommi_auto_key(codec, &s));
    if (taken == DCOMMI_AUTO_UNKNOWN && (!blocking || dcommi_this_group.depth > 0)) {
        return dcommi_fail(DCOMM_ERR_INVALID,
                           "allreduce of %zu elements: codec auto is not decided for this length "
                           "yet, and neither a call that must not block nor one of a group can: "
                           "make one that blocks before, or call dcomm_codec_decide",
                           count);
    }
    if (taken == DCOMMI_AUTO_UNKNOWN) {
        DCOMMI_TRY(dcommi_auto_agree(comm, codec, &s, (*opts_p)->timeout_s, &taken));
    }
    dcommi_auto_take(codec, taken, *opts_p, own);
    *opts_p = own;
    return DCOMM_OK;
}

/* Replace the options of a call for an explanation. They keep codec "auto" until it is decided. */
static dcomm_status dcommi_auto_peek(dcomm_comm *comm, dcomm_coll coll, size_t count,
                                     dcomm_dtype dtype, dcomm_op op, const dcomm_coll_opts **opts_p,
                                     dcomm_coll_opts *own)
{
    const dcomm_codec *codec = dcommi_auto_of(*opts_p);
    dcommi_shape s;
    bool open;
    if (codec == NULL || coll != DCOMM_COLL_ALLREDUCE) {
        return DCOMM_OK;
    }
    *own = **opts_p;
    own->codec_report = NULL;
    *opts_p = own;
    DCOMMI_TRY(dcommi_auto_shape(comm, count, dtype, op, own, &s, &open));
    int taken = open ? dcommi_auto_known(comm, dcommi_auto_key(codec, &s)) : DCOMMI_AUTO_UNKNOWN;
    if (taken != DCOMMI_AUTO_UNKNOWN) {
        dcommi_auto_take(codec, taken, own, own);
    }
    return DCOMM_OK;
}

DCOMM_API dcomm_status dcomm_codec_decide(dcomm_comm *comm, const dcomm_codec *codec, size_t count,
                                          dcomm_dtype dtype, bool device,
                                          const dcomm_codec **taken_p)
{
    dcomm_coll_opts opts = {.codec = codec, .device = device}, own;
    const dcomm_coll_opts *taken = &opts;
    dcommi_shape s;
    DCOMMI_NEED(codec);
    DCOMMI_NEED(taken_p);
    DCOMMI_TRY(dcommi_check_no_group("dcomm_codec_decide"));
    DCOMMI_TRY(
        dcommi_shape_begin(comm, DCOMM_COLL_ALLREDUCE, count, dtype, DCOMM_SUM, 0, &opts, &s));
    if (codec->automatic) {
        DCOMMI_TRY(dcommi_auto_begin(comm, codec, count, dtype, DCOMM_SUM, true, &taken, &own));
    }
    *taken_p = dcommi_coded_wanted(&s, &opts) ? taken->codec : NULL;
    return DCOMM_OK;
}

#endif
