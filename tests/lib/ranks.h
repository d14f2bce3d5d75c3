/* ranks.h - tests of the public interface: processes that are ranks of one communicator, on one
 * host, on several (by name; their network is the loopback), or where no rank may read another's
 * memory. Values of every dtype, and buffers with guarded edges. */
#ifndef RANKS_H
#define RANKS_H

#include "procs.h"

#include "dcomm.h"

typedef enum ranks_place {
    RANKS_LOCAL,   /* one host: mapped memory, memory of other processes read directly */
    RANKS_MESSAGE, /* one host, whose kernel forbids reading other processes */
    RANKS_HOSTS,   /* every rank on a host of its own */
    RANKS_PAIRS    /* two ranks on a host */
} ranks_place;

static inline const char *ranks_place_name(ranks_place place)
{
    static const char *const names[] = {"local", "message", "hosts", "pairs"};
    return names[place];
}

/* Set a process's environment, before its first call of dcomm. */
static inline void ranks_settle(int rank, int n, ranks_place place)
{
    char host[32], ranks[16];
    snprintf(ranks, sizeof ranks, "%d", n);
    setenv("LOCAL_WORLD_SIZE", ranks, 1); /* a rank without a core of its own must not spin */
    snprintf(host, sizeof host, "host%d", place == RANKS_PAIRS ? rank / 2 : rank);
    setenv("DCOMM_IFACE", "lo", 1);
    if (place == RANKS_MESSAGE) {
        setenv("DCOMM_CMA", "0", 1);
    }
    if (place == RANKS_HOSTS || place == RANKS_PAIRS) {
        setenv("DCOMM_HOSTID", host, 1);
    }
}

/* Return the world communicator of n processes; opts may be NULL. */
static inline dcomm_comm *ranks_join(int rank, int n, procs_shared *s, const dcomm_comm_opts *opts)
{
    dcomm_comm_opts o = {0};
    dcomm_comm *comm = NULL;
    size_t len;
    if (opts != NULL) {
        o = *opts;
    }
    o.boot = DCOMM_BOOT_ID;
    o.rank = rank;
    o.size = n;
    o.timeout_s = o.timeout_s > 0 ? o.timeout_s : 60;
    if (rank == 0) {
        PROCS_CHECK(dcomm_id_create(&o.id) == DCOMM_OK, "%s", dcomm_last_error());
        procs_give(s, 0, &o.id, sizeof o.id);
    } else {
        memcpy(&o.id, procs_take(s, 0, &len), sizeof o.id);
    }
    PROCS_CHECK(dcomm_comm_create(&o, &comm) == DCOMM_OK, "rank %d: %s", rank, dcomm_last_error());
    return comm;
}

#define RANKS_OK(call)                                                                   \
    do {                                                                                 \
        dcomm_status ranks_status = (call);                                              \
        PROCS_CHECK(ranks_status == DCOMM_OK, "%s: %s", dcomm_status_name(ranks_status), \
                    dcomm_last_error());                                                 \
    } while (0)

/* Check that this thread's last call gave the status `want`, with `word` in its sentence. */
static inline void ranks_refused(dcomm_status status, dcomm_status want, const char *word)
{
    PROCS_CHECK(status == want && strstr(dcomm_last_error(), word) != NULL,
                "looking for %s and '%s': %s: %s", dcomm_status_name(want), word,
                dcomm_status_name(status), dcomm_last_error());
}

/* Set where ranks are threads of one process: the thread that joins them looks for leaks. */
static bool ranks_are_threads;

/* Destroy the last communicator of a rank, which must leave nothing behind. Returns the
 * process's exit code. */
static inline int ranks_leave(dcomm_comm **comm_p)
{
    RANKS_OK(dcomm_comm_destroy(comm_p));
    PROCS_TRUE(*comm_p == NULL);
    return ranks_are_threads ? 0 : procs_leaks();
}

/* ---- values ---- */

/* Small whole numbers are exact in every dtype. */
static inline void ranks_put(void *buffer, size_t i, dcomm_dtype dtype, double value)
{
    unsigned char *at = (unsigned char *)buffer + i * dcomm_dtype_size(dtype);
    if ((unsigned)dtype >= DCOMM_DTYPE_COUNT) { /* in every byte */
        memset(at, (int)value, dcomm_dtype_size(dtype));
        return;
    }
    float f = (float)value;
    int64_t whole = (int64_t)value;
    uint32_t bits;
    uint16_t half = 0;
    memcpy(&bits, &f, sizeof bits);
    switch (dtype) {
    case DCOMM_F64:
        memcpy(at, &value, sizeof value);
        break;
    case DCOMM_F32:
        memcpy(at, &f, sizeof f);
        break;
    case DCOMM_F16:
        if (f - f != 0) { /* not finite */
            half = (uint16_t)((bits >> 16 & 0x8000) | 0x7c00 | (bits >> 13 & 0x3ff));
        } else if (f != 0) {
            half = (uint16_t)((bits >> 16 & 0x8000) |
                              (((bits >> 23 & 0xff) - 112) << 10 | (bits >> 13 & 0x3ff)));
        }
        memcpy(at, &half, sizeof half);
        break;
    case DCOMM_BF16:
        half = (uint16_t)(bits >> 16);
        memcpy(at, &half, sizeof half);
        break;
    default: /* little endian, two's complement */
        memcpy(at, &whole, dcomm_dtype_size(dtype));
        break;
    }
}

