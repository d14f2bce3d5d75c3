/* dcomm-kernels.cu - how fast the CUDA kernels are, beside a copy on the same device.
 *
 * usage: dcomm-kernels [--log2 N]... [--json FILE] [--iterations N]
 *
 * For each kernel and size (2^22 and 2^28 elements) the median time between two events, the bytes
 * that had to move (each input read once, each output written once), and the rate as a fraction of
 * that of a device-to-device copy of as many bytes as the elements take, measured in the same run.
 * Inputs are made on the device, new ones for each size; outputs are poisoned before each kernel. A
 * kernel that leaves the poison is reported, and so is an error: then its row has no time.
 *
 * Exit status: 0 good, 1 a kernel failed, 2 usage. Tests of what kernels write are tests/gpu.sh's.
 */
#define DCOMM_CUDA_IMPLEMENTATION
#include "dcomm.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

static const int WIRES = 4;

struct row {
    std::string kernel;
    size_t count, bytes;
    double us, fraction; /* negative: not measured */
};

static std::vector<row> rows;
static int failures, iterations = 25;

static bool fine(cudaError_t error, const char *what)
{
    if (error != cudaSuccess) {
        std::fprintf(stderr, "dcomm-kernels: %s: %s\n", what, cudaGetErrorString(error));
    }
    return error == cudaSuccess;
}

/* ---- memory ---- */

