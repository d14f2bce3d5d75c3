/* cuda_folds.h - tests of the reductions and of scaling: every dtype and operator, against the
 * CPU's folds. */
#ifndef DCOMM_CUDA_FOLDS_H
#define DCOMM_CUDA_FOLDS_H

#include "cuda_areas.h"

#include <cfloat>

extern "C" int cuda_reference_reduce(void *dst, const void *const *src, size_t nsrc, size_t count,
                                     int dtype, int op, int64_t divisor);
extern "C" void cuda_reference_scale(void *dst, const void *src, size_t count, int dtype,
                                     double factor);
extern "C" void cuda_reference_to_f32(float *dst, const void *src, size_t count, int dtype,
                                      double factor);
extern "C" void cuda_reference_from_f32(void *dst, const float *src, size_t count, int dtype);

static const char *where(const char *what, size_t count, size_t n, int extra)
{
    static char text[128];
    std::snprintf(text, sizeof text, "%s of %zu elements, %zu operands, variant %d", what, count, n,
                  extra);
    return text;
}

static bytes raw(size_t len)
{
    bytes b(len);
    for (size_t i = 0; i < len; i++) {
        b[i] = (unsigned char)(draw() >> 20);
    }
    return b;
}

/* Replace a quarter of the elements by zeros of both signs, infinities, NaN, and the least and
 * largest denormals, so that each meets each. Leave integers as they are. */
static void specials(bytes *b, dcomm_dtype dtype)
{
    const size_t element = dcomm_dtype_size(dtype);
    const uint64_t top = (uint64_t)1 << (8 * element - 1);
    const uint64_t inf = dtype == DCOMM_F64    ? 0x7ff0000000000000u
                         : dtype == DCOMM_F32  ? 0x7f800000u
                         : dtype == DCOMM_F16  ? 0x7c00u
                         : dtype == DCOMM_BF16 ? 0x7f80u
                                               : 0;
    const uint64_t denormal = (inf & (0 - inf)) - 1; /* the fraction's bits */
    const uint64_t of[] = {0, inf, inf + 1, inf + denormal, 1, denormal};
    for (size_t i = 0; inf != 0 && i < b->size(); i += element) {
        const uint64_t r = draw() >> 8;
        const uint64_t v = of[(r >> 8) % 6] | ((r & 4) != 0 ? top : 0);
        if (r % 4 == 0) {
            std::memcpy(b->data() + i, &v, element);
        }
    }
}

/* variant: bit 0: in place, bit 1: operands lie differently, bit 2: not aligned to 16. */
static bool reduce_one(dcomm_dtype dtype, dcomm_op op, size_t nsrc, size_t count, int64_t divisor,
                       int variant)
{
    const size_t element = dcomm_dtype_size(dtype), len = count * element;
    const std::string what = where(dcomm_op_name(op), count, nsrc, variant);
    std::vector<bytes> in;
    std::vector<area *> there;
    std::vector<const void *> host, device;
    for (size_t s = 0; s < nsrc; s++) {
        const size_t off = ((variant & 4) != 0 ? element : 0) +
                           ((variant & 2) != 0 && s % 2 == 1 ? 2 * element : 0);
        in.push_back(raw(len));
        for (size_t i = 0; dtype == DCOMM_F32 && i < count; i++) { /* mostly NORMAL */
            float x = number(i % 3 == 0 ? BITS : NORMAL, i);
            std::memcpy(&in[s][4 * i], &x, 4);
        }
        specials(&in[s], dtype);
        there.push_back(new area(len, off));
        there[s]->put(in[s].data());
        host.push_back(in[s].data());
        device.push_back(there[s]->at);
    }
    area out(len, (variant & 4) != 0 ? element : 0);
    bytes want(len + 1);
    area *to = (variant & 1) != 0 ? there[nsrc - 1] : &out;
    bool fine = good((dcomm_status)cuda_reference_reduce(want.data(), host.data(), nsrc, count,
                                                         dtype, op, divisor),
                     what) &&
                good(launched([&](void *stream) {
                         return dcomm_cuda_reduce(to->at, device.data(), nsrc, count, dtype, op,
                                                  divisor, stream);
                     }),
                     what) &&
                same(to->get(), want.data(), what) && to->guarded();
    for (area *a : there) {
        delete a;
    }
    return fine;
}

