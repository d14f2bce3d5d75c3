/* perf_case.h - one operation at one size: its buffers, its call and its check. */
#ifndef PERF_CASE_H
#define PERF_CASE_H

#include "perf_args.h"
#include "perf_data.h"
#include "perf_mem.h"
#include "perf_rule.h"

#include <stdlib.h>

typedef struct perf_case {
    perf_op op;
    perf_values values;
    int rank, nranks, root;
    bool in_place;
    size_t count;                  /* the call's count argument; alltoallv: an even share */
    size_t send_count, recv_count; /* number of elements of this rank's buffers */
    size_t bytes;                  /* bytes in the report and in the bandwidths */
    perf_pool pool;
    char *input;      /* data that this rank sends; the call never writes it */
    char *work;       /* the result; in place: input and result */
    const void *send; /* arguments of the call */
    void *recv;
    size_t *vcounts; /* alltoallv: [4][nranks]: send counts, send displacements, receive counts,
                        receive displacements */
} perf_case;

static size_t perf_v_count(const perf_case *c, int from, int to)
{
    return c->count * (size_t)((7 * from + 3 * to) % 5) / 2;
}

/* Return the number of elements that `from` sends to ranks below `to`. */
static size_t perf_v_displacement(const perf_case *c, int from, int to)
{
    size_t sum = 0;
    for (int peer = 0; peer < to; peer++) {
        sum += perf_v_count(c, from, peer);
    }
    return sum;
}

static void perf_case_alltoallv(perf_case *c)
{
    size_t n = (size_t)c->nranks;
    size_t total = 0;
    c->send_count = 0;
    c->recv_count = 0;
    for (int p = 0; p < c->nranks; p++) {
        c->vcounts[p] = perf_v_count(c, c->rank, p);
        c->vcounts[n + (size_t)p] = c->send_count;
        c->send_count += c->vcounts[p];
        c->vcounts[2 * n + (size_t)p] = perf_v_count(c, p, c->rank);
        c->vcounts[3 * n + (size_t)p] = c->recv_count;
        c->recv_count += c->vcounts[2 * n + (size_t)p];
        total += perf_v_displacement(c, p, c->nranks);
    }
    c->bytes = total * dcomm_dtype_size(c->values.dtype) / n;
}

/* Set the counts for a buffer of about `bytes` bytes, by the rules of nccl-tests. */
static void perf_case_shape(perf_case *c, size_t bytes)
{
    size_t size = dcomm_dtype_size(c->values.dtype);
    size_t n = (size_t)c->nranks;
    bool is_root = c->rank == c->root;
    size_t whole = bytes / size;
    size_t share = whole / n;
    c->count = share;
    switch (c->op) {
    case PERF_REDUCE_SCATTER:
        c->send_count = share * n;
        c->recv_count = share;
        break;
    case PERF_ALLGATHER:
        c->send_count = share;
        c->recv_count = share * n;
        break;
    case PERF_GATHER:
        c->send_count = share;
        c->recv_count = is_root ? share * n : 0;
        break;
    case PERF_SCATTER:
        c->send_count = is_root ? share * n : 0;
        c->recv_count = share;
        break;
    case PERF_ALLTOALL:
        c->send_count = share * n;
        c->recv_count = share * n;
        break;
    case PERF_ALLTOALLV:
        perf_case_alltoallv(c);
        return;
    case PERF_BARRIER:
        c->count = 0;
        c->send_count = 0;
        c->recv_count = 0;
        c->bytes = 0;
        return;
    default:
        c->count = whole;
        c->send_count = c->op == PERF_BROADCAST && !is_root ? 0 : whole;
        c->recv_count = c->op == PERF_REDUCE && !is_root ? 0 : whole;
        c->bytes = whole * size;
        return;
    }
    c->bytes = share * n * size;
}

/* Set the buffer arguments of the call. In place, they point into one buffer at NCCL's offsets. */
static void perf_case_point(perf_case *c)
{
    size_t block = (size_t)c->rank * c->count * dcomm_dtype_size(c->values.dtype);
    bool is_root = c->rank == c->root;
    c->send = c->input;
    c->recv = c->work;
    if (!c->in_place) {
        return;
    }
    c->send = c->work;
    if (c->op == PERF_REDUCE_SCATTER || (c->op == PERF_SCATTER && is_root)) {
        c->recv = c->work + block;
    } else if (c->op == PERF_ALLGATHER || (c->op == PERF_GATHER && is_root)) {
        c->send = c->work + block;
    }
}

