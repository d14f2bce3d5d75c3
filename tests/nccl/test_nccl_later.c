/* test_nccl_later.c - NCCL's interface: the calls of NCCL 2.28 to 2.32. Those that dcomm lacks
 * refuse by name. */
#define _GNU_SOURCE
#include "nccl_ranks.h"
#include <criterion/criterion.h>

/* NCCL's layouts, which its own headers give to programs. */
struct ncclCommProperties {
    size_t size;
    unsigned int magic, version;
    int rank, nRanks, cudaDev, nvmlDev;
    bool deviceApiSupport, multimemSupport;
    int ginType, nLsaTeams;
    bool hostRmaSupport;
    int railedGinType;
    uint64_t later[4];
};

struct ncclCollConfig_v23200 {
    size_t size;
    unsigned int magic, version;
    void *ext;
    int minCTAs, maxCTAs, nvlsCTAs, cgaClusterSize;
    const char *algSelection;
    int forceAlgSelection, CTAPolicy;
    uint64_t userProfilerTag;
    cudaEvent_t launchCompletionEvent;
};

static struct ncclCollConfig_v23200 first_config(void)
{
    const int unset = NCCL_CONFIG_UNDEF_INT;
    return (struct ncclCollConfig_v23200){.size = sizeof(struct ncclCollConfig_v23200),
                                          .magic = 0xcafebeef,
                                          .version = 23203,
                                          .minCTAs = unset,
                                          .maxCTAs = unset,
                                          .nvlsCTAs = unset,
                                          .cgaClusterSize = unset,
                                          .forceAlgSelection = 1,
                                          .CTAPolicy = unset};
}

/* Check that a call refuses, that its sentence begins with its name, and that its second name is
 * the same call. */
