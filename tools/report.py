#!/usr/bin/env python3
"""Tables and a self-contained HTML page from the JSON of trainer runs and of dcomm-perf.

usage: report.py [--perf FILE] [--html FILE] [--note SENTENCE] NAME=TRAINER_JSON..."""
import argparse
import html
import io
import json
import os
import re
import sys
import textwrap

plt = None  # of matplotlib, where a page is made and Python has it
NO_PLOTS = "No plots: Python has no matplotlib (Debian: python3-matplotlib)."
SHOWN = ["ring", "tree", "auto"]  # in the short table; the plot shows all
TRAINING = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "docs", "codecs.md")
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
    """The runs that ended visibly worse than the first."""
    limit = 1.03 * runs[0][1]["final_loss"]
    return [(name, run) for name, run in runs[1:] if run["final_loss"] > limit]


ADAM = ("Adam divides by the root of what arrives, and what {} arrives late and in lumps, which it makes "
        "smaller. Any implementation of the pair ends there; with an optimizer whose update is linear in the "
        "gradients it is not so.")
FEW = "{} steps are few for a codec that sends so little: what it holds back at the end never arrives."
LOST = "without error feedback, what the codec leaves out is lost for good."
NOISE = "so few bits are more noise than signal; more bits cost little."
LEFT = {"powersgd": "a low rank leaves out", "sign": "one bit leaves out", "randk": "was not drawn"}
LEFT.update(dict.fromkeys(["topk", "topk+qsgd", "threshold"], "is not among the largest"))


def reason(run):
    """Why a run with this codec, feedback and optimizer ends above exact; '' without a codec."""
    name = run.get("codec", "none").removeprefix("auto:").split(":")[0]
    if name == "none":
        return ""
    if name not in LEFT:
        return NOISE
    if run.get("feedback", "none") == "none":
        return LOST
    return FEW.format(run["steps"]) if run.get("optimizer") == "frozen" else ADAM.format(LEFT[name])


def reasons(runs):
    """Sentences on the runs that ended visibly worse than the first, one for each reason."""
    found = {}
    for name, run in unsuited(runs):
        worse = 100 * (run["final_loss"] / runs[0][1]["final_loss"] - 1)
        found.setdefault(reason(run), []).append(f"{name} ({worse:+.0f} %)")
    return [f"{'; '.join(names)}: {why}" for why, names in found.items() if why]


def unsteady(perf):
    """A sentence where the times of one size vary too much to be those of a free machine, else ''."""
    rows = [row for row in perf["results"] if row.get("time_us_min") and row.get("time_us_med")]
    wide = sum(row["time_us_med"] > 2 * row["time_us_min"] for row in rows)
    if 4 * wide <= len(rows):
        return ""
    ranks, cores = rows[0]["nranks"], perf["hardware"]["cores"]
    why = (f"{ranks} ranks shared {cores} cores" if ranks > cores else
           "This machine was busy while it was measured")
    return (f"{why}: in {wide} of {len(rows)} rows the median is more than twice the minimum. A free core "
            "for each rank gives shorter times.")


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

def load_plots():
    global plt
    try:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot
    except ImportError:
        print(NO_PLOTS, file=sys.stderr)
        return
    plt = matplotlib.pyplot
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
    figure.savefig(out, format="svg", facecolor="white", metadata={"Date": None})
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
:root { color-scheme: light dark; --text: #222; --muted: #667; --page: #f5f6f8; --card: #fff;
        --line: #e2e4e8; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e4e6ea; --muted: #a3abb8; --page: #14161a; --card: #1d2026; --line: #363b45; }
}
body { font: 16px/1.5 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; color: var(--text);
       background: var(--page); margin: 0; }
a { color: inherit; }
main { max-width: 66rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.7rem; margin: 0; }
h2 { font-size: 1.2rem; margin: 0 0 .3rem; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 10px;
          padding: 1.3rem 1.5rem; margin: 1.3rem 0; }
.scroll { overflow-x: auto; }
.scroll svg { min-width: 30rem; border-radius: 6px; }
.muted { color: var(--muted); font-size: .92rem; margin: .2rem 0 .8rem; }
.tiles { display: flex; gap: 1rem; flex-wrap: wrap; margin: 1.2rem 0 0; }
.tile { flex: 1; min-width: 9rem; background: var(--card); border: 1px solid var(--line);
        border-radius: 10px; padding: .8rem 1.1rem; }
.tile b { display: block; font-size: 1.45rem; font-weight: 600; white-space: nowrap; }
.tile span { color: var(--muted); font-size: .88rem; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums;
        font-size: .92rem; margin-top: .8rem; }
