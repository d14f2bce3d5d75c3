/* codec_svg.h - draw the picture of dcomm-codec: error against bits, or error against steps. */
#ifndef CODEC_SVG_H
#define CODEC_SVG_H

#include "codec_out.h"

enum {
    SVG_W = 950,
    SVG_H = 560,
    SVG_LINE = 17,
    SVG_LEFT = 80,
    SVG_TOP = 50,
    SVG_PLOT_W = 560,
    SVG_PLOT_H = 440
};

static const char *const svg_colours[] = {"#2563eb", "#ea580c", "#059669", "#a855f7",
                                          "#dc2626", "#0891b2", "#ca8a04", "#64748b",
                                          "#be185d", "#4d7c0f", "#1e3a8a", "#78350f"};
enum { SVG_COLOURS = sizeof svg_colours / sizeof svg_colours[0] };

/* Limits of the axes, as logarithms to base 10. Both axes are logarithmic. */
typedef struct svg_axes {
    double x0, x1, y0, y1;
} svg_axes;

static double svg_x(const svg_axes *a, double x)
{
    return SVG_LEFT + (log10(x) - a->x0) / fmax(a->x1 - a->x0, 1e-9) * SVG_PLOT_W;
}

static double svg_y(const svg_axes *a, double y)
{
    return SVG_TOP + (a->y1 - log10(y)) / fmax(a->y1 - a->y0, 1e-9) * SVG_PLOT_H;
}

static void svg_include(svg_axes *a, double x, double y)
{
    if (x > 0 && y > 0 && isfinite(y)) {
        a->x0 = fmin(a->x0, log10(x));
        a->x1 = fmax(a->x1, log10(x));
        a->y0 = fmin(a->y0, log10(y));
        a->y1 = fmax(a->y1, log10(y));
    }
}

/* Return the colour of a codec's family. */
static const char *svg_colour(const codec_row *rows, size_t i)
{
    size_t family = 0;
    for (size_t k = 0; k < i; k++) {
        bool seen = rows[k].why[0] != '\0' || strcmp(rows[k].info.name, rows[i].info.name) == 0;
        for (size_t m = 0; m < k && !seen; m++) {
            seen = rows[m].why[0] == '\0' && strcmp(rows[m].info.name, rows[k].info.name) == 0;
        }
        family += !seen;
        if (rows[k].why[0] == '\0' && strcmp(rows[k].info.name, rows[i].info.name) == 0) {
            break;
        }
    }
    return svg_colours[family % SVG_COLOURS];
}

/* Draw the frame. A white background keeps the picture readable on a dark page. The picture
 * shrinks to the width of a phone's screen. */
static void svg_frame(FILE *f, const svg_axes *a, const char *title, const char *under,
                      size_t lines)
{
    const int bottom = SVG_TOP + 20 + SVG_LINE * (int)lines;
    const int height = bottom > SVG_H ? bottom : SVG_H;
    fprintf(f,
            "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 %d %d' width='%d' height='%d' "
            "style='max-width:100%%;height:auto' font-family='Helvetica, Arial, sans-serif' "
            "font-size='12' fill='#111827'>\n"
            "<rect width='100%%' height='100%%' fill='white'/>\n"
            "<text x='%d' y='26' font-size='15' font-weight='bold'>",
            SVG_W, height, SVG_W, height, SVG_LEFT);
    for (const char *c = title; *c != '\0'; c++) {
        fprintf(f, *c == '<' ? "&lt;" : *c == '&' ? "&amp;" : "%c", *c);
    }
    fprintf(f, "</text>\n");
    for (double y = ceil(a->y0); y <= a->y1; y++) {
        double at = svg_y(a, pow(10, y));
        fprintf(f,
                "<line x1='%d' x2='%d' y1='%.1f' y2='%.1f' stroke='#e5e7eb'/><text x='%d' "
                "y='%.1f' text-anchor='end'>%g</text>\n",
                SVG_LEFT, SVG_LEFT + SVG_PLOT_W, at, at, SVG_LEFT - 6, at + 4, pow(10, y));
    }
    bool few = a->x1 - a->x0 < 3;
    for (double x = floor(a->x0); x <= a->x1 + 1; x++) {
        for (int part = 0; part < (few ? 3 : 1); part++) {
            static const double parts[] = {1, 2, 5};
            double value = parts[part] * pow(10, x), at = svg_x(a, value);
            if (log10(value) >= a->x0 - 1e-9 && log10(value) <= a->x1 + 1e-9) {
                fprintf(f,
                        "<line x1='%.1f' x2='%.1f' y1='%d' y2='%d' stroke='#e5e7eb'/><text "
                        "x='%.1f' y='%d' text-anchor='middle'>%g</text>\n",
                        at, at, SVG_TOP, SVG_TOP + SVG_PLOT_H, at, SVG_TOP + SVG_PLOT_H + 18,
                        value);
            }
        }
    }
    fprintf(f,
            "<text x='%d' y='%d' text-anchor='middle' fill='#4b5563'>%s</text>\n"
            "<text x='20' y='%d' fill='#4b5563'>nmse</text>\n",
            SVG_LEFT + SVG_PLOT_W / 2, SVG_TOP + SVG_PLOT_H + 42, under, SVG_TOP - 8);
}

