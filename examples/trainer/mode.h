/* mode.h - ways to train that do not sum all gradients in each step. Ranks then have different
 * weights until the last step.
 *
 * A rank's t->losses has its own part of the losses until all steps are done. */
#ifndef MODE_H
#define MODE_H

#include "trainer.h"

typedef struct mode {
    /* Allocate t->mode_state. All ranks have the same weights. */
    dcomm_status (*open)(trainer *t);
    /* Do one step or more, and count them in t->step. */
    dcomm_status (*step)(trainer *t);
    /* After the last step: give all ranks the same weights. */
    dcomm_status (*finish)(trainer *t);
    void (*close)(trainer *t); /* t->mode_state may be NULL */
} mode;

extern const mode mode_ps, mode_local, mode_federated;

/* Return the mode by the options; NULL: data-parallel. */
const mode *mode_of(const options *o);
/* Do the last steps' exchange, and sum up the losses. */
dcomm_status mode_finish(trainer *t);

/* ---- for modes ---- */

/* Compute the mean gradient of this rank's part of batch t->step, times the batch, as
 * optimizer_update takes it. Note the losses. Return the number of sequences. */
int mode_gradients(trainer *t);
/* Note the sum of the losses of some sequences of batch t->step. */
void mode_losses(trainer *t, double sum, int sequences);

#endif
