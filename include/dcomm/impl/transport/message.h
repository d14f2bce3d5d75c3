/* message.h - the header of every message between engines, and its validation. All ranks of a
 * communicator have the same byte order, which its creation checks. */
#ifndef DCOMMI_MESSAGE_H
#define DCOMMI_MESSAGE_H

#include "../device/device.h"
#include "transport.h"

/* The types of messages, with their a, b and payload. To a rank of another host, region number 1
 * means device memory that UCX moves itself (engine/device/straight.h).
 *   DATA        payload of a send                         a = length
 *   RTS         a send that waits in the sender's memory  a = address, b = length; slot and
 *               reserved = low and high bits of its region's number (0: no region)
 *   PULL        the receiver of an RTS cannot read that memory: answer with DATA
 *   OFFER       a send that waits in a device's memory    the same
 *   FIN         the receiver has read the memory of an RTS or OFFER
 *   EXPOSE      `slot` of the sender can be read          a = address, b = length; tag = region;
 *               reserved = 1 + number of the memory's device (0: host memory)
 *   READ        asks for a part of an exposed slot        a = offset, b = length; tag = reader's id
 *   READ_SENT   the same of the memory of OFFER `tag`     slot and reserved = reader's id
 *   READ_REPLY  the part                                  a = length, tag = reader's id
 *   SIGNAL      counter `slot` grows                      a = by how much
 *   CREDIT      only carries `done`                       b = 1: asks for the receiver's `done`
 *   QUERY       asks if the receiver has entered `seq`    a = signature of that operation alone;
 *               payload = the asker's description of it
 *   REPLY       answers a QUERY                           a = dcommi_entry, b = how often entered;
 *               payload = where the answering rank waits
 *   ABORT       a = status (two's complement), b = 1 + the lost rank (0: none), tag = 1: its death
 *               is certain; payload = sentence
 *   GOODBYE     a = number of collectives that the sender took part in
 *   AGREE       of the agreement with key b, a failed communicator's too: its message `slot`
 *               (engine/agree.h) of decision `seq`; tag = coordinator; a = the sender's word;
 *               signature = the accepted value's coordinator, or -1; stage = 1: too few are left;
 *               payload = the value's word, the failed ranks, those proven, the value's
 *   REGION_ASK  asks how to map region `tag`
 *   REGION      answers REGION_ASK                        a = 1: it is device memory;
 *               payload = card and key (region.h)
 *   REGION_GONE region `tag` has ended                    a = 1: it is device memory
 *   REGION_SHUT the reader has closed region `tag`, which is device memory
 *   REFUSED     rank `a` has refused operation `seq`      payload = sentence
 *   SERVICE     of a service (engine/types.h), which says what the fields are; its payload may stay
 *               at the sender */
enum dcommi_message_type {
    DCOMMI_MSG_DATA = 1,
    DCOMMI_MSG_RTS,
    DCOMMI_MSG_PULL,
    DCOMMI_MSG_FIN,
    DCOMMI_MSG_EXPOSE,
    DCOMMI_MSG_READ,
    DCOMMI_MSG_READ_REPLY,
    DCOMMI_MSG_SIGNAL,
    DCOMMI_MSG_CREDIT,
    DCOMMI_MSG_QUERY,
    DCOMMI_MSG_REPLY,
    DCOMMI_MSG_ABORT,
    DCOMMI_MSG_GOODBYE,
    DCOMMI_MSG_REGION_ASK,
    DCOMMI_MSG_REGION,
    DCOMMI_MSG_REGION_GONE,
    DCOMMI_MSG_OFFER,
    DCOMMI_MSG_READ_SENT,
    DCOMMI_MSG_REGION_SHUT,
    DCOMMI_MSG_AGREE,
    DCOMMI_MSG_REFUSED,
    DCOMMI_MSG_SERVICE,
    DCOMMI_MSG_TYPE_END
};

/* Collectives and point-to-point have separate sequence numbers. */
enum dcommi_stream { DCOMMI_STREAM_COLL = 0, DCOMMI_STREAM_P2P = 1 };

