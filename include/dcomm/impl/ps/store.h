/* store.h - a server's rows: memory, the update of a push, the average of a clock's pushes, copies
 * for pulls. Knows no messages. */
#ifndef DCOMMI_PS_STORE_H
#define DCOMMI_PS_STORE_H

#include "../base/huge.h"
#include "wire.h"

/* Make the tables of this server's rows. `params` has the initial values. */
static dcomm_status dcommi_ps_store_make(dcomm_ps *ps, const dcomm_ps_param *params)
{
    size_t most = 0, most_rows = 0;
    ps->tables = dcommi_calloc(ps->nparams, sizeof *ps->tables);
    ps->updates = dcommi_calloc(ps->nparams, sizeof *ps->updates);
    if (ps->tables == NULL || ps->updates == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < ps->nparams; i++) {
        dcommi_ps_table *t = &ps->tables[i];
        t->i = i;
        t->first = dcommi_ps_first(ps, i, ps->server);
        t->rows = dcommi_ps_first(ps, i, ps->server + 1) - t->first;
        t->cols = ps->params[i].cols;
        const size_t n = (size_t)(t->rows * t->cols);
        bool bad = (t->value = dcommi_calloc(n, sizeof(float))) == NULL;
        for (int s = 0; s < dcommi_ps_states(&ps->opts) && !bad; s++) {
            bad = (t->state[s] = dcommi_calloc(n, sizeof(float))) == NULL;
        }
        if (!bad && ps->opts.update == DCOMM_PS_ADAM) {
            bad = (t->updates = dcommi_calloc((size_t)t->rows, sizeof *t->updates)) == NULL;
        }
        if (bad) {
            return DCOMM_ERR_NO_MEMORY;
        }
        const uint8_t *init = params[i].init;
        if (init != NULL && n > 0) {
            const size_t before = (size_t)t->first * dcommi_ps_row_bytes(ps, i);
            dcommi_ps_uncast(t->value, init + before, n, ps->params[i].dtype);
        }
        most = n > most ? n : most;
        most_rows = t->rows > most_rows ? (size_t)t->rows : most_rows;
    }
    if (ps->opts.staleness == 0) {
        ps->sum = dcommi_calloc(most, sizeof *ps->sum);
        ps->touched = dcommi_calloc(most_rows, sizeof *ps->touched);
        return ps->sum != NULL && ps->touched != NULL ? DCOMM_OK : DCOMM_ERR_NO_MEMORY;
    }
    return DCOMM_OK;
}

/* Return the place of row j of a message in its table. */
static inline uint64_t dcommi_ps_row(const dcommi_ps_table *t, const dcommi_header *h,
                                     const uint8_t *data, uint64_t j)
{
    return (h->stage == 1 ? ((const uint64_t *)(const void *)data)[j] : h->a + j) - t->first;
}

/* Return the values of a message, behind its list. */
static inline const float *dcommi_ps_values(const dcommi_header *h, const uint8_t *data)
{
    return (const float *)(const void *)(data + dcommi_ps_list_bytes(h));
}

/* ---- one update per push ---- */

/* Return the delay of a worker's push: the others' updates since its last pull, over workers. */
static double dcommi_ps_tau(const dcomm_ps *ps, int worker, size_t i)
{
    const dcommi_ps_from *f = &ps->from[worker];
    return (double)(ps->updates[i] - f->seen[i] - f->own[i]) / ps->workers;
}

/* Count a delay, in sixteenths. */
static void dcommi_ps_tau_count(dcomm_ps *ps, double tau)
{
    const double most = DCOMMI_PS_TAUS - 1, at = tau * 16;
    ps->taus[at < most ? (size_t)at : DCOMMI_PS_TAUS - 1]++;
}

/* Return how many rows of a message from row j on lie one behind another in the table, before its
 * row `end`. With `touched`, they must also have a sum all or none. */
