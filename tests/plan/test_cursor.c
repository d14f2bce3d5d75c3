/* test_cursor.c - the cursor that walks plans, against hand-written numbers. Engine, checker,
 * model and simulator all share it, so none of them would notice its mistakes. */
#define _GNU_SOURCE
#pragma GCC diagnostic ignored "-Warray-bounds" /* gcc 12 follows END where no loop is open */
#define DCOMM_IMPLEMENTATION
#include "dcomm/impl/base/base_impl.h"

#include "dcomm/impl/plan/cursor.h"

#include <criterion/criterion.h>

static const int64_t table[] = {5, 7, 11, 13, 2, 0, 1};
static const uint64_t words[] = {3, 4, 0};

/* A plan with nothing but a table and words, and a cursor with open loops. */
typedef struct place {
    dcomm_plan plan;
    dcommi_scope scope;
    dcommi_cursor cursor;
} place;

static void stand(place *p, int depth, int64_t i, int64_t j, int64_t k)
{
    memset(p, 0, sizeof *p);
    p->plan = (dcomm_plan){.name = "place",
                           .rank = 1,
                           .nranks = 4,
                           .table = table,
                           .ntable = 7,
                           .nwords = 3,
                           .ntags = 10};
    p->scope.plan = &p->plan;
    p->scope.words = words;
    p->cursor.scope = &p->scope;
    p->cursor.at = (dcommi_position){.depth = depth, .index = {i, j, k}};
}

static int64_t value(const place *p, dcomm_expr e)
{
    int64_t v = -77;
    cr_assert_eq(dcommi_cursor_value(&p->cursor, &e, &v), DCOMM_OK, "%s", dcommi_message);
    return v;
}

static void refused(dcomm_status status, const char *says)
{
    cr_assert_eq(status, DCOMM_ERR_PLAN);
    cr_assert(strstr(dcommi_message, says) != NULL, "%s, not %s", dcommi_message, says);
}

static void wrong(const place *p, dcomm_expr e, const char *says)
{
    int64_t v;
    refused(dcommi_cursor_value(&p->cursor, &e, &v), says);
}

Test(cursor, every_kind_of_expression)
{
    place p;
    stand(&p, 3, 2, 3, 4);
    dcomm_expr e = {.kind = DCOMM_EXPR_CONST, .add = 9, .scale = 5, .base = 6, .post = {1, 1, 1}};
    cr_assert_eq(value(&p, e), 9);
    /* x = 1 + 2*2 + 10*3 - 1*4 = 31; 3*31 + 7*2 + 0*3 + 1*4 + 9 = 120 */
    e = (dcomm_expr){.kind = DCOMM_EXPR_AFFINE,
                     .add = 9,
                     .scale = 3,
                     .post = {7, 0, 1},
                     .base = 1,
                     .coef = {2, 10, -1}};
    cr_assert_eq(value(&p, e), 120);
    e.mod = 8; /* 31 mod 8 = 7 */
    cr_assert_eq(value(&p, e), 3 * 7 + 14 + 4 + 9);
    e.base = -40; /* -10 mod 8 = 6 */
    cr_assert_eq(value(&p, e), 3 * 6 + 14 + 4 + 9);
    /* x = -3 + 2 + 3 = 2, first 1: table[3] = 13; 2*13 + 5*4 - 1 */
    e = (dcomm_expr){.kind = DCOMM_EXPR_TABLE,
                     .add = -1,
                     .scale = 2,
                     .post = {0, 0, 5},
                     .base = -3,
                     .coef = {1, 1, 0},
                     .first = 1};
    cr_assert_eq(value(&p, e), 45);
    e.mod = 2; /* x = 0: table[1] = 7 */
    cr_assert_eq(value(&p, e), 14 + 20 - 1);
    e = (dcomm_expr){.kind = DCOMM_EXPR_WORD, .scale = -2, .base = 3, .coef = {-1}, .add = 100};
    cr_assert_eq(value(&p, e), 100 - 2 * 4); /* x = 1 */
    stand(&p, 0, 0, 0, 0);                   /* no loop is open */
    cr_assert_eq(value(&p, e = (dcomm_expr){.kind = DCOMM_EXPR_AFFINE, .coef = {9}, .post = {9}}),
                 0);
    cr_assert_eq(value(&p, (dcomm_expr){.kind = 0}), 0);
}

