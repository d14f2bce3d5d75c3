/* host.h - the identity of a host: a string that is equal on all its ranks. */
#ifndef DCOMMI_HOST_H
#define DCOMMI_HOST_H

#include "../base/environment.h"
#include "../base/sys.h"

#include <fcntl.h>

#define DCOMMI_HOST_ID_MAX 256

/* Read the first line of a small file, without its newline, or "" if it cannot be read. */
static void dcommi_host_line(const char *path, char *line, size_t max)
{
    const ssize_t n = dcommi_sys_load(path, line, max - 1);
    line[n > 0 ? n : 0] = '\0';
    line[strcspn(line, "\n")] = '\0';
}

/* Return a number for the running kernel, the same in all its containers, or 0 without one. */
static uint64_t dcommi_host_machine(void)
{
    char boot[64];
    dcommi_host_line("/proc/sys/kernel/random/boot_id", boot, sizeof boot);
    return boot[0] != '\0' ? dcommi_mix_text(0, boot) | 1 : 0;
}

/* Write the identity: `wanted` (opts.host_id) if not NULL or empty, else DCOMM_HOSTID, else the
 * kernel's boot id, which containers of a machine share, else the host name. The identity only
 * says which ranks try to share memory. Ranks that fail to share memory count as different hosts
 * (comm/reach.h), so equal names or copied boot ids do no harm. */
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
