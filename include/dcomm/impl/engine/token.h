/* token.h - which thread may be inside a context. As long as only the creating thread has come, it
 * enters by plain stores: an atomic exchange would wait for its earlier stores, which are on their
 * way to other cores. The first other thread ends this for good: it raises a flag, has the kernel
 * put a barrier into every running thread (membarrier), and waits for the owner to leave. */
#ifndef DCOMMI_TOKEN_H
#define DCOMMI_TOKEN_H

#include "engine.h"

#include <sched.h>
#include <sys/syscall.h>
#if defined(SYS_membarrier) && __has_include(<linux/membarrier.h>)
#include <linux/membarrier.h>
#define DCOMMI_MEMBARRIER 1
#endif

/* The threads that may enter a context: the owner alone, the owner until it has left, or all. */
enum dcommi_sharing { DCOMMI_OWNED = 0, DCOMMI_SHARING = 1, DCOMMI_SHARED = 2 };

static _Thread_local char dcommi_this_thread; /* its address names the thread */

static bool dcommi_barrier_all(bool prepare)
{
#ifdef DCOMMI_MEMBARRIER
    int command =
        prepare ? MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED : MEMBARRIER_CMD_PRIVATE_EXPEDITED;
    return syscall(SYS_membarrier, command, 0, 0) == 0;
#else
    (void)prepare;
    return false;
#endif
}

/* Make the calling thread, which creates the context, its owner. */
static void dcommi_token_own(dcomm_context *context)
{
    context->owner = &dcommi_this_thread;
    atomic_store(&context->sharing, dcommi_barrier_all(true) ? DCOMMI_OWNED : DCOMMI_SHARED);
}

/* Open the context to other threads; called by the first of them. */
static void dcommi_token_share(dcomm_context *context)
{
    int owned = DCOMMI_OWNED;
    if (atomic_compare_exchange_strong(&context->sharing, &owned, DCOMMI_SHARING)) {
        dcommi_barrier_all(false);
        while (atomic_load_explicit(&context->owner_in, memory_order_acquire) != 0) {
            sched_yield();
        }
        atomic_store_explicit(&context->sharing, DCOMMI_SHARED, memory_order_release);
    }
}

/* Enter by plain stores. Return true if the caller is the owner, and inside from now on. */
static inline bool dcommi_token_enter(dcomm_context *context)
{
    if (context->owner != &dcommi_this_thread ||
        atomic_load_explicit(&context->sharing, memory_order_relaxed) != DCOMMI_OWNED ||
        atomic_load_explicit(&context->owner_in, memory_order_relaxed) != 0) {
        return false;
    }
    atomic_store_explicit(&context->owner_in, 1, memory_order_relaxed);
    atomic_signal_fence(memory_order_seq_cst); /* membarrier makes it a real fence when needed */
    if (DCOMMI_LIKELY(atomic_load_explicit(&context->sharing, memory_order_relaxed) ==
                      DCOMMI_OWNED)) {
        atomic_signal_fence(memory_order_acquire);
        return true;
    }
    atomic_store_explicit(&context->owner_in, 0, memory_order_release);
    return false;
}

static inline bool dcommi_token_try(dcomm_context *context)
{
    if (dcommi_token_enter(context)) {
        return true;
    }
    int sharing = atomic_load_explicit(&context->sharing, memory_order_acquire);
    if (sharing == DCOMMI_OWNED && context->owner != &dcommi_this_thread) {
        dcommi_token_share(context);
        sharing = atomic_load_explicit(&context->sharing, memory_order_acquire);
    }
    return sharing == DCOMMI_SHARED &&
           atomic_exchange_explicit(&context->token, 1, memory_order_acquire) == 0;
}

/* Order earlier nontemporal stores before all later stores. Nobody reads an operation's results
 * before it has ended, so one fence serves all of them, and another one where another thread may
 * go on. */
static inline void dcommi_settle_stores(dcomm_context *context)
{
    if (DCOMMI_UNLIKELY(context->open_stores)) {
        dcommi_host_copy_close();
        context->open_stores = false;
    }
}

/* Release the token. Only the owner enters by `owner_in`, and while it is inside the token is
 * free. */
static inline void dcommi_token_release(dcomm_context *context)
{
    dcommi_settle_stores(context);
    _Atomic int *held = atomic_load_explicit(&context->owner_in, memory_order_relaxed) != 0
                            ? &context->owner_in
                            : &context->token;
    atomic_store_explicit(held, 0, memory_order_release);
}

static void dcommi_token_take(dcomm_context *context)
{
    while (!dcommi_token_try(context)) {
        sched_yield();
    }
}

/* ---- a communicator's lock ---- */

/* Lock a communicator. An owner that is inside needs no lock, because any other thread must end
 * its exclusive use here first. */
static inline void dcommi_comm_lock(dcomm_comm *comm)
{
    dcomm_context *context = comm->context;
    if (context != NULL && context->owner != &dcommi_this_thread &&
        DCOMMI_UNLIKELY(atomic_load_explicit(&context->sharing, memory_order_acquire) !=
                        DCOMMI_SHARED)) {
        dcommi_token_share(context);
        while (atomic_load_explicit(&context->sharing, memory_order_acquire) != DCOMMI_SHARED) {
            sched_yield();
        }
    }
    while (DCOMMI_UNLIKELY(atomic_exchange_explicit(&comm->lock, 1, memory_order_acquire) != 0)) {
        sched_yield();
    }
}

static inline void dcommi_comm_unlock(dcomm_comm *comm)
{
    atomic_store_explicit(&comm->lock, 0, memory_order_release);
}

#endif
