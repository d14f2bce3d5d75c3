/* suite.h - the tests of a program that also replays seeds. */
#ifndef SIM_SUITE_H
#define SIM_SUITE_H

#include <criterion/criterion.h>

/* Run them, as Criterion's own main function does. */
static int suite_run(int argc, char **argv)
{
    struct criterion_test_set *tests = criterion_initialize();
    int result = criterion_handle_args(argc, argv, true) ? !criterion_run_all_tests(tests) : 0;
    criterion_finalize(tests);
    return result;
}

#endif
