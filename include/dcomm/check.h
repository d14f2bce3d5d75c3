/* check.h - the checker of plans. A program that defines DCOMM_NO_CHECK leaves it out. */
#ifndef DCOMM_CHECK_H
#define DCOMM_CHECK_H

#include "plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Findings and totals of the checker for one set of plans. */
typedef struct dcomm_check_report {
    char message[512];      /* why the plans were refused; "": they are right */
    int64_t messages;       /* point-to-point messages, signals not counted */
    int64_t signals;        /* SIGNAL and EXPOSE between ranks, counted for each rank addressed */
    int64_t max_rank_bytes; /* most payload bytes that any one rank sends (or reads from peers) */
    int64_t total_bytes;    /* payload bytes of all ranks */
    int64_t steps;          /* longest chain of dependent messages: the alpha term */
} dcomm_check_report;

/* Prove that a set of plans is safe and right. plans[r] is the plan of rank r. The checker proves:
 * - Every send meets its receive, and the lengths fit.
 * - No step reads bytes that are not there yet. No two unordered steps touch the same bytes if one
 *   of them writes. Every operand lies inside its space.
 * - Nothing deadlocks, even if no message is buffered.
 * - Each output element holds each contribution that `spec` asks for exactly once.
 *
 * The checker takes at most 64 ranks. It unrolls loops. Lengths that are known only at run time
 * are tried at 0, 1, the maximum and random values. report may be NULL.
 * Errors: DCOMM_ERR_PLAN (the plans are refused; report->message and dcomm_last_error have the
 * reason), DCOMM_ERR_INVALID (NULL, a bad spec, bad nranks), DCOMM_ERR_NO_MEMORY. */
DCOMM_API dcomm_status dcomm_plan_check(const dcomm_plan *const *plans, int nranks,
                                        const dcomm_check_spec *spec, dcomm_check_report *report);

#ifdef __cplusplus
}
#endif
#endif