Test(cursor, values_outside_their_ranges)
{
    place p;
    stand(&p, 1, 2, 0, 0);
    dcomm_expr e = {.kind = DCOMM_EXPR_TABLE, .scale = 1, .base = 5, .coef = {1}};
    wrong(&p, e, "table[7] of 7");
    e.base = -3;
    wrong(&p, e, "table[-1] of 7");
    e.kind = DCOMM_EXPR_WORD;
    wrong(&p, e, "words[-1] of 3");
    e.base = 1;
    wrong(&p, e, "words[3] of 3");
    e.base = INT64_MAX;
    e.first = 2;
    e.coef[0] = 0;
    int64_t v;
    cr_assert_eq(dcommi_cursor_value(&p.cursor, &e, &v), DCOMM_ERR_PLAN);
    e.kind = DCOMM_EXPR_TABLE;
    wrong(&p, e, "64 bits");
    e = (dcomm_expr){.kind = DCOMM_EXPR_AFFINE, .scale = INT64_MAX, .base = 2};
    wrong(&p, e, "64 bits");
    e = (dcomm_expr){.kind = DCOMM_EXPR_AFFINE, .post = {INT64_MAX}};
    wrong(&p, e, "64 bits");
    p.scope.words = NULL; /* their values are unknown */
    e = (dcomm_expr){.kind = DCOMM_EXPR_WORD, .scale = 1};
    cr_assert_eq(dcommi_cursor_value(&p.cursor, &e, &v), DCOMM_ERR_UNSUPPORTED);
}

static dcomm_status tell(const dcommi_cursor *c, int64_t at, int64_t *v)
{
    *v = 1000 * c->at.index[0] + at;
    return at == 2 ? dcommi_fail(DCOMM_ERR_CORRUPT, "word 2") : DCOMM_OK;
}

Test(cursor, words_by_a_callback)
{
    place p;
    int64_t v;
    stand(&p, 1, 6, 0, 0);
    p.scope.words = NULL;
    p.scope.word = tell;
    dcomm_expr e = {.kind = DCOMM_EXPR_WORD, .scale = 2, .base = 1};
    cr_assert_eq(value(&p, e), 2 * 6001);
    e.base = 2;
    cr_assert_eq(dcommi_cursor_value(&p.cursor, &e, &v), DCOMM_ERR_CORRUPT);
    e.base = 3;
    wrong(&p, e, "words[3] of 3");
}

static void piece(const place *p, const dcomm_operand *o, uint32_t r, int64_t offset,
                  int64_t length)
{
    dcommi_interval x;
    cr_assert_eq(dcommi_cursor_piece(&p->cursor, o, r, &x), DCOMM_OK, "%s", dcommi_message);
    cr_assert(x.offset == offset && x.length == length, "piece %u: %" PRId64 "+%" PRId64, r,
              x.offset, x.length);
}

/* Repeat, stride, clip and max_length. If a length is a word, piece r has the r-th word behind
 * it. */
