/* test_conservation.c - after thousands of steps of real collectives, all that went in has come
 * out or is held back: every codec, every compressed all-reduce, every kind of feedback, on
 * gradients of six kinds side by side. All ranks are in one process, each with its own context,
 * and one thread drives them, so that steps do not wait for a scheduler. */
#define _GNU_SOURCE
#include "coded_ranks.h"

#include "full.h"
#include "gradients.h"

#include "dcomm/impl/feedback/save.h"

/* Each kind's piece is as long as the longest bucket, so that no kind is scaled by another kind's
 * numbers. */
enum { PIECE = 512, COUNT = PIECE * GRADIENT_KINDS, POOL = 50, MOST = 4 };

/* Return the number of steps. A fault loses something in each step, so a few hundred steps show
 * it: the first codec of each row takes 1,000; the full run takes 5,000 of all. Sanitizers take
 * fewer. */
static int steps_of(size_t index)
{
    int steps = test_full() ? 5000 : index == 0 ? 1000 : 250;
    return DCOMM_TEST_RANK_STEP == 1 ? steps : test_full() ? 500 : 100;
}

/* The ranks' gradients, used in turn. */
static float gradient[MOST][POOL][COUNT];

static void fill(int n)
{
    for (int k = 0; k < GRADIENT_KINDS; k++) {
        for (int r = 0; r < n; r++) {
            for (size_t s = 0; s < POOL; s++) {
                const char *why =
                    gradient_fill(k, (uint32_t)r, s, gradient[r][s] + k * PIECE, PIECE);
                PROCS_CHECK(why == NULL, "%s", why);
            }
        }
    }
}

/* ---- ranks that take turns ---- */

typedef struct group {
    int n;
    dcomm_comm *comm[MOST];
} group;

static void join(group *g, int n, bool pairs)
{
    dcomm_comm_opts opts = {.boot = DCOMM_BOOT_ID, .size = n, .timeout_s = 40, .tune = -1};
    ranks_settle(0, n, RANKS_LOCAL);
    RANKS_OK(dcomm_id_create(&opts.id));
    g->n = n;
    for (int r = 0; r < n; r++) {
        opts.rank = r;
        opts.context_opts.host_id = !pairs ? NULL : r / 2 == 0 ? "first" : "second";
        RANKS_OK(dcomm_comm_create_start(&opts, &g->comm[r]));
    }
    for (int r = 0; r < n; r++) {
        while (dcomm_comm_ready(g->comm[r]) == DCOMM_IN_PROGRESS) {
            procs_nap();
        }
        RANKS_OK(dcomm_comm_ready(g->comm[r]));
    }
}

static void allreduce(const group *g, int step, float y[MOST][COUNT], dcomm_op op,
                      const dcomm_coll_opts *opts)
{
    dcomm_request *requests[MOST];
    for (int r = 0; r < g->n; r++) {
        RANKS_OK(dcomm_iallreduce(g->comm[r], gradient[r][step % POOL], y[r], COUNT, DCOMM_F32, op,
                                  &opts[r], &requests[r]));
    }
    for (int left = g->n; left > 0;) {
        left = 0;
        for (int r = 0; r < g->n; r++) {
            dcomm_status status = requests[r] != NULL ? dcomm_test(&requests[r]) : DCOMM_OK;
            PROCS_CHECK(status >= 0, "rank %d: %s", r, dcomm_last_error());
            left += requests[r] != NULL;
        }
    }
    for (int r = 1; r < g->n; r++) {
        PROCS_CHECK(memcmp(y[0], y[r], sizeof y[r]) == 0, "step %d: ranks 0 and %d differ", step,
                    r);
    }
}

/* ---- the books ---- */

typedef struct course {
    const char *spec, *algo;
    int steps;
    dcomm_feedback_opts opts;
} course;

/* Return how much of element i is missing, and set *size to how much went through. EF21's result
 * is the estimate, the sum of all ranks' claims. Other results add up, and all that is held back
 * must equal what is missing. */
