/* check.cuh - a kernel that checks the arithmetic on which the other kernels' bytes rely. A flag of
 * nvcc's such as -ftz=true changes it, and no macro tells. Each thread computes one result, from
 * operands that the compiler does not know. */
#ifndef DCOMMI_CUDA_CHECK_H
#define DCOMMI_CUDA_CHECK_H

#include "cast.cuh"
#include "reduce.cuh"

enum dcommi_cuda_check_op {
    DCOMMI_CUDA_CHECK_ADD,
    DCOMMI_CUDA_CHECK_MUL,
    DCOMMI_CUDA_CHECK_FMA,
    DCOMMI_CUDA_CHECK_DIV,
    DCOMMI_CUDA_CHECK_WIDEN,  /* to f64; of these and the next ones one half is compared */
    DCOMMI_CUDA_CHECK_NARROW, /* a product in f64, to f32 */
    DCOMMI_CUDA_CHECK_DDIV,
    DCOMMI_CUDA_CHECK_DSQRT,
    DCOMMI_CUDA_CHECK_INVERSE,
    DCOMMI_CUDA_CHECK_FLUSHED, /* a product; a denormal factor counts as 0 */
    DCOMMI_CUDA_CHECK_MIN,
    DCOMMI_CUDA_CHECK_MAX,
    DCOMMI_CUDA_CHECK_FROM_F16,
    DCOMMI_CUDA_CHECK_TO_F16,
    DCOMMI_CUDA_CHECK_TO_BF16,
    DCOMMI_CUDA_CHECK_TWO_F16,
    DCOMMI_CUDA_CHECK_TWO_BF16,
    DCOMMI_CUDA_CHECK_AND_OR
};

struct dcommi_cuda_check {
    const char *what;
    dcommi_cuda_check_op op;
    uint32_t a, b, c, want; /* as bits */
};

