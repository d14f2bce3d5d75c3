/* coll.h - collectives, point-to-point, requests and groups.
 *
 * Buffers belong to the caller and may have any alignment. They are in use from the call until the
 * operation is complete. Counts are in elements. `opts` may be NULL. A NULL buffer is legal only
 * with count 0. For an operation in place, pass DCOMM_IN_PLACE as sendbuf, or the pointer that
 * NCCL's rules name (noted at each collective). Otherwise input and output must not overlap. A
 * call on buffers that overlap in part is refused.
 *
 * Every rank calls the collectives of one communicator in the same order with arguments that fit.
 * If they do not fit, or if one rank's call is refused, every other rank gets DCOMM_ERR_MISMATCH
 * (docs/errors.md). An error leaves what the call writes undefined. If it has poisoned the
 * communicator, other ranks may use the call's buffers until that is destroyed (docs/survival.md).
 *
 * Buffers may also be device memory if the implementation is built with DCOMM_WITH_CUDA. Then all
 * buffers of a call must be on one device and aligned to their elements (docs/cuda.md).
 *
 * Each operation has two forms: dcomm_x blocks; dcomm_ix does not block and returns a request.
 * Between dcomm_group_start and dcomm_group_end both only queue the operation.
 *
 * Results are bitwise equal on all ranks. With the same algorithm they are also bitwise equal from
 * run to run. */
#ifndef DCOMM_COLL_H
#define DCOMM_COLL_H

#include "comm.h"
#include "feedback.h"
#include "plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Pass this as sendbuf if the input lies in recvbuf. */
#define DCOMM_IN_PLACE ((const void *)(uintptr_t)-1)

/* All zero means the defaults. A field must be the same on every rank of the call unless it says
 * otherwise. */