static inline double ranks_get(const void *buffer, size_t i, dcomm_dtype dtype)
{
    const unsigned char *at = (const unsigned char *)buffer + i * dcomm_dtype_size(dtype);
    if ((unsigned)dtype >= DCOMM_DTYPE_COUNT) { /* -1: its bytes differ */
        return memcmp(at, at + 1, dcomm_dtype_size(dtype) - 1) == 0 ? at[0] : -1;
    }
    uint16_t half;
    uint32_t bits;
    float f;
    double d;
    union {
        int8_t i8;
        uint8_t u8;
        int32_t i32;
        uint32_t u32;
        int64_t i64;
        uint64_t u64;
    } whole;
    switch (dtype) {
    case DCOMM_F64:
        memcpy(&d, at, sizeof d);
        return d;
    case DCOMM_F32:
        memcpy(&f, at, sizeof f);
        return (double)f;
    case DCOMM_F16:
        memcpy(&half, at, sizeof half);
        bits = (half & 0x7fffu) == 0 ? 0u : ((half & 0x7fffu) << 13) + (112u << 23);
        bits |= (half & 0x8000u) << 16;
        memcpy(&f, &bits, sizeof f);
        return (double)f;
    case DCOMM_BF16:
        memcpy(&half, at, sizeof half);
        bits = (uint32_t)half << 16;
        memcpy(&f, &bits, sizeof f);
        return (double)f;
    default:
        memcpy(&whole, at, dcomm_dtype_size(dtype));
        return dtype == DCOMM_I8    ? (double)whole.i8
               : dtype == DCOMM_U8  ? (double)whole.u8
               : dtype == DCOMM_I32 ? (double)whole.i32
               : dtype == DCOMM_U32 ? (double)whole.u32
               : dtype == DCOMM_I64 ? (double)whole.i64
                                    : (double)whole.u64;
    }
}

/* Uniform in [0, 2^64). */
static inline uint64_t ranks_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static inline uint64_t ranks_hash(const void *bytes, size_t len)
{
    uint64_t h = 14695981039346656037u;
    for (size_t i = 0; i < len; i++) {
        h = (h ^ ((const unsigned char *)bytes)[i]) * 1099511628211u;
    }
    return h;
}

/* ---- buffers ---- */

#define RANKS_EDGE 64
#define RANKS_BLANK 0xa5

/* `bytes` blank bytes with guarded edges, `skew` off an aligned address. */
typedef struct ranks_buffer {
    unsigned char *memory, *at;
    size_t bytes;
} ranks_buffer;

/* Registered memory for a rank's buffers, if the rank has any; a rank may be a thread. */
typedef struct ranks_arena {
    void *memory;
    size_t len, used, buffers;
} ranks_arena;

static _Thread_local ranks_arena ranks_registered;

static inline void ranks_register(dcomm_comm *comm, size_t len)
{
    RANKS_OK(dcomm_mem_alloc(dcomm_comm_context(comm), len, &ranks_registered.memory));
    ranks_registered.len = len;
}

static inline void *ranks_take(size_t len)
{
    ranks_arena *a = &ranks_registered;
    if (a->memory == NULL) {
        return malloc(len);
    }
    len = (len + 63) & ~(size_t)63; /* as aligned as any allocation */
    PROCS_TRUE(len <= a->len - a->used);
    a->buffers++;
    a->used += len;
    return (char *)a->memory + a->used - len;
}

static inline void ranks_give(void *p)
{
    ranks_arena *a = &ranks_registered;
    if (a->memory == NULL) {
        free(p);
    } else if (--a->buffers == 0) {
        a->used = 0;
    }
}

static inline ranks_buffer ranks_buffer_make(size_t bytes, size_t skew)
{
    ranks_buffer b = {ranks_take(bytes + 2 * RANKS_EDGE + skew), NULL, bytes};
    PROCS_TRUE(b.memory != NULL);
    memset(b.memory, RANKS_BLANK, bytes + 2 * RANKS_EDGE + skew);
    b.at = b.memory + RANKS_EDGE + skew;
    return b;
}

static inline bool ranks_blank(const unsigned char *at, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        if (at[i] != RANKS_BLANK) {
            return false;
        }
    }
    return true;
}

static inline void ranks_buffer_free(ranks_buffer *b, const char *what)
{
    PROCS_CHECK(ranks_blank(b->at - RANKS_EDGE, RANKS_EDGE) &&
                    ranks_blank(b->at + b->bytes, RANKS_EDGE),
                "%s: written beyond a buffer", what);
    ranks_give(b->memory);
}

#endif
