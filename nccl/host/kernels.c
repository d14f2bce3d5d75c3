/* kernels.c - dcomm's kernels (dcomm_cuda_*) in the host stand-in. Each runs the CPU's code of the
 * same name, with the same bytes by contract, as work on a stream. Those of codecs are in
 * codecs.c. */
#define _GNU_SOURCE
#include "kernels.h"
#include "dcomm.h"
#include "host.h"
#include "../../kernels/math.h"
#include "../../kernels/wire_sparse.h"
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

dcomm_status cuhost_fail(dcomm_status status, const char *call, const char *format, ...)
{
    char text[512];
    int n = snprintf(text, sizeof text, "%s: ", call);
    va_list args;
    va_start(args, format);
    vsnprintf(text + n, sizeof text - (size_t)n, format, args);
    va_end(args);
    return dcomm_set_error(status, text);
}

void *cuhost_reach_of(cuhost_job *j, const void *p, size_t bytes)
{
    void *at = p != NULL && bytes > 0 ? cuhost_reach(p, bytes) : NULL;
    j->bad = j->bad || (p != NULL && bytes > 0 && at == NULL);
    return at;
}

dcomm_status cuhost_operands(cuhost_job *j, const char *call, const void *const *at,
                             const size_t *bytes, size_t each, size_t n)
{
    if (at == NULL || n == 0) {
        return cuhost_fail(DCOMM_ERR_INVALID, call, "there are no operands");
    }
    if (n > DCOMM_CUDA_OPERANDS) {
        return cuhost_fail(DCOMM_ERR_UNSUPPORTED, call, "%zu operands are more than %d", n,
                           DCOMM_CUDA_OPERANDS);
    }
    j->n = n;
    for (size_t i = 0; i < n; i++) {
        j->bytes[i] = bytes != NULL ? bytes[i] : each;
        if (at[i] == NULL && j->bytes[i] > 0) {
            return cuhost_fail(DCOMM_ERR_INVALID, call, "operand number %zu is NULL", i);
        }
        j->at[i] = cuhost_reach_of(j, at[i], j->bytes[i]);
    }
    return DCOMM_OK;
}

static _Atomic bool loaded[CUHOST_DEVICES_MAX];

dcomm_status dcomm_cuda_load(void)
{
    const int device = cuhost_current();
    if (!atomic_exchange(&loaded[device], true) && cuhost_rules().load_waits) {
        (void)cuhost_settle(device);
    }
    return DCOMM_OK;
}

/* Launch a kernel on a stream of the current device. If it is not loaded, wait for all work on the
 * device's streams, as CUDA may do. */
dcomm_status cuhost_launch(const char *call, const void *work, size_t bytes, cuhost_run_fn run,
                           void *stream)
{
    int device = -1;
    cudaError_t error = cudaStreamGetDevice(stream, &device);
    if (error == cudaSuccess && device != cuhost_current()) {
        error = cudaErrorInvalidResourceHandle;
    }
    if (error == cudaSuccess && !atomic_load(&loaded[device])) {
        (void)cuhost_settle(device);
    }
    if (error == cudaSuccess) {
        error = cuhost_enqueue(stream, CUHOST_KERNEL, run, NULL, work, bytes);
    }
    if (error == cudaSuccess && stream == NULL) { /* no stream: done when the call returns */
        error = cudaStreamSynchronize(NULL);
    }
    return error == cudaSuccess ? DCOMM_OK
                                : cuhost_fail(DCOMM_ERR_SYSTEM, call, "the launch failed: %s",
                                              cudaGetErrorString(error));
}

dcomm_status cuhost_run(const char *call, const cuhost_job *j, cuhost_run_fn run, void *stream)
{
    return cuhost_launch(call, j, sizeof *j, run, stream);
}

static cudaError_t run_reduce(void *arg)
{
    const cuhost_job *j = arg;
    if (j->bad) {
        return cudaErrorIllegalAddress;
    }
    return cuhost_fold(j->wire, j->at, j->n, j->count, j->dtype, j->op, j->divisor)
               ? cudaSuccess
               : cudaErrorLaunchFailure;
}

/* Set *bytes to the length of an array. Refuse one that no memory holds, as the kernels do. */
static dcomm_status array_bytes(const char *call, size_t count, size_t element, size_t *bytes)
{
    return __builtin_mul_overflow(count, element, bytes)
               ? cuhost_fail(DCOMM_ERR_INVALID, call, "%zu elements of %zu bytes", count, element)
               : DCOMM_OK;
}

