/* save.h - error feedback beyond one run: save it, load it, and move it to another number of
 * ranks. Loaded bytes come from outside and are not trusted. */
#ifndef DCOMMI_FEEDBACK_SAVE_H
#define DCOMMI_FEEDBACK_SAVE_H

#include "feedback.h"

#define DCOMMI_FEEDBACK_MAGIC 0x3162666d6d6f6364u  /* "dcommfb1" */
#define DCOMMI_FEEDBACK_RANGES 0x3262666d6d6f6364u /* "dcommfb2": with bases of ranges */

/* The head of a saved state, in little-endian order. After it come the codec's spec, padded to 8
 * bytes; the arrays of the variant, worker, owner, velocity, estimate, and the codec's basis if
 * one was learned, each padded to 8 bytes; a hash of all that. With the second magic number, bases
 * of ranges stand between spec and arrays: their number, then the head and the numbers of each,
 * padded to 8 bytes. */
typedef struct dcommi_feedback_head {
    uint64_t magic;
    uint32_t variant, bf16, in_place, scale;
    uint32_t tensor, average, nranks, spec_bytes;
    uint64_t count, seed, step, warmup_steps;
    uint64_t own_first, own_count;
    double momentum, clip, owner_factor;
} dcommi_feedback_head;

_Static_assert(sizeof(dcommi_feedback_head) == 112, "no padding");

typedef struct dcommi_feedback_range_head {
    uint64_t first, count, owner; /* owner: 0 or 1 */
} dcommi_feedback_range_head;

static inline size_t dcommi_feedback_padded(size_t bytes)
{
    return dcommi_size_add(bytes, 7) & ~(size_t)7;
}

static uint64_t dcommi_feedback_hash(const unsigned char *from, size_t bytes)
{
    uint64_t hash = bytes;
    for (size_t i = 0; i + 8 <= bytes; i += 8) {
        uint64_t word;
        memcpy(&word, from + i, sizeof word);
        hash = dcommi_mix(hash, word);
    }
    return hash;
}

static inline size_t dcommi_feedback_store_saved(const dcommi_feedback_store *s)
{
    return dcommi_feedback_padded(dcommi_size_mul(s->count, dcommi_feedback_width(s)));
}

/* Return the bytes of the bases of ranges; 0 if there are none. */
static size_t dcommi_feedback_bases_saved(const dcomm_feedback *fb)
{
    size_t bytes = fb->bases != NULL ? sizeof(uint64_t) : 0;
    for (const dcommi_feedback_basis *b = fb->bases; b != NULL; b = b->next) {
        bytes += sizeof(dcommi_feedback_range_head) + dcommi_feedback_store_saved(&b->numbers);
    }
    return bytes;
}

/* Write the bases of ranges at *at, and move *at past them. */
static dcomm_status dcommi_feedback_save_bases(const dcomm_feedback *fb, unsigned char **at)
{
    uint64_t n = 0;
    for (const dcommi_feedback_basis *b = fb->bases; b != NULL; b = b->next) {
        n++;
    }
    memcpy(*at, &n, sizeof n);
    *at += sizeof n;
    for (const dcommi_feedback_basis *b = fb->bases; b != NULL; b = b->next) {
        const dcommi_feedback_range_head head = {b->first, b->count, b->owner};
        memcpy(*at, &head, sizeof head);
        DCOMMI_TRY(dcommi_feedback_store_read(&b->numbers, *at + sizeof head, b->numbers.now));
        *at += sizeof head + dcommi_feedback_store_saved(&b->numbers);
    }
    return DCOMM_OK;
}

