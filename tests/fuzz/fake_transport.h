/* fake_transport.h - a transport that keeps what it is given until told to complete it. Include it
 * behind the implementation. */
#ifndef FAKE_TRANSPORT_H
#define FAKE_TRANSPORT_H

#include <sanitizer/asan_interface.h>

enum { HELD = 4096 };

typedef struct held {
    dcommi_op *op;
    void *buf; /* a fetch's destination */
    const void *data;
    size_t len;
} held;

typedef struct parcel {
    bool is_long;
    size_t len;
    uint8_t *data;
} parcel;

static held fake_held[HELD];
static int fake_n, fake_parcels;
static bool fake_late; /* sends and fetches complete later */

static dcomm_status fake_add_peer(dcommi_transport *t, int peer, const void *address, size_t len)
{
    (void)t, (void)peer, (void)address, (void)len;
    return DCOMM_OK;
}

static void fake_remove_peer(dcommi_transport *t, int peer)
{
    (void)t, (void)peer;
}

static bool fake_peek(dcommi_transport *t, int peer, size_t expected, dcommi_arrival *arrival)
{
    (void)t, (void)peer, (void)expected, (void)arrival;
    return false;
}

static dcomm_status fake_take(dcommi_op *op, void *buf, const void *data, size_t len)
{
    if (fake_late && fake_n < HELD) {
        fake_held[fake_n++] = (held){op, buf, data, len};
        return DCOMM_IN_PROGRESS;
    }
    if (buf != NULL) {
        memset(buf, 1, len);
    }
    return DCOMM_OK;
}

/* Check that a payload can be read, much faster than by reading it. Read a byte that cannot, for
 * the report. */
static volatile unsigned fake_sum;

static void fake_read(const void *data, size_t len)
{
    const uint8_t *bad = __asan_region_is_poisoned((void *)(uintptr_t)data, len);
    if (bad != NULL) {
        fake_sum += *bad;
    }
}

static dcomm_status fake_send(dcommi_transport *t, int peer, const void *header, size_t header_len,
                              const void *data, size_t len, dcommi_op *op)
{
    (void)t, (void)peer;
    fake_read(header, header_len);
    fake_read(data, len);
    return fake_take(op, NULL, data, len);
}

static void fake_release(dcommi_transport *t, void *desc)
{
    parcel *p = desc;
    (void)t;
    free(p->data);
    free(p);
    fake_parcels--;
}

static dcomm_status fake_fetch(dcommi_transport *t, void *desc, void *buf, size_t len,
                               dcommi_op *op)
{
    if (!((parcel *)desc)->is_long || ((parcel *)desc)->len != len) {
        abort();
    }
    fake_release(t, desc);
    return fake_take(op, buf, NULL, len);
}

static void fake_done(int i, dcomm_status status)
{
    held h = fake_held[i];
    fake_held[i] = fake_held[--fake_n];
    if (h.buf != NULL) {
        memset(h.buf, 2, h.len);
    } else {
        fake_read(h.data, h.len); /* must be readable until now */
    }
    h.op->done(h.op, status);
}

static unsigned fake_progress(dcommi_transport *t)
{
    (void)t;
    return 0;
}

/* Memory of this process stands for a peer's shared memory of this many pages. */
static size_t fake_pages;

static dcomm_status fake_region_give(dcommi_transport *t, int peer, uint32_t number, int file)
{
    (void)t, (void)peer, (void)number, (void)file;
    return DCOMM_OK;
}

static dcomm_status fake_region_take(dcommi_transport *t, int peer, uint32_t number, size_t len,
                                     int *file)
{
    (void)t, (void)peer, (void)number;
    if (len > fake_pages * 4096) {
        return DCOMM_ERR_CORRUPT;
    }
    *file = dcommi_share_file(len);
    return *file >= 0 ? DCOMM_OK : DCOMM_ERR_SYSTEM;
}

static void fake_close(dcommi_transport *t, double timeout_s, bool force)
{
    (void)t, (void)timeout_s, (void)force;
    while (fake_n > 0) {
        fake_done(fake_n - 1, DCOMM_ERR_ABORTED);
    }
}

static const dcommi_transport_vtable fake_vtable = {.add_peer = fake_add_peer,
                                                    .remove_peer = fake_remove_peer,
                                                    .send = fake_send,
                                                    .fetch = fake_fetch,
                                                    .release = fake_release,
                                                    .progress = fake_progress,
                                                    .region_give = fake_region_give,
                                                    .region_take = fake_region_take,
                                                    .peek = fake_peek,
                                                    .close = fake_close};

static dcommi_transport fake_transport = {.name = "fake", .call = &fake_vtable, .eager_max = 8192};

/* Make a communicator of some ranks, of which this is rank 0, on the fake transport. The engine
 * does not know it yet. */
static dcomm_comm *fake_comm(int n)
{
    dcomm_context *context = dcommi_alloc(sizeof *context);
    atomic_store(&context->refs, 0);
    atomic_store(&context->holders, 1);
    context->local = &fake_transport;
    context->spin_limit = 1;
    context->npeers = n - 1;
    context->peers = dcommi_calloc((size_t)n - 1, sizeof *context->peers);
    for (int i = 0; i < n - 1; i++) {
        context->peers[i] = (dcommi_remote){.transport = &fake_transport, .users = 1};
    }
    dcomm_comm *comm = dcommi_comm_new(context);
    comm->id = 7;
    comm->size = n;
    comm->nhosts = 1;
    comm->timeout_s = 100;
    comm->members = dcommi_calloc((size_t)n, sizeof *comm->members);
    for (int r = 0; r < n; r++) {
        comm->members[r].peer = r - 1;
        comm->members[r].hostname = dcommi_strdup("host");
    }
    return comm;
}

#endif
