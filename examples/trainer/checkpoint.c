/* checkpoint.c - write the training's state while it goes on, and read it again. */
#define _GNU_SOURCE
#include "checkpoint.h"
#include "accident.h"
#include "elastic.h"
#include "files.h"

#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TRIED = 4 }; /* generations; more than two are there only if removing failed */

/* The first bytes of a rank's file. Numbers are as this machine stores them. */
typedef struct header {
    char magic[8];
    int32_t step, rank, nranks, skipped;
    int32_t own_momentum; /* the rank has its own part of the momentum */
    int32_t optimizer;    /* an optimizer_kind */
    uint64_t count;       /* parameters of the model */
    uint64_t state_bytes; /* of the exchange */
} header;

static const char MAGIC[8] = "dctrain1";

/* A rank's report on its file. */
typedef struct report {
    uint64_t done, failed, bytes, checksum;
} report;

struct checkpoint {
    const char *dir;
    pthread_t thread;
    pthread_mutex_t lock; /* guards job, end and mine */
    pthread_cond_t changed;
    enum { IDLE, WRITE_FILE, WRITE_MANIFEST } job; /* what the thread does */
    bool end;
    report mine;
    char *image; /* the copy of the state; the thread reads it */
    size_t bytes, room;
    int step, rank;
    manifest m;
    report *reports; /* [FILES_RANKS] */
    bool begun;      /* one is under way; the same on all ranks */
    int written;     /* number of checkpoints */
    double seconds;  /* that they have held training up */
};

/* ---- the thread that writes ---- */

