/* ucc-perf.c - UCC's collectives, timed by the rule of peer_perf.h. Open MPI starts the ranks and
 * hands their addresses round, as in UCC's own tests. With PEER_YIELD=1 a rank that waits yields.
 */
#define _GNU_SOURCE
#include "peer_perf.h"

#include <mpi.h>
#include <ucc/api/ucc.h>

static ucc_lib_h peer_lib;
static ucc_context_h peer_context;
static ucc_team_h peer_team;
static bool peer_yields;

static void peer_abort(int status)
{
    MPI_Abort(MPI_COMM_WORLD, status);
}

static void peer_expect(ucc_status_t status, const char *what)
{
    if (status < 0) {
        fprintf(stderr, "ucc-perf: %s: %s\n", what, ucc_status_string(status));
        peer_abort(PEER_COMM);
    }
}

static void peer_library_name(char *name, size_t len)
{
    unsigned major = 0, minor = 0, release = 0;
    ucc_get_version(&major, &minor, &release);
    snprintf(name, len, "ucc-%u.%u.%u", major, minor, release);
}

/* In place, UCC leaves a reduce-scatter's result elsewhere than the others. */
static bool peer_can(peer_op op, bool in_place)
{
    return op != PEER_REDUCE_SCATTER || !in_place;
}

static void peer_run(ucc_coll_args_t *args)
{
    ucc_coll_req_h request;
    ucc_status_t status;
    peer_expect(ucc_collective_init(args, &request, peer_team), "init of a collective");
    peer_expect(ucc_collective_post(request), "post of a collective");
    while ((status = ucc_collective_test(request)) == UCC_INPROGRESS) {
        ucc_context_progress(peer_context);
        if (peer_yields) {
            sched_yield();
        }
    }
    peer_expect(status, "collective");
    ucc_collective_finalize(request);
}

static void peer_barrier(void)
{
    ucc_coll_args_t args = {.coll_type = UCC_COLL_TYPE_BARRIER};
    peer_run(&args);
}

static void peer_call(const peer_case *c)
{
    static const ucc_coll_type_t types[PEER_OP_COUNT] = {
        [PEER_ALLREDUCE] = UCC_COLL_TYPE_ALLREDUCE,
        [PEER_REDUCE_SCATTER] = UCC_COLL_TYPE_REDUCE_SCATTER,
        [PEER_ALLGATHER] = UCC_COLL_TYPE_ALLGATHER,
        [PEER_BROADCAST] = UCC_COLL_TYPE_BCAST,
        [PEER_ALLTOALL] = UCC_COLL_TYPE_ALLTOALL,
    };
    size_t all = c->count * (size_t)c->nranks;
    bool one_buffer = c->op == PEER_BROADCAST;
    ucc_coll_buffer_info_t input = {.buffer = one_buffer ? c->work : c->input,
                                    .count = c->send_count,
                                    .datatype = UCC_DT_FLOAT32,
                                    .mem_type = UCC_MEMORY_TYPE_HOST};
    ucc_coll_buffer_info_t result = input;
    result.buffer = c->work;
    result.count = c->recv_count;
    input.count = one_buffer || c->op == PEER_ALLREDUCE || c->op == PEER_ALLGATHER ? c->count : all;
    ucc_coll_args_t args = {.coll_type = types[c->op], .op = UCC_OP_SUM};
    args.src.info = input;
    args.dst.info = result;
    if (c->in_place && !one_buffer) {
        args.mask |= UCC_COLL_ARGS_FIELD_FLAGS;
        args.flags |= UCC_COLL_ARGS_FLAG_IN_PLACE;
    }
    peer_run(&args);
}

static void peer_max(double *values, int n)
{
    MPI_Allreduce(MPI_IN_PLACE, values, n, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
}

/* ---- what UCC wants of whoever brings its ranks together ---- */

static ucc_status_t peer_gather(void *input, void *output, size_t bytes, void *unused,
                                void **request_p)
{
    (void)unused;
    MPI_Request *request = malloc(sizeof *request);
    if (request == NULL) {
        return UCC_ERR_NO_MEMORY;
    }
    MPI_Iallgather(input, (int)bytes, MPI_BYTE, output, (int)bytes, MPI_BYTE, MPI_COMM_WORLD,
                   request);
    *request_p = request;
    return UCC_OK;
}

static ucc_status_t peer_gather_test(void *request)
{
    int done = 0;
    MPI_Test(request, &done, MPI_STATUS_IGNORE);
    return done ? UCC_OK : UCC_INPROGRESS;
}

static ucc_status_t peer_gather_free(void *request)
{
    free(request);
    return UCC_OK;
}

static void peer_create(int rank, int nranks)
{
    ucc_lib_config_h lib_config;
    ucc_context_config_h context_config;
    ucc_oob_coll_t meeting = {.allgather = peer_gather,
                              .req_test = peer_gather_test,
                              .req_free = peer_gather_free,
                              .n_oob_eps = (uint32_t)nranks,
                              .oob_ep = (uint32_t)rank};
    ucc_lib_params_t lib = {.mask = UCC_LIB_PARAM_FIELD_THREAD_MODE,
                            .thread_mode = UCC_THREAD_SINGLE};
    ucc_context_params_t context = {.mask = UCC_CONTEXT_PARAM_FIELD_OOB, .oob = meeting};
    ucc_team_params_t team = {.mask = UCC_TEAM_PARAM_FIELD_EP | UCC_TEAM_PARAM_FIELD_EP_RANGE |
                                      UCC_TEAM_PARAM_FIELD_OOB,
                              .ep = (uint64_t)rank,
                              .ep_range = UCC_COLLECTIVE_EP_RANGE_CONTIG,
                              .oob = meeting};
    peer_expect(ucc_lib_config_read(NULL, NULL, &lib_config), "configuration");
    peer_expect(ucc_init(&lib, lib_config, &peer_lib), "ucc_init");
    ucc_lib_config_release(lib_config);
    peer_expect(ucc_context_config_read(peer_lib, NULL, &context_config), "configuration");
    peer_expect(ucc_context_create(peer_lib, &context, context_config, &peer_context), "context");
    ucc_context_config_release(context_config);
    peer_expect(ucc_team_create_post(&peer_context, 1, &team, &peer_team), "team");
    ucc_status_t status;
    while ((status = ucc_team_create_test(peer_team)) == UCC_INPROGRESS) {
        ucc_context_progress(peer_context);
    }
    peer_expect(status, "team");
}

static void peer_destroy(void)
{
    while (ucc_team_destroy(peer_team) == UCC_INPROGRESS) {
        ucc_context_progress(peer_context);
    }
    ucc_context_destroy(peer_context);
    ucc_finalize(peer_lib);
}

int main(int argc, char **argv)
{
    int rank = 0, nranks = 1;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &nranks);
    const char *yields = getenv("PEER_YIELD");
    peer_yields = yields != NULL && strcmp(yields, "1") == 0;
    peer_create(rank, nranks);
    int result = peer_main(argc, argv, rank, nranks);
    peer_destroy();
    MPI_Finalize();
    return result;
}
