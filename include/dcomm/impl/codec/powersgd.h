/* powersgd.h - powersgd treats the array as a matrix M and sends two thin ones, P and Q, with M ~
 * P Q^T (Vogels, Karimireddy, Jaggi: PowerSGD, NeurIPS 2019).
 *
 * Q starts as the last step's Q (or random). Then P = M Q, P is made orthonormal, and Q = M^T P.
 * Both products are linear in M. So ranks that start with the same Q may sum P before it is made
 * orthonormal, and then sum Q: the result approximates the sum. That is why each step is its own
 * function. Wire: P (rank columns of f32), then Q (likewise). */
#ifndef DCOMMI_CODEC_POWERSGD_H
#define DCOMMI_CODEC_POWERSGD_H

#include "read.h"
#include "../../../../kernels/cpu/powersgd.h"
#include "../../../../kernels/rng.h"

#include <float.h>

enum { DCOMMI_POWERSGD_RANK = 0, DCOMMI_POWERSGD_ROWS = 1, DCOMMI_POWERSGD_TURNS = 2 };

/* The length of Q's columns at the start of a step. It is small, so that P overflows for no finite
 * M. */
#define DCOMMI_POWERSGD_LENGTH 0x1p-20

/* ---- the steps ---- */

static size_t dcommi_powersgd_side(size_t count)
{
    size_t side = (size_t)dcommi_sqrt((double)count);
    while (side * side < count) {
        side++;
    }
    return side;
}

/* Return the shape of M. rows=0: nearly square. The rank is at most the shorter side. */
static dcommi_matrix dcommi_powersgd_shape(const dcomm_codec *codec, size_t count)
{
    dcommi_matrix m = {.count = count};
    size_t rows = (size_t)codec->value[DCOMMI_POWERSGD_ROWS];
    size_t rank = (size_t)codec->value[DCOMMI_POWERSGD_RANK];
    if (count > 0) {
        rows = rows == 0 ? dcommi_powersgd_side(count) : rows < count ? rows : count;
        m.cols = count / rows + (count % rows != 0);
        m.rows = count / m.cols + (count % m.cols != 0);
        m.rank = rank < m.rows ? rank : m.rows;
        m.rank = m.rank < m.cols ? m.rank : m.cols;
    }
    return m;
}

/* Return the number of elements of P; below, of Q. */
static size_t dcommi_powersgd_p_count(const dcommi_matrix *m)
{
    return m->rank * m->rows;
}

static size_t dcommi_powersgd_q_count(const dcommi_matrix *m)
{
    return m->rank * m->cols;
}

/* Return the bytes of scratch memory that either product needs. */
static size_t dcommi_powersgd_scratch(const dcommi_matrix *m)
{
    return m->rank * dcommi_matrix_column_bytes(m->cols);
}

/* Prepare Q for a step: scale its columns to DCOMMI_POWERSGD_LENGTH; fill columns that are 0 with
 * random numbers, from the part of the key that ranks share. Zero Q before the first step. */
static void dcommi_powersgd_start(const dcommi_matrix *m, const dcomm_codec_key *key, float *q)
{
    dcommi_rng rng = dcommi_rng_make(key->seed, key->tensor, key->step, 0, key->first);
    for (size_t j = 0; j < m->rank; j++) {
        float *column = q + j * m->cols;
        double length = dcommi_matrix_dot(column, column, m->cols);
        if (!(length > 0) || length > DBL_MAX) {
            for (size_t c = 0; c < m->cols; c++) {
                uint32_t bits = dcommi_rng_element(&rng, j * m->cols + c);
                column[c] = (float)(int32_t)(bits | 1) * 0x1p-31f;
            }
            length = dcommi_matrix_dot(column, column, m->cols);
        }
        double scale = DCOMMI_POWERSGD_LENGTH / dcommi_sqrt(length);
        for (size_t c = 0; c < m->cols; c++) {
            column[c] = (float)((double)column[c] * scale);
        }
    }
}

/* ---- the codec ---- */

