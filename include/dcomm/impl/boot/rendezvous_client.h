/* rendezvous_client.h - a rank's side of the rendezvous: connect, authenticate, gather, leave. */
#ifndef DCOMMI_RENDEZVOUS_CLIENT_H
#define DCOMMI_RENDEZVOUS_CLIENT_H

#include "rendezvous_wire.h"
#include "socket.h"

#define DCOMMI_RDV_ATTEMPT_S 5.0 /* seconds for one handshake */
#define DCOMMI_RDV_REFUSED_S 0.7 /* fail if nobody has served an id for so many seconds */
/* Fail if another job or another program has held the port for so many seconds. Rank 0 gives up
 * after DCOMMI_BOOT_PORT_S. */
#define DCOMMI_RDV_FOREIGN_S 2.5

/* The possible addresses of the server. */
typedef struct dcommi_rdv_target {
    const char *host; /* a name or address, resolved at each attempt; NULL: use `addrs` */
    uint16_t port;
    dcommi_addr addrs[DCOMMI_SOCK_ADDRS];
    int naddrs;
    bool exists;     /* the server was there before us: do not wait for it to start */
    const char *job; /* NULL: an id needs none */
    uint16_t local_rank;
    const char *secret_hint; /* what the user should compare if the secrets differ */
} dcommi_rdv_target;

typedef struct dcommi_rdv_client {
    int fd;
    uint32_t rank, size;            /* rank: DCOMMI_RDV_NEWCOMER of one that joins */
    char me[40];                    /* "rank 3 of 4", for sentences */
    uint8_t secret[DCOMMI_RDV_KEY]; /* the job's key */
    dcommi_rdv_keys keys;
    uint32_t in_seq, out_seq;
    double timeout_s;
    const _Atomic int *cancel;
    dcomm_status over; /* the error if the outcome is DCOMMI_RDV_OVER */
    bool told; /* the server has sent FAIL. It sends a result first, so no rank has got one */
    char server[DCOMMI_SOCK_TEXT + 64]; /* which process serves, and where, for sentences */
    dcomm_status failed; /* an error: this rank cannot take part, and joins to say why: */
    char why[DCOMMI_MESSAGE_MAX];
} dcommi_rdv_client;

/* The outcome of one attempt. */
typedef enum dcommi_rdv_outcome {
    DCOMMI_RDV_IN = 0,  /* joined */
    DCOMMI_RDV_AGAIN,   /* worth another try */
    DCOMMI_RDV_REFUSED, /* nobody listens */
    DCOMMI_RDV_FOREIGN, /* another job meets there */
    DCOMMI_RDV_ALIEN,   /* another program, which is no dcomm, answers there, or says nothing */
    DCOMMI_RDV_TAKEN,   /* answer to DCOMMI_RDV_NO_RANK: this job meets there */
    DCOMMI_RDV_STRANGE, /* the server has another secret */
    DCOMMI_RDV_OVER     /* an error that ends all attempts */
} dcommi_rdv_outcome;

static uint32_t dcommi_rdv_ms(double seconds)
{
    /* Tell the server a little less than we wait ourselves: it knows which ranks are missing, so
     * its error should come first. */
    double s = seconds > 10 ? seconds - 0.5 : seconds * 0.95;
    return s <= 0 ? 0 : s > 4e6 ? UINT32_MAX : (uint32_t)(s * 1000);
}

static dcomm_status dcommi_rdv_cancelled(void)
{
    return dcommi_fail(DCOMM_ERR_ABORTED, "the creation of the communicator was cancelled");
}

static dcomm_status dcommi_rdv_reason(const dcommi_rdv_client *c, const uint8_t *payload,
                                      size_t len)
{
    char why[DCOMMI_RDV_REASON_MAX + 1];
    dcomm_status status = dcommi_rdv_get_reason(payload, len, why);
    status = status < 0 ? status : DCOMM_ERR_CORRUPT;
    return dcommi_fail(status, "%s: %s", c->me, why);
}

