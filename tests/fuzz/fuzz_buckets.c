/* fuzz_buckets.c - any bytes, and saved states with changed bytes, as states of buckets: they are
 * refused and the buckets stay as they were, or they are good for a step. */
#define _GNU_SOURCE
#define DCOMM_IMPLEMENTATION
#pragma GCC diagnostic ignored "-Wunused-function"
#include "dcomm/all.h"

#include <sanitizer/lsan_interface.h>

enum { PARAMS = 4, COUNT = 48, ROOM = 1 << 14 };

typedef struct run {
    dcomm_buckets *b;
    dcomm_scaler *scaler;
    float grad[PARAMS][COUNT];
} run;

static dcomm_comm *comm;
static unsigned char base[ROOM];
static size_t base_bytes;

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(dcomm_status status)
{
    if (status != DCOMM_OK) {
        fprintf(stderr, "%s\n", dcomm_last_error());
        abort();
    }
}

static void make(run *r)
{
    static const char *const codecs[PARAMS] = {"topk:k=0.25", "none", "qsgd:bits=4", "topk:k=0.25"};
    const dcomm_feedback_opts feedback = {0};
    const dcomm_buckets_opts opts = {.bucket_bytes = COUNT * sizeof(float),
                                     .first_bytes = 64,
                                     .rebuild = true,
                                     .feedback = &feedback};
    dcomm_bucket_param params[PARAMS] = {0};
    *r = (run){0};
    for (size_t i = 0; i < PARAMS; i++) {
        params[i] = (dcomm_bucket_param){
            .grad = r->grad[i], .count = COUNT - i, .dtype = DCOMM_F32, .codec = codecs[i]};
    }
    must(dcomm_buckets_create(comm, params, PARAMS, &opts, &r->b));
    must(dcomm_scaler_create(r->b, NULL, &r->scaler));
}

static void end(run *r)
{
    must(dcomm_scaler_destroy(&r->scaler));
    must(dcomm_buckets_destroy(&r->b));
}

static void step(run *r)
{
    for (size_t i = 0; i < PARAMS; i++) {
        for (size_t e = 0; e < COUNT; e++) {
            r->grad[i][e] = (float)((e * 7 + i) % 11) - 5;
        }
        must(dcomm_param_mark_ready(r->b, (i + 2) % PARAMS, NULL));
    }
    must(dcomm_buckets_wait(r->b));
}

static size_t save(run *r, unsigned char *to)
{
    must(dcomm_buckets_save(r->b, to, ROOM));
    return dcomm_buckets_save_bytes(r->b);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    run r;
    (void)argc;
    (void)argv;
    __lsan_disable(); /* libraries that UCX and hwloc load and unload again leave memory behind */
    must(dcomm_comm_create(NULL, &comm));
    __lsan_enable();
    make(&r);
    for (int i = 0; i < 3; i++) {
        step(&r);
    }
    base_bytes = save(&r, base);
    end(&r);
    return 0;
}

/* Recompute the hashes of a state that may have been changed, and those of its error feedback. */
static void hashes(unsigned char *state)
{
    dcommi_bkt_head h;
    memcpy(&h, base, sizeof h); /* the parts keep the offsets of `base` */
    size_t at = dcommi_bkt_front_bytes(&h);
    uint64_t hash, bytes;
    for (size_t i = 0; i < h.nbuckets; i++) {
        memcpy(&bytes, base + at, sizeof bytes);
        at += sizeof bytes + dcommi_feedback_padded(bytes);
        if (bytes > 0) {
            hash = dcommi_feedback_hash(state + at - bytes, bytes - sizeof hash);
            memcpy(state + at - sizeof hash, &hash, sizeof hash);
        }
    }
    hash = dcommi_feedback_hash(state, at);
    memcpy(state + at, &hash, sizeof hash);
}

static void load(const void *const *states, const size_t *bytes, size_t nstates)
{
    unsigned char before[ROOM], after[ROOM], again[ROOM];
    run r, next;
    make(&r);
    const size_t len = save(&r, before);
    if (dcomm_buckets_load(r.b, states, bytes, nstates) != DCOMM_OK) {
        if (save(&r, after) != len || memcmp(after, before, len) != 0) {
            abort();
        }
    } else {
        const size_t saved = save(&r, after);
        const void *const own = after;
        make(&next);
        must(dcomm_buckets_load(next.b, &own, &saved, 1));
        if (save(&next, again) != saved || memcmp(after, again, saved) != 0) {
            abort();
        }
        end(&next);
    }
    step(&r);
    end(&r);
}

/* The first byte: 0 or 1: the rest is a state; else: edits of one or two saved states. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) {
        return 0;
    }
    const size_t nstates = 1 + data[0] % 2;
    const void *states[2];
    size_t bytes[2];
    unsigned char *copies = malloc(2 * base_bytes), *raw = malloc(size > 1 ? size - 1 : 1);
    if (copies == NULL || raw == NULL) {
        abort();
    }
    memcpy(raw, data + 1, size - 1); /* shows reads past the end */
    for (size_t s = 0; s < 2; s++) {
        unsigned char *copy = copies + s * base_bytes;
        dcommi_bkt_head h;
        memcpy(copy, base, base_bytes);
        memcpy(&h, copy, sizeof h);
        h.ranks = nstates;
        h.rank = s;
        memcpy(copy, &h, sizeof h);
        states[s] = data[0] < 2 ? raw : copy;
        bytes[s] = data[0] < 2 ? size - 1 : base_bytes;
    }
    for (size_t i = 1; i + 3 <= size; i += 3) {
        copies[(data[i] | (size_t)data[i + 1] << 8) % (2 * base_bytes)] = data[i + 2];
    }
    hashes(copies);
    hashes(copies + base_bytes);
    load(states, bytes, nstates);
    free(raw);
    free(copies);
    return 0;
}
