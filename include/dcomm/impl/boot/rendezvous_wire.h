/* rendezvous_wire.h - the rendezvous on the wire: frames, the handshake, keys. These are pure
 * functions on bytes. All numbers are big-endian.
 *
 * The server speaks first, the client authenticates itself first:
 *   server  CHALLENGE  version, nonce
 *   client  HELLO      version, local rank, rank, size, generation, timeout, instance, nonce, job,
 *                      proof = HMAC(key, "client" | CHALLENGE | HELLO up to here)
 *   server  WELCOME    proof = HMAC(key, "server" | CHALLENGE | HELLO)      or REJECT
 * Later frames carry a number that counts up from 0 in each direction, and end with
 *   tag = HMAC(direction's key, header | SHA-256(payload))
 *   server  READY      all ranks are here
 *   client  GATHER     timeout, blob; any number of rounds, each ending with
 *   server  RESULT     number of ranks, their lengths, their blobs
 *   client  BYE
 *   client  FAIL       why this rank cannot take part; the rendezvous fails for every rank
 *   server  FAIL       why the rendezvous failed, for every rank, at any time
 * A newcomer, which joins a communicator that grows, says DCOMMI_RDV_NEWCOMER for its rank. Then:
 *   server  INVITE     attempt, rank, size, and the port and nonce of a rendezvous of its own,
 *                      where the ranks create the communicator; any number of attempts, each
 *                      ending with
 *   client  REPORT     attempt: it is over here
 *   server  READY      the communicator of the last attempt is created
 * Without a secret the key is all zero; all else is the same. CHALLENGE, and HELLO around the job,
 * keep their layout in all versions, so that different versions recognize each other. */
#ifndef DCOMMI_RENDEZVOUS_WIRE_H
#define DCOMMI_RENDEZVOUS_WIRE_H

#include "../../comm.h"
#include "../base/sha256.h"

#define DCOMMI_RDV_MAGIC 0x64635256u /* "dcRV" */
#define DCOMMI_RDV_WIRE_VERSION 1u
#define DCOMMI_RDV_LIB_VERSION                                                  \
    ((uint32_t)DCOMM_VERSION_MAJOR << 16 | (uint32_t)DCOMM_VERSION_MINOR << 8 | \
     (uint32_t)DCOMM_VERSION_PATCH)
#define DCOMMI_RDV_HEADER 16
#define DCOMMI_RDV_NONCE 16
#define DCOMMI_RDV_TAG DCOMMI_SHA256_BYTES
#define DCOMMI_RDV_KEY DCOMMI_SHA256_BYTES
#define DCOMMI_RDV_CHALLENGE_LEN 24
#define DCOMMI_RDV_HELLO_LEN 80 /* without the job */
#define DCOMMI_RDV_JOB_MAX 480  /* bytes of the name of a job */
#define DCOMMI_RDV_WELCOME_LEN DCOMMI_RDV_TAG
#define DCOMMI_RDV_REASON_MAX 440
#define DCOMMI_RDV_SIZE_MAX 65536            /* ranks */
#define DCOMMI_RDV_QUIET_S 5                 /* seconds of waiting for a rank before a warning */
#define DCOMMI_RDV_NO_RANK UINT32_MAX        /* only asks who serves, and does not join */
#define DCOMMI_RDV_NEWCOMER (UINT32_MAX - 1) /* joins a communicator that grows */
#define DCOMMI_RDV_INVITE_LEN 36
#define DCOMMI_RDV_REPORT_LEN 4
#define DCOMMI_RDV_BLOB_MAX (1u << 20)     /* bytes of one rank in one round */
#define DCOMMI_RDV_RESULT_MAX (512u << 20) /* bytes of all ranks in one round */

typedef enum dcommi_rdv_type {
    DCOMMI_RDV_CHALLENGE = 1,
    DCOMMI_RDV_HELLO,
    DCOMMI_RDV_WELCOME,
    DCOMMI_RDV_REJECT,
    DCOMMI_RDV_READY,
    DCOMMI_RDV_GATHER,
    DCOMMI_RDV_RESULT,
    DCOMMI_RDV_BYE,
    DCOMMI_RDV_FAIL,
    DCOMMI_RDV_INVITE,
    DCOMMI_RDV_REPORT
} dcommi_rdv_type;

/* ---- numbers ---- */

static inline void dcommi_put16(uint8_t *p, uint16_t v)
{
    p[0] = (uint8_t)(v >> 8);
    p[1] = (uint8_t)v;
}

