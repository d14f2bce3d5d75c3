/* fuzz_message.c - any messages to an engine: rank 0 of four on a fake transport, with operations
 * under way. Nothing may crash, leak or complete twice, whatever arrives in whatever order. */
#define _GNU_SOURCE
#pragma GCC diagnostic ignored "-Wunused-function"
#define DCOMM_IMPLEMENTATION
#include "dcomm/all.h"
#include "fake_transport.h"
#include "input.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { RANKS = 4, OPS = 12, COUNT = 2500 };

/* ---- a communicator on it ---- */

static dcomm_comm *make_comm(void)
{
    dcomm_comm *comm = fake_comm(RANKS);
    for (int i = 0; i < RANKS - 1; i++) {
        dcommi_remote *p = &comm->context->peers[i];
        p->pid = i == 1 ? getpid() : 999999999;
        p->started = 1;
        p->same_host = i != 2;
        p->unreadable = i == 0;
    }
    if (dcommi_agreements_open(comm) < 0) {
        abort();
    }
    dcommi_comm_enter(comm);
    return comm;
}

/* ---- input ---- */

static uint64_t take_wide(input *in)
{
    uint64_t v = take(in);
    return v < 0xc0 ? v : v < 0xe0 ? v << 8 | take(in) : v < 0xf8 ? v << 56 | take(in) : ~(v << 3);
}

static float ordinary[RANKS * COUNT];
static float *source = ordinary; /* or registered memory of as much */

static void start(dcomm_comm *comm, unsigned what, dcomm_request **request)
{
    static float receive[OPS][RANKS * COUNT];
    static int n;
    static const char *const algos[] = {
        "ring",     "tree", "one_shot",           "two_shot",
        "binomial", "star", "recursive_doubling", "halving_doubling"};
    float *out = receive[n++ % OPS];
    static const char *const alltoalls[] = {"linear", "pairwise", "bruck", "staged"};
    size_t count = what & 1 ? COUNT : 60;
    dcomm_coll_opts opts = {
        .algo = algos[what / 2 % 8], .chunk_bytes = what & 16 ? 4096 : 0, .premul = 2};
    dcomm_status status;
    switch (what / 32) {
    case 0:
    case 1:
    case 2:
        status = dcomm_iallreduce(comm, source, out, count, DCOMM_F32, DCOMM_SUM, &opts, request);
        break;
    case 3:
        status =
            dcomm_iallreduce(comm, source, out, count, DCOMM_F32, DCOMM_PREMUL_SUM, &opts, request);
        break;
    case 4:
        opts = (dcomm_coll_opts){.algo = alltoalls[what / 2 % 4]}; /* a choice takes longer */
        status = dcomm_ialltoall(comm, source, out, count, DCOMM_F32, &opts, request);
        break;
    case 5:
        status = dcomm_irecv(comm, out, count, DCOMM_F32, 1 + (int)(what / 2 % 3), NULL, request);
        break;
    case 6:
        status =
            dcomm_isend(comm, source, count, DCOMM_F32, 1 + (int)(what / 2 % 3), NULL, request);
        break;
    default:
        opts = (dcomm_coll_opts){.algo = what & 2 ? "direct" : "dissemination"};
        status = dcomm_ibarrier(comm, &opts, request);
        break;
    }
    if (status < 0) {
        *request = NULL;
    }
}

enum { STAYS = 32, LONG = 96 };

/* Deliver the message. how & LONG == LONG: its payload is still at the sender; how & STAYS: the
 * receiver may keep it. */
static void arrive(dcomm_comm *comm, const dcommi_header *h, size_t header_len, const void *data,
                   size_t len, int how)
{
    parcel *p = malloc(sizeof *p);
    *p = (parcel){.is_long = (how & LONG) == LONG && len > 0, .len = len, .data = malloc(len + 1)};
    if (data != NULL) {
        memcpy(p->data, data, len);
    } else {
        memset(p->data, 0x41 + (how & 15), len);
    }
    bool can_stay = how & STAYS || p->is_long;
    fake_parcels++;
    dcommi_arrival arrival = {.peer = -1,
                              .header = h,
                              .header_len = header_len,
                              .data = p->is_long ? NULL : p->data,
                              .len = len,
                              .desc = can_stay ? p : NULL};
    dcommi_verdict verdict = dcommi_on_message(comm->context, &fake_transport, &arrival);
    if (verdict == DCOMMI_CONSUMED) {
        if (p->is_long) {
            abort(); /* must be fetched or released */
        }
        fake_release(&fake_transport, p);
    } else if (!can_stay) {
        abort();
    }
}

