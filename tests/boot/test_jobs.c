/* test_jobs.c - ranks brought together by a launcher's variables: jobs on one port that must not
 * mix, attempts that fail and are repeated, ranks that cannot take part, forks during a
 * rendezvous. Each rank is a process. */
#define _GNU_SOURCE
#pragma GCC diagnostic ignored "-Wunused-function"
#include "dcomm/impl/boot/boot.h"

#include <criterion/criterion.h>
#include <sys/mman.h>
#include <sys/wait.h>

#define LIMIT 30 /* time limit of each test, in seconds */
#define MOST 4

/* The outcome of a rank, in memory that all processes share. */
typedef struct outcome {
    dcomm_status status;
    int tries;
    double seconds;
    char why[DCOMMI_MESSAGE_MAX];
    char met[MOST + 1]; /* one letter for the job of each rank met */
} outcome;

typedef struct job_rank {
    int rank, size;
    const char *word; /* DCOMM_JOB; NULL: none */
    const char *run;  /* TORCHELASTIC_RUN_ID */
    char letter;
    double late_s, timeout_s;
    int tries;
    bool cannot; /* this rank cannot take part */
    pid_t pid;
    outcome *end;
} job_rank;

static int port;

static outcome *share(void)
{
    outcome *all =
        mmap(NULL, MOST * sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert(all != MAP_FAILED);
    port = 20000 + (int)(getpid() * 7 % 9000);
    return all;
}

static void put_int(const char *name, int value)
{
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

static void environment(const job_rank *r)
{
    put_int("RANK", r->rank);
    put_int("WORLD_SIZE", r->size);
    put_int("MASTER_PORT", port);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    if (r->word != NULL) {
        setenv("DCOMM_JOB", r->word, 1);
    }
    if (r->run != NULL) {
        setenv("TORCHELASTIC_RUN_ID", r->run, 1);
    }
}

static dcomm_status create(const job_rank *r)
{
    dcommi_boot boot;
    void *all = NULL;
    size_t *lens = NULL;
    if (r->cannot) {
        dcomm_status status = dcommi_fail(DCOMM_ERR_SYSTEM, "no shared memory");
        dcommi_boot_announce(NULL, r->timeout_s, NULL, status);
        return status;
    }
    dcomm_status status = dcommi_boot_open(NULL, r->timeout_s, NULL, &boot);
    if (status == DCOMM_OK) {
        status = dcommi_boot_allgather(&boot, &r->letter, 1, &all, &lens);
    }
    if (status == DCOMM_OK) {
        memcpy(r->end->met, all, (size_t)r->size);
        dcommi_free(all);
        dcommi_free(lens);
    }
    dcommi_boot_close(&boot, status);
    return status;
}

static void start(job_rank *r)
{
    r->pid = fork();
    if (r->pid == 0) {
        environment(r);
        usleep((useconds_t)(r->late_s * 1e6));
        double begin = dcommi_now();
        do {
            r->end->status = create(r);
            memcpy(r->end->why, dcommi_message, sizeof r->end->why);
        } while (++r->end->tries < r->tries && r->end->status < 0);
        r->end->seconds = dcommi_now() - begin;
        _exit(0);
    }
}

static void await(const job_rank *r)
{
    int status = -1;
    cr_assert(waitpid(r->pid, &status, 0) == r->pid && status == 0, "rank %d of job %c", r->rank,
              r->letter);
}

static void expect(const job_rank *r, dcomm_status status, const char *word)
{
    cr_assert_eq(r->end->status, status, "rank %d of job %c: status %d, \"%s\"", r->rank, r->letter,
                 r->end->status, r->end->why);
    cr_assert(word == NULL || strstr(r->end->why, word) != NULL, "\"%s\" should say \"%s\"",
              r->end->why, word);
}

/* Job a's rank 0 holds the port. Both ranks of job b come and are refused. Then job a's rank 1
 * comes. */
static void two_jobs(const char *word_a, const char *word_b, const char *run_a, const char *run_b)
{
    outcome *all = share();
    job_rank r[4];
    for (int i = 0; i < 4; i++) {
        bool b = i == 1 || i == 2;
        r[i] = (job_rank){.rank = i / 2 == 1,
                          .size = 2,
                          .letter = b ? 'b' : 'a',
                          .word = b ? word_b : word_a,
                          .run = b ? run_b : run_a,
                          .timeout_s = 10,
                          .end = &all[i]};
    }
    start(&r[0]);
    usleep(200000);
    start(&r[1]);
    start(&r[2]);
    await(&r[1]);
    await(&r[2]);
    start(&r[3]);
    await(&r[0]);
    await(&r[3]);
    expect(&r[1], DCOMM_ERR_RENDEZVOUS, "another job meets at this port");
    expect(&r[2], DCOMM_ERR_RENDEZVOUS, "another job meets at this port");
    for (int i = 1; i <= 2; i++) {
        cr_assert_lt(all[i].seconds, 6);
        cr_assert(strstr(all[i].why, word_a != NULL ? word_a : run_a) != NULL &&
                      strstr(all[i].why, word_b != NULL ? word_b : run_b) != NULL &&
                      strstr(all[i].why, "DCOMM_JOB=word") != NULL,
                  "\"%s\" should name both jobs and the remedy", all[i].why);
    }
    expect(&r[0], DCOMM_OK, NULL);
    expect(&r[3], DCOMM_OK, NULL);
    cr_assert_str_eq(all[0].met, "aa");
}

Test(jobs, with_two_words_do_not_mix, .timeout = LIMIT)
{
    two_jobs("apple", "pear", NULL, NULL);
}

Test(jobs, of_two_torchruns_do_not_mix, .timeout = LIMIT)
{
    two_jobs(NULL, NULL, "run-17", "run-18");
}

Test(jobs, second_rank_0_of_one_job_is_told, .timeout = LIMIT)
{
    outcome *all = share();
    job_rank r[3];
    for (int i = 0; i < 3; i++) {
        r[i] =
            (job_rank){.rank = i == 2, .size = 2, .letter = 'a', .timeout_s = 10, .end = &all[i]};
    }
    start(&r[0]);
    usleep(200000);
    start(&r[1]);
    await(&r[1]);
    expect(&r[1], DCOMM_ERR_RENDEZVOUS, "another rank 0 of the same job (command line \"");
    start(&r[2]);
    await(&r[0]);
    await(&r[2]);
    expect(&r[0], DCOMM_OK, NULL);
    expect(&r[2], DCOMM_OK, NULL);
}

/* Listen at rank 0's port, as another program does. Return the socket. */
static int another_program(void)
{
    dcommi_addr a;
    dcommi_addr_literal("127.0.0.1", (uint16_t)(port + 1), &a);
    int fd = dcommi_sock_listen(&a, false);
    cr_assert_geq(fd, 0);
    return fd;
}

Test(jobs, port_of_another_program, .timeout = LIMIT)
{
    outcome *all = share();
    int fd = another_program();
    job_rank r = {.size = 2, .letter = 'a', .timeout_s = 10, .end = &all[0]};
    start(&r);
    await(&r);
    expect(&r, DCOMM_ERR_RENDEZVOUS, "another program");
    close(fd);
}

/* The other program answers something. So rank 1 knows that rank 0 will not come. */
Test(jobs, port_that_answers_otherwise, .timeout = LIMIT)
{
    outcome *all = share();
    int fd = another_program();
    job_rank r = {.rank = 1, .size = 2, .letter = 'a', .timeout_s = 20, .end = &all[1]};
    start(&r);
    int status = -1;
    while (waitpid(r.pid, &status, WNOHANG) == 0) {
        int peer = accept(fd, NULL, NULL);
        if (peer >= 0) {
            (void)!send(peer, "HTTP/1.1 400 Bad Request\r\n\r\n....", 32, MSG_NOSIGNAL);
            close(peer);
        }
        usleep(1000);
    }
    cr_assert(status == 0);
    expect(&r, DCOMM_ERR_RENDEZVOUS, "rank 0 does not serve, because another program has its port");
    cr_expect_lt(all[1].seconds, 8);
    close(fd);
}

/* The other program takes connections and says nothing. */
Test(jobs, port_that_says_nothing, .timeout = LIMIT)
{
    outcome *all = share();
    int fd = another_program();
    job_rank r = {.rank = 1, .size = 2, .letter = 'a', .timeout_s = 30, .end = &all[1]};
    start(&r);
    await(&r);
    expect(&r, DCOMM_ERR_RENDEZVOUS, "another program has its port");
    expect(&r, DCOMM_ERR_RENDEZVOUS, "says nothing");
    cr_expect_lt(all[1].seconds, 15);
    close(fd);
}

/* ---- deaths ---- */

/* Start ranks 0 and 1 of 3, and kill one of them. The other one ends with status and words. */
static void dies(int victim, dcomm_status status, const char *const words[])
{
    outcome *all = share();
    job_rank r[2];
    for (int i = 0; i < 2; i++) {
        r[i] = (job_rank){
            .rank = i, .size = 3, .letter = 'a', .timeout_s = 20, .tries = 1, .end = &all[i]};
        start(&r[i]);
    }
    usleep(700000); /* both have met */
    double killed = dcommi_now();
    kill(r[victim].pid, SIGKILL);
    waitpid(r[victim].pid, NULL, 0);
    await(&r[1 - victim]);
    double took = dcommi_now() - killed;
    for (int i = 0; words[i] != NULL; i++) {
        expect(&r[1 - victim], status, words[i]);
    }
    cr_expect_lt(took, 2, "it took %.2f s", took);
}

Test(deaths, of_rank_0, .timeout = LIMIT)
{
    char where[32];
    share();
    snprintf(where, sizeof where, "at 127.0.0.1:%d", port + 1);
    dies(0, DCOMM_ERR_PEER, (const char *[]){"rank 0", "was lost", where, NULL});
}

Test(deaths, of_another_rank, .timeout = LIMIT)
{
    dies(1, DCOMM_ERR_PEER, (const char *[]){"rank 1 was lost", NULL});
}

/* Nobody has served: rank 0 may still come. */
Test(deaths, of_rank_0_before_it_served, .timeout = LIMIT)
{
    outcome *all = share();
    char where[32];
    snprintf(where, sizeof where, "127.0.0.1:%d", port + 1);
    job_rank r = {.rank = 1, .size = 2, .letter = 'a', .timeout_s = 1, .end = &all[1]};
    start(&r);
    await(&r);
    expect(&r, DCOMM_ERR_TIMEOUT, "could not reach rank 0 within 1 s");
    expect(&r, DCOMM_ERR_TIMEOUT, where);
}

Test(jobs, command_lines_that_name_the_rank, .timeout = LIMIT)
{
#define LINE(text) DCOMMI_JOB_COMMAND text "\""
    const struct {
        const char *zero, *other;
        uint32_t rank, local_rank;
        bool same;
    } cases[] = {
        {LINE("train"), LINE("train"), 1, 1, true},
        {LINE("train a"), LINE("train b"), 1, 1, false},
        {LINE("train"), LINE("train more"), 1, 1, false},
        {LINE("train --rank 0 -n 12"), LINE("train --rank 12 -n 12"), 12, 4, true},
        {LINE("train --local-rank=0"), LINE("train --local-rank=4"), 12, 4, true},
        {LINE("train --local_rank=0"), LINE("train --local_rank=0"), 12, 0, true},
        {LINE("train --rank 0"), LINE("train --rank 3"), 12, 4, false},
        {LINE("train --seed 0"), LINE("train --seed 1"), 1, 1, false},
        {"DCOMM_JOB=rank0", "DCOMM_JOB=rank1", 1, 1, false},
        {"DCOMM_JOB=x", LINE("train"), 1, 1, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cr_assert_eq(
            dcommi_job_same(cases[i].zero, cases[i].other, cases[i].rank, cases[i].local_rank),
            cases[i].same, "%s and %s", cases[i].zero, cases[i].other);
    }
}

/* ---- attempts ---- */

/* Rank 1 comes after rank 0 has made a few attempts. */
Test(attempts, that_fail_do_not_count, .timeout = LIMIT)
{
    outcome *all = share();
    job_rank r[2];
    for (int i = 0; i < 2; i++) {
        r[i] = (job_rank){.rank = i,
                          .size = 2,
                          .letter = 'a',
                          .late_s = i * 1.5,
                          .timeout_s = 1,
                          .tries = 8,
                          .end = &all[i]};
        start(&r[i]);
    }
    await(&r[0]);
    await(&r[1]);
    expect(&r[0], DCOMM_OK, NULL);
    expect(&r[1], DCOMM_OK, NULL);
    cr_assert(all[0].tries >= 2 && all[0].tries <= 4 && all[1].tries <= 3, "%d and %d tries",
              all[0].tries, all[1].tries);
}

Test(attempts, another_one_is_named, .timeout = LIMIT)
{
    outcome *all = share();
    job_rank r[2];
    for (int i = 0; i < 2; i++) {
        r[i] = (job_rank){.rank = i, .size = 2, .letter = 'a', .timeout_s = 1, .end = &all[i]};
    }
    environment(&r[0]);
    start(&r[0]);
    r[1].pid = fork();
    if (r[1].pid == 0) {
        environment(&r[1]);
        dcommi_launcher l;
        dcommi_rdv_client client = {.fd = -1, .rank = 1, .size = 2, .timeout_s = 0.7};
        all[1].status = dcommi_launcher_detect(&l);
        dcommi_rdv_target target = {.host = l.host, .port = l.port, .job = l.job};
        all[1].status = dcommi_rdv_join(&client, &target, l.key, 3);
        memcpy(all[1].why, dcommi_message, sizeof all[1].why);
        _exit(0);
    }
    await(&r[0]);
    await(&r[1]);
    expect(&r[1], DCOMM_ERR_TIMEOUT, "rank 0 serves another attempt: it has created 0");
}

/* ---- ranks that cannot take part ---- */

static void one_cannot(int who)
{
    outcome *all = share();
    job_rank r[3];
    for (int i = 0; i < 3; i++) {
        r[i] = (job_rank){.rank = i,
                          .size = 3,
                          .letter = 'a',
                          .late_s = i * 0.3,
                          .timeout_s = 20,
                          .cannot = i == who,
                          .end = &all[i]};
        start(&r[i]);
    }
    for (int i = 0; i < 3; i++) {
        char word[64];
        snprintf(word, sizeof word, "rank %d cannot take part: no shared memory", who);
        await(&r[i]);
        expect(&r[i], DCOMM_ERR_SYSTEM, i == who ? "no shared memory" : word);
        cr_assert_lt(all[i].seconds, 4);
    }
}

Test(announced, by_rank_0, .timeout = LIMIT)
{
    one_cannot(0);
}

Test(announced, by_another_rank, .timeout = LIMIT)
{
    one_cannot(1);
}

Test(announced, by_the_last_rank, .timeout = LIMIT)
{
    one_cannot(2);
}

/* Stand in for a peer in the caller's all-gather: add its contribution to the round under way. */
static int gather_beside_a_rank(const void *mine, size_t bytes, void *all, void *user)
{
    uint64_t theirs = *(const size_t *)user;
    memcpy(all, mine, bytes);
    if (bytes == sizeof theirs) { /* first the length, then the word that memory is available */
        theirs = *(const uint64_t *)mine != 0 ? theirs : 0;
        memcpy((char *)all + bytes, &theirs, bytes);
    } else {
        dcommi_boot_word word = {.status = DCOMM_ERR_SYSTEM, .text = "no shared memory"};
        memcpy((char *)all + bytes, &word, sizeof word);
    }
    return 0;
}

Test(announced, by_the_callers_allgather, .timeout = LIMIT)
{
    size_t theirs = sizeof(dcommi_boot_word), *lens = NULL;
    dcomm_comm_opts opts = {.boot = DCOMM_BOOT_ALLGATHER,
                            .size = 2,
                            .allgather = gather_beside_a_rank,
                            .allgather_user = &theirs};
    dcommi_boot boot;
    char mine[1000] = "a card", *all = NULL;
    cr_assert_eq(dcommi_boot_open(&opts, 5, NULL, &boot), DCOMM_OK);
    cr_assert_eq(dcommi_boot_allgather(&boot, mine, sizeof mine, (void **)&all, &lens), DCOMM_OK);
    cr_assert_eq(lens[1], theirs);
    cr_assert_eq(dcommi_boot_word_read(all + lens[0], lens[1], 1), DCOMM_ERR_SYSTEM);
    cr_assert_str_eq(dcommi_message, "rank 1: no shared memory");
    dcommi_free(all);
    dcommi_free(lens);
    dcommi_boot_close(&boot, DCOMM_ERR_SYSTEM);
}

/* ---- waiting ---- */

static dcommi_rdv_conn *greet(dcommi_rdv_core *c, uint32_t rank, double now)
{
    static const uint8_t nonce[DCOMMI_RDV_NONCE];
    uint8_t hello[DCOMMI_RDV_HELLO_FRAME];
    dcommi_rdv_hello h = {.wire = DCOMMI_RDV_WIRE_VERSION,
                          .lib = DCOMMI_RDV_LIB_VERSION,
                          .rank = rank,
                          .size = 4,
                          .timeout_ms = 60000,
                          .instance = rank};
    dcommi_rdv_conn *conn = dcommi_rdv_accept(c, nonce, now);
    size_t len = dcommi_rdv_put_hello(hello, &h, nonce, conn->challenge, c->key);
    cr_assert_eq(dcommi_rdv_input(c, conn, hello, len, now), len);
    return conn;
}

Test(waits, are_told_once_after_5_s)
{
    static const uint8_t key[DCOMMI_RDV_KEY];
    dcommi_rdv_core c;
    dcommi_rdv_core_begin(&c, key, 0, "");
    greet(&c, 0, 1000);
    greet(&c, 2, 1003);
    cr_assert_lt(dcommi_rdv_tick(&c, 1004.9), 1005.1, "it wakes up to say it");
    cr_assert_str_eq(c.news, "");
    dcommi_rdv_tick(&c, 1005.1);
    cr_assert(strstr(c.news, "waited 5 s for rank(s) 1, 3 of 4 to come") != NULL, "%s", c.news);
    c.news[0] = '\0';
    dcommi_rdv_tick(&c, 1020);
    cr_assert_str_eq(c.news, "");
    dcommi_rdv_core_end(&c);
}

/* ---- forks ---- */

/* A forked child finds no lock held and none of its parent's sockets, whenever it was forked. */
Test(forks, beside_a_rendezvous, .timeout = LIMIT)
{
    for (int turn = 0; turn < 20; turn++) {
        dcomm_id id;
        dcommi_id_parts parts;
        cr_assert_eq(dcomm_id_create(&id), DCOMM_OK);
        cr_assert_eq(dcommi_id_parse(&id, &parts), DCOMM_OK);
        int listening = dcommi_rdv_servers->listen_fd;
        pid_t pid = fork();
        if (pid == 0) {
            _exit(dcommi_rdv_servers != NULL || pthread_mutex_trylock(&dcommi_rdv_lock) != 0 ||
                  fcntl(listening, F_GETFD) >= 0);
        }
        int status = -1;
        cr_assert(waitpid(pid, &status, 0) == pid && status == 0, "turn %d", turn);
        /* The parent still serves the rendezvous. */
        dcommi_addr a;
        int fd, error;
        dcommi_addr_literal("127.0.0.1", parts.port, &a);
        cr_assert_eq(dcommi_sock_connect(&a, dcommi_now() + 5, NULL, &fd, &error), DCOMM_OK);
        close(fd);
    }
}
