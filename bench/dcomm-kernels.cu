/* dcomm-kernels.cu - how fast the CUDA kernels are, beside a copy on the same device.
 *
 * usage: dcomm-kernels [--log2 N]... [--json FILE] [--iterations N] [--only NAME] [--graph]
 *
 * For each kernel and size (2^28 and 2^22 elements) the median time between two events, the bytes
 * that had to move (each input read once, each output written once), and the rate as a fraction of
 * that of a device-to-device copy of as many bytes as the elements take, measured in the same run;
 * kernels_time.h has the rule. Then what is wanted, and whether it was met.
 *
 * Exit status: 0 good, 1 a kernel failed, 2 usage. It is linked with the kernels, as other programs
 * are; tests/lib/gpu_build.sh does it, and tests/gpu.sh tests what kernels write.
 * tests/kernels/test_cuda.sh builds this for a CPU, with cuda_shim.h, to see that every row is
 * there.
 */
#ifdef DCOMMI_CUDA_SHIM
#include "cuda_shim.h"
#define DCOMM_CUDA_IMPLEMENTATION
#endif
#include "dcomm.h"

#include "kernels_targets.h"

static const int WIRES = 4;
static cudaStream_t &stream = timed_stream;

static bool said(dcomm_status status)
{
    if (status != DCOMM_OK) {
        std::printf("# %s\n", dcomm_last_error());
    }
    return status == DCOMM_OK;
}

/* ---- kernels ---- */

typedef std::vector<const memory *> memories;

static memories first(const memories &in, size_t n)
{
    return memories(in.begin(), in.begin() + (ptrdiff_t)n);
}

static void reductions(size_t n, const memories &in, const memory &out)
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
                    n, (operands + 1) * len, out.p, len, anew(n, first(in, operands)), [&] {
                        return said(
                            dcomm_cuda_reduce(out.p, src, operands, n, o.dtype, o.op, 0, stream));
                    });
        }
    }
}

/* Kernels beside encoding, and those that change gradients before it. */
static void arrays(size_t n, const memories &in, const memory &out, const memory &next)
{
    const size_t f32 = 4 * n;
    const timed_call one = anew(n, {in[0]});
    for (dcomm_dtype dtype : {DCOMM_F16, DCOMM_BF16}) {
        const std::string name = dcomm_dtype_name(dtype);
        const size_t bytes = f32 + 2 * n;
        measure(name + " to f32", n, bytes, out.p, f32, one,
                [&] { return said(dcomm_cuda_to_f32(out.f(), in[0]->p, n, dtype, 1, stream)); });
        measure(name + " from f32", n, bytes, out.p, 2 * n, one,
                [&] { return said(dcomm_cuda_from_f32(out.p, in[0]->f(), n, dtype, stream)); });
        measure("scale " + name, n, 4 * n, out.p, 2 * n, one,
                [&] { return said(dcomm_cuda_scale(out.p, in[0]->p, n, dtype, 0.5, stream)); });
    }
    measure("scale f32", n, 2 * f32, out.p, f32, one,
            [&] { return said(dcomm_cuda_scale(out.p, in[0]->p, n, DCOMM_F32, 0.5, stream)); });
    measure("add scaled", n, 3 * f32, next.p, f32, anew(n, {in[0], &next}),
            [&] { return said(dcomm_cuda_add_scaled(next.f(), 1e-3f, in[0]->f(), n, stream)); });
    const struct {
        dcomm_cuda_feedback_op op;
        const char *name;
        size_t bytes, written; /* of an element */
    } steps[] = {{DCOMM_CUDA_FEEDBACK_WIDEN, "widen", 6, 4},
                 {DCOMM_CUDA_FEEDBACK_NARROW, "narrow", 6, 2},
                 {DCOMM_CUDA_FEEDBACK_ADD, "add", 12, 4},
                 {DCOMM_CUDA_FEEDBACK_LEFT, "left", 12, 4},
                 {DCOMM_CUDA_FEEDBACK_MOMENTUM, "momentum", 12, 4}};
    for (const auto &s : steps) {
        const float *b = s.bytes == 12 ? in[1]->f() : NULL;
        measure(std::string("feedback ") + s.name, n, s.bytes * n, out.p, s.written * n,
                anew(n, first(in, b != NULL ? 2 : 1)), [&] {
                    return said(
                        dcomm_cuda_feedback(s.op, out.p, in[0]->p, 0.9f, b, n, NULL, stream));
                });
    }
    memory clip(sizeof(dcomm_cuda_clip)), tiles(dcomm_cuda_feedback_clip_workspace_bytes(n));
    dcomm_cuda_clip *found = static_cast<dcomm_cuda_clip *>(clip.p);
    const timed_call clips = [&] {
        return said(dcomm_cuda_feedback_clip(found, in[0]->f(), n, 1, tiles.p, stream));
    };
    measure("feedback clip", n, f32, clip.p, sizeof *found, one, clips);
    measure(
        "feedback clipped", n, 3 * f32, out.p, f32,
        [&] { return anew(n, first(in, 2))() && clips(); },
        [&] {
            return said(dcomm_cuda_feedback_clipped(out.f(), in[0]->f(), found, 0.9f, in[1]->f(), n,
                                                    stream));
        });
    memory sight(sizeof(dcomm_cuda_sight)), room(dcomm_cuda_look_workspace_bytes(n));
    dcomm_cuda_sight *seen = static_cast<dcomm_cuda_sight *>(sight.p);
    measure("look f32", n, f32, sight.p, sizeof *seen, one, [&] {
        return said(dcomm_cuda_look(in[0]->p, n, DCOMM_F32, 1, false, seen, room.p, stream));
    });
    measure("look f32, unscale", n, 2 * f32, sight.p, sizeof *seen, anew(n, {&next}), [&] {
        return said(dcomm_cuda_look(next.p, n, DCOMM_F32, 1.0 / 3, false, seen, room.p, stream));
    });
}

