/* cuda_lowrank.h - tests of powersgd's steps on a device: together they are an encoding and a
 * decoding with the CPU's bytes. */
#ifndef DCOMM_CUDA_LOWRANK_H
#define DCOMM_CUDA_LOWRANK_H

#include "cuda_far.h"

extern "C" int cuda_reference_powersgd(size_t count, size_t cols, size_t rank, const float *x,
                                       float *p, float *q, float *sent);
extern "C" void cuda_reference_powersgd_start(size_t cols, size_t rank, const dcomm_codec_key *key,
                                              float *q);

static bool lowrank_make(const char *spec, size_t count, const std::string &what,
                         dcomm_codec **codec, dcomm_codec_matrix *shape)
{
    return good(dcomm_codec_create(spec, codec), spec) &&
           good(dcomm_codec_get_matrix(*codec, count, shape), what);
}

static bool lowrank_one(const char *spec, int turns, size_t count, int kind)
{
    const std::string what =
        std::string(spec) + ", " + std::to_string(count) + " elements, " + kind_names[kind];
    dcomm_codec *codec = NULL;
    dcomm_codec_matrix shape = dcomm_codec_matrix();
    if (!lowrank_make(spec, count, what, &codec, &shape)) {
        return false;
    }
    const size_t len = dcomm_codec_max_bytes(codec, count);
    std::vector<float> x = numbers(count, kind);
    for (float &f : x) {
        f += 0.0f; /* like the sum with a residual of zeros */
    }
    std::vector<float> none(count), next(count), back(count), twice(count);
    bytes wire(len);
    size_t written = 0;
    dcomm_codec_key key = dcomm_codec_key();
    dcomm_codec_report report;
    key.seed = 9;
    key.step = count;
    good(dcomm_encode_feedback(codec, x.data(), none.data(), next.data(), count, &key, wire.data(),
                               len, &written, NULL, &report),
         what);
    good(dcomm_decode(codec, wire.data(), len, back.data(), count), what);
    twice = back;
    good(dcomm_decode_add(codec, wire.data(), len, twice.data(), count), what);

    area in(4 * count), out(len, 4), found(sizeof(dcomm_cuda_report)), to(4 * count, 4);
    const dcomm_cuda_report zero = dcomm_cuda_report();
    const bytes zeros(len);
    in.put(x.data());
    out.put(zeros.data());
    found.put(&zero);
    float *m = reinterpret_cast<float *>(in.at), *p = reinterpret_cast<float *>(out.at);
    float *q = p + shape.rank * shape.rows, *y = reinterpret_cast<float *>(to.at);
    const auto run = [&](const launcher &call) { return good(launched(call), what); };
    bool fine = true;
    for (int turn = 0; turn < turns && fine; turn++) {
        fine = run([&](void *s) { return dcomm_cuda_powersgd_start(&shape, &key, q, s); }) &&
               run([&](void *s) { return dcomm_cuda_powersgd_p(&shape, m, q, p, NULL, s); }) &&
               run([&](void *s) { return dcomm_cuda_powersgd_orthonormal(&shape, p, s); }) &&
               run([&](void *s) {
                   return dcomm_cuda_powersgd_q(&shape, m, p, q,
                                                reinterpret_cast<dcomm_cuda_report *>(found.at), s);
               });
    }
    dcomm_cuda_report clipped;
    const bytes raw_report = found.get();
    std::memcpy(&clipped, raw_report.data(), sizeof clipped);
    fine = fine && same(out.get(), wire.data(), "P and Q of " + what) && out.guarded() &&
           (clipped.clipped == report.clipped || wrong("clipped, of " + what)) &&
           run([&](void *s) { return dcomm_cuda_powersgd_product(&shape, p, q, y, 0, s); }) &&
           same(to.get(), back.data(), "decoding of " + what) && to.guarded() &&
           run([&](void *s) { return dcomm_cuda_powersgd_product(&shape, p, q, m, -1, s); }) &&
           same(in.get(), next.data(), "what is left of " + what) && in.guarded() &&
           run([&](void *s) { return dcomm_cuda_powersgd_product(&shape, p, q, y, 1, s); }) &&
           same(to.get(), twice.data(), "adding of " + what);
    dcomm_codec_destroy(&codec);
    return fine;
}

