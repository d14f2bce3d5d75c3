/* bucket.cuh - the work of one thread for the formats of kernels/wire.h: 16 elements, their random
 * numbers, their codes, and the numbers that codes represent.
 *
 * A group of 128 elements is eight rows of 16. Eight threads share it: thread j has columns 2j and
 * 2j+1 of all rows. One block of random numbers serves for these, and their codes lie in two words
 * of a line. v[2k+c] is the element of row k, column 2j+c. */
#ifndef DCOMMI_CUDA_BUCKET_H
#define DCOMMI_CUDA_BUCKET_H

#include "base.cuh"

#define DCOMMI_CUDA_OWN 16
#define DCOMMI_CUDA_TEAM (DCOMMI_RNG_GROUP / DCOMMI_CUDA_OWN)

/* OFF: offset of v[e] from the thread's first element. REACH: the offset behind all of them. */
#define DCOMMI_CUDA_ROW 16
#define DCOMMI_CUDA_OFF(e) ((unsigned)(e) / 2 * DCOMMI_CUDA_ROW + (unsigned)(e) % 2)
#define DCOMMI_CUDA_REACH (7 * DCOMMI_CUDA_ROW + 2)

/* ---- formats ---- */

template <int FORMAT> struct dcommi_cuda_format {
    static const bool SIGN = FORMAT == DCOMMI_FORMAT_SIGN;
    static const bool F8 = FORMAT >= DCOMMI_FORMAT_E4M3;
    static const unsigned BITS = FORMAT == DCOMMI_FORMAT_Q2         ? 2
                                 : FORMAT == DCOMMI_FORMAT_Q4       ? 4
                                 : FORMAT == DCOMMI_FORMAT_Q8 || F8 ? 8
                                                                    : 1;
    static const unsigned LINE = 8 * DCOMMI_WIRE_LINE / BITS; /* elements */
    static const int WORDS = BITS == 8 ? 4 : 2;               /* words of a thread's codes */
};

/* A format as a type, for launchers that take any format. */
template <int FORMAT> struct dcommi_cuda_constant {
    static const int value = FORMAT;
};

/* Call f(c), where c::value is the format. */
template <class F> static dcomm_status dcommi_cuda_of_format(int format, F f)
{
    switch (format) {
    case DCOMMI_FORMAT_Q1:
        return f(dcommi_cuda_constant<DCOMMI_FORMAT_Q1>());
    case DCOMMI_FORMAT_Q2:
        return f(dcommi_cuda_constant<DCOMMI_FORMAT_Q2>());
    case DCOMMI_FORMAT_Q4:
        return f(dcommi_cuda_constant<DCOMMI_FORMAT_Q4>());
    case DCOMMI_FORMAT_Q8:
        return f(dcommi_cuda_constant<DCOMMI_FORMAT_Q8>());
    case DCOMMI_FORMAT_SIGN:
        return f(dcommi_cuda_constant<DCOMMI_FORMAT_SIGN>());
    case DCOMMI_FORMAT_E4M3:
        return f(dcommi_cuda_constant<DCOMMI_FORMAT_E4M3>());
    default:
        return f(dcommi_cuda_constant<DCOMMI_FORMAT_E5M2>());
    }
}

/* Codes of a thread: code k of column c is at bit k * BITS of w[c]; with eight bits, at bit k%4 *
 * 8 of w[2(k/4)+c]. */
template <int FORMAT> struct dcommi_cuda_codes {
    uint32_t w[dcommi_cuda_format<FORMAT>::WORDS];
};

#define DCOMMI_CUDA_WORD(BITS, k, c) ((BITS) == 8 ? 2 * ((k) / 4) + (c) : (c))
#define DCOMMI_CUDA_BIT(BITS, k) ((BITS) == 8 ? 8 * ((k) % 4) : (BITS) * (k))

template <int FORMAT>
DCOMMI_CUDA_INLINE uint32_t dcommi_cuda_code_get(const dcommi_cuda_codes<FORMAT> &codes, int k,
                                                 int c)
{
    const unsigned bits = dcommi_cuda_format<FORMAT>::BITS;
    return codes.w[DCOMMI_CUDA_WORD(bits, k, c)] >> DCOMMI_CUDA_BIT(bits, k) & ((1u << bits) - 1);
}

