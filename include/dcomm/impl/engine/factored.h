/* factored.h - plans around the plan of a sum: they multiply the input by a factor, or convert it
 * to f32, before the sum. */
#ifndef DCOMMI_FACTORED_H
#define DCOMMI_FACTORED_H

#include "../algo/make.h"
#include "kernels.h"

static const dcomm_plan_kernel dcommi_scale_kernels[] = {dcommi_kernel_scale};
static const dcomm_plan_kernel dcommi_coded_kernels[] = {dcommi_kernel_widen, dcommi_kernel_narrow};

static void dcommi_factored_step(dcomm_builder *b, uint16_t kernel, dcomm_operand dst,
                                 const dcomm_operand *src, size_t nsrc)
{
    dcomm_step *step = dst.max_length > 0 ? dcommi_build_step(b, 0, DCOMM_STEP_COMPUTE) : NULL;
    if (step != NULL) {
        step->kernel = kernel;
        step->dst = dst;
        dcommi_build_sources(b, step, src, nsrc);
    }
}

/* Return the byte of OUT at which the input lies if the call is in place. */
static int64_t dcommi_factored_at(const dcommi_shape *s)
{
    return s->coll == DCOMM_COLL_ALLGATHER    ? s->rank * dcommi_shape_bytes(s, s->count)
           : s->coll == DCOMM_COLL_ALLGATHERV ? dcommi_shape_bytes(s, s->displs[s->rank])
                                              : 0;
}

/* Convert listed blocks from f32 at `from`, and nothing between them. */
static void dcommi_factored_blocks(const dcommi_shape *s, dcomm_builder *b, dcomm_operand from)
{
    dcommi_shape wide = *s;
    wide.dtype = DCOMM_F32;
    const dcommi_shape *shape[2] = {s, &wide};
    const int d = dcomm_build_loop(b, 0, dcomm_const(s->nranks));
    const dcommi_turn block = {0, d, 1};
    dcomm_operand side[2];
    for (int k = 0; k < 2; k++) {
        int64_t longest;
        dcommi_blocks blocks = dcommi_blocks_of(shape[k], b, &longest);
        blocks.base = k == 0 ? 0 : from.offset.add;
        side[k] = dcommi_block_whole(&blocks, k == 0 ? DCOMM_SPACE_OUT : DCOMM_SPACE_SCRATCH, block,
                                     longest);
    }
    dcommi_factored_step(b, 1, side[0], &side[1], 1);
    dcomm_build_end(b, 0);
}

/* Build a plan around `inner`, the plan of a sum.
 *
 * Without a codec: scratch <- factor * input, output <- the sum of scratch. The words are the
 * factor, which may differ by rank. `inner` reads its input from IN.
 *
 * With a codec: scratch <- factor * input as f32, scratch <- its compressed collective, output <-
 * scratch. Word 0 is the factor of a pre-multiplied sum, else 1. `inner` is the plan of that
 * collective of f32: an all-reduce in place, any other not in place. */
static dcomm_status dcommi_plan_factored(const dcommi_shape *s, const dcomm_plan *inner,
                                         dcomm_plan **plan_p)
{
    const bool coded = s->coding != NULL;
    const int64_t factor = coded ? sizeof(double) : sizeof(dcommi_factor);
    dcomm_builder b;
    dcommi_build_begin(&b, inner->name, s->rank, s->nranks, coded ? DCOMM_F32 : s->dtype,
                       coded ? (dcomm_op)inner->op : s->op);
    dcommi_shape_spaces(s, &b.head.in_bytes, &b.head.out_bytes);
    b.head.nwords = (uint32_t)factor / sizeof(uint64_t);
    b.head.kernels = coded ? dcommi_coded_kernels : dcommi_scale_kernels;
    b.head.nkernels = coded ? 2 : 1;
    b.head.kernel_user = (void *)(uintptr_t)s->dtype;
    b.head.codec_linear = inner->codec_linear;
    b.head.recoded_first = inner->recoded_first;
    b.head.recoded_count = inner->recoded_count;
    b.head.codec_partly = inner->codec_partly;
    const int64_t bytes = b.head.in_bytes;
    const int64_t work =
        coded ? bytes / (int64_t)dcomm_dtype_size(s->dtype) * (int64_t)sizeof(float) : bytes;
    const dcomm_operand scratch =
        dcomm_span(DCOMM_SPACE_SCRATCH, dcomm_build_scratch(&b, work), work);
    const dcomm_operand out = dcomm_span(DCOMM_SPACE_OUT, 0, b.head.out_bytes);
    const dcommi_input in = dcommi_input_of(s, dcommi_factored_at(s));
    const dcomm_operand src[2] = {dcomm_span(in.space, in.base, bytes),
                                  dcomm_span(DCOMM_SPACE_WORDS, 0, factor)};
    dcommi_factored_step(&b, 0, scratch, src, 2);
    dcomm_operand result = coded ? scratch : out;
    if (coded && s->coll != DCOMM_COLL_ALLREDUCE) {
        result = dcomm_span(DCOMM_SPACE_SCRATCH, dcomm_build_scratch(&b, inner->out_bytes),
                            inner->out_bytes);
    }
    dcommi_sub_call(&b, 0, inner, dcommi_table_all(&b, s->nranks), scratch, result);
    if (coded && s->coll == DCOMM_COLL_ALLGATHERV) {
        dcommi_factored_blocks(s, &b, result);
    } else if (coded) {
        dcommi_factored_step(&b, 1, out, &result, 1);
    }
    return dcommi_build_finish(&b, plan_p);
}

#endif
