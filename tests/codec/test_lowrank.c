/* test_lowrank.c - randk and powersgd: linear, unbiased or a projection, the same on every
 * instruction set, with sums over ranks as in their papers. */
#define _GNU_SOURCE
#pragma GCC diagnostic ignored "-Wunused-function" /* tests use a part of the functions */
#include "dcomm/impl/base/base_impl.h"
#include "dcomm/impl/codec/api_codec.h"

#include "full.h"
#include "gradients.h"
#include "make_codec.h"

enum { MOST = 100000 };

static float x[MOST], residual[MOST], next[MOST], y[MOST], z[MOST];
static uint64_t state = 1;

static float normal(void)
{
    double sum = 0;
    for (int i = 0; i < 6; i++) {
        sum += (double)(dcommi_mix(state++, 5) >> 11) * 0x1p-53;
    }
    return (float)(sum - 3);
}

static void fill(float *p, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        p[i] = normal();
    }
}

static double square(const float *p, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        sum += (double)p[i] * (double)p[i];
    }
    return sum;
}

/* Encode and decode x; with feedback store the residual in next. Return the wire. */
static unsigned char *through(const dcomm_codec *codec, size_t n, const dcomm_codec_key *key,
                              bool feedback, size_t *bytes)
{
    size_t room = dcomm_codec_max_bytes(codec, n);
    unsigned char *wire = malloc(room + 1);
    cr_assert_eq(feedback ? dcomm_encode_feedback(codec, x, residual, next, n, key, wire, room,
                                                  bytes, NULL, NULL)
                          : dcomm_encode(codec, x, n, key, wire, room, bytes, NULL, NULL),
                 DCOMM_OK, "%s", dcomm_last_error());
    cr_assert_eq(*bytes, room);
    cr_assert_eq(dcomm_decode(codec, wire, *bytes, y, n), DCOMM_OK, "%s", dcomm_last_error());
    return wire;
}

/* ---- randk ---- */

Test(randk, one_of_each_part)
{
    static const size_t sizes[] = {1, 2, 7, 100, 1013, MOST};
    static const char *const specs[] = {"randk:k=0.1,scale=none", "randk:k=7,scale=none"};
    for (int s = 0; s < 2; s++) {
        dcomm_codec *codec = make(specs[s]);
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            size_t n = sizes[i], bytes = 0, set = 0;
            fill(x, n);
            free(through(codec, n, NULL, false, &bytes));
            size_t k = (bytes - DCOMMI_RANDK_HEAD) / 4;
            for (size_t part = 0; part < k; part++) {
                size_t in_part = 0;
                for (size_t e = part * n / k; e < (part + 1) * n / k; e++) {
                    in_part += y[e] != 0;
                    cr_assert(y[e] == 0 || y[e] == x[e]);
                }
                cr_assert_eq(in_part, 1);
                set++;
            }
            cr_assert_eq(set, k);
        }
        dcomm_codec_destroy(&codec);
    }
}

/* Check that the mean over many keys is the input, and that the variance is the one that info
 * promises. Parts have 11 or 10 elements; the one element sent is scaled by 11 or 10. */
static void check_unbiased(int kind)
{
    enum { N = 103, SEEDS = 20000 };
    double sum[N] = {0}, error = 0;
    dcomm_codec *codec = make("randk:k=10");
    dcomm_codec_info info;
    dcomm_codec_get_info(codec, N, &info);
    cr_assert(info.unbiased && info.linear && info.omega == 10);
    cr_assert_null(gradient_fill(kind, 0, 0, x, N));
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        size_t bytes;
        dcomm_codec_key key = {.seed = seed, .rank = (uint32_t)seed};
        free(through(codec, N, &key, false, &bytes));
        for (size_t i = 0; i < N; i++) {
            sum[i] += (double)y[i];
            error += ((double)y[i] - (double)x[i]) * ((double)y[i] - (double)x[i]);
        }
    }
    for (size_t i = 0; i < N; i++) {
        double sigma = fabs((double)x[i]) * sqrt(10.0 / SEEDS);
        cr_assert_float_eq(sum[i] / SEEDS, (double)x[i], 5 * sigma, "%s, element %zu",
                           gradient_kinds[kind], i);
    }
    double omega = error / SEEDS / square(x, N);
    cr_assert(omega <= 1.05 * info.omega && omega >= 0.95 * (info.omega - 1), "%s: omega %g",
              gradient_kinds[kind], omega);
    dcomm_codec_destroy(&codec);
}

Test(randk, unbiased)
{
    for (int kind = 0; kind < GRADIENT_KINDS; kind++) {
        check_unbiased(kind);
    }
}

