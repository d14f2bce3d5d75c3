/* test_alltoallv.c - all-to-all-v by each algorithm, with all ranks' counts known and with each
 * rank's own: proved for hosts of any size and blocks of all lengths, messages counted, and run by
 * processes. */
#define _GNU_SOURCE
#include "proof_step.h"
#include "explained.h"
#include "run_ranks.h"

#include "dcomm/impl/device/host.h"

#include "dcomm/impl/algo/table.h"
#include "dcomm/impl/check/check.h"
#include "dcomm/impl/comm/select.h"

#include <math.h>

#define RANKS_MAX 40

/* The placement of ranks on hosts, and the lengths of blocks. */
typedef enum placement { BLOCK, CYCLIC, LOPSIDED, SHUFFLED, PLACEMENTS } placement;
typedef enum lengths { RANDOM, SPARSE, ONE, NONE, LONG, LENGTHS } lengths;

typedef struct call {
    const char *algo;
    bool known; /* all ranks know all counts */
    int n, hosts;
    placement place;
    lengths lengths;
    uint64_t seed;
} call;

static const char *text_of(const call *c)
{
    static char text[160];
    snprintf(text, sizeof text, "%s, %s, %d ranks, %d hosts, placement %d, lengths %d, seed %d",
             c->algo, c->known ? "known" : "not known", c->n, c->hosts, c->place, c->lengths,
             (int)c->seed);
    return text;
}

static int host_of(const call *c, int rank)
{
    switch (c->place) {
    case BLOCK:
        return rank * c->hosts / c->n;
    case CYCLIC:
        return rank % c->hosts;
    case LOPSIDED: /* one rank on each host but the first */
        return rank < c->n - c->hosts + 1 ? 0 : rank - (c->n - c->hosts);
    default:
        return (int)(dcommi_mix(77, (uint64_t)rank) % (uint64_t)c->hosts);
    }
}

static size_t length_of(const call *c, int from, int to)
{
    uint64_t x = dcommi_mix(c->seed, (uint64_t)(from * RANKS_MAX + to));
    switch (c->lengths) {
    case RANDOM:
        return x % 700 * (x >> 20 & 1);
    case SPARSE: /* rank 1 gets nothing, rank 2 sends nothing, most blocks are empty */
        return x % 5 != 0 || to == 1 || from == 2 ? 0 : 1 + x % 60;
    case ONE:
        return from == c->n - 1 && to == 0 ? 9 : 0;
    case NONE:
        return 0;
    default: /* each block takes several messages */
        return 3000 + x % 9000;
    }
}

static void fill(const call *c, size_t *matrix)
{
    for (int i = 0; i < c->n * c->n; i++) {
        matrix[i] = length_of(c, i / c->n, i % c->n);
    }
}

/* ---- proofs ---- */

static dcommi_groups *groups_of(const call *c)
{
    static const uint8_t kinds[2] = {DCOMMI_LEVEL_HOST, DCOMMI_LEVEL_PACKAGE};
    int64_t ids[2 * RANKS_MAX];
    for (int r = 0; r < c->n; r++) {
        ids[r] = host_of(c, r);
        ids[c->n + r] = r % 2;
    }
    dcommi_groups *g = dcommi_groups_make(c->n, 2, kinds, ids);
    cr_assert(g != NULL);
    return g;
}

/* Make the plans of all ranks. */
static void plan_all(const call *c, const dcommi_groups *groups, const size_t *matrix,
                     dcomm_plan **plans)
{
    static size_t lists[4 * RANKS_MAX];
    size_t n = (size_t)c->n;
    for (size_t r = 0; r < n; r++) {
        size_t *recv = lists, *displs = lists + n, *send = displs + n, *from = send + n;
        size_t at = 0, send_at = 0;
        for (size_t i = 0; i < n; i++) {
            recv[i] = matrix[i * n + r];
            send[i] = matrix[r * n + i];
            displs[i] = at;
            from[i] = send_at;
            at += recv[i];
            send_at += send[i];
        }
        dcommi_shape s = {.coll = DCOMM_COLL_ALLTOALLV,
                          .rank = (int)r,
                          .nranks = c->n,
                          .dtype = DCOMM_F32,
                          .op = DCOMM_SUM,
                          .lanes = 1,
                          .groups = groups,
                          .counts = recv,
                          .displs = displs,
                          .send_counts = send,
                          .send_displs = from,
                          .matrix = c->known ? matrix : NULL};
        cr_assert_eq(dcommi_plan_make(&s, dcommi_algo_find(s.coll, c->algo), &plans[r]), DCOMM_OK,
                     "%s: %s", text_of(c), dcommi_message);
    }
}

