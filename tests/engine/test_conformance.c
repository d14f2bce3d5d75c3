/* test_conformance.c - hand-written plans through the public call on the real engine: every kind
 * of step but CALL, run-time lengths, loops, lanes; on one host, by message, and between hosts.
 * The checker accepts each plan first. */
#define _GNU_SOURCE
#include "conformance.h"

/* ---- ENCODE, run-time lengths, DECODE: a file passed on from rank to rank ---- */

#define FILE_BYTES 30000

static dcomm_status pack(void *user, const dcomm_codec_place *place, const void *src,
                         size_t src_len, void *dst, size_t dst_len, size_t *encoded)
{
    const uint8_t *from = src;
    uint8_t *to = dst;
    size_t at = 0;
    (void)user, (void)place;
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

static dcomm_status unpack(void *user, const dcomm_codec_place *place, const void *const *src,
                           const size_t *lengths, size_t nsrc, void *dst, size_t dst_len)
{
    const uint8_t *from = src[0];
    size_t src_len = lengths[0];
    uint8_t *to = dst;
    size_t at = 0;
    (void)user, (void)place;
    for (size_t i = 0; i + 1 < src_len && nsrc == 1; i += 2) {
        if (from[i] > dst_len - at) {
            return DCOMM_ERR_CORRUPT;
        }
        memset(to + at, from[i + 1], from[i]);
        at += from[i];
    }
    return at == dst_len && src_len % 2 == 0 ? DCOMM_OK : DCOMM_ERR_CORRUPT;
}

static const dcomm_plan_codec runs = {"runs", pack, unpack, NULL};

static void relay(dcomm_builder *b, int r, int n)
{
    b->head.in_bytes = r == 0 ? FILE_BYTES : 0;
    b->head.out_bytes = FILE_BYTES;
    b->head.nwords = 1;
    b->head.codec = &runs;
    dcomm_operand packed = scratch(dcomm_build_scratch(b, 2 * FILE_BYTES), 2 * FILE_BYTES);
    dcomm_operand file = in(0, FILE_BYTES);
    dcomm_build_tags(b, 1);
    if (r == 0) {
        step_of(b, 0, DCOMM_STEP_ENCODE, packed, &file, 1)->word = 0;
    } else {
        dcomm_build_recv(b, 0, packed, num(r - 1), num(0), 0);
        b->lanes[0].steps[0].word = 0;
    }
    packed = as_long(packed, 0);
    if (r + 1 < n) {
        dcomm_build_send(b, 0, packed, num(r + 1), num(0), DCOMM_STEP_ASYNC);
    }
    step_of(b, 0, DCOMM_STEP_DECODE, out(0, FILE_BYTES), &packed, 1);
}

static void run_relay(world *w)
{
    dcomm_plan *plans[MAX];
    uint8_t *file = malloc(FILE_BYTES), *got = malloc(FILE_BYTES);
    PROCS_TRUE(file != NULL && got != NULL);
    make_all(relay, "relay", w, plans);
    for (int again = 0; again < AGAIN; again++) { /* few bytes to far beyond eager */
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

/* ---- ENCODE, DECODE, COMPUTE: a compressed sum that keeps its rounding errors ---- */

#define GRADS 3000

/* Encode floats as their upper halves, without the zeros at the end. */
static dcomm_status cut(void *user, const dcomm_codec_place *place, const void *src, size_t src_len,
                        void *dst, size_t dst_len, size_t *encoded)
{
    size_t n = src_len / 4;
    (void)user, (void)place;
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

static dcomm_status uncut(void *user, const dcomm_codec_place *place, const void *const *src,
                          const size_t *src_len, size_t nsrc, void *dst, size_t dst_len)
{
    dcomm_status status = widen(src[0], src_len[0], dst, dst_len, false);
    (void)user, (void)place;
    for (size_t i = 1; i < nsrc && status == DCOMM_OK; i++) {
        status = widen(src[i], src_len[i], dst, dst_len, true);
    }
    return status;
}

static const dcomm_plan_codec halves = {"halves", cut, uncut, NULL};

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

/* IN holds a gradient and what the last run held back. OUT gets the sum and what this run holds
 * back. */
static void compressed(dcomm_builder *b, int r, int n)
{
    const int64_t bytes = 4 * GRADS, half = 2 * GRADS;
    b->head.in_bytes = b->head.out_bytes = 2 * bytes;
    b->head.nwords = (uint32_t)n;
    b->head.codec = &halves;
    b->head.kernels = kernels;
    b->head.nkernels = 2;
    b->head.kernel_user = &one;
    dcomm_operand wanted = scratch(dcomm_build_scratch(b, bytes), bytes);
    dcomm_operand decoded = scratch(dcomm_build_scratch(b, bytes), bytes);
    int64_t slots = dcomm_build_scratch(b, n * half);
    dcomm_build_tags(b, 1);
    dcomm_operand sum[2] = {in(0, bytes), in(bytes, bytes)}, theirs[MAX];
    step_of(b, 0, DCOMM_STEP_COMPUTE, wanted, sum, 2)->kernel = 0;
    dcomm_operand mine = scratch(slots + r * half, half);
    step_of(b, 0, DCOMM_STEP_ENCODE, mine, &wanted, 1)->word = r;
    mine = as_long(mine, r);
    for (int p = 0; p < n; p++) {
        if (p != r) {
            dcomm_build_send(b, 0, mine, num(p), num(0), DCOMM_STEP_ASYNC);
            dcomm_build_recv(b, 1, scratch(slots + p * half, half), num(p), num(0),
                             DCOMM_STEP_ASYNC);
            b->lanes[1].steps[b->lanes[1].count - 1].word = p;
        }
    }
    step_of(b, 0, DCOMM_STEP_DECODE, decoded, &mine, 1);
    dcomm_operand difference[2] = {wanted, decoded};
    step_of(b, 0, DCOMM_STEP_COMPUTE, out(bytes, bytes), difference, 2)->kernel = 1;
    /* Lane 1 waits for its messages and for lane 0's encoding, then folds in rank order. */
    uint16_t encoded = dcomm_build_counter(b);
    dcomm_build_signal(b, 0, encoded, num(r), num(2));
    dcomm_build_fence(b, 1);
    dcomm_build_wait(b, 1, encoded, num(2));
    for (int p = 0; p < n; p++) {
        theirs[p] = as_long(scratch(slots + p * half, half), p);
    }
    step_of(b, 1, DCOMM_STEP_DECODE, out(0, bytes), theirs, (size_t)n);
}

static float grad(int rank, int again, int i)
{
    /* Rank 1 has only zeros in the second run, and every rank's gradient ends in zeros. */
    return (rank == 1 && again == 1) || i >= GRADS - 10 * rank
               ? 0
               : (float)((i * 37 + rank * 11 + again * 5) % 1000) / 999.0f;
}

static void run_compressed(world *w)
{
    dcomm_plan *plans[MAX];
    static float mine[2 * GRADS], got[2 * GRADS], held[MAX][GRADS], want[GRADS];
    make_all(compressed, "compressed", w, plans);
    for (int again = 0; again < AGAIN; again++) {
        for (int i = 0; i < GRADS; i++) {
            mine[i] = grad(w->rank, again, i);
            want[i] = 0;
            for (int r = 0; r < w->n; r++) {
                float x = grad(r, again, i) + held[r][i], kept = 0;
                memcpy((uint8_t *)&kept + 2, (uint8_t *)&x + 2, 2);
                want[i] += kept;
                held[r][i] = x - kept;
            }
        }
        RANKS_OK(dcomm_plan_run(w->comm, plans[w->rank], mine, got, NULL, 12, NULL));
        PROCS_CHECK(memcmp(got, want, sizeof want) == 0, "rank %d, run %d: sum", w->rank, again);
        memcpy(mine + GRADS, got + GRADS, sizeof want);
        PROCS_CHECK(memcmp(mine + GRADS, held[w->rank], sizeof want) == 0,
                    "rank %d, run %d: residual", w->rank, again);
    }
    drop(plans, w->n);
}

/* ---- EXPOSE, REDUCE over ranks, COPY from peers ---- */

#define BLOCK 40000 /* bytes: several read blocks where there are many ranks, an odd end */

static void exposed(dcomm_builder *b, int r, int n)
{
    b->head.in_bytes = n * BLOCK;
    b->head.out_bytes = (n + 1) * BLOCK;
    uint16_t inputs = dcomm_build_slot(b), results = dcomm_build_slot(b);
    uint16_t read = dcomm_build_counter(b);
    dcomm_build_expose(b, 0, in(0, n * BLOCK), inputs, num(DCOMM_ALL_PEERS));
    /* Block r of this rank and of all others, starting with rank r+1, each at offset r*BLOCK. */
    dcomm_operand pieces[2] = {in(r * BLOCK, BLOCK), dcomm_exposed(num(r + 1 < n ? r + 1 : 0),
                                                                   inputs, num(r * BLOCK), BLOCK)};
    pieces[1].repeat = (uint32_t)(n - 1);
    dcomm_build_reduce(b, 0, out(r * BLOCK, BLOCK), pieces, n > 1 ? 2 : 1, DCOMM_STEP_FINAL);
    dcomm_build_expose(b, 0, out(r * BLOCK, BLOCK), results, num(DCOMM_ALL_PEERS));
    int d = dcomm_build_loop(b, 0, num(n - 1));
    dcomm_expr peer = dcomm_modular(1, r + 1, d, 1, n);
    dcomm_build_copy(b, 0, dcomm_at(DCOMM_SPACE_OUT, dcomm_modular(BLOCK, r + 1, d, 1, n), BLOCK),
                     dcomm_exposed(peer, results, num(0), BLOCK), DCOMM_STEP_ASYNC);
    dcomm_build_end(b, 0);
    dcomm_build_fence(b, 0);
    /* Read pieces at a different place in each rank: the p-th piece is 4 bytes at offset 4*p of
     * rank p. */
    dcomm_operand steps = dcomm_exposed(num(0), inputs, num(0), 4);
    steps.repeat = (uint32_t)r;
    steps.stride = 4;
    if (r > 0) {
        dcomm_build_reduce(b, 0, out(n * BLOCK, 4), &steps, 1, 0);
    }
    dcomm_build_signal(b, 0, read, num(DCOMM_ALL_PEERS), num(1));
    dcomm_build_wait(b, 0, read, num(n - 1));
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

static void folded(dcomm_builder *b, int r, int n)
{
    b->head.in_bytes = 2 * PART;
    b->head.out_bytes = 2 * PART;
    dcomm_operand stage = scratch(dcomm_build_scratch(b, PART), PART);
    dcomm_operand part = scratch(dcomm_build_scratch(b, PART), PART);
    dcomm_build_tags(b, 2);
    if (r == 0) {
        dcomm_build_copy(b, 0, part, in(0, PART), 0);
    } else {
        dcomm_build_copy(b, 0, part, in(PART, PART), 0);
        dcomm_step *s = dcommi_build_step(b, 0, DCOMM_STEP_RECV_REDUCE);
        dcomm_operand src[3] = {in(0, PART), dcomm_msg(), part};
        s->dst = part; /* same place as its last operand */
        s->stage = stage;
        s->peer = num(r - 1);
        s->flags = r + 1 == n ? DCOMM_STEP_FINAL : 0;
        dcommi_build_sources(b, s, src, 3);
    }
    if (r + 1 < n) {
        dcomm_build_send(b, 0, part, num(r + 1), num(0), 0);
        dcomm_build_recv(b, 0, out(0, PART), num((r + n - 1) % n), num(1), 0);
    } else {
        dcomm_build_copy(b, 0, out(0, PART), part, 0);
    }
    if (n > 1 && r + 2 != n) { /* around the ring, from rank n-1 to rank n-2 */
        dcomm_build_send(b, 0, out(0, PART), num((r + 1) % n), num(1), 0);
    }
    dcomm_operand three[3] = {in(0, PART), in(PART, PART), in(0, PART)};
    dcomm_build_reduce(b, 0, out(PART, PART), three, 3, 0);
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

#define TURNS 6 /* most trips of the outer loop */

/* Encode as many bytes as the first number says: a bounded length that is known only at run
 * time. */
static dcomm_status count_out(void *user, const dcomm_codec_place *place, const void *src,
                              size_t src_len, void *dst, size_t dst_len, size_t *encoded)
{
    int32_t turns;
    (void)user, (void)place;
    memcpy(&turns, src, sizeof turns);
    if (src_len != sizeof turns || turns < 0 || (size_t)turns > dst_len) {
        return DCOMM_ERR_INTERNAL;
    }
    memset(dst, 0, dst_len);
    *encoded = (size_t)turns;
    return DCOMM_OK;
}

static const dcomm_plan_codec count_codec = {"count", count_out, uncut, NULL};

/* Turn t, way w: rank r sends 4 bytes to each rank (r + 1 + k) mod n, which puts them at
 * [t][w][k]. */
static void loops(dcomm_builder *b, int r, int n)
{
    int64_t row = 4 * (n - 1);
    b->head.in_bytes = 4 + TURNS * 2 * 4;
    b->head.out_bytes = TURNS * 2 * row;
    b->head.nwords = 1;
    b->head.codec = &count_codec;
    dcomm_build_tags(b, TURNS * 2 + 1);
    dcomm_operand turns = in(0, 4);
    dcomm_operand counted = scratch(dcomm_build_scratch(b, TURNS), TURNS);
    if (r == 0) {
        step_of(b, 0, DCOMM_STEP_ENCODE, counted, &turns, 1)->word = 0;
        int d = dcomm_build_loop(b, 0, num(n - 1));
        dcomm_build_send(b, 0, as_long(counted, 0), dcomm_linear(1, d, 1), num(TURNS * 2),
                         DCOMM_STEP_ASYNC);
        dcomm_build_end(b, 0);
        dcomm_build_fence(b, 0);
    } else {
        dcomm_build_recv(b, 0, counted, num(0), num(TURNS * 2), 0);
        b->lanes[0].steps[0].word = 0;
    }
    int t = dcomm_build_loop(b, 0, dcommi_word(0));
    int v = dcomm_build_loop(b, 0, num(2));
    int k = dcomm_build_loop(b, 0, num(n - 1));
    PROCS_TRUE(t == 0 && v == 1 && k == 2);
    dcomm_expr tag = dcomm_plus_loop(dcomm_linear(0, t, 2), v, 1);
    dcomm_operand src = dcomm_at(DCOMM_SPACE_IN, dcomm_plus_loop(dcomm_linear(4, t, 8), v, 4), 4);
    dcomm_build_send(b, 0, src, dcomm_modular(1, r + 1, k, 1, n), tag, DCOMM_STEP_ASYNC);
    dcomm_expr place = dcomm_plus_loop(dcomm_plus_loop(dcomm_linear(0, t, 2 * row), v, row), k, 4);
    dcomm_build_recv(b, 0, dcomm_at(DCOMM_SPACE_OUT, place, 4), dcomm_modular(1, r - 1, k, -1, n),
                     tag, DCOMM_STEP_ASYNC);
    dcomm_build_end(b, 0);
    dcomm_build_end(b, 0);
    dcomm_build_fence(b, 0);
    dcomm_build_end(b, 0);
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

/* Each rank fills two slots in scratch; a second lane of the next rank reads them and frees the
 * slots. Only signals are sent: the reader copies the data out of its peer. */
static void counters(dcomm_builder *b, int r, int n)
{
    b->head.in_bytes = b->head.out_bytes = CHUNKS * CHUNK;
    int64_t slots = dcomm_build_scratch(b, 2 * CHUNK);
    uint16_t full = dcomm_build_counter(b), empty = dcomm_build_counter(b);
    uint16_t taken = dcomm_build_counter(b), slot = dcomm_build_slot(b);
    dcomm_expr next = num((r + 1) % n), before = num((r + n - 1) % n);
    dcomm_build_expose(b, 0, scratch(slots, 2 * CHUNK), slot, next);
    /* Count free slots: the reader adds 3 for each chunk it has read; both slots are free at the
     * start. */
    dcomm_build_signal(b, 0, empty, num(r), num(6));
    int c = dcomm_build_loop(b, 0, num(CHUNKS));
    dcomm_build_wait(b, 0, empty, dcomm_linear(3, c, 3));
    dcomm_build_copy(
        b, 0,
        dcomm_at(DCOMM_SPACE_SCRATCH, dcomm_plus(dcomm_modular(CHUNK, 0, c, 1, 2), slots), CHUNK),
        dcomm_at(DCOMM_SPACE_IN, dcomm_linear(0, c, CHUNK), CHUNK), 0);
    dcomm_build_signal(b, 0, full, next, num(1));
    dcomm_build_end(b, 0);
    c = dcomm_build_loop(b, 1, num(CHUNKS));
    dcomm_build_wait(b, 1, full, dcomm_linear(1, c, 1));
    dcomm_build_copy(b, 1, dcomm_at(DCOMM_SPACE_OUT, dcomm_linear(0, c, CHUNK), CHUNK),
                     dcomm_exposed(before, slot, dcomm_modular(CHUNK, 0, c, 1, 2), CHUNK), 0);
    dcomm_build_signal(b, 1, empty, before, num(3));
    dcomm_build_signal(b, 1, taken, num(r), num(1));
    dcomm_build_end(b, 1);
    /* A third lane doubles the chunks that the second lane has read. */
    c = dcomm_build_loop(b, 2, num(CHUNKS));
    dcomm_build_wait(b, 2, taken, dcomm_linear(1, c, 1));
    dcomm_operand twice = dcomm_at(DCOMM_SPACE_OUT, dcomm_linear(0, c, CHUNK), CHUNK);
    dcomm_operand both[2] = {twice, twice};
    dcomm_build_reduce(b, 2, twice, both, 2, 0);
    dcomm_build_end(b, 2);
    /* Scratch must stay valid until the next rank has read it. */
    dcomm_build_wait(b, 0, empty, num(3 * CHUNKS + 6));
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
    return ranks_leave(&w.comm);
}

PLACES(conformance, conform)
