/* summary.c - the end of a run: its loss, traffic and checksum, printed and as JSON. */
#define _GNU_SOURCE
#include "files.h"
#include "mode.h"
#include "trainer.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EVALUATED = 128 }; /* sequences */

/* Compute the mean loss over held-out sequences, which do not depend on the number of ranks. */
static dcomm_status evaluate(trainer *t, double *loss)
{
    *loss = 0;
    for (int s = part(t, EVALUATED, t->rank); s < part(t, EVALUATED, t->rank + 1); s++) {
        const int *tokens = draw(t, 0, s, true);
        *loss += model_forward(t->model, tokens, tokens + 1, t->o->seq) / EVALUATED;
    }
    return dcomm_allreduce(t->comm, DCOMM_IN_PLACE, loss, 1, DCOMM_F64, DCOMM_SUM, NULL);
}

/* Check that the weights are bitwise equal on all ranks: the smallest checksum must be the
 * largest. */
static dcomm_status compare_weights(trainer *t, summary *s)
{
    s->checksum = checksum(model_params(t->model), model_count(t->model));
    uint64_t low = s->checksum, high = low;
    dcomm_status status =
        dcomm_allreduce(t->comm, DCOMM_IN_PLACE, &low, 1, DCOMM_U64, DCOMM_MIN, NULL);
    if (status >= 0) {
        status = dcomm_allreduce(t->comm, DCOMM_IN_PLACE, &high, 1, DCOMM_U64, DCOMM_MAX, NULL);
    }
    s->equal = low == high;
    return status;
}

/* Sum up traffic and time over the ranks. */
static dcomm_status sum_up(trainer *t, summary *s)
{
    uint64_t codec_ns = 0;
    dcomm_status status = trainer_traffic(t, &s->wire_bytes, &codec_ns);
    s->codec_seconds = 1e-9 * (double)codec_ns;
    s->wire_total = s->wire_bytes;
    s->comm_seconds = t->comm_seconds;
    if (status >= 0) {
        status =
            dcomm_allreduce(t->comm, DCOMM_IN_PLACE, &s->wire_bytes, 1, DCOMM_U64, DCOMM_MAX, NULL);
    }
    if (status >= 0) {
        status =
            dcomm_allreduce(t->comm, DCOMM_IN_PLACE, &s->wire_total, 1, DCOMM_U64, DCOMM_SUM, NULL);
    }
    if (status >= 0) {
        status = dcomm_allreduce(t->comm, DCOMM_IN_PLACE, &s->comm_seconds, 1, DCOMM_F64, DCOMM_AVG,
                                 NULL);
    }
    if (status >= 0) {
        status = dcomm_allreduce(t->comm, DCOMM_IN_PLACE, &s->codec_seconds, 1, DCOMM_F64,
                                 DCOMM_AVG, NULL);
    }
    if (status >= 0) {
        status = exchange_explain(&t->exchange, &s->algo);
    }
    s->algo = t->mode == &mode_ps ? "none" : s->algo;
    return status;
}

dcomm_status summary_compute(trainer *t, summary *s)
{
    dcomm_status status = sum_up(t, s);
    if (status >= 0) {
        status = evaluate(t, &s->loss);
    }
    return status >= 0 ? compare_weights(t, s) : status;
}

/* Let the model continue the held-out text from a random place. */
static void write_sample(trainer *t)
{
    int seq = t->o->seq, vocab = t->text.vocab;
    int *window = malloc((size_t)seq * sizeof *window);
    double *weights = malloc((size_t)vocab * sizeof *weights);
    if (window != NULL && weights != NULL) {
        memcpy(window, draw(t, 1, 0, true), (size_t)seq * sizeof *window);
        printf("\nThe model writes:\n");
        for (int i = 0; i < t->o->sample; i++) {
            model_forward(t->model, window, NULL, seq);
            const float *logits = model_logits(t->model, seq - 1);
            double sum = 0;
            for (int v = 0; v < vocab; v++) {
                weights[v] = exp((double)logits[v] / 0.7);
                sum += weights[v];
            }
            double at =
                (double)(model_random((uint64_t)t->o->seed, 4, (uint64_t)i) >> 11) * 0x1p-53 * sum;
            int next = 0;
            while (next < vocab - 1 && at >= weights[next]) {
                at -= weights[next++];
            }
            putchar(t->text.byte_of[next]);
            memmove(window, window + 1, (size_t)(seq - 1) * sizeof *window);
            window[seq - 1] = next;
        }
        printf("\n\n");
    }
    free(window);
    free(weights);
}

/* Write what was measured, or null. */
static void write_measured(const trainer *t, FILE *file)
{
    fprintf(file, ",\"parts\":%s", t->o->balance ? "[" : "null");
    for (int r = 0; r < t->nranks && t->o->balance; r++) {
        fprintf(file, "%d%s", balance_first(t, r + 1) - balance_first(t, r),
                r + 1 < t->nranks ? "," : "]");
    }
    double scale = noise_scale(t);
    if (isfinite(scale)) {
        fprintf(file, ",\"noise_scale\":%.6g", scale);
    } else {
        fprintf(file, ",\"noise_scale\":null");
    }
}