static size_t dcommi_powersgd_bytes(const dcomm_codec *codec, size_t count)
{
    if (count > (size_t)1 << 48) {
        return SIZE_MAX;
    }
    dcommi_matrix m = dcommi_powersgd_shape(codec, count);
    return 4 * (dcommi_powersgd_p_count(&m) + dcommi_powersgd_q_count(&m));
}

/* Return the number of rows that a ledger compares at a time. A strip ends where a ledger's sums
 * can be cut. */
static size_t dcommi_powersgd_strip(const dcommi_matrix *m)
{
    size_t strip = 16;
    while (strip > 1 && m->cols * (strip / 2) % 16 == 0) {
        strip /= 2;
    }
    return strip < m->rows ? strip : m->rows;
}

static size_t dcommi_powersgd_workspace(const dcomm_codec *codec, size_t count)
{
    dcommi_matrix m = dcommi_powersgd_shape(codec, count > (size_t)1 << 48 ? 0 : count);
    return dcommi_powersgd_scratch(&m) +
           4 * (dcommi_powersgd_p_count(&m) + dcommi_powersgd_q_count(&m) +
                dcommi_powersgd_strip(&m) * m.cols);
}

/* Return the bytes of Q, which encode keeps from step to step. */
static size_t dcommi_powersgd_state(const dcomm_codec *codec, size_t count)
{
    dcommi_matrix m = dcommi_powersgd_shape(codec, count);
    return 4 * dcommi_powersgd_q_count(&m);
}

/* Return true if an input is not finite; then write NaN for all `numbers` and keep the residual.
 * For nonfinite=pass. */
static bool dcommi_powersgd_poisoned(dcommi_encoding *call, size_t numbers)
{
    dcommi_read_count(call);
    if (call->report.nonfinite == 0) {
        return false;
    }
    for (size_t i = 0; i < numbers; i++) {
        uint32_t nan = DCOMMI_F32_NAN;
        memcpy(call->wire + 4 * i, &nan, 4);
    }
    if (call->residual != NULL && call->next != call->residual) {
        memcpy(call->next, call->residual, sizeof *call->next * call->count);
    }
    return true;
}

static void dcommi_powersgd_clip(float *q, size_t n, size_t *clipped)
{
    for (size_t i = 0; i < n; i++) {
        if (DCOMMI_UNLIKELY(dcommi_f32_nonfinite(q[i]))) {
            ++*clipped;
            q[i] = dcommi_f32_bounded(q[i]);
        }
    }
}

/* Compute the ledger's sums and the residual, strip by strip. The decoded matrix is known only
 * when P and Q are complete. */
static void dcommi_powersgd_tally(const dcommi_matrix *m, dcommi_encoding *call, const float *p,
                                  const float *q, float *sent)
{
    const size_t strip = dcommi_powersgd_strip(m);
    for (size_t from = 0; from < m->rows; from += strip) {
        size_t to = m->rows - from < strip ? m->rows : from + strip, at = from * m->cols;
        size_t n = (to == m->rows ? m->count : to * m->cols) - at;
        dcommi_matrix_some(m, p, q, from, to, sent, 0);
        dcommi_tally_compare(call->tally, at, sent, n);
        if (call->residual != NULL) {
            dcommi_matrix_some(m, p, q, from, to, call->next + at, -1);
            dcommi_tally_held(call->tally, sent, call->next + at, n);
        }
    }
    call->tally->done = true;
}

