/* test_nomem.c - every allocation of creation, calls, split, agreement, shrink, growth and
 * destruction fails once, on one rank or on all. */
#define _GNU_SOURCE
#include "walk.h"

static _Atomic long left; /* allocations until one fails; 0: none does */
static _Atomic int hit;

static void *allocate(size_t alignment, size_t bytes, void *user)
{
    (void)user;
    if (atomic_load(&left) > 0 && atomic_fetch_sub(&left, 1) == 1) {
        atomic_store(&hit, 1);
        return NULL;
    }
    return aligned_alloc(alignment, bytes);
}

static void release(void *p, void *user)
{
    (void)user;
    free(p);
}

static void arm_allocations(long k)
{
    atomic_store(&left, k);
}

static bool hit_allocation(void)
{
    return atomic_exchange(&hit, 0) != 0;
}

/* The everyday run fails one allocation in `step`, up to `most`. The full run fails one in step /
 * 16 + 1, to the end: an allocation while measuring costs a second. */
#define WALK(name, part, first, last, step, most)                                            \
    Test(nomem, name, .timeout = 3600)                                                       \
    {                                                                                        \
        const bool full = test_full();                                                       \
        dcomm_set_allocator(allocate, release, NULL);                                        \
        walk_all(&(walk){part, RANKS_LOCAL, first, last, 1, full ? (step) / 16 + 1 : (step), \
                         full ? 0 : (most), 1, DCOMM_ERR_NO_MEMORY, arm_allocations,         \
                         hit_allocation});                                                   \
    }
WALK(create, CREATE, 1, 1, 1, 0)
WALK(create_where_the_rendezvous_is, CREATE, 0, 0, 3, 0)
WALK(create_on_all, CREATE, 0, 1, 5, 0)
/* The numbers exist: rank 0 has measured them in its first creation. */
WALK(create_tuned, TUNED, 1, 1, 127, 700)
/* Most allocations while measuring are plans of probes, which are all alike. */
WALK(create_measured, MEASURED, 1, 1, 997, 1900)
WALK(create_measured_on_all, MEASURED, 0, 1, 1499, 1000)
WALK(split, SPLIT, 1, 1, 3, 0)
WALK(call, CALL, 1, 1, 1, 0)
WALK(agree, AGREE, 1, 1, 1, 0)
WALK(agree_at_the_coordinator, AGREE, 0, 0, 1, 0)
WALK(agree_on_all, AGREE, 0, 1, 1, 0)
WALK(shrink, SHRINK, 1, 1, 1, 0)
WALK(shrink_on_all, SHRINK, 0, 1, 3, 0)
WALK(shrink_without, EXCLUDE, 1, 1, 1, 0)
WALK(shrink_without_on_all, EXCLUDE, 0, 1, 3, 0)
WALK(grow, GROW, 1, 1, 43, 400)
WALK(grow_where_the_lobby_is, GROW, 0, 0, 53, 400)
WALK(grow_newcomer, GROW, 2, 2, 53, 400)
WALK(destroy, DESTROY, 1, 1, 1, 0)
