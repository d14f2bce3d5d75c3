/* cpu.h - choose the folds of the instruction set in use. */
#ifndef DCOMMI_CPU_H
#define DCOMMI_CPU_H

#include "portable.h"

#include "isa.h"

#if defined(__x86_64__)
#include "avx2.h"
#include "avx512.h"
#endif

static dcommi_fold_fn dcommi_fold_get(dcomm_dtype dtype, dcommi_fold_kind kind)
{
    switch (dcommi_isa_get()) {
#if defined(__x86_64__)
    case DCOMMI_ISA_AVX512:
        return dcommi_avx512_folds[dtype][kind];
    case DCOMMI_ISA_AVX2:
        return dcommi_avx2_folds[dtype][kind];
#endif
    default:
        return dcommi_port_folds[dtype][kind];
    }
}

#endif