static double svg_error(const codec_row *row)
{
    const codec_step *last = codec_last(row);
    return last != NULL ? last->ledger.nmse : row->encode.nmse;
}

static void svg_legend(FILE *f, const codec_row *row, const char *colour, size_t line)
{
    double y = SVG_TOP + 10 + SVG_LINE * (double)line;
    char label[40];
    snprintf(label, sizeof label, "%.39s", row->spec);
    fprintf(f,
            "<circle cx='%d' cy='%.1f' r='4' fill='%s'/><text x='%d' y='%.1f' "
            "font-size='11'>%zu %s%s</text>\n",
            SVG_LEFT + SVG_PLOT_W + 22, y, colour, SVG_LEFT + SVG_PLOT_W + 32, y + 4, line + 1,
            label, strlen(row->spec) >= sizeof label ? "..." : "");
}

typedef struct svg_box {
    double x, y, w, h; /* centre and size */
} svg_box;

static bool svg_free(const svg_box *taken, size_t n, svg_box b)
{
    for (size_t i = 0; i < n; i++) {
        if (fabs(taken[i].x - b.x) < (taken[i].w + b.w) / 2 &&
            fabs(taken[i].y - b.y) < (taken[i].h + b.h) / 2) {
            return false;
        }
    }
    return b.y > SVG_TOP - 12 && b.y < SVG_TOP + SVG_PLOT_H && b.x > SVG_LEFT &&
           b.x < SVG_LEFT + SVG_PLOT_W + 10;
}

/* Find a free place for a label of w by h near (x, y), in widening circles. */
static svg_box svg_place(const svg_box *taken, size_t n, double x, double y, double w, double h)
{
    enum { DIRECTIONS = 16, CIRCLES = 10 };
    svg_box b = {x + 12, y - 9, w, h};
    for (int k = 0; k < DIRECTIONS * CIRCLES; k++) {
        double angle = -0.7 + 2 * M_PI * (k % DIRECTIONS) / DIRECTIONS;
        double far = 13 + 8 * (k / DIRECTIONS); /* integer division: one radius per circle */
        svg_box tried = {x + far * cos(angle), y + far * sin(angle), w, h};
        if (svg_free(taken, n, tried)) {
            return tried;
        }
    }
    return b;
}

/* Label each point with its number in the legend. A label covers no point and no other label. */
static void svg_numbers(FILE *f, svg_box *taken, size_t points, const size_t *number)
{
    for (size_t i = 0; i < points; i++) {
        const double x = taken[i].x, y = taken[i].y;
        const svg_box b = svg_place(taken, points + i, x, y, number[i] < 10 ? 8 : 15, 11);
        taken[points + i] = b;
        double away = hypot(b.x - x, b.y - y);
        if (away > 14) {
            fprintf(f, "<line x1='%.1f' y1='%.1f' x2='%.1f' y2='%.1f' stroke='#9ca3af'/>\n", x, y,
                    b.x - (b.x - x) * 7 / away, b.y - (b.y - y) * 7 / away);
        }
        fprintf(f,
                "<text class='number' x='%.1f' y='%.1f' font-size='10' text-anchor='middle' "
                "fill='#4b5563'>%zu</text>\n",
                b.x, b.y + 3.5, number[i]);
    }
}

static size_t svg_lines(const codec_row *rows, size_t nrows)
{
    size_t lines = 0;
    for (size_t i = 0; i < nrows; i++) {
        lines += rows[i].why[0] == '\0';
    }
    return lines;
}

