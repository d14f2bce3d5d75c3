/* util.h - errors with a sentence, logging, memory, checked sizes, time. */
#ifndef DCOMMI_UTIL_H
#define DCOMMI_UTIL_H

#include "../../base.h"
#include "text.h"
#include "../../../../kernels/mix.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#define DCOMMI_PRINTF(a, b) __attribute__((format(printf, a, b)))
#define DCOMMI_LIKELY(x) __builtin_expect(!!(x), 1)
#define DCOMMI_UNLIKELY(x) __builtin_expect(!!(x), 0)
#define DCOMMI_CACHE_LINE 64
#define DCOMMI_STATUS_LAST DCOMM_ERR_QUORUM /* the lowest: other ranks send statuses, too */

#define DCOMMI_TRY(expression)                         \
    do {                                               \
        dcomm_status dcommi_try_status = (expression); \
        if (DCOMMI_UNLIKELY(dcommi_try_status < 0)) {  \
            return dcommi_try_status;                  \
        }                                              \
    } while (0)

/* Evaluate `expression` unless `status` is an error already. */
#define DCOMMI_THEN(status, expression) ((status) = (status) < 0 ? (status) : (expression))

/* ---- the last error's sentence, per thread ---- */

#define DCOMMI_MESSAGE_MAX 512
static _Thread_local char dcommi_message[DCOMMI_MESSAGE_MAX];

/* Remember the sentence for dcomm_last_error and return the status. */
static dcomm_status DCOMMI_PRINTF(2, 3) dcommi_fail(dcomm_status status, const char *format, ...)
{
    char text[DCOMMI_MESSAGE_MAX]; /* the arguments may point into dcommi_message */
    va_list args;
    va_start(args, format);
    dcommi_vsnprintf(text, sizeof text, format, args);
    va_end(args);
    memcpy(dcommi_message, text, sizeof text);
    return status;
}

