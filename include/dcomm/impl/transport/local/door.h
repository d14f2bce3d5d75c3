/* door.h - Unix sockets with names in /dev/shm, for processes that share /dev/shm but not the
 * network namespace. Abstract names belong to a network namespace.
 *
 * A name exists only while a communicator is created. A process that finds it keeps a descriptor
 * of the socket's file and connects by that descriptor, even after the name is gone. A process
 * that is killed meanwhile leaves an empty file. The next process that opens a door removes it. */
#ifndef DCOMMI_DOOR_H
#define DCOMMI_DOOR_H

#include "../../base/sys.h"
#include "../../base/util.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>

#define DCOMMI_DOOR_FOLDER "/dev/shm"
#define DCOMMI_DOOR_NAME "dcomm-door-"
#define DCOMMI_DOOR_OLD 10 /* seconds after which a door without a listener may be removed */
#define DCOMMI_DOOR_BACKLOG 4096

/* Fill in the address of a path. Return its length in bytes, 0 if the path is too long. */
static socklen_t dcommi_door_address(const char *path, struct sockaddr_un *address)
{
    memset(address, 0, sizeof *address);
    address->sun_family = AF_UNIX;
    if (strlen(path) >= sizeof address->sun_path) {
        return 0;
    }
    memcpy(address->sun_path, path, strlen(path));
    return (socklen_t)sizeof *address;
}

static void dcommi_door_path(uint64_t id, char *path, size_t max)
{
    snprintf(path, max, DCOMMI_DOOR_FOLDER "/" DCOMMI_DOOR_NAME "%016" PRIx64, id);
}

/* Return true if a door of our user is old and its process is gone. */
static bool dcommi_door_is_left(const char *path)
{
    struct stat st;
    struct sockaddr_un address;
    socklen_t len = dcommi_door_address(path, &address);
    if (len == 0 || dcommi_sys_lstat(path, &st) != 0 || !S_ISSOCK(st.st_mode) ||
        st.st_uid != geteuid() || dcommi_sys_time() - st.st_mtime < DCOMMI_DOOR_OLD) {
        return false;
    }
    int s = dcommi_sys_socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    bool left = s >= 0 && dcommi_sys_connect(s, (struct sockaddr *)&address, len) != 0 &&
                errno == ECONNREFUSED;
    dcommi_sys_close(s);
    return left;
}

/* Remove doors of processes that were killed while their door was open. */
static void dcommi_door_sweep(void)
{
    DIR *folder = opendir(DCOMMI_DOOR_FOLDER);
    for (struct dirent *e; folder != NULL && (e = readdir(folder)) != NULL;) {
        char path[sizeof DCOMMI_DOOR_FOLDER + sizeof e->d_name + 1];
        if (strncmp(e->d_name, DCOMMI_DOOR_NAME, sizeof DCOMMI_DOOR_NAME - 1) == 0) {
            snprintf(path, sizeof path, DCOMMI_DOOR_FOLDER "/%s", e->d_name);
            if (dcommi_door_is_left(path)) {
                dcommi_sys_unlink(path);
            }
        }
    }
    if (folder != NULL) {
        closedir(folder);
    }
}

static void dcommi_door_hide(uint64_t id)
{
    char path[64];
    dcommi_door_path(id, path, sizeof path);
    dcommi_sys_unlink(path);
}

/* Listen where others find us by `id`, until dcommi_door_hide. Return the socket, or -1 with errno
 * set. */
static int dcommi_door_open(uint64_t id)
{
    char path[64];
    struct sockaddr_un address;
    dcommi_door_path(id, path, sizeof path);
    socklen_t len = dcommi_door_address(path, &address);
    dcommi_door_sweep();
    int s = dcommi_sys_socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (s < 0 || dcommi_sys_bind(s, (struct sockaddr *)&address, len) != 0) {
        dcommi_sys_close(s);
        return -1;
    }
    if (dcommi_sys_listen(s, DCOMMI_DOOR_BACKLOG) != 0) {
        const int saved = errno;
        dcommi_door_hide(id);
        errno = saved;
        dcommi_sys_close(s);
        return -1;
    }
    return s;
}

/* Open the file of another process's door; the caller closes it. Return -1, with errno set, if it
 * is not found. `pid` is that process's number here, or 0. With a pid, look into its /dev/shm too,
 * which the kernel allows to processes with the same user and rights. */
static int dcommi_door_find(uint64_t id, int64_t pid)
{
    char path[64], there[96];
    dcommi_door_path(id, path, sizeof path);
    int fd = dcommi_sys_open(path, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && pid > 0) {
        snprintf(there, sizeof there, "/proc/%" PRId64 "/root%s", pid, path);
        fd = dcommi_sys_open(there, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    }
    return fd;
}

/* Fill in the address of a door whose file is open. Return its length in bytes. */
static socklen_t dcommi_door_behind(int fd, struct sockaddr_un *address)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return dcommi_door_address(path, address);
}

#endif