DCOMM_API size_t dcomm_feedback_save_bytes(const dcomm_feedback *fb)
{
    if (fb == NULL) {
        return 0;
    }
    dcommi_feedback_store *stores[DCOMMI_FEEDBACK_STORES];
    dcommi_feedback_stores(fb, stores);
    size_t bytes = sizeof(dcommi_feedback_head) + dcommi_feedback_padded(strlen(fb->codec->spec)) +
                   dcommi_feedback_bases_saved(fb) + sizeof(uint64_t);
    for (int i = 0; i < DCOMMI_FEEDBACK_STORES; i++) {
        bytes += dcommi_feedback_store_saved(stores[i]);
    }
    return bytes;
}

DCOMM_API dcomm_status dcomm_feedback_save(const dcomm_feedback *fb, void *to, size_t capacity)
{
    DCOMMI_TRY(dcommi_feedback_open("dcomm_feedback_save", fb, false));
    size_t bytes = dcomm_feedback_save_bytes(fb);
    if (fb->stale || to == NULL || capacity < bytes) {
        return dcommi_fail(DCOMM_ERR_INVALID,
                           "dcomm_feedback_save: %s; it takes %zu bytes, and capacity is %zu",
                           fb->stale    ? "the state is stale"
                           : to == NULL ? "to is NULL"
                                        : "there is no room",
                           bytes, capacity);
    }
    size_t spec = strlen(fb->codec->spec);
    const bool ranges = fb->bases != NULL;
    dcommi_feedback_head head = {.magic = ranges ? DCOMMI_FEEDBACK_RANGES : DCOMMI_FEEDBACK_MAGIC,
                                 .variant = (uint32_t)fb->opts.variant,
                                 .bf16 = fb->opts.bf16,
                                 .in_place = fb->opts.in_place,
                                 .scale = fb->opts.scale,
                                 .tensor = fb->opts.tensor,
                                 .average = fb->average,
                                 .nranks = fb->nranks,
                                 .spec_bytes = (uint32_t)spec,
                                 .count = fb->count,
                                 .seed = fb->opts.seed,
                                 .step = fb->step,
                                 .warmup_steps = fb->opts.warmup_steps,
                                 .own_first = fb->own_first,
                                 .own_count = fb->owner.count,
                                 .momentum = fb->opts.momentum,
                                 .clip = fb->opts.clip,
                                 .owner_factor = fb->owner_factor};
    unsigned char *at = to;
    memset(at, 0, bytes);
    memcpy(at, &head, sizeof head);
    at += sizeof head;
    memcpy(at, fb->codec->spec, spec);
    at += dcommi_feedback_padded(spec);
    DCOMMI_TRY(ranges ? dcommi_feedback_save_bases(fb, &at) : DCOMM_OK);
    dcommi_feedback_store *stores[DCOMMI_FEEDBACK_STORES];
    dcommi_feedback_stores(fb, stores);
    for (int i = 0; i < DCOMMI_FEEDBACK_STORES; i++) {
        DCOMMI_TRY(dcommi_feedback_store_read(stores[i], at, stores[i]->now));
        at += dcommi_feedback_store_saved(stores[i]);
    }
    uint64_t hash = dcommi_feedback_hash(to, bytes - sizeof hash);
    memcpy(at, &hash, sizeof hash);
    return DCOMM_OK;
}

/* ---- loading ---- */

static dcomm_status dcommi_feedback_corrupt(const char *what)
{
    return dcommi_fail(DCOMM_ERR_CORRUPT, "dcomm_feedback_load: %s", what);
}

/* Check the head's fields that decide how much memory is allocated, against the bytes that are
 * there. *basis: the codec's basis was saved. */
