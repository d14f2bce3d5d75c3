/* launcher.h - finds in the environment which launcher started this process: its rank and size,
 * the ranks' meeting place, and their job. */
#ifndef DCOMMI_LAUNCHER_H
#define DCOMMI_LAUNCHER_H

#include "../base/environment.h"
#include "job.h"
#include "../base/nodelist.h"
#include "rendezvous_wire.h"
#include "socket.h"

#define DCOMMI_SECRET_MAX 4096
#define DCOMMI_HOST_MAX 256

typedef enum dcommi_meeting {
    DCOMMI_MEET_ALONE = 0, /* one rank of one */
    DCOMMI_MEET_TCP,       /* rank 0 serves at host:port */
    DCOMMI_MEET_PMI,       /* rank 0 shares an id by PMI-1 */
    DCOMMI_MEET_PMIX       /* rank 0 shares an id by PMIx; without PMIx, by TCP if `host` is set */
} dcommi_meeting;

typedef struct dcommi_launcher {
    const char *name; /* for people */
    dcommi_meeting meeting;
    int rank, size; /* size 0: PMIx knows both */
    int local_rank; /* -1: not told */
    int pmi_fd;
    char host[DCOMMI_HOST_MAX]; /* "": none */
    uint16_t port;
    bool loopback; /* only this machine can reach `host` */
    bool secret;   /* `key` comes from a secret */
    uint8_t key[DCOMMI_RDV_KEY];
    char job[DCOMMI_RDV_JOB_MAX + 1]; /* only if the ranks meet by TCP */
    const char *hint; /* variable that suggests several ranks although there is one; NULL: none */
} dcommi_launcher;

/* Read rank and size from two variables. Both must be set, and the rank must be below the size. */
static dcomm_status dcommi_launcher_world(dcommi_launcher *l, const char *rank_name,
                                          const char *size_name)
{
    int rank = -1, size = -1;
    DCOMMI_TRY(dcommi_env_int(size_name, 1, DCOMMI_RDV_SIZE_MAX, &size));
    DCOMMI_TRY(dcommi_env_int(rank_name, 0, DCOMMI_RDV_SIZE_MAX - 1, &rank));
    if (rank < 0) {
        return dcommi_env_missing(rank_name, "the number of ranks is; set both or neither");
    }
    if (size < 0) {
        return dcommi_env_missing(size_name, "the rank is; set both or neither");
    }
    if (rank >= size) {
        return dcommi_fail(DCOMM_ERR_INVALID, "environment variable %s=%d is not below %s=%d",
                           rank_name, rank, size_name, size);
    }
    l->rank = rank;
    l->size = size;
    return DCOMM_OK;
}

static dcomm_status dcommi_launcher_secret_file(const char *path, dcommi_launcher *l)
{
    char text[DCOMMI_SECRET_MAX + 1];
    const ssize_t n = dcommi_sys_load(path, text, sizeof text);
    if (n < 0) {
        return dcommi_fail(DCOMM_ERR_INVALID, "cannot read DCOMM_SECRET_FILE=\"%.200s\": %s", path,
                           strerror(errno));
    }
    size_t len = (size_t)n;
    while (len > 0 && (text[len - 1] == '\n' || text[len - 1] == '\r')) {
        len--;
    }
    if (len == 0 || len > DCOMMI_SECRET_MAX) {
        return dcommi_fail(DCOMM_ERR_INVALID,
                           "DCOMM_SECRET_FILE=\"%.200s\" must hold 1 to %d bytes", path,
                           DCOMMI_SECRET_MAX);
    }
    dcommi_rdv_key_of(text, len, l->key);
    l->secret = true;
    return DCOMM_OK;
}

static dcomm_status dcommi_launcher_secret(dcommi_launcher *l)
{
    const char *secret = dcommi_env("DCOMM_SECRET"), *file = dcommi_env("DCOMM_SECRET_FILE");
    memset(l->key, 0, sizeof l->key);
    if (secret != NULL && file != NULL) {
        return dcommi_fail(DCOMM_ERR_INVALID,
                           "both DCOMM_SECRET and DCOMM_SECRET_FILE=\"%.200s\" are set; unset one",
                           file);
    }
    if (secret != NULL) {
        dcommi_rdv_key_of(secret, strlen(secret), l->key);
        l->secret = true;
    }
    return file != NULL ? dcommi_launcher_secret_file(file, l) : DCOMM_OK;
}

