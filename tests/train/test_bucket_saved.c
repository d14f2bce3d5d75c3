/* test_bucket_saved.c - saved states of buckets with a right hash and wrong values: each is
 * refused by name, and the buckets stay as they were. */
#define _GNU_SOURCE
#include "dcomm/impl/train/bucket/save.h"

#include <criterion/criterion.h>

enum { PARAMS = 3, COUNT = 8, ROOM = 4096 };

static float grad[PARAMS][COUNT];
static unsigned char state[ROOM];

/* Load the state, with a hash that is right. */
static dcomm_status load(dcomm_buckets *b, size_t bytes)
{
    const void *states[1] = {state};
    const uint64_t hash = dcommi_feedback_hash(state, bytes - sizeof hash);
    memcpy(state + bytes - sizeof hash, &hash, sizeof hash);
    return dcomm_buckets_load(b, states, &bytes, 1);
}

static void expect_refused(dcomm_buckets *b, size_t bytes, const char *words)
{
    cr_assert_eq(load(b, bytes), DCOMM_ERR_CORRUPT, "%s", words);
    cr_assert_not_null(strstr(dcomm_last_error(), words), "%s", dcomm_last_error());
    dcomm_buckets_info info;
    cr_assert_eq(dcomm_buckets_get_info(b, &info), DCOMM_OK);
    cr_assert(info.status == DCOMM_OK && info.steps == 0);
}

Test(bucket_saved, forged_states_are_refused, .timeout = 30)
{
    dcomm_comm *comm = NULL;
    dcomm_buckets *b = NULL;
    dcomm_bucket_param params[PARAMS] = {0};
    for (size_t i = 0; i < PARAMS; i++) {
        params[i] = (dcomm_bucket_param){.grad = grad[i], .count = COUNT, .dtype = DCOMM_F32};
    }
    cr_assert_eq(dcomm_comm_create(NULL, &comm), DCOMM_OK, "%s", dcomm_last_error());
    cr_assert_eq(dcomm_buckets_create(comm, params, PARAMS, NULL, &b), DCOMM_OK, "%s",
                 dcomm_last_error());
    const size_t bytes = dcomm_buckets_save_bytes(b);
    cr_assert(bytes <= ROOM);
    cr_assert_eq(dcomm_buckets_save(b, state, ROOM), DCOMM_OK, "%s", dcomm_last_error());
    uint32_t order[PARAMS];
    dcommi_bkt_head head;
    memcpy(&head, state, sizeof head);
    memcpy(order, state + sizeof head, sizeof order);

    const uint32_t wrong[][PARAMS] = {{0, 1, 1}, {0, 0, 0}, {2, 1, PARAMS}, {UINT32_MAX, 0, 1}};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        memcpy(state + sizeof head, wrong[i], sizeof order);
        expect_refused(b, bytes, "does not have each parameter once");
    }
    memcpy(state + sizeof head, order, sizeof order);
    dcommi_bkt_head forged = head;
    forged.built = (uint64_t)INT32_MAX + 1;
    memcpy(state, &forged, sizeof forged);
    expect_refused(b, bytes, "out of range");
    memcpy(state, &head, sizeof head);

    cr_assert_eq(load(b, bytes), DCOMM_OK, "%s", dcomm_last_error());
    cr_assert_eq(dcomm_buckets_destroy(&b), DCOMM_OK);
    cr_assert_eq(dcomm_comm_destroy(&comm), DCOMM_OK);
}
