/* test_structs.c - elements of the caller's own types. Own operators see whole elements, with any
 * algorithm and length, and fold in rank order if they do not commute. test_collectives.c tests
 * how other collectives move such elements. */
#define _GNU_SOURCE
#include "placed.h"

/* ---- elements ---- */

/* The shortest element. Longer ones continue with bytes that tell where the element begins. */
typedef struct element {
    uint32_t index, a, b;
} element;

/* The calls that an operator has received. */
typedef struct watch {
    size_t bytes;
    long folds, cut;
} watch;

static unsigned char tail[256 + DCOMM_DTYPE_BYTES_MAX];

static void put(unsigned char *at, size_t bytes, element e)
{
    memcpy(at, &e, sizeof e);
    memcpy(at + sizeof e, tail + e.index % 256, bytes - sizeof e);
}

/* Read an element; return false if the bytes are no whole element. */
static bool get(const unsigned char *at, size_t bytes, element *e)
{
    memcpy(e, at, sizeof *e);
    return memcmp(at + sizeof *e, tail + e->index % 256, bytes - sizeof *e) == 0;
}

static element given(int rank, size_t i)
{
    uint32_t x = (uint32_t)(i * 7 + 13 * (size_t)rank);
    return (element){(uint32_t)i, 2 * x + 3, x % 101 + (uint32_t)rank};
}

static element sum(element x, element y)
{
    return (element){x.index, x.a + y.a, x.b + y.b};
}

/* Return the map t -> a t + b that applies x, then y. This does not commute. */
static element compose(element x, element y)
{
    return (element){x.index, y.a * x.a, y.a * x.b + y.b};
}

static void fold(const void *in, void *inout, size_t count, dcomm_dtype dtype, watch *w,
                 element (*op)(element, element))
{
    const unsigned char *from = in;
    unsigned char *to = inout;
    w->folds++;
    w->cut += dcomm_dtype_size(dtype) != w->bytes;
    for (size_t i = 0; i < count; i++, from += w->bytes, to += w->bytes) {
        element x, y;
        bool whole = get(to, w->bytes, &x);
        whole = get(from, w->bytes, &y) && whole;
        w->cut += !whole || x.index != y.index;
        put(to, w->bytes, op(x, y));
    }
}

static void sum_fn(const void *in, void *inout, size_t count, dcomm_dtype dtype, void *user)
{
    fold(in, inout, count, dtype, user, sum);
}

static void compose_fn(const void *in, void *inout, size_t count, dcomm_dtype dtype, void *user)
{
    fold(in, inout, count, dtype, user, compose);
}

/* ---- calls ---- */

enum { COLLS = 4 };
static const dcomm_coll colls[COLLS] = {DCOMM_COLL_ALLREDUCE, DCOMM_COLL_REDUCE,
                                        DCOMM_COLL_REDUCE_SCATTER, DCOMM_COLL_REDUCE_SCATTERV};

typedef struct shape {
    dcomm_comm *comm;
    int rank, n;
    dcomm_coll coll;
    size_t bytes, count, skew;
    dcomm_dtype dtype;
    dcomm_op op;
    bool ordered; /* the operator must be called in rank order */
    dcomm_coll_opts opts;
} shape;

