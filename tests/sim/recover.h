/* recover.h - survivors agree, shrink and call again, until a communicator works or they are too
 * few. All that is decided must be the same on all of them. */
#ifndef SIM_RECOVER_H
#define SIM_RECOVER_H

#include "plot.h"

enum { RECOVER_FACTS = 256 };

static void recover_destroy(dcomm_comm **comm)
{
    if (dcomm_comm_destroy(comm) != DCOMM_OK) {
        life_give_up("destroys a communicator");
    }
}

/* ---- facts ---- */

/* Facts that calls have told ranks. All ranks that hear of a fact must hear the same value. */
static struct {
    int n;
    struct recover_fact {
        uint64_t comm; /* its id */
        int what;
        uint64_t value;
    } fact[RECOVER_FACTS];
} recover_facts;

enum { RECOVER_AGREED, RECOVER_FAILED, RECOVER_MEMBERS };

/* Return true if each side of a divided job may decide for itself. */
static bool recover_divides(void)
{
    return life.quorum == DCOMM_QUORUM_NONE && (life.fault == LIFE_CUT || life.fault == LIFE_STOP);
}

/* Compare what this rank has been told with what others have. */
static void recover_compare(uint64_t comm, int what, uint64_t value)
{
    static const char *const names[] = {"flags", "failed ranks", "members"};
    for (int i = 0; i < recover_facts.n; i++) {
        const struct recover_fact *f = &recover_facts.fact[i];
        if (f->comm == comm && f->what == what) {
            if (f->value != value && !recover_divides()) {
                world_trouble("rank %d got other %s than another rank: %" PRIx64 ", not %" PRIx64,
                              world.in, names[what], value, f->value);
            }
            return;
        }
    }
    if (recover_facts.n < RECOVER_FACTS) {
        recover_facts.fact[recover_facts.n++] = (struct recover_fact){comm, what, value};
    }
}

/* Get the processes behind the ranks of a communicator. Return them as bits. */
static unsigned recover_who(const dcomm_comm *comm, int who[WORLD_MAX])
{
    unsigned bits = 0;
    for (int r = 0; r < comm->size; r++) {
        const int peer = comm->members[r].peer;
        const dcommi_remote *p = peer >= 0 ? &comm->context->peers[peer] : NULL;
        who[r] = p == NULL
                     ? world.in
                     : wire.port[p->same_host ? WIRE_LOCAL : WIRE_NET][world.in].rank_of[peer];
        bits |= 1u << who[r];
    }
    return bits;
}

/* ---- agree ---- */

/* Return true if a rank may count as failed: it has, or is silent for some. */
static bool recover_may_fail(int rank)
{
    const unsigned sides = network.side >> rank ^ network.side >> world.in;
    const bool woken = life.fault == LIFE_STOP && (rank == life.victim || world.in == life.victim);
    return life_is_out(rank) || woken || (life.fault == LIFE_CUT && (sides & 1) != 0) ||
           life.weight == LIFE_EITHER || life_report[rank].leaves;
}

/* Check which ranks a communicator's calls name as failed. Return them as bits of its ranks. */
static unsigned recover_failed(const dcomm_comm *comm, const int *failed, int n)
{
    int who[WORLD_MAX];
    unsigned bits = 0;
    recover_who(comm, who);
    for (int i = 0; i < n; i++) {
        bits |= 1u << failed[i];
        if (!recover_may_fail(who[failed[i]])) {
            world_trouble("rank %d takes rank %d for failed", world.in, who[failed[i]]);
        }
    }
    return bits;
}

/* Agree once. The bits of the ranks that count, and of no other, are missing in the result. */
static dcomm_status recover_agree_once(dcomm_comm *comm)
{
    const unsigned everybody = (1u << comm->size) - 1;
    int failed[WORLD_MAX], n = 0;
    uint64_t flags = ~(UINT64_C(1) << comm->rank);
    const dcomm_status status = dcomm_comm_agree(comm, &flags, failed, WORLD_MAX, &n);
    if (status != DCOMM_OK) {
        return status;
    }
    const unsigned out = recover_failed(comm, failed, n);
    if ((unsigned)~flags != (everybody & ~out)) {
        world_trouble("rank %d: the words of %x count, the ranks %x have failed", world.in,
                      (unsigned)~flags, out);
    }
    recover_compare(comm->id, RECOVER_AGREED, flags);
    recover_compare(comm->id, RECOVER_FAILED, out);
    if (dcomm_comm_failed(comm, failed, WORLD_MAX, &n) != DCOMM_OK ||
        (out & ~recover_failed(comm, failed, n)) != 0) {
        world_trouble("rank %d does not know the ranks that have failed: %x", world.in, out);
    }
    return DCOMM_OK;
}