/* ---- elements in memory ---- */

/* Return the number of elements from `at` to `end`, cut to 0x10000, so that 32 bits suffice to
 * tell which of a thread's elements exist. */
DCOMMI_CUDA_INLINE uint32_t dcommi_cuda_left(uint64_t at, uint64_t end)
{
    const uint64_t left = end > at ? end - at : 0;
    return left < 0x10000u ? (uint32_t)left : 0x10000u;
}

/* Begin sums with -0: x added to it is x, even if x is a zero of either sign. */
DCOMMI_CUDA_INLINE void dcommi_cuda_own_nothing(float v[DCOMMI_CUDA_OWN])
{
#pragma unroll
    for (int e = 0; e < DCOMMI_CUDA_OWN; e++) {
        v[e] = -0.0f;
    }
}

/* Load the thread's elements from x on. Elements from `left` on do not exist and become 0. */
DCOMMI_CUDA_INLINE void dcommi_cuda_own_load(const float *x, uint32_t left, bool pairs,
                                             float v[DCOMMI_CUDA_OWN])
{
    if (left >= DCOMMI_CUDA_REACH && pairs) {
#pragma unroll
        for (int k = 0; k < 8; k++) {
            float2 two = dcommi_cuda_load<float2>(x + DCOMMI_CUDA_ROW * k);
            v[2 * k] = two.x;
            v[2 * k + 1] = two.y;
        }
    } else {
#pragma unroll
        for (int e = 0; e < DCOMMI_CUDA_OWN; e++) {
            v[e] = DCOMMI_CUDA_OFF(e) < left ? dcommi_cuda_load<float>(x + DCOMMI_CUDA_OFF(e)) : 0;
        }
    }
}

DCOMMI_CUDA_INLINE void dcommi_cuda_own_store(float *x, uint32_t left, bool pairs,
                                              const float v[DCOMMI_CUDA_OWN])
{
    if (left >= DCOMMI_CUDA_REACH && pairs) {
#pragma unroll
        for (int k = 0; k < 8; k++) {
            float2 two;
            two.x = v[2 * k];
            two.y = v[2 * k + 1];
            dcommi_cuda_store<float2>(x + DCOMMI_CUDA_ROW * k, two);
        }
    } else {
#pragma unroll
        for (int e = 0; e < DCOMMI_CUDA_OWN; e++) {
            if (DCOMMI_CUDA_OFF(e) < left) {
                dcommi_cuda_store<float>(x + DCOMMI_CUDA_OFF(e), v[e]);
            }
        }
    }
}

/* ---- random numbers ---- */

struct dcommi_cuda_random {
    uint32_t word[4];
};

/* Return the number of the random block; `at` is the thread's first element. */
DCOMMI_CUDA_INLINE uint64_t dcommi_cuda_random_block(const dcommi_rng &rng, uint64_t at)
{
    return 8 * (rng.group + at / DCOMMI_RNG_GROUP) + at % DCOMMI_RNG_GROUP / 2;
}

DCOMMI_CUDA_INLINE dcommi_cuda_random dcommi_cuda_random_of(const dcommi_rng &rng, uint64_t block)
{
    dcommi_cuda_random r;
    dcommi_rng_block(&rng, block, r.word);
    return r;
}

/* Rotate the word so that the element's own byte is on top, and by `more` bits beyond. */
DCOMMI_CUDA_INLINE uint32_t dcommi_cuda_turned(const dcommi_cuda_random &r, int k, int c,
                                               unsigned more)
{
    const uint32_t w = r.word[2 * (k / 4) + c];
    return __funnelshift_l(w, w, (8 * (unsigned)(k % 4) + more) % 32);
}

/* ---- encoding ---- */

/* The step of a bucket, and the factor from elements to codes. */
struct dcommi_cuda_scale {
    float step, inverse;
};

