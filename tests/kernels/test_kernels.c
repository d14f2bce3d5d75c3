/* test_kernels.c - folds, conversions and the caller's operators on host memory. */
#define _GNU_SOURCE
#pragma GCC diagnostic ignored "-Wunused-function" /* tests use only some functions */
#include "../../include/dcomm/impl/device/host.h"

#include "full.h"

#include <criterion/criterion.h>
#include <math.h>

enum { MOST_SRC = 9, MOST_COUNT = 1100 };

static uint64_t random_state = 1;

static uint64_t random_bits(void)
{
    return dcommi_mix(random_state++, 7);
}

/* Fill with random bits: NaN, infinities, denormals, zeros of both signs among them. */
static void fill(void *p, size_t len, dcomm_dtype dtype)
{
    unsigned char *bytes = p;
    for (size_t i = 0; i < len; i++) {
        bytes[i] = (unsigned char)random_bits();
    }
    if (dtype > DCOMM_BF16) {
        return;
    }
    static const double special[] = {0.0, -0.0, 1.0, -1.0, INFINITY, -INFINITY, 3e38, 65504, 1e-40};
    size_t element = dcomm_dtype_size(dtype);
    for (size_t i = 0; i + element <= len; i += element) {
        double x;
        switch (random_bits() % 4) {
        case 0:
            continue;
        case 1:
            x = special[random_bits() % (sizeof special / sizeof *special)];
            break;
        default:
            x = (double)(int64_t)random_bits() * 0x1p-61;
        }
        float f = (float)x;
        uint16_t h = dtype == DCOMM_F16 ? dcommi_f32_to_f16(f) : dcommi_f32_to_bf16(f);
        const void *from = dtype == DCOMM_F64   ? (const void *)&x
                           : dtype == DCOMM_F32 ? (const void *)&f
                                                : (const void *)&h;
        memcpy(bytes + i, from, element);
    }
}

/* ---- the fold once more, as plainly as possible ---- */

static double plain_float(double a, double b, dcomm_op op, bool wide)
{
    switch (op) {
    case DCOMM_PROD:
        return wide ? a * b : (double)((float)a * (float)b);
    case DCOMM_MIN:
    case DCOMM_MAX:
        if (isnan(a) || isnan(b)) {
            return NAN;
        }
        if (a == b) {
            return (op == DCOMM_MIN) == (signbit(a) != 0) ? a : b;
        }
        return (op == DCOMM_MIN) == (a < b) ? a : b;
    default:
        return wide ? a + b : (double)((float)a + (float)b);
    }
}

static uint64_t plain_int(uint64_t a, uint64_t b, dcomm_op op, bool is_signed)
{
    bool less = is_signed ? (int64_t)a < (int64_t)b : a < b;
    switch (op) {
    case DCOMM_PROD:
        return a * b;
    case DCOMM_MIN:
        return less ? a : b;
    case DCOMM_MAX:
        return less ? b : a;
    default:
        return a + b;
    }
}

static double load_float(const unsigned char *p, dcomm_dtype dtype)
{
    double d;
    float f;
    uint16_t h;
    switch (dtype) {
    case DCOMM_F64:
        memcpy(&d, p, 8);
        return d;
    case DCOMM_F32:
        memcpy(&f, p, 4);
        return f;
    default:
        memcpy(&h, p, 2);
        return dtype == DCOMM_F16 ? dcommi_f16_to_f32(h) : dcommi_bf16_to_f32(h);
    }
}

static void store_float(unsigned char *p, dcomm_dtype dtype, double x)
{
    uint64_t d = isnan(x) ? DCOMMI_F64_NAN : dcommi_f64_bits(x);
    float f = isnan(x) ? dcommi_f32_from_bits(DCOMMI_F32_NAN) : (float)x;
    uint16_t h = dtype == DCOMM_F16 ? dcommi_f32_to_f16(f) : dcommi_f32_to_bf16(f);
    memcpy(p,
           dtype == DCOMM_F64   ? (void *)&d
           : dtype == DCOMM_F32 ? (void *)&f
                                : (void *)&h,
           dcomm_dtype_size(dtype));
}

