/* 09_moe.c - a mixture of experts that learns to predict the next byte of a text. Tokens and
 * experts are spread over the ranks. Then each rank trains the whole model alone, and compares the
 * losses.
 *
 *     09_moe [--k 1|2] [--aux] [--noise] [--replicas] [TEXT]
 *
 * --k 1 routes as Switch does (Fedus et al., 2021), --k 2 as GShard (Lepikhin et al., 2020), which
 * is the default. --aux adds their auxiliary loss, and compares the experts' loads with those of a
 * run without. --noise disturbs the router's inputs. --replicas gives busy experts a second copy on
 * the rank that has least to do. */
#include "comm.h"
#include "moe_model.h"

#include <string.h>

enum { EVERY = 10, LAST = 10 }; /* steps from one placement to the next; steps that are averaged */

/* The exchanges of the layer, and averages over the last steps. */
typedef struct layer {
    dcomm_comm *comm;
    dcomm_moe *moe;
    bool replicas;
    int owner[EXPERTS + COPIES];
    double pairs[EXPERTS + COPIES]; /* share of all pairs of token and expert in this step */
    double spread;                  /* standard deviation of the experts' loads, over their mean */
    double heaviest, without;       /* load of the busiest rank, over the mean; without copies */
} layer;

/* Return the share of all pairs that a rank's first n experts have. */
static double share_of(const layer *l, const double *pairs, int n, int rank)
{
    double sum = 0;
    for (int e = 0; e < n; e++) {
        sum += l->owner[e] == rank ? pairs[e] : 0;
    }
    return sum;
}

/* Return the rank that has most, or least. */
static int extreme_rank(const layer *l, const double *pairs, int n, bool most)
{
    int best = 0;
    for (int r = 1; r < dcomm_comm_size(l->comm); r++) {
        const double off = share_of(l, pairs, n, r) - share_of(l, pairs, n, best);
        best = (most ? off : -off) > 0 ? r : best;
    }
    return best;
}

/* Note each expert's share of all pairs. Every rank knows the counts of all, by the routing. */
static void observe(model *m, layer *l, int step)
{
    dcomm_moe_stats stats;
    double whole[EXPERTS], square = 0;
    CHECK(dcomm_moe_get_stats(l->moe, &stats));
    memset(m->part, 0, sizeof m->part);
    for (int e = 0; e < EXPERTS + m->ncopies; e++) {
        l->pairs[e] = (double)stats.demand[e] / (double)stats.asked;
        m->part[expert_of(m, e)] += (float)l->pairs[e];
    }
    for (int e = 0; e < EXPERTS; e++) {
        whole[e] = m->part[e];
        square += (whole[e] * EXPERTS - 1) * (whole[e] * EXPERTS - 1) / EXPERTS;
    }
    if (step >= STEPS - LAST) {
        const int size = dcomm_comm_size(l->comm), n = EXPERTS + m->ncopies;
        const int busiest = extreme_rank(l, l->pairs, n, true);
        const int before = extreme_rank(l, whole, EXPERTS, true);
        l->spread += sqrt(square) / LAST;
        l->heaviest += share_of(l, l->pairs, n, busiest) * size / LAST;
        l->without += share_of(l, whole, EXPERTS, before) * size / LAST;
    }
}

static void create(const model *m, layer *l)
{
    const dcomm_moe_opts opts = {.experts = (size_t)(EXPERTS + m->ncopies),
                                 .hidden = HIDDEN,
                                 .k = m->k,
                                 .dtype = DCOMM_F32,
                                 .owner = l->owner};
    CHECK(dcomm_moe_create(l->comm, &opts, &l->moe));
}

/* Copy the busiest expert of the busiest rank to the rank that has least, if that helps; then the
 * next one. All ranks decide alike. */
