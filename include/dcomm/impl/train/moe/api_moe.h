/* api_moe.h - the public calls on experts. */
#ifndef DCOMMI_API_MOE_H
#define DCOMMI_API_MOE_H

#include "move.h"

/* ---- life ---- */

static dcomm_status dcommi_moe_check_opts(const dcomm_moe *m, const dcomm_moe_opts *o)
{
    size_t most = (size_t)INT32_MAX;
    const char *wrong = o->experts < 1 || o->experts > most / 8 / (size_t)m->size ? "experts"
                        : o->hidden < 1 || o->hidden > most / 8                   ? "hidden"
                        : o->k < 1 || o->k > DCOMM_MOE_K_MAX                      ? "k"
                        : o->dtype != DCOMM_F32 && o->dtype != DCOMM_F16 && o->dtype != DCOMM_BF16
                            ? "dtype"
                        : !(o->capacity >= 0 && o->capacity <= 1e9) ? "capacity"
                        : (unsigned)o->policy > DCOMM_MOE_REROUTE   ? "policy"
                        : o->chunks < 0 || o->chunks > 1024         ? "chunks"
                        : (unsigned)o->form > DCOMM_MOE_HIER        ? "form"
                        : !(o->timeout_s >= 0)                      ? "timeout_s"
                                                                    : NULL;
    if (wrong != NULL) {
        return dcommi_fail(DCOMM_ERR_INVALID,
                           "dcomm_moe_create: opts.%s is out of range (experts %zu, hidden %zu, "
                           "k %d, dtype %d, capacity %g, policy %d, chunks %d, form %d)",
                           wrong, o->experts, o->hidden, o->k, (int)o->dtype, o->capacity,
                           (int)o->policy, o->chunks, (int)o->form);
    }
    for (size_t e = 0; e < o->experts && o->owner != NULL; e++) {
        if (o->owner[e] < 0 || o->owner[e] >= m->size) {
            return dcommi_fail(DCOMM_ERR_INVALID,
                               "dcomm_moe_create: opts.owner[%zu] is %d, which is not one of the "
                               "%d ranks",
                               e, o->owner[e], m->size);
        }
    }
    return DCOMM_OK;
}

static dcomm_status dcommi_moe_take_codec(dcomm_moe *m, const char *spec)
{
    dcomm_codec_info info;
    m->row = m->wire = m->stride = m->opts.hidden * dcomm_dtype_size(m->opts.dtype);
    if (spec == NULL || strcmp(spec, "none") == 0) {
        return DCOMM_OK;
    }
    DCOMMI_TRY(dcomm_codec_create(spec, &m->codec));
    DCOMMI_TRY(dcomm_codec_get_info(m->codec, m->opts.hidden, &info));
    if (m->opts.dtype != DCOMM_F32 || !info.exact_bytes || info.linear || m->codec->automatic) {
        return dcommi_fail(DCOMM_ERR_UNSUPPORTED,
                           "dcomm_moe_create: opts.codec \"%.80s\" cannot encode rows of %s: rows "
                           "must be f32, and all wires of the codec must have one length",
                           spec, dcomm_dtype_name(m->opts.dtype));
    }
    m->wire = info.max_bytes;
    m->stride = m->wire > m->row ? m->wire : m->row;
    m->workspace = dcommi_alloc_raw(dcomm_codec_workspace_bytes(m->codec, m->opts.hidden));
    return m->workspace != NULL ? DCOMM_OK : DCOMM_ERR_NO_MEMORY;
}

static dcomm_status dcommi_moe_take_algo(dcomm_moe *m, const char *name)
{
    m->opts.algo = NULL;
    if (name == NULL || strcmp(name, "auto") == 0) {
        return DCOMM_OK;
    }
    const dcommi_algo *algo = dcommi_algo_find(DCOMM_COLL_ALLTOALLV, name);
    if (algo == NULL) {
        return dcommi_fail(DCOMM_ERR_UNSUPPORTED,
                           "dcomm_moe_create: all-to-all-v has no algorithm \"%.80s\" (opts.algo)",
                           name);
    }
    m->opts.algo = algo->name;
    return DCOMM_OK;
}