static dcomm_status dcommi_feedback_check_head(const dcomm_codec *codec,
                                               const dcommi_feedback_head *h, size_t bytes,
                                               bool *basis)
{
    if (h->variant >= DCOMM_FEEDBACK_VARIANT_COUNT || h->bf16 > 1 || h->in_place > 1 ||
        h->scale > 1 || h->average > 1 || h->nranks == 0 ||
        !(h->momentum == -1 || (h->momentum > 0 && h->momentum < 1)) ||
        !(h->clip >= 0 && h->clip <= DBL_MAX) ||
        !(fabs(h->owner_factor) >= DBL_MIN && fabs(h->owner_factor) <= DBL_MAX) ||
        h->own_first > h->count || h->own_count > h->count - h->own_first) {
        return dcommi_feedback_corrupt("a value of its head is out of range");
    }
    size_t width = h->bf16 ? sizeof(uint16_t) : sizeof(float);
    size_t one = dcommi_feedback_padded(dcommi_size_mul(h->count, width));
    size_t need =
        dcommi_size_add(sizeof *h + sizeof(uint64_t), dcommi_feedback_padded(h->spec_bytes));
    need = dcommi_size_add(need, one);
    need = dcommi_size_add(need, dcommi_feedback_padded(h->own_count * width));
    need = dcommi_size_add(need, h->variant == DCOMM_FEEDBACK_CLASSIC ? 0 : one);
    *basis = need < bytes && /* need < bytes, so memory can hold the count */
             bytes - need == dcommi_feedback_padded(sizeof(float) *
                                                    dcommi_feedback_basis_count(codec, h->count));
    if (need != bytes && !*basis) {
        return dcommi_fail(DCOMM_ERR_CORRUPT,
                           "dcomm_feedback_load: a state of %" PRIu64
                           " elements takes %zu bytes, not %zu",
                           h->count, need, bytes);
    }
    return DCOMM_OK;
}

static dcomm_status dcommi_feedback_fill(dcommi_feedback_store *s, const unsigned char **at)
{
    if (s->count > 0) {
        memcpy(s->now, *at, s->count * dcommi_feedback_width(s));
    }
    *at += dcommi_feedback_store_saved(s);
    for (size_t i = 0; i < s->count; i++) {
        if (dcommi_f32_nonfinite(dcommi_feedback_get(s, s->now, i))) {
            return dcommi_feedback_corrupt("a residual is not finite");
        }
    }
    dcommi_feedback_store_level(s);
    return DCOMM_OK;
}

/* Load the bases of ranges from at most `left` bytes at `at`. fb NULL: only step over them.
 * *bytes_p becomes the bytes that they take. */
static dcomm_status dcommi_feedback_load_bases(const dcomm_codec *codec,
                                               const dcommi_feedback_head *h, dcomm_feedback *fb,
                                               const unsigned char *at, size_t left,
                                               size_t *bytes_p)
{
    uint64_t n;
    size_t done = sizeof n;
    if (left < sizeof n) {
        return dcommi_feedback_corrupt("it is too short");
    }
    memcpy(&n, at, sizeof n);
    if (n == 0) {
        return dcommi_feedback_corrupt("it has no ranges");
    }
    for (; n > 0; n--) {
        dcommi_feedback_range_head r;
        if (left - done < sizeof r) {
            return dcommi_feedback_corrupt("its ranges go beyond its end");
        }
        memcpy(&r, at + done, sizeof r);
        done += sizeof r;
        if (r.count == 0 || r.first > h->count || r.count > h->count - r.first || r.owner > 1 ||
            r.count > left) {
            return dcommi_feedback_corrupt("a range is not within the tensor");
        }
        const size_t numbers = dcommi_feedback_basis_count(codec, r.count);
        const size_t bytes = dcommi_feedback_padded(numbers * sizeof(float));
        if (numbers == 0 || left - done < bytes) {
            return dcommi_feedback_corrupt("its ranges go beyond its end");
        }
        if (fb != NULL) {
            dcommi_feedback_basis *basis;
            const unsigned char *from = at + done;
            DCOMMI_TRY(dcommi_feedback_basis_of(fb, r.first, r.count, r.owner != 0, &basis));
            if (basis->learned) {
                return dcommi_feedback_corrupt("a range stands there twice");
            }
            basis->learned = true;
            basis->step = h->step > 0 ? h->step - 1 : 0;
            DCOMMI_TRY(dcommi_feedback_fill(&basis->numbers, &from));
        }
        done += bytes;
    }
    *bytes_p = done;
    return DCOMM_OK;
}

