/* test_conformance.c - plans by hand, through the public call, on the real engine: every kind of
 * step, run-time lengths, loops, sub-plans, stages; on one host, by message, and between hosts. The
 * checker passes each of them first. */
#define _GNU_SOURCE
#define DCOMM_IMPLEMENTATION
#include "ranks.h"

#include <criterion/criterion.h>

#define MAX 8
#define AGAIN 5 /* each plan runs several times: runs are used again */

typedef struct world {
    int rank, n;
    dcomm_comm *comm;
    void *state;
} world;

typedef void (*maker)(dcommi_builder *b, int r, int n);

static dcomm_plan *make(maker fn, const char *name, int r, int n)
{
    dcommi_builder *b = malloc(sizeof *b);
    dcomm_plan *plan = NULL;
    PROCS_TRUE(b != NULL);
    dcommi_build_begin(b, name, r, n, DCOMM_F32, DCOMM_SUM);
    fn(b, r, n);
    RANKS_OK(dcommi_build_finish(b, &plan));
    free(b);
    return plan;
}

/* Every rank's plan, checked. */
static void make_all(maker fn, const char *name, const world *w, dcomm_plan **plans)
{
    dcomm_check_report report;
    for (int r = 0; r < w->n; r++) {
        plans[r] = make(fn, name, r, w->n);
    }
    dcomm_check_spec spec = {.coll = DCOMM_COLL_PLAN, .dtype = DCOMM_F32};
    if (w->rank == 0) {
        dcomm_status status =
            dcomm_plan_check((const dcomm_plan *const *)plans, w->n, &spec, &report);
        PROCS_CHECK(status == DCOMM_OK, "%s, %d ranks: %s", name, w->n, report.message);
    }
}

static void drop(dcomm_plan **plans, int n)
{
    for (int r = 0; r < n; r++) {
        dcommi_free(plans[r]);
    }
}

static dcomm_operand in(int64_t at, int64_t len)
{
    return dcommi_span(DCOMM_SPACE_IN, at, len);
}

static dcomm_operand out(int64_t at, int64_t len)
{
    return dcommi_span(DCOMM_SPACE_OUT, at, len);
}

static dcomm_operand scratch(int64_t at, int64_t len)
{
    return dcommi_span(DCOMM_SPACE_SCRATCH, at, len);
}

static dcomm_operand word(int64_t index)
{
    return dcommi_span(DCOMM_SPACE_WORDS, 8 * index, 8);
}

static dcomm_expr num(int64_t x)
{
    return dcommi_const(x);
}

/* o, as long as word `index` says. */
static dcomm_operand as_long(dcomm_operand o, int64_t index)
{
    o.length = dcommi_word(index);
    return o;
}

static dcomm_step *step_of(dcommi_builder *b, int lane, dcomm_step_kind kind, dcomm_operand dst,
                           const dcomm_operand *src, size_t n)
{
    dcomm_step *s = dcommi_build_step(b, lane, kind);
    PROCS_TRUE(s != NULL);
    s->dst = dst;
    dcommi_build_sources(b, s, src, n);
    return s;
}

/* ---- ENCODE, run-time lengths, DECODE: a file passed on from rank to rank ---- */

#define FILE_BYTES 30000

static dcomm_status pack(void *user, const void *src, size_t src_len, void *dst, size_t dst_len,
                         size_t *encoded)
{
    const uint8_t *from = src;
    uint8_t *to = dst;
    size_t at = 0;
    (void)user;
    for (size_t i = 0; i < src_len;) {
        size_t run = 1;
        while (i + run < src_len && run < 255 && from[i + run] == from[i]) {
            run++;
        }
        if (at + 2 > dst_len) {
            return DCOMM_ERR_INTERNAL;
        }
        to[at++] = (uint8_t)run;
        to[at++] = from[i];
        i += run;
    }
    *encoded = at;
    return DCOMM_OK;
}

static dcomm_status unpack(void *user, const void *src, size_t src_len, void *dst, size_t dst_len)
{
    const uint8_t *from = src;
    uint8_t *to = dst;
    size_t at = 0;
    (void)user;
    for (size_t i = 0; i + 1 < src_len; i += 2) {
        if (from[i] > dst_len - at) {
            return DCOMM_ERR_CORRUPT;
        }
        memset(to + at, from[i + 1], from[i]);
        at += from[i];
    }
    return at == dst_len && src_len % 2 == 0 ? DCOMM_OK : DCOMM_ERR_CORRUPT;
}

static dcomm_status unpack_add(void *user, const void *src, size_t src_len, void *dst,
                               size_t dst_len)
{
    uint8_t *bytes = malloc(dst_len);
    dcomm_status status =
        bytes != NULL ? unpack(user, src, src_len, bytes, dst_len) : DCOMM_ERR_NO_MEMORY;
    for (size_t i = 0; i < dst_len && status == DCOMM_OK; i++) {
        ((uint8_t *)dst)[i] = (uint8_t)(((uint8_t *)dst)[i] + bytes[i]);
    }
    free(bytes);
    return status;
}

static const dcomm_plan_codec runs = {"runs", pack, unpack, unpack_add};

static void relay(dcommi_builder *b, int r, int n)
{
    b->head.in_bytes = r == 0 ? FILE_BYTES : 0;
    b->head.out_bytes = FILE_BYTES;
    b->head.nwords = 1;
    b->head.codec = &runs;
    dcomm_operand packed = scratch(dcommi_build_scratch(b, 2 * FILE_BYTES), 2 * FILE_BYTES);
    dcomm_operand file = in(0, FILE_BYTES);
    dcommi_build_tags(b, 1);
    if (r == 0) {
        step_of(b, 0, DCOMM_STEP_ENCODE, packed, &file, 1)->word = 0;
    } else {
        dcommi_recv(b, 0, packed, num(r - 1), num(0), 0);
        b->lanes[0].steps[0].word = 0;
    }
    packed = as_long(packed, 0);
    if (r + 1 < n) {
        dcommi_send(b, 0, packed, num(r + 1), num(0), DCOMM_STEP_ASYNC);
    }
    step_of(b, 0, DCOMM_STEP_DECODE, out(0, FILE_BYTES), &packed, 1);
}

