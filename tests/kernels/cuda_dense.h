/* cuda_dense.h - tests of the dense codecs' kernels: encoding, feedback, decoding, recoding, wires
 * that no encoder writes. */
#ifndef DCOMM_CUDA_DENSE_H
#define DCOMM_CUDA_DENSE_H

#include "cuda_areas.h"

struct coded {
    bytes wire;
    std::vector<float> next;
    dcomm_codec_report report;
    dcomm_status status;
};

static dcomm_cuda_report report_of(const area &a)
{
    dcomm_cuda_report r;
    bytes b = a.get();
    std::memcpy(&r, b.data(), sizeof r);
    return r;
}

static bool good_wires(const area &report)
{
    return report_of(report).corrupt == 0 && report_of(report).beyond == 0;
}

static bool same_report(const dcomm_codec *codec, size_t count, const area &there,
                        const coded &want, const std::string &what)
{
    dcomm_cuda_report raw_report = report_of(there);
    dcomm_codec_report got;
    dcomm_status status = dcomm_cuda_report_check(codec, count, &raw_report, &got);
    if (status != want.status || got.clipped != want.report.clipped ||
        got.nonfinite != want.report.nonfinite ||
        got.first_nonfinite != want.report.first_nonfinite || got.bytes != want.report.bytes) {
        char text[160];
        std::snprintf(text, sizeof text, ": status %d for %d, clipped %zu for %zu, odd %zu for %zu",
                      (int)status, (int)want.status, got.clipped, want.report.clipped,
                      got.nonfinite, want.report.nonfinite);
        return wrong(what + text);
    }
    return true;
}

/* Encode one input on CPU and device, and compare all that follows from it. variant: bit 0:
 * feedback in place, bit 1: feedback, bit 2: arrays off by one element, bit 3: wires off by four
 * bytes. */
static bool codec_one(const dcomm_codec *codec, size_t count, int kind, int variant)
{
    work_area room(dcomm_cuda_workspace_bytes(codec, count));
    work_area again(dcomm_cuda_recode_workspace_bytes(codec, count));
    const size_t wires = 3, len = dcomm_codec_max_bytes(codec, count);
    const bool feedback = (variant & 3) != 0, place = (variant & 1) != 0;
    const size_t off = (variant & 4) != 0 ? 4 : 0, wire_off = (variant & 8) != 0 ? 4 : 0;
    dcomm_codec_layout layout;
    dcomm_codec_get_layout(codec, &layout);
    const bool casts = layout.bucket == 0;
    char text[160];
    std::snprintf(text, sizeof text, "%zu elements, %s, variant %d", count, kind_names[kind],
                  variant);
    const std::string what = text;
    std::vector<coded> host(wires + 1);
    std::vector<area *> there;
    std::vector<const void *> host_at, device_at;
    std::vector<size_t> lens(wires, len);
    bool fine = true;
    for (size_t w = 0; w < wires && fine; w++) {
        coded &c = host[w];
        /* Keep to one NaN for a sum at most: the CPU's compiler decides which of two NaN a sum
         * is. */
        const std::vector<float> x = numbers(count, w == 2 || (w == 1 && casts) ? NORMAL : kind);
        const std::vector<float> r = numbers(count, residuals(kind));
        dcomm_codec_key key = dcomm_codec_key();
        key.seed = 5;
        key.step = w;
        key.rank = 3;
        key.first = w == 1 ? 640 : w == 2 ? 77 : 0;
        c.wire.resize(len);
        c.next.resize(count);
        size_t written = 0;
        c.report = dcomm_codec_report();
        c.status = feedback
                       ? dcomm_encode_feedback(codec, x.data(), r.data(), c.next.data(), count,
                                               &key, c.wire.data(), len, &written, NULL, &c.report)
                       : dcomm_encode(codec, x.data(), count, &key, c.wire.data(), len, &written,
                                      NULL, &c.report);
        area in(4 * count, off), residual(4 * count, off), next(4 * count, off),
            report(sizeof(dcomm_cuda_report));
        there.push_back(new area(len, wire_off));
        in.put(x.data());
        residual.put(r.data());
        const dcomm_cuda_report none = dcomm_cuda_report();
        report.put(&none);
        area &to = place ? residual : next;
        fine = good(launched([&](void *stream) {
                        return dcomm_cuda_encode(
                            codec, reinterpret_cast<float *>(in.at),
                            feedback ? reinterpret_cast<float *>(residual.at) : NULL,
                            feedback ? reinterpret_cast<float *>(to.at) : NULL, count, &key,
                            there[w]->at, len, room.at,
                            reinterpret_cast<dcomm_cuda_report *>(report.at), stream);
                    }),
                    what) &&
               same(there[w]->get(), c.wire.data(), "encode " + what) && there[w]->guarded() &&
               same_report(codec, count, report, c, "encode " + what) && report.guarded() &&
               (!feedback || (same(to.get(), c.next.data(), "next " + what) && to.guarded()));
        host_at.push_back(c.wire.data());
        device_at.push_back(there[w]->at);
    }
    for (size_t n = 1; n <= wires && fine; n++) {
        std::vector<float> want(count + 1), acc = numbers(count, casts ? NORMAL : ODD);
        area x(4 * count, off), a(4 * count, off), report(sizeof(dcomm_cuda_report));
        const dcomm_cuda_report none = dcomm_cuda_report();
        report.put(&none);
        a.put(acc.data());
        fine =
            good(dcomm_decode_sum(codec, host_at.data(), lens.data(), n, want.data(), count),
                 what) &&
            good(launched([&](void *stream) {
                     return dcomm_cuda_decode_sum(
                         codec, device_at.data(), lens.data(), n, reinterpret_cast<float *>(x.at),
                         count, NULL, reinterpret_cast<dcomm_cuda_report *>(report.at), stream);
                 }),
                 what) &&
            same(x.get(), want.data(), "decode_sum " + what) && x.guarded();
        for (size_t w = 0; w < n && fine; w++) {
            fine = good(dcomm_decode_add(codec, host_at[w], len, acc.data(), count), what);
        }
        fine =
            fine &&
            good(launched([&](void *stream) {
                     return dcomm_cuda_decode_add(
                         codec, device_at.data(), lens.data(), n, reinterpret_cast<float *>(a.at),
                         count, NULL, reinterpret_cast<dcomm_cuda_report *>(report.at), stream);
                 }),
                 what) &&
            same(a.get(), acc.data(), "decode_add " + what) && a.guarded() &&
            (good_wires(report) || wrong("a good wire was found bad, " + what));
    }
    if (fine) {
        coded &c = host[wires];
        const float factor = kind == NORMAL ? 1 : 0.3f;
        const std::vector<float> r = numbers(count, residuals(kind));
        area residual(4 * count, off), next(4 * count, off), out(len, wire_off),
            report(sizeof(dcomm_cuda_report));
        const dcomm_cuda_report none = dcomm_cuda_report();
        report.put(&none);
        residual.put(r.data());
        area &to = place ? residual : next;
        c.wire.resize(len);
        c.next.resize(count);
        size_t written = 0;
        c.report = dcomm_codec_report();
        c.status = dcomm_recode(codec, host_at.data(), lens.data(), wires, factor,
                                feedback ? r.data() : NULL, feedback ? c.next.data() : NULL, count,
                                NULL, c.wire.data(), len, &written, NULL, &c.report);
        fine =
            good(launched([&](void *stream) {
                     return dcomm_cuda_recode(
                         codec, device_at.data(), lens.data(), wires, factor,
                         feedback ? reinterpret_cast<float *>(residual.at) : NULL,
                         feedback ? reinterpret_cast<float *>(to.at) : NULL, count, NULL, out.at,
                         len, again.at, reinterpret_cast<dcomm_cuda_report *>(report.at), stream);
                 }),
                 what) &&
            same(out.get(), c.wire.data(), "recode " + what) && out.guarded() &&
            same_report(codec, count, report, c, "recode " + what) &&
            (!feedback || (same(to.get(), c.next.data(), "recode's next " + what) && to.guarded()));
    }
    for (area *a : there) {
        delete a;
    }
    return fine;
}

