/* codec_input.h - the gradients that dcomm-codec encodes: from .npy and .npz files, or random
 * numbers of a known distribution. Random element `index` depends only on (seed, rank, step,
 * index), so any part of a gradient can be made by itself. */
#ifndef CODEC_INPUT_H
#define CODEC_INPUT_H

#include "../include/dcomm/impl/base/text.h"
#include "npz.h"

#include <math.h>

enum { INPUT_TEXT = 512, INPUT_PATH = 1024 };
#define INPUT_MOST ((double)((size_t)1 << 36))

typedef enum input_kind {
    INPUT_GAUSSIAN,
    INPUT_LAPLACE,
    INPUT_LOGNORMAL,
    INPUT_SPARSE,
    INPUT_CONSTANT,
    INPUT_KINDS,
    INPUT_FILE = INPUT_KINDS
} input_kind;

static const char *const input_names[INPUT_KINDS] = {"gaussian", "laplace", "lognormal", "sparse",
                                                     "constant"};

static const char input_help[] =
    "  --input WHAT   what to encode; several --input, or names alone (grads/*.npy), are several\n"
    "                 tensors, shown one by one and in total. WHAT is a .npy file (float16,\n"
    "                 float32, float64), a .npz file with all its arrays, a folder with all its\n"
    "                 .npy and .npz files, a file of nothing but numbers with --dtype, or a\n"
    "                 DISTRIBUTION. %r in a name is the rank, %s the step. From torch:\n"
    "                   numpy.save(\"g.npy\", g.float().cpu().numpy())\n"
    "                   numpy.savez(\"g.npz\", **{n: p.grad.float().cpu().numpy()\n"
    "                                          for n, p in model.named_parameters()})\n"
    "                 DISTRIBUTION:n=COUNT[,seed=S][,scale=X] (1M, 1, 1) is one of\n"
    "                   gaussian   normal\n"
    "                   laplace    exponential tails, variance 2 scale^2\n"
    "                   lognormal  normal times exp(sigma normal): sigma=X (1), one exponent to\n"
    "                              block=N elements (1)\n"
    "                   sparse     normal where not zero: density=X (0.1)\n"
    "                   constant   scale times a random sign\n"
    "  --dtype T      of a file without a header: f32, f16, bf16 or f64, little-endian; bf16 also\n"
    "                 says what the 16-bit words of a .npy file are\n";

static const char *const input_types[] = {"", "f32", "f16", "bf16", "f64"};

typedef struct codec_input {
    input_kind kind;
    size_t n;
    uint64_t seed;
    double scale, sigma, density;
    size_t block;
    char pattern[INPUT_PATH]; /* pattern of file names */
    char member[NPZ_NAME];    /* name of the array in a .npz file, else "" */
    float **file;             /* elements for each rank at the open step; or one file for all
                                 ranks */
    char (*path)[INPUT_PATH]; /* path of each open file */
    size_t nfiles;
    npy_type type;         /* type of a file's elements, if the user gave one */
    size_t rows;           /* rows of the file's array, if it has two dimensions or more; else 0 */
    char text[INPUT_TEXT]; /* the input with all options, for reports */
} codec_input;

/* ---- the argument of --input ---- */

static bool input_number(const char *text, double least, double most, bool suffix, double *value)
{
    const char *end = dcommi_text_decimal(text, value);
    if (end == NULL) {
        return false;
    }
    if (suffix && (*end == 'K' || *end == 'M' || *end == 'G')) {
        *value *= *end == 'K' ? 0x1p10 : *end == 'M' ? 0x1p20 : 0x1p30;
        end++;
    }
    return *end == '\0' && *value >= least && *value <= most &&
           (!suffix || *value == floor(*value));
}

