/* cuda_areas.h - shared by the tests of the CUDA kernels: device memory between guards, launches,
 * inputs that are hard for codecs, and messages about a test. */
#ifndef DCOMM_CUDA_AREAS_H
#define DCOMM_CUDA_AREAS_H

#include <algorithm>
#include <cfloat>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#ifdef DCOMMI_CUDA_SHIM
#include <sys/mman.h>
#endif

typedef std::vector<unsigned char> bytes;

static bool small;      /* fewer and shorter cases */
static bool in_turns;   /* split many like cases among the thread orders */
static double time_for; /* seconds after which no case starts; 0: no limit */
static int failures;
static std::string trouble;

static void ok(const std::string &name)
{
    std::printf("%s - %s\n", trouble.empty() ? "ok" : "not ok", name.c_str());
    if (!trouble.empty()) {
        std::printf("    %s\n", trouble.c_str());
        failures++;
    }
    trouble.clear();
    std::fflush(stdout);
}

/* Note the first error of a test. */
static bool wrong(const std::string &what)
{
    trouble = trouble.empty() ? what : trouble;
    return false;
}

/* Return true if the time is up, and print that the test `name` is skipped. */
static bool late(const std::string &name)
{
    static const auto begin = std::chrono::steady_clock::now();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    if (time_for > 0 && took.count() > time_for) {
        std::printf("# skipped: %s (the time is up)\n", name.c_str());
        return true;
    }
    return false;
}

/* Return true if case i of many like ones belongs to the current order of threads. */
static bool taken(int i)
{
#ifdef DCOMMI_CUDA_SHIM
    return !in_turns || (i + shim_order) % 2 == 0;
#else
    return i >= 0;
#endif
}

/* ---- device memory between guards ---- */

static const size_t GUARD = 256;
static const unsigned char POISON = 0xa5;

struct area {
    unsigned char *base, *at;
    size_t size, room;
    bool lasting = false; /* a workspace: a graph's run finds its last contents */

    /* `off`: bytes from an address that is aligned to 256. */
    explicit area(size_t len, size_t off = 0) : size(len), room(len + 3 * GUARD)
    {
        if (cudaMalloc(reinterpret_cast<void **>(&base), room) != cudaSuccess) {
            std::printf("Bail out! no device memory\n");
            std::exit(2);
        }
        at = base + GUARD + off;
        bytes poison(room, POISON);
        copy(base, poison.data(), room, true);
        all().push_back(this);
    }
    area(const area &) = delete;
    area &operator=(const area &) = delete;
    ~area()
    {
        all().erase(std::find(all().begin(), all().end(), this));
        cudaFree(base);
    }
    /* All areas that exist. */
    static std::vector<area *> &all()
    {
        static std::vector<area *> areas;
        return areas;
    }
    static void copy(void *to, const void *from, size_t len, bool in)
    {
        cudaError_t e =
            cudaMemcpy(to, from, len, in ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost);
        if (e == cudaSuccess && in) { /* its data may still be on the way, and own_stream() does
                                       * not wait for it */
            e = cudaDeviceSynchronize();
        }
        if (e != cudaSuccess) {
            wrong(std::string("the device says: ") + cudaGetErrorString(e));
        }
    }
    void put(const void *from)
    {
        copy(at, from, size, true);
    }
    bytes get() const
    {
        bytes b(size);
        copy(b.data(), at, size, false);
        return b;
    }
    bool guarded() const
    {
        bytes b(room);
        copy(b.data(), base, room, false);
        for (size_t i = 0; i < room; i++) {
            if ((i < (size_t)(at - base) || i >= (size_t)(at - base) + size) && b[i] != POISON) {
                return wrong("a byte beside the output was written, at " +
                             std::to_string((long)i - (long)(at - base)) + " of " +
                             std::to_string(size));
            }
        }
        return true;
    }
};

struct work_area : area {
    explicit work_area(size_t len) : area(len)
    {
        lasting = true;
    }
};