/* Both or neither must find a wire with a changed byte corrupt. */
static bool corrupt_one(const dcomm_codec *codec, size_t count)
{
    const size_t len = dcomm_codec_max_bytes(codec, count);
    bytes wire(len);
    std::vector<float> x = numbers(count, NORMAL), y(count);
    size_t written = 0;
    if (!good(dcomm_encode(codec, x.data(), count, NULL, wire.data(), len, &written, NULL, NULL),
              "encode")) {
        return false;
    }
    for (int turn = 0; turn < (small ? 4 : 40); turn++) {
        bytes bad = wire;
        const size_t at = turn < 8 ? len - 1 - (size_t)turn : (size_t)(draw() >> 9) % len;
        bad[at] = turn % 3 == 0 ? 0x80 : turn % 3 == 1 ? 0xff : (unsigned char)draw();
        area there(len), out(4 * count), report(sizeof(dcomm_cuda_report));
        const dcomm_cuda_report none = dcomm_cuda_report();
        const void *p = there.at;
        there.put(bad.data());
        report.put(&none);
        const dcomm_status want = dcomm_decode(codec, bad.data(), len, y.data(), count);
        if (!good(launched([&](void *stream) {
                      return dcomm_cuda_decode_sum(
                          codec, &p, &len, 1, reinterpret_cast<float *>(out.at), count, NULL,
                          reinterpret_cast<dcomm_cuda_report *>(report.at), stream);
                  }),
                  "decode")) {
            return false;
        }
        const dcomm_cuda_report found = report_of(report);
        if (dcomm_cuda_report_check(codec, count, &found, NULL) != want) {
            return wrong("byte " + std::to_string(at) + " of " + std::to_string(len) + " as " +
                         std::to_string(bad[at]) + ": the CPU says " + dcomm_status_name(want));
        }
        if (want == DCOMM_OK && !same(out.get(), y.data(), "decode")) {
            return false;
        }
    }
    return true;
}