/* BEHIND: the operation was called on a CUDA stream that has not reached it yet. */
enum dcommi_entry {
    DCOMMI_NOT_ENTERED = 0,
    DCOMMI_ENTERED = 1,
    DCOMMI_COMPLETED = 2,
    DCOMMI_BEHIND = 3
};

typedef struct dcommi_header {
    uint8_t type;
    uint8_t stream;
    uint16_t stage;
    uint16_t slot;
    uint16_t reserved; /* 0 for types that do not name it above */
    uint32_t signature;
    uint32_t src; /* rank in the communicator */
    uint64_t comm;
    uint64_t seq;
    uint32_t tag;
    uint32_t done; /* low bits of the number of collectives that src has completed */
    uint64_t a, b;
} dcommi_header;

_Static_assert(sizeof(dcommi_header) == 56, "the header has no padding");
_Static_assert(sizeof(dcommi_header) <= DCOMMI_HEADER_MAX, "the header fits the transport");

/* The header of a short DATA message may end before a (the length) and b (0). Header and payload
 * then fit one cache line of a fifo. */
#define DCOMMI_HEADER_SHORT 40
#define DCOMMI_SHORT_MAX 16

_Static_assert(offsetof(dcommi_header, a) == DCOMMI_HEADER_SHORT, "a and b come last");

#define DCOMMI_REGION_CARD 16 /* bytes before the key in REGION */
#define DCOMMI_REGION_KEY_DEVICE sizeof(dcommi_device_key)
#define DCOMMI_AGREE_BYTES 8192 /* most bytes of payload in AGREE */
#define DCOMMI_TEXT_MAX 400     /* bytes of text in QUERY, REPLY, ABORT and REFUSED */

/* Store a 32-bit number in slot and reserved, for types that do not need these otherwise. */
static inline void dcommi_header_set_wide(dcommi_header *h, uint32_t number)
{
    h->slot = (uint16_t)number;
    h->reserved = (uint16_t)(number >> 16);
}

static inline uint32_t dcommi_header_wide(const dcommi_header *h)
{
    return (uint32_t)h->reserved << 16 | h->slot;
}

/* Read a header. Return true if it is valid as far as we can tell without the communicator: its
 * length, its type, and a payload of `len` bytes that the type allows. */
static bool dcommi_header_parse(const void *bytes, size_t bytes_len, size_t len,
                                dcommi_header *header)
{
    if (bytes_len != sizeof *header && bytes_len != DCOMMI_HEADER_SHORT) {
        return false;
    }
    memcpy(header, bytes, bytes_len);
    if (bytes_len == DCOMMI_HEADER_SHORT) {
        header->a = len;
        header->b = 0;
        if (header->type != DCOMMI_MSG_DATA) {
            return false;
        }
    }
    if (header->type < DCOMMI_MSG_DATA || header->type >= DCOMMI_MSG_TYPE_END ||
        header->stream > DCOMMI_STREAM_P2P ||
        (header->reserved != 0 && header->type != DCOMMI_MSG_RTS &&
         header->type != DCOMMI_MSG_OFFER && header->type != DCOMMI_MSG_EXPOSE &&
         header->type != DCOMMI_MSG_READ_SENT)) {
        return false;
    }
    switch (header->type) {
    case DCOMMI_MSG_DATA:
    case DCOMMI_MSG_READ_REPLY:
        return header->a == len;
    case DCOMMI_MSG_QUERY:
    case DCOMMI_MSG_REPLY:
    case DCOMMI_MSG_ABORT:
    case DCOMMI_MSG_REFUSED:
        return len <= DCOMMI_TEXT_MAX;
    case DCOMMI_MSG_AGREE:
        return len <= DCOMMI_AGREE_BYTES;
    case DCOMMI_MSG_SERVICE:
        return true;
    case DCOMMI_MSG_REGION:
        return header->a == 0
                   ? len == DCOMMI_REGION_CARD
                   : header->a == 1 && len == DCOMMI_REGION_CARD + DCOMMI_REGION_KEY_DEVICE;
    default:
        return len == 0;
    }
}

#endif
