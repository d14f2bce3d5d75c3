/* options_rules.c - options of the rules by which the trainer learns: the optimizer and its rate.
 */
#include "options_part.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    RATE,
    MOMENTUM,
    OPTIMIZER,
    EXACT_STEPS,
    SCALE_RATE,
    WARMUP,
    GRAD_DTYPE,
    BALANCE,
    SLOW,
    NOISE_SCALE,
    HASH_EVERY,
    SPOIL_WEIGHT
};

static const struct option table[] = {
    {"lr", required_argument, NULL, RATE},
    {"momentum", required_argument, NULL, MOMENTUM},
    {"optimizer", required_argument, NULL, OPTIMIZER},
    {"exact-steps", required_argument, NULL, EXACT_STEPS},
    {"scale-lr", required_argument, NULL, SCALE_RATE},
    {"warmup", required_argument, NULL, WARMUP},
    {"grad-dtype", required_argument, NULL, GRAD_DTYPE},
    {"balance", no_argument, NULL, BALANCE},
    {"slow", required_argument, NULL, SLOW},
    {"noise-scale", no_argument, NULL, NOISE_SCALE},
    {"hash-every", required_argument, NULL, HASH_EVERY},
    {"spoil-weight", required_argument, NULL, SPOIL_WEIGHT},
    {NULL, 0, NULL, 0},
};

static const char help[] =
    "rules of learning (docs/training-rules.md):\n"
    "  --optimizer O    adam, sgd, adagrad, lars, lamb: on the sum of the gradients. frozen: "
    "after\n"
    "                   --exact-steps steps of Adam, whose sums are exact, its variance stays, "
    "and\n"
    "                   what ranks send is their own momentum divided by its root. 1bit-adam:\n"
    "                   frozen with --codec sign --feedback classic, unless others are given "
    "(adam)\n"
    "  --exact-steps N  of frozen and 1bit-adam (50)\n"
    "  --lr X           highest learning rate (0.005; sgd 0.3; adagrad 0.02; lars, lamb 0.02)\n"
    "  --momentum X     Adam's and LAMB's first decay, momentum of sgd and lars (0.7)\n"
    "  --scale-lr S     by the number of ranks N at the start: linear: N times the rate; sqrt: "
    "its\n"
    "                   root times. So --lr is that of one rank's part of the batch (neither)\n"
    "  --warmup N       steps in which the rate rises (20); with --feedback dgc: steps in which\n"
    "                   more than the codec's k is sent (0), and the rate rises in 20\n"
    "  --grad-dtype T   sum gradients as f16, bf16 or f32; weights and optimizer stay f32. f16 "
    "implies\n"
    "                   --loss-scale 1024, both imply --buckets 256, unless others are given "
    "(f32)\n"
    "  --balance        divide batches by the speeds of the ranks, measured every 10 steps "
    "(equally)\n"
    "  --slow RANK:X    that rank takes X times as long, as a test\n"
    "  --noise-scale    print the gradient noise scale: how large a batch pays\n"
    "  --hash-every N   print a hash of the weights every N steps, and end if ranks differ (0, "
    "never)\n"
    "  --spoil-weight STEP:RANK  change a weight of that rank after that step, as a test";

static const struct {
    const char *name;
    optimizer_kind kind;
    float rate;
} optimizers[] = {
    {"adam", OPTIMIZER_ADAM, 0.005f},        {"frozen", OPTIMIZER_FROZEN, 0.005f},
    {"1bit-adam", OPTIMIZER_FROZEN, 0.005f}, {"sgd", OPTIMIZER_SGD, 0.3f},
    {"adagrad", OPTIMIZER_ADAGRAD, 0.02f},   {"lars", OPTIMIZER_LARS, 0.02f},
    {"lamb", OPTIMIZER_LAMB, 0.02f},
};

enum { OPTIMIZERS = sizeof optimizers / sizeof optimizers[0], WARM_UP = 20 };

/* Return the index of an optimizer; OPTIMIZERS if there is none of this name. */
static int find_optimizer(const char *name)
{
    int i = 0;
    while (i < OPTIMIZERS && strcmp(optimizers[i].name, name) != 0) {
        i++;
    }
    return i;
}

/* Parse a number with 0 <= value < 1. */
static bool parse_decay(const char *text, float *decay)
{
    char *end = NULL;
    *decay = strtof(text, &end);
    return end != text && *end == '\0' && *decay >= 0 && *decay < 1;
}

/* Parse RANK:X with X from 1 to 1000. */
static bool parse_slow(const char *text, options *o)
{
    int length = 0;
    return sscanf(text, "%9d:%f%n", &o->slow_rank, &o->slow_times, &length) == 2 &&
           text[length] == '\0' && o->slow_rank >= 0 && o->slow_times >= 1 && o->slow_times <= 1000;
}

static bool take(options *o, int val, const char *value)
{
    switch (val) {
    case RATE:
        return parse_rate(value, &o->rate);
    case MOMENTUM:
        return parse_decay(value, &o->momentum);
    case OPTIMIZER:
        o->optimizer = value;
        return find_optimizer(value) < OPTIMIZERS;
    case EXACT_STEPS:
        return parse_int(value, 1, 1000000, &o->exact_steps);
    case SCALE_RATE:
        o->scale_rate = strcmp(value, "sqrt") == 0 ? SCALE_SQRT : SCALE_LINEAR;
        return o->scale_rate == SCALE_SQRT || strcmp(value, "linear") == 0;
    case WARMUP:
        return parse_int(value, 0, 1000000, &o->warmup);
    case BALANCE:
        o->balance = true;
        return true;
    case SLOW:
        return parse_slow(value, o);
    case NOISE_SCALE:
        o->noise_scale = true;
        return true;
    case HASH_EVERY:
        return parse_int(value, 1, 1000000, &o->hash_every);
    case SPOIL_WEIGHT:
        return parse_place(value, &o->wrong_step, &o->wrong_rank);
    default:
        o->grad_dtype = strcmp(value, "f16") == 0    ? DCOMM_F16
                        : strcmp(value, "bf16") == 0 ? DCOMM_BF16
                                                     : DCOMM_F32;
        return o->grad_dtype != DCOMM_F32 || strcmp(value, "f32") == 0;
    }
}

static const char *check(options *o)
{
    o->optimizer = o->optimizer != NULL ? o->optimizer : "adam";
    int i = find_optimizer(o->optimizer);
    o->kind = optimizers[i].kind;
    o->frozen = o->kind == OPTIMIZER_FROZEN;
    o->rate = o->rate > 0 ? o->rate : optimizers[i].rate;
    if (strcmp(o->optimizer, "1bit-adam") == 0) {
        o->codec = o->codec != NULL ? o->codec : "sign";
        o->feedback = o->feedback != NULL ? o->feedback : "classic";
    }
    if (o->grad_dtype != DCOMM_F32 && o->buckets == 0) {
        o->buckets = 256;
    }
    if (o->grad_dtype == DCOMM_F16 && o->loss_scale == 0) {
        o->loss_scale = 1024;
    }
    if (o->noise_scale && o->frozen) {
        return "--noise-scale does not go with frozen optimizers, which do not sum gradients";
    }
    bool dgc = o->feedback != NULL && strcmp(o->feedback, "dgc") == 0;
    o->rate_warmup = dgc || o->warmup < 0 ? WARM_UP : o->warmup;
    o->warmup = dgc && o->warmup > 0 ? o->warmup : 0;
    return NULL;
}

const options_part options_rules = {help, table, take, check};
