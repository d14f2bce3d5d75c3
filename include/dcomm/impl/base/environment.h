/* environment.h - every DCOMM_* variable with its kind and range, and warnings about unknown names
 * and bad values. docs/environment.md describes each variable. */
#ifndef DCOMMI_ENVIRONMENT_H
#define DCOMMI_ENVIRONMENT_H

#include "../../comm.h"
#include "util.h"

#include <limits.h>

typedef enum dcommi_env_kind {
    DCOMMI_ENV_TEXT, /* any text; its user checks it */
    DCOMMI_ENV_FLAG,
    DCOMMI_ENV_INTEGER,
    DCOMMI_ENV_SIZE,
    DCOMMI_ENV_SECONDS,
    DCOMMI_ENV_CHOICE,
    DCOMMI_ENV_DIRECTORY /* an absolute path, or a flag: none, or the default directory */
} dcommi_env_kind;

typedef struct dcommi_env_entry {
    const char *name;
    dcommi_env_kind kind;
    double least, most;  /* range of a number */
    bool refused;        /* a bad value makes creation fail, without a warning besides */
    const char *choices; /* "a|b|c" */
} dcommi_env_entry;

static const dcommi_env_entry dcommi_env_table[] = {
    {.name = "DCOMM_ALGO"},
    {.name = "DCOMM_CHUNK", .kind = DCOMMI_ENV_SIZE, .most = 0x1p40},
    {.name = "DCOMM_CMA", .kind = DCOMMI_ENV_FLAG},
    {.name = "DCOMM_CODEC"},
    {.name = "DCOMM_CONNECTIONS",
     .kind = DCOMMI_ENV_INTEGER,
     .most = DCOMM_CONNECTIONS_MAX,
     .refused = true},
    {.name = "DCOMM_DETERMINISTIC", .kind = DCOMMI_ENV_FLAG},
    {.name = "DCOMM_ERRORS", .kind = DCOMMI_ENV_CHOICE, .choices = "return|print|abort"},
    {.name = "DCOMM_HOSTID"},
    {.name = "DCOMM_IFACE"},
    {.name = "DCOMM_ISA"},
    {.name = "DCOMM_JOB"},
    {.name = "DCOMM_JOIN", .kind = DCOMMI_ENV_FLAG},
    {.name = "DCOMM_JOIN_FILE"},
    {.name = "DCOMM_LIVENESS_S", .kind = DCOMMI_ENV_SECONDS, .most = 1e9, .refused = true},
    {.name = "DCOMM_LOG", .kind = DCOMMI_ENV_CHOICE, .choices = DCOMMI_LOG_CHOICES},
    {.name = "DCOMM_PORT", .kind = DCOMMI_ENV_INTEGER, .least = 1, .most = 65535, .refused = true},
    {.name = "DCOMM_PROGRESS_THREAD", .kind = DCOMMI_ENV_FLAG},
    {.name = "DCOMM_SECRET"},
    {.name = "DCOMM_SECRET_FILE"},
    {.name = "DCOMM_SUMMARY"},
    {.name = "DCOMM_TIMEOUT",
     .kind = DCOMMI_ENV_SECONDS,
     .least = 1e-6,
     .most = 1e9,
     .refused = true},
    {.name = "DCOMM_TOPO_CPUS"},
    {.name = "DCOMM_TOPO_XML"},
    {.name = "DCOMM_TUNE", .kind = DCOMMI_ENV_FLAG},
    {.name = "DCOMM_TUNE_CACHE", .kind = DCOMMI_ENV_DIRECTORY},
    {.name = "DCOMM_TUNE_FILE"},
    {.name = "DCOMM_UCX_CUDA", .kind = DCOMMI_ENV_FLAG},
    {.name = "DCOMM_WARN_UNBOUND", .kind = DCOMMI_ENV_FLAG},
    /* variables of the project's scripts, tests and stand-in for CUDA */
    {.name = "DCOMM_CLUSTER"},
    {.name = "DCOMM_CLUSTER_CORES"},
    {.name = "DCOMM_CLUSTER_MASTER"},
    {.name = "DCOMM_CLUSTER_RSH"},
    {.name = "DCOMM_FUZZ_SECONDS"},
    {.name = "DCOMM_GPU_BENCH"},
    {.name = "DCOMM_GPU_PREFIX"},
    {.name = "DCOMM_GPU_SECONDS"},
    {.name = "DCOMM_HOST_DEVICES", .kind = DCOMMI_ENV_INTEGER, .most = 64},
    {.name = "DCOMM_NCCL_TESTS"},
    {.name = "DCOMM_TEST_FULL"},
    /* variables of build systems that tell where dcomm is */
    {.name = "DCOMM_DIR"},
    {.name = "DCOMM_HOME"},
    {.name = "DCOMM_ROOT"},
};

