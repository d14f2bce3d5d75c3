/* fuzz_ps.c - any messages to a parameter server: rank 0 of three on a fake transport, which holds
 * rows and works. Nothing may crash, leak or complete twice, whatever arrives in whatever order,
 * and what a rank makes this one keep is bounded. */
#define _GNU_SOURCE
#pragma GCC diagnostic ignored "-Wunused-function"
#define DCOMM_IMPLEMENTATION
#include "dcomm/all.h"
#include "fake_transport.h"
#include "input.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { RANKS = 3, OPS = 12, ROWS = 30, COLS = 2, WIDE = 2500, LEN_MAX = 4 * WIDE * 4 + 1024 };

/* Make another communicator of the same ranks. */
static dcomm_comm *make_second(const dcomm_comm *first)
{
    dcomm_comm *comm = dcommi_comm_new(first->context);
    comm->id = first->id + 1;
    comm->size = RANKS;
    comm->nhosts = 1;
    comm->timeout_s = first->timeout_s;
    comm->members = dcommi_calloc(RANKS, sizeof *comm->members);
    for (int r = 0; r < RANKS; r++) {
        comm->members[r].peer = r - 1;
        comm->members[r].hostname = dcommi_strdup("host");
    }
    dcommi_comm_enter(comm);
    return comm;
}

static dcomm_comm *make_comm(void)
{
    dcomm_comm *comm = fake_comm(RANKS);
    atomic_store(&comm->context->has_thread, true); /* so that no other one is started */
    comm->context->liveness_s = INFINITY;
    dcommi_comm_enter(comm);
    return comm;
}

/* One whose wires have one length, and one whose wires list elements. */
static const char *const codecs[] = {"qsgd:bits=8", "topk:k=0.01"};

static dcomm_ps *make_ps(dcomm_comm *comm, uint16_t how, int shift)
{
    const bool replicated = how & 256;
    const dcomm_dtype small = how & 64 ? DCOMM_F16 : DCOMM_F32;
    const dcomm_ps_param params[2] = {{.rows = ROWS, .cols = COLS, .dtype = small},
                                      {.rows = 2, .cols = WIDE, .dtype = DCOMM_F32}};
    const dcomm_ps_opts opts = {
        .servers = how & 1 || replicated ? RANKS : 1,
        .replicas = replicated,
        .staleness = how >> 1 & 3 ? (how >> 1 & 3) - 2 : 0,
        .lr = 0.1,
        .pull_dtype = how & 64 ? DCOMM_BF16 : DCOMM_F32,
        .codec = how & 128 ? codecs[how & 1] : NULL,
        .update = (dcomm_ps_update)(how >> 3 & 3),
        .quorum = replicated || (how >> 1 & 3 && (how >> 1 & 3) != 2) ? 0 : how >> 5 & 1};
    dcomm_ps *ps = dcommi_alloc(sizeof *ps);
    atomic_store(&ps->refs, 1);
    ps->comm = comm;
    comm->refs++;
    ps->rank = comm->rank;
    ps->size = comm->size;
    ps->shift = shift;
    if (dcommi_ps_prepare(ps, params, 2, &opts) < 0) {
        abort();
    }
    dcommi_ps_enter(ps);
    return ps;
}

/* ---- messages ---- */

/* Deliver a message from memory exactly as long. */
static void arrive(dcomm_comm *comm, const dcommi_header *h, const void *data, size_t len,
                   bool is_long, bool can_stay)
{
    parcel *p = malloc(sizeof *p);
    *p = (parcel){.is_long = is_long && len > 0, .len = len, .data = malloc(len + 1)};
    memcpy(p->data, data, len);
    can_stay = can_stay || p->is_long;
    fake_parcels++;
    const dcommi_arrival arrival = {.peer = -1,
                                    .header = h,
                                    .header_len = sizeof *h,
                                    .data = p->is_long ? NULL : p->data,
                                    .len = len,
                                    .desc = can_stay ? p : NULL};
    const bool must_free = p->is_long;
    if (dcommi_on_message(comm->context, &fake_transport, &arrival) == DCOMMI_CONSUMED) {
        if (must_free) {
            abort(); /* must be fetched or released */
        }
        fake_release(&fake_transport, p);
    } else if (!can_stay) {
        abort();
    }
}

