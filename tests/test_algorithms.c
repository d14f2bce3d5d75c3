/* test_algorithms.c - every algorithm of every collective: proved by the plan checker, run on real
 * data by a simulator, and its bytes compared with the documented cost. */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <math.h>

#include "dcomm/impl/base_impl.h"
#include "dcomm/impl/algo_table.h"
#include "dcomm/impl/check.h"
#include "plan_sim.h"
#include "proof_step.h"

#define MAX_N 64

/* One call: everything that the plans depend on. */
typedef struct call {
    const dcommi_algo *algo;
    int n, root, lanes;
    size_t count;
    int64_t chunk;
    bool in_place, spread;     /* spread: displacements with gaps */
    int pattern;               /* of the counts of v-collectives */
    bool half;                 /* bf16 instead of f32 (checker only) */
    int placement;             /* of the ranks; 0: nothing is known */
    enum dcommi_memory memory; /* what is promised */
} call;

/* The arguments and buffers of all ranks. */
typedef struct world {
    call c;
    size_t counts[MAX_N], displs[MAX_N]; /* v: by rank */
    size_t matrix[MAX_N * MAX_N];        /* all-to-all-v: sent by row to column */
    size_t send_counts[MAX_N][MAX_N], send_displs[MAX_N][MAX_N];
    size_t recv_counts[MAX_N][MAX_N], recv_displs[MAX_N][MAX_N];
    dcomm_plan *plan[MAX_N];
    unsigned char *in[MAX_N], *out[MAX_N], *given[MAX_N];
} world;

static bool is_v(dcomm_coll coll)
{
    return coll == DCOMM_COLL_REDUCE_SCATTERV || coll == DCOMM_COLL_ALLGATHERV ||
           coll == DCOMM_COLL_GATHERV || coll == DCOMM_COLL_SCATTERV;
}

static bool is_rooted(dcomm_coll coll)
{
    return coll == DCOMM_COLL_BROADCAST || coll == DCOMM_COLL_REDUCE || coll == DCOMM_COLL_GATHER ||
           coll == DCOMM_COLL_SCATTER || coll == DCOMM_COLL_GATHERV || coll == DCOMM_COLL_SCATTERV;
}

static bool is_reduction(dcomm_coll coll)
{
    return coll == DCOMM_COLL_ALLREDUCE || coll == DCOMM_COLL_REDUCE ||
           coll == DCOMM_COLL_REDUCE_SCATTER || coll == DCOMM_COLL_REDUCE_SCATTERV;
}

static const char *text_of(const call *c)
{
    static char text[256];
    snprintf(text, sizeof text,
             "coll %d %s: n %d count %zu chunk %" PRId64 " lanes %d root %d in_place %d pattern %d "
             "spread %d placement %d memory %d",
             c->algo->coll, c->algo->name, c->n, c->count, c->chunk, c->lanes, c->root, c->in_place,
             c->pattern, c->spread, c->placement, c->memory);
    return text;
}

/* Elements of block `i` by pattern: equal, zeros among them, one long one, uneven. */
static size_t count_of(const call *c, int i)
{
    switch (c->pattern) {
    case 1:
        return i % 3 == 1 ? 0 : c->count;
    case 2:
        return i == c->n / 2 ? c->count * 3 + 1 : (size_t)(i % 2);
    case 3:
        return (c->count * (size_t)(i + 1)) % 1031;
    default:
        return c->count;
    }
}

static int64_t element_bytes = 4;

static int64_t bytes_of(size_t elements)
{
    return element_bytes * (int64_t)elements;
}

static dcomm_dtype dtype_of(const call *c)
{
    return c->half ? DCOMM_BF16 : DCOMM_F32;
}

/* Where the last block ends. */
static size_t extent(const world *w)
{
    size_t end = 0;
    for (int i = 0; i < w->c.n; i++) {
        size_t e = w->displs[i] + w->counts[i];
        end = e > end ? e : end;
    }
    return end;
}

static void layout(const world *w, int rank, dcomm_plan *head)
{
    const call *c = &w->c;
    int64_t own = bytes_of(w->counts[rank]), all = bytes_of(extent(w)), in = own, out = own;
    bool root = rank == c->root;
    switch (c->algo->coll) {
    case DCOMM_COLL_REDUCE_SCATTER:
    case DCOMM_COLL_REDUCE_SCATTERV:
        in = all;
        out = c->in_place ? all : own;
        break;
    case DCOMM_COLL_ALLGATHER:
    case DCOMM_COLL_ALLGATHERV:
        out = all;
        break;
    case DCOMM_COLL_GATHER:
    case DCOMM_COLL_GATHERV:
        out = root ? all : 0;
        break;
    case DCOMM_COLL_SCATTER:
    case DCOMM_COLL_SCATTERV:
        in = root ? all : 0;
        out = root && c->in_place ? all : own;
        break;
    case DCOMM_COLL_ALLTOALL:
        in = out = all;
        break;
    case DCOMM_COLL_ALLTOALLV:
        in = out = 0;
        for (int p = 0; p < c->n; p++) {
            in = dcommi_max64(in, bytes_of(w->send_displs[rank][p] + w->send_counts[rank][p]));
            out = dcommi_max64(out, bytes_of(w->recv_displs[rank][p] + w->recv_counts[rank][p]));
        }
        break;
    case DCOMM_COLL_BARRIER:
        in = out = 0;
        break;
    default:
        break;
    }
    head->in_bytes = in;
    head->out_bytes = out;
}

