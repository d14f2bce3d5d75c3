/* cuda_ledgers.h - tests of ledgers on a device: of each codec's encodings, and of a comparison. */
#ifndef CUDA_LEDGERS_H
#define CUDA_LEDGERS_H

#include "cuda_sparse.h"

/* Compare two ledgers, sums to rounding. For sparse codecs the CPU subtracts what is sent from
 * larger sums (kernels/cpu/tally_pieces.h). */
static bool same_ledger(const dcomm_ledger &got, const dcomm_ledger &want, bool sparse,
                        const std::string &what)
{
    /* Scale of each sum's rounding error: for a sum of mixed signs, the bound without signs. */
    const double *s = want.sums, xy = std::sqrt(s[0] * s[1]);
    const double errors = std::sqrt(s[3] * (double)want.count); /* at least the sum of |y - x| */
    const double beside[8] = {s[0],          s[1], xy,   s[3] + (sparse ? s[0] : 0),
                              s[5] + errors, s[5], s[6], s[7] + (sparse ? s[6] : 0)};
    for (int k = 0; k < 8; k++) {
        if (!(std::fabs(got.sums[k] - s[k]) <= 1e-12 * beside[k] + 1e-300)) {
            char text[128];
            std::snprintf(text, sizeof text, ": sum %d is %.17g, not %.17g", k, got.sums[k], s[k]);
            return wrong(what + text);
        }
    }
    const double within = (sparse ? 1e-7 : 1e-12) * want.residual_norm;
    return (got.count == want.count && got.encoded == want.encoded &&
            got.wire_bytes == want.wire_bytes && got.clipped == want.clipped &&
            got.nonfinite == want.nonfinite &&
            std::fabs(got.residual_norm - want.residual_norm) <= within) ||
           wrong(what + ": counts are not the CPU's");
}

/* Encode with a ledger: its counts are the CPU's, its sums are so to rounding, and the rest is as
 * without it. Write the device's ledger to *there. */
static bool ledger_of(const dcomm_codec *codec, const std::vector<float> &x,
                      const std::vector<float> &r, bool feedback, area &room,
                      const std::string &what, dcomm_cuda_ledger *there)
{
    const size_t count = x.size(), len = dcomm_codec_max_bytes(codec, count);
    dcomm_codec_info info;
    dcomm_codec_get_info(codec, count, &info);
    coded want;
    want.wire.resize(len);
    want.next.resize(count);
    size_t written = 0;
    dcomm_ledger ledger = dcomm_ledger(), got = dcomm_ledger();
    want.status = dcomm_encode_ledger(codec, x.data(), feedback ? r.data() : NULL,
                                      feedback ? want.next.data() : NULL, count, NULL,
                                      want.wire.data(), len, &written, NULL, &want.report, &ledger);
    area in(4 * count), residual(4 * count), next(4 * count), wire(len),
        report(sizeof(dcomm_cuda_report)), sums(sizeof(dcomm_cuda_ledger));
    const dcomm_cuda_report none = dcomm_cuda_report();
    *there = dcomm_cuda_ledger();
    in.put(x.data());
    residual.put(r.data());
    report.put(&none);
    sums.put(there);
    if (!good(launched([&](void *stream) {
                  return dcomm_cuda_encode_ledger(
                      codec, reinterpret_cast<float *>(in.at),
                      feedback ? reinterpret_cast<float *>(residual.at) : NULL,
                      feedback ? reinterpret_cast<float *>(next.at) : NULL, count, NULL, wire.at,
                      len, room.at, reinterpret_cast<dcomm_cuda_report *>(report.at),
                      reinterpret_cast<dcomm_cuda_ledger *>(sums.at), stream);
              }),
              what)) {
        return false;
    }
    bytes sent = wire.get();
    sent.resize(want.report.bytes);
    if (!same(sent, want.wire.data(), what) || !same_report(codec, count, report, want, what) ||
        (feedback && !same(next.get(), want.next.data(), what)) || !wire.guarded() ||
        !room.guarded() || !sums.guarded()) {
        return false;
    }
    const bytes raw_sums = sums.get();
    std::memcpy(there, raw_sums.data(), sizeof *there);
    dcomm_cuda_ledger_add(&got, count, there, &want.report);
    return same_ledger(got, ledger, info.sparse, what);
}

