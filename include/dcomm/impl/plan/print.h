/* print.h - print a plan as text for people: lanes, indented loops, places as formulas. */
#ifndef DCOMMI_PRINT_H
#define DCOMMI_PRINT_H

#include "build.h"

DCOMM_API const char *dcomm_coll_name(dcomm_coll coll)
{
    static const char *const names[DCOMM_COLL_COUNT] = {"all-reduce",
                                                        "reduce-scatter",
                                                        "all-gather",
                                                        "broadcast",
                                                        "reduce",
                                                        "gather",
                                                        "scatter",
                                                        "all-to-all",
                                                        "reduce-scatter-v",
                                                        "all-gather-v",
                                                        "gather-v",
                                                        "scatter-v",
                                                        "all-to-all-v",
                                                        "barrier",
                                                        "send",
                                                        "recv",
                                                        "plan"};
    return (unsigned)coll < DCOMM_COLL_COUNT ? names[coll] : "?";
}

static const char *dcommi_print_index(int depth)
{
    static const char *const names[DCOMM_LOOP_DEPTH] = {"i", "j", "k"};
    return names[depth];
}

/* Print factor * name as a term of a sum. */
static void dcommi_print_term(dcommi_print_text *t, int64_t factor, const char *name, bool *first)
{
    if (factor == 0) {
        return;
    }
    const char *sign = factor < 0 ? "-" : *first ? "" : "+";
    uint64_t size = factor < 0 ? 0 - (uint64_t)factor : (uint64_t)factor;
    if (name[0] != '\0' && size == 1) {
        dcommi_print_add(t, "%s%s", sign, name);
    } else if (name[0] != '\0') {
        dcommi_print_add(t, "%s%" PRIu64 "*%s", sign, size, name);
    } else {
        dcommi_print_add(t, "%s%" PRIu64, sign, size);
    }
    *first = false;
}

static void dcommi_print_linear(dcommi_print_text *t, int64_t add, const int64_t *factor)
{
    bool first = true;
    bool leads = add > 0; /* print a positive constant first: 5-i, not -i+5 */
    if (leads) {
        dcommi_print_term(t, add, "", &first);
    }
    for (int d = 0; d < DCOMM_LOOP_DEPTH; d++) {
        dcommi_print_term(t, factor[d], dcommi_print_index(d), &first);
    }
    if (!leads) {
        dcommi_print_term(t, add, "", &first);
    }
    if (first) {
        dcommi_print_add(t, "0");
    }
}

static void dcommi_print_x(dcommi_print_text *t, const dcomm_expr *e)
{
    if (e->mod != 0) {
        dcommi_print_add(t, "(");
    }
    dcommi_print_linear(t, e->base, e->coef);
    if (e->mod != 0) {
        dcommi_print_add(t, ") mod %" PRId64, e->mod);
    }
}

static void dcommi_print_expr(dcommi_print_text *t, const dcomm_expr *e)
{
    static const int64_t none[DCOMM_LOOP_DEPTH];
    bool looks_up = e->kind == DCOMM_EXPR_TABLE || e->kind == DCOMM_EXPR_WORD;
    if (e->kind == DCOMM_EXPR_CONST) {
        dcommi_print_add(t, "%" PRId64, e->add);
        return;
    }
    if (e->kind > DCOMM_EXPR_WORD) {
        dcommi_print_add(t, "?");
        return;
    }
    bool rest = e->add != 0 || memcmp(e->post, none, sizeof none) != 0;
    if (e->scale != 0) {
        if (e->scale != 1) {
            dcommi_print_add(t, "%" PRId64 "*", e->scale);
        }
        dcommi_print_add(t, "%s",
                         e->kind == DCOMM_EXPR_TABLE  ? "table["
                         : e->kind == DCOMM_EXPR_WORD ? "words["
                                                      : "(");
        if (looks_up && e->first != 0) {
            dcommi_print_add(t, "%" PRId64 "+", e->first);
        }
        dcommi_print_x(t, e);
        dcommi_print_add(t, looks_up ? "]" : ")");
    }
    if (e->scale != 0 && rest) {
        dcommi_print_add(t, " + ");
    }
    if (e->scale == 0 || rest) {
        dcommi_print_linear(t, e->add, e->post);
    }
}

static const char *dcommi_print_space(unsigned space)
{
    static const char *const names[] = {"none", "IN", "OUT", "SCRATCH", "WORDS", "PEER", "message"};
    return space < sizeof names / sizeof names[0] ? names[space] : "?";
}

