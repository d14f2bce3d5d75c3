/* calls.h - makes the pieces of a push or a pull. */
#ifndef DCOMMI_PS_CALLS_H
#define DCOMMI_PS_CALLS_H

#include "worker.h"

/* The rows that a call names: a range, or a list in the order of numbers. */
typedef struct dcommi_ps_rows {
    size_t i;       /* the parameter */
    uint64_t first; /* of a range */
    size_t n;
    uint64_t *list; /* ascending; NULL: a range */
    size_t *place;  /* of each in the caller's memory */
} dcommi_ps_rows;

typedef struct dcommi_ps_ranked {
    uint64_t row;
    size_t place;
} dcommi_ps_ranked;

static int dcommi_ps_ranked_compare(const void *a, const void *b)
{
    const dcommi_ps_ranked *x = a, *y = b;
    return x->row < y->row ? -1 : x->row > y->row;
}

/* Order a list of rows. */
static dcomm_status dcommi_ps_rows_order(const dcomm_ps *ps, const char *what, const uint64_t *rows,
                                         dcommi_ps_rows *s)
{
    dcommi_ps_ranked *ranked = dcommi_calloc(s->n, sizeof *ranked);
    s->list = dcommi_calloc(s->n, sizeof *s->list);
    s->place = dcommi_calloc(s->n, sizeof *s->place);
    if (ranked == NULL || s->list == NULL || s->place == NULL) {
        dcommi_free(ranked);
        return DCOMM_ERR_NO_MEMORY;
    }
    for (size_t j = 0; j < s->n; j++) {
        ranked[j] = (dcommi_ps_ranked){rows[j], j};
    }
    qsort(ranked, s->n, sizeof *ranked, dcommi_ps_ranked_compare);
    dcomm_status status = DCOMM_OK;
    for (size_t j = 0; j < s->n && status >= 0; j++) {
        s->list[j] = ranked[j].row;
        s->place[j] = ranked[j].place;
        if (ranked[j].row >= ps->params[s->i].rows) {
            status = dcommi_fail(
                DCOMM_ERR_INVALID, "%s: rows[%zu] is %" PRIu64 "; \"%.80s\" has %" PRIu64 " rows",
                what, ranked[j].place, ranked[j].row, ps->params[s->i].name, ps->params[s->i].rows);
        } else if (j > 0 && ranked[j].row == ranked[j - 1].row) {
            status = dcommi_fail(DCOMM_ERR_INVALID, "%s: rows[%zu] and rows[%zu] are both %" PRIu64,
                                 what, ranked[j - 1].place, ranked[j].place, ranked[j].row);
        }
    }
    dcommi_free(ranked);
    return status;
}

/* Copy a list of rows, and for a push their values, into memory of the piece. Values that are to be
 * encoded get their room. */
