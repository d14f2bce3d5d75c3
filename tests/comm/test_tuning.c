/* test_tuning.c - the numbers that a communicator chooses by. All ranks have the same ones,
 * measured, read or given, make the same choice, and get right results when the numbers change. */
#define _GNU_SOURCE
#include "comma.h"
#include "ranks.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <sys/mman.h>

typedef struct place_of {
    ranks_place place;
} place_of;

/* Check that all ranks have the same, valid numbers. */
static void same(dcomm_comm *comm, int n, dcomm_tuning *tuning)
{
    uint64_t mine, all[PROCS_MAX];
    memset(tuning, 0, sizeof *tuning);
    RANKS_OK(dcomm_comm_get_tuning(comm, tuning));
    mine = ranks_hash(tuning, sizeof *tuning);
    RANKS_OK(dcomm_allgather(comm, &mine, all, 1, DCOMM_U64, NULL));
    for (int r = 0; r < n; r++) {
        PROCS_CHECK(all[r] == mine, "rank %d has other numbers: %s", r, tuning->source);
    }
}

static void sums(dcomm_comm *comm, int rank, int n)
{
    static float in[70000], out[70000];
    for (size_t count = 1; count <= 70000; count = count * 6 + 3) {
        for (size_t i = 0; i < count; i++) {
            in[i] = (float)(rank + (int)(i % 97));
        }
        RANKS_OK(dcomm_allreduce(comm, in, out, count, DCOMM_F32, DCOMM_SUM, NULL));
        for (size_t i = 0; i < count; i++) {
            float wanted = (float)(n * (n - 1) / 2 + n * (int)(i % 97));
            PROCS_CHECK(out[i] == wanted, "element %zu of %zu is %g", i, count, (double)out[i]);
        }
    }
}

static int life(int rank, int n, procs_shared *s, void *arg)
{
    ranks_place place = ((place_of *)arg)->place;
    dcomm_tuning tuning, given;
    ranks_settle(rank, n, place);
    dcomm_comm *comm = ranks_join(rank, n, s, &(dcomm_comm_opts){.tune = 1}), *half = NULL;
    same(comm, n, &tuning);
    PROCS_CHECK(strstr(tuning.source, "measured") != NULL, "%s", tuning.source);
    int kind = place == RANKS_HOSTS ? DCOMM_LINK_HOST : DCOMM_LINK_NEAR;
    const dcomm_link *link = &tuning.link[kind];
    PROCS_CHECK(link->message.n > 2, "%d", (int)link->message.n);
    PROCS_CHECK((link->mapped_reduce.n > 2) == (kind != DCOMM_LINK_HOST), "%d",
                (int)link->mapped_reduce.n);
    PROCS_CHECK((link->huge_read.n > 2) == (kind != DCOMM_LINK_HOST), "%d", (int)link->huge_read.n);
    bool one = place == RANKS_LOCAL || place == RANKS_MESSAGE;
    PROCS_CHECK(tuning.tried == (one ? n : 0), "%d", (int)tuning.tried);
    PROCS_TRUE((tuning.trial[0].algo[0] != 0 && tuning.trial[0].took.n > 0) == one);
    sums(comm, rank, n);

    /* Measuring leaves no trace in the sequence of calls. */
    dcomm_request *request = NULL;
    dcomm_request_info info;
    RANKS_OK(dcomm_ibarrier(comm, NULL, &request));
    RANKS_OK(dcomm_request_get_info(request, &info));
    RANKS_OK(dcomm_wait(&request));
    PROCS_CHECK(info.sequence < 10, "%lu", (unsigned long)info.sequence);

    /* All ranks take rank 0's numbers, whatever they pass. */
    RANKS_OK(dcomm_tuning_uniform(rank + 1, 1, 1, &given));
    RANKS_OK(dcomm_comm_tune(comm, &given));
    same(comm, n, &tuning);
    PROCS_TRUE(tuning.link[DCOMM_LINK_NEAR].alpha_ps == 1000000);
    sums(comm, rank, n);
    RANKS_OK(dcomm_comm_split(comm, rank % 2, rank, &half));
    same(half, dcomm_comm_size(half), &tuning);
    PROCS_TRUE(tuning.link[DCOMM_LINK_NEAR].alpha_ps == 1000000);
    RANKS_OK(dcomm_comm_destroy(&half));

    /* All ranks refuse invalid numbers, and keep the old ones. */
    given.step_ps = -1;
    PROCS_TRUE(dcomm_comm_tune(comm, &given) == DCOMM_ERR_INVALID);
    sums(comm, rank, n);
    RANKS_OK(dcomm_comm_tune(comm, NULL));
    same(comm, n, &tuning);
    PROCS_CHECK(strstr(tuning.source, "measured") != NULL, "%s", tuning.source);
    sums(comm, rank, n);
    return ranks_leave(&comm);
}