static uint32_t signature_of(dcomm_comm *comm, uint64_t seq, uint8_t stream)
{
    for (dcommi_run *run = comm->runs; run != NULL; run = run->next) {
        if (run->seq == seq && run->stream == stream) {
            return run->signature.hash;
        }
    }
    return 0;
}

/* Deliver a message of plausible fields or of raw bytes. */
static void deliver(dcomm_comm *comm, input *in)
{
    uint8_t kind = take(in);
    dcommi_header h = {0};
    if (kind & 128) {
        for (size_t i = 0; i < sizeof h; i++) {
            ((uint8_t *)&h)[i] = take(in);
        }
    } else {
        h.type = take(in) % (DCOMMI_MSG_TYPE_END + 1);
        h.stream = kind & 1;
        h.src = 1 + take(in) % RANKS;
        h.comm = kind & 2 ? take(in) : comm->id;
        h.seq = take_wide(in);
        h.tag = (uint32_t)take_wide(in);
        h.slot = take(in);
        h.stage = kind & 4 ? take(in) : 0;
        h.done = (uint32_t)take_wide(in);
        h.signature = kind & 8 ? 1 : signature_of(comm, h.seq, h.stream);
    }
    h.a = take_wide(in);
    h.b = take_wide(in);
    size_t len = kind & 16 ? take(in) * 2u : 0;
    if (h.type == DCOMMI_MSG_DATA || h.type == DCOMMI_MSG_READ_REPLY) {
        h.a = len;
    }
    arrive(comm, &h, kind == 77 ? take(in) % sizeof h : sizeof h, NULL, len, kind);
}

/* Take part in an agreement, or deliver one of its messages. */
static void agreement(dcomm_comm *comm, input *in)
{
    const uint8_t how = take(in), number = take(in), spoil = take(in);
    dcommi_agreement *g = dcommi_agreement_find(comm, how & 1 ? 1 : 2);
    const dcommi_agree_link link = dcommi_agreement_link(g);
    if (how & 2) {
        dcommi_agree_join(g->agree, &link, take_wide(in));
        return;
    }
    dcommi_header h = {.type = DCOMMI_MSG_AGREE,
                       .stage = how >> 2 & 1,
                       .slot = 1 + (how >> 3) % (DCOMMI_AGREE_END + 1),
                       .signature = (uint32_t)take(in) % 8 - 1,
                       .src = 1 + number % (RANKS - 1),
                       .comm = comm->id,
                       .seq = g->agree->number + number / 4 % 4 - 1,
                       .tag = take(in) % (RANKS + 1),
                       .a = take_wide(in),
                       .b = spoil == 1 ? 3 : g->key};
    uint64_t letter[4];
    for (int i = 0; i < 4; i++) {
        letter[i] = spoil == 2 ? take_wide(in) : take(in) % (1 << RANKS);
    }
    arrive(comm, &h, sizeof h, letter, spoil == 3 ? take(in) % sizeof letter : sizeof letter, 0);
}

/* Deliver the message that a pending operation waits for, changed as `spoil` says. */
static void answer(dcomm_comm *comm, input *in)
{
    uint8_t which = take(in), how = take(in), spoil = take(in), other = take(in);
    dcommi_match_node *node = NULL, *any = NULL;
    int n = 0;
    for (int i = 0; i < DCOMMI_BUCKETS && node == NULL; i++) {
        for (dcommi_match_node *at = comm->table[i]; at != NULL && node == NULL; at = at->next) {
            if (at->cls <= DCOMMI_NODE_PULL) {
                any = at;
                node = n++ == which % 16 ? at : NULL;
            }
        }
    }
    node = node != NULL ? node : any;
    dcommi_header h = {.comm = comm->id};
    size_t len = 0;
    if (node != NULL && how & 1) {
        dcommi_move *move = (dcommi_move *)((char *)node - offsetof(dcommi_move, node));
        static const uint8_t types[][2] = {
            [DCOMMI_NODE_POSTED] = {DCOMMI_MSG_DATA, DCOMMI_MSG_RTS},
            [DCOMMI_NODE_SENT] = {DCOMMI_MSG_FIN, DCOMMI_MSG_PULL},
            [DCOMMI_NODE_PULL] = {DCOMMI_MSG_READ_REPLY, DCOMMI_MSG_READ_REPLY}};
        h.type = types[node->cls][how >> 1 & 1];
        h.slot = h.type == DCOMMI_MSG_RTS && how & 8 ? 1 : 0; /* its region */
        h.stream = node->stream;
        h.src = (uint32_t)node->peer;
        h.seq = node->seq;
        h.tag = node->tag;
        h.stage = node->stage;
        if (h.type == DCOMMI_MSG_DATA || h.type == DCOMMI_MSG_READ_REPLY) {
            h.a = len = move->len;
        } else {
            h.a = how & 4 ? (uint64_t)(uintptr_t)move : other;
            h.b = move->len;
        }
    } else {
        dcommi_run *run = comm->runs;
        if (run == NULL) {
            return;
        }
        static const uint8_t types[] = {DCOMMI_MSG_EXPOSE, DCOMMI_MSG_SIGNAL, DCOMMI_MSG_READ,
                                        DCOMMI_MSG_QUERY};
        h.type = types[how >> 1 & 3];
        h.stream = run->stream;
        h.src = 1 + which % (RANKS - 1);
        h.seq = run->seq;
        h.stage = run->stage;
        h.slot = which / 4 % 8;
        h.tag = other;
        h.a = h.type == DCOMMI_MSG_SIGNAL ? 1 : h.type == DCOMMI_MSG_READ ? other : 64;
        h.b = h.type == DCOMMI_MSG_READ ? spoil * 16u : COUNT * sizeof(float);
    }
    h.signature = signature_of(comm, h.seq, h.stream);
    switch (spoil) {
    case 1:
        h.signature++;
        break;
    case 2:
        h.a++;
        break;
    case 3:
        h.b = take_wide(in);
        break;
    case 4:
        len = len > other ? len - other : other;
        h.a = len;
        break;
    case 5:
        h.src = other;
        break;
    case 6:
        h.seq += other;
        break;
    case 7:
        h.tag ^= other;
        break;
    case 8:
        h.stage += other;
        break;
    default:
        break;
    }
    arrive(comm, &h, sizeof h, NULL, len, how);
}

