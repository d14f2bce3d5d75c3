/* device.h - transforms of bytes by memory kind: functions for host memory, a table of functions
 * for a device's. The device layer knows no ranks. */
#ifndef DCOMMI_DEVICE_H
#define DCOMMI_DEVICE_H

#include "../../cuda.h"
#include "../base/util.h"

/* Fold: dst[i] = fold over s of src[s][i], from s = 0 up, for `count` elements; nsrc >= 1. dst may
 * be exactly equal to any src, or disjoint from it. 16-bit floats fold in f32 and round once. If
 * divisor > 1, the fold is then divided by it (DCOMM_AVG). op is DCOMM_SUM, PROD, MIN, MAX, AVG,
 * PREMUL_SUM (both like SUM) or a caller's own. Any alignment. */
static dcomm_status dcommi_host_reduce(void *dst, const void *const *src, size_t nsrc, size_t count,
                                       dcomm_dtype dtype, dcomm_op op, int64_t divisor);
/* Fold likewise, and store the result in `also`, too (NULL: not). `how`: DCOMMI_FOLD_STREAM and
 * DCOMMI_FOLD_ALSO use nontemporal stores for dst and `also`, where alignment allows. Those to dst
 * may need dcommi_host_copy_close, as after dcommi_host_copy_open. DCOMMI_FOLD_AHEAD and
 * DCOMMI_FOLD_NEAR prefetch. */
static dcomm_status dcommi_host_reduce_both(void *dst, void *also, const void *const *src,
                                            size_t nsrc, size_t count, dcomm_dtype dtype,
                                            dcomm_op op, int64_t divisor, unsigned how);
/* Scale: dst[i] = factor * src[i], in f64 for f64 and in f32 for other floats. For integers, the
 * f64 product is rounded towards zero. dst may equal src. */
static void dcommi_host_scale(void *dst, const void *src, size_t count, dcomm_dtype dtype,
                              double factor);
/* Copy long, cold memory, by nontemporal stores where these are faster. */
static void dcommi_host_copy(void *dst, const void *src, size_t len);
/* Copy by plain stores, whatever the length. */
static void dcommi_host_copy_plain(void *dst, const void *src, size_t len);
/* Copy by plain stores, and prefetch: the source is likely in no cache. */
static void dcommi_host_copy_ahead(void *dst, const void *src, size_t len);
/* Copy by nontemporal stores, because the data should not stay in the caches. */
static void dcommi_host_copy_past(void *dst, const void *src, size_t len);
/* Copy pieces by nontemporal stores, and order them before later stores by one close after all of
 * them. A close after each piece would be much slower. */
static void dcommi_host_copy_open(void *dst, const void *src, size_t len);
static void dcommi_host_copy_close(void);

/* ---- devices ---- */

/* A device does the work of a queue in order. All stores into its memory go to IN. Work on OUT
 * reads only memory that has been seen to be complete. */
enum dcommi_queue {
    DCOMMI_QUEUE_OUT, /* copies out of the device */
    DCOMMI_QUEUE_IN,  /* copies into it, folds, codecs */
    DCOMMI_QUEUES
};

/* A device as one context uses it. The queues are the process's: contexts share them. */
typedef struct dcommi_device_handle {
    const struct dcommi_device_calls *call;
    int number;
    void *stream[DCOMMI_QUEUES];
    _Atomic uint32_t *word[DCOMMI_QUEUES]; /* pinned: the last mark that each has reached */
    uint32_t marks[DCOMMI_QUEUES];
    void *pinned; /* the words' memory */
} dcommi_device_handle;

/* A codec's step on a device. `kind` tells which of the plan's codec steps. */
typedef struct dcommi_device_code {
    uint8_t kind; /* dcomm_step_kind: ENCODE, RECODE, DECODE */
    bool adds;    /* DECODE: add to what dst holds */
    const dcomm_codec *codec;
    dcomm_codec_key key;
    float factor;          /* RECODE */
    const float *residual; /* ENCODE, RECODE: error feedback; NULL: none */
    float *next;
    size_t count; /* elements */
    const void *const *src;
    const size_t *len; /* bytes of each */
    size_t n;
    void *dst;
    size_t dst_len;
    void *workspace;           /* ENCODE, RECODE: kept from step to step; NULL: a temporary one */
    dcomm_cuda_report *report; /* on the device */
    dcomm_cuda_ledger *ledger; /* likewise; NULL: not wanted */
} dcommi_device_code;

/* A step of powersgd: the arguments of that launcher of cuda.h. */
typedef struct dcommi_device_matrix {
    enum dcommi_matrix_kind {
        DCOMMI_MATRIX_START,
        DCOMMI_MATRIX_P,
        DCOMMI_MATRIX_ORTHONORMAL,
        DCOMMI_MATRIX_Q,
        DCOMMI_MATRIX_PRODUCT
    } kind;
    dcomm_codec_matrix shape;
    dcomm_codec_key key; /* START */
    const float *x;      /* P, Q; PRODUCT with a ledger: what is compared */
    float *p, *q;
    float *to; /* PRODUCT; with a ledger: e or NULL, and `how` is not used */
    int how;
    dcomm_cuda_report *report; /* P, Q; NULL: not wanted */
    dcomm_cuda_ledger *ledger; /* PRODUCT; NULL: not wanted */
} dcommi_device_matrix;

