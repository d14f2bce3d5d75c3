/* test_join.c - newcomers at the rendezvous of an id, whose server is given bytes and time: they
 * wait, are invited in their order, report, and are sent away. And the file that holds the id. */
#define _GNU_SOURCE
#pragma GCC diagnostic ignored "-Wunused-function"
#include "dcomm/impl/boot/lobby.h"
#include "dcomm/impl/boot/newcomer.h"

#include <criterion/criterion.h>

static const uint8_t key[DCOMMI_RDV_KEY] = {1, 2, 3};

/* The other end of a connection with the server. */
typedef struct guest {
    dcommi_rdv_conn *conn;
    uint8_t hello[DCOMMI_RDV_HELLO_FRAME];
    dcommi_rdv_keys keys;
    uint32_t sent, heard;
    uint8_t payload[512]; /* of the last frame */
} guest;

static void none(dcommi_rdv_conn *conn)
{
    (void)conn;
}

static void feed(dcommi_rdv_core *c, guest *g, const uint8_t *bytes, size_t len, double now)
{
    cr_assert_eq(dcommi_rdv_input(c, g->conn, bytes, len, now), len);
}

/* Say HELLO with `rank` and a key. */
static guest greet(dcommi_rdv_core *c, uint32_t rank, uint32_t lib, const uint8_t *with, double now)
{
    guest g = {0};
    const uint8_t nonce[DCOMMI_RDV_NONCE] = {9};
    const dcommi_rdv_hello h = {.wire = DCOMMI_RDV_WIRE_VERSION,
                                .lib = lib,
                                .rank = rank,
                                .size = rank == DCOMMI_RDV_NEWCOMER ? 0 : 2,
                                .timeout_ms = 1000};
    g.conn = dcommi_rdv_accept(c, nonce, now);
    const size_t len = dcommi_rdv_put_hello(g.hello, &h, nonce, g.conn->challenge, with);
    dcommi_rdv_derive(with, g.conn->challenge, g.hello, &g.keys);
    g.conn->out_len = 0; /* the challenge is read */
    feed(c, &g, g.hello, len, now);
    return g;
}

/* Return the type of the next frame to the guest (0: none), after the handshake genuine. */
static int hear(guest *g)
{
    dcommi_rdv_header h;
    const uint8_t *at = g->conn->out + g->conn->out_at;
    if (g->conn->out_at == g->conn->out_len) {
        return 0;
    }
    cr_assert(dcommi_rdv_get_header(at, &h) && h.length <= sizeof g->payload);
    memcpy(g->payload, at + DCOMMI_RDV_HEADER, h.length);
    const bool tagged = h.type != DCOMMI_RDV_WELCOME && h.type != DCOMMI_RDV_REJECT;
    cr_assert(!tagged || dcommi_rdv_genuine(at, &h, g->heard++, g->keys.server));
    g->conn->out_at += DCOMMI_RDV_HEADER + h.length + (tagged ? DCOMMI_RDV_TAG : 0);
    return h.type;
}

static guest arrive(dcommi_rdv_core *c, double now)
{
    guest g = greet(c, DCOMMI_RDV_NEWCOMER, DCOMMI_RDV_LIB_VERSION, key, now);
    cr_assert_eq(hear(&g), DCOMMI_RDV_WELCOME);
    cr_assert_eq(hear(&g), 0);
    cr_assert_eq(g.conn->state, DCOMMI_RDV_PARKED);
    return g;
}

static void report(dcommi_rdv_core *c, guest *g, uint32_t attempt)
{
    uint8_t payload[DCOMMI_RDV_REPORT_LEN], frame[128];
    dcommi_put32(payload, attempt);
    const size_t len = dcommi_rdv_put_tagged(frame, DCOMMI_RDV_REPORT, g->sent++, payload,
                                             sizeof payload, g->keys.client);
    feed(c, g, frame, len, 0);
}

static dcommi_rdv_invitation invited(guest *g)
{
    dcommi_rdv_invitation i;
    cr_assert_eq(hear(g), DCOMMI_RDV_INVITE);
    cr_assert(dcommi_rdv_get_invitation(g->payload, DCOMMI_RDV_INVITE_LEN, &i));
    return i;
}

