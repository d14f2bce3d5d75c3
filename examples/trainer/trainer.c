/* trainer.c - train the model data-parallel. Every rank takes its part of each batch, and an
 * all-reduce sums the gradients. So N ranks do the same as one rank would do alone. */
#define _GNU_SOURCE
#include "dcomm.h"
#include "dump.h"
#include "exchange.h"
#include "model.h"
#include "options.h"
#include "text.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { TENTH = 10, EVALUATED = 128, WARM_UP = 20 }; /* part of the text; sequences; steps */
static const float KEEP_VARIANCE = 0.99f;           /* Adam's second decay */

typedef struct trainer {
    const options *o;
    dcomm_comm *comm;
    exchange exchange;
    int rank, nranks;
    text text;
    model *model;
    float *momentum, *variance; /* state of Adam; see freeze */
    double *losses;             /* loss of each step */
    double comm_seconds;
    int skipped;   /* number of skipped steps */
    bool undumped; /* gradients could not be written */
} trainer;

typedef struct summary {
    double loss;          /* loss on the held-out text */
    double seconds;       /* training time */
    double comm_seconds;  /* within all-reduce, mean over ranks */
    double codec_seconds; /* of these, encoding and decoding */
    uint64_t wire_bytes;  /* most bytes that one rank sent or read */
    uint64_t wire_total;  /* bytes that all ranks sent or read */
    uint64_t checksum;    /* checksum of the weights */
    const char *algo;
} summary;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int comm_failed(const trainer *t, const char *what)
{
    fprintf(stderr, "trainer: rank %d: %s: %s\n", t->rank, what, dcomm_last_error());
    return EXIT_COMM;
}

/* Return sequence number `sample` of batch `step`. It does not depend on the ranks. The last tenth
 * of each tenth of the text is held out. */
static const int *draw(const trainer *t, int step, int sample, bool held_out)
{
    uint64_t random = model_random((uint64_t)t->o->seed, 2 + (uint64_t)held_out,
                                   (uint64_t)step * 65536 + (uint64_t)sample);
    size_t fold = t->text.length / TENTH;
    size_t kept = fold - fold / TENTH;
    size_t length = held_out ? fold / TENTH : kept;
    size_t first = random % TENTH * fold + (held_out ? kept : 0);
    return t->text.tokens + first + random / TENTH % (length - (size_t)t->o->seq);
}

/* Return the first one of a rank's samples. Its part of `total` samples is [part(rank), part(rank
 * + 1)). */
static int part(const trainer *t, int total, int rank)
{
    return (int)((int64_t)total * rank / t->nranks);
}

/* Return the step's learning rate: it rises during WARM_UP steps, then falls along a cosine to a
 * tenth. */
static float rate_of(const options *o, int step)
{
    float progress = (float)step / (float)o->steps;
    float rate = o->rate * (0.55f + 0.45f * cosf(3.14159265f * progress));
    return step < WARM_UP ? rate * (float)(step + 1) / WARM_UP : rate;
}

/* Update by Adam, with the sum of the gradients divided by the batch size. Every rank computes the
 * same update. */
static void update_adam(trainer *t, int step)
{
    const float keep1 = t->o->momentum, keep2 = KEEP_VARIANCE;
    float rate = rate_of(t->o, step);
    float correct1 = 1 / (1 - powf(keep1, (float)(step + 1)));
    float correct2 = 1 / (1 - powf(keep2, (float)(step + 1)));
    float per_sample = 1 / (float)t->o->batch;
    float *params = model_params(t->model);
    const float *gradients = model_gradients(t->model);
    size_t count = model_count(t->model);
    for (size_t i = 0; i < count; i++) {
        float g = gradients[i] * per_sample;
        t->momentum[i] = keep1 * t->momentum[i] + (1 - keep1) * g;
        t->variance[i] = keep2 * t->variance[i] + (1 - keep2) * g * g;
        params[i] -= rate * t->momentum[i] * correct1 / (sqrtf(t->variance[i] * correct2) + 1e-8f);
    }
}

