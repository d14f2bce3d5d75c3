/* 16_gossip.c - average by gossip: a rank mixes its vector with those of a few neighbours, round by
 * round. The rounds are plans of this program's own (docs/own-plans.md), over a ring, an
 * exponential graph, and one neighbour a round of the latter. The distance from the mean shrinks as
 * fast as the second eigenvalue of the mixing matrix says. */
#include "comm.h"
#include "noise.h"

#include <math.h>
#include <string.h>

enum { COUNT = 1000, CYCLES = 12, MOST_RANKS = 64, MOST_ROUNDS = 6 };

/* In round k of a cycle, a rank receives from rank - offset, for each offset of that round. */
typedef struct graph {
    const char *name;
    int rounds, degree[MOST_ROUNDS], offset[MOST_ROUNDS][MOST_ROUNDS];
} graph;

static graph ring(int n)
{
    graph g = {.name = "ring", .rounds = 1, .degree = {n > 1 ? 2 : 0}, .offset = {{1, n - 1}}};
    return g;
}

/* Neighbours are 1, 2, 4, ... ranks away. */
static graph exponential(int n)
{
    graph g = {.name = "exponential", .rounds = 1};
    for (int offset = 1; offset < n; offset *= 2) {
        g.offset[0][g.degree[0]++] = offset;
    }
    return g;
}

/* The same, but one neighbour a round. */
static graph one_peer(int n)
{
    graph g = {.name = "one peer"};
    for (int offset = 1; offset < n; offset *= 2) {
        g.offset[g.rounds][0] = offset;
        g.degree[g.rounds++] = 1;
    }
    return g;
}

/* Return what a sum of a cycle is multiplied by: all weights of a round are 1 / (degree + 1). */
static double scale_of(const graph *g)
{
    double scale = 1;
    for (int k = 0; k < g->rounds; k++) {
        scale /= g->degree[k] + 1;
    }
    return scale;
}

/* Make `rank`'s part of a cycle. OUT is the sum of what mixes in, yet to be scaled. */
static dcomm_status make_cycle(const graph *g, int rank, int n, dcomm_plan **plan_p)
{
    const int64_t bytes = COUNT * sizeof(double);
    dcomm_builder *b = NULL;
    dcomm_status status = dcomm_build_create(g->name, rank, n, DCOMM_F64, DCOMM_SUM, &b);
    if (status < 0) {
        return status;
    }
    dcomm_build_buffers(b, bytes, bytes);
    const dcomm_operand in = dcomm_span(DCOMM_SPACE_IN, 0, bytes);
    const dcomm_operand out = dcomm_span(DCOMM_SPACE_OUT, 0, bytes);
    const dcomm_operand sent =
        dcomm_span(DCOMM_SPACE_SCRATCH, dcomm_build_scratch(b, bytes), bytes);
    const dcomm_operand stage =
        dcomm_span(DCOMM_SPACE_SCRATCH, dcomm_build_scratch(b, bytes), bytes);
    dcomm_build_copy(b, 0, out, in, 0);
    for (int k = 0; k < g->rounds; k++) {
        const int64_t tag = dcomm_build_tags(b, g->degree[k]);
        dcomm_build_copy(b, 0, sent, out, 0); /* what arrives changes `out` */
        for (int j = 0; j < g->degree[k]; j++) {
            dcomm_build_send(b, 0, sent, dcomm_const((rank + g->offset[k][j]) % n),
                             dcomm_const(tag + j), DCOMM_STEP_ASYNC);
        }
        for (int j = 0; j < g->degree[k]; j++) {
            dcomm_build_recv_reduce(b, 0, out, out, dcomm_msg(), stage,
                                    dcomm_const((rank + n - g->offset[k][j]) % n),
                                    dcomm_const(tag + j), 0);
        }
        dcomm_build_fence(b, 0);
    }
    return dcomm_build_finish(&b, plan_p);
}

/* ---- theory ---- */

