/* agree.h - ranks agree on one word and on the ranks that have failed, whoever dies meanwhile. A
 * machine without input and output: it is told what happens and hands out messages, so that a test
 * can try every order.
 *
 * The coordinator is the lowest rank that has not failed, as far as its followers know. A decision:
 *
 *   STATE    a rank that takes part -> its coordinator: its word, and the value that it has
 *            accepted, if any. It follows no lower coordinator from then on. Sent again when it
 *            learns of a failed rank
 *   PROPOSE  the coordinator -> all that have not failed, when every one of them has sent STATE:
 *            the value that was accepted from the highest coordinator; if there is none, the words
 *            of all that have not failed, combined, and the failed ranks
 *   ACCEPT   a follower -> its coordinator
 *   DECIDE   the coordinator -> all, when all that have not failed have accepted
 *   ASK      a new coordinator -> all: send me STATE
 *   WAIT     the coordinator -> its followers: the ranks that it waits for, or that they are too
 *            few
 *
 * Failed ranks only become more, so each rank coordinates a decision once, and its number is the
 * ballot. docs/engine.md says why all ranks decide alike.
 *
 * Decisions are numbered. A rank takes part in number d + 1 when it knows d, so d + 1 is decided
 * when all know d: each rank keeps the last decision only, and answers with it whoever is behind.
 * A message of a later number than ours is dropped: ASK brings it again. */
#ifndef DCOMMI_AGREE_H
#define DCOMMI_AGREE_H

#include "../base/util.h"

#include <string.h>

enum dcommi_agree_what {
    DCOMMI_AGREE_STATE = 1,
    DCOMMI_AGREE_ASK,
    DCOMMI_AGREE_PROPOSE,
    DCOMMI_AGREE_ACCEPT,
    DCOMMI_AGREE_DECIDE,
    DCOMMI_AGREE_WAIT,
    DCOMMI_AGREE_END
};

/* Sets of ranks, a bit each. */
enum dcommi_agree_set {
    DCOMMI_AGREE_FAILED,  /* the ranks that have failed, as far as this one knows */
    DCOMMI_AGREE_PROVEN,  /* those of which that is certain */
    DCOMMI_AGREE_VALUE,   /* the failed ranks of the accepted value */
    DCOMMI_AGREE_LAST,    /* those of the last decision */
    DCOMMI_AGREE_HERE,    /* coordinator: has sent STATE */
    DCOMMI_AGREE_ACKED,   /* coordinator: has accepted the proposal */
    DCOMMI_AGREE_MISSING, /* the ranks that the coordinator waits for */
    DCOMMI_AGREE_SETS
};

typedef struct dcommi_agree_message {
    uint8_t what;
    bool stuck;                      /* WAIT: too few ranks are left */
    int32_t ballot;                  /* the coordinator's rank */
    int32_t accepted;                /* STATE: the ballot of `value`; -1: none was accepted */
    uint64_t number;                 /* of the decision */
    uint64_t word;                   /* STATE: the sender's */
    uint64_t value;                  /* STATE, PROPOSE, DECIDE: the word of the value */
    const uint64_t *failed, *proven; /* what the sender knows */
    const uint64_t *out;             /* the failed ranks of the value; WAIT: the missing ones */
} dcommi_agree_message;

/* Where messages go. */
typedef struct dcommi_agree_link {
    void (*send)(void *user, int rank, const dcommi_agree_message *message);
    void *user;
} dcommi_agree_link;