/* Make the variance constant from now on. Store the inverse of its root in its place, and give
 * each rank its part of the momentum. */
static void freeze(trainer *t)
{
    float correct2 = 1 / (1 - powf(KEEP_VARIANCE, (float)t->o->exact_steps));
    for (size_t i = 0; i < model_count(t->model); i++) {
        t->variance[i] = 1 / (sqrtf(t->variance[i] * correct2) + 1e-8f);
        t->momentum[i] /= (float)t->nranks;
    }
}

/* Replace the gradients by this rank's part of the update. With a constant variance the update is
 * linear in the gradients. So a value that error feedback delays has the same effect later.
 * Momentum is applied before the exchange, so it does not act on delayed values again. */
static void propose(trainer *t)
{
    const float keep = t->o->momentum;
    float per_sample = 1 / (float)t->o->batch;
    float *gradients = model_gradients(t->model);
    for (size_t i = 0; i < model_count(t->model); i++) {
        t->momentum[i] = keep * t->momentum[i] + (1 - keep) * gradients[i] * per_sample;
        gradients[i] = t->momentum[i] * t->variance[i];
    }
}

static void update_frozen(trainer *t, int step)
{
    float rate = rate_of(t->o, step);
    float *params = model_params(t->model);
    const float *sum = model_gradients(t->model);
    for (size_t i = 0; i < model_count(t->model); i++) {
        params[i] -= rate * sum[i];
    }
}

/* Wait for the buckets. A rank that had nothing to compute first marks all its tensors ready. */
static dcomm_status finish_buckets(trainer *t, bool nothing)
{
    model_watch(t->model, NULL, NULL, NULL);
    for (size_t i = model_tensors(t->model) + 1; nothing && i-- > 0;) {
        exchange_ready(&t->exchange, i);
    }
    return exchange_finish(&t->exchange);
}

/* Make one element of a tensor in the middle infinite before it is summed. */
static void spoil(trainer *t)
{
    size_t first, size, rows, tensor = model_tensors(t->model) / 2;
    model_tensor(t->model, tensor, &first, &size, &rows);
    t->exchange.spoils = tensor;
    t->exchange.spoiled = model_gradients(t->model) + first + size / 3;
}

/* Decide whether the gradients may be used: set *skip if not. */
static dcomm_status judge(trainer *t, int step, bool *skip)
{
    dcomm_scaler_verdict v = {0};
    if (t->exchange.scaler == NULL) {
        return DCOMM_OK;
    }
    dcomm_status status = exchange_judge(&t->exchange, &v);
    *skip = v.skip;
    t->skipped += v.skip;
    if (status >= 0 && v.skip && t->rank == 0) {
        printf("step %5d  skipped: gradient %s[%zu] of rank %d is %g; loss scale %g\n", step + 1,
               v.name != NULL ? v.name : "norm", v.index, v.rank, v.value, v.next);
    }
    return status;
}

/* Train on one batch: compute the gradients of this rank's part, sum them over all ranks, and
 * update the weights. */
