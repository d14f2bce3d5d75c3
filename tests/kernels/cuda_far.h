/* cuda_far.h - tests of arrays of 2^31 + 5 elements, all zero but the last ones. Their end must
 * equal the result of the last elements alone under the same indices. On the CPU only the last
 * blocks run. */
#ifndef DCOMM_CUDA_FAR_H
#define DCOMM_CUDA_FAR_H

#include "cuda_folds.h"
#include "cuda_ledgers.h"
#include "cuda_sparse.h"

static const size_t FAR = ((size_t)1 << 31) + 5;

/* Launches run only their last blocks while this object lives. */
struct far_blocks {
    unsigned before = 0;
    explicit far_blocks(unsigned last)
    {
#ifdef DCOMMI_CUDA_SHIM
        before = shim_last;
        shim_last = last;
#else
        (void)last;
#endif
    }
    far_blocks(const far_blocks &) = delete;
    far_blocks &operator=(const far_blocks &) = delete;
    ~far_blocks()
    {
#ifdef DCOMMI_CUDA_SHIM
        shim_last = before;
#endif
    }
};

static bool far_room(const std::string &name, std::initializer_list<const expanse *> all)
{
    for (const expanse *e : all) {
        if (e->p == NULL) {
            std::printf("# skipped: 2^31 + 5 elements, %s (no memory for them)\n", name.c_str());
            return false;
        }
    }
    return true;
}

static float *far_floats(const expanse &e)
{
    return reinterpret_cast<float *>(e.p);
}

/* Zeros on the host; only written pages take memory. */
struct zeros {
    float *p;
    explicit zeros(size_t count) : p(static_cast<float *>(std::calloc(count, sizeof(float))))
    {
    }
    zeros(const zeros &) = delete;
    zeros &operator=(const zeros &) = delete;
    ~zeros()
    {
        std::free(p);
    }
};

/* ---- dense codecs ---- */

/* Compare the end of a whole wire with the wire of the last elements alone: codes and steps. */
static void far_wire(const expanse &whole, const bytes &part, size_t rest, size_t len, size_t bits,
                     size_t bucket, const char *what)
{
    const size_t begin = (FAR - rest) / 8 * bits;
    const size_t codes = bucket > 0 ? dcommi_wire_codes(rest, (unsigned)bits) : part.size();
    same(whole.part(begin, codes), part.data(), std::string(what) + ", codes");
    same(whole.part(len - (part.size() - codes), part.size() - codes), part.data() + codes,
         std::string(what) + ", steps");
}