/* Ranks dealt round to three hosts; to hosts at random, some with many ranks; to packages of hosts
 * and cores of packages. */
static dcommi_groups *groups_of(const call *c)
{
    static const uint8_t kinds[] = {DCOMMI_LEVEL_HOST, DCOMMI_LEVEL_PACKAGE, DCOMMI_LEVEL_CORE};
    int64_t ids[3 * MAX_N];
    for (int r = 0; r < c->n; r++) {
        uint64_t chance = dcommi_mix((uint64_t)r + 77, (uint64_t)c->n);
        ids[r] = c->placement == 1   ? r % 3
                 : c->placement == 2 ? (int64_t)(chance % 9 * (chance % 9) / 12)
                                     : (int64_t)(chance % 4);
        ids[c->n + r] = (int64_t)(chance >> 8) % 3;
        ids[2 * c->n + r] = (int64_t)(chance >> 16) % 2;
    }
    return c->placement > 0 ? dcommi_groups_make(c->n, c->placement > 2 ? 3 : 1, kinds, ids) : NULL;
}

static void world_open(world *w, const call *c)
{
    memset(w, 0, sizeof *w);
    w->c = *c;
    element_bytes = c->half ? 2 : 4;
    bool whole = c->algo->coll == DCOMM_COLL_ALLREDUCE || c->algo->coll == DCOMM_COLL_REDUCE ||
                 c->algo->coll == DCOMM_COLL_BROADCAST;
    size_t at = 0;
    for (int i = 0; i < c->n; i++) {
        w->counts[i] = is_v(c->algo->coll) ? count_of(c, i) : c->count;
        w->displs[i] = whole ? 0 : at;
        at += w->counts[i] + (c->spread ? (size_t)i % 3 : 0);
    }
    for (int p = 0; p < c->n; p++) {
        for (int q = 0; q < c->n; q++) {
            w->matrix[p * c->n + q] = count_of(c, (p * 5 + q * 3) % (c->n + 2));
        }
    }
    for (int r = 0; r < c->n; r++) {
        size_t sent = 0, received = 0;
        for (int p = 0; p < c->n; p++) {
            w->send_counts[r][p] = w->matrix[r * c->n + p];
            w->recv_counts[r][p] = w->matrix[p * c->n + r];
            w->send_displs[r][p] = sent;
            w->recv_displs[r][p] = received;
            sent += w->send_counts[r][p] + (c->spread ? 2 : 0);
            received += w->recv_counts[r][p] + (c->spread ? 1 : 0);
        }
    }
    dcommi_groups *groups = groups_of(c);
    for (int r = 0; r < c->n; r++) {
        dcommi_builder *b = dcommi_alloc(sizeof *b);
        dcommi_build_begin(b, c->algo->name, r, c->n, dtype_of(c), DCOMM_AVG);
        layout(w, r, &b->head);
        bool a2av = c->algo->coll == DCOMM_COLL_ALLTOALLV;
        dcommi_shape shape = {.coll = c->algo->coll,
                              .rank = r,
                              .nranks = c->n,
                              .root = c->root,
                              .dtype = dtype_of(c),
                              .op = DCOMM_AVG,
                              .count = c->count,
                              .in_place = c->in_place,
                              .lanes = c->lanes,
                              .chunk_bytes = c->chunk,
                              .memory = c->memory,
                              .groups = groups,
                              .counts = a2av ? w->recv_counts[r] : w->counts,
                              .displs = a2av ? w->recv_displs[r] : w->displs,
                              .send_counts = w->send_counts[r],
                              .send_displs = w->send_displs[r]};
        dcomm_status made = c->algo->make(&shape, b);
        dcomm_status finished = dcommi_build_finish(b, &w->plan[r]);
        cr_assert(made == DCOMM_OK && finished == DCOMM_OK, "%s: %s", text_of(c), dcommi_message);
        dcommi_free(b);
    }
    dcommi_groups_free(&groups);
}

static void world_close(world *w)
{
    for (int r = 0; r < w->c.n; r++) {
        dcommi_free(w->plan[r]);
        dcommi_free(w->in[r]);
        dcommi_free(w->out[r]);
        dcommi_free(w->given[r]);
    }
}

