/* test_interface.c - programs written for an earlier version still work. Each old name of a
 * renamed function is called once and does the same as the new one. Fields of option structs have
 * kept their offsets. */
#define _GNU_SOURCE
#undef DCOMM_NO_OLD_NAMES
#include "interface_layout.h"
#include "placed.h"

enum { COUNT = 300, PARAMS = 3 };

static void same(const char *name, const void *old, const void *now, size_t bytes)
{
    PROCS_CHECK(memcmp(old, now, bytes) == 0, "%s gives something else", name);
}

static void of_buckets(dcomm_comm *comm, int n)
{
    float grads[PARAMS][COUNT];
    dcomm_bucket_param params[PARAMS] = {{.grad = grads[0], .count = COUNT, .dtype = DCOMM_F32},
                                         {.grad = grads[1], .count = COUNT, .dtype = DCOMM_F32},
                                         {.grad = grads[2], .count = COUNT, .dtype = DCOMM_F32}};
    const dcomm_buckets_opts opts = {.sum = true, .unused = true};
    dcomm_buckets *b;
    size_t old[2], now[2];
    for (int i = 0; i < COUNT; i++) {
        grads[0][i] = grads[1][i] = 1;
    }
    RANKS_OK(dcomm_buckets_create(comm, params, PARAMS, &opts, &b));
    for (size_t i = 0; i < PARAMS; i++) {
        PROCS_TRUE(dcomm_bucket_grad(b, i) == grads[i] && dcomm_param_grad(b, i) == grads[i]);
        RANKS_OK(dcomm_bucket_of(b, i, &old[0], &old[1]));
        RANKS_OK(dcomm_param_get_bucket(b, i, &now[0], &now[1]));
        same("dcomm_bucket_of", old, now, sizeof old);
        RANKS_OK(dcomm_bucket_owned(b, i, &old[0], &old[1]));
        RANKS_OK(dcomm_param_get_owned(b, i, &now[0], &now[1]));
        same("dcomm_bucket_owned", old, now, sizeof old);
    }
    RANKS_OK(dcomm_bucket_ready(b, 0, NULL));
    RANKS_OK(dcomm_param_mark_ready(b, 1, NULL));
    RANKS_OK(dcomm_bucket_unused(b, 2));
    ranks_refused(dcomm_bucket_ready(b, PARAMS, NULL), DCOMM_ERR_INVALID, "3");
    RANKS_OK(dcomm_bucket_wait(b, 0));
    RANKS_OK(dcomm_buckets_wait(b));
    PROCS_TRUE(grads[0][7] == (float)n && grads[1][7] == (float)n && grads[2][7] == 0);
    RANKS_OK(dcomm_buckets_destroy(&b));
}

static void of_comm(dcomm_comm *comm, int n)
{
    dcomm_level level[2];
    dcomm_place place[2];
    dcomm_stats stats[2];
    dcomm_tuning tuning[2];
    dcomm_request_info request_info[2];
    dcomm_request *request;
    int32_t in[4] = {1, 2, 3, 4}, out[4];
    memset(level, 0, sizeof level);
    memset(place, 0, sizeof place);
    memset(request_info, 0, sizeof request_info);
    RANKS_OK(dcomm_comm_level(comm, 0, &level[0]));
    RANKS_OK(dcomm_comm_get_level(comm, 0, &level[1]));
    same("dcomm_comm_level", &level[0], &level[1], sizeof level[0]);
    RANKS_OK(dcomm_comm_place(comm, n - 1, &place[0]));
    RANKS_OK(dcomm_comm_get_place(comm, n - 1, &place[1]));
    same("dcomm_comm_place", &place[0], &place[1], sizeof place[0]);
    RANKS_OK(dcomm_comm_tuning(comm, &tuning[0]));
    RANKS_OK(dcomm_comm_get_tuning(comm, &tuning[1]));
    same("dcomm_comm_tuning", &tuning[0], &tuning[1], sizeof tuning[0]);
    RANKS_OK(dcomm_iallreduce(comm, in, out, 4, DCOMM_I32, DCOMM_SUM, NULL, &request));
    RANKS_OK(dcomm_request_query(request, &request_info[0]));
    RANKS_OK(dcomm_request_get_info(request, &request_info[1]));
    same("dcomm_request_query", &request_info[0], &request_info[1], sizeof request_info[0]);
    RANKS_OK(dcomm_wait(&request));
    PROCS_TRUE(out[3] == 4 * n);
    RANKS_OK(dcomm_comm_stats(comm, &stats[0]));
    RANKS_OK(dcomm_comm_get_stats(comm, &stats[1]));
    same("dcomm_comm_stats", &stats[0], &stats[1], sizeof stats[0]);
}

static void of_memory(dcomm_comm *comm)
{
    dcomm_mem_info info[2];
    void *memory;
    memset(info, 0, sizeof info);
    RANKS_OK(dcomm_mem_alloc(dcomm_comm_context(comm), 5000, &memory));
    RANKS_OK(dcomm_mem_query(memory, &info[0]));
    RANKS_OK(dcomm_mem_get_info(memory, &info[1]));
    PROCS_TRUE(info[0].base == memory && info[0].bytes == info[1].bytes);
    RANKS_OK(dcomm_mem_free(&memory));
}

