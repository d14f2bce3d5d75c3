/* cuda_shim_runtime.h - the part of CUDA's runtime that the kernels' launchers, their tests and
 * bench/dcomm-kernels call, for a CPU: memory is the host's. A stream's work runs at once, or in a
 * graph's order where the stream is captured. A copy out of the host's memory lands when the
 * default stream next does something, or when the device is waited for.
 *
 * A call that CUDA refuses during a capture stops the program with a sentence. */
#ifndef DCOMMI_CUDA_SHIM_RUNTIME_H
#define DCOMMI_CUDA_SHIM_RUNTIME_H

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <sys/mman.h>
#include <vector>

typedef int cudaError_t;
typedef void *cudaStream_t;
enum { cudaSuccess = 0, cudaErrorMemoryAllocation = 2 };

static inline const char *cudaGetErrorString(cudaError_t error)
{
    return error == cudaSuccess ? "no error" : "no memory";
}

static inline cudaError_t cudaGetLastError(void)
{
    return cudaSuccess;
}

static inline cudaError_t cudaPeekAtLastError(void)
{
    return cudaSuccess;
}

[[noreturn]] static inline void shim_die(const char *what, unsigned a, unsigned b)
{
    std::fprintf(stderr, "cuda_shim: %s (%u, %u)\n", what, a, b);
    std::exit(3);
}

/* ---- streams and graphs: what a captured stream is given happens when the graph is launched ----
 */

struct shim_graph {
    std::vector<std::function<void()>> nodes;
};
typedef shim_graph *cudaGraph_t;
typedef shim_graph *cudaGraphExec_t;
enum { cudaStreamNonBlocking = 1, cudaStreamCaptureModeGlobal = 0 };

#define cudaStreamLegacy ((cudaStream_t)1)

static shim_graph *shim_captured; /* NULL: no stream is being captured */
static cudaStream_t shim_captured_stream;

/* Copies out of the host's pageable memory that have returned, but not landed. */
static std::vector<std::function<void()>> shim_copies;

static inline void shim_land(void)
{
    for (const std::function<void()> &copy : shim_copies) {
        copy();
    }
    shim_copies.clear();
}

/* Do work on a stream: now, or as a node of the graph. */
static inline void shim_work(cudaStream_t stream, const std::function<void()> &work)
{
    if (shim_captured == nullptr) {
        if (stream == nullptr || stream == cudaStreamLegacy) {
            shim_land(); /* other streams are not behind the default stream's copies */
        }
        work();
    } else if (stream == shim_captured_stream) {
        shim_captured->nodes.push_back(work);
    } else {
        shim_die("work on another stream than the one that is captured, after nodes",
                 (unsigned)shim_captured->nodes.size(), 0);
    }
}

static inline void shim_not_captured(const char *what)
{
    if (shim_captured != nullptr) {
        shim_die(what, (unsigned)shim_captured->nodes.size(), 0);
    }
}

static inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned)
{
    static char one;
    *stream = &one;
    return cudaSuccess;
}

static unsigned long shim_waits; /* for the default stream */

static inline cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    shim_not_captured("a stream is waited for during a capture, after nodes");
    shim_waits += stream == nullptr;
    return cudaSuccess;
}

static inline cudaError_t cudaStreamBeginCapture(cudaStream_t stream, int)
{
    shim_captured = new shim_graph();
    shim_captured_stream = stream;
    return cudaSuccess;
}

static inline cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t *graph)
{
    *graph = shim_captured;
    shim_captured = nullptr;
    return cudaSuccess;
}

static inline cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, int)
{
    *exec = new shim_graph(*graph);
    return cudaSuccess;
}

static inline cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t)
{
    for (const std::function<void()> &node : exec->nodes) {
        node();
    }
    return cudaSuccess;
}

static inline cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    delete graph;
    return cudaSuccess;
}

static inline cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    delete exec;
    return cudaSuccess;
}

/* ---- memory ---- */

enum { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2, cudaMemcpyDeviceToDevice = 3 };

static inline cudaError_t cudaMalloc(void **p, size_t bytes)
{
    shim_not_captured("memory is taken during a capture, after nodes");
    *p = std::aligned_alloc(256, bytes / 256 * 256 + 256);
    return *p != nullptr ? cudaSuccess : cudaErrorMemoryAllocation;
}

static inline cudaError_t cudaFree(void *p)
{
    shim_not_captured("memory is given back during a capture, after nodes");
    shim_land();
    std::free(p);
    return cudaSuccess;
}

static inline cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, int kind)
{
    shim_not_captured("a copy is waited for during a capture, after nodes");
    shim_land();
    if (kind == cudaMemcpyHostToDevice) {
        const char *at = static_cast<const char *>(from);
        const std::vector<char> staged(at, at + bytes);
        shim_copies.push_back([=] { std::memcpy(to, staged.data(), staged.size()); });
    } else {
        std::memcpy(to, from, bytes);
    }
    return cudaSuccess;
}

static inline cudaError_t cudaDeviceSynchronize(void)
{
    shim_not_captured("the device is waited for during a capture, after nodes");
    shim_land();
    return cudaSuccess;
}

static inline cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, int,
                                          cudaStream_t stream)
{
    shim_work(stream, [=] { std::memcpy(to, from, bytes); });
    return cudaSuccess;
}

static inline cudaError_t cudaMemset(void *p, int byte, size_t bytes)
{
    shim_not_captured("memory is set on the default stream during a capture, after nodes");
    shim_land();
    std::memset(p, byte, bytes);
    return cudaSuccess;
}

/* Give back the pages of a very long array: they read as zeros when touched again. */
static inline void shim_set(void *p, int byte, size_t bytes)
{
    const uintptr_t page = 4096, at = reinterpret_cast<uintptr_t>(p);
    const uintptr_t from = (at + page - 1) / page * page, to = (at + bytes) / page * page;
    if (byte != 0 || bytes < (size_t)1 << 30 ||
        madvise(reinterpret_cast<void *>(from), to - from, MADV_DONTNEED) != 0) {
        std::memset(p, byte, bytes);
        return;
    }
    std::memset(p, 0, from - at);
    std::memset(reinterpret_cast<void *>(to), 0, at + bytes - to);
}

static inline cudaError_t cudaMemsetAsync(void *p, int byte, size_t bytes, cudaStream_t stream)
{
    shim_work(stream, [=] { shim_set(p, byte, bytes); });
    return cudaSuccess;
}

/* ---- events, and properties of the device ---- */

typedef std::chrono::steady_clock::time_point *cudaEvent_t;

static inline cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    *event = new std::chrono::steady_clock::time_point();
    return cudaSuccess;
}

static inline cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    delete event;
    return cudaSuccess;
}

static inline cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t)
{
    *event = std::chrono::steady_clock::now();
    return cudaSuccess;
}

static inline cudaError_t cudaEventSynchronize(cudaEvent_t)
{
    return cudaSuccess;
}

static inline cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t begin, cudaEvent_t end)
{
    *ms = std::chrono::duration<float, std::milli>(*end - *begin).count();
    return cudaSuccess;
}

struct cudaDeviceProp {
    char name[256];
    int l2CacheSize;
};

static inline cudaError_t cudaGetDeviceCount(int *count)
{
    *count = 1;
    return cudaSuccess;
}

static inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int)
{
    std::snprintf(properties->name, sizeof properties->name, "a CPU");
    properties->l2CacheSize = 1 << 20;
    return cudaSuccess;
}

#endif
