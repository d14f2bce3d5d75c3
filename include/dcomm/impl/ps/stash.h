/* stash.h - pushes that count at the end of a clock. A worker may push the same rows again and
 * again: before its pushes take more memory than a few times the rows, they are added up. */
#ifndef DCOMMI_PS_STASH_H
#define DCOMMI_PS_STASH_H

#include "store.h"

/* Return the most bytes that the pushes of one worker to a parameter take: three times all rows,
 * listed. Added up they take twice that at most, so adding them is seldom. */
static size_t dcommi_ps_stash_bound(const dcomm_ps *ps, size_t i)
{
    const size_t row = sizeof(uint64_t) + (size_t)ps->tables[i].cols * sizeof(float);
    return 3 * ((size_t)ps->tables[i].rows * row + sizeof(dcommi_ps_job));
}

static bool dcommi_ps_has_stash(const dcomm_ps *ps, int worker)
{
    size_t i = 0;
    while (i < ps->nparams && ps->from[worker].stash[i].first == NULL) {
        i++;
    }
    return i < ps->nparams;
}

/* Put a push behind those of its worker and parameter. */
static void dcommi_ps_stash_put(dcommi_ps_stash *s, dcommi_ps_job *job)
{
    job->next = NULL;
    *(s->last != NULL ? &s->last->next : &s->first) = job;
    s->last = job;
    s->bytes += sizeof *job + job->len;
}

/* Return the first row from r on that has a sum. */
static uint64_t dcommi_ps_touched_from(const dcomm_ps *ps, uint64_t r, uint64_t rows)
{
    const uint8_t *at = r < rows ? memchr(ps->touched + r, 1, (size_t)(rows - r)) : NULL;
    return at != NULL ? (uint64_t)(at - ps->touched) : rows;
}

/* Take a sum out of the server's memory for sums, as a push of the rows that have one. NULL without
 * memory. */
static dcommi_ps_job *dcommi_ps_sum_take(dcomm_ps *ps, size_t i)
{
    const dcommi_ps_table *t = &ps->tables[i];
    const size_t row = (size_t)t->cols * sizeof(float);
    size_t n = 0;
    for (uint64_t r = 0; (r = dcommi_ps_touched_from(ps, r, t->rows)) < t->rows; r++) {
        n++;
    }
    dcommi_ps_job *job = dcommi_alloc(sizeof *job);
    uint8_t *data = job != NULL ? dcommi_alloc_raw(n * (sizeof(uint64_t) + row)) : NULL;
    if (data == NULL) {
        dcommi_free(job);
        return NULL;
    }
    uint64_t *list = (uint64_t *)(void *)data;
    uint8_t *values = data + n * sizeof *list;
    for (uint64_t r = 0; (r = dcommi_ps_touched_from(ps, r, t->rows)) < t->rows; r++) {
        *list++ = t->first + r;
        memcpy(values, ps->sum + r * t->cols, row);
        values += row;
    }
    *job =
        (dcommi_ps_job){.ps = ps,
                        .header = {.slot = DCOMMI_PS_PUSH, .stage = 1, .tag = (uint32_t)i, .b = n},
                        .data = data,
                        .len = (size_t)(values - data)};
    return job;
}

/* Add up the pushes of a worker to a parameter, in their order: those of clocks that it has ended,
 * and the others. Without memory they stay as they are. */
