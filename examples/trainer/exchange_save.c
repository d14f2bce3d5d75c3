/* exchange_save.c - save what the exchange keeps from step to step (error feedback, the loss scale),
 * and load it again, also on another number of ranks. */
#include "exchange.h"

#include <stdlib.h>
#include <string.h>

/* Without buckets a state is, for each part, a length and what dcomm_feedback_save wrote. */
size_t exchange_save_bytes(const exchange *e)
{
    if (e->buckets != NULL) {
        return dcomm_buckets_save_bytes(e->buckets);
    }
    size_t bytes = 0;
    for (size_t i = 0; i < e->nparts && e->parts[i].feedback != NULL; i++) {
        bytes += sizeof(uint64_t) + dcomm_feedback_save_bytes(e->parts[i].feedback);
    }
    return bytes;
}

dcomm_status exchange_save(exchange *e, char *to, size_t room)
{
    if (e->buckets != NULL) {
        return dcomm_buckets_save(e->buckets, to, room);
    }
    for (size_t i = 0; i < e->nparts && e->parts[i].feedback != NULL; i++) {
        uint64_t bytes = dcomm_feedback_save_bytes(e->parts[i].feedback);
        memcpy(to, &bytes, sizeof bytes);
        dcomm_status status = dcomm_feedback_save(e->parts[i].feedback, to + sizeof bytes, bytes);
        if (status < 0) {
            return status;
        }
        to += sizeof bytes + bytes;
    }
    return DCOMM_OK;
}

/* Load a part's feedback from the states of all old ranks. *at is where it begins in each state,
 * and is moved to where the next part begins. */
static dcomm_status load_part(exchange_part *part, const char **at, int n, int rank, int nranks)
{
    dcomm_feedback **old = calloc((size_t)n, sizeof *old), *loaded = NULL;
    dcomm_status status = old != NULL ? DCOMM_OK : DCOMM_ERR_NO_MEMORY;
    for (int r = 0; r < n && status >= 0; r++) {
        uint64_t bytes;
        memcpy(&bytes, at[r], sizeof bytes);
        at[r] += sizeof bytes;
        if (n != nranks || r == rank) { /* else it is another rank's, which loads it itself */
            status = dcomm_feedback_load(part->codec, at[r], bytes, &old[r]);
        }
        at[r] += bytes;
    }
    if (status >= 0 && n == nranks) {
        loaded = old[rank];
        old[rank] = NULL;
    } else if (status >= 0) {
        status = dcomm_feedback_reshard((const dcomm_feedback *const *)old, (size_t)n,
                                        (uint32_t)rank, (uint32_t)nranks, &loaded, NULL);
    }
    if (status >= 0) {
        dcomm_feedback_destroy(&part->feedback);
        part->feedback = loaded;
    }
    for (int r = 0; old != NULL && r < n; r++) {
        dcomm_feedback_destroy(&old[r]);
    }
    free(old);
    return status;
}

dcomm_status exchange_load(exchange *e, const char *const *states, const size_t *bytes, int n)
{
    if (e->buckets != NULL) {
        return dcomm_buckets_load(e->buckets, (const void *const *)states, bytes, (size_t)n);
    }
    const char **at = malloc((size_t)n * sizeof *at);
    dcomm_status status = at != NULL ? DCOMM_OK : DCOMM_ERR_NO_MEMORY;
    if (at != NULL) {
        memcpy(at, states, (size_t)n * sizeof *at);
    }
    for (size_t i = 0; i < e->nparts && e->parts[i].feedback != NULL && status >= 0; i++) {
        status = load_part(&e->parts[i], at, n, dcomm_comm_rank(e->comm), dcomm_comm_size(e->comm));
    }
    free(at);
    return status;
}