static void dcommi_moe_order_experts(dcomm_moe *m, const int *owner)
{
    size_t at = 0, experts = m->opts.experts;
    for (size_t e = 0; e < experts; e++) {
        m->owner[e] = owner != NULL ? owner[e] : (int)(e * (size_t)m->size / experts);
    }
    for (int r = 0; r < m->size; r++) {
        m->place_first[r] = at;
        for (size_t e = 0; e < experts; e++) {
            if (m->owner[e] == r) {
                m->place[e] = (uint32_t)at;
                m->expert_at[at++] = (int)e;
            }
        }
    }
    m->place_first[m->size] = at;
}

static void dcommi_moe_order_hosts(dcomm_moe *m)
{
    int at = 0;
    for (int h = 0; h < m->nhosts; h++) {
        m->host_first[h] = at;
        for (int r = 0; r < m->size; r++) {
            if (m->host_of[r] == h) {
                m->seat[r] = at - m->host_first[h];
                m->host_ranks[at++] = r;
            }
        }
    }
    m->host_first[m->nhosts] = at;
    for (int h = 0; h < m->nhosts; h++) {
        m->gate[h] = dcommi_moe_gate(m, m->rank, h);
    }
}

static dcomm_status dcommi_moe_tables_make(dcomm_moe *m, const int *owner)
{
    size_t n = (size_t)m->size, experts = m->opts.experts, chunks = (size_t)m->opts.chunks;
    struct {
        void **at;
        size_t n, size;
    } all[] = {
        {(void **)&m->owner, experts, sizeof *m->owner},
        {(void **)&m->expert_at, experts, sizeof *m->expert_at},
        {(void **)&m->place, experts, sizeof *m->place},
        {(void **)&m->place_first, n + 1, sizeof *m->place_first},
        {(void **)&m->host_of, n, sizeof *m->host_of},
        {(void **)&m->seat, n, sizeof *m->seat},
        {(void **)&m->host_ranks, n, sizeof *m->host_ranks},
        {(void **)&m->host_first, n + 1, sizeof *m->host_first},
        {(void **)&m->gate, n, sizeof *m->gate},
        {(void **)&m->seen, n, sizeof *m->seen},
        {(void **)&m->cursor, experts + n, sizeof *m->cursor},
        {(void **)&m->scaled, (4 + n) * n, sizeof *m->scaled},
        {(void **)&m->chunk_first, chunks + 1, sizeof *m->chunk_first},
        {(void **)&m->ops, DCOMMI_MOE_PASSES * chunks, sizeof *m->ops},
        {(void **)&m->queue[0].turns, 2 * chunks, sizeof *m->queue[0].turns},
        {(void **)&m->queue[1].turns, 2 * chunks, sizeof *m->queue[1].turns},
        {(void **)&m->by_place, experts, sizeof *m->by_place},
        {(void **)&m->demand, experts, sizeof *m->demand},
        {(void **)&m->load, experts, sizeof *m->load},
        {(void **)&m->rank_rows, n, sizeof *m->rank_rows},
        {(void **)&m->rank_bytes, n, sizeof *m->rank_bytes},
        {(void **)&m->traffic, n, sizeof *m->traffic},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if ((*all[i].at = dcommi_calloc(all[i].n, all[i].size)) == NULL) {
            return DCOMM_ERR_NO_MEMORY;
        }
    }
    for (int r = 0; r < m->size; r++) {
        m->host_of[r] = dcomm_comm_host(m->comm, r);
        m->nhosts = m->host_of[r] >= m->nhosts ? m->host_of[r] + 1 : m->nhosts;
    }
    dcommi_moe_order_experts(m, owner);
    dcommi_moe_order_hosts(m);
    size_t local = m->place_first[m->rank + 1] - m->place_first[m->rank];
    m->card_len = DCOMMI_MOE_HEAD + chunks * (experts + (size_t)m->nhosts);
    m->card = dcommi_calloc(m->card_len, sizeof *m->card);
    m->cards = dcommi_calloc(n * m->card_len, sizeof *m->cards);
    m->seg_at = dcommi_calloc(local * n, sizeof *m->seg_at);
    m->batch_first = dcommi_calloc(local + 1, sizeof *m->batch_first);
    if (m->card == NULL || m->cards == NULL || m->seg_at == NULL || m->batch_first == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    DCOMMI_TRY(dcommi_moe_stage_make(m, &m->inner, m->comm, m->comm));
    m->inner.weighted = true;
    return dcommi_moe_stage_make(m, &m->outer, m->comm, m->comm);
}

static dcomm_status dcommi_moe_prepare(dcomm_moe *m, const dcomm_moe_opts *opts)
{
    DCOMMI_TRY(dcommi_moe_check_opts(m, opts));
    m->opts = *opts;
    m->opts.owner = NULL;
    m->opts.codec = NULL;
    m->opts.chunks = opts->chunks > 0 ? opts->chunks : 1;
    DCOMMI_TRY(dcommi_moe_take_algo(m, opts->algo));
    DCOMMI_TRY(dcommi_moe_take_codec(m, opts->codec));
    DCOMMI_TRY(dcommi_moe_tables_make(m, opts->owner));
    if (opts->form == DCOMM_MOE_HIER && (m->nhosts == 1 || m->nhosts == m->size)) {
        return dcommi_fail(
            DCOMM_ERR_UNSUPPORTED,
            "dcomm_moe_create: opts.form is DCOMM_MOE_HIER, and %d ranks on %d hosts "
            "have no hierarchy",
            m->size, m->nhosts);
    }
    return DCOMM_OK;
}

/* Create the experts. All ranks call this, on the experts' own communicator. */
static dcomm_status dcommi_moe_make(dcomm_moe *m, const dcomm_moe_opts *opts)
{
    DCOMMI_TRY(dcommi_all_good(m->comm, dcommi_moe_prepare(m, opts), 0));
    DCOMMI_TRY(dcommi_moe_agree(m));
    DCOMMI_TRY(dcomm_comm_dup(m->comm, &m->back));
    m->outer.comm[DCOMMI_MOE_FORTH] = m->comm;
    m->outer.comm[DCOMMI_MOE_BACK] = m->back;
    bool tiers = m->nhosts > 1 && m->nhosts < m->size;
    for (int way = 0; way < DCOMMI_MOE_WAYS && tiers && opts->form != DCOMM_MOE_FLAT; way++) {
        DCOMMI_TRY(dcomm_comm_split(m->comm, m->host_of[m->rank], m->seat[m->rank], &m->host[way]));
    }
    return DCOMM_OK;
}

static void dcommi_moe_free(dcomm_moe *m)
{
    void *all[] = {
        m->owner,          m->expert_at,  m->place,       m->place_first, m->host_of,
        m->seat,           m->host_ranks, m->host_first,  m->gate,        m->seen,
        m->cursor,         m->scaled,     m->chunk_first, m->ops,         m->queue[0].turns,
        m->queue[1].turns, m->by_place,   m->demand,      m->load,        m->rank_rows,
        m->rank_bytes,     m->traffic,    m->card,        m->cards,       m->seg_at,
        m->batch_first,    m->slots,      m->weights,     m->dots,        m->dots_back,
        m->told,           m->heard,      m->told_slot,   m->workspace};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        dcommi_free(all[i]);
    }
    dcommi_moe_stage_free(&m->inner);
    dcommi_moe_stage_free(&m->outer);
    dcommi_moe_release(&m->batch[0]);
    dcommi_moe_release(&m->batch[1]);
    dcommi_moe_release(&m->coded);
    dcomm_codec_destroy(&m->codec);
    dcommi_free(m);
}

