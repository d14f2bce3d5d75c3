/* compress.h - codecs: lossy encodings of f32 arrays. They need no communicator. A program that
 * needs nothing else defines DCOMM_NO_COMM and links neither UCX nor hwloc.
 *
 * A codec is created from a spec, which is a name with options: "qsgd:bits=4,bucket=512,norm=max".
 * docs/codecs.md has each codec's formula and error bound. docs/wire-formats.md has its bytes.
 *
 * Encoded bytes depend only on the codec, the input and the key. They are the same for every
 * instruction set, compiler and set of compiler flags. Rules for all codecs:
 * - A denormal input is encoded as zero; with error feedback its value stays in the residual.
 * - An input that is NaN or infinite is counted. Codec option `nonfinite` decides: "fail"
 *   (default) encodes it as zero, and encode returns DCOMM_ERR_INVALID with a sentence that names
 *   the first one. "zero" does the same without the error. "pass" passes it to the decoder: as
 *   itself if the format can represent it, else as a block of NaN. It never enters a residual.
 * - A finite input stays finite: a value beyond the format's largest number becomes that number
 *   and is counted as clipped (for the buckets of qsgd, tern, sign and fp8: a value beyond 2^127).
 *   With error feedback the rest stays in the residual. */
#ifndef DCOMM_COMPRESS_H
#define DCOMM_COMPRESS_H

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A codec with all its options. It is immutable: threads may share it. */
typedef struct dcomm_codec dcomm_codec;

/* The key of an encoding's random numbers: the same key gives the same bytes. Encodings that must
 * be independent, such as those of two ranks or two steps, need different keys. Random numbers
 * depend on an element's index in the whole tensor. So pieces that begin at multiples of
 * dcomm_codec_info.granule get the same bytes as in an encoding of the whole tensor. */
typedef struct dcomm_codec_key {
    uint64_t seed;   /* of the training run (default: 0) */
    uint64_t step;   /* number of the encoding of this tensor (default: 0) */
    uint64_t first;  /* index of x[0] in the whole tensor (default: 0) */
    uint32_t rank;   /* rank that encodes (default: 0) */
    uint32_t tensor; /* number of the tensor (default: 0) */
} dcomm_codec_key;

/* Counts of an encoding. */
typedef struct dcomm_codec_report {
    size_t bytes;           /* written to the wire */
    size_t kept;            /* elements that the codec selected, including zeros; all elements if
                               the codec is not sparse */
    size_t clipped;         /* finite elements beyond the largest number of the format */
    size_t nonfinite;       /* elements that are NaN or infinite */
    size_t first_nonfinite; /* index of the first of these; SIZE_MAX: none */
    /* Set by an all-reduce with a sparse codec; else 0. `nonzero`: elements of the result that are
     * not 0. `summed`: elements that at least one rank selected, before owners left any out. With
     * coded_sparse it includes elements whose sum is 0. It is 0 if unknown, because an owner
     * encoded the sum again. summed / kept tells how much denser the sum is than an input; it is
     * at most nranks if `kept` counts one encoding. */
    size_t nonzero;
    size_t summed;
} dcomm_codec_report;

/* Properties of a codec for arrays of a given length. */
typedef struct dcomm_codec_info {
    const char *name;   /* "qsgd" */
    bool unbiased;      /* the mean of the decoded values over all keys is the input */
    bool linear;        /* encoded bytes of all ranks can be summed (powersgd, randk) */
    bool sparse;        /* sends some elements only */
    bool exact_bytes;   /* every wire has max_bytes bytes */
    size_t granule;     /* in elements; a piece of a tensor may begin at any multiple of it */
    size_t max_bytes;   /* most bytes of an encoding: its longest wire */
    double bits;        /* bits per element of such a wire */
    double omega;       /* bound of E|C(x)-x|^2 / |x|^2 if unbiased; NaN: unknown */
    double contraction; /* bound of |C(x)-x|^2 / |x|^2 for every x; NaN: no bound below 1 (such as
                           f16, whose values end at 65504) */
} dcomm_codec_info;

/* Create a codec. spec: "name" or "name:option=value,option=value"; other options have their
 * defaults. "auto:SPEC" is the codec SPEC, but all-reduce uses it only if it saves time
 * (dcomm_codec_decide in tune.h). "auto" is "auto:qsgd:bits=8". The caller owns *codec_p.
 * Errors: DCOMM_ERR_INVALID (an unknown name or option, a value out of range: the sentence lists
 * what is allowed), DCOMM_ERR_NO_MEMORY. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_codec_create(const char *spec, dcomm_codec **codec_p);
/* Destroy a codec and set *codec_p to NULL. NULL and *codec_p NULL are fine. No call may be using
 * it. */
DCOMM_API dcomm_status dcomm_codec_destroy(dcomm_codec **codec_p);
/* Return the spec with all options written out; lives as long as the codec. */
DCOMM_API const char *dcomm_codec_spec(const dcomm_codec *codec);
/* Describe the codec for arrays of `count` elements in *info.
 * Errors: DCOMM_ERR_INVALID (NULL). */
