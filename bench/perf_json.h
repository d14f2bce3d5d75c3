/* perf_json.h - write JSON: nested objects and arrays, and null for numbers that were not
 * measured. */
#ifndef PERF_JSON_H
#define PERF_JSON_H

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

typedef struct perf_json {
    FILE *file; /* NULL: everything below does nothing */
    bool first; /* the next value is the first of its object or array */
    int depth;
} perf_json;

static void perf_json_string(perf_json *j, const char *s)
{
    fputc('"', j->file);
    for (; *s != '\0'; s++) {
        unsigned char c = (unsigned char)*s;
        if (c == '"' || c == '\\') {
            fprintf(j->file, "\\%c", c);
        } else if (c < 0x20) {
            fprintf(j->file, "\\u%04x", c);
        } else {
            fputc(c, j->file);
        }
    }
    fputc('"', j->file);
}

/* Write the part before a value: a comma, the line break, and the key if there is one. */
static void perf_json_lead(perf_json *j, const char *key)
{
    if (!j->first) {
        fputc(',', j->file);
    }
    if (j->depth > 0 && j->depth <= 2) {
        fprintf(j->file, "\n%*s", 2 * j->depth, "");
    }
    j->first = false;
    if (key != NULL) {
        perf_json_string(j, key);
        fputc(':', j->file);
    }
}

/* Open an object ('{') or an array ('['). perf_json_close takes the matching bracket. */
static void perf_json_open(perf_json *j, const char *key, char bracket)
{
    if (j->file != NULL) {
        perf_json_lead(j, key);
        fputc(bracket, j->file);
        j->first = true;
        j->depth++;
    }
}

static void perf_json_close(perf_json *j, char bracket)
{
    if (j->file != NULL) {
        fputc(bracket, j->file);
        j->first = false;
        j->depth--;
    }
}

static void perf_json_text(perf_json *j, const char *key, const char *value)
{
    if (j->file != NULL) {
        perf_json_lead(j, key);
        perf_json_string(j, value);
    }
}

static void perf_json_int(perf_json *j, const char *key, int64_t value)
{
    if (j->file != NULL) {
        perf_json_lead(j, key);
        fprintf(j->file, "%" PRId64, value);
    }
}

static void perf_json_bool(perf_json *j, const char *key, bool value)
{
    if (j->file != NULL) {
        perf_json_lead(j, key);
        fputs(value ? "true" : "false", j->file);
    }
}

/* Write a number. NaN, which means "not measured", and infinities become null. */
static void perf_json_number(perf_json *j, const char *key, double value)
{
    if (j->file != NULL) {
        perf_json_lead(j, key);
        if (isfinite(value)) {
            fprintf(j->file, "%.9g", value);
        } else {
            fputs("null", j->file);
        }
    }
}

static void perf_json_null(perf_json *j, const char *key)
{
    perf_json_number(j, key, NAN);
}

#endif
