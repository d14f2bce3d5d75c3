/* pmi.h - PMI-1, the wire protocol of MPICH's process managers, used to share an id.
 *
 * Each question and each answer is a line of text on the socket PMI_FD. The MPI library of the
 * same program uses that socket too, before or after us. We can share it because Hydra takes
 * "init" twice, but not while MPI initializes in another thread. Hydra kills the job if a rank
 * that has spoken ends without "finalize", and it hangs up after "finalize". So we send "finalize"
 * when the process exits, and only if MPI has not initialized. */
#ifndef DCOMMI_PMI_H
#define DCOMMI_PMI_H

#include "socket.h"

#include <dlfcn.h>

#define DCOMMI_PMI_LINE 2048
#define DCOMMI_PMI_NAME 128

/* Copy the value of `key` from "cmd=x key=value ...". Return false if it is absent or longer than
 * max - 1. */
static bool dcommi_pmi_value(const char *line, size_t len, const char *key, char *value, size_t max)
{
    size_t key_len = strlen(key);
    for (size_t at = 0; at < len;) {
        size_t end = at;
        while (end < len && line[end] != ' ' && line[end] != '\n' && line[end] != '\0') {
            end++;
        }
        if (end - at > key_len && memcmp(line + at, key, key_len) == 0 &&
            line[at + key_len] == '=') {
            size_t n = end - at - key_len - 1;
            if (n >= max) {
                return false;
            }
            memcpy(value, line + at + key_len + 1, n);
            value[n] = '\0';
            return true;
        }
        at = end + 1;
    }
    return false;
}

/* Return true if a line is the answer `cmd`, and its rc is 0 or absent. */
static bool dcommi_pmi_answers(const char *line, size_t len, const char *cmd)
{
    char text[64];
    if (!dcommi_pmi_value(line, len, "cmd", text, sizeof text) || strcmp(text, cmd) != 0) {
        return false;
    }
    return !dcommi_pmi_value(line, len, "rc", text, sizeof text) || strcmp(text, "0") == 0;
}

typedef struct dcommi_pmi {
    int fd; /* our own copy, because MPI closes its descriptor when it ends */
    pid_t pid;
    bool open, broken;
    char kvs[DCOMMI_PMI_NAME];
} dcommi_pmi;

static dcommi_pmi dcommi_pmi_state = {.fd = -1};
static pthread_mutex_t dcommi_pmi_lock = PTHREAD_MUTEX_INITIALIZER;

/* Send one question and read its answer. */
static dcomm_status dcommi_pmi_ask(const char *question, const char *expected,
                                   char answer[DCOMMI_PMI_LINE], size_t *len_p, double deadline,
                                   const _Atomic int *cancel)
{
    dcommi_pmi *p = &dcommi_pmi_state;
    size_t len = strlen(question), have = 0;
    ssize_t n = dcommi_sys_send(p->fd, question, len, MSG_NOSIGNAL);
    p->broken = true; /* until the whole answer has come */
    if (n != (ssize_t)len) {
        return dcommi_fail(DCOMM_ERR_RENDEZVOUS,
                           "the process manager (PMI_FD) does not listen: %s; MPI_Finalize ends "
                           "it, so create the communicator before, or with an id",
                           strerror(errno));
    }
    /* Read byte by byte, because bytes after the line may be for MPI. */
    while (have == 0 || answer[have - 1] != '\n') {
        dcomm_status status = dcommi_sock_wait(p->fd, POLLIN, deadline, cancel);
        if (status < 0) {
            return dcommi_fail(status, "the process manager (PMI) did not answer: %s",
                               status == DCOMM_ERR_TIMEOUT
                                   ? "it has failed, or some ranks do not take part"
                                   : "the wait was cancelled");
        }
        n = have < DCOMMI_PMI_LINE - 1 ? dcommi_sys_recv(p->fd, answer + have, 1, MSG_DONTWAIT) : 0;
        if (n == 0 || (n < 0 && !dcommi_sys_later())) {
            return dcommi_fail(DCOMM_ERR_RENDEZVOUS, "the process manager (PMI_FD) hung up");
        }
        have += n > 0 ? (size_t)n : 0;
    }
    answer[have] = '\0';
    *len_p = have;
    p->broken = false;
    if (!dcommi_pmi_answers(answer, have, expected)) {
        return dcommi_fail(DCOMM_ERR_RENDEZVOUS, "the process manager (PMI) answered \"%.*s\"",
                           (int)strcspn(answer, "\n"), answer);
    }
    return DCOMM_OK;
}

