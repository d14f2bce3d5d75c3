/* codec.h - what a codec is to the library: a row of one table. A family of codecs is one file
 * of this folder with its rows; adding one touches that file and the list in codec/table.h. */
#ifndef DCOMMI_CODEC_H
#define DCOMMI_CODEC_H

#include "../../compress.h"
#include "../../../../kernels/tally.h"
#include "../base/util.h"

#include <float.h>

/* ---- options ---- */

typedef enum dcommi_codec_kind {
    DCOMMI_CODEC_END = 0, /* of the list of options */
    DCOMMI_CODEC_INTEGER, /* least <= value <= most */
    DCOMMI_CODEC_NUMBER,  /* likewise, with a fraction */
    DCOMMI_CODEC_CHOICE,  /* one word of `choices`; the value is its position */
} dcommi_codec_kind;

typedef struct dcommi_codec_option {
    const char *name;
    dcommi_codec_kind kind;
    const char *choices; /* "max|two" */
    double preset;       /* the default */
    double least, most;
    const char *meaning; /* one line for people */
} dcommi_codec_option;

enum { DCOMMI_CODEC_OPTIONS = 12, DCOMMI_CODEC_SPEC_MAX = 256 };

/* What `nonfinite` says, which every codec has. */
enum { DCOMMI_NONFINITE_FAIL = 0, DCOMMI_NONFINITE_ZERO = 1, DCOMMI_NONFINITE_PASS = 2 };

/* The options of a codec with buckets, read and checked (codec/bucket.h). */
typedef struct dcommi_bucketing {
    int format;    /* dcommi_format */
    size_t bucket; /* elements, a multiple of `group` */
    size_t group;  /* elements of whole lines and random groups */
    bool two_norm; /* else the maximum, or for signs the mean */
    bool stochastic;
} dcommi_bucketing;

typedef struct dcommi_codec_ops dcommi_codec_ops;

struct dcomm_codec {
    const dcommi_codec_ops *ops;
    double value[DCOMMI_CODEC_OPTIONS]; /* in the order of ops->options */
    bool given[DCOMMI_CODEC_OPTIONS];   /* in the spec, and not by default */
    int nonfinite;
    dcommi_bucketing bucketing;
    dcomm_codec *inner; /* of a composed codec, freed with it; NULL: none */
    bool automatic;     /* "auto": all-reduce asks whether to use it, or... */
    dcomm_codec *cast;  /* ...this one, freed with it */
    char spec[DCOMMI_CODEC_SPEC_MAX];
};

/* The value of option number i as a whole number. */
static inline int64_t dcommi_codec_int(const dcomm_codec *codec, int i)
{
    return (int64_t)codec->value[i];
}

/* ---- calls ---- */

/* An encoding. With residual, e = x + residual is encoded and next = e - decoded is left behind;
 * next may equal residual. The report is set up: count non-finite inputs by
 * dcommi_codec_nonfinite, add to `clipped`, set `kept` if it is not all. */
typedef struct dcommi_encoding {
    const float *x;
    const float *residual; /* NULL: none */
    float *next;
    size_t count;
    dcomm_codec_key key;
    unsigned char *wire; /* max_bytes are there */
    size_t bytes;        /* written: set by the codec */
    void *workspace;     /* as long as ops->workspace says, aligned to 64 */
    void *state;         /* ops->state bytes, zeroed before the tensor's first step; NULL: none */
    dcommi_tally *tally; /* NULL: none. A codec that takes the sums sets `done`. */
    dcomm_codec_report report;
} dcommi_encoding;

/* Several wires and what becomes of their sum. */
typedef struct dcommi_wires {
    const void *const *wires;
    const size_t *bytes;
    size_t n;
} dcommi_wires;

enum {
    DCOMMI_CODEC_UNBIASED = 1,
    DCOMMI_CODEC_LINEAR = 2,
    DCOMMI_CODEC_SPARSE = 4,
    DCOMMI_CODEC_EXACT_BYTES = 8, /* every wire has max_bytes; decoders may rely on it */
    DCOMMI_CODEC_FEEDBACK = 16    /* encode takes a residual; else the library makes two passes */
};

/* What a row is, whatever its options, for those who know its wire. */
enum {
    DCOMMI_IS_CAST = 1, /* 16 bits an element, in order: of f16 or of bf16 */
    DCOMMI_IS_F16 = 2,
    DCOMMI_IS_BUCKETED = 4,  /* codes and steps, as codec->bucketing says */
    DCOMMI_IS_SELECTION = 8, /* elements and their indices, as in kernels/wire_sparse.h */
    DCOMMI_IS_SPLIT = 16,    /* of which each can be sent apart */
    DCOMMI_IS_SAMPLED = 32,  /* of which there are as many as a sample suggests */
    DCOMMI_IS_PRODUCTS = 64, /* two matrices, one made of the other; both can be summed */
    DCOMMI_IS_DRAWN = 128    /* elements whose indices follow from a seed, as in kernels/randk.h */
};