/* The pass that leaves the residual counts what the CPU counts while it encodes. Its ledger has
 * the same bits as that of a separate pass. */
static bool lowrank_ledger(const char *spec, size_t count, int kind, bool feedback)
{
    const std::string what = std::string("ledger of ") + spec + ", " + std::to_string(count) +
                             " elements, " + kind_names[kind] + (feedback ? ", feedback" : "");
    dcomm_codec *codec = NULL;
    dcomm_codec_matrix shape = dcomm_codec_matrix();
    if (!lowrank_make(spec, count, what, &codec, &shape)) {
        return false;
    }
    const size_t len = dcomm_codec_max_bytes(codec, count);
    const std::vector<float> x = numbers(count, kind), r = numbers(count, residuals(kind));
    std::vector<float> next(count), sent(count), whole(count);
    bytes wire(len);
    size_t written = 0;
    dcomm_codec_report report, seen = dcomm_codec_report();
    dcomm_ledger want = dcomm_ledger(), got = dcomm_ledger();
    good(dcomm_encode_ledger(codec, x.data(), feedback ? r.data() : NULL,
                             feedback ? next.data() : NULL, count, NULL, wire.data(), len, &written,
                             NULL, &report, &want),
         what);
    good(dcomm_decode(codec, wire.data(), len, sent.data(), count), what);
    dcomm_codec_destroy(&codec);
    for (size_t i = 0; i < count; i++) {
        whole[i] = feedback_wants(DCOMM_CUDA_FEEDBACK_ADD, x[i], 0, r[i], i, &seen);
    }
    area in(4 * count, 4), e(4 * count), y(4 * count), pq(len), sums(sizeof(dcomm_cuda_ledger)),
        apart(sizeof(dcomm_cuda_ledger));
    work_area room(dcomm_cuda_compare_workspace_bytes(count));
    dcomm_cuda_ledger there = dcomm_cuda_ledger();
    in.put(x.data());
    e.put(whole.data());
    y.put(sent.data());
    pq.put(wire.data());
    sums.put(&there);
    apart.put(&there);
    float *p = floats(pq), *q = p + shape.rank * shape.rows, *left = feedback ? floats(e) : NULL;
    const auto run = [&](const launcher &call) { return good(launched(call), what); };
    if (!run([&](void *s) {
            return dcomm_cuda_powersgd_product_ledger(
                &shape, p, q, floats(in), left, room.at,
                reinterpret_cast<dcomm_cuda_ledger *>(sums.at), s);
        }) ||
        !same(e.get(), feedback ? next.data() : whole.data(), what + ": what is left") ||
        !same(in.get(), x.data(), what + ": x") || !e.guarded() || !sums.guarded() ||
        !room.guarded() || !run([&](void *s) {
            return dcomm_cuda_ledger_compare(reinterpret_cast<dcomm_cuda_ledger *>(apart.at),
                                             floats(in), floats(y), left, count, room.at, s);
        })) {
        return false;
    }
    const bytes raw = sums.get();
    std::memcpy(&there, raw.data(), sizeof there);
    dcomm_cuda_ledger_add(&got, count, &there, &report);
    return same(apart.get(), &there, what + ", apart") && same_ledger(got, want, false, what);
}

/* The first product counts non-finite numbers and takes them for 0, as it does without
 * counting. */
