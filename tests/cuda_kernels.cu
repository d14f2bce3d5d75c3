/* cuda_kernels.cu - every kernel's bytes against the CPU's, as TAP. nvcc makes of it a program for
 * a device; with DCOMMI_CUDA_SHIM a C++ compiler makes one that runs the kernels on the CPU, once
 * for each order in which threads may take turns.
 *
 * usage: cuda_kernels [--small]    sizes for slow checkers
 *
 * Outputs are poisoned first and lie between guard zones; inputs hold what codecs have to take care
 * of: denormals, both zeros, NaN of all kinds, infinities, huge numbers, equal ones. */
#ifdef DCOMMI_CUDA_SHIM
#include "cuda_shim.h"
#endif
#define DCOMM_CUDA_IMPLEMENTATION
#include "dcomm.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#ifdef DCOMMI_CUDA_SHIM
#include <sys/mman.h>
#endif

extern "C" int cuda_reference_reduce(void *dst, const void *const *src, size_t nsrc, size_t count,
                                     int dtype, int op, int64_t divisor);
extern "C" void cuda_reference_scale(void *dst, const void *src, size_t count, int dtype,
                                     double factor);

typedef std::vector<unsigned char> bytes;

static bool small;
static int failures;
static std::string trouble;

static void ok(const std::string &name)
{
    std::printf("%s - %s\n", trouble.empty() ? "ok" : "not ok", name.c_str());
    if (!trouble.empty()) {
        std::printf("    %s\n", trouble.c_str());
        failures++;
    }
    trouble.clear();
    std::fflush(stdout);
}

/* The first thing that is wrong in a test. */
static bool wrong(const std::string &what)
{
    trouble = trouble.empty() ? what : trouble;
    return false;
}

/* ---- device memory between guards ---- */

static const size_t GUARD = 256;
static const unsigned char POISON = 0xa5;

struct area {
    unsigned char *base, *at;
    size_t size, room;

    /* `off`: bytes from an address that is aligned to 256. */
    explicit area(size_t len, size_t off = 0) : size(len), room(len + 3 * GUARD)
    {
#ifdef DCOMMI_CUDA_SHIM
        base = static_cast<unsigned char *>(std::aligned_alloc(256, (room + 511) / 256 * 256));
#else
        if (cudaMalloc(reinterpret_cast<void **>(&base), room) != cudaSuccess) {
            std::printf("Bail out! no device memory\n");
            std::exit(2);
        }
#endif
        at = base + GUARD + off;
        bytes poison(room, POISON);
        copy(base, poison.data(), room, true);
    }
    area(const area &) = delete;
    area &operator=(const area &) = delete;
    ~area()
    {
#ifdef DCOMMI_CUDA_SHIM
        std::free(base);
#else
        cudaFree(base);
#endif
    }
    static void copy(void *to, const void *from, size_t len, bool in)
    {
#ifdef DCOMMI_CUDA_SHIM
        (void)in;
        std::memcpy(to, from, len);
#else
        cudaError_t e =
            cudaMemcpy(to, from, len, in ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost);
        if (e != cudaSuccess) {
            wrong(std::string("the device says: ") + cudaGetErrorString(e));
        }
#endif
    }
    void put(const void *from)
    {
        copy(at, from, size, true);
    }
    bytes get() const
    {
        bytes b(size);
        copy(b.data(), at, size, false);
        return b;
    }
    bool guarded() const
    {
        bytes b(room);
        copy(b.data(), base, room, false);
        for (size_t i = 0; i < room; i++) {
            if ((i < (size_t)(at - base) || i >= (size_t)(at - base) + size) && b[i] != POISON) {
                return wrong("a byte beside the output was written, at " +
                             std::to_string((long)i - (long)(at - base)) + " of " +
                             std::to_string(size));
            }
        }
        return true;
    }
};

static bool same(const bytes &got, const void *want, const std::string &what)
{
    const unsigned char *w = static_cast<const unsigned char *>(want);
    for (size_t i = 0; i < got.size(); i++) {
        if (got[i] != w[i]) {
            char text[96];
            std::snprintf(text, sizeof text, ": byte %zu of %zu is %02x, not %02x", i, got.size(),
                          got[i], w[i]);
            return wrong(what + text);
        }
    }
    return true;
}

static bool good(dcomm_status status, const std::string &what)
{
    return status == DCOMM_OK || wrong(what + ": " + dcomm_last_error());
}

/* ---- inputs ---- */

static uint64_t seed_now = 1;

static uint64_t draw(void)
{
    seed_now = dcommi_rng_mix(seed_now, 77);
    return seed_now;
}

