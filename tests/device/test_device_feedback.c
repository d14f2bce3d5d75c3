/* test_device_feedback.c - error feedback and ledgers of compressed all-reduces of device memory.
 * Results and residuals have the same bits as in host memory, and ledgers the same figures. */
#define _GNU_SOURCE
#include "device_ranks.h"
#ifdef CUDA_HOST_STAND_IN
#include "cuda_host.h"
#endif

#include <criterion/criterion.h>
#include <math.h>

typedef struct where {
    ranks_place place;
    bool threads, in_place, late;
    dcomm_feedback_variant variant; /* the variant for test `between` */
    bool bf16, products, spread;
} where;

static const char *const specs[] = {"topk:k=0.02",
                                    "topk:k=0.1,values=bf16",
                                    "threshold:k=0.05",
                                    "topk+qsgd:k=0.03",
                                    "qsgd:bits=4,rounding=nearest",
                                    "qsgd:bits=8",
                                    "qsgd:bits=8,bucket=128,norm=two,rounding=nearest",
                                    "sign",
                                    "fp8",
                                    "f16",
                                    "bf16"};
enum { SPECS = sizeof specs / sizeof *specs, SPLIT = 3, SPARSE = 4, STEPS = 4 };

/* Feedback other than the classic variant in f32, or with a codec that scales or sums. */
static const struct {
    const char *spec;
    dcomm_feedback_opts opts;
} others[] = {
    {"qsgd:bits=4", {.scale = true}},
    {"tern:nonfinite=zero", {.scale = true, .bf16 = true}},
    {"topk:k=0.03,nonfinite=zero", {.bf16 = true}},
    {"sign", {.bf16 = true}},
    {"bf16", {.variant = DCOMM_FEEDBACK_EF21}},
    {"topk+qsgd:k=0.05,nonfinite=zero", {.variant = DCOMM_FEEDBACK_EF21}},
    {"topk:k=0.04,nonfinite=zero", {.variant = DCOMM_FEEDBACK_EF21}},
    {"threshold:k=0.05", {.variant = DCOMM_FEEDBACK_EF21}},
    {"qsgd:bits=4,nonfinite=pass", {.variant = DCOMM_FEEDBACK_EF21, .scale = true}},
    {"topk:k=0.02,nonfinite=zero", {.variant = DCOMM_FEEDBACK_DGC}},
    {"threshold:k=0.05", {.variant = DCOMM_FEEDBACK_DGC, .bf16 = true, .momentum = 0.5}},
    {"topk:k=0.001", {.variant = DCOMM_FEEDBACK_DGC, .warmup_steps = STEPS, .momentum = -1}},
    {"topk:k=0.02,nonfinite=zero", {.variant = DCOMM_FEEDBACK_DGC, .clip = 40}},
    {"threshold:k=0.05", {.variant = DCOMM_FEEDBACK_DGC, .bf16 = true, .clip = 7}},
    {"topk:k=0.1,values=bf16", {.variant = DCOMM_FEEDBACK_DGC, .clip = 1e6, .momentum = -1}},
    {"randk:k=0.05,scale=none,nonfinite=zero", {.momentum = 0}},
    {"randk:k=0.05", {.scale = true}},
    {"randk:k=0.1,scale=none", {.bf16 = true}},
    {"randk:k=0.1,scale=none", {.variant = DCOMM_FEEDBACK_EF21}},
    {"powersgd:nonfinite=zero", {.bf16 = true}},
    {"powersgd:rank=3,turns=2", {.variant = DCOMM_FEEDBACK_EF21}},
    {"powersgd:rows=30,nonfinite=pass", {.variant = DCOMM_FEEDBACK_EF21}},
    {"powersgd:rank=3,nonfinite=pass", {.seed = 1}},
};

/* Linear codecs: summed before they are decoded. */
static const char *const linear[] = {"randk:k=0.05", "powersgd", "powersgd:rank=1,nonfinite=zero",
                                     "powersgd:rank=5,rows=40,turns=2",
                                     "powersgd:rank=3,nonfinite=pass"};
enum { OTHERS = sizeof others / sizeof *others };

static float gradient(int rank, int step, size_t i)
{
    size_t at = (i * 37 + (size_t)rank * 101 + (size_t)step * 1009) % 10007;
    return sinf((float)at) * (i % 97 == 0 ? 8.0f : 1.0f);
}