/* Load an integer and extend it to 64 bits by its sign, so that one order serves all widths. */
static uint64_t load_int(const unsigned char *p, dcomm_dtype dtype)
{
    uint64_t x = 0;
    size_t size = dcomm_dtype_size(dtype);
    memcpy(&x, p, size);
    unsigned shift = 64 - 8 * (unsigned)size;
    bool is_signed = dtype == DCOMM_I8 || dtype == DCOMM_I32 || dtype == DCOMM_I64;
    return is_signed ? (uint64_t)((int64_t)(x << shift) >> shift) : x;
}

static void plain_fold(unsigned char *dst, const void *const *src, size_t nsrc, size_t count,
                       dcomm_dtype dtype, dcomm_op op, int64_t divisor)
{
    size_t size = dcomm_dtype_size(dtype);
    bool is_signed = dtype == DCOMM_I8 || dtype == DCOMM_I32 || dtype == DCOMM_I64;
    for (size_t i = 0; i < count; i++) {
        if (nsrc == 1 && divisor <= 1) {
            memcpy(dst + i * size, (const unsigned char *)src[0] + i * size, size);
        } else if (dtype <= DCOMM_BF16) {
            double acc = load_float((const unsigned char *)src[0] + i * size, dtype);
            for (size_t s = 1; s < nsrc; s++) {
                acc = plain_float(acc, load_float((const unsigned char *)src[s] + i * size, dtype),
                                  op, dtype == DCOMM_F64);
            }
            if (divisor > 1) {
                acc = dtype == DCOMM_F64 ? acc / (double)divisor : (float)acc / (float)divisor;
            }
            store_float(dst + i * size, dtype, acc);
        } else {
            uint64_t acc = load_int((const unsigned char *)src[0] + i * size, dtype);
            for (size_t s = 1; s < nsrc; s++) {
                acc = plain_int(acc, load_int((const unsigned char *)src[s] + i * size, dtype), op,
                                is_signed);
            }
            memcpy(dst + i * size, &acc, size); /* wrap, then divide the wrapped sum */
            if (divisor > 1) {
                acc = load_int(dst + i * size, dtype);
                acc = is_signed ? (uint64_t)((int64_t)acc / divisor) : acc / (uint64_t)divisor;
                memcpy(dst + i * size, &acc, size);
            }
        }
    }
}

static unsigned char source[MOST_SRC][MOST_COUNT * 8 + 64];
static unsigned char work[MOST_SRC][MOST_COUNT * 8 + 64];
static unsigned char expected[MOST_COUNT * 8 + 64];
/* Equal modulo a cache line, so that every build tries nontemporal stores with every shift. */
static _Alignas(64) unsigned char got[MOST_COUNT * 8 + 64], also[MOST_COUNT * 8 + 64];

/* alias < 0: dst is separate; else dst is source `alias`. shift makes every pointer odd. */
static void check_fold(dcomm_dtype dtype, dcomm_op op, size_t nsrc, size_t count, int alias,
                       size_t shift, int64_t divisor)
{
    size_t len = count * dcomm_dtype_size(dtype);
    const void *plain[MOST_SRC], *given[MOST_SRC];
    for (size_t s = 0; s < nsrc; s++) {
        plain[s] = source[s] + s;
        given[s] = work[s] + shift * (s + 1);
        memcpy(work[s] + shift * (s + 1), plain[s], len);
    }
    plain_fold(expected, plain, nsrc, count, dtype, op, divisor);
    for (int isa = 0; isa <= (int)dcommi_isa_best(); isa++) {
        dcommi_isa_force(isa);
        unsigned char *dst = got + shift;
        if (alias >= 0) {
            dst = work[alias] + shift * (size_t)(alias + 1);
            memcpy(dst, plain[alias], len);
        }
        memset(dst + len, 0xa5, 8);
        cr_assert_eq(dcommi_host_reduce(dst, given, nsrc, count, dtype, op, divisor), DCOMM_OK);
        cr_assert_eq(memcmp(dst, expected, len), 0,
                     "%s %s of %zu x %zu, divisor %d, alias %d, shift %zu, %s: wrong bytes",
                     dcomm_dtype_name(dtype), dcomm_op_name(op), nsrc, count, (int)divisor, alias,
                     shift, dcommi_isa_names[isa]);
        cr_assert(dst[len] == 0xa5 && dst[len + 7] == 0xa5, "wrote past the end");
        for (unsigned k = 0; alias < 0 && k < 6; k++) { /* two places, nontemporal or not */
            static const unsigned hows[] = {0,
                                            DCOMMI_FOLD_STREAM,
                                            DCOMMI_FOLD_ALSO,
                                            DCOMMI_FOLD_STREAM | DCOMMI_FOLD_ALSO,
                                            DCOMMI_FOLD_AHEAD,
                                            DCOMMI_FOLD_STREAM | DCOMMI_FOLD_AHEAD |
                                                DCOMMI_FOLD_NEAR};
            unsigned how = hows[k];
            unsigned char *too = also + (k + shift) % 3;
            memset(dst, 0x5a, len);
            memset(too, 0xa5, len + 8);
            cr_assert_eq(
                dcommi_host_reduce_both(dst, too, given, nsrc, count, dtype, op, divisor, how),
                DCOMM_OK);
            cr_assert(memcmp(dst, expected, len) == 0 && memcmp(too, expected, len) == 0,
                      "%s %s of %zu x %zu to two places, how %u, shift %zu, %s: wrong bytes",
                      dcomm_dtype_name(dtype), dcomm_op_name(op), nsrc, count, how, shift,
                      dcommi_isa_names[isa]);
            cr_assert(dst[len] == 0xa5 && too[len] == 0xa5, "wrote past the end");
        }
    }
    dcommi_isa_force(-1);
}

