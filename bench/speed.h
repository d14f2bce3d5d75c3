/* speed.h - medians, for codec-speed and dcomm-reduce. */
#ifndef SPEED_H
#define SPEED_H

#include "tool.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int speed_by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double speed_median(double *t, size_t n)
{
    qsort(t, n, sizeof *t, speed_by_value);
    return t[n / 2];
}

#endif
