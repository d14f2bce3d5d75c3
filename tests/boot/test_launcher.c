/* test_launcher.c - ranks, jobs, secrets, PMI lines and hosts as read from the environment. */
#define _GNU_SOURCE
#pragma GCC diagnostic ignored "-Wunused-function"
#include "dcomm/impl/boot/boot.h"
#include "dcomm/impl/boot/host.h"

#include <criterion/criterion.h>

/* Detect the launcher with only these variables set, given as "NAME=value" up to NULL. */
static dcomm_status detect(dcommi_launcher *l, const char *const *vars)
{
    clearenv();
    for (; *vars != NULL; vars++) {
        char name[64];
        const char *value = strchr(*vars, '=') + 1;
        snprintf(name, sizeof name, "%.*s", (int)(value - *vars) - 1, *vars);
        cr_assert_eq(setenv(name, value, 1), 0);
    }
    return dcommi_launcher_detect(l);
}

#define DETECT(l, ...) detect(&(l), (const char *const[]){__VA_ARGS__, NULL})

#define TORCH(rank, world) \
    "RANK=" rank, "WORLD_SIZE=" world, "LOCAL_RANK=0", "MASTER_ADDR=10.1.2.3", "MASTER_PORT=29500"

static void expect_invalid(dcomm_status status, const char *word, const char *value)
{
    cr_assert_eq(status, DCOMM_ERR_INVALID, "status %d, %s", status, dcommi_message);
    cr_assert(strstr(dcommi_message, word) != NULL && strstr(dcommi_message, value) != NULL,
              "\"%s\" should name %s and %s", dcommi_message, word, value);
}

Test(launcher, none_is_one_rank)
{
    dcommi_launcher l;
    cr_assert_eq(DETECT(l, "HOME=/"), DCOMM_OK);
    cr_assert(l.meeting == DCOMMI_MEET_ALONE && l.rank == 0 && l.size == 1 && l.local_rank == -1);
}

Test(launcher, torchrun)
{
    dcommi_launcher l;
    cr_assert_eq(DETECT(l, TORCH("3", "8")), DCOMM_OK);
    cr_assert(l.meeting == DCOMMI_MEET_TCP && l.rank == 3 && l.size == 8 && l.local_rank == 0);
    cr_assert_str_eq(l.host, "10.1.2.3");
    cr_assert(l.port == 29501 && !l.secret && !l.loopback);
    cr_assert_eq(DETECT(l, TORCH("3", "8"), "DCOMM_PORT=4000"), DCOMM_OK);
    cr_assert_eq(l.port, 4000);
    cr_assert_eq(DETECT(l, "RANK=0", "WORLD_SIZE=1"), DCOMM_OK);
    cr_assert_eq(l.meeting, DCOMMI_MEET_ALONE);
}

/* Half a description must not mean a single rank: each process would train by itself. */
Test(launcher, halves_are_errors)
{
    dcommi_launcher l;
    expect_invalid(DETECT(l, "RANK=3"), "RANK=3", "WORLD_SIZE is not");
    expect_invalid(DETECT(l, "WORLD_SIZE=2"), "WORLD_SIZE=2", "RANK is not");
    expect_invalid(DETECT(l, "MASTER_ADDR=10.1.2.3"), "MASTER_ADDR", "MASTER_PORT is not");
    expect_invalid(DETECT(l, "MASTER_PORT=4"), "MASTER_PORT", "MASTER_ADDR is not");
    expect_invalid(DETECT(l, "MASTER_ADDR=a", "MASTER_PORT=4"), "RANK", "WORLD_SIZE");
    expect_invalid(DETECT(l, "PMI_RANK=0"), "PMI_RANK", "PMI_SIZE is not");
    expect_invalid(DETECT(l, "PMIX_RANK=0"), "PMIX_RANK", "PMIX_NAMESPACE is not");
}

