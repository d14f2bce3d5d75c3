/* cuda_recode.h - tests of recoding where warps have their own path: whole blocks of up to four
 * wires of 4 or 8 bits, with steps that are equal, nearly equal, or far apart. */
#ifndef DCOMM_CUDA_RECODE_TESTS_H
#define DCOMM_CUDA_RECODE_TESTS_H

#include "cuda_dense.h"

/* Return the numbers of wire w for one kind of input; most: the largest code. */
static std::vector<float> recode_input(size_t count, int kind, size_t w, int most)
{
    static const float scales[][4] = {
        {1, 1.5f, 0.7f, 1},
        {1, 7.9f, 1, 0.99f},
        {1, 8.1f, 15.9f, 1},
        {0x1p99f, 0x1p98f, 0x1p100f, 0x1p101f},
        {0x1p-78f, 0x1p-77f, 0x1p-76f, 0x1p-79f},
        {0x1p-40f, 0x1p40f, 1, 1},
        {1, -1, 1, -1},
        {1, 1, 0, 2},
        {1, 0x1p12f, -0x1p12f, 1},
    };
    std::vector<float> x = numbers(count, NORMAL);
    for (size_t i = 0; i < count; i++) {
        if (kind == 6) { /* sums are zero, or nearly zero */
            x[i] = (float)(i * 37 % 15) - 7 + (i % 1024 < 512 ? 0 : (float)(w * i % 3));
        }
        if (kind == 8 && w % 3 != 0) { /* the order of sums shows: two wires leave nothing else */
            x[i] = (float)(i % 64 == 0 ? most : (int)(i * 37 % (size_t)(2 * most + 1)) - most);
        }
        x[i] *= scales[kind][w];
        x[i] = kind == 7 && i / 512 % 2 == 1 ? 0 : x[i];
    }
    return x;
}

/* Write what no encoder writes into the first block, as the last block takes another path: the
 * lowest code at `place`, or a step if `place` is negative. */
static void recode_corrupt(bytes *wire, size_t count, int place)
{
    static const uint32_t steps[] = {0, 0x3f800001u, 0xbf800000u, 0x7fc00000u, 0x7f800000u, 0x100u};
    const bool eight = wire->size() > count;
    if (place < 0) {
        std::memcpy(wire->data() + (eight ? count : count / 2), &steps[-place], 4);
    } else {
        unsigned char *at = wire->data() + place;
        *at = (unsigned char)(eight            ? 0x80
                              : place % 2 == 0 ? (*at & 0x0f) | 0x80
                                               : (*at & 0xf0) | 8);
    }
}

