/* ucx_config.h - how dcomm sets UCX up: its log, its signal handlers, its options, the network
 * interface, and its status codes as ours. */
#ifndef DCOMMI_UCX_CONFIG_H
#define DCOMMI_UCX_CONFIG_H

#include "util.h"

#include <dirent.h>
#include <net/if.h>
#include <signal.h>
#include <sys/statvfs.h>
#include <ucp/api/ucp.h>

static dcomm_status dcommi_ucx_status(ucs_status_t status)
{
    switch (status) {
    case UCS_OK:
        return DCOMM_OK;
    case UCS_INPROGRESS:
        return DCOMM_IN_PROGRESS;
    case UCS_ERR_NO_MEMORY:
        return DCOMM_ERR_NO_MEMORY;
    case UCS_ERR_UNSUPPORTED:
    case UCS_ERR_NOT_IMPLEMENTED:
        return DCOMM_ERR_UNSUPPORTED;
    case UCS_ERR_UNREACHABLE:
    case UCS_ERR_CONNECTION_RESET:
    case UCS_ERR_NOT_CONNECTED:
    case UCS_ERR_ENDPOINT_TIMEOUT:
    case UCS_ERR_TIMED_OUT:
    case UCS_ERR_REJECTED:
    case UCS_ERR_CANCELED:
        return DCOMM_ERR_PEER;
    default:
        return DCOMM_ERR_TRANSPORT;
    }
}

/* ---- what UCX does to the whole process ---- */

/* Calls in which UCX may complain of what we know and report ourselves. */
static _Thread_local int dcommi_ucx_hush;

/* UCX exports these, but newer versions' headers for them do not compile as C11. */
typedef int (*dcommi_ucx_log_fn)(const char *file, unsigned line, const char *function,
                                 ucs_log_level_t level, const void *component, const char *format,
                                 va_list args);
extern void dcommi_ucx_push_log(dcommi_ucx_log_fn fn) __asm__("ucs_log_push_handler");
extern void dcommi_ucx_drop_signal(int number) __asm__("ucs_debug_disable_signal");

static int __attribute__((format(printf, 6, 0)))
dcommi_ucx_log(const char *file, unsigned line, const char *function, ucs_log_level_t level,
               const void *component, const char *format, va_list args)
{
    (void)component;
    char text[DCOMMI_MESSAGE_MAX - 128];
    int ours = DCOMMI_LOG_INFO;
    if (level <= UCS_LOG_LEVEL_ERROR) {
        ours = DCOMMI_LOG_ERROR;
    } else if (level == UCS_LOG_LEVEL_WARN) {
        ours = DCOMMI_LOG_WARN;
    }
    if (dcommi_ucx_hush > 0) {
        ours = DCOMMI_LOG_INFO;
    }
    const char *slash = strrchr(file, '/');
    vsnprintf(text, sizeof text, format, args);
    dcommi_log(ours, "UCX %s:%u %s: %s", slash != NULL ? slash + 1 : file, line, function, text);
    return 0; /* no other handler */
}

/* UCX writes its log to stdout and catches SIGSEGV and friends for the whole process, and keeps
 * the program from installing its own. A user who sets UCX_HANDLE_ERRORS has asked for that. */
static void dcommi_ucx_tame(void)
{
    dcommi_ucx_push_log(dcommi_ucx_log);
    if (getenv("UCX_HANDLE_ERRORS") == NULL) {
        dcommi_ucx_hush++;
        static const int caught[] = {SIGILL, SIGSEGV, SIGBUS, SIGFPE};
        for (size_t i = 0; i < sizeof caught / sizeof *caught; i++) {
            dcommi_ucx_drop_signal(caught[i]);
        }
        dcommi_ucx_hush--;
    }
}

static void dcommi_ucx_tame_once(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, dcommi_ucx_tame);
}

/* ---- options ---- */

typedef struct dcommi_ucx_option {
    const char *name; /* of a transport's own option: without the transport's name */
    const char *value;
    const char *user; /* the environment variable that overrides it; NULL: none may */
} dcommi_ucx_option;

static dcomm_status dcommi_ucx_set_options(ucp_config_t *config, const dcommi_ucx_option *options,
                                           size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (options[i].name == NULL ||
            (options[i].user != NULL && getenv(options[i].user) != NULL)) {
            continue;
        }
        ucs_status_t status = ucp_config_modify(config, options[i].name, options[i].value);
        if (status != UCS_OK) {
            return dcommi_fail(DCOMM_ERR_TRANSPORT, "UCX refuses its option %s=%s: %s",
                               options[i].name, options[i].value, ucs_status_string(status));
        }
    }
    return DCOMM_OK;
}

/* ---- shared memory's limits ---- */