Test(launcher, hints_of_several_ranks)
{
    dcommi_launcher l;
    cr_assert_eq(DETECT(l, "HOME=/", "LOCAL_WORLD_SIZE=1", "SLURM_NTASKS=1"), DCOMM_OK);
    cr_assert_null(l.hint);
    const char *hints[] = {"LOCAL_RANK=0", "SLURM_NTASKS=4", "OMPI_COMM_WORLD_LOCAL_RANK=1",
                           "LOCAL_WORLD_SIZE=2"};
    for (size_t i = 0; i < sizeof hints / sizeof hints[0]; i++) {
        cr_assert_eq(DETECT(l, hints[i]), DCOMM_OK);
        cr_assert(l.size == 1 && l.hint != NULL, "%s", hints[i]);
        cr_assert_eq(strncmp(hints[i], l.hint, strlen(l.hint)), 0);
    }
}

/* A job's name is the user's word, else the launcher's name of the job, else the command line. */
Test(launcher, jobs_have_names)
{
    dcommi_launcher l;
    cr_assert_eq(DETECT(l, TORCH("1", "2"), "DCOMM_JOB=blue", "TORCHELASTIC_RUN_ID=7"), DCOMM_OK);
    cr_assert_str_eq(l.job, "DCOMM_JOB=blue");
    cr_assert_eq(
        DETECT(l, TORCH("1", "2"), "TORCHELASTIC_RUN_ID=7", "TORCHELASTIC_RESTART_COUNT=2"),
        DCOMM_OK);
    cr_assert_str_eq(l.job, "torchrun's run 7, restart 2");
    cr_assert_eq(DETECT(l, TORCH("1", "2")), DCOMM_OK);
    cr_assert(strncmp(l.job, "command line \"", 14) == 0 && strlen(l.job) > 15, "%s", l.job);
    /* torchrun's default names no job */
    cr_assert_eq(
        DETECT(l, TORCH("1", "2"), "TORCHELASTIC_RUN_ID=none", "TORCHELASTIC_RESTART_COUNT=2"),
        DCOMM_OK);
    cr_assert(strncmp(l.job, "command line \"", 14) == 0 && strstr(l.job, "\", restart 2") != NULL,
              "%s", l.job);
    cr_assert_eq(
        DETECT(l, "PMI_RANK=0", "PMI_SIZE=2", "PMI_JOBID=4", "MASTER_ADDR=a", "MASTER_PORT=1"),
        DCOMM_OK);
    cr_assert_str_eq(l.job, "PMI's job 4");
}

Test(launcher, loopback_is_known)
{
    dcommi_launcher l;
    const char *loopback[] = {"MASTER_ADDR=127.0.0.1", "MASTER_ADDR=::1", "MASTER_ADDR=[::1]",
                              "MASTER_ADDR=localhost"};
    for (size_t i = 0; i < 4; i++) {
        cr_assert_eq(DETECT(l, "RANK=0", "WORLD_SIZE=2", "MASTER_PORT=1", loopback[i]), DCOMM_OK);
        cr_assert(l.loopback, "%s", loopback[i]);
    }
    cr_assert_eq(DETECT(l, "RANK=0", "WORLD_SIZE=2", "MASTER_PORT=1", "MASTER_ADDR=node127"),
                 DCOMM_OK);
    cr_assert_not(l.loopback);
}

Test(launcher, secrets)
{
    dcommi_launcher l, m;
    char path[] = "/tmp/dcomm-test-XXXXXX", variable[64];
    int fd = mkstemp(path);
    cr_assert(fd >= 0 && write(fd, "hush\n", 5) == 5);
    close(fd);
    snprintf(variable, sizeof variable, "DCOMM_SECRET_FILE=%s", path);
    cr_assert_eq(DETECT(l, TORCH("0", "2"), "DCOMM_SECRET=hush"), DCOMM_OK);
    cr_assert_eq(DETECT(m, TORCH("0", "2"), variable), DCOMM_OK);
    cr_assert(l.secret && m.secret);
    cr_assert_arr_eq(l.key, m.key, sizeof l.key, "the ending newline does not count");
    expect_invalid(DETECT(l, TORCH("0", "2"), "DCOMM_SECRET=hush", variable), "DCOMM_SECRET_FILE",
                   path);
    cr_assert_eq(truncate(path, 0), 0);
    expect_invalid(DETECT(l, TORCH("0", "2"), variable), "DCOMM_SECRET_FILE", path);
    unlink(path);
    expect_invalid(DETECT(l, TORCH("0", "2"), variable), "DCOMM_SECRET_FILE", path);
}