Test(cursor, pieces)
{
    place p;
    dcommi_interval x;
    stand(&p, 1, 2, 0, 0);
    dcomm_operand o = dcomm_at(DCOMM_SPACE_OUT, dcomm_linear(10, 0, 100), 64);
    cr_assert_eq(dcommi_operand_pieces(&o), 1);
    o.repeat = 4;
    o.stride = 70;
    o.clip = 400;
    cr_assert_eq(dcommi_operand_pieces(&o), 4);
    piece(&p, &o, 0, 210, 64);
    piece(&p, &o, 1, 280, 64);
    piece(&p, &o, 2, 350, 50); /* up to 400 */
    piece(&p, &o, 3, 420, 0);
    o.clip = 0;
    piece(&p, &o, 3, 420, 64);
    o.max_length = 20;
    piece(&p, &o, 1, 280, 20);
    o.length.add = -5;
    piece(&p, &o, 1, 280, 0);
    o.stride = -210;
    o.length.add = 8;
    piece(&p, &o, 2, -210, 8);
    o.length = dcommi_word(0);
    o.stride = 1;
    piece(&p, &o, 0, 210, 3);
    piece(&p, &o, 1, 211, 4);
    piece(&p, &o, 2, 212, 0);
    refused(dcommi_cursor_piece(&p.cursor, &o, 3, &x), "words[3] of 3");
    o.length = dcomm_const(8);
    o.stride = INT64_MAX;
    refused(dcommi_cursor_piece(&p.cursor, &o, 1, &x), "piece 1 exceeds 64 bits");
    o = dcomm_at(DCOMM_SPACE_OUT, dcomm_const(-8), 8);
    o.clip = INT64_MAX;
    piece(&p, &o, 0, -8, 8);
    cr_assert(dcommi_interval_within(&(dcommi_interval){56, 8}, 64));
    cr_assert(dcommi_interval_within(&(dcommi_interval){-9, 0}, 0));
    cr_assert(!dcommi_interval_within(&(dcommi_interval){57, 8}, 64));
    cr_assert(!dcommi_interval_within(&(dcommi_interval){-1, 8}, 64));
    cr_assert(!dcommi_interval_within(&(dcommi_interval){INT64_MAX - 1, 8}, 64));
    cr_assert(!dcommi_interval_within(&(dcommi_interval){0, 8}, 0));
    refused(dcommi_interval_outside(&(dcommi_interval){57, 8}, DCOMM_SPACE_IN, 64),
            "bytes 57 to 65 of IN, which has 64");
}

/* ---- loops ---- */

static dcomm_plan *finish(dcomm_builder *b)
{
    dcomm_plan *plan = NULL;
    cr_assert_eq(dcommi_build_finish(b, &plan), DCOMM_OK, "%s", dcommi_message);
    return plan;
}

/* Walk a lane; write to `seen` the `value` of each step that is no loop. Stop after `most`. */
static size_t walk(const dcomm_plan *plan, int64_t *seen, size_t most)
{
    dcommi_scope scope = {.plan = plan, .words = words};
    dcommi_cursor c;
    const dcomm_step *step;
    size_t n = 0;
    dcommi_cursor_start(&c, &scope, 0);
    while ((step = dcommi_cursor_step(&c)) != NULL && n < most) {
        if (dcommi_cursor_turns(step)) {
            cr_assert_eq(dcommi_cursor_turn(&c, step), DCOMM_OK, "%s", dcommi_message);
            continue;
        }
        cr_assert_eq(dcommi_cursor_value(&c, &step->value, &seen[n++]), DCOMM_OK);
        dcommi_cursor_next(&c);
    }
    cr_assert(step != NULL || (c.at.depth == 0 && c.at.index[0] == 0 && c.at.index[2] == 0));
    return n;
}

static void sees(const dcomm_plan *plan, const int64_t *want, size_t n)
{
    int64_t seen[64];
    cr_assert_eq(walk(plan, seen, 64), n);
    for (size_t i = 0; i < n; i++) {
        cr_assert_eq(seen[i], want[i], "step %zu: %" PRId64, i, seen[i]);
    }
}