static dcomm_comm *join(int rank, int n, procs_shared *s, const where *w)
{
    if (!w->threads || rank == 0) {
        ranks_settle(rank, n, w->place);
    }
    return ranks_join(rank, n, s, NULL);
}

/* ---- one side: host memory or a device ---- */

typedef struct side {
    bool device;
    dcomm_feedback *feedback;
    dcomm_ledger ledger;
    dcomm_codec_report report;
    float *x, *out; /* the input, and the result */
    float *there;
} side;

static void side_open(side *s, bool device, const dcomm_codec *codec, size_t count,
                      const dcomm_feedback_opts *opts)
{
    *s = (side){
        .device = device, .x = malloc(count * sizeof *s->x), .out = malloc(count * sizeof *s->out)};
    PROCS_TRUE(s->x != NULL && s->out != NULL);
    CUDA_OK(cudaMalloc((void **)&s->there, count * sizeof *s->there));
    if (opts != NULL) {
        RANKS_OK(dcomm_feedback_create(codec, count, opts, &s->feedback));
    }
}

static void side_close(side *s)
{
    RANKS_OK(dcomm_feedback_destroy(&s->feedback));
    device_free(cudaFree, s->there);
    free(s->x);
    free(s->out);
}

static dcomm_status side_step(side *s, dcomm_comm *comm, int step, size_t count, dcomm_op op,
                              dcomm_coll_opts opts)
{
    const size_t bytes = count * sizeof *s->x;
    const bool odd =
        opts.codec != NULL && (strstr(dcomm_codec_spec(opts.codec), "nonfinite=zero") != NULL ||
                               strstr(dcomm_codec_spec(opts.codec), "nonfinite=pass") != NULL);
    for (size_t i = 0; i < count; i++) {
        s->x[i] = gradient(dcomm_comm_rank(comm), step, i);
        if (odd && i % 1999 == (size_t)step) {
            s->x[i] = i % 2 == 0 ? NAN : -INFINITY;
        }
    }
    opts.feedback = s->feedback;
    opts.codec_ledger = &s->ledger;
    opts.codec_report = &s->report;
    if (!s->device) {
        return dcomm_allreduce(comm, s->x, s->out, count, DCOMM_F32, op, &opts);
    }
    device_put(s->there, s->x, bytes);
    dcomm_status status = dcomm_allreduce(comm, s->there, s->there, count, DCOMM_F32, op, &opts);
    if (opts.stream != NULL) {
        CUDA_OK(cudaStreamSynchronize(opts.stream));
        status = status < 0 ? status : dcomm_comm_status(comm);
    }
    CUDA_OK(cudaMemcpy(s->out, s->there, bytes, cudaMemcpyDeviceToHost));
    return status;
}

static void *saved(const dcomm_feedback *fb, size_t *bytes)
{
    *bytes = dcomm_feedback_save_bytes(fb);
    void *to = malloc(*bytes);
    PROCS_TRUE(to != NULL);
    RANKS_OK(dcomm_feedback_save(fb, to, *bytes));
    return to;
}

static void same_states(const dcomm_feedback *a, const dcomm_feedback *b, const char *what)
{
    size_t x_bytes, y_bytes;
    void *x = saved(a, &x_bytes), *y = saved(b, &y_bytes);
    PROCS_CHECK(x_bytes == y_bytes && memcmp(x, y, x_bytes) == 0, "%s: the states differ", what);
    free(x);
    free(y);
}

/* A device adds a ledger's f64 sums in another order than the CPU: see kernels/cuda/ledger.cuh. */
#ifdef CUDA_HOST_STAND_IN
#define WITHIN 1e-12
#else
#define WITHIN 1e-6
#endif

static void near(double got, double want, const char *field, const char *what)
{
    PROCS_CHECK(fabs(got - want) <= WITHIN * fabs(want) || (isnan(got) && isnan(want)),
                "%s: %s is %.17g, not %.17g", what, field, got, want);
}