Test(launcher, contradictions_are_named)
{
    dcommi_launcher l;
    expect_invalid(DETECT(l, TORCH("8", "8")), "RANK", "8");
    expect_invalid(DETECT(l, TORCH("-1", "8")), "RANK", "-1");
    expect_invalid(DETECT(l, TORCH("two", "8")), "RANK", "two");
    expect_invalid(DETECT(l, TORCH("1x", "8")), "RANK", "1x");
    expect_invalid(DETECT(l, TORCH("0", "0")), "WORLD_SIZE", "0");
    expect_invalid(DETECT(l, TORCH("0", "99999999999999999999")), "WORLD_SIZE", "9999");
    expect_invalid(DETECT(l, "RANK=0", "WORLD_SIZE=2"), "MASTER_ADDR", "not set");
    expect_invalid(DETECT(l, "RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=a"), "MASTER_PORT", "not set");
    expect_invalid(DETECT(l, "RANK=0", "MASTER_ADDR=a", "MASTER_PORT=1"), "WORLD_SIZE", "not set");
    expect_invalid(DETECT(l, "RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=a", "MASTER_PORT=65535"),
                   "MASTER_PORT", "65535");
    expect_invalid(DETECT(l, "RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=a", "MASTER_PORT=99999"),
                   "MASTER_PORT", "99999");
    expect_invalid(DETECT(l, TORCH("0", "2"), "DCOMM_PORT=0"), "DCOMM_PORT", "0");
    expect_invalid(DETECT(l, "OMPI_COMM_WORLD_RANK=1"), "OMPI_COMM_WORLD_SIZE", "not set");
    expect_invalid(DETECT(l, "PMI_FD=x", "PMI_RANK=0", "PMI_SIZE=2"), "PMI_FD", "x");
}

Test(launcher, process_managers)
{
    dcommi_launcher l;
    cr_assert_eq(DETECT(l, "OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=4",
                        "OMPI_COMM_WORLD_LOCAL_RANK=1", "PMIX_RANK=1", "PMIX_NAMESPACE=x"),
                 DCOMM_OK);
    cr_assert(l.meeting == DCOMMI_MEET_PMIX && l.rank == 1 && l.size == 4 && l.local_rank == 1);
    cr_assert_eq(DETECT(l, "PMI_FD=7", "PMI_RANK=2", "PMI_SIZE=3", "MPI_LOCALRANKID=2"), DCOMM_OK);
    cr_assert(l.meeting == DCOMMI_MEET_PMI && l.rank == 2 && l.size == 3 && l.pmi_fd == 7);
    cr_assert_eq(DETECT(l, "PMIX_RANK=1", "PMIX_NAMESPACE=x"), DCOMM_OK);
    cr_assert(l.meeting == DCOMMI_MEET_PMIX && l.size == 0);
    /* torchrun inside a Slurm task, mpirun inside a Slurm job */
    cr_assert_eq(DETECT(l, TORCH("1", "2"), "SLURM_PROCID=0", "SLURM_STEP_ID=0", "SLURM_NTASKS=1"),
                 DCOMM_OK);
    cr_assert_str_eq(l.name, "torchrun");
}

#define SLURM(rank, tasks)                                                             \
    "SLURM_JOB_ID=77", "SLURM_STEP_ID=0", "SLURM_PROCID=" rank, "SLURM_NTASKS=" tasks, \
        "SLURM_LOCALID=0", "SLURM_STEP_NODELIST=n[03-05,9],m1"

