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

/* A run that is saved and loaded goes on with the bits of one that is not. */
Test(feedback, saved_and_loaded)
{
    enum { N = 111 };
    for (int variant = 0; variant < DCOMM_FEEDBACK_VARIANT_COUNT; variant++) {
        for (int bf16 = 0; bf16 < (variant == DCOMM_FEEDBACK_EF21 ? 1 : 2); bf16++) {
            dcomm_codec *codec, *other;
            dcomm_feedback *fb[RANKS];
            static books b;
            float expected[N];
            codec_input in;
            dcomm_feedback_opts opts = {
                .variant = (dcomm_feedback_variant)variant, .bf16 = bf16 != 0, .seed = 5};
            input(&in, "gaussian");
            GOOD(dcomm_codec_create("topk:k=0.1", &codec));
            GOOD(dcomm_codec_create("topk:k=0.2", &other));
            make_all(fb, codec, N, &opts);
            for (int half = 0; half < 2; half++) {
                for (uint64_t s = 0; s < 10; s++) {
                    for (int r = 0; r < RANKS; r++) {
                        input_fill(&in, (uint32_t)r, s, 0, N, gradient[r]);
                    }
                    if (half == 1 && s == 5) {
                        for (int r = 0; r < RANKS; r++) {
                            size_t bytes = dcomm_feedback_save_bytes(fb[r]);
                            unsigned char *file = malloc(bytes);
                            BAD(DCOMM_ERR_INVALID, "no room",
                                dcomm_feedback_save(fb[r], file, bytes - 1));
                            GOOD(dcomm_feedback_save(fb[r], file, bytes));
                            GOOD(dcomm_feedback_destroy(&fb[r]));
                            BAD(DCOMM_ERR_INVALID, "saved with codec topk",
                                dcomm_feedback_load(other, file, bytes, &fb[r]));
                            for (size_t cut = 0; cut < bytes; cut += 13) {
                                cr_assert_eq(dcomm_feedback_load(codec, file, cut, &fb[r]),
                                             DCOMM_ERR_CORRUPT);
                                file[cut] ^= 4;
                                cr_assert_eq(dcomm_feedback_load(codec, file, bytes, &fb[r]),
                                             DCOMM_ERR_CORRUPT, "byte %zu", cut);
                                file[cut] ^= 4;
                            }
                            GOOD(dcomm_feedback_load(codec, file, bytes, &fb[r]));
                            free(file);
                        }
                    }
                    two_shot(fb, N, &b, false);
                }
                if (half == 0) {
                    memcpy(expected, result, sizeof expected);
                    destroy_all(fb);
                    make_all(fb, codec, N, &opts);
                }
            }
            cr_assert_eq(memcmp(expected, result, sizeof expected), 0);
            destroy_all(fb);
            dcomm_codec_destroy(&codec);
            dcomm_codec_destroy(&other);
        }
    }
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
