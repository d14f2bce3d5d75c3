/* crossover_out.h - write the table, the JSON and the picture of dcomm-crossover. */
#ifndef CROSSOVER_OUT_H
#define CROSSOVER_OUT_H

#include "crossover_sweep.h"
#include "perf_json.h"

static void cross_print_number(double value, const char *format)
{
    char text[32] = "-";
    if (!isnan(value)) {
        snprintf(text, sizeof text, format, value);
    }
    printf(" %12s", text);
}

/* Format bytes as "17.6 MB", or as a dash for NaN. */
static const char *cross_bytes_text(double bytes, char text[32])
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB"};
    int u = 0;
    double value = bytes;
    while (value >= 1000 && u < 4) {
        value /= 1000;
        u++;
    }
    snprintf(text, 32, isnan(bytes) ? "-" : "%.3g %s", value, units[u]);
    return text;
}

static int cross_cheapest(const cross_sweep *s, int kind, int size)
{
    int best = -1;
    for (int a = 0; a < s->nalgos; a++) {
        double t = *cross_time(s, kind, size, a);
        if (!isnan(t) && (best < 0 || t < *cross_time(s, kind, size, best))) {
            best = a;
        }
    }
    return best;
}

static void cross_print(const cross_sweep *s)
{
    const cross_args *args = s->args;
    printf("# dcomm-crossover %s: %s of %d ranks, %s\n", dcomm_version(), args->op->name, s->nranks,
           args->model ? "the model alone" : "measured and by the model");
    printf("# numbers: %s\n", args->tuning.source);
    printf("#%11s %-20s %12s %12s %12s %12s\n", "bytes", "algo", "measured_us", "predicted_us",
           "pred/meas", "fitted_us");
    for (int i = 0; i < s->nsizes; i++) {
        int best = cross_cheapest(s, CROSS_MEASURED, i);
        best = best < 0 ? cross_cheapest(s, CROSS_PREDICTED, i) : best;
        for (int a = 0; a < s->nalgos; a++) {
            double measured = *cross_time(s, CROSS_MEASURED, i, a);
            double predicted = *cross_time(s, CROSS_PREDICTED, i, a);
            printf("%12zu %-20s", s->bytes[i], s->algo[a]);
            cross_print_number(measured * 1e6, "%.2f");
            cross_print_number(predicted * 1e6, "%.2f");
            cross_print_number(predicted / measured, "%.2f");
            cross_print_number(*cross_time(s, CROSS_FITTED, i, a) * 1e6, "%.2f");
            printf("%s\n", a == best ? "  cheapest" : "");
        }
    }
    printf("# crossovers: up to there the first is cheaper\n");
    printf("#%-20s %-20s %12s %12s %12s\n", "first", "then", "measured", "predicted", "pred/meas");
    for (int a = 0; a < s->nalgos; a++) {
        for (int b = a + 1; b < s->nalgos; b++) {
            char text[2][32];
            cross_point measured = {NAN, a}, predicted = cross_find(s, CROSS_PREDICTED, a, b);
            if (!args->model) {
                measured = cross_find(s, CROSS_MEASURED, a, b);
            }
            if (isnan(measured.bytes) && isnan(predicted.bytes)) {
                continue;
            }
            int first = isnan(measured.bytes) ? predicted.first : measured.first;
            bool same = measured.first == predicted.first;
            printf(" %-20s %-20s %12s %12s", s->algo[first], s->algo[first == a ? b : a],
                   cross_bytes_text(measured.bytes, text[0]),
                   cross_bytes_text(predicted.bytes, text[1]));
            cross_print_number(same ? predicted.bytes / measured.bytes : NAN, "%.2f");
            printf("%s\n", same || isnan(measured.bytes) || isnan(predicted.bytes)
                               ? ""
                               : "  other way round");
        }
    }
    if (!isnan(s->fit[0])) {
        printf("# fit: alpha %.4g us, beta %.4g ns/B (%.4g GB/s), gamma %.4g ns/B; typically "
               "%.0f%% off\n",
               s->fit[0], s->fit[1], 1 / s->fit[1], s->fit[2],
               100 * cross_residual(s, CROSS_FITTED));
        printf("# predicted: typically %.0f%% off\n", 100 * cross_residual(s, CROSS_PREDICTED));
    }
    busy_print(&s->busy);
}

