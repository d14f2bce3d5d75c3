/* comm.h - the start of a port from MPI: a communicator of all ranks, and errors that end the
 * program. Copy this file beside dcomm.h, and include it in place of <mpi.h>. */
#ifndef COMM_H
#define COMM_H

#include "dcomm.h"
#include <stdio.h>
#include <stdlib.h>

/* The communicator of all ranks, for every file that includes this one. Call
 * CHECK(dcomm_comm_create(NULL, &world)) at the beginning of main, and
 * CHECK(dcomm_comm_destroy(&world)) at its end. */
__attribute__((weak)) dcomm_comm *world;

/* Do what MPI_ERRORS_ARE_FATAL does: after an error, print where and why, and exit. Then the calls
 * of the other ranks fail, too. */
#define CHECK(call)                                                               \
    do {                                                                          \
        if ((call) < 0) {                                                         \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, dcomm_last_error()); \
            exit(3);                                                              \
        }                                                                         \
    } while (0)

#endif