/* ---- the checker ---- */

static dcomm_check_report check_call(const call *c)
{
    static world w;
    world_open(&w, c);
    dcomm_check_spec spec = {.coll = c->algo->coll,
                             .count = c->count,
                             .dtype = dtype_of(c),
                             .root = c->root,
                             .in_place = c->in_place,
                             .rank_order = c->algo->rank_order && is_reduction(c->algo->coll)};
    if (is_v(spec.coll)) {
        spec.counts = w.counts;
        spec.displs = w.displs;
    } else if (spec.coll == DCOMM_COLL_ALLTOALLV) {
        spec.counts = w.matrix;
    }
    dcomm_check_report report;
    dcomm_status status = dcomm_plan_check((const dcomm_plan *const *)w.plan, c->n, &spec, &report);
    cr_assert_eq(status, DCOMM_OK, "%s: %s", text_of(c), report.message);
    world_close(&w);
    return report;
}

/* ---- the simulator ---- */

static float element(int rank, size_t i)
{
    uint64_t bits = dcommi_mix((uint64_t)rank + 1, i + 1);
    return (float)(int32_t)(bits >> 32) / 65536.0f / (float)(1 + bits % 7);
}

/* Element i of rank's input, as its buffers were filled. */
static float input(const world *w, int rank, size_t i)
{
    float f;
    memcpy(&f, w->given[rank] + 4 * i, 4);
    return f;
}

static void expect_bytes(const world *w, int rank, size_t at, int from, size_t src, size_t count)
{
    cr_assert(count == 0 || memcmp(w->out[rank] + 4 * at, w->given[from] + 4 * src, 4 * count) == 0,
              "%s: rank %d has wrong bytes from rank %d", text_of(&w->c), rank, from);
}

static void expect_average(const world *w, int rank, size_t at, size_t src, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        double sum = 0, size = 0;
        float ordered = 0, got;
        memcpy(&got, w->out[rank] + 4 * (at + i), 4);
        for (int p = 0; p < w->c.n; p++) {
            float x = input(w, p, src + i);
            sum += x;
            size += fabs(x);
            ordered = p == 0 ? x : ordered + x;
        }
        ordered /= (float)w->c.n;
        if (w->c.algo->rank_order) {
            cr_assert(memcmp(&got, &ordered, 4) == 0, "%s: rank %d element %zu: %a, not %a",
                      text_of(&w->c), rank, i, got, ordered);
        } else {
            cr_assert(fabs(got - sum / w->c.n) <= 1e-6 * size,
                      "%s: rank %d element %zu: %g, not %g", text_of(&w->c), rank, i, got,
                      sum / w->c.n);
        }
    }
}

static void expect_results(const world *w, int rank)
{
    const call *c = &w->c;
    bool root = rank == c->root;
    size_t own = w->counts[rank], at = w->displs[rank];
    switch (c->algo->coll) {
    case DCOMM_COLL_ALLREDUCE:
        expect_average(w, rank, 0, 0, own);
        cr_assert(memcmp(w->out[rank], w->out[0], 4 * own) == 0, "%s: rank %d differs from rank 0",
                  text_of(c), rank);
        break;
    case DCOMM_COLL_REDUCE:
        expect_average(w, rank, 0, 0, root ? own : 0);
        break;
    case DCOMM_COLL_REDUCE_SCATTER:
    case DCOMM_COLL_REDUCE_SCATTERV:
        expect_average(w, rank, c->in_place ? at : 0, at, own);
        break;
    case DCOMM_COLL_ALLGATHER:
    case DCOMM_COLL_ALLGATHERV:
    case DCOMM_COLL_GATHER:
    case DCOMM_COLL_GATHERV:
        for (int p = 0; p < c->n; p++) {
            bool all =
                c->algo->coll == DCOMM_COLL_ALLGATHER || c->algo->coll == DCOMM_COLL_ALLGATHERV;
            expect_bytes(w, rank, w->displs[p], p, 0, all || root ? w->counts[p] : 0);
        }
        break;
    case DCOMM_COLL_BROADCAST:
        expect_bytes(w, rank, 0, c->root, 0, own);
        break;
    case DCOMM_COLL_SCATTER:
    case DCOMM_COLL_SCATTERV:
        expect_bytes(w, rank, root && c->in_place ? at : 0, c->root, at, own);
        break;
    case DCOMM_COLL_ALLTOALL:
        for (int p = 0; p < c->n; p++) {
            expect_bytes(w, rank, w->displs[p], p, at, c->count);
        }
        break;
    case DCOMM_COLL_ALLTOALLV:
        for (int p = 0; p < c->n; p++) {
            expect_bytes(w, rank, w->recv_displs[rank][p], p, w->send_displs[p][rank],
                         w->recv_counts[rank][p]);
        }
        break;
    default:
        break;
    }
}

