/* plan-svg.h - draw the events that the plan checker saw. Rows are ranks, arrows are messages, and
 * time is the number of messages that depend on each other. It needs the implementation part of
 * dcomm. */
#ifndef DCOMM_BENCH_PLAN_SVG_H
#define DCOMM_BENCH_PLAN_SVG_H

#include <stdio.h>
#include <stdlib.h>

enum {
    SVG_RECV,
    SVG_FOLD,
    SVG_READ,
    SVG_SIGNAL,
    SVG_EXPOSE,
    SVG_LOCAL_FOLD,
    SVG_COPY,
    SVG_OTHER,
    SVG_CLASSES
};

typedef struct svg_style {
    const char *colour, *dash, *label;
} svg_style;

static const svg_style svg_styles[SVG_CLASSES] = {
    [SVG_RECV] = {"#2563eb", "", "message"},
    [SVG_FOLD] = {"#ea580c", "", "message, folded on arrival"},
    [SVG_READ] = {"#059669", "", "read where it lies"},
    [SVG_SIGNAL] = {"#9ca3af", "3 3", "signal"},
    [SVG_EXPOSE] = {"#a855f7", "5 3", "exposes memory"},
    [SVG_LOCAL_FOLD] = {"#ea580c", "", "fold"},
    [SVG_COPY] = {"#64748b", "", "copy"},
    [SVG_OTHER] = {"#a855f7", "", "other local step"},
};

/* Arrows (or marks) of one class between the same ranks at the same time. */
typedef struct svg_mark {
    int kind, from, to, level; /* from and to are ranks; from -1: a local step of `to` */
    int count;
    int64_t bytes;
} svg_mark;

typedef struct svg_picture {
    svg_mark *mark;
    size_t n;
    int nranks, levels;
    bool used[SVG_CLASSES];
    double left, top, column, row;
} svg_picture;

static int svg_class(const dcommi_check_event *e)
{
    switch (e->kind) {
    case DCOMM_STEP_RECV:
        return SVG_RECV;
    case DCOMM_STEP_RECV_REDUCE:
        return SVG_FOLD;
    case DCOMM_STEP_SIGNAL:
        return SVG_SIGNAL;
    case DCOMM_STEP_EXPOSE:
        return SVG_EXPOSE;
    default:
        return e->peer >= 0                   ? SVG_READ
               : e->kind == DCOMM_STEP_REDUCE ? SVG_LOCAL_FOLD
               : e->kind == DCOMM_STEP_COPY   ? SVG_COPY
                                              : SVG_OTHER;
    }
}

static int svg_compare(const void *a, const void *b)
{
    const svg_mark *x = a, *y = b;
    int d = x->kind - y->kind;
    d = d != 0 ? d : x->level - y->level;
    d = d != 0 ? d : x->to - y->to;
    return d != 0 ? d : x->from - y->from;
}

/* Merge events into marks. Return false if there is no memory. */
static bool svg_collect(svg_picture *p, const dcommi_check_trace *trace, int nranks)
{
    memset(p, 0, sizeof *p);
    p->nranks = nranks;
    p->mark = calloc(trace->n + 1, sizeof *p->mark);
    if (p->mark == NULL) {
        return false;
    }
    for (size_t i = 0; i < trace->n; i++) {
        const dcommi_check_event *e = &trace->event[i];
        int kind = svg_class(e);
        bool outgoing = kind == SVG_SIGNAL || kind == SVG_EXPOSE;
        svg_mark m = {kind,
                      outgoing ? e->rank : e->peer,
                      outgoing ? e->peer : e->rank,
                      e->level + outgoing,
                      1,
                      e->bytes};
        p->levels = m.level > p->levels ? m.level : p->levels;
        p->used[kind] = true;
        p->mark[p->n++] = m;
    }
    qsort(p->mark, p->n, sizeof *p->mark, svg_compare);
    size_t kept = 0;
    for (size_t i = 0; i < p->n; i++) {
        if (kept > 0 && svg_compare(&p->mark[kept - 1], &p->mark[i]) == 0) {
            p->mark[kept - 1].count++;
            p->mark[kept - 1].bytes += p->mark[i].bytes;
        } else {
            p->mark[kept++] = p->mark[i];
        }
    }
    p->n = kept;
    return true;
}