static void *writer(void *arg)
{
    checkpoint *c = arg;
    char why[FILES_WHY], name[32];
    pthread_mutex_lock(&c->lock);
    for (;;) {
        while (c->job == IDLE && !c->end) {
            pthread_cond_wait(&c->changed, &c->lock);
        }
        if (c->job == IDLE) {
            break;
        }
        bool file = c->job == WRITE_FILE;
        pthread_mutex_unlock(&c->lock);
        int result;
        report mine = {.bytes = c->bytes};
        if (file) {
            snprintf(name, sizeof name, "rank-%d", c->rank);
            mine.checksum = checksum(c->image, c->bytes / 4);
            result = files_write(c->dir, c->step, name, c->image, c->bytes, ACCIDENT_WRITE, why);
        } else {
            result = files_finish(c->dir, &c->m, why);
        }
        mine.done = result == 0;
        mine.failed = result != 0;
        if (result != 0) { /* training goes on: the checkpoint before stays the newest */
            fprintf(stderr, "trainer: rank %d: no checkpoint of step %d: %s\n", c->rank, c->step,
                    why);
        }
        pthread_mutex_lock(&c->lock);
        c->mine = file ? mine : c->mine;
        c->job = IDLE;
        pthread_cond_broadcast(&c->changed);
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

static void start_job(checkpoint *c, int job)
{
    pthread_mutex_lock(&c->lock);
    c->job = job;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
}

static void wait_idle(checkpoint *c)
{
    pthread_mutex_lock(&c->lock);
    while (c->job != IDLE) {
        pthread_cond_wait(&c->changed, &c->lock);
    }
    pthread_mutex_unlock(&c->lock);
}

int checkpoint_open(trainer *t)
{
    int found;
    if (t->o->checkpoint == NULL) {
        return 0;
    }
    if (!t->o->resume && !elastic_joins() && files_list(t->o->checkpoint, true, &found, 1) > 0) {
        if (t->rank == 0) {
            fprintf(stderr,
                    "trainer: %s has a checkpoint of step %d: go on from it with --resume, "
                    "or remove it\n",
                    t->o->checkpoint, found);
        }
        return -1;
    }
    checkpoint *c = calloc(1, sizeof *c);
    if (c != NULL) {
        c->dir = t->o->checkpoint;
        c->reports = calloc(FILES_RANKS, sizeof *c->reports);
        pthread_mutex_init(&c->lock, NULL);
        pthread_cond_init(&c->changed, NULL);
    }
    if (c == NULL || c->reports == NULL || pthread_create(&c->thread, NULL, writer, c) != 0) {
        fprintf(stderr, "trainer: no memory, or no thread, for checkpoints\n");
        free(c != NULL ? c->reports : NULL);
        free(c);
        return -1;
    }
    t->checkpoint = c;
    return 0;
}

void checkpoint_close(trainer *t)
{
    checkpoint *c = t->checkpoint;
    if (c != NULL) {
        pthread_mutex_lock(&c->lock);
        c->end = true; /* the thread finishes its job first */
        pthread_cond_broadcast(&c->changed);
        pthread_mutex_unlock(&c->lock);
        pthread_join(c->thread, NULL);
        pthread_cond_destroy(&c->changed);
        pthread_mutex_destroy(&c->lock);
        free(c->image);
        free(c->reports);
        free(c);
        t->checkpoint = NULL;
    }
}

/* ---- write ---- */

/* Return the first of `count` elements that are in the file of rank `rank`. */
static size_t share(size_t count, int rank, int nranks)
{
    return count * (size_t)rank / (size_t)nranks;
}

static void put(char **at, const void *from, size_t bytes)
{
    memcpy(*at, from, bytes);
    *at += bytes;
}

/* Copy the state into c->image. */
static dcomm_status copy_state(trainer *t)
{
    checkpoint *c = t->checkpoint;
    header h = {.step = t->step,
                .rank = t->rank,
                .nranks = t->nranks,
                .skipped = t->skipped,
                .own_momentum = t->o->frozen && t->step > t->o->exact_steps,
                .optimizer = (int32_t)t->o->kind,
                .count = model_count(t->model),
                .state_bytes = exchange_save_bytes(&t->exchange)};
    memcpy(h.magic, MAGIC, sizeof MAGIC);
    size_t first = share(h.count, t->rank, t->nranks);
    size_t n = share(h.count, t->rank + 1, t->nranks) - first;
    size_t losses = share((size_t)t->step, t->rank, t->nranks);
    size_t nlosses = share((size_t)t->step, t->rank + 1, t->nranks) - losses;
    size_t bytes = sizeof h + 2 * n * sizeof(float) + nlosses * sizeof(double) +
                   (h.own_momentum ? h.count : n) * sizeof(float) + h.state_bytes;
    c->bytes = (bytes + 3) / 4 * 4;
    if (c->bytes > c->room) {
        free(c->image);
        c->image = malloc(c->bytes);
        c->room = c->image != NULL ? c->bytes : 0;
    }
    if (c->image == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    char *at = c->image;
    memset(at + c->bytes - 4, 0, 4);
    put(&at, &h, sizeof h);
    put(&at, model_params(t->model) + first, n * sizeof(float));
    put(&at, t->variance + first, n * sizeof(float));
    put(&at, t->losses + losses, nlosses * sizeof(double));
    put(&at, t->momentum + (h.own_momentum ? 0 : first),
        (h.own_momentum ? h.count : n) * sizeof(float));
    return exchange_save(&t->exchange, at, h.state_bytes);
}

/* Exchange the reports. */
static dcomm_status gather_reports(trainer *t)
{
    checkpoint *c = t->checkpoint;
    if (!c->begun) { /* forgotten meanwhile */
        return DCOMM_OK;
    }
    pthread_mutex_lock(&c->lock);
    report mine = c->mine;
    pthread_mutex_unlock(&c->lock);
    return dcomm_allgather(t->comm, &mine, c->reports, sizeof mine, DCOMM_U8, NULL);
}

/* Look at the reports. If all files are written, let rank 0 write the manifest. */
static void judge_reports(trainer *t)
{
    checkpoint *c = t->checkpoint;
    int done = 0, failed = 0;
    for (int r = 0; r < t->nranks; r++) {
        done += c->reports[r].done != 0;
        failed += c->reports[r].failed != 0;
    }
    c->begun = done + failed < t->nranks;
    c->written += done == t->nranks;
    if (done == t->nranks && t->rank == 0) {
        c->m.step = c->step;
        c->m.nranks = t->nranks;
        for (int r = 0; r < t->nranks; r++) {
            c->m.files[r].bytes = c->reports[r].bytes;
            c->m.files[r].checksum = c->reports[r].checksum;
        }
        start_job(c, WRITE_MANIFEST);
    }
}

dcomm_status checkpoint_step(trainer *t, bool last)
{
    checkpoint *c = t->checkpoint;
    if (c == NULL) {
        return DCOMM_OK;
    }
    double start = now();
    bool due = !last && t->step % t->o->every == 0;
    dcomm_status status = DCOMM_OK;
    if (c->begun) {
        if (due || last) {
            wait_idle(c);
        }
        status = together(t, gather_reports);
        if (status >= 0 && c->begun) {
            judge_reports(t);
        }
    }
    if (status >= 0 && due) {
        wait_idle(c); /* for a manifest */
        status = copy_state(t);
        c->step = t->step;
        c->rank = t->rank;
        c->mine = (report){0};
        c->begun = true;
        if (status >= 0) {
            start_job(c, WRITE_FILE);
        }
    }
    c->seconds += now() - start;
    return status;
}

void checkpoint_report(const trainer *t)
{
    const checkpoint *c = t->checkpoint;
    if (c != NULL && c->written > 0) {
        double each = c->seconds / c->written, day = 86400;
        double best = dcomm_checkpoint_interval(each, day, 0);
        printf(
            "%d checkpoints held training up %.2f ms each; if a failure a day is expected, one in "
            "%.0f s loses least, %.2g%%\n",
            c->written, each * 1e3, best, 100 * dcomm_checkpoint_overhead(best, each, day, 0));
    }
}

void checkpoint_forget(trainer *t)
{
    if (t->checkpoint != NULL) {
        wait_idle(t->checkpoint);
        t->checkpoint->begun = false;
    }
}

/* ---- read ---- */

static void take(const char **at, void *to, size_t bytes)
{
    memcpy(to, *at, bytes);
    *at += bytes;
}

/* Check that the file of rank `rank` is of this model and optimizer. */
static bool fits(const trainer *t, const manifest *m, int rank, const char *file)
{
    header h;
    if (m->files[rank].bytes < sizeof h) {
        return false;
    }
    memcpy(&h, file, sizeof h);
    size_t count = model_count(t->model), steps = (size_t)m->step;
    size_t n = share(count, rank + 1, m->nranks) - share(count, rank, m->nranks);
    size_t losses = share(steps, rank + 1, m->nranks) - share(steps, rank, m->nranks);
    return memcmp(h.magic, MAGIC, sizeof MAGIC) == 0 && h.step == m->step && h.rank == rank &&
           h.nranks == m->nranks && h.count == count && h.optimizer == (int)t->o->kind &&
           m->step <= t->o->steps &&
           (sizeof h + 2 * n * sizeof(float) + losses * sizeof(double) +
            (h.own_momentum ? count : n) * sizeof(float) + h.state_bytes + 3) /
                   4 * 4 ==
               m->files[rank].bytes;
}

/* Read all files of a generation. Return 0, or -1 and a sentence. */
static int read_generation(const trainer *t, int step, manifest *m, char **files,
                           char why[FILES_WHY])
{
    if (files_manifest(t->o->checkpoint, step, m, why) != 0) {
        return -1;
    }
    for (int r = 0; r < m->nranks; r++) {
        void *file = NULL;
        if (files_read(t->o->checkpoint, m, r, &file, why) != 0) {
            return -1;
        }
        files[r] = file;
        if (!fits(t, m, r, files[r])) {
            snprintf(why, FILES_WHY,
                     "%.4000s, step %d, rank %d: of another model or optimizer, or "
                     "beyond --steps",
                     t->o->checkpoint, step, r);
            return -1;
        }
    }
    return 0;
}

/* Take the state from the files of all old ranks. */
static dcomm_status restore(trainer *t, const manifest *m, char **files)
{
    size_t count = model_count(t->model), n = (size_t)m->nranks;
    const char **states = calloc(n, sizeof *states);
    size_t *bytes = calloc(n, sizeof *bytes);
    float *momentum = calloc(count, sizeof *momentum);
    dcomm_status status = DCOMM_ERR_NO_MEMORY;
    bool enough = states != NULL && bytes != NULL && momentum != NULL;
    for (int r = 0; enough && r < m->nranks; r++) {
        const char *at = files[r];
        header h;
        take(&at, &h, sizeof h);
        size_t first = share(count, r, m->nranks);
        size_t part = share(count, r + 1, m->nranks) - first;
        size_t losses = share((size_t)m->step, r, m->nranks);
        size_t nlosses = share((size_t)m->step, r + 1, m->nranks) - losses;
        take(&at, model_params(t->model) + first, part * sizeof(float));
        take(&at, t->variance + first, part * sizeof(float));
        take(&at, t->losses + losses, nlosses * sizeof(double));
        if (!h.own_momentum) {
            take(&at, t->momentum + first, part * sizeof(float));
        } else {
            take(&at, momentum, count * sizeof(float));
            /* As many ranks: each has its own part again. Else the sum is divided anew. */
            for (size_t i = 0; i < count && (m->nranks != t->nranks || r == t->rank); i++) {
                float value = momentum[i] / (m->nranks != t->nranks ? (float)t->nranks : 1);
                t->momentum[i] = (m->nranks != t->nranks && r > 0 ? t->momentum[i] : 0) + value;
            }
        }
        states[r] = at;
        bytes[r] = h.state_bytes;
        t->skipped = h.skipped;
    }
    if (enough) {
        status = exchange_load(&t->exchange, states, bytes, m->nranks);
    }
    t->step = m->step;
    free(states);
    free(bytes);
    free(momentum);
    return status;
}

/* Let rank 0 look for generations, and tell the others: the complete ones, then the newest
 * incomplete one; -1: none. */
static dcomm_status find_generations(trainer *t, int32_t steps[TRIED + 1])
{
    for (int i = 0; i <= TRIED; i++) {
        steps[i] = -1;
    }
    if (t->rank == 0) {
        files_list(t->o->checkpoint, true, steps, TRIED);
        files_list(t->o->checkpoint, false, steps + TRIED, 1);
    }
    return dcomm_broadcast(t->comm, DCOMM_IN_PLACE, steps, TRIED + 1, DCOMM_I32, 0, NULL);
}

static int resume_failed(const trainer *t, const char *what)
{
    const char *why = dcomm_last_error();
    fprintf(stderr, "trainer: rank %d: %s%s%s\n", t->rank, what, *why != '\0' ? ": " : "", why);
    return EXIT_COMM;
}

int checkpoint_resume(trainer *t)
{
    int32_t steps[TRIED + 1];
    manifest *m = calloc(1, sizeof *m);
    char **files = calloc(FILES_RANKS, sizeof *files), why[FILES_WHY];
    int result = EXIT_GOOD;
    bool found = false;
    if (m == NULL || files == NULL || find_generations(t, steps) < 0) {
        result = resume_failed(t, "looking for a checkpoint");
    }
    if (result == EXIT_GOOD && t->rank == 0 && steps[TRIED] > steps[0]) {
        printf("the checkpoint of step %d is not complete\n", steps[TRIED]);
    }
    for (int i = 0; i < TRIED && steps[i] >= 0 && !found && result == EXIT_GOOD; i++) {
        /* All ranks take the same generation: the lowest rank that cannot read it says so. */
        bool good = read_generation(t, steps[i], m, files, why) == 0;
        int32_t bad = good ? INT32_MAX : t->rank;
        if (dcomm_allreduce(t->comm, DCOMM_IN_PLACE, &bad, 1, DCOMM_I32, DCOMM_MIN, NULL) < 0) {
            result = resume_failed(t, "agreeing on a checkpoint");
        } else if (bad == t->rank) {
            fprintf(stderr, "trainer: rank %d: %s\n", t->rank, why);
        }
        found = bad == INT32_MAX;
        if (found && restore(t, m, files) < 0) {
            result = resume_failed(t, "the checkpoint does not fit the options of the exchange");
        }
        for (int r = 0; r < FILES_RANKS; r++) {
            free(files[r]);
            files[r] = NULL;
        }
    }
    if (result == EXIT_GOOD && t->rank == 0) {
        if (found) {
            printf("goes on from the checkpoint of step %d, which %d rank%s wrote\n", t->step,
                   m->nranks, m->nranks == 1 ? "" : "s");
        } else if (steps[0] >= 0) {
            fprintf(stderr, "trainer: no checkpoint in %s can be read\n", t->o->checkpoint);
        } else {
            printf("no checkpoint in %s: starts anew\n", t->o->checkpoint);
        }
    }
    result = result == EXIT_GOOD && !found && steps[0] >= 0 ? EXIT_USAGE : result;
    if (result == EXIT_USAGE && dcomm_barrier(t->comm, NULL) < 0) {
        result =
            EXIT_COMM; /* nobody leaves before rank 0 has printed: a launcher ends the others */
    }
    t->resumed = t->step;
    free(m);
    free(files);
    return result;
}