/* Where in OUT the input of an operation in place begins; -1: it is in IN. */
static int64_t in_place_at(const world *w, int rank)
{
    const call *c = &w->c;
    bool root = rank == c->root;
    if (!c->in_place) {
        return -1;
    }
    switch (c->algo->coll) {
    case DCOMM_COLL_ALLGATHER:
    case DCOMM_COLL_ALLGATHERV:
        return bytes_of(w->displs[rank]);
    case DCOMM_COLL_GATHER:
    case DCOMM_COLL_GATHERV:
        return root ? bytes_of(w->displs[rank]) : -1;
    case DCOMM_COLL_BROADCAST:
    case DCOMM_COLL_SCATTER:
    case DCOMM_COLL_SCATTERV:
        return root ? 0 : -1;
    default:
        return 0;
    }
}

static bool calls(const world *w)
{
    for (int r = 0; r < w->c.n; r++) {
        if (w->plan[r]->nsubs > 0) {
            return true;
        }
    }
    return false;
}

static void simulate(const call *c)
{
    static world w;
    static sim s;
    world_open(&w, c);
    if (calls(&w)) { /* the simulator knows no sub-plans; test_hier runs these */
        world_close(&w);
        check_call(c);
        return;
    }
    for (int r = 0; r < c->n; r++) {
        int64_t in = w.plan[r]->in_bytes, out = w.plan[r]->out_bytes, at = in_place_at(&w, r);
        w.given[r] = dcommi_alloc((size_t)in + 1);
        w.in[r] = dcommi_alloc((size_t)in + 1);
        w.out[r] = dcommi_alloc((size_t)out + 1);
        memset(w.out[r], 0xee, (size_t)out);
        for (int64_t i = 0; i < in / 4; i++) {
            float f = element(r, (size_t)i);
            memcpy(w.given[r] + 4 * i, &f, 4);
        }
        if (at < 0) {
            memcpy(w.in[r], w.given[r], (size_t)in);
        } else {
            memset(w.in[r], 0xdd, (size_t)in);
            memcpy(w.out[r] + at, w.given[r], (size_t)in);
        }
    }
    const char *why = sim_run(&s, w.plan, c->n, w.in, w.out, 1 + c->count + (size_t)c->n);
    cr_assert(why == NULL, "%s: %s", text_of(c), why);
    for (int r = 0; r < c->n; r++) {
        expect_results(&w, r);
    }
    sim_free(&s);
    world_close(&w);
}

/* ---- what is tried ---- */

typedef void (*call_fn)(const call *c);

static void check_only(const call *c)
{
    check_call(c);
}

/* Try one algorithm with n ranks: counts around the rank count and the thresholds, several chunks,
 * in place or not, lanes, roots, patterns. `thin` tries fewer of the combinations, others for each
 * n, and with sanitizers fewer still: what they look for does not depend on it. */
static void try_placed(const dcommi_algo *algo, int n, int placement, int thin, call_fn fn)
{
    size_t nn = (size_t)n;
    size_t counts[] = {
        1, 2, nn > 1 ? nn - 1 : 1, nn, nn + 1, 1000, 1025, fn == check_only ? 4099 * nn + 3 : 5003};
    int pick = n + placement;
    if (DCOMM_TEST_RANK_STEP > 1) {
        thin *= fn == check_only ? 7 : 3;
    }
    for (size_t k = 0; k < sizeof counts / sizeof counts[0]; k++) {
        for (int in_place = 0; in_place < 2; in_place++) {
            for (int lanes = 1; lanes <= 3; lanes += 2) {
                for (int pattern = 0; pattern < 4; pattern++) {
                    bool v = is_v(algo->coll) || algo->coll == DCOMM_COLL_ALLTOALLV;
                    if ((pattern > 0 && !v) || (in_place && (algo->coll == DCOMM_COLL_ALLTOALLV)) ||
                        pick++ % thin != 0) {
                        continue;
                    }
                    call c = {.algo = algo,
                              .n = n,
                              .count = counts[k],
                              .lanes = lanes,
                              .in_place = in_place,
                              .pattern = pattern,
                              .memory =
                                  pick % 2 == 0 ? DCOMMI_MEMORY_REGISTERED : DCOMMI_MEMORY_ANY,
                              .placement = placement,
                              .root = is_rooted(algo->coll) ? pick % n : 0,
                              .chunk = pick % 3 == 0      ? 0
                                       : counts[k] > 2000 ? 5000
                                       : pick % 3 == 1    ? 512
                                                          : 100};
                    c.spread = v && pick % 2 == 1 && algo->coll != DCOMM_COLL_REDUCE_SCATTERV &&
                               algo->coll != DCOMM_COLL_ALLTOALLV;
                    fn(&c);
                }
            }
        }
    }
}

