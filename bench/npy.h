/* npy.h - read NumPy's .npy files (arrays of float16, float32 or float64 in C order) and files of
 * raw numbers (also bf16) as f32, and write f32 arrays. Files are not trusted: the parser reads no
 * byte outside the file. */
#ifndef NPY_H
#define NPY_H

#include "../kernels/math.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NPY_DIMS = 8, NPY_PREFIX = 10, NPY_ALIGN = 64 };

/* The facts of the header, checked against the size of the file. */
typedef struct npy_info {
    size_t offset; /* offset of the elements in the file */
    size_t count;
    size_t shape[NPY_DIMS];
    int ndim;
    int width; /* bytes of one element: 2, 4 or 8 */
    bool bits; /* a 16-bit type that is no NumPy float: bf16, if the caller says so */
    bool bf16;
} npy_info;

/* The type of the elements as the caller gives it. NPY_ANY: the caller gave none. */
typedef enum npy_type { NPY_ANY, NPY_F32, NPY_F16, NPY_BF16, NPY_F64 } npy_type;

/* The rest of the header's text. */
typedef struct npy_text {
    const char *at, *end;
} npy_text;

static void npy_blanks(npy_text *t)
{
    while (t->at < t->end && (*t->at == ' ' || *t->at == '\t' || *t->at == '\n')) {
        t->at++;
    }
}

static bool npy_take(npy_text *t, char c)
{
    npy_blanks(t);
    if (t->at < t->end && *t->at == c) {
        t->at++;
        return true;
    }
    return false;
}

/* Parse a quoted word without escapes, of at most 15 characters. */
static bool npy_word(npy_text *t, char word[16])
{
    npy_blanks(t);
    if (t->at == t->end || (*t->at != '\'' && *t->at != '"')) {
        return false;
    }
    char quote = *t->at++;
    size_t n = 0;
    while (t->at < t->end && *t->at != quote && *t->at != '\\' && n < 15) {
        word[n++] = *t->at++;
    }
    word[n] = '\0';
    return npy_take(t, quote);
}

static bool npy_size(npy_text *t, size_t *value)
{
    npy_blanks(t);
    const char *start = t->at;
    *value = 0;
    while (t->at < t->end && *t->at >= '0' && *t->at <= '9') {
        if (__builtin_mul_overflow(*value, (size_t)10, value) ||
            __builtin_add_overflow(*value, (size_t)(*t->at - '0'), value)) {
            return false;
        }
        t->at++;
    }
    return t->at > start;
}

static const char *npy_descr(npy_text *t, npy_info *info)
{
    char word[16];
    if (!npy_word(t, word)) {
        return "its type is not one of NumPy's simple types";
    }
    if (word[0] == '>') {
        return "it is big-endian; save x.astype('<f4')";
    }
    info->bits = strlen(word) == 3 && strchr("<=|", word[0]) != NULL &&
                 (strcmp(word + 1, "V2") == 0 || strcmp(word + 1, "u2") == 0);
    bool is_float = (word[0] == '<' || word[0] == '=') && word[1] == 'f' && word[3] == '\0';
    is_float = is_float || info->bits;
    info->width = is_float ? word[2] - '0' : 0;
    if (info->width != 2 && info->width != 4 && info->width != 8) {
        return "its type is not float16, float32 or float64";
    }
    return NULL;
}

static const char *npy_shape(npy_text *t, npy_info *info)
{
    static const char malformed[] = "its shape is malformed";
    if (!npy_take(t, '(')) {
        return malformed;
    }
    info->count = 1;
    while (!npy_take(t, ')')) {
        if (info->ndim == NPY_DIMS) {
            return "it has more than 8 dimensions";
        }
        size_t *extent = &info->shape[info->ndim++];
        if (!npy_size(t, extent)) {
            return malformed;
        }
        if (__builtin_mul_overflow(info->count, *extent, &info->count)) {
            return "its shape exceeds the address space";
        }
        bool comma = npy_take(t, ',');
        npy_blanks(t);
        bool last = t->at < t->end && *t->at == ')';
        if (!(comma || (last && info->ndim > 1))) { /* a tuple of one element has a comma */
            return malformed;
        }
    }
    return NULL;
}

