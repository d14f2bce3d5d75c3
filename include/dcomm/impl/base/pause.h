/* pause.h - short waits that keep the core. */
#ifndef DCOMMI_PAUSE_H
#define DCOMMI_PAUSE_H

#include "util.h"

/* Seconds between sending and the first poll (Intel only). Polling a line before the writer has
 * filled it steals the line: the writer needs a transfer to get it back, and the message a second
 * one. docs/results/parts.md has the gain; shorter and longer delays gain less. */
#define DCOMMI_FIRST_LOOK 40e-9

static inline void dcommi_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Return how many pauses last about `seconds`. Measure it: processors differ greatly. */
static unsigned dcommi_pauses_within(double seconds)
{
    const int n = 64;
    double fastest = 1;
    for (int run = 0; run < 5; run++) {
        double start = dcommi_now();
        for (int i = 0; i < n; i++) {
            dcommi_relax();
        }
        double took = (dcommi_now() - start) / n;
        fastest = took < fastest ? took : fastest;
    }
    return fastest > 0 ? (unsigned)(seconds / fastest + 0.5) : 0;
}

#endif