/* Name the job: DCOMM_JOB, else the launcher's name for it, else the command line. */
static dcomm_status dcommi_launcher_job(dcommi_launcher *l)
{
    const char *word = dcommi_env("DCOMM_JOB"), *run = dcommi_env("TORCHELASTIC_RUN_ID");
    const char *restart = dcommi_env("TORCHELASTIC_RESTART_COUNT");
    const char *space = dcommi_env("PMIX_NAMESPACE"), *pmi = dcommi_env("PMI_JOBID");
    size_t max = sizeof l->job;
    if (word != NULL && strlen(word) >= max - sizeof "DCOMM_JOB=") {
        return dcommi_fail(DCOMM_ERR_INVALID,
                           "environment variable DCOMM_JOB has %zu bytes; the limit is %zu",
                           strlen(word), max - sizeof "DCOMM_JOB=" - 1);
    }
    bool torch = strcmp(l->name, "torchrun") == 0;
    if (word != NULL) {
        snprintf(l->job, max, "DCOMM_JOB=%s", word);
    } else if (torch && run != NULL && strcmp(run, "none") != 0) {
        snprintf(l->job, max, "torchrun's run %.300s, restart %.20s", run,
                 restart != NULL ? restart : "0");
    } else if (strcmp(l->name, "Slurm") == 0) {
        const char *job = dcommi_env("SLURM_JOB_ID"), *step = dcommi_env("SLURM_STEP_ID");
        snprintf(l->job, max, "Slurm's job %.100s, step %.100s", job != NULL ? job : "?",
                 step != NULL ? step : "?");
    } else if (!torch && (space != NULL || pmi != NULL)) {
        snprintf(l->job, max, "%s's job %.300s", l->name, space != NULL ? space : pmi);
    } else {
        size_t at = (size_t)snprintf(l->job, max, "%s", DCOMMI_JOB_COMMAND);
        dcommi_job_command(l->job + at, max - at - 40);
        snprintf(l->job + strlen(l->job), 40, torch && restart != NULL ? "\", restart %.20s" : "\"",
                 restart);
    }
    /* Make it equal to a name that has come over the network. */
    dcommi_rdv_printable((const uint8_t *)l->job, strlen(l->job), l->job);
    return DCOMM_OK;
}

/* Meet at MASTER_ADDR (or `host`) and DCOMM_PORT, else MASTER_PORT + 1, else `port`. */
static dcomm_status dcommi_launcher_tcp(dcommi_launcher *l, const char *host, int port)
{
    const char *master = dcommi_env("MASTER_ADDR");
    int master_port = -1;
    host = master != NULL ? master : host;
    if (host == NULL) {
        return dcommi_env_missing("MASTER_ADDR", "there are several ranks; set it on all of them");
    }
    if (strlen(host) >= sizeof l->host) {
        return dcommi_fail(DCOMM_ERR_INVALID,
                           "environment variable MASTER_ADDR has %zu bytes, which is too long for "
                           "a host name",
                           strlen(host));
    }
    strcpy(l->host, host);
    dcommi_addr literal;
    l->loopback = strcmp(host, "localhost") == 0 ||
                  (dcommi_addr_literal(host, 0, &literal) && dcommi_addr_loopback(&literal));
    DCOMMI_TRY(dcommi_env_int("MASTER_PORT", 1, 65535, &master_port));
    if (master_port == 65535 && dcommi_env("DCOMM_PORT") == NULL) {
        return dcommi_fail(DCOMM_ERR_INVALID,
                           "environment variable MASTER_PORT=65535 leaves dcomm no next port; set "
                           "DCOMM_PORT");
    }
    if (master_port > 0) {
        port = master_port + 1;
    }
    DCOMMI_TRY(dcommi_env_int("DCOMM_PORT", 1, 65535, &port));
    if (port <= 0) {
        return dcommi_env_missing("MASTER_PORT",
                                  "there are several ranks; set it, or DCOMM_PORT, on all of them");
    }
    l->port = (uint16_t)port;
    DCOMMI_TRY(dcommi_launcher_job(l));
    return dcommi_launcher_secret(l);
}

