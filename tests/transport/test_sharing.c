/* test_sharing.c - ranks of one machine share memory in any containers that share enough, and
 * killed ranks leave nothing behind. Containers are made of the kernel's namespaces; tests skip
 * where that is not allowed. */
#define _GNU_SOURCE
#include "faults.h"
#include "ranks.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/socket.h>

enum { COUNT = 100000, OVER = 63 /* the word that ends a container */ };

/* ---- containers ---- */

typedef struct container {
    const char *name;
    int own;     /* its own namespaces: CLONE_NEW* */
    bool shared; /* /dev/shm */
    int victim;  /* this rank is killed; -1: none */
} container;

static bool put(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    bool done = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    if (fd >= 0) {
        close(fd);
    }
    return done;
}

/* Enter new namespaces as the current user. Return false if that is not allowed here. */
static bool enter_namespaces(int own)
{
    char map[64];
    unsigned uid = geteuid();
    if (uid != 0) {
        own |= CLONE_NEWUSER;
    }
    if (unshare(own) != 0) {
        return false;
    }
    snprintf(map, sizeof map, "%u %u 1", uid, uid);
    return (own & CLONE_NEWUSER) == 0 || put("/proc/self/uid_map", map);
}

/* Mount a file system that only this process and its children see. */
static bool mount_fresh(const char *path)
{
    return mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
           mount("tmpfs", path, "tmpfs", 0, "size=16m") == 0;
}

static bool enter(const container *c)
{
    if (!enter_namespaces(c->own)) {
        return false;
    }
    if ((c->own & CLONE_NEWUTS) != 0 && sethostname("container", 9) != 0) {
        return false;
    }
    return c->shared || mount_fresh("/dev/shm");
}

static void skip_without(const container *c)
{
    int status = 0;
    pid_t pid = fork();
    if (pid == 0) {
        _exit(enter(c) ? 0 : 77);
    }
    waitpid(pid, &status, 0);
    if (status != 0) {
        cr_skip_test("%s: namespaces are not allowed here", c->name);
    }
}

/* Become a process in the container: with a pid namespace of its own, a grandchild. The first
 * process of a namespace cannot be killed from inside, and all end with it. */
static void become(const container *c, procs_shared *s)
{
    int status = 0;
    PROCS_TRUE(enter(c));
    if ((c->own & CLONE_NEWPID) == 0) {
        return;
    }
    for (int generation = 0; generation < 2; generation++) {
        pid_t child = fork();
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            continue;
        }
        waitpid(child, &status, 0);
        while (generation == 1 && WIFSIGNALED(status) && atomic_load(&s->words[OVER]) == 0) {
            procs_nap(); /* a child of the killed rank lives on */
        }
        _exit(WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status));
    }
}

static void no_warning(int level, const char *message, void *user)
{
    (void)level, (void)user;
    PROCS_CHECK(strstr(message, "share memory") == NULL, "%s", message);
}

static dcomm_comm *meet_in(fault_rank *f, dcomm_context *context)
{
    dcomm_comm *comm = NULL;
    dcomm_comm_opts opts = {.context = context,
                            .boot = DCOMM_BOOT_ALLGATHER,
                            .rank = f->rank,
                            .size = f->n,
                            .allgather = fault_allgather,
                            .allgather_user = f,
                            .timeout_s = 40};
    RANKS_OK(dcomm_comm_create(&opts, &comm));
    for (int r = 0; r < f->n; r++) {
        PROCS_CHECK(dcomm_comm_host(comm, r) == 0, "rank %d is on host %d", r,
                    dcomm_comm_host(comm, r));
    }
    return comm;
}

/* Sum plain memory, and registered memory until it is read in place. */
static void sums(fault_rank *f, dcomm_comm *comm)
{
    const dcomm_coll_opts opts = {.algo = "two_shot"};
    dcomm_stats before, after = {0};
    void *memory = NULL;
    for (size_t count = 1; count <= COUNT; count *= 10) {
        RANKS_OK(fault_allreduce(comm, f->rank, NULL, count, NULL));
    }
    RANKS_OK(dcomm_mem_alloc(dcomm_comm_context(comm), COUNT * sizeof(float), &memory));
    float *data = memory;
    for (int i = 0; i < 3; i++) {
        for (size_t k = 0; k < COUNT; k++) {
            data[k] = (float)(f->rank + 1) * (float)((k + (size_t)i) % 101);
        }
        RANKS_OK(dcomm_comm_get_stats(comm, &before));
        RANKS_OK(dcomm_allreduce(comm, data, data, COUNT, DCOMM_F32, DCOMM_SUM, &opts));
        RANKS_OK(dcomm_comm_get_stats(comm, &after));
        for (size_t k = 0; k < COUNT; k++) {
            float want = (float)(f->n * (f->n + 1) / 2) * (float)((k + (size_t)i) % 101);
            PROCS_CHECK(data[k] == want, "element %zu is %g", k, (double)data[k]);
        }
    }
    PROCS_CHECK(after.bytes_mapped > before.bytes_mapped, "%s", "nothing was read in place");
    RANKS_OK(dcomm_mem_free(&memory));
}