DCOMM_API dcomm_status dcomm_codec_get_info(const dcomm_codec *codec, size_t count,
                                            dcomm_codec_info *info);
/* Return the most bytes that encoding `count` elements may write. It depends only on codec and
 * count. SIZE_MAX means that there is no bound. */
DCOMM_API size_t dcomm_codec_max_bytes(const dcomm_codec *codec, size_t count);
/* Return the bytes of workspace that encoding `count` elements needs. */
DCOMM_API size_t dcomm_codec_workspace_bytes(const dcomm_codec *codec, size_t count);
/* Return the name of the i-th codec of the library, i = 0, 1, ...; NULL past the last one. */
DCOMM_API const char *dcomm_codec_name(size_t i);
/* Return the options of the codec `name`, one a line: name, default, allowed values, meaning. NULL
 * for an unknown name. Lives until the thread's next call. */
DCOMM_API const char *dcomm_codec_help(const char *name);

/* Encode x[0..count) into wire, and set *bytes_p to the bytes written. wire has room for
 * `capacity` bytes, at least dcomm_codec_max_bytes; an alignment of 64 bytes is fastest. key: NULL
 * means all zeros. workspace: dcomm_codec_workspace_bytes bytes, aligned to 64; NULL: the call
 * allocates it. report may be NULL. No arguments may overlap.
 * Errors: DCOMM_ERR_INVALID (a bad argument; or non-finite inputs with nonfinite=fail: then wire
 * and report are complete, as with nonfinite=zero), DCOMM_ERR_NO_MEMORY. */
DCOMM_API dcomm_status dcomm_encode(const dcomm_codec *codec, const float *x, size_t count,
                                    const dcomm_codec_key *key, void *wire, size_t capacity,
                                    size_t *bytes_p, void *workspace, dcomm_codec_report *report);

/* Encode with error feedback, in one pass if the codec can. The call computes e = x + residual,
 * wire = C(e) and next = e - decode(wire). A sum beyond f32 counts as the largest f32. next may be
 * residual itself, or memory that does not overlap it: separate memory keeps the old residual
 * until the caller knows that the wire has arrived. With nonfinite=fail and zero, a non-finite x
 * counts as 0. With pass, next equals residual wherever the decoder gets a non-finite value.
 * Elsewhere a residual that is NaN, which no call leaves, counts as the largest f32.
 * Errors: as dcomm_encode; after non-finite inputs with nonfinite=fail, wire and next are complete,
 * as with nonfinite=zero. */
DCOMM_API dcomm_status dcomm_encode_feedback(const dcomm_codec *codec, const float *x,
                                             const float *residual, float *next, size_t count,
                                             const dcomm_codec_key *key, void *wire,
                                             size_t capacity, size_t *bytes_p, void *workspace,
                                             dcomm_codec_report *report);

/* Decode: x = decode(wire).
 * Errors: DCOMM_ERR_CORRUPT (these bytes cannot come from this codec and count), DCOMM_ERR_RANGE
 * (a number of a linear codec is not finite, for example because a sum of wires is beyond f32; not
 * with nonfinite=pass). x is undefined after an error. */
DCOMM_API dcomm_status dcomm_decode(const dcomm_codec *codec, const void *wire, size_t bytes,
                                    float *x, size_t count);
/* Decode and add: acc += decode(wire), with one f32 addition per element.
 * Errors: as dcomm_decode. */
DCOMM_API dcomm_status dcomm_decode_add(const dcomm_codec *codec, const void *wire, size_t bytes,
                                        float *acc, size_t count);
/* Decode and sum n >= 1 wires: x = ((wires[0] + wires[1]) + ...) + wires[n-1], in f32, in one pass
 * if the codec can.
 * Errors: as dcomm_decode. */
DCOMM_API dcomm_status dcomm_decode_sum(const dcomm_codec *codec, const void *const *wires,
                                        const size_t *bytes, size_t n, float *x, size_t count);

/* Do the owner's part of a two-shot exchange, in one pass if the codec can. Decode n wires, add
 * them in order, multiply by `factor` (1: a sum; 1/n: an average), and encode the result. Error
 * feedback applies unless residual is NULL (residual and next as in dcomm_encode_feedback). factor
 * must be finite. workspace: dcomm_codec_recode_workspace_bytes, or NULL.
 * Errors: those of dcomm_encode and dcomm_decode; DCOMM_ERR_RANGE with nonfinite=fail if a sum is
 * beyond f32: it counts as 0, and wire, next and report are complete. */
DCOMM_API dcomm_status dcomm_recode(const dcomm_codec *codec, const void *const *wires,
                                    const size_t *bytes, size_t n, float factor,
                                    const float *residual, float *next, size_t count,
                                    const dcomm_codec_key *key, void *wire, size_t capacity,
                                    size_t *bytes_p, void *workspace, dcomm_codec_report *report);
/* Return the bytes of workspace that recoding `count` elements needs. */
DCOMM_API size_t dcomm_codec_recode_workspace_bytes(const dcomm_codec *codec, size_t count);

#ifdef __cplusplus
}
#endif
#endif
