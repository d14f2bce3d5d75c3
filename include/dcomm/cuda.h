/* cuda.h - codecs and reductions on device memory, as CUDA kernels.
 *
 * These functions are there where one .cu file of the program is compiled with
 *     #define DCOMM_CUDA_IMPLEMENTATION
 *     #include "dcomm.h"
 * and linked with the file that has DCOMM_IMPLEMENTATION and with CUDA's runtime. Callers need no
 * CUDA header and may be C; they need no communicator either. docs/cuda.md shows a program.
 *
 * A stream is a cudaStream_t, passed as void *. NULL means the same everywhere in dcomm (here, in
 * dcomm_coll_opts.stream, in dcomm_param_mark_ready): no stream. The call reads data that is there
 * already, and its results are there when it returns or when its request is complete. CUDA's
 * default stream is cudaStreamLegacy.
 *
 * What they all do alike:
 * - Data pointers are of memory that the current device can read and write. Arrays of such
 *   pointers, codecs and keys are read before the call returns, and are host memory.
 * - A call launches one kernel on the stream (with sparse codecs and powersgd, a few; with a
 *   ledger, two more), and returns. It allocates nothing, waits for nothing, and launches the same
 *   whatever the data: it can be captured into a graph, and keeps its arguments there. Without a
 *   stream it launches on the default stream, and returns when the kernel has ended.
 * - Bytes are those that the function of the same name in compress.h writes. What that function
 *   reports or refuses after looking at the data is found in a dcomm_cuda_report.
 * - Elements have to be aligned to their size, wires to 4 bytes; with 16 both are fastest.
 * - Errors: DCOMM_ERR_INVALID (an argument), DCOMM_ERR_UNSUPPORTED (a codec without kernels, more
 *   than DCOMM_CUDA_OPERANDS operands), DCOMM_ERR_SYSTEM (the launch failed); dcomm_last_error has
 *   the sentence. The stream reports what goes wrong while the kernel runs; without a stream, the
 *   call itself does. */
#ifndef DCOMM_CUDA_H
#define DCOMM_CUDA_H

#include "ledger.h"

