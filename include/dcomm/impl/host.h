/* host.h - a string that is equal on two ranks of one host. */
#ifndef DCOMMI_HOST_H
#define DCOMMI_HOST_H

#include "environment.h"

#include <fcntl.h>
#include <sys/stat.h>

#define DCOMMI_HOST_ID_MAX 256

/* The first line of a small file without its newline; "" where it cannot be read. */
static void dcommi_host_line(const char *path, char *line, size_t max)
{
    line[0] = '\0';
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return;
    }
    ssize_t n = read(fd, line, max - 1);
    close(fd);
    line[n > 0 ? n : 0] = '\0';
    line[strcspn(line, "\n")] = '\0';
}

/* How many threads of this machine run or wait for a processor at this moment; 0: unknown. */
static int dcommi_host_running(void)
{
    char line[128];
    int running = 0;
    dcommi_host_line("/proc/loadavg", line, sizeof line);
    return sscanf(line, "%*s %*s %*s %d/", &running) == 1 ? running : 0;
}

static uint64_t dcommi_host_namespace(const char *name)
{
    char path[64];
    struct stat st;
    snprintf(path, sizeof path, "/proc/self/ns/%s", name);
    return stat(path, &st) == 0 ? (uint64_t)st.st_ino : 0;
}

/* A number for the kernel that runs here, the same in all its containers; 0: it has none. */
static uint64_t dcommi_host_machine(void)
{
    char boot[64];
    uint64_t machine = 0;
    dcommi_host_line("/proc/sys/kernel/random/boot_id", boot, sizeof boot);
    for (const char *c = boot; *c != 0; c++) {
        machine = dcommi_mix(machine, (uint64_t)(unsigned char)*c) | 1;
    }
    return machine;
}

/* The identity: wanted (opts.host_id) if not NULL or empty, else DCOMM_HOSTID, else what decides
 * whether a process can read another's memory:
 *   boot id         one running kernel;
 *   pid namespace   process_vm_readv names the peer by its pid;
 *   user namespace  process_vm_readv asks for rights in the target's;
 *   effective user  memory is handed to its owner's processes alone;
 *   host name       keeps apart what a faked or missing boot id does not.
 * Ranks of one identity that cannot hand each other memory are on different hosts all the same
 * (comm_reach.h). */
static void dcommi_host_identity(const char *wanted, char id[DCOMMI_HOST_ID_MAX])
{
    if (wanted == NULL || wanted[0] == '\0') {
        wanted = dcommi_env("DCOMM_HOSTID");
    }
    if (wanted != NULL) {
        snprintf(id, DCOMMI_HOST_ID_MAX, "%s", wanted);
        return;
    }
    char boot[64], name[65] = "";
    dcommi_host_line("/proc/sys/kernel/random/boot_id", boot, sizeof boot);
    if (gethostname(name, sizeof name - 1) != 0) {
        name[0] = '\0';
    }
    snprintf(id, DCOMMI_HOST_ID_MAX, "%s pid:%" PRIu64 " user:%" PRIu64 " uid:%lu %s", boot,
             dcommi_host_namespace("pid"), dcommi_host_namespace("user"), (unsigned long)geteuid(),
             name);
}

#endif
