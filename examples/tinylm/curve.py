# SPDX-License-Identifier: Apache-2.0
"""Loss curves as SVG."""

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 720, 360, 56, 40, 20
COLOURS = "#1f6f8b", "#d1495b", "#66a182"


def _smooth(losses, span=20):
    """Means over the last `span` steps."""
    return [sum(losses[max(0, i - span + 1):i + 1]) / min(i + 1, span) for i in range(len(losses))]


def _text(x, y, text, anchor="middle"):
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}">{text}</text>'


def plot(curves):
    """The SVG of curves {name: [loss of each step]}, in nats a byte."""
    steps = max(map(len, curves.values()))
    top = max(max(losses) for losses in curves.values())
    across, down = (WIDTH - LEFT - 20) / steps, (HEIGHT - BOTTOM - TOP) / top

    def at(step, loss):
        return LEFT + step * across, HEIGHT - BOTTOM - loss * down

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
             'font-family="sans-serif" font-size="12">',
             f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>']
    for loss in range(int(top) + 1):
        x, y = at(0, loss)
        parts += [f'<path d="M{x} {y:.1f}H{WIDTH - 20}" stroke="#ddd"/>',
                  _text(x - 8, y + 4, loss, "end")]
    for i in range(5):
        step = steps * i // 4
        parts.append(_text(at(step, 0)[0], HEIGHT - BOTTOM + 16, step))
    parts.append(_text(WIDTH / 2, HEIGHT - 6, "step"))
    parts.append(_text(LEFT, TOP - 6, "nats a byte, mean of 20 steps", "start"))
    for i, (name, losses) in enumerate(curves.items()):
        points = " ".join("%.1f,%.1f" % at(step, loss) for step, loss in
                          list(enumerate(_smooth(losses)))[::max(1, steps // 600)])
        parts += [f'<polyline points="{points}" fill="none" stroke="{COLOURS[i]}" '
                  'stroke-width="2"/>',
                  f'<g fill="{COLOURS[i]}">{_text(WIDTH - 28, TOP + 16 * i + 12, name, "end")}</g>']
    return "\n".join([*parts, "</svg>", ""])