dcomm_status dcomm_cuda_reduce(void *dst, const void *const *src, size_t nsrc, size_t count,
                               dcomm_dtype dtype, dcomm_op op, int64_t divisor, void *stream)
{
    static const char call[] = "dcomm_cuda_reduce";
    size_t bytes = 0;
    cuhost_job j = {.count = count, .dtype = (int)dtype, .op = (int)op, .divisor = divisor};
    if (dcomm_dtype_size(dtype) == 0 || (unsigned)op >= DCOMM_OP_COUNT) {
        return cuhost_fail(DCOMM_ERR_INVALID, call, "dtype %d or operator %d is unknown",
                           (int)dtype, (int)op);
    }
    if (count == 0) {
        return DCOMM_OK;
    }
    if (dst == NULL) {
        return cuhost_fail(DCOMM_ERR_INVALID, call, "dst is NULL");
    }
    dcomm_status status = array_bytes(call, count, dcomm_dtype_size(dtype), &bytes);
    if (status == DCOMM_OK) {
        status = cuhost_operands(&j, call, src, NULL, bytes, nsrc);
    }
    if (status != DCOMM_OK) {
        return status;
    }
    j.wire = cuhost_reach_of(&j, dst, bytes);
    return cuhost_run(call, &j, run_reduce, stream);
}

static cudaError_t run_scale(void *arg)
{
    const cuhost_job *j = arg;
    if (j->bad) {
        return cudaErrorIllegalAddress;
    }
    cuhost_scale(j->wire, j->x, j->count, j->dtype, j->factor);
    return cudaSuccess;
}

dcomm_status dcomm_cuda_scale(void *dst, const void *src, size_t count, dcomm_dtype dtype,
                              double factor, void *stream)
{
    static const char call[] = "dcomm_cuda_scale";
    size_t bytes = 0;
    cuhost_job j = {.count = count, .dtype = (int)dtype, .factor = factor};
    if (dcomm_dtype_size(dtype) == 0 || (count > 0 && (dst == NULL || src == NULL))) {
        return cuhost_fail(DCOMM_ERR_INVALID, call, "dtype %d is unknown, or dst or src is NULL",
                           (int)dtype);
    }
    dcomm_status status = array_bytes(call, count, dcomm_dtype_size(dtype), &bytes);
    if (count == 0 || status != DCOMM_OK) {
        return status;
    }
    j.wire = cuhost_reach_of(&j, dst, bytes);
    j.x = cuhost_reach_of(&j, src, bytes);
    return cuhost_run(call, &j, run_scale, stream);
}

static cudaError_t run_to_f32(void *arg)
{
    const cuhost_job *j = arg;
    if (j->bad) {
        return cudaErrorIllegalAddress;
    }
    cuhost_to_f32(j->wire, j->x, j->count, j->dtype, j->factor);
    return cudaSuccess;
}

static cudaError_t run_from_f32(void *arg)
{
    const cuhost_job *j = arg;
    if (j->bad) {
        return cudaErrorIllegalAddress;
    }
    cuhost_from_f32(j->wire, j->x, j->count, j->dtype);
    return cudaSuccess;
}

/* Launch a conversion. dst has `to` bytes an element, src `from` bytes. */
static dcomm_status convert(const char *call, void *dst, size_t to, const void *src, size_t from,
                            cuhost_job j, cuhost_run_fn run, void *stream)
{
    if (j.dtype > DCOMM_BF16 || (j.count > 0 && (dst == NULL || src == NULL))) {
        return cuhost_fail(DCOMM_ERR_INVALID, call,
                           "dtype %d is none of floats, or dst or src is NULL", j.dtype);
    }
    if ((uintptr_t)dst % to != 0 || (uintptr_t)src % from != 0) {
        return cuhost_fail(DCOMM_ERR_INVALID, call, "dst or src is not aligned to its elements");
    }
    size_t longer = 0;
    dcomm_status status = array_bytes(call, j.count, to > from ? to : from, &longer);
    if (j.count == 0 || status != DCOMM_OK) {
        return status;
    }
    j.wire = cuhost_reach_of(&j, dst, j.count * to);
    j.x = cuhost_reach_of(&j, src, j.count * from);
    return cuhost_run(call, &j, run, stream);
}

dcomm_status dcomm_cuda_to_f32(float *dst, const void *src, size_t count, dcomm_dtype dtype,
                               double factor, void *stream)
{
    const cuhost_job j = {.count = count, .dtype = (int)dtype, .factor = factor};
    return convert("dcomm_cuda_to_f32", dst, sizeof *dst, src, dcomm_dtype_size(dtype), j,
                   run_to_f32, stream);
}

dcomm_status dcomm_cuda_from_f32(void *dst, const float *src, size_t count, dcomm_dtype dtype,
                                 void *stream)
{
    const cuhost_job j = {.count = count, .dtype = (int)dtype};
    return convert("dcomm_cuda_from_f32", dst, dcomm_dtype_size(dtype), src, sizeof *src, j,
                   run_from_f32, stream);
}