static void run_relay(world *w)
{
    dcomm_plan *plans[MAX];
    uint8_t *file = malloc(FILE_BYTES), *got = malloc(FILE_BYTES);
    PROCS_TRUE(file != NULL && got != NULL);
    make_all(relay, "relay", w, plans);
    for (int again = 0; again < AGAIN; again++) { /* from few bytes to far more than an eager one */
        for (int i = 0; i < FILE_BYTES; i++) {
            file[i] = (uint8_t)(again == 0 ? 7 : i / (again == 1 ? 1000 : again));
        }
        memset(got, 0, FILE_BYTES);
        RANKS_OK(dcomm_plan_run(w->comm, plans[w->rank], file, got, NULL, 11, NULL));
        PROCS_CHECK(memcmp(got, file, FILE_BYTES) == 0, "rank %d, run %d", w->rank, again);
    }
    free(file);
    free(got);
    drop(plans, w->n);
}

/* ---- DECODE_REDUCE, COMPUTE, COMMIT: a compressed sum whose error is kept for the next time ----
 */

#define GRADS 3000

/* Upper halves of floats; zeros at the end are not sent. */
static dcomm_status cut(void *user, const void *src, size_t src_len, void *dst, size_t dst_len,
                        size_t *encoded)
{
    size_t n = src_len / 4;
    (void)user;
    while (n > 0 && ((const float *)src)[n - 1] == 0) {
        n--;
    }
    if (2 * n > dst_len) {
        return DCOMM_ERR_INTERNAL;
    }
    for (size_t i = 0; i < n; i++) {
        memcpy((uint8_t *)dst + 2 * i, (const uint8_t *)src + 4 * i + 2, 2);
    }
    *encoded = 2 * n;
    return DCOMM_OK;
}

static dcomm_status widen(const void *src, size_t src_len, float *dst, size_t dst_len, bool add)
{
    if (src_len % 2 != 0 || 2 * src_len > dst_len) {
        return DCOMM_ERR_CORRUPT;
    }
    for (size_t i = 0; i < dst_len / 4; i++) {
        float f = 0;
        if (2 * i < src_len) {
            memcpy((uint8_t *)&f + 2, (const uint8_t *)src + 2 * i, 2);
        }
        dst[i] = add ? dst[i] + f : f;
    }
    return DCOMM_OK;
}

static dcomm_status uncut(void *user, const void *src, size_t src_len, void *dst, size_t dst_len)
{
    (void)user;
    return widen(src, src_len, dst, dst_len, false);
}

static dcomm_status uncut_add(void *user, const void *src, size_t src_len, void *dst,
                              size_t dst_len)
{
    (void)user;
    return widen(src, src_len, dst, dst_len, true);
}

static const dcomm_plan_codec halves = {"halves", cut, uncut, uncut_add};

/* dst <- src[0] + factor * src[1]; factor in *user */
static dcomm_status add_scaled(void *user, void *dst, size_t dst_len, const void *const *src,
                               const size_t *src_len, size_t nsrc)
{
    if (nsrc != 2 || src_len[0] != dst_len || src_len[1] != dst_len) {
        return DCOMM_ERR_PLAN;
    }
    for (size_t i = 0; i < dst_len / 4; i++) {
        ((float *)dst)[i] =
            ((const float *)src[0])[i] + *(float *)user * ((const float *)src[1])[i];
    }
    return DCOMM_OK;
}

static dcomm_status subtract(void *user, void *dst, size_t dst_len, const void *const *src,
                             const size_t *src_len, size_t nsrc)
{
    float minus = -1;
    (void)user;
    return add_scaled(&minus, dst, dst_len, src, src_len, nsrc);
}

static const dcomm_plan_kernel kernels[] = {add_scaled, subtract};
static float one = 1;

static void compressed(dcommi_builder *b, int r, int n)
{
    const int64_t bytes = 4 * GRADS, half = 2 * GRADS;
    b->head.in_bytes = b->head.out_bytes = b->head.state_bytes = bytes;
    b->head.nwords = (uint32_t)n;
    b->head.codec = &halves;
    b->head.kernels = kernels;
    b->head.nkernels = 2;
    b->head.kernel_user = &one;
    dcomm_operand wanted = scratch(dcommi_build_scratch(b, bytes), bytes);
    dcomm_operand decoded = scratch(dcommi_build_scratch(b, bytes), bytes);
    int64_t slots = dcommi_build_scratch(b, n * half);
    dcommi_build_tags(b, 1);
    dcomm_operand sum[2] = {in(0, bytes), dcommi_span(DCOMM_SPACE_STATE, 0, bytes)};
    step_of(b, 0, DCOMM_STEP_COMPUTE, wanted, sum, 2)->kernel = 0;
    dcomm_operand mine = scratch(slots + r * half, half);
    step_of(b, 0, DCOMM_STEP_ENCODE, mine, &wanted, 1)->word = r;
    mine = as_long(mine, r);
    for (int p = 0; p < n; p++) {
        if (p != r) {
            dcommi_send(b, 0, mine, num(p), num(0), DCOMM_STEP_ASYNC);
            dcommi_recv(b, 1, scratch(slots + p * half, half), num(p), num(0), DCOMM_STEP_ASYNC);
            b->lanes[1].steps[b->lanes[1].count - 1].word = p;
        }
    }
    step_of(b, 0, DCOMM_STEP_DECODE, decoded, &mine, 1);
    dcomm_operand difference[2] = {wanted, decoded};
    step_of(b, 0, DCOMM_STEP_COMPUTE, wanted, difference, 2)->kernel = 1;
    step_of(b, 0, DCOMM_STEP_COMMIT, dcommi_span(DCOMM_SPACE_STATE, 0, bytes), &wanted, 1);
    /* Lane 1 waits for its messages, then for lane 0's encoding, and folds in rank order. */
    uint16_t encoded = dcommi_build_counter(b);
    dcommi_signal(b, 0, encoded, num(r), num(2));
    dcommi_fence(b, 1);
    dcommi_await(b, 1, encoded, num(2));
    for (int p = 0; p < n; p++) {
        dcomm_operand theirs = as_long(scratch(slots + p * half, half), p);
        step_of(b, 1, p == 0 ? DCOMM_STEP_DECODE : DCOMM_STEP_DECODE_REDUCE, out(0, bytes), &theirs,
                1);
    }
}

