/* overlap_args.h - the command line of dcomm-overlap. */
#ifndef OVERLAP_ARGS_H
#define OVERLAP_ARGS_H

#include "dcomm/all.h"
#include "tool_ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OVERLAP_SIZES = 32, OVERLAP_PARAMS = 1024 };

typedef struct overlap_args {
    size_t bytes, buckets[OVERLAP_SIZES];
    size_t nbuckets;
    int params, steps, calls;
    double backward_ms;
    bool thread, none; /* progress by a thread, or none; neither: by calls */
    bool scaler;
    const char *algo, *codec, *json, *trace;
} overlap_args;

static void overlap_help(void)
{
    puts(
        "usage: dcomm-overlap [options]      under a launcher\n"
        "Steps of a made-up backward pass whose gradients are averaged in buckets, for bucket\n"
        "after bucket size. Backward is a fixed amount of arithmetic: what communication takes\n"
        "from the core makes it longer.\n"
        "  --bytes SIZE       of all gradients, f32; K, M, G are powers of 1024 (64M)\n"
        "  --params N         parameters, of equal size (64)\n"
        "  --backward-ms T    what backward takes alone (as long as communication does)\n"
        "  --buckets A,B,...  bucket sizes; 0: one for all (64K,256K,1M,4M,16M,0)\n"
        "  --progress WHO     calls: dcomm_buckets_progress after each piece of backward; thread:\n"
        "                     the context's; none (calls)\n"
        "  --calls N          pieces of backward per parameter (4)\n"
        "  --steps N          timed steps of each size (10)\n"
        "  --algo NAME        of the all-reduces (chosen by the library)\n"
        "  --codec SPEC       of the all-reduces (exact)\n"
        "  --scaler           each step has a verdict, and its gradients are unscaled (scaler.h)\n"
        "  --json FILE        write all of it as JSON\n"
        "  --trace FILE       rank 0's last three steps of the last size, for Perfetto\n"
        "  --help, --version\n"
        "A FILE is \"-\" for standard output; the table then goes to standard error.\n"
        "\n"
        "Times are medians over steps of the slowest rank's, in ms. alone: all buckets, one after\n"
        "another, with nothing else to do. hidden: (backward + alone - step) of the shorter of\n"
        "the two, in percent, with backward alone. over: step over the longer of backward and the\n"
        "shortest `alone` of all sizes, less 1, in percent. model: what the library's model and\n"
        "the order of buckets predict for the step. A last line says so if the machine was busy\n"
        "while it was measured.\n"
        "exit: 0 good, 1 wrong result, " TOOL_USAGE_HELP ",\n"
        "      3 communication error");
}

static bool overlap_parse_bytes(const char *text, size_t least, size_t *bytes)
{
    return numbers_size(text, least, (uint64_t)1 << 40, bytes);
}

/* Parse sizes such as "64K,1M,0". */
static bool overlap_parse_sizes(const char *text, overlap_args *a)
{
    for (a->nbuckets = 0; a->nbuckets < OVERLAP_SIZES; text++) {
        char one[32];
        size_t length = strcspn(text, ",");
        if (length >= sizeof one) {
            return false;
        }
        memcpy(one, text, length);
        one[length] = 0;
        if (!overlap_parse_bytes(one, 0, &a->buckets[a->nbuckets++])) {
            return false;
        }
        text += length;
        if (*text == 0) {
            return true;
        }
    }
    return false;
}

static int overlap_parse(overlap_args *a, int argc, char **argv, bool *done)
{
    static const struct option options[] = {{"bytes", required_argument, NULL, 'b'},
                                            {"params", required_argument, NULL, 'p'},
                                            {"backward-ms", required_argument, NULL, 'm'},
                                            {"buckets", required_argument, NULL, 'k'},
                                            {"progress", required_argument, NULL, 'w'},
                                            {"calls", required_argument, NULL, 'n'},
                                            {"steps", required_argument, NULL, 's'},
                                            {"algo", required_argument, NULL, 'a'},
                                            {"codec", required_argument, NULL, 'c'},
                                            {"scaler", no_argument, NULL, 'x'},
                                            {"json", required_argument, NULL, 'j'},
                                            {"trace", required_argument, NULL, 't'},
                                            {"help", no_argument, NULL, 'h'},
                                            {"version", no_argument, NULL, 'v'},
                                            {NULL, 0, NULL, 0}};
    static const char *const ways[] = {"calls", "thread", "none"};
    int way = 0;
    *a = (overlap_args){.bytes = (size_t)64 << 20, .params = 64, .steps = 10, .calls = 4};
    overlap_parse_sizes("64K,256K,1M,4M,16M,0", a);
    opterr = 0;
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        bool good = true;
        switch (c) {
        case 'b':
            good = overlap_parse_bytes(optarg, 1, &a->bytes);
            break;
        case 'p':
            good = numbers_int(optarg, 1, OVERLAP_PARAMS, &a->params);
            break;
        case 'm':
            good = numbers_real(optarg, 1e-6, 1e5, &a->backward_ms);
            break;
        case 'k':
            good = overlap_parse_sizes(optarg, a);
            break;
        case 'w':
            good = numbers_word(optarg, ways, 3, &way);
            a->thread = way == 1;
            a->none = way == 2;
            break;
        case 'n':
            good = numbers_int(optarg, 1, 10000, &a->calls);
            break;
        case 's':
            good = numbers_int(optarg, 1, 10000, &a->steps);
            break;
        case 'a':
            a->algo = optarg;
            break;
        case 'c':
            a->codec = optarg;
            break;
        case 'j':
            a->json = optarg;
            break;
        case 'x':
            a->scaler = true;
            break;
        case 't':
            a->trace = optarg;
            break;
        case 'h':
            return tool_show_help(overlap_help, done);
        case 'v':
            return tool_show_version(done);
        default:
            return tool_refuse_option(argv);
        }
        if (!good) {
            return tool_refuse_value(c, options, optarg);
        }
    }
    if (a->algo != NULL && !tool_algos(a->algo, DCOMM_COLL_ALLREDUCE, a->codec != NULL, NULL, 0)) {
        return tool_refuse("--algo", numbers_wanted);
    }
    if (!tool_codec(a->codec)) {
        return tool_refuse("--codec", dcomm_last_error());
    }
    return optind == argc ? TOOL_GOOD : tool_refuse("not an option", argv[optind]);
}

#endif
