/* host.h - the transforms of device.h on host memory, by the kernels of kernels/cpu.h. */
#ifndef DCOMMI_DEVICE_HOST_H
#define DCOMMI_DEVICE_HOST_H

#include "../base/base_impl.h"
#include "../base/forked.h"
#include "device.h"
#include "../../../../kernels/cpu/cpu.h"

/* Bytes: store longer outputs by nontemporal stores. In the caches they would only displace other
 * data, and each of their lines would first be read from memory. Shorter ones are soon read again,
 * by a send or the next step. */
#define DCOMMI_STREAM_MIN ((size_t)4 << 20)
/* Bytes: prefetch one or two longer sources of wide elements. Below this length, with more sources
 * and with 16-bit floats, the processor's own prefetching is better left alone (measured on Zen
 * 5). */
#define DCOMMI_AHEAD_MIN ((size_t)16 << 20)
/* Bytes: a vector loop copies this and more faster than the `rep movsb` of glibc's memcpy. */
#define DCOMMI_COPY_MIN ((size_t)512 << 10)
/* Bytes: memory longer than a message is cold, so prefetch when copying it by nontemporal
 * stores. */
#define DCOMMI_COPY_AHEAD ((size_t)64 << 10)
#define DCOMMI_AVERAGE_BLOCK 16384 /* bytes folded before they are divided */
#define DCOMMI_AVERAGE_GROUP 16    /* operands folded at once */
#define DCOMMI_BYTE_VALUES 256
#define DCOMMI_USER_BLOCK DCOMM_DTYPE_BYTES_MAX /* bytes; one element fits */

/* Choose how to fold. `wanted`: any of DCOMMI_FOLD_STREAM, AHEAD and NEAR. */
static unsigned dcommi_fold_how(const unsigned char *dst, unsigned wanted,
                                const unsigned char *const *src, size_t nsrc, size_t len,
                                size_t element)
{
    unsigned how = DCOMMI_FOLD_STREAM;
    if ((len < DCOMMI_STREAM_MIN && (wanted & DCOMMI_FOLD_STREAM) == 0) ||
        (uintptr_t)dst % element != 0) {
        how = 0; /* aligning to a line would split an element */
    }
    for (size_t s = 0; how != 0 && s < nsrc; s++) {
        if (src[s] == dst) { /* its lines are in the cache anyway */
            how = 0;
        }
    }
    bool ahead = nsrc <= 2 && element > 2;
    if (ahead && len >= DCOMMI_AHEAD_MIN && dcommi_isa_get() == DCOMMI_ISA_AVX512) {
        return how | DCOMMI_FOLD_AHEAD;
    }
    return how | (wanted & (DCOMMI_FOLD_AHEAD | DCOMMI_FOLD_NEAR));
}

/* Copy, as the sum of one operand of bytes. */
static void dcommi_copy_how(void *dst, const void *src, size_t len, unsigned how)
{
    const unsigned char *in = src;
    dcommi_fold_get(DCOMM_U8, DCOMMI_FOLD_SUM)(dst, NULL, &in, 1, len, 0, how);
}

static void dcommi_host_copy(void *dst, const void *src, size_t len)
{
    if (dst == src || len == 0) {
        return;
    }
    if (len < DCOMMI_COPY_MIN || dcommi_isa_get() == DCOMMI_ISA_PORTABLE) {
        memcpy(dst, src, len);
        return;
    }
    dcommi_copy_how(dst, src, len,
                    len >= DCOMMI_STREAM_MIN ? DCOMMI_FOLD_STREAM | DCOMMI_FOLD_AHEAD : 0);
}

static void dcommi_host_copy_plain(void *dst, const void *src, size_t len)
{
    dcommi_copy_how(dst, src, len, 0);
}

static void dcommi_host_copy_ahead(void *dst, const void *src, size_t len)
{
    dcommi_copy_how(dst, src, len, DCOMMI_FOLD_AHEAD | DCOMMI_FOLD_NEAR);
}

static void dcommi_host_copy_past(void *dst, const void *src, size_t len)
{
    dcommi_host_copy_open(dst, src, len);
    dcommi_host_copy_close();
}

static void dcommi_host_copy_open(void *dst, const void *src, size_t len)
{
    unsigned how = DCOMMI_FOLD_STREAM | DCOMMI_FOLD_OPEN;
    dcommi_copy_how(dst, src, len, len >= DCOMMI_COPY_AHEAD ? how | DCOMMI_FOLD_AHEAD : how);
}

