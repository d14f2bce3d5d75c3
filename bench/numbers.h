/* numbers.h - numbers on a command line: read as the library reads them, and refused with their
 * range. */
#ifndef BENCH_NUMBERS_H
#define BENCH_NUMBERS_H

#include "../include/dcomm/impl/text.h"

/* What the last number that was refused had to be, for the sentence about it; "": none was. */
static char numbers_wanted[120];

/* "64K" is 65536. */
static inline bool numbers_size(const char *text, uint64_t least, uint64_t most, size_t *value)
{
    uint64_t n = 0;
    bool good = dcommi_text_size(text, least, most, &n);
    if (good) {
        *value = (size_t)n;
    } else {
        snprintf(numbers_wanted, sizeof numbers_wanted,
                 "; it must be a whole number from %llu to %llu%s", (unsigned long long)least,
                 (unsigned long long)most, most >= 65536 ? ", such as 65536 or 64K" : "");
    }
    return good;
}

static inline bool numbers_int(const char *text, int least, int most, int *value)
{
    int64_t n = 0;
    bool good = dcommi_text_integer(text, least, most, &n);
    if (good) {
        *value = (int)n;
    } else {
        snprintf(numbers_wanted, sizeof numbers_wanted, "; it must be a whole number from %d to %d",
                 least, most);
    }
    return good;
}

static inline bool numbers_real(const char *text, double least, double most, double *value)
{
    bool good = dcommi_text_number(text, least, most, value);
    if (!good) {
        snprintf(numbers_wanted, sizeof numbers_wanted, "; it must be a number from %g to %g",
                 least, most);
    }
    return good;
}

#endif
