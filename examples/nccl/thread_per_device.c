/* Run one thread per device, in one process. The main thread makes the id, and each thread joins
 * with it. */
#include "check.h"
#include <pthread.h>

#define MAX_DEVICES 8

typedef struct worker {
    ncclUniqueId id;
    int rank, size, wrong;
    pthread_t thread;
} worker;

static void *work(void *arg)
{
    worker *w = (worker *)arg;
    const size_t n = 100003;
    ncclComm_t comm;
    cudaStream_t stream;
    cudaEvent_t start, end;
    float ms = 0;
    int count = 0;
    CUDACHECK(cudaSetDevice(w->rank));
    NCCLCHECK(ncclCommInitRank(&comm, w->size, w->id, w->rank));
    NCCLCHECK(ncclCommCount(comm, &count));
    w->wrong += count != w->size;
    CUDACHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CUDACHECK(cudaEventCreate(&start));
    CUDACHECK(cudaEventCreate(&end));
    float *numbers = device_numbers(n, (float)(w->rank + 1));
    CUDACHECK(cudaEventRecord(start, stream));
    for (int step = 0; step < 10; step++) { /* no wait between the steps */
        NCCLCHECK(ncclAllReduce(numbers, numbers, n, ncclFloat, ncclMax, comm, stream));
    }
    CUDACHECK(cudaEventRecord(end, stream));
    CUDACHECK(cudaEventSynchronize(end));
    CUDACHECK(cudaEventElapsedTime(&ms, start, end));
    w->wrong += wrong_numbers("the maximum", numbers, n, (float)w->size, 1);
    CUDACHECK(cudaFree(numbers));
    CUDACHECK(cudaEventDestroy(start));
    CUDACHECK(cudaEventDestroy(end));
    CUDACHECK(cudaStreamDestroy(stream));
    NCCLCHECK(ncclCommDestroy(comm));
    return NULL;
}

int main(int argc, char **argv)
{
    int size = argc > 1 ? atoi(argv[1]) : 4, wrong = 0;
    worker w[MAX_DEVICES];
    ncclUniqueId id;
    if (size < 1 || size > MAX_DEVICES) {
        fprintf(stderr, "usage: thread_per_device [1 to %d devices]\n", MAX_DEVICES);
        return 2;
    }
    NCCLCHECK(ncclGetUniqueId(&id));
    for (int i = 0; i < size; i++) {
        w[i].id = id;
        w[i].rank = i;
        w[i].size = size;
        w[i].wrong = 0;
        if (pthread_create(&w[i].thread, NULL, work, &w[i]) != 0) {
            fprintf(stderr, "no thread\n");
            return 1;
        }
    }
    for (int i = 0; i < size; i++) {
        pthread_join(w[i].thread, NULL);
        wrong += w[i].wrong;
    }
    printf("%d threads with a device each: %s\n", size, wrong ? "wrong" : "right");
    return wrong != 0;
}
