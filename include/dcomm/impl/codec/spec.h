/* spec.h - convert a spec such as "qsgd:bits=4,bucket=512" to a codec's values, and back. */
#ifndef DCOMMI_CODEC_SPEC_H
#define DCOMMI_CODEC_SPEC_H

#include "table.h"

static const dcommi_codec_option dcommi_codec_common = {"nonfinite",
                                                        DCOMMI_CODEC_CHOICE,
                                                        "fail|zero|pass",
                                                        0,
                                                        0,
                                                        0,
                                                        "what becomes of NaN and infinity"};

static bool dcommi_codec_named(const char *name, const char *text, size_t len)
{
    return strlen(name) == len && memcmp(name, text, len) == 0;
}

static const dcommi_codec_ops *dcommi_codec_find(const char *name, size_t len)
{
    for (size_t i = 0; dcommi_codec_table[i] != NULL; i++) {
        if (dcommi_codec_named(dcommi_codec_table[i]->name, name, len)) {
            return dcommi_codec_table[i];
        }
    }
    return NULL;
}

/* Write the values that an option allows, for people. */
static void dcommi_codec_allowed(dcommi_print_text *text, const dcommi_codec_option *option)
{
    if (option->kind == DCOMMI_CODEC_CHOICE) {
        dcommi_print_add(text, "%s", option->choices);
    } else {
        dcommi_print_add(text, "a%s number from %.12g to %.12g",
                         option->kind == DCOMMI_CODEC_INTEGER ? " whole" : "", option->least,
                         option->most);
    }
}

/* Write a value. A number becomes the shortest decimal that reads back as the same number. */
static void dcommi_codec_show(dcommi_print_text *text, const dcommi_codec_option *option,
                              double value)
{
    if (option->kind == DCOMMI_CODEC_CHOICE) {
        const char *word = option->choices;
        for (int i = 0; i < (int)value; i++) {
            word += strcspn(word, "|") + 1;
        }
        dcommi_print_add(text, "%.*s", (int)strcspn(word, "|"), word);
        return;
    }
    char number[40];
    for (int digits = 6; digits <= 17; digits++) {
        double back = 0;
        dcommi_snprintf(number, sizeof number, "%.*g", digits, value);
        if (dcommi_text_number(number, value, value, &back)) {
            break;
        }
    }
    dcommi_print_add(text, "%s", number);
}

/* Read one value from the first `len` characters of text. */
static dcomm_status dcommi_codec_read(const dcommi_codec_ops *ops,
                                      const dcommi_codec_option *option, const char *text,
                                      size_t len, double *value)
{
    bool good = false;
    if (option->kind == DCOMMI_CODEC_CHOICE) {
        int i = dcommi_text_choice(option->choices, text, len);
        *value = i;
        good = i >= 0;
    } else {
        char number[40];
        if (len < sizeof number) {
            memcpy(number, text, len);
            number[len] = '\0';
            good = dcommi_text_number(number, option->least, option->most, value) &&
                   (option->kind != DCOMMI_CODEC_INTEGER || *value == (double)(int64_t)*value);
        }
    }
    if (good) {
        return DCOMM_OK;
    }
    char allowed[200];
    dcommi_print_text to = {allowed, sizeof allowed, 0};
    dcommi_codec_allowed(&to, option);
    return dcommi_fail(DCOMM_ERR_INVALID, "codec %s: %s=%.*s: it must be %s%s", ops->name,
                       option->name, (int)(len < 40 ? len : 40), text,
                       option->kind == DCOMMI_CODEC_CHOICE ? "one of " : "", allowed);
}

static dcomm_status dcommi_codec_unknown_option(const dcommi_codec_ops *ops, const char *name,
                                                size_t len)
{
    char known[200];
    dcommi_print_text to = {known, sizeof known, 0};
    known[0] = '\0';
    for (const dcommi_codec_option *o = ops->options; o->kind != DCOMMI_CODEC_END; o++) {
        dcommi_print_add(&to, "%s, ", o->name);
    }
    return dcommi_fail(DCOMM_ERR_INVALID, "codec %s has no option '%.*s'; its options are %s%s",
                       ops->name, (int)(len < 40 ? len : 40), name, known,
                       dcommi_codec_common.name);
}