static bool same(const bytes &got, const void *want, const std::string &what)
{
    const unsigned char *w = static_cast<const unsigned char *>(want);
    for (size_t i = 0; i < got.size(); i++) {
        if (got[i] != w[i]) {
            char text[96];
            std::snprintf(text, sizeof text, ": byte %zu of %zu is %02x, not %02x", i, got.size(),
                          got[i], w[i]);
            return wrong(what + text);
        }
    }
    return true;
}

static bool good(dcomm_status status, const std::string &what)
{
    return status == DCOMM_OK || wrong(what + ": " + dcomm_last_error());
}

/* ---- launches ---- */

/* Launch as a program would; captured into a graph that runs twice; behind a kernel that is still
 * running when the call returns, which needs a device. */
enum launch_mode { PLAIN, IN_GRAPH, BEHIND, LAUNCH_MODES };
static const char *const launch_names[LAUNCH_MODES] = {"", " in a graph", " behind a slow kernel"};
static launch_mode launch_now = PLAIN;

typedef std::function<dcomm_status(void *stream)> launcher;

static uint64_t draw(void);

static void device_says(cudaError_t e, const char *what)
{
    if (e != cudaSuccess) {
        wrong(std::string(what) + ": " + cudaGetErrorString(e));
    }
}

/* A stream that does not wait for the default one, which a launcher might use by mistake. */
static cudaStream_t own_stream(void)
{
    static cudaStream_t stream;
    if (stream == NULL) {
        device_says(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream");
    }
    return stream;
}

static std::vector<bytes> contents(void)
{
    std::vector<bytes> all;
    for (const area *a : area::all()) {
        all.push_back(a->get());
    }
    return all;
}

/* Return other contents for an area: its words in reverse order, with other signs and low bits. */
static bytes others(const bytes &b)
{
    bytes other(b);
    const size_t words = b.size() / 4;
    for (size_t i = 0; i < words; i++) {
        const uint32_t flip = 0x80000000u | (uint32_t)(draw() >> 48);
        uint32_t word;
        std::memcpy(&word, &b[4 * (words - 1 - i)], sizeof word);
        word ^= flip;
        std::memcpy(&other[4 * i], &word, sizeof word);
    }
    return other;
}

static void graph_run(cudaGraphExec_t exec)
{
    device_says(cudaGraphLaunch(exec, own_stream()), "a graph's launch");
    device_says(cudaStreamSynchronize(own_stream()), "a graph's end");
    for (const area *a : area::all()) {
        a->guarded();
    }
}

/* Run the graph with other inputs first, then with the test's inputs. The test sees the outputs of
 * this second run: none may come from the first run or from the capture. */
static dcomm_status launched_in_graph(const launcher &call)
{
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    const std::vector<bytes> before = contents();
    device_says(cudaStreamBeginCapture(own_stream(), cudaStreamCaptureModeGlobal), "capture");
    const dcomm_status status = call(own_stream());
    device_says(cudaStreamEndCapture(own_stream(), &graph), "the end of a capture");
    if (graph == NULL) {
        return status;
    }
    if (contents() != before) {
        wrong("what is captured has been run");
    }
    device_says(cudaGraphInstantiate(&exec, graph, 0), "a graph");
    for (size_t i = 0; i < before.size(); i++) {
        area::all()[i]->put(others(before[i]).data());
    }
    graph_run(exec);
    for (size_t i = 0; i < before.size(); i++) {
        if (!area::all()[i]->lasting) {
            area::all()[i]->put(before[i].data());
        }
    }
    graph_run(exec);
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    return status;
}

#ifdef DCOMMI_CUDA_SHIM
static dcomm_status launched(const launcher &call)
{
    return launch_now == IN_GRAPH ? launched_in_graph(call) : call(NULL);
}
#else
/* Wait until it may end, or for some two seconds. */
static __global__ void slow_kernel(const volatile int *end)
{
    const long long begin = clock64();
    while (*end == 0 && clock64() - begin < 4000000000ll) {
    }
}

static dcomm_status launched_behind(const launcher &call)
{
    static int *end;
    if (end == NULL) {
        device_says(
            cudaHostAlloc(reinterpret_cast<void **>(&end), sizeof *end, cudaHostAllocMapped),
            "mapped memory");
    }
    *static_cast<volatile int *>(end) = 0;
    slow_kernel<<<1, 1, 0, own_stream()>>>(end);
    const dcomm_status status = call(own_stream());
    if (cudaStreamQuery(own_stream()) != cudaErrorNotReady) {
        wrong("the call has waited for the stream");
    }
    *static_cast<volatile int *>(end) = 1;
    device_says(cudaStreamSynchronize(own_stream()), "the stream");
    return status;
}

static dcomm_status launched(const launcher &call)
{
    return launch_now == IN_GRAPH ? launched_in_graph(call)
           : launch_now == BEHIND ? launched_behind(call)
                                  : call(NULL);
}
#endif

/* ---- long arrays of zeros ---- */

/* A long array of zeros. On the CPU only touched pages take memory. */
struct expanse {
    unsigned char *p;
    size_t size;
    explicit expanse(size_t len) : p(NULL), size(len)
    {
#ifdef DCOMMI_CUDA_SHIM
        void *at = mmap(NULL, len, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        p = at == MAP_FAILED ? NULL : static_cast<unsigned char *>(at);
#else
        if (cudaMalloc(reinterpret_cast<void **>(&p), len) != cudaSuccess) {
            (void)cudaGetLastError();
            p = NULL;
        } else {
            cudaMemset(p, 0, len);
            cudaDeviceSynchronize();
        }
#endif
    }
    expanse(const expanse &) = delete;
    expanse &operator=(const expanse &) = delete;
    ~expanse()
    {
#ifdef DCOMMI_CUDA_SHIM
        munmap(p, size);
#else
        cudaFree(p);
#endif
    }
    bytes part(size_t at, size_t len) const
    {
        bytes b(len);
        area::copy(b.data(), p + at, len, false);
        return b;
    }
};

/* ---- inputs ---- */

static uint64_t seed_now = 1;

static uint64_t draw(void)
{
    seed_now = dcommi_rng_mix(seed_now, 77);
    return seed_now;
}

enum { NORMAL, TINY, EQUAL, ZEROS, SPIKE, HUGE_ONES, ODD, BITS, KINDS };
static const char *const kind_names[KINDS] = {"normal", "tiny",      "equal", "zeros",
                                              "spike",  "huge ones", "odd",   "any bits"};

static float number(int kind, size_t i)
{
    const uint64_t r = draw();
    float x = 0;
    for (int k = 0; k < 4; k++) {
        x += (float)((int)(r >> (16 * k) & 0xffff) - 32768);
    }
    x = std::ldexp(x, -16 - (int)(draw() % 6));
    switch (kind) {
    case TINY: /* denormals, and what is just above them */
        return std::ldexp(x, -(int)(r % 60) - 90);
    case EQUAL:
        return -0.7f;
    case ZEROS:
        return r % 2 == 0 ? 0.0f : -0.0f;
    case SPIKE:
        return i % 1000 == 377 ? 3.0e38f : x * 1e-3f;
    case HUGE_ONES:
        return std::ldexp(x, 126);
    case ODD:
        return r % 37 == 0   ? dcommi_f32_from_bits(0x7f800001u + (uint32_t)(r >> 40))
               : r % 37 == 1 ? -HUGE_VALF
               : r % 37 == 2 ? dcommi_f32_from_bits(0xffc12345u)
               : r % 37 == 3 ? dcommi_f32_from_bits(0xff800001u + (uint32_t)(r >> 43))
                             : x;
    case BITS:
        return dcommi_f32_from_bits((uint32_t)(r >> 7));
    default:
        return x;
    }
}

/* Return the kind of residuals for inputs of a kind. */
static int residuals(int kind)
{
    return kind == HUGE_ONES || kind == ODD || kind == BITS ? kind : (int)NORMAL;
}

/* Return the number that error feedback keeps of x. A NaN of either sign becomes positive. */
static float bounded(float x)
{
    return std::isfinite(x) ? x : x == -HUGE_VALF ? -FLT_MAX : FLT_MAX;
}

static std::vector<float> numbers(size_t n, int kind)
{
    std::vector<float> x(n);
    for (size_t i = 0; i < n; i++) {
        x[i] = number(kind, i);
    }
    return x;
}

#endif
