/* cuda.h - codecs and reductions on device memory, as CUDA kernels.
 *
 * A program that calls these functions has one .cu file with
 *     #define DCOMM_CUDA_IMPLEMENTATION
 *     #include "dcomm.h"
 * and links it with the file that has DCOMM_IMPLEMENTATION and with CUDA's runtime. Callers need no
 * CUDA header and may be C; they need no communicator either. docs/cuda.md shows a program.
 *
 * A stream is a cudaStream_t, passed as void *. NULL means "no stream" everywhere in dcomm (here,
 * in dcomm_coll_opts.stream, in dcomm_param_mark_ready). Without a stream, the call reads data
 * behind what the default stream holds (cudaMemcpy returns before its bytes are there), and its
 * results are there when it returns or when its request is complete. To use CUDA's default stream,
 * pass cudaStreamLegacy.
 *
 * Rules for all functions:
 * - Data pointers point to memory that the current device can read and write. Arrays of such
 *   pointers, codecs and keys are in host memory and are read before the call returns.
 * - A call launches one kernel on the stream (with sparse codecs and powersgd, a few; with a
 *   ledger, two more), and returns. It allocates nothing and waits for nothing. Its launches do
 *   not depend on the data. So it can be captured into a graph, which keeps its arguments. Without
 *   a stream it launches on the default stream, and returns when the kernel has ended.
 * - The results are the same bytes as those of the function of the same name in compress.h. That
 *   function reports or refuses some things after reading the data; here they go into a
 *   dcomm_cuda_report.
 * - Elements must be aligned to their size, wires to 4 bytes; an alignment of 16 is fastest.
 * - Errors: DCOMM_ERR_INVALID (an argument), DCOMM_ERR_UNSUPPORTED (a codec without kernels, more
 *   than DCOMM_CUDA_OPERANDS operands), DCOMM_ERR_SYSTEM (the launch failed); dcomm_last_error has
 *   the sentence. Errors while the kernel runs appear on the stream; without a stream, the call
 *   returns them. */
#ifndef DCOMM_CUDA_H
#define DCOMM_CUDA_H

#include "ledger.h"

