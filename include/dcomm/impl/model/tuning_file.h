/* tuning_file.h - a tuning as text: "near.alpha_us = 0.25", curves as "bytes:microseconds" points.
 */
#ifndef DCOMMI_TUNING_FILE_H
#define DCOMMI_TUNING_FILE_H

#include "model.h"
#include "tuning_default.h"

#define DCOMMI_TUNING_LINE 1024

/* X(key, field, kind): what a link has; then what a tuning has beside its links. T: microseconds,
 * N: a number, C: a curve. */
#define DCOMMI_LINK_FIELDS(X)            \
    X("alpha_us", alpha_ps, T)           \
    X("overhead_us", overhead_ps, T)     \
    X("signal_us", signal_ps, T)         \
    X("tell_us", tell_ps, T)             \
    X("eager_bytes", eager_bytes, N)     \
    X("by_core", by_core, N)             \
    X("message", message, C)             \
    X("fold", fold, C)                   \
    X("read", read, C)                   \
    X("reduce", reduce, C)               \
    X("mapped_read", mapped_read, C)     \
    X("mapped_reduce", mapped_reduce, C) \
    X("huge_read", huge_read, C)         \
    X("huge_reduce", huge_reduce, C)     \
    X("shared", shared, C)               \
    X("sustained", sustained, C)
#define DCOMMI_TUNING_FIELDS(X)              \
    X("copy", copy, C)                       \
    X("fold", fold, C)                       \
    X("device_stage_us", device_stage_ps, T) \
    X("device_ucx", device_ucx, N)           \
    X("device_ucx_us", device_ucx_ps, T)     \
    X("device_copy", device_copy, C)         \
    X("device_fold", device_fold, C)         \
    X("device_read", device_read, C)         \
    X("device_reduce", device_reduce, C)     \
    X("step_us", step_ps, T)                 \
    X("call_us", call_ps, T)                 \
    X("connections", connections, N)         \
    X("tried", tried, N)
/* X(prefix, field): trials, an algorithm's under the prefix and its name. */
#define DCOMMI_TRIAL_FIELDS(X) \
    X("allreduce.", trial)     \
    X("allreduce_huge.", huge) \
    X("allreduce_registered.", registered)

static const char *const dcommi_link_names[DCOMM_LINK_COUNT] = {"host",  "package", "numa",
                                                                "cache", "core",    "near"};

/* ---- one value ---- */

static void dcommi_write_T(FILE *file, const int64_t *ps)
{
    fprintf(file, "%.6f", 1e-6 * (double)*ps);
}

static void dcommi_write_N(FILE *file, const int64_t *n)
{
    fprintf(file, "%" PRId64, *n);
}

static void dcommi_write_C(FILE *file, const dcomm_curve *c)
{
    for (int64_t i = 0; i < c->n; i++) {
        fprintf(file, "%s%" PRId64 ":%.6f", i > 0 ? " " : "", c->bytes[i], 1e-6 * (double)c->ps[i]);
    }
}

static bool dcommi_read_T(const char *text, int64_t *ps)
{
    double us = 0;
    bool good = dcommi_text_number(text, 0, 1e-6 * (double)DCOMMI_MODEL_MOST, &us);
    *ps = good ? (int64_t)(us * 1e6 + 0.5) : 0;
    return good;
}

static bool dcommi_read_N(const char *text, int64_t *n)
{
    *n = 0;
    return dcommi_text_integer(text, 0, INT64_MAX, n);
}

static bool dcommi_read_C(const char *text, dcomm_curve *c)
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
        if (!dcommi_read_N(at, &c->bytes[c->n]) || !dcommi_read_T(colon + 1, &c->ps[c->n])) {
            return false;
        }
        c->n++;
    }
    return dcommi_curve_valid(c);
}

static void dcommi_write_trials(FILE *file, const char *key, const dcomm_trial *trials)
{
    for (int i = 0; i < DCOMM_TRIALS && trials[i].algo[0] != 0; i++) {
        fprintf(file, "%s%s = ", key, trials[i].algo);
        dcommi_write_C(file, &trials[i].took);
        fputc('\n', file);
    }
}