/* Return the modulus of eigenvalue m of a cycle's mixing matrix. The matrix is circulant, so its
 * eigenvectors are Fourier's: entry r is exp(2 pi i m r / n). */
static double eigenvalue(const graph *g, int n, int m)
{
    const double turn = 2 * acos(-1) / n;
    double modulus = 1;
    for (int k = 0; k < g->rounds; k++) {
        double re = 1, im = 0;
        for (int j = 0; j < g->degree[k]; j++) {
            const int steps = m * g->offset[k][j] % n;
            re += cos(turn * steps);
            im -= sin(turn * steps);
        }
        modulus *= sqrt(re * re + im * im) / (g->degree[k] + 1);
    }
    return modulus < 1e-12 ? 0 : modulus;
}

/* Return the largest modulus but the first, which is that of the mean. *m_p is its number. */
static double second_eigenvalue(const graph *g, int n, int *m_p)
{
    double most = -1;
    for (int m = 1; m < n; m++) {
        if (eigenvalue(g, n, m) > most) {
            most = eigenvalue(g, n, m);
            *m_p = m;
        }
    }
    return most < 0 ? 0 : most;
}

/* Return true if second_eigenvalue agrees with what is published: (1 + 2 cos(2 pi / n)) / 3 of a
 * ring; 1 - 2 / (1 + ceil(log2 n)) of an exponential graph of an even number of ranks (Ying et al.,
 * 2021); 0 of one peer a round with a power of 2 of ranks (Assran et al., 2019). */
static bool as_published(const graph *g, int n)
{
    int m = 0;
    double want = second_eigenvalue(g, n, &m);
    const double have = want;
    if (n > 1 && strcmp(g->name, "ring") == 0) {
        want = fabs(1 + 2 * cos(2 * acos(-1) / n)) / 3;
    } else if (n % 2 == 0 && strcmp(g->name, "exponential") == 0) {
        want = 1 - 2.0 / (1 + g->degree[0]);
    } else if ((n & (n - 1)) == 0) {
        want = strcmp(g->name, "one peer") == 0 ? 0 : want;
    }
    return fabs(have - want) < 1e-9;
}

/* Prove the plans of n ranks: no deadlock, no race, and each message has its receiver. The checker
 * knows no mixing matrices. But where a cycle takes each contribution once, it is an all-reduce,
 * which the checker proves as such. */
static dcomm_status prove(const graph *g, int n, bool *allreduce)
{
    dcomm_check_spec spec = {.coll = DCOMM_COLL_PLAN, .count = COUNT, .dtype = DCOMM_F64};
    dcomm_plan *plans[MOST_RANKS] = {NULL};
    dcomm_status status = DCOMM_OK;
    int m = 0;
    *allreduce = second_eigenvalue(g, n, &m) <= 0 && fabs(scale_of(g) * n - 1) < 1e-9;
    for (int r = 0; r < n && status >= 0; r++) {
        status = make_cycle(g, r, n, &plans[r]);
    }
    if (status >= 0) {
        spec.coll = *allreduce ? DCOMM_COLL_ALLREDUCE : DCOMM_COLL_PLAN;
        status = dcomm_plan_check((const dcomm_plan *const *)plans, n, &spec, NULL);
    }
    for (int r = 0; r < n; r++) {
        dcomm_plan_destroy(&plans[r]);
    }
    return status;
}

/* ---- practice ---- */

static double initial(int rank, int i)
{
    return 2 * (double)noise(rank, i);
}

/* Return the distance of all ranks' vectors from their mean, and compare the mean with mean[]. */
static double distance(const double *x, const double *mean, double *moved)
{
    static double now[COUNT];
    double sum = 0;
    CHECK(dcomm_allreduce(world, x, now, COUNT, DCOMM_F64, DCOMM_AVG, NULL));
    for (int i = 0; i < COUNT; i++) {
        sum += (x[i] - now[i]) * (x[i] - now[i]);
        *moved = fmax(*moved, fabs(now[i] - mean[i]));
    }
    CHECK(dcomm_allreduce(world, DCOMM_IN_PLACE, &sum, 1, DCOMM_F64, DCOMM_SUM, NULL));
    return sqrt(sum);
}

