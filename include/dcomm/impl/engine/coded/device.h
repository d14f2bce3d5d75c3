/* device.h - the codec's steps of a run whose operands lie on a device, by the kernels of cuda.h.
 * Only encodings leave the device. The kernels' findings come back in a report, and in a ledger if
 * one is kept. */
#ifndef DCOMMI_CODED_DEVICE_H
#define DCOMMI_CODED_DEVICE_H

#include "linear_device.h"
#include "sparse_device.h"
#include "../device/steps_device.h"

/* The findings of a step's kernels. */
typedef struct dcommi_code_found {
    dcomm_cuda_report report;
    dcomm_cuda_ledger ledger;
    dcomm_cuda_ledger before, after; /* squares of a residual before and after it is raised */
    dcomm_cuda_sight factors;        /* powersgd's P and Q, when they are decoded */
} dcommi_code_found;

/* Offset in a slot (bytes) where the findings come back. The empty findings lie before it. */
#define DCOMMI_FOUND_AT 512
_Static_assert(sizeof(dcommi_code_found) <= DCOMMI_FOUND_AT, "there is room");

static bool dcommi_spread_plan(const dcomm_plan *plan)
{
    return plan->codec == &dcommi_spread_codec;
}

static bool dcommi_spread_by_device(const dcommi_frame *frame, const dcomm_step *step)
{
    return (step->kind == DCOMM_STEP_ENCODE && step->slot == DCOMMI_SPREAD_SELECT &&
            dcommi_on_device(frame, frame->scope.plan->operands[step->src].space)) ||
           (step->kind == DCOMM_STEP_DECODE && step->slot == DCOMMI_SPREAD_RESULT &&
            dcommi_on_device(frame, step->dst.space));
}

static void dcommi_coded_left(const dcommi_coded *c)
{
    if (c->device != NULL && c->feedback->worker.place != NULL) {
        (void)dcommi_feedback_behind(c->feedback, c->device);
    }
}

/* A codec's step. It waits for a slot, and then is on the device's queue. */
typedef struct dcommi_code_job {
    dcommi_lane *lane;
    int32_t word;
    dcomm_codec_place place;
    dcommi_device_code code;
    dcommi_feedback_job feedback;
    uint8_t *home; /* coded_sparse: host memory for the wire that the device encodes */
    void *there;   /* coded_sparse: device memory of that wire, or of all pairs */
    bool spreads;
    size_t n;
    const void *src[]; /* n of them, then as many lengths */
} dcommi_code_job;

/* Report an encoding as the host's codec would. */
static void dcommi_code_tell(dcommi_code_job *job, const dcommi_code_found *found,
                             const dcomm_codec_report *report)
{
    dcommi_coded *c = job->lane->frame->run->coded;
    dcomm_ledger *ledger = dcommi_coded_ledger(c);
    dcomm_codec_report told = *report;
    const size_t count =
        dcommi_linear_powersgd(c) ? dcommi_linear_share(c, &job->place, &told) : job->code.count;
    told.bytes = job->spreads ? 0 : told.bytes; /* what is sent of it is told apart */
    dcommi_coded_tell(c, &job->place, &told);
    if (ledger == NULL) {
        return;
    }
    dcomm_cuda_ledger_add(ledger, count, &found->ledger, &told);
    if (c->feedback != NULL && !job->feedback.raises) {
        c->feedback->held += found->ledger.sums[DCOMMI_LEDGER_RESIDUAL];
        dcommi_feedback_raised(c->feedback);
    }
}

/* Update the norm of what is held back, after a residual was raised. */
static void dcommi_code_raised(const dcommi_code_job *job, const dcommi_code_found *found)
{
    dcommi_coded *c = job->lane->frame->run->coded;
    if (c->feedback != NULL) {
        c->feedback->held +=
            found->after.sums[DCOMMI_LEDGER_XX] - found->before.sums[DCOMMI_LEDGER_XX];
        dcommi_feedback_raised(c->feedback);
    }
}

/* Free a step. Device memory of coded_sparse is released in the order of queue IN. */
static void dcommi_code_free(dcommi_code_job *job, dcommi_device_handle *d)
{
    if (job->there != NULL) {
        dcommi_device_release(d, job->there);
    }
    dcommi_free(job);
}

