/* doubling.h - exchanges over doubling or halving distances, in ceil(log2 N) steps.
 *
 * recursive_doubling (all-reduce): in step k each rank exchanges its whole partial sum with the
 * rank whose number differs in bit k; log2 N steps of S bytes. For other rank counts, the first
 * 2(N-2^k) ranks pair up: one rank of each pair folds for both and sends the result back, which
 * takes two more steps. Thakur et al. 2005.
 * halving_doubling: Rabenseifner, "Optimization of collective reduction operations", ICCS 2004: a
 * reduce-scatter that halves the exchanged bytes in each step, then an all-gather that doubles
 * them; 2 ceil(log2 N) steps, 2(N-1)/N S per rank.
 * If N is no power of two, reduce-scatter and all-gather use the circulant graph with distances
 * ceil(N/2), ceil(N/4), ... 1: Traeff, "Optimal, non-pipelined reduce-scatter and allreduce
 * algorithms", 2024; its all-gather is that of Bruck et al., IEEE TPDS 8 (1997). A rank then sends
 * as many bytes as for powers of two, and no extra step is needed. */
#ifndef DCOMMI_ALGO_DOUBLING_H
#define DCOMMI_ALGO_DOUBLING_H

#include "parts.h"

static bool dcommi_is_power_of_two(int64_t n)
{
    return (n & (n - 1)) == 0;
}

/* A run of bytes that does not depend on loops. */
typedef struct dcommi_range {
    dcomm_space space;
    int64_t offset, length;
} dcommi_range;

static dcomm_operand dcommi_range_chunk(dcommi_range r, int64_t chunk, int depth)
{
    return dcommi_span_chunk(r.space, r.offset, r.length, chunk, depth);
}

/* The common state of the exchanges of one plan. */
typedef struct dcommi_exchange {
    const dcommi_shape *s;
    dcomm_builder *b;
    int64_t chunk, stage; /* bytes of a chunk; scratch for a chunk that is folded */
    int64_t tags;         /* tags of one message: one for each chunk */
    int64_t tag;          /* the next free tag; all ranks count alike */
} dcommi_exchange;

/* Prepare `messages` exchanges of at most `longest` bytes each. grain: default bytes of a chunk.
 * folds: reserve scratch to fold from. */
static dcommi_exchange dcommi_exchange_make(const dcommi_shape *s, dcomm_builder *b,
                                            int64_t longest, int64_t grain, int64_t messages,
                                            bool folds)
{
    dcommi_exchange x = {.s = s, .b = b};
    x.chunk = dcommi_chunk_for(s, longest, grain);
    x.tags = dcommi_chunks_of(longest, x.chunk);
    x.tag = dcomm_build_tags(b, x.tags * messages);
    x.stage = folds ? dcomm_build_scratch(b, x.chunk) : 0;
    return x;
}

static void dcommi_exchange_send(dcommi_exchange *x, dcommi_range from, int64_t peer, int64_t tag)
{
    int64_t chunks = dcommi_chunks_of(from.length, x->chunk);
    int c = dcomm_build_loop(x->b, 0, dcomm_const(chunks));
    dcomm_build_send(x->b, 0, dcommi_range_chunk(from, x->chunk, c), dcomm_const(peer),
                     dcomm_linear(tag, c, 1), DCOMM_STEP_ASYNC);
    dcomm_build_end(x->b, 0);
}

static void dcommi_exchange_recv(dcommi_exchange *x, dcommi_range into, int64_t peer, int64_t tag)
{
    int64_t chunks = dcommi_chunks_of(into.length, x->chunk);
    int c = dcomm_build_loop(x->b, 0, dcomm_const(chunks));
    dcomm_build_recv(x->b, 0, dcommi_range_chunk(into, x->chunk, c), dcomm_const(peer),
                     dcomm_linear(tag, c, 1), DCOMM_STEP_ASYNC);
    dcomm_build_end(x->b, 0);
}

