/* options.h - dcomm's options under NCCL's calls: the codec, the options after "dcomm:" in a
 * communicator's name, and the summary (DCOMM_SUMMARY). */
#ifndef DCOMMI_NCCL_OPTIONS_H
#define DCOMMI_NCCL_OPTIONS_H

#include "state.h"

typedef struct dcommi_nccl_options {
    char text[512]; /* the values from commName point into it */
    const char *algo, *codec;
    bool deterministic, set; /* set: has an option that only a new communicator takes */
    size_t chunk_bytes;
    double timeout_s;
} dcommi_nccl_options;

static ncclResult_t dcommi_nccl_option(dcommi_nccl_options *o, const char *key, const char *value)
{
    bool good = false;
    const char *wanted = NULL;
    if (strcmp(key, "codec") == 0) {
        o->codec = value;
        return ncclSuccess;
    }
    o->set = true;
    if (strcmp(key, "algo") == 0) {
        o->algo = value;
        return ncclSuccess;
    }
    if (strcmp(key, "deterministic") == 0) {
        good = dcommi_text_flag(value, &o->deterministic);
        wanted = "1, true, yes, on, 0, false, no or off";
    } else if (strcmp(key, "chunk") == 0) {
        uint64_t bytes = 0;
        good = dcommi_text_size(value, 0, (uint64_t)1 << 40, &bytes);
        o->chunk_bytes = (size_t)bytes;
        wanted = "a number of bytes from 0 to 1T, such as 65536 or 64K";
    } else if (strcmp(key, "timeout") == 0) {
        good = dcommi_text_seconds(value, 1e-6, 1e9, &o->timeout_s);
        wanted = "seconds from 1e-06 to 1e+09, such as 30, 30s, 500ms or 5m";
    } else {
        return dcommi_nccl_fail(ncclInvalidArgument,
                                "commName: there is no option '%s': algo, chunk, codec, "
                                "deterministic and timeout are",
                                key);
    }
    return good ? ncclSuccess
                : dcommi_nccl_fail(ncclInvalidArgument, "commName: %s=%s: it must be %s", key,
                                   value, wanted);
}

/* Read the options from `name`: "name dcomm:key=value key=value". `codec` is the default codec. */
static ncclResult_t dcommi_nccl_read_options(const char *name, const char *codec,
                                             dcommi_nccl_options *o)
{
    *o = (dcommi_nccl_options){.codec = codec};
    const char *from = name != NULL ? strstr(name, "dcomm:") : NULL;
    if (from == NULL) {
        return ncclSuccess;
    }
    if (snprintf(o->text, sizeof o->text, "%s", from + 6) >= (int)sizeof o->text) {
        return dcommi_nccl_fail(ncclInvalidArgument, "commName is too long");
    }
    char *next = NULL;
    for (char *word = strtok_r(o->text, " ", &next); word != NULL;
         word = strtok_r(NULL, " ", &next)) {
        char *value = strchr(word, '=');
        if (value == NULL) {
            return dcommi_nccl_fail(ncclInvalidArgument, "commName: '%s' is not key=value", word);
        }
        *value = '\0';
        DCOMMI_NCCL_TRY(dcommi_nccl_option(o, word, value + 1));
    }
    return ncclSuccess;
}

static const char *dcommi_nccl_config_name(const ncclConfig_t *config)
{
    return config != NULL && config->size > offsetof(ncclConfig_t, commName) ? config->commName
                                                                             : NULL;
}

/* Set comm's blocking, name and codec from `config` (NULL: none), and read its options into `o`.
 * If `config` names no codec, use `codec` (NULL: exact). */
static ncclResult_t dcommi_nccl_configure(struct ncclComm *comm, const ncclConfig_t *config,
                                          const char *codec, dcommi_nccl_options *o)
{
    const char *name = dcommi_nccl_config_name(config);
    if (config != NULL && config->magic != DCOMMI_NCCL_MAGIC) {
        return dcommi_nccl_fail(ncclInvalidArgument,
                                "config does not begin as NCCL_CONFIG_INITIALIZER");
    }
    if (config != NULL && config->blocking != NCCL_CONFIG_UNDEF_INT) {
        if (config->blocking != 0 && config->blocking != 1) {
            return dcommi_nccl_fail(ncclInvalidArgument, "config.blocking is %d, not 0 or 1",
                                    config->blocking);
        }
        comm->blocking = config->blocking == 1;
    }
    DCOMMI_NCCL_TRY(dcommi_nccl_read_options(name, codec, o));
    if (name != NULL) {
        const char *end = strstr(name, "dcomm:");
        size_t len = end != NULL ? (size_t)(end - name) : strlen(name);
        while (len > 0 && name[len - 1] == ' ') {
            len--;
        }
        len = len < sizeof comm->name ? len : sizeof comm->name - 1;
        memcpy(comm->name, name, len);
        comm->name[len] = '\0';
    }
    if (o->codec == NULL || *o->codec == '\0' || strcmp(o->codec, "none") == 0) {
        return ncclSuccess;
    }
    DCOMMI_NCCL_TRY(dcommi_nccl_from(dcomm_codec_create(o->codec, &comm->codec)));
    const char *spec = dcomm_codec_spec(comm->codec);
    return strncmp(spec, "auto:", 5) == 0
               ? dcommi_nccl_from(dcomm_codec_create(spec + 5, &comm->candidate))
               : ncclSuccess;
}

