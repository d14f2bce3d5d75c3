/* fuzz_card.c - any bytes as the card that a rank sends when a communicator is created. */
#define _GNU_SOURCE
#pragma GCC diagnostic ignored "-Wunused-function"
#define DCOMM_IMPLEMENTATION
#include "dcomm/all.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    dcommi_card card;
    uint8_t *blob = malloc(size + 1); /* exact size: shows reads past the end */
    if (blob == NULL) {
        return 0;
    }
    memcpy(blob, data, size);
    for (int fix = 0; fix < 2; fix++) {
        if (dcommi_card_parse(blob, size, 1, 4, &card) == DCOMM_OK) {
            uint64_t behind = (uint64_t)card.local_address + card.net_address;
            if (sizeof card + behind != size || strlen(card.algo) >= sizeof card.algo ||
                strlen(card.hostname) >= sizeof card.hostname ||
                strlen(card.host_id) >= sizeof card.host_id ||
                strlen(card.place.nic) >= sizeof card.place.nic ||
                strlen(card.place.gpu) >= sizeof card.place.gpu || card.place.core < -2 ||
                card.place.cpus < 0) {
                abort();
            }
        }
        if (size >= sizeof card) { /* passes checks that random bytes fail */
            memcpy(&card, blob, sizeof card);
            card.magic = DCOMMI_CARD_MAGIC;
            card.version = DCOMMI_CARD_VERSION;
            card.size = 4;
            if (card.pid % 2 == 0) {
                card.place.package = card.place.numa = card.place.cache = -2;
                card.place.core &= 0xff;
                card.place.cpus &= 0xff;
            }
            if (card.net_address % 2 == 0) {
                card.net_address = (uint32_t)(size - sizeof card) - card.local_address;
            }
            memcpy(blob, &card, sizeof card);
        }
    }
    free(blob);
    return 0;
}
