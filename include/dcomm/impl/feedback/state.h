/* state.h - the memory of error feedback: residuals in f32 or bf16, of this step and of the next
 * one; and the codec of a step. */
#ifndef DCOMMI_FEEDBACK_STATE_H
#define DCOMMI_FEEDBACK_STATE_H

#include "../../feedback.h"
#include "../codec/api_codec.h"
#include "../codec/ledger.h"

/* A device whose memory holds arrays, for the life of the process (feedback_device.h). All
 * functions but `read` are queued behind the calls before, and wait for nothing. */
typedef struct dcommi_feedback_place dcommi_feedback_place;
struct dcommi_feedback_store;
struct dcommi_feedback_place {
    int device;
    dcomm_status (*make)(const dcommi_feedback_place *at, size_t bytes, void **memory_p);
    void (*release)(const dcommi_feedback_place *at, void *memory);
    dcomm_status (*zero)(const dcommi_feedback_place *at, void *memory, size_t bytes);
    dcomm_status (*copy)(const dcommi_feedback_place *at, void *to, const void *from, size_t bytes);
    /* Add y->now to x from element `first` on: x += factor * y, computed as by
     * dcommi_feedback_plus, and bounded. */
    dcomm_status (*add)(const dcommi_feedback_place *at, const struct dcommi_feedback_store *x,
                        size_t first, float factor, const struct dcommi_feedback_store *y);
    /* Copy to host memory, after all earlier calls have been done. */
    dcomm_status (*read)(const dcommi_feedback_place *at, void *to, const void *from, size_t bytes);
};

/* An array that a step changes: `now` stays as it is until the commit, which takes `next`. Both
 * are NULL if there is none, and the same if it is in place. */
typedef struct dcommi_feedback_store {
    void *now, *next;
    size_t count;
    bool bf16;
    const dcommi_feedback_place *place; /* NULL: host memory */
} dcommi_feedback_store;

/* A workspace on a device, which the encoding of one range keeps from step to step. */
typedef struct dcommi_feedback_kept {
    struct dcommi_feedback_kept *next;
    size_t first, bytes;
    bool owner;
    void *memory;
} dcommi_feedback_kept;

/* The memory of the codec for one range that this rank encodes (feedback/basis.h). */
typedef struct dcommi_feedback_basis {
    struct dcommi_feedback_basis *next;
    size_t first, count; /* elements of the tensor */
    bool owner;          /* of the sum, not of this rank's gradient */
    bool learned;        /* in the step under way, or in the one that was committed last */
    uint64_t step;       /* the last step that encoded the range */
    dcommi_feedback_store numbers;
} dcommi_feedback_basis;

/* Scratch arrays of f32, as long as the longest range so far. */
enum {
    DCOMMI_FEEDBACK_INPUT,    /* the input, unless it is the caller's array */
    DCOMMI_FEEDBACK_SENT,     /* the wire, decoded */
    DCOMMI_FEEDBACK_RESIDUAL, /* a bf16 residual, widened */
    DCOMMI_FEEDBACK_NEXT,     /* a residual before it is narrowed to bf16 */
    DCOMMI_FEEDBACK_VELOCITY, /* DGC's u in bf16, widened */
    DCOMMI_FEEDBACK_ZEROS,    /* for an owner without a residual of its own */
    DCOMMI_FEEDBACK_LOST,     /* and its rounding error */
    DCOMMI_FEEDBACK_GRADIENT, /* a copy of the gradient that begin was given */
    DCOMMI_FEEDBACK_GATHERED, /* gradient and residual for a linear codec */
    DCOMMI_FEEDBACK_WORKSPACE,
    DCOMMI_FEEDBACK_SCRATCH
};

enum { DCOMMI_FEEDBACK_STAGES = 4 }; /* of DGC's warm-up */

enum { DCOMMI_FEEDBACK_NOTHING, DCOMMI_FEEDBACK_COMMITTED, DCOMMI_FEEDBACK_SKIPPED };

/* Elements [first, first + count). */
typedef struct dcommi_feedback_span {
    size_t first, count;
} dcommi_feedback_span;