enum { NORMAL, TINY, EQUAL, ZEROS, SPIKE, HUGE_ONES, ODD, BITS, KINDS };
static const char *const kind_names[KINDS] = {"normal", "tiny",      "equal", "zeros",
                                              "spike",  "huge ones", "odd",   "any bits"};

static float number(int kind, size_t i)
{
    const uint64_t r = draw();
    float x = 0;
    for (int k = 0; k < 4; k++) {
        x += (float)((int)(r >> (16 * k) & 0xffff) - 32768);
    }
    x = std::ldexp(x, -16 - (int)(draw() % 6));
    switch (kind) {
    case TINY: /* denormals, and what is just above them */
        return std::ldexp(x, -(int)(r % 60) - 90);
    case EQUAL:
        return -0.7f;
    case ZEROS:
        return r % 2 == 0 ? 0.0f : -0.0f;
    case SPIKE:
        return i % 1000 == 377 ? 3.0e38f : x * 1e-3f;
    case HUGE_ONES:
        return std::ldexp(x, 126);
    case ODD:
        return r % 37 == 0   ? dcommi_f32_from_bits(0x7f800001u + (uint32_t)(r >> 40))
               : r % 37 == 1 ? -HUGE_VALF
               : r % 37 == 2 ? dcommi_f32_from_bits(0xffc12345u)
                             : x;
    case BITS:
        return dcommi_f32_from_bits((uint32_t)(r >> 7));
    default:
        return x;
    }
}

static std::vector<float> numbers(size_t n, int kind)
{
    std::vector<float> x(n);
    for (size_t i = 0; i < n; i++) {
        x[i] = number(kind, i);
    }
    return x;
}

