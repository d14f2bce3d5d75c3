/* docs_context.h - what fragments of C in README.md and docs/ take for granted: a program's own variables and
 * functions. tests/tools/test_docs.sh compiles each fragment as the body of a function behind it. */
#include "dcomm.h"
#include <stdio.h>

#define LAYERS 4

extern dcomm_comm *comm;
extern int steps, step, rank, l;
extern size_t count, n, bytes, tokens;
extern float *gradient, *x, *y, *dx, *dy, *out, *din, *weights, *dweights, *residual;
extern int32_t *experts;
extern void *gradient_on_device, *stream, *wire;
extern dcomm_cuda_report *report;
extern dcomm_buckets *b;
extern dcomm_codec *codec;

void forward(void);
void backward(int layer, ...);
void optimizer(void);
void backward_kernels(int layer);
void produce(float *gradient);
void consume(float *gradient);
void router(float *x, size_t tokens, int32_t *experts, float *weights);
void run_experts(const dcomm_moe_batch *in, float *out);
void run_experts_backward(const dcomm_moe_batch *in, const dcomm_moe_batch *back, float *din);
void loss(float *y, float *dy);

#ifdef MPI_VERSION
extern MPI_Comm mpi_comm;
extern dcomm_comm_opts opts;
#endif
