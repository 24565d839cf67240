"""Draws the walk back through a small expression: walk-light.svg and walk-dark.svg beside this file."""

from pathlib import Path

THEMES = {
    "light": {"ink": "#1d3557", "forward": "#1d5c94", "box": "#dbe7f3", "back": "#c1121f", "note": "#5b6773"},
    "dark": {"ink": "#e6edf3", "forward": "#8fb8e0", "box": "#20354d", "back": "#ff7b7b", "note": "#9aa7b4"},
}

# x, the operator or the name, its rule: what flows back into it.
OPERATORS = [(150, "MatMul"), (290, "Add"), (430, "Relu"), (570, "ReduceSum")]
CONSTANTS = [(150, "w", "dw = xᵀ @ dy"), (290, "b", "db = sum of dy over rows")]
BACK = ["dx = dy @ wᵀ", "dy", "dy · (x > 0)", "1, expanded"]
WIDTH, HEIGHT, Y = 680, 210, 92


def draw(theme):
    c = THEMES[theme]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'font-family="system-ui, sans-serif" font-size="13" role="img">',
        "<title>Values forward, cotangents backward</title>",
        "<defs>",
        *(f'<marker id="{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
          f'<path d="M0 0 L8 4 L0 8 z" fill="{c[name]}"/></marker>' for name in ("forward", "back")),
        "</defs>",
    ]

    def arrow(x1, y1, x2, y2, kind):
        parts.append(f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{c[kind]}" stroke-width="1.6" '
                     f'marker-end="url(#{kind})"/>')

    def text(x, y, words, colour, size=13, weight=400):
        parts.append(f'<text x="{x}" y="{y}" text-anchor="middle" fill="{c[colour]}" font-size="{size}" '
                     f'font-weight="{weight}">{words}</text>')

    text(40, Y + 5, "x", "ink", weight=600)
    previous = 52
    for (x, name), back in zip(OPERATORS, BACK, strict=True):
        arrow(previous, Y - 6, x - 46, Y - 6, "forward")
        arrow(x - 46, Y + 8, previous, Y + 8, "back")
        text((previous + x - 46) / 2, Y + 34, back, "back", 11)
        parts.append(f'<rect x="{x - 44}" y="{Y - 18}" width="88" height="36" rx="6" fill="{c["box"]}" '
                     f'stroke="{c["forward"]}"/>')
        text(x, Y + 5, name, "ink")
        previous = x + 46
    arrow(previous, Y, 650, Y, "forward")
    text(662, Y + 5, "L", "ink", weight=600)
    for x, name, back in CONSTANTS:
        text(x, 28, name, "ink", weight=600)
        arrow(x - 6, 36, x - 6, Y - 20, "forward")
        arrow(x + 6, Y - 20, x + 6, 36, "back")
        text(x + 10 + 3.1 * len(back), 56, back, "back", 11)
    text(WIDTH / 2, 160, "forward: each operator computes a value, called y in its rule", "forward")
    text(WIDTH / 2, 182, "backward: its rule turns dy, from the right, into cotangents of its inputs", "back")
    return "\n".join([*parts, "</svg>\n"])


if __name__ == "__main__":
    for theme in THEMES:
        Path(__file__).with_name(f"walk-{theme}.svg").write_text(draw(theme), encoding="utf-8")
