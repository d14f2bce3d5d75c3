/* checkpoint.h - how often to write a checkpoint.
 *
 * More checkpoints cost more time for writing. Fewer cost more work that is done again after a
 * failure. The interval between is computed from three times, all in seconds:
 *
 *     write_s    a checkpoint holds the training up for so long. With an asynchronous writer this
 *                is the time of the copy, if the writer is done before the next checkpoint
 *     mtbf_s     mean time between failures of the whole job. With n machines it is that of one
 *                machine divided by n
 *     restart_s  from a failure until the training computes again
 *
 *     double every_s = dcomm_checkpoint_interval(2, 86400, 300);
 *     double lost = dcomm_checkpoint_overhead(every_s, 2, 86400, 300);
 *
 * Failures are taken to be independent, and as likely at any moment. */
#ifndef DCOMM_CHECKPOINT_H
#define DCOMM_CHECKPOINT_H

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Return the seconds of training between the end of one checkpoint and the beginning of the next
 * one that lose the least time. With C = write_s and M = mtbf_s this is Daly's higher-order form:
 *
 *     sqrt(2 C M) (1 + 1/3 sqrt(C / (2 M)) + 1/9 (C / (2 M))) - C    if C < 2 M
 *     M                                                              else
 *
 * Its first term is Young's form, sqrt(2 C M). That one holds if C is far below M: at C = M / 100
 * it is 5% too long, at M / 10 17%. Daly's is within 0.1% of the best interval up to C = M / 10,
 * within 1% up to M / 2, and within 7% for any C. If C comes near M, hardly any work gets done,
 * whatever the interval.
 * restart_s does not move the best interval, because a restart follows each failure in any case.
 * It is checked, and counts in dcomm_checkpoint_overhead.
 * Returns NaN if write_s or restart_s is negative or not finite, or mtbf_s is not above 0 or not
 * finite.
 * (J. W. Young, CACM 17, 1974; J. T. Daly, Future Generation Computer Systems 22, 2006.) */
DCOMM_API double dcomm_checkpoint_interval(double write_s, double mtbf_s, double restart_s);

/* Return the share of the time that is expected to be lost, 0 to 1, with checkpoints every
 * interval_s: the time for writing, for work that is done again, and for restarts. With t =
 * interval_s and R = restart_s it is 1 - t / (M e^(R/M) (e^((t+C)/M) - 1)), by Daly's complete
 * model: failures also come while a checkpoint is written and during a restart.
 * Returns NaN for what dcomm_checkpoint_interval refuses, and if interval_s is not above 0 or not
 * finite. */
DCOMM_API double dcomm_checkpoint_overhead(double interval_s, double write_s, double mtbf_s,
                                           double restart_s);

#ifdef __cplusplus
}
#endif
#endif