/* Read the options, the part behind the colon. */
static dcomm_status dcommi_codec_read_options(dcomm_codec *codec, const char *text)
{
    const dcommi_codec_ops *ops = codec->ops;
    bool given_common = false;
    for (const char *next; *text != '\0'; text = next) {
        size_t len = strcspn(text, ",");
        size_t name = strcspn(text, "=");
        next = text + len + (text[len] == ',');
        if (name == 0 || name >= len || (text[len] == ',' && *next == '\0')) {
            return dcommi_fail(DCOMM_ERR_INVALID, "codec %s: '%.*s' is not option=value", ops->name,
                               (int)(len < 40 ? len : 40), name == 0 || name >= len ? text : ",");
        }
        const char *value = text + name + 1;
        size_t value_len = len - name - 1;
        int i = 0;
        while (ops->options[i].kind != DCOMMI_CODEC_END &&
               !dcommi_codec_named(ops->options[i].name, text, name)) {
            i++;
        }
        bool *given = &codec->given[i];
        if (ops->options[i].kind != DCOMMI_CODEC_END) {
            DCOMMI_TRY(
                dcommi_codec_read(ops, &ops->options[i], value, value_len, &codec->value[i]));
        } else if (dcommi_codec_named(dcommi_codec_common.name, text, name)) {
            double policy = 0;
            DCOMMI_TRY(dcommi_codec_read(ops, &dcommi_codec_common, value, value_len, &policy));
            codec->nonfinite = (int)policy;
            given = &given_common;
        } else {
            return dcommi_codec_unknown_option(ops, text, name);
        }
        if (*given) {
            return dcommi_fail(DCOMM_ERR_INVALID, "codec %s: %.*s is given twice", ops->name,
                               (int)name, text);
        }
        *given = true;
    }
    return DCOMM_OK;
}

/* Fill in codec->ops, values and policy. */
static dcomm_status dcommi_codec_parse(dcomm_codec *codec, const char *spec)
{
    size_t len = strcspn(spec, ":");
    codec->ops = dcommi_codec_find(spec, len);
    if (codec->ops == NULL) {
        char known[200];
        dcommi_print_text to = {known, sizeof known, 0};
        known[0] = '\0';
        for (size_t i = 0; dcommi_codec_table[i] != NULL; i++) {
            dcommi_print_add(&to, "%s%s", i == 0 ? "" : ", ", dcommi_codec_table[i]->name);
        }
        return dcommi_fail(DCOMM_ERR_INVALID, "there is no codec '%.*s'; there are %s",
                           (int)(len < 40 ? len : 40), spec, known);
    }
    for (int i = 0; codec->ops->options[i].kind != DCOMMI_CODEC_END; i++) {
        codec->value[i] = codec->ops->options[i].preset;
    }
    if (spec[len] == ':' && spec[len + 1] == '\0') {
        return dcommi_fail(DCOMM_ERR_INVALID, "codec %s: nothing behind the colon",
                           codec->ops->name);
    }
    return spec[len] == '\0' ? DCOMM_OK : dcommi_codec_read_options(codec, spec + len + 1);
}

/* Write the canonical spec from the values. */
static void dcommi_codec_write_spec(dcomm_codec *codec)
{
    dcommi_print_text to = {codec->spec, sizeof codec->spec, 0};
    dcommi_print_add(&to, "%s%s:", codec->automatic ? "auto:" : "", codec->ops->name);
    for (int i = 0; codec->ops->options[i].kind != DCOMMI_CODEC_END; i++) {
        dcommi_print_add(&to, "%s=", codec->ops->options[i].name);
        dcommi_codec_show(&to, &codec->ops->options[i], codec->value[i]);
        dcommi_print_add(&to, ",");
    }
    dcommi_print_add(&to, "%s=", dcommi_codec_common.name);
    dcommi_codec_show(&to, &dcommi_codec_common, codec->nonfinite);
}

#endif
