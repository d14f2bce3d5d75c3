/* codecs.c - dcomm's kernels of codecs and error feedback in the host stand-in. */
#define _GNU_SOURCE
#include "kernels.h"
#include "../../kernels/wire_sparse.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Return a codec of the same spec that the kernel owns: the caller may destroy its codec once the
 * launch returns. */
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

/* Report errors in wires. */
static cudaError_t decoded(const cuhost_job *j, dcomm_status status)
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

/* Report inputs of an encoding that are not finite. */
static cudaError_t encoded(const cuhost_job *j, dcomm_status status, const dcomm_codec_report *r)
{
    if (status != DCOMM_OK && r->nonfinite == 0) {
        return cudaErrorLaunchFailure;
    }
    add_report(j->report, r);
    return cudaSuccess;
}

static cudaError_t run_feedback(void *arg)
{
    const cuhost_job *j = arg;
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
    cuhost_job j = {.count = count, .op = (int)op, .factor = (double)factor};
    if (count > 0 && (dst == NULL || a == NULL || (b == NULL && !widens && !narrows))) {
        return cuhost_fail(DCOMM_ERR_INVALID, call, "dst, a or b is NULL");
    }
    if (count == 0) {
        return DCOMM_OK;
    }
    j.wire = cuhost_reach_of(&j, dst, count * (narrows ? sizeof(uint16_t) : sizeof(float)));
    j.x = cuhost_reach_of(&j, a, count * (widens ? sizeof(uint16_t) : sizeof(float)));
    j.residual = cuhost_reach_of(&j, b, count * sizeof(float));
    j.report = cuhost_reach_of(&j, report, sizeof *report);
    return cuhost_run(call, &j, run_feedback, stream);
}

static cudaError_t run_clip(void *arg)
{
    const cuhost_job *j = arg;
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
    cuhost_job j = {.count = count, .factor = most};
    if (clip == NULL || (count > 0 && (g == NULL || workspace == NULL))) {
        return cuhost_fail(DCOMM_ERR_INVALID, call, "clip, g or workspace is NULL");
    }
    j.clip = cuhost_reach_of(&j, clip, sizeof *clip);
    j.x = cuhost_reach_of(&j, g, count * sizeof *g);
    (void)cuhost_reach_of(&j, workspace, dcomm_cuda_feedback_clip_workspace_bytes(count));
    return cuhost_run(call, &j, run_clip, stream);
}

size_t dcomm_cuda_feedback_clip_workspace_bytes(size_t count)
{
    return (count + 8191) / 8192 * sizeof(double);
}