static void perf_case_free(perf_case *c)
{
    perf_mem_close(&c->pool);
    free(c->vcounts);
    c->input = NULL;
    c->work = NULL;
    c->vcounts = NULL;
}

/* Let the call work on the pool's current pair of buffers. */
static void perf_case_turn(perf_case *c)
{
    c->input = perf_pool_input(&c->pool, c->pool.now);
    c->work = perf_pool_work(&c->pool, c->pool.now);
    perf_case_point(c);
}

/* Allocate and fill the buffers. Return false if there is no memory. */
static bool perf_case_open(perf_case *c, size_t bytes, size_t rotate, perf_mem mem,
                           dcomm_context *context)
{
    size_t size = dcomm_dtype_size(c->values.dtype);
    c->vcounts = calloc(4 * (size_t)c->nranks, sizeof *c->vcounts);
    if (c->vcounts == NULL) {
        return false;
    }
    perf_case_shape(c, bytes);
    size_t input = c->send_count * size;
    size_t work = (c->send_count > c->recv_count ? c->send_count : c->recv_count) * size;
    if (!perf_pool_shape(&c->pool, input, work, rotate, mem) || !perf_mem_open(&c->pool, context)) {
        perf_case_free(c);
        return false;
    }
    for (int i = c->pool.pairs - 1; i >= 0; i--) {
        c->pool.now = i;
        perf_case_turn(c);
        perf_fill(&c->values, c->rank, c->input, c->send_count);
        memset(c->work, 0x5a, work + PERF_GUARD);
    }
    return true;
}

/* Restore the input, which a call in place has overwritten. */
static void perf_case_renew(perf_case *c)
{
    if (c->in_place && c->send_count > 0 && c->pool.device != NULL) {
        perf_cuda_move(&c->pool, c->work + ((const char *)c->send - c->work), c->input,
                       c->send_count * dcomm_dtype_size(c->values.dtype));
    } else if (c->in_place && c->send_count > 0) {
        char *at = c->work + ((const char *)c->send - c->work);
        memcpy(at, c->input, c->send_count * dcomm_dtype_size(c->values.dtype));
    }
}

/* Make the call with the buffers c->send and c->recv. */
static dcomm_status perf_case_call_on(perf_case *c, dcomm_comm *comm, const dcomm_coll_opts *opts)
{
    dcomm_dtype dtype = c->values.dtype;
    dcomm_op op = c->values.op;
    size_t n = (size_t)c->nranks;
    switch (c->op) {
    case PERF_ALLREDUCE:
        return dcomm_allreduce(comm, c->send, c->recv, c->count, dtype, op, opts);
    case PERF_REDUCE_SCATTER:
        return dcomm_reduce_scatter(comm, c->send, c->recv, c->count, dtype, op, opts);
    case PERF_ALLGATHER:
        return dcomm_allgather(comm, c->send, c->recv, c->count, dtype, opts);
    case PERF_BROADCAST:
        return dcomm_broadcast(comm, c->send, c->recv, c->count, dtype, c->root, opts);
    case PERF_REDUCE:
        return dcomm_reduce(comm, c->send, c->recv, c->count, dtype, op, c->root, opts);
    case PERF_GATHER:
        return dcomm_gather(comm, c->send, c->recv, c->count, dtype, c->root, opts);
    case PERF_SCATTER:
        return dcomm_scatter(comm, c->send, c->recv, c->count, dtype, c->root, opts);
    case PERF_ALLTOALL:
        return dcomm_alltoall(comm, c->send, c->recv, c->count, dtype, opts);
    case PERF_ALLTOALLV:
        return dcomm_alltoallv(comm, c->send, c->vcounts, c->vcounts + n, c->recv,
                               c->vcounts + 2 * n, c->vcounts + 3 * n, dtype, opts);
    case PERF_SENDRECV: {
        if (c->nranks == 1 && c->pool.device != NULL) {
            perf_cuda_move(&c->pool, c->work, c->input, c->count * dcomm_dtype_size(dtype));
            return DCOMM_OK;
        }
        if (c->nranks == 1) { /* no neighbour to send to */
            memcpy(c->recv, c->send, c->count * dcomm_dtype_size(dtype));
            return DCOMM_OK;
        }
        int next = (c->rank + 1) % c->nranks;
        int before = (c->rank + c->nranks - 1) % c->nranks;
        dcomm_status status = dcomm_group_start();
        dcomm_status sent = dcomm_send(comm, c->send, c->count, dtype, next, opts);
        dcomm_status received = dcomm_recv(comm, c->recv, c->count, dtype, before, opts);
        dcomm_status ended = dcomm_group_end();
        return status < 0 ? status : sent < 0 ? sent : received < 0 ? received : ended;
    }
    default:
        return dcomm_barrier(comm, opts);
    }
}

