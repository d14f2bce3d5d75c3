/* tuning_file.h - a tuning as text: "near.alpha_us = 0.25", curves as "bytes:microseconds" points.
 */
#ifndef DCOMMI_TUNING_FILE_H
#define DCOMMI_TUNING_FILE_H

#include "model.h"
#include "tuning_default.h"

#define DCOMMI_TUNING_LINE 1024

/* The places of trials in a tuning. In a file the name of a trial is its prefix and algorithm. */
static const struct {
    const char *prefix;
    size_t at;
} dcommi_trial_fields[] = {{"allreduce.", offsetof(dcomm_tuning, trial)},
                           {"allreduce_huge.", offsetof(dcomm_tuning, huge)},
                           {"allreduce_registered.", offsetof(dcomm_tuning, registered)}};
enum { DCOMMI_TRIAL_FIELDS = sizeof dcommi_trial_fields / sizeof dcommi_trial_fields[0] };

static const char *const dcommi_link_names[DCOMM_LINK_COUNT] = {"host",  "package", "numa",
                                                                "cache", "core",    "near"};

/* ---- one value ---- */

static void dcommi_tuning_write(FILE *file, char kind, const void *value)
{
    const dcomm_curve *c = value;
    if (kind == 'T') {
        fprintf(file, "%.6f", 1e-6 * (double)*(const int64_t *)value);
    } else if (kind == 'N') {
        fprintf(file, "%" PRId64, *(const int64_t *)value);
    }
    for (int64_t i = 0; kind == 'C' && i < c->n; i++) {
        fprintf(file, "%s%" PRId64 ":%.6f", i > 0 ? " " : "", c->bytes[i], 1e-6 * (double)c->ps[i]);
    }
    fputc('\n', file);
}

static bool dcommi_tuning_read(const char *text, char kind, void *value);

static bool dcommi_tuning_read_curve(const char *text, dcomm_curve *c)
{
    char copy[DCOMMI_TUNING_LINE], *save = NULL;
    memset(c, 0, sizeof *c);
    snprintf(copy, sizeof copy, "%s", text);
    for (char *at = strtok_r(copy, " \t", &save); at != NULL; at = strtok_r(NULL, " \t", &save)) {
        char *colon = strchr(at, ':');
        if (colon == NULL || c->n == DCOMM_CURVE_POINTS) {
            return false;
        }
        *colon = 0;
        if (!dcommi_tuning_read(at, 'N', &c->bytes[c->n]) ||
            !dcommi_tuning_read(colon + 1, 'T', &c->ps[c->n])) {
            return false;
        }
        c->n++;
    }
    return dcommi_curve_valid(c);
}

static bool dcommi_tuning_read(const char *text, char kind, void *value)
{
    double us = 0;
    int64_t *number = value;
    if (kind == 'C') {
        return dcommi_tuning_read_curve(text, value);
    }
    *number = 0;
    if (kind == 'N') {
        return dcommi_text_integer(text, 0, INT64_MAX, number);
    }
    bool good = dcommi_text_number(text, 0, 1e-6 * (double)DCOMMI_MODEL_MOST, &us);
    *number = good ? (int64_t)(us * 1e6 + 0.5) : 0;
    return good;
}

static void dcommi_tuning_write_all(FILE *file, const char *link, const dcommi_tuning_field *field,
                                    const void *of)
{
    for (; field->key != NULL; field++) {
        fprintf(file, "%s%s%s = ", link, link[0] != 0 ? "." : "", field->key);
        dcommi_tuning_write(file, field->kind, (const char *)of + field->at);
    }
}

/* Set the field named `key`. false: there is no such field, or the value is not valid. */
static bool dcommi_tuning_set(const dcommi_tuning_field *field, void *of, const char *key,
                              const char *value)
{
    while (field->key != NULL && strcmp(key, field->key) != 0) {
        field++;
    }
    return field->key != NULL && dcommi_tuning_read(value, field->kind, (char *)of + field->at);
}

/* ---- the file ---- */

