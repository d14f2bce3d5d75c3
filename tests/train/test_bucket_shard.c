/* test_bucket_shard.c - sharded buckets: each rank updates its own shard. After the gather all
 * ranks have, bit for bit, the parameters of a run in which every rank updates everything. */
#define _GNU_SOURCE
#include "bucket_set.h"
#include "placed.h"

enum { N = 17, MOST = 700, STEPS = 5 };

/* Parameters, and the optimizer's state for each element. */
typedef struct weights {
    float value[N * MOST], momentum[N * MOST];
    size_t at[N];
} weights;

/* Compute a gradient that depends on the weights, so that any difference grows. */
static void compute(set *t, const weights *w, size_t i, int step)
{
    float *grad = dcomm_param_grad(t->b, i);
    for (size_t j = 0; j < t->params[i].count; j++) {
        uint64_t seed = i * 1000003 + j * 31 + (uint64_t)t->rank * 77 + (uint64_t)step;
        grad[j] = (float)((double)ranks_random(&seed) / 1e19) + w->value[w->at[i] + j] / 3;
    }
}

static void update(set *t, weights *w, size_t i, size_t first, size_t count)
{
    const float *grad = dcomm_param_grad(t->b, i);
    for (size_t j = first; j < first + count; j++) {
        float *value = &w->value[w->at[i] + j], *momentum = &w->momentum[w->at[i] + j];
        *momentum = 0.9f * *momentum + grad[j];
        *value -= 0.1f * *momentum;
    }
}

static void train(dcomm_comm *comm, weights *w, bool sharded, int round)
{
    static set t;
    uint64_t seed = (uint64_t)dcomm_comm_rank(comm) + 40;
    dcomm_buckets_opts opts = {.bucket_bytes = round % 2 ? 2500 : 0,
                               .coll.deterministic = true,
                               .weighted = round == 4,
                               .sharded = sharded};
    size_t at = 0, order[SET_MAX], first, count;
    memset(w, 0, sizeof *w);
    set_shape(&t, N, MOST, false, 6);
    set_settle(&t, comm, (set_place)(round % 5));
    for (size_t i = 0; i < N; i++) { /* with a gap or without */
        w->at[i] = at;
        t.params[i].value = sharded ? w->value + at : NULL;
        at += t.params[i].count + (size_t)(round % 3 == 1 && at + MOST + 1 < (N - i) * MOST);
    }
    set_make(&t, &opts);
    for (int step = 0; step < STEPS; step++) {
        if (opts.weighted) {
            dcomm_buckets_step begin = {.weight = 1 + dcomm_comm_rank(comm) % 2};
            RANKS_OK(dcomm_buckets_begin(t.b, &begin));
        }
        set_shuffle(&t, order, &seed);
        for (size_t i = 0; i < N; i++) {
            compute(&t, w, order[i], step);
            RANKS_OK(dcomm_param_mark_ready(t.b, order[i], NULL));
        }
        RANKS_OK(dcomm_buckets_wait(t.b));
        size_t owned = 0, all = 0;
        for (size_t i = 0; i < N; i++) {
            RANKS_OK(dcomm_param_get_owned(t.b, i, &first, &count));
            PROCS_TRUE(first + count <= t.params[i].count);
            update(&t, w, i, first, count);
            owned += count;
            all += t.params[i].count;
        }
        if (sharded) {
            uint64_t sum = owned;
            RANKS_OK(dcomm_buckets_gather(t.b));
            RANKS_OK(dcomm_allreduce(comm, &sum, &sum, 1, DCOMM_U64, DCOMM_SUM, NULL));
            PROCS_TRUE(sum == all); /* each element has one owner */
        } else {
            PROCS_TRUE(owned == all);
        }
    }
    set_end(&t);
}

static int equal(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    dcomm_comm *comm = join(rank, n, s);
    static weights whole, shards;
    /* The everyday run takes a third of the cases with each number of ranks. */
    const int stride = test_full() ? 1 : 3;
    for (int round = n % stride; round < 10; round += stride) {
        train(comm, &whole, false, round);
        train(comm, &shards, true, round);
        PROCS_CHECK(memcmp(whole.value, shards.value, sizeof whole.value) == 0, "round %d", round);
        uint64_t sum = ranks_hash(shards.value, sizeof shards.value), low = sum;
        RANKS_OK(dcomm_allreduce(comm, &low, &low, 1, DCOMM_U64, DCOMM_MIN, NULL));
        PROCS_TRUE(low == sum || rank > 0);
    }
    return ranks_leave(&comm);
}

Test(bucket_shard, equal, .timeout = 100)
{
    on(2, RANKS_LOCAL, 45, equal);
    on(4, RANKS_PAIRS, 45, equal);
}

Test(bucket_shard, equal_of_three, .timeout = 100)
{
    on(3, RANKS_MESSAGE, 45, equal);
    on(1, RANKS_LOCAL, 45, equal);
}

/* With codecs, the shards and the gathered values are those of the calls themselves. Codecs that
 * round to nearest do not depend on the number of the call. */
