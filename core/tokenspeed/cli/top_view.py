"""What `tokenspeed top` shows: a state document as lines of a given size. Draws, fetches nothing.

A field that a server does not send is left out; nothing is guessed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import RenderableType

BAR_WIDTH = 40
MIN_BAR_WIDTH = 10
DETAILS_HEIGHT = 14
"""Lower terminals show requests rather than the last plan and the like."""
QUEUE_SHARE = 3
"""The queue takes one part in so many of what the head leaves."""
COLUMNS: tuple[tuple[str, str, int], ...] = (
    ("STATE", "state", 0),
    ("REQUEST", "id", 0),
    ("REPLICA", "replica", 0),
    ("TENANT", "tenant", 100),
    ("SESSION", "session", 110),
    ("PRIO", "priority", 70),
    ("AGE s", "age_s", 0),
    ("PROMPT", "prompt_tokens", 0),
    ("CACHED", "cached_tokens", 90),
    ("DONE", "computed_tokens", 80),
    ("OUT", "output_tokens", 0),
    ("BLOCKS", "blocks", 90),
    ("WAITS FOR", "reason", 120),
)
"""Head, field, and the width of the terminal from which on the column is shown."""
NUMBERS = frozenset(
    {
        "replica", "priority", "age_s", "prompt_tokens", "cached_tokens", "computed_tokens",
        "output_tokens",
    }
)  # fmt: skip
NAMES = frozenset({"id", "tenant", "session"})
"""Columns that are cut where the terminal is too narrow; numbers are not."""
MIN_NAME_WIDTH = 6
GAP = 2


def picture(
    state: dict[str, Any], last: dict[str, Any] | None, url: str, *, width: int, height: int
) -> RenderableType:
    """Draw a state.

    Args:
        last: the state seen before, for figures of the time between; None: since the start.
        width, height: of the terminal; what does not fit is left out from the bottom.
    """
    lines: list[Text] = [*_head(state, last, url), *_pools(state, width), *_replicas(state)]
    if height >= DETAILS_HEIGHT:
        lines += [line for draw in DETAILS if (line := draw(state))]
    left = height - len(lines) - 1
    queue = _queue(state, max(1, left // QUEUE_SHARE if state["requests"] else left - 1))
    lines = [*lines, *queue][: max(1, height - 1)]
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    rows = height - len(lines) - 2
    if rows < 1 or not state["requests"]:
        return Group(*lines)
    return Group(*lines, _requests(state["requests"], width, rows))


def _head(state: dict[str, Any], last: dict[str, Any] | None, url: str) -> list[Text]:
    counters, rates, limits = state["counters"], state["rates"], state["limits"]
    running = counters["prefilling"] + counters["decoding"]
    waiting = counters["waiting"] + counters["retracted"]
    first = Text.assemble(
        ("tokenspeed top", "bold"),
        f"  {url}  {state['model']}  up {_duration(state['uptime_s'])}",
        f"  start {state['epoch']}",
    )
    second = Text.assemble(
        ("out ", "dim"), (f"{rates['output_tok_s']:,.1f} tok/s", "bold green"),
        ("  computed ", "dim"), f"{rates['computed_tok_s']:,.1f} tok/s",
        ("  TTFT ", "dim"), f"{_ms(rates['ttft_ms_p50'])} (p99 {_ms(rates['ttft_ms_p99'])})",
        ("  step ", "dim"), f"{state['steps']['step_us_p50'] / 1e3:,.1f} ms",
        ("  hit ", "dim"), (_hit_rate(counters, last), "bold"),
    )  # fmt: skip
    third = Text.assemble(
        ("running ", "dim"), f"{running}/{limits['max_running']}",
        ("  queue ", "dim"), (str(waiting), "yellow" if waiting else ""),
        ("  retractions ", "dim"), f"{counters['retractions']:,}",
        ("  evictions ", "dim"), f"{counters['evictions']:,}",
        ("  finished ", "dim"), f"{counters['finished']:,}",
    )  # fmt: skip
    return [first, second, third]


def _hit_rate(counters: dict[str, int], last: dict[str, Any] | None) -> str:
    """Return the share of prompt tokens from the cache, of late where anything came of late."""
    whole = _share(counters["cached_tokens"], counters["prompt_tokens"])
    if last is None:
        return whole
    before = last["counters"]
    prompt = counters["prompt_tokens"] - before["prompt_tokens"]
    if prompt <= 0:
        return whole
    return f"{_share(counters['cached_tokens'] - before['cached_tokens'], prompt)} now, {whole}"


def _pools(state: dict[str, Any], width: int) -> list[Text]:
    blocks = state["blocks"]
    bar_width = max(MIN_BAR_WIDTH, min(BAR_WIDTH, width - 60))
    rows = [("device", blocks["used"], blocks["cached"], blocks["total"])]
    if len(blocks["groups"]) > 1:
        rows += [
            (f"  {group['name']}", group["used"], group["cached"], blocks["total"])
            for group in blocks["groups"]
        ]
    rows += [
        (tier["name"], tier.get("used", 0), tier.get("cached", 0), tier["total"])
        for tier in state.get("tiers", ())
        if "total" in tier
    ]
    return [_bar(*row, width=bar_width) for row in rows]


def _bar(name: str, used: int, cached: int, total: int, *, width: int) -> Text:
    """Draw one pool: # held by requests, = cached and evictable, . free."""
    scale = width / max(1, total)
    num_used = min(width, round(used * scale))
    num_cached = min(width - num_used, round(cached * scale))
    return Text.assemble(
        f"{name:<12}[",
        ("#" * num_used, "red"),
        ("=" * num_cached, "cyan"),
        ("." * (width - num_used - num_cached), "dim"),
        f"] {used:,} used  {cached:,} cached  {max(0, total - used - cached):,} free  of {total:,}",
    )


