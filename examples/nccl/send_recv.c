/* Use point-to-point calls: first a ring in which every rank sends and receives at once, then an
 * exchange between all pairs, including each rank with itself, in a group. One process, N
 * devices. */
#include "check.h"

#define MAX_DEVICES 8

int main(int argc, char **argv)
{
    const size_t n = 30011;
    int ndev = argc > 1 ? atoi(argv[1]) : 4, wrong = 0;
    ncclComm_t comms[MAX_DEVICES];
    cudaStream_t streams[MAX_DEVICES];
    float *send[MAX_DEVICES], *recv[MAX_DEVICES];
    if (ndev < 1 || ndev > MAX_DEVICES) {
        fprintf(stderr, "usage: send_recv [1 to %d devices]\n", MAX_DEVICES);
        return 2;
    }
    NCCLCHECK(ncclCommInitAll(comms, ndev, NULL));
    for (int i = 0; i < ndev; i++) {
        CUDACHECK(cudaSetDevice(i));
        CUDACHECK(cudaStreamCreate(&streams[i]));
        send[i] = device_numbers(n, (float)(i + 1));
        CUDACHECK(cudaMalloc((void **)&recv[i], (size_t)ndev * n * sizeof(float)));
    }

    NCCLCHECK(ncclGroupStart());
    for (int i = 0; i < ndev; i++) {
        NCCLCHECK(ncclGroupStart());
        NCCLCHECK(ncclSend(send[i], n, ncclFloat, (i + 1) % ndev, comms[i], streams[i]));
        NCCLCHECK(ncclRecv(recv[i], n, ncclFloat, (i + ndev - 1) % ndev, comms[i], streams[i]));
        NCCLCHECK(ncclGroupEnd());
    }
    NCCLCHECK(ncclGroupEnd());
    for (int i = 0; i < ndev; i++) {
        CUDACHECK(cudaSetDevice(i));
        CUDACHECK(cudaStreamSynchronize(streams[i]));
        wrong += wrong_numbers("from the left", recv[i], n, (float)((i + ndev - 1) % ndev + 1), 1);
    }

    NCCLCHECK(ncclGroupStart());
    for (int i = 0; i < ndev; i++) {
        for (int peer = 0; peer < ndev; peer++) {
            NCCLCHECK(ncclSend(send[i], n, ncclFloat, peer, comms[i], streams[i]));
            NCCLCHECK(
                ncclRecv(recv[i] + (size_t)peer * n, n, ncclFloat, peer, comms[i], streams[i]));
        }
    }
    NCCLCHECK(ncclGroupEnd());
    for (int i = 0; i < ndev; i++) {
        CUDACHECK(cudaSetDevice(i));
        CUDACHECK(cudaStreamSynchronize(streams[i]));
        for (int peer = 0; peer < ndev; peer++) {
            wrong +=
                wrong_numbers("from a peer", recv[i] + (size_t)peer * n, n, (float)(peer + 1), 1);
        }
        CUDACHECK(cudaFree(send[i]));
        CUDACHECK(cudaFree(recv[i]));
        CUDACHECK(cudaStreamDestroy(streams[i]));
        NCCLCHECK(ncclCommDestroy(comms[i]));
    }
    printf("sends and receives among %d devices: %s\n", ndev, wrong ? "wrong" : "right");
    return wrong != 0;
}
