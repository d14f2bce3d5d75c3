/* plan_sim.h - runs the plans of all ranks in one thread on real memory, for tests: lanes in random
 * order, no message buffered, real folds. An oracle that shares only the cursor with the engine. */
#ifndef PLAN_SIM_H
#define PLAN_SIM_H

#include "dcomm/impl/plan/cursor.h"

typedef struct sim_lane {
    dcommi_cursor cursor;
    bool posted; /* its step has been posted and is not complete */
    int outstanding;
} sim_lane;

/* A message that one side has posted. */
typedef struct sim_post {
    int from, to;
    int64_t tag;
    int rank;
    uint32_t lane;
    dcommi_cursor cursor; /* at its step */
    bool used;
} sim_post;

typedef struct sim_rank {
    const dcomm_plan *plan;
    dcommi_scope scope;
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
    int64_t *sent; /* payload bytes that each rank has sent or read */
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

/* Store f as the nearest bf16, ties to even. */
static void sim_put_bf16(void *p, int64_t i, float f)
{
    uint32_t bits;
    memcpy(&bits, &f, 4);
    bits += 0x7fff + (bits >> 16 & 1);
    ((uint16_t *)p)[i] = (uint16_t)(bits >> 16);
}

/* Fold in f32 (or u8) one operand after another, so that their order shows in the bits. */
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

/* Record the first error; return true if there is none. */
static bool sim_good(sim *s, int rank, dcomm_status status)
{
    if (status < 0 && s->why[0] == 0) {
        snprintf(s->why, sizeof s->why, "rank %d: %.200s", rank, dcommi_message);
    }
    return status >= 0;
}

/* Return piece k of an operand; NULL if its owner has not exposed it yet. */
static unsigned char *sim_piece(sim *s, int rank, const dcommi_cursor *at, const dcomm_operand *o,
                                uint32_t k, int64_t *length)
{
    sim_rank *r = &s->rank[rank];
    dcommi_interval x = {0, 0};
    sim_good(s, rank, dcommi_cursor_piece(at, o, k, &x));
    *length = x.length;
    if (o->space == DCOMM_SPACE_PEER) {
        int64_t first = 0;
        int owner = 0;
        sim_good(s, rank, dcommi_cursor_value(at, &o->peer, &first));
        sim_good(s, rank, dcommi_cursor_owner(at, first, k, &owner));
        unsigned char *base = owner >= 0 ? s->rank[owner].exposed[o->slot * s->n + rank] : NULL;
        return base == NULL ? NULL : base + x.offset;
    }
    int64_t room = o->space == DCOMM_SPACE_IN    ? r->plan->in_bytes
                   : o->space == DCOMM_SPACE_OUT ? r->plan->out_bytes
                                                 : r->plan->scratch_bytes;
    if (!dcommi_interval_within(&x, room)) {
        sim_good(s, rank, dcommi_interval_outside(&x, o->space, room));
    }
    return r->space[o->space] + (x.length > 0 ? x.offset : 0);
}

/* Gather the sources of a step and fold or copy. Return false if a peer has not exposed its source
 * yet. */
static bool sim_transform(sim *s, int rank, const dcommi_cursor *at, unsigned char *message)
{
    sim_rank *r = &s->rank[rank];
    const dcomm_step *st = dcommi_cursor_step(at);
    unsigned char *src[4096];
    size_t n = 0;
    int64_t len = 0, out_len, read = 0;
    unsigned char *dst = sim_piece(s, rank, at, &st->dst, 0, &out_len);
    for (uint32_t i = 0; i < st->nsrc; i++) {
        const dcomm_operand *o = &r->plan->operands[st->src + i];
        for (uint32_t k = 0; k < dcommi_operand_pieces(o); k++) {
            src[n] = o->space == DCOMM_SPACE_MSG ? message : sim_piece(s, rank, at, o, k, &len);
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
        dcommi_cursor_next(&l->cursor);
    }
}

/* Deliver a message that both sides have posted. */
static void sim_match(sim *s, const sim_post *send, const sim_post *recv)
{
    const dcomm_step *ss = dcommi_cursor_step(&send->cursor);
    const dcomm_step *rs = dcommi_cursor_step(&recv->cursor);
    const dcomm_operand *from = &s->rank[send->rank].plan->operands[ss->src];
    int64_t slen, rlen;
    unsigned char *src = sim_piece(s, send->rank, &send->cursor, from, 0, &slen);
    unsigned char *dst = sim_piece(s, recv->rank, &recv->cursor, &rs->dst, 0, &rlen);
    if (slen != rlen && s->why[0] == 0) {
        snprintf(s->why, sizeof s->why, "%d -> %d tag %" PRId64 ": %" PRId64 " bytes into %" PRId64,
                 send->rank, recv->rank, send->tag, slen, rlen);
    }
    if (s->why[0] == 0) {
        s->sent[send->rank] += slen;
        if (rs->kind == DCOMM_STEP_RECV) {
            memcpy(dst, src, (size_t)slen);
        } else {
            sim_transform(s, recv->rank, &recv->cursor, src);
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

/* Post a SEND, RECV or RECV_REDUCE. */
static bool sim_message(sim *s, int rank, uint32_t lane)
{
    sim_lane *l = &s->rank[rank].lane[lane];
    const dcomm_step *st = dcommi_cursor_step(&l->cursor);
    bool sends = st->kind == DCOMM_STEP_SEND;
    int peer;
    sim_post post = {.rank = rank, .lane = lane, .cursor = l->cursor};
    if (!sim_good(s, rank, dcommi_cursor_peer(&l->cursor, &st->peer, &peer)) ||
        !sim_good(s, rank, dcommi_cursor_tag(&l->cursor, st, &post.tag))) {
        return false;
    }
    post.from = sends ? rank : peer;
    post.to = sends ? peer : rank;
    if (st->flags & DCOMM_STEP_ASYNC) {
        l->outstanding++;
        dcommi_cursor_next(&l->cursor);
    } else {
        l->posted = true;
    }
    sim_offer(s, post, sends);
    return true;
}

/* Run one step of a lane. Return false if the lane cannot go on. */
static bool sim_step(sim *s, int rank, uint32_t lane)
{
    sim_rank *r = &s->rank[rank];
    const dcomm_plan *p = r->plan;
    sim_lane *l = &r->lane[lane];
    const dcommi_cursor *at = &l->cursor;
    const dcomm_step *st = dcommi_cursor_step(at);
    dcommi_targets to;
    int64_t value, len;
    if (l->posted || st == NULL) {
        return false;
    }
    if (dcommi_cursor_turns(st)) {
        return sim_good(s, rank, dcommi_cursor_turn(&l->cursor, st));
    }
    switch (st->kind) {
    case DCOMM_STEP_FENCE:
        if (l->outstanding > 0) {
            return false;
        }
        break;
    case DCOMM_STEP_WAIT:
        if (!sim_good(s, rank, dcommi_cursor_value(at, &st->value, &value)) ||
            r->counter[st->slot] < value) {
            return false;
        }
        break;
    case DCOMM_STEP_SIGNAL:
    case DCOMM_STEP_EXPOSE:
        if (!sim_good(s, rank, dcommi_cursor_targets(at, st, &to)) ||
            !sim_good(s, rank, dcommi_cursor_value(at, &st->value, &value))) {
            return false;
        }
        for (int64_t i = to.first; i <= to.last; i++) {
            if (i != to.but && st->kind == DCOMM_STEP_SIGNAL) {
                s->rank[i].counter[st->slot] += value;
            } else if (i != to.but) {
                r->exposed[st->slot * s->n + i] =
                    sim_piece(s, rank, at, &p->operands[st->src], 0, &len);
            }
        }
        break;
    case DCOMM_STEP_COPY:
    case DCOMM_STEP_REDUCE:
        if (!sim_transform(s, rank, at, NULL)) {
            return false;
        }
        break;
    default:
        return sim_message(s, rank, lane);
    }
    dcommi_cursor_next(&l->cursor);
    return true;
}

/* Run all plans to the end. in[r] and out[r] are rank r's buffers. Return NULL, or the error. */
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
        r->plan = r->scope.plan = plans[i];
        for (uint32_t j = 0; j < plans[i]->nlanes; j++) {
            dcommi_cursor_start(&r->lane[j].cursor, &r->scope, j);
        }
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
            const sim_lane *l = &s->rank[i].lane[j];
            if (dcommi_cursor_step(&l->cursor) != NULL || l->outstanding != 0) {
                snprintf(s->why, sizeof s->why, "rank %d lane %u hangs at step %u", i, j,
                         l->cursor.at.pc);
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
