/* balance.c - a batch that is divided by the ranks' speeds. */
#define _GNU_SOURCE
#include "elastic.h"
#include "trainer.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { EVERY = 10 }; /* steps */

int balance_first(const trainer *t, int rank)
{
    return t->balance.cuts != NULL ? t->balance.cuts[rank] : part(t, t->o->batch, rank);
}

void balance_note(trainer *t, int samples, double seconds)
{
    t->balance.samples += samples;
    t->balance.seconds += seconds;
}

/* Let each rank have a sample at least, from the rank that has most: so its speed stays known. */
static void spare_one_each(size_t *counts, int n)
{
    for (int r = 0; r < n; r++) {
        if (counts[r] == 0) {
            int most = 0;
            for (int k = 1; k < n; k++) {
                most = counts[k] > counts[most] ? k : most;
            }
            counts[most]--;
            counts[r]++;
        }
    }
}

/* Divide the batch by these speeds. It stays as it is if a rank has no speed: it has just come. */
static dcomm_status divide(trainer *t, const double *speeds, size_t *counts, int *cuts)
{
    for (int r = 0; r < t->nranks; r++) {
        if (!(speeds[r] > 0)) {
            return DCOMM_OK;
        }
    }
    dcomm_status status = dcomm_share((size_t)t->o->batch, speeds, NULL, (size_t)t->nranks, counts);
    if (status >= 0) {
        spare_one_each(counts, t->nranks);
        cuts[0] = 0;
        for (int r = 0; r < t->nranks; r++) {
            cuts[r + 1] = cuts[r] + (int)counts[r];
        }
    }
    return status;
}

static dcomm_status exchange_speeds(trainer *t)
{
    size_t n = (size_t)t->nranks;
    balance *b = &t->balance;
    double mine = b->seconds > 0 ? b->samples / b->seconds : 0;
    double *speeds = calloc(n, sizeof *speeds);
    size_t *counts = calloc(n, sizeof *counts);
    int *cuts = calloc(n + 1, sizeof *cuts);
    dcomm_status status = speeds != NULL && counts != NULL && cuts != NULL
                              ? dcomm_allgather(t->comm, &mine, speeds, 1, DCOMM_F64, NULL)
                              : DCOMM_ERR_NO_MEMORY;
    if (status >= 0) {
        status = divide(t, speeds, counts, cuts);
    }
    if (status >= 0 && cuts[n] > 0) {
        free(b->cuts);
        b->cuts = cuts;
        cuts = NULL;
    }
    free(speeds);
    free(counts);
    free(cuts);
    return status;
}

dcomm_status balance_step(trainer *t)
{
    if (!t->o->balance || t->step % EVERY != 0) {
        return DCOMM_OK;
    }
    dcomm_status status = together(t, exchange_speeds);
    t->balance.samples = 0;
    t->balance.seconds = 0;
    return status;
}

void balance_reset(trainer *t)
{
    free(t->balance.cuts);
    t->balance = (balance){0};
}

void balance_report(const trainer *t)
{
    if (t->o->balance) {
        printf("the last batch is divided into");
        for (int r = 0; r < t->nranks; r++) {
            printf(" %d", balance_first(t, r + 1) - balance_first(t, r));
        }
        printf(", by speed\n");
    }
}

void balance_slow(const trainer *t, double seconds)
{
    if (t->rank == t->o->slow_rank) {
        double rest = (t->o->slow_times - 1) * seconds;
        struct timespec pause = {.tv_sec = (time_t)rest,
                                 .tv_nsec = (long)((rest - (double)(time_t)rest) * 1e9)};
        nanosleep(&pause, NULL);
    }
}