static int coded(int rank, int n, procs_shared *s, void *arg)
{
    enum { ALL = 7005 };
    static const char gradients[] = "qsgd:bits=4,rounding=nearest";
    static const char values[] = "qsgd:bits=8,rounding=nearest";
    static const size_t counts[3] = {3000, 5, 4000};
    static float grad[ALL], value[ALL], sum[ALL], all[ALL], x[ALL];
    (void)arg;
    dcomm_comm *comm = join(rank, n, s);
    dcomm_buckets *b = NULL;
    dcomm_codec *codec = NULL, *value_codec = NULL;
    dcomm_bucket_param params[3];
    uint64_t seed = (uint64_t)rank + 1;
    size_t at = 0, own = 0, mine = 0, shard[4], first, count;
    for (size_t i = 0; i < ALL; i++) {
        grad[i] = x[i] = (float)(ranks_random(&seed) % 1000) - 500;
        value[i] = (float)i / 3;
    }
    for (int i = 0; i < 3; at += counts[i], i++) {
        params[i] = (dcomm_bucket_param){
            .count = counts[i], .dtype = DCOMM_F32, .grad = grad + at, .value = value + at};
    }
    const dcomm_buckets_opts opts = {.sharded = true, .codec = gradients, .value_codec = values};
    RANKS_OK(dcomm_buckets_create(comm, params, 3, &opts, &b));
    for (size_t i = 0; i < 3; i++) {
        RANKS_OK(dcomm_param_mark_ready(b, i, NULL));
    }
    RANKS_OK(dcomm_buckets_wait(b));
    for (size_t i = 0; i < 3; i++) {
        RANKS_OK(dcomm_param_get_owned(b, i, &first, &count));
        mine += count;
    }
    RANKS_OK(dcomm_allgather(comm, &mine, shard, 1, DCOMM_U64, NULL));
    for (int r = 0; r < rank; r++) {
        own += shard[r];
    }
    RANKS_OK(dcomm_codec_create(gradients, &codec));
    RANKS_OK(dcomm_codec_create(values, &value_codec));
    const dcomm_coll_opts with = {.codec = codec}, with_values = {.codec = value_codec};
    RANKS_OK(dcomm_reduce_scatterv(comm, x, sum, shard, DCOMM_F32, DCOMM_AVG, &with));
    PROCS_TRUE(memcmp(grad + own, sum, mine * sizeof *sum) == 0);
    for (size_t i = own; i < own + mine; i++) { /* each rank updates its shard */
        value[i] -= sum[i - own];
    }
    RANKS_OK(dcomm_allgatherv(comm, value + own, all, shard, NULL, DCOMM_F32, &with_values));
    PROCS_TRUE(memcmp(all + own, value + own, mine * sizeof *all) != 0); /* rounded */
    RANKS_OK(dcomm_buckets_gather(b));
    PROCS_TRUE(memcmp(all, value, sizeof all) == 0);
    dcomm_codec_destroy(&codec);
    dcomm_codec_destroy(&value_codec);
    RANKS_OK(dcomm_buckets_destroy(&b));
    return ranks_leave(&comm);
}

Test(bucket_shard, coded, .timeout = 30)
{
    on(2, RANKS_LOCAL, 25, coded);
    on(3, RANKS_LOCAL, 25, coded);
}

static void expect(dcomm_status got, const char *words)
{
    PROCS_CHECK(got == DCOMM_ERR_INVALID && strstr(dcomm_last_error(), words) != NULL, "%s: %s",
                dcomm_status_name(got), dcomm_last_error());
}

static int refused(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    dcomm_comm *comm = join(rank, n, s);
    float x[30] = {0};
    size_t first, count;
    dcomm_buckets *b = NULL;
    dcomm_bucket_param params[2] = {{.count = 10, .dtype = DCOMM_F32, .value = x},
                                    {.count = 10, .dtype = DCOMM_F32}};
    dcomm_buckets_opts opts = {.sharded = true};
    expect(dcomm_buckets_create(comm, params, 2, &opts, &b), "has no value, unlike those");
    params[1].value = x + 10;
    opts.rebuild = true;
    expect(dcomm_buckets_create(comm, params, 2, &opts, &b), "opts.sharded and opts.rebuild");
    opts.rebuild = false;
    opts.codec = "topk:k=0.1";
    expect(dcomm_buckets_create(comm, params, 2, &opts, &b), "takes codecs of blocks");
    opts.codec = "qsgd:bits=8";
    const dcomm_feedback_opts feedback = {.scale = true};
    opts.feedback = &feedback;
    expect(dcomm_buckets_create(comm, params, 2, &opts, &b), "with feedback");
    opts.codec = NULL;
    opts.feedback = NULL;
    opts.value_codec = "topk:k=0.1";
    expect(dcomm_buckets_create(comm, params, 2, &opts, &b), "opts.value_codec");
    opts.value_codec = rank == 0 ? "qsgd:bits=8" : NULL;
    PROCS_TRUE(dcomm_buckets_create(comm, params, 2, &opts, &b) == DCOMM_ERR_MISMATCH);
    PROCS_TRUE(strstr(dcomm_last_error(), "opts.value_codec") != NULL);
    opts.value_codec = NULL;
    params[0].value = params[1].value = rank == 0 ? x : NULL;
    PROCS_TRUE(dcomm_buckets_create(comm, params, 2, &opts, &b) == DCOMM_ERR_MISMATCH);
    PROCS_TRUE(strstr(dcomm_last_error(), "opts.values") != NULL);
    params[0].value = params[1].value = NULL;
    RANKS_OK(dcomm_buckets_create(comm, params, 2, &opts, &b));
    expect(dcomm_buckets_gather(b), "no parameter has a value");
    expect(dcomm_param_get_owned(b, 2, &first, &count), "no parameter 2");
    RANKS_OK(dcomm_buckets_destroy(&b));
    RANKS_OK(dcomm_buckets_create(comm, params, 2, NULL, &b));
    expect(dcomm_buckets_gather(b), "opts.sharded is not set");
    RANKS_OK(dcomm_param_get_owned(b, 1, &first, &count));
    PROCS_TRUE(first == 0 && count == 10);
    RANKS_OK(dcomm_buckets_destroy(&b));
    return ranks_leave(&comm);
}

Test(bucket_shard, refused, .timeout = 30)
{
    on(2, RANKS_LOCAL, 25, refused);
}
