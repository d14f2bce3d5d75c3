/* lanes_portable.h - sixteen 32-bit lanes in plain C. lanes_avx2.h and lanes_avx512.h have the
 * same functions with the same results. codec_loops.h writes its loops in them once.
 *
 * NAME_i are lanes of integers, NAME_f of f32, NAME_h sixteen packed 16-bit numbers. */
#ifndef DCOMMI_LANES_PORTABLE_H
#define DCOMMI_LANES_PORTABLE_H

#include "../rng.h"

#include <math.h>
#include <stdbool.h>
#include <stddef.h>

#define DCOMMI_vport_TARGET
#define DCOMMI_vport_INLINE __attribute__((always_inline, unused)) static inline

typedef struct dcommi_vport_i {
    uint32_t v[16];
} dcommi_vport_i;
typedef struct dcommi_vport_f {
    float v[16];
} dcommi_vport_f;
typedef struct dcommi_vport_h {
    uint16_t v[16];
} dcommi_vport_h;

#define DCOMMI_VPORT(RESULT, NAME, ARGUMENTS, EXPRESSION)                   \
    DCOMMI_vport_INLINE dcommi_vport_##RESULT dcommi_vport_##NAME ARGUMENTS \
    {                                                                       \
        dcommi_vport_##RESULT r;                                            \
        for (int l = 0; l < 16; l++) {                                      \
            r.v[l] = (EXPRESSION);                                          \
        }                                                                   \
        return r;                                                           \
    }

DCOMMI_VPORT(i, set_i, (int32_t x), (uint32_t)x)
DCOMMI_VPORT(f, set_f, (float x), x)
DCOMMI_VPORT(i, as_i, (dcommi_vport_f a), dcommi_f32_bits(a.v[l]))
DCOMMI_VPORT(f, as_f, (dcommi_vport_i a), dcommi_f32_from_bits(a.v[l]))
DCOMMI_VPORT(i, add_i, (dcommi_vport_i a, dcommi_vport_i b), a.v[l] + b.v[l])
DCOMMI_VPORT(i, sub_i, (dcommi_vport_i a, dcommi_vport_i b), a.v[l] - b.v[l])
DCOMMI_VPORT(i, and_i, (dcommi_vport_i a, dcommi_vport_i b), a.v[l] & b.v[l])
DCOMMI_VPORT(i, or_i, (dcommi_vport_i a, dcommi_vport_i b), a.v[l] | b.v[l])
DCOMMI_VPORT(i, xor_i, (dcommi_vport_i a, dcommi_vport_i b), a.v[l] ^ b.v[l])
/* (a & b) | c */
DCOMMI_VPORT(i, and_or, (dcommi_vport_i a, dcommi_vport_i b, dcommi_vport_i c),
             (a.v[l] & b.v[l]) | c.v[l])
/* (a & b) ^ c */
DCOMMI_VPORT(i, and_xor, (dcommi_vport_i a, dcommi_vport_i b, dcommi_vport_i c),
             (a.v[l] & b.v[l]) ^ c.v[l])
/* Signed. For f32 with the sign bit cleared, this is the order of the numbers, NaN on top. */
DCOMMI_VPORT(i, max_i, (dcommi_vport_i a, dcommi_vport_i b),
             (int32_t)a.v[l] > (int32_t)b.v[l] ? a.v[l] : b.v[l])
DCOMMI_VPORT(i, min_i, (dcommi_vport_i a, dcommi_vport_i b),
             (int32_t)a.v[l] < (int32_t)b.v[l] ? a.v[l] : b.v[l])
/* Shift by 0 to 31 bits. */
DCOMMI_VPORT(i, sll, (dcommi_vport_i a, dcommi_vport_i n), a.v[l] << n.v[l])
DCOMMI_VPORT(i, srl, (dcommi_vport_i a, dcommi_vport_i n), a.v[l] >> n.v[l])
DCOMMI_VPORT(i, sra, (dcommi_vport_i a, dcommi_vport_i n),
             (uint32_t)(((int64_t)(int32_t)a.v[l]) >> n.v[l]))
DCOMMI_VPORT(i, rol, (dcommi_vport_i a, unsigned n), (a.v[l] << n) | (a.v[l] >> ((32 - n) & 31)))
/* All ones if a < b, signed. */
DCOMMI_VPORT(i, less_i, (dcommi_vport_i a, dcommi_vport_i b),
             (int32_t)a.v[l] < (int32_t)b.v[l] ? ~0u : 0u)
/* x if a < b, signed; else y. */
DCOMMI_VPORT(i, pick_less, (dcommi_vport_i a, dcommi_vport_i b, dcommi_vport_i x, dcommi_vport_i y),
             (int32_t)a.v[l] < (int32_t)b.v[l] ? x.v[l] : y.v[l])
/* Denormals become 0. */
DCOMMI_VPORT(f, normal, (dcommi_vport_f a),
             dcommi_f32_from_bits((dcommi_f32_bits(a.v[l]) & 0x7f800000u) != 0
                                      ? dcommi_f32_bits(a.v[l])
                                      : 0))