DCOMM_API dcomm_status dcomm_moe_create(dcomm_comm *comm, const dcomm_moe_opts *opts,
                                        dcomm_moe **m_p)
{
    DCOMMI_NEED(comm);
    DCOMMI_NEED(opts);
    DCOMMI_NEED(m_p);
    *m_p = NULL;
    dcomm_comm *own = NULL;
    DCOMMI_TRY(dcomm_comm_dup(comm, &own));
    dcomm_moe *m = dcommi_alloc(sizeof *m);
    if (m == NULL) {
        dcomm_comm_abort(own, "no memory for experts");
        dcomm_comm_destroy(&own);
        return dcommi_fail(DCOMM_ERR_NO_MEMORY, "dcomm_moe_create: no memory");
    }
    m->comm = own;
    m->rank = own->rank;
    m->size = own->size;
    dcomm_status status = dcommi_moe_make(m, opts);
    if (status < 0) {
        char why[DCOMMI_MESSAGE_MAX];
        snprintf(why, sizeof why, "%s", dcomm_last_error());
        dcomm_moe_destroy(&m);
        return dcommi_fail(status, "%s", why);
    }
    *m_p = m;
    return DCOMM_OK;
}

DCOMM_API dcomm_status dcomm_moe_destroy(dcomm_moe **m_p)
{
    if (m_p == NULL || *m_p == NULL) {
        return DCOMM_OK;
    }
    DCOMMI_TRY(dcommi_check_fork());
    dcomm_moe *m = *m_p;
    *m_p = NULL;
    if (m->under_way > 0) {
        dcommi_fail(DCOMM_ERR_ABORTED, "rank %d destroyed its experts in the middle of a step",
                    m->rank);
        dcommi_moe_fail(m, DCOMM_ERR_ABORTED);
    }
    for (int i = 0; m->ops != NULL && i < DCOMMI_MOE_PASSES * m->opts.chunks; i++) {
        dcommi_drain(&m->ops[i].request);
    }
    dcomm_status status = DCOMM_OK;
    dcomm_comm **all[] = {&m->host[0], &m->host[1], &m->back, &m->comm};
    for (int i = 0; i < 4; i++) {
        dcomm_status one = dcomm_comm_destroy(all[i]);
        DCOMMI_THEN(status, one);
    }
    dcommi_moe_free(m);
    return status;
}