static double svg_x(const svg_picture *p, double level)
{
    return p->left + p->column * level;
}

static double svg_y(const svg_picture *p, int row)
{
    return p->top + p->row * (row + 0.5);
}

static void svg_bytes(char *text, size_t len, int64_t bytes)
{
    static const char *const units[] = {"B", "K", "M", "G", "T"};
    double value = (double)bytes;
    int unit = 0;
    while (value >= 1024 && unit < 4) {
        value /= 1024;
        unit++;
    }
    snprintf(text, len, value < 10 && unit > 0 && value != (int)value ? "%.1f %s" : "%.0f %s",
             value, units[unit]);
}

static void svg_arrow(FILE *f, const svg_picture *p, const svg_mark *m, bool labels)
{
    const svg_style *style = &svg_styles[m->kind];
    double gap = p->column * 0.2 < 14 ? p->column * 0.2 : 14;
    double x0 = svg_x(p, m->level - (m->kind == SVG_READ ? 0.55 : 1)) + gap;
    double x1 = svg_x(p, m->level) - gap, y0 = svg_y(p, m->from), y1 = svg_y(p, m->to);
    double bend = (x1 - x0) * 0.45;
    fprintf(f,
            "<path d=\"M%.1f %.1f C%.1f %.1f %.1f %.1f %.1f %.1f\" fill=\"none\" stroke=\"%s\" "
            "stroke-width=\"%s\" stroke-dasharray=\"%s\" opacity=\"%s\" "
            "marker-end=\"url(#a%d)\"/>\n",
            x0, y0, x0 + bend, y0, x1 - bend, y1, x1, y1, style->colour,
            m->kind == SVG_SIGNAL || m->kind == SVG_EXPOSE ? "1.1" : "1.8", style->dash,
            m->kind == SVG_SIGNAL ? "0.7" : "0.9", m->kind);
    fprintf(f, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"2.4\" fill=\"%s\"/>\n", x0, y0, style->colour);
    bool again = m->kind == SVG_READ && m > p->mark && m[-1].kind == SVG_READ &&
                 m[-1].level == m->level && m[-1].to == m->to; /* one label for a fold */
    if (labels && m->bytes > 0 && m->kind != SVG_EXPOSE && !again) {
        char text[32], times[24] = "";
        svg_bytes(text, sizeof text, m->bytes);
        if (m->count > 1) {
            snprintf(times, sizeof times, "%d&#215; ", m->count);
            svg_bytes(text, sizeof text, m->bytes / m->count);
        }
        fprintf(f,
                "<text x=\"%.1f\" y=\"%.1f\" class=\"b\" fill=\"%s\" "
                "text-anchor=\"end\">%s%s</text>\n",
                x1 - 9, y1 + (m->from < m->to ? -6 : 14), style->colour, times, text);
    }
}

static void svg_local(FILE *f, const svg_picture *p, const svg_mark *m)
{
    int place = m->kind - SVG_LOCAL_FOLD; /* marks side by side, not on top of each other */
    double x = svg_x(p, m->level) - 4 + 7 * (place - 1), y = svg_y(p, m->to) - 4;
    fprintf(f,
            "<rect x=\"%.1f\" y=\"%.1f\" width=\"8\" height=\"8\" rx=\"1.5\" fill=\"%s\" "
            "stroke=\"#fff\" stroke-width=\"1\"/>\n",
            x, y, svg_styles[m->kind].colour);
}

static double svg_legend_width(int kind)
{
    return 52 + 5.6 * (double)strlen(svg_styles[kind].label);
}

static void svg_legend(FILE *f, const svg_picture *p, double y)
{
    double x = p->left;
    for (int i = 0; i < SVG_CLASSES; i++) {
        const svg_style *style = &svg_styles[i];
        if (!p->used[i]) {
            continue;
        }
        if (i < SVG_LOCAL_FOLD) {
            fprintf(f,
                    "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\" "
                    "stroke-width=\"1.8\" stroke-dasharray=\"%s\" marker-end=\"url(#a%d)\"/>\n",
                    x, y - 4, x + 24, y - 4, style->colour, style->dash, i);
        } else {
            fprintf(f,
                    "<rect x=\"%.1f\" y=\"%.1f\" width=\"8\" height=\"8\" rx=\"1.5\" "
                    "fill=\"%s\"/>\n",
                    x + 14, y - 8, style->colour);
        }
        fprintf(f, "<text x=\"%.1f\" y=\"%.1f\" class=\"l\">%s</text>\n", x + 34, y, style->label);
        x += svg_legend_width(i);
    }
}

