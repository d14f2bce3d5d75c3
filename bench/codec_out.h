/* codec_out.h - the output of dcomm-codec: the tables and the JSON, by tensor and in total. */
#ifndef CODEC_OUT_H
#define CODEC_OUT_H

#include "codec_run.h"
#include "codec_time.h"
#include "perf_json.h"

enum { CODEC_SPEC_COLUMNS = 38 }; /* a longer spec gets a line of its own */

/* The results of one codec. */
typedef struct codec_row {
    char spec[DCOMMI_CODEC_SPEC_MAX];
    char why[256]; /* why it could not be run; "": it ran */
    dcomm_codec_info info;
    dcomm_ledger encode; /* errors of one encoding of one gradient, without feedback */
    codec_speed speed;
    codec_step *step; /* [nsteps] */
    size_t nsteps;
} codec_row;

static const codec_step *codec_last(const codec_row *row)
{
    return row->nsteps > 0 ? &row->step[row->nsteps - 1] : NULL;
}

/* Return the average rate of `done` elements at rate `sum` and `more` elements at `rate`. */
static double codec_rate_add(double sum, double done, double rate, double more)
{
    return (done + more) / ((done > 0 ? done / sum : 0) + more / rate);
}

static void codec_speed_merge(codec_speed *s, double done, const codec_speed *other, double more)
{
    s->memcpy_GBps = codec_rate_add(s->memcpy_GBps, done, other->memcpy_GBps, more);
    s->encode_GBps = codec_rate_add(s->encode_GBps, done, other->encode_GBps, more);
    s->decode_GBps = codec_rate_add(s->decode_GBps, done, other->decode_GBps, more);
    s->decode_add_GBps = codec_rate_add(s->decode_add_GBps, done, other->decode_add_GBps, more);
    s->encode_per_memcpy = s->encode_GBps / s->memcpy_GBps;
    s->decode_per_memcpy = s->decode_GBps / s->memcpy_GBps;
    s->decode_add_per_memcpy = s->decode_add_GBps / s->memcpy_GBps;
}

/* Return a bound for two tensors; NaN if the bound of one is unknown. */
static double codec_bound(double a, double b)
{
    return isnan(a) || isnan(b) ? NAN : fmax(a, b);
}

/* Add one tensor's row to the row of all tensors. `done` is the number of elements so far, `more`
 * that of this tensor. Return false if there is no memory. */
static bool codec_row_merge(const codec_args *a, codec_row *all, double done, const codec_row *row,
                            double more, const char *name)
{
    if (row->why[0] != '\0' && all->why[0] == '\0') {
        snprintf(all->why, sizeof all->why, "%.80s: %.160s", name, row->why);
    }
    if (all->why[0] != '\0') {
        return true;
    }
    if (done == 0) {
        all->info = row->info;
        all->step = calloc(row->nsteps + 1, sizeof *all->step);
        all->nsteps = all->step != NULL ? row->nsteps : 0;
    }
    all->info.omega = codec_bound(all->info.omega, row->info.omega);
    all->info.contraction = codec_bound(all->info.contraction, row->info.contraction);
    dcomm_ledger_merge(&all->encode, &row->encode);
    codec_speed_merge(&all->speed, done, &row->speed, more);
    for (size_t k = 0; k < all->nsteps; k++) {
        codec_step_merge(&all->step[k], &row->step[k]);
        codec_step_rate(&all->step[k], a->ranks, all->info.sparse, a->feedback);
    }
    return all->step != NULL;
}

static double codec_step_bits(const codec_step *s)
{
    return s->encoded > 0 ? 8 * (double)s->wire_bytes / (double)s->encoded : NAN;
}

static void codec_print_number(const char *format, double value)
{
    char text[32] = "-";
    if (!isnan(value)) {
        snprintf(text, sizeof text, format, value);
    }
    printf(" %9s", text);
}

/* Return true if a second line, about the sum over ranks and steps, follows a codec's line. */
static bool codec_sums(const codec_args *a)
{
    return a->ranks > 1 || a->steps > 1 || a->feedback;
}

/* Print the head of the table. The columns of one codec fill up to three lines. */
static void codec_print_head(const codec_args *a, const char *text)
{
    char what[64];
    const uint32_t ranks = a->ranks;
    const bool one = a->tensors.n == 1;
    snprintf(what, sizeof what, one ? "%zu elements" : "%zu tensors",
             one ? a->input.n : a->tensors.n);
    printf("# dcomm-codec %s, %s kernels: %s\n", dcomm_version(),
           dcommi_isa_names[dcommi_isa_get()], text);
    printf("# %s, %u rank%s, %s, %" PRIu64 " step%s, feedback %s\n", what, ranks,
           ranks == 1 ? "" : "s", ranks == 1 ? "one encoding" : codec_ways[a->way], a->steps,
           a->steps == 1 ? "" : "s", a->feedback ? codec_variants[a->opts.variant] : "none");
    printf("#%-32s %9s %9s %9s %9s %9s %9s\n", "codec", "bits", "ratio", "nmse", "omega", "cosine",
           "signed");
    if (codec_sums(a)) {
        printf("#%-22s %9s %9s %9s %9s", "  sum", "nmse", "x", "fill", "fill/k");
        if (a->steps > 1) {
            printf(" %9s", "all");
        }
        if (a->feedback) {
            printf(" %9s %9s", "residual", "contract");
        }
        printf("\n");
    }
    if (a->timed) {
        printf("#%-22s %9s %9s %9s %9s %9s %9s\n", "  speed", "enc GB/s", "dec GB/s", "copy GB/s",
               "enc/copy", "dec/copy", "add/copy");
    }
}