Test(cursor, nested_loops)
{
    static dcomm_builder b;
    dcommi_build_begin(&b, "loops", 0, 2, DCOMM_F32, DCOMM_SUM);
    uint16_t c = dcomm_build_counter(&b);
    dcomm_expr e = {.kind = DCOMM_EXPR_AFFINE, .post = {100, 10, 1}};
    dcomm_build_wait(&b, 0, c, e);
    dcomm_build_loop(&b, 0, dcomm_const(2));
    dcomm_build_wait(&b, 0, c, e);
    int d = dcomm_build_loop(&b, 0, dcomm_linear(0, 0, 2)); /* 0 trips, then 2 */
    cr_assert_eq(d, 1);
    dcomm_build_loop(&b, 0, dcomm_linear(1, 1, 1)); /* 1 trip, then 2 */
    dcomm_build_wait(&b, 0, c, dcomm_plus(e, 5000));
    dcomm_build_end(&b, 0);
    dcomm_build_end(&b, 0);
    dcomm_build_end(&b, 0);
    dcomm_build_wait(&b, 0, c, e); /* all loops are shut again */
    dcomm_plan *plan = finish(&b);
    const int64_t want[] = {0, 0, 100, 5100, 5110, 5111, 0};
    sees(plan, want, 7);
    dcommi_free(plan);
}

/* Loops of no trips, of fewer than none, of a word's number of trips, and an empty body with more
 * trips than anybody can wait for. */
Test(cursor, loops_of_nothing, .timeout = 10)
{
    static dcomm_builder b;
    dcommi_build_begin(&b, "none", 0, 2, DCOMM_F32, DCOMM_SUM);
    b.head.nwords = 3;
    uint16_t c = dcomm_build_counter(&b);
    const dcomm_expr trips[] = {dcomm_const(0), dcomm_const(-3), dcommi_word(2),
                                dcomm_const(INT64_MAX), dcommi_word(0)};
    for (int64_t i = 0; i < 5; i++) {
        dcomm_build_loop(&b, 0, trips[i]);
        if (i != 3) {
            dcomm_build_wait(&b, 0, c, dcomm_linear(i, 0, 10));
        }
        dcomm_build_end(&b, 0);
    }
    dcomm_plan *plan = finish(&b);
    const int64_t want[] = {4, 14, 24};
    sees(plan, want, 3);
    dcommi_free(plan);
    dcommi_build_begin(&b, "no such word", 0, 2, DCOMM_F32, DCOMM_SUM);
    b.head.nwords = 3;
    dcomm_build_loop(&b, 0, dcommi_word(3));
    dcomm_build_end(&b, 0);
    plan = finish(&b);
    dcommi_scope scope = {.plan = plan, .words = words};
    dcommi_cursor at;
    dcommi_cursor_start(&at, &scope, 0);
    refused(dcommi_cursor_turn(&at, dcommi_cursor_step(&at)), "words[3] of 3");
    dcommi_free(plan);
}

/* ---- ranks, tags, words, elements ---- */

Test(cursor, peers_and_targets)
{
    place p;
    int rank;
    dcommi_targets t;
    dcomm_step s = {.kind = DCOMM_STEP_SIGNAL};
    stand(&p, 0, 0, 0, 0);
    s.peer = dcomm_const(3);
    cr_assert_eq(dcommi_cursor_peer(&p.cursor, &s.peer, &rank), DCOMM_OK);
    cr_assert_eq(rank, 3);
    cr_assert_eq(dcommi_cursor_targets(&p.cursor, &s, &t), DCOMM_OK);
    cr_assert(t.first == 3 && t.last == 3 && t.but == -1);
    s.peer = dcomm_const(1);
    refused(dcommi_cursor_peer(&p.cursor, &s.peer, &rank), "which is itself");
    cr_assert_eq(dcommi_cursor_targets(&p.cursor, &s, &t), DCOMM_OK); /* its own counter */
    cr_assert(t.first == 1 && t.last == 1 && t.but == -1);
    s.peer = dcomm_const(DCOMM_ALL_PEERS);
    cr_assert_eq(dcommi_cursor_targets(&p.cursor, &s, &t), DCOMM_OK);
    cr_assert(t.first == 0 && t.last == 3 && t.but == 1);
    refused(dcommi_cursor_peer(&p.cursor, &s.peer, &rank), "rank -1 of 4");
    s.peer = dcomm_const(4);
    refused(dcommi_cursor_peer(&p.cursor, &s.peer, &rank), "rank 4 of 4");
    refused(dcommi_cursor_targets(&p.cursor, &s, &t), "rank 4 of 4");
    s.peer = dcomm_const(-2);
    refused(dcommi_cursor_targets(&p.cursor, &s, &t), "rank -2 of 4");
    const int want[] = {2, 3, 0}; /* pieces 0, 1, 2 of an operand whose peer is 2 */
    for (uint32_t r = 0; r < 3; r++) {
        cr_assert_eq(dcommi_cursor_owner(&p.cursor, 2, r, &rank), DCOMM_OK);
        cr_assert_eq(rank, want[r]);
    }
    refused(dcommi_cursor_owner(&p.cursor, 2, 3, &rank), "its own memory");
    refused(dcommi_cursor_owner(&p.cursor, 4, 0, &rank), "rank 4 of 4");
    refused(dcommi_cursor_owner(&p.cursor, -1, 1, &rank), "rank -1 of 4");
}

