/* root.h - the correctly rounded square root of an f64, by the processor's instruction. For
 * sqrt(), compilers also emit a call, to set errno. The linker would bind it to a function of that
 * name in the program. */
#ifndef DCOMMI_ROOT_H
#define DCOMMI_ROOT_H

#ifdef __SSE2__
#include <emmintrin.h>
#else
#include <math.h>
#endif

static inline double dcommi_sqrt(double x)
{
#if defined(__SSE2__)
    return _mm_cvtsd_f64(_mm_sqrt_sd(_mm_setzero_pd(), _mm_set_sd(x)));
#elif defined(__aarch64__)
    double root;
    __asm__("fsqrt %d0, %d1" : "=w"(root) : "w"(x));
    return root;
#else
    return sqrt(x);
#endif
}

#endif