typedef struct dcommi_agree {
    int32_t size, rank;
    int32_t nwords;             /* of a set */
    int32_t quorum;             /* ranks that must be left; 0: the default; below 0: any number */
    bool least;                 /* the lowest word counts, else the bits that all have */
    bool joined;                /* this rank takes part in decision `number` */
    bool proposed;              /* coordinator: PROPOSE is out */
    bool stuck;                 /* too few ranks are left */
    bool outcast;               /* this rank counts as failed: the others have decided that */
    int32_t followed;           /* the coordinator that has our STATE, or this rank; -1: none */
    int32_t accepted;           /* the ballot of the accepted value; -1: none */
    uint64_t number;            /* of decisions made; of the one that is being made */
    uint64_t word, value, last; /* ours; of the accepted value; of the last decision */
    uint64_t memory[];          /* the sets; coordinator: a word of each rank */
} dcommi_agree;

/* ---- sets ---- */

static inline bool dcommi_bit(const uint64_t *set, int rank)
{
    return set[rank / 64] >> rank % 64 & 1;
}

static inline void dcommi_bit_set(uint64_t *set, int rank)
{
    set[rank / 64] |= UINT64_C(1) << rank % 64;
}

static inline uint64_t *dcommi_agree_set(dcommi_agree *a, enum dcommi_agree_set which)
{
    return a->memory + (size_t)which * (size_t)a->nwords;
}

static inline const uint64_t *dcommi_agree_look(const dcommi_agree *a, enum dcommi_agree_set which)
{
    return a->memory + (size_t)which * (size_t)a->nwords;
}

static inline int dcommi_agree_nwords(int size)
{
    return (size + 63) / 64;
}

static inline size_t dcommi_agree_bytes(int size)
{
    const size_t sets = (size_t)dcommi_agree_nwords(size) * DCOMMI_AGREE_SETS;
    return sizeof(dcommi_agree) + (sets + (size_t)size) * sizeof(uint64_t);
}

/* Prepare zeroed memory of dcommi_agree_bytes(size). */
static void dcommi_agree_init(dcommi_agree *a, int size, int rank, int quorum, bool least)
{
    a->size = size;
    a->rank = rank;
    a->nwords = dcommi_agree_nwords(size);
    a->quorum = quorum;
    a->least = least;
    a->followed = a->accepted = -1;
}

static void dcommi_agree_clear(dcommi_agree *a, enum dcommi_agree_set which)
{
    memset(dcommi_agree_set(a, which), 0, (size_t)a->nwords * sizeof(uint64_t));
}

static bool dcommi_agree_empty(const dcommi_agree *a, enum dcommi_agree_set which)
{
    uint64_t any = 0;
    for (int i = 0; i < a->nwords; i++) {
        any |= dcommi_agree_look(a, which)[i];
    }
    return any == 0;
}

/* Return the lowest rank that is not in `set`, or `size`. */
static int dcommi_agree_lowest(const dcommi_agree *a, const uint64_t *set)
{
    int r = 0;
    while (r < a->size && dcommi_bit(set, r)) {
        r++;
    }
    return r;
}

/* Return true if the ranks that are in neither set may go on. */
static bool dcommi_agree_quorum(const dcommi_agree *a, const uint64_t *failed,
                                const uint64_t *value, const uint64_t *proven)
{
    int left = 0, unproven = 0, lowest = -1;
    bool has_lowest = false;
    for (int r = 0; r < a->size; r++) {
        const bool in = !dcommi_bit(failed, r) && !dcommi_bit(value, r);
        const bool counts = !dcommi_bit(proven, r);
        left += in;
        unproven += counts;
        if (counts && lowest < 0) {
            lowest = r;
            has_lowest = in;
        }
    }
    if (a->quorum != 0) {
        return left >= a->quorum;
    }
    return 2 * left > unproven || (2 * left == unproven && has_lowest);
}

/* ---- messages ---- */