/* Make one handshake on c->fd. */
static dcommi_rdv_outcome dcommi_rdv_handshake(dcommi_rdv_client *c,
                                               const uint8_t key[DCOMMI_RDV_KEY],
                                               const dcommi_rdv_hello *hello, double deadline,
                                               char *note, size_t note_max)
{
    uint8_t challenge[DCOMMI_RDV_CHALLENGE_FRAME], ours[DCOMMI_RDV_HELLO_FRAME];
    uint8_t answer[DCOMMI_RDV_HEADER + 4 + DCOMMI_RDV_REASON_MAX], nonce[DCOMMI_RDV_NONCE];
    dcommi_rdv_header h;
    bool stopped;
    dcomm_status status =
        dcommi_sock_read(c->fd, challenge, DCOMMI_RDV_HEADER, deadline, c->cancel);
    if (status == DCOMM_OK &&
        (!dcommi_rdv_get_header(challenge, &h) || h.type != DCOMMI_RDV_CHALLENGE ||
         h.length != DCOMMI_RDV_CHALLENGE_LEN)) {
        snprintf(note, note_max, "the program that answers is no dcomm rendezvous");
        return DCOMMI_RDV_ALIEN;
    }
    if (status == DCOMM_ERR_TIMEOUT) { /* dcomm would have spoken first */
        snprintf(note, note_max, "what listens there says nothing");
        return DCOMMI_RDV_ALIEN;
    }
    DCOMMI_THEN(status, dcommi_sock_read(c->fd, challenge + DCOMMI_RDV_HEADER,
                                         DCOMMI_RDV_CHALLENGE_LEN, deadline, c->cancel));
    if (status == DCOMM_OK) {
        c->over = dcommi_random_bytes(nonce, sizeof nonce);
        if (c->over < 0) {
            return DCOMMI_RDV_OVER;
        }
        size_t len = dcommi_rdv_put_hello(ours, hello, nonce, challenge, key);
        status = dcommi_sock_write(c->fd, ours, len, deadline, c->cancel, &stopped);
    }
    DCOMMI_THEN(status, dcommi_sock_read(c->fd, answer, DCOMMI_RDV_HEADER, deadline, c->cancel));
    if (status == DCOMM_OK && (!dcommi_rdv_get_header(answer, &h) ||
                               (h.type != DCOMMI_RDV_WELCOME && h.type != DCOMMI_RDV_REJECT))) {
        snprintf(note, note_max, "the server broke off the handshake");
        return DCOMMI_RDV_AGAIN;
    }
    DCOMMI_THEN(status,
                dcommi_sock_read(c->fd, answer + DCOMMI_RDV_HEADER, h.length, deadline, c->cancel));
    if (status == DCOMM_ERR_ABORTED) {
        c->over = dcommi_rdv_cancelled();
        return DCOMMI_RDV_OVER;
    }
    if (status < 0) {
        snprintf(note, note_max, "%s",
                 status == DCOMM_ERR_TIMEOUT ? "the server accepts connections but says nothing"
                                             : "the server closed the connection");
        return DCOMMI_RDV_AGAIN;
    }
    if (h.type == DCOMMI_RDV_REJECT) {
        char why[DCOMMI_RDV_REASON_MAX + 1];
        dcomm_status said = dcommi_rdv_get_reason(answer + DCOMMI_RDV_HEADER, h.length, why);
        snprintf(note, note_max, "%s", why);
        return said == DCOMM_ERR_AUTH         ? DCOMMI_RDV_STRANGE
               : said == DCOMM_ERR_MISMATCH   ? DCOMMI_RDV_FOREIGN
               : said == DCOMM_ERR_RENDEZVOUS ? DCOMMI_RDV_TAKEN
                                              : DCOMMI_RDV_AGAIN;
    }
    uint8_t expected[DCOMMI_RDV_WELCOME_FRAME];
    dcommi_rdv_put_welcome(expected, challenge, ours, key);
    if (h.length != DCOMMI_RDV_WELCOME_LEN ||
        !dcommi_same_secret(expected + DCOMMI_RDV_HEADER, answer + DCOMMI_RDV_HEADER,
                            DCOMMI_RDV_WELCOME_LEN)) {
        snprintf(note, note_max, "the server does not know the secret");
        return DCOMMI_RDV_STRANGE;
    }
    dcommi_rdv_derive(key, challenge, ours, &c->keys);
    c->in_seq = c->out_seq = 0;
    return DCOMMI_RDV_IN;
}