static bool ledger_one(const dcomm_codec *codec, size_t count, int kind, bool feedback)
{
    const std::vector<float> x = numbers(count, kind), r = numbers(count, residuals(kind));
    const std::string what = "ledger of " + std::to_string(count) + " elements, " +
                             kind_names[kind] + (feedback ? ", feedback" : "");
    work_area room(dcomm_cuda_ledger_workspace_bytes(codec, count));
    dcomm_cuda_ledger there;
    return ledger_of(codec, x, r, feedback, room, what, &there);
}

/* Fill a workspace with the threshold of far larger numbers. */
static bool ledger_misled(const dcomm_codec *codec, std::vector<float> x, area &room)
{
    const size_t len = dcomm_codec_max_bytes(codec, x.size());
    for (float &f : x) {
        f *= 2048;
    }
    area in(4 * x.size()), wire(len);
    in.put(x.data());
    return good(dcomm_cuda_encode(codec, floats(in), NULL, NULL, x.size(), NULL, wire.at, len,
                                  room.at, NULL, NULL),
                "encode");
}

/* Sums have the same bits whatever the workspace held before, and where the sample misleads: the
 * sampled elements are all larger than the others (1), or smaller (2). */
static bool ledger_again(const dcomm_codec *codec, bool feedback)
{
    const size_t count = 70001, alone = dcomm_cuda_workspace_bytes(codec, count);
    const size_t lines = 1024, line_of = 16; /* of the sample: kernels/topk_sample.h */
    dcomm_cuda_ledger first, again;
    for (int misled = 0; misled < 3; misled++) {
        std::vector<float> x = numbers(count, NORMAL), r = numbers(count, NORMAL);
        for (size_t line = 0; line < lines && misled > 0; line++) {
            const size_t at = (size_t)dcommi_topk_sample_at(line, lines, count);
            for (size_t i = at; i < at + line_of; i++) {
                x[i] *= misled == 1 ? 0x1p20f : 0x1p-20f;
                r[i] *= misled == 1 ? 1 : 0x1p-20f;
            }
        }
        const std::string what = "misled " + std::to_string(misled);
        work_area room(dcomm_cuda_ledger_workspace_bytes(codec, count));
        if (room.size > alone + count / 4 + 16384) {
            return wrong("a workspace of " + std::to_string(room.size) + " bytes");
        }
        if (!ledger_of(codec, x, r, feedback, room, what, &first) ||
            !ledger_misled(codec, x, room) ||
            !ledger_of(codec, x, r, feedback, room, what + ", again", &again)) {
            return false;
        }
        if (std::memcmp(&first, &again, sizeof first) != 0) {
            return wrong(what + ": the sums depend on an earlier call");
        }
    }
    return true;
}

static void test_ledger_again(void)
{
    const std::string name = std::string("ledgers, once more") + launch_names[launch_now];
    bool fine = true;
    if (late(name)) {
        return;
    }
    for (const char *spec : {"topk:k=0.02", "topk:k=0.3,values=f16", "topk+qsgd:k=0.05",
                             "threshold:k=0.02", "randk:k=0.02,nonfinite=pass", "randk:k=70001"}) {
        dcomm_codec *codec = NULL;
        fine = fine && good(dcomm_codec_create(spec, &codec), spec) && ledger_again(codec, true) &&
               (small || ledger_again(codec, false));
        dcomm_codec_destroy(&codec);
        if (!fine) {
            trouble = std::string(spec) + ": " + trouble;
            break;
        }
    }
    ok(name);
}

