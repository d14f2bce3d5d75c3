/* criterion.h - the part of Criterion that the device tests use, for machines with a GPU and
 * without Criterion. Each test runs in its own process, one after the other; arguments are names
 * ("suite/test"), words that names must contain, or --list, which prints the names of all. */
#ifndef PLAIN_CRITERION_H
#define PLAIN_CRITERION_H

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct plain_test {
    const char *name;
    void (*run)(void);
    struct plain_test *next;
} plain_test;

static plain_test *plain_first, **plain_last = &plain_first;

#define Test(suite, test, ...)                                                    \
    static void plain_##suite##_##test(void);                                     \
    __attribute__((constructor)) static void plain_##suite##_##test##_add(void)   \
    {                                                                             \
        static plain_test one = {#suite "/" #test, plain_##suite##_##test, NULL}; \
        *plain_last = &one;                                                       \
        plain_last = &one.next;                                                   \
    }                                                                             \
    static void plain_##suite##_##test(void)

#define cr_assert(condition, ...)                                    \
    do {                                                             \
        if (!(condition)) {                                          \
            printf("# %s:%d: %s: ", __FILE__, __LINE__, #condition); \
            printf("" __VA_ARGS__);                                  \
            printf("\n");                                            \
            fflush(NULL);                                            \
            _exit(1);                                                \
        }                                                            \
    } while (0)
#define cr_assert_eq(a, b, ...) cr_assert((a) == (b), __VA_ARGS__)
#define cr_assert_gt(a, b, ...) cr_assert((a) > (b), __VA_ARGS__)

int main(int argc, char **argv)
{
    int bad = 0;
    bool list = argc > 1 && strcmp(argv[1], "--list") == 0;
    for (const plain_test *t = plain_first; t != NULL; t = t->next) {
        bool wanted = argc < 2;
        for (int i = 1; i < argc; i++) {
            bool whole = strchr(argv[i], '/') != NULL;
            wanted = wanted || (whole ? strcmp(t->name, argv[i]) == 0 : strstr(t->name, argv[i]) != NULL);
        }
        if (list) {
            puts(t->name);
        }
        if (!wanted || list) {
            continue;
        }
        int status = 0;
        fflush(NULL);
        pid_t pid = fork();
        if (pid == 0) {
            t->run();
            fflush(NULL);
            _exit(0);
        }
        bool good = pid > 0 && waitpid(pid, &status, 0) == pid && status == 0;
        printf("%s - %s\n", good ? "ok" : "not ok", t->name);
        bad += !good;
    }
    return bad > 0;
}

#endif