/* Compare the model with the closed forms of textbooks. */
static void cross_print_closed_forms(const cross_sweep *s)
{
    static const char *const names[2] = {"ring", "binomial"};
    double low = 1, high = 1e15;
    for (int k = 0; k < 2; k++) {
        double off = NAN;
        for (int i = 0; i < s->nsizes; i++) {
            for (int a = 0; a < s->nalgos; a++) {
                double closed = cross_closed_form(s, names[k], (double)s->bytes[i]);
                if (strcmp(s->algo[a], names[k]) == 0 && !isnan(closed)) {
                    off = fmax(off, fabs(*cross_time(s, CROSS_PREDICTED, i, a) / closed - 1));
                }
            }
        }
        if (!isnan(off)) {
            printf("# closed form of %s: at most %.2f%% off\n", names[k], 100 * off);
        }
    }
    for (int i = 0; i < 100; i++) {
        double middle = sqrt(low * high);
        bool ring = cross_closed_form(s, names[0], middle) < cross_closed_form(s, names[1], middle);
        *(ring ? &high : &low) = middle;
    }
    char text[32];
    if (!isnan(cross_closed_form(s, names[1], 1)) && low > 2 && high < 1e14) {
        printf(
            "# closed forms: ring 2(N-1)(alpha + d beta/N) below tree 2 log2 N (alpha + d beta)\n"
            "# from %s\n",
            cross_bytes_text(low, text));
    }
}

/* ---- JSON ---- */

static void cross_json_point(perf_json *j, const cross_sweep *s, const char *key, cross_point p)
{
    if (isnan(p.bytes)) {
        perf_json_null(j, key);
        return;
    }
    perf_json_open(j, key, '{');
    perf_json_text(j, "cheaper_below", s->algo[p.first]);
    perf_json_number(j, "bytes", p.bytes);
    perf_json_close(j, '}');
}

static void cross_json(perf_json *j, const cross_sweep *s)
{
    perf_json_open(j, NULL, '{');
    perf_json_int(j, "schema", 1);
    perf_json_text(j, "tool", "dcomm-crossover");
    perf_json_text(j, "version", dcomm_version());
    perf_json_text(j, "op", s->args->op->name);
    perf_json_int(j, "nranks", s->nranks);
    perf_json_bool(j, "model_alone", s->args->model);
    perf_json_text(j, "numbers", s->args->tuning.source);
    if (!s->args->model) {
        char text[BUSY_TEXT];
        perf_json_bool(j, "busy", busy_was(&s->busy, text));
    }
    perf_json_open(j, "fit", '{');
    perf_json_number(j, "alpha_us", s->fit[0]);
    perf_json_number(j, "beta_ns_per_B", s->fit[1]);
    perf_json_number(j, "gamma_ns_per_B", s->fit[2]);
    perf_json_number(j, "residual_relative", cross_residual(s, CROSS_FITTED));
    perf_json_number(j, "predicted_residual_relative", cross_residual(s, CROSS_PREDICTED));
    perf_json_close(j, '}');
    perf_json_open(j, "results", '[');
    for (int i = 0; i < s->nsizes; i++) {
        for (int a = 0; a < s->nalgos; a++) {
            perf_json_open(j, NULL, '{');
            perf_json_text(j, "algo", s->algo[a]);
            perf_json_int(j, "bytes", (int64_t)s->bytes[i]);
            for (int k = 0; k < CROSS_KINDS; k++) {
                char key[32];
                snprintf(key, sizeof key, "time_us_%s", cross_kinds[k]);
                perf_json_number(j, key, *cross_time(s, k, i, a) * 1e6);
            }
            perf_json_close(j, '}');
        }
    }
    perf_json_close(j, ']');
    perf_json_open(j, "crossovers", '[');
    for (int a = 0; a < s->nalgos; a++) {
        for (int b = a + 1; b < s->nalgos; b++) {
            cross_point none = {NAN, a};
            perf_json_open(j, NULL, '{');
            perf_json_text(j, "a", s->algo[a]);
            perf_json_text(j, "b", s->algo[b]);
            cross_json_point(j, s, "measured",
                             s->args->model ? none : cross_find(s, CROSS_MEASURED, a, b));
            cross_json_point(j, s, "predicted", cross_find(s, CROSS_PREDICTED, a, b));
            perf_json_close(j, '}');
        }
    }
    perf_json_close(j, ']');
    perf_json_close(j, '}');
    fputc('\n', j->file);
}

/* ---- the picture ---- */

enum { CROSS_W = 860, CROSS_H = 520, CROSS_LEFT = 84, CROSS_TOP = 40, CROSS_PLOT = 560 };

static const char *const cross_colours[] = {"#2563eb", "#ea580c", "#059669", "#a855f7",
                                            "#dc2626", "#0891b2", "#ca8a04", "#64748b",
                                            "#be185d", "#4d7c0f", "#1e3a8a", "#78350f"};
enum { CROSS_COLOURS = sizeof cross_colours / sizeof cross_colours[0] };