/* The constants of a format's rounding. */
struct dcommi_cuda_rounding {
    dcommi_rng rng;
    dcommi_mini mini;    /* of 8-bit floats and f16 */
    float magic;         /* its last place is the mini's smallest number, or 1 */
    uint32_t mask, half; /* bits used of a random number, bits added to it */
    float unit;          /* unit of codes, before the division by the step */
    bool stochastic;
};

/* Return |y| as a code of few bits, without clipping; see `mini` in cpu/codec_loops.h. */
template <bool STOCHASTIC>
DCOMMI_CUDA_INLINE uint32_t dcommi_cuda_mini(float y, uint32_t random,
                                             const dcommi_cuda_rounding &how)
{
    const dcommi_mini &to = how.mini;
    const int cut = 23 - to.fraction;
    const uint32_t a = dcommi_f32_bits(y) & 0x7fffffffu, least = dcommi_f32_bits(to.least);
    uint32_t large, small;
    if (STOCHASTIC) {
        large = a - to.rebias + (random >> (32 - cut));
        const float below = dcommi_f32_from_bits(a < least ? a : least);
        small = (uint32_t)__float2int_rz(__fmul_rn(below, __fmul_rn(to.units, 65536.0f)));
        small = (small + (random >> 16)) >> 16;
    } else {
        large = a + (a >> cut & 1) + ((1u << (cut - 1)) - 1 - to.rebias);
        small = dcommi_f32_bits(__fadd_rn(dcommi_f32_from_bits(a), how.magic)) -
                dcommi_f32_bits(how.magic);
    }
    return a < least ? small : large >> cut;
}

/* Return a code of 8 bits as a number; that of e4m3 is divided by 256. */
template <int FORMAT> DCOMMI_CUDA_INLINE float dcommi_cuda_from_f8(uint32_t b)
{
    return dcommi_cuda_from_f16(FORMAT == DCOMMI_FORMAT_E5M2
                                    ? (uint16_t)(b << 8)
                                    : (uint16_t)((b & 0x7f) << 7 | (b & 0x80) << 8));
}

/* Convert a signed integer of up to 8 bits to f32. Adding it to 1.5 * 2^23 is exact. */
template <unsigned BITS> DCOMMI_CUDA_INLINE float dcommi_cuda_level(uint32_t code)
{
    const int32_t level = (int32_t)(code << (32 - BITS)) >> (32 - BITS);
    return __fsub_rn(dcommi_f32_from_bits(0x4b400000u + (uint32_t)level), 12582912.0f);
}

/* Return the multiple of the step that a code represents. */
template <int FORMAT> DCOMMI_CUDA_INLINE float dcommi_cuda_times(uint32_t code)
{
    typedef dcommi_cuda_format<FORMAT> format;
    if (format::F8) {
        return dcommi_cuda_from_f8<FORMAT>(code);
    }
    return dcommi_cuda_level<format::BITS>(code);
}

/* Return 1 or -1 times the step. */
template <int FORMAT> DCOMMI_CUDA_INLINE float dcommi_cuda_binary(uint32_t code, float step)
{
    const uint32_t turn = FORMAT == DCOMMI_FORMAT_Q1 ? code ^ 1 : code;
    return dcommi_f32_from_bits(dcommi_f32_bits(step) ^ turn << 31);
}

/* Return v * by, or 0 (of either sign) if v or the product is denormal. */
DCOMMI_CUDA_INLINE float dcommi_cuda_flushed_mul(float v, float by)
{
#ifdef __CUDA_ARCH__
    float y;
    asm("mul.rn.ftz.f32 %0, %1, %2;" : "=f"(y) : "f"(v), "f"(by));
    return y;
#else
    return (dcommi_f32_bits(v) & 0x7f800000u) != 0 ? __fmul_rn(v, by) : 0;
#endif
}

