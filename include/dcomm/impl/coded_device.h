/* coded_device.h - the codec's steps of a run whose operands lie on a device: the kernels of
 * cuda.h, so that only encodings leave it. What kernels find in the data comes back in a report. */
#ifndef DCOMMI_CODED_DEVICE_H
#define DCOMMI_CODED_DEVICE_H

#include "coded.h"
#include "steps_device.h"

/* Where in a slot a report comes back; before it lies the empty one. */
#define DCOMMI_REPORT_AT 64

/* Whether a compressed call can run on a device. All ranks whose buffers lie on one say the same.
 */
static dcomm_status dcommi_coded_device_check(const dcommi_shape *s, const dcomm_coll_opts *opts)
{
    const dcomm_codec *codec = dcommi_coded_codec_of(opts);
    const char *name = dcomm_coll_name(s->coll), *what = NULL;
    dcomm_codec_layout dense;
    dcomm_sparse_layout sparse;
    if (s->apart) {
        what = "compresses f32 sums and averages alone";
    } else if (opts->feedback != NULL) {
        what = "has no error feedback";
    } else if (opts->codec_ledger != NULL) {
        what = "keeps no ledger";
    } else if (dcomm_codec_get_layout(codec, &dense) < 0 &&
               dcomm_codec_get_sparse_layout(codec, s->count, &sparse) < 0) {
        what = "has no kernels for it";
    }
    return what == NULL ? DCOMM_OK
                        : dcommi_fail(DCOMM_ERR_UNSUPPORTED, "%s with codec %s: device memory %s",
                                      name, dcomm_codec_spec(codec), what);
}

/* The same of the plan that was chosen. */
static dcomm_status dcommi_coded_device_plan(const dcomm_plan *plan, const char *algo)
{
    const dcomm_plan_codec *codec = plan->codec;
    for (uint32_t i = 0; i < plan->nsubs && codec == NULL; i++) {
        codec = plan->subs[i]->codec;
    }
    return codec == &dcommi_coded_codec && !plan->codec_linear
               ? DCOMM_OK
               : dcommi_fail(
                     DCOMM_ERR_UNSUPPORTED,
                     "all-reduce by %s: there are no kernels for what it does with encodings; "
                     "coded_allgather and coded_two_shot work on device memory",
                     algo);
}

/* A step of the codec's: it waits for a slot, and then is on the device's queue. */
typedef struct dcommi_code_job {
    dcommi_lane *lane;
    int32_t word;
    dcomm_codec_place place;
    dcommi_device_code code;
    size_t n;
    const void *src[]; /* n of them, and as many lengths */
} dcommi_code_job;

static void dcommi_code_end(dcommi_code_job *job, dcommi_slot *slot, dcomm_status status)
{
    dcommi_lane *lane = job->lane;
    dcommi_run *run = lane->frame->run;
    dcomm_cuda_report found;
    dcomm_codec_report report = {0};
    memcpy(&found, slot->memory + DCOMMI_REPORT_AT, sizeof found);
    dcommi_slot_give(slot, DCOMMI_QUEUE_IN);
    if (status >= 0 && run->active) {
        dcommi_coded *c = run->coded;
        bool encodes = job->code.kind == DCOMM_STEP_ENCODE || job->code.kind == DCOMM_STEP_RECODE;
        status = dcomm_cuda_report_check(c->codec, job->code.count, &found, &report);
        if (status < 0) {
            dcommi_step_error(lane, status, "%s", dcommi_message);
        } else {
            if (encodes) {
                dcommi_coded_tell(c, &job->place, &report);
            }
            if (encodes && job->word >= 0) {
                lane->frame->words[job->word] = report.bytes;
            }
            dcommi_run_event(run);
            dcommi_lane_moved(lane, false);
        }
    }
    dcommi_free(job);
}

static void dcommi_code_done(dcommi_job *job, dcomm_status status)
{
    dcommi_slot *slot = (dcommi_slot *)job;
    dcommi_code_end(slot->user, slot, status);
}

/* On queue IN: an empty report, the kernels, and the report back to the slot. */
static dcomm_status dcommi_code_launch(dcommi_code_job *job, dcommi_slot *slot)
{
    dcommi_device_handle *d = &slot->device->handle;
    void *report = NULL;
    memset(slot->memory, 0, DCOMMI_REPORT_AT);
    DCOMMI_TRY(d->call->alloc(d, sizeof(dcomm_cuda_report), &report));
    dcomm_status status =
        d->call->copy(d, DCOMMI_QUEUE_IN, report, slot->memory, sizeof(dcomm_cuda_report));
    if (status >= 0) {
        job->code.report = report;
        status = d->call->code(d, &job->code);
    }
    if (status >= 0 && job->place.divisor > 1 && job->code.kind != DCOMM_STEP_RECODE) {
        const void *sum = job->code.dst;
        status = d->call->reduce(d, job->code.dst, &sum, 1, job->code.count, DCOMM_F32, DCOMM_AVG,
                                 job->place.divisor);
    }
    if (status >= 0) {
        status = d->call->copy(d, DCOMMI_QUEUE_IN, slot->memory + DCOMMI_REPORT_AT, report,
                               sizeof(dcomm_cuda_report));
    }
    d->call->release(d, report);
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

static dcomm_status dcommi_coded_on_device(dcommi_lane *lane, const dcomm_codec_place *place,
                                           const dcommi_device_code *code, int32_t word)
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
    job->code.key = dcommi_coded_key(run->coded, place);
    job->code.factor = 1.0f / (float)place->divisor;
    memcpy(job->src, code->src, code->n * sizeof *job->src);
    job->code.src = job->src;
    job->code.len = memcpy(job->src + code->n, code->len, code->n * sizeof(size_t));
    dcommi_run_keep(run);
    dcomm_status status = dcommi_slot_ask(run->device, DCOMMI_QUEUE_IN, dcommi_code_go, job);
    if (status < 0) {
        dcommi_run_let_go(run);
        dcommi_free(job);
        return status;
    }
    return DCOMM_IN_PROGRESS;
}

#endif
