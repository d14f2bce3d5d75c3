/* test_pipeline_schedule.c - schedules of pipelines against what defines them: each pass comes
 * once, all can run in their order, activations are bounded, and in unit times the bubble is the
 * formula's. */
#include "../../examples/pipeline_schedule.h"

#include <criterion/criterion.h>

#include <stdlib.h>
#include <string.h>

enum { MOST_RANKS = 12, MOST_OPS = 2 * 48 * 4 };

static pipeline_op ops[MOST_RANKS][MOST_OPS];

static void make(const pipeline_shape *s)
{
    cr_assert(pipeline_valid(s) && pipeline_ops(s) <= MOST_OPS);
    memset(ops, -1, sizeof ops);
    for (int r = 0; r < s->p; r++) {
        pipeline_schedule(s, r, ops[r]);
    }
}

#define WHERE "%s, p %d, m %d, v %d, rank %d"
static const char *const names[] = {"gpipe", "1f1b", "interleaved"};
#define PLACE(s, r) names[(s)->kind], (s)->p, (s)->m, (s)->v, r

/* Call `check` for many shapes. */
static void each(void (*check)(const pipeline_shape *))
{
    for (int p = 1; p <= MOST_RANKS; p++) {
        for (int m = 1; m <= 4 * p && m <= 48; m++) {
            check(&(pipeline_shape){PIPELINE_GPIPE, p, m, 1});
            check(&(pipeline_shape){PIPELINE_1F1B, p, m, 1});
            for (int v = 1; v <= 4 && m % p == 0; v++) {
                check(&(pipeline_shape){PIPELINE_INTERLEAVED, p, m, v});
            }
        }
    }
}

/* Each micro-batch passes each chunk once forward, then once backward. Its activations have a slot
 * meanwhile that no other has. */
static void once(const pipeline_shape *s)
{
    make(s);
    for (int r = 0; r < s->p; r++) {
        int holder[MOST_OPS], passes[48][4] = {{0}}, slots = pipeline_slots(s, r), used = 0;
        memset(holder, -1, sizeof holder);
        for (int k = 0; k < pipeline_ops(s); k++) {
            const pipeline_op *op = &ops[r][k];
            cr_assert(op->micro >= 0 && op->micro < s->m && op->chunk >= 0 && op->chunk < s->v,
                      WHERE, PLACE(s, r));
            cr_assert(op->slot >= 0 && op->slot < slots, WHERE, PLACE(s, r));
            cr_assert_eq(passes[op->micro][op->chunk]++, op->backward, WHERE, PLACE(s, r));
            const int who = op->micro * s->v + op->chunk;
            cr_assert_eq(holder[op->slot], op->backward ? who : -1, WHERE, PLACE(s, r));
            holder[op->slot] = op->backward ? -1 : who;
            used = op->slot >= used ? op->slot + 1 : used;
        }
        cr_assert_eq(used, slots, WHERE ": %d slots, not %d", PLACE(s, r), used, slots);
        for (int i = 0; i < s->m * s->v; i++) {
            cr_assert_eq(passes[i / s->v][i % s->v], 2, WHERE, PLACE(s, r));
        }
    }
}

Test(pipeline_schedule, each_pass_comes_once)
{
    each(once);
}

/* Return the rank on the other side of an operation's message, which it sends or receives, or -1.
 */
static int peer(const pipeline_shape *s, int rank, const pipeline_op *op, bool sends)
{
    const int stage = pipeline_stage(s, rank, op->chunk) + (op->backward == sends ? -1 : 1);
    return stage < 0 || stage == s->p * s->v ? -1 : stage % s->p;
}

/* A rank receives what another sends in the order in which that one sends it. */
static void in_order(const pipeline_shape *s)
{
    make(s);
    for (int from = 0; from < s->p; from++) {
        for (int to = 0; to < s->p; to++) {
            for (int k = 0, i = 0, n = pipeline_ops(s); k < n || i < n; k++, i++) {
                while (k < n && peer(s, from, &ops[from][k], true) != to) {
                    k++;
                }
                while (i < n && peer(s, to, &ops[to][i], false) != from) {
                    i++;
                }
                cr_assert_eq(k < n, i < n, WHERE, PLACE(s, from));
                if (k < n) {
                    const pipeline_op *sent = &ops[from][k], *got = &ops[to][i];
                    const int way = sent->backward ? -1 : 1;
                    cr_assert_eq(got->backward, sent->backward, WHERE, PLACE(s, from));
                    cr_assert_eq(got->micro, sent->micro, WHERE, PLACE(s, from));
                    cr_assert_eq(pipeline_stage(s, to, got->chunk),
                                 pipeline_stage(s, from, sent->chunk) + way, WHERE, PLACE(s, from));
                }
            }
        }
    }
}

Test(pipeline_schedule, neighbours_agree_about_the_order)
{
    each(in_order);
}

/* Run all ranks; a pass takes `forward` or `backward` units, and a message none. Return the time of
 * the last pass, or -1 if the ranks wait for each other. */
