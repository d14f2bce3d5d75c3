/* feedback_kernels.h - a codec's step with error feedback whose residuals lie on the run's device.
 * Kernels on queue IN do to arrays what feedback.h does. The codec takes f32, so bf16 is widened
 * before it and rounded after it. */
#ifndef DCOMMI_FEEDBACK_KERNELS_H
#define DCOMMI_FEEDBACK_KERNELS_H

#include "feedback_device.h"

/* The work of a step on the feedback state, once its ranges have been accepted. */
typedef struct dcommi_feedback_job {
    dcomm_feedback *fb;   /* NULL: none */
    size_t first;         /* its first element in the tensor */
    bool owner;           /* it is a recoding */
    bool raises;          /* it is one whose loss goes into the worker's residual */
    const float *learned; /* EF21, a decoding: the estimate to which the result is added */
    float *learns;        /* EF21: the new estimate */
} dcommi_feedback_job;

/* The ledgers of a step, on the device; NULL: not wanted. before, after: for the squares of a
 * residual that is raised. */
typedef struct dcommi_feedback_books {
    dcomm_cuda_ledger *ledger, *before, *after;
} dcommi_feedback_books;

/* Prepare a step, in the thread that starts it. */
static dcomm_status dcommi_feedback_step(dcommi_coded *c, const dcomm_codec_place *place,
                                         dcommi_device_code *code, dcommi_feedback_job *job)
{
    dcomm_feedback *fb = c->feedback;
    const size_t first = (size_t)place->first, count = code->count;
    const bool ef21 = fb->opts.variant == DCOMM_FEEDBACK_EF21;
    *job = (dcommi_feedback_job){.first = first};
    if (code->kind == DCOMM_STEP_DECODE && ef21) {
        DCOMMI_TRY(dcommi_feedback_open("a decoding", fb, true));
        DCOMMI_TRY(dcommi_feedback_range("a decoding", first, count, 0, fb->count, fb->finished));
        fb->finished += count;
        job->fb = fb;
        job->learned = (const float *)fb->estimate.now + first;
        job->learns = (float *)fb->estimate.next + first;
        return DCOMM_OK;
    }
    if (code->kind != DCOMM_STEP_ENCODE && code->kind != DCOMM_STEP_RECODE) {
        return DCOMM_OK;
    }
    if (!c->begun) {
        DCOMMI_TRY(dcommi_coded_begin_feedback(c, code->src[0], place->first));
        DCOMMI_TRY(dcommi_feedback_before(fb, c->device));
    }
    job->fb = fb;
    job->owner = code->kind == DCOMM_STEP_RECODE;
    job->raises = job->owner && c->begins.partly;
    code->key = dcommi_feedback_key(fb, first, job->owner ? DCOMMI_FEEDBACK_OWNER : 0);
    if (job->raises) {
        return dcommi_feedback_range("a recoding", first, count, 0, fb->count, 0);
    }
    if (job->owner) {
        DCOMMI_TRY(dcommi_feedback_range("a recoding", first, count, fb->own_first, fb->owner.count,
                                         fb->owned));
        fb->next_factor = (double)code->factor;
        fb->owned += count;
        return DCOMM_OK;
    }
    DCOMMI_TRY(dcommi_feedback_encode_range(fb, first, count));
    fb->encoded += count;
    return DCOMM_OK;
}

/* Find the state's memory on the run's device that the encoding of a range keeps from step to
 * step. */