#ifdef __cplusplus
extern "C" {
#endif

#define DCOMM_CUDA_OPERANDS 128 /* arrays or wires that one call takes, at most */

/* What kernels found in the data, added up over calls: device memory, aligned to 8, that was set to
 * zero before the first of them. */
typedef struct dcomm_cuda_report {
    uint64_t clipped;
    uint64_t nonfinite;
    uint64_t first;   /* UINT64_MAX - index of the first non-finite input; 0: none */
    uint64_t corrupt; /* not 0: a wire cannot come from this codec */
    uint64_t beyond;  /* not 0: a sum of wires is beyond f32, where the codec refuses that */
    uint64_t kept;    /* elements that the last encoding by a sparse codec sent; not added up */
} dcomm_cuda_report;

/* Return the status of one call whose report was copied to host memory, as the function of the same
 * name in compress.h would: DCOMM_ERR_CORRUPT; DCOMM_ERR_RANGE where a recoding with nonfinite=fail
 * has a sum beyond f32, or where a linear codec's wire (randk, powersgd) has a number that is not
 * finite, without nonfinite=pass; DCOMM_ERR_INVALID after non-finite inputs with nonfinite=fail.
 * *out (NULL: not wanted) becomes the report of an encoding. */
DCOMM_API dcomm_status dcomm_cuda_report_check(const dcomm_codec *codec, size_t count,
                                               const dcomm_cuda_report *report,
                                               dcomm_codec_report *out);

/* Load all of these kernels onto the current device. CUDA loads a kernel when it is first launched,
 * unless CUDA_MODULE_LOADING=EAGER is set, and may wait for all that streams of the device hold to
 * do so: after this no launch does. It may wait itself. Collectives on device memory call it.
 * DCOMM_ERR_UNSUPPORTED: the driver is older than CUDA 12.4's, and loads when kernels are launched.
 */
DCOMM_API dcomm_status dcomm_cuda_load(void);

/* ---- reductions ---- */

/* dst[i] = src[0][i] op src[1][i] op ..., from the left, for `count` elements and 1 <= nsrc <=
 * DCOMM_CUDA_OPERANDS; dst may be any src, or memory that overlaps none. 16-bit floats are
 * accumulated in f32 and rounded once. divisor > 1: the result is then divided by it, which is what
 * DCOMM_AVG means; for sums and averages alone. DCOMM_PREMUL_SUM is a sum. No caller's operators.
 */
DCOMM_API dcomm_status dcomm_cuda_reduce(void *dst, const void *const *src, size_t nsrc,
                                         size_t count, dcomm_dtype dtype, dcomm_op op,
                                         int64_t divisor, void *stream);
/* dst[i] = factor * src[i], as DCOMM_PREMUL_SUM scales its inputs: in f64 for f64, in f32 for other
 * floats; for integers the product is an f64, rounded towards zero. dst may be src. */
DCOMM_API dcomm_status dcomm_cuda_scale(void *dst, const void *src, size_t count, dcomm_dtype dtype,
                                        double factor, void *stream);

/* f32 <- factor * src, of any floats: the product is an f64 and rounded once; and dst <- f32,
 * rounded to nearest even. A NaN becomes the canonical one. What compressed all-reduces do to
 * elements that are no f32, with factor 1, and to pre-multiplied sums. dst overlaps src nowhere, or
 * is src and of f32. */
DCOMM_API dcomm_status dcomm_cuda_to_f32(float *dst, const void *src, size_t count,
                                         dcomm_dtype dtype, double factor, void *stream);
DCOMM_API dcomm_status dcomm_cuda_from_f32(void *dst, const float *src, size_t count,
                                           dcomm_dtype dtype, void *stream);

/* x[i] += factor * y[i], of f32: the product is exact, the sum rounded once, and what is too large
 * for f32 becomes its largest number. For residuals of error feedback. y is no part of x. */
DCOMM_API dcomm_status dcomm_cuda_add_scaled(float *x, float factor, const float *y, size_t count,
                                             void *stream);

/* A few elements of x, `count` f32: x[index[i]] = value[i] for n pairs whose indices differ; with
 * `add` x[index[i]] += value[i], where what is too large for f32 becomes its largest number. What
 * no index names stays as it is, and an index that is not below count does nothing. */
DCOMM_API dcomm_status dcomm_cuda_scatter(float *x, size_t count, const uint32_t *index,
                                          const float *value, size_t n, bool add, void *stream);

/* What error feedback does to its arrays beside encoding, of a gradient g, a residual or estimate
 * r, a velocity u, e that is encoded, and s, what is sent of it, as decoded. */
typedef enum dcomm_cuda_feedback_op {
    DCOMM_CUDA_FEEDBACK_WIDEN = 0,    /* f32 <- bf16: dst = a */
    DCOMM_CUDA_FEEDBACK_NARROW = 1,   /* bf16 <- f32, to nearest even, but not to an infinity */
    DCOMM_CUDA_FEEDBACK_ADD = 2,      /* e = g + r; r where g is not finite, which is counted */
    DCOMM_CUDA_FEEDBACK_LACK = 3,     /* e = g - r; 0 where g is not finite, likewise */
    DCOMM_CUDA_FEEDBACK_MISSING = 4,  /* g - r; 0 where g is not finite */
    DCOMM_CUDA_FEEDBACK_LEFT = 5,     /* e - s, a value that is not finite being none */
    DCOMM_CUDA_FEEDBACK_LEARN = 6,    /* r + s, likewise */
    DCOMM_CUDA_FEEDBACK_MOMENTUM = 7, /* g + factor u: the product exact, the sum rounded once */
    DCOMM_CUDA_FEEDBACK_FORGET = 8,   /* u; 0 where s is not 0, or u not finite */
    DCOMM_CUDA_FEEDBACK_FINISH = 9    /* r + s, all as it is */
} dcomm_cuda_feedback_op;

/* One of them: dst of a, the first that is named, and b, the second (NULL for WIDEN and NARROW).
 * Arrays are f32 but for what is bf16; dst may be a or b, if their elements are as wide. What
 * exceeds f32 in ADD and LACK becomes its largest number, which is counted, too. factor is for
 * MOMENTUM alone, report (NULL: not wanted) for ADD and LACK. */
DCOMM_API dcomm_status dcomm_cuda_feedback(dcomm_cuda_feedback_op op, void *dst, const void *a,
                                           float factor, const float *b, size_t count,
                                           dcomm_cuda_report *report, void *stream);

/* What clips a gradient, as DGC does: in device memory, aligned to 8. */
typedef struct dcomm_cuda_clip {
    double squares; /* their sum */
    float factor;   /* by which the root of that becomes `most`; 1 where it is no more than that */
} dcomm_cuda_clip;

/* *clip is set for g, `count` elements. Squares are summed in f64 in the CPU's order, which
 * docs/codecs.md states; elements that are denormal or not finite count as 0. Two launches.
 * workspace: dcomm_cuda_feedback_clip_workspace_bytes of device memory, aligned to 8. */
DCOMM_API dcomm_status dcomm_cuda_feedback_clip(dcomm_cuda_clip *clip, const float *g, size_t count,
                                                double most, void *workspace, void *stream);
DCOMM_API size_t dcomm_cuda_feedback_clip_workspace_bytes(size_t count);
/* DCOMM_CUDA_FEEDBACK_MOMENTUM of what is clipped: u = factor g + momentum before, with
 * clip->factor, the product with which is rounded, where g is finite. u may be g or before. */
DCOMM_API dcomm_status dcomm_cuda_feedback_clipped(float *u, const float *g,
                                                   const dcomm_cuda_clip *clip, float momentum,
                                                   const float *before, size_t count, void *stream);

/* What dcomm_cuda_look has seen: in device memory, or in pinned memory of the host, aligned to 8.
 */
typedef struct dcomm_cuda_sight {
    uint64_t index; /* of the first element that is not finite; UINT64_MAX: all are */
    double value;   /* this element; 0 where there is none */
    double squares; /* the sum of all elements' squares: not finite where one of them is not */
} dcomm_cuda_sight;

/* Look at x, `count` floats (f64, f32, f16, bf16): *sight is set. For gradients that may have
 * overflowed. x[i] = factor * x[i] as dcomm_cuda_scale has it, in the same pass; of factor 1 x is
 * only read. `squares` is of what x was, summed in f64 in an order that the count alone decides.
 * drop: where an element is not finite, all of x becomes 0. Two launches, with drop three.
 * workspace: dcomm_cuda_look_workspace_bytes of device memory, aligned to 8. */
DCOMM_API dcomm_status dcomm_cuda_look(void *x, size_t count, dcomm_dtype dtype, double factor,
                                       bool drop, dcomm_cuda_sight *sight, void *workspace,
                                       void *stream);
DCOMM_API size_t dcomm_cuda_look_workspace_bytes(size_t count);

/* ---- codecs: f16, bf16, fp8, qsgd, tern, sign, topk, threshold, topk+qsgd, randk, powersgd -- */

/* dcomm_encode, and with residual (NULL: none) dcomm_encode_feedback. A wire has exactly
 * dcomm_codec_max_bytes; that of `threshold` may be shorter: the report says how many
 * elements it has. workspace: dcomm_cuda_workspace_bytes of device memory, aligned to 64. What topk
 * leaves in it makes its next call with this workspace faster, if that has the same k and count: a
 * tensor's own workspace, kept from step to step, is best, and what is in it never changes a byte.
 * report may be NULL. */
DCOMM_API dcomm_status dcomm_cuda_encode(const dcomm_codec *codec, const float *x,
                                         const float *residual, float *next, size_t count,
                                         const dcomm_codec_key *key, void *wire, size_t capacity,
                                         void *workspace, dcomm_cuda_report *report, void *stream);
/* What encodings did to numbers, added up over calls: device memory, aligned to 8, that was set to
 * zero before the first of them. Elements compared, and the sums behind a dcomm_ledger. */
typedef struct dcomm_cuda_ledger {
    uint64_t count;
    double sums[8];
} dcomm_cuda_ledger;

/* dcomm_cuda_encode, and what it did into a ledger: dcomm_encode_ledger. It is counted in the
 * passes that encode, and one or two short launches follow; the wires of powersgd and topk+qsgd
 * with nonfinite=pass are decoded and compared. The sums are taken in an order that depends on
 * codec and count alone (of sparse codecs: and on numbers and key), and which is not the CPU's:
 * they are the same from run to run, and differ from the CPU's by what rounding of f64 sums amounts
 * to. workspace: dcomm_cuda_ledger_workspace_bytes of device memory, aligned to 64; topk does not
 * use what an earlier call has left in it. */
DCOMM_API dcomm_status dcomm_cuda_encode_ledger(const dcomm_codec *codec, const float *x,
                                                const float *residual, float *next, size_t count,
                                                const dcomm_codec_key *key, void *wire,
                                                size_t capacity, void *workspace,
                                                dcomm_cuda_report *report,
                                                dcomm_cuda_ledger *ledger, void *stream);
DCOMM_API size_t dcomm_cuda_ledger_workspace_bytes(const dcomm_codec *codec, size_t count);
/* dcomm_ledger_compare of y with x (NULL: nothing is compared), and where next is not NULL what an
 * encoding with feedback that sent y has left. For what is decoded anyway, and for recodings, whose
 * input nobody has: x is NULL, and y the wire decoded. Two or three launches. workspace:
 * dcomm_cuda_compare_workspace_bytes of device memory, aligned to 64. */
DCOMM_API dcomm_status dcomm_cuda_ledger_compare(dcomm_cuda_ledger *ledger, const float *x,
                                                 const float *y, const float *next, size_t count,
                                                 void *workspace, void *stream);
DCOMM_API size_t dcomm_cuda_compare_workspace_bytes(size_t count);
/* Add to a ledger what copies in host memory of a device's ledger and of a report say that `count`
 * elements' encoding did; `report` is what dcomm_cuda_report_check made of it. The residual's norm
 * becomes that of all encodings in `sums`: of the last one, where it was zero before that. */
DCOMM_API void dcomm_cuda_ledger_add(dcomm_ledger *ledger, size_t count,
                                     const dcomm_cuda_ledger *sums,
                                     const dcomm_codec_report *report);
/* dcomm_decode_sum: x = the sum of n wires of so many bytes each. n = 1: dcomm_decode. Who does not
 * know the length of a wire of `threshold` gives dcomm_codec_max_bytes, if so many can be read.
 * workspace: dcomm_cuda_decode_workspace_bytes, aligned to 64; nothing in it outlives the call. */
DCOMM_API dcomm_status dcomm_cuda_decode_sum(const dcomm_codec *codec, const void *const *wires,
                                             const size_t *bytes, size_t n, float *x, size_t count,
                                             void *workspace, dcomm_cuda_report *report,
                                             void *stream);
/* acc = ((acc + wires[0]) + wires[1]) + ...: dcomm_decode_add of n wires, one after the other. */
DCOMM_API dcomm_status dcomm_cuda_decode_add(const dcomm_codec *codec, const void *const *wires,
                                             const size_t *bytes, size_t n, float *acc,
                                             size_t count, void *workspace,
                                             dcomm_cuda_report *report, void *stream);
/* dcomm_cuda_reduce of the f32 arrays that n wires of codec fp8 stand for, with all its operators,
 * in one pass. */
DCOMM_API dcomm_status dcomm_cuda_reduce_fp8(const dcomm_codec *codec, const void *const *wires,
                                             const size_t *bytes, size_t n, float *dst,
                                             size_t count, dcomm_op op, int64_t divisor,
                                             dcomm_cuda_report *report, void *stream);
/* dcomm_recode: decode n wires, add them, multiply by `factor`, encode again. Of dense codecs the
 * sum never goes to memory; of others it is in the workspace, which is best kept as that of
 * dcomm_cuda_encode: dcomm_cuda_recode_workspace_bytes. */
DCOMM_API dcomm_status dcomm_cuda_recode(const dcomm_codec *codec, const void *const *wires,
                                         const size_t *bytes, size_t n, float factor,
                                         const float *residual, float *next, size_t count,
                                         const dcomm_codec_key *key, void *wire, size_t capacity,
                                         void *workspace, dcomm_cuda_report *report, void *stream);
/* Bytes of device memory that an encoding, a decoding (of any number of wires) or a recoding needs
 * as workspace, aligned to 64; 0: none, and NULL will do. */
DCOMM_API size_t dcomm_cuda_workspace_bytes(const dcomm_codec *codec, size_t count);
DCOMM_API size_t dcomm_cuda_decode_workspace_bytes(const dcomm_codec *codec, size_t count);
DCOMM_API size_t dcomm_cuda_recode_workspace_bytes(const dcomm_codec *codec, size_t count);

/* ---- powersgd, step by step ---- */

/* An array of `count` elements as a matrix of rows x cols, row by row, what lacks in the last row
 * being 0. P is `rank` columns of `rows` elements, one column after the other, and Q `rank` columns
 * of `cols`. A wire is P, and Q behind it. */
typedef struct dcomm_codec_matrix {
    size_t count, rows, cols, rank;
    int turns;     /* how often both products are taken */
    int nonfinite; /* 0 fail, 1 zero, 2 pass */
} dcomm_codec_matrix;

/* Errors: DCOMM_ERR_INVALID (NULL), DCOMM_ERR_UNSUPPORTED (the codec is not powersgd). */
DCOMM_API dcomm_status dcomm_codec_get_matrix(const dcomm_codec *codec, size_t count,
                                              dcomm_codec_matrix *shape);

/* An encoding is start, p, orthonormal, q (with turns=N, N times), and with error feedback product
 * with how = -1 onto x + residual. Ranks that sum P before orthonormal, and Q after q, approximate
 * the sum. Each is one launch and writes the CPU's bytes; elements of x that are denormal or not
 * finite count as 0. Costs: p and q read x once for each four columns of the rank, product reads
 * and writes x once; start and orthonormal are short, but grow with cols and rows * rank^2.
 *
 * Q ready for a step: columns that are not 0 keep their direction, those that are 0 become random
 * by the key without its rank. Zero q before the first step. */
DCOMM_API dcomm_status dcomm_cuda_powersgd_start(const dcomm_codec_matrix *shape,
                                                 const dcomm_codec_key *key, float *q,
                                                 void *stream);
/* p = x q; in a report (NULL: not wanted) elements of x that are not finite are counted. */
DCOMM_API dcomm_status dcomm_cuda_powersgd_p(const dcomm_codec_matrix *shape, const float *x,
                                             const float *q, float *p, dcomm_cuda_report *report,
                                             void *stream);
DCOMM_API dcomm_status dcomm_cuda_powersgd_orthonormal(const dcomm_codec_matrix *shape, float *p,
                                                       void *stream);
/* q = x^T p; what exceeds f32 becomes its largest number, and is counted in report->clipped. */
DCOMM_API dcomm_status dcomm_cuda_powersgd_q(const dcomm_codec_matrix *shape, const float *x,
                                             const float *p, float *q, dcomm_cuda_report *report,
                                             void *stream);
/* x = p q^T (how = 0: a decoding), x += p q^T (1), x -= p q^T (-1). */
DCOMM_API dcomm_status dcomm_cuda_powersgd_product(const dcomm_codec_matrix *shape, const float *p,
                                                   const float *q, float *x, int how, void *stream);
/* e -= p q^T, where e is x + residual, and what an encoding of x that sent p q^T did into a ledger,
 * in the same pass: the sums of dcomm_cuda_ledger_compare(ledger, x, p q^T, e, ...), bit by bit.
 * e NULL: there is no feedback, and x is read only. Two or three launches. workspace:
 * dcomm_cuda_compare_workspace_bytes of device memory, aligned to 64. */
DCOMM_API dcomm_status dcomm_cuda_powersgd_product_ledger(const dcomm_codec_matrix *shape,
                                                          const float *p, const float *q,
                                                          const float *x, float *e, void *workspace,
                                                          dcomm_cuda_ledger *ledger, void *stream);

/* ---- for other back ends ---- */

/* How a dense codec writes; docs/codecs.md has the formats. */
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
    DCOMM_FORMAT_F32 = 9 /* of sparse codecs' values alone */
} dcomm_codec_format;

