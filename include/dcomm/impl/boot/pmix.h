/* pmix.h - PMIx, the process manager interface of Open MPI and Slurm, used to share an id.
 *
 * We load the library at run time, so dcomm needs it neither to build nor under other launchers.
 * The structures below have had this layout since PMIx 2. An MPI library in the same program uses
 * the same client, which counts its users. After its last user has finalized it, MPI_Init cannot
 * open it again. So we stay a user until the process exits. */
#ifndef DCOMMI_PMIX_H
#define DCOMMI_PMIX_H

#include "socket.h"

#include <dlfcn.h>

enum { DCOMMI_PMIX_BOOL = 1, DCOMMI_PMIX_STRING = 3, DCOMMI_PMIX_UINT32 = 14 };
enum { DCOMMI_PMIX_GLOBAL = 3 };
#define DCOMMI_PMIX_ANY_RANK (UINT32_MAX - 1)

typedef struct dcommi_pmix_proc {
    char nspace[256];
    uint32_t rank;
} dcommi_pmix_proc;

typedef struct dcommi_pmix_value {
    uint16_t type;
    union {
        bool flag;
        uint32_t u32;
        char *string;
        void *room[3];
    } data;
} dcommi_pmix_value;

typedef struct dcommi_pmix_info {
    char key[512];
    uint32_t flags;
    dcommi_pmix_value value;
} dcommi_pmix_info;

typedef void (*dcommi_pmix_done)(int status, void *user);

typedef struct dcommi_pmix {
    bool open;
    pid_t pid;
    dcommi_pmix_proc me;
    int (*init)(dcommi_pmix_proc *me, dcommi_pmix_info *info, size_t n);
    int (*finalize)(const dcommi_pmix_info *info, size_t n);
    int (*put)(uint8_t scope, const char *key, dcommi_pmix_value *value);
    int (*commit)(void);
    int (*fence)(const dcommi_pmix_proc *procs, size_t nprocs, const dcommi_pmix_info *info,
                 size_t n, dcommi_pmix_done done, void *user);
    int (*get)(const dcommi_pmix_proc *proc, const char *key, const dcommi_pmix_info *info,
               size_t n, dcommi_pmix_value **value);
} dcommi_pmix;

static dcommi_pmix dcommi_pmix_state;
static pthread_mutex_t dcommi_pmix_lock = PTHREAD_MUTEX_INITIALIZER;

static void dcommi_pmix_at_exit(void)
{
    if (dcommi_pmix_state.open && dcommi_pmix_state.pid == getpid()) {
        dcommi_pmix_state.finalize(NULL, 0);
    }
}

static dcomm_status dcommi_pmix_open(void)
{
    dcommi_pmix *p = &dcommi_pmix_state;
    if (p->open && p->pid == getpid()) {
        return DCOMM_OK;
    }
    void *library = dlopen("libpmix.so.2", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        return dcommi_fail(DCOMM_ERR_UNSUPPORTED, "%.200s", dlerror());
    }
    const struct {
        const char *name;
        void **function;
    } wanted[] = {{"PMIx_Init", (void **)&p->init},      {"PMIx_Finalize", (void **)&p->finalize},
                  {"PMIx_Put", (void **)&p->put},        {"PMIx_Commit", (void **)&p->commit},
                  {"PMIx_Fence_nb", (void **)&p->fence}, {"PMIx_Get", (void **)&p->get}};
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        *wanted[i].function = dlsym(library, wanted[i].name);
        if (*wanted[i].function == NULL) {
            return dcommi_fail(DCOMM_ERR_UNSUPPORTED, "libpmix.so.2 has no %s", wanted[i].name);
        }
    }
    int rc = p->init(&p->me, NULL, 0);
    if (rc != 0) {
        return dcommi_fail(DCOMM_ERR_UNSUPPORTED, "PMIx_Init failed with %d", rc);
    }
    p->open = true;
    p->pid = getpid();
    atexit(dcommi_pmix_at_exit);
    return DCOMM_OK;
}

/* The memory of a fence. Its caller may give up before the fence ends: both hold a reference. */
typedef struct dcommi_pmix_fence {
    _Atomic int refs;
    _Atomic int done;
    int status;
    dcommi_pmix_info collect;
} dcommi_pmix_fence;

static void dcommi_pmix_fence_release(dcommi_pmix_fence *f)
{
    if (atomic_fetch_sub(&f->refs, 1) == 1) {
        dcommi_free(f);
    }
}

static void dcommi_pmix_fence_done(int status, void *user)
{
    dcommi_pmix_fence *f = user;
    f->status = status;
    atomic_store(&f->done, 1);
    dcommi_pmix_fence_release(f);
}

