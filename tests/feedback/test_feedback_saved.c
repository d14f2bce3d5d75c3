/* test_feedback_saved.c - states of error feedback between runs: rescaled, saved, loaded, moved to
 * another number of ranks. */
#define _GNU_SOURCE
#pragma GCC diagnostic ignored "-Wunused-function"
#define DCOMM_NO_COMM
#define DCOMM_IMPLEMENTATION
#include "dcomm/all.h"

#include "feedback_books.h"

Test(feedback, rescaled_to_another_learning_rate)
{
    dcomm_codec *codec;
    dcomm_feedback *fb[RANKS];
    static books b;
    GOOD(dcomm_codec_create("topk:k=0.1", &codec));
    make_all(fb, codec, 90, NULL);
    codec_input in;
    input(&in, "gaussian");
    for (int r = 0; r < RANKS; r++) {
        input_fill(&in, (uint32_t)r, 0, 0, 90, gradient[r]);
    }
    two_shot(fb, 90, &b, false);
    dcomm_feedback_info before, after;
    GOOD(dcomm_feedback_get_info(fb[1], &before));
    GOOD(dcomm_feedback_rescale(fb[1], 0.25));
    GOOD(dcomm_feedback_get_info(fb[1], &after));
    cr_assert_float_eq(after.worker_norm, before.worker_norm / 4, 1e-9);
    cr_assert_float_eq(after.owner_norm, before.owner_norm / 4, 1e-9);
    BAD(DCOMM_ERR_INVALID, "factor", dcomm_feedback_rescale(fb[1], (double)INFINITY));
    destroy_all(fb);
    dcomm_codec_destroy(&codec);
}

static void step_all(dcomm_feedback **fb, const codec_input *in, uint64_t step, size_t n, books *b)
{
    for (int r = 0; r < RANKS; r++) {
        input_fill(in, (uint32_t)r, step, 0, n, gradient[r]);
    }
    two_shot(fb, n, b, false);
}

/* The largest f32 is beyond the largest bf16: store the largest bf16 for it. */
Test(feedback, halves_stay_finite)
{
    const float largest[2] = {FLT_MAX, -FLT_MAX};
    uint16_t half[2];
    dcommi_feedback_narrow(largest, half, 2);
    cr_assert(half[0] == 0x7f7f && half[1] == 0xff7f, "%04x %04x", half[0], half[1]);
}

/* Load states whose hash is right but whose values are impossible: each is refused. */
static void lies(const dcomm_codec *codec, const unsigned char *file, size_t bytes)
{
    static const unsigned char infinite[4] = {0x80, 0x7f, 0x80, 0x7f};
    unsigned char *copy = malloc(bytes);
    dcomm_feedback *fb = NULL;
    for (int lie = 0; lie < 3; lie++) {
        dcommi_feedback_head head;
        memcpy(copy, file, bytes);
        memcpy(&head, file, sizeof head);
        if (lie == 0 && head.magic == DCOMMI_FEEDBACK_MAGIC) {
            memcpy(copy + sizeof head + dcommi_feedback_padded(head.spec_bytes), infinite, 4);
        } else {
            head.own_first = lie == 1 ? head.count + 1 : head.count - head.own_count + 1;
        }
        memcpy(copy, &head, sizeof head);
        uint64_t hash = dcommi_feedback_hash(copy, bytes - sizeof hash);
        memcpy(copy + bytes - sizeof hash, &hash, sizeof hash);
        cr_assert_eq(dcomm_feedback_load(codec, copy, bytes, &fb), DCOMM_ERR_CORRUPT, "%d", lie);
    }
    free(copy);
}

