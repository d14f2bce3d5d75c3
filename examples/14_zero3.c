/* 14_zero3.c - ZeRO, stage 3 (Rajbhandari et al., 2020). Each rank keeps 1/N of the parameters, of
 * the gradients and of Adam's moments. A layer's weights are gathered before their use, and the
 * next layer's travel meanwhile. Each rank also trains the whole model alone, and compares bits. */
#include "comm.h"
#include "noise.h"

#include <math.h>
#include <string.h>
#include <time.h>

enum { LAYERS = 8, WIDTH = 100, COUNT = WIDTH * (WIDTH + 1), ROWS = 48, STEPS = 10 };
enum { VALUE, GRAD, MEAN, SQUARE, KINDS }; /* numbers of a parameter that a rank keeps */

/* The rows that one rank computes, and their gradients at the layer that backward has reached. */
typedef struct batch {
    int rows;
    float x[LAYERS + 1][ROWS][WIDTH]; /* inputs of the layers, then outputs of the last one */
    float inner[ROWS][WIDTH], dx[ROWS][WIDTH];
} batch;

/* One rank's part of the model, and two layers' buffers. Layer l uses full[l % 2]. */
typedef struct zero3 {
    size_t *counts, count, bytes; /* elements of a layer on each rank, on this one; bytes taken */
    float *own[LAYERS][KINDS];    /* [count] */
    float *full[2];               /* [COUNT] all weights of a layer, later their gradients */
    int holds[2];                 /* the layer whose weights a buffer has; -1: none */
    bool ahead;                   /* gather a layer's weights while another one computes */
    dcomm_request *gathering, *reducing;
    double waited_s; /* seconds spent in waits for weights */
} zero3;

