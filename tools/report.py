#!/usr/bin/env python3
"""Tables and a self-contained HTML page from the JSON of trainer runs and of dcomm-perf.

usage: report.py [--perf FILE] [--html FILE] [--note SENTENCE] NAME=TRAINER_JSON..."""
import argparse
import html
import io
import json
import re
import sys

try:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
except ImportError:
    plt = None

NO_PLOTS = "No plots: Python has no matplotlib (Debian: python3-matplotlib)."
SHOWN = ["ring", "tree", "auto"]  # in the short table; the plot shows all
COLORS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5195", "#8c8c8c",
          "#a6761d", "#66a61e"]


def size_text(size):
    for unit, name in ((1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "KB")):
        if size >= unit:
            return f"{size / unit:g} {name}"
    return f"{size} B"


def time_text(us):
    if us is None:
        return "-"
    value, unit = (us, "µs") if us < 1e3 else (us / 1e3, "ms")
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f} {unit}"


# ---- tables: a heading and rows of text ----

def training_table(runs):
    heading = ["configuration", "all-reduce", "final loss", "loss", "wire per rank", "less by",
               "codecs", "in all-reduce", "in all"]
    first = runs[0][1]
    rows = []
    for name, run in runs:
        worse = 100 * (run["final_loss"] / first["final_loss"] - 1)
        less = first["wire_bytes"] / run["wire_bytes"] if run["wire_bytes"] else 1
        rows.append([name, run["algo"], f"{run['final_loss']:.4f}", f"{worse:+.1f} %",
                     f"{run['wire_bytes'] / 1e6:.1f} MB", f"{less:.1f}x",
                     f"{run.get('codec_s', 0):.2f} s", f"{run['comm_s']:.2f} s",
                     f"{run['train_s']:.1f} s"])
    return heading, rows


def unsuited(runs):
    """Names of the runs that ended visibly worse than the first."""
    limit = 1.03 * runs[0][1]["final_loss"]
    return [name for name, run in runs[1:] if run["final_loss"] > limit]


def by_size(results):
    """{bytes: {algorithm: row}}; the selected one is under 'auto'."""
    sizes = {}
    for row in results:
        sizes.setdefault(row["bytes"], {})[row["algo"].split(":")[0]] = row
    return dict(sorted(sizes.items()))


def fastest(rows):
    forced = {name: row for name, row in rows.items() if name != "auto"}
    return min(forced, key=lambda name: forced[name]["time_us_med"], default=None)


def perf_table(sizes):
    heading = ["size"] + SHOWN[:-1] + ["auto", "selected", "fastest", "its time"]
    rows = []
    for size, found in sizes.items():
        best = fastest(found)
        times = [time_text(found[name]["time_us_med"]) if name in found else "-"
                 for name in SHOWN]
        selected = found["auto"]["algo"].partition(":")[2] if "auto" in found else ""
        best_time = time_text(found[best]["time_us_med"]) if best else "-"
        rows.append([size_text(size)] + times + [selected or "-", best or "-", best_time])
    return heading, rows


def winners(sizes):
    """Sentences: which algorithm is fastest from which size to which. One that is within 5 % of the
    best still counts as fastest, so that noise does not cut stretches up."""
    stretches = []
    for size, found in sizes.items():
        best = fastest(found)
        if best is None:
            continue
        last = found.get(stretches[-1][0]) if stretches else None
        if last and last["time_us_med"] <= 1.05 * found[best]["time_us_med"]:
            stretches[-1][2] = size
        else:
            stretches.append([best, size, size])
    return [f"{name}: {size_text(low)}" + (f" to {size_text(high)}" if high != low else "")
            for name, low, high in stretches]


def print_table(heading, rows):
    columns = list(zip(heading, *rows))
    widths = [max(map(len, column)) for column in columns]
    for row in [heading] + rows:
        print("  ".join(cell.ljust(width) if i == 0 else cell.rjust(width)
                        for i, (cell, width) in enumerate(zip(row, widths))).rstrip())


# ---- plots: SVG text ----

def style():
    plt.rcParams.update({
        "font.family": "sans-serif", "font.size": 11, "svg.fonttype": "none",
        "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": "#888",
        "axes.labelcolor": "#333", "xtick.color": "#555", "ytick.color": "#555",
        "axes.grid": True, "grid.color": "#e6e6e6", "grid.linewidth": 0.8, "legend.frameon": False,
    })


