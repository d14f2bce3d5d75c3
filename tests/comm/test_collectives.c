/* test_collectives.c - every collective by every algorithm, on ranks of one and of several hosts:
 * each element of each result, in place or not, blocking or not, of any count, alignment, dtype
 * and operator; and the calls' errors and reports. */
#define _GNU_SOURCE
#include "collective_jobs.h"
#include "explained.h"

#include <criterion/criterion.h>

typedef enum memory_kind { ORDINARY, REGISTERED, MIXED } memory_kind; /* MIXED: on even ranks */

typedef struct place_of {
    ranks_place place;
    memory_kind memory;
} place_of;

static dcomm_op user_xor;

static void xor_fn(const void *in, void *inout, size_t count, dcomm_dtype dtype, void *user)
{
    const unsigned char *a = in;
    unsigned char *b = inout;
    *(uint64_t *)user += count;
    for (size_t i = 0; i < count * dcomm_dtype_size(dtype); i++) {
        b[i] ^= a[i];
    }
}

/* ---- tests ---- */

static const dcomm_dtype dtypes[] = {DCOMM_F32, DCOMM_BF16, DCOMM_F64, DCOMM_I32, DCOMM_F16,
                                     DCOMM_U8,  DCOMM_I64,  DCOMM_U32, DCOMM_I8,  DCOMM_U64};

/* Every collective by every algorithm. */
static int everything(int rank, int n, procs_shared *s, void *arg)
{
    ranks_place place = ((place_of *)arg)->place;
    ranks_settle(rank, n, place);
    dcomm_comm *comm = ranks_join(rank, n, s, NULL);
    memory_kind memory = ((place_of *)arg)->memory;
    if (memory == REGISTERED || (memory == MIXED && rank % 2 == 0)) {
        ranks_register(comm, (size_t)8 << 20);
    }
    const size_t counts[] = {0, 1, 5, 1023, 20011};
    /* The everyday run tries all calls on two ranks of a host, and a fifth in every other
     * place. */
    const bool thin = !test_full() && (n > 2 || place != RANKS_LOCAL || memory != ORDINARY);
    dcomm_dtype opaque[2];
    RANKS_OK(dcomm_dtype_create(12, &opaque[0]));
    RANKS_OK(dcomm_dtype_create(24, &opaque[1]));
    unsigned turn = 0;
    for (int coll = 0; coll <= DCOMM_COLL_BARRIER; coll++) {
        dcomm_algo_info info;
        for (int a = -1; a < 0 || dcomm_algo_get_info((dcomm_coll)coll, a, &info) == DCOMM_OK;
             a++) {
            for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
                for (int f = APART; f < FORMS; f++) {
                    const int k = f + FORMS * (int)c + a + 1 + n + (int)place;
                    bool skip = thin || (PROCS_THIN > 1 && n > 2)
                                    ? k % 5 != 0
                                    : n > 3 && (f + (int)c) % FORMS != 0;
                    if (skip) {
                        continue; /* smaller rank counts have tried all of these */
                    }
                    turn++;
                    job j = {.comm = comm,
                             .rank = rank,
                             .n = n,
                             .coll = (dcomm_coll)coll,
                             .algo = a < 0 ? NULL : info.name,
                             .dtype = dtypes[turn % 10],
                             .op = (dcomm_op)(turn / 3 % 4),
                             .count = counts[c],
                             .root = rooted((dcomm_coll)coll) ? (int)(turn % (unsigned)n) : 0,
                             .skew = turn % 4 == 0 ? 1 : 0,
                             .form = (form)f,
                             .blocking = turn % 2 == 0,
                             .lanes = turn % 5 == 0 ? 2 : 0};
                    if (!folds((dcomm_coll)coll) && turn % 3 == 1) {
                        j.dtype = opaque[turn % 2];
                    }
                    if (counted((dcomm_coll)coll)) {
                        spread(&j, turn % 3 == 0);
                    }
                    run(&j);
                }
            }
        }
    }
    dcomm_stats stats;
    RANKS_OK(dcomm_comm_get_stats(comm, &stats));
    PROCS_TRUE(stats.operations == turn && stats.plans_built > 0);
    /* Registered memory and the slots of staged algorithms are mapped wherever a host has two
     * ranks. */
    bool alone = n == 1 || place == RANKS_HOSTS || (place == RANKS_PAIRS && (rank ^ 1) >= n);
    PROCS_CHECK((stats.bytes_mapped > 0) == !alone, "rank %d has mapped %lu bytes", rank,
                (unsigned long)stats.bytes_mapped);
    RANKS_OK(dcomm_mem_free(&ranks_registered.memory));
    return ranks_leave(&comm);
}

