/* share.h - divide work among ranks in proportion to their speeds.
 *
 * Each rank measures its own speed, such as the samples that it computes in a second. All ranks
 * exchange speeds (an all-gather of one number) and call dcomm_share, so all have the same division
 * without a further message:
 *
 *     dcomm_allgather(comm, &speed, speeds, 1, DCOMM_F64, NULL);
 *     dcomm_share(batch, speeds, NULL, n, counts);             counts[r] samples for rank r
 *
 * docs/training-rules.md says when a trainer should do so. */
#ifndef DCOMM_SHARE_H
#define DCOMM_SHARE_H

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Divide `total` items among n ranks: out[i] are rank i's, and all out[] together are `total`.
 *
 * Rank i's quota is total * speeds[i] / (sum of speeds). If it is caps[i] or more, the rank gets
 * caps[i], and the rest is divided among the others in the same way. The others get their quota
 * without its fraction. Items that are left go one each to the largest fractions; if fractions are
 * equal, to the lower rank. So without caps, out[i] differs from the quota by less than 1.
 *
 * Units of speed do not matter. A rank of speed 0 gets nothing. caps may be NULL: no limits. The
 * function is pure: equal arguments give equal results, on every rank and machine. It takes up to
 * n * n steps. Quotas are doubles, so fractions that differ by rounding alone count as different.
 * Errors: DCOMM_ERR_INVALID (NULL; n is 0; total is above 2^53; a speed is negative or not finite;
 * all speeds are 0; the caps of the ranks that have a speed are together below total). out[] is
 * unchanged then. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_share(size_t total, const double *speeds,
                                                 const size_t *caps, size_t n, size_t *out);

#ifdef __cplusplus
}
#endif
#endif