static void dcommi_agree_send(const dcommi_agree *a, const dcommi_agree_link *link, int rank,
                              enum dcommi_agree_what what)
{
    const bool past = what == DCOMMI_AGREE_DECIDE, wait = what == DCOMMI_AGREE_WAIT;
    const dcommi_agree_message m = {.what = (uint8_t)what,
                                    .stuck = wait && a->stuck,
                                    .ballot = a->followed < 0 ? a->rank : a->followed,
                                    .accepted = past ? -1 : a->accepted,
                                    .number = past ? a->number - 1 : a->number,
                                    .word = a->word,
                                    .value = past ? a->last : a->value,
                                    .failed = dcommi_agree_look(a, DCOMMI_AGREE_FAILED),
                                    .proven = dcommi_agree_look(a, DCOMMI_AGREE_PROVEN),
                                    .out = dcommi_agree_look(a, past   ? DCOMMI_AGREE_LAST
                                                                : wait ? DCOMMI_AGREE_MISSING
                                                                       : DCOMMI_AGREE_VALUE)};
    link->send(link->user, rank, &m);
}

/* Send to all other ranks that are not in `but`. */
static void dcommi_agree_send_all(const dcommi_agree *a, const dcommi_agree_link *link,
                                  enum dcommi_agree_what what, const uint64_t *but)
{
    for (int r = 0; r < a->size; r++) {
        if (r != a->rank && !dcommi_bit(but, r)) {
            dcommi_agree_send(a, link, r, what);
        }
    }
}

/* ---- the coordinator ---- */

static inline uint64_t *dcommi_agree_words(dcommi_agree *a)
{
    return dcommi_agree_set(a, DCOMMI_AGREE_SETS);
}

/* Find the ranks that this coordinator waits for. Return true if there are any. */
static bool dcommi_agree_miss(dcommi_agree *a)
{
    const uint64_t *failed = dcommi_agree_look(a, DCOMMI_AGREE_FAILED);
    const uint64_t *there =
        dcommi_agree_look(a, a->proposed ? DCOMMI_AGREE_ACKED : DCOMMI_AGREE_HERE);
    bool any = false;
    dcommi_agree_clear(a, DCOMMI_AGREE_MISSING);
    for (int r = 0; r < a->size; r++) {
        const bool waits =
            r == a->rank ? !a->joined : !dcommi_bit(failed, r) && !dcommi_bit(there, r);
        if (waits) {
            dcommi_bit_set(dcommi_agree_set(a, DCOMMI_AGREE_MISSING), r);
            any = true;
        }
    }
    return any;
}

/* Combine the words of all that have not failed: the value that this coordinator proposes. */
static void dcommi_agree_combine(dcommi_agree *a)
{
    const uint64_t *failed = dcommi_agree_look(a, DCOMMI_AGREE_FAILED);
    const uint64_t *words = dcommi_agree_words(a);
    a->value = a->word;
    for (int r = 0; r < a->size; r++) {
        if (r != a->rank && !dcommi_bit(failed, r)) {
            a->value = !a->least ? a->value & words[r] : words[r] < a->value ? words[r] : a->value;
        }
    }
    memcpy(dcommi_agree_set(a, DCOMMI_AGREE_VALUE), failed, (size_t)a->nwords * sizeof *failed);
}

/* Take a decision, and be ready for the next one. */
static void dcommi_agree_decide(dcommi_agree *a, uint64_t number, uint64_t value,
                                const uint64_t *out)
{
    uint64_t *failed = dcommi_agree_set(a, DCOMMI_AGREE_FAILED);
    memcpy(dcommi_agree_set(a, DCOMMI_AGREE_LAST), out, (size_t)a->nwords * sizeof *out);
    for (int r = 0; r < a->size; r++) {
        if (r != a->rank && dcommi_bit(out, r)) {
            dcommi_bit_set(failed, r);
        }
    }
    a->outcast = a->outcast || dcommi_bit(out, a->rank);
    a->last = value;
    a->number = number + 1;
    a->joined = a->proposed = a->stuck = false;
    a->followed = a->accepted = -1;
    a->value = 0;
    dcommi_agree_clear(a, DCOMMI_AGREE_VALUE);
    dcommi_agree_clear(a, DCOMMI_AGREE_HERE);
    dcommi_agree_clear(a, DCOMMI_AGREE_ACKED);
    dcommi_agree_clear(a, DCOMMI_AGREE_MISSING);
    memset(dcommi_agree_words(a), 0, (size_t)a->size * sizeof(uint64_t));
}