/* Try each of the target's addresses once. `note` gets the answer of the last one. */
static dcommi_rdv_outcome dcommi_rdv_attempt(dcommi_rdv_client *c, const dcommi_rdv_target *target,
                                             const uint8_t key[DCOMMI_RDV_KEY],
                                             dcommi_rdv_hello *hello, double deadline,
                                             double connect_s, char *note, size_t note_max)
{
    dcommi_addr found[DCOMMI_SOCK_ADDRS];
    const dcommi_addr *list = target->addrs;
    int n = target->naddrs, refused = 0, strange = 0, foreign = 0, alien = 0, again = 0;
    if (target->host != NULL) {
        const char *why = "";
        n = dcommi_addr_resolve(target->host, target->port, found, DCOMMI_SOCK_ADDRS, &why);
        list = found;
        if (n == 0) {
            snprintf(note, note_max, "%.200s: %s", target->host, why);
            return DCOMMI_RDV_AGAIN;
        }
    }
    for (int i = 0; i < n; i++) {
        char where[DCOMMI_SOCK_TEXT], what[DCOMMI_RDV_REASON_MAX + 1] = "";
        int error = 0;
        double now = dcommi_now();
        dcommi_addr_text(&list[i], where);
        dcomm_status status =
            dcommi_sock_connect(&list[i], now + connect_s < deadline ? now + connect_s : deadline,
                                c->cancel, &c->fd, &error);
        if (status == DCOMM_ERR_ABORTED) {
            c->over = dcommi_rdv_cancelled();
            return DCOMMI_RDV_OVER;
        }
        if (status < 0) {
            snprintf(note, note_max, "%s: %s", where, strerror(error));
            refused += error == ECONNREFUSED;
            again += error != ECONNREFUSED && error != ENETUNREACH && error != EADDRNOTAVAIL &&
                     error != EAFNOSUPPORT;
            continue;
        }
        now = dcommi_now();
        hello->timeout_ms = dcommi_rdv_ms(deadline - now);
        double until = now + DCOMMI_RDV_ATTEMPT_S;
        dcommi_rdv_outcome outcome = dcommi_rdv_handshake(
            c, key, hello, until < deadline ? until : deadline, what, sizeof what);
        if (outcome == DCOMMI_RDV_IN) {
            return outcome;
        }
        dcommi_sys_close(c->fd);
        c->fd = -1;
        if (outcome == DCOMMI_RDV_OVER || outcome == DCOMMI_RDV_TAKEN) {
            return outcome;
        }
        snprintf(note, note_max, "%s: %s", where, what);
        foreign += outcome == DCOMMI_RDV_FOREIGN;
        alien += outcome == DCOMMI_RDV_ALIEN;
        strange += outcome == DCOMMI_RDV_STRANGE;
        again += outcome == DCOMMI_RDV_AGAIN;
    }
    return again > 0     ? DCOMMI_RDV_AGAIN
           : strange > 0 ? DCOMMI_RDV_STRANGE
           : foreign > 0 ? DCOMMI_RDV_FOREIGN
           : alien > 0   ? DCOMMI_RDV_ALIEN
           : refused > 0 ? DCOMMI_RDV_REFUSED
                         : DCOMMI_RDV_AGAIN;
}

/* A buffer for received frames. */
typedef struct dcommi_rdv_frame {
    uint8_t *bytes; /* dcommi_free them */
    size_t capacity;
} dcommi_rdv_frame;

/* Return true if a frame of this type may come while one of type `wanted` is awaited. */
static bool dcommi_rdv_may_come(uint16_t wanted, uint16_t type)
{
    return type == wanted || type == DCOMMI_RDV_FAIL ||
           (wanted == DCOMMI_RDV_INVITE && type == DCOMMI_RDV_READY);
}

/* Read a whole genuine frame of type `wanted`, or READY in place of INVITE. For a FAIL return its
 * status. */