static void place_copies(model *m, layer *l)
{
    for (int e = 0; e < EXPERTS; e++) {
        l->pairs[e] = m->part[e];
    }
    for (m->ncopies = 0; m->ncopies < COPIES; m->ncopies++) {
        const int n = EXPERTS + m->ncopies, heavy = extreme_rank(l, l->pairs, n, true);
        const int light = extreme_rank(l, l->pairs, n, false);
        int busiest = -1;
        for (int e = 0; e < EXPERTS; e++) {
            const bool copied = m->ncopies > 0 && m->copied[0] == e;
            if (l->owner[e] == heavy && !copied &&
                (busiest < 0 || l->pairs[e] > l->pairs[busiest])) {
                busiest = e;
            }
        }
        if (busiest < 0 || share_of(l, l->pairs, n, light) + l->pairs[busiest] / 2 >=
                               share_of(l, l->pairs, n, heavy)) {
            break;
        }
        l->owner[n] = light;
        m->copied[m->ncopies] = busiest;
        l->pairs[n] = l->pairs[busiest] /= 2;
        CHECK(dcomm_broadcast(l->comm, m->expert[busiest], m->expert[busiest], HIDDEN * HIDDEN,
                              DCOMM_F32, l->owner[busiest], NULL));
    }
    CHECK(dcomm_moe_destroy(&l->moe));
    create(m, l);
}

/* Do this rank's part of a step, on `tokens` tokens from `text` on, of which `first` is the number
 * of the first. Return the loss over all ranks. */
static double train_step(model *m, layer *l, int step, int first, int tokens,
                         const unsigned char *text)
{
    dcomm_moe_batch in, back;
    double loss = 0;
    memset(&m->grad, 0, sizeof m->grad);
    memset(m->step, 0, sizeof m->step);
    for (int t = 0; t < tokens; t++) {
        route(m, t, (uint32_t)(step * TOKENS + first + t), text + t);
    }
    CHECK(dcomm_moe_route(l->moe, (size_t)tokens, m->chosen, m->weight));
    observe(m, l, step);
    CHECK(dcomm_moe_dispatch_start(l->moe, 0, m->x));
    CHECK(dcomm_moe_dispatch_wait(l->moe, 0, &in));
    forward_experts(m, &in);
    CHECK(dcomm_moe_combine_start(l->moe, 0, m->given));
    CHECK(dcomm_moe_combine_wait(l->moe, 0, m->y));
    for (int t = 0; t < tokens; t++) {
        loss += guess(m, t, text[t + 2] % BYTES);
    }
    CHECK(dcomm_moe_combine_backward_start(l->moe, 0, m->dy));
    CHECK(dcomm_moe_combine_backward_wait(l->moe, 0, m->dweight, &back));
    backward_experts(m, &in, &back);
    CHECK(dcomm_moe_dispatch_backward_start(l->moe, 0, back.rows));
    CHECK(dcomm_moe_dispatch_backward_wait(l->moe, 0, m->dx));
    for (int t = 0; t < tokens; t++) {
        backward_token(m, t, text + t);
    }
    for (int i = 0; i < m->ncopies; i++) { /* copies stay equal */
        CHECK(dcomm_allreduce(l->comm, DCOMM_IN_PLACE, m->step[m->copied[i]], HIDDEN * HIDDEN,
                              DCOMM_F32, DCOMM_SUM, NULL));
    }
    CHECK(dcomm_allreduce(l->comm, DCOMM_IN_PLACE, &m->grad, sizeof m->grad / sizeof(float),
                          DCOMM_F32, DCOMM_SUM, NULL));
    CHECK(dcomm_allreduce(l->comm, DCOMM_IN_PLACE, &loss, 1, DCOMM_F64, DCOMM_SUM, NULL));
    return loss;
}

