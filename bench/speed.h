/* speed.h - what codec-speed and dcomm-reduce share: medians and arguments. */
#ifndef SPEED_H
#define SPEED_H

#include "numbers.h"

#include <errno.h>
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

/* A number from least to most, with a suffix K, M or G. */
static bool speed_size(const char *text, size_t least, size_t most, size_t *value)
{
    bool good = numbers_size(text, least, most, value);
    if (!good) {
        fprintf(stderr, "%s: %s%s\n", program_invocation_short_name, text, numbers_wanted);
    }
    return good;
}

static bool speed_json(const char *path, FILE **file)
{
    *file = fopen(path, "w");
    if (*file == NULL) {
        fprintf(stderr, "%s: cannot write %s: %s\n", program_invocation_short_name, path,
                strerror(errno));
    }
    return *file != NULL;
}

/* 0: go on, 1: done (help), 2: usage error. */
static int speed_parsed(bool good, int at, int argc, char **argv)
{
    if (good && at < argc) {
        fprintf(stderr, "%s: what is %s?\n", program_invocation_short_name, argv[at]);
        good = false;
    }
    return good ? 0 : 2;
}

#endif