static int doors(void)
{
    int n = 0;
    DIR *folder = opendir("/dev/shm");
    for (struct dirent *e; folder != NULL && (e = readdir(folder)) != NULL;) {
        n += strncmp(e->d_name, "dcomm-", 6) == 0;
    }
    if (folder != NULL) {
        closedir(folder);
    }
    return n;
}

/* Rank 0 runs outside of any container. */
static int contained(int rank, int n, procs_shared *s, void *arg)
{
    const container *c = arg;
    fault_rank f = {.rank = rank, .n = n, .s = s};
    if (rank != 0) {
        become(c, s);
    }
    setenv("LOCAL_WORLD_SIZE", "16", 1);
    unsetenv("DCOMM_HOSTID");
    dcomm_set_logger(no_warning, NULL);
    dcomm_comm *comm = meet_in(&f, NULL);
    sums(&f, comm);
    if (rank == c->victim) {
        if (fork() == 0) {
            pause(); /* the child keeps all it has inherited */
        }
        kill(getpid(), SIGKILL);
    }
    if (c->victim >= 0) {
        double start = procs_now();
        dcomm_status status = dcomm_barrier(comm, NULL);
        ranks_refused(status, DCOMM_ERR_PEER, "its process has ended");
        PROCS_CHECK(procs_now() - start < 5, "noticed after %.1f s", procs_now() - start);
        fault_meet(&f, c->victim);
        atomic_store(&s->words[OVER], 1);
    } else { /* in a context that knows the others already, and with new memory */
        dcomm_comm *second = meet_in(&f, dcomm_comm_context(comm));
        RANKS_OK(dcomm_comm_destroy(&comm));
        sums(&f, second);
        comm = second;
        for (double until = procs_now() + 5; rank == 0 && doors() > 0;) { /* doors of others */
            PROCS_CHECK(procs_now() < until, "%d doors stay open", doors());
            procs_nap();
        }
    }
    fault_destroy(&comm, 5);
    return procs_leaks();
}

static void in_containers(container c)
{
    int ended[PROCS_MAX], n = 3;
    skip_without(&c);
    procs_run(n, 50, contained, &c, ended);
    for (int r = 0; r < n; r++) {
        int want = r == c.victim ? 128 + SIGKILL : 0;
        cr_expect(ended[r] == want, "%s: rank %d ended with %d, not %d", c.name, r, ended[r], want);
    }
}

#define POD (CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWPID)
#define APART (CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWNET)

Test(sharing, containers_of_one_network, .timeout = 60)
{
    in_containers((container){"one network", POD, false, -1});
}

Test(sharing, containers_of_one_dev_shm, .timeout = 60)
{
    in_containers((container){"one /dev/shm", APART | CLONE_NEWPID, true, -1});
}

Test(sharing, containers_of_one_pid_namespace, .timeout = 60)
{
    if (geteuid() != 0) { /* user namespaces would be needed, which keep processes apart */
        cr_skip_test("one pid namespace: only root can make such containers");
    }
    in_containers((container){"one pid namespace", APART, false, -1});
}

Test(sharing, containers_with_users_of_their_own, .timeout = 60)
{
    in_containers((container){"own users", APART | CLONE_NEWPID | CLONE_NEWUSER, true, -1});
}

Test(sharing, death_in_a_container_of_one_network, .timeout = 60)
{
    in_containers((container){"one network", POD, false, 1});
}

Test(sharing, death_in_a_container_of_one_dev_shm, .timeout = 60)
{
    in_containers((container){"one /dev/shm", APART | CLONE_NEWPID, true, 2});
}

/* ---- ranks that are killed ---- */

static bool loopback_up(void)
{
    struct ifreq lo = {.ifr_name = "lo"};
    int s = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool up = s >= 0 && ioctl(s, SIOCGIFFLAGS, &lo) == 0;
    lo.ifr_flags = (short)(lo.ifr_flags | IFF_UP);
    up = up && ioctl(s, SIOCSIFFLAGS, &lo) == 0;
    if (s >= 0) {
        close(s);
    }
    return up;
}

/* Enter namespaces that make a machine for the test alone. */
static bool alone(void)
{
    return enter_namespaces(CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWNET) && mount_fresh("/dev/shm") &&
           mount_fresh("/tmp") && loopback_up();
}

