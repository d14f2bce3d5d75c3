/* tune_rounds.h - probes that run in turn, round by round, on a communicator of their own. All
 * ranks take part in the same probes, and rank 0's times count. */
#ifndef DCOMMI_TUNE_ROUNDS_H
#define DCOMMI_TUNE_ROUNDS_H

#include "../base/busy.h"
#include "../base/flush.h"
#include "loan.h"
#include "tune_probe.h"

#define DCOMMI_TUNE_COLD 16384 /* bytes from which probes within a host start uncached */
#define DCOMMI_TUNE_ROUNDS 9   /* rounds of short probes; long ones: DCOMMI_TUNE_FEW */
#define DCOMMI_TUNE_BATCHES 2  /* of rounds: the second if the first was disturbed */
#define DCOMMI_TUNE_PROBES 40  /* most probes of a round */

/* Probes that run in turn, round by round. A core that is disturbed for a while then spoils one
 * round of all probes, and not all rounds of one probe. */
typedef struct dcommi_rounds {
    int n;
    struct dcommi_timed {
        dcommi_probe probe;
        dcomm_plan *plan;
        double took[DCOMMI_TUNE_BATCHES * DCOMMI_TUNE_ROUNDS];
    } timed[DCOMMI_TUNE_PROBES];
} dcommi_rounds;

typedef struct dcommi_tuner {
    dcomm_comm *comm; /* for the probes alone */
    dcomm_tuning tuning;
    uint8_t *in, *out;
    bool near;        /* measuring within a host */
    void *registered; /* NULL: none, or not asked for yet */
    uint8_t *huge;    /* likewise, on huge pages */
    /* Of trials. A call that has failed may use its buffers until the communicator is destroyed. */
    uint8_t *trial, *trial_huge;
    dcommi_rounds rounds;
    /* On rank 0: how many probes have run, how many stayed disturbed, and looks at other
     * programs. */
    int probes, disturbed;
    dcommi_busy others;
    bool busy;                  /* the machine was too busy to trust the times */
    dcomm_status status;        /* the first error; nothing is run after it */
    double step, signal, empty; /* seconds, by rank 0's clock */
} dcommi_tuner;

static int64_t dcommi_ps(double seconds)
{
    double ps = seconds * 1e12 + 0.5;
    return !(ps > 0) ? 0 : ps > 1e15 ? (int64_t)1e15 : (int64_t)ps;
}

/* ---- probes ---- */

static int dcommi_tune_compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Return the first quartile, since disturbances only add time. Sort `took`. */
static double dcommi_tune_quartile(double *took, int n)
{
    qsort(took, (size_t)n, sizeof *took, dcommi_tune_compare);
    return n > 0 ? took[(n - 1) / 4] : 0;
}

/* Return true if a rank, alone or with its partner, has a hardware thread to itself, or if both
 * share one with no other rank that is measured. */
static bool dcommi_tune_seated(const dcommi_groups *g, int rank, int partner)
{
    bool first = g->seat[rank] == rank, second = partner < 0 || g->seat[partner] == partner;
    return (first && second) ||
           (partner >= 0 && g->seat[rank] == g->seat[partner] && (first || second));
}

/* Add a probe to the rounds to come, and return its index. */
static int dcommi_tune_add(dcommi_tuner *t, enum dcommi_probe_kind kind, int64_t len, int64_t trips,
                           int depth, bool alone)
{
    dcomm_comm *comm = t->comm;
    struct dcommi_timed *timed = &t->rounds.timed[t->rounds.n];
    bool pairs = kind >= DCOMMI_PROBE_SIGNALS && kind < DCOMMI_PROBE_COPY;
    int partner = pairs ? dcommi_probe_partner(comm->groups, comm->rank, depth) : -1;
    if (alone && comm->rank != 0 && partner != 0) {
        partner = -1;
    }
    bool works = !t->near || dcommi_tune_seated(comm->groups, comm->rank, partner);
    if (!works) { /* two ranks that take turns would be timed as one */
        partner = -1;
        kind = DCOMMI_PROBE_NOTHING;
    }
    timed->probe = (dcommi_probe){kind, len, trips};
    timed->plan = NULL;
    if (t->status >= 0) {
        t->status = dcommi_probe_plan(&timed->probe, comm->rank, comm->size, partner, &timed->plan);
    }
    return t->rounds.n++;
}

