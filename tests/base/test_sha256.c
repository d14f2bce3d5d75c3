/* test_sha256.c - digests and authentication codes against the vectors of their standards. */
#define _GNU_SOURCE
#pragma GCC diagnostic ignored "-Wunused-function"
#include "dcomm/impl/base/sha256.h"

#include <criterion/criterion.h>

static void hex(const uint8_t *bytes, size_t n, char *text)
{
    for (size_t i = 0; i < n; i++) {
        snprintf(text + 2 * i, 3, "%02x", bytes[i]);
    }
}

Test(sha256, vectors_of_fips_180)
{
    char text[65];
    uint8_t digest[32];
    dcommi_sha256_digest("abc", 3, digest);
    hex(digest, 32, text);
    cr_assert_str_eq(text, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    dcommi_sha256_digest("", 0, digest);
    hex(digest, 32, text);
    cr_assert_str_eq(text, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    const char *two = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
    dcommi_sha256_digest(two, strlen(two), digest);
    hex(digest, 32, text);
    cr_assert_str_eq(text, "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    /* a million times "a", in uneven pieces */
    static char a[1000000];
    memset(a, 'a', sizeof a);
    dcommi_sha256 s;
    dcommi_sha256_begin(&s);
    for (size_t at = 0, n = 1; at < sizeof a; at += n, n = n * 7 % 1009) {
        n = n < sizeof a - at ? n : sizeof a - at;
        dcommi_sha256_add(&s, a + at, n);
    }
    dcommi_sha256_end(&s, digest);
    hex(digest, 32, text);
    cr_assert_str_eq(text, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

/* Lengths at which the padding just fits into the last block, or just does not. */
Test(sha256, padding)
{
    static const struct {
        size_t len;
        const char *digest;
    } cases[] = {{55, "9f4390f8d30c2dd92ec9f095b65e2b9ae9b0a925a5258e241c9f1e910f734318"},
                 {56, "b35439a4ac6f0948b6d6f9e3c6af0f5f590ce20f1bde7090ef7970686ec6738a"},
                 {64, "ffe054fe7ae0cb6dc65c3af9b61d5209f439851db43d0ba5997337df154668eb"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char a[64], text[65];
        uint8_t digest[32];
        memset(a, 'a', sizeof a);
        dcommi_sha256_digest(a, cases[i].len, digest);
        hex(digest, 32, text);
        cr_assert_str_eq(text, cases[i].digest, "%zu bytes", cases[i].len);
    }
}

Test(sha256, vectors_of_rfc_4231)
{
    const struct {
        int key_byte;
        size_t key_len;
        const char *key, *data, *tag;
    } cases[] = {
        {0x0b, 20, NULL, "Hi There",
         "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"},
        {0, 4, "Jefe", "what do ya want for nothing?",
         "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"},
        {0xaa, 131, NULL, "Test Using Larger Than Block-Size Key - Hash Key First",
         "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint8_t key[131], tag[32];
        char text[65];
        memset(key, cases[i].key_byte, sizeof key);
        if (cases[i].key != NULL) {
            memcpy(key, cases[i].key, cases[i].key_len);
        }
        dcommi_hmac h;
        dcommi_hmac_begin(&h, key, cases[i].key_len);
        dcommi_hmac_add(&h, cases[i].data, strlen(cases[i].data));
        dcommi_hmac_end(&h, tag);
        hex(tag, 32, text);
        cr_assert_str_eq(text, cases[i].tag);
    }
}
