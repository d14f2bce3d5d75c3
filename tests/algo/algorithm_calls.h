/* algorithm_calls.h - call any algorithm with the arguments and buffers of all ranks: the checker
 * proves its plans, or a simulator runs them on real data. For test_algorithms.c. */
#ifndef ALGORITHM_CALLS_H
#define ALGORITHM_CALLS_H

#include <criterion/criterion.h>
#include <math.h>

#include "dcomm/impl/base/base_impl.h"
#include "dcomm/impl/algo/table.h"
#include "dcomm/impl/check/check.h"
#include "plan_sim.h"
#include "proof_step.h"

#define MAX_N 64

/* One call: all that the plans depend on. */
typedef struct call {
    const dcommi_algo *algo;
    int n, root, lanes;
    size_t count;
    int64_t chunk;
    bool in_place, spread;     /* spread: displacements with gaps */
    int pattern;               /* selects the counts of v-collectives: see count_of */
    bool half;                 /* bf16 instead of f32 (checker only) */
    dcomm_dtype opaque;        /* a dtype created by the caller; 0: none (checker only) */
    int placement;             /* selects the groups of ranks: see groups_of; 0: no groups */
    enum dcommi_memory memory; /* the memory kind that the caller promises */
} call;

/* The arguments and buffers of all ranks. */
typedef struct world {
    call c;
    size_t counts[MAX_N], displs[MAX_N]; /* of v-collectives, by rank */
    size_t matrix[MAX_N * MAX_N];        /* all-to-all-v: row r is what rank r sends */
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

static dcomm_dtype dtype_of(const call *c)
{
    return c->opaque != 0 ? c->opaque : c->half ? DCOMM_BF16 : DCOMM_F32;
}

static const char *text_of(const call *c)
{
    static char text[256];
    snprintf(text, sizeof text,
             "coll %d %s: n %d count %zu chunk %" PRId64 " lanes %d root %d in_place %d pattern %d "
             "spread %d placement %d memory %d, %zu-byte elements",
             c->algo->coll, c->algo->name, c->n, c->count, c->chunk, c->lanes, c->root, c->in_place,
             c->pattern, c->spread, c->placement, c->memory, dcomm_dtype_size(dtype_of(c)));
    return text;
}

/* Return the elements of block `i`. Patterns: 0 equal, 1 with zeros, 2 one long block, 3
 * uneven. */
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

/* Return the end of the last block, in elements. */
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

/* Return the groups of a placement; NULL for 0. 1: ranks dealt round to three hosts. 2: ranks on
 * random hosts, some with many ranks. 3: random hosts, packages and cores. */
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
    element_bytes = (int64_t)dcomm_dtype_size(dtype_of(c));
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
        dcomm_builder *b = dcommi_alloc(sizeof *b);
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

/* Return element `i` of the rank's input, as its buffers were filled. */
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

/* Return the offset in OUT of an in-place operation's input; -1: the input is in IN. */
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
    if (calls(&w)) { /* the simulator cannot run sub-plans; test_hier runs these */
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

/* ---- the calls that are tried ---- */

typedef void (*call_fn)(const call *c);

static void check_only(const call *c)
{
    check_call(c);
}

/* Try one algorithm with n ranks: counts around the rank count and the thresholds, several chunks,
 * in place or not, lanes, roots, patterns. Try one in `thin` combinations, different ones for each
 * n. Try fewer with sanitizers: their findings do not depend on the combination. `thin` has no
 * factor 2 or 3, so that each option still takes all its values. */
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

#endif