typedef struct dcomm_coll_opts {
    /* ---- any call ---- */

    const char *algo;   /* name of the algorithm: it runs, or the call fails (default: the
                           communicator's, else chosen by size) */
    bool deterministic; /* fold in rank order: the bits of the result do not depend on size,
                           bucketing, chunking or placement (default: the communicator's; always
                           true for ordered operators, dcomm_op_opts) */
    /* DCOMM_F32: for f16 and bf16, every rank sends its own contributions once. One rank adds all
     * contributions to an element in f32 and rounds once, so the error does not grow with the
     * number of ranks. This limits the choice to algorithms that fold in rank order. It has no
     * effect on other dtypes. DCOMM_F64 is 0 and means the default (default: 0, algorithms that
     * pass sums on round them at each rank, unless deterministic). */
    dcomm_dtype accumulate;
    double timeout_s; /* seconds; INFINITY: no limit (default: 0, the communicator's) */
    /* DCOMM_PREMUL_SUM: the factor on this rank's input; may differ by rank. Floats are multiplied
     * as floats. Integers are multiplied as integers that wrap around if the factor is an integer,
     * else in f64, rounded towards zero and clamped (default: 0, taken as 1; for a factor of 0 use
     * premul_p). */
    double premul;
    const void *premul_p; /* the factor of DCOMM_PREMUL_SUM as one exact value of the call's dtype;
                             here 0 means 0. It is read before the call returns and may have any
                             alignment. It may be NULL on some ranks only (default: NULL,
                             premul) */
    int lanes;            /* parallel rings or trees, if the algorithm has them (default: 1) */
    size_t chunk_bytes;   /* bytes of one piece in a pipeline (default: the communicator's) */
    /* All-to-all-v: [size * size] counts; rank i sends matrix[i * size + j] elements to rank j.
     * With it the choice of the algorithm knows all sizes, and the algorithms bruck and hier need
     * not exchange them. It is read before the call returns (default: NULL, each rank knows its
     * own counts; the choice assumes blocks of 64 KiB). */
    const size_t *matrix;

    /* ---- promises about the memory of all ranks, for the choice of the algorithm ---- */

    bool registered; /* buffers are registered (mem.h): blocks of 4 to 32 KiB are read in place
                        instead of sent. A buffer that is not registered still works, but slower
                        (default: false) */
    bool huge_pages; /* buffers lie on huge pages (madvise MADV_HUGEPAGE), which the kernel reads
                        faster; `registered` promises more (default: false) */
    bool device;     /* buffers are device memory: the choice counts copies between host and
                        device, and messages are longer. With `registered`, ranks of one host read
                        each other's memory in place. That needs memory of dcomm_mem_alloc_device
                        on devices that can, or threads that share one device (default: false) */

    /* ---- a stream ---- */

    /* With `stream`: the device reads *premul_p in the stream's order, after the stream's earlier
     * work. So it may be device memory, or pinned memory, which must stay valid until the
     * operation is complete (default: false). */
    bool premul_on_stream;
    /* A cudaStream_t of the thread's current device. The operation begins when the work that the
     * stream holds now is done. Later work on the stream waits for the result: the blocking form
     * returns once this is arranged, or, unless CUDA_MODULE_LOADING is EAGER, when the operation
     * has ended (docs/cuda.md). The non-blocking form does not hold the stream; its request tells
     * the end. Errors show in dcomm_comm_status and never stop the stream. In a group, the
     * work that the stream holds at dcomm_group_end counts. The stream may differ by rank. Buffers
     * may be host memory too. The first such call starts a progress thread of the context. NULL
     * means no stream (cuda.h): the call waits for the default stream. Errors:
     * DCOMM_ERR_UNSUPPORTED (built without DCOMM_WITH_CUDA; the stream is being captured into a
     * graph; the driver cannot let a stream wait), DCOMM_ERR_INVALID (two ranks of this process
     * would wait for each other: both put the same operation on one stream, or one of their two
     * streams is the legacy default stream and the other waits for it. One group that holds both
     * operations is allowed). (default: NULL) */
    void *stream;

    /* ---- lossy compression, of floats: all-reduces and reduce-scatters of sums and averages, and
     * all-gathers; docs/compressed-allreduce.md ---- */

    /* The codec that encodes everything that is sent. Tensors of fewer than 2,048 elements stay
     * exact (of a reduce-scatter or all-gather: all blocks together). Reduce-scatter and all-gather
     * encode each block on its own, so they take no codec that chooses from the whole tensor
     * (topk, threshold, randk, powersgd), and not auto. The owner of an all-gather's block gets the
     * decoded values, too, so all ranks have the same bits. The spec must be the same on every
     * rank. The codec is in use until the operation is complete. Without feedback nothing is
     * remembered from call to call: powersgd then starts each call from random columns (default:
     * NULL, exact). */
    const dcomm_codec *codec;
    /* Error feedback: it keeps the encoding's error and adds it to the next input. There is one
     * state per tensor and rank, of `count` elements; of a reduce-scatter, of the elements of all
     * blocks (all variants but EF21). An all-gather takes none. It is in use until the operation is
     * complete. Its seed is used, and its codec if `codec` is NULL. It is committed when the
     * operation succeeds and becomes stale when it fails. Its residuals move to where the buffers
     * are, on a device or in host memory. A call may use a state while an earlier call with it is
     * outstanding on the same stream, except with a linear codec or while the state warms up
     * (default: NULL, none). */
    dcomm_feedback *feedback;
    uint64_t codec_seed; /* seed of the codec's random numbers (default: 0). Encodings of linear
                            codecs are summed, so seed and step must be the same on every rank;
                            with feedback, its seed, tensor and step */
    uint64_t codec_step; /* number of this call for the random numbers, which must differ from call
                            to call; count from 1 (default: 0, taken as the number of the
                            collective on its communicator) */
    /* Takes the totals of this rank's encodings: `kept` and `bytes` are sums, `nonzero` and
     * `summed` describe the result. It may be written until the operation is complete. May differ
     * by rank (default: NULL). */
    dcomm_codec_report *codec_report;
    /* The errors of this rank's encodings are added to this ledger: decoded values are compared
     * with the input, and with feedback the residual counts too (then the state's own ledger is
     * not used). If this rank encodes a sum again, only its bits and its residual count, because
     * there is no input to compare with. It is in use until the operation is complete. May differ
     * by rank (default: NULL). */
    dcomm_ledger *codec_ledger;
} dcomm_coll_opts;