static void codec(const char *spec, size_t n, const memories &in, const memory &out,
                  const memory &next)
{
    dcomm_codec *c = NULL;
    if (dcomm_codec_create(spec, &c) != DCOMM_OK) {
        std::printf("# %s\n", dcomm_last_error());
        failures++;
        return;
    }
    const size_t len = dcomm_codec_max_bytes(c, n);
    std::vector<memory *> wires;
    const void *at[WIRES];
    size_t lens[WIRES];
    dcomm_codec_key key = dcomm_codec_key();
    for (int w = 0; w < WIRES; w++) {
        wires.push_back(new memory(len));
        at[w] = wires[(size_t)w]->p;
        lens[w] = len;
    }
    const auto encoded = [&](size_t some) {
        bool good = anew(n, first(in, some))();
        for (size_t w = 0; w < some && good; w++) {
            key.step++;
            good = said(dcomm_cuda_encode(c, in[w]->f(), NULL, NULL, n, &key, wires[w]->p, len,
                                          NULL, NULL, stream));
        }
        return good;
    };
    const timed_call one_wire = [&] { return encoded(1); }, all = [&] { return encoded(WIRES); };
    const timed_call one = anew(n, {in[0]}), two = anew(n, first(in, 2));
    const std::string name = spec;
    memory wire(len);
    measure(name + " encode", n, 4 * n + len, wire.p, len, one, [&] {
        key.step++;
        return said(
            dcomm_cuda_encode(c, in[0]->f(), NULL, NULL, n, &key, wire.p, len, NULL, NULL, stream));
    });
    measure(name + " encode, feedback", n, 12 * n + len, wire.p, len, two, [&] {
        key.step++;
        return said(dcomm_cuda_encode(c, in[0]->f(), in[1]->f(), next.f(), n, &key, wire.p, len,
                                      NULL, NULL, stream));
    });
    memory sums(sizeof(dcomm_cuda_ledger)), room(dcomm_cuda_ledger_workspace_bytes(c, n));
    fine(cudaMemset(sums.p, 0, sizeof(dcomm_cuda_ledger)), "a ledger");
    measure(name + " encode, ledger", n, 4 * n + len, wire.p, len, one, [&] {
        key.step++;
        return said(dcomm_cuda_encode_ledger(c, in[0]->f(), NULL, NULL, n, &key, wire.p, len,
                                             room.p, NULL, static_cast<dcomm_cuda_ledger *>(sums.p),
                                             stream));
    });
    measure(name + " decode", n, 4 * n + len, out.p, 4 * n, one_wire, [&] {
        return said(dcomm_cuda_decode_sum(c, at, lens, 1, out.f(), n, NULL, NULL, stream));
    });
    measure(
        name + " decode-and-add of 4", n, 8 * n + WIRES * len, out.p, 4 * n,
        [&] { return all() && renew(out, n); },
        [&] {
            return said(dcomm_cuda_decode_add(c, at, lens, WIRES, out.f(), n, NULL, NULL, stream));
        });
    dcomm_codec_layout layout;
    if (dcomm_codec_get_layout(c, &layout) == DCOMM_OK &&
        (layout.format == DCOMM_FORMAT_E4M3 || layout.format == DCOMM_FORMAT_E5M2)) {
        measure("reduce " + name + " max of 4", n, 4 * n + WIRES * len, out.p, 4 * n, all, [&] {
            return said(
                dcomm_cuda_reduce_fp8(c, at, lens, WIRES, out.f(), n, DCOMM_MAX, 1, NULL, stream));
        });
    }
    measure(name + " decode-sum-re-encode of 4", n, (WIRES + 1) * len, wire.p, len, all, [&] {
        key.step++;
        return said(dcomm_cuda_recode(c, at, lens, WIRES, 1, NULL, NULL, n, &key, wire.p, len, NULL,
                                      NULL, stream));
    });
    for (memory *m : wires) {
        delete m;
    }
    dcomm_codec_destroy(&c);
}

