/* tsan_ps.c - for ThreadSanitizer: the progress threads of servers serve, decode and call an update
 * of the caller's, while their ranks push, pull and look at statistics. */
#define _GNU_SOURCE
#include "ranks.h"

enum { ROWS = 400, COLS = 8, CLOCKS = 12, LISTED = 3, LONG = 30000 };

static void sgd(float *w, const float *g, size_t n, const dcomm_ps_update_info *info, void *user)
{
    (void)user;
    for (size_t k = 0; k < n; k++) {
        info->state[0][k]++;
        w[k] -= info->scale * g[k];
    }
}

/* Push and pull by requests, with others in flight. */
static void work(dcomm_ps *ps, int staleness)
{
    static float grad[ROWS * COLS], rows[LISTED * COLS], got[ROWS * COLS], big[LONG];
    static uint16_t few[LISTED * COLS];
    static const uint64_t listed[LISTED] = {ROWS - 1, 7, 200};
    for (int clock = 0; clock < CLOCKS; clock++) {
        dcomm_request *requests[4] = {NULL};
        dcomm_ps_stats stats;
        for (size_t k = 0; k < ROWS * COLS; k++) {
            grad[k] = (float)((k + (size_t)clock) % 5);
        }
        RANKS_OK(dcomm_ps_push(ps, 0, 0, ROWS, grad, &requests[0]));
        RANKS_OK(dcomm_ps_push_rows(ps, 0, listed, LISTED, rows, &requests[1]));
        RANKS_OK(dcomm_ps_push(ps, 1, 0, LISTED, few, &requests[2]));
        RANKS_OK(dcomm_ps_push(ps, 2, 0, LONG, big, &requests[3]));
        RANKS_OK(dcomm_ps_get_stats(ps, &stats));
        RANKS_OK(dcomm_wait_all(requests, 4));
        RANKS_OK(dcomm_ps_clock(ps));
        RANKS_OK(dcomm_ps_pull(ps, 0, 0, ROWS, got, &requests[0]));
        RANKS_OK(dcomm_ps_pull(ps, 2, 0, LONG, big, &requests[1]));
        RANKS_OK(dcomm_ps_get_stats(ps, &stats));
        RANKS_OK(dcomm_wait_all(requests, 2));
        PROCS_TRUE(stats.clock == (uint64_t)clock + 1);
        PROCS_TRUE(staleness != 0 || got[0] <= 0);
        for (size_t k = 0; k < LONG; k++) {
            big[k] = 1;
        }
    }
}

static int busy(int rank, int n, procs_shared *s, void *arg)
{
    ranks_settle(rank, n, *(ranks_place *)arg);
    dcomm_comm *comm = ranks_join(rank, n, s, NULL);
    const dcomm_ps_param params[] = {{.rows = ROWS, .cols = COLS, .dtype = DCOMM_F32},
                                     {.rows = LISTED, .cols = COLS, .dtype = DCOMM_F16},
                                     {.rows = LONG, .cols = 1, .dtype = DCOMM_F32}};
    for (int c = 0; c < 4; c++) {
        const dcomm_ps_opts opts = {.staleness = c % 2 == 0 ? 0 : DCOMM_PS_ASYNC,
                                    .lr = 1,
                                    .update = c < 2 ? DCOMM_PS_ADAM : DCOMM_PS_CALLBACK,
                                    .update_fn = c < 2 ? NULL : sgd,
                                    .update_states = c < 2 ? 0 : 1,
                                    .codec = c < 2 ? NULL : "topk:k=0.1"};
        dcomm_ps *ps = NULL;
        RANKS_OK(dcomm_ps_create(comm, params, 3, &opts, &ps));
        work(ps, opts.staleness);
        RANKS_OK(dcomm_ps_destroy(&ps));
    }
    RANKS_OK(dcomm_comm_destroy(&comm));
    return 0;
}

int main(void)
{
    int ended[PROCS_MAX], bad = 0;
    ranks_place local = RANKS_LOCAL, hosts = RANKS_HOSTS;
    bad += procs_run(3, 100, busy, &local, ended);
    bad += procs_run(2, 100, busy, &hosts, ended);
    return bad > 0;
}
