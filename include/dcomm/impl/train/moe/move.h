/* move.h - move rows: pack them, exchange them stage by stage, put them where experts or tokens
 * want them.
 *
 * Each way has communicators of its own. On those of a way's first stage, exchanges start in the
 * order of the caller's calls. On those of the other stage they start in the order in which the
 * chunks were started, as they arrive. So all ranks have the same order. */
#ifndef DCOMMI_MOE_MOVE_H
#define DCOMMI_MOE_MOVE_H

#include "route.h"

static inline dcommi_moe_op *dcommi_moe_op_of(const dcomm_moe *m, dcommi_moe_pass pass, int c)
{
    return &m->ops[(size_t)pass * (size_t)m->opts.chunks + (size_t)c];
}

static inline int dcommi_moe_way(dcommi_moe_pass pass)
{
    return pass == DCOMMI_MOE_DISPATCH || pass == DCOMMI_MOE_COMBINE_BACKWARD ? DCOMMI_MOE_FORTH
                                                                              : DCOMMI_MOE_BACK;
}

static inline unsigned char *dcommi_moe_at(const dcomm_moe *m, const dcommi_moe_memory *memory,
                                           const size_t *first, int c)
{
    return memory->at + first[c] * m->stride;
}

/* Return where a chunk begins in the memory of a batch, which is laid out by rows. */
static inline unsigned char *dcommi_moe_batch_at(const dcomm_moe *m, dcommi_moe_pass pass, int c)
{
    int which = pass == DCOMMI_MOE_DISPATCH ? 0 : 1;
    return m->batch[which].at + m->inner.recv_first[c] * m->row;
}

/* ---- exchanges ---- */

/* Start to exchange a chunk's rows of `width` bytes. */
static dcomm_status dcommi_moe_send(dcomm_moe *m, dcommi_moe_stage *s, int way, int c,
                                    const void *in, void *out, size_t width,
                                    dcomm_request **request_p)
{
    size_t n = (size_t)s->n, row = (size_t)c * n, *all = m->scaled + 4 * n;
    const size_t *matrix = dcommi_moe_matrix(s, c);
    const size_t *tables[] = {s->send + row, s->send_at + row, s->recv + row, s->recv_at + row};
    for (int i = 0; i < 4; i++) {
        const size_t *from = tables[way == DCOMMI_MOE_FORTH ? i : (i + 2) % 4];
        for (size_t r = 0; r < n; r++) {
            m->scaled[(size_t)i * n + r] = from[r] * width;
        }
    }
    for (size_t i = 0; i < n * n; i++) {
        all[i] = matrix[way == DCOMMI_MOE_FORTH ? i : i % n * n + i / n] * width;
    }
    dcomm_coll_opts opts = {.timeout_s = m->opts.timeout_s, .matrix = all};
    if (s->n == m->size) {
        opts.algo = m->opts.algo;
    }
    return dcomm_ialltoallv(s->comm[way], in, m->scaled, m->scaled + n, out, m->scaled + 2 * n,
                            m->scaled + 3 * n, DCOMM_U8, &opts, request_p);
}

static inline size_t dcommi_moe_width(const dcomm_moe *m, dcommi_moe_pass pass)
{
    return pass == DCOMMI_MOE_DISPATCH ? m->wire : m->row;
}

/* ---- forth ---- */

static inline void dcommi_moe_permuted(dcomm_moe *m, dcommi_moe_pass pass, double start,
                                       size_t bytes)
{
    if (pass == DCOMMI_MOE_DISPATCH) {
        m->stats.permute_s += dcommi_now() - start;
        m->stats.permute_bytes += bytes;
    }
}