static void on_memory(int n, ranks_place place, memory_kind memory, procs_fn fn)
{
    int ended[PROCS_MAX];
    place_of arg = {place, memory};
    cr_assert_eq(procs_run(n, 50, fn, &arg, ended), 0, "%d ranks, %s, memory %d", n,
                 ranks_place_name(place), (int)memory);
}

static void on(int n, ranks_place place, procs_fn fn)
{
    on_memory(n, place, ORDINARY, fn);
}

Test(collectives, one_rank, .timeout = 60)
{
    on(1, RANKS_LOCAL, everything);
}

Test(collectives, two_ranks, .timeout = 60)
{
    on(2, RANKS_LOCAL, everything);
    on(2, RANKS_HOSTS, everything);
}

Test(collectives, three_ranks, .timeout = 60)
{
    on(3, RANKS_LOCAL, everything);
    on(3, RANKS_MESSAGE, everything);
}

Test(collectives, four_ranks, .timeout = 60)
{
    on(4, RANKS_LOCAL, everything);
    on(4, RANKS_PAIRS, everything);
}

Test(collectives, five_ranks, .timeout = 60)
{
    on(5, RANKS_LOCAL, everything);
    on(5, RANKS_PAIRS, everything);
}

Test(collectives, registered, .timeout = 110)
{
    on_memory(2, RANKS_LOCAL, REGISTERED, everything);
    on_memory(3, RANKS_MESSAGE, REGISTERED, everything);
    on_memory(4, RANKS_PAIRS, REGISTERED, everything);
}

Test(collectives, registered_here_and_there, .timeout = 110)
{
    on_memory(2, RANKS_LOCAL, MIXED, everything);
    on_memory(5, RANKS_LOCAL, MIXED, everything);
}

/* Every dtype with every operator. */
static int operators(int rank, int n, procs_shared *s, void *arg)
{
    const char *const algos[] = {NULL, "ring", "two_shot", "recursive_doubling", "star"};
    const int stride = PROCS_THIN > 1 ? 5 : test_full() ? 1 : 3; /* prime to all options */
    uint64_t calls = 0;
    ranks_settle(rank, n, ((place_of *)arg)->place);
    dcomm_comm *comm = ranks_join(rank, n, s, NULL);
    RANKS_OK(dcomm_op_create(xor_fn, &calls, &user_xor));
    PROCS_TRUE(user_xor >= DCOMM_OP_USER);
    unsigned turn = 0;
    for (int d = 0; d < DCOMM_DTYPE_COUNT; d++) {
        bool whole = d >= DCOMM_I8;
        for (int o = 0; o <= DCOMM_OP_COUNT; o++) {
            if (o == DCOMM_OP_COUNT && !whole) {
                continue;
            }
            for (int c = 0; c < 4; c++) {
                static const dcomm_coll colls[] = {DCOMM_COLL_ALLREDUCE, DCOMM_COLL_REDUCE_SCATTER,
                                                   DCOMM_COLL_REDUCE, DCOMM_COLL_REDUCE_SCATTERV};
                for (size_t a = 0; a < (c == 0 ? sizeof algos / sizeof *algos : 1); a++) {
                    if ((int)(turn++ + (unsigned)n % 4) % stride != 0) {
                        continue;
                    }
                    job j = {.comm = comm,
                             .rank = rank,
                             .n = n,
                             .coll = colls[c],
                             .algo = algos[a],
                             .dtype = (dcomm_dtype)d,
                             .op = o == DCOMM_OP_COUNT ? user_xor : (dcomm_op)o,
                             .count = turn % 7 == 0 ? 30001 : 77,
                             .root = c == 2 ? (int)(turn % (unsigned)n) : 0,
                             .skew = turn % 2,
                             .form = (form)(turn % 3),
                             .blocking = turn % 2 == 0};
                    if (counted(j.coll)) {
                        spread(&j, true);
                    }
                    run(&j);
                }
            }
        }
    }
    PROCS_TRUE(n == 1 || calls > 0);
    RANKS_OK(dcomm_op_destroy(user_xor));
    return ranks_leave(&comm);
}