static uint64_t dcommi_ps_stretch(const dcommi_ps_table *t, const dcommi_header *h,
                                  const uint8_t *data, uint64_t j, uint64_t end,
                                  const uint8_t *touched)
{
    const uint64_t row = dcommi_ps_row(t, h, data, j);
    uint64_t n = 1;
    while (j + n < h->b && row + n < end && dcommi_ps_row(t, h, data, j + n) == row + n &&
           (touched == NULL || touched[row + n] == touched[row])) {
        n++;
    }
    return n;
}

/* Update the rows of a push. */
static void dcommi_ps_push_apply(dcomm_ps *ps, int worker, const dcommi_header *h,
                                 const uint8_t *data)
{
    const size_t i = h->tag;
    dcommi_ps_table *t = &ps->tables[i];
    const double tau = dcommi_ps_tau(ps, worker, i);
    dcommi_ps_tau_count(ps, tau);
    if (ps->opts.drop_tau > 0 && tau > ps->opts.drop_tau) {
        ps->stats.dropped++;
        return;
    }
    const float scale = (float)(dcommi_ps_weight(&ps->opts, tau) / ps->workers);
    const float *g = dcommi_ps_values(h, data);
    for (uint64_t j = 0, n; j < h->b; j += n) {
        n = dcommi_ps_stretch(t, h, data, j, t->rows, NULL);
        dcommi_ps_apply(t, dcommi_ps_row(t, h, data, j), n, g + j * t->cols, scale, &ps->opts);
    }
    ps->updates[i]++;
    ps->from[worker].own[i]++;
    ps->stats.updates++;
}

/* ---- one update per clock ---- */

/* Add the rows of a push to the sum of a table, from its row j on to those before row `end` of the
 * table. Return the row of the push that is next. */
static uint64_t dcommi_ps_sum_add(dcomm_ps *ps, const dcommi_header *h, const uint8_t *data,
                                  uint64_t j, uint64_t end)
{
    const dcommi_ps_table *t = &ps->tables[h->tag];
    const size_t cols = (size_t)t->cols;
    const float *g = dcommi_ps_values(h, data);
    for (uint64_t row, n; j < h->b && (row = dcommi_ps_row(t, h, data, j)) < end; j += n) {
        n = dcommi_ps_stretch(t, h, data, j, end, ps->touched);
        const size_t count = (size_t)n * cols;
        float *sum = ps->sum + row * cols;
        const void *both[] = {sum, g + j * cols};
        if (!ps->touched[row]) {
            memcpy(sum, both[1], count * sizeof *g);
            memset(ps->touched + row, 1, (size_t)n);
        } else {
            dcommi_host_reduce(sum, both, 2, count, DCOMM_F32, DCOMM_SUM, 1);
        }
    }
    return j;
}

/* Average the sum of some rows of a table over `workers`, and update those that have one. */
static void dcommi_ps_sum_apply(dcomm_ps *ps, size_t i, uint64_t first, uint64_t end, int workers)
{
    dcommi_ps_table *t = &ps->tables[i];
    const size_t cols = (size_t)t->cols;
    for (uint64_t row = first, n; row < end; row += n) {
        n = 1;
        while (row + n < end && ps->touched[row + n] == ps->touched[row]) {
            n++;
        }
        if (ps->touched[row]) {
            float *sum = ps->sum + row * cols;
            const void *one[] = {sum};
            dcommi_host_reduce(sum, one, 1, (size_t)n * cols, DCOMM_F32, DCOMM_AVG, workers);
            dcommi_ps_apply(t, row, n, sum, 1, &ps->opts);
        }
    }
    memset(ps->touched + first, 0, (size_t)(end - first));
}

/* ---- pulls ---- */

/* Write the rows that a pull asks for to `wire`. */
static void dcommi_ps_copy(const dcommi_ps_table *t, const dcommi_header *h, const uint8_t *data,
                           uint8_t *wire, dcomm_dtype dtype)
{
    const size_t cols = (size_t)t->cols, row = cols * dcomm_dtype_size(dtype);
    for (uint64_t j = 0, n; j < h->b; j += n) {
        n = dcommi_ps_stretch(t, h, data, j, t->rows, NULL);
        dcommi_ps_cast(wire + j * row, t->value + dcommi_ps_row(t, h, data, j) * cols,
                       (size_t)n * cols, dtype);
    }
}

#endif
