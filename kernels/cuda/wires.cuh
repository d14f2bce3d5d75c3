/* wires.cuh - arguments of encoding kernels, and the sum of wires. */
#ifndef DCOMMI_CUDA_WIRES_H
#define DCOMMI_CUDA_WIRES_H

#include "ledger.cuh"

#define DCOMMI_CUDA_ENCODE_THREADS 128u
#define DCOMMI_CUDA_BLOCK_MOST 512u

/* The wires to decode. */
struct dcommi_cuda_wires {
    dcommi_cuda_operands in;
    uint64_t count, whole; /* elements; `whole`: those in whole lines and groups */
    uint64_t codes;        /* bytes of codes, before the steps */
    uint64_t groups;       /* groups of 128 elements in a bucket */
    int shift;             /* its logarithm; -1: it is not a power of two */
    float largest_step;
    bool exact; /* steps have 16 significant bits */
    bool pass;  /* a bucket may be NaN */
    bool pairs; /* all wires are aligned to 8 */
};

struct dcommi_cuda_bucket {
    dcommi_cuda_wires wires; /* for recoding */
    float factor;            /* for recoding */
    const float *x, *residual;
    float *next;
    unsigned char *wire;
    dcomm_cuda_report *report;
    bool refuses;             /* see dcommi_cuda_job */
    dcommi_cuda_tally *tally; /* one for each block, if there is a ledger */
    uint64_t count, codes;
    uint32_t bucket, team;    /* elements; logarithm of the lanes, for small buckets */
    float most, inverse_most; /* the largest number, in steps, and its reciprocal */
    dcommi_cuda_rounding how;
    bool two_norm, pass;
    bool usual;             /* a recoding that dcommi_cuda_recode may do */
    bool pairs, wire_pairs; /* arrays / the wire are aligned to 8 */
};

/* ---- the sum of wires ---- */

DCOMMI_CUDA_INLINE uint64_t dcommi_cuda_bucket_of(const dcommi_cuda_wires &in, uint64_t at)
{
    const uint64_t group = at / DCOMMI_RNG_GROUP;
    return in.shift >= 0 ? group >> in.shift : group / in.groups;
}

/* A thread's words and step of one wire. */
template <int FORMAT> struct dcommi_cuda_loaded {
    dcommi_cuda_codes<FORMAT> codes;
    float step;
};

/* Load a thread's codes and step of one wire. plain: the wires are aligned and the line is
 * whole. */
template <int FORMAT>
DCOMMI_CUDA_INLINE void dcommi_cuda_wire_load(const dcommi_cuda_wires &in, uint32_t w, uint64_t at,
                                              uint64_t bucket, bool plain,
                                              dcommi_cuda_loaded<FORMAT> *to)
{
    const unsigned char *wire = static_cast<const unsigned char *>(in.in.at[w]);
    to->codes = plain           ? dcommi_cuda_codes_load<FORMAT>(wire, at, true)
                : at < in.whole ? dcommi_cuda_codes_load<FORMAT>(wire, at, in.pairs)
                                : dcommi_cuda_codes_gather<FORMAT>(wire, at, in.count);
    to->step = dcommi_cuda_load<float>(wire + in.codes + 4 * bucket);
}

/* Add a thread's elements of one wire to `sum`. *nan: the bucket is NaN; *bad: no encoder wrote
 * it. */
template <int FORMAT>
DCOMMI_CUDA_INLINE void dcommi_cuda_wire_add(const dcommi_cuda_wires &in, uint64_t at,
                                             dcommi_cuda_loaded<FORMAT> from,
                                             float sum[DCOMMI_CUDA_OWN], bool *nan, bool *bad)
{
    dcommi_cuda_codes_own<FORMAT>(at, in.whole, &from.codes);
    if (!dcommi_wire_step_within(from.step, in.largest_step, in.exact)) {
        const bool marked = in.pass && dcommi_f32_bits(from.step) == DCOMMI_STEP_NAN;
        *nan = *nan || marked;
        *bad = *bad || !marked;
        from.step = 0;
    }
    *bad = *bad || dcommi_cuda_forbidden(from.codes) != 0;
    dcommi_cuda_decode_own<FORMAT>(from.codes, from.step, sum);
}

/* Add all wires to `sum`, in order. Load a few wires before using the first, because a thread has
 * little of each. */
template <int FORMAT>
DCOMMI_CUDA_INLINE void dcommi_cuda_wires_add(const dcommi_cuda_wires &in, uint64_t at,
                                              float sum[DCOMMI_CUDA_OWN], bool *nan, bool *bad)
{
    const int few = dcommi_cuda_format<FORMAT>::BITS == 8 ? 2 : 4;
    const uint64_t bucket = dcommi_cuda_bucket_of(in, at);
    const bool plain = in.pairs && at < in.whole;
    dcommi_cuda_loaded<FORMAT> loaded[few];
#pragma unroll 1
    for (uint32_t w = 0; w < in.in.n; w += few) {
        if (plain) {
#pragma unroll
            for (int i = 0; i < few; i++) {
                if (w + (uint32_t)i < in.in.n) {
                    dcommi_cuda_wire_load(in, w + (uint32_t)i, at, bucket, true, &loaded[i]);
                }
            }
        } else {
#pragma unroll
            for (int i = 0; i < few; i++) {
                if (w + (uint32_t)i < in.in.n) {
                    dcommi_cuda_wire_load(in, w + (uint32_t)i, at, bucket, false, &loaded[i]);
                }
            }
        }
#pragma unroll
        for (int i = 0; i < few; i++) {
            if (w + (uint32_t)i < in.in.n) {
                dcommi_cuda_wire_add(in, at, loaded[i], sum, nan, bad);
            }
        }
    }
}

/* Return true if the bits behind the last code are zero. One thread calls it. */
template <int FORMAT> DCOMMI_CUDA_INLINE bool dcommi_cuda_rest_clean(const dcommi_cuda_wires &in)
{
    typedef dcommi_cuda_format<FORMAT> format;
    const uint64_t whole = in.count / format::LINE;
    const unsigned used = (unsigned)(in.count % format::LINE) * format::BITS;
    unsigned bad = 0;
    for (uint32_t w = 0; w < in.in.n; w++) {
        const unsigned char *wire = static_cast<const unsigned char *>(in.in.at[w]);
        uint64_t i = whole * DCOMMI_WIRE_LINE + used / 8;
        if (used % 8 != 0) {
            bad |= wire[i++] >> used % 8;
        }
        for (; i < in.codes; i++) {
            bad |= wire[i];
        }
    }
    return bad == 0;
}

DCOMMI_CUDA_INLINE void dcommi_cuda_report_corrupt(dcomm_cuda_report *report)
{
    if (report != NULL) {
        atomicAdd(reinterpret_cast<unsigned long long *>(&report->corrupt), 1ull);
    }
}

DCOMMI_CUDA_INLINE void dcommi_cuda_report_beyond(dcomm_cuda_report *report)
{
    if (report != NULL) {
        atomicAdd(reinterpret_cast<unsigned long long *>(&report->beyond), 1ull);
    }
}

#endif