/* Build into <- fold(own, message), or fold(message, own) if message_first. */
static void dcommi_exchange_fold(dcommi_exchange *x, dcommi_range into, dcommi_range own,
                                 bool message_first, int64_t peer, int64_t tag, unsigned flags)
{
    int64_t chunks = dcommi_chunks_of(into.length, x->chunk);
    int c = dcomm_build_loop(x->b, 0, dcomm_const(chunks));
    dcomm_operand mine = dcommi_range_chunk(own, x->chunk, c);
    dcomm_build_recv_reduce(x->b, 0, dcommi_range_chunk(into, x->chunk, c),
                            message_first ? dcomm_msg() : mine, message_first ? mine : dcomm_msg(),
                            dcomm_span(DCOMM_SPACE_SCRATCH, x->stage, x->chunk), dcomm_const(peer),
                            dcomm_linear(tag, c, 1), flags);
    dcomm_build_end(x->b, 0);
}

/* ---- recursive doubling ---- */

/* Build recursive doubling. Each step reads one buffer and writes another, because data under way
 * must not change. The two buffers alternate so that the last step writes to OUT. Both partners
 * fold the lower one's part first, so that their results are equal bit by bit. */
static dcomm_status dcommi_doubling_allreduce(const dcommi_shape *s, dcomm_builder *b)
{
    int64_t n = s->nranks, bytes = dcommi_shape_bytes(s, s->count), power = 1;
    int steps = 0;
    while (2 * power <= n) {
        power *= 2;
        steps++;
    }
    int64_t paired = 2 * (n - power), rank = s->rank;
    dcommi_exchange x = dcommi_exchange_make(s, b, bytes, dcommi_chunk_default(s), steps + 2, true);
    dcommi_range out = {DCOMM_SPACE_OUT, 0, bytes};
    dcommi_range input = {dcommi_input_of(s, 0).space, 0, bytes};
    int64_t back = x.tag + (steps + 1) * x.tags;
    if (rank < paired && rank % 2 == 0) {
        dcommi_exchange_send(&x, input, rank + 1, x.tag);
        dcomm_build_fence(b, 0);
        dcommi_exchange_recv(&x, out, rank + 1, back);
        dcomm_build_fence(b, 0);
        return b->status;
    }
    bool turns = steps > 1 || paired > 0 || s->in_place;
    dcommi_range scratch = {DCOMM_SPACE_SCRATCH, turns ? dcomm_build_scratch(b, bytes) : 0, bytes};
    dcommi_range current = input;
    if (rank < paired) {
        current = steps % 2 == 0 ? out : scratch;
        dcommi_exchange_fold(&x, current, input, true, rank - 1, x.tag, 0);
    } else if (s->in_place && steps % 2 == 1) {
        current = scratch;
        dcomm_build_copy(b, 0, dcomm_span(current.space, current.offset, bytes),
                         dcomm_span(input.space, input.offset, bytes), 0);
    }
    int64_t number = rank < paired ? rank / 2 : rank - paired / 2;
    for (int k = 0; k < steps; k++) {
        int64_t other = number ^ ((int64_t)1 << k);
        int64_t peer = other < paired / 2 ? 2 * other + 1 : other + paired / 2;
        int64_t tag = x.tag + (k + 1) * x.tags;
        dcommi_range next = (steps - k - 1) % 2 == 0 ? out : scratch;
        dcommi_exchange_send(&x, current, peer, tag);
        dcommi_exchange_fold(&x, next, current, other < number, peer, tag,
                             k == steps - 1 ? DCOMM_STEP_FINAL : 0);
        dcomm_build_fence(b, 0);
        current = next;
    }
    if (rank < paired) {
        dcommi_exchange_send(&x, out, rank - 1, back);
        dcomm_build_fence(b, 0);
    }
    return b->status;
}

/* ---- recursive halving and its reverse ---- */

/* A packed buffer, cut into one block per rank. */
typedef struct dcommi_cut {
    const dcommi_shape *s;
    bool listed;
    int64_t stride, total;
} dcommi_cut;

/* Return the byte at which block i begins; i == n: the end of the last block. */
static int64_t dcommi_cut_at(const dcommi_cut *cut, int64_t i)
{
    if (!cut->listed) {
        return dcommi_min64(i * cut->stride, cut->total);
    }
    int64_t sum = 0;
    for (int64_t k = 0; k < i; k++) {
        sum += dcommi_shape_bytes(cut->s, cut->s->counts[k]);
    }
    return sum;
}