struct dcomm_feedback {
    const dcomm_codec *codec;
    dcomm_codec *warm[DCOMMI_FEEDBACK_STAGES]; /* made when they are needed */
    dcomm_feedback_opts opts;
    size_t count;
    uint64_t step;
    bool begun, stale;
    double factor;       /* 1, or 1/(1+omega) */
    double owner_factor; /* the owner residual is in units of the sum times this */
    double next_factor;  /* likewise, from the commit on */
    bool average;        /* EF21: the estimate is of the average, over `nranks` */
    uint32_t nranks;
    dcommi_feedback_store worker;   /* residual; EF21: the estimate w */
    dcommi_feedback_store owner;    /* residual of the owned shard */
    dcommi_feedback_store velocity; /* DGC's u */
    dcommi_feedback_store estimate; /* EF21's sum of all w, as all ranks have it */
    dcommi_feedback_store basis;    /* the basis (powersgd: Q) that all ranks begin the step with;
                                     * made by the first step that learns one */
    dcommi_feedback_basis *bases;   /* the bases of this rank's own encodings, by range */
    size_t own_first;
    /* of the step under way */
    dcomm_feedback_step now;
    struct {
        double owner_factor;
        bool average;
        uint32_t nranks;
    } before;                           /* of the step that was committed last */
    int last;                           /* its kind; unless DCOMMI_FEEDBACK_NOTHING it can be
                                         * undone */
    float clip;                         /* DGC: factor on the gradient */
    struct dcomm_cuda_clip *clip_there; /* the factor on a device */
    bool clip_known;                    /* clip_there is of this step */
    size_t encoded, owned, finished;    /* elements done */
    bool learned;                       /* basis.next is filled in */
    bool collective;                    /* an all-reduce has begun the step */
    size_t last_first, last_count;      /* of the step before: where now and next differ */
    dcommi_feedback_span *span;         /* partly: the elements that were encoded */
    size_t nspans, spans_capacity;
    double held; /* sum of the squares of this step's residuals */
    float *scratch[DCOMMI_FEEDBACK_SCRATCH];
    size_t scratch_room[DCOMMI_FEEDBACK_SCRATCH];
    dcommi_feedback_kept *kept; /* if the worker's residual lies on a device */
    dcomm_ledger *ledger;
};

/* ---- stores ---- */

enum { DCOMMI_FEEDBACK_STORES = 5 };

/* List all arrays of a state, in the order in which they are saved. */
static inline void dcommi_feedback_stores(const dcomm_feedback *of, dcommi_feedback_store **stores)
{
    dcomm_feedback *fb = (dcomm_feedback *)(uintptr_t)of; /* the caller knows what it may change */
    stores[0] = &fb->worker;
    stores[1] = &fb->owner;
    stores[2] = &fb->velocity;
    stores[3] = &fb->estimate;
    stores[4] = &fb->basis;
}

static inline size_t dcommi_feedback_width(const dcommi_feedback_store *s)
{
    return s->bf16 ? sizeof(uint16_t) : sizeof(float);
}

static inline void dcommi_feedback_store_give(const dcommi_feedback_store *s, void *memory)
{
    if (s->place != NULL && memory != NULL) {
        s->place->release(s->place, memory);
    } else {
        dcommi_free(memory);
    }
}

static void dcommi_feedback_store_free(dcommi_feedback_store *s)
{
    if (s->next != s->now) {
        dcommi_feedback_store_give(s, s->next);
    }
    dcommi_feedback_store_give(s, s->now);
    *s = (dcommi_feedback_store){.bf16 = s->bf16};
}

static void dcommi_feedback_kept_free(dcomm_feedback *fb)
{
    while (fb->kept != NULL) {
        dcommi_feedback_kept *kept = fb->kept;
        fb->kept = kept->next;
        fb->worker.place->release(fb->worker.place, kept->memory);
        dcommi_free(kept);
    }
    if (fb->clip_there != NULL) {
        fb->worker.place->release(fb->worker.place, fb->clip_there);
        fb->clip_there = NULL;
    }
}

static void dcommi_feedback_bases_free(dcomm_feedback *fb)
{
    while (fb->bases != NULL) {
        dcommi_feedback_basis *basis = fb->bases;
        fb->bases = basis->next;
        dcommi_feedback_store_free(&basis->numbers);
        dcommi_free(basis);
    }
}

