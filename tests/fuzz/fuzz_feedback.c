/* fuzz_feedback.c - any bytes as a saved state of error feedback. */
#define _GNU_SOURCE
#define DCOMM_NO_COMM
#define DCOMM_IMPLEMENTATION
#pragma GCC diagnostic ignored "-Wunused-function"
#include "dcomm/all.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Use a loaded state: it must be good for a step, and be the same when saved and loaded again. */
static void use(const dcomm_feedback *loaded, size_t size)
{
    dcomm_feedback *fb = NULL;
    unsigned char *again = malloc(size), *third = malloc(size);
    size_t count = loaded->count, bytes, capacity = dcomm_codec_max_bytes(loaded->codec, count);
    if (again == NULL || third == NULL || dcomm_feedback_save_bytes(loaded) != size ||
        dcomm_feedback_save(loaded, again, size) != DCOMM_OK ||
        dcomm_feedback_load(loaded->codec, again, size, &fb) != DCOMM_OK ||
        dcomm_feedback_save(fb, third, size) != DCOMM_OK || memcmp(again, third, size) != 0) {
        abort();
    }
    float *x = calloc(count + 1, sizeof *x);
    unsigned char *wire = malloc(capacity + 1);
    dcomm_feedback_step step = {.x = x};
    if (x == NULL || wire == NULL || dcomm_feedback_begin(fb, &step) != DCOMM_OK ||
        dcomm_feedback_encode(fb, 0, count, wire, capacity, &bytes, NULL) != DCOMM_OK ||
        dcomm_feedback_finish(fb, 0, count, x) != DCOMM_OK ||
        dcomm_feedback_commit(fb) != DCOMM_OK) {
        abort();
    }
    free(x);
    free(wire);
    free(again);
    free(third);
    dcomm_feedback_destroy(&fb);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const specs[] = {"topk:k=0.25", "powersgd:rank=2"};
    static dcomm_codec *codecs[2];
    dcomm_feedback *fb = NULL;
    dcomm_codec **made = &codecs[size / 8 % 2], *codec;
    if (*made == NULL && dcomm_codec_create(specs[size / 8 % 2], made) != DCOMM_OK) {
        abort();
    }
    codec = *made;
    size_t head = sizeof(dcommi_feedback_head), spec = strlen(codec->spec);
    uint8_t *file = malloc(size + 1); /* exact size: shows reads past the end */
    if (file == NULL) {
        return 0;
    }
    memcpy(file, data, size);
    if (dcomm_feedback_load(codec, file, size, &fb) == DCOMM_OK) {
        use(fb, size);
    }
    dcomm_feedback_destroy(&fb);
    if (size >= head + dcommi_feedback_padded(spec) + 8) { /* pass the checks */
        dcommi_feedback_head h;
        memcpy(&h, file, head);
        h.magic = h.magic % 2 ? DCOMMI_FEEDBACK_RANGES : DCOMMI_FEEDBACK_MAGIC;
        h.variant %= 3;
        h.bf16 %= 2;
        h.in_place %= 2;
        h.scale %= 2;
        h.average %= 2;
        h.spec_bytes = (uint32_t)spec;
        h.count &= 0xffff;
        memcpy(file, &h, head);
        memset(file + head, 0, dcommi_feedback_padded(spec));
        memcpy(file + head, codec->spec, spec);
        uint64_t hash = dcommi_feedback_hash(file, size - 8);
        memcpy(file + size - 8, &hash, 8);
        if (dcomm_feedback_load(codec, file, size, &fb) == DCOMM_OK) {
            use(fb, size);
        }
        dcomm_feedback_destroy(&fb);
    }
    free(file);
    return 0;
}
