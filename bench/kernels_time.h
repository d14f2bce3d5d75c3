/* kernels_time.h - shared by the programs that time kernels: memory, inputs, the time between two
 * events, rows of the table and of its JSON.
 *
 * Before each call its output is poisoned, and its inputs are made anew on the device. A kernel
 * that leaves poison in the output gets no time. The first five calls are not timed. Each later
 * call is timed between two events of its own, and the median counts.
 *
 * Before a call on arrays far larger than the L2 cache (2^28 elements, 1 GiB of f32), a sweep
 * reads other memory into that cache. So the call does not find its inputs there, and need not
 * write back modified lines. Arrays of 2^22 elements (16 MiB) mostly stay in the L2 cache, which
 * is intended at that size.
 *
 * With --graph a call is captured once, into a graph, and what is timed is that graph's launch: a
 * key that a call advances stays the same. */
#ifndef DCOMM_KERNELS_TIME_H
#define DCOMM_KERNELS_TIME_H

#include "../kernels/rng.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

struct row {
    std::string kernel;
    size_t count, bytes;
    double us, fraction; /* negative: it was not measured */
};

static std::vector<row> rows;
static int failures, iterations = 25;
static const char *json_path, *json_tool;
static const char *only = ""; /* measure the rows whose name contains this */
static bool in_graphs;        /* time launches of graphs */
/* The calls are on this stream, all else on the default stream, which it waits for. With --graph
 * it is another than cudaStreamLegacy, because that cannot be captured. */
static cudaStream_t timed_stream = cudaStreamLegacy;
static std::string device_name;
static size_t second_cache; /* bytes of the L2 cache */

static bool fine(cudaError_t error, const char *what)
{
    if (error != cudaSuccess) {
        std::printf("# %s: %s\n", what, cudaGetErrorString(error));
        (void)cudaGetLastError();
    }
    return error == cudaSuccess;
}

/* ---- memory ---- */

struct memory {
    void *p;
    explicit memory(size_t bytes) : p(NULL)
    {
        if (!fine(cudaMalloc(&p, bytes > 0 ? bytes : 1), "no device memory")) {
            std::exit(1);
        }
    }
    memory(const memory &) = delete;
    memory &operator=(const memory &) = delete;
    ~memory()
    {
        cudaFree(p);
    }
    float *f() const
    {
        return static_cast<float *>(p);
    }
};

/* Launch a kernel with one argument. */
template <class P>
static bool start(void (*kernel)(P), unsigned blocks, const P &p, const char *what,
                  cudaStream_t stream = NULL)
{
#ifdef DCOMMI_CUDA_SHIM
    return fine(dcommi_cuda_start(kernel, blocks, 256, p, stream), what);
#else
    kernel<<<blocks, 256, 0, stream>>>(p);
    return fine(cudaGetLastError(), what);
#endif
}

struct array {
    float *x;
    uint64_t n, seed;
};

/* Fill a with sums of four uniform numbers: finite, of both signs, about normal. */
static __global__ void random_numbers(const array a)
{
    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < a.n;
         i += (uint64_t)gridDim.x * blockDim.x) {
        const uint64_t r = dcommi_rng_mix(a.seed, i);
        int sum = -4 * 32768;
        for (int k = 0; k < 4; k++) {
            sum += (int)(r >> (16 * k) & 0xffff);
        }
        a.x[i] = (float)sum * 0x1p-16f;
    }
}

/* Read all of a. The write for one value of the sum keeps the compiler from removing the reads. */
static __global__ void read_all(const array a)
{
    float sum = 0;
    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < a.n;
         i += (uint64_t)gridDim.x * blockDim.x) {
        sum += a.x[i];
    }
    if (sum == 12345) {
        a.x[0] = sum;
    }
}

static __global__ void empty_kernel(const array)
{
}

/* Return the number of blocks for kernels with a grid-stride loop over n elements. */
static unsigned blocks_for(size_t n)
{
    return (unsigned)std::min<size_t>(2048, n / 256 + 1);
}

/* Fill m with n new random numbers, which it never held before. */
static bool renew(const memory &m, size_t n)
{
    static uint64_t seed;
    return start(random_numbers, blocks_for(n), array{m.f(), n, ++seed}, "random numbers");
}

/* Return a function that fills these arrays with n new numbers each. */
static std::function<bool()> anew(size_t n, const std::vector<const memory *> &arrays)
{
    return [=] {
        return std::all_of(arrays.begin(), arrays.end(),
                           [=](const memory *m) { return renew(*m, n); });
    };
}

/* Fill the L2 cache with other memory, which is clean and which no call reads. */
static bool sweep(void)
{
    static const memory *other;
    const size_t n = second_cache;
    if (other == NULL) {
        other = new memory(4 * n);
        if (!renew(*other, n)) {
            return false;
        }
    }
    return start(read_all, blocks_for(n), array{other->f(), n, 0}, "a sweep");
}

