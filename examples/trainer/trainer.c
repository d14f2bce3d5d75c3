/* trainer.c - train the model data-parallel. Every rank takes its part of each batch, and an
 * all-reduce sums the gradients. So N ranks do the same as one rank would do alone. */
#define _GNU_SOURCE
#include "trainer.h"
#include "accident.h"
#include "checkpoint.h"
#include "elastic.h"
#include "hash.h"
#include "mode.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int part(const trainer *t, int total, int rank)
{
    return (int)((int64_t)total * rank / t->nranks);
}

static int comm_failed(const trainer *t, const char *what)
{
    fprintf(stderr, "trainer: rank %d: %s: %s\n", t->rank, what, dcomm_last_error());
    return EXIT_COMM;
}

/* ---- the communicator and what depends on it ---- */

dcomm_status trainer_open_exchange(trainer *t)
{
    if (t->exchanging) {
        return DCOMM_OK;
    }
    dcomm_status status = t->exchange.comm == NULL
                              ? exchange_open(&t->exchange, t->comm, t->o, t->model)
                              : exchange_move(&t->exchange, t->comm, t->o, t->model);
    t->exchanging = status >= 0;
    return status;
}

dcomm_status trainer_traffic(trainer *t, uint64_t *wire_bytes, uint64_t *codec_ns)
{
    dcomm_stats all = {0}, apart = {0};
    dcomm_status status = dcomm_comm_get_stats(t->comm, &all);
    if (status >= 0) {
        status = exchange_stats(&t->exchange, &apart);
    }
    *wire_bytes = t->wire_bytes + all.bytes_sent - t->before.bytes_sent + all.bytes_read -
                  t->before.bytes_read + apart.bytes_sent + apart.bytes_read;
    *codec_ns = t->codec_ns + all.codec_ns - t->before.codec_ns + apart.codec_ns;
    return status;
}

void trainer_replace_comm(trainer *t, dcomm_comm *comm)
{
    uint64_t wire_bytes, codec_ns;
    if (trainer_traffic(t, &wire_bytes, &codec_ns) >= 0) {
        t->wire_bytes = wire_bytes;
        t->codec_ns = codec_ns;
    }
    t->before = (dcomm_stats){0};
    dcomm_comm_destroy(&t->comm); /* with the error that made it useless, which was handled */
    t->comm = comm;
    t->exchanging = false;
    balance_reset(t);
    t->rank = dcomm_comm_rank(comm);
    t->nranks = dcomm_comm_size(comm);
}

/* ---- the run ---- */

/* All ranks have the same seed, but libm may differ from host to host. */
static dcomm_status broadcast_weights(trainer *t)
{
    return dcomm_broadcast(t->comm, DCOMM_IN_PLACE, model_params(t->model), model_count(t->model),
                           DCOMM_F32, 0, NULL);
}

/* Do a step data-parallel. */
static dcomm_status step_together(trainer *t)
{
    dcomm_status status = together(t, step_gradients);
    if (status >= 0) {
        status = step_update(t);
    }
    if (status >= 0) {
        status = balance_step(t);
    }
    if (status >= 0) {
        status = hash_step(t);
    }
    if (status >= 0 && !t->differ) { /* else no checkpoint may have these weights */
        status = checkpoint_step(t, false);
    }
    return status >= 0 && t->step < t->o->steps ? elastic_grow(t) : status;
}

static dcomm_status train(trainer *t)
{
    double logged = now(), comm_logged = t->comm_seconds;
    int last = t->step;
    dcomm_status status = DCOMM_OK;
    while (t->step < t->o->steps && status >= 0 && !t->differ) {
        status = t->mode != NULL ? t->mode->step(t) : step_together(t);
        int done = t->step, logged_step = done - done % t->o->log_every;
        if (status >= 0 && t->rank == 0 &&
            (logged_step > last || done == t->o->steps || done == 1)) {
            double seconds = now() - logged;
            double tokens = (double)(done - last) * t->o->batch * t->o->seq;
            printf("step %5d  loss %.4f  %8.0f tokens/s  all-reduce %6.2f ms\n", done, t->shown,
                   tokens / seconds, (t->comm_seconds - comm_logged) / (done - last) * 1e3);
            fflush(stdout);
            logged = now();
            comm_logged = t->comm_seconds;
            last = done;
        }
    }
    if (status >= 0 && t->mode != NULL) {
        status = mode_finish(t);
    }
    return status >= 0 ? checkpoint_step(t, true) : status;
}