/* The key that opens device memory of another process on this host. */
typedef struct dcommi_device_key {
    uint64_t place;     /* of the device, the same for all processes; 0: it cannot be opened */
    uint8_t handle[64]; /* of the whole allocation */
} dcommi_device_key;

/* The calling thread's earlier state, for `leave`. */
typedef struct dcommi_device_before {
    void *context; /* CUDA's; NULL: none */
    bool changed;
    int mode; /* of stream captures */
} dcommi_device_before;

/* Kinds of the caller's streams, by what they wait for besides their own work. */
enum dcommi_stream_kind {
    DCOMMI_STREAM_APART,    /* nothing */
    DCOMMI_STREAM_BLOCKING, /* the device's legacy default stream, and vice versa */
    DCOMMI_STREAM_LEGACY,
    DCOMMI_STREAM_THREAD /* like BLOCKING; its handle means another stream in each thread */
};

/* No call waits for a device, not even to free memory, except those for shared memory: a stream of
 * the caller may wait for the very rank that is in here. Errors set a message. */
typedef struct dcommi_device_calls {
    /* Return the number of the device whose memory it is; -1: host memory. */
    int (*locate)(const void *at);
    /* open: let a context use a device. The first prepares the process for it, which may wait for
     * the device: a thread that calls does this. close: its marks have all been seen, or never
     * will (`broken`). */
    dcomm_status (*open)(dcommi_device_handle *d);
    void (*close)(dcommi_device_handle *d, bool broken);
    /* Allocate host memory that every device reads and writes itself, at the host's address, or
     * take what was given back: that is kept. `device`: one that the program uses. */
    dcomm_status (*pin)(int device, size_t bytes, void **memory_p);
    void (*unpin)(void *memory);
    /* On a stream: a queue's, or one of the library's own. alloc, release: memory is taken and
     * returned in the stream's order, and must be written before it is read. It outlives
     * contexts. copy: dst <- src, either of which may be pinned. scale, add, feedback, look:
     * dcomm_cuda_scale, _add_scaled, _feedback, _look. */
    dcomm_status (*alloc)(int device, void *stream, size_t bytes, void **memory_p);
    void (*release)(int device, void *stream, void *memory);
    dcomm_status (*copy)(int device, void *stream, void *dst, const void *src, size_t len);
    dcomm_status (*zero)(int device, void *stream, void *dst, size_t len);
    dcomm_status (*scale)(int device, void *stream, void *dst, const void *src, size_t count,
                          dcomm_dtype dtype, double factor);
    dcomm_status (*add)(int device, void *stream, float *x, float factor, const float *y,
                        size_t count);
    dcomm_status (*feedback)(int device, void *stream, dcomm_cuda_feedback_op op, void *dst,
                             const void *a, float factor, const float *b, size_t count,
                             dcomm_cuda_report *report);
    dcomm_status (*look)(int device, void *stream, void *x, size_t count, dcomm_dtype dtype,
                         double factor, bool drop, dcomm_cuda_sight *sight, void *workspace);
    size_t (*look_bytes)(size_t count); /* bytes of its workspace */
    /* On queue IN. reduce, to_f32, from_f32: as dcommi_host_reduce, dcommi_to_f32,
     * dcommi_from_f32. code: the codec's steps. matrix: powersgd's. compare, scatter:
     * dcomm_cuda_ledger_compare and dcomm_cuda_scatter. clip, clipped: DGC's clipping, a
     * gradient's factor and the momentum of the clipped gradient. */
    dcomm_status (*reduce)(dcommi_device_handle *d, void *dst, const void *const *src, size_t nsrc,
                           size_t count, dcomm_dtype dtype, dcomm_op op, int64_t divisor);
    dcomm_status (*to_f32)(dcommi_device_handle *d, float *dst, const void *src, size_t count,
                           dcomm_dtype dtype, double factor);
    dcomm_status (*from_f32)(dcommi_device_handle *d, void *dst, const float *src, size_t count,
                             dcomm_dtype dtype);
    dcomm_status (*code)(dcommi_device_handle *d, const dcommi_device_code *code);
    size_t (*code_bytes)(const dcommi_device_code *code); /* bytes of its workspace */
    dcomm_status (*matrix)(dcommi_device_handle *d, const dcommi_device_matrix *m);
    dcomm_status (*compare)(dcommi_device_handle *d, dcomm_cuda_ledger *ledger, const float *x,
                            const float *y, const float *next, size_t count);
    dcomm_status (*scatter)(dcommi_device_handle *d, float *x, size_t count, const uint32_t *index,
                            const float *value, size_t n, bool add);
    dcomm_status (*clip)(dcommi_device_handle *d, dcomm_cuda_clip *clip, const float *g,
                         size_t count, double most);
    dcomm_status (*clipped)(dcommi_device_handle *d, float *u, const float *g,
                            const dcomm_cuda_clip *clip, float momentum, const float *before,
                            size_t count);
    /* health: return the error of work that a device has failed at; DCOMM_OK: there is none so
     * far. After an error it does no more work, and writes no more words. */
    dcomm_status (*health)(int device);
    /* After work that never waits for a rank: bytes that a NIC has written into the device's
     * memory are there for kernels that are launched now. */
    void (*flush)(int device);
    int (*current)(void);      /* current device of the calling thread */
    int (*in_use)(void);       /* likewise; -1: it uses none yet */
    void (*own_thread)(void);  /* the calling thread is the library's own: it keeps its device */
    bool (*synchronous)(void); /* no stream may wait for a rank: calls wait instead */
    /* Return the status of what the calling thread's default stream holds on a device:
     * DCOMM_IN_PROGRESS, DCOMM_OK or the error of its work. */
    dcomm_status (*default_poll)(int device);
    /* Streams, also the caller's; `device` was current when they were given. stream_check: check
     * that an operation can be tied to one. stream_write: write a pinned word behind all that it
     * holds now. stream_hold: make its later work wait until the word has reached `value`,
     * cyclically. stream_mark: record an event behind all that it holds now. poll: return
     * DCOMM_IN_PROGRESS, DCOMM_OK or the error of work before the event. */
    dcomm_status (*stream_check)(const char *name, void *stream);
    dcomm_status (*stream_kind)(int device, void *stream, enum dcommi_stream_kind *kind_p);
    dcomm_status (*stream_write)(int device, void *stream, _Atomic uint32_t *word, uint32_t value);
    dcomm_status (*stream_hold)(int device, void *stream, _Atomic uint32_t *word, uint32_t value);
    dcomm_status (*stream_mark)(int device, void *stream, void **event_p);
    dcomm_status (*poll)(int device, void *event);
    void (*stream_unmark)(int device, void *event);
    /* Calls between the two use this device. enter returns the earlier state for leave. */
    dcommi_device_before (*enter)(int device);
    void (*leave)(dcommi_device_before before);
    /* Streams of the library's own, besides the queues. They carry work in the order of a stream
     * of the caller without holding that up. `waits`: of a stream that may wait for a rank.
     * own_after: make later work on `stream` wait for what `other` holds now. own_code: the
     * codec's steps, with a workspace of code_bytes. */
    dcomm_status (*own_open)(int device, bool waits, void **stream_p);
    void (*own_close)(int device, void *stream);
    dcomm_status (*own_after)(int device, void *stream, void *other);
    dcomm_status (*own_code)(int device, void *stream, const dcommi_device_code *code,
                             void *workspace);
    /* Memory that other processes can open, and theirs. These calls may wait for all that the
     * device's streams hold, so only device_region.h and api_mem_device.h use them. Nobody may
     * have open what is freed. Nothing that reads a peer's memory may be under way when it is
     * closed. */
    dcomm_status (*shared_alloc)(int device, size_t bytes, void **memory_p, dcommi_device_key *key);
    void (*shared_free)(int device, void *memory);
    dcomm_status (*peer_open)(int device, const dcommi_device_key *key, size_t bytes,
                              void **memory_p);
    void (*peer_close)(int device, void *memory);
} dcommi_device_calls;