/* Take the verdict of a codec's step. Nobody waits for the status of a call in the order of a
 * stream, so its verdict poisons the communicator. */
static dcomm_status dcommi_coded_verdict(dcommi_lane *lane)
{
    dcommi_run *run = lane->frame->run;
    if (DCOMMI_LIKELY(run->coded == NULL || run->coded->found == DCOMM_OK)) {
        return DCOMM_OK;
    }
    if (run->gate.stream != NULL && run->blocking) {
        dcommi_step_error(lane, run->coded->found, "%s", run->coded->said);
        return run->coded->found;
    }
    dcommi_verdict_take(run, run->coded->found, run->comm->rank);
    return DCOMM_OK;
}

/* Read the selected wire, which is in host memory now, and let the lane go on. */
static void dcommi_code_home(void *user, bool good)
{
    dcommi_code_job *job = user;
    dcommi_lane *lane = job->lane;
    dcommi_run *run = lane->frame->run;
    dcommi_device_handle *d = &run->device->handle;
    if (good) {
        dcomm_status status = dcommi_spread_selected(run->coded, job->home, job->code.dst_len);
        if (status < 0) {
            dcommi_step_error(lane, status, "%s", dcommi_message);
        } else {
            dcommi_run_event(run);
            dcommi_lane_moved(lane, false);
        }
    }
    dcommi_code_free(job, d);
}

/* Copy the selected wire to host memory. */
static void dcommi_code_bring(dcommi_code_job *job, size_t bytes)
{
    const dcommi_across copy = {.run = job->lane->frame->run,
                                .then = dcommi_code_home,
                                .user = job,
                                .queue = DCOMMI_QUEUE_OUT,
                                .dst = job->home,
                                .src = job->there,
                                .len = bytes};
    job->code.dst_len = bytes;
    if (dcommi_across_start(&copy) < 0) {
        dcommi_step_error(job->lane, DCOMM_ERR_NO_MEMORY, "%s", dcommi_message);
        dcommi_code_free(job, &job->lane->frame->run->device->handle);
    }
}

static void dcommi_code_end(dcommi_code_job *job, dcommi_slot *slot, dcomm_status status)
{
    dcommi_lane *lane = job->lane;
    dcommi_device_handle *d = &slot->device->handle;
    dcommi_run *run = lane->frame->run;
    dcommi_code_found found;
    dcomm_codec_report report = {0};
    memcpy(&found, slot->memory + DCOMMI_FOUND_AT, sizeof found);
    dcommi_slot_give(slot, DCOMMI_QUEUE_IN);
    if (status >= 0 && run->active) {
        bool encodes = job->code.kind == DCOMM_STEP_ENCODE || job->code.kind == DCOMM_STEP_RECODE;
        if (!encodes && dcommi_linear_powersgd(run->coded) &&
            run->coded->codec->nonfinite != DCOMMI_NONFINITE_PASS) {
            found.report.beyond += found.factors.index != UINT64_MAX;
        }
        if (job->code.kind == DCOMM_STEP_RECODE &&
            run->coded->codec->nonfinite == DCOMMI_NONFINITE_FAIL) {
            found.report.beyond += found.report.nonfinite; /* feedback's kernels know no wires */
        }
        status =
            dcomm_cuda_report_check(run->coded->codec, job->code.count, &found.report, &report);
        if (encodes && (status >= 0 || report.nonfinite > 0)) {
            dcommi_code_tell(job, &found, &report);
        }
        if (status >= 0 && (job->feedback.raises || (job->spreads && !encodes))) {
            dcommi_code_raised(job, &found);
        }
        status = dcommi_coded_judge(run->coded, status, &report);
        if (status < 0) {
            dcommi_step_error(lane, status, "%s", dcommi_message);
        } else if (dcommi_coded_verdict(lane) >= 0) {
            if (encodes && job->word >= 0) {
                lane->frame->words[job->word] = report.bytes;
            }
            if (job->home != NULL) {
                dcommi_code_bring(job, report.bytes);
                return;
            }
            dcommi_run_event(run);
            dcommi_lane_moved(lane, false);
        }
    }
    dcommi_code_free(job, d);
}

static void dcommi_code_done(dcommi_job *job, dcomm_status status)
{
    dcommi_slot *slot = (dcommi_slot *)job;
    dcommi_code_end(slot->user, slot, status);
}

