/* isa.h - the instruction set in use, chosen once at run time. */
#ifndef DCOMMI_ISA_H
#define DCOMMI_ISA_H

#include "../../include/dcomm/impl/base/util.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

typedef enum dcommi_isa {
    DCOMMI_ISA_PORTABLE = 0,
    DCOMMI_ISA_AVX2 = 1,
    DCOMMI_ISA_AVX512 = 2,
    DCOMMI_ISA_COUNT = 3
} dcommi_isa;

static const char *const dcommi_isa_names[DCOMMI_ISA_COUNT] = {"portable", "avx2", "avx512"};

/* Return the best set that the processor and the operating system support. */
static dcommi_isa dcommi_isa_best(void)
{
#if defined(__x86_64__)
    unsigned a, b, c, d;
    bool f16c = __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0 && (c & bit_FMA) != 0;
    if (f16c && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
        return DCOMMI_ISA_AVX512;
    }
    if (f16c && __builtin_cpu_supports("avx2")) {
        return DCOMMI_ISA_AVX2;
    }
#endif
    return DCOMMI_ISA_PORTABLE;
}

/* Return the first letters of the processor's vendor, as cpuid gives them; 0: unknown. */
static inline unsigned dcommi_isa_maker(void)
{
#if defined(__x86_64__)
    unsigned a, b, c, d;
    return __get_cpuid(0, &a, &b, &c, &d) != 0 ? b : 0;
#else
    return 0;
#endif
}

static inline bool dcommi_isa_is_intel(void)
{
    return dcommi_isa_maker() == 0x756e6547; /* Genu */
}

static inline bool dcommi_isa_is_amd(void)
{
    return dcommi_isa_maker() == 0x68747541; /* Auth */
}

/* Unroll the following loop, which has at most eight iterations. */
#ifdef __clang__
#define DCOMMI_UNROLL_8 _Pragma("unroll")
#else
#define DCOMMI_UNROLL_8 _Pragma("GCC unroll 8")
#endif

/* Prefetch the line at p into the L2 cache. */
__attribute__((always_inline)) static inline void dcommi_ahead(const void *p)
{
    __builtin_prefetch(p, 0, 2);
}

/* Order nontemporal stores before all later stores. */
static inline void dcommi_settle(void)
{
#if defined(__x86_64__)
    __builtin_ia32_sfence();
#endif
}

static _Atomic int dcommi_isa_chosen = -1;

/* Use `wanted`, or the best set if it is unknown or cannot run here. Return the set in use. */
static dcommi_isa dcommi_isa_force(int wanted)
{
    dcommi_isa best = dcommi_isa_best();
    dcommi_isa isa = wanted >= 0 && wanted <= (int)best ? (dcommi_isa)wanted : best;
    atomic_store_explicit(&dcommi_isa_chosen, (int)isa, memory_order_relaxed);
    return isa;
}

/* Return the set in use. DCOMM_ISA=portable|avx2|avx512 forces one. */
static dcommi_isa dcommi_isa_get(void)
{
    int known = atomic_load_explicit(&dcommi_isa_chosen, memory_order_relaxed);
    if (DCOMMI_LIKELY(known >= 0)) {
        return (dcommi_isa)known;
    }
    const char *name = getenv("DCOMM_ISA");
    int wanted = DCOMMI_ISA_COUNT - 1;
    while (name != NULL && wanted >= 0 && strcmp(name, dcommi_isa_names[wanted]) != 0) {
        wanted--;
    }
    dcommi_isa isa = dcommi_isa_force(wanted);
    if (name != NULL && (int)isa != wanted) {
        static atomic_flag warned = ATOMIC_FLAG_INIT;
        if (!atomic_flag_test_and_set(&warned)) {
            dcommi_log(DCOMMI_LOG_WARN, "DCOMM_ISA=%s is %s; using %s", name,
                       wanted < 0 ? "not known (portable, avx2, avx512)" : "not available here",
                       dcommi_isa_names[isa]);
        }
    }
    return isa;
}

#endif
