/* test_collectives.c - every collective by every algorithm, on ranks of one and of several hosts:
 * each element of each result, in place or not, blocking or not, of any count, alignment, dtype and
 * operator; what the calls say of themselves. */
#define _GNU_SOURCE
#include "ranks.h"

#include <criterion/criterion.h>

#define MAX 8

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

/* ---- what ranks give, and what is to come of it ---- */

typedef enum form { APART, ALIAS, IN_PLACE, FORMS } form;

typedef struct job {
    dcomm_comm *comm;
    int rank, n, root;
    dcomm_coll coll;
    const char *algo;
    dcomm_dtype dtype;
    dcomm_op op;
    size_t count, skew;
    form form;
    bool blocking;
    size_t counts[MAX], displs[MAX], sends[MAX], sdispls[MAX]; /* of the v-forms */
    bool packed;                                               /* NULL displacements */
    int lanes;
} job;

static bool folds(dcomm_coll coll)
{
    return coll == DCOMM_COLL_ALLREDUCE || coll == DCOMM_COLL_REDUCE_SCATTER ||
           coll == DCOMM_COLL_REDUCE || coll == DCOMM_COLL_REDUCE_SCATTERV;
}

static bool rooted(dcomm_coll coll)
{
    return coll == DCOMM_COLL_BROADCAST || coll == DCOMM_COLL_REDUCE || coll == DCOMM_COLL_GATHER ||
           coll == DCOMM_COLL_SCATTER || coll == DCOMM_COLL_GATHERV || coll == DCOMM_COLL_SCATTERV;
}

static bool counted(dcomm_coll coll)
{
    return coll >= DCOMM_COLL_REDUCE_SCATTERV && coll <= DCOMM_COLL_ALLTOALLV;
}

static double given(const job *j, int rank, size_t i)
{
    int r = rank, x = (int)(i % 1000);
    switch (folds(j->coll) ? (int)j->op : -1) {
    case DCOMM_SUM:
        return (r * 3 + x) % 11;
    case DCOMM_PROD:
        return (r + x) % 3 == 0 ? 2 : 1;
    case DCOMM_MIN:
    case DCOMM_MAX:
        return (r * 5 + x * 3) % 17;
    case DCOMM_AVG:
        return j->n * ((r + x) % 5);
    case DCOMM_PREMUL_SUM:
        return (r + x) % 3;
    default:
        return (r * 7 + x) % 97;
    }
}

static double folded(const job *j, size_t i)
{
    double v = given(j, 0, i);
    for (int r = 1; r < j->n; r++) {
        double w = given(j, r, i);
        switch (j->op) {
        case DCOMM_SUM:
        case DCOMM_AVG:
            v += w;
            break;
        case DCOMM_PROD:
            v *= w;
            break;
        case DCOMM_MIN:
            v = w < v ? w : v;
            break;
        case DCOMM_MAX:
            v = w > v ? w : v;
            break;
        case DCOMM_PREMUL_SUM:
            v += (r + 1) * w;
            break;
        default:
            v = (double)((int64_t)v ^ (int64_t)w);
            break;
        }
    }
    return j->op == DCOMM_AVG ? v / j->n : v;
}

static size_t total(const size_t *counts, int n)
{
    size_t sum = 0;
    for (int r = 0; r < n; r++) {
        sum += counts[r];
    }
    return sum;
}

static size_t extent(const job *j)
{
    size_t end = 0;
    for (int r = 0; r < j->n; r++) {
        end = j->displs[r] + j->counts[r] > end ? j->displs[r] + j->counts[r] : end;
    }
    return end;
}

