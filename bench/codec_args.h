/* codec_args.h - the command line of dcomm-codec. */
#ifndef CODEC_ARGS_H
#define CODEC_ARGS_H

#include "codec_files.h"
#include "dcomm/all.h"
#include "tool.h"

enum { CODEC_SPECS = 64, CODEC_RANKS = 1024 };

typedef enum codec_way { WAY_TWO_SHOT, WAY_RING, WAY_ALLGATHER, WAY_SPARSE, WAY_COUNT } codec_way;

static const char *const codec_ways[WAY_COUNT] = {"two_shot", "ring", "allgather", "sparse"};
static const char *const codec_variants[DCOMM_FEEDBACK_VARIANT_COUNT] = {"classic", "ef21", "dgc"};

typedef struct codec_args {
    const char *spec[CODEC_SPECS]; /* with `sweep`, those of codec_sweep */
    size_t nspecs;
    codec_tensors tensors;
    codec_input input; /* the tensor that is encoded now; for the totals, all tensors */
    uint32_t ranks;
    uint64_t steps;
    bool feedback;
    dcomm_feedback_opts opts;
    codec_way way;
    bool sweep, timed;
    const char *json, *svg;
    tool_out json_out, svg_out;
} codec_args;

/* The codecs that --sweep compares, from many bits to few. */
static const char *const codec_sweep[] = {
    "f16",
    "bf16",
    "bf16:rounding=stochastic",
    "fp8:type=e4m3",
    "fp8:type=e5m2",
    "qsgd:bits=8",
    "qsgd:bits=4",
    "qsgd:bits=2",
    "qsgd:bits=8,norm=two",
    "qsgd:bits=4,norm=two",
    "tern",
    "sign",
    "topk:k=0.1",
    "topk:k=0.01",
    "topk:k=0.001",
    "topk:k=0.1,values=bf16",
    "topk:k=0.01,values=bf16",
    "topk+qsgd:k=0.1",
    "topk+qsgd:k=0.01",
    "threshold:k=0.1",
    "threshold:k=0.01",
    "randk:k=0.1",
    "randk:k=0.01",
    "powersgd:rank=4",
    "powersgd:rank=2",
};

static void codec_help(FILE *out)
{
    fprintf(
        out,
        "usage: dcomm-codec --codec SPEC [--codec SPEC]... --input WHAT... [options]\n"
        "       dcomm-codec --sweep --input WHAT... [options]\n"
        "       dcomm-codec --list\n"
        "What a codec does to gradients: errors, bits, speed, for one encoding and for the sum\n"
        "of several ranks' gradients, computed as the collectives do, in one process.\n"
        "  --codec SPEC   a name and options: qsgd:bits=4,bucket=512 (--list shows all)\n"
        "  --sweep        many codecs instead: error against bits\n"
        "%s"
        "  --ranks P      sum the gradients of P ranks, at most %d (1)\n"
        "  --aggregate A  how: two_shot (each rank sums a shard and encodes the sum again),\n"
        "                 ring (each hop encodes again), allgather, sparse (topk and threshold:\n"
        "                 balanced regions, selected twice) (two_shot); codecs that are\n"
        "                 linear are summed as they are\n"
        "  --steps N      so many steps (1)\n"
        "  --feedback F   error feedback: none, classic, ef21, dgc (none)\n"
        "  --residuals T  f32 or bf16 (f32)\n"
        "  --scale        multiply codecs that error feedback does not bear by 1/(1+omega)\n"
        "  --momentum X   of dgc (0.9)\n"
        "  --warmup N     steps in which dgc's sparsity grows (0)\n"
        "  --time 0|1     measure speeds (1)\n"
        "  --json FILE    the results (docs/dcomm-codec.schema.json)\n"
        "  --svg FILE     error against bits; with several steps, error against steps\n"
        "  --list         the codecs and their options\n"
        "  --help, --version\n"
        "A FILE is \"-\" for standard output; the table then goes to standard error.\n"
        "\n"
        "nmse: sum (y-x)^2 / sum x^2, y being what arrives for x. signed: sum sign(x)(y-x) /\n"
        "sum |x|; below 0, what arrives is too small. all: nmse of the sum over all steps, which\n"
        "is what error feedback mends. bits: on the wire per element, scales and indices\n"
        "included. omega: the codec's bound of nmse, where it is unbiased. x: the aggregate's\n"
        "nmse over that of one encoding; of independent gradients, 2 for two_shot and (P+1)/2\n"
        "for ring. fill: share of the result that is not 0; fill/k: of sparse codecs, elements\n"
        "of the ranks' sum over what one rank sends of it, at most P. Speeds: bytes of f32 per\n"
        "second; /memcpy: over the bytes that memcpy copies per second in the same run, median\n"
        "of the repetitions' ratios.\n"
        "exit: 0 good, 1 wrong result (numbers that are not finite),\n"
        "      " TOOL_USAGE_HELP "\n",
        input_help, CODEC_RANKS);
}

