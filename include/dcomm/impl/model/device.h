/* device.h - the costs of device memory: the tuning's numbers or, where it has none, assumed ones.
 * They include the way through pinned host memory. */
#ifndef DCOMMI_MODEL_DEVICE_H
#define DCOMMI_MODEL_DEVICE_H

#include "../../tune.h"
#include "../plan/build.h"

/* Assumed, not measured. Times in ps.
 * STEP: from the launch of a copy or kernel until its event is seen. STAGE: two steps on the way
 * to a peer's device. UCX: one step, before UCX may store. OWN, PEER: a MiB within a device (1
 * TB/s), and from the device of another rank (a fifth of that). */
#define DCOMMI_DEVICE_STEP_PS 10000000
#define DCOMMI_DEVICE_STAGE_PS (2 * DCOMMI_DEVICE_STEP_PS)
#define DCOMMI_DEVICE_UCX_PS DCOMMI_DEVICE_STEP_PS
#define DCOMMI_DEVICE_OWN_PS (1 << 20)
#define DCOMMI_DEVICE_PEER_PS (5 << 20)

static bool dcommi_memory_of_device(enum dcommi_memory memory)
{
    return memory == DCOMMI_MEMORY_DEVICE || memory == DCOMMI_MEMORY_OPEN ||
           memory == DCOMMI_MEMORY_UCX;
}

/* Return true if UCX moves this kind of memory between hosts. */
static bool dcommi_memory_by_ucx(const dcomm_tuning *t, enum dcommi_memory memory)
{
    return memory == DCOMMI_MEMORY_UCX || (memory == DCOMMI_MEMORY_OPEN && t->device_ucx != 0);
}

/* Return true if prices for this kind of memory depend on an assumed number. */
static bool dcommi_device_assumed(const dcomm_tuning *t, enum dcommi_memory memory)
{
    bool own = t->device_stage_ps == 0 || t->device_copy.n == 0 || t->device_fold.n == 0;
    bool peers = t->device_read.n == 0 || t->device_reduce.n == 0;
    bool ucx = t->device_ucx_ps == 0 && dcommi_memory_by_ucx(t, memory);
    return dcommi_memory_of_device(memory) &&
           (own || ucx || (memory == DCOMMI_MEMORY_OPEN && peers));
}

static void dcommi_device_assume(dcomm_curve *curve, int64_t mib_ps)
{
    if (curve->n == 0) {
        *curve = (dcomm_curve){.n = 2,
                               .bytes = {0, 1 << 20},
                               .ps = {DCOMMI_DEVICE_STEP_PS, DCOMMI_DEVICE_STEP_PS + mib_ps}};
    }
}

static void dcommi_curve_later(dcomm_curve *curve, int64_t ps)
{
    for (int64_t i = 0; i < curve->n && i < DCOMM_CURVE_POINTS; i++) {
        curve->ps[i] += ps;
    }
}

/* Return the tuning with the costs of device memory, all filled in. The `message` curves of links
 * stay: bytes are copied out of and into devices while the network carries other bytes. */
static dcomm_tuning dcommi_tuning_on_device(const dcomm_tuning *t)
{
    dcomm_tuning there = *t;
    there.device_stage_ps =
        t->device_stage_ps > 0 ? t->device_stage_ps : (int64_t)DCOMMI_DEVICE_STAGE_PS;
    there.device_ucx_ps = t->device_ucx_ps > 0 ? t->device_ucx_ps : (int64_t)DCOMMI_DEVICE_UCX_PS;
    dcommi_device_assume(&there.device_copy, DCOMMI_DEVICE_OWN_PS);
    dcommi_device_assume(&there.device_fold, DCOMMI_DEVICE_OWN_PS);
    dcommi_device_assume(&there.device_read, DCOMMI_DEVICE_PEER_PS);
    dcommi_device_assume(&there.device_reduce, DCOMMI_DEVICE_PEER_PS);
    there.copy = there.device_copy;
    there.fold = there.device_fold;
    for (int k = 0; k < DCOMM_LINK_COUNT; k++) {
        dcomm_link *link = &there.link[k];
        link->eager_bytes = link->eager_bytes > 0
                                ? dcommi_min64(link->eager_bytes, DCOMMI_DEVICE_EAGER)
                                : DCOMMI_DEVICE_EAGER;
        link->fold = there.device_fold;
        dcommi_curve_later(&link->read, there.device_stage_ps);
        dcommi_curve_later(&link->reduce, there.device_stage_ps);
    }
    return there;
}

#endif