static dcomm_status dcommi_powersgd_encode(const dcomm_codec *codec, dcommi_encoding *call)
{
    dcommi_matrix m = dcommi_powersgd_shape(codec, call->count);
    size_t p_count = dcommi_powersgd_p_count(&m), q_count = dcommi_powersgd_q_count(&m);
    void *scratch = call->workspace;
    float *p = (float *)(void *)((char *)scratch + dcommi_powersgd_scratch(&m)), *q = p + p_count;
    call->bytes = 4 * (p_count + q_count);
    if (call->count == 0 || (codec->nonfinite == DCOMMI_NONFINITE_PASS &&
                             dcommi_powersgd_poisoned(call, p_count + q_count))) {
        return DCOMM_OK;
    }
    dcommi_tally *tally = call->tally;
    call->tally = NULL; /* dcommi_powersgd_tally takes the sums, at the end */
    dcommi_read_all(call);
    call->tally = tally;
    const float *x = call->residual != NULL ? call->next : call->x;
    if (call->state != NULL) {
        memcpy(q, call->state, 4 * q_count);
    } else {
        memset(q, 0, 4 * q_count);
    }
    for (int turns = (int)codec->value[DCOMMI_POWERSGD_TURNS]; turns > 0; turns--) {
        dcommi_powersgd_start(&m, &call->key, q);
        dcommi_matrix_times(&m, x, q, p, scratch);
        dcommi_matrix_orthonormal(p, m.rows, m.rank);
        dcommi_matrix_transposed_times(&m, x, p, q, scratch);
        dcommi_powersgd_clip(q, q_count, &call->report.clipped);
    }
    memcpy(call->wire, p, call->bytes);
    if (call->state != NULL) {
        memcpy(call->state, q, 4 * q_count);
    }
    if (call->tally != NULL) {
        dcommi_powersgd_tally(&m, call, p, q, q + q_count);
    } else if (call->residual != NULL) {
        dcommi_matrix_product(&m, p, q, call->next, -1);
    }
    return DCOMM_OK;
}

static dcomm_status dcommi_powersgd_decode(const dcomm_codec *codec, const void *wire, size_t bytes,
                                           float *x, size_t count, bool add)
{
    DCOMMI_TRY(dcommi_codec_length(codec, bytes, dcommi_powersgd_bytes(codec, count), count));
    DCOMMI_TRY(dcommi_read_check(codec, wire, bytes / 4));
    const float *p = wire;
    float *copy = NULL;
    if ((uintptr_t)wire % sizeof(float) != 0) {
        copy = dcommi_alloc_raw(bytes);
        if (copy == NULL) {
            return DCOMM_ERR_NO_MEMORY;
        }
        p = memcpy(copy, wire, bytes);
    }
    dcommi_matrix m = dcommi_powersgd_shape(codec, count);
    dcommi_matrix_product(&m, p, p + dcommi_powersgd_p_count(&m), x, add ? 1 : 0);
    dcommi_free(copy);
    return DCOMM_OK;
}

static unsigned dcommi_powersgd_traits(const dcomm_codec *codec)
{
    (void)codec;
    return DCOMMI_CODEC_LINEAR | DCOMMI_CODEC_EXACT_BYTES | DCOMMI_CODEC_FEEDBACK;
}

/* Give the bound: the error is 0 at full rank. P P^T is a projection, so it never exceeds the
 * input. */
static void dcommi_powersgd_info(const dcomm_codec *codec, size_t count, dcomm_codec_info *info)
{
    dcommi_matrix m = dcommi_powersgd_shape(codec, count);
    size_t shorter = m.rows < m.cols ? m.rows : m.cols;
    if (m.rank == shorter) {
        info->contraction = 0;
    }
}

static const dcommi_codec_option dcommi_powersgd_options[] = {
    {"rank", DCOMMI_CODEC_INTEGER, NULL, 2, 1, DCOMMI_MATRIX_RANK, "columns of P and of Q"},
    {"rows", DCOMMI_CODEC_INTEGER, NULL, 0, 0, 1e9, "of the matrix; 0: nearly as many as columns"},
    {"turns", DCOMMI_CODEC_INTEGER, NULL, 1, 1, 16, "how often both products are taken"},
    {.kind = DCOMMI_CODEC_END}};

static const dcommi_codec_ops dcommi_codec_powersgd = {
    .name = "powersgd",
    .is = DCOMMI_IS_PRODUCTS,
    .summary = "the array as a matrix, approximated by one of low rank",
    .options = dcommi_powersgd_options,
    .traits = dcommi_powersgd_traits,
    .max_bytes = dcommi_powersgd_bytes,
    .workspace = dcommi_powersgd_workspace,
    .encode = dcommi_powersgd_encode,
    .decode = dcommi_powersgd_decode,
    .info = dcommi_powersgd_info,
    .state = dcommi_powersgd_state,
};

#endif
