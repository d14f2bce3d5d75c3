/* steps_device.h - steps whose operands are memory of the run's device. They are put on its queue,
 * and the lane goes on once they were seen to end. */
#ifndef DCOMMI_STEPS_DEVICE_H
#define DCOMMI_STEPS_DEVICE_H

#include "../step.h"
#include "copy_out.h"

/* A step on the device's queue. */
typedef struct dcommi_step_job {
    dcommi_job job; /* first */
    dcommi_lane *lane;
    bool async;
} dcommi_step_job;

static void dcommi_step_job_done(dcommi_job *job, dcomm_status status)
{
    dcommi_step_job *step = (dcommi_step_job *)job;
    dcommi_run *run = job->run;
    if (status >= 0 && run->active) {
        dcommi_run_event(run);
        dcommi_lane_moved(step->lane, step->async);
    }
    dcommi_free(step);
}

/* Let the lane's step wait for work that was just put on queue IN, with `status`. */
static enum dcommi_outcome dcommi_step_queued(dcommi_lane *lane, dcomm_status status, bool async)
{
    dcommi_run *run = lane->frame->run;
    dcommi_step_job *step = status >= 0 ? dcommi_alloc(sizeof *step) : NULL;
    if (status >= 0 && step == NULL) {
        status = DCOMM_ERR_NO_MEMORY;
    }
    if (status >= 0) {
        step->lane = lane;
        step->async = async;
        status =
            dcommi_job_start(run->device, DCOMMI_QUEUE_IN, &step->job, run, dcommi_step_job_done);
    }
    if (status < 0) {
        dcommi_free(step);
        return dcommi_step_error(lane, status, "%s", dcommi_message);
    }
    return dcommi_moving(lane, DCOMM_IN_PROGRESS, async);
}

/* Run a COPY between host memory and the run's device. */
static enum dcommi_outcome dcommi_copy_across(dcommi_lane *lane, uint8_t *dst, const uint8_t *src,
                                              size_t len, bool to_device, bool async)
{
    const dcommi_across copy = {.run = lane->frame->run,
                                .lane = lane,
                                .queue = to_device ? DCOMMI_QUEUE_IN : DCOMMI_QUEUE_OUT,
                                .dst = dst,
                                .src = src,
                                .len = len,
                                .async = async};
    if (dcommi_across_start(&copy) < 0) {
        return dcommi_step_error(lane, DCOMM_ERR_NO_MEMORY, "%s", dcommi_message);
    }
    return lane->frame->run->active ? dcommi_moving(lane, DCOMM_IN_PROGRESS, async) : DCOMMI_GONE;
}

/* Refuse a step with operands both on the device and in host memory. */
static enum dcommi_outcome dcommi_step_mixed(dcommi_lane *lane)
{
    return dcommi_step_error(lane, DCOMM_ERR_UNSUPPORTED,
                             "its operands lie on device %d and in host memory",
                             lane->frame->run->device->handle.number);
}

/* Return true if all sources of a step, except peers and messages, lie on the device or, without
 * `device`, in host memory. */
static bool dcommi_sources_on(const dcommi_frame *frame, const dcomm_step *step, bool device)
{
    for (uint32_t i = 0; i < step->nsrc; i++) {
        uint8_t space = frame->scope.plan->operands[step->src + i].space;
        if (space != DCOMM_SPACE_PEER && space != DCOMM_SPACE_MSG &&
            dcommi_on_device(frame, space) != device) {
            return false;
        }
    }
    return true;
}

/* Return true if kernels of this process may read device memory that a rank has exposed: a rank of
 * the same process and device shares our address space. */
static bool dcommi_reads_device_of(const dcommi_run *run, int rank, uint16_t device)
{
    const dcommi_remote *peer = dcommi_peer_of(run->comm, rank);
    return device == 1 + run->device->handle.number && peer->same_host && peer->pid == getpid() &&
           peer->started != 0;
}

/* Find where the run's device reads device memory that a rank has exposed, if it can. */
static void dcommi_piece_on_device(const dcommi_run *run, dcommi_piece *piece,
                                   const dcommi_exposed *e, size_t len)
{
    if (dcommi_reads_device_of(run, piece->rank, e->device)) {
        piece->local = (const uint8_t *)(uintptr_t)piece->address;
    } else {
        piece->local = dcommi_resolve_peer_device(run, piece->rank, e->region, piece->address, len);
        piece->opened = piece->local != NULL;
    }
}

