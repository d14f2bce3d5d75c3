/* api_save.h - a parameter server between runs: its servers are saved, and loaded by the same or
 * another number of servers. */
#ifndef DCOMMI_API_PS_SAVE_H
#define DCOMMI_API_PS_SAVE_H

#include "api_life.h"
#include "image.h"

/* ---- save ---- */

DCOMM_API size_t dcomm_ps_save_bytes(const dcomm_ps *ps)
{
    return ps != NULL && ps->server >= 0 ? dcommi_ps_image_bytes(ps, ps->server, ps->nservers) : 0;
}

/* Write the image if it has all that a pull of this rank would have. Return true if it has. */
static bool dcommi_ps_save_now(dcomm_ps *ps, unsigned char *to)
{
    dcommi_token_take(ps->comm->context);
    const dcommi_ps_clock_of *own = &ps->clock.of[ps->rank];
    const bool has =
        !own->works || (own->clock >= ps->clock_ended && dcommi_ps_may_pull(&ps->clock, ps->rank));
    if (has) {
        dcommi_ps_image_write(ps, to);
    }
    dcommi_token_release(ps->comm->context);
    return has;
}

DCOMM_API dcomm_status dcomm_ps_save(dcomm_ps *ps, void *to, size_t capacity)
{
    DCOMMI_TRY(dcommi_ps_check_call("dcomm_ps_save", ps));
    const size_t bytes = dcomm_ps_save_bytes(ps);
    if (capacity < bytes || (to == NULL && bytes > 0)) {
        return dcommi_fail(DCOMM_ERR_INVALID,
                           "dcomm_ps_save: %s; it takes %zu bytes, and capacity is %zu",
                           to == NULL ? "to is NULL" : "there is no room", bytes, capacity);
    }
    const double until = dcommi_now() + ps->opts.timeout_s;
    while (bytes > 0 && !dcommi_ps_save_now(ps, to)) {
        if (dcommi_now() >= until) {
            return dcommi_fail(DCOMM_ERR_TIMEOUT,
                               "dcomm_ps_save: rank %d has waited %.3g s for the other workers to "
                               "end clock %" PRIu64,
                               ps->rank, ps->opts.timeout_s, ps->clock_ended);
        }
        dcommi_progress_or_yield(ps->comm->context);
    }
    if (bytes > 0) {
        dcommi_ps_image_seal(to, bytes);
    }
    return DCOMM_OK;
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
        if (images[k] == NULL) {
            return dcommi_fail(DCOMM_ERR_INVALID,
                               "dcomm_ps_load: images[%zu] is NULL, and rank %d holds rows of it",
                               k, ps->rank);
        }
        DCOMMI_TRY(dcommi_ps_image_check(ps, images[k], bytes[k], k, n, &head));
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
    const bool fresh = ps->clock_ended == 0 && ps->stats.pushes == 0 && ps->stats.pulls == 0;
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
static void dcommi_ps_load_now(dcomm_ps *ps, const void *const *images, size_t n, uint64_t clock)
{
    ps->clock_ended = clock;
    for (size_t k = 0; k < n && ps->server >= 0; k++) {
        if (dcommi_ps_image_needed(ps, k, n)) {
            dcommi_ps_image_take(ps, images[k], k, n);
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
    dcommi_ps_load_now(ps, images, nimages, least[0]);
    if (ps->twin != NULL) {
        dcommi_ps_load_now(ps->twin, images, nimages, least[0]);
    }
    dcommi_token_release(ps->comm->context);
    return dcomm_barrier(ps->comm, NULL); /* nobody pushes before all have loaded */
}

#endif
