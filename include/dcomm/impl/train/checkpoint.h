/* checkpoint.h - how often to write a checkpoint: Daly's interval, and his model of lost time. */
#ifndef DCOMMI_CHECKPOINT_H
#define DCOMMI_CHECKPOINT_H

#include "../../checkpoint.h"
#include "../base/util.h"
#include "../../../../kernels/root.h"

#include <math.h>

static bool dcommi_checkpoint_times(double write_s, double mtbf_s, double restart_s)
{
    return isfinite(write_s) && write_s >= 0 && isfinite(mtbf_s) && mtbf_s > 0 &&
           isfinite(restart_s) && restart_s >= 0;
}

DCOMM_API double dcomm_checkpoint_interval(double write_s, double mtbf_s, double restart_s)
{
    if (!dcommi_checkpoint_times(write_s, mtbf_s, restart_s)) {
        return NAN;
    }
    double share = write_s / mtbf_s / 2;
    if (share >= 1) {
        return mtbf_s;
    }
    /* sqrt(2 C M) is 2 M sqrt(share), which cannot overflow before the result does. */
    double root = dcommi_sqrt(share);
    return 2 * mtbf_s * root * (1 + root / 3 + share / 9) - write_s;
}

DCOMM_API double dcomm_checkpoint_overhead(double interval_s, double write_s, double mtbf_s,
                                           double restart_s)
{
    if (!dcommi_checkpoint_times(write_s, mtbf_s, restart_s) ||
        !(isfinite(interval_s) && interval_s > 0)) {
        return NAN;
    }
    double useful = interval_s / mtbf_s / expm1(interval_s / mtbf_s + write_s / mtbf_s);
    return 1 - useful * (1 + expm1(-restart_s / mtbf_s));
}

#endif
