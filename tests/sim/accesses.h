/* accesses.h - the compiler's calls at each access to memory. With -fsanitize=thread it makes one
 * before each load and store, and in place of each atomic operation. Here they lead to the
 * simulated memory (memory.h). An instruction that loads finds in place what it is to see; what an
 * instruction stores is taken away at the process's next access. memcpy is linked to its model. */
#ifndef SIM_ACCESSES_H
#define SIM_ACCESSES_H

#include "memory.h"

#define ACCESS __attribute__((no_sanitize("thread"), used))

static ACCESS size_t access_at(const volatile void *p)
{
    return (size_t)((uintptr_t)p - (uintptr_t)arena.base);
}

/* ---- instructions ---- */

static ACCESS void access_plain(void *p, size_t len, bool stores)
{
    unsigned char seen[MEMORY_OPEN];
    if (!memory_has(p)) {
        return;
    }
    if (len > MEMORY_OPEN) {
        world_trouble("an instruction accesses %zu bytes", len);
        return;
    }
    memory_step();
    memory_do_load(access_at(p), seen, len, __ATOMIC_RELAXED);
    (stores ? races_store : races_load)(world.in, access_at(p), len);
    arena.open.is = true;
    arena.open.stores = stores;
    arena.open.at = access_at(p);
    arena.open.len = len;
    __real_memcpy(arena.open.before, p, len);
    __real_memcpy(p, seen, len);
}

#define ACCESS_PLAIN(NAME, STORES, BYTES)   \
    void __tsan_##NAME(void *p);            \
    ACCESS void __tsan_##NAME(void *p)      \
    {                                       \
        access_plain(p, (BYTES), (STORES)); \
    }
