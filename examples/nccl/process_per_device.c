/* Run one process per device. Rank 0 makes the id and writes it to a file, which the other ranks
 * read. torchrun and dcomm-run set RANK and WORLD_SIZE:
 *     dcomm-run -n 4 -- process_per_device /tmp/id */
#include "check.h"
#include <unistd.h>

static void give_id(const char *path, const ncclUniqueId *id)
{
    char part[4096];
    snprintf(part, sizeof part, "%s.part", path);
    FILE *f = fopen(part, "w");
    if (f == NULL || fwrite(id, sizeof *id, 1, f) != 1 || fclose(f) != 0 ||
        rename(part, path) != 0) {
        perror(path);
        exit(EXIT_FAILURE);
    }
}

static void take_id(const char *path, ncclUniqueId *id)
{
    FILE *f = NULL;
    while ((f = fopen(path, "r")) == NULL) {
        usleep(1000);
    }
    if (fread(id, sizeof *id, 1, f) != 1) {
        perror(path);
        exit(EXIT_FAILURE);
    }
    fclose(f);
}

int main(int argc, char **argv)
{
    const size_t n = 1 << 18;
    const char *rank_text = getenv("RANK"), *size_text = getenv("WORLD_SIZE");
    int rank = rank_text ? atoi(rank_text) : 0, size = size_text ? atoi(size_text) : 1;
    int devices = 0, wrong = 0;
    ncclUniqueId id;
    ncclComm_t comm;
    cudaStream_t stream;
    if (argc != 2) {
        fprintf(stderr, "usage: process_per_device FILE, which is not there yet\n");
        return 2;
    }

    if (rank == 0) {
        NCCLCHECK(ncclGetUniqueId(&id));
        give_id(argv[1], &id);
    } else {
        take_id(argv[1], &id);
    }
    CUDACHECK(cudaGetDeviceCount(&devices));
    CUDACHECK(cudaSetDevice(rank % devices));
    NCCLCHECK(ncclCommInitRank(&comm, size, id, rank));
    CUDACHECK(cudaStreamCreate(&stream));

    /* Work on the stream before and after the collective is ordered with it. */
    float *gradient = device_numbers(n, (float)(rank + 1)), *copy = NULL;
    CUDACHECK(cudaMalloc((void **)&copy, n * sizeof(float)));
    NCCLCHECK(ncclAllReduce(gradient, gradient, n, ncclFloat, ncclSum, comm, stream));
    CUDACHECK(cudaMemcpyAsync(copy, gradient, n * sizeof(float), cudaMemcpyDeviceToDevice, stream));
    CUDACHECK(cudaStreamSynchronize(stream));
    wrong += wrong_numbers("the sum", copy, n, 0.5f * (float)(size + 1), (float)size);

    NCCLCHECK(ncclCommFinalize(comm));
    NCCLCHECK(ncclCommDestroy(comm));
    CUDACHECK(cudaFree(gradient));
    CUDACHECK(cudaFree(copy));
    CUDACHECK(cudaStreamDestroy(stream));
    if (rank == 0) {
        printf("%d processes with a device each: %s\n", size, wrong ? "wrong" : "right");
    }
    return wrong != 0;
}