/* normal(a) * b */
DCOMMI_VPORT(f, mul_normal, (dcommi_vport_f a, dcommi_vport_f b),
             (dcommi_f32_bits(a.v[l]) & 0x7f800000u) != 0 ? a.v[l] * b.v[l] : 0)
DCOMMI_VPORT(f, add_f, (dcommi_vport_f a, dcommi_vport_f b), a.v[l] + b.v[l])
DCOMMI_VPORT(f, sub_f, (dcommi_vport_f a, dcommi_vport_f b), a.v[l] - b.v[l])
DCOMMI_VPORT(f, mul_f, (dcommi_vport_f a, dcommi_vport_f b), a.v[l] * b.v[l])
/* a * b + c and c - a * b, for exact products: fusing does not change the result. */
DCOMMI_VPORT(f, exact_add, (dcommi_vport_f a, dcommi_vport_f b, dcommi_vport_f c),
             a.v[l] * b.v[l] + c.v[l])
DCOMMI_VPORT(f, exact_sub, (dcommi_vport_f a, dcommi_vport_f b, dcommi_vport_f c),
             c.v[l] - a.v[l] * b.v[l])
/* Convert towards zero, |a| < 2^31; and back. */
DCOMMI_VPORT(i, to_int, (dcommi_vport_f a), (uint32_t)(int32_t)a.v[l])
DCOMMI_VPORT(f, from_int, (dcommi_vport_i a), (float)(int32_t)a.v[l])
DCOMMI_VPORT(h, pack_h, (dcommi_vport_i a), (uint16_t)a.v[l])
DCOMMI_VPORT(i, unpack_h, (dcommi_vport_h a), a.v[l])
DCOMMI_VPORT(h, to_f16, (dcommi_vport_f a), dcommi_f32_to_f16(a.v[l]))
DCOMMI_VPORT(f, from_f16, (dcommi_vport_h a), dcommi_f16_to_f32(a.v[l]))

/* Code k of a line, `bits` bits each, times a step. If binary, bit 0 is step and bit 1 is
 * -step. */
#define DCOMMI_vport_MARKS 0 /* true if a code that does not exist becomes NaN */
typedef struct dcommi_vport_table {
    float step;
    bool binary;
} dcommi_vport_table;

DCOMMI_vport_INLINE dcommi_vport_table dcommi_vport_make_table(float step, unsigned bits,
                                                               bool binary)
{
    dcommi_vport_table r = {step, binary};
    (void)bits;
    return r;
}

DCOMMI_vport_INLINE dcommi_vport_f dcommi_vport_look(const dcommi_vport_table *table,
                                                     dcommi_vport_i line, unsigned k, unsigned bits)
{
    dcommi_vport_f r;
    for (int l = 0; l < 16; l++) {
        uint32_t top = line.v[l] << (32 - bits * (k + 1));
        if (table->binary) {
            r.v[l] = dcommi_f32_from_bits((top & 0x80000000u) ^ dcommi_f32_bits(table->step));
        } else {
            r.v[l] = (float)((int64_t)(int32_t)top >> (32 - bits)) * table->step;
        }
    }
    return r;
}

/* ---- memory: any alignment; 64 bytes if streaming ---- */

DCOMMI_vport_INLINE dcommi_vport_f dcommi_vport_load_f(const float *p)
{
    dcommi_vport_f r;
    memcpy(&r, p, sizeof r);
    return r;
}

DCOMMI_vport_INLINE dcommi_vport_i dcommi_vport_load_i(const void *p)
{
    dcommi_vport_i r;
    memcpy(&r, p, sizeof r);
    return r;
}

DCOMMI_vport_INLINE dcommi_vport_h dcommi_vport_load_h(const void *p)
{
    dcommi_vport_h r;
    memcpy(&r, p, sizeof r);
    return r;
}

/* Load sixteen bytes of e4m3 or e5m2 as f16. For e4m3 this gives the numbers divided by 256. */
DCOMMI_vport_INLINE dcommi_vport_h dcommi_vport_load_e4m3(const unsigned char *p)
{
    dcommi_vport_h r;
    for (int l = 0; l < 16; l++) { /* the sign moves one bit further than the rest */
        r.v[l] = (uint16_t)((p[l] & 0x7f) << 7 | (p[l] & 0x80) << 8);
    }
    return r;
}

DCOMMI_vport_INLINE dcommi_vport_h dcommi_vport_load_e5m2(const unsigned char *p)
{
    dcommi_vport_h r;
    for (int l = 0; l < 16; l++) {
        r.v[l] = (uint16_t)(p[l] << 8);
    }
    return r;
}

DCOMMI_vport_INLINE void dcommi_vport_store_f(float *p, dcommi_vport_f a, bool stream)
{
    (void)stream;
    memcpy(p, &a, sizeof a);
}

DCOMMI_vport_INLINE void dcommi_vport_store_i(void *p, dcommi_vport_i a, bool stream)
{
    (void)stream;
    memcpy(p, &a, sizeof a);
}