/* Save a state, and load it in its place. */
static void save_and_load(dcomm_feedback **fb, const dcomm_codec *codec, const dcomm_codec *other,
                          const char *sentence)
{
    size_t bytes = dcomm_feedback_save_bytes(*fb);
    unsigned char *file = malloc(bytes);
    BAD(DCOMM_ERR_INVALID, "no room", dcomm_feedback_save(*fb, file, bytes - 1));
    GOOD(dcomm_feedback_save(*fb, file, bytes));
    GOOD(dcomm_feedback_destroy(fb));
    BAD(DCOMM_ERR_INVALID, sentence, dcomm_feedback_load(other, file, bytes, fb));
    for (size_t cut = 0; cut < bytes; cut += 13) {
        cr_assert_eq(dcomm_feedback_load(codec, file, cut, fb), DCOMM_ERR_CORRUPT);
        file[cut] ^= 4;
        cr_assert_eq(dcomm_feedback_load(codec, file, bytes, fb), DCOMM_ERR_CORRUPT, "byte %zu",
                     cut);
        file[cut] ^= 4;
    }
    lies(codec, file, bytes);
    GOOD(dcomm_feedback_load(codec, file, bytes, fb));
    free(file);
}

/* A saved and loaded run goes on with the same bits as an uninterrupted one. */
static void goes_on(const char *spec, const char *another, const dcomm_feedback_opts *opts)
{
    enum { N = 111 };
    dcomm_codec *codec, *other;
    dcomm_feedback *fb[RANKS];
    static books b;
    float expected[N];
    codec_input in;
    char sentence[64];
    snprintf(sentence, sizeof sentence, "saved with codec %.4s", spec);
    input(&in, "gaussian");
    GOOD(dcomm_codec_create(spec, &codec));
    GOOD(dcomm_codec_create(another, &other));
    make_all(fb, codec, N, opts);
    for (uint64_t s = 0; s < 10; s++) {
        step_all(fb, &in, s, N, &b);
    }
    memcpy(expected, result, sizeof expected);
    destroy_all(fb);
    make_all(fb, codec, N, opts);
    for (uint64_t s = 0; s < 10; s++) {
        for (int r = 0; s == 5 && r < RANKS; r++) {
            save_and_load(&fb[r], codec, other, sentence);
        }
        step_all(fb, &in, s, N, &b);
    }
    cr_assert_eq(memcmp(expected, result, sizeof expected), 0, "%s, variant %d", spec,
                 (int)opts->variant);
    destroy_all(fb);
    dcomm_codec_destroy(&codec);
    dcomm_codec_destroy(&other);
}

Test(feedback, saved_and_loaded)
{
    for (int variant = 0; variant < DCOMM_FEEDBACK_VARIANT_COUNT; variant++) {
        for (int bf16 = 0; bf16 < (variant == DCOMM_FEEDBACK_EF21 ? 1 : 2); bf16++) {
            dcomm_feedback_opts opts = {
                .variant = (dcomm_feedback_variant)variant, .bf16 = bf16 != 0, .seed = 5};
            goes_on("topk:k=0.1", "topk:k=0.2", &opts);
            if (variant != DCOMM_FEEDBACK_DGC) {
                goes_on("powersgd:rank=2", "powersgd:rank=3", &opts);
            }
        }
    }
}

/* ---- a codec's memory ---- */

enum { SIDE = 32 };

/* Write a matrix with the singular values `s`: H diag(s) H / SIDE, where H is Sylvester's matrix
 * of 1 and -1. */
static void spectrum(const double *s, float *x)
{
    for (int i = 0; i < SIDE; i++) {
        for (int j = 0; j < SIDE; j++) {
            double sum = 0;
            for (int k = 0; k < SIDE; k++) {
                sum += (__builtin_parity((unsigned)(i & k)) != __builtin_parity((unsigned)(j & k))
                            ? -1
                            : 1) *
                       s[k];
            }
            x[i * SIDE + j] = (float)(sum / SIDE);
        }
    }
}

/* Encode x as `parts` ranges; return how much of it, in two-norms, does not arrive. Hold nothing
 * back for the next step. */
