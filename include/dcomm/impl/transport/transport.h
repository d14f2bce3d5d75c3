/* transport.h - the interface of a transport: active messages, mapped memory, reports of lost
 * peers. A transport moves bytes and knows neither ranks nor dtypes. Peers are small integers that
 * the context assigns. One thread at a time calls into a transport. */
#ifndef DCOMMI_TRANSPORT_H
#define DCOMMI_TRANSPORT_H

#include "../../comm.h"
#include "../base/sys.h"
#include "../base/util.h"

#include <sys/random.h>

typedef struct dcommi_transport dcommi_transport;

/* A send or a fetch that did not complete at once. The caller owns it, sets `done`, and keeps it
 * until the transport has called `done`: exactly once, from within progress or close. */
typedef struct dcommi_op {
    void (*done)(struct dcommi_op *op, dcomm_status status);
    void *handle; /* for the transport */
} dcommi_op;

/* A message that has arrived. `data` is NULL if the payload is still at the sender (a long
 * message). on_message must then return DCOMMI_KEEP, and the engine later fetches or releases the
 * payload. */
typedef struct dcommi_arrival {
    int peer; /* the sender, if the transport knows it; else -1, and the header tells */
    const void *header;
    size_t header_len;
    const void *data;
    size_t len;
    void *desc; /* names the payload for fetch and release; NULL: it cannot be kept, copy it */
    bool stays; /* on_message may return DCOMMI_LATER */
} dcommi_arrival;

typedef enum dcommi_verdict {
    DCOMMI_CONSUMED = 0, /* the message is done */
    DCOMMI_LATER =
        2, /* if `stays`: show it again at the next progress, and nothing of this peer before */
    DCOMMI_KEEP = 1 /* desc (and data, if not NULL) stay valid until fetch or release */
} dcommi_verdict;

/* Ways in which a peer is lost. */
typedef enum dcommi_loss {
    DCOMMI_LOSS_SILENT = 0, /* it cannot be reached, or sends nonsense: it may be alive */
    DCOMMI_LOSS_PROVEN,     /* its process has ended, or has closed the transport */
    DCOMMI_LOSS_GIVEN_UP    /* it counts us as dead (give_up) */
} dcommi_loss;

typedef struct dcommi_transport_handlers {
    void *user;
    /* Handle a message; called from within progress. */
    dcommi_verdict (*on_message)(void *user, dcommi_transport *t, const dcommi_arrival *arrival);
    /* Handle the loss of a peer; called once per peer from within progress. */
    void (*on_peer_lost)(void *user, dcommi_transport *t, int peer, const char *why,
                         dcommi_loss how);
    /* Handle bytes that are no message, nor a part that fits the others. The header may be cut
     * short, and no other field is valid. */
    void (*on_corrupt)(void *user, dcommi_transport *t, const dcommi_arrival *arrival);
} dcommi_transport_handlers;

/* Return a random number that identifies a transport among all. */
static uint64_t dcommi_transport_id(void)
{
    static _Atomic uint64_t counter;
    uint64_t id = 0;
    if (dcommi_sys_getrandom(&id, sizeof id, GRND_NONBLOCK) != (ssize_t)sizeof id) {
        id = dcommi_mix((uint64_t)(1e9 * dcommi_now()), (uint64_t)getpid());
    }
    return dcommi_mix(id, atomic_fetch_add(&counter, 1)) | 1;
}

#define DCOMMI_COMMON_BYTES 135168 /* of memory that all other processes of a host can map */
#define DCOMMI_HEADER_MAX 64       /* bytes of header that send takes */

typedef char dcommi_iface[64]; /* the name of a network interface; "": none */

struct dcommi_transport {
    const char *name; /* "local", "net" */
    const struct dcommi_transport_vtable *call;
    dcommi_transport_handlers handlers;
    const void *address; /* by which peers reach us; owned by the transport */
    size_t address_len;
    bool bulk;          /* set by the sender: the next messages are parts of a large transfer */
    size_t eager_max;   /* bytes: a payload up to this long comes with its message */
    size_t ordered_max; /* bytes: messages with payloads up to this long arrive in order */
    bool by_flow;       /* the network may limit each connection by itself, so several can be
                           faster than one */
    bool takes_device;  /* send_device and fetch_device move bytes of a CUDA device */
    dcommi_iface iface; /* of the host's address */
};