/* Ranks with the same seed, step and tensor choose the same elements, so their values can be
 * summed. */
Test(randk, values_of_ranks_add_up)
{
    enum { N = 5000, RANKS = 3 };
    static double sum[N];
    static float values[RANKS][N];
    dcomm_codec *codec = make("randk:k=0.03,scale=none");
    size_t bytes = 0, k = dcommi_codec_wanted(codec, N);
    uint64_t seed = 0;
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        dcomm_codec_key key = {.seed = 9, .step = 4, .tensor = 2, .rank = rank};
        fill(x, N);
        unsigned char *wire = through(codec, N, &key, false, &bytes);
        for (size_t i = 0; i < N; i++) {
            sum[i] += (double)y[i];
        }
        memcpy(&seed, wire, sizeof seed);
        cr_assert_eq(seed, dcommi_randk_seed(key.seed, key.tensor, key.step, key.first));
        memcpy(values[rank], wire + DCOMMI_RANDK_HEAD, 4 * k);
        free(wire);
    }
    for (size_t i = 0; i < k; i++) {
        values[0][i] = values[0][i] + values[1][i] + values[2][i];
    }
    dcommi_randk_scatter(seed, values[0], k, z, N, false);
    for (size_t i = 0; i < N; i++) {
        cr_assert_float_eq((double)z[i], sum[i], 1e-5);
    }
    dcomm_codec_destroy(&codec);
}

/* A share just below 1 must not become the count 1, and a share near 0 is raised to the
 * smallest. */
Test(randk, with_another_k)
{
    static const double shares[] = {0.25, 299999999.0 / 300000000.0, 1e-12};
    dcomm_codec *codec = make("randk:k=7,scale=none"), *other = NULL;
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(dcommi_codec_with_k(codec, shares[i], &other), DCOMM_OK, "%s",
                     dcomm_last_error());
        cr_assert_eq(dcommi_codec_k(other), fmax(shares[i], 1e-9));
        dcomm_codec_destroy(&other);
    }
    dcomm_codec_destroy(&codec);
}

/* ---- powersgd ---- */

static void low_rank(float *p, size_t rows, size_t cols, size_t rank)
{
    static float a[1000], b[1000];
    memset(p, 0, sizeof *p * rows * cols);
    for (size_t j = 0; j < rank; j++) {
        fill(a, rows);
        fill(b, cols);
        for (size_t i = 0; i < rows * cols; i++) {
            p[i] += a[i / cols] * b[i % cols];
        }
    }
}

static double distance(const float *a, const float *b, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        sum += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
    }
    return sum;
}

/* A matrix of rank r is exact, and so is a matrix that was decoded once. */
Test(powersgd, exact_on_its_rank)
{
    static const size_t shapes[][2] = {{40, 50}, {50, 40}, {200, 13}, {9, 333}, {1, 100}};
    for (size_t s = 0; s < 5; s++) {
        for (size_t rank = 1; rank <= 5; rank++) {
            char spec[64];
            snprintf(spec, sizeof spec, "powersgd:rank=%zu,rows=%zu", rank, shapes[s][0]);
            dcomm_codec *codec = make(spec);
            size_t n = shapes[s][0] * shapes[s][1], bytes;
            low_rank(x, shapes[s][0], shapes[s][1], rank);
            dcomm_codec_key key = {.seed = rank};
            free(through(codec, n, &key, false, &bytes));
            cr_assert_leq(distance(x, y, n), 1e-9 * square(x, n), "%s", spec);
            fill(x, n);
            free(through(codec, n, &key, false, &bytes));
            cr_assert_leq(distance(x, y, n), square(x, n));
            memcpy(x, y, sizeof *x * n);
            free(through(codec, n, &key, false, &bytes));
            cr_assert_leq(distance(x, y, n), 1e-9 * square(x, n), "%s, again", spec);
            dcomm_codec_destroy(&codec);
        }
    }
}

/* The last row may be short, and the rank larger than the matrix allows. */
Test(powersgd, any_length)
{
    dcomm_codec *codec = make("powersgd:rank=8");
    for (size_t n = 0; n < 70; n++) {
        size_t bytes;
        fill(x, n);
        free(through(codec, n, NULL, false, &bytes));
        if (n <= 64) { /* at most 8 rows and columns */
            cr_assert_leq(distance(x, y, n), 1e-9 * square(x, n), "%zu", n);
        }
    }
    dcomm_codec_destroy(&codec);
}

