/* dcomm-codec.c - what codecs do to gradients: errors, bits and speed, for a file or a
 * distribution, for one encoding and for the sum of many ranks' gradients. It needs no
 * communicator. */
#define _GNU_SOURCE
#define DCOMM_NO_COMM
#define DCOMM_IMPLEMENTATION
#pragma GCC diagnostic ignored "-Wunused-function"
#include "codec_lowrank.h"
#include "codec_sparse.h"
#include "codec_svg.h"

/* One gradient, as it is, encoded once. */
static dcomm_status encode_once(codec_run *run, dcomm_ledger *ledger)
{
    size_t bytes;
    dcomm_codec_report report = {0};
    dcomm_codec_key key = {.seed = run->input->seed};
    input_fill(run->input, 0, 0, 0, run->n, run->x);
    dcomm_status status =
        dcomm_encode_ledger(run->codec, run->x, NULL, NULL, run->n, &key, run->wire, run->capacity,
                            &bytes, run->workspace, &report, ledger);
    return status != DCOMM_OK && report.nonfinite > 0 ? DCOMM_OK : status;
}

static dcomm_status run_steps(codec_run *run, codec_args *a, codec_row *row)
{
    row->step = calloc(a->steps, sizeof *row->step);
    if (row->step == NULL) {
        return dcommi_fail(DCOMM_ERR_NO_MEMORY, "no memory for %" PRIu64 " steps", a->steps);
    }
    for (uint64_t s = 0; s < a->steps; s++) {
        char why[INPUT_TEXT];
        if (!input_open(&a->input, a->ranks, s, why)) {
            return dcommi_fail(DCOMM_ERR_SYSTEM, "%.400s", why);
        }
        DCOMMI_TRY(codec_run_step(run, s));
        row->step[row->nsteps++] = run->now;
    }
    return DCOMM_OK;
}

static dcomm_status run_codec(codec_args *a, const char *spec, codec_row *row)
{
    dcomm_codec *codec = NULL;
    codec_run run;
    *row = (codec_row){.speed = codec_no_speed};
    snprintf(row->spec, sizeof row->spec, "%s", spec);
    if (strncmp(spec, "powersgd", 8) == 0 && strstr(spec, "rows=") == NULL && a->input.rows > 0) {
        const char *more = strchr(spec, ':') != NULL ? "," : ":"; /* the file knows its matrix */
        snprintf(row->spec, sizeof row->spec, "%s%srows=%zu", spec, more, a->input.rows);
    }
    DCOMMI_TRY(dcomm_codec_create(row->spec, &codec));
    dcomm_status status = codec_run_make(&run, a, codec);
    row->info = run.info;
    if (status == DCOMM_OK) {
        status = encode_once(&run, &row->encode);
    }
    if (status == DCOMM_OK) {
        status = run_steps(&run, a, row);
    }
    if (status == DCOMM_OK && a->timed && !codec_measure(codec, &a->input, &row->speed)) {
        status = DCOMM_ERR_NO_MEMORY;
    }
    codec_run_free(&run);
    return status;
}

/* Numbers that are not finite went in, or came out. */
static bool looks_wrong(const codec_row *row)
{
    const codec_step *last = codec_last(row);
    return row->encode.nonfinite > 0 || !isfinite(row->encode.nmse) ||
           (last != NULL && (last->nonfinite > 0 || !isfinite(last->ledger.nmse) ||
                             last->ledger.count < (uint64_t)row->encode.count));
}

static bool write_files(const codec_args *a, const codec_row *rows, size_t nrows)
{
    const char *names[] = {a->json, a->svg};
    for (int k = 0; k < 2; k++) {
        if (names[k] == NULL) {
            continue;
        }
        FILE *file = fopen(names[k], "w");
        if (file != NULL && k == 0) {
            perf_json j = {.file = file, .first = true};
            codec_json(&j, a, rows, nrows);
        } else if (file != NULL) {
            codec_svg(file, a, rows, nrows);
        }
        if (file == NULL || fclose(file) != 0) {
            fprintf(stderr, "dcomm-codec: cannot write %s: %s\n", names[k], strerror(errno));
            return false;
        }
    }
    return true;
}

int main(int argc, char **argv)
{
    static codec_row rows[CODEC_SPECS];
    static codec_args args;
    char why[INPUT_TEXT];
    bool done = false;
    int result = codec_parse(&args, argc, argv, &done);
    if (done || result != CODEC_GOOD) {
        return result;
    }
    if (!input_open(&args.input, args.ranks, 0, why)) {
        fprintf(stderr, "dcomm-codec: %s\n", why);
        return CODEC_USAGE;
    }
    if (args.input.n == 0) {
        fprintf(stderr, "dcomm-codec: %s has no elements\n", args.input.text);
        return CODEC_USAGE;
    }
    codec_print_head(&args, args.ranks);
    for (size_t i = 0; i < args.nspecs && result != CODEC_USAGE; i++) {
        codec_row *row = &rows[i];
        dcomm_status status = run_codec(&args, args.spec[i], row);
        if (status != DCOMM_OK && (!args.sweep || status == DCOMM_ERR_SYSTEM)) {
            fprintf(stderr, "dcomm-codec: %s\n", dcomm_last_error());
            result = status == DCOMM_ERR_CORRUPT || status == DCOMM_ERR_INTERNAL ? CODEC_WRONG
                                                                                 : CODEC_USAGE;
            break;
        }
        if (status != DCOMM_OK) {
            snprintf(row->why, sizeof row->why, "%.250s", dcomm_last_error());
        }
        codec_print_row(&args, row);
        codec_print_steps(&args, row);
        fflush(stdout);
        result = row->why[0] == '\0' && looks_wrong(row) ? CODEC_WRONG : result;
    }
    if (result != CODEC_USAGE && !write_files(&args, rows, args.nspecs)) {
        result = CODEC_USAGE;
    }
    for (size_t i = 0; i < args.nspecs; i++) {
        free(rows[i].step);
    }
    input_close(&args.input);
    return result;
}
