/* codec_bytes.c - check that every instruction set writes the same bytes, and print one hash of all
 * encodings of many numbers, with and without feedback, of sums of four, and of states of error
 * feedback after some steps.
 * tests/codec/same_bytes.sh compares the hash across compilers and flags.
 *
 * usage: codec_bytes [COUNT]    elements; 10^8 is the long form */
#define _GNU_SOURCE
#pragma GCC diagnostic ignored "-Wunused-function"
#define DCOMM_NO_COMM
#define DCOMM_IMPLEMENTATION
#include "../../include/dcomm/all.h"

enum { PIECE = 1 << 20, WIRES = 4, MOST = 5 * PIECE };

static const char *const specs[] = {
    "f16",
    "f16:rounding=stochastic",
    "bf16",
    "bf16:rounding=stochastic",
    "fp8",
    "fp8:type=e5m2,rounding=stochastic",
    "qsgd:bits=8",
    "qsgd:bits=4",
    "qsgd:bits=4,norm=two",
    "qsgd:bits=2,rounding=nearest",
    "qsgd:bits=1",
    "tern",
    "sign",
    "topk:k=0.01",
    "topk:k=0.01,values=f16",
    "topk:k=0.01,values=bf16",
    "threshold:k=0.01",
    "topk+qsgd:k=0.01",
    "randk:k=0.01",
    "powersgd:rank=2",
};
enum { SPECS = sizeof specs / sizeof *specs };

static float x[2][PIECE], next[PIECE], y[PIECE];
static unsigned char wire[WIRES + 1][MOST];

static uint64_t hash_bytes(uint64_t hash, const void *p, size_t len)
{
    const unsigned char *bytes = p;
    for (; len >= 8; len -= 8, bytes += 8) {
        uint64_t word;
        memcpy(&word, bytes, 8);
        hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
        hash ^= hash >> 29;
    }
    for (size_t i = 0; i < len; i++) {
        hash = (hash ^ bytes[i]) * 0x100000001b3u;
    }
    return hash;
}

/* Fill `to` with sums of eight uniform numbers, at scales that differ from run to run, with zeros
 * and denormals among them. The sums are exact in f32 whatever the compiler's flags. */
static void fill(float *to, uint64_t first, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++) {
        uint64_t a = dcommi_mix(first + i, seed), b = dcommi_mix(a, 1),
                 kind = dcommi_mix((first + i) / 100, seed + 7);
        int32_t sum = -4 * 65536;
        for (int k = 0; k < 4; k++) {
            sum += (int32_t)((a >> (16 * k)) & 0xffff) + (int32_t)((b >> (16 * k)) & 0xffff);
        }
        to[i] = ldexpf((float)sum, (int)(kind % 16) - 24);
        if (kind % 50 == 0) {
            to[i] = i % 2 == 0 ? 0 : ldexpf((float)sum, -160);
        }
    }
}

static void good(dcomm_status status, const char *spec)
{
    if (status != DCOMM_OK) {
        fprintf(stderr, "codec_bytes: %s: %s\n", spec, dcomm_last_error());
        exit(2);
    }
}

/* Return a hash of four encodings, two of them with feedback, and of their sum, decoded and
 * encoded again. */
static uint64_t hash_of(const dcomm_codec *codec, const char *spec, uint64_t first, size_t n)
{
    uint64_t hash = 0;
    size_t bytes[WIRES + 1];
    const void *wires[WIRES];
    for (uint32_t w = 0; w < WIRES; w++) {
        dcomm_codec_key key = {.seed = 11, .step = w / 2, .first = first, .rank = w};
        good(w % 2 == 0
                 ? dcomm_encode(codec, x[w / 2], n, &key, wire[w], MOST, &bytes[w], NULL, NULL)
                 : dcomm_encode_feedback(codec, x[w / 2], x[1 - w / 2], next, n, &key, wire[w],
                                         MOST, &bytes[w], NULL, NULL),
             spec);
        hash = hash_bytes(hash, wire[w], bytes[w]);
        hash = w % 2 == 0 ? hash : hash_bytes(hash, next, n * sizeof *next);
        wires[w] = wire[w];
    }
    dcomm_codec_key key = {.seed = 12, .first = first};
    good(dcomm_recode(codec, wires, bytes, WIRES, 1, NULL, NULL, n, &key, wire[WIRES], MOST,
                      &bytes[WIRES], NULL, NULL),
         spec);
    good(dcomm_decode_sum(codec, wires, bytes, WIRES, y, n), spec);
    hash = hash_bytes(hash, wire[WIRES], bytes[WIRES]);
    return hash_bytes(hash, y, n * sizeof *y);
}

/* ---- states of error feedback ---- */

static const struct {
    const char *spec;
    dcomm_feedback_opts opts;
} states[] = {
    {"qsgd:bits=4", {.scale = true, .bf16 = true}},
    {"qsgd:bits=1", {.scale = true}},
    {"randk:k=0.1", {.scale = true}},
    {"sign", {.in_place = true}},
    {"topk:k=0.1,values=bf16", {.variant = DCOMM_FEEDBACK_EF21}},
    {"topk:k=0.1,values=f16", {.variant = DCOMM_FEEDBACK_DGC, .clip = 3, .momentum = 0.7}},
};
enum { STATES = sizeof states / sizeof *states, LENGTH = 9000, HALF = 4096, STEPS = 4 };