/* Compute the scalar product of each entry's gradient and the row that its expert gave. */
static void dcommi_moe_take_dots(dcomm_moe *m, int c, const unsigned char *source)
{
    const dcommi_moe_stage *s = &m->inner;
    const unsigned char *given = dcommi_moe_at(m, &s->received[DCOMMI_MOE_BACK], s->send_first, c);
    for (size_t e = s->send_first[c]; e < s->send_first[c + 1]; e++) {
        m->dots[m->hier ? s->name[e] : e] =
            dcommi_moe_dot(m, source + (s->from[e] - s->source_first[c]) * m->row,
                           given + (e - s->send_first[c]) * m->row);
    }
}

/* Pack a stage's entries of a chunk from its source rows, and send them. */
static dcomm_status dcommi_moe_forth(dcomm_moe *m, dcommi_moe_stage *s, dcommi_moe_pass pass, int c,
                                     const unsigned char *source)
{
    dcommi_moe_op *op = dcommi_moe_op_of(m, pass, c);
    size_t width = dcommi_moe_width(m, pass), first = s->send_first[c];
    unsigned char *to = dcommi_moe_at(m, &s->sent[DCOMMI_MOE_FORTH], s->send_first, c);
    unsigned char *out = dcommi_moe_at(m, &s->received[DCOMMI_MOE_FORTH], s->recv_first, c);
    if (s->weighted && pass == DCOMMI_MOE_COMBINE_BACKWARD) {
        dcommi_moe_take_dots(m, c, source);
        for (size_t e = first; e < s->send_first[c + 1]; e++) {
            dcommi_moe_scale(m, to + (e - first) * width,
                             source + (s->from[e] - s->source_first[c]) * width, s->weight[e]);
        }
    } else {
        size_t entries = s->send_first[c + 1] - first;
        double start = dcommi_now();
        dcommi_moe_gather(to, source, s->from + first, s->source_first[c], entries, width);
        dcommi_moe_permuted(m, pass, start, entries * width);
    }
    if (s->weighted && dcommi_moe_direct(m) && width == m->row) {
        out = dcommi_moe_batch_at(m, pass, c);
    }
    return dcommi_moe_send(m, s, DCOMMI_MOE_FORTH, c, to, out, width, &op->request);
}

/* Encode the rows of a chunk's tokens that go to any expert. */
static dcomm_status dcommi_moe_encode(dcomm_moe *m, int c, const float *x)
{
    const dcommi_moe_stage *s = dcommi_moe_first(m);
    size_t hidden = m->opts.hidden, bytes = 0;
    for (size_t t = m->chunk_first[c]; t < m->chunk_first[c + 1]; t++) {
        dcomm_codec_key key = {.seed = m->opts.codec_seed,
                               .step = m->steps,
                               .first = (uint64_t)t * hidden,
                               .rank = (uint32_t)m->rank};
        if (s->start[t] == s->start[t + 1]) {
            continue;
        }
        dcomm_status status =
            dcomm_encode(m->codec, x + t * hidden, hidden, &key, m->coded.at + t * m->wire, m->wire,
                         &bytes, m->workspace, NULL);
        if (status < 0) {
            return dcommi_fail(status, "dcomm_moe_dispatch_start: token %zu of rank %d: %.300s", t,
                               m->rank, dcommi_message);
        }
    }
    return DCOMM_OK;
}

/* ---- batches ---- */

typedef struct dcommi_moe_put {
    const dcomm_moe *m;
    unsigned char *arrived, *batch;
    bool back, coded, past;
    dcomm_status status;
} dcommi_moe_put;

static void dcommi_moe_put_piece(void *user, size_t arrived, size_t place, size_t rows)
{
    dcommi_moe_put *p = user;
    const dcomm_moe *m = p->m;
    size_t row = m->row;
    if (p->arrived == p->batch) {
        return; /* the rows are in place */
    }
    if (p->back) {
        dcommi_moe_copy(p->arrived + arrived * row, p->batch + place * row, rows * row, p->past);
    } else if (!p->coded) {
        dcommi_moe_copy(p->batch + place * row, p->arrived + arrived * row, rows * row, p->past);
    } else {
        for (size_t i = 0; i < rows && p->status >= 0; i++) {
            p->status = dcomm_decode(m->codec, p->arrived + (arrived + i) * m->wire, m->wire,
                                     (float *)(p->batch + (place + i) * row), m->opts.hidden);
        }
    }
}