static bool dcommi_tune_goes_on(dcommi_tuner *t, double until);
static void dcommi_tune_share(dcommi_tuner *t, void *data, size_t bytes);

/* Run a plan on `data` if `status` says that it was made, and free it. */
static void dcommi_tune_once(dcommi_tuner *t, dcomm_status status, dcomm_plan *plan, void *data)
{
    t->status = t->status >= 0 ? status : t->status;
    if (t->status >= 0) {
        t->status = dcommi_probe_run(t->comm, plan, data, data);
    }
    dcommi_free(plan);
}

/* Meet: no rank goes on before all have come. */
static void dcommi_tune_meet(dcommi_tuner *t)
{
    dcommi_shape s = {.coll = DCOMM_COLL_BARRIER,
                      .rank = t->comm->rank,
                      .nranks = t->comm->size,
                      .dtype = DCOMM_U8,
                      .lanes = 1};
    dcomm_plan *plan = NULL;
    dcomm_status status = dcommi_plan_make(&s, dcommi_algo_find(s.coll, "dissemination"), &plan);
    dcommi_tune_once(t, status, plan, NULL);
}

/* Meet with the ranks of the same host only. */
static void dcommi_tune_meet_near(dcommi_tuner *t)
{
    const dcommi_groups *g = t->comm->groups;
    int rank = t->comm->rank, others = 0;
    dcomm_builder b;
    dcomm_plan *plan = NULL;
    dcommi_build_begin(&b, "tuning", rank, g->nranks, DCOMM_U8, DCOMM_SUM);
    uint16_t come = dcomm_build_counter(&b);
    for (int r = 0; r < g->nranks; r++) {
        if (r != rank && dcommi_group_of(g, 0, r) == dcommi_group_of(g, 0, rank)) {
            dcomm_build_signal(&b, 0, come, dcomm_const(r), dcomm_const(1));
            others++;
        }
    }
    dcomm_build_wait(&b, 0, come, dcomm_const(others));
    dcomm_status status = dcommi_build_finish(&b, &plan);
    dcommi_tune_once(t, status, plan, NULL);
}

/* Flush the buffers of a probe. A program's long buffers are not in the caches when it calls,
 * least of all its inputs. A rank that looks on stays idle: it may share a core with a rank of
 * another host, which does not wait for it. */
static void dcommi_tune_chill(const dcommi_tuner *t, enum dcommi_probe_kind kind, int64_t len)
{
    if (kind == DCOMMI_PROBE_NOTHING) {
        return;
    }
    dcommi_flush(t->in, 2 * len);
    dcommi_flush(t->out, DCOMMI_PROBE_TURNS * len);
}

/* Look whether other programs want our processors. Only rank 0 does, within its host. */
static void dcommi_tune_look(dcommi_tuner *t)
{
    const dcommi_groups *g = t->comm->groups;
    int ours = 0;
    if (!t->near || t->comm->rank != 0) {
        return;
    }
    for (int r = 0; r < g->nranks; r++) {
        ours += dcommi_group_of(g, 0, r) == dcommi_group_of(g, 0, 0);
    }
    dcommi_busy_look(&t->others, ours);
}

