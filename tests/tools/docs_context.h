/* docs_context.h - the variables and functions of a program that fragments of C in README.md and
 * docs/ use. tests/tools/test_docs.sh compiles each fragment as the body of a function behind
 * it. */
#include "dcomm.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define LAYERS 4

extern dcomm_comm *comm;
extern dcomm_request *requests[2];
extern int steps, step, rank, size, lost, l;
extern size_t count, n, bytes, room, tokens, *counts, *recvcounts, *displs, *lengths;
extern float *gradient, *x, *y, *dx, *dy, *out, *din, *weights, *dweights, *residual;
extern double *exact;
extern int32_t *experts;
extern int64_t *order;
extern uint64_t *words;
extern size_t nwords;
extern float *rows, *drows, *w, *dw;
extern uint32_t *index_of_kept;
extern void *gradient_on_device, *stream, *wire, *work, *handed_over;
extern const void *const *wires;
extern dcomm_cuda_report *report;
extern dcomm_cuda_ledger *sums;
extern dcomm_cuda_clip *clip;
extern dcomm_cuda_sight *sight;
extern dcomm_buckets *b;
extern dcomm_scaler *s;
extern dcomm_moe *m;
extern dcomm_ps *ps;
extern dcomm_codec *codec;
extern dcomm_feedback *fb;
extern dcomm_builder *p;
extern dcomm_plan *sub;

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
void gradients(const float *rows, const float *w, float *drows, float *dw);
void merge(const void *in, void *inout, size_t count, dcomm_dtype dtype, void *user);
void *take(size_t alignment, size_t bytes, void *user);
void give(void *p, void *user);
void say(int level, const char *message, void *user);
int gather_by_files(const void *mine, size_t bytes, void *all, void *user);

#ifdef MPI_VERSION
extern MPI_Comm mpi_comm;
extern dcomm_comm_opts opts;
#endif