static dcomm_status dcommi_moe_place(dcomm_moe *m, dcommi_moe_pass pass, int c,
                                     unsigned char *batch, bool back)
{
    dcommi_moe_stage *s = &m->inner;
    dcommi_moe_memory *memory = back ? &s->sent[DCOMMI_MOE_BACK] : &s->received[DCOMMI_MOE_FORTH];
    dcommi_moe_put put = {.m = m,
                          .arrived = dcommi_moe_at(m, memory, s->recv_first, c),
                          .batch = batch,
                          .back = back,
                          .past = dcommi_moe_past(dcommi_moe_chunk_rows(m, c) * m->row),
                          .coded = pass == DCOMMI_MOE_DISPATCH && m->codec != NULL};
    bool direct = dcommi_moe_direct(m) && !put.coded;
    if (direct) { /* the rows are in place; only batch_first is missing */
        put.arrived = batch;
    }
    double start = dcommi_now();
    dcommi_moe_pieces(m, c, dcommi_moe_put_piece, &put);
    dcommi_host_copy_close();
    if (!direct && !put.coded) {
        dcommi_moe_permuted(m, pass, start, (s->recv_first[c + 1] - s->recv_first[c]) * m->row);
    }
    return put.status;
}

/* ---- back ---- */

static dcomm_status dcommi_moe_back(dcomm_moe *m, dcommi_moe_stage *s, dcommi_moe_pass pass, int c,
                                    const void *in)
{
    dcommi_moe_op *op = dcommi_moe_op_of(m, pass, c);
    unsigned char *out = dcommi_moe_at(m, &s->received[DCOMMI_MOE_BACK], s->send_first, c);
    return dcommi_moe_send(m, s, DCOMMI_MOE_BACK, c, in, out, m->row, &op->request);
}

/* ---- from stage to stage ---- */

/* Start the second exchange of a chunk, after the first. */
static dcomm_status dcommi_moe_second(dcomm_moe *m, dcommi_moe_pass pass, int c)
{
    dcommi_moe_stage *o = &m->outer, *i = &m->inner;
    dcommi_moe_op_of(m, pass, c)->stage = 1;
    if (dcommi_moe_way(pass) == DCOMMI_MOE_FORTH) {
        return dcommi_moe_forth(m, i, pass, c,
                                dcommi_moe_at(m, &o->received[DCOMMI_MOE_FORTH], o->recv_first, c));
    }
    unsigned char *sums = dcommi_moe_at(m, &o->sent[DCOMMI_MOE_BACK], o->recv_first, c);
    dcommi_moe_sum(m, i, c, sums, dcommi_moe_at(m, &i->received[DCOMMI_MOE_BACK], i->send_first, c),
                   pass == DCOMMI_MOE_COMBINE);
    return dcommi_moe_back(m, o, pass, c, sums);
}

/* Start second exchanges as first ones end. If `upto` is not NULL, wait for all up to its own. */
static dcomm_status dcommi_moe_advance(dcomm_moe *m, int way, const dcommi_moe_op *upto)
{
    dcommi_moe_queue *q = &m->queue[way];
    while (q->first < q->n && (upto == NULL || upto->stage == 0)) {
        struct dcommi_moe_turn turn = q->turns[q->first];
        dcommi_moe_op *op = dcommi_moe_op_of(m, (dcommi_moe_pass)turn.pass, turn.chunk);
        dcomm_status status = upto != NULL ? dcomm_wait(&op->request) : dcomm_test(&op->request);
        if (status == DCOMM_IN_PROGRESS) {
            return DCOMM_OK;
        }
        DCOMMI_TRY(status);
        q->first++;
        DCOMMI_TRY(dcommi_moe_second(m, (dcommi_moe_pass)turn.pass, turn.chunk));
    }
    return DCOMM_OK;
}