static cudaError_t run_clipped(void *arg)
{
    const cuhost_job *j = arg;
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
    cuhost_job j = {.count = count, .factor = (double)momentum};
    if (count > 0 && (u == NULL || g == NULL || clip == NULL || before == NULL)) {
        return cuhost_fail(DCOMM_ERR_INVALID, call, "u, g, clip or before is NULL");
    }
    if (count == 0) {
        return DCOMM_OK;
    }
    j.clip = cuhost_reach_of(&j, clip, sizeof *clip);
    j.out = cuhost_reach_of(&j, u, count * sizeof *u);
    j.x = cuhost_reach_of(&j, g, count * sizeof *g);
    j.residual = cuhost_reach_of(&j, before, count * sizeof *before);
    return cuhost_run(call, &j, run_clipped, stream);
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
    const cuhost_job *j = arg;
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

/* Prepare an encoding or a recoding. */
static dcomm_status encoder(cuhost_job *j, const char *call, const dcomm_codec *codec,
                            const float *residual, float *next, size_t count,
                            const dcomm_codec_key *key, void *wire, size_t capacity,
                            dcomm_cuda_report *report)
{
    const size_t values = count * sizeof(float);
    if (codec == NULL || (count > 0 && wire == NULL)) {
        return cuhost_fail(DCOMM_ERR_INVALID, call, "%s is NULL", codec == NULL ? "codec" : "wire");
    }
    if (capacity < dcomm_codec_max_bytes(codec, count)) {
        return cuhost_fail(DCOMM_ERR_INVALID, call, "capacity of %zu bytes is less than %zu",
                           capacity, dcomm_codec_max_bytes(codec, count));
    }
    *j = (cuhost_job){.codec = own_codec(codec), .count = count, .capacity = capacity};
    if (j->codec == NULL) {
        return cuhost_fail(DCOMM_ERR_NO_MEMORY, call, "no memory for a codec");
    }
    j->key = key != NULL ? *key : (dcomm_codec_key){0};
    j->residual = cuhost_reach_of(j, residual, values);
    j->next = cuhost_reach_of(j, next, values);
    j->wire = cuhost_reach_of(j, wire, dcomm_codec_max_bytes(codec, count));
    j->report = cuhost_reach_of(j, report, sizeof *report);
    return DCOMM_OK;
}

dcomm_status dcomm_cuda_encode(const dcomm_codec *codec, const float *x, const float *residual,
                               float *next, size_t count, const dcomm_codec_key *key, void *wire,
                               size_t capacity, void *workspace, dcomm_cuda_report *report,
                               void *stream)
{
    static const char call[] = "dcomm_cuda_encode";
    cuhost_job j;
    dcomm_status status =
        encoder(&j, call, codec, residual, next, count, key, wire, capacity, report);
    if (status != DCOMM_OK || count == 0) {
        return status;
    }
    j.x = cuhost_reach_of(&j, x, count * sizeof *x);
    j.workspace = cuhost_reach_of(&j, workspace, dcomm_cuda_workspace_bytes(codec, count));
    return cuhost_run(call, &j, run_encode, stream);
}

dcomm_status dcomm_cuda_encode_ledger(const dcomm_codec *codec, const float *x,
                                      const float *residual, float *next, size_t count,
                                      const dcomm_codec_key *key, void *wire, size_t capacity,
                                      void *workspace, dcomm_cuda_report *report,
                                      dcomm_cuda_ledger *ledger, void *stream)
{
    static const char call[] = "dcomm_cuda_encode_ledger";
    cuhost_job j;
    dcomm_status status =
        encoder(&j, call, codec, residual, next, count, key, wire, capacity, report);
    if (status != DCOMM_OK || count == 0) {
        return status;
    }
    j.x = cuhost_reach_of(&j, x, count * sizeof *x);
    (void)cuhost_reach_of(&j, workspace, dcomm_cuda_ledger_workspace_bytes(codec, count));
    j.ledger = cuhost_reach_of(&j, ledger, sizeof *ledger);
    return cuhost_run(call, &j, run_encode, stream);
}

/* Compare, and add the squares of y + next and next to sums[6] and sums[7]. */
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
    const cuhost_job *j = arg;
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
    cuhost_job j = {.count = count};
    if (ledger == NULL || (count > 0 && (y == NULL || workspace == NULL))) {
        return cuhost_fail(DCOMM_ERR_INVALID, call, "ledger, y or workspace is NULL");
    }
    if (count == 0) {
        return DCOMM_OK;
    }
    j.ledger = cuhost_reach_of(&j, ledger, sizeof *ledger);
    j.x = cuhost_reach_of(&j, x, count * sizeof *x);
    j.out = cuhost_reach_of(&j, y, count * sizeof *y);
    j.residual = cuhost_reach_of(&j, next, count * sizeof *next);
    (void)cuhost_reach_of(&j, workspace, dcomm_cuda_compare_workspace_bytes(count));
    return cuhost_run(call, &j, run_compare, stream);
}

static cudaError_t run_recode(void *arg)
{
    const cuhost_job *j = arg;
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
    cuhost_job j;
    (void)workspace;
    dcomm_status status =
        encoder(&j, call, codec, residual, next, count, key, wire, capacity, report);
    if (status == DCOMM_OK) {
        status = cuhost_operands(&j, call, wires, bytes, 0, n);
    }
    if (status != DCOMM_OK || count == 0) {
        return status;
    }
    j.factor = (double)factor;
    return cuhost_run(call, &j, run_recode, stream);
}

/* Do as the kernels: if a wire of `threshold` comes with the maximum for its bytes, read its
 * length from its head. */
static void measure(cuhost_job *j)
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
    cuhost_job *j = arg;
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
        return cuhost_fail(DCOMM_ERR_INVALID, call, "codec, bytes or the array is NULL");
    }
    cuhost_job j = {.codec = own_codec(codec), .count = count, .op = add};
    if (j.codec == NULL) {
        return cuhost_fail(DCOMM_ERR_NO_MEMORY, call, "no memory for a codec");
    }
    dcomm_status status = cuhost_operands(&j, call, wires, bytes, 0, n);
    if (status != DCOMM_OK || count == 0) {
        return status;
    }
    j.out = cuhost_reach_of(&j, out, count * sizeof *out);
    j.report = cuhost_reach_of(&j, report, sizeof *report);
    return cuhost_run(call, &j, run_decode, stream);
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