static void svg_bits(FILE *f, const codec_row *rows, size_t nrows, const char *title)
{
    svg_box taken[2 * CODEC_SPECS];
    size_t number[CODEC_SPECS], points = 0;
    svg_axes a = {99, -99, 99, -99};
    for (size_t i = 0; i < nrows; i++) {
        if (rows[i].why[0] == '\0') {
            svg_include(&a, rows[i].encode.bits, svg_error(&rows[i]));
        }
    }
    if (a.x0 > a.x1) {
        a = (svg_axes){0, 1, 0, 1}; /* no codec has an error */
    }
    a.x0 -= 0.1;
    a.x1 += 0.1;
    a.y0 = floor(a.y0);
    a.y1 = ceil(a.y1 + 1e-9);
    svg_frame(f, &a, title, "bits on the wire per element", svg_lines(rows, nrows));
    size_t line = 0;
    for (size_t i = 0; i < nrows; i++) {
        if (rows[i].why[0] != '\0') {
            continue;
        }
        const char *colour = svg_colour(rows, i);
        double error = svg_error(&rows[i]);
        if (error > 0 && isfinite(error)) {
            double x = svg_x(&a, rows[i].encode.bits), y = svg_y(&a, error);
            fprintf(f, "<circle cx='%.1f' cy='%.1f' r='4.5' fill='%s'/>\n", x, y, colour);
            taken[points] = (svg_box){x, y, 9, 9};
            number[points++] = line + 1;
        }
        svg_legend(f, &rows[i], colour, line++);
    }
    svg_numbers(f, taken, points, number);
    fprintf(f, "</svg>\n");
}

/* Draw error against steps. Thick lines are for the sum over all steps so far, thin lines for each
 * step. */
static void svg_steps(FILE *f, const codec_row *rows, size_t nrows, const char *title)
{
    svg_axes a = {99, -99, 99, -99};
    for (size_t i = 0; i < nrows; i++) {
        for (size_t k = 0; k < rows[i].nsteps; k++) {
            svg_include(&a, (double)k + 1, rows[i].step[k].nmse_all);
            svg_include(&a, (double)k + 1, rows[i].step[k].ledger.nmse);
        }
    }
    if (a.x0 > a.x1) {
        a = (svg_axes){0, 1, 0, 1};
    }
    a.y0 = floor(a.y0);
    a.y1 = ceil(a.y1 + 1e-9);
    svg_frame(f, &a, title, "step (full line: of the sum over all steps; thin: of each step)",
              svg_lines(rows, nrows));
    size_t line = 0;
    for (size_t i = 0; i < nrows; i++) {
        if (rows[i].why[0] != '\0') {
            continue;
        }
        const char *colour = svg_colours[i % SVG_COLOURS];
        for (int all = 0; all < 2; all++) {
            bool pen = false;
            fprintf(f, "<path fill='none' stroke='%s' stroke-width='%s' stroke-opacity='%s' d='",
                    colour, all ? "2" : "1", all ? "1" : "0.4");
            for (size_t k = 0; k < rows[i].nsteps; k++) {
                const codec_step *s = &rows[i].step[k];
                double nmse = all ? s->nmse_all : s->ledger.nmse;
                if (nmse > 0 && isfinite(nmse)) {
                    fprintf(f, "%s%.1f %.1f", pen ? "L" : "M", svg_x(&a, (double)k + 1),
                            svg_y(&a, nmse));
                    pen = true;
                }
            }
            fprintf(f, "'/>\n");
        }
        svg_legend(f, &rows[i], colour, line++);
    }
    fprintf(f, "</svg>\n");
}

static void codec_svg(FILE *f, const codec_args *a, const codec_row *rows, size_t nrows)
{
    char title[INPUT_TEXT + 128];
    const bool whole = strlen(a->input.text) <= 60;
    snprintf(title, sizeof title, "%.60s%s; %u rank%s%s%s, feedback %s", a->input.text,
             whole ? "" : "...", a->ranks, a->ranks == 1 ? "" : "s", a->ranks == 1 ? "" : ", ",
             a->ranks == 1 ? "" : codec_ways[a->way],
             a->feedback ? codec_variants[a->opts.variant] : "none");
    if (a->steps > 1 && !a->sweep) {
        svg_steps(f, rows, nrows, title);
    } else {
        svg_bits(f, rows, nrows, title);
    }
}

#endif