static dcomm_status dcommi_rdv_next(dcommi_rdv_client *c, uint16_t wanted, double deadline,
                                    dcommi_rdv_header *h, dcommi_rdv_frame *frame)
{
    enum { STEP = 1 << 20 };
    size_t have = 0, need = DCOMMI_RDV_HEADER;
    dcomm_status status = DCOMM_OK;
    bool known = false;
    while (status == DCOMM_OK && have < need) {
        /* Allocate for bytes that have arrived, not for those that the header promises. */
        size_t step = need - have < STEP ? need - have : STEP;
        status = dcommi_grow((void **)&frame->bytes, &frame->capacity, have + step, 1);
        if (status == DCOMM_OK) {
            status = dcommi_sock_read(c->fd, frame->bytes + have, step, deadline, c->cancel);
            have += step;
        }
        if (status == DCOMM_OK && !known) {
            known = true;
            if (!dcommi_rdv_get_header(frame->bytes, h) || !dcommi_rdv_may_come(wanted, h->type)) {
                status = dcommi_fail(DCOMM_ERR_CORRUPT,
                                     "%s received bytes that are no rendezvous frame", c->me);
            }
            need += (size_t)h->length + DCOMMI_RDV_TAG;
        }
    }
    if (status == DCOMM_OK && !dcommi_rdv_genuine(frame->bytes, h, c->in_seq++, c->keys.server)) {
        status = dcommi_fail(DCOMM_ERR_AUTH, "%s received a forged frame", c->me);
    } else if (status == DCOMM_OK && h->type == DCOMMI_RDV_FAIL) {
        c->told = true;
        status = dcommi_rdv_reason(c, frame->bytes + DCOMMI_RDV_HEADER, h->length);
    } else if (status == DCOMM_ERR_PEER) {
        dcommi_fail(status,
                    "%s, was lost while the ranks found each other: its connection with %s has "
                    "ended",
                    c->server, c->me);
    } else if (status == DCOMM_ERR_TIMEOUT) {
        dcommi_fail(status, "%s waited %.3g s in vain for %s", c->me, c->timeout_s, c->server);
    } else if (status == DCOMM_ERR_ABORTED) {
        dcommi_rdv_cancelled();
    }
    return status;
}

/* Close without BYE: the others learn that this rank was lost. */
static void dcommi_rdv_drop(dcommi_rdv_client *c)
{
    dcommi_sys_close(c->fd);
    c->fd = -1;
}

/* Tell the others that this rank cannot take part. Return after the server has answered, with the
 * status that the rendezvous failed with. */
static dcomm_status dcommi_rdv_announce(dcommi_rdv_client *c, double deadline)
{
    uint8_t reason[4 + DCOMMI_RDV_REASON_MAX];
    uint8_t frame[DCOMMI_RDV_HEADER + sizeof reason + DCOMMI_RDV_TAG];
    uint32_t len = dcommi_rdv_put_reason(reason, c->failed, c->why);
    size_t bytes =
        dcommi_rdv_put_tagged(frame, DCOMMI_RDV_FAIL, c->out_seq++, reason, len, c->keys.client);
    bool stopped;
    dcomm_status status = dcommi_sock_write(c->fd, frame, bytes, deadline, c->cancel, &stopped);
    dcommi_rdv_frame got = {0};
    while (status >= 0) {
        dcommi_rdv_header h;
        status = dcommi_rdv_next(c, DCOMMI_RDV_READY, deadline, &h, &got);
    }
    dcommi_free(got.bytes);
    return status;
}

static dcommi_rdv_hello dcommi_rdv_hello_of(const dcommi_rdv_client *c,
                                            const dcommi_rdv_target *target, uint32_t generation)
{
    dcommi_rdv_hello hello = {.wire = DCOMMI_RDV_WIRE_VERSION,
                              .lib = DCOMMI_RDV_LIB_VERSION,
                              .rank = c->rank,
                              .local_rank = target->local_rank,
                              .size = c->size,
                              .generation = generation};
    snprintf(hello.job, sizeof hello.job, "%s", target->job != NULL ? target->job : "");
    return hello;
}

/* Ask the server at the target which job it serves. `note` gets its answer. */
static dcommi_rdv_outcome dcommi_rdv_ask(const dcommi_rdv_target *target,
                                         const uint8_t key[DCOMMI_RDV_KEY],
                                         const _Atomic int *cancel, char *note, size_t note_max)
{
    dcommi_rdv_client c = {.fd = -1, .cancel = cancel, .rank = DCOMMI_RDV_NO_RANK};
    dcommi_rdv_hello hello = dcommi_rdv_hello_of(&c, target, UINT32_MAX);
    dcommi_rdv_outcome outcome =
        dcommi_rdv_attempt(&c, target, key, &hello, dcommi_now() + 1, 1, note, note_max);
    dcommi_rdv_drop(&c);
    return outcome;
}

/* Note, for sentences, which process serves at the other end of c->fd. */
static void dcommi_rdv_note_server(dcommi_rdv_client *c, const dcommi_rdv_target *target)
{
    dcommi_addr there;
    socklen_t len = sizeof there;
    char where[DCOMMI_SOCK_TEXT] = "?";
    if (getpeername(c->fd, &there.any, &len) == 0) {
        dcommi_addr_text(&there, where);
    }
    snprintf(c->server, sizeof c->server, "%s, which serves the rendezvous at %s",
             target->job != NULL ? "rank 0" : "the process that made the id", where);
}