static void dcommi_print_operand(dcommi_print_text *t, const dcomm_operand *o)
{
    dcommi_print_add(t, "%s", dcommi_print_space(o->space));
    if (o->space == DCOMM_SPACE_NONE || o->space == DCOMM_SPACE_MSG) {
        return;
    }
    if (o->space == DCOMM_SPACE_PEER) {
        dcommi_print_add(t, "(");
        dcommi_print_expr(t, &o->peer);
        dcommi_print_add(t, " slot %d)", o->slot);
    }
    dcommi_print_add(t, "[");
    dcommi_print_expr(t, &o->offset);
    dcommi_print_add(t, ", ");
    dcommi_print_expr(t, &o->length);
    if (o->length.kind != DCOMM_EXPR_CONST || o->length.add != o->max_length) {
        dcommi_print_add(t, " <= %" PRId64, o->max_length);
    }
    if (o->clip > 0) {
        dcommi_print_add(t, ", clip %" PRId64, o->clip);
    }
    dcommi_print_add(t, "]");
    if (o->repeat > 1) {
        dcommi_print_add(t, " x%" PRIu32 " every %" PRId64, o->repeat, o->stride);
    }
}

static void dcommi_print_sources(dcommi_print_text *t, const dcomm_plan *p, const dcomm_step *s)
{
    if (s->src > p->noperands || p->noperands - s->src < s->nsrc) {
        dcommi_print_add(t, "?");
        return;
    }
    for (uint32_t i = 0; i < s->nsrc; i++) {
        dcommi_print_add(t, "%s", i > 0 ? " (+) " : "");
        dcommi_print_operand(t, &p->operands[s->src + i]);
    }
}

static void dcommi_print_peer(dcommi_print_text *t, const char *word, const dcomm_expr *peer)
{
    if (peer->kind == DCOMM_EXPR_CONST && peer->add == DCOMM_ALL_PEERS) {
        dcommi_print_add(t, " %s all", word);
    } else {
        dcommi_print_add(t, " %s ", word);
        dcommi_print_expr(t, peer);
    }
}

static void dcommi_print_call(dcommi_print_text *t, const dcomm_plan *p, const dcomm_step *s)
{
    const dcomm_plan *sub = s->sub < p->nsubs ? p->subs[s->sub] : NULL;
    dcommi_print_add(t, " sub %" PRIu32, s->sub);
    if (sub == NULL) {
        return;
    }
    dcommi_print_add(t, " \"%s\" ranks (", sub->name != NULL ? sub->name : "");
    for (int i = 0; i < sub->nranks && s->group < p->ntable && (uint32_t)i < p->ntable - s->group;
         i++) {
        dcommi_print_add(t, "%s%" PRId64, i > 0 ? " " : "", p->table[s->group + (uint32_t)i]);
    }
    dcommi_print_add(t, ") IN = ");
    dcommi_print_sources(t, p, s);
    dcommi_print_add(t, ", OUT = ");
    dcommi_print_operand(t, &s->dst);
    dcommi_print_add(t, ", tags + ");
    dcommi_print_expr(t, &s->tag);
    if (sub->ncounters > 0) {
        dcomm_expr first = dcomm_plus(s->value, s->slot);
        dcommi_print_add(t, ", counters + ");
        dcommi_print_expr(t, &first);
    }
    if (sub->nslots > 0) {
        dcomm_expr first = dcomm_plus(s->peer, s->word > 0 ? s->word : 0);
        dcommi_print_add(t, ", slots + ");
        dcommi_print_expr(t, &first);
    }
}

/* Return the name of a step's kind. */
static const char *dcommi_print_kind(unsigned kind)
{
    static const char *const names[] = {
#define DCOMMI_PRINT_STEP(kind, name) name,
        DCOMM_STEP_TABLE(DCOMMI_PRINT_STEP)
#undef DCOMMI_PRINT_STEP
    };
    return names[kind];
}