/* Return true if deaths may still become certain: then there may be a quorum. */
static bool recover_may_improve(void)
{
    return life_waits_for_death() || world.now < life_so_far.last_blow + wire_rules.late + 3;
}

/* Let a communicator's messages go on for a while. */
static void recover_nap(dcomm_comm *comm)
{
    const double until = world.now + 0.2 * world_unit();
    while (world.now < until) {
        (void)dcomm_context_progress(dcomm_comm_context(comm));
    }
}

static dcomm_status recover_agree(dcomm_comm *comm)
{
    dcomm_status status;
    while ((status = recover_agree_once(comm)) == DCOMM_ERR_QUORUM && recover_may_improve()) {
        recover_nap(comm);
    }
    world_trace("agrees: %s", dcomm_status_name(status));
    return status;
}

static dcomm_status recover_shrink(dcomm_comm *comm, dcomm_comm **new_p)
{
    dcomm_status status;
    while ((status = dcomm_comm_shrink(comm, NULL, 0, new_p)) == DCOMM_ERR_QUORUM &&
           recover_may_improve()) {
        recover_nap(comm);
    }
    world_trace("shrinks: %s %d", dcomm_status_name(status),
                status == DCOMM_OK ? dcomm_comm_size(*new_p) : 0);
    if (status == DCOMM_OK) {
        int who[WORLD_MAX];
        recover_compare((*new_p)->id, RECOVER_MEMBERS, recover_who(*new_p, who));
    }
    return status;
}

/* ---- call again ---- */

/* Call on a communicator of those that are left. Return DCOMM_OK if all is over. */
static dcomm_status recover_call(dcomm_comm *small)
{
    int who[WORLD_MAX];
    recover_who(small, who);
    const int n = dcomm_comm_size(small), me = dcomm_comm_rank(small);
    calls_one call = life.call[life.ncalls];
    call.root %= n;
    calls_job job = calls_job_make(&call, who, n, me, life.ncalls);
    dcomm_status status = calls_make(small, &job, 1);
    uint32_t *mine = calls_take_numbers(2, world.in), *dead = mine + 1;
    *dead = 1;
    while (status == DCOMM_OK && *dead != 0) {
        *mine = life_waits_for_death();
        for (int i = 0; i < n; i++) {
            *mine = *mine != 0 || life_is_out(who[i]);
        }
        status = dcomm_allreduce(small, mine, dead, 1, DCOMM_U32, DCOMM_MAX, NULL);
    }
    return status;
}

/* Return how a rank fares that has not gone on. Some may not: they are on the smaller side, or
 * count as dead. */
static life_outcome recover_out(dcomm_status status, const char *what)
{
    const bool silent =
        (life.fault == LIFE_STOP && world.in == life.victim) || life.weight == LIFE_EITHER;
    if (status == DCOMM_ERR_PEER && silent) {
        return LIFE_OUT;
    }
    if (status != DCOMM_ERR_QUORUM) {
        world_trouble("rank %d: %s: %s: %s", world.in, what, dcomm_status_name(status),
                      dcomm_last_error());
    }
    return LIFE_FEW;
}

/* Agree, shrink and call until a communicator works. */
static void recover(dcomm_comm *comm, int rank)
{
    struct life_report *mine = &life_report[rank];
    dcomm_comm *chain[WORLD_MAX + 1] = {comm};
    int n = 0, who[WORLD_MAX];
    life_arm(rank, true);
    while (mine->outcome == LIFE_LEFT) {
        dcomm_status status = recover_agree(chain[n]);
        if (status == DCOMM_OK) {
            status = n < WORLD_MAX ? recover_shrink(chain[n], &chain[n + 1]) : DCOMM_ERR_INTERNAL;
        }
        if (status != DCOMM_OK) {
            mine->outcome = recover_out(status, "does not recover");
            break;
        }
        n++;
        status = recover_call(chain[n]);
        if (status == DCOMM_OK) {
            mine->outcome = LIFE_ON;
            mine->with = recover_who(chain[n], who);
        } else if (status != DCOMM_ERR_PEER) {
            life_give_up("fails on the shrunk communicator");
        }
    }
    mine->leaves = true;
    while (n > 0) {
        (void)dcomm_comm_status(chain[n]);
        recover_destroy(&chain[n--]);
    }
}

#endif