def svg(figure, salt):
    plt.rcParams["svg.hashsalt"] = salt  # ids must differ between the figures of a page
    out = io.StringIO()
    figure.tight_layout()
    figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    plt.close(figure)
    text = out.getvalue()
    text = text[text.index("<svg"):]
    return re.sub(r'width="[\d.]+pt" height="[\d.]+pt"|height="[\d.]+pt" width="[\d.]+pt"|'
                  r'width="[\d.]+pt"|height="[\d.]+pt"', "", text, count=2)


def smooth(values, width):
    result = []
    for i in range(len(values)):
        window = values[max(0, i - width):i + width + 1]
        result.append(sum(window) / len(window))
    return result


def loss_plot(runs):
    figure, axes = plt.subplots(figsize=(8, 3.6 if len(runs) < 3 else 5))
    for i, (name, run) in enumerate(runs):
        steps = range(1, len(run["loss"]) + 1)
        color, dashes = COLORS[i % len(COLORS)], "-" if i < len(COLORS) else "--"
        if len(runs) < 3:
            axes.plot(steps, run["loss"], color=color, alpha=0.25, linewidth=1)
        axes.plot(steps, smooth(run["loss"], 4), dashes, color=color, linewidth=1.8, label=name)
        axes.plot([steps[-1]], [run["final_loss"]], "o", color=color, markersize=6,
                  markeredgecolor="white")
    axes.set_xlabel("step")
    axes.set_ylabel("loss (nats per character)")
    axes.set_xlim(left=0)
    if len(runs) > 1:
        axes.legend(fontsize=9)
    return svg(figure, "loss")


def perf_plot(sizes):
    names = sorted({name for found in sizes.values() for name in found} - {"auto"})
    figure, axes = plt.subplots(figsize=(8, 4.6))
    for name, color in zip(names, COLORS):
        points = [(s, f[name]["time_us_med"]) for s, f in sizes.items() if name in f]
        axes.plot(*zip(*points), "o-", color=color, linewidth=1.6, markersize=3.5, label=name)
    points = [(s, f["auto"]["time_us_med"]) for s, f in sizes.items() if "auto" in f]
    if points:
        axes.plot(*zip(*points), color="#111", linewidth=2.2, linestyle=(0, (4, 2)), label="auto")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    shown = list(sizes)
    axes.set_xticks(shown)
    axes.set_xticklabels([size_text(s) for s in shown])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(lambda us, _: f"{us:g} µs" if us < 1e3 else f"{us / 1e3:g} ms")
    axes.set_xlabel("size of the buffer")
    axes.set_ylabel("time")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return svg(figure, "perf")


# ---- the page ----

CSS = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; color: #222;
       background: #f5f6f8; margin: 0; }
main { max-width: 66rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.7rem; margin: 0; }
h2 { font-size: 1.2rem; margin: 0 0 .3rem; }
section { background: #fff; border: 1px solid #e2e4e8; border-radius: 10px;
          padding: 1.3rem 1.5rem; margin: 1.3rem 0; overflow-x: auto; }