struct memory {
    void *p;
    explicit memory(size_t bytes) : p(NULL)
    {
        if (!fine(cudaMalloc(&p, bytes), "no device memory")) {
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

/* Sums of four uniform numbers: finite, both signs, about normal. */
static __global__ void random_numbers(float *x, uint64_t n, uint64_t seed)
{
    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < n;
         i += (uint64_t)gridDim.x * blockDim.x) {
        const uint64_t r = dcommi_rng_mix(seed, i);
        int sum = -4 * 32768;
        for (int k = 0; k < 4; k++) {
            sum += (int)(r >> (16 * k) & 0xffff);
        }
        x[i] = (float)sum * 0x1p-16f;
    }
}

/* ---- time ---- */

static double median_us(const std::function<dcomm_status()> &call)
{
    cudaEvent_t begin, end;
    std::vector<float> ms;
    if (!fine(cudaEventCreate(&begin), "event") || !fine(cudaEventCreate(&end), "event")) {
        return -1;
    }
    bool good = true;
    for (int i = -5; i < iterations && good; i++) {
        float t = 0;
        cudaEventRecord(begin, NULL);
        const dcomm_status status = call();
        cudaEventRecord(end, NULL);
        good = fine(cudaEventSynchronize(end), "the device") &&
               fine(cudaEventElapsedTime(&t, begin, end), "event");
        if (status != DCOMM_OK) {
            std::fprintf(stderr, "dcomm-kernels: %s\n", dcomm_last_error());
            good = false;
        }
        if (i >= 0) {
            ms.push_back(t);
        }
    }
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    if (!good) {
        return -1;
    }
    std::sort(ms.begin(), ms.end());
    return 1000.0 * (double)ms[ms.size() / 2];
}

/* Whether the last bytes of an output are still poison. */
static bool untouched(const void *p, size_t bytes)
{
    unsigned char last[64];
    const size_t n = bytes < sizeof last ? bytes : sizeof last;
    cudaMemcpy(last, static_cast<const unsigned char *>(p) + bytes - n, n, cudaMemcpyDeviceToHost);
    for (size_t i = 0; i < n; i++) {
        if (last[i] != 0xa5) {
            return false;
        }
    }
    return true;
}

/* Bytes a microsecond that a copy of so many bytes moves: read and written. */
static double copy_rate;

static void measure(const std::string &kernel, size_t count, size_t bytes, void *out,
                    size_t out_bytes, const std::function<dcomm_status()> &call)
{
    cudaMemset(out, 0xa5, out_bytes);
    double us = median_us(call);
    if (us > 0 && untouched(out, out_bytes)) {
        std::fprintf(stderr, "dcomm-kernels: %s wrote nothing\n", kernel.c_str());
        us = -1;
    }
    failures += us < 0;
    rows.push_back(row{kernel, count, bytes, us, us > 0 ? (double)bytes / us / copy_rate : -1});
    std::printf("%-42s %11zu %12zu ", kernel.c_str(), count, bytes);
    if (us > 0) {
        std::printf("%11.1f %9.1f %7.3f\n", us, (double)bytes / us / 1000, rows.back().fraction);
    } else {
        std::printf("%11s %9s %7s\n", "-", "-", "-");
    }
    std::fflush(stdout);
}

/* ---- kernels ---- */

static void reductions(size_t n, const std::vector<memory *> &in, const memory &out)
{
    const struct {
        dcomm_dtype dtype;
        dcomm_op op;
    } of[] = {{DCOMM_F32, DCOMM_SUM},  {DCOMM_F32, DCOMM_MAX},  {DCOMM_F16, DCOMM_SUM},
              {DCOMM_BF16, DCOMM_SUM}, {DCOMM_BF16, DCOMM_MIN}, {DCOMM_I32, DCOMM_SUM}};
    const void *src[WIRES];
    for (int w = 0; w < WIRES; w++) {
        src[w] = in[(size_t)w]->p;
    }
    for (const auto &o : of) {
        for (size_t operands = 2; operands <= WIRES; operands += 2) {
            const size_t len = n * dcomm_dtype_size(o.dtype);
            measure(std::string("reduce ") + dcomm_dtype_name(o.dtype) + " " + dcomm_op_name(o.op) +
                        " of " + std::to_string(operands),
                    n, (operands + 1) * len, out.p, len, [&] {
                        return dcomm_cuda_reduce(out.p, src, operands, n, o.dtype, o.op, 0, NULL);
                    });
        }
    }
}

static void codec(const char *spec, size_t n, const std::vector<memory *> &in, const memory &out,
                  const memory &next)
{
    dcomm_codec *c = NULL;
    if (dcomm_codec_create(spec, &c) != DCOMM_OK) {
        std::fprintf(stderr, "dcomm-kernels: %s\n", dcomm_last_error());
        failures++;
        return;
    }
    const size_t len = dcomm_codec_max_bytes(c, n);
    std::vector<memory *> wires;
    const void *at[WIRES];
    size_t lens[WIRES];
    dcomm_codec_key key = dcomm_codec_key();
    for (int w = 0; w < WIRES; w++) {
        key.rank = (uint32_t)w;
        wires.push_back(new memory(len));
        at[w] = wires[(size_t)w]->p;
        lens[w] = len;
        if (dcomm_cuda_encode(c, in[(size_t)w]->f(), NULL, NULL, n, &key, wires[(size_t)w]->p, len,
                              NULL, NULL, NULL) != DCOMM_OK) {
            std::fprintf(stderr, "dcomm-kernels: %s\n", dcomm_last_error());
            failures++;
        }
    }
    const std::string name = spec;
    memory wire(len);
    measure(name + " encode", n, 4 * n + len, wire.p, len, [&] {
        key.step++;
        return dcomm_cuda_encode(c, in[0]->f(), NULL, NULL, n, &key, wire.p, len, NULL, NULL, NULL);
    });
    measure(name + " encode, feedback", n, 12 * n + len, wire.p, len, [&] {
        key.step++;
        return dcomm_cuda_encode(c, in[0]->f(), in[1]->f(), next.f(), n, &key, wire.p, len, NULL,
                                 NULL, NULL);
    });
    measure(name + " decode", n, 4 * n + len, out.p, 4 * n,
            [&] { return dcomm_cuda_decode_sum(c, at, lens, 1, out.f(), n, NULL, NULL, NULL); });
    measure(name + " decode-and-add of 4", n, 8 * n + WIRES * len, out.p, 4 * n, [&] {
        return dcomm_cuda_decode_add(c, at, lens, WIRES, out.f(), n, NULL, NULL, NULL);
    });
    measure(name + " decode-sum-re-encode of 4", n, (WIRES + 1) * len, wire.p, len, [&] {
        key.step++;
        return dcomm_cuda_recode(c, at, lens, WIRES, 1, NULL, NULL, n, &key, wire.p, len, NULL,
                                 NULL, NULL);
    });
    for (memory *m : wires) {
        delete m;
    }
    dcomm_codec_destroy(&c);
}

/* Encoding with the threshold that the last call has left, and as a first call does. */
static void sparse(const char *spec, size_t n, const std::vector<memory *> &in, const memory &out,
                   const memory &next)
{
    dcomm_codec *c = NULL;
    if (dcomm_codec_create(spec, &c) != DCOMM_OK) {
        std::fprintf(stderr, "dcomm-kernels: %s\n", dcomm_last_error());
        failures++;
        return;
    }
    const size_t most = dcomm_codec_max_bytes(c, n), room = dcomm_cuda_workspace_bytes(c, n);
    memory workspace(room), scatter(dcomm_cuda_decode_workspace_bytes(c, n) + 64);
    memory found(sizeof(dcomm_cuda_report)), wire(most);
    std::vector<memory *> wires;
    const void *at[WIRES];
    size_t lens[WIRES];
    dcomm_cuda_report raw = dcomm_cuda_report();
    dcomm_codec_report report = dcomm_codec_report();
    cudaMemset(workspace.p, 0, room);
    cudaMemset(found.p, 0, sizeof raw);
    for (int w = 0; w < WIRES; w++) {
        wires.push_back(new memory(most));
        at[w] = wires[(size_t)w]->p;
        if (dcomm_cuda_encode(c, in[(size_t)w]->f(), NULL, NULL, n, NULL, wires[(size_t)w]->p, most,
                              workspace.p, static_cast<dcomm_cuda_report *>(found.p),
                              NULL) != DCOMM_OK ||
            !fine(cudaMemcpy(&raw, found.p, sizeof raw, cudaMemcpyDeviceToHost), "the report") ||
            dcomm_cuda_report_check(c, n, &raw, &report) != DCOMM_OK) {
            std::fprintf(stderr, "dcomm-kernels: %s\n", dcomm_last_error());
            failures++;
        }
        lens[w] = report.bytes;
    }
    const size_t len = report.bytes, scattered = WIRES * (len + 8 * report.kept);
    const std::string name = spec;
    const auto encode = [&](bool feedback) {
        return dcomm_cuda_encode(c, in[0]->f(), feedback ? in[1]->f() : NULL,
                                 feedback ? next.f() : NULL, n, NULL, wire.p, most, workspace.p,
                                 NULL, NULL);
    };
    measure(name + " encode", n, 4 * n + len, wire.p, 4, [&] { return encode(false); });
    measure(name + " encode, feedback", n, 12 * n + len, wire.p, 4, [&] { return encode(true); });
    measure(name + " encode, feedback, first call", n, 12 * n + len, wire.p, 4, [&] {
        return fine(cudaMemsetAsync(workspace.p, 0, 64, NULL), "memset") ? encode(true)
                                                                         : DCOMM_ERR_SYSTEM;
    });
    measure(name + " decode", n, 4 * n + len, out.p, 4 * n, [&] {
        return dcomm_cuda_decode_sum(c, at, lens, 1, out.f(), n, scatter.p, NULL, NULL);
    });
    measure(name + " decode-sum of 4", n, 4 * n + scattered, out.p, 4 * n, [&] {
        return dcomm_cuda_decode_sum(c, at, lens, WIRES, out.f(), n, scatter.p, NULL, NULL);
    });
    for (memory *m : wires) {
        delete m;
    }
    dcomm_codec_destroy(&c);
}

static void sizes(size_t n, uint64_t seed)
{
    static const char *const chosen[] = {"topk:k=0.01",      "topk:k=0.001",
                                         "topk:k=0.1",       "topk:k=0.01,values=bf16",
                                         "topk+qsgd:k=0.01", "threshold:k=0.01"};
    static const char *const specs[] = {"qsgd:bits=4",
                                        "qsgd:bits=4,rounding=nearest",
                                        "qsgd:bits=8",
                                        "qsgd:bits=2",
                                        "qsgd:bits=1",
                                        "qsgd:bits=4,norm=two",
                                        "qsgd:bits=4,bucket=4096",
                                        "tern",
                                        "sign",
                                        "fp8",
                                        "fp8:type=e5m2,rounding=stochastic",
                                        "f16",
                                        "f16:rounding=stochastic",
                                        "bf16",
                                        "bf16:rounding=stochastic"};
    std::vector<memory *> in;
    for (int w = 0; w < WIRES; w++) {
        in.push_back(new memory(4 * n));
        random_numbers<<<1024, 256>>>(in.back()->f(), n, seed + (uint64_t)w);
    }
    memory out(4 * n), next(4 * n);
    copy_rate = 1;
    const double us = median_us([&] {
        return fine(cudaMemcpyAsync(out.p, in[0]->p, 4 * n, cudaMemcpyDeviceToDevice, NULL), "copy")
                   ? DCOMM_OK
                   : DCOMM_ERR_SYSTEM;
    });
    copy_rate = 8.0 * (double)n / us;
    measure("copy", n, 8 * n, out.p, 4 * n, [&] {
        return fine(cudaMemcpyAsync(out.p, in[0]->p, 4 * n, cudaMemcpyDeviceToDevice, NULL), "copy")
                   ? DCOMM_OK
                   : DCOMM_ERR_SYSTEM;
    });
    reductions(n, in, out);
    for (const char *spec : specs) {
        codec(spec, n, in, out, next);
    }
    for (const char *spec : chosen) {
        sparse(spec, n, in, out, next);
    }
    for (memory *m : in) {
        delete m;
    }
}

/* ---- output ---- */

static bool json(const char *path, const char *device)
{
    FILE *f = std::fopen(path, "w");
    if (f == NULL) {
        std::perror(path);
        return false;
    }
    std::fprintf(f, "{\"schema\":1,\"tool\":\"dcomm-kernels\",\"device\":\"%s\",\"results\":[",
                 device);
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

static int usage(void)
{
    std::fprintf(stderr, "usage: dcomm-kernels [--log2 N]... [--json FILE] [--iterations N]\n"
                         "  --log2 N        2^N elements, 10 to 32 (default: 22, then 28)\n"
                         "  --json FILE     the table as JSON\n"
                         "  --iterations N  of which the median is taken (default: 25)\n");
    return 2;
}

int main(int argc, char **argv)
{
    std::vector<int> logs;
    const char *file = NULL;
    for (int i = 1; i < argc; i += 2) {
        const std::string name = argv[i];
        if (i + 1 == argc || (name != "--log2" && name != "--json" && name != "--iterations")) {
            return usage();
        }
        const int value = std::atoi(argv[i + 1]);
        if (name == "--json") {
            file = argv[i + 1];
        } else if (name == "--log2" && value >= 10 && value <= 32) {
            logs.push_back(value);
        } else if (name == "--iterations" && value > 0) {
            iterations = value;
        } else {
            return usage();
        }
    }
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        std::printf("# skipped: dcomm-kernels (there is no GPU)\n");
        return 0;
    }
    cudaDeviceProp properties;
    if (!fine(cudaGetDeviceProperties(&properties, 0), "device 0")) {
        return 1;
    }
    std::printf("# %s; per_copy: the rate beside that of a device-to-device copy of this size\n",
                properties.name);
    std::printf("%-42s %11s %12s %11s %9s %7s\n", "kernel", "elements", "bytes", "time_us", "GB/s",
                "per_copy");
    if (logs.empty()) {
        logs = {22, 28};
    }
    for (size_t i = 0; i < logs.size(); i++) {
        sizes((size_t)1 << logs[i], 1000 * (i + 1));
    }
    return (file != NULL && !json(file, properties.name)) || failures > 0;
}
