/* test_agree.c - the agreement's machine in every order of events: 2 to 4 ranks take part, messages
 * arrive in any order that keeps each channel's, ranks die at any moment, what a dead rank has sent
 * is lost from any point on for each receiver, and the others hear of the death at any moment. */
#define _GNU_SOURCE
#pragma GCC diagnostic ignored "-Wunused-function"
#include "dcomm/impl/engine/agree.h"

#include "full.h"

#include <criterion/criterion.h>

enum { MOST = 4, QUEUE = 12, DECISIONS = 2, SETS = DCOMMI_AGREE_SETS };

typedef struct letter {
    uint8_t what, stuck, number, failed, proven, out;
    int8_t ballot, accepted;
    uint8_t word, value;
} letter;

typedef struct world {
    uint64_t ranks[MOST][sizeof(dcommi_agree) / 8 + SETS + MOST];
    letter queue[MOST][MOST][QUEUE]; /* from, to */
    uint8_t queued[MOST][MOST];
    uint8_t dead, called[DECISIONS]; /* sets */
    uint8_t suspicions;              /* so far */
    struct {
        uint8_t made, out, value;
    } decided[DECISIONS];
} world;

/* Return the machine of a rank. */
static dcommi_agree *of(const world *w, int rank)
{
    return (dcommi_agree *)(uintptr_t)w->ranks[rank];
}

/* A search: its limits, its findings, the rank that acts, and the way to here. */
typedef struct search {
    int n, deaths, suspicions, decisions;
    uint64_t *seen;
    size_t room, states, ends;
    const char *wrong;
    world *w; /* for the link */
    int at;
    int depth;
    char path[256][32];
} search;

/* ---- messages ---- */

static void post(void *user, int to, const dcommi_agree_message *m)
{
    search *s = user;
    world *w = s->w;
    const dcommi_agree *a = of(w, s->at);
    uint8_t *n = &w->queued[s->at][to];
    const bool lost = dcommi_bit(dcommi_agree_look(a, DCOMMI_AGREE_FAILED), to);
    if (w->dead >> to & 1 || (lost && s->suspicions > 0)) {
        return; /* the transport knows the peer as lost */
    }
    if (*n == QUEUE) {
        s->wrong = "too many messages";
        return;
    }
    w->queue[s->at][to][(*n)++] = (letter){.what = m->what,
                                           .stuck = m->stuck,
                                           .number = (uint8_t)m->number,
                                           .failed = (uint8_t)m->failed[0],
                                           .proven = (uint8_t)m->proven[0],
                                           .out = (uint8_t)m->out[0],
                                           .ballot = (int8_t)m->ballot,
                                           .accepted = (int8_t)m->accepted,
                                           .word = (uint8_t)m->word,
                                           .value = (uint8_t)m->value};
}

static void deliver(world *w, int from, int to, dcommi_agree *a, const dcommi_agree_link *link)
{
    const letter l = w->queue[from][to][0];
    const uint64_t failed = l.failed, proven = l.proven, out = l.out;
    const int left = --w->queued[from][to];
    memmove(w->queue[from][to], w->queue[from][to] + 1, (size_t)left * sizeof l);
    memset(&w->queue[from][to][left], 0, sizeof l);
    const dcommi_agree_message m = {.what = l.what,
                                    .stuck = l.stuck,
                                    .ballot = l.ballot,
                                    .accepted = l.accepted,
                                    .number = l.number,
                                    .word = l.word,
                                    .value = l.value,
                                    .failed = &failed,
                                    .proven = &proven,
                                    .out = &out};
    dcommi_agree_on(a, link, from, &m);
}

/* ---- what must hold ---- */

static uint8_t word_of(int rank)
{
    return (uint8_t)(0xff & ~(1 << rank)); /* the bits that are left tell whose words count */
}

/* Check a decision that `rank` has just made. */
static const char *check(const search *s, world *w, const dcommi_agree *a)
{
    const int number = (int)a->number - 1;
    const uint8_t out = (uint8_t)dcommi_agree_look(a, DCOMMI_AGREE_LAST)[0];
    uint8_t value = 0xff;
    for (int r = 0; r < s->n; r++) {
        value &= out >> r & 1 ? 0xff : word_of(r);
        if (!(out >> r & 1) && !(w->called[number] >> r & 1)) {
            return "a rank counts that has not called";
        }
    }
    if (value != a->last) {
        return "the word is not that of the living";
    }
    if (s->suspicions == 0 && (out & ~w->dead) != 0) {
        return "a living rank counts as failed";
    }
    if (w->decided[number].made &&
        (w->decided[number].out != out || w->decided[number].value != a->last)) {
        return "two decisions";
    }
    w->decided[number].made = 1;
    w->decided[number].out = out;
    w->decided[number].value = (uint8_t)a->last;
    return NULL;
}