/* Write the rows of a push, encoded if their parameter is, and spoil a byte. Return their bytes. */
static size_t rows_of_push(const dcomm_ps *ps, const dcommi_header *h, uint8_t *to, input *in,
                           bool spoil)
{
    static float x[4 * WIDE];
    const dcommi_ps_param *p = &ps->params[h->tag];
    const size_t n = (size_t)(h->b * p->cols);
    size_t len = n * dcomm_dtype_size(p->dtype);
    if (p->codec != NULL) {
        const uint8_t at = take(in);
        x[at] = take(in);
        if (dcomm_encode(p->codec, x, n, NULL, to, LEN_MAX - 64, &len, NULL, NULL) < 0) {
            abort();
        }
        x[at] = 0;
    }
    if (spoil) {
        to[(take(in) * 256u + take(in)) % len] = take(in);
    }
    return len;
}

/* Deliver a message of a parameter server, right or spoiled. */
static void deliver(dcomm_ps *ps, input *in)
{
    static uint8_t payload[LEN_MAX];
    const uint8_t kind = take(in), how = take(in), all = take(in), spoil = all & 127;
    ps = all > spoil && ps->twin != NULL ? ps->twin : ps;
    const int src = 1 + how % (RANKS - 1);
    dcommi_header h = {.type = DCOMMI_MSG_SERVICE,
                       .slot = 1 + kind % 9,
                       .src = (uint32_t)src,
                       .comm = ps->comm->id,
                       .stage = how >> 2 & 1,
                       .tag = how >> 3 & 1,
                       .seq = ps->from[src].next + (how >> 6)};
    size_t len = 0;
    memset(payload, 0, sizeof payload);
    if (h.slot == DCOMMI_PS_PUSH || h.slot == DCOMMI_PS_PULL) {
        h.a = h.stage ? 0 : take(in) % ROWS;
        h.b = 1 + take(in) % 4;
        for (uint64_t j = 0; j < h.b && h.stage; j++, len += 8) {
            const uint64_t row = j == 0 ? take(in) % 8 : ((uint64_t *)(void *)payload)[j - 1] + 1;
            ((uint64_t *)(void *)payload)[j] = spoil == 1 ? take(in) : row;
        }
        len += h.slot == DCOMMI_PS_PUSH ? rows_of_push(ps, &h, payload + len, in, spoil == 8) : 0;
    } else if (h.slot == DCOMMI_PS_CLOCK) {
        h.a = ps->clock.of[src].clock + 1;
    } else if (h.slot == DCOMMI_PS_VALUES) {
        const dcommi_ps_to *to = &ps->to[ps->nservers == 1 ? 0 : (src + RANKS - ps->shift) % RANKS];
        h.seq = to->pulling != NULL ? to->pulling->header.seq : take(in);
        len = to->pulling != NULL ? to->pulling->bytes : take(in);
    } else if (h.slot >= DCOMMI_PS_ACK) {
        h.a = take(in);
        h.b = take(in);
        len = h.slot == DCOMMI_PS_DROPPED ? take(in) * 3u : 0;
    }
    switch (spoil) {
    case 2:
        h.seq = take(in);
        break;
    case 3:
        h.b = UINT64_MAX / (take(in) + 1u);
        break;
    case 4:
        h.a = UINT64_MAX - take(in);
        break;
    case 5:
        len = len > 0 ? len - 1 : 1;
        break;
    case 6:
        h.tag = take(in);
        break;
    case 7:
        h.stage = take(in);
        break;
    default:
        break;
    }
    arrive(ps->comm, &h, payload, len, how & 16, how & 32);
}

