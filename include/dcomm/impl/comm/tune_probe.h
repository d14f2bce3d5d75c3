/* tune_probe.h - probes: small ordinary plans whose times tell what things cost. Pairs of ranks,
 * all at once or one alone, exchange messages and signals, and read and fold each other's
 * memory. */
#ifndef DCOMMI_TUNE_PROBE_H
#define DCOMMI_TUNE_PROBE_H

#include "api_explain.h"

enum dcommi_probe_kind {
    DCOMMI_PROBE_NOTHING,  /* a plan without steps */
    DCOMMI_PROBE_STEPS,    /* signals to itself */
    DCOMMI_PROBE_SIGNALS,  /* one each way */
    DCOMMI_PROBE_MESSAGES, /* one each way */
    DCOMMI_PROBE_FOLDS,    /* messages, folded as they arrive */
    DCOMMI_PROBE_BURSTS,   /* DCOMMI_PROBE_BURST messages each way */
    DCOMMI_PROBE_READS,    /* both copy what the other exposes */
    DCOMMI_PROBE_REDUCES,  /* both fold it with their own */
    DCOMMI_PROBE_COPY,     /* in their own memory */
    DCOMMI_PROBE_FOLD
};

#define DCOMMI_PROBE_BURST 8
#define DCOMMI_PROBE_TURNS 3 /* buffers that take turns in a probe */
#define DCOMMI_PROBE_SIGNATURE 0x74756e65u

typedef struct dcommi_probe {
    enum dcommi_probe_kind kind;
    int64_t len, trips;
} dcommi_probe;

/* ---- pairs ---- */

/* Return the i-th rank that is with `rank` at all levels above `level`, and in group `group` of
 * that level (-1: any). -1: there are not so many. */
static int dcommi_probe_member(const dcommi_groups *g, int rank, int level, int32_t group, int i)
{
    for (int r = 0; r < g->nranks; r++) {
        bool with = dcommi_groups_depth(g, rank, r) >= level;
        if (with && (group < 0 || dcommi_group_of(g, level, r) == group) && i-- == 0) {
            return r;
        }
    }
    return -1;
}

/* Return the partner of `rank` in probes of pairs that part at level `depth`; -1: it has none.
 * Sibling groups pair up, first with second, third with fourth, and their ranks in order. */
static int dcommi_probe_partner(const dcommi_groups *g, int rank, int depth)
{
    int at = 0;
    if (depth == g->nlevels) {
        while (dcommi_probe_member(g, rank, depth, -1, at) != rank) {
            at++;
        }
        return dcommi_probe_member(g, rank, depth, -1, at ^ 1);
    }
    /* Groups are numbered by their lowest rank, so siblings come in the order of their numbers. */
    int32_t mine = dcommi_group_of(g, depth, rank), below = -1, above = -1;
    int before = 0;
    for (int r = 0; r < g->nranks; r++) {
        int32_t group = dcommi_group_of(g, depth, r);
        if (dcommi_groups_depth(g, rank, r) < depth) {
            continue;
        }
        if (group < mine && group > below) {
            below = group;
            before++;
        } else if (group > mine && above < 0) {
            above = group;
        }
    }
    int32_t other = before % 2 == 1 ? below : above;
    while (dcommi_probe_member(g, rank, depth, mine, at) != rank) {
        at++;
    }
    return other < 0 ? -1 : dcommi_probe_member(g, rank, depth, other, at);
}

/* ---- plans ---- */

static void dcommi_probe_messages(dcomm_builder *b, const dcommi_probe *p, dcomm_expr peer)
{
    int64_t each = p->kind == DCOMMI_PROBE_BURSTS ? DCOMMI_PROBE_BURST : 1;
    int64_t tag = dcomm_build_tags(b, p->trips * each);
    int64_t stage = p->kind == DCOMMI_PROBE_FOLDS ? dcomm_build_scratch(b, p->len) : 0;
    int d = dcomm_build_loop(b, 0, dcomm_const(p->trips));
    /* As in a collective, each trip but the first sends what the trip before has received. It
     * receives into a buffer that the trip before did not use, and folds input that was there all
     * along. Three buffers of `each` messages take turns. */
    dcomm_operand in = dcomm_at(DCOMM_SPACE_OUT,
                                dcomm_modular(each * p->len, 0, d, 1, DCOMMI_PROBE_TURNS), p->len);
    dcomm_operand own = dcomm_at(DCOMM_SPACE_IN, dcomm_modular(p->len, 0, d, 1, 2), p->len);
    for (int64_t i = 0; i < each; i++) {
        dcomm_build_send(b, 0, in, peer, dcomm_linear(tag + i, d, each), DCOMM_STEP_ASYNC);
    }
    for (int64_t i = 0; i < each; i++) {
        dcomm_expr order = dcomm_linear(tag + i, d, each);
        dcomm_expr into = dcomm_modular(each * p->len, 1, d, 1, DCOMMI_PROBE_TURNS);
        dcomm_operand out = dcomm_at(DCOMM_SPACE_OUT, dcomm_plus(into, i * p->len), p->len);
        if (p->kind == DCOMMI_PROBE_FOLDS) {
            dcomm_build_recv_reduce(b, 0, out, own, dcomm_msg(),
                                    dcomm_span(DCOMM_SPACE_SCRATCH, stage, p->len), peer, order,
                                    DCOMM_STEP_ASYNC);
        } else {
            dcomm_build_recv(b, 0, out, peer, order, DCOMM_STEP_ASYNC);
        }
    }
    dcomm_build_fence(b, 0);
    dcomm_build_end(b, 0);
}