typedef struct dcomm_codec_layout {
    dcomm_codec_format format;
    size_t bucket;   /* elements that share a step; 0: there are no steps */
    bool two_norm;   /* the step follows from the 2-norm, not from the largest */
    bool stochastic; /* rounded by chance, not to the nearest */
    int nonfinite;   /* 0 fail, 1 zero, 2 pass */
} dcomm_codec_layout;

/* Errors: DCOMM_ERR_INVALID (NULL), DCOMM_ERR_UNSUPPORTED (the codec is not dense). */
DCOMM_API dcomm_status dcomm_codec_get_layout(const dcomm_codec *codec, dcomm_codec_layout *layout);

/* How topk, threshold and topk+qsgd choose from `count` elements, and write. */
typedef struct dcomm_sparse_layout {
    dcomm_codec_layout values; /* of those that are sent */
    size_t wanted;             /* elements that are aimed at */
    size_t least, most;        /* elements of a wire */
    bool exact;                /* the `wanted` largest; else what reaches a sampled threshold: */
    size_t lines;              /* runs of 16 elements in the sample, ... */
    size_t rank;               /* ... and which of it, by size, the threshold is; 0: 2^-126 */
} dcomm_sparse_layout;

/* Errors: DCOMM_ERR_INVALID (NULL), DCOMM_ERR_UNSUPPORTED (another codec, or too many elements). */
DCOMM_API dcomm_status dcomm_codec_get_sparse_layout(const dcomm_codec *codec, size_t count,
                                                     dcomm_sparse_layout *layout);
/* How randk chooses from `count` elements (kernels/randk.h), and what it sends of them. */
typedef struct dcomm_randk_layout {
    size_t kept;   /* elements */
    bool unbiased; /* multiplied by the length of their part */
    int nonfinite; /* 0 fail, 1 zero, 2 pass */
} dcomm_randk_layout;

/* Errors: DCOMM_ERR_INVALID (NULL), DCOMM_ERR_UNSUPPORTED (another codec, or too many elements). */
DCOMM_API dcomm_status dcomm_codec_get_randk_layout(const dcomm_codec *codec, size_t count,
                                                    dcomm_randk_layout *layout);
/* Leave a sentence for dcomm_last_error; returns the status. For code beside the library that
 * reports as it does. */
DCOMM_API dcomm_status dcomm_set_error(dcomm_status status, const char *sentence);

#ifdef __cplusplus
}
#endif
#endif