/* Elements of the input and the output of this rank. */
static void lengths(const job *j, size_t *in, size_t *out)
{
    size_t n = (size_t)j->n, me = (size_t)j->rank;
    bool root = j->rank == j->root;
    *in = *out = j->count;
    switch (j->coll) {
    case DCOMM_COLL_REDUCE_SCATTER:
        *in = n * j->count;
        break;
    case DCOMM_COLL_ALLGATHER:
        *out = n * j->count;
        break;
    case DCOMM_COLL_BROADCAST:
        *in = root ? j->count : 0;
        break;
    case DCOMM_COLL_REDUCE:
        *out = root ? j->count : 0;
        break;
    case DCOMM_COLL_GATHER:
        *out = root ? n * j->count : 0;
        break;
    case DCOMM_COLL_SCATTER:
        *in = root ? n * j->count : 0;
        break;
    case DCOMM_COLL_ALLTOALL:
        *in = *out = n * j->count;
        break;
    case DCOMM_COLL_REDUCE_SCATTERV:
        *in = total(j->counts, j->n);
        *out = j->counts[me];
        break;
    case DCOMM_COLL_ALLGATHERV:
        *in = j->counts[me];
        *out = extent(j);
        break;
    case DCOMM_COLL_GATHERV:
        *in = j->counts[me];
        *out = root ? extent(j) : 0;
        break;
    case DCOMM_COLL_SCATTERV:
        *in = root ? extent(j) : 0;
        *out = j->counts[me];
        break;
    case DCOMM_COLL_ALLTOALLV:
        *in = 0;
        for (int r = 0; r < j->n; r++) {
            size_t end = j->sdispls[r] + j->sends[r];
            *in = end > *in ? end : *in;
        }
        *out = extent(j);
        break;
    default:
        break;
    }
}

/* Element i of the output, or -1 where nothing may be written. */
static double wanted(const job *j, size_t i)
{
    size_t me = (size_t)j->rank, before = 0;
    switch (j->coll) {
    case DCOMM_COLL_ALLREDUCE:
    case DCOMM_COLL_REDUCE:
        return folded(j, i);
    case DCOMM_COLL_REDUCE_SCATTER:
        return folded(j, me * j->count + i);
    case DCOMM_COLL_ALLGATHER:
    case DCOMM_COLL_GATHER:
        return given(j, (int)(i / j->count), i % j->count);
    case DCOMM_COLL_BROADCAST:
        return given(j, j->root, i);
    case DCOMM_COLL_SCATTER:
        return given(j, j->root, me * j->count + i);
    case DCOMM_COLL_ALLTOALL:
        return given(j, (int)(i / j->count), me * j->count + i % j->count);
    case DCOMM_COLL_REDUCE_SCATTERV:
        return folded(j, total(j->counts, j->rank) + i);
    case DCOMM_COLL_SCATTERV:
        return given(j, j->root, j->displs[me] + i);
    default:
        for (int r = 0; r < j->n; r++) {
            if (i >= j->displs[r] && i < j->displs[r] + j->counts[r]) {
                /* of all-to-all-v: rank r's part for us begins at r * 10 + rank, see run */
                before = j->coll == DCOMM_COLL_ALLTOALLV ? (size_t)(r * 10 + j->rank) : 0;
                return given(j, r, before + i - j->displs[r]);
            }
        }
        return -1;
    }
}

static double input(const job *j, size_t i)
{
    if (j->coll == DCOMM_COLL_ALLTOALLV) {
        for (int r = 0; r < j->n; r++) {
            if (i >= j->sdispls[r] && i < j->sdispls[r] + j->sends[r]) {
                return given(j, j->rank, (size_t)(j->rank * 10 + r) + i - j->sdispls[r]);
            }
        }
        return 0;
    }
    return given(j, j->rank, i);
}

/* ---- calling ---- */

#define FORMS_OF(name, ...)                                                \
    return request_p != NULL ? dcomm_i##name(__VA_ARGS__, opts, request_p) \
                             : dcomm_##name(__VA_ARGS__, opts)

