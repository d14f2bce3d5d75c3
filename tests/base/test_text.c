/* test_text.c - the strict reader of text: sizes, times, flags, lists of hosts; and the table of
 * environment variables, and those of NCCL that count. */
#define _GNU_SOURCE
#pragma GCC diagnostic ignored "-Wunused-function"
#include "dcomm/impl/base/environment.h"
#include "dcomm/impl/base/nodelist.h"
#include "dcomm/impl/boot/socket.h"
#include "dcomm/impl/transport/ucx/iface.h"

#include <criterion/criterion.h>
#include <inttypes.h>

Test(text, node_lists)
{
    const char *good[][2] = {{"n1", "n1"},
                             {"n[01-03,7],m2", "n01"},
                             {"n[7]", "n7"},
                             {"rack[2-3]n[010,012]-ib", "rack2n010-ib"},
                             {"a.b-c_d,e", "a.b-c_d"}};
    const char *bad[] = {"",    ",n1",    "n[",    "n[]",  "n[a-b]", "n[1", "n[1-2",   "n]1[",
                         "n 1", "n[1;2]", "n[-1]", "\xff", "n/1",    "[",   "n[1[2]]", "n[1-2,x]"};
    char host[32];
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        cr_assert(dcommi_nodelist_first(good[i][0], host, sizeof host), "%s", good[i][0]);
        cr_assert_str_eq(host, good[i][1]);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        cr_assert_not(dcommi_nodelist_first(bad[i], host, sizeof host), "%s", bad[i]);
    }
    cr_assert_not(dcommi_nodelist_first("abcd", host, 4));
    cr_assert(dcommi_nodelist_first("abcd", host, 5));
    cr_assert_not(dcommi_nodelist_first("a[123]", host, 4));
    cr_assert(dcommi_nodelist_first("a[123]", host, 5));
}

/* ---- numbers and words ---- */

Test(text, sizes)
{
    static const struct {
        const char *text;
        uint64_t value; /* 7: refused */
    } sizes[] = {{"64K", 65536},
                 {"64k", 65536},
                 {"3", 3},
                 {"1M", 1 << 20},
                 {"2g", 2ull << 30},
                 {"1T", 1ull << 40},
                 {"64KB", 7},
                 {"", 7},
                 {"K", 7},
                 {"-1", 7},
                 {"+1", 7},
                 {" 1", 7},
                 {"1 ", 7},
                 {"1.5K", 7},
                 {"0x10", 7},
                 {"64Q", 7},
                 {"17179869184G", 7},
                 {"18446744073709551616", 7}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        uint64_t value = 7;
        bool good = dcommi_text_size(sizes[i].text, 0, UINT64_MAX, &value);
        cr_assert(value == sizes[i].value && good == (value != 7), "%s is %" PRIu64, sizes[i].text,
                  value);
    }
    uint64_t value = 0;
    cr_assert_not(dcommi_text_size("2K", 0, 2047, &value));
    cr_assert_not(dcommi_text_size("1K", 1025, 4096, &value));
}

Test(text, seconds_flags_and_integers)
{
    double s = 0;
    cr_assert(dcommi_text_seconds("30", 0, 1e9, &s) && s == 30);
    cr_assert(dcommi_text_seconds("30s", 0, 1e9, &s) && s == 30);
    cr_assert(dcommi_text_seconds("500ms", 0, 1e9, &s) && s == 0.5);
    cr_assert(dcommi_text_seconds("5m", 0, 1e9, &s) && s == 300);
    cr_assert(dcommi_text_seconds("1.5H", 0, 1e9, &s) && s == 5400);
    cr_assert_not(dcommi_text_seconds("30 s", 0, 1e9, &s));
    cr_assert_not(dcommi_text_seconds("s", 0, 1e9, &s));
    cr_assert_not(dcommi_text_seconds("inf", 0, 1e9, &s));
    static const char *const on[] = {"1", "true", "YES", "On"}, *const off[] = {"0", "False", "no",
                                                                                "OFF"};
    bool flag = false;
    for (int i = 0; i < 4; i++) {
        cr_assert(dcommi_text_flag(on[i], &flag) && flag, "%s", on[i]);
        cr_assert(dcommi_text_flag(off[i], &flag) && !flag, "%s", off[i]);
    }
    cr_assert_not(dcommi_text_flag("2", &flag));
    cr_assert_not(dcommi_text_flag("", &flag));
    int64_t n = 0;
    cr_assert(dcommi_text_integer("-12", -12, 0, &n) && n == -12);
    cr_assert_not(dcommi_text_integer("9223372036854775808", INT64_MIN, INT64_MAX, &n));
    cr_assert_not(dcommi_text_integer("1.0", 0, 9, &n));
    cr_assert_not(dcommi_text_integer("10", 0, 9, &n));
}

/* ---- the table of variables ---- */

static char *whole(const char *path)
{
    FILE *file = fopen(path, "r");
    cr_assert_not_null(file, "%s", path);
    size_t room = 8 << 20;
    char *text = malloc(room);
    cr_assert_not_null(text);
    text[fread(text, 1, room - 1, file)] = 0;
    fclose(file);
    return text;
}

/* Each variable that the sources read is in the table, each one in the table has a row in the
 * docs, and the docs name no other. */