static void test_reduce(dcomm_dtype dtype, dcomm_op op)
{
    const size_t counts[] = {0, 1, 2, 3, 15, 17, 64, 255, 1000, 4099, 20011};
    const size_t operands[] = {1, 2, 3, 9, DCOMM_CUDA_OPERANDS};
    const std::string name = std::string("reduce ") + dcomm_dtype_name(dtype) + " " +
                             dcomm_op_name(op) + launch_names[launch_now];
    if (late(name)) {
        return;
    }
    for (size_t count : counts) {
        if (small && count % 5 != 0 && count != 17) {
            continue;
        }
        for (size_t n : operands) {
            for (int variant = 0; variant < 8; variant++) {
                if (n == DCOMM_CUDA_OPERANDS && (count != 255 || variant % 3 != 0)) {
                    continue;
                }
                if ((small || count > 5000u) && variant != (int)(count + n) % 8) {
                    continue;
                }
                const int64_t divisor = op == DCOMM_AVG ? (int64_t)(n + 1) : 0;
                if (!reduce_one(dtype, op, n, count, divisor, variant)) {
                    goto done;
                }
            }
        }
    }
done:
    ok(name);
}

static void test_scale(dcomm_dtype dtype)
{
    const double factors[] = {0.5, -3.7, 1e12, 1e-3, (double)NAN};
    const size_t counts[] = {1, 7, 700, 5003};
    const size_t element = dcomm_dtype_size(dtype);
    const std::string name =
        std::string("scale ") + dcomm_dtype_name(dtype) + launch_names[launch_now];
    if (late(name)) {
        return;
    }
    for (double factor : factors) {
        for (size_t count : counts) {
            bytes in = raw(count * element), want(count * element);
            area from(count * element, element), to(count * element, element);
            from.put(in.data());
            cuda_reference_scale(want.data(), in.data(), count, dtype, factor);
            const std::string what = where("scaling", count, 1, (int)factor);
            if (!good(launched([&](void *stream) {
                          return dcomm_cuda_scale(to.at, from.at, count, dtype, factor, stream);
                      }),
                      what) ||
                !same(to.get(), want.data(), what) || !to.guarded()) {
                break;
            }
        }
    }
    ok(name);
}

/* Convert to f32 and back, any bits; `off`: elements before the first. */
static bool convert_one(dcomm_dtype dtype, size_t count, size_t off, double factor)
{
    const size_t element = dcomm_dtype_size(dtype);
    const std::string what = where(dcomm_dtype_name(dtype), count, off, (int)factor);
    const bytes in = raw(element * count);
    std::vector<float> wide(count + 1);
    const std::vector<float> back = numbers(count, off % 2 == 0 ? BITS : NORMAL);
    bytes narrow(element * count + 1);
    area from(element * count, off * element), to(4 * count, off * 4);
    area x(4 * count, 4 * off), y(element * count, off * element);
    from.put(in.data());
    x.put(back.data());
    cuda_reference_to_f32(wide.data(), in.data(), count, dtype, factor);
    cuda_reference_from_f32(narrow.data(), back.data(), count, dtype);
    return good(launched([&](void *stream) {
                    return dcomm_cuda_to_f32(reinterpret_cast<float *>(to.at), from.at, count,
                                             dtype, factor, stream);
                }),
                what) &&
           same(to.get(), wide.data(), what + ", to f32") && to.guarded() &&
           good(launched([&](void *stream) {
                    return dcomm_cuda_from_f32(y.at, reinterpret_cast<float *>(x.at), count, dtype,
                                               stream);
                }),
                what) &&
           same(y.get(), narrow.data(), what + ", from f32") && y.guarded();
}

