/* compress.h - codecs: lossy encodings of f32 arrays. They need no communicator; a program that
 * wants nothing else defines DCOMM_NO_COMM and links neither UCX nor hwloc.
 *
 * A codec is made from a text, its spec: a name and options, "qsgd:bits=4,bucket=512,norm=max".
 * docs/codecs.md has each codec's formula, wire format and bound.
 *
 * The bytes are the same from every instruction set, compiler and set of compiler flags, and depend
 * on nothing but the codec, the input and the key. What every codec does alike:
 * - A denormal input is coded as zero; with error feedback its value stays in the residual.
 * - An input that is NaN or infinite is counted, and codec option `nonfinite` says what then:
 *   "fail" (default): it is coded as zero, and encode returns DCOMM_ERR_INVALID with a sentence
 * that names the first one; "zero": the same without the error; "pass": it reaches the decoder, as
 * itself where the format has room for it, else as a block of NaN. It never enters a residual.
 * - A finite input stays finite: what exceeds the format's largest number becomes that number, and
 * is counted as clipped (beyond 2^127 with the buckets of qsgd, tern, sign and fp8). With error
 * feedback the rest stays in the residual. */
#ifndef DCOMM_COMPRESS_H
#define DCOMM_COMPRESS_H

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A codec with all its options. It does not change once it is made: threads may share it. */
typedef struct dcomm_codec dcomm_codec;

/* What the random numbers of an encoding depend on. Encodings that must be independent, of two
 * ranks or two steps, need different keys; the same key gives the same bytes. Each element has
 * random numbers of its own, by its index in the whole tensor: a tensor that is encoded in pieces
 * gets the bytes that it would get as a whole if the pieces begin at multiples of
 * dcomm_codec_info.granule. */
typedef struct dcomm_codec_key {
    uint64_t seed;   /* of the training run (default: 0) */
    uint64_t step;   /* counts encodings of this tensor (default: 0) */
    uint64_t first;  /* index of x[0] in the whole tensor (default: 0) */
    uint32_t rank;   /* who encodes (default: 0) */
    uint32_t tensor; /* which tensor (default: 0) */
} dcomm_codec_key;

/* What an encoding did. */
typedef struct dcomm_codec_report {
    size_t bytes;           /* written to the wire */
    size_t kept;            /* elements that the codec selected, zeros among them included: fewer
                               than all with sparse codecs only */
    size_t clipped;         /* finite, but beyond the largest number of the format */
    size_t nonfinite;       /* NaN or infinite */
    size_t first_nonfinite; /* index of the first of them; SIZE_MAX: none */
    /* Of an all-reduce by a sparse codec; 0 otherwise. `nonzero`: elements of the result that are
     * not 0. `summed`: those of the sum of all that ranks selected, before owners left any of it
     * out (coded_sparse: also those whose sum is 0; 0: not known, where an owner has encoded the
     * sum again). summed / kept is how far the sum fills in, at most nranks where `kept` is of one
     * encoding. */
    size_t nonzero;
    size_t summed;
} dcomm_codec_report;

/* What is known of a codec without data, for arrays of a given length. */
typedef struct dcomm_codec_info {
    const char *name;   /* "qsgd" */
    bool unbiased;      /* the mean of what is decoded, over all keys, is the input */
    bool linear;        /* wires of all ranks can be summed (powersgd, randk) */
    bool sparse;        /* sends some elements only */
    bool exact_bytes;   /* every wire has max_bytes bytes */
    size_t granule;     /* elements; where pieces of a tensor may begin without a trace */
    size_t max_bytes;   /* of a wire */
    double bits;        /* per element, of max_bytes */
    double omega;       /* bound of E|C(x)-x|^2 / |x|^2 if unbiased; NaN: unknown */
    double contraction; /* bound of |C(x)-x|^2 / |x|^2 for every x; NaN: none below 1 (f16
                           values among them, which end at 65504) */
} dcomm_codec_info;

/* Make a codec. spec: "name" or "name:option=value,option=value"; options that are not named have
 * their default. "auto:SPEC" is the codec SPEC, which all-reduce uses where that is worth it (see
 * dcomm_codec_decide in tune.h); "auto" is "auto:qsgd:bits=8". *codec_p is the caller's until
 * dcomm_codec_destroy. Errors: DCOMM_ERR_INVALID (an unknown name or option, a value out of range:
 * the sentence lists what is allowed), DCOMM_ERR_NO_MEMORY. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_codec_create(const char *spec, dcomm_codec **codec_p);
/* Free it and set *codec_p to NULL; NULL is fine. No call may be using it. */
DCOMM_API dcomm_status dcomm_codec_destroy(dcomm_codec **codec_p);
/* The spec with all options written out; lives as long as the codec. */
DCOMM_API const char *dcomm_codec_spec(const dcomm_codec *codec);
/* What is known of it for arrays of `count` elements. */
DCOMM_API dcomm_status dcomm_codec_get_info(const dcomm_codec *codec, size_t count,
                                            dcomm_codec_info *info);