static dcomm_status call(const job *j, const void *in, void *out, const dcomm_coll_opts *opts,
                         dcomm_request **request_p)
{
    const size_t *displs = j->packed ? NULL : j->displs, *sdispls = j->packed ? NULL : j->sdispls;
    switch (j->coll) {
    case DCOMM_COLL_ALLREDUCE:
        FORMS_OF(allreduce, j->comm, in, out, j->count, j->dtype, j->op);
    case DCOMM_COLL_REDUCE_SCATTER:
        FORMS_OF(reduce_scatter, j->comm, in, out, j->count, j->dtype, j->op);
    case DCOMM_COLL_ALLGATHER:
        FORMS_OF(allgather, j->comm, in, out, j->count, j->dtype);
    case DCOMM_COLL_BROADCAST:
        FORMS_OF(broadcast, j->comm, in, out, j->count, j->dtype, j->root);
    case DCOMM_COLL_REDUCE:
        FORMS_OF(reduce, j->comm, in, out, j->count, j->dtype, j->op, j->root);
    case DCOMM_COLL_GATHER:
        FORMS_OF(gather, j->comm, in, out, j->count, j->dtype, j->root);
    case DCOMM_COLL_SCATTER:
        FORMS_OF(scatter, j->comm, in, out, j->count, j->dtype, j->root);
    case DCOMM_COLL_ALLTOALL:
        FORMS_OF(alltoall, j->comm, in, out, j->count, j->dtype);
    case DCOMM_COLL_REDUCE_SCATTERV:
        FORMS_OF(reduce_scatterv, j->comm, in, out, j->counts, j->dtype, j->op);
    case DCOMM_COLL_ALLGATHERV:
        FORMS_OF(allgatherv, j->comm, in, out, j->counts, displs, j->dtype);
    case DCOMM_COLL_GATHERV:
        FORMS_OF(gatherv, j->comm, in, out, j->counts, displs, j->dtype, j->root);
    case DCOMM_COLL_SCATTERV:
        FORMS_OF(scatterv, j->comm, in, out, j->counts, displs, j->dtype, j->root);
    case DCOMM_COLL_ALLTOALLV:
        FORMS_OF(alltoallv, j->comm, in, j->sends, sdispls, out, j->counts, displs, j->dtype);
    default:
        return request_p != NULL ? dcomm_ibarrier(j->comm, opts, request_p)
                                 : dcomm_barrier(j->comm, opts);
    }
}

static void describe(const job *j, char *text, size_t len)
{
    snprintf(text, len, "%s by %s, %d ranks, count %zu, %s, %s, root %d, form %d, %s, skew %zu",
             dcomm_coll_name(j->coll), j->algo != NULL ? j->algo : "auto", j->n, j->count,
             dcomm_dtype_name(j->dtype), dcomm_op_name(j->op), j->root, (int)j->form,
             j->blocking ? "blocking" : "non-blocking", j->skew);
}

/* Where the input begins in the output when both are one buffer, in elements of the larger. */
static size_t own_place(const job *j)
{
    size_t me = (size_t)j->rank;
    switch (j->coll) {
    case DCOMM_COLL_REDUCE_SCATTER:
    case DCOMM_COLL_ALLGATHER:
    case DCOMM_COLL_GATHER:
    case DCOMM_COLL_SCATTER:
        return me * j->count;
    case DCOMM_COLL_REDUCE_SCATTERV:
        return total(j->counts, j->rank);
    case DCOMM_COLL_ALLGATHERV:
    case DCOMM_COLL_GATHERV:
    case DCOMM_COLL_SCATTERV:
        return j->displs[me];
    default:
        return 0;
    }
}