/* The messages between different ranks, and the messages and bytes between different hosts. */
typedef struct traffic {
    int64_t messages, far_messages, far_bytes;
} traffic;

/* Return the expected traffic. linear and pairwise send each block once, and no empty ones if
 * counts are known. hier sends each rank one message from each other host that has data for it, or
 * several if they exceed DCOMMI_HIER_MESSAGE. */
static traffic wanted_of(const call *c, const size_t *matrix)
{
    traffic w = {0};
    size_t n = (size_t)c->n;
    for (size_t to = 0; to < n; to++) {
        int64_t host[RANKS_MAX] = {0};
        for (size_t from = 0; from < n; from++) {
            bool far = host_of(c, (int)from) != host_of(c, (int)to);
            w.messages += from != to && (matrix[from * n + to] > 0 || !c->known);
            host[host_of(c, (int)from)] += far ? 4 * (int64_t)matrix[from * n + to] : 0;
        }
        for (int k = 0; k < c->hosts; k++) {
            w.far_bytes += host[k];
            w.far_messages += dcommi_ceil_div(host[k], DCOMMI_HIER_MESSAGE);
        }
    }
    return w;
}

/* Return the messages of bruck: in each step each rank sends all its leaving blocks in one
 * message. */
static int64_t bruck_messages(const call *c, const size_t *matrix)
{
    int64_t messages = 0;
    for (int bit = 1; bit < c->n; bit *= 2) {
        for (int r = 0; r < c->n; r++) {
            size_t any = 0;
            for (int k = 0; k < c->n * c->n; k++) { /* is the block at rank r and leaves now? */
                int from = k / c->n, d = (k % c->n - from + c->n) % c->n;
                bool here = (from + (d & (bit - 1))) % c->n == r;
                any += here && (d & bit) != 0 ? matrix[k] : 0;
            }
            messages += any > 0;
        }
    }
    return messages;
}

static void prove(const call *c)
{
    static size_t matrix[RANKS_MAX * RANKS_MAX];
    dcomm_plan *plans[RANKS_MAX];
    dcommi_groups *groups = groups_of(c);
    traffic got = {0};
    fill(c, matrix);
    plan_all(c, groups, matrix, plans);
    dcomm_check_spec spec = {.coll = DCOMM_COLL_ALLTOALLV, .dtype = DCOMM_F32, .counts = matrix};
    dcommi_check_trace trace = {0};
    dcomm_check_report report;
    dcomm_status status =
        dcommi_check_plans((const dcomm_plan *const *)plans, c->n, &spec, &report, &trace);
    cr_assert_eq(status, DCOMM_OK, "%s: %s", text_of(c), report.message);
    for (size_t i = 0; i < trace.n; i++) {
        const dcommi_check_event *e = &trace.event[i];
        if (e->peer >= 0 && e->peer != e->rank) {
            bool far = host_of(c, e->rank) != host_of(c, e->peer);
            got.messages++;
            got.far_messages += far;
            got.far_bytes += far ? e->bytes : 0;
        }
    }
    traffic wanted = wanted_of(c, matrix);
    if (strcmp(c->algo, "bruck") == 0) {
        wanted.messages = bruck_messages(c, matrix);
    }
    if (strcmp(c->algo, "hier") != 0) {
        cr_expect_eq(got.messages, wanted.messages, "%s: %" PRId64 " messages, not %" PRId64,
                     text_of(c), got.messages, wanted.messages);
    } else {
        bool flat = dcommi_hier_level(groups, c->n) < 0;
        cr_expect_eq(got.far_bytes, wanted.far_bytes, "%s: %" PRId64 " bytes", text_of(c),
                     got.far_bytes);
        cr_expect(flat || got.far_messages == wanted.far_messages, "%s: %" PRId64 " messages",
                  text_of(c), got.far_messages);
    }
    dcommi_free(trace.event);
    dcommi_groups_free(&groups);
    for (int r = 0; r < c->n; r++) {
        dcommi_free(plans[r]);
    }
}

