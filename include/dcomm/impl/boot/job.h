/* job.h - the name of a rank's job: the user's word, the launcher's name for the job, or the
 * command line. Ranks of different jobs do not meet, even at the same port. */
#ifndef DCOMMI_JOB_H
#define DCOMMI_JOB_H

#include "rendezvous_wire.h"
#include "../base/sys.h"

#include <fcntl.h>
#include <strings.h>

#define DCOMMI_JOB_COMMAND "command line \"" /* begins the name of a job without another name */
#define DCOMMI_JOB_SHOWN 110                 /* bytes of each name in a sentence */

/* Write this process's command line in printable characters. Replace the middle of a long one by a
 * hash. */
static void dcommi_job_command(char *text, size_t max)
{
    enum { LONGEST = 1 << 16, HASH = 24 };
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static uint8_t line[LONGEST]; /* static, so that a job has a name without memory */
    pthread_mutex_lock(&lock);
    const ssize_t got = dcommi_sys_load("/proc/self/cmdline", line, LONGEST);
    size_t n = got > 0 ? (size_t)got : 0;
    while (n > 0 && line[n - 1] == 0) {
        n--;
    }
    for (size_t i = 0; i < n; i++) {
        line[i] = line[i] == 0 ? ' ' : line[i];
    }
    if (n < max) {
        dcommi_rdv_printable(line, n, text);
    } else {
        size_t half = (max - HASH) / 2;
        uint8_t digest[DCOMMI_SHA256_BYTES];
        dcommi_sha256_digest(line, n - half, digest);
        dcommi_rdv_printable(line, half, text);
        snprintf(text + half, HASH, "...%016" PRIx64 "...", dcommi_get64(digest));
        dcommi_rdv_printable(line + n - half, half, text + strlen(text));
    }
    pthread_mutex_unlock(&lock);
}

/* Return true if position `at` holds a rank's number, as in "--rank=3", "--local-rank 3" or
 * "rank3". */
static bool dcommi_job_rank_follows(const char *text, size_t at)
{
    if (at > 0 && strchr("= _-:", text[at - 1]) != NULL) {
        at--;
    }
    return at >= 4 && strncasecmp(text + at - 4, "rank", 4) == 0;
}

/* Return true if rank 0 and another rank have the same job. Their names are then equal, or they
 * are command lines that differ only in the rank's number after "rank". */
static bool dcommi_job_same(const char *zero, const char *other, uint32_t rank, uint32_t local_rank)
{
    size_t command = sizeof DCOMMI_JOB_COMMAND - 1;
    if (strncmp(zero, DCOMMI_JOB_COMMAND, command) != 0 ||
        strncmp(other, DCOMMI_JOB_COMMAND, command) != 0) {
        return strcmp(zero, other) == 0;
    }
    size_t a = command, b = command;
    while (zero[a] != '\0' && other[b] != '\0') {
        if (zero[a] == '0' && !dcommi_text_digit(zero[a + 1]) && dcommi_text_digit(other[b]) &&
            dcommi_job_rank_follows(zero, a) && dcommi_job_rank_follows(other, b)) {
            char *end = NULL;
            unsigned long n = strtoul(other + b, &end, 10);
            if (n != 0 && n != rank && n != local_rank) {
                return false;
            }
            a++;
            b = (size_t)(end - other);
        } else if (zero[a++] != other[b++]) {
            return false;
        }
    }
    return zero[a] == other[b];
}

/* Write both names, from shortly before their first difference. */
static void dcommi_job_differ(const char *there, const char *here, char *text, size_t max)
{
    size_t at = 0;
    while (there[at] != '\0' && there[at] == here[at]) {
        at++;
    }
    at = at > DCOMMI_JOB_SHOWN / 2 ? at - DCOMMI_JOB_SHOWN / 2 : 0;
    const char *cut = at > 0 ? "..." : "";
    snprintf(text, max, "%s%.*s there, %s%.*s here", cut, DCOMMI_JOB_SHOWN, there + at, cut,
             DCOMMI_JOB_SHOWN, here + at);
}

#endif