static void same_ledgers(const dcomm_ledger *got, const dcomm_ledger *want, const char *what)
{
    PROCS_CHECK(got->count == want->count && got->clipped == want->clipped &&
                    got->nonfinite == want->nonfinite && got->kept == want->kept &&
                    got->encoded == want->encoded && got->wire_bytes == want->wire_bytes,
                "%s: %lu compared, %lu kept, %lu encoded, %lu bytes; not %lu, %lu, %lu, %lu", what,
                (unsigned long)got->count, (unsigned long)got->kept, (unsigned long)got->encoded,
                (unsigned long)got->wire_bytes, (unsigned long)want->count,
                (unsigned long)want->kept, (unsigned long)want->encoded,
                (unsigned long)want->wire_bytes);
    near(got->nmse, want->nmse, "nmse", what);
    near(got->cosine, want->cosine, "cosine", what);
    PROCS_CHECK(fabs(got->mean_signed_error - want->mean_signed_error) <= WITHIN,
                "%s: mean_signed_error is %.17g, not %.17g", what, got->mean_signed_error,
                want->mean_signed_error);
    near(got->bits, want->bits, "bits", what);
    near(got->residual_norm, want->residual_norm, "residual_norm", what);
    near(got->contraction, want->contraction, "contraction", what);
}

static void same_results(const side *got, const side *want, size_t count, const char *what)
{
    for (size_t i = 0; i < count; i++) {
        PROCS_CHECK(memcmp(&got->out[i], &want->out[i], sizeof *got->out) == 0,
                    "%s: element %zu is %g, not %g", what, i, (double)got->out[i],
                    (double)want->out[i]);
    }
    PROCS_CHECK(got->report.bytes == want->report.bytes && got->report.kept == want->report.kept,
                "%s: %zu bytes, %zu kept; not %zu, %zu", what, got->report.bytes, got->report.kept,
                want->report.bytes, want->report.kept);
}

/* ---- the same bits ---- */

static void device_of(const dcomm_feedback *fb, int device)
{
    dcomm_feedback_info info;
    RANKS_OK(dcomm_feedback_get_info(fb, &info));
    PROCS_CHECK(info.device == device, "the state lies on %d, not %d", info.device, device);
}

/* Run some steps and compare; the last ones start from a saved state. */
static void take(dcomm_comm *comm, const dcomm_codec *codec, size_t count, dcomm_op op,
                 const dcomm_feedback_opts *feedback, const dcomm_coll_opts *opts, void *stream)
{
    side here, there;
    char what[160];
    side_open(&here, false, codec, count, feedback);
    side_open(&there, true, codec, count, feedback);
    for (int step = 0; step < STEPS; step++) {
        dcomm_coll_opts on = *opts;
        snprintf(what, sizeof what, "%s by %s, %zu elements, %s%s, step %d",
                 dcomm_codec_spec(codec), opts->algo != NULL ? opts->algo : "auto", count,
                 dcomm_op_name(op), feedback == NULL ? ", no feedback" : "", step);
        on.codec_step = feedback == NULL ? (uint64_t)step + 1 : 0;
        dcomm_status status = side_step(&here, comm, step, count, op, on);
        on.stream = step % 2 ? stream : NULL;
        dcomm_status got = side_step(&there, comm, step, count, op, on);
        PROCS_CHECK(got == status, "%s: %s (%s), not %s", what, dcomm_status_name(got),
                    dcomm_last_error(), dcomm_status_name(status));
        if (status < 0) { /* these ranks cannot use the algorithm */
            break;
        }
        same_results(&there, &here, count, what);
        same_ledgers(&there.ledger, &here.ledger, what);
        if (feedback == NULL) {
            continue;
        }
        device_of(there.feedback, 0);
        same_states(there.feedback, here.feedback, what);
        if (step == STEPS / 2) {
            size_t bytes;
            void *from = saved(there.feedback, &bytes);
            RANKS_OK(dcomm_feedback_destroy(&there.feedback));
            RANKS_OK(dcomm_feedback_load(codec, from, bytes, &there.feedback));
            device_of(there.feedback, -1);
            free(from);
        }
    }
    side_close(&here);
    side_close(&there);
}