static dcomm_status dcommi_feedback_kept_room(dcomm_feedback *fb, const dcommi_device_handle *d,
                                              size_t first, bool owner, size_t need,
                                              void **memory_p)
{
    const dcommi_feedback_place *place = fb->worker.place;
    dcommi_feedback_kept *kept = fb->kept;
    while (kept != NULL && (kept->first != first || kept->owner != owner)) {
        kept = kept->next;
    }
    if (kept == NULL) {
        kept = dcommi_alloc(sizeof *kept);
        if (kept == NULL) {
            return DCOMM_ERR_NO_MEMORY;
        }
        *kept = (dcommi_feedback_kept){.next = fb->kept, .first = first, .owner = owner};
        fb->kept = kept;
    }
    if (kept->bytes < need) {
        void *memory = NULL;
        DCOMMI_TRY(dcommi_feedback_side_make(place, need, &memory));
        if (kept->memory != NULL) {
            (void)dcommi_feedback_behind(fb, d);
            dcommi_feedback_side_release(place, kept->memory);
        }
        kept->memory = memory;
        kept->bytes = need;
        DCOMMI_TRY(dcommi_feedback_before(fb, d));
    }
    *memory_p = kept->memory;
    return DCOMM_OK;
}

/* Find the workspace of a selection for a range. Its contents make the next call faster. */
static dcomm_status dcommi_feedback_keep_room(const dcommi_feedback_job *job,
                                              const dcommi_device_handle *d,
                                              dcommi_device_code *code)
{
    size_t need = dcommi_codec_is(code->codec, DCOMMI_IS_SELECTION) ? d->call->code_bytes(code) : 0;
    return need == 0 || job->raises ? DCOMM_OK
                                    : dcommi_feedback_kept_room(job->fb, d, job->first, job->owner,
                                                                need, &code->workspace);
}

/* ---- one step's arrays ---- */

enum { DCOMMI_FEEDBACK_ROOMS = 8 };

/* The arrays of a step on queue IN. Once something has failed, nothing more is done. */
typedef struct dcommi_feedback_arrays {
    dcommi_device_handle *d;
    const dcommi_device_code *code;
    const dcommi_feedback_job *job;
    dcommi_feedback_books books;
    dcomm_status status;
    void *room[DCOMMI_FEEDBACK_ROOMS]; /* f32 arrays, for this step alone */
    int nroom;
    const dcommi_feedback_store *store; /* NULL: the loss goes into the worker's residual */
    size_t at;                          /* the step's first element in it */
    const float *gradient;              /* for the ledger; NULL: not available */
    const float *x; /* the numbers to encode with `held`; recoding: NULL, or its sum */
    const float *held;
    float *next;     /* in the store, or still to be rounded into it */
    float *velocity; /* DGC: likewise; else NULL */
    float *sent;     /* the encoding, decoded; NULL: not yet */
} dcommi_feedback_arrays;

static float *dcommi_feedback_take(dcommi_feedback_arrays *a)
{
    void *memory = NULL;
    DCOMMI_THEN(a->status, dcommi_device_alloc(a->d, a->code->count * sizeof(float), &memory));
    if (a->status >= 0) {
        a->room[a->nroom++] = memory;
    }
    return memory;
}

static void dcommi_feedback_drop(const dcommi_feedback_arrays *a)
{
    for (int k = 0; k < a->nroom; k++) {
        dcommi_device_release(a->d, a->room[k]);
    }
}

static void dcommi_feedback_do(dcommi_feedback_arrays *a, dcomm_cuda_feedback_op op, void *dst,
                               const void *x, float factor, const float *y)
{
    DCOMMI_THEN(a->status,
                a->d->call->feedback(a->d->number, a->d->stream[DCOMMI_QUEUE_IN], op, dst, x,
                                     factor, y, a->code->count, a->code->report));
}

static void dcommi_feedback_compare(dcommi_feedback_arrays *a, dcomm_cuda_ledger *ledger,
                                    const float *x, const float *y, const float *next)
{
    if (a->status >= 0 && ledger != NULL) {
        a->status = a->d->call->compare(a->d, ledger, x, y, next, a->code->count);
    }
}

/* Return elements of `base` as f32: where they lie, or widened. */
static float *dcommi_feedback_wide(dcommi_feedback_arrays *a, const dcommi_feedback_store *s,
                                   void *base, size_t at)
{
    void *from = dcommi_feedback_at(s, base, at);
    if (!s->bf16) {
        return from;
    }
    float *wide = dcommi_feedback_take(a);
    dcommi_feedback_do(a, DCOMM_CUDA_FEEDBACK_WIDEN, wide, from, 0, NULL);
    return wide;
}

