/* test_ps_saved.c - a parameter server that is saved and loaded goes on bit for bit as one that was
 * not interrupted, with the same and with another number of servers. */
#define _GNU_SOURCE
#include "full.h"
#include "ps_case.h"

enum { IMAGE_MOST = 1 << 14, CLOCKS = 3 };

/* All ranks share the servers' images, and the values of the run that was not interrupted. */
typedef struct shelf {
    size_t bytes[PROCS_MAX];
    unsigned char images[PROCS_MAX][IMAGE_MOST];
} shelf;

static shelf *kept;

/* Push gradients that differ in each row and need rounding: each rank some rows, by lists and
 * ranges, so that Adam's counts differ by row. */
static void step(const ps_case *t, int clock)
{
    float grad[PS_MOST];
    const size_t first = (size_t)(t->rank * 5 + clock) % 30, rows = 10;
    for (size_t k = 0; k < PS_MOST; k++) {
        grad[k] = ps_gradient(t->rank, clock, 0, k, 0) / 7;
    }
    RANKS_OK(dcomm_ps_push(t->ps, 0, first, rows, grad, NULL));
    RANKS_OK(dcomm_ps_push(t->ps, 1, 0, ps_rows[1], grad + 100, NULL));
    RANKS_OK(dcomm_ps_clock(t->ps));
}

static void pull_all(const ps_case *t, float out[PS_PARAMS][PS_MOST])
{
    memset(out, 0, sizeof(float[PS_PARAMS][PS_MOST]));
    for (size_t i = 0; i < PS_PARAMS; i++) {
        RANKS_OK(dcomm_ps_pull(t->ps, i, 0, ps_rows[i], out[i], NULL));
    }
}

static void save(const ps_case *t, int server)
{
    const size_t bytes = dcomm_ps_save_bytes(t->ps);
    PROCS_TRUE(server >= 0 ? bytes > 0 && bytes <= IMAGE_MOST : bytes == 0);
    RANKS_OK(dcomm_ps_save(t->ps, server >= 0 ? kept->images[server] : NULL, bytes));
    if (server >= 0) {
        kept->bytes[server] = bytes;
    }
}

static void load(const ps_case *t, int servers)
{
    const void *images[PROCS_MAX];
    for (int k = 0; k < servers; k++) {
        images[k] = kept->images[k];
    }
    dcomm_ps_stats stats;
    RANKS_OK(dcomm_ps_load(t->ps, images, kept->bytes, (size_t)servers));
    RANKS_OK(dcomm_ps_get_stats(t->ps, &stats));
    PROCS_TRUE(stats.clock == CLOCKS);
}

/* Return this rank's number among so many servers; -1: it is none. */
static int server_of(int rank, int n, int servers)
{
    for (int k = 0; k < servers; k++) {
        if (k * n / servers == rank) {
            return k;
        }
    }
    return -1;
}

/* With each update: 2 k clocks without an interruption, in which servers save after k while some
 * workers already push the next clock; then another parameter server loads, and does the last k. */
static int resumes(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    dcomm_comm *comm = join(rank, n, s);
    static const dcomm_ps_update updates[] = {DCOMM_PS_SGD, DCOMM_PS_MOMENTUM, DCOMM_PS_ADAGRAD,
                                              DCOMM_PS_ADAM};
    static ps_case t;
    static float whole[PS_PARAMS][PS_MOST], parts[PS_PARAMS][PS_MOST];
    for (int u = 0; u < 4; u++) {
        for (int servers = 1; servers <= n; servers++) {
            if (!test_full() && servers != (u + 1) % n + 1) {
                continue;
            }
            const dcomm_ps_opts opts = {
                .servers = servers, .update = updates[u], .lr = 0.1, .momentum = 0.9};
            t = (ps_case){.opts = opts};
            ps_begin(&t, comm);
            for (int clock = 0; clock < 2 * CLOCKS; clock++) {
                if (clock == CLOCKS) {
                    save(&t, server_of(rank, n, servers));
                }
                step(&t, clock);
            }
            pull_all(&t, whole);
            RANKS_OK(dcomm_ps_destroy(&t.ps));
            RANKS_OK(dcomm_barrier(comm, NULL)); /* all have saved */
            const int then = u % 2 == 0 ? servers : servers % n + 1;
            t = (ps_case){.opts = opts};
            t.opts.servers = then;
            ps_begin(&t, comm);
            load(&t, servers);
            for (int clock = CLOCKS; clock < 2 * CLOCKS; clock++) {
                step(&t, clock);
            }
            pull_all(&t, parts);
            RANKS_OK(dcomm_ps_destroy(&t.ps));
            PROCS_CHECK(memcmp(whole, parts, sizeof whole) == 0,
                        "rank %d: update %d, %d servers and then %d: other bits", rank,
                        (int)updates[u], servers, then);
            RANKS_OK(dcomm_barrier(comm, NULL)); /* all have loaded */
        }
    }
    return ranks_leave(&comm);
}

