/* iface.h - finds the network interface that connects this host with the others. */
#ifndef DCOMMI_UCX_IFACE_H
#define DCOMMI_UCX_IFACE_H

#include "../../base/iface_list.h"
#include "../../base/sys.h"
#include "../transport.h"

#include <dirent.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

static bool dcommi_ucx_is_netdev(const char *name)
{
    return strlen(name) < IF_NAMESIZE && if_nametoindex(name) != 0;
}

/* Find the interface of the default route with the lowest metric: of IPv4, else of IPv6. */
static bool dcommi_ucx_default_iface(dcommi_iface name)
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

/* Find an interface of the list (NULL: any) that is not the loopback: the one with the address
 * `wanted`, or, if it is NULL, the first that is up and has an address. Return false if there is
 * none. */
static bool dcommi_ucx_find_iface(const struct sockaddr *wanted, const char *list,
                                  dcommi_iface name)
{
    struct ifaddrs *all = NULL;
    bool found = false;
    if (getifaddrs(&all) != 0) {
        return false;
    }
    for (struct ifaddrs *i = all; i != NULL && !found; i = i->ifa_next) {
        const int family = i->ifa_addr != NULL ? i->ifa_addr->sa_family : AF_UNSPEC;
        if ((family != AF_INET && family != AF_INET6) || (i->ifa_flags & IFF_LOOPBACK) != 0 ||
            strlen(i->ifa_name) >= sizeof(dcommi_iface) ||
            (list != NULL && !dcommi_iface_listed(list, i->ifa_name))) {
            continue; /* skip the loopback: a host's own name often means 127.0.1.1 */
        }
        const void *here = i->ifa_addr, *there = wanted;
        found = wanted == NULL                ? (i->ifa_flags & IFF_RUNNING) != 0
                : family != wanted->sa_family ? false
                : family == AF_INET ? memcmp(&((const struct sockaddr_in *)here)->sin_addr,
                                             &((const struct sockaddr_in *)there)->sin_addr,
                                             sizeof(struct in_addr)) == 0
                                    : memcmp(&((const struct sockaddr_in6 *)here)->sin6_addr,
                                             &((const struct sockaddr_in6 *)there)->sin6_addr,
                                             sizeof(struct in6_addr)) == 0;
        if (found) {
            strcpy(name, i->ifa_name);
        }
    }
    freeifaddrs(all);
    return found;
}

/* Find the interface that leads to a host, because it likely leads to the other ranks too. Send
 * nothing. */
static bool dcommi_ucx_iface_towards(const char *host, const char *only, dcommi_iface name)
{
    char plain[256];
    size_t len = strlen(host);
    bool brackets = len > 2 && host[0] == '[' && host[len - 1] == ']';
    snprintf(plain, sizeof plain, "%.*s", (int)(brackets ? len - 2 : len),
             brackets ? host + 1 : host);
    struct addrinfo hints = {.ai_socktype = SOCK_DGRAM}, *list = NULL;
    if (getaddrinfo(plain, "9", &hints, &list) != 0) {
        return false;
    }
    bool found = false;
    for (struct addrinfo *a = list; a != NULL && !found; a = a->ai_next) {
        struct sockaddr_storage own;
        socklen_t own_len = sizeof own;
        int fd = dcommi_sys_socket(a->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        found = fd >= 0 && dcommi_sys_connect(fd, a->ai_addr, a->ai_addrlen) == 0 &&
                getsockname(fd, (struct sockaddr *)&own, &own_len) == 0 &&
                dcommi_ucx_find_iface((struct sockaddr *)&own, only, name);
        dcommi_sys_close(fd);
    }
    freeaddrinfo(list);
    return found;
}

/* List the devices that a user may choose: "eth0 lo mlx5_0". */
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

/* Choose an interface if the user has named none. */
static void dcommi_ucx_usual_iface(dcommi_iface name)
{
    const char *master = dcommi_env("MASTER_ADDR"), *list = dcommi_iface_list();
    bool chosen =
        (master != NULL && dcommi_ucx_iface_towards(master, list, name)) ||
        (dcommi_ucx_default_iface(name) && (list == NULL || dcommi_iface_listed(list, name)));
    if (!chosen && !dcommi_ucx_find_iface(NULL, list, name)) {
        strcpy(name, "lo");
    }
}

/* Choose the interface for UCX. *tcp is true for a network interface, false for an RDMA device,
 * which may have a port: "mlx5_0:1". */
static dcomm_status dcommi_ucx_choose_iface(const char *wanted, dcommi_iface name, bool *tcp)
{
    const char *source = "iface";
    if (wanted == NULL || *wanted == '\0') {
        wanted = dcommi_env("DCOMM_IFACE");
        source = "DCOMM_IFACE";
    }
    *tcp = true;
    if (wanted == NULL) {
        dcommi_ucx_usual_iface(name);
        return DCOMM_OK;
    }
    bool fits = strlen(wanted) + 2 < sizeof(dcommi_iface) && strpbrk(wanted, "/,^*") == NULL;
    if (fits && dcommi_ucx_is_netdev(wanted)) {
        strcpy(name, wanted);
        return DCOMM_OK;
    }
    if (fits) {
        char path[sizeof(dcommi_iface) + 32];
        int device = (int)strcspn(wanted, ":");
        snprintf(path, sizeof path, "/sys/class/infiniband/%.*s", device, wanted);
        if (device > 0 && dcommi_sys_access(path, F_OK) == 0) {
            *tcp = false;
            snprintf(name, sizeof(dcommi_iface), "%.*s%s", (int)sizeof(dcommi_iface) - 3, wanted,
                     wanted[device] == ':' ? "" : ":1");
            return DCOMM_OK;
        }
    }
    char devices[256];
    dcommi_ucx_list_devices(devices, sizeof devices);
    return dcommi_fail(DCOMM_ERR_INVALID, "%s: no network interface '%.64s'; this host has: %s",
                       source, wanted, devices);
}

#endif
