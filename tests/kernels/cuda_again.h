/* cuda_again.h - a part of cuda_kernels.cu: top-k again and again on one workspace. The blocks of
 * a launch race for places in it, so a fault may show once in many calls. */
#ifndef CUDA_AGAIN_H
#define CUDA_AGAIN_H

#include "cuda_folds.h"
#include "cuda_sparse.h"

static int times_again = 3;

/* Encode x so often, by calls that all leave their threshold to the next, and compare each wire and
 * each residual with the CPU's. */
static bool topk_again(const char *spec, size_t count)
{
    dcomm_codec *codec = NULL;
    if (!good(dcomm_codec_create(spec, &codec), spec)) {
        return false;
    }
    const size_t most = dcomm_codec_max_bytes(codec, count);
    const std::vector<float> x = numbers(count, NORMAL), r = numbers(count, NORMAL);
    const dcomm_codec_key key = dcomm_codec_key();
    const coded want = sparse_reference(codec, x, r, true, key);
    work_area workspace(dcomm_cuda_workspace_bytes(codec, count));
    area in(4 * count), residual(4 * count), next(4 * count), wire(most),
        report(sizeof(dcomm_cuda_report));
    const bytes poison(most, POISON);
    in.put(x.data());
    residual.put(r.data());
    bool fine = true;
    for (int i = 0; i < times_again && fine; i++) {
        const std::string what = std::string(spec) + ", time " + std::to_string(i);
        dcomm_cuda_report *found = cleared(report);
        wire.put(poison.data());
        fine = good(launched([&](void *stream) {
                        return dcomm_cuda_encode(codec, floats(in), floats(residual), floats(next),
                                                 count, &key, wire.at, most, workspace.at, found,
                                                 stream);
                    }),
                    what) &&
               same_report(codec, count, report, want, what) &&
               same(next.get(), want.next.data(), "next, " + what);
        bytes got = wire.get();
        got.resize(want.wire.size());
        fine = fine && same(got, want.wire.data(), "wire, " + what);
    }
    dcomm_codec_destroy(&codec);
    return fine && workspace.guarded() && wire.guarded() && next.guarded();
}

static void test_again(void)
{
    const std::string name = "topk again on one workspace, " + std::to_string(times_again) +
                             " times" + launch_names[launch_now];
    if (!late(name)) {
        const size_t count = small ? 20011 : (size_t)1 << 20;
        (void)(topk_again("topk:k=0.01", count) &&
               topk_again("topk+qsgd:k=0.01,bits=4", count / 2 + 3));
        ok(name);
    }
}

#endif
