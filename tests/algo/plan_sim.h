/* plan_sim.h - runs the plans of all ranks in one thread on real memory, for tests: lanes in random
 * order, no message buffered, real folds. An oracle that shares no code with the engine. */
#ifndef PLAN_SIM_H
#define PLAN_SIM_H

#include "dcomm/impl/plan/build.h"

typedef struct sim_lane {
    uint32_t pc, open[DCOMM_LOOP_DEPTH];
    int depth;
    int64_t index[DCOMM_LOOP_DEPTH], trips[DCOMM_LOOP_DEPTH];
    bool posted; /* the step at pc is under way */
    int outstanding;
} sim_lane;

/* A message of which one side has come. */
typedef struct sim_post {
    int from, to;
    int64_t tag;
    int rank;
    uint32_t lane, step;
    int64_t index[DCOMM_LOOP_DEPTH];
    bool used;
} sim_post;

typedef struct sim_rank {
    const dcomm_plan *plan;
    unsigned char *space[DCOMM_SPACE_MSG];
    sim_lane lane[DCOMM_PLAN_MAX_LANES];
    int64_t *counter;
    unsigned char **exposed; /* [slot][reader] */
} sim_rank;

typedef struct sim {
    int n;
    sim_rank *rank;
    sim_post *post;
    size_t nposts, capacity;
    uint64_t seed;
    int64_t *sent; /* payload bytes sent or read, by rank */
    char why[256];
} sim;

static double sim_get(const void *p, int64_t i, dcomm_dtype dtype)
{
    if (dtype == DCOMM_F32) {
        float f;
        memcpy(&f, (const char *)p + 4 * i, 4);
        return f;
    }
    if (dtype == DCOMM_BF16) { /* the upper half of an f32 */
        uint32_t bits = (uint32_t)((const uint16_t *)p)[i] << 16;
        float f;
        memcpy(&f, &bits, 4);
        return f;
    }
    return ((const uint8_t *)p)[i];
}

/* To the nearest bf16, ties to even. */
static void sim_put_bf16(void *p, int64_t i, float f)
{
    uint32_t bits;
    memcpy(&bits, &f, 4);
    bits += 0x7fff + (bits >> 16 & 1);
    ((uint16_t *)p)[i] = (uint16_t)(bits >> 16);
}

/* Folds in f32 (or u8) step by step, so that the order of operands shows in the bits. */
static void sim_fold(const dcomm_plan *p, unsigned char *dst, unsigned char *const *src, size_t n,
                     int64_t len, bool final)
{
    int64_t size = p->dtype == DCOMM_F32 ? 4 : p->dtype == DCOMM_BF16 ? 2 : 1;
    for (int64_t i = 0; i < len / size; i++) {
        if (size > 1) {
            dcomm_dtype dtype = (dcomm_dtype)p->dtype;
            float sum = (float)sim_get(src[0], i, dtype);
            for (size_t k = 1; k < n; k++) {
                sum += (float)sim_get(src[k], i, dtype);
            }
            sum = final && p->op == DCOMM_AVG ? sum / (float)p->nranks : sum;
            if (size == 4) {
                memcpy(dst + 4 * i, &sum, 4);
            } else {
                sim_put_bf16(dst, i, sum);
            }
        } else {
            uint8_t sum = src[0][i];
            for (size_t k = 1; k < n; k++) {
                sum = (uint8_t)(sum + src[k][i]);
            }
            dst[i] = sum;
        }
    }
}

static int64_t sim_value(const sim_rank *r, const dcomm_expr *e, const int64_t *index)
{
    return dcommi_expr_value(e, index, r->plan->table, NULL);
}

/* Piece k of an operand; NULL: not exposed yet. */
static unsigned char *sim_piece(sim *s, int rank, const dcomm_operand *o, uint32_t k,
                                const int64_t *index, int64_t *length)
{
    sim_rank *r = &s->rank[rank];
    int64_t at;
    dcommi_operand_piece(o, k, index, r->plan->table, NULL, &at, length);
    if (o->space == DCOMM_SPACE_PEER) {
        int64_t peer = (sim_value(r, &o->peer, index) + k) % s->n;
        unsigned char *base = s->rank[peer].exposed[o->slot * s->n + rank];
        return base == NULL ? NULL : base + at;
    }
    int64_t room = o->space == DCOMM_SPACE_IN    ? r->plan->in_bytes
                   : o->space == DCOMM_SPACE_OUT ? r->plan->out_bytes
                                                 : r->plan->scratch_bytes;
    if (*length > 0 && (at < 0 || at + *length > room)) {
        snprintf(s->why, sizeof s->why,
                 "rank %d: [%" PRId64 ", +%" PRId64 ") of %" PRId64 " bytes in space %d", rank, at,
                 *length, room, o->space);
    }
    return r->space[o->space] + (*length > 0 ? at : 0);
}