Test(collectives, operators, .timeout = 60)
{
    on(2, RANKS_LOCAL, operators);
    on(3, RANKS_HOSTS, operators);
    on(5, RANKS_LOCAL, operators);
}

/* Sum factor * (i % 3) over the ranks. factors[rank] is a rank's factor; NULL: 1. */
static void premultiply(dcomm_comm *comm, dcomm_dtype dtype, const double *factors, bool in_place)
{
    enum { N = 37 };
    unsigned char x[8 * N], y[8 * N], factor[9]; /* at an odd address */
    const int rank = dcomm_comm_rank(comm), n = dcomm_comm_size(comm);
    double sum = 0;
    for (size_t i = 0; i < N; i++) {
        ranks_put(x, i, dtype, (double)(i % 3));
    }
    if (factors != NULL) {
        ranks_put(factor + 1, 0, dtype, factors[rank]);
    }
    for (int r = 0; r < n; r++) {
        sum += factors != NULL ? factors[r] : 1;
    }
    const dcomm_coll_opts opts = {.premul_p = factors != NULL ? factor + 1 : NULL};
    void *out = in_place ? x : y;
    RANKS_OK(dcomm_allreduce(comm, x, out, N, dtype, DCOMM_PREMUL_SUM, &opts));
    for (size_t i = 0; i < N; i++) {
        PROCS_CHECK(ranks_get(out, i, dtype) == sum * (double)(i % 3), "%s[%zu] is %g, sum %g",
                    dcomm_dtype_name(dtype), i, ranks_get(out, i, dtype), sum);
    }
}

/* Factors become values of the call's dtype: 0 stays 0, no 64-bit integer is rounded, and products
 * of integers wrap around. */
static int factors(int rank, int n, procs_shared *s, void *arg)
{
    ranks_settle(rank, n, ((place_of *)arg)->place);
    dcomm_comm *comm = ranks_join(rank, n, s, NULL);
    const double none[] = {0, 0}, one_has_none[] = {0, 3}, some[] = {2, 5};
    for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++) {
        premultiply(comm, dtypes[d], none, d % 2 == 0);
        premultiply(comm, dtypes[d], one_has_none, d % 2 == 1);
        premultiply(comm, dtypes[d], some, false);
        premultiply(comm, dtypes[d], NULL, true);
    }
    const double below[] = {-1, -2};
    premultiply(comm, DCOMM_I64, below, false);
    premultiply(comm, DCOMM_I8, below, false);
    premultiply(comm, DCOMM_BF16, below, false);

    const int64_t odd = ((int64_t)1 << 53) + 1;
    int64_t x[2] = {1, rank == 0 ? odd : 0}, y[2];
    dcomm_coll_opts opts = {.premul_p = &odd};
    RANKS_OK(dcomm_allreduce(comm, x, y, 2, DCOMM_I64, DCOMM_PREMUL_SUM, &opts));
    PROCS_CHECK(y[0] == n * odd, "%lld", (long long)y[0]);
    PROCS_TRUE((uint64_t)y[1] == (uint64_t)odd * (uint64_t)odd);
    opts = (dcomm_coll_opts){.premul = 3}; /* a whole factor rounds no element either */
    RANKS_OK(dcomm_reduce(comm, x, y, 2, DCOMM_U64, DCOMM_PREMUL_SUM, 0, &opts));
    PROCS_TRUE(rank != 0 || y[1] == 3 * odd);
    opts.premul = 2;
    const int8_t small[2] = {100, -100};
    int8_t wrapped[2];
    RANKS_OK(dcomm_allreduce(comm, small, wrapped, 2, DCOMM_I8, DCOMM_PREMUL_SUM, &opts));
    PROCS_TRUE(wrapped[0] == (int8_t)(uint8_t)(200u * (unsigned)n) &&
               wrapped[1] == (int8_t)(uint8_t)(-200 * n));
    const uint32_t long_one = 0x90000001u;
    uint32_t longer;
    opts.premul = 3;
    RANKS_OK(dcomm_allreduce(comm, &long_one, &longer, 1, DCOMM_U32, DCOMM_PREMUL_SUM, &opts));
    PROCS_TRUE(longer == 3 * long_one * (uint32_t)n);
    opts.premul = 0.5;
    x[0] = 9;
    RANKS_OK(dcomm_allreduce(comm, x, y, 2, DCOMM_I64, DCOMM_PREMUL_SUM, &opts));
    PROCS_TRUE(y[0] == 4 * n && y[1] == odd / 2);
    opts = (dcomm_coll_opts){.premul_p = &odd, .premul_on_stream = true};
    PROCS_TRUE(dcomm_allreduce(comm, x, y, 2, DCOMM_I64, DCOMM_PREMUL_SUM, &opts) ==
               DCOMM_ERR_INVALID);
    PROCS_CHECK(strstr(dcomm_last_error(), "opts.stream is NULL") != NULL, "%s",
                dcomm_last_error());

    /* A compressed sum applies its factor too. */
    enum { LONG = 4096 };
    static float big[LONG];
    const float zero = 0;
    dcomm_codec *codec = NULL;
    RANKS_OK(dcomm_codec_create("bf16", &codec));
    for (size_t i = 0; i < LONG; i++) {
        big[i] = 1;
    }
    opts = (dcomm_coll_opts){.premul = 2, .premul_p = rank == 0 ? &zero : NULL, .codec = codec};
    RANKS_OK(dcomm_allreduce(comm, big, big, LONG, DCOMM_F32, DCOMM_PREMUL_SUM, &opts));
    PROCS_CHECK(big[7] == (float)(2 * (n - 1)), "%g", (double)big[7]);
    RANKS_OK(dcomm_codec_destroy(&codec));
    return ranks_leave(&comm);
}