/* Return the code of v, in the top bits of a word. */
template <int FORMAT, bool STOCHASTIC>
DCOMMI_CUDA_INLINE uint32_t dcommi_cuda_encode_one(float v, const dcommi_cuda_scale &scale,
                                                   const dcommi_cuda_rounding &how,
                                                   const dcommi_cuda_random &random, int k, int c)
{
    typedef dcommi_cuda_format<FORMAT> format;
    if (format::SIGN) {
        return dcommi_f32_bits(v);
    }
    if (format::F8) {
        const bool normal = (dcommi_f32_bits(v) & 0x7f800000u) != 0;
        const float y = normal ? __fmul_rn(v, scale.inverse) : 0;
        const uint32_t turned = STOCHASTIC ? dcommi_cuda_turned(random, k, c, 0) : 0;
        const uint32_t a = dcommi_cuda_mini<STOCHASTIC>(y, turned, how);
        const uint32_t code = a < how.mini.most ? a : how.mini.most;
        return code << 24 | (dcommi_f32_bits(y) & 0x80000000u);
    }
    const float y = dcommi_cuda_flushed_mul(v, scale.inverse);
    const uint32_t turned = STOCHASTIC ? dcommi_cuda_turned(random, k, c, 32 - format::BITS) : 0;
    const uint32_t t =
        (uint32_t)__float2int_rz(y) + (STOCHASTIC ? (turned & how.mask) | how.half : how.half);
    return FORMAT == DCOMMI_FORMAT_Q1 ? t + 0x40000000u : t;
}

/* Encode v with the random numbers of a block. With FEEDBACK, v becomes the rounding errors. */
template <int FORMAT, bool STOCHASTIC, bool FEEDBACK>
DCOMMI_CUDA_INLINE dcommi_cuda_codes<FORMAT>
dcommi_cuda_encode_own(float v[DCOMMI_CUDA_OWN], const dcommi_cuda_scale &scale,
                       const dcommi_cuda_rounding &how, uint64_t block)
{
    typedef dcommi_cuda_format<FORMAT> format;
    dcommi_cuda_codes<FORMAT> codes = {};
    dcommi_cuda_random random = {};
    if (STOCHASTIC) {
        random = dcommi_cuda_random_of(how.rng, block);
    }
    const float step = FORMAT == DCOMMI_FORMAT_E4M3 ? __fmul_rn(scale.step, 256.0f) : scale.step;
#pragma unroll
    for (int k = 7; k >= 0; k--) { /* the last code of a word goes in first */
#pragma unroll
        for (int c = 0; c < 2; c++) {
            const float x = v[2 * k + c];
            const uint32_t top =
                dcommi_cuda_encode_one<FORMAT, STOCHASTIC>(x, scale, how, random, k, c);
            uint32_t *word = &codes.w[DCOMMI_CUDA_WORD(format::BITS, k, c)];
            *word = __funnelshift_l(top, *word, format::BITS);
            if (FEEDBACK) {
                const uint32_t code = top >> (32 - format::BITS);
                const float sent = format::BITS == 1
                                       ? dcommi_cuda_binary<FORMAT>(code, step)
                                       : __fmul_rn(dcommi_cuda_times<FORMAT>(code), step);
                v[2 * k + c] = __fsub_rn(x, sent);
            }
        }
    }
    return codes;
}

/* ---- codes on the wire ---- */

DCOMMI_CUDA_INLINE uint2 dcommi_cuda_words_load(const unsigned char *p, bool pairs)
{
    if (pairs) {
        return dcommi_cuda_load<uint2>(p);
    }
    uint2 words;
    words.x = dcommi_cuda_load<uint32_t>(p);
    words.y = dcommi_cuda_load<uint32_t>(p + 4);
    return words;
}

DCOMMI_CUDA_INLINE void dcommi_cuda_words_store(unsigned char *p, uint32_t a, uint32_t b,
                                                bool pairs)
{
    if (pairs) {
        uint2 words;
        words.x = a;
        words.y = b;
        dcommi_cuda_store<uint2>(p, words);
    } else {
        dcommi_cuda_store<uint32_t>(p, a);
        dcommi_cuda_store<uint32_t>(p + 4, b);
    }
}

/* Return the code of element i of `count`, wherever it is. */
template <int FORMAT>
DCOMMI_CUDA_INLINE uint32_t dcommi_cuda_code_at(const unsigned char *wire, uint64_t i,
                                                uint64_t count)
{
    typedef dcommi_cuda_format<FORMAT> format;
    const uint64_t line = i / format::LINE;
    const unsigned e = (unsigned)(i % format::LINE);
    unsigned bit = e * format::BITS;
    if (!format::F8 && (line + 1) * format::LINE <= count) {
        bit = 32 * (e % 16) + e / 16 * format::BITS;
    }
    return wire[line * DCOMMI_WIRE_LINE + bit / 8] >> bit % 8 & ((1u << format::BITS) - 1);
}