static bool lowrank_counts(const char *spec, size_t count)
{
    const std::string what = std::string(spec) + " that counts, " + std::to_string(count);
    dcomm_codec *codec = NULL;
    dcomm_codec_matrix shape = dcomm_codec_matrix();
    if (!lowrank_make(spec, count, what, &codec, &shape)) {
        return false;
    }
    dcomm_codec_destroy(&codec);
    std::vector<float> x = numbers(count, NORMAL), from = numbers(shape.rank * shape.cols, NORMAL);
    const size_t odd[] = {count / 3, count / 2, count - 1};
    for (size_t i : odd) {
        x[i] = i % 2 == 0 ? NAN : -INFINITY;
    }
    area in(4 * count), q(4 * from.size()), plain(4 * shape.rank * shape.rows, 4),
        counted(4 * shape.rank * shape.rows, 4), found(sizeof(dcomm_cuda_report));
    const dcomm_cuda_report zero = dcomm_cuda_report();
    in.put(x.data());
    q.put(from.data());
    found.put(&zero);
    const auto times = [&](area &to, dcomm_cuda_report *report) {
        return good(launched([&](void *s) {
                        return dcomm_cuda_powersgd_p(&shape, reinterpret_cast<float *>(in.at),
                                                     reinterpret_cast<float *>(q.at),
                                                     reinterpret_cast<float *>(to.at), report, s);
                    }),
                    what);
    };
    if (!times(plain, NULL) || !times(counted, reinterpret_cast<dcomm_cuda_report *>(found.at))) {
        return false;
    }
    dcomm_cuda_report report;
    const bytes raw = found.get();
    std::memcpy(&report, raw.data(), sizeof report);
    return same(counted.get(), plain.get().data(), what) && counted.guarded() && plain.guarded() &&
           ((report.nonfinite == 3 && report.first == UINT64_MAX - odd[0]) || wrong(what));
}

/* Test the steps as a codec, with each policy for non-finite numbers. With "pass" such a number
 * keeps the residual unchanged, even if it is found last. */
static bool lowrank_codec(const char *spec, int turn)
{
    const size_t counts[] = {0, 1, 2, 130, 2311, 12000};
    bool fine = true;
    for (const char *policy : {"zero", "pass", "fail"}) {
        dcomm_codec *codec = NULL;
        const std::string full = std::string(spec) + ",nonfinite=" + policy;
        fine = fine && good(dcomm_codec_create(full.c_str(), &codec), full);
        for (size_t count : counts) {
            for (int kind = 0; kind < KINDS && fine; kind++) {
                if ((small || count > 2400) && (kind + turn++) % KINDS != 0) {
                    continue;
                }
                fine = codec_one(codec, count, kind, (int)(draw() >> 11 & 15));
            }
        }
        fine = fine && corrupt_one(codec, 700);
        dcomm_codec_destroy(&codec);
        if (!fine) {
            trouble = full + ": " + trouble;
            return false;
        }
    }
    return true;
}

static void test_lowrank(void)
{
    static const struct {
        const char *spec;
        int turns;
    } of[] = {{"powersgd", 1},
              {"powersgd:rank=1", 1},
              {"powersgd:rank=7,rows=40,turns=2", 2},
              {"powersgd:rank=4,rows=1000", 1},
              {"powersgd:rank=2,rows=4000", 1}, /* columns of more than one chunk */
              {"powersgd:rank=5,rows=3", 1}};
    const size_t counts[] = {0, 1, 2, 17, 300, 4099, 20000};
    const std::string name = std::string("powersgd") + launch_names[launch_now];
    bool fine = true;
    if (late(name)) {
        return;
    }
    for (const auto &o : of) {
        for (size_t count : counts) {
            for (int kind : {(int)NORMAL, (int)TINY, (int)EQUAL, (int)ZEROS, (int)HUGE_ONES}) {
                fine = fine && (small && (count > 5000 || kind % 2 != 0)
                                    ? true
                                    : lowrank_one(o.spec, o.turns, count, kind));
            }
        }
    }
    fine = fine && lowrank_codec("powersgd:rank=3", 0) &&
           lowrank_codec("powersgd:rank=1,rows=9,turns=2", 1);
    for (const char *spec : {"powersgd:rank=3,nonfinite=zero", "powersgd:rows=3,nonfinite=zero"}) {
        for (size_t count : {0, 1, 300, 4099, 20000}) {
            for (int kind : {(int)NORMAL, (int)HUGE_ONES, (int)ODD}) {
                fine =
                    fine && (small && count > 5000 ? true
                                                   : lowrank_ledger(spec, count, kind, true) &&
                                                         lowrank_ledger(spec, count, kind, false));
            }
        }
    }
    for (size_t count : {17, 4099}) {
        fine = fine && lowrank_counts("powersgd:rank=7", count) &&
               lowrank_counts("powersgd:rank=4,rows=1000", count);
    }
    ok(name);
}

