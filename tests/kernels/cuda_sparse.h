/* cuda_sparse.h - a part of cuda_kernels.cu: the kernels of sparse codecs against the CPU. */
#ifndef CUDA_SPARSE_H
#define CUDA_SPARSE_H

#include "cuda_dense.h"

/* Return input number `call` of several that share a workspace. The threshold that a call leaves
 * there never fits the next input, which may be far smaller or far larger. */
static std::vector<float> sparse_input(size_t count, int kind, int call)
{
    static const int shift[] = {0, 0, -9, 11};
    std::vector<float> x = numbers(count, kind);
    for (float &f : x) {
        f = std::isfinite(f) && std::fabs(f) < 1e20f ? std::ldexp(f, shift[call]) : f;
    }
    return x;
}

static float *floats(const area &a)
{
    return reinterpret_cast<float *>(a.at);
}

static dcomm_cuda_report *cleared(area &a)
{
    const dcomm_cuda_report none = dcomm_cuda_report();
    a.put(&none);
    return reinterpret_cast<dcomm_cuda_report *>(a.at);
}

/* Encode x on the CPU. */
static coded sparse_reference(const dcomm_codec *codec, const std::vector<float> &x,
                              const std::vector<float> &residual, bool feedback,
                              const dcomm_codec_key &key)
{
    coded c;
    size_t written = 0;
    c.report = dcomm_codec_report();
    c.wire.resize(dcomm_codec_max_bytes(codec, x.size()));
    c.next.resize(x.size() + 1);
    c.status = feedback ? dcomm_encode_feedback(codec, x.data(), residual.data(), c.next.data(),
                                                x.size(), &key, c.wire.data(), c.wire.size(),
                                                &written, NULL, &c.report)
                        : dcomm_encode(codec, x.data(), x.size(), &key, c.wire.data(),
                                       c.wire.size(), &written, NULL, &c.report);
    c.wire.resize(c.report.bytes);
    return c;
}

/* Compare one encoding. variant: bit 0: feedback in place, bit 1: feedback, bit 2: arrays off by
 * one element, bit 3: wires off by four bytes. */
static bool sparse_encode(const dcomm_codec *codec, size_t count, int kind, int variant,
                          area &workspace, int call, coded *want)
{
    const size_t most = dcomm_codec_max_bytes(codec, count);
    const bool feedback = (variant & 3) != 0;
    const size_t off = (variant & 4) != 0 ? 4 : 0;
    char text[160];
    std::snprintf(text, sizeof text, "%zu elements, %s, variant %d, call %d", count,
                  kind_names[kind], variant, call);
    const std::string what = text;
    const std::vector<float> x = sparse_input(count, kind, call);
    const std::vector<float> r = sparse_input(count, residuals(kind), call);
    dcomm_codec_key key = dcomm_codec_key();
    key.seed = 9;
    key.step = (uint64_t)call;
    key.rank = 2;
    *want = sparse_reference(codec, x, r, feedback, key);
    area in(4 * count, off), residual(4 * count, off), next(4 * count, off),
        wire(most, (variant & 8) != 0 ? 4 : 0), report(sizeof(dcomm_cuda_report));
    area &to = (variant & 1) != 0 ? residual : next;
    in.put(x.data());
    residual.put(r.data());
    dcomm_cuda_report *found = cleared(report);
    if (!good(launched([&](void *stream) {
                  return dcomm_cuda_encode(codec, floats(in), feedback ? floats(residual) : NULL,
                                           feedback ? floats(to) : NULL, count, &key, wire.at, most,
                                           workspace.at, found, stream);
              }),
              what)) {
        return false;
    }
    bytes got = wire.get();
    for (size_t i = want->wire.size(); i < got.size(); i++) {
        if (got[i] != POISON) {
            return wrong("a byte behind the wire was written, " + what);
        }
    }
    got.resize(want->wire.size());
    return same(got, want->wire.data(), "encode " + what) && wire.guarded() &&
           workspace.guarded() && same_report(codec, count, report, *want, "encode " + what) &&
           report.guarded() &&
           (!feedback || (same(to.get(), want->next.data(), "next " + what) && to.guarded()));
}

