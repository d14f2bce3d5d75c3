/* lowrank.c - the steps of powersgd (dcomm_cuda_powersgd_*) in the host stand-in: the CPU's steps,
 * as work on a stream. */
#define _GNU_SOURCE
#include "kernels.h"
#include "dcomm.h"
#include "../../kernels/math.h"
#include "../../kernels/cpu/powersgd.h"
#include "../../kernels/rng.h"
#include <float.h>
#include <math.h>
#include <stdlib.h>

/* The arguments of a launch. This library may dereference the pointers. */
typedef struct product {
    dcommi_matrix shape;
    dcomm_codec_key key;
    const float *x;
    float *p, *q, *to;
    int how;
    dcomm_cuda_report *report;
    dcomm_cuda_ledger *ledger;
    bool bad;
} product;

static cudaError_t run_start(void *arg)
{
    const product *j = arg;
    const size_t cols = j->shape.cols;
    dcommi_rng rng = dcommi_rng_make(j->key.seed, j->key.tensor, j->key.step, 0, j->key.first);
    for (size_t k = 0; !j->bad && k < j->shape.rank; k++) {
        float *column = j->q + k * cols;
        double length = dcommi_matrix_dot(column, column, cols);
        if (!(length > 0) || length > DBL_MAX) {
            for (size_t c = 0; c < cols; c++) {
                column[c] = (float)(int32_t)(dcommi_rng_element(&rng, k * cols + c) | 1) * 0x1p-31f;
            }
            length = dcommi_matrix_dot(column, column, cols);
        }
        for (size_t c = 0; c < cols; c++) {
            column[c] = (float)((double)column[c] * (0x1p-20 / sqrt(length)));
        }
    }
    return j->bad ? cudaErrorIllegalAddress : cudaSuccess;
}

static void *room_of(const product *j)
{
    return malloc(j->shape.rank * dcommi_matrix_column_bytes(j->shape.cols) + 1);
}

static cudaError_t run_p(void *arg)
{
    const product *j = arg;
    void *room = j->bad ? NULL : room_of(j);
    if (room == NULL) {
        return j->bad ? cudaErrorIllegalAddress : cudaErrorMemoryAllocation;
    }
    dcommi_matrix_times(&j->shape, j->x, j->q, j->p, room);
    free(room);
    for (size_t i = 0; j->report != NULL && i < j->shape.count; i++) {
        if (!isfinite(j->x[i])) {
            j->report->first =
                j->report->first > UINT64_MAX - i ? j->report->first : UINT64_MAX - i;
            j->report->nonfinite++;
        }
    }
    return cudaSuccess;
}

static cudaError_t run_orthonormal(void *arg)
{
    const product *j = arg;
    if (!j->bad) {
        dcommi_matrix_orthonormal(j->p, j->shape.rows, j->shape.rank);
    }
    return j->bad ? cudaErrorIllegalAddress : cudaSuccess;
}

static cudaError_t run_q(void *arg)
{
    const product *j = arg;
    void *room = j->bad ? NULL : room_of(j);
    if (room == NULL) {
        return j->bad ? cudaErrorIllegalAddress : cudaErrorMemoryAllocation;
    }
    dcommi_matrix_transposed_times(&j->shape, j->x, j->p, j->q, room);
    free(room);
    for (size_t i = 0; i < j->shape.rank * j->shape.cols; i++) {
        if (!isfinite(j->q[i])) {
            j->q[i] = dcommi_f32_bounded(j->q[i]);
            if (j->report != NULL) {
                j->report->clipped++;
            }
        }
    }
    return cudaSuccess;
}

static cudaError_t run_product(void *arg)
{
    const product *j = arg;
    if (!j->bad) {
        dcommi_matrix_product(&j->shape, j->p, j->q, j->to, j->how);
    }
    return j->bad ? cudaErrorIllegalAddress : cudaSuccess;
}

static cudaError_t run_product_ledger(void *arg)
{
    const product *j = arg;
    float *sent = j->bad ? NULL : calloc(j->shape.count, sizeof *sent);
    if (sent == NULL) {
        return j->bad ? cudaErrorIllegalAddress : cudaErrorMemoryAllocation;
    }
    dcommi_matrix_product(&j->shape, j->p, j->q, sent, 0);
    if (j->to != NULL) {
        dcommi_matrix_product(&j->shape, j->p, j->q, j->to, -1);
    }
    cuhost_compare(j->ledger, j->x, sent, j->to, j->shape.count);
    free(sent);
    return cudaSuccess;
}

