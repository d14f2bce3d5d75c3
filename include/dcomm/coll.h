/* coll.h - collectives, point-to-point, requests and groups.
 *
 * Where the implementation is built with DCOMM_WITH_CUDA, buffers may also be device memory, all of
 * one call's on one device, aligned to their element; docs/cuda.md says how they travel.
 *
 * Buffers are the caller's, of any alignment, and are in use from the call until the operation is
 * complete. Counts are elements. `opts` may be NULL. In place: pass DCOMM_IN_PLACE as sendbuf, or
 * the pointer that NCCL's rules name (noted at each collective). A NULL buffer is legal only with
 * count 0. What is read and what is written must not overlap but as in place; a call on buffers that
 * overlap in part is refused. Every rank calls the collectives of one communicator in the same order
 * with fitting arguments; where they do not fit, or one rank's call is refused, every other rank gets
 * DCOMM_ERR_MISMATCH (docs/errors.md).
 *
 * The blocking form of dcomm_ix is dcomm_x: the same arguments without the request. Between
 * dcomm_group_start and dcomm_group_end both only queue the operation.
 *
 * Results are bitwise the same on every rank, and from run to run with the same algorithm. */
#ifndef DCOMM_COLL_H
#define DCOMM_COLL_H

#include "comm.h"
#include "feedback.h"
#include "plan.h"