/* All-reduce: set recvbuf[i] on every rank to the fold of all ranks' sendbuf[i]. In place: sendbuf
 * == recvbuf. Algorithms: ring, tree, binomial, recursive_doubling, halving_doubling, one_shot,
 * two_shot, staged, star, hier, hier_leader (docs/algorithms.md has the cost of each). */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_iallreduce(dcomm_comm *comm, const void *sendbuf,
                                                      void *recvbuf, size_t count,
                                                      dcomm_dtype dtype, dcomm_op op,
                                                      const dcomm_coll_opts *opts,
                                                      dcomm_request **request_p);
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_allreduce(dcomm_comm *comm, const void *sendbuf,
                                                     void *recvbuf, size_t count, dcomm_dtype dtype,
                                                     dcomm_op op, const dcomm_coll_opts *opts);

/* Reduce-scatter: fold all ranks' sendbuf (size*recvcount elements) and give block r of the result
 * to rank r. In place: recvbuf == sendbuf + rank*recvcount. With DCOMM_IN_PLACE, recvbuf is the
 * whole buffer, and the result goes to the rank's own block of it. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_ireduce_scatter(dcomm_comm *comm, const void *sendbuf,
                                                           void *recvbuf, size_t recvcount,
                                                           dcomm_dtype dtype, dcomm_op op,
                                                           const dcomm_coll_opts *opts,
                                                           dcomm_request **request_p);
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_reduce_scatter(dcomm_comm *comm, const void *sendbuf,
                                                          void *recvbuf, size_t recvcount,
                                                          dcomm_dtype dtype, dcomm_op op,
                                                          const dcomm_coll_opts *opts);
/* Reduce-scatter with recvcounts[r] elements for rank r; the blocks are packed in rank order in
 * sendbuf. recvcounts is the same on every rank. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_ireduce_scatterv(dcomm_comm *comm, const void *sendbuf,
                                                            void *recvbuf, const size_t *recvcounts,
                                                            dcomm_dtype dtype, dcomm_op op,
                                                            const dcomm_coll_opts *opts,
                                                            dcomm_request **request_p);
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_reduce_scatterv(dcomm_comm *comm, const void *sendbuf,
                                                           void *recvbuf, const size_t *recvcounts,
                                                           dcomm_dtype dtype, dcomm_op op,
                                                           const dcomm_coll_opts *opts);

/* All-gather: fill recvbuf (size*sendcount elements) with every rank's sendbuf; block r comes from
 * rank r. In place: sendbuf == recvbuf + rank*sendcount. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_iallgather(dcomm_comm *comm, const void *sendbuf,
                                                      void *recvbuf, size_t sendcount,
                                                      dcomm_dtype dtype,
                                                      const dcomm_coll_opts *opts,
                                                      dcomm_request **request_p);
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_allgather(dcomm_comm *comm, const void *sendbuf,
                                                     void *recvbuf, size_t sendcount,
                                                     dcomm_dtype dtype,
                                                     const dcomm_coll_opts *opts);
/* All-gather with recvcounts[r] elements from rank r, to recvbuf + displs[r] elements (displs
 * NULL: packed in rank order). Blocks must not overlap. In place: the rank's own block lies in
 * recvbuf. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_iallgatherv(dcomm_comm *comm, const void *sendbuf,
                                                       void *recvbuf, const size_t *recvcounts,
                                                       const size_t *displs, dcomm_dtype dtype,
                                                       const dcomm_coll_opts *opts,
                                                       dcomm_request **request_p);
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_allgatherv(dcomm_comm *comm, const void *sendbuf,
                                                      void *recvbuf, const size_t *recvcounts,
                                                      const size_t *displs, dcomm_dtype dtype,
                                                      const dcomm_coll_opts *opts);

/* Broadcast: copy root's sendbuf to every recvbuf. Only root reads sendbuf. In place on root:
 * sendbuf == recvbuf. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_ibroadcast(dcomm_comm *comm, const void *sendbuf,
                                                      void *recvbuf, size_t count,
                                                      dcomm_dtype dtype, int root,
                                                      const dcomm_coll_opts *opts,
                                                      dcomm_request **request_p);
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_broadcast(dcomm_comm *comm, const void *sendbuf,
                                                     void *recvbuf, size_t count, dcomm_dtype dtype,
                                                     int root, const dcomm_coll_opts *opts);

/* Reduce: as all-reduce, but only root gets the result. On other ranks recvbuf is not touched and
 * may be NULL. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_ireduce(dcomm_comm *comm, const void *sendbuf,
                                                   void *recvbuf, size_t count, dcomm_dtype dtype,
                                                   dcomm_op op, int root,
                                                   const dcomm_coll_opts *opts,
                                                   dcomm_request **request_p);
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_reduce(dcomm_comm *comm, const void *sendbuf,
                                                  void *recvbuf, size_t count, dcomm_dtype dtype,
                                                  dcomm_op op, int root,
                                                  const dcomm_coll_opts *opts);

/* Gather: copy every rank's sendbuf (sendcount elements) to root's recvbuf, in rank order. In place
 * on root: sendbuf == recvbuf + root*sendcount. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_igather(dcomm_comm *comm, const void *sendbuf,
                                                   void *recvbuf, size_t sendcount,
                                                   dcomm_dtype dtype, int root,
                                                   const dcomm_coll_opts *opts,
                                                   dcomm_request **request_p);
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_gather(dcomm_comm *comm, const void *sendbuf,
                                                  void *recvbuf, size_t sendcount,
                                                  dcomm_dtype dtype, int root,
                                                  const dcomm_coll_opts *opts);
/* Gather with counts[r] elements from rank r, to recvbuf + displs[r] elements (displs NULL:
 * packed). counts and displs are the same on every rank. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_igatherv(dcomm_comm *comm, const void *sendbuf,
                                                    void *recvbuf, const size_t *counts,
                                                    const size_t *displs, dcomm_dtype dtype,
                                                    int root, const dcomm_coll_opts *opts,
                                                    dcomm_request **request_p);
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_gatherv(dcomm_comm *comm, const void *sendbuf,
                                                   void *recvbuf, const size_t *counts,
                                                   const size_t *displs, dcomm_dtype dtype,
                                                   int root, const dcomm_coll_opts *opts);

/* Scatter: copy block r of root's sendbuf (recvcount elements) to rank r's recvbuf. In place on
 * root: recvbuf == sendbuf + root*recvcount (DCOMM_IN_PLACE: recvbuf is the whole buffer). */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_iscatter(dcomm_comm *comm, const void *sendbuf,
                                                    void *recvbuf, size_t recvcount,
                                                    dcomm_dtype dtype, int root,
                                                    const dcomm_coll_opts *opts,
                                                    dcomm_request **request_p);
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_scatter(dcomm_comm *comm, const void *sendbuf,
                                                   void *recvbuf, size_t recvcount,
                                                   dcomm_dtype dtype, int root,
                                                   const dcomm_coll_opts *opts);