typedef struct dcommi_transport_vtable {
    /* Add a peer and copy its address. Send nothing: endpoints open at the first send. */
    dcomm_status (*add_peer)(dcommi_transport *t, int peer, const void *address, size_t len);
    /* Get ready to send to a peer that has added us, over up to `connections` connections, at most
     * DCOMM_CONNECTIONS_MAX. The peer may use another number. */
    void (*connect)(dcommi_transport *t, int peer, int connections);
    /* Forget a peer: drop the messages under way to it and complete its pending ops. */
    void (*remove_peer)(dcommi_transport *t, int peer);
    /* May be NULL. Look for peers whose processes have ended, by a system call. progress reports
     * them. */
    void (*watch)(dcommi_transport *t);
    /* May be NULL. Report the loss of a peer whose death we know from elsewhere, once its last
     * messages have been read. `why` is static text. */
    void (*lose)(dcommi_transport *t, int peer, const char *why);
    /* May be NULL. Tell a peer that it counts as dead here. It learns of it even if it wakes up
     * after our end. */
    void (*give_up)(dcommi_transport *t, int peer);
    /* May be NULL. Return true if a peer that has ended had said so of us. */
    bool (*gave_up)(dcommi_transport *t, int peer);
    /* Send header and payload as one message. The header is copied; the payload must stay valid
     * until the op is done. Return DCOMM_OK if the send is done already (op is untouched),
     * DCOMM_IN_PROGRESS if op->done will be called, or an error if nothing was sent. Messages to
     * one peer whose payloads are at most ordered_max long arrive in order; longer ones may be
     * overtaken. */
    dcomm_status (*send)(dcommi_transport *t, int peer, const void *header, size_t header_len,
                         const void *data, size_t len, dcommi_op *op);
    /* May be NULL. Reserve room for a message to a peer, which may overtake queued ones. Return
     * where to write its payload of `len` bytes, by nontemporal stores if *past; the very next
     * call must then be commit, with the message's header. Return NULL if there is no room now:
     * use send. */
    void *(*reserve)(dcommi_transport *t, int peer, size_t header_len, size_t len, bool *past);
    void (*commit)(dcommi_transport *t, int peer, const void *header, size_t header_len,
                   size_t len);
    /* Bring a kept payload whose data is NULL into `buf`; `len` is the arrival's. Release desc. */
    dcomm_status (*fetch)(dcommi_transport *t, void *desc, void *buf, size_t len, dcommi_op *op);
    /* NULL unless takes_device. Send from, and fetch into, memory of a device. Such a message
     * always arrives with data NULL. The caller progresses where that device is current. */
    dcomm_status (*send_device)(dcommi_transport *t, int peer, const void *header,
                                size_t header_len, const void *data, size_t len, dcommi_op *op);
    dcomm_status (*fetch_device)(dcommi_transport *t, void *desc, void *buf, size_t len,
                                 dcommi_op *op);
    /* Drop a kept payload. */
    void (*release)(dcommi_transport *t, void *desc);
    /* Progress without blocking. Return how much happened. */
    unsigned (*progress)(dcommi_transport *t);
    /* Look for a peer's next message without handling it; not within progress. Return false if
     * none has come or if progress must handle it. *arrival stays valid until pass, which removes
     * the message, or any other call. `expected` is the bytes of header and payload of the message
     * that the caller waits for. */
    bool (*peek)(dcommi_transport *t, int peer, size_t expected, dcommi_arrival *arrival);
    void (*pass)(dcommi_transport *t, int peer);
    /* May be NULL. Set *common_p to the DCOMMI_COMMON_BYTES of a peer, or of this process (peer
     * -1). They begin as zeros, and all peers can map them. Set it to NULL if there are none, or
     * not yet. */
    dcomm_status (*common)(dcommi_transport *t, int peer, void **common_p);
    /* NULL unless processes of a host share memory. Hand our memory to the process with this
     * address, which can become a peer then. `first` is true once in each creation. Return
     * DCOMM_IN_PROGRESS if the process has too much to take in, or if we must greet it again after
     * its first greeting. Return DCOMM_ERR_UNSUPPORTED if it cannot be reached. Call `greeting`
     * when a creation begins or ends to greet. */
    dcomm_status (*greet)(dcommi_transport *t, const void *address, size_t len, bool first);
    void (*greeting)(dcommi_transport *t, bool begins);
    /* listen: take in descriptors that others have handed to us. forget: drop the unused
     * descriptors of a process. */
    dcomm_status (*listen)(dcommi_transport *t);
    void (*forget)(dcommi_transport *t, const void *address, size_t len);
    /* region_give: hand a descriptor of memory to a peer as `number` > 0; return as greet does.
     * The peer can take it at once. region_take: get a peer's descriptor, of a file of at least
     * `len` bytes, which the caller then owns. */
    dcomm_status (*region_give)(dcommi_transport *t, int peer, uint32_t number, int file);
    dcomm_status (*region_take)(dcommi_transport *t, int peer, uint32_t number, size_t len,
                                int *file);
    /* Wait at most `timeout_s` seconds for sends to leave, then close everything. With `force` do
     * not wait. */
    void (*close)(dcommi_transport *t, double timeout_s, bool force);
} dcommi_transport_vtable;

#endif