#ifdef __cplusplus
extern "C" {
#endif

#define DCOMM_IN_PLACE ((const void *)(uintptr_t)-1)

/* All zero means the defaults. Everything here must be the same on every rank of the call, where it
 * does not say otherwise. */
typedef struct dcomm_coll_opts {
    const char *algo;       /* algorithm by name; it runs or the call fails (default: the
                               communicator's, else chosen by size) */
    bool deterministic;     /* fold in rank order, so that bits do not depend on size, bucketing,
                               chunking or placement (default: the communicator's; ordered
                               operators always, dcomm_op_opts) */
    dcomm_dtype accumulate; /* DCOMM_F32: f16 and bf16 are sent once, all contributions to an
                               element added in f32 by one rank and rounded once, so that the error
                               does not grow with the number of ranks; by the algorithms that fold
                               in rank order. Other dtypes: no effect. DCOMM_F64 is 0 and means
                               the default: adding in f64 cannot be asked for (default: 0,
                               algorithms that pass sums on round them at each rank, unless
                               deterministic) */
    double timeout_s;       /* (default: 0, the communicator's) */
    double premul;          /* DCOMM_PREMUL_SUM: factor on this rank's input; may differ by rank.
                               Floats are multiplied as floats. Integers below 64 bits are
                               multiplied in f64 and clamped; those of 64 bits as integers that
                               wrap around, where the factor is an integer (default: 0 is taken as
                               1: give a factor of 0 by premul_p) */
    const void *premul_p;   /* likewise the factor, as one value of the call's dtype, exact, and 0
                               where it is 0. Read before the call returns, of any alignment; may
                               be NULL on some ranks and not on others (default: NULL, premul) */
    int lanes;              /* parallel rings or trees, where the algorithm has them (default: 1) */
    size_t chunk_bytes;     /* pipelining grain (default: the communicator's) */
    /* All-to-all-v: [size * size], what rank i sends to rank j at i * size + j, where every rank
     * knows all of it. The algorithm is chosen by it, and bruck and hier need not ask for it first.
     * Read before the call returns (default: NULL, each rank knows its own counts; the algorithm
     * is chosen as for blocks of 64 KiB) */
    const size_t *matrix;
    bool registered; /* a promise that the buffers of all ranks are registered (mem.h), by which
                        the algorithm is chosen, and blocks of 4 to 32 KiB are read where they lie
                        instead of sent. The same on all ranks. What is not registered after all is
                        served, if slower (default: false) */
    bool huge_pages; /* likewise a promise that they lie on huge pages (madvise MADV_HUGEPAGE),
                        which are read by the kernel at up to twice the speed; registered says
                        more (default: false) */
    bool device; /* likewise a promise that they are device memory: messages are longer then, and
                    what is between host and device is counted. With registered, that ranks of one
                    host read each other's where it lies: memory from dcomm_mem_alloc_device on
                    devices that can, or threads that share one device (default: false) */
    /* A cudaStream_t. The operation begins when what the stream holds now has been done, and what
     * is put on the stream later waits for its result. The call returns once that is arranged; its
     * errors show in dcomm_comm_status, and never hold the stream up. A request may be asked for
     * all the same. Of operations in a group, the stream counts at dcomm_group_end. May differ by
     * rank; buffers may be host memory too. From the first such call on, the context has a progress
     * thread. NULL is no stream (cuda.h): the operation begins at once.
     * Errors: DCOMM_ERR_UNSUPPORTED (built without DCOMM_WITH_CUDA; the stream is being captured
     * into a graph; the driver cannot let a stream wait), DCOMM_ERR_INVALID (another rank of this
     * process has put the same operation on this stream, or one of the two is the legacy default
     * stream and the other waits for that, so that each would wait for the other: one group may
     * hold both). (default: NULL) */
    void *stream;
    /* All-reduce of sums and averages of floats: what is sent is encoded with this codec, lossily;
     * tensors of fewer than 2,048 elements and integers are not. The spec must be the same on every
     * rank. In use until the operation is complete. Without feedback nothing is remembered from call
     * to call: powersgd begins each one cold. See docs/codecs.md (default: NULL, exact) */
    const dcomm_codec *codec;
    dcomm_feedback *feedback; /* what the codec rounds away is kept here and sent the next time; one
                                 per tensor and rank, in use until the operation is complete, of
                                 `count` elements. Its codec is taken where codec is NULL, and its
                                 seed. Committed when the operation succeeds, stale when it fails.
                                 Its residuals move to where the buffers are, on a device or in host
                                 memory. A call may come while one before it with this state is
                                 under way on the same stream, but not where the codec is linear or
                                 the state warms up (default: NULL, none) */
    uint64_t codec_seed;      /* of the codec's random numbers (default: 0). Of linear codecs, whose
                                 encodings are summed, it must be the same on every rank, and
                                 codec_step too; with feedback its seed, tensor and step */
    uint64_t codec_step; /* likewise: differs from call to call. Count from 1 (default: 0 is taken
                            as the number of the collective on its communicator) */
    dcomm_codec_report *codec_report; /* what this rank's encodings did, all together (`kept` and
                                         `bytes` are sums over them; `nonzero` and `summed` are of
                                         the result); written until the operation is complete; may
                                         differ by rank (default: NULL) */
    dcomm_ledger *codec_ledger; /* errors of this rank's encodings are added to it: what arrives of
                                   what it sends, and with feedback what it holds back (instead of
                                   the state's own ledger). A sum that this rank encodes again is
                                   compared with nothing: its bits count, and what feedback holds
                                   back of it. In use until the operation is complete; may differ by
                                   rank (default: NULL) */
} dcomm_coll_opts;

/* Sum over ranks: recvbuf[i] = op over ranks of sendbuf[i], on every rank. In place: sendbuf ==
 * recvbuf. Algorithms: ring, tree, binomial, recursive_doubling, halving_doubling, one_shot,
 * two_shot, staged, star, hier, hier_leader; see docs/algorithms.md for the cost of each. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_iallreduce(dcomm_comm *comm, const void *sendbuf,
                                                      void *recvbuf, size_t count,
                                                      dcomm_dtype dtype, dcomm_op op,
                                                      const dcomm_coll_opts *opts,
                                                      dcomm_request **request_p);
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_allreduce(dcomm_comm *comm, const void *sendbuf,
                                                     void *recvbuf, size_t count, dcomm_dtype dtype,
                                                     dcomm_op op, const dcomm_coll_opts *opts);

/* sendbuf holds size*recvcount elements; rank r gets the reduced block r. In place: recvbuf ==
 * sendbuf + rank*recvcount (DCOMM_IN_PLACE: recvbuf is the whole buffer, and rank's block of it
 * takes the result). */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_ireduce_scatter(dcomm_comm *comm, const void *sendbuf,
                                                           void *recvbuf, size_t recvcount,
                                                           dcomm_dtype dtype, dcomm_op op,
                                                           const dcomm_coll_opts *opts,
                                                           dcomm_request **request_p);
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_reduce_scatter(dcomm_comm *comm, const void *sendbuf,
                                                          void *recvbuf, size_t recvcount,
                                                          dcomm_dtype dtype, dcomm_op op,
                                                          const dcomm_coll_opts *opts);
/* The same with recvcounts[size] elements per rank, packed in rank order in sendbuf. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_ireduce_scatterv(dcomm_comm *comm, const void *sendbuf,
                                                            void *recvbuf, const size_t *recvcounts,
                                                            dcomm_dtype dtype, dcomm_op op,
                                                            const dcomm_coll_opts *opts,
                                                            dcomm_request **request_p);
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_reduce_scatterv(dcomm_comm *comm, const void *sendbuf,
                                                           void *recvbuf, const size_t *recvcounts,
                                                           dcomm_dtype dtype, dcomm_op op,
                                                           const dcomm_coll_opts *opts);

/* recvbuf holds size*sendcount elements, block r from rank r. In place: sendbuf == recvbuf +
 * rank*sendcount. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_iallgather(dcomm_comm *comm, const void *sendbuf,
                                                      void *recvbuf, size_t sendcount,
                                                      dcomm_dtype dtype,
                                                      const dcomm_coll_opts *opts,
                                                      dcomm_request **request_p);
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_allgather(dcomm_comm *comm, const void *sendbuf,
                                                     void *recvbuf, size_t sendcount,
                                                     dcomm_dtype dtype,
                                                     const dcomm_coll_opts *opts);
/* Rank r's recvcounts[r] elements go to recvbuf + displs[r] (displs NULL: packed in rank order).
 * In place: rank's own part already lies there. Blocks must not overlap. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_iallgatherv(dcomm_comm *comm, const void *sendbuf,
                                                       void *recvbuf, const size_t *recvcounts,
                                                       const size_t *displs, dcomm_dtype dtype,
                                                       const dcomm_coll_opts *opts,
                                                       dcomm_request **request_p);
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_allgatherv(dcomm_comm *comm, const void *sendbuf,
                                                      void *recvbuf, const size_t *recvcounts,
                                                      const size_t *displs, dcomm_dtype dtype,
                                                      const dcomm_coll_opts *opts);

/* root's sendbuf to every recvbuf. sendbuf is read on root only; in place on root: sendbuf ==
 * recvbuf. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_ibroadcast(dcomm_comm *comm, const void *sendbuf,
                                                      void *recvbuf, size_t count,
                                                      dcomm_dtype dtype, int root,
                                                      const dcomm_coll_opts *opts,
                                                      dcomm_request **request_p);
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_broadcast(dcomm_comm *comm, const void *sendbuf,
                                                     void *recvbuf, size_t count, dcomm_dtype dtype,
                                                     int root, const dcomm_coll_opts *opts);

/* Like all-reduce, with the result on root only; recvbuf is not touched elsewhere (may be NULL). */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_ireduce(dcomm_comm *comm, const void *sendbuf,
                                                   void *recvbuf, size_t count, dcomm_dtype dtype,
                                                   dcomm_op op, int root,
                                                   const dcomm_coll_opts *opts,
                                                   dcomm_request **request_p);
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_reduce(dcomm_comm *comm, const void *sendbuf,
                                                  void *recvbuf, size_t count, dcomm_dtype dtype,
                                                  dcomm_op op, int root,
                                                  const dcomm_coll_opts *opts);

/* sendcount elements from each rank to root's recvbuf, in rank order. In place on root: sendbuf
 * == recvbuf + root*sendcount. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_igather(dcomm_comm *comm, const void *sendbuf,
                                                   void *recvbuf, size_t sendcount,
                                                   dcomm_dtype dtype, int root,
                                                   const dcomm_coll_opts *opts,
                                                   dcomm_request **request_p);
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_gather(dcomm_comm *comm, const void *sendbuf,
                                                  void *recvbuf, size_t sendcount,
                                                  dcomm_dtype dtype, int root,
                                                  const dcomm_coll_opts *opts);
/* counts[size] and displs[size] (NULL: packed) are given, alike, on every rank. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_igatherv(dcomm_comm *comm, const void *sendbuf,
                                                    void *recvbuf, const size_t *counts,
                                                    const size_t *displs, dcomm_dtype dtype,
                                                    int root, const dcomm_coll_opts *opts,
                                                    dcomm_request **request_p);
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_gatherv(dcomm_comm *comm, const void *sendbuf,
                                                   void *recvbuf, const size_t *counts,
                                                   const size_t *displs, dcomm_dtype dtype,
                                                   int root, const dcomm_coll_opts *opts);

/* recvcount elements from root's sendbuf to each rank, in rank order. In place on root: recvbuf
 * == sendbuf + root*recvcount (DCOMM_IN_PLACE: recvbuf is the whole buffer). */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_iscatter(dcomm_comm *comm, const void *sendbuf,
                                                    void *recvbuf, size_t recvcount,
                                                    dcomm_dtype dtype, int root,
                                                    const dcomm_coll_opts *opts,
                                                    dcomm_request **request_p);
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_scatter(dcomm_comm *comm, const void *sendbuf,
                                                   void *recvbuf, size_t recvcount,
                                                   dcomm_dtype dtype, int root,
                                                   const dcomm_coll_opts *opts);
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_iscatterv(dcomm_comm *comm, const void *sendbuf,
                                                     void *recvbuf, const size_t *counts,
                                                     const size_t *displs, dcomm_dtype dtype,
                                                     int root, const dcomm_coll_opts *opts,
                                                     dcomm_request **request_p);
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_scatterv(dcomm_comm *comm, const void *sendbuf,
                                                    void *recvbuf, const size_t *counts,
                                                    const size_t *displs, dcomm_dtype dtype,
                                                    int root, const dcomm_coll_opts *opts);

/* Block p of sendbuf (count elements) goes to rank p, which puts it at block `rank` of its recvbuf.
 * In place: sendbuf == recvbuf. Algorithms: pairwise, bruck, linear. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_ialltoall(dcomm_comm *comm, const void *sendbuf,
                                                     void *recvbuf, size_t count, dcomm_dtype dtype,
                                                     const dcomm_coll_opts *opts,
                                                     dcomm_request **request_p);
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_alltoall(dcomm_comm *comm, const void *sendbuf,
                                                    void *recvbuf, size_t count, dcomm_dtype dtype,
                                                    const dcomm_coll_opts *opts);
/* sendcounts[p] elements at sendbuf + sdispls[p] go to rank p, and recvcounts[p] come from it to
 * recvbuf + rdispls[p]; displacements may be NULL for packed, and are not looked at where the count
 * is 0. What p sends me must equal my recvcounts[p]: a message of another length is
 * DCOMM_ERR_MISMATCH on every rank. Not in place: no block that is sent may overlap one that is
 * received. */
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

/* Nobody leaves before everybody has come. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_ibarrier(dcomm_comm *comm, const dcomm_coll_opts *opts,
                                                    dcomm_request **request_p);
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_barrier(dcomm_comm *comm, const dcomm_coll_opts *opts);

/* Point-to-point: the n-th send from a to b meets the n-th receive of b from a, on one
 * communicator, with equal counts; a rank does not send to itself. A send may complete before the
 * receive is posted, and may also not: write programs that do not depend on it. */
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

/* Run a plan of the caller's own as the next collective of comm: plan is this rank's part, for
 * plan->rank == comm's rank and plan->nranks == comm's size. `signature` must be equal on all
 * ranks (it is what mismatches are found by). state is plan->state_bytes of persistent memory, or
 * NULL if that is 0. The plan stays in use until the operation is complete. The call refuses, with
 * DCOMM_ERR_PLAN, what is wrong on the face of it; an operand outside its space fails the operation
 * when the engine comes to it. Table lookups out of bounds, races and deadlocks are not found here:
 * check a plan first (dcomm_plan_check). */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_iplan_run(dcomm_comm *comm, const dcomm_plan *plan,
                                                     const void *in, void *out, void *state,
                                                     uint32_t signature,
                                                     const dcomm_coll_opts *opts,
                                                     dcomm_request **request_p);
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_plan_run(dcomm_comm *comm, const dcomm_plan *plan,
                                                    const void *in, void *out, void *state,
                                                    uint32_t signature,
                                                    const dcomm_coll_opts *opts);

/* Wait until *request_p is complete, give its result and set *request_p to NULL. Progresses every
 * communicator of the context, so the order of waits cannot deadlock. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_wait(dcomm_request **request_p);
/* The same for n requests (NULL ones are skipped); the first error in order is returned. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_wait_all(dcomm_request **requests, size_t n);
/* DCOMM_IN_PROGRESS, or the result, with *request_p set to NULL. Progresses once. After some tests
 * in a row in which nothing happened, each yields the core as waiting does (so does
 * dcomm_context_progress): a loop of tests leaves it to ranks that share it. */
DCOMM_API dcomm_status dcomm_test(dcomm_request **request_p);

/* Of n requests, NULL ones are skipped. What is complete is given its result and set to NULL; who
 * waits or tests progresses, and yields, as above. Requests that are queued in a group are not
 * complete; waiting for nothing else is DCOMM_ERR_INVALID. */
/* DCOMM_IN_PROGRESS, with no request changed, until all are complete; then as dcomm_wait_all. */
DCOMM_API dcomm_status dcomm_test_all(dcomm_request **requests, size_t n);
/* Wait for one of them: its result, and its index in *index_p; n where all are NULL. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_wait_any(dcomm_request **requests, size_t n,
                                                    size_t *index_p);
/* The same without waiting: DCOMM_IN_PROGRESS where none is complete. */
DCOMM_API dcomm_status dcomm_test_any(dcomm_request **requests, size_t n, size_t *index_p);
/* Wait until at least one is complete, and take all that are: *count_p of them, 0 where all are
 * NULL, whose indices go to indices[n] (may be NULL), ascending. The first error is returned. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_wait_some(dcomm_request **requests, size_t n,
                                                     size_t *indices, size_t *count_p);
/* Give a request up and set it to NULL: its operation goes on, nobody is told when it is complete,
 * and its buffers stay in use until then (dcomm_comm_destroy waits for it). If it fails, so does
 * the communicator. NULL and *request_p NULL are good. */
DCOMM_API dcomm_status dcomm_request_free(dcomm_request **request_p);

/* What ran. Ask between the call and the wait. */
typedef struct dcomm_request_info {
    dcomm_coll coll;
    const char *algo;  /* the algorithm that runs; constant text */
    uint64_t sequence; /* number of the collective on its communicator, from 0 */
} dcomm_request_info;
DCOMM_API dcomm_status dcomm_request_get_info(const dcomm_request *request, dcomm_request_info *info);

/* Queue every operation that this thread starts from here to dcomm_group_end, on any number of
 * communicators, and start them together there. dcomm_group_end waits for the blocking ones among
 * them, progressing every context involved; requests of the non-blocking ones are valid after it.
 * Groups nest; the outermost end starts. Errors: the first one, with the others still started. */
DCOMM_API dcomm_status dcomm_group_start(void);
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_group_end(void);

#ifdef __cplusplus
}
#endif
#endif