static summary final; /* of summarize */

static dcomm_status summarize(trainer *t)
{
    return summary_compute(t, &final);
}

/* Print an error of all ranks. None leaves before rank 0 has printed it, because a launcher ends
 * the others then. */
static int refused(const trainer *t, const char *why)
{
    if (t->rank == 0) {
        fprintf(stderr, "trainer: %s\n", why);
    }
    return dcomm_barrier(t->comm, NULL) == DCOMM_OK ? EXIT_USAGE : comm_failed(t, "barrier");
}

/* Begin with random weights, or with a checkpoint. Return an exit status. */
static int start(trainer *t)
{
    if (t->rank == 0) {
        printf("%zu parameters, %zu characters of text, %d distinct; %d rank%s, batch %d x %d\n",
               model_count(t->model), t->text.length, t->text.vocab, t->nranks,
               t->nranks == 1 ? "" : "s", t->o->batch, t->o->seq);
    }
    model_init(t->model, (uint64_t)t->o->seed, 1);
    if (together(t, broadcast_weights) < 0) {
        return comm_failed(t, "broadcast of the weights");
    }
    if (t->o->balance && t->o->batch < t->nranks) {
        return refused(t, "--balance needs a batch of a sequence a rank, or more");
    }
    if (checkpoint_open(t) != 0) {
        return dcomm_barrier(t->comm, NULL) == DCOMM_OK ? EXIT_USAGE : comm_failed(t, "barrier");
    }
    return t->o->resume ? checkpoint_resume(t) : EXIT_GOOD;
}

/* Begin in the middle of other ranks' run. */
static int join(trainer *t)
{
    t->step = -1;
    if (elastic_share(t) < 0) {
        return comm_failed(t, "joining");
    }
    return checkpoint_open(t) == 0 ? EXIT_GOOD : EXIT_USAGE;
}

/* Do the whole run. Everything is allocated. */
static int run(trainer *t)
{
    int result = elastic_joins() ? join(t) : start(t);
    if (result != EXIT_GOOD) {
        return result;
    }
    t->mode = mode_of(t->o);
    if (t->mode != NULL && t->mode->open(t) < 0) {
        return comm_failed(t, t->o->mode.name);
    }
    if (dcomm_comm_get_stats(t->comm, &t->before) < 0) {
        return comm_failed(t, "statistics");
    }
    double start = now();
    if (train(t) < 0) {
        return comm_failed(t, "training");
    }
    if (t->differ) { /* nobody leaves before rank 0 has printed it */
        return dcomm_barrier(t->comm, NULL) == DCOMM_OK ? EXIT_WRONG : comm_failed(t, "barrier");
    }
    final.seconds = now() - start;
    if (together(t, summarize) < 0) {
        return comm_failed(t, "summary");
    }
    if (t->rank == 0) {
        checkpoint_report(t);
        result = summary_write(t, &final);
        if (result != EXIT_GOOD) {
            return result;
        }
    }
    if (t->o->report && summary_report(t) < 0) {
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
    return final.equal && isfinite(final.loss) ? EXIT_GOOD : EXIT_WRONG;
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
        t.wanted = t.nranks;
        bool joins = elastic_joins(); /* then the exchange is opened with the others, in run() */
        if (!joins) {
            accident_plan(&o.accidents, t.rank);
        }
        result = joins || trainer_open_exchange(&t) == DCOMM_OK
                     ? run(&t)
                     : refused(&t, dcomm_last_error()); /* a codec, or feedback */
    }
    checkpoint_close(&t);
    if (t.mode != NULL) {
        t.mode->close(&t);
    }
    exchange_close(&t.exchange);
    dcomm_comm_destroy(&t.comm);
    model_destroy(t.model);
    text_close(&t.text);
    free(t.momentum);
    free(t.variance);
    free(t.losses);
    balance_reset(&t);
    return result;
}