/* corrupt: 0, or the place at which one wire is corrupt. */
static bool recode_one(const dcomm_codec *codec, size_t count, size_t wires, int kind, float factor,
                       int corrupt)
{
    const size_t len = dcomm_codec_max_bytes(codec, count);
    char text[160];
    std::snprintf(text, sizeof text, "%zu elements, %zu wires, kind %d, factor %g, corrupt %d",
                  count, wires, kind, (double)factor, corrupt);
    std::vector<bytes> host(wires, bytes(len));
    std::vector<area *> there;
    std::vector<const void *> host_at, device_at;
    const std::vector<size_t> lens(wires, len);
    size_t written = 0;
    bool fine = true;
    for (size_t w = 0; w < wires; w++) {
        const std::vector<float> x = recode_input(count, kind, w, len > count ? 127 : 7);
        dcomm_codec_key key = dcomm_codec_key();
        key.rank = w;
        fine = fine && good(dcomm_encode(codec, x.data(), count, &key, host[w].data(), len,
                                         &written, NULL, NULL),
                            text);
        if (corrupt != 0 && w == (size_t)std::abs(corrupt) % wires) {
            recode_corrupt(&host[w], count, corrupt);
        }
        there.push_back(new area(len));
        there[w]->put(host[w].data());
        host_at.push_back(host[w].data());
        device_at.push_back(there[w]->at);
    }
    area out(len), report(sizeof(dcomm_cuda_report));
    const dcomm_cuda_report none = dcomm_cuda_report();
    bytes want(len);
    dcomm_codec_key key = dcomm_codec_key();
    key.seed = 9;
    report.put(&none);
    const dcomm_status status =
        dcomm_recode(codec, host_at.data(), lens.data(), wires, factor, NULL, NULL, count, &key,
                     want.data(), len, &written, NULL, NULL);
    fine = fine && good(launched([&](void *stream) {
                            return dcomm_cuda_recode(
                                codec, device_at.data(), lens.data(), wires, factor, NULL, NULL,
                                count, &key, out.at, len, NULL,
                                reinterpret_cast<dcomm_cuda_report *>(report.at), stream);
                        }),
                        text);
    const dcomm_cuda_report found = report_of(report);
    if (fine && dcomm_cuda_report_check(codec, count, &found, NULL) != status) {
        fine = wrong(std::string(text) + ": the CPU says " + dcomm_status_name(status));
    }
    fine = fine && (corrupt != 0) == (status == DCOMM_ERR_CORRUPT) &&
           (status != DCOMM_OK || same(out.get(), want.data(), text)) && out.guarded();
    for (area *a : there) {
        delete a;
    }
    return fine;
}

static void test_recode(void)
{
    static const float factors[] = {1,        0.25f,       -0.5f,   0.3f, 0,
                                    0x1p-60f, 0x1.8p-100f, 0x1p90f, 3e38f};
    const int kinds = 9, all = (int)(sizeof factors / sizeof *factors);
    const std::string name = std::string("recode") + launch_names[launch_now];
    int turn = 0;
    if (late(name)) {
        return;
    }
    for (const char *spec :
         {"qsgd", "qsgd:bucket=128", "qsgd:bucket=256,rounding=nearest", "qsgd:bits=8",
          "qsgd:bits=8,bucket=128,rounding=nearest", "qsgd:bits=8,bucket=256"}) {
        dcomm_codec *codec = NULL;
        good(dcomm_codec_create(spec, &codec), spec);
        for (size_t wires = 2; wires <= 4; wires++) {
            for (int kind = 0; kind < kinds; kind++) {
                for (int f = 0; f < all; f++) {
                    if (!small || turn % 7 == 0) {
                        recode_one(codec, turn % 2 == 0 ? 4096 + 77 : 6144, wires, kind, factors[f],
                                   0);
                    }
                    turn++;
                }
            }
            for (int place = -5; place < 0; place++) {
                recode_one(codec, 4096, wires, 0, 0.3f, place);
            }
            for (int place = 500; place < 628; place += small ? 37 : 1) {
                recode_one(codec, 4096, wires, 0, 1, place);
            }
        }
        dcomm_codec_destroy(&codec);
    }
    ok(name);
}

/* CPU and report must agree about recoding eight wires of finite numbers. */
static bool recode_beyond(const dcomm_codec *codec, float number, dcomm_status want)
{
    const size_t count = 600, len = dcomm_codec_max_bytes(codec, count);
    const std::vector<float> x(count, number);
    const std::vector<size_t> lens(8, len);
    bytes wire(len), again(len);
    work_area workspace(dcomm_cuda_recode_workspace_bytes(codec, count));
    area in(len), out(len), report(sizeof(dcomm_cuda_report));
    const dcomm_cuda_report none = dcomm_cuda_report();
    const std::vector<const void *> host(8, wire.data()), device(8, in.at);
    size_t written = 0;
    good(dcomm_encode(codec, x.data(), count, NULL, wire.data(), len, &written, NULL, NULL),
         "encode");
    in.put(wire.data());
    report.put(&none);
    const dcomm_status on_cpu = dcomm_recode(codec, host.data(), lens.data(), 8, 1, NULL, NULL,
                                             count, NULL, again.data(), len, &written, NULL, NULL);
    good(launched([&](void *stream) {
             return dcomm_cuda_recode(codec, device.data(), lens.data(), 8, 1, NULL, NULL, count,
                                      NULL, out.at, len, workspace.at,
                                      reinterpret_cast<dcomm_cuda_report *>(report.at), stream);
         }),
         "recode");
    const dcomm_cuda_report found = report_of(report);
    const dcomm_status got = dcomm_cuda_report_check(codec, count, &found, NULL);
    return (on_cpu == want && got == want) ||
           wrong(std::string("a sum of wires: ") + dcomm_status_name(got) + ", on the CPU " +
                 dcomm_status_name(on_cpu));
}

