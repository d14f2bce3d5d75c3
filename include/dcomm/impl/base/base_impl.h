/* base_impl.h - the functions of base.h: names, the last error, hooks, the caller's operators. */
#ifndef DCOMMI_BASE_IMPL_H
#define DCOMMI_BASE_IMPL_H

#include "util.h"

/* ---- names ---- */

DCOMM_API const char *dcomm_strerror(dcomm_status status)
{
    switch (status) {
#define DCOMMI_STATUS_TEXT(name, number, text) \
    case name:                                 \
        return text;
        DCOMM_STATUS_TABLE(DCOMMI_STATUS_TEXT)
#undef DCOMMI_STATUS_TEXT
    case DCOMM_STATUS_FORCE_INT:
        break;
    }
    return "unknown status";
}

DCOMM_API const char *dcomm_status_name(dcomm_status status)
{
    switch (status) {
#define DCOMMI_STATUS_NAME(name, number, text) \
    case name:                                 \
        return #name;
        DCOMM_STATUS_TABLE(DCOMMI_STATUS_NAME)
#undef DCOMMI_STATUS_NAME
    case DCOMM_STATUS_FORCE_INT:
        break;
    }
    return "DCOMM_STATUS_UNKNOWN";
}

DCOMM_API const char *dcomm_last_error(void)
{
    return dcommi_message;
}

DCOMM_API const char *dcomm_version(void)
{
    return DCOMM_VERSION_STRING;
}

/* The value of an opaque type encodes 1 + its number, above its size in bytes. */
#define DCOMMI_OPAQUE_BITS 13
#define DCOMMI_OPAQUE_SIZES ((1 << DCOMMI_OPAQUE_BITS) - 1)
_Static_assert(DCOMM_DTYPE_BYTES_MAX <= DCOMMI_OPAQUE_SIZES, "a size has its bits");

static _Atomic int dcommi_opaque_created;

static inline int dcommi_opaque_number(dcomm_dtype dtype)
{
    return ((int)dtype >> DCOMMI_OPAQUE_BITS) - 1;
}

DCOMM_API size_t dcomm_dtype_size(dcomm_dtype dtype)
{
    static const unsigned char size[DCOMM_DTYPE_COUNT] = {8, 4, 2, 2, 1, 1, 4, 4, 8, 8};
    if (DCOMMI_LIKELY(!dcommi_dtype_is_opaque(dtype))) {
        return size[dtype];
    }
    int number = dcommi_opaque_number(dtype);
    return number >= 0 &&
                   number < atomic_load_explicit(&dcommi_opaque_created, memory_order_relaxed)
               ? (size_t)dtype & DCOMMI_OPAQUE_SIZES
               : 0;
}

DCOMM_API dcomm_status dcomm_dtype_create(size_t bytes, dcomm_dtype *dtype_p)
{
    if (dtype_p == NULL || bytes == 0 || bytes > DCOMM_DTYPE_BYTES_MAX) {
        return dtype_p == NULL
                   ? dcommi_fail(DCOMM_ERR_INVALID, "dcomm_dtype_create: dtype_p is NULL")
                   : dcommi_fail(DCOMM_ERR_INVALID,
                                 "dcomm_dtype_create: bytes is %zu; it may be 1 to %d", bytes,
                                 DCOMM_DTYPE_BYTES_MAX);
    }
    int number = atomic_load(&dcommi_opaque_created);
    do {
        if (number >= DCOMM_DTYPE_OPAQUE_MAX >> DCOMMI_OPAQUE_BITS) {
            return dcommi_fail(DCOMM_ERR_UNSUPPORTED,
                               "dcomm_dtype_create: %d types have been created, which is the limit",
                               number);
        }
    } while (!atomic_compare_exchange_weak(&dcommi_opaque_created, &number, number + 1));
    *dtype_p = (dcomm_dtype)((number + 1) << DCOMMI_OPAQUE_BITS | (int)bytes);
    return DCOMM_OK;
}

DCOMM_API const char *dcomm_dtype_name(dcomm_dtype dtype)
{
    static const char *const name[DCOMM_DTYPE_COUNT] = {"f64", "f32", "f16", "bf16", "i8",
                                                        "u8",  "i32", "u32", "i64",  "u64"};
    return !dcommi_dtype_is_opaque(dtype) ? name[dtype]
           : dcomm_dtype_size(dtype) > 0  ? "opaque"
                                          : "?";
}

static inline bool dcommi_op_is_user(dcomm_op op)
{
    return (int)op >= DCOMM_OP_USER && (int)op <= DCOMM_OP_USER_MAX;
}

DCOMM_API const char *dcomm_op_name(dcomm_op op)
{
    static const char *const name[DCOMM_OP_COUNT] = {"sum", "prod", "min",
                                                     "max", "avg",  "premul_sum"};
    if ((unsigned)op < DCOMM_OP_COUNT) {
        return name[op];
    }
    return dcommi_op_is_user(op) ? "user" : "?";
}

/* ---- hooks ---- */

DCOMM_API void dcomm_set_allocator(dcomm_alloc_fn alloc, dcomm_free_fn release, void *user)
{
    dcommi_alloc_fn = alloc;
    dcommi_free_fn = release;
    dcommi_alloc_user = user;
}

DCOMM_API void dcomm_set_logger(dcomm_log_fn fn, void *user)
{
    dcommi_log_fn = fn;
    dcommi_log_user = user;
}

/* ---- the caller's operators ---- */

enum { DCOMMI_USER_OPS = 64 };

/* The creator of an operator holds a reference, and so does each operation that uses it. The entry
 * is free at 0. So folds find an operator after it has been destroyed, and take no lock. */