static void try_all(const dcommi_algo *algo, int n, int thin, call_fn fn)
{
    try_placed(algo, n, 0, thin, fn);
}

static bool is_p2p(const dcommi_algo *algo)
{
    return algo->coll == DCOMM_COLL_SEND || algo->coll == DCOMM_COLL_RECV;
}

Test(algorithms, checked_up_to_9_ranks, .timeout = 120)
{
    for (size_t k = 0; k < DCOMMI_ALGO_COUNT; k++) {
        for (int n = 2; n <= 9 && !is_p2p(&dcommi_algo_table[k]); n++) {
            try_all(&dcommi_algo_table[k], n, 1, check_only);
        }
    }
}

Test(algorithms, checked_up_to_64_ranks, .timeout = 240)
{
    for (size_t k = 0; k < DCOMMI_ALGO_COUNT; k++) {
        const dcommi_algo *algo = &dcommi_algo_table[k];
        for (int n = 10, i = 0; n <= MAX_N && !is_p2p(algo); n += i++ % 2 * proof_step()) {
            size_t counts[] = {1, (size_t)n - 1, 1300, 11 * (size_t)n + 3};
            call c = {.algo = algo,
                      .n = n,
                      .count = counts[(i / 2 + 3 * i) % 4],
                      .lanes = 1 + n % 2,
                      .root = is_rooted(algo->coll) ? (i * 7) % n : 0,
                      .pattern = (n + i) % 4,
                      .memory = i % 4 < 3 ? DCOMMI_MEMORY_REGISTERED : DCOMMI_MEMORY_ANY,
                      .chunk = i % 3 == 2 ? 1500 : 0,
                      .in_place = (n + i) % 2 == 0 && algo->coll != DCOMM_COLL_ALLTOALLV};
            check_call(&c);
        }
    }
}

Test(algorithms, right_on_real_data, .timeout = 120)
{
    for (size_t k = 0; k < DCOMMI_ALGO_COUNT; k++) {
        static const int ranks[] = {2, 3, 4, 5, 6, 7, 8, 13, 16};
        for (size_t i = 0; i < sizeof ranks / sizeof ranks[0]; i++) {
            if (!is_p2p(&dcommi_algo_table[k])) {
                try_all(&dcommi_algo_table[k], ranks[i], ranks[i] > 5 ? 5 : 2, simulate);
            }
        }
    }
}

Test(algorithms, right_wherever_the_ranks_are, .timeout = 240)
{
    for (size_t k = 0; k < DCOMMI_ALGO_COUNT; k++) {
        const dcommi_algo *algo = &dcommi_algo_table[k];
        for (int placement = 1; placement <= 3 && !is_p2p(algo); placement++) {
            for (int n = 2; n <= 9; n++) {
                try_placed(algo, n, placement, 3, check_only);
                try_placed(algo, n, placement, 11, simulate);
            }
            for (int n = 9 + placement; n <= MAX_N; n += proof_step()) {
                call c = {.algo = algo,
                          .n = n,
                          .count = n % 2 == 0 ? 1 : 11 * (size_t)n + 3,
                          .lanes = 1 + n % 2,
                          .root = is_rooted(algo->coll) ? (n * 7 + placement) % n : 0,
                          .pattern = n % 4,
                          .placement = placement,
                          .chunk = n % 3 == 2 ? 1500 : 0,
                          .in_place = n % 5 < 2 && algo->coll != DCOMM_COLL_ALLTOALLV};
                check_call(&c);
            }
        }
    }
}

Test(algorithms, alltoallv_with_gaps, .timeout = 60)
{
    static const char *const names[] = {"pairwise", "linear"};
    for (int k = 0; k < 2; k++) {
        for (int n = 2; n <= 9; n++) {
            call c = {.algo = dcommi_algo_find(DCOMM_COLL_ALLTOALLV, names[k]),
                      .n = n,
                      .count = 37,
                      .lanes = 1,
                      .pattern = 3,
                      .spread = true};
            simulate(&c);
        }
    }
}

Test(algorithms, sixteen_bits_in_rank_order, .timeout = 60)
{
    for (size_t k = 0; k < DCOMMI_ALGO_COUNT; k++) {
        const dcommi_algo *algo = &dcommi_algo_table[k];
        for (int n = 2; n <= 9 && algo->rank_order; n++) {
            for (size_t count = 1; count < 40000; count = count * 3 + 5) {
                call c = {.algo = algo,
                          .n = n,
                          .count = count,
                          .lanes = 1,
                          .in_place = count % 2,
                          .half = true,
                          .pattern = n % 4,
                          .root = algo->coll == DCOMM_COLL_REDUCE ? n - 1 : 0,
                          .chunk = n % 2 == 0 ? 1000 : 0};
                check_call(&c);
            }
        }
    }
}

