/* dcomm-reduce.c - measure the speed of the host reductions, relative to memcpy in the same
 * run. */
#define _GNU_SOURCE
#pragma GCC diagnostic ignored "-Wunused-function"
#include "../include/dcomm/impl/device/host.h"

#include "speed.h"

#include <sys/mman.h>

static const char usage[] =
    "dcomm-reduce - speed of the host reductions, beside memcpy in the same run\n"
    "\n"
    "usage: dcomm-reduce [options]\n"
    "  -b BYTES    shortest length of one operand (default 64K; suffixes K, M, G)\n"
    "  -e BYTES    longest length (default 64M)\n"
    "  -f FACTOR   from one length to the next (default 4)\n"
    "  -d DTYPE    f64 f32 f16 bf16 i8 u8 i32 u32 i64 u64, or all (default f32)\n"
    "  -o OP       sum prod min max avg, or all (default sum)\n"
    "  -s SOURCES  operands, from 1 to 16, or 0 for each of 2, 4, 8 (default 0)\n"
    "  -n COUNT    rounds; the median is shown (default 21)\n"
    "  -i          the output is the first operand\n"
    "  --json FILE write the results as JSON (\"-\": standard output; the table then goes to\n"
    "              standard error)\n"
    "  --help, --version\n"
    "DCOMM_ISA=portable|avx2|avx512 chooses the kernels.\n"
    "\n"
    "reduce: bytes of output per second. traffic: bytes read and written per second, over twice\n"
    "the bytes that memcpy copies per second: 1 is as busy with memory as memcpy. operands: bytes\n"
    "of all operands per second, over the bytes that memcpy copies; median of the rounds' ratios.\n"
    "exit: 0 good, 1 a reduction failed, " TOOL_USAGE_HELP "\n";

enum { MOST_SOURCES = 16, MOST_ROUNDS = 1000 };

typedef struct settings {
    size_t least, most, factor, sources, rounds;
    int dtype, op; /* -1: all */
    bool in_place;
    const char *json_path;
    tool_out out;
    FILE *json; /* NULL: none */
    bool comma;
} settings;

static bool measure(settings *set, unsigned char *memory, size_t len, dcomm_dtype dtype,
                    dcomm_op op, size_t nsrc)
{
    static double reduce_s[MOST_ROUNDS], copy_s[MOST_ROUNDS], ratio[MOST_ROUNDS];
    size_t stride = ((len + 4095) & ~(size_t)4095) + 4096 + 320; /* not all in one cache set */
    size_t inner = len < ((size_t)1 << 20) ? ((size_t)1 << 20) / len : 1;
    const void *src[MOST_SOURCES];
    for (size_t s = 0; s < nsrc; s++) {
        src[s] = memory + (s + 1) * stride;
    }
    unsigned char *dst = set->in_place ? memory + stride : memory;
    for (size_t r = 0; r < set->rounds; r++) {
        double start = dcommi_now();
        for (size_t k = 0; k < inner; k++) {
            if (dcommi_host_reduce(dst, src, nsrc, len / dcomm_dtype_size(dtype), dtype, op,
                                   op == DCOMM_AVG ? (int64_t)nsrc : 1) != DCOMM_OK) {
                fprintf(stderr, "dcomm-reduce: %s\n", dcomm_last_error());
                return false;
            }
        }
        double middle = dcommi_now();
        for (size_t k = 0; k < inner; k++) {
            memcpy(memory, memory + stride, len);
            __asm__ volatile("" ::: "memory");
        }
        reduce_s[r] = (middle - start) / (double)inner;
        copy_s[r] = (dcommi_now() - middle) / (double)inner;
        ratio[r] = (double)nsrc * copy_s[r] / reduce_s[r];
    }
    double reduce = 1e-9 * (double)len / speed_median(reduce_s, set->rounds);
    double copy = 1e-9 * (double)len / speed_median(copy_s, set->rounds);
    double traffic = reduce * (double)(nsrc + 1) / (2 * copy);
    double operands = speed_median(ratio, set->rounds);
    printf("%-5s %-4s %2zu %10zu %12.2f %12.2f %8.2f %8.2f\n", dcomm_dtype_name(dtype),
           dcomm_op_name(op), nsrc, len, reduce, copy, traffic, operands);
    if (set->json != NULL) {
        fprintf(set->json,
                "%s\n{\"dtype\":\"%s\",\"redop\":\"%s\",\"sources\":%zu,\"bytes\":%zu,"
                "\"inplace\":%s,\"reduce_GBps\":%.3f,\"memcpy_GBps\":%.3f,"
                "\"traffic_per_memcpy\":%.3f,\"operands_per_memcpy\":%.3f}",
                set->comma ? "," : "", dcomm_dtype_name(dtype), dcomm_op_name(op), nsrc, len,
                set->in_place ? "true" : "false", reduce, copy, traffic, operands);
        set->comma = true;
    }
    return true;
}