struct dcommi_codec_ops {
    const char *name;
    unsigned is;         /* DCOMMI_IS_* */
    const char *summary; /* one line for people */
    const dcommi_codec_option *options;
    /* Checks what the options say together; sets codec->inner where there is one. NULL: nothing. */
    dcomm_status (*make)(dcomm_codec *codec);
    /* DCOMMI_CODEC_*, which may depend on the options. */
    unsigned (*traits)(const dcomm_codec *codec);
    size_t (*max_bytes)(const dcomm_codec *codec, size_t count); /* SIZE_MAX: overflow */
    size_t (*workspace)(const dcomm_codec *codec, size_t count); /* of encode; NULL: none */
    dcomm_status (*encode)(const dcomm_codec *codec, dcommi_encoding *call);
    /* x = decoded, or x += decoded where add; count may be 0, and every byte may be wrong. */
    dcomm_status (*decode)(const dcomm_codec *codec, const void *wire, size_t bytes, float *x,
                           size_t count, bool add);
    /* The sum of several wires in order, n >= 2. NULL: decode, then decode and add. */
    dcomm_status (*decode_sum)(const dcomm_codec *codec, const dcommi_wires *in, float *x,
                               size_t count);
    /* dcomm_recode with call->x = NULL. NULL: decode_sum, then encode. */
    dcomm_status (*recode)(const dcomm_codec *codec, const dcommi_wires *in, float factor,
                           dcommi_encoding *call);
    /* granule, omega, contraction; the rest is filled in. NULL: 1, NaN, NaN. */
    void (*info)(const dcomm_codec *codec, size_t count, dcomm_codec_info *info);
    /* Bytes that encode may remember from one step of a tensor to the next. NULL: none. */
    size_t (*state)(const dcomm_codec *codec, size_t count);
};

/* ---- for codecs to share ---- */

static inline bool dcommi_codec_is(const dcomm_codec *codec, unsigned what)
{
    return (codec->ops->is & what) != 0;
}

static inline bool dcommi_codec_has(const dcomm_codec *codec, unsigned trait)
{
    return (codec->ops->traits(codec) & trait) != 0;
}

static inline void dcommi_codec_nonfinite(dcommi_encoding *call, size_t index)
{
    if (call->report.nonfinite++ == 0 || index < call->report.first_nonfinite) {
        call->report.first_nonfinite = index;
    }
}

static inline bool dcommi_f32_nonfinite(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (bits & 0x7f800000u) == 0x7f800000u;
}

/* What is to be encoded, with error feedback: x that is not finite counts as 0, and the sum stays
 * finite. */
static inline float dcommi_codec_e(float x, float residual)
{
    float e = (dcommi_f32_nonfinite(x) ? 0 : x) + residual;
    return dcommi_f32_nonfinite(e) ? dcommi_f32_signed(FLT_MAX, e) : e;
}

/* a + b and a * b of sizes; SIZE_MAX when that is too much, or when a part was. */
static inline size_t dcommi_size_add(size_t a, size_t b)
{
    return a > SIZE_MAX - b ? SIZE_MAX : a + b;
}

static inline size_t dcommi_size_mul(size_t a, size_t b)
{
    size_t product;
    return a == SIZE_MAX || b == SIZE_MAX || __builtin_mul_overflow(a, b, &product) ? SIZE_MAX
                                                                                    : product;
}

/* Round up to whole cache lines; what is too much stays so. */
static inline size_t dcommi_size_lines(size_t bytes)
{
    return dcommi_size_add(bytes, DCOMMI_CACHE_LINE - 1) & ~(size_t)(DCOMMI_CACHE_LINE - 1);
}

/* Return how many elements option k, which is the first, asks for: below 1 it is a share of them,
 * but at least one; else their number. */
static inline size_t dcommi_codec_wanted(const dcomm_codec *codec, size_t count)
{
    double k = codec->value[0], wanted = k < 1 ? k * (double)count : k;
    return wanted >= (double)count ? count : wanted < 1 ? 1 : (size_t)wanted;
}

static inline dcomm_status dcommi_codec_bad_length(const dcomm_codec *codec, size_t bytes,
                                                   size_t wanted, size_t count)
{
    return dcommi_fail(DCOMM_ERR_CORRUPT, "%s: a wire of %zu elements has %zu bytes, not %zu",
                       codec->ops->name, count, wanted, bytes);
}

/* Refuse a wire of the wrong length. */
static inline dcomm_status dcommi_codec_length(const dcomm_codec *codec, size_t bytes,
                                               size_t wanted, size_t count)
{
    return bytes == wanted ? DCOMM_OK : dcommi_codec_bad_length(codec, bytes, wanted, count);
}

/* Refuse wires that are not all as long as the row says. */
static inline dcomm_status dcommi_codec_lengths(const dcomm_codec *codec, const dcommi_wires *in,
                                                size_t count)
{
    for (size_t w = 0; w < in->n; w++) {
        DCOMMI_TRY(
            dcommi_codec_length(codec, in->bytes[w], codec->ops->max_bytes(codec, count), count));
    }
    return DCOMM_OK;
}

#endif
