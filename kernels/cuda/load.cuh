/* load.cuh - load all kernels at once. A kernel that CUDA loads at its first launch may wait for
 * work of other streams. The tests' substitute for CUDA's runtime has nothing to load. */
#ifndef DCOMMI_CUDA_LOAD_H
#define DCOMMI_CUDA_LOAD_H

#include "add.cuh"

#ifndef DCOMMI_CUDA_SHIM

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

/* Load this file's kernels. They are one module, so any of them leads to the others. */
extern "C" dcomm_status dcomm_cuda_load(void)
{
    const char *call = "dcomm_cuda_load";
    const int eager = 1; /* CU_MODULE_EAGER_LOADING */
    int (*loading)(int *mode);
    int (*module_of)(void **module, cudaFunction_t function);
    int (*count)(unsigned *n, void *module);
    int (*enumerate)(cudaFunction_t * functions, unsigned n, void *module);
    int (*load)(cudaFunction_t function);
    cudaFunction_t any = NULL;
    void *module = NULL;
    unsigned n = 0;
    int mode = 0;
    cudaError_t error =
        cudaGetFuncBySymbol(&any, reinterpret_cast<const void *>(dcommi_cuda_ledger_kernel));
    if (error != cudaSuccess) {
        (void)cudaGetLastError();
        return dcommi_cuda_fail(DCOMM_ERR_SYSTEM, "%s: cudaGetFuncBySymbol: %s", call,
                                cudaGetErrorString(error));
    }
    if (dcommi_cuda_driver("cuModuleGetLoadingMode", 11070, &loading) && loading(&mode) == 0 &&
        mode == eager) {
        return DCOMM_OK;
    }
    if (!dcommi_cuda_driver("cuFuncGetModule", 11000, &module_of) ||
        !dcommi_cuda_driver("cuModuleGetFunctionCount", 12040, &count) ||
        !dcommi_cuda_driver("cuModuleEnumerateFunctions", 12040, &enumerate) ||
        !dcommi_cuda_driver("cuFuncLoad", 12040, &load)) {
        return dcommi_cuda_fail(DCOMM_ERR_UNSUPPORTED,
                                "%s: the driver, or the runtime, is older than CUDA 12.4's, and "
                                "loads kernels when they are launched: with ranks that share a "
                                "device in one process set CUDA_MODULE_LOADING=EAGER",
                                call);
    }
    int result = module_of(&module, any);
    result = result != 0 ? result : count(&n, module);
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

#endif
#endif