/* Put a step's kernels on queue IN. */
static dcomm_status dcommi_code_run(dcommi_code_job *job, dcommi_device_handle *d,
                                    dcommi_code_found *there)
{
    const dcommi_coded *c = job->lane->frame->run->coded;
    const bool counts = dcommi_coded_ledger(c) != NULL, products = dcommi_linear_powersgd(c);
    const bool finishes = job->feedback.learns != NULL;
    dcommi_device_code *code = &job->code;
    code->report = &there->report;
    if (job->home != NULL) {
        DCOMMI_TRY(dcommi_device_alloc(d, code->dst_len, &job->there));
        code->dst = job->there;
    } else if (job->spreads) {
        DCOMMI_TRY(dcommi_spread_write_there(d, c, code, job->there, counts ? &there->before : NULL,
                                             counts ? &there->after : NULL));
        return finishes ? dcommi_feedback_finish_there(d, code, &job->feedback) : DCOMM_OK;
    }
    if (products && code->kind == DCOMM_STEP_ENCODE) {
        return dcommi_linear_encode_there(d, c, code, &job->feedback, job->place.round,
                                          counts ? &there->ledger : NULL);
    }
    if (job->feedback.fb != NULL && !finishes) {
        const dcommi_feedback_books books = {.ledger = counts ? &there->ledger : NULL,
                                             .before = counts ? &there->before : NULL,
                                             .after = counts ? &there->after : NULL};
        return dcommi_feedback_code(d, code, &job->feedback, job->place.divisor, &books);
    }
    code->ledger = counts ? &there->ledger : NULL;
    DCOMMI_TRY(products ? dcommi_linear_decode_there(d, c, code, &there->factors)
                        : d->call->code(d, code));
    if (job->place.divisor > 1 && code->kind != DCOMM_STEP_RECODE) {
        const void *sum = code->dst;
        DCOMMI_TRY(d->call->reduce(d, code->dst, &sum, 1, code->count, DCOMM_F32, DCOMM_AVG,
                                   job->place.divisor));
    }
    return finishes ? dcommi_feedback_finish_there(d, code, &job->feedback) : DCOMM_OK;
}

/* Launch a step's kernels. Their findings begin empty, and are copied back to the slot. */
static dcomm_status dcommi_code_launch(dcommi_code_job *job, dcommi_slot *slot)
{
    dcommi_device_handle *d = &slot->device->handle;
    void *there = NULL;
    memset(slot->memory, 0, sizeof(dcommi_code_found));
    DCOMMI_TRY(dcommi_device_alloc(d, sizeof(dcommi_code_found), &there));
    dcomm_status status =
        dcommi_device_copy(d, DCOMMI_QUEUE_IN, there, slot->memory, sizeof(dcommi_code_found));
    DCOMMI_THEN(status, dcommi_code_run(job, d, there));
    DCOMMI_THEN(status, dcommi_device_copy(d, DCOMMI_QUEUE_IN, slot->memory + DCOMMI_FOUND_AT,
                                           there, sizeof(dcommi_code_found)));
    dcommi_device_release(d, there);
    return status;
}

static void dcommi_code_go(dcommi_slot *slot, void *user)
{
    dcommi_code_job *job = user;
    dcommi_run *run = job->lane->frame->run;
    dcomm_status status = DCOMM_ERR_ABORTED;
    slot->user = job;
    if (run->active) {
        status = dcommi_code_launch(job, slot);
        if (status >= 0) {
            status =
                dcommi_job_start(slot->device, DCOMMI_QUEUE_IN, &slot->job, run, dcommi_code_done);
        }
        if (status < 0) {
            dcommi_step_error(job->lane, status, "%s", dcommi_message);
        }
    }
    if (status < 0) {
        dcommi_code_end(job, slot, status);
    }
    dcommi_run_let_go(run);
}

/* Ask for the slot that a step waits for. */
static dcomm_status dcommi_code_ask(dcommi_code_job *job)
{
    dcommi_run *run = job->lane->frame->run;
    dcommi_run_keep(run);
    dcomm_status status = dcommi_slot_ask(run->device, DCOMMI_QUEUE_IN, dcommi_code_go, job);
    if (status < 0) {
        dcommi_run_let_go(run);
        dcommi_code_free(job, &run->device->handle);
    }
    return status;
}