/* Connect and authenticate, as soon as the server is there. */
static dcomm_status dcommi_rdv_connect(dcommi_rdv_client *c, const dcommi_rdv_target *target,
                                       const uint8_t key[DCOMMI_RDV_KEY], uint32_t generation)
{
    double start = dcommi_now(), deadline = start + c->timeout_s;
    double refused_since = 0, foreign_since = 0, alien_since = 0, pause = 0.01, connect_s = 1;
    char note[DCOMMI_SOCK_TEXT + DCOMMI_RDV_REASON_MAX + 8] = "", last[sizeof note] = "";
    bool told = c->rank == 0;
    dcommi_rdv_hello hello = dcommi_rdv_hello_of(c, target, generation);
    c->fd = -1;
    c->told = false;
    snprintf(c->me, sizeof c->me, "rank %" PRIu32 " of %" PRIu32, c->rank, c->size);
    if (c->rank == DCOMMI_RDV_NEWCOMER) {
        snprintf(c->me, sizeof c->me, "this newcomer");
    }
    memcpy(c->secret, key, sizeof c->secret);
    DCOMMI_TRY(dcommi_random_bytes(&hello.instance, sizeof hello.instance));
    for (;;) {
        dcommi_rdv_outcome outcome =
            dcommi_rdv_attempt(c, target, key, &hello, deadline, connect_s, last, sizeof last);
        double now = dcommi_now();
        if (now < deadline || note[0] == '\0') { /* else our own deadline cut the attempt short */
            memcpy(note, last, sizeof note);
        }
        if (outcome == DCOMMI_RDV_IN) {
            break;
        }
        if (outcome == DCOMMI_RDV_OVER) {
            return c->over;
        }
        if (outcome == DCOMMI_RDV_STRANGE) {
            return dcommi_fail(DCOMM_ERR_AUTH, "%s is not let in: %.300s; compare %s on all ranks",
                               c->me, note, target->secret_hint);
        }
        foreign_since = outcome != DCOMMI_RDV_FOREIGN ? 0
                        : foreign_since != 0          ? foreign_since
                                                      : now;
        if (foreign_since != 0 && now - foreign_since >= DCOMMI_RDV_FOREIGN_S) {
            return dcommi_fail(DCOMM_ERR_RENDEZVOUS, "%s: %s", c->me, note);
        }
        alien_since = outcome != DCOMMI_RDV_ALIEN ? 0 : alien_since != 0 ? alien_since : now;
        if (target->job != NULL && alien_since != 0 && now - alien_since >= DCOMMI_RDV_FOREIGN_S) {
            return dcommi_fail(DCOMM_ERR_RENDEZVOUS,
                               "%s: rank 0 does not serve, because another program has its port "
                               "(%.300s); choose another MASTER_PORT or DCOMM_PORT",
                               c->me, note);
        }
        if (!told && c->failed == DCOMM_OK && now - start >= DCOMMI_RDV_QUIET_S) {
            told = true;
            dcommi_log(DCOMMI_LOG_WARN, "%s has waited %d s for rank 0; last attempt: %.300s",
                       c->me, DCOMMI_RDV_QUIET_S, note);
        }
        if (outcome != DCOMMI_RDV_REFUSED) {
            refused_since = 0;
        } else if (refused_since == 0) {
            refused_since = now;
        }
        if (target->exists && refused_since != 0 && now - refused_since >= DCOMMI_RDV_REFUSED_S) {
            return dcommi_fail(
                DCOMM_ERR_RENDEZVOUS,
                "%s: nobody serves this id any more (%s); its maker has ended, or all its ranks "
                "have met: an id serves one communicator",
                c->me, note);
        }
        if (now >= deadline) {
            return dcommi_fail(DCOMM_ERR_TIMEOUT,
                               "%s could not reach %s within %.3g s: it has not come, or has died; "
                               "last attempt: %s",
                               c->me,
                               target->job != NULL ? "rank 0" : "the process that made the id",
                               c->timeout_s, note);
        }
        if (dcommi_sock_pause(pause < deadline - now ? pause : deadline - now, c->cancel) < 0) {
            return dcommi_rdv_cancelled();
        }
        pause = pause * 1.5 < 0.5 ? pause * 1.5 : 0.5;
        connect_s = connect_s * 2 < 8 ? connect_s * 2 : 8;
    }
    dcommi_rdv_note_server(c, target);
    return DCOMM_OK;
}