/* Gather the codes of a thread near the end, one by one. */
template <int FORMAT>
DCOMMI_CUDA_INLINE dcommi_cuda_codes<FORMAT> dcommi_cuda_codes_gather(const unsigned char *wire,
                                                                      uint64_t at, uint64_t count)
{
    typedef dcommi_cuda_format<FORMAT> format;
    dcommi_cuda_codes<FORMAT> codes;
    const int rows = format::BITS == 8 ? 4 : 8; /* rows of a word */
#pragma unroll
    for (int w = 0; w < format::WORDS; w++) {
        uint64_t i = at + (uint64_t)(w / 2 * rows * DCOMMI_CUDA_ROW + w % 2);
        uint32_t word = 0;
#pragma unroll 1
        for (int k = 0; k < rows && i < count; k++, i += DCOMMI_CUDA_ROW) {
            word |= dcommi_cuda_code_at<FORMAT>(wire, i, count) << k * (int)format::BITS;
        }
        codes.w[w] = word;
    }
    return codes;
}

/* Load a thread's codes from a whole line and a whole group. If groups share a line, the words
 * also hold the other groups' codes, until dcommi_cuda_codes_own. */
template <int FORMAT>
DCOMMI_CUDA_INLINE dcommi_cuda_codes<FORMAT> dcommi_cuda_codes_load(const unsigned char *wire,
                                                                    uint64_t at, bool pairs)
{
    typedef dcommi_cuda_format<FORMAT> format;
    dcommi_cuda_codes<FORMAT> codes = {};
    if (format::F8) {
        const unsigned char *p = wire + at;
#pragma unroll
        for (int k = 0; k < 8; k++) {
            const uint32_t two = dcommi_cuda_load<uint16_t>(p + DCOMMI_CUDA_ROW * k);
            codes.w[2 * (k / 4)] |= (two & 0xff) << 8 * (k % 4);
            codes.w[2 * (k / 4) + 1] |= two >> 8 << 8 * (k % 4);
        }
        return codes;
    }
    const unsigned lane = (unsigned)(at % DCOMMI_RNG_GROUP) / 2;
    const unsigned char *p = wire + at / format::LINE * DCOMMI_WIRE_LINE + 8 * lane;
    uint2 words = dcommi_cuda_words_load(p, pairs);
    codes.w[0] = words.x;
    codes.w[1] = words.y;
    if (format::BITS == 8) {
        words = dcommi_cuda_words_load(p + DCOMMI_WIRE_LINE, pairs);
        codes.w[format::WORDS - 2] = words.x;
        codes.w[format::WORDS - 1] = words.y;
    }
    return codes;
}

/* Extract the thread's own codes from loaded words. whole: the elements that are in whole lines
 * and groups. */
template <int FORMAT>
DCOMMI_CUDA_INLINE void dcommi_cuda_codes_own(uint64_t at, uint64_t whole,
                                              dcommi_cuda_codes<FORMAT> *codes)
{
    typedef dcommi_cuda_format<FORMAT> format;
    if (format::BITS < 4 && at < whole) {
        const unsigned down = (unsigned)(at % format::LINE) / DCOMMI_RNG_GROUP * 8 * format::BITS;
        codes->w[0] = codes->w[0] >> down & (0xffffffffu >> (32 - 8 * format::BITS) % 32);
        codes->w[1] = codes->w[1] >> down & (0xffffffffu >> (32 - 8 * format::BITS) % 32);
    }
}

/* Zero the words of the last, partial line; each thread then adds its codes. All threads of the
 * block that has this line call it, before any of them stores codes. */