static bool input_option(codec_input *in, const char *key, const char *text)
{
    double value;
    if (strcmp(key, "n") == 0) {
        bool good = input_number(text, 1, INPUT_MOST, true, &value);
        in->n = good ? (size_t)value : 0;
        return good;
    }
    if (strcmp(key, "seed") == 0) {
        bool good = input_number(text, 0, 0x1p52, true, &value);
        in->seed = good ? (uint64_t)value : 0;
        return good;
    }
    if (strcmp(key, "block") == 0 && in->kind == INPUT_LOGNORMAL) {
        bool good = input_number(text, 1, INPUT_MOST, true, &value);
        in->block = good ? (size_t)value : 1;
        return good;
    }
    if (strcmp(key, "scale") == 0) {
        return input_number(text, 1e-45, 1e38, false, &in->scale);
    }
    if (strcmp(key, "sigma") == 0 && in->kind == INPUT_LOGNORMAL) {
        return input_number(text, 0, 20, false, &in->sigma);
    }
    return strcmp(key, "density") == 0 && in->kind == INPUT_SPARSE &&
           input_number(text, 0, 1, false, &in->density);
}

/* Parse a distribution or the name of a file. Return false, with a sentence in why, for a bad
 * option. Files are opened later. */
static bool input_parse(codec_input *in, const char *what, char why[INPUT_TEXT])
{
    *in = (codec_input){
        .n = (size_t)1 << 20, .seed = 1, .scale = 1, .sigma = 1, .density = 0.1, .block = 1};
    size_t name = strcspn(what, ":");
    int kind = 0;
    while (kind < INPUT_KINDS &&
           (strlen(input_names[kind]) != name || strncmp(what, input_names[kind], name) != 0)) {
        kind++;
    }
    in->kind = (input_kind)kind;
    if (strlen(what) >= INPUT_TEXT) {
        snprintf(why, INPUT_TEXT, "--input is too long");
        return false;
    }
    if (kind == INPUT_FILE) {
        snprintf(in->pattern, sizeof in->pattern, "%s", what);
        snprintf(in->text, sizeof in->text, "%s", what);
        return true;
    }
    char copy[INPUT_TEXT], *rest = copy;
    snprintf(copy, sizeof copy, "%s", what[name] == ':' ? what + name + 1 : "");
    while (rest != NULL && *rest != '\0') {
        char *key = strsep(&rest, ","), *value = strchr(key, '=');
        if (value != NULL) {
            *value++ = '\0';
        }
        if (value == NULL || !input_option(in, key, value)) {
            snprintf(why, INPUT_TEXT, "%.16s has no option '%.64s', or not the value '%.64s'",
                     input_names[kind], key, value != NULL ? value : "");
            return false;
        }
    }
    int at = snprintf(in->text, sizeof in->text, "%s:n=%zu,seed=%" PRIu64 ",scale=%g",
                      input_names[kind], in->n, in->seed, in->scale);
    if (kind == INPUT_LOGNORMAL) {
        snprintf(in->text + at, sizeof in->text - (size_t)at, ",sigma=%g,block=%zu", in->sigma,
                 in->block);
    } else if (kind == INPUT_SPARSE) {
        snprintf(in->text + at, sizeof in->text - (size_t)at, ",density=%g", in->density);
    }
    return true;
}

/* ---- files ---- */

static void input_path(const codec_input *in, uint32_t rank, uint64_t step, char path[INPUT_PATH])
{
    size_t n = 0;
    for (const char *c = in->pattern; *c != '\0' && n + 24 < INPUT_PATH; c++) {
        bool is_rank = c[0] == '%' && c[1] == 'r', is_step = c[0] == '%' && c[1] == 's';
        if (is_rank || is_step) {
            n += (size_t)snprintf(path + n, INPUT_PATH - n, "%" PRIu64, is_rank ? rank : step);
            c++;
        } else {
            path[n++] = *c;
        }
    }
    path[n] = '\0';
}

