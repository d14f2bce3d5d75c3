/* api_save.h - a parameter server between runs: its servers are saved, and loaded by the same or
 * another number of servers. */
#ifndef DCOMMI_API_PS_SAVE_H
#define DCOMMI_API_PS_SAVE_H

#include "api_life.h"
#include "image.h"

/* ---- save ---- */

/* Return the replica of rows that this server has taken over; NULL: it has none. */
static dcomm_ps *dcommi_ps_heir(const dcomm_ps *ps)
{
    return ps->twin != NULL && ps->to[ps->twin->server].lost ? ps->twin : NULL;
}

/* Return the bytes of this server's image, behind which the heir's stands. With the token. */
static size_t dcommi_ps_saved_bytes(const dcomm_ps *ps, const dcomm_ps *heir)
{
    return dcommi_ps_image_bytes(ps, ps->server, ps->nservers) +
           (heir != NULL ? dcommi_ps_image_bytes(heir, heir->server, heir->nservers) : 0);
}

DCOMM_API size_t dcomm_ps_save_bytes(const dcomm_ps *ps)
{
    if (ps == NULL || ps->server < 0) {
        return 0;
    }
    dcommi_token_take(ps->comm->context);
    const size_t bytes = dcommi_ps_saved_bytes(ps, dcommi_ps_heir(ps));
    dcommi_token_release(ps->comm->context);
    return bytes;
}

/* Return true if the rows have all that a pull of this rank would have. */
static bool dcommi_ps_settled(const dcomm_ps *ps)
{
    const dcommi_ps_to *own = &ps->to[ps->server];
    return !ps->clock.of[ps->rank].works ||
           (own->queue == NULL && ps->from[ps->rank].next == own->sent &&
            dcommi_ps_may_pull(&ps->clock, ps->rank));
}

/* Write the images if the rows are settled: DCOMM_IN_PROGRESS if not. *bytes_p: of the first. */
static dcomm_status dcommi_ps_save_now(dcomm_ps *ps, unsigned char *to, size_t capacity,
                                       size_t *bytes_p)
{
    dcomm_status status = DCOMM_IN_PROGRESS;
    dcommi_token_take(ps->comm->context);
    const dcomm_ps *heir = dcommi_ps_heir(ps);
    const size_t bytes = dcommi_ps_saved_bytes(ps, heir);
    if (capacity < bytes) {
        status = dcommi_fail(DCOMM_ERR_INVALID,
                             "dcomm_ps_save: there is no room; it takes %zu bytes, and capacity is "
                             "%zu",
                             bytes, capacity);
    } else if (dcommi_ps_settled(ps) && (heir == NULL || dcommi_ps_settled(heir))) {
        *bytes_p = dcommi_ps_saved_bytes(ps, NULL);
        dcommi_ps_image_write(ps, to);
        if (heir != NULL) {
            dcommi_ps_image_write(heir, to + *bytes_p);
            dcommi_ps_image_seal(to + *bytes_p, bytes - *bytes_p);
        }
        status = DCOMM_OK;
    }
    dcommi_token_release(ps->comm->context);
    return status;
}

DCOMM_API dcomm_status dcomm_ps_save(dcomm_ps *ps, void *to, size_t capacity)
{
    dcomm_status status = DCOMM_OK;
    size_t bytes = 0;
    DCOMMI_TRY(dcommi_ps_check_call("dcomm_ps_save", ps));
    if (ps->server < 0) {
        return DCOMM_OK;
    }
    DCOMMI_NEED(to);
    const double until = dcommi_now() + ps->opts.timeout_s;
    while ((status = dcommi_ps_save_now(ps, to, capacity, &bytes)) == DCOMM_IN_PROGRESS) {
        if (dcommi_now() >= until) {
            return dcommi_fail(DCOMM_ERR_TIMEOUT,
                               "dcomm_ps_save: rank %d has waited %.3g s for the other workers to "
                               "end clock %" PRIu64,
                               ps->rank, ps->opts.timeout_s, ps->at_clock);
        }
        dcommi_progress_or_yield(ps->comm->context);
    }
    if (status >= 0) {
        dcommi_ps_image_seal(to, bytes);
    }
    return status;
}

/* ---- load ---- */

/* Check the images that a server needs. least[0] becomes at most their lowest clock, least[1] at
 * most the complement of the highest. */