/* Gather the sources of a step and fold or copy; false: a peer has not exposed yet. */
static bool sim_transform(sim *s, int rank, const dcomm_step *st, const int64_t *index,
                          unsigned char *message)
{
    sim_rank *r = &s->rank[rank];
    unsigned char *src[4096];
    size_t n = 0;
    int64_t len = 0, out_len, read = 0;
    unsigned char *dst = sim_piece(s, rank, &st->dst, 0, index, &out_len);
    for (uint32_t i = 0; i < st->nsrc; i++) {
        const dcomm_operand *o = &r->plan->operands[st->src + i];
        for (uint32_t k = 0; k < (o->repeat == 0 ? 1 : o->repeat); k++) {
            src[n] = o->space == DCOMM_SPACE_MSG ? message : sim_piece(s, rank, o, k, index, &len);
            if (src[n] == NULL) {
                return false;
            }
            read += o->space == DCOMM_SPACE_PEER ? len : 0;
            if (o->space != DCOMM_SPACE_MSG && len != out_len) {
                snprintf(s->why, sizeof s->why, "rank %d: %" PRId64 " bytes into %" PRId64, rank,
                         len, out_len);
            }
            n++;
        }
    }
    s->sent[rank] += read;
    if (s->why[0] != 0) {
        return true;
    }
    if (st->kind == DCOMM_STEP_COPY) {
        memmove(dst, src[0], (size_t)out_len);
    } else {
        sim_fold(r->plan, dst, src, n, out_len, (st->flags & DCOMM_STEP_FINAL) != 0);
    }
    return true;
}

static void sim_done(sim *s, int rank, uint32_t lane, const dcomm_step *st)
{
    sim_lane *l = &s->rank[rank].lane[lane];
    if (st->flags & DCOMM_STEP_ASYNC) {
        l->outstanding--;
    } else {
        l->posted = false;
        l->pc++;
    }
}

/* Deliver a message whose two sides are there. */
static void sim_match(sim *s, const sim_post *send, const sim_post *recv)
{
    const dcomm_plan *sp = s->rank[send->rank].plan, *rp = s->rank[recv->rank].plan;
    const dcomm_step *ss = &sp->steps[send->step], *rs = &rp->steps[recv->step];
    int64_t slen, rlen;
    unsigned char *src = sim_piece(s, send->rank, &sp->operands[ss->src], 0, send->index, &slen);
    unsigned char *dst = sim_piece(s, recv->rank, &rs->dst, 0, recv->index, &rlen);
    if (slen != rlen && s->why[0] == 0) {
        snprintf(s->why, sizeof s->why, "%d -> %d tag %" PRId64 ": %" PRId64 " bytes into %" PRId64,
                 send->rank, recv->rank, send->tag, slen, rlen);
    }
    if (s->why[0] == 0) {
        s->sent[send->rank] += slen;
        if (rs->kind == DCOMM_STEP_RECV) {
            memcpy(dst, src, (size_t)slen);
        } else {
            sim_transform(s, recv->rank, rs, recv->index, src);
        }
    }
    sim_done(s, send->rank, send->lane, ss);
    sim_done(s, recv->rank, recv->lane, rs);
}

static void sim_offer(sim *s, sim_post post, bool sends)
{
    for (size_t i = 0; i < s->nposts; i++) {
        sim_post *p = &s->post[i];
        if (p->from == post.from && p->to == post.to && p->tag == post.tag) {
            if (p->rank == post.rank) {
                snprintf(s->why, sizeof s->why, "tag %" PRId64 " from %d to %d is used twice",
                         post.tag, post.from, post.to);
                return;
            }
            sim_post other = *p;
            *p = s->post[--s->nposts];
            sim_match(s, sends ? &post : &other, sends ? &other : &post);
            return;
        }
    }
    dcommi_grow((void **)&s->post, &s->capacity, s->nposts + 1, sizeof post);
    s->post[s->nposts++] = post;
}

