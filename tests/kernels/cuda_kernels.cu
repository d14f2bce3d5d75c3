/* cuda_kernels.cu - compares every kernel's bytes with the CPU's; prints TAP. nvcc makes it a
 * program for a device, which is linked with the kernels. With DCOMMI_CUDA_SHIM a C++ compiler
 * makes it run the kernels on the CPU, once for each order in which threads may take turns. Some
 * cases also run in graphs that have seen other inputs before, and, on a device, behind a slow
 * kernel.
 *
 * usage: cuda_kernels [--small] [--seconds N] [--only GROUP] [--again N]
 *   --small      fewer and shorter cases, for slow checkers. On the CPU none runs in the
 *                plain order, which hides most mistakes; each of many codecs and
 *                operators runs in one other order
 *   --seconds N  start no case after N seconds; skipped tests are printed
 *   --only GROUP one group of tests, once (see `groups`), launched as a program would
 *   --again N    encode top-k so often on one workspace (default: 3)
 *
 * Outputs are poisoned first and lie between guard zones. Inputs hold numbers that are hard for
 * codecs: denormals, both zeros, NaN of all kinds, infinities, huge numbers, equal ones. */
#ifdef DCOMMI_CUDA_SHIM
#include "cuda_shim.h"
#define DCOMM_CUDA_IMPLEMENTATION
#endif
#include "dcomm.h"

#include "../../kernels/randk.h"
#include "../../kernels/topk_sample.h"
#include "../../kernels/wire.h"

#include "cuda_again.h"
#include "cuda_clip.h"
#include "cuda_dense.h"
#include "cuda_far.h"
#include "cuda_far_sparse.h"
#include "cuda_folds.h"
#include "cuda_halves.h"
#include "cuda_ledgers.h"
#include "cuda_lowrank.h"
#include "cuda_recode.h"
#include "cuda_sparse.h"

/* ---- arguments ---- */

static bool says(dcomm_status got, dcomm_status want, const char *words)
{
    return (got == want && std::strstr(dcomm_last_error(), words) != NULL) ||
           wrong(std::string(words) + ": " + dcomm_status_name(got) + ", " + dcomm_last_error());
}