static dcommi_cut dcommi_cut_make(const dcommi_shape *s)
{
    dcommi_cut cut = {.s = s};
    if (s->coll == DCOMM_COLL_ALLREDUCE) {
        cut.total = dcommi_shape_bytes(s, s->count);
        cut.stride =
            dcommi_partition_make(cut.total, s->nranks, 0, (int64_t)dcomm_dtype_size(s->dtype))
                .block;
    } else if (s->coll == DCOMM_COLL_ALLGATHERV || s->coll == DCOMM_COLL_REDUCE_SCATTERV) {
        cut.listed = true;
        cut.total = dcommi_cut_at(&cut, s->nranks);
    } else {
        cut.stride = dcommi_shape_bytes(s, s->count);
        cut.total = cut.stride * s->nranks;
    }
    return cut;
}

/* The place of partial or complete blocks: from `offset` on as in the packed buffer or, if
 * `rotated`, with this rank's own block first. If a space has only some blocks, offset may be
 * negative. */
typedef struct dcommi_place {
    dcomm_space space;
    int64_t offset;
    bool rotated;
} dcommi_place;

/* Return blocks first .. first+count-1, which must not wrap around. */
static dcommi_range dcommi_cut_range(const dcommi_cut *cut, dcommi_place place, int64_t first,
                                     int64_t count)
{
    int64_t at = dcommi_cut_at(cut, first), rank = cut->s->rank;
    dcommi_range r = {place.space, place.offset + at, dcommi_cut_at(cut, first + count) - at};
    if (place.rotated) {
        int64_t own = dcommi_cut_at(cut, rank);
        r.offset += first >= rank ? -own : cut->total - own;
    }
    return r;
}

/* Build the reduce-scatter of 2^k ranks. Partial sums lie in `work` between the steps; the last
 * step writes to `result`. */
static void dcommi_halving_xor(dcommi_exchange *x, const dcommi_cut *cut, dcommi_place input,
                               dcommi_place work, dcommi_place result)
{
    int64_t rank = x->s->rank;
    for (int64_t d = x->s->nranks / 2; d >= 1; d /= 2) {
        int64_t keep = rank & ~(d - 1), give = keep ^ d, peer = rank ^ d;
        dcommi_exchange_send(x, dcommi_cut_range(cut, input, give, d), peer, x->tag);
        dcommi_exchange_fold(x, dcommi_cut_range(cut, d == 1 ? result : work, keep, d),
                             dcommi_cut_range(cut, input, keep, d), false, peer, x->tag,
                             d == 1 ? DCOMM_STEP_FINAL : 0);
        dcomm_build_fence(x->b, 0);
        x->tag += x->tags;
        input = work;
    }
}

/* Build the all-gather of 2^k ranks, in place in `work`. */
static void dcommi_doubling_xor(dcommi_exchange *x, const dcommi_cut *cut, dcommi_place work)
{
    int64_t rank = x->s->rank;
    for (int64_t d = 1; d < x->s->nranks; d *= 2) {
        int64_t have = rank & ~(d - 1), peer = rank ^ d;
        dcommi_exchange_send(x, dcommi_cut_range(cut, work, have, d), peer, x->tag);
        dcommi_exchange_recv(x, dcommi_cut_range(cut, work, have ^ d, d), peer, x->tag);
        dcomm_build_fence(x->b, 0);
        x->tag += x->tags;
    }
}

/* Return blocks rank+from .. rank+to-1 modulo N as one or two runs that do not wrap around. */
static int dcommi_circulant_runs(const dcommi_shape *s, int64_t from, int64_t to, int64_t first[2],
                                 int64_t count[2])
{
    int64_t n = s->nranks;
    first[0] = (s->rank + from) % n;
    count[0] = dcommi_min64(to - from, n - first[0]);
    first[1] = 0;
    count[1] = to - from - count[0];
    return count[1] > 0 ? 2 : 1;
}

/* Send blocks rank+from .. rank+to-1. Each run is one message; the receiver computes the same
 * runs.
 */