/* Round `wide` into the store, and set it to the rounded values. */
static void dcommi_feedback_round(dcommi_feedback_arrays *a, const dcommi_feedback_store *s,
                                  size_t at, float *wide)
{
    if (s->bf16) {
        void *to = dcommi_feedback_at(s, s->next, at);
        dcommi_feedback_do(a, DCOMM_CUDA_FEEDBACK_NARROW, to, wide, 0, NULL);
        dcommi_feedback_do(a, DCOMM_CUDA_FEEDBACK_WIDEN, wide, to, 0, NULL);
    }
}

static void dcommi_feedback_decode(dcommi_feedback_arrays *a, const void *const *wires,
                                   const size_t *bytes, size_t n, float *to)
{
    const dcommi_device_code decode = {.kind = DCOMM_STEP_DECODE,
                                       .codec = a->code->codec,
                                       .count = a->code->count,
                                       .src = wires,
                                       .len = bytes,
                                       .n = n,
                                       .dst = to,
                                       .report = a->code->report};
    DCOMMI_THEN(a->status, a->d->call->code(a->d, &decode));
}

/* Decode the encoding that was sent, as other ranks will. */
static void dcommi_feedback_see(dcommi_feedback_arrays *a)
{
    const void *wire = a->code->dst;
    const size_t bytes = dcomm_codec_max_bytes(a->code->codec, a->code->count);
    a->sent = dcommi_feedback_take(a);
    dcommi_feedback_decode(a, &wire, &bytes, 1, a->sent);
}

/* Return the sum of a recoding's wires, times its factor. */
static float *dcommi_feedback_sum_there(dcommi_feedback_arrays *a)
{
    const dcommi_device_code *code = a->code;
    float *sum = dcommi_feedback_take(a);
    dcommi_feedback_decode(a, code->src, code->len, code->n, sum);
    if (a->status >= 0) {
        a->status =
            dcommi_device_scale(a->d, sum, sum, code->count, DCOMM_F32, (double)code->factor);
    }
    return sum;
}

/* Find the basis of the step's range, and bring it to the device. */
static dcomm_status dcommi_feedback_basis_there(const dcommi_feedback_arrays *a,
                                                dcommi_feedback_basis **basis_p)
{
    dcomm_feedback *fb = a->job->fb;
    dcommi_feedback_basis *basis;
    DCOMMI_TRY(
        dcommi_feedback_basis_of(fb, a->job->first, a->code->count, a->job->owner, &basis));
    if (basis->numbers.place != fb->worker.place) {
        dcommi_feedback_store there;
        DCOMMI_TRY(dcommi_feedback_store_send(fb, &basis->numbers, fb->worker.place, &there));
        dcommi_feedback_store_free(&basis->numbers);
        basis->numbers = there;
        DCOMMI_TRY(dcommi_feedback_before(fb, a->d));
    }
    dcommi_feedback_basis_used(fb, basis);
    *basis_p = basis;
    return DCOMM_OK;
}

static void dcommi_feedback_matrix(dcommi_feedback_arrays *a, dcommi_device_matrix *m,
                                   int kind)
{
    m->kind = kind;
    DCOMMI_THEN(a->status, a->d->call->matrix(a->d, m));
}