DCOMM_API dcomm_status dcomm_tuning_save(const dcomm_tuning *tuning, const char *path)
{
    DCOMMI_NEED(tuning);
    DCOMMI_NEED(path);
    FILE *file = fopen(path, "we");
    if (file == NULL) {
        return dcommi_fail(DCOMM_ERR_SYSTEM, "cannot write %s: %s", path, strerror(errno));
    }
    locale_t before = dcommi_locale_enter();
    fprintf(file, "# dcomm tuning, read where DCOMM_TUNE_FILE names it; curves: bytes:us ...\n");
    fprintf(file, "source = %s\n", tuning->source);
    dcommi_tuning_write_all(file, "", dcommi_tuning_fields, tuning);
    for (int k = 0; k < DCOMM_LINK_COUNT; k++) {
        dcommi_tuning_write_all(file, dcommi_link_names[k], dcommi_link_fields, &tuning->link[k]);
    }
    for (int k = 0; k < DCOMMI_TRIAL_FIELDS; k++) {
        const void *at = (const char *)tuning + dcommi_trial_fields[k].at;
        const dcomm_trial *trial = at;
        for (int i = 0; i < DCOMM_TRIALS && trial[i].algo[0] != 0; i++) {
            fprintf(file, "%s%s = ", dcommi_trial_fields[k].prefix, trial[i].algo);
            dcommi_tuning_write(file, 'C', &trial[i].took);
        }
    }
    dcommi_locale_leave(before);
    bool bad = ferror(file) != 0;
    bad = fclose(file) != 0 || bad;
    return bad ? dcommi_fail(DCOMM_ERR_SYSTEM, "cannot write %s: %s", path, strerror(errno))
               : DCOMM_OK;
}

/* Set the part of a tuning named `key`. false: there is no such part, or the value is not valid.
 */
static bool dcommi_tuning_assign(dcomm_tuning *t, const char *key, const char *value)
{
    if (strcmp(key, "source") == 0) {
        memset(t->source, 0, sizeof t->source);
        snprintf(t->source, sizeof t->source, "%s", value);
        return true;
    }
    for (int k = 0; k < DCOMMI_TRIAL_FIELDS; k++) {
        const size_t len = strlen(dcommi_trial_fields[k].prefix);
        if (strncmp(key, dcommi_trial_fields[k].prefix, len) == 0) {
            void *at = (char *)t + dcommi_trial_fields[k].at;
            dcomm_trial *trial = dcommi_trial_slot(at, key + len);
            return trial != NULL && dcommi_tuning_read_curve(value, &trial->took);
        }
    }
    for (int k = 0; k < DCOMM_LINK_COUNT; k++) {
        const size_t len = strlen(dcommi_link_names[k]);
        if (strncmp(key, dcommi_link_names[k], len) == 0 && key[len] == '.') {
            return dcommi_tuning_set(dcommi_link_fields, &t->link[k], key + len + 1, value);
        }
    }
    return dcommi_tuning_set(dcommi_tuning_fields, t, key, value);
}

static char *dcommi_trim(char *text)
{
    while (*text == ' ' || *text == '\t') {
        text++;
    }
    for (char *end = text + strlen(text);
         end > text && (end[-1] == ' ' || end[-1] == '\t' || end[-1] == '\r' || end[-1] == '\n');) {
        *--end = 0;
    }
    return text;
}

DCOMM_API dcomm_status dcomm_tuning_load(const char *path, dcomm_tuning *tuning)
{
    DCOMMI_NEED(tuning);
    DCOMMI_NEED(path);
    dcomm_tuning_default(tuning);
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return dcommi_fail(DCOMM_ERR_SYSTEM, "cannot read %s: %s", path, strerror(errno));
    }
    snprintf(tuning->source, sizeof tuning->source, "%.100s", path);
    dcomm_status status = DCOMM_OK;
    char line[DCOMMI_TUNING_LINE];
    for (int number = 1; status == DCOMM_OK && fgets(line, sizeof line, file) != NULL; number++) {
        char *text = dcommi_trim(line), *equals = strchr(text, '=');
        if (*text == 0 || *text == '#') {
            continue;
        }
        if (equals != NULL) {
            *equals = 0;
        }
        if (equals == NULL ||
            !dcommi_tuning_assign(tuning, dcommi_trim(text), dcommi_trim(equals + 1))) {
            status = dcommi_fail(DCOMM_ERR_INVALID, "%s, line %d: \"%.60s\" is not a setting", path,
                                 number, text);
        }
    }
    fclose(file);
    return status == DCOMM_OK ? dcommi_tuning_check(tuning) : status;
}

#endif