/* A column that depends on the others becomes 0, not noise. */
Test(powersgd, orthonormal_columns)
{
    enum { ROWS = 777, RANK = 4 };
    static float p[RANK * ROWS];
    fill(p, RANK * ROWS);
    for (size_t i = 0; i < ROWS; i++) {
        p[2 * ROWS + i] = 3 * p[i] - p[ROWS + i];
    }
    dcommi_matrix_orthonormal(p, ROWS, RANK);
    for (size_t a = 0; a < RANK; a++) {
        for (size_t b = 0; b <= a; b++) {
            double dot = dcommi_matrix_dot(p + a * ROWS, p + b * ROWS, ROWS);
            cr_assert_float_eq(dot, a == b && a != 2 ? 1 : 0, 1e-6, "%zu %zu: %g", a, b, dot);
        }
    }
}

static unsigned char *encode_warm(const dcomm_codec *codec, size_t n, void *memory, size_t *bytes)
{
    dcommi_encoding call = dcommi_codec_call(x, NULL, NULL, n, NULL, NULL);
    call.wire = malloc(dcomm_codec_max_bytes(codec, n));
    call.workspace = aligned_alloc(64, (codec->ops->workspace(codec, n) + 63) & ~(size_t)63);
    call.state = memory;
    cr_assert_eq(codec->ops->encode(codec, &call), DCOMM_OK);
    free(call.workspace);
    *bytes = call.bytes;
    return call.wire;
}

/* Q turns towards the best subspace from step to step. */
Test(powersgd, warm_start)
{
    enum { SIDE = 60, N = SIDE * SIDE };
    static float noise[N];
    dcomm_codec *codec = make("powersgd:rank=2");
    low_rank(x, SIDE, SIDE, 2);
    fill(noise, N);
    for (size_t i = 0; i < N; i++) {
        x[i] += noise[i];
    }
    void *memory = calloc(1, codec->ops->state(codec, N));
    double first = 0, last = 0;
    for (int step = 0; step < 8; step++) {
        size_t bytes;
        unsigned char *wire = encode_warm(codec, N, memory, &bytes);
        cr_assert_eq(dcomm_decode(codec, wire, bytes, y, N), DCOMM_OK);
        last = distance(x, y, N);
        first = step == 0 ? last : first;
        free(wire);
    }
    cr_assert_lt(last, 0.97 * first);
    free(memory);
    dcomm_codec_destroy(&codec);
}

/* The separate steps, summed over ranks between them, give the approximation of the sum. */
Test(powersgd, sums_over_ranks)
{
    enum { ROWS = 30, COLS = 45, N = ROWS * COLS, RANK = 3 };
    static float other[N], p[2][ROWS * RANK], q[2][COLS * RANK];
    static double scratch[64 * RANK];
    dcomm_codec *codec = make("powersgd:rank=3,rows=30");
    dcommi_matrix m = dcommi_powersgd_shape(codec, N);
    cr_assert(m.rows == ROWS && m.cols == COLS && m.rank == RANK);
    cr_assert_leq(dcommi_powersgd_scratch(&m), sizeof scratch);
    fill(x, N);
    low_rank(z, ROWS, COLS, RANK);
    for (size_t i = 0; i < N; i++) {
        other[i] = z[i] - x[i]; /* neither is of low rank, but their sum is */
    }
    const float *of[2] = {x, other};
    dcomm_codec_key key = {.seed = 3};
    for (int r = 0; r < 2; r++) {
        dcommi_powersgd_start(&m, &key, q[r]);
        dcommi_matrix_times(&m, of[r], q[r], p[r], scratch);
    }
    cr_assert_eq(memcmp(q[0], q[1], sizeof q[0]), 0);
    for (size_t i = 0; i < ROWS * RANK; i++) {
        p[0][i] += p[1][i];
    }
    dcommi_matrix_orthonormal(p[0], m.rows, m.rank);
    for (int r = 0; r < 2; r++) {
        dcommi_matrix_transposed_times(&m, of[r], p[0], q[r], scratch);
    }
    for (size_t i = 0; i < COLS * RANK; i++) {
        q[0][i] += q[1][i];
    }
    dcommi_matrix_product(&m, p[0], q[0], y, 0);
    cr_assert_leq(distance(y, z, N), 1e-9 * square(z, N));
    dcomm_codec_destroy(&codec);
}

/* A product leaves a finite number where an element was not finite. The sign of a NaN does not
 * change that number, in whole vectors and in the last one. */