/* Encode with feedback, decode, add, and encode the sum again. */
static void far_dense(const char *spec)
{
    dcomm_codec *codec = NULL;
    dcomm_codec_layout layout = dcomm_codec_layout();
    good(dcomm_codec_create(spec, &codec), spec);
    good(dcomm_codec_get_layout(codec, &layout), spec);
    const size_t bucket = layout.bucket, unit = bucket > 0 ? bucket : 512;
    const size_t begin = (FAR / unit - 2) * unit, rest = FAR - begin,
                 bits = bucket > 0 ? dcommi_format_bits[(int)layout.format] : 16;
    const size_t len = dcomm_codec_max_bytes(codec, FAR), part = dcomm_codec_max_bytes(codec, rest);
    expanse in(4 * FAR), residual(4 * FAR), out(len), back(4 * FAR);
    if (!far_room(spec, {&in, &residual, &out, &back})) {
        dcomm_codec_destroy(&codec);
        return;
    }
    const far_blocks last(4);
    const std::vector<float> x = numbers(rest, NORMAL), r = numbers(rest, NORMAL);
    std::vector<float> next(rest), y(rest);
    bytes wire(part), again(part);
    size_t written = 0;
    dcomm_codec_key there = dcomm_codec_key();
    const dcomm_codec_key key = dcomm_codec_key();
    const void *from = out.p, *wires[] = {wire.data(), wire.data()}, *far[] = {out.p, out.p};
    const size_t lens[] = {part, part}, far_lens[] = {len, len};
    there.first = begin;
    area::copy(in.p + 4 * begin, x.data(), 4 * rest, true);
    area::copy(residual.p + 4 * begin, r.data(), 4 * rest, true);
    good(dcomm_encode_feedback(codec, x.data(), r.data(), next.data(), rest, &there, wire.data(),
                               part, &written, NULL, NULL),
         spec);
    good(dcomm_cuda_encode(codec, far_floats(in), far_floats(residual), far_floats(residual), FAR,
                           &key, out.p, len, NULL, NULL, NULL),
         spec);
    far_wire(out, wire, rest, len, bits, bucket, "encode");
    same(residual.part(4 * begin, 4 * rest), next.data(), "what is left");
    good(dcomm_decode(codec, wire.data(), part, y.data(), rest), spec);
    good(dcomm_cuda_decode_sum(codec, &from, &len, 1, far_floats(back), FAR, NULL, NULL, NULL),
         spec);
    same(back.part(4 * begin, 4 * rest), y.data(), "decoded");
    good(dcomm_decode_add(codec, wire.data(), part, y.data(), rest), spec);
    good(dcomm_cuda_decode_add(codec, &from, &len, 1, far_floats(back), FAR, NULL, NULL, NULL),
         spec);
    same(back.part(4 * begin, 4 * rest), y.data(), "added");
    good(dcomm_recode(codec, wires, lens, 2, 0.5f, NULL, NULL, rest, &there, again.data(), part,
                      &written, NULL, NULL),
         spec);
    good(dcomm_cuda_recode(codec, far, far_lens, 2, 0.5f, NULL, NULL, FAR, &key, in.p, len, NULL,
                           NULL, NULL),
         spec);
    far_wire(in, again, rest, len, bits, bucket, "recode");
    dcomm_codec_destroy(&codec);
    ok(std::string("2^31 + 5 elements, ") + spec);
}

/* Compare with the CPU's ledger of the end alone; zeros add nothing to sums. The number of counted
 * elements depends on how many blocks run. */
static void far_ledger(const char *spec)
{
    dcomm_codec *codec = NULL;
    dcomm_codec_layout layout = dcomm_codec_layout();
    good(dcomm_codec_create(spec, &codec), spec);
    good(dcomm_codec_get_layout(codec, &layout), spec);
    const size_t unit = layout.bucket > 0 ? layout.bucket : 512;
    const size_t begin = (FAR / unit - 2) * unit, rest = FAR - begin;
    const size_t len = dcomm_codec_max_bytes(codec, FAR), part = dcomm_codec_max_bytes(codec, rest);
    expanse in(4 * FAR), residual(4 * FAR), out(len);
    expanse workspace(dcomm_cuda_ledger_workspace_bytes(codec, FAR));
    const std::string name = std::string("ledger of ") + spec;
    if (!far_room(name, {&in, &residual, &out, &workspace})) {
        dcomm_codec_destroy(&codec);
        return;
    }
    const far_blocks last(4);
    const std::vector<float> x = numbers(rest, NORMAL), r = numbers(rest, NORMAL);
    std::vector<float> next(rest);
    bytes wire(part);
    size_t written = 0;
    area sums(sizeof(dcomm_cuda_ledger));
    dcomm_cuda_ledger there = dcomm_cuda_ledger();
    dcomm_ledger want = dcomm_ledger(), got = dcomm_ledger();
    dcomm_codec_report report = dcomm_codec_report();
    dcomm_codec_key end = dcomm_codec_key();
    const dcomm_codec_key key = dcomm_codec_key();
    end.first = begin;
    sums.put(&there);
    area::copy(in.p + 4 * begin, x.data(), 4 * rest, true);
    area::copy(residual.p + 4 * begin, r.data(), 4 * rest, true);
    good(dcomm_encode_ledger(codec, x.data(), r.data(), next.data(), rest, &end, wire.data(), part,
                             &written, NULL, &report, &want),
         name);
    good(dcomm_cuda_encode_ledger(codec, far_floats(in), far_floats(residual), far_floats(residual),
                                  FAR, &key, out.p, len, workspace.p, NULL,
                                  reinterpret_cast<dcomm_cuda_ledger *>(sums.at), NULL),
         name);
    same(residual.part(4 * begin, 4 * rest), next.data(), "what is left, " + name);
    const bytes raw_sums = sums.get();
    std::memcpy(&there, raw_sums.data(), sizeof there);
    there.count = want.count;
    dcomm_cuda_ledger_add(&got, rest, &there, &report);
    same_ledger(got, want, false, name);
    dcomm_codec_destroy(&codec);
    ok("2^31 + 5 elements, " + name);
}

