"""The Pareto plot: throughput of all against speed of each, one point a simulated engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenspeed.errors import ConfigError, reason_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tokenspeed.simulator.figures import Figures


def front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Return the indices of points that no other beats in both numbers, by the first number."""
    order = sorted(range(len(points)), key=lambda i: points[i], reverse=True)
    best, kept = float("-inf"), []
    for index in order:
        if points[index][1] > best:
            best = points[index][1]
            kept.append(index)
    return kept[::-1]


def check_plotting(flag: str = "--pareto") -> None:
    """Say now, not after an hour of work, that plots cannot be drawn.

    Args:
        flag: what asked for one.
    Raises:
        ConfigError: matplotlib is not installed.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"{flag} draws with matplotlib, which is not installed here; install it (pip install "
            f"matplotlib), or leave {flag} out and use --json"
        ) from error


def draw_pareto(results: Sequence[Figures], path: Path) -> None:
    """Draw one point a result, joined along the front, into a .png, .svg or .pdf file.

    Raises:
        ConfigError: matplotlib is missing, or the file cannot be written.
    """
    check_plotting()
    from matplotlib.figure import Figure

    points = [(item.tps_per_user_p50, item.output_tok_s) for item in results]
    figure = Figure(figsize=(7, 5), layout="constrained")
    axes = figure.add_subplot()
    axes.scatter(*zip(*points, strict=True))
    axes.plot(*zip(*(points[i] for i in front(points)), strict=True))
    for item, point in zip(results, points, strict=True):
        axes.annotate(f"{item.places} at once, {item.pool_tokens:,}", point, fontsize=8)
    axes.set_xlabel("tokens/s of each stream (median)")
    axes.set_ylabel("tokens/s of all streams")
    axes.set_title(f"{results[0].trace}: throughput against speed of a stream")
    axes.grid(visible=True, alpha=0.3)
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"plot {path} cannot be written: {reason_of(error)}; "
            "name a .png, .svg or .pdf file in a folder that exists"
        ) from error
