/* test_coded_halves.c - compressed reduce-scatter and all-gather between processes: the result is
 * what the codec's own functions compute, and messages have the bytes of their encodings. */
#define _GNU_SOURCE
#include "coded_ranks.h"

#include <inttypes.h>

enum { CHUNK = 4096, IN_CHUNK = CHUNK / 4, MOST = 9000, RANKS = 4, SEED = 5 };

static const char spec[] = "qsgd:bits=4";

/* Blocks of one rank each; one is empty, one is longer than several chunks. */
static const size_t listed[RANKS] = {5000, 0, 3001, 999};

static float *floats(size_t count)
{
    float *x = calloc(count + 1, sizeof *x);
    PROCS_TRUE(x != NULL);
    return x;
}

/* Return the elements of a chunk: blocks are cut into as few equal chunks as CHUNK allows, at whole
 * elements where they are this short. */
static size_t chunk_of(size_t longest)
{
    size_t chunks = (4 * longest + CHUNK - 1) / CHUNK;
    return (longest + chunks - 1) / chunks;
}

/* Encode and decode a block of rank's tensor chunk by chunk, as messages carry it; `x` is the
 * block, which begins at element `first`. Return the bytes of the encodings. */
static size_t by_hand(const dcomm_codec *codec, int rank, uint64_t step, const float *x,
                      size_t first, size_t count, size_t chunk, bool add, float *y)
{
    static unsigned char wire[8 * IN_CHUNK + 1024];
    size_t all = 0;
    for (size_t at = 0; at < count; at += chunk) {
        size_t n = count - at < chunk ? count - at : chunk, bytes;
        dcomm_codec_key key = {
            .seed = SEED, .step = step, .first = first + at, .rank = (uint32_t)rank};
        RANKS_OK(dcomm_encode(codec, x + at, n, &key, wire, sizeof wire, &bytes, NULL, NULL));
        RANKS_OK(add ? dcomm_decode_add(codec, wire, bytes, y + at, n)
                     : dcomm_decode(codec, wire, bytes, y + at, n));
        all += bytes;
    }
    return all;
}

static uint64_t sent(dcomm_comm *comm)
{
    dcomm_stats stats;
    RANKS_OK(dcomm_comm_get_stats(comm, &stats));
    return stats.bytes_sent;
}