#ifdef __cplusplus
extern "C" {
#endif

#define DCOMM_CUDA_OPERANDS 128 /* most arrays or encodings (wires) in one call */

/* Findings of kernels, added up over calls. It lies in device memory, aligned to 8 bytes. Zero it
 * before the first call. */
typedef struct dcomm_cuda_report {
    uint64_t clipped;   /* as in dcomm_codec_report */
    uint64_t nonfinite; /* as in dcomm_codec_report */
    uint64_t first;     /* UINT64_MAX minus the index of the first non-finite input; 0: none */
    uint64_t corrupt;   /* not 0: a wire cannot come from this codec */
    uint64_t beyond;    /* not 0: a sum of wires is beyond f32, and the codec refuses that */
    uint64_t kept;      /* elements that the last encoding by a sparse codec sent; not added up */
} dcomm_cuda_report;

/* Return the status of one call, from its report copied to host memory. It is the status that the
 * function of the same name in compress.h returns: DCOMM_ERR_CORRUPT; DCOMM_ERR_RANGE if a
 * recoding with nonfinite=fail has a sum beyond f32, or if a wire of a linear codec (randk,
 * powersgd) has a non-finite number, without nonfinite=pass; DCOMM_ERR_INVALID after non-finite
 * inputs with nonfinite=fail. Set *out (may be NULL) to the report of an encoding. */
DCOMM_API dcomm_status dcomm_cuda_report_check(const dcomm_codec *codec, size_t count,
                                               const dcomm_cuda_report *report,
                                               dcomm_codec_report *out);

/* Load all kernels onto the current device. Unless CUDA_MODULE_LOADING=EAGER is set, CUDA loads a
 * kernel at its first launch, and for that it may wait for all work on the device's streams. After
 * this call no launch waits; the call itself may wait, and allocates. Collectives on device memory
 * call it. A process's first call for a device also checks, by a kernel on a stream of its own,
 * that arithmetic is what the kernels rely on: -use_fast_math or -ftz=true would change bytes.
 * Errors: DCOMM_ERR_UNSUPPORTED (the driver loads at launches only, as those before CUDA 12.4's
 * do), DCOMM_ERR_TIMEOUT (the check's kernel has not ended within 30 s), DCOMM_ERR_SYSTEM (a result
 * is wrong: the sentence says which; or the runtime has failed). */
DCOMM_API dcomm_status dcomm_cuda_load(void);

/* ---- reductions ---- */

/* Reduce: dst[i] = src[0][i] op src[1][i] op ..., from the left, for `count` elements and 1 <=
 * nsrc <= DCOMM_CUDA_OPERANDS. dst may be any src, or memory that overlaps no src. 16-bit floats
 * accumulate in f32 and round once. If divisor > 1, the result is divided by it, as DCOMM_AVG
 * does; only for sums and averages. DCOMM_PREMUL_SUM is a sum. The caller's operators are not
 * supported. */
DCOMM_API dcomm_status dcomm_cuda_reduce(void *dst, const void *const *src, size_t nsrc,
                                         size_t count, dcomm_dtype dtype, dcomm_op op,
                                         int64_t divisor, void *stream);
/* Scale: dst[i] = factor * src[i], as DCOMM_PREMUL_SUM scales its inputs. The product is in f64
 * for f64 and in f32 for other floats. For integers it is in f64 and rounded towards zero. dst may
 * be src. */
DCOMM_API dcomm_status dcomm_cuda_scale(void *dst, const void *src, size_t count, dcomm_dtype dtype,
                                        double factor, void *stream);

/* Convert any floats to f32: dst = factor * src. The product is an f64 and is rounded once. A NaN
 * becomes the canonical NaN. Compressed all-reduces use this for elements that are not f32 (with
 * factor 1), and for pre-multiplied sums. dst must not overlap src, except that dst may be src if
 * src is f32. */
DCOMM_API dcomm_status dcomm_cuda_to_f32(float *dst, const void *src, size_t count,
                                         dcomm_dtype dtype, double factor, void *stream);
/* Convert f32 to any floats, rounding to nearest even; otherwise as dcomm_cuda_to_f32. */
DCOMM_API dcomm_status dcomm_cuda_from_f32(void *dst, const float *src, size_t count,
                                           dcomm_dtype dtype, void *stream);

/* Add: x[i] += factor * y[i], in f32. The product is exact and the sum is rounded once. A sum
 * beyond f32 becomes the largest f32 of its sign, a NaN the largest. It is for residuals of error
 * feedback. y must not overlap x. */
DCOMM_API dcomm_status dcomm_cuda_add_scaled(float *x, float factor, const float *y, size_t count,
                                             void *stream);

/* Scatter into x, `count` f32: x[index[i]] = value[i] for n pairs with different indices. With
 * `add`, x[index[i]] += value[i], and a sum that is not finite becomes finite as above. Other
 * elements do not change. An index that is not below count does nothing. */
DCOMM_API dcomm_status dcomm_cuda_scatter(float *x, size_t count, const uint32_t *index,
                                          const float *value, size_t n, bool add, void *stream);

/* Steps of error feedback other than encoding. g is a gradient, r a residual or estimate, u a
 * velocity, e the encoder's input, and s its decoded output. */
typedef enum dcomm_cuda_feedback_op {
    DCOMM_CUDA_FEEDBACK_WIDEN = 0,    /* f32 <- bf16: dst = a */
    DCOMM_CUDA_FEEDBACK_NARROW = 1,   /* bf16 <- f32, to nearest even, but not to an infinity */
    DCOMM_CUDA_FEEDBACK_ADD = 2,      /* e = g + r; e = r if g is not finite, which is counted */
    DCOMM_CUDA_FEEDBACK_LACK = 3,     /* e = g - r; e = 0 if g is not finite, which is counted */
    DCOMM_CUDA_FEEDBACK_MISSING = 4,  /* g - r; 0 if g is not finite */
    DCOMM_CUDA_FEEDBACK_LEFT = 5,     /* e - s; non-finite values count as 0 */
    DCOMM_CUDA_FEEDBACK_LEARN = 6,    /* r + s; non-finite values count as 0 */
    DCOMM_CUDA_FEEDBACK_MOMENTUM = 7, /* g + factor u: the product exact, the sum rounded once */
    DCOMM_CUDA_FEEDBACK_FORGET = 8,   /* u; 0 if s is not 0, or u is not finite */
    DCOMM_CUDA_FEEDBACK_FINISH = 9    /* r + s, as they are */
} dcomm_cuda_feedback_op;

/* Do one step of dcomm_cuda_feedback_op. Its first array is a, its second b (NULL for WIDEN and
 * NARROW), and its result dst. Arrays are f32, except the bf16 side of WIDEN and NARROW. dst may
 * be a or b if their elements have equal size. In ADD, LACK, LEFT and LEARN a result that is not
 * finite becomes finite as in dcomm_cuda_add_scaled; ADD and LACK count it. In MISSING, MOMENTUM
 * and FINISH a NaN becomes the canonical NaN. Only MOMENTUM uses factor. Only ADD and LACK use
 * report (may be NULL). */
DCOMM_API dcomm_status dcomm_cuda_feedback(dcomm_cuda_feedback_op op, void *dst, const void *a,
                                           float factor, const float *b, size_t count,
                                           dcomm_cuda_report *report, void *stream);

/* A clipping factor for DGC. It lies in device memory, aligned to 8 bytes. */
typedef struct dcomm_cuda_clip {
    double squares; /* sum of the elements' squares */
    float factor;   /* at most 1; the factor that reduces the two-norm to `most` */
} dcomm_cuda_clip;

/* Set *clip for the array g, `count` elements. Squares are summed in f64 in the CPU's order
 * (docs/wire-formats.md); denormal and non-finite elements count as 0. The call launches two
 * kernels. workspace: dcomm_cuda_feedback_clip_workspace_bytes bytes of device memory, aligned to
 * 8. */
DCOMM_API dcomm_status dcomm_cuda_feedback_clip(dcomm_cuda_clip *clip, const float *g, size_t count,
                                                double most, void *workspace, void *stream);
/* Return the bytes of that workspace. */
DCOMM_API size_t dcomm_cuda_feedback_clip_workspace_bytes(size_t count);
/* Do DCOMM_CUDA_FEEDBACK_MOMENTUM with clipping: u = clip->factor * g + momentum * before. The
 * product with g is rounded, if g is finite. u may be g or before. */
DCOMM_API dcomm_status dcomm_cuda_feedback_clipped(float *u, const float *g,
                                                   const dcomm_cuda_clip *clip, float momentum,
                                                   const float *before, size_t count, void *stream);

/* Findings of dcomm_cuda_look. It lies in device memory or in pinned host memory, aligned to 8
 * bytes. */
typedef struct dcomm_cuda_sight {
    uint64_t index; /* index of the first non-finite element; UINT64_MAX: none */
    double value;   /* value of that element; 0: none */
    double squares; /* sum of all elements' squares; not finite if an element is not */
} dcomm_cuda_sight;

/* Look for overflow in x, `count` floats (f64, f32, f16, bf16), and set *sight. Unscale x in the
 * same pass: x[i] = factor * x[i], as dcomm_cuda_scale does; with factor 1, x is only read. The
 * field `squares` is the sum before scaling, in f64, in an order that depends only on the count.
 * drop: if an element is not finite, all of x becomes 0. The call launches two kernels, with drop
 * three. workspace: dcomm_cuda_look_workspace_bytes bytes of device memory, aligned to 8. */
DCOMM_API dcomm_status dcomm_cuda_look(void *x, size_t count, dcomm_dtype dtype, double factor,
                                       bool drop, dcomm_cuda_sight *sight, void *workspace,
                                       void *stream);
/* Return the bytes of that workspace. */
DCOMM_API size_t dcomm_cuda_look_workspace_bytes(size_t count);

/* ---- codecs: f16, bf16, fp8, qsgd, tern, sign, topk, threshold, topk+qsgd, randk, powersgd -- */

/* Encode as dcomm_encode does, or with residual (NULL: none) as dcomm_encode_feedback does. A wire
 * has exactly dcomm_codec_max_bytes bytes. Only a wire of `threshold` may be shorter: the report
 * has the number of its elements. workspace: dcomm_cuda_workspace_bytes bytes of device memory,
 * aligned to 64. topk leaves hints in its workspace. They make its next call with the same k and
 * count faster, but never change a byte. So keep one workspace per tensor from step to step.
 * report may be NULL. */
DCOMM_API dcomm_status dcomm_cuda_encode(const dcomm_codec *codec, const float *x,
                                         const float *residual, float *next, size_t count,
                                         const dcomm_codec_key *key, void *wire, size_t capacity,
                                         void *workspace, dcomm_cuda_report *report, void *stream);
/* The sums of a dcomm_ledger, added up over calls. It lies in device memory, aligned to 8 bytes.
 * Zero it before the first call. */
typedef struct dcomm_cuda_ledger {
    uint64_t count; /* elements compared */
    double sums[8]; /* for dcomm_cuda_ledger_add */
} dcomm_cuda_ledger;

/* Encode as dcomm_cuda_encode does, and count the encoding in a ledger (dcomm_encode_ledger). The
 * kernels that encode also compute the sums, and one or two short launches follow. Wires of
 * powersgd, and of topk+qsgd with nonfinite=pass, are decoded and compared instead. The order of
 * the sums depends only on codec and count (sparse codecs: also on numbers and key). So the sums
 * are the same from run to run, and differ from the CPU's by the rounding of f64 sums. workspace:
 * dcomm_cuda_ledger_workspace_bytes bytes of device memory, aligned to 64. topk uses no hints of
 * earlier calls in the workspace. */
DCOMM_API dcomm_status dcomm_cuda_encode_ledger(const dcomm_codec *codec, const float *x,
                                                const float *residual, float *next, size_t count,
                                                const dcomm_codec_key *key, void *wire,
                                                size_t capacity, void *workspace,
                                                dcomm_cuda_report *report,
                                                dcomm_cuda_ledger *ledger, void *stream);
/* Return the bytes of that workspace. */
DCOMM_API size_t dcomm_cuda_ledger_workspace_bytes(const dcomm_codec *codec, size_t count);
/* Compare y with x (NULL: do not compare) as dcomm_ledger_compare does. Unless next is NULL, count
 * the residual `next` of an encoding with feedback that sent y. The call is for values that are
 * decoded anyway, and for recodings, which have no input: then x is NULL, and y is the decoded
 * wire. The call launches two or three kernels. workspace: dcomm_cuda_compare_workspace_bytes
 * bytes of device memory, aligned to 64. */
DCOMM_API dcomm_status dcomm_cuda_ledger_compare(dcomm_cuda_ledger *ledger, const float *x,
                                                 const float *y, const float *next, size_t count,
                                                 void *workspace, void *stream);
/* Return the bytes of that workspace. */
DCOMM_API size_t dcomm_cuda_compare_workspace_bytes(size_t count);
/* Add an encoding of `count` elements to a ledger in host memory. `sums` is a copy of the device's
 * ledger. `report` is from dcomm_cuda_report_check. The residual's norm becomes that of all
 * encodings in `sums`. To get that of the last encoding only, zero the device's ledger before
 * it. */
DCOMM_API void dcomm_cuda_ledger_add(dcomm_ledger *ledger, size_t count,
                                     const dcomm_cuda_ledger *sums,
                                     const dcomm_codec_report *report);
/* Decode and sum n wires, bytes[i] long, as dcomm_decode_sum does; n = 1: as dcomm_decode does. If
 * the length of a wire of `threshold` is unknown, pass dcomm_codec_max_bytes; so many bytes must
 * be readable. workspace: dcomm_cuda_decode_workspace_bytes bytes of device memory, aligned to 64.
 * It is used only within the call. */
DCOMM_API dcomm_status dcomm_cuda_decode_sum(const dcomm_codec *codec, const void *const *wires,
                                             const size_t *bytes, size_t n, float *x, size_t count,
                                             void *workspace, dcomm_cuda_report *report,
                                             void *stream);
/* Decode and add n wires, one after the other, as dcomm_decode_add does: acc = ((acc + wires[0]) +
 * wires[1]) + ... */
DCOMM_API dcomm_status dcomm_cuda_decode_add(const dcomm_codec *codec, const void *const *wires,
                                             const size_t *bytes, size_t n, float *acc,
                                             size_t count, void *workspace,
                                             dcomm_cuda_report *report, void *stream);
/* Decode n wires of codec fp8 and reduce them as dcomm_cuda_reduce does, with all its operators, in
 * one pass. */
DCOMM_API dcomm_status dcomm_cuda_reduce_fp8(const dcomm_codec *codec, const void *const *wires,
                                             const size_t *bytes, size_t n, float *dst,
                                             size_t count, dcomm_op op, int64_t divisor,
                                             dcomm_cuda_report *report, void *stream);
/* Decode n wires, add them, multiply by `factor` and encode again, as dcomm_recode does. Dense
 * codecs keep the sum in registers, other codecs in the workspace. workspace:
 * dcomm_cuda_recode_workspace_bytes bytes of device memory. Keep the workspace from step to step,
 * as that of dcomm_cuda_encode. */
DCOMM_API dcomm_status dcomm_cuda_recode(const dcomm_codec *codec, const void *const *wires,
                                         const size_t *bytes, size_t n, float factor,
                                         const float *residual, float *next, size_t count,
                                         const dcomm_codec_key *key, void *wire, size_t capacity,
                                         void *workspace, dcomm_cuda_report *report, void *stream);
/* Return the bytes of device memory that an encoding needs as workspace, aligned to 64. With 0,
 * workspace may be NULL. */
DCOMM_API size_t dcomm_cuda_workspace_bytes(const dcomm_codec *codec, size_t count);
/* Return the bytes of workspace for decoding any number of wires. */
DCOMM_API size_t dcomm_cuda_decode_workspace_bytes(const dcomm_codec *codec, size_t count);
/* Return the bytes of workspace for recoding. */
DCOMM_API size_t dcomm_cuda_recode_workspace_bytes(const dcomm_codec *codec, size_t count);

/* ---- powersgd, step by step ---- */

/* An array of `count` elements as a matrix of rows x cols, stored row by row, with zeros at the
 * end of the last row. P is `rank` columns of `rows` elements, one column after the other. Q is
 * `rank` columns of `cols` elements. A wire is P followed by Q. */
typedef struct dcomm_codec_matrix {
    size_t count;      /* number of elements of the array */
    size_t rows, cols; /* size of the matrix */
    size_t rank;       /* number of columns of P and of Q */
    int turns;         /* number of times that both products are computed */
    int nonfinite;     /* 0 fail, 1 zero, 2 pass */
} dcomm_codec_matrix;

/* Describe the matrix of `count` elements in *shape.
 * Errors: DCOMM_ERR_INVALID (NULL), DCOMM_ERR_UNSUPPORTED (the codec is not powersgd). */
DCOMM_API dcomm_status dcomm_codec_get_matrix(const dcomm_codec *codec, size_t count,
                                              dcomm_codec_matrix *shape);

/* An encoding is start, p, orthonormal, q (the last three `turns` times). With error feedback,
 * product with how = -1 onto x + residual follows. If ranks sum P before orthonormal, and Q after
 * q, the result approximates the sum. Each function is one launch and writes the same bytes as the
 * CPU. Denormal and non-finite elements of x count as 0. Costs: p and q read x once for every four
 * columns of P. product reads and writes x once. start and orthonormal are short, but grow with
 * cols and with rows * rank^2.
 *
 * Start: prepare q for a step. Columns that are not 0 keep their direction. Columns of zeros
 * become random; their random numbers depend on the key, but not on its rank. Zero q before the
 * first step. */
DCOMM_API dcomm_status dcomm_cuda_powersgd_start(const dcomm_codec_matrix *shape,
                                                 const dcomm_codec_key *key, float *q,
                                                 void *stream);
/* Multiply: p = x q. Non-finite elements of x are counted in report, which may be NULL. */
DCOMM_API dcomm_status dcomm_cuda_powersgd_p(const dcomm_codec_matrix *shape, const float *x,
                                             const float *q, float *p, dcomm_cuda_report *report,
                                             void *stream);
/* Make the columns of p orthonormal. */
DCOMM_API dcomm_status dcomm_cuda_powersgd_orthonormal(const dcomm_codec_matrix *shape, float *p,
                                                       void *stream);
/* Multiply: q = x^T p. A value beyond f32 becomes the largest f32 and is counted in
 * report->clipped. */
DCOMM_API dcomm_status dcomm_cuda_powersgd_q(const dcomm_codec_matrix *shape, const float *x,
                                             const float *p, float *q, dcomm_cuda_report *report,
                                             void *stream);
/* Multiply: x = p q^T (how = 0: decode), x += p q^T (how = 1), or x -= p q^T (how = -1). */
DCOMM_API dcomm_status dcomm_cuda_powersgd_product(const dcomm_codec_matrix *shape, const float *p,
                                                   const float *q, float *x, int how, void *stream);
/* Compute e -= p q^T, and in the same pass count an encoding in a ledger. The encoding is of x and
 * sent p q^T; e is x + residual. The ledger gets the same bits as by
 * dcomm_cuda_ledger_compare(ledger, x, p q^T, e, ...). e NULL means that there is no feedback, and
 * x is only read. The call launches two or three kernels. workspace:
 * dcomm_cuda_compare_workspace_bytes bytes of device memory, aligned to 64. */
DCOMM_API dcomm_status dcomm_cuda_powersgd_product_ledger(const dcomm_codec_matrix *shape,
                                                          const float *p, const float *q,
                                                          const float *x, float *e, void *workspace,
                                                          dcomm_cuda_ledger *ledger, void *stream);

/* ---- for other back ends ---- */

/* Format of a dense codec's values (docs/wire-formats.md). Q1, Q2, Q4 and Q8 are quantization
 * levels of 1, 2, 4 and 8 bits. SIGN is only the sign. E4M3 and E5M2 are the formats of fp8. F16,
 * BF16 and F32 are floats. */
typedef enum dcomm_codec_format {
    DCOMM_FORMAT_Q1 = 0,
    DCOMM_FORMAT_Q2 = 1,
    DCOMM_FORMAT_Q4 = 2,
    DCOMM_FORMAT_Q8 = 3,
    DCOMM_FORMAT_SIGN = 4,
    DCOMM_FORMAT_E4M3 = 5,
    DCOMM_FORMAT_E5M2 = 6,
    DCOMM_FORMAT_F16 = 7,
    DCOMM_FORMAT_BF16 = 8,
    DCOMM_FORMAT_F32 = 9 /* sparse codecs only */
} dcomm_codec_format;

/* A dense codec's format and options. */
typedef struct dcomm_codec_layout {
    dcomm_codec_format format; /* format of the values */
    size_t bucket;             /* number of elements that share a quantization step; 0: there are
                                  no steps */
    bool two_norm;   /* the step is computed from the two-norm, not from the largest element */
    bool stochastic; /* rounding is stochastic, not to nearest */
    int nonfinite;   /* 0 fail, 1 zero, 2 pass */
} dcomm_codec_layout;

/* Describe a dense codec in *layout.
 * Errors: DCOMM_ERR_INVALID (NULL), DCOMM_ERR_UNSUPPORTED (the codec is not dense). */
DCOMM_API dcomm_status dcomm_codec_get_layout(const dcomm_codec *codec, dcomm_codec_layout *layout);

/* Selection and format of topk, threshold and topk+qsgd for an array of `count` elements. */
typedef struct dcomm_sparse_layout {
    dcomm_codec_layout values; /* format of the sent elements */
    size_t wanted;             /* number of elements that the codec aims at */
    size_t least, most;        /* limits of the number of elements in a wire */
    bool exact;                /* true: select the `wanted` largest elements; false: all elements
                                  that reach a threshold, which comes from a sample: */
    size_t lines;              /* number of runs of 16 elements in the sample */
    size_t rank;               /* place of the threshold in the sorted sample; 0: the threshold is
                                  2^-126 */
} dcomm_sparse_layout;

/* Describe a sparse codec for arrays of `count` elements in *layout.
 * Errors: DCOMM_ERR_INVALID (NULL), DCOMM_ERR_UNSUPPORTED (another codec, or too many elements). */
DCOMM_API dcomm_status dcomm_codec_get_sparse_layout(const dcomm_codec *codec, size_t count,
                                                     dcomm_sparse_layout *layout);
/* Selection and format of randk for an array of `count` elements (kernels/randk.h). */
typedef struct dcomm_randk_layout {
    size_t kept;   /* number of elements sent */
    bool unbiased; /* the sent elements are multiplied by the length of their part */
    int nonfinite; /* 0 fail, 1 zero, 2 pass */
} dcomm_randk_layout;

/* Describe randk for arrays of `count` elements in *layout.
 * Errors: DCOMM_ERR_INVALID (NULL), DCOMM_ERR_UNSUPPORTED (another codec, or too many elements). */
DCOMM_API dcomm_status dcomm_codec_get_randk_layout(const dcomm_codec *codec, size_t count,
                                                    dcomm_randk_layout *layout);
/* Set the sentence of dcomm_last_error for this thread, and return status. It is for code outside
 * the library that reports errors as dcomm does. */
DCOMM_API dcomm_status dcomm_set_error(dcomm_status status, const char *sentence);

#ifdef __cplusplus
}
#endif
#endif