Test(algorithms, slots_are_filled_anew, .timeout = 120)
{
    for (size_t k = 0; k < DCOMMI_ALGO_COUNT; k++) {
        const dcommi_algo *algo = &dcommi_algo_table[k];
        for (int n = 2; n <= 7 && strcmp(algo->name, "staged") == 0; n++) {
            for (int i = 0; i < 4; i++) { /* chunks: many more than slots, and one more */
                call c = {.algo = algo,
                          .n = n,
                          .count = i % 2 == 0 ? 1300 : 5 * 16 * (size_t)n - 1,
                          .lanes = 1,
                          .pattern = (n + i) % 4,
                          .root = is_rooted(algo->coll) ? n - 1 : 0,
                          .chunk = i % 2 == 0 ? 100 : 64,
                          .in_place = i / 2 == 1};
                check_call(&c);
                simulate(&c);
            }
        }
    }
}

Test(algorithms, more_than_2_to_31_elements, .timeout = 60)
{
    for (size_t k = 0; k < DCOMMI_ALGO_COUNT; k++) {
        /* Chunks of one are short, and the checker goes through each. */
        const int most = strcmp(dcommi_algo_table[k].name, "staged") == 0 ? 2 : 5;
        for (int n = 2; n <= most && !is_p2p(&dcommi_algo_table[k]); n++) {
            call c = {.algo = &dcommi_algo_table[k],
                      .n = n,
                      .count = ((size_t)1 << 31) + 12345,
                      .lanes = 1,
                      .chunk = (int64_t)1 << 30};
            check_call(&c);
        }
    }
}

Test(algorithms, send_meets_receive)
{
    dcomm_plan *plan[2];
    for (int r = 0; r < 2; r++) {
        static dcommi_builder b;
        dcommi_shape s = {.coll = r == 0 ? DCOMM_COLL_SEND : DCOMM_COLL_RECV,
                          .rank = r,
                          .nranks = 2,
                          .root = 1 - r,
                          .dtype = DCOMM_U8,
                          .count = (size_t)3 << 31,
                          .lanes = 1};
        dcommi_build_begin(&b, "direct", r, 2, s.dtype, DCOMM_SUM);
        b.head.in_bytes = r == 0 ? (int64_t)s.count : 0;
        b.head.out_bytes = r == 1 ? (int64_t)s.count : 0;
        dcommi_algo_find(s.coll, "direct")->make(&s, &b);
        cr_assert_eq(dcommi_build_finish(&b, &plan[r]), DCOMM_OK);
    }
    dcomm_check_spec spec = {.coll = DCOMM_COLL_PLAN, .dtype = DCOMM_U8};
    dcomm_check_report report;
    dcomm_status status = dcomm_plan_check((const dcomm_plan *const *)plan, 2, &spec, &report);
    cr_assert_eq(status, DCOMM_OK, "%s", report.message);
    cr_assert_eq(report.messages, 1);
    dcommi_free(plan[0]);
    dcommi_free(plan[1]);
}

/* ---- cost ---- */

static dcomm_check_report cost_of(dcomm_coll coll, const char *name, int n, size_t count)
{
    call c = {.algo = dcommi_algo_find(coll, name), .n = n, .count = count, .lanes = 1};
    cr_assert(c.algo != NULL);
    return check_call(&c);
}

static int64_t log2_up(int n)
{
    int64_t k = 0;
    while ((1 << k) < n) {
        k++;
    }
    return k;
}

/* Where the rank count is no power of two, a step's range may wrap around and be two messages. */
static void expect_steps(dcomm_coll coll, const char *name, int n, size_t count, int64_t steps)
{
    int64_t got = cost_of(coll, name, n, count).steps;
    cr_expect(got >= steps && got <= (dcommi_is_power_of_two(n) ? steps : 2 * steps),
              "%s of %d ranks: %" PRId64 " steps, not %" PRId64, name, n, got, steps);
}