/* Compare the last elements of P Q^T, in mode `how` of dcomm_cuda_powersgd_product, with
 * `want`. */
static bool far_product(const dcomm_codec_matrix &shape, const area &p, const area &q,
                        const expanse &to, int how, const std::vector<float> &want)
{
    const std::string what = "product, how " + std::to_string(how);
    return good(dcomm_cuda_powersgd_product(&shape, reinterpret_cast<float *>(p.at),
                                            reinterpret_cast<float *>(q.at), far_floats(to), how,
                                            NULL),
                what) &&
           same(to.part(4 * (FAR - want.size()), 4 * want.size()), want.data(), what);
}

/* Start from a Q with more columns than a codec has; only the last few run. Some keep their
 * direction. The others are zeros and become numbers drawn from the key at their place. */
static void far_start(void)
{
    const char *name = "powersgd's start";
    const size_t cols = 1024, few = 4;
    const dcomm_codec_matrix shape = {2 * cols, 2, cols, FAR / cols + few, 1, 0};
    const size_t begin = (shape.rank - few) * cols;
    expanse q(4 * shape.rank * cols);
    if (late(name) || !far_room(name, {&q})) {
        return;
    }
    const far_blocks last(few);
    dcomm_codec_key key = dcomm_codec_key();
    std::vector<float> want = numbers(few * cols, NORMAL);
    std::fill_n(want.begin() + (std::ptrdiff_t)cols, 2 * cols, 0.0f);
    key.seed = 3;
    key.step = 8;
    area::copy(q.p + 4 * begin, want.data(), 4 * want.size(), true);
    good(dcomm_cuda_powersgd_start(&shape, &key, far_floats(q), NULL), name);
    key.first = begin;
    cuda_reference_powersgd_start(cols, few, &key, want.data());
    same(q.part(4 * begin, 4 * want.size()), want.data(), name);
    ok(std::string("2^31 + 5 elements, ") + name);
}

/* Use only the last row of P, and the columns of Q for the last elements. */
static void far_product_ledger(void)
{
    const std::string name = "ledger of a product";
    const dcomm_cuda_ledger nothing = dcomm_cuda_ledger();
    const size_t rank = 2, rows = 32276, n = 6000, begin = FAR - n;
    const size_t cols = (FAR + rows - 1) / rows, end = FAR - (rows - 1) * cols;
    const dcomm_codec_matrix shape = {FAR, rows, cols, rank, 1, 0};
    expanse in(4 * FAR), whole(4 * FAR), room(dcomm_cuda_compare_workspace_bytes(FAR));
    if (late(name) || !far_room(name, {&in, &whole, &room})) {
        return;
    }
    const far_blocks last(4);
    const std::vector<float> x = numbers(n, NORMAL), e = numbers(n, NORMAL);
    std::vector<float> p(rank * rows), q(rank * cols), y(n), next(n);
    for (size_t j = 0; j < rank; j++) {
        const std::vector<float> some = numbers(n, NORMAL);
        std::copy(some.begin(), some.end(), q.begin() + (std::ptrdiff_t)(j * cols + end - n));
        p[j * rows + rows - 1] = 0.7f - (float)j;
    }
    for (size_t i = 0; i < n; i++) {
        double s = 0;
        for (size_t j = 0; j < rank; j++) {
            s += (double)q[j * cols + end - n + i] * (double)p[j * rows + rows - 1];
        }
        y[i] = (float)s;
        next[i] = e[i] - y[i];
    }
    area at_p(4 * p.size()), at_q(4 * q.size()), sums(sizeof nothing);
    at_p.put(p.data());
    at_q.put(q.data());
    sums.put(&nothing);
    area::copy(in.p + 4 * begin, x.data(), 4 * n, true);
    area::copy(whole.p + 4 * begin, e.data(), 4 * n, true);
    good(dcomm_cuda_powersgd_product_ledger(&shape, floats(at_p), floats(at_q), far_floats(in),
                                            far_floats(whole), room.p,
                                            reinterpret_cast<dcomm_cuda_ledger *>(sums.at), NULL),
         name);
    same(whole.part(4 * begin, 4 * n), next.data(), name + ": what is left");
    far_sums(sums, x, y, next, name);
    ok("2^31 + 5 elements, " + name);
}