/* Scatter with counts[r] elements for rank r, from sendbuf + displs[r] elements (displs NULL:
 * packed). counts and displs are the same on every rank. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_iscatterv(dcomm_comm *comm, const void *sendbuf,
                                                     void *recvbuf, const size_t *counts,
                                                     const size_t *displs, dcomm_dtype dtype,
                                                     int root, const dcomm_coll_opts *opts,
                                                     dcomm_request **request_p);
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_scatterv(dcomm_comm *comm, const void *sendbuf,
                                                    void *recvbuf, const size_t *counts,
                                                    const size_t *displs, dcomm_dtype dtype,
                                                    int root, const dcomm_coll_opts *opts);

/* All-to-all: send block p of sendbuf (count elements) to rank p, which stores it at block `rank`
 * of its recvbuf. In place: sendbuf == recvbuf. Algorithms: docs/algorithms.md. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_ialltoall(dcomm_comm *comm, const void *sendbuf,
                                                     void *recvbuf, size_t count, dcomm_dtype dtype,
                                                     const dcomm_coll_opts *opts,
                                                     dcomm_request **request_p);
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_alltoall(dcomm_comm *comm, const void *sendbuf,
                                                    void *recvbuf, size_t count, dcomm_dtype dtype,
                                                    const dcomm_coll_opts *opts);
/* All-to-all with counts. Send sendcounts[p] elements at sendbuf + sdispls[p] to rank p, and
 * receive recvcounts[p] elements from rank p at recvbuf + rdispls[p]. Displacements are in
 * elements. NULL means packed in rank order. A displacement is ignored if its count is 0. Rank p's
 * count for this rank must equal recvcounts[p], else every rank gets DCOMM_ERR_MISMATCH. Not in
 * place: no sent block may overlap a received one. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_ialltoallv(
    dcomm_comm *comm, const void *sendbuf, const size_t *sendcounts, const size_t *sdispls,
    void *recvbuf, const size_t *recvcounts, const size_t *rdispls, dcomm_dtype dtype,
    const dcomm_coll_opts *opts, dcomm_request **request_p);
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_alltoallv(dcomm_comm *comm, const void *sendbuf,
                                                     const size_t *sendcounts,
                                                     const size_t *sdispls, void *recvbuf,
                                                     const size_t *recvcounts,
                                                     const size_t *rdispls, dcomm_dtype dtype,
                                                     const dcomm_coll_opts *opts);

/* Barrier: wait until every rank has called it. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_ibarrier(dcomm_comm *comm, const dcomm_coll_opts *opts,
                                                    dcomm_request **request_p);
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_barrier(dcomm_comm *comm, const dcomm_coll_opts *opts);

/* Point-to-point: dcomm_send sends count elements to `peer`, dcomm_recv receives them. On one
 * communicator, the n-th send from rank a to rank b meets b's n-th receive from a; their counts
 * must be equal. A rank cannot send to itself. A send may or may not complete before the receive
 * is posted: do not depend on either. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_isend(dcomm_comm *comm, const void *buf, size_t count,
                                                 dcomm_dtype dtype, int peer,
                                                 const dcomm_coll_opts *opts,
                                                 dcomm_request **request_p);
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_send(dcomm_comm *comm, const void *buf, size_t count,
                                                dcomm_dtype dtype, int peer,
                                                const dcomm_coll_opts *opts);
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_irecv(dcomm_comm *comm, void *buf, size_t count,
                                                 dcomm_dtype dtype, int peer,
                                                 const dcomm_coll_opts *opts,
                                                 dcomm_request **request_p);
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_recv(dcomm_comm *comm, void *buf, size_t count,
                                                dcomm_dtype dtype, int peer,
                                                const dcomm_coll_opts *opts);

/* Run the caller's plan as the next collective of comm. plan is this rank's part: plan->rank is
 * the rank and plan->nranks the size of comm. `signature` must be equal on all ranks: dcomm
 * compares it to detect mismatches. `unused` is NULL. The plan stays in use until the operation is
 * complete.
 * Errors: DCOMM_ERR_PLAN (the plan is malformed). An operand outside its space fails the operation
 * when it runs. This function does not find table lookups out of bounds, races or deadlocks: check
 * a plan first (dcomm_plan_check). */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_iplan_run(dcomm_comm *comm, const dcomm_plan *plan,
                                                     const void *in, void *out, void *unused,
                                                     uint32_t signature,
                                                     const dcomm_coll_opts *opts,
                                                     dcomm_request **request_p);
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_plan_run(dcomm_comm *comm, const dcomm_plan *plan,
                                                    const void *in, void *out, void *unused,
                                                    uint32_t signature,
                                                    const dcomm_coll_opts *opts);

