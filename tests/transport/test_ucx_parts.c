/* test_ucx_parts.c - messages cut over several connections: long results, and parts that are forged
 * or do not fit, which fail the operation on every rank. */
#define _GNU_SOURCE
#define DCOMM_IMPLEMENTATION
#include "ranks.h"

#include <criterion/criterion.h>

enum { CONNECTIONS = 4, FIRST_OVER = 1 };

static dcomm_comm *join(int rank, int n, procs_shared *s)
{
    ranks_settle(rank, n, RANKS_HOSTS);
    return ranks_join(rank, n, s, &(dcomm_comm_opts){.connections = CONNECTIONS, .tune = -1});
}

static int sums(int rank, int n, procs_shared *s, void *arg)
{
    static const size_t counts[] = {300000, 1 << 20, (3 << 19) + 12345};
    static const char *const algos[] = {"ring", "recursive_doubling", "one_shot"};
    dcomm_comm *comm = join(rank, n, s);
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
    dcomm_comm *comm = join(rank, n, s);
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

/* Rank 0 begins message after message, and completes none. */
static int begun(int rank, int n, procs_shared *s, void *arg)
{
    static float in[1000], out[1000];
    dcomm_comm *comm = join(rank, n, s);
    (void)arg;
    RANKS_OK(dcomm_allreduce(comm, in, out, 1000, DCOMM_F32, DCOMM_SUM, NULL));
    procs_post(s, rank, FIRST_OVER);
    if (rank == 0) {
        while (!procs_all(s, n, FIRST_OVER, -1)) {
            procs_nap();
        }
        dcommi_ucx_tail tail = {.total = 1 << 18, .parts = 2};
        for (int i = 0; i <= DCOMMI_UCX_INCOMPLETE_MAX; i++) {
            tail.number = 1000 + (uint32_t)i;
            forge(comm, &tail, dcommi_ucx_part_at(tail.total, 2, 1));
        }
    }
    dcomm_status status = DCOMM_OK;
    for (double start = procs_now(); status >= 0 && procs_now() - start < 20;) {
        status = dcomm_allreduce(comm, in, out, 1000, DCOMM_F32, DCOMM_SUM, NULL);
    }
    PROCS_CHECK(status == DCOMM_ERR_PEER, "rank %d: %s", rank, dcomm_strerror(status));
    PROCS_CHECK(rank == 0 ||
                    strstr(dcomm_comm_error(comm), "it does not complete its messages") != NULL,
                "rank %d: %s", rank, dcomm_comm_error(comm));
    dcomm_comm_destroy(&comm);
    return 0;
}

Test(ucx_parts, messages_that_are_never_complete, .timeout = 60)
{
    int ended[PROCS_MAX];
    cr_assert_eq(procs_run(3, 40, begun, NULL, ended), 0);
}