def _replicas(state: dict[str, Any]) -> list[Text]:
    """Say what each of several replicas does; the rest of the picture is their sum."""
    return [_replica(replica) for replica in state.get("replicas", ())]


def _replica(replica: dict[str, Any]) -> Text:
    name = f"replica {replica['replica']:<4}"
    if "problem" in replica:
        return Text(f"{name}{replica['problem']}", style="bold red")
    counters, rates, blocks = replica["counters"], replica["rates"], replica["blocks"]
    waiting = counters["waiting"] + counters["retracted"]
    return Text.assemble(
        (name, "dim"), f"running {counters['prefilling'] + counters['decoding']}",
        ("  queue ", "dim"), (str(waiting), "yellow" if waiting else ""),
        ("  out ", "dim"), f"{rates['output_tok_s']:,.1f} tok/s",
        ("  TTFT ", "dim"), _ms(rates["ttft_ms_p50"]),
        ("  hit ", "dim"), _share(counters["cached_tokens"], counters["prompt_tokens"]),
        ("  cache ", "dim"), _share(blocks["used"] + blocks["cached"], blocks["total"]),
        ("  start ", "dim"), str(replica["epoch"]),
    )  # fmt: skip


def _plan(state: dict[str, Any]) -> Text | None:
    plan = state["last_plan"]
    if plan is None:
        return None
    return Text(
        f"last plan   step {plan['step_id']:,}, {plan['age_s']:.1f} s ago: "
        f"{plan['decode_rows']} decode + {plan['prefill_rows']} prefill rows, "
        f"{plan['tokens']:,} tokens; plan {plan['plan_us']:,.0f} us, "
        f"model {plan['model_us'] / 1e3:,.1f} ms"
    )


def _tiers(state: dict[str, Any]) -> Text | None:
    """Say what is on its way between the tiers, and for how long, and what a store keeps."""
    parts = [
        f"{item['kind']} {item['count']:,} ({item['oldest_s']:.1f} s)"
        for item in state.get("transfers", ())
        if item["count"]
    ]
    records = [tier["records"] for tier in state.get("tiers", ()) if "records" in tier]
    parts += [f"store {count:,} records" for count in records]
    return Text("transfers   " + "  ".join(parts)) if parts else None


def _step_model(state: dict[str, Any]) -> Text | None:
    model = state.get("step_model")
    if not model:
        return None
    parts = (f"{name} {_number(value)}" for name, value in model.items())
    return Text("step model  " + "  ".join(parts))