/* Open the gradients of this step for ranks 0 .. nranks - 1. */
static bool input_open(codec_input *in, uint32_t nranks, uint64_t step, char why[INPUT_TEXT])
{
    if (in->kind != INPUT_FILE) {
        return true;
    }
    if (in->file == NULL) {
        in->nfiles = strstr(in->pattern, "%r") != NULL ? nranks : 1;
        in->file = calloc(in->nfiles, sizeof *in->file);
        in->path = calloc(in->nfiles, sizeof *in->path);
        if (in->file == NULL || in->path == NULL) {
            snprintf(why, INPUT_TEXT, "no memory");
            return false;
        }
    }
    for (uint32_t r = 0; r < in->nfiles; r++) {
        char path[INPUT_PATH];
        input_path(in, r, step, path);
        if (in->file[r] != NULL && strcmp(path, in->path[r]) == 0) {
            continue;
        }
        npy_info info = {0};
        free(in->file[r]);
        const char *bad = npz_read(path, in->member, in->type, &in->file[r], &info);
        if (bad != NULL) {
            snprintf(why, INPUT_TEXT, "%.200s%s%.100s: %s", path, in->member[0] != '\0' ? ": " : "",
                     in->member, bad);
            return false;
        }
        bool first = r == 0 && in->path[0][0] == '\0';
        if (!first && info.count != in->n) {
            snprintf(why, INPUT_TEXT, "%.300s has %zu elements, the first file %zu", path,
                     info.count, in->n);
            return false;
        }
        in->n = info.count;
        in->rows = info.ndim > 1 ? info.shape[0] : 0;
        memcpy(in->path[r], path, sizeof path);
    }
    return true;
}

static void input_close(codec_input *in)
{
    for (size_t r = 0; in->file != NULL && r < in->nfiles; r++) {
        free(in->file[r]);
    }
    free(in->file);
    free(in->path);
    in->file = NULL;
    in->path = NULL;
}

/* ---- numbers ---- */

/* Return a random number by splitmix64 over a counter: any element can be drawn without those
 * before it. */
static inline uint64_t input_mix(uint64_t a, uint64_t b)
{
    uint64_t z = (a ^ (b * 0xd1b54a32d192ed03u)) + 0x9e3779b97f4a7c15u * (b + 1);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Make two independent normal numbers (Box and Muller). */
static void input_normal(uint64_t bits, float out[2])
{
    float u = ((float)(bits >> 40) + 1) * 0x1p-24f; /* (0, 1] */
    float angle = (float)(bits & 0xffffff) * (float)(6.283185307179586 * 0x1p-24);
    float radius = sqrtf(-2 * logf(u));
    out[0] = radius * cosf(angle);
    out[1] = radius * sinf(angle);
}

static float input_one(const codec_input *in, uint64_t stream, uint64_t i)
{
    float pair[2];
    input_normal(input_mix(stream, i / 2), pair);
    float normal = pair[i % 2];
    uint64_t other = input_mix(stream ^ 0xa5a5a5a5a5a5a5a5u, i);
    double u = ((double)(other >> 11) + 0.5) * 0x1p-53;
    switch (in->kind) {
    case INPUT_LAPLACE:
        return (float)(in->scale * (u < 0.5 ? log(2 * u) : -log(2 - 2 * u)));
    case INPUT_LOGNORMAL:
        input_normal(input_mix(stream ^ 0x5a5a5a5a5a5a5a5au, i / in->block), pair);
        return (float)(in->scale * normal * exp(in->sigma * pair[0]));
    case INPUT_SPARSE:
        return u < in->density ? (float)in->scale * normal : 0;
    case INPUT_CONSTANT:
        return (float)(u < 0.5 ? in->scale : -in->scale);
    default:
        return (float)in->scale * normal;
    }
}

/* Fill x with elements [first, first + count) of the gradient of one rank at one step. */
static void input_fill(const codec_input *in, uint32_t rank, uint64_t step, size_t first,
                       size_t count, float *x)
{
    if (in->kind == INPUT_FILE) {
        memcpy(x, in->file[in->nfiles > 1 ? rank : 0] + first, count * sizeof *x);
        return;
    }
    uint64_t stream = input_mix(input_mix(in->seed, step), rank);
    size_t i = 0;
    if (in->kind == INPUT_GAUSSIAN) {
        if (count > 0 && first % 2 != 0) {
            x[i++] = input_one(in, stream, first);
        }
        for (; i + 2 <= count; i += 2) {
            input_normal(input_mix(stream, (first + i) / 2), x + i);
            x[i] *= (float)in->scale;
            x[i + 1] *= (float)in->scale;
        }
    }
    for (; i < count; i++) {
        x[i] = input_one(in, stream, first + i);
    }
}

#endif
