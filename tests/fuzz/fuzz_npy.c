/* fuzz_npy.c - any bytes as a .npy file. */
#define _GNU_SOURCE
#pragma GCC diagnostic ignored "-Wunused-function"
#include "../../bench/npy.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    npy_info info;
    uint8_t *file = malloc(size + 1); /* its own allocation: reading on is seen */
    if (file == NULL) {
        return 0;
    }
    memcpy(file, data, size);
    const npy_type type = size > 0 ? (npy_type)(data[size - 1] % 5) : NPY_ANY;
    if (npy_parse_as(file, size, type, &info) == NULL) {
        if (info.offset + info.count * (size_t)info.width != size || info.ndim > NPY_DIMS) {
            abort();
        }
        float *x = malloc(info.count * sizeof *x + 1);
        if (x != NULL) {
            npy_convert(file, &info, 0, info.count, x);
        }
        free(x);
    }
    free(file);
    return 0;
}