Test(collectives, factors, .timeout = 60)
{
    on(2, RANKS_LOCAL, factors);
    on(2, RANKS_HOSTS, factors);
}

/* Sums that round: every rank gets the same bits, and the same bits when the call is repeated. */
static int same_bits(int rank, int n, procs_shared *s, void *arg)
{
    enum { COUNT = 50021 };
    ranks_settle(rank, n, ((place_of *)arg)->place);
    dcomm_comm *comm = ranks_join(rank, n, s, NULL);
    float *mine = malloc(COUNT * sizeof *mine), *sum = malloc(COUNT * sizeof *sum);
    uint64_t state = 77 + (uint64_t)rank, hashes[JOB_RANKS], first = 0;
    PROCS_TRUE(mine != NULL && sum != NULL);
    for (int i = 0; i < COUNT; i++) {
        mine[i] = (float)((double)ranks_random(&state) / 1e18 - 9.2);
    }
    dcomm_algo_info info;
    for (int a = 0; dcomm_algo_get_info(DCOMM_COLL_ALLREDUCE, a, &info) == DCOMM_OK; a++) {
        dcomm_coll_opts opts = {.algo = info.name};
        for (int again = 0; again < 2; again++) {
            for (size_t count = 7; count <= COUNT; count += COUNT - 7) {
                RANKS_OK(dcomm_allreduce(comm, mine, sum, count, DCOMM_F32, DCOMM_AVG, &opts));
                uint64_t hash = ranks_hash(sum, count * sizeof *sum);
                RANKS_OK(dcomm_allgather(comm, &hash, hashes, 1, DCOMM_U64, NULL));
                for (int r = 0; r < n; r++) {
                    PROCS_CHECK(hashes[r] == hash, "%s: ranks %d and %d differ", info.name, r,
                                rank);
                }
                PROCS_CHECK(count == 7 || again == 0 || hash == first, "%s differs again",
                            info.name);
                first = count == 7 ? first : hash;
            }
        }
    }
    free(mine);
    free(sum);
    return ranks_leave(&comm);
}

Test(collectives, same_bits, .timeout = 60)
{
    for (int n = 2; n <= 5; n++) {
        on(n, n % 2 ? RANKS_LOCAL : RANKS_PAIRS, same_bits);
    }
}