static float grad(int rank, int again, int i)
{
    /* Rank 1 has nothing to say the second time, and every rank ends in zeros. */
    return (rank == 1 && again == 1) || i >= GRADS - 10 * rank
               ? 0
               : (float)((i * 37 + rank * 11 + again * 5) % 1000) / 999.0f;
}

static void run_compressed(world *w)
{
    dcomm_plan *plans[MAX];
    static float mine[GRADS], got[GRADS], state[GRADS], states[MAX][GRADS], want[GRADS];
    make_all(compressed, "compressed", w, plans);
    for (int again = 0; again < AGAIN; again++) {
        for (int i = 0; i < GRADS; i++) {
            mine[i] = grad(w->rank, again, i);
            want[i] = 0;
            for (int r = 0; r < w->n; r++) {
                float x = grad(r, again, i) + states[r][i], kept = 0;
                memcpy((uint8_t *)&kept + 2, (uint8_t *)&x + 2, 2);
                want[i] += kept;
                states[r][i] = x - kept;
            }
        }
        RANKS_OK(dcomm_plan_run(w->comm, plans[w->rank], mine, got, state, 12, NULL));
        PROCS_CHECK(memcmp(got, want, sizeof got) == 0, "rank %d, run %d: sum", w->rank, again);
        PROCS_CHECK(memcmp(state, states[w->rank], sizeof state) == 0, "rank %d, run %d: residual",
                    w->rank, again);
    }
    drop(plans, w->n);
}

/* ---- EXPOSE, REDUCE over ranks, COPY from peers ---- */

#define BLOCK 40000 /* bytes: several read blocks where there are many ranks, an odd end */

static void exposed(dcommi_builder *b, int r, int n)
{
    b->head.in_bytes = n * BLOCK;
    b->head.out_bytes = (n + 1) * BLOCK;
    uint16_t inputs = dcommi_build_slot(b), results = dcommi_build_slot(b);
    uint16_t read = dcommi_build_counter(b);
    dcommi_expose(b, 0, in(0, n * BLOCK), inputs, num(DCOMM_ALL_PEERS));
    /* Own block r of everybody, from the next rank on, each at its place: offset r*BLOCK. */
    dcomm_operand pieces[2] = {in(r * BLOCK, BLOCK), dcommi_peer(num(r + 1 < n ? r + 1 : 0), inputs,
                                                                 num(r * BLOCK), BLOCK)};
    pieces[1].repeat = (uint32_t)(n - 1);
    dcommi_reduce(b, 0, out(r * BLOCK, BLOCK), pieces, n > 1 ? 2 : 1, DCOMM_STEP_FINAL);
    dcommi_expose(b, 0, out(r * BLOCK, BLOCK), results, num(DCOMM_ALL_PEERS));
    int d = dcommi_loop(b, 0, num(n - 1));
    dcomm_expr peer = dcommi_modular(1, r + 1, d, 1, n);
    dcommi_copy(b, 0, dcommi_at(DCOMM_SPACE_OUT, dcommi_modular(BLOCK, r + 1, d, 1, n), BLOCK),
                dcommi_peer(peer, results, num(0), BLOCK), DCOMM_STEP_ASYNC);
    dcommi_end(b, 0);
    dcommi_fence(b, 0);
    /* Pieces that are not at one place in each rank: the p-th after r gives its block r+1+p. */
    dcomm_operand steps = dcommi_peer(num(0), inputs, num(0), 4);
    steps.repeat = (uint32_t)r;
    steps.stride = 4;
    if (r > 0) {
        dcommi_reduce(b, 0, out(n * BLOCK, 4), &steps, 1, 0);
    }
    dcommi_signal(b, 0, read, num(DCOMM_ALL_PEERS), num(1));
    dcommi_await(b, 0, read, num(n - 1));
}

static void run_exposed(world *w)
{
    dcomm_plan *plans[MAX];
    const size_t each = BLOCK / 4, all = each * (size_t)w->n;
    float *mine = malloc(4 * all), *got = malloc(4 * (all + each));
    PROCS_TRUE(mine != NULL && got != NULL);
    make_all(exposed, "exposed", w, plans);
    for (int again = 0; again < AGAIN; again++) {
        for (size_t i = 0; i < all; i++) {
            mine[i] = (float)((int)(i % 251) + w->rank * 3 + again);
        }
        memset(got, 0, 4 * (all + each));
        RANKS_OK(dcomm_plan_run(w->comm, plans[w->rank], mine, got, NULL, 13, NULL));
        for (size_t i = 0; i < all; i++) {
            float want = (float)(w->n * ((int)(i % 251) + again) + 3 * w->n * (w->n - 1) / 2);
            PROCS_CHECK(got[i] == want, "rank %d, run %d, element %zu: %g, not %g", w->rank, again,
                        i, (double)got[i], (double)want);
        }
        float want = 0;
        for (int p = 0; p < w->rank; p++) {
            want += (float)(p + p * 3 + again);
        }
        PROCS_CHECK(got[all] == want, "rank %d: %g, not %g", w->rank, (double)got[all],
                    (double)want);
    }
    free(mine);
    free(got);
    drop(plans, w->n);
}