/* ---- device memory, without a device ---- */

static dcommi_device fake_device;
static uint8_t fake_memory[4096];

/* Make memory that peers may open. It has no key, and is never freed. */
static dcommi_shared *make_shared(dcomm_context *context)
{
    dcommi_shared *shared = dcommi_alloc(sizeof *shared);
    shared->base = fake_memory;
    shared->len = sizeof fake_memory;
    shared->key.place = 1;
    shared->stuck = true;
    atomic_store(&shared->holds, 1);
    pthread_mutex_lock(&dcommi_mem_lock);
    if (dcommi_shared_add(shared, context) < 0) {
        abort();
    }
    pthread_mutex_unlock(&dcommi_mem_lock);
    return shared;
}

static void drop_shared(dcommi_shared **shared_p)
{
    dcommi_shared *shared = *shared_p;
    *shared_p = NULL;
    if (shared != NULL) {
        dcommi_shared_remove(shared->regions);
        dcommi_shared_drop(shared);
    }
}

/* Do what a calling thread would do: open known mappings as if by a device, and close those that
 * are due. */
static void serve(dcomm_context *context, bool in_use)
{
    for (int i = 0; context->regions != NULL && i < DCOMMI_REGION_BUCKETS; i++) {
        for (dcommi_map *map = context->regions->maps[i]; map != NULL; map = map->next) {
            if (map->on_device && map->state == DCOMMI_MAP_KNOWN) {
                if (map->len == 0 || map->len > DCOMMI_REGION_LEN_MAX ||
                    map->base + map->len < map->base) {
                    abort();
                }
                map->state = DCOMMI_MAP_OPEN;
                map->borrowed = true;
                map->device = &fake_device;
                map->local = fake_memory;
                map->used = fake_device.side[DCOMMI_QUEUE_IN].started + in_use;
            }
        }
    }
    fake_device.side[DCOMMI_QUEUE_IN].started += in_use;
    fake_device.side[DCOMMI_QUEUE_IN].ended +=
        !in_use &&
        fake_device.side[DCOMMI_QUEUE_IN].ended < fake_device.side[DCOMMI_QUEUE_IN].started;
    dcommi_memory_serve(context, NULL);
}

/* Ask for a region of a device, or look it up, wherever the run's memory lies. */
static void resolve(dcomm_comm *comm, input *in)
{
    dcommi_run run = {.comm = comm, .device = &fake_device};
    uint32_t region = take(in) % 8;
    uint64_t address = take_wide(in), len = take_wide(in);
    const uint8_t *at =
        dcommi_resolve_peer_device(&run, 1 + take(in) % (RANKS - 1), region, address, len);
    uint64_t offset = (uint64_t)((uintptr_t)at - (uintptr_t)fake_memory);
    if (at != NULL &&
        (region == 0 || offset + len < offset || offset + len > DCOMMI_REGION_LEN_MAX)) {
        abort();
    }
}

