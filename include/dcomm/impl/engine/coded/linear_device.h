/* linear_device.h - the steps of linear.h for powersgd where the run's operands lie on a device.
 * They are kernels on queue IN, so only P and Q leave the device. */
#ifndef DCOMMI_CODED_LINEAR_DEVICE_H
#define DCOMMI_CODED_LINEAR_DEVICE_H

#include "feedback_kernels.h"

/* Find memory for the sum of gradient and residual: that of the next residual. If this is rounded,
 * or still holds what EF21 has sent so far, the sum needs memory of its own. */
static dcomm_status dcommi_linear_room(const dcommi_coded *c, const float **whole_p)
{
    dcomm_feedback *fb = c->feedback;
    const dcommi_feedback_store *w = &fb->worker;
    void *memory = w->next;
    if (w->bf16 || (fb->opts.variant == DCOMM_FEEDBACK_EF21 && w->now == w->next)) {
        DCOMMI_TRY(
            dcommi_feedback_kept_room(fb, c->device, 0, false, c->count * sizeof(float), &memory));
    }
    *whole_p = memory;
    return DCOMM_OK;
}

/* Provide memory for the Q with which the next step begins. */
static dcomm_status dcommi_linear_learns(const dcommi_coded *c)
{
    dcomm_feedback *fb = c->feedback;
    const size_t count = dcommi_feedback_basis_count(fb->codec, fb->count);
    if (fb->basis.count != count) {
        DCOMMI_TRY(dcommi_feedback_store_there(&fb->basis, count, false, fb->opts.in_place,
                                               fb->worker.place));
        DCOMMI_TRY(dcommi_feedback_before(fb, c->device));
    }
    fb->learned = true;
    return DCOMM_OK;
}

/* Prepare a step, in the thread that starts it. */
static dcomm_status dcommi_linear_step(dcommi_coded *c, const dcomm_codec_place *place,
                                       dcommi_device_code *code, dcommi_feedback_job *job)
{
    dcomm_feedback *fb = c->feedback;
    if (code->kind == DCOMM_STEP_DECODE) {
        DCOMMI_TRY(fb != NULL ? dcommi_linear_learns(c) : DCOMM_OK);
        return fb != NULL ? dcommi_feedback_step(c, place, code, job) : DCOMM_OK;
    }
    if (place->round == 0) {
        c->count = code->count;
        c->whole = code->src[0];
    }
    code->count = c->count; /* later rounds get the wire as their input */
    if (fb != NULL && place->round == 0) {
        DCOMMI_TRY(dcommi_coded_begin_feedback(c, code->src[0], 0));
        DCOMMI_TRY(dcommi_feedback_before(fb, c->device));
        DCOMMI_TRY(dcommi_feedback_encode_range(fb, 0, c->count));
        DCOMMI_TRY(dcommi_linear_room(c, &c->whole));
        fb->encoded += c->count;
    }
    job->fb = fb;
    return DCOMM_OK;
}

/* Complete the report of one product. Only the first product has seen the elements. The bytes of
 * both products of a turn are told with its first. Return the number of elements that the report
 * is of. */
static size_t dcommi_linear_share(const dcommi_coded *c, const dcomm_codec_place *place,
                                  dcomm_codec_report *report)
{
    report->bytes = place->round % 2 == 0 ? report->bytes : 0;
    report->kept = place->round == 0 ? report->kept : 0;
    return place->round == 0 ? c->count : 0;
}

/* ---- on queue IN ---- */

static dcommi_device_matrix dcommi_linear_matrix(const dcommi_coded *c, void *wire)
{
    const dcommi_matrix m = dcommi_powersgd_shape(c->codec, c->count);
    float *p = wire;
    return (dcommi_device_matrix){
        .shape = {.count = m.count, .rows = m.rows, .cols = m.cols, .rank = m.rank},
        .key = dcommi_linear_key(c),
        .x = c->whole,
        .p = p,
        .q = p + dcommi_powersgd_p_count(&m)};
}

/* Begin Q as the last step's sum, or as zeros. */
static dcomm_status dcommi_linear_begin_there(dcommi_device_handle *d, const dcommi_coded *c,
                                              const dcommi_device_matrix *m)
{
    const size_t bytes = m->shape.rank * m->shape.cols * sizeof(float);
    return c->feedback != NULL && c->feedback->basis.count > 0
               ? dcommi_device_copy(d, DCOMMI_QUEUE_IN, m->q, c->feedback->basis.now, bytes)
               : d->call->zero(d->number, d->stream[DCOMMI_QUEUE_IN], m->q, bytes);
}

/* Sum gradient and residual. Elements that are not finite are counted here; without feedback, the
 * first product counts them. */