static dcomm_status dcommi_ps_pack(const dcomm_ps *ps, dcommi_ps_piece *piece,
                                   const dcommi_ps_rows *s, size_t from, const uint8_t *grad)
{
    const size_t n = (size_t)piece->header.b, row = dcommi_ps_row_bytes(ps, s->i);
    const size_t list = dcommi_ps_list_bytes(&piece->header);
    const bool copies = grad != NULL && ps->params[s->i].codec == NULL;
    piece->len = list + (grad != NULL ? dcommi_ps_push_bytes(ps, s->i, n) : 0);
    uint8_t *packed = piece->packed = dcommi_alloc_raw(piece->len);
    if (packed == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    if (list > 0) {
        memcpy(packed, s->list + from, list);
    }
    for (size_t j = 0; j < n && copies; j++) {
        memcpy(packed + list + j * row, grad + s->place[from + j] * row, row);
    }
    piece->data = packed;
    return DCOMM_OK;
}

/* Make the piece for the rows of one server, of which `from` come before in the call. */
static dcommi_ps_piece *dcommi_ps_piece_make(dcomm_ps *ps, dcommi_ps_call *call,
                                             const dcommi_ps_rows *s, int server, size_t from,
                                             size_t n, uint8_t *buf)
{
    const size_t row = dcommi_ps_row_bytes(ps, s->i);
    dcommi_ps_piece *piece = dcommi_alloc(sizeof *piece);
    if (piece == NULL) {
        return NULL;
    }
    piece->ps = ps;
    piece->call = call;
    piece->server = server;
    piece->awaited = -1;
    piece->bytes = call->pulls ? n * dcommi_ps_answer_row(ps, s->i) : n * row;
    piece->header = (dcommi_header){.type = DCOMMI_MSG_SERVICE,
                                    .slot = call->pulls ? DCOMMI_PS_PULL : DCOMMI_PS_PUSH,
                                    .stage = s->list != NULL,
                                    .tag = (uint32_t)s->i,
                                    .a = s->list != NULL ? 0 : s->first + from,
                                    .b = n};
    piece->place = s->list != NULL ? s->place + from : NULL;
    piece->out = s->list != NULL ? buf : buf + from * row;
    if (s->list != NULL || (!call->pulls && ps->params[s->i].codec != NULL)) {
        if (dcommi_ps_pack(ps, piece, s, from, call->pulls ? NULL : buf) < 0) {
            dcommi_ps_piece_free(piece);
            return NULL;
        }
    } else if (!call->pulls) {
        piece->data = piece->out;
        piece->len = piece->bytes;
    }
    return piece;
}

static void dcommi_ps_pieces_free(dcommi_ps_piece *first)
{
    while (first != NULL) {
        dcommi_ps_piece *piece = first;
        first = piece->next;
        dcommi_ps_piece_free(piece);
    }
}

/* Make the pieces of a call for the servers of one parameter server. NULL without memory. */
static dcommi_ps_piece *dcommi_ps_pieces_of(dcomm_ps *ps, dcommi_ps_call *call,
                                            const dcommi_ps_rows *s, uint8_t *buf)
{
    dcommi_ps_piece *first = NULL, **at = &first;
    for (size_t from = 0, n; from < s->n; from += n) {
        const int k = dcommi_ps_holder(ps, s->i, s->list != NULL ? s->list[from] : s->first + from);
        const uint64_t end = dcommi_ps_first(ps, s->i, k + 1);
        n = 1;
        if (s->list == NULL) {
            const uint64_t left = end - (s->first + from);
            n = s->n - from < left ? s->n - from : (size_t)left;
        }
        while (s->list != NULL && from + n < s->n && s->list[from + n] < end) {
            n++;
        }
        *at = dcommi_ps_piece_make(ps, call, s, k, from, n, buf);
        if (*at == NULL) {
            dcommi_ps_pieces_free(first);
            return NULL;
        }
        call->left++;
        at = &(*at)->next;
    }
    return first;
}

/* Make all pieces of a call, also those of a push to replicas. NULL without memory. */
static dcommi_ps_piece *dcommi_ps_pieces(dcomm_ps *ps, dcommi_ps_call *call,
                                         const dcommi_ps_rows *s, uint8_t *buf)
{
    dcommi_ps_piece *first = dcommi_ps_pieces_of(ps, call, s, buf), **end = &first;
    if (first == NULL || ps->twin == NULL || call->pulls) {
        return first;
    }
    while (*end != NULL) {
        end = &(*end)->next;
    }
    *end = dcommi_ps_pieces_of(ps->twin, call, s, buf);
    if (*end == NULL) {
        dcommi_ps_pieces_free(first);
        return NULL;
    }
    return first;
}

/* Hand pieces to the engine, and let them leave. */
static void dcommi_ps_launch(dcomm_ps *ps, dcommi_ps_piece *piece)
{
    dcomm_context *context = ps->comm->context;
    dcommi_token_take(context);
    while (piece != NULL) {
        dcommi_ps_piece *next = piece->next;
        piece->next = NULL;
        dcommi_ps_enqueue(piece->ps, piece);
        piece = next;
    }
    dcommi_progress(context);
    dcommi_token_release(context);
}

/* Send a message without rows to all servers. `clock`: of CLOCK. */
static dcomm_status dcommi_ps_tell_all(dcomm_ps *ps, uint16_t kind, uint64_t clock)
{
    dcommi_ps_piece *first = NULL;
    for (int k = 0; k < ps->nservers; k++) {
        dcommi_ps_piece *piece = dcommi_alloc(sizeof *piece);
        if (piece == NULL) {
            dcommi_ps_pieces_free(first);
            return DCOMM_ERR_NO_MEMORY;
        }
        piece->next = first;
        piece->ps = ps;
        piece->server = k;
        piece->header = (dcommi_header){.type = DCOMMI_MSG_SERVICE, .slot = kind, .a = clock};
        first = piece;
    }
    dcommi_ps_launch(ps, first);
    return DCOMM_OK;
}

#endif