/* Each rank sends, or reads from others, the bytes that the algorithm's description gives. */
static int wire(int rank, int n, procs_shared *s, void *arg)
{
    ranks_place place = ((place_of *)arg)->place;
    const char *const algos[] = {"ring", "halving_doubling", "two_shot"};
    ranks_settle(rank, n, place);
    dcomm_comm *comm = ranks_join(rank, n, s, NULL);
    for (int a = 0; a < 3; a++) {
        for (size_t count = 64 * (size_t)n; count <= 65536 * (size_t)n; count *= 1024) {
            float *data = calloc(count, sizeof *data);
            dcomm_coll_opts opts = {.algo = algos[a]};
            dcomm_stats before, after;
            PROCS_TRUE(data != NULL);
            RANKS_OK(dcomm_barrier(comm, NULL));
            RANKS_OK(dcomm_comm_get_stats(comm, &before));
            RANKS_OK(dcomm_allreduce(comm, data, data, count, DCOMM_F32, DCOMM_SUM, &opts));
            RANKS_OK(dcomm_barrier(comm, NULL));
            RANKS_OK(dcomm_comm_get_stats(comm, &after));
            uint64_t sent = after.bytes_sent - before.bytes_sent;
            uint64_t read = after.bytes_read - before.bytes_read;
            uint64_t cost = 2 * (uint64_t)(n - 1) * (count * sizeof *data / (uint64_t)n);
            /* A part that is read by message counts as sent by its owner and as read by its
             * reader. */
            bool both = read > 0 && sent > 0;
            PROCS_CHECK(both ? sent == cost && read == cost : sent + read == cost,
                        "%s, %s, %d ranks, %zu elements: sent %lu, read %lu, not %lu", algos[a],
                        ranks_place_name(place), n, count, (unsigned long)sent, (unsigned long)read,
                        (unsigned long)cost);
            free(data);
        }
    }
    return ranks_leave(&comm);
}

Test(collectives, wire, .timeout = 60)
{
    for (int n = 2; n <= 5; n++) {
        on(n, RANKS_LOCAL, wire);
    }
    on(3, RANKS_HOSTS, wire);
    on(4, RANKS_MESSAGE, wire);
}

/* ---- repeated calls ---- */

/* Calls of one size name one algorithm after another, or none. Each call, first or repeated, must
 * run its own algorithm, as its messages show. */
static int again(int rank, int n, procs_shared *s, void *arg)
{
    static const char *const names[] = {"one_shot", "recursive_doubling", NULL, "binomial", "auto"};
    enum { NAMES = sizeof names / sizeof names[0] };
    uint64_t sent[NAMES] = {0};
    char name[32];
    ranks_settle(rank, n, ((place_of *)arg)->place);
    dcomm_comm *comm = ranks_join(rank, n, s, &(dcomm_comm_opts){.algo = "ring"});
    for (int turn = 0; turn < 4 * NAMES; turn++) {
        const int k = turn % NAMES;
        dcomm_coll_opts opts = {.algo = names[k] != NULL ? strcpy(name, names[k]) : NULL};
        float data[8] = {1}, sum[8] = {0};
        dcomm_stats before, after;
        RANKS_OK(dcomm_comm_get_stats(comm, &before));
        RANKS_OK(dcomm_allreduce(comm, data, sum, 8, DCOMM_F32, DCOMM_SUM, &opts));
        RANKS_OK(dcomm_comm_get_stats(comm, &after));
        PROCS_TRUE(sum[0] == (float)n && sum[7] == 0);
        uint64_t more = after.messages_sent - before.messages_sent;
        PROCS_CHECK(turn < NAMES || more == sent[k], "%s: %lu messages, then %lu", opts.algo,
                    (unsigned long)sent[k], (unsigned long)more);
        sent[k] = more;
    }
    PROCS_CHECK(sent[0] == 3 && sent[1] == 2 && sent[2] == 6, "%lu %lu %lu", (unsigned long)sent[0],
                (unsigned long)sent[1], (unsigned long)sent[2]);
    return ranks_leave(&comm);
}

Test(collectives, again, .timeout = 60)
{
    on(4, RANKS_LOCAL, again);
    on(4, RANKS_MESSAGE, again);
}

/* Repeated blocking calls run without the engine, and their results may use nontemporal stores. If
 * a rank comes late, they continue on the engine. */
