/* tally.h - the sums that a ledger is made of, as the loops of tally_loops.h take them. */
#ifndef DCOMMI_TALLY_SUMS_H
#define DCOMMI_TALLY_SUMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* x: the input, y: what arrives. Places in dcomm_ledger.sums. */
enum {
    DCOMMI_LEDGER_XX,       /* x^2 */
    DCOMMI_LEDGER_YY,       /* y^2 */
    DCOMMI_LEDGER_XY,       /* x y */
    DCOMMI_LEDGER_EE,       /* (y-x)^2 */
    DCOMMI_LEDGER_SIGNED,   /* sign(x) (y-x) */
    DCOMMI_LEDGER_X,        /* |x| */
    DCOMMI_LEDGER_ENCODED,  /* (gradient + residual)^2 */
    DCOMMI_LEDGER_RESIDUAL, /* residual^2, of each encoding */
    DCOMMI_LEDGER_SUMS
};

/* Element i goes to sum number i % LANES, in f64: an order that no instruction set changes. */
enum { DCOMMI_LEDGER_LANES = 8 };

typedef struct dcommi_tally {
    double sum[DCOMMI_LEDGER_SUMS][DCOMMI_LEDGER_LANES];
    uint64_t seen;  /* elements compared */
    const float *x; /* what to compare with; NULL: nothing */
    bool done;      /* the codec has taken the sums as it encoded */
} dcommi_tally;

#endif