/* Encoding with the threshold that the last call has left, and as a first call does. */
static void sparse(const char *spec, size_t n, const memories &in, const memory &out,
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
    memory again(dcomm_cuda_recode_workspace_bytes(c, n));
    memory found(sizeof(dcomm_cuda_report)), wire(most);
    dcomm_codec_info info;
    dcomm_codec_get_info(c, n, &info);
    std::vector<memory *> wires;
    const void *at[WIRES];
    size_t lens[WIRES];
    dcomm_cuda_report raw = dcomm_cuda_report();
    dcomm_codec_report report = dcomm_codec_report();
    cudaMemset(workspace.p, 0, room);
    cudaMemset(again.p, 0, dcomm_cuda_recode_workspace_bytes(c, n));
    cudaMemset(found.p, 0, sizeof raw);
    for (int w = 0; w < WIRES; w++) {
        wires.push_back(new memory(most));
        at[w] = wires[(size_t)w]->p;
        lens[w] = most; /* a wire of threshold says how long it is */
    }
    const auto encoded = [&](size_t some) {
        bool good = anew(n, first(in, some))();
        for (size_t w = 0; w < some && good; w++) {
            good = said(dcomm_cuda_encode(c, in[w]->f(), NULL, NULL, n, NULL, wires[w]->p, most,
                                          workspace.p, static_cast<dcomm_cuda_report *>(found.p),
                                          stream));
        }
        return good;
    };
    const timed_call one_wire = [&] { return encoded(1); }, all = [&] { return encoded(WIRES); };
    const timed_call one = anew(n, {in[0]}), two = anew(n, first(in, 2));
    if (!all() ||
        !fine(cudaMemcpy(&raw, found.p, sizeof raw, cudaMemcpyDeviceToHost), "the report") ||
        !said(dcomm_cuda_report_check(c, n, &raw, &report))) {
        failures++;
    }
    /* Those of threshold are a little longer or shorter each time. */
    const size_t len = report.bytes, scattered = WIRES * (len + 8 * report.kept);
    const std::string name = spec;
    const auto encode = [&](bool feedback) {
        return said(dcomm_cuda_encode(c, in[0]->f(), feedback ? in[1]->f() : NULL,
                                      feedback ? next.f() : NULL, n, NULL, wire.p, most,
                                      workspace.p, NULL, stream));
    };
    const size_t sure = len / 2; /* bytes of any wire */
    measure(name + " encode", n, 4 * n + len, wire.p, sure, one, [&] { return encode(false); });
    measure(name + " encode, feedback", n, 12 * n + len, wire.p, sure, two,
            [&] { return encode(true); });
    if (!info.linear) { /* randk has no threshold that a first call lacks */
        const timed_call new_too = [&] {
            return two() && fine(cudaMemsetAsync(workspace.p, 0, 64, NULL), "memset");
        };
        measure(name + " encode, feedback, first call", n, 12 * n + len, wire.p, sure, new_too,
                [&] { return encode(true); });
    }
    measure(name + " decode", n, 4 * n + len, out.p, 4 * n, one_wire, [&] {
        return said(dcomm_cuda_decode_sum(c, at, lens, 1, out.f(), n, scatter.p, NULL, stream));
    });
    measure(name + " decode-sum of 4", n, 4 * n + scattered, out.p, 4 * n, all, [&] {
        return said(dcomm_cuda_decode_sum(c, at, lens, WIRES, out.f(), n, scatter.p, NULL, stream));
    });
    /* The sum is an array, which is written and read. */
    measure(name + " decode-sum-re-encode of 4", n, 8 * n + scattered + len, wire.p, sure, all,
            [&] {
                return said(dcomm_cuda_recode(c, at, lens, WIRES, 1, NULL, NULL, n, NULL, wire.p,
                                              most, again.p, NULL, stream));
            });
    for (memory *m : wires) {
        delete m;
    }
    dcomm_codec_destroy(&c);
}

