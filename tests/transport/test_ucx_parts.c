/* test_ucx_parts.c - messages cut over several connections: long results, and parts, pieces and
 * answers that are forged. Those that do not fit fail the operation on every rank, and those that
 * belong to nothing do no harm. */
#define _GNU_SOURCE
#define DCOMM_IMPLEMENTATION
#include "ranks.h"

#include <criterion/criterion.h>

enum { CONNECTIONS = 4, FIRST_OVER = 1 };

static dcomm_comm *join(int rank, int n, procs_shared *s, int connections)
{
    ranks_settle(rank, n, RANKS_HOSTS);
    return ranks_join(rank, n, s, &(dcomm_comm_opts){.connections = connections, .tune = -1});
}

static int sums(int rank, int n, procs_shared *s, void *arg)
{
    static const size_t counts[] = {300000, 1 << 20, (3 << 19) + 12345};
    static const char *const algos[] = {"ring", "recursive_doubling", "one_shot"};
    dcomm_comm *comm = join(rank, n, s, CONNECTIONS);
    (void)arg;
    for (int k = 0; k < 3; k++) {
        size_t count = counts[k];
        float *in = malloc(4 * count), *out = malloc(4 * count);
        PROCS_TRUE(in != NULL && out != NULL);
        for (size_t i = 0; i < count; i++) {
            in[i] = (float)(rank * 100 + (int)(i % 997));
        }
        RANKS_OK(dcomm_allreduce(comm, in, out, count, DCOMM_F32, DCOMM_SUM,
                                 &(dcomm_coll_opts){.algo = algos[k], .chunk_bytes = 2 << 20}));
        for (size_t i = 0; i < count; i++) {
            float want = (float)(100 * n * (n - 1) / 2 + n * (int)(i % 997));
            PROCS_CHECK(out[i] == want, "%s: [%zu] of %zu: %g, not %g", algos[k], i, count,
                        (double)out[i], (double)want);
        }
        free(in);
        free(out);
    }
    return ranks_leave(&comm);
}

Test(ucx_parts, long_results, .timeout = 60)
{
    for (int n = 2; n <= 3; n++) {
        int ended[PROCS_MAX];
        cr_assert_eq(procs_run(n, 50, sums, NULL, ended), 0, "%d ranks", n);
    }
}

/* ---- what does not fit ---- */

static void sent(dcommi_op *op, dcomm_status status)
{
    (void)op, (void)status;
}

static void forge(dcomm_comm *comm, const dcommi_ucx_tail *tail, size_t len)
{
    static uint8_t data[1 << 20];
    static dcommi_op op = {.done = sent};
    dcommi_ucx *u = (dcommi_ucx *)comm->context->net;
    dcommi_ucx_peer *p = NULL;
    dcommi_header h = {
        .type = DCOMMI_MSG_DATA, .src = (uint32_t)comm->rank, .comm = comm->id, .a = tail->total};
    dcommi_ucx_tail whole = *tail;
    whole.id = u->id;
    RANKS_OK(dcommi_ucx_peer_open(u, comm->members[1].peer, &p));
    PROCS_TRUE(
        dcommi_ucx_launch(p, 0, &h, sizeof h, &whole, data, len, UCS_MEMORY_TYPE_HOST, &op) >= 0);
}