/* Compare `sums` with a ledger of x, y and what is left of them. The zeros before them count as
 * well, as many as the blocks that run. */
static void far_sums(const area &sums, const std::vector<float> &x, const std::vector<float> &y,
                     const std::vector<float> &next, const std::string &name)
{
    dcomm_cuda_ledger there;
    dcomm_ledger want = dcomm_ledger(), got = dcomm_ledger();
    const dcomm_codec_report none = dcomm_codec_report();
    const bytes raw_sums = sums.get();
    dcomm_ledger_compare(&want, x.data(), y.data(), x.size());
    for (size_t i = 0; i < x.size(); i++) {
        const double e = (double)(y[i] + next[i]), left = (double)next[i];
        want.sums[6] += e * e;
        want.sums[7] += left * left;
    }
    want.residual_norm = std::sqrt(want.sums[7]);
    std::memcpy(&there, raw_sums.data(), sizeof there);
    there.count = want.count;
    dcomm_cuda_ledger_add(&got, 0, &there, &none);
    same_ledger(got, want, false, name);
}

static void far_compare(void)
{
    const size_t rest = 2053, begin = 4 * (FAR - rest);
    const dcomm_cuda_ledger nothing = dcomm_cuda_ledger();
    expanse a(4 * FAR), b(4 * FAR), c(4 * FAR), room(dcomm_cuda_compare_workspace_bytes(FAR));
    area sums(sizeof nothing);
    if (!far_room("compare", {&a, &b, &c, &room})) {
        return;
    }
    const far_blocks last(4);
    const std::vector<float> x = numbers(rest, NORMAL), y = numbers(rest, NORMAL),
                             next = numbers(rest, NORMAL);
    area::copy(a.p + begin, x.data(), 4 * rest, true);
    area::copy(b.p + begin, y.data(), 4 * rest, true);
    area::copy(c.p + begin, next.data(), 4 * rest, true);
    sums.put(&nothing);
    good(dcomm_cuda_ledger_compare(reinterpret_cast<dcomm_cuda_ledger *>(sums.at), far_floats(a),
                                   far_floats(b), far_floats(c), FAR, room.p, NULL),
         "compare");
    far_sums(sums, x, y, next, "compare");
    ok("2^31 + 5 elements, compare");
}

/* Fold two wires of fp8. */
static void far_fp8(const char *spec, dcomm_op op)
{
    dcomm_codec *codec = NULL;
    dcomm_codec_layout layout = dcomm_codec_layout();
    good(dcomm_codec_create(spec, &codec), spec);
    good(dcomm_codec_get_layout(codec, &layout), spec);
    const size_t bucket = layout.bucket, begin = (FAR / bucket - 2) * bucket, rest = FAR - begin;
    const size_t len = dcomm_codec_max_bytes(codec, FAR), part = dcomm_codec_max_bytes(codec, rest);
    const size_t codes = dcommi_wire_codes(rest, 8);
    expanse a(len), b(len), to(4 * FAR);
    const std::string name = std::string("reduce ") + spec + " " + dcomm_op_name(op);
    if (!far_room(name, {&a, &b, &to})) {
        dcomm_codec_destroy(&codec);
        return;
    }
    const far_blocks last(4);
    std::vector<float> decoded[2] = {std::vector<float>(rest), std::vector<float>(rest)};
    bytes want(4 * rest);
    size_t written = 0;
    for (int w = 0; w < 2; w++) {
        const std::vector<float> x = numbers(rest, NORMAL);
        const expanse &whole = w == 0 ? a : b;
        bytes wire(part);
        good(dcomm_encode(codec, x.data(), rest, NULL, wire.data(), part, &written, NULL, NULL),
             name);
        good(dcomm_decode(codec, wire.data(), part, decoded[w].data(), rest), name);
        area::copy(whole.p + begin, wire.data(), codes, true);
        area::copy(whole.p + len - (part - codes), wire.data() + codes, part - codes, true);
    }
    const void *far[] = {a.p, b.p}, *near[] = {decoded[0].data(), decoded[1].data()};
    const size_t lens[] = {len, len};
    cuda_reference_reduce(want.data(), near, 2, rest, DCOMM_F32, (int)op, 0);
    good(dcomm_cuda_reduce_fp8(codec, far, lens, 2, far_floats(to), FAR, op, 0, NULL, NULL), name);
    same(to.part(4 * begin, 4 * rest), want.data(), name);
    dcomm_codec_destroy(&codec);
    ok("2^31 + 5 elements, " + name);
}