/* The steps that an encoding, and a decoding, are put together of. */
static void lowrank(const char *spec, size_t n, const memories &in, const memory &out)
{
    dcomm_codec *c = NULL;
    dcomm_codec_matrix m = dcomm_codec_matrix();
    if (!said(dcomm_codec_create(spec, &c)) || !said(dcomm_codec_get_matrix(c, n, &m))) {
        failures++;
        return;
    }
    const std::string name = spec;
    const size_t p_bytes = 4 * m.rank * m.rows, q_bytes = 4 * m.rank * m.cols;
    memory p(p_bytes), q(q_bytes);
    dcomm_codec_key key = dcomm_codec_key();
    const timed_call new_p = anew(p_bytes / 4, {&p}), new_q = anew(q_bytes / 4, {&q});
    const timed_call both = [&] { return new_p() && new_q(); };
    measure(
        name + " P = M Q", n, 4 * n + q_bytes + p_bytes, p.p, p_bytes,
        [&] { return new_q() && renew(*in[0], n); },
        [&] { return said(dcomm_cuda_powersgd_p(&m, in[0]->f(), q.f(), p.f(), NULL, stream)); });
    measure(name + " orthonormal P", n, 2 * p_bytes, p.p, p_bytes, new_p,
            [&] { return said(dcomm_cuda_powersgd_orthonormal(&m, p.f(), stream)); });
    measure(
        name + " Q = M^T P", n, 4 * n + q_bytes + p_bytes, q.p, q_bytes,
        [&] { return new_p() && renew(*in[0], n); },
        [&] { return said(dcomm_cuda_powersgd_q(&m, in[0]->f(), p.f(), q.f(), NULL, stream)); });
    measure(name + " start", n, 2 * q_bytes, q.p, q_bytes, new_q,
            [&] { return said(dcomm_cuda_powersgd_start(&m, &key, q.f(), stream)); });
    measure(name + " decode", n, 4 * n + q_bytes + p_bytes, out.p, 4 * n, both, [&] {
        return said(dcomm_cuda_powersgd_product(&m, p.f(), q.f(), out.f(), 0, stream));
    });
    measure(
        name + " residual", n, 8 * n + q_bytes + p_bytes, out.p, 4 * n,
        [&] { return both() && renew(out, n); },
        [&] { return said(dcomm_cuda_powersgd_product(&m, p.f(), q.f(), out.f(), -1, stream)); });
    memory sums(sizeof(dcomm_cuda_ledger)), room(dcomm_cuda_compare_workspace_bytes(n));
    fine(cudaMemset(sums.p, 0, sizeof(dcomm_cuda_ledger)), "a ledger");
    measure(
        name + " residual, ledger", n, 12 * n + q_bytes + p_bytes, out.p, 4 * n,
        [&] { return both() && renew(out, n) && renew(*in[0], n); },
        [&] {
            return said(dcomm_cuda_powersgd_product_ledger(
                &m, p.f(), q.f(), in[0]->f(), out.f(), room.p,
                static_cast<dcomm_cuda_ledger *>(sums.p), stream));
        });
    dcomm_codec_destroy(&c);
}

static void sizes(size_t n)
{
    static const char *const chosen[] = {
        "topk:k=0.01",      "topk:k=0.001",     "topk:k=0.1",  "topk:k=0.01,values=bf16",
        "topk+qsgd:k=0.01", "threshold:k=0.01", "randk:k=0.01"};
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
    memories in;
    for (int w = 0; w < WIRES; w++) {
        in.push_back(new memory(4 * n));
    }
    memory out(4 * n), next(4 * n);
    copy_rate = 0;
    measure_copy("copy", n, *in[0], out);
    reductions(n, in, out);
    arrays(n, in, out, next);
    for (const char *spec : specs) {
        codec(spec, n, in, out, next);
    }
    for (const char *spec : chosen) {
        sparse(spec, n, in, out, next);
    }
    for (const char *spec : {"powersgd:rank=2", "powersgd:rank=4"}) {
        lowrank(spec, n, in, out);
    }
    measure_copy("copy, at the end", n, *in[0], out);
    for (const memory *m : in) {
        delete m;
    }
}

int main(int argc, char **argv)
{
    std::vector<int> logs;
    if (!arguments(argc, argv, &logs)) {
        return usage();
    }
    if (!begin_table("dcomm-kernels")) {
        return 0;
    }
    measure_launch();
    for (int log2 : logs) {
        sizes((size_t)1 << log2);
    }
    print_targets();
    return failures > 0;
}
