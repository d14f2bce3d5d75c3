/* transport.h - what the engine needs of any transport: active messages, mapped memory, news of a
 * peer's death. A transport moves bytes and knows neither ranks nor dtypes; peers are small
 * integers of the context's own. One thread at a time calls into a transport. */
#ifndef DCOMMI_TRANSPORT_H
#define DCOMMI_TRANSPORT_H

#include "../../comm.h"
#include "../base/sys.h"
#include "../base/util.h"

#include <sys/random.h>

typedef struct dcommi_transport dcommi_transport;

/* A send or a fetch that was not complete at once. The caller owns it, sets `done` and keeps it
 * until done has been called, exactly once, from within progress or close. */
typedef struct dcommi_op {
    void (*done)(struct dcommi_op *op, dcomm_status status);
    void *handle; /* the transport's own */
} dcommi_op;

/* A message that arrived. data is NULL if the payload is still at the sender (a long message): then
 * on_message must return DCOMMI_KEEP and later either fetch or release it. */
typedef struct dcommi_arrival {
    int peer; /* who sent it, if the transport knows, else -1: the header tells */
    const void *header;
    size_t header_len;
    const void *data;
    size_t len;
    void *desc; /* names the payload for fetch and release; NULL: it cannot be kept, copy it */
    bool stays; /* it may be left for later */
} dcommi_arrival;

typedef enum dcommi_verdict {
    DCOMMI_CONSUMED = 0, /* done with it */
    DCOMMI_LATER =
        2, /* `stays`: show it again at the next progress, and nothing of this peer before */
    DCOMMI_KEEP = 1 /* desc (and data, if not NULL) stay valid until fetch or release */
} dcommi_verdict;

typedef struct dcommi_transport_handlers {
    void *user;
    /* Called from within progress. */
    dcommi_verdict (*on_message)(void *user, dcommi_transport *t, const dcommi_arrival *arrival);
    /* A peer is lost; called once per peer from within progress. */
    void (*on_peer_lost)(void *user, dcommi_transport *t, int peer, const char *why);
    /* Bytes came that are no message, nor a part that fits the others. The header may be cut short,
     * and nothing else may be looked at. */
    void (*on_corrupt)(void *user, dcommi_transport *t, const dcommi_arrival *arrival);
} dcommi_transport_handlers;

/* Names a transport among all: random. */
static uint64_t dcommi_transport_id(void)
{
    static _Atomic uint64_t counter;
    uint64_t id = 0;
    if (dcommi_sys_getrandom(&id, sizeof id, GRND_NONBLOCK) != (ssize_t)sizeof id) {
        id = dcommi_mix((uint64_t)(1e9 * dcommi_now()), (uint64_t)getpid());
    }
    return dcommi_mix(id, atomic_fetch_add(&counter, 1)) | 1;
}

#define DCOMMI_COMMON_BYTES 135168 /* of memory that a process shows all others of its host */
#define DCOMMI_HEADER_MAX 64       /* bytes of header that send takes */

typedef char dcommi_iface[64]; /* the name of a network interface; "": none */

struct dcommi_transport {
    const char *name; /* "local", "net" */
    const struct dcommi_transport_vtable *call;
    dcommi_transport_handlers handlers;
    const void *address; /* how peers reach us; owned by the transport */
    size_t address_len;
    bool bulk;          /* set by who sends: what comes now is a part of much */
    size_t eager_max;   /* a payload up to this long comes with its message */
    size_t ordered_max; /* and messages with so long a one arrive in order */
    bool by_flow;       /* what connects it may limit each connection by itself: several can be
                           faster than one */
    bool takes_device;  /* send_device and fetch_device move bytes of a CUDA device */
    dcommi_iface iface; /* of the host's address */
};