/* ---- one element after the other ---- */

struct far_call {
    std::string name;
    size_t element, written; /* bytes of an operand's and of the result's element */
    std::function<dcomm_status(void *to, const void *const *of)> device;
    std::function<void(void *to, const void *const *of, size_t count)> host;
};

/* Run a kernel on two operands of random bits; floats are finite. */
static void far_one(const far_call &call)
{
    const size_t rest = 2053, begin = FAR - rest;
    expanse a(call.element * FAR), b(call.element * FAR), to(call.written * FAR);
    if (!far_room(call.name, {&a, &b, &to})) {
        return;
    }
    const far_blocks last(4);
    bytes x = raw(call.element * rest), y = raw(call.element * rest), want(call.written * rest);
    for (bytes *side : {&x, &y}) {
        const std::vector<float> f = numbers(rest, NORMAL);
        if (call.element == sizeof(float)) {
            std::memcpy(side->data(), f.data(), side->size());
        }
    }
    area::copy(a.p + call.element * begin, x.data(), x.size(), true);
    area::copy(b.p + call.element * begin, y.data(), y.size(), true);
    const void *far[] = {a.p, b.p}, *near[] = {x.data(), y.data()};
    call.host(want.data(), near, rest);
    good(call.device(to.p, far), call.name);
    same(to.part(call.written * begin, want.size()), want.data(), call.name);
    ok("2^31 + 5 elements, " + call.name);
}

static far_call far_reduce(dcomm_dtype dtype, dcomm_op op)
{
    const size_t element = dcomm_dtype_size(dtype);
    const int64_t divisor = op == DCOMM_AVG ? 3 : 0;
    return far_call{std::string("reduce ") + dcomm_dtype_name(dtype) + " " + dcomm_op_name(op),
                    element, element,
                    [=](void *to, const void *const *of) {
                        return dcomm_cuda_reduce(to, of, 2, FAR, dtype, op, divisor, NULL);
                    },
                    [=](void *to, const void *const *of, size_t count) {
                        cuda_reference_reduce(to, of, 2, count, (int)dtype, (int)op, divisor);
                    }};
}

static far_call far_scale(dcomm_dtype dtype)
{
    const size_t element = dcomm_dtype_size(dtype);
    return far_call{std::string("scale ") + dcomm_dtype_name(dtype), element, element,
                    [=](void *to, const void *const *of) {
                        return dcomm_cuda_scale(to, of[0], FAR, dtype, 0.7, NULL);
                    },
                    [=](void *to, const void *const *of, size_t count) {
                        cuda_reference_scale(to, of[0], count, (int)dtype, 0.7);
                    }};
}

static far_call far_widen(dcomm_dtype dtype)
{
    return far_call{
        std::string("to f32 of ") + dcomm_dtype_name(dtype), dcomm_dtype_size(dtype), 4,
        [=](void *to, const void *const *of) {
            return dcomm_cuda_to_f32(static_cast<float *>(to), of[0], FAR, dtype, 0.7, NULL);
        },
        [=](void *to, const void *const *of, size_t count) {
            cuda_reference_to_f32(static_cast<float *>(to), of[0], count, (int)dtype, 0.7);
        }};
}

static far_call far_narrow(dcomm_dtype dtype)
{
    return far_call{
        std::string("from f32 to ") + dcomm_dtype_name(dtype), 4, dcomm_dtype_size(dtype),
        [=](void *to, const void *const *of) {
            return dcomm_cuda_from_f32(to, static_cast<const float *>(of[0]), FAR, dtype, NULL);
        },
        [=](void *to, const void *const *of, size_t count) {
            cuda_reference_from_f32(to, static_cast<const float *>(of[0]), count, (int)dtype);
        }};
}

