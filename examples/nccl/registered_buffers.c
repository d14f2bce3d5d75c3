/* Use buffers from ncclMemAlloc, registered as buffers or as windows. At the end, finalize and
 * destroy the communicators, and reset the devices, as NVIDIA's tests do. */
#include "check.h"

#define MAX_DEVICES 8

typedef struct device {
    ncclComm_t comm;
    cudaStream_t stream;
    float *send, *recv;
    void *registered;    /* handle of the send buffer */
    ncclWindow_t window; /* window of the receive buffer */
} device;

int main(int argc, char **argv)
{
    const size_t n = 300007, bytes = n * sizeof(float);
    int ndev = argc > 1 ? atoi(argv[1]) : 4, wrong = 0;
    ncclComm_t comms[MAX_DEVICES];
    device dev[MAX_DEVICES];
    if (ndev < 1 || ndev > MAX_DEVICES) {
        fprintf(stderr, "usage: registered_buffers [1 to %d devices]\n", MAX_DEVICES);
        return 2;
    }
    NCCLCHECK(ncclCommInitAll(comms, ndev, NULL));
    for (int i = 0; i < ndev; i++) {
        device *d = &dev[i];
        d->comm = comms[i];
        CUDACHECK(cudaSetDevice(i));
        CUDACHECK(cudaStreamCreate(&d->stream));
        NCCLCHECK(ncclMemAlloc((void **)&d->send, bytes));
        NCCLCHECK(ncclMemAlloc((void **)&d->recv, bytes));
        NCCLCHECK(ncclCommRegister(d->comm, d->send, bytes, &d->registered));
        NCCLCHECK(
            ncclCommWindowRegister(d->comm, d->recv, bytes, &d->window, NCCL_WIN_COLL_SYMMETRIC));
        float *numbers = device_numbers(n, (float)(i + 1));
        CUDACHECK(cudaMemcpy(d->send, numbers, bytes, cudaMemcpyDeviceToDevice));
        CUDACHECK(cudaFree(numbers));
    }
    for (int step = 0; step < 3; step++) {
        NCCLCHECK(ncclGroupStart());
        for (int i = 0; i < ndev; i++) {
            NCCLCHECK(ncclAllReduce(dev[i].send, dev[i].recv, n, ncclFloat, ncclSum, dev[i].comm,
                                    dev[i].stream));
        }
        NCCLCHECK(ncclGroupEnd());
    }
    for (int i = 0; i < ndev; i++) {
        device *d = &dev[i];
        CUDACHECK(cudaSetDevice(i));
        CUDACHECK(cudaStreamSynchronize(d->stream));
        wrong += wrong_numbers("the sum", d->recv, n, 0.5f * (float)(ndev + 1), (float)ndev);
        NCCLCHECK(ncclCommDeregister(d->comm, d->registered));
        NCCLCHECK(ncclCommWindowDeregister(d->comm, d->window));
        NCCLCHECK(ncclMemFree(d->send));
        NCCLCHECK(ncclMemFree(d->recv));
        CUDACHECK(cudaStreamDestroy(d->stream));
    }
    for (int i = 0; i < ndev; i++) {
        NCCLCHECK(ncclCommFinalize(comms[i]));
    }
    for (int i = 0; i < ndev; i++) {
        NCCLCHECK(ncclCommDestroy(comms[i]));
    }
    for (int i = 0; i < ndev; i++) {
        CUDACHECK(cudaSetDevice(i));
        CUDACHECK(cudaDeviceReset());
    }
    printf("%d devices, registered buffers: %s\n", ndev, wrong ? "wrong" : "right");
    return wrong != 0;
}
