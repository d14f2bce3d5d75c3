/* requests.h - wait for and test the requests of non-blocking calls; and groups, whose calls begin
 * together at their end. */
#ifndef DCOMMI_REQUESTS_H
#define DCOMMI_REQUESTS_H

#include "call.h"

/* ---- requests ---- */

DCOMM_API dcomm_status dcomm_wait(dcomm_request **request_p)
{
    DCOMMI_NEED(request_p);
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

/* Wait for an operation whose error, if there is one, is reported elsewhere. */
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
    DCOMMI_NEED(request_p);
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

/* ---- several requests ---- */

static dcomm_status dcommi_check_requests(dcomm_request *const *requests, size_t n)
{
    return requests == NULL && n > 0
               ? dcommi_fail(DCOMM_ERR_INVALID, "requests is NULL and n is %zu", n)
               : dcommi_check_fork();
}

static inline bool dcommi_request_complete(const dcomm_request *request)
{
    return !request->run.queued &&
           atomic_load_explicit(&request->run.status, memory_order_acquire) != DCOMM_IN_PROGRESS;
}

/* Return the index of the first complete request, or n. *pending_p: a request is under way;
 * *queued_p: a request waits in a group. */
static size_t dcommi_requests_find(dcomm_request *const *requests, size_t n, bool *pending_p,
                                   bool *queued_p)
{
    *pending_p = *queued_p = false;
    for (size_t i = 0; i < n; i++) {
        if (requests[i] == NULL) {
            continue;
        }
        if (dcommi_request_complete(requests[i])) {
            return i;
        }
        *queued_p = *queued_p || requests[i]->run.queued;
        *pending_p = *pending_p || !requests[i]->run.queued;
    }
    return n;
}

/* Progress the contexts of the requests that are under way. */
static void dcommi_requests_progress(dcomm_request *const *requests, size_t n)
{
    const dcomm_context *last = NULL;
    for (size_t i = 0; i < n; i++) {
        if (requests[i] != NULL && !requests[i]->run.queued &&
            !dcommi_request_complete(requests[i]) && requests[i]->run.comm->context != last) {
            dcommi_progress_or_yield(requests[i]->run.comm->context);
            last = requests[i]->run.comm->context;
        }
    }
}

/* Wait until a request is complete. *index_p becomes its index, or n if all are NULL. */
static dcomm_status dcommi_requests_await(dcomm_request *const *requests, size_t n, size_t *index_p)
{
    bool pending, queued;
    while ((*index_p = dcommi_requests_find(requests, n, &pending, &queued)) == n && pending) {
        dcommi_requests_progress(requests, n);
    }
    return *index_p == n && queued
               ? dcommi_fail(DCOMM_ERR_INVALID, "the operations are still queued in a group; call "
                                                "dcomm_group_end before waiting for one")
               : DCOMM_OK;
}

DCOMM_API dcomm_status dcomm_wait_any(dcomm_request **requests, size_t n, size_t *index_p)
{
    DCOMMI_TRY(dcommi_check_requests(requests, n));
    DCOMMI_NEED(index_p);
    DCOMMI_TRY(dcommi_requests_await(requests, n, index_p));
    return *index_p < n ? dcomm_wait(&requests[*index_p]) : DCOMM_OK;
}

DCOMM_API dcomm_status dcomm_wait_some(dcomm_request **requests, size_t n, size_t *indices,
                                       size_t *count_p)
{
    dcomm_status first = DCOMM_OK;
    char message[DCOMMI_MESSAGE_MAX];
    size_t at;
    DCOMMI_TRY(dcommi_check_requests(requests, n));
    DCOMMI_NEED(count_p);
    *count_p = 0;
    DCOMMI_TRY(dcommi_requests_await(requests, n, &at));
    for (; at < n; at++) {
        if (requests[at] == NULL || !dcommi_request_complete(requests[at])) {
            continue;
        }
        dcomm_status status = dcomm_wait(&requests[at]);
        if (status < 0 && first == DCOMM_OK) {
            first = status;
            memcpy(message, dcommi_message, sizeof message);
        }
        if (indices != NULL) {
            indices[*count_p] = at;
        }
        ++*count_p;
    }
    return first < 0 ? dcommi_fail(first, "%s", message) : DCOMM_OK;
}

DCOMM_API dcomm_status dcomm_test_any(dcomm_request **requests, size_t n, size_t *index_p)
{
    bool pending, queued;
    DCOMMI_TRY(dcommi_check_requests(requests, n));
    DCOMMI_NEED(index_p);
    *index_p = dcommi_requests_find(requests, n, &pending, &queued);
    if (*index_p == n && pending) {
        dcommi_requests_progress(requests, n);
        *index_p = dcommi_requests_find(requests, n, &pending, &queued);
    }
    if (*index_p < n) {
        return dcomm_wait(&requests[*index_p]);
    }
    return pending || queued ? DCOMM_IN_PROGRESS : DCOMM_OK;
}

DCOMM_API dcomm_status dcomm_test_all(dcomm_request **requests, size_t n)
{
    DCOMMI_TRY(dcommi_check_requests(requests, n));
    for (int look = 0; look < 2; look++) {
        size_t i = 0;
        while (i < n && (requests[i] == NULL || dcommi_request_complete(requests[i]))) {
            i++;
        }
        if (i == n) {
            return dcomm_wait_all(requests, n);
        }
        if (look == 0) {
            dcommi_requests_progress(requests, n);
        }
    }
    return DCOMM_IN_PROGRESS;
}

DCOMM_API dcomm_status dcomm_request_free(dcomm_request **request_p)
{
    if (request_p == NULL || *request_p == NULL) {
        return DCOMM_OK;
    }
    DCOMMI_TRY(dcommi_check_fork());
    dcommi_run *run = &(*request_p)->run;
    *request_p = NULL;
    dcommi_run_unref(run);
    return DCOMM_OK;
}

DCOMM_API dcomm_status dcomm_request_get_info(const dcomm_request *request,
                                              dcomm_request_info *info)
{
    DCOMMI_NEED(request);
    DCOMMI_NEED(info);
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

/* Tie the runs of a group to their streams by one half of their gates. */
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
    /* Mark all streams before holding any, so that no run waits for another by way of its
     * stream. */
    for (dcommi_run *run = first; run != NULL; run = run->next_group) {
        if (run->gate.stream != NULL) {
            dcommi_gate_room(run);
        }
    }
    status = dcommi_group_tie(first, dcommi_gate_mark, status);
    status = dcommi_group_tie(first, dcommi_gate_hold, status);
    /* Keep a reference to every run until the end: once started, a non-blocking run may end and be
     * waited for. */
    for (dcommi_run *run = first; run != NULL; run = run->next_group) {
        run->queued = false;
        atomic_fetch_add_explicit(&run->refs, 1, memory_order_relaxed);
        dcommi_submit(run->comm->context, run);
    }
    /* Progress all runs: the other side of a blocking run may first wait for a non-blocking one in
     * another context. */
    bool all_done = false;
    while (!all_done) {
        all_done = true;
        for (dcommi_run *run = first; run != NULL; run = run->next_group) {
            if (atomic_load_explicit(&run->status, memory_order_acquire) == DCOMM_IN_PROGRESS) {
                all_done = all_done && !dcommi_run_awaited(run);
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
