/* bare-perf.c - what is left of an all-reduce of two ranks in ordinary memory when a library is taken
 * away: payloads in shared memory, a counter each way, the sum. No headers, matching, checks, time
 * limits or failures; but the result is right, and of several orders of these this one was fastest.
 * Short inputs go to the other rank whole. Of long ones each rank sums one half: inputs come chunk
 * by chunk, sums go back as they are made, results are stored past the caches. */
#include "meet.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

enum { BARE_SHORT = 16384, BARE_CHUNK = 32768, BARE_SLOTS = 4, BARE_PAST = 65536 };
enum { BARE_LINE = 64 / sizeof(float) };

typedef struct bare_slot {
    _Alignas(64) _Atomic uint64_t turn; /* in the first line of the payload */
    float payload[BARE_SHORT / sizeof(float)];
} bare_slot;

typedef struct bare_rank {
    bare_slot whole[2];
    _Alignas(64) _Atomic uint64_t sent;   /* chunks of the other's half that have lain in `input` */
    _Alignas(64) _Atomic uint64_t summed; /* chunks of the own half that have lain in `sum` */
    _Alignas(64) _Atomic uint64_t taken;  /* chunks copied out of the other's `sum` */
    _Alignas(64) float input[BARE_SLOTS][BARE_CHUNK / sizeof(float)];
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

static void call_short(bare_rank *mine, bare_rank *theirs, const peer_case *c)
{
    bare_slot *put = &mine->whole[calls % 2], *got = &theirs->whole[calls % 2];
    calls++;
    memcpy(put->payload, c->input, c->bytes);
    tell(&put->turn, calls);
    meet_wait(&got->turn, calls);
    store(c->work, NULL, c->input, got->payload, c->count, false);
}

/* Elements of chunk k of a half that begins at `first` and has n. */
static size_t piece(size_t n, size_t k, size_t chunk)
{
    return k * chunk >= n ? 0 : n - k * chunk < chunk ? n - k * chunk : chunk;
}

static void call_long(bare_rank *mine, bare_rank *theirs, const peer_case *c)
{
    size_t half = c->count / 2 / BARE_LINE * BARE_LINE, longer = c->count - half;
    size_t first = me == 0 ? 0 : half, n = me == 0 ? half : longer;
    size_t other = me == 0 ? half : 0, others = c->count - n;
    size_t chunk = BARE_CHUNK / sizeof(float);
    while (chunk > 2 * BARE_LINE && chunk * 2 > longer) {
        chunk /= 2; /* at least two: one comes while the other goes back */
    }
    size_t count = (longer + chunk - 1) / chunk;
    bool past = c->bytes >= BARE_PAST;
    for (size_t k = 0; k < count + 2; k++) {
        if (k < count) { /* the slot is free: this chunk's fourth last was waited for below */
            store(mine->input[(chunks + k) % BARE_SLOTS], NULL, c->input + other + k * chunk, NULL,
                  piece(others, k, chunk), false);
            tell(&mine->sent, chunks + k + 1);
        }
        if (k >= 1 && k < count + 1) {
            uint64_t now = chunks + k - 1;
            meet_wait(&theirs->sent, now + 1);
            meet_wait(&theirs->taken, now >= BARE_SLOTS ? now - BARE_SLOTS + 1 : 0);
            const float *in = c->input + first + (k - 1) * chunk;
            store(c->work + first + (k - 1) * chunk, mine->sum[now % BARE_SLOTS], in,
                  theirs->input[now % BARE_SLOTS], piece(n, k - 1, chunk), past);
            tell(&mine->summed, now + 1);
        }
        if (k >= 2) {
            uint64_t now = chunks + k - 2;
            meet_wait(&theirs->summed, now + 1);
            store(c->work + other + (k - 2) * chunk, NULL, theirs->sum[now % BARE_SLOTS], NULL,
                  piece(others, k - 2, chunk), past);
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
    bare_rank *both = (bare_rank *)(void *)meet_shared;
    (c->bytes <= BARE_SHORT ? call_short : call_long)(&both[me], &both[1 - me], c);
}

int main(int argc, char **argv)
{
    return meet_main("bare", 2, 2, 2 * sizeof(bare_rank), argc, argv);
}
