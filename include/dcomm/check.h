/* check.h - the checker of plans. A program that defines DCOMM_NO_CHECK leaves it out. */
#ifndef DCOMM_CHECK_H
#define DCOMM_CHECK_H

#include "plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Totals that the checker counted, for one set of plans. */
typedef struct dcomm_check_report {
    char message[512];      /* why the plans were refused; "" when they are right */
    int64_t messages;       /* point-to-point messages, signals not counted */
    int64_t signals;        /* signals and expositions between ranks */
    int64_t max_rank_bytes; /* most payload bytes one rank sends (or reads from peers) */
    int64_t total_bytes;    /* payload bytes of all ranks */
    int64_t steps;          /* longest chain of dependent messages: the alpha term */
} dcomm_check_report;

/* Prove that plans[0..nranks-1] together (plans[r] is rank r's) are safe and right: every send
 * meets its receive with a fitting length; nothing is read before it is there, no two unordered
 * steps touch the same bytes with a write among them, every operand lies inside its space; nothing
 * deadlocks even when no message is buffered; and each output element holds each contribution that
 * `spec` asks for exactly once. Loops are unrolled, so meant for up to 64 ranks; run-time lengths
 * are tried at 0, 1, the maximum and random values. report may be NULL.
 * Errors: DCOMM_ERR_PLAN, with the reason in report->message and dcomm_last_error(). */
DCOMM_API dcomm_status dcomm_plan_check(const dcomm_plan *const *plans, int nranks,
                                        const dcomm_check_spec *spec, dcomm_check_report *report);

#ifdef __cplusplus
}
#endif
#endif
