/* rendezvous.h - the server's side of the rendezvous as a state machine without sockets or clock.
 * Bytes and the time go in, bytes come out. rendezvous_server.h adds sockets and clock. */
#ifndef DCOMMI_RENDEZVOUS_H
#define DCOMMI_RENDEZVOUS_H

#include "rendezvous_join.h"

/* ---- failure ---- */

static void dcommi_rdv_tell(dcommi_rdv_core *c, dcommi_rdv_conn *conn, double now)
{
    if (c->ranks != NULL && conn->rank < c->size && !c->told[conn->rank]) {
        c->told[conn->rank] = 1;
        c->ntold++;
    }
    conn->fail_due = true;
    dcommi_rdv_farewell(conn, now);
}

/* Fail the rendezvous for all ranks: those connected now and those that still come. */
static void DCOMMI_PRINTF(4, 5)
    dcommi_rdv_poison(dcommi_rdv_core *c, double now, dcomm_status status, const char *format, ...)
{
    if (c->status < 0) {
        return;
    }
    va_list args;
    va_start(args, format);
    dcommi_vsnprintf(c->why, sizeof c->why, format, args);
    va_end(args);
    c->status = status;
    for (size_t i = 0; i < c->nconns; i++) {
        const dcommi_rdv_state state = c->conns[i]->state;
        if ((state == DCOMMI_RDV_JOINED && !c->conns[i]->left) || state == DCOMMI_RDV_PARKED) {
            dcommi_rdv_tell(c, c->conns[i], now);
        }
    }
}

/* Handle the end of a connection. */
static void dcommi_rdv_lost(dcommi_rdv_core *c, dcommi_rdv_conn *conn, double now)
{
    dcommi_rdv_state was = conn->state;
    conn->state = DCOMMI_RDV_GONE;
    dcommi_rdv_unguest(c, conn);
    if (was != DCOMMI_RDV_JOINED || c->ranks[conn->rank] != conn || conn->left) {
        return;
    }
    if (!c->ready) {
        c->ranks[conn->rank] = NULL;
        c->njoined--;
        c->lost_at[conn->rank] = now;
    } else {
        dcommi_rdv_poison(c, now, DCOMM_ERR_PEER,
                          "rank %" PRIu32 " was lost while the ranks found each other", conn->rank);
    }
}

/* ---- joining ---- */

/* Accept a connection. If there are too many guests, drop the oldest, so that silent strangers
 * keep no rank out. Return NULL without memory. */
static dcommi_rdv_conn *dcommi_rdv_accept(dcommi_rdv_core *c, const uint8_t nonce[DCOMMI_RDV_NONCE],
                                          double now)
{
    if (c->guests >= DCOMMI_RDV_GUESTS_MAX) {
        dcommi_rdv_conn *oldest = NULL;
        for (size_t i = 0; i < c->nconns; i++) {
            dcommi_rdv_conn *conn = c->conns[i];
            if (conn->guest && (oldest == NULL || conn->born < oldest->born)) {
                oldest = conn;
            }
        }
        dcommi_rdv_lost(c, oldest, now);
    }
    if (dcommi_grow((void **)&c->conns, &c->conns_capacity, c->nconns + 1, sizeof *c->conns) < 0) {
        return NULL;
    }
    dcommi_rdv_conn *conn = dcommi_alloc(sizeof *conn);
    if (conn == NULL) {
        return NULL;
    }
    conn->fd = -1;
    conn->born = now;
    conn->deadline = now + DCOMMI_RDV_HANDSHAKE_S;
    dcommi_rdv_put_challenge(conn->challenge, nonce);
    dcommi_rdv_say(conn, conn->challenge, sizeof conn->challenge);
    c->conns[c->nconns++] = conn;
    conn->guest = true;
    c->guests++;
    return conn;
}

static void DCOMMI_PRINTF(4, 5) dcommi_rdv_reject(dcommi_rdv_conn *conn, double now,
                                                  dcomm_status status, const char *format, ...)
{
    uint8_t frame[DCOMMI_RDV_HEADER + 4 + DCOMMI_RDV_REASON_MAX];
    char why[DCOMMI_RDV_REASON_MAX + 1];
    va_list args;
    va_start(args, format);
    dcommi_vsnprintf(why, sizeof why, format, args);
    va_end(args);
    uint32_t len = dcommi_rdv_put_reason(frame + DCOMMI_RDV_HEADER, status, why);
    dcommi_rdv_put_header(frame, DCOMMI_RDV_REJECT, 0, len);
    dcommi_rdv_say(conn, frame, DCOMMI_RDV_HEADER + len);
    dcommi_rdv_farewell(conn, now);
}