/* Decode the sum of wires, and add it onto an array. */
static bool sparse_decode(const dcomm_codec *codec, size_t count, const std::vector<coded> &wires,
                          size_t off, const std::string &what)
{
    const size_t room = dcomm_cuda_decode_workspace_bytes(codec, count);
    work_area workspace(room);
    area x(4 * count, off), a(4 * count, off), report(sizeof(dcomm_cuda_report));
    std::vector<area *> there;
    std::vector<const void *> host, device;
    std::vector<size_t> lens;
    for (const coded &c : wires) {
        there.push_back(new area(c.wire.size(), off));
        there.back()->put(c.wire.data());
        host.push_back(c.wire.data());
        device.push_back(there.back()->at);
        lens.push_back(c.wire.size());
    }
    bool fine = true;
    for (size_t n = 1; n <= wires.size() && fine; n++) {
        std::vector<float> sum(count + 1), acc = numbers(count, ODD);
        a.put(acc.data());
        dcomm_cuda_report *found = cleared(report);
        fine =
            good(dcomm_decode_sum(codec, host.data(), lens.data(), n, sum.data(), count), what) &&
            good(launched([&](void *stream) {
                     return dcomm_cuda_decode_sum(codec, device.data(), lens.data(), n, floats(x),
                                                  count, workspace.at, found, stream);
                 }),
                 what) &&
            same(x.get(), sum.data(), "decode_sum " + what) && x.guarded();
        for (size_t w = 0; w < n && fine; w++) {
            fine = good(dcomm_decode_add(codec, host[w], lens[w], acc.data(), count), what);
        }
        fine = fine &&
               good(launched([&](void *stream) {
                        return dcomm_cuda_decode_add(codec, device.data(), lens.data(), n,
                                                     floats(a), count, workspace.at, found, stream);
                    }),
                    what) &&
               same(a.get(), acc.data(), "decode_add " + what) && a.guarded() &&
               workspace.guarded() &&
               (good_wires(report) || wrong("a good wire was found bad, " + what));
    }
    for (area *one : there) {
        delete one;
    }
    return fine;
}

/* Encode the sum of wires again, with a residual (variant: as sparse_encode's) or without. The
 * CPU's compiler decides which of two NaN a sum is. */
static bool sparse_recode(const dcomm_codec *codec, size_t count, const std::vector<coded> &wires,
                          int variant, area &workspace, const std::string &what)
{
    const size_t most = dcomm_codec_max_bytes(codec, count);
    const bool feedback = (variant & 3) != 0;
    const size_t off = (variant & 4) != 0 ? 4 : 0;
    const float factor = (variant & 8) != 0 ? 1 : -0.3f;
    const std::vector<float> r = numbers(count, count % 2 == 0 ? ODD : NORMAL);
    std::vector<area *> there;
    std::vector<const void *> host, device;
    std::vector<size_t> lens;
    for (const coded &c : wires) {
        there.push_back(new area(c.wire.size(), off));
        there.back()->put(c.wire.data());
        host.push_back(c.wire.data());
        device.push_back(there.back()->at);
        lens.push_back(c.wire.size());
    }
    dcomm_codec_key key = dcomm_codec_key();
    key.seed = 4;
    coded want;
    size_t written = 0;
    want.report = dcomm_codec_report();
    want.wire.resize(most);
    want.next.resize(count + 1);
    want.status = dcomm_recode(codec, host.data(), lens.data(), wires.size(), factor,
                               feedback ? r.data() : NULL, feedback ? want.next.data() : NULL,
                               count, &key, want.wire.data(), most, &written, NULL, &want.report);
    area residual(4 * count, off), next(4 * count, off), out(most, off),
        report(sizeof(dcomm_cuda_report));
    area &to = (variant & 1) != 0 ? residual : next;
    residual.put(r.data());
    dcomm_cuda_report *found = cleared(report);
    bool fine = good(launched([&](void *stream) {
                         return dcomm_cuda_recode(codec, device.data(), lens.data(), wires.size(),
                                                  factor, feedback ? floats(residual) : NULL,
                                                  feedback ? floats(to) : NULL, count, &key, out.at,
                                                  most, workspace.at, found, stream);
                     }),
                     what);
    bytes got = out.get();
    got.resize(want.report.bytes);
    fine =
        fine && same(got, want.wire.data(), "recode " + what) && out.guarded() &&
        workspace.guarded() && same_report(codec, count, report, want, "recode " + what) &&
        (!feedback || (same(to.get(), want.next.data(), "recode's next " + what) && to.guarded()));
    for (area *one : there) {
        delete one;
    }
    return fine;
}

