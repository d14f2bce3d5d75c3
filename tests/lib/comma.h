/* comma.h - a locale whose numbers have a comma, made for the test if the machine has none. */
#ifndef TESTS_COMMA_H
#define TESTS_COMMA_H

#include <criterion/criterion.h>

#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Set the German locale for this process; skip the test where there is none and none can be made.
 */
static inline void comma_locale(void)
{
    char folder[] = "/tmp/dcomm-test-locale-XXXXXX", command[256], half[16];
    if (setlocale(LC_ALL, "de_DE") == NULL) {
        cr_assert_not_null(mkdtemp(folder));
        snprintf(command, sizeof command,
                 "localedef -i de_DE -f ISO-8859-1 %s/de_DE >/dev/null 2>&1", folder);
        int made = system(command);
        setenv("LOCPATH", folder, 1);
        const char *got = made == 0 ? setlocale(LC_ALL, "de_DE") : NULL;
        snprintf(command, sizeof command, "rm -rf %s", folder);
        cr_assert_eq(system(command), 0);
        if (got == NULL) {
            cr_skip_test("no German locale, and localedef makes none");
        }
    }
    snprintf(half, sizeof half, "%.1f", 0.5);
    cr_assert_str_eq(half, "0,5");
}

#endif
