/* Run every collective, out of place and in place. Here all devices are in one process;
 * process_per_device.c shows one process per device. */
#include "check.h"

#define MAX_DEVICES 8

typedef struct device {
    ncclComm_t comm;
    cudaStream_t stream;
    float *in, *out; /* N blocks of n numbers each; block b of `in` is rank + 1 + 10 b */
} device;

static device dev[MAX_DEVICES];
static int ndev;
static const size_t n = 5003;

static void fill(void)
{
    for (int i = 0; i < ndev; i++) {
        CUDACHECK(cudaSetDevice(i));
        for (int b = 0; b < ndev; b++) {
            float *numbers = device_numbers(n, (float)(i + 1 + 10 * b));
            CUDACHECK(cudaMemcpyAsync(dev[i].in + (size_t)b * n, numbers, n * sizeof(float),
                                      cudaMemcpyDeviceToDevice, dev[i].stream));
            CUDACHECK(cudaStreamSynchronize(dev[i].stream));
            CUDACHECK(cudaFree(numbers));
        }
        CUDACHECK(cudaMemsetAsync(dev[i].out, 0, (size_t)ndev * n * sizeof(float), dev[i].stream));
    }
}

static void finish(void)
{
    for (int i = 0; i < ndev; i++) {
        CUDACHECK(cudaSetDevice(i));
        CUDACHECK(cudaStreamSynchronize(dev[i].stream));
    }
}

/* Check the sum over ranks of block b. wrong_numbers takes it as a value and a scale. */
static int wrong_sum(const char *what, const float *at, int b)
{
    return wrong_numbers(what, at, n, 0.5f * (float)(ndev + 1) + 10.0f * (float)b, (float)ndev);
}

static int wrong_block(const char *what, const float *at, int rank, int b)
{
    return wrong_numbers(what, at, n, (float)(rank + 1 + 10 * b), 1);
}

#define EACH_DEVICE(call)                \
    do {                                 \
        fill();                          \
        NCCLCHECK(ncclGroupStart());     \
        for (int i = 0; i < ndev; i++) { \
            device *d = &dev[i];         \
            NCCLCHECK(call);             \
        }                                \
        NCCLCHECK(ncclGroupEnd());       \
        finish();                        \
    } while (0)

static int reductions(int in_place)
{
    const char *where = in_place ? "in place" : "out of place";
    const int root = ndev - 1;
    int wrong = 0;
    EACH_DEVICE(
        ncclAllReduce(d->in, in_place ? d->in : d->out, n, ncclFloat, ncclSum, d->comm, d->stream));
    for (int i = 0; i < ndev; i++) {
        wrong += wrong_sum("all-reduce", in_place ? dev[i].in : dev[i].out, 0);
    }
    EACH_DEVICE(ncclReduce(d->in, in_place ? d->in : d->out, n, ncclFloat, ncclSum, root, d->comm,
                           d->stream));
    wrong += wrong_sum("reduce", in_place ? dev[root].in : dev[root].out, 0);
    EACH_DEVICE(ncclReduceScatter(d->in, in_place ? d->in + (size_t)i * n : d->out, n, ncclFloat,
                                  ncclSum, d->comm, d->stream));
    for (int i = 0; i < ndev; i++) {
        wrong += wrong_sum("reduce-scatter", in_place ? dev[i].in + (size_t)i * n : dev[i].out, i);
    }
    if (wrong) {
        fprintf(stderr, "reductions %s\n", where);
    }
    return wrong;
}

static int moves(int in_place)
{
    const int root = ndev / 2;
    int wrong = 0;
    EACH_DEVICE(
        ncclBroadcast(d->in, in_place ? d->in : d->out, n, ncclFloat, root, d->comm, d->stream));
    for (int i = 0; i < ndev; i++) {
        wrong += wrong_block("broadcast", in_place ? dev[i].in : dev[i].out, root, 0);
    }
    EACH_DEVICE(ncclAllGather(in_place ? d->in + (size_t)i * n : d->in, in_place ? d->in : d->out,
                              n, ncclFloat, d->comm, d->stream));
    for (int i = 0; i < ndev; i++) {
        for (int b = 0; b < ndev; b++) {
            wrong += wrong_block("all-gather", (in_place ? dev[i].in : dev[i].out) + (size_t)b * n,
                                 b, in_place ? b : 0);
        }
    }
    EACH_DEVICE(ncclGather(in_place ? d->in + (size_t)i * n : d->in, in_place ? d->in : d->out, n,
                           ncclFloat, root, d->comm, d->stream));
    for (int b = 0; b < ndev; b++) {
        wrong += wrong_block("gather", (in_place ? dev[root].in : dev[root].out) + (size_t)b * n, b,
                             in_place ? b : 0);
    }
    EACH_DEVICE(ncclScatter(d->in, in_place && i == root ? d->in + (size_t)root * n : d->out, n,
                            ncclFloat, root, d->comm, d->stream));
    for (int i = 0; i < ndev; i++) {
        wrong += wrong_block(
            "scatter", in_place && i == root ? dev[i].in + (size_t)i * n : dev[i].out, root, i);
    }
    return wrong;
}

int main(int argc, char **argv)
{
    int wrong = 0;
    ncclComm_t comms[MAX_DEVICES];
    ndev = argc > 1 ? atoi(argv[1]) : 4;
    if (ndev < 1 || ndev > MAX_DEVICES) {
        fprintf(stderr, "usage: all_collectives [1 to %d devices]\n", MAX_DEVICES);
        return 2;
    }
    NCCLCHECK(ncclCommInitAll(comms, ndev, NULL));
    for (int i = 0; i < ndev; i++) {
        dev[i].comm = comms[i];
        CUDACHECK(cudaSetDevice(i));
        CUDACHECK(cudaStreamCreate(&dev[i].stream));
        CUDACHECK(cudaMalloc((void **)&dev[i].in, (size_t)ndev * n * sizeof(float)));
        NCCLCHECK(ncclMemAlloc((void **)&dev[i].out, (size_t)ndev * n * sizeof(float)));
    }
    for (int in_place = 0; in_place < 2; in_place++) {
        wrong += reductions(in_place);
        wrong += moves(in_place);
    }
    EACH_DEVICE(ncclAlltoAll(d->in, d->out, n, ncclFloat, d->comm, d->stream));
    for (int i = 0; i < ndev; i++) {
        for (int b = 0; b < ndev; b++) {
            wrong += wrong_block("all-to-all", dev[i].out + (size_t)b * n, b, i);
        }
    }
    for (int i = 0; i < ndev; i++) {
        CUDACHECK(cudaSetDevice(i));
        CUDACHECK(cudaFree(dev[i].in));
        NCCLCHECK(ncclMemFree(dev[i].out));
        CUDACHECK(cudaStreamDestroy(dev[i].stream));
        NCCLCHECK(ncclCommDestroy(dev[i].comm));
    }
    printf("every collective on %d devices: %s\n", ndev, wrong ? "wrong" : "right");
    return wrong != 0;
}
