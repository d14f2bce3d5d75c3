/* id.h - ids at work: create and serve one, find its server, write it as text. */
#ifndef DCOMMI_BOOT_ID_H
#define DCOMMI_BOOT_ID_H

#include "../../comm.h"
#include "../base/environment.h"
#include "rendezvous_client.h"
#include "rendezvous_id.h"
#include "rendezvous_server.h"

static void dcommi_id_key(const dcommi_id_parts *parts, uint8_t key[DCOMMI_RDV_KEY])
{
    dcommi_rdv_key_of(parts->secret, sizeof parts->secret, key);
}

/* Create an id and serve it. The server has no owner until a boot of this process adopts it. */
DCOMM_API dcomm_status dcomm_id_create(dcomm_id *id)
{
    DCOMMI_NEED(id);
    memset(id, 0, sizeof *id);
    dcommi_id_parts parts = {0};
    uint8_t key[DCOMMI_RDV_KEY];
    DCOMMI_TRY(dcommi_random_bytes(parts.secret, sizeof parts.secret));
    dcommi_id_key(&parts, key);
    const char *iface = dcommi_env("DCOMM_IFACE");
    parts.naddrs = dcommi_addr_mine(iface, parts.addrs, DCOMMI_ID_ADDRS);
    if (parts.naddrs == 0) {
        return dcommi_fail(iface != NULL ? DCOMM_ERR_INVALID : DCOMM_ERR_SYSTEM,
                           "this host has no address that other ranks could reach%s%s",
                           iface != NULL ? ": no interface is up with the name DCOMM_IFACE=" : "",
                           iface != NULL ? iface : "");
    }
    dcommi_rdv_server *server = NULL;
    DCOMMI_TRY(dcommi_rdv_server_start(NULL, 0, key, 0, "", &server));
    parts.port = server->port;
    dcommi_id_format(&parts, id);
    dcommi_rdv_server_forget(server);
    return DCOMM_OK;
}

/* Say in *target where an id is served. Return its server, with a reference, if it is one of this
 * process. */
static dcommi_rdv_server *dcommi_id_target(const dcommi_id_parts *parts,
                                           const uint8_t key[DCOMMI_RDV_KEY],
                                           dcommi_rdv_target *target)
{
    *target =
        (dcommi_rdv_target){.port = parts->port, .exists = true, .secret_hint = "the dcomm_id"};
    dcommi_rdv_server *server = dcommi_rdv_server_find(key, parts->port);
    if (server != NULL) {
        target->addrs[target->naddrs++] = server->self;
    }
    for (int i = 0; i < parts->naddrs && target->naddrs < DCOMMI_SOCK_ADDRS; i++) {
        target->addrs[target->naddrs++] = parts->addrs[i];
    }
    return server;
}

/* ---- text ---- */

static void dcommi_id_hex(const dcomm_id *id, char text[2 * DCOMM_ID_BYTES + 1])
{
    for (int i = 0; i < DCOMM_ID_BYTES; i++) {
        snprintf(text + (size_t)2 * (size_t)i, 3, "%02x", id->bytes[i]);
    }
}

static bool dcommi_id_unhex(const char *text, dcomm_id *id)
{
    for (size_t i = 0; i < DCOMM_ID_BYTES; i++) {
        unsigned byte = 0;
        for (size_t k = 2 * i; k < 2 * i + 2; k++) {
            char c = text[k];
            if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'))) {
                return false;
            }
            byte = byte << 4 | (unsigned)(c <= '9' ? c - '0' : c - 'a' + 10);
        }
        id->bytes[i] = (uint8_t)byte;
    }
    return text[(size_t)2 * DCOMM_ID_BYTES] == '\0';
}

#endif
