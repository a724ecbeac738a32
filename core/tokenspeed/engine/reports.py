"""What a starting engine says: progress, the start-up report, or why it failed.

The engine process writes these as JSON lines to its supervisor; `LLM` gets the same in process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from tokenspeed import errors
from tokenspeed.diagnostics import NO_CANDIDATE, USAGE

GIB = 1 << 30
MIB = 1 << 20
MAX_KERNEL_CELLS = 8
"""Two a line: the whole start-up block stays within 12 lines."""


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """How far a stage of the start is; `total` 0: unknown."""

    stage: str
    done: int = 0
    total: int = 0


ProgressCallback = Callable[[Progress], None]


class StartReport(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """The facts of a start, for the start-up block.

    Args:
        weights_bytes: in memory, as loaded.
        tiers: where blocks go that leave the device, nearest first: (name, what it is).
        policy, speculator: PLUGIN/NAME; speculator "" where there is none.
        kernels: (operator or slot, chosen implementation).
        plan: the binding plan with every decision record, and the state of every plugin.
        start_s: seconds from the process's first line to ready.
        parsers: what answers are parsed with, by what it parses; {}: nobody has said.
        mesh: the degrees of parallelism.
        graphs: sizes and memory of the decode steps that are device graphs; "off", and why.
        replicas: engines like this one behind one server.
    """

    version: str
    python: str
    pid: int
    device: str
    plugins: tuple[str, ...]
    architecture: str
    dtype: str
    weights_bytes: int
    weight_format: str
    block_tokens: int
    kv_blocks: int
    kv_bytes: int
    tiers: tuple[tuple[str, str], ...] = ()
    policy: str
    speculator: str = ""
    max_drafts: int = 0
    max_context_tokens: int
    max_running: int
    max_step_tokens: int
    depth: int
    kernels: tuple[tuple[str, str], ...]
    plan_digest: str
    plan: dict[str, Any]
    start_s: float = 0.0
    parsers: dict[str, str] = {}
    mesh: str = "tp=1 dp=1 ep=1"
    graphs: str = "off"
    replicas: int = 1

    def lines(self) -> tuple[str, ...]:
        """Return the start-up block, without the line that says where it listens."""
        weights = size_text(self.weights_bytes)
        blocks = f"{self.kv_blocks:,} blocks x {self.block_tokens} tokens"
        return (
            f"tokenspeed {self.version}   python {self.python}   pid {self.pid}",
            _row("device", self.device, f"plugins  {', '.join(self.plugins)}"),
            _row("model", self.architecture, f"dtype    {self.dtype}", f"weights  {weights}"),
            _row(
                "mesh",
                self.mesh,
                f"graphs   {self.graphs}",
                f"format   {self.weight_format}",
                *((f"replicas {self.replicas}",) if self.replicas > 1 else ()),
            ),
            _row("kv", blocks, f"size     {size_text(self.kv_bytes)}", *self._no_tiers()),
            *self._tier_lines(),
            _row(
                "limits",
                f"context {self.max_context_tokens:,} tokens",
                f"running  {self.max_running}",
                f"step     {self.max_step_tokens:,} tokens",
            ),
            _row("policy", self.policy, f"drafts   {self._drafts_text()}", *self._parsers()),
            *self._kernel_lines(),
            *self._taint_lines(),
        )

    def _no_tiers(self) -> tuple[str, ...]:
        return () if self.tiers else ("tiers    device alone",)

    def _tier_lines(self) -> tuple[str, ...]:
        cells = [f"{name:<8} {what}" for name, what in self.tiers]
        return (_row("tiers", *cells),) if cells else ()

    def _drafts_text(self) -> str:
        return f"{self.speculator}, at most {self.max_drafts}" if self.speculator else "none"

    def _parsers(self) -> tuple[str, ...]:
        """Return what reads calls and reasoning, without the plugin's name where it is ours."""
        cells = [f"{part} {pin.removeprefix('core/')}" for part, pin in self.parsers.items()]
        return (f"parsers  {', '.join(cells)}",) if cells else ()

    def _taint_lines(self) -> tuple[str, ...]:
        """Say that clauses were forced: nobody may take this for a supported start."""
        forced = self.plan.get("forced", {})
        cells = [f"{slot} past {', '.join(clauses)}" for slot, clauses in forced.items()]
        return (_row("TAINTED", f"forced {'; '.join(cells)}"),) if cells else ()

    def _kernel_lines(self) -> tuple[str, ...]:
        """Return the chosen kernels, two a line; what is beyond the block's size is counted."""
        cells = [f"{slot} -> {chosen}" for slot, chosen in self.kernels]
        most = MAX_KERNEL_CELLS - 2 * len((*self._tier_lines(), *self._taint_lines()))
        if len(cells) > most:
            cells[most - 1 :] = [f"and {len(cells) - most + 1} more"]
        pairs = [cells[index : index + 2] for index in range(0, len(cells), 2)]
        return tuple(
            f"{'' if index else 'kernels':<11}"
            + "   ".join(f"{cell:<44}" for cell in pair).rstrip()
            for index, pair in enumerate(pairs)
        )


