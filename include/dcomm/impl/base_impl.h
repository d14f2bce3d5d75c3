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

DCOMM_API size_t dcomm_dtype_size(dcomm_dtype dtype)
{
    static const unsigned char size[DCOMM_DTYPE_COUNT] = {8, 4, 2, 2, 1, 1, 4, 4, 8, 8};
    return (unsigned)dtype < DCOMM_DTYPE_COUNT ? size[dtype] : 0;
}

DCOMM_API const char *dcomm_dtype_name(dcomm_dtype dtype)
{
    static const char *const name[DCOMM_DTYPE_COUNT] = {"f64", "f32", "f16", "bf16", "i8",
                                                        "u8",  "i32", "u32", "i64",  "u64"};
    return (unsigned)dtype < DCOMM_DTYPE_COUNT ? name[dtype] : "?";
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

enum { DCOMMI_USER_OPS = DCOMM_OP_USER_MAX - DCOMM_OP_USER + 1 };

/* `user` is written before `fn` is published, so that looking up takes no lock. */
typedef struct dcommi_user_op {
    _Atomic(dcomm_op_fn) fn;
    void *user;
} dcommi_user_op;

static dcommi_user_op dcommi_user_ops[DCOMMI_USER_OPS];
static pthread_mutex_t dcommi_user_ops_lock = PTHREAD_MUTEX_INITIALIZER;

/* The operator's function, NULL when there is none alive under this value. */
static dcomm_op_fn dcommi_user_op_find(dcomm_op op, void **user)
{
    if (!dcommi_op_is_user(op)) {
        return NULL;
    }
    dcommi_user_op *entry = &dcommi_user_ops[(int)op - DCOMM_OP_USER];
    dcomm_op_fn fn = atomic_load_explicit(&entry->fn, memory_order_acquire);
    *user = fn != NULL ? entry->user : NULL;
    return fn;
}

/* Whether collectives may be called with it. */
static inline bool dcommi_op_known(dcomm_op op)
{
    void *user;
    return (unsigned)op < DCOMM_OP_COUNT || dcommi_user_op_find(op, &user) != NULL;
}

DCOMM_API dcomm_status dcomm_op_create(dcomm_op_fn fn, void *user, dcomm_op *op_p)
{
    if (fn == NULL || op_p == NULL) {
        return dcommi_fail(DCOMM_ERR_INVALID, "dcomm_op_create: %s is NULL",
                           fn == NULL ? "fn" : "op_p");
    }
    int i = 0;
    pthread_mutex_lock(&dcommi_user_ops_lock);
    while (i < DCOMMI_USER_OPS &&
           atomic_load_explicit(&dcommi_user_ops[i].fn, memory_order_relaxed) != NULL) {
        i++;
    }
    if (i < DCOMMI_USER_OPS) {
        dcommi_user_ops[i].user = user;
        atomic_store_explicit(&dcommi_user_ops[i].fn, fn, memory_order_release);
    }
    pthread_mutex_unlock(&dcommi_user_ops_lock);
    if (i == DCOMMI_USER_OPS) {
        return dcommi_fail(DCOMM_ERR_NO_MEMORY,
                           "dcomm_op_create: %d operators are alive, which is the limit", i);
    }
    *op_p = (dcomm_op)(DCOMM_OP_USER + i);
    return DCOMM_OK;
}

DCOMM_API dcomm_status dcomm_op_destroy(dcomm_op op)
{
    dcomm_op_fn fn = NULL;
    if (dcommi_op_is_user(op)) {
        pthread_mutex_lock(&dcommi_user_ops_lock);
        fn = atomic_exchange(&dcommi_user_ops[(int)op - DCOMM_OP_USER].fn, NULL);
        pthread_mutex_unlock(&dcommi_user_ops_lock);
    }
    if (fn == NULL) {
        return dcommi_fail(DCOMM_ERR_INVALID,
                           "dcomm_op_destroy: %d is no operator that dcomm_op_create made",
                           (int)op);
    }
    return DCOMM_OK;
}

#endif
