/* codec_time.h - measure the speed of a codec on one core, relative to memcpy in the same run. */
#ifndef CODEC_TIME_H
#define CODEC_TIME_H

#include "codec_args.h"

#include <sys/mman.h>

enum { TIME_MOST = 400 };
static const double time_wanted_s = 0.25;

typedef struct codec_speed {
    double memcpy_GBps, encode_GBps, decode_GBps, decode_add_GBps;
    double encode_per_memcpy, decode_per_memcpy, decode_add_per_memcpy;
} codec_speed;

static const codec_speed codec_no_speed = {NAN, NAN, NAN, NAN, NAN, NAN, NAN};

typedef struct time_memory {
    unsigned char *base;
    size_t bytes;
    float *x, *y;
    unsigned char *wire;
    void *workspace;
} time_memory;

static int time_order(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double time_median(const double *t, size_t n)
{
    double sorted[TIME_MOST];
    memcpy(sorted, t, n * sizeof *t);
    qsort(sorted, n, sizeof *sorted, time_order);
    return n % 2 == 1 ? sorted[n / 2] : 0.5 * (sorted[n / 2 - 1] + sorted[n / 2]);
}

static double time_ratio(const double *copy, const double *t, size_t n)
{
    double ratio[TIME_MOST];
    for (size_t i = 0; i < n; i++) {
        ratio[i] = copy[i] / t[i];
    }
    return time_median(ratio, n);
}

/* Allocate the arrays, on huge pages if possible. Their offsets differ, so that they do not share
 * cache sets. */
static bool time_allocate(time_memory *m, size_t n, size_t wire, size_t workspace)
{
    const size_t page = (size_t)2 << 20, apart = 4096 + 320;
    size_t parts[4] = {n * sizeof(float), n * sizeof(float), wire, workspace}, at[4];
    m->bytes = page;
    for (int i = 0; i < 4; i++) {
        at[i] = m->bytes;
        m->bytes += ((parts[i] + 4095) & ~(size_t)4095) + apart;
        m->bytes = (m->bytes + 63) & ~(size_t)63;
    }
    m->base = mmap(NULL, m->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (m->base == MAP_FAILED) {
        return false;
    }
    madvise(m->base, m->bytes, MADV_HUGEPAGE);
    memset(m->base, 0, m->bytes);
    m->x = (float *)(void *)(m->base + at[0]);
    m->y = (float *)(void *)(m->base + at[1]);
    m->wire = m->base + at[2];
    m->workspace = m->base + at[3];
    return true;
}

/* Do one repetition: set t to the seconds of each part. Return false if the codec fails. */
static bool time_once(const dcomm_codec *codec, time_memory *m, size_t n, size_t capacity,
                      double t[4])
{
    size_t bytes = 0;
    dcomm_codec_report report = {0};
    double at[5];
    at[0] = dcommi_now();
    memcpy(m->y, m->x, n * sizeof *m->x);
    __asm__ volatile("" ::: "memory");
    at[1] = dcommi_now();
    dcomm_status status =
        dcomm_encode(codec, m->x, n, NULL, m->wire, capacity, &bytes, m->workspace, &report);
    at[2] = dcommi_now();
    bool good = (status == DCOMM_OK || report.nonfinite > 0) &&
                dcomm_decode(codec, m->wire, bytes, m->y, n) == DCOMM_OK;
    at[3] = dcommi_now();
    good = good && dcomm_decode_add(codec, m->wire, bytes, m->y, n) == DCOMM_OK;
    at[4] = dcommi_now();
    for (int i = 0; i < 4; i++) {
        t[i] = at[i + 1] - at[i];
    }
    return good;
}

static bool codec_measure(const dcomm_codec *codec, const codec_input *in, codec_speed *speed)
{
    static double t[4][TIME_MOST];
    time_memory m;
    size_t n = in->n, reps = 0, capacity = dcomm_codec_max_bytes(codec, n);
    *speed = codec_no_speed;
    if (!time_allocate(&m, n, capacity, dcomm_codec_workspace_bytes(codec, n))) {
        return false;
    }
    input_fill(in, 0, 0, 0, n, m.x);
    double warm[4];
    bool good = time_once(codec, &m, n, capacity, warm);
    for (double start = dcommi_now();
         good && reps < TIME_MOST && (reps < 5 || dcommi_now() - start < time_wanted_s); reps++) {
        double once[4];
        good = time_once(codec, &m, n, capacity, once);
        for (int i = 0; i < 4; i++) {
            t[i][reps] = once[i] > 0 ? once[i] : 1e-9;
        }
    }
    munmap(m.base, m.bytes);
    if (good) {
        double GB = 1e-9 * (double)(n * sizeof(float));
        *speed = (codec_speed){.memcpy_GBps = GB / time_median(t[0], reps),
                               .encode_GBps = GB / time_median(t[1], reps),
                               .decode_GBps = GB / time_median(t[2], reps),
                               .decode_add_GBps = GB / time_median(t[3], reps),
                               .encode_per_memcpy = time_ratio(t[0], t[1], reps),
                               .decode_per_memcpy = time_ratio(t[0], t[2], reps),
                               .decode_add_per_memcpy = time_ratio(t[0], t[3], reps)};
    }
    return good;
}

#endif