/* Make a store of zeros in host memory. */
static dcomm_status dcommi_feedback_store_make(dcommi_feedback_store *s, size_t count, bool bf16,
                                               bool in_place)
{
    *s = (dcommi_feedback_store){.count = count, .bf16 = bf16};
    s->now = dcommi_calloc(count, dcommi_feedback_width(s));
    s->next = in_place ? s->now : dcommi_calloc(count, dcommi_feedback_width(s));
    if (s->now == NULL || s->next == NULL) {
        dcommi_feedback_store_free(s);
        return DCOMM_ERR_NO_MEMORY;
    }
    return DCOMM_OK;
}

static inline void *dcommi_feedback_at(const dcommi_feedback_store *s, void *base, size_t at)
{
    return (unsigned char *)base + at * dcommi_feedback_width(s);
}

static void dcommi_feedback_narrow(const float *from, uint16_t *to, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint16_t h = dcommi_f32_to_bf16(from[i]);
        to[i] = (uint16_t)((h & 0x7fffu) == 0x7f80u ? h - 1 : h); /* do not round up to infinity */
    }
}

/* Return elements [at, at + count) of `base` as f32: where they lie, or converted in `room`. */
static float *dcommi_feedback_read(const dcommi_feedback_store *s, void *base, size_t at,
                                   size_t count, float *room)
{
    void *from = dcommi_feedback_at(s, base, at);
    if (!s->bf16) {
        return from;
    }
    for (size_t i = 0; i < count; i++) {
        room[i] = dcommi_bf16_to_f32(((const uint16_t *)from)[i]);
    }
    return room;
}

static void dcommi_feedback_write(const dcommi_feedback_store *s, size_t at, size_t count,
                                  const float *from)
{
    void *to = dcommi_feedback_at(s, s->next, at);
    if (s->bf16) {
        dcommi_feedback_narrow(from, to, count);
    } else if (to != (const void *)from) {
        memcpy(to, from, count * sizeof *from);
    }
}

static inline float dcommi_feedback_get(const dcommi_feedback_store *s, const void *base, size_t i)
{
    return s->bf16 ? dcommi_bf16_to_f32(((const uint16_t *)base)[i]) : ((const float *)base)[i];
}

static inline void dcommi_feedback_set(const dcommi_feedback_store *s, void *base, size_t i,
                                       float x)
{
    if (s->bf16) {
        dcommi_feedback_narrow(&x, (uint16_t *)base + i, 1);
    } else {
        ((float *)base)[i] = x;
    }
}

#define DCOMMI_FEEDBACK_READ ((size_t)1 << 18) /* elements read from a device at a time */

/* Add the squares of a residual to *sum_p. */
static dcomm_status dcommi_feedback_norm2(const dcommi_feedback_store *s, double *sum_p)
{
    const size_t most = s->count < DCOMMI_FEEDBACK_READ ? s->count : DCOMMI_FEEDBACK_READ;
    const size_t width = dcommi_feedback_width(s);
    void *room = s->place != NULL ? dcommi_alloc_raw(most * width) : NULL;
    dcomm_status status = s->place == NULL || room != NULL ? DCOMM_OK : DCOMM_ERR_NO_MEMORY;
    for (size_t at = 0, n; at < s->count && status == DCOMM_OK; at += n) {
        n = s->place == NULL || s->count - at < most ? s->count - at : most;
        if (s->place != NULL) {
            status = s->place->read(s->place, room, dcommi_feedback_at(s, s->now, at), n * width);
        }
        for (size_t i = 0; i < n && status == DCOMM_OK; i++) {
            double x = (double)(room != NULL ? dcommi_feedback_get(s, room, i)
                                             : dcommi_feedback_get(s, s->now, at + i));
            *sum_p += x * x;
        }
    }
    dcommi_free(room);
    return status;
}

static inline void dcommi_feedback_store_clear(dcommi_feedback_store *s)
{
    if (s->now != NULL) {
        memset(s->now, 0, s->count * dcommi_feedback_width(s));
        memset(s->next, 0, s->count * dcommi_feedback_width(s));
    }
}

static inline void dcommi_feedback_swap(dcommi_feedback_store *s)
{
    void *now = s->now;
    s->now = s->next;
    s->next = now;
}