.muted { color: #667; font-size: .92rem; margin: .2rem 0 .8rem; }
.tiles { display: flex; gap: 1rem; flex-wrap: wrap; margin: 1.2rem 0 0; }
.tile { flex: 1; min-width: 9rem; background: #fff; border: 1px solid #e2e4e8;
        border-radius: 10px; padding: .8rem 1.1rem; }
.tile b { display: block; font-size: 1.45rem; font-weight: 600; white-space: nowrap; }
.tile span { color: #667; font-size: .88rem; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums;
        font-size: .92rem; margin-top: .8rem; }
th, td { text-align: right; padding: .35rem .5rem; border-bottom: 1px solid #eceef1;
         white-space: nowrap; }
th { color: #667; font-weight: 500; }
th:first-child, td:first-child { text-align: left; }
ul { margin: .6rem 0 0; padding-left: 1.2rem; }
svg { width: 100%; height: auto; display: block; }
"""


def html_table(heading, rows):
    def line(cells, tag):
        return "<tr>" + "".join(f"<{tag}>{html.escape(c)}</{tag}>" for c in cells) + "</tr>"
    return ("<table><thead>" + line(heading, "th") + "</thead><tbody>" +
            "".join(line(row, "td") for row in rows) + "</tbody></table>")


def tile(value, what):
    return f'<div class="tile"><b>{html.escape(value)}</b><span>{html.escape(what)}</span></div>'


def training_section(runs):
    _, first = runs[0]
    text = (f"A character-level transformer of {first['parameters']:,} parameters, "
            f"{first['steps']} steps of {first['batch']} sequences of {first['seq']} characters, "
            f"by {first['nranks']} ranks that sum their gradients with dcomm's all-reduce. The dot "
            "is the loss on text that was held out.")
    bad = unsuited(runs)
    if len(runs) > 1:
        frozen = [run["exact_steps"] for _, run in runs if run.get("optimizer") == "frozen"]
        text += (" All configurations train alike but for what is sent" +
                 (f"; top-k and sign begin with {frozen[0]} steps of exact Adam, which count in "
                  "what is on the wire, and then keep Adam's variance as it is" if frozen else "") +
                 ". " +
                 ("More than 3 % above the first: " + "; ".join(bad) + "." if bad else
                  "None ends more than 3 % above the first."))
    plot = loss_plot(runs) if plt else f"<p>{NO_PLOTS}</p>"
    return (f"<section><h2>Training</h2><p class=muted>{html.escape(text)}</p>{plot}"
            f"{html_table(*training_table(runs))}</section>")


def perf_section(perf, sizes, note):
    nranks = perf["results"][0]["nranks"]
    text = (f"All-reduce of f32 sums by {nranks} ranks; the median over iterations of the slowest "
            "rank's time. “auto” is what the library selects by itself; “fastest” is the best of "
            "all algorithms in this measurement.")
    warning = f"<p><strong>{html.escape(note)}</strong></p>" if note else ""
    plot = perf_plot(sizes) if plt else f"<p>{NO_PLOTS}</p>"
    items = "".join(f"<li>{html.escape(text)}</li>" for text in winners(sizes))
    return (f"<section><h2>All-reduce algorithms</h2><p class=muted>{html.escape(text)}</p>{plot}"
            f"{warning}{html_table(*perf_table(sizes))}</section>"
            f"<section><h2>Fastest on this machine</h2><ul>{items}</ul></section>")


def page(runs, perf, sizes, note):
    hardware = ""
    tiles = []
    if runs:
        run = runs[0][1]
        tiles += [tile(f"{run['final_loss']:.3f}", "final loss, held-out text"),
                  tile(f"{run['wire_bytes'] / 1e6:.0f} MB", "on the wire per rank"),
                  tile(f"{100 * run['comm_s'] / run['train_s']:.0f} %", "of the time in all-reduce")]
    if sizes:
        smallest = next(iter(sizes))
        best = fastest(sizes[smallest])
        hardware = f"{perf['hardware']['cpu']}, {perf['hardware']['cores']} cores"
        if best:
            tiles.append(tile(time_text(sizes[smallest][best]["time_us_med"]),
                              f"all-reduce of {size_text(smallest)}, {best}"))
    body = (f"<h1>dcomm on this machine</h1><p class=muted>{html.escape(hardware)}</p>"
            f'<div class="tiles">{"".join(tiles)}</div>')
    if runs:
        body += training_section(runs)
    if sizes:
        body += perf_section(perf, sizes, note)
    return ('<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>dcomm on this machine</title><style>{CSS}</style></head>"
            f"<body><main>{body}</main></body></html>\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--perf", help="JSON of dcomm-perf allreduce")
    parser.add_argument("--html", help="page to write")
    parser.add_argument("--note", default="", help="what to know about the measurement")
    parser.add_argument("runs", nargs="*", metavar="NAME=JSON", help="JSON of the trainer")
    args = parser.parse_args()
    runs = []
    for argument in args.runs:
        name, equals, path = argument.partition("=")
        if not equals:
            parser.error(f"{argument}: not NAME=JSON")
        with open(path, encoding="utf-8") as file:
            runs.append((name, json.load(file)))
    perf, sizes = None, {}
    if args.perf:
        with open(args.perf, encoding="utf-8") as file:
            perf = json.load(file)
        sizes = by_size(perf["results"])

    if runs:
        print_table(*training_table(runs))
        print()
    if sizes:
        print_table(*perf_table(sizes))
        print("\nfastest here:")
        for sentence in winners(sizes):
            print(f"  {sentence}")
        if args.note:
            print(f"\n{args.note}")
    if args.html:
        if plt:
            style()
        else:
            print(NO_PLOTS, file=sys.stderr)
        with open(args.html, "w", encoding="utf-8") as file:
            file.write(page(runs, perf, sizes, args.note))
        print(f"\nwrote {args.html}")


if __name__ == "__main__":
    main()
