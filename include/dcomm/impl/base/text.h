/* text.h - reads numbers and words strictly, and writes them alike in every locale. Every
 * environment variable, codec spec, file and command line is read with it. */
#ifndef DCOMMI_TEXT_H
#define DCOMMI_TEXT_H

#include <locale.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- locale ---- */

/* Give this thread the C locale, whose numbers have a decimal point. Return the locale before, for
 * dcommi_locale_leave. */
static inline locale_t dcommi_locale_enter(void)
{
    static locale_t c; /* glibc and musl hand out one constant object */
    locale_t known = __atomic_load_n(&c, __ATOMIC_RELAXED);
    if (known == (locale_t)0) {
        known = newlocale(LC_ALL_MASK, "C", (locale_t)0);
        __atomic_store_n(&c, known, __ATOMIC_RELAXED);
    }
    return uselocale(known);
}

static inline void dcommi_locale_leave(locale_t before)
{
    uselocale(before);
}

/* Do as vsnprintf does in the C locale. */
__attribute__((format(printf, 3, 0))) static inline int
dcommi_vsnprintf(char *text, size_t room, const char *format, va_list args)
{
    locale_t before = dcommi_locale_enter();
    int n = vsnprintf(text, room, format, args);
    dcommi_locale_leave(before);
    return n;
}

/* Do as snprintf does in the C locale. */
__attribute__((format(printf, 3, 4))) static inline int dcommi_snprintf(char *text, size_t room,
                                                                        const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = dcommi_vsnprintf(text, room, format, args);
    va_end(args);
    return n;
}

/* ---- numbers ---- */

static inline bool dcommi_text_digit(char c)
{
    return c >= '0' && c <= '9';
}

static inline char dcommi_text_lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

/* Return true if both words are equal, ignoring case. */
static inline bool dcommi_text_same(const char *a, const char *b)
{
    while (*a != '\0' && dcommi_text_lower(*a) == dcommi_text_lower(*b)) {
        a++;
        b++;
    }
    return dcommi_text_lower(*a) == dcommi_text_lower(*b);
}

/* Read a decimal number, such as "-1.5e3", at the start of `text`. Return the text after it, or
 * NULL if there is no number. */
static inline const char *dcommi_text_decimal(const char *text, double *value)
{
    const char *at = text + (*text == '-' || *text == '+');
    size_t digits = 0;
    for (bool point = false; dcommi_text_digit(*at) || (*at == '.' && !point); at++) {
        point = point || *at == '.';
        digits += *at != '.';
    }
    if (digits == 0) {
        return NULL;
    }
    if (*at == 'e' || *at == 'E') {
        const char *exponent = at + 1 + (at[1] == '-' || at[1] == '+');
        while (dcommi_text_digit(*exponent)) {
            at = ++exponent;
        }
    }
    /* Some C libraries lack strtod_l. */
    locale_t before = dcommi_locale_enter();
    *value = strtod(text, NULL);
    dcommi_locale_leave(before);
    return at;
}

/* Read a number from `least` to `most`. Return false, and leave *value, unless that is all of the
 * text. */
static inline bool dcommi_text_number(const char *text, double least, double most, double *value)
{
    double number = 0;
    const char *end = dcommi_text_decimal(text, &number);
    bool good = end != NULL && *end == '\0' && number >= least && number <= most;
    *value = good ? number : *value;
    return good;
}

/* Read digits at the start of `text`. Return the text after them, or NULL if there are none or too
 * many. */
static inline const char *dcommi_text_digits(const char *text, uint64_t *value)
{
    uint64_t n = 0;
    const char *at = text;
    for (; dcommi_text_digit(*at); at++) {
        if (__builtin_mul_overflow(n, 10, &n) || __builtin_add_overflow(n, *at - '0', &n)) {
            return NULL;
        }
    }
    *value = n;
    return at != text ? at : NULL;
}

/* Read an integer from `least` to `most`. Return false, and leave *value, unless that is all of
 * the text. */
static inline bool dcommi_text_integer(const char *text, int64_t least, int64_t most,
                                       int64_t *value)
{
    uint64_t n = 0;
    bool minus = *text == '-';
    const char *end = dcommi_text_digits(text + (minus || *text == '+'), &n);
    if (end == NULL || *end != '\0' || n > INT64_MAX) {
        return false;
    }
    int64_t number = minus ? -(int64_t)n : (int64_t)n;
    bool good = number >= least && number <= most;
    *value = good ? number : *value;
    return good;
}

