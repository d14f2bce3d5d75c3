/* dcomm-codec.c - measure what codecs do to gradients: errors, bits and speed. The input is a file
 * or a distribution. Results are for one encoding and for the sum of many ranks' gradients. It
 * needs no communicator. */
#define _GNU_SOURCE
#define DCOMM_NO_COMM
#define DCOMM_IMPLEMENTATION
#pragma GCC diagnostic ignored "-Wunused-function"
#include "codec_lowrank.h"
#include "codec_sparse.h"
#include "codec_svg.h"

/* Encode one gradient once, without feedback. */
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
        const char *more = strchr(spec, ':') != NULL ? "," : ":"; /* the file has its matrix's
                                                                     shape */
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

/* Return true if numbers in the input or in the result are not finite. */
static bool looks_wrong(const codec_row *row)
{
    const codec_step *last = codec_last(row);
    return row->encode.nonfinite > 0 || !isfinite(row->encode.nmse) ||
           (last != NULL && (last->nonfinite > 0 || !isfinite(last->ledger.nmse) ||
                             last->ledger.count < (uint64_t)row->encode.count));
}

static bool write_files(codec_args *a, const codec_row *all, const codec_row *rows)
{
    if (a->json_out.file != NULL) {
        codec_json(&(perf_json){.file = a->json_out.file, .first = true}, a, all, rows);
    }
    if (a->svg_out.file != NULL) {
        codec_svg(a->svg_out.file, a, all, a->nspecs);
    }
    bool written = tool_close(&a->json_out), drawn = tool_close(&a->svg_out);
    return written && drawn;
}

/* Open the tensor args->input for the first step. Return false after an error message. */
static bool open_tensor(codec_args *args)
{
    char why[INPUT_TEXT];
    if (!input_open(&args->input, args->ranks, 0, why)) {
        tool_say("%s", why);
        return false;
    }
    if (args->input.n == 0) {
        tool_say("%s has no elements", args->input.text);
        return false;
    }
    return true;
}

/* Run every codec on the open tensor; rows has one row per codec. After a failure that ends the
 * tool, return minus the exit status. */
static int run_tensor(codec_args *args, codec_row *rows)
{
    int result = TOOL_GOOD;
    for (size_t i = 0; i < args->nspecs; i++) {
        codec_row *row = &rows[i];
        dcomm_status status = run_codec(args, args->spec[i], row);
        if (status != DCOMM_OK && (!args->sweep || status == DCOMM_ERR_SYSTEM)) {
            tool_say("%s", dcomm_last_error());
            return status == DCOMM_ERR_CORRUPT || status == DCOMM_ERR_INTERNAL ? -TOOL_WRONG
                                                                               : -TOOL_USAGE;
        }
        if (status != DCOMM_OK) {
            snprintf(row->why, sizeof row->why, "%.250s", dcomm_last_error());
        }
        codec_print_row(args, row);
        codec_print_steps(args, row);
        result = row->why[0] == '\0' && looks_wrong(row) ? TOOL_WRONG : result;
    }
    return result;
}

/* Add up the rows of several tensors in `all`, and print the totals. Return false if there is no
 * memory. */
static bool total(codec_args *args, const codec_row *rows, codec_row *all)
{
    double done = 0;
    for (size_t t = 0; t < args->tensors.n; t++) {
        const codec_input *in = &args->tensors.tensor[t];
        for (size_t i = 0; i < args->nspecs; i++) {
            snprintf(all[i].spec, sizeof all[i].spec, "%s", args->spec[i]);
            if (!codec_row_merge(args, &all[i], done, &rows[t * args->nspecs + i], (double)in->n,
                                 in->text)) {
                tool_say("no memory for the totals");
                return false;
            }
        }
        done += (double)in->n;
    }
    args->input.n = (size_t)done;
    printf("# all %zu tensors: %zu elements\n", args->tensors.n, args->input.n);
    for (size_t i = 0; i < args->nspecs; i++) {
        codec_print_row(args, &all[i]);
        codec_print_steps(args, &all[i]);
    }
    return true;
}

/* Run the tensors one after another, with only one of them in memory. `rows` has one row per
 * tensor and codec. */
static int run_all(codec_args *args, codec_row *rows, codec_row *all)
{
    const codec_input whole = args->input;
    const size_t ntensors = args->tensors.n;
    int result = TOOL_GOOD;
    for (size_t t = 0; t < ntensors; t++) {
        args->input = args->tensors.tensor[t];
        if (!open_tensor(args)) {
            input_close(&args->input);
            return TOOL_USAGE;
        }
        args->tensors.tensor[t].n = args->input.n;
        if (t == 0) {
            codec_print_head(args, ntensors > 1 ? whole.text : args->input.text);
        }
        if (ntensors > 1) {
            printf("# %s: %zu element%s\n", args->input.text, args->input.n,
                   args->input.n == 1 ? "" : "s");
        }
        int found = run_tensor(args, rows + t * args->nspecs);
        result = found > result ? found : result;
        input_close(&args->input);
        if (found < 0) {
            return -found;
        }
    }
    args->input = ntensors > 1 ? whole : args->tensors.tensor[0];
    bool good = (ntensors == 1 || total(args, rows, all)) &&
                write_files(args, ntensors == 1 ? rows : all, rows);
    return good ? result : TOOL_USAGE;
}

static void free_rows(codec_row *rows, size_t n)
{
    for (size_t i = 0; rows != NULL && i < n; i++) {
        free(rows[i].step);
    }
    free(rows);
}

int main(int argc, char **argv)
{
    static codec_args args;
    codec_tensors given = {0};
    bool done = false;
    tool_begin(false);
    int result = codec_parse(&args, &given, argc, argv, &done);
    free(given.tensor);
    if (done || result != TOOL_GOOD) {
        free(args.tensors.tensor);
        return tool_end(result);
    }
    const size_t nrows = args.tensors.n * args.nspecs;
    codec_row *rows = calloc(nrows, sizeof *rows), *all = calloc(args.nspecs, sizeof *all);
    if (rows != NULL && all != NULL) {
        bool opened = tool_open(&args.json_out, args.json) && tool_open(&args.svg_out, args.svg);
        result = opened ? run_all(&args, rows, all) : TOOL_USAGE;
    } else {
        tool_say("no memory for %zu tensors", args.tensors.n);
        result = TOOL_USAGE;
    }
    free_rows(rows, nrows);
    free_rows(all, args.nspecs);
    free(args.tensors.tensor);
    return tool_end(result);
}
