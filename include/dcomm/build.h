/* build.h - write a plan of your own: a collective that dcomm checks, prices and runs.
 *
 * A builder makes one rank's part of one operation (plan.h says what the steps mean). Create it,
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
 * Every rank makes its own plan, or one program makes those of all ranks, to check them
 * (dcomm_plan_check) and to price them (dcomm_plan_price). dcomm_plan_run runs a plan.
 *
 * Errors: the builder keeps the first error and ignores every later call; dcomm_build_finish
 * returns it. So only create and finish need to be looked at. All functions take a NULL builder,
 * and do nothing. Units: offsets and lengths are bytes; ranks are those of the plan, 0 .. nranks-1;
 * lanes are 0 .. DCOMM_PLAN_MAX_LANES-1 and exist once they have a step. A builder is used by one
 * thread at a time. */
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
 * returns the depth. A depth outside 0 .. DCOMM_LOOP_DEPTH-1 gives an expression that
 * dcomm_build_finish refuses. */

/* value */
DCOMM_API dcomm_expr dcomm_const(int64_t value);
/* add + per * i[depth] */
DCOMM_API dcomm_expr dcomm_linear(int64_t add, int depth, int64_t per);
/* scale * ((base + coef * i[depth]) modulo mod); mod 0: without the modulo. The modulo is never
 * negative. */
DCOMM_API dcomm_expr dcomm_modular(int64_t scale, int64_t base, int depth, int64_t coef,
                                   int64_t mod);
/* table[first + (base + coef * i[depth]) modulo mod]; see dcomm_build_table. */
DCOMM_API dcomm_expr dcomm_lookup(int64_t first, int64_t base, int depth, int64_t coef,
                                  int64_t mod);
/* e + add */
DCOMM_API dcomm_expr dcomm_plus(dcomm_expr e, int64_t add);
/* e + per * i[depth] */
DCOMM_API dcomm_expr dcomm_plus_loop(dcomm_expr e, int depth, int64_t per);

/* ---- operands: where bytes lie ---- */

/* `length` bytes of a space (IN, OUT or SCRATCH) from a constant offset on. */
DCOMM_API dcomm_operand dcomm_span(dcomm_space space, int64_t offset, int64_t length);
/* The same from an offset that may depend on loops. */
DCOMM_API dcomm_operand dcomm_at(dcomm_space space, dcomm_expr offset, int64_t length);
/* The same, cut off at byte `end` of the space: for equal blocks of which the last is shorter. */
DCOMM_API dcomm_operand dcomm_block(dcomm_space space, dcomm_expr offset, int64_t length,
                                    int64_t end);
/* The arriving message, as a source of dcomm_build_recv_reduce. */
DCOMM_API dcomm_operand dcomm_msg(void);
/* `length` bytes of what rank `peer` exposed as `slot`, from `offset` on. */
DCOMM_API dcomm_operand dcomm_exposed(dcomm_expr peer, uint16_t slot, dcomm_expr offset,
                                      int64_t length);

/* ---- the builder ---- */

/* Start the plan of `rank`, one of `nranks`. dtype and op are those of all folds. name is for
 * people; it is kept by address and must outlive the plan. On success *b_p is the builder: give it
 * to dcomm_build_finish or dcomm_build_destroy. Errors: DCOMM_ERR_INVALID (NULL, or rank and nranks
 * do not fit), DCOMM_ERR_NO_MEMORY; *b_p is NULL then. */
DCOMM_API dcomm_status dcomm_build_create(const char *name, int rank, int nranks, dcomm_dtype dtype,
                                          dcomm_op op, dcomm_builder **b_p);

/* Say how many bytes of the caller's input and output the plan may touch. Default: none. */
DCOMM_API void dcomm_build_buffers(dcomm_builder *b, int64_t in_bytes, int64_t out_bytes);

/* Lay the plan out and free the builder, in any case; *b_p becomes NULL. On success *plan_p is the
 * plan, which the caller owns: dcomm_plan_destroy frees it. Errors: the first one that the builder
 * kept; DCOMM_ERR_PLAN where no rank could run the plan (a loop without an end, an operand in a
 * space that the step cannot use, ...); DCOMM_ERR_INVALID (NULL); DCOMM_ERR_NO_MEMORY. The sentence
 * names plan, rank, lane and step. *plan_p is NULL then. Whether the plans of all ranks fit
 * together is for dcomm_plan_check to say. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_build_finish(dcomm_builder **b_p, dcomm_plan **plan_p);

/* Free a builder that is not going to be finished. *b_p becomes NULL; NULL is fine. */
DCOMM_API void dcomm_build_destroy(dcomm_builder **b_p);

/* ---- what a plan has ---- */

