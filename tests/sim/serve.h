/* serve.h - lives with a parameter server: workers push, pull and end clocks; some die, and others
 * are stopped for a while.
 *
 * Row r of the table belongs to worker r: only it pushes to that row, 1 in each clock. So a pulled
 * row tells how many of its worker's clocks count. Every worker also pushes to the last row. */
#ifndef SIM_SERVE_H
#define SIM_SERVE_H

#include "life.h"

#include <math.h>

enum { SERVE_COLS = 3, SERVE_CLOCKS = 6 };

/* A case; its ranks, deaths and stops are those of `life`. */
static struct {
    bool on;
    int servers, staleness, clocks;
    bool dedicated, lists, requests, replicas;
    int quorum;
    double deadline_s;
} serve;

/* The doings of a rank. */
static struct {
    int pushed, ended; /* clocks that it has pushed in, and ended */
    dcomm_status status;
    char error[DCOMMI_MESSAGE_MAX];
    /* BSP: hashes of the rows that it pulled at each clock; 0: it did not */
    uint64_t seen[SERVE_CLOCKS + 1][WORLD_MAX + 1];
} serve_report[WORLD_MAX];

/* ---- who is who ---- */

static int serve_rank(int k)
{
    return k * life.n / serve.servers;
}

static bool serve_serves(int rank)
{
    bool serves = false;
    for (int k = 0; k < serve.servers; k++) {
        serves = serves || serve_rank(k) == rank;
    }
    return serves;
}

static bool serve_works(int rank)
{
    return !serve.dedicated || !serve_serves(rank);
}

static int serve_workers(void)
{
    int n = 0;
    for (int r = 0; r < life.n; r++) {
        n += serve_works(r);
    }
    return n;
}

/* Return true if some clocks end without all workers. */
static bool serve_partial(void)
{
    return serve.quorum > 0 || serve.deadline_s > 0;
}

/* Return true if server k is to die; with replicas, and its replica. */
static bool serve_loses(int k)
{
    return life_dies(serve_rank(k)) &&
           (!serve.replicas || life_dies(serve_rank((k + 1) % serve.servers)));
}

/* Return the number of ranks that are to die, of workers or of servers. */
static int serve_deaths(bool workers)
{
    int n = 0;
    for (int r = 0; r < life.n; r++) {
        n += life_dies(r) && (workers ? serve_works(r) : serve_serves(r));
    }
    return n;
}

/* ---- a worker ---- */

/* Check the row of worker r that this one has pulled at a clock. */
static void serve_check_row(int clock, int r, const float *row)
{
    const bool bsp = serve.staleness == 0, mine = r == world.in;
    const double most = serve_report[r].pushed, workers = serve_workers();
    const double count = (double)row[0];
    for (int c = 1; c < SERVE_COLS; c++) {
        if (memcmp(&row[c], &row[0], sizeof row[0]) != 0) {
            world_trouble("rank %d: row %d has %g and %g", world.in, r, count, (double)row[c]);
        }
    }
    /* With fewer workers a push counts more, and with backup workers a clock may have two. */
    const bool exact = bsp && serve_deaths(true) == 0 && !serve_partial();
    if (count > (bsp && !exact ? most * workers : most) + 1e-3) {
        world_trouble("rank %d at clock %d: row %d counts %g, of %g pushes", world.in, clock, r,
                      count, most);
    }
    const int least = mine                                  ? clock
                      : serve.staleness < 0 || life_dies(r) ? 0
                                                            : clock - serve.staleness;
    if (!(serve_partial() && bsp) && count < least - 1e-3) {
        world_trouble("rank %d at clock %d: row %d counts %g, not %d", world.in, clock, r, count,
                      least);
    }
    if (exact && fabs(count - clock) > 1e-3) {
        world_trouble("rank %d at clock %d: row %d counts %g", world.in, clock, r, count);
    }
}

static dcomm_status serve_pull(dcomm_ps *ps, int clock)
{
    const size_t rows = (size_t)life.n + 1;
    float *out = calls_take_numbers(rows * SERVE_COLS, world.in);
    uint64_t list[WORLD_MAX + 1];
    for (size_t r = 0; r < rows; r++) {
        list[r] = r;
    }
    dcomm_request *request = NULL, **request_p = serve.requests ? &request : NULL;
    dcomm_status status = serve.lists ? dcomm_ps_pull_rows(ps, 0, list, rows, out, request_p)
                                      : dcomm_ps_pull(ps, 0, 0, rows, out, request_p);
    if (status == DCOMM_OK && request != NULL) {
        status = dcomm_wait(&request);
    }
    if (status != DCOMM_OK) {
        return status;
    }
    for (int r = 0; r <= life.n; r++) {
        const float *row = out + r * SERVE_COLS;
        serve_report[world.in].seen[clock][r] = ranks_hash(row, SERVE_COLS * sizeof *row);
        if (r < life.n && serve_works(r)) {
            serve_check_row(clock, r, row);
        }
    }
    return DCOMM_OK;
}

static dcomm_status serve_push(dcomm_ps *ps)
{
    const uint64_t list[] = {(uint64_t)world.in, (uint64_t)life.n};
    float *grad = calls_take_numbers(2 * SERVE_COLS, world.in);
    for (int i = 0; i < 2 * SERVE_COLS; i++) {
        grad[i] = -1;
    }
    serve_report[world.in].pushed++;
    if (serve.lists) {
        return dcomm_ps_push_rows(ps, 0, list, 2, grad, NULL);
    }
    const dcomm_status status = dcomm_ps_push(ps, 0, list[0], 1, grad, NULL);
    return status == DCOMM_OK ? dcomm_ps_push(ps, 0, list[1], 1, grad, NULL) : status;
}

