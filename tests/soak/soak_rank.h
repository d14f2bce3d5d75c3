/* soak_rank.h - a rank of a soak trial. It sums until it is told to stop; after an error it agrees
 * with the others that are left, shrinks and goes on; when it is asked to, it grows. It writes what
 * it sees to memory that the trial reads. */
#ifndef SOAK_RANK_H
#define SOAK_RANK_H

#include "faults.h"

enum {
    SOAK_MARKS = PROCS_MAX, /* processes of a trial; each has a mark of its own */
    SOAK_GENERATIONS = 64,  /* communicators, one after another */
    SOAK_COUNT = 4096,      /* elements of a sum; the first SOAK_MARKS tell who takes part */
    SOAK_OUTCAST = 3        /* exit status of a rank that the others have given up */
};

/* Where a rank is, for the report of a hang. */
typedef enum soak_place {
    SOAK_CREATES,
    SOAK_SUMS,
    SOAK_AGREES,
    SOAK_SHRINKS,
    SOAK_DESTROYS,
    SOAK_GROWS,
    SOAK_ENDS
} soak_place;

/* Results of a trial; one for each mistake that may not happen. */
typedef struct soak_faults {
    _Atomic long wrong, disagreements, unrecovered, hangs, lost;
} soak_faults;

typedef struct soak_shared {
    _Atomic int stop; /* end at the next step */
    _Atomic int grow; /* so often the ranks shall have grown */
    soak_faults faults;
    struct {
        _Atomic int at;        /* soak_place */
        _Atomic unsigned set;  /* the marks in its last right sum */
        _Atomic long since_us; /* when it first saw this set */
        _Atomic long error_us; /* when a call of it last failed after a right sum */
        char said[256];        /* that error */
    } rank[SOAK_MARKS];
    _Atomic uint64_t agreed[SOAK_GENERATIONS]; /* 1 + the hash of what was agreed in a generation */
} soak_shared;

/* State that all members of a communicator share. */
typedef struct soak_state {
    uint64_t step, generation, grown;
} soak_state;

typedef struct soak_rank {
    soak_shared *all;
    int mark;
    dcomm_comm *comm;
    soak_state state;
    unsigned set; /* of the last right sum of this communicator; 0: none yet */
    double grow_s;
} soak_rank;

static long soak_us(void)
{
    return (long)(procs_now() * 1e6);
}

static void soak_at(soak_rank *r, soak_place at)
{
    atomic_store(&r->all->rank[r->mark].at, (int)at);
}

/* Count a mistake and say what it was. */
static void soak_fault(soak_rank *r, _Atomic long *count, const char *format, ...)
{
    va_list args;
    char text[512];
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fprintf(stderr, "soak: process %d: %s\n", r->mark, text);
    atomic_fetch_add(count, 1);
}

/* Element i of a process's part of a step. Sums are exact. */
static float soak_value(int mark, uint64_t step, size_t i)
{
    return i < SOAK_MARKS ? (float)(i == (size_t)mark)
                          : (float)((i + step * 7) % 61 * (size_t)(mark + 1));
}

/* Check a sum, and note who took part. */
static void soak_check(soak_rank *r, const float *out)
{
    unsigned set = 0;
    int factor = 0;
    for (int m = 0; m < SOAK_MARKS; m++) {
        set |= out[m] != 0 ? 1u << m : 0;
        factor += out[m] != 0 ? m + 1 : 0;
    }
    bool right = __builtin_popcount(set) == dcomm_comm_size(r->comm) && (set >> r->mark & 1) != 0 &&
                 (r->set == 0 || r->set == set);
    for (size_t i = 0; i < SOAK_COUNT && right; i++) {
        const float want = i < SOAK_MARKS ? (float)(set >> i & 1)
                                          : (float)((i + r->state.step * 7) % 61 * (size_t)factor);
        right = out[i] == want;
    }
    if (!right) {
        soak_fault(r, &r->all->faults.wrong, "a wrong sum in step %llu of generation %llu (set %x)",
                   (unsigned long long)r->state.step, (unsigned long long)r->state.generation, set);
    }
    if (r->set == 0) {
        atomic_store(&r->all->rank[r->mark].since_us, soak_us());
        atomic_store(&r->all->rank[r->mark].set, set);
    }
    r->set = set;
}

