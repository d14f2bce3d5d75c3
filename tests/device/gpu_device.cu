/* gpu_device.cu - the device's architecture, and what it is; exit status 1 where there is none. The
 * runtime knows; nvidia-smi need not be there. */
#include <cstdio>

int main()
{
    int n = 0, driver = 0, runtime = 0;
    cudaDeviceProp p;
    cudaError_t e = cudaGetDeviceCount(&n);
    if (e != cudaSuccess || n == 0 || (e = cudaGetDeviceProperties(&p, 0)) != cudaSuccess) {
        std::printf("%s\n", e != cudaSuccess ? cudaGetErrorString(e) : "no device");
        return 1;
    }
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    std::printf("%d%d %s, %d multiprocessors, %.0f GiB, L2 %.0f MiB, driver for CUDA %d.%d, "
                "runtime %d.%d\n",
                p.major, p.minor, p.name, p.multiProcessorCount,
                (double)p.totalGlobalMem / (1 << 30), (double)p.l2CacheSize / (1 << 20),
                driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
}
