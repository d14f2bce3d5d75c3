/* engine.h - the engine's door: its types, and the functions by which its parts call each other in
 * both directions. A run drives lanes, and lanes start moves. A move that ends or fails calls back
 * into its lane and run. All other calls go to a part that is included. */
#ifndef DCOMMI_ENGINE_H
#define DCOMMI_ENGINE_H

#include "types.h"

/* ---- lanes (frames.h, lanes.h) ---- */

/* Put a lane on the ready queue, unless it is there or has ended. */
static void dcommi_lane_ready(dcommi_lane *lane);
/* Tell a lane that one of its moves is complete. `async`: only a fence waits for the move. */
static void dcommi_lane_moved(dcommi_lane *lane, bool async);
/* Add to a counter of a run, and wake the lanes that wait for it. */
static void dcommi_run_signal(dcommi_run *run, uint32_t counter, uint64_t value);

/* ---- runs (runs.h) ---- */

/* Note that something has happened for a run, so that it does not count as idle. */
static inline void dcommi_run_event(dcommi_run *run)
{
    run->events++;
}

/* Go on to the plan's next stage, or finish the run: all lanes of the current stage have ended. */
static void dcommi_stage_done(dcommi_run *run);
/* Take a run out of the engine with its status. Moves in the transport come back later. */
static void dcommi_run_finish(dcommi_run *run, dcomm_status status);
/* Release the device memory of a run that has ended, and let its stream go on. */
static void dcommi_run_off_device(dcommi_run *run);
/* Drop a reference; the last one returns the run to its communicator. */
static void dcommi_run_unref(dcommi_run *run);

/* ---- failures (failure.h, refusal.h, unsent.h) ---- */

/* Fail a communicator on all its ranks because of an error that this rank has found. */
static void DCOMMI_PRINTF(3, 4)
    dcommi_poison(dcomm_comm *comm, dcomm_status status, const char *format, ...);

/* Return false for an error, and fail the communicator with the message in dcommi_message. */
static inline bool dcommi_good(dcomm_comm *comm, dcomm_status status)
{
    if (DCOMMI_UNLIKELY(status < 0)) {
        dcommi_poison(comm, status, "%s", dcommi_message);
    }
    return status >= 0;
}

/* Return true if `memory` is not NULL; otherwise fail the communicator. */
static inline bool dcommi_have(dcomm_comm *comm, const void *memory)
{
    return dcommi_good(comm, memory != NULL ? DCOMM_OK : DCOMM_ERR_NO_MEMORY);
}
/* Fail all communicators with a peer that has ended. */
static void dcommi_peer_lost(dcomm_context *context, int peer, const char *why, bool proven);
/* Fail all communicators with a peer whose process has ended. */
static void dcommi_peer_ended(dcomm_context *context, int peer);
/* Handle a message whose signature is not the run's: query its sender, or report the mismatch. */
static void dcommi_suspect_mismatch(dcomm_comm *comm, dcommi_run *run, const dcommi_header *h,
                                    size_t len);
/* Handle a control message to a living peer that the transport had queued and could not send. It
 * fails the communicator, as a send that fails does. An agreement sends it again. */
static void dcommi_control_unsent(dcomm_context *context, int peer, int rank,
                                  const dcommi_header *h, dcomm_status status);
/* End a run that some rank has refused, once the transport holds none of its buffers. */
static void dcommi_run_give_up(dcommi_run *run);
/* Answer a query about an operation that was refused and is over here; return false for any
 * other. */
static bool dcommi_refusal_answer(dcomm_comm *comm, const dcommi_header *h);

/* ---- arrivals (arrivals.h) ---- */

/* Count the collectives that are complete here, and update ranks that send to us and lag
 * behind. */
static void dcommi_advance_done(dcomm_comm *comm);
/* Tell a rank how much of a stream is complete here. */
static void dcommi_send_credit(dcomm_comm *comm, int rank, uint8_t stream);

/* ---- control connections (control.h) ---- */

/* Tell a peer that it counts as dead here, so that it hears of it when it runs again. With the
 * token. */
static void dcommi_ctl_tell_dead(dcomm_context *context, int peer);
/* Send a header and its sentence over the control connection with a peer, if there is one. The
 * engine there gets them as if the transport had brought them. With the token. */
static void dcommi_ctl_pass(dcomm_context *context, int peer, const dcommi_header *header,
                            const void *data, size_t len);
/* Handle what has come on all connections. With the token. */
static void dcommi_ctl_look(dcomm_context *context);

/* ---- receives on a device (device/copy_in.h) ---- */

/* Match a receive with a message whose payload waits on its sender's device. */
static void dcommi_take_offer(dcommi_move *move, const dcommi_header *h, size_t len);
/* End a receive whose offered payload is complete, and tell the sender. */
static void dcommi_offer_taken(dcommi_move *move);
/* Match a payload from host memory with a receive on the run's device. */
static dcommi_verdict dcommi_copy_in(dcommi_move *move, const dcommi_header *h,
                                     dcommi_transport *transport, const void *data, void *desc,
                                     size_t len);

/* ---- regions that are device memory (device/device_region.h) ---- */

/* Write the key by which peers open a region of ours. */
static void dcommi_device_own_key(const dcommi_own *own, uint8_t *key);
/* Free a region of ours that has left the table, now or when its readers have closed it. */
static void dcommi_device_own_left(dcommi_own *own);
/* Free a peer's region that has left the table, or have it closed first. */
static void dcommi_device_map_drop(dcomm_context *context, dcommi_map *map);
/* Tell the peer that a region which is in no table is closed, unless that message will come
 * later. */
static void dcommi_device_map_gone(dcomm_context *context, int peer, uint32_t id);
/* Note that a peer has closed a region of ours. */
static void dcommi_on_region_shut(dcomm_context *context, int peer, uint32_t id);
/* Tell a peer that its region is not open here any more. */
static void dcommi_tell_shut(dcomm_context *context, int peer, uint32_t id);
/* Free all device regions of a context that closes; nothing is under way. */
static void dcommi_device_regions_free(dcomm_context *context);

/* ---- the codec's steps on a device (coded/device.h) ---- */

/* Start one of the codec's steps. Return DCOMM_IN_PROGRESS if the lane is told of its end. */
static dcomm_status dcommi_coded_on_device(dcommi_lane *lane, const dcomm_codec_place *place,
                                           const dcommi_device_code *code, int32_t word);
/* Take one region's result of coded_sparse. Return DCOMM_OK if more follow; the last one writes
 * all. */
static dcomm_status dcommi_spread_result_on_device(dcommi_lane *lane,
                                                   const dcomm_codec_place *place,
                                                   const dcommi_device_code *code);
/* Return true if a plan's codec is that of coded_sparse. */
static bool dcommi_spread_plan(const dcomm_plan *plan);
/* Return true if a step of coded_sparse reads or writes elements on a device. The steps in between
 * work on the selected elements, which their operands only stand for. */
static bool dcommi_spread_by_device(const dcommi_frame *frame, const dcomm_step *step);
/* Take the verdict that a codec's step has found. */
static dcomm_status dcommi_coded_verdict(dcommi_lane *lane);
/* Order later work on the residuals of a failed run on a device behind that run. */
static void dcommi_coded_left(const dcommi_coded *c);

/* ---- the end of a communicator (lives.h) ---- */

/* Free a communicator that nobody holds any more. */
static void dcommi_comm_free(dcomm_comm *comm);

#endif