static int write_json(const trainer *t, const summary *s)
{
    FILE *file = fopen(t->o->json, "w");
    if (file == NULL) {
        fprintf(stderr, "trainer: cannot write %s\n", t->o->json);
        return EXIT_USAGE;
    }
    fprintf(file,
            "{\"schema\":1,\"tool\":\"trainer\",\"mode\":\"%s\",\"nranks\":%d,\"algo\":\"%s\","
            "\"codec\":\"%s\","
            "\"feedback\":\"%s\",\"optimizer\":\"%s\",\"exact_steps\":%d,\"seed\":%d,\"steps\":%d,"
            "\"batch\":%d,\"seq\":%d,\"bucket_kib\":%d,\"grad_dtype\":\"%s\",\"loss_scale\":%.9g,"
            "\"skipped\":%d,"
            "\"resumed\":%d,\"lost\":%d,\"joined\":%d,\"parameters\":%zu,\"final_loss\":%.9g,"
            "\"train_s\":%.6g,"
            "\"comm_s\":%.6g,\"codec_s\":%.6g,\"wire_bytes\":%" PRIu64
            ",\"wire_bytes_total\":%" PRIu64
            ",\"staleness\":[%.6g,%.6g,%.6g],\"checksum\":\"%016" PRIx64 "\"",
            t->mode != NULL ? t->o->mode.name : "data-parallel", t->nranks, s->algo,
            t->o->codec != NULL ? t->o->codec : "none",
            t->o->feedback != NULL ? t->o->feedback : "none", t->o->optimizer,
            t->o->frozen ? t->o->exact_steps : 0, t->o->seed, t->o->steps, t->o->batch, t->o->seq,
            t->o->buckets, dcomm_dtype_name(t->o->grad_dtype),
            t->exchange.scaler != NULL ? dcomm_scaler_scale(t->exchange.scaler) : 1, t->skipped,
            t->resumed, t->lost, t->joined, model_count(t->model), s->loss, s->seconds,
            s->comm_seconds, s->codec_seconds, s->wire_bytes, s->wire_total, t->staleness[0],
            t->staleness[1], t->staleness[2], s->checksum);
    write_measured(t, file);
    for (int i = 0; i < t->o->steps; i++) {
        fprintf(file, "%s%.6g", i > 0 ? "," : ",\"loss\":[", t->losses[i]);
    }
    fprintf(file, "]}\n");
    return fclose(file) == 0 ? EXIT_GOOD : EXIT_USAGE;
}

int summary_write(trainer *t, const summary *s)
{
    if (t->o->sample > 0) {
        write_sample(t);
    }
    bool server = t->mode == &mode_ps;
    printf("final loss %.4f (held-out text), %.1f s, of which %s (%s) %.2f s, of which the codec "
           "%.2f s\n"
           "%.1f MB on the wire per rank, weights %016" PRIx64 " %s all ranks\n",
           s->loss, s->seconds, server ? "parameter server" : "all-reduce",
           server ? t->o->mode.name : s->algo, s->comm_seconds, s->codec_seconds,
           (double)s->wire_bytes * 1e-6, s->checksum, s->equal ? "equal on" : "DIFFER between");
    balance_report(t);
    noise_report(t);
    return t->o->json != NULL ? write_json(t, s) : EXIT_GOOD;
}

static int by_value(const void *x, const void *y)
{
    double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

/* Time a sequence's backward pass without communication: the median, on the slowest rank. */
static dcomm_status time_backward(trainer *t, double *seconds)
{
    enum { ROUNDS = 9 };
    double took[ROUNDS];
    for (int i = 0; i < ROUNDS; i++) {
        const int *tokens = draw(t, i, balance_first(t, t->rank), false);
        memset(model_gradients(t->model), 0, model_count(t->model) * sizeof(float));
        model_forward(t->model, tokens, tokens + 1, t->o->seq);
        double start = now();
        model_backward(t->model, tokens, tokens + 1, t->o->seq);
        took[i] = now() - start;
    }
    qsort(took, ROUNDS, sizeof *took, by_value);
    *seconds = took[ROUNDS / 2];
    return dcomm_allreduce(t->comm, DCOMM_IN_PLACE, seconds, 1, DCOMM_F64, DCOMM_MAX, NULL);
}

dcomm_status summary_report(trainer *t)
{
    dcomm_buckets_report r;
    double backward = 0;
    dcomm_status status = exchange_report(&t->exchange, &r);
    if (status >= 0) {
        status = time_backward(t, &backward);
    }
    if (status >= 0 && t->rank == 0) {
        const dcomm_bucket_time *const times[] = {&r.step, &r.backward, &r.comm, &r.exposed};
        static const char *const names[] = {"step", "backward", "under way", "exposed"};
        printf("buckets, ms, of %" PRIu64 " steps    p50      p95      p99\n", r.steps);
        for (int i = 0; i < 4; i++) {
            printf("%-24s %8.2f %8.2f %8.2f\n", names[i], times[i]->p50 * 1e3, times[i]->p95 * 1e3,
                   times[i]->p99 * 1e3);
        }
        double shorter = fmin(backward, r.alone_s), longer = fmax(backward, r.alone_s);
        printf("backward alone %.2f ms, all buckets alone %.2f ms: a step takes %.2f times the "
               "longer, and hides %.0f%% of the shorter\n",
               backward * 1e3, r.alone_s * 1e3, r.step.p50 / longer,
               100 * (backward + r.alone_s - r.step.p50) / shorter);
    }
    return status;
}