/* A NaN on a wire, where none may be, must make the element that it is added to NaN, and no other
 * element. */
static bool corrupt_nan(const dcomm_codec *codec, size_t count)
{
    const size_t len = dcomm_codec_max_bytes(codec, count), at = count / 3;
    bytes wire(len);
    const std::vector<float> x = numbers(count, NORMAL);
    std::vector<float> sum = x;
    size_t written = 0;
    good(dcomm_encode(codec, x.data(), count, NULL, wire.data(), len, &written, NULL, NULL),
         "encode");
    wire[at] = 0x7e; /* a NaN of e5m2 */
    area there(len), to(4 * count), report(sizeof(dcomm_cuda_report));
    const dcomm_cuda_report none = dcomm_cuda_report();
    const void *p = there.at;
    there.put(wire.data());
    to.put(x.data());
    report.put(&none);
    good(launched([&](void *stream) {
             return dcomm_cuda_decode_add(codec, &p, &len, 1, reinterpret_cast<float *>(to.at),
                                          count, NULL,
                                          reinterpret_cast<dcomm_cuda_report *>(report.at), stream);
         }),
         "decode_add");
    const bytes got = to.get();
    std::memcpy(sum.data(), got.data(), got.size());
    for (size_t i = 0; i < count; i++) {
        if (std::isnan(sum[i]) != (i == at)) {
            return wrong("element " + std::to_string(i) + " beside a NaN on a wire");
        }
    }
    return report_of(report).corrupt != 0 || wrong("a NaN on a wire was not found");
}

/* turn: the policy that small runs take. */
static void test_codec(const char *spec, int turn)
{
    static const char *const policies[] = {"zero", "pass", "fail"};
    const std::string name = std::string(spec) + launch_names[launch_now];
    size_t bucket = 512;
    if (late(name)) {
        return;
    }
    for (int policy = 0; policy < 3; policy++) {
        if (small && policy != turn % 3) {
            continue;
        }
        dcomm_codec *codec = NULL;
        const std::string full = std::string(spec) + (std::strchr(spec, ':') != NULL ? "," : ":") +
                                 "nonfinite=" + policies[policy];
        dcomm_codec_layout layout;
        if (!good(dcomm_codec_create(full.c_str(), &codec), full) ||
            !good(dcomm_codec_get_layout(codec, &layout), full)) {
            break;
        }
        bucket = layout.bucket > 0 ? layout.bucket : 512;
        std::vector<size_t> counts = {0, 1, 2, 127, 130, bucket - 1, bucket, bucket + 65, 2311};
        if (small) {
            counts = {0, 1, 130, bucket, bucket + 65, 2311};
        } else if (bucket <= 2048) {
            counts.push_back(4 * bucket + 333);
            counts.push_back(8192);
        }
        bool fine = true;
        for (size_t count : counts) {
            for (int kind = 0; kind < KINDS && fine; kind++) {
                if ((count > 2400 || small) && kind != (int)(count + (size_t)policy) % KINDS) {
                    continue;
                }
                fine = codec_one(codec, count, kind, (int)(draw() >> 11 & 15));
            }
        }
        fine = fine && corrupt_one(codec, 700) && corrupt_one(codec, bucket + 513);
        fine = fine && (layout.format != DCOMM_FORMAT_E5M2 || corrupt_nan(codec, 1500));
        dcomm_codec_destroy(&codec);
        if (!fine) {
            trouble = full + ": " + trouble;
            break;
        }
    }
    ok(name);
}

static const char *const specs[] = {
    "f16",
    "f16:rounding=stochastic",
    "bf16",
    "bf16:rounding=stochastic",
    "fp8",
    "fp8:rounding=stochastic,block=384",
    "fp8:type=e5m2,block=256",
    "fp8:type=e5m2,rounding=stochastic,block=1024",
    "qsgd",
    "qsgd:rounding=nearest,bucket=128",
    "qsgd:norm=two,bucket=256",
    "qsgd:bits=8,bucket=128",
    "qsgd:bits=8,rounding=nearest,bucket=640",
    "qsgd:bits=8,norm=two,bucket=128",
    "qsgd:bits=8,norm=two,bucket=1152",
    "qsgd:bits=2,bucket=256",
    "qsgd:bits=2,rounding=nearest",
    "qsgd:bits=2,norm=two,bucket=2048",
    "qsgd:bits=1",
    "qsgd:bits=1,rounding=nearest,bucket=1024",
    "qsgd:bits=1,norm=two",
    "qsgd:norm=two,rounding=nearest",
    "qsgd:bits=8,norm=two,rounding=nearest",
    "qsgd:bits=2,norm=two,rounding=nearest,bucket=768",
    "qsgd:bits=1,norm=two,rounding=nearest,bucket=1536",
    "qsgd:bucket=8192",
    "qsgd:bucket=16384,norm=two",
    "tern",
    "tern:rounding=nearest,bucket=768",
    "sign",
    "sign:bucket=1536",
    "sign:bucket=12288",
};

#endif