static void dcommi_ps_fold(dcomm_ps *ps, dcommi_ps_stash *s, size_t i, bool whole)
{
    uint64_t jobs = 0, pushes = 0;
    for (const dcommi_ps_job *job = s->first; job != NULL; job = job->next) {
        jobs += job->whole == whole;
    }
    if (jobs < 2) {
        return;
    }
    for (const dcommi_ps_job *job = s->first; job != NULL; job = job->next) {
        if (job->whole == whole) {
            dcommi_ps_sum_add(ps, &job->header, job->data, 0, ps->tables[i].rows);
            pushes += job->pushes;
        }
    }
    dcommi_ps_job *sum = dcommi_ps_sum_take(ps, i), *job = s->first;
    memset(ps->touched, 0, (size_t)ps->tables[i].rows);
    if (sum == NULL) {
        return;
    }
    sum->whole = whole;
    sum->pushes = pushes;
    sum->from = job->from;
    *s = (dcommi_ps_stash){0};
    while (job != NULL) {
        dcommi_ps_job *next = job->next;
        if (job->whole == whole) {
            dcommi_ps_job_free(job);
        } else {
            dcommi_ps_stash_put(s, job);
        }
        job = next;
    }
    dcommi_ps_stash_put(s, sum);
}

/* Keep a push until its clock ends. */
static void dcommi_ps_stash_add(dcomm_ps *ps, dcommi_ps_job *job)
{
    const size_t i = job->header.tag;
    dcommi_ps_stash *s = &ps->from[job->from].stash[i];
    job->pushes = 1;
    dcommi_ps_stash_put(s, job);
    if (s->bytes > dcommi_ps_stash_bound(ps, i)) {
        dcommi_ps_fold(ps, s, i, true);
        dcommi_ps_fold(ps, s, i, false);
    }
}

/* A worker ends a clock: its pushes count, even if it dies. */
static void dcommi_ps_stash_whole(dcomm_ps *ps, int worker)
{
    for (size_t i = 0; i < ps->nparams && ps->from[worker].stash != NULL; i++) {
        dcommi_ps_job *job = ps->from[worker].stash[i].first;
        for (; job != NULL; job = job->next) {
            job->whole = true;
        }
    }
}

/* Free the pushes of a worker that wait for the end of a clock; if it is `gone`, only those of a
 * clock that it has not ended. */
static void dcommi_ps_unstash(dcomm_ps *ps, int worker, bool gone)
{
    for (size_t i = 0; i < ps->nparams && ps->from[worker].stash != NULL; i++) {
        dcommi_ps_stash *s = &ps->from[worker].stash[i];
        dcommi_ps_job *job = s->first;
        *s = (dcommi_ps_stash){0};
        while (job != NULL) {
            dcommi_ps_job *next = job->next;
            if (gone && job->whole) {
                dcommi_ps_stash_put(s, job);
            } else {
                ps->stats.dropped += gone ? job->pushes : 0;
                dcommi_ps_job_free(job);
            }
            job = next;
        }
    }
}

#define DCOMMI_PS_BLOCK ((size_t)128 << 10) /* bytes of rows that stay in the processor's cache */

/* Average the pushes to a parameter, each worker's added up first, in the order of ranks; and
 * update the rows. All that is done to a row is done while it is in the cache. */
static void dcommi_ps_stash_apply(dcomm_ps *ps, size_t i, int workers)
{
    const dcommi_ps_table *t = &ps->tables[i];
    const uint64_t fit = DCOMMI_PS_BLOCK / sizeof(float) / t->cols, block = fit > 0 ? fit : 1;
    for (int r = 0; r < ps->size; r++) {
        dcommi_ps_fold(ps, &ps->from[r].stash[i], i, true);
        dcommi_ps_fold(ps, &ps->from[r].stash[i], i, false);
        for (dcommi_ps_job *job = ps->from[r].stash[i].first; job != NULL; job = job->next) {
            job->added = 0;
        }
    }
    for (uint64_t first = 0, end; first < t->rows; first = end) {
        end = t->rows - first < block ? t->rows : first + block;
        for (int r = 0; r < ps->size; r++) {
            for (dcommi_ps_job *job = ps->from[r].stash[i].first; job != NULL; job = job->next) {
                job->added = dcommi_ps_sum_add(ps, &job->header, job->data, job->added, end);
            }
        }
        dcommi_ps_sum_apply(ps, i, first, end, workers);
    }
}

#endif