static void fill_sources(dcomm_dtype dtype)
{
    for (int s = 0; s < MOST_SRC; s++) {
        fill(source[s] + s, MOST_COUNT * dcomm_dtype_size(dtype), dtype);
    }
}

Test(kernels, every_dtype_op_and_short_count)
{
    static const size_t nsrcs[] = {1, 2, 3, 4, 5, 9};
    for (int dtype = 0; dtype < DCOMM_DTYPE_COUNT; dtype++) {
        fill_sources((dcomm_dtype)dtype);
        for (int op = 0; op < DCOMM_OP_COUNT; op++) {
            for (size_t k = 0; k < 6; k++) {
                int64_t divisor = op == DCOMM_AVG ? (int64_t)nsrcs[k] : 1;
                for (size_t count = 0; count <= 70; count++) {
                    check_fold((dcomm_dtype)dtype, (dcomm_op)op, nsrcs[k], count, -1, count % 4,
                               divisor);
                }
            }
        }
    }
}

Test(kernels, long_odd_counts_in_place_of_each_source)
{
    static const size_t counts[] = {127, 256, 511, 1023, MOST_COUNT};
    for (int dtype = 0; dtype < DCOMM_DTYPE_COUNT; dtype++) {
        fill_sources((dcomm_dtype)dtype);
        for (int op = 0; op < DCOMM_OP_COUNT; op++) {
            for (size_t k = 0; k < 5; k++) {
                for (int alias = -1; alias < 5; alias++) {
                    check_fold((dcomm_dtype)dtype, (dcomm_op)op, 5, counts[k], alias, k % 3,
                               op == DCOMM_AVG ? 7 : 1);
                }
            }
        }
    }
}

Test(kernels, more_sources_than_a_group)
{
    unsigned char many[40][33];
    const void *src[40];
    for (int s = 0; s < 40; s++) {
        fill(many[s], sizeof many[s], DCOMM_I8);
        src[s] = many[s];
    }
    plain_fold(expected, src, 40, 33, DCOMM_I8, DCOMM_AVG, 40);
    cr_assert_eq(dcommi_host_reduce(got, src, 40, 33, DCOMM_I8, DCOMM_AVG, 40), DCOMM_OK);
    cr_assert_eq(memcmp(got, expected, 33), 0);
}

