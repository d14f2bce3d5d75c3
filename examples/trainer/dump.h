/* dump.h - gradients as .npy files, which NumPy and dcomm-codec read. */
#ifndef DUMP_H
#define DUMP_H

#include <stddef.h>

/* Write DIR/rankR-stepS.npy, one dimension of float32; make DIR if it is not there. 0, or -1 with errno. */
int dump_gradient(const char *directory, int rank, int step, const float *x, size_t count);

#endif