static bool dcommi_rdv_set_size(dcommi_rdv_core *c, uint32_t size, uint32_t from)
{
    c->ranks = dcommi_calloc(size, sizeof *c->ranks);
    c->lost_at = dcommi_calloc(size, sizeof *c->lost_at);
    c->told = dcommi_calloc(size, 1);
    if (c->ranks == NULL || c->lost_at == NULL || c->told == NULL) {
        return false;
    }
    c->size = size;
    c->size_from = from;
    return true;
}

/* Fail the rendezvous for all ranks if an authenticated rank does not fit in. */
static dcomm_status dcommi_rdv_judge(dcommi_rdv_core *c, const dcommi_rdv_hello *h, double now)
{
    if (h->wire != DCOMMI_RDV_WIRE_VERSION || h->lib != DCOMMI_RDV_LIB_VERSION) {
        dcommi_rdv_poison(c, now, DCOMM_ERR_MISMATCH,
                          "rank %" PRIu32 " runs dcomm %u.%u.%u, but the rank that serves the "
                          "rendezvous runs %s",
                          h->rank, h->lib >> 16, h->lib >> 8 & 255, h->lib & 255,
                          DCOMM_VERSION_STRING);
    } else if (h->size == 0 || h->size > DCOMMI_RDV_SIZE_MAX || h->rank >= h->size) {
        dcommi_rdv_poison(c, now, DCOMM_ERR_MISMATCH,
                          "a process says that it is rank %" PRIu32 " of %" PRIu32
                          ", which is impossible",
                          h->rank, h->size);
    } else if (c->size != 0 && h->size != c->size) {
        dcommi_rdv_poison(c, now, DCOMM_ERR_MISMATCH,
                          "rank %" PRIu32 " says that there are %" PRIu32
                          " ranks, but rank %" PRIu32 " says %" PRIu32,
                          h->rank, h->size, c->size_from, c->size);
    } else if (c->size == 0 && !dcommi_rdv_set_size(c, h->size, h->rank)) {
        dcommi_rdv_poison(c, now, DCOMM_ERR_NO_MEMORY,
                          "the rank that serves the rendezvous has no memory for %" PRIu32 " ranks",
                          h->size);
    } else if (!c->ready && c->ranks[h->rank] != NULL &&
               c->ranks[h->rank]->instance != h->instance) {
        dcommi_rdv_poison(c, now, DCOMM_ERR_RENDEZVOUS,
                          "two processes say that they are rank %" PRIu32 " of %" PRIu32, h->rank,
                          h->size);
    }
    return c->status;
}

/* Reject a rank of another job that has come to this job's port. */
static void dcommi_rdv_turn_away(dcommi_rdv_core *c, dcommi_rdv_conn *conn,
                                 const dcommi_rdv_hello *h, double now)
{
    char names[2 * DCOMMI_JOB_SHOWN + 32];
    dcommi_job_differ(c->job, h->job, names, sizeof names);
    dcommi_rdv_reject(conn, now, DCOMM_ERR_MISMATCH,
                      "another job meets at this port (%s); give each job its own MASTER_PORT or "
                      "DCOMM_PORT, or one DCOMM_JOB=word to all ranks of one job",
                      names);
    if (!c->told_foreign && h->rank != DCOMMI_RDV_NO_RANK) {
        c->told_foreign = true;
        dcommi_job_differ(h->job, c->job, names, sizeof names);
        snprintf(c->news, sizeof c->news,
                 "turned away rank %" PRIu32 " of another job (%s); if it is of this job, set "
                 "DCOMM_JOB to one word for all ranks",
                 h->rank, names);
    }
}

