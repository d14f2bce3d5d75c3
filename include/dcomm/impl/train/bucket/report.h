/* report.h - the times of steps: spans and percentiles over the last steps, and a trace. */
#ifndef DCOMMI_BUCKET_REPORT_H
#define DCOMMI_BUCKET_REPORT_H

#include "step.h"

/* ---- the books ---- */

/* Return the seconds in which at least one bucket was under way. Buckets started in order. */
static double dcommi_bkt_under_way(const dcomm_buckets *b)
{
    double sum = 0, until = 0;
    for (size_t i = 0; i < b->layout.n; i++) {
        const dcommi_bkt *k = &b->layout.buckets[i];
        double from = k->start_at > until ? k->start_at : until;
        sum += k->done_at > from ? k->done_at - from : 0;
        until = k->done_at > until ? k->done_at : until;
    }
    return sum;
}

static void dcommi_bkt_keep(dcomm_buckets *b, double end_at)
{
    dcommi_bkt_kept *kept = &b->kept[b->sent_steps % b->opts.trace_steps];
    kept->step = b->steps;
    kept->begin_at = b->begin_at;
    kept->wait_at = b->wait_at;
    kept->end_at = end_at;
    kept->nbuckets = b->layout.n;
    for (size_t i = 0; i < b->nparams; i++) {
        const dcommi_bkt_param *p = &b->params[i];
        kept->ready[i] = atomic_load(&p->mark) == DCOMMI_BKT_READY ? p->ready_at : 0;
    }
    for (size_t i = 0; i < b->layout.n; i++) {
        kept->start[i] = b->layout.buckets[i].start_at;
        kept->done[i] = b->layout.buckets[i].done_at;
    }
}

/* Record the times of a step that has sent. */
static void dcommi_bkt_record(dcomm_buckets *b)
{
    double end_at = dcommi_now();
    size_t at = b->sent_steps % b->history;
    b->spans[DCOMMI_BKT_STEP][at] = end_at - b->begin_at;
    b->spans[DCOMMI_BKT_BACKWARD][at] = b->wait_at - b->begin_at;
    b->spans[DCOMMI_BKT_COMM][at] = dcommi_bkt_under_way(b);
    b->spans[DCOMMI_BKT_EXPOSED][at] = end_at - b->wait_at;
    for (size_t i = 0; i < b->layout.n; i++) {
        dcommi_bkt *k = &b->layout.buckets[i];
        k->durations[at] = k->done_at - k->start_at;
    }
    if (b->opts.trace_steps > 0) {
        dcommi_bkt_keep(b, end_at);
    }
    dcommi_bkt_paces_note(b, end_at);
}

/* ---- reports ---- */

/* Return the percentiles of n times, the last step's first. They are sorted. */
static dcomm_bucket_time dcommi_bkt_percentiles(double *times, size_t n)
{
    dcomm_bucket_time t = {0};
    if (n > 0) {
        t.last = times[0];
        qsort(times, n, sizeof *times, dcommi_bkt_by_time);
        t.p50 = times[(n * 50 + 99) / 100 - 1];
        t.p95 = times[(n * 95 + 99) / 100 - 1];
        t.p99 = times[(n * 99 + 99) / 100 - 1];
    }
    return t;
}

/* Return the times of the last n steps in a ring. `room` is as long as the ring. */
static dcomm_bucket_time dcommi_bkt_time(const dcomm_buckets *b, const double *ring, size_t n,
                                         double *room)
{
    for (size_t i = 0; i < n; i++) {
        room[i] = ring[(b->sent_steps - 1 - i) % b->history];
    }
    return dcommi_bkt_percentiles(room, n);
}

static dcomm_status dcommi_bkt_check_idle(const char *what, dcomm_buckets *b, const void *out)
{
    if (b == NULL || out == NULL) {
        return dcommi_fail(DCOMM_ERR_INVALID, "%s: %s is NULL", what,
                           b == NULL ? "b" : "the last argument");
    }
    return atomic_load(&b->open) && atomic_load(&b->failed) == 0
               ? dcommi_fail(DCOMM_ERR_INVALID, "%s: step %" PRIu64 " is under way", what, b->steps)
               : DCOMM_OK;
}

