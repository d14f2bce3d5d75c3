/* iface_list.h - NCCL_SOCKET_IFNAME: the network interfaces that a job may use, where DCOMM_IFACE
 * does not name one. */
#ifndef DCOMMI_IFACE_LIST_H
#define DCOMMI_IFACE_LIST_H

#include "environment.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <sys/socket.h>

/* Return true if the list has an interface. In NCCL's syntax "eth,ib" are beginnings of names,
 * "=eth0,eth1" whole names, and "^docker,lo" or "^=eth2" all others. A ":port" is not read. */
static bool dcommi_iface_listed(const char *list, const char *name)
{
    const bool others = *list == '^';
    list += others;
    const bool whole = *list == '=';
    list += whole;
    bool found = false;
    while (*list != '\0' && !found) {
        const size_t len = strcspn(list, ","), word = strcspn(list, ",:");
        found = word > 0 && strncmp(list, name, word) == 0 && (!whole || name[word] == '\0');
        list += len + (list[len] == ',');
    }
    return found != others;
}

/* Return the list, or NULL if there is none or DCOMM_IFACE is set. Ignore a list that has none of
 * this host's interfaces, with a warning. */
static const char *dcommi_iface_list(void)
{
    const char *list = dcommi_env("DCOMM_IFACE") == NULL ? dcommi_env("NCCL_SOCKET_IFNAME") : NULL;
    struct ifaddrs *all = NULL;
    if (list == NULL || getifaddrs(&all) != 0) {
        return NULL;
    }
    bool any = false;
    for (const struct ifaddrs *i = all; i != NULL && !any; i = i->ifa_next) {
        const int family = i->ifa_addr != NULL ? i->ifa_addr->sa_family : AF_UNSPEC;
        any = (family == AF_INET || family == AF_INET6) && (i->ifa_flags & IFF_UP) != 0 &&
              dcommi_iface_listed(list, i->ifa_name);
    }
    freeifaddrs(all);
    if (!any && dcommi_env_first(list)) {
        dcommi_log(DCOMMI_LOG_WARN,
                   "environment variable NCCL_SOCKET_IFNAME=\"%.64s\" is ignored: no network "
                   "interface of this host that is up is one of these",
                   list);
    }
    return any ? list : NULL;
}

#endif
