/* slow_kernel.h - a kernel of the program's own that takes a while and then copies. slow_kernel.cu
 * implements it for CUDA, slow_kernel_host.c for the host stand-in. */
#ifndef SLOW_KERNEL_H
#define SLOW_KERNEL_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Copy `count` floats of device memory from src to dst, `ms` milliseconds after the stream has
 * reached the kernel. */
void slow_kernel(float *dst, const float *src, size_t count, int ms, void *stream);

#ifdef __cplusplus
}
#endif
#endif