/* Compare all forms of both calls with the codec's functions, bit for bit. */
static int values(int rank, int n, procs_shared *shared, void *arg)
{
    (void)arg;
    ranks_settle(rank, n, RANKS_LOCAL);
    dcomm_comm *comm = ranks_join(rank, n, shared, NULL);
    dcomm_codec *codec = make_codec(spec);
    float *x = floats(MOST * RANKS), *y = floats(MOST * RANKS), *z = floats(MOST * RANKS);
    for (int k = 0; k < 16; k++) {
        const bool gathers = k & 1, lists = k & 2, in_place = k & 4, average = k & 8;
        size_t count[RANKS], at[RANKS], all = 0;
        for (int r = 0; r < n; r++) {
            count[r] = lists ? listed[r] : 1500;
            at[r] = all;
            all += count[r];
        }
        const size_t chunk = chunk_of(count[0]); /* the longest */
        const uint64_t step = (uint64_t)k + 1;
        dcomm_coll_opts opts = {
            .codec = codec, .codec_seed = SEED, .codec_step = step, .chunk_bytes = CHUNK};
        const dcomm_op op = average ? DCOMM_AVG : DCOMM_SUM;
        const size_t own = at[rank], mine = count[rank];
        memset(y, 0x5a, 4 * (all + 1));
        size_t bytes = 0;
        normal_gradient(x, all, rank, k);
        for (int r = 0; r < n && !gathers; r++) {
            if (r != rank) {
                bytes += by_hand(codec, rank, step, x + at[r], at[r], count[r], chunk, false, z);
            }
        }
        bytes = gathers ? (size_t)(n - 1) *
                              by_hand(codec, rank, step, x + own, own, mine, chunk, false, z)
                        : bytes;
        const uint64_t before = sent(comm);
        if (gathers) {
            memcpy(y + own, x + own, 4 * mine);
            const float *from = in_place ? y + own : x + own;
            RANKS_OK(lists ? dcomm_allgatherv(comm, from, y, count, NULL, DCOMM_F32, &opts)
                           : dcomm_allgather(comm, from, y, count[0], DCOMM_F32, &opts));
        } else {
            const void *from = in_place ? memcpy(y, x, 4 * all) : x;
            float *to = in_place ? y + own : y;
            RANKS_OK(lists ? dcomm_reduce_scatterv(comm, from, to, count, DCOMM_F32, op, &opts)
                           : dcomm_reduce_scatter(comm, from, to, count[0], DCOMM_F32, op, &opts));
        }
        const uint64_t moved = sent(comm) - before;
        memset(z, 0, 4 * (all + 1));
        for (int r = 0; r < n; r++) {
            float *theirs = floats(all);
            normal_gradient(theirs, all, r, k);
            if (gathers) {
                by_hand(codec, r, step, theirs + at[r], at[r], count[r], chunk, false, z + at[r]);
            } else {
                by_hand(codec, r, step, theirs + own, own, mine, chunk, r > 0, z);
            }
            free(theirs);
        }
        for (size_t i = 0; i < mine && !gathers && average; i++) {
            z[i] /= (float)n;
        }
        const float *got = gathers || !in_place ? y : y + own;
        PROCS_CHECK(memcmp(got, z, 4 * (gathers ? all : mine)) == 0,
                    "case %d, rank %d: not what the codec computes", k, rank);
        PROCS_CHECK(moved == bytes, "case %d, rank %d: %" PRIu64 " bytes, encodings have %zu", k,
                    rank, moved, bytes);
    }
    free(x);
    free(y);
    free(z);
    dcomm_codec_destroy(&codec);
    return ranks_leave(&comm);
}

Test(coded_halves, are_what_the_codec_computes, .timeout = 60)
{
    run(RANKS, values, NULL);
}

/* ---- error feedback ---- */

/* A reduce-scatter with states equals what the states' own functions encode. */
static int feedback(int rank, int n, procs_shared *shared, void *arg)
{
    enum { COUNT = 6000 };
    static unsigned char wire[8 * COUNT];
    (void)arg;
    ranks_settle(rank, n, RANKS_LOCAL);
    dcomm_comm *comm = ranks_join(rank, n, shared, NULL);
    dcomm_codec *codec = make_codec(spec);
    const size_t block = COUNT / (size_t)n;
    const dcomm_feedback_opts with = {.seed = 3, .scale = true};
    dcomm_feedback *own = NULL, *all[RANKS] = {NULL};
    float *x = floats(COUNT), *y = floats(COUNT), *z = floats(COUNT);
    RANKS_OK(dcomm_feedback_create(codec, COUNT, &with, &own));
    for (int r = 0; r < n; r++) {
        RANKS_OK(dcomm_feedback_create(codec, COUNT, &with, &all[r]));
    }
    for (int step = 0; step < 4; step++) {
        const dcomm_coll_opts opts = {.feedback = own};
        normal_gradient(x, COUNT, rank, step);
        RANKS_OK(dcomm_reduce_scatter(comm, x, y, block, DCOMM_F32, DCOMM_SUM, &opts));
        for (int r = 0; r < n; r++) {
            normal_gradient(x, COUNT, r, step);
            const dcomm_feedback_step begins = {.x = x, .rank = (uint32_t)r, .nranks = (uint32_t)n};
            RANKS_OK(dcomm_feedback_begin(all[r], &begins));
            for (int q = 0; q < n; q++) {
                size_t bytes;
                RANKS_OK(dcomm_feedback_encode(all[r], (size_t)q * block, block, wire, sizeof wire,
                                               &bytes, NULL));
                if (q == rank) {
                    RANKS_OK(r == 0 ? dcomm_decode(codec, wire, bytes, z, block)
                                    : dcomm_decode_add(codec, wire, bytes, z, block));
                }
            }
            RANKS_OK(dcomm_feedback_commit(all[r]));
        }
        PROCS_CHECK(memcmp(y, z, 4 * block) == 0, "step %d of rank %d differs", step, rank);
    }
    for (int r = 0; r < n; r++) {
        dcomm_feedback_destroy(&all[r]);
    }
    dcomm_feedback_destroy(&own);
    free(x);
    free(y);
    free(z);
    dcomm_codec_destroy(&codec);
    return ranks_leave(&comm);
}