/* Wait until *request_p is complete, set it to NULL and return its result. Makes progress on every
 * communicator of the context, so the order of waits cannot deadlock. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_wait(dcomm_request **request_p);
/* Wait for all of n requests; NULL ones are skipped. Returns the first error in order. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_wait_all(dcomm_request **requests, size_t n);
/* Make progress once. Return DCOMM_IN_PROGRESS, or set *request_p to NULL and return its result.
 * After some tests in a row without progress, each further test yields the core, as a wait does.
 * So a loop of tests leaves the core to ranks that share it. */
DCOMM_API dcomm_status dcomm_test(dcomm_request **request_p);

/* Test all of n requests; NULL ones are skipped. Return DCOMM_IN_PROGRESS and change no request
 * until all are complete. Then do as dcomm_wait_all does. Requests that are queued in a group are
 * not complete. */
DCOMM_API dcomm_status dcomm_test_all(dcomm_request **requests, size_t n);
/* Wait for any one of n requests; NULL ones are skipped. Set that request to NULL and *index_p to
 * its index (n if all are NULL), and return its result.
 * Errors: that operation's; DCOMM_ERR_INVALID (all of them are queued in a group). */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_wait_any(dcomm_request **requests, size_t n,
                                                    size_t *index_p);
/* Test for any one of n requests: as dcomm_wait_any without waiting. Return DCOMM_IN_PROGRESS if
 * none is complete. */