#define DCOMMI_NCCL_EXIT_S 10 /* seconds that an exit waits at most; a goodbye takes up to 5 */

/* ---- the summary: DCOMM_SUMMARY names a file, or is "-" for stderr ---- */

static pthread_mutex_t dcommi_nccl_lock = PTHREAD_MUTEX_INITIALIZER;
static struct ncclComm *dcommi_nccl_all; /* this and the next under the lock */
static int dcommi_nccl_closing;          /* communicators that are ending */
static _Atomic pid_t dcommi_nccl_pid;    /* the process whose communicators these are */

static const char *dcommi_nccl_summary_path(void)
{
    const char *path = getenv("DCOMM_SUMMARY");
    return path != NULL && *path != '\0' ? path : NULL;
}

/* Write a communicator's line. Use one write, so that ranks may share the file. */
static void dcommi_nccl_summarize(const struct ncclComm *comm)
{
    char line[1024];
    dcomm_stats stats = {0};
    const char *path = dcommi_nccl_summary_path();
    if (path == NULL || dcomm_comm_get_stats(comm->comm, &stats) != DCOMM_OK) {
        return;
    }
    int n = snprintf(line, sizeof line,
                     "dcomm: %s%srank %d of %d: %llu operations, %llu bytes sent, %llu read from "
                     "peers",
                     comm->name, comm->name[0] != '\0' ? ": " : "", dcomm_comm_rank(comm->comm),
                     dcomm_comm_size(comm->comm), (unsigned long long)stats.operations,
                     (unsigned long long)stats.bytes_sent, (unsigned long long)stats.bytes_read);
    if (comm->codec != NULL && n < (int)sizeof line) {
        const dcomm_ledger *l = &comm->ledger;
        dcommi_snprintf(
            line + n, sizeof line - (size_t)n,
            "; %s: %llu elements encoded in %.3g bits each, nmse %.3g, cosine %.6g, mean "
            "signed error %.3g, %llu clipped, %llu not finite",
            dcomm_codec_spec(comm->codec), (unsigned long long)l->encoded, l->bits, l->nmse,
            l->cosine, l->mean_signed_error, (unsigned long long)l->clipped,
            (unsigned long long)l->nonfinite);
    }
    FILE *out = strcmp(path, "-") == 0 ? stderr : fopen(path, "a");
    if (out != NULL) {
        fprintf(out, "%s\n", line);
        if (out != stderr) {
            fclose(out);
        }
    }
}

/* Wait until no communicator is ending, for `most_s` seconds at most. The caller holds the lock;
 * waiting releases it. */
static void dcommi_nccl_await_ends(double most_s)
{
    const double until = dcommi_nccl_now() + most_s;
    while (dcommi_nccl_closing > 0 && dcommi_nccl_now() < until) {
        pthread_mutex_unlock(&dcommi_nccl_lock);
        dcommi_nccl_nap();
        pthread_mutex_lock(&dcommi_nccl_lock);
    }
}

/* Wait for communicators that are ending, so that they say goodbye to their peers. A device that
 * is stuck must not hold up the exit. Then write the summaries of those that the program did not
 * destroy. Nothing of this is a forked child's. */
static void dcommi_nccl_at_exit(void)
{
    if (atomic_load(&dcommi_nccl_pid) != getpid()) {
        return;
    }
    pthread_mutex_lock(&dcommi_nccl_lock);
    dcommi_nccl_await_ends(DCOMMI_NCCL_EXIT_S);
    for (struct ncclComm *c = dcommi_nccl_all; c != NULL; c = c->next) {
        if (dcomm_comm_ready(c->comm) == DCOMM_OK) {
            dcommi_nccl_summarize(c);
        }
    }
    pthread_mutex_unlock(&dcommi_nccl_lock);
}

static pthread_once_t dcommi_nccl_once = PTHREAD_ONCE_INIT;

static void dcommi_nccl_register_exit(void)
{
    atexit(dcommi_nccl_at_exit);
}

#endif