/* The CPU's matrix is the last rows alone: rows of zeros add nothing. The number of rows left out
 * is a multiple of eight, so that dots of P take the others in the same lanes. With this many rows
 * the last one is nearly whole, and both P and Q have more blocks than the shim runs. */
static void far_lowrank(void)
{
    const char *spec = "powersgd:rank=5,rows=32276";
    const size_t rows = 20, columns = 200, elements = 6000; /* the compared part */
    dcomm_codec *codec = NULL;
    dcomm_codec_matrix shape = dcomm_codec_matrix();
    if (late(std::string("2^31 + 5 elements, ") + spec)) {
        return;
    }
    good(dcomm_codec_create(spec, &codec), spec);
    good(dcomm_codec_get_matrix(codec, FAR, &shape), spec);
    dcomm_codec_destroy(&codec);
    expanse in(4 * FAR), to(4 * FAR);
    if (!far_room(spec, {&in, &to})) {
        return;
    }
    const far_blocks last(8); /* more than the columns and rows that are compared */
    const size_t rank = shape.rank, cols = shape.cols, begin = (shape.rows - rows) * cols;
    const size_t rest = FAR - begin;
    std::vector<float> x = numbers(rest, NORMAL), from = numbers(rank * cols, NORMAL);
    std::vector<float> p(rank * rows), q = from, sent(rest), none(rank * shape.rows);
    x.back() = HUGE_VALF; /* counts as 0, and is left */
    if ((shape.rows - rows) % 8 != 0 ||
        cuda_reference_powersgd(rest, cols, rank, x.data(), p.data(), q.data(), sent.data()) == 0) {
        wrong("the CPU's matrix");
    }
    area there_p(4 * none.size()), there_q(4 * q.size()), report(sizeof(dcomm_cuda_report));
    float *m = far_floats(in), *at_p = reinterpret_cast<float *>(there_p.at);
    float *at_q = reinterpret_cast<float *>(there_q.at);
    area::copy(in.p + 4 * begin, x.data(), 4 * rest, true);
    there_p.put(none.data());
    there_q.put(from.data());
    good(dcomm_cuda_powersgd_p(&shape, m, at_q, at_p, cleared(report), NULL), "p");
    const dcomm_cuda_report seen = report_of(report);
    if (seen.nonfinite != 1 || seen.first != UINT64_MAX - (FAR - 1)) {
        wrong("what is not finite");
    }
    good(dcomm_cuda_powersgd_orthonormal(&shape, at_p, NULL), "orthonormal");
    good(dcomm_cuda_powersgd_q(&shape, m, at_p, at_q, cleared(report), NULL), "q");
    const bytes got_p = there_p.get(), got_q = there_q.get();
    for (size_t j = 0; j < rank; j++) {
        const size_t row = (j + 1) * shape.rows - rows, column = (j + 1) * cols - columns;
        const auto part = [](const bytes &b, size_t at, size_t n) {
            return bytes(b.begin() + (std::ptrdiff_t)(4 * at),
                         b.begin() + (std::ptrdiff_t)(4 * (at + n)));
        };
        same(part(got_p, row, rows), p.data() + j * rows, "P");
        same(part(got_q, column, columns), q.data() + column, "Q");
    }
    there_q.put(q.data()); /* also the columns that did not run */
    const std::vector<float> y(sent.end() - (std::ptrdiff_t)elements, sent.end());
    std::vector<float> twice(y), left(x.end() - (std::ptrdiff_t)elements, x.end());
    for (size_t i = 0; i < elements; i++) {
        twice[i] += y[i];
        left[i] -= y[i];
        left[i] =
            std::isinf(left[i]) ? std::copysign(FLT_MAX, left[i]) : left[i]; /* it stays finite */
    }
    far_product(shape, there_p, there_q, to, 0, y);
    far_product(shape, there_p, there_q, to, 1, twice);
    far_product(shape, there_p, there_q, in, -1, left);
    ok(std::string("2^31 + 5 elements, ") + spec);
}

#endif
