/* dump.h - write gradients as .npy files, which NumPy and dcomm-codec read. */
#ifndef DUMP_H
#define DUMP_H

#include <stddef.h>

/* Write DIR/rankR-stepS.npy with one dimension of float32. Make DIR if it does not exist. Return
 * 0, or -1 with errno set. */
int dump_gradient(const char *directory, int rank, int step, const float *x, size_t count);

#endif