/* Refuse an argument of a public function that is NULL. */
#define DCOMMI_NEED(argument)                                                             \
    do {                                                                                  \
        if (DCOMMI_UNLIKELY((argument) == NULL)) {                                        \
            return dcommi_fail(DCOMM_ERR_INVALID, "%s: %s is NULL", __func__, #argument); \
        }                                                                                 \
    } while (0)

/* ---- texts made of parts ---- */

/* A text buffer. `used` goes on counting when the buffer is full, as snprintf does. */
typedef struct dcommi_print_text {
    char *buf;
    size_t len, used;
} dcommi_print_text;

static inline void DCOMMI_PRINTF(2, 3)
    dcommi_print_add(dcommi_print_text *t, const char *format, ...)
{
    size_t room = t->used < t->len ? t->len - t->used : 0;
    va_list args;
    va_start(args, format);
    int n = dcommi_vsnprintf(room > 0 ? t->buf + t->used : NULL, room, format, args);
    va_end(args);
    t->used += n > 0 ? (size_t)n : 0;
}

/* ---- logging ---- */

enum { DCOMMI_LOG_ERROR = 0, DCOMMI_LOG_WARN = 1, DCOMMI_LOG_INFO = 2 };
#define DCOMMI_LOG_CHOICES "error|warn|info"

static dcomm_log_fn dcommi_log_fn;
static void *dcommi_log_user;

/* Translate NCCL_DEBUG, which counts if DCOMM_LOG is not set. Return -1 for no or an unknown
 * level. */
static int dcommi_log_level_of_nccl(const char *nccl)
{
    static const char *const names[] = {"NONE", "VERSION", "WARN", "ATTN",
                                        "INFO", "ABORT",   "TRACE"};
    for (int i = 0; nccl != NULL && i < (int)(sizeof names / sizeof names[0]); i++) {
        if (dcommi_text_same(nccl, names[i])) {
            return i == 0 ? DCOMMI_LOG_ERROR : i < 4 ? DCOMMI_LOG_WARN : DCOMMI_LOG_INFO;
        }
    }
    return -1;
}

static int dcommi_log_level(void)
{
    static _Atomic int level = -1;
    int known = atomic_load_explicit(&level, memory_order_relaxed);
    if (known < 0) {
        const char *wanted = getenv("DCOMM_LOG");
        known = wanted != NULL && *wanted != '\0'
                    ? dcommi_text_choice(DCOMMI_LOG_CHOICES, wanted, strlen(wanted))
                    : dcommi_log_level_of_nccl(getenv("NCCL_DEBUG"));
        known = known >= 0 ? known : DCOMMI_LOG_WARN;
        atomic_store_explicit(&level, known, memory_order_relaxed);
    }
    return known;
}

static inline void DCOMMI_PRINTF(2, 3) dcommi_log(int level, const char *format, ...)
{
    if (level > dcommi_log_level()) {
        return;
    }
    char text[DCOMMI_MESSAGE_MAX];
    va_list args;
    va_start(args, format);
    dcommi_vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (dcommi_log_fn != NULL) {
        dcommi_log_fn(level, text, dcommi_log_user);
    } else {
        fprintf(stderr, "dcomm: %s\n", text);
    }
}

/* ---- memory ---- */

static dcomm_alloc_fn dcommi_alloc_fn;
static dcomm_free_fn dcommi_free_fn;
static void *dcommi_alloc_user;

/* Allocate cache-line-aligned memory with undefined contents. Return NULL, with an error sentence,
 * if there is none. The allocator is never asked for 0 bytes. */
static void *dcommi_alloc_raw(size_t bytes)
{
    size_t padded = 0;
    void *p = NULL;
    if (!__builtin_add_overflow(bytes, (size_t)(bytes == 0) + DCOMMI_CACHE_LINE - 1, &padded)) {
        padded &= ~(size_t)(DCOMMI_CACHE_LINE - 1);
        p = dcommi_alloc_fn != NULL ? dcommi_alloc_fn(DCOMMI_CACHE_LINE, padded, dcommi_alloc_user)
                                    : aligned_alloc(DCOMMI_CACHE_LINE, padded);
    }
    if (p == NULL) {
        dcommi_fail(DCOMM_ERR_NO_MEMORY, "no memory for %zu bytes", bytes);
    }
    return p;
}

/* Do as dcommi_alloc_raw, and zero the memory. */
static void *dcommi_alloc(size_t bytes)
{
    void *p = dcommi_alloc_raw(bytes);
    if (p != NULL) {
        memset(p, 0, bytes);
    }
    return p;
}

static void dcommi_free(void *p)
{
    if (p == NULL) {
        return;
    }
    if (dcommi_free_fn != NULL) {
        dcommi_free_fn(p, dcommi_alloc_user);
    } else if (dcommi_alloc_fn == NULL) {
        free(p);
    }
}

/* Allocate a zeroed array. Return NULL on overflow or without memory. */
static inline void *dcommi_calloc(size_t n, size_t size)
{
    size_t bytes = 0;
    if (__builtin_mul_overflow(n, size, &bytes)) {
        dcommi_fail(DCOMM_ERR_NO_MEMORY, "%zu elements of %zu bytes exceed the address space", n,
                    size);
        return NULL;
    }
    return dcommi_alloc(bytes);
}

/* Grow an array to at least `need` elements by doubling. Keep its contents and zero the rest. */
static inline dcomm_status dcommi_grow(void **array, size_t *capacity, size_t need, size_t size)
{
    if (need <= *capacity) {
        return DCOMM_OK;
    }
    size_t wanted = *capacity < 8 ? 8 : *capacity;
    while (wanted < need) {
        if (__builtin_mul_overflow(wanted, 2, &wanted)) {
            return dcommi_fail(DCOMM_ERR_NO_MEMORY, "an array of %zu elements is too long", need);
        }
    }
    void *bigger = dcommi_calloc(wanted, size);
    if (bigger == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    if (*array != NULL) {
        memcpy(bigger, *array, *capacity * size);
        dcommi_free(*array);
    }
    *array = bigger;
    *capacity = wanted;
    return DCOMM_OK;
}

/* Zero memory by the C library's memset. For a size known at compile time, gcc -O2 emits
 * "rep stos", which takes longer to start than all other work on a small message. */
static inline void dcommi_zero(void *p, size_t bytes)
{
    __asm__("" : "+r"(bytes));
    memset(p, 0, bytes);
}

/* Take an item out of a list that is linked by `next`, if it is there. */
#define DCOMMI_LIST_REMOVE(first, item, next)                \
    do {                                                     \
        __typeof__(first) *dcommi_at = &(first);             \
        while (*dcommi_at != NULL && *dcommi_at != (item)) { \
            dcommi_at = &(*dcommi_at)->next;                 \
        }                                                    \
        if (*dcommi_at != NULL) {                            \
            *dcommi_at = (*dcommi_at)->next;                 \
        }                                                    \
    } while (0)

/* ---- numbers ---- */

static inline int64_t dcommi_min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t dcommi_max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static inline int64_t dcommi_ceil_div(int64_t a, int64_t b)
{
    return a / b + (a % b != 0);
}

/* Mix a text into a hash. */
static inline uint64_t dcommi_mix_text(uint64_t hash, const char *text)
{
    for (; *text != '\0'; text++) {
        hash = dcommi_mix(hash, (uint8_t)*text);
    }
    return hash;
}

/* Copy a text. Return NULL without memory. */
static inline char *dcommi_strdup(const char *text)
{
    size_t len = strlen(text) + 1;
    char *copy = dcommi_alloc_raw(len);
    if (copy != NULL) {
        memcpy(copy, text, len);
    }
    return copy;
}

/* Return monotonic seconds, accurate to a few milliseconds, at almost no cost. */
static inline double dcommi_coarse_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Return monotonic seconds. */
static inline double dcommi_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- elements ---- */

static inline bool dcommi_dtype_is_opaque(dcomm_dtype dtype)
{
    return (unsigned)dtype >= DCOMM_DTYPE_COUNT;
}

/* Return the bytes of the smallest number of elements that fills whole cache lines. */
static inline int64_t dcommi_element_lines(int64_t element)
{
    return element * (64 / dcommi_min64(element & -element, 64));
}

/* Round `bytes` down to whole elements, at least one. Let them fill whole cache lines where that
 * is possible. */
static inline int64_t dcommi_whole_elements(int64_t bytes, int64_t element)
{
    int64_t lines = dcommi_element_lines(element), grain = lines <= bytes ? lines : element;
    return grain <= bytes ? bytes / grain * grain : element;
}

#endif
