/* codec-speed.c - measure the speed of the codecs on one core, relative to memcpy in the same
 * run. */
#define _GNU_SOURCE
#pragma GCC diagnostic ignored "-Wunused-function"
#define DCOMM_NO_COMM
#define DCOMM_IMPLEMENTATION
#include "../include/dcomm/all.h"

#include "speed.h"

#include <getopt.h>
#include <sys/mman.h>

static const char usage[] =
    "codec-speed - speed of the codecs on one core, beside memcpy in the same run\n"
    "\n"
    "usage: codec-speed [options]\n"
    "  -c SPEC     a codec, as often as wanted (default: the dense codecs)\n"
    "  -e COUNT    elements (default 64M; suffixes K, M)\n"
    "  -s WIRES    wires that sum and recode take (default 4, at most 16)\n"
    "  -n ROUNDS   repetitions (default 7)\n"
    "  -d KIND     gaussian, denormal (half of it is), zero (default gaussian)\n"
    "  --json FILE write the results as JSON (\"-\": standard output; the table then goes to\n"
    "              standard error)\n"
    "  --help, --version\n"
    "DCOMM_ISA=portable|avx2|avx512 chooses the kernels.\n"
    "\n"
    "Each figure is the f32 bytes of the input (for sums: of one wire's) per second over the\n"
    "bytes that memcpy copies per second: the median over the repetitions of the ratio in one\n"
    "repetition. encode, feedback (encode with residual, not in place), inplace (in place),\n"
    "decode, add (decode-and-add), sum (of WIRES wires), recode (the same, encoded again), ledger\n"
    "(encode, and count errors in the same pass).\n"
    "exit: 0 good, 1 a codec failed, " TOOL_USAGE_HELP "\n";

enum { MOST_WIRES = 16, MOST_CODECS = 64, MOST_ROUNDS = 101 };

enum { ENCODE, FEEDBACK, IN_PLACE, DECODE, ADD, SUM, RECODE, LEDGER, KINDS };
static const char *const kind_names[KINDS] = {"encode", "feedback", "inplace", "decode",
                                              "add",    "sum",      "recode",  "ledger"};

typedef struct settings {
    const char *codecs[MOST_CODECS];
    size_t ncodecs, count, wires, rounds;
    const char *data, *json_path;
    tool_out out;
    FILE *json; /* NULL: none */
} settings;

typedef struct arrays {
    float *x, *residual, *next, *out;
    unsigned char *copy, *wire[MOST_WIRES + 1];
    void *workspace;
    size_t room;
} arrays;

static void *huge(size_t bytes)
{
    size_t page = (size_t)2 << 20, len = (bytes + page) / page * page;
    unsigned char *p =
        mmap(NULL, len + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        fprintf(stderr, "codec-speed: no memory for %zu bytes\n", bytes);
        exit(1);
    }
    p += (page - (uintptr_t)p % page) % page;
    madvise(p, len, MADV_HUGEPAGE);
    memset(p, 0, len);
    return p;
}