/* ---- a step ---- */

static const char *const dcommi_moe_pass_names[DCOMMI_MOE_PASSES] = {
    "dcomm_moe_dispatch", "dcomm_moe_combine", "dcomm_moe_combine_backward",
    "dcomm_moe_dispatch_backward"};

static void dcommi_moe_enter(dcomm_moe *m)
{
    m->expert_s += m->left_at > 0 ? dcommi_now() - m->left_at : 0;
}

/* Return the status of a call. After an error the step cannot go on. */
static dcomm_status dcommi_moe_leave(dcomm_moe *m, dcomm_status status)
{
    m->left_at = m->at_work > 0 ? dcommi_now() : 0;
    return status < 0 ? dcommi_moe_fail(m, status) : DCOMM_OK;
}

/* Check that a pass may start: once in a step, after the pass before it is over. */
static dcomm_status dcommi_moe_may_start(dcomm_moe *m, dcommi_moe_pass pass, int c,
                                         const void *rows, size_t nrows)
{
    const char *name = dcommi_moe_pass_names[pass];
    if (c < 0 || c >= m->opts.chunks) {
        return dcommi_fail(DCOMM_ERR_INVALID, "%s_start: rank %d: c is %d; there are %d chunks",
                           name, m->rank, c, m->opts.chunks);
    }
    bool first = pass == DCOMMI_MOE_DISPATCH;
    if (m->steps == 0 || dcommi_moe_op_of(m, pass, c)->started ||
        (!first && !dcommi_moe_op_of(m, pass - 1, c)->done)) {
        return dcommi_fail(DCOMM_ERR_INVALID, "%s_start: rank %d: chunk %d %s", name, m->rank, c,
                           m->steps == 0 ? "starts before any dcomm_moe_route"
                           : dcommi_moe_op_of(m, pass, c)->started
                               ? "has been started in this step"
                               : "must first be waited for in the pass before this one");
    }
    if (rows == NULL && nrows > 0) {
        return dcommi_fail(DCOMM_ERR_INVALID,
                           "%s_start: rank %d: rows of chunk %d is NULL, for %zu rows", name,
                           m->rank, c, nrows);
    }
    return dcommi_moe_on_host(m, name, "rows", rows);
}

static dcomm_status dcommi_moe_may_wait(dcomm_moe *m, dcommi_moe_pass pass, int c, bool good,
                                        const void *to)
{
    if (c < 0 || c >= m->opts.chunks || !dcommi_moe_op_of(m, pass, c)->started ||
        dcommi_moe_op_of(m, pass, c)->done) {
        return dcommi_fail(DCOMM_ERR_INVALID,
                           "%s_wait: rank %d: chunk %d of %d was not started, or has been waited "
                           "for",
                           dcommi_moe_pass_names[pass], m->rank, c, m->opts.chunks);
    }
    return good ? dcommi_moe_on_host(m, dcommi_moe_pass_names[pass], "results", to)
                : dcommi_fail(DCOMM_ERR_INVALID,
                              "%s_wait: rank %d: the place for the result is NULL",
                              dcommi_moe_pass_names[pass], m->rank);
}