static dcomm_status dcommi_moe_move_on(dcomm_moe *m)
{
    DCOMMI_TRY(dcommi_moe_advance(m, DCOMMI_MOE_FORTH, NULL));
    return dcommi_moe_advance(m, DCOMMI_MOE_BACK, NULL);
}

static void dcommi_moe_started(dcomm_moe *m, dcommi_moe_pass pass, int c)
{
    dcommi_moe_queue *q = &m->queue[dcommi_moe_way(pass)];
    dcommi_moe_op *op = dcommi_moe_op_of(m, pass, c);
    op->started = true;
    m->under_way++;
    if (m->hier) {
        q->turns[q->n].pass = (int)pass;
        q->turns[q->n++].chunk = c;
    } else {
        op->stage = 1;
    }
}

static dcomm_status dcommi_moe_finish(dcomm_moe *m, dcommi_moe_pass pass, int c)
{
    dcommi_moe_op *op = dcommi_moe_op_of(m, pass, c);
    DCOMMI_TRY(dcommi_moe_move_on(m));
    DCOMMI_TRY(dcommi_moe_advance(m, dcommi_moe_way(pass), op));
    DCOMMI_TRY(dcomm_wait(&op->request));
    op->done = true;
    m->under_way--;
    return DCOMM_OK;
}

/* ---- gradients of weights ---- */

/* Send the scalar products of chunk c from the gates back to the ranks that have the tokens. */
static dcomm_status dcommi_moe_return_dots(dcomm_moe *m, int c)
{
    size_t n = (size_t)m->size, heard = 0;
    size_t *send = m->scaled, *send_at = send + n, *recv = send + 2 * n, *recv_at = send + 3 * n;
    size_t *all = send + 4 * n;
    for (int from = 0; from < m->size; from++) {
        send_at[from] = heard + dcommi_moe_told_between(m, from, m->rank, 0, c);
        heard += dcommi_moe_told_between(m, from, m->rank, 0, m->opts.chunks);
        recv_at[from] = 0;
        for (int gate = 0; gate < m->size; gate++) {
            all[gate * m->size + from] = dcommi_moe_told_between(m, from, gate, c, c + 1);
        }
    }
    dcommi_moe_own_counts(all, m->size, m->rank, send, recv);
    for (int h = 0; h < m->nhosts; h++) {
        recv_at[m->gate[h]] = dcommi_moe_told_before(m, h, c);
    }
    dcomm_coll_opts opts = {.timeout_s = m->opts.timeout_s, .matrix = all};
    return dcomm_alltoallv(m->comm, m->dots, send, send_at, m->dots_back, recv, recv_at, DCOMM_F32,
                           &opts);
}

static dcomm_status dcommi_moe_give_dots(dcomm_moe *m, int c, float *dweights)
{
    size_t k = (size_t)m->opts.k;
    if (m->hier) {
        DCOMMI_TRY(dcommi_moe_return_dots(m, c));
    }
    if (dweights == NULL || m->chunk_first[c] == m->chunk_first[c + 1]) {
        return DCOMM_OK;
    }
    memset(dweights + m->chunk_first[c] * k, 0,
           (m->chunk_first[c + 1] - m->chunk_first[c]) * k * sizeof *dweights);
    const dcommi_moe_stage *s = &m->inner;
    for (size_t e = s->send_first[c]; e < s->send_first[c + 1] && !m->hier; e++) {
        dweights[s->name[e]] = m->dots[e];
    }
    for (int h = 0; h < m->nhosts && m->hier; h++) {
        size_t at = dcommi_moe_told_before(m, h, c);
        for (int i = m->host_first[h]; i < m->host_first[h + 1]; i++) {
            size_t end = at + dcommi_moe_between(m, m->rank, m->host_ranks[i], c);
            for (; at < end; at++) {
                dweights[m->told_slot[at]] = m->dots_back[at];
            }
        }
    }
    return DCOMM_OK;
}

#endif