#define ACCESS_SIZE(BYTES)                            \
    ACCESS_PLAIN(read##BYTES, false, BYTES)           \
    ACCESS_PLAIN(write##BYTES, true, BYTES)           \
    ACCESS_PLAIN(unaligned_read##BYTES, false, BYTES) \
    ACCESS_PLAIN(unaligned_write##BYTES, true, BYTES) \
    ACCESS_PLAIN(volatile_read##BYTES, false, BYTES)  \
    ACCESS_PLAIN(volatile_write##BYTES, true, BYTES)
ACCESS_SIZE(1)
ACCESS_SIZE(2)
ACCESS_SIZE(4)
ACCESS_SIZE(8)
ACCESS_SIZE(16)

#define ACCESS_RANGE(NAME, STORES)                 \
    void __tsan_##NAME(void *p, size_t len);       \
    ACCESS void __tsan_##NAME(void *p, size_t len) \
    {                                              \
        access_plain(p, len, (STORES));            \
    }
ACCESS_RANGE(read_range, false)
ACCESS_RANGE(write_range, true)

void __tsan_init(void);
ACCESS void __tsan_init(void)
{
}
void __tsan_func_entry(void *from);
ACCESS void __tsan_func_entry(void *from)
{
    (void)from;
}
void __tsan_func_exit(void);
ACCESS void __tsan_func_exit(void)
{
}

/* ---- copies ---- */

void *__wrap_memcpy(void *to, const void *from, size_t len);
ACCESS void *__wrap_memcpy(void *to, const void *from, size_t len)
{
    if (memory_has(to)) {
        if (memory_has(from)) {
            world_trouble("a copy from shared memory to shared memory");
        }
        memory_copy_in(access_at(to), from, len);
    } else if (memory_has(from)) {
        memory_copy_out(to, access_at(from), len);
    } else {
        __real_memcpy(to, from, len);
    }
    return to;
}

/* ---- atomic operations ---- */

#define ACCESS_RMW(BITS, NAME, VALUE)                                                         \
    uint##BITS##_t __tsan_atomic##BITS##_##NAME(volatile uint##BITS##_t *p, uint##BITS##_t v, \
                                                int order);                                   \
    ACCESS uint##BITS##_t __tsan_atomic##BITS##_##NAME(volatile uint##BITS##_t *p,            \
                                                       uint##BITS##_t v, int order)           \
    {                                                                                         \
        uint##BITS##_t old = 0;                                                               \
        if (!memory_has(p)) {                                                                 \
            old = *p;                                                                         \
            *p = (uint##BITS##_t)(VALUE);                                                     \
            return old;                                                                       \
        }                                                                                     \
        memory_step();                                                                        \
        memory_begin_rmw(access_at(p), &old, sizeof old, order);                              \
        v = (uint##BITS##_t)(VALUE);                                                          \
        memory_end_rmw(access_at(p), &v, sizeof v, order);                                    \
        return old;                                                                           \
    }

#define ACCESS_COMPARE(BITS, NAME)                                                                \
    int __tsan_atomic##BITS##_##NAME(volatile uint##BITS##_t *p, uint##BITS##_t *expected,        \
                                     uint##BITS##_t v, int order, int otherwise);                 \
    ACCESS int __tsan_atomic##BITS##_##NAME(volatile uint##BITS##_t *p, uint##BITS##_t *expected, \
                                            uint##BITS##_t v, int order, int otherwise)           \
    {                                                                                             \
        uint##BITS##_t old = 0;                                                                   \
        const bool shared = memory_has(p);                                                        \
        (void)otherwise;                                                                          \
        if (shared) {                                                                             \
            memory_step();                                                                        \
            memory_begin_rmw(access_at(p), &old, sizeof old, order);                              \
        } else {                                                                                  \
            old = *p;                                                                             \
        }                                                                                         \
        if (old != *expected) {                                                                   \
            *expected = old;                                                                      \
            return 0;                                                                             \
        }                                                                                         \
        if (shared) {                                                                             \
            memory_end_rmw(access_at(p), &v, sizeof v, order);                                    \
        } else {                                                                                  \
            *p = v;                                                                               \
        }                                                                                         \
        return 1;                                                                                 \
    }

#define ACCESS_ATOMIC(BITS)                                                                       \
    uint##BITS##_t __tsan_atomic##BITS##_load(const volatile uint##BITS##_t *p, int order);       \
    ACCESS uint##BITS##_t __tsan_atomic##BITS##_load(const volatile uint##BITS##_t *p, int order) \
    {                                                                                             \
        uint##BITS##_t v = 0;                                                                     \
        if (!memory_has(p)) {                                                                     \
            return *p;                                                                            \
        }                                                                                         \
        memory_step();                                                                            \
        memory_do_load(access_at(p), &v, sizeof v, order);                                        \
        return v;                                                                                 \
    }                                                                                             \
    void __tsan_atomic##BITS##_store(volatile uint##BITS##_t *p, uint##BITS##_t v, int order);    \
    ACCESS void __tsan_atomic##BITS##_store(volatile uint##BITS##_t *p, uint##BITS##_t v,         \
                                            int order)                                            \
    {                                                                                             \
        if (!memory_has(p)) {                                                                     \
            *p = v;                                                                               \
            return;                                                                               \
        }                                                                                         \
        memory_step();                                                                            \
        memory_do_store(access_at(p), &v, sizeof v, order);                                       \
    }                                                                                             \
    ACCESS_RMW(BITS, exchange, v)                                                                 \
    ACCESS_RMW(BITS, fetch_add, old + v)                                                          \
    ACCESS_RMW(BITS, fetch_sub, old - v)                                                          \
    ACCESS_RMW(BITS, fetch_and, old &v)                                                           \
    ACCESS_RMW(BITS, fetch_or, old | v)                                                           \
    ACCESS_RMW(BITS, fetch_xor, old ^ v)                                                          \
    ACCESS_COMPARE(BITS, compare_exchange_strong)                                                 \
    ACCESS_COMPARE(BITS, compare_exchange_weak)
ACCESS_ATOMIC(8)
ACCESS_ATOMIC(16)
ACCESS_ATOMIC(32)
ACCESS_ATOMIC(64)

void __tsan_atomic_thread_fence(int order);
ACCESS void __tsan_atomic_thread_fence(int order)
{
    if (world.in >= 0) {
        memory_step();
        memory_do_fence(order);
    }
}
void __tsan_atomic_signal_fence(int order);
ACCESS void __tsan_atomic_signal_fence(int order)
{
    (void)order;
}

#endif