static void test_ledger(void)
{
    static const char *const of[] = {"qsgd:nonfinite=zero",
                                     "qsgd:bits=8,bucket=128,norm=two,nonfinite=pass",
                                     "qsgd:bits=1,bucket=1024,nonfinite=zero",
                                     "qsgd:bits=2,bucket=16384,nonfinite=pass",
                                     "tern:nonfinite=zero",
                                     "sign:bucket=1536,nonfinite=pass",
                                     "fp8:nonfinite=zero",
                                     "fp8:type=e5m2,rounding=stochastic,nonfinite=pass",
                                     "f16:nonfinite=pass",
                                     "bf16:rounding=stochastic,nonfinite=fail",
                                     "topk:k=0.02,nonfinite=zero",
                                     "topk:k=0.3,values=bf16,nonfinite=pass",
                                     "threshold:k=0.01,nonfinite=zero",
                                     "threshold:k=0.2,values=bf16,nonfinite=pass",
                                     "topk+qsgd:k=0.1,nonfinite=pass",
                                     "topk+qsgd:k=0.02,bits=8,nonfinite=zero",
                                     "powersgd:rank=3,nonfinite=pass",
                                     "powersgd:rows=20,nonfinite=zero",
                                     "randk:k=0.05,nonfinite=pass",
                                     "randk:k=0.05,scale=none,nonfinite=zero"};
    const size_t counts[] = {0, 1, 700, 3 * 16384 + 77, 700000};
    const std::string name = std::string("ledgers") + launch_names[launch_now];
    int turn = 0;
    bool fine = true;
    if (late(name)) {
        return;
    }
    for (const char *spec : of) {
        dcomm_codec *codec = NULL;
        fine = fine && good(dcomm_codec_create(spec, &codec), spec);
        for (size_t count : counts) {
            if (count > 100000 && (small || turn > 0)) { /* more blocks than one launch adds */
                continue;
            }
            for (int kind : {(int)NORMAL, (int)ODD, (int)BITS}) {
                fine = fine && ledger_one(codec, count, kind, (turn + kind) % 2 == 0) &&
                       (small || ledger_one(codec, count, kind, (turn + kind) % 2 == 1));
            }
        }
        if (!fine && !trouble.empty()) {
            trouble = std::string(spec) + ": " + trouble;
        }
        dcomm_codec_destroy(&codec);
        turn++;
        if (!fine) {
            break;
        }
    }
    ok(name);
}

/* Test the counts of a separate pass, with and without an array to compare with. */
static void test_compare(void)
{
    const std::string name = std::string("comparing") + launch_names[launch_now];
    bool fine = true;
    if (late(name)) {
        return;
    }
    for (size_t count : {(size_t)0, (size_t)1, (size_t)4095, (size_t)70001}) {
        for (int kind : {(int)NORMAL, (int)ODD, (int)HUGE_ONES}) {
            const std::vector<float> x = numbers(count, kind), y = numbers(count, kind);
            const std::string what = std::to_string(count) + " elements, " + kind_names[kind];
            dcomm_ledger want = dcomm_ledger();
            dcomm_codec_report report = dcomm_codec_report();
            area a(4 * count, 4), b(4 * count), sums(sizeof(dcomm_cuda_ledger));
            work_area room(dcomm_cuda_compare_workspace_bytes(count));
            dcomm_cuda_ledger there = dcomm_cuda_ledger();
            a.put(x.data());
            b.put(y.data());
            sums.put(&there);
            dcomm_ledger_compare(&want, x.data(), y.data(), count);
            for (const float *with : {floats(a), (float *)NULL}) { /* the latter adds nothing */
                fine = fine && good(launched([&](void *stream) {
                                        return dcomm_cuda_ledger_compare(
                                            reinterpret_cast<dcomm_cuda_ledger *>(sums.at), with,
                                            floats(b), NULL, count, room.at, stream);
                                    }),
                                    what);
            }
            dcomm_ledger got = dcomm_ledger();
            const bytes raw = sums.get();
            std::memcpy(&there, raw.data(), sizeof there);
            dcomm_cuda_ledger_add(&got, 0, &there, &report);
            fine = fine && same_ledger(got, want, false, what) && room.guarded() && sums.guarded();
        }
    }
    ok(name);
}

#endif
