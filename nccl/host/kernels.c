/* kernels.c - dcomm's kernels (dcomm_cuda_*) in the host stand-in: the CPU's code of the same name,
 * whose bytes are the same by contract, as work on a stream. */
#define _GNU_SOURCE
#include "kernels.h"
#include "dcomm.h"
#include "host.h"
#include "../../kernels/wire_sparse.h"
#include <float.h>
#include <math.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A launch. Pointers are those that this library may follow. */
typedef struct job {
    const dcomm_codec *codec;
    const float *x, *residual;
    float *next, *out;
    void *wire, *workspace;
    dcomm_cuda_report *report;
    dcomm_cuda_ledger *ledger;
    dcomm_cuda_sight *sight;
    dcomm_cuda_clip *clip;
    dcomm_codec_key key;
    size_t count, capacity, n;
    int dtype, op;
    int64_t divisor;
    double factor;
    bool drop, add;
    bool bad; /* a pointer is not of memory that the device reaches */
    const void *at[DCOMM_CUDA_OPERANDS];
    size_t bytes[DCOMM_CUDA_OPERANDS];
} job;

__attribute__((format(printf, 3, 4))) static dcomm_status
fail(dcomm_status status, const char *call, const char *format, ...)
{
    char text[512];
    int n = snprintf(text, sizeof text, "%s: ", call);
    va_list args;
    va_start(args, format);
    vsnprintf(text + n, sizeof text - (size_t)n, format, args);
    va_end(args);
    return dcomm_set_error(status, text);
}

/* A pointer that the kernel follows: where it leads is a fault of the kernel's, as on a GPU. */
static void *reach(job *j, const void *p, size_t bytes)
{
    void *at = p != NULL && bytes > 0 ? cuhost_reach(p, bytes) : NULL;
    j->bad = j->bad || (p != NULL && bytes > 0 && at == NULL);
    return at;
}

/* Codecs are read before a launch returns: the kernel has one of its own, of the same spec. */
static const dcomm_codec *own_codec(const dcomm_codec *codec)
{
    static struct kept {
        struct kept *next;
        dcomm_codec *codec;
    } * all;
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    struct kept *k = all;
    while (k != NULL && strcmp(dcomm_codec_spec(k->codec), dcomm_codec_spec(codec)) != 0) {
        k = k->next;
    }
    if (k == NULL && (k = calloc(1, sizeof *k)) != NULL) {
        if (dcomm_codec_create(dcomm_codec_spec(codec), &k->codec) == DCOMM_OK) {
            k->next = all;
            all = k;
        } else {
            free(k);
            k = NULL;
        }
    }
    pthread_mutex_unlock(&lock);
    return k != NULL ? k->codec : NULL;
}

static dcomm_status operands(job *j, const char *call, const void *const *at, const size_t *bytes,
                             size_t each, size_t n)
{
    if (at == NULL || n == 0) {
        return fail(DCOMM_ERR_INVALID, call, "there are no operands");
    }
    if (n > DCOMM_CUDA_OPERANDS) {
        return fail(DCOMM_ERR_UNSUPPORTED, call, "%zu operands are more than %d", n,
                    DCOMM_CUDA_OPERANDS);
    }
    j->n = n;
    for (size_t i = 0; i < n; i++) {
        j->bytes[i] = bytes != NULL ? bytes[i] : each;
        if (at[i] == NULL && j->bytes[i] > 0) {
            return fail(DCOMM_ERR_INVALID, call, "operand number %zu is NULL", i);
        }
        j->at[i] = reach(j, at[i], j->bytes[i]);
    }
    return DCOMM_OK;
}

static _Atomic bool loaded[CUHOST_DEVICES_MAX];

dcomm_status dcomm_cuda_load(void)
{
    atomic_store(&loaded[cuhost_current()], true);
    return DCOMM_OK;
}

/* A kernel runs on the current device, and so in a stream of it. One that has to be loaded waits
 * for all that streams of the device hold, as CUDA's may. */
