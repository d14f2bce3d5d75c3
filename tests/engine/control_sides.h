/* control_sides.h - two contexts of one process that have a control connection, without ranks. */
#ifndef CONTROL_SIDES_H
#define CONTROL_SIDES_H

#include "dcomm/impl/device/host.h"
#include "dcomm/impl/engine/beat.h"

#include <criterion/criterion.h>

enum { LIMIT = 20, LOOKS = 400 };

/* Two contexts; each knows the other as peer 0. */
typedef struct side {
    dcomm_context context;
    dcommi_remote peer;
    dcommi_transport transport;
    dcommi_ctl_line *line;
    int lost;
} side;

static side sides[2]; /* side 0 connects */

static void lose(dcommi_transport *t, int peer, const char *why)
{
    cr_assert(peer >= 0 && why != NULL);
    for (int i = 0; i < 2; i++) {
        sides[i].lost += t == &sides[i].transport;
    }
}

static void open_sides(void)
{
    static const dcommi_transport_vtable table = {.lose = lose};
    memset(sides, 0, sizeof sides);
    for (int i = 0; i < 2; i++) {
        side *s = &sides[i];
        s->context.uuid[0] = (uint8_t)(1 + i);
        s->context.peers = &s->peer;
        s->context.npeers = 1;
        s->context.liveness_s = 10;
        s->peer.uuid[0] = (uint8_t)(2 - i);
        s->peer.transport = &s->transport;
        s->transport.call = &table;
        cr_assert(dcommi_ctl_open(&s->context, "lo") == DCOMM_OK, "%s", dcommi_message);
    }
}

static void want(int i, uint8_t key0)
{
    uint8_t key[DCOMMI_CTL_KEY] = {key0};
    cr_assert(dcommi_ctl_want(&sides[i].context, 0, &sides[1 - i].context.control->address, key,
                              true) == DCOMM_OK);
    sides[i].line = dcommi_ctl_line_to(&sides[i].context, 0);
    cr_assert(sides[i].line->connector == (i == 0));
}

static void look(void)
{
    for (int i = 0; i < 2; i++) {
        if (sides[i].context.control != NULL) {
            dcommi_ctl_look(&sides[i].context);
        }
    }
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

static bool both(uint8_t state)
{
    return sides[0].line->state == state && sides[1].line->state == state;
}

static void connect_sides(void)
{
    open_sides();
    want(1, 7);
    want(0, 7);
    for (int i = 0; i < LOOKS && !both(DCOMMI_CTL_OPEN); i++) {
        look();
    }
    cr_assert(both(DCOMMI_CTL_OPEN), "states %d and %d", sides[0].line->state,
              sides[1].line->state);
}

/* Return true when something has come to a side. */
static bool comes(int i)
{
    struct pollfd fd = {.fd = sides[i].line->fd, .events = POLLIN};
    return poll(&fd, 1, LOOKS) == 1;
}

static void close_sides(void)
{
    dcommi_ctl_close(&sides[0].context);
    dcommi_ctl_close(&sides[1].context);
    cr_assert(dcommi_ctl_all == NULL);
}

/* Poll until one end sees the connection's end. */
static void until_over(int i)
{
    for (int k = 0; k < LOOKS && sides[i].line->state != DCOMMI_CTL_OVER; k++) {
        look();
    }
    cr_expect(sides[i].line->state == DCOMMI_CTL_OVER, "state %d", sides[i].line->state);
}

#endif