static double lacks(dcomm_feedback *fb, const float *x, size_t parts, bool ends)
{
    enum { N = SIDE * SIDE };
    static float y[N];
    double lost = 0, all = 0;
    size_t bytes;
    GOOD(dcomm_feedback_begin(fb, &(dcomm_feedback_step){.x = x}));
    for (size_t p = 0; p < parts; p++) {
        GOOD(dcomm_feedback_encode(fb, p * N / parts, N / parts, wire[0], sizeof wire[0], &bytes,
                                   NULL));
        GOOD(dcomm_decode(dcomm_feedback_codec(fb), wire[0], bytes, y + p * N / parts, N / parts));
    }
    GOOD(ends ? dcomm_feedback_commit(fb) : dcomm_feedback_fail(fb));
    GOOD(ends ? dcomm_feedback_rescale(fb, 0)
              : dcomm_feedback_recover(fb, DCOMM_FEEDBACK_RETRY, NULL));
    for (size_t i = 0; i < N; i++) {
        lost += ((double)x[i] - (double)y[i]) * ((double)x[i] - (double)y[i]);
        all += (double)x[i] * (double)x[i];
    }
    return sqrt(lost / all);
}

/* The spectrum gives the smallest error of rank 2, and powersgd reaches it. */
Test(feedback, powersgd_is_warm_step_after_step)
{
    static float x[SIDE * SIDE];
    double s[SIDE], rest = 0, all = 0;
    dcomm_codec *codec;
    dcomm_feedback *fb = NULL;
    for (int k = 0; k < SIDE; k++) {
        s[k] = k == 0 ? 2 : k == 1 ? 1.8 : 0.7 - 0.01 * k;
        all += s[k] * s[k];
        rest += k > 1 ? s[k] * s[k] : 0;
    }
    const double best = sqrt(rest / all);
    spectrum(s, x);
    GOOD(dcomm_codec_create("powersgd:rank=2", &codec));
    for (int in_place = 0; in_place < 2; in_place++) {
        dcomm_feedback_opts opts = {.in_place = in_place != 0};
        GOOD(dcomm_feedback_create(codec, SIDE * SIDE, &opts, &fb));
        const double cold = lacks(fb, x, 1, true);
        cr_assert_gt(cold, 1.05 * best);
        double last = cold;
        for (int step = 1; step < 8; step++) {
            if (!in_place) { /* a failed step restores the memory from before it */
                const double once = lacks(fb, x, 1, false);
                last = lacks(fb, x, 1, true);
                cr_assert_eq(once, last);
            } else {
                last = lacks(fb, x, 1, true);
            }
        }
        cr_assert_float_eq(last, best, 1e-4, "%g, not %g", last, best);
        GOOD(dcomm_feedback_recover(fb, DCOMM_FEEDBACK_RESET, NULL));
        cr_assert_gt(lacks(fb, x, 1, true), 1.05 * best); /* cold again */
        dcomm_feedback_destroy(&fb);
    }
    dcomm_codec_destroy(&codec);
}

/* Each range has its own Q. A state that takes over gets them all, and forgets those of ranges
 * that are no longer encoded. */
Test(feedback, powersgd_remembers_each_range)
{
    static float x[SIDE * SIDE];
    codec_input in;
    dcomm_codec *codec;
    dcomm_feedback *fb = NULL, *moved = NULL;
    dcomm_feedback_info info;
    input(&in, "gaussian");
    input_fill(&in, 0, 0, 0, SIDE * SIDE, x);
    GOOD(dcomm_codec_create("powersgd:rank=2", &codec));
    GOOD(dcomm_feedback_create(codec, SIDE * SIDE, NULL, &fb));
    const double cold = lacks(fb, x, 4, true);
    for (int step = 1; step < 8; step++) {
        lacks(fb, x, 4, true);
    }
    GOOD(dcomm_feedback_reshard((const dcomm_feedback *[]){fb}, 1, 0, 1, &moved, NULL));
    const double warm = lacks(moved, x, 4, true);
    cr_assert_lt(warm, 0.99 * cold);
    cr_assert_eq(warm, lacks(fb, x, 4, true));
    GOOD(dcomm_feedback_get_info(fb, &info));
    const size_t held = info.state_bytes;
    lacks(fb, x, 1, true);
    lacks(fb, x, 1, true);
    lacks(fb, x, 1, true);
    GOOD(dcomm_feedback_get_info(fb, &info));
    cr_assert_lt(info.state_bytes, held);
    dcomm_feedback_destroy(&fb);
    dcomm_feedback_destroy(&moved);
    dcomm_codec_destroy(&codec);
}