static void test_convert(dcomm_dtype dtype)
{
    const std::string name =
        std::string("converts ") + dcomm_dtype_name(dtype) + launch_names[launch_now];
    bool fine = !late(name);
    if (!fine) {
        return;
    }
    for (size_t count : {(size_t)0, (size_t)1, (size_t)3, (size_t)4, (size_t)1023, (size_t)5003}) {
        for (size_t off : {(size_t)0, (size_t)1, (size_t)4}) {
            for (double factor : {1.0, -0.3, 1e30}) {
                fine = fine && convert_one(dtype, count, off, factor);
            }
        }
    }
    ok(name);
}

/* Test residuals: sums that are rounded once, and sums that overflow. */
static void test_add_scaled(void)
{
    const float factors[] = {1, -1, 3, 1.0f / 3, 3e38f};
    const size_t counts[] = {0, 1, 700, 5003};
    const std::string name = std::string("add scaled") + launch_names[launch_now];
    if (late(name)) {
        return;
    }
    for (float factor : factors) {
        for (size_t count : counts) {
            const std::vector<float> from = numbers(count, count == 700 ? ODD : NORMAL);
            const std::vector<float> to = numbers(count, count == 5003 ? ODD : NORMAL);
            std::vector<float> want(count + 1);
            area x(4 * count, 4), y(4 * count, 8);
            x.put(to.data());
            y.put(from.data());
            for (size_t i = 0; i < count; i++) {
                want[i] = bounded((float)((double)to[i] + (double)factor * (double)from[i]));
            }
            const std::string what = where("adding", count, 2, (int)factor);
            if (!good(launched([&](void *stream) {
                          return dcomm_cuda_add_scaled(reinterpret_cast<float *>(x.at), factor,
                                                       reinterpret_cast<float *>(y.at), count,
                                                       stream);
                      }),
                      what) ||
                !same(x.get(), want.data(), what) || !x.guarded()) {
                break;
            }
        }
    }
    ok(name);
}

/* Set and add pairs of index and value; an index beyond the array does nothing. */
static void test_scatter(void)
{
    const size_t count = 5003;
    const std::string name = std::string("scatter") + launch_names[launch_now];
    for (size_t n : {(size_t)0, (size_t)1, (size_t)256, (size_t)1000}) {
        for (bool add : {false, true}) {
            const std::vector<float> to = numbers(count, n == 256 ? ODD : NORMAL);
            const std::vector<float> from = numbers(n, n == 1000 ? ODD : NORMAL);
            std::vector<float> want = to;
            std::vector<uint32_t> index(n);
            area x(4 * count, 4), i(4 * n, 4), y(4 * n, 8);
            for (size_t k = 0; k < n; k++) {
                index[k] = (uint32_t)(k * 5 + (k == 999 ? 10000 : 3));
                if (index[k] < count) {
                    want[index[k]] = add ? bounded(to[index[k]] + from[k]) : from[k];
                }
            }
            x.put(to.data());
            i.put(index.data());
            y.put(from.data());
            const std::string what = where("scattering", n, 2, add);
            if (!good(dcomm_cuda_scatter(reinterpret_cast<float *>(x.at), count,
                                         reinterpret_cast<uint32_t *>(i.at),
                                         reinterpret_cast<float *>(y.at), n, add, NULL),
                      what) ||
                !same(x.get(), want.data(), what) || !x.guarded()) {
                break;
            }
        }
    }
    ok(name);
}

/* Return the result of error feedback for one element on the CPU (feedback.h, feedback/state.h),
 * and count in *seen what it reports. */