static int without_the_engine(int rank, int n, procs_shared *s, void *arg)
{
    enum { TOTAL = 18000, TURNS = 6 }; /* elements in total; messages have up to 32 KiB */
    static const dcomm_coll colls[] = {DCOMM_COLL_ALLREDUCE, DCOMM_COLL_REDUCE_SCATTER,
                                       DCOMM_COLL_ALLGATHER, DCOMM_COLL_ALLTOALL};
    ranks_settle(rank, n, ((place_of *)arg)->place);
    dcomm_comm *comm = ranks_join(rank, n, s, NULL);
    dcomm_algo_info info;
    for (size_t c = 0; c < sizeof colls / sizeof *colls; c++) {
        for (int a = 0; dcomm_algo_get_info(colls[c], a, &info) == DCOMM_OK; a++) {
            for (int turn = 0; turn < TURNS; turn++) {
                job j = {.comm = comm,
                         .rank = rank,
                         .n = n,
                         .coll = colls[c],
                         .algo = info.name,
                         .dtype = turn < TURNS / 2 ? DCOMM_F32 : DCOMM_I32,
                         .op = DCOMM_SUM,
                         .count = c == 0 ? TOTAL : TOTAL / (size_t)n,
                         .blocking = true};
                if (turn % (TURNS / 2) == 2 && rank == a % n) {
                    usleep(3000);
                }
                run(&j);
            }
        }
    }
    return ranks_leave(&comm);
}

Test(collectives, without_the_engine, .timeout = 60)
{
    for (int n = 2; n <= (test_full() ? 4 : 3); n++) {
        on(n, RANKS_LOCAL, without_the_engine);
    }
}

/* A repeated call may be in place this time, or have another root. */
static int again_in_every_form(int rank, int n, procs_shared *s, void *arg)
{
    static const dcomm_coll colls[] = {DCOMM_COLL_ALLREDUCE, DCOMM_COLL_REDUCE_SCATTER,
                                       DCOMM_COLL_ALLGATHER, DCOMM_COLL_ALLTOALL,
                                       DCOMM_COLL_BROADCAST};
    static const form forms[] = {APART, IN_PLACE, APART, ALIAS};
    enum { TURNS = 24 };
    ranks_settle(rank, n, ((place_of *)arg)->place);
    dcomm_comm *comm = ranks_join(rank, n, s, NULL);
    for (size_t c = 0; c < sizeof colls / sizeof *colls; c++) {
        for (int turn = 0; turn < TURNS; turn++) { /* each form twice, all forms three times */
            job j = {.comm = comm,
                     .rank = rank,
                     .n = n,
                     .coll = colls[c],
                     .dtype = DCOMM_F32,
                     .op = DCOMM_SUM,
                     .count = 5,
                     .root = rooted(colls[c]) ? turn / 8 % n : 0,
                     .form = forms[turn / 2 % 4],
                     .blocking = true};
            run(&j);
        }
    }
    return ranks_leave(&comm);
}

Test(collectives, again_in_every_form, .timeout = 60)
{
    for (int n = 2; n <= 4; n++) {
        on(n, RANKS_LOCAL, again_in_every_form);
    }
}

/* Repeat a call that was accepted with an option that changes how it folds. */
static int again_with_an_option(int rank, int n, procs_shared *s, void *arg)
{
    ranks_settle(rank, n, ((place_of *)arg)->place);
    dcomm_comm *comm = ranks_join(rank, n, s, NULL);
    uint16_t data[4] = {0}, sum[4];
    dcomm_coll_opts opts = {.algo = "recursive_doubling"}; /* has no rank order */
    for (int turn = 0; turn < 3; turn++) {
        opts.accumulate = 0;
        RANKS_OK(dcomm_allreduce(comm, data, sum, 4, DCOMM_BF16, DCOMM_SUM, &opts));
        opts.accumulate = DCOMM_F32;
        ranks_refused(dcomm_allreduce(comm, data, sum, 4, DCOMM_BF16, DCOMM_SUM, &opts),
                      DCOMM_ERR_UNSUPPORTED, "rank order");
        opts.accumulate = DCOMM_F16;
        ranks_refused(dcomm_allreduce(comm, data, sum, 4, DCOMM_BF16, DCOMM_SUM, &opts),
                      DCOMM_ERR_UNSUPPORTED, "opts.accumulate");
        dcomm_coll_opts lanes = {.algo = opts.algo, .lanes = -1};
        ranks_refused(dcomm_allreduce(comm, data, sum, 4, DCOMM_BF16, DCOMM_SUM, &lanes),
                      DCOMM_ERR_INVALID, "opts.lanes is -1");
        dcomm_coll_opts late = {.algo = opts.algo, .timeout_s = -1};
        ranks_refused(dcomm_allreduce(comm, data, sum, 4, DCOMM_BF16, DCOMM_SUM, &late),
                      DCOMM_ERR_INVALID, "opts.timeout_s is -1");
        ranks_refused(dcomm_allreduce(comm, data, sum, 4, DCOMM_BF16, (dcomm_op)(DCOMM_SUM - 1),
                                      &(dcomm_coll_opts){.algo = opts.algo}),
                      DCOMM_ERR_INVALID, "no op");
    }
    return ranks_leave(&comm);
}