typedef struct dcommi_transport_vtable {
    /* Remember a peer's address (copied). No traffic: endpoints open at the first send. */
    dcomm_status (*add_peer)(dcommi_transport *t, int peer, const void *address, size_t len);
    /* The peer has added us: be ready to send to it, from now on over up to so many connections, at
     * most DCOMM_CONNECTIONS_MAX. Any number of the peer's is understood. */
    void (*connect)(dcommi_transport *t, int peer, int connections);
    /* Forget a peer: what is under way to it is dropped, its pending ops are completed. */
    void (*remove_peer)(dcommi_transport *t, int peer);
    /* May be NULL. A peer has died, as is known from elsewhere: report its loss once its last words
     * have been read. `why` is static text. */
    void (*lose)(dcommi_transport *t, int peer, const char *why);
    /* Send header and payload as one message. The header is copied; the payload must stay until
     * the op is done. DCOMM_OK: done already, op untouched; DCOMM_IN_PROGRESS: op->done will be
     * called; an error: not sent. Messages to one peer that are at most ordered_max long arrive in
     * order; longer ones may be overtaken. */
    dcomm_status (*send)(dcommi_transport *t, int peer, const void *header, size_t header_len,
                         const void *data, size_t len, dcommi_op *op);
    /* May be NULL. Room for a message to a peer, before those that wait, where its payload of `len`
     * bytes is to be written, past the caches if *past says so; NULL: none at once, send it. The
     * very next call must be commit, with the message's header. */
    void *(*reserve)(dcommi_transport *t, int peer, size_t header_len, size_t len, bool *past);
    void (*commit)(dcommi_transport *t, int peer, const void *header, size_t header_len,
                   size_t len);
    /* Bring a kept payload whose data is NULL into buf (len bytes, the arrival's); releases desc.
     */
    dcomm_status (*fetch)(dcommi_transport *t, void *desc, void *buf, size_t len, dcommi_op *op);
    /* NULL but where takes_device: the same out of memory of a device, which always comes with
     * data NULL, and into it. What they are part of is progressed where that device is current. */
    dcomm_status (*send_device)(dcommi_transport *t, int peer, const void *header,
                                size_t header_len, const void *data, size_t len, dcommi_op *op);
    dcomm_status (*fetch_device)(dcommi_transport *t, void *desc, void *buf, size_t len,
                                 dcommi_op *op);
    /* Drop a kept payload. */
    void (*release)(dcommi_transport *t, void *desc);
    /* Never blocks; returns how much happened. */
    unsigned (*progress)(dcommi_transport *t);
    /* Look for a peer's next message without handling it; not within progress. False: none has
     * come, or it is one that progress must handle. What is shown stays valid until pass, which
     * takes it away, or any other call. `expected`: bytes of the header and payload of what is
     * waited for. */
    bool (*peek)(dcommi_transport *t, int peer, size_t expected, dcommi_arrival *arrival);
    void (*pass)(dcommi_transport *t, int peer);
    /* May be NULL. *common_p: DCOMMI_COMMON_BYTES of zeroed memory of this process's own (peer -1),
     * which all its peers can map, or of a peer's; NULL: not to be had, or not yet. */
    dcomm_status (*common)(dcommi_transport *t, int peer, void **common_p);
    /* NULL but where processes of a host share memory. Hand our own to the process with this
     * address, which may be no peer yet and can become one then. DCOMM_IN_PROGRESS: it has too much
     * to take in, or must be asked again when it has greeted us for the `first` time, which comes
     * once in each creation; DCOMM_ERR_UNSUPPORTED: it cannot be reached. `greeting`: a
     * creation begins to greet, or is done with it. */
    dcomm_status (*greet)(dcommi_transport *t, const void *address, size_t len, bool first);
    void (*greeting)(dcommi_transport *t, bool begins);
    /* Take in what others have handed to us, and drop what nobody has used of a process. */
    dcomm_status (*listen)(dcommi_transport *t);
    void (*forget)(dcommi_transport *t, const void *address, size_t len);
    /* Hand a descriptor of memory to a peer, as number > 0; its return is greet's. The peer can
     * take it at once; the descriptor, of a file of at least `len` bytes, is the caller's then. */
    dcomm_status (*region_give)(dcommi_transport *t, int peer, uint32_t number, int file);
    dcomm_status (*region_take)(dcommi_transport *t, int peer, uint32_t number, size_t len,
                                int *file);
    /* Wait at most timeout_s for sends to leave, then close everything; force = at once. */
    void (*close)(dcommi_transport *t, double timeout_s, bool force);
} dcommi_transport_vtable;

#endif