static void dcommi_circulant_send(dcommi_exchange *x, const dcommi_cut *cut, dcommi_place place,
                                  int64_t from, int64_t to, int64_t peer)
{
    int64_t first[2], count[2];
    int runs = dcommi_circulant_runs(x->s, from, to, first, count);
    for (int i = 0; i < runs; i++) {
        dcommi_exchange_send(x, dcommi_cut_range(cut, place, first[i], count[i]), peer,
                             x->tag + i * x->tags);
    }
}

/* Return the number of blocks that a rank holds before a step of the reduce-scatter on the
 * circulant graph. The distance of that step is (reach+1)/2. */
static int64_t dcommi_circulant_reach(int64_t n, int step)
{
    while (step-- > 0) {
        n = (n + 1) / 2;
    }
    return n;
}

static int dcommi_circulant_steps(int64_t n)
{
    int steps = 0;
    for (; n > 1; n = (n + 1) / 2) {
        steps++;
    }
    return steps;
}

static void dcommi_halving_circulant(dcommi_exchange *x, const dcommi_cut *cut, dcommi_place input,
                                     dcommi_place work, dcommi_place result)
{
    int64_t n = x->s->nranks, rank = x->s->rank, first[2], count[2];
    int steps = dcommi_circulant_steps(n);
    if (n % 2 == 1 && (input.space != work.space || input.offset != work.offset)) {
        /* The first step folds into the first n/2 blocks only. The second step sends one more
         * block from `work`: copy it there. */
        int64_t block = (rank + n / 2) % n;
        dcommi_range to = dcommi_cut_range(cut, work, block, 1);
        dcommi_range from = dcommi_cut_range(cut, input, block, 1);
        dcomm_build_copy(x->b, 0, dcomm_span(to.space, to.offset, to.length),
                         dcomm_span(from.space, from.offset, from.length), 0);
    }
    for (int k = 0; k < steps; k++) {
        int64_t reach = dcommi_circulant_reach(n, k), d = (reach + 1) / 2;
        bool last = k == steps - 1;
        dcommi_circulant_send(x, cut, input, d, reach, (rank + d) % n);
        int runs = dcommi_circulant_runs(x->s, 0, reach - d, first, count);
        for (int i = 0; i < runs; i++) {
            dcommi_exchange_fold(x, dcommi_cut_range(cut, last ? result : work, first[i], count[i]),
                                 dcommi_cut_range(cut, input, first[i], count[i]), false,
                                 (rank - d + n) % n, x->tag + i * x->tags,
                                 last ? DCOMM_STEP_FINAL : 0);
        }
        dcomm_build_fence(x->b, 0);
        x->tag += 2 * x->tags;
        input = work;
    }
}

static void dcommi_doubling_circulant(dcommi_exchange *x, const dcommi_cut *cut, dcommi_place work)
{
    int64_t n = x->s->nranks, rank = x->s->rank, first[2], count[2];
    for (int k = dcommi_circulant_steps(n) - 1; k >= 0; k--) {
        int64_t reach = dcommi_circulant_reach(n, k), d = (reach + 1) / 2;
        dcommi_circulant_send(x, cut, work, 0, reach - d, (rank - d + n) % n);
        int runs = dcommi_circulant_runs(x->s, d, reach, first, count);
        for (int i = 0; i < runs; i++) {
            dcommi_exchange_recv(x, dcommi_cut_range(cut, work, first[i], count[i]), (rank + d) % n,
                                 x->tag + i * x->tags);
        }
        dcomm_build_fence(x->b, 0);
        x->tag += 2 * x->tags;
    }
}

/* Return the messages of a reduce-scatter or all-gather. On the circulant graph a step may send
 * two runs. */
static int64_t dcommi_halving_messages(int64_t n)
{
    return dcommi_circulant_steps(n) * (dcommi_is_power_of_two(n) ? 1 : 2);
}

/* Build the all-reduce of two ranks: send each chunk back as soon as it is folded, while it is in
 * the cache. */