template <int FORMAT>
DCOMMI_CUDA_INLINE void dcommi_cuda_rest_clear(unsigned char *wire, uint64_t count)
{
    typedef dcommi_cuda_format<FORMAT> format;
    const uint64_t line = count / format::LINE;
    const uint64_t words = dcommi_wire_codes((size_t)count, format::BITS) / 4;
    const uint64_t word = line * (DCOMMI_WIRE_LINE / 4) + threadIdx.x;
    if (word < words) {
        reinterpret_cast<uint32_t *>(wire)[word] = 0;
    }
    __syncthreads();
}

/* Add the thread's codes to the partial line: those among the last `end % LINE` elements. `left`
 * is the number of elements from the thread's first to `end`. */
template <int FORMAT>
DCOMMI_CUDA_INLINE void dcommi_cuda_rest_store(unsigned char *wire, uint64_t end, uint32_t left,
                                               const dcommi_cuda_codes<FORMAT> &codes)
{
    typedef dcommi_cuda_format<FORMAT> format;
    const uint32_t rest = (uint32_t)(end % format::LINE);
    const int rows = format::BITS == 8 ? 4 : 8; /* rows of a word */
    unsigned *words = reinterpret_cast<unsigned *>(wire + end / format::LINE * DCOMMI_WIRE_LINE);
#pragma unroll
    for (int w = 0; w < format::WORDS; w++) {
        uint32_t word = codes.w[w];
        uint32_t off = (uint32_t)(w / 2 * rows * DCOMMI_CUDA_ROW + w % 2);
#pragma unroll 1
        for (int k = 0; k < rows && off < left; k++, off += DCOMMI_CUDA_ROW) {
            if (left - off <= rest) {
                const uint32_t bit = (rest - (left - off)) * format::BITS;
                atomicOr(words + bit / 32, (word & ((1u << format::BITS) - 1)) << bit % 32);
            }
            word >>= format::BITS;
        }
    }
}

/* Store codes to their lines, if a line ends within `left` elements. Every lane of the warp calls
 * this. */
template <int FORMAT>
DCOMMI_CUDA_INLINE void dcommi_cuda_codes_store(unsigned char *wire, uint64_t at, uint32_t left,
                                                bool pairs, const dcommi_cuda_codes<FORMAT> &codes)
{
    typedef dcommi_cuda_format<FORMAT> format;
    const unsigned lane = (unsigned)(at % DCOMMI_RNG_GROUP) / 2;
    const uint32_t behind = left + (uint32_t)(at % format::LINE); /* from the line's begin */
    unsigned char *p = wire + at / format::LINE * DCOMMI_WIRE_LINE + 8 * lane;
    if (format::F8) {
#pragma unroll
        for (int k = 0; k < 8; k++) {
            const uint32_t two =
                dcommi_cuda_code_get(codes, k, 0) | dcommi_cuda_code_get(codes, k, 1) << 8;
            if (behind >= (unsigned)(k / 4 + 1) * format::LINE) {
                dcommi_cuda_store<uint16_t>(wire + at + DCOMMI_CUDA_ROW * k, (uint16_t)two);
            }
        }
        return;
    }
    uint32_t a = codes.w[0], b = codes.w[1];
    bool mine = true;
    if (format::BITS < 4) { /* collect the codes of two or four groups, which neighbours have */
        const unsigned up = (unsigned)(at % format::LINE) / DCOMMI_RNG_GROUP * 8 * format::BITS;
        a <<= up;
        b <<= up;
#pragma unroll
        for (unsigned far = DCOMMI_CUDA_TEAM; far < format::LINE / DCOMMI_CUDA_OWN; far *= 2) {
            a |= __shfl_xor_sync(0xffffffffu, a, far);
            b |= __shfl_xor_sync(0xffffffffu, b, far);
        }
        mine = up == 0;
    }
    if (mine && behind >= format::LINE) {
        dcommi_cuda_words_store(p, a, b, pairs);
    }
    if (format::BITS == 8 && behind >= 2 * format::LINE) {
        dcommi_cuda_words_store(p + DCOMMI_WIRE_LINE, codes.w[format::WORDS - 2],
                                codes.w[format::WORDS - 1], pairs);
    }
}

/* ---- decoding ---- */

