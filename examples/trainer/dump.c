/* dump.c - write gradients as .npy files, which NumPy and dcomm-codec read. */
#define _GNU_SOURCE
#include "dump.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { PREFIX = 10, HEADER = 128 }; /* bytes; the elements begin at a multiple of 64 */

int dump_gradient(const char *directory, int rank, int step, const float *x, size_t count)
{
    char path[1024], header[HEADER + 1];
    memset(header, ' ', sizeof header);
    memcpy(header, "\x93NUMPY\x01\x00", 8);
    header[8] = HEADER - PREFIX;
    header[9] = 0;
    int n = snprintf(header + PREFIX, HEADER - PREFIX,
                     "{'descr': '<f4', 'fortran_order': False, 'shape': (%zu,), }", count);
    header[PREFIX + n] = ' ';
    header[HEADER - 1] = '\n';
    snprintf(path, sizeof path, "%s/rank%d-step%d.npy", directory, rank, step);
    if (mkdir(directory, 0777) != 0 && errno != EEXIST) {
        return -1;
    }
    FILE *file = fopen(path, "wb");
    if (file == NULL) {
        return -1;
    }
    int good = fwrite(header, HEADER, 1, file) == 1 && fwrite(x, sizeof *x, count, file) == count;
    return fclose(file) == 0 && good ? 0 : -1;
}