/* Swap only the elements that were encoded, so the others stay as they are. */
static void dcommi_feedback_swap_spans(const dcomm_feedback *fb, dcommi_feedback_store *s)
{
    unsigned char room[4096];
    size_t width = dcommi_feedback_width(s), most = sizeof room / width;
    for (size_t i = 0; s->now != s->next && i < fb->nspans; i++) {
        size_t end = fb->span[i].first + fb->span[i].count, n;
        for (size_t at = fb->span[i].first; at < end; at += n) {
            n = end - at < most ? end - at : most;
            void *now = dcommi_feedback_at(s, s->now, at),
                 *next = dcommi_feedback_at(s, s->next, at);
            memcpy(room, now, n * width);
            memcpy(now, next, n * width);
            memcpy(next, room, n * width);
        }
    }
}

/* Make the result of the step the state, and keep the state of before; or undo that. On a device
 * `next` began as a copy if only some elements would be encoded, so all of it is swapped. */
static void dcommi_feedback_exchange(dcomm_feedback *fb)
{
    dcommi_feedback_store *stores[] = {&fb->worker, &fb->velocity, &fb->estimate};
    for (size_t k = 0; k < sizeof stores / sizeof *stores; k++) {
        if (fb->now.partly && stores[k]->place == NULL) {
            dcommi_feedback_swap_spans(fb, stores[k]);
        } else {
            dcommi_feedback_swap(stores[k]);
        }
    }
    dcommi_feedback_swap(&fb->owner);
    if (fb->learned) {
        dcommi_feedback_swap(&fb->basis);
    }
    for (dcommi_feedback_basis *b = fb->bases; b != NULL; b = b->next) {
        if (b->learned) {
            dcommi_feedback_swap(&b->numbers);
        }
    }
}

/* Return a scratch array of at least `count` floats, or NULL without memory. */
static float *dcommi_feedback_room(dcomm_feedback *fb, int which, size_t count)
{
    if (fb->scratch[which] == NULL || count > fb->scratch_room[which]) {
        size_t bytes = dcommi_size_mul(count, sizeof(float));
        dcommi_free(fb->scratch[which]);
        fb->scratch[which] = dcommi_alloc_raw(bytes);
        fb->scratch_room[which] = fb->scratch[which] != NULL ? count : 0;
    }
    return fb->scratch[which];
}

/* ---- the codec of a step ---- */

/* Create the codec with another k. *codec_p is NULL if that would not be denser. */
static dcomm_status dcommi_feedback_denser(const dcomm_feedback *fb, double k,
                                           dcomm_codec **codec_p)
{
    double own = dcommi_codec_k(fb->codec);
    *codec_p = NULL;
    if (own < 0) {
        return dcommi_fail(DCOMM_ERR_INVALID,
                           "opts.warmup_steps changes option k, which codec %s does not have",
                           dcomm_codec_spec(fb->codec));
    }
    return (own >= 1 ? own >= k * (double)fb->count : own >= k)
               ? DCOMM_OK
               : dcommi_codec_with_k(fb->codec, k, codec_p);
}

DCOMM_API const dcomm_codec *dcomm_feedback_codec(dcomm_feedback *fb)
{
    if (fb == NULL) {
        return NULL;
    }
    if (fb->opts.warmup_steps == 0 || fb->step >= fb->opts.warmup_steps) {
        return fb->codec;
    }
    double done = (double)fb->step / (double)fb->opts.warmup_steps; /* may be rounded up to 1 */
    int stage = (int)(done * DCOMMI_FEEDBACK_STAGES);
    const dcomm_codec *warm =
        fb->warm[stage < DCOMMI_FEEDBACK_STAGES ? stage : DCOMMI_FEEDBACK_STAGES - 1];
    return warm != NULL ? warm : fb->codec;
}

DCOMM_API size_t dcomm_feedback_max_bytes(dcomm_feedback *fb, size_t count)
{
    size_t most = fb != NULL ? dcomm_codec_max_bytes(fb->codec, count) : 0;
    for (int i = 0; fb != NULL && i < DCOMMI_FEEDBACK_STAGES; i++) {
        size_t warm = dcomm_codec_max_bytes(fb->warm[i], count);
        most = warm > most ? warm : most;
    }
    return most;
}

/* ---- life ---- */

