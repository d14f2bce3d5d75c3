/* judge.h - compares what the survivors of a case report with what must be. */
#ifndef SIM_JUDGE_H
#define SIM_JUDGE_H

#include "plot.h"

/* Seconds until an error has reached all: the clock may jump so far while a message is left. */
#define JUDGE_SPREAD (WORLD_JUMP * WORLD_IDLE)

/* ---- blame ---- */

/* Return where a sentence goes on behind a rank's name, from `at` on; NULL: nowhere. */
static const char *judge_named(const char *at, int rank)
{
    char name[16];
    const size_t len = (size_t)snprintf(name, sizeof name, "rank %d", rank);
    while ((at = strstr(at, name)) != NULL && at[len] >= '0' && at[len] <= '9') {
        at += len;
    }
    return at != NULL ? at + len : NULL;
}

/* Return true if a sentence says of a rank what is said of the one at fault. */
static bool judge_accuses(const char *text, int rank)
{
    static const char *const said[] = {" (process", " was lost", " is lost", " cannot", " does not",
                                       " has left", " freed",    " aborted", " calls",  " as dead"};
    for (const char *at = text; (at = judge_named(at, rank)) != NULL;) {
        for (size_t i = 0; i < sizeof said / sizeof *said; i++) {
            if (strncmp(at, said[i], strlen(said[i])) == 0) {
                return true;
            }
        }
    }
    return false;
}

/* Return true if a list of ranks, "ranks 0-2, 5", has one. */
static bool judge_lists(const char *list, int rank)
{
    const char *at = list + strcspn(list, "0123456789");
    for (char *end; *at >= '0' && *at <= '9'; at = end + strspn(end, ", ")) {
        const long first = strtol(at, &end, 10);
        const long last = *end == '-' ? strtol(end + 1, &end, 10) : first;
        if (first <= rank && rank <= last) {
            return true;
        }
    }
    return false;
}

/* Return true if a sentence blames a rank. */
static bool judge_blames(const char *text, int rank)
{
    const char *also = strstr(text, "lost as well: ");
    return judge_accuses(text, rank) || (also != NULL && judge_lists(also, rank));
}

/* Return true if a rank is on the other side of the cut. */
static bool judge_across(int rank, int other)
{
    return life.fault == LIFE_CUT && ((network.side >> rank ^ network.side >> other) & 1) != 0;
}

/* Return true if `rank` may blame `other`. One that was stopped may find that a rank has died which
 * had given it up, or fail to read the memory of one that has ended since. */
static bool judge_may_blame(int rank, int other)
{
    const bool woken = life.fault == LIFE_STOP && rank == life.victim &&
                       (life.ndeaths > 0 || strstr(life_report[rank].error, " failed: ") != NULL);
    return life_dies(other) || life.fault == LIFE_MISMATCH || life.weight == LIFE_EITHER || woken ||
           (life.fault == LIFE_CUT ? judge_across(rank, other) : other == life.victim);
}

/* Check whom a survivor's error names. */
static void judge_blame(int rank)
{
    const char *text = life_report[rank].error;
    bool named = false;
    for (int r = 0; r < life.n; r++) {
        const bool blamed = judge_blames(text, r);
        named = named || (blamed && judge_may_blame(rank, r));
        if (blamed && !judge_may_blame(rank, r)) {
            world_trouble("rank %d blames rank %d: %s", rank, r, text);
        }
        if (!blamed && judge_across(rank, r) && life.ndeaths == 0 && life.weight == LIFE_HARD &&
            !life.second) {
            world_trouble("rank %d does not blame rank %d: %s", rank, r, text);
        }
    }
    if (!named) {
        world_trouble("rank %d names nobody: %s", rank, text);
    }
}

/* Check a survivor's first error. */
static void judge_error(int rank)
{
    static const dcomm_status wanted[LIFE_FAULTS] = {
        [LIFE_DEATH] = DCOMM_ERR_PEER,        [LIFE_ABORT] = DCOMM_ERR_ABORTED,
        [LIFE_MISMATCH] = DCOMM_ERR_MISMATCH, [LIFE_HANG] = DCOMM_ERR_TIMEOUT,
        [LIFE_LEAVE] = DCOMM_ERR_PEER,        [LIFE_CUT] = DCOMM_ERR_PEER,
        [LIFE_STOP] = DCOMM_ERR_PEER,         [LIFE_SUSPEND] = DCOMM_ERR_PEER};
    const struct life_report *mine = &life_report[rank];
    const dcomm_status want = life.weight == LIFE_MILD ? DCOMM_OK : wanted[life.fault];
    if (mine->status != want && !(life.weight == LIFE_EITHER && mine->status == DCOMM_OK)) {
        world_trouble("rank %d got %s, not %s: %s", rank, dcomm_status_name(mine->status),
                      dcomm_status_name(want), mine->error);
    }
    if (mine->status != DCOMM_OK) {
        judge_blame(rank);
    }
}

/* ---- time ---- */

/* Check that all survivors fail soon after the first one, where messages are fast and everybody
 * gets turns, and after an outage in time. */
