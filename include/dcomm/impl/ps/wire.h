/* wire.h - the form of values in messages, and checks of messages from other ranks. */
#ifndef DCOMMI_PS_WIRE_H
#define DCOMMI_PS_WIRE_H

#include "../base/convert.h"
#include "types.h"

/* Write n values as messages have them. */
static void dcommi_ps_cast(void *wire, const float *values, size_t n, dcomm_dtype dtype)
{
    if (dtype == DCOMM_F32) {
        memcpy(wire, values, n * sizeof *values);
    } else {
        dcommi_from_f32(wire, values, n, dtype);
    }
}

/* Read n values of a message, or of the caller's. */
static void dcommi_ps_uncast(float *values, const void *wire, size_t n, dcomm_dtype dtype)
{
    if (dtype == DCOMM_F32) {
        memcpy(values, wire, n * sizeof *values);
    } else {
        dcommi_to_f32(values, wire, n, dtype, 1);
    }
}

/* Return the bytes of a message's list of rows. */
static inline size_t dcommi_ps_list_bytes(const dcommi_header *h)
{
    return h->stage == 1 ? (size_t)h->b * sizeof(uint64_t) : 0;
}

/* Return the bytes of n rows in a push, behind the list; a codec's wire may be shorter. */
static size_t dcommi_ps_push_bytes(const dcomm_ps *ps, size_t i, size_t n)
{
    const dcommi_ps_param *p = &ps->params[i];
    return p->codec != NULL ? dcomm_codec_max_bytes(p->codec, n * (size_t)p->cols)
                            : n * dcommi_ps_row_bytes(ps, i);
}

/* Return true if a worker's message can be right, as far as its header tells. Its payload is then
 * at most that of this server's rows. */
static bool dcommi_ps_valid(const dcomm_ps *ps, const dcommi_header *h, size_t len)
{
    const bool pushes = h->slot == DCOMMI_PS_PUSH;
    if (h->slot == DCOMMI_PS_CLOCK || h->slot == DCOMMI_PS_LEAVE) {
        return len == 0 && h->stage == 0; /* no list */
    }
    if ((!pushes && h->slot != DCOMMI_PS_PULL) || h->tag >= ps->nparams || h->stage > 1) {
        return false;
    }
    const dcommi_ps_table *t = &ps->tables[h->tag];
    const size_t list = dcommi_ps_list_bytes(h);
    if (h->b < 1 || h->b > t->rows) {
        return false;
    }
    const size_t rows = pushes ? dcommi_ps_push_bytes(ps, h->tag, (size_t)h->b) : 0;
    const bool may_be_shorter = pushes && ps->params[h->tag].codec != NULL;
    return len >= list && (may_be_shorter ? len - list <= rows : len - list == rows) &&
           (h->stage == 1 ? h->a == 0 : h->a >= t->first && h->a - t->first <= t->rows - h->b);
}

/* Return true if a list is of this server's rows, ascending. */
static bool dcommi_ps_valid_list(const dcommi_ps_table *t, const uint64_t *rows, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        if (rows[i] < t->first || rows[i] - t->first >= t->rows ||
            (i > 0 && rows[i] <= rows[i - 1])) {
            return false;
        }
    }
    return true;
}

#endif