dcomm_status cuhost_launch(const char *call, const void *work, size_t bytes, cuhost_run_fn run,
                           void *stream)
{
    int device = -1;
    cudaError_t error = cudaStreamGetDevice(stream, &device);
    if (error == cudaSuccess && device != cuhost_current()) {
        error = cudaErrorInvalidResourceHandle;
    }
    if (error == cudaSuccess && !atomic_load(&loaded[device])) {
        (void)cuhost_drain_device(device);
    }
    if (error == cudaSuccess) {
        error = cuhost_enqueue(stream, CUHOST_KERNEL, run, NULL, work, bytes);
    }
    if (error == cudaSuccess && stream == NULL) { /* no stream: done when the call returns */
        error = cudaStreamSynchronize(NULL);
    }
    return error == cudaSuccess
               ? DCOMM_OK
               : fail(DCOMM_ERR_SYSTEM, call, "the launch failed: %s", cudaGetErrorString(error));
}

static dcomm_status launch(const char *call, const job *j, cuhost_run_fn run, void *stream)
{
    return cuhost_launch(call, j, sizeof *j, run, stream);
}

/* ---- reductions ---- */

static cudaError_t run_reduce(void *arg)
{
    const job *j = arg;
    if (j->bad) {
        return cudaErrorIllegalAddress;
    }
    return cuhost_fold(j->wire, j->at, j->n, j->count, j->dtype, j->op, j->divisor)
               ? cudaSuccess
               : cudaErrorLaunchFailure;
}

dcomm_status dcomm_cuda_reduce(void *dst, const void *const *src, size_t nsrc, size_t count,
                               dcomm_dtype dtype, dcomm_op op, int64_t divisor, void *stream)
{
    static const char call[] = "dcomm_cuda_reduce";
    const size_t bytes = count * dcomm_dtype_size(dtype);
    job j = {.count = count, .dtype = (int)dtype, .op = (int)op, .divisor = divisor};
    if (dcomm_dtype_size(dtype) == 0 || (unsigned)op >= DCOMM_OP_COUNT) {
        return fail(DCOMM_ERR_INVALID, call, "dtype %d or operator %d is unknown", (int)dtype,
                    (int)op);
    }
    if (count == 0) {
        return DCOMM_OK;
    }
    if (dst == NULL) {
        return fail(DCOMM_ERR_INVALID, call, "dst is NULL");
    }
    dcomm_status status = operands(&j, call, src, NULL, bytes, nsrc);
    if (status != DCOMM_OK) {
        return status;
    }
    j.wire = reach(&j, dst, bytes);
    return launch(call, &j, run_reduce, stream);
}

static cudaError_t run_scale(void *arg)
{
    const job *j = arg;
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
    const size_t bytes = count * dcomm_dtype_size(dtype);
    job j = {.count = count, .dtype = (int)dtype, .factor = factor};
    if (dcomm_dtype_size(dtype) == 0 || (count > 0 && (dst == NULL || src == NULL))) {
        return fail(DCOMM_ERR_INVALID, call, "dtype %d is unknown, or dst or src is NULL",
                    (int)dtype);
    }
    if (count == 0) {
        return DCOMM_OK;
    }
    j.wire = reach(&j, dst, bytes);
    j.x = reach(&j, src, bytes);
    return launch(call, &j, run_scale, stream);
}

static cudaError_t run_to_f32(void *arg)
{
    const job *j = arg;
    if (j->bad) {
        return cudaErrorIllegalAddress;
    }
    cuhost_to_f32(j->wire, j->x, j->count, j->dtype, j->factor);
    return cudaSuccess;
}

static cudaError_t run_from_f32(void *arg)
{
    const job *j = arg;
    if (j->bad) {
        return cudaErrorIllegalAddress;
    }
    cuhost_from_f32(j->wire, j->x, j->count, j->dtype);
    return cudaSuccess;
}

/* dst of so many bytes an element, src likewise. */
static dcomm_status convert(const char *call, void *dst, size_t to, const void *src, size_t from,
                            job j, cuhost_run_fn run, void *stream)
{
    if (j.dtype > DCOMM_BF16 || (j.count > 0 && (dst == NULL || src == NULL))) {
        return fail(DCOMM_ERR_INVALID, call, "dtype %d is none of floats, or dst or src is NULL",
                    j.dtype);
    }
    if ((uintptr_t)dst % to != 0 || (uintptr_t)src % from != 0) {
        return fail(DCOMM_ERR_INVALID, call, "dst or src is not aligned to its elements");
    }
    if (j.count == 0) {
        return DCOMM_OK;
    }
    j.wire = reach(&j, dst, j.count * to);
    j.x = reach(&j, src, j.count * from);
    return launch(call, &j, run, stream);
}