static const char *npy_fortran(npy_text *t, bool *fortran)
{
    npy_blanks(t);
    size_t left = (size_t)(t->end - t->at);
    *fortran = left >= 4 && memcmp(t->at, "True", 4) == 0;
    if (!*fortran && !(left >= 5 && memcmp(t->at, "False", 5) == 0)) {
        return "its fortran_order is malformed";
    }
    t->at += *fortran ? 4 : 5;
    return NULL;
}

/* Parse the dictionary. It must have each of the three keys once, in any order. */
static const char *npy_dictionary(npy_text *t, npy_info *info)
{
    static const char *const keys[] = {"descr", "fortran_order", "shape"};
    bool seen[3] = {false}, fortran = false;
    if (!npy_take(t, '{')) {
        return "its header is no dictionary";
    }
    while (!npy_take(t, '}')) {
        char word[16];
        int key = 0;
        if (!npy_word(t, word) || !npy_take(t, ':')) {
            return "its header is malformed";
        }
        while (key < 3 && strcmp(word, keys[key]) != 0) {
            key++;
        }
        if (key == 3 || seen[key]) {
            return "its header has a key that is unknown or stands twice";
        }
        seen[key] = true;
        const char *why = key == 0   ? npy_descr(t, info)
                          : key == 1 ? npy_fortran(t, &fortran)
                                     : npy_shape(t, info);
        if (why != NULL) {
            return why;
        }
        npy_blanks(t);
        if (!npy_take(t, ',') && !(t->at < t->end && *t->at == '}')) {
            return "its header is malformed";
        }
    }
    npy_blanks(t);
    if (t->at != t->end) {
        return "something follows its header's dictionary";
    }
    if (!seen[0] || !seen[1] || !seen[2]) {
        return "its header lacks descr, fortran_order or shape";
    }
    return fortran && info->ndim > 1 ? "it is in Fortran order; save numpy.ascontiguousarray(x)"
                                     : NULL;
}

/* Parse the header of a .npy file. Return NULL, or why these bytes are not an array that can be
 * read. */
static const char *npy_parse(const unsigned char *data, size_t size, npy_info *info)
{
    *info = (npy_info){0};
    if (size < NPY_PREFIX || memcmp(data, "\x93NUMPY", 6) != 0) {
        return "it is no .npy file; raw numbers need --dtype f32, f16, bf16 or f64; from torch: "
               "numpy.save(\"g.npy\", g.float().cpu().numpy())";
    }
    size_t start = NPY_PREFIX, length = (size_t)data[8] | (size_t)data[9] << 8;
    if (data[7] != 0) {
        return "its format version is unknown";
    }
    if (data[6] == 2 || data[6] == 3) {
        start += 2;
        if (size < start) {
            return "it ends within its header";
        }
        length |= (size_t)data[10] << 16 | (size_t)data[11] << 24;
    } else if (data[6] != 1) {
        return "its format version is unknown";
    }
    if (length > size - start) {
        return "it ends within its header";
    }
    npy_text text = {(const char *)data + start, (const char *)data + start + length};
    const char *why = npy_dictionary(&text, info);
    if (why != NULL) {
        return why;
    }
    info->offset = start + length;
    size_t bytes;
    if (__builtin_mul_overflow(info->count, (size_t)info->width, &bytes) ||
        bytes > size - info->offset) {
        return "it is shorter than its shape says";
    }
    return bytes < size - info->offset ? "it is longer than its shape says" : NULL;
}

/* Convert elements [first, first + count) to f32. f64 rounds to nearest even; a value beyond f32
 * becomes infinite. */
static void npy_convert(const unsigned char *data, const npy_info *info, size_t first, size_t count,
                        float *x)
{
    const unsigned char *at = data + info->offset + first * (size_t)info->width;
    if (info->width == 4) {
        memcpy(x, at, count * sizeof *x);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        if (info->width == 8) {
            double wide;
            memcpy(&wide, at + 8 * i, sizeof wide);
            x[i] = (float)wide;
        } else {
            uint16_t half;
            memcpy(&half, at + 2 * i, sizeof half);
            x[i] = info->bf16 ? dcommi_bf16_to_f32(half) : dcommi_f16_to_f32(half);
        }
    }
}