static inline void dcommi_put32(uint8_t *p, uint32_t v)
{
    dcommi_put16(p, (uint16_t)(v >> 16));
    dcommi_put16(p + 2, (uint16_t)v);
}

static inline void dcommi_put64(uint8_t *p, uint64_t v)
{
    dcommi_put32(p, (uint32_t)(v >> 32));
    dcommi_put32(p + 4, (uint32_t)v);
}

static inline uint16_t dcommi_get16(const uint8_t *p)
{
    return (uint16_t)(p[0] << 8 | p[1]);
}

static inline uint32_t dcommi_get32(const uint8_t *p)
{
    return (uint32_t)dcommi_get16(p) << 16 | dcommi_get16(p + 2);
}

static inline uint64_t dcommi_get64(const uint8_t *p)
{
    return (uint64_t)dcommi_get32(p) << 32 | dcommi_get32(p + 4);
}

/* ---- frames ---- */

typedef struct dcommi_rdv_header {
    uint16_t type;
    uint32_t sequence;
    uint32_t length; /* of the payload */
} dcommi_rdv_header;

static void dcommi_rdv_put_header(uint8_t *p, uint16_t type, uint32_t sequence, uint32_t length)
{
    dcommi_put32(p, DCOMMI_RDV_MAGIC);
    dcommi_put16(p + 4, type);
    dcommi_put16(p + 6, 0);
    dcommi_put32(p + 8, sequence);
    dcommi_put32(p + 12, length);
}

/* Return the longest payload of a frame of this type, in bytes; 0 also for unknown types. */
static uint32_t dcommi_rdv_length_max(uint16_t type)
{
    switch (type) {
    case DCOMMI_RDV_CHALLENGE:
        return DCOMMI_RDV_CHALLENGE_LEN;
    case DCOMMI_RDV_HELLO:
        return DCOMMI_RDV_HELLO_LEN + DCOMMI_RDV_JOB_MAX;
    case DCOMMI_RDV_WELCOME:
        return DCOMMI_RDV_WELCOME_LEN;
    case DCOMMI_RDV_REJECT:
    case DCOMMI_RDV_FAIL:
        return 4 + DCOMMI_RDV_REASON_MAX;
    case DCOMMI_RDV_GATHER:
        return 4 + DCOMMI_RDV_BLOB_MAX;
    case DCOMMI_RDV_RESULT:
        return DCOMMI_RDV_RESULT_MAX;
    case DCOMMI_RDV_INVITE:
        return DCOMMI_RDV_INVITE_LEN;
    case DCOMMI_RDV_REPORT:
        return DCOMMI_RDV_REPORT_LEN;
    default:
        return 0;
    }
}

/* Read a header of 16 bytes. Return false if they begin no frame of the rendezvous. */
static bool dcommi_rdv_get_header(const uint8_t *p, dcommi_rdv_header *h)
{
    h->type = dcommi_get16(p + 4);
    h->sequence = dcommi_get32(p + 8);
    h->length = dcommi_get32(p + 12);
    return dcommi_get32(p) == DCOMMI_RDV_MAGIC && h->type >= DCOMMI_RDV_CHALLENGE &&
           h->type <= DCOMMI_RDV_REPORT && dcommi_get16(p + 6) == 0 &&
           h->length <= dcommi_rdv_length_max(h->type);
}

/* Compute a frame's tag. `digest` is of the payload, so that one pass over the payload serves
 * every receiver of a RESULT. */
static void dcommi_rdv_tag(const uint8_t key[DCOMMI_RDV_KEY], const uint8_t *header,
                           const uint8_t digest[DCOMMI_SHA256_BYTES], uint8_t tag[DCOMMI_RDV_TAG])
{
    dcommi_hmac h;
    dcommi_hmac_begin(&h, key, DCOMMI_RDV_KEY);
    dcommi_hmac_add(&h, header, DCOMMI_RDV_HEADER);
    dcommi_hmac_add(&h, digest, DCOMMI_SHA256_BYTES);
    dcommi_hmac_end(&h, tag);
}

/* Write a whole small tagged frame. Return its length in bytes. */
static size_t dcommi_rdv_put_tagged(uint8_t *p, uint16_t type, uint32_t sequence,
                                    const void *payload, uint32_t length,
                                    const uint8_t key[DCOMMI_RDV_KEY])
{
    uint8_t digest[DCOMMI_SHA256_BYTES];
    dcommi_rdv_put_header(p, type, sequence, length);
    if (length > 0) {
        memcpy(p + DCOMMI_RDV_HEADER, payload, length);
    }
    dcommi_sha256_digest(p + DCOMMI_RDV_HEADER, length, digest);
    dcommi_rdv_tag(key, p, digest, p + DCOMMI_RDV_HEADER + length);
    return DCOMMI_RDV_HEADER + (size_t)length + DCOMMI_RDV_TAG;
}