/* Fold data that was there before, a different part on each rank, like the inputs of a collective.
 * Copy data that was just written, like the results of one. */
static void dcommi_probe_reads(dcomm_builder *b, const dcommi_probe *p, int partner)
{
    dcomm_expr peer = dcomm_const(partner);
    uint16_t slot = dcomm_build_slot(b), done = dcomm_build_counter(b);
    bool fold = p->kind == DCOMMI_PROBE_REDUCES;
    int64_t from = fold && b->head.rank > partner ? p->len : 0;
    dcomm_operand src[2] = {dcomm_span(DCOMM_SPACE_IN, from, p->len),
                            dcomm_exposed(peer, slot, dcomm_const(from), p->len)};
    dcomm_operand out = dcomm_span(DCOMM_SPACE_OUT, fold ? 0 : p->len, p->len);
    if (!fold) {
        dcomm_build_copy(b, 0, dcomm_span(DCOMM_SPACE_OUT, 0, p->len), src[0], 0);
    }
    dcomm_build_expose(b, 0,
                       fold ? dcomm_span(DCOMM_SPACE_IN, 0, 2 * p->len)
                            : dcomm_span(DCOMM_SPACE_OUT, 0, p->len),
                       slot, peer);
    if (fold) {
        dcomm_build_reduce(b, 0, out, src, 2, DCOMM_STEP_FINAL);
    } else {
        dcomm_build_copy(b, 0, out, src[1], 0);
    }
    dcomm_build_signal(b, 0, done, peer, dcomm_const(1));
    dcomm_build_wait(b, 0, done, dcomm_const(1));
}

static void dcommi_probe_local(dcomm_builder *b, const dcommi_probe *p)
{
    dcomm_operand src[2] = {dcomm_span(DCOMM_SPACE_IN, 0, p->len),
                            dcomm_span(DCOMM_SPACE_OUT, 0, p->len)};
    dcomm_build_loop(b, 0, dcomm_const(p->trips));
    if (p->kind == DCOMMI_PROBE_STEPS) {
        dcomm_build_signal(b, 0, dcomm_build_counter(b), dcomm_const(b->head.rank), dcomm_const(1));
    } else if (p->kind == DCOMMI_PROBE_COPY) {
        dcomm_build_copy(b, 0, src[1], src[0], 0);
    } else {
        dcomm_build_reduce(b, 0, src[1], src, 2, DCOMM_STEP_FINAL);
    }
    dcomm_build_end(b, 0);
}

/* Make one rank's plan of a probe. partner -1: the rank looks on. */
static dcomm_status dcommi_probe_plan(const dcommi_probe *p, int rank, int nranks, int partner,
                                      dcomm_plan **plan_p)
{
    dcomm_builder b;
    bool local = p->kind == DCOMMI_PROBE_STEPS || p->kind >= DCOMMI_PROBE_COPY;
    dcommi_build_begin(&b, "tuning", rank, nranks, DCOMM_F32, DCOMM_SUM);
    b.head.in_bytes = 2 * p->len;
    b.head.out_bytes = p->len * DCOMMI_PROBE_TURNS * DCOMMI_PROBE_BURST;
    if (local) {
        dcommi_probe_local(&b, p);
    } else if (partner >= 0 && p->kind >= DCOMMI_PROBE_READS) {
        dcommi_probe_reads(&b, p, partner);
    } else if (partner >= 0 && p->kind >= DCOMMI_PROBE_MESSAGES) {
        dcommi_probe_messages(&b, p, dcomm_const(partner));
    } else if (partner >= 0 && p->kind == DCOMMI_PROBE_SIGNALS) {
        uint16_t counter = dcomm_build_counter(&b);
        int d = dcomm_build_loop(&b, 0, dcomm_const(p->trips));
        dcomm_build_signal(&b, 0, counter, dcomm_const(partner), dcomm_const(1));
        dcomm_build_wait(&b, 0, counter, dcomm_linear(1, d, 1));
        dcomm_build_end(&b, 0);
    }
    return dcommi_build_finish(&b, plan_p);
}

/* Run a plan on a communicator that only we know of, whatever groups this thread has open. */
static dcomm_status dcommi_probe_run(dcomm_comm *comm, const dcomm_plan *plan, const void *in,
                                     void *out)
{
    dcommi_run *run = dcommi_run_of_plan(comm, plan, in, out, DCOMMI_PROBE_SIGNATURE);
    if (run == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    run->timeout_s = comm->timeout_s;
    run->blocking = true;
    dcommi_submit(comm->context, run);
    return dcommi_run_wait(run);
}

#endif
