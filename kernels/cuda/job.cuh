/* job.cuh - parts of the codec calls of cuda.h: check arguments, and choose the kernels of dense
 * codecs by their layout. */
#ifndef DCOMMI_CUDA_JOB_H
#define DCOMMI_CUDA_JOB_H

#include "cast.cuh"

/* Arguments of an encoding, of an array or of wires. */
struct dcommi_cuda_job {
    const char *call;
    dcomm_codec_layout layout;
    uint64_t count;
    const float *x, *residual;
    float *next;
    unsigned char *wire;
    dcomm_cuda_report *report;
    bool refuses;             /* the input is sums of wires, which must be finite */
    dcommi_cuda_tally *tally; /* NULL without a ledger */
};

static bool dcommi_cuda_casts(const dcomm_codec_layout &layout)
{
    return layout.format == DCOMM_FORMAT_F16 || layout.format == DCOMM_FORMAT_BF16;
}

static dcomm_status dcommi_cuda_layout(const char *call, const dcomm_codec *codec,
                                       dcomm_codec_layout *layout)
{
    if (codec == NULL) {
        return dcommi_cuda_fail(DCOMM_ERR_INVALID, "%s: codec is NULL", call);
    }
    if (dcomm_codec_get_layout(codec, layout) != DCOMM_OK) {
        return dcommi_cuda_fail(DCOMM_ERR_UNSUPPORTED, "%s: codec %s has no kernels", call,
                                dcomm_codec_spec(codec));
    }
    return DCOMM_OK;
}

/* Cut a workspace into parts, one behind the other. If base is NULL, only add up their lengths. */
struct dcommi_cuda_parts {
    unsigned char *base;
    size_t at;
    template <class T> T *take(uint64_t n)
    {
        T *part = base != NULL ? reinterpret_cast<T *>(base + at) : NULL;
        at += (size_t)((n * sizeof(T) + 63) / 64 * 64);
        return part;
    }
};

static dcomm_status dcommi_cuda_workspace_check(const char *call, const void *workspace,
                                                size_t bytes)
{
    if (bytes > 0 && (workspace == NULL || !dcommi_cuda_aligned(workspace, 64))) {
        return dcommi_cuda_fail(DCOMM_ERR_INVALID, "%s: workspace is %s; %zu bytes are needed",
                                call, workspace == NULL ? "NULL" : "not aligned to 64", bytes);
    }
    return DCOMM_OK;
}

static dcomm_status dcommi_cuda_zero(const char *call, void *p, size_t bytes, void *stream)
{
    return dcommi_cuda_given(call, cudaMemsetAsync(p, 0, bytes, static_cast<cudaStream_t>(stream)),
                             stream);
}

/* Set the arguments that kernels of all codecs have in common. */
template <class P> static void dcommi_cuda_job_tell(const dcommi_cuda_job &job, P *p)
{
    p->x = job.x;
    p->residual = job.residual;
    p->next = job.next;
    p->wire = job.wire;
    p->report = job.report;
    p->refuses = job.refuses;
}

/* Return true if all arrays of the job are aligned to `to` bytes. */
static bool dcommi_cuda_job_aligned(const dcommi_cuda_job &job, size_t to)
{
    return dcommi_cuda_aligned(job.x, to) && dcommi_cuda_aligned(job.residual, to) &&
           dcommi_cuda_aligned(job.next, to);
}

/* Check the arguments and set all of the job but the layout and x. */
static dcomm_status dcommi_cuda_job_make(dcommi_cuda_job *job, const char *call,
                                         const dcomm_codec *codec, const float *residual,
                                         float *next, size_t count, void *wire, size_t capacity,
                                         dcomm_cuda_report *report)
{
    *job = dcommi_cuda_job();
    job->call = call;
    job->count = count;
    job->residual = residual;
    job->next = next;
    job->wire = static_cast<unsigned char *>(wire);
    job->report = report;
    if (codec == NULL) {
        return dcommi_cuda_fail(DCOMM_ERR_INVALID, "%s: codec is NULL", call);
    }
    const size_t need = dcomm_codec_max_bytes(codec, count);
    if (need == SIZE_MAX || capacity < need) {
        return dcommi_cuda_fail(DCOMM_ERR_INVALID,
                                "%s: %s writes %zu bytes for %zu elements, and capacity is %zu",
                                call, dcomm_codec_spec(codec), need, count, capacity);
    }
    DCOMMI_CUDA_TRY(dcommi_cuda_array(call, "wire", wire, need, 4));
    DCOMMI_CUDA_TRY(dcommi_cuda_array(call, "report", report, 0, 8));
    DCOMMI_CUDA_TRY(dcommi_cuda_array(call, "residual", residual, 0, sizeof(float)));
    return dcommi_cuda_array(call, "next", next, residual != NULL ? count : 0, sizeof(float));
}

