/* build.h - write a plan of your own: a collective that dcomm checks, prices and runs.
 *
 * A builder makes one rank's part of one operation. plan.h explains the steps. Create a builder,
 * add steps to lanes in the order in which this rank takes them, then finish:
 *
 *     dcomm_builder *b;
 *     dcomm_plan *plan;
 *     dcomm_status status = dcomm_build_create("to_next", rank, nranks, DCOMM_F32, DCOMM_SUM, &b);
 *     dcomm_build_buffers(b, bytes, bytes);
 *     int64_t tag = dcomm_build_tags(b, 1);
 *     dcomm_build_send(b, 0, dcomm_span(DCOMM_SPACE_IN, 0, bytes),
 *                      dcomm_const((rank + 1) % nranks), dcomm_const(tag), DCOMM_STEP_ASYNC);
 *     dcomm_build_recv(b, 0, dcomm_span(DCOMM_SPACE_OUT, 0, bytes),
 *                      dcomm_const((rank + nranks - 1) % nranks), dcomm_const(tag), 0);
 *     status = dcomm_build_finish(&b, &plan);
 *
 * Every rank makes its own plan. One program can also make the plans of all ranks, to check them
 * (dcomm_plan_check) and to price them (dcomm_plan_price). dcomm_plan_run runs a plan.
 *
 * Errors: the builder keeps the first error and ignores every later call. dcomm_build_finish
 * returns that error, so only the results of create and finish need checks. With a NULL builder
 * all functions do nothing. Units: offsets and lengths are in bytes. Ranks are those of the plan,
 * 0 .. nranks-1. Lanes are 0 .. DCOMM_PLAN_MAX_LANES-1; a lane exists once it has a step. One
 * thread at a time may use a builder. */
#ifndef DCOMM_BUILD_H
#define DCOMM_BUILD_H

#include "plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A plan in the making. */
typedef struct dcomm_builder dcomm_builder;

/* ---- expressions: numbers that may depend on loops ----
 *
 * i[depth] is the index of the lane's open loop at that depth, counted from 0; dcomm_build_loop
 * returns the depth. With a depth outside 0 .. DCOMM_LOOP_DEPTH-1, dcomm_build_finish refuses the
 * plan. */

/* Return the constant `value`. */
DCOMM_API dcomm_expr dcomm_const(int64_t value);
/* Return add + per * i[depth]. */
DCOMM_API dcomm_expr dcomm_linear(int64_t add, int depth, int64_t per);
/* Return scale * ((base + coef * i[depth]) modulo mod). mod 0 means no modulo. The modulo is never
 * negative. */
DCOMM_API dcomm_expr dcomm_modular(int64_t scale, int64_t base, int depth, int64_t coef,
                                   int64_t mod);
/* Return table[first + (base + coef * i[depth]) modulo mod]. dcomm_build_table fills the table. */
DCOMM_API dcomm_expr dcomm_lookup(int64_t first, int64_t base, int depth, int64_t coef,
                                  int64_t mod);
/* Return e + add. */
DCOMM_API dcomm_expr dcomm_plus(dcomm_expr e, int64_t add);
/* Return e + per * i[depth]. */
DCOMM_API dcomm_expr dcomm_plus_loop(dcomm_expr e, int depth, int64_t per);

/* ---- operands: where bytes lie ---- */

/* Return `length` bytes of a space (IN, OUT or SCRATCH) from a constant offset on. */
DCOMM_API dcomm_operand dcomm_span(dcomm_space space, int64_t offset, int64_t length);
/* Return `length` bytes of a space from an offset that may depend on loops. */
DCOMM_API dcomm_operand dcomm_at(dcomm_space space, dcomm_expr offset, int64_t length);
/* Return the same as dcomm_at, cut off at byte `end` of the space. It is for a partition into
 * equal blocks whose last block is shorter. */
DCOMM_API dcomm_operand dcomm_block(dcomm_space space, dcomm_expr offset, int64_t length,
                                    int64_t end);
/* Return the arriving message, as a source of dcomm_build_recv_reduce. */
DCOMM_API dcomm_operand dcomm_msg(void);
/* Return `length` bytes, from `offset` on, of the memory that rank `peer` exposed as `slot`. */
DCOMM_API dcomm_operand dcomm_exposed(dcomm_expr peer, uint16_t slot, dcomm_expr offset,
                                      int64_t length);

/* ---- the builder ---- */

/* Start the plan of `rank`, one of `nranks`. All folds use dtype and op. name is for people; the
 * plan keeps its address, so name must outlive the plan. On success *b_p is the builder: give it
 * to dcomm_build_finish or dcomm_build_destroy. Errors: DCOMM_ERR_INVALID (NULL, or rank and
 * nranks do not fit), DCOMM_ERR_NO_MEMORY; *b_p is NULL then. */
DCOMM_API dcomm_status dcomm_build_create(const char *name, int rank, int nranks, dcomm_dtype dtype,
                                          dcomm_op op, dcomm_builder **b_p);

/* Set how many bytes of the caller's input and output the plan may touch (default: none). */
DCOMM_API void dcomm_build_buffers(dcomm_builder *b, int64_t in_bytes, int64_t out_bytes);