static void call(const shape *s)
{
    size_t n = (size_t)s->n, me = (size_t)s->rank, counts[PROCS_MAX], first = 0, all = 0;
    bool scatters = s->coll != DCOMM_COLL_ALLREDUCE && s->coll != DCOMM_COLL_REDUCE;
    for (size_t r = 0; r < n; r++) {
        counts[r] = s->coll != DCOMM_COLL_REDUCE_SCATTERV ? s->count : r == 1 ? 0 : s->count + r;
        first += scatters && r < me ? counts[r] : 0;
        all += scatters || r == 0 ? counts[r] : 0;
    }
    const int root = (int)(s->count % n);
    size_t own = scatters ? counts[me] : s->coll != DCOMM_COLL_REDUCE || s->rank == root ? all : 0;
    ranks_buffer in = ranks_buffer_make(all * s->bytes, s->skew);
    ranks_buffer out = ranks_buffer_make(own * s->bytes, s->skew);
    for (size_t i = 0; i < all; i++) {
        put(in.at + i * s->bytes, s->bytes, given(s->rank, i));
    }
    const bool in_place = s->coll == DCOMM_COLL_ALLREDUCE && s->count % 2 == 0;
    const void *from = in_place ? DCOMM_IN_PLACE : in.at;
    if (in_place) {
        memcpy(out.at, in.at, all * s->bytes);
    }
    switch (s->coll) {
    case DCOMM_COLL_ALLREDUCE:
        RANKS_OK(dcomm_allreduce(s->comm, from, out.at, all, s->dtype, s->op, &s->opts));
        break;
    case DCOMM_COLL_REDUCE:
        RANKS_OK(dcomm_reduce(s->comm, from, out.at, all, s->dtype, s->op, root, &s->opts));
        break;
    case DCOMM_COLL_REDUCE_SCATTER:
        RANKS_OK(dcomm_reduce_scatter(s->comm, from, out.at, s->count, s->dtype, s->op, &s->opts));
        break;
    default:
        RANKS_OK(dcomm_reduce_scatterv(s->comm, from, out.at, counts, s->dtype, s->op, &s->opts));
        break;
    }
    for (size_t i = 0; i < own; i++) {
        element want = given(0, first + i), got;
        for (int r = 1; r < s->n; r++) {
            want = s->ordered ? compose(want, given(r, first + i)) : sum(want, given(r, first + i));
        }
        PROCS_CHECK(get(out.at + i * s->bytes, s->bytes, &got) &&
                        memcmp(&got, &want, sizeof got) == 0,
                    "%s by %s, %d ranks, %zu elements of %zu bytes: element %zu is %u %u %u, not "
                    "%u %u %u",
                    dcomm_coll_name(s->coll), s->opts.algo != NULL ? s->opts.algo : "auto", s->n,
                    s->count, s->bytes, i, got.index, got.a, got.b, want.index, want.a, want.b);
    }
    ranks_buffer_free(&in, "input");
    ranks_buffer_free(&out, "output");
}

static dcomm_comm *begin(int rank, int n, procs_shared *s)
{
    for (size_t i = 0; i < sizeof tail; i++) {
        tail[i] = (unsigned char)i;
    }
    return join(rank, n, s);
}

/* Bytes of blocks, chunks and records; calls are about as long. */
static const size_t limits[] = {1, 4096, 8192, 32768, 65536, 200000};
enum { LIMITS = sizeof limits / sizeof limits[0] };

static int whole(int rank, int n, procs_shared *shared, void *arg)
{
    static const size_t sizes[] = {12, 24, 1000, DCOMM_DTYPE_BYTES_MAX};
    static bool registered;
    (void)arg;
    dcomm_comm *comm = begin(rank, n, shared);
    registered = place_now == RANKS_LOCAL && n == 3;
    if (registered) {
        ranks_register(comm, (size_t)8 << 20);
    }
    unsigned turn = 0;
    for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++) {
        watch w = {.bytes = sizes[k]};
        shape s = {.comm = comm, .rank = rank, .n = n, .bytes = sizes[k]};
        dcomm_op op[3]; /* the last one is in rank order if the call asks for it */
        RANKS_OK(dcomm_dtype_create(sizes[k], &s.dtype));
        RANKS_OK(dcomm_op_create(sum_fn, &w, &op[0]));
        RANKS_OK(dcomm_op_create_with(compose_fn, &w, &(dcomm_op_opts){.ordered = true}, &op[1]));
        RANKS_OK(dcomm_op_create(compose_fn, &w, &op[2]));
        for (int c = 0; c < COLLS; c++) {
            dcomm_algo_info info;
            for (int a = -1; a < 0 || dcomm_algo_get_info(colls[c], a, &info) == DCOMM_OK; a++) {
                for (int o = 0; o < 3; o++) {
                    turn++;
                    if (o == 1 + (a + c + (int)k + 2) % 2) {
                        continue; /* ask for rank order in one way at a time */
                    }
                    size_t elements = limits[turn / 3 % LIMITS] / s.bytes + turn % 3;
                    s.coll = colls[c];
                    s.count = elements > 1 ? elements - 1 : 1;
                    s.skew = turn % 5 == 0;
                    s.op = op[o];
                    s.ordered = o > 0;
                    s.opts = (dcomm_coll_opts){.algo = a < 0 ? NULL : info.name,
                                               .deterministic = o == 2,
                                               .chunk_bytes = turn % 4 == 0 ? 1500 : 0,
                                               .registered = registered};
                    if (a < 0 || o == 0 || info.rank_order) {
                        call(&s);
                        continue;
                    }
                    uint32_t x[DCOMM_DTYPE_BYTES_MAX] = {0};
                    ranks_refused(dcomm_allreduce(comm, DCOMM_IN_PLACE, x, 1, s.dtype, s.op,
                                                  &(dcomm_coll_opts){.algo = "recursive_doubling",
                                                                     .deterministic = o == 2}),
                                  DCOMM_ERR_UNSUPPORTED, "rank order");
                }
            }
        }
        PROCS_CHECK(w.folds > 0 && w.cut == 0, "%zu bytes: %ld folds, %ld elements were cut",
                    w.bytes, w.folds, w.cut);
        for (int o = 0; o < 3; o++) {
            RANKS_OK(dcomm_op_destroy(op[o]));
        }
    }
    RANKS_OK(dcomm_mem_free(&ranks_registered.memory));
    return ranks_leave(&comm);
}