Test(cursor, tags_words_and_elements)
{
    place p;
    int64_t v;
    int32_t word;
    stand(&p, 1, 2, 0, 0);
    p.scope.tag = 100;
    p.scope.element = 1000;
    dcomm_step s = {.kind = DCOMM_STEP_RECV,
                    .word = -1,
                    .tag = dcomm_linear(5, 0, 2),
                    .index = dcomm_linear(1, 0, 3)};
    cr_assert_eq(dcommi_cursor_tag(&p.cursor, &s, &v), DCOMM_OK);
    cr_assert_eq(v, 109);
    s.tag.add = 6;
    refused(dcommi_cursor_tag(&p.cursor, &s, &v), "tag 10 is not in [0, 10)");
    s.tag.add = -5;
    refused(dcommi_cursor_tag(&p.cursor, &s, &v), "tag -1");
    cr_assert_eq(dcommi_cursor_element(&p.cursor, &s, &v), DCOMM_OK);
    cr_assert_eq(v, 1007);
    s.index.add = -1007;
    refused(dcommi_cursor_element(&p.cursor, &s, &v), "element");
    s.value = dcomm_const(7);
    cr_assert_eq(dcommi_cursor_word(&p.cursor, &s, &word), DCOMM_OK);
    cr_assert_eq(word, -1); /* none, whatever the value */
    s.word = 1;
    s.value = dcomm_linear(-3, 0, 2);
    cr_assert_eq(dcommi_cursor_word(&p.cursor, &s, &word), DCOMM_OK);
    cr_assert_eq(word, 2);
    s.value.add = -2;
    refused(dcommi_cursor_word(&p.cursor, &s, &word), "words[3] of 3");
    s.value.add = -6;
    refused(dcommi_cursor_word(&p.cursor, &s, &word), "words[-1] of 3");
    s.value = dcomm_const(INT64_MAX);
    refused(dcommi_cursor_word(&p.cursor, &s, &word), "of 3");
    s.kind = DCOMM_STEP_RECV_REDUCE; /* it takes only the length of its dst */
    cr_assert_eq(dcommi_cursor_word(&p.cursor, &s, &word), DCOMM_OK);
    cr_assert_eq(word, -1);
}

/* ---- sub-plans ---- */

/* Rank 5 of 8 calls a plan as rank 1 of {6, 5, 2, 7}. That plan calls a third one as rank 1 of {3,
 * 1}. All numbers are shifted by both. */