/* Rank 0 sends rank 1 a part that cannot be, and then joins the collective of all ranks. */
static int forged(int rank, int n, procs_shared *s, void *arg)
{
    static float in[1000], out[1000];
    int kind = *(int *)arg;
    dcomm_comm *comm = join(rank, n, s, CONNECTIONS);
    RANKS_OK(dcomm_allreduce(comm, in, out, 1000, DCOMM_F32, DCOMM_SUM, NULL));
    procs_post(s, rank, FIRST_OVER);
    if (rank == 0) {
        while (!procs_all(s, n, FIRST_OVER, -1)) {
            procs_nap();
        }
        dcommi_ucx_tail tail = {.total = 1 << 20, .number = 1000, .parts = 4};
        size_t part = dcommi_ucx_part_at(tail.total, 4, 1);
        if (kind == 0) { /* no part of the message */
            tail.part = 4;
        } else if (kind == 1) { /* over no connection */
            tail.connection = DCOMM_CONNECTIONS_MAX;
        } else if (kind == 2) { /* of a message of no parts */
            tail.parts = 0;
        } else if (kind == 3) { /* of a message of no bytes */
            tail.total = 0;
            tail.parts = 1;
            part = 0;
        } else if (kind == 4) { /* parts of two messages */
            forge(comm, &tail, part);
            tail.total += 4096 * 4;
            tail.part = 1;
            part = dcommi_ucx_part_at(tail.total, 4, 2) - dcommi_ucx_part_at(tail.total, 4, 1);
        } else { /* the same part twice */
            forge(comm, &tail, part);
        }
        forge(comm, &tail, part);
    }
    dcomm_status status = DCOMM_OK;
    for (double start = procs_now(); status >= 0 && procs_now() - start < 20;) {
        status = dcomm_allreduce(comm, in, out, 1000, DCOMM_F32, DCOMM_SUM, NULL);
    }
    PROCS_CHECK(status == DCOMM_ERR_CORRUPT, "kind %d: rank %d: %s", kind, rank,
                dcomm_strerror(status));
    PROCS_CHECK(strstr(dcomm_comm_error(comm), "rank 1 got a part of a message from rank 0") !=
                    NULL,
                "kind %d: rank %d: %s", kind, rank, dcomm_comm_error(comm));
    dcomm_comm_destroy(&comm);
    return 0;
}

Test(ucx_parts, forged_parts_fail_on_every_rank, .timeout = 120)
{
    for (int kind = 0; kind < 6; kind++) {
        int ended[PROCS_MAX];
        cr_assert_eq(procs_run(3, 40, forged, &kind, ended), 0, "kind %d", kind);
    }
}

/* ---- lies between an announced message and its payload ---- */

typedef enum lie {
    PIECE_BEYOND,     /* a piece that lies behind the end */
    PIECE_LONG,       /* one that is longer than what is left */
    PIECE_TWICE,      /* the same one again */
    PIECE_OF_NOTHING, /* one of a message that was not announced */
    PIECE_CUT,        /* one with half a header */
    ANSWER_TWICE,     /* the receiver wants the payload again */
    ANSWER_DECLINES,  /* and then does not */
    ANSWER_TO_NOTHING,
    ANSWER_CUT,
    KIND_UNKNOWN,
    LIES
} lie;

/* The message is longer than a piece, and shorter than two. */
enum { SENDER = 0, RECEIVER = 1, POSTED = 2, FLOATS = 20000 };

static dcommi_ucx *net_of(const dcomm_comm *comm)
{
    return (dcommi_ucx *)comm->context->net;
}

/* Send another rank a message of UCX's, as it is. */
static void say(const dcomm_comm *comm, int rank, const dcommi_ucx_flight *f, unsigned kind,
                const void *header, size_t header_len, size_t len)
{
    static const uint8_t data[DCOMMI_UCX_PIECE];
    dcommi_ucx_peer *p = NULL;
    RANKS_OK(dcommi_ucx_peer_open(net_of(comm), comm->members[rank].peer, &p));
    PROCS_TRUE(dcommi_ucx_now(p, f->connection, kind, header, header_len, data, len) == UCS_OK);
}

/* Wait for a part of the message that is under way. */
static const dcommi_ucx_flight *part_of(const dcomm_comm *comm, dcommi_ucx_stage stage)
{
    dcommi_ucx *u = net_of(comm);
    for (;;) {
        for (const dcommi_ucx_flight *f = u->pending.next; f != &u->pending; f = f->next) {
            if (f->stage == stage) {
                return f;
            }
        }
        dcommi_progress_or_yield(comm->context);
    }
}