/* ---- reductions ---- */

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
        for (size_t i = 0; dtype == DCOMM_F32 && i < count; i++) { /* sums that mean something */
            float x = number(i % 3 == 0 ? BITS : NORMAL, i);
            std::memcpy(&in[s][4 * i], &x, 4);
        }
        there.push_back(new area(len, off));
        there[s]->put(in[s].data());
        host.push_back(in[s].data());
        device.push_back(there[s]->at);
    }
    area out(len, (variant & 4) != 0 ? element : 0);
    bytes want(len + 1);
    area *to = (variant & 1) != 0 ? there[nsrc - 1] : &out;
    bool fine =
        good((dcomm_status)cuda_reference_reduce(want.data(), host.data(), nsrc, count, dtype, op,
                                                 divisor),
             what) &&
        good(dcomm_cuda_reduce(to->at, device.data(), nsrc, count, dtype, op, divisor, NULL),
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
    const size_t operands[] = {1, 2, 3, 9};
    for (size_t count : counts) {
        for (size_t n : operands) {
            for (int variant = 0; variant < 8; variant++) {
                if (count > (small ? 300u : 5000u) && (variant != (int)(count + n) % 8)) {
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
    ok(std::string("reduce ") + dcomm_dtype_name(dtype) + " " + dcomm_op_name(op));
}

static void test_scale(dcomm_dtype dtype)
{
    const double factors[] = {0.5, -3.7, 1e12, 1e-3, (double)NAN};
    const size_t counts[] = {1, 7, 700, 5003};
    const size_t element = dcomm_dtype_size(dtype);
    for (double factor : factors) {
        for (size_t count : counts) {
            bytes in = raw(count * element), want(count * element);
            area from(count * element, element), to(count * element, element);
            from.put(in.data());
            cuda_reference_scale(want.data(), in.data(), count, dtype, factor);
            const std::string what = where("scaling", count, 1, (int)factor);
            if (!good(dcomm_cuda_scale(to.at, from.at, count, dtype, factor, NULL), what) ||
                !same(to.get(), want.data(), what) || !to.guarded()) {
                break;
            }
        }
    }
    ok(std::string("scale ") + dcomm_dtype_name(dtype));
}

/* ---- codecs ---- */

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

/* One input by both, and what comes of it. variant: bit 0: feedback in place, bit 1: feedback, bit
 * 2: arrays off by one element, bit 3: wires off by four bytes. */
static bool codec_one(const dcomm_codec *codec, size_t count, int kind, int variant)
{
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
        /* Which of two NaN a sum is, a CPU's compiler decides: there is one at most. */
        const std::vector<float> x = numbers(count, w == 2 || (w == 1 && casts) ? NORMAL : kind);
        const std::vector<float> r = numbers(count, kind == HUGE_ONES ? HUGE_ONES : NORMAL);
        std::vector<float> clean = r;
        for (float &f : clean) {
            f = std::isfinite(f) ? f : 1;
        }
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
                       ? dcomm_encode_feedback(codec, x.data(), clean.data(), c.next.data(), count,
                                               &key, c.wire.data(), len, &written, NULL, &c.report)
                       : dcomm_encode(codec, x.data(), count, &key, c.wire.data(), len, &written,
                                      NULL, &c.report);
        area in(4 * count, off), residual(4 * count, off), next(4 * count, off),
            report(sizeof(dcomm_cuda_report));
        there.push_back(new area(len, wire_off));
        in.put(x.data());
        residual.put(clean.data());
        const dcomm_cuda_report none = dcomm_cuda_report();
        report.put(&none);
        area &to = place ? residual : next;
        fine = good(dcomm_cuda_encode(codec, reinterpret_cast<float *>(in.at),
                                      feedback ? reinterpret_cast<float *>(residual.at) : NULL,
                                      feedback ? reinterpret_cast<float *>(to.at) : NULL, count,
                                      &key, there[w]->at, len, NULL,
                                      reinterpret_cast<dcomm_cuda_report *>(report.at), NULL),
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
        fine = good(dcomm_decode_sum(codec, host_at.data(), lens.data(), n, want.data(), count),
                    what) &&
               good(dcomm_cuda_decode_sum(codec, device_at.data(), lens.data(), n,
                                          reinterpret_cast<float *>(x.at), count, NULL,
                                          reinterpret_cast<dcomm_cuda_report *>(report.at), NULL),
                    what) &&
               same(x.get(), want.data(), "decode_sum " + what) && x.guarded();
        for (size_t w = 0; w < n && fine; w++) {
            fine = good(dcomm_decode_add(codec, host_at[w], len, acc.data(), count), what);
        }
        fine = fine &&
               good(dcomm_cuda_decode_add(codec, device_at.data(), lens.data(), n,
                                          reinterpret_cast<float *>(a.at), count, NULL,
                                          reinterpret_cast<dcomm_cuda_report *>(report.at), NULL),
                    what) &&
               same(a.get(), acc.data(), "decode_add " + what) && a.guarded() &&
               (report_of(report).corrupt == 0 || wrong("a good wire was found corrupt, " + what));
    }
    if (fine) {
        coded &c = host[wires];
        const float factor = kind == NORMAL ? 1 : 0.3f;
        const std::vector<float> r = numbers(count, NORMAL);
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
            good(dcomm_cuda_recode(codec, device_at.data(), lens.data(), wires, factor,
                                   feedback ? reinterpret_cast<float *>(residual.at) : NULL,
                                   feedback ? reinterpret_cast<float *>(to.at) : NULL, count, NULL,
                                   out.at, len, NULL,
                                   reinterpret_cast<dcomm_cuda_report *>(report.at), NULL),
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

/* A wire with a byte changed is found corrupt by both, or by neither. */
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
        if (!good(dcomm_cuda_decode_sum(codec, &p, &len, 1, reinterpret_cast<float *>(out.at),
                                        count, NULL,
                                        reinterpret_cast<dcomm_cuda_report *>(report.at), NULL),
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

static void test_codec(const char *spec)
{
    static const char *const policies[] = {"zero", "pass", "fail"};
    size_t bucket = 512;
    for (int policy = 0; policy < 3; policy++) {
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
        if (bucket <= 2048 && !small) {
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
        dcomm_codec_destroy(&codec);
        if (!fine) {
            trouble = full + ": " + trouble;
            break;
        }
    }
    ok(spec);
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
    "qsgd:bucket=8192",
    "qsgd:bucket=16384,norm=two",
    "tern",
    "sign",
    "sign:bucket=1536",
    "sign:bucket=12288",
};

/* ---- more elements than 32 bits count ---- */

/* Memory of zeros, of which little is touched. */
struct expanse {
    unsigned char *p;
    size_t size;
    explicit expanse(size_t len) : p(NULL), size(len)
    {
#ifdef DCOMMI_CUDA_SHIM
        void *at = mmap(NULL, len, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        p = at == MAP_FAILED ? NULL : static_cast<unsigned char *>(at);
#else
        if (cudaMalloc(reinterpret_cast<void **>(&p), len) != cudaSuccess) {
            (void)cudaGetLastError();
            p = NULL;
        } else {
            cudaMemset(p, 0, len);
        }
#endif
    }
    expanse(const expanse &) = delete;
    expanse &operator=(const expanse &) = delete;
    ~expanse()
    {
#ifdef DCOMMI_CUDA_SHIM
        munmap(p, size);
#else
        cudaFree(p);
#endif
    }
    bytes part(size_t at, size_t len) const
    {
        bytes b(len);
        area::copy(b.data(), p + at, len, false);
        return b;
    }
};

/* The end of an array of 2^31 + 5 elements: its buckets are as they are when it is encoded alone
 * under the same indices. Four bits, or a cast. */
static void test_far(const char *spec)
{
    const size_t n = ((size_t)1 << 31) + 5, begin = n - 5 - 1024, rest = n - begin;
    dcomm_codec *codec = NULL;
    good(dcomm_codec_create(spec, &codec), spec);
    dcomm_codec_layout layout = dcomm_codec_layout();
    good(dcomm_codec_get_layout(codec, &layout), spec);
    const size_t len = dcomm_codec_max_bytes(codec, n), part = dcomm_codec_max_bytes(codec, rest);
    const size_t steps = layout.bucket > 0 ? 4 * ((rest + layout.bucket - 1) / layout.bucket) : 0;
    const std::vector<float> x = numbers(rest, NORMAL);
    std::vector<float> y(rest);
    bytes wire(part);
    size_t written = 0;
    dcomm_codec_key key = dcomm_codec_key();
    key.first = begin;
    expanse in(4 * n), out(len), back(4 * n);
    if (in.p == NULL || out.p == NULL || back.p == NULL) {
        std::printf("# skipped: 2^31 + 5 elements, %s (no memory for them)\n", spec);
        dcomm_codec_destroy(&codec);
        return;
    }
    area::copy(in.p + 4 * begin, x.data(), 4 * rest, true);
    good(dcomm_encode(codec, x.data(), rest, &key, wire.data(), part, &written, NULL, NULL), spec);
    good(dcomm_decode(codec, wire.data(), part, y.data(), rest), spec);
    key.first = 0;
    const void *from = out.p;
#ifdef DCOMMI_CUDA_SHIM
    shim_last = 3;
#endif
    good(dcomm_cuda_encode(codec, reinterpret_cast<float *>(in.p), NULL, NULL, n, &key, out.p, len,
                           NULL, NULL, NULL),
         spec);
    good(dcomm_cuda_decode_sum(codec, &from, &len, 1, reinterpret_cast<float *>(back.p), n, NULL,
                               NULL, NULL),
         spec);
    const void *both[] = {in.p, back.p};
    same(out.part(len - steps, steps), wire.data() + part - steps, "steps");
    const size_t codes =
        layout.bucket > 0 ? dcommi_wire_codes(n, 4) - dcommi_wire_codes(rest, 4) : 2 * begin;
    same(out.part(codes, part - steps), wire.data(), "codes");
    same(back.part(4 * begin, 4 * rest), y.data(), "decoded");
    good(dcomm_cuda_reduce(back.p, both, 2, n, DCOMM_F32, DCOMM_MAX, 0, NULL), "reduce");
    for (size_t i = 0; i < rest; i++) {
        y[i] = x[i] > y[i] ? x[i] : y[i];
    }
    same(back.part(4 * begin, 4 * rest), y.data(), "reduced");
#ifdef DCOMMI_CUDA_SHIM
    shim_last = 0;
#endif
    dcomm_codec_destroy(&codec);
    ok(std::string("2^31 + 5 elements, ") + spec);
}

/* ---- arguments ---- */

static bool says(dcomm_status got, dcomm_status want, const char *words)
{
    return (got == want && std::strstr(dcomm_last_error(), words) != NULL) ||
           wrong(std::string(words) + ": " + dcomm_status_name(got) + ", " + dcomm_last_error());
}

static void test_arguments(void)
{
    dcomm_codec *codec = NULL, *sparse = NULL;
    good(dcomm_codec_create("qsgd", &codec), "qsgd");
    good(dcomm_codec_create("randk", &sparse), "randk");
    area a(4096), b(4096);
    float *x = reinterpret_cast<float *>(a.at);
    const void *one[] = {a.at}, *odd[] = {a.at + 2}, *many[DCOMM_CUDA_OPERANDS + 1];
    for (const void *&p : many) {
        p = a.at;
    }
    const size_t len = dcomm_codec_max_bytes(codec, 100), shorter = len - 1;
    const dcomm_status bad = DCOMM_ERR_INVALID;
    says(dcomm_cuda_reduce(NULL, one, 1, 4, DCOMM_F32, DCOMM_SUM, 0, NULL), bad, "dst is NULL");
    says(dcomm_cuda_reduce(a.at + 2, one, 1, 4, DCOMM_F32, DCOMM_SUM, 0, NULL), bad, "not aligned");
    says(dcomm_cuda_reduce(a.at, odd, 1, 4, DCOMM_F32, DCOMM_SUM, 0, NULL), bad, "number 0");
    says(dcomm_cuda_reduce(a.at, one, 0, 4, DCOMM_F32, DCOMM_SUM, 0, NULL), bad, "no operands");
    says(dcomm_cuda_reduce(a.at, one, 1, 4, DCOMM_F32, DCOMM_PROD, 2, NULL), bad, "cannot divide");
    says(dcomm_cuda_reduce(a.at, one, 1, 4, DCOMM_F32, (dcomm_op)70, 0, NULL), bad, "no kernel");
    says(dcomm_cuda_reduce(a.at, one, 1, SIZE_MAX / 2, DCOMM_F32, DCOMM_SUM, 0, NULL), bad,
         "dtype 1");
    says(dcomm_cuda_reduce(a.at, many, DCOMM_CUDA_OPERANDS + 1, 4, DCOMM_F32, DCOMM_SUM, 0, NULL),
         DCOMM_ERR_UNSUPPORTED, "operands are more than");
    says(dcomm_cuda_scale(a.at, NULL, 4, DCOMM_F32, 2, NULL), bad, "number 0 is NULL");
    says(dcomm_cuda_encode(NULL, x, NULL, NULL, 4, NULL, b.at, 99, NULL, NULL, NULL), bad, "codec");
    says(dcomm_cuda_encode(sparse, x, NULL, NULL, 4, NULL, b.at, 99, NULL, NULL, NULL),
         DCOMM_ERR_UNSUPPORTED, "no kernels");
    says(dcomm_cuda_encode(codec, x, NULL, NULL, 100, NULL, b.at, shorter, NULL, NULL, NULL), bad,
         "capacity");
    says(dcomm_cuda_encode(codec, NULL, NULL, NULL, 100, NULL, b.at, len, NULL, NULL, NULL), bad,
         "x is NULL");
    says(dcomm_cuda_encode(codec, x, x, NULL, 100, NULL, b.at, len, NULL, NULL, NULL), bad,
         "next is NULL");
    says(dcomm_cuda_encode(codec, x, NULL, NULL, 100, NULL, b.at + 2, len, NULL, NULL, NULL), bad,
         "wire is not aligned");
    says(dcomm_cuda_decode_sum(codec, one, &shorter, 1, x, 100, NULL, NULL, NULL),
         DCOMM_ERR_CORRUPT, "bytes, not");
    says(dcomm_cuda_decode_add(codec, one, &len, 1, NULL, 100, NULL, NULL, NULL), bad,
         "acc is NULL");
    says(dcomm_cuda_recode(codec, one, &len, 1, HUGE_VALF, NULL, NULL, 100, NULL, b.at, len, NULL,
                           NULL, NULL),
         bad, "factor");
    if (dcomm_cuda_workspace_bytes(codec, 100) != 0 ||
        dcomm_cuda_decode_workspace_bytes(codec, 100) != 0 ||
        dcomm_cuda_recode_workspace_bytes(codec, 100) != 0) {
        wrong("a workspace");
    }
    dcomm_codec_destroy(&codec);
    dcomm_codec_destroy(&sparse);
    ok("arguments");
}

#include "cuda_sparse.h"

static void test_all(void)
{
    for (int dtype = 0; dtype < DCOMM_DTYPE_COUNT; dtype++) {
        for (int op = 0; op < DCOMM_OP_COUNT; op++) {
            test_reduce((dcomm_dtype)dtype, (dcomm_op)op);
        }
        test_scale((dcomm_dtype)dtype);
    }
    for (const char *spec : specs) {
        test_codec(spec);
    }
    test_sparse_all();
    if (!small) {
        test_far("qsgd:bits=4,bucket=512");
        test_far("qsgd:bits=4,bucket=1024");
        test_far("bf16:rounding=stochastic");
    }
    test_arguments();
}

int main(int argc, char **argv)
{
    small = argc > 1 && std::strcmp(argv[1], "--small") == 0;
#ifdef DCOMMI_CUDA_SHIM
    for (shim_order = 0; shim_order < 3; shim_order++) {
        std::printf("# threads take turns in order %d\n", shim_order);
        test_all();
        small = true; /* what other orders find, small sizes show */
    }
#else
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        std::printf("# skipped: kernels on a device (there is none)\n");
        return 0;
    }
    test_all();
#endif
    return failures > 0;
}
