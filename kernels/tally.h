/* tally.h - the sums behind a ledger, which the loops of tally_loops.h take. */
#ifndef DCOMMI_TALLY_SUMS_H
#define DCOMMI_TALLY_SUMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Indices into dcomm_ledger.sums. x: the input; y: its decoded value. */
enum {
    DCOMMI_LEDGER_XX,       /* x^2 */
    DCOMMI_LEDGER_YY,       /* y^2 */
    DCOMMI_LEDGER_XY,       /* x y */
    DCOMMI_LEDGER_EE,       /* (y-x)^2 */
    DCOMMI_LEDGER_SIGNED,   /* sign(x) (y-x) */
    DCOMMI_LEDGER_X,        /* |x| */
    DCOMMI_LEDGER_ENCODED,  /* (gradient + residual)^2 */
    DCOMMI_LEDGER_RESIDUAL, /* residual^2 that each encoding leaves */
    DCOMMI_LEDGER_SUMS
};

/* Element i is added to sum number i % LANES, in f64: the same order for every instruction set. */
enum { DCOMMI_LEDGER_LANES = 8 };

typedef struct dcommi_tally {
    double sum[DCOMMI_LEDGER_SUMS][DCOMMI_LEDGER_LANES];
    uint64_t seen;  /* elements compared */
    const float *x; /* input to compare with; NULL: none */
    bool done;      /* the codec took the sums while encoding */
} dcommi_tally;

#endif