static dcomm_status perf_case_call(perf_case *c, dcomm_comm *comm, const dcomm_coll_opts *opts)
{
    if (c->pool.device == NULL) {
        return perf_case_call_on(c, comm, opts);
    }
    ptrdiff_t send = (const char *)c->send - c->pool.memory,
              recv = (char *)c->recv - c->pool.memory;
    c->send = c->pool.device + send;
    c->recv = c->pool.device + recv;
    dcomm_status status = perf_case_call_on(c, comm, opts);
    perf_case_point(c);
    return status;
}

/* Check the result, the guard behind it, and that the input has not changed. */
static void perf_case_check(const perf_case *c, perf_errors *errors)
{
    const perf_values *v = &c->values;
    size_t size = dcomm_dtype_size(v->dtype);
    size_t first = (size_t)c->rank * c->count;
    const char *result = c->recv;
    bool is_root = c->rank == c->root;
    switch (c->op) {
    case PERF_ALLREDUCE:
        perf_check_fold(v, result, 0, c->count, errors);
        break;
    case PERF_REDUCE_SCATTER:
        perf_check_fold(v, result, first, c->count, errors);
        break;
    case PERF_REDUCE:
        perf_check_fold(v, result, 0, is_root ? c->count : 0, errors);
        break;
    case PERF_BROADCAST:
        perf_check_copy(v, result, c->root, 0, c->count, errors);
        break;
    case PERF_SCATTER:
        perf_check_copy(v, result, c->root, first, c->count, errors);
        break;
    case PERF_SENDRECV:
        perf_check_copy(v, result, (c->rank + c->nranks - 1) % c->nranks, 0, c->count, errors);
        break;
    case PERF_ALLGATHER:
    case PERF_GATHER:
        for (int p = 0; p < c->nranks && c->recv_count > 0; p++) {
            perf_check_copy(v, result + (size_t)p * c->count * size, p, 0, c->count, errors);
        }
        break;
    case PERF_ALLTOALL:
        for (int p = 0; p < c->nranks; p++) {
            perf_check_copy(v, result + (size_t)p * c->count * size, p, first, c->count, errors);
        }
        break;
    case PERF_ALLTOALLV:
        for (int p = 0; p < c->nranks; p++) {
            size_t n = (size_t)c->nranks;
            perf_check_copy(v, result + c->vcounts[3 * n + (size_t)p] * size, p,
                            perf_v_displacement(c, p, c->rank), c->vcounts[2 * n + (size_t)p],
                            errors);
        }
        break;
    default:
        break;
    }
    size_t most = c->send_count > c->recv_count ? c->send_count : c->recv_count;
    for (int i = 0; i < PERF_GUARD; i++) {
        errors->wrong += (unsigned char)c->work[most * size + (size_t)i] != 0x5a;
    }
    if (!c->in_place) {
        perf_check_copy(v, c->input, c->rank, 0, c->send_count, errors);
    }
}

/* Return true if all ranks must hold the same bytes afterwards. */
static bool perf_case_is_uniform(const perf_case *c)
{
    return c->op == PERF_ALLREDUCE || c->op == PERF_ALLGATHER || c->op == PERF_BROADCAST;
}

static size_t perf_case_result_bytes(const perf_case *c)
{
    return c->recv_count * dcomm_dtype_size(c->values.dtype);
}

/* Return busbw / algbw. */
static double perf_bus_factor(perf_op op, int nranks)
{
    double n = nranks;
    switch (op) {
    case PERF_ALLREDUCE:
        return 2 * (n - 1) / n;
    case PERF_REDUCE_SCATTER:
    case PERF_ALLGATHER:
    case PERF_GATHER:
    case PERF_SCATTER:
    case PERF_ALLTOALL:
    case PERF_ALLTOALLV:
        return (n - 1) / n;
    default:
        return 1;
    }
}

#endif
