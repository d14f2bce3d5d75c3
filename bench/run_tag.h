/* run_tag.h - pass on the ranks' output, with the rank in front of each line. */
#ifndef RUN_TAG_H
#define RUN_TAG_H

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RUN_TAG_LINE 4096

/* Stream 2*i is rank i's standard output, 2*i+1 its standard error. */
typedef struct run_tag_stream {
    int child; /* the writing end of the pipe, until the rank has it */
    size_t used;
    char line[RUN_TAG_LINE];
} run_tag_stream;

typedef struct run_tags {
    int streams;               /* 0: output is not tagged */
    int first_rank, rank_step; /* ranks of the streams */
    run_tag_stream *stream;
    struct pollfd *fds; /* [0] is for the launcher's signals, then one per stream */
} run_tags;

static void run_tag_init(run_tags *t, int ranks, int first_rank, int rank_step)
{
    t->streams = 2 * ranks;
    t->first_rank = first_rank;
    t->rank_step = rank_step;
    t->stream = calloc((size_t)t->streams + 1, sizeof *t->stream);
    t->fds = calloc((size_t)t->streams + 1, sizeof *t->fds);
    if (t->stream == NULL || t->fds == NULL) {
        fputs("dcomm-run: out of memory\n", stderr);
        exit(1);
    }
    for (int i = 0; i <= t->streams; i++) {
        t->fds[i].fd = -1;
    }
}

/* Open the pipes of a rank. Return false and set errno if that fails. */
static bool run_tag_open(run_tags *t, int rank)
{
    for (int i = 2 * rank; i < 2 * rank + 2; i++) {
        int ends[2];
        if (pipe2(ends, O_CLOEXEC) != 0) {
            return false;
        }
        fcntl(ends[0], F_SETFL, O_NONBLOCK);
        t->fds[1 + i] = (struct pollfd){.fd = ends[0], .events = POLLIN};
        t->stream[i].child = ends[1];
    }
    return true;
}

static void run_tag_child(run_tags *t, int rank)
{
    dup2(t->stream[2 * rank].child, STDOUT_FILENO);
    dup2(t->stream[2 * rank + 1].child, STDERR_FILENO);
}

static void run_tag_parent(run_tags *t, int rank)
{
    close(t->stream[2 * rank].child);
    close(t->stream[2 * rank + 1].child);
}

static struct pollfd *run_tag_poll_set(run_tags *t, int signals)
{
    t->fds[0] = (struct pollfd){.fd = signals, .events = POLLIN};
    return t->fds;
}

static nfds_t run_tag_streams(const run_tags *t)
{
    return (nfds_t)t->streams;
}

static void run_tag_line(const run_tags *t, int i, const char *text, size_t length)
{
    FILE *to = i % 2 == 0 ? stdout : stderr;
    fprintf(to, "[%d] %.*s\n", t->first_rank + i / 2 * t->rank_step, (int)length, text);
    fflush(to);
}

/* Print the complete lines of a stream. With `all`, or if the buffer is full, print the rest,
 * too. */
static void run_tag_print(run_tags *t, int i, bool all)
{
    run_tag_stream *s = &t->stream[i];
    size_t begin = 0;
    char *end;
    while ((end = memchr(s->line + begin, '\n', s->used - begin)) != NULL) {
        size_t length = (size_t)(end - s->line) - begin;
        run_tag_line(t, i, s->line + begin, length);
        begin += length + 1;
    }
    if (s->used > begin && (all || s->used - begin == RUN_TAG_LINE)) {
        run_tag_line(t, i, s->line + begin, s->used - begin);
        begin = s->used;
    }
    memmove(s->line, s->line + begin, s->used - begin);
    s->used -= begin;
}

/* Pass on the output that has arrived. */
static void run_tag_forward(run_tags *t)
{
    for (int i = 0; i < t->streams; i++) {
        struct pollfd *fd = &t->fds[1 + i];
        run_tag_stream *s = &t->stream[i];
        while (fd->fd >= 0) {
            ssize_t n = read(fd->fd, s->line + s->used, RUN_TAG_LINE - s->used);
            if (n < 0 && errno == EINTR) {
                continue;
            }
            if (n < 0 && errno == EAGAIN) {
                break;
            }
            if (n <= 0) {
                close(fd->fd);
                fd->fd = -1;
                break;
            }
            s->used += (size_t)n;
            run_tag_print(t, i, false);
        }
    }
}

/* Pass on the rest of a rank's output and close its pipes, so that it can be opened again. */
static void run_tag_close(run_tags *t, int rank)
{
    run_tag_forward(t);
    for (int i = 2 * rank; i < 2 * rank + 2 && i < t->streams; i++) {
        run_tag_print(t, i, true);
        if (t->fds[1 + i].fd >= 0) { /* a process that the rank has started holds it */
            close(t->fds[1 + i].fd);
            t->fds[1 + i].fd = -1;
        }
    }
}

/* Pass on the rest of the output, after the ranks have ended. */
static void run_tag_finish(run_tags *t)
{
    run_tag_forward(t);
    for (int i = 0; i < t->streams; i++) {
        run_tag_print(t, i, true);
    }
    free(t->stream);
    free(t->fds);
}

#endif
