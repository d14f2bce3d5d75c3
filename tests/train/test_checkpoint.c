/* test_checkpoint.c - the interval of checkpoints against the minimum of the lost time, which is
 * computed here from the course of a training and not from the formulas of the library. */
#define _GNU_SOURCE
#include "dcomm.h"

#include <criterion/criterion.h>
#include <math.h>

/* Return the expected time until `need` seconds pass without a failure, if failures come at rate
 * 1/mtbf and each is followed by `restart` seconds that must pass without a failure, too. It is
 * summed over the moments of the first failure:
 * E = P(none) need + integral of density(t) (t + E(restart) + E) over t < need. */
static double until_done(double need, double mtbf, double restart)
{
    enum { PIECES = 20000 };
    double recovery = restart > 0 ? until_done(restart, mtbf, 0) : 0;
    double none = exp(-need / mtbf), lost = 0, width = need / PIECES;
    for (int i = 0; i < PIECES; i++) {
        double t = (i + 0.5) * width;
        lost += exp(-t / mtbf) / mtbf * width * (t + recovery);
    }
    return (none * need + lost) / none;
}

/* Return the share of the time that is lost with checkpoints every t seconds. */
static double lost_share(double t, double write, double mtbf, double restart)
{
    return 1 - t / until_done(t + write, mtbf, restart);
}

/* Return the interval that loses the least time, by narrowing down the place of the minimum. */
static double best_interval(double write, double mtbf, double restart)
{
    const double golden = 0.6180339887498949;
    double low = 1e-4 * mtbf, high = 2 * mtbf;
    while (high - low > 1e-6 * mtbf) {
        double a = high - golden * (high - low), b = low + golden * (high - low);
        if (lost_share(a, write, mtbf, restart) < lost_share(b, write, mtbf, restart)) {
            high = b;
        } else {
            low = a;
        }
    }
    return (low + high) / 2;
}

Test(checkpoint, interval_is_the_best_one)
{
    static const struct {
        double write, within;
    } cases[] = {{0.001, 0.001}, {0.01, 0.001}, {0.1, 0.001}, {0.5, 0.01},
                 {1, 0.02},      {1.9, 0.07},   {2, 0.07},    {5, 0.07}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        double mtbf = 3600, write = cases[i].write * mtbf;
        double best = best_interval(write, mtbf, 60);
        double got = dcomm_checkpoint_interval(write, mtbf, 60);
        cr_expect(fabs(got / best - 1) < cases[i].within, "write %g: %g, but best is %g", write,
                  got, best);
        double least = lost_share(best, write, mtbf, 60), lost = lost_share(got, write, mtbf, 60);
        cr_expect(lost < least + 0.002, "write %g: %g is lost, at least %g", write, lost, least);
    }
}

Test(checkpoint, interval_does_not_depend_on_restarts)
{
    double best = best_interval(30, 3600, 0), slow = best_interval(30, 3600, 1800);
    cr_expect(fabs(best / slow - 1) < 1e-3, "%g and %g", best, slow);
    cr_expect(dcomm_checkpoint_interval(30, 3600, 0) == dcomm_checkpoint_interval(30, 3600, 1800));
}

Test(checkpoint, interval_approaches_youngs)
{
    double mtbf = 1e6;
    cr_expect(fabs(dcomm_checkpoint_interval(1e-3, mtbf, 0) / sqrt(2 * 1e-3 * mtbf) - 1) < 1e-4);
    double young = sqrt(2 * 1e4 * mtbf), tenth = sqrt(2 * 1e5 * mtbf);
    cr_expect(fabs(young / best_interval(1e4, mtbf, 0) - 1.05) < 0.005, "as the header says");
    cr_expect(fabs(tenth / best_interval(1e5, mtbf, 0) - 1.17) < 0.005, "as the header says");
}

Test(checkpoint, overhead_is_the_lost_share)
{
    static const double intervals[] = {1, 100, 1000, 10000}, writes[] = {0, 5, 500},
                        restarts[] = {0, 60, 4000};
    for (size_t i = 0; i < 4; i++) {
        for (size_t w = 0; w < 3; w++) {
            for (size_t r = 0; r < 3; r++) {
                double t = intervals[i], write = writes[w], restart = restarts[r];
                double lost = lost_share(t, write, 3600, restart);
                double got = dcomm_checkpoint_overhead(t, write, 3600, restart);
                cr_expect(fabs(got - lost) < 1e-5, "every %g, write %g, restart %g: %.9g, not %.9g",
                          t, write, restart, got, lost);
            }
        }
    }
    cr_expect(dcomm_checkpoint_overhead(1e9, 1, 1, 1) == 1, "no work is ever done");
}

Test(checkpoint, refuses_bad_times)
{
    static const double bad[] = {-1, NAN, INFINITY};
    for (size_t i = 0; i < 3; i++) {
        cr_expect(isnan(dcomm_checkpoint_interval(bad[i], 1, 1)));
        cr_expect(isnan(dcomm_checkpoint_interval(1, bad[i], 1)));
        cr_expect(isnan(dcomm_checkpoint_interval(1, 1, bad[i])));
        cr_expect(isnan(dcomm_checkpoint_overhead(bad[i], 1, 1, 1)));
        cr_expect(isnan(dcomm_checkpoint_overhead(1, bad[i], 1, 1)));
        cr_expect(isnan(dcomm_checkpoint_overhead(1, 1, bad[i], 1)));
        cr_expect(isnan(dcomm_checkpoint_overhead(1, 1, 1, bad[i])));
    }
    cr_expect(isnan(dcomm_checkpoint_interval(1, 0, 1)));
    cr_expect(isnan(dcomm_checkpoint_overhead(0, 1, 1, 1)));
    cr_expect(dcomm_checkpoint_interval(0, 1, 0) == 0, "what costs nothing is done all the time");
}