/* ---- time ---- */

/* A call that is timed. It prints its own errors and returns false. */
typedef std::function<bool()> timed_call;

static const size_t SPOTS = 9; /* checked places of an output, from first to last byte */

/* Return true if some spot of an output is still poisoned. */
static bool untouched(const void *p, size_t bytes)
{
    unsigned char spot[64];
    const size_t n = bytes < sizeof spot ? bytes : sizeof spot;
    bool poisoned = false;
    for (size_t s = 0; s < SPOTS && n > 0 && !poisoned; s++) {
        const size_t at = (bytes - n) / (SPOTS - 1) * s;
        cudaMemcpy(spot, static_cast<const unsigned char *>(p) + (s + 1 < SPOTS ? at : bytes - n),
                   n, cudaMemcpyDeviceToHost);
        poisoned = std::all_of(spot, spot + n, [](unsigned char c) { return c == 0xa5; });
    }
    return poisoned;
}

/* A measurement. */
struct timing {
    void *out;
    size_t out_bytes;
    bool beyond;       /* its arrays are far larger than the L2 cache */
    timed_call inputs; /* makes the inputs anew */
    timed_call call;
};

static bool one_us(const timing &t, cudaEvent_t begin, cudaEvent_t end, float *us)
{
    float ms = 0;
    if (t.out_bytes > 0) {
        cudaMemsetAsync(t.out, 0xa5, t.out_bytes, NULL);
    }
    if (!t.inputs() || (t.beyond && !sweep())) {
        return false;
    }
    cudaEventRecord(begin, timed_stream);
    const bool good = t.call();
    cudaEventRecord(end, timed_stream);
    if (!fine(cudaEventSynchronize(end), "the device") ||
        !fine(cudaEventElapsedTime(&ms, begin, end), "event") || !good) {
        return false;
    }
    *us = 1000 * ms;
    if (untouched(t.out, t.out_bytes)) {
        std::printf("# a part of the output was left\n");
        return false;
    }
    return true;
}

/* A call in a graph of its own. */
struct captured {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    bool good;
    explicit captured(const timed_call &call) : graph(NULL), exec(NULL), good(false)
    {
        if (fine(cudaStreamBeginCapture(timed_stream, cudaStreamCaptureModeGlobal), "a capture")) {
            const bool called = call();
            good = fine(cudaStreamEndCapture(timed_stream, &graph), "a capture's end") && called &&
                   fine(cudaGraphInstantiate(&exec, graph, 0), "a graph");
        }
    }
    captured(const captured &) = delete;
    captured &operator=(const captured &) = delete;
    ~captured()
    {
        if (exec != NULL) {
            cudaGraphExecDestroy(exec);
        }
        if (graph != NULL) {
            cudaGraphDestroy(graph);
        }
    }
};

/* Return the median time in microseconds; negative: the call failed. */
static double median_of(const timing &t)
{
    cudaEvent_t begin, end;
    std::vector<float> all;
    float us = 0;
    if (!fine(cudaEventCreate(&begin), "event") || !fine(cudaEventCreate(&end), "event")) {
        return -1;
    }
    bool good = true;
    for (int i = -5; i < iterations && good; i++) {
        good = one_us(t, begin, end, &us);
        if (i >= 0) {
            all.push_back(us);
        }
    }
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    if (!good) {
        return -1;
    }
    std::sort(all.begin(), all.end());
    return (double)all[all.size() / 2];
}

static double median_us(const timing &t)
{
    if (!in_graphs) {
        return median_of(t);
    }
    const captured c(t.call);
    const timed_call replay = [&] {
        return fine(cudaGraphLaunch(c.exec, timed_stream), "a graph's launch");
    };
    return c.good ? median_of(timing{t.out, t.out_bytes, t.beyond, t.inputs, replay}) : -1;
}

/* ---- the table ---- */

/* Write the JSON again after each row, so that the finished rows are kept if the program is
 * killed. */
static bool json(void)
{
    FILE *f = json_path != NULL ? std::fopen(json_path, "w") : NULL;
    if (f == NULL) {
        return json_path == NULL;
    }
    std::fprintf(f, "{\"schema\":1,\"tool\":\"%s\",\"device\":\"%s\",\"graphs\":%s,\"results\":[",
                 json_tool, device_name.c_str(), in_graphs ? "true" : "false");
    for (size_t i = 0; i < rows.size(); i++) {
        const row &r = rows[i];
        std::fprintf(f, "%s\n{\"kernel\":\"%s\",\"count\":%zu,\"bytes\":%zu,", i > 0 ? "," : "",
                     r.kernel.c_str(), r.count, r.bytes);
        if (r.us > 0) {
            std::fprintf(f, "\"time_us_med\":%.3f,\"per_copy\":%.4f}", r.us, r.fraction);
        } else {
            std::fprintf(f, "\"time_us_med\":null,\"per_copy\":null}");
        }
    }
    std::fprintf(f, "\n]}\n");
    return std::fclose(f) == 0;
}

