/* slow_kernel.h - a program's own kernel, which takes its time and copies then. slow_kernel.cu has
 * it for CUDA, slow_kernel_host.c for the host stand-in. */
#ifndef SLOW_KERNEL_H
#define SLOW_KERNEL_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* dst <- src, device memory of `count` floats, `ms` milliseconds after the stream has come to it.
 */
void slow_kernel(float *dst, const float *src, size_t count, int ms, void *stream);

#ifdef __cplusplus
}
#endif
#endif
