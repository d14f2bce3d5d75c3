/* preamble.h - checks of the file that holds the implementation. It has no include guard, because
 * the file may have included dcomm.h before, for the declarations.
 *
 * A refused file gets one error and then only the declarations, so that no other error follows. */

#if defined(DCOMM_IMPLEMENTATION) || defined(DCOMM_NCCL_IMPLEMENTATION)
#ifdef __cplusplus
#error \
    "dcomm: the implementation is C: compile dcomm.c (#define DCOMM_IMPLEMENTATION, #include \"dcomm.h\") beside your C++ files, link it, and only include the header here"
#undef DCOMM_IMPLEMENTATION
#undef DCOMM_NCCL_IMPLEMENTATION
#elif !defined(_GNU_SOURCE) && defined(_FEATURES_H)
#error \
    "dcomm: a system header came before dcomm.h, without _GNU_SOURCE: include dcomm.h first in this file, or compile it with -D_GNU_SOURCE"
#undef DCOMM_IMPLEMENTATION
#undef DCOMM_NCCL_IMPLEMENTATION
#elif !defined(_GNU_SOURCE)
#define _GNU_SOURCE
#endif
#endif

/* Results depend on NaNs, infinities and the order of sums, which -ffast-math does not keep. */
#if defined(DCOMM_IMPLEMENTATION) && \
    (defined(__FAST_MATH__) || defined(__ASSOCIATIVE_MATH__) || (__FINITE_MATH_ONLY__ + 0))
#error \
    "dcomm: compile this file with -fno-fast-math (after -Ofast or -ffast-math): the same bits on every rank need the C standard's arithmetic"
#undef DCOMM_IMPLEMENTATION
#endif

#if defined(DCOMM_CUDA_IMPLEMENTATION) && !defined(__cplusplus)
#error \
    "dcomm: DCOMM_CUDA_IMPLEMENTATION is CUDA C++: define it in one .cu file, which nvcc compiles"
#undef DCOMM_CUDA_IMPLEMENTATION
#endif
