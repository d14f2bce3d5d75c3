/* cuda_halves.h - a part of cuda_kernels.cu: every f16 and bf16 there is to f32, and back from
 * numbers that lie on each, halfway to its neighbour, and just beside, against the CPU. */
#ifndef CUDA_HALVES_H
#define CUDA_HALVES_H

#include "cuda_folds.h"

static const size_t HALVES = 1 << 16;

static bool halves_to_f32(dcomm_dtype dtype, std::vector<float> *wide)
{
    std::vector<uint16_t> all(HALVES);
    area from(2 * HALVES), to(4 * HALVES);
    for (size_t i = 0; i < HALVES; i++) {
        all[i] = (uint16_t)i;
    }
    from.put(all.data());
    cuda_reference_to_f32(wide->data(), all.data(), HALVES, dtype, 1);
    return good(launched([&](void *stream) {
                    return dcomm_cuda_to_f32(reinterpret_cast<float *>(to.at), from.at, HALVES,
                                             dtype, 1, stream);
                }),
                "halves") &&
           same(to.get(), wide->data(), "every half to f32") && to.guarded();
}

/* Add `more` to the bits of each number, and convert. */
static bool halves_from_f32(dcomm_dtype dtype, const std::vector<float> &wide, uint32_t more)
{
    std::vector<float> in(HALVES);
    std::vector<uint16_t> want(HALVES);
    area from(4 * HALVES), to(2 * HALVES);
    for (size_t i = 0; i < HALVES; i++) {
        in[i] = dcommi_f32_from_bits(dcommi_f32_bits(wide[i]) + more);
    }
    from.put(in.data());
    cuda_reference_from_f32(want.data(), in.data(), HALVES, dtype);
    const std::string what = "every half and " + std::to_string((int32_t)more) + ", from f32";
    return good(launched([&](void *stream) {
                    return dcomm_cuda_from_f32(to.at, reinterpret_cast<float *>(from.at), HALVES,
                                               dtype, stream);
                }),
                what) &&
           same(to.get(), want.data(), what) && to.guarded();
}

static void test_halves(void)
{
    for (dcomm_dtype dtype : {DCOMM_F16, DCOMM_BF16}) {
        const std::string name =
            std::string("all of ") + dcomm_dtype_name(dtype) + launch_names[launch_now];
        const uint32_t half = 1u << (dtype == DCOMM_F16 ? 12 : 15);
        std::vector<float> wide(HALVES);
        bool fine = !late(name);
        if (!fine) {
            return;
        }
        fine = halves_to_f32(dtype, &wide);
        for (uint32_t more : {0u, half - 1, half, half + 1, 0u - 1}) {
            fine = fine && halves_from_f32(dtype, wide, more);
        }
        ok(name);
    }
}

#endif