/* CPU and report must agree about decoding a linear codec's wire whose last number is infinite. */
static bool decode_beyond(const dcomm_codec *codec, dcomm_status want)
{
    const size_t count = 600, len = dcomm_codec_max_bytes(codec, count);
    const std::vector<float> x(count, 1);
    const float infinite = HUGE_VALF;
    std::vector<float> y(count);
    bytes wire(len);
    work_area workspace(dcomm_cuda_decode_workspace_bytes(codec, count));
    area in(len), out(4 * count), report(sizeof(dcomm_cuda_report));
    const dcomm_cuda_report none = dcomm_cuda_report();
    const void *device = in.at;
    size_t written = 0;
    good(dcomm_encode(codec, x.data(), count, NULL, wire.data(), len, &written, NULL, NULL),
         "encode");
    std::memcpy(wire.data() + len - 4, &infinite, 4);
    in.put(wire.data());
    report.put(&none);
    const dcomm_status on_cpu = dcomm_decode(codec, wire.data(), len, y.data(), count);
    good(launched([&](void *stream) {
             return dcomm_cuda_decode_sum(codec, &device, &len, 1,
                                          reinterpret_cast<float *>(out.at), count, workspace.at,
                                          reinterpret_cast<dcomm_cuda_report *>(report.at), stream);
         }),
         "decode");
    const dcomm_cuda_report found = report_of(report);
    const dcomm_status got = dcomm_cuda_report_check(codec, count, &found, NULL);
    return (on_cpu == want && got == want) ||
           wrong(std::string("an infinite number: ") + dcomm_status_name(got) + ", on the CPU " +
                 dcomm_status_name(on_cpu));
}

static void test_beyond(void)
{
    const std::string name = std::string("sums beyond f32") + launch_names[launch_now];
    if (late(name)) {
        return;
    }
    for (const char *spec : {"qsgd:bits=4", "qsgd:bits=8,bucket=1024", "bf16", "fp8", "topk:k=0.3",
                             "topk+qsgd:k=0.4,bits=8", "randk:k=0.3,scale=none", "powersgd"}) {
        for (const char *policy : {"fail", "zero", "pass"}) {
            dcomm_codec *codec = NULL;
            dcomm_codec_info info;
            const std::string full = std::string(spec) +
                                     (std::strchr(spec, ':') != NULL ? "," : ":") +
                                     "nonfinite=" + policy;
            const bool fails = policy[0] == 'f', passes = policy[0] == 'p';
            bool fine = good(dcomm_codec_create(full.c_str(), &codec), full) &&
                        good(dcomm_codec_get_info(codec, 600, &info), full) &&
                        recode_beyond(codec, 1, DCOMM_OK) &&
                        recode_beyond(codec, -1.5e38f, fails ? DCOMM_ERR_RANGE : DCOMM_OK) &&
                        (!info.linear || decode_beyond(codec, passes ? DCOMM_OK : DCOMM_ERR_RANGE));
            dcomm_codec_destroy(&codec);
            if (!fine) {
                trouble = full + ": " + trouble;
                ok(name);
                return;
            }
        }
    }
    ok(name);
}

#endif
