/* sha256.h - SHA-256 (FIPS 180-4), HMAC-SHA-256 (RFC 2104) and the kernel's random bytes. The
 * rendezvous authenticates its ranks with them. */
#ifndef DCOMMI_SHA256_H
#define DCOMMI_SHA256_H

#include "sys.h"
#include "util.h"

#define DCOMMI_SHA256_BYTES 32
#define DCOMMI_SHA256_BLOCK 64

typedef struct dcommi_sha256 {
    uint32_t state[8];
    uint64_t length; /* bytes so far */
    uint8_t block[DCOMMI_SHA256_BLOCK];
} dcommi_sha256;

static inline uint32_t dcommi_sha256_rotate(uint32_t x, int n)
{
    return (x >> n) | (x << (32 - n));
}

static void dcommi_sha256_compress(uint32_t state[8], const uint8_t *block)
{
    /* First 32 bits of the fractional parts of the cube roots of the first 64 primes. */
    static const uint32_t k[64] = {
        0x428a2f98u, 0x71374491u, 0xb5c0fbcfu, 0xe9b5dba5u, 0x3956c25bu, 0x59f111f1u, 0x923f82a4u,
        0xab1c5ed5u, 0xd807aa98u, 0x12835b01u, 0x243185beu, 0x550c7dc3u, 0x72be5d74u, 0x80deb1feu,
        0x9bdc06a7u, 0xc19bf174u, 0xe49b69c1u, 0xefbe4786u, 0x0fc19dc6u, 0x240ca1ccu, 0x2de92c6fu,
        0x4a7484aau, 0x5cb0a9dcu, 0x76f988dau, 0x983e5152u, 0xa831c66du, 0xb00327c8u, 0xbf597fc7u,
        0xc6e00bf3u, 0xd5a79147u, 0x06ca6351u, 0x14292967u, 0x27b70a85u, 0x2e1b2138u, 0x4d2c6dfcu,
        0x53380d13u, 0x650a7354u, 0x766a0abbu, 0x81c2c92eu, 0x92722c85u, 0xa2bfe8a1u, 0xa81a664bu,
        0xc24b8b70u, 0xc76c51a3u, 0xd192e819u, 0xd6990624u, 0xf40e3585u, 0x106aa070u, 0x19a4c116u,
        0x1e376c08u, 0x2748774cu, 0x34b0bcb5u, 0x391c0cb3u, 0x4ed8aa4au, 0x5b9cca4fu, 0x682e6ff3u,
        0x748f82eeu, 0x78a5636fu, 0x84c87814u, 0x8cc70208u, 0x90befffau, 0xa4506cebu, 0xbef9a3f7u,
        0xc67178f2u};
    uint32_t w[64];
    for (int i = 0; i < 16; i++) {
        w[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 |
               (uint32_t)block[4 * i + 2] << 8 | block[4 * i + 3];
    }
    for (int i = 16; i < 64; i++) {
        uint32_t s0 = dcommi_sha256_rotate(w[i - 15], 7) ^ dcommi_sha256_rotate(w[i - 15], 18) ^
                      (w[i - 15] >> 3);
        uint32_t s1 = dcommi_sha256_rotate(w[i - 2], 17) ^ dcommi_sha256_rotate(w[i - 2], 19) ^
                      (w[i - 2] >> 10);
        w[i] = w[i - 16] + s0 + w[i - 7] + s1;
    }
    uint32_t v[8];
    memcpy(v, state, sizeof v);
    for (int i = 0; i < 64; i++) {
        uint32_t s1 = dcommi_sha256_rotate(v[4], 6) ^ dcommi_sha256_rotate(v[4], 11) ^
                      dcommi_sha256_rotate(v[4], 25);
        uint32_t choice = (v[4] & v[5]) ^ (~v[4] & v[6]);
        uint32_t t1 = v[7] + s1 + choice + k[i] + w[i];
        uint32_t s0 = dcommi_sha256_rotate(v[0], 2) ^ dcommi_sha256_rotate(v[0], 13) ^
                      dcommi_sha256_rotate(v[0], 22);
        uint32_t majority = (v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]);
        memmove(v + 1, v, 7 * sizeof v[0]);
        v[4] += t1;
        v[0] = t1 + s0 + majority;
    }
    for (int i = 0; i < 8; i++) {
        state[i] += v[i];
    }
}

static void dcommi_sha256_begin(dcommi_sha256 *s)
{
    /* First 32 bits of the fractional parts of the square roots of the first 8 primes. */
    static const uint32_t initial[8] = {0x6a09e667u, 0xbb67ae85u, 0x3c6ef372u, 0xa54ff53au,
                                        0x510e527fu, 0x9b05688cu, 0x1f83d9abu, 0x5be0cd19u};
    memcpy(s->state, initial, sizeof initial);
    s->length = 0;
}

