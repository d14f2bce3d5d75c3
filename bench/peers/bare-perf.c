/* bare-perf.c - what is left of an all-reduce in ordinary memory when a library is taken away:
 * payloads in shared memory, counters, the sum. No headers, matching, checks, time limits or
 * failures; but the result is right, and of several orders of these this one was fastest.
 * Short inputs are put where all ranks read them whole. Of long ones each rank sums one part:
 * inputs come chunk by chunk, sums go back as they are made, results are stored past the caches. */
#include "meet.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

enum { BARE_RANKS = 8, BARE_SHORT = 16384, BARE_CHUNK = 32768, BARE_SLOTS = 4, BARE_PAST = 65536 };
enum { BARE_LINE = 64 / sizeof(float) };

typedef struct bare_slot {
    _Alignas(64) _Atomic uint64_t turn; /* in the first line of the payload */
    float payload[BARE_SHORT / sizeof(float)];
} bare_slot;

typedef struct bare_rank {
    bare_slot whole[2];
    _Alignas(64) _Atomic uint64_t sent;   /* chunks of each part that have lain in `input` */
    _Alignas(64) _Atomic uint64_t summed; /* chunks of the own part that have lain in `sum` */
    _Alignas(64) _Atomic uint64_t taken;  /* chunks copied out of each other's `sum` */
    _Alignas(
        64) float input[BARE_SLOTS][BARE_RANKS][BARE_CHUNK / sizeof(float)]; /* for each rank */
    _Alignas(64) float sum[BARE_SLOTS][BARE_CHUNK / sizeof(float)];
} bare_rank;

static uint64_t calls;  /* short ones */
static uint64_t chunks; /* of long calls that are over */

static void peer_library_name(char *name, size_t len)
{
    snprintf(name, len, "bare");
}

static bool peer_can(peer_op op, bool in_place)
{
    return op == PEER_ALLREDUCE && !in_place;
}

static void tell(_Atomic uint64_t *counter, uint64_t now)
{
    atomic_store_explicit(counter, now, memory_order_release);
}

/* dst <- a + b, or a where b is NULL; to `also` too unless that is NULL. Whole lines go past the
 * caches where asked. */
static void store(float *dst, float *also, const float *a, const float *b, size_t n, bool past)
{
    size_t i = 0;
#if defined(__AVX512F__)
    for (; past && i + BARE_LINE <= n; i += BARE_LINE) {
        __m512 x = _mm512_loadu_ps(a + i);
        x = b != NULL ? _mm512_add_ps(x, _mm512_loadu_ps(b + i)) : x;
        if (also != NULL) {
            _mm512_storeu_ps(also + i, x);
        }
        _mm512_stream_ps(dst + i, x);
    }
#elif defined(__SSE2__)
    for (; past && i + BARE_LINE <= n; i += BARE_LINE) {
        for (size_t k = i; k < i + BARE_LINE; k += 4) {
            __m128 x = _mm_loadu_ps(a + k);
            x = b != NULL ? _mm_add_ps(x, _mm_loadu_ps(b + k)) : x;
            if (also != NULL) {
                _mm_storeu_ps(also + k, x);
            }
            _mm_stream_ps(dst + k, x);
        }
    }
#else
    (void)past;
#endif
    if (b == NULL) {
        memcpy(dst + i, a + i, (n - i) * sizeof *dst);
        return;
    }
    for (; i < n; i++) {
        dst[i] = a[i] + b[i];
        if (also != NULL) {
            also[i] = dst[i];
        }
    }
}

/* A slot is free again when all ranks have begun the call after its own. */
static void call_short(bare_rank *ranks, const peer_case *c)
{
    bare_slot *put = &ranks[me].whole[calls % 2];
    calls++;
    memcpy(put->payload, c->input, c->bytes);
    tell(&put->turn, calls);
    const float *sum = c->input;
    for (int r = 0; r < all; r++) {
        bare_slot *got = &ranks[r].whole[(calls - 1) % 2];
        if (r != me) {
            meet_wait(&got->turn, calls);
            store(c->work, NULL, sum, got->payload, c->count, false);
            sum = c->work;
        }
    }
}

/* The rank that is `distance` behind this one: ranks begin with different ones. */
static int other(int distance)
{
    return (me + distance) % all;
}

/* A chunk of a rank's part: its first element, and the number of its elements. */
typedef struct bare_piece {
    size_t at, n;
} bare_piece;

static bare_piece piece(const peer_case *c, int rank, size_t k, size_t chunk)
{
    size_t part = c->count / (size_t)all / BARE_LINE * BARE_LINE, first = (size_t)rank * part;
    size_t end = rank == all - 1 ? c->count : first + part, at = first + k * chunk;
    return at >= end ? (bare_piece){end, 0} : (bare_piece){at, end - at < chunk ? end - at : chunk};
}

static void call_long(bare_rank *ranks, const peer_case *c)
{
    bare_rank *mine = &ranks[me];
    size_t longest = piece(c, all - 1, 0, c->count).n, chunk = BARE_CHUNK / sizeof(float);
    while (chunk > 2 * BARE_LINE && chunk * 2 > longest) {
        chunk /= 2; /* at least two: one comes while the other goes back */
    }
    size_t count = (longest + chunk - 1) / chunk;
    bool past = c->bytes >= BARE_PAST;
    for (size_t k = 0; k < count + 2; k++) {
        if (k < count) { /* the slot is free: this chunk's fourth last was waited for below */
            for (int d = 1; d < all; d++) {
                bare_piece p = piece(c, other(d), k, chunk);
                store(mine->input[(chunks + k) % BARE_SLOTS][other(d)], NULL, c->input + p.at, NULL,
                      p.n, false);
            }
            tell(&mine->sent, chunks + k + 1);
        }
        if (k >= 1 && k < count + 1) {
            uint64_t now = chunks + k - 1;
            bare_piece p = piece(c, me, k - 1, chunk);
            const float *in = c->input + p.at;
            float *sum = mine->sum[now % BARE_SLOTS];
            for (int d = 1; d < all; d++) {
                meet_wait(&ranks[other(d)].taken, now >= BARE_SLOTS ? now - BARE_SLOTS + 1 : 0);
            }
            for (int d = 1; d < all; d++) {
                bare_rank *theirs = &ranks[other(d)];
                bool last = d == all - 1;
                meet_wait(&theirs->sent, now + 1);
                store(last ? c->work + p.at : sum, last ? sum : NULL, d == 1 ? in : sum,
                      theirs->input[now % BARE_SLOTS][me], p.n, last && past);
            }
            tell(&mine->summed, now + 1);
        }
        if (k >= 2) {
            uint64_t now = chunks + k - 2;
            for (int d = 1; d < all; d++) {
                bare_rank *theirs = &ranks[other(d)];
                bare_piece p = piece(c, other(d), k - 2, chunk);
                meet_wait(&theirs->summed, now + 1);
                store(c->work + p.at, NULL, theirs->sum[now % BARE_SLOTS], NULL, p.n, past);
            }
            tell(&mine->taken, now + 1);
        }
    }
    chunks += count;
#if defined(__SSE2__)
    _mm_sfence();
#endif
}

static void peer_call(const peer_case *c)
{
    bare_rank *ranks = (bare_rank *)(void *)meet_shared;
    (c->bytes <= BARE_SHORT ? call_short : call_long)(ranks, c);
}

int main(int argc, char **argv)
{
    return meet_main("bare", 2, BARE_RANKS, BARE_RANKS * sizeof(bare_rank), argc, argv);
}