static void dcommi_rdv_hello_in(dcommi_rdv_core *c, dcommi_rdv_conn *conn, double now)
{
    dcommi_rdv_hello h;
    if (!dcommi_rdv_get_hello(conn->small, conn->challenge, c->key, &h)) {
        dcommi_rdv_reject(conn, now, DCOMM_ERR_AUTH, "the secrets differ");
        return;
    }
    if (c->job[0] != '\0' && h.wire == DCOMMI_RDV_WIRE_VERSION &&
        !dcommi_job_same(c->job, h.job, h.rank, h.local_rank)) {
        dcommi_rdv_turn_away(c, conn, &h, now);
        return;
    }
    if (h.generation != c->generation) {
        dcommi_rdv_reject(conn, now,
                          h.rank == DCOMMI_RDV_NO_RANK ? DCOMM_ERR_RENDEZVOUS : DCOMM_IN_PROGRESS,
                          "rank 0 serves another attempt: it has created %" PRIu32
                          " communicator(s) of this job, but rank %" PRIu32 " has created %" PRIu32,
                          c->generation, h.rank, h.generation);
        return;
    }
    uint8_t welcome[DCOMMI_RDV_WELCOME_FRAME];
    dcommi_rdv_derive(c->key, conn->challenge, conn->small, &conn->keys);
    dcommi_rdv_say(conn, welcome,
                   dcommi_rdv_put_welcome(welcome, conn->challenge, conn->small, c->key));
    conn->rank = h.rank;
    conn->instance = h.instance;
    if (h.rank == DCOMMI_RDV_NEWCOMER && c->status >= 0) {
        dcommi_rdv_park(c, conn, &h, now);
        return;
    }
    if (c->lobby && c->status >= 0) {
        dcommi_rdv_refuse(conn, now, DCOMM_ERR_INVALID,
                          "this id is for newcomers to a communicator that grows "
                          "(DCOMM_BOOT_JOIN); a new communicator takes another id");
        return;
    }
    if (c->status < 0 || dcommi_rdv_judge(c, &h, now) < 0) {
        dcommi_rdv_tell(c, conn, now);
        return;
    }
    if (c->ready && c->job[0] != '\0') {
        dcommi_rdv_lost(c, conn,
                        now); /* it retries, and joins when this attempt has ended here too */
        return;
    }
    if (c->ready) {
        char why[128];
        snprintf(why, sizeof why,
                 "all %" PRIu32 " ranks have met already: an id serves one communicator", c->size);
        dcommi_rdv_refuse(conn, now, DCOMM_ERR_RENDEZVOUS, why);
        return;
    }
    dcommi_rdv_dismiss(c, now,
                       "this id serves the creation of a communicator; newcomers to one "
                       "that grows take another id");
    dcommi_rdv_conn *before = c->ranks[h.rank];
    if (before != NULL) {
        before->state = DCOMMI_RDV_GONE; /* the same process tries again */
        c->njoined--;
    }
    dcommi_rdv_unguest(c, conn);
    conn->state = DCOMMI_RDV_JOINED;
    conn->waiting = true;
    conn->deadline = now + h.timeout_ms / 1000.0;
    c->waits_since = c->waits_since != 0 ? c->waits_since : now;
    c->ranks[h.rank] = conn;
    c->lost_at[h.rank] = 0;
    if (++c->njoined < c->size) {
        return;
    }
    c->ready = true;
    c->waits_since = 0;
    for (uint32_t r = 0; r < c->size; r++) {
        c->ranks[r]->waiting = false;
        dcommi_rdv_say_tagged(c->ranks[r], DCOMMI_RDV_READY, NULL, 0);
    }
}

/* ---- rounds ---- */

