/* fingerprint.h - hashes of tensors, and their comparison among ranks. */
#ifndef DCOMMI_FINGERPRINT_H
#define DCOMMI_FINGERPRINT_H

#include "../../fingerprint.h"
#include "../comm/api_coll.h"
#include "../comm/loan.h"

/* ---- hashes ---- */

/* Words go to these lanes in turn, so that the processor works at several multiplications. */
enum { DCOMMI_FINGERPRINT_LANES = 4, DCOMMI_FINGERPRINT_ROUND = 8 * DCOMMI_FINGERPRINT_LANES };

/* Mix the words of a round into the lanes. dcommi_mix is one to one in each argument, so a round
 * that differs in one word changes its lane for good. */
static inline void dcommi_fingerprint_round(uint64_t *lanes, const unsigned char *from)
{
    uint64_t words[DCOMMI_FINGERPRINT_LANES];
    memcpy(words, from, sizeof words);
    for (int i = 0; i < DCOMMI_FINGERPRINT_LANES; i++) {
        lanes[i] = dcommi_mix(lanes[i], words[i]);
    }
}

/* Mix a tensor's name, length and bytes into a hash. */
static uint64_t dcommi_fingerprint_add(uint64_t hash, const dcomm_fingerprint_tensor *t)
{
    const unsigned char *from = t->data;
    unsigned char rest[DCOMMI_FINGERPRINT_ROUND] = {0};
    uint64_t lanes[DCOMMI_FINGERPRINT_LANES] = {0, 1, 2, 3};
    size_t at = 0;
    hash = dcommi_mix(dcommi_mix_text(hash, t->name != NULL ? t->name : ""), t->bytes);
    for (; t->bytes - at >= DCOMMI_FINGERPRINT_ROUND; at += DCOMMI_FINGERPRINT_ROUND) {
        dcommi_fingerprint_round(lanes, from + at);
    }
    if (at < t->bytes) {
        memcpy(rest, from + at, t->bytes - at);
        dcommi_fingerprint_round(lanes, rest);
    }
    for (int i = 0; i < DCOMMI_FINGERPRINT_LANES; i++) {
        hash = dcommi_mix(hash, lanes[i]);
    }
    return hash;
}

DCOMM_API uint64_t dcomm_fingerprint(const dcomm_fingerprint_tensor *tensors, size_t n)
{
    uint64_t hash = 1;
    for (size_t i = 0; tensors != NULL && i < n; i++) {
        hash = dcommi_fingerprint_add(hash, &tensors[i]);
    }
    return tensors != NULL ? hash : 0;
}

/* ---- ranks ---- */

/* A rank's message to the others. */
typedef struct dcommi_fingerprint_card {
    uint64_t n, hash; /* n: UINT64_MAX if its arguments are bad */
} dcommi_fingerprint_card;

static dcomm_status dcommi_fingerprint_check(const dcomm_fingerprint_tensor *tensors, size_t n)
{
    if (tensors == NULL && n > 0) {
        return dcommi_fail(DCOMM_ERR_INVALID, "dcomm_fingerprint_compare: tensors is NULL");
    }
    for (size_t i = 0; i < n; i++) {
        if (tensors[i].data == NULL && tensors[i].bytes > 0) {
            return dcommi_fail(DCOMM_ERR_INVALID,
                               "dcomm_fingerprint_compare: tensor %zu has %zu bytes, and its data "
                               "is NULL",
                               i, tensors[i].bytes);
        }
    }
    return DCOMM_OK;
}

