/* newcomer.h - a process that joins a communicator that grows: it waits at the id's rendezvous, and
 * is told where the ranks create the communicator. */
#ifndef DCOMMI_NEWCOMER_H
#define DCOMMI_NEWCOMER_H

#include "join_file.h"

#define DCOMMI_NEWCOMER_RETRY_S 0.05 /* seconds between looks at DCOMM_JOIN_FILE */

typedef struct dcommi_newcomer {
    dcomm_id id;      /* the caller's; zero: the one in `path` */
    const char *path; /* NULL: none */
    dcommi_id_parts parts;
    dcommi_rdv_client client; /* client.timeout_s: from the start, and from each invitation on */
    double until;
    uint32_t attempt; /* the invitation that this rank has accepted; 0: none */
} dcommi_newcomer;

/* An attempt to create the communicator. */
typedef struct dcommi_newcomer_place {
    dcomm_id id;
    int rank, size;
    double timeout_s;
} dcommi_newcomer_place;

static dcomm_status dcommi_newcomer_begin(dcommi_newcomer *n, const dcomm_id *id, double timeout_s,
                                          const _Atomic int *cancel)
{
    static const dcomm_id zero;
    *n = (dcommi_newcomer){
        .client = {.fd = -1, .rank = DCOMMI_RDV_NEWCOMER, .timeout_s = timeout_s, .cancel = cancel},
        .until = dcommi_now() + timeout_s};
    if (id != NULL && memcmp(id, &zero, sizeof zero) != 0) {
        n->id = *id;
        return dcommi_id_parse(id, &n->parts);
    }
    n->path = dcommi_env("DCOMM_JOIN_FILE");
    return n->path != NULL ? DCOMM_OK
                           : dcommi_fail(DCOMM_ERR_INVALID,
                                         "opts.boot is DCOMM_BOOT_JOIN, but opts.id is empty and "
                                         "DCOMM_JOIN_FILE names no file with an id");
}

/* Connect with the rank 0 that serves the id. */
static dcomm_status dcommi_newcomer_connect(dcommi_newcomer *n)
{
    uint8_t key[DCOMMI_RDV_KEY];
    dcommi_rdv_target target;
    if (n->path != NULL) {
        DCOMMI_TRY(dcommi_join_file_read(n->path, &n->id));
        DCOMMI_TRY(dcommi_id_parse(&n->id, &n->parts));
    }
    dcommi_id_key(&n->parts, key);
    dcommi_rdv_server *server = dcommi_id_target(&n->parts, key, &target);
    if (server != NULL) {
        dcommi_rdv_server_forget(server);
    }
    const double timeout_s = n->client.timeout_s, left = n->until - dcommi_now();
    n->client.timeout_s = left > 0 ? left : 0;
    dcomm_status status = dcommi_rdv_connect(&n->client, &target, key, 0);
    n->client.timeout_s = timeout_s;
    return status;
}

/* Say that the attempt is over here. The server notices by itself if we cannot. */
static void dcommi_newcomer_report(dcommi_newcomer *n)
{
    uint8_t payload[DCOMMI_RDV_REPORT_LEN];
    uint8_t frame[DCOMMI_RDV_HEADER + DCOMMI_RDV_REPORT_LEN + DCOMMI_RDV_TAG];
    dcommi_put32(payload, n->attempt);
    dcommi_rdv_put_tagged(frame, DCOMMI_RDV_REPORT, n->client.out_seq++, payload, sizeof payload,
                          n->client.keys.client);
    (void)!dcommi_sys_send(n->client.fd, frame, sizeof frame, MSG_NOSIGNAL);
}

/* Wait for an invitation (DCOMM_IN_PROGRESS) or, after an attempt, for its success (DCOMM_OK). */
static dcomm_status dcommi_newcomer_hear(dcommi_newcomer *n, dcommi_newcomer_place *place)
{
    dcommi_rdv_frame frame = {0};
    dcommi_rdv_header h;
    dcommi_rdv_invitation i = {0};
    uint8_t secret[DCOMMI_RDV_TAG];
    dcomm_status status = dcommi_rdv_next(&n->client, DCOMMI_RDV_INVITE, n->until, &h, &frame);
    if (status == DCOMM_OK &&
        (h.type == DCOMMI_RDV_INVITE
             ? !dcommi_rdv_get_invitation(frame.bytes + DCOMMI_RDV_HEADER, h.length, &i)
             : n->attempt == 0)) {
        status = dcommi_fail(DCOMM_ERR_CORRUPT, "%s received an invitation that makes no sense",
                             n->client.me);
    }
    dcommi_free(frame.bytes);
    if (status == DCOMM_ERR_TIMEOUT && !n->client.told) { /* else rank 0 has given the reason */
        return dcommi_fail(status, "no communicator has grown within %.3g s at %s",
                           n->client.timeout_s, n->client.server);
    }
    if (status < 0 || h.type == DCOMMI_RDV_READY) {
        return status;
    }
    dcommi_id_parts parts = n->parts;
    parts.port = i.port;
    dcommi_rdv_attempt_secret(n->client.secret, i.nonce, secret);
    memcpy(parts.secret, secret, sizeof parts.secret);
    dcommi_id_format(&parts, &place->id);
    place->rank = (int)i.rank;
    place->size = (int)i.size;
    place->timeout_s = i.timeout_ms / 1000.0;
    n->attempt = i.attempt;
    n->until = dcommi_now() + n->client.timeout_s;
    return DCOMM_IN_PROGRESS;
}

/* Return true if an id from the file may be out of date: rank 0 has died, or not come yet. */
static bool dcommi_newcomer_may_retry(const dcommi_newcomer *n, dcomm_status status)
{
    return n->path != NULL && (status == DCOMM_ERR_RENDEZVOUS || status == DCOMM_ERR_PEER ||
                               status == DCOMM_ERR_AUTH || status == DCOMM_ERR_TIMEOUT);
}

/* Wait for the next attempt: DCOMM_IN_PROGRESS, and *place says where. DCOMM_OK: the last attempt
 * has succeeded on all ranks. With an id from a file, wait for a newer one if that has no server.
 */
static dcomm_status dcommi_newcomer_next(dcommi_newcomer *n, dcommi_newcomer_place *place)
{
    if (n->attempt != 0) {
        dcommi_newcomer_report(n);
    }
    for (;;) {
        dcomm_status status = n->client.fd >= 0 ? DCOMM_OK : dcommi_newcomer_connect(n);
        DCOMMI_THEN(status, dcommi_newcomer_hear(n, place));
        if (status >= 0) {
            return status;
        }
        dcommi_rdv_drop(&n->client);
        n->attempt = 0;
        if (!dcommi_newcomer_may_retry(n, status)) {
            return status;
        }
        if (dcommi_now() >= n->until) {
            char why[DCOMMI_MESSAGE_MAX];
            memcpy(why, dcommi_message, sizeof why);
            return dcommi_fail(DCOMM_ERR_TIMEOUT,
                               "no communicator to join within %.3g s; last attempt: %.600s",
                               n->client.timeout_s, why);
        }
        if (dcommi_sock_pause(DCOMMI_NEWCOMER_RETRY_S, n->client.cancel) < 0) {
            return dcommi_rdv_cancelled();
        }
    }
}

static void dcommi_newcomer_end(dcommi_newcomer *n)
{
    dcommi_rdv_leave(&n->client);
}

#endif