/* Return true if a whole tagged frame (header, payload, tag) is genuine and number `sequence`. */
static bool dcommi_rdv_genuine(const uint8_t *frame, const dcommi_rdv_header *h, uint32_t sequence,
                               const uint8_t key[DCOMMI_RDV_KEY])
{
    uint8_t digest[DCOMMI_SHA256_BYTES], tag[DCOMMI_RDV_TAG];
    dcommi_sha256_digest(frame + DCOMMI_RDV_HEADER, h->length, digest);
    dcommi_rdv_tag(key, frame, digest, tag);
    return dcommi_same_secret(tag, frame + DCOMMI_RDV_HEADER + h->length, sizeof tag) &&
           h->sequence == sequence;
}

/* ---- the handshake ---- */

typedef struct dcommi_rdv_hello {
    uint16_t wire;
    uint32_t lib;
    uint16_t local_rank; /* 0 also if the launcher does not say */
    uint32_t rank, size;
    uint32_t generation; /* number of the launcher's communicator; 0 with an id */
    uint32_t timeout_ms; /* milliseconds that this rank waits for the others */
    uint64_t instance;   /* tells a rank that retries from a second process of the same rank */
    char job[DCOMMI_RDV_JOB_MAX + 1]; /* "" with an id */
} dcommi_rdv_hello;

/* Write a CHALLENGE frame. Return its length in bytes. */
static size_t dcommi_rdv_put_challenge(uint8_t *p, const uint8_t nonce[DCOMMI_RDV_NONCE])
{
    dcommi_rdv_put_header(p, DCOMMI_RDV_CHALLENGE, 0, DCOMMI_RDV_CHALLENGE_LEN);
    uint8_t *q = p + DCOMMI_RDV_HEADER;
    dcommi_put16(q, DCOMMI_RDV_WIRE_VERSION);
    dcommi_put16(q + 2, 0);
    dcommi_put32(q + 4, DCOMMI_RDV_LIB_VERSION);
    memcpy(q + 8, nonce, DCOMMI_RDV_NONCE);
    return DCOMMI_RDV_HEADER + DCOMMI_RDV_CHALLENGE_LEN;
}

static void dcommi_rdv_proof(const uint8_t key[DCOMMI_RDV_KEY], const char *role,
                             const uint8_t *challenge, const uint8_t *hello, size_t hello_len,
                             uint8_t proof[DCOMMI_RDV_TAG])
{
    dcommi_hmac h;
    dcommi_hmac_begin(&h, key, DCOMMI_RDV_KEY);
    dcommi_hmac_add(&h, role, strlen(role) + 1);
    dcommi_hmac_add(&h, challenge, DCOMMI_RDV_HEADER + DCOMMI_RDV_CHALLENGE_LEN);
    dcommi_hmac_add(&h, hello, hello_len);
    dcommi_hmac_end(&h, proof);
}

#define DCOMMI_RDV_HELLO_FRAME (DCOMMI_RDV_HEADER + DCOMMI_RDV_HELLO_LEN + DCOMMI_RDV_JOB_MAX)
#define DCOMMI_RDV_CHALLENGE_FRAME (DCOMMI_RDV_HEADER + DCOMMI_RDV_CHALLENGE_LEN)
#define DCOMMI_RDV_WELCOME_FRAME (DCOMMI_RDV_HEADER + DCOMMI_RDV_WELCOME_LEN)

/* Return the bytes of a whole HELLO frame, from its header. */
static size_t dcommi_rdv_hello_frame(const uint8_t *hello)
{
    return DCOMMI_RDV_HEADER + dcommi_get32(hello + 12);
}

/* Write a HELLO frame that answers a whole CHALLENGE frame. `p` has room for
 * DCOMMI_RDV_HELLO_FRAME bytes. Return its length in bytes. */
