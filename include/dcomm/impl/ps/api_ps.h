/* api_ps.h - a worker's calls on a parameter server, and statistics. */
#ifndef DCOMMI_API_PS_H
#define DCOMMI_API_PS_H

#include "../base/scan.h"
#include "api_life.h"

/* Count a call. */
static void dcommi_ps_count(dcomm_ps *ps, bool pulls, const dcommi_ps_piece *piece)
{
    ps->stats.pushes += !pulls;
    ps->stats.pulls += pulls;
    for (; piece != NULL; piece = piece->next) {
        ps->stats.bytes_pushed += piece->ps->to[piece->server].rank != ps->rank ? piece->len : 0;
    }
}

/* Start a push or a pull of some rows. */
static dcomm_status dcommi_ps_start(dcomm_ps *ps, const char *what, bool pulls, dcommi_ps_rows *s,
                                    void *buf, dcomm_request **request_p)
{
    const double now = dcommi_now();
    dcommi_ps_call *call = dcommi_alloc(sizeof *call);
    if (call == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    *call = (dcommi_ps_call){
        .pulls = pulls, .began = now, .until = now + ps->opts.timeout_s, .place = s->place};
    dcommi_ps_piece *pieces = dcommi_ps_pieces(ps, call, s, buf);
    const bool coded = !pulls && ps->params[s->i].codec != NULL;
    dcomm_status status = pieces == NULL ? DCOMM_ERR_NO_MEMORY
                          : coded        ? dcommi_ps_encode_room(ps, pieces)
                                         : DCOMM_OK;
    dcommi_comm_lock(ps->comm);
    dcommi_run *run = status == DCOMM_OK ? dcommi_run_new(ps->comm) : NULL;
    dcommi_comm_unlock(ps->comm);
    if (run == NULL) {
        dcommi_ps_pieces_free(pieces);
        dcommi_free(call);
        return dcommi_fail(DCOMM_ERR_NO_MEMORY, "%s: no memory for %zu rows", what, s->n);
    }
    s->place = NULL; /* the call frees it */
    call->run = run;
    run->stream = DCOMMI_STREAM_P2P;
    run->p2p_peer = -1;
    run->signature.coll = pulls ? DCOMM_COLL_RECV : DCOMM_COLL_SEND;
    if (coded) {
        dcommi_ps_encode(ps, pieces);
    }
    dcommi_ps_count(ps, pulls, pieces);
    dcommi_ps_launch(ps, pieces);
    if (request_p != NULL) {
        *request_p = (dcomm_request *)run;
        return DCOMM_OK;
    }
    return dcommi_run_wait(run);
}

/* ---- push and pull ---- */

static dcomm_status dcommi_ps_check_worker(const char *what, const dcomm_ps *ps)
{
    DCOMMI_TRY(dcommi_ps_check_call(what, ps));
    return ps->works
               ? DCOMM_OK
               : dcommi_fail(DCOMM_ERR_INVALID,
                             "%s: rank %d is a server, and with opts.dedicated servers do not "
                             "work",
                             what, ps->rank);
}

/* Check the arguments of a push or a pull. */
static dcomm_status dcommi_ps_check_rows(const char *what, const dcomm_ps *ps, size_t i,
                                         uint64_t first, size_t nrows, const void *buf,
                                         dcomm_request **request_p)
{
    if (request_p != NULL) {
        *request_p = NULL;
    }
    DCOMMI_TRY(dcommi_ps_check_worker(what, ps));
    if (i >= ps->nparams) {
        return dcommi_fail(DCOMM_ERR_INVALID, "%s: i is %zu; there are %zu parameters", what, i,
                           ps->nparams);
    }
    const uint64_t rows = ps->params[i].rows;
    if (first > rows || nrows > rows - first) {
        return dcommi_fail(DCOMM_ERR_INVALID,
                           "%s: %zu rows from row %" PRIu64 " on; \"%.80s\" has %" PRIu64 " rows",
                           what, nrows, first, ps->params[i].name, rows);
    }
    if (buf == NULL && nrows > 0) {
        return dcommi_fail(DCOMM_ERR_INVALID, "%s: the memory for %zu rows is NULL", what, nrows);
    }
    const int device = dcommi_device_locate(buf);
    return device < 0 ? DCOMM_OK
                      : dcommi_fail(DCOMM_ERR_UNSUPPORTED,
                                    "%s: rank %d has its rows on device %d, and a parameter server "
                                    "takes host memory alone",
                                    what, ps->rank, device);
}

/* Refuse a gradient that has a NaN or an infinity: it would spread to all workers. */
static dcomm_status dcommi_ps_check_grad(const char *what, const dcomm_ps *ps, size_t i,
                                         const void *grad, size_t nrows)
{
    const dcomm_dtype dtype = ps->params[i].dtype;
    const size_t cols = (size_t)ps->params[i].cols, n = nrows * cols;
    const size_t at = dcommi_scan(grad, n, dtype);
    return at == n ? DCOMM_OK
                   : dcommi_fail(
                         DCOMM_ERR_INVALID,
                         "%s: rank %d: element %zu of row %zu of the gradient of \"%.80s\" is %g",
                         what, ps->rank, at % cols, at / cols, ps->params[i].name,
                         dcommi_load_real(grad, at, dtype));
}

/* Push or pull a range of rows. */
static dcomm_status dcommi_ps_range(dcomm_ps *ps, const char *what, bool pulls, size_t i,
                                    size_t first, size_t nrows, void *buf,
                                    dcomm_request **request_p)
{
    dcommi_ps_rows s = {.i = i, .first = first, .n = nrows};
    DCOMMI_TRY(dcommi_ps_check_rows(what, ps, i, first, nrows, buf, request_p));
    DCOMMI_TRY(pulls ? DCOMM_OK : dcommi_ps_check_grad(what, ps, i, buf, nrows));
    return nrows == 0 ? DCOMM_OK : dcommi_ps_start(ps, what, pulls, &s, buf, request_p);
}

/* Push or pull the rows of a list. */
static dcomm_status dcommi_ps_listed(dcomm_ps *ps, const char *what, bool pulls, size_t i,
                                     const uint64_t *rows, size_t nrows, void *buf,
                                     dcomm_request **request_p)
{
    dcommi_ps_rows s = {.i = i, .n = nrows};
    DCOMMI_TRY(dcommi_ps_check_rows(what, ps, i, 0, nrows, buf, request_p));
    if (nrows == 0) {
        return DCOMM_OK;
    }
    if (rows == NULL) {
        return dcommi_fail(DCOMM_ERR_INVALID, "%s: rows is NULL, for %zu rows", what, nrows);
    }
    DCOMMI_TRY(pulls ? DCOMM_OK : dcommi_ps_check_grad(what, ps, i, buf, nrows));
    dcomm_status status = dcommi_ps_rows_order(ps, what, rows, &s);
    DCOMMI_THEN(status, dcommi_ps_start(ps, what, pulls, &s, buf, request_p));
    dcommi_free(s.list);
    dcommi_free(s.place);
    return status;
}

DCOMM_API dcomm_status dcomm_ps_push(dcomm_ps *ps, size_t i, size_t first, size_t nrows,
                                     const void *grad, dcomm_request **request_p)
{
    return dcommi_ps_range(ps, "dcomm_ps_push", false, i, first, nrows, (void *)(uintptr_t)grad,
                           request_p);
}

DCOMM_API dcomm_status dcomm_ps_push_rows(dcomm_ps *ps, size_t i, const uint64_t *rows,
                                          size_t nrows, const void *grad, dcomm_request **request_p)
{
    return dcommi_ps_listed(ps, "dcomm_ps_push_rows", false, i, rows, nrows,
                            (void *)(uintptr_t)grad, request_p);
}

DCOMM_API dcomm_status dcomm_ps_pull(dcomm_ps *ps, size_t i, size_t first, size_t nrows, void *out,
                                     dcomm_request **request_p)
{
    return dcommi_ps_range(ps, "dcomm_ps_pull", true, i, first, nrows, out, request_p);
}

DCOMM_API dcomm_status dcomm_ps_pull_rows(dcomm_ps *ps, size_t i, const uint64_t *rows,
                                          size_t nrows, void *out, dcomm_request **request_p)
{
    return dcommi_ps_listed(ps, "dcomm_ps_pull_rows", true, i, rows, nrows, out, request_p);
}

DCOMM_API dcomm_status dcomm_ps_clock(dcomm_ps *ps)
{
    DCOMMI_TRY(dcommi_ps_check_worker("dcomm_ps_clock", ps));
    dcomm_context *context = ps->comm->context;
    dcommi_token_take(context); /* values that arrive change it, too */
    const uint64_t clock = ps->at_clock + 1;
    dcommi_token_release(context);
    /* Replicas first: should this worker die, what others have seen of its clock is there, too. */
    DCOMMI_TRY(ps->twin != NULL ? dcommi_ps_tell_all(ps->twin, DCOMMI_PS_CLOCK, clock) : DCOMM_OK);
    DCOMMI_TRY(dcommi_ps_tell_all(ps, DCOMMI_PS_CLOCK, clock));
    dcommi_token_take(context);
    ps->at_clock = clock > ps->at_clock ? clock : ps->at_clock;
    ps->steps++;
    if (ps->twin != NULL) {
        ps->twin->at_clock = clock;
    }
    dcommi_token_release(context);
    return DCOMM_OK;
}

/* ---- the learning rate ---- */

DCOMM_API dcomm_status dcomm_ps_set_lr(dcomm_ps *ps, double lr)
{
    DCOMMI_NEED(ps);
    DCOMMI_TRY(dcommi_check_fork());
    if (ps->opts.update == DCOMM_PS_ELASTIC || !dcommi_ps_positive(lr)) {
        return dcommi_fail(DCOMM_ERR_INVALID, "dcomm_ps_set_lr: %g is no rate of update %d", lr,
                           (int)ps->opts.update);
    }
    dcommi_token_take(ps->comm->context); /* whoever has it may be updating */
    ps->opts.lr = lr;
    if (ps->twin != NULL) {
        ps->twin->opts.lr = lr;
    }
    dcommi_token_release(ps->comm->context);
    return DCOMM_OK;
}

/* ---- statistics ---- */

/* Return the delay that a share of all pushes does not exceed. */
static double dcommi_ps_tau_at(const dcomm_ps *ps, uint64_t pushes, double share)
{
    const double wanted = share * (double)pushes;
    uint64_t before = 0;
    size_t at = 0;
    while (at < DCOMMI_PS_TAUS - 1 && (double)(before += ps->taus[at]) < wanted) {
        at++;
    }
    return (double)at / 16;
}

DCOMM_API dcomm_status dcomm_ps_get_stats(dcomm_ps *ps, dcomm_ps_stats *stats)
{
    DCOMMI_NEED(ps);
    DCOMMI_NEED(stats);
    DCOMMI_TRY(dcommi_check_fork());
    uint64_t pushes = 0;
    dcommi_token_take(ps->comm->context);
    *stats = ps->stats;
    stats->clock = ps->steps;
    if (ps->twin != NULL) { /* pulls that it has answered */
        stats->bytes_pulled += ps->twin->stats.bytes_pulled;
        stats->wait_s += ps->twin->stats.wait_s;
    }
    stats->last_worker = -1;
    for (int at = 0; at < DCOMMI_PS_TAUS; at++) {
        stats->tau[at / 16] += ps->taus[at];
        pushes += ps->taus[at];
    }
    if (pushes > 0) {
        stats->tau_p50 = dcommi_ps_tau_at(ps, pushes, 0.50);
        stats->tau_p95 = dcommi_ps_tau_at(ps, pushes, 0.95);
        stats->tau_p99 = dcommi_ps_tau_at(ps, pushes, 0.99);
    }
    for (int r = 0; ps->server >= 0 && r < ps->size; r++) {
        stats->workers += ps->clock.of[r].works;
        if (ps->last_counts[r] > stats->last_count) {
            stats->last_count = ps->last_counts[r];
            stats->last_worker = r;
        }
    }
    dcommi_token_release(ps->comm->context);
    return DCOMM_OK;
}

#endif
