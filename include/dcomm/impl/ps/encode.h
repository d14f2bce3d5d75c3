/* encode.h - rows of a push as they travel. With a codec, a worker encodes them together with what
 * the codec has dropped of them before (error feedback). A server makes them f32 again. */
#ifndef DCOMMI_PS_ENCODE_H
#define DCOMMI_PS_ENCODE_H

#include "../feedback/feedback.h"
#include "wire.h"

/* Make the codec of opts.codec, and a residual of zeros for each parameter that it encodes. */
static dcomm_status dcommi_ps_codec_make(dcomm_ps *ps, const char *spec)
{
    ps->opts.codec = NULL;
    if (spec == NULL || strcmp(spec, "none") == 0) {
        return DCOMM_OK;
    }
    DCOMMI_TRY(dcomm_codec_create(spec, &ps->codec));
    spec = ps->opts.codec = dcomm_codec_spec(ps->codec);
    if (ps->codec->automatic || ps->codec->ops->state != NULL) {
        return dcommi_fail(DCOMM_ERR_UNSUPPORTED, "dcomm_ps_create: opts.codec \"%.80s\": %s", spec,
                           ps->codec->automatic
                               ? "only an all-reduce decides about a codec; leave out \"auto\""
                               : "it needs the same tensor in each step, and pushes are of any "
                                 "rows");
    }
    for (size_t i = 0; i < ps->nparams; i++) {
        dcommi_ps_param *p = &ps->params[i];
        const size_t n = (size_t)(p->rows * p->cols);
        dcomm_codec_info info;
        DCOMMI_TRY(dcomm_codec_get_info(ps->codec, n, &info));
        if (n < DCOMMI_CODED_MIN) {
            continue;
        }
        if (dcommi_feedback_grows(&info)) {
            return dcommi_fail(DCOMM_ERR_INVALID,
                               "dcomm_ps_create: opts.codec \"%.80s\": residuals of \"%.80s\" "
                               "would grow without bound, because its variance factor is %.3g, "
                               "which must be below 1",
                               spec, p->name, info.omega);
        }
        p->codec = ps->codec;
        const bool keeps = ps->works && ps->shift == 0; /* a replica gets what the first one gets */
        p->residual = keeps ? dcommi_calloc(n, sizeof *p->residual) : NULL;
        if (keeps && p->residual == NULL) {
            return DCOMM_ERR_NO_MEMORY;
        }
    }
    return DCOMM_OK;
}

/* ---- the worker's side ---- */

/* Return true if the rows of a piece must be brought together as f32 to be encoded. */
static bool dcommi_ps_gathers(const dcommi_ps_piece *piece)
{
    return piece->place != NULL || piece->ps->params[piece->header.tag].dtype != DCOMM_F32;
}

/* Return the codec's workspace for a piece, in bytes; behind it is room for gathered rows and their
 * residuals. */
static size_t dcommi_ps_workspace(const dcommi_ps_piece *piece, size_t n)
{
    const dcommi_ps_param *p = &piece->ps->params[piece->header.tag];
    return dcommi_size_lines(dcomm_codec_workspace_bytes(p->codec, n));
}

/* Make room to encode a push. Without memory, nothing has been encoded. */
static dcomm_status dcommi_ps_encode_room(dcomm_ps *ps, const dcommi_ps_piece *piece)
{
    size_t most = 0;
    for (; piece != NULL; piece = piece->next) {
        const size_t n = (size_t)(piece->header.b * ps->params[piece->header.tag].cols);
        const size_t bytes =
            dcommi_ps_workspace(piece, n) + (dcommi_ps_gathers(piece) ? 2 * n * sizeof(float) : 0);
        most = bytes > most ? bytes : most;
    }
    if (most > ps->room_bytes) {
        dcommi_free(ps->room);
        ps->room = dcommi_alloc_raw(most);
        ps->room_bytes = ps->room != NULL ? most : 0;
    }
    return most <= ps->room_bytes ? DCOMM_OK : DCOMM_ERR_NO_MEMORY;
}