dcomm_status dcomm_cuda_to_f32(float *dst, const void *src, size_t count, dcomm_dtype dtype,
                               double factor, void *stream)
{
    const job j = {.count = count, .dtype = (int)dtype, .factor = factor};
    return convert("dcomm_cuda_to_f32", dst, sizeof *dst, src, dcomm_dtype_size(dtype), j,
                   run_to_f32, stream);
}

dcomm_status dcomm_cuda_from_f32(void *dst, const float *src, size_t count, dcomm_dtype dtype,
                                 void *stream)
{
    const job j = {.count = count, .dtype = (int)dtype};
    return convert("dcomm_cuda_from_f32", dst, dcomm_dtype_size(dtype), src, sizeof *src, j,
                   run_from_f32, stream);
}

static cudaError_t run_add(void *arg)
{
    const job *j = arg;
    if (j->bad) {
        return cudaErrorIllegalAddress;
    }
    for (size_t i = 0; i < j->count; i++) {
        float sum = (float)((double)j->out[i] + j->factor * (double)j->x[i]);
        j->out[i] = isfinite(sum) ? sum : copysignf(FLT_MAX, sum);
    }
    return cudaSuccess;
}

dcomm_status dcomm_cuda_add_scaled(float *x, float factor, const float *y, size_t count,
                                   void *stream)
{
    static const char call[] = "dcomm_cuda_add_scaled";
    job j = {.count = count, .factor = (double)factor};
    if (count > 0 && (x == NULL || y == NULL)) {
        return fail(DCOMM_ERR_INVALID, call, "%s is NULL", x == NULL ? "x" : "y");
    }
    if (count == 0) {
        return DCOMM_OK;
    }
    j.out = reach(&j, x, count * sizeof *x);
    j.x = reach(&j, y, count * sizeof *y);
    return launch(call, &j, run_add, stream);
}

static cudaError_t run_scatter(void *arg)
{
    const job *j = arg;
    const uint32_t *index = j->wire;
    if (j->bad) {
        return cudaErrorIllegalAddress;
    }
    for (size_t i = 0; i < j->n; i++) {
        if (index[i] < j->count) {
            const float sum = j->out[index[i]] + j->x[i];
            j->out[index[i]] = !j->add ? j->x[i] : isfinite(sum) ? sum : copysignf(FLT_MAX, sum);
        }
    }
    return cudaSuccess;
}

dcomm_status dcomm_cuda_scatter(float *x, size_t count, const uint32_t *index, const float *value,
                                size_t n, bool add, void *stream)
{
    static const char call[] = "dcomm_cuda_scatter";
    job j = {.count = count, .n = n, .add = add};
    if (n > 0 && (index == NULL || value == NULL || (x == NULL && count > 0))) {
        return fail(DCOMM_ERR_INVALID, call, "%s is NULL",
                    index == NULL   ? "index"
                    : value == NULL ? "value"
                                    : "x");
    }
    if (n == 0) {
        return DCOMM_OK;
    }
    j.out = reach(&j, x, count * sizeof *x);
    j.wire = reach(&j, index, n * sizeof *index);
    j.x = reach(&j, value, n * sizeof *value);
    return launch(call, &j, run_scatter, stream);
}

static cudaError_t run_look(void *arg)
{
    const job *j = arg;
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
    job j = {.count = count,
             .dtype = (int)dtype,
             .factor = factor,
             .drop = drop,
             .capacity = count * dcomm_dtype_size(dtype)};
    if (dtype > DCOMM_BF16 || sight == NULL || (count > 0 && (x == NULL || workspace == NULL))) {
        return fail(DCOMM_ERR_INVALID, call,
                    "dtype %d is not of floats, or x, sight or workspace is NULL", (int)dtype);
    }
    j.wire = reach(&j, x, j.capacity);
    j.sight = reach(&j, sight, sizeof *sight);
    (void)reach(&j, workspace, dcomm_cuda_look_workspace_bytes(count));
    return launch(call, &j, run_look, stream);
}

size_t dcomm_cuda_look_workspace_bytes(size_t count)
{
    return count == 0 ? 0 : 16;
}