static float feedback_wants(int op, float a, float factor, float b, size_t i,
                            dcomm_codec_report *seen)
{
    const float gone = std::isfinite(b) ? b : 0;
    switch (op) {
    case DCOMM_CUDA_FEEDBACK_ADD:
    case DCOMM_CUDA_FEEDBACK_LACK: {
        if (!std::isfinite(a)) {
            seen->first_nonfinite = seen->nonfinite++ == 0 ? i : seen->first_nonfinite;
        }
        const float e = op == DCOMM_CUDA_FEEDBACK_LACK ? (std::isfinite(a) ? a - b : 0)
                        : std::isfinite(a)             ? a + b
                                                       : b;
        seen->clipped += !std::isfinite(e);
        return bounded(e);
    }
    case DCOMM_CUDA_FEEDBACK_MISSING:
        return std::isfinite(a) ? dcommi_f32_canonical(a - b) : 0;
    case DCOMM_CUDA_FEEDBACK_LEFT:
        return bounded(a - gone);
    case DCOMM_CUDA_FEEDBACK_LEARN:
        return bounded(a + gone);
    case DCOMM_CUDA_FEEDBACK_MOMENTUM:
        return dcommi_f32_canonical((float)((double)a + (double)factor * (double)b));
    case DCOMM_CUDA_FEEDBACK_FORGET:
        return b != 0 || !std::isfinite(a) ? 0 : a;
    default:
        return dcommi_f32_canonical(a + b);
    }
}

static bool feedback_one(int op, size_t count, int a_kind, int b_kind, bool over)
{
    const float factor = 0.9f;
    const std::vector<float> a = numbers(count, a_kind), b = numbers(count, b_kind);
    std::vector<float> want(count + 1);
    dcomm_codec_report seen = dcomm_codec_report(), found = dcomm_codec_report();
    const std::string what = where("feedback", count, (size_t)op, a_kind);
    area x(4 * count, 4), y(4 * count, 8), to(4 * count), report(sizeof(dcomm_cuda_report));
    dcomm_cuda_report there = dcomm_cuda_report();
    x.put(a.data());
    y.put(b.data());
    report.put(&there);
    for (size_t i = 0; i < count; i++) {
        want[i] = feedback_wants(op, a[i], factor, b[i], i, &seen);
    }
    area &out = over ? x : to;
    if (!good(launched([&](void *stream) {
                  return dcomm_cuda_feedback((dcomm_cuda_feedback_op)op, out.at, x.at, factor,
                                             reinterpret_cast<float *>(y.at), count,
                                             reinterpret_cast<dcomm_cuda_report *>(report.at),
                                             stream);
              }),
              what)) {
        return false;
    }
    const bytes raw = report.get();
    std::memcpy(&there, raw.data(), sizeof there);
    found.clipped = (size_t)there.clipped;
    found.nonfinite = (size_t)there.nonfinite;
    found.first_nonfinite = there.first > 0 ? (size_t)(UINT64_MAX - there.first) : 0;
    return same(out.get(), want.data(), what) && out.guarded() && report.guarded() &&
           ((found.clipped == seen.clipped && found.nonfinite == seen.nonfinite &&
             found.first_nonfinite == seen.first_nonfinite) ||
            wrong(what + ": another report"));
}

/* Convert residuals to bf16 and back. */
static bool feedback_casts(size_t count, int kind)
{
    const std::vector<float> in = numbers(count, kind);
    std::vector<uint16_t> narrow(count + 1);
    std::vector<float> wide(count + 1);
    const std::string what = where("bf16", count, 0, kind);
    area x(4 * count), half(2 * count, 2), again(4 * count, 4);
    x.put(in.data());
    for (size_t i = 0; i < count; i++) {
        const uint16_t h = dcommi_f32_to_bf16(in[i]);
        narrow[i] = (uint16_t)((h & 0x7fffu) == 0x7f80u ? h - 1 : h);
        wide[i] = dcommi_bf16_to_f32(narrow[i]);
    }
    return good(launched([&](void *stream) {
                    return dcomm_cuda_feedback(DCOMM_CUDA_FEEDBACK_NARROW, half.at, x.at, 0, NULL,
                                               count, NULL, stream);
                }),
                what) &&
           same(half.get(), narrow.data(), what) && half.guarded() &&
           good(launched([&](void *stream) {
                    return dcomm_cuda_feedback(DCOMM_CUDA_FEEDBACK_WIDEN, again.at, half.at, 0,
                                               NULL, count, NULL, stream);
                }),
                what) &&
           same(again.get(), wide.data(), what) && again.guarded();
}