static void judge_times(void)
{
    const bool fast = wire_rules.delay < 1e-2 && wire_rules.slow <= 0 && wire_rules.hold < 0.2 &&
                      world.starve <= 0;
    /* Between hosts each rank may have to see a death itself. */
    const bool told = system_host(life.n - 1) == 0 || wire_rules.late < JUDGE_SPREAD;
    const bool alone = life.ndeaths == 0 && life.weight == LIFE_HARD;
    double first = WORLD_NEVER, last = 0, waited = 0;
    for (int r = 0; r < life.n; r++) {
        const bool away = life.fault == LIFE_STOP && r == life.victim;
        if (!life_is_out(r) && !away) {
            first = life_report[r].failed < first ? life_report[r].failed : first;
            last = life_report[r].failed > last ? life_report[r].failed : last;
            const double since = life_report[r].waits_since > life_so_far.struck_at
                                     ? life_report[r].waits_since
                                     : life_so_far.struck_at;
            waited =
                life_report[r].failed - since > waited ? life_report[r].failed - since : waited;
        }
    }
    if (fast && ((life.fault == LIFE_DEATH && told) || life.fault == LIFE_ABORT) &&
        last - first > JUDGE_SPREAD) {
        world_trouble("the last survivor fails %g s after the first", last - first);
    }
    const double took = last - life_so_far.struck_at;
    const bool beats = life.fault == LIFE_STOP && system_host(life.n - 1) > 0;
    const double before = beats ? life.liveness_s / 8 + sockets.oversleep : 0; /* the last beat */
    if (alone && life_strikes() && first - life_so_far.struck_at + before < life.liveness_s) {
        world_trouble("a silence counts %g s later", first - life_so_far.struck_at);
    }
    if (fast && alone && life.fault == LIFE_CUT && took > 2 * life.liveness_s + JUDGE_SPREAD) {
        world_trouble("a cut is known %g s later", took);
    }
    if (fast && alone && life.fault == LIFE_STOP && waited > 1.25 * life.liveness_s + 2) {
        world_trouble("that a rank is stopped is known %g s later", waited);
    }
}

/* ---- quorum ---- */

/* A part of the ranks for which the others are silent. */
typedef struct judge_side {
    unsigned all, left; /* sets of ranks; left: without those that have died or left */
} judge_side;

/* Return the ranks that are on a side with this one. */
static judge_side judge_side_of(int rank)
{
    judge_side s = {0, 0};
    for (int r = 0; r < life.n; r++) {
        const bool away = life.fault == LIFE_STOP && (rank == life.victim) != (r == life.victim);
        if (!away && !judge_across(rank, r)) {
            s.all |= 1u << r;
            s.left |= life_is_out(r) ? 0 : 1u << r;
        }
    }
    return s;
}

/* Return true if `left` are a quorum when `dead` are certainly dead. */
static bool judge_quorum(unsigned left, unsigned dead)
{
    const unsigned others = ((1u << life.n) - 1) & ~dead, lowest = others & -others;
    const int n = __builtin_popcount(left), of = __builtin_popcount(others);
    return life.quorum != 0 ? n >= life.quorum
                            : 2 * n > of || (2 * n == of && (left & lowest) != 0);
}

/* Check if a survivor had to go on, or must not. What a side knows of deaths on the other side, and
 * when it decides, is open. */
static void judge_outcome(int rank)
{
    const judge_side s = judge_side_of(rank);
    const unsigned everybody = (1u << life.n) - 1;
    unsigned away = 0;
    for (int r = 0; r < life.n; r++) {
        away |= (s.all >> r & 1) == 0 && life_is_out(r) ? 1u << r : 0;
    }
    const unsigned died = s.all & ~s.left;
    const bool must = life.weight != LIFE_EITHER && judge_quorum(s.left, died) &&
                      !(life.fault == LIFE_STOP && rank == life.victim && life.weight != LIFE_MILD);
    const bool may = life.weight != LIFE_HARD || judge_quorum(s.left, died | away) ||
                     (life.quorum == 0 && judge_quorum(s.all, away));
    const struct life_report *mine = &life_report[rank];
    if (must && mine->outcome != LIFE_ON && life.weight == LIFE_HARD) {
        world_trouble("rank %d does not go on, with %x", rank, s.left);
    }
    if (!may && mine->outcome == LIFE_ON) {
        world_trouble("rank %d goes on without a quorum, with %x of %x", rank, mine->with,
                      everybody);
    }
    if (life.weight == LIFE_MILD && mine->with != everybody) {
        world_trouble("rank %d goes on with %x of %x", rank, mine->with, everybody);
    }
    if (mine->outcome == LIFE_ON && life.weight == LIFE_HARD && mine->with != s.left) {
        world_trouble("rank %d goes on with %x, not with %x", rank, mine->with, s.left);
    }
}

/* Check that no two ranks have gone on apart. */
static void judge_division(void)
{
    const bool chosen =
        life.quorum == DCOMM_QUORUM_NONE && (life.fault == LIFE_CUT || life.fault == LIFE_STOP);
    int first = -1;
    for (int r = 0; r < life.n && !chosen; r++) {
        if (life_report[r].outcome == LIFE_ON) {
            first = first < 0 ? r : first;
            if (life_report[r].with != life_report[first].with) {
                world_trouble("rank %d goes on with %x, rank %d with %x", first,
                              life_report[first].with, r, life_report[r].with);
            }
        }
    }
}

/* Compare what the survivors report. */
static void judge(void)
{
    for (int r = 0; r < life.n && world.trouble[0] == 0; r++) {
        if (!life_report[r].over && world.rank[r].state != WORLD_DEAD) {
            world_trouble("rank %d has not come to its end", r);
        } else if (!life_is_out(r)) {
            judge_error(r);
            judge_outcome(r);
        }
    }
    if (world.trouble[0] == 0) {
        judge_times();
        judge_division();
    }
}

#endif
