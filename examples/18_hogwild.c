/* 18_hogwild.c - Hogwild (Niu et al., 2011): the threads of a rank train one model without locks.
 * Rows are sparse, so threads rarely touch one weight at a time, and an update that is lost does
 * little harm. After each pass the ranks average their models. Each rank also trains the models of
 * all ranks with one thread, in order, and compares the losses. */
#include "comm.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

enum { DIM = 20000, ROWS = 24000, NONZEROS = 12, THREADS = 4, PASSES = 12 };

static const float rate = 0.5f;

/* A row of the data: columns and their values, times the label 1 or -1. */
typedef struct row {
    int column[NONZEROS];
    float value[NONZEROS];
} row;

static row rows[ROWS];

/* Threads read and write weights while others do. C11 calls that a race unless the weights are
 * atomic. Relaxed loads and stores cost nothing: they order nothing, and an addition made of the
 * two may lose another thread's. */
typedef struct model {
    _Atomic float weight[DIM];
    atomic_uint updates[DIM]; /* counted like weights are updated, to see how many are lost */
} model;

/* One thread's rows: first, first + stride, ... below end. */
typedef struct job {
    model *m;
    int first, end, stride;
} job;

static double now(void)
{
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static uint32_t draw(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8; /* 24 bits */
}

/* Make rows whose first columns are frequent, as words of a text are, and labels that a plane
 * gives. */
static void make_data(void)
{
    uint32_t state = 3;
    for (int r = 0; r < ROWS; r++) {
        float score = 0;
        for (int k = 0; k < NONZEROS; k++) {
            const float u = (float)draw(&state) / 16777216;
            const int j = (int)(u * u * DIM);
            rows[r].column[k] = j;
            rows[r].value[k] = 1;
            score += (float)(j * 2654435761u >> 8) / 8388608 - 1;
        }
        for (int k = 0; k < NONZEROS && score < 0; k++) {
            rows[r].value[k] = -1;
        }
    }
}

/* Return the sum over a row of weight times value. */
static float score_of(const model *m, const row *r)
{
    float score = 0;
    for (int k = 0; k < NONZEROS; k++) {
        score += r->value[k] * atomic_load_explicit(&m->weight[r->column[k]], memory_order_relaxed);
    }
    return score;
}

/* Make a step of gradient descent for each row of a job. The loss of a row is
 * log(1 + exp(-score)). */
static void *descend(void *argument)
{
    const job *j = argument;
    for (int i = j->first; i < j->end; i += j->stride) {
        const row *r = &rows[i];
        const float step = rate / (1 + expf(score_of(j->m, r)));
        for (int k = 0; k < NONZEROS; k++) {
            _Atomic float *w = &j->m->weight[r->column[k]];
            atomic_uint *n = &j->m->updates[r->column[k]];
            const float value = atomic_load_explicit(w, memory_order_relaxed);
            const unsigned before = atomic_load_explicit(n, memory_order_relaxed);
            atomic_store_explicit(w, value + step * r->value[k], memory_order_relaxed);
            atomic_store_explicit(n, before + 1, memory_order_relaxed);
        }
    }
    return NULL;
}

/* Make one pass over the rows of `rank` with some threads. */
static void pass(model *m, int rank, int size, int threads)
{
    pthread_t thread[THREADS];
    job jobs[THREADS];
    const int first = (int)((long)ROWS * rank / size), end = (int)((long)ROWS * (rank + 1) / size);
    for (int t = 0; t < threads; t++) {
        const job j = {.m = m, .first = first + t, .end = end, .stride = threads};
        jobs[t] = j;
        if (t > 0 && pthread_create(&thread[t], NULL, descend, &jobs[t]) != 0) {
            fprintf(stderr, "cannot start a thread\n");
            exit(3);
        }
    }
    descend(&jobs[0]);
    for (int t = 1; t < threads; t++) {
        pthread_join(thread[t], NULL);
    }
}

static void get(const model *m, float *weight)
{
    for (int j = 0; j < DIM; j++) {
        weight[j] = atomic_load_explicit(&m->weight[j], memory_order_relaxed);
    }
}

static void set(model *m, const float *weight)
{
    for (int j = 0; j < DIM; j++) {
        atomic_store_explicit(&m->weight[j], weight[j], memory_order_relaxed);
    }
}

/* Return the loss over all rows. */
static double loss_of(const model *m)
{
    double loss = 0;
    for (int i = 0; i < ROWS; i++) {
        loss += log1p(exp(-(double)score_of(m, &rows[i]))) / ROWS;
    }
    return loss;
}

/* Train without threads and without communication: one rank's pass after the other, then the
 * average of their models. */
static void train_in_order(model *m, int size)
{
    static float start[DIM], weight[DIM], sum[DIM];
    for (int p = 0; p < PASSES; p++) {
        get(m, start);
        memset(sum, 0, sizeof sum);
        for (int rank = 0; rank < size; rank++) {
            set(m, start);
            pass(m, rank, size, 1);
            get(m, weight);
            for (int j = 0; j < DIM; j++) {
                sum[j] += weight[j] / (float)size;
            }
        }
        set(m, sum);
    }
}

int main(void)
{
    static model hogwild, in_order, one;
    static float weight[DIM];
    double seconds = 0;
    CHECK(dcomm_comm_create(NULL, &world));
    const int rank = dcomm_comm_rank(world), size = dcomm_comm_size(world);
    make_data();
    const double start = loss_of(&hogwild);
    for (int p = 0; p < PASSES; p++) {
        seconds -= now();
        pass(&hogwild, rank, size, THREADS);
        seconds += now();
        get(&hogwild, weight);
        CHECK(dcomm_allreduce(world, DCOMM_IN_PLACE, weight, DIM, DCOMM_F32, DCOMM_AVG, NULL));
        set(&hogwild, weight);
    }
    train_in_order(&in_order, size);
    double alone_s = -now();
    train_in_order(&one, 1);
    alone_s += now();
    const double loss = loss_of(&hogwild), want = loss_of(&in_order);
    double updates = 0;
    for (int j = 0; j < DIM; j++) {
        updates += atomic_load_explicit(&hogwild.updates[j], memory_order_relaxed);
    }
    const int own = (int)((long)ROWS * (rank + 1) / size) - (int)((long)ROWS * rank / size);
    const double made = (double)own * NONZEROS * PASSES, lost = 1 - updates / made;
    printf("rank %d of %d: loss %.4f to %.4f with %d threads, %.4f in order, %.4f by one rank in "
           "order; %.3f%% of updates lost; %.1f million updates a second, %.1f in order\n",
           rank, size, start, loss, THREADS, want, loss_of(&one), 100 * lost, made / seconds / 1e6,
           (double)ROWS * NONZEROS * PASSES / alone_s / 1e6);
    CHECK(dcomm_comm_destroy(&world));
    return !(loss < 1.05 * want) || !(loss < 0.8 * start) || !(lost < 0.05);
}
