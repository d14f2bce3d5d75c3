/* test_check_parts.c - the plan checker on plans of several parts (sub-plans, stages, codecs), on
 * bad arguments, and on garbage; the printer. */
#define _GNU_SOURCE
#define DCOMM_IMPLEMENTATION
#include "check_plans.h"

/* ---- sub-plans, run-time lengths, stages, codecs ---- */

/* Even and odd ranks reduce separately. Then pairs (0,1) and (2,3) join the two results. */
static set two_levels(dcomm_plan **subs, bool fault)
{
    set s = {.n = 4};
    for (int r = 0; r < 4; r++) {
        dcomm_builder b;
        subs[2 * r] = pair_plan(r / 2, true);
        subs[2 * r + 1] = pair_plan(r % 2, true);
        begin(&b, "two levels", r, 4, 64, 64);
        dcomm_build_tags(&b, 4);
        dcomm_operand mid = scratch(dcomm_build_scratch(&b, 64), 64);
        int64_t first[2] = {r % 2, r % 2 + 2}, then[2] = {r - r % 2, r - r % 2 + 1};
        int64_t group = dcomm_build_table(&b, first, 2);
        dcomm_build_call(&b, 0, subs[2 * r], group, in(0, 64), mid, num(0));
        group = dcomm_build_table(&b, then, 2);
        dcomm_build_call(&b, 0, subs[2 * r + 1], group, fault ? in(0, 64) : mid, out(0, 64),
                         num(2));
        s.plan[r] = finish(&b);
    }
    return s;
}

static void done_subs(dcomm_plan **subs)
{
    for (int i = 0; i < 8; i++) {
        dcommi_free(subs[i]);
    }
}

Test(right, sub_plan)
{
    dcomm_plan *subs[8];
    set s = two_levels(subs, false);
    right(&s, pair_spec);
    done_subs(subs);
    s = two_levels(subs, true);
    wrong(&s, pair_spec, "hold the ranks 0x3", "should hold 0xf");
    done_subs(subs);
    s = two_levels(subs, false);
    step(&s, 2, 1)->tag.add = 3;
    wrong(&s, pair_spec, "rank 2 lane 0 step 1 (call)", "tags 3+2 of 4");
    done_subs(subs);
    s = two_levels(subs, false);
    step(&s, 2, 1)->group = 0;
    wrong(&s, pair_spec, "rank 2 lane 0 step 1 (call)", "rank 0 of the group is 0, not 2");
    done_subs(subs);
    s = two_levels(subs, false);
    ((int64_t *)(uintptr_t)s.plan[2]->table)[0] = 4;
    wrong(&s, pair_spec, "rank 2 lane 0 step 0 (call)", "rank 4 in the group is none of 4");
    done_subs(subs);
    s = two_levels(subs, false);
    ((int64_t *)(uintptr_t)s.plan[2]->table)[0] = 2;
    wrong(&s, pair_spec, "rank 2 lane 0 step 0 (call)", "rank 2 is twice in the group");
    done_subs(subs);
}

static dcomm_status no_code(void *user, const dcomm_codec_place *place, const void *const *src,
                            const size_t *src_len, size_t nsrc, void *dst, size_t dst_len)
{
    (void)user, (void)place, (void)src, (void)src_len, (void)nsrc, (void)dst, (void)dst_len;
    return DCOMM_OK;
}

static dcomm_status no_encode(void *user, const dcomm_codec_place *place, const void *src,
                              size_t src_len, void *dst, size_t dst_len, size_t *encoded)
{
    (void)src_len;
    *encoded = 0;
    return no_code(user, place, &src, NULL, 1, dst, dst_len);
}

static const dcomm_plan_codec codec = {"none", no_encode, no_code, NULL};

/* OUT <- IN (+) the peer's IN, which arrives encoded; its length is known only at run time. */
static set compressed(bool fault)
{
    set s = {.n = 2};
    for (int r = 0; r < 2; r++) {
        dcomm_builder b;
        begin(&b, "compressed", r, 2, 64, 64);
        b.head.codec = &codec;
        b.head.nwords = 2;
        dcomm_build_tags(&b, 1);
        int64_t sent = dcomm_build_scratch(&b, 80), got = dcomm_build_scratch(&b, 80);
        dcomm_operand payload = scratch(sent, 80), arrived = scratch(got, 80);
        dcomm_operand src = in(0, 64);
        dcomm_step *e = dcommi_build_step(&b, 0, DCOMM_STEP_ENCODE);
        e->dst = payload;
        e->word = 0;
        dcommi_build_sources(&b, e, &src, 1);
        payload.length = dcommi_word(0);
        dcomm_build_send(&b, 0, payload, num(1 - r), num(0), DCOMM_STEP_ASYNC);
        dcomm_build_recv(&b, 0, arrived, num(1 - r), num(0), 0);
        if (!fault) {
            dcommi_build_step(&b, 0, DCOMM_STEP_FENCE);
            b.lanes[0].steps[2].word = 1;
        }
        arrived.length = fault ? num(80) : dcommi_word(1);
        dcomm_step *d = dcommi_build_step(&b, 0, DCOMM_STEP_DECODE);
        d->dst = out(0, 64);
        dcomm_operand both[2] = {r == 0 ? payload : arrived, r == 0 ? arrived : payload};
        dcommi_build_sources(&b, d, both, 2);
        s.plan[r] = finish(&b);
    }
    return s;
}