static void dcommi_rdv_round_done(dcommi_rdv_core *c, double now)
{
    dcommi_rdv_result *result = dcommi_alloc(sizeof *result);
    size_t len = 4 + 4 * (size_t)c->size + c->round_bytes;
    uint8_t *payload = result != NULL ? dcommi_alloc(len) : NULL;
    if (payload == NULL) {
        dcommi_free(result);
        dcommi_rdv_poison(c, now, DCOMM_ERR_NO_MEMORY,
                          "the rank that serves the rendezvous has no memory for %zu bytes", len);
        return;
    }
    dcommi_put32(payload, c->size);
    uint8_t *at = payload + 4 + 4 * (size_t)c->size;
    for (uint32_t r = 0; r < c->size; r++) {
        dcommi_rdv_conn *conn = c->ranks[r];
        uint32_t n = dcommi_get32(conn->in + 12) - 4; /* the frame's length, less its timeout */
        dcommi_put32(payload + 4 + 4 * (size_t)r, n);
        memcpy(at, conn->in + DCOMMI_RDV_HEADER + 4, n);
        at += n;
        dcommi_free(conn->in);
        conn->in = NULL;
        conn->in_len = conn->in_capacity = 0;
    }
    result->payload = payload;
    result->len = len;
    dcommi_sha256_digest(payload, len, result->digest);
    for (uint32_t r = 0; r < c->size; r++) {
        dcommi_rdv_conn *conn = c->ranks[r];
        uint8_t header[DCOMMI_RDV_HEADER];
        dcommi_rdv_put_header(header, DCOMMI_RDV_RESULT, conn->out_seq++, (uint32_t)len);
        dcommi_rdv_tag(conn->keys.server, header, result->digest, conn->result_tag);
        dcommi_rdv_say(conn, header, sizeof header);
        conn->result = result;
        conn->result_at = 0;
        conn->gathered = conn->waiting = false;
        result->refs++;
    }
    c->ngathered = 0;
    c->round_bytes = 0;
    c->waits_since = 0;
}

/* Handle a whole genuine frame of a rank, which lies in conn->in. */
static void dcommi_rdv_frame_in(dcommi_rdv_core *c, dcommi_rdv_conn *conn,
                                const dcommi_rdv_header *h, double now)
{
    if (conn->state == DCOMMI_RDV_PARKED) {
        dcommi_rdv_parked_frame(conn, h);
        return;
    }
    if (h->type == DCOMMI_RDV_BYE) {
        conn->left = true;
        conn->in_len = 0;
        c->nleft++;
        if (c->first_leave == 0) {
            c->first_leave = now;
        }
        dcommi_rdv_farewell(conn, now);
        if (!c->ready || c->ngathered > 0) {
            dcommi_rdv_poison(c, now, DCOMM_ERR_PEER,
                              "rank %" PRIu32 " left while others waited for it", conn->rank);
        }
        return;
    }
    if (h->type == DCOMMI_RDV_FAIL) {
        char why[DCOMMI_RDV_REASON_MAX + 1];
        dcomm_status status = dcommi_rdv_get_reason(conn->in + DCOMMI_RDV_HEADER, h->length, why);
        conn->in_len = 0;
        c->announced = true;
        dcommi_rdv_poison(c, now, status < 0 ? status : DCOMM_ERR_CORRUPT,
                          "rank %" PRIu32 " cannot take part: %.380s", conn->rank, why);
        return;
    }
    conn->gathered = conn->waiting = true;
    c->waits_since = c->waits_since != 0 ? c->waits_since : now;
    conn->deadline = now + dcommi_get32(conn->in + DCOMMI_RDV_HEADER) / 1000.0;
    c->round_bytes += h->length - 4;
    c->ngathered++;
    if (c->nleft > 0) {
        dcommi_rdv_poison(c, now, DCOMM_ERR_PEER,
                          "rank %" PRIu32 " waits for ranks, but some of them have left",
                          conn->rank);
    } else if (c->round_bytes > DCOMMI_RDV_RESULT_MAX - 4 - 4 * (size_t)c->size) {
        dcommi_rdv_poison(c, now, DCOMM_ERR_UNSUPPORTED,
                          "the ranks tell each other more bytes than the limit of %u",
                          DCOMMI_RDV_RESULT_MAX);
    } else if (c->ngathered == c->size) {
        dcommi_rdv_round_done(c, now);
    }
}

/* Return true if a connection may give more input. A rank may not while it has not read its
 * result, or while its blob waits for the others' blobs. So no rank can make us keep more than one
 * frame. */
static bool dcommi_rdv_wants_input(const dcommi_rdv_conn *conn)
{
    return conn->state == DCOMMI_RDV_FAREWELL || conn->state == DCOMMI_RDV_STRANGER ||
           conn->state == DCOMMI_RDV_PARKED ||
           (conn->state == DCOMMI_RDV_JOINED && conn->result == NULL && !conn->gathered);
}

