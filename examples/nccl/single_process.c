/* Use N devices from one process and one thread: call ncclCommInitAll, and make the calls of all
 * devices in groups. */
#include "check.h"

#define MAX_DEVICES 8

int main(int argc, char **argv)
{
    const size_t n = 1 << 18;
    int ndev = argc > 1 ? atoi(argv[1]) : 4, wrong = 0;
    ncclComm_t comms[MAX_DEVICES];
    cudaStream_t streams[MAX_DEVICES];
    float *send[MAX_DEVICES], *recv[MAX_DEVICES];
    if (ndev < 1 || ndev > MAX_DEVICES) {
        fprintf(stderr, "usage: single_process [1 to %d devices]\n", MAX_DEVICES);
        return 2;
    }

    NCCLCHECK(ncclCommInitAll(comms, ndev, NULL));
    for (int i = 0; i < ndev; i++) {
        CUDACHECK(cudaSetDevice(i));
        CUDACHECK(cudaStreamCreate(&streams[i]));
        send[i] = device_numbers(n, (float)(i + 1));
        CUDACHECK(cudaMalloc((void **)&recv[i], n * sizeof(float)));
    }

    NCCLCHECK(ncclGroupStart());
    for (int i = 0; i < ndev; i++) {
        NCCLCHECK(ncclAllReduce(send[i], recv[i], n, ncclFloat, ncclAvg, comms[i], streams[i]));
    }
    NCCLCHECK(ncclGroupEnd());

    for (int i = 0; i < ndev; i++) {
        CUDACHECK(cudaSetDevice(i));
        CUDACHECK(cudaStreamSynchronize(streams[i]));
        wrong += wrong_numbers("the average", recv[i], n, 0.5f * (float)(ndev + 1), 1);
    }
    for (int i = 0; i < ndev; i++) {
        CUDACHECK(cudaSetDevice(i));
        CUDACHECK(cudaFree(send[i]));
        CUDACHECK(cudaFree(recv[i]));
        CUDACHECK(cudaStreamDestroy(streams[i]));
        NCCLCHECK(ncclCommDestroy(comms[i]));
    }
    printf("%d devices in one process: %s\n", ndev, wrong ? "wrong" : "right");
    return wrong != 0;
}
