/* procs.h - tests of several processes: fork them, let them exchange small blobs and count each
 * other's steps through shared memory, collect their exit codes, kill them when time is up. */
#ifndef PROCS_H
#define PROCS_H

#include "full.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifdef DCOMM_TEST_ASAN
#include <sanitizer/lsan_interface.h>
#endif

/* With sanitizers, run every third case of those that differ only in numbers: the faults they find
 * do not depend on all cases. */
#ifdef DCOMM_TEST_ASAN
enum { PROCS_THIN = 3 };
#else
enum { PROCS_THIN = 1 };
#endif

/* Return the stride of a loop over cases that take long with sanitizers. */
static inline size_t procs_step(void)
{
    return test_full() ? 1 : PROCS_THIN;
}

/* Return the stride of a loop of which the everyday run takes a third. */
static inline int procs_third(void)
{
    return test_full() ? PROCS_THIN : 3;
}

#define PROCS_MAX 16
#define PROCS_BLOB 4096

typedef struct procs_shared {
    _Atomic int posted[PROCS_MAX]; /* the last step that a process has reached */
    struct {
        _Atomic size_t len; /* 0: not there yet */
        unsigned char bytes[PROCS_BLOB];
    } blobs[PROCS_MAX];
    _Atomic long words[64]; /* for the test's own use */
} procs_shared;

typedef int (*procs_fn)(int rank, int n, procs_shared *shared, void *arg);

static inline double procs_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static inline void procs_nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
}

/* Kill the process from a thread while the process works. */
static inline void *procs_die_soon(void *unused)
{
    (void)unused;
    nanosleep(&(struct timespec){.tv_nsec = 20000000 + getpid() % 16 * 1000000}, NULL);
    kill(getpid(), SIGKILL);
    return NULL;
}

/* Publish this process's blob, once. */
static inline void procs_give(procs_shared *s, int rank, const void *bytes, size_t len)
{
    if (len == 0 || len > PROCS_BLOB) {
        fprintf(stderr, "procs: a blob of %zu bytes does not fit\n", len);
        _exit(99);
    }
    memcpy(s->blobs[rank].bytes, bytes, len);
    atomic_store(&s->blobs[rank].len, len);
}

/* Wait for another process's blob. */
static inline const void *procs_take(procs_shared *s, int rank, size_t *len)
{
    while ((*len = atomic_load(&s->blobs[rank].len)) == 0) {
        procs_nap();
    }
    return s->blobs[rank].bytes;
}

/* Return a process's exit code at its end: 97 if it has leaked memory. No other thread may start
 * or end meanwhile: its memory would look leaked. */
static inline int procs_leaks(void)
{
#ifdef DCOMM_TEST_ASAN
    if (__lsan_do_recoverable_leak_check() != 0) {
        return 97;
    }
#endif
    return 0;
}

/* Announce that this process has reached a step; procs_all checks the others (but `skip`). */
static inline void procs_post(procs_shared *s, int rank, int step)
{
    atomic_store(&s->posted[rank], step);
}

static inline bool procs_all(procs_shared *s, int n, int step, int skip)
{
    for (int r = 0; r < n; r++) {
        if (r != skip && atomic_load(&s->posted[r]) < step) {
            return false;
        }
    }
    return true;
}

/* Run fn in n forked processes. ended[r] is the exit code, 128 + n for signal n. Return the number
 * of processes that did not exit with 0. Kill all after timeout_s. */
static inline int procs_run(int n, double timeout_s, procs_fn fn, void *arg, int *ended)
{
    pid_t pids[PROCS_MAX];
    bool over[PROCS_MAX] = {false};
    int left = n, bad = 0;
    double deadline = procs_now() + timeout_s;
    procs_shared *s =
        mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (s == MAP_FAILED || n > PROCS_MAX) {
        fprintf(stderr, "procs: cannot start %d processes\n", n);
        return n;
    }
    fflush(NULL);
    for (int r = 0; r < n; r++) {
        pids[r] = fork();
        if (pids[r] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            setenv("DCOMM_WARN_UNBOUND", "0", 1); /* test processes are never bound */
            setenv("DCOMM_TUNE_CACHE", "off", 1);
            /* Tests fail on purpose, and check the errors themselves. */
            setenv("DCOMM_ERRORS", "return", 1);
            setenv("DCOMM_TUNE", "0", 1); /* longer than most tests: opts.tune = 1 turns it on */
            int code = fn(r, n, s, arg);
            fflush(NULL);
            _exit(code);
        }
    }
    while (left > 0) {
        for (int r = 0; r < n; r++) {
            int status = 0;
            if (over[r] || (pids[r] > 0 && waitpid(pids[r], &status, WNOHANG) == 0)) {
                continue;
            }
            over[r] = true;
            left--;
            ended[r] = pids[r] < 0           ? 98
                       : WIFSIGNALED(status) ? 128 + WTERMSIG(status)
                                             : WEXITSTATUS(status);
            bad += ended[r] != 0;
        }
        if (left > 0 && procs_now() > deadline) {
            fprintf(stderr, "procs: %d of %d processes still ran after %.0f s\n", left, n,
                    timeout_s);
            for (int r = 0; r < n; r++) {
                if (!over[r] && pids[r] > 0) {
                    kill(pids[r], SIGKILL);
                }
            }
            deadline += 1e9;
        }
        procs_nap();
    }
    munmap(s, sizeof *s);
    return bad;
}

/* In a child: print the error and exit with 1. */
#define PROCS_CHECK(condition, ...)                                         \
    do {                                                                    \
        if (!(condition)) {                                                 \
            fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #condition); \
            fprintf(stderr, __VA_ARGS__);                                   \
            fputc('\n', stderr);                                            \
            fflush(NULL);                                                   \
            _exit(1);                                                       \
        }                                                                   \
    } while (0)
#define PROCS_TRUE(condition) PROCS_CHECK(condition, "does not hold")

#endif