DCOMM_API dcomm_status dcomm_test_any(dcomm_request **requests, size_t n, size_t *index_p);
/* Wait until at least one of n requests is complete. Set all complete ones to NULL, *count_p to
 * their number (0 if all are NULL), and indices[0..*count_p) to their indices in ascending order.
 * indices has room for n, or is NULL. Returns the first error; DCOMM_ERR_INVALID if all are queued
 * in a group. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_wait_some(dcomm_request **requests, size_t n,
                                                     size_t *indices, size_t *count_p);
/* Free a request without waiting and set *request_p to NULL. Its operation goes on and uses its
 * buffers until it is complete. Nothing tells when that is; dcomm_comm_destroy waits for it. If
 * the operation fails, so does the communicator. NULL and *request_p NULL are fine. */
DCOMM_API dcomm_status dcomm_request_free(dcomm_request **request_p);

/* Facts about an operation. */
typedef struct dcomm_request_info {
    dcomm_coll coll;   /* the operation */
    const char *algo;  /* the algorithm that runs; constant text */
    uint64_t sequence; /* number of the collective on its communicator, from 0 */
} dcomm_request_info;
/* Describe the operation of a request in *info. Call it between the start of the operation and the
 * wait.
 * Errors: DCOMM_ERR_INVALID (request or info is NULL). */
DCOMM_API dcomm_status dcomm_request_get_info(const dcomm_request *request,
                                              dcomm_request_info *info);

/* Begin a group: until dcomm_group_end, queue every operation that this thread starts, on any
 * number of communicators. Groups nest: only the outermost end starts the operations. */
DCOMM_API dcomm_status dcomm_group_start(void);
/* End a group: start its operations together and wait for the blocking ones. Every context
 * involved makes progress meanwhile. Requests of the non-blocking operations are valid afterwards.
 * Returns the first error; the other operations start nevertheless. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_group_end(void);

#ifdef __cplusplus
}
#endif
#endif