/* Run all probes once and put their times at `at`. */
static void dcommi_tune_round(dcommi_tuner *t, int at)
{
    dcommi_tune_look(t);
    for (int i = 0; i < t->rounds.n && t->status >= 0; i++) {
        struct dcommi_timed *timed = &t->rounds.timed[i];
        if (t->near) { /* ranks that share this core have ended the last probe */
            dcommi_tune_meet_near(t);
            if (timed->probe.len >= DCOMMI_TUNE_COLD) {
                dcommi_tune_chill(t, timed->probe.kind, timed->probe.len);
                dcommi_tune_meet_near(t);
            }
        }
        double start = dcommi_now();
        if (t->status >= 0) {
            t->status = dcommi_probe_run(t->comm, timed->plan, t->in, t->out);
        }
        timed->took[at] = dcommi_now() - start;
    }
}

/* Sort the times of n rounds. Return on all ranks how many probes were disturbed by rank 0's
 * clock. */
static int dcommi_tune_disturbed(dcommi_tuner *t, int n)
{
    uint64_t disturbed = 0;
    for (int i = 0; i < t->rounds.n; i++) {
        struct dcommi_timed *timed = &t->rounds.timed[i];
        qsort(timed->took, (size_t)n, sizeof *timed->took, dcommi_tune_compare);
        disturbed += n > 1 && dcommi_busy_disturbed(timed->took[0], timed->took[n / 2]);
    }
    dcommi_tune_share(t, &disturbed, sizeof disturbed);
    return (int)disturbed;
}

/* Run one round to warm up and then `rounds` more, or fewer: none begins after `seconds`, unless
 * that is 0. Within a host, run as many again if something disturbed the first ones. */
static void dcommi_tune_run(dcommi_tuner *t, int rounds, double seconds)
{
    dcommi_rounds *all = &t->rounds;
    int done = 0, disturbed = 0;
    dcommi_tune_round(t, 0);
    for (int batch = 0; batch < DCOMMI_TUNE_BATCHES && t->status >= 0; batch++) {
        double until = dcommi_now() + seconds;
        for (int round = 0; round < rounds && t->status >= 0; round++) {
            if (round > 0 && seconds > 0 && !dcommi_tune_goes_on(t, until)) {
                break;
            }
            dcommi_tune_round(t, done++);
        }
        disturbed = t->near && done > 0 ? dcommi_tune_disturbed(t, done) : 0;
        if (disturbed == 0) {
            break;
        }
    }
    t->probes += all->n;
    t->disturbed += disturbed;
    for (int i = 0; i < all->n; i++) {
        double *took = all->timed[i].took;
        dcommi_free(all->timed[i].plan);
        took[0] = dcommi_tune_quartile(took, done) / (double)all->timed[i].probe.trips;
    }
    all->n = 0;
}

/* Return the seconds of one trip of a probe that has run. */
static double dcommi_tune_time(const dcommi_tuner *t, int i)
{
    return t->rounds.timed[i].took[0];
}

/* Copy rank 0's bytes to all ranks. */
static void dcommi_tune_share(dcommi_tuner *t, void *data, size_t bytes)
{
    dcomm_comm *comm = t->comm;
    dcomm_plan *plan = NULL;
    void *lent = dcommi_borrow(comm, 1, bytes);
    if (lent == NULL) {
        t->status = t->status >= 0 ? DCOMM_ERR_NO_MEMORY : t->status;
        return;
    }
    memcpy(lent, data, bytes);
    dcommi_shape s = {.coll = DCOMM_COLL_BROADCAST,
                      .rank = comm->rank,
                      .nranks = comm->size,
                      .dtype = DCOMM_U8,
                      .count = bytes,
                      .in_place = true,
                      .lanes = 1};
    dcomm_status status = dcommi_plan_make(&s, dcommi_algo_find(s.coll, "binomial"), &plan);
    dcommi_tune_once(t, status, plan, lent);
    memcpy(data, lent, bytes);
    dcommi_give_back(comm, lent);
}

/* Return true on all ranks until rank 0's clock reaches `until`. */
static bool dcommi_tune_goes_on(dcommi_tuner *t, double until)
{
    uint64_t on = dcommi_now() < until;
    dcommi_tune_share(t, &on, sizeof on);
    return t->status >= 0 && on != 0;
}

#endif