static void *reach(product *j, const void *p, size_t bytes)
{
    void *at = p != NULL ? cuhost_reach(p, bytes) : NULL;
    j->bad = j->bad || (p != NULL && at == NULL);
    return at;
}

/* Launch a step. Arrays that it does not use are NULL. */
static dcomm_status launch(const char *call, const dcomm_codec_matrix *m, product *j,
                           const float *x, float *p, float *q, float *to, dcomm_cuda_report *report,
                           cuhost_run_fn run, void *stream)
{
    if (m == NULL) {
        return dcomm_set_error(DCOMM_ERR_INVALID, "dcomm_cuda_powersgd: shape is NULL");
    }
    j->shape = (dcommi_matrix){m->count, m->rows, m->cols, m->rank};
    j->x = reach(j, x, m->count * sizeof *x);
    j->p = reach(j, p, m->rank * m->rows * sizeof *p);
    j->q = reach(j, q, m->rank * m->cols * sizeof *q);
    j->to = reach(j, to, m->count * sizeof *to);
    j->report = reach(j, report, sizeof *report);
    return m->count == 0 ? DCOMM_OK : cuhost_launch(call, j, sizeof *j, run, stream);
}

dcomm_status dcomm_cuda_powersgd_start(const dcomm_codec_matrix *shape, const dcomm_codec_key *key,
                                       float *q, void *stream)
{
    product j = {.key = key != NULL ? *key : (dcomm_codec_key){0}, .bad = q == NULL};
    return launch("dcomm_cuda_powersgd_start", shape, &j, NULL, NULL, q, NULL, NULL, run_start,
                  stream);
}

dcomm_status dcomm_cuda_powersgd_p(const dcomm_codec_matrix *shape, const float *x, const float *q,
                                   float *p, dcomm_cuda_report *report, void *stream)
{
    product j = {.bad = x == NULL || q == NULL || p == NULL};
    return launch("dcomm_cuda_powersgd_p", shape, &j, x, p, (float *)q, NULL, report, run_p,
                  stream);
}

dcomm_status dcomm_cuda_powersgd_orthonormal(const dcomm_codec_matrix *shape, float *p,
                                             void *stream)
{
    product j = {.bad = p == NULL};
    return launch("dcomm_cuda_powersgd_orthonormal", shape, &j, NULL, p, NULL, NULL, NULL,
                  run_orthonormal, stream);
}

dcomm_status dcomm_cuda_powersgd_q(const dcomm_codec_matrix *shape, const float *x, const float *p,
                                   float *q, dcomm_cuda_report *report, void *stream)
{
    product j = {.bad = x == NULL || q == NULL || p == NULL};
    return launch("dcomm_cuda_powersgd_q", shape, &j, x, (float *)p, q, NULL, report, run_q,
                  stream);
}

dcomm_status dcomm_cuda_powersgd_product(const dcomm_codec_matrix *shape, const float *p,
                                         const float *q, float *x, int how, void *stream)
{
    product j = {.how = how, .bad = x == NULL || q == NULL || p == NULL};
    return launch("dcomm_cuda_powersgd_product", shape, &j, NULL, (float *)p, (float *)q, x, NULL,
                  run_product, stream);
}

dcomm_status dcomm_cuda_powersgd_product_ledger(const dcomm_codec_matrix *shape, const float *p,
                                                const float *q, const float *x, float *e,
                                                void *workspace, dcomm_cuda_ledger *ledger,
                                                void *stream)
{
    product j = {.bad = x == NULL || q == NULL || p == NULL || ledger == NULL || workspace == NULL};
    (void)reach(&j, workspace,
                dcomm_cuda_compare_workspace_bytes(shape != NULL ? shape->count : 0));
    j.ledger = reach(&j, ledger, sizeof *ledger);
    return launch("dcomm_cuda_powersgd_product_ledger", shape, &j, x, (float *)p, (float *)q, e,
                  NULL, run_product_ledger, stream);
}