static dcomm_status dcommi_feedback_check_opts(const dcomm_feedback_opts *o)
{
    const char *wrong = (unsigned)o->variant >= DCOMM_FEEDBACK_VARIANT_COUNT
                            ? "opts.variant is not known"
                        : !(o->momentum < 1) ? "opts.momentum is not below 1"
                        : !(o->clip >= 0)    ? "opts.clip is below 0"
                        : o->bf16 && o->variant == DCOMM_FEEDBACK_EF21
                            ? "EF21 with bf16: the ranks' estimates would drift from their sum"
                        : o->variant != DCOMM_FEEDBACK_DGC && (o->warmup_steps > 0 || o->clip > 0)
                            ? "opts.warmup_steps and opts.clip are DGC's"
                            : NULL;
    return wrong == NULL ? DCOMM_OK
                         : dcommi_fail(DCOMM_ERR_INVALID, "dcomm_feedback_create: %s", wrong);
}

/* Return true if residuals of a codec would grow without bound. */
static inline bool dcommi_feedback_grows(const dcomm_codec_info *info)
{
    return info->unbiased && info->omega >= 1;
}

/* Check that error feedback converges with the codec, and set the factor that scales it. */
static dcomm_status dcommi_feedback_check_codec(dcomm_feedback *fb)
{
    dcomm_codec_info info;
    DCOMMI_TRY(dcomm_codec_get_info(fb->codec, fb->count, &info));
    if (fb->opts.variant == DCOMM_FEEDBACK_DGC && !info.sparse) {
        return dcommi_fail(DCOMM_ERR_INVALID,
                           "dcomm_feedback_create: DGC needs a sparse codec, because it forgets "
                           "the momentum of what is sent; %s sends all elements",
                           info.name);
    }
    fb->factor = 1;
    if (dcommi_feedback_grows(&info)) {
        if (!fb->opts.scale) {
            return dcommi_fail(DCOMM_ERR_INVALID,
                               "dcomm_feedback_create: residuals would grow without bound, because "
                               "codec %s has variance factor %.3g for %zu elements, which must be "
                               "below 1; set opts.scale, which multiplies by 1/(1+omega)",
                               fb->codec->spec, info.omega, fb->count);
        }
        fb->factor = 1 / (1 + info.omega);
    }
    return DCOMM_OK;
}

static dcomm_status dcommi_feedback_make(dcomm_feedback *fb)
{
    dcomm_feedback_opts *o = &fb->opts;
    DCOMMI_TRY(dcommi_feedback_check_codec(fb));
    fb->owner.bf16 = o->bf16;
    DCOMMI_TRY(dcommi_feedback_store_make(&fb->worker, fb->count, o->bf16, o->in_place));
    if (o->variant == DCOMM_FEEDBACK_DGC) {
        DCOMMI_TRY(dcommi_feedback_store_make(&fb->velocity, fb->count, o->bf16, o->in_place));
    }
    if (o->variant == DCOMM_FEEDBACK_EF21) {
        DCOMMI_TRY(dcommi_feedback_store_make(&fb->estimate, fb->count, false, o->in_place));
    }
    double k = 1;
    for (int i = 0; o->warmup_steps > 0 && i < DCOMMI_FEEDBACK_STAGES; i++) {
        k /= 4;
        DCOMMI_TRY(dcommi_feedback_denser(fb, k, &fb->warm[i]));
    }
    return DCOMM_OK;
}

