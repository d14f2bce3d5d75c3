/* options.c - the trainer's command line. */
#define _GNU_SOURCE
#include "options.h"
#include "options_part.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The parts of the command line that have files of their own. */
static const options_part *const parts[] = {&options_modes, &options_rules};

enum {
    PARTS = sizeof parts / sizeof parts[0],
    PART_VALUES = 100, /* more than a part has options */
    MOST_OPTIONS = 128
};

static void help(void)
{
    puts(
        "usage: trainer [options], on one rank or under dcomm-run -n N, mpirun, srun\n"
        "Trains a small character-level transformer, data-parallel: each rank takes its part of\n"
        "every batch, and the gradients are summed by an all-reduce.\n"
        "  --text PATH      a text file, or a directory of them (/usr/share/common-licenses)\n"
        "  --steps N        (250)\n"
        "  --batch N        sequences in a batch, over all ranks (32)\n"
        "  --seq N          characters in a sequence (64)\n"
        "  --dim N          width, a multiple of 8 and of --heads (64)\n"
        "  --layers N       (2)\n"
        "  --heads N        (4)\n"
        "  --seed N         of weights and batches (1)\n"
        "  --algo NAME      all-reduce algorithm (chosen by the library)\n"
        "  --codec SPEC     sum gradients through this codec (qsgd:bits=4, topk:k=0.01, ...)\n"
        "  --feedback F     error feedback: none, classic, ef21, dgc (none)\n"
        "  --deterministic  sum gradients in rank order\n"
        "  --buckets N      sum gradients in buckets of N KiB, while backward goes on (in one\n"
        "                   piece, after it)\n"
        "  --trace DIR      with buckets: each rank writes the last steps there, as rankR.json, "
        "for\n"
        "                   Perfetto or chrome://tracing\n"
        "  --report         with buckets: time them alone first, and print what was hidden\n"
        "  --loss-scale X   with buckets: scale the loss by X to begin with, skip a step whose\n"
        "                   gradients are not finite, and halve X then (the loss is not scaled)\n"
        "  --scale-interval N  good steps until it is doubled (100)\n"
        "  --clip X         with a loss scale: clip the gradient's norm to X (not clipped)\n"
        "  --spoil STEP:RANK  with a loss scale: in that step one gradient of that rank is "
        "infinite\n"
        "  --log-every N    steps between lines of output (25)\n"
        "  --sample N       characters to write at the end (300)\n"
        "  --json FILE      rank 0 writes the run there\n"
        "  --dump DIR       each rank writes its gradients there, as rankR-stepS.npy, before they\n"
        "                   are summed: of the last steps, numbered from 0\n"
        "  --dump-steps N   of how many (1)\n"
        "  --elastic        if ranks die, the others go on (dcomm-run needs --keep-going), and\n"
        "                   ranks that are started again join them (with DCOMM_JOIN=1, and a file\n"
        "                   for all of them in DCOMM_JOIN_FILE)\n"
        "  --checkpoint DIR  write checkpoints there while training goes on; all ranks see DIR\n"
        "  --every N        steps between checkpoints (50)\n"
        "  --resume         begin with the newest checkpoint in DIR, if there is one; the number "
        "of\n"
        "                   ranks may be another\n"
        "  --die STEP:RANK[:PLACE]  kill that rank there, as a test: compute, sum, agree, update,\n"
        "                   recover, write, manifest (compute)\n"
        "  --gradcheck      only check the backward pass by finite differences");
    for (int p = 0; p < PARTS; p++) {
        puts(parts[p]->help);
    }
    puts("exit: 0 good, 1 wrong result, 2 usage, 3 communication error");
}

/* Return true on one rank. All ranks parse the same command line, but only one prints about it. */
static bool first_rank(void)
{
    static const char *const names[] = {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *value = getenv(names[i]);
        if (value != NULL) {
            return atoi(value) == 0;
        }
    }
    return true;
}

static int usage(const char *what)
{
    if (first_rank()) {
        fprintf(stderr, "trainer: %s (--help shows the options)\n", what);
    }
    return EXIT_USAGE;
}

bool parse_int(const char *text, int low, int high, int *value)
{
    char *end = NULL;
    errno = 0;
    long n = strtol(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 || n < low || n > high) {
        return false;
    }
    *value = (int)n;
    return true;
}

bool parse_rate(const char *text, float *rate)
{
    char *end = NULL;
    *rate = strtof(text, &end);
    return end != text && *end == '\0' && *rate > 0 && *rate <= 1;
}

