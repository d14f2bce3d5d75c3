/* expect_seconds.h - a price in seconds, within one part in a hundred. */
#ifndef EXPECT_SECONDS_H
#define EXPECT_SECONDS_H

#include <criterion/criterion.h>
#include <math.h>

static inline void expect(double got, double wanted, const char *what)
{
    cr_assert(fabs(got - wanted) <= 0.01 * wanted, "%s: %g s, not %g s", what, got, wanted);
}

#endif