/* Encode by powersgd's products from the remembered Q, as an encoding in host memory does. */
static void dcommi_feedback_products_there(dcommi_feedback_arrays *a, const float *x,
                                           const float *residual, float *next,
                                           dcomm_cuda_ledger *ledger)
{
    const dcommi_device_code *code = a->code;
    const dcommi_matrix shape = dcommi_powersgd_shape(code->codec, code->count);
    const size_t q_bytes = 4 * dcommi_powersgd_q_count(&shape);
    dcommi_feedback_basis *basis = NULL;
    const float *e = x != NULL ? x : dcommi_feedback_sum_there(a);
    if (residual != NULL) {
        dcommi_feedback_do(a, DCOMM_CUDA_FEEDBACK_ADD, next, e, 0, residual);
    }
    dcommi_device_matrix m = {.shape = {.count = shape.count,
                                        .rows = shape.rows,
                                        .cols = shape.cols,
                                        .rank = shape.rank},
                              .key = code->key,
                              .x = residual != NULL ? next : e,
                              .p = code->dst};
    m.q = m.p + dcommi_powersgd_p_count(&shape);
    DCOMMI_THEN(a->status, dcommi_feedback_basis_there(a, &basis));
    DCOMMI_THEN(a->status,
                dcommi_device_copy(a->d, DCOMMI_QUEUE_IN, m.q, basis->numbers.now, q_bytes));
    for (int turn = 0; turn < (int)code->codec->value[DCOMMI_POWERSGD_TURNS]; turn++) {
        dcommi_feedback_matrix(a, &m, DCOMMI_MATRIX_START);
        m.report = residual == NULL && turn == 0 ? code->report : NULL;
        dcommi_feedback_matrix(a, &m, DCOMMI_MATRIX_P);
        dcommi_feedback_matrix(a, &m, DCOMMI_MATRIX_ORTHONORMAL);
        m.report = code->report;
        dcommi_feedback_matrix(a, &m, DCOMMI_MATRIX_Q);
    }
    DCOMMI_THEN(a->status,
                dcommi_device_copy(a->d, DCOMMI_QUEUE_IN, basis->numbers.next, m.q, q_bytes));
    if (residual != NULL) {
        m.to = next;
        m.how = -1;
        m.x = x;
        m.ledger = x != NULL ? ledger : NULL;
        dcommi_feedback_matrix(a, &m, DCOMMI_MATRIX_PRODUCT);
    }
    if (x == NULL && ledger != NULL) { /* its input is not available */
        dcommi_feedback_see(a);
        dcommi_feedback_compare(a, ledger, NULL, a->sent, next);
    }
}

/* Encode `x`, or recode the wires if `x` is NULL. */
static void dcommi_feedback_encode_there(dcommi_feedback_arrays *a, const float *x,
                                         const float *residual, float *next,
                                         dcomm_cuda_ledger *ledger)
{
    if (dcommi_feedback_remembers(a->job->fb, a->code->count)) {
        dcommi_feedback_products_there(a, x, residual, next, ledger);
        return;
    }
    const void *const src = x;
    dcommi_device_code code = *a->code;
    code.kind = x != NULL ? DCOMM_STEP_ENCODE : DCOMM_STEP_RECODE;
    code.src = x != NULL ? &src : code.src;
    code.n = x != NULL ? 1 : code.n;
    code.residual = residual;
    code.next = next;
    code.ledger = ledger;
    DCOMMI_THEN(a->status, dcommi_feedback_keep_room(a->job, a->d, &code));
    DCOMMI_THEN(a->status, a->d->call->code(a->d, &code));
}

/* ---- one step ---- */

/* Compute the factor that clips the step's gradient. This encoding is the step's first. */
static void dcommi_feedback_clip_there(dcommi_feedback_arrays *a)
{
    dcomm_feedback *fb = a->job->fb;
    if (a->status >= 0 && fb->clip_there == NULL) {
        void *memory = NULL;
        a->status = dcommi_feedback_side_make(fb->worker.place, sizeof *fb->clip_there, &memory);
        fb->clip_there = memory;
        DCOMMI_THEN(a->status, dcommi_feedback_before(fb, a->d));
    }
    if (a->status >= 0) {
        a->status = a->d->call->clip(a->d, fb->clip_there, fb->now.x, fb->now.count,
                                     dcommi_feedback_most(fb));
        fb->clip_known = true;
    }
}