/* Sum until an error, or until there is something else to do. */
static dcomm_status soak_sum(soak_rank *r, bool *stops, bool *grows)
{
    static float in[2][SOAK_COUNT], out[2][SOAK_COUNT]; /* a failed one stays in use a while */
    const int turn = (int)(r->state.generation % 2);
    dcomm_status status = DCOMM_OK;
    soak_at(r, SOAK_SUMS);
    if (r->set == 0) {
        status = dcomm_broadcast(r->comm, &r->state, &r->state, 3, DCOMM_U64, 0, NULL);
    }
    while (status == DCOMM_OK) {
        for (size_t i = 0; i < SOAK_COUNT; i++) {
            in[turn][i] = soak_value(r->mark, r->state.step, i);
        }
        status =
            dcomm_allreduce(r->comm, in[turn], out[turn], SOAK_COUNT, DCOMM_F32, DCOMM_SUM, NULL);
        if (status == DCOMM_OK) {
            soak_check(r, out[turn]);
            r->state.step++;
        }
        uint64_t wanted[2] = {(uint64_t)atomic_load(&r->all->stop),
                              (uint64_t)atomic_load(&r->all->grow)};
        if (status == DCOMM_OK && r->state.step % 4 == 0) { /* rank 0's word counts */
            status = dcomm_broadcast(r->comm, wanted, wanted, 2, DCOMM_U64, 0, NULL);
            *stops = wanted[0] != 0;
            *grows = wanted[1] > r->state.grown;
            if (status == DCOMM_OK && (*stops || *grows)) {
                return status;
            }
        }
    }
    snprintf(r->all->rank[r->mark].said, sizeof r->all->rank[r->mark].said, "%s",
             dcomm_last_error());
    atomic_store(&r->all->rank[r->mark].error_us, soak_us());
    return status;
}

/* Compare a decision with what the others have got. */
static void soak_compare(soak_rank *r, uint64_t flags, const int *failed, int n)
{
    uint64_t hash = flags;
    for (int i = 0; i < n; i++) {
        hash = hash * 31 + (uint64_t)failed[i] + 1;
    }
    uint64_t was = 0;
    _Atomic uint64_t *at = &r->all->agreed[r->state.generation % SOAK_GENERATIONS];
    if (!atomic_compare_exchange_strong(at, &was, hash | 1) && was != (hash | 1)) {
        soak_fault(r, &r->all->faults.disagreements, "another decision in generation %llu",
                   (unsigned long long)r->state.generation);
    }
}

/* Go on with a new communicator. */
static void soak_move(soak_rank *r, dcomm_comm *next)
{
    soak_at(r, SOAK_DESTROYS);
    dcomm_status ignored = dcomm_comm_destroy(&r->comm);
    (void)ignored; /* it has failed */
    r->comm = next;
    r->set = 0;
    r->state.generation++;
}

/* Agree with those that are left, and shrink. Return false if the others have given this rank up.
 */
static bool soak_recover(soak_rank *r)
{
    uint64_t flags = ~(UINT64_C(1) << r->mark);
    int failed[SOAK_MARKS], n = 0;
    dcomm_comm *rest = NULL;
    soak_at(r, SOAK_AGREES);
    dcomm_status status = dcomm_comm_agree(r->comm, &flags, failed, SOAK_MARKS, &n);
    if (status == DCOMM_OK) {
        soak_compare(r, flags, failed, n);
        soak_at(r, SOAK_SHRINKS);
        status = dcomm_comm_shrink(r->comm, NULL, 0, &rest);
    }
    if (status == DCOMM_ERR_QUORUM || status == DCOMM_ERR_PEER) {
        return false;
    }
    if (status != DCOMM_OK) {
        soak_fault(r, &r->all->faults.unrecovered, "%s: %s", dcomm_status_name(status),
                   dcomm_last_error());
        _exit(1);
    }
    soak_move(r, rest);
    return true;
}

static bool soak_grow(soak_rank *r)
{
    dcomm_comm *more = NULL;
    soak_at(r, SOAK_GROWS);
    if (dcomm_comm_grow(r->comm, NULL, 1, r->grow_s, &more) != DCOMM_OK) {
        return false;
    }
    r->state.grown++;
    soak_move(r, more);
    return true;
}

/* Live until the trial ends. Return the exit status. */
static int soak_live(soak_rank *r)
{
    bool stops = false, grows = false;
    while (!stops) {
        dcomm_status status = soak_sum(r, &stops, &grows);
        if (status == DCOMM_OK && !stops && soak_grow(r)) {
            continue;
        }
        if (!stops && !soak_recover(r)) {
            break;
        }
    }
    soak_at(r, SOAK_ENDS);
    dcomm_status ignored = dcomm_comm_destroy(&r->comm);
    (void)ignored;
    return stops ? 0 : SOAK_OUTCAST;
}

#endif