/* ---- RECV_REDUCE of several operands, in place and into a third place ---- */

#define PART 12000

static void folded(dcommi_builder *b, int r, int n)
{
    b->head.in_bytes = 2 * PART;
    b->head.out_bytes = 2 * PART;
    dcomm_operand stage = scratch(dcommi_build_scratch(b, PART), PART);
    dcomm_operand part = scratch(dcommi_build_scratch(b, PART), PART);
    dcommi_build_tags(b, 2);
    if (r == 0) {
        dcommi_copy(b, 0, part, in(0, PART), 0);
    } else {
        dcommi_copy(b, 0, part, in(PART, PART), 0);
        dcomm_step *s = dcommi_build_step(b, 0, DCOMM_STEP_RECV_REDUCE);
        dcomm_operand src[3] = {in(0, PART), dcommi_msg(), part};
        s->dst = part; /* the same as its last operand */
        s->stage = stage;
        s->peer = num(r - 1);
        s->flags = r + 1 == n ? DCOMM_STEP_FINAL : 0;
        dcommi_build_sources(b, s, src, 3);
    }
    if (r + 1 < n) {
        dcommi_send(b, 0, part, num(r + 1), num(0), 0);
        dcommi_recv(b, 0, out(0, PART), num((r + n - 1) % n), num(1), 0);
    } else {
        dcommi_copy(b, 0, out(0, PART), part, 0);
    }
    if (n > 1 && r + 2 != n) { /* back round the ring, from the last to the one before it */
        dcommi_send(b, 0, out(0, PART), num((r + 1) % n), num(1), 0);
    }
    dcomm_operand three[3] = {in(0, PART), in(PART, PART), in(0, PART)};
    dcommi_reduce(b, 0, out(PART, PART), three, 3, 0);
}

static void run_folded(world *w)
{
    dcomm_plan *plans[MAX];
    static float mine[2 * PART / 4], got[2 * PART / 4];
    make_all(folded, "folded", w, plans);
    for (int again = 0; again < AGAIN; again++) {
        for (int i = 0; i < 2 * PART / 4; i++) {
            mine[i] = (float)(i % 100 + w->rank + again);
        }
        RANKS_OK(dcomm_plan_run(w->comm, plans[w->rank], mine, got, NULL, 14, NULL));
        for (int i = 0; i < PART / 4; i++) {
            int j = i + PART / 4;
            float want = (float)(i % 100 + again);
            for (int r = 1; r < w->n; r++) {
                want += (float)(i % 100 + j % 100 + 2 * r + 2 * again);
            }
            PROCS_CHECK(got[i] == want, "rank %d, element %d: %g, not %g", w->rank, i,
                        (double)got[i], (double)want);
            PROCS_TRUE(got[j] == 2 * mine[i] + mine[j]);
        }
    }
    drop(plans, w->n);
}

/* ---- loops, three deep, modular; the outer one as long as a word says ---- */

#define TURNS 6 /* at most */

/* As many bytes as the first number says: a length that is known at run time and bounded. */
static dcomm_status count_out(void *user, const void *src, size_t src_len, void *dst,
                              size_t dst_len, size_t *encoded)
{
    int32_t turns;
    (void)user;
    memcpy(&turns, src, sizeof turns);
    if (src_len != sizeof turns || turns < 0 || (size_t)turns > dst_len) {
        return DCOMM_ERR_INTERNAL;
    }
    memset(dst, 0, dst_len);
    *encoded = (size_t)turns;
    return DCOMM_OK;
}

static const dcomm_plan_codec count_codec = {"count", count_out, uncut, uncut_add};

/* Turn t, way w: rank r sends 4 bytes to each (r + 1 + k) mod n, who puts it at [t][w][k]. */
static void loops(dcommi_builder *b, int r, int n)
{
    int64_t row = 4 * (n - 1);
    b->head.in_bytes = 4 + TURNS * 2 * 4;
    b->head.out_bytes = TURNS * 2 * row;
    b->head.nwords = 1;
    b->head.codec = &count_codec;
    dcommi_build_tags(b, TURNS * 2 + 1);
    dcomm_operand turns = in(0, 4);
    dcomm_operand counted = scratch(dcommi_build_scratch(b, TURNS), TURNS);
    if (r == 0) {
        step_of(b, 0, DCOMM_STEP_ENCODE, counted, &turns, 1)->word = 0;
        int d = dcommi_loop(b, 0, num(n - 1));
        dcommi_send(b, 0, as_long(counted, 0), dcommi_linear(1, d, 1), num(TURNS * 2),
                    DCOMM_STEP_ASYNC);
        dcommi_end(b, 0);
        dcommi_fence(b, 0);
    } else {
        dcommi_recv(b, 0, counted, num(0), num(TURNS * 2), 0);
        b->lanes[0].steps[0].word = 0;
    }
    int t = dcommi_loop(b, 0, dcommi_word(0));
    int v = dcommi_loop(b, 0, num(2));
    int k = dcommi_loop(b, 0, num(n - 1));
    PROCS_TRUE(t == 0 && v == 1 && k == 2);
    dcomm_expr tag = dcommi_plus_loop(dcommi_linear(0, t, 2), v, 1);
    dcomm_operand src =
        dcommi_at(DCOMM_SPACE_IN, dcommi_plus_loop(dcommi_linear(4, t, 8), v, 4), 4);
    dcommi_send(b, 0, src, dcommi_modular(1, r + 1, k, 1, n), tag, DCOMM_STEP_ASYNC);
    dcomm_expr place =
        dcommi_plus_loop(dcommi_plus_loop(dcommi_linear(0, t, 2 * row), v, row), k, 4);
    dcommi_recv(b, 0, dcommi_at(DCOMM_SPACE_OUT, place, 4), dcommi_modular(1, r - 1, k, -1, n), tag,
                DCOMM_STEP_ASYNC);
    dcommi_end(b, 0);
    dcommi_end(b, 0);
    dcommi_fence(b, 0);
    dcommi_end(b, 0);
}