static void codec_list(void)
{
    for (size_t i = 0; dcomm_codec_name(i) != NULL; i++) {
        tool_fold_lines(stdout, dcomm_codec_help(dcomm_codec_name(i)), 2);
        printf("\n");
    }
}

static bool codec_count(const char *text, double least, double most, uint64_t *value)
{
    double number;
    bool good = input_number(text, least, most, true, &number);
    *value = good ? (uint64_t)number : 0;
    return good;
}

static bool codec_feedback_arg(codec_args *a, const char *text)
{
    int variant = 0;
    a->feedback = strcmp(text, "none") != 0;
    bool good =
        !a->feedback || numbers_word(text, codec_variants, DCOMM_FEEDBACK_VARIANT_COUNT, &variant);
    a->opts.variant = (dcomm_feedback_variant)variant;
    return good;
}

/* Check the combination of the options. Return an exit status. */
static int codec_check(const codec_args *a, bool input)
{
    if (!input) {
        return tool_refuse("--input is missing", NULL);
    }
    if (a->nspecs == 0) {
        return tool_refuse("--codec or --sweep is missing", NULL);
    }
    if (a->feedback && a->way == WAY_RING && a->opts.variant != DCOMM_FEEDBACK_CLASSIC) {
        return tool_refuse("--aggregate ring has no --feedback but classic", NULL);
    }
    if (a->opts.warmup_steps > 0 && (!a->feedback || a->opts.variant != DCOMM_FEEDBACK_DGC)) {
        return tool_refuse("--warmup is for --feedback dgc", NULL);
    }
    return TOOL_GOOD;
}

/* Add the argument of --input, or a name alone, to the inputs that were given. */
static int codec_give(codec_tensors *given, const char *what)
{
    char why[INPUT_TEXT];
    codec_input in;
    return input_parse(&in, what, why) && tensors_add(given, &in, why)
               ? TOOL_GOOD
               : tool_refuse("--input", why);
}

/* Find the tensors of all inputs that were given, and describe them in a->input.text. */
static int codec_find(codec_args *a, const codec_tensors *given, npy_type type)
{
    char why[INPUT_TEXT];
    for (size_t i = 0; i < given->n; i++) {
        codec_input *in = &given->tensor[i];
        if (type != NPY_ANY && in->kind != INPUT_FILE) {
            return tool_refuse("--dtype is for files", NULL);
        }
        in->type = type; /* --dtype may come after --input */
        if (!tensors_add_input(&a->tensors, in, why)) {
            tool_say("%s", why);
            return TOOL_USAGE;
        }
    }
    if (given->n > 1) {
        snprintf(a->input.text, sizeof a->input.text, "%.400s and %zu more", given->tensor[0].text,
                 given->n - 1);
    } else {
        snprintf(a->input.text, sizeof a->input.text, "%s", given->tensor[0].text);
    }
    return TOOL_GOOD;
}

