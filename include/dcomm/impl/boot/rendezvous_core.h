/* rendezvous_core.h - the state of a rendezvous's server: its connections and their output.
 * rendezvous.h changes it. */
#ifndef DCOMMI_RENDEZVOUS_CORE_H
#define DCOMMI_RENDEZVOUS_CORE_H

#include "job.h"
#include "rendezvous_wire.h"

#define DCOMMI_RDV_GUESTS_MAX 64    /* connections that are no ranks */
#define DCOMMI_RDV_HANDSHAKE_S 10.0 /* seconds for a guest to authenticate itself */
#define DCOMMI_RDV_RETURN_S 0.5     /* seconds for a rank, lost before all were there, to return */
#define DCOMMI_RDV_FAREWELL_S 10.0  /* seconds for a connection to read why it failed */
#define DCOMMI_RDV_STRAGGLER_S 60.0 /* seconds for the others to leave after the first rank */
#define DCOMMI_RDV_PARKED_S 86400.0 /* seconds for a newcomer that was invited before to wait */
#define DCOMMI_RDV_OUT_MAX 1024

typedef enum dcommi_rdv_state {
    DCOMMI_RDV_STRANGER = 0, /* CHALLENGE sent */
    DCOMMI_RDV_JOINED,       /* a rank */
    DCOMMI_RDV_PARKED,       /* a newcomer, which waits for a communicator that grows */
    DCOMMI_RDV_FAREWELL,     /* the last output is on its way; input is discarded */
    DCOMMI_RDV_GONE          /* to be closed and freed */
} dcommi_rdv_state;

/* A round's result, shared by all connections that it goes out on. */
typedef struct dcommi_rdv_result {
    size_t refs, len;
    uint8_t digest[DCOMMI_SHA256_BYTES];
    uint8_t *payload;
} dcommi_rdv_result;

typedef struct dcommi_rdv_conn {
    dcommi_rdv_state state;
    int fd; /* belongs to rendezvous_server.h */
    uint32_t rank;
    uint64_t instance;
    double born, deadline; /* deadline: for a stranger to authenticate, or a rank to wait */
    bool guest;            /* counted in `guests`: never joined */
    bool waiting;          /* this rank waits for the others */
    bool gathered;         /* its blob of this round is in `in` */
    bool left;             /* it sent BYE */
    bool fail_due;
    uint32_t attempt; /* of a newcomer: the last one that it was invited to; 0: to none */
    bool reported;    /* that attempt is over there */
    uint32_t in_seq, out_seq;
    dcommi_rdv_keys keys;
    uint8_t challenge[DCOMMI_RDV_CHALLENGE_FRAME];
    uint8_t small[DCOMMI_RDV_HELLO_FRAME]; /* a stranger's input; it cannot make us keep more */
    uint8_t *in; /* a rank's input: header, payload and tag of the frame under way */
    size_t in_len, in_capacity;
    uint8_t out[DCOMMI_RDV_OUT_MAX];
    size_t out_len, out_at;
    dcommi_rdv_result *result; /* goes out after `out`, then result_tag */
    size_t result_at;
    uint8_t result_tag[DCOMMI_RDV_TAG];
} dcommi_rdv_conn;

typedef struct dcommi_rdv_core {
    uint8_t key[DCOMMI_RDV_KEY];
    uint32_t size;      /* 0: not known until the first rank has come */
    uint32_t size_from; /* the rank that told the size */
    uint32_t generation;
    char job[DCOMMI_RDV_JOB_MAX + 1]; /* rank 0's; "" with an id */
    dcommi_rdv_conn **conns;
    size_t nconns, conns_capacity;
    size_t guests;
    dcommi_rdv_conn **ranks; /* [size], NULL: not there */
    double *lost_at;         /* [size], 0: not lost */
    uint8_t *told;           /* [size], 1: the rank knows that the rendezvous failed */
    uint32_t njoined, ngathered, nleft, ntold;
    size_t round_bytes;
    double first_leave;
    bool ready;         /* all ranks were there at once */
    bool lobby;         /* newcomers only: the id serves a communicator that grows */
    uint32_t attempts;  /* to grow */
    bool announced;     /* a rank cannot take part: tell the ranks that still come */
    double waits_since; /* when the first waiting rank began to wait; 0: none waits */
    bool told_waits;
    bool told_foreign;
    char news[DCOMMI_MESSAGE_MAX]; /* for rendezvous_server.h to log; "": nothing */
    dcomm_status status;
    char why[DCOMMI_RDV_REASON_MAX + 1];
} dcommi_rdv_core;

/* Begin a rendezvous. The first rank that comes tells its size. Jobs are not compared if `job` is
 * "". */
static void dcommi_rdv_core_begin(dcommi_rdv_core *c, const uint8_t key[DCOMMI_RDV_KEY],
                                  uint32_t generation, const char *job)
{
    memset(c, 0, sizeof *c);
    memcpy(c->key, key, DCOMMI_RDV_KEY);
    c->generation = generation;
    snprintf(c->job, sizeof c->job, "%s", job);
}

static void dcommi_rdv_result_release(dcommi_rdv_result *result)
{
    if (result != NULL && --result->refs == 0) {
        dcommi_free(result->payload);
        dcommi_free(result);
    }
}