Test(coded_halves, keep_what_the_codec_drops, .timeout = 60)
{
    run(RANKS, feedback, NULL);
}

/* ---- types ---- */

/* Small whole numbers pass bf16 unchanged, whatever the caller's type is. What lies between the
 * blocks of an all-gather-v stays. */
static int types(int rank, int n, procs_shared *shared, void *arg)
{
    enum { BLOCK = 1000, APART = 1007, ROOM = 5000 };
    static double in[ROOM], out[ROOM];
    static const dcomm_dtype dtypes[] = {DCOMM_F64, DCOMM_F16, DCOMM_BF16, DCOMM_F32};
    (void)arg;
    ranks_settle(rank, n, RANKS_LOCAL);
    dcomm_comm *comm = ranks_join(rank, n, shared, NULL);
    dcomm_codec *codec = make_codec("bf16");
    dcomm_codec_report report;
    dcomm_coll_opts opts = {.codec = codec, .premul = rank + 1.0, .codec_report = &report};
    size_t counts[RANKS], displs[RANKS];
    for (int k = 0; k < 8; k++) {
        const dcomm_dtype t = dtypes[k % 4];
        const bool in_place = k >= 4;
        for (size_t i = 0; i < ROOM; i++) {
            ranks_put(in, i, t, (double)((i + (size_t)rank) % 7));
            ranks_put(out, i, t, 9);
        }
        RANKS_OK(dcomm_reduce_scatter(comm, in, out, BLOCK, t, DCOMM_PREMUL_SUM, &opts));
        PROCS_TRUE(report.bytes > 0);
        for (size_t i = 0; i < BLOCK; i++) {
            double sum = 0;
            for (int r = 0; r < n; r++) {
                sum += (r + 1.0) * (double)((i + (size_t)rank * BLOCK + (size_t)r) % 7);
            }
            PROCS_CHECK(ranks_get(out, i, t) == sum, "%s[%zu] is %g, not %g", dcomm_dtype_name(t),
                        i, ranks_get(out, i, t), sum);
        }
        const size_t size = dcomm_dtype_size(t);
        for (int r = 0; r < n; r++) {
            counts[r] = BLOCK - (size_t)r;
            displs[r] = (size_t)r * APART;
        }
        for (size_t i = 0; i < ROOM; i++) {
            ranks_put(out, i, t, 9);
        }
        char *mine = (char *)out + displs[rank] * size;
        memcpy(mine, in, in_place ? counts[rank] * size : 0);
        RANKS_OK(
            dcomm_allgatherv(comm, in_place ? mine : (void *)in, out, counts, displs, t, &opts));
        PROCS_TRUE(report.bytes > 0);
        for (size_t i = 0; i < (size_t)n * APART; i++) {
            const size_t r = i / APART, at = i % APART;
            const double wanted = at < counts[r] ? (double)((at + r) % 7) : 9;
            PROCS_CHECK(ranks_get(out, i, t) == wanted, "%s, element %zu is %g, not %g",
                        dcomm_dtype_name(t), i, ranks_get(out, i, t), wanted);
        }
    }
    dcomm_codec_destroy(&codec);
    return ranks_leave(&comm);
}

Test(coded_halves, of_other_types, .timeout = 60)
{
    run(3, types, NULL);
}

/* ---- errors ---- */

/* Numbers that no codec takes are in one block of one rank. All ranks end alike, also those that
 * are sent none of it, and the communicator goes on. */