/* Tell the followers that too few ranks are left, if that is so. Until a value is accepted, those
 * left are all that have not failed. */
static bool dcommi_agree_is_stuck(dcommi_agree *a, const dcommi_agree_link *link)
{
    const uint64_t *failed = dcommi_agree_look(a, DCOMMI_AGREE_FAILED);
    const uint64_t *out = dcommi_agree_look(a, DCOMMI_AGREE_VALUE);
    a->stuck = !dcommi_agree_quorum(a, failed, out, dcommi_agree_look(a, DCOMMI_AGREE_PROVEN));
    if (a->stuck) {
        dcommi_agree_send_all(a, link, DCOMMI_AGREE_WAIT, failed);
    }
    return a->stuck;
}

static void dcommi_agree_coordinate(dcommi_agree *a, const dcommi_agree_link *link)
{
    const uint64_t *failed = dcommi_agree_look(a, DCOMMI_AGREE_FAILED);
    if (a->followed != a->rank) {
        a->followed = a->rank;
        for (int r = 0; r < a->size; r++) {
            if (r != a->rank && !dcommi_bit(failed, r) &&
                !dcommi_bit(dcommi_agree_look(a, DCOMMI_AGREE_HERE), r)) {
                dcommi_agree_send(a, link, r, DCOMMI_AGREE_ASK);
            }
        }
    }
    if (dcommi_agree_miss(a) || dcommi_agree_is_stuck(a, link)) {
        return;
    }
    if (!a->proposed) {
        if (a->accepted < 0) {
            dcommi_agree_combine(a);
        }
        a->accepted = a->rank;
        a->proposed = true;
        dcommi_agree_send_all(a, link, DCOMMI_AGREE_PROPOSE, failed);
        if (dcommi_agree_miss(a)) {
            return;
        }
    }
    dcommi_agree_decide(a, a->number, a->value, dcommi_agree_look(a, DCOMMI_AGREE_VALUE));
    dcommi_agree_send_all(a, link, DCOMMI_AGREE_DECIDE, dcommi_agree_look(a, DCOMMI_AGREE_HERE));
}

/* ---- what happens ---- */

/* Act on a change. */
static void dcommi_agree_step(dcommi_agree *a, const dcommi_agree_link *link)
{
    const int lowest = dcommi_agree_lowest(a, dcommi_agree_look(a, DCOMMI_AGREE_FAILED));
    if (!a->joined || a->outcast) {
        return;
    }
    if (lowest == a->rank) {
        dcommi_agree_coordinate(a, link);
    } else if (a->followed != lowest) {
        a->followed = lowest;
        dcommi_agree_clear(a, DCOMMI_AGREE_MISSING);
        dcommi_agree_send(a, link, lowest, DCOMMI_AGREE_STATE);
    }
}

/* Take part in the present decision with a word. The first word of a decision counts. */
static void dcommi_agree_join(dcommi_agree *a, const dcommi_agree_link *link, uint64_t word)
{
    a->word = a->joined ? a->word : word;
    a->joined = true;
    if (a->stuck) { /* ask again: deaths may have been proven meanwhile */
        a->stuck = false;
        a->followed = a->followed == a->rank ? a->followed : -1;
    }
    dcommi_agree_step(a, link);
}