Test(powersgd, what_a_product_leaves_is_finite)
{
    enum { ROWS = 3, COLS = 21, N = ROWS * COLS };
    static const uint32_t odd[] = {0x7fc00000u, 0xffc00000u, 0x7f800001u, 0xff812345u,
                                   0x7f800000u, 0xff800000u, 0x3f800000u};
    const dcommi_matrix m = {N, ROWS, COLS, 1};
    float p[ROWS], q[COLS];
    fill(p, ROWS);
    fill(q, COLS);
    for (int isa = 0; isa <= (int)dcommi_isa_best(); isa++) {
        dcommi_isa_force(isa);
        for (int nan = 0; nan < 2; nan++) {
            for (int i = 0; i < N; i++) {
                next[i] = dcommi_f32_from_bits(odd[i % 7]);
            }
            p[1] = nan ? dcommi_f32_from_bits(0xffc00000u) : 2;
            dcommi_matrix_product(&m, p, q, next, -1);
            for (int i = 0; i < N; i++) {
                const float product = (float)((double)p[i / COLS] * (double)q[i % COLS]);
                const float want = i % 7 < 5 || (nan && i / COLS == 1) ? FLT_MAX
                                   : i % 7 == 5                        ? -FLT_MAX
                                                                       : 1 - product;
                cr_assert_eq(next[i], want, "%s, %d: %a", dcommi_isa_names[isa], i,
                             (double)next[i]);
            }
        }
    }
    dcommi_isa_force(-1);
}

/* ---- both ---- */

static const char *const specs[] = {"randk:k=0.01", "randk:k=0.2,scale=none", "powersgd:rank=1",
                                    "powersgd:rank=3,turns=2", "powersgd:rank=4,rows=11"};

Test(lowrank, same_bytes)
{
    static const size_t sizes[] = {1, 17, 1000, 65537, MOST};
    for (size_t s = 0; s < sizeof specs / sizeof *specs; s++) {
        dcomm_codec *codec = make(specs[s]);
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            size_t n = sizes[i], bytes;
            unsigned char *first = NULL;
            fill(x, n);
            fill(residual, n);
            x[n / 2] = 1e-41f;
            for (int isa = 0; isa <= (int)dcommi_isa_best(); isa++) {
                dcommi_isa_force(isa);
                unsigned char *wire = through(codec, n, NULL, true, &bytes);
                if (isa == 0) {
                    first = wire;
                    memcpy(z, next, sizeof z);
                    continue;
                }
                cr_assert_eq(memcmp(first, wire, bytes), 0, "%s, %zu", specs[s], n);
                cr_assert_eq(memcmp(z, next, n * sizeof *z), 0);
                free(wire);
            }
            free(first);
            dcommi_isa_force(-1);
        }
        dcomm_codec_destroy(&codec);
    }
}

/* Σ sent + residual = Σ gradient. */
Test(lowrank, feedback_conserves_over_many_steps)
{
    enum { N = 900 };
    static double sent[N], given[N];
    for (size_t s = 1; s < sizeof specs / sizeof *specs; s++) {
        dcomm_codec *codec = make(specs[s]);
        memset(sent, 0, sizeof sent);
        memset(given, 0, sizeof given);
        memset(residual, 0, sizeof residual);
        for (uint64_t step = 0; step < (test_full() ? 500 : 150); step++) {
            dcomm_codec_key key = {.step = step};
            size_t bytes;
            fill(x, N);
            free(through(codec, N, &key, true, &bytes));
            memcpy(residual, next, sizeof *next * N);
            for (size_t i = 0; i < N; i++) {
                sent[i] += (double)y[i];
                given[i] += (double)x[i];
            }
        }
        for (size_t i = 0; i < N; i++) {
            cr_assert_float_eq(sent[i] + (double)residual[i], given[i], 1e-2, "%s", specs[s]);
        }
        dcomm_codec_destroy(&codec);
    }
}

Test(lowrank, wrong_lengths)
{
    for (size_t s = 0; s < sizeof specs / sizeof *specs; s++) {
        dcomm_codec *codec = make(specs[s]);
        size_t n = 1000, bytes;
        fill(x, n);
        unsigned char *wire = through(codec, n, NULL, false, &bytes);
        for (size_t cut = 0; cut < bytes; cut++) {
            cr_assert_eq(dcomm_decode(codec, wire, cut, y, n), DCOMM_ERR_CORRUPT);
        }
        cr_assert_eq(dcomm_decode(codec, wire, bytes + 1, y, n), DCOMM_ERR_CORRUPT);
        memmove(wire + 1, wire, bytes); /* one byte later: not aligned */
        cr_assert_eq(dcomm_decode(codec, wire + 1, bytes, z, n), DCOMM_OK);
        cr_assert_eq(memcmp(y, z, n * sizeof *y), 0);
        free(wire);
        dcomm_codec_destroy(&codec);
    }
}