static int bad_numbers(int rank, int n, procs_shared *shared, void *arg)
{
    enum { BLOCK = 1500 };
    static float x[BLOCK * RANKS], y[BLOCK * RANKS];
    (void)arg;
    ranks_settle(rank, n, RANKS_LOCAL);
    dcomm_comm *comm = ranks_join(rank, n, shared, NULL);
    dcomm_codec *codec = make_codec("bf16");
    const dcomm_coll_opts opts = {.codec = codec, .chunk_bytes = 1024};
    for (int k = 0; k < 4; k++) {
        normal_gradient(x, BLOCK * RANKS, rank, 0);
        if (rank == 1 && k < 2) { /* for rank 3, in its last chunk */
            x[4 * BLOCK - 1] = NAN;
        }
        dcomm_status status = dcomm_reduce_scatter(comm, x, y, BLOCK, DCOMM_F32, DCOMM_SUM, &opts);
        PROCS_CHECK(status == (k < 2 ? DCOMM_ERR_INVALID : DCOMM_OK), "rank %d: %s", rank,
                    dcomm_status_name(status));
        x[BLOCK - 1] = rank == 2 && k < 2 ? INFINITY : 1;
        status = dcomm_allgather(comm, x, y, BLOCK, DCOMM_F32, &opts);
        PROCS_CHECK(status == (k < 2 ? DCOMM_ERR_INVALID : DCOMM_OK), "rank %d: %s", rank,
                    dcomm_status_name(status));
        RANKS_OK(dcomm_comm_status(comm));
    }
    dcomm_codec_destroy(&codec);
    return ranks_leave(&comm);
}

Test(coded_halves, bad_numbers_end_the_call_alone, .timeout = 60)
{
    run(RANKS, bad_numbers, NULL);
}

static int refusals(int rank, int n, procs_shared *shared, void *arg)
{
    enum { BLOCK = 1500 };
    static float x[BLOCK * RANKS], y[BLOCK * RANKS];
    static const char *const specs[] = {"topk:k=0.1", "randk:k=0.1", "powersgd", "auto"};
    (void)arg;
    ranks_settle(rank, n, RANKS_LOCAL);
    dcomm_comm *comm = ranks_join(rank, n, shared, NULL);
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
        dcomm_codec *codec = make_codec(specs[i]);
        const dcomm_coll_opts opts = {.codec = codec};
        PROCS_TRUE(dcomm_reduce_scatter(comm, x, y, BLOCK, DCOMM_F32, DCOMM_SUM, &opts) ==
                   DCOMM_ERR_UNSUPPORTED);
        PROCS_CHECK(strstr(dcomm_last_error(), specs[i]) != NULL || i == 2, "%s",
                    dcomm_last_error());
        PROCS_TRUE(dcomm_allgather(comm, x, y, BLOCK, DCOMM_F32, &opts) == DCOMM_ERR_UNSUPPORTED);
        dcomm_codec_destroy(&codec);
    }
    dcomm_codec *codec = make_codec(spec);
    for (int k = 0; k < 3; k++) {
        dcomm_feedback *fb = NULL;
        const dcomm_feedback_opts with = {
            .scale = true, .variant = k == 0 ? DCOMM_FEEDBACK_EF21 : DCOMM_FEEDBACK_CLASSIC};
        RANKS_OK(dcomm_feedback_create(codec, BLOCK * (size_t)(k == 2 ? 1 : n), &with, &fb));
        const dcomm_coll_opts opts = {.feedback = fb};
        dcomm_status status =
            k == 1 ? dcomm_allgather(comm, x, y, BLOCK, DCOMM_F32, &opts)
                   : dcomm_reduce_scatter(comm, x, y, BLOCK, DCOMM_F32, DCOMM_SUM, &opts);
        PROCS_CHECK(status == (k == 2 ? DCOMM_ERR_INVALID : DCOMM_ERR_UNSUPPORTED), "%d: %s", k,
                    dcomm_status_name(status));
        dcomm_feedback_destroy(&fb);
    }
    dcomm_codec_destroy(&codec);
    return ranks_leave(&comm);
}

Test(coded_halves, refuse_what_they_cannot_do, .timeout = 60)
{
    run(2, refusals, NULL);
}