static cudaError_t run_add(void *arg)
{
    const cuhost_job *j = arg;
    if (j->bad) {
        return cudaErrorIllegalAddress;
    }
    for (size_t i = 0; i < j->count; i++) {
        j->out[i] = dcommi_f32_bounded((float)((double)j->out[i] + j->factor * (double)j->x[i]));
    }
    return cudaSuccess;
}

dcomm_status dcomm_cuda_add_scaled(float *x, float factor, const float *y, size_t count,
                                   void *stream)
{
    static const char call[] = "dcomm_cuda_add_scaled";
    cuhost_job j = {.count = count, .factor = (double)factor};
    if (count > 0 && (x == NULL || y == NULL)) {
        return cuhost_fail(DCOMM_ERR_INVALID, call, "%s is NULL", x == NULL ? "x" : "y");
    }
    size_t bytes = 0;
    dcomm_status status = array_bytes(call, count, sizeof *x, &bytes);
    if (count == 0 || status != DCOMM_OK) {
        return status;
    }
    j.out = cuhost_reach_of(&j, x, bytes);
    j.x = cuhost_reach_of(&j, y, bytes);
    return cuhost_run(call, &j, run_add, stream);
}

static cudaError_t run_scatter(void *arg)
{
    const cuhost_job *j = arg;
    const uint32_t *index = j->wire;
    if (j->bad) {
        return cudaErrorIllegalAddress;
    }
    for (size_t i = 0; i < j->n; i++) {
        if (index[i] < j->count) {
            float *to = &j->out[index[i]];
            *to = j->add ? dcommi_f32_bounded(*to + j->x[i]) : j->x[i];
        }
    }
    return cudaSuccess;
}

dcomm_status dcomm_cuda_scatter(float *x, size_t count, const uint32_t *index, const float *value,
                                size_t n, bool add, void *stream)
{
    static const char call[] = "dcomm_cuda_scatter";
    cuhost_job j = {.count = count, .n = n, .add = add};
    if (n > 0 && (index == NULL || value == NULL || (x == NULL && count > 0))) {
        return cuhost_fail(DCOMM_ERR_INVALID, call, "%s is NULL",
                           index == NULL   ? "index"
                           : value == NULL ? "value"
                                           : "x");
    }
    size_t longer = 0;
    dcomm_status status = array_bytes(call, count > n ? count : n, sizeof *x, &longer);
    if (n == 0 || status != DCOMM_OK) {
        return status;
    }
    j.out = cuhost_reach_of(&j, x, count * sizeof *x);
    j.wire = cuhost_reach_of(&j, index, n * sizeof *index);
    j.x = cuhost_reach_of(&j, value, n * sizeof *value);
    return cuhost_run(call, &j, run_scatter, stream);
}

static cudaError_t run_look(void *arg)
{
    const cuhost_job *j = arg;
    if (j->bad) {
        return cudaErrorIllegalAddress;
    }
    dcomm_cuda_sight sight = {0};
    sight.index = cuhost_look(j->wire, j->count, j->dtype, &sight.value, &sight.squares);
    if (j->factor != 1) {
        cuhost_scale(j->wire, j->wire, j->count, j->dtype, j->factor);
    }
    if (j->drop && sight.index != UINT64_MAX) {
        memset(j->wire, 0, j->capacity);
    }
    *j->sight = sight;
    return cudaSuccess;
}

dcomm_status dcomm_cuda_look(void *x, size_t count, dcomm_dtype dtype, double factor, bool drop,
                             dcomm_cuda_sight *sight, void *workspace, void *stream)
{
    static const char call[] = "dcomm_cuda_look";
    cuhost_job j = {.count = count, .dtype = (int)dtype, .factor = factor, .drop = drop};
    if (dtype > DCOMM_BF16 || sight == NULL || (count > 0 && (x == NULL || workspace == NULL))) {
        return cuhost_fail(DCOMM_ERR_INVALID, call,
                           "dtype %d is not of floats, or x, sight or workspace is NULL",
                           (int)dtype);
    }
    dcomm_status status = array_bytes(call, count, dcomm_dtype_size(dtype), &j.capacity);
    if (status != DCOMM_OK) {
        return status;
    }
    j.wire = cuhost_reach_of(&j, x, j.capacity);
    j.sight = cuhost_reach_of(&j, sight, sizeof *sight);
    (void)cuhost_reach_of(&j, workspace, dcomm_cuda_look_workspace_bytes(count));
    return cuhost_run(call, &j, run_look, stream);
}

size_t dcomm_cuda_look_workspace_bytes(size_t count)
{
    return count == 0 ? 0 : 16;
}