/* Return true if a word has reached a value, cyclically. */
static inline bool dcommi_word_reached(const _Atomic uint32_t *word, uint32_t value)
{
    return (int32_t)(atomic_load_explicit(word, memory_order_acquire) - value) >= 0;
}

/* ---- in the order of a queue ---- */

/* Allocate scratch in the order of queue IN. All stores into device memory go to that queue, so
 * the other queue need not wait for it. */
static inline dcomm_status dcommi_device_alloc(dcommi_device_handle *d, size_t bytes,
                                               void **memory_p)
{
    return d->call->alloc(d->number, d->stream[DCOMMI_QUEUE_IN], bytes, memory_p);
}

static inline void dcommi_device_release(dcommi_device_handle *d, void *memory)
{
    d->call->release(d->number, d->stream[DCOMMI_QUEUE_IN], memory);
}

static inline dcomm_status dcommi_device_copy(dcommi_device_handle *d, enum dcommi_queue queue,
                                              void *dst, const void *src, size_t len)
{
    return d->call->copy(d->number, d->stream[queue], dst, src, len);
}

/* Put a mark behind all that a queue holds. */
static inline dcomm_status dcommi_device_mark(dcommi_device_handle *d, enum dcommi_queue queue,
                                              uint32_t *mark_p)
{
    *mark_p = ++d->marks[queue];
    return d->call->stream_write(d->number, d->stream[queue], d->word[queue], *mark_p);
}

static inline dcomm_status dcommi_device_scale(dcommi_device_handle *d, void *dst, const void *src,
                                               size_t count, dcomm_dtype dtype, double factor)
{
    return d->call->scale(d->number, d->stream[DCOMMI_QUEUE_IN], dst, src, count, dtype, factor);
}

#endif