static size_t dcommi_rdv_put_hello(uint8_t *p, const dcommi_rdv_hello *hello,
                                   const uint8_t nonce[DCOMMI_RDV_NONCE], const uint8_t *challenge,
                                   const uint8_t key[DCOMMI_RDV_KEY])
{
    size_t job = strlen(hello->job), len = DCOMMI_RDV_HEADER + DCOMMI_RDV_HELLO_LEN + job;
    dcommi_rdv_put_header(p, DCOMMI_RDV_HELLO, 0, (uint32_t)(DCOMMI_RDV_HELLO_LEN + job));
    uint8_t *q = p + DCOMMI_RDV_HEADER;
    dcommi_put16(q, hello->wire);
    dcommi_put16(q + 2, hello->local_rank);
    dcommi_put32(q + 4, hello->lib);
    dcommi_put32(q + 8, hello->rank);
    dcommi_put32(q + 12, hello->size);
    dcommi_put32(q + 16, hello->generation);
    dcommi_put32(q + 20, hello->timeout_ms);
    dcommi_put64(q + 24, hello->instance);
    memcpy(q + 32, nonce, DCOMMI_RDV_NONCE);
    memcpy(q + 32 + DCOMMI_RDV_NONCE, hello->job, job);
    dcommi_rdv_proof(key, "client", challenge, p, len - DCOMMI_RDV_TAG, p + len - DCOMMI_RDV_TAG);
    return len;
}

/* Copy `n` bytes as text that is safe to print on a terminal, for they came over a network. */
static void dcommi_rdv_printable(const uint8_t *bytes, size_t n, char *text)
{
    for (size_t i = 0; i < n; i++) {
        text[i] = bytes[i] >= 0x20 && bytes[i] < 0x7f ? (char)bytes[i] : '?';
    }
    text[n] = '\0';
}

/* Read a whole HELLO frame. Return false if its proof is wrong. */
static bool dcommi_rdv_get_hello(const uint8_t *frame, const uint8_t *challenge,
                                 const uint8_t key[DCOMMI_RDV_KEY], dcommi_rdv_hello *hello)
{
    const uint8_t *q = frame + DCOMMI_RDV_HEADER;
    size_t len = dcommi_rdv_hello_frame(frame);
    hello->wire = dcommi_get16(q);
    hello->local_rank = dcommi_get16(q + 2);
    hello->lib = dcommi_get32(q + 4);
    hello->rank = dcommi_get32(q + 8);
    hello->size = dcommi_get32(q + 12);
    hello->generation = dcommi_get32(q + 16);
    hello->timeout_ms = dcommi_get32(q + 20);
    hello->instance = dcommi_get64(q + 24);
    uint8_t proof[DCOMMI_RDV_TAG];
    dcommi_rdv_printable(q + 32 + DCOMMI_RDV_NONCE, len - DCOMMI_RDV_HEADER - DCOMMI_RDV_HELLO_LEN,
                         hello->job);
    dcommi_rdv_proof(key, "client", challenge, frame, len - DCOMMI_RDV_TAG, proof);
    return dcommi_same_secret(proof, frame + len - DCOMMI_RDV_TAG, sizeof proof);
}

static size_t dcommi_rdv_put_welcome(uint8_t *p, const uint8_t *challenge, const uint8_t *hello,
                                     const uint8_t key[DCOMMI_RDV_KEY])
{
    dcommi_rdv_put_header(p, DCOMMI_RDV_WELCOME, 0, DCOMMI_RDV_WELCOME_LEN);
    dcommi_rdv_proof(key, "server", challenge, hello, dcommi_rdv_hello_frame(hello),
                     p + DCOMMI_RDV_HEADER);
    return DCOMMI_RDV_WELCOME_FRAME;
}

/* The keys of the frames after the handshake. */
typedef struct dcommi_rdv_keys {
    uint8_t client[DCOMMI_RDV_KEY]; /* of the client's frames */
    uint8_t server[DCOMMI_RDV_KEY];
} dcommi_rdv_keys;

static void dcommi_rdv_derive(const uint8_t key[DCOMMI_RDV_KEY], const uint8_t *challenge,
                              const uint8_t *hello, dcommi_rdv_keys *keys)
{
    size_t len = dcommi_rdv_hello_frame(hello);
    dcommi_rdv_proof(key, "client key", challenge, hello, len, keys->client);
    dcommi_rdv_proof(key, "server key", challenge, hello, len, keys->server);
}

/* Derive a key from a secret of any length. */
static void dcommi_rdv_key_of(const void *secret, size_t len, uint8_t key[DCOMMI_RDV_KEY])
{
    dcommi_hmac h;
    dcommi_hmac_begin(&h, "dcomm rendezvous 1", 18);
    dcommi_hmac_add(&h, secret, len);
    dcommi_hmac_end(&h, key);
}

