/* join_file.h - the file by which a communicator that grows hands its id to newcomers: the one that
 * DCOMM_JOIN_FILE names. It holds the id in hexadecimal. */
#ifndef DCOMMI_JOIN_FILE_H
#define DCOMMI_JOIN_FILE_H

#include "id.h"

#define DCOMMI_JOIN_FILE_BYTES (2 * DCOMM_ID_BYTES + 1) /* with the end of the line */

static dcomm_status dcommi_join_file_failed(const char *path, const char *what)
{
    return dcommi_fail(DCOMM_ERR_SYSTEM, "cannot %s DCOMM_JOIN_FILE=\"%.200s\": %s", what, path,
                       strerror(errno));
}

/* Write the id, for this user alone. A reader sees the old content or the new one. */
static dcomm_status dcommi_join_file_write(const char *path, const dcomm_id *id)
{
    char text[DCOMMI_JOIN_FILE_BYTES + 1], temporary[4096];
    dcommi_id_hex(id, text);
    text[DCOMMI_JOIN_FILE_BYTES - 1] = '\n';
    if (snprintf(temporary, sizeof temporary, "%s.%d", path, (int)getpid()) >=
        (int)sizeof temporary) {
        errno = ENAMETOOLONG;
        return dcommi_join_file_failed(path, "write");
    }
    dcommi_sys_unlink(temporary); /* of an earlier process of this number */
    const int fd =
        openat(AT_FDCWD, temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    const bool written =
        fd >= 0 && dcommi_sys_write(fd, text, DCOMMI_JOIN_FILE_BYTES) == DCOMMI_JOIN_FILE_BYTES;
    dcommi_sys_close(fd);
    if (written && dcommi_sys_rename(temporary, path) == 0) {
        return DCOMM_OK;
    }
    dcomm_status status = dcommi_join_file_failed(path, "write");
    if (fd >= 0) {
        dcommi_sys_unlink(temporary);
    }
    return status;
}

/* Make the file that DCOMM_JOIN_FILE names, without an id, if it is not there: a communicator is
 * whole, so ranks that are started again join it. Without the file, a launcher starts all again. */
static void dcommi_join_file_mark(void)
{
    const char *path = dcommi_env("DCOMM_JOIN_FILE");
    const int fd = path != NULL ? openat(AT_FDCWD, path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600) : -1;
    if (path != NULL && fd < 0) {
        dcommi_join_file_failed(path, "make");
        dcommi_log(DCOMMI_LOG_WARN, "%s; ranks that are started again cannot join", dcommi_message);
    }
    dcommi_sys_close(fd);
}

/* Read the id. Return DCOMM_ERR_RENDEZVOUS, with a sentence, if the file holds none yet. */
static dcomm_status dcommi_join_file_read(const char *path, dcomm_id *id)
{
    char text[DCOMMI_JOIN_FILE_BYTES + 1];
    const ssize_t n = dcommi_sys_load(path, text, sizeof text);
    if (n < 0 && errno != ENOENT) {
        return dcommi_join_file_failed(path, "read");
    }
    if (n == DCOMMI_JOIN_FILE_BYTES && text[n - 1] == '\n') {
        text[n - 1] = '\0';
        if (dcommi_id_unhex(text, id)) {
            return DCOMM_OK;
        }
    }
    return dcommi_fail(DCOMM_ERR_RENDEZVOUS, "DCOMM_JOIN_FILE=\"%.200s\" %s", path,
                       n < 0 ? "is not there" : "holds no id");
}

#endif