static void of_algorithms(dcomm_comm *comm)
{
    dcomm_algo_info info[2];
    dcomm_verdict verdict;
    dcomm_codec *codec;
    RANKS_OK(dcomm_algo_get(DCOMM_COLL_ALLREDUCE, 1, &info[0]));
    RANKS_OK(dcomm_algo_get_info(DCOMM_COLL_ALLREDUCE, 1, &info[1]));
    PROCS_TRUE(info[0].name == info[1].name);
    RANKS_OK(dcomm_coded_algo_get(DCOMM_COLL_ALLREDUCE, 0, &info[0]));
    RANKS_OK(dcomm_coded_algo_get_info(DCOMM_COLL_ALLREDUCE, 0, &info[1]));
    PROCS_TRUE(info[0].name == info[1].name);
    RANKS_OK(dcomm_codec_create("bf16", &codec));
    RANKS_OK(dcomm_codec_verdict(comm, codec, 4096, false, &verdict));
    PROCS_CHECK(verdict.bits == 16 && verdict.text[0] != 0, "%g bits", verdict.bits);
    RANKS_OK(dcomm_codec_destroy(&codec));
}

static void of_explanations(dcomm_comm *comm)
{
    const dcomm_coll coll = DCOMM_COLL_ALLREDUCE;
    const dcomm_coll_opts opts = {.deterministic = true};
    const int hosts[4] = {0, 0, 1, 1};
    dcomm_alternative rows[2][32];
    dcomm_path paths[2][3];
    dcomm_tuning tuning;
    dcomm_explanation e = {.coll = coll,
                           .count = 5000,
                           .dtype = DCOMM_F32,
                           .op = DCOMM_MAX,
                           .opts = &opts,
                           .alternatives = rows[1],
                           .max_alternatives = 32,
                           .paths = paths[1],
                           .max_paths = 3};
    const char *algo = NULL;
    int n = 0;
    RANKS_OK(dcomm_comm_explain(comm, &e));
    RANKS_OK(dcomm_explain(comm, coll, 5000, DCOMM_F32, DCOMM_MAX, &opts, &algo));
    PROCS_TRUE(algo == e.algo);
    RANKS_OK(dcomm_explain_all(comm, coll, 5000, DCOMM_F32, DCOMM_MAX, &opts, rows[0], 32, &n));
    PROCS_TRUE(n == e.nalternatives && n > 5 && n <= 32);
    same("dcomm_explain_all", rows[0], rows[1], (size_t)n * sizeof rows[0][0]);
    RANKS_OK(dcomm_explain_paths(comm, coll, 5000, DCOMM_F32, DCOMM_MAX, &opts, paths[0], 3, &n));
    PROCS_TRUE(n == 3 && e.npaths == 3);
    same("dcomm_explain_paths", paths[0], paths[1], sizeof paths[0]);
    RANKS_OK(dcomm_tuning_uniform(1000, 1, 1, &tuning));
    e.tuning = &tuning;
    e.nranks = 4;
    e.hosts = hosts;
    e.op = DCOMM_SUM;
    RANKS_OK(dcomm_comm_explain(NULL, &e));
    RANKS_OK(dcomm_explain_on(&tuning, 4, hosts, coll, 5000, DCOMM_F32, &opts, rows[0], 32, &n));
    PROCS_TRUE(n == e.nalternatives);
    same("dcomm_explain_on", rows[0], rows[1], (size_t)n * sizeof rows[0][0]);
    RANKS_OK(
        dcomm_explain_paths_on(&tuning, 4, hosts, coll, 5000, DCOMM_F32, &opts, paths[0], 3, &n));
    PROCS_TRUE(n == 3);
    same("dcomm_explain_paths_on", paths[0], paths[1], sizeof paths[0]);
}

static void of_feedback(void)
{
    float x[64];
    const float *old, *now;
    dcomm_codec *codec;
    dcomm_feedback *fb;
    for (int i = 0; i < 64; i++) {
        x[i] = (float)i;
    }
    RANKS_OK(dcomm_codec_create("randk:k=0.5", &codec));
    RANKS_OK(dcomm_feedback_create(codec, 64, &(dcomm_feedback_opts){.scale = true}, &fb));
    RANKS_OK(dcomm_feedback_begin(fb, &(dcomm_feedback_step){.x = x}));
    RANKS_OK(dcomm_feedback_gather(fb, &old));
    RANKS_OK(dcomm_feedback_correct(fb, &now));
    PROCS_TRUE(old == now && old[63] == 63);
    RANKS_OK(dcomm_feedback_destroy(&fb));
    RANKS_OK(dcomm_codec_destroy(&codec));
}

static int life(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    dcomm_comm *comm = join(rank, n, s);
    of_buckets(comm, n);
    of_comm(comm, n);
    of_memory(comm);
    of_algorithms(comm);
    of_explanations(comm);
    of_feedback();
    return ranks_leave(&comm);
}

Test(interface, old_names, .timeout = 60)
{
    on(2, RANKS_LOCAL, 50, life);
}