static void dcommi_sha256_add(dcommi_sha256 *s, const void *data, size_t len)
{
    const uint8_t *p = data;
    size_t used = (size_t)(s->length % DCOMMI_SHA256_BLOCK);
    s->length += len;
    while (len > 0) {
        if (used == 0 && len >= DCOMMI_SHA256_BLOCK) {
            dcommi_sha256_compress(s->state, p);
            p += DCOMMI_SHA256_BLOCK;
            len -= DCOMMI_SHA256_BLOCK;
            continue;
        }
        size_t part = DCOMMI_SHA256_BLOCK - used;
        part = part < len ? part : len;
        memcpy(s->block + used, p, part);
        used += part;
        p += part;
        len -= part;
        if (used == DCOMMI_SHA256_BLOCK) {
            dcommi_sha256_compress(s->state, s->block);
            used = 0;
        }
    }
}

static void dcommi_sha256_end(dcommi_sha256 *s, uint8_t digest[DCOMMI_SHA256_BYTES])
{
    uint64_t bits = s->length * 8;
    size_t used = (size_t)(s->length % DCOMMI_SHA256_BLOCK);
    s->block[used++] = 0x80;
    if (used > DCOMMI_SHA256_BLOCK - 8) {
        memset(s->block + used, 0, DCOMMI_SHA256_BLOCK - used);
        dcommi_sha256_compress(s->state, s->block);
        used = 0;
    }
    memset(s->block + used, 0, DCOMMI_SHA256_BLOCK - 8 - used);
    for (int i = 0; i < 8; i++) {
        s->block[DCOMMI_SHA256_BLOCK - 8 + i] = (uint8_t)(bits >> (56 - 8 * i));
    }
    dcommi_sha256_compress(s->state, s->block);
    for (int i = 0; i < DCOMMI_SHA256_BYTES; i++) {
        digest[i] = (uint8_t)(s->state[i / 4] >> (24 - 8 * (i % 4)));
    }
}

static void dcommi_sha256_digest(const void *data, size_t len, uint8_t digest[DCOMMI_SHA256_BYTES])
{
    dcommi_sha256 s;
    dcommi_sha256_begin(&s);
    dcommi_sha256_add(&s, data, len);
    dcommi_sha256_end(&s, digest);
}

typedef struct dcommi_hmac {
    dcommi_sha256 inner;
    uint8_t outer_pad[DCOMMI_SHA256_BLOCK];
} dcommi_hmac;

static void dcommi_hmac_begin(dcommi_hmac *h, const void *key, size_t key_len)
{
    uint8_t pad[DCOMMI_SHA256_BLOCK] = {0};
    if (key_len > sizeof pad) {
        dcommi_sha256_digest(key, key_len, pad);
    } else {
        memcpy(pad, key, key_len);
    }
    for (size_t i = 0; i < sizeof pad; i++) {
        h->outer_pad[i] = pad[i] ^ 0x5c;
        pad[i] ^= 0x36;
    }
    dcommi_sha256_begin(&h->inner);
    dcommi_sha256_add(&h->inner, pad, sizeof pad);
}

static void dcommi_hmac_add(dcommi_hmac *h, const void *data, size_t len)
{
    dcommi_sha256_add(&h->inner, data, len);
}

static void dcommi_hmac_end(dcommi_hmac *h, uint8_t tag[DCOMMI_SHA256_BYTES])
{
    uint8_t inner[DCOMMI_SHA256_BYTES];
    dcommi_sha256_end(&h->inner, inner);
    dcommi_sha256 outer;
    dcommi_sha256_begin(&outer);
    dcommi_sha256_add(&outer, h->outer_pad, sizeof h->outer_pad);
    dcommi_sha256_add(&outer, inner, sizeof inner);
    dcommi_sha256_end(&outer, tag);
}

/* Return true if two secrets are equal, in a time that does not tell where they differ. */
static bool dcommi_same_secret(const uint8_t *a, const uint8_t *b, size_t len)
{
    volatile uint8_t differ = 0;
    for (size_t i = 0; i < len; i++) {
        differ = (uint8_t)(differ | (a[i] ^ b[i]));
    }
    return differ == 0;
}

/* Fill p[len] with random bytes. An old kernel and some sandboxes have no getrandom. */
static dcomm_status dcommi_random_bytes(void *p, size_t len)
{
    size_t have = 0;
    while (have < len) {
        ssize_t n = dcommi_sys_getrandom((uint8_t *)p + have, len - have, 0);
        if (n < 0 && errno != EINTR) {
            break;
        }
        have += n > 0 ? (size_t)n : 0;
    }
    if (have < len && dcommi_sys_load("/dev/urandom", p, len) != (ssize_t)len) {
        return dcommi_fail(DCOMM_ERR_SYSTEM, "there are no random bytes: %s", strerror(errno));
    }
    return DCOMM_OK;
}

#endif