/* Return the length in bytes of the frame in conn->small or conn->in, as far as it is known.
 * Return 0 if the connection may not send such a frame now. */
static size_t dcommi_rdv_frame_len(const dcommi_rdv_core *c, const dcommi_rdv_conn *conn,
                                   dcommi_rdv_header *h)
{
    bool stranger = conn->state == DCOMMI_RDV_STRANGER;
    if (conn->in_len < DCOMMI_RDV_HEADER) {
        return DCOMMI_RDV_HEADER;
    }
    if (!dcommi_rdv_get_header(stranger ? conn->small : conn->in, h)) {
        return 0;
    }
    if (stranger) {
        return h->type == DCOMMI_RDV_HELLO && h->length >= DCOMMI_RDV_HELLO_LEN
                   ? DCOMMI_RDV_HEADER + (size_t)h->length
                   : 0;
    }
    if (conn->state == DCOMMI_RDV_PARKED) {
        return dcommi_rdv_parked_may(h) ? DCOMMI_RDV_HEADER + (size_t)h->length + DCOMMI_RDV_TAG
                                        : 0;
    }
    if ((h->type == DCOMMI_RDV_GATHER && c->ready && h->length >= 4) ||
        h->type == DCOMMI_RDV_FAIL || (h->type == DCOMMI_RDV_BYE && h->length == 0)) {
        return DCOMMI_RDV_HEADER + (size_t)h->length + DCOMMI_RDV_TAG;
    }
    return 0;
}

/* Handle bytes of a connection that wants input. Return how many of them were used. */
static size_t dcommi_rdv_input(dcommi_rdv_core *c, dcommi_rdv_conn *conn, const uint8_t *bytes,
                               size_t len, double now)
{
    size_t used = 0;
    while (used < len && dcommi_rdv_wants_input(conn)) {
        if (conn->state == DCOMMI_RDV_FAREWELL) {
            return len;
        }
        dcommi_rdv_header h = {0};
        size_t need = dcommi_rdv_frame_len(c, conn, &h);
        size_t take = need > conn->in_len ? need - conn->in_len : 0;
        take = take < len - used ? take : len - used;
        bool stranger = conn->state == DCOMMI_RDV_STRANGER;
        if (need == 0 || (!stranger && dcommi_grow((void **)&conn->in, &conn->in_capacity,
                                                   conn->in_len + take, 1) < 0)) {
            dcommi_rdv_lost(c, conn, now);
            return len;
        }
        memcpy((stranger ? conn->small : conn->in) + conn->in_len, bytes + used, take);
        conn->in_len += take;
        used += take;
        need = dcommi_rdv_frame_len(c, conn, &h);
        if (need == 0) {
            dcommi_rdv_lost(c, conn, now);
            return len;
        }
        if (conn->in_len < need || conn->in_len == DCOMMI_RDV_HEADER) {
            continue;
        }
        if (stranger) {
            conn->in_len = 0;
            dcommi_rdv_hello_in(c, conn, now);
        } else if (!dcommi_rdv_genuine(conn->in, &h, conn->in_seq++, conn->keys.client)) {
            dcommi_rdv_lost(c, conn, now);
        } else {
            dcommi_rdv_frame_in(c, conn, &h, now);
        }
    }
    return used;
}

/* ---- time ---- */

/* Report once for which ranks the others wait. Return the earlier of `next` and the time when the
 * report is due. */
static double dcommi_rdv_tell_waits(dcommi_rdv_core *c, double now, double next)
{
    double due = c->waits_since + DCOMMI_RDV_QUIET_S;
    if (c->waits_since == 0 || c->told_waits || c->status < 0) {
        return next;
    }
    if (due > now) {
        return due < next ? due : next;
    }
    if (c->news[0] == '\0') {
        char who[200];
        dcommi_rdv_list_absent(c, who, sizeof who);
        c->told_waits = true;
        snprintf(c->news, sizeof c->news,
                 "the creation of a communicator has waited %d s for rank(s) %s of %" PRIu32
                 " to %s",
                 DCOMMI_RDV_QUIET_S, who, c->size, c->ready ? "take part" : "come");
    }
    return next;
}

/* Fail because the timeout of `rank` has passed. Say how many ranks have met and which are
 * missing. */
