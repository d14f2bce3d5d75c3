/* test_agree.c - the agreement's machine in every order of events: 2 to 4 ranks take part, messages
 * arrive in any order that keeps each channel's, ranks die at any moment, what a dead rank has sent
 * is lost from any point on for each receiver, and the others hear of the death at any moment. */
#define _GNU_SOURCE
#pragma GCC diagnostic ignored "-Wunused-function"
#define AGREE_MOST 4
#include "agree_world.h"

#include "full.h"

#include <criterion/criterion.h>

/* A search: its limits, its findings, and the way to here. */
typedef struct search {
    int deaths, suspicions, decisions;
    uint64_t *seen;
    size_t room, states, ends;
    const char *wrong;
    int depth;
    char path[256][32];
} search;

static uint64_t hash(uint64_t h, const void *bytes, size_t len)
{
    const uint8_t *at = bytes;
    uint64_t word = 0;
    for (; len > 0; len -= len < 8 ? len : 8, at += 8) {
        memcpy(&word, at, len < 8 ? len : 8);
        h = (h ^ word) * 0x9e3779b97f4a7c15u;
        h ^= h >> 29;
    }
    return h;
}

/* Return true if this state of the world is new. */
static bool fresh(search *s, const world *w)
{
    uint64_t h = hash(1, w->ranks, (size_t)w->n * sizeof w->ranks[0]);
    for (int from = 0; from < w->n; from++) {
        for (int to = 0; to < w->n; to++) {
            h = hash(h * 31 + w->queued[from][to], w->queue[from][to],
                     w->queued[from][to] * sizeof(letter));
        }
    }
    h = hash(h, &w->dead, sizeof *w - offsetof(world, dead)) | 1;
    if (2 * s->states > s->room) {
        s->wrong = "too many states";
        return false;
    }
    for (size_t i = dcommi_mix(h, 0) % s->room;; i = (i + 1) % s->room) {
        if (s->seen[i] == h) {
            return false;
        }
        if (s->seen[i] == 0) {
            s->seen[i] = h;
            s->states++;
            return true;
        }
    }
}

static void explore(search *s, const world *w);

/* Let an event happen in a copy of the world, and go on from there. */
static void happen(search *s, const world *before, event what, int r, int other)
{
    static const char *const names[] = {"call", "deliver", "die", "lose", "hear", "suspect"};
    world w = *before;
    if (s->wrong != NULL) {
        return;
    }
    snprintf(s->path[s->depth], sizeof s->path[0], "%s %d %d", names[what], other, r);
    s->wrong = world_let(&w, what, r, other);
    if (s->wrong == NULL && s->depth == 255) {
        s->wrong = "no end";
    }
    s->depth++;
    explore(s, &w);
    s->depth -= s->wrong == NULL;
}

/* Return true if nobody is left waiting: all living ranks know all decisions. */
static bool all_decided(const search *s, const world *w)
{
    for (int r = 0; r < w->n; r++) {
        if (!(w->dead >> r & 1) && (int)of(w, r)->number < s->decisions) {
            return false;
        }
    }
    return true;
}

static void explore(search *s, const world *w)
{
    if (s->wrong != NULL || !fresh(s, w)) {
        return;
    }
    bool more = false;
    const int deaths = __builtin_popcount(w->dead);
    for (int r = 0; r < w->n; r++) {
        const dcommi_agree *a = of(w, r);
        if (w->dead >> r & 1) {
            continue;
        }
        if (!a->joined && !a->outcast && (int)a->number < s->decisions) {
            more = true;
            happen(s, w, CALL, r, r);
        }
        for (int other = 0; other < w->n; other++) {
            const bool dead = w->dead >> other & 1;
            const bool known = has(w, r, DCOMMI_AGREE_FAILED, other);
            const bool proven = has(w, r, DCOMMI_AGREE_PROVEN, other);
            if (w->queued[other][r] > 0) {
                more = true;
                happen(s, w, DELIVER, r, other);
                if (dead) {
                    happen(s, w, LOSE, r, other);
                }
            }
            if (dead && !proven) {
                more = true;
                happen(s, w, HEAR, r, other);
            }
            if (other != r && !known && w->suspicions < s->suspicions) {
                happen(s, w, SUSPECT, r, other);
            }
        }
        if (deaths < s->deaths) {
            happen(s, w, DIE, r, r);
        }
    }
    if (!more) {
        s->ends++;
        if (s->suspicions == 0 && s->wrong == NULL && !all_decided(s, w)) {
            s->wrong = "nobody goes on";
        }
    }
}

/* Try all orders. Return the first mistake, or NULL. */
static const char *try_all(int n, int deaths, int suspicions, int decisions)
{
    search s = {.deaths = deaths,
                .suspicions = suspicions,
                .decisions = decisions,
                .room = (size_t)1 << (n < 4 ? 20 : test_full() ? 25 : 24),
                .depth = 0};
    world w;
    world_begin(&w, n, suspicions > 0);
    s.seen = calloc(s.room, sizeof *s.seen);
    cr_assert(s.seen != NULL);
    explore(&s, &w);
    fprintf(stderr, "%d ranks, %d deaths, %d suspicions, %d decisions: %zu states, %zu ends%s%s\n",
            n, deaths, suspicions, decisions, s.states, s.ends, s.wrong != NULL ? ": " : "",
            s.wrong != NULL ? s.wrong : "");
    for (int i = 0; i < s.depth && s.wrong != NULL; i++) {
        fprintf(stderr, "    %s\n", s.path[i]);
    }
    free(s.seen);
    return s.wrong;
}

#define RIGHT(...)                                \
    do {                                          \
        const char *wrong = try_all(__VA_ARGS__); \
        cr_assert(wrong == NULL, "%s", wrong);    \
    } while (0)

/* Deaths, two decisions in a row. */
Test(agree, two_ranks)
{
    RIGHT(2, 0, 0, 2);
    RIGHT(2, 1, 0, 2);
}

Test(agree, three_ranks)
{
    RIGHT(3, 0, 0, 2);
    RIGHT(3, 1, 0, 2);
    RIGHT(3, 2, 0, 2);
}

Test(agree, four_ranks, .timeout = 600)
{
    RIGHT(4, 1, 0, 1);
    RIGHT(4, 2, 0, 1);
    if (test_full()) {
        RIGHT(4, 1, 0, 2);
        RIGHT(4, 2, 0, 2);
    }
}

/* Ranks that are silent for others, alive or not: fewer than half cannot decide. */
Test(agree, silent_ranks, .timeout = 600)
{
    RIGHT(2, 0, 2, 2);
    RIGHT(3, 0, 2, 2);
    RIGHT(3, 0, 3, 1);
    RIGHT(3, 1, 1, 1);
    RIGHT(4, 0, 2, 1);
    if (test_full()) {
        RIGHT(4, 0, 3, 1);
        RIGHT(4, 1, 1, 1);
    }
}

/* Ranks 0 and 1 do not hear of each other, rank 2 decides with one of them and dies, and the other
 * one is certain of that: no rule that lets half of the living go on finds this out. So nothing
 * that is seen across a cut may count as certain (dcommi_ctl_proves). */
Test(agree, a_death_on_the_other_side_of_a_cut)
{
    const char *wrong = try_all(3, 1, 2, 1);
    cr_assert(wrong != NULL && strcmp(wrong, "two decisions") == 0);
}