/* Encode the rows of a piece: the gradient and what was dropped before. Keep what is dropped now.
 * Cannot fail: the gradient is finite, and there is room. */
static void dcommi_ps_encode_piece(dcomm_ps *ps, dcommi_ps_piece *piece)
{
    dcommi_ps_param *p = &ps->params[piece->header.tag];
    const size_t rows = (size_t)piece->header.b, cols = (size_t)p->cols, n = rows * cols;
    const uint64_t *list = piece->place != NULL ? piece->packed : NULL;
    const size_t list_bytes = list != NULL ? rows * sizeof *list : 0;
    const uint64_t first = list != NULL ? list[0] : piece->header.a;
    const dcomm_codec_key key = {.seed = ps->opts.codec_seed,
                                 .step = p->encodings,
                                 .first = first * cols,
                                 .rank = (uint32_t)ps->rank,
                                 .tensor = piece->header.tag};
    const bool gathers = dcommi_ps_gathers(piece);
    const float *x = (const float *)(const void *)piece->out;
    float *kept = p->residual + first * cols;
    float *room = (float *)(void *)((uint8_t *)ps->room + dcommi_ps_workspace(piece, n));
    for (size_t j = 0; j < rows && gathers; j++) {
        const size_t at = list != NULL ? piece->place[j] : j;
        const uint64_t row = list != NULL ? list[j] : first + j;
        dcommi_ps_uncast(room + j * cols, piece->out + at * dcommi_ps_row_bytes(ps, key.tensor),
                         cols, p->dtype);
        memcpy(room + n + j * cols, p->residual + row * cols, cols * sizeof *room);
    }
    x = gathers ? room : x;
    kept = gathers ? room + n : kept;
    size_t bytes = 0;
    dcomm_encode_feedback(p->codec, x, kept, kept, n, &key, (uint8_t *)piece->packed + list_bytes,
                          piece->len - list_bytes, &bytes, ps->room, NULL);
    for (size_t j = 0; j < rows && gathers; j++) {
        const uint64_t row = list != NULL ? list[j] : first + j;
        memcpy(p->residual + row * cols, kept + j * cols, cols * sizeof *room);
    }
    piece->len = list_bytes + bytes;
}

/* Encode all pieces of a push. Those for replicas come last, in the same order, and take the same
 * bytes. */
static void dcommi_ps_encode(dcomm_ps *ps, dcommi_ps_piece *first)
{
    const dcommi_ps_piece *encoded = first;
    for (dcommi_ps_piece *piece = first; piece != NULL; piece = piece->next) {
        if (piece->ps == ps) {
            dcommi_ps_encode_piece(ps, piece);
        } else {
            memcpy(piece->packed, encoded->packed, encoded->len);
            piece->len = encoded->len;
            encoded = encoded->next;
        }
    }
    ps->params[first->header.tag].encodings++;
}

/* ---- the server's side ---- */

/* Make the rows of a push f32, unless they are. Nothing changes without memory. */
static dcomm_status dcommi_ps_unpack(const dcomm_ps *ps, dcommi_ps_job *job)
{
    const dcommi_ps_param *p = &ps->params[job->header.tag];
    const size_t n = (size_t)(job->header.b * p->cols), list = dcommi_ps_list_bytes(&job->header);
    if (p->codec == NULL && p->dtype == DCOMM_F32) {
        return DCOMM_OK;
    }
    uint8_t *data = dcommi_huge_alloc(list + n * sizeof(float));
    float *rows = (float *)(void *)(data + list);
    dcomm_status status = data != NULL ? DCOMM_OK : DCOMM_ERR_NO_MEMORY;
    if (status == DCOMM_OK && p->codec != NULL) {
        status = dcomm_decode(p->codec, job->data + list, job->len - list, rows, n);
    } else if (status == DCOMM_OK) {
        dcommi_ps_uncast(rows, job->data + list, n, p->dtype);
    }
    if (status < 0) {
        dcommi_free(data);
        return status;
    }
    memcpy(data, job->data, list);
    dcommi_free(job->data);
    job->data = data;
    job->len = list + n * sizeof(float);
    return DCOMM_OK;
}

#endif
