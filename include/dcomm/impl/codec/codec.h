/* codec.h - the type of a codec: a row of one table. Each family of codecs is one file of this
 * folder, with its rows. To add a family, write its file and name it in codec/table.h. */
#ifndef DCOMMI_CODEC_H
#define DCOMMI_CODEC_H

#include "../../compress.h"
#include "../../../../kernels/tally.h"
#include "../base/util.h"

/* ---- options ---- */

typedef enum dcommi_codec_kind {
    DCOMMI_CODEC_END = 0, /* ends the list of options */
    DCOMMI_CODEC_INTEGER, /* least <= value <= most */
    DCOMMI_CODEC_NUMBER,  /* as INTEGER, with a fraction */
    DCOMMI_CODEC_CHOICE,  /* one word of `choices`; the value is its position */
} dcommi_codec_kind;

typedef struct dcommi_codec_option {
    const char *name;
    dcommi_codec_kind kind;
    const char *choices; /* e.g. "max|two" */
    double preset;       /* the default */
    double least, most;
    const char *meaning; /* one line for people */
} dcommi_codec_option;

enum { DCOMMI_CODEC_OPTIONS = 12, DCOMMI_CODEC_SPEC_MAX = 256 };

/* The values of option `nonfinite`, which every codec has. */
enum { DCOMMI_NONFINITE_FAIL = 0, DCOMMI_NONFINITE_ZERO = 1, DCOMMI_NONFINITE_PASS = 2 };

/* The options of a codec with buckets, read and checked (codec/bucket.h). */
typedef struct dcommi_bucketing {
    int format;    /* dcommi_format */
    size_t bucket; /* elements, a multiple of `group` */
    size_t group;  /* elements that make whole lines and whole random groups */
    bool two_norm; /* else the step follows from the maximum, for signs from the mean */
    bool stochastic;
} dcommi_bucketing;

typedef struct dcommi_codec_ops dcommi_codec_ops;

struct dcomm_codec {
    const dcommi_codec_ops *ops;
    double value[DCOMMI_CODEC_OPTIONS]; /* in the order of ops->options */
    bool given[DCOMMI_CODEC_OPTIONS];   /* given in the spec, not a default */
    int nonfinite;
    dcommi_bucketing bucketing;
    dcomm_codec *inner; /* the inner codec of a composed one, freed with it; NULL: none */
    bool automatic;     /* "auto": all-reduce decides between this codec, */
    dcomm_codec *cast;  /* this cast, freed with it, and none */
    char spec[DCOMMI_CODEC_SPEC_MAX];
};

/* Return the value of option number i as a whole number. */
static inline int64_t dcommi_codec_int(const dcomm_codec *codec, int i)
{
    return (int64_t)codec->value[i];
}

/* ---- calls ---- */

/* One encoding. With a residual, the codec encodes e = x + residual and stores next = e - decoded.
 * next may equal residual. The library initialises `report`. The codec counts non-finite inputs by
 * dcommi_codec_nonfinite, adds to `clipped`, and sets `kept` if it sends fewer elements. */
typedef struct dcommi_encoding {
    const float *x;
    const float *residual; /* NULL: none */
    float *next;
    size_t count;
    dcomm_codec_key key;
    unsigned char *wire; /* has room for max_bytes */
    size_t bytes;        /* that the codec wrote, which sets it */
    void *workspace;     /* ops->workspace bytes, aligned to 64 */
    void *state;         /* ops->state bytes, zeroed before the tensor's first step; NULL: none */
    dcommi_tally *tally; /* NULL: none. A codec that takes the sums sets `done`. */
    dcomm_codec_report report;
} dcommi_encoding;

/* Several wires that are to be summed. */
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

/* Properties of a row that do not depend on its options, for code that knows the wire. */
enum {
    DCOMMI_IS_CAST = 1, /* one 16-bit float for each element, in order: f16 or bf16 */
    DCOMMI_IS_F16 = 2,
    DCOMMI_IS_BUCKETED = 4,  /* codes and steps, as codec->bucketing says */
    DCOMMI_IS_SELECTION = 8, /* elements and their indices, as in kernels/wire_sparse.h */
    DCOMMI_IS_SPLIT = 16,    /* a selection whose elements can be sent apart */
    DCOMMI_IS_SAMPLED = 32,  /* a selection whose size depends on a sample */
    DCOMMI_IS_PRODUCTS = 64, /* two matrices, Q computed from P; both can be summed */
    DCOMMI_IS_DRAWN = 128    /* elements whose indices follow from a seed, as in kernels/randk.h */
};

struct dcommi_codec_ops {
    const char *name;
    unsigned is;         /* DCOMMI_IS_* */
    const char *summary; /* one line for people */
    const dcommi_codec_option *options;
    /* Check the options together; set codec->inner if there is an inner codec. NULL: no check. */
    dcomm_status (*make)(dcomm_codec *codec);
    /* Return DCOMMI_CODEC_*, which may depend on the options. */
    unsigned (*traits)(const dcomm_codec *codec);
    size_t (*max_bytes)(const dcomm_codec *codec, size_t count); /* SIZE_MAX: overflow */
    size_t (*workspace)(const dcomm_codec *codec, size_t count); /* for encode; NULL: none */
    dcomm_status (*encode)(const dcomm_codec *codec, dcommi_encoding *call);
    /* Set x to the decoded elements, or add them if `add`. count may be 0. No byte can be
     * trusted. */
    dcomm_status (*decode)(const dcomm_codec *codec, const void *wire, size_t bytes, float *x,
                           size_t count, bool add);
    /* Set x to the sum of the wires in order; n >= 2. NULL: decode, then decode and add. */
    dcomm_status (*decode_sum)(const dcomm_codec *codec, const dcommi_wires *in, float *x,
                               size_t count);
    /* Do dcomm_recode; call->x is NULL. NULL: decode_sum, then encode. */
    dcomm_status (*recode)(const dcomm_codec *codec, const dcommi_wires *in, float factor,
                           dcommi_encoding *call);
    /* Set granule, omega and contraction; the library sets the rest. NULL: 1, NaN, NaN. */
    void (*info)(const dcomm_codec *codec, size_t count, dcomm_codec_info *info);
    /* Return the bytes that encode may keep from one step of a tensor to the next. NULL: none. */
    size_t (*state)(const dcomm_codec *codec, size_t count);
};

/* ---- shared by codecs ---- */

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

/* Return the number to encode with error feedback. An x that is not finite counts as 0. */
static inline float dcommi_codec_e(float x, float residual)
{
    return dcommi_f32_bounded((dcommi_f32_nonfinite(x) ? 0 : x) + residual);
}

/* Return a + b and a * b; SIZE_MAX on overflow, or if an operand is SIZE_MAX. */
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

/* Round up to whole cache lines; SIZE_MAX stays too large for any buffer. */
static inline size_t dcommi_size_lines(size_t bytes)
{
    return dcommi_size_add(bytes, DCOMMI_CACHE_LINE - 1) & ~(size_t)(DCOMMI_CACHE_LINE - 1);
}

/* Return the number of elements that option k, the first option, asks for. Below 1, k is a share
 * of the elements, of which at least one is kept; else it is their number. */
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

/* Refuse wires unless each is max_bytes long. */
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