/* Run a COPY or REDUCE: on the device if it can read all sources now, else by messages. */
static enum dcommi_outcome dcommi_device_fold(dcommi_lane *lane, uint8_t *dst, dcommi_piece *pieces,
                                              size_t n, size_t len, bool fold, bool final,
                                              bool async)
{
    dcomm_comm *comm = lane->frame->run->comm;
    dcomm_context *context = comm->context;
    dcommi_device *device = lane->frame->run->device;
    if (!fold && dst == pieces[0].local) {
        return DCOMMI_NEXT;
    }
    bool here = true;
    for (size_t i = 0; i < n; i++) {
        here = here && pieces[i].local != NULL;
    }
    for (size_t i = 0; i < n && !here; i++) { /* opened: valid in this pass only */
        pieces[i].local = pieces[i].opened ? NULL : pieces[i].local;
    }
    if (!here) {
        const dcommi_target to = {.dst = dst};
        return dcommi_moving(
            lane,
            dcommi_pull_by_message(lane, device, NULL, &to, pieces, n, len, fold, final, async),
            async);
    }
    for (size_t i = 0; i < n; i++) {
        comm->stats.bytes_read += pieces[i].device ? len : 0;
        comm->stats.bytes_mapped += pieces[i].device ? len : 0;
    }
    for (size_t i = 0; i < n && fold; i++) {
        context->pointers[i] = pieces[i].local;
    }
    dcommi_device_handle *d = &device->handle;
    return dcommi_step_queued(
        lane,
        fold ? dcommi_fold_on_device(lane, dst, context->pointers, n, len, final)
             : dcommi_device_copy(d, DCOMMI_QUEUE_IN, dst, pieces[0].local, len),
        async);
}

/* Compute dst <- factor * src for integers by doublings and additions, from the highest bit on.
 * This is slow if `factor` has many bits, but exact, and such factors are rare. dst is not src. */
static dcomm_status dcommi_device_times(dcommi_device_handle *d, void *dst, const void *src,
                                        size_t count, dcomm_dtype dtype, uint64_t factor)
{
    const void *terms[] = {dst, dst, src};
    const size_t element = dcomm_dtype_size(dtype);
    int bit = (int)(8 * element) - 1;
    factor &= UINT64_MAX >> (63 - bit); /* products wrap around */
    if (factor == 0) {
        return dcommi_device_scale(d, dst, src, count, dtype, 0);
    }
    while ((factor >> bit & 1) == 0) {
        bit--;
    }
    dcomm_status status = dcommi_device_copy(d, DCOMMI_QUEUE_IN, dst, src, count * element);
    while (status >= 0 && bit-- > 0) {
        const size_t n = 2 + (factor >> bit & 1);
        status = d->call->reduce(d, dst, terms, n, count, dtype, DCOMM_SUM, 1);
    }
    return status;
}

/* Run a COMPUTE by the kernels that devices have; factors are words. */
static enum dcommi_outcome dcommi_device_compute(dcommi_lane *lane, dcomm_plan_kernel kernel,
                                                 uint8_t *dst, size_t len, const void *const *src,
                                                 const size_t *src_len, size_t nsrc)
{
    dcommi_device_handle *d = &lane->frame->run->device->handle;
    const dcomm_dtype dtype = (dcomm_dtype)(uintptr_t)lane->frame->scope.plan->kernel_user;
    const bool narrows = kernel == dcommi_kernel_narrow, widens = kernel == dcommi_kernel_widen;
    dcommi_factor factor = {1, 0};
    if (!narrows && !widens && kernel != dcommi_kernel_scale) {
        return dcommi_step_error(lane, DCOMM_ERR_UNSUPPORTED,
                                 "computes with a function of the host's on device %d", d->number);
    }
    const size_t element = dcomm_dtype_size(dtype),
                 count = len / (widens ? sizeof(float) : element);
    if (nsrc != (narrows ? 1 : 2) || src_len[0] != count * (narrows ? sizeof(float) : element) ||
        (!narrows && src_len[1] != (widens ? sizeof factor.value : sizeof factor))) {
        return dcommi_step_error(lane, DCOMM_ERR_PLAN, "computes %zu bytes of %zu", len,
                                 src_len[0]);
    }
    if (!narrows) {
        memcpy(&factor, src[1], src_len[1]);
    }
    dcomm_status status =
        narrows  ? d->call->from_f32(d, dst, src[0], count, dtype)
        : widens ? d->call->to_f32(d, (float *)(void *)dst, src[0], count, dtype, factor.value)
        : dcommi_factor_whole(&factor, dtype)
            ? dcommi_device_times(d, dst, src[0], count, dtype, factor.whole)
            : dcommi_device_scale(d, dst, src[0], count, dtype, factor.value);
    return dcommi_step_queued(lane, status, false);
}

#endif