Test(algorithms, bytes_are_as_documented, .timeout = 60)
{
    for (int n = 2; n <= 17; n++) {
        size_t count = 1680 * (size_t)n; /* divides into n equal blocks of whole cache lines */
        int64_t total = bytes_of(count), part = total / n;
        dcomm_coll all = DCOMM_COLL_ALLREDUCE;
        cr_expect_eq(cost_of(all, "ring", n, count).max_rank_bytes, 2 * (n - 1) * part);
        cr_expect_eq(cost_of(all, "ring", n, count).total_bytes, 2 * (n - 1) * total);
        cr_expect_eq(cost_of(all, "halving_doubling", n, count).max_rank_bytes, 2 * (n - 1) * part);
        expect_steps(all, "halving_doubling", n, count, 2 * log2_up(n));
        cr_expect_eq(cost_of(all, "two_shot", n, count).max_rank_bytes, 2 * (n - 1) * part);
        cr_expect_eq(cost_of(all, "staged", n, count).max_rank_bytes, 2 * (n - 1) * part);
        cr_expect_eq(cost_of(all, "one_shot", n, count).max_rank_bytes, (n - 1) * total);
        cr_expect_eq(cost_of(all, "one_shot", n, 3).max_rank_bytes, (n - 1) * 12);
        cr_expect_eq(cost_of(all, "star", n, count).max_rank_bytes, (n - 1) * total);
        cr_expect_eq(cost_of(all, "star", n, count).total_bytes, 2 * (n - 1) * total);
        cr_expect_eq(cost_of(all, "binomial", n, count).max_rank_bytes, log2_up(n) * total);
        cr_expect_eq(cost_of(all, "binomial", n, count).total_bytes, 2 * (n - 1) * total);
        cr_expect_eq(cost_of(all, "tree", n, count).total_bytes, 2 * (n - 1) * total);
        cr_expect_leq(cost_of(all, "tree", n, count).max_rank_bytes, 2 * total + 256);
        if (dcommi_is_power_of_two(n)) {
            cr_expect_eq(cost_of(all, "recursive_doubling", n, count).max_rank_bytes,
                         log2_up(n) * total);
            cr_expect_eq(cost_of(all, "recursive_doubling", n, 3).steps, log2_up(n));
        }
        cr_expect_eq(cost_of(DCOMM_COLL_REDUCE_SCATTER, "ring", n, 100).max_rank_bytes,
                     (n - 1) * 400);
        cr_expect_eq(cost_of(DCOMM_COLL_REDUCE_SCATTER, "recursive_halving", n, 100).max_rank_bytes,
                     (n - 1) * 400);
        expect_steps(DCOMM_COLL_REDUCE_SCATTER, "recursive_halving", n, 100, log2_up(n));
        cr_expect_eq(cost_of(DCOMM_COLL_REDUCE_SCATTER, "direct", n, 100).max_rank_bytes,
                     (n - 1) * 400);
        cr_expect_eq(cost_of(DCOMM_COLL_REDUCE_SCATTER, "staged", n, 100).max_rank_bytes,
                     (n - 1) * 400);
        cr_expect_eq(cost_of(DCOMM_COLL_ALLGATHER, "staged", n, 100).max_rank_bytes, (n - 1) * 400);
        cr_expect_eq(cost_of(DCOMM_COLL_BROADCAST, "staged", n, 10000).max_rank_bytes, 40000);
        cr_expect_eq(cost_of(DCOMM_COLL_ALLGATHER, "ring", n, 100).max_rank_bytes, (n - 1) * 400);
        cr_expect_eq(cost_of(DCOMM_COLL_ALLGATHER, "recursive_doubling", n, 100).max_rank_bytes,
                     (n - 1) * 400);
        expect_steps(DCOMM_COLL_ALLGATHER, "recursive_doubling", n, 100, log2_up(n));
        cr_expect_eq(cost_of(DCOMM_COLL_ALLGATHER, "direct", n, 100).max_rank_bytes, (n - 1) * 400);
        cr_expect_eq(cost_of(DCOMM_COLL_ALLGATHER, "direct", n, 10000).max_rank_bytes,
                     (n - 1) * 40000);
        cr_expect_eq(cost_of(DCOMM_COLL_BROADCAST, "binomial", n, 100).total_bytes, (n - 1) * 400);
        cr_expect_eq(cost_of(DCOMM_COLL_BROADCAST, "tree", n, 100).total_bytes, (n - 1) * 400);
        cr_expect_eq(cost_of(DCOMM_COLL_REDUCE, "tree", n, 100).max_rank_bytes, 400);
        cr_expect_eq(cost_of(DCOMM_COLL_REDUCE, "binomial", n, 100).max_rank_bytes, 400);
        cr_expect_eq(cost_of(DCOMM_COLL_BROADCAST, "binomial", n, 100).max_rank_bytes,
                     log2_up(n) * 400);
        cr_expect_leq(cost_of(DCOMM_COLL_BROADCAST, "tree", n, 100).max_rank_bytes, 404);
        cr_expect_eq(cost_of(DCOMM_COLL_BROADCAST, "linear", n, 100).max_rank_bytes, (n - 1) * 400);
        cr_expect_eq(cost_of(DCOMM_COLL_BROADCAST, "linear", n, 10000).max_rank_bytes, 40000);
        cr_expect_eq(cost_of(DCOMM_COLL_REDUCE, "linear", n, 100).max_rank_bytes, 400);
        cr_expect_eq(cost_of(DCOMM_COLL_REDUCE, "linear", n, 10000).max_rank_bytes,
                     (n - 1) * 40000);
        cr_expect_eq(cost_of(DCOMM_COLL_GATHER, "linear", n, 100).max_rank_bytes, 400);
        cr_expect_leq(cost_of(DCOMM_COLL_GATHER, "binomial", n, 100).max_rank_bytes,
                      ((n + 1) / 2) * 400);
        cr_expect_eq(cost_of(DCOMM_COLL_SCATTER, "linear", n, 100).max_rank_bytes, (n - 1) * 400);
        cr_expect_eq(cost_of(DCOMM_COLL_SCATTER, "binomial", n, 100).max_rank_bytes, (n - 1) * 400);
        int64_t carried = 0;
        for (int64_t bit = 1; bit < n; bit *= 2) {
            carried += dcommi_bruck_count(n, bit) * 400;
        }
        cr_expect_eq(cost_of(DCOMM_COLL_ALLTOALL, "bruck", n, 100).max_rank_bytes, carried);
        cr_expect_eq(cost_of(DCOMM_COLL_ALLTOALL, "pairwise", n, 100).max_rank_bytes,
                     (n - 1) * 400);
        cr_expect_eq(cost_of(DCOMM_COLL_ALLTOALL, "linear", n, 10000).max_rank_bytes,
                     (n - 1) * 40000);
        cr_expect_eq(cost_of(DCOMM_COLL_ALLTOALL, "bruck", n, 100).steps, log2_up(n));
        cr_expect_eq(cost_of(DCOMM_COLL_BARRIER, "dissemination", n, 0).steps, log2_up(n));
        cr_expect_eq(cost_of(DCOMM_COLL_BARRIER, "dissemination", n, 0).messages, 0);
        cr_expect_eq(cost_of(DCOMM_COLL_BARRIER, "direct", n, 0).steps, n > 1);
    }
}