bool parse_above(const char *text, float *value)
{
    char *end = NULL;
    *value = strtof(text, &end);
    return end != text && *end == '\0' && *value > 0 && *value <= 1e30f;
}

bool parse_place(const char *text, int *step, int *rank)
{
    int length = 0;
    return sscanf(text, "%9d:%9d%n", step, rank, &length) == 2 && text[length] == '\0' &&
           *step >= 0 && *rank >= 0;
}

int options_parse(options *o, int argc, char **argv, bool *done)
{
    enum {
        TEXT,
        STEPS,
        BATCH,
        SEQ,
        DIM,
        LAYERS,
        HEADS,
        SEED,
        ALGO,
        CODEC,
        FEEDBACK,
        DETERMINISTIC,
        BUCKETS,
        TRACE,
        REPORT,
        LOSS_SCALE,
        SCALE_INTERVAL,
        CLIP,
        SPOIL,
        LOG,
        SAMPLE,
        JSON,
        DUMP,
        DUMP_STEPS,
        ELASTIC,
        CHECKPOINT,
        EVERY,
        RESUME,
        DIE,
        GRADCHECK,
        HELP
    };
    static const struct option own[] = {
        {"text", required_argument, NULL, TEXT},
        {"steps", required_argument, NULL, STEPS},
        {"batch", required_argument, NULL, BATCH},
        {"seq", required_argument, NULL, SEQ},
        {"dim", required_argument, NULL, DIM},
        {"layers", required_argument, NULL, LAYERS},
        {"heads", required_argument, NULL, HEADS},
        {"seed", required_argument, NULL, SEED},
        {"algo", required_argument, NULL, ALGO},
        {"codec", required_argument, NULL, CODEC},
        {"feedback", required_argument, NULL, FEEDBACK},
        {"deterministic", no_argument, NULL, DETERMINISTIC},
        {"buckets", required_argument, NULL, BUCKETS},
        {"trace", required_argument, NULL, TRACE},
        {"report", no_argument, NULL, REPORT},
        {"loss-scale", required_argument, NULL, LOSS_SCALE},
        {"scale-interval", required_argument, NULL, SCALE_INTERVAL},
        {"clip", required_argument, NULL, CLIP},
        {"spoil", required_argument, NULL, SPOIL},
        {"log-every", required_argument, NULL, LOG},
        {"sample", required_argument, NULL, SAMPLE},
        {"json", required_argument, NULL, JSON},
        {"dump", required_argument, NULL, DUMP},
        {"dump-steps", required_argument, NULL, DUMP_STEPS},
        {"elastic", no_argument, NULL, ELASTIC},
        {"checkpoint", required_argument, NULL, CHECKPOINT},
        {"every", required_argument, NULL, EVERY},
        {"resume", no_argument, NULL, RESUME},
        {"die", required_argument, NULL, DIE},
        {"gradcheck", no_argument, NULL, GRADCHECK},
        {"help", no_argument, NULL, HELP},
    };
    enum { OWN = sizeof own / sizeof own[0] };
    struct option all[MOST_OPTIONS] = {{0}};
    memcpy(all, own, sizeof own);
    int n = OWN;
    for (int p = 0; p < PARTS; p++) {
        for (const struct option *one = parts[p]->table; one->name != NULL; one++) {
            all[n] = *one;
            all[n++].val += PART_VALUES * (p + 1);
        }
    }
    *o = (options){.text = "/usr/share/common-licenses",
                   .steps = 250,
                   .batch = 32,
                   .seq = 64,
                   .dim = 64,
                   .layers = 2,
                   .heads = 4,
                   .momentum = 0.7f,
                   .grad_dtype = DCOMM_F32,
                   .slow_rank = -1,
                   .wrong_step = -1,
                   .exact_steps = 50,
                   .warmup = -1,
                   .seed = 1,
                   .log_every = 25,
                   .sample = 300,
                   .scale_interval = 100,
                   .spoil_step = -1,
                   .dump_steps = 1,
                   .every = 50};
    opterr = 0;
    for (int c; (c = getopt_long(argc, argv, "", all, NULL)) != -1;) {
        bool good = true;
        switch (c) {
        case TEXT:
            o->text = optarg;
            break;
        case STEPS:
            good = parse_int(optarg, 1, 1000000, &o->steps);
            break;
        case BATCH:
            good = parse_int(optarg, 1, 65536, &o->batch);
            break;
        case SEQ:
            good = parse_int(optarg, 1, 2048, &o->seq);
            break;
        case DIM:
            good = parse_int(optarg, 8, 2048, &o->dim);
            break;
        case LAYERS:
            good = parse_int(optarg, 1, 64, &o->layers);
            break;
        case HEADS:
            good = parse_int(optarg, 1, 64, &o->heads);
            break;
        case SEED:
            good = parse_int(optarg, 0, INT_MAX, &o->seed);
            break;
        case ALGO:
            o->algo = optarg;
            break;
        case CODEC:
            o->codec = optarg;
            break;
        case FEEDBACK:
            good = strcmp(optarg, "none") == 0 || strcmp(optarg, "classic") == 0 ||
                   strcmp(optarg, "ef21") == 0 || strcmp(optarg, "dgc") == 0;
            o->feedback = optarg;
            break;
        case DETERMINISTIC:
            o->deterministic = true;
            break;
        case BUCKETS:
            good = parse_int(optarg, 1, 1 << 20, &o->buckets);
            break;
        case TRACE:
            o->trace = optarg;
            break;
        case REPORT:
            o->report = true;
            break;
        case LOSS_SCALE:
            good = parse_above(optarg, &o->loss_scale);
            break;
        case SCALE_INTERVAL:
            good = parse_int(optarg, 1, 1000000, &o->scale_interval);
            break;
        case CLIP:
            good = parse_above(optarg, &o->clip);
            break;
        case SPOIL:
            good = parse_place(optarg, &o->spoil_step, &o->spoil_rank);
            break;
        case LOG:
            good = parse_int(optarg, 1, 1000000, &o->log_every);
            break;
        case SAMPLE:
            good = parse_int(optarg, 0, 100000, &o->sample);
            break;
        case JSON:
            o->json = optarg;
            break;
        case DUMP:
            o->dump = optarg;
            break;
        case DUMP_STEPS:
            good = parse_int(optarg, 1, 1000000, &o->dump_steps);
            break;
        case ELASTIC:
            o->elastic = true;
            break;
        case CHECKPOINT:
            o->checkpoint = optarg;
            break;
        case EVERY:
            good = parse_int(optarg, 1, 1000000, &o->every);
            break;
        case RESUME:
            o->resume = true;
            break;
        case DIE:
            good = accident_parse(&o->accidents, optarg) == 0;
            break;
        case GRADCHECK:
            o->gradcheck = true;
            break;
        case HELP:
            if (first_rank()) {
                help();
            }
            *done = true;
            return 0;
        default:
            if (c < PART_VALUES) {
                return usage("unknown option, or its value is missing");
            }
            good = parts[c / PART_VALUES - 1]->take(o, c % PART_VALUES, optarg);
        }
        if (!good) {
            char text[128];
            snprintf(text, sizeof text, "%.80s: not a value of this option", optarg);
            return usage(text);
        }
    }
    if (optind != argc) {
        return usage("takes no arguments, only options");
    }
    for (int p = 0; p < PARTS; p++) {
        const char *wrong = parts[p]->check(o);
        if (wrong != NULL) {
            return usage(wrong);
        }
    }
    if (o->feedback != NULL && strcmp(o->feedback, "none") == 0) {
        o->feedback = NULL;
    }
    if (o->feedback != NULL && o->codec == NULL) {
        return usage("--feedback is for --codec");
    }
    if (o->buckets > 0 && (o->frozen || o->dump != NULL)) {
        return usage("--buckets goes neither with --optimizer frozen nor with --dump, which need "
                     "gradients that are not summed yet");
    }
    if ((o->loss_scale > 0 || o->report) && o->buckets == 0) {
        return usage("--loss-scale and --report are for --buckets");
    }
    if ((o->clip > 0 || o->spoil_step >= 0) && o->loss_scale == 0) {
        return usage("--clip and --spoil are for --loss-scale");
    }
    if (o->resume && o->checkpoint == NULL) {
        return usage("--resume is for --checkpoint");
    }
    if (o->elastic && o->frozen) {
        return usage("--elastic does not go with --optimizer frozen: each rank has a part of the "
                     "momentum, which dies with it");
    }
    if (o->elastic && o->report) {
        return usage(
            "--elastic does not go with --report: a rank that joins has no buckets to time");
    }
    if (o->trace != NULL && o->buckets == 0) {
        return usage("--trace is for --buckets");
    }
    if (o->dim % 8 != 0 || o->dim % o->heads != 0) {
        return usage("--dim must be a multiple of 8 and of --heads");
    }
    return 0;
}
