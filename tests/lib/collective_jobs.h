/* collective_jobs.h - any collective with any arguments: the ranks' inputs, the call, and each
 * expected element of the output. Buffers are from ranks.h, or made by a test. */
#ifndef COLLECTIVE_JOBS_H
#define COLLECTIVE_JOBS_H

#include "ranks.h"

#define JOB_RANKS 8

/* ---- inputs and expected outputs ---- */

typedef enum form { APART, ALIAS, IN_PLACE, FORMS } form;

typedef struct job {
    dcomm_comm *comm;
    int rank, n, root;
    dcomm_coll coll;
    const char *algo;
    dcomm_dtype dtype;
    dcomm_op op;
    size_t count, skew;
    form form;
    bool blocking;
    size_t counts[JOB_RANKS], displs[JOB_RANKS], sends[JOB_RANKS],
        sdispls[JOB_RANKS]; /* for the v-forms */
    bool packed;            /* NULL displacements */
    int lanes;
    dcomm_coll_opts opts; /* other options */
    /* NULL: the call uses the buffers themselves. Else `there` returns the place of a buffer's
     * copy, already filled, and `back` copies the result back after the call, whose status it is
     * given. */
    void *(*there)(const void *at);
    dcomm_status (*back)(const struct job *j, dcomm_status status);
} job;

static inline bool folds(dcomm_coll coll)
{
    return coll == DCOMM_COLL_ALLREDUCE || coll == DCOMM_COLL_REDUCE_SCATTER ||
           coll == DCOMM_COLL_REDUCE || coll == DCOMM_COLL_REDUCE_SCATTERV;
}

static inline bool rooted(dcomm_coll coll)
{
    return coll == DCOMM_COLL_BROADCAST || coll == DCOMM_COLL_REDUCE || coll == DCOMM_COLL_GATHER ||
           coll == DCOMM_COLL_SCATTER || coll == DCOMM_COLL_GATHERV || coll == DCOMM_COLL_SCATTERV;
}

static inline bool counted(dcomm_coll coll)
{
    return coll >= DCOMM_COLL_REDUCE_SCATTERV && coll <= DCOMM_COLL_ALLTOALLV;
}

static inline double given(const job *j, int rank, size_t i)
{
    int r = rank, x = (int)(i % 1000);
    switch (folds(j->coll) ? (int)j->op : -1) {
    case DCOMM_SUM:
        return (r * 3 + x) % 11;
    case DCOMM_PROD:
        return (r + x) % 3 == 0 ? 2 : 1;
    case DCOMM_MIN:
    case DCOMM_MAX:
        return (r * 5 + x * 3) % 17;
    case DCOMM_AVG:
        return j->n * ((r + x) % 5);
    case DCOMM_PREMUL_SUM:
        return (r + x) % 3;
    default:
        return (r * 7 + x) % 97;
    }
}

static inline double folded(const job *j, size_t i)
{
    double v = given(j, 0, i);
    for (int r = 1; r < j->n; r++) {
        double w = given(j, r, i);
        switch (j->op) {
        case DCOMM_SUM:
        case DCOMM_AVG:
            v += w;
            break;
        case DCOMM_PROD:
            v *= w;
            break;
        case DCOMM_MIN:
            v = w < v ? w : v;
            break;
        case DCOMM_MAX:
            v = w > v ? w : v;
            break;
        case DCOMM_PREMUL_SUM:
            v += (r + 1) * w;
            break;
        default:
            v = (double)((int64_t)v ^ (int64_t)w);
            break;
        }
    }
    return j->op == DCOMM_AVG ? v / j->n : v;
}

static inline size_t total(const size_t *counts, int n)
{
    size_t sum = 0;
    for (int r = 0; r < n; r++) {
        sum += counts[r];
    }
    return sum;
}

static inline size_t extent(const job *j)
{
    size_t end = 0;
    for (int r = 0; r < j->n; r++) {
        end = j->displs[r] + j->counts[r] > end ? j->displs[r] + j->counts[r] : end;
    }
    return end;
}