/* ---- codecs ---- */

static void add_report(dcomm_cuda_report *to, const dcomm_codec_report *r)
{
    if (to == NULL) {
        return;
    }
    to->clipped += r->clipped;
    to->nonfinite += r->nonfinite;
    if (r->nonfinite > 0 && UINT64_MAX - r->first_nonfinite > to->first) {
        to->first = UINT64_MAX - r->first_nonfinite;
    }
    to->kept = r->kept;
}

/* Errors in wires go to the report. */
static cudaError_t decoded(const job *j, dcomm_status status)
{
    if (status != DCOMM_OK && status != DCOMM_ERR_CORRUPT && status != DCOMM_ERR_RANGE) {
        return cudaErrorLaunchFailure;
    }
    if (j->report != NULL) {
        j->report->corrupt += status == DCOMM_ERR_CORRUPT;
        j->report->beyond += status == DCOMM_ERR_RANGE;
    }
    return cudaSuccess;
}

/* So does an input of an encoding that is not finite. */
static cudaError_t encoded(const job *j, dcomm_status status, const dcomm_codec_report *r)
{
    if (status != DCOMM_OK && r->nonfinite == 0) {
        return cudaErrorLaunchFailure;
    }
    add_report(j->report, r);
    return cudaSuccess;
}

static cudaError_t run_feedback(void *arg)
{
    const job *j = arg;
    if (j->bad) {
        return cudaErrorIllegalAddress;
    }
    const cuhost_seen seen =
        cuhost_feedback(j->op, j->wire, j->x, (float)j->factor, j->residual, j->count);
    const dcomm_codec_report report = {.clipped = seen.clipped,
                                       .nonfinite = seen.nonfinite,
                                       .first_nonfinite = seen.first,
                                       .kept = j->report != NULL ? j->report->kept : 0};
    add_report(j->report, &report);
    return cudaSuccess;
}

dcomm_status dcomm_cuda_feedback(dcomm_cuda_feedback_op op, void *dst, const void *a, float factor,
                                 const float *b, size_t count, dcomm_cuda_report *report,
                                 void *stream)
{
    static const char call[] = "dcomm_cuda_feedback";
    const bool widens = op == DCOMM_CUDA_FEEDBACK_WIDEN, narrows = op == DCOMM_CUDA_FEEDBACK_NARROW;
    job j = {.count = count, .op = (int)op, .factor = (double)factor};
    if (count > 0 && (dst == NULL || a == NULL || (b == NULL && !widens && !narrows))) {
        return fail(DCOMM_ERR_INVALID, call, "dst, a or b is NULL");
    }
    if (count == 0) {
        return DCOMM_OK;
    }
    j.wire = reach(&j, dst, count * (narrows ? sizeof(uint16_t) : sizeof(float)));
    j.x = reach(&j, a, count * (widens ? sizeof(uint16_t) : sizeof(float)));
    j.residual = reach(&j, b, count * sizeof(float));
    j.report = reach(&j, report, sizeof *report);
    return launch(call, &j, run_feedback, stream);
}

static cudaError_t run_clip(void *arg)
{
    const job *j = arg;
    if (j->bad) {
        return cudaErrorIllegalAddress;
    }
    j->clip->factor = cuhost_clip(j->x, j->count, j->factor, &j->clip->squares);
    return cudaSuccess;
}

dcomm_status dcomm_cuda_feedback_clip(dcomm_cuda_clip *clip, const float *g, size_t count,
                                      double most, void *workspace, void *stream)
{
    static const char call[] = "dcomm_cuda_feedback_clip";
    job j = {.count = count, .factor = most};
    if (clip == NULL || (count > 0 && (g == NULL || workspace == NULL))) {
        return fail(DCOMM_ERR_INVALID, call, "clip, g or workspace is NULL");
    }
    j.clip = reach(&j, clip, sizeof *clip);
    j.x = reach(&j, g, count * sizeof *g);
    (void)reach(&j, workspace, dcomm_cuda_feedback_clip_workspace_bytes(count));
    return launch(call, &j, run_clip, stream);
}

size_t dcomm_cuda_feedback_clip_workspace_bytes(size_t count)
{
    return (count + 8191) / 8192 * sizeof(double);
}

