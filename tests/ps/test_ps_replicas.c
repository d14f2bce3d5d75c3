/* test_ps_replicas.c - a server dies, and its replica takes over: the workers see the bits that
 * they see without a death. */
#define _GNU_SOURCE
#include "full.h"
#include "ps_case.h"

enum { CLOCKS = 6, POINTS = 4, IMAGE_MOST = 1 << 14 };

/* Where in clock 2 the server dies. */
enum { BEFORE_PUSH, BEFORE_CLOCK, IN_A_PULL, AFTER_CLOCK };

typedef struct shelf {
    _Atomic int pids[PROCS_MAX];
    int point, victim, second;
    dcomm_ps_opts opts;
    size_t bytes[PROCS_MAX];
    unsigned char images[PROCS_MAX][IMAGE_MOST];
    float value[PS_PARAMS][PS_MOST];
} shelf;

static shelf *kept;

static void kill_server(int rank)
{
    kill(atomic_load(&kept->pids[rank]), SIGKILL);
}

/* One clock of a worker. The first worker kills the victim at `point`, or nobody does (-1). */
static void one_clock(const ps_case *t, procs_shared *s, int clock, int point, bool first,
                      float out[PS_PARAMS][PS_MOST])
{
    const uint64_t rows[] = {39, 2, 21};
    dcomm_request *requests[2] = {NULL};
    float grad[3 * 6];
    for (int k = 0; k < 3 * 6; k++) {
        grad[k] = (float)(t->rank + clock + k) / 7;
    }
    if (point == BEFORE_PUSH && first) {
        kill_server(kept->victim);
    }
    ps_push(t, clock);
    RANKS_OK(dcomm_ps_push_rows(t->ps, 0, rows, 3, grad, NULL));
    if (point == BEFORE_CLOCK && first) {
        kill_server(kept->victim);
    }
    if (point == IN_A_PULL && first) { /* the other one's pull waits for this clock */
        while (!procs_all(s, t->size, 1, -1)) {
            procs_nap();
        }
        procs_nap();
        kill_server(kept->victim);
    }
    RANKS_OK(dcomm_ps_clock(t->ps));
    if (point == AFTER_CLOCK && first) {
        kill_server(kept->victim);
    }
    RANKS_OK(dcomm_ps_pull(t->ps, 0, 0, ps_rows[0], out[0], &requests[0]));
    RANKS_OK(dcomm_ps_pull_rows(t->ps, 0, rows, 3, grad, &requests[1]));
    if (point == IN_A_PULL && !first) {
        procs_post(s, t->rank, 1);
    }
    RANKS_OK(dcomm_wait_all(requests, 2));
    PROCS_TRUE(memcmp(grad, out[0] + 39 * 6, 6 * sizeof *grad) == 0 &&
               memcmp(grad + 6, out[0] + 2 * 6, 6 * sizeof *grad) == 0);
    RANKS_OK(dcomm_ps_pull(t->ps, 1, 0, ps_rows[1], out[1], NULL));
}

/* Dedicated servers: a run without a death and without replicas, then one with both. */
static int taken_over(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    dcomm_comm *comm = join(rank, n, s);
    static ps_case t;
    static float seen[2][CLOCKS][PS_PARAMS][PS_MOST];
    const bool serves = rank == 0 || rank == n / 2;
    atomic_store(&kept->pids[rank], getpid());
    for (int run = 0; run < 2; run++) {
        t = (ps_case){.opts = kept->opts};
        t.opts.servers = 2;
        t.opts.dedicated = true;
        t.opts.replicas = run;
        ps_begin(&t, comm);
        if (serves && run == 1) {
            procs_post(s, rank, 1);
        }
        for (int clock = 0; clock < CLOCKS && !serves; clock++) {
            one_clock(&t, s, clock, run == 1 && clock == 2 ? kept->point : -1, rank == 1,
                      seen[run][clock]);
            if (rank == 1 && run == 0) {
                procs_post(s, rank, 1);
            }
        }
        if (serves) {
            RANKS_OK(dcomm_ps_serve(t.ps));
        }
        RANKS_OK(dcomm_ps_destroy(&t.ps));
    }
    PROCS_CHECK(memcmp(seen[0], seen[1], sizeof seen[0]) == 0,
                "rank %d, server on rank %d dies at point %d: other bits", rank, kept->victim,
                kept->point);
    dcomm_comm_destroy(&comm);
    return procs_leaks();
}

static void on_but(int n, ranks_place place, procs_fn fn, int victim)
{
    char what[32];
    const unsigned second = kept->second >= 0 ? 1u << kept->second : 0;
    snprintf(what, sizeof what, "point %d", kept->point);
    ps_on_but(1u << victim | second, n, place, 50, fn, NULL, what);
}