/* Connect and wait until all ranks are there. */
static dcomm_status dcommi_rdv_join(dcommi_rdv_client *c, const dcommi_rdv_target *target,
                                    const uint8_t key[DCOMMI_RDV_KEY], uint32_t generation)
{
    const double deadline = dcommi_now() + c->timeout_s;
    DCOMMI_TRY(dcommi_rdv_connect(c, target, key, generation));
    dcommi_rdv_header h;
    dcommi_rdv_frame frame = {0};
    dcomm_status status = c->failed < 0
                              ? dcommi_rdv_announce(c, deadline)
                              : dcommi_rdv_next(c, DCOMMI_RDV_READY, deadline, &h, &frame);
    dcommi_free(frame.bytes);
    if (status < 0) {
        dcommi_rdv_drop(c);
    }
    return status;
}

/* Gather as dcommi_boot_allgather does. An error closes the connection, unless memory ran out
 * before anything was sent: dcommi_boot_tell can then report it. */
static dcomm_status dcommi_rdv_gather(dcommi_rdv_client *c, const void *mine, size_t len,
                                      void **all_p, size_t **lens_p)
{
    double deadline = dcommi_now() + c->timeout_s;
    const size_t around = DCOMMI_RDV_HEADER + 4 + DCOMMI_RDV_TAG; /* bytes around the blobs */
    size_t blobs = 0;
    dcommi_rdv_frame frame = {0};
    dcommi_rdv_header h = {0};
    bool stopped;
    DCOMMI_TRY(dcommi_grow((void **)&frame.bytes, &frame.capacity,
                           around + c->size * (sizeof(uint32_t) + len), 1));
    size_t *lens = dcommi_calloc(c->size, sizeof *lens);
    if (lens == NULL) {
        dcommi_free(frame.bytes);
        return DCOMM_ERR_NO_MEMORY;
    }
    uint8_t digest[DCOMMI_SHA256_BYTES];
    uint8_t *payload = frame.bytes + DCOMMI_RDV_HEADER;
    dcommi_rdv_put_header(frame.bytes, DCOMMI_RDV_GATHER, c->out_seq++, (uint32_t)len + 4);
    dcommi_put32(payload, dcommi_rdv_ms(c->timeout_s));
    if (len > 0) {
        memcpy(payload + 4, mine, len);
    }
    dcommi_sha256_digest(payload, len + 4, digest);
    dcommi_rdv_tag(c->keys.client, frame.bytes, digest, payload + 4 + len);
    dcomm_status status =
        dcommi_sock_write(c->fd, frame.bytes, around + len, deadline, c->cancel, &stopped);
    if (status == DCOMM_ERR_ABORTED) {
        dcommi_rdv_cancelled();
    } else if (status < 0) {
        dcommi_fail(status, "%s could not send to the rendezvous within %.3g s", c->me,
                    c->timeout_s);
    }
    DCOMMI_THEN(status, dcommi_rdv_next(c, DCOMMI_RDV_RESULT, deadline, &h, &frame));
    if (status == DCOMM_OK &&
        !dcommi_rdv_get_result(frame.bytes + DCOMMI_RDV_HEADER, h.length, c->size, lens, &blobs)) {
        status = dcommi_fail(DCOMM_ERR_CORRUPT, "%s received a malformed result", c->me);
    }
    if (status < 0) {
        dcommi_rdv_drop(c);
        dcommi_free(frame.bytes);
        dcommi_free(lens);
        return status;
    }
    memmove(frame.bytes, frame.bytes + DCOMMI_RDV_HEADER + blobs, h.length - blobs);
    *all_p = frame.bytes;
    *lens_p = lens;
    return DCOMM_OK;
}

static void dcommi_rdv_leave(dcommi_rdv_client *c)
{
    if (c->fd < 0) {
        return;
    }
    uint8_t bye[DCOMMI_RDV_HEADER + DCOMMI_RDV_TAG] = {0};
    dcommi_rdv_put_tagged(bye, DCOMMI_RDV_BYE, c->out_seq++, NULL, 0, c->keys.client);
    (void)!dcommi_sys_send(c->fd, bye, sizeof bye, MSG_NOSIGNAL);
    dcommi_rdv_drop(c);
}

#endif