static double missing_of(const group *g, const course *c, dcomm_feedback **fb, size_t i, double out,
                         double last, double *size)
{
    double in = 0, held = 0, most = 0;
    for (int r = 0; r < g->n; r++) {
        held += dcommi_feedback_owed(fb[r], i);
        for (int s = 0; s < POOL; s++) {
            in += (double)gradient[r][s][i] * (c->steps / POOL);
            most = fmax(most, fabs((double)gradient[r][s][i]));
        }
    }
    if (c->opts.variant == DCOMM_FEEDBACK_EF21) {
        *size = fabs(held) + g->n * most;
        return last - held;
    }
    *size = fabs(in) + fabs(held);
    return in - out - held;
}

/* Check the balance. A residual sends again what rounding took from it, and then forgets it. An
 * estimate and its parts are rounded separately, and drift like random walks: by the root of the
 * number of additions. */
static void balance(const group *g, const course *c, dcomm_feedback **fb, const double *out,
                    const float *last, double scale)
{
    const bool ef21 = c->opts.variant == DCOMM_FEEDBACK_EF21;
    const bool matrix = strncmp(c->spec, "powersgd", 8) == 0; /* its products mix all kinds */
    const double within = ef21 ? 4 * 0x1p-24 * sqrt((double)c->steps * (g->n + 1)) : 4e-6;
    double off[GRADIENT_KINDS] = {0}, size[GRADIENT_KINDS] = {0}, most = 0;
    for (size_t i = 0; i < COUNT; i++) {
        double through, *o = &off[i / PIECE], *s = &size[i / PIECE];
        double missing = missing_of(g, c, fb, i, scale * out[i], scale * (double)last[i], &through);
        *o = fmax(*o, fabs(missing));
        *s = fmax(*s, through);
        most = fmax(most, through);
    }
    for (int k = 0; k < GRADIENT_KINDS; k++) {
        double of = matrix ? most : size[k];
        PROCS_CHECK(of > 0 && off[k] <= within * of, "%s, %s, variant %d, %s: %g of %g is lost",
                    c->spec, c->algo, (int)c->opts.variant, gradient_kinds[k], off[k], of);
    }
}

static void conserve(const group *g, const course *c, bool average)
{
    static float y[MOST][COUNT];
    static double out[COUNT];
    dcomm_codec *codec = make_codec(c->spec);
    dcomm_feedback *fb[MOST] = {NULL};
    dcomm_coll_opts opts[MOST] = {{0}};
    memset(out, 0, sizeof out);
    for (int r = 0; r < g->n; r++) {
        RANKS_OK(dcomm_feedback_create(codec, COUNT, &c->opts, &fb[r]));
        opts[r] = (dcomm_coll_opts){.algo = c->algo, .feedback = fb[r]};
    }
    for (int step = 0; step < c->steps; step++) {
        allreduce(g, step, y, average ? DCOMM_AVG : DCOMM_SUM, opts);
        for (int i = 0; i < COUNT; i++) {
            out[i] += (double)y[0][i];
        }
    }
    balance(g, c, fb, out, y[0], average ? g->n : 1);
    for (int r = 0; r < g->n; r++) {
        dcomm_feedback_destroy(&fb[r]);
    }
    dcomm_codec_destroy(&codec);
}

typedef struct plan {
    int n;
    bool pairs;
    const char *const *specs;
    size_t nspecs;
    const char *algo;
    dcomm_feedback_opts opts;
} plan;

/* Run all ranks in one process and let them end with it: closing them one after the other would
 * make each wait for the goodbyes of those after it. */
static int all_of(int rank, int nranks, procs_shared *shared, void *arg)
{
    const plan *p = arg;
    group g;
    (void)rank;
    (void)nranks;
    (void)shared;
    fill(p->n);
    join(&g, p->n, p->pairs);
    for (size_t i = 0; i < p->nspecs; i++) {
        course c = {p->specs[i], p->algo, steps_of(i), p->opts};
        conserve(&g, &c, i % 2 == 1);
    }
    return 0;
}