static const dcommi_cuda_check dcommi_cuda_checks[] = {
    {"the sum of two denormal numbers", DCOMMI_CUDA_CHECK_ADD, 1, 2, 0, 3},
    {"a product that is denormal", DCOMMI_CUDA_CHECK_MUL, 0x0dc00000u, 0x2b800000u, 0, 0x300},
    {"the product of a denormal number and 2^100", DCOMMI_CUDA_CHECK_MUL, 1, 0x71800000u, 0,
     0x27000000u},
    {"a fused product and sum that is denormal", DCOMMI_CUDA_CHECK_FMA, 0x0dc00000u, 0x2b800000u, 1,
     0x301},
    {"a quotient that is denormal", DCOMMI_CUDA_CHECK_DIV, 0x00c00000u, 0x40000000u, 0,
     0x00600000u},
    {"a denormal number as f64", DCOMMI_CUDA_CHECK_WIDEN, 3, 0, 0, 0x36b80000u},
    {"an f64 as a denormal number", DCOMMI_CUDA_CHECK_NARROW, 0x0dc00000u, 0x2b800000u, 0, 0x300},
    {"a NaN plus 1", DCOMMI_CUDA_CHECK_ADD, 0xffc12345u, 0x3f800000u, 0, 0x7fffffffu},
    {"infinity minus infinity", DCOMMI_CUDA_CHECK_ADD, 0x7f800000u, 0xff800000u, 0, 0x7fffffffu},
    {"a NaN times 1", DCOMMI_CUDA_CHECK_MUL, 0xffc12345u, 0x3f800000u, 0, 0x7fffffffu},
    {"a NaN in a fused product and sum", DCOMMI_CUDA_CHECK_FMA, 0x3f800000u, 0x3f800000u,
     0xff812345u, 0x7fffffffu},
    {"1 / 3", DCOMMI_CUDA_CHECK_DIV, 0x3f800000u, 0x40400000u, 0, 0x3eaaaaabu},
    {"0x1.000002p0 / 0x1.fffffep0", DCOMMI_CUDA_CHECK_DIV, 0x3f800001u, 0x3fffffffu, 0,
     0x3f000002u},
    {"0x1.fffffep0 / 0x1.000006p0", DCOMMI_CUDA_CHECK_DIV, 0x3fffffffu, 0x3f800003u, 0,
     0x3ffffff9u},
    {"the low half of 1 / 10 in f64", DCOMMI_CUDA_CHECK_DDIV, 0x3f800000u, 0x41200000u, 0,
     0x9999999au},
    {"the low half of the root of 2 in f64", DCOMMI_CUDA_CHECK_DSQRT, 0x40000000u, 0, 0,
     0x667f3bcdu},
    {"a step's inverse, 2^28 / 3", DCOMMI_CUDA_CHECK_INVERSE, 0x40400000u, 0x4d800000u, 0,
     0x4caaaaabu},
    {"a step's inverse, 1 / 0x1.fffep-1", DCOMMI_CUDA_CHECK_INVERSE, 0x3f7fff00u, 0x3f800000u, 0,
     0x3f800080u},
    {"a step's inverse, 1 / 0x1.6a0cp-34", DCOMMI_CUDA_CHECK_INVERSE, 0x2eb50600u, 0x3f800000u, 0,
     0x503503e6u},
    {"a product that flushes a denormal factor", DCOMMI_CUDA_CHECK_FLUSHED, 3, 0x71800000u, 0, 0},
    {"a product that flushes, of normal factors", DCOMMI_CUDA_CHECK_FLUSHED, 0x40400000u,
     0x40000000u, 0, 0x40c00000u},
    {"the lesser of a NaN and 1", DCOMMI_CUDA_CHECK_MIN, 0xffc12345u, 0x3f800000u, 0,
     DCOMMI_F32_NAN},
    {"the greater of a NaN and 1", DCOMMI_CUDA_CHECK_MAX, 0x3f800000u, 0x7f812345u, 0,
     DCOMMI_F32_NAN},
    {"the lesser of 0 and -0", DCOMMI_CUDA_CHECK_MIN, 0, 0x80000000u, 0, 0x80000000u},
    {"the greater of two denormal numbers", DCOMMI_CUDA_CHECK_MAX, 2, 1, 0, 2},
    {"a denormal f16 as f32", DCOMMI_CUDA_CHECK_FROM_F16, 1, 0, 0, 0x33800000u},
    {"1.5 * 2^-24 as f16", DCOMMI_CUDA_CHECK_TO_F16, 0x33c00000u, 0, 0, 2},
    {"0x1.03p0 as bf16", DCOMMI_CUDA_CHECK_TO_BF16, 0x3f818000u, 0, 0, 0x3f82},
    {"two numbers as f16", DCOMMI_CUDA_CHECK_TWO_F16, 0x3f803000u, 0xc0466666u, 0, 0xc2333c02u},
    {"two numbers as bf16", DCOMMI_CUDA_CHECK_TWO_BF16, 0x3f818000u, 0xc0466666u, 0, 0xc0463f82u},
    {"and, then or", DCOMMI_CUDA_CHECK_AND_OR, 0xf0f0f0f0u, 0x00ffff00u, 0x0000000fu, 0x00f0f00fu}};

enum { DCOMMI_CUDA_CHECKS = sizeof dcommi_cuda_checks / sizeof *dcommi_cuda_checks };

struct dcommi_cuda_checking {
    dcommi_cuda_check all[DCOMMI_CUDA_CHECKS]; /* `what` is not for the device */
    uint32_t *got;                             /* in device memory, one for each */
};

DCOMMI_CUDA_INLINE uint32_t dcommi_cuda_check_half(double x, int half)
{
    return (uint32_t)(dcommi_f64_bits(x) >> 32 * half);
}

