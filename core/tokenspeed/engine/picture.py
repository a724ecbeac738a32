"""Parts of the picture of the engine's inside: columns to rows, blocks, transfers, step model.

Requests travel as columns, a list per field, and become a mapping each where they are shown: the
engine makes no Python object per request and field. Knows plain data only.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

RUNNING_STATES = frozenset({"Prefilling", "Decoding", "Loading", "Draining", "Retracting"})
"""States that are not in the queue."""


def spelled_out(picture: Mapping[str, Any]) -> dict[str, Any]:
    """Return a picture with a mapping per request.

    It takes longer than all the rest, so it is done by whoever asked and not by the engine.
    """
    rows = {name: _rows(picture[name]) for name in ("requests", "queue")}
    return {**picture, **rows}


def _rows(columns: Mapping[str, Any]) -> list[dict[str, Any]]:
    groups = columns["blocks"]
    blocks = [
        dict(zip(groups, counts, strict=True)) for counts in zip(*groups.values(), strict=True)
    ]
    ages_s = [None if age_s is None else round(age_s, 3) for age_s in columns["age_s"]]
    rows = zip(*{**columns, "blocks": blocks, "age_s": ages_s}.values(), strict=True)
    return [dict(zip(columns, row, strict=True)) for row in rows]


def picked(columns: Mapping[str, Any], rows: list[int]) -> dict[str, Any]:
    """Return the columns with these entries only."""
    return {
        name: picked(column, rows)
        if isinstance(column, dict)
        else list(map(column.__getitem__, rows))
        for name, column in columns.items()
    }


def running_rows(columns: Mapping[str, Any]) -> list[int]:
    return [i for i, state in enumerate(columns["state"]) if state in RUNNING_STATES]


def waiting_rows(columns: Mapping[str, Any]) -> list[int]:
    """Return who waits: in the queue's order, then those who wait for another's block."""
    waiting = [i for i, state in enumerate(columns["state"]) if state not in RUNNING_STATES]
    positions = columns["position"]
    return sorted(waiting, key=lambda i: (positions[i] is None, positions[i] or 0, i))


def blocks_of(counters: Mapping[str, int], groups: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return physical blocks, and blocks by group and by who holds them."""
    return {
        "total": counters["blocks_total"],
        "used": counters["blocks_used"],
        "cached": counters["blocks_cached"],
        "free": counters["blocks_free"],
        "groups": [_group(group) for group in groups],
    }


def _group(group: Mapping[str, Any]) -> dict[str, Any]:
    indexed = "snapshots" if group["kind"] == "state" else "matchable"
    return {
        "name": group["name"],
        "kind": group["kind"],
        "packing": group["packing"],
        "used": group["physical_used"],
        "cached": group["physical_cached"],
        "logical": {
            "held": group["held"],
            "cached": group["resting"],
            indexed: group["indexed"],
            **{name: group[name] for name in ("retained", "vacant", "leaving", "loading", "host")},
        },
    }


def transfers_of(kinds: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the moves between the tiers that are under way, by kind."""
    now_us = time.monotonic_ns() // 1000
    return [
        {
            "kind": kind["kind"],
            "count": kind["count"],
            "oldest_s": round((now_us - kind["oldest_us"]) / 1e6, 3) if kind["count"] else None,
        }
        for kind in kinds
    ]


def step_model_of(model: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if model is None:
        return None
    return {
        name: float(f"{value:.4g}") if isinstance(value, float) else value
        for name, value in model.items()
    }