static dcomm_status dcommi_pmix_fence_all(double deadline, const _Atomic int *cancel)
{
    dcommi_pmix_fence *f = dcommi_alloc(sizeof *f);
    if (f == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    atomic_store(&f->refs, 2);
    snprintf(f->collect.key, sizeof f->collect.key, "pmix.collect");
    f->collect.value.type = DCOMMI_PMIX_BOOL;
    f->collect.value.data.flag = true;
    int rc = dcommi_pmix_state.fence(NULL, 0, &f->collect, 1, dcommi_pmix_fence_done, f);
    if (rc != 0) {
        dcommi_free(f);
        return dcommi_fail(DCOMM_ERR_RENDEZVOUS, "PMIx_Fence_nb failed with %d", rc);
    }
    dcomm_status status = DCOMM_OK;
    double pause = 0.0005;
    while (status == DCOMM_OK && atomic_load(&f->done) == 0) {
        if (dcommi_sock_pause(pause, cancel) < 0) {
            status = dcommi_fail(DCOMM_ERR_ABORTED, "the wait for PMIx was cancelled");
        } else if (dcommi_now() > deadline) {
            status = dcommi_fail(DCOMM_ERR_TIMEOUT, "PMIx waits for ranks that do not take part");
        }
        pause = pause < 0.02 ? pause * 1.5 : pause;
    }
    if (status == DCOMM_OK && f->status != 0) {
        status = dcommi_fail(DCOMM_ERR_RENDEZVOUS, "PMIx_Fence_nb ended with %d", f->status);
    }
    dcommi_pmix_fence_release(f);
    return status;
}

static dcomm_status dcommi_pmix_get(uint32_t rank, const char *key, dcommi_pmix_value **value_p)
{
    dcommi_pmix_proc from = dcommi_pmix_state.me;
    from.rank = rank;
    *value_p = NULL;
    int rc = dcommi_pmix_state.get(&from, key, NULL, 0, value_p);
    if (rc != 0 || *value_p == NULL) {
        return dcommi_fail(DCOMM_ERR_RENDEZVOUS, "PMIx_Get of %s failed with %d", key, rc);
    }
    return DCOMM_OK;
}

/* Ask PMIx for this process's rank and the size of its job, if the environment does not say. */
static dcomm_status dcommi_pmix_world(int *rank_p, int *size_p)
{
    dcommi_pmix_value *value = NULL;
    pthread_mutex_lock(&dcommi_pmix_lock);
    dcomm_status status = dcommi_pmix_open();
    DCOMMI_THEN(status, dcommi_pmix_get(DCOMMI_PMIX_ANY_RANK, "pmix.job.size", &value));
    if (status == DCOMM_OK) {
        *rank_p = (int)dcommi_pmix_state.me.rank;
        *size_p = value->type == DCOMMI_PMIX_UINT32 ? (int)value->data.u32 : 0;
        free(value);
    }
    pthread_mutex_unlock(&dcommi_pmix_lock);
    return status;
}

static dcomm_status dcommi_pmix_share_locked(const char *key, char *mine, char *text, size_t max,
                                             double deadline, const _Atomic int *cancel)
{
    dcommi_pmix *p = &dcommi_pmix_state;
    DCOMMI_TRY(dcommi_pmix_open());
    if (mine != NULL) {
        dcommi_pmix_value value = {.type = DCOMMI_PMIX_STRING};
        value.data.string = mine;
        int rc = p->put(DCOMMI_PMIX_GLOBAL, key, &value);
        rc = rc == 0 ? p->commit() : rc;
        if (rc != 0) {
            return dcommi_fail(DCOMM_ERR_RENDEZVOUS, "PMIx_Put failed with %d", rc);
        }
    }
    DCOMMI_TRY(dcommi_pmix_fence_all(deadline, cancel));
    dcommi_pmix_value *value = NULL;
    DCOMMI_TRY(dcommi_pmix_get(0, key, &value));
    dcomm_status status = DCOMM_OK;
    if (value->type != DCOMMI_PMIX_STRING || value->data.string == NULL ||
        strlen(value->data.string) >= max) {
        status = dcommi_fail(DCOMM_ERR_RENDEZVOUS, "PMIx did not return rank 0's id");
    } else {
        strcpy(text, value->data.string);
        free(value->data.string);
    }
    free(value);
    return status;
}

/* Publish `mine` under `key` on rank 0 (others pass NULL), and read it on all ranks. All ranks
 * must call this. Return DCOMM_ERR_UNSUPPORTED if PMIx cannot be used. */
static dcomm_status dcommi_pmix_share(const char *key, char *mine, char *text, size_t max,
                                      double deadline, const _Atomic int *cancel)
{
    pthread_mutex_lock(&dcommi_pmix_lock);
    dcomm_status status = dcommi_pmix_share_locked(key, mine, text, max, deadline, cancel);
    pthread_mutex_unlock(&dcommi_pmix_lock);
    return status;
}

#endif