Test(kernels, cutting_an_array_does_not_change_it)
{
    for (int dtype = 0; dtype < DCOMM_DTYPE_COUNT; dtype++) {
        size_t size = dcomm_dtype_size((dcomm_dtype)dtype);
        fill_sources((dcomm_dtype)dtype);
        const void *src[3] = {source[0], source[1] + 1, source[2] + 2};
        for (int op = 0; op < DCOMM_OP_COUNT; op++) {
            int64_t divisor = op == DCOMM_AVG ? 3 : 1;
            dcommi_host_reduce(expected, src, 3, 1000, (dcomm_dtype)dtype, (dcomm_op)op, divisor);
            for (size_t at = 0, n = 0; at < 1000; at += n) {
                n = 1 + random_bits() % 200;
                n = n < 1000 - at ? n : 1000 - at;
                const void *piece[3];
                for (int s = 0; s < 3; s++) {
                    piece[s] = (const unsigned char *)src[s] + at * size;
                }
                dcommi_host_reduce(got + at * size, piece, 3, n, (dcomm_dtype)dtype, (dcomm_op)op,
                                   divisor);
            }
            cr_assert_eq(memcmp(got, expected, 1000 * size), 0, "%s %s",
                         dcomm_dtype_name((dcomm_dtype)dtype), dcomm_op_name((dcomm_op)op));
        }
    }
}

/* Fold beyond every threshold: nontemporal stores from an unaligned head, and in place. */
Test(kernels, long_arrays)
{
    size_t len = DCOMMI_STREAM_MIN + 12345;
    unsigned char *memory = malloc(4 * (len + 256));
    cr_assert_not_null(memory);
    for (int dtype = 0; dtype < DCOMM_DTYPE_COUNT; dtype++) {
        size_t size = dcomm_dtype_size((dcomm_dtype)dtype), count = len / size;
        unsigned char *a = memory + size, *b = a + len + 128, *c = b + len + 128;
        unsigned char *d = c + len + 127;
        fill(a, 65536, (dcomm_dtype)dtype);
        fill(b, 65536, (dcomm_dtype)dtype);
        for (size_t at = 65536; at < count * size; at += 65536) {
            size_t n = count * size - at < 65536 ? count * size - at : 65536;
            memcpy(a + at, a, n);
            memcpy(b + at, b, n);
        }
        const void *src[2] = {a, b};
        plain_fold(d, src, 2, 65536 / size, (dcomm_dtype)dtype, DCOMM_SUM, 1);
        for (size_t at = 65536; at < count * size; at += 65536) { /* repeats like the sources */
            memcpy(d + at, d, count * size - at < 65536 ? count * size - at : 65536);
        }
        for (int isa = 0; isa <= (int)dcommi_isa_best(); isa++) {
            dcommi_isa_force(isa);
            memset(c, 0, count * size + 1);
            dcommi_host_reduce(c, src, 2, count, (dcomm_dtype)dtype, DCOMM_SUM, 1);
            cr_assert_eq(memcmp(c, d, count * size), 0, "%s", dcommi_isa_names[isa]);
            cr_assert_eq(c[count * size], 0);
        }
        dcommi_host_reduce(a, src, 2, count, (dcomm_dtype)dtype, DCOMM_SUM, 1);
        cr_assert_eq(memcmp(a, d, count * size), 0);
        dcommi_host_copy(b + 1, d, count * size);
        cr_assert_eq(memcmp(b + 1, d, count * size), 0);
    }
    free(memory);
}

/* ---- conversions ---- */

/* Return the nearest 16-bit float by searching all of them; ties go to the even one. */
static uint16_t nearest(float x, const double *value, unsigned infinity, double past)
{
    unsigned sign = signbit(x) ? 0x8000u : 0;
    double a = fabs((double)x);
    unsigned low = 0, high = infinity;
    while (high - low > 1) {
        unsigned middle = (low + high) / 2;
        if (value[middle] <= a) {
            low = middle;
        } else {
            high = middle;
        }
    }
    double above = high == infinity ? past : value[high];
    double left = a - value[low], right = above - a;
    unsigned r = left < right || (left == right && low % 2 == 0) ? low : high;
    return (uint16_t)(sign | (isinf(x) ? infinity : r));
}