static void run(const job *j)
{
    char what[256];
    size_t in_n, out_n, element = dcomm_dtype_size(j->dtype);
    lengths(j, &in_n, &out_n);
    describe(j, what, sizeof what);
    bool in_is_larger = j->coll == DCOMM_COLL_REDUCE_SCATTER || j->coll == DCOMM_COLL_SCATTER ||
                        j->coll == DCOMM_COLL_REDUCE_SCATTERV || j->coll == DCOMM_COLL_SCATTERV;
    /* Those to one and from one are in place on the root alone. */
    bool one_buffer = j->form != APART && (!rooted(j->coll) || j->rank == j->root) &&
                      j->coll != DCOMM_COLL_ALLTOALLV && j->coll != DCOMM_COLL_BARRIER;
    size_t larger = in_n > out_n ? in_n : out_n;
    ranks_buffer in = ranks_buffer_make((one_buffer ? larger : in_n) * element, j->skew);
    ranks_buffer out = ranks_buffer_make(one_buffer ? 0 : out_n * element, j->skew / 2);
    const void *send = in_n > 0 || one_buffer ? in.at : NULL;
    void *recv = out_n > 0 ? out.at : NULL;
    unsigned char *result = out.at, *source = in.at;
    if (one_buffer) {
        size_t own = own_place(j) * element;
        source = in_is_larger ? in.at : in.at + own;
        result = in_is_larger ? in.at + own : in.at;
        send = j->form == IN_PLACE ? DCOMM_IN_PLACE : source;
        recv = j->form == IN_PLACE ? in.at : result;
    }
    for (size_t i = 0; i < in_n; i++) {
        ranks_put(source, i, j->dtype, input(j, i));
    }

    dcomm_coll_opts opts = {.algo = j->algo, .lanes = j->lanes};
    if (j->op == DCOMM_PREMUL_SUM) {
        opts.premul = j->rank + 1;
    }
    dcomm_status status;
    if (j->blocking) {
        status = call(j, send, recv, &opts, NULL);
    } else {
        dcomm_request *request = NULL;
        dcomm_request_info info = {.algo = "none"};
        status = call(j, send, recv, &opts, &request);
        if (status == DCOMM_OK) {
            RANKS_OK(dcomm_request_query(request, &info));
            PROCS_CHECK(info.coll == j->coll, "%s", what);
            PROCS_CHECK(j->algo == NULL || strcmp(info.algo, j->algo) == 0, "%s ran %s", what,
                        info.algo);
            while ((status = dcomm_test(&request)) == DCOMM_IN_PROGRESS) {
            }
            PROCS_TRUE(request == NULL);
        }
    }
    PROCS_CHECK(status == DCOMM_OK, "%s: %s: %s", what, dcomm_status_name(status),
                dcomm_last_error());
    for (size_t i = 0; i < out_n && j->coll != DCOMM_COLL_BARRIER; i++) {
        double want = wanted(j, i);
        if (want < 0) {
            PROCS_CHECK(one_buffer || ranks_blank(result + i * element, element),
                        "%s: element %zu was written", what, i);
            continue;
        }
        double got = ranks_get(result, i, j->dtype);
        PROCS_CHECK(got == want, "%s: rank %d element %zu is %g, not %g", what, j->rank, i, got,
                    want);
    }
    for (size_t i = 0; i < in_n && !one_buffer; i++) {
        PROCS_CHECK(ranks_get(source, i, j->dtype) == input(j, i), "%s: input was changed", what);
    }
    ranks_buffer_free(&in, what);
    ranks_buffer_free(&out, what);
}