static void run_loops(world *w)
{
    dcomm_plan *plans[MAX];
    int32_t mine[1 + 2 * TURNS], got[TURNS * 2 * MAX];
    make_all(loops, "loops", w, plans);
    for (int turns = TURNS; turns >= 0; turns--) {
        memset(got, 0xff, sizeof got);
        mine[0] = turns;
        for (int i = 0; i < 2 * TURNS; i++) {
            mine[1 + i] = 100 * w->rank + i;
        }
        RANKS_OK(dcomm_plan_run(w->comm, plans[w->rank], mine, got, NULL, 15, NULL));
        for (int i = 0; i < 2 * TURNS; i++) {
            for (int k = 0; k < w->n - 1; k++) {
                int from = (w->rank - 1 - k + 2 * w->n) % w->n;
                int32_t want = i < 2 * turns ? 100 * from + i : -1;
                PROCS_CHECK(got[i * (w->n - 1) + k] == want, "rank %d of %d, %d turns, [%d][%d]",
                            w->rank, w->n, turns, i, k);
            }
        }
    }
    drop(plans, w->n);
}

/* ---- lanes and ranks that wait for each other by counters ---- */

#define CHUNKS 40
#define CHUNK 600

/* Each rank fills scratch, two slots, from the rank before; a second lane takes it out again and
 * gives the slots back. Data and order go different ways: the data is read out of the peer. */
static void counters(dcommi_builder *b, int r, int n)
{
    b->head.in_bytes = b->head.out_bytes = CHUNKS * CHUNK;
    int64_t slots = dcommi_build_scratch(b, 2 * CHUNK);
    uint16_t full = dcommi_build_counter(b), empty = dcommi_build_counter(b);
    uint16_t taken = dcommi_build_counter(b), slot = dcommi_build_slot(b);
    dcomm_expr next = num((r + 1) % n), before = num((r + n - 1) % n);
    dcommi_expose(b, 0, scratch(slots, 2 * CHUNK), slot, next);
    /* Room in the slots: the reader adds 3 for a chunk; both are free at the start. */
    dcommi_signal(b, 0, empty, num(r), num(6));
    int c = dcommi_loop(b, 0, num(CHUNKS));
    dcommi_await(b, 0, empty, dcommi_linear(3, c, 3));
    dcommi_copy(b, 0,
                dcommi_at(DCOMM_SPACE_SCRATCH,
                          dcommi_plus(dcommi_modular(CHUNK, 0, c, 1, 2), slots), CHUNK),
                dcommi_at(DCOMM_SPACE_IN, dcommi_linear(0, c, CHUNK), CHUNK), 0);
    dcommi_signal(b, 0, full, next, num(1));
    dcommi_end(b, 0);
    c = dcommi_loop(b, 1, num(CHUNKS));
    dcommi_await(b, 1, full, dcommi_linear(1, c, 1));
    dcommi_copy(b, 1, dcommi_at(DCOMM_SPACE_OUT, dcommi_linear(0, c, CHUNK), CHUNK),
                dcommi_peer(before, slot, dcommi_modular(CHUNK, 0, c, 1, 2), CHUNK), 0);
    dcommi_signal(b, 1, empty, before, num(3));
    dcommi_signal(b, 1, taken, num(r), num(1));
    dcommi_end(b, 1);
    /* A third lane doubles what has come, behind the second. */
    c = dcommi_loop(b, 2, num(CHUNKS));
    dcommi_await(b, 2, taken, dcommi_linear(1, c, 1));
    dcomm_operand twice = dcommi_at(DCOMM_SPACE_OUT, dcommi_linear(0, c, CHUNK), CHUNK);
    dcomm_operand both[2] = {twice, twice};
    dcommi_reduce(b, 2, twice, both, 2, 0);
    dcommi_end(b, 2);
    /* Memory stays until it has been read. */
    dcommi_await(b, 0, empty, num(3 * CHUNKS + 6));
}

static void run_counters(world *w)
{
    dcomm_plan *plans[MAX];
    static float mine[CHUNKS * CHUNK / 4], got[CHUNKS * CHUNK / 4];
    make_all(counters, "counters", w, plans);
    for (int again = 0; again < AGAIN; again++) {
        int before = (w->rank + w->n - 1) % w->n;
        for (int i = 0; i < CHUNKS * CHUNK / 4; i++) {
            mine[i] = (float)(i + 7 * w->rank + again);
        }
        RANKS_OK(dcomm_plan_run(w->comm, plans[w->rank], mine, got, NULL, 16, NULL));
        for (int i = 0; i < CHUNKS * CHUNK / 4; i++) {
            PROCS_CHECK(got[i] == 2 * (float)(i + 7 * before + again), "rank %d, element %d",
                        w->rank, i);
        }
    }
    drop(plans, w->n);
}

/* ---- CALL: sub-plans of groups, nested, in a loop ---- */

#define ROUNDS 3
#define GROUPED 512 /* bytes of a round */

typedef struct grouped {
    dcomm_plan *inner[MAX], *middle[MAX], *outer[MAX];
} grouped;

static dcomm_plan *algorithm(const char *name, int r, int n, int64_t bytes)
{
    dcomm_check_spec spec = {
        .coll = DCOMM_COLL_ALLREDUCE, .count = (size_t)bytes / 4, .dtype = DCOMM_F32};
    dcomm_plan *plan = NULL;
    RANKS_OK(dcomm_plan_create(&spec, DCOMM_SUM, r, n, &(dcomm_coll_opts){.algo = name}, &plan));
    return plan;
}

