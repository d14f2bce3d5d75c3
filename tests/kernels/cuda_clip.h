/* cuda_clip.h - tests of DGC's clipping: the sum of squares, the factor and the momentum have the
 * CPU's bits. */
#ifndef DCOMM_CUDA_CLIP_TESTS_H
#define DCOMM_CUDA_CLIP_TESTS_H

#include "cuda_far.h"
#include "cuda_folds.h"

extern "C" double cuda_reference_squares(const float *x, size_t count);

static bool clip_says(const bytes &got, double squares, double most, const std::string &what)
{
    dcomm_cuda_clip clip;
    std::memcpy(&clip, got.data(), sizeof clip);
    const float factor =
        squares > most * most && most > 0 ? (float)(most / std::sqrt(squares)) : 1.0f;
    char text[128];
    std::snprintf(text, sizeof text, ": squares %a, factor %a; not %a, %a", clip.squares,
                  (double)clip.factor, squares, (double)factor);
    return (clip.squares == squares && clip.factor == factor) || wrong(what + text);
}

/* shift: number of elements from the start of a line to g. */
static bool clip_one(size_t count, int kind, double share, size_t shift)
{
    const std::vector<float> g = numbers(count, kind);
    const double squares = cuda_reference_squares(g.data(), count);
    const double most = share * std::sqrt(squares);
    const std::string what = where("clip", count, shift, kind);
    area there(4 * count, 4 * shift), clip(sizeof(dcomm_cuda_clip));
    work_area room(dcomm_cuda_feedback_clip_workspace_bytes(count));
    there.put(g.data());
    return good(launched([&](void *stream) {
                    return dcomm_cuda_feedback_clip(reinterpret_cast<dcomm_cuda_clip *>(clip.at),
                                                    reinterpret_cast<float *>(there.at), count,
                                                    most, room.at, stream);
                }),
                what) &&
           clip_says(clip.get(), squares, most, what) && clip.guarded() && room.guarded();
}

/* over: write the result over the gradient (1), over the old momentum u (2), or elsewhere (0). */
static bool clipped_one(size_t count, int g_kind, int u_kind, float factor, int over)
{
    const float momentum = 0.9f;
    const std::vector<float> g = numbers(count, g_kind), before = numbers(count, u_kind);
    const dcomm_cuda_clip found = {0, factor};
    const std::string what = where("clipped", count, (size_t)over, g_kind);
    std::vector<float> want(count + 1);
    area x(4 * count, 4), u(4 * count, 8), to(4 * count), clip(sizeof found);
    x.put(g.data());
    u.put(before.data());
    clip.put(&found);
    for (size_t i = 0; i < count; i++) {
        const float clipped = std::isfinite(g[i]) ? factor * g[i] : g[i];
        want[i] =
            dcommi_f32_canonical((float)((double)clipped + (double)momentum * (double)before[i]));
    }
    area &out = over == 0 ? to : over == 1 ? x : u;
    if (!good(launched([&](void *stream) {
                  return dcomm_cuda_feedback_clipped(
                      reinterpret_cast<float *>(out.at), reinterpret_cast<float *>(x.at),
                      reinterpret_cast<dcomm_cuda_clip *>(clip.at), momentum,
                      reinterpret_cast<float *>(u.at), count, stream);
              }),
              what)) {
        return false;
    }
    return same(out.get(), want.data(), what) && out.guarded();
}

static void test_clip(void)
{
    /* Whole and partial rows, tiles and lanes of tiles; more tiles than lanes of tiles. */
    const size_t counts[] = {0, 1, 31, 33, 1023, 1025, 8191, 8192, 8193, 70001, 2203651};
    const std::string name = std::string("clipping") + launch_names[launch_now];
    bool fine = true;
    if (late(name)) {
        return;
    }
    for (size_t count : counts) {
        const bool all = count < 100000;
        for (int kind = 0; kind < KINDS; kind++) {
            if ((small && count > 10000) || (!all && kind != BITS && kind != NORMAL)) {
                continue;
            }
            fine = fine && clip_one(count, kind, 0.3, count % 7) &&
                   (!all || (clip_one(count, kind, 1, 1) && clip_one(count, kind, 0, 0) &&
                             clip_one(count, kind, 2, 3))) &&
                   (count > 10000 || (clipped_one(count, kind, NORMAL, 0.37f, 0) &&
                                      clipped_one(count, kind, kind, 1, 1) &&
                                      clipped_one(count, HUGE_ONES, kind, 1e-3f, 2)));
        }
    }
    ok(name);
}

/* Clip an array that is 0 but for its last elements, so that earlier tiles have a sum of 0. */
static void far_clip(void)
{
    const size_t rest = 20005, begin = FAR - rest;
    const std::vector<float> x = numbers(rest, NORMAL);
    expanse g(4 * FAR), room(dcomm_cuda_feedback_clip_workspace_bytes(FAR));
    area clip(sizeof(dcomm_cuda_clip));
    zeros host(FAR);
    if (late("2^31 + 5 elements, clipping") || host.p == NULL ||
        !far_room("clipping", {&g, &room})) {
        return;
    }
    const far_blocks last(4);
    std::copy(x.begin(), x.end(), host.p + begin);
    area::copy(g.p + 4 * begin, x.data(), 4 * rest, true);
    good(dcomm_cuda_feedback_clip(reinterpret_cast<dcomm_cuda_clip *>(clip.at), far_floats(g), FAR,
                                  1.5, room.p, NULL),
         "clip");
    clip_says(clip.get(), cuda_reference_squares(host.p, FAR), 1.5, "clip");
    ok("2^31 + 5 elements, clipping");
}

#endif