static void through(const char *algo, int n, const char *const *specs, size_t nspecs,
                    dcomm_feedback_opts opts)
{
    plan p = {n, strcmp(algo, "coded_hier") == 0, specs, nspecs, algo, opts};
    run(1, all_of, &p);
}

#define THROUGH(algo, n, specs, ...) \
    through(algo, n, specs, sizeof(specs) / sizeof *(specs), (dcomm_feedback_opts){__VA_ARGS__})

static const char *const dense[] = {
    "bf16",          "bf16:rounding=stochastic",
    "f16",           "fp8",
    "fp8:type=e5m2", "qsgd:bits=8",
    "qsgd",          "qsgd:bits=2,bucket=256",
    "qsgd:bits=1",   "qsgd:norm=two,bucket=128",
    "tern",          "sign",
};
static const char *const sparse[] = {"topk:k=0.01", "topk:k=0.1,values=bf16",
                                     "topk:k=0.1,values=f16", "threshold:k=0.05"};
static const char *const sparse_qsgd[] = {"topk+qsgd:k=0.1"};
static const char *const linear[] = {"randk:k=0.1", "randk:k=0.1,scale=none", "powersgd:rank=2"};

Test(conservation, two_shot, .timeout = 120)
{
    THROUGH("coded_two_shot", 3, dense, .scale = true);
    THROUGH("coded_two_shot", 3, sparse, .in_place = true);
    THROUGH("coded_two_shot", 3, sparse_qsgd, .scale = true);
}

Test(conservation, allgather, .timeout = 120)
{
    THROUGH("coded_allgather", 3, dense, .scale = true, .in_place = true);
    THROUGH("coded_allgather", 3, sparse, .in_place = false);
    THROUGH("coded_allgather", 3, sparse_qsgd, .scale = true);
}

Test(conservation, sparse, .timeout = 120)
{
    THROUGH("coded_sparse", 3, sparse, .in_place = false);
}

Test(conservation, linear, .timeout = 120)
{
    THROUGH("coded_linear", 3, linear, .scale = true);
}

Test(conservation, hier, .timeout = 120)
{
    THROUGH("coded_hier", 4, dense, .scale = true);
    THROUGH("coded_hier", 4, sparse, .in_place = true);
    THROUGH("coded_hier", 4, sparse_qsgd, .scale = true);
}

Test(conservation, ef21, .timeout = 120)
{
    THROUGH("coded_two_shot", 3, dense, .variant = DCOMM_FEEDBACK_EF21, .scale = true);
    THROUGH("coded_allgather", 3, dense, .variant = DCOMM_FEEDBACK_EF21, .scale = true);
    THROUGH("coded_two_shot", 3, sparse, .variant = DCOMM_FEEDBACK_EF21);
    THROUGH("coded_two_shot", 3, sparse_qsgd, .variant = DCOMM_FEEDBACK_EF21);
    THROUGH("coded_sparse", 3, sparse, .variant = DCOMM_FEEDBACK_EF21);
    THROUGH("coded_linear", 3, linear, .variant = DCOMM_FEEDBACK_EF21, .scale = true);
}

/* Test without momentum, which would count a gradient several times. */
Test(conservation, dgc, .timeout = 120)
{
    const dcomm_feedback_opts dgc = {
        .variant = DCOMM_FEEDBACK_DGC, .momentum = -1, .warmup_steps = 200};
    static const char *const algos[] = {"coded_two_shot", "coded_allgather", "coded_sparse"};
    for (int a = 0; a < 3; a++) {
        through(algos[a], 3, sparse, sizeof sparse / sizeof *sparse, dgc);
    }
    through("coded_two_shot", 3, sparse_qsgd, 1, dgc);
    through("coded_hier", 4, sparse, sizeof sparse / sizeof *sparse, dgc);
}