/* Even and odd ranks sum apart, twice (OUT once, then again into the second half); then all ranks
 * sum that by a ring, whose counters and slots lie behind those of this plan. */
static void make_grouped(grouped *g, int r, int n)
{
    int members = (n - r % 2 + 1) / 2;
    int64_t group[MAX], all[MAX];
    dcommi_builder *b = malloc(sizeof *b);
    PROCS_TRUE(b != NULL);
    for (int i = 0; i < n; i++) {
        all[i] = i;
        group[i] = 2 * i + r % 2;
    }
    g->inner[r] = algorithm("recursive_doubling", r / 2, members, GROUPED);
    /* middle: of the group, calls inner by the identity, in a loop over rounds. */
    dcommi_build_begin(b, "middle", r / 2, members, DCOMM_F32, DCOMM_SUM);
    b->head.in_bytes = b->head.out_bytes = ROUNDS * GROUPED;
    const int64_t tags = 8; /* alike on all ranks, whose groups differ in size */
    PROCS_TRUE(g->inner[r]->ntags <= tags);
    PROCS_TRUE(g->inner[r]->ncounters == 0 && g->inner[r]->nslots == 0);
    dcommi_build_tags(b, ROUNDS * tags);
    int64_t at = dcommi_build_table(b, all, (size_t)members);
    int c = dcommi_loop(b, 0, num(ROUNDS));
    dcommi_call(b, 0, g->inner[r], at,
                dcommi_at(DCOMM_SPACE_IN, dcommi_linear(0, c, GROUPED), GROUPED),
                dcommi_at(DCOMM_SPACE_OUT, dcommi_linear(0, c, GROUPED), GROUPED),
                dcommi_linear(0, c, tags));
    dcommi_end(b, 0);
    RANKS_OK(dcommi_build_finish(b, &g->middle[r]));

    static dcomm_plan *rings[MAX];
    rings[r] = algorithm("ring", r, n, ROUNDS * GROUPED);
    dcommi_build_begin(b, "outer", r, n, DCOMM_F32, DCOMM_SUM);
    b->head.in_bytes = ROUNDS * GROUPED;
    b->head.out_bytes = 2 * ROUNDS * GROUPED;
    uint16_t ready = dcommi_build_counter(b);
    int64_t own = dcommi_build_tags(b, ROUNDS * tags), ring = dcommi_build_tags(b, rings[r]->ntags);
    b->head.ncounters += rings[r]->ncounters;
    b->head.nslots += 1 + rings[r]->nslots;
    at = dcommi_build_table(b, group, (size_t)members);
    int64_t everyone = dcommi_build_table(b, all, (size_t)n);
    dcommi_call(b, 0, g->middle[r], at, in(0, ROUNDS * GROUPED), out(0, ROUNDS * GROUPED),
                num(own));
    dcommi_signal(b, 0, ready, num(r), num(1));
    dcommi_await(b, 1, ready, num(1));
    dcomm_step *s = dcommi_call(b, 1, rings[r], everyone, out(0, ROUNDS * GROUPED),
                                out(ROUNDS * GROUPED, ROUNDS * GROUPED), num(ring));
    s->slot = 1;
    s->word = 1;
    RANKS_OK(dcommi_build_finish(b, &g->outer[r]));
    free(b);
}

static void run_grouped(world *w)
{
    grouped g;
    static float mine[ROUNDS * GROUPED / 4], got[2 * ROUNDS * GROUPED / 4];
    dcomm_check_report report;
    const int half = ROUNDS * GROUPED / 4;
    for (int r = 0; r < w->n; r++) {
        make_grouped(&g, r, w->n);
    }
    dcomm_check_spec spec = {.coll = DCOMM_COLL_PLAN, .dtype = DCOMM_F32};
    dcomm_status status =
        dcomm_plan_check((const dcomm_plan *const *)g.outer, w->n, &spec, &report);
    PROCS_CHECK(status == DCOMM_OK, "grouped, %d ranks: %s", w->n, report.message);
    for (int again = 0; again < AGAIN; again++) {
        for (int i = 0; i < half; i++) {
            mine[i] = (float)(i % 50 + w->rank + again);
        }
        RANKS_OK(dcomm_plan_run(w->comm, g.outer[w->rank], mine, got, NULL, 17, NULL));
        for (int i = 0; i < half; i++) {
            float apart = 0, all = 0;
            for (int r = 0; r < w->n; r++) {
                apart += r % 2 == w->rank % 2 ? (float)(i % 50 + r + again) : 0;
            }
            for (int r = 0; r < w->n; r++) { /* each member of a group brings the group's sum */
                all += (float)(i % 50 + r + again) * (float)((w->n - r % 2 + 1) / 2);
            }
            PROCS_CHECK(got[i] == apart && got[half + i] == all,
                        "rank %d of %d, element %d: %g %g, not %g %g", w->rank, w->n, i,
                        (double)got[i], (double)got[half + i], (double)apart, (double)all);
        }
    }
    drop(g.outer, w->n);
    drop(g.middle, w->n);
    drop(g.inner, w->n);
}

/* ---- stages: counts, then data as long as they say, then a farewell ---- */

#define MOST 300 /* floats from one rank to another */

typedef struct staged {
    int rank, n;
    int made, released;
    const dcomm_plan *open[2]; /* the next is made before the one before is given back */
} staged;

static int sent(int from, int to, int again)
{
    return (from * 7 + to * 13 + again * 31) % MOST * (from != (to + again) % 3);
}

static void staged_release(void *user, const dcomm_plan *plan)
{
    staged *s = user;
    PROCS_TRUE(plan != NULL && (plan == s->open[0] || plan == s->open[1]));
    s->open[plan == s->open[1]] = NULL;
    s->released++;
    dcommi_free((void *)(uintptr_t)plan);
}