static void check_conversions(bool half)
{
    static double value[0x8000];
    unsigned infinity = half ? 0x7c00 : 0x7f80;
    int digits = half ? 10 : 7, bias = half ? 15 : 127;
    for (unsigned h = 0; h < infinity; h++) {
        unsigned e = h >> digits, m = h & ((1u << digits) - 1);
        value[h] = e == 0 ? ldexp(m, 1 - bias - digits)
                          : ldexp(m + (1u << digits), (int)e - bias - digits);
    }
    for (unsigned h = 0; h < 0x10000; h++) {
        float f = half ? dcommi_f16_to_f32((uint16_t)h) : dcommi_bf16_to_f32((uint16_t)h);
        uint16_t back = half ? dcommi_f32_to_f16(f) : dcommi_f32_to_bf16(f);
        unsigned a = h & 0x7fff;
        if (a > infinity) {
            cr_assert(isnan(f));
            cr_assert_eq(back, h | (half ? 0x200 : 0x40));
            continue;
        }
        cr_assert_eq(back, h);
        cr_assert_eq(signbit(f) != 0, h >= 0x8000);
        cr_assert_eq(fabs((double)f), a == infinity ? INFINITY : value[a]);
    }
    double past = ldexp(1, half ? 16 : 128);
    for (unsigned h = 0; h < infinity; h++) { /* ties and their neighbours, exhaustively */
        double next = h + 1 == infinity ? past : value[h + 1];
        uint32_t tie = dcommi_f32_bits((float)(0.5 * (value[h] + next)));
        for (uint32_t bits = tie - 2; bits != tie + 3; bits++) {
            float f = dcommi_f32_from_bits(bits);
            if (!isfinite(f)) {
                continue;
            }
            uint16_t r = half ? dcommi_f32_to_f16(f) : dcommi_f32_to_bf16(f);
            cr_assert_eq(r, nearest(f, value, infinity, past), "%a gave %04x", (double)f, r);
        }
    }
    for (int i = 0; i < (test_full() ? 1000000 : 50000); i++) {
        float f = dcommi_f32_from_bits((uint32_t)random_bits());
        uint16_t r = half ? dcommi_f32_to_f16(f) : dcommi_f32_to_bf16(f);
        if (isnan(f)) {
            cr_assert_gt(r & 0x7fff, infinity);
        } else {
            cr_assert_eq(r, nearest(f, value, infinity, past), "%a gave %04x", (double)f, r);
        }
    }
}

Test(kernels, f16_conversions)
{
    check_conversions(true);
}

Test(kernels, bf16_conversions)
{
    check_conversions(false);
}

/* Convert every 16-bit pattern by each instruction set, there and back. */
Test(kernels, all_16_bit_patterns_through_each_isa)
{
    static uint16_t all[65536], zero[65536], plain[65536], out[65536];
    for (int dtype = DCOMM_F16; dtype <= DCOMM_BF16; dtype++) {
        for (unsigned h = 0; h < 65536; h++) {
            all[h] = (uint16_t)h;
            zero[h] = 0x8000; /* x + -0 is x */
        }
        const void *src[2] = {all, zero};
        plain_fold((unsigned char *)plain, src, 2, 65536, (dcomm_dtype)dtype, DCOMM_SUM, 1);
        for (int isa = 0; isa <= (int)dcommi_isa_best(); isa++) {
            dcommi_isa_force(isa);
            dcommi_host_reduce(out, src, 2, 65536, (dcomm_dtype)dtype, DCOMM_SUM, 1);
            cr_assert_eq(memcmp(out, plain, sizeof out), 0);
        }
        for (unsigned h = 0; h < 65536; h++) {
            unsigned a = h & 0x7fff, infinity = dtype == DCOMM_F16 ? 0x7c00 : 0x7f80;
            cr_assert_eq(out[h], a > infinity ? (dtype == DCOMM_F16 ? 0x7e00u : 0x7fc0u) : h);
        }
    }
}

/* Truncation, which other libraries use, is the control: it must exceed the bound. */
Test(kernels, bf16_sums_have_no_bias)
{
    enum { N = 1 << 20 };
    static uint16_t a[N], b[N], c[N];
    double bias = 0, truncated_bias = 0;
    for (int i = 0; i < N; i++) {
        a[i] = dcommi_f32_to_bf16((float)(random_bits() >> 40) * 0x1p-24f + 1e-3f);
        b[i] = dcommi_f32_to_bf16((float)(random_bits() >> 40) * 0x1p-24f + 1e-3f);
    }
    const void *src[2] = {a, b};
    dcommi_host_reduce(c, src, 2, N, DCOMM_BF16, DCOMM_SUM, 1);
    for (int i = 0; i < N; i++) {
        float exact = dcommi_bf16_to_f32(a[i]) + dcommi_bf16_to_f32(b[i]);
        float cut = dcommi_bf16_to_f32((uint16_t)(dcommi_f32_bits(exact) >> 16));
        bias += ((double)dcommi_bf16_to_f32(c[i]) - (double)exact) / (double)exact;
        truncated_bias += ((double)cut - (double)exact) / (double)exact;
    }
    cr_assert_lt(fabs(bias / N), 1e-5, "mean relative error %g", bias / N);
    cr_assert_gt(fabs(truncated_bias / N), 1e-4, "the control gave %g", truncated_bias / N);
}