static void test_feedback(void)
{
    const size_t counts[] = {0, 1, 700, 5003};
    const std::string name = std::string("feedback") + launch_names[launch_now];
    bool fine = !late(name);
    if (!fine) {
        return;
    }
    for (size_t count : counts) {
        for (int kind : {(int)NORMAL, (int)ODD, (int)HUGE_ONES, (int)BITS}) {
            for (int op = DCOMM_CUDA_FEEDBACK_ADD; op <= DCOMM_CUDA_FEEDBACK_FINISH; op++) {
                fine = fine && feedback_one(op, count, kind, NORMAL, op % 2 != 0) &&
                       feedback_one(op, count, HUGE_ONES, kind, op % 2 == 0) &&
                       feedback_one(op, count, kind, kind, op % 2 != 0);
            }
            fine = fine && feedback_casts(count, kind);
        }
    }
    ok(name);
}

static double look_value(const bytes &x, size_t i, dcomm_dtype dtype)
{
    double wide;
    float single;
    uint16_t half;
    switch ((int)dtype) {
    case DCOMM_F64:
        std::memcpy(&wide, &x[8 * i], 8);
        return wide;
    case DCOMM_F32:
        std::memcpy(&single, &x[4 * i], 4);
        return (double)single;
    default:
        std::memcpy(&half, &x[2 * i], 2);
        return (double)(dtype == DCOMM_F16 ? dcommi_f16_to_f32(half) : dcommi_bf16_to_f32(half));
    }
}

/* Compare a scaler's counts for any bits, or for finite ones, and the numbers that it leaves. */
static bool look_one(dcomm_dtype dtype, size_t count, bool finite, double factor, bool drop)
{
    const size_t element = dcomm_dtype_size(dtype);
    const std::string what = std::string(where(dcomm_dtype_name(dtype), count, 1, finite)) +
                             ", factor " + std::to_string(factor) + (drop ? ", drop" : "");
    bytes want = raw(element * count);
    for (size_t i = element - 1; finite && i < want.size(); i += element) {
        want[i] &= 0xbf; /* the exponent's first bit */
    }
    area x(element * count, element), sight(sizeof(dcomm_cuda_sight));
    work_area room(dcomm_cuda_look_workspace_bytes(count));
    x.put(want.data());
    double squares = 0, value = 0;
    uint64_t index = UINT64_MAX;
    for (size_t i = count; i-- > 0;) {
        const double v = look_value(want, i, dtype);
        squares += v * v;
        index = std::isfinite(v) ? index : i;
        value = std::isfinite(v) ? value : v;
    }
    if (factor != 1) {
        const bytes from = want;
        cuda_reference_scale(want.data(), from.data(), count, dtype, factor);
    }
    if (drop && index != UINT64_MAX) {
        std::fill(want.begin(), want.end(), (unsigned char)0);
    }
    dcomm_cuda_sight got;
    if (!good(launched([&](void *stream) {
                  return dcomm_cuda_look(x.at, count, dtype, factor, drop,
                                         reinterpret_cast<dcomm_cuda_sight *>(sight.at), room.at,
                                         stream);
              }),
              what) ||
        !same(x.get(), want.data(), what) || !x.guarded() || !room.guarded() || !sight.guarded()) {
        return false;
    }
    const bytes raw_sight = sight.get();
    std::memcpy(&got, raw_sight.data(), sizeof got);
    const bool alike = value != value ? got.value != got.value : got.value == value;
    const bool near = std::isfinite(squares) ? std::fabs(got.squares - squares) <= 1e-12 * squares
                                             : !std::isfinite(got.squares);
    return (got.index == index && alike && near) ||
           wrong(what + ": element " + std::to_string(got.index) + " is " +
                 std::to_string(got.value) + ", of squares " + std::to_string(got.squares) +
                 "; not " + std::to_string(index) + ", " + std::to_string(value) + ", " +
                 std::to_string(squares));
}