Test(join, in_the_order_in_which_they_came)
{
    dcommi_rdv_core c;
    dcommi_rdv_core_begin(&c, key, 0, "");
    guest g[3];
    for (int k = 0; k < 3; k++) {
        g[k] = arrive(&c, 0);
    }
    cr_assert_eq(dcommi_rdv_parked(&c), 3);
    cr_assert_eq(c.guests, 0, "they take no stranger's place");
    dcommi_rdv_invitation i = {.port = 7, .timeout_ms = 5000, .nonce = {4}};
    cr_assert_eq(dcommi_rdv_invite(&c, 2, &i, 5), 2);
    for (int k = 0; k < 2; k++) {
        const dcommi_rdv_invitation got = invited(&g[k]);
        cr_assert(got.attempt == 1 && got.rank == (uint32_t)(5 + k) && got.size == 7);
        cr_assert(got.port == 7 && got.timeout_ms == 5000 && got.nonce[0] == 4);
    }
    cr_assert_eq(hear(&g[2]), 0);
    cr_assert_eq(dcommi_rdv_parked(&c), 1);
    /* One reports, the other is lost: the next attempt is without it, and those left come first. */
    report(&c, &g[0], 1);
    dcommi_rdv_lost(&c, g[1].conn, 0);
    const dcommi_rdv_guests left = dcommi_rdv_guests_of(&c, 1);
    cr_assert(left.there == 1 && left.reported == 1);
    dcommi_rdv_end_attempt(&c, 1, false, false, 0);
    dcommi_rdv_sweep(&c, none);
    cr_assert_eq(dcommi_rdv_invite(&c, 9, &i, 5), 2);
    cr_assert(invited(&g[0]).rank == 5 && invited(&g[2]).rank == 6);
    report(&c, &g[0], 1); /* of the attempt before: it does not count */
    cr_assert_eq(dcommi_rdv_guests_of(&c, 2).reported, 0);
    report(&c, &g[0], 2);
    report(&c, &g[2], 2);
    dcommi_rdv_end_attempt(&c, 2, true, false, 0);
    cr_assert(hear(&g[0]) == DCOMMI_RDV_READY && hear(&g[2]) == DCOMMI_RDV_READY);
    cr_assert_eq(dcommi_rdv_parked(&c), 0);
    dcommi_rdv_core_end(&c);
}

Test(join, silent_ones_are_sent_away)
{
    dcommi_rdv_core c;
    dcommi_rdv_core_begin(&c, key, 0, "");
    guest a = arrive(&c, 0), b = arrive(&c, 0);
    dcommi_rdv_invitation i = {.port = 7};
    dcommi_rdv_invite(&c, 2, &i, 1);
    invited(&a);
    invited(&b);
    dcommi_rdv_end_attempt(&c, 1, false, true, 0); /* an old rank has died: both go on waiting */
    cr_assert_eq(dcommi_rdv_parked(&c), 2);
    dcommi_rdv_invite(&c, 2, &i, 1);
    report(&c, &b, 2);
    dcommi_rdv_end_attempt(&c, 2, false, false, 0);
    cr_assert_eq(dcommi_rdv_parked(&c), 1);
    cr_assert(invited(&a).attempt == 2 && hear(&a) == DCOMMI_RDV_FAIL);
    cr_assert_eq((int32_t)dcommi_get32(a.payload), DCOMM_ERR_TIMEOUT);
    /* One that waits longer than it has said is gone. */
    guest d = arrive(&c, 0);
    dcommi_rdv_tick(&c, 1);
    cr_assert_eq(d.conn->state, DCOMMI_RDV_PARKED);
    dcommi_rdv_tick(&c, 3);
    cr_assert_eq(d.conn->state, DCOMMI_RDV_GONE);
    dcommi_rdv_poison(&c, 4, DCOMM_ERR_PEER, "over");
    cr_assert_eq(b.conn->state, DCOMMI_RDV_FAREWELL);
    dcommi_rdv_core_end(&c);
}

