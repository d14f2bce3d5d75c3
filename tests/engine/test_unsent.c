/* test_unsent.c - a message without payload that the network fails to send, at once or after it was
 * queued: nobody waits for it, and the sentence names the sender. */
#define _GNU_SOURCE
#include "dcomm/impl/comm/comm.h"

#include "faults.h"
#include "ranks.h"

#include <criterion/criterion.h>

enum { SENDER = 1, N = 3 };

typedef struct failing {
    uint8_t type; /* of the message that fails, once */
    bool later;
} failing;

static const dcommi_transport_vtable *real;
static failing fails; /* type 0: nothing fails any more */
static dcommi_op *queued;

static dcomm_status send_or_fail(dcommi_transport *t, int peer, const void *header,
                                 size_t header_len, const void *data, size_t len, dcommi_op *op)
{
    if (fails.type == 0 || ((const dcommi_header *)header)->type != fails.type) {
        return real->send(t, peer, header, header_len, data, len, op);
    }
    fails.type = 0;
    if (!fails.later) {
        return dcommi_fail(DCOMM_ERR_TRANSPORT, "the network does not work");
    }
    queued = op;
    return DCOMM_IN_PROGRESS;
}

static unsigned progress_and_fail(dcommi_transport *t)
{
    dcommi_op *op = queued;
    if (op != NULL) {
        queued = NULL;
        op->done(op, DCOMM_ERR_TRANSPORT);
    }
    return real->progress(t);
}

/* Have one message of a type fail on this rank. */
static void fail_next(const dcomm_comm *comm, failing how)
{
    static dcommi_transport_vtable table;
    dcomm_context *context = comm->context;
    dcommi_token_take(context);
    real = context->net->call;
    table = *real;
    table.send = send_or_fail;
    table.progress = progress_and_fail;
    context->net->call = &table;
    fails = how;
    dcommi_token_release(context);
}

static int agrees(int rank, int n, procs_shared *s, void *arg)
{
    fault_rank f;
    fault_join(&f, rank, n, s, NET, 5);
    RANKS_OK(dcomm_barrier(f.comm, NULL));
    if (rank == SENDER) {
        fail_next(f.comm, *(failing *)arg);
    }
    uint64_t word = ~(UINT64_C(1) << rank);
    RANKS_OK(dcomm_comm_agree(f.comm, &word, NULL, 0, NULL));
    PROCS_TRUE(word == ~UINT64_C(7) && fails.type == 0);
    return fault_leave(&f);
}

Test(unsent, an_agreement_sends_again, .timeout = 60)
{
    for (int later = 0; later < 2; later++) {
        int ended[PROCS_MAX];
        failing how = {DCOMMI_MSG_AGREE, later};
        cr_expect_eq(procs_run(N, 20, agrees, &how, ended), 0, "later: %d", later);
    }
}

static int calls(int rank, int n, procs_shared *s, void *arg)
{
    fault_rank f;
    fault_join(&f, rank, n, s, NET, 10);
    RANKS_OK(dcomm_barrier(f.comm, NULL));
    fault_meet(&f, -1);
    if (rank == SENDER) {
        fail_next(f.comm, *(failing *)arg);
    }
    const double begun = procs_now();
    dcomm_status status = dcomm_barrier(f.comm, NULL);
    if (status == DCOMM_OK) { /* a rank may have passed before the others err */
        status = dcomm_barrier(f.comm, NULL);
    }
    PROCS_CHECK(procs_now() - begun < 5, "it took %.1f s", procs_now() - begun);
    fault_expect(&f, status, DCOMM_ERR_TRANSPORT, (const char *[]){"rank 1 could not send", NULL});
    return fault_leave(&f);
}

Test(unsent, a_signal_fails_the_call, .timeout = 60)
{
    int ended[PROCS_MAX];
    failing how = {DCOMMI_MSG_SIGNAL, true};
    cr_expect_eq(procs_run(N, 30, calls, &how, ended), 0);
}

/* The sender lives on, so that its end does not stand for the goodbye. */
static int leaves(int rank, int n, procs_shared *s, void *arg)
{
    fault_rank f;
    dcomm_comm *other = NULL;
    fault_join(&f, rank, n, s, NET, 10);
    RANKS_OK(dcomm_comm_dup(f.comm, &other));
    RANKS_OK(dcomm_barrier(f.comm, NULL));
    if (rank == SENDER) {
        fail_next(f.comm, *(failing *)arg);
    }
    fault_destroy(&f.comm, 1.5); /* a peer that hears nothing waits for 5 s */
    fault_meet(&f, -1);
    f.comm = other;
    return fault_leave(&f);
}

Test(unsent, a_goodbye_goes_another_way, .timeout = 60)
{
    int ended[PROCS_MAX];
    failing how = {DCOMMI_MSG_GOODBYE, true};
    cr_expect_eq(procs_run(N, 30, leaves, &how, ended), 0);
}