/* Both or neither must find a wire with a changed byte corrupt; nothing outside may be written. */
static bool sparse_corrupt(const dcomm_codec *codec, size_t count, const coded &of)
{
    const size_t len = of.wire.size();
    work_area workspace(dcomm_cuda_decode_workspace_bytes(codec, count));
    area there(len), out(4 * count), report(sizeof(dcomm_cuda_report));
    const void *p = there.at;
    std::vector<float> y(count + 1);
    dcomm_codec_info info;
    dcomm_codec_get_info(codec, count, &info);
    /* A wire may be padded to the longest length: its head says where it ends. */
    const size_t skip = !info.exact_bytes && len == info.max_bytes ? 4 : 0;
    for (int turn = 0; turn < (small ? 5 : 24); turn++) {
        bytes bad = of.wire;
        const size_t at = turn < 12   ? len - 1 - (size_t)turn % len
                          : turn < 20 ? (size_t)turn - 12
                                      : (size_t)(draw() >> 9) % len;
        if (at % len < skip) {
            continue;
        }
        bad[at % len] ^= turn % 3 == 0 ? 0x80 : turn % 3 == 1 ? 0xff : (unsigned char)(draw() | 1);
        there.put(bad.data());
        dcomm_cuda_report *on_device = cleared(report);
        const dcomm_status want = dcomm_decode(codec, bad.data(), len, y.data(), count);
        if (!good(launched([&](void *stream) {
                      return dcomm_cuda_decode_sum(codec, &p, &len, 1, floats(out), count,
                                                   workspace.at, on_device, stream);
                  }),
                  "decode")) {
            return false;
        }
        const dcomm_cuda_report found = report_of(report);
        const dcomm_status got = dcomm_cuda_report_check(codec, count, &found, NULL);
        if (got != want) {
            return wrong("byte " + std::to_string(at) + " of " + std::to_string(len) + " as " +
                         std::to_string(bad[at % len]) + ": the CPU says " +
                         dcomm_status_name(want) + ", not " + dcomm_status_name(got));
        }
        if (!out.guarded() || !workspace.guarded() ||
            (want == DCOMM_OK && !same(out.get(), y.data(), "decode"))) {
            return false;
        }
    }
    return true;
}

/* Run calls that share a workspace, each with another input, and add them up. */
static bool sparse_calls(const dcomm_codec *codec, size_t count, int kind, int variant)
{
    work_area workspace(dcomm_cuda_workspace_bytes(codec, count));
    std::vector<coded> wires(small || count < 8000 ? 2 : 4);
    for (size_t call = 0; call < wires.size(); call++) {
        if (!sparse_encode(codec, count, kind, variant, workspace, (int)call, &wires[call])) {
            return false;
        }
    }
    const std::string what = where(kind_names[kind], count, wires.size(), variant);
    work_area again(dcomm_cuda_recode_workspace_bytes(codec, count));
    return sparse_decode(codec, count, wires, (variant & 4) != 0 ? 4 : 0, what) &&
           sparse_recode(codec, count, wires, variant, again, what) &&
           sparse_recode(codec, count, {wires[1]}, variant ^ 10, again, what) &&
           (count == 0 || count % 3 != 1 || sparse_corrupt(codec, count, wires[0]));
}

static void test_sparse(const char *spec)
{
    static const char *const policies[] = {"zero", "pass", "fail"};
    const std::vector<size_t> counts = {0, 1, 2, 33, 700, 8191, 8200, 20011, 70001, 150004};
    const std::string name = std::string(spec) + launch_names[launch_now];
    static int turn;
    if (late(name)) {
        return;
    }
    for (int policy = 0; policy < 3; policy++) {
        if (small && policy != turn % 3) {
            continue;
        }
        dcomm_codec *codec = NULL;
        const std::string full = std::string(spec) + ",nonfinite=" + policies[policy];
        bool fine = good(dcomm_codec_create(full.c_str(), &codec), full);
        for (size_t count : counts) {
            const int kind = (turn + policy) % KINDS;
            int variant = (int)(draw() >> 11 & 15);
            turn++;
            if ((small && count > 10000 && turn % 4 != 0) || (count > 100000 && turn % 3 != 0)) {
                continue;
            }
            fine = fine && sparse_calls(codec, count, kind, variant);
        }
        dcomm_codec_destroy(&codec);
        if (!fine) {
            trouble = full + ": " + trouble;
            break;
        }
    }
    ok(name);
}

static void test_sparse_all(void)
{
    static const char *const sparse_specs[] = {"topk:k=1",
                                               "topk:k=0.01",
                                               "topk:k=777,values=f16",
                                               "topk:k=0.05,values=bf16",
                                               "topk:k=0.3",
                                               "topk:k=0.6,values=f16",
                                               "topk:k=100000000",
                                               "threshold:k=0.01",
                                               "threshold:k=0.2,values=bf16",
                                               "threshold:k=3,values=f16",
                                               "topk+qsgd:k=0.02",
                                               "topk+qsgd:k=0.4,bits=8,rounding=nearest",
                                               "topk+qsgd:k=0.1,bits=2,bucket=256",
                                               "topk+qsgd:k=0.1,bits=1,rounding=nearest",
                                               "randk:k=0.01",
                                               "randk:k=0.3,scale=none",
                                               "randk:k=1"};
    int i = 0;
    for (const char *spec : sparse_specs) {
        if (taken(i++)) {
            test_sparse(spec);
        }
    }
}

#endif