/* Count the elements of this rank's input and output. */
static inline void lengths(const job *j, size_t *in, size_t *out)
{
    size_t n = (size_t)j->n, me = (size_t)j->rank;
    bool root = j->rank == j->root;
    *in = *out = j->count;
    switch (j->coll) {
    case DCOMM_COLL_REDUCE_SCATTER:
        *in = n * j->count;
        break;
    case DCOMM_COLL_ALLGATHER:
        *out = n * j->count;
        break;
    case DCOMM_COLL_BROADCAST:
        *in = root ? j->count : 0;
        break;
    case DCOMM_COLL_REDUCE:
        *out = root ? j->count : 0;
        break;
    case DCOMM_COLL_GATHER:
        *out = root ? n * j->count : 0;
        break;
    case DCOMM_COLL_SCATTER:
        *in = root ? n * j->count : 0;
        break;
    case DCOMM_COLL_ALLTOALL:
        *in = *out = n * j->count;
        break;
    case DCOMM_COLL_REDUCE_SCATTERV:
        *in = total(j->counts, j->n);
        *out = j->counts[me];
        break;
    case DCOMM_COLL_ALLGATHERV:
        *in = j->counts[me];
        *out = extent(j);
        break;
    case DCOMM_COLL_GATHERV:
        *in = j->counts[me];
        *out = root ? extent(j) : 0;
        break;
    case DCOMM_COLL_SCATTERV:
        *in = root ? extent(j) : 0;
        *out = j->counts[me];
        break;
    case DCOMM_COLL_ALLTOALLV:
        *in = 0;
        for (int r = 0; r < j->n; r++) {
            size_t end = j->sdispls[r] + j->sends[r];
            *in = end > *in ? end : *in;
        }
        *out = extent(j);
        break;
    default:
        break;
    }
}

/* Return element i of the output, or -1 where nothing may be written. */
static inline double wanted(const job *j, size_t i)
{
    size_t me = (size_t)j->rank, before = 0;
    switch (j->coll) {
    case DCOMM_COLL_ALLREDUCE:
    case DCOMM_COLL_REDUCE:
        return folded(j, i);
    case DCOMM_COLL_REDUCE_SCATTER:
        return folded(j, me * j->count + i);
    case DCOMM_COLL_ALLGATHER:
    case DCOMM_COLL_GATHER:
        return given(j, (int)(i / j->count), i % j->count);
    case DCOMM_COLL_BROADCAST:
        return given(j, j->root, i);
    case DCOMM_COLL_SCATTER:
        return given(j, j->root, me * j->count + i);
    case DCOMM_COLL_ALLTOALL:
        return given(j, (int)(i / j->count), me * j->count + i % j->count);
    case DCOMM_COLL_REDUCE_SCATTERV:
        return folded(j, total(j->counts, j->rank) + i);
    case DCOMM_COLL_SCATTERV:
        return given(j, j->root, j->displs[me] + i);
    default:
        for (int r = 0; r < j->n; r++) {
            if (i >= j->displs[r] && i < j->displs[r] + j->counts[r]) {
                /* all-to-all-v: rank r's part for this rank begins at r * 10 + rank, see run */
                before = j->coll == DCOMM_COLL_ALLTOALLV ? (size_t)(r * 10 + j->rank) : 0;
                return given(j, r, before + i - j->displs[r]);
            }
        }
        return -1;
    }
}

static inline double input(const job *j, size_t i)
{
    if (j->coll == DCOMM_COLL_ALLTOALLV) {
        for (int r = 0; r < j->n; r++) {
            if (i >= j->sdispls[r] && i < j->sdispls[r] + j->sends[r]) {
                return given(j, j->rank, (size_t)(j->rank * 10 + r) + i - j->sdispls[r]);
            }
        }
        return 0;
    }
    return given(j, j->rank, i);
}

/* ---- calling ---- */

#define FORMS_OF(name, ...)                                                \
    return request_p != NULL ? dcomm_i##name(__VA_ARGS__, opts, request_p) \
                             : dcomm_##name(__VA_ARGS__, opts)

