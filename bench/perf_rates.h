/* perf_rates.h - measure the rates of a device's copies with all ranks at once. Collectives on its
 * memory are compared with them. */
#ifndef PERF_RATES_H
#define PERF_RATES_H

#include "perf_cuda.h"

/* GB/s of each rank while all copy; 0: not measured. */
typedef struct perf_rates {
    double pinned; /* from the device to pinned memory, and as much back at the same time */
    double within; /* from one place on the device to another */
} perf_rates;

#ifdef DCOMM_WITH_CUDA

#define PERF_RATE_BYTES ((size_t)32 << 20)
#define PERF_RATE_TIMES 5
#define PERF_RATE_ROW 16 /* a copy within a device takes less time than a call */

static bool perf_rate_put(char *host, char *device, cudaStream_t back, bool within)
{
    cudaStream_t there = perf_cuda_stream_now;
    bool good = true;
    for (int i = 0; within && good && i < PERF_RATE_ROW; i++) {
        good = perf_cuda_good(cudaMemcpyAsync(device, device + PERF_RATE_BYTES, PERF_RATE_BYTES,
                                              cudaMemcpyDefault, there),
                              "cudaMemcpyAsync");
    }
    if (!within) {
        good =
            perf_cuda_good(cudaMemcpyAsync(host, device, PERF_RATE_BYTES, cudaMemcpyDefault, there),
                           "cudaMemcpyAsync") &&
            perf_cuda_good(cudaMemcpyAsync(device + PERF_RATE_BYTES, host + PERF_RATE_BYTES,
                                           PERF_RATE_BYTES, cudaMemcpyDefault, back),
                           "cudaMemcpyAsync");
    }
    return good && perf_cuda_good(cudaStreamSynchronize(there), "cudaStreamSynchronize") &&
           perf_cuda_good(cudaStreamSynchronize(back), "cudaStreamSynchronize");
}

/* Set *rate to that of the slowest rank, in the fastest of a few repetitions. */
static bool perf_rate(dcomm_comm *comm, char *host, char *device, cudaStream_t back, bool within,
                      double *rate)
{
    double least = 0;
    for (int i = 0; i <= PERF_RATE_TIMES; i++) { /* the first warms up */
        bool good = dcomm_barrier(comm, NULL) == DCOMM_OK;
        double start = perf_now();
        good = good && perf_rate_put(host, device, back, within);
        double took = perf_now() - start, slowest = 0;
        if (!good ||
            dcomm_allreduce(comm, &took, &slowest, 1, DCOMM_F64, DCOMM_MAX, NULL) != DCOMM_OK) {
            return false;
        }
        least = i == 1 || slowest < least ? slowest : least;
    }
    *rate = 1e-9 * (double)PERF_RATE_BYTES * (within ? PERF_RATE_ROW : 1) / least;
    return true;
}

/* Measure the rates; collective. */
static bool perf_rates_measure(dcomm_comm *comm, perf_rates *rates)
{
    void *host = NULL, *device = NULL;
    cudaStream_t back = NULL;
    bool good = perf_cuda_start() &&
                perf_cuda_good(cudaHostAlloc(&host, 2 * PERF_RATE_BYTES, cudaHostAllocDefault),
                               "cudaHostAlloc") &&
                perf_cuda_good(cudaMalloc(&device, 2 * PERF_RATE_BYTES), "cudaMalloc") &&
                perf_cuda_good(cudaStreamCreateWithFlags(&back, cudaStreamNonBlocking),
                               "cudaStreamCreateWithFlags");
    good = good && perf_rate(comm, host, device, back, false, &rates->pinned) &&
           perf_rate(comm, host, device, back, true, &rates->within);
    if (back != NULL) {
        cudaStreamDestroy(back);
    }
    cudaFree(device);
    cudaFreeHost(host);
    return good;
}

#else

static inline bool perf_rates_measure(dcomm_comm *comm, perf_rates *rates)
{
    (void)comm, (void)rates;
    return true; /* perf_cuda_open reports that there is no device memory */
}

#endif
#endif