static int makespan(const pipeline_shape *s, int forward, int backward)
{
    static int end[2][48][48]; /* [direction][virtual stage][micro-batch]; 0: not yet */
    int next[MOST_RANKS] = {0}, now[MOST_RANKS] = {0}, left = s->p * pipeline_ops(s), longest = 0;
    const int last = s->p * s->v - 1;
    memset(end, 0, sizeof end);
    for (bool moved = true; moved;) {
        moved = false;
        for (int r = 0; r < s->p; r++) {
            while (next[r] < pipeline_ops(s)) {
                const pipeline_op *op = &ops[r][next[r]];
                const int stage = pipeline_stage(s, r, op->chunk);
                const int *needs = op->backward ? stage == last ? &end[0][last][op->micro]
                                                                : &end[1][stage + 1][op->micro]
                                   : stage > 0 ? &end[0][stage - 1][op->micro]
                                                : NULL;
                if (needs != NULL && *needs == 0) {
                    break;
                }
                now[r] = needs != NULL && *needs > now[r] ? *needs : now[r];
                now[r] += op->backward ? backward : forward;
                end[op->backward][stage][op->micro] = now[r];
                longest = now[r] > longest ? now[r] : longest;
                next[r]++;
                left--;
                moved = true;
            }
        }
    }
    return left == 0 ? longest : -1;
}

/* In units of a chunk's passes, work takes vm (F + B), and the whole v m + p - 1 such units. */
static void formula(const pipeline_shape *s)
{
    make(s);
    for (int backward = 1; backward <= 3; backward++) {
        const int took = makespan(s, 1, backward), work = s->v * s->m * (1 + backward);
        cr_assert_eq(took, work + (s->p - 1) * (1 + backward), WHERE ": %d units", PLACE(s, -1),
                     took);
        const double bubble = 1 - (double)work / took - pipeline_bubble(s);
        cr_assert(bubble < 1e-12 && bubble > -1e-12, WHERE, PLACE(s, -1));
    }
}

Test(pipeline_schedule, bubble_is_the_formulas)
{
    each(formula);
}

/* As published: all micro-batches, p - r, or for chunks 2 (p - 1 - r) + (v - 1) p + 1. */
static void memory(const pipeline_shape *s)
{
    const int total = s->m * s->v;
    for (int r = 0; r < s->p; r++) {
        const int published = s->kind == PIPELINE_GPIPE ? s->m
                              : s->v == 1               ? s->p - r
                                          : 2 * (s->p - 1 - r) + (s->v - 1) * s->p + 1;
        cr_assert_eq(pipeline_slots(s, r), published < total ? published : total, WHERE,
                     PLACE(s, r));
        cr_assert_leq(pipeline_warmup(s, r), total, WHERE, PLACE(s, r));
    }
}

Test(pipeline_schedule, activations_in_flight_are_those_published)
{
    each(memory); /* `each_pass_comes_once` sees that so many slots suffice */
}

Test(pipeline_schedule, numbers_that_do_not_fit_are_refused)
{
    const pipeline_shape bad[] = {
        {PIPELINE_GPIPE, 2, 4, 2}, {PIPELINE_1F1B, 2, 4, 2}, {PIPELINE_INTERLEAVED, 3, 4, 2},
        {PIPELINE_GPIPE, 0, 4, 1}, {PIPELINE_1F1B, 2, 0, 1}, {PIPELINE_INTERLEAVED, 2, 4, 0},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cr_assert(!pipeline_valid(&bad[i]), "%zu", i);
    }
    cr_assert(pipeline_valid(&(pipeline_shape){PIPELINE_1F1B, 3, 4, 1}));
}

/* Compare a rank's operations with a row such as "F0a B0a": direction, micro-batch, chunk. */
static void compare(int rank, const char *row)
{
    for (int k = 0; row[4 * k] != 0; k++) {
        const pipeline_op *op = &ops[rank][k];
        cr_assert_eq(op->backward, row[4 * k] == 'B', "rank %d, %d", rank, k);
        cr_assert_eq(op->micro, row[4 * k + 1] - '0', "rank %d, %d", rank, k);
        cr_assert_eq(op->chunk, row[4 * k + 2] - 'a', "rank %d, %d", rank, k);
    }
}

/* Schedules written by hand: those of the pictures in the header, and an interleaved one. */
Test(pipeline_schedule, by_hand)
{
    make(&(pipeline_shape){PIPELINE_GPIPE, 3, 4, 1});
    for (int r = 0; r < 3; r++) {
        compare(r, "F0a F1a F2a F3a B0a B1a B2a B3a ");
    }
    make(&(pipeline_shape){PIPELINE_1F1B, 3, 4, 1});
    compare(0, "F0a F1a F2a B0a F3a B1a B2a B3a ");
    compare(1, "F0a F1a B0a F2a B1a F3a B2a B3a ");
    compare(2, "F0a B0a F1a B1a F2a B2a F3a B3a ");
    make(&(pipeline_shape){PIPELINE_INTERLEAVED, 2, 4, 2});
    compare(0, "F0a F1a F0b F1b F2a B0b F3a B1b F2b B0a F3b B1a B2b B3b B2a B3a ");
    compare(1, "F0a F1a F0b B0b F1b B1b F2a B0a F3a B1a F2b B2b F3b B3b B2a B3a ");
}