Test(join, refused)
{
    const uint8_t other[DCOMMI_RDV_KEY] = {1, 2, 4};
    dcommi_rdv_core c;
    dcommi_rdv_core_begin(&c, key, 0, "");
    guest g = greet(&c, DCOMMI_RDV_NEWCOMER, DCOMMI_RDV_LIB_VERSION, other, 0);
    cr_assert_eq(hear(&g), DCOMMI_RDV_REJECT, "without the secret");
    g = greet(&c, DCOMMI_RDV_NEWCOMER, 1, key, 0);
    cr_assert(hear(&g) == DCOMMI_RDV_WELCOME && hear(&g) == DCOMMI_RDV_FAIL);
    cr_assert_eq((int32_t)dcommi_get32(g.payload), DCOMM_ERR_MISMATCH, "another version");
    cr_assert_eq(c.status, DCOMM_OK, "which harms nobody else");
    g = arrive(&c, 0);
    uint8_t frame[128];
    dcommi_rdv_put_tagged(frame, DCOMMI_RDV_FAIL, g.sent++, frame, 8, g.keys.client);
    dcommi_rdv_input(&c, g.conn, frame, 16, 0);
    cr_assert_eq(g.conn->state, DCOMMI_RDV_GONE, "a newcomer fails nobody");
    /* Ranks of a creation and newcomers do not mix. */
    guest waits = arrive(&c, 0), rank = greet(&c, 0, DCOMMI_RDV_LIB_VERSION, key, 0);
    cr_assert_eq(rank.conn->state, DCOMMI_RDV_JOINED);
    cr_assert_eq(hear(&waits), DCOMMI_RDV_FAIL);
    g = greet(&c, DCOMMI_RDV_NEWCOMER, DCOMMI_RDV_LIB_VERSION, key, 0);
    cr_assert(hear(&g) == DCOMMI_RDV_WELCOME && hear(&g) == DCOMMI_RDV_FAIL);
    dcommi_rdv_core_end(&c);
    dcommi_rdv_core_begin(&c, key, 0, "");
    c.lobby = true;
    rank = greet(&c, 0, DCOMMI_RDV_LIB_VERSION, key, 0);
    cr_assert(hear(&rank) == DCOMMI_RDV_WELCOME && hear(&rank) == DCOMMI_RDV_FAIL);
    dcommi_rdv_core_end(&c);
}

Test(join, invitations_that_make_no_sense)
{
    uint8_t p[DCOMMI_RDV_INVITE_LEN];
    const dcommi_rdv_invitation good = {.attempt = 1, .rank = 1, .size = 2, .port = 1};
    dcommi_rdv_invitation i = good, got;
    dcommi_rdv_put_invitation(p, &i);
    cr_assert(dcommi_rdv_get_invitation(p, sizeof p, &got));
    cr_assert_not(dcommi_rdv_get_invitation(p, sizeof p - 1, &got));
    const dcommi_rdv_invitation bad[] = {{.attempt = 0, .rank = 1, .size = 2, .port = 1},
                                         {.attempt = 1, .rank = 0, .size = 2, .port = 1},
                                         {.attempt = 1, .rank = 2, .size = 2, .port = 1},
                                         {.attempt = 1, .rank = 1, .size = 65537, .port = 1},
                                         {.attempt = 1, .rank = 1, .size = 2, .port = 0}};
    for (size_t k = 0; k < sizeof bad / sizeof bad[0]; k++) {
        dcommi_rdv_put_invitation(p, &bad[k]);
        cr_assert_not(dcommi_rdv_get_invitation(p, sizeof p, &got), "%zu", k);
    }
}

/* A newcomer whose id has another secret. */
Test(join, wrong_secret, .timeout = 30)
{
    dcomm_id id;
    dcommi_lobby *list = NULL, *lobby;
    dcommi_newcomer n;
    dcommi_newcomer_place place;
    cr_assert_eq(dcomm_id_create(&id), DCOMM_OK);
    cr_assert_eq(dcommi_lobby_of(&list, &id, &lobby), DCOMM_OK);
    dcommi_id_parts parts = lobby->parts;
    parts.secret[3] ^= 1;
    dcommi_id_format(&parts, &id);
    cr_assert_eq(dcommi_newcomer_begin(&n, &id, 5, NULL), DCOMM_OK);
    cr_assert_eq(dcommi_newcomer_next(&n, &place), DCOMM_ERR_AUTH);
    cr_assert_eq(dcommi_lobby_waiting(lobby), 0);
    dcommi_newcomer_end(&n);
    dcommi_lobbies_close(&list);
}

Test(join, file)
{
    char path[64];
    dcomm_id in, out;
    memset(&in, 0xa7, sizeof in);
    snprintf(path, sizeof path, "/tmp/dcomm-test-join-%d", (int)getpid());
    cr_assert_eq(dcommi_join_file_read(path, &out), DCOMM_ERR_RENDEZVOUS);
    cr_assert_eq(dcommi_join_file_write(path, &in), DCOMM_OK);
    cr_assert_eq(dcommi_join_file_read(path, &out), DCOMM_OK);
    cr_assert_arr_eq(in.bytes, out.bytes, sizeof in);
    struct stat st;
    cr_assert(stat(path, &st) == 0 && (st.st_mode & 0777) == 0600);
    cr_assert_eq(truncate(path, 100), 0);
    cr_assert_eq(dcommi_join_file_read(path, &out), DCOMM_ERR_RENDEZVOUS);
    unlink(path);
    cr_assert_eq(dcommi_join_file_write("/nowhere/file", &in), DCOMM_ERR_SYSTEM);
    cr_assert(strstr(dcommi_message, "/nowhere/file") != NULL);
}