enum { DCOMMI_ENV_COUNT = sizeof dcommi_env_table / sizeof dcommi_env_table[0] };

/* ---- reading ---- */

/* Return the value of a variable, or NULL if it is not set or empty. */
static const char *dcommi_env(const char *name)
{
    const char *value = getenv(name);
    return value != NULL && value[0] != '\0' ? value : NULL;
}

static const dcommi_env_entry *dcommi_env_find(const char *name, size_t len)
{
    for (int i = 0; i < DCOMMI_ENV_COUNT; i++) {
        const char *known = dcommi_env_table[i].name;
        if (strlen(known) == len && memcmp(known, name, len) == 0) {
            return &dcommi_env_table[i];
        }
    }
    return NULL;
}

/* Parse `text` as the variable's kind. Set *value to the number, the position of the choice, or 1
 * for a flag that is on. Return false, and leave *value, if the text is bad. */
static bool dcommi_env_parse(const dcommi_env_entry *entry, const char *text, double *value)
{
    int64_t integer = 0;
    uint64_t size = 0;
    bool flag = false, good = false;
    switch (entry->kind) {
    case DCOMMI_ENV_TEXT:
        return true;
    case DCOMMI_ENV_SECONDS:
        return dcommi_text_seconds(text, entry->least, entry->most, value);
    case DCOMMI_ENV_FLAG:
        good = dcommi_text_flag(text, &flag);
        integer = flag;
        break;
    case DCOMMI_ENV_INTEGER:
        good = dcommi_text_integer(text, (int64_t)entry->least, (int64_t)entry->most, &integer);
        break;
    case DCOMMI_ENV_SIZE:
        good = dcommi_text_size(text, (uint64_t)entry->least, (uint64_t)entry->most, &size);
        integer = (int64_t)size;
        break;
    case DCOMMI_ENV_CHOICE:
        integer = dcommi_text_choice(entry->choices, text, strlen(text));
        good = integer >= 0;
        break;
    case DCOMMI_ENV_DIRECTORY:
        good = text[0] == '/' || dcommi_text_flag(text, &flag);
        break;
    }
    *value = good ? (double)integer : *value;
    return good;
}

/* Describe in words the values that a variable may have. */
static void dcommi_env_allowed(const dcommi_env_entry *entry, char *text, size_t room)
{
    static const char *const formats[] = {
        [DCOMMI_ENV_TEXT] = "",
        [DCOMMI_ENV_FLAG] = "one of 1, true, yes, on, 0, false, no, off",
        [DCOMMI_ENV_INTEGER] = "a whole number from %.0f to %.0f",
        [DCOMMI_ENV_SIZE] = "a number of bytes from %.0f to %.0f, such as 65536 or 64K",
        [DCOMMI_ENV_SECONDS] = "seconds from %g to %g, such as 30, 30s, 500ms or 5m",
        [DCOMMI_ENV_CHOICE] = "one of ",
        [DCOMMI_ENV_DIRECTORY] = "off, or the absolute path of a directory"};
    const int n = dcommi_snprintf(text, room, formats[entry->kind], entry->least, entry->most);
    if (entry->kind == DCOMMI_ENV_CHOICE) {
        snprintf(text + n, room - (size_t)n, "%s", entry->choices);
    }
}

/* Set *value from a variable of the table. A variable that is not set leaves *value. So does a bad
 * value, about which dcommi_env_check warns, unless the variable is `refused`: then fail. */
static dcomm_status dcommi_env_read(const char *name, double *value)
{
    const char *text = dcommi_env(name);
    const dcommi_env_entry *entry = dcommi_env_find(name, strlen(name));
    if (text == NULL || entry == NULL || dcommi_env_parse(entry, text, value) || !entry->refused) {
        return DCOMM_OK;
    }
    char allowed[128];
    dcommi_env_allowed(entry, allowed, sizeof allowed);
    return dcommi_fail(DCOMM_ERR_INVALID, "environment variable %s=\"%.64s\": it must be %s", name,
                       text, allowed);
}

