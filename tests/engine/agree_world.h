/* agree_world.h - ranks that agree, and the messages between them: events happen to one rank after
 * the other, and decisions are checked. For tests of agree.h, which choose the order of events and
 * define AGREE_MOST, the most ranks. */
#ifndef AGREE_WORLD_H
#define AGREE_WORLD_H

#include "dcomm/impl/engine/agree.h"

enum { QUEUE = 12, DECISIONS = 2, SETS = DCOMMI_AGREE_SETS };

typedef struct letter {
    uint8_t what, stuck, number, failed, proven, out;
    int8_t ballot, accepted;
    uint8_t word, value;
} letter;

typedef struct world {
    int n;       /* ranks */
    bool silent; /* a rank may count as failed, alive or not: then nothing is sent to it any more */
    uint64_t ranks[AGREE_MOST][sizeof(dcommi_agree) / 8 + SETS + AGREE_MOST];
    letter queue[AGREE_MOST][AGREE_MOST][QUEUE]; /* from, to */
    uint8_t queued[AGREE_MOST][AGREE_MOST];
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

static void world_begin(world *w, int n, bool silent)
{
    memset(w, 0, sizeof *w);
    w->n = n;
    w->silent = silent;
    for (int r = 0; r < n; r++) {
        dcommi_agree_init(of(w, r), n, r, 0, false);
    }
}

/* Return true if one set of a rank's has another rank. */
static bool has(const world *w, int rank, enum dcommi_agree_set set, int other)
{
    return dcommi_bit(dcommi_agree_look(of(w, rank), set), other);
}

/* ---- messages ---- */

/* A rank that acts. */
typedef struct actor {
    world *w;
    int rank;
    const char *wrong;
} actor;

static void post(void *user, int to, const dcommi_agree_message *m)
{
    actor *by = user;
    world *w = by->w;
    uint8_t *n = &w->queued[by->rank][to];
    if (w->dead >> to & 1 || (w->silent && has(w, by->rank, DCOMMI_AGREE_FAILED, to))) {
        return; /* the transport knows the peer as lost */
    }
    if (*n == QUEUE) {
        by->wrong = "too many messages";
        return;
    }
    w->queue[by->rank][to][(*n)++] = (letter){.what = m->what,
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

static void deliver(world *w, int from, int to, const dcommi_agree_link *link)
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
    dcommi_agree_on(of(w, to), link, from, &m);
}

/* Drop the messages from one rank to another. */
static void drop(world *w, int from, int to)
{
    w->queued[from][to] = 0;
    memset(w->queue[from][to], 0, sizeof w->queue[from][to]);
}

/* ---- what must hold ---- */

static uint8_t word_of(int rank)
{
    return (uint8_t)(0xff & ~(1 << rank)); /* the bits that are left tell whose words count */
}

/* Check a decision that a rank has just made. */
static const char *check(world *w, const dcommi_agree *a)
{
    const int number = (int)a->number - 1;
    const uint8_t out = (uint8_t)dcommi_agree_look(a, DCOMMI_AGREE_LAST)[0];
    uint8_t value = 0xff;
    for (int r = 0; r < w->n; r++) {
        value &= out >> r & 1 ? 0xff : word_of(r);
        if (!(out >> r & 1) && !(w->called[number] >> r & 1)) {
            return "a rank counts that has not called";
        }
    }
    if (value != a->last) {
        return "the word is not that of the living";
    }
    if (!w->silent && (out & ~w->dead) != 0) {
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

/* ---- events ---- */

typedef enum event {
    CALL,    /* it takes part */
    DELIVER, /* the next message of another rank arrives */
    DIE,     /* it dies */
    LOSE,    /* the other messages of a dead rank do not arrive */
    HEAR,    /* it becomes certain of another one's death */
    SUSPECT  /* another one is silent for it */
} event;

/* Let an event happen to a rank. `other` is the other rank of it, if it has one. Return a mistake,
 * or NULL. */
static const char *world_let(world *w, event what, int rank, int other)
{
    actor by = {.w = w, .rank = rank};
    dcommi_agree *a = of(w, rank);
    const dcommi_agree_link link = {post, &by};
    const uint64_t number = a->number;
    switch (what) {
    case CALL:
        w->called[number] |= (uint8_t)(1 << rank);
        dcommi_agree_join(a, &link, word_of(rank));
        break;
    case DELIVER:
        deliver(w, other, rank, &link);
        break;
    case DIE:
        w->dead |= (uint8_t)(1 << rank);
        memset(a, 0, sizeof w->ranks[rank]);
        for (int from = 0; from < w->n; from++) {
            drop(w, from, rank);
        }
        return NULL;
    case LOSE:
        drop(w, other, rank);
        break;
    case HEAR:
        dcommi_agree_learn(a, &link, other, true);
        break;
    case SUSPECT:
        w->suspicions++;
        dcommi_agree_learn(a, &link, other, false);
        break;
    }
    return by.wrong != NULL ? by.wrong : a->number != number ? check(w, a) : NULL;
}

#endif
