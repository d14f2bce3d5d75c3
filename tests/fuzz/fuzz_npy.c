/* fuzz_npy.c - any bytes as a .npy file, as raw numbers and as a .npz file. */
#define _GNU_SOURCE
#pragma GCC diagnostic ignored "-Wunused-function"
#include "../../bench/npz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Read one array; `bytes` is an allocation of its own, which shows reads past the end. */
static void read_array(const uint8_t *bytes, size_t size, npy_type type)
{
    npy_info info;
    float *x = NULL;
    if (npy_array(bytes, size, type, &x, &info) == NULL &&
        (info.offset + info.count * (size_t)info.width != size || info.ndim > NPY_DIMS)) {
        abort();
    }
    free(x);
}

/* Read all arrays of an archive, whatever their checksums. */
static void read_archive(const uint8_t *file, size_t size, npy_type type)
{
    npz_entry *entry;
    size_t n, end = 0;
    if (npz_list(file, size, &entry, &n) != NULL) {
        return;
    }
    for (size_t i = 0; i < n; i++) {
        if (entry[i].data < end || entry[i].packed > size - entry[i].data ||
            entry[i].size > 1032 * entry[i].packed + 1032) {
            abort();
        }
        end = entry[i].data + entry[i].packed;
        uint8_t *bytes = malloc(entry[i].size + 1);
        if (bytes != NULL && npz_unpack(file, &entry[i], bytes) == NULL) {
            read_array(bytes, entry[i].size, type);
        }
        free(bytes);
    }
    free(entry);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *file = malloc(size + 1);
    if (file == NULL) {
        return 0;
    }
    memcpy(file, data, size);
    const npy_type type = size > 0 ? (npy_type)(data[size - 1] % 5) : NPY_ANY;
    read_array(file, size, type);
    read_archive(file, size, type);
    free(file);
    return 0;
}