/* ---- shape of the trees, size of the plans ---- */

Test(algorithms, two_trees_share_the_work)
{
    for (int n = 2; n <= 200; n++) {
        int inner_twice = 0;
        for (int which = 0; which < 2; which++) {
            int roots = 0, edges = 0;
            for (int r = 0; r < n; r++) {
                dcommi_node node = dcommi_tree_binary(n, which, r, 0, n, -1);
                roots += node.parent < 0;
                edges += node.nchildren;
                for (int i = 0; i < node.nchildren; i++) {
                    dcommi_node child = dcommi_tree_binary(n, which, node.child[i], 0, n, -1);
                    cr_assert_eq(child.parent, r);
                }
                dcommi_node other = dcommi_tree_binary(n, 1 - which, r, 0, n, -1);
                inner_twice += node.nchildren > 0 && other.nchildren > 0;
            }
            cr_assert_eq(roots, 1);
            cr_assert_eq(edges, n - 1);
        }
        cr_assert_eq(inner_twice, 0);
    }
}

Test(algorithms, plans_stay_small, .timeout = 60)
{
    size_t *counts = dcommi_calloc(4096, sizeof *counts), *displs = dcommi_calloc(4096, 8);
    for (size_t i = 0; i < 4096; i++) {
        counts[i] = i % 7;
        displs[i] = i == 0 ? 0 : displs[i - 1] + counts[i - 1];
    }
    for (size_t k = 0; k < DCOMMI_ALGO_COUNT; k++) {
        static dcommi_builder b;
        const dcommi_algo *algo = &dcommi_algo_table[k];
        dcommi_shape s = {.coll = algo->coll,
                          .rank = 1234,
                          .nranks = 4096,
                          .root = 77,
                          .dtype = DCOMM_BF16,
                          .op = DCOMM_SUM,
                          .count = algo->coll == DCOMM_COLL_ALLREDUCE ? (size_t)5 << 30 : 1 << 20,
                          .lanes = 1,
                          .counts = counts,
                          .displs = displs,
                          .send_counts = counts,
                          .send_displs = displs};
        dcomm_plan *plan;
        dcommi_build_begin(&b, algo->name, s.rank, s.nranks, s.dtype, s.op);
        dcomm_status status = algo->make(&s, &b);
        if (strcmp(algo->name, "staged") == 0) { /* its plans grow with the ranks of a host */
            cr_expect_eq(status, DCOMM_ERR_UNSUPPORTED);
            dcommi_build_discard(&b);
            continue;
        }
        cr_assert_eq(dcommi_build_finish(&b, &plan), DCOMM_OK, "%s: %s", algo->name,
                     dcommi_message);
        cr_expect_leq(plan->nsteps, 400, "%d %s: %u steps", algo->coll, algo->name, plan->nsteps);
        cr_expect_leq(plan->noperands, 400);
        cr_expect_leq(plan->ntable, 5 * 4096);
        dcommi_free(plan);
    }
    dcommi_free(counts);
    dcommi_free(displs);
}