static void dcommi_pmi_at_exit(void)
{
    dcommi_pmi *p = &dcommi_pmi_state;
    if (!p->open || p->broken || p->pid != getpid()) {
        return;
    }
    int by_mpi = 0;
    int (*initialized)(int *) = NULL;
    *(void **)&initialized = dlsym(RTLD_DEFAULT, "MPI_Initialized");
    if (initialized != NULL && initialized(&by_mpi) == 0 && by_mpi) {
        return;
    }
    char answer[DCOMMI_PMI_LINE];
    size_t len;
    dcommi_pmi_ask("cmd=finalize\n", "finalize_ack", answer, &len, dcommi_now() + 5, NULL);
}

static dcomm_status dcommi_pmi_open(int fd, double deadline, const _Atomic int *cancel)
{
    dcommi_pmi *p = &dcommi_pmi_state;
    char answer[DCOMMI_PMI_LINE];
    size_t len;
    if (p->broken) {
        return dcommi_fail(DCOMM_ERR_RENDEZVOUS,
                           "the process manager (PMI) failed in an earlier communicator");
    }
    if (p->open && p->pid == getpid()) {
        return DCOMM_OK;
    }
    p->fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    if (p->fd < 0) {
        return dcommi_fail(DCOMM_ERR_INVALID,
                           "PMI_FD=%d is no open descriptor (%s); if MPI has been finalized, "
                           "create the communicator before, or with an id",
                           fd, strerror(errno));
    }
    p->pid = getpid();
    DCOMMI_TRY(dcommi_pmi_ask("cmd=init pmi_version=1 pmi_subversion=1\n", "response_to_init",
                              answer, &len, deadline, cancel));
    p->open = true;
    atexit(dcommi_pmi_at_exit);
    DCOMMI_TRY(
        dcommi_pmi_ask("cmd=get_my_kvsname\n", "my_kvsname", answer, &len, deadline, cancel));
    if (!dcommi_pmi_value(answer, len, "kvsname", p->kvs, sizeof p->kvs)) {
        return dcommi_fail(DCOMM_ERR_RENDEZVOUS, "the process manager (PMI) names no key space");
    }
    return DCOMM_OK;
}

static dcomm_status dcommi_pmi_share_locked(int fd, const char *key, const char *mine, char *text,
                                            size_t max, double deadline, const _Atomic int *cancel)
{
    char line[DCOMMI_PMI_LINE], answer[DCOMMI_PMI_LINE];
    size_t len;
    dcommi_pmi *p = &dcommi_pmi_state;
    DCOMMI_TRY(dcommi_pmi_open(fd, deadline, cancel));
    if (mine != NULL) {
        snprintf(line, sizeof line, "cmd=put kvsname=%s key=%s value=%s\n", p->kvs, key, mine);
        DCOMMI_TRY(dcommi_pmi_ask(line, "put_result", answer, &len, deadline, cancel));
    }
    DCOMMI_TRY(dcommi_pmi_ask("cmd=barrier_in\n", "barrier_out", answer, &len, deadline, cancel));
    snprintf(line, sizeof line, "cmd=get kvsname=%s key=%s\n", p->kvs, key);
    DCOMMI_TRY(dcommi_pmi_ask(line, "get_result", answer, &len, deadline, cancel));
    if (!dcommi_pmi_value(answer, len, "value", text, max)) {
        return dcommi_fail(DCOMM_ERR_RENDEZVOUS, "the process manager (PMI) lost the id");
    }
    return DCOMM_OK;
}

/* Publish `mine` under `key` on rank 0 (others pass NULL), and read it on all ranks. All ranks
 * must call this. */
static dcomm_status dcommi_pmi_share(int fd, const char *key, const char *mine, char *text,
                                     size_t max, double deadline, const _Atomic int *cancel)
{
    pthread_mutex_lock(&dcommi_pmi_lock);
    dcomm_status status = dcommi_pmi_share_locked(fd, key, mine, text, max, deadline, cancel);
    pthread_mutex_unlock(&dcommi_pmi_lock);
    return status;
}

#endif