Test(structs, whole, .timeout = 110)
{
    on(3, RANKS_LOCAL, 50, whole);
    if (test_full()) {
        on(2, RANKS_LOCAL, 50, whole);
    }
    on(5, RANKS_LOCAL, 50, whole);
}

Test(structs, whole_by_message, .timeout = 110)
{
    on(3, RANKS_MESSAGE, 50, whole);
    if (test_full()) {
        on(3, RANKS_HOSTS, 50, whole);
    }
    on(4, RANKS_PAIRS, 50, whole);
}

/* ---- refusals ---- */

static int refused(int rank, int n, procs_shared *s, void *arg)
{
    (void)n;
    (void)arg;
    dcomm_comm *comm = begin(rank, n, s);
    dcomm_dtype type[2], none = DCOMM_F32;
    dcomm_codec *codec = NULL;
    watch w = {.bytes = 24};
    dcomm_op op;
    unsigned char x[24] = {0}, y[24] = {0};
    ranks_refused(dcomm_dtype_create(0, &none), DCOMM_ERR_INVALID, "bytes is 0");
    ranks_refused(dcomm_dtype_create(DCOMM_DTYPE_BYTES_MAX + 1, &none), DCOMM_ERR_INVALID, "4097");
    ranks_refused(dcomm_dtype_create(24, NULL), DCOMM_ERR_INVALID, "dtype_p");
    PROCS_TRUE(none == DCOMM_F32);
    for (int i = 0; i < 2; i++) {
        dcomm_dtype before = i == 0 ? DCOMM_DTYPE_COUNT : type[0];
        RANKS_OK(dcomm_dtype_create(24, &type[i]));
        PROCS_TRUE(type[i] > before && dcomm_dtype_size(type[i]) == 24);
        PROCS_TRUE(strcmp(dcomm_dtype_name(type[i]), "opaque") == 0);
    }
    none = (dcomm_dtype)((int)type[1] + (1 << 13)); /* the next type, which was never created */
    PROCS_TRUE(dcomm_dtype_size(none) == 0);
    RANKS_OK(dcomm_op_create(sum_fn, &w, &op));
    put(x, 24, given(rank, 0));
    ranks_refused(dcomm_allreduce(comm, x, y, 1, none, op, NULL), DCOMM_ERR_INVALID, "dtype");
    for (int o = DCOMM_SUM; o < DCOMM_OP_COUNT; o++) {
        ranks_refused(dcomm_allreduce(comm, x, y, 1, type[0], (dcomm_op)o, NULL),
                      DCOMM_ERR_UNSUPPORTED, "opaque dtype of 24 bytes");
    }
    RANKS_OK(dcomm_codec_create("f16", &codec));
    ranks_refused(dcomm_allreduce(comm, x, y, 1, type[0], op, &(dcomm_coll_opts){.codec = codec}),
                  DCOMM_ERR_UNSUPPORTED, "operator user");
    dcomm_codec_destroy(&codec);
    /* Two types of one size are different types. */
    dcomm_status status = dcomm_allreduce(comm, x, y, 1, type[rank == 1], op, NULL);
    ranks_refused(status, DCOMM_ERR_MISMATCH, "opaque type 1 of 24 bytes");
    RANKS_OK(dcomm_op_destroy(op));
    dcomm_comm_destroy(&comm);
    return 0;
}

Test(structs, refused, .timeout = 60)
{
    on(2, RANKS_LOCAL, 25, refused);
}