static cudaError_t run_clipped(void *arg)
{
    const job *j = arg;
    if (j->bad) {
        return cudaErrorIllegalAddress;
    }
    cuhost_clipped(j->out, j->x, j->clip->factor, (float)j->factor, j->residual, j->count);
    return cudaSuccess;
}

dcomm_status dcomm_cuda_feedback_clipped(float *u, const float *g, const dcomm_cuda_clip *clip,
                                         float momentum, const float *before, size_t count,
                                         void *stream)
{
    static const char call[] = "dcomm_cuda_feedback_clipped";
    job j = {.count = count, .factor = (double)momentum};
    if (count > 0 && (u == NULL || g == NULL || clip == NULL || before == NULL)) {
        return fail(DCOMM_ERR_INVALID, call, "u, g, clip or before is NULL");
    }
    if (count == 0) {
        return DCOMM_OK;
    }
    j.clip = reach(&j, clip, sizeof *clip);
    j.out = reach(&j, u, count * sizeof *u);
    j.x = reach(&j, g, count * sizeof *g);
    j.residual = reach(&j, before, count * sizeof *before);
    return launch(call, &j, run_clipped, stream);
}

static void add_sums(dcomm_cuda_ledger *to, const dcomm_ledger *sums)
{
    to->count += sums->count;
    for (int s = 0; s < 8; s++) {
        to->sums[s] += sums->sums[s];
    }
}

static cudaError_t run_encode(void *arg)
{
    const job *j = arg;
    dcomm_codec_report r = {0};
    dcomm_ledger ledger = {0};
    size_t bytes = 0;
    if (j->bad) {
        return cudaErrorIllegalAddress;
    }
    dcomm_status status =
        j->ledger != NULL
            ? dcomm_encode_ledger(j->codec, j->x, j->residual, j->next, j->count, &j->key, j->wire,
                                  j->capacity, &bytes, NULL, &r, &ledger)
        : j->residual != NULL
            ? dcomm_encode_feedback(j->codec, j->x, j->residual, j->next, j->count, &j->key,
                                    j->wire, j->capacity, &bytes, j->workspace, &r)
            : dcomm_encode(j->codec, j->x, j->count, &j->key, j->wire, j->capacity, &bytes,
                           j->workspace, &r);
    if (j->ledger != NULL) {
        add_sums(j->ledger, &ledger);
    }
    return encoded(j, status, &r);
}

/* What an encoding and a recoding have in common. */
static dcomm_status encoder(job *j, const char *call, const dcomm_codec *codec,
                            const float *residual, float *next, size_t count,
                            const dcomm_codec_key *key, void *wire, size_t capacity,
                            dcomm_cuda_report *report)
{
    const size_t values = count * sizeof(float);
    if (codec == NULL || (count > 0 && wire == NULL)) {
        return fail(DCOMM_ERR_INVALID, call, "%s is NULL", codec == NULL ? "codec" : "wire");
    }
    if (capacity < dcomm_codec_max_bytes(codec, count)) {
        return fail(DCOMM_ERR_INVALID, call, "capacity of %zu bytes is less than %zu", capacity,
                    dcomm_codec_max_bytes(codec, count));
    }
    *j = (job){.codec = own_codec(codec), .count = count, .capacity = capacity};
    if (j->codec == NULL) {
        return fail(DCOMM_ERR_NO_MEMORY, call, "no memory for a codec");
    }
    j->key = key != NULL ? *key : (dcomm_codec_key){0};
    j->residual = reach(j, residual, values);
    j->next = reach(j, next, values);
    j->wire = reach(j, wire, dcomm_codec_max_bytes(codec, count));
    j->report = reach(j, report, sizeof *report);
    return DCOMM_OK;
}

dcomm_status dcomm_cuda_encode(const dcomm_codec *codec, const float *x, const float *residual,
                               float *next, size_t count, const dcomm_codec_key *key, void *wire,
                               size_t capacity, void *workspace, dcomm_cuda_report *report,
                               void *stream)
{
    static const char call[] = "dcomm_cuda_encode";
    job j;
    dcomm_status status =
        encoder(&j, call, codec, residual, next, count, key, wire, capacity, report);
    if (status != DCOMM_OK || count == 0) {
        return status;
    }
    j.x = reach(&j, x, count * sizeof *x);
    j.workspace = reach(&j, workspace, dcomm_cuda_workspace_bytes(codec, count));
    return launch(call, &j, run_encode, stream);
}

