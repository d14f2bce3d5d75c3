/* run_environment.h - the environment that dcomm-run gives to ranks. */
#ifndef RUN_ENVIRONMENT_H
#define RUN_ENVIRONMENT_H

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "run_options.h"

static void put_number(const char *name, long value)
{
    char text[32];
    snprintf(text, sizeof text, "%ld", value);
    setenv(name, text, 1);
}

static void random_bytes(void *p, size_t n)
{
    if (getrandom(p, n, 0) != (ssize_t)n) {
        fprintf(stderr, "dcomm-run: no random numbers: %s\n", strerror(errno));
        exit(1);
    }
}

static void random_hex(char *text, size_t bytes)
{
    uint8_t raw[32];
    random_bytes(raw, bytes);
    for (size_t i = 0; i < bytes; i++) {
        sprintf(text + 2 * i, "%02x", raw[i]);
    }
}

/* Return an unused TCP port. It lies below the kernel's ephemeral range, so that no outgoing
 * connection takes it before the ranks do. */
static int free_port(void)
{
    for (int tries = 0; tries < 1000; tries++) {
        uint16_t r;
        random_bytes(&r, sizeof r);
        struct sockaddr_in a = {.sin_family = AF_INET,
                                .sin_port = htons((uint16_t)(20000 + r % 12000)),
                                .sin_addr.s_addr = htonl(INADDR_ANY)};
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd < 0) {
            break;
        }
        bool is_free = bind(fd, (struct sockaddr *)&a, sizeof a) == 0;
        close(fd);
        if (is_free) {
            return ntohs(a.sin_port);
        }
    }
    fprintf(stderr, "dcomm-run: no free TCP port: %s\n", strerror(errno));
    exit(1);
}

/* ---- the file by which ranks come back ---- */

static char join_folder[4096]; /* "": none */

/* Remove the folder, with what a rank that was killed has left there. */
static void remove_join_folder(void)
{
    DIR *folder = opendir(join_folder);
    for (struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;) {
        unlinkat(dirfd(folder), entry->d_name, 0);
    }
    if (folder != NULL) {
        closedir(folder);
    }
    rmdir(join_folder);
}

/* Make a folder of this user's alone, and name a file in it for the ranks. */
static void make_join_folder(void)
{
    const char *where = getenv("TMPDIR");
    char file[sizeof join_folder + 8];
    snprintf(join_folder, sizeof join_folder, "%s/dcomm-run-XXXXXX",
             where != NULL && where[0] != '\0' ? where : "/tmp");
    if (mkdtemp(join_folder) == NULL || atexit(remove_join_folder) != 0) {
        fprintf(stderr, "dcomm-run: cannot make the folder %s: %s\n", join_folder, strerror(errno));
        exit(1);
    }
    snprintf(file, sizeof file, "%s/id", join_folder);
    setenv("DCOMM_JOIN_FILE", file, 1);
}

/* ---- variables ---- */

/* Set the variables that are the same for all ranks; `run` names this run. */
static void prepare_environment(const options *o, char run[17])
{
    random_hex(run, 8);
    unsetenv("DCOMM_JOIN"); /* this program may be a rank that was started again */
    put_number("WORLD_SIZE", (long)o->ranks * o->nodes);
    put_number("LOCAL_WORLD_SIZE", o->ranks);
    put_number("GROUP_RANK", o->node);
    if (o->master_addr != NULL) {
        setenv("MASTER_ADDR", o->master_addr, 1);
        setenv("MASTER_PORT", o->master_port, 1);
    } else {
        setenv("MASTER_ADDR", "127.0.0.1", 1);
        put_number("MASTER_PORT", free_port());
        put_number("DCOMM_PORT", free_port());
    }
    if (o->nodes == 1) {
        char secret[33];
        random_hex(secret, 16);
        setenv("DCOMM_SECRET", secret, 1);
        unsetenv("DCOMM_SECRET_FILE");
        setenv("DCOMM_JOB", run, 1);
    }
    if (o->restarts > 0 && getenv("DCOMM_JOIN_FILE") == NULL) {
        make_join_folder();
    }
}

static void rank_environment(const options *o, int local, const char *run)
{
    int rank = rank_of(o, local);
    put_number("RANK", rank);
    put_number("LOCAL_RANK", local);
    if (o->host_id_every > 0) {
        char id[64];
        snprintf(id, sizeof id, "run-%s-%d", run, rank / o->host_id_every);
        setenv("DCOMM_HOSTID", id, 1);
    }
}

#endif
