/* files.c - files that are complete or not there. */
#define _GNU_SOURCE
#include "files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { KEPT = 2, LISTED = 64, MANIFEST_BYTES = 64 * FILES_RANKS };

uint64_t checksum(const void *words, size_t n)
{
    const char *from = words;
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = 0;
        memcpy(&bits, from + i * sizeof bits, sizeof bits);
        sum = (sum ^ bits) * 0x9e3779b97f4a7c15u;
        sum ^= sum >> 29;
    }
    return sum;
}

static int fail(char why[FILES_WHY], const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(why, FILES_WHY, format, args);
    va_end(args);
    return -1;
}

static void generation_path(char path[FILES_PATH], const char *dir, int step)
{
    snprintf(path, FILES_PATH, "%.4000s/step-%08d", dir, step);
}

static void file_path(char path[FILES_PATH], const char *dir, int step, const char *name)
{
    snprintf(path, FILES_PATH, "%.4000s/step-%08d/%.40s", dir, step, name);
}

/* Make the names in a directory last: a rename is on the disk only then. */
static int sync_directory(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int result = fd >= 0 ? fsync(fd) : -1;
    if (fd >= 0) {
        close(fd);
    }
    return result;
}

static int make_directory(const char *path)
{
    return mkdir(path, 0777) == 0 || errno == EEXIST ? 0 : -1;
}

static int write_all(int fd, const char *from, size_t bytes)
{
    while (bytes > 0) {
        ssize_t n = write(fd, from, bytes);
        if (n < 0 && errno != EINTR) {
            return -1;
        }
        from += n > 0 ? n : 0;
        bytes -= n > 0 ? (size_t)n : 0;
    }
    return 0;
}

int files_write(const char *dir, int step, const char *name, const void *from, size_t bytes,
                accident_place place, char why[FILES_WHY])
{
    char folder[FILES_PATH], path[FILES_PATH], temporary[FILES_PATH], other[64];
    generation_path(folder, dir, step);
    file_path(path, dir, step, name);
    snprintf(other, sizeof other, "%.40s.new", name);
    file_path(temporary, dir, step, other);
    if (make_directory(dir) != 0 || make_directory(folder) != 0) {
        return fail(why, "cannot make %s: %s", folder, strerror(errno));
    }
    int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    bool good = fd >= 0 && write_all(fd, from, bytes / 2) == 0;
    accident(step, place);
    good = good && write_all(fd, (const char *)from + bytes / 2, bytes - bytes / 2) == 0 &&
           fsync(fd) == 0;
    good = fd >= 0 && close(fd) == 0 && good;
    if (!good || rename(temporary, path) != 0 || sync_directory(folder) != 0 ||
        sync_directory(dir) != 0) {
        return fail(why, "cannot write %s: %s", path, strerror(errno));
    }
    return 0;
}

/* ---- generations ---- */

static int newest_first(const void *x, const void *y)
{
    int a = *(const int *)x, b = *(const int *)y;
    return (b > a) - (b < a);
}

int files_list(const char *dir, bool complete, int *steps, int max)
{
    int all[LISTED], n = 0;
    DIR *d = opendir(dir);
    for (struct dirent *e; d != NULL && n < LISTED && (e = readdir(d)) != NULL;) {
        int length = 0;
        char path[FILES_PATH];
        if (sscanf(e->d_name, "step-%8d%n", &all[n], &length) == 1 && e->d_name[length] == '\0') {
            file_path(path, dir, all[n], "manifest");
            n += (access(path, F_OK) == 0) == complete;
        }
    }
    if (d != NULL) {
        closedir(d);
    }
    qsort(all, (size_t)n, sizeof *all, newest_first);
    n = n < max ? n : max;
    memcpy(steps, all, (size_t)n * sizeof *all);
    return n;
}

static void remove_generation(const char *dir, int step)
{
    char folder[FILES_PATH], path[FILES_PATH];
    generation_path(folder, dir, step);
    file_path(path, dir, step, "manifest"); /* first: without it the rest is no generation */
    unlink(path);
    DIR *d = opendir(folder);
    for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;) {
        file_path(path, dir, step, e->d_name);
        unlink(path); /* "." and ".." stay */
    }
    if (d != NULL) {
        closedir(d);
    }
    rmdir(folder);
}

/* Remove all but the newest complete generations, and what is incomplete and older than `step`. */
static void remove_old(const char *dir, int step)
{
    int steps[LISTED];
    int n = files_list(dir, true, steps, LISTED);
    for (int i = KEPT; i < n; i++) {
        remove_generation(dir, steps[i]);
    }
    n = files_list(dir, false, steps, LISTED);
    for (int i = 0; i < n; i++) {
        if (steps[i] < step) {
            remove_generation(dir, steps[i]);
        }
    }
}