DCOMMI_vport_INLINE void dcommi_vport_store_h2(void *p, dcommi_vport_h a, dcommi_vport_h b,
                                               bool stream)
{
    (void)stream;
    memcpy(p, &a, sizeof a);
    memcpy((unsigned char *)p + sizeof a, &b, sizeof b);
}

/* Store four vectors of numbers up to 255 as bytes, in order. */
DCOMMI_vport_INLINE void dcommi_vport_store_b4(unsigned char *p, dcommi_vport_i a, dcommi_vport_i b,
                                               dcommi_vport_i c, dcommi_vport_i d, bool stream)
{
    (void)stream;
    for (int l = 0; l < 16; l++) {
        p[l] = (unsigned char)a.v[l];
        p[16 + l] = (unsigned char)b.v[l];
        p[32 + l] = (unsigned char)c.v[l];
        p[48 + l] = (unsigned char)d.v[l];
    }
}

/* ---- over all lanes ---- */

DCOMMI_vport_INLINE uint32_t dcommi_vport_most(dcommi_vport_i a)
{
    uint32_t most = a.v[0];
    for (int l = 1; l < 16; l++) {
        most = (int32_t)a.v[l] > (int32_t)most ? a.v[l] : most;
    }
    return most;
}

DCOMMI_vport_INLINE bool dcommi_vport_any(dcommi_vport_i a)
{
    uint32_t any = 0;
    for (int l = 0; l < 16; l++) {
        any |= a.v[l];
    }
    return any != 0;
}

/* Add in this order: l and l + 8, then + 4, + 2, + 1. */
DCOMMI_vport_INLINE float dcommi_vport_sum(dcommi_vport_f a)
{
    for (int half = 8; half > 0; half /= 2) {
        for (int l = 0; l < half; l++) {
            a.v[l] += a.v[l + half];
        }
    }
    return a.v[0];
}

/* Eight f64 sums, to which f64 products, which are exact, or numbers are added: lanes 0 to 7, then
 * 8 to 15. */
typedef struct dcommi_vport_d {
    double v[8];
} dcommi_vport_d;

DCOMMI_vport_INLINE dcommi_vport_d dcommi_vport_no_squares(void)
{
    dcommi_vport_d r = {{0}};
    return r;
}

DCOMMI_vport_INLINE dcommi_vport_d dcommi_vport_add_products(dcommi_vport_d sum, dcommi_vport_f a,
                                                             dcommi_vport_f b)
{
    for (int l = 0; l < 16; l++) {
        sum.v[l % 8] += (double)a.v[l] * (double)b.v[l];
    }
    return sum;
}

DCOMMI_vport_INLINE dcommi_vport_d dcommi_vport_add_values(dcommi_vport_d sum, dcommi_vport_f a)
{
    for (int l = 0; l < 16; l++) {
        sum.v[l % 8] += (double)a.v[l];
    }
    return sum;
}

DCOMMI_vport_INLINE dcommi_vport_d dcommi_vport_load_d(const double *p)
{
    dcommi_vport_d r;
    memcpy(&r, p, sizeof r);
    return r;
}

DCOMMI_vport_INLINE void dcommi_vport_store_d(double *p, dcommi_vport_d a)
{
    memcpy(p, &a, sizeof a);
}

DCOMMI_vport_INLINE double dcommi_vport_sum_squares(dcommi_vport_d a)
{
    for (int half = 4; half > 0; half /= 2) {
        for (int l = 0; l < half; l++) {
            a.v[l] += a.v[l + half];
        }
    }
    return a.v[0];
}

#define DCOMMI_vport_CHAINS 1 /* groups whose random numbers are computed in turn */

/* The words of a group: those that elements with k < 4 share, and those for k >= 4. */
typedef struct dcommi_vport_random {
    dcommi_vport_i word[2];
} dcommi_vport_random;

/* Split into begin, ten rounds and end, so that a loop can put other work between the rounds. */
typedef struct dcommi_vport_philox {
    const dcommi_rng *rng;
    uint64_t group;
} dcommi_vport_philox;

DCOMMI_vport_INLINE dcommi_vport_philox dcommi_vport_philox_begin(const dcommi_rng *rng,
                                                                  uint64_t group)
{
    dcommi_vport_philox s = {rng, group};
    return s;
}

DCOMMI_vport_INLINE dcommi_vport_philox dcommi_vport_philox_round(dcommi_vport_philox s,
                                                                  const dcommi_rng *rng, unsigned i)
{
    (void)rng, (void)i;
    return s;
}

DCOMMI_vport_INLINE dcommi_vport_random dcommi_vport_philox_end(dcommi_vport_philox s)
{
    dcommi_vport_random r;
    for (int i = 0; i < 8; i++) {
        uint32_t word[4];
        dcommi_rng_block(s.rng, 8 * s.group + (unsigned)i, word);
        for (int j = 0; j < 4; j++) {
            r.word[j / 2].v[2 * i + j % 2] = word[j];
        }
    }
    return r;
}

#endif