static dcomm_status train_step(trainer *t, int step)
{
    int batch = t->o->batch, seq = t->o->seq;
    size_t count = model_count(t->model);
    float *gradients = model_gradients(t->model);
    memset(gradients, 0, (count + 1) * sizeof *gradients);
    if (t->exchange.scaler != NULL) {
        model_scale(t->model, (float)dcomm_scaler_scale(t->exchange.scaler));
        if (step == t->o->spoil_step && t->rank == t->o->spoil_rank) {
            spoil(t);
        }
    }
    for (int s = part(t, batch, t->rank); s < part(t, batch, t->rank + 1); s++) {
        const int *tokens = draw(t, step, s, false);
        gradients[count] += (float)model_forward(t->model, tokens, tokens + 1, seq);
        if (t->exchange.buckets != NULL && s + 1 == part(t, batch, t->rank + 1)) {
            exchange_ready(&t->exchange, model_tensors(t->model)); /* the loss */
            model_watch(t->model, exchange_ready, exchange_pause, &t->exchange);
        }
        model_backward(t->model, tokens, tokens + 1, seq);
    }
    int dumped = step - (t->o->steps - t->o->dump_steps);
    if (t->o->dump != NULL && dumped >= 0 && !t->undumped &&
        dump_gradient(t->o->dump, t->rank, dumped, gradients, count) != 0) {
        fprintf(stderr, "trainer: rank %d: cannot write gradients to %s: %s\n", t->rank, t->o->dump,
                strerror(errno));
        t->undumped = true;
    }
    bool frozen = t->o->frozen && step >= t->o->exact_steps;
    if (frozen && step == t->o->exact_steps) {
        freeze(t);
    }
    if (frozen) {
        propose(t);
    }
    double start = now();
    dcomm_status status =
        t->exchange.buckets != NULL
            ? finish_buckets(t, part(t, batch, t->rank) == part(t, batch, t->rank + 1))
            : exchange_sum(&t->exchange, gradients, t->o->frozen && !frozen);
    t->comm_seconds += now() - start + t->exchange.seconds;
    t->exchange.seconds = 0;
    t->losses[step] = (double)gradients[count] / batch;
    bool skip = false;
    status = status >= 0 ? judge(t, step, &skip) : status;
    if (status >= 0 && frozen) {
        update_frozen(t, step);
    } else if (status >= 0 && !skip) {
        update_adam(t, step);
    }
    return status;
}

static dcomm_status train(trainer *t)
{
    double logged = now(), comm_logged = t->comm_seconds;
    int last = 0;
    for (int step = 0; step < t->o->steps; step++) {
        dcomm_status status = train_step(t, step);
        if (status < 0) {
            return status;
        }
        int done = step + 1;
        if (t->rank == 0 && (done % t->o->log_every == 0 || done == t->o->steps || step == 0)) {
            double seconds = now() - logged;
            double tokens = (double)(done - last) * t->o->batch * t->o->seq;
            printf("step %5d  loss %.4f  %8.0f tokens/s  all-reduce %6.2f ms\n", done,
                   t->losses[step], tokens / seconds,
                   (t->comm_seconds - comm_logged) / (done - last) * 1e3);
            fflush(stdout);
            logged = now();
            comm_logged = t->comm_seconds;
            last = done;
        }
    }
    return DCOMM_OK;
}

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

static uint64_t checksum(trainer *t)
{
    const float *params = model_params(t->model);
    uint64_t sum = 0;
    for (size_t i = 0; i < model_count(t->model); i++) {
        uint32_t bits = 0;
        memcpy(&bits, &params[i], sizeof bits);
        sum = (sum ^ bits) * 0x9e3779b97f4a7c15u;
        sum ^= sum >> 29;
    }
    return sum;
}

/* Check that the weights are bitwise equal on all ranks: the smallest checksum must be the
 * largest. */