/* Take rank, size and local rank from a launcher's variables. `local` may be NULL. */
static dcomm_status dcommi_launcher_take(dcommi_launcher *l, const char *name, const char *rank,
                                         const char *size, const char *local,
                                         dcommi_meeting meeting)
{
    l->name = name;
    DCOMMI_TRY(dcommi_launcher_world(l, rank, size));
    if (local != NULL) {
        DCOMMI_TRY(dcommi_env_int(local, 0, DCOMMI_RDV_SIZE_MAX, &l->local_rank));
    }
    if (l->size == 1) {
        return DCOMM_OK;
    }
    l->meeting = meeting;
    return meeting == DCOMMI_MEET_TCP ? dcommi_launcher_tcp(l, NULL, 0) : DCOMM_OK;
}

static dcomm_status dcommi_launcher_slurm(dcommi_launcher *l)
{
    char host[DCOMMI_HOST_MAX] = "";
    const char *nodes = dcommi_env("SLURM_STEP_NODELIST");
    const char *job = dcommi_env("SLURM_JOB_ID"), *step = dcommi_env("SLURM_STEP_ID");
    const bool pmix = dcommi_env("PMIX_RANK") != NULL && dcommi_env("PMIX_NAMESPACE") != NULL;
    DCOMMI_TRY(dcommi_launcher_take(
        l, "Slurm", "SLURM_PROCID",
        dcommi_env("SLURM_STEP_NUM_TASKS") != NULL ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS",
        "SLURM_LOCALID", DCOMMI_MEET_PMIX));
    if (l->size == 1) {
        return DCOMM_OK;
    }
    l->meeting = pmix ? DCOMMI_MEET_PMIX : DCOMMI_MEET_TCP;
    int node_count = 0;
    DCOMMI_TRY(dcommi_env_int("SLURM_STEP_NUM_NODES", 1, DCOMMI_RDV_SIZE_MAX, &node_count));
    if (node_count == 1) {
        nodes = "127.0.0.1"; /* other machines cannot reach it, and it needs no name service */
    }
    if (nodes == NULL && dcommi_env("MASTER_ADDR") == NULL) {
        return pmix ? DCOMM_OK
                    : dcommi_env_missing("SLURM_STEP_NODELIST",
                                         "SLURM_STEP_ID is; set MASTER_ADDR on all ranks");
    }
    if (nodes != NULL && !dcommi_nodelist_first(nodes, host, sizeof host)) {
        return dcommi_fail(
            DCOMM_ERR_INVALID,
            "environment variable SLURM_STEP_NODELIST=\"%.100s\" is no list of hosts", nodes);
    }
    /* The port is below the ephemeral ports, the same for all ranks of a step, and usually another
     * for another step. */
    uint64_t mixed =
        dcommi_mix(strtoull(job != NULL ? job : "0", NULL, 10), strtoull(step, NULL, 10));
    return dcommi_launcher_tcp(l, nodes != NULL ? host : NULL, (int)(20000 + mixed % 12000));
}

/* Handle a rank that no launcher describes fully. Fail if variables describe it partly; otherwise
 * it is a communicator of one rank. */
