/* rendezvous_id.h - writes and reads a dcomm_id, which holds, by offset:
 *
 *   0  "dcid"         8  secret, 16 bytes
 *   4  version (1)   24  addresses: family (4 or 6), then 4 or 16 bytes; 0 ends the list
 *   5  0            124  first 4 bytes of SHA-256 of bytes 0..123
 *   6  port */
#ifndef DCOMMI_RENDEZVOUS_ID_H
#define DCOMMI_RENDEZVOUS_ID_H

#include "rendezvous_wire.h"
#include "socket.h"

#define DCOMMI_ID_VERSION 1
#define DCOMMI_ID_SECRET 16
#define DCOMMI_ID_ADDRS 8 /* an id has room for 5 of IPv6, or more of IPv4 */
#define DCOMMI_ID_FIRST 24
#define DCOMMI_ID_CHECK (DCOMM_ID_BYTES - 4)

typedef struct dcommi_id_parts {
    uint16_t port;
    uint8_t secret[DCOMMI_ID_SECRET];
    int naddrs;
    dcommi_addr addrs[DCOMMI_ID_ADDRS];
} dcommi_id_parts;

static void dcommi_id_checksum(const uint8_t *bytes, uint8_t check[4])
{
    uint8_t digest[DCOMMI_SHA256_BYTES];
    dcommi_sha256_digest(bytes, DCOMMI_ID_CHECK, digest);
    memcpy(check, digest, 4);
}

/* Write an id. Leave out the last addresses if not all fit. */
static void dcommi_id_format(const dcommi_id_parts *parts, dcomm_id *id)
{
    uint8_t *b = id->bytes;
    memset(b, 0, DCOMM_ID_BYTES);
    memcpy(b, "dcid", 4);
    b[4] = DCOMMI_ID_VERSION;
    dcommi_put16(b + 6, parts->port);
    memcpy(b + 8, parts->secret, DCOMMI_ID_SECRET);
    size_t at = DCOMMI_ID_FIRST;
    for (int i = 0; i < parts->naddrs; i++) {
        const dcommi_addr *a = &parts->addrs[i];
        bool v4 = a->any.sa_family == AF_INET;
        size_t len = v4 ? 4 : 16;
        if (at + 1 + len <= DCOMMI_ID_CHECK) {
            b[at] = v4 ? 4 : 6;
            memcpy(b + at + 1, v4 ? (const void *)&a->v4.sin_addr : &a->v6.sin6_addr, len);
            at += 1 + len;
        }
    }
    dcommi_id_checksum(b, b + DCOMMI_ID_CHECK);
}

/* Read an id. Return DCOMM_ERR_INVALID, with a sentence, for bytes that dcomm_id_create did not
 * make, and DCOMM_ERR_MISMATCH for an id of another version. */
static dcomm_status dcommi_id_parse(const dcomm_id *id, dcommi_id_parts *parts)
{
    const uint8_t *b = id->bytes;
    uint8_t check[4];
    memset(parts, 0, sizeof *parts);
    dcommi_id_checksum(b, check);
    if (memcmp(b, "dcid", 4) != 0 || memcmp(check, b + DCOMMI_ID_CHECK, 4) != 0) {
        return dcommi_fail(DCOMM_ERR_INVALID,
                           "opts.id does not hold an id of dcomm_id_create (damaged, cut short, or "
                           "never filled in)");
    }
    if (b[4] != DCOMMI_ID_VERSION) {
        return dcommi_fail(DCOMM_ERR_MISMATCH,
                           "opts.id has version %d, made by another version of dcomm; this one "
                           "understands version %d",
                           b[4], DCOMMI_ID_VERSION);
    }
    parts->port = dcommi_get16(b + 6);
    memcpy(parts->secret, b + 8, DCOMMI_ID_SECRET);
    size_t at = DCOMMI_ID_FIRST;
    while (at < DCOMMI_ID_CHECK && b[at] != 0) {
        size_t len = b[at] == 4 ? 4 : b[at] == 6 ? 16 : 0;
        if (len == 0 || at + 1 + len > DCOMMI_ID_CHECK) {
            return dcommi_fail(DCOMM_ERR_INVALID, "opts.id holds an address of unknown family %d",
                               b[at]);
        }
        if (parts->naddrs < DCOMMI_ID_ADDRS) {
            dcommi_addr *a = &parts->addrs[parts->naddrs++];
            if (len == 4) {
                a->v4.sin_family = AF_INET;
                memcpy(&a->v4.sin_addr, b + at + 1, len);
            } else {
                a->v6.sin6_family = AF_INET6;
                memcpy(&a->v6.sin6_addr, b + at + 1, len);
            }
            dcommi_addr_set_port(a, parts->port);
        }
        at += 1 + len;
    }
    if (parts->port == 0 || parts->naddrs == 0) {
        return dcommi_fail(DCOMM_ERR_INVALID, "opts.id holds no %s",
                           parts->port == 0 ? "port" : "address");
    }
    return DCOMM_OK;
}

#endif