Test(environment, table_docs_and_sources_agree)
{
    static const char *const sources[] = {"/../include/dcomm.h", "/../include/dcomm_nccl.h",
                                          "/../nccl/host/device.c"};
    static const char *const calls[] = {"getenv(\"DCOMM_", "dcommi_env(\"DCOMM_",
                                        "dcommi_env_flag(\"DCOMM_", "dcommi_env_int(\"DCOMM_",
                                        "dcommi_env_read(\"DCOMM_"};
    char path[512];
    int found = 0;
    for (size_t f = 0; f < 3; f++) {
        snprintf(path, sizeof path, "%s%s", DCOMM_TESTS_DIR, sources[f]);
        char *text = whole(path);
        for (size_t c = 0; c < 5; c++) {
            for (char *at = text; (at = strstr(at, calls[c])) != NULL; found++) {
                at = strchr(at, '"') + 1;
                size_t len = strcspn(at, "\"");
                cr_assert_not_null(dcommi_env_find(at, len), "%.*s is not in the table", (int)len,
                                   at);
            }
        }
        free(text);
    }
    cr_assert_gt(found, 20);
    char *docs = whole(DCOMM_TESTS_DIR "/../docs/environment.md"), word[64];
    for (int i = 0; i < DCOMMI_ENV_COUNT; i++) {
        snprintf(word, sizeof word, "`%s`", dcommi_env_table[i].name);
        cr_assert_not_null(strstr(docs, word), "docs/environment.md lacks %s", word);
    }
    for (char *row = docs; row != NULL; row = strchr(row + 1, '\n')) {
        const char *cell = row + strspn(row, "\n");
        if (strncmp(cell, "| `DCOMM_", 9) != 0) {
            continue;
        }
        for (const char *end = strchr(cell + 1, '|');
             (cell = strchr(cell, '`')) != NULL && cell < end; cell = strchr(cell, '`') + 1) {
            size_t len = strcspn(++cell, "`");
            cr_assert_not_null(dcommi_env_find(cell, len), "the docs' %.*s is not in the table",
                               (int)len, cell);
        }
    }
    free(docs);
}

/* ---- NCCL's variables, where dcomm's are not set ---- */

Test(text, nccls_lists_of_interfaces)
{
    static const struct {
        const char *list, *name;
        bool in;
    } cases[] = {
        {"eth", "eth0", true},         {"eth", "wlan0", false},      {"ib,eth", "eth1", true},
        {"eth1", "eth10", true},       {"=eth1", "eth10", false},    {"=eth0,eth1", "eth1", true},
        {"^docker", "docker0", false}, {"^docker,lo", "eth0", true}, {"^docker,lo", "lo", false},
        {"^=eth1", "eth10", true},     {"^=eth1", "eth1", false},    {"mlx5_0:1", "mlx5_0", true},
        {"eth0:1,eth2", "eth2", true}, {",", "eth0", false},         {"^", "eth0", true},
        {"=eth", "eth0", false}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cr_expect_eq(dcommi_iface_listed(cases[i].list, cases[i].name), cases[i].in, "%s, %s",
                     cases[i].list, cases[i].name);
    }
}

static char warned[512];

static void warn(int level, const char *message, void *user)
{
    (void)level;
    (void)user;
    snprintf(warned, sizeof warned, "%s", message);
}

Test(text, nccls_interface_counts)
{
    dcommi_addr found[DCOMMI_SOCK_ADDRS];
    dcommi_iface name = "";
    dcomm_set_logger(warn, NULL);
    unsetenv("DCOMM_IFACE");
    setenv("NCCL_SOCKET_IFNAME", "=lo", 1);
    dcommi_ucx_usual_iface(name);
    cr_expect_str_eq(name, "lo");
    int n = dcommi_addr_mine(NULL, found, DCOMMI_SOCK_ADDRS);
    cr_expect_gt(n, 0);
    for (int i = 0; i < n; i++) {
        cr_expect(dcommi_addr_loopback(&found[i]), "address %d of %d", i, n);
    }
    setenv("DCOMM_IFACE", "eth", 1); /* dcomm's own wins */
    cr_expect_null(dcommi_iface_list());
    unsetenv("DCOMM_IFACE");
    cr_expect_str_empty(warned);
    setenv("NCCL_SOCKET_IFNAME", "nosuch,none", 1);
    cr_expect_null(dcommi_iface_list());
    cr_expect_not_null(strstr(warned, "NCCL_SOCKET_IFNAME=\"nosuch,none\" is ignored"), "%s",
                       warned);
    warned[0] = '\0';
    cr_expect_null(dcommi_iface_list());
    cr_expect_str_empty(warned); /* said already */
    cr_expect_gt(dcommi_addr_mine(NULL, found, DCOMMI_SOCK_ADDRS), 0);
}

Test(text, nccls_debug_counts)
{
    cr_expect_eq(dcommi_log_level_of_nccl("NONE"), DCOMMI_LOG_ERROR);
    cr_expect_eq(dcommi_log_level_of_nccl("VERSION"), DCOMMI_LOG_WARN);
    cr_expect_eq(dcommi_log_level_of_nccl("warn"), DCOMMI_LOG_WARN);
    cr_expect_eq(dcommi_log_level_of_nccl("ATTN"), DCOMMI_LOG_WARN);
    cr_expect_eq(dcommi_log_level_of_nccl("Info"), DCOMMI_LOG_INFO);
    cr_expect_eq(dcommi_log_level_of_nccl("TRACE"), DCOMMI_LOG_INFO);
    cr_expect_eq(dcommi_log_level_of_nccl("loud"), -1);
    cr_expect_eq(dcommi_log_level_of_nccl(NULL), -1);
    unsetenv("DCOMM_LOG");
    setenv("NCCL_DEBUG", "INFO", 1);
    cr_expect_eq(dcommi_log_level(), DCOMMI_LOG_INFO);
}

Test(text, dcomms_level_wins)
{
    setenv("DCOMM_LOG", "error", 1);
    setenv("NCCL_DEBUG", "INFO", 1);
    cr_expect_eq(dcommi_log_level(), DCOMMI_LOG_ERROR);
}