/* Return non-zero if there is a code that no encoder writes. */
template <int FORMAT>
DCOMMI_CUDA_INLINE uint32_t dcommi_cuda_forbidden(const dcommi_cuda_codes<FORMAT> &codes)
{
    typedef dcommi_cuda_format<FORMAT> format;
    const uint32_t ones = format::BITS == 8   ? 0x01010101u
                          : format::BITS == 4 ? 0x11111111u
                                              : 0x55555555u;
    const uint32_t high = ones << (format::BITS - 1);
    uint32_t bad = 0;
#pragma unroll
    for (int i = 0; i < format::WORDS; i++) {
        const uint32_t w = codes.w[i];
        if (format::F8) {
            bad |= (w & 0x7f7f7f7fu) + (FORMAT == DCOMMI_FORMAT_E4M3 ? 0x01010101u : 0x04040404u);
        } else if (format::BITS > 1) {
            const uint32_t t = w ^ high;
            bad |= (t - ones) & ~t;
        }
    }
    return bad & high;
}

/* Return x & mask | base in one instruction, which ptxas does not find if both are constants. */
DCOMMI_CUDA_INLINE uint32_t dcommi_cuda_and_or(uint32_t x, uint32_t mask, uint32_t base)
{
#ifdef __CUDA_ARCH__
    uint32_t v;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(v) : "r"(x), "r"(mask), "r"(base));
    return v;
#else
    return (x & mask) | base;
#endif
}

/* Return code k of column c, of 2, 4 or 8 bits, as a number times 2^*up. The code becomes part of
 * the fraction of 2^23, at its bit position in the word, counted from the lowest code. */
template <unsigned BITS>
DCOMMI_CUDA_INLINE float dcommi_cuda_times_up(const uint32_t *w, int k, int c, int *up)
{
    const uint32_t sign = 1u << (BITS - 1);
    if (BITS == 8) {
        *up = 0;
        const uint32_t code = w[DCOMMI_CUDA_WORD(BITS, k, c)] ^ 0x80808080u;
        const uint32_t alone = __byte_perm(code, 0x4b000000u, 0x7440u | (unsigned)(k % 4));
        return __fsub_rn(dcommi_f32_from_bits(alone), 8388608.0f + 128.0f);
    }
    const int in_half = 16 / (int)BITS; /* codes further up do not fit into the fraction */
    *up = (int)BITS * (k % in_half);
    const uint32_t code = w[c] ^ 0xffffffffu / ((1u << BITS) - 1) * sign;
    const uint32_t mask = ((1u << BITS) - 1) << *up;
    const uint32_t alone = dcommi_cuda_and_or(k < in_half ? code : code >> 16, mask, 0x4b000000u);
    return __fsub_rn(dcommi_f32_from_bits(alone), 8388608.0f + (float)(sign << *up));
}

/* Add codes * step to `sum`; the products are exact. */
template <int FORMAT>
DCOMMI_CUDA_INLINE void dcommi_cuda_decode_own(const dcommi_cuda_codes<FORMAT> &codes, float step,
                                               float sum[DCOMMI_CUDA_OWN])
{
    typedef dcommi_cuda_format<FORMAT> format;
    const float by = FORMAT == DCOMMI_FORMAT_E4M3 ? __fmul_rn(step, 256.0f) : step;
#pragma unroll
    for (int e = 0; e < DCOMMI_CUDA_OWN; e++) {
        if (format::BITS == 1) {
            const uint32_t code = dcommi_cuda_code_get(codes, e / 2, e % 2);
            sum[e] = __fadd_rn(sum[e], dcommi_cuda_binary<FORMAT>(code, step));
        } else if (format::F8) {
            const uint32_t code = dcommi_cuda_code_get(codes, e / 2, e % 2);
            sum[e] = __fmaf_rn(dcommi_cuda_times<FORMAT>(code), by, sum[e]);
        } else {
            int up;
            const float times = dcommi_cuda_times_up<format::BITS>(codes.w, e / 2, e % 2, &up);
            const float down = dcommi_f32_from_bits((uint32_t)(127 - up) << 23); /* 2^-up */
            sum[e] = __fmaf_rn(times, __fmul_rn(step, down), sum[e]);
        }
    }
}

#endif