static void test_look(void)
{
    const std::string name = std::string("looks") + launch_names[launch_now];
    bool fine = true;
    if (late(name)) {
        return;
    }
    for (dcomm_dtype dtype : {DCOMM_F64, DCOMM_F32, DCOMM_F16, DCOMM_BF16}) {
        for (size_t count : {(size_t)0, (size_t)1, (size_t)4095, (size_t)70001}) {
            for (bool finite : {false, true}) {
                if (small && count > 10000) {
                    continue;
                }
                fine = fine && look_one(dtype, count, finite, 1, !finite) &&
                       look_one(dtype, count, finite, 1.0 / 3, false) &&
                       look_one(dtype, count, finite, 0.25, true);
            }
        }
    }
    ok(name);
}

/* Fold operands that are wires of fp8: the result is the fold of what the CPU decodes. */
static bool reduce_fp8_one(const dcomm_codec *codec, dcomm_op op, size_t n, size_t count,
                           int64_t divisor, int kind)
{
    const size_t len = dcomm_codec_max_bytes(codec, count);
    const std::string what = where(dcomm_op_name(op), count, n, kind);
    std::vector<bytes> wires;
    std::vector<std::vector<float>> decoded;
    std::vector<area *> there;
    std::vector<const void *> host, device;
    const std::vector<size_t> lens(n, len);
    bool fine = true;
    for (size_t w = 0; w < n; w++) {
        const std::vector<float> x = numbers(count, w == 1 ? kind : (int)NORMAL);
        size_t written = 0;
        wires.push_back(bytes(len));
        decoded.push_back(std::vector<float>(count + 1));
        there.push_back(new area(len, n % 2 == 0 ? 4 : 0));
        fine = fine &&
               good(dcomm_encode(codec, x.data(), count, NULL, wires[w].data(), len, &written, NULL,
                                 NULL),
                    what) &&
               good(dcomm_decode(codec, wires[w].data(), len, decoded[w].data(), count), what);
        there[w]->put(wires[w].data());
        device.push_back(there[w]->at);
    }
    for (const std::vector<float> &d : decoded) {
        host.push_back(d.data());
    }
    area out(4 * count, n % 2 == 0 ? 4 : 0), report(sizeof(dcomm_cuda_report));
    const dcomm_cuda_report none = dcomm_cuda_report();
    dcomm_cuda_report found;
    bytes want(4 * count + 1);
    report.put(&none);
    fine =
        fine &&
        good((dcomm_status)cuda_reference_reduce(want.data(), host.data(), n, count, DCOMM_F32, op,
                                                 divisor),
             what) &&
        good(launched([&](void *stream) {
                 return dcomm_cuda_reduce_fp8(
                     codec, device.data(), lens.data(), n, reinterpret_cast<float *>(out.at), count,
                     op, divisor, reinterpret_cast<dcomm_cuda_report *>(report.at), stream);
             }),
             what) &&
        same(out.get(), want.data(), what) && out.guarded();
    const bytes raw_report = report.get();
    std::memcpy(&found, raw_report.data(), sizeof found);
    for (area *one : there) {
        delete one;
    }
    return fine && (found.corrupt == 0 || wrong("a good wire was found corrupt, " + what));
}

static void test_reduce_fp8(void)
{
    const std::string name = std::string("reduce fp8") + launch_names[launch_now];
    bool fine = true;
    if (late(name)) {
        return;
    }
    for (const char *spec : {"fp8:nonfinite=pass", "fp8:type=e5m2,block=384,nonfinite=pass"}) {
        dcomm_codec *codec = NULL;
        fine = fine && good(dcomm_codec_create(spec, &codec), spec);
        for (int op = 0; op < DCOMM_OP_COUNT; op++) {
            for (size_t count : {(size_t)0, (size_t)1, (size_t)383, (size_t)9001}) {
                const int64_t divisor = op == DCOMM_AVG ? 3 : 0;
                fine = fine && reduce_fp8_one(codec, (dcomm_op)op, 3, count, divisor, ODD) &&
                       (small || (reduce_fp8_one(codec, (dcomm_op)op, 1, count, divisor, NORMAL) &&
                                  reduce_fp8_one(codec, (dcomm_op)op, 2, count, divisor, SPIKE)));
            }
        }
        dcomm_codec_destroy(&codec);
    }
    ok(name);
}

#endif