/* Bytes per microsecond, read and written, of a copy of as many bytes. */
static double copy_rate;

static void put_row(const row &r)
{
    rows.push_back(r);
    std::printf("%-42s %11zu %12zu ", r.kernel.c_str(), r.count, r.bytes);
    if (r.us > 0) {
        std::printf("%11.1f %9.1f %7.3f\n", r.us, (double)r.bytes / r.us / 1000, r.fraction);
    } else {
        std::printf("%11s %9s %7s\n", "-", "-", "-");
    }
    std::fflush(stdout);
    if (!json()) {
        std::perror(json_path);
        json_path = NULL;
        failures++;
    }
}

static bool is_beyond(size_t count)
{
    return 4 * count >= 4 * second_cache;
}

/* Measure one row. `bytes` is the least traffic: each input read once, each output written once.
 * If out is also an input, `inputs` overwrites the poison. */
static void measure(const std::string &kernel, size_t count, size_t bytes, void *out,
                    size_t out_bytes, const timed_call &inputs, const timed_call &call)
{
    if (kernel.find(only) == std::string::npos) {
        return;
    }
    const double us = median_us(timing{out, out_bytes, is_beyond(count), inputs, call});
    failures += us < 0;
    put_row(row{kernel, count, bytes, us, us > 0 ? (double)bytes / us / copy_rate : -1});
}

/* Measure the rows with which others are compared: a launch of an empty kernel, and a copy. The
 * copy is measured before the others and again after them (`copy, at the end`), because a device's
 * clocks change. */
static void measure_copy(const char *name, size_t n, const memory &from, const memory &to)
{
    const timed_call inputs = anew(n, {&from});
    const timed_call copy = [&] {
        return fine(cudaMemcpyAsync(to.p, from.p, 4 * n, cudaMemcpyDeviceToDevice, timed_stream),
                    "copy");
    };
    if (copy_rate <= 0) {
        const double us = median_us(timing{to.p, 4 * n, is_beyond(n), inputs, copy});
        copy_rate = us > 0 ? 8.0 * (double)n / us : 1;
    }
    measure(name, n, 8 * n, to.p, 4 * n, inputs, copy);
}

static void measure_launch(void)
{
    const double us =
        median_us(timing{NULL, 0, false, [] { return true; },
                         [] { return start(empty_kernel, 1, array(), "launch", timed_stream); }});
    failures += us < 0;
    put_row(row{"launch", 0, 0, us, -1});
}

/* Print the head of the table. Return false if there is no device. */
static bool begin_table(const char *tool)
{
    int devices = 0;
    cudaDeviceProp properties;
    json_tool = tool;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        std::printf("# skipped: %s (there is no GPU)\n", tool);
        return false;
    }
    if (!fine(cudaGetDeviceProperties(&properties, 0), "device 0")) {
        std::exit(1);
    }
    if (in_graphs && !fine(cudaStreamCreateWithFlags(&timed_stream, 0), "a stream")) {
        std::exit(1);
    }
    device_name = properties.name;
    second_cache = (size_t)properties.l2CacheSize;
    std::printf("# %s on %s; per_copy: the rate beside that of a device-to-device copy of this "
                "size%s\n%-42s %11s %12s %11s %9s %7s\n",
                tool, properties.name, in_graphs ? "; graphs are timed" : "", "kernel", "elements",
                "bytes", "time_us", "GB/s", "per_copy");
    return true;
}

static int usage(void)
{
    std::fprintf(stderr,
                 "usage: PROGRAM [--log2 N]... [--json FILE] [--iterations N] [--only NAME] "
                 "[--graph]\n"
                 "  --log2 N        2^N elements, 10 to 32 (default: 28, then 22)\n"
                 "  --json FILE     the table as JSON, written with each row\n"
                 "  --iterations N  of which the median is taken (default: 25)\n"
                 "  --only NAME     the rows whose name contains NAME\n"
                 "  --graph         each call captured into a graph, whose launch is "
                 "timed\n");
    return 2;
}

/* Parse the command line. Return false if it is wrong. */
static bool arguments(int argc, char **argv, std::vector<int> *logs)
{
    for (int i = 1; i < argc; i++) {
        const std::string name = argv[i];
        if (name == "--graph") {
            in_graphs = true;
            continue;
        }
        if (++i == argc) {
            return false;
        }
        const int value = std::atoi(argv[i]);
        if (name == "--json") {
            json_path = argv[i];
        } else if (name == "--only") {
            only = argv[i];
        } else if (name == "--log2" && value >= 10 && value <= 32) {
            logs->push_back(value);
        } else if (name == "--iterations" && value > 0) {
            iterations = value;
        } else {
            return false;
        }
    }
    if (logs->empty()) {
        *logs = {28, 22};
    }
    return true;
}

#endif
