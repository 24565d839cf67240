"""Draws what each engine runs: engines-light.svg and engines-dark.svg beside this file."""

from pathlib import Path

THEMES = {
    "light": {"ink": "#1d3557", "graph": "#dbe7f3", "edge": "#1d5c94", "machine": "#f7dede", "red": "#c1121f",
              "loop": "#7a8794"},
    "dark": {"ink": "#e6edf3", "graph": "#20354d", "edge": "#8fb8e0", "machine": "#4a2328", "red": "#ff7b7b",
             "loop": "#9aa7b4"},
}

# Name; boxes that run one after another: text, width, kind; what is called again.
ROWS = [
    ("agent", [("forward", 96, "agent"), ("loss", 62, "graph"), ("backward", 96, "agent"), ("update", 76, "graph")],
     "each batch"),
    ("step", [("forward, loss, gradient, update", 366, "graph")], "each batch"),
    ("epoch", [("Scan over the batches: forward, loss, gradient, update", 366, "graph")], "each epoch"),
    ("native", [("C loop over batches: forward, loss, gradient, update", 366, "machine")], "each epoch"),
    ("in place", [("forward, loss, gradient", 214, "graph"), ("update, overwriting", 140, "graph")],
     "each batch"),
    ("data parallel", [("forward, loss, gradient", 178, "graph"), ("add up", 68, "machine"), ("update", 96, "graph")],
     "each batch"),
    ("CUDA graph", [("recorded step, replayed on the device", 366, "graph")], "each batch"),
]
LEFT, TOP, HEIGHT, GAP, WIDTH = 112, 34, 58, 12, 620


def draw(theme):
    c = THEMES[theme]
    bottom = TOP + HEIGHT * len(ROWS) + 26
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom}" width="{WIDTH}" height="{bottom}" '
        f'font-family="system-ui, sans-serif" font-size="13" role="img">',
        "<title>What each engine runs</title>",
        f'<text x="8" y="20" fill="{c["loop"]}">engine</text>'
        f'<text x="{LEFT}" y="20" fill="{c["loop"]}">what runs</text>'
        f'<text x="{LEFT + 400}" y="20" fill="{c["loop"]}">called for</text>',
    ]
    for i, (name, boxes, repeated) in enumerate(ROWS):
        y, x = TOP + i * HEIGHT, LEFT
        parts.append(f'<text x="8" y="{y + 27}" fill="{c["ink"]}" font-weight="600">{name}</text>')
        for j, (text, width, kind) in enumerate(boxes):
            fill = c["machine"] if kind == "machine" else c["graph"]
            edge = c["red"] if kind == "machine" else c["edge"]
            dash = ' stroke-dasharray="5 3"' if kind == "agent" else ""
            parts.append(f'<rect x="{x}" y="{y + 6}" width="{width}" height="34" rx="6" fill="{fill}" '
                         f'stroke="{edge}"{dash}/>')
            parts.append(f'<text x="{x + width / 2}" y="{y + 27}" text-anchor="middle" fill="{c["ink"]}">{text}</text>')
            if j + 1 < len(boxes):
                parts.append(f'<line x1="{x + width}" y1="{y + 23}" x2="{x + width + GAP}" y2="{y + 23}" '
                             f'stroke="{c["loop"]}" stroke-width="1.5"/>')
            x += width + GAP
        parts.append(f'<text x="{LEFT + 400}" y="{y + 27}" fill="{c["loop"]}">↻ {repeated}</text>')
    y, x = TOP + HEIGHT * len(ROWS) + 4, LEFT
    for text, fill, edge, dash in (("a graph in a session", "graph", "edge", ""),
                                   ("TrainingAgent", "graph", "edge", ' stroke-dasharray="5 3"'),
                                   ("outside of onnxruntime", "machine", "red", "")):
        parts.append(f'<rect x="{x}" y="{y}" width="14" height="12" rx="3" fill="{c[fill]}" stroke="{c[edge]}"{dash}/>'
                     f'<text x="{x + 20}" y="{y + 11}" fill="{c["loop"]}">{text}</text>')
        x += 40 + 7 * len(text)
    return "\n".join([*parts, "</svg>\n"])


if __name__ == "__main__":
    for theme in THEMES:
        Path(__file__).with_name(f"engines-{theme}.svg").write_text(draw(theme), encoding="utf-8")