DCOMM_API dcomm_status dcomm_feedback_create(const dcomm_codec *codec, size_t count,
                                             const dcomm_feedback_opts *opts, dcomm_feedback **fb_p)
{
    static const dcomm_feedback_opts defaults;
    DCOMMI_NEED(codec);
    DCOMMI_NEED(fb_p);
    opts = opts != NULL ? opts : &defaults;
    DCOMMI_TRY(dcommi_feedback_check_opts(opts));
    dcomm_feedback *fb = dcommi_alloc(sizeof *fb);
    if (fb == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    fb->codec = codec;
    fb->count = count;
    fb->opts = *opts;
    fb->owner_factor = fb->next_factor = 1;
    fb->nranks = 1;
    /* Zero means the default, and any negative number no momentum. */
    fb->opts.momentum = opts->momentum < 0 ? -1 : opts->momentum == 0 ? 0.9 : opts->momentum;
    dcomm_status status = dcommi_feedback_make(fb);
    if (status != DCOMM_OK) {
        dcomm_feedback_destroy(&fb);
        return status;
    }
    *fb_p = fb;
    return DCOMM_OK;
}

DCOMM_API dcomm_status dcomm_feedback_destroy(dcomm_feedback **fb_p)
{
    if (fb_p == NULL || *fb_p == NULL) {
        return DCOMM_OK;
    }
    dcomm_feedback *fb = *fb_p;
    dcommi_feedback_store *stores[DCOMMI_FEEDBACK_STORES];
    dcommi_feedback_stores(fb, stores);
    dcommi_feedback_kept_free(fb);
    dcommi_feedback_bases_free(fb);
    for (int i = 0; i < DCOMMI_FEEDBACK_STORES; i++) {
        dcommi_feedback_store_free(stores[i]);
    }
    for (int i = 0; i < DCOMMI_FEEDBACK_SCRATCH; i++) {
        dcommi_free(fb->scratch[i]);
    }
    for (int i = 0; i < DCOMMI_FEEDBACK_STAGES; i++) {
        dcomm_codec_destroy(&fb->warm[i]);
    }
    dcommi_free(fb->span);
    dcommi_free(fb);
    *fb_p = NULL;
    return DCOMM_OK;
}

/* Return how many numbers all ranks remember alike from one step to the next. */
static inline size_t dcommi_feedback_basis_count(const dcomm_codec *codec, size_t count)
{
    return codec->ops->state != NULL ? codec->ops->state(codec, count) / sizeof(float) : 0;
}

/* Make room for the basis. Zeros mean that there is none yet. */
static dcomm_status dcommi_feedback_basis_make(dcomm_feedback *fb)
{
    size_t count = dcommi_feedback_basis_count(fb->codec, fb->count);
    return fb->basis.count == count
               ? DCOMM_OK
               : dcommi_feedback_store_make(&fb->basis, count, false, fb->opts.in_place);
}

/* Store what steps begin with after the next commit. */
static inline dcomm_status dcommi_feedback_learn(dcomm_feedback *fb, const float *basis)
{
    DCOMMI_TRY(dcommi_feedback_basis_make(fb));
    memcpy(fb->basis.next, basis, fb->basis.count * sizeof(float));
    fb->learned = true;
    return DCOMM_OK;
}

static size_t dcommi_feedback_store_bytes(const dcommi_feedback_store *s)
{
    return (s->next != s->now ? 2 : 1) * s->count * dcommi_feedback_width(s);
}

DCOMM_API dcomm_status dcomm_feedback_get_info(const dcomm_feedback *fb, dcomm_feedback_info *info)
{
    DCOMMI_NEED(fb);
    DCOMMI_NEED(info);
    double worker = 0, owner = 0;
    DCOMMI_TRY(dcommi_feedback_norm2(&fb->worker, &worker));
    DCOMMI_TRY(dcommi_feedback_norm2(&fb->owner, &owner));
    *info = (dcomm_feedback_info){
        .variant = fb->opts.variant,
        .count = fb->count,
        .step = fb->step,
        .stale = fb->stale,
        .begun = fb->begun,
        .own_first = fb->own_first,
        .own_count = fb->owner.count,
        .worker_norm = dcommi_sqrt(worker),
        .owner_norm = dcommi_sqrt(owner),
        .device = fb->worker.place != NULL ? fb->worker.place->device : -1,
        .factor = fb->factor,
    };
    dcommi_feedback_store *stores[DCOMMI_FEEDBACK_STORES];
    dcommi_feedback_stores(fb, stores);
    for (int i = 0; i < DCOMMI_FEEDBACK_STORES; i++) {
        info->state_bytes += dcommi_feedback_store_bytes(stores[i]);
    }
    for (const dcommi_feedback_basis *b = fb->bases; b != NULL; b = b->next) {
        info->state_bytes += dcommi_feedback_store_bytes(&b->numbers);
    }
    return DCOMM_OK;
}

DCOMM_API dcomm_status dcomm_feedback_set_ledger(dcomm_feedback *fb, dcomm_ledger *ledger)
{
    DCOMMI_NEED(fb);
    fb->ledger = ledger;
    return DCOMM_OK;
}

#endif