/* Nine small terms onto a large one vanish when each sum is rounded to 16 bits. */
Test(kernels, bf16_folds_in_f32_and_rounds_once)
{
    uint16_t big = dcommi_f32_to_bf16(256), one = dcommi_f32_to_bf16(0.5f), sum;
    const void *src[MOST_SRC] = {&big, &one, &one, &one, &one, &one, &one, &one, &one};
    dcommi_host_reduce(&sum, src, MOST_SRC, 1, DCOMM_BF16, DCOMM_SUM, 1);
    cr_assert_eq(dcommi_bf16_to_f32(sum), 260);
}

/* ---- defined corners ---- */

static float reduce_two(float a, float b, dcomm_op op)
{
    const void *src[2] = {&a, &b};
    float r;
    cr_assert_eq(dcommi_host_reduce(&r, src, 2, 1, DCOMM_F32, op, 1), DCOMM_OK);
    return r;
}

Test(kernels, min_and_max_of_nan_and_signed_zero)
{
    for (int isa = 0; isa <= (int)dcommi_isa_best(); isa++) {
        dcommi_isa_force(isa);
        for (int op = DCOMM_MIN; op <= DCOMM_MAX; op++) {
            cr_assert(isnan(reduce_two(1, NAN, (dcomm_op)op)));
            cr_assert(isnan(reduce_two(NAN, 1, (dcomm_op)op)));
            cr_assert(isnan(reduce_two(NAN, -INFINITY, (dcomm_op)op)));
            cr_assert_eq(signbit(reduce_two(-0.0f, 0.0f, (dcomm_op)op)) != 0, op == DCOMM_MIN);
            cr_assert_eq(signbit(reduce_two(0.0f, -0.0f, (dcomm_op)op)) != 0, op == DCOMM_MIN);
        }
        cr_assert_eq(dcommi_f32_bits(reduce_two(INFINITY, -INFINITY, DCOMM_SUM)), DCOMMI_F32_NAN);
        cr_assert_eq(dcommi_f32_bits(reduce_two(-NAN, 1, DCOMM_SUM)), DCOMMI_F32_NAN);
    }
}

Test(kernels, integers_wrap_and_averages_truncate)
{
    int8_t a8 = 100, b8 = 100, r8;
    const void *src8[2] = {&a8, &b8};
    dcommi_host_reduce(&r8, src8, 2, 1, DCOMM_I8, DCOMM_SUM, 1);
    cr_assert_eq(r8, -56);
    int32_t a = -7, b = 0, r;
    const void *src[2] = {&a, &b};
    dcommi_host_reduce(&r, src, 2, 1, DCOMM_I32, DCOMM_AVG, 2);
    cr_assert_eq(r, -3);
    a = INT32_MIN;
    b = -1;
    dcommi_host_reduce(&r, src, 2, 1, DCOMM_I32, DCOMM_SUM, 1);
    cr_assert_eq(r, INT32_MAX);
    dcommi_host_reduce(&r, src, 2, 1, DCOMM_I32, DCOMM_PROD, 1);
    cr_assert_eq(r, INT32_MIN);
    for (uint32_t i = 0; i < 2000; i++) { /* quotients next to whole numbers */
        uint32_t d = 2 + (uint32_t)(random_bits() >> 33), k = UINT32_MAX / d, q;
        uint32_t x = k * d - (i % 2), zero = 0;
        const void *two[2] = {&x, &zero};
        dcommi_host_reduce(&q, two, 2, 1, DCOMM_U32, DCOMM_AVG, d);
        cr_assert_eq(q, x / d);
    }
}