/* Run a step of one rank over two ranges. It owns the first range in the first steps and the
 * second afterwards, so that residuals move. Some of the sent values are given back. */
static void step(dcomm_feedback *fb, int s)
{
    static const uint32_t index[] = {3, 50, 51, 900};
    static const float value[] = {0.1f, -0.3f, 0.7f, 1e-3f};
    const dcomm_codec *codec = dcomm_feedback_codec(fb);
    const size_t first[] = {0, HALF}, n[] = {HALF, LENGTH - HALF};
    const int own = s < STEPS / 2 ? 0 : 1;
    size_t bytes[4];
    fill(x[0], (uint64_t)s * LENGTH, LENGTH, 3);
    good(dcomm_feedback_begin(fb, &(dcomm_feedback_step){.x = x[0],
                                                         .own_first = first[own],
                                                         .own_count = n[own],
                                                         .nranks = 3,
                                                         .average = true}),
         codec->spec);
    for (int k = 0; k < 2; k++) {
        good(dcomm_feedback_encode(fb, first[k], n[k], wire[k], MOST, &bytes[k], NULL),
             codec->spec);
        good(dcomm_decode(codec, wire[k], bytes[k], y + first[k], n[k]), codec->spec);
    }
    const void *wires[] = {wire[own], wire[own], wire[own]};
    const size_t lengths[] = {bytes[own], bytes[own], bytes[own]};
    good(dcomm_feedback_recode(fb, wires, lengths, 3, 1.0f / 3, first[own], n[own], wire[2], MOST,
                               &bytes[2], NULL),
         codec->spec);
    good(dcomm_feedback_give_back(fb, 0, index, value, 4, index, 1), codec->spec);
    good(dcommi_feedback_recode_here(fb, wires, lengths, 3, 3, first[own], n[own], wire[3], MOST,
                                     &bytes[3], NULL),
         codec->spec);
    good(dcomm_feedback_finish(fb, 0, LENGTH, y), codec->spec);
    good(dcomm_feedback_commit(fb), codec->spec);
}

static uint64_t hash_of_state(int s)
{
    static unsigned char saved[MOST];
    dcomm_codec *codec;
    dcomm_feedback *fb;
    good(dcomm_codec_create(states[s].spec, &codec), states[s].spec);
    good(dcomm_feedback_create(codec, LENGTH, &states[s].opts, &fb), states[s].spec);
    for (int t = 0; t < STEPS; t++) {
        step(fb, t);
    }
    good(dcomm_feedback_rescale(fb, 0.3), states[s].spec);
    good(dcomm_feedback_save(fb, saved, MOST), states[s].spec);
    uint64_t hash = hash_bytes(0, saved, dcomm_feedback_save_bytes(fb));
    dcomm_feedback_destroy(&fb);
    dcomm_codec_destroy(&codec);
    return hash;
}

static bool hash_states(uint64_t *all)
{
    for (int s = 0; s < STATES; s++) {
        uint64_t hash = 0;
        for (int isa = 0; isa <= (int)dcommi_isa_best(); isa++) {
            dcommi_isa_force(isa);
            uint64_t now = hash_of_state(s);
            if (isa > 0 && now != hash) {
                printf("a state of %s: %s is not %s\n", states[s].spec, dcommi_isa_names[isa],
                       dcommi_isa_names[0]);
                return false;
            }
            hash = now;
        }
        *all = hash_bytes(*all, &hash, sizeof hash);
    }
    return true;
}

int main(int argc, char **argv)
{
    const uint64_t count = argc > 1 ? strtoull(argv[1], NULL, 10) : 200000;
    dcomm_codec *codec[SPECS];
    uint64_t all = 0;
    for (int s = 0; s < SPECS; s++) {
        good(dcomm_codec_create(specs[s], &codec[s]), specs[s]);
    }
    for (uint64_t first = 0; first < count; first += PIECE) {
        size_t n = count - first < PIECE ? (size_t)(count - first) : PIECE;
        fill(x[0], first, n, 1);
        fill(x[1], first, n, 2);
        for (int s = 0; s < SPECS; s++) {
            uint64_t hash = 0;
            for (int isa = 0; isa <= (int)dcommi_isa_best(); isa++) {
                dcommi_isa_force(isa);
                uint64_t now = hash_of(codec[s], specs[s], first, n);
                if (isa > 0 && now != hash) {
                    printf("%s: elements %" PRIu64 " and on: %s writes other bytes than %s\n",
                           specs[s], first, dcommi_isa_names[isa], dcommi_isa_names[0]);
                    return 1;
                }
                hash = now;
            }
            all = hash_bytes(all, &hash, sizeof hash);
        }
    }
    for (int s = 0; s < SPECS; s++) {
        dcomm_codec_destroy(&codec[s]);
    }
    if (!hash_states(&all)) {
        return 1;
    }
    printf("%016" PRIx64 " %" PRIu64 " elements, %d instruction sets\n", all, count,
           (int)dcommi_isa_best() + 1);
    return 0;
}
