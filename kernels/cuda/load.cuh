/* load.cuh - load all kernels at once, and check the device's arithmetic by one of them. A kernel
 * that CUDA loads at its first launch may wait for work of other streams. The tests' substitute for
 * CUDA's runtime has nothing to load. */
#ifndef DCOMMI_CUDA_LOAD_H
#define DCOMMI_CUDA_LOAD_H

#include "check.cuh"

#ifndef DCOMMI_CUDA_SHIM

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

/* Find a function of the driver without linking it. `version` is the CUDA version that introduced
 * it. */
template <class F> static bool dcommi_cuda_driver(const char *name, unsigned version, F *function)
{
    enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    void *entry = NULL;
#if CUDART_VERSION >= 12050
    cudaError_t error =
        cudaGetDriverEntryPointByVersion(name, &entry, version, cudaEnableDefault, &found);
#else
    (void)version;
    cudaError_t error = cudaGetDriverEntryPoint(name, &entry, cudaEnableDefault, &found);
#endif
    if (error != cudaSuccess) {
        (void)cudaGetLastError();
        return false;
    }
    *function = reinterpret_cast<F>(entry);
    return entry != NULL && found == cudaDriverEntryPointSuccess;
}

/* Find the module of this file's kernels: by the handle of one of them or, should the driver refuse
 * that, by its library. Return the driver's result. */
static int dcommi_cuda_module(cudaFunction_t any, void **module)
{
    int (*module_of)(void **module, cudaFunction_t function);
    int result = -1;
    if (dcommi_cuda_driver("cuFuncGetModule", 11000, &module_of)) {
        result = module_of(module, any);
    }
#if CUDART_VERSION >= 12050
    int (*library_of)(void **library, cudaKernel_t kernel);
    int (*module_in)(void **module, void *library);
    cudaKernel_t kernel = NULL;
    void *library = NULL;
    if (result != 0 && dcommi_cuda_driver("cuKernelGetLibrary", 12050, &library_of) &&
        dcommi_cuda_driver("cuLibraryGetModule", 12000, &module_in) &&
        cudaGetKernel(&kernel, reinterpret_cast<const void *>(dcommi_cuda_check_kernel)) ==
            cudaSuccess) {
        result = library_of(&library, kernel);
        result = result != 0 ? result : module_in(module, library);
    }
#endif
    return result;
}

/* Load this file's kernels. They are one module, so any of them leads to the others. */
static dcomm_status dcommi_cuda_load_kernels(const char *call)
{
    const int eager = 1; /* CU_MODULE_EAGER_LOADING */
    int (*loading)(int *mode);
    int (*count)(unsigned *n, void *module);
    int (*enumerate)(cudaFunction_t * functions, unsigned n, void *module);
    int (*load)(cudaFunction_t function);
    cudaFunction_t any = NULL;
    void *module = NULL;
    unsigned n = 0;
    int mode = 0;
    cudaError_t error =
        cudaGetFuncBySymbol(&any, reinterpret_cast<const void *>(dcommi_cuda_check_kernel));
    if (error != cudaSuccess) {
        (void)cudaGetLastError();
        return dcommi_cuda_fail(DCOMM_ERR_SYSTEM, "%s: cudaGetFuncBySymbol: %s", call,
                                cudaGetErrorString(error));
    }
    if (dcommi_cuda_driver("cuModuleGetLoadingMode", 11070, &loading) && loading(&mode) == 0 &&
        mode == eager) {
        return DCOMM_OK;
    }
    if (!dcommi_cuda_driver("cuModuleGetFunctionCount", 12040, &count) ||
        !dcommi_cuda_driver("cuModuleEnumerateFunctions", 12040, &enumerate) ||
        !dcommi_cuda_driver("cuFuncLoad", 12040, &load)) {
        return dcommi_cuda_fail(DCOMM_ERR_UNSUPPORTED,
                                "%s: the driver, or the runtime, is older than CUDA 12.4's, and "
                                "loads kernels when they are launched: with ranks that share a "
                                "device in one process set CUDA_MODULE_LOADING=EAGER",
                                call);
    }
    int result = dcommi_cuda_module(any, &module);
    if (result != 0) {
        return dcommi_cuda_fail(DCOMM_ERR_UNSUPPORTED,
                                "%s: the driver does not tell the module of the kernels (it "
                                "returns %d), and loads them when they are launched: with ranks "
                                "that share a device in one process set "
                                "CUDA_MODULE_LOADING=EAGER",
                                call, result);
    }
    result = count(&n, module);
    std::vector<cudaFunction_t> functions(n);
    result = result != 0 || n == 0 ? result : enumerate(functions.data(), n, module);
    for (unsigned i = 0; i < n && result == 0; i++) {
        result = load(functions[i]);
    }
    return result == 0 ? DCOMM_OK
                       : dcommi_cuda_fail(DCOMM_ERR_SYSTEM,
                                          "%s: the driver returns %d for the module's %u kernels",
                                          call, result, n);
}

