/* comm.h - what a port from MPI starts with: a communicator of all ranks, and errors that end the program.
 * Copy it beside dcomm.h; include it in place of <mpi.h>. */
#ifndef COMM_H
#define COMM_H

#include "dcomm.h"
#include <stdio.h>
#include <stdlib.h>

/* All ranks, for every file that includes this one. main: CHECK(dcomm_comm_create(NULL, &world)) at the
 * beginning, CHECK(dcomm_comm_destroy(&world)) at the end. */
__attribute__((weak)) dcomm_comm *world;

/* Do what MPI_ERRORS_ARE_FATAL does: say where and why, and end; the other ranks' calls then fail too. */
#define CHECK(call)                                                               \
    do {                                                                          \
        if ((call) < 0) {                                                         \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, dcomm_last_error()); \
            exit(3);                                                              \
        }                                                                         \
    } while (0)

#endif
