/* slow_kernel_host.c - slow_kernel.h on the host stand-in. */
#define _GNU_SOURCE
#include "slow_kernel.h"
#include "host.h"
#include <string.h>
#include <time.h>

typedef struct late_copy {
    void *dst;
    const void *src;
    size_t bytes;
    int ms;
} late_copy;

static cudaError_t run(void *arg)
{
    const late_copy *c = arg;
    const struct timespec t = {c->ms / 1000, c->ms % 1000 * 1000000L};
    nanosleep(&t, NULL);
    if (c->dst == NULL || c->src == NULL) {
        return cudaErrorIllegalAddress;
    }
    memmove(c->dst, c->src, c->bytes);
    return cudaSuccess;
}

void slow_kernel(float *dst, const float *src, size_t count, int ms, void *stream)
{
    const size_t bytes = count * sizeof *dst;
    const late_copy c = {cuhost_reach(dst, bytes), cuhost_reach(src, bytes), bytes, ms};
    (void)cuhost_result(cuhost_enqueue(stream, CUHOST_KERNEL, run, NULL, &c, sizeof c));
}
