/* stage.h - executes the stages of a run, for the plan checker: prepares memory, finds which ranks
 * have heard of which, and gets the plans of the next stage. */
#ifndef DCOMMI_CHECK_STAGE_H
#define DCOMMI_CHECK_STAGE_H

#include "lane.h"
#include "spec.h"

/* Prepare the memory of a rank for a stage. */
static dcomm_status dcommi_check_stage_mem(dcommi_check *c, int rank)
{
    dcommi_check_rank *k = &c->rank[rank];
    const dcomm_plan *p = k->plan;
    dcommi_check_layout l;
    DCOMMI_TRY(dcommi_check_layout_of(c, rank, &l));
    dcommi_check_value undefined = {.kind = DCOMMI_CHECK_UNDEF};
    dcommi_check_value zero = {.kind = DCOMMI_CHECK_ZERO};
    dcommi_check_value input = {
        .kind = DCOMMI_CHECK_SUM, .flags = DCOMMI_CHECK_ORDERED, .mask = (uint64_t)1 << rank};
    for (unsigned space = DCOMM_SPACE_IN; space <= DCOMM_SPACE_WORDS; space++) {
        dcommi_check_mem *m = k->mem[space];
        if (m == NULL || space == DCOMM_SPACE_SCRATCH) {
            m = k->mem[space] = dcommi_check_mem_new(c, rank, space);
            if (m == NULL) {
                return DCOMM_ERR_NO_MEMORY;
            }
        } else {
            dcommi_check_mem_settle(m);
        }
    }
    dcommi_check_mem **mem = k->mem;
    /* In place, only the root of a reduce may write its buffer. */
    bool untouched =
        c->spec->coll == DCOMM_COLL_REDUCE && c->spec->in_place && rank != c->spec->root;
    mem[DCOMM_SPACE_OUT]->read_only = untouched;
    if (l.in_place_at < 0 || untouched) {
        input.src = mem[DCOMM_SPACE_IN]->size;
        DCOMMI_TRY(dcommi_check_mem_fill(mem[DCOMM_SPACE_IN], input.src, l.in_bytes, input));
    }
    int64_t out = mem[DCOMM_SPACE_OUT]->size;
    if (l.in_place_at >= 0 && out <= l.in_place_at + l.input_bytes) {
        int64_t from = dcommi_max64(out, l.in_place_at);
        DCOMMI_TRY(dcommi_check_mem_fill(mem[DCOMM_SPACE_OUT], out, l.in_place_at, undefined));
        input.src = from - l.in_place_at;
        DCOMMI_TRY(dcommi_check_mem_fill(mem[DCOMM_SPACE_OUT], from, l.in_place_at + l.input_bytes,
                                         input));
        out = dcommi_max64(out, l.in_place_at + l.input_bytes);
    }
    DCOMMI_TRY(dcommi_check_mem_fill(mem[DCOMM_SPACE_OUT], out, l.out_bytes, undefined));
    DCOMMI_TRY(dcommi_check_mem_fill(mem[DCOMM_SPACE_SCRATCH], 0, p->scratch_bytes, undefined));
    return dcommi_check_mem_fill(mem[DCOMM_SPACE_WORDS], mem[DCOMM_SPACE_WORDS]->size,
                                 8 * (int64_t)p->nwords, zero);
}

/* Refuse plans of this stage that are not well formed or do not belong together. */
static dcomm_status dcommi_check_stage_valid(dcommi_check *c)
{
    uint32_t budget = DCOMMI_CHECK_SUBPLANS;
    uint64_t width = 0;
    for (int i = 0; i < c->n; i++) {
        const dcomm_plan *p = c->rank[i].plan, *zero = c->rank[0].plan;
        char where[48];
        snprintf(where, sizeof where, c->stage > 0 ? "rank %d stage %d" : "rank %d", i, c->stage);
        if (p->rank != i || p->nranks != c->n) {
            return dcommi_fail(DCOMM_ERR_PLAN, "%s: its plan is for rank %d of %d, not %d of %d",
                               where, p->rank, p->nranks, i, c->n);
        }
        if (p->dtype != zero->dtype || p->op != zero->op) {
            return dcommi_fail(
                DCOMM_ERR_PLAN, "%s has dtype %s and op %s, but rank 0 has %s and %s", where,
                dcomm_dtype_name((dcomm_dtype)p->dtype), dcomm_op_name((dcomm_op)p->op),
                dcomm_dtype_name((dcomm_dtype)zero->dtype), dcomm_op_name((dcomm_op)zero->op));
        }
        if (c->reduces && p->dtype != (unsigned)c->spec->dtype) {
            return dcommi_fail(DCOMM_ERR_PLAN, "%s has dtype %s, but the operation has %s", where,
                               dcomm_dtype_name((dcomm_dtype)p->dtype),
                               dcomm_dtype_name(c->spec->dtype));
        }
        DCOMMI_TRY(dcommi_check_plan_valid(p, where, 0, &budget));
        for (uint32_t j = 0; j < p->nlanes; j++) {
            width += dcommi_check_width(c, p, j);
        }
    }
    if (width > 8192 || c->budget <= 0) {
        return dcommi_fail(DCOMM_ERR_PLAN,
                           "the plans have more than 8192 lanes in all, too many to check");
    }
    c->ncomps = 2 * (uint32_t)width;
    return DCOMM_OK;
}