/* Word f*n + t: floats from f to t, on every rank. */
static const dcomm_plan *staged_data(void *user, const uint64_t *words, uint32_t nwords,
                                     dcomm_status *status);

static const dcomm_plan *staged_end(void *user, const uint64_t *words, uint32_t nwords,
                                    dcomm_status *status)
{
    (void)user;
    (void)words;
    (void)nwords;
    *status = DCOMM_OK;
    return NULL;
}

static const dcomm_plan *staged_bye(void *user, const uint64_t *words, uint32_t nwords,
                                    dcomm_status *status)
{
    staged *s = user;
    dcommi_builder *b = malloc(sizeof *b);
    dcomm_plan *plan = NULL;
    (void)words;
    PROCS_TRUE(b != NULL && nwords == (uint32_t)(s->n * s->n));
    dcommi_build_begin(b, "bye", s->rank, s->n, DCOMM_F32, DCOMM_SUM);
    b->head.nwords = nwords;
    b->head.out_bytes = 8;
    uint16_t bye = dcommi_build_counter(b);
    dcommi_signal(b, 0, bye, num(DCOMM_ALL_PEERS), num(1));
    dcommi_await(b, 0, bye, num(s->n - 1));
    dcommi_copy(b, 0, out(0, 8), word(1), 0); /* words live from stage to stage */
    b->head.next = staged_end;
    b->head.release = staged_release;
    b->head.next_user = s;
    *status = dcommi_build_finish(b, &plan);
    free(b);
    s->made++;
    PROCS_TRUE(s->open[0] == NULL || s->open[1] == NULL);
    s->open[s->open[0] != NULL] = plan;
    return plan;
}

static const dcomm_plan *staged_data(void *user, const uint64_t *words, uint32_t nwords,
                                     dcomm_status *status)
{
    staged *s = user;
    int n = s->n, r = s->rank;
    dcommi_builder *b = malloc(sizeof *b);
    dcomm_plan *plan = NULL;
    PROCS_TRUE(b != NULL && nwords == (uint32_t)(n * n));
    dcommi_build_begin(b, "data", r, n, DCOMM_F32, DCOMM_SUM);
    b->head.in_bytes = 4 * MOST * n;
    b->head.out_bytes = 8 + 4 * MOST * n;
    b->head.nwords = nwords;
    dcommi_build_tags(b, 1);
    int64_t at = 8; /* packed in rank order */
    for (int p = 0; p < n; p++) {
        int64_t come = 4 * (int64_t)words[p * n + r], go = 4 * (int64_t)words[r * n + p];
        come = come > 4 * MOST ? 4 * MOST : come; /* the checker tries words of its own */
        go = go > 4 * MOST ? 4 * MOST : go;
        if (p == r) {
            dcommi_copy(b, 0, out(at, go), in(4 * MOST * p, go), 0);
        } else {
            dcommi_send(b, 0, in(4 * MOST * p, go), num(p), num(0), DCOMM_STEP_ASYNC);
            dcommi_recv(b, 1, out(at, come), num(p), num(0), DCOMM_STEP_ASYNC);
        }
        at += come;
    }
    b->head.next = staged_bye;
    b->head.release = staged_release;
    b->head.next_user = s;
    *status = dcommi_build_finish(b, &plan);
    free(b);
    s->made++;
    PROCS_TRUE(s->open[0] == NULL || s->open[1] == NULL);
    s->open[s->open[0] != NULL] = plan;
    return plan;
}

static dcomm_plan *staged_first(staged *s)
{
    int n = s->n, r = s->rank;
    dcommi_builder *b = malloc(sizeof *b);
    dcomm_plan *plan = NULL;
    PROCS_TRUE(b != NULL);
    dcommi_build_begin(b, "counts", r, n, DCOMM_F32, DCOMM_SUM);
    b->head.in_bytes = 4 * MOST * n + 8 * n; /* the counts lie behind the data */
    b->head.out_bytes = 8 + 4 * MOST * n;
    b->head.nwords = (uint32_t)(n * n);
    dcommi_build_tags(b, 1);
    dcomm_operand mine = in(4 * MOST * n, 8 * n);
    dcommi_copy(b, 0, dcommi_span(DCOMM_SPACE_WORDS, 8 * n * r, 8 * n), mine, 0);
    for (int p = 0; p < n; p++) {
        if (p != r) {
            dcommi_send(b, 0, mine, num(p), num(0), DCOMM_STEP_ASYNC);
            dcommi_recv(b, 0, dcommi_span(DCOMM_SPACE_WORDS, 8 * n * p, 8 * n), num(p), num(0),
                        DCOMM_STEP_ASYNC);
        }
    }
    b->head.next = staged_data;
    b->head.release = staged_release;
    b->head.next_user = s;
    RANKS_OK(dcommi_build_finish(b, &plan));
    free(b);
    return plan;
}

