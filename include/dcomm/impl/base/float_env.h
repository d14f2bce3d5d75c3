/* float_env.h - reads the float settings of this thread: flushing of denormals, and rounding.
 * Ranks with different settings fold the same contributions to different bits. */
#ifndef DCOMMI_FLOAT_ENV_H
#define DCOMMI_FLOAT_ENV_H

#include "util.h"

enum {
    DCOMMI_FLOAT_FLUSHES = 1,   /* results that are denormal become 0 (FTZ) */
    DCOMMI_FLOAT_IGNORES = 2,   /* operands that are denormal count as 0 (DAZ) */
    DCOMMI_FLOAT_UP = 4,        /* rounds upward */
    DCOMMI_FLOAT_DOWN = 8,      /* rounds downward */
    DCOMMI_FLOAT_TRUNCATES = 16 /* rounds towards zero */
};

/* Return the settings of this thread. Find them by computing, which works on every processor and
 * needs no library. */
static uint32_t dcommi_float_env(void)
{
    volatile float least = 0x1p-126f, half = 0.5f, large = 0x1p100f, tiny = 0x1p-30f, one = 1;
    volatile uint32_t bits = 1;
    uint32_t denormal_bits = bits;
    float denormal;
    memcpy(&denormal, &denormal_bits, sizeof denormal);
    volatile float flushed = least * half, grown = denormal * large;
    volatile float above = one + tiny, below = one - tiny, beneath = -one - tiny;
    bool up = above > 1, down = beneath < -1;
    return (flushed == 0 ? DCOMMI_FLOAT_FLUSHES : 0u) | (grown == 0 ? DCOMMI_FLOAT_IGNORES : 0u) |
           (up ? DCOMMI_FLOAT_UP : 0u) | (down ? DCOMMI_FLOAT_DOWN : 0u) |
           (!up && !down && below < 1 ? DCOMMI_FLOAT_TRUNCATES : 0u);
}

/* Describe the settings `env`, for example "keeps denormals and rounds upward". */
static void dcommi_float_env_text(uint32_t env, char *text, size_t room)
{
    const char *rounds = env & DCOMMI_FLOAT_UP          ? "upward"
                         : env & DCOMMI_FLOAT_DOWN      ? "downward"
                         : env & DCOMMI_FLOAT_TRUNCATES ? "towards zero"
                                                        : "to nearest";
    bool flushes = (env & DCOMMI_FLOAT_FLUSHES) != 0, ignores = (env & DCOMMI_FLOAT_IGNORES) != 0;
    snprintf(text, room, "%s and rounds %s",
             flushes && ignores ? "flushes denormals to zero (FTZ, DAZ)"
             : flushes          ? "flushes denormal results to zero (FTZ)"
             : ignores          ? "takes denormal operands for zero (DAZ)"
                                : "keeps denormals",
             rounds);
}

#endif