static int same(int rank, int n, procs_shared *s, void *arg)
{
    static const char *const algos[] = {"coded_allgather", "coded_two_shot", "coded_hier"};
    static const char *const sparse[] = {"coded_allgather", "coded_two_shot", "coded_hier",
                                         "coded_sparse"};
    const size_t counts[] = {2049, 10011, 70003};
    const where *w = arg;
    dcomm_comm *comm = join(rank, n, s, arg);
    cudaStream_t stream;
    CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
#ifdef CUDA_HOST_STAND_IN
    cuda_host_faults faults = {.delay_s = w->late ? 0.0002 : 0, .shuffle = (uint64_t)rank + 1};
    cuda_host_set_faults(&faults);
#endif
    const int thin = procs_third();
    for (int c = n % thin; c < SPECS; c += w->late ? 3 : thin) {
        dcomm_codec *codec = NULL;
        RANKS_OK(dcomm_codec_create(specs[c], &codec));
        for (int a = 0; a < (c < SPLIT ? 4 : 3); a++) {
            dcomm_feedback_opts feedback = {
                .seed = 7, .tensor = (uint32_t)c, .in_place = w->in_place};
            dcomm_coll_opts opts = {
                .codec = codec, .algo = c < SPARSE ? sparse[a] : algos[a], .codec_seed = 5};
            dcomm_op op = (a + c) % 2 ? DCOMM_AVG : DCOMM_SUM;
            take(comm, codec, counts[(a + c) % 3], op, &feedback, &opts, stream);
            take(comm, codec, counts[(a + c) % 3], op, NULL, &opts, stream);
        }
        RANKS_OK(dcomm_codec_destroy(&codec));
    }
    for (size_t c = (size_t)(n % thin); c < sizeof linear / sizeof *linear; c += (size_t)thin) {
        dcomm_codec *codec = NULL;
        RANKS_OK(dcomm_codec_create(linear[c], &codec));
        dcomm_feedback_opts feedback = {
            .seed = 7, .tensor = (uint32_t)c, .in_place = w->in_place, .scale = true};
        dcomm_coll_opts opts = {.codec = codec, .algo = "coded_linear", .codec_seed = 5};
        dcomm_op op = c % 2 ? DCOMM_SUM : DCOMM_AVG;
        take(comm, codec, counts[(c + 1) % 3], op, NULL, &opts, stream);
        take(comm, codec, counts[(c + 1) % 3], op, &feedback, &opts, stream);
        RANKS_OK(dcomm_codec_destroy(&codec));
    }
    CUDA_OK(cudaStreamDestroy(stream));
    return ranks_leave(&comm);
}

/* Run the same comparison for feedback other than the classic variant in f32. */
static int same_others(int rank, int n, procs_shared *s, void *arg)
{
    static const char *const algos[] = {"coded_allgather", "coded_two_shot", "coded_sparse",
                                        "coded_hier"};
    const size_t counts[] = {2049, 10011, 30003};
    enum { ALGOS = sizeof algos / sizeof *algos };
    const where *w = arg;
    dcomm_comm *comm = join(rank, n, s, arg);
    cudaStream_t stream;
    CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    const int thin = procs_third();
    for (int c = n % thin; c < OTHERS; c += thin) {
        const bool drawn = strncmp(others[c].spec, "randk", 5) == 0;
        const bool sums = drawn || strncmp(others[c].spec, "powersgd", 8) == 0;
        dcomm_codec *codec = NULL;
        RANKS_OK(dcomm_codec_create(others[c].spec, &codec));
        const bool split = strncmp(others[c].spec, "topk:", 5) == 0 ||
                           strncmp(others[c].spec, "threshold", 9) == 0;
        const bool whole = others[c].opts.clip > 0; /* coded_hier cannot clip */
        for (int a = 0; a < (whole ? ALGOS - 1 : ALGOS); a++) {
            const bool linear_now = a == 2 && sums;
            if ((a == 2 && !split && !sums) || (drawn && !linear_now)) {
                continue;
            }
            dcomm_feedback_opts feedback = others[c].opts;
            dcomm_coll_opts opts = {.codec = codec, .algo = linear_now ? "coded_linear" : algos[a]};
            dcomm_op op = (a + c) % 2 ? DCOMM_AVG : DCOMM_SUM;
            feedback.seed = 11;
            feedback.in_place = w->in_place;
            take(comm, codec, counts[(a + c) % 3], op, &feedback, &opts, stream);
        }
        RANKS_OK(dcomm_codec_destroy(&codec));
    }
    CUDA_OK(cudaStreamDestroy(stream));
    return ranks_leave(&comm);
}