static void on(int n, ranks_place place, procs_fn fn)
{
    int ended[PROCS_MAX];
    place_of arg = {place};
    cr_assert_eq(procs_run(n, 50, fn, &arg, ended), 0, "%d ranks, %s", n, ranks_place_name(place));
}

/* Measuring takes seconds with sanitizers: without --full they run it once. */
Test(tuning, measured, .timeout = 250)
{
    on(2, RANKS_LOCAL, life);
    if (procs_step() == 1) {
        on(2, RANKS_HOSTS, life);
        on(3, RANKS_PAIRS, life);
    }
    if (test_full()) {
        on(3, RANKS_HOSTS, life);
        on(4, RANKS_PAIRS, life);
        on(5, RANKS_MESSAGE, life);
    }
}

/* Numbers are not measured if that is switched off. They are read if a file is named; a bad file
 * is skipped. */
static int sources(int rank, int n, procs_shared *s, void *arg)
{
    dcomm_tuning tuning;
    (void)arg;
    dcomm_comm *comm = ranks_join(rank, n, s, &(dcomm_comm_opts){.tune = rank == 0 ? -1 : 1});
    same(comm, n, &tuning);
    PROCS_CHECK(strcmp(tuning.source, "built in") == 0, "%s", tuning.source);
    return ranks_leave(&comm);
}

static int from_file(int rank, int n, procs_shared *s, void *arg)
{
    dcomm_tuning tuning;
    PROCS_TRUE(rank != 0 || setenv("DCOMM_TUNE_FILE", arg, 1) == 0);
    dcomm_comm *comm = ranks_join(rank, n, s, &(dcomm_comm_opts){.tune = 1});
    same(comm, n, &tuning);
    PROCS_TRUE((tuning.call_ps == 424242) == (access(arg, R_OK) == 0));
    PROCS_TRUE(tuning.connections == (access(arg, R_OK) == 0 ? 3 : 1));
    return ranks_leave(&comm);
}

Test(tuning, sources, .timeout = 60)
{
    int ended[PROCS_MAX];
    char path[] = "/tmp/dcomm-test-tuning-XXXXXX";
    dcomm_tuning tuning;
    cr_assert_eq(procs_run(2, 50, sources, NULL, ended), 0);
    int fd = mkstemp(path);
    cr_assert(fd >= 0);
    close(fd);
    dcomm_tuning_default(&tuning);
    tuning.call_ps = 424242;
    tuning.connections = 3;
    cr_assert_eq(dcomm_tuning_save(&tuning, path), DCOMM_OK);
    cr_assert_eq(procs_run(3, 50, from_file, path, ended), 0);
    unlink(path);
    cr_assert_eq(procs_run(3, 50, from_file, path, ended), 0);
}

