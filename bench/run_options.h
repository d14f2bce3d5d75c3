/* run_options.h - the command line of dcomm-run. */
#ifndef RUN_OPTIONS_H
#define RUN_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "run_busy.h"
#include "tool.h"

#define RANKS_MAX 4096

static const char usage[] =
    "usage: dcomm-run -n N [options] [--] PROGRAM [ARGUMENTS]\n"
    "\n"
    "Starts N ranks of PROGRAM on this machine, with the environment variables of torchrun: RANK,\n"
    "WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT. When a rank fails, says\n"
    "which and how, ends the others, and exits as that rank did (128+n for signal n).\n"
    "\n"
    "  -n N                   ranks on this machine\n"
    "  --bind slice|core|none|auto  cores of a rank: an equal share, one, or any; auto: slice,\n"
    "                         but none where ranks outnumber the cores or where other programs\n"
    "                         use half of a core (default: auto)\n"
    "  --host-id-every K      ranks 0..K-1, K..2K-1, ... pass for hosts that share no memory\n"
    "  --nnodes M             machines in all; needs --node-rank and --master (default: 1)\n"
    "  --node-rank R          which of them this is, from 0\n"
    "  --master HOST:PORT     machine 0; every machine needs the same DCOMM_SECRET or\n"
    "                         DCOMM_SECRET_FILE\n"
    "  --rank-order block|cyclic  a machine's ranks follow each other, or are M apart, so that\n"
    "                         neighbours sit on different machines (default: block)\n"
    "  --timeout S            end all ranks after S seconds, and exit with 124\n"
    "  --keep-going           leave the other ranks alone when one fails\n"
    "  --restart N            N times in all, start a rank that fails again, to join the others,\n"
    "                         which go on (dcomm_comm_grow); start all ranks again if no\n"
    "                         communicator was whole yet, or none is left; not once a rank has\n"
    "                         ended with 0\n"
    "  --tag-output           begin each line of output with its rank\n"
    "  --json FILE            write how each rank ended: status, signal, seconds (\"-\": standard\n"
    "                         output; that of the ranks then goes to standard error)\n"
    "  --help                 this text\n"
    "  --version              " TOOL_VERSION_HELP "\n"
    "\n"
    "SIGINT, SIGTERM and SIGHUP are passed on to the ranks; a second one ends them within 2 s.\n"
    "Only rank 0 reads standard input, and only where that is no terminal.\n"
    "Exit status, but for that of a rank: 1 no ranks can be started,\n" TOOL_USAGE_HELP
    ", 124 --timeout is over,\n"
    "126 PROGRAM cannot be run, 127 it is not there.\n";

typedef struct options {
    int ranks, nodes, node, host_id_every;
    int restarts; /* of ranks that fail, in all */
    enum run_bind bind;
    double timeout;
    bool keep_going, tag, cyclic;
    char *master_addr, *master_port;
    tool_out json;
    char **command;
} options;

static int rank_of(const options *o, int local)
{
    return o->cyclic ? local * o->nodes + o->node : o->node * o->ranks + local;
}

static _Noreturn void usage_error(const char *what, const char *value)
{
    exit(tool_refuse(what, value));
}

/* Parse HOST:PORT or [IPV6]:PORT. */
static bool parse_master(options *o, char *text)
{
    char *colon = strrchr(text, ':');
    int port = 0;
    if (colon == NULL || colon == text || !numbers_int(colon + 1, 1, 65534, &port)) {
        return numbers_want("it must be HOST:PORT, with a port from 1 to 65534");
    }
    *colon = '\0';
    o->master_port = colon + 1;
    o->master_addr = text;
    size_t length = strlen(text);
    if (text[0] == '[' && text[length - 1] == ']') {
        text[length - 1] = '\0';
        o->master_addr = text + 1;
    }
    return true;
}

