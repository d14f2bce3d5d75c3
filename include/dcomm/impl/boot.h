/* boot.h - how the ranks of a new communicator meet: by the launcher, an id, or the caller's own
 * all-gather. */
#ifndef DCOMMI_BOOT_H
#define DCOMMI_BOOT_H

#include "../comm.h"
#include "util.h"

typedef struct dcommi_boot {
    int rank, size;
    int local_rank; /* rank within the host as the launcher counts, -1 if it does not say */
    /* then private */
} dcommi_boot;

/* Resolve how to meet from opts (boot kind, environment), connect, and wait for all ranks. opts
 * may be NULL. Blocks at most timeout_s. cancel may be NULL; when *cancel becomes non-zero,
 * returns DCOMM_ERR_ABORTED soon. */
static dcomm_status dcommi_boot_open(const dcomm_comm_opts *opts, double timeout_s,
                                     const _Atomic int *cancel, dcommi_boot **boot_p);
/* Every rank's blob to every rank: *all_p (dcommi_free it) is the concatenation, (*lens_p)[size]
 * (dcommi_free it) the lengths. A blob has at most 1 MiB. Blocks at most timeout_s of open. After
 * an error only close is allowed. */
static dcomm_status dcommi_boot_allgather(dcommi_boot *boot, const void *mine, size_t len,
                                          void **all_p, size_t **lens_p);
/* Leave; waits at most a second for the others to have left when this process serves them. */
static void dcommi_boot_close(dcommi_boot *boot);

#endif