/* ---- the check of arithmetic ---- */

#define DCOMMI_CUDA_CHECK_SECONDS 30

/* Where its kernel stores what it finds. To take memory for it, or to give that back, might wait
 * for the whole device. */
static __device__ uint32_t dcommi_cuda_check_got[DCOMMI_CUDA_CHECKS];

/* Wait for the stream, but not for ever. */
static cudaError_t dcommi_cuda_check_wait(cudaStream_t stream)
{
    const auto begin = std::chrono::steady_clock::now();
    const auto most = std::chrono::seconds(DCOMMI_CUDA_CHECK_SECONDS);
    cudaError_t error;
    while ((error = cudaStreamQuery(stream)) == cudaErrorNotReady &&
           std::chrono::steady_clock::now() - begin < most) {
        std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
    return error;
}

/* Run the check on a stream of its own. */
static cudaError_t dcommi_cuda_check_run(cudaStream_t stream, uint32_t got[DCOMMI_CUDA_CHECKS])
{
    void *there = NULL;
    cudaError_t error = cudaGetSymbolAddress(&there, dcommi_cuda_check_got);
    if (error == cudaSuccess) {
        error = dcommi_cuda_start(dcommi_cuda_check_kernel, 1, DCOMMI_CUDA_CHECKS,
                                  dcommi_cuda_checking_of(static_cast<uint32_t *>(there)), stream);
    }
    if (error == cudaSuccess) {
        error = dcommi_cuda_check_wait(stream);
    }
    if (error == cudaSuccess) { /* it returns when the copy has ended: `got` is no pinned memory */
        error = cudaMemcpyAsync(got, there, sizeof dcommi_cuda_check_got, cudaMemcpyDeviceToHost,
                                stream);
    }
    return error != cudaSuccess ? error : dcommi_cuda_check_wait(stream);
}

/* Check the current device's arithmetic, unless this process has done so. */
static dcomm_status dcommi_cuda_check_device(const char *call)
{
    static std::atomic<uint64_t> checked; /* a bit for each of the first devices */
    uint32_t got[DCOMMI_CUDA_CHECKS];
    int device = 0;
    cudaStream_t stream = NULL;
    cudaError_t error = cudaGetDevice(&device);
    const uint64_t bit = device < 64 ? (uint64_t)1 << device : 0;
    if (error == cudaSuccess && (checked.load() & bit) != 0) {
        return DCOMM_OK;
    }
    if (error == cudaSuccess) {
        error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    }
    if (error == cudaSuccess) {
        error = dcommi_cuda_check_run(stream, got);
        (void)cudaStreamDestroy(stream); /* it does not wait for what is on the stream */
    }
    if (error != cudaSuccess) {
        (void)cudaGetLastError();
        return error == cudaErrorNotReady
                   ? dcommi_cuda_fail(DCOMM_ERR_TIMEOUT,
                                      "%s: a short kernel on a stream of its own has not ended "
                                      "within %d s: the device is busy, or its streams wait for "
                                      "each other",
                                      call, DCOMMI_CUDA_CHECK_SECONDS)
                   : dcommi_cuda_fail(DCOMM_ERR_SYSTEM, "%s: the check of arithmetic: %s", call,
                                      cudaGetErrorString(error));
    }
    DCOMMI_CUDA_TRY(dcommi_cuda_check_result(call, got));
    checked.fetch_or(bit);
    return DCOMM_OK;
}

extern "C" dcomm_status dcomm_cuda_load(void)
{
    const char *call = "dcomm_cuda_load";
    /* The calls below harm no capture of another thread. */
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    const bool exchanged = cudaThreadExchangeStreamCaptureMode(&mode) == cudaSuccess;
    dcomm_status status = dcommi_cuda_load_kernels(call);
    if (status == DCOMM_OK || status == DCOMM_ERR_UNSUPPORTED) {
        const dcomm_status check = dcommi_cuda_check_device(call);
        status = check != DCOMM_OK ? check : status;
    }
    if (exchanged) {
        (void)cudaThreadExchangeStreamCaptureMode(&mode);
    }
    return status;
}

#endif
#endif
