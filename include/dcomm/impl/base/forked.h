/* forked.h - refuses calls where none can be made: in a forked child whose parent used the library,
 * because both would share the parent's connections, and in a function of the caller's that the
 * library calls, because its thread may hold a lock. */
#ifndef DCOMMI_FORKED_H
#define DCOMMI_FORKED_H

#include "util.h"

#include <pthread.h>

static _Atomic int dcommi_in_use; /* contexts and communicators, also those being created */
static _Atomic int dcommi_forked;
static pthread_once_t dcommi_fork_once = PTHREAD_ONCE_INIT;

/* Mark this child as forked if its parent has a context or communicator. Without one, the child
 * may use dcomm as a new process does. The rendezvous handles forks itself. */
static void dcommi_in_child(void)
{
    if (atomic_load(&dcommi_in_use) != 0) {
        atomic_store(&dcommi_forked, 1);
    }
}

static void dcommi_watch_forks(void)
{
    pthread_atfork(NULL, NULL, dcommi_in_child);
}

static _Atomic int dcommi_callbacks; /* the caller's functions that are running, in all threads */
static _Thread_local const char *dcommi_callback; /* the one that this thread runs; NULL: none */

/* Note that this thread calls a function of the caller's, and that it has returned. */
static inline void dcommi_callback_begin(const char *what)
{
    atomic_fetch_add_explicit(&dcommi_callbacks, 1, memory_order_relaxed);
    dcommi_callback = what;
}

static inline void dcommi_callback_end(void)
{
    dcommi_callback = NULL;
    atomic_fetch_sub_explicit(&dcommi_callbacks, 1, memory_order_relaxed);
}

/* Refuse a call where none can be made. */
static inline dcomm_status dcommi_check_fork(void)
{
    if (DCOMMI_UNLIKELY(atomic_load_explicit(&dcommi_callbacks, memory_order_relaxed) != 0) &&
        dcommi_callback != NULL) {
        return dcommi_fail(DCOMM_ERR_INVALID, "%s must not call dcomm", dcommi_callback);
    }
    if (DCOMMI_UNLIKELY(atomic_load_explicit(&dcommi_forked, memory_order_relaxed) != 0)) {
        return dcommi_fail(DCOMM_ERR_FORKED,
                           "process %d was forked while its parent had a context or communicator, "
                           "whose connections it shares; fork before the first is created or after "
                           "the last is destroyed, or use exec",
                           (int)getpid());
    }
    return DCOMM_OK;
}

#endif