static dcomm_status dcommi_check_stage_start(dcommi_check *c)
{
    c->lanes = NULL;
    c->running = NULL;
    c->nready = 0;
    c->nfree_vc = 0;
    c->free_ops = NULL;
    c->nmessages = 0;
    if (c->messages_capacity > 0) {
        memset(c->message, 0, c->messages_capacity * sizeof *c->message);
    }
    c->comps = dcommi_check_get(c, (c->ncomps + 1) / 2 * sizeof *c->comps);
    uint32_t *nothing = dcommi_check_vc_new(c);
    if (c->comps == NULL || nothing == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    uint32_t comp = 0;
    dcommi_check_log *log = &c->log[c->stage];
    for (int i = 0; i < c->n; i++) {
        dcommi_check_rank *k = &c->rank[i];
        const dcomm_plan *p = k->plan;
        DCOMMI_TRY(dcommi_check_stage_mem(c, i));
        k->peer_waiters = NULL;
        k->counters = dcommi_check_get(c, (size_t)p->ncounters * sizeof *k->counters);
        k->exposed = dcommi_check_get(c, (size_t)p->nslots * (size_t)c->n * sizeof *k->exposed);
        dcommi_check_frame *f = dcommi_check_frame_new(c, i);
        if (k->counters == NULL || k->exposed == NULL || f == NULL) {
            return DCOMM_ERR_NO_MEMORY;
        }
        log->counters[i] = k->counters;
        log->ncounters[i] = p->ncounters;
        f->scope.plan = p;
        f->scope.word = dcommi_check_word;
        f->linear = p->codec_linear;
        for (unsigned space = DCOMM_SPACE_IN; space <= DCOMM_SPACE_WORDS; space++) {
            f->mem[space] = k->mem[space];
            f->size[space] = k->mem[space]->size;
        }
        f->size[DCOMM_SPACE_IN] = dcommi_min64(p->in_bytes, f->size[DCOMM_SPACE_IN]);
        f->size[DCOMM_SPACE_OUT] = dcommi_min64(p->out_bytes, f->size[DCOMM_SPACE_OUT]);
        k->frame = f;
        if (!dcommi_check_start(c, f, comp, nothing, 0)) {
            return c->status;
        }
        for (uint32_t j = 0; j < p->nlanes; j++) {
            comp += 2 * dcommi_check_width(c, p, j);
        }
    }
    return DCOMM_OK;
}

/* Record which ranks have heard of which. Report exposed memory that may still be read when its
 * owner is done. */
static void dcommi_check_stage_end(dcommi_check *c)
{
    uint64_t heard[DCOMMI_CHECK_RANKS];
    for (int i = 0; i < c->n; i++) {
        const uint32_t *end = c->rank[i].frame->end_vc;
        heard[i] = c->rank[i].heard;
        for (uint32_t k = 0; k < c->ncomps; k += 2) {
            if (end[k] > 0) {
                heard[i] |= c->rank[c->comps[k / 2].rank].heard;
            }
        }
    }
    for (int i = 0; i < c->n; i++) {
        c->rank[i].heard = heard[i];
    }
    for (dcommi_check_mem *m = c->mems; m != NULL && c->finding[0] == '\0'; m = m->next) {
        const uint32_t *end = m->end_vc != NULL ? m->end_vc : c->rank[m->rank].frame->end_vc;
        for (uint32_t k = 0; m->peer_last != NULL && k < c->ncomps; k++) {
            if (m->peer_last[k] > end[k]) {
                snprintf(c->finding, sizeof c->finding,
                         "rank %d may be done before %s has read the %s that it exposes: it waits "
                         "for no signal of that lane after the read",
                         m->rank, dcommi_check_lane_text(c, k).s, dcommi_print_space(m->space));
                break;
            }
        }
        m->peer_last = NULL;
    }
}

/* A stage that a plan has made, and that must be given back to that plan. */
typedef struct dcommi_check_made {
    const dcomm_plan *maker, *plan;
    int rank;
} dcommi_check_made;

/* Get each rank's next stage. *more is true if there is another stage to execute. */
static dcomm_status dcommi_check_next_stage(dcommi_check *c, dcommi_check_made *made, size_t *nmade,
                                            bool *more)
{
    int going = 0;
    uint64_t *numbers[DCOMMI_CHECK_RANKS] = {NULL};
    *more = false;
    for (int i = 0; i < c->n; i++) {
        const dcommi_check_mem *words = c->rank[i].mem[DCOMM_SPACE_WORDS];
        const uint32_t nwords = c->rank[i].plan->next != NULL ? c->rank[i].plan->nwords : 0;
        numbers[i] = dcommi_check_get(c, (size_t)nwords * sizeof *numbers[i]);
        if (numbers[i] == NULL) {
            return DCOMM_ERR_NO_MEMORY;
        }
        for (uint32_t w = 0; w < nwords; w++) {
            bool known;
            c->merged.n = 0;
            DCOMMI_TRY(dcommi_check_peek(words, 8 * (int64_t)w, 8, &c->merged));
            numbers[i][w] = (uint64_t)dcommi_check_number(c, &c->merged, &known);
            if (!known) {
                c->spec_holds = false;
                return DCOMM_OK;
            }
        }
    }
    for (int i = 0; i < c->n; i++) {
        const dcomm_plan *p = c->rank[i].plan;
        if (p->next == NULL) {
            continue;
        }
        dcomm_status status = DCOMM_OK;
        const dcomm_plan *next = p->next(p->next_user, numbers[i], p->nwords, &status);
        if (next == NULL && status < 0) {
            return dcommi_fail(DCOMM_ERR_PLAN, "rank %d: its stage %d fails: %s", i, c->stage + 1,
                               dcomm_strerror(status));
        }
        if (next != NULL) {
            dcommi_check_made m = {p, next, i};
            made[(*nmade)++] = m;
            going++;
        }
    }
    if (going > 0 && going < c->n) {
        return dcommi_fail(DCOMM_ERR_PLAN, "after stage %d only %d of %d ranks go on", c->stage,
                           going, c->n);
    }
    for (int i = 0; i < going; i++) {
        c->rank[i].plan = made[*nmade - (size_t)going + (size_t)i].plan;
    }
    *more = going > 0;
    if (*more && ++c->stage == DCOMMI_CHECK_STAGES) {
        return dcommi_fail(DCOMM_ERR_PLAN, "the plans have more than %d stages",
                           DCOMMI_CHECK_STAGES);
    }
    return DCOMM_OK;
}

static dcomm_status dcommi_check_end(dcommi_check *c)
{
    if (c->spec->coll == DCOMM_COLL_BARRIER) {
        for (int i = 0; i < c->n && c->finding[0] == '\0'; i++) {
            if (c->rank[i].heard != c->all) {
                snprintf(c->finding, sizeof c->finding,
                         "rank %d may leave the barrier before rank %d has come", i,
                         __builtin_ctzll(c->all & ~c->rank[i].heard));
            }
        }
    }
    for (int i = 0; i < c->n && c->spec_holds; i++) {
        DCOMMI_TRY(dcommi_check_results(c, i));
    }
    return DCOMM_OK;
}

static dcomm_status dcommi_check_stages(dcommi_check *c, dcommi_check_made *made, size_t *nmade)
{
    bool more = true;
    while (more) {
        DCOMMI_TRY(dcommi_check_stage_valid(c));
        DCOMMI_TRY(dcommi_check_stage_start(c));
        while (c->nready > 0) {
            if (!dcommi_check_advance(c, c->ready[--c->nready])) {
                return c->status;
            }
        }
        for (const dcommi_check_lane *l = c->lanes; l != NULL; l = l->all) {
            if (!l->done) {
                dcommi_check_deadlock(c);
                return c->status;
            }
        }
        dcommi_check_stage_end(c);
        DCOMMI_TRY(dcommi_check_next_stage(c, made, nmade, &more));
    }
    return dcommi_check_end(c);
}

#endif
