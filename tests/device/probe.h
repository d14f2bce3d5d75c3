/* probe.h - shared by the parts of probe.cu: time, errors, a word that streams wait for, short work
 * of a stream, and a question that is answered in a process of its own.
 *
 * Nothing here is dcomm's. With the host stand-in for CUDA a kernel is a short copy. */
#ifndef DCOMM_PROBE_H
#define DCOMM_PROBE_H

#include <cuda.h>
#include <cuda_runtime.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <poll.h>
#include <signal.h>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

/* ---- time ---- */

static double now_ms(void)
{
    const auto t = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration<double, std::milli>(t).count();
}

static void sleep_ms(double ms)
{
    std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(ms));
}

/* Wait for a condition. Return false if it does not hold within `most` ms. */
static bool holds(const std::function<bool()> &condition, double most)
{
    const double end = now_ms() + most;
    while (!condition()) {
        if (now_ms() > end) {
            return false;
        }
        std::this_thread::yield();
    }
    return true;
}

/* ---- errors: the process is only there for one question, and ends with it ---- */

[[noreturn]] static void give_up(const char *what, const char *why)
{
    std::printf("# %s: %s\n", what, why);
    std::fflush(stdout);
    _exit(3);
}

static void need(cudaError_t error, const char *what)
{
    if (error != cudaSuccess) {
        give_up(what, cudaGetErrorString(error));
    }
}

/* ---- functions of the driver, which is not linked ---- */

typedef CUresult (*value_fn)(CUstream stream, CUdeviceptr at, cuuint32_t value, unsigned flags);

static value_fn driver_function(const char *name)
{
    enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    void *entry = NULL;
#if CUDART_VERSION >= 12050
    need(cudaGetDriverEntryPointByVersion(name, &entry, 12000, cudaEnableDefault, &found), name);
#else
    need(cudaGetDriverEntryPoint(name, &entry, cudaEnableDefault, &found), name);
#endif
    if (entry == NULL || found != cudaDriverEntryPointSuccess) {
        give_up(name, "the driver has no such function");
    }
    return reinterpret_cast<value_fn>(entry);
}

/* A word of pinned memory that the host, and streams, wait for and write. */
struct word {
    unsigned *at;
    CUdeviceptr there;
    word(void) : at(NULL), there(0)
    {
        void *device = NULL;
        need(cudaHostAlloc(reinterpret_cast<void **>(&at), 64, cudaHostAllocMapped), "a word");
        need(cudaHostGetDevicePointer(&device, at, 0), "a word's address");
        there = reinterpret_cast<CUdeviceptr>(device);
        write(0);
    }
    unsigned read(void) const
    {
        return __atomic_load_n(at, __ATOMIC_ACQUIRE);
    }
    void write(unsigned value) const
    {
        __atomic_store_n(at, value, __ATOMIC_RELEASE);
    }
};

static void stream_waits(cudaStream_t stream, const word &w)
{
    static const value_fn wait = driver_function("cuStreamWaitValue32");
    if (wait(stream, w.there, 1, CU_STREAM_WAIT_VALUE_GEQ) != CUDA_SUCCESS) {
        give_up("cuStreamWaitValue32", "the driver refuses");
    }
}

static void stream_writes(cudaStream_t stream, const word &w)
{
    static const value_fn put = driver_function("cuStreamWriteValue32");
    if (put(stream, w.there, 1, CU_STREAM_WRITE_VALUE_DEFAULT) != CUDA_SUCCESS) {
        give_up("cuStreamWriteValue32", "the driver refuses");
    }
}

/* ---- short work ---- */

#ifdef CUDA_HOST_STAND_IN
static cudaError_t launch_known(unsigned *p, cudaStream_t stream)
{
    return cudaMemcpyAsync(p, p + 1, sizeof *p, cudaMemcpyDeviceToDevice, stream);
}
#define launch_new launch_known
#else
static __global__ void known_kernel(unsigned *p)
{
    *p += 1;
}

static __global__ void new_kernel(unsigned *p)
{
    *p += 2;
}

static cudaError_t launch_known(unsigned *p, cudaStream_t stream)
{
    known_kernel<<<1, 1, 0, stream>>>(p);
    return cudaGetLastError();
}

/* Launch a kernel that nothing else launches: where loading is lazy, this loads it. */
static cudaError_t launch_new(unsigned *p, cudaStream_t stream)
{
    new_kernel<<<1, 1, 0, stream>>>(p);
    return cudaGetLastError();
}
#endif

static cudaStream_t stream_of(bool greatest)
{
    int least = 0, most = 0;
    cudaStream_t stream = NULL;
    need(cudaDeviceGetStreamPriorityRange(&least, &most), "priorities");
    need(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest ? most : 0),
         "a stream");
    return stream;
}

static cudaEvent_t event_of(void)
{
    cudaEvent_t event = NULL;
    need(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "an event");
    return event;
}

/* ---- a question in a process of its own ---- */

/* Run this program with these arguments and this setting of the environment ("" for none), and
 * pass on what it prints. Return its exit status; 124: it was killed when its time was up. */
static int ask(const std::vector<std::string> &args, const std::string &setting, double seconds)
{
    int ends[2];
    std::fflush(stdout);
    if (pipe(ends) != 0) {
        return 127;
    }
    const pid_t child = fork();
    if (child == 0) {
        std::vector<char *> argv;
        for (const std::string &a : args) {
            argv.push_back(const_cast<char *>(a.c_str()));
        }
        argv.push_back(NULL);
        if (!setting.empty()) {
            putenv(const_cast<char *>(setting.c_str()));
        }
        dup2(ends[1], STDOUT_FILENO);
        close(ends[0]);
        close(ends[1]);
        execv("/proc/self/exe", argv.data());
        _exit(127);
    }
    close(ends[1]);
    const double end = now_ms() + 1000 * seconds;
    bool late = false;
    char text[4096];
    for (ssize_t n = 1; child > 0 && n > 0;) {
        struct pollfd p = {ends[0], POLLIN, 0};
        const double left = end - now_ms();
        late = left <= 0 || poll(&p, 1, (int)left + 1) == 0;
        if (late) {
            kill(child, SIGKILL);
            break;
        }
        n = read(ends[0], text, sizeof text);
        if (n > 0) {
            std::fwrite(text, 1, (size_t)n, stdout);
            std::fflush(stdout);
        }
    }
    close(ends[0]);
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child) {
        return 127;
    }
    return late ? 124 : WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

#endif
