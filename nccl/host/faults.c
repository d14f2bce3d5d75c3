/* faults.c - faults that tests request, and counts. */
#define _GNU_SOURCE
#include "host.h"
#include <time.h>

static cuda_host_faults faults; /* both guarded by the lock */
static cuda_host_counts counts;

void cuda_host_set_faults(const cuda_host_faults *f)
{
    cuhost_forget_errors();
    pthread_mutex_lock(&cuhost_lock);
    faults = *f;
    pthread_mutex_unlock(&cuhost_lock);
}

void cuda_host_get_counts(cuda_host_counts *c)
{
    pthread_mutex_lock(&cuhost_lock);
    *c = counts;
    c->contexts = cuhost_contexts();
    pthread_mutex_unlock(&cuhost_lock);
}

cudaError_t cuhost_fault(cuhost_kind kind)
{
    cudaError_t error = cudaSuccess;
    double late = 0;
    pthread_mutex_lock(&cuhost_lock);
    if (kind == CUHOST_COPY || kind == CUHOST_KERNEL) {
        late = faults.delay_s;
        if (faults.shuffle != 0) { /* a linear congruential generator's upper bits */
            faults.shuffle = faults.shuffle * 6364136223846793005u + 1442695040888963407u;
            late *= 2 * (double)(faults.shuffle >> 11) * 0x1p-53;
        }
    }
    if (kind == CUHOST_COPY && faults.fail_copy > 0 && --faults.fail_copy == 0) {
        error = cudaErrorLaunchFailure;
    }
    if (kind == CUHOST_KERNEL && faults.fail_kernel > 0 && --faults.fail_kernel == 0) {
        error = cudaErrorLaunchFailure;
    }
    pthread_mutex_unlock(&cuhost_lock);
    if (late > 0) {
        struct timespec t = {.tv_sec = (time_t)late};
        t.tv_nsec = (long)((late - (double)t.tv_sec) * 1e9);
        nanosleep(&t, NULL);
    }
    return error;
}

/* Return true if this call is the one that should fail. */
static bool counted_down(unsigned *n)
{
    pthread_mutex_lock(&cuhost_lock);
    bool fail = *n > 0 && --*n == 0;
    pthread_mutex_unlock(&cuhost_lock);
    return fail;
}

bool cuhost_fault_malloc(void)
{
    return counted_down(&faults.fail_malloc);
}

bool cuhost_fault_open(void)
{
    return counted_down(&faults.fail_open);
}

bool cuhost_fault_apart(void)
{
    pthread_mutex_lock(&cuhost_lock);
    bool apart = faults.no_peer_access;
    pthread_mutex_unlock(&cuhost_lock);
    return apart;
}

bool cuhost_fault_unordered(void)
{
    pthread_mutex_lock(&cuhost_lock);
    bool unordered = faults.rdma_unordered;
    pthread_mutex_unlock(&cuhost_lock);
    return unordered;
}

void cuhost_count_flush(void)
{
    pthread_mutex_lock(&cuhost_lock);
    counts.flushes++;
    pthread_mutex_unlock(&cuhost_lock);
}

void cuhost_count_copy(enum cudaMemoryType to, enum cudaMemoryType from, size_t bytes)
{
    bool onto = to == cudaMemoryTypeDevice, off = from == cudaMemoryTypeDevice;
    pthread_mutex_lock(&cuhost_lock);
    cuda_host_traffic *t = onto && off ? &counts.on_device
                           : onto      ? &counts.to_device
                           : off       ? &counts.to_host
                                       : NULL;
    if (t != NULL) {
        t->copies++;
        t->bytes += bytes;
    }
    pthread_mutex_unlock(&cuhost_lock);
}

void cuhost_count(cuhost_kind kind)
{
    pthread_mutex_lock(&cuhost_lock);
    counts.kernels += kind == CUHOST_KERNEL;
    counts.host_functions += kind == CUHOST_CALL;
    pthread_mutex_unlock(&cuhost_lock);
}