static void on(int n, where w, procs_fn fn)
{
    cr_assert_eq(device_run(n, w.threads, 100, fn, &w), 0, "%d ranks, %s%s", n,
                 ranks_place_name(w.place), w.threads ? ", threads" : "");
}

Test(device_feedback, same_bits, .timeout = 280)
{
    on(2, (where){.place = RANKS_LOCAL}, same);
    on(3, (where){.place = RANKS_HOSTS, .in_place = true}, same);
    if (test_full()) {
        on(4, (where){.place = RANKS_PAIRS}, same);
    }
    on(3, (where){.threads = true}, same);
    on(4, (where){.place = RANKS_PAIRS, .late = true}, same);
}

Test(device_feedback, same_bits_others, .timeout = 200)
{
    on(2, (where){.place = RANKS_LOCAL}, same_others);
    on(3, (where){.place = RANKS_HOSTS, .in_place = true}, same_others);
    on(4, (where){.place = RANKS_PAIRS}, same_others);
}

/* ---- between steps ---- */

static void both(side *here, side *there, dcomm_comm *comm, int step, size_t count,
                 const dcomm_coll_opts *opts, const char *what)
{
    RANKS_OK(side_step(here, comm, step, count, DCOMM_AVG, *opts));
    RANKS_OK(side_step(there, comm, step, count, DCOMM_AVG, *opts));
    same_results(there, here, count, what);
    same_states(there->feedback, here->feedback, what);
}

/* Undo steps, on either side, with owners and without. Then rescale and reset the state, and give
 * it a ledger. */