/* A tuning file is the same in every locale, and every locale can read it. */
Test(tuning, files_do_not_depend_on_the_locale, .timeout = 60)
{
    char path[] = "/tmp/dcomm-test-tuning-XXXXXX", text[2][64 << 10];
    dcomm_tuning tuning, back;
    int fd = mkstemp(path);
    cr_assert(fd >= 0);
    close(fd);
    dcomm_tuning_default(&tuning);
    comma_locale();
    for (int i = 0; i < 2; i++) {
        setlocale(LC_ALL, i == 0 ? "C" : "de_DE");
        cr_assert_eq(dcomm_tuning_save(&tuning, path), DCOMM_OK);
        FILE *file = fopen(path, "r");
        cr_assert_not_null(file);
        text[i][fread(text[i], 1, sizeof text[i] - 1, file)] = 0;
        fclose(file);
    }
    cr_assert_str_eq(text[0], text[1]);
    for (int i = 0; i < 2; i++) {
        setlocale(LC_ALL, i == 0 ? "C" : "de_DE");
        cr_assert_eq(dcomm_tuning_load(path, &back), DCOMM_OK, "%s", dcomm_last_error());
        cr_assert_eq(back.step_ps, tuning.step_ps);
    }
    cr_assert_eq(dcomm_tuning_uniform(0.5, 0.25, 0.125, &back), DCOMM_OK);
    cr_assert_not_null(strstr(back.source, "alpha 0.5 us"), "%s", back.source);
    unlink(path);
}

/* ---- the environment ---- */

static char said[4096];

static void listen(int level, const char *message, void *user)
{
    (void)level;
    (void)user;
    size_t used = strlen(said);
    snprintf(said + used, sizeof said - used, "%s\n", message);
}

static void alone(void)
{
    dcomm_comm *comm = NULL;
    cr_assert_eq(dcomm_comm_create(NULL, &comm), DCOMM_OK, "%s", dcomm_last_error());
    cr_assert_eq(dcomm_comm_destroy(&comm), DCOMM_OK);
}

static void refused(const char *name, const char *value)
{
    dcomm_comm *comm = NULL;
    setenv(name, value, 1);
    cr_assert_eq(dcomm_comm_create(NULL, &comm), DCOMM_ERR_INVALID, "%s=%s", name, value);
    cr_assert(strstr(dcomm_last_error(), name) != NULL && strstr(dcomm_last_error(), value) != NULL,
              "%s", dcomm_last_error());
    unsetenv(name);
}

/* A creation warns once of variables that it does not know or cannot read, and continues. */
Test(tuning, bad_variables_are_warned_of_once)
{
    dcomm_set_logger(listen, NULL);
    setenv("DCOMM_AGLO", "ring", 1);
    setenv("DCOMM_WOMBAT", "1", 1);
    setenv("DCOMM_CHUNK", "64Q", 1);
    setenv("DCOMM_TUNE", "maybe", 1);
    setenv("DCOMM_TUNE_CACHE", "cache/dcomm", 1);
    setenv("DCOMM_DETERMINISTIC", "Yes", 1);
    setenv("DCOMM_TIMEOUT", "1500ms", 1);
    alone();
    alone();
    static const char *const words[] = {"DCOMM_AGLO has no effect",
                                        "did you mean DCOMM_ALGO?",
                                        "DCOMM_WOMBAT has no effect",
                                        "docs/environment.md",
                                        "DCOMM_CHUNK=\"64Q\" is ignored",
                                        "such as 65536 or 64K",
                                        "DCOMM_TUNE=\"maybe\"",
                                        "true, yes, on",
                                        "DCOMM_TUNE_CACHE=\"cache/dcomm\" is ignored",
                                        "absolute path of a directory"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        char *at = strstr(said, words[i]);
        cr_assert(at != NULL && strstr(at + 1, words[i]) == NULL, "once %s in:\n%s", words[i],
                  said);
    }
    cr_assert(strstr(said, "DETERMINISTIC") == NULL && strstr(said, "TIMEOUT") == NULL, "%s", said);
    said[0] = 0;
    setenv("RANK", "1", 1);
    setenv("WORLD_SIZE", "2", 1);
    setenv("DCOMM_WOMBAT", "2", 1);
    dcomm_context *context = NULL;
    cr_assert_eq(dcomm_context_create(NULL, &context), DCOMM_OK);
    cr_assert_str_eq(said, "", "the first rank speaks for all: %s", said);
    cr_assert_eq(dcomm_context_destroy(&context), DCOMM_OK);
}