/* Return the length of the part of the initial vectors that eigenvalue m shrinks. */
static double part(int n, int m)
{
    double sum = 0;
    for (int i = 0; i < COUNT; i++) {
        double re = 0, im = 0;
        for (int r = 0; r < n; r++) {
            re += initial(r, i) * cos(2 * acos(-1) * (m * r % n) / n);
            im += initial(r, i) * sin(2 * acos(-1) * (m * r % n) / n);
        }
        sum += (re * re + im * im) / n;
    }
    return sqrt(sum);
}

/* Gossip on the ranks of this program. Return the number of findings. */
static int run(const graph *g, uint32_t signature)
{
    static double x[COUNT], y[COUNT], mean[COUNT];
    const int rank = dcomm_comm_rank(world), n = dcomm_comm_size(world);
    int m = 0, messages = 0;
    double moved = 0;
    const double lambda = second_eigenvalue(g, n, &m), least = part(n, m);
    dcomm_plan *plan = NULL;
    CHECK(make_cycle(g, rank, n, &plan));
    for (int i = 0; i < COUNT; i++) {
        x[i] = initial(rank, i);
    }
    CHECK(dcomm_allreduce(world, x, mean, COUNT, DCOMM_F64, DCOMM_AVG, NULL));
    const double before = distance(x, mean, &moved);
    double last = before, slowest = 0;
    for (int cycle = 0; cycle < CYCLES; cycle++) {
        CHECK(dcomm_plan_run(world, plan, x, y, NULL, signature, NULL));
        for (int i = 0; i < COUNT; i++) {
            x[i] = scale_of(g) * y[i];
        }
        const double d = distance(x, mean, &moved);
        slowest = last > 1e-9 * before ? fmax(slowest, d / last) : slowest;
        last = d;
    }
    for (int k = 0; k < g->rounds; k++) {
        messages += g->degree[k];
    }
    if (rank == 0) {
        printf(
            "%-11s, ranks: %d: %d KB a rank and cycle; distance %.3f to %.1e in %d cycles, times "
            "%.4f a cycle at most; second eigenvalue %.4f\n",
            g->name, n, (int)(messages * COUNT * sizeof(double) / 1000), before, last, CYCLES,
            slowest, lambda);
    }
    dcomm_plan_destroy(&plan);
    /* The eigenvectors are orthogonal. So a cycle multiplies the distance by lambda at most, and
     * the second eigenvector's part of it by just that. */
    const double rounding = 1e-12 * before, power = pow(lambda, CYCLES);
    return (slowest > lambda * (1 + 1e-6) + 1e-9) + (last > before * power + rounding) +
           (last < least * power * (1 - 1e-6) - rounding) + (moved > 1e-12);
}

int main(void)
{
    graph (*const graphs[])(int n) = {ring, exponential, one_peer};
    int wrong = 0;
    CHECK(dcomm_comm_create(NULL, &world));
    if (dcomm_comm_size(world) > MOST_RANKS) {
        fprintf(stderr, "takes at most %d ranks\n", MOST_RANKS);
        return 2;
    }
    for (int k = 0; k < 3; k++) {
        for (int n = 1; n <= MOST_RANKS && dcomm_comm_rank(world) == 0; n += n < 9 ? 1 : 11) {
            const graph g = graphs[k](n);
            bool allreduce = false;
            CHECK(prove(&g, n, &allreduce));
            wrong += !as_published(&g, n);
        }
        const graph own = graphs[k](dcomm_comm_size(world));
        wrong += run(&own, (uint32_t)k + 1);
    }
    if (wrong > 0) {
        printf("rank %d: %d findings\n", dcomm_comm_rank(world), wrong);
    }
    CHECK(dcomm_comm_destroy(&world));
    return wrong > 0;
}