static int between(int rank, int n, procs_shared *s, void *arg)
{
    enum { COUNT = 20011 };
    const where *w = arg;
    const bool ef21 = w->variant == DCOMM_FEEDBACK_EF21; /* coded_hier refuses EF21 */
    const char *const algos[] = {w->products ? "coded_linear"
                                 : w->spread ? "coded_sparse"
                                             : "coded_two_shot",
                                 w->products ? "coded_linear" : "coded_allgather",
                                 w->products         ? "coded_linear"
                                 : ef21 || w->spread ? "coded_two_shot"
                                                     : "coded_hier"};
    dcomm_comm *comm = join(rank, n, s, arg);
    dcomm_codec *codec = NULL;
    RANKS_OK(dcomm_codec_create(w->products ? "powersgd:rank=3" : "topk:k=0.05", &codec));
    dcomm_feedback_opts feedback = {.seed = 3, .variant = w->variant, .bf16 = w->bf16};
    side here, there;
    int step = 0;
    side_open(&here, false, codec, COUNT, &feedback);
    side_open(&there, true, codec, COUNT, &feedback);
#ifdef CUDA_HOST_STAND_IN /* a call that cannot allocate residuals just fails */
    CUDA_OK(cudaMemset(there.there, 0, COUNT * sizeof *there.there));
    RANKS_OK(dcomm_allreduce(comm, there.there, there.there, 100, DCOMM_F32, DCOMM_SUM, NULL));
    for (unsigned k = 1; k <= 2; k++) {
        cuda_host_faults faults = {.fail_malloc = k};
        dcomm_coll_opts opts = {.feedback = there.feedback};
        cuda_host_set_faults(&faults);
        dcomm_status status =
            dcomm_allreduce(comm, there.there, there.there, COUNT, DCOMM_F32, DCOMM_SUM, &opts);
        PROCS_CHECK(status == DCOMM_ERR_NO_MEMORY, "%s", dcomm_status_name(status));
        cuda_host_set_faults(&(cuda_host_faults){0});
        device_of(there.feedback, -1);
    }
#endif
    for (int a = 0; a < 6; a++, step++) {
        dcomm_coll_opts opts = {.codec = codec, .algo = algos[a % 3]};
        size_t bytes, after;
        both(&here, &there, comm, step, COUNT, &opts, algos[a % 3]);
        void *was = saved(there.feedback, &bytes);
        both(&here, &there, comm, 50 + step, COUNT, &opts, "another step");
        RANKS_OK(dcomm_feedback_undo(here.feedback));
        RANKS_OK(dcomm_feedback_undo(there.feedback));
        void *is = saved(there.feedback, &after);
        PROCS_CHECK(bytes == after && memcmp(was, is, bytes) == 0, "%s: undone, it differs",
                    algos[a % 3]);
        free(was);
        free(is);
        same_states(there.feedback, here.feedback, "undone");
        there.device = a != 3; /* one step in host memory, then back */
        device_of(there.feedback, a == 4 ? -1 : 0);
        dcomm_feedback_info x, y;
        RANKS_OK(dcomm_feedback_get_info(here.feedback, &x));
        RANKS_OK(dcomm_feedback_get_info(there.feedback, &y));
        PROCS_TRUE(x.worker_norm == y.worker_norm && x.owner_norm == y.owner_norm);
    }
    dcomm_coll_opts opts = {.codec = codec, .algo = algos[0]};
    both(&here, &there, comm, step, COUNT, &opts, "before it is rescaled");
    RANKS_OK(dcomm_feedback_rescale(here.feedback, 0.3));
    RANKS_OK(dcomm_feedback_rescale(there.feedback, 0.3));
    both(&here, &there, comm, step + 1, COUNT, &opts, "rescaled");
    double lost[2];
    RANKS_OK(dcomm_feedback_recover(here.feedback, DCOMM_FEEDBACK_RESET, &lost[0]));
    RANKS_OK(dcomm_feedback_recover(there.feedback, DCOMM_FEEDBACK_RESET, &lost[1]));
    PROCS_TRUE(lost[0] == lost[1] && lost[0] > 0);
    both(&here, &there, comm, step + 2, COUNT, &opts, "reset");
    /* The state's own ledger. */
    dcomm_ledger own[2] = {{0}};
    here.ledger = there.ledger = (dcomm_ledger){0};
    both(&here, &there, comm, step + 3, COUNT, &opts, "with a call's ledger");
    same_ledgers(&there.ledger, &here.ledger, "a call's ledger");
    opts.feedback = there.feedback;
    RANKS_OK(dcomm_feedback_set_ledger(there.feedback, &own[0]));
    RANKS_OK(dcomm_feedback_set_ledger(here.feedback, &own[1]));
    RANKS_OK(dcomm_allreduce(comm, there.there, there.there, COUNT, DCOMM_F32, DCOMM_AVG, &opts));
    opts.feedback = here.feedback;
    RANKS_OK(dcomm_allreduce(comm, here.out, here.out, COUNT, DCOMM_F32, DCOMM_AVG, &opts));
    same_ledgers(&own[0], &own[1], "a state's ledger");
    PROCS_TRUE(own[0].encoded > 0);
    dcomm_feedback_step begin = {.x = here.x};
    RANKS_OK(dcomm_feedback_begin(there.feedback, &begin)); /* the state moves to the host */
    device_of(there.feedback, -1);
    side_close(&here);
    side_close(&there);
    RANKS_OK(dcomm_codec_destroy(&codec));
    return ranks_leave(&comm);
}

Test(device_feedback, between_steps, .timeout = 120)
{
    on(4, (where){.place = RANKS_PAIRS}, between);
    on(4, (where){.place = RANKS_PAIRS, .variant = DCOMM_FEEDBACK_EF21}, between);
    on(3, (where){.place = RANKS_HOSTS, .spread = true}, between);
    on(2, (where){.place = RANKS_HOSTS, .products = true, .bf16 = true}, between);
    if (test_full()) {
        on(4, (where){.place = RANKS_PAIRS, .variant = DCOMM_FEEDBACK_DGC, .bf16 = true}, between);
        on(2, (where){.place = RANKS_LOCAL, .spread = true, .bf16 = true}, between);
        on(4, (where){.place = RANKS_PAIRS, .products = true}, between);
        on(3, (where){.place = RANKS_LOCAL, .products = true, .variant = DCOMM_FEEDBACK_EF21},
           between);
    }
}

/* Several calls on one stream, without waiting. The results and the residuals add up to the
 * inputs. */