/* Compute what DGC encodes: u = m u + clip g. */
static void dcommi_feedback_momentum_there(dcommi_feedback_arrays *a)
{
    const dcomm_feedback *fb = a->job->fb;
    const dcommi_feedback_store *v = &fb->velocity;
    const float m = fb->opts.momentum < 0 ? 0 : (float)fb->opts.momentum;
    const float *before = dcommi_feedback_wide(a, v, v->now, a->at);
    a->velocity = v->bf16 ? dcommi_feedback_take(a) : dcommi_feedback_at(v, v->next, a->at);
    a->x = a->velocity;
    if (!(dcommi_feedback_most(fb) > 0)) {
        dcommi_feedback_do(a, DCOMM_CUDA_FEEDBACK_MOMENTUM, a->velocity, a->gradient, m, before);
        return;
    }
    if (!fb->clip_known) {
        dcommi_feedback_clip_there(a);
    }
    DCOMMI_THEN(a->status, a->d->call->clipped(a->d, a->velocity, a->gradient, fb->clip_there, m,
                                               before, a->code->count));
}

/* Find the arrays of a step. */
static void dcommi_feedback_find(dcommi_feedback_arrays *a)
{
    const dcommi_feedback_job *job = a->job;
    if (!job->owner) {
        a->x = a->gradient = a->code->src[0];
    }
    if (job->raises) {
        float *zeros = dcommi_feedback_take(a);
        DCOMMI_THEN(a->status, a->d->call->zero(a->d->number, a->d->stream[DCOMMI_QUEUE_IN], zeros,
                                                a->code->count * sizeof *zeros));
        a->held = zeros;
        a->next = dcommi_feedback_take(a);
        return;
    }
    const dcommi_feedback_store *s = job->owner ? &job->fb->owner : &job->fb->worker;
    a->store = s;
    a->at = job->owner ? job->first - job->fb->own_first : job->first;
    a->held = dcommi_feedback_wide(a, s, s->now, a->at);
    a->next = s->bf16 ? dcommi_feedback_take(a) : dcommi_feedback_at(s, s->next, a->at);
    if (!job->owner && job->fb->opts.variant == DCOMM_FEEDBACK_DGC) {
        dcommi_feedback_momentum_there(a);
    }
}

/* Encode in one pass of the codec, as dcommi_feedback_fused does. The codec's ledger is of its
 * input. With DGC that is not the gradient, so compare afterwards. */
static void dcommi_feedback_fused_there(dcommi_feedback_arrays *a)
{
    const bool dgc = a->velocity != NULL;
    dcommi_feedback_encode_there(a, a->x, a->held, a->next, dgc ? NULL : a->books.ledger);
    if (dgc) {
        dcommi_feedback_see(a);
        dcommi_feedback_compare(a, a->books.ledger, a->gradient, a->sent, a->next);
    }
    if (a->store != NULL) {
        dcommi_feedback_round(a, a->store, a->at, a->next);
    }
}

/* Update the store after `sent` has gone out of `e`, and the ledger's sums. `e` may be `next`. */
static void dcommi_feedback_settle_there(dcommi_feedback_arrays *a, const float *e, bool estimates)
{
    dcommi_feedback_do(a, estimates ? DCOMM_CUDA_FEEDBACK_LEARN : DCOMM_CUDA_FEEDBACK_LEFT, a->next,
                       estimates ? a->held : e, 0, a->sent);
    if (a->store != NULL) {
        dcommi_feedback_round(a, a->store, a->at, a->next);
    }
    dcommi_feedback_compare(a, a->books.ledger, a->gradient, estimates ? a->next : a->sent,
                            estimates ? NULL : a->next);
    if (estimates && a->books.ledger != NULL) { /* what the estimate lacks is held back */
        float *lacks = dcommi_feedback_take(a);
        dcommi_feedback_do(a, DCOMM_CUDA_FEEDBACK_MISSING, lacks, a->gradient, 0, a->next);
        dcommi_feedback_compare(a, a->books.ledger, NULL, a->sent, lacks);
    }
}