Test(feedback, moved_to_another_number_of_ranks)
{
    enum { N = 90 };
    for (int variant = 0; variant < DCOMM_FEEDBACK_VARIANT_COUNT; variant++) {
        for (uint32_t nranks = 1; nranks <= 5; nranks++) {
            dcomm_codec *codec;
            dcomm_feedback *fb[RANKS];
            const dcomm_feedback *old[RANKS];
            static books b;
            codec_input in;
            dcomm_feedback_opts opts = {.variant = (dcomm_feedback_variant)variant};
            input(&in, "gaussian");
            GOOD(dcomm_codec_create("topk:k=0.1,values=bf16", &codec));
            make_all(fb, codec, N, &opts);
            for (uint64_t s = 0; s < 10; s++) {
                for (int r = 0; r < RANKS; r++) {
                    input_fill(&in, (uint32_t)r, s, 0, N, gradient[r]);
                }
                two_shot(fb, N, &b, true);
            }
            for (int missing = 0; missing < 2; missing++) {
                double owed[N] = {0}, dealt[N] = {0};
                dcomm_feedback_loss loss = {0}, first = {0};
                dcomm_feedback *moved = NULL;
                for (int r = 0; r < RANKS; r++) {
                    old[r] = missing && r == 1 ? NULL : fb[r];
                    for (size_t i = 0; i < N; i++) {
                        owed[i] += old[r] != NULL ? dcommi_feedback_owed(fb[r], i) : 0;
                    }
                }
                for (uint32_t r = 0; r < nranks; r++) {
                    GOOD(dcomm_feedback_reshard(old, RANKS, r, nranks, &moved, &loss));
                    cr_assert(r == 0 || memcmp(&loss, &first, sizeof loss) == 0);
                    first = loss;
                    for (size_t i = 0; i < N; i++) {
                        dealt[i] += dcommi_feedback_owed(moved, i);
                    }
                    if (variant == DCOMM_FEEDBACK_EF21 && r == nranks - 1) {
                        for (size_t i = 0; i < N; i++) {
                            cr_assert_float_eq((double)((float *)moved->estimate.now)[i] * nranks,
                                               owed[i], 1e-4);
                        }
                    }
                    GOOD(dcomm_feedback_destroy(&moved));
                }
                for (size_t i = 0; i < N; i++) {
                    cr_assert_float_eq(dealt[i], owed[i], 1e-4);
                }
                cr_assert_eq(loss.missing, (size_t)missing);
                cr_assert(missing && variant == DCOMM_FEEDBACK_EF21 ? loss.lost > 1
                                                                    : loss.lost < 1e-4,
                          "%g", loss.lost);
                cr_assert(loss.carried > 1);
            }
            GOOD(dcomm_feedback_fail(fb[2]));
            dcomm_feedback *moved = NULL;
            BAD(DCOMM_ERR_INVALID, "rank 2 is stale",
                dcomm_feedback_reshard((const dcomm_feedback *const *)fb, RANKS, 0, 1, &moved,
                                       NULL));
            destroy_all(fb);
            dcomm_codec_destroy(&codec);
        }
    }
}

/* ---- numbers that are not finite ---- */

/* Encode with numbers that are not finite in all arrays of the state, and copy what the state then
 * has to `now`, of 3 N numbers. Return the bytes of the wire; 0: there is no such state. */