static dcomm_status dcommi_feedback_fill_all(dcomm_feedback *fb, const dcommi_feedback_head *h,
                                             const unsigned char *at, bool basis)
{
    fb->step = h->step;
    fb->average = h->average != 0;
    fb->nranks = h->nranks;
    fb->owner_factor = h->owner_factor;
    DCOMMI_TRY(dcommi_feedback_own(fb, h->own_count > 0 ? h->own_first : 0, h->own_count));
    DCOMMI_TRY(dcommi_feedback_fill(&fb->worker, &at));
    DCOMMI_TRY(dcommi_feedback_fill(&fb->owner, &at));
    DCOMMI_TRY(dcommi_feedback_fill(&fb->velocity, &at));
    DCOMMI_TRY(dcommi_feedback_fill(&fb->estimate, &at));
    DCOMMI_TRY(basis ? dcommi_feedback_basis_make(fb) : DCOMM_OK);
    return dcommi_feedback_fill(&fb->basis, &at);
}

DCOMM_API dcomm_status dcomm_feedback_load(const dcomm_codec *codec, const void *from, size_t bytes,
                                           dcomm_feedback **fb_p)
{
    if (codec == NULL || fb_p == NULL || (from == NULL && bytes > 0)) {
        return dcommi_fail(DCOMM_ERR_INVALID, "dcomm_feedback_load: %s is NULL",
                           codec == NULL  ? "codec"
                           : fb_p == NULL ? "fb_p"
                                          : "from");
    }
    dcommi_feedback_head head;
    uint64_t hash;
    if (bytes < sizeof head + sizeof hash) {
        return dcommi_feedback_corrupt("it is too short");
    }
    const unsigned char *at = from;
    memcpy(&head, at, sizeof head);
    if (head.magic != DCOMMI_FEEDBACK_MAGIC && head.magic != DCOMMI_FEEDBACK_RANGES) {
        return dcommi_feedback_corrupt("these bytes are not a saved state");
    }
    const size_t rest = bytes - sizeof head - sizeof hash;
    const size_t spec_bytes = dcommi_feedback_padded(head.spec_bytes);
    memcpy(&hash, at + bytes - sizeof hash, sizeof hash);
    if (hash != dcommi_feedback_hash(at, bytes - sizeof hash)) {
        return dcommi_feedback_corrupt("it is damaged: its hash does not match its bytes");
    }
    if (head.spec_bytes >= DCOMMI_CODEC_SPEC_MAX || spec_bytes > rest) {
        return dcommi_feedback_corrupt("a value of its head is out of range");
    }
    at += sizeof head;
    if (strlen(codec->spec) != head.spec_bytes || memcmp(codec->spec, at, head.spec_bytes) != 0) {
        char spec[DCOMMI_CODEC_SPEC_MAX] = "";
        for (uint32_t i = 0; i < head.spec_bytes; i++) {
            spec[i] = (char)(at[i] >= ' ' && at[i] < 127 ? at[i] : '?');
        }
        return dcommi_fail(DCOMM_ERR_INVALID,
                           "dcomm_feedback_load: it was saved with codec %s, not %s", spec,
                           codec->spec);
    }
    at += spec_bytes;
    bool basis;
    size_t ranges = 0;
    if (head.magic == DCOMMI_FEEDBACK_RANGES) {
        DCOMMI_TRY(dcommi_feedback_load_bases(codec, &head, NULL, at, rest - spec_bytes, &ranges));
    }
    DCOMMI_TRY(dcommi_feedback_check_head(codec, &head, bytes - ranges, &basis));
    dcomm_feedback_opts opts = {.variant = (dcomm_feedback_variant)head.variant,
                                .bf16 = head.bf16 != 0,
                                .in_place = head.in_place != 0,
                                .scale = head.scale != 0,
                                .seed = head.seed,
                                .tensor = head.tensor,
                                .momentum = head.momentum,
                                .clip = head.clip,
                                .warmup_steps = head.warmup_steps};
    dcomm_feedback *fb;
    DCOMMI_TRY(dcomm_feedback_create(codec, head.count, &opts, &fb));
    dcomm_status status = DCOMM_OK;
    if (ranges > 0) {
        status = dcommi_feedback_load_bases(codec, &head, fb, at, rest - spec_bytes, &ranges);
    }
    if (status == DCOMM_OK) {
        status = dcommi_feedback_fill_all(fb, &head, at + ranges, basis);
    }
    if (status != DCOMM_OK) {
        dcomm_feedback_destroy(&fb);
        return status;
    }
    *fb_p = fb;
    return DCOMM_OK;
}

