/* loan.h - memory for a communicator's own exchanges. After an error the transport may still read
 * it or write to it, so then it is freed with the communicator. */
#ifndef DCOMMI_COMM_LOAN_H
#define DCOMMI_COMM_LOAN_H

#include "comm.h"

enum { DCOMMI_LOAN = 64 }; /* bytes from a loan's head to its memory */

/* Return zeroed memory for an exchange. Without memory fail the communicator: the other ranks wait
 * for this one. */
static void *dcommi_borrow(dcomm_comm *comm, size_t n, size_t size)
{
    const size_t bytes = dcommi_size_mul(n, size);
    dcommi_loan *loan =
        bytes <= SIZE_MAX - DCOMMI_LOAN ? dcommi_calloc(1, bytes + DCOMMI_LOAN) : NULL;
    if (loan == NULL) {
        dcommi_fail(DCOMM_ERR_NO_MEMORY, "rank %d: no memory for %zu times %zu bytes", comm->rank,
                    n, size);
        dcommi_token_take(comm->context);
        dcommi_have(comm, NULL);
        dcommi_token_release(comm->context);
        return NULL;
    }
    loan->vain = atomic_load(&comm->poisoned) != 0;
    dcommi_comm_lock(comm);
    loan->next = comm->loans;
    comm->loans = loan;
    dcommi_comm_unlock(comm);
    return (unsigned char *)loan + DCOMMI_LOAN;
}

/* Free memory whose exchange is over, unless the communicator has failed meanwhile. */
static void dcommi_give_back(dcomm_comm *comm, void *memory)
{
    if (memory == NULL) {
        return;
    }
    dcommi_loan *loan = (dcommi_loan *)(void *)((unsigned char *)memory - DCOMMI_LOAN);
    if (!loan->vain && atomic_load(&comm->poisoned) != 0) {
        return;
    }
    dcommi_comm_lock(comm);
    dcommi_loan **at = &comm->loans;
    while (*at != loan) {
        at = &(*at)->next;
    }
    *at = loan->next;
    dcommi_comm_unlock(comm);
    dcommi_free(loan);
}

#endif