/* Call as a worker. */
static void call(dcomm_ps *ps, input *in, dcomm_request **request)
{
    static float memory[OPS][2 * WIDE];
    static int turn;
    float *buf = memory[turn++ % OPS];
    const uint8_t what = take(in);
    const uint64_t rows[3] = {what % 7u, 9 + what % 5u, 20 + what % 3u};
    const size_t i = what >> 4 & 1, n = i == 0 ? 1 + what % 20u : 1 + what % 2u;
    dcomm_status status = DCOMM_OK;
    switch (what >> 5) {
    case 0:
    case 1:
        status = dcomm_ps_push(ps, i, 0, n, buf, request);
        break;
    case 2:
    case 3:
        status = dcomm_ps_pull(ps, i, 0, n, buf, request);
        break;
    case 4:
        status = dcomm_ps_push_rows(ps, 0, rows, 3, buf, request);
        break;
    case 5:
        status = dcomm_ps_pull_rows(ps, 0, rows, 3, buf, request);
        break;
    default:
        status = dcomm_ps_clock(ps);
    }
    if (status < 0) {
        *request = NULL;
    }
}

static void check_bounds(const dcomm_ps *ps)
{
    for (int r = 0; r < RANKS; r++) {
        if (ps->from[r].queued > 2 * DCOMMI_PS_WINDOW) {
            abort();
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    input in = {data, data + size};
    dcomm_request *requests[OPS] = {0};
    int n = 0;
    setenv("DCOMM_LOG", "error", 1);
    fake_late = false;
    dcomm_comm *comm = make_comm();
    dcomm_context *context = comm->context;
    const uint16_t first = (uint16_t)(take(&in) | (uint16_t)(take(&in) << 8));
    dcomm_ps *ps = make_ps(comm, first, 0);
    if (first & 256) {
        ps->twin = make_ps(make_second(comm), first, 1);
        ps->twin->twin = ps;
    }
    while (in.at < in.end) {
        const uint8_t command = take(&in);
        switch (command % 8) {
        case 0:
        case 1:
            if (n < OPS) {
                call(ps, &in, &requests[n]);
                n += requests[n] != NULL;
            }
            break;
        case 2:
            fake_late = !fake_late;
            break;
        case 3:
            if (fake_n > 0) {
                fake_done(command / 8 % fake_n, command < 200 ? DCOMM_OK : DCOMM_ERR_PEER);
            }
            break;
        case 4:
            comm->service->check(comm, dcommi_now() + (command < 200 ? 0.6 : 200));
            if (ps->twin != NULL) {
                comm->service->check(ps->twin->comm, dcommi_now() + (command < 200 ? 0.6 : 200));
            }
            break;
        case 5:
            if (command > 220) {
                dcommi_on_peer_lost(context, &fake_transport, command % (RANKS - 1), "gone",
                                    DCOMMI_LOSS_PROVEN);
            }
            break;
        default:
            deliver(ps, &in);
            break;
        }
        dcommi_progress(context);
        check_bounds(ps);
        if (ps->twin != NULL) {
            check_bounds(ps->twin);
        }
    }
    dcomm_ps *both[2] = {ps->twin, ps};
    for (int k = both[0] == NULL; k < 2; k++) {
        both[k]->comm->service->on_failed(both[k]->comm);
        both[k]->comm->service = NULL;
        both[k]->closed = true;
        ps->twin = NULL;
    }
    while (fake_n > 0) {
        fake_done(fake_n - 1, DCOMM_OK);
        dcommi_progress(context);
    }
    for (int i = 0; i < n; i++) {
        dcommi_drain(&requests[i]);
    }
    dcommi_progress(context);
    for (int k = both[0] == NULL; k < 2; k++) {
        dcomm_comm *own = both[k]->comm;
        if (fake_parcels != 0 || both[k]->refs != 1) {
            abort();
        }
        dcommi_ps_unref(both[k]);
        dcommi_comm_drop(own);
    }
    return 0;
}