static void dcommi_rdv_conn_free(dcommi_rdv_conn *conn)
{
    dcommi_rdv_result_release(conn->result);
    dcommi_free(conn->in);
    dcommi_free(conn);
}

static void dcommi_rdv_core_end(dcommi_rdv_core *c)
{
    for (size_t i = 0; i < c->nconns; i++) {
        dcommi_rdv_conn_free(c->conns[i]);
    }
    dcommi_free(c->conns);
    dcommi_free(c->ranks);
    dcommi_free(c->lost_at);
    dcommi_free(c->told);
    memset(c, 0, sizeof *c);
}

/* ---- words for people ---- */

static bool dcommi_rdv_absent(const void *core, size_t rank)
{
    const dcommi_rdv_core *c = core;
    return c->ranks[rank] == NULL || (c->ready && !c->ranks[rank]->gathered);
}

/* Write the ranks that are missing. After all ranks have met, these are the ranks without a blob
 * in this round. */
static void dcommi_rdv_list_absent(const dcommi_rdv_core *c, char *text, size_t max)
{
    dcommi_text_ranges(text, max, ", ", c->size, dcommi_rdv_absent, c);
}

/* ---- output ---- */

static void dcommi_rdv_say(dcommi_rdv_conn *conn, const uint8_t *bytes, size_t len)
{
    if (conn->out_at > 0) {
        memmove(conn->out, conn->out + conn->out_at, conn->out_len - conn->out_at);
        conn->out_len -= conn->out_at;
        conn->out_at = 0;
    }
    if (len > sizeof conn->out - conn->out_len) {
        conn->state = DCOMMI_RDV_GONE; /* it does not read our output */
        return;
    }
    memcpy(conn->out + conn->out_len, bytes, len);
    conn->out_len += len;
}

static void dcommi_rdv_say_tagged(dcommi_rdv_conn *conn, uint16_t type, const void *payload,
                                  uint32_t len)
{
    uint8_t frame[DCOMMI_RDV_HEADER + 4 + DCOMMI_RDV_REASON_MAX + DCOMMI_RDV_TAG];
    dcommi_rdv_say(
        conn, frame,
        dcommi_rdv_put_tagged(frame, type, conn->out_seq++, payload, len, conn->keys.server));
}

/* Return the number of bytes to send next, and set *bytes to them. Return 0 if there are none. */
static size_t dcommi_rdv_output(dcommi_rdv_core *c, dcommi_rdv_conn *conn, const uint8_t **bytes)
{
    if (conn->out_at == conn->out_len && conn->result == NULL && conn->fail_due) {
        uint8_t reason[4 + DCOMMI_RDV_REASON_MAX];
        conn->fail_due = false;
        dcommi_rdv_say_tagged(conn, DCOMMI_RDV_FAIL, reason,
                              dcommi_rdv_put_reason(reason, c->status, c->why));
    }
    if (conn->out_at < conn->out_len) {
        *bytes = conn->out + conn->out_at;
        return conn->out_len - conn->out_at;
    }
    if (conn->result == NULL) {
        return 0;
    }
    if (conn->result_at < conn->result->len) {
        *bytes = conn->result->payload + conn->result_at;
        return conn->result->len - conn->result_at;
    }
    *bytes = conn->result_tag + (conn->result_at - conn->result->len);
    return conn->result->len + DCOMMI_RDV_TAG - conn->result_at;
}

/* Note that `n` bytes of dcommi_rdv_output were sent. */
static void dcommi_rdv_sent(dcommi_rdv_conn *conn, size_t n)
{
    if (conn->out_at < conn->out_len) {
        conn->out_at += n;
        return;
    }
    conn->result_at += n;
    if (conn->result != NULL && conn->result_at == conn->result->len + DCOMMI_RDV_TAG) {
        dcommi_rdv_result_release(conn->result);
        conn->result = NULL;
    }
}

static bool dcommi_rdv_output_pending(const dcommi_rdv_conn *conn)
{
    return conn->out_at < conn->out_len || conn->result != NULL || conn->fail_due;
}

/* ---- the end of a connection ---- */

static void dcommi_rdv_farewell(dcommi_rdv_conn *conn, double now)
{
    conn->state = DCOMMI_RDV_FAREWELL;
    conn->waiting = false;
    conn->deadline = now + DCOMMI_RDV_FAREWELL_S;
}

/* Tell one connection why it is not served, and part from it. */
static void dcommi_rdv_refuse(dcommi_rdv_conn *conn, double now, dcomm_status status,
                              const char *why)
{
    uint8_t reason[4 + DCOMMI_RDV_REASON_MAX];
    dcommi_rdv_say_tagged(conn, DCOMMI_RDV_FAIL, reason,
                          dcommi_rdv_put_reason(reason, status, why));
    if (conn->state != DCOMMI_RDV_GONE) {
        dcommi_rdv_farewell(conn, now);
    }
}

static void dcommi_rdv_unguest(dcommi_rdv_core *c, dcommi_rdv_conn *conn)
{
    c->guests -= conn->guest;
    conn->guest = false;
}

#endif
