/* requests.h - what comes after a call that does not block: waiting, asking; and groups, whose
 * calls begin together at their end. */
#ifndef DCOMMI_REQUESTS_H
#define DCOMMI_REQUESTS_H

#include "call.h"

/* ---- requests ---- */

DCOMM_API dcomm_status dcomm_wait(dcomm_request **request_p)
{
    if (request_p == NULL) {
        return dcommi_fail(DCOMM_ERR_INVALID, "request_p is NULL");
    }
    if (*request_p == NULL) {
        return DCOMM_OK;
    }
    DCOMMI_TRY(dcommi_check_fork());
    if ((*request_p)->run.queued) {
        return dcommi_fail(DCOMM_ERR_INVALID, "the operation is still queued in a group; call "
                                              "dcomm_group_end before waiting for it");
    }
    dcommi_run *run = &(*request_p)->run;
    *request_p = NULL;
    return dcommi_run_wait(run);
}

/* Wait for an operation whose error, if there is one, is told elsewhere. */
static inline void dcommi_drain(dcomm_request **request_p)
{
    dcomm_status told = dcomm_wait(request_p);
    (void)told;
}

DCOMM_API dcomm_status dcomm_wait_all(dcomm_request **requests, size_t n)
{
    if (requests == NULL && n > 0) {
        return dcommi_fail(DCOMM_ERR_INVALID, "requests is NULL and n is %zu", n);
    }
    dcomm_status first = DCOMM_OK;
    char message[DCOMMI_MESSAGE_MAX];
    for (size_t i = 0; i < n; i++) {
        dcomm_status status = dcomm_wait(&requests[i]);
        if (status < 0 && first == DCOMM_OK) {
            first = status;
            memcpy(message, dcommi_message, sizeof message);
        }
    }
    return first < 0 ? dcommi_fail(first, "%s", message) : DCOMM_OK;
}

DCOMM_API dcomm_status dcomm_test(dcomm_request **request_p)
{
    if (request_p == NULL) {
        return dcommi_fail(DCOMM_ERR_INVALID, "request_p is NULL");
    }
    if (*request_p == NULL) {
        return DCOMM_OK;
    }
    DCOMMI_TRY(dcommi_check_fork());
    dcommi_run *run = &(*request_p)->run;
    if (!run->queued &&
        atomic_load_explicit(&run->status, memory_order_acquire) == DCOMM_IN_PROGRESS) {
        dcomm_context_progress(run->comm->context);
    }
    if (run->queued ||
        atomic_load_explicit(&run->status, memory_order_acquire) == DCOMM_IN_PROGRESS) {
        return DCOMM_IN_PROGRESS;
    }
    return dcomm_wait(request_p);
}

DCOMM_API dcomm_status dcomm_request_query(const dcomm_request *request, dcomm_request_info *info)
{
    if (request == NULL || info == NULL) {
        return dcommi_fail(DCOMM_ERR_INVALID, "%s is NULL", request == NULL ? "request" : "info");
    }
    info->coll = (dcomm_coll)request->run.signature.coll;
    info->algo = request->run.signature.algo;
    info->sequence = request->run.seq;
    return DCOMM_OK;
}

/* ---- groups ---- */

DCOMM_API dcomm_status dcomm_group_start(void)
{
    dcommi_this_group.depth++;
    return DCOMM_OK;
}

/* One half of the gates of a group's runs. */
static dcomm_status dcommi_group_tie(dcommi_run *first, dcomm_status (*half)(dcommi_run *),
                                     dcomm_status status)
{
    dcommi_group *group = &dcommi_this_group;
    for (dcommi_run *run = first; run != NULL; run = run->next_group) {
        dcomm_status one = run->gate.stream != NULL ? dcommi_run_tie(run, half) : DCOMM_OK;
        if (one < 0 && status == DCOMM_OK) {
            status = one;
            memcpy(group->message, dcommi_message, sizeof group->message);
        }
    }
    return status;
}

DCOMM_API dcomm_status dcomm_group_end(void)
{
    dcommi_group *group = &dcommi_this_group;
    if (group->depth == 0) {
        return dcommi_fail(DCOMM_ERR_INVALID, "dcomm_group_end without dcomm_group_start");
    }
    if (--group->depth > 0) {
        return DCOMM_OK;
    }
    DCOMMI_TRY(dcommi_check_fork());
    dcommi_run *first = group->first;
    dcomm_status status = group->status;
    group->first = group->last = NULL;
    group->status = DCOMM_OK;
    /* None of them must come after another by way of their streams. */
    status = dcommi_group_tie(first, dcommi_gate_mark, status);
    status = dcommi_group_tie(first, dcommi_gate_hold, status);
    /* Once started, a non-blocking run may end and be waited for: hold them all until the end. */
    for (dcommi_run *run = first; run != NULL; run = run->next_group) {
        run->queued = false;
        atomic_fetch_add_explicit(&run->refs, 1, memory_order_relaxed);
        dcommi_submit(run->comm->context, run);
    }
    /* The other side of a blocking run may wait for a non-blocking one in another context first. */
    bool all_done = false;
    while (!all_done) {
        all_done = true;
        for (dcommi_run *run = first; run != NULL; run = run->next_group) {
            if (atomic_load_explicit(&run->status, memory_order_acquire) == DCOMM_IN_PROGRESS) {
                all_done = all_done && (!run->blocking || run->gate.stream != NULL);
                dcommi_progress_or_yield(run->comm->context);
            }
        }
    }
    for (dcommi_run *run = first, *next; run != NULL; run = next) {
        next = run->next_group;
        dcomm_status one = DCOMM_OK;
        if (run->blocking && run->gate.stream != NULL) {
            dcommi_run_unref(run);
        } else if (run->blocking) {
            one = dcommi_run_wait(run);
        }
        dcommi_run_unref(run);
        if (one < 0 && status == DCOMM_OK) {
            status = one;
            memcpy(group->message, dcommi_message, sizeof group->message);
        }
    }
    return status < 0 ? dcommi_fail(status, "%s", group->message) : DCOMM_OK;
}

#endif