/* One step of a lane, if it can; false: it cannot go on. */
static bool sim_step(sim *s, int rank, uint32_t lane)
{
    sim_rank *r = &s->rank[rank];
    const dcomm_plan *p = r->plan;
    sim_lane *l = &r->lane[lane];
    if (l->posted || l->pc == p->lanes[lane].count) {
        return false;
    }
    uint32_t at = p->lanes[lane].first + l->pc;
    const dcomm_step *st = &p->steps[at];
    int64_t peer = sim_value(r, &st->peer, l->index), len;
    switch (st->kind) {
    case DCOMM_STEP_LOOP:
        l->open[l->depth] = l->pc;
        l->trips[l->depth] = sim_value(r, &st->value, l->index);
        if (l->trips[l->depth] == 0) {
            l->pc += st->body + 2;
            return true;
        }
        l->index[l->depth++] = 0;
        l->pc++;
        return true;
    case DCOMM_STEP_END:
        if (++l->index[l->depth - 1] < l->trips[l->depth - 1]) {
            l->pc = l->open[l->depth - 1] + 1;
        } else {
            l->index[--l->depth] = 0;
            l->pc++;
        }
        return true;
    case DCOMM_STEP_FENCE:
        l->pc += l->outstanding == 0;
        return l->outstanding == 0;
    case DCOMM_STEP_WAIT:
        if (r->counter[st->slot] < sim_value(r, &st->value, l->index)) {
            return false;
        }
        l->pc++;
        return true;
    case DCOMM_STEP_SIGNAL:
        for (int i = 0; i < s->n; i++) {
            if (i == peer || (peer == DCOMM_ALL_PEERS && i != rank)) {
                s->rank[i].counter[st->slot] += sim_value(r, &st->value, l->index);
            }
        }
        l->pc++;
        return true;
    case DCOMM_STEP_EXPOSE:
        for (int i = 0; i < s->n; i++) {
            if (i == peer || peer == DCOMM_ALL_PEERS) {
                r->exposed[st->slot * s->n + i] =
                    sim_piece(s, rank, &p->operands[st->src], 0, l->index, &len);
            }
        }
        l->pc++;
        return true;
    case DCOMM_STEP_COPY:
    case DCOMM_STEP_REDUCE:
        if (!sim_transform(s, rank, st, l->index, NULL)) {
            return false;
        }
        l->pc++;
        return true;
    default:
        break;
    }
    bool sends = st->kind == DCOMM_STEP_SEND;
    sim_post post = {.from = sends ? rank : (int)peer,
                     .to = sends ? (int)peer : rank,
                     .tag = sim_value(r, &st->tag, l->index),
                     .rank = rank,
                     .lane = lane,
                     .step = at};
    memcpy(post.index, l->index, sizeof post.index);
    if (peer < 0 || peer >= s->n || peer == rank || post.tag < 0 || post.tag >= p->ntags) {
        snprintf(s->why, sizeof s->why, "rank %d: peer %" PRId64 " tag %" PRId64, rank, peer,
                 post.tag);
        return false;
    }
    if (st->flags & DCOMM_STEP_ASYNC) {
        l->outstanding++;
        l->pc++;
    } else {
        l->posted = true;
    }
    sim_offer(s, post, sends);
    return true;
}

/* Run to the end. in[r] and out[r] are the ranks' buffers. NULL: good, else why not. */
static const char *sim_run(sim *s, dcomm_plan *const *plans, int n, unsigned char **in,
                           unsigned char **out, uint64_t seed)
{
    memset(s, 0, sizeof *s);
    s->n = n;
    s->seed = seed;
    s->rank = dcommi_calloc((size_t)n, sizeof *s->rank);
    s->sent = dcommi_calloc((size_t)n, sizeof *s->sent);
    for (int i = 0; i < n; i++) {
        sim_rank *r = &s->rank[i];
        r->plan = plans[i];
        r->space[DCOMM_SPACE_IN] = in[i];
        r->space[DCOMM_SPACE_OUT] = out[i];
        r->space[DCOMM_SPACE_SCRATCH] = dcommi_alloc((size_t)plans[i]->scratch_bytes + 1);
        memset(r->space[DCOMM_SPACE_SCRATCH], 0xa5, (size_t)plans[i]->scratch_bytes);
        r->counter = dcommi_calloc(plans[i]->ncounters + 1, sizeof *r->counter);
        r->exposed = dcommi_calloc(plans[i]->nslots * (size_t)n + 1, sizeof *r->exposed);
    }
    bool moved = true;
    while (moved && s->why[0] == 0) {
        moved = false;
        for (int i = 0; i < n; i++) {
            s->seed = dcommi_mix(s->seed, (uint64_t)i);
            int k = (int)(s->seed % (uint64_t)n);
            for (uint32_t j = 0; j < plans[k]->nlanes; j++) {
                uint64_t most = (s->seed >> 20) % 20;
                for (uint64_t c = 0; c <= most && s->why[0] == 0 && sim_step(s, k, j); c++) {
                    moved = true;
                }
            }
        }
        for (int i = 0; i < n && !moved && s->why[0] == 0; i++) {
            for (uint32_t j = 0; j < plans[i]->nlanes && !moved; j++) {
                moved = sim_step(s, i, j);
            }
        }
    }
    for (int i = 0; i < n && s->why[0] == 0; i++) {
        for (uint32_t j = 0; j < plans[i]->nlanes && s->why[0] == 0; j++) {
            if (s->rank[i].lane[j].pc != plans[i]->lanes[j].count ||
                s->rank[i].lane[j].outstanding != 0) {
                snprintf(s->why, sizeof s->why, "rank %d lane %u hangs at step %u", i, j,
                         s->rank[i].lane[j].pc);
            }
        }
    }
    return s->why[0] == 0 ? NULL : s->why;
}

static void sim_free(sim *s)
{
    for (int i = 0; i < s->n; i++) {
        dcommi_free(s->rank[i].space[DCOMM_SPACE_SCRATCH]);
        dcommi_free(s->rank[i].counter);
        dcommi_free(s->rank[i].exposed);
    }
    dcommi_free(s->rank);
    dcommi_free(s->sent);
    dcommi_free(s->post);
}

#endif