static inline size_t dcommi_moe_chunk_tokens(const dcomm_moe *m, int c)
{
    return c >= 0 && c < m->opts.chunks ? m->chunk_first[c + 1] - m->chunk_first[c] : 0;
}

static dcomm_status dcommi_moe_start_forth(dcomm_moe *m, dcommi_moe_pass pass, int c, const void *x)
{
    DCOMMI_TRY(dcommi_moe_may_start(m, pass, c, x, dcommi_moe_chunk_tokens(m, c)));
    size_t width = dcommi_moe_width(m, pass);
    const unsigned char *source = x;
    if (pass == DCOMMI_MOE_COMBINE_BACKWARD) {
        DCOMMI_TRY(dcommi_moe_gradient_room(m));
    } else if (m->codec != NULL) {
        DCOMMI_TRY(dcommi_moe_encode(m, c, x));
        source = m->coded.at;
    }
    source = source != NULL ? source + m->chunk_first[c] * width : NULL;
    DCOMMI_TRY(dcommi_moe_forth(m, dcommi_moe_first(m), pass, c, source));
    dcommi_moe_started(m, pass, c);
    return dcommi_moe_move_on(m);
}

static dcomm_status dcommi_moe_wait_forth(dcomm_moe *m, dcommi_moe_pass pass, int c,
                                          dcomm_moe_batch *batch, const float *dweights)
{
    DCOMMI_TRY(dcommi_moe_may_wait(m, pass, c, batch != NULL, dweights));
    DCOMMI_TRY(dcommi_moe_finish(m, pass, c));
    unsigned char *rows = dcommi_moe_batch_at(m, pass, c);
    DCOMMI_TRY(dcommi_moe_place(m, pass, c, rows, false));
    size_t first = m->place_first[m->rank];
    batch->nrows = dcommi_moe_chunk_rows(m, c);
    batch->rows = batch->nrows > 0 ? rows : NULL;
    batch->nexperts = m->place_first[m->rank + 1] - first;
    batch->experts = m->expert_at + first;
    batch->first = m->batch_first;
    return DCOMM_OK;
}

static dcomm_status dcommi_moe_start_back(dcomm_moe *m, dcommi_moe_pass pass, int c,
                                          const void *rows)
{
    DCOMMI_TRY(dcommi_moe_may_start(m, pass, c, rows, dcommi_moe_chunk_rows(m, c)));
    dcommi_moe_stage *s = &m->inner;
    const void *in = rows;
    if (!dcommi_moe_direct(m)) {
        in = dcommi_moe_at(m, &s->sent[DCOMMI_MOE_BACK], s->recv_first, c);
        DCOMMI_TRY(dcommi_moe_place(m, pass, c, (unsigned char *)(uintptr_t)rows, true));
    }
    DCOMMI_TRY(dcommi_moe_back(m, s, pass, c, in));
    dcommi_moe_started(m, pass, c);
    return dcommi_moe_move_on(m);
}

static dcomm_status dcommi_moe_wait_back(dcomm_moe *m, dcommi_moe_pass pass, int c, void *y)
{
    DCOMMI_TRY(dcommi_moe_may_wait(m, pass, c, y != NULL || dcommi_moe_chunk_tokens(m, c) == 0, y));
    DCOMMI_TRY(dcommi_moe_finish(m, pass, c));
    dcommi_moe_stage *s = dcommi_moe_first(m);
    if (dcommi_moe_chunk_tokens(m, c) > 0) {
        dcommi_moe_sum(m, s, c, (unsigned char *)y + m->chunk_first[c] * m->row,
                       dcommi_moe_at(m, &s->received[DCOMMI_MOE_BACK], s->send_first, c),
                       s->weighted && pass == DCOMMI_MOE_COMBINE);
    }
    return DCOMM_OK;
}

DCOMM_API dcomm_status dcomm_moe_route(dcomm_moe *m, size_t tokens, const int32_t *experts,
                                       const float *weights)
{
    DCOMMI_TRY(dcommi_moe_check("dcomm_moe_route", m));
    return dcommi_moe_route(m, tokens, experts, weights);
}