/* Finish the plan and free the builder, even after an error; *b_p becomes NULL. On success *plan_p
 * is the plan, which the caller owns: dcomm_plan_destroy frees it. Errors: the one that the
 * builder kept; DCOMM_ERR_PLAN if no rank could run the plan (a loop without an end, an operand in
 * a space that the step cannot use, ...); DCOMM_ERR_INVALID (NULL); DCOMM_ERR_NO_MEMORY. The
 * sentence names plan, rank, lane and step. *plan_p is NULL then. This function does not check
 * that the plans of all ranks fit together: call dcomm_plan_check. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_build_finish(dcomm_builder **b_p, dcomm_plan **plan_p);

/* Free a builder without finishing it. *b_p becomes NULL; NULL is fine. */
DCOMM_API void dcomm_build_destroy(dcomm_builder **b_p);

/* ---- what a plan has ---- */

/* Reserve bytes of scratch, aligned to cache lines. Return the offset in DCOMM_SPACE_SCRATCH. */
DCOMM_API int64_t dcomm_build_scratch(dcomm_builder *b, int64_t bytes);
/* Reserve n tags. Return the first. Within a run, each tag may carry one message from one rank to
 * another. */
DCOMM_API int64_t dcomm_build_tags(dcomm_builder *b, int64_t n);
/* Reserve a counter, which SIGNAL adds to and WAIT waits for. It starts at 0. Return its number.
 * All ranks get the same numbers if they reserve in the same order. */
DCOMM_API uint16_t dcomm_build_counter(dcomm_builder *b);
/* Reserve a slot, under which a rank can expose memory. Return its number. */
DCOMM_API uint16_t dcomm_build_slot(dcomm_builder *b);
/* Append n values to the plan's table, which dcomm_lookup reads. Return the index of the first. */
DCOMM_API int64_t dcomm_build_table(dcomm_builder *b, const int64_t *values, size_t n);

/* ---- steps ----
 *
 * Each function appends one step to a lane. flags is 0 or an OR of DCOMM_STEP_ASYNC (the step only
 * starts: a fence, or the end of the lane, waits for it), DCOMM_STEP_FINAL (this fold completes
 * the reduction: an average divides here), DCOMM_STEP_FORWARD and DCOMM_STEP_RESULT (plan.h). */

/* Send src to rank `peer`. The step is done when src may be overwritten. */
DCOMM_API void dcomm_build_send(dcomm_builder *b, int lane, dcomm_operand src, dcomm_expr peer,
                                dcomm_expr tag, unsigned flags);
/* Receive the message that rank `peer` sends with this tag. The message must be as long as dst. */
DCOMM_API void dcomm_build_recv(dcomm_builder *b, int lane, dcomm_operand dst, dcomm_expr peer,
                                dcomm_expr tag, unsigned flags);
/* Receive a message and fold it: dst <- fold(first, second). One of first and second is
 * dcomm_msg(); the other one may be dst. stage is scratch memory as long as dst, in which the
 * message can arrive. */
DCOMM_API void dcomm_build_recv_reduce(dcomm_builder *b, int lane, dcomm_operand dst,
                                       dcomm_operand first, dcomm_operand second,
                                       dcomm_operand stage, dcomm_expr peer, dcomm_expr tag,
                                       unsigned flags);
/* Copy: dst <- src. If src is dcomm_exposed, it is read in place. */
DCOMM_API void dcomm_build_copy(dcomm_builder *b, int lane, dcomm_operand dst, dcomm_operand src,
                                unsigned flags);
/* Fold: dst <- fold(src[0], ..., src[n-1]) in this order. */
DCOMM_API void dcomm_build_reduce(dcomm_builder *b, int lane, dcomm_operand dst,
                                  const dcomm_operand *src, size_t n, unsigned flags);
/* Let rank `peer` (DCOMM_ALL_PEERS: every other rank) read src as `slot` of this rank. src must
 * not change until the readers have signalled that they are done. */
DCOMM_API void dcomm_build_expose(dcomm_builder *b, int lane, dcomm_operand src, uint16_t slot,
                                  dcomm_expr peer);
/* Add `value` to a counter of rank `peer` (DCOMM_ALL_PEERS: of every other rank). A counter of
 * this rank itself orders its lanes. */
DCOMM_API void dcomm_build_signal(dcomm_builder *b, int lane, uint16_t counter, dcomm_expr peer,
                                  dcomm_expr value);
/* Wait until this rank's counter is at least `value`, which may not be negative. */
DCOMM_API void dcomm_build_wait(dcomm_builder *b, int lane, uint16_t counter, dcomm_expr value);
/* Wait for all steps that this lane has started with DCOMM_STEP_ASYNC. */
DCOMM_API void dcomm_build_fence(dcomm_builder *b, int lane);
/* Repeat the steps up to the matching end `trips` times (0: never). Return the loop's depth, which
 * the expressions of these steps use. */
DCOMM_API int dcomm_build_loop(dcomm_builder *b, int lane, dcomm_expr trips);
/* End the innermost open loop of the lane. */
DCOMM_API void dcomm_build_end(dcomm_builder *b, int lane);
/* Run the plan `sub` as one step, with `in` as its IN and `out` as its OUT. This plan keeps the
 * address of `sub`, so `sub` must outlive it. The table maps ranks: rank r of `sub` is rank
 * table[group + r] of this plan. The tags of `sub` begin at `tag`: reserve sub->ntags of them.
 * Return the step, to set the other fields of a CALL (plan.h): the counters of `sub` begin at
 * step->slot, its slots at step->word. Reserve as many of each as `sub` has. The address is valid
 * until the next step is added; it is NULL after an error. */
DCOMM_API dcomm_step *dcomm_build_call(dcomm_builder *b, int lane, const dcomm_plan *sub,
                                       int64_t group, dcomm_operand in, dcomm_operand out,
                                       dcomm_expr tag);

#ifdef __cplusplus
}
#endif
#endif