/* ---- REJECT and FAIL ---- */

/* Write the payload of a reason. Return its length in bytes. */
static uint32_t dcommi_rdv_put_reason(uint8_t *p, dcomm_status status, const char *why)
{
    size_t len = strlen(why);
    len = len < DCOMMI_RDV_REASON_MAX ? len : DCOMMI_RDV_REASON_MAX;
    dcommi_put32(p, (uint32_t)(int32_t)status);
    memcpy(p + 4, why, len);
    return (uint32_t)(4 + len);
}

static dcomm_status dcommi_rdv_get_reason(const uint8_t *p, size_t len,
                                          char why[DCOMMI_RDV_REASON_MAX + 1])
{
    why[0] = '\0';
    if (len < 4 || len > 4 + DCOMMI_RDV_REASON_MAX) {
        return DCOMM_ERR_CORRUPT;
    }
    dcommi_rdv_printable(p + 4, len - 4, why);
    int32_t code = (int32_t)dcommi_get32(p);
    return code == DCOMM_IN_PROGRESS || (code < 0 && code >= DCOMMI_STATUS_LAST)
               ? (dcomm_status)code
               : DCOMM_ERR_CORRUPT;
}

/* ---- INVITE ---- */

/* An attempt to create the communicator that a newcomer joins. */
typedef struct dcommi_rdv_invitation {
    uint32_t attempt; /* from 1 */
    uint32_t rank, size;
    uint32_t timeout_ms; /* of the attempt */
    uint16_t port;       /* of its own rendezvous, at the addresses of the id */
    uint8_t nonce[DCOMMI_RDV_NONCE];
} dcommi_rdv_invitation;

static void dcommi_rdv_put_invitation(uint8_t p[DCOMMI_RDV_INVITE_LEN],
                                      const dcommi_rdv_invitation *i)
{
    dcommi_put32(p, i->attempt);
    dcommi_put32(p + 4, i->rank);
    dcommi_put32(p + 8, i->size);
    dcommi_put32(p + 12, i->timeout_ms);
    dcommi_put16(p + 16, i->port);
    dcommi_put16(p + 18, 0);
    memcpy(p + 20, i->nonce, sizeof i->nonce);
}

/* Read the payload of an INVITE. Return false if it makes no sense. */
static bool dcommi_rdv_get_invitation(const uint8_t *p, size_t len, dcommi_rdv_invitation *i)
{
    if (len != DCOMMI_RDV_INVITE_LEN) {
        return false;
    }
    i->attempt = dcommi_get32(p);
    i->rank = dcommi_get32(p + 4);
    i->size = dcommi_get32(p + 8);
    i->timeout_ms = dcommi_get32(p + 12);
    i->port = dcommi_get16(p + 16);
    memcpy(i->nonce, p + 20, sizeof i->nonce);
    return i->attempt > 0 && i->rank > 0 && i->rank < i->size && i->size <= DCOMMI_RDV_SIZE_MAX &&
           i->port > 0;
}

/* Derive the secret of an attempt's rendezvous from the key of the id. Only the nonce travels. */
static void dcommi_rdv_attempt_secret(const uint8_t key[DCOMMI_RDV_KEY],
                                      const uint8_t nonce[DCOMMI_RDV_NONCE],
                                      uint8_t secret[DCOMMI_RDV_TAG])
{
    dcommi_hmac h;
    dcommi_hmac_begin(&h, key, DCOMMI_RDV_KEY);
    dcommi_hmac_add(&h, "dcomm attempt 1", 15);
    dcommi_hmac_add(&h, nonce, DCOMMI_RDV_NONCE);
    dcommi_hmac_end(&h, secret);
}

/* ---- RESULT ---- */

/* Check a RESULT's payload for `size` ranks. Set lens[size], and *blobs to the offset of the
 * blobs. */
static bool dcommi_rdv_get_result(const uint8_t *p, size_t len, uint32_t size, size_t *lens,
                                  size_t *blobs)
{
    size_t head = 4 + 4 * (size_t)size;
    if (len < head || dcommi_get32(p) != size) {
        return false;
    }
    size_t total = 0;
    for (uint32_t r = 0; r < size; r++) {
        lens[r] = dcommi_get32(p + 4 + 4 * (size_t)r);
        if (lens[r] > DCOMMI_RDV_BLOB_MAX) {
            return false;
        }
        total += lens[r];
    }
    *blobs = head;
    return total == len - head;
}

#endif