Test(collectives, again_with_an_option, .timeout = 60)
{
    on(2, RANKS_LOCAL, again_with_an_option);
    on(3, RANKS_LOCAL, again_with_an_option);
}

/* ---- reports and refusals ---- */

static int talk(int rank, int n, procs_shared *s, void *arg)
{
    ranks_settle(rank, n, ((place_of *)arg)->place);
    dcomm_comm *comm = ranks_join(rank, n, s, &(dcomm_comm_opts){.algo = "ring"});
    float data[64] = {0}, more[64] = {0};
    const char *algo = NULL;
    RANKS_OK(explained_algo(comm, DCOMM_COLL_ALLREDUCE, 4, NULL, &algo));
    PROCS_CHECK(strcmp(algo, "ring") == 0, "%s", algo);
    RANKS_OK(explained_algo(comm, DCOMM_COLL_BROADCAST, 4, NULL, &algo));
    PROCS_CHECK(strcmp(algo, "ring") != 0, "%s", algo); /* broadcast has no ring */
    dcomm_coll_opts opts = {.algo = "auto"};
    RANKS_OK(explained_algo(comm, DCOMM_COLL_ALLREDUCE, 4, &opts, &algo));
    PROCS_CHECK(strcmp(algo, "ring") != 0, "%s", algo);

    dcomm_request *request = NULL;
    dcomm_request_info info;
    RANKS_OK(dcomm_iallreduce(comm, data, more, 64, DCOMM_F32, DCOMM_SUM, NULL, &request));
    RANKS_OK(dcomm_request_get_info(request, &info));
    PROCS_CHECK(strcmp(info.algo, "ring") == 0 && info.sequence == 0, "%s #%lu", info.algo,
                (unsigned long)info.sequence);
    RANKS_OK(dcomm_wait(&request));
    PROCS_TRUE(request == NULL);
    RANKS_OK(dcomm_wait(&request));
    RANKS_OK(dcomm_test(&request));

    opts.algo = "bruck";
    ranks_refused(dcomm_allreduce(comm, data, more, 4, DCOMM_F32, DCOMM_SUM, &opts),
                  DCOMM_ERR_UNSUPPORTED, "bruck");
    opts = (dcomm_coll_opts){.algo = "ring", .deterministic = true};
    ranks_refused(dcomm_allreduce(comm, data, more, 4, DCOMM_F32, DCOMM_SUM, &opts),
                  DCOMM_ERR_UNSUPPORTED, "two_shot");
    opts.algo = NULL; /* the communicator's algorithm is the ring, too */
    ranks_refused(dcomm_allreduce(comm, data, more, 4, DCOMM_F32, DCOMM_SUM, &opts),
                  DCOMM_ERR_UNSUPPORTED, "algorithm ring cannot fold in rank order");
    ranks_refused(dcomm_allreduce(comm, NULL, more, 4, DCOMM_F32, DCOMM_SUM, NULL),
                  DCOMM_ERR_INVALID, "sendbuf");
    ranks_refused(dcomm_allreduce(comm, data, NULL, 4, DCOMM_F32, DCOMM_SUM, NULL),
                  DCOMM_ERR_INVALID, "recvbuf");
    ranks_refused(dcomm_allreduce(comm, data, more, 4, (dcomm_dtype)33, DCOMM_SUM, NULL),
                  DCOMM_ERR_INVALID, "dtype");
    ranks_refused(dcomm_allreduce(comm, data, more, 4, DCOMM_F32, (dcomm_op)33, NULL),
                  DCOMM_ERR_INVALID, "op");
    ranks_refused(dcomm_broadcast(comm, data, data, 4, DCOMM_F32, n, NULL), DCOMM_ERR_INVALID,
                  "rank");
    ranks_refused(dcomm_allreduce(comm, data, more, SIZE_MAX / 4, DCOMM_F32, DCOMM_SUM, NULL),
                  DCOMM_ERR_INVALID, "count");
    ranks_refused(dcomm_send(comm, data, 4, DCOMM_F32, rank, NULL), DCOMM_ERR_INVALID, "itself");
    ranks_refused(dcomm_iallreduce(comm, data, more, 4, DCOMM_F32, DCOMM_SUM, NULL, NULL),
                  DCOMM_ERR_INVALID, "request_p");
    ranks_refused(dcomm_allreduce(NULL, data, more, 4, DCOMM_F32, DCOMM_SUM, NULL),
                  DCOMM_ERR_INVALID, "comm");
    opts = (dcomm_coll_opts){.lanes = -1};
    ranks_refused(dcomm_allreduce(comm, data, more, 4, DCOMM_F32, DCOMM_SUM, &opts),
                  DCOMM_ERR_INVALID, "lanes");
    opts = (dcomm_coll_opts){.stream = data};
    ranks_refused(dcomm_allreduce(comm, data, more, 4, DCOMM_F32, DCOMM_SUM, &opts),
                  DCOMM_ERR_UNSUPPORTED, "opts.stream needs");
    ranks_refused(dcomm_barrier(comm, &opts), DCOMM_ERR_UNSUPPORTED, "DCOMM_WITH_CUDA");
    ranks_refused(dcomm_group_end(), DCOMM_ERR_INVALID, "dcomm_group_start");

    /* None of these calls has sent anything: the communicator still works. */
    RANKS_OK(dcomm_allreduce(comm, NULL, NULL, 0, DCOMM_F32, DCOMM_SUM, NULL));
    data[0] = 1;
    RANKS_OK(dcomm_allreduce(comm, DCOMM_IN_PLACE, data, 1, DCOMM_F32, DCOMM_SUM, NULL));
    PROCS_TRUE(data[0] == (float)n);
    PROCS_TRUE(dcomm_comm_rank(comm) == rank && dcomm_comm_size(comm) == n);
    PROCS_TRUE(dcomm_comm_status(comm) == DCOMM_OK && dcomm_comm_error(comm)[0] == 0);
    PROCS_TRUE(dcomm_comm_host(comm, n - 1) == n - 1 && dcomm_comm_host(comm, n) == -1);
    PROCS_TRUE(dcomm_comm_hostname(comm, 0) != NULL && dcomm_comm_hostname(comm, -1) == NULL);
    return ranks_leave(&comm);
}