static void dcommi_halving_pair(dcommi_exchange *x, const dcommi_cut *cut, dcommi_place input,
                                dcommi_place out)
{
    dcomm_builder *b = x->b;
    int64_t rank = x->s->rank, other = 1 - rank, back = x->tag + x->tags;
    dcomm_expr peer = dcomm_const(other);
    dcommi_range own = dcommi_cut_range(cut, input, rank, 1);
    dcommi_range mine = dcommi_cut_range(cut, out, rank, 1);
    dcommi_range theirs = dcommi_cut_range(cut, input, other, 1);
    dcommi_range result = dcommi_cut_range(cut, out, other, 1);
    int64_t chunks = dcommi_chunks_of(mine.length, x->chunk);
    int c = dcomm_build_loop(b, 0, dcomm_const(chunks));
    dcomm_operand folded = dcommi_range_chunk(mine, x->chunk, c);
    dcomm_operand first = dcommi_range_chunk(own, x->chunk, c);
    dcomm_build_recv_reduce(
        b, 0, folded, rank == 0 ? first : dcomm_msg(), rank == 0 ? dcomm_msg() : first,
        dcomm_span(DCOMM_SPACE_SCRATCH, x->stage, x->chunk), peer, dcomm_linear(x->tag, c, 1),
        DCOMM_STEP_FINAL | DCOMM_STEP_FORWARD | DCOMM_STEP_RESULT);
    dcomm_build_send(b, 0, folded, peer, dcomm_linear(back, c, 1), DCOMM_STEP_ASYNC);
    dcomm_build_end(b, 0);
    dcomm_build_fence(b, 0);
    chunks = dcommi_chunks_of(theirs.length, x->chunk);
    c = dcomm_build_loop(b, 1, dcomm_const(chunks));
    dcomm_build_send(b, 1, dcommi_range_chunk(theirs, x->chunk, c), peer,
                     dcomm_linear(x->tag, c, 1), 0);
    dcomm_build_recv(b, 1, dcommi_range_chunk(result, x->chunk, c), peer, dcomm_linear(back, c, 1),
                     DCOMM_STEP_ASYNC | DCOMM_STEP_RESULT);
    dcomm_build_end(b, 1);
    dcomm_build_fence(b, 1);
}

/* Bytes: from this size on, two ranks of a host send a block as two messages, so that the first
 * goes back while the second comes. */
#define DCOMMI_HALVING_TWO_CHUNKS (16 << 10)

static int64_t dcommi_halving_grain(const dcommi_shape *s, int64_t block)
{
    int64_t grain = dcommi_chunk_default(s);
    bool two = s->nranks == 2 && grain == DCOMMI_CHUNK_NEAR && !dcommi_reads_peers(s, block) &&
               block >= DCOMMI_HALVING_TWO_CHUNKS;
    return two ? dcommi_ceil_div(block, 2) : grain;
}

static dcomm_status dcommi_halving_doubling(const dcommi_shape *s, dcomm_builder *b)
{
    dcommi_cut cut = dcommi_cut_make(s);
    dcommi_exchange x = dcommi_exchange_make(s, b, cut.total, dcommi_halving_grain(s, cut.stride),
                                             2 * dcommi_halving_messages(s->nranks), true);
    dcommi_place input = {dcommi_input_of(s, 0).space, 0, false}, out = {DCOMM_SPACE_OUT, 0, false};
    if (s->nranks == 2 && cut.stride > x.chunk) {
        dcommi_halving_pair(&x, &cut, input, out);
    } else if (dcommi_is_power_of_two(s->nranks)) {
        dcommi_halving_xor(&x, &cut, input, out, out);
        dcommi_doubling_xor(&x, &cut, out);
    } else {
        dcommi_halving_circulant(&x, &cut, input, out, out);
        dcommi_doubling_circulant(&x, &cut, out);
    }
    return b->status;
}