th, td { text-align: right; padding: .35rem .5rem; border-bottom: 1px solid var(--line);
         white-space: nowrap; }
th { color: var(--muted); font-weight: 500; }
th:first-child, td:first-child { text-align: left; }
ul { margin: .6rem 0 0; padding-left: 1.2rem; }
svg { width: 100%; height: auto; display: block; }
@media (max-width: 40rem) { section { padding: 1rem .8rem; } main { padding: 0 .5rem; } }
"""


def html_table(heading, rows):
    def line(cells, tag):
        return "<tr>" + "".join(f"<{tag}>{html.escape(c)}</{tag}>" for c in cells) + "</tr>"
    return ("<div class=scroll><table><thead>" + line(heading, "th") + "</thead><tbody>" +
            "".join(line(row, "td") for row in rows) + "</tbody></table></div>")


def html_plot(draw, *data):
    return f"<div class=scroll>{draw(*data)}</div>" if plt else f"<p>{NO_PLOTS}</p>"


def tile(value, what):
    return f'<div class="tile"><b>{html.escape(value)}</b><span>{html.escape(what)}</span></div>'


def training_section(runs, training):
    _, first = runs[0]
    text = (f"A character-level transformer of {first['parameters']:,} parameters, "
            f"{first['steps']} steps of {first['batch']} sequences of {first['seq']} characters, "
            f"by {first['nranks']} ranks that sum their gradients with dcomm's all-reduce. The dot "
            "is the loss on text that was held out.")
    bad = [name for name, _ in unsuited(runs)]
    if len(runs) > 1:
        frozen = [run["exact_steps"] for _, run in runs if run.get("optimizer") == "frozen"]
        text += (" All configurations train alike but for what is sent" +
                 (f"; top-k and sign begin with {frozen[0]} steps of exact Adam, which count in "
                  "what is on the wire, and then keep Adam's variance as it is" if frozen else "") +
                 ". " +
                 ("More than 3 % above the first: " + "; ".join(bad) + "." if bad else
                  "None ends more than 3 % above the first."))
    why = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in reasons(runs))
    if why:
        why = (f"<p>Why some end above {html.escape(runs[0][0])} (more, and the remedies: "
               f'<a href="{html.escape(training)}#training">docs/codecs.md</a>):</p><ul>{why}</ul>')
    return (f"<section><h2>Training</h2><p class=muted>{html.escape(text)}</p>{html_plot(loss_plot, runs)}"
            f"{html_table(*training_table(runs))}{why}</section>")


def perf_section(perf, sizes, note):
    nranks = perf["results"][0]["nranks"]
    text = (f"All-reduce of f32 sums by {nranks} ranks; the median over iterations of the slowest "
            "rank's time. “auto” is what the library selects by itself; “fastest” is the best of "
            "all algorithms in this measurement.")
    warning = f"<p><strong>{html.escape(note)}</strong></p>" if note else ""
    plot = html_plot(perf_plot, sizes)
    items = "".join(f"<li>{html.escape(text)}</li>" for text in winners(sizes))
    return (f"<section><h2>All-reduce algorithms</h2><p class=muted>{html.escape(text)}</p>{plot}"
            f"{warning}{html_table(*perf_table(sizes))}</section>"
            f"<section><h2>Fastest on this machine</h2><ul>{items}</ul></section>")


def page(runs, perf, sizes, note, training):
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
        body += training_section(runs, training)
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
    perf, sizes, note = None, {}, args.note
    if args.perf:
        with open(args.perf, encoding="utf-8") as file:
            perf = json.load(file)
        sizes = by_size(perf["results"])
        note = note or unsteady(perf)

    if runs:
        print_table(*training_table(runs))
        why = reasons(runs)
        for sentence in why + ["docs/codecs.md#training has more."] * (len(why) > 0):
            print(textwrap.fill(sentence, 98, initial_indent="  ", subsequent_indent="    "))
        print()
    if sizes:
        print_table(*perf_table(sizes))
        print("\nfastest here:")
        for sentence in winners(sizes):
            print(f"  {sentence}")
        if note:
            print("\n" + textwrap.fill(note, 98))
    if args.html:
        load_plots()
        with open(args.html, "w", encoding="utf-8") as file:
            training = os.path.relpath(TRAINING, os.path.dirname(os.path.abspath(args.html)))
            file.write(page(runs, perf, sizes, note, training))
        print(f"\nwrote {args.html}")


if __name__ == "__main__":
    main()