static dcomm_status compare_weights(trainer *t, uint64_t *sum, bool *equal)
{
    uint64_t low = checksum(t), high = low;
    *sum = low;
    dcomm_status status =
        dcomm_allreduce(t->comm, DCOMM_IN_PLACE, &low, 1, DCOMM_U64, DCOMM_MIN, NULL);
    if (status >= 0) {
        status = dcomm_allreduce(t->comm, DCOMM_IN_PLACE, &high, 1, DCOMM_U64, DCOMM_MAX, NULL);
    }
    *equal = low == high;
    return status;
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

static dcomm_status sum_up(trainer *t, const dcomm_stats *before, summary *s)
{
    dcomm_stats after = {0}, apart = {0};
    dcomm_status status = dcomm_comm_get_stats(t->comm, &after);
    if (status >= 0) {
        status = exchange_stats(&t->exchange, &apart);
    }
    s->wire_bytes = after.bytes_sent - before->bytes_sent + after.bytes_read - before->bytes_read +
                    apart.bytes_sent + apart.bytes_read;
    s->wire_total = s->wire_bytes;
    s->comm_seconds = t->comm_seconds;
    s->codec_seconds = 1e-9 * (double)(after.codec_ns - before->codec_ns + apart.codec_ns);
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
    return status >= 0 ? exchange_explain(&t->exchange, &s->algo) : status;
}

static int write_json(const trainer *t, const summary *s)
{
    FILE *file = fopen(t->o->json, "w");
    if (file == NULL) {
        fprintf(stderr, "trainer: cannot write %s\n", t->o->json);
        return EXIT_USAGE;
    }
    fprintf(file,
            "{\"schema\":1,\"tool\":\"trainer\",\"nranks\":%d,\"algo\":\"%s\",\"codec\":\"%s\","
            "\"feedback\":\"%s\",\"optimizer\":\"%s\",\"exact_steps\":%d,\"seed\":%d,\"steps\":%d,"
            "\"batch\":%d,\"seq\":%d,\"bucket_kib\":%d,\"loss_scale\":%.9g,\"skipped\":%d,"
            "\"parameters\":%zu,\"final_loss\":%.9g,"
            "\"train_s\":%.6g,"
            "\"comm_s\":%.6g,\"codec_s\":%.6g,\"wire_bytes\":%" PRIu64
            ",\"wire_bytes_total\":%" PRIu64 ",\"checksum\":\"%016" PRIx64 "\",\"loss\":[",
            t->nranks, s->algo, t->o->codec != NULL ? t->o->codec : "none",
            t->o->feedback != NULL ? t->o->feedback : "none", t->o->frozen ? "frozen" : "adam",
            t->o->frozen ? t->o->exact_steps : 0, t->o->seed, t->o->steps, t->o->batch, t->o->seq,
            t->o->buckets, t->exchange.scaler != NULL ? dcomm_scaler_scale(t->exchange.scaler) : 1,
            t->skipped, model_count(t->model), s->loss, s->seconds, s->comm_seconds,
            s->codec_seconds, s->wire_bytes, s->wire_total, s->checksum);
    for (int i = 0; i < t->o->steps; i++) {
        fprintf(file, "%s%.6g", i > 0 ? "," : "", t->losses[i]);
    }
    fprintf(file, "]}\n");
    return fclose(file) == 0 ? EXIT_GOOD : EXIT_USAGE;
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
        const int *tokens = draw(t, i, part(t, t->o->batch, t->rank), false);
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

/* Print the report of rank 0's last steps. */
static dcomm_status print_report(trainer *t)
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

/* Do the whole run. Everything is allocated. */
static int run(trainer *t)
{
    size_t count = model_count(t->model);
    if (t->rank == 0) {
        printf("%zu parameters, %zu characters of text, %d distinct; %d rank%s, batch %d x %d\n",
               count, t->text.length, t->text.vocab, t->nranks, t->nranks == 1 ? "" : "s",
               t->o->batch, t->o->seq);
    }
    model_init(t->model, (uint64_t)t->o->seed, 1);
    /* All ranks have the same seed, but libm may differ from host to host. */
    if (dcomm_broadcast(t->comm, DCOMM_IN_PLACE, model_params(t->model), count, DCOMM_F32, 0,
                        NULL) < 0) {
        return comm_failed(t, "broadcast of the weights");
    }
    dcomm_stats before = {0};
    summary s = {0};
    bool equal = false;
    if (dcomm_comm_get_stats(t->comm, &before) < 0) {
        return comm_failed(t, "statistics");
    }
    double start = now();
    if (train(t) < 0) {
        return comm_failed(t, "training");
    }
    s.seconds = now() - start;
    if (sum_up(t, &before, &s) < 0 || evaluate(t, &s.loss) < 0 ||
        compare_weights(t, &s.checksum, &equal) < 0) {
        return comm_failed(t, "summary");
    }
    if (t->rank == 0) {
        if (t->o->sample > 0) {
            write_sample(t);
        }
        printf("final loss %.4f (held-out text), %.1f s, of which all-reduce (%s) %.2f s, of which "
               "the codec %.2f s\n"
               "%.1f MB on the wire per rank, weights %016" PRIx64 " %s all ranks\n",
               s.loss, s.seconds, s.algo, s.comm_seconds, s.codec_seconds,
               (double)s.wire_bytes * 1e-6, s.checksum, equal ? "equal on" : "DIFFER between");
        if (t->o->json != NULL) {
            int result = write_json(t, &s);
            if (result != EXIT_GOOD) {
                return result;
            }
        }
    }
    if (t->o->report && print_report(t) < 0) {
        return comm_failed(t, "report");
    }
    if (t->o->trace != NULL) {
        char path[4096];
        snprintf(path, sizeof path, "%.4000s/rank%d.json", t->o->trace, t->rank);
        if (dcomm_buckets_trace(t->exchange.buckets, path) < 0) {
            fprintf(stderr, "trainer: rank %d: %s\n", t->rank, dcomm_last_error());
            return EXIT_USAGE;
        }
    }
    if (t->undumped) {
        return EXIT_USAGE;
    }
    return equal && isfinite(s.loss) ? EXIT_GOOD : EXIT_WRONG;
}

/* Print an error about a codec that does not exist or does not fit the feedback. All ranks get the
 * same error. None leaves before rank 0 has printed it, because a launcher ends the others then. */
static int no_exchange(const trainer *t)
{
    if (t->rank == 0) {
        fprintf(stderr, "trainer: %s\n", dcomm_last_error());
    }
    return dcomm_barrier(t->comm, NULL) == DCOMM_OK ? EXIT_USAGE : comm_failed(t, "barrier");
}

static int gradcheck(void)
{
    double worst = model_gradient_error(1);
    bool good = worst >= 0 && worst < 0.01;
    printf("gradient check: largest error %.2g of the gradient's size: %s\n", worst,
           good ? "good" : "WRONG");
    return good ? EXIT_GOOD : EXIT_WRONG;
}

int main(int argc, char **argv)
{
    options o;
    bool done = false;
    int result = options_parse(&o, argc, argv, &done);
    if (result != 0 || done) {
        return result;
    }
    if (o.gradcheck) {
        return gradcheck();
    }
    trainer t = {.o = &o};
    if (text_open(&t.text, o.text) != 0) {
        return EXIT_USAGE;
    }
    if (t.text.length / (TENTH * TENTH) < (size_t)o.seq + 1) {
        fprintf(stderr, "trainer: %s: %zu characters are too few for --seq %d\n", o.text,
                t.text.length, o.seq);
        text_close(&t.text);
        return EXIT_USAGE;
    }
    model_config config = {
        .vocab = t.text.vocab, .seq = o.seq, .dim = o.dim, .layers = o.layers, .heads = o.heads};
    t.model = model_create(&config);
    size_t count = t.model != NULL ? model_count(t.model) : 1;
    t.momentum = calloc(count, sizeof *t.momentum);
    t.variance = calloc(count, sizeof *t.variance);
    t.losses = calloc((size_t)o.steps, sizeof *t.losses);
    if (t.model == NULL || t.momentum == NULL || t.variance == NULL || t.losses == NULL) {
        fprintf(stderr, "trainer: no memory\n");
        result = EXIT_WRONG;
    } else if (dcomm_comm_create(NULL, &t.comm) < 0) {
        result = comm_failed(&t, "no communicator");
    } else {
        t.rank = dcomm_comm_rank(t.comm);
        t.nranks = dcomm_comm_size(t.comm);
        result =
            exchange_open(&t.exchange, t.comm, &o, t.model) == DCOMM_OK ? run(&t) : no_exchange(&t);
    }
    exchange_close(&t.exchange);
    dcomm_comm_destroy(&t.comm);
    model_destroy(t.model);
    text_close(&t.text);
    free(t.momentum);
    free(t.variance);
    free(t.losses);
    return result;
}