/* Return the constants of a layout's rounding. */
static dcommi_cuda_rounding dcommi_cuda_rounding_of(const dcomm_codec_layout &layout,
                                                    const dcomm_codec_key *key)
{
    dcommi_cuda_rounding how = dcommi_cuda_rounding();
    const int format = (int)layout.format;
    how.stochastic = layout.stochastic;
    how.mini = format == DCOMM_FORMAT_E4M3   ? dcommi_mini_e4m3
               : format == DCOMM_FORMAT_E5M2 ? dcommi_mini_e5m2
                                             : dcommi_mini_f16;
    how.magic = 8388608.0f / how.mini.units;
    how.unit = 1;
    if (format <= DCOMM_FORMAT_Q8) {
        how.magic = 8388608.0f;
        const unsigned bits = dcommi_format_bits[format];
        const uint32_t fraction = 0xffffffffu >> bits;
        /* Stochastic: add random bits, with the last ten fixed at their mean. Nearest: add one
         * half. */
        how.mask = layout.stochastic ? fraction & ~(uint32_t)1023 : 0;
        how.half = layout.stochastic ? 512 : fraction / 2 + 1;
        how.unit = format == DCOMM_FORMAT_Q1 ? 1073741824.0f : (float)(1u << (32 - bits));
    }
    const dcomm_codec_key k = dcommi_cuda_key(key);
    how.rng = dcommi_rng_make(k.seed, k.tensor, k.step, k.rank, k.first);
    return how;
}

static dcomm_status dcommi_cuda_lengths(const char *call, const dcomm_codec *codec,
                                        const size_t *bytes, size_t n, size_t count)
{
    const size_t wanted = dcomm_codec_max_bytes(codec, count);
    for (size_t w = 0; w < n; w++) {
        if (bytes == NULL || bytes[w] != wanted) {
            return bytes == NULL ? dcommi_cuda_fail(DCOMM_ERR_INVALID, "%s: bytes is NULL", call)
                                 : dcommi_cuda_fail(DCOMM_ERR_CORRUPT,
                                                    "%s: a wire of %zu elements has %zu bytes, "
                                                    "not %zu",
                                                    call, count, wanted, bytes[w]);
        }
    }
    return DCOMM_OK;
}

static dcommi_cuda_wires dcommi_cuda_wires_of(const dcomm_codec_layout &layout,
                                              const dcommi_cuda_operands &in, size_t count)
{
    dcommi_cuda_wires wires = dcommi_cuda_wires();
    const int format = (int)layout.format;
    wires.in = in;
    const size_t line = 8 * DCOMMI_WIRE_LINE / dcommi_format_bits[format];
    const size_t span = line > DCOMMI_RNG_GROUP ? line : DCOMMI_RNG_GROUP;
    wires.count = count;
    wires.whole = count / span * span;
    wires.codes = dcommi_wire_codes(count, dcommi_format_bits[format]);
    wires.groups = layout.bucket / DCOMMI_RNG_GROUP;
    wires.shift = -1;
    for (int i = 0; i < 32; i++) {
        wires.shift = (uint64_t)1 << i == wires.groups ? i : wires.shift;
    }
    wires.largest_step = dcommi_wire_step(DCOMMI_WIRE_LARGEST, dcommi_format_most[format]);
    wires.exact = format != DCOMM_FORMAT_SIGN;
    wires.pass = layout.nonfinite == 2;
    wires.pairs = true;
    for (uint32_t w = 0; w < in.n; w++) {
        wires.pairs = wires.pairs && dcommi_cuda_aligned(in.at[w], 8);
    }
    return wires;
}