/* Exchange the cards. *differ_p: the hashes differ. */
static dcomm_status dcommi_fingerprint_meet(dcomm_comm *comm, dcomm_status mine,
                                            const dcomm_fingerprint_tensor *tensors, size_t n,
                                            bool *differ_p)
{
    const size_t size = (size_t)comm->size;
    dcommi_fingerprint_card *cards = dcommi_borrow(comm, size + 1, sizeof *cards);
    if (cards == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    cards[size] = (dcommi_fingerprint_card){mine < 0 ? UINT64_MAX : n,
                                            mine < 0 ? 0 : dcomm_fingerprint(tensors, n)};
    dcomm_status status = dcomm_allgather(comm, &cards[size], cards, sizeof *cards, DCOMM_U8, NULL);
    *differ_p = false;
    for (int r = 0; r < comm->size && status >= 0; r++) {
        *differ_p = *differ_p || cards[r].hash != cards[0].hash;
        if (cards[r].n == UINT64_MAX) {
            status = mine < 0 ? mine
                              : dcommi_fail(DCOMM_ERR_INVALID,
                                            "dcomm_fingerprint_compare: an argument of rank %d is "
                                            "not valid",
                                            r);
        } else if (cards[r].n != cards[0].n && mine >= 0) {
            status = dcommi_fail(DCOMM_ERR_INVALID,
                                 "dcomm_fingerprint_compare: rank 0 has %" PRIu64
                                 " tensors, and rank %d has %" PRIu64,
                                 cards[0].n, r, cards[r].n);
        }
    }
    dcommi_give_back(comm, cards);
    return status;
}

/* Return the first rank whose hash i, of n of each rank, most ranks have. */
static int dcommi_fingerprint_usual(const uint64_t *all, int size, size_t n, size_t i)
{
    int best = 0, most = 0;
    for (int r = 0; r < size; r++) {
        int same = 0;
        for (int k = 0; k < size; k++) {
            same += all[(size_t)k * n + i] == all[(size_t)r * n + i];
        }
        if (same > most) {
            most = same;
            best = r;
        }
    }
    return best;
}

/* Find the first tensor that differs, among the n hashes of each rank. */
static void dcommi_fingerprint_find(const uint64_t *all, int size, size_t n,
                                    dcomm_fingerprint_difference *found)
{
    for (size_t i = 0; i < n; i++) {
        int r = 0;
        while (r < size && all[(size_t)r * n + i] == all[i]) {
            r++;
        }
        if (r == size) {
            continue;
        }
        const int usual = dcommi_fingerprint_usual(all, size, n, i);
        for (r = 0; all[(size_t)r * n + i] == all[(size_t)usual * n + i]; r++) {
        }
        *found = (dcomm_fingerprint_difference){.tensor = i, .rank = r, .usual = usual};
        return;
    }
}

/* Exchange the hashes of each tensor. */
static dcomm_status dcommi_fingerprint_look(dcomm_comm *comm,
                                            const dcomm_fingerprint_tensor *tensors, size_t n,
                                            dcomm_fingerprint_difference *found)
{
    uint64_t *all = dcommi_borrow(comm, (size_t)comm->size, dcommi_size_mul(n, sizeof *all));
    if (all == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < n; i++) {
        all[(size_t)comm->rank * n + i] = dcomm_fingerprint(&tensors[i], 1);
    }
    dcomm_status status = dcomm_allgather(comm, DCOMM_IN_PLACE, all, n, DCOMM_U64, NULL);
    if (status >= 0) {
        dcommi_fingerprint_find(all, comm->size, n, found);
    }
    dcommi_give_back(comm, all);
    return status;
}

DCOMM_API dcomm_status dcomm_fingerprint_compare(dcomm_comm *comm,
                                                 const dcomm_fingerprint_tensor *tensors, size_t n,
                                                 dcomm_fingerprint_difference *difference)
{
    DCOMMI_NEED(comm);
    dcomm_fingerprint_difference found = {.tensor = n, .rank = -1, .usual = -1};
    bool differ;
    dcomm_status status =
        dcommi_fingerprint_meet(comm, dcommi_fingerprint_check(tensors, n), tensors, n, &differ);
    if (status >= 0 && differ) {
        status = dcommi_fingerprint_look(comm, tensors, n, &found);
    }
    if (difference != NULL) {
        *difference = found;
    }
    if (status < 0 || found.rank < 0) {
        return status;
    }
    const char *name = tensors[found.tensor].name;
    return dcommi_fail(DCOMM_ERR_MISMATCH,
                       "dcomm_fingerprint_compare: rank %d differs from rank %d, first in tensor "
                       "%zu%s%.200s%s",
                       found.rank, found.usual, found.tensor, name != NULL ? ", \"" : "",
                       name != NULL ? name : "", name != NULL ? "\"" : "");
}

#endif
