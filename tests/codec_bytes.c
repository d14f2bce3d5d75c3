/* codec_bytes.c - encodings of many numbers, with and without feedback, and of sums of four:
 * whether every instruction set writes the same bytes, and one hash of them all.
 * tests/same_bytes.sh compares the hash across compilers and flags.
 *
 * usage: codec_bytes [COUNT]    elements; 10^8 is the long form */
#define _GNU_SOURCE
#pragma GCC diagnostic ignored "-Wunused-function"
#define DCOMM_NO_COMM
#define DCOMM_IMPLEMENTATION
#include "../include/dcomm/all.h"

enum { PIECE = 1 << 20, WIRES = 4, MOST = 5 * PIECE };

static const char *const specs[] = {
    "f16",
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
    "topk+qsgd:k=0.01",
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

/* Sums of eight uniform numbers, at scales that differ from run to run, with zeros and denormals
 * among them. Exact in f32 whatever the flags. */
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

/* Two encodings, one of them with feedback, of two ranks; then the sum of four, encoded again. */
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
    printf("%016" PRIx64 " %" PRIu64 " elements, %d instruction sets\n", all, count,
           (int)dcommi_isa_best() + 1);
    return 0;
}