Test(kernels, scaling)
{
    float f[67], f_out[67];
    for (int i = 0; i < 67; i++) {
        f[i] = (float)i - 30.5f;
    }
    for (int isa = 0; isa <= (int)dcommi_isa_best(); isa++) {
        dcommi_isa_force(isa);
        dcommi_host_scale(f_out, f, 67, DCOMM_F32, 0.1);
        for (int i = 0; i < 67; i++) {
            cr_assert_eq(f_out[i], f[i] * 0.1f);
        }
        for (int dtype = DCOMM_F64; dtype <= DCOMM_BF16; dtype++) {
            size_t size = dcomm_dtype_size((dcomm_dtype)dtype);
            fill_sources((dcomm_dtype)dtype);
            dcommi_host_scale(got, source[0], 67, (dcomm_dtype)dtype, -1.3);
            for (size_t i = 0; i < 67; i++) {
                double x = load_float(source[0] + i * size, (dcomm_dtype)dtype);
                store_float(expected + i * size, (dcomm_dtype)dtype,
                            dtype == DCOMM_F64 ? x * -1.3 : (float)x * -1.3f);
            }
            cr_assert_eq(memcmp(got, expected, 67 * size), 0);
            dcommi_host_scale(source[0], source[0], 67, (dcomm_dtype)dtype, -1.3);
            cr_assert_eq(memcmp(source[0], expected, 67 * size), 0);
        }
    }
    int32_t i32[4] = {-7, 7, INT32_MAX, INT32_MIN};
    dcommi_host_scale(i32, i32, 4, DCOMM_I32, 1.5);
    cr_assert(i32[0] == -10 && i32[1] == 10 && i32[2] == INT32_MAX && i32[3] == INT32_MIN);
    uint8_t u8[2] = {3, 200};
    dcommi_host_scale(u8, u8, 2, DCOMM_U8, 1.5);
    cr_assert(u8[0] == 4 && u8[1] == 255);
    dcommi_host_scale(u8, u8, 2, DCOMM_U8, -1);
    cr_assert(u8[0] == 0 && u8[1] == 0);
    int64_t i64[2] = {INT64_MAX, -3};
    dcommi_host_scale(i64, i64, 2, DCOMM_I64, (double)NAN);
    cr_assert(i64[0] == 0 && i64[1] == 0);
}

/* ---- the caller's operators ---- */

static void xor_bytes(const void *in, void *inout, size_t count, dcomm_dtype dtype, void *user)
{
    const unsigned char *a = in;
    unsigned char *b = inout;
    for (size_t i = 0; i < count * dcomm_dtype_size(dtype); i++) {
        b[i] ^= a[i];
    }
    ++*(int *)user;
}

