/* rows.h - operations on rows: gather, weight and sum, multiply with each other. Sums are in f32,
 * in the order of the list. */
#ifndef DCOMMI_MOE_ROWS_H
#define DCOMMI_MOE_ROWS_H

#include "../../base/load.h"
#include "types.h"

/* ---- copying ---- */

/* Return true if so many bytes are written by nontemporal stores: the caches would not keep them
 * until they are read. */
static inline bool dcommi_moe_past(size_t bytes)
{
    return bytes >= DCOMMI_STREAM_MIN && dcommi_isa_get() != DCOMMI_ISA_PORTABLE;
}

/* Copy one of several pieces. If `past`, call dcommi_host_copy_close after the last. */
static inline void dcommi_moe_copy(unsigned char *dst, const unsigned char *src, size_t bytes,
                                   bool past)
{
    if (past) {
        dcommi_host_copy_open(dst, src, bytes);
    } else if (bytes > 0) {
        memcpy(dst, src, bytes);
    }
}

/* Set dst[i] = src[from[i] - first] for n rows of `bytes` bytes. */
static void dcommi_moe_gather(unsigned char *dst, const unsigned char *src, const uint32_t *from,
                              size_t first, size_t n, size_t bytes)
{
    bool past = bytes >= 1024 && dcommi_moe_past(n * bytes);
    for (size_t i = 0; i < n; i++) {
        dcommi_moe_copy(dst + i * bytes, src + (from[i] - first) * bytes, bytes, past);
    }
    dcommi_host_copy_close();
}

/* ---- arithmetic on rows ---- */

#define DCOMMI_MOE_BLOCK 256 /* elements summed before they are stored */
#define DCOMMI_MOE_LANES 8   /* partial sums of a scalar product, whatever the instruction set */

/* Define arithmetic on rows of one type. sum: dst = sum over i of weight[list[i]] * src[list[i] -
 * base] (weight NULL: 1); an empty sum is 0. scale: dst = weight * src. dot: the scalar
 * product. */
#define DCOMMI_MOE_ARITHMETIC(T, SIZE)                                                             \
    static void dcommi_moe_sum_##T(unsigned char *dst, const unsigned char *src, size_t hidden,    \
                                   size_t base, const uint32_t *list, size_t n,                    \
                                   const float *weight)                                            \
    {                                                                                              \
        float sum[DCOMMI_MOE_BLOCK];                                                               \
        for (size_t at = 0; at < hidden; at += DCOMMI_MOE_BLOCK) {                                 \
            size_t len = hidden - at < DCOMMI_MOE_BLOCK ? hidden - at : DCOMMI_MOE_BLOCK;          \
            for (size_t k = 0; k < n; k++) {                                                       \
                const unsigned char *row = src + (list[k] - base) * hidden * SIZE;                 \
                float w = weight != NULL ? weight[list[k]] : 1;                                    \
                for (size_t i = 0; i < len && k == 0; i++) {                                       \
                    sum[i] = w * dcommi_load_##T(row, at + i);                                     \
                }                                                                                  \
                for (size_t i = 0; i < len && k > 0; i++) {                                        \
                    float product = w * dcommi_load_##T(row, at + i);                              \
                    sum[i] += product;                                                             \
                }                                                                                  \
            }                                                                                      \
            for (size_t i = 0; i < len; i++) {                                                     \
                dcommi_store_##T(dst, at + i, n > 0 ? sum[i] : 0);                                 \
            }                                                                                      \
        }                                                                                          \
    }                                                                                              \
    static void dcommi_moe_scale_##T(unsigned char *dst, const unsigned char *src, size_t hidden,  \
                                     float weight)                                                 \
    {                                                                                              \
        for (size_t i = 0; i < hidden; i++) {                                                      \
            dcommi_store_##T(dst, i, weight *dcommi_load_##T(src, i));                             \
        }                                                                                          \
    }                                                                                              \
    static float dcommi_moe_dot_##T(const unsigned char *a, const unsigned char *b, size_t hidden) \
    {                                                                                              \
        float part[DCOMMI_MOE_LANES] = {0}, sum = 0;                                               \
        for (size_t i = 0; i < hidden; i++) {                                                      \
            float product = dcommi_load_##T(a, i) * dcommi_load_##T(b, i);                         \
            part[i % DCOMMI_MOE_LANES] += product;                                                 \
        }                                                                                          \
        for (int l = 0; l < DCOMMI_MOE_LANES; l++) {                                               \
            sum += part[l];                                                                        \
        }                                                                                          \
        return sum;                                                                                \
    }

DCOMMI_MOE_ARITHMETIC(f32, 4)
DCOMMI_MOE_ARITHMETIC(f16, 2)
DCOMMI_MOE_ARITHMETIC(bf16, 2)
#undef DCOMMI_MOE_ARITHMETIC

/* Sum the entries of chunk c into its source rows. dst and src are the chunk's. */
static void dcommi_moe_sum(const dcomm_moe *m, const dcommi_moe_stage *s, int c, unsigned char *dst,
                           const unsigned char *src, bool weighted)
{
    size_t bytes = m->row, first = s->source_first[c], base = s->send_first[c];
    const float *weight = weighted ? s->weight : NULL;
    for (size_t r = first; r < s->source_first[c + 1]; r++) {
        const uint32_t *list = s->entry + s->start[r];
        size_t n = s->start[r + 1] - s->start[r];
        unsigned char *to = dst + (r - first) * bytes;
        if (n == 1 && (weight == NULL || weight[list[0]] == 1)) {
            memcpy(to, src + (list[0] - base) * bytes, bytes);
        } else if (m->opts.dtype == DCOMM_F32) {
            dcommi_moe_sum_f32(to, src, m->opts.hidden, base, list, n, weight);
        } else if (m->opts.dtype == DCOMM_F16) {
            dcommi_moe_sum_f16(to, src, m->opts.hidden, base, list, n, weight);
        } else {
            dcommi_moe_sum_bf16(to, src, m->opts.hidden, base, list, n, weight);
        }
    }
}

static void dcommi_moe_scale(const dcomm_moe *m, unsigned char *dst, const unsigned char *src,
                             float weight)
{
    switch (m->opts.dtype) {
    case DCOMM_F16:
        dcommi_moe_scale_f16(dst, src, m->opts.hidden, weight);
        break;
    case DCOMM_BF16:
        dcommi_moe_scale_bf16(dst, src, m->opts.hidden, weight);
        break;
    default:
        dcommi_moe_scale_f32(dst, src, m->opts.hidden, weight);
        break;
    }
}

static float dcommi_moe_dot(const dcomm_moe *m, const unsigned char *a, const unsigned char *b)
{
    switch (m->opts.dtype) {
    case DCOMM_F16:
        return dcommi_moe_dot_f16(a, b, m->opts.hidden);
    case DCOMM_BF16:
        return dcommi_moe_dot_bf16(a, b, m->opts.hidden);
    default:
        return dcommi_moe_dot_f32(a, b, m->opts.hidden);
    }
}

#endif
