/* cuda_far_sparse.h - tests of sparse codecs on arrays of 2^31 + 5 elements; cuda_far.h tests
 * dense ones. */
#ifndef DCOMM_CUDA_FAR_SPARSE_H
#define DCOMM_CUDA_FAR_SPARSE_H

#include "cuda_far.h"

/* Return a key with which randk sends an element beyond 2^31 from the last of k parts. */
static dcomm_codec_key far_key(uint64_t k)
{
    const uint64_t part = k - 1, begin = dcommi_randk_begin(FAR, k, part);
    dcomm_codec_key key = dcomm_codec_key();
    for (;; key.seed++) {
        const dcommi_rng rng = dcommi_randk_rng(dcommi_randk_seed(key.seed, 0, 0, 0));
        uint32_t word[4];
        dcommi_rng_block(&rng, part / 4, word);
        if (dcommi_randk_index(begin, FAR, word[part % 4]) >= (uint64_t)1 << 31) {
            return key;
        }
    }
}

/* Compare the device's ledger with `want` of the CPU, both without a residual. The number of
 * counted elements depends on how many blocks run. */
static void far_sparse_ledger(const dcomm_codec *codec, const dcomm_codec_key &key,
                              const expanse &in, const expanse &out,
                              const dcomm_codec_report &report, const dcomm_ledger &want,
                              const std::string &name)
{
    expanse workspace(dcomm_cuda_ledger_workspace_bytes(codec, FAR));
    area sums(sizeof(dcomm_cuda_ledger));
    dcomm_cuda_ledger there = dcomm_cuda_ledger();
    dcomm_ledger got = dcomm_ledger();
    if (!far_room(name, {&workspace})) {
        return;
    }
    sums.put(&there);
    good(dcomm_cuda_encode_ledger(codec, far_floats(in), NULL, NULL, FAR, &key, out.p, out.size,
                                  workspace.p, NULL, reinterpret_cast<dcomm_cuda_ledger *>(sums.at),
                                  NULL),
         name);
    const bytes raw_sums = sums.get();
    std::memcpy(&there, raw_sums.data(), sizeof there);
    there.count = want.count;
    dcomm_cuda_ledger_add(&got, FAR, &there, &report);
    same_ledger(got, want, true, name);
}

/* Recode the sum of two equal wires; `one` holds one decoded wire. */
static void far_recode(const dcomm_codec *codec, const dcomm_codec_key &key, const void *wire,
                       size_t len, float *one, size_t rest, const std::string &name)
{
    const size_t most = dcomm_codec_max_bytes(codec, FAR), lens[] = {len, len};
    const void *const wires[] = {wire, wire};
    const float factor = 0.75f;
    expanse out(most), workspace(dcomm_cuda_recode_workspace_bytes(codec, FAR));
    area report(sizeof(dcomm_cuda_report));
    if (!far_room(name, {&out, &workspace})) {
        return;
    }
    const far_blocks last(80); /* 1024 elements each, where blocks multiply */
    bytes want(most);
    size_t written = 0;
    for (size_t i = FAR - rest; i < FAR; i++) {
        one[i] = (one[i] + one[i]) * factor;
    }
    good(dcomm_encode(codec, one, FAR, &key, want.data(), most, &written, NULL, NULL), name);
    want.resize(written);
    good(dcomm_cuda_recode(codec, wires, lens, 2, factor, NULL, NULL, FAR, &key, out.p, most,
                           workspace.p, cleared(report), NULL),
         name);
    same(out.part(0, written), want.data(), name);
    if (report_of(report).corrupt != 0) {
        wrong(name + ": a good wire was found corrupt");
    }
}

/* Compare with the CPU, which encodes the whole array. */
static void far_sparse(const char *spec)
{
    const size_t rest = 9 * 8192 + 5, begin = FAR - rest;
    dcomm_codec *codec = NULL;
    good(dcomm_codec_create(spec, &codec), spec);
    const size_t most = dcomm_codec_max_bytes(codec, FAR);
    const size_t scatter = dcomm_cuda_decode_workspace_bytes(codec, FAR);
    expanse in(4 * FAR), residual(4 * FAR), out(most), back(4 * FAR), decoding(scatter + 1);
    expanse workspace(dcomm_cuda_workspace_bytes(codec, FAR) + 1);
    area report(sizeof(dcomm_cuda_report));
    zeros host(FAR), sum(FAR);
    if (host.p == NULL || sum.p == NULL ||
        !far_room(spec, {&in, &residual, &out, &back, &decoding, &workspace})) {
        dcomm_codec_destroy(&codec);
        return;
    }
    const far_blocks last(24);
    const std::vector<float> x = numbers(rest, NORMAL);
    const dcomm_codec_key key = far_key(70000);
    bytes wire(most);
    size_t written = 0;
    dcomm_ledger ledger = dcomm_ledger();
    dcomm_codec_report seen = dcomm_codec_report();
    const void *from = out.p;
    std::copy(x.begin(), x.end(), host.p + begin);
    area::copy(in.p + 4 * begin, x.data(), 4 * rest, true);
    good(dcomm_encode_ledger(codec, host.p, NULL, NULL, FAR, &key, wire.data(), most, &written,
                             NULL, &seen, &ledger),
         spec);
    wire.resize(written);
    far_sparse_ledger(codec, key, in, out, seen, ledger, std::string("ledger of ") + spec);
    same(out.part(0, written), wire.data(), "encode with a ledger");
    good(dcomm_cuda_encode(codec, far_floats(in), far_floats(residual), far_floats(residual), FAR,
                           &key, out.p, most, workspace.p, cleared(report), NULL),
         spec);
    same(out.part(0, written), wire.data(), "encode");
    good(dcomm_decode_add(codec, wire.data(), written, sum.p, FAR), spec);
    good(dcomm_cuda_decode_add(codec, &from, &written, 1, far_floats(back), FAR, decoding.p,
                               cleared(report), NULL),
         spec);
    same(back.part(4 * begin, 4 * rest), sum.p + begin, "decoded");
    if (report_of(report).corrupt != 0) {
        wrong("a good wire was found corrupt");
    }
    const bytes left = residual.part(4 * begin, 4 * rest);
    for (size_t i = 0; i < rest; i++) {
        const float y = sum.p[begin + i];
        float l;
        std::memcpy(&l, &left[4 * i], sizeof l);
        if (y != 0 && l != x[i] - y && std::strncmp(spec, "randk", 5) != 0) {
            wrong("what is left of element " + std::to_string(begin + i));
            break;
        }
    }
    /* Quantized levels may be zero. Recoding then sends the very first elements, in blocks that
     * the shim leaves out. */
    if (std::strncmp(spec, "topk+qsgd", 9) != 0) {
        far_recode(codec, key, out.p, written, sum.p, rest, std::string("recode of ") + spec);
    }
    dcomm_codec_destroy(&codec);
    ok(std::string("2^31 + 5 elements, ") + spec);
}

static void test_far_sparse(void)
{
    for (const char *spec : {"topk:k=70000", "topk:k=70000,values=bf16", "threshold:k=70000",
                             "topk+qsgd:k=70000", "randk:k=70000,scale=none"}) {
        if (!late(spec)) {
            far_sparse(spec);
        }
    }
}

#endif