/* ---- another number of ranks ---- */

/* Return the first state that is given. Fail unless all states are of one job and tensor. */
static dcomm_status dcommi_feedback_alike(const dcomm_feedback *const *old, size_t nold,
                                          const dcomm_feedback **first_p)
{
    const dcomm_feedback *first = NULL;
    for (size_t r = 0; r < nold; r++) {
        const dcomm_feedback *fb = old[r];
        if (fb == NULL) {
            continue;
        }
        first = first == NULL ? fb : first;
        if (fb->begun || fb->stale || fb->count != first->count || fb->step != first->step ||
            fb->opts.variant != first->opts.variant || fb->opts.bf16 != first->opts.bf16 ||
            strcmp(fb->codec->spec, first->codec->spec) != 0) {
            return dcommi_fail(DCOMM_ERR_INVALID,
                               "dcomm_feedback_reshard: the state of rank %zu is %s", r,
                               fb->stale   ? "stale"
                               : fb->begun ? "in the middle of a step"
                                           : "of another tensor, codec, variant or step");
        }
    }
    *first_p = first;
    return first != NULL
               ? DCOMM_OK
               : dcommi_fail(DCOMM_ERR_INVALID, "dcomm_feedback_reshard: no state was given");
}

/* Return what the rank of `fb` has still to send of element i; EF21: what its estimate may
 * claim. */
static double dcommi_feedback_owed(const dcomm_feedback *fb, size_t i)
{
    double owed = (double)dcommi_feedback_get(&fb->worker, fb->worker.now, i);
    if (i >= fb->own_first && i - fb->own_first < fb->owner.count) {
        double owner = (double)dcommi_feedback_get(&fb->owner, fb->owner.now, i - fb->own_first) /
                       fb->owner_factor;
        owed += fb->opts.variant == DCOMM_FEEDBACK_EF21 ? -owner : owner;
    }
    return owed;
}

/* Compute element i of every new rank, keep only that of `rank`, and return the sum of all. */
static double dcommi_feedback_deal(const dcomm_feedback *const *old, size_t nold,
                                   dcomm_feedback *fb, uint32_t rank, uint32_t nranks, size_t i)
{
    double total = 0;
    for (uint32_t to = 0; to < nranks && to < nold; to++) {
        double sum = 0;
        for (size_t r = to; r < nold; r += nranks) {
            sum += old[r] != NULL ? dcommi_feedback_owed(old[r], i) : 0;
        }
        float kept = dcommi_feedback_bounded((float)sum, &(dcomm_codec_report){0});
        if (fb->worker.bf16) {
            uint16_t half;
            dcommi_feedback_narrow(&kept, &half, 1);
            kept = dcommi_bf16_to_f32(half);
        }
        if (to == rank) {
            dcommi_feedback_set(&fb->worker, fb->worker.now, i, kept);
        }
        total += (double)kept;
    }
    return total;
}