Test(kernels, user_operators)
{
    int calls = 0;
    dcomm_op op, again;
    cr_assert_eq(dcomm_op_create(xor_bytes, &calls, &op), DCOMM_OK);
    cr_assert_eq((int)op, DCOMM_OP_USER);
    cr_assert_str_eq(dcomm_op_name(op), "user");
    fill_sources(DCOMM_I32);
    for (int alias = -1; alias < 3; alias++) {
        const void *src[3];
        for (int s = 0; s < 3; s++) {
            memcpy(work[s], source[s], MOST_COUNT * 4);
            src[s] = work[s];
        }
        for (size_t i = 0; i < MOST_COUNT * 4; i++) {
            expected[i] = source[0][i] ^ source[1][i] ^ source[2][i];
        }
        unsigned char *dst = alias < 0 ? got : work[alias];
        cr_assert_eq(dcommi_host_reduce(dst, src, 3, MOST_COUNT, DCOMM_I32, op, 1), DCOMM_OK);
        cr_assert_eq(memcmp(dst, expected, MOST_COUNT * 4), 0);
    }
    cr_assert_gt(calls, 0);
    cr_assert_eq(dcomm_op_destroy(op), DCOMM_OK);
    cr_assert_eq(dcomm_op_destroy(op), DCOMM_ERR_INVALID);
    const void *src[1] = {work[0]};
    cr_assert_eq(dcommi_host_reduce(got, src, 1, 1, DCOMM_I32, op, 1), DCOMM_ERR_INVALID);
    cr_assert_eq(dcomm_op_create(NULL, NULL, &op), DCOMM_ERR_INVALID);
    cr_assert_neq(dcomm_last_error()[0], '\0');
    for (int i = 1; i <= 64; i++) { /* numbers are not reused */
        cr_assert_eq(dcomm_op_create(xor_bytes, &calls, &op), DCOMM_OK);
        cr_assert_eq((int)op, DCOMM_OP_USER + i);
    }
    cr_assert_eq(dcomm_op_create(xor_bytes, &calls, &again), DCOMM_ERR_NO_MEMORY);
    /* A held operator stays where folds find it, and its number is given to no other. */
    cr_assert(dcommi_op_hold(op));
    cr_assert_eq(dcomm_op_destroy(op), DCOMM_OK);
    cr_assert_not(dcommi_op_known(op));
    cr_assert_eq(dcomm_op_destroy(op), DCOMM_ERR_INVALID);
    cr_assert_eq(dcomm_op_create(xor_bytes, &calls, &again), DCOMM_ERR_NO_MEMORY);
    cr_assert_eq(dcommi_host_reduce(got, src, 1, 1, DCOMM_I32, op, 1), DCOMM_OK);
    dcommi_op_drop(op);
    cr_assert_not(dcommi_op_hold(op));
    cr_assert_eq(dcomm_op_create(xor_bytes, &calls, &again), DCOMM_OK);
    cr_assert_eq((int)again, DCOMM_OP_USER + 65);
    for (int i = 1; i <= 65; i++) {
        cr_assert_eq(dcomm_op_destroy((dcomm_op)(DCOMM_OP_USER + i)),
                     i == 64 ? DCOMM_ERR_INVALID : DCOMM_OK);
    }
}

Test(kernels, names_and_refusals)
{
    cr_assert_str_eq(dcomm_strerror(DCOMM_OK), "success");
    cr_assert_str_eq(dcomm_status_name(DCOMM_ERR_PEER), "DCOMM_ERR_PEER");
    cr_assert_str_eq(dcomm_strerror((dcomm_status)-99), "unknown status");
    cr_assert_str_eq(dcomm_dtype_name(DCOMM_BF16), "bf16");
    cr_assert_str_eq(dcomm_dtype_name((dcomm_dtype)10), "?");
    cr_assert_eq(dcomm_dtype_size((dcomm_dtype)-1), 0);
    cr_assert_str_eq(dcomm_op_name(DCOMM_PREMUL_SUM), "premul_sum");
    cr_assert_str_eq(dcomm_op_name((dcomm_op)63), "?");
    cr_assert_str_eq(dcomm_version(), "0.1.0");
    const void *src[1] = {work[0]};
    cr_assert_eq(dcommi_host_reduce(got, src, 1, 1, (dcomm_dtype)10, DCOMM_SUM, 1),
                 DCOMM_ERR_INVALID);
    cr_assert_eq(dcommi_host_reduce(got, src, 1, 1, DCOMM_F32, (dcomm_op)6, 1), DCOMM_ERR_INVALID);
    cr_assert_eq(dcommi_host_reduce(got, src, 0, 1, DCOMM_F32, DCOMM_SUM, 1), DCOMM_ERR_INVALID);
    cr_assert_eq(dcommi_host_reduce(NULL, src, 1, 0, DCOMM_F32, DCOMM_SUM, 1), DCOMM_OK);
}

static int warnings;

static void count_warning(int level, const char *message, void *user)
{
    (void)user;
    warnings += level == 1 && strstr(message, "DCOMM_ISA=") != NULL;
}

Test(kernels, the_environment_chooses_the_isa)
{
    dcomm_set_logger(count_warning, NULL);
    setenv("DCOMM_ISA", "portable", 1);
    atomic_store(&dcommi_isa_chosen, -1);
    cr_assert_eq(dcommi_isa_get(), DCOMMI_ISA_PORTABLE);
    cr_assert_eq(warnings, 0);
    setenv("DCOMM_ISA", "mmx", 1);
    for (int i = 0; i < 2; i++) {
        atomic_store(&dcommi_isa_chosen, -1);
        cr_assert_eq(dcommi_isa_get(), dcommi_isa_best());
        cr_assert_eq(warnings, 1);
    }
}
