/* alike.h - for objects that all ranks create together: an error of one rank is an error of all,
 * and their options are alike. */
#ifndef DCOMMI_COMM_ALIKE_H
#define DCOMMI_COMM_ALIKE_H

#include "api_coll.h"
#include "loan.h"

/* Exchange the ranks' statuses. Every rank returns the first error by rank. */
static dcomm_status dcommi_all_good(dcomm_comm *comm, dcomm_status status, double timeout_s)
{
    typedef struct card {
        int32_t status;
        char text[DCOMMI_TEXT_MAX];
    } card;
    dcomm_coll_opts opts = {.timeout_s = timeout_s};
    card *cards = dcommi_borrow(comm, (size_t)comm->size, sizeof *cards);
    if (cards == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    cards[comm->rank].status = status;
    snprintf(cards[comm->rank].text, sizeof cards->text, "%.399s",
             status < 0 ? dcomm_last_error() : "");
    status = dcomm_allgather(comm, DCOMM_IN_PLACE, cards, sizeof *cards, DCOMM_U8, &opts);
    for (int r = 0; r < comm->size && status >= 0; r++) {
        if (cards[r].status < 0) {
            cards[r].text[sizeof cards[r].text - 1] = 0;
            status = dcommi_fail((dcomm_status)cards[r].status, "rank %d: %s", r, cards[r].text);
        }
    }
    dcommi_give_back(comm, cards);
    return status;
}

/* Check that all ranks have the same n numbers, which the sentence names after `call`. */
static dcomm_status dcommi_all_alike(dcomm_comm *comm, const char *call, const char *const *names,
                                     const uint64_t *own, int n, double timeout_s)
{
    dcomm_coll_opts opts = {.timeout_s = timeout_s};
    uint64_t *all = dcommi_borrow(comm, (size_t)comm->size * (size_t)n, sizeof *all);
    if (all == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    memcpy(all + comm->rank * n, own, (size_t)n * sizeof *own);
    dcomm_status status = dcomm_allgather(comm, DCOMM_IN_PLACE, all, (size_t)n, DCOMM_U64, &opts);
    for (int r = 1; r < comm->size && status >= 0; r++) {
        for (int i = 0; i < n && status >= 0; i++) {
            if (all[r * n + i] != all[i]) {
                status = dcommi_fail(DCOMM_ERR_MISMATCH,
                                     "%s: %s is not the same on rank 0 and rank %d (%" PRIu64
                                     " and %" PRIu64 ")",
                                     call, names[i], r, all[i], all[r * n + i]);
            }
        }
    }
    dcommi_give_back(comm, all);
    return status;
}

#endif