static inline dcomm_status call(const job *j, const void *in, void *out,
                                const dcomm_coll_opts *opts, dcomm_request **request_p)
{
    const size_t *displs = j->packed ? NULL : j->displs, *sdispls = j->packed ? NULL : j->sdispls;
    switch (j->coll) {
    case DCOMM_COLL_ALLREDUCE:
        FORMS_OF(allreduce, j->comm, in, out, j->count, j->dtype, j->op);
    case DCOMM_COLL_REDUCE_SCATTER:
        FORMS_OF(reduce_scatter, j->comm, in, out, j->count, j->dtype, j->op);
    case DCOMM_COLL_ALLGATHER:
        FORMS_OF(allgather, j->comm, in, out, j->count, j->dtype);
    case DCOMM_COLL_BROADCAST:
        FORMS_OF(broadcast, j->comm, in, out, j->count, j->dtype, j->root);
    case DCOMM_COLL_REDUCE:
        FORMS_OF(reduce, j->comm, in, out, j->count, j->dtype, j->op, j->root);
    case DCOMM_COLL_GATHER:
        FORMS_OF(gather, j->comm, in, out, j->count, j->dtype, j->root);
    case DCOMM_COLL_SCATTER:
        FORMS_OF(scatter, j->comm, in, out, j->count, j->dtype, j->root);
    case DCOMM_COLL_ALLTOALL:
        FORMS_OF(alltoall, j->comm, in, out, j->count, j->dtype);
    case DCOMM_COLL_REDUCE_SCATTERV:
        FORMS_OF(reduce_scatterv, j->comm, in, out, j->counts, j->dtype, j->op);
    case DCOMM_COLL_ALLGATHERV:
        FORMS_OF(allgatherv, j->comm, in, out, j->counts, displs, j->dtype);
    case DCOMM_COLL_GATHERV:
        FORMS_OF(gatherv, j->comm, in, out, j->counts, displs, j->dtype, j->root);
    case DCOMM_COLL_SCATTERV:
        FORMS_OF(scatterv, j->comm, in, out, j->counts, displs, j->dtype, j->root);
    case DCOMM_COLL_ALLTOALLV:
        FORMS_OF(alltoallv, j->comm, in, j->sends, sdispls, out, j->counts, displs, j->dtype);
    default:
        return request_p != NULL ? dcomm_ibarrier(j->comm, opts, request_p)
                                 : dcomm_barrier(j->comm, opts);
    }
}

static inline void describe(const job *j, char *text, size_t len)
{
    snprintf(text, len, "%s by %s, %d ranks, count %zu, %s, %s, root %d, form %d, %s, skew %zu",
             dcomm_coll_name(j->coll), j->algo != NULL ? j->algo : "auto", j->n, j->count,
             dcomm_dtype_name(j->dtype), dcomm_op_name(j->op), j->root, (int)j->form,
             j->blocking ? "blocking" : "non-blocking", j->skew);
}

/* Return where the input begins in the output when both are one buffer, in elements of the
 * larger. */
static inline size_t own_place(const job *j)
{
    size_t me = (size_t)j->rank;
    switch (j->coll) {
    case DCOMM_COLL_REDUCE_SCATTER:
    case DCOMM_COLL_ALLGATHER:
    case DCOMM_COLL_GATHER:
    case DCOMM_COLL_SCATTER:
        return me * j->count;
    case DCOMM_COLL_REDUCE_SCATTERV:
        return total(j->counts, j->rank);
    case DCOMM_COLL_ALLGATHERV:
    case DCOMM_COLL_GATHERV:
    case DCOMM_COLL_SCATTERV:
        return j->displs[me];
    default:
        return 0;
    }
}