dcomm_status dcomm_cuda_encode_ledger(const dcomm_codec *codec, const float *x,
                                      const float *residual, float *next, size_t count,
                                      const dcomm_codec_key *key, void *wire, size_t capacity,
                                      void *workspace, dcomm_cuda_report *report,
                                      dcomm_cuda_ledger *ledger, void *stream)
{
    static const char call[] = "dcomm_cuda_encode_ledger";
    job j;
    dcomm_status status =
        encoder(&j, call, codec, residual, next, count, key, wire, capacity, report);
    if (status != DCOMM_OK || count == 0) {
        return status;
    }
    j.x = reach(&j, x, count * sizeof *x);
    (void)reach(&j, workspace, dcomm_cuda_ledger_workspace_bytes(codec, count));
    j.ledger = reach(&j, ledger, sizeof *ledger);
    return launch(call, &j, run_encode, stream);
}

/* y + next, and next, are what a ledger knows of a residual: sums[6] and sums[7]. */
void cuhost_compare(dcomm_cuda_ledger *to, const float *x, const float *y, const float *next,
                    size_t count)
{
    dcomm_ledger ledger = {0};
    if (x != NULL) {
        dcomm_ledger_compare(&ledger, x, y, count);
    }
    for (size_t i = 0; next != NULL && i < count; i++) {
        double e = (double)(y[i] + next[i]), left = (double)next[i];
        ledger.sums[6] += isfinite(e) ? e * e : 0;
        ledger.sums[7] += isfinite(e) ? left * left : 0;
    }
    add_sums(to, &ledger);
}

static cudaError_t run_compare(void *arg)
{
    const job *j = arg;
    if (j->bad) {
        return cudaErrorIllegalAddress;
    }
    cuhost_compare(j->ledger, j->x, j->out, j->residual, j->count);
    return cudaSuccess;
}

dcomm_status dcomm_cuda_ledger_compare(dcomm_cuda_ledger *ledger, const float *x, const float *y,
                                       const float *next, size_t count, void *workspace,
                                       void *stream)
{
    static const char call[] = "dcomm_cuda_ledger_compare";
    job j = {.count = count};
    if (ledger == NULL || (count > 0 && (y == NULL || workspace == NULL))) {
        return fail(DCOMM_ERR_INVALID, call, "ledger, y or workspace is NULL");
    }
    if (count == 0) {
        return DCOMM_OK;
    }
    j.ledger = reach(&j, ledger, sizeof *ledger);
    j.x = reach(&j, x, count * sizeof *x);
    j.out = reach(&j, y, count * sizeof *y);
    j.residual = reach(&j, next, count * sizeof *next);
    (void)reach(&j, workspace, dcomm_cuda_compare_workspace_bytes(count));
    return launch(call, &j, run_compare, stream);
}

static cudaError_t run_recode(void *arg)
{
    const job *j = arg;
    dcomm_codec_report r = {0};
    size_t bytes = 0;
    if (j->bad) {
        return cudaErrorIllegalAddress;
    }
    dcomm_status status =
        dcomm_recode(j->codec, j->at, j->bytes, j->n, (float)j->factor, j->residual, j->next,
                     j->count, &j->key, j->wire, j->capacity, &bytes, NULL, &r);
    const bool wires = status == DCOMM_ERR_CORRUPT || status == DCOMM_ERR_RANGE;
    const cudaError_t error = wires ? decoded(j, status) : cudaSuccess;
    return wires && r.nonfinite == 0 ? error : encoded(j, status, &r);
}

dcomm_status dcomm_cuda_recode(const dcomm_codec *codec, const void *const *wires,
                               const size_t *bytes, size_t n, float factor, const float *residual,
                               float *next, size_t count, const dcomm_codec_key *key, void *wire,
                               size_t capacity, void *workspace, dcomm_cuda_report *report,
                               void *stream)
{
    static const char call[] = "dcomm_cuda_recode";
    job j;
    (void)workspace;
    dcomm_status status =
        encoder(&j, call, codec, residual, next, count, key, wire, capacity, report);
    if (status == DCOMM_OK) {
        status = operands(&j, call, wires, bytes, 0, n);
    }
    if (status != DCOMM_OK || count == 0) {
        return status;
    }
    j.factor = (double)factor;
    return launch(call, &j, run_recode, stream);
}