/* Rank 0 lies about the payload of a message that it has announced, before it sends it. */
static void lie_as_sender(const dcomm_comm *comm, lie kind)
{
    const dcommi_ucx_flight *f = part_of(comm, DCOMMI_UCX_ASKED);
    dcommi_ucx_piece piece = {.id = net_of(comm)->id, .number = f->number, .part = f->part};
    size_t header_len = sizeof piece, len = 1024;
    unsigned message = DCOMMI_UCX_BYTES;
    switch (kind) {
    case PIECE_BEYOND:
        piece.at = UINT64_MAX - 100;
        break;
    case PIECE_LONG:
        len = DCOMMI_UCX_PIECE;
        say(comm, RECEIVER, f, message, &piece, header_len, len);
        piece.at = len;
        break;
    case PIECE_OF_NOTHING:
        piece.number += 1000;
        break;
    case PIECE_CUT:
        header_len = 11;
        break;
    case KIND_UNKNOWN:
        message = 30;
        break;
    default: /* PIECE_TWICE: the true one follows */
        break;
    }
    say(comm, RECEIVER, f, message, &piece, header_len, len);
}

/* Rank 1 lies about the message that it receives. */
static void lie_as_receiver(const dcomm_comm *comm, lie kind)
{
    const dcommi_ucx_flight *f = part_of(comm, DCOMMI_UCX_FETCH);
    const dcommi_ucx_answer answer = {.id = net_of(comm)->id,
                                      .number = f->number + (kind == ANSWER_TO_NOTHING ? 1000 : 0),
                                      .part = f->part,
                                      .takes = kind != ANSWER_DECLINES};
    say(comm, SENDER, f, DCOMMI_UCX_ANSWER, &answer, kind == ANSWER_CUT ? 5 : sizeof answer, 0);
}

static int lied(int rank, int n, procs_shared *s, void *arg)
{
    static float in[FLOATS], out[FLOATS];
    const lie kind = *(const lie *)arg;
    const bool harms = kind <= PIECE_TWICE;
    dcomm_comm *comm = join(rank, n, s, 1);
    dcomm_request *request = NULL;
    RANKS_OK(dcomm_barrier(comm, NULL));
    for (int i = 0; i < FLOATS; i++) {
        in[i] = (float)i;
    }
    if (rank == RECEIVER) {
        RANKS_OK(dcomm_irecv(comm, out, FLOATS, DCOMM_F32, SENDER, NULL, &request));
    }
    procs_post(s, rank, POSTED);
    while (!procs_all(s, n, POSTED, -1)) {
        procs_nap();
    }
    if (rank == SENDER) {
        RANKS_OK(dcomm_isend(comm, in, FLOATS, DCOMM_F32, RECEIVER, NULL, &request));
    }
    if (rank == (kind >= ANSWER_TWICE && kind <= ANSWER_CUT ? RECEIVER : SENDER)) {
        (rank == SENDER ? lie_as_sender : lie_as_receiver)(comm, kind);
    }
    dcomm_status status = request != NULL ? dcomm_wait(&request) : DCOMM_OK;
    PROCS_CHECK(rank != RECEIVER || status == (harms ? DCOMM_ERR_CORRUPT : DCOMM_OK),
                "kind %d: %s %s", kind, dcomm_status_name(status), dcomm_last_error());
    for (int i = 0; rank == RECEIVER && !harms && i < FLOATS; i++) {
        PROCS_CHECK(out[i] == (float)i, "kind %d: [%d] is %g", kind, i, (double)out[i]);
    }
    status = dcomm_allreduce(comm, in, out, 1000, DCOMM_F32, DCOMM_SUM, NULL);
    PROCS_CHECK(status == (harms ? DCOMM_ERR_CORRUPT : DCOMM_OK), "kind %d: rank %d: %s %s", kind,
                rank, dcomm_status_name(status), dcomm_last_error());
    dcomm_status ignored = dcomm_comm_destroy(&comm);
    (void)ignored;
    return 0;
}

Test(ucx_parts, lies_about_a_payload, .timeout = 120)
{
    for (lie kind = 0; kind < LIES; kind++) {
        int ended[PROCS_MAX];
        cr_assert_eq(procs_run(3, 40, lied, &kind, ended), 0, "kind %d", (int)kind);
    }
}