typedef struct dcommi_user_op {
    _Atomic unsigned refs; /* 0: free */
    _Atomic int op;
    _Atomic bool alive; /* new calls may use it */
    _Atomic bool ordered;
    dcomm_op_fn fn;
    void *user;
} dcommi_user_op;

static dcommi_user_op dcommi_user_ops[DCOMMI_USER_OPS];
static int dcommi_user_ops_created; /* guarded by dcommi_user_ops_lock */
static pthread_mutex_t dcommi_user_ops_lock = PTHREAD_MUTEX_INITIALIZER;

/* Return the entry of `op`, alive or still referenced, or NULL if there is none. An operator lies
 * at its number modulo the table's size if that is free, so the first probe usually finds it. */
static dcommi_user_op *dcommi_user_op_find(dcomm_op op)
{
    for (int i = 0; i < DCOMMI_USER_OPS && dcommi_op_is_user(op); i++) {
        dcommi_user_op *entry = &dcommi_user_ops[((int)op + i) % DCOMMI_USER_OPS];
        if (atomic_load_explicit(&entry->refs, memory_order_acquire) > 0 &&
            atomic_load_explicit(&entry->op, memory_order_relaxed) == (int)op) {
            return entry;
        }
    }
    return NULL;
}

/* Return true if collectives may be called with `op`. */
static inline bool dcommi_op_known(dcomm_op op)
{
    if (DCOMMI_LIKELY((unsigned)op < DCOMM_OP_COUNT)) {
        return true;
    }
    dcommi_user_op *entry = dcommi_user_op_find(op);
    return entry != NULL && atomic_load_explicit(&entry->alive, memory_order_relaxed);
}

/* Return true if `op` needs contributions folded in rank order. */
static inline bool dcommi_op_ordered(dcomm_op op)
{
    const dcommi_user_op *entry = dcommi_op_is_user(op) ? dcommi_user_op_find(op) : NULL;
    return entry != NULL && atomic_load_explicit(&entry->ordered, memory_order_relaxed);
}

/* Drop a reference to `op`. Built-in operators have no references. */
static void dcommi_op_drop(dcomm_op op)
{
    dcommi_user_op *entry = dcommi_op_is_user(op) ? dcommi_user_op_find(op) : NULL;
    if (entry != NULL) {
        atomic_fetch_sub_explicit(&entry->refs, 1, memory_order_acq_rel);
    }
}

/* Take a reference to `op`, so that folds find it until dcommi_op_drop. Return false if there is
 * no such operator. */
static inline bool dcommi_op_hold(dcomm_op op)
{
    if (DCOMMI_LIKELY(!dcommi_op_is_user(op))) {
        return true;
    }
    dcommi_user_op *entry = dcommi_user_op_find(op);
    unsigned refs = entry != NULL ? atomic_load(&entry->refs) : 0;
    while (refs > 0 && !atomic_compare_exchange_weak(&entry->refs, &refs, refs + 1)) {
    }
    if (refs > 0 && atomic_load(&entry->op) != (int)op) { /* the entry was reused */
        atomic_fetch_sub_explicit(&entry->refs, 1, memory_order_acq_rel);
        refs = 0;
    }
    return refs > 0;
}

DCOMM_API dcomm_status dcomm_op_create(dcomm_op_fn fn, void *user, dcomm_op *op_p)
{
    return dcomm_op_create_with(fn, user, NULL, op_p);
}

DCOMM_API dcomm_status dcomm_op_create_with(dcomm_op_fn fn, void *user, const dcomm_op_opts *opts,
                                            dcomm_op *op_p)
{
    if (fn == NULL || op_p == NULL) {
        return dcommi_fail(DCOMM_ERR_INVALID, "dcomm_op_create: %s is NULL",
                           fn == NULL ? "fn" : "op_p");
    }
    pthread_mutex_lock(&dcommi_user_ops_lock);
    int op = DCOMM_OP_USER + dcommi_user_ops_created, i = 0;
    dcommi_user_op *entry = NULL;
    while (i < DCOMMI_USER_OPS && entry == NULL && op < DCOMM_OP_USER_MAX) {
        entry = &dcommi_user_ops[(op + i++) % DCOMMI_USER_OPS];
        entry = atomic_load(&entry->refs) == 0 ? entry : NULL;
    }
    if (entry != NULL) {
        dcommi_user_ops_created++;
        entry->fn = fn;
        entry->user = user;
        atomic_store(&entry->op, op);
        atomic_store(&entry->alive, true);
        atomic_store(&entry->ordered, opts != NULL && opts->ordered);
        atomic_store_explicit(&entry->refs, 1, memory_order_release);
    }
    pthread_mutex_unlock(&dcommi_user_ops_lock);
    if (entry == NULL) {
        return dcommi_fail(DCOMM_ERR_NO_MEMORY,
                           "dcomm_op_create: %d operators are alive, which is the limit; destroy "
                           "one first",
                           DCOMMI_USER_OPS);
    }
    *op_p = (dcomm_op)op;
    return DCOMM_OK;
}

DCOMM_API dcomm_status dcomm_op_destroy(dcomm_op op)
{
    dcommi_user_op *entry = dcommi_user_op_find(op);
    if (entry == NULL || !atomic_exchange(&entry->alive, false)) {
        return dcommi_fail(DCOMM_ERR_INVALID,
                           "dcomm_op_destroy: op is %d, which dcomm_op_create did not return, or "
                           "which was destroyed",
                           (int)op);
    }
    dcommi_op_drop(op);
    return DCOMM_OK;
}

#endif