Test(collectives, talk, .timeout = 60)
{
    on(3, RANKS_HOSTS, talk);
}

/* More than 2^31 elements. They need 4 GiB of memory, so the test runs only on request. */
static int beyond_int(int rank, int n, procs_shared *s, void *arg)
{
    const size_t count = ((size_t)1 << 31) + 5;
    const size_t at[] = {0, 1, 12345678, ((size_t)1 << 31) - 1, (size_t)1 << 31, count - 1};
    ranks_settle(rank, n, ((place_of *)arg)->place);
    dcomm_comm *comm = ranks_join(rank, n, s, NULL);
    unsigned char *data = calloc(count, 1);
    PROCS_TRUE(data != NULL);
    for (int i = 0; i < 6; i++) {
        data[at[i]] = (unsigned char)(rank * 10 + i + 1);
    }
    RANKS_OK(dcomm_allreduce(comm, data, data, count, DCOMM_U8, DCOMM_SUM, NULL));
    for (int i = 0; i < 6; i++) {
        PROCS_CHECK(data[at[i]] == 10 + 2 * (i + 1), "element %zu is %d", at[i], data[at[i]]);
        data[at[i]] = (unsigned char)(rank == 1 ? i + 1 : 0);
    }
    RANKS_OK(dcomm_broadcast(comm, data, data, count, DCOMM_U8, 1, NULL));
    for (int i = 0; i < 6; i++) {
        PROCS_CHECK(data[at[i]] == i + 1, "element %zu is %d", at[i], data[at[i]]);
    }
    free(data);
    return ranks_leave(&comm);
}

Test(collectives, beyond_int, .timeout = 110)
{
    if (!test_full()) {
        cr_skip_test("set DCOMM_TEST_FULL to run it: 4 GiB of memory");
    }
    int ended[PROCS_MAX];
    place_of arg = {.place = RANKS_LOCAL};
    cr_assert_eq(procs_run(2, 100, beyond_int, &arg, ended), 0);
}
