/* checkpoint.h - write the training's state to files while it goes on, and read it again.
 *
 * DIR/step-00000120/ is a generation: the state after 120 steps. Its rank-0, rank-1, ... have equal
 * shares of what all ranks have (weights, Adam's state, losses), and what only that rank has (error
 * feedback). Its manifest names the files with their lengths and checksums. It is written last, so
 * a generation without one is incomplete. Each file gets its name when it is on the disk. The two
 * newest generations are kept. All ranks must see the same DIR. */
#ifndef CHECKPOINT_H
#define CHECKPOINT_H

#include "trainer.h"

/* Start the thread that writes, if options.checkpoint is set. Return 0, or -1 after an error
 * message. */
int checkpoint_open(trainer *t);
/* Wait until what is being written is written, and end the thread. */
void checkpoint_close(trainer *t);
/* Call it after each step on all ranks. Copies the state when it is time, and lets rank 0 write the
 * manifest when all ranks have written their files. If the checkpoint before is not written yet
 * when the next one is due, or with `last`, waits for it. */
dcomm_status checkpoint_step(trainer *t, bool last);
/* Forget the checkpoint that is being written: a rank that takes part in it has died. */
void checkpoint_forget(trainer *t);
/* Print how long checkpoints have held training up, and how often one should be written. */
void checkpoint_report(const trainer *t);
/* Read the newest generation that all ranks can read. The number of ranks may differ from that of
 * the ranks that wrote it. t->step says which one it was; it stays 0 if there is none. Return an
 * exit status; errors are printed. */
int checkpoint_resume(trainer *t);

#endif