/* Learn that a rank has failed. `proven`: it is certain. The coordinator may not see it itself. */
static void dcommi_agree_learn(dcommi_agree *a, const dcommi_agree_link *link, int rank,
                               bool proven)
{
    uint64_t *failed = dcommi_agree_set(a, DCOMMI_AGREE_FAILED);
    uint64_t *certain = dcommi_agree_set(a, DCOMMI_AGREE_PROVEN);
    if (rank == a->rank || (dcommi_bit(failed, rank) && (!proven || dcommi_bit(certain, rank)))) {
        return;
    }
    dcommi_bit_set(failed, rank);
    if (proven) {
        dcommi_bit_set(certain, rank);
    }
    const int before = a->followed;
    dcommi_agree_step(a, link);
    if (a->joined && !a->outcast && before >= 0 && before != a->rank && a->followed == before) {
        dcommi_agree_send(a, link, before, DCOMMI_AGREE_STATE);
    }
}

/* Take over the failed ranks that a message names. A sender that could not go on itself is not
 * believed when it calls others silent: it may be the one that nobody reaches. */
static void dcommi_agree_believe(dcommi_agree *a, const dcommi_agree_message *m)
{
    uint64_t *failed = dcommi_agree_set(a, DCOMMI_AGREE_FAILED);
    uint64_t *certain = dcommi_agree_set(a, DCOMMI_AGREE_PROVEN);
    const bool all = dcommi_agree_quorum(a, m->failed, m->proven, m->proven);
    for (int r = 0; r < a->size; r++) {
        if (r == a->rank) {
            continue;
        }
        if (dcommi_bit(m->proven, r)) {
            dcommi_bit_set(certain, r);
            dcommi_bit_set(failed, r);
        } else if (all && dcommi_bit(m->failed, r)) {
            dcommi_bit_set(failed, r);
        }
    }
}

/* Take STATE as a coordinator, and with it the value that was accepted from a higher coordinator
 * than ours. */
static void dcommi_agree_take_state(dcommi_agree *a, int from, const dcommi_agree_message *m)
{
    dcommi_bit_set(dcommi_agree_set(a, DCOMMI_AGREE_HERE), from);
    dcommi_agree_words(a)[from] = m->word;
    if (!a->proposed && m->accepted > a->accepted && m->accepted < a->rank) {
        a->accepted = m->accepted;
        a->value = m->value;
        memcpy(dcommi_agree_set(a, DCOMMI_AGREE_VALUE), m->out, (size_t)a->nwords * sizeof *m->out);
    }
}

/* Take PROPOSE. Its sender is the coordinator that this rank follows: it has our STATE, and has not
 * failed. */
static void dcommi_agree_accept(dcommi_agree *a, const dcommi_agree_link *link, int from,
                                const dcommi_agree_message *m)
{
    a->accepted = from;
    a->stuck = false;
    a->value = m->value;
    memcpy(dcommi_agree_set(a, DCOMMI_AGREE_VALUE), m->out, (size_t)a->nwords * sizeof *m->out);
    dcommi_agree_send(a, link, from, DCOMMI_AGREE_ACCEPT);
}

static void dcommi_agree_take_decision(dcommi_agree *a, const dcommi_agree_link *link,
                                       const dcommi_agree_message *m)
{
    if (m->number < a->number || (m->number > a->number && !dcommi_bit(m->out, a->rank))) {
        return; /* known, or it cannot be: decisions wait for all that they name as alive */
    }
    const bool led = dcommi_agree_lowest(a, dcommi_agree_look(a, DCOMMI_AGREE_FAILED)) == a->rank;
    dcommi_agree_decide(a, m->number, m->value, m->out);
    for (int r = 0; r < a->size; r++) { /* our followers, and whom nobody else may reach */
        if (r != a->rank && (led || dcommi_bit(m->out, r))) {
            dcommi_agree_send(a, link, r, DCOMMI_AGREE_DECIDE);
        }
    }
}