/* A tmpfs that is full kills its users by SIGBUS when they first touch a page: ask before. */
static dcomm_status dcommi_ucx_shm_check(size_t need)
{
    const char *dir = getenv("UCX_POSIX_DIR");
    struct statvfs fs;
    if (dir == NULL) {
        dir = "/dev/shm";
    }
    if (statvfs(dir, &fs) != 0) {
        return dcommi_fail(DCOMM_ERR_SYSTEM, "%s, where shared memory is made, is not usable: %s",
                           dir, strerror(errno));
    }
    unsigned long long left = (unsigned long long)fs.f_bavail * fs.f_frsize;
    if (fs.f_blocks != 0 && left < need) {
        return dcommi_fail(DCOMM_ERR_SYSTEM,
                           "%s is too small: %zu bytes of shared memory are needed, %llu are left "
                           "(containers: raise --shm-size)",
                           dir, need, left);
    }
    return DCOMM_OK;
}

/* ---- the network interface ---- */

typedef char dcommi_ucx_name[64];

static bool dcommi_ucx_is_netdev(const char *name)
{
    return strlen(name) < IF_NAMESIZE && if_nametoindex(name) != 0;
}

/* The interface of the IPv4, else the IPv6 default route with the lowest metric. */
static bool dcommi_ucx_default_iface(dcommi_ucx_name name)
{
    char line[512], device[64];
    unsigned long best = ~0ul;
    FILE *f = fopen("/proc/net/route", "re");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        unsigned destination, gateway, flags, mask;
        unsigned long metric;
        if (sscanf(line, "%63s %x %x %x %*d %*d %lu %x", device, &destination, &gateway, &flags,
                   &metric, &mask) == 6 &&
            destination == 0 && mask == 0 && (flags & 1) != 0 && metric < best) {
            best = metric;
            strcpy(name, device);
        }
    }
    if (f != NULL) {
        fclose(f);
    }
    if (best != ~0ul) {
        return true;
    }
    f = fopen("/proc/net/ipv6_route", "re");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        char destination[33];
        unsigned prefix, flags;
        unsigned long metric;
        if (sscanf(line, "%32s %x %*s %*x %*s %lx %*x %*x %x %63s", destination, &prefix, &metric,
                   &flags, device) == 5 &&
            prefix == 0 && strspn(destination, "0") == 32 && (flags & 1) != 0 &&
            (flags & 0x200) == 0 && strcmp(device, "lo") != 0 && metric < best) {
            best = metric;
            strcpy(name, device);
        }
    }
    if (f != NULL) {
        fclose(f);
    }
    return best != ~0ul;
}

/* "eth0 lo mlx5_0": what a user may choose from. */
static void dcommi_ucx_list_devices(char *text, size_t size)
{
    static const char *const folders[] = {"/sys/class/net", "/sys/class/infiniband"};
    size_t used = 0;
    text[0] = '\0';
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        DIR *dir = opendir(folders[i]);
        for (struct dirent *e; dir != NULL && (e = readdir(dir)) != NULL;) {
            if (e->d_name[0] != '.' && used < size) {
                int n = snprintf(text + used, size - used, "%s%s", used > 0 ? " " : "", e->d_name);
                used += n > 0 ? (size_t)n : 0;
            }
        }
        if (dir != NULL) {
            closedir(dir);
        }
    }
}

/* What UCX is to use, and whether it is a network interface (TCP) or an RDMA device, which may
 * carry a port: "mlx5_0:1". */
static dcomm_status dcommi_ucx_choose_iface(const char *wanted, dcommi_ucx_name name, bool *tcp)
{
    const char *source = "iface";
    if (wanted == NULL || *wanted == '\0') {
        wanted = getenv("DCOMM_IFACE");
        source = "DCOMM_IFACE";
    }
    *tcp = true;
    if (wanted == NULL || *wanted == '\0') {
        if (!dcommi_ucx_default_iface(name)) {
            strcpy(name, "lo");
        }
        return DCOMM_OK;
    }
    bool fits = strlen(wanted) + 2 < sizeof(dcommi_ucx_name) && strpbrk(wanted, "/,^*") == NULL;
    if (fits && dcommi_ucx_is_netdev(wanted)) {
        strcpy(name, wanted);
        return DCOMM_OK;
    }
    if (fits) {
        char path[sizeof(dcommi_ucx_name) + 32];
        int device = (int)strcspn(wanted, ":");
        snprintf(path, sizeof path, "/sys/class/infiniband/%.*s", device, wanted);
        if (device > 0 && access(path, F_OK) == 0) {
            *tcp = false;
            snprintf(name, sizeof(dcommi_ucx_name), "%.*s%s", (int)sizeof(dcommi_ucx_name) - 3,
                     wanted, wanted[device] == ':' ? "" : ":1");
            return DCOMM_OK;
        }
    }
    char devices[256];
    dcommi_ucx_list_devices(devices, sizeof devices);
    return dcommi_fail(DCOMM_ERR_INVALID, "%s: no network interface '%.64s'; this host has: %s",
                       source, wanted, devices);
}

#endif