static dcomm_status dcommi_halving_reduce_scatter(const dcommi_shape *s, dcomm_builder *b)
{
    int64_t n = s->nranks, rank = s->rank;
    dcommi_cut cut = dcommi_cut_make(s);
    dcommi_exchange x = dcommi_exchange_make(s, b, cut.total, dcommi_chunk_default(s),
                                             dcommi_halving_messages(n), true);
    dcommi_place input = {dcommi_input_of(s, 0).space, 0, false};
    /* OUT has only this rank's block: begin the packed buffer so far before it that the block lies
     * at byte 0. */
    dcommi_place result = {DCOMM_SPACE_OUT, s->in_place ? 0 : -dcommi_cut_at(&cut, rank), false};
    dcommi_place work = {DCOMM_SPACE_SCRATCH, 0, false};
    if (dcommi_is_power_of_two(n)) {
        int64_t keep = rank & ~(n / 2 - 1), at = dcommi_cut_at(&cut, keep);
        int64_t length = dcommi_cut_at(&cut, keep + n / 2) - at;
        work.offset = n > 2 ? dcomm_build_scratch(b, length) - at : 0;
        dcommi_halving_xor(&x, &cut, input, work, result);
    } else {
        int64_t first[2], count[2], length = 0;
        int runs = dcommi_circulant_runs(s, 0, (n + 1) / 2, first, count);
        for (int i = 0; i < runs; i++) {
            length += dcommi_cut_range(&cut, input, first[i], count[i]).length;
        }
        work.rotated = true;
        work.offset = dcomm_build_scratch(b, length);
        dcommi_halving_circulant(&x, &cut, input, work, result);
    }
    return b->status;
}

/* Return true if the blocks of an all-gather lie one after the other. */
static bool dcommi_doubling_packed(const dcommi_shape *s)
{
    size_t next = 0;
    for (int i = 0; s->coll == DCOMM_COLL_ALLGATHERV && i < s->nranks; i++) {
        if (s->counts[i] > 0 && s->displs[i] != next) {
            return false;
        }
        next += s->counts[i];
    }
    return true;
}

/* Build the all-gather. A range of blocks travels as one message, so blocks that do not lie one
 * after the other are gathered in scratch first. */
static dcomm_status dcommi_doubling_allgather(const dcommi_shape *s, dcomm_builder *b)
{
    int64_t n = s->nranks, rank = s->rank;
    dcommi_cut cut = dcommi_cut_make(s);
    dcommi_exchange x = dcommi_exchange_make(s, b, cut.total, dcommi_chunk_default(s),
                                             dcommi_halving_messages(n), false);
    bool packed = dcommi_doubling_packed(s);
    dcommi_place work = {DCOMM_SPACE_OUT, 0, false};
    if (!packed) {
        work.space = DCOMM_SPACE_SCRATCH;
        work.offset = dcomm_build_scratch(b, cut.total);
    }
    dcommi_range own = dcommi_cut_range(&cut, work, rank, 1);
    dcommi_input in = dcommi_input_of(s, cut.listed ? dcommi_shape_bytes(s, s->displs[rank])
                                                    : dcommi_cut_at(&cut, rank));
    if (!s->in_place || !packed) {
        dcomm_build_copy(b, 0, dcomm_span(own.space, own.offset, own.length),
                         dcomm_span(in.space, in.base, own.length), 0);
    }
    if (dcommi_is_power_of_two(n)) {
        dcommi_doubling_xor(&x, &cut, work);
    } else {
        dcommi_doubling_circulant(&x, &cut, work);
    }
    if (!packed) {
        int64_t longest = dcommi_longest(s, s->counts);
        dcommi_blocks blocks = {.n = n, .listed = true};
        blocks.offsets = (int64_t)b->ntable;
        int64_t at = work.offset;
        for (int64_t i = 0; i < n; i++) {
            dcomm_build_table(b, &at, 1);
            at += dcommi_shape_bytes(s, s->counts[i]);
        }
        blocks.lengths = dcommi_table_bytes(s, b, s->counts);
        int d = dcomm_build_loop(b, 0, dcomm_const(n));
        dcommi_turn each = {0, d, 1};
        dcomm_operand from = dcommi_block_whole(&blocks, DCOMM_SPACE_SCRATCH, each, longest);
        blocks.offsets = dcommi_table_bytes(s, b, s->displs);
        dcomm_build_copy(b, 0, dcommi_block_whole(&blocks, DCOMM_SPACE_OUT, each, longest), from,
                         0);
        dcomm_build_end(b, 0);
    }
    return b->status;
}

#endif
