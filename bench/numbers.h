/* numbers.h - parse numbers and words of a command line as the library parses them. An error
 * message names the allowed range. */
#ifndef BENCH_NUMBERS_H
#define BENCH_NUMBERS_H

#include "../include/dcomm/impl/base/text.h"

/* The values that were allowed in place of the last refused one; "": unknown. */
static char numbers_wanted[1000];

/* Refuse a value, and remember in numbers_wanted what it had to be. */
static inline bool numbers_want(const char *wanted)
{
    snprintf(numbers_wanted, sizeof numbers_wanted, "%s", wanted);
    return false;
}

/* Parse a size: "64K" is 65536. */
static inline bool numbers_size(const char *text, uint64_t least, uint64_t most, size_t *value)
{
    uint64_t n = 0;
    bool good = dcommi_text_size(text, least, most, &n);
    if (good) {
        *value = (size_t)n;
    } else {
        snprintf(numbers_wanted, sizeof numbers_wanted,
                 "it must be a whole number from %llu to %llu%s", (unsigned long long)least,
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
        snprintf(numbers_wanted, sizeof numbers_wanted, "it must be a whole number from %d to %d",
                 least, most);
    }
    return good;
}

static inline bool numbers_real(const char *text, double least, double most, double *value)
{
    bool good = dcommi_text_number(text, least, most, value);
    if (!good) {
        snprintf(numbers_wanted, sizeof numbers_wanted, "it must be a number from %g to %g", least,
                 most);
    }
    return good;
}

/* Return the index of the word that equals the first `length` bytes of text; -1: none does. */
static inline int numbers_word_at(const char *text, size_t length, const char *const *words, int n)
{
    for (int i = 0; i < n; i++) {
        if (strlen(words[i]) == length && strncmp(words[i], text, length) == 0) {
            return i;
        }
    }
    int used = snprintf(numbers_wanted, sizeof numbers_wanted, "'%.*s' is none of",
                        length < 200 ? (int)length : 200, text);
    for (int i = 0; i < n && used < (int)sizeof numbers_wanted; i++) {
        used += snprintf(numbers_wanted + used, sizeof numbers_wanted - (size_t)used, "%s %s",
                         i > 0 ? "," : "", words[i]);
    }
    return -1;
}

static inline bool numbers_word(const char *text, const char *const *words, int n, int *which)
{
    int found = numbers_word_at(text, strlen(text), words, n);
    *which = found >= 0 ? found : *which;
    return found >= 0;
}

/* Mark each name of a comma list in `wanted`, which may be NULL. Return false if a name is
 * unknown. */
static inline bool numbers_words(const char *list, const char *const *words, int n, bool *wanted)
{
    for (const char *at = list;; at++) {
        size_t length = strcspn(at, ",");
        int found = numbers_word_at(at, length, words, n);
        if (found < 0) {
            return false;
        }
        if (wanted != NULL) {
            wanted[found] = true;
        }
        at += length;
        if (*at == '\0') {
            return true;
        }
    }
}

#endif
