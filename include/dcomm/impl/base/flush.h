/* flush.h - flushes memory out of the caches, where the processor has an instruction for it. */
#ifndef DCOMMI_FLUSH_H
#define DCOMMI_FLUSH_H

#include "util.h"

#if defined(__x86_64__)
#include <cpuid.h>

#define DCOMMI_FLUSH_LINE 64

/* Flush lines without an order among them. clflush waits for each line, which is far slower. */
__attribute__((target("clflushopt"))) static void dcommi_flush_unordered(const uint8_t *at,
                                                                         int64_t len)
{
    for (int64_t i = 0; i < len; i += DCOMMI_FLUSH_LINE) {
        __builtin_ia32_clflushopt((void *)(uintptr_t)(at + i));
    }
    __builtin_ia32_mfence();
}

static void dcommi_flush_ordered(const uint8_t *at, int64_t len)
{
    for (int64_t i = 0; i < len; i += DCOMMI_FLUSH_LINE) {
        __builtin_ia32_clflush(at + i);
    }
    __builtin_ia32_mfence();
}

static void dcommi_flush(const uint8_t *at, int64_t len)
{
    static _Atomic int unordered = -1;
    int has = atomic_load_explicit(&unordered, memory_order_relaxed);
    if (has < 0) {
        unsigned a = 0, b = 0, c = 0, d = 0;
        has = __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b & bit_CLFLUSHOPT) != 0;
        atomic_store_explicit(&unordered, has, memory_order_relaxed);
    }
    (has ? dcommi_flush_unordered : dcommi_flush_ordered)(at, len);
}
#else
static void dcommi_flush(const uint8_t *at, int64_t len)
{
    (void)at;
    (void)len;
}
#endif

#endif