static void dcommi_print_step(dcommi_print_text *t, const dcomm_plan *p, const dcomm_step *s,
                              int depth)
{
    if (s->kind >= DCOMM_STEP_KIND_COUNT) {
        dcommi_print_add(t, "kind %d?", s->kind);
        return;
    }
    dcommi_print_add(t, "%s", dcommi_print_kind(s->kind));
    bool tagged = false;
    switch (s->kind) {
    case DCOMM_STEP_SEND:
        dcommi_print_add(t, " ");
        dcommi_print_sources(t, p, s);
        dcommi_print_peer(t, "to", &s->peer);
        tagged = true;
        break;
    case DCOMM_STEP_RECV:
        dcommi_print_add(t, " ");
        dcommi_print_operand(t, &s->dst);
        dcommi_print_peer(t, "from", &s->peer);
        tagged = true;
        break;
    case DCOMM_STEP_RECV_REDUCE:
        dcommi_print_add(t, " ");
        dcommi_print_operand(t, &s->dst);
        dcommi_print_add(t, " <- ");
        dcommi_print_sources(t, p, s);
        dcommi_print_peer(t, "from", &s->peer);
        tagged = true;
        break;
    case DCOMM_STEP_EXPOSE:
        dcommi_print_add(t, " ");
        dcommi_print_sources(t, p, s);
        dcommi_print_add(t, " as slot %d", s->slot);
        dcommi_print_peer(t, "to", &s->peer);
        break;
    case DCOMM_STEP_SIGNAL:
        dcommi_print_add(t, " counter %d", s->slot);
        dcommi_print_peer(t, "of", &s->peer);
        dcommi_print_add(t, " by ");
        dcommi_print_expr(t, &s->value);
        break;
    case DCOMM_STEP_WAIT:
        dcommi_print_add(t, " counter %d >= ", s->slot);
        dcommi_print_expr(t, &s->value);
        break;
    case DCOMM_STEP_LOOP:
        dcommi_print_add(t, " %s < ", depth < DCOMM_LOOP_DEPTH ? dcommi_print_index(depth) : "?");
        dcommi_print_expr(t, &s->value);
        break;
    case DCOMM_STEP_CALL:
        dcommi_print_call(t, p, s);
        break;
    case DCOMM_STEP_FENCE:
    case DCOMM_STEP_END:
        break;
    default: /* the steps with a destination and sources */
        dcommi_print_add(t, " ");
        dcommi_print_operand(t, &s->dst);
        dcommi_print_add(t, " <- ");
        dcommi_print_sources(t, p, s);
        if (s->kind == DCOMM_STEP_COMPUTE) {
            dcommi_print_add(t, " by kernel %d", s->kernel);
        }
        break;
    }
    if (tagged) {
        dcommi_print_add(t, ", tag ");
        dcommi_print_expr(t, &s->tag);
    }
    bool encodes = s->kind == DCOMM_STEP_ENCODE || s->kind == DCOMM_STEP_RECODE;
    if ((s->kind == DCOMM_STEP_RECV || encodes) && s->word >= 0) {
        dcomm_expr word = dcomm_plus(s->value, s->word);
        dcommi_print_add(t, ", length -> words[");
        dcommi_print_expr(t, &word);
        dcommi_print_add(t, "]");
    }
    if (encodes || s->kind == DCOMM_STEP_DECODE) {
        dcommi_print_add(t, ", elements from ");
        dcommi_print_expr(t, &s->index);
    }
    dcommi_print_add(t, "%s%s%s%s", (s->flags & DCOMM_STEP_ASYNC) != 0 ? " ASYNC" : "",
                     (s->flags & DCOMM_STEP_FINAL) != 0 ? " FINAL" : "",
                     (s->flags & DCOMM_STEP_FORWARD) != 0 ? " FORWARD" : "",
                     (s->flags & DCOMM_STEP_RESULT) != 0 ? " RESULT" : "");
}

dcomm_status dcomm_plan_print(const dcomm_plan *p, char *buf, size_t len, size_t *needed_p)
{
    if (p == NULL || (buf == NULL && len > 0)) {
        return dcommi_fail(DCOMM_ERR_INVALID, "dcomm_plan_print: %s is NULL",
                           p == NULL ? "plan" : "buf");
    }
    dcommi_print_text t = {buf, len, 0};
    dcommi_print_add(
        &t, "plan \"%s\" rank %d of %d, %s %s: IN %" PRId64 ", OUT %" PRId64 ", SCRATCH %" PRId64,
        p->name != NULL ? p->name : "", p->rank, p->nranks, dcomm_op_name((dcomm_op)p->op),
        dcomm_dtype_name((dcomm_dtype)p->dtype), p->in_bytes, p->out_bytes, p->scratch_bytes);
    dcommi_print_add(
        &t,
        " bytes; %" PRIu32 " tags, %" PRIu32 " counters, %" PRIu32 " slots, %" PRIu32 " words%s\n",
        p->ntags, p->ncounters, p->nslots, p->nwords, p->next != NULL ? "; a stage follows" : "");
    for (uint32_t i = 0; i < p->nlanes; i++) {
        const dcomm_lane *lane = &p->lanes[i];
        int depth = 0;
        dcommi_print_add(&t, "lane %" PRIu32 "\n", i);
        if (lane->first > p->nsteps || p->nsteps - lane->first < lane->count) {
            dcommi_print_add(&t, "  ?\n");
            continue;
        }
        for (uint32_t k = 0; k < lane->count; k++) {
            const dcomm_step *s = &p->steps[lane->first + k];
            depth -= s->kind == DCOMM_STEP_END && depth > 0;
            dcommi_print_add(&t, "%4" PRIu32 "  %*s", k, 2 * (depth < 8 ? depth : 8), "");
            dcommi_print_step(&t, p, s, depth);
            dcommi_print_add(&t, "\n");
            depth += s->kind == DCOMM_STEP_LOOP;
        }
    }
    if (needed_p != NULL) {
        *needed_p = t.used;
    }
    return DCOMM_OK;
}

#endif