/* Counts by rank around j->count, some of them 0; places apart, in reverse order of ranks. */
static void spread(job *j, bool packed)
{
    size_t at = 0, sat = 0;
    j->packed = packed;
    for (int r = 0; r < j->n; r++) {
        if (j->coll == DCOMM_COLL_ALLTOALLV) { /* rank s sends part(s, r) to rank r */
            j->counts[r] = (size_t)((r * 3 + j->rank) % 4) * j->count;
            j->sends[r] = (size_t)((j->rank * 3 + r) % 4) * j->count;
        } else {
            j->counts[r] = r % 3 == 1 ? 0 : j->count * (size_t)(r % 4 + 1) / 2;
            j->sends[r] = 0;
        }
    }
    bool reduces = j->coll == DCOMM_COLL_REDUCE_SCATTERV;
    for (int k = 0; k < j->n; k++) {
        int r = packed || reduces ? k : j->n - 1 - k;
        at += packed || reduces ? 0 : 3;
        sat += packed ? 0 : 5;
        j->displs[r] = at;
        j->sdispls[r] = sat;
        at += j->counts[r];
        sat += j->sends[r];
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
    unsigned turn = 0;
    for (int coll = 0; coll <= DCOMM_COLL_BARRIER; coll++) {
        dcomm_algo_info info;
        for (int a = -1; a < 0 || dcomm_algo_get((dcomm_coll)coll, a, &info) == DCOMM_OK; a++) {
            for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
                for (int f = APART; f < FORMS; f++) {
                    if (n > 3 && (f + (int)c) % FORMS != 0) {
                        continue; /* fewer ranks have tried them all */
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
                    if (counted((dcomm_coll)coll)) {
                        spread(&j, turn % 3 == 0);
                    }
                    run(&j);
                }
            }
        }
    }
    dcomm_stats stats;
    RANKS_OK(dcomm_comm_stats(comm, &stats));
    PROCS_TRUE(stats.operations == turn && stats.plans_built > 0);
    bool maps = n > 1 && place != RANKS_HOSTS &&
                (memory == REGISTERED || (memory == MIXED && (rank > 0 || n > 2)));
    PROCS_CHECK((stats.bytes_mapped > 0) == maps, "rank %d has mapped %lu bytes", rank,
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
                    turn++;
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

/* Sums that round: every rank has the same bits, and the same bits again. */
static int same_bits(int rank, int n, procs_shared *s, void *arg)
{
    enum { COUNT = 50021 };
    ranks_settle(rank, n, ((place_of *)arg)->place);
    dcomm_comm *comm = ranks_join(rank, n, s, NULL);
    float *mine = malloc(COUNT * sizeof *mine), *sum = malloc(COUNT * sizeof *sum);
    uint64_t state = 77 + (uint64_t)rank, hashes[MAX], first = 0;
    PROCS_TRUE(mine != NULL && sum != NULL);
    for (int i = 0; i < COUNT; i++) {
        mine[i] = (float)((double)ranks_random(&state) / 1e18 - 9.2);
    }
    dcomm_algo_info info;
    for (int a = 0; dcomm_algo_get(DCOMM_COLL_ALLREDUCE, a, &info) == DCOMM_OK; a++) {
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

/* What each rank sends, or reads from others, is what the algorithm's description says. */
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
            RANKS_OK(dcomm_comm_stats(comm, &before));
            RANKS_OK(dcomm_allreduce(comm, data, data, count, DCOMM_F32, DCOMM_SUM, &opts));
            RANKS_OK(dcomm_barrier(comm, NULL));
            RANKS_OK(dcomm_comm_stats(comm, &after));
            uint64_t sent = after.bytes_sent - before.bytes_sent;
            uint64_t read = after.bytes_read - before.bytes_read;
            uint64_t cost = 2 * (uint64_t)(n - 1) * (count * sizeof *data / (uint64_t)n);
            /* A part that is read by message is sent by its owner and read by its reader. */
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

/* ---- what the calls say, and what they refuse ---- */

static void refused(dcomm_status status, dcomm_status want, const char *word)
{
    PROCS_CHECK(status == want && strstr(dcomm_last_error(), word) != NULL,
                "looking for %s and '%s': %s: %s", dcomm_status_name(want), word,
                dcomm_status_name(status), dcomm_last_error());
}

static int talk(int rank, int n, procs_shared *s, void *arg)
{
    ranks_settle(rank, n, ((place_of *)arg)->place);
    dcomm_comm *comm = ranks_join(rank, n, s, &(dcomm_comm_opts){.algo = "ring"});
    float data[64] = {0}, more[64] = {0};
    const char *algo = NULL;
    RANKS_OK(dcomm_explain(comm, DCOMM_COLL_ALLREDUCE, 4, DCOMM_F32, DCOMM_SUM, NULL, &algo));
    PROCS_CHECK(strcmp(algo, "ring") == 0, "%s", algo);
    RANKS_OK(dcomm_explain(comm, DCOMM_COLL_BROADCAST, 4, DCOMM_F32, DCOMM_SUM, NULL, &algo));
    PROCS_CHECK(strcmp(algo, "ring") != 0, "%s", algo); /* broadcast has none */
    dcomm_coll_opts opts = {.algo = "auto"};
    RANKS_OK(dcomm_explain(comm, DCOMM_COLL_ALLREDUCE, 4, DCOMM_F32, DCOMM_SUM, &opts, &algo));
    PROCS_CHECK(strcmp(algo, "ring") != 0, "%s", algo);

    dcomm_request *request = NULL;
    dcomm_request_info info;
    RANKS_OK(dcomm_iallreduce(comm, data, more, 64, DCOMM_F32, DCOMM_SUM, NULL, &request));
    RANKS_OK(dcomm_request_query(request, &info));
    PROCS_CHECK(strcmp(info.algo, "ring") == 0 && info.sequence == 0, "%s #%lu", info.algo,
                (unsigned long)info.sequence);
    RANKS_OK(dcomm_wait(&request));
    PROCS_TRUE(request == NULL);
    RANKS_OK(dcomm_wait(&request));
    RANKS_OK(dcomm_test(&request));

    opts.algo = "bruck";
    refused(dcomm_allreduce(comm, data, more, 4, DCOMM_F32, DCOMM_SUM, &opts),
            DCOMM_ERR_UNSUPPORTED, "bruck");
    opts = (dcomm_coll_opts){.algo = "ring", .deterministic = true};
    refused(dcomm_allreduce(comm, data, more, 4, DCOMM_F32, DCOMM_SUM, &opts),
            DCOMM_ERR_UNSUPPORTED, "two_shot");
    refused(dcomm_allreduce(comm, NULL, more, 4, DCOMM_F32, DCOMM_SUM, NULL), DCOMM_ERR_INVALID,
            "sendbuf");
    refused(dcomm_allreduce(comm, data, NULL, 4, DCOMM_F32, DCOMM_SUM, NULL), DCOMM_ERR_INVALID,
            "recvbuf");
    refused(dcomm_allreduce(comm, data, more, 4, (dcomm_dtype)33, DCOMM_SUM, NULL),
            DCOMM_ERR_INVALID, "dtype");
    refused(dcomm_allreduce(comm, data, more, 4, DCOMM_F32, (dcomm_op)33, NULL), DCOMM_ERR_INVALID,
            "op");
    refused(dcomm_broadcast(comm, data, data, 4, DCOMM_F32, n, NULL), DCOMM_ERR_INVALID, "rank");
    refused(dcomm_allreduce(comm, data, more, SIZE_MAX / 4, DCOMM_F32, DCOMM_SUM, NULL),
            DCOMM_ERR_INVALID, "count");
    refused(dcomm_send(comm, data, 4, DCOMM_F32, rank, NULL), DCOMM_ERR_INVALID, "itself");
    refused(dcomm_iallreduce(comm, data, more, 4, DCOMM_F32, DCOMM_SUM, NULL, NULL),
            DCOMM_ERR_INVALID, "request_p");
    refused(dcomm_allreduce(NULL, data, more, 4, DCOMM_F32, DCOMM_SUM, NULL), DCOMM_ERR_INVALID,
            "comm");
    opts = (dcomm_coll_opts){.lanes = -1};
    refused(dcomm_allreduce(comm, data, more, 4, DCOMM_F32, DCOMM_SUM, &opts), DCOMM_ERR_INVALID,
            "lanes");
    refused(dcomm_group_end(), DCOMM_ERR_INVALID, "dcomm_group_start");

    /* Nothing of all that has been sent: the communicator works on. */
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

/* More than 2^31 elements; 4 GiB of memory, so only where asked for. */
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
    if (getenv("DCOMM_TEST_FULL") == NULL) {
        cr_skip_test("set DCOMM_TEST_FULL to run it: 4 GiB of memory");
    }
    int ended[PROCS_MAX];
    place_of arg = {.place = RANKS_LOCAL};
    cr_assert_eq(procs_run(2, 100, beyond_int, &arg, ended), 0);
}
