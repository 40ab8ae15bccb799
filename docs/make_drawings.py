"""Draw the site's diagrams: ``python -m docs.make_drawings`` writes ``docs/drawings/*.svg``.

Each drawing is a card with its own background, so that it can be read on light and on dark
pages. It is narrow, so that its text stays readable on a phone.
"""

from __future__ import annotations

import dataclasses
from html import escape
from pathlib import Path

FOLDER = Path(__file__).parent / "drawings"
_STYLE = """
.card{fill:#fcfcfd;stroke:#d5d9e0}
.box{fill:#e8f1fb;stroke:#4a7fb5}.soft{fill:#f1f3f6;stroke:#aab2bf}.good{fill:#e6f4ea;stroke:#4c9a63}
.line{stroke:#6b7685;fill:none}.head{fill:#6b7685}
text{font-family:system-ui,"DejaVu Sans",sans-serif;font-size:14px;fill:#1d2733}
.bold{font-weight:600}.small{font-size:12px;fill:#47525f}.mid{text-anchor:middle}.end{text-anchor:end}
@media (prefers-color-scheme:dark){.card{fill:#1b2027;stroke:#39424e}
.box{fill:#1f3349;stroke:#6ea3d8}.soft{fill:#262d36;stroke:#5b6675}.good{fill:#1f3a29;stroke:#67b980}
.line{stroke:#9aa5b3}.head{fill:#9aa5b3}text{fill:#e8ecf1}.small{fill:#b6c0cb}}
"""
_WIDTH = 480


@dataclasses.dataclass
class Drawing:
    """An SVG under construction; all lengths are in pixels.

    Attributes:
        height: Height of the card.
        title: What a screen reader says.
    """

    height: int
    title: str
    parts: list[str] = dataclasses.field(default_factory=list)

    def box(
        self, x: float, y: float, width: float, height: float, *lines: str, kind: str = "box"
    ) -> None:
        """Add a box whose first line is a heading; the others are small."""
        self.parts.append(
            f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="7"/>'
        )
        top = y + height / 2 - 9 * (len(lines) - 1) + 5
        for number, line in enumerate(lines):
            style = "bold mid" if number == 0 else "small mid"
            self.text(x + width / 2, top + 18 * number, line, style)

    def text(self, x: float, y: float, words: str, style: str = "small") -> None:
        """Add one line of text at a baseline."""
        self.parts.append(f'<text class="{style}" x="{x:g}" y="{y:g}">{escape(words)}</text>')

    def arrow(self, *points: tuple[float, float]) -> None:
        """Add a line through points that ends in an arrow head, down or to the right."""
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        self.parts.append(f'<polyline class="line" stroke-width="1.5" points="{path}"/>')
        (x0, y0), (x, y) = points[-2:]
        if x0 == x:
            sign = 1 if y > y0 else -1
            head = f"{x - 5:g},{y - 7 * sign:g} {x + 5:g},{y - 7 * sign:g} {x:g},{y:g}"
        else:
            sign = 1 if x > x0 else -1
            head = f"{x - 7 * sign:g},{y - 5:g} {x - 7 * sign:g},{y + 5:g} {x:g},{y:g}"
        self.parts.append(f'<polygon class="head" points="{head}"/>')

    def svg(self) -> str:
        """Return the file's text."""
        size = f'viewBox="0 0 {_WIDTH} {self.height}" width="{_WIDTH}" height="{self.height}"'
        card = f'<rect class="card" x="1" y="1" width="{_WIDTH - 2}" height="{self.height - 2}"'
        body = "\n".join(self.parts)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">\n'
            f"<title>{escape(self.title)}</title>\n<style>{_STYLE}</style>\n"
            f'{card} rx="10"/>\n{body}\n</svg>\n'
        )


def pipeline() -> Drawing:
    """Draw the stages of ``main`` and what each leaves behind."""
    stages = (
        ("convert", "shapes, layout, dtype; checked", "IR, layers.csv", "layout_changes.csv"),
        ("tune", "the top-k of every function, timed", "tuning database", "tasks.csv"),
        ("build", "one library, weights prepacked", "model.so", "golden output"),
        ("evaluate", "accuracy; latency beside peers", "comparison.csv", "accuracy.json"),
    )
    d = Drawing(596, "The stages of tvmopt: convert, tune, build, evaluate, register, promote")
    d.box(20, 18, 260, 40, "model.onnx + eval.npz", kind="soft")
    y = 58
    for name, does, *left in stages:
        d.arrow((150, y), (150, y + 26))
        d.box(20, y + 26, 260, 58, name, does)
        d.arrow((280, y + 55), (316, y + 55))
        for number, line in enumerate(left):
            d.text(324, y + 51 + 18 * number, line)
        y += 84
    d.text(324, 43, "in MLflow:", "bold")
    d.arrow((150, y), (150, y + 26))
    d.box(20, y + 26, 260, 58, "register", "a version with hashes; candidate")
    d.arrow((280, y + 55), (316, y + 55))
    d.text(324, y + 59, "models:/name/1")
    y += 84
    d.arrow((150, y), (150, y + 26))
    d.box(20, y + 26, 260, 58, "promote", "held-out samples keep the bar", kind="good")
    d.arrow((280, y + 55), (316, y + 55))
    d.text(324, y + 59, "name@champion")
    return d