Test(tuning, variables_that_fail_creation)
{
    static const char *const bad[] = {"0", "-1", "abc", "30x", "1e400", "0x10", " 1"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        refused("DCOMM_TIMEOUT", bad[i]);
    }
    refused("DCOMM_CONNECTIONS", "17");
    refused("DCOMM_CONNECTIONS", "2K");
    refused("DCOMM_ALGO", "rong");
}

/* ---- from one run to the next ---- */

typedef struct kept {
    const char *directory;
    dcomm_tuning *tuning; /* rank 0's numbers, in shared memory */
} kept;

static int measure(int rank, int n, procs_shared *s, void *arg)
{
    const kept *k = arg;
    PROCS_TRUE(setenv("DCOMM_TUNE_CACHE", k->directory, 1) == 0);
    dcomm_tuning tuning;
    dcomm_comm *comm = ranks_join(rank, n, s, &(dcomm_comm_opts){.tune = 1});
    same(comm, n, &tuning);
    sums(comm, rank, n);
    if (rank == 0) {
        *k->tuning = tuning;
    }
    return ranks_leave(&comm);
}

/* Return the path of the only file of a directory. */
static void only_file(const char *directory, char *path, size_t len)
{
    int n = 0;
    DIR *dir = opendir(directory);
    cr_assert(dir != NULL, "%s", directory);
    for (struct dirent *e; (e = readdir(dir)) != NULL;) {
        if (e->d_name[0] != '.') {
            n++;
            snprintf(path, len, "%s/%s", directory, e->d_name);
        }
    }
    closedir(dir);
    cr_assert_eq(n, 1, "%d files in %s", n, directory);
}

/* The next run reads the numbers that one run has measured. It measures again if the file is no
 * tuning, and if the cache is off. */
Test(tuning, kept_for_the_next_run, .timeout = 100)
{
    int ended[PROCS_MAX];
    char root[] = "/tmp/dcomm-test-cache-XXXXXX", directory[64], path[400];
    cr_assert(mkdtemp(root) != NULL);
    snprintf(directory, sizeof directory, "%s/new/one", root);
    dcomm_tuning *shared =
        mmap(NULL, 3 * sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert(shared != MAP_FAILED);
    kept first = {directory, shared}, second = {directory, shared + 1}, third = {"off", shared + 2};
    for (int i = 0; i == 0 || (i < 3 && strstr(shared->source, "busy") != NULL); i++) {
        cr_assert_eq(procs_run(2, 50, measure, &first, ended), 0);
    }
    if (strstr(shared->source, "busy") != NULL) {
        cr_skip_test("what is measured on a busy machine is not kept");
    }
    only_file(directory, path, sizeof path);
    /* A number that no measurement can give shows that the file is read. */
    dcomm_tuning marked = shared[0];
    marked.call_ps = 424242;
    cr_assert_eq(dcomm_tuning_save(&marked, path), DCOMM_OK);
    cr_assert_eq(procs_run(2, 50, measure, &second, ended), 0);
    cr_expect_eq(memcmp(&shared[1], &marked, sizeof marked), 0, "%s", shared[1].source);
    cr_assert_eq(procs_run(2, 50, measure, &third, ended), 0);
    cr_expect_neq(shared[2].call_ps, 424242);
    FILE *file = fopen(path, "w");
    cr_assert(file != NULL && fputs("near.alpha_us = many\n", file) > 0 && fclose(file) == 0);
    cr_assert_eq(procs_run(2, 50, measure, &second, ended), 0);
    cr_expect_neq(shared[1].call_ps, 424242);
    cr_expect(strstr(shared[1].source, "measured") != NULL, "%s", shared[1].source);
    unlink(path);
    rmdir(directory);
    directory[strlen(directory) - 4] = 0;
    rmdir(directory);
    cr_expect_eq(rmdir(root), 0);
    munmap(shared, 3 * sizeof *shared);
}