static void train(model *m, layer *l, const unsigned char *text, size_t len)
{
    const int rank = dcomm_comm_rank(l->comm), size = dcomm_comm_size(l->comm);
    const int first = TOKENS * rank / size, tokens = TOKENS * (rank + 1) / size - first;
    for (int e = 0; e < EXPERTS; e++) {
        l->owner[e] = e * size / EXPERTS;
    }
    create(m, l);
    start(m);
    for (int step = 0; step < STEPS; step++) {
        const size_t at = (size_t)step * TOKENS % (len - TOKENS - 2) + (size_t)first;
        m->loss[step] = train_step(m, l, step, first, tokens, text + at);
        for (size_t i = 0; i < sizeof m->value / sizeof(float); i++) {
            ((float *)&m->value)[i] -= rate * ((float *)&m->grad)[i];
        }
        for (size_t i = 0; i < sizeof m->expert / sizeof(float); i++) {
            ((float *)m->expert)[i] -= rate * ((float *)m->step)[i];
        }
        if (l->replicas && step % EVERY == EVERY - 1) {
            place_copies(m, l);
        }
    }
    CHECK(dcomm_moe_destroy(&l->moe));
}

/* Read the options into *m and *l. Return the text's path, or NULL. */
static const char *parse(int argc, char **argv, model *m, layer *l)
{
    const char *path = "/usr/share/common-licenses/GPL-3";
    m->k = MAX_K;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--k") == 0 && i + 1 < argc) {
            m->k = atoi(argv[++i]);
        } else if (strcmp(argv[i], "--aux") == 0) {
            m->aux = true;
        } else if (strcmp(argv[i], "--noise") == 0) {
            m->noise = true;
        } else if (strcmp(argv[i], "--replicas") == 0) {
            l->replicas = true;
        } else if (argv[i][0] != '-') {
            path = argv[i];
        } else {
            path = NULL;
        }
    }
    return m->k >= 1 && m->k <= MAX_K ? path : NULL;
}

int main(int argc, char **argv)
{
    static model together, alone, plain;
    static layer spread_out, by_one, without_aux;
    static unsigned char text[1 << 16];
    const char *path = parse(argc, argv, &together, &spread_out);
    FILE *file = path != NULL ? fopen(path, "rb") : NULL;
    const size_t len = file != NULL ? fread(text, 1, sizeof text, file) : 0;
    if (file != NULL) {
        fclose(file);
    }
    if (len < 2 * TOKENS) {
        fprintf(stderr,
                "09_moe [--k 1|2] [--aux] [--noise] [--replicas] [TEXT]\n"
                "TEXT: a file of at least %d bytes\n",
                2 * TOKENS);
        return 2;
    }
    CHECK(dcomm_comm_create(NULL, &world));
    const int rank = dcomm_comm_rank(world), size = dcomm_comm_size(world);
    CHECK(dcomm_comm_split(world, rank, 0, &by_one.comm));
    spread_out.comm = without_aux.comm = world;
    alone = plain = together;
    plain.aux = false;
    train(&together, &spread_out, text, len);
    train(&alone, &by_one, text, len);
    double off = 0;
    for (int step = 0; step < STEPS; step++) {
        off = fmax(off, fabs(together.loss[step] - alone.loss[step]) / alone.loss[step]);
    }
    bool wrong = !(off < 1e-4) || !(together.loss[STEPS - 1] < 0.8 * together.loss[0]);
    printf("rank %d of %d: loss %.4f to %.4f; by one rank %.4f to %.4f; %.1e apart at most\n", rank,
           size, together.loss[0], together.loss[STEPS - 1], alone.loss[0], alone.loss[STEPS - 1],
           off);
    if (together.aux) {
        train(&plain, &without_aux, text, len);
        wrong = wrong || !(spread_out.spread < without_aux.spread);
        printf("rank %d of %d: spread of the experts' loads %.3f, without auxiliary loss %.3f\n",
               rank, size, spread_out.spread, without_aux.spread);
    }
    if (together.ncopies > 0) {
        /* With an auxiliary loss there may be nothing to gain. */
        wrong = wrong || (!together.aux && !(spread_out.heaviest < spread_out.without));
        printf("rank %d of %d: %d expert(s) with a copy; load of the busiest rank %.3f times the "
               "mean, without copies %.3f\n",
               rank, size, together.ncopies, spread_out.heaviest, spread_out.without);
    }
    CHECK(dcomm_comm_destroy(&by_one.comm));
    CHECK(dcomm_comm_destroy(&world));
    return wrong;
}