static void dcommi_feedback_redistribute(const dcomm_feedback *const *old, size_t nold,
                                         const dcomm_feedback *like, dcomm_feedback *fb,
                                         uint32_t rank, uint32_t nranks, dcomm_feedback_loss *loss)
{
    double carried = 0, lost = 0;
    double scale = like->average ? (double)like->nranks : 1;
    for (size_t i = 0; i < fb->count; i++) {
        double had = 0;
        for (size_t r = 0; r < nold; r++) {
            had += old[r] != NULL ? dcommi_feedback_owed(old[r], i) : 0;
        }
        double has = dcommi_feedback_deal(old, nold, fb, rank, nranks, i);
        carried += had * had;
        if (fb->estimate.count > 0) { /* the estimate must be what the workers claim, exactly */
            had = scale * (double)((const float *)like->estimate.now)[i];
            ((float *)fb->estimate.now)[i] = (float)(like->average ? has / nranks : has);
        }
        lost += (had - has) * (had - has);
        loss->lost_signed += had - has;
        double u = 0;
        for (size_t r = rank; fb->velocity.count > 0 && r < nold; r += nranks) {
            u += old[r] != NULL
                     ? (double)dcommi_feedback_get(&old[r]->velocity, old[r]->velocity.now, i)
                     : 0;
        }
        if (fb->velocity.count > 0) {
            dcommi_feedback_set(&fb->velocity, fb->velocity.now, i, (float)u);
        }
    }
    loss->carried = dcommi_sqrt(carried);
    loss->lost = dcommi_sqrt(lost);
}

DCOMM_API dcomm_status dcomm_feedback_reshard(const dcomm_feedback *const *old, size_t nold,
                                              uint32_t rank, uint32_t nranks, dcomm_feedback **fb_p,
                                              dcomm_feedback_loss *loss)
{
    if (old == NULL || fb_p == NULL || rank >= nranks) {
        return dcommi_fail(DCOMM_ERR_INVALID,
                           "dcomm_feedback_reshard: %s is NULL, or rank %" PRIu32
                           " is not one of %" PRIu32,
                           old == NULL ? "old" : "fb_p", rank, nranks);
    }
    const dcomm_feedback *like;
    DCOMMI_TRY(dcommi_feedback_alike(old, nold, &like));
    for (size_t r = 0; r < nold; r++) { /* this changes only where they lie */
        DCOMMI_TRY(dcommi_feedback_home("dcomm_feedback_reshard", (dcomm_feedback *)old[r]));
    }
    dcomm_feedback *fb;
    DCOMMI_TRY(dcomm_feedback_create(like->codec, like->count, &like->opts, &fb));
    dcomm_feedback_loss seen = {0};
    for (size_t r = 0; r < nold; r++) {
        seen.missing += old[r] == NULL;
    }
    if (like->basis.count > 0) { /* all ranks have the same */
        dcomm_status status = dcommi_feedback_basis_make(fb);
        if (status != DCOMM_OK) {
            dcomm_feedback_destroy(&fb);
            return status;
        }
        memcpy(fb->basis.now, like->basis.now, like->basis.count * sizeof(float));
    }
    const dcomm_feedback *same = rank < nold && old[rank] != NULL ? old[rank] : like;
    for (const dcommi_feedback_basis *b = same->bases; b != NULL; b = b->next) {
        dcommi_feedback_basis *basis;
        dcomm_status status =
            b->owner ? DCOMM_OK : dcommi_feedback_basis_of(fb, b->first, b->count, false, &basis);
        if (status == DCOMM_OK && !b->owner) {
            status = dcommi_feedback_store_read(&b->numbers, basis->numbers.now, b->numbers.now);
            basis->step = like->step > 0 ? like->step - 1 : 0;
        }
        if (status != DCOMM_OK) {
            dcomm_feedback_destroy(&fb);
            return status;
        }
    }
    dcommi_feedback_redistribute(old, nold, like, fb, rank, nranks, &seen);
    dcommi_feedback_level(fb);
    fb->step = like->step;
    fb->average = like->average;
    fb->nranks = nranks;
    *fb_p = fb;
    if (loss != NULL) {
        *loss = seen;
    }
    return DCOMM_OK;
}

#endif