static void dcommi_rdv_time_is_up(dcommi_rdv_core *c, uint32_t rank, double now)
{
    char who[200];
    uint32_t met = 0;
    for (uint32_t r = 0; r < c->size; r++) {
        met += c->ranks[r] != NULL;
    }
    dcommi_rdv_list_absent(c, who, sizeof who);
    dcommi_rdv_poison(c, now, DCOMM_ERR_TIMEOUT,
                      "%" PRIu32 " of %" PRIu32
                      " ranks have met; rank(s) %s did not %s within the timeout of rank %" PRIu32,
                      met, c->size, who, c->ready ? "take part" : "come", rank);
}

/* Handle the deadlines that have passed. Return the time of the next one. */
static double dcommi_rdv_tick(dcommi_rdv_core *c, double now)
{
    double next = dcommi_rdv_tell_waits(c, now, now + 3600);
    for (uint32_t r = 0; r < c->size && !c->ready && c->status == DCOMM_OK; r++) {
        double due = c->lost_at[r] + DCOMMI_RDV_RETURN_S;
        if (c->lost_at[r] != 0 && due <= now) {
            dcommi_rdv_poison(c, now, DCOMM_ERR_PEER,
                              "rank %" PRIu32 " was lost before all ranks had come", r);
        } else if (c->lost_at[r] != 0 && due < next) {
            next = due;
        }
    }
    for (size_t i = 0; i < c->nconns; i++) {
        dcommi_rdv_conn *conn = c->conns[i];
        bool timed = conn->state == DCOMMI_RDV_STRANGER || conn->state == DCOMMI_RDV_FAREWELL ||
                     (conn->state == DCOMMI_RDV_PARKED && conn->waiting) ||
                     (conn->state == DCOMMI_RDV_JOINED && conn->waiting);
        if (timed && conn->deadline <= now && conn->state == DCOMMI_RDV_JOINED) {
            dcommi_rdv_time_is_up(c, conn->rank, now);
        } else if (timed && conn->deadline <= now) {
            dcommi_rdv_lost(c, conn, now);
        } else if (timed && conn->deadline < next) {
            next = conn->deadline;
        }
        if (conn->state == DCOMMI_RDV_JOINED && c->first_leave != 0 &&
            now - c->first_leave > DCOMMI_RDV_STRAGGLER_S) {
            dcommi_rdv_lost(c, conn, now);
        }
    }
    return c->first_leave != 0 && c->first_leave + DCOMMI_RDV_STRAGGLER_S < next
               ? c->first_leave + DCOMMI_RDV_STRAGGLER_S + 1
               : next;
}

/* Return true if the server must not leave yet: a rank is connected, or output to a guest is
 * pending. */
static bool dcommi_rdv_attended(const dcommi_rdv_core *c)
{
    for (size_t i = 0; i < c->nconns; i++) {
        const dcommi_rdv_conn *conn = c->conns[i];
        if (conn->state != DCOMMI_RDV_GONE && conn->state != DCOMMI_RDV_STRANGER &&
            (!conn->guest || dcommi_rdv_output_pending(conn))) {
            return true;
        }
    }
    return false;
}

/* Return true if nothing is left to do: all ranks have left, or all know that it failed. */
static bool dcommi_rdv_finished(const dcommi_rdv_core *c)
{
    return !dcommi_rdv_attended(c) &&
           (c->ready || (c->size != 0 && c->status < 0 && c->ntold >= c->size));
}

/* Free connections that are gone. Call `closing` on each first. */
static void dcommi_rdv_sweep(dcommi_rdv_core *c, void (*closing)(dcommi_rdv_conn *conn))
{
    size_t kept = 0;
    for (size_t i = 0; i < c->nconns; i++) {
        dcommi_rdv_conn *conn = c->conns[i];
        if (conn->state != DCOMMI_RDV_GONE) {
            c->conns[kept++] = conn;
            continue;
        }
        if (c->ranks != NULL && conn->rank < c->size && c->ranks[conn->rank] == conn) {
            c->ranks[conn->rank] = NULL;
        }
        dcommi_rdv_unguest(c, conn);
        closing(conn);
        dcommi_rdv_conn_free(conn);
    }
    c->nconns = kept;
}

#endif