static far_call far_feedback(dcomm_cuda_feedback_op op)
{
    return far_call{"feedback " + std::to_string((int)op), 4, 4,
                    [=](void *to, const void *const *of) {
                        return dcomm_cuda_feedback(op, to, of[0], 0.9f,
                                                   static_cast<const float *>(of[1]), FAR, NULL,
                                                   NULL);
                    },
                    [=](void *to, const void *const *of, size_t count) {
                        dcomm_codec_report seen = dcomm_codec_report();
                        for (size_t i = 0; i < count; i++) {
                            static_cast<float *>(to)[i] =
                                feedback_wants(op, static_cast<const float *>(of[0])[i], 0.9f,
                                               static_cast<const float *>(of[1])[i], i, &seen);
                        }
                    }};
}

/* Add onto a result of zeros, none of which may become -0. */
static far_call far_add_scaled(void)
{
    return far_call{"add scaled", 4, 4,
                    [=](void *to, const void *const *of) {
                        return dcomm_cuda_add_scaled(static_cast<float *>(to), 3,
                                                     static_cast<const float *>(of[0]), FAR, NULL);
                    },
                    [=](void *to, const void *const *of, size_t count) {
                        for (size_t i = 0; i < count; i++) {
                            static_cast<float *>(to)[i] =
                                0 + 3 * static_cast<const float *>(of[0])[i];
                        }
                    }};
}

static void far_look(void)
{
    const size_t at = FAR - 3;
    const float odd = -HUGE_VALF;
    expanse x(4 * FAR);
    area room(dcomm_cuda_look_workspace_bytes(FAR)), there(sizeof(dcomm_cuda_sight));
    dcomm_cuda_sight sight;
    if (!far_room("look", {&x})) {
        return;
    }
    const far_blocks last(4);
    area::copy(x.p + 4 * at, &odd, sizeof odd, true);
    good(dcomm_cuda_look(x.p, FAR, DCOMM_F32, 1, false,
                         reinterpret_cast<dcomm_cuda_sight *>(there.at), room.at, NULL),
         "look");
    const bytes b = there.get();
    std::memcpy(&sight, b.data(), sizeof sight);
    if (sight.index != at || sight.value != (double)odd) {
        wrong("element " + std::to_string(sight.index) + " is " + std::to_string(sight.value));
    }
    ok("2^31 + 5 elements, look");
}

static void test_far(void)
{
    for (const char *spec : {"qsgd", "qsgd:bucket=1024,norm=two", "qsgd:bits=8,rounding=nearest",
                             "qsgd:bits=2", "qsgd:bits=1,bucket=2048", "tern", "sign", "fp8",
                             "fp8:type=e5m2,block=384", "f16", "bf16:rounding=stochastic"}) {
        if (!late(spec)) {
            far_dense(spec);
        }
    }
    for (const char *spec : {"qsgd", "fp8:block=384", "bf16"}) {
        if (!late(spec)) {
            far_ledger(spec);
        }
    }
    far_fp8("fp8", DCOMM_SUM);
    far_fp8("fp8:type=e5m2,block=384", DCOMM_MAX);
    for (const far_call &call :
         {far_reduce(DCOMM_F32, DCOMM_MAX), far_reduce(DCOMM_BF16, DCOMM_AVG),
          far_reduce(DCOMM_F64, DCOMM_SUM), far_reduce(DCOMM_I8, DCOMM_PROD), far_scale(DCOMM_F16),
          far_scale(DCOMM_I32), far_widen(DCOMM_BF16), far_narrow(DCOMM_F16),
          far_feedback(DCOMM_CUDA_FEEDBACK_ADD), far_feedback(DCOMM_CUDA_FEEDBACK_MOMENTUM),
          far_add_scaled()}) {
        if (!late(call.name)) {
            far_one(call);
        }
    }
    far_look();
    if (!late("compare")) {
        far_compare();
    }
}

#endif