DCOMMI_CUDA_INLINE uint32_t dcommi_cuda_check_one(dcommi_cuda_check_op op, uint32_t a_bits,
                                                  uint32_t b_bits, uint32_t c_bits)
{
    const float a = dcommi_f32_from_bits(a_bits), b = dcommi_f32_from_bits(b_bits);
    const float c = dcommi_f32_from_bits(c_bits);
    const dcommi_cuda_rounding how = {};
    const dcommi_cuda_random random = {};
    switch (op) {
    case DCOMMI_CUDA_CHECK_ADD:
        return dcommi_f32_bits(__fadd_rn(a, b));
    case DCOMMI_CUDA_CHECK_MUL:
        return dcommi_f32_bits(__fmul_rn(a, b));
    case DCOMMI_CUDA_CHECK_FMA:
        return dcommi_f32_bits(__fmaf_rn(a, b, c));
    case DCOMMI_CUDA_CHECK_DIV:
        return dcommi_f32_bits(__fdiv_rn(a, b));
    case DCOMMI_CUDA_CHECK_WIDEN:
        return dcommi_cuda_check_half((double)a, 1);
    case DCOMMI_CUDA_CHECK_NARROW:
        return dcommi_f32_bits(__double2float_rn(__dmul_rn((double)a, (double)b)));
    case DCOMMI_CUDA_CHECK_DDIV:
        return dcommi_cuda_check_half(__ddiv_rn((double)a, (double)b), 0);
    case DCOMMI_CUDA_CHECK_DSQRT:
        return dcommi_cuda_check_half(__dsqrt_rn((double)a), 0);
    case DCOMMI_CUDA_CHECK_INVERSE:
        return dcommi_f32_bits(dcommi_cuda_inverse(a, b));
    case DCOMMI_CUDA_CHECK_FLUSHED:
        return dcommi_f32_bits(dcommi_cuda_flushed_mul(a, b));
    case DCOMMI_CUDA_CHECK_MIN:
        return dcommi_f32_bits(dcommi_cuda_f32::finish(dcommi_cuda_f32::least(a, b)));
    case DCOMMI_CUDA_CHECK_MAX:
        return dcommi_f32_bits(dcommi_cuda_f32::finish(dcommi_cuda_f32::most(a, b)));
    case DCOMMI_CUDA_CHECK_FROM_F16:
        return dcommi_f32_bits(dcommi_cuda_from_f16((uint16_t)a_bits));
    case DCOMMI_CUDA_CHECK_TO_F16:
        return dcommi_cuda_to_f16(a);
    case DCOMMI_CUDA_CHECK_TO_BF16:
        return dcommi_cuda_bf16::to(a);
    case DCOMMI_CUDA_CHECK_TWO_F16:
        return dcommi_cuda_cast_two<true, false>(a, b, how, random, 0);
    case DCOMMI_CUDA_CHECK_TWO_BF16:
        return dcommi_cuda_cast_two<false, false>(a, b, how, random, 0);
    default: /* DCOMMI_CUDA_CHECK_AND_OR */
        return dcommi_cuda_and_or(a_bits, b_bits, c_bits);
    }
}

/* Launch it with one block of DCOMMI_CUDA_CHECKS threads. */
static __global__ void __launch_bounds__(DCOMMI_CUDA_CHECKS)
    dcommi_cuda_check_kernel(const __grid_constant__ dcommi_cuda_checking p)
{
    const dcommi_cuda_check &check = p.all[threadIdx.x];
    p.got[threadIdx.x] = dcommi_cuda_check_one(check.op, check.a, check.b, check.c);
}

static dcommi_cuda_checking dcommi_cuda_checking_of(uint32_t *got)
{
    dcommi_cuda_checking p;
    memcpy(p.all, dcommi_cuda_checks, sizeof p.all);
    p.got = got;
    return p;
}

/* Fail with a sentence if one of the results, copied to the host, is wrong. */
static dcomm_status dcommi_cuda_check_result(const char *call,
                                             const uint32_t got[DCOMMI_CUDA_CHECKS])
{
    for (int i = 0; i < DCOMMI_CUDA_CHECKS; i++) {
        const dcommi_cuda_check &check = dcommi_cuda_checks[i];
        if (got[i] != check.want) {
            return dcommi_cuda_fail(DCOMM_ERR_SYSTEM,
                                    "%s: by these kernels %s is 0x%08x, not 0x%08x. They would "
                                    "write other bytes than the CPU: compile the .cu file without "
                                    "-use_fast_math and -ftz=true",
                                    call, check.what, (unsigned)got[i], (unsigned)check.want);
        }
    }
    return DCOMM_OK;
}

#endif