DCOMM_API dcomm_status dcomm_buckets_get_report(dcomm_buckets *b, dcomm_buckets_report *report)
{
    DCOMMI_TRY(dcommi_bkt_check_idle("dcomm_buckets_get_report", b, report));
    size_t n = b->sent_steps < b->history ? (size_t)b->sent_steps : b->history;
    double *room = dcommi_calloc(b->history, sizeof *room);
    if (room == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    *report = (dcomm_buckets_report){.steps = n, .bytes = b->bytes};
    report->step = dcommi_bkt_time(b, b->spans[DCOMMI_BKT_STEP], n, room);
    report->backward = dcommi_bkt_time(b, b->spans[DCOMMI_BKT_BACKWARD], n, room);
    report->comm = dcommi_bkt_time(b, b->spans[DCOMMI_BKT_COMM], n, room);
    report->exposed = dcommi_bkt_time(b, b->spans[DCOMMI_BKT_EXPOSED], n, room);
    dcommi_free(room);
    for (size_t i = 0; i < b->layout.n; i++) {
        report->alone_s += b->layout.buckets[i].alone_s;
    }
    double all = report->alone_s > 0 ? report->alone_s : report->comm.last;
    double most = report->backward.last < all ? report->backward.last : all;
    report->hidden_s = all > report->exposed.last ? all - report->exposed.last : 0;
    report->efficiency = most <= 0 ? 0 : report->hidden_s >= most ? 1 : report->hidden_s / most;
    return DCOMM_OK;
}

DCOMM_API dcomm_status dcomm_buckets_get_stragglers(dcomm_buckets *b,
                                                    dcomm_buckets_straggler *ranks, size_t n)
{
    DCOMMI_TRY(dcommi_bkt_check_idle("dcomm_buckets_get_stragglers", b, b));
    if (ranks == NULL || n != (size_t)b->size) {
        return dcommi_fail(DCOMM_ERR_INVALID,
                           "dcomm_buckets_get_stragglers: ranks is %p and n is %zu; there are %d "
                           "ranks",
                           (void *)ranks, n, b->size);
    }
    const dcommi_bkt_paces *p = b->paces;
    const size_t steps = p->steps < b->history ? (size_t)p->steps : b->history;
    double *room = dcommi_calloc(b->history, sizeof *room);
    if (room == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    for (size_t r = 0; r < n; r++) {
        for (size_t i = 0; i < steps; i++) {
            room[i] = (double)p->late[(p->steps - 1 - i) % b->history * n + r];
        }
        ranks[r] = (dcomm_buckets_straggler){.steps = p->steps,
                                             .last = p->ranks[r].last,
                                             .caused_s = p->ranks[r].caused_s,
                                             .late = dcommi_bkt_percentiles(room, steps)};
    }
    dcommi_free(room);
    return DCOMM_OK;
}

DCOMM_API dcomm_status dcomm_bucket_get_info(dcomm_buckets *b, size_t k, dcomm_bucket_info *info)
{
    DCOMMI_TRY(dcommi_bkt_check_idle("dcomm_bucket_get_info", b, info));
    if (k >= b->layout.n) {
        return dcommi_fail(DCOMM_ERR_INVALID,
                           "dcomm_bucket_get_info: k is %zu; there are %zu buckets", k,
                           b->layout.n);
    }
    const dcommi_bkt *bucket = &b->layout.buckets[k];
    const dcomm_codec *codec = b->kinds[bucket->kind].codec;
    uint64_t sent = b->sent_steps - b->built_at;
    double *room = dcommi_calloc(b->history, sizeof *room);
    if (room == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    *info = (dcomm_bucket_info){
        .nparams = bucket->nparams,
        .count = bucket->count,
        .bytes = bucket->bytes,
        .dtype = b->kinds[bucket->kind].dtype,
        .codec = codec != NULL ? dcomm_codec_spec(codec) : NULL,
        .feedback = bucket->feedback,
        .in_place = !bucket->copies,
        .device = bucket->device != NULL ? bucket->device->number : -1,
        .alone_s = bucket->alone_s,
        .time = dcommi_bkt_time(b, bucket->durations, sent < b->history ? (size_t)sent : b->history,
                                room)};
    dcommi_free(room);
    if (sent > 0) {
        info->ready_s = bucket->ready_at - b->begin_at;
        info->start_s = bucket->start_at - b->begin_at;
        info->done_s = bucket->done_at - b->begin_at;
    }
    return DCOMM_OK;
}

/* ---- buckets alone ---- */

/* Time the sum of one bucket, where it lies. */
static dcomm_status dcommi_bkt_alone(dcomm_buckets *b, dcommi_bkt *k, double *seconds)
{
    dcomm_coll_opts opts = b->opts.coll, patience = dcommi_bkt_patience(b);
    dcomm_request *request = NULL;
    opts.codec = b->kinds[k->kind].codec;
    opts.premul = b->opts.weighted || b->opts.predivide ? 1 : 0;
    opts.device = opts.device || k->device != NULL;
    DCOMMI_TRY(dcomm_barrier(b->comm, &patience));
    double start = dcommi_now();
    DCOMMI_TRY(dcommi_bkt_send(b, k, k->data, &opts, &request));
    DCOMMI_TRY(dcomm_wait(&request));
    *seconds = dcommi_now() - start;
    return DCOMM_OK;
}

/* Time all buckets in each round, so that none is in a cache because it was just sent. */
static dcomm_status dcommi_bkt_rounds(dcomm_buckets *b, double *times, int rounds)
{
    for (int round = -1; round < rounds; round++) { /* once to warm up */
        for (size_t i = 0; i < b->layout.n; i++) {
            double *seconds = &times[i * (size_t)rounds + (size_t)(round < 0 ? 0 : round)];
            DCOMMI_TRY(dcommi_bkt_alone(b, &b->layout.buckets[i], seconds));
        }
    }
    for (size_t i = 0; i < b->layout.n; i++) {
        double *own = times + i * (size_t)rounds;
        qsort(own, (size_t)rounds, sizeof *own, dcommi_bkt_by_time);
        b->layout.buckets[i].alone_s = own[rounds / 2];
    }
    return DCOMM_OK;
}

/* Agree on the rounds: an error or a difference on one rank is an error on all. Without one
 * *times_p is allocated. */
static dcomm_status dcommi_bkt_agree_rounds(dcomm_buckets *b, int rounds, double **times_p)
{
    dcomm_status status = DCOMM_OK;
    if (rounds < 1 || rounds > 10000) {
        status = dcommi_fail(DCOMM_ERR_INVALID,
                             "dcomm_buckets_calibrate: rounds is %d; it may be 1 to 10000", rounds);
    } else if ((*times_p = dcommi_calloc(b->layout.n, (size_t)rounds * sizeof **times_p)) == NULL) {
        status = DCOMM_ERR_NO_MEMORY;
    }
    dcommi_bkt_card own = dcommi_bkt_card_of(status), *cards;
    own.nparams = (uint64_t)rounds;
    status = dcommi_bkt_exchange(b, &own, &cards);
    for (int r = 1; r < b->size && status >= 0; r++) {
        if (cards[r].nparams != cards[0].nparams) {
            status = dcommi_fail(DCOMM_ERR_MISMATCH,
                                 "dcomm_buckets_calibrate: %" PRIu64
                                 " rounds on rank 0 and %" PRIu64 " on rank %d",
                                 cards[0].nparams, cards[r].nparams, r);
        }
    }
    dcommi_give_back(b->comm, cards);
    if (status < 0) {
        dcommi_free(*times_p);
    }
    return status;
}

/* Return the status. If the communicator has not survived the error, fail the buckets. */
static dcomm_status dcommi_bkt_over(dcomm_buckets *b, dcomm_status status)
{
    return status < 0 && dcomm_comm_status(b->comm) < 0 ? dcommi_bkt_good(b, status) : status;
}

DCOMM_API dcomm_status dcomm_buckets_calibrate(dcomm_buckets *b, int rounds)
{
    DCOMMI_TRY(dcommi_bkt_check("dcomm_buckets_calibrate", b));
    DCOMMI_TRY(dcommi_bkt_check_idle("dcomm_buckets_calibrate", b, b));
    double *times = NULL;
    DCOMMI_TRY(dcommi_bkt_over(b, dcommi_bkt_agree_rounds(b, rounds, &times)));
    dcomm_status status = DCOMM_OK;
    for (size_t i = 0; i < b->layout.n && status >= 0; i++) {
        dcommi_bkt *k = &b->layout.buckets[i];
        status = dcommi_bkt_zero(k, k->data, k->bytes);
        DCOMMI_THEN(status, dcommi_bkt_unsettle(k));
        DCOMMI_THEN(status, dcommi_bkt_settle_all(b, k));
    }
    status = status < 0 ? dcommi_bkt_good(b, status) /* the others must not wait */
                        : dcommi_bkt_over(b, dcommi_bkt_rounds(b, times, rounds));
    dcommi_free(times);
    return status;
}

/* ---- trace ---- */

static void dcommi_bkt_print_name(FILE *file, const char *name)
{
    for (; *name != 0; name++) {
        if (*name == '"' || *name == '\\') {
            fprintf(file, "\\%c", *name);
        } else if ((unsigned char)*name < ' ') {
            fprintf(file, "\\u%04x", (unsigned char)*name);
        } else {
            fputc(*name, file);
        }
    }
}

/* Print a span, whose times are in seconds. The trace has microseconds. */
static void dcommi_bkt_print_span(const dcomm_buckets *b, FILE *file, const char *what,
                                  size_t number, size_t line, uint64_t step, double from, double to)
{
    fprintf(file, ",\n{\"name\":\"%s", what);
    if (line > 0) {
        fprintf(file, " %zu", number);
    }
    fprintf(file,
            "\",\"ph\":\"X\",\"pid\":%d,\"tid\":%zu,\"ts\":%.3f,\"dur\":%.3f,"
            "\"args\":{\"step\":%" PRIu64 "}}",
            b->rank, line, from * 1e6, (to - from) * 1e6, step);
}

static void dcommi_bkt_print_step(const dcomm_buckets *b, FILE *file, const dcommi_bkt_kept *kept)
{
    dcommi_bkt_print_span(b, file, "backward", 0, 0, kept->step, kept->begin_at, kept->wait_at);
    dcommi_bkt_print_span(b, file, "wait", 0, 0, kept->step, kept->wait_at, kept->end_at);
    for (size_t i = 0; i < b->nparams; i++) {
        if (kept->ready[i] > 0) {
            fprintf(file, ",\n{\"name\":\"");
            dcommi_bkt_print_name(file, b->params[i].name);
            fprintf(file, "\",\"ph\":\"i\",\"s\":\"t\",\"pid\":%d,\"tid\":0,\"ts\":%.3f}", b->rank,
                    kept->ready[i] * 1e6);
        }
    }
    for (size_t i = 0; i < kept->nbuckets; i++) {
        dcommi_bkt_print_span(b, file, "bucket", i, i + 1, kept->step, kept->start[i],
                              kept->done[i]);
    }
}

DCOMM_API dcomm_status dcomm_buckets_trace(dcomm_buckets *b, const char *path)
{
    DCOMMI_TRY(dcommi_bkt_check_idle("dcomm_buckets_trace", b, path));
    if (b->opts.trace_steps == 0) {
        return dcommi_fail(DCOMM_ERR_INVALID,
                           "dcomm_buckets_trace: no step was kept, for opts.trace_steps is 0");
    }
    FILE *file = fopen(path, "w");
    if (file == NULL) {
        return dcommi_fail(DCOMM_ERR_SYSTEM, "dcomm_buckets_trace: cannot write %s: %s", path,
                           strerror(errno));
    }
    locale_t before = dcommi_locale_enter();
    fprintf(file,
            "[{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%d,\"args\":{\"name\":\"rank %d\"}}",
            b->rank, b->rank);
    fprintf(file,
            ",\n{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":0,"
            "\"args\":{\"name\":\"backward\"}}",
            b->rank);
    for (size_t i = 0; i < b->layout.n; i++) {
        fprintf(file,
                ",\n{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":%zu,"
                "\"args\":{\"name\":\"bucket %zu, %zu bytes\"}}",
                b->rank, i + 1, i, b->layout.buckets[i].bytes);
    }
    uint64_t n = b->sent_steps < b->opts.trace_steps ? b->sent_steps : b->opts.trace_steps;
    for (uint64_t i = b->sent_steps - n; i < b->sent_steps; i++) {
        dcommi_bkt_print_step(b, file, &b->kept[i % b->opts.trace_steps]);
    }
    fprintf(file, "]\n");
    dcommi_locale_leave(before);
    bool bad = ferror(file) != 0;
    return fclose(file) != 0 || bad
               ? dcommi_fail(DCOMM_ERR_SYSTEM, "dcomm_buckets_trace: cannot write %s", path)
               : DCOMM_OK;
}

#endif