static void with_shelf(int n, ranks_place place, procs_fn fn)
{
    kept = mmap(NULL, sizeof *kept, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert(kept != MAP_FAILED);
    on(n, place, 50, fn);
    munmap(kept, sizeof *kept);
}

Test(ps_saved, resumes, .timeout = 60)
{
    with_shelf(3, RANKS_LOCAL, resumes);
    if (test_full()) {
        with_shelf(4, RANKS_PAIRS, resumes);
    }
}

/* Servers that do not work: workers pull, and barriers keep the next clock away. They save again
 * when all workers have left. */
static int dedicated(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    dcomm_comm *comm = join(rank, n, s);
    static ps_case t;
    static float whole[PS_PARAMS][PS_MOST], parts[PS_PARAMS][PS_MOST];
    const dcomm_ps_opts opts = {.servers = 2, .dedicated = true, .update = DCOMM_PS_ADAM, .lr = 1};
    const int server = server_of(rank, n, 2);
    unsigned char *end = malloc(IMAGE_MOST);
    for (int run = 0; run < 2; run++) {
        t = (ps_case){.opts = opts};
        ps_begin(&t, comm);
        if (run == 1) {
            load(&t, 2);
        }
        for (int clock = run * CLOCKS; clock < 2 * CLOCKS; clock++) {
            if (server < 0) {
                step(&t, clock);
                pull_all(&t, run == 0 ? whole : parts);
            }
            if (clock == CLOCKS - 1) {
                RANKS_OK(dcomm_barrier(comm, NULL));
                save(&t, server);
                RANKS_OK(dcomm_barrier(comm, NULL));
            }
        }
        if (server >= 0) {
            const size_t bytes = dcomm_ps_save_bytes(t.ps);
            RANKS_OK(dcomm_ps_serve(t.ps));
            RANKS_OK(dcomm_ps_save(t.ps, run == 0 ? end : kept->images[server], bytes));
            PROCS_CHECK(run == 0 || memcmp(end, kept->images[server], bytes) == 0,
                        "server %d: the last images differ", server);
        }
        RANKS_OK(dcomm_ps_destroy(&t.ps));
    }
    PROCS_CHECK(memcmp(whole, parts, sizeof whole) == 0, "rank %d: other bits", rank);
    free(end);
    return ranks_leave(&comm);
}

Test(ps_saved, dedicated, .timeout = 60)
{
    with_shelf(4, RANKS_LOCAL, dedicated);
}

/* With staleness, workers go on at the lowest clock, and see their rows and each other. */
static int stale(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    dcomm_comm *comm = join(rank, n, s);
    static ps_case t;
    static float before[PS_PARAMS][PS_MOST], after[PS_PARAMS][PS_MOST];
    t = (ps_case){.opts = {.staleness = 1, .update = DCOMM_PS_MOMENTUM, .momentum = 0.5, .lr = 1}};
    ps_begin(&t, comm);
    for (int clock = 0; clock < CLOCKS; clock++) {
        step(&t, clock);
    }
    RANKS_OK(dcomm_ps_clock(t.ps));
    pull_all(&t, before); /* sees all pushes */
    RANKS_OK(dcomm_barrier(comm, NULL));
    if (rank == 0) {
        RANKS_OK(dcomm_ps_clock(t.ps)); /* one more than the others */
    }
    pull_all(&t, before);
    save(&t, rank);
    RANKS_OK(dcomm_ps_destroy(&t.ps));
    RANKS_OK(dcomm_barrier(comm, NULL));
    t.opts.servers = 1;
    ps_begin(&t, comm);
    const void *images[PROCS_MAX];
    for (int k = 0; k < n; k++) {
        images[k] = kept->images[k];
    }
    dcomm_ps_stats stats;
    RANKS_OK(dcomm_ps_load(t.ps, images, kept->bytes, (size_t)n));
    RANKS_OK(dcomm_ps_get_stats(t.ps, &stats));
    PROCS_CHECK(stats.clock == CLOCKS + 1, "clock %d", (int)stats.clock);
    pull_all(&t, after);
    PROCS_TRUE(memcmp(before, after, sizeof before) == 0);
    RANKS_OK(dcomm_barrier(comm, NULL)); /* a push changes rows at once */
    step(&t, CLOCKS);
    RANKS_OK(dcomm_ps_clock(t.ps));
    pull_all(&t, after); /* waits for the others' clocks */
    RANKS_OK(dcomm_ps_destroy(&t.ps));
    return ranks_leave(&comm);
}

Test(ps_saved, stale, .timeout = 60)
{
    with_shelf(3, RANKS_LOCAL, stale);
}

/* What is refused, and that nothing has changed then. */
static int refusals(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    dcomm_comm *comm = join(rank, n, s);
    static ps_case t;
    static unsigned char spoiled[IMAGE_MOST];
    static const float zeros[PS_MOST];
    const void *images[3];
    size_t bytes[3];
    dcomm_ps *other = NULL;
    t = (ps_case){.opts = {.lr = 1, .update = DCOMM_PS_ADAGRAD}};
    ps_begin(&t, comm);
    const size_t own = dcomm_ps_save_bytes(t.ps);
    ranks_refused(dcomm_ps_save(t.ps, spoiled, own - 1), DCOMM_ERR_INVALID, "there is no room");
    ranks_refused(dcomm_ps_save(t.ps, NULL, own), DCOMM_ERR_INVALID, "to is NULL");
    if (rank == 0) {
        save(&t, 0);
    }
    step(&t, 0);
    if (rank == 1) {
        save(&t, 1); /* one clock later than the other */
    }
    RANKS_OK(dcomm_barrier(comm, NULL));
    static const struct {
        dcomm_status status;
        const char *words;
    } cases[] = {{DCOMM_ERR_CORRUPT, "too short"},
                 {DCOMM_ERR_CORRUPT, "no image of a server"},
                 {DCOMM_ERR_CORRUPT, "its hash does not match"},
                 {DCOMM_ERR_INVALID, "is of server 0 of 2"},
                 {DCOMM_ERR_INVALID, "images[1] is NULL"},
                 {DCOMM_ERR_INVALID, "nimages is 0"},
                 {DCOMM_ERR_INVALID, "of update 2 with 1 numbers for each value, not of update 0"},
                 {DCOMM_ERR_INVALID, "of other parameters"},
                 {DCOMM_ERR_MISMATCH, "images are of clocks 0 to 1"},
                 {DCOMM_ERR_INVALID, "has pushed, pulled or ended a clock"}};
    for (int c = 0; c < (int)(sizeof cases / sizeof *cases); c++) {
        for (int k = 0; k < 2; k++) {
            images[k] = kept->images[k];
            bytes[k] = kept->bytes[k];
        }
        if (rank == 1 && c < 6) {
            memcpy(spoiled, images[c == 3 ? 0 : 1], own);
            spoiled[c == 1 ? 0 : own / 2] ^= c == 1 || c == 2;
            images[1] = c == 4 ? NULL : spoiled;
            bytes[1] = c == 0 ? 40 : bytes[c == 3 ? 0 : 1];
        }
        dcomm_ps_param p[] = {{.rows = 40, .cols = 6, .dtype = DCOMM_F32},
                              {.rows = 7, .cols = 1, .dtype = DCOMM_F32}};
        dcomm_ps_opts o = t.opts;
        o.update = c == 6 ? DCOMM_PS_SGD : DCOMM_PS_ADAGRAD;
        p[1].rows += c == 7;
        RANKS_OK(dcomm_ps_create(comm, p, 2, &o, &other));
        if (c == 9) {
            RANKS_OK(dcomm_ps_push(other, 0, 0, 1, zeros, NULL));
        }
        ranks_refused(dcomm_ps_load(other, images, bytes, rank == 1 && c == 5 ? 0 : 2),
                      cases[c].status, cases[c].words);
        float w[PS_MOST];
        RANKS_OK(dcomm_ps_pull(other, 0, 0, 40, w, NULL));
        PROCS_TRUE(memcmp(w, zeros, sizeof zeros) == 0);
        RANKS_OK(dcomm_ps_destroy(&other));
    }
    RANKS_OK(dcomm_ps_destroy(&t.ps));
    return ranks_leave(&comm);
}

Test(ps_saved, refusals, .timeout = 60)
{
    with_shelf(2, RANKS_LOCAL, refusals);
}