static dcomm_status dcommi_launcher_none(dcommi_launcher *l)
{
    static const char *const pairs[][2] = {{"RANK", "WORLD_SIZE"},
                                           {"MASTER_ADDR", "MASTER_PORT"},
                                           {"PMI_RANK", "PMI_SIZE"},
                                           {"PMIX_RANK", "PMIX_NAMESPACE"}};
    static const char *const hints[] = {"LOCAL_RANK",
                                        "OMPI_COMM_WORLD_LOCAL_RANK",
                                        "OMPI_COMM_WORLD_LOCAL_SIZE",
                                        "OMPI_COMM_WORLD_NODE_RANK",
                                        "OMPI_UNIVERSE_SIZE",
                                        "MPI_LOCALRANKID"};
    static const char *const counts[] = {"SLURM_NTASKS", "SLURM_NPROCS", "LOCAL_WORLD_SIZE"};
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        for (int k = 0; k < 2; k++) {
            if (dcommi_env(pairs[i][k]) != NULL && dcommi_env(pairs[i][1 - k]) == NULL) {
                return dcommi_fail(DCOMM_ERR_INVALID,
                                   "environment variable %s=%.64s is set, but %s is not: set both "
                                   "(and RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT for several "
                                   "ranks), or neither for one rank",
                                   pairs[i][k], dcommi_env(pairs[i][k]), pairs[i][1 - k]);
            }
        }
    }
    if (dcommi_env("MASTER_ADDR") != NULL) {
        return dcommi_fail(
            DCOMM_ERR_INVALID,
            "environment variables MASTER_ADDR and MASTER_PORT are set, but RANK and "
            "WORLD_SIZE are not: set all four, or none for one rank");
    }
    for (size_t i = 0; i < sizeof hints / sizeof hints[0] && l->hint == NULL; i++) {
        l->hint = dcommi_env(hints[i]) != NULL ? hints[i] : NULL;
    }
    for (size_t i = 0; i < sizeof counts / sizeof counts[0] && l->hint == NULL; i++) {
        const char *count = dcommi_env(counts[i]);
        l->hint = count != NULL && strtol(count, NULL, 10) > 1 ? counts[i] : NULL;
    }
    return DCOMM_OK;
}

/* Find the launcher, and check every variable that says how to meet. DCOMM_ERR_INVALID names a bad
 * variable. The innermost launcher wins: torchrun runs inside Slurm's tasks, mpirun inside its
 * jobs. */
static dcomm_status dcommi_launcher_detect(dcommi_launcher *l)
{
    memset(l, 0, sizeof *l);
    l->name = "no launcher";
    l->size = 1;
    l->local_rank = -1;
    l->pmi_fd = -1;
    bool rank = dcommi_env("RANK") != NULL, world = dcommi_env("WORLD_SIZE") != NULL;
    bool master = dcommi_env("MASTER_ADDR") != NULL && dcommi_env("MASTER_PORT") != NULL;
    /* A batch script has SLURM_PROCID too, but it is no step. */
    bool slurm = dcommi_env("SLURM_STEP_ID") != NULL && dcommi_env("SLURM_PROCID") != NULL;
    /* Batch scripts for PyTorch export all but RANK, which each task takes from Slurm. */
    world = world && (rank || !slurm);
    if ((rank && world) || (master && (rank || world))) {
        return dcommi_launcher_take(l, "torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK",
                                    DCOMMI_MEET_TCP);
    }
    if (dcommi_env("OMPI_COMM_WORLD_SIZE") != NULL || dcommi_env("OMPI_COMM_WORLD_RANK") != NULL) {
        DCOMMI_TRY(dcommi_launcher_take(l, "Open MPI", "OMPI_COMM_WORLD_RANK",
                                        "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
                                        DCOMMI_MEET_PMIX));
        return l->size > 1 && master ? dcommi_launcher_tcp(l, NULL, 0) : DCOMM_OK;
    }
    /* Slurm's own PMI_FD takes "init" only once, so MPI and we cannot both use it. Hydra inside
     * Slurm inherits PMI_JOBID, but it also sets the local rank. */
    bool slurm_pmi =
        slurm && dcommi_env("PMI_JOBID") != NULL && dcommi_env("MPI_LOCALRANKID") == NULL;
    if (dcommi_env("PMI_FD") != NULL && !slurm_pmi) {
        DCOMMI_TRY(dcommi_launcher_take(l, "PMI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID",
                                        DCOMMI_MEET_PMI));
        return dcommi_env_int("PMI_FD", 0, INT32_MAX, &l->pmi_fd);
    }
    if (slurm) {
        return dcommi_launcher_slurm(l);
    }
    if (dcommi_env("PMIX_RANK") != NULL && dcommi_env("PMIX_NAMESPACE") != NULL) {
        l->name = "PMIx";
        l->meeting = DCOMMI_MEET_PMIX;
        l->size = 0;
        return master ? dcommi_launcher_tcp(l, NULL, 0) : DCOMM_OK;
    }
    if (dcommi_env("PMI_RANK") != NULL && dcommi_env("PMI_SIZE") != NULL) {
        return dcommi_launcher_take(l, "PMI", "PMI_RANK", "PMI_SIZE", NULL, DCOMMI_MEET_TCP);
    }
    return dcommi_launcher_none(l);
}

#endif