static dcomm_status dcommi_code_make(dcommi_lane *lane, const dcomm_codec_place *place,
                                     const dcommi_device_code *code, int32_t word,
                                     dcommi_code_job **job_p)
{
    dcommi_run *run = lane->frame->run;
    dcommi_code_job *job = dcommi_alloc(sizeof *job + code->n * (sizeof(void *) + sizeof(size_t)));
    if (job == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    job->lane = lane;
    job->word = word;
    job->place = *place;
    job->code = *code;
    job->code.codec = run->coded->codec;
    job->code.factor = 1.0f / (float)place->divisor;
    job->code.key = dcommi_coded_key(run->coded, place);
    job->spreads = dcommi_spread_plan(lane->frame->scope.plan);
    dcomm_status state = dcommi_linear_powersgd(run->coded)
                             ? dcommi_linear_step(run->coded, place, &job->code, &job->feedback)
                         : run->coded->feedback != NULL
                             ? dcommi_feedback_step(run->coded, place, &job->code, &job->feedback)
                             : DCOMM_OK;
    if (state < 0) {
        dcommi_free(job);
        return state;
    }
    if (code->n > 0) {
        memcpy(job->src, code->src, code->n * sizeof *job->src);
        job->code.src = job->src;
        job->code.len = memcpy(job->src + code->n, code->len, code->n * sizeof(size_t));
    }
    *job_p = job;
    return DCOMM_OK;
}

static dcomm_status dcommi_coded_on_device(dcommi_lane *lane, const dcomm_codec_place *place,
                                           const dcommi_device_code *code, int32_t word)
{
    dcommi_code_job *job;
    DCOMMI_TRY(dcommi_code_make(lane, place, code, word, &job));
    if (job->spreads) {
        dcomm_status status = dcommi_spread_begin(lane->frame->run->coded, code->count);
        if (status < 0) {
            dcommi_free(job);
            return status;
        }
        job->home = code->dst;
    }
    DCOMMI_TRY(dcommi_code_ask(job));
    return DCOMM_IN_PROGRESS;
}

/* Go on with a step whose pairs are on the device. */
static void dcommi_code_brought(void *user, bool good)
{
    dcommi_code_job *job = user;
    dcommi_lane *lane = job->lane;
    if (!good) {
        dcommi_code_free(job, &lane->frame->run->device->handle);
    } else if (dcommi_code_ask(job) < 0) {
        dcommi_step_error(lane, DCOMM_ERR_NO_MEMORY, "%s", dcommi_message);
    }
}

static dcomm_status dcommi_spread_result_on_device(dcommi_lane *lane,
                                                   const dcomm_codec_place *place,
                                                   const dcommi_device_code *code)
{
    dcommi_coded *c = lane->frame->run->coded;
    dcommi_device_handle *d = &lane->frame->run->device->handle;
    dcommi_code_job *job;
    DCOMMI_TRY(dcommi_spread_agree(c, place, code->src[0], code->len[0], code->dst));
    struct dcommi_spread *s = c->spread;
    if (place->first + 1 < s->nranks) {
        return DCOMM_OK;
    }
    DCOMMI_TRY(dcommi_spread_pack(s));
    const size_t bytes = dcommi_spread_pairs_bytes(s);
    const dcomm_codec_place all = {.round = place->round, .divisor = 1};
    const dcommi_device_code write = {.kind = code->kind, .count = s->count, .dst = s->out};
    DCOMMI_TRY(dcommi_code_make(lane, &all, &write, -1, &job));
    dcommi_across copy = {.run = lane->frame->run,
                          .then = dcommi_code_brought,
                          .user = job,
                          .queue = DCOMMI_QUEUE_IN,
                          .src = (const uint8_t *)s->keys,
                          .len = bytes};
    dcomm_status status = dcommi_device_alloc(d, bytes > 0 ? bytes : 8, &job->there);
    if (status >= 0) {
        copy.dst = job->there;
        status = dcommi_across_start(&copy);
    }
    if (status < 0) {
        dcommi_code_free(job, d);
        return status;
    }
    return DCOMM_IN_PROGRESS;
}

#endif