Test(launcher, slurm)
{
    dcommi_launcher l, m;
    cr_assert_eq(DETECT(l, SLURM("1", "4")), DCOMM_OK);
    cr_assert_eq(DETECT(m, SLURM("2", "4")), DCOMM_OK);
    cr_assert(l.meeting == DCOMMI_MEET_TCP && l.rank == 1 && l.size == 4 && l.local_rank == 0);
    cr_assert_str_eq(l.host, "n03");
    cr_assert(l.port >= 20000 && l.port < 32000 && l.port == m.port);
    cr_assert_str_eq(l.job, "Slurm's job 77, step 0");
    cr_assert_eq(DETECT(l, SLURM("1", "4"), "MASTER_ADDR=10.0.0.1", "MASTER_PORT=5"), DCOMM_OK);
    cr_assert_str_eq(l.host, "10.0.0.1");
    cr_assert_eq(l.port, 6);
    cr_assert_eq(DETECT(l, SLURM("1", "4"), "PMIX_RANK=1", "PMIX_NAMESPACE=x"), DCOMM_OK);
    cr_assert_eq(l.meeting, DCOMMI_MEET_PMIX);
    /* one node: meet at an address that no other machine can reach */
    cr_assert_eq(DETECT(l, SLURM("1", "4"), "SLURM_STEP_NUM_NODES=1"), DCOMM_OK);
    cr_assert(strcmp(l.host, "127.0.0.1") == 0 && l.loopback);
    cr_assert_eq(DETECT(l, SLURM("1", "4"), "SLURM_STEP_NUM_NODES=2"), DCOMM_OK);
    cr_assert(strcmp(l.host, "n03") == 0 && !l.loopback);
    /* a batch script that exports all but RANK */
    cr_assert_eq(
        DETECT(l, SLURM("1", "4"), "WORLD_SIZE=4", "MASTER_ADDR=10.0.0.1", "MASTER_PORT=5"),
        DCOMM_OK);
    cr_assert_str_eq(l.name, "Slurm");
    cr_assert(l.rank == 1 && l.size == 4 && l.port == 6);
    /* srun --mpi=pmi2 leaves its PMI to MPI; mpirun inside a step has its own PMI */
    cr_assert_eq(
        DETECT(l, SLURM("1", "4"), "PMI_FD=7", "PMI_RANK=1", "PMI_SIZE=4", "PMI_JOBID=77.0"),
        DCOMM_OK);
    cr_assert(l.meeting == DCOMMI_MEET_TCP && l.local_rank == 0);
    cr_assert_eq(DETECT(l, SLURM("0", "1"), "PMI_FD=7", "PMI_RANK=2", "PMI_SIZE=3",
                        "PMI_JOBID=77.0", "MPI_LOCALRANKID=2"),
                 DCOMM_OK);
    cr_assert(l.meeting == DCOMMI_MEET_PMI && l.rank == 2 && l.size == 3);
    /* the batch script itself is one rank */
    cr_assert_eq(DETECT(l, "SLURM_JOB_ID=77", "SLURM_PROCID=0", "SLURM_NTASKS=4"), DCOMM_OK);
    cr_assert(l.meeting == DCOMMI_MEET_ALONE && l.size == 1);
    expect_invalid(
        DETECT(l, "SLURM_STEP_ID=0", "SLURM_PROCID=0", "SLURM_NTASKS=2", "SLURM_STEP_NODELIST=n[1"),
        "SLURM_STEP_NODELIST", "n[1");
}

Test(launcher, pmi_lines)
{
    const char *line = "cmd=get_result rc=0 msg=success value=ab=cd\n";
    char value[16];
    cr_assert(dcommi_pmi_answers(line, strlen(line), "get_result"));
    cr_assert_not(dcommi_pmi_answers(line, strlen(line), "put_result"));
    cr_assert(dcommi_pmi_value(line, strlen(line), "value", value, sizeof value));
    cr_assert_str_eq(value, "ab=cd");
    cr_assert_not(dcommi_pmi_value(line, strlen(line), "value", value, 5));
    cr_assert_not(dcommi_pmi_value(line, strlen(line), "alue", value, sizeof value));
    const char *failed = "cmd=get_result rc=-1 msg=key_not_found\n";
    cr_assert_not(dcommi_pmi_answers(failed, strlen(failed), "get_result"));
}

Test(host, identity)
{
    char a[DCOMMI_HOST_ID_MAX], b[DCOMMI_HOST_ID_MAX];
    unsetenv("DCOMM_HOSTID");
    dcommi_host_identity(NULL, a);
    dcommi_host_identity("", b);
    cr_assert_str_eq(a, b);
    setenv("DCOMM_HOSTID", "blue", 1);
    dcommi_host_identity(NULL, b);
    cr_assert_str_eq(b, "blue");
    dcommi_host_identity("red", b);
    cr_assert_str_eq(b, "red");
}
