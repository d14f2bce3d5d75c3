/* host.h - a string that is equal on two ranks of one host. */
#ifndef DCOMMI_HOST_H
#define DCOMMI_HOST_H

#include "../base/environment.h"
#include "../base/sys.h"

#include <fcntl.h>

#define DCOMMI_HOST_ID_MAX 256

/* The first line of a small file without its newline; "" where it cannot be read. */
static void dcommi_host_line(const char *path, char *line, size_t max)
{
    const ssize_t n = dcommi_sys_load(path, line, max - 1);
    line[n > 0 ? n : 0] = '\0';
    line[strcspn(line, "\n")] = '\0';
}

/* A number for the kernel that runs here, the same in all its containers; 0: it has none. */
static uint64_t dcommi_host_machine(void)
{
    char boot[64];
    dcommi_host_line("/proc/sys/kernel/random/boot_id", boot, sizeof boot);
    return boot[0] != '\0' ? dcommi_mix_text(0, boot) | 1 : 0;
}

/* The identity: wanted (opts.host_id) if not NULL or empty, else DCOMM_HOSTID, else the kernel's
 * boot id, which containers of a machine share, or without one the host name. It says which ranks
 * try to share memory, and no more: ranks that cannot hand each other memory are on different hosts
 * (comm/reach.h), so that equal names or copied boot ids do no harm. */
static void dcommi_host_identity(const char *wanted, char id[DCOMMI_HOST_ID_MAX])
{
    if (wanted == NULL || wanted[0] == '\0') {
        wanted = dcommi_env("DCOMM_HOSTID");
    }
    if (wanted != NULL) {
        snprintf(id, DCOMMI_HOST_ID_MAX, "%s", wanted);
        return;
    }
    dcommi_host_line("/proc/sys/kernel/random/boot_id", id, DCOMMI_HOST_ID_MAX);
    if (id[0] == '\0' && gethostname(id, DCOMMI_HOST_ID_MAX - 1) != 0) {
        id[0] = '\0';
    }
}

#endif
