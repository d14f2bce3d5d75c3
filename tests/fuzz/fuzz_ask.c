/* fuzz_ask.c - any announcements, answers and pieces of long messages, from peers that may lie. No
 * UCX runs: all that we answer stays queued. Nothing may crash, leak or complete twice, and only
 * buffers of fetches under way may be written. */
#define _GNU_SOURCE
#pragma GCC diagnostic ignored "-Wunused-function"
#include "dcomm/impl/base/base_impl.h"
#include "dcomm/impl/transport/message.h"
#include "dcomm/impl/transport/ucx/ucx.h"
#include "input.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { PEERS = 2, MOST = 64, LONGEST = 1 << 20 };

/* A fetch or a send. Its memory is freed when it is done: a later access is an error. */
typedef struct work {
    dcommi_op op;
    void *memory;
    bool under_way;
} work;

typedef struct message {
    void *desc;
    size_t len;
} message;

static work works[MOST];
static message kept[MOST];
static int nworks, nkept;
static bool keeps; /* the engine keeps the next long message */
static dcommi_ucx net;
static dcommi_ucx_peer peers[PEERS];

static void done(dcommi_op *op, dcomm_status status)
{
    work *w = (work *)op;
    if (!w->under_way || status == DCOMM_IN_PROGRESS) {
        abort();
    }
    w->under_way = false;
    free(w->memory);
}

static work *begin(size_t len)
{
    work *w = &works[nworks++];
    *w = (work){.op.done = done, .memory = calloc(1, len), .under_way = true};
    return w;
}

static dcommi_verdict on_message(void *user, dcommi_transport *t, const dcommi_arrival *a)
{
    (void)user;
    if (a->data != NULL) {
        abort(); /* announcements bring no payload */
    }
    if (keeps && nkept < MOST) {
        kept[nkept++] = (message){a->desc, a->len};
    } else {
        t->call->release(t, a->desc);
    }
    return DCOMMI_KEEP;
}

static void on_corrupt(void *user, dcommi_transport *t, const dcommi_arrival *a)
{
    (void)user, (void)t, (void)a;
}

static void on_peer_lost(void *user, dcommi_transport *t, int peer, const char *why,
                         dcommi_loss how)
{
    (void)user, (void)t, (void)peer, (void)why, (void)how;
}

static void start(void)
{
    net = (dcommi_ucx){.base = {.name = "net",
                                .call = &dcommi_ucx_vtable,
                                .handlers = {.on_message = on_message,
                                             .on_peer_lost = on_peer_lost,
                                             .on_corrupt = on_corrupt}},
                       .id = 7,
                       .at_once = true};
    net.pending.next = net.pending.prev = &net.pending;
    net.done.next = net.done.prev = &net.done;
    net.kept.next = net.kept.prev = &net.kept;
    net.peers = dcommi_calloc(PEERS, sizeof *net.peers);
    net.peers_capacity = PEERS;
    for (int i = 0; i < PEERS; i++) {
        peers[i] = (dcommi_ucx_peer){
            .ucx = &net, .index = i, .id = 1 + (uint64_t)i, .connections = 1, .wanted = 1};
        net.peers[i] = &peers[i];
    }
    nworks = nkept = 0;
}

/* ---- input ---- */

static uint64_t take_wide(input *in)
{
    uint64_t v = take(in);
    return v < 0xc0 ? v << 10 : v < 0xf0 ? v << 12 | take(in) : v << 56 | take(in);
}

/* Copy a message to memory of its own, exactly as long, and hand it over. */
static void hand(ucs_status_t (*taker)(void *, const void *, size_t, void *, size_t,
                                       const ucp_am_recv_param_t *),
                 const void *header, size_t header_len, size_t len)
{
    void *head = malloc(header_len > 0 ? header_len : 1), *body = calloc(1, len > 0 ? len : 1);
    memcpy(head, header, header_len);
    ucs_status_t status = taker(&net, head, header_len, body, len, NULL);
    if (status != UCS_OK) {
        abort(); /* UCX must keep nothing */
    }
    free(head);
    free(body);
}

static void announce(input *in)
{
    uint8_t bytes[sizeof(dcommi_header) + sizeof(dcommi_ucx_tail)] = {0};
    const uint8_t how = take(in), cut = how >> 6 == 3 ? take(in) : 0;
    dcommi_ucx_tail tail = {.id = how & 3,
                            .total = take_wide(in),
                            .number = how >> 2 & 3,
                            .part = take(in) % 20,
                            .parts = how >> 4 & 1 ? 1 : take(in) % 20,
                            .connection = how >> 5 & 1 ? take(in) : 0};
    memcpy(bytes + sizeof bytes - sizeof tail, &tail, sizeof tail);
    hand(dcommi_ucx_on_ask, bytes + cut % sizeof bytes, sizeof bytes - cut % sizeof bytes, 0);
}