/* The most bytes that encoding `count` elements may write: a function of codec and count alone.
 * SIZE_MAX when there is no such number. */
DCOMM_API size_t dcomm_codec_max_bytes(const dcomm_codec *codec, size_t count);
/* Bytes of scratch memory that encoding `count` elements needs. */
DCOMM_API size_t dcomm_codec_workspace_bytes(const dcomm_codec *codec, size_t count);
/* The name of codec number i of those compiled in; NULL from the last one on. */
DCOMM_API const char *dcomm_codec_name(size_t i);
/* The options of the codec of this name, one to a line: name, default, what is allowed, meaning.
 * NULL for an unknown name. Lives until the thread's next call. */
DCOMM_API const char *dcomm_codec_help(const char *name);

/* Encode x[0..count). wire has room for `capacity` bytes, at least dcomm_codec_max_bytes; *bytes_p
 * is what was written. key: NULL is all zeros. workspace: dcomm_codec_workspace_bytes, aligned to
 * 64; NULL: memory is allocated for the call. report may be NULL. Nothing may overlap. wire is best
 * aligned to 64.
 * Errors: DCOMM_ERR_INVALID (an argument; or non-finite inputs with nonfinite=fail, in which case
 * the wire and the report are complete and as with nonfinite=zero), DCOMM_ERR_NO_MEMORY. */
DCOMM_API dcomm_status dcomm_encode(const dcomm_codec *codec, const float *x, size_t count,
                                    const dcomm_codec_key *key, void *wire, size_t capacity,
                                    size_t *bytes_p, void *workspace, dcomm_codec_report *report);

/* Encode with error feedback, in one pass where the codec can: with e = x + residual,
 * wire = C(e) and next = e - decode(wire), where a sum beyond f32 counts as its largest number.
 * next may be residual itself, or memory that does not overlap, which leaves residual as it is
 * until the caller knows that the wire has arrived. residual must be finite. Where x is not, it
 * counts as 0 with nonfinite=fail and zero; with pass, next is what residual was wherever the
 * decoder gets something that is not finite. Errors: as dcomm_encode; after non-finite inputs with
 * nonfinite=fail, wire and next are complete and as with nonfinite=zero. */
DCOMM_API dcomm_status dcomm_encode_feedback(const dcomm_codec *codec, const float *x,
                                             const float *residual, float *next, size_t count,
                                             const dcomm_codec_key *key, void *wire,
                                             size_t capacity, size_t *bytes_p, void *workspace,
                                             dcomm_codec_report *report);

/* x = the decoded wire. Errors: DCOMM_ERR_CORRUPT when these bytes cannot come from this codec and
 * count; DCOMM_ERR_RANGE when a linear codec's number is not finite, as where wires were summed
 * beyond f32 (not with nonfinite=pass). x is undefined then. */
DCOMM_API dcomm_status dcomm_decode(const dcomm_codec *codec, const void *wire, size_t bytes,
                                    float *x, size_t count);
/* acc += the decoded wire, one f32 addition an element. Errors as dcomm_decode. */
DCOMM_API dcomm_status dcomm_decode_add(const dcomm_codec *codec, const void *wire, size_t bytes,
                                        float *acc, size_t count);
/* x = ((wires[0] + wires[1]) + ...) + wires[n-1], decoded and added in f32, n >= 1, in one pass
 * where the codec can. Errors as dcomm_decode. */
DCOMM_API dcomm_status dcomm_decode_sum(const dcomm_codec *codec, const void *const *wires,
                                        const size_t *bytes, size_t n, float *x, size_t count);

/* The owner's part of a two-shot exchange, in one pass where the codec can: decode n wires, add
 * them in order, multiply by `factor` (1: a sum; 1/n: an average), and encode the result again,
 * with error feedback where residual is not NULL (see dcomm_encode_feedback; next as there). factor
 * must be finite. workspace: dcomm_codec_recode_workspace_bytes, or NULL. Errors: those of
 * dcomm_encode and dcomm_decode; DCOMM_ERR_RANGE with nonfinite=fail where a sum is beyond f32: it
 * counts as 0, and wire, next and report are complete. */
DCOMM_API dcomm_status dcomm_recode(const dcomm_codec *codec, const void *const *wires,
                                    const size_t *bytes, size_t n, float factor,
                                    const float *residual, float *next, size_t count,
                                    const dcomm_codec_key *key, void *wire, size_t capacity,
                                    size_t *bytes_p, void *workspace, dcomm_codec_report *report);
DCOMM_API size_t dcomm_codec_recode_workspace_bytes(const dcomm_codec *codec, size_t count);

#ifdef __cplusplus
}
#endif
#endif