static bool parse_name(const char *text, const char *(*name)(int), int count, int *value)
{
    const char *words[DCOMM_DTYPE_COUNT + 1] = {"all"};
    for (int i = 0; i < count; i++) {
        words[1 + i] = name(i);
    }
    int which = 0;
    bool good = numbers_word(text, words, 1 + count, &which);
    *value = which - 1;
    return good;
}

static const char *name_of_dtype(int dtype)
{
    return dcomm_dtype_name((dcomm_dtype)dtype);
}

static const char *name_of_op(int op)
{
    return dcomm_op_name((dcomm_op)op);
}

/* Parse the command line. Return -1 to go on, else the exit status. */
static int parse(int argc, char **argv, settings *set)
{
    static const struct option longs[] = {{"help", no_argument, NULL, 'h'},
                                          {"version", no_argument, NULL, 'v'},
                                          {"json", required_argument, NULL, 'j'},
                                          {NULL, 0, NULL, 0}};
    opterr = 0;
    for (int c; (c = getopt_long(argc, argv, "b:e:f:d:o:s:n:i", longs, NULL)) != -1;) {
        bool good = true;
        switch (c) {
        case 'b':
            good = numbers_size(optarg, 8, (size_t)1 << 32, &set->least);
            break;
        case 'e':
            good = numbers_size(optarg, 8, (size_t)1 << 32, &set->most);
            break;
        case 'f':
            good = numbers_size(optarg, 2, 1 << 20, &set->factor);
            break;
        case 'd':
            good = parse_name(optarg, name_of_dtype, DCOMM_DTYPE_COUNT, &set->dtype);
            break;
        case 'o':
            good = parse_name(optarg, name_of_op, DCOMM_PREMUL_SUM, &set->op);
            break;
        case 's':
            good = numbers_size(optarg, 0, MOST_SOURCES, &set->sources);
            break;
        case 'n':
            good = numbers_size(optarg, 1, MOST_ROUNDS, &set->rounds);
            break;
        case 'i':
            set->in_place = true;
            break;
        case 'j':
            set->json_path = optarg;
            break;
        case 'h':
            fputs(usage, stdout);
            return TOOL_GOOD;
        case 'v':
            tool_print_version();
            return TOOL_GOOD;
        default:
            return tool_refuse_option(argv);
        }
        if (!good) {
            return tool_refuse_value(c, longs, optarg);
        }
    }
    return optind < argc ? tool_refuse("not an option", argv[optind]) : -1;
}

int main(int argc, char **argv)
{
    settings set = {.least = 65536,
                    .most = (size_t)64 << 20,
                    .factor = 4,
                    .rounds = 21,
                    .dtype = DCOMM_F32,
                    .op = DCOMM_SUM};
    tool_begin(false);
    int ended = parse(argc, argv, &set);
    if (ended >= 0) {
        return tool_end(ended);
    }
    if (!tool_open(&set.out, set.json_path)) {
        return TOOL_USAGE;
    }
    set.json = set.out.file;
    size_t most_sources = set.sources != 0 ? set.sources : 8;
    size_t bytes = (most_sources + 1) * (set.most + 16384);
    unsigned char *memory =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        tool_say("no memory for %zu bytes", bytes);
        return TOOL_WRONG;
    }
    madvise(memory, bytes, MADV_HUGEPAGE);
    memset(memory, 0, bytes);
    printf("# %s kernels%s\n%-5s %-4s %2s %10s %12s %12s %8s %8s\n",
           dcommi_isa_names[dcommi_isa_get()], set.in_place ? ", in place" : "", "dtype", "op", "n",
           "bytes", "reduce_GBps", "memcpy_GBps", "traffic", "operands");
    if (set.json != NULL) {
        fprintf(set.json, "{\"schema\":1,\"isa\":\"%s\",\"results\":[",
                dcommi_isa_names[dcommi_isa_get()]);
    }
    bool good = true;
    for (int dtype = 0; dtype < DCOMM_DTYPE_COUNT; dtype++) {
        for (int op = 0; op < DCOMM_PREMUL_SUM; op++) {
            if ((set.dtype >= 0 && dtype != set.dtype) || (set.op >= 0 && op != set.op)) {
                continue;
            }
            for (size_t len = set.least; good && len <= set.most; len *= set.factor) {
                size_t first = set.sources != 0 ? set.sources : 2;
                for (size_t n = first; good && n <= most_sources; n *= 2) {
                    good = measure(&set, memory, len, (dcomm_dtype)dtype, (dcomm_op)op, n);
                }
            }
        }
    }
    munmap(memory, bytes);
    if (set.json != NULL) {
        fputs("\n]}\n", set.json);
    }
    bool written = tool_close(&set.out);
    return tool_end(!good ? TOOL_WRONG : written ? TOOL_GOOD : TOOL_USAGE);
}