/* Encode in separate passes, as dcommi_feedback_apart does: for a scaled codec, and for EF21. */
static void dcommi_feedback_apart_there(dcommi_feedback_arrays *a)
{
    const dcommi_device_code *code = a->code;
    const float factor = (float)a->job->fb->factor;
    const bool estimates = !a->job->owner && a->job->fb->opts.variant == DCOMM_FEEDBACK_EF21;
    float *e = dcommi_feedback_take(a), *scaled = factor != 1 ? dcommi_feedback_take(a) : e;
    if (a->job->owner) {
        a->x = dcommi_feedback_sum_there(a);
    }
    dcommi_feedback_do(a, estimates ? DCOMM_CUDA_FEEDBACK_LACK : DCOMM_CUDA_FEEDBACK_ADD, e, a->x,
                       0, a->held);
    if (a->status >= 0 && factor != 1) {
        a->status =
            dcommi_device_scale(a->d, scaled, e, code->count, DCOMM_F32, a->job->fb->factor);
    }
    dcommi_feedback_encode_there(a, scaled, NULL, NULL, NULL);
    dcommi_feedback_see(a);
    dcommi_feedback_settle_there(a, e, estimates);
}

/* Add the loss of an owner that has no residual of its own to the worker's residual. */
static void dcommi_feedback_raise_there(dcommi_feedback_arrays *a, uint32_t divisor)
{
    const dcommi_feedback_store *w = &a->job->fb->worker;
    float *raised = dcommi_feedback_wide(a, w, w->next, a->job->first);
    dcommi_feedback_compare(a, a->books.before, raised, raised, NULL);
    DCOMMI_THEN(a->status, a->d->call->add(a->d->number, a->d->stream[DCOMMI_QUEUE_IN], raised,
                                           (float)divisor, a->next, a->code->count));
    dcommi_feedback_round(a, w, a->job->first, raised);
    dcommi_feedback_compare(a, a->books.after, raised, raised, NULL);
}

/* Put an encoding or a recoding on the queue. */
static dcomm_status dcommi_feedback_code(dcommi_device_handle *d, const dcommi_device_code *code,
                                         const dcommi_feedback_job *job, uint32_t divisor,
                                         const dcommi_feedback_books *books)
{
    dcommi_feedback_arrays a = {.d = d, .code = code, .job = job, .books = *books};
    const dcomm_feedback *fb = job->fb;
    if (code->count == 0) {
        return d->call->code(d, code);
    }
    dcommi_feedback_find(&a);
    if (fb->factor != 1 || (fb->opts.variant == DCOMM_FEEDBACK_EF21 && !job->owner)) {
        dcommi_feedback_apart_there(&a);
    } else {
        dcommi_feedback_fused_there(&a);
    }
    if (a.velocity != NULL) { /* forget the momentum of what was sent */
        dcommi_feedback_do(&a, DCOMM_CUDA_FEEDBACK_FORGET, a.velocity, a.velocity, 0, a.sent);
        dcommi_feedback_round(&a, &fb->velocity, a.at, a.velocity);
    }
    if (job->raises) {
        dcommi_feedback_raise_there(&a, divisor);
    }
    dcommi_feedback_drop(&a);
    return a.status;
}

/* Turn EF21's decoded differences into gradients. */
static dcomm_status dcommi_feedback_finish_there(dcommi_device_handle *d,
                                                 const dcommi_device_code *code,
                                                 const dcommi_feedback_job *job)
{
    if (code->count == 0) {
        return DCOMM_OK;
    }
    DCOMMI_TRY(d->call->feedback(d->number, d->stream[DCOMMI_QUEUE_IN], DCOMM_CUDA_FEEDBACK_FINISH,
                                 code->dst, job->learned, 0, code->dst, code->count, NULL));
    return dcommi_device_copy(d, DCOMMI_QUEUE_IN, job->learns, code->dst,
                              code->count * sizeof(float));
}

#endif