static void dcommi_host_copy_close(void)
{
    dcommi_settle();
}

#define DCOMMI_DIVIDE(NAME, TYPE, WIDE)                                             \
    static void dcommi_divide_##NAME(unsigned char *p, size_t len, int64_t divisor) \
    {                                                                               \
        WIDE by = (WIDE)divisor;                                                    \
        for (size_t i = 0; i + sizeof(TYPE) <= len; i += sizeof(TYPE)) {            \
            TYPE x;                                                                 \
            memcpy(&x, p + i, sizeof x);                                            \
            x = (TYPE)((WIDE)x / by);                                               \
            memcpy(p + i, &x, sizeof x);                                            \
        }                                                                           \
    }

/* Use the f64 quotient up to 32 bits: it is never rounded up to a whole number, and it
 * vectorizes. */
DCOMMI_DIVIDE(i8, int8_t, double)
DCOMMI_DIVIDE(u8, uint8_t, double)
DCOMMI_DIVIDE(i32, int32_t, double)
DCOMMI_DIVIDE(u32, uint32_t, double)
DCOMMI_DIVIDE(i64, int64_t, int64_t)
DCOMMI_DIVIDE(u64, uint64_t, uint64_t)

static void dcommi_divide(unsigned char *p, size_t len, dcomm_dtype dtype, int64_t divisor)
{
    static void (*const divide[DCOMM_DTYPE_COUNT])(unsigned char *, size_t, int64_t) = {
        [DCOMM_I8] = dcommi_divide_i8,   [DCOMM_U8] = dcommi_divide_u8,
        [DCOMM_I32] = dcommi_divide_i32, [DCOMM_U32] = dcommi_divide_u32,
        [DCOMM_I64] = dcommi_divide_i64, [DCOMM_U64] = dcommi_divide_u64,
    };
    /* A byte has few quotients, so look them up: this is several times faster. */
    if (dcomm_dtype_size(dtype) == 1 && len > DCOMMI_BYTE_VALUES) {
        unsigned char quotient[DCOMMI_BYTE_VALUES];
        for (int i = 0; i < DCOMMI_BYTE_VALUES; i++) {
            quotient[i] = (unsigned char)i;
        }
        divide[dtype](quotient, sizeof quotient, divisor);
        for (size_t i = 0; i < len; i++) {
            p[i] = quotient[p[i]];
        }
        return;
    }
    divide[dtype](p, len, divisor);
}

/* Fold and divide an integer average block by block, while the block is in the cache. */
static void dcommi_host_average(unsigned char *dst, const unsigned char *const *src, size_t nsrc,
                                size_t len, dcomm_dtype dtype, dcommi_fold_fn fold, int64_t divisor)
{
    const unsigned char *at[DCOMMI_AVERAGE_GROUP];
    for (size_t done = 0, n = 0; done < len; done += n) {
        n = len - done < DCOMMI_AVERAGE_BLOCK ? len - done : DCOMMI_AVERAGE_BLOCK;
        unsigned char sum[DCOMMI_AVERAGE_BLOCK];
        /* Fold in groups: the sum is exact modulo 2^width, so grouping does not change it. */
        for (size_t s = 0; s < nsrc;) {
            size_t k = 0;
            if (s > 0) {
                at[k++] = sum;
            }
            while (k < DCOMMI_AVERAGE_GROUP && s < nsrc) {
                at[k++] = src[s++] + done;
            }
            fold(sum, NULL, at, k, n, 0, 0);
        }
        dcommi_divide(sum, n, dtype, divisor);
        memcpy(dst + done, sum, n);
    }
}

static void dcommi_host_user(unsigned char *dst, const unsigned char *const *src, size_t nsrc,
                             size_t len, dcomm_dtype dtype, dcomm_op_fn fn, void *user)
{
    const size_t element = dcomm_dtype_size(dtype), block = DCOMMI_USER_BLOCK / element * element;
    _Alignas(DCOMMI_CACHE_LINE) unsigned char acc[DCOMMI_USER_BLOCK];
    for (size_t done = 0, n = 0; done < len; done += n) {
        n = len - done < block ? len - done : block;
        memcpy(acc, src[0] + done, n);
        for (size_t s = 1; s < nsrc; s++) {
            fn(src[s] + done, acc, n / element, dtype, user);
        }
        memcpy(dst + done, acc, n);
    }
}