/* Take a message of the decision that is being made. */
static void dcommi_agree_take(dcommi_agree *a, const dcommi_agree_link *link, int from,
                              const dcommi_agree_message *m)
{
    const bool from_coordinator = m->ballot == from && a->followed == from;
    const int lowest = dcommi_agree_lowest(a, dcommi_agree_look(a, DCOMMI_AGREE_FAILED));
    switch (m->what) {
    case DCOMMI_AGREE_STATE:
        if (m->ballot == a->rank && lowest == a->rank) { /* else ASK will bring it again */
            dcommi_agree_take_state(a, from, m);
        }
        break;
    case DCOMMI_AGREE_ACCEPT:
        if (m->ballot == a->rank && a->proposed) {
            dcommi_bit_set(dcommi_agree_set(a, DCOMMI_AGREE_ACKED), from);
        }
        break;
    case DCOMMI_AGREE_ASK:
        if (from_coordinator) { /* it has dropped our STATE */
            a->followed = -1;
        }
        break;
    case DCOMMI_AGREE_PROPOSE:
        dcommi_agree_accept(a, link, from, m);
        break;
    case DCOMMI_AGREE_WAIT:
        if (from_coordinator) {
            a->stuck = m->stuck;
            memcpy(dcommi_agree_set(a, DCOMMI_AGREE_MISSING), m->out,
                   (size_t)a->nwords * sizeof *m->out);
        }
        break;
    default:
        break;
    }
}

/* Handle a message from another rank. Its sets have no bits beyond the ranks, and its ballot is a
 * rank. */
static void dcommi_agree_on(dcommi_agree *a, const dcommi_agree_link *link, int from,
                            const dcommi_agree_message *m)
{
    const uint64_t *failed = dcommi_agree_look(a, DCOMMI_AGREE_FAILED);
    if (m->what == DCOMMI_AGREE_DECIDE) {
        dcommi_agree_take_decision(a, link, m);
        return;
    }
    if (m->number < a->number) {
        if (m->what == DCOMMI_AGREE_STATE || m->what == DCOMMI_AGREE_ASK ||
            m->what == DCOMMI_AGREE_PROPOSE) {
            dcommi_agree_send(a, link, from, DCOMMI_AGREE_DECIDE);
        }
        return;
    }
    if (dcommi_bit(failed, from)) { /* this rank may follow a higher coordinator */
        return;
    }
    dcommi_agree_believe(a, m);
    if (m->number == a->number) {
        dcommi_agree_take(a, link, from, m);
    }
    dcommi_agree_step(a, link);
}

/* ---- on time ---- */

/* As a coordinator, tell the ranks that have come which ones have not. */
static void dcommi_agree_tell(dcommi_agree *a, const dcommi_agree_link *link)
{
    const uint64_t *here = dcommi_agree_look(a, DCOMMI_AGREE_HERE);
    if (dcommi_agree_lowest(a, dcommi_agree_look(a, DCOMMI_AGREE_FAILED)) != a->rank ||
        !dcommi_agree_miss(a)) {
        return;
    }
    for (int r = 0; r < a->size; r++) {
        if (r != a->rank && dcommi_bit(here, r)) {
            dcommi_agree_send(a, link, r, DCOMMI_AGREE_WAIT);
        }
    }
}

/* Send again all that others may still wait for: a message was not sent. */
static void dcommi_agree_repeat(dcommi_agree *a, const dcommi_agree_link *link)
{
    const uint64_t *failed = dcommi_agree_look(a, DCOMMI_AGREE_FAILED);
    if (a->number > 0) {
        dcommi_agree_send_all(a, link, DCOMMI_AGREE_DECIDE, failed);
    }
    if (!a->joined) {
        return;
    }
    if (a->followed != a->rank && a->followed >= 0) {
        dcommi_agree_send(a, link, a->followed, DCOMMI_AGREE_STATE);
        if (a->accepted == a->followed) {
            dcommi_agree_send(a, link, a->followed, DCOMMI_AGREE_ACCEPT);
        }
    } else if (a->followed == a->rank) {
        dcommi_agree_send_all(a, link, a->proposed ? DCOMMI_AGREE_PROPOSE : DCOMMI_AGREE_ASK,
                              failed);
    }
}

#endif
