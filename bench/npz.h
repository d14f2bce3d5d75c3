/* npz.h - read NumPy's .npz files: zip archives of .npy files, stored or deflated (which needs
 * zlib: NPZ_ZLIB). Files are not trusted. The directory at the end is read within bounds. An array
 * is refused if it overlaps another, has the name of another, or is larger than its bytes can
 * hold. */
#ifndef NPZ_H
#define NPZ_H

#include "npy.h"

#ifdef NPZ_ZLIB
#include <zlib.h>
#endif

enum { NPZ_NAME = 256, NPZ_STORED = 0, NPZ_DEFLATED = 8 };

typedef struct npz_entry {
    char name[NPZ_NAME]; /* name of the array, without ".npy" */
    size_t header, data; /* offsets of its local header and of its bytes */
    size_t packed, size; /* number of its bytes in the archive and in memory */
    uint32_t crc;
    int method;
} npz_entry;

static size_t npz_u16(const unsigned char *p)
{
    return (size_t)p[0] | (size_t)p[1] << 8;
}

static size_t npz_u32(const unsigned char *p)
{
    return npz_u16(p) | npz_u16(p + 2) << 16;
}

static int npz_by_name(const void *a, const void *b)
{
    return strcmp(((const npz_entry *)a)->name, ((const npz_entry *)b)->name);
}

static int npz_by_place(const void *a, const void *b)
{
    const npz_entry *x = a, *y = b;
    return (x->header > y->header) - (x->header < y->header);
}

/* Find the record that ends the archive; a comment of up to 64 KiB may follow it. */
static const char *npz_end(const unsigned char *data, size_t size, size_t *at)
{
    enum { END = 22, COMMENT = 65535 };
    for (size_t comment = 0; comment <= COMMENT && comment + END <= size; comment++) {
        const unsigned char *p = data + size - END - comment;
        if (memcmp(p, "PK\5\6", 4) == 0 && npz_u16(p + 20) == comment) {
            *at = size - END - comment;
            return NULL;
        }
    }
    return "it is no .npz file, or ends early; numpy.savez(\"g.npz\", name=x, ...) makes one";
}

/* Read the directory's entry at `at` and the local header that it points to; both must lie below
 * `limit`. The array's bytes must lie in front of the directory, which begins at `directory`. */
static const char *npz_read_entry(const unsigned char *data, size_t directory, size_t limit,
                                  size_t *at, npz_entry *e)
{
    enum { CENTRAL = 46, LOCAL = 30 };
    if (limit - *at < CENTRAL || memcmp(data + *at, "PK\1\2", 4) != 0) {
        return "its directory is damaged";
    }
    const unsigned char *p = data + *at;
    const size_t length = npz_u16(p + 28);
    const size_t whole = CENTRAL + length + npz_u16(p + 30) + npz_u16(p + 32);
    if (whole > limit - *at) {
        return "its directory is damaged";
    }
    *at += whole;
    const char *name = (const char *)p + CENTRAL;
    if (length < 5 || length - 4 >= NPZ_NAME || memcmp(name + length - 4, ".npy", 4) != 0 ||
        memchr(name, '\0', length) != NULL) {
        return "it holds something whose name is not NAME.npy of at most 255 bytes";
    }
    memcpy(e->name, name, length - 4);
    e->name[length - 4] = '\0';
    e->method = (int)npz_u16(p + 10);
    e->crc = (uint32_t)npz_u32(p + 16);
    e->packed = npz_u32(p + 20);
    e->size = npz_u32(p + 24);
    e->header = npz_u32(p + 42);
    if (e->packed == UINT32_MAX || e->size == UINT32_MAX || e->header == UINT32_MAX) {
        return "it is a ZIP64 archive (4 GiB or more); save fewer arrays to a file";
    }
    if ((npz_u16(p + 8) & 1) != 0) {
        return "it is encrypted";
    }
    if (e->method != NPZ_STORED && e->method != NPZ_DEFLATED) {
        return "its compression is not deflate; numpy.savez makes a file without";
    }
    if (e->method == NPZ_STORED ? e->size != e->packed : e->size / 1032 > e->packed) {
        return "an array's size cannot be that of its bytes";
    }
    if (e->header > directory || directory - e->header < LOCAL ||
        memcmp(data + e->header, "PK\3\4", 4) != 0) {
        return "its directory points to where no array is";
    }
    const unsigned char *local = data + e->header;
    const size_t front = LOCAL + npz_u16(local + 26) + npz_u16(local + 28);
    if (front > directory - e->header || e->packed > directory - e->header - front) {
        return "an array reaches beyond the file";
    }
    e->data = e->header + front;
    if (npz_u16(local + 26) != length || memcmp(local + LOCAL, name, length) != 0 ||
        (int)npz_u16(local + 8) != e->method) {
        return "its directory names another array than lies there";
    }
    return NULL;
}

/* List the arrays of an archive in the order of their bytes; the caller frees *entry_p. Return
 * NULL, or the error. */