static void dcommi_host_also(void *also, const void *dst, size_t len)
{
    if (also != NULL) {
        memcpy(also, dst, len);
    }
}

static dcomm_status dcommi_host_reduce_both(void *dst, void *also, const void *const *src,
                                            size_t nsrc, size_t count, dcomm_dtype dtype,
                                            dcomm_op op, int64_t divisor, unsigned wanted)
{
    size_t element = dcomm_dtype_size(dtype);
    size_t len;
    if (element == 0 || nsrc == 0 || __builtin_mul_overflow(count, element, &len)) {
        return dcommi_fail(DCOMM_ERR_INVALID, "reduce of %zu operands of %zu elements of dtype %d",
                           nsrc, count, (int)dtype);
    }
    unsigned char *out = dst;
    const unsigned char *const *in = (const unsigned char *const *)src;
    dcommi_fold_kind kind = DCOMMI_FOLD_SUM;
    switch (op) {
    case DCOMM_SUM:
    case DCOMM_AVG:
    case DCOMM_PREMUL_SUM:
        break;
    case DCOMM_PROD:
        kind = DCOMMI_FOLD_PROD;
        break;
    case DCOMM_MIN:
        kind = DCOMMI_FOLD_MIN;
        break;
    case DCOMM_MAX:
        kind = DCOMMI_FOLD_MAX;
        break;
    default: {
        const dcommi_user_op *own = dcommi_user_op_find(op);
        if (own == NULL || divisor > 1) {
            return dcommi_fail(DCOMM_ERR_INVALID, "reduce with operator %d%s", (int)op,
                               own == NULL ? ", which does not exist" : " cannot divide");
        }
        dcommi_callback_begin("the function of an operator");
        dcommi_host_user(out, in, nsrc, len, dtype, own->fn, own->user);
        dcommi_callback_end();
        dcommi_host_also(also, dst, len);
        return DCOMM_OK;
    }
    }
    if (len == 0) {
        return DCOMM_OK;
    }
    if (nsrc == 1 && divisor <= 1) {
        dcommi_host_copy(dst, src[0], len);
        dcommi_host_also(also, dst, len);
        return DCOMM_OK;
    }
    if (dcommi_dtype_is_opaque(dtype)) {
        return dcommi_fail(DCOMM_ERR_INVALID, "reduce with operator %s of opaque elements",
                           dcomm_op_name(op));
    }
    dcommi_fold_fn fold = dcommi_fold_get(dtype, kind);
    if (divisor > 1 && dtype > DCOMM_BF16) {
        dcommi_host_average(out, in, nsrc, len, dtype, fold, divisor);
        dcommi_host_also(also, dst, len);
        return DCOMM_OK;
    }
    unsigned how = dcommi_fold_how(out, wanted, in, nsrc, len, element);
    if ((wanted & DCOMMI_FOLD_ALSO) && (uintptr_t)dst % element == 0 &&
        ((uintptr_t)dst - (uintptr_t)also) % 64 == 0) {
        how |= DCOMMI_FOLD_ALSO;
    } else if (wanted & DCOMMI_FOLD_STREAM) {
        how |= DCOMMI_FOLD_OPEN;
    }
    fold(out, also, in, nsrc, len, divisor > 1 ? (double)divisor : 0, how);
    return DCOMM_OK;
}

static dcomm_status dcommi_host_reduce(void *dst, const void *const *src, size_t nsrc, size_t count,
                                       dcomm_dtype dtype, dcomm_op op, int64_t divisor)
{
    return dcommi_host_reduce_both(dst, NULL, src, nsrc, count, dtype, op, divisor, 0);
}

static void dcommi_host_scale(void *dst, const void *src, size_t count, dcomm_dtype dtype,
                              double factor)
{
    size_t len = count * dcomm_dtype_size(dtype);
    const unsigned char *in = src;
    if (len > 0) {
        dcommi_fold_get(dtype, DCOMMI_FOLD_SCALE)(
            dst, NULL, &in, 1, len, factor,
            dcommi_fold_how(dst, 0, &in, 1, len, dcomm_dtype_size(dtype)));
    }
}

#endif