/* ---- casts ---- */

static dcommi_cuda_cast dcommi_cuda_cast_of(const dcomm_codec_layout &layout,
                                            const dcomm_codec_key *key)
{
    dcommi_cuda_cast p = dcommi_cuda_cast();
    const bool half = layout.format == DCOMM_FORMAT_F16;
    p.largest = half ? 65504.0f : dcommi_f32_from_bits(0x7f7f0000u);
    p.limit = dcommi_f32_bits(p.largest) + (layout.stochastic ? 1u : half ? 0x1000u : 0x8000u);
    p.how = dcommi_cuda_rounding_of(layout, key);
    p.pass = layout.nonfinite == 2;
    p.factor = 1;
    return p;
}

/* ---- encoding ---- */

static dcomm_status dcommi_cuda_job_run(const dcommi_cuda_job &job, const dcommi_cuda_operands *in,
                                        float factor, const dcomm_codec_key *key, void *stream)
{
    const bool pairs = dcommi_cuda_job_aligned(job, 8);
    if (job.count == 0) {
        return DCOMM_OK;
    }
    if (dcommi_cuda_casts(job.layout)) {
        dcommi_cuda_cast p = dcommi_cuda_cast_of(job.layout, key);
        dcommi_cuda_job_tell(job, &p);
        p.count = job.count;
        p.pairs = pairs;
        p.factor = factor;
        if (in != NULL) {
            p.in = *in;
        }
        p.tally = job.tally;
        return job.layout.format == DCOMM_FORMAT_F16
                   ? dcommi_cuda_cast_launch<true>(job.call, in != NULL, p, stream)
                   : dcommi_cuda_cast_launch<false>(job.call, in != NULL, p, stream);
    }
    const int format = (int)job.layout.format;
    dcommi_cuda_bucket p = dcommi_cuda_bucket();
    if (in != NULL) {
        p.wires = dcommi_cuda_wires_of(job.layout, *in, job.count);
    }
    p.factor = factor;
    dcommi_cuda_job_tell(job, &p);
    p.tally = job.tally;
    p.count = job.count;
    p.codes = dcommi_wire_codes(job.count, dcommi_format_bits[format]);
    p.bucket = (uint32_t)job.layout.bucket;
    p.most = dcommi_format_most[format];
    p.inverse_most = 1 / p.most;
    p.how = dcommi_cuda_rounding_of(job.layout, key);
    p.two_norm = job.layout.two_norm;
    p.pass = job.layout.nonfinite == 2;
    p.pairs = pairs;
    p.wire_pairs = dcommi_cuda_aligned(job.wire, 8);
    return in != NULL ? dcommi_cuda_encode_format<true, false>(job.call, format, &p, stream)
           : job.tally != NULL
               ? dcommi_cuda_encode_format<false, true>(job.call, format, &p, stream)
               : dcommi_cuda_encode_format<false, false>(job.call, format, &p, stream);
}

/* ---- decoding ---- */

/* Decode dense wires: store their sum in x, or add it. */
static dcomm_status dcommi_cuda_decode_run(const char *call, const dcomm_codec_layout &layout,
                                           const dcommi_cuda_operands &in, float *x, size_t count,
                                           bool add, dcomm_cuda_report *report, void *stream)
{
    if (count == 0) {
        return DCOMM_OK;
    }
    if (dcommi_cuda_casts(layout)) {
        dcommi_cuda_cast p = dcommi_cuda_cast_of(layout, NULL);
        p.in = in;
        p.next = x;
        p.report = report;
        p.count = count;
        p.pairs = dcommi_cuda_aligned(x, 8);
        p.add = add;
        return dcommi_cuda_uncast_launch(call, layout.format == DCOMM_FORMAT_F16, p, stream);
    }
    dcommi_cuda_dequant p = dcommi_cuda_dequant();
    p.wires = dcommi_cuda_wires_of(layout, in, count);
    p.x = x;
    p.report = report;
    p.add = add;
    p.pairs = dcommi_cuda_aligned(x, 8);
    return dcommi_cuda_decode_format(call, (int)layout.format, p, stream);
}

#endif
