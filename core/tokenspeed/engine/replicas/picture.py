"""One picture of several replicas: what can be added is added, the rest is the worst of them.

The document is that of one engine, so that whoever reads it reads both: counts are sums, medians
and percentiles the largest, lists joined with the replica's number in each entry. `replicas` has
the figures of each. Knows plain data only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

JOINED = ("requests", "queue", "alerts")
NAMED = {"sessions": "session", "roots": "root", "tenants": "tenant"}
"""Lists of sums, and what names an entry."""
WORST = frozenset({"window_s", "ttft_ms_p50", "ttft_ms_p99", "step_us_p50", "overhead_us_p50"})
OF_ONE = ("counters", "rates", "steps", "blocks", "limits", "uptime_s", "epoch", "last_plan")
"""What is told of each replica, too."""

Picture = dict[str, Any]


def merged(pictures: Mapping[int, Picture | str]) -> Picture:
    """Return one picture; a text instead of one says why there is none.

    Args:
        pictures: by the replica's number; one or more are there.
    """
    known = {number: item for number, item in pictures.items() if isinstance(item, dict)}
    each = list(known.values())
    whole = {name: _added([one[name] for one in each]) for name in each[0]}
    whole |= {
        "time": max(one["time"] for one in each),
        "epoch": max(one["epoch"] for one in each),
        "uptime_s": max(one["uptime_s"] for one in each),
        "limits": {**each[0]["limits"], "max_running": whole["limits"]["max_running"]},
        "last_plan": _newest_plan(each),
        "step_model": each[0]["step_model"],
        "speculation": _speculation(each),
        **{name: _by_name(key, [one[name] for one in each]) for name, key in NAMED.items()},
        **{name: _joined(known, name) for name in JOINED},
        "replicas": [_shown(number, item) for number, item in pictures.items()],
    }
    return whole


def _added(values: Sequence[Any], name: str = "") -> Any:
    """Return the sum of like values: of numbers, of mappings by key, of lists by place."""
    present = [value for value in values if value is not None]
    if not present:
        return None
    first = present[0]
    if isinstance(first, dict):
        names = dict.fromkeys(key for value in present for key in value)
        return {key: _added([value.get(key) for value in present], key) for key in names}
    if isinstance(first, list):
        longest = max(map(len, present))
        places = range(longest)
        return [_added([value[i] for value in present if i < len(value)]) for i in places]
    if isinstance(first, str | bool):
        return first
    combine: Callable[[Sequence[Any]], Any] = max if name in WORST or "oldest" in name else sum
    return round(combine(present), 4) if isinstance(first, float) else combine(present)


def _newest_plan(each: Sequence[Picture]) -> Any:
    plans = [one["last_plan"] for one in each if one["last_plan"] is not None]
    return min(plans, key=lambda plan: plan["age_s"], default=None)


def _speculation(each: Sequence[Picture]) -> Any:
    """Add the counts up; a drafter that was switched off somewhere is told of."""
    drafts = [one["speculation"] for one in each if one["speculation"] is not None]
    if not drafts:
        return None
    states = {one["state"] for one in drafts}
    state = "detached" if "detached" in states else drafts[0]["state"]
    return {**_added(drafts), "state": state}


def _by_name(key: str, lists: Sequence[Sequence[Picture]]) -> list[Picture]:
    """Add up the entries of one name; that of all others stays last."""
    found: dict[Any, list[Picture]] = {}
    for entry in (entry for one in lists for entry in one):
        found.setdefault(entry[key], []).append(entry)
    named = [_added(entries) for name, entries in found.items() if name is not None]
    others = [{**_added(found[None]), key: None}] if None in found else []
    return named + others


def _joined(known: Mapping[int, Picture], name: str) -> list[Picture]:
    return [{"replica": number, **entry} for number, one in known.items() for entry in one[name]]


def _shown(number: int, item: Picture | str) -> Picture:
    if isinstance(item, str):
        return {"replica": number, "problem": item}
    return {"replica": number, **{name: item[name] for name in OF_ONE}}
