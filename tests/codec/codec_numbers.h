/* codec_numbers.h - codecs and inputs for tests of the dense codecs. */
#ifndef CODEC_NUMBERS_H
#define CODEC_NUMBERS_H

#include "make_codec.h"

static uint64_t state = 88172645463325252u;

static uint64_t random_bits(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static double uniform(void)
{
    return (double)(random_bits() >> 11) * 0x1p-53;
}

static double gaussian(void)
{
    return sqrt(-2 * log(1 - uniform())) * cos(6.283185307179586 * uniform());
}

enum { GAUSSIAN, LAPLACE, LOGNORMAL, SPARSE, CONSTANT, REAL, MIXED, BITS, DISTRIBUTIONS };
enum { WELL_BEHAVED = REAL + 1 };

/* Fill x with a random stretch of the gradients that examples/trainer --dump wrote. */
static void fill_real(float *x, size_t count)
{
    enum { HEADER = 128, MOST = 1 << 17 };
    static float all[MOST];
    static size_t n;
    if (n == 0) {
        FILE *file = fopen(DCOMM_TESTS_DIR "/data/gradients/rank0.npy", "rb");
        cr_assert(file != NULL && fseek(file, HEADER, SEEK_SET) == 0);
        n = fread(all, sizeof *all, MOST, file);
        fclose(file);
        cr_assert_gt(n, 1000);
    }
    size_t first = random_bits() % n;
    for (size_t i = 0; i < count; i++) {
        x[i] = all[(first + i) % n];
    }
}

static void fill(float *x, size_t count, int distribution)
{
    if (distribution == REAL) {
        fill_real(x, count);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        double g = gaussian();
        switch (distribution) {
        case GAUSSIAN:
            x[i] = (float)g;
            break;
        case LAPLACE:
            x[i] = (float)(copysign(log(1 - uniform()), g));
            break;
        case LOGNORMAL:
            x[i] = (float)(copysign(exp(2 * gaussian()), g));
            break;
        case SPARSE:
            x[i] = random_bits() % 10 == 0 ? (float)g : 0;
            break;
        case CONSTANT:
            x[i] = g > 0 ? 0.01f : -0.01f;
            break;
        case MIXED: { /* tiny numbers, zeros of both signs and denormals */
            const float few[6] = {0, -0.0f, 1e-40f, -1e-41f, 1e-20f, (float)g};
            x[i] = few[random_bits() % 6];
            break;
        }
        default: { /* random bits: numbers of all sizes */
            uint32_t bits = (uint32_t)random_bits();
            x[i] = dcommi_f32_from_bits(bits);
            break;
        }
        }
    }
}

#endif
