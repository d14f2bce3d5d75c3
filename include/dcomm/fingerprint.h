/* fingerprint.h - compare tensors among ranks and runs, without sending them.
 *
 * Ranks of data parallelism should hold the same weights, bit for bit. If they do not (a rank has
 * missed an update, a kernel is not deterministic, memory is broken), training goes on and gets
 * worse. Compare now and then:
 *
 *     dcomm_fingerprint_tensor weights[] = {{"w1", w1, sizeof w1}, {"b1", b1, sizeof b1}};
 *     if (dcomm_fingerprint_compare(comm, weights, 2, NULL) < 0) {
 *         fprintf(stderr, "step %d: %s\n", step, dcomm_last_error());
 *     }
 *
 * To compare runs, print dcomm_fingerprint of each tensor; tools/first-difference.py finds the
 * first step and tensor in which two logs differ (docs/fingerprint.md). */
#ifndef DCOMM_FINGERPRINT_H
#define DCOMM_FINGERPRINT_H

#include "comm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A tensor in host memory. */
typedef struct dcomm_fingerprint_tensor {
    const char *name; /* NULL: its number in sentences; the same as "" in a fingerprint */
    const void *data; /* may be NULL if there are no bytes */
    size_t bytes; /* of it */
} dcomm_fingerprint_tensor;

/* Return a hash of the tensors: of their order, names, lengths and bytes. Ranks, runs and machines
 * get the same number for the same tensors. Two arrays that differ in one aligned word of 8 bytes
 * never have the same hash; others do by chance, once in 2^64. It is no protection from somebody
 * who wants two tensors to have the same hash. -0 and 0 differ, and so do NaNs of other bits. Reads
 * memory once. Returns 0 if `tensors` is NULL. */
DCOMM_API uint64_t dcomm_fingerprint(const dcomm_fingerprint_tensor *tensors, size_t n);

/* The first difference between ranks. */
typedef struct dcomm_fingerprint_difference {
    size_t tensor; /* number of the first tensor that is not the same on all ranks; n: none */
    int rank;      /* the first rank whose tensor differs from that of most ranks; -1: none */
    int usual;     /* the first of those that most ranks agree with: the lowest of equals */
} dcomm_fingerprint_difference;

/* Compare the tensors of all ranks, and describe the first difference in *difference (may be
 * NULL). Collective. Each rank sends 16 bytes; if there is a difference, also 8 for each tensor.
 * Errors, on all ranks: DCOMM_ERR_MISMATCH (they differ; the sentence names the rank and the
 * tensor), DCOMM_ERR_INVALID (a rank has another n, or a tensor of NULL with bytes), those of
 * all-gather. After the first two the communicator still works. The other ranks are not told if
 * comm is NULL. */
DCOMM_API DCOMM_CHECKED dcomm_status
dcomm_fingerprint_compare(dcomm_comm *comm, const dcomm_fingerprint_tensor *tensors, size_t n,
                          dcomm_fingerprint_difference *difference);

#ifdef __cplusplus
}
#endif
#endif