static void parse(options *o, int argc, char **argv)
{
    enum {
        BIND = 256,
        HOST_ID,
        NNODES,
        NODE_RANK,
        MASTER,
        ORDER,
        TIMEOUT,
        KEEP_GOING,
        RESTART,
        TAG,
        JSON,
        HELP,
        VERSION
    };
    static const struct option longs[] = {{"bind", required_argument, NULL, BIND},
                                          {"host-id-every", required_argument, NULL, HOST_ID},
                                          {"nnodes", required_argument, NULL, NNODES},
                                          {"node-rank", required_argument, NULL, NODE_RANK},
                                          {"master", required_argument, NULL, MASTER},
                                          {"rank-order", required_argument, NULL, ORDER},
                                          {"timeout", required_argument, NULL, TIMEOUT},
                                          {"keep-going", no_argument, NULL, KEEP_GOING},
                                          {"restart", required_argument, NULL, RESTART},
                                          {"tag-output", no_argument, NULL, TAG},
                                          {"json", required_argument, NULL, JSON},
                                          {"help", no_argument, NULL, HELP},
                                          {"version", no_argument, NULL, VERSION},
                                          {NULL, 0, NULL, 0}};
    *o = (options){.nodes = 1, .node = -1, .bind = RUN_BIND_AUTO};
    static const char *const orders[] = {"block", "cyclic"};
    const char *json = NULL;
    int c, order = 0;
    opterr = 0;
    while ((c = getopt_long(argc, argv, "+n:h", longs, NULL)) != -1) {
        bool good = true;
        switch (c) {
        case 'n':
            good = numbers_int(optarg, 1, RANKS_MAX, &o->ranks);
            break;
        case BIND:
            good = run_bind_parse(optarg, &o->bind);
            break;
        case HOST_ID:
            good = numbers_int(optarg, 1, INT32_MAX, &o->host_id_every);
            break;
        case NNODES:
            good = numbers_int(optarg, 1, 65536, &o->nodes);
            break;
        case NODE_RANK:
            good = numbers_int(optarg, 0, 65535, &o->node);
            break;
        case MASTER:
            good = parse_master(o, optarg);
            break;
        case ORDER:
            good = numbers_word(optarg, orders, 2, &order);
            o->cyclic = order == 1;
            break;
        case TIMEOUT:
            good = dcommi_text_seconds(optarg, 1e-3, 1e9, &o->timeout) ||
                   numbers_want("it must be seconds from 0.001 to 1e9, such as 30 or 5m");
            break;
        case KEEP_GOING:
            o->keep_going = true;
            break;
        case RESTART:
            good = numbers_int(optarg, 0, 1000000, &o->restarts);
            break;
        case TAG:
            o->tag = true;
            break;
        case JSON:
            json = optarg;
            break;
        case HELP:
        case 'h':
            fputs(usage, stdout);
            exit(tool_end(TOOL_GOOD));
        case VERSION:
            tool_print_version();
            exit(tool_end(TOOL_GOOD));
        default:
            exit(tool_refuse_option(argv));
        }
        if (!good) {
            exit(tool_refuse_value(c, longs, optarg));
        }
    }
    o->command = argv + optind;
    if (o->ranks == 0) {
        usage_error("-n is missing", NULL);
    }
    if (o->command[0] == NULL) {
        usage_error("the program is missing", NULL);
    }
    if (o->nodes > 1 && (o->node < 0 || o->master_addr == NULL)) {
        usage_error("--nnodes needs --node-rank and --master", NULL);
    }
    if (o->node >= o->nodes) {
        usage_error("--node-rank must be less than --nnodes", NULL);
    }
    o->node = o->node < 0 ? 0 : o->node;
    if (o->nodes > 1 && o->restarts > 0 && getenv("DCOMM_JOIN_FILE") == NULL) {
        usage_error("--restart with --nnodes needs DCOMM_JOIN_FILE, a file that all machines see",
                    NULL);
    }
    if (o->nodes > 1 && getenv("DCOMM_SECRET") == NULL && getenv("DCOMM_SECRET_FILE") == NULL) {
        tool_say(
            "neither DCOMM_SECRET nor DCOMM_SECRET_FILE is set: machines will not authenticate "
            "each other");
    }
    if (!tool_open(&o->json, json)) {
        exit(TOOL_USAGE);
    }
}

#endif