/* Prove every algorithm whose plan can be made before counts are exchanged. */
static void prove_each(call *c)
{
    static const struct {
        const char *algo;
        bool known;
    } ways[] = {{"linear", false},  {"linear", true}, {"pairwise", false},
                {"pairwise", true}, {"bruck", true},  {"hier", true}};
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        c->algo = ways[i].algo;
        c->known = ways[i].known;
        prove(c);
    }
}

static void prove_from(int from, int to, int step)
{
    for (int n = from; n <= to; n += step) {
        for (int hosts = 1; hosts <= n && hosts <= 6; hosts++) {
            for (int k = 0; k < PLACEMENTS * LENGTHS; k++) {
                call c = {.n = n,
                          .hosts = hosts,
                          .place = (placement)(k % PLACEMENTS),
                          .lengths = (lengths)(k / PLACEMENTS),
                          .seed = (uint64_t)(n * 100 + k)};
                if (n <= 9 || (k + n + hosts) % 7 == 0) {
                    prove_each(&c);
                }
            }
        }
    }
}

Test(alltoallv, proved_up_to_9_ranks, .timeout = 120)
{
    prove_from(1, 9, 1);
}

Test(alltoallv, proved_up_to_40_ranks, .timeout = 120)
{
    prove_from(10, RANKS_MAX, proof_step());
}

/* ---- the choice ---- */

static double price_of(dcomm_coll coll, size_t count, dcomm_dtype dtype, const char *algo)
{
    static const int hosts[8] = {0, 0, 0, 0, 1, 1, 1, 1};
    dcomm_alternative all[32];
    dcomm_coll_opts opts = {0};
    int n = 0;
    cr_assert_eq(explained_on(NULL, 8, hosts, coll, count, dtype, &opts, all, 32, &n), DCOMM_OK,
                 "%s", dcomm_last_error());
    for (int i = 0; i < n; i++) {
        if (strcmp(all[i].algo, algo) == 0) {
            return all[i].seconds;
        }
    }
    return -1;
}

/* hier and bruck are priced as an all-to-all of their name plus the exchange of counts. */
Test(alltoallv, priced_with_the_counts, .timeout = 20)
{
    static const char *const ways[][2] = {{"hier", "hier"}, {"bruck", "recursive_doubling"}};
    for (int i = 0; i < 2; i++) {
        double whole = price_of(DCOMM_COLL_ALLTOALLV, 0, DCOMM_F32, ways[i][0]);
        double blocks = price_of(DCOMM_COLL_ALLTOALL, 16384, DCOMM_F32, ways[i][0]);
        double counts = price_of(DCOMM_COLL_ALLGATHER, 8, DCOMM_U64, ways[i][1]);
        cr_expect(blocks > 0 && counts > 0 && fabs(whole - blocks - counts) < 1e-9,
                  "%s: %g, not %g + %g", ways[i][0], whole, blocks, counts);
    }
}

/* If all counts are known, the choice is that of an all-to-all with the busiest rank's mean
 * block. */