static void run_staged(world *w)
{
    int n = w->n, r = w->rank;
    staged all[MAX];
    dcomm_plan *plans[MAX];
    dcomm_check_report report;
    uint8_t *mine = malloc((size_t)(4 * MOST + 8) * MAX), *got = malloc(8 + 4 * MOST * MAX);
    PROCS_TRUE(mine != NULL && got != NULL);
    for (int p = 0; p < n; p++) {
        all[p] = (staged){.rank = p, .n = n};
        plans[p] = staged_first(&all[p]);
    }
    dcomm_check_spec spec = {.coll = DCOMM_COLL_PLAN, .dtype = DCOMM_F32};
    dcomm_status status = dcomm_plan_check((const dcomm_plan *const *)plans, n, &spec, &report);
    PROCS_CHECK(status == DCOMM_OK, "staged, %d ranks: %s", n, report.message);
    PROCS_TRUE(all[r].made == all[r].released);
    int made = all[r].made;
    for (int again = 0; again < AGAIN; again++) {
        for (int p = 0; p < n; p++) {
            uint64_t count = (uint64_t)sent(r, p, again);
            memcpy(mine + 4 * MOST * n + 8 * p, &count, 8);
            for (int i = 0; i < MOST; i++) {
                float x = (float)(i + 1000 * r + 100000 * p + again);
                memcpy(mine + 4 * (MOST * p + i), &x, 4);
            }
        }
        memset(got, 0, 8 + 4 * MOST * MAX);
        RANKS_OK(dcomm_plan_run(w->comm, plans[r], mine, got, NULL, 18, NULL));
        size_t at = 8;
        for (int p = 0; p < n; p++) {
            for (int i = 0; i < sent(p, r, again); i++, at += 4) {
                float x, want = (float)(i + 1000 * p + 100000 * r + again);
                memcpy(&x, got + at, 4);
                PROCS_CHECK(x == want, "rank %d of %d from %d, element %d: %g, not %g", r, n, p, i,
                            (double)x, (double)want);
            }
        }
        uint64_t second;
        memcpy(&second, got, 8);
        PROCS_TRUE(second == (uint64_t)(n > 1 ? sent(0, 1, again) : 0) || n == 1);
        PROCS_CHECK(all[r].made == made + 2 * (again + 1) && all[r].made == all[r].released,
                    "%d made, %d released", all[r].made, all[r].released);
    }
    free(mine);
    free(got);
    drop(plans, n);
}

/* ---- all of them, on each kind of place ---- */

static int conform(int rank, int n, procs_shared *s, void *arg)
{
    ranks_settle(rank, n, *(ranks_place *)arg);
    world w = {.rank = rank, .n = n, .comm = ranks_join(rank, n, s, NULL)};
    run_relay(&w);
    run_compressed(&w);
    run_exposed(&w);
    run_folded(&w);
    run_loops(&w);
    run_counters(&w);
    run_grouped(&w);
    run_staged(&w);
    return ranks_leave(&w.comm);
}

static void on(int n, ranks_place place)
{
    int ended[PROCS_MAX];
    cr_assert_eq(procs_run(n, 50, conform, &place, ended), 0, "%d ranks, %s", n,
                 ranks_place_name(place));
}

/* ---- plans that nobody has checked ---- */

static int fault;

static void bad(dcommi_builder *b, int r, int n)
{
    b->head.in_bytes = b->head.out_bytes = 64;
    b->head.nwords = 1;
    b->head.ncounters = 1;
    b->head.nslots = 1;
    dcommi_build_tags(b, 1);
    if (r > 0) { /* the others wait for what does not come */
        dcommi_recv(b, 0, out(0, 8), num(0), num(0), 0);
        return;
    }
    dcomm_step *s;
    switch (fault) {
    case 0:
        dcommi_copy(b, 0, out(60, 8), in(0, 8), 0);
        break;
    case 1:
        dcommi_send(b, 0, in(INT64_MAX - 4, 8), num(1), num(0), 0);
        break;
    case 2:
        dcommi_send(b, 0, in(0, 8), num(0), num(0), 0);
        break;
    case 3:
        dcommi_send(b, 0, in(0, 8), num(n), num(0), 0);
        break;
    case 4:
        dcommi_recv(b, 0, out(0, 8), num(1), num(0), 0);
        b->lanes[0].steps[0].word = 1;
        break;
    case 5:
        dcommi_await(b, 0, 1, num(1));
        break;
    case 6:
        dcommi_await(b, 0, 0, num(-1));
        break;
    case 7:
        dcommi_expose(b, 0, in(0, 8), 1, num(DCOMM_ALL_PEERS));
        break;
    case 8:
        s = dcommi_build_step(b, 0, DCOMM_STEP_COMPUTE);
        s->dst = out(0, 8);
        break;
    default:
        s = dcommi_build_step(b, 0, DCOMM_STEP_ENCODE);
        s->dst = out(0, 8);
        dcommi_build_sources(b, s, &(dcomm_operand){.space = DCOMM_SPACE_IN}, 1);
        break;
    }
}

static int refuse(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    ranks_settle(rank, n, RANKS_LOCAL);
    dcomm_comm *comm = ranks_join(rank, n, s, NULL);
    dcomm_plan *plan = make(bad, "bad", rank, n);
    uint8_t data[64] = {0}, got[64];
    dcomm_status status = dcomm_plan_run(comm, plan, data, got, NULL, 19, NULL);
    PROCS_CHECK(status == DCOMM_ERR_PLAN, "fault %d, rank %d: %s: %s", fault, rank,
                dcomm_status_name(status), dcomm_last_error());
    PROCS_CHECK(strstr(dcomm_last_error(), "rank 0, lane 0, step 0") != NULL, "%s",
                dcomm_last_error());
    plan->nranks++;
    PROCS_TRUE(dcomm_plan_run(comm, plan, data, got, NULL, 19, NULL) == DCOMM_ERR_INVALID);
    PROCS_TRUE(dcomm_plan_run(comm, NULL, data, got, NULL, 19, NULL) == DCOMM_ERR_INVALID);
    dcommi_free(plan);
    return ranks_leave(&comm);
}

Test(conformance, refuses, .timeout = 60)
{
    int ended[PROCS_MAX];
    for (fault = 0; fault < 10; fault++) {
        cr_assert_eq(procs_run(2, 20, refuse, NULL, ended), 0, "fault %d", fault);
    }
}

#define PLACE(name, place)                 \
    Test(conformance, name, .timeout = 60) \
    {                                      \
        for (int n = 2; n <= 5; n++) {     \
            on(n, place);                  \
        }                                  \
    }
PLACE(one_host, RANKS_LOCAL)
PLACE(by_message, RANKS_MESSAGE)
PLACE(hosts, RANKS_HOSTS)
PLACE(pairs, RANKS_PAIRS)
