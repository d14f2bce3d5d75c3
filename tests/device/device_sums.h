/* device_sums.h - an all-reduce of device memory while the host stand-in for CUDA is late,
 * reorders work, or fails. */
#ifndef DEVICE_SUMS_H
#define DEVICE_SUMS_H

#include "cuda_host.h"
#include "device_ranks.h"

enum { COUNT = 700000 };

/* device: the value of opts.device. */
typedef struct device_sum {
    const char *algo; /* compressed ones lose nothing; coded_allgather uses DGC with a clip */
    int salt;
    cudaStream_t stream;            /* NULL: none */
    const cuda_host_faults *faults; /* NULL: none */
    bool device;
    /* Results: bytes copied between host and device during the call; elements that are wrong. */
    uint64_t copied;
    size_t wrong;
} device_sum;

static inline float device_sum_value(const device_sum *s, bool sparse, int rank, size_t i)
{
    const bool zero = sparse && i % 16 != 0;
    return zero ? 0 : (float)((i * 7 + (size_t)s->salt * 13 + (size_t)rank * 5) % 601);
}

static inline dcomm_status device_sum_run(dcomm_comm *comm, device_sum *s)
{
    static const cuda_host_faults none;
    int rank = dcomm_comm_rank(comm), n = dcomm_comm_size(comm);
    const size_t bytes = COUNT * sizeof(float);
    const bool sparse = strcmp(s->algo, "coded_sparse") == 0; /* coded_sparse sends few elements */
    float *host = malloc(bytes), *device = NULL;
    dcomm_coll_opts opts = {
        .algo = s->algo, .stream = s->stream, .timeout_s = 20, .device = s->device};
    dcomm_codec *codec = NULL;
    cuda_host_counts before, after;
    PROCS_TRUE(host != NULL);
    if (strcmp(s->algo, "coded_allgather") == 0) {
        const dcomm_feedback_opts dgc = {.variant = DCOMM_FEEDBACK_DGC, .clip = 1e30};
        RANKS_OK(dcomm_codec_create("topk:k=700000", &codec));
        RANKS_OK(dcomm_feedback_create(codec, COUNT, &dgc, &opts.feedback));
    } else if (sparse) {
        RANKS_OK(dcomm_codec_create("topk:k=70000", &codec));
        opts.codec = codec;
    } else if (strncmp(s->algo, "coded_", 6) == 0) {
        RANKS_OK(dcomm_codec_create("f16", &codec)); /* exact for these numbers */
        opts.codec = codec;
    }
    CUDA_OK(cudaMalloc((void **)&device, bytes));
    for (size_t i = 0; i < COUNT; i++) {
        host[i] = device_sum_value(s, sparse, rank, i);
    }
    device_put(device, host, bytes);
    cuda_host_get_counts(&before);
    cuda_host_set_faults(s->faults != NULL ? s->faults : &none);
    dcomm_request *request = NULL;
    dcomm_status status =
        dcomm_iallreduce(comm, device, device, COUNT, DCOMM_F32, DCOMM_SUM, &opts, &request);
    status = status < 0 ? status : dcomm_wait(&request);
    if (s->stream != NULL) { /* a device's fault is reported by the stream, too */
        (void)cudaStreamSynchronize(s->stream);
    }
    cuda_host_set_faults(&none);
    cuda_host_get_counts(&after);
    s->copied =
        after.to_host.bytes - before.to_host.bytes + after.to_device.bytes - before.to_device.bytes;
    s->wrong = 0;
    if (status == DCOMM_OK) {
        CUDA_OK(cudaMemcpy(host, device, bytes, cudaMemcpyDeviceToHost));
        for (size_t i = 0; i < COUNT; i++) {
            float want = 0;
            for (int r = 0; r < n; r++) {
                want += device_sum_value(s, sparse, r, i);
            }
            s->wrong += host[i] != want;
        }
    }
    (void)cudaFree(device);
    RANKS_OK(dcomm_feedback_destroy(&opts.feedback));
    RANKS_OK(dcomm_codec_destroy(&codec));
    free(host);
    return status;
}

/* Run each algorithm with all work late, then also out of order; `s` has the other options. */
static inline void device_sums_late(dcomm_comm *comm, const char *const *algos, int nalgos,
                                    double delay_s, device_sum s)
{
    for (int k = 0; k < 2 * nalgos; k++) {
        const int rank = dcomm_comm_rank(comm);
        const cuda_host_faults faults = {.delay_s = delay_s,
                                         .shuffle = k % 2 ? (uint64_t)(17 * k + rank + 1) : 0};
        s.algo = algos[k / 2];
        s.salt = k;
        s.faults = &faults;
        dcomm_status status = device_sum_run(comm, &s);
        PROCS_CHECK(status == DCOMM_OK && s.wrong == 0, "%s: %s: %s; %zu are wrong", s.algo,
                    dcomm_status_name(status), dcomm_comm_error(comm), s.wrong);
    }
}

#endif