Test(alltoallv, chosen_by_the_counts, .timeout = 20)
{
    enum { N = 64 };
    static size_t matrix[N * N];
    static const size_t each[2] = {1, 1 << 18};
    static int hosts[N];
    for (int k = 0; k < 2; k++) {
        dcomm_plan *plan = NULL, *equal = NULL;
        for (int i = 0; i < N * N; i++) {
            hosts[i / N] = i / N;
            matrix[i] = i / N == 3 ? each[k] : 0; /* only rank 3 sends */
        }
        dcomm_check_spec spec = {
            .coll = DCOMM_COLL_ALLTOALLV, .dtype = DCOMM_F32, .counts = matrix, .hosts = hosts};
        cr_assert_eq(dcomm_plan_create(&spec, DCOMM_SUM, 2, N, NULL, &plan), DCOMM_OK, "%s",
                     dcomm_last_error());
        spec.coll = DCOMM_COLL_ALLTOALL;
        spec.counts = NULL;
        spec.count = each[k];
        cr_assert_eq(dcomm_plan_create(&spec, DCOMM_SUM, 2, N, NULL, &equal), DCOMM_OK, "%s",
                     dcomm_last_error());
        cr_expect_str_eq(plan->name, equal->name);
        cr_expect_eq(strcmp(plan->name, "bruck") == 0, k == 0, "%zu elements: %s", each[k],
                     plan->name);
        dcomm_plan_destroy(&plan);
        dcomm_plan_destroy(&equal);
    }
}

/* ---- run ---- */

static uint32_t value(int from, int to, size_t i)
{
    return (uint32_t)dcommi_mix((uint64_t)(from * 1000 + to), i);
}

/* Return the offsets of a side's blocks: not in the order of ranks, and with gaps. */
static size_t *placed(const call *c, int rank, bool sent, size_t **displs_p, size_t *total_p)
{
    size_t n = (size_t)c->n, at = 5;
    size_t *counts = calloc(2 * n, sizeof *counts);
    PROCS_TRUE(counts != NULL);
    *displs_p = counts + n;
    for (size_t i = n; i-- > 0;) {
        counts[i] = sent ? length_of(c, rank, (int)i) : length_of(c, (int)i, rank);
        (*displs_p)[i] = at;
        at += counts[i] + i % 3;
    }
    *total_p = at;
    return counts;
}

typedef struct running {
    size_t *send, *from, *recv, *to, sent, received;
    uint32_t *in, *out;
    dcomm_request *request;
} running;

static void start(dcomm_comm *comm, const call *c, int rank, running *w)
{
    w->send = placed(c, rank, true, &w->from, &w->sent);
    w->recv = placed(c, rank, false, &w->to, &w->received);
    size_t *matrix = c->known ? calloc((size_t)(c->n * c->n), sizeof *matrix) : NULL;
    if (matrix != NULL) {
        fill(c, matrix);
    }
    PROCS_TRUE((matrix != NULL) == c->known);
    w->in = malloc(4 * w->sent);
    w->out = malloc(4 * w->received);
    PROCS_TRUE(w->in != NULL && w->out != NULL);
    memset(w->out, 0xee, 4 * w->received);
    for (int to = 0; to < c->n; to++) {
        for (size_t i = 0; i < w->send[to]; i++) {
            w->in[w->from[to] + i] = value(rank, to, i);
        }
    }
    RANKS_OK(dcomm_ialltoallv(comm, w->in, w->send, w->from, w->out, w->recv, w->to, DCOMM_U32,
                              &(dcomm_coll_opts){.algo = c->algo, .matrix = matrix}, &w->request));
    free(matrix);
}

static void look(const call *c, int rank, running *w)
{
    size_t touched = 0, changed = 0;
    RANKS_OK(dcomm_wait(&w->request));
    for (int from = 0; from < c->n; from++) {
        touched += w->recv[from];
        for (size_t i = 0; i < w->recv[from]; i++) {
            PROCS_CHECK(w->out[w->to[from] + i] == value(from, rank, i),
                        "%s: rank %d, from %d: [%zu]", text_of(c), rank, from, i);
        }
    }
    for (size_t i = 0; i < w->received; i++) {
        changed += w->out[i] != 0xeeeeeeee;
    }
    PROCS_CHECK(changed == touched, "%s: rank %d: %zu elements, not %zu", text_of(c), rank, changed,
                touched);
    free(w->send);
    free(w->recv);
    free(w->in);
    free(w->out);
}

