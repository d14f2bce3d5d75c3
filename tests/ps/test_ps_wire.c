/* test_ps_wire.c - the checks of a worker's messages to a parameter server, one field at a time. */
#define _GNU_SOURCE
#pragma GCC diagnostic ignored "-Wunused-function"
#include "dcomm/impl/ps/wire.h"

#include <criterion/criterion.h>

/* This server holds rows 10 to 14, of 3 columns, of the second of two parameters. */
static dcommi_ps_param params[] = {{.rows = 1, .cols = 1, .dtype = DCOMM_F32},
                                   {.rows = 20, .cols = 3, .dtype = DCOMM_F32}};
static dcommi_ps_table tables[] = {{.rows = 0, .cols = 1}, {.first = 10, .rows = 5, .cols = 3}};
static const dcomm_ps ps = {.nparams = 2, .params = params, .tables = tables};

static bool valid(uint16_t slot, uint16_t stage, uint32_t tag, uint64_t a, uint64_t b, size_t len)
{
    const dcommi_header h = {.slot = slot, .stage = stage, .tag = tag, .a = a, .b = b};
    return dcommi_ps_valid(&ps, &h, len);
}

Test(ps_wire, ranges)
{
    enum { PUSH = DCOMMI_PS_PUSH, PULL = DCOMMI_PS_PULL, ROW = 12 };
    cr_expect(valid(PUSH, 0, 1, 10, 5, 5 * ROW));
    cr_expect(valid(PUSH, 0, 1, 14, 1, ROW));
    cr_expect(valid(PULL, 0, 1, 10, 5, 0));
    cr_expect(!valid(PUSH, 0, 1, 10, 5, 5 * ROW - 1), "short");
    cr_expect(!valid(PUSH, 0, 1, 10, 5, 5 * ROW + 1), "long");
    cr_expect(!valid(PULL, 0, 1, 10, 5, ROW), "a pull with values");
    cr_expect(!valid(PULL, 0, 1, 9, 1, 0), "before the first row");
    cr_expect(!valid(PULL, 0, 1, 11, 5, 0), "behind the last row");
    cr_expect(!valid(PULL, 0, 1, UINT64_MAX, 2, 0), "around the end");
    cr_expect(!valid(PULL, 0, 1, 10, 0, 0), "no rows");
    cr_expect(!valid(PULL, 0, 1, 10, UINT64_MAX, 0), "very many rows");
    cr_expect(!valid(PULL, 0, 2, 10, 1, 0), "no such parameter");
    cr_expect(!valid(PULL, 0, 0, 0, 1, 0), "a parameter without rows here");
}

/* Rows of 16 bits are half as long. */
Test(ps_wire, types)
{
    params[1].dtype = DCOMM_BF16;
    cr_expect(valid(DCOMMI_PS_PUSH, 0, 1, 10, 5, 5 * 6));
    cr_expect(!valid(DCOMMI_PS_PUSH, 0, 1, 10, 5, 5 * 12));
    cr_expect(valid(DCOMMI_PS_PUSH, 1, 1, 0, 3, 3 * (8 + 6)));
    params[1].dtype = DCOMM_F32;
}

Test(ps_wire, lists)
{
    enum { PUSH = DCOMMI_PS_PUSH, PULL = DCOMMI_PS_PULL, ROW = 12 };
    const uint64_t good[] = {10, 12, 14}, twice[] = {10, 10}, back[] = {12, 11};
    const uint64_t early[] = {9, 10}, late[] = {14, 15}, far[] = {UINT64_MAX};
    cr_expect(valid(PUSH, 1, 1, 0, 3, 3 * (8 + ROW)));
    cr_expect(valid(PULL, 1, 1, 0, 3, 3 * 8));
    cr_expect(!valid(PULL, 2, 1, 0, 3, 3 * 8), "no such form");
    cr_expect(!valid(PULL, 1, 1, 10, 3, 3 * 8), "a list with a first row");
    cr_expect(!valid(PULL, 1, 1, 0, 6, 6 * 8), "more than there are");
    cr_expect(!valid(PULL, 1, 1, 0, (uint64_t)1 << 61, 0), "a length that wraps around");
    cr_expect(dcommi_ps_valid_list(&tables[1], good, 3));
    cr_expect(!dcommi_ps_valid_list(&tables[1], twice, 2));
    cr_expect(!dcommi_ps_valid_list(&tables[1], back, 2));
    cr_expect(!dcommi_ps_valid_list(&tables[1], early, 2));
    cr_expect(!dcommi_ps_valid_list(&tables[1], late, 2));
    cr_expect(!dcommi_ps_valid_list(&tables[1], far, 1));
}

/* A codec's wire has a longest length, and the codec itself judges a shorter one. */
Test(ps_wire, encoded)
{
    dcomm_codec *codec = NULL;
    cr_assert_eq(dcomm_codec_create("f16", &codec), DCOMM_OK);
    params[1].codec = codec;
    cr_expect(valid(DCOMMI_PS_PUSH, 0, 1, 10, 5, 5 * 6));
    cr_expect(valid(DCOMMI_PS_PUSH, 0, 1, 10, 5, 5 * 6 - 1));
    cr_expect(!valid(DCOMMI_PS_PUSH, 0, 1, 10, 5, 5 * 6 + 1), "long");
    cr_expect(valid(DCOMMI_PS_PUSH, 1, 1, 0, 3, 3 * (8 + 6)));
    cr_expect(!valid(DCOMMI_PS_PUSH, 1, 1, 0, 3, 3 * 8 - 1), "shorter than its list");
    cr_expect(!valid(DCOMMI_PS_PULL, 0, 1, 10, 5, 1), "a pull with values");
    params[1].codec = NULL;
    dcomm_codec_destroy(&codec);
}

Test(ps_wire, without_rows)
{
    cr_expect(valid(DCOMMI_PS_CLOCK, 0, 0, 0, 0, 0));
    cr_expect(valid(DCOMMI_PS_LEAVE, 0, 9, 0, 0, 0), "its parameter is not read");
    cr_expect(!valid(DCOMMI_PS_CLOCK, 0, 0, 0, 0, 8), "with a payload");
    cr_expect(!valid(DCOMMI_PS_CLOCK, 1, 0, 0, 1, 0), "with a list");
    cr_expect(!valid(DCOMMI_PS_VALUES, 0, 0, 0, 0, 0), "a server's");
    cr_expect(!valid(0, 0, 0, 0, 0, 0), "none");
}