static void codec_print_row(const codec_args *a, const codec_row *row)
{
    if (row->why[0] != '\0') {
        char text[sizeof row->spec + sizeof row->why];
        snprintf(text, sizeof text, "%-32s %s", row->spec, row->why);
        printf(" ");
        tool_fold(stdout, 1, 4, text);
        return;
    }
    if (strlen(row->spec) > CODEC_SPEC_COLUMNS) {
        printf(" %s\n %-32s", row->spec, "");
    } else {
        printf(" %-32s", row->spec);
    }
    const dcomm_ledger *e = &row->encode;
    codec_print_number("%.4g", e->bits);
    codec_print_number("%.4g", 32 / e->bits);
    codec_print_number("%.3e", e->nmse);
    codec_print_number("%.3g", row->info.omega);
    codec_print_number("%.6f", e->cosine);
    codec_print_number("%.1e", e->mean_signed_error);
    const codec_step *s = codec_last(row);
    if (codec_sums(a)) {
        printf("\n %-22s", "  sum");
        codec_print_number("%.3e", s->ledger.nmse);
        codec_print_number("%.2f", s->ledger.nmse / e->nmse);
        codec_print_number("%.4f", s->fill_in);
        codec_print_number("%.3f", s->fill_k);
    }
    if (a->steps > 1) {
        codec_print_number("%.3e", s->nmse_all);
    }
    if (a->feedback) {
        codec_print_number("%.4g", s->residual_norm);
        codec_print_number("%.4f", s->contraction);
    }
    if (a->timed) {
        printf("\n %-22s", "  speed");
        codec_print_number("%.2f", row->speed.encode_GBps);
        codec_print_number("%.2f", row->speed.decode_GBps);
        codec_print_number("%.2f", row->speed.memcpy_GBps);
        codec_print_number("%.2f", row->speed.encode_per_memcpy);
        codec_print_number("%.2f", row->speed.decode_per_memcpy);
        codec_print_number("%.2f", row->speed.decode_add_per_memcpy);
    }
    printf("\n");
    if (e->clipped > 0 || e->nonfinite > 0) {
        printf("#   of %" PRIu64 " elements %" PRIu64 " were clipped, %" PRIu64
               " were not finite\n",
               e->encoded, e->clipped, e->nonfinite);
    }
}

/* Print steps 1, 2, 4, ... and the last one, which show how error feedback converges. */
static void codec_print_steps(const codec_args *a, const codec_row *row)
{
    if (row->nsteps < 2 || a->sweep) {
        return;
    }
    printf("#%31s: %9s %9s %9s %9s %9s\n", "step", "nmse", "all", "residual", "contract", "bits");
    for (size_t i = 1; i <= row->nsteps; i++) {
        if ((i & (i - 1)) != 0 && i != row->nsteps) {
            continue;
        }
        const codec_step *s = &row->step[i - 1];
        printf(" %31zu ", i);
        codec_print_number("%.3e", s->ledger.nmse);
        codec_print_number("%.3e", s->nmse_all);
        codec_print_number("%.4g", s->residual_norm);
        codec_print_number("%.4f", s->contraction);
        codec_print_number("%.4g", codec_step_bits(s));
        printf("\n");
    }
}

/* ---- JSON ---- */

static void codec_json_ledger(perf_json *j, const char *key, const dcomm_ledger *l)
{
    perf_json_open(j, key, '{');
    perf_json_number(j, "nmse", l->nmse);
    perf_json_number(j, "cosine", l->cosine);
    perf_json_number(j, "mean_signed_error", l->mean_signed_error);
    perf_json_int(j, "wire_bytes", (int64_t)l->wire_bytes);
    perf_json_number(j, "bits", l->bits);
    perf_json_number(j, "ratio", 32 / l->bits);
    perf_json_int(j, "kept", (int64_t)l->kept);
    perf_json_int(j, "clipped", (int64_t)l->clipped);
    perf_json_int(j, "nonfinite", (int64_t)l->nonfinite);
    perf_json_close(j, '}');
}