class StartFailure(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """A process could not start; `kind` names a class of `errors.py`.

    Args:
        id: its diagnostic; "": it has none.
        causes: what lay behind it, a line each.
    """

    kind: str
    message: str
    exit_code: int = 1
    id: str = ""
    causes: tuple[str, ...] = ()


class Alive(msgspec.Struct, frozen=True, tag="alive"):
    """An engine is not stopped; said a few times a second: by any while it starts, then by one of
    several ranks."""


EngineReport = Progress | StartReport | StartFailure | Alive


def check_same_plan(first: StartReport | None, again: StartReport) -> None:
    """Compare what a restarted engine bound with what the first one did.

    Raises:
        PluginError: another choice; names the slot and both digests.
    """
    if first is None or first.plan_digest == again.plan_digest:
        return
    raise errors.PluginError(
        f"the engine process (pid {again.pid}) bound {_difference(first.plan, again.plan)} (plan "
        f"digest {again.plan_digest}), the first one not so (plan digest {first.plan_digest}); "
        "one server computes with one plan: restart it",
        id="plan-differs",
    )


def _difference(first: dict[str, Any], again: dict[str, Any]) -> str:
    """Return the first slot that is filled otherwise, with both choices."""
    old, new = first.get("slots", {}), again.get("slots", {})
    for slot in sorted({*old, *new}):
        was, now = (_chosen(slots.get(slot)) for slots in (old, new))
        if was != now:
            return f"{slot} to {now} instead of {was}"
    return "other kernels"


def _chosen(entry: dict[str, Any] | None) -> str:
    if entry is None:
        return "nothing"
    return f"{entry['plugin']}/{entry['offer']} {entry['version']}"


def failure_of(error: Exception) -> StartFailure:
    """Return the report of a failed start."""
    kind = type(error).__name__
    if isinstance(error, errors.IdentifiedError):
        return StartFailure(
            kind=kind,
            message=error.message,
            exit_code=getattr(error, "exit_code", NO_CANDIDATE),
            id=error.id,
            causes=errors.cause_lines(error),
        )
    if isinstance(error, errors.TokenSpeedError):
        exit_code = USAGE if isinstance(error, errors.ConfigError) else 1
        return StartFailure(kind=kind, message=str(error), exit_code=exit_code)
    return StartFailure(
        kind="EngineError",
        message=f"the engine could not be built: {' '.join(repr(error).split())[:500]}; this "
        "is a mistake of the engine or of a plugin; start it with --log-level debug for the "
        "traceback, and report it",
    )


def error_of(failure: StartFailure) -> errors.TokenSpeedError:
    """Return the error of another process, as if it had been raised here."""
    if failure.kind == "PluginError":
        plugin_error = errors.PluginError(
            failure.message, id=failure.id, exit_code=failure.exit_code
        )
        plugin_error.causes = failure.causes
        return plugin_error
    if failure.kind == "CapabilityError":
        return errors.CapabilityError(failure.message, id=failure.id)
    kind = getattr(errors, failure.kind, errors.EngineError)
    error: errors.TokenSpeedError = kind(failure.message)
    return error


def size_text(num_bytes: int) -> str:
    """Return a size in GiB, or in MiB where GiB with one decimal would read 0.0."""
    if num_bytes >= GIB // 10:
        return f"{num_bytes / GIB:.1f} GiB"
    return f"{num_bytes / MIB:.1f} MiB"


def _row(name: str, *cells: str) -> str:
    return f"{name:<11}" + "  ".join(f"{cell:<26}" for cell in cells).rstrip()