def architecture() -> Drawing:
    """Draw the packages as layers, the lowest at the bottom."""
    d = Drawing(618, "Layers of the code, each of which imports only what is below it")
    d.box(20, 18, 440, 46, "flows/", "entry points: parse and call", kind="soft")
    d.box(20, 90, 440, 58, "tracking/", "MLflow: runs, cache, registry, promotion, serving")
    d.box(20, 160, 212, 58, "search/", "Optuna: space, sampler, verdict")
    d.box(248, 160, 212, 58, "stages/", "configuration in, files out")
    d.text(20, 248, "tracking half: with MLflow and Optuna")
    d.parts.append('<line class="line" stroke-dasharray="5 4" x1="20" x2="460" y1="258" y2="258"/>')
    d.text(20, 278, "compiler half: with neither")
    d.box(20, 292, 212, 58, "quantize/", "QDQ models, sensitivity")
    d.box(248, 292, 212, 58, "evaluate/", "accuracy, latency, memory")
    d.box(20, 362, 212, 58, "tune/  build.py", "records, libraries")
    d.box(248, 362, 212, 58, "measure/  remote/", "build, check, time candidates")
    d.box(20, 432, 212, 58, "frontend/  transform/", "ONNX to Relax, Relax to Relax")
    d.box(248, 432, 212, 58, "runtime/", "load and run; TVM's runtime", kind="good")
    d.box(20, 502, 440, 46, "kernels/", "families: match, rank by predicted cycles, emit")
    d.box(20, 560, 440, 40, "device/  dtypes, CPUs, GPUs and their figures", kind="soft")
    d.arrow((240, 64), (240, 90))
    return d


def tuner() -> Drawing:
    """Draw the way from a fused function to its tuning record."""
    d = Drawing(560, "From a fused function to its tuning record")
    d.box(90, 18, 300, 44, "fused function", "GEMM + bias + relu, for example", kind="soft")
    d.arrow((240, 62), (240, 84))
    d.box(20, 84, 440, 58, "match: which families fit?", "each gives a form, or a reason")
    d.arrow((240, 142), (240, 164))
    d.box(20, 164, 440, 58, "rank: predicted cycles", "up to 1,000 configurations, none built")
    d.arrow((240, 222), (240, 244))
    d.box(20, 244, 212, 76, "first round", "the best of each family,", "built, checked, timed")
    d.box(248, 244, 212, 76, "second round", "favourites of a model that", "learned from the first")
    d.arrow((232, 282), (248, 282))
    d.arrow((354, 320), (354, 342))
    d.box(20, 342, 440, 58, "again, side by side", "the fastest, and the cost model's top-1")
    d.arrow((240, 400), (240, 422))
    d.box(90, 422, 300, 44, "tuning record", "in the database", kind="good")
    d.text(240, 496, "Each candidate is built and run in its own process, and", "small mid")
    d.text(240, 514, "checked against a plain schedule before it is timed.", "small mid")
    d.text(240, 540, "strategy=default stops after rank and takes the top-1.", "small mid")
    return d


def search() -> Drawing:
    """Draw the rungs of a search."""
    d = Drawing(508, "Successive halving over tuning efforts")
    rungs = (
        ("default", "seconds each: every variant", 440),
        ("fast by operator", "the best third", 330),
        ("fast by subgraph", "the best third of these", 240),
        ("metaschedule", "and again", 170),
    )
    d.box(90, 18, 300, 44, "variants", "dtype x skip set x layout", kind="soft")
    y = 62
    for name, who, width in rungs:
        d.arrow((240, y), (240, y + 24))
        d.box(240 - width / 2, y + 24, width, 50, name, who)
        y += 74
    d.arrow((240, y), (240, y + 24))
    d.box(70, y + 24, 340, 50, "last round", "the best and the champion, side by side")
    d.arrow((240, y + 74), (240, y + 98))
    d.box(110, y + 98, 260, 36, "champion", kind="good")
    return d


#: Functions that have the names of their files.
DRAWINGS = (pipeline, architecture, tuner, search)


def main() -> None:
    """Write all drawings."""
    FOLDER.mkdir(exist_ok=True)
    for draw in DRAWINGS:
        (FOLDER / f"{draw.__name__}.svg").write_text(draw().svg())


if __name__ == "__main__":
    main()