static int streamed(int rank, int n, procs_shared *s, void *arg)
{
    enum { COUNT = 9001, MANY = 6 };
    dcomm_comm *comm = join(rank, n, s, arg);
    dcomm_codec *codec = NULL;
    dcomm_feedback *fb = NULL;
    cudaStream_t stream;
    float *host[MANY], *device[MANY], *out = malloc(COUNT * sizeof *out);
    double *in = calloc(COUNT, sizeof *in), *all = calloc(COUNT, sizeof *all);
    PROCS_TRUE(out != NULL && in != NULL && all != NULL);
    CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    RANKS_OK(dcomm_codec_create("topk:k=0.05", &codec));
    RANKS_OK(dcomm_feedback_create(codec, COUNT, NULL, &fb));
    dcomm_coll_opts opts = {.feedback = fb, .stream = stream, .algo = "coded_allgather"};
    for (int k = 0; k < MANY; k++) {
        CUDA_OK(cudaMallocHost((void **)&host[k], COUNT * sizeof *out));
        CUDA_OK(cudaMalloc((void **)&device[k], COUNT * sizeof *out));
        for (size_t i = 0; i < COUNT; i++) {
            host[k][i] = gradient(rank, k, i);
            in[i] += (double)host[k][i];
        }
        CUDA_OK(cudaMemcpyAsync(device[k], host[k], COUNT * sizeof *out, cudaMemcpyHostToDevice,
                                stream));
        RANKS_OK(dcomm_allreduce(comm, device[k], device[k], COUNT, DCOMM_F32, DCOMM_SUM, &opts));
    }
    CUDA_OK(cudaStreamSynchronize(stream));
    RANKS_OK(dcomm_comm_status(comm));
    size_t bytes;
    unsigned char *state = saved(fb, &bytes);
    float residual[COUNT]; /* it comes last, before the hash */
    memcpy(residual, state + bytes - 8 - (4 * COUNT + 7) / 8 * 8, sizeof residual);
    for (size_t i = 0; i < COUNT; i++) {
        in[i] -= (double)residual[i];
    }
    RANKS_OK(dcomm_allreduce(comm, in, all, COUNT, DCOMM_F64, DCOMM_SUM, NULL));
    for (int k = 0; k < MANY; k++) {
        CUDA_OK(cudaMemcpy(out, device[k], COUNT * sizeof *out, cudaMemcpyDeviceToHost));
        for (size_t i = 0; i < COUNT; i++) {
            all[i] -= (double)out[i];
        }
        CUDA_OK(cudaFreeHost(host[k]));
        device_free(cudaFree, device[k]);
    }
    for (size_t i = 0; i < COUNT; i++) {
        PROCS_CHECK(fabs(all[i]) < 1e-4, "element %zu: %g is lost", i, all[i]);
    }
    free(state);
    free(out);
    free(in);
    free(all);
    RANKS_OK(dcomm_feedback_destroy(&fb));
    RANKS_OK(dcomm_codec_destroy(&codec));
    CUDA_OK(cudaStreamDestroy(stream));
    return ranks_leave(&comm);
}

Test(device_feedback, streamed, .timeout = 120)
{
    on(3, (where){.place = RANKS_LOCAL}, streamed);
    on(2, (where){.threads = true}, streamed);
}

#ifdef CUDA_HOST_STAND_IN /* the stand-in can be made to fail */
/* The nth copy, or kernel, fails. */
typedef struct failing {
    unsigned nth;
    bool kernel;
    const char *spec, *algo;
    dcomm_feedback_opts feedback;
} failing;

/* Something fails on rank 0 in the third step. The state is stale on every rank whose call failed.
 * After RETRY it is as before the step. */