static dcomm_comm *join(const call *c, int rank, procs_shared *s)
{
    char host[16];
    ranks_settle(rank, c->n, RANKS_LOCAL);
    snprintf(host, sizeof host, "h%d", host_of(c, rank));
    setenv("DCOMM_HOSTID", host, 1);
    return ranks_join(rank, c->n, s, NULL);
}

/* Two calls at once, the second with the first one's plan, by all algorithms, for all lengths,
 * with counts known and not. */
static int run_all(int rank, int n, procs_shared *s, void *arg)
{
    call c = *(const call *)arg;
    dcomm_comm *comm = join(&c, rank, s);
    for (int k = 0; k < 2 * 4 * LENGTHS; k++) {
        static const char *const algos[4] = {"linear", "pairwise", "bruck", "hier"};
        running now, again;
        c.known = k % 2;
        c.algo = algos[k / 2 % 4];
        c.lengths = (lengths)(k / 8);
        c.seed = (uint64_t)(k / 8 + n);
        start(comm, &c, rank, &now);
        start(comm, &c, rank, &again);
        look(&c, rank, &now);
        look(&c, rank, &again);
    }
    return ranks_leave(&comm);
}

static const call layouts[] = {{.n = 4, .hosts = 2, .place = CYCLIC},
                               {.n = 5, .hosts = 3, .place = LOPSIDED},
                               {.n = 3, .hosts = 1, .place = BLOCK}};

Test(alltoallv, right_on_real_hosts, .timeout = 120)
{
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        int ended[PROCS_MAX];
        call c = layouts[i];
        cr_assert_eq(procs_run(c.n, 60, run_all, &c, ended), 0, "%s", text_of(&c));
    }
}

/* Rank 2 expects more than rank 1 sends. All ranks get the error, with both numbers. */
static int run_wrong(int rank, int n, procs_shared *s, void *arg)
{
    call c = *(const call *)arg;
    size_t send[4], recv[4], out[80], in[80] = {0};
    dcomm_comm *comm = join(&c, rank, s);
    for (int r = 0; r < n; r++) {
        send[r] = 10;
        recv[r] = rank == 2 && r == 1 ? 11 : 10;
    }
    dcomm_status status = dcomm_alltoallv(comm, in, send, NULL, out, recv, NULL, DCOMM_U64,
                                          &(dcomm_coll_opts){.algo = c.algo});
    PROCS_CHECK(status == DCOMM_ERR_MISMATCH, "rank %d: %s", rank, dcomm_strerror(status));
    PROCS_CHECK(strstr(dcomm_comm_error(comm), "rank 1 sends 10 elements to rank 2") != NULL,
                "rank %d: %s", rank, dcomm_comm_error(comm));
    PROCS_CHECK(strstr(dcomm_comm_error(comm), "which expects 11") != NULL, "rank %d: %s", rank,
                dcomm_comm_error(comm));
    dcomm_comm_destroy(&comm);
    return 0;
}

Test(alltoallv, lengths_that_differ_are_named, .timeout = 60)
{
    static const char *const algos[] = {"hier", "bruck"};
    for (int i = 0; i < 2; i++) {
        int ended[PROCS_MAX];
        call c = {.algo = algos[i], .n = 4, .hosts = 2, .place = BLOCK};
        cr_assert_eq(procs_run(c.n, 60, run_wrong, &c, ended), 0, "%s", c.algo);
    }
}

/* A rank that sends and receives nothing may pass any buffers. Displacements may be anything where
 * a count is 0. */