Test(cursor, sub_plans_in_sub_plans)
{
    dcomm_plan inner = {
        .name = "inner", .rank = 1, .nranks = 2, .ntags = 2, .ncounters = 3, .nslots = 1};
    const dcomm_plan *const inners[] = {&inner};
    const int64_t middle_table[] = {9, 3, 1}, outer_table[] = {6, 5, 2, 7};
    dcomm_plan middle = {.name = "middle",
                         .rank = 1,
                         .nranks = 4,
                         .ntags = 10,
                         .ncounters = 9,
                         .nslots = 6,
                         .subs = inners,
                         .nsubs = 1,
                         .table = middle_table,
                         .ntable = 3};
    const dcomm_plan *const middles[] = {&middle};
    dcomm_plan outer = {.name = "outer",
                        .rank = 5,
                        .nranks = 8,
                        .ntags = 100,
                        .ncounters = 50,
                        .nslots = 20,
                        .subs = middles,
                        .nsubs = 1,
                        .table = outer_table,
                        .ntable = 4};
    dcommi_scope root = {.plan = &outer}, second, third;
    dcommi_cursor c = {.scope = &root, .at = {.depth = 1, .index = {3}}};
    dcomm_step call = {.kind = DCOMM_STEP_CALL,
                       .slot = 2,
                       .word = 4,
                       .tag = dcomm_linear(10, 0, 10),
                       .value = dcomm_linear(0, 0, 9),
                       .peer = dcomm_linear(1, 0, 3),
                       .index = dcomm_linear(0, 0, 500)};
    cr_assert_eq(dcommi_cursor_call(&c, &call, &second), DCOMM_OK, "%s", dcommi_message);
    cr_assert(second.plan == &middle && second.outer == &root && second.words == NULL);
    cr_assert(second.tag == 40 && second.counter == 29 && second.slot == 14 &&
              second.element == 1500);
    dcommi_cursor in = {.scope = &second, .at = {.depth = 1, .index = {2}}};
    dcomm_step next = {.kind = DCOMM_STEP_CALL,
                       .slot = 0,
                       .word = -1,
                       .group = 1,
                       .tag = dcomm_linear(0, 0, 4),
                       .value = dcomm_linear(0, 0, 3),
                       .peer = dcomm_linear(0, 0, 2),
                       .index = dcomm_const(7)};
    cr_assert_eq(dcommi_cursor_call(&in, &next, &third), DCOMM_OK, "%s", dcommi_message);
    cr_assert(third.tag == 48 && third.counter == 35 && third.slot == 18 && third.element == 1507);
    /* inner 0, 1 -> middle 3, 1 -> outer 7, 5 */
    cr_assert(dcommi_scope_rank(&third, 0) == 7 && dcommi_scope_rank(&third, 1) == 5);
    cr_assert(dcommi_scope_rank(&second, 0) == 6 && dcommi_scope_rank(&second, 2) == 2);
    cr_assert_eq(dcommi_scope_rank(&root, 6), 6);
    dcommi_cursor at = {.scope = &third};
    int rank;
    int64_t tag;
    dcomm_step send = {.kind = DCOMM_STEP_SEND, .peer = dcomm_const(0), .tag = dcomm_const(1)};
    cr_assert_eq(dcommi_cursor_peer(&at, &send.peer, &rank), DCOMM_OK);
    cr_assert_eq(dcommi_cursor_tag(&at, &send, &tag), DCOMM_OK);
    cr_assert(rank == 7 && tag == 49);
    cr_assert_eq(dcommi_cursor_owner(&at, 1, 1, &rank), DCOMM_OK);
    cr_assert_eq(rank, 7);
    /* A caller's limits: the last value that fits, then the one after it. */
    next.tag = dcomm_const(8);
    cr_assert_eq(dcommi_cursor_call(&in, &next, &third), DCOMM_OK);
    next.tag = dcomm_const(9);
    refused(dcommi_cursor_call(&in, &next, &third), "tags 9+2 of 10");
    next.tag = dcomm_const(-1);
    refused(dcommi_cursor_call(&in, &next, &third), "tags -1+2 of 10");
    next.tag = dcomm_const(0);
    next.value = dcomm_const(7);
    refused(dcommi_cursor_call(&in, &next, &third), "counters 7+3 of 9");
    next.value = dcomm_const(-1);
    refused(dcommi_cursor_call(&in, &next, &third), "counters -1+3 of 9");
    next.value = dcomm_const(6);
    next.peer = dcomm_const(6);
    refused(dcommi_cursor_call(&in, &next, &third), "slots 6+1 of 6");
    next.peer = dcomm_const(5);
    cr_assert_eq(dcommi_cursor_call(&in, &next, &third), DCOMM_OK);
    next.index = dcomm_const(INT64_MAX);
    refused(dcommi_cursor_call(&in, &next, &third), "64 bits");
}