/* Read a size from `least` to `most` bytes. K, M, G and T, in either case, are powers of 1024. */
static inline bool dcommi_text_size(const char *text, uint64_t least, uint64_t most,
                                    uint64_t *value)
{
    static const char units[] = "kmgt";
    uint64_t n = 0;
    const char *end = dcommi_text_digits(text, &n);
    if (end == NULL) {
        return false;
    }
    const char *unit = *end != '\0' ? strchr(units, dcommi_text_lower(*end)) : NULL;
    unsigned shift = unit != NULL ? 10 * (unsigned)(unit - units + 1) : 0;
    end += unit != NULL;
    bool good =
        *end == '\0' && n <= UINT64_MAX >> shift && n << shift >= least && n << shift <= most;
    *value = good ? n << shift : *value;
    return good;
}

/* Read a time from `least` to `most` seconds: "30", "30s", "500ms", "5m", "2h". */
static inline bool dcommi_text_seconds(const char *text, double least, double most, double *value)
{
    static const struct {
        const char *name;
        double seconds;
    } units[] = {{"", 1},   {"s", 1},    {"ms", 1e-3}, {"us", 1e-6},
                 {"m", 60}, {"min", 60}, {"h", 3600}};
    double number = 0;
    const char *end = dcommi_text_decimal(text, &number);
    for (size_t i = 0; end != NULL && i < sizeof units / sizeof units[0]; i++) {
        if (dcommi_text_same(end, units[i].name)) {
            number *= units[i].seconds;
            bool good = number >= least && number <= most;
            *value = good ? number : *value;
            return good;
        }
    }
    return false;
}

/* ---- words ---- */

/* Return the position of `word`, `len` bytes long, in `choices` ("a|b|c"), or -1. */
static inline int dcommi_text_choice(const char *choices, const char *word, size_t len)
{
    for (int i = 0;; i++) {
        size_t n = strcspn(choices, "|");
        if (n == len && memcmp(choices, word, len) == 0) {
            return i;
        }
        if (choices[n] == '\0') {
            return -1;
        }
        choices += n + 1;
    }
}

/* Read 1, true, yes or on, or 0, false, no or off, in any case. */
static inline bool dcommi_text_flag(const char *text, bool *value)
{
    static const char *const words[] = {"0", "1", "false", "true", "no", "yes", "off", "on"};
    for (int i = 0; i < 8; i++) {
        if (dcommi_text_same(text, words[i])) {
            *value = i % 2 == 1;
            return true;
        }
    }
    return false;
}

/* Write the numbers below `n` for which `has` returns true, as ranges with `comma` between them:
 * "0-3, 8". End with "..." where `text` is full. Return how many such numbers there are. */
static inline size_t dcommi_text_ranges(char *text, size_t room, const char *comma, size_t n,
                                        bool (*has)(const void *user, size_t i), const void *user)
{
    size_t at = 0, found = 0;
    bool full = false;
    text[0] = '\0';
    for (size_t i = 0, end; i < n; i = end + 1) {
        for (end = i; end < n && has(user, end); end++) {
        }
        found += end - i;
        if (end == i || full) {
            continue;
        }
        char range[48];
        int len = end == i + 1 ? snprintf(range, sizeof range, "%zu", i)
                               : snprintf(range, sizeof range, "%zu-%zu", i, end - 1);
        full = at + (size_t)len + 2 * strlen(comma) + 4 > room;
        at += (size_t)snprintf(text + at, room - at, "%s%s", at > 0 ? comma : "",
                               full ? "..." : range);
    }
    return found;
}

/* Return how many letters must be added, removed or replaced to turn `a` into `b`, ignoring case.
 * Return 33 if either is longer than 32 bytes. */
static inline int dcommi_text_distance(const char *a, const char *b)
{
    int row[33];
    size_t na = strnlen(a, 33), nb = strnlen(b, 33);
    if (na > 32 || nb > 32) {
        return 33;
    }
    for (size_t j = 0; j <= nb; j++) {
        row[j] = (int)j;
    }
    for (size_t i = 1; i <= na; i++) {
        int corner = row[0];
        row[0] = (int)i;
        for (size_t j = 1; j <= nb; j++) {
            int replaced = corner + (dcommi_text_lower(a[i - 1]) != dcommi_text_lower(b[j - 1]));
            int other = 1 + (row[j] < row[j - 1] ? row[j] : row[j - 1]);
            corner = row[j];
            row[j] = replaced < other ? replaced : other;
        }
    }
    return row[nb];
}

#endif