static double now(void)
{
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static float initial(int layer, size_t i)
{
    return 0.4f * noise(layer, (int)i);
}

/* ---- the model: x[l + 1] = tanh(x[l] W + b); it learns to return its input in reverse ---- */

static void load(batch *b, int rank, int size)
{
    const int first = ROWS * rank / size;
    b->rows = ROWS * (rank + 1) / size - first;
    for (int r = 0; r < b->rows; r++) {
        for (int i = 0; i < WIDTH; i++) {
            b->x[0][r][i] = noise(-1 - first - r, i);
        }
    }
}

/* Let what travels go on: call this between pieces of work. */
static void progress(void)
{
    CHECK(dcomm_context_progress(dcomm_comm_context(world)));
}

static void forward(batch *b, int l, const float *w)
{
    for (int r = 0; r < b->rows; r++) {
        float *y = b->x[l + 1][r];
        memcpy(y, w + WIDTH * WIDTH, WIDTH * sizeof *y);
        for (int i = 0; i < WIDTH; i++) {
            for (int o = 0; o < WIDTH; o++) {
                y[o] += b->x[l][r][i] * w[i * WIDTH + o];
            }
        }
        for (int o = 0; o < WIDTH; o++) {
            y[o] = tanhf(y[o]);
        }
        progress();
    }
}

/* Return the loss of these rows, and set the gradients of the outputs. */
static double loss_of(batch *b)
{
    double loss = 0;
    for (int r = 0; r < b->rows; r++) {
        for (int o = 0; o < WIDTH; o++) {
            const float off = b->x[LAYERS][r][o] - b->x[0][r][WIDTH - 1 - o];
            loss += 0.5 * (double)(off * off) / ROWS;
            b->dx[r][o] = off / ROWS;
        }
    }
    return loss;
}

/* Compute the gradients of a layer's inputs from those of its outputs. */
static void backward_rows(batch *b, int l, const float *w)
{
    for (int r = 0; r < b->rows; r++) {
        for (int o = 0; o < WIDTH; o++) {
            const float y = b->x[l + 1][r][o];
            b->inner[r][o] = b->dx[r][o] * (1 - y * y);
        }
        for (int i = 0; i < WIDTH; i++) {
            float sum = 0;
            for (int o = 0; o < WIDTH; o++) {
                sum += b->inner[r][o] * w[i * WIDTH + o];
            }
            b->dx[r][i] = sum;
        }
        progress();
    }
}

/* Compute the gradients of a layer's weights. */
static void backward_weights(const batch *b, int l, float *dw)
{
    memset(dw, 0, COUNT * sizeof *dw);
    for (int r = 0; r < b->rows; r++) {
        for (int i = 0; i <= WIDTH; i++) {
            const float x = i < WIDTH ? b->x[l][r][i] : 1;
            for (int o = 0; o < WIDTH; o++) {
                dw[i * WIDTH + o] += x * b->inner[r][o];
            }
        }
        progress();
    }
}

static void adam(float *const own[KINDS], size_t count, int step)
{
    const float rate = 2e-3f * sqrtf(1 - powf(0.99f, (float)step)) / (1 - powf(0.9f, (float)step));
    for (size_t i = 0; i < count; i++) {
        const float g = own[GRAD][i];
        own[MEAN][i] = 0.9f * own[MEAN][i] + 0.1f * g;
        own[SQUARE][i] = 0.99f * own[SQUARE][i] + 0.01f * g * g;
        own[VALUE][i] -= rate * own[MEAN][i] / (sqrtf(own[SQUARE][i]) + 1e-8f);
    }
}

/* ---- ZeRO ---- */

/* Start to gather the weights of layer l, unless they are there or on their way. */
static void gather(zero3 *z, int l)
{
    if (z->holds[l % 2] != l) {
        z->holds[l % 2] = l;
        CHECK(dcomm_iallgatherv(world, z->own[l][VALUE], z->full[l % 2], z->counts, NULL, DCOMM_F32,
                                NULL, &z->gathering));
    }
}

/* Return the weights of layer l. */
static const float *weights(zero3 *z, int l)
{
    const double start = now();
    gather(z, l);
    CHECK(dcomm_wait(&z->gathering));
    z->waited_s += now() - start;
    return z->full[l % 2];
}

/* Do this rank's part of a step. Return the loss over all ranks. */
static double train_step(zero3 *z, batch *b, int step)
{
    const dcomm_coll_opts in_order = {.deterministic = true}; /* folds in the order of the ranks */
    for (int l = 0; l < LAYERS; l++) {
        const float *w = weights(z, l);
        if (z->ahead && l + 1 < LAYERS) {
            gather(z, l + 1);
        }
        forward(b, l, w);
    }
    double loss = loss_of(b);
    for (int l = LAYERS - 1; l >= 0; l--) {
        backward_rows(b, l, weights(z, l)); /* the gradients of layer l + 1 travel meanwhile */
        CHECK(dcomm_wait(&z->reducing));
        if (z->ahead && l > 0) {
            gather(z, l - 1);
        }
        backward_weights(b, l, z->full[l % 2]); /* the weights are not needed again */
        z->holds[l % 2] = -1;
        CHECK(dcomm_ireduce_scatterv(world, z->full[l % 2], z->own[l][GRAD], z->counts, DCOMM_F32,
                                     DCOMM_SUM, &in_order, &z->reducing));
    }
    CHECK(dcomm_wait(&z->reducing));
    for (int l = 0; l < LAYERS; l++) {
        adam(z->own[l], z->count, step);
    }
    CHECK(dcomm_allreduce(world, DCOMM_IN_PLACE, &loss, 1, DCOMM_F64, DCOMM_SUM, &in_order));
    return loss;
}

static size_t share_begin(int rank, int size)
{
    return (size_t)COUNT * (size_t)rank / (size_t)size;
}

/* Take all memory of this rank's part at once, all 0, and count it. */
static void create(zero3 *z, int rank, int size)
{
    const size_t first = share_begin(rank, size);
    z->count = share_begin(rank + 1, size) - first;
    z->bytes = (LAYERS * KINDS * z->count + 2 * COUNT) * sizeof(float);
    z->counts = calloc((size_t)size, sizeof *z->counts);
    z->full[0] = calloc(1, z->bytes);
    if (z->counts == NULL || z->full[0] == NULL) {
        fprintf(stderr, "no memory\n");
        exit(3);
    }
    z->full[1] = z->full[0] + COUNT;
    z->holds[0] = z->holds[1] = -1;
    for (int r = 0; r < size; r++) {
        z->counts[r] = share_begin(r + 1, size) - share_begin(r, size);
    }
    for (int k = 0; k < LAYERS * KINDS; k++) {
        z->own[k / KINDS][k % KINDS] = z->full[1] + COUNT + (size_t)k * z->count;
    }
    for (size_t k = 0; k < LAYERS * z->count; k++) {
        const size_t l = k / z->count, i = k % z->count;
        z->own[l][VALUE][i] = initial((int)l, first + i);
    }
}

/* ---- the reference: one rank, which adds the gradients of N micro-batches in their order ---- */

static float whole[LAYERS][KINDS][COUNT];

static double alone_step(batch *b, int size, int step)
{
    static float dw[COUNT];
    double loss = 0;
    for (int r = 0; r < size; r++) {
        load(b, r, size);
        for (int l = 0; l < LAYERS; l++) {
            forward(b, l, whole[l][VALUE]);
        }
        loss = r == 0 ? loss_of(b) : loss + loss_of(b);
        for (int l = LAYERS - 1; l >= 0; l--) {
            backward_rows(b, l, whole[l][VALUE]);
            backward_weights(b, l, r == 0 ? whole[l][GRAD] : dw);
            for (int i = 0; i < COUNT && r > 0; i++) {
                whole[l][GRAD][i] += dw[i];
            }
        }
    }
    for (int l = 0; l < LAYERS; l++) {
        float *const own[KINDS] = {whole[l][VALUE], whole[l][GRAD], whole[l][MEAN],
                                   whole[l][SQUARE]};
        adam(own, COUNT, step);
    }
    return loss;
}

int main(void)
{
    static batch b;
    static zero3 runs[2];
    CHECK(dcomm_comm_create(NULL, &world));
    const int rank = dcomm_comm_rank(world), size = dcomm_comm_size(world);
    double alone[STEPS];
    for (int k = 0; k < LAYERS * COUNT; k++) {
        whole[k / COUNT][VALUE][k % COUNT] = initial(k / COUNT, (size_t)(k % COUNT));
    }
    for (int step = 0; step < STEPS; step++) {
        alone[step] = alone_step(&b, size, step + 1);
    }
    int wrong = 0;
    for (int ahead = 0; ahead < 2; ahead++) {
        zero3 *z = &runs[ahead];
        create(z, rank, size);
        z->ahead = ahead;
        load(&b, rank, size);
        for (int step = 0; step < STEPS; step++) {
            const double loss = train_step(z, &b, step + 1);
            wrong += memcmp(&loss, &alone[step], sizeof loss) != 0;
        }
        for (int l = 0; l < LAYERS; l++) {
            const float *const want = whole[l][VALUE] + share_begin(rank, size);
            wrong += memcmp(z->own[l][VALUE], want, z->count * sizeof *want) != 0;
        }
        free(z->full[0]);
        free(z->counts);
    }
    const size_t all = sizeof whole, layers = 2 * COUNT * sizeof(float);
    wrong += runs[1].bytes > all / (size_t)size + LAYERS * KINDS * sizeof(float) + layers;
    wrong += !(alone[STEPS - 1] < 0.8 * alone[0]);
    printf("rank %d of %d: loss %.4f to %.4f, bits %s; %.0f KB, alone %.0f KB; waited for weights "
           "%.2f ms a step, %.2f ms with prefetch\n",
           rank, size, alone[0], alone[STEPS - 1], wrong == 0 ? "of one rank" : "DIFFER",
           (double)runs[1].bytes / 1e3, (double)all / 1e3, runs[0].waited_s / STEPS * 1e3,
           runs[1].waited_s / STEPS * 1e3);
    CHECK(dcomm_comm_destroy(&world));
    return wrong > 0;
}