static void with_shelf(void)
{
    kept = mmap(NULL, sizeof *kept, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert(kept != MAP_FAILED);
}

TestSuite(ps_replicas, .init = with_shelf, .timeout = 100);

Test(ps_replicas, taken_over)
{
    const dcomm_ps_update updates[POINTS] = {DCOMM_PS_MOMENTUM, DCOMM_PS_ADAM, DCOMM_PS_ADAGRAD,
                                             DCOMM_PS_SGD};
    for (int point = 0; point < POINTS; point++) {
        *kept = (shelf){.point = point, .victim = point % 2 == 0 ? 2 : 0, .second = -1};
        kept->opts = (dcomm_ps_opts){.update = updates[point], .lr = 0.1, .momentum = 0.9};
        on_but(4, point % 2 == 0 ? RANKS_LOCAL : RANKS_PAIRS, taken_over, kept->victim);
    }
}

/* A server that works, too: its rows and its place as a worker go, and the others go on. */
static int worker_too(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    dcomm_comm *comm = join(rank, n, s);
    static ps_case t;
    unsigned alive = (1u << n) - 1;
    t = (ps_case){.opts = {.lr = 0.5, .replicas = 1}};
    ps_begin(&t, comm);
    for (int clock = 0; clock < CLOCKS; clock++) {
        if (clock == 3) {
            procs_post(s, rank, 1);
            while (rank == kept->victim && !procs_all(s, n, 1, -1)) {
                procs_nap();
            }
            if (rank == kept->victim) {
                kill(getpid(), SIGKILL);
            }
            alive &= ~(1u << kept->victim);
        }
        ps_push(&t, clock);
        RANKS_OK(dcomm_ps_clock(t.ps));
        ps_expect_sgd(&t, clock, alive);
        ps_compare(&t, 1e-6, "after the death of one that is both");
    }
    kept->bytes[rank] = dcomm_ps_save_bytes(t.ps);
    PROCS_TRUE(kept->bytes[rank] <= IMAGE_MOST);
    RANKS_OK(dcomm_ps_save(t.ps, kept->images[rank], kept->bytes[rank]));
    memcpy(kept->value, t.value, sizeof t.value);
    RANKS_OK(dcomm_ps_destroy(&t.ps));
    dcomm_comm_destroy(&comm);
    return procs_leaks();
}

/* The next job loads what the survivors have saved: the dead server's rows, too. It has replicas,
 * and one dies again. */
static int next_job(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    dcomm_comm *comm = join(rank, n, s);
    const void *images[PROCS_MAX];
    static ps_case t;
    for (int k = 0; k < n; k++) {
        images[k] = k != kept->victim ? kept->images[k] : NULL;
    }
    t = (ps_case){.opts = {.lr = 0.5, .servers = 2, .replicas = 1}};
    ps_begin(&t, comm);
    RANKS_OK(dcomm_ps_load(t.ps, images, kept->bytes, (size_t)n));
    memcpy(t.value, kept->value, sizeof t.value);
    ps_compare(&t, 1e-6, "loaded");
    procs_post(s, rank, 1);
    if (rank == 0) {
        while (!procs_all(s, n, 1, -1)) {
            procs_nap();
        }
        kill(getpid(), SIGKILL);
    }
    while (!procs_all(s, n, 1, -1)) {
        procs_nap();
    }
    ps_push(&t, 0);
    RANKS_OK(dcomm_ps_clock(t.ps));
    ps_expect_sgd(&t, 0, ((1u << n) - 1) & ~1u);
    ps_compare(&t, 1e-6, "loaded, after a death");
    RANKS_OK(dcomm_ps_destroy(&t.ps));
    dcomm_comm_destroy(&comm);
    return procs_leaks();
}

Test(ps_replicas, worker_too)
{
    *kept = (shelf){.victim = 1, .second = -1};
    on_but(3, RANKS_LOCAL, worker_too, 1);
    on_but(3, RANKS_LOCAL, next_job, 0);
    if (test_full()) {
        *kept = (shelf){.victim = 3, .second = -1};
        on_but(4, RANKS_PAIRS, worker_too, 3);
    }
}

/* A server and its replica die: calls that need their rows name both, others go on. */
static int both_die(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    dcomm_comm *comm = join(rank, n, s);
    static ps_case t;
    float w[PS_MOST];
    t = (ps_case){.opts = {.lr = 1, .servers = 3, .replicas = 1, .staleness = DCOMM_PS_ASYNC}};
    ps_begin(&t, comm);
    RANKS_OK(dcomm_ps_pull(t.ps, 0, 0, ps_rows[0], w, NULL));
    procs_post(s, rank, 1);
    if (rank == kept->victim || rank == kept->second) {
        while (!procs_all(s, n, 1, -1)) {
            procs_nap();
        }
        kill(getpid(), SIGKILL);
    }
    dcomm_status status = DCOMM_OK;
    const double start = procs_now();
    while ((status = dcomm_ps_pull(t.ps, 0, 0, ps_rows[0], w, NULL)) == DCOMM_OK) {
        PROCS_CHECK(procs_now() - start < 10, "no error for 10 s");
    }
    ranks_refused(status, DCOMM_ERR_PEER, "server 1 and its replica (ranks 1 and 2)");
    ranks_refused(dcomm_ps_push(t.ps, 0, 0, ps_rows[0], w, NULL), DCOMM_ERR_PEER, "ranks 1 and 2");
    RANKS_OK(dcomm_ps_pull(t.ps, 0, 0, 10, w, NULL));
    RANKS_OK(dcomm_ps_pull(t.ps, 0, 30, 10, w, NULL)); /* of server 2, by its replica */
    RANKS_OK(dcomm_ps_push(t.ps, 0, 30, 10, w, NULL));
    RANKS_OK(dcomm_ps_destroy(&t.ps));
    dcomm_comm_destroy(&comm);
    return procs_leaks();
}

Test(ps_replicas, both_die)
{
    *kept = (shelf){.victim = 1, .second = 2};
    on_but(4, RANKS_LOCAL, both_die, 1);
}