static const char *npz_list(const unsigned char *data, size_t size, npz_entry **entry_p,
                            size_t *n_p)
{
    size_t end = 0;
    *entry_p = NULL;
    *n_p = 0;
    const char *why = npz_end(data, size, &end);
    if (why != NULL) {
        return why;
    }
    const size_t n = npz_u16(data + end + 10), bytes = npz_u32(data + end + 12);
    size_t at = npz_u32(data + end + 16);
    if (n == 65535 || bytes == UINT32_MAX || at == UINT32_MAX) {
        return "it is a ZIP64 archive (4 GiB or more); save fewer arrays to a file";
    }
    if (npz_u16(data + end + 8) != n || npz_u32(data + end + 4) != 0 || at > end ||
        bytes != end - at) {
        return "its directory is damaged";
    }
    if (n == 0) {
        return "it holds no arrays";
    }
    npz_entry *entry = calloc(n, sizeof *entry);
    if (entry == NULL) {
        return "there is no memory for it";
    }
    const size_t directory = at;
    for (size_t i = 0; i < n && why == NULL; i++) {
        why = npz_read_entry(data, directory, end, &at, &entry[i]);
    }
    why = why == NULL && at != end ? "its directory is damaged" : why;
    if (why == NULL) {
        qsort(entry, n, sizeof *entry, npz_by_name);
        for (size_t i = 1; i < n; i++) {
            why = npz_by_name(&entry[i - 1], &entry[i]) == 0 ? "two of its arrays have one name"
                                                             : why;
        }
        qsort(entry, n, sizeof *entry, npz_by_place);
        for (size_t i = 1; i < n; i++) {
            bool over = entry[i].header < entry[i - 1].data + entry[i - 1].packed;
            why = over ? "two of its arrays lie one over the other" : why;
        }
    }
    if (why != NULL) {
        free(entry);
        return why;
    }
    *entry_p = entry;
    *n_p = n;
    return NULL;
}

/* Unpack an entry into `bytes`, which has room for its size. Return NULL, or the error. */
static const char *npz_unpack(const unsigned char *data, const npz_entry *e, unsigned char *bytes)
{
    if (e->method == NPZ_STORED) {
        memcpy(bytes, data + e->data, e->size);
        return NULL;
    }
#ifdef NPZ_ZLIB
    z_stream z = {.next_in = (z_const Bytef *)(data + e->data),
                  .avail_in = (uInt)e->packed,
                  .next_out = bytes,
                  .avail_out = (uInt)e->size};
    if (inflateInit2(&z, -MAX_WBITS) != Z_OK) {
        return "there is no memory for it";
    }
    bool good = inflate(&z, Z_FINISH) == Z_STREAM_END && z.avail_in == 0 && z.avail_out == 0;
    inflateEnd(&z);
    return good ? NULL : "its compressed bytes are damaged";
#else
    return "it is compressed and this build has no zlib; numpy.savez makes a file without";
#endif
}

static uint32_t npz_crc(const unsigned char *bytes, size_t n)
{
    uint32_t table[256], crc = UINT32_MAX;
    for (uint32_t i = 0; i < 256; i++) {
        table[i] = i;
        for (int bit = 0; bit < 8; bit++) {
            table[i] = table[i] >> 1 ^ (0xedb88320u & (0u - (table[i] & 1)));
        }
    }
    for (size_t i = 0; i < n; i++) {
        crc = crc >> 8 ^ table[(crc ^ bytes[i]) & 0xff];
    }
    return ~crc;
}

/* Read array `name` of an archive's bytes as f32; the caller frees *x_p. Return NULL, or the
 * error. */
static const char *npz_array(const unsigned char *data, size_t size, const char *name,
                             npy_type type, float **x_p, npy_info *info)
{
    npz_entry *entry, *e = NULL;
    size_t n;
    const char *why = npz_list(data, size, &entry, &n);
    for (size_t i = 0; i < n; i++) {
        e = strcmp(entry[i].name, name) == 0 ? &entry[i] : e;
    }
    if (why != NULL || e == NULL) {
        free(entry);
        return why != NULL ? why : "it has no such array";
    }
    unsigned char *bytes = malloc(e->size + 1);
    why = bytes != NULL ? npz_unpack(data, e, bytes) : "there is no memory for it";
    if (why == NULL && npz_crc(bytes, e->size) != e->crc) {
        why = "its bytes are damaged: they have another checksum";
    }
    if (why == NULL && (e->size < 6 || memcmp(bytes, "\x93NUMPY", 6) != 0)) {
        why = "it is no .npy file";
    }
    why = why == NULL ? npy_array(bytes, e->size, type, x_p, info) : why;
    free(bytes);
    free(entry);
    return why;
}

/* Read array `name` of a .npz file as f32. If name is "", read a .npy file or raw numbers. The
 * caller frees *x_p. Return NULL, or the error. */
static const char *npz_read(const char *path, const char *name, npy_type type, float **x_p,
                            npy_info *info)
{
    npy_file file;
    *x_p = NULL;
    const char *why = npy_map(path, &file);
    if (why == NULL) {
        why = name[0] != '\0' ? npz_array(file.data, file.size, name, type, x_p, info)
                              : npy_array(file.data, file.size, type, x_p, info);
    }
    npy_unmap(&file);
    return why;
}

#endif