DCOMM_API dcomm_status dcomm_moe_dispatch_start(dcomm_moe *m, int c, const void *x)
{
    DCOMMI_TRY(dcommi_moe_check("dcomm_moe_dispatch_start", m));
    dcommi_moe_enter(m);
    return dcommi_moe_leave(m, dcommi_moe_start_forth(m, DCOMMI_MOE_DISPATCH, c, x));
}

DCOMM_API dcomm_status dcomm_moe_dispatch_wait(dcomm_moe *m, int c, dcomm_moe_batch *batch)
{
    DCOMMI_TRY(dcommi_moe_check("dcomm_moe_dispatch_wait", m));
    dcommi_moe_enter(m);
    dcomm_status status = dcommi_moe_wait_forth(m, DCOMMI_MOE_DISPATCH, c, batch, NULL);
    m->at_work++;
    return dcommi_moe_leave(m, status);
}

DCOMM_API dcomm_status dcomm_moe_combine_start(dcomm_moe *m, int c, const void *rows)
{
    DCOMMI_TRY(dcommi_moe_check("dcomm_moe_combine_start", m));
    dcommi_moe_enter(m);
    m->at_work--;
    return dcommi_moe_leave(m, dcommi_moe_start_back(m, DCOMMI_MOE_COMBINE, c, rows));
}

DCOMM_API dcomm_status dcomm_moe_combine_wait(dcomm_moe *m, int c, void *y)
{
    DCOMMI_TRY(dcommi_moe_check("dcomm_moe_combine_wait", m));
    dcommi_moe_enter(m);
    return dcommi_moe_leave(m, dcommi_moe_wait_back(m, DCOMMI_MOE_COMBINE, c, y));
}

DCOMM_API dcomm_status dcomm_moe_combine_backward_start(dcomm_moe *m, int c, const void *dy)
{
    DCOMMI_TRY(dcommi_moe_check("dcomm_moe_combine_backward_start", m));
    return dcommi_moe_leave(m, dcommi_moe_start_forth(m, DCOMMI_MOE_COMBINE_BACKWARD, c, dy));
}

DCOMM_API dcomm_status dcomm_moe_combine_backward_wait(dcomm_moe *m, int c, float *dweights,
                                                       dcomm_moe_batch *batch)
{
    DCOMMI_TRY(dcommi_moe_check("dcomm_moe_combine_backward_wait", m));
    dcomm_status status = dcommi_moe_wait_forth(m, DCOMMI_MOE_COMBINE_BACKWARD, c, batch, dweights);
    DCOMMI_THEN(status, dcommi_moe_give_dots(m, c, dweights));
    return dcommi_moe_leave(m, status);
}

DCOMM_API dcomm_status dcomm_moe_dispatch_backward_start(dcomm_moe *m, int c, const void *rows)
{
    DCOMMI_TRY(dcommi_moe_check("dcomm_moe_dispatch_backward_start", m));
    return dcommi_moe_leave(m, dcommi_moe_start_back(m, DCOMMI_MOE_DISPATCH_BACKWARD, c, rows));
}

DCOMM_API dcomm_status dcomm_moe_dispatch_backward_wait(dcomm_moe *m, int c, void *dx)
{
    DCOMMI_TRY(dcommi_moe_check("dcomm_moe_dispatch_backward_wait", m));
    return dcommi_moe_leave(m, dcommi_moe_wait_back(m, DCOMMI_MOE_DISPATCH_BACKWARD, c, dx));
}

DCOMM_API dcomm_status dcomm_moe_progress(dcomm_moe *m)
{
    DCOMMI_TRY(dcommi_moe_check("dcomm_moe_progress", m));
    dcommi_moe_enter(m);
    dcomm_status status = dcomm_context_progress(m->comm->context);
    DCOMMI_THEN(status, dcommi_moe_move_on(m));
    return dcommi_moe_leave(m, status);
}

/* ---- information ---- */

DCOMM_API dcomm_status dcomm_moe_get_stats(const dcomm_moe *m, dcomm_moe_stats *stats)
{
    DCOMMI_NEED(m);
    DCOMMI_NEED(stats);
    if (m->steps == 0) {
        return dcommi_fail(DCOMM_ERR_INVALID, "dcomm_moe_get_stats: nothing has been routed yet");
    }
    *stats = m->stats;
    stats->demand = m->demand;
    stats->load = m->load;
    stats->rank_rows = m->rank_rows;
    stats->rank_bytes = m->rank_bytes;
    return DCOMM_OK;
}

#endif