/* Answer question number `which` for a region, changed as `spoil` says. */
static void answer_region(dcomm_comm *comm, input *in)
{
    uint8_t which = take(in), spoil = take(in), other = take(in);
    bool device = which & 8;
    const dcommi_map *map = NULL;
    which %= 8;
    for (int i = 0; comm->context->regions != NULL && i < DCOMMI_REGION_BUCKETS; i++) {
        for (const dcommi_map *at = comm->context->regions->maps[i]; at != NULL; at = at->next) {
            if (map == NULL || which-- > 0) {
                map = at;
            }
        }
    }
    dcommi_header h = {.comm = comm->id,
                       .type = other & 64 ? DCOMMI_MSG_REGION_GONE : DCOMMI_MSG_REGION,
                       .src = map != NULL ? (uint32_t)map->peer + 1 : 1,
                       .tag = map != NULL ? map->id : other,
                       .a = device};
    dcommi_region_card card = {.len = (uint64_t)(1 + other % 16) * 4096};
    fake_pages = 1 + other % 16;
    switch (spoil) {
    case 1:
        card.base = take_wide(in);
        break;
    case 2:
        card.len = take_wide(in);
        break;
    case 3:
        fake_pages = take(in);
        break;
    case 5:
        h.tag = take(in);
        break;
    case 6:
        h.src = take(in);
        break;
    case 8:
        h.a = take_wide(in);
        break;
    default:
        break;
    }
    uint8_t payload[sizeof card + sizeof(dcommi_device_key)] = {0};
    size_t whole = sizeof card + (device ? sizeof(dcommi_device_key) : 0);
    memcpy(payload, &card, sizeof card);
    size_t len = h.type == DCOMMI_MSG_REGION_GONE ? 0 : spoil == 7 ? other : whole;
    arrive(comm, &h, sizeof h, payload, len < sizeof payload ? len : sizeof payload, spoil);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    input in = {data, data + size};
    dcomm_request *requests[OPS] = {0};
    int n = 0;
    dcomm_comm *comm = make_comm();
    dcomm_context *context = comm->context;
    setenv("DCOMM_LOG", "error", 1);
    fake_late = false;
    void *registered = NULL;
    bool wanted =
        take(&in) % 4 == 3 && dcomm_mem_alloc(context, sizeof ordinary, &registered) == DCOMM_OK;
    source = wanted ? registered : ordinary;
    dcommi_shared *shared = make_shared(context);
    start(comm, take(&in), &requests[n++]);
    while (in.at < in.end) {
        uint8_t command = take(&in);
        switch (command % 16) {
        case 0:
            if (n < OPS) {
                start(comm, take(&in), &requests[n++]);
            }
            break;
        case 1:
            fake_late = !fake_late;
            break;
        case 2:
        case 3:
            if (fake_n > 0) {
                fake_done(command / 16 % fake_n,
                          command % 16 == 2 || command < 200 ? DCOMM_OK : DCOMM_ERR_PEER);
            }
            break;
        case 4:
            dcommi_comm_check(comm, dcommi_now() + (command < 230 ? 0.3 : 200));
            break;
        case 5:
            if (command < 64) {
                serve(context, command < 32);
            } else if (command < 128) {
                resolve(comm, &in);
            } else if (command < 144) {
                drop_shared(&shared);
            } else if (command > 220) {
                dcommi_on_peer_lost(context, &fake_transport, command % (RANKS - 1), "gone",
                                    DCOMMI_LOSS_PROVEN);
            }
            break;
        case 6:
        case 7:
        case 8:
            deliver(comm, &in);
            break;
        case 9:
            answer_region(comm, &in);
            break;
        case 10:
            agreement(comm, &in);
            break;
        default:
            answer(comm, &in);
            break;
        }
        dcommi_progress(context);
        if (comm->early_count > size || comm->early_bytes > size * 24000) {
            abort();
        }
    }
    fake_late = false;
    while (fake_n > 0) {
        fake_done(fake_n - 1, DCOMM_OK);
        dcommi_progress(context);
    }
    for (int r = 0; r < RANKS; r++) {
        comm->members[r].gone = true;
    }
    /* The others have left: all that is under way fails now, not after real seconds. */
    for (int looks = 0; looks < 4 && comm->runs != NULL; looks++) {
        dcommi_comm_check(comm, dcommi_now() + 300 + 5 * looks);
    }
    fake_device.side[DCOMMI_QUEUE_IN].ended = fake_device.side[DCOMMI_QUEUE_IN].started;
    if (size % 2 == 0) { /* before or after the communicator's end */
        drop_shared(&shared);
    }
    dcomm_comm_destroy(&comm);
    drop_shared(&shared);
    dcomm_mem_free(&registered);
    for (int i = 0; i < n; i++) {
        dcommi_drain(&requests[i]);
    }
    if (fake_n != 0 || fake_parcels != 0) {
        abort();
    }
    return 0;
}
