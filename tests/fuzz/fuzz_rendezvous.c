/* fuzz_rendezvous.c - scripts of connections, bytes, valid or nearly valid frames, and time
 * against the server's state machine; raw bytes against a client's reader. */
#define _GNU_SOURCE
#pragma GCC diagnostic ignored "-Wunused-function"
#include "dcomm/impl/boot/rendezvous.h"

enum { MOST_CONNS = 12, MOST_STEPS = 400 };

/* The harness is the client: this is its view of a connection of the server's. */
typedef struct fuzz_peer {
    dcommi_rdv_conn *conn; /* NULL: closed */
    uint8_t hello[DCOMMI_RDV_HELLO_FRAME];
    dcommi_rdv_keys keys;
    uint32_t sequence;
    bool greeted;
} fuzz_peer;

static fuzz_peer peers[MOST_CONNS];

static void forget_conn(dcommi_rdv_conn *conn)
{
    for (int i = 0; i < MOST_CONNS; i++) {
        if (peers[i].conn == conn) {
            peers[i].conn = NULL;
        }
    }
}

static void feed(dcommi_rdv_core *c, fuzz_peer *peer, const uint8_t *bytes, size_t len, double now)
{
    while (len > 0 && peer->conn->state != DCOMMI_RDV_GONE && dcommi_rdv_wants_input(peer->conn)) {
        size_t part = len < 1000 ? len : 1000;
        size_t used = dcommi_rdv_input(c, peer->conn, bytes, part, now);
        if (used > part) {
            abort();
        }
        bytes += used;
        len -= used;
        if (used < part) {
            break;
        }
    }
}

static void drain(dcommi_rdv_core *c, fuzz_peer *peer, size_t most)
{
    const uint8_t *bytes = NULL;
    size_t len;
    uint32_t sum = 0;
    while (most > 0 && (len = dcommi_rdv_output(c, peer->conn, &bytes)) > 0) {
        len = len < most ? len : most;
        for (size_t i = 0; i < len; i++) {
            sum += bytes[i]; /* touch them all */
        }
        dcommi_rdv_sent(peer->conn, len);
        most -= len;
    }
    *(volatile uint32_t *)&peer->sequence += sum * 0;
}

static void read_as_client(const uint8_t *data, size_t size)
{
    dcommi_rdv_header h;
    char why[DCOMMI_RDV_REASON_MAX + 1];
    size_t lens[8], blobs;
    if (size >= DCOMMI_RDV_HEADER) {
        dcommi_rdv_get_header(data, &h);
    }
    dcommi_rdv_get_reason(data, size, why);
    dcommi_rdv_invitation invitation;
    if (dcommi_rdv_get_invitation(data, size, &invitation) && invitation.rank >= invitation.size) {
        abort();
    }
    for (uint32_t n = 1; n <= 8; n++) {
        if (dcommi_rdv_get_result(data, size, n, lens, &blobs)) {
            size_t total = blobs;
            for (uint32_t r = 0; r < n; r++) {
                total += lens[r];
            }
            if (total != size) {
                abort();
            }
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint8_t key[DCOMMI_RDV_KEY] = {1, 2, 3};
    static uint8_t frame[1 << 16];
    dcommi_rdv_core c;
    double now = 1000;
    size_t at = 0;
    read_as_client(data, size);
    memset(peers, 0, sizeof peers);
    const bool of_id = size > 0 && data[0] % 2 != 0; /* newcomers come to an id */
    dcommi_rdv_core_begin(&c, key, 0, of_id ? "" : "command line \"train --rank 0\"");
    for (int step = 0; step < MOST_STEPS && at + 4 <= size; step++) {
        const uint8_t *op = data + at;
        at += 4;
        fuzz_peer *peer = &peers[op[1] % MOST_CONNS];
        size_t left = size - at, len = op[2] < left ? op[2] : left;
        if (peer->conn == NULL) {
            uint8_t nonce[DCOMMI_RDV_NONCE] = {op[3]};
            memset(peer, 0, sizeof *peer);
            peer->conn = dcommi_rdv_accept(&c, nonce, now);
        } else if (op[0] % 8 == 0) { /* raw bytes */
            feed(&c, peer, data + at, len, now);
            at += len;
        } else if (op[0] % 8 == 1) { /* a genuine HELLO, sane or not */
            dcommi_rdv_hello h = {.wire = op[0] > 250 ? 7 : DCOMMI_RDV_WIRE_VERSION,
                                  .lib = DCOMMI_RDV_LIB_VERSION,
                                  .rank = op[2],
                                  .size = op[3] > 250 ? 100000u * op[3] : op[3] % 9u,
                                  .generation = op[0] > 240,
                                  .timeout_ms = 1000u * op[3],
                                  .instance = op[1]};
            uint8_t nonce[DCOMMI_RDV_NONCE] = {op[2]};
            if (of_id && op[2] < 200) {
                h.rank = DCOMMI_RDV_NEWCOMER;
                h.size = 0;
            }
            snprintf(h.job, sizeof h.job, "command line \"train --rank %u\"",
                     op[0] > 230 ? op[3] : h.rank);
            size_t n = dcommi_rdv_put_hello(peer->hello, &h, nonce, peer->conn->challenge, key);
            dcommi_rdv_derive(key, peer->conn->challenge, peer->hello, &peer->keys);
            peer->sequence = 0;
            feed(&c, peer, peer->hello, n, now);
        } else if (op[0] % 8 == 2 || op[0] % 8 == 3) { /* a genuine frame of any type */
            uint16_t type = op[0] % 8 == 2 ? DCOMMI_RDV_GATHER : (uint16_t)(op[3] % 12);
            size_t n = dcommi_rdv_put_tagged(frame, type, peer->sequence++, data + at,
                                             (uint32_t)len, peer->keys.client);
            feed(&c, peer, frame, n, now);
            at += len;
        } else if (op[0] % 8 == 4) {
            drain(&c, peer, op[3] > 128 ? SIZE_MAX : op[3]);
        } else if (op[0] % 8 == 5 && of_id && op[2] > 50) { /* rank 0 grows */
            dcommi_rdv_invitation i = {.port = 1, .timeout_ms = 1000};
            const uint32_t n = dcommi_rdv_invite(&c, op[3] % 4, &i, 1);
            const dcommi_rdv_guests guests = dcommi_rdv_guests_of(&c, i.attempt);
            if (guests.there > n || guests.reported > 0) {
                abort();
            }
            if (op[2] > 100) {
                dcommi_rdv_end_attempt(&c, i.attempt - op[2] % 2, op[2] > 200, op[2] > 150, now);
            }
        } else if (op[0] % 8 == 5) {
            dcommi_rdv_lost(&c, peer->conn, now);
        } else {
            now += op[0] % 8 == 6 ? op[2] / 100.0 : op[2];
            double next = dcommi_rdv_tick(&c, now);
            if (next < now && c.nconns == 0) {
                abort();
            }
        }
        dcommi_rdv_sweep(&c, forget_conn);
        if (c.guests > DCOMMI_RDV_GUESTS_MAX || c.guests > c.nconns) {
            abort();
        }
        dcommi_rdv_finished(&c);
    }
    dcommi_rdv_core_end(&c);
    return 0;
}
