/* fuzz_spread.c - the steps of a sparse exchange with bytes that a peer may have changed: samples,
 * parts that the owner of a region adds up, results. They are refused, or the result is finite and
 * a state with feedback commits. */
#define _GNU_SOURCE
#pragma GCC diagnostic ignored "-Wunused-function"
#define DCOMM_IMPLEMENTATION
#include "dcomm/all.h"

enum { RANKS = 3, MOST = 1 << 12, ROOM = 16 * MOST + 64 };

static const char *const specs[] = {"topk:k=0.1", "topk:k=0.3,values=bf16", "threshold:k=0.2",
                                    "topk:k=0.05,values=f16,nonfinite=pass",
                                    "topk:k=7,nonfinite=zero"};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The rest of the input, four bytes to an edit: the message, the kind of change, the offset, the
 * byte. */
typedef struct edits {
    const uint8_t *at;
    size_t left;
} edits;

/* Return a copy of a message, exactly as long, with this message's edits. */
static unsigned char *changed(edits e, unsigned message, const unsigned char *bytes, size_t *len)
{
    unsigned char *copy = malloc(*len + 1);
    memcpy(copy, bytes, *len);
    for (; e.left >= 4; e.at += 4, e.left -= 4) {
        if (e.at[0] % 32 != message || *len == 0) {
            continue;
        }
        size_t where = (size_t)(e.at[2] | (e.at[1] & 0x0f) << 8) % *len;
        switch (e.at[1] >> 4) {
        case 0: /* cut off */
            *len = where;
            break;
        case 1:
            copy[where] ^= (unsigned char)(1u << e.at[3] % 8);
            break;
        default:
            copy[where] = e.at[3];
        }
    }
    unsigned char *exact = malloc(*len > 0 ? *len : 1); /* shows reads past the end */
    memcpy(exact, copy, *len);
    free(copy);
    return exact;
}

static bool refused(dcomm_status status)
{
    if (status < 0 && status != DCOMM_ERR_CORRUPT) {
        fprintf(stderr, "%s: %s\n", dcomm_status_name(status), dcomm_last_error());
        abort();
    }
    return status < 0;
}

/* Share the samples of all ranks; where changed samples are refused, share the original ones. */
static void share_samples(dcommi_coded *c, edits e)
{
    static unsigned char room[ROOM];
    const dcomm_codec_place place = {.round = DCOMMI_SPREAD_SAMPLES, .divisor = 1};
    size_t m = dcommi_exchange_samples(c->codec, c->spread->count, RANKS), plain[RANKS];
    size_t bytes, len[RANKS];
    unsigned char *copy[RANKS];
    const void *src[RANKS], *same[RANKS];
    if (refused(dcommi_spread_encode_step(c, &place, NULL, 0, room, 4 * (m + 1), &bytes))) {
        abort();
    }
    for (unsigned r = 0; r < RANKS; r++) {
        len[r] = plain[r] = bytes;
        src[r] = copy[r] = changed(e, r, room, &len[r]);
        same[r] = room;
    }
    bool again = refused(dcommi_spread_decode_step(c, &place, src, len, RANKS, NULL, 0));
    if (again && refused(dcommi_spread_decode_step(c, &place, same, plain, RANKS, NULL, 0))) {
        abort();
    }
    for (unsigned r = 0; r < RANKS; r++) {
        free(copy[r]);
    }
}

/* Compute the owner's result of a region from the parts of all ranks. */
static bool own_region(dcommi_coded *c, edits e, uint32_t region, unsigned char *out, size_t *bytes)
{
    static unsigned char room[ROOM];
    dcomm_codec_place place = {.round = DCOMMI_SPREAD_PART, .first = region, .divisor = 1};
    size_t part, len[RANKS];
    unsigned char *copy[RANKS];
    const void *src[RANKS];
    if (refused(dcommi_spread_encode_step(c, &place, NULL, 0, room, ROOM, &part))) {
        abort();
    }
    for (unsigned r = 0; r < RANKS; r++) {
        len[r] = part;
        src[r] = copy[r] = changed(e, RANKS + RANKS * region + r, room, &len[r]);
    }
    place.round = DCOMMI_SPREAD_OWNER;
    place.divisor = 1 + region % 2 * (RANKS - 1);
    bool good =
        !refused(dcommi_spread_owner_step(c, &place, src, len, RANKS, NULL, 0, out, ROOM, bytes));
    for (unsigned r = 0; r < RANKS; r++) {
        free(copy[r]);
    }
    return good;
}

static bool exchange(dcommi_coded *c, edits e, const float *x, size_t count, float *y)
{
    static unsigned char room[ROOM];
    dcomm_codec_place place = {.round = DCOMMI_SPREAD_SELECT, .divisor = 1};
    size_t bytes;
    if (refused(dcommi_spread_encode_step(c, &place, x, 4 * count, room, ROOM, &bytes))) {
        abort();
    }
    share_samples(c, e);
    place.round = DCOMMI_SPREAD_RESULT;
    for (uint32_t region = 0; region < RANKS; region++) {
        if (!own_region(c, e, region, room, &bytes)) {
            return false;
        }
        unsigned char *copy = changed(e, RANKS + RANKS * RANKS + region, room, &bytes);
        const void *src = copy;
        place.first = region;
        bool good = !refused(dcommi_spread_decode_step(c, &place, &src, &bytes, 1, y, 4 * count));
        free(copy);
        if (!good) {
            return false;
        }
    }
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static float x[MOST], y[MOST];
    if (size < 5) {
        return 0;
    }
    const size_t count = 1 + (data[1] + 256u * data[2]) % MOST;
    uint64_t state = data[3];
    for (size_t i = 0; i < count; i++) {
        state = dcommi_mix(state, i);
        x[i] = (float)(int32_t)(uint32_t)state * (data[4] & 2 ? 0x1p96f : 0x1p-31f);
    }
    dcomm_codec *codec = NULL;
    dcomm_feedback *fb = NULL;
    dcomm_ledger ledger = {0};
    dcomm_codec_report report = {.first_nonfinite = SIZE_MAX};
    if (dcomm_codec_create(specs[data[0] % (sizeof specs / sizeof *specs)], &codec) != DCOMM_OK) {
        abort();
    }
    if ((data[4] & 1) != 0 &&
        (dcomm_feedback_create(
             codec, count,
             &(dcomm_feedback_opts){.variant = (dcomm_feedback_variant)(data[4] >> 2 & 1)},
             &fb) != DCOMM_OK ||
         dcomm_feedback_set_ledger(fb, &ledger) != DCOMM_OK)) {
        abort();
    }
    dcommi_coded c = {
        .codec = codec, .feedback = fb, .begins = {.nranks = RANKS}, .report = &report};
    bool good = exchange(&c, (edits){data + 5, size - 5}, x, count, y);
    for (size_t i = 0; good && i < count; i++) {
        if (codec->nonfinite != DCOMMI_NONFINITE_PASS && dcommi_f32_nonfinite(y[i])) {
            abort();
        }
    }
    if (fb != NULL && good && dcomm_feedback_commit(fb) != DCOMM_OK) {
        abort();
    }
    for (size_t i = 0; fb != NULL && good && i < count; i++) {
        if (dcommi_f32_nonfinite(((const float *)fb->worker.now)[i])) {
            abort();
        }
    }
    dcomm_feedback_destroy(&fb);
    dcommi_free(c.workspace);
    dcommi_spread_free(c.spread);
    dcomm_codec_destroy(&codec);
    return 0;
}