static void svg_grid(FILE *f, const svg_picture *p, double width, double bottom)
{
    int every = p->column < 22 ? 5 : 1;
    for (int i = 0; i < p->levels; i++) {
        if (i % 2 == 0) {
            fprintf(f,
                    "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" "
                    "fill=\"#f3f4f6\"/>\n",
                    svg_x(p, i), p->top - 4, p->column, bottom - p->top + 8);
        }
        if ((i + 1) % every == 0) {
            fprintf(f, "<text x=\"%.1f\" y=\"%.1f\" class=\"l\" text-anchor=\"middle\">%d</text>\n",
                    svg_x(p, i + 0.5), p->top - 12, i + 1);
        }
    }
    for (int r = 0; r < p->nranks; r++) {
        double y = svg_y(p, r);
        fprintf(f,
                "<text x=\"%.1f\" y=\"%.1f\" class=\"r\" text-anchor=\"end\">rank %d</text>\n"
                "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#d1d5db\"/>\n",
                p->left - 22, y + 4, r, p->left - 12, y, width - 16, y);
    }
}

/* Draw the trace. Return false if there is no memory. */
static bool svg_write(FILE *f, const dcommi_check_trace *trace, int nranks, const char *title)
{
    svg_picture p;
    if (!svg_collect(&p, trace, nranks)) {
        return false;
    }
    int levels = p.levels > 0 ? p.levels : 1;
    p.left = 96;
    p.top = 74;
    p.column = 760.0 / levels;
    p.column = p.column > 150 ? 150 : p.column < 14 ? 14 : p.column;
    p.row = p.nranks <= 12 ? 44 : p.nranks <= 32 ? 26 : 16;
    double width = svg_x(&p, levels) + 48, bottom = p.top + p.row * p.nranks;
    double legend = p.left + 8;
    for (int i = 0; i < SVG_CLASSES; i++) {
        legend += p.used[i] ? svg_legend_width(i) : 0;
    }
    width = width < legend ? legend : width;
    double height = bottom + 48;
    fprintf(f,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" width=\"%.0f\" "
            "height=\"%.0f\" style=\"max-width:100%%;height:auto\" font-family=\"Helvetica, Arial, sans-serif\">\n"
            "<style>.t{font-size:16px;font-weight:bold;fill:#111827}.r{font-size:13px;"
            "fill:#111827}.l{font-size:11px;fill:#4b5563}.b{font-size:9.5px;paint-order:stroke;"
            "stroke:#fff;"
            "stroke-width:3px}</style>\n<defs>\n",
            width, height, width, height);
    for (int i = 0; i < SVG_LOCAL_FOLD; i++) {
        fprintf(f,
                "<marker id=\"a%d\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" "
                "markerWidth=\"7\" markerHeight=\"7\" markerUnits=\"userSpaceOnUse\" "
                "orient=\"auto\"><path d=\"M0 0.5L8 4L0 7.5z\" fill=\"%s\"/></marker>\n",
                i, svg_styles[i].colour);
    }
    fprintf(f,
            "</defs>\n<rect width=\"%.0f\" height=\"%.0f\" rx=\"6\" fill=\"#fff\"/>\n"
            "<text x=\"20\" y=\"28\" class=\"t\">%s</text>\n"
            "<text x=\"20\" y=\"%.1f\" class=\"l\">step</text>\n",
            width, height, title, p.top - 12);
    svg_grid(f, &p, width, bottom);
    for (size_t i = p.n; i-- > 0;) { /* messages are drawn over signals */
        if (p.mark[i].kind < SVG_LOCAL_FOLD) {
            svg_arrow(f, &p, &p.mark[i], p.column >= 60 && p.row >= 26);
        }
    }
    for (size_t i = 0; i < p.n; i++) {
        if (p.mark[i].kind >= SVG_LOCAL_FOLD) {
            svg_local(f, &p, &p.mark[i]);
        }
    }
    svg_legend(f, &p, bottom + 30);
    fprintf(f, "</svg>\n");
    free(p.mark);
    return true;
}

#endif
