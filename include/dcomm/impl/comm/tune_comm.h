/* tune_comm.h - the numbers of a communicator, which all ranks take from rank 0: given, read from
 * a file, known from before, or measured. */
#ifndef DCOMMI_TUNE_COMM_H
#define DCOMMI_TUNE_COMM_H

#include "derive.h"
#include "life.h"
#include "tune_cache.h"
#include "tune_trial.h"

/* A tuning that rank 0 of this process has measured, by where the ranks were. */
typedef struct dcommi_tuned {
    struct dcommi_tuned *next;
    uint64_t hosts;
    dcomm_tuning tuning;
} dcommi_tuned;

static pthread_mutex_t dcommi_tuned_lock = PTHREAD_MUTEX_INITIALIZER;
static dcommi_tuned *dcommi_tuned_list;

static uint64_t dcommi_tuned_key(const dcomm_comm *comm)
{
    const dcommi_groups *g = comm->groups;
    uint64_t key = dcommi_mix((uint64_t)g->nlevels, (uint64_t)comm->size);
    key = dcommi_mix(key, (uint64_t)comm->connections << 1 | comm->deterministic);
    for (int r = 0; r < comm->size; r++) {
        for (const char *c = comm->members[r].hostname; *c != 0; c++) {
            key = dcommi_mix(key, (uint64_t)*c);
        }
        for (int l = 0; l < g->nlevels; l++) {
            key = dcommi_mix(key, (uint64_t)dcommi_group_of(g, l, r) << 8 | g->kind[l]);
        }
        key = dcommi_mix(key, (uint64_t)g->seat[r]);
    }
    return key;
}

/* Find a tuning in this process or, for the ranks of one host, in the user's cache. Networks
 * change more often than machines do, so theirs are not kept in files. */
static bool dcommi_tuned_find(const dcomm_comm *comm, uint64_t key, dcomm_tuning *tuning)
{
    bool found = false;
    pthread_mutex_lock(&dcommi_tuned_lock);
    for (dcommi_tuned *k = dcommi_tuned_list; k != NULL && !found; k = k->next) {
        if (k->hosts == key) {
            *tuning = k->tuning;
            found = true;
        }
    }
    pthread_mutex_unlock(&dcommi_tuned_lock);
    return found || (comm->nhosts == 1 && dcommi_tune_cache_load(key, tuning));
}

static void dcommi_tuned_add(uint64_t key, const dcomm_tuning *tuning)
{
    dcommi_tuned *k = dcommi_alloc(sizeof *k);
    if (k != NULL) {
        pthread_mutex_lock(&dcommi_tuned_lock);
        k->hosts = key;
        k->tuning = *tuning;
        k->next = dcommi_tuned_list;
        dcommi_tuned_list = k;
        pthread_mutex_unlock(&dcommi_tuned_lock);
    }
}

/* Make a tuner. Its own communicator keeps the measurements from leaving a trace. All else that
 * can fail on one rank alone is done here too, before the ranks wait for each other. */
static dcomm_status dcommi_tuner_new(dcomm_comm *comm, dcommi_tuner **t_p)
{
    *t_p = NULL;
    dcommi_tuner *t = dcommi_alloc(sizeof *t);
    int *ranks = dcommi_calloc((size_t)comm->size, sizeof *ranks);
    dcomm_status status = t == NULL || ranks == NULL ? DCOMM_ERR_NO_MEMORY : DCOMM_OK;
    for (int r = 0; status >= 0 && r < comm->size; r++) {
        ranks[r] = r;
    }
    if (status >= 0) {
        uint64_t salt = dcommi_mix(dcommi_comm_next_child(comm), 0x74756e696e67u);
        status = dcommi_comm_make(comm, ranks, comm->size, salt, comm->quorum, &t->comm);
    }
    dcommi_free(ranks);
    if (status < 0) {
        dcommi_free(t);
        return status;
    }
    t->comm->on_error = DCOMM_ON_ERROR_RETURN; /* its failure fails comm, which reports it */
    *t_p = t;
    return DCOMM_OK;
}

static void dcommi_tuner_free(dcommi_tuner *t)
{
    if (t == NULL) {
        return;
    }
    if (t->comm != NULL) { /* it was not run */
        dcommi_token_take(t->comm->context);
        dcommi_bury(t->comm->context, t->comm->id);
        dcommi_token_release(t->comm->context);
        dcommi_comm_drop(t->comm);
    }
    dcomm_mem_free(&t->registered);
    dcommi_huge_release(t->huge, DCOMMI_TUNE_SPECIAL);
    dcommi_tune_trials_free(t);
    dcommi_free(t->in);
    dcommi_free(t->out);
    dcommi_free(t);
}

/* The source of all ranks' numbers, found by rank 0. */
typedef struct dcommi_tune_word {
    uint64_t measure; /* 0: `tuning` has the numbers */
    dcomm_tuning tuning;
} dcommi_tune_word;