typedef struct cross_axes {
    double x0, x1, y0, y1; /* logarithms to base 10 */
} cross_axes;

static double cross_x(const cross_axes *x, double bytes)
{
    return CROSS_LEFT + (log10(bytes) - x->x0) / fmax(x->x1 - x->x0, 1e-9) * CROSS_PLOT;
}

static double cross_y(const cross_axes *x, double us)
{
    double part = (log10(us) - x->y0) / fmax(x->y1 - x->y0, 1e-9);
    return CROSS_TOP + (1 - part) * (CROSS_H - CROSS_TOP - 50);
}

static void cross_svg_line(FILE *f, const cross_sweep *s, const cross_axes *x, int kind, int a)
{
    bool dots = kind == CROSS_MEASURED, any = false;
    fprintf(f, "<path fill='none' stroke='%s' stroke-width='%s'%s d='",
            cross_colours[a % CROSS_COLOURS], dots ? "2" : "1.3",
            kind == CROSS_PREDICTED && !s->args->model ? " stroke-dasharray='6 3'" : "");
    for (int i = 0; i < s->nsizes; i++) {
        double t = *cross_time(s, kind, i, a);
        if (!isnan(t)) {
            fprintf(f, "%s%.1f %.1f", any ? "L" : "M", cross_x(x, (double)s->bytes[i]),
                    cross_y(x, t * 1e6));
            any = true;
        }
    }
    fprintf(f, "'/>\n");
    for (int i = 0; i < s->nsizes && dots; i++) {
        double t = *cross_time(s, kind, i, a);
        if (!isnan(t)) {
            fprintf(f, "<circle cx='%.1f' cy='%.1f' r='2.5' fill='%s'/>\n",
                    cross_x(x, (double)s->bytes[i]), cross_y(x, t * 1e6),
                    cross_colours[a % CROSS_COLOURS]);
        }
    }
}

static void cross_svg(FILE *f, const cross_sweep *s)
{
    cross_axes x = {log10((double)s->bytes[0]), log10((double)s->bytes[s->nsizes - 1]), 99, -99};
    for (int k = 0; k < CROSS_FITTED; k++) {
        for (int i = 0; i < s->nsizes * s->nalgos; i++) {
            if (s->time[k][i] > 0) {
                x.y0 = fmin(x.y0, log10(s->time[k][i] * 1e6));
                x.y1 = fmax(x.y1, log10(s->time[k][i] * 1e6));
            }
        }
    }
    x.y0 = floor(x.y0);
    x.y1 = ceil(x.y1);
    fprintf(f,
            "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 %d %d' width='%d' height='%d' "
            "style='max-width:100%%;height:auto' font-family='sans-serif' font-size='12'>\n<rect "
            "width='100%%' height='100%%' "
            "fill='white'/>\n<text x='%d' y='22' font-size='15'>%s of %d ranks: %s</text>\n",
            CROSS_W, CROSS_H, CROSS_W, CROSS_H, CROSS_LEFT, s->args->op->name, s->nranks,
            s->args->model ? "the model" : "measured (dots), by the model (dashed)");
    for (double y = x.y0; y <= x.y1; y++) {
        double at = cross_y(&x, pow(10, y));
        fprintf(f,
                "<line x1='%d' x2='%d' y1='%.1f' y2='%.1f' stroke='#e5e7eb'/><text x='%d' y='%.1f' "
                "text-anchor='end'>%g us</text>\n",
                CROSS_LEFT, CROSS_LEFT + CROSS_PLOT, at, at, CROSS_LEFT - 6, at + 4, pow(10, y));
    }
    for (double b = ceil(x.x0); b <= x.x1; b++) {
        char text[32];
        double at = cross_x(&x, pow(10, b));
        fprintf(f,
                "<line x1='%.1f' x2='%.1f' y1='%d' y2='%d' stroke='#e5e7eb'/><text x='%.1f' y='%d' "
                "text-anchor='middle'>%s</text>\n",
                at, at, CROSS_TOP, CROSS_H - 50, at, CROSS_H - 30,
                cross_bytes_text(pow(10, b), text));
    }
    for (int a = 0; a < s->nalgos; a++) {
        cross_svg_line(f, s, &x, CROSS_PREDICTED, a);
        cross_svg_line(f, s, &x, CROSS_MEASURED, a);
        fprintf(f, "<text x='%d' y='%d' fill='%s'>%s</text>\n", CROSS_LEFT + CROSS_PLOT + 20,
                CROSS_TOP + 20 + 20 * a, cross_colours[a % CROSS_COLOURS], s->algo[a]);
    }
    fprintf(f, "</svg>\n");
}

#endif