/* Work for all clocks, or until a call fails. */
static dcomm_status serve_work(dcomm_ps *ps, int rank)
{
    dcomm_status status = DCOMM_OK;
    for (int clock = 0; clock < serve.clocks && status == DCOMM_OK; clock++) {
        if (world_chance(0.7)) {
            status = serve_pull(ps, clock);
        }
        status = status == DCOMM_OK ? serve_push(ps) : status;
        status = status == DCOMM_OK ? dcomm_ps_clock(ps) : status;
        serve_report[rank].ended += status == DCOMM_OK;
        world_trace("clock %d: %s", clock, dcomm_status_name(status));
    }
    return status == DCOMM_OK ? serve_pull(ps, serve.clocks) : status;
}

/* ---- a life ---- */

static void serve_main(int rank)
{
    const dcomm_ps_param param = {
        .name = "rows", .rows = (size_t)life.n + 1, .cols = SERVE_COLS, .dtype = DCOMM_F32};
    const dcomm_ps_opts opts = {.servers = serve.servers,
                                .dedicated = serve.dedicated,
                                .staleness = serve.staleness,
                                .lr = serve_workers(),
                                .replicas = serve.replicas,
                                .quorum = serve.quorum,
                                .deadline_s = serve.deadline_s};
    dcomm_comm *comm = life_create(rank);
    dcomm_ps *ps = NULL;
    if (dcomm_ps_create(comm, &param, 1, &opts, &ps) != DCOMM_OK) {
        life_give_up("creates no parameter server");
    }
    char ready = 0, all[WORLD_MAX];
    life_allgather(&ready, 1, all, NULL); /* nobody dies before all are there */
    const uint64_t first = world.rank[rank].points;
    life_arm(rank, false);
    dcomm_status status = serve_works(rank) ? serve_work(ps, rank) : dcomm_ps_serve(ps);
    serve_report[rank].status = status;
    snprintf(serve_report[rank].error, sizeof serve_report[rank].error, "%s", dcomm_last_error());
    world_trace("ends with %s: %s", dcomm_status_name(status), serve_report[rank].error);
    if (dcomm_ps_destroy(&ps) != DCOMM_OK) {
        world_trouble("rank %d: dcomm_ps_destroy: %s", rank, dcomm_last_error());
    }
    life_report[rank].points = world.rank[rank].points - first;
    life_strike_now(rank);
    life_report[rank].leaves = true;
    const dcomm_status left = dcomm_comm_destroy(&comm); /* a death is an error of it */
    if (left != DCOMM_OK && (left != DCOMM_ERR_PEER || life.ndeaths == 0)) {
        life_give_up("destroys a communicator");
    }
    calls_seal(rank);
    life_report[rank].over = true;
    if (world.rank[rank].held != 0) {
        world_trouble("rank %d leaves %zu bytes", rank, world.rank[rank].held);
    }
}

/* ---- judging ---- */

/* Check the end of a worker or a server that lives on. */
static void serve_judge_one(int rank)
{
    const dcomm_status status = serve_report[rank].status;
    const char *error = serve_report[rank].error;
    bool named = false;
    for (int k = 0; k < serve.servers; k++) {
        char name[64];
        const int first = serve_rank(k), next = serve_rank((k + 1) % serve.servers);
        if (serve.replicas) {
            snprintf(name, sizeof name, "server %d and its replica (ranks %d and %d)", k, first,
                     next);
        } else {
            snprintf(name, sizeof name, "server %d (rank %d)", k, first);
        }
        named = named || (serve_loses(k) && strstr(error, name) != NULL);
    }
    if (status == DCOMM_OK && serve_works(rank) && serve_report[rank].ended != serve.clocks) {
        world_trouble("rank %d has ended %d clocks", rank, serve_report[rank].ended);
    }
    if (status != DCOMM_OK && !(status == DCOMM_ERR_PEER && named && serve_works(rank))) {
        world_trouble("rank %d ends with %s: %s", rank, dcomm_status_name(status), error);
    }
}

/* Check that all workers have seen the same at a clock. */
static void serve_judge_clock(int clock)
{
    for (int row = 0; row <= life.n; row++) {
        int first = -1;
        for (int r = 0; r < life.n; r++) {
            const uint64_t seen = serve_report[r].seen[clock][row];
            first = first < 0 && seen != 0 ? r : first;
            if (first >= 0 && seen != 0 && seen != serve_report[first].seen[clock][row]) {
                world_trouble("rank %d and rank %d have seen different rows %d at clock %d", first,
                              r, row, clock);
            }
        }
    }
}

static void serve_judge(void)
{
    for (int r = 0; r < life.n && world.trouble[0] == 0; r++) {
        if (!life_report[r].over && world.rank[r].state != WORLD_DEAD) {
            world_trouble("rank %d has not come to its end", r);
        } else if (!life_dies(r)) {
            serve_judge_one(r);
        }
    }
    /* A worker that dies may end a clock on one of two servers. */
    const bool differ = serve.replicas && serve_deaths(true) > 0 && serve_deaths(false) > 0;
    for (int c = 0; c <= serve.clocks && serve.staleness == 0 && !serve_partial() && !differ; c++) {
        serve_judge_clock(c);
    }
}

#endif
