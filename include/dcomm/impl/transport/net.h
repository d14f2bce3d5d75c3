/* net.h - the transport between hosts, by UCX. With DCOMM_NO_UCX there is none, and all ranks must
 * be on one host. */
#ifndef DCOMMI_NET_H
#define DCOMMI_NET_H

#include "../base/captured.h"
#include "transport.h"

#ifndef DCOMM_NO_UCX
#include "ucx/ucx.h"
#else
static void dcommi_net_prepare(void)
{
}

static void dcommi_net_iface(const char *wanted, dcommi_iface name)
{
    (void)wanted;
    name[0] = 0;
}

static dcomm_status dcommi_net_open(const dcommi_transport_handlers *handlers, const char *iface,
                                    dcommi_transport **t_p)
{
    (void)handlers, (void)iface, (void)t_p;
    return dcommi_fail(DCOMM_ERR_UNSUPPORTED, "this program was compiled with DCOMM_NO_UCX, which "
                                              "leaves the network out");
}
#endif

#endif