/* ---- the manifest: text, with a checksum of itself in the last line ---- */

int files_finish(const char *dir, const manifest *m, char why[FILES_WHY])
{
    char *text = calloc(1, MANIFEST_BYTES);
    size_t used = 0;
    if (text == NULL) {
        return fail(why, "no memory for a manifest");
    }
    used += (size_t)sprintf(text, "checkpoint 1 step %d ranks %d\n", m->step, m->nranks);
    for (int r = 0; r < m->nranks; r++) {
        used += (size_t)sprintf(text + used, "rank-%d %" PRIu64 " %016" PRIx64 "\n", r,
                                m->files[r].bytes, m->files[r].checksum);
    }
    used += (size_t)sprintf(text + used, "manifest %016" PRIx64 "\n",
                            checksum(text, (used + 3) / 4)); /* the rest of the last word is 0 */
    int result = files_write(dir, m->step, "manifest", text, used, ACCIDENT_MANIFEST, why);
    if (result == 0) {
        remove_old(dir, m->step);
    }
    free(text);
    return result;
}

/* Read a file of at most `most` bytes into *to, with zeros behind it, which the caller frees.
 * Return its length, or -1. */
static int64_t read_whole(const char *path, size_t most, char **to, char why[FILES_WHY])
{
    struct stat about;
    FILE *file = fopen(path, "rbe");
    *to = NULL;
    if (file == NULL || fstat(fileno(file), &about) != 0) {
        fail(why, "cannot read %s: %s", path, strerror(errno));
    } else if (!S_ISREG(about.st_mode) || (uint64_t)about.st_size > most) {
        fail(why, "%s is longer than the %zu bytes that it should have", path, most);
    } else if ((*to = calloc(1, (size_t)about.st_size + 8)) == NULL) {
        fail(why, "no memory for %s", path);
    } else if (fread(*to, 1, (size_t)about.st_size, file) != (size_t)about.st_size) {
        fail(why, "cannot read %s", path);
        free(*to);
        *to = NULL;
    }
    if (file != NULL) {
        fclose(file);
    }
    return *to != NULL ? about.st_size : -1;
}

/* Parse the text of a manifest. */
static bool parse_manifest(const char *text, size_t length, manifest *m)
{
    int at = 0;
    bool good = sscanf(text, "checkpoint 1 step %9d ranks %9d%n", &m->step, &m->nranks, &at) == 2 &&
                m->nranks >= 1 && m->nranks <= FILES_RANKS && text[at++] == '\n';
    for (int r = 0; good && r < m->nranks; r++) {
        int number = -1, n = 0;
        good = sscanf(text + at, "rank-%9d %" SCNu64 " %16" SCNx64 "%n", &number,
                      &m->files[r].bytes, &m->files[r].checksum, &n) == 3 &&
               number == r && text[at + n] == '\n';
        at += n + 1;
    }
    uint64_t wanted = 0;
    int n = 0;
    good = good && sscanf(text + at, "manifest %16" SCNx64 "%n", &wanted, &n) == 1 &&
           (size_t)(at + n + 1) == length && text[at + n] == '\n';
    if (!good) {
        return false;
    }
    char *body = calloc(1, (size_t)at + 4);
    if (body == NULL) {
        return false;
    }
    memcpy(body, text, (size_t)at);
    good = checksum(body, ((size_t)at + 3) / 4) == wanted;
    free(body);
    return good;
}

int files_manifest(const char *dir, int step, manifest *m, char why[FILES_WHY])
{
    char path[FILES_PATH], *text;
    file_path(path, dir, step, "manifest");
    int64_t length = read_whole(path, MANIFEST_BYTES, &text, why);
    if (length < 0) {
        return -1;
    }
    bool good = parse_manifest(text, (size_t)length, m) && m->step == step;
    free(text);
    return good ? 0 : fail(why, "%s is damaged", path);
}

int files_read(const char *dir, const manifest *m, int rank, void **to, char why[FILES_WHY])
{
    char path[FILES_PATH], name[32], *bytes;
    snprintf(name, sizeof name, "rank-%d", rank);
    file_path(path, dir, m->step, name);
    int64_t length = read_whole(path, m->files[rank].bytes, &bytes, why);
    if (length < 0) {
        return -1;
    }
    if ((uint64_t)length != m->files[rank].bytes ||
        checksum(bytes, ((size_t)length + 3) / 4) != m->files[rank].checksum) {
        free(bytes);
        return fail(why, "%s is damaged: length or checksum are not those of the manifest", path);
    }
    *to = bytes;
    return 0;
}