/* ---- the search ---- */

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
    uint64_t h = hash(1, w->ranks, (size_t)s->n * sizeof w->ranks[0]);
    for (int from = 0; from < s->n; from++) {
        for (int to = 0; to < s->n; to++) {
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

typedef enum event { CALL, DELIVER, DIE, LOSE, HEAR, SUSPECT } event;

/* Let an event happen in a copy of the world, and go on from there. */
static void happen(search *s, const world *before, event what, int r, int other)
{
    static const char *const names[] = {"call", "deliver", "die", "lose", "hear", "suspect"};
    world w = *before;
    dcommi_agree *a = of(&w, r);
    const dcommi_agree_link link = {post, s};
    const uint64_t number = a->number;
    if (s->wrong != NULL) {
        return;
    }
    s->w = &w;
    s->at = r;
    snprintf(s->path[s->depth], sizeof s->path[0], "%s %d %d", names[what], other, r);
    switch (what) {
    case CALL:
        w.called[number] |= (uint8_t)(1 << r);
        dcommi_agree_join(a, &link, word_of(r));
        break;
    case DELIVER:
        deliver(&w, other, r, a, &link);
        break;
    case DIE:
        w.dead |= (uint8_t)(1 << r);
        memset(a, 0, sizeof w.ranks[r]);
        for (int from = 0; from < s->n; from++) {
            w.queued[from][r] = 0;
            memset(w.queue[from][r], 0, sizeof w.queue[from][r]);
        }
        break;
    case LOSE: /* the rest of what the dead rank `other` has sent to r */
        w.queued[other][r] = 0;
        memset(w.queue[other][r], 0, sizeof w.queue[other][r]);
        break;
    case HEAR:
        dcommi_agree_learn(a, &link, other, true);
        break;
    case SUSPECT:
        w.suspicions++;
        dcommi_agree_learn(a, &link, other, false);
        break;
    }
    if (s->wrong == NULL && what != DIE && a->number != number) {
        s->wrong = check(s, &w, a);
    }
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
    for (int r = 0; r < s->n; r++) {
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
    for (int r = 0; r < s->n; r++) {
        const dcommi_agree *a = of(w, r);
        if (w->dead >> r & 1) {
            continue;
        }
        if (!a->joined && !a->outcast && (int)a->number < s->decisions) {
            more = true;
            happen(s, w, CALL, r, r);
        }
        for (int other = 0; other < s->n; other++) {
            const bool dead = w->dead >> other & 1;
            const bool known = dcommi_bit(dcommi_agree_look(a, DCOMMI_AGREE_FAILED), other);
            const bool proven = dcommi_bit(dcommi_agree_look(a, DCOMMI_AGREE_PROVEN), other);
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
    search s = {.n = n,
                .deaths = deaths,
                .suspicions = suspicions,
                .decisions = decisions,
                .room = (size_t)1 << (n < 4 ? 20 : test_full() ? 25 : 24),
                .depth = 0};
    world w;
    memset(&w, 0, sizeof w);
    for (int r = 0; r < n; r++) {
        dcommi_agree_init(of(&w, r), n, r, 0, false);
    }
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

/* The machine of one rank alone, and the messages that it sends. */
typedef struct lone {
    world w;
    search s;
    uint64_t room[sizeof(dcommi_agree) / 8 + SETS + 8];
    dcommi_agree *a;
    dcommi_agree_link link;
} lone;

static void lone_begin(lone *l, int n, int rank)
{
    memset(l, 0, sizeof *l);
    l->s = (search){.n = n, .w = &l->w, .at = rank};
    l->a = (dcommi_agree *)l->room;
    l->link = (dcommi_agree_link){post, &l->s};
    dcommi_agree_init(l->a, n, rank, 0, false);
}

/* Deliver a message of rank 0 that names no value. */
static void lone_hear(lone *l, enum dcommi_agree_what what, bool stuck, uint64_t failed)
{
    const uint64_t none = 0;
    const dcommi_agree_message m = {.what = (uint8_t)what,
                                    .stuck = stuck,
                                    .accepted = -1,
                                    .failed = &failed,
                                    .proven = &none,
                                    .out = &none};
    dcommi_agree_on(l->a, &l->link, 0, &m);
}

/* A rank that has lost most others may be the one that nobody reaches: it is not believed. */
Test(agree, a_lone_accuser)
{
    for (uint64_t failed = 6; failed <= 14; failed += 8) { /* ranks 1 and 2 of five, or 1 to 3 */
        lone l;
        lone_begin(&l, 5, 4);
        lone_hear(&l, DCOMMI_AGREE_ASK, false, failed);
        cr_assert_eq(dcommi_agree_look(l.a, DCOMMI_AGREE_FAILED)[0], failed == 6 ? 6 : 0);
    }
}

/* The coordinator has said that too few ranks are left. A rank that calls again asks it again:
 * deaths may be certain by now. */
Test(agree, too_few_are_asked_again)
{
    lone l;
    const world *w = &l.w;
    lone_begin(&l, 3, 1);
    dcommi_agree_join(l.a, &l.link, word_of(1));
    cr_assert(w->queued[1][0] == 1 && w->queue[1][0][0].what == DCOMMI_AGREE_STATE);
    lone_hear(&l, DCOMMI_AGREE_WAIT, true, 0);
    cr_assert(l.a->stuck);
    dcommi_agree_join(l.a, &l.link, word_of(1));
    cr_assert(!l.a->stuck && w->queued[1][0] == 2 && w->queue[1][0][1].what == DCOMMI_AGREE_STATE);
}

/* Ranks 0 and 1 do not hear of each other, rank 2 decides with one of them and dies, and the other
 * one is certain of that: no rule that lets half of the living go on finds this out. So nothing
 * that is seen across a cut may count as certain (dcommi_ctl_proves). */
Test(agree, a_death_on_the_other_side_of_a_cut)
{
    const char *wrong = try_all(3, 1, 2, 1);
    cr_assert(wrong != NULL && strcmp(wrong, "two decisions") == 0);
}
