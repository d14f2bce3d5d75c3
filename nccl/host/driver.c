/* driver.c - functions of CUDA's driver: streams that wait for a word of memory, or write one. */
#define _GNU_SOURCE
#include "host.h"
#include <sched.h>
#include <string.h>
#include <time.h>

typedef struct word {
    uint32_t *at;
    uint32_t value;
    unsigned how;
} word;

static bool reached(const word *w)
{
    uint32_t now = __atomic_load_n(w->at, __ATOMIC_ACQUIRE);
    switch (w->how) {
    case CU_STREAM_WAIT_VALUE_GEQ:
        return (int32_t)(now - w->value) >= 0;
    case CU_STREAM_WAIT_VALUE_EQ:
        return now == w->value;
    case CU_STREAM_WAIT_VALUE_AND:
        return (now & w->value) != 0;
    default:
        return ~(now | w->value) != 0;
    }
}

static cudaError_t await_word(void *arg)
{
    const word *w = arg;
    for (int i = 0; !reached(w); i++) {
        if (cuhost_stays(cuhost_current(), cudaSuccess) != cudaSuccess) {
            break;
        }
        if (i < 64) {
            sched_yield();
        } else {
            nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
        }
    }
    return cudaSuccess;
}

static cudaError_t write_word(void *arg)
{
    const word *w = arg;
    __atomic_store_n(w->at, w->value, __ATOMIC_RELEASE);
    return cudaSuccess;
}

static CUresult word_work(CUstream stream, CUdeviceptr addr, uint32_t value, unsigned how,
                          cuhost_run_fn run)
{
    const word w = {cuhost_reach((const void *)(uintptr_t)addr, 4), value, how};
    if (w.at == NULL || addr % 4 != 0 || how > CU_STREAM_WAIT_VALUE_NOR) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return (CUresult)cuhost_enqueue(stream, CUHOST_ORDER, run, NULL, &w, sizeof w);
}

CUresult cuStreamWaitValue32(CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned flags)
{
    return word_work(stream, addr, value, flags, await_word);
}

CUresult cuStreamWriteValue32(CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned flags)
{
    return flags != CU_STREAM_WRITE_VALUE_DEFAULT ? CUDA_ERROR_INVALID_VALUE
                                                  : word_work(stream, addr, value, 0, write_word);
}

CUresult cuMemGetAddressRange(CUdeviceptr *base, size_t *bytes, CUdeviceptr ptr)
{
    void *at = NULL;
    size_t all = 0;
    if (!cuhost_range((const void *)(uintptr_t)ptr, &at, &all)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (base != NULL) {
        *base = (CUdeviceptr)(uintptr_t)at;
    }
    if (bytes != NULL) {
        *bytes = all;
    }
    return CUDA_SUCCESS;
}

static const struct {
    const char *name;
    void (*function)(void);
} functions[] = {
    {"cuStreamWaitValue32", (void (*)(void))cuStreamWaitValue32},
    {"cuStreamWriteValue32", (void (*)(void))cuStreamWriteValue32},
    {"cuMemGetAddressRange", (void (*)(void))cuMemGetAddressRange},
};

cudaError_t cudaGetDriverEntryPoint(const char *symbol, void **function, unsigned long long flags,
                                    enum cudaDriverEntryPointQueryResult *result)
{
    if (symbol == NULL || function == NULL || flags != cudaEnableDefault) {
        return cuhost_result(cudaErrorInvalidValue);
    }
    enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    *function = NULL;
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        if (strcmp(functions[i].name, symbol) == 0) { /* ISO C cannot cast functions to void * */
            memcpy(function, &functions[i].function, sizeof *function);
            found = cudaDriverEntryPointSuccess;
        }
    }
    if (result != NULL) {
        *result = found;
        return cudaSuccess;
    }
    return cuhost_result(found == cudaDriverEntryPointSuccess ? cudaSuccess
                                                              : cudaErrorSymbolNotFound);
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version,
                                             unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *result)
{
    (void)version;
    return cudaGetDriverEntryPoint(symbol, function, flags, result);
}
