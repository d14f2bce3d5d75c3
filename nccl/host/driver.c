/* driver.c - functions of CUDA's driver: streams that wait for a word of memory, or write one.
 * Unlike the runtime's calls they make no context. */
#define _GNU_SOURCE
#include "host.h"
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct word {
    uint32_t *at;
    uint32_t value;
    unsigned how;
} word;

/* Words that a device did not write because it had failed. Where a test repairs the device, they
 * are written after all, since whoever waits for one may not have seen the failure. */
static word unwritten[256];
static size_t nunwritten;

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
    if (cuhost_stays(cuhost_current(), cudaSuccess) == cudaSuccess) {
        __atomic_store_n(w->at, w->value, __ATOMIC_RELEASE);
        return cudaSuccess;
    }
    pthread_mutex_lock(&cuhost_lock);
    if (nunwritten < sizeof unwritten / sizeof *unwritten) {
        unwritten[nunwritten++] = *w;
    }
    pthread_mutex_unlock(&cuhost_lock);
    return cudaSuccess;
}

void cuhost_write_all(void)
{
    pthread_mutex_lock(&cuhost_lock);
    for (size_t i = 0; i < nunwritten; i++) {
        __atomic_store_n(unwritten[i].at, unwritten[i].value, __ATOMIC_RELEASE);
    }
    nunwritten = 0;
    pthread_mutex_unlock(&cuhost_lock);
}

static CUresult word_work(CUstream stream, CUdeviceptr addr, uint32_t value, unsigned how,
                          cuhost_kind kind, cuhost_run_fn run)
{
    const word w = {cuhost_reach((const void *)(uintptr_t)addr, 4), value, how};
    if (w.at == NULL || addr % 4 != 0 || how > CU_STREAM_WAIT_VALUE_NOR) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUcontext context = NULL;
    (void)cuCtxGetCurrent(&context);
    if (context == NULL && stream <= cudaStreamPerThread) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    cudaError_t status = cuhost_enter_as_is();
    return (CUresult)(status != cudaSuccess ? status
                                            : cuhost_put(stream, kind, run, NULL, &w, sizeof w));
}

CUresult cuStreamWaitValue32(CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned flags)
{
    return word_work(stream, addr, value, flags, CUHOST_WAIT, await_word);
}

CUresult cuStreamWriteValue32(CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned flags)
{
    return flags != CU_STREAM_WRITE_VALUE_DEFAULT
               ? CUDA_ERROR_INVALID_VALUE
               : word_work(stream, addr, value, 0, CUHOST_ORDER, write_word);
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

CUresult cuInit(unsigned flags)
{
    int n = 0;
    return flags == 0 && cudaGetDeviceCount(&n) == cudaSuccess && n > 0 ? CUDA_SUCCESS
                                                                        : CUDA_ERROR_NO_DEVICE;
}

/* Kernels are here from the start, unless a program wants to see how they are loaded. */
CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode *mode)
{
    const char *how = getenv("CUDA_MODULE_LOADING");
    *mode =
        how != NULL && strcmp(how, "LAZY") == 0 ? CU_MODULE_LAZY_LOADING : CU_MODULE_EAGER_LOADING;
    return CUDA_SUCCESS;
}

static const struct {
    const char *name;
    void (*function)(void);
} functions[] = {
    {"cuInit", (void (*)(void))cuInit},
    {"cuThreadExchangeStreamCaptureMode", (void (*)(void))cuThreadExchangeStreamCaptureMode},
    {"cuDevicePrimaryCtxRetain", (void (*)(void))cuDevicePrimaryCtxRetain},
    {"cuStreamWaitValue32", (void (*)(void))cuStreamWaitValue32},
    {"cuStreamWriteValue32", (void (*)(void))cuStreamWriteValue32},
    {"cuModuleGetLoadingMode", (void (*)(void))cuModuleGetLoadingMode},
    {"cuMemGetAddressRange", (void (*)(void))cuMemGetAddressRange},
    {"cuCtxGetCurrent", (void (*)(void))cuCtxGetCurrent},
    {"cuCtxSetCurrent", (void (*)(void))cuCtxSetCurrent},
    {"cuCtxGetDevice", (void (*)(void))cuCtxGetDevice},
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