/* Parse a file's bytes: a .npy file, or raw numbers if a type was given. Return NULL, or the
 * error. */
static const char *npy_parse_as(const unsigned char *data, size_t size, npy_type type,
                                npy_info *info)
{
    static const int width[] = {0, 4, 2, 2, 8};
    if (type != NPY_ANY && (size < 6 || memcmp(data, "\x93NUMPY", 6) != 0)) {
        *info = (npy_info){.ndim = 1, .width = width[type], .bf16 = type == NPY_BF16};
        info->count = info->shape[0] = size / (size_t)info->width;
        return size % (size_t)info->width == 0 ? NULL
                                               : "its size is not a multiple of its --dtype's";
    }
    const char *why = npy_parse(data, size, info);
    info->bf16 = info->bits && type == NPY_BF16;
    return why != NULL              ? why
           : info->bits != info->bf16 ? "its type is not float16, float32 or float64; for 16-bit "
                                        "words that are bfloat16 say --dtype bf16"
           : type != NPY_ANY && (info->width != width[type] || info->bf16 != (type == NPY_BF16))
               ? "its type is another than --dtype says"
               : NULL;
}

/* Read a file's bytes as f32; the caller frees *x_p. Return NULL, or the error. */
static inline const char *npy_array(const unsigned char *data, size_t size, npy_type type, float **x_p,
                                    npy_info *info)
{
    const char *why = npy_parse_as(data, size, type, info);
    if (why != NULL) {
        return why;
    }
    *x_p = malloc(info->count * sizeof **x_p + 1);
    if (*x_p == NULL) {
        return "there is no memory for it";
    }
    if (info->count > 0) { /* an empty file has no address */
        npy_convert(data, info, 0, info->count, *x_p);
    }
    return NULL;
}

/* A file's bytes, mapped into memory. So only the used parts of a large archive are read. */
typedef struct npy_file {
    unsigned char *data; /* NULL: nothing is mapped */
    size_t size;
} npy_file;

static inline void npy_unmap(npy_file *file)
{
    if (file->data != NULL) {
        munmap(file->data, file->size);
    }
    file->data = NULL;
}

/* Map a file; the caller unmaps it. Return NULL, or the error. */
static inline const char *npy_map(const char *path, npy_file *file)
{
    struct stat about;
    const char *why = NULL;
    *file = (npy_file){0};
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &about) != 0) {
        why = strerror(errno);
    } else if (!S_ISREG(about.st_mode)) {
        why = "it is no regular file";
    } else if (about.st_size > 0) {
        void *data = mmap(NULL, (size_t)about.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        why = data == MAP_FAILED ? strerror(errno) : NULL;
        file->data = data == MAP_FAILED ? NULL : data;
        file->size = (size_t)about.st_size;
    }
    if (fd >= 0) {
        close(fd);
    }
    return why;
}

/* Write a one-dimensional f32 array. Return false and set errno if it cannot be written. */
static inline bool npy_write(const char *path, const float *x, size_t count)
{
    FILE *file = fopen(path, "wb");
    if (file == NULL) {
        return false;
    }
    char header[2 * NPY_ALIGN] = "\x93NUMPY\x01";
    int length = snprintf(header + NPY_PREFIX, sizeof header - NPY_PREFIX,
                          "{'descr': '<f4', 'fortran_order': False, 'shape': (%zu,), }", count);
    memset(header + NPY_PREFIX + length, ' ', sizeof header - NPY_PREFIX - (size_t)length - 1);
    header[sizeof header - 1] = '\n';
    header[8] = (char)(sizeof header - NPY_PREFIX);
    bool good =
        fwrite(header, sizeof header, 1, file) == 1 && fwrite(x, sizeof *x, count, file) == count;
    return fclose(file) == 0 && good;
}

#endif