def _speculation(state: dict[str, Any]) -> Text | None:
    """Say how many drafts were right, and how many tokens the rows brought that could draft."""
    drafts = state.get("speculation")
    if not drafts:
        return None
    right, drafted, rows = drafts["accepted"], drafts["drafted"], max(1, drafts["rows"])
    return Text.assemble(
        f"drafts      {drafts['speculator']}  {right:,} of {drafted:,} right "
        f"({_share(right, drafted)})  {1 + right / rows:.2f} tokens a row  ",
        (drafts["state"], "red" if drafts["state"] == "detached" else "green"),
    )


def _alerts(state: dict[str, Any]) -> Text | None:
    alerts = state.get("alerts")
    if not alerts:
        return None
    return Text("ALERT       " + "; ".join(str(alert["message"]) for alert in alerts), "bold red")


def _cache(state: dict[str, Any]) -> Text | None:
    """Say why matches ended, most frequent first."""
    ends = {name: count for name, count in state.get("match_ends", {}).items() if count}
    if not ends:
        return None
    ranked = sorted(ends.items(), key=lambda item: -item[1])
    return Text("match ends  " + "  ".join(f"{name} {count:,}" for name, count in ranked))


def _queue(state: dict[str, Any], num_shown: int) -> list[Text]:
    entries = state["queue"]
    lines = []
    for number, entry in enumerate(entries[:num_shown], start=1):
        lines.append(
            Text.assemble(
                ("queue       ", "dim"),
                f"{number}. {entry['id']}  waits {entry.get('age_s') or 0:.1f} s  "
                f"{entry.get('prompt_tokens', 0):,} tokens",
                (f"  {_reason(entry)}".rstrip(), "yellow"),
            )
        )
    if len(entries) > num_shown:
        lines.append(Text(f"queue       ... and {len(entries) - num_shown:,} more", "dim"))
    return lines


def _reason(entry: dict[str, Any]) -> str:
    """Say why a request does not go on."""
    reason = str(entry.get("reason") or "")
    if entry.get("waits_for"):
        return f"{reason} by {entry['waits_for']}"
    if entry.get("pieces"):
        return f"{reason} {entry['arrived']:,}/{entry['pieces']:,}".strip()
    return reason


def _requests(requests: Sequence[dict[str, Any]], width: int, rows: int) -> Table:
    """Draw the running requests, oldest first."""
    given = {name for request in requests for name in request}
    columns = [(head, field) for head, field, least in COLUMNS if width >= least and field in given]
    oldest_first = sorted(requests, key=lambda item: -(item.get("age_s") or 0.0))
    shown = [{**item, "reason": _reason(item) or None} for item in oldest_first[:rows]]
    cells = [[_cell(item.get(field)) for _, field in columns] for item in shown]
    natural = {
        field: max(len(text) for text in (head, *(row[index] for row in cells)))
        for index, (head, field) in enumerate(columns)
    }
    limits = _name_widths(natural, width)
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    for head, field in columns:
        justify: Any = "right" if field in NUMBERS else "left"
        table.add_column(
            head, justify=justify, no_wrap=True, overflow="ellipsis", max_width=limits.get(field)
        )
    for row in cells:
        table.add_row(*map(Text, row))
    return table


def _name_widths(natural: Mapping[str, int], width: int) -> dict[str, int]:
    """Return how wide each name's column may be, so that no number is cut; the longest gives."""
    names = sorted((field for field in natural if field in NAMES), key=natural.__getitem__)
    left = width - GAP * len(natural) - sum(natural.values()) + sum(natural[name] for name in names)
    limits = {}
    for index, name in enumerate(names):
        limits[name] = max(MIN_NAME_WIDTH, min(natural[name], left // (len(names) - index)))
        left -= limits[name]
    return limits


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, dict):
        return " ".join(f"{name}:{count}" for name, count in value.items())
    if isinstance(value, int | float):
        return _number(value)
    # Tenants and sessions are clients' texts: none may steer the terminal.
    return "".join(char if char.isprintable() else " " for char in str(value))


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.1f}" if abs(value) >= 0.1 or not value else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f} ms"


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"


DETAILS = (_alerts, _plan, _tiers, _step_model, _speculation, _cache)
"""What a terminal that is high enough shows between the pools and the queue."""
