/* fuzz_fifo.c - any bytes in the memory that a peer of this host writes: the reader must stay
 * within bounds, and the transport must neither crash nor leak nor complete anything twice. */
#define _GNU_SOURCE
#pragma GCC diagnostic ignored "-Wunused-function"
#include "dcomm/impl/base/base_impl.h"
#include "dcomm/impl/transport/local/local.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { SIZE = 4096, FETCHES = 64 };

static dcommi_op ops[FETCHES];
static unsigned char *places[FETCHES];
static int nops, ndone;
static volatile unsigned sum;

static void on_done(dcommi_op *op, dcomm_status status)
{
    (void)status;
    if (op->handle == NULL) {
        __builtin_trap();
    }
    op->handle = NULL;
    ndone++;
}

static void on_lost(void *user, dcommi_transport *t, int peer, const char *why, dcommi_loss how)
{
    (void)user, (void)t, (void)peer, (void)how;
    sum += (unsigned)strlen(why);
}

static dcommi_verdict on_message(void *user, dcommi_transport *t, const dcommi_arrival *a)
{
    (void)user;
    for (size_t i = 0; i < a->header_len; i++) {
        sum += ((const unsigned char *)a->header)[i];
    }
    if (a->data != NULL) {
        for (size_t i = 0; i < a->len; i++) {
            sum += ((const unsigned char *)a->data)[i];
        }
        return DCOMMI_CONSUMED;
    }
    if (nops < FETCHES && a->len < 100000) {
        places[nops] = malloc(a->len);
        ops[nops] = (dcommi_op){.done = on_done, .handle = ops};
        if (t->call->fetch(t, a->desc, places[nops], a->len, &ops[nops]) != DCOMM_IN_PROGRESS) {
            __builtin_trap();
        }
        nops++;
    } else {
        t->call->release(t, a->desc);
    }
    return DCOMMI_KEEP;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    dcommi_local *u = calloc(1, sizeof *u);
    dcommi_fifo *memory = aligned_alloc(64, dcommi_fifo_bytes(SIZE));
    memset(memory, 0, dcommi_fifo_bytes(SIZE));
    u->base = (dcommi_transport){.name = "local",
                                 .call = &dcommi_local_vtable,
                                 .handlers = {NULL, on_message, on_lost, NULL}};
    u->epoll = u->file = u->lock = -1;
    u->peers = calloc(1, sizeof *u->peers);
    u->polled = calloc(1, sizeof *u->polled);
    u->peers_capacity = u->npolled = 1;
    dcommi_local_peer *p = calloc(1, sizeof *p);
    u->peers[0] = u->polled[0] = p;
    p->local = u;
    p->pidfd = p->file = p->lock = -1;
    p->in = dcommi_fifo_reader(memory, SIZE);
    nops = ndone = 0;
    /* Half of the inputs are the memory itself; a writer makes records of the others. */
    if (size > 0 && data[0] % 2 == 0) {
        memcpy(memory->lines, data + 1, size - 1 < SIZE ? size - 1 : SIZE);
        dcommi_local_poll(p);
    } else {
        dcommi_fifo_end w = dcommi_fifo_writer(memory, SIZE);
        for (size_t at = 1; at + 3 < size;) {
            size_t header = data[at + 1] % 100, len = data[at + 2];
            unsigned kind = data[at] % 14 + 1;
            at += 3;
            header = header < size - at ? header : size - at;
            len = len < size - at - header ? len : size - at - header;
            unsigned char *body = dcommi_fifo_reserve(&w, header + len, 0);
            if (body == NULL) {
                __builtin_trap(); /* the reader keeps up */
            }
            memcpy(body, data + at, header + len);
            at += header + len;
            dcommi_fifo_commit(&w, kind, header, len);
            dcommi_local_poll(p);
            dcommi_local_deliver(u);
        }
    }
    dcommi_local_bury(u);
    u->fifos[0] = (dcommi_fifo_end){0}; /* not memory of the transport */
    dcommi_local_free(u);
    if (ndone != nops) {
        __builtin_trap();
    }
    for (int i = 0; i < nops; i++) {
        free(places[i]);
    }
    free(memory);
    return 0;
}