static void dcommi_linear_sum_there(dcommi_feedback_arrays *a, const dcommi_coded *c)
{
    const dcommi_feedback_store *w = &c->feedback->worker;
    dcommi_feedback_do(a,
                       c->feedback->opts.variant == DCOMM_FEEDBACK_EF21 ? DCOMM_CUDA_FEEDBACK_LACK
                                                                        : DCOMM_CUDA_FEEDBACK_ADD,
                       (float *)c->whole, c->feedback->now.x, 0,
                       dcommi_feedback_wide(a, w, w->now, 0));
}

/* Keep the state after this rank's own Q has been sent. The pass that multiplies P and Q leaves
 * the residual, and counts. It cannot make what comes later: EF21's estimate, or a residual in
 * bf16. */
static void dcommi_linear_keep_there(dcommi_feedback_arrays *a, const dcommi_coded *c,
                                     dcommi_device_matrix *m)
{
    const dcomm_feedback *fb = c->feedback;
    const bool estimates = fb != NULL && fb->opts.variant == DCOMM_FEEDBACK_EF21;
    const bool apart = estimates || (fb != NULL && fb->worker.bf16);
    if (fb == NULL && a->books.ledger == NULL) {
        return;
    }
    m->kind = DCOMMI_MATRIX_PRODUCT;
    m->how = apart ? 0 : -1;
    m->to = apart ? dcommi_feedback_take(a) : fb != NULL ? (float *)c->whole : NULL;
    m->x = fb != NULL ? fb->now.x : c->whole;
    m->ledger = apart ? NULL : a->books.ledger;
    DCOMMI_THEN(a->status, a->d->call->matrix(a->d, m));
    if (apart) {
        a->sent = m->to;
        a->store = &fb->worker;
        a->gradient = fb->now.x;
        a->held = fb->worker.now; /* EF21's estimate, which is never bf16 */
        a->next = fb->worker.bf16 ? dcommi_feedback_take(a) : fb->worker.next;
        dcommi_feedback_settle_there(a, c->whole, estimates);
    }
}

/* Put one of the products on the queue. */
static dcomm_status dcommi_linear_encode_there(dcommi_device_handle *d, const dcommi_coded *c,
                                               const dcommi_device_code *code,
                                               const dcommi_feedback_job *job, uint64_t round,
                                               dcomm_cuda_ledger *ledger)
{
    dcommi_feedback_arrays a = {.d = d, .code = code, .job = job, .books = {.ledger = ledger}};
    dcommi_device_matrix m = dcommi_linear_matrix(c, code->dst);
    const uint64_t last = 2 * (uint64_t)c->codec->value[DCOMMI_POWERSGD_TURNS] - 1;
    const bool first = round == 0, turns = round % 2 == 0;
    if (first && c->feedback != NULL) {
        dcommi_linear_sum_there(&a, c);
    }
    if (first && a.status >= 0) {
        a.status = dcommi_linear_begin_there(d, c, &m);
    }
    if (a.status >= 0) {
        m.kind = turns ? DCOMMI_MATRIX_START : DCOMMI_MATRIX_ORTHONORMAL;
        a.status = d->call->matrix(d, &m);
    }
    if (a.status >= 0) {
        m.kind = turns ? DCOMMI_MATRIX_P : DCOMMI_MATRIX_Q;
        m.report = !turns || (first && c->feedback == NULL) ? code->report : NULL;
        a.status = d->call->matrix(d, &m);
    }
    if (round == last) {
        dcommi_linear_keep_there(&a, c, &m);
    }
    dcommi_feedback_drop(&a);
    return a.status;
}

/* Decode the sums of P and Q; *seen tells whether they are finite. Keep the sum of Q for the next
 * step. */
static dcomm_status dcommi_linear_decode_there(dcommi_device_handle *d, const dcommi_coded *c,
                                               const dcommi_device_code *code,
                                               dcomm_cuda_sight *seen)
{
    dcommi_device_matrix m = dcommi_linear_matrix(c, (void *)code->src[0]);
    const size_t numbers = code->len[0] / sizeof(float);
    void *room = NULL;
    DCOMMI_TRY(dcommi_device_alloc(d, d->call->look_bytes(numbers), &room));
    dcomm_status status = d->call->look(d->number, d->stream[DCOMMI_QUEUE_IN], m.p, numbers,
                                        DCOMM_F32, 1, false, seen, room);
    dcommi_device_release(d, room);
    if (status >= 0 && c->feedback != NULL) {
        status = dcommi_device_copy(d, DCOMMI_QUEUE_IN, c->feedback->basis.next, m.q,
                                    m.shape.rank * m.shape.cols * sizeof(float));
    }
    m.kind = DCOMMI_MATRIX_PRODUCT;
    m.to = code->dst;
    return status < 0 ? status : d->call->matrix(d, &m);
}

#endif