static bool dcommi_read_trial(dcomm_trial *trials, const char *algo, const char *value)
{
    dcomm_trial *trial = dcommi_trial_slot(trials, algo);
    return trial != NULL && dcommi_read_C(value, &trial->took);
}

/* ---- the file ---- */

DCOMM_API dcomm_status dcomm_tuning_save(const dcomm_tuning *tuning, const char *path)
{
    DCOMMI_TRY(dcommi_need(tuning, "tuning"));
    DCOMMI_TRY(dcommi_need(path, "path"));
    FILE *file = fopen(path, "we");
    if (file == NULL) {
        return dcommi_fail(DCOMM_ERR_SYSTEM, "cannot write %s: %s", path, strerror(errno));
    }
    locale_t before = dcommi_locale_enter();
    fprintf(file, "# dcomm tuning, read where DCOMM_TUNE_FILE names it; curves: bytes:us ...\n");
    fprintf(file, "source = %s\n", tuning->source);
#define DCOMMI_WRITE(key, field, kind)       \
    fprintf(file, "%s = ", key);             \
    dcommi_write_##kind(file, &part->field); \
    fputc('\n', file);
    const dcomm_tuning *part = tuning;
    DCOMMI_TUNING_FIELDS(DCOMMI_WRITE)
#undef DCOMMI_WRITE
    for (int k = 0; k < DCOMM_LINK_COUNT; k++) {
        const dcomm_link *link = &tuning->link[k];
#define DCOMMI_WRITE(key, field, kind)                    \
    fprintf(file, "%s.%s = ", dcommi_link_names[k], key); \
    dcommi_write_##kind(file, &link->field);              \
    fputc('\n', file);
        DCOMMI_LINK_FIELDS(DCOMMI_WRITE)
#undef DCOMMI_WRITE
    }
#define DCOMMI_WRITE(key, field) dcommi_write_trials(file, key, tuning->field);
    DCOMMI_TRIAL_FIELDS(DCOMMI_WRITE)
#undef DCOMMI_WRITE
    dcommi_locale_leave(before);
    bool bad = ferror(file) != 0;
    bad = fclose(file) != 0 || bad;
    return bad ? dcommi_fail(DCOMM_ERR_SYSTEM, "cannot write %s: %s", path, strerror(errno))
               : DCOMM_OK;
}

/* Set what `key` names; false: there is no such thing, or the value is none. */
static bool dcommi_tuning_assign(dcomm_tuning *t, const char *key, const char *value)
{
    if (strcmp(key, "source") == 0) {
        memset(t->source, 0, sizeof t->source);
        snprintf(t->source, sizeof t->source, "%s", value);
        return true;
    }
#define DCOMMI_READ(prefix, field)                                          \
    if (strncmp(key, prefix, sizeof prefix - 1) == 0) {                     \
        return dcommi_read_trial(t->field, key + sizeof prefix - 1, value); \
    }
    DCOMMI_TRIAL_FIELDS(DCOMMI_READ)
#undef DCOMMI_READ
#define DCOMMI_READ(name, field, kind)                  \
    if (strcmp(key, name) == 0) {                       \
        return dcommi_read_##kind(value, &part->field); \
    }
    dcomm_tuning *part = t;
    DCOMMI_TUNING_FIELDS(DCOMMI_READ)
    const char *dot = strchr(key, '.');
    for (int k = 0; dot != NULL && k < DCOMM_LINK_COUNT; k++) {
        size_t len = strlen(dcommi_link_names[k]);
        if ((size_t)(dot - key) == len && strncmp(key, dcommi_link_names[k], len) == 0) {
            dcomm_link *link = &t->link[k];
#undef DCOMMI_READ
#define DCOMMI_READ(name, field, kind)                  \
    if (strcmp(dot + 1, name) == 0) {                   \
        return dcommi_read_##kind(value, &link->field); \
    }
            DCOMMI_LINK_FIELDS(DCOMMI_READ)
        }
    }
#undef DCOMMI_READ
    return false;
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
    DCOMMI_TRY(dcommi_need(tuning, "tuning"));
    DCOMMI_TRY(dcommi_need(path, "path"));
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