static inline void run(const job *j)
{
    char what[256];
    size_t in_n, out_n, element = dcomm_dtype_size(j->dtype);
    lengths(j, &in_n, &out_n);
    describe(j, what, sizeof what);
    bool in_is_larger = j->coll == DCOMM_COLL_REDUCE_SCATTER || j->coll == DCOMM_COLL_SCATTER ||
                        j->coll == DCOMM_COLL_REDUCE_SCATTERV || j->coll == DCOMM_COLL_SCATTERV;
    /* Collectives with a root are in place on the root alone. */
    bool one_buffer = j->form != APART && (!rooted(j->coll) || j->rank == j->root) &&
                      j->coll != DCOMM_COLL_ALLTOALLV && j->coll != DCOMM_COLL_BARRIER;
    size_t larger = in_n > out_n ? in_n : out_n;
    ranks_buffer in = ranks_buffer_make((one_buffer ? larger : in_n) * element, j->skew);
    ranks_buffer out = ranks_buffer_make(one_buffer ? 0 : out_n * element, j->skew / 2);
    const void *send = in_n > 0 || one_buffer ? in.at : NULL;
    void *recv = out_n > 0 ? out.at : NULL;
    unsigned char *result = out.at, *source = in.at;
    if (one_buffer) {
        size_t own = own_place(j) * element;
        source = in_is_larger ? in.at : in.at + own;
        result = in_is_larger ? in.at + own : in.at;
        send = j->form == IN_PLACE ? DCOMM_IN_PLACE : source;
        recv = j->form == IN_PLACE ? in.at : result;
    }
    for (size_t i = 0; i < in_n; i++) {
        ranks_put(source, i, j->dtype, input(j, i));
    }

    dcomm_coll_opts opts = j->opts;
    opts.algo = j->algo;
    opts.lanes = j->lanes;
    if (j->there != NULL) {
        send = send != NULL && send != DCOMM_IN_PLACE ? j->there(send) : send;
        recv = recv != NULL ? j->there(recv) : NULL;
    }
    if (j->op == DCOMM_PREMUL_SUM) {
        opts.premul = j->rank + 1;
    }
    dcomm_status status;
    if (j->blocking) {
        status = call(j, send, recv, &opts, NULL);
    } else {
        dcomm_request *request = NULL;
        dcomm_request_info info = {.algo = "none"};
        status = call(j, send, recv, &opts, &request);
        if (status == DCOMM_OK) {
            RANKS_OK(dcomm_request_get_info(request, &info));
            PROCS_CHECK(info.coll == j->coll, "%s", what);
            PROCS_CHECK(j->algo == NULL || strcmp(info.algo, j->algo) == 0, "%s ran %s", what,
                        info.algo);
            while ((status = dcomm_test(&request)) == DCOMM_IN_PROGRESS) {
            }
            PROCS_TRUE(request == NULL);
        }
    }
    if (j->back != NULL) {
        status = j->back(j, status);
    }
    PROCS_CHECK(status == DCOMM_OK, "%s: %s: %s", what, dcomm_status_name(status),
                dcomm_last_error());
    for (size_t i = 0; i < out_n && j->coll != DCOMM_COLL_BARRIER; i++) {
        double want = wanted(j, i);
        if (want < 0) {
            PROCS_CHECK(one_buffer || ranks_blank(result + i * element, element),
                        "%s: element %zu was written", what, i);
            continue;
        }
        double got = ranks_get(result, i, j->dtype);
        PROCS_CHECK(got == want, "%s: rank %d element %zu is %g, not %g", what, j->rank, i, got,
                    want);
    }
    for (size_t i = 0; i < in_n && !one_buffer; i++) {
        PROCS_CHECK(ranks_get(source, i, j->dtype) == input(j, i), "%s: input was changed", what);
    }
    ranks_buffer_free(&in, what);
    ranks_buffer_free(&out, what);
}

/* Set counts by rank around j->count, some of them 0; places are apart, in reverse order of
 * ranks. */
static inline void spread(job *j, bool packed)
{
    size_t at = 0, sat = 0;
    j->packed = packed;
    for (int r = 0; r < j->n; r++) {
        if (j->coll == DCOMM_COLL_ALLTOALLV) { /* rank s sends part(s, r) to rank r */
            j->counts[r] = (size_t)((r * 3 + j->rank) % 4) * j->count;
            j->sends[r] = (size_t)((j->rank * 3 + r) % 4) * j->count;
        } else {
            j->counts[r] = r % 3 == 1 ? 0 : j->count * (size_t)(r % 4 + 1) / 2;
            j->sends[r] = 0;
        }
    }
    bool reduces = j->coll == DCOMM_COLL_REDUCE_SCATTERV;
    for (int k = 0; k < j->n; k++) {
        int r = packed || reduces ? k : j->n - 1 - k;
        at += packed || reduces ? 0 : 3;
        sat += packed ? 0 : 5;
        j->displs[r] = at;
        j->sdispls[r] = sat;
        at += j->counts[r];
        sat += j->sends[r];
    }
}

#endif