/* Reserve bytes of scratch, aligned to cache lines. Return the offset in DCOMM_SPACE_SCRATCH. */
DCOMM_API int64_t dcomm_build_scratch(dcomm_builder *b, int64_t bytes);
/* Reserve n tags. Return the first. Between two ranks each tag serves one message of a run. */
DCOMM_API int64_t dcomm_build_tags(dcomm_builder *b, int64_t n);
/* Reserve a counter, which SIGNAL adds to and WAIT waits for. It starts at 0. Return its number,
 * the same on all ranks if all reserve alike. */
DCOMM_API uint16_t dcomm_build_counter(dcomm_builder *b);
/* Reserve a slot to expose memory as. Return its number. */
DCOMM_API uint16_t dcomm_build_slot(dcomm_builder *b);
/* Append n values to the plan's table, which dcomm_lookup reads. Return the index of the first. */
DCOMM_API int64_t dcomm_build_table(dcomm_builder *b, const int64_t *values, size_t n);

/* ---- steps ----
 *
 * Each appends one step to a lane. flags is 0 or an OR of DCOMM_STEP_ASYNC (start only: a fence, or
 * the end of the lane, waits), DCOMM_STEP_FINAL (this fold completes the reduction: an average
 * divides here), DCOMM_STEP_FORWARD and DCOMM_STEP_RESULT (plan.h). */

/* Send src to rank `peer`; the step is done when src may be overwritten. */
DCOMM_API void dcomm_build_send(dcomm_builder *b, int lane, dcomm_operand src, dcomm_expr peer,
                                dcomm_expr tag, unsigned flags);
/* Receive the message that rank `peer` sends with this tag; it must be as long as dst. */
DCOMM_API void dcomm_build_recv(dcomm_builder *b, int lane, dcomm_operand dst, dcomm_expr peer,
                                dcomm_expr tag, unsigned flags);
/* Receive a message and fold it: dst <- fold(first, second), one of which is dcomm_msg(). dst may
 * be the other one. stage is scratch as long as dst, for the message to arrive in. */
DCOMM_API void dcomm_build_recv_reduce(dcomm_builder *b, int lane, dcomm_operand dst,
                                       dcomm_operand first, dcomm_operand second,
                                       dcomm_operand stage, dcomm_expr peer, dcomm_expr tag,
                                       unsigned flags);
/* dst <- src, which may be dcomm_exposed: then it is read where it lies. */
DCOMM_API void dcomm_build_copy(dcomm_builder *b, int lane, dcomm_operand dst, dcomm_operand src,
                                unsigned flags);
/* dst <- fold(src[0], ..., src[n-1]) in this order. */
DCOMM_API void dcomm_build_reduce(dcomm_builder *b, int lane, dcomm_operand dst,
                                  const dcomm_operand *src, size_t n, unsigned flags);
/* Let rank `peer` (DCOMM_ALL_PEERS: every other) read src as `slot` of this rank. src must stay as
 * it is until the readers have signalled that they are done. */
DCOMM_API void dcomm_build_expose(dcomm_builder *b, int lane, dcomm_operand src, uint16_t slot,
                                  dcomm_expr peer);
/* Add `value` to a counter of rank `peer`: this rank's own orders its lanes; DCOMM_ALL_PEERS: of
 * every other rank. */
DCOMM_API void dcomm_build_signal(dcomm_builder *b, int lane, uint16_t counter, dcomm_expr peer,
                                  dcomm_expr value);
/* Wait until this rank's counter is at least `value`, which may not be negative. */
DCOMM_API void dcomm_build_wait(dcomm_builder *b, int lane, uint16_t counter, dcomm_expr value);
/* Wait for all that this lane has started with DCOMM_STEP_ASYNC. */
DCOMM_API void dcomm_build_fence(dcomm_builder *b, int lane);
/* Repeat the steps up to the matching end `trips` times (0: never). Return the loop's depth, for
 * the expressions of these steps. */
DCOMM_API int dcomm_build_loop(dcomm_builder *b, int lane, dcomm_expr trips);
/* End the innermost open loop of the lane. */
DCOMM_API void dcomm_build_end(dcomm_builder *b, int lane);
/* Run another plan as one step, with `in` as its IN and `out` as its OUT. `sub` is kept by address
 * and must outlive this plan. table[group], table[group + 1], ... are the ranks of this plan that
 * are its ranks 0, 1, ... Its tags begin at `tag`: reserve sub->ntags of them. Return the step, to
 * set what else a CALL shifts (plan.h): its counters begin at step->slot, its slots at step->word;
 * reserve as many as it has. The address is good until the next step; NULL after an error. */
DCOMM_API dcomm_step *dcomm_build_call(dcomm_builder *b, int lane, const dcomm_plan *sub,
                                       int64_t group, dcomm_operand in, dcomm_operand out,
                                       dcomm_expr tag);

#ifdef __cplusplus
}
#endif
#endif