static int fails(int rank, int n, procs_shared *s, void *arg)
{
    enum { COUNT = 60013 };
    static const cuda_host_faults none;
    const failing *f = arg;
    ranks_settle(rank, n, RANKS_PAIRS);
    dcomm_comm *comm = ranks_join(rank, n, s, NULL);
    dcomm_codec *codec = NULL;
    side t;
    RANKS_OK(dcomm_codec_create(f->spec, &codec));
    dcomm_coll_opts opts = {.codec = codec, .algo = f->algo, .timeout_s = 20};
    side_open(&t, true, codec, COUNT, &f->feedback);
    RANKS_OK(side_step(&t, comm, 0, COUNT, DCOMM_SUM, opts));
    RANKS_OK(side_step(&t, comm, 1, COUNT, DCOMM_SUM, opts));
    size_t bytes, after;
    void *was = saved(t.feedback, &bytes);
    procs_post(s, rank, 1);
    while (!procs_all(s, n, 1, -1)) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    cuda_host_faults faults = {.fail_copy = rank == 0 && !f->kernel ? f->nth : 0,
                               .fail_kernel = rank == 0 && f->kernel ? f->nth : 0};
    opts.feedback = t.feedback;
    cuda_host_set_faults(&faults);
    dcomm_status status =
        dcomm_allreduce(comm, t.there, t.there, COUNT, DCOMM_F32, DCOMM_SUM, &opts);
    cuda_host_set_faults(&none);
    dcomm_feedback_info info;
    RANKS_OK(dcomm_feedback_get_info(t.feedback, &info));
    PROCS_CHECK(info.stale == (status < 0), "%s, %u: %s, stale %d", f->algo, f->nth,
                dcomm_status_name(status), info.stale);
    if (status < 0) {
        RANKS_OK(dcomm_feedback_recover(t.feedback, DCOMM_FEEDBACK_RETRY, NULL));
    } else {
        RANKS_OK(dcomm_feedback_undo(t.feedback));
    }
    void *is = saved(t.feedback, &after);
    PROCS_CHECK(bytes == after && memcmp(was, is, bytes) == 0, "%s, %u: %s, not as before", f->algo,
                f->nth, dcomm_status_name(status));
    free(was);
    free(is);
    side_close(&t);
    RANKS_OK(dcomm_codec_destroy(&codec));
    (void)dcomm_comm_destroy(&comm); /* may return an error after this rank's part */
    int left = procs_leaks();
    return left != 0 ? left : status == DCOMM_OK ? 10 : 20;
}

/* Return 1 if rank 0 has failed, else 0. */
static unsigned failures_of(failing *f)
{
    int ended[PROCS_MAX];
    procs_run(4, 40, fails, f, ended);
    for (int r = 0; r < 4; r++) { /* ranks that had done their part may have succeeded */
        cr_assert(ended[r] == 10 || ended[r] == 20, "%s, %s %u: rank %d: %d", f->algo,
                  f->kernel ? "kernel" : "copy", f->nth, r, ended[r]);
    }
    return ended[0] == 20;
}

Test(device_feedback, failing_copies, .timeout = 200)
{
    static const char *const algos[] = {"coded_allgather", "coded_two_shot", "coded_hier",
                                        "coded_sparse", "coded_linear"};
    static const dcomm_feedback_opts states[] = {{.variant = DCOMM_FEEDBACK_EF21},
                                                 {.bf16 = true},
                                                 {.variant = DCOMM_FEEDBACK_DGC, .bf16 = true},
                                                 {.variant = DCOMM_FEEDBACK_EF21},
                                                 {.variant = DCOMM_FEEDBACK_EF21}};
    const unsigned few = test_full() ? 1 : 5; /* 1, 6, 11, 15 */
    for (int a = 0; a < 5; a++) {
        unsigned failures = 0;
        for (unsigned copy = 1; copy <= 16; copy += copy < 8 ? few : 4) {
            failures += failures_of(&(failing){
                .nth = copy,
                .spec = a < 4 ? "threshold:k=0.1" : "powersgd",
                .algo = algos[a],
                .feedback = copy % 2 == 0 ? states[a] : (dcomm_feedback_opts){.seed = 3}});
        }
        cr_assert_gt(failures, test_full() ? 3 : 1, "%s has failed %u times", algos[a], failures);
    }
}

/* Fail the kernels of the norm, the momentum, the encoding, and later ones. */
Test(device_feedback, failing_kernels, .timeout = 100)
{
    unsigned failures = 0;
    for (unsigned kernel = 1; kernel <= 6; kernel++) {
        failures += failures_of(&(failing){
            .nth = kernel,
            .kernel = true,
            .spec = "threshold:k=0.1",
            .algo = kernel % 2 == 0 ? "coded_allgather" : "coded_two_shot",
            .feedback = {.variant = DCOMM_FEEDBACK_DGC, .clip = 1, .bf16 = kernel % 3 == 0}});
    }
    cr_assert_gt(failures, 3, "%u failures", failures);
}
#endif
