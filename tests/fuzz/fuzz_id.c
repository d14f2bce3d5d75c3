/* fuzz_id.c - any 128 bytes as an id. What is accepted must survive being written again. */
#define _GNU_SOURCE
#pragma GCC diagnostic ignored "-Wunused-function"
#include "dcomm/impl/boot/rendezvous_id.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    dcomm_id id = {{0}}, again;
    dcommi_id_parts parts, second;
    memcpy(id.bytes, data, size < DCOMM_ID_BYTES ? size : DCOMM_ID_BYTES);
    if (size < DCOMM_ID_BYTES) {
        /* Get past the checksum: short inputs are taken as the part before it. */
        dcommi_id_checksum(id.bytes, id.bytes + DCOMMI_ID_CHECK);
    }
    if (dcommi_id_parse(&id, &parts) == DCOMM_OK) {
        dcommi_id_format(&parts, &again);
        if (dcommi_id_parse(&again, &second) != DCOMM_OK || second.naddrs != parts.naddrs ||
            second.port != parts.port) {
            abort();
        }
    }
    return 0;
}