Test(right, compressed)
{
    set s = compressed(false);
    right(&s, pair_spec);
    s = compressed(true);
    wrong(&s, pair_spec, "(recv from", "takes 80 bytes, but");
}

static dcomm_plan *second[2];
static int released;

static const dcomm_plan *next_stage(void *user, const uint64_t *words, uint32_t nwords,
                                    dcomm_status *status)
{
    *status = nwords == 2 && words[1] <= 80 ? DCOMM_OK : DCOMM_ERR_INTERNAL;
    return *status == DCOMM_OK ? second[(uintptr_t)user] : NULL;
}

static void release_stage(void *user, const dcomm_plan *plan)
{
    released += plan == second[(uintptr_t)user];
}

Test(right, stages)
{
    for (int fault = 0; fault < 2; fault++) {
        set s = compressed(false);
        for (int r = 0; r < 2; r++) {
            s.plan[r]->next = next_stage;
            s.plan[r]->release = release_stage;
            s.plan[r]->next_user = (void *)(uintptr_t)r;
            second[r] = pair_plan(r, true);
            second[r]->ntags -= fault ? 2 : 0;
        }
        released = 0;
        if (fault) {
            wrong(&s, pair_spec, "lane 0 step 0 (send)", "tag 0 is not in [0, 0)");
        } else {
            right(&s, pair_spec);
            cr_assert_gt(released, 0);
        }
        dcommi_free(second[0]);
        dcommi_free(second[1]);
    }
}

/* ---- arguments, printing, and random garbage ---- */

Test(arguments, refused)
{
    set s = pair(true);
    dcomm_check_spec spec = pair_spec;
    const dcomm_plan *const *plans = (const dcomm_plan *const *)s.plan;
    cr_assert_eq(dcomm_plan_check(NULL, 2, &spec, NULL), DCOMM_ERR_INVALID);
    cr_assert_eq(dcomm_plan_check(plans, 2, NULL, NULL), DCOMM_ERR_INVALID);
    cr_assert_eq(dcomm_plan_check(plans, 65, &spec, NULL), DCOMM_ERR_INVALID);
    cr_assert_eq(dcomm_plan_check(plans, 2, &spec, NULL), DCOMM_OK);
    spec.coll = DCOMM_COLL_GATHERV;
    cr_assert_eq(dcomm_plan_check(plans, 2, &spec, NULL), DCOMM_ERR_INVALID);
    spec.coll = DCOMM_COLL_REDUCE;
    spec.root = 2;
    cr_assert_eq(dcomm_plan_check(plans, 2, &spec, NULL), DCOMM_ERR_INVALID);
    done(&s);
}

static uint64_t seed;

static uint64_t draw(uint64_t below)
{
    seed = dcommi_mix(seed, 1);
    return seed % below;
}

static int64_t garbage(int64_t was)
{
    static const int64_t numbers[] = {0,  1,   -1,    2,         63,        64,       65,
                                      -2, 255, 65536, INT32_MAX, INT64_MAX, INT64_MIN};
    switch (draw(4)) {
    case 0:
        return was + 1;
    case 1:
        return was - 1;
    case 2:
        return (int64_t)((uint64_t)was * 2);
    default:
        return numbers[draw(sizeof numbers / sizeof numbers[0])];
    }
}

static void spoil_expr(dcomm_expr *e)
{
    int64_t *field[] = {&e->add,     &e->scale,   &e->post[0], &e->post[1], &e->base,
                        &e->coef[0], &e->coef[1], &e->mod,     &e->coef[2]};
    if (draw(8) == 0) {
        e->kind = (uint8_t)draw(6);
    } else {
        int64_t *f = field[draw(sizeof field / sizeof field[0])];
        *f = *f<INT64_MAX && * f> INT64_MIN ? garbage(*f) : 0;
    }
}

static void spoil_operand(dcomm_operand *o)
{
    switch (draw(8)) {
    case 0:
        o->space = (uint8_t)draw(10);
        break;
    case 1:
        o->repeat = (uint32_t)garbage(o->repeat);
        break;
    case 2:
        o->stride = garbage(o->stride);
        break;
    case 3:
        o->max_length = garbage(o->max_length);
        break;
    case 4:
        o->clip = garbage(o->clip);
        break;
    case 5:
        spoil_expr(&o->offset);
        break;
    case 6:
        spoil_expr(&o->length);
        break;
    default:
        spoil_expr(&o->peer);
        break;
    }
}