static dcomm_status dcommi_ps_load_check(const dcomm_ps *ps, const void *const *images,
                                         const size_t *bytes, size_t n, uint64_t *least)
{
    for (size_t k = 0; k < n; k++) {
        dcommi_ps_head head;
        if (!dcommi_ps_image_needed(ps, k, n)) {
            continue;
        }
        const dcommi_ps_image image = dcommi_ps_image_find(images, bytes, k, n);
        if (image.at == NULL) {
            return dcommi_fail(DCOMM_ERR_INVALID,
                               "dcomm_ps_load: images[%zu] is NULL, and rank %d holds rows of it",
                               k, ps->rank);
        }
        DCOMMI_TRY(dcommi_ps_image_check(ps, image.at, image.bytes, k, n, &head));
        least[0] = head.clock < least[0] ? head.clock : least[0];
        least[1] = ~head.clock < least[1] ? ~head.clock : least[1];
    }
    return DCOMM_OK;
}

/* Check a call, and all images that this rank needs. */
static dcomm_status dcommi_ps_load_check_all(const dcomm_ps *ps, const void *const *images,
                                             const size_t *bytes, size_t n, uint64_t *least)
{
    least[0] = least[1] = UINT64_MAX;
    if (images == NULL || bytes == NULL || n < 1 || n > INT32_MAX) {
        return dcommi_fail(DCOMM_ERR_INVALID,
                           "dcomm_ps_load: images or bytes is NULL, or nimages "
                           "is %zu",
                           n);
    }
    dcommi_token_take(ps->comm->context);
    const bool fresh = ps->steps == 0 && ps->stats.pushes == 0 && ps->stats.pulls == 0;
    dcommi_token_release(ps->comm->context);
    if (!fresh) {
        return dcommi_fail(DCOMM_ERR_INVALID,
                           "dcomm_ps_load: rank %d has pushed, pulled or ended a "
                           "clock",
                           ps->rank);
    }
    for (; ps != NULL && ps->server >= 0; ps = ps->shift == 0 ? ps->twin : NULL) {
        DCOMMI_TRY(dcommi_ps_load_check(ps, images, bytes, n, least));
    }
    return DCOMM_OK;
}

/* Find the clock at which all go on. */
static dcomm_status dcommi_ps_load_agree(dcomm_ps *ps, uint64_t *least)
{
    uint64_t *all = dcommi_borrow(ps->comm, 2, sizeof *all);
    if (all == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    memcpy(all, least, 2 * sizeof *all);
    const dcomm_status status =
        dcomm_allreduce(ps->comm, DCOMM_IN_PLACE, all, 2, DCOMM_U64, DCOMM_MIN, NULL);
    memcpy(least, all, 2 * sizeof *all);
    dcommi_give_back(ps->comm, all);
    return status < 0 || ps->opts.staleness != 0 || least[0] == ~least[1]
               ? status
               : dcommi_fail(DCOMM_ERR_MISMATCH,
                             "dcomm_ps_load: images are of clocks %" PRIu64 " to %" PRIu64,
                             least[0], ~least[1]);
}

/* Take checked images, and go on at a clock. With the token. */
static void dcommi_ps_load_now(dcomm_ps *ps, const void *const *images, const size_t *bytes,
                               size_t n, uint64_t clock)
{
    ps->steps = ps->at_clock = clock;
    for (size_t k = 0; k < n && ps->server >= 0; k++) {
        if (dcommi_ps_image_needed(ps, k, n)) {
            dcommi_ps_image_take(ps, dcommi_ps_image_find(images, bytes, k, n).at, k, n);
        }
    }
    for (int r = 0; r < ps->size && ps->server >= 0; r++) {
        ps->clock.of[r].clock = clock;
    }
    ps->clock.closed = clock;
}

DCOMM_API dcomm_status dcomm_ps_load(dcomm_ps *ps, const void *const *images, const size_t *bytes,
                                     size_t nimages)
{
    uint64_t least[2];
    DCOMMI_TRY(dcommi_ps_check_call("dcomm_ps_load", ps));
    dcomm_status status =
        dcommi_all_good(ps->comm, dcommi_ps_load_check_all(ps, images, bytes, nimages, least), 0);
    DCOMMI_THEN(status, dcommi_ps_load_agree(ps, least));
    if (status < 0) {
        return status;
    }
    dcommi_token_take(ps->comm->context);
    dcommi_ps_load_now(ps, images, bytes, nimages, least[0]);
    if (ps->twin != NULL) {
        dcommi_ps_load_now(ps->twin, images, bytes, nimages, least[0]);
    }
    dcommi_token_release(ps->comm->context);
    return dcomm_barrier(ps->comm, NULL); /* nobody pushes before all have loaded */
}

#endif