/* Return the number of names in a folder; `say`: print them. */
static int entries(const char *path, bool say)
{
    int n = 0;
    DIR *folder = opendir(path);
    PROCS_TRUE(folder != NULL);
    for (struct dirent *e; (e = readdir(folder)) != NULL;) {
        bool counts = strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
        n += counts;
        if (counts && say) {
            fprintf(stderr, "left in %s: %s\n", path, e->d_name);
        }
    }
    closedir(folder);
    return n;
}

/* Return the number of lines of a kernel table behind its heading. */
static int lines(const char *path, bool say)
{
    char line[512];
    int n = -1;
    FILE *file = fopen(path, "re");
    PROCS_TRUE(file != NULL);
    while (fgets(line, sizeof line, file) != NULL) {
        if (++n > 0 && say) {
            fprintf(stderr, "left in %s: %s", path, line);
        }
    }
    fclose(file);
    return n;
}

static int left(bool say)
{
    return entries("/dev/shm", say) + entries("/tmp", say) + lines("/proc/self/net/unix", say) +
           lines("/proc/sysvipc/shm", say);
}

static void ignore(int level, const char *message, void *user)
{
    (void)level, (void)message, (void)user;
}

static _Noreturn void train(int rank, int n, procs_shared *s, int run)
{
    static float data[COUNT];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dcomm_set_logger(ignore, NULL);
    setenv("DCOMM_TUNE_CACHE", "off", 1);
    setenv("DCOMM_TUNE", run % 4 == 0 ? "1" : "0", 1);
    ranks_settle(rank, n, run / 2 % 2 == 1 ? RANKS_PAIRS : RANKS_LOCAL);
    dcomm_comm *comm = ranks_join(rank, n, s, NULL);
    while (true) {
        void *memory = NULL;
        RANKS_OK(dcomm_mem_alloc(dcomm_comm_context(comm), sizeof data, &memory));
        for (int i = 0; i < 5; i++) {
            RANKS_OK(dcomm_allreduce(comm, data, memory, COUNT, DCOMM_F32, DCOMM_SUM, NULL));
        }
        RANKS_OK(dcomm_mem_free(&memory));
        atomic_fetch_add(&s->words[rank], 1);
    }
}

/* Start ranks and kill all of them `delay` seconds later, or, if `trained`, that long after all
 * have trained. */
static void kill_all(int n, int run, bool trained, double delay)
{
    pid_t pids[PROCS_MAX];
    procs_shared *s =
        mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    PROCS_TRUE(s != MAP_FAILED);
    for (int r = 0; r < n; r++) {
        pids[r] = fork();
        PROCS_TRUE(pids[r] >= 0);
        if (pids[r] == 0) {
            train(r, n, s, run);
        }
    }
    double start = procs_now();
    for (int r = 0; trained && r < n; r++) {
        while (atomic_load(&s->words[r]) == 0) {
            PROCS_CHECK(procs_now() - start < 30, "run %d: rank %d does not train", run, r);
            procs_nap();
        }
    }
    for (double until = procs_now() + delay; procs_now() < until;) {
        procs_nap();
    }
    for (int r = 0; r < n; r++) {
        PROCS_CHECK(waitpid(pids[r], NULL, WNOHANG) == 0, "rank %d had ended", r);
    }
    for (int r = 0; r < n; r++) {
        PROCS_TRUE(kill(pids[r], SIGKILL) == 0);
    }
    for (int r = 0; r < n; r++) {
        PROCS_TRUE(waitpid(pids[r], NULL, 0) == pids[r]);
    }
    munmap(s, sizeof *s);
}

static int kill_often(int rank, int n, procs_shared *s, void *arg)
{
    (void)rank, (void)n, (void)s, (void)arg;
    int runs = test_full() ? 40 : 5;
    uint64_t state = 34;
    PROCS_TRUE(alone());
    int before = left(true);
    for (int run = 0; run < runs; run++) {
        double delay = (double)(ranks_random(&state) % 1000) / 4000;
        kill_all(run % 5 == 0 ? 2 : 4, run, run % 2 == 1, delay);
        for (double until = procs_now() + 2; left(false) > before;) { /* descriptors under way */
            PROCS_CHECK(procs_now() < until, "run %d: %d things are left", run,
                        left(true) - before);
            procs_nap();
        }
    }
    return 0;
}

Test(sharing, of_killed_ranks_nothing_is_left, .timeout = 150)
{
    int ended[PROCS_MAX], status = 0;
    pid_t pid = fork();
    if (pid == 0) {
        _exit(alone() ? 0 : 77);
    }
    waitpid(pid, &status, 0);
    if (status != 0) {
        cr_skip_test("namespaces are not allowed here");
    }
    cr_assert_eq(procs_run(1, 140, kill_often, NULL, ended), 0);
}