static bool dcommi_env_flag(const char *name, bool preset)
{
    double value = preset;
    dcommi_env_read(name, &value);
    return value != 0;
}

/* Set *value from an integer variable that is not in the table (RANK), within [min, max]. A
 * variable that is not set leaves *value. */
static dcomm_status dcommi_env_int(const char *name, long min, long max, int *value)
{
    const char *text = dcommi_env(name);
    int64_t n = 0;
    if (text == NULL) {
        return DCOMM_OK;
    }
    if (!dcommi_text_integer(text, min, max, &n)) {
        return dcommi_fail(DCOMM_ERR_INVALID,
                           "environment variable %s=\"%.64s\": it must be a whole number from %ld "
                           "to %ld",
                           name, text, min, max);
    }
    *value = (int)n;
    return DCOMM_OK;
}

static dcomm_status dcommi_env_missing(const char *name, const char *because)
{
    return dcommi_fail(DCOMM_ERR_INVALID, "environment variable %s is not set, but %s", name,
                       because);
}

/* ---- warnings ---- */

/* Return true the first time that this process asks about `variable`, a "NAME=value" text. */
static bool dcommi_env_first(const char *variable)
{
    static uint64_t said[64];
    static size_t nsaid;
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    const uint64_t key = dcommi_mix_text(0, variable);
    pthread_mutex_lock(&lock);
    bool first = nsaid < sizeof said / sizeof said[0];
    for (size_t i = 0; i < nsaid && first; i++) {
        first = said[i] != key;
    }
    if (first) {
        said[nsaid++] = key;
    }
    pthread_mutex_unlock(&lock);
    return first;
}

static void dcommi_env_unknown(const char *name, int len)
{
    char own[64];
    snprintf(own, sizeof own, "%.*s", len, name);
    const char *nearest = NULL;
    int best = INT_MAX;
    for (int i = 0; i < DCOMMI_ENV_COUNT; i++) {
        int distance = dcommi_text_distance(own, dcommi_env_table[i].name);
        if (distance < best) {
            best = distance;
            nearest = dcommi_env_table[i].name;
        }
    }
    const size_t prefix = sizeof "DCOMM_" - 1;
    if ((size_t)best <= (strlen(own) - prefix) / 2) {
        dcommi_log(DCOMMI_LOG_WARN,
                   "environment variable %s has no effect: dcomm does not know it; did you mean "
                   "%s?",
                   own, nearest);
    } else {
        dcommi_log(DCOMMI_LOG_WARN,
                   "environment variable %s has no effect: dcomm does not know it; "
                   "docs/environment.md lists all variables",
                   own);
    }
}

/* Return true unless a launcher's variable says that this rank is not 0. */
static bool dcommi_env_first_rank(void)
{
    static const char *const names[] = {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK",
                                        "SLURM_PROCID"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *rank = dcommi_env(names[i]);
        if (rank != NULL) {
            return strcmp(rank, "0") == 0;
        }
    }
    return true;
}

/* Warn about each unknown DCOMM_* variable on the first rank only, for ranks usually have the same
 * ones. Warn about each bad value on every rank. Each value is warned about once in a process. */
static void dcommi_env_check(void)
{
    bool first_rank = dcommi_env_first_rank();
    for (char **at = environ; at != NULL && *at != NULL; at++) {
        const char *equals = strchr(*at, '=');
        if (strncmp(*at, "DCOMM_", 6) != 0 || equals == NULL) {
            continue;
        }
        size_t len = (size_t)(equals - *at);
        const dcommi_env_entry *entry = dcommi_env_find(*at, len);
        double value = 0;
        if (entry == NULL) {
            if (first_rank && dcommi_env_first(*at)) {
                dcommi_env_unknown(*at, (int)len);
            }
        } else if (equals[1] != '\0' && !entry->refused &&
                   !dcommi_env_parse(entry, equals + 1, &value) && dcommi_env_first(*at)) {
            char allowed[128];
            dcommi_env_allowed(entry, allowed, sizeof allowed);
            dcommi_log(DCOMMI_LOG_WARN,
                       "environment variable %s=\"%.40s\" is ignored: it must be %s", entry->name,
                       equals + 1, allowed);
        }
    }
}

#endif