static void codec_json_step(perf_json *j, const codec_step *s, uint32_t ranks)
{
    perf_json_open(j, NULL, '{');
    perf_json_int(j, "step", (int64_t)s->step);
    perf_json_number(j, "nmse", s->ledger.nmse);
    perf_json_number(j, "cosine", s->ledger.cosine);
    perf_json_number(j, "mean_signed_error", s->ledger.mean_signed_error);
    perf_json_number(j, "nmse_all", s->nmse_all);
    perf_json_number(j, "fill_in", s->fill_in);
    perf_json_number(j, "fill_in_over_k", s->fill_k);
    perf_json_number(j, "fill_in_share", s->fill_k / ranks);
    perf_json_number(j, "residual_norm", s->residual_norm);
    perf_json_number(j, "contraction", s->contraction);
    perf_json_int(j, "wire_bytes", (int64_t)s->wire_bytes);
    perf_json_number(j, "bits", codec_step_bits(s));
    perf_json_int(j, "kept", (int64_t)s->kept);
    perf_json_int(j, "clipped", (int64_t)s->clipped);
    perf_json_int(j, "nonfinite", (int64_t)s->nonfinite);
    perf_json_close(j, '}');
}

static void codec_json_speed(perf_json *j, const codec_speed *s)
{
    perf_json_number(j, "memcpy_GBps", s->memcpy_GBps);
    perf_json_number(j, "encode_GBps", s->encode_GBps);
    perf_json_number(j, "decode_GBps", s->decode_GBps);
    perf_json_number(j, "decode_add_GBps", s->decode_add_GBps);
    perf_json_number(j, "encode_per_memcpy", s->encode_per_memcpy);
    perf_json_number(j, "decode_per_memcpy", s->decode_per_memcpy);
    perf_json_number(j, "decode_add_per_memcpy", s->decode_add_per_memcpy);
}

/* Write all steps of one codec; for a sweep only the last step. */
static void codec_json_row(perf_json *j, const codec_args *a, const codec_row *row)
{
    perf_json_open(j, NULL, '{');
    perf_json_text(j, "codec", row->spec);
    if (row->why[0] != '\0') {
        perf_json_text(j, "refused", row->why);
        perf_json_close(j, '}');
        return;
    }
    perf_json_text(j, "name", row->info.name);
    perf_json_bool(j, "unbiased", row->info.unbiased);
    perf_json_bool(j, "linear", row->info.linear);
    perf_json_bool(j, "sparse", row->info.sparse);
    perf_json_number(j, "omega", row->info.omega);
    perf_json_number(j, "contraction_bound", row->info.contraction);
    codec_json_ledger(j, "encode", &row->encode);
    perf_json_open(j, "steps", '[');
    for (size_t i = a->sweep && row->nsteps > 0 ? row->nsteps - 1 : 0; i < row->nsteps; i++) {
        codec_json_step(j, &row->step[i], a->ranks);
    }
    perf_json_close(j, ']');
    codec_json_speed(j, &row->speed);
    perf_json_close(j, '}');
}

static void codec_json_rows(perf_json *j, const codec_args *a, const codec_row *rows)
{
    perf_json_open(j, "results", '[');
    for (size_t i = 0; i < a->nspecs; i++) {
        codec_json_row(j, a, &rows[i]);
    }
    perf_json_close(j, ']');
}

/* Write the JSON. `all` has one row per codec. With several tensors, `all` has the totals and
 * `rows` one row per tensor and codec. */
static void codec_json(perf_json *j, const codec_args *a, const codec_row *all,
                       const codec_row *rows)
{
    perf_json_open(j, NULL, '{');
    perf_json_int(j, "schema", 1);
    perf_json_text(j, "tool", "dcomm-codec");
    perf_json_text(j, "version", dcomm_version());
    perf_json_text(j, "isa", dcommi_isa_names[dcommi_isa_get()]);
    perf_json_text(j, "input", a->input.text);
    perf_json_int(j, "count", (int64_t)a->input.n);
    perf_json_int(j, "nranks", a->ranks);
    perf_json_text(j, "aggregate", codec_ways[a->way]);
    perf_json_text(j, "feedback", a->feedback ? codec_variants[a->opts.variant] : "none");
    perf_json_text(j, "residuals", a->opts.bf16 ? "bf16" : "f32");
    codec_json_rows(j, a, all);
    if (a->tensors.n > 1) {
        perf_json_open(j, "tensors", '[');
        for (size_t t = 0; t < a->tensors.n; t++) {
            perf_json_open(j, NULL, '{');
            perf_json_text(j, "input", a->tensors.tensor[t].text);
            perf_json_int(j, "count", (int64_t)a->tensors.tensor[t].n);
            codec_json_rows(j, a, rows + t * a->nspecs);
            perf_json_close(j, '}');
        }
        perf_json_close(j, ']');
    }
    perf_json_close(j, '}');
    fputc('\n', j->file);
}

#endif
