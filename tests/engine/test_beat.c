/* test_beat.c - beats on a control connection: who beats, who counts as silent, and who does not.
 * The test takes the turns of the thread, so that no time passes. */
#define _GNU_SOURCE
#pragma GCC diagnostic ignored "-Wunused-function"
#include "control_sides.h"

#define EVERY 1.0 /* seconds between two turns; liveness_s is ten times that */

enum { SILENT = 10 }; /* turns without a beat after which a process is silent */

/* Take a turn on a side: listen, and beat. A silence counts only if the other side's system has
 * acknowledged the last beat, so make it do that at once. Return true if the other process has been
 * silent for too long. */
static bool turn(int i)
{
    const int on = 1;
    for (int k = 0; k < LOOKS && !dcommi_beat_arrives(sides[i].line); k++) {
        setsockopt(sides[1 - i].line->fd, IPPROTO_TCP, TCP_QUICKACK, &on, sizeof on);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    return dcommi_beat_turn(&sides[i].context, EVERY, EVERY);
}

/* Expect that the other side counts as silent after SILENT more turns, and not before. */
static void expect_silence(int i)
{
    for (int k = 1; k <= SILENT; k++) {
        cr_expect(turn(i) == (k == SILENT), "after %d turns: silent for %g s", k,
                  sides[i].line->silent_s);
    }
}

/* ---- who is silent ---- */

/* A beat counts for one turn. */
Test(beat, a_process_falls_silent, .timeout = LIMIT)
{
    connect_sides();
    turn(1);
    cr_assert(comes(0));
    cr_expect(!turn(0) && sides[0].line->silent_s <= 0);
    expect_silence(0);
    close_sides();
}

/* Two processes fell silent together if the time of both is up within two turns. One that has
 * missed fewer beats may only be late. */
Test(beat, who_goes_together, .timeout = LIMIT)
{
    for (int together = 0; together < 2; together++) {
        connect_sides();
        dcomm_context *context = &sides[0].context;
        dcommi_remote peers[2] = {sides[0].peer, {.transport = &sides[0].transport}};
        dcommi_ctl_line other = {.fd = -1,
                                 .peer = 1,
                                 .state = DCOMMI_CTL_OPEN,
                                 .beats = true,
                                 .liveness_s = SILENT * EVERY,
                                 .silent_s = (SILENT - (together ? 2 : 3)) * EVERY};
        context->peers = peers;
        context->npeers = 2;
        sides[0].line->next = &other;
        expect_silence(0);
        dcommi_ctl_give_up(context, dcommi_beat_silent, "no beat came");
        cr_expect(peers[0].lost && peers[1].lost == (together == 1), "%d", together);
        cr_expect(sides[0].lost == 1 + together, "the transport lost %d", sides[0].lost);
        sides[0].line->next = NULL;
        close_sides();
    }
}

/* A frame for the holder of the token hides the beats behind it. While this process computes, that
 * is no silence of the other one. */
Test(beat, a_frame_hides_beats, .timeout = LIMIT)
{
    connect_sides();
    dcommi_ctl_leave(&sides[0].context, 0, 77, 5);
    for (int k = 0; k < SILENT + 1; k++) {
        turn(0);
        cr_assert(comes(1));
        cr_assert(!turn(1) && sides[1].line->silent_s <= 0, "turn %d", k);
    }
    for (int k = 0; k < LOOKS && sides[1].line->received < SILENT + 2; k++) {
        look();
    }
    cr_expect(sides[1].line->received == SILENT + 2);
    cr_expect(!turn(1) && sides[1].line->silent_s <= 0);
    expect_silence(1);
    close_sides();
}

/* A forged beat ends the connection, as any forged frame does, and is no sign of life. */
Test(beat, a_forged_one, .timeout = LIMIT)
{
    connect_sides();
    uint8_t frame[DCOMMI_CTL_FRAME] = {0};
    dcommi_put32(frame, DCOMMI_CTL_BEAT);
    cr_assert(dcommi_ctl_write(sides[0].line, frame, sizeof frame));
    cr_assert(comes(1));
    turn(1);
    cr_expect(!sides[1].line->heard);
    until_over(1);
    cr_expect(sides[1].lost == 0 && !sides[1].peer.proven);
    close_sides();
}

/* ---- who beats ---- */

/* Side 0 begins to beat when the first rank of its host has died. Side 1, which computes and has
 * not seen that, answers. */
Test(beat, is_answered, .timeout = LIMIT)
{
    connect_sides();
    sides[0].line->beats = true;
    sides[1].line->beats = false;
    for (int k = 0; k < 2 * SILENT; k++) {
        cr_expect(!turn(0), "turn %d", k);
        cr_assert(comes(1));
        turn(1);
        cr_assert(comes(0), "turn %d: no answer", k);
    }
    close_sides();
}

/* Two hosts, with ranks 0 and 1, and 2 and 3. This is rank 1, which has a connection with rank 2
 * alone. */
Test(beat, the_next_rank_begins, .timeout = LIMIT)
{
    enum { DIES, LEAVES, WAYS };
    for (int way = 0; way < WAYS; way++) {
        open_sides();
        want(0, 7);
        dcomm_context *context = &sides[0].context;
        dcommi_ctl_line *l = sides[0].line;
        dcommi_remote peers[3] = {sides[0].peer, {.transport = &sides[0].transport}};
        dcommi_member members[4] = {{.peer = 1}, {.peer = -1}, {.peer = 0}, {.peer = 2}};
        static dcomm_comm comm;
        comm = (dcomm_comm){.context = context,
                            .size = 4,
                            .rank = 1,
                            .nhosts = 2,
                            .members = members,
                            .groups = dcommi_groups_make(4, 1, (uint8_t[]){DCOMMI_LEVEL_HOST},
                                                         (int64_t[]){0, 0, 1, 1})};
        context->peers = peers;
        context->npeers = 3;
        l->beats = false;
        dcommi_beat_appoint(&comm);
        cr_expect(!l->beats, "without a thread");
        cr_assert(comm.groups != NULL && dcommi_beat_start(context) == DCOMM_OK);
        dcommi_beat_appoint(&comm);
        cr_expect(!l->beats, "while rank 0 is there");
        peers[1].lost = way == DIES;
        members[0].gone = way == LEAVES;
        dcommi_beat_appoint(&comm);
        cr_expect(l->beats, "way %d", way);
        dcommi_groups_free(&comm.groups);
        close_sides();
    }
}