static void answer(input *in)
{
    const uint8_t how = take(in);
    const dcommi_ucx_answer a = {
        .id = how & 3, .number = how >> 2 & 3, .part = take(in) % 20, .takes = how >> 4 & 1};
    hand(dcommi_ucx_on_answer, &a, how >> 5 == 7 ? take(in) % sizeof a : sizeof a,
         how >> 5 == 6 ? 9 : 0);
}

/* Send a piece, as a rule the next one of fetch `how`. */
static void send_piece(input *in)
{
    const uint8_t how = take(in);
    int n = how >> 4;
    dcommi_ucx_piece piece = {.id = how & 3, .number = how >> 2 & 3};
    size_t len = take(in) * 64u;
    for (const dcommi_ucx_flight *f = net.pending.next; f != &net.pending; f = f->next) {
        if (f->stage == DCOMMI_UCX_FETCH && f->peer != NULL && n-- == 0) {
            piece = (dcommi_ucx_piece){
                .id = f->peer->id, .at = f->at, .number = f->number, .part = f->part};
            len = len == 0 ? f->len - f->at : len;
        }
    }
    switch (take(in) % 16) {
    case 0:
        piece.at = take_wide(in);
        break;
    case 1:
        piece.part = take(in);
        break;
    case 2:
        piece.number++;
        break;
    case 3:
        hand(dcommi_ucx_on_payload, &piece, take(in) % sizeof piece, len);
        return;
    default:
        break;
    }
    hand(dcommi_ucx_on_payload, &piece, sizeof piece, len);
}

/* Do with a kept message what the engine would. */
static void fetch(input *in)
{
    if (nkept == 0) {
        return;
    }
    const int i = take(in) % nkept;
    const message m = kept[i];
    kept[i] = kept[--nkept];
    if (m.len > LONGEST || nworks == MOST || take(in) % 8 == 0) {
        net.base.call->release(&net.base, m.desc);
        return;
    }
    work *w = begin(m.len);
    dcomm_status status = net.base.call->fetch(&net.base, m.desc, w->memory, m.len, &w->op);
    if (status != DCOMM_IN_PROGRESS) {
        done(&w->op, status);
    }
}

/* Have announced a message of ours, whose payload nobody has asked for yet. */
static void ask(input *in)
{
    const uint8_t how = take(in);
    const size_t len = 1 + take(in) * 1024u;
    if (nworks == MOST) {
        return;
    }
    work *w = begin(len);
    dcommi_ucx_flight *f =
        dcommi_ucx_flight_start(&net, &peers[how % PEERS], false, 0, len, &w->op);
    f->stage = DCOMMI_UCX_ASKED;
    f->data = w->memory;
    f->len = len;
    f->number = how >> 2 & 3;
    f->part = how >> 4;
}

/* Let what is queued fail: the connection is gone. */
static void pump(void)
{
    for (int i = 0; i < PEERS; i++) {
        peers[i].opened = 1;
    }
    while (net.waiting != NULL) {
        dcommi_ucx_pump(&net);
    }
    for (int i = 0; i < PEERS; i++) {
        peers[i].opened = 0;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    input in = {data, data + size};
    setenv("DCOMM_LOG", "error", 1);
    start();
    while (in.at < in.end) {
        const uint8_t command = take(&in);
        net.direct = command & 16;
        keeps = !(command & 32);
        switch (command % 8) {
        case 0:
        case 1:
            announce(&in);
            break;
        case 2:
            answer(&in);
            break;
        case 3:
        case 4:
            send_piece(&in);
            break;
        case 5:
            fetch(&in);
            break;
        case 6:
            ask(&in);
            break;
        default:
            if (command < 224) {
                pump();
            } else {
                dcommi_ucx_lose(&net.base, command >> 3 & 1, "gone");
                peers[command >> 3 & 1].failed_at = 0;
            }
            break;
        }
        net.direct = false;
        dcommi_ucx_report_lost(&net);
        dcommi_ucx_deliver(&net);
    }
    while (nkept > 0) {
        net.base.call->release(&net.base, kept[--nkept].desc);
    }
    net.closing = true;
    for (int i = 0; i < PEERS; i++) {
        dcommi_ucx_forget_parts(&net, &peers[i]);
        dcommi_ucx_peer_abandon(&peers[i]);
        net.peers[i] = NULL; /* these are not the transport's memory */
    }
    dcommi_ucx_deliver(&net);
    for (int i = 0; i < nworks; i++) {
        if (works[i].under_way) {
            abort();
        }
    }
    if (net.kept.next != &net.kept || net.incomplete != NULL) {
        abort();
    }
    while (net.slabs != NULL) {
        dcommi_ucx_slab *slab = net.slabs;
        net.slabs = slab->next;
        dcommi_free(slab);
    }
    dcommi_free(net.peers);
    return 0;
}
