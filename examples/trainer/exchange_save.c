/* exchange_save.c - save what the exchange keeps from step to step (error feedback, the loss
 * scale), and load it again, also on another number of ranks. */
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

/* The rest of a rank's state. */
typedef struct rest {
    const char *at;
    size_t bytes;
} rest;

/* Take a part's bytes from a state. */
static dcomm_status take_part(rest *from, const char **part, size_t *bytes)
{
    uint64_t length = 0;
    if (from->bytes >= sizeof length) {
        memcpy(&length, from->at, sizeof length);
    }
    if (from->bytes < sizeof length || from->bytes - sizeof length < length) {
        return DCOMM_ERR_INVALID;
    }
    *part = from->at + sizeof length;
    *bytes = length;
    from->at += sizeof length + length;
    from->bytes -= sizeof length + length;
    return DCOMM_OK;
}

/* Load a part's feedback from the states of all n old ranks. */
static dcomm_status load_part(exchange_part *part, rest *states, int n, int rank, int nranks)
{
    dcomm_feedback **old = calloc((size_t)n, sizeof *old), *loaded = NULL;
    dcomm_status status = old != NULL ? DCOMM_OK : DCOMM_ERR_NO_MEMORY;
    for (int r = 0; r < n && status >= 0; r++) {
        const char *from;
        size_t bytes;
        status = take_part(&states[r], &from, &bytes);
        if (status >= 0 && (n != nranks || r == rank)) { /* else that rank loads it */
            status = dcomm_feedback_load(part->codec, from, bytes, &old[r]);
        }
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
    rest *left = calloc((size_t)n, sizeof *left);
    dcomm_status status = left != NULL ? DCOMM_OK : DCOMM_ERR_NO_MEMORY;
    for (int r = 0; r < n && left != NULL; r++) {
        left[r] = (rest){states[r], bytes[r]};
    }
    for (size_t i = 0; i < e->nparts && e->parts[i].feedback != NULL && status >= 0; i++) {
        status =
            load_part(&e->parts[i], left, n, dcomm_comm_rank(e->comm), dcomm_comm_size(e->comm));
    }
    for (int r = 0; r < n && status >= 0; r++) { /* all of it has been used */
        status = left[r].bytes == 0 ? DCOMM_OK : DCOMM_ERR_INVALID;
    }
    free(left);
    return status;
}
