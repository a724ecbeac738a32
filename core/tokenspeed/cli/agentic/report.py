"""The picture and the page of a benchmark: speed of each user against throughput of a device."""

from __future__ import annotations

import html
import io
import json
from typing import TYPE_CHECKING, Any

from tokenspeed.errors import ConfigError
from tokenspeed.simulator.pareto import front

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from matplotlib.figure import Figure

COLUMNS = (
    ("sessions at once", "sessions_at_once", None),
    ("requests", "requests", None),
    ("failed", "failed", None),
    ("TTFT ms p50", "ttft_ms", "p50"),
    ("p99", "ttft_ms", "p99"),
    ("turn ms p50", "turn_ms", "p50"),
    ("p99", "turn_ms", "p99"),
    ("session s p50", "session_s", "p50"),
    ("slowest", "session_s", "max"),
    ("tok/s of a user", "tps_user", "p50"),
    ("tok/s of a device", "tps_device", None),
    ("hit rate", "hit_rate", None),
    ("best possible", "best_hit_rate", None),
    ("USD a session", "usd_per_session", None),
)
"""Head, figure, and which number of a spread."""

Results = dict[str, Any]
"""A label, the workload and `points`: what `bench agentic` writes as results.json."""


def rows_of(results: Results) -> list[list[str]]:
    """Return a line of text a point, under COLUMNS; empty where nothing was measured."""
    return [
        [_text(point.get(name), key) for _, name, key in COLUMNS] for point in results["points"]
    ]


def write_report(folder: Path, runs: Sequence[Results]) -> list[Path]:
    """Write results.json of the first run, and a picture and a page of all.

    Raises:
        ConfigError: matplotlib is missing, or the folder cannot be written.
    """
    figure = _draw(runs)
    page, picture = folder / "pareto.html", folder / "pareto.png"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "results.json").write_text(json.dumps(runs[0], indent=2) + "\n", encoding="utf-8")
        figure.savefig(picture, dpi=150)
        page.write_text(_page(runs, figure), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--out {folder} cannot be written: {error}; name another") from error
    return [folder / "results.json", picture, page]


def _draw(runs: Sequence[Results]) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5.5), layout="constrained")
    axes = figure.add_subplot()
    for run in runs:
        measured = [item for item in run["points"] if item["tps_user"] is not None]
        points = [(item["tps_user"]["p50"], item["tps_device"]) for item in measured]
        if not points:
            continue
        drawn = axes.scatter(*zip(*points, strict=True), label=run["label"])
        best = [points[index] for index in front(points)]
        axes.plot(*zip(*best, strict=True), color=drawn.get_facecolor()[0])
        for item, point in zip(measured, points, strict=True):
            mark = " void" if item["void"] else ""
            axes.annotate(f" {item['sessions_at_once']}{mark}", point, fontsize=8)
    axes.set_xlabel("tokens/s of a user (median of the streams)")
    axes.set_ylabel("output tokens/s of a device")
    axes.set_title(f"{runs[0]['workload']}: the number beside a point is its sessions at once")
    axes.grid(visible=True, alpha=0.3)
    if axes.collections:
        axes.legend()
    return figure


def _page(runs: Sequence[Results], figure: Figure) -> str:
    """Return a page that needs no other file."""
    image = io.StringIO()
    figure.savefig(image, format="svg")
    svg = image.getvalue()
    parts = [
        "<!doctype html><html lang='en'><meta charset='utf-8'><title>bench agentic</title>",
        "<style>body{font:15px sans-serif;margin:2em;max-width:75em}table{border-collapse:collapse}"
        "td,th{padding:.3em .7em;text-align:right;border-bottom:1px solid #ccc}"
        "svg{max-width:100%;height:auto}.void{color:#b00}</style>",
        "<h1>Agents: speed of each against throughput of all</h1>",
        svg[svg.index("<svg") :],
        *(_section(run) for run in runs),
        "</html>",
    ]
    return "\n".join(parts)


def _section(run: Results) -> str:
    heads = "".join(f"<th>{html.escape(head)}</th>" for head, _, _ in COLUMNS)
    rows = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>"
        for row in rows_of(run)
    )
    void = "".join(
        f"<p class='void'>{point['sessions_at_once']} at once is void: {html.escape(reason)}</p>"
        for point in run["points"]
        for reason in point["void"]
    )
    title = f"{run['label']}: {run['workload']}, sizes x {run['scale']:g}"
    return f"<h2>{html.escape(title)}</h2><table><tr>{heads}</tr>{rows}</table>{void}"


def _text(value: Any, key: str | None) -> str:
    if key is not None:
        spread: Mapping[str, float] | None = value
        value = None if spread is None else spread[key]
    if value is None:
        return "-"
    return f"{value:,.4g}" if isinstance(value, float) else f"{value:,}"