/* As kernels: a wire of `threshold` of whose bytes only the most is known says how long it is. */
static void measure(job *j)
{
    dcomm_sparse_layout sparse;
    if (dcomm_codec_get_sparse_layout(j->codec, j->count, &sparse) < 0 ||
        sparse.least == sparse.most) {
        return;
    }
    const size_t most = dcomm_codec_max_bytes(j->codec, j->count);
    const size_t width = sparse.values.format == DCOMM_FORMAT_F32 ? 4 : 2;
    for (size_t i = 0; i < j->n; i++) {
        dcommi_sparse_head head;
        if (j->bytes[i] == most && most >= sizeof head) {
            memcpy(&head, j->at[i], sizeof head);
            const size_t bytes =
                sizeof head + width * head.kept + dcommi_sparse_index_bytes(j->count, head.kept);
            j->bytes[i] = bytes < most ? bytes : most;
        }
    }
}

static cudaError_t run_decode(void *arg)
{
    job *j = arg;
    dcomm_status status = DCOMM_OK;
    if (j->bad) {
        return cudaErrorIllegalAddress;
    }
    measure(j);
    if (j->op == 0) {
        status = dcomm_decode_sum(j->codec, j->at, j->bytes, j->n, j->out, j->count);
    }
    for (size_t i = 0; j->op != 0 && i < j->n && status == DCOMM_OK; i++) {
        status = dcomm_decode_add(j->codec, j->at[i], j->bytes[i], j->out, j->count);
    }
    return decoded(j, status);
}

static dcomm_status decoder(const char *call, const dcomm_codec *codec, const void *const *wires,
                            const size_t *bytes, size_t n, float *out, size_t count, bool add,
                            dcomm_cuda_report *report, void *stream)
{
    if (codec == NULL || bytes == NULL || (count > 0 && out == NULL)) {
        return fail(DCOMM_ERR_INVALID, call, "codec, bytes or the array is NULL");
    }
    job j = {.codec = own_codec(codec), .count = count, .op = add};
    if (j.codec == NULL) {
        return fail(DCOMM_ERR_NO_MEMORY, call, "no memory for a codec");
    }
    dcomm_status status = operands(&j, call, wires, bytes, 0, n);
    if (status != DCOMM_OK || count == 0) {
        return status;
    }
    j.out = reach(&j, out, count * sizeof *out);
    j.report = reach(&j, report, sizeof *report);
    return launch(call, &j, run_decode, stream);
}

dcomm_status dcomm_cuda_decode_sum(const dcomm_codec *codec, const void *const *wires,
                                   const size_t *bytes, size_t n, float *x, size_t count,
                                   void *workspace, dcomm_cuda_report *report, void *stream)
{
    (void)workspace;
    return decoder("dcomm_cuda_decode_sum", codec, wires, bytes, n, x, count, false, report,
                   stream);
}

dcomm_status dcomm_cuda_decode_add(const dcomm_codec *codec, const void *const *wires,
                                   const size_t *bytes, size_t n, float *acc, size_t count,
                                   void *workspace, dcomm_cuda_report *report, void *stream)
{
    (void)workspace;
    return decoder("dcomm_cuda_decode_add", codec, wires, bytes, n, acc, count, true, report,
                   stream);
}

size_t dcomm_cuda_workspace_bytes(const dcomm_codec *codec, size_t count)
{
    return dcomm_codec_workspace_bytes(codec, count);
}

size_t dcomm_cuda_ledger_workspace_bytes(const dcomm_codec *codec, size_t count)
{
    return codec == NULL || count == 0
               ? 0
               : dcomm_codec_workspace_bytes(codec, count) + count * sizeof(float);
}

size_t dcomm_cuda_compare_workspace_bytes(size_t count)
{
    return count == 0 ? 0 : 64;
}

size_t dcomm_cuda_decode_workspace_bytes(const dcomm_codec *codec, size_t count)
{
    (void)codec;
    (void)count;
    return 0;
}

size_t dcomm_cuda_recode_workspace_bytes(const dcomm_codec *codec, size_t count)
{
    (void)codec;
    (void)count;
    return 0;
}