static void test_arguments(void)
{
    dcomm_codec *codec = NULL, *products = NULL;
    good(dcomm_codec_create("qsgd", &codec), "qsgd");
    good(dcomm_codec_create("powersgd:nonfinite=pass", &products), "powersgd");
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
    says(dcomm_cuda_to_f32(x, a.at, 4, DCOMM_I32, 1, NULL), bad, "none of floats");
    says(dcomm_cuda_to_f32(x, a.at + 1, 4, DCOMM_BF16, 1, NULL), bad, "src is not aligned");
    says(dcomm_cuda_from_f32(NULL, x, 4, DCOMM_F16, NULL), bad, "dst is NULL");
    says(dcomm_cuda_add_scaled(x, 1, NULL, 4, NULL), bad, "y is NULL");
    says(dcomm_cuda_scatter(x, 4, NULL, x, 4, true, NULL), bad, "index is NULL");
    says(dcomm_cuda_feedback(DCOMM_CUDA_FEEDBACK_ADD, x, x, 0, NULL, 4, NULL, NULL), bad,
         "b is NULL");
    says(dcomm_cuda_feedback(DCOMM_CUDA_FEEDBACK_WIDEN, x, NULL, 0, NULL, 4, NULL, NULL), bad,
         "a is NULL");
    says(dcomm_cuda_feedback((dcomm_cuda_feedback_op)10, x, x, 0, x, 4, NULL, NULL), bad, "op 10");
    dcomm_cuda_clip *clip = reinterpret_cast<dcomm_cuda_clip *>(b.at);
    says(dcomm_cuda_feedback_clip(NULL, x, 4, 1, a.at, NULL), bad, "clip is NULL");
    says(dcomm_cuda_feedback_clip(clip, NULL, 4, 1, a.at, NULL), bad, "g is NULL");
    says(dcomm_cuda_feedback_clip(clip, x, 4, 1, a.at + 4, NULL), bad, "workspace is not");
    says(dcomm_cuda_feedback_clipped(NULL, x, clip, 1, x, 4, NULL), bad, "u is NULL");
    says(dcomm_cuda_feedback_clipped(x, x, NULL, 1, x, 4, NULL), bad, "clip is NULL");
    says(dcomm_cuda_feedback_clipped(x, x, clip, 1, NULL, 4, NULL), bad, "before is NULL");
    dcomm_cuda_sight *sight = reinterpret_cast<dcomm_cuda_sight *>(b.at);
    says(dcomm_cuda_look(x, 4, DCOMM_I32, 1, false, sight, a.at, NULL), bad, "not of floats");
    says(dcomm_cuda_look(x, 4, DCOMM_F32, 1, false, NULL, a.at, NULL), bad, "sight is NULL");
    says(dcomm_cuda_look(x, 4, DCOMM_F32, 1, false, sight, NULL, NULL), bad, "workspace is NULL");
    says(dcomm_cuda_look(a.at + 2, 4, DCOMM_F32, 1, false, sight, a.at, NULL), bad, "x is not");
    says(dcomm_cuda_encode(NULL, x, NULL, NULL, 4, NULL, b.at, 99, NULL, NULL, NULL), bad, "codec");
    says(dcomm_cuda_encode(products, x, NULL, NULL, 100, NULL, b.at, 4096, NULL, NULL, NULL), bad,
         "workspace is NULL");
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
    dcomm_cuda_ledger *ledger = reinterpret_cast<dcomm_cuda_ledger *>(b.at);
    says(dcomm_cuda_ledger_compare(ledger, NULL, x, NULL, 4, a.at + 8, NULL), bad,
         "not aligned to 64");
    const dcomm_codec_matrix shape = {4, 2, 2, 1, 1, 0};
    says(dcomm_cuda_powersgd_product(&shape, x, x, NULL, 0, NULL), bad, "x is NULL");
    says(dcomm_cuda_powersgd_product_ledger(&shape, x, x, NULL, x, a.at, ledger, NULL), bad,
         "x is NULL");
    says(dcomm_cuda_powersgd_product_ledger(&shape, x, NULL, x, x, a.at, ledger, NULL), bad,
         "q is NULL");
    says(dcomm_cuda_powersgd_product_ledger(&shape, x, x, x, NULL, a.at, NULL, NULL), bad,
         "ledger is NULL");
    says(dcomm_cuda_powersgd_product_ledger(&shape, x, x, x, x, NULL, ledger, NULL), bad,
         "workspace is NULL");
    says(dcomm_cuda_encode_ledger(codec, x, NULL, NULL, 100, NULL, b.at, len, a.at + 8, NULL,
                                  ledger, NULL),
         bad, "not aligned to 64");
    if (dcomm_cuda_workspace_bytes(codec, 100) != 0 ||
        dcomm_cuda_decode_workspace_bytes(codec, 100) != 0 ||
        dcomm_cuda_recode_workspace_bytes(codec, 100) != 0) {
        wrong("a workspace");
    }
    dcomm_codec_destroy(&codec);
    dcomm_codec_destroy(&products);
    ok("arguments");
}

/* With NULL for a stream, the kernel has ended when the call returns. */
static void test_no_stream(void)
{
    const size_t n = (size_t)1 << 20;
    area a(4 * n);
    float *x = reinterpret_cast<float *>(a.at);
    good(dcomm_cuda_scale(x, x, n, DCOMM_F32, 0.5, NULL), "scale without a stream");
#ifdef DCOMMI_CUDA_SHIM
    const unsigned long waits = shim_waits;
    good(dcomm_cuda_scale(x, x, n, DCOMM_F32, 0.5, NULL), "scale without a stream");
    if (shim_waits == waits) {
        wrong("nobody waits for a kernel without a stream");
    }
    good(dcomm_cuda_scale(x, x, n, DCOMM_F32, 0.5, cudaStreamLegacy), "scale on a stream");
    if (shim_waits != waits + 1) {
        wrong("a call waits for a kernel on a stream");
    }
#else
    if (cudaStreamQuery(cudaStreamLegacy) != cudaSuccess) {
        wrong("a kernel without a stream runs when its call has returned");
    }
#endif
    ok("no stream");
}

/* What dcomm_cuda_load finds of the arithmetic: all is right, or with -ftz=true it is not. */
static void test_check(void)
{
#ifdef DCOMMI_CUDA_SHIM
    static uint32_t got[DCOMMI_CUDA_CHECKS];
    const dcommi_cuda_checking p = dcommi_cuda_checking_of(got);
    for (bool flushes : {true, false}) {
        shim_flushes = flushes;
        dcommi_cuda_start(dcommi_cuda_check_kernel, 1, DCOMMI_CUDA_CHECKS, p, NULL);
        const dcomm_status status = dcommi_cuda_check_result("dcomm_cuda_load", got);
        if (flushes) {
            says(status, DCOMM_ERR_SYSTEM,
                 "sum of two denormal numbers is 0x00000000, not 0x00000003");
            says(status, DCOMM_ERR_SYSTEM, "without -use_fast_math and -ftz=true");
        } else {
            good(status, "the check");
        }
    }
    got[1]++;
    says(dcommi_cuda_check_result("dcomm_cuda_load", got), DCOMM_ERR_SYSTEM,
         "a product that is denormal is 0x00000301, not 0x00000300");
#else
    for (int turn = 0; turn < 2; turn++) {
        good(dcomm_cuda_load(), "dcomm_cuda_load");
    }
#endif
    ok("arithmetic is checked");
}