#define REFUSES(name, ...)                                                                       \
    do {                                                                                         \
        cr_expect_eq(name(__VA_ARGS__), ncclInvalidUsage, #name);                                \
        cr_expect(                                                                               \
            strncmp(ncclGetLastError(NULL), #name ": dcomm ", sizeof #name ": dcomm " - 1) == 0, \
            #name ": '%s'", ncclGetLastError(NULL));                                             \
        cr_expect_eq(p##name(__VA_ARGS__), ncclInvalidUsage, "p" #name);                         \
    } while (0)

Test(nccl_later, what_dcomm_lacks_refuses_by_name)
{
    static const ncclTeam_t team = {1, 0, 1};
    static const ncclMultimemHandle_t multimem = {NULL};
    REFUSES(ncclCommRevoke, NULL, NCCL_REVOKE_DEFAULT);
    REFUSES(ncclCommGetUniqueId, NULL, NULL);
    REFUSES(ncclCommGrow, NULL, 2, NULL, -1, NULL, NULL);
    REFUSES(ncclCommSuspend, NULL, NCCL_SUSPEND_MEM);
    REFUSES(ncclCommResume, NULL);
    REFUSES(ncclCommMemStats, NULL, ncclStatGpuMemTotal, NULL);
    REFUSES(ncclSetEncryption, NULL);
    REFUSES(ncclPutSignal, NULL, 0, ncclFloat, 0, NULL, 0, 0, 0, 0, NULL, NULL);
    REFUSES(ncclSignal, 0, 0, 0, 0, NULL, NULL);
    REFUSES(ncclWaitSignal, 0, NULL, NULL, NULL);
    REFUSES(ncclDevCommCreate, NULL, NULL, NULL);
    REFUSES(ncclDevCommDestroy, NULL, NULL);
    REFUSES(ncclGetLsaDevicePointer, NULL, 0, 0, NULL);
    REFUSES(ncclGetPeerDevicePointer, NULL, 0, 0, NULL);
    REFUSES(ncclGetLsaMultimemDevicePointer, NULL, 0, NULL);
    REFUSES(ncclGetMultimemDevicePointer, NULL, 0, multimem, NULL);
    REFUSES(ncclGetPeerDeviceLeInfo, NULL, 0, 0, NULL, NULL);
    REFUSES(ncclGetCftDeviceLeInfo, NULL, 0, 0, team, NULL, NULL);
    REFUSES(ncclGetMultimemDeviceLeInfo, NULL, 0, NULL, NULL);
    REFUSES(ncclLsaBarrierCreateRequirement, team, 1, NULL, NULL);
    REFUSES(ncclGinBarrierCreateRequirement, NULL, team, 1, NULL, NULL);
    REFUSES(ncclLLA2ACreateRequirement, 1, 1, NULL, NULL);
    REFUSES(ncclParamBind, NULL, "NCCL_DEBUG");
    REFUSES(ncclParamGetI8, NULL, NULL);
    REFUSES(ncclParamGetI16, NULL, NULL);
    REFUSES(ncclParamGetI32, NULL, NULL);
    REFUSES(ncclParamGetI64, NULL, NULL);
    REFUSES(ncclParamGetU8, NULL, NULL);
    REFUSES(ncclParamGetU16, NULL, NULL);
    REFUSES(ncclParamGetU32, NULL, NULL);
    REFUSES(ncclParamGetU64, NULL, NULL);
    REFUSES(ncclParamGetStr, NULL, NULL);
    REFUSES(ncclParamGet, NULL, NULL, 0, NULL);
    REFUSES(ncclParamGetParameter, "NCCL_DEBUG", NULL, NULL);
    cr_expect_eq(ncclLLA2ACalcSlots(8, 8), 0);
    const char **keys = NULL;
    int n = -1;
    cr_expect_eq(ncclParamGetAllParameterKeys(&keys, &n), ncclSuccess);
    cr_expect(keys != NULL && n == 0);
    ncclParamDumpAll();
    /* The end of a group returns a refusal in it. */
    cr_expect_eq(ncclGroupStart(), ncclSuccess);
    (void)ncclSignal(0, 0, 0, 0, NULL, NULL);
    cr_expect_eq(ncclGroupEnd(), ncclInvalidUsage);
    cr_expect_not_null(strstr(ncclGetLastError(NULL), "ncclSignal"));
}

static void all_with_config(int rank, int n, ncclComm_t comm)
{
    struct ncclCollConfig_v23200 config = first_config();
    int32_t host[4] = {0}, *in, *out;
    const int32_t rounds[8][4] = {/* what a rank of 2 has at the end of each call */
                                  {4, 6},       {3, 4},         {4, 6},
                                  {1, 2, 3, 4}, {4 + 2 * rank}, {1 + rank, 3 + rank},
                                  {1, 2, 3, 4}, {3 + rank}};
    CUDA(cudaMalloc((void **)&in, 64));
    CUDA(cudaMalloc((void **)&out, 64));
    config.minCTAs = 4;
    config.algSelection = "NVLS";
    config.forceAlgSelection = 0;
    for (int i = 0; i < 8; i++) {
        const int32_t mine[2] = {1 + 2 * rank, 2 + 2 * rank};
        const bool at_root = i == 2 || i == 6;
        const ncclCollConfig_t *c = i % 2 ? NULL : &config;
        CUDA(cudaMemcpy(in, mine, sizeof mine, cudaMemcpyHostToDevice));
        CUDA(cudaMemset(out, 0, 64));
        CUDA(cudaStreamSynchronize(cudaStreamLegacy));
        NCCL(i == 0   ? ncclAllReduceConfig(in, out, 2, ncclInt32, ncclSum, comm, NULL, c)
             : i == 1 ? ncclBroadcastConfig(in, out, 2, ncclInt32, 1, comm, NULL, c)
             : i == 2 ? ncclReduceConfig(in, out, 2, ncclInt32, ncclSum, 0, comm, NULL, c)
             : i == 3 ? ncclAllGatherConfig(in, out, 2, ncclInt32, comm, NULL, c)
             : i == 4 ? ncclReduceScatterConfig(in, out, 1, ncclInt32, ncclSum, comm, NULL, c)
             : i == 5 ? ncclAlltoAllConfig(in, out, 1, ncclInt32, comm, NULL, c)
             : i == 6 ? ncclGatherConfig(in, out, 2, ncclInt32, 0, comm, NULL, c)
                      : ncclScatterConfig(in, out, 1, ncclInt32, 1, comm, NULL, c));
        CUDA(cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost));
        PROCS_CHECK((at_root && rank != 0) || memcmp(host, rounds[i], sizeof host) == 0,
                    "call %d, rank %d of %d: %d %d %d %d", i, rank, n, host[0], host[1], host[2],
                    host[3]);
    }
    config.forceAlgSelection = 1;
    NCCL_REFUSES(ncclAllReduceConfig(in, out, 2, ncclInt32, ncclSum, comm, NULL, &config),
                 ncclInvalidArgument, "ncclAllReduceConfig: config.algSelection is \"NVLS\"");
    config.algSelection = NULL;
    CUDA(cudaEventCreate(&config.launchCompletionEvent));
    NCCL_REFUSES(ncclScatterConfig(in, out, 1, ncclInt32, 1, comm, NULL, &config), ncclInvalidUsage,
                 "ncclScatterConfig: config.launchCompletionEvent");
    config.size -= sizeof config.launchCompletionEvent; /* as NCCL 2.31's: no such field */
    NCCL(ncclAllReduceConfig(in, out, 2, ncclInt32, ncclSum, comm, NULL, &config));
    config.magic = 0;
    NCCL_REFUSES(ncclAllReduceConfig(in, out, 2, ncclInt32, ncclSum, comm, NULL, &config),
                 ncclInvalidArgument, "NCCL_COLLCONFIG_INITIALIZER");
    CUDA(cudaStreamSynchronize(NULL));
}

static int has(int rank, int n, procs_shared *s, void *arg)
{
    ncclComm_t comm = ranks_join(rank, n, s);
    (void)arg;
    struct ncclCommProperties p;
    memset(&p, 0xff, sizeof p);
    p.size = offsetof(struct ncclCommProperties, later);
    p.magic = 0xcafebeef;
    NCCL(ncclCommQueryProperties(comm, &p));
    PROCS_TRUE(p.rank == rank && p.nRanks == n && p.cudaDev == rank % 8);
    PROCS_TRUE(!p.deviceApiSupport && !p.multimemSupport && p.ginType == 0 && !p.hostRmaSupport);
    PROCS_TRUE(p.railedGinType == 0 && p.later[0] == UINT64_MAX);
    p.magic = 0;
    NCCL_REFUSES(ncclCommQueryProperties(comm, &p), ncclInvalidArgument,
                 "NCCL_COMM_PROPERTIES_INITIALIZER");

    const ncclTeam_t world = ncclTeamWorld(comm), lsa = ncclTeamLsa(comm),
                     rail = ncclTeamRail(comm);
    PROCS_TRUE(world.nRanks == n && world.rank == rank && world.stride == 1);
    PROCS_TRUE(lsa.nRanks == 1 && lsa.rank == 0 && memcmp(&rail, &world, sizeof rail) == 0);
    for (int r = 0; r < n; r++) {
        PROCS_TRUE(ncclTeamRankToWorld(comm, world, r) == r &&
                   ncclTeamRankToWorld(comm, rail, r) == r);
    }
    PROCS_TRUE(ncclTeamRankToWorld(comm, lsa, 0) == rank && ncclTeamRankToLsa(comm, lsa, 0) == 0);
    PROCS_TRUE(ncclTeamCft(comm, NCCL_CFT_TEAM_FLAT).nRanks == 0);
    PROCS_TRUE(ncclTeamCftMultimem(comm).nRanks == 0 && ncclTeamWorld(NULL).nRanks == 0);

    float *x;
    void *found = NULL;
    ncclWindow_t window;
    const int both = NCCL_WIN_COLL_SYMMETRIC | NCCL_WIN_STRICT_ORDERING;
    CUDA(cudaMalloc((void **)&x, 1024));
    NCCL(ncclCommWindowRegister(comm, x, 1024, &window, NCCL_WIN_STRICT_ORDERING));
    NCCL(ncclCommWindowDeregister(comm, window));
    NCCL(ncclCommWindowRegister(comm, x + 4, 1008, &window, both));
    NCCL(ncclWinGetUserPtr(comm, window, &found));
    PROCS_TRUE(found == x + 4);
    NCCL_REFUSES(ncclWinGetUserPtr(comm, (ncclWindow_t)x, &found), ncclInvalidArgument,
                 "no such window");
    PROCS_TRUE(found == NULL);
    NCCL(ncclCommWindowDeregister(comm, window));
    all_with_config(rank, n, comm);
    return ranks_leave(rank, n, -1, s, comm);
}

Test(nccl_later, what_dcomm_has_is_right)
{
    int ended[PROCS_MAX];
    (void)procs_run(2, 100, has, NULL, ended);
    cr_expect(ended[0] == 0 && ended[1] == 0, "%d %d", ended[0], ended[1]);
}