static size_t with_odd_state(const char *spec, const dcomm_feedback_opts *opts, uint32_t bits,
                             size_t n, float *now)
{
    dcomm_codec *codec;
    dcomm_feedback *fb = NULL;
    codec_input in;
    size_t bytes;
    input(&in, "gaussian");
    input_fill(&in, 0, 0, 0, n, gradient[0]);
    GOOD(dcomm_codec_create(spec, &codec));
    if (dcomm_feedback_create(codec, n, opts, &fb) != DCOMM_OK) {
        dcomm_codec_destroy(&codec);
        return 0;
    }
    dcommi_feedback_store *stores[] = {&fb->worker, &fb->velocity, &fb->estimate};
    for (size_t i = 3; i < n; i += 7) {
        for (int s = 0; s < 3; s++) {
            if (stores[s]->count > 0) {
                dcommi_feedback_set(stores[s], stores[s]->now, i, dcommi_f32_from_bits(bits));
            }
        }
    }
    GOOD(dcomm_feedback_begin(fb, &(dcomm_feedback_step){.x = gradient[0]}));
    dcomm_status status = dcomm_feedback_encode(fb, 0, n, again, sizeof again, &bytes, NULL);
    cr_assert_eq(status, opts->variant == DCOMM_FEEDBACK_DGC ? DCOMM_ERR_INVALID : DCOMM_OK);
    GOOD(dcomm_decode(codec, again, bytes, result, n));
    GOOD(dcomm_feedback_finish(fb, 0, n, result));
    GOOD(dcomm_feedback_commit(fb));
    memset(now, 0, 3 * n * sizeof *now);
    for (int s = 0; s < 3; s++) {
        for (size_t i = 0; i < n && stores[s]->count > 0; i++) {
            now[s * (int)n + (int)i] = dcommi_feedback_get(stores[s], stores[s]->now, i);
            cr_assert(s == 2 || isfinite(now[s * (int)n + (int)i]), "%s, array %d, %zu", spec, s,
                      i);
        }
    }
    dcomm_feedback_destroy(&fb);
    dcomm_codec_destroy(&codec);
    return bytes;
}

/* A NaN in a state, of whatever sign and payload, gives the same bytes, and leaves the state
 * finite. (Only the estimate of EF21's result, which comes from outside, may be NaN.) */
Test(feedback, a_nan_in_a_state_has_no_sign)
{
    enum { N = 300 };
    static const uint32_t nans[] = {0xffc00000u, 0x7f810000u, 0xff812345u, 0x7fffffffu};
    static float first[3 * N], now[3 * N];
    static unsigned char sent[sizeof again];
    int states = 0;
    for (int c = 0; c < SPECS; c++) {
        for (int how = 0; how < 2 * DCOMM_FEEDBACK_VARIANT_COUNT; how++) {
            const dcomm_feedback_opts opts = {
                .variant = (dcomm_feedback_variant)(how / 2), .bf16 = how % 2 != 0, .scale = true};
            size_t bytes = with_odd_state(specs[c], &opts, 0x7fc00000u, N, first);
            memcpy(sent, again, bytes);
            states += bytes > 0;
            for (size_t k = 0; bytes > 0 && k < sizeof nans / sizeof *nans; k++) {
                cr_assert_eq(with_odd_state(specs[c], &opts, nans[k], N, now), bytes);
                cr_assert_eq(memcmp(again, sent, bytes), 0, "%s, variant %d, NaN %x", specs[c],
                             how / 2, nans[k]);
                cr_assert_eq(memcmp(now, first, sizeof now), 0, "%s, variant %d, NaN %x", specs[c],
                             how / 2, nans[k]);
            }
        }
    }
    cr_assert_geq(states, 3 * SPECS, "%d", states); /* DGC takes few codecs */
}

Test(feedback, a_nan_is_rescaled_to_the_largest_number)
{
    dcomm_codec *codec;
    dcomm_feedback *fb;
    GOOD(dcomm_codec_create("topk:k=0.1", &codec));
    GOOD(dcomm_feedback_create(codec, 3, NULL, &fb));
    float *now = fb->worker.now;
    now[0] = dcommi_f32_from_bits(0xffc00000u);
    now[1] = -INFINITY;
    now[2] = 4;
    GOOD(dcomm_feedback_rescale(fb, 0.25));
    cr_assert(now[0] == FLT_MAX && now[1] == -FLT_MAX && now[2] == 1);
    dcomm_feedback_destroy(&fb);
    dcomm_codec_destroy(&codec);
}