static void test_folds(void)
{
    for (int dtype = 0; dtype < DCOMM_DTYPE_COUNT; dtype++) {
        for (int op = 0; op < DCOMM_OP_COUNT; op++) {
            if (taken(dtype + op)) {
                test_reduce((dcomm_dtype)dtype, (dcomm_op)op);
            }
        }
        test_scale((dcomm_dtype)dtype);
    }
    for (dcomm_dtype dtype : {DCOMM_F64, DCOMM_F32, DCOMM_F16, DCOMM_BF16}) {
        test_convert(dtype);
    }
    test_reduce_fp8();
}

static void test_codecs(void)
{
    int turn = 0;
    for (const char *spec : specs) {
        if (taken(turn)) {
            test_codec(spec, turn);
        }
        turn++;
    }
    test_recode();
    test_beyond();
}

static void test_arrays(void)
{
    test_add_scaled();
    test_scatter();
    test_feedback();
    test_clip();
    test_look();
}

static void test_ledgers(void)
{
    test_ledger();
    test_ledger_again();
    test_compare();
}

/* In the order in which a run that is broken off teaches the most. */
static const struct {
    const char *name;
    void (*run)(void);
} groups[] = {
    {"codecs", test_codecs},   {"sparse", test_sparse_all}, {"again", test_again},
    {"lowrank", test_lowrank}, {"ledgers", test_ledgers},   {"arrays", test_arrays},
    {"folds", test_folds},     {"halves", test_halves},
};

static void test_kernels(void)
{
    for (const auto &group : groups) {
        group.run();
    }
}

/* Run one group. Return false if there is none of this name. */
static bool test_group(const char *name)
{
    for (const auto &group : groups) {
        if (std::strcmp(group.name, name) == 0) {
            group.run();
            return true;
        }
    }
    return false;
}

static void test_once(void)
{
    test_kernels();
    if (!small) {
        test_far();
        test_far_sparse();
        far_clip();
        far_lowrank();
        far_start();
        far_product_ledger();
    }
    test_arguments();
    test_no_stream();
    test_check();
}

#ifdef DCOMMI_CUDA_SHIM
static void test_all(void)
{
    for (shim_order = small ? 1 : 0; shim_order < 3; shim_order++) {
        launch_now = shim_order == 2 ? IN_GRAPH : PLAIN;
        std::printf("# threads take turns in order %d\n", shim_order);
        test_once();
        small = true; /* small sizes show what other orders find */
    }
}
#else
static void test_all(void)
{
    test_once();
    if (!small) {
        small = true;
        for (int how = IN_GRAPH; how < LAUNCH_MODES; how++) {
            launch_now = (launch_mode)how;
            test_kernels();
        }
    }
}
#endif

static int usage(void)
{
    std::fprintf(stderr, "usage: cuda_kernels [--small] [--seconds N] [--only GROUP] [--again N]\n"
                         "groups:");
    for (const auto &group : groups) {
        std::fprintf(stderr, " %s", group.name);
    }
    std::fprintf(stderr, "\n");
    return 2;
}

int main(int argc, char **argv)
{
    const char *only = NULL;
    for (int i = 1; i < argc; i++) {
        if (std::strcmp(argv[i], "--small") == 0) {
            small = in_turns = true;
        } else if (std::strcmp(argv[i], "--seconds") == 0 && i + 1 < argc) {
            time_for = std::atof(argv[++i]);
        } else if (std::strcmp(argv[i], "--only") == 0 && i + 1 < argc) {
            only = argv[++i];
        } else if (std::strcmp(argv[i], "--again") == 0 && i + 1 < argc) {
            times_again = std::atoi(argv[++i]);
        } else {
            return usage();
        }
    }
#ifndef DCOMMI_CUDA_SHIM
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        std::printf("# skipped: kernels on a device (there is none)\n");
        return 0;
    }
#endif
    if (only == NULL) {
        test_all();
    } else if (!test_group(only)) {
        return usage();
    }
    return failures > 0;
}