static uint64_t random_bits(void)
{
    static uint64_t state = 88172645463325252u;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

/* Fill x with sums of uniform numbers: they are nearly Gaussian and fast to make. */
static void fill(float *x, size_t count, const char *data)
{
    for (size_t i = 0; i < count; i++) {
        uint64_t a = random_bits(), b = random_bits();
        float sum = 0;
        for (int k = 0; k < 8; k++) {
            sum += (float)((k < 4 ? a : b) >> (16 * (k % 4)) & 0xffff);
        }
        x[i] = (sum / 65536 - 4) * 1.2247f;
        if (data[0] == 'z' || (data[0] == 'd' && (i & 1))) {
            x[i] = data[0] == 'z' ? 0 : 1e-40f * x[i];
        }
    }
}

static dcomm_status once(const dcomm_codec *codec, int kind, const settings *set, const arrays *a,
                         size_t *bytes)
{
    const size_t count = set->count;
    dcomm_codec_key key = {.seed = 1, .step = (uint64_t)kind};
    const void *wires[MOST_WIRES];
    size_t lengths[MOST_WIRES];
    for (size_t w = 0; w < set->wires; w++) {
        wires[w] = a->wire[w];
        lengths[w] = bytes[w];
    }
    switch (kind) {
    case ENCODE:
        return dcomm_encode(codec, a->x, count, &key, a->wire[0], a->room, &bytes[0], a->workspace,
                            NULL);
    case FEEDBACK:
        return dcomm_encode_feedback(codec, a->x, a->residual, a->next, count, &key, a->wire[0],
                                     a->room, &bytes[0], a->workspace, NULL);
    case IN_PLACE:
        return dcomm_encode_feedback(codec, a->x, a->next, a->next, count, &key, a->wire[0],
                                     a->room, &bytes[0], a->workspace, NULL);
    case DECODE:
        return dcomm_decode(codec, a->wire[0], bytes[0], a->out, count);
    case LEDGER: {
        dcomm_ledger ledger = {0};
        return dcomm_encode_ledger(codec, a->x, NULL, NULL, count, &key, a->wire[0], a->room,
                                   &bytes[0], a->workspace, NULL, &ledger);
    }
    case ADD:
        return dcomm_decode_add(codec, a->wire[0], bytes[0], a->out, count);
    case SUM:
        return dcomm_decode_sum(codec, wires, lengths, set->wires, a->out, count);
    default:
        return dcomm_recode(codec, wires, lengths, set->wires, 1, NULL, NULL, count, &key,
                            a->wire[set->wires], a->room, &bytes[set->wires], a->workspace, NULL);
    }
}

static bool measure(const settings *set, const char *spec, arrays *a, bool first)
{
    static double ratio[KINDS][MOST_ROUNDS], copied[MOST_ROUNDS];
    dcomm_codec *codec;
    if (dcomm_codec_create(spec, &codec) != DCOMM_OK) {
        fprintf(stderr, "codec-speed: %s\n", dcomm_last_error());
        return false;
    }
    const size_t f32_bytes = set->count * sizeof(float);
    size_t bytes[MOST_WIRES + 1] = {0};
    a->room = dcomm_codec_max_bytes(codec, set->count);
    if (a->room > f32_bytes + (1 << 20)) {
        fprintf(stderr, "codec-speed: %s: wires are longer than the input\n", spec);
        dcomm_codec_destroy(&codec);
        return false;
    }
    a->workspace = dcommi_alloc_raw(dcomm_codec_recode_workspace_bytes(codec, set->count) + 64);
    dcomm_status status = DCOMM_OK;
    for (size_t w = 0; w < set->wires && status == DCOMM_OK; w++) {
        dcomm_codec_key key = {.seed = 1, .rank = (uint32_t)w};
        status = dcomm_encode(codec, a->x, set->count, &key, a->wire[w], a->room, &bytes[w],
                              a->workspace, NULL);
    }
    for (size_t r = 0; r < set->rounds && status == DCOMM_OK; r++) {
        double start = dcommi_now();
        memcpy(a->copy, a->x, f32_bytes);
        __asm__ volatile("" ::: "memory");
        double copy = dcommi_now() - start;
        copied[r] = 1e-9 * (double)f32_bytes / copy;
        for (int kind = 0; kind < KINDS && status == DCOMM_OK; kind++) {
            start = dcommi_now();
            status = once(codec, kind, set, a, bytes);
            ratio[kind][r] = copy / (dcommi_now() - start);
        }
    }
    dcommi_free(a->workspace);
    if (status != DCOMM_OK) {
        fprintf(stderr, "codec-speed: %s: %s\n", spec, dcomm_last_error());
    } else {
        double bits = 8.0 * (double)bytes[0] / (double)set->count;
        printf("%-34s %7.3f %7.2f", spec, bits, speed_median(copied, set->rounds));
        if (set->json != NULL) {
            fprintf(
                set->json,
                "%s\n{\"codec\":\"%s\",\"data\":\"%s\",\"count\":%zu,\"wires\":%zu,\"bits\":%.4f,"
                "\"memcpy_GBps\":%.3f",
                first ? "" : ",", dcomm_codec_spec(codec), set->data, set->count, set->wires, bits,
                speed_median(copied, set->rounds));
        }
        for (int kind = 0; kind < KINDS; kind++) {
            double per_memcpy = speed_median(ratio[kind], set->rounds);
            printf(" %8.2f", per_memcpy);
            if (set->json != NULL) {
                fprintf(set->json, ",\"%s_per_memcpy\":%.4f", kind_names[kind], per_memcpy);
            }
        }
        printf("\n");
        fflush(stdout);
        if (set->json != NULL) {
            fprintf(set->json, "}");
        }
    }
    dcomm_codec_destroy(&codec);
    return status == DCOMM_OK;
}

/* Parse the command line. Return -1 to go on, else the exit status. */
static int parse(int argc, char **argv, settings *set)
{
    static const struct option longs[] = {{"help", no_argument, NULL, 'h'},
                                          {"version", no_argument, NULL, 'v'},
                                          {"json", required_argument, NULL, 'j'},
                                          {NULL, 0, NULL, 0}};
    static const char *const datas[] = {"gaussian", "denormal", "zero"};
    int data = 0;
    opterr = 0;
    for (int c; (c = getopt_long(argc, argv, "c:e:s:n:d:", longs, NULL)) != -1;) {
        bool good = true;
        switch (c) {
        case 'c':
            good = set->ncodecs < MOST_CODECS;
            if (good) {
                set->codecs[set->ncodecs++] = optarg;
            }
            break;
        case 'e':
            good = numbers_size(optarg, 1, (size_t)1 << 30, &set->count);
            break;
        case 's':
            good = numbers_size(optarg, 1, MOST_WIRES, &set->wires);
            break;
        case 'n':
            good = numbers_size(optarg, 1, MOST_ROUNDS, &set->rounds);
            break;
        case 'd':
            set->data = optarg;
            good = numbers_word(optarg, datas, 3, &data);
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
    static const char *const usual[] = {
        "f16",  "bf16",          "bf16:rounding=stochastic",
        "fp8",  "fp8:type=e5m2", "qsgd:bits=8",
        "qsgd", "qsgd:bits=2",   "qsgd:bits=1",
        "sign",
    };
    settings set = {.count = (size_t)64 << 20, .wires = 4, .rounds = 7, .data = "gaussian"};
    tool_begin(false);
    int ended = parse(argc, argv, &set);
    if (ended >= 0) {
        return tool_end(ended);
    }
    if (!tool_open(&set.out, set.json_path)) {
        return TOOL_USAGE;
    }
    set.json = set.out.file;
    if (set.ncodecs == 0) {
        set.ncodecs = sizeof usual / sizeof *usual;
        memcpy(set.codecs, usual, sizeof usual);
    }
    size_t bytes = set.count * sizeof(float);
    arrays a = {.x = huge(bytes),
                .residual = huge(bytes),
                .next = huge(bytes),
                .out = huge(bytes),
                .copy = huge(bytes)};
    for (size_t w = 0; w <= set.wires; w++) {
        a.wire[w] = huge(bytes + (1 << 20));
    }
    fill(a.x, set.count, set.data);
    fill(a.residual, set.count, set.data);
    if (set.json != NULL) {
        fprintf(set.json, "{\"schema\":1,\"isa\":\"%s\",\"results\":[",
                dcommi_isa_names[dcommi_isa_get()]);
    }
    printf("%zu elements, %s, %s; memcpy in GB/s, the rest over memcpy; %zu wires\n", set.count,
           set.data, dcommi_isa_names[dcommi_isa_get()], set.wires);
    printf("%-34s %7s %7s", "codec", "bits", "memcpy");
    for (int kind = 0; kind < KINDS; kind++) {
        printf(" %8s", kind_names[kind]);
    }
    printf("\n");
    bool good = true;
    for (size_t c = 0; c < set.ncodecs; c++) {
        good = measure(&set, set.codecs[c], &a, c == 0) && good;
    }
    if (set.json != NULL) {
        fprintf(set.json, "\n]}\n");
    }
    bool written = tool_close(&set.out);
    return tool_end(!good ? TOOL_WRONG : written ? TOOL_GOOD : TOOL_USAGE);
}
