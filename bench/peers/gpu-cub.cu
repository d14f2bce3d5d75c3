/* gpu-cub.cu - what CUB makes of the work of our kernels, by the rule of bench/kernels_time.h: the
 * largest hundredth of an array by sorting all magnitudes, the elements above a threshold by a
 * selection, and the sum of two arrays.
 *
 * usage: gpu-cub [--log2 N]... [--json FILE] [--iterations N] [--only NAME] [--graph]
 *        exit: 0 good, 1 failed, 2 usage
 *
 * `bytes` are those that the work needs, not those that the method moves: the input once, and the
 * values and indices of what is selected. Temporary memory is taken before. */
#include "../kernels_time.h"

#include <cub/cub.cuh>

/* Sorts by magnitude: keys whose order as integers is that of |x|. */
static __global__ void magnitudes(const float *x, uint32_t *key, uint32_t *index, uint32_t n)
{
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        key[i] = dcommi_f32_bits(x[i]) & 0x7fffffffu;
        index[i] = i;
    }
}

struct above {
    const float *x;
    float limit;
    __device__ bool operator()(uint32_t i) const
    {
        return fabsf(x[i]) >= limit;
    }
};

/* An iterator over 0, 1, 2, ... */
struct counting {
    typedef uint32_t value_type, reference;
    typedef ptrdiff_t difference_type;
    typedef const uint32_t *pointer;
    typedef std::random_access_iterator_tag iterator_category;
    uint32_t at;
    __host__ __device__ uint32_t operator*() const
    {
        return at;
    }
    __host__ __device__ uint32_t operator[](ptrdiff_t i) const
    {
        return at + (uint32_t)i;
    }
    __host__ __device__ counting operator+(ptrdiff_t i) const
    {
        return counting{at + (uint32_t)i};
    }
    __host__ __device__ counting &operator+=(ptrdiff_t i)
    {
        at += (uint32_t)i;
        return *this;
    }
};

struct add {
    const float *x, *y;
    float *to;
    __device__ void operator()(uint32_t i) const
    {
        to[i] = x[i] + y[i];
    }
};

static void sort(uint32_t n, const memory &x)
{
    memory key(4 * (size_t)n), index(4 * (size_t)n), key_to(4 * (size_t)n), index_to(4 * (size_t)n);
    size_t need = 0;
    const auto run = [&](void *temporary) {
        return cub::DeviceRadixSort::SortPairsDescending(
            temporary, need, static_cast<uint32_t *>(key.p), static_cast<uint32_t *>(key_to.p),
            static_cast<uint32_t *>(index.p), static_cast<uint32_t *>(index_to.p), n, 0, 31,
            timed_stream);
    };
    if (!fine(run(NULL), "CUB's sort")) {
        failures++;
        return;
    }
    memory temporary(need);
    measure("CUB radix sort, top 1%", n, 4 * (size_t)n + 8 * (size_t)(n / 100), index_to.p,
            4 * (size_t)n, anew(n, {&x}), [&] {
                magnitudes<<<(n + 255) / 256, 256, 0, timed_stream>>>(
                    x.f(), static_cast<uint32_t *>(key.p), static_cast<uint32_t *>(index.p), n);
                return fine(run(temporary.p), "CUB's sort");
            });
}

static void select(uint32_t n, const memory &x)
{
    memory index(4 * (size_t)n), number(sizeof(uint32_t));
    size_t need = 0;
    const auto run = [&](void *temporary) {
        return cub::DeviceSelect::If(temporary, need, counting{0}, static_cast<uint32_t *>(index.p),
                                     static_cast<uint32_t *>(number.p), n, above{x.f(), 1.411f},
                                     timed_stream);
    };
    if (!fine(run(NULL), "CUB's select")) {
        failures++;
        return;
    }
    memory temporary(need);
    uint32_t kept = 0; /* some more or less each time */
    renew(x, n);
    run(temporary.p);
    cudaMemcpy(&kept, number.p, sizeof kept, cudaMemcpyDeviceToHost);
    measure("CUB select, |x| >= 1.411", n, 4 * (size_t)n + 4 * (size_t)kept, index.p,
            2 * (size_t)kept, anew(n, {&x}),
            [&] { return fine(run(temporary.p), "CUB's select"); });
}

static void sizes(size_t n)
{
    memory x(4 * n), y(4 * n), out(4 * n);
    copy_rate = 0;
    measure_copy("copy", n, x, out);
    measure("CUB for, f32 sum of 2", n, 12 * n, out.p, 4 * n, anew(n, {&x, &y}), [&] {
        return fine(cub::DeviceFor::Bulk((uint32_t)n, add{x.f(), y.f(), out.f()}, timed_stream),
                    "CUB's for");
    });
    select((uint32_t)n, x);
    sort((uint32_t)n, x);
}

int main(int argc, char **argv)
{
    std::vector<int> logs;
    if (!arguments(argc, argv, &logs) || *std::max_element(logs.begin(), logs.end()) > 30) {
        return usage();
    }
    if (!begin_table("gpu-cub")) {
        return 0;
    }
    measure_launch();
    for (int log2 : logs) {
        sizes((size_t)1 << log2);
    }
    return failures > 0;
}