static void dcommi_tune_source(const dcomm_comm *comm, const dcomm_tuning *given, bool again,
                               uint64_t key, dcommi_tune_word *word)
{
    const char *path = dcommi_env("DCOMM_TUNE_FILE");
    word->measure = 1;
    if (given != NULL) {
        word->tuning = *given;
        word->measure = 0;
    } else if (!again && path != NULL) {
        word->measure = dcomm_tuning_load(path, &word->tuning) < 0;
        if (word->measure != 0) {
            dcommi_log(DCOMMI_LOG_WARN, "DCOMM_TUNE_FILE: %s; measuring instead", dcommi_message);
        }
    } else if (!again) {
        word->measure = !dcommi_tuned_find(comm, key, &word->tuning);
    }
}

/* Tell the ranks that wait for this one that it cannot go on. */
static void dcommi_tune_fail(dcommi_tuner *t, dcomm_status status)
{
    char why[DCOMMI_MESSAGE_MAX];
    memcpy(why, dcommi_message, sizeof why);
    dcommi_token_take(t->comm->context);
    dcommi_poison(t->comm, status, "%s", why);
    dcommi_token_release(t->comm->context);
}

/* Give all ranks of `comm` rank 0's numbers: `given` there, else those of its process or its file,
 * else those measured now. `again`: measure if none are given. */
static dcomm_status dcommi_tuner_run(dcommi_tuner *t, dcomm_comm *comm, const dcomm_tuning *given,
                                     bool again)
{
    dcommi_tune_word word = {.measure = 1};
    const uint64_t key = dcommi_tuned_key(comm);
    if (comm->rank == 0) {
        dcommi_tune_source(comm, given, again, key, &word);
    }
    dcommi_comm_begin(t->comm);
    dcommi_tune_share(t, &word, sizeof word);
    if (t->status >= 0 && word.measure != 0) {
        dcomm_tuning_default(&t->tuning);
        dcommi_tune_probe_all(t);
        dcommi_tune_share(t, &t->tuning, sizeof t->tuning);
        if (comm->nhosts == 1) {
            dcommi_tune_trials(t);
        }
        word.tuning = t->tuning;
        if (t->status >= 0 && comm->rank == 0) {
            dcommi_tuned_add(key, &word.tuning);
            if (comm->nhosts == 1 && !t->busy) {
                dcommi_tune_cache_save(key, &word.tuning);
            }
        }
    }
    dcomm_status status = t->status;
    if (status >= 0 && comm->connections > 0) {
        word.tuning.connections = comm->connections;
    } else if (status >= 0 && word.tuning.connections == 0) {
        dcommi_comm_lock(comm);
        word.tuning.connections = comm->chooser->tuning.connections;
        dcommi_comm_unlock(comm);
    }
    word.tuning.device_ucx = comm->device_ucx; /* whatever rank 0's file says */
    dcommi_comm_lock(comm);
    if (status >= 0) {
        status = dcommi_chooser_set(comm->chooser, comm->groups, comm->size, &word.tuning);
        dcommi_cache_clear(comm);
    }
    dcommi_comm_unlock(comm);
    if (status >= 0) {
        dcommi_tune_connect(t, (int)word.tuning.connections);
    } else {
        dcommi_tune_fail(t, status);
    }
    t->by_another = t->comm->by_another;
    char why[DCOMMI_MESSAGE_MAX];
    memcpy(why, dcommi_message, sizeof why);
    dcomm_comm_destroy(&t->comm);
    memcpy(dcommi_message, why, sizeof why);
    return status;
}

/* Tune again. No rank measures before all have a tuner. */
static dcomm_status dcommi_comm_tune_again(dcomm_comm *comm, const dcomm_tuning *given)
{
    dcommi_tuner *t = NULL;
    DCOMMI_TRY(dcommi_tuner_new(comm, &t));
    dcomm_status status = dcommi_barrier(comm, NULL, NULL);
    if (status >= 0) {
        status = dcommi_tuner_run(t, comm, given, true);
    }
    dcommi_tuner_free(t);
    return status;
}

/* Tune, and fail the communicator if that fails, since ranks that choose by different numbers must
 * not meet. Numbers that make no sense are refused on all ranks, and do no harm. */
static dcomm_status dcommi_comm_tune(dcomm_comm *comm, const dcomm_tuning *given)
{
    dcomm_status status = comm->size > 1 ? dcommi_comm_tune_again(comm, given) : DCOMM_OK;
    if (status < 0 && status != DCOMM_ERR_INVALID) {
        char text[DCOMMI_MESSAGE_MAX];
        snprintf(text, sizeof text, "%s", dcommi_message);
        dcommi_token_take(comm->context);
        dcommi_poison(comm, status, "%s", text);
        dcommi_token_release(comm->context);
    }
    return status;
}

DCOMM_API dcomm_status dcomm_comm_tune(dcomm_comm *comm, const dcomm_tuning *tuning)
{
    DCOMMI_TRY(dcommi_check_comm(comm));
    DCOMMI_TRY(dcommi_check_no_group("dcomm_comm_tune"));
    return dcommi_comm_tune(comm, tuning);
}

#endif
