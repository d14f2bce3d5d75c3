/* restarted.c - a rank for test_run.sh: rank 1 is killed in its first life, the others go on, and
 * its second life joins them. The program text is the same for both lives. If DIES_ONCE names a
 * file that is not there, rank 1 makes it and is killed before a communicator is whole. */
#include "dcomm.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define OK(call)                                                    \
    do {                                                            \
        if ((call) != DCOMM_OK) {                                   \
            fprintf(stderr, "%s: %s\n", #call, dcomm_last_error()); \
            return 1;                                               \
        }                                                           \
    } while (0)

/* Die in the first life of rank 1: before it creates its communicator, or while it does. */
static void die_once(const dcomm_comm_opts *opts)
{
    const char *file = getenv("DIES_ONCE");
    const int fd = file != NULL && strcmp(getenv("RANK"), "1") == 0
                       ? open(file, O_CREAT | O_EXCL | O_WRONLY, 0600)
                       : -1;
    dcomm_comm *comm = NULL;
    if (fd >= 0 && (strcmp(getenv("DIES_IN"), "start") == 0 ||
                    dcomm_comm_create_start(opts, &comm) == DCOMM_OK)) {
        usleep(comm != NULL ? 1000 : 0); /* the others wait for more than its arrival */
        kill(getpid(), SIGKILL);
    }
}

int main(void)
{
    const int size = atoi(getenv("WORLD_SIZE")), joins = getenv("DCOMM_JOIN") != NULL;
    const dcomm_comm_opts opts = {.timeout_s = 20, .on_error = DCOMM_ON_ERROR_RETURN, .tune = -1};
    dcomm_comm *comm = NULL, *rest = NULL;
    float one = 1, sum = 0;
    die_once(&opts);
    OK(dcomm_comm_create(&opts, &comm));
    for (int step = 0; !joins && getenv("DIES_ONCE") == NULL; step++) {
        if (dcomm_allreduce(comm, &one, &sum, 1, DCOMM_F32, DCOMM_SUM, NULL) != DCOMM_OK) {
            OK(dcomm_comm_shrink(comm, NULL, 0, &rest));
            OK(dcomm_comm_destroy(&comm));
            OK(dcomm_comm_grow(rest, NULL, size - dcomm_comm_size(rest), 15, &comm));
            OK(dcomm_comm_destroy(&rest));
            break;
        }
        if (step == 3 && dcomm_comm_rank(comm) == 1) {
            kill(getpid(), SIGKILL);
        }
    }
    OK(dcomm_allreduce(comm, &one, &sum, 1, DCOMM_F32, DCOMM_SUM, NULL));
    printf("%d of %d: the sum is %g\n", dcomm_comm_rank(comm), dcomm_comm_size(comm), (double)sum);
    OK(dcomm_comm_destroy(&comm));
    return 0;
}