static int codec_parse(codec_args *a, codec_tensors *given, int argc, char **argv, bool *done)
{
    enum { SPEC, INPUT, RANKS, STEPS, FEEDBACK, RESIDUALS, SCALE, MOMENTUM, WARMUP, AGGREGATE };
    enum { SWEEP = AGGREGATE + 1, TIME, JSON, SVG, LIST, HELP, DTYPE, VERSION };
    static const struct option options[] = {
        {"codec", required_argument, NULL, SPEC},
        {"input", required_argument, NULL, INPUT},
        {"dtype", required_argument, NULL, DTYPE},
        {"ranks", required_argument, NULL, RANKS},
        {"steps", required_argument, NULL, STEPS},
        {"feedback", required_argument, NULL, FEEDBACK},
        {"residuals", required_argument, NULL, RESIDUALS},
        {"scale", no_argument, NULL, SCALE},
        {"momentum", required_argument, NULL, MOMENTUM},
        {"warmup", required_argument, NULL, WARMUP},
        {"aggregate", required_argument, NULL, AGGREGATE},
        {"sweep", no_argument, NULL, SWEEP},
        {"time", required_argument, NULL, TIME},
        {"json", required_argument, NULL, JSON},
        {"svg", required_argument, NULL, SVG},
        {"list", no_argument, NULL, LIST},
        {"help", no_argument, NULL, HELP},
        {"version", no_argument, NULL, VERSION},
        {NULL, 0, NULL, 0},
    };
    *a = (codec_args){.ranks = 1, .steps = 1, .timed = true};
    int type = 0;
    opterr = 0;
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        uint64_t number = 0;
        int word = 0;
        bool good = true;
        switch (c) {
        case SPEC:
            if (a->nspecs == CODEC_SPECS) {
                return tool_refuse("too many codecs", NULL);
            }
            a->spec[a->nspecs++] = optarg;
            break;
        case INPUT:
            if (codec_give(given, optarg) != TOOL_GOOD) {
                return TOOL_USAGE;
            }
            break;
        case DTYPE:
            good = numbers_word(optarg, input_types, sizeof input_types / sizeof *input_types, &type) &&
                   type > 0;
            break;
        case RANKS:
            good = codec_count(optarg, 1, CODEC_RANKS, &number);
            a->ranks = (uint32_t)number;
            break;
        case STEPS:
            good = codec_count(optarg, 1, 1e6, &a->steps);
            break;
        case FEEDBACK:
            good = codec_feedback_arg(a, optarg);
            break;
        case RESIDUALS:
            good = strcmp(optarg, "f32") == 0 || strcmp(optarg, "bf16") == 0;
            a->opts.bf16 = strcmp(optarg, "bf16") == 0;
            break;
        case SCALE:
            a->opts.scale = true;
            break;
        case MOMENTUM:
            good = input_number(optarg, 0, 0.999999, false, &a->opts.momentum);
            a->opts.momentum = a->opts.momentum == 0 ? -1 : a->opts.momentum;
            break;
        case WARMUP:
            good = codec_count(optarg, 0, 1e9, &a->opts.warmup_steps);
            break;
        case AGGREGATE:
            good = numbers_word(optarg, codec_ways, WAY_COUNT, &word);
            a->way = (codec_way)word;
            break;
        case SWEEP:
            a->sweep = true;
            break;
        case TIME:
            good = codec_count(optarg, 0, 1, &number);
            a->timed = number != 0;
            break;
        case JSON:
            a->json = optarg;
            break;
        case SVG:
            a->svg = optarg;
            break;
        case LIST:
            codec_list();
            *done = true;
            return TOOL_GOOD;
        case HELP:
            codec_help(stdout);
            *done = true;
            return TOOL_GOOD;
        case VERSION:
            tool_print_version();
            *done = true;
            return TOOL_GOOD;
        default:
            return tool_refuse("unknown option, or its value is missing", argv[optind - 1]);
        }
        if (!good) {
            return tool_refuse_value(c, options, optarg);
        }
    }
    for (; optind < argc; optind++) {
        if (codec_give(given, argv[optind]) != TOOL_GOOD) {
            return TOOL_USAGE;
        }
    }
    for (size_t i = 0; a->sweep && i < sizeof codec_sweep / sizeof *codec_sweep; i++) {
        if (a->nspecs < CODEC_SPECS) {
            a->spec[a->nspecs++] = codec_sweep[i];
        }
    }
    int result = codec_check(a, given->n > 0);
    return result == TOOL_GOOD ? codec_find(a, given, (npy_type)type) : result;
}

#endif