static void spoil_step(dcomm_step *s)
{
    switch (draw(14)) {
    case 0:
        s->kind = (uint8_t)draw(DCOMM_STEP_KIND_COUNT + 2);
        break;
    case 1:
        s->flags = (uint8_t)draw(5);
        break;
    case 2:
        s->slot = (uint16_t)garbage(s->slot);
        break;
    case 3:
        s->src = (uint32_t)garbage(s->src);
        break;
    case 4:
        s->nsrc = (uint32_t)garbage(s->nsrc);
        break;
    case 5:
        s->body = (uint32_t)garbage(s->body);
        break;
    case 6:
        s->sub = (uint32_t)garbage(s->sub);
        break;
    case 7:
        s->group = (uint32_t)garbage(s->group);
        break;
    case 8:
        s->word = (int32_t)garbage(s->word);
        break;
    case 9:
        spoil_operand(&s->dst);
        break;
    case 10:
        spoil_operand(&s->stage);
        break;
    case 11:
        spoil_expr(&s->peer);
        break;
    case 12:
        spoil_expr(&s->tag);
        break;
    default:
        spoil_expr(&s->value);
        break;
    }
}

static void spoil(dcomm_plan *p)
{
    switch (draw(12)) {
    case 0: {
        uint32_t *field[] = {&p->nwords, &p->ncounters, &p->nslots, &p->ntags};
        uint32_t *f = field[draw(4)];
        *f = (uint32_t)garbage(*f);
        break;
    }
    case 1: {
        int64_t *field[] = {&p->in_bytes, &p->out_bytes, &p->scratch_bytes};
        int64_t *f = field[draw(3)];
        *f = garbage(*f);
        break;
    }
    case 2: {
        dcomm_lane *lane = (dcomm_lane *)(uintptr_t)&p->lanes[draw(p->nlanes)];
        *(draw(2) ? &lane->first : &lane->count) = (uint32_t)garbage(lane->count);
        break;
    }
    case 3:
        if (p->ntable > 0) {
            int64_t *value = (int64_t *)(uintptr_t)&p->table[draw(p->ntable)];
            *value = garbage(*value);
        }
        break;
    case 4:
    case 5:
    case 6:
        if (p->noperands > 0) {
            spoil_operand((dcomm_operand *)(uintptr_t)&p->operands[draw(p->noperands)]);
        }
        break;
    default:
        spoil_step((dcomm_step *)(uintptr_t)&p->steps[draw(p->nsteps)]);
        break;
    }
}

Test(any, garbage_is_refused_or_right, .timeout = 120)
{
    int refused = 0;
    char text[4096];
    for (int i = 0; i < 4000; i++) {
        seed = (uint64_t)i;
        dcomm_plan *subs[8];
        bool calls = i % 8 == 7;
        set s = calls        ? two_levels(subs, false)
                : i % 4 == 0 ? ring(3, DCOMM_AVG)
                : i % 4 == 1 ? one_shot(3, 2, FINE, true)
                : i % 4 == 2 ? compressed(false)
                             : overwrite(true);
        dcomm_check_spec spec = i % 4 == 0             ? ring_spec(3)
                                : i % 4 == 3 && !calls ? f32(DCOMM_COLL_PLAN, 0)
                                                       : pair_spec;
        for (uint64_t k = 1 + draw(3); k > 0; k--) {
            spoil(calls && draw(2) ? subs[draw(8)] : s.plan[draw((uint64_t)s.n)]);
        }
        dcomm_status status = check(&s, spec);
        cr_assert(status == DCOMM_OK || status == DCOMM_ERR_PLAN, "seed %d: %d %s", i, status,
                  report.message);
        refused += status != DCOMM_OK;
        for (int r = 0; r < s.n; r++) {
            dcomm_plan_print(s.plan[r], text, sizeof text, NULL);
        }
        done(&s);
        if (calls) {
            done_subs(subs);
        }
    }
    cr_assert_gt(refused, 1500);
}

Test(print, says_what_there_is)
{
    char text[8192], little[40];
    size_t needed = 0;
    set s = ring(4, DCOMM_SUM);
    cr_assert_eq(dcomm_plan_print(s.plan[1], text, sizeof text, &needed), DCOMM_OK);
    cr_assert_eq(needed, strlen(text));
    cr_assert_not_null(strstr(text, "OUT[1024*((2-i) mod 4), 1024]"), "%s", text);
    cr_assert_not_null(strstr(text, "recv_reduce"));
    cr_assert_eq(dcomm_plan_print(s.plan[1], little, sizeof little, &needed), DCOMM_OK);
    cr_assert_eq(strlen(little), sizeof little - 1);
    cr_assert_eq(needed, strlen(text));
    cr_assert_eq(dcomm_plan_print(s.plan[1], NULL, 0, &needed), DCOMM_OK);
    cr_assert_eq(dcomm_plan_print(NULL, text, sizeof text, &needed), DCOMM_ERR_INVALID);
    done(&s);
}