static int run_empty(int rank, int n, procs_shared *s, void *arg)
{
    enum { N = 3 };
    ranks_settle(rank, n, *(ranks_place *)arg);
    dcomm_comm *comm = ranks_join(rank, n, s, NULL);
    const size_t absurd[N] = {SIZE_MAX, (size_t)1 << 40, 7}, none[N] = {0};
    size_t counts[N] = {1, 0, 1}, displs[N] = {0, SIZE_MAX - 1, 1};
    float in[2] = {(float)rank, (float)rank + 10}, out[2] = {-1, -1};
    float *dummy = (float *)(uintptr_t)16;
    for (int i = 0; i < 3; i++) {
        if (rank == 1) {
            RANKS_OK(
                dcomm_alltoallv(comm, dummy, none, absurd, dummy, none, absurd, DCOMM_F32, NULL));
        } else {
            RANKS_OK(
                dcomm_alltoallv(comm, in, counts, displs, out, counts, displs, DCOMM_F32, NULL));
            PROCS_TRUE(out[0] == (rank == 0 ? 0 : 10) && out[1] == (rank == 0 ? 2 : 12));
        }
    }
    RANKS_OK(dcomm_alltoallv(comm, dummy, none, absurd, dummy, none, absurd, DCOMM_F32, NULL));
    float all[2] = {-1, -1};
    RANKS_OK(dcomm_allgatherv(comm, rank == 1 ? dummy : in, all, counts, displs, DCOMM_F32, NULL));
    PROCS_TRUE(all[0] == 0 && all[1] == 2);
    RANKS_OK(
        dcomm_scatterv(comm, all, rank == 1 ? dummy : out, counts, displs, DCOMM_F32, 2, NULL));
    PROCS_TRUE(rank == 1 || out[0] == (float)rank);
    return ranks_leave(&comm);
}

Test(alltoallv, ranks_without_rows, .timeout = 60)
{
    int ended[PROCS_MAX];
    for (int i = 0; i < 2; i++) {
        ranks_place place = i == 0 ? RANKS_LOCAL : RANKS_HOSTS;
        cr_assert_eq(procs_run(3, 50, run_empty, &place, ended), 0);
    }
}

/* A matrix without this rank's counts, and ranks with different matrices, are refused. */
static int run_wrong_matrix(int rank, int n, procs_shared *s, void *arg)
{
    size_t count = 3, one = 4, same[3] = {3, 3, 3}, matrix[9] = {3, 3, 3, 3, 3, 3, 3, 3, 3};
    int64_t in[9] = {0}, out[9];
    dcomm_comm *comm = join(arg, rank, s), *self = NULL;
    RANKS_OK(dcomm_comm_split(comm, rank, 0, &self));
    dcomm_status status = dcomm_alltoallv(self, in, &count, NULL, out, &count, NULL, DCOMM_I64,
                                          &(dcomm_coll_opts){.matrix = &one});
    PROCS_CHECK(status == DCOMM_ERR_INVALID && strstr(dcomm_last_error(), "opts.matrix") != NULL,
                "%s", dcomm_last_error());
    RANKS_OK(dcomm_comm_destroy(&self));
    matrix[rank == 2 ? 1 : 0] += rank == 2; /* the count that rank 0 sends to rank 1 */
    status = dcomm_alltoallv(comm, in, same, NULL, out, same, NULL, DCOMM_I64,
                             &(dcomm_coll_opts){.matrix = matrix});
    PROCS_CHECK(status == DCOMM_ERR_MISMATCH, "rank %d of %d: %s", rank, n, dcomm_strerror(status));
    dcomm_comm_destroy(&comm);
    return 0;
}

Test(alltoallv, matrices_that_do_not_fit, .timeout = 60)
{
    int ended[PROCS_MAX];
    call c = {.n = 3, .hosts = 1};
    cr_assert_eq(procs_run(c.n, 60, run_wrong_matrix, &c, ended), 0);
}

/* A peer's count may be corrupt. It must not become an offset. */
Test(alltoallv, counts_of_peers_are_not_believed)
{
    size_t matrix[4] = {1, 2, 3, (size_t)1 << 40}, own[2] = {1, 3};
    dcommi_shape s = {.coll = DCOMM_COLL_ALLTOALLV, .nranks = 2, .counts = own, .matrix = matrix};
    cr_assert_eq(dcommi_counts_agree(&s), DCOMM_OK, "%s", dcomm_last_error());
    matrix[3]++;
    cr_assert_eq(dcommi_counts_agree(&s), DCOMM_ERR_CORRUPT);
    cr_assert_not_null(strstr(dcomm_last_error(), "rank 1 sends rank 1"), "%s", dcomm_last_error());
}
