"""Prometheus metrics of the API processes, and the engine's own figures beside them.

With several API processes, prometheus-client keeps its values in files under
`PROMETHEUS_MULTIPROC_DIR` (set by the launcher before this is imported) and any process answers
for all. Engine figures come from the last `EngineStats`, which every process receives.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.multiprocess import MultiProcessCollector

from tokenspeed.server.fleet_metrics import FleetCollector, RouterMetrics
from tokenspeed.server.metric_names import (
    COUNTERS,
    EXPERT_COUNTERS,
    EXPERT_GAUGES,
    GAUGES,
    TENANT_GAUGES,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from prometheus_client.core import Metric

    from tokenspeed.engine.messages import EngineStats, ExpertFigures, TenantState
    from tokenspeed.engine.replicas.fleet import Fleet
    from tokenspeed.server.pieces import Piece

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_LAG_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0)

REFUSALS = ("unknown", "edited", "reasoning", "template", "context")
"""Why a turn that came back was rendered anew."""


class Metrics:
    """The counters of one API process; `render` answers for all of them.

    Args:
        stats: returns the engine's latest figures, None before the first.
        plan: the binding plan as JSON data; None shows none.
    """

    def __init__(
        self, stats: Callable[[], EngineStats | None], plan: Mapping[str, Any] | None = None
    ) -> None:
        own = CollectorRegistry()
        self._registry = own
        if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
            self._registry = CollectorRegistry()
            MultiProcessCollector(self._registry)  # type: ignore[no-untyped-call]
        self._registry.register(_EngineCollector(stats))
        if plan is not None:
            self._registry.register(_PlanCollector(plan))
        self.requests = Counter(
            "tokenspeed_http_requests", "HTTP requests", ("path", "status"), registry=own
        )
        self.in_flight = Gauge(
            "tokenspeed_http_requests_in_flight",
            "HTTP requests being answered",
            registry=own,
            multiprocess_mode="livesum",
        )
        self.special_tools = Counter(
            "tokenspeed_special_tools",
            "tools in requests that are no plain functions; only namespaces reach the model",
            ("api", "type"),
            registry=own,
        )
        self.aborted = Counter(
            "tokenspeed_requests_aborted", "generations whose client went away", registry=own
        )
        self.first_token = Histogram(
            "tokenspeed_time_to_first_token_seconds",
            "from the end of encoding to the first token",
            buckets=_SECONDS,
            registry=own,
        )
        self.per_token = Histogram(
            "tokenspeed_time_per_output_token_seconds",
            "time between output tokens, mean of a request",
            buckets=_TOKEN_SECONDS,
            registry=own,
        )
        self.whole = Histogram(
            "tokenspeed_generation_seconds",
            "from the end of encoding to the last token",
            buckets=_SECONDS,
            registry=own,
        )
        self.loop_lag = Histogram(
            "tokenspeed_event_loop_lag_seconds",
            "how late the event loop of an API process was, looked at 50 times a second",
            buckets=_LAG_SECONDS,
            registry=own,
        )
        self.rule_changes = Counter(
            "tokenspeed_client_rule_changes",
            "chats that a rule against client noise changed",
            ("rule",),
            registry=own,
        )
        self._own = own
        self.turns = TurnMetrics(own)
        self.host = HostMetrics(own)

    def watch_fleet(self, fleet: Fleet) -> None:
        """Show each replica's figures beside the sums, and what the router does."""
        self._registry.register(FleetCollector(fleet))
        fleet.on_routed = RouterMetrics(self._own).note

    def render(self) -> bytes:
        """Return the exposition text."""
        return generate_latest(self._registry)

    def timer(self, num_choices: int) -> RequestTimer:
        """Start timing a generation."""
        return RequestTimer(self, num_choices)


class HostMetrics:
    """What the stores of the API processes hold, and readers that were given up."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.held = Gauge(
            "tokenspeed_host_bytes",
            "host memory that a store of the API processes holds",
            ("store",),
            registry=registry,
            multiprocess_mode="livesum",
        )
        self.cut = Counter(
            "tokenspeed_answers_cut",
            "answers that ended because too much of them was not read",
            registry=registry,
        )
        self.aborted = Counter(
            "tokenspeed_connections_aborted",
            "connections whose clients took nothing of their answer for too long",
            registry=registry,
        )


class TurnMetrics:
    """What became of earlier turns that came back, and how many are remembered."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.continued = Counter(
            "tokenspeed_turns_continued",
            "chat prompts that went on from the tokens of a remembered turn",
            registry=registry,
        )
        self.refused = Counter(
            "tokenspeed_turns_refused",
            "chat prompts whose newest turn was rendered anew, by reason",
            ("reason",),
            registry=registry,
        )
        self.remembered = Gauge(
            "tokenspeed_turns_remembered",
            "chat turns whose tokens are kept",
            registry=registry,
            multiprocess_mode="livesum",
        )
        self.memory = Gauge(
            "tokenspeed_turn_memory_bytes",
            "host memory of the turns that are kept",
            registry=registry,
            multiprocess_mode="livesum",
        )
        for reason in REFUSALS:
            self.refused.labels(reason)

    def note_memory(self, turns: int, num_bytes: int) -> None:
        """Show how much is remembered."""
        self.remembered.set(turns)
        self.memory.set(num_bytes)


class RequestTimer:
    """Times one generation; told of every piece of every choice."""

    def __init__(self, metrics: Metrics, num_choices: int) -> None:
        self._metrics = metrics
        self._open_choices = num_choices
        self._num_choices = num_choices
        self._num_tokens = 0
        self._started_s = time.monotonic()
        self._first_s: float | None = None

    def observe(self, piece: Piece) -> None:
        """Count a piece; the last choice's last one closes the books."""
        now_s = time.monotonic()
        self._num_tokens += piece.num_tokens
        if self._first_s is None and piece.num_tokens:
            self._first_s = now_s
            self._metrics.first_token.observe(now_s - self._started_s)
        if piece.finish_reason is None:
            return
        self._open_choices -= 1
        if self._open_choices == 0:
            self._finish(now_s)

    def _finish(self, now_s: float) -> None:
        self._metrics.whole.observe(now_s - self._started_s)
        gaps = self._num_tokens / self._num_choices - 1
        if self._first_s is not None and gaps > 0:
            self._metrics.per_token.observe((now_s - self._first_s) / gaps)


class _EngineCollector:
    """Shows the last EngineStats as metrics."""

    def __init__(self, stats: Callable[[], EngineStats | None]) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        stats = self._stats()
        if stats is None:
            return
        for name, text in GAUGES.items():
            yield GaugeMetricFamily(f"tokenspeed_{name}", text, value=getattr(stats, name))
        for name, text in COUNTERS.items():
            yield CounterMetricFamily(f"tokenspeed_{name}", text, value=getattr(stats, name))
        ends = CounterMetricFamily(
            "tokenspeed_match_ends", "prompts by why their match ended", labels=("reason",)
        )
        for reason, count in sorted(stats.match_ends.items()):
            ends.add_metric((reason,), count)
        yield ends
        yield from _tenant_gauges(stats.tenants)
        yield from _expert_metrics(stats.experts)


def _tenant_gauges(tenants: Sequence[TenantState]) -> Iterator[Metric]:
    """Yield a gauge for each figure, with a value for each tenant that has it."""
    for name, text in TENANT_GAUGES.items():
        family = GaugeMetricFamily(f"tokenspeed_tenant_{name}", text, labels=("tenant",))
        for tenant in tenants:
            value = getattr(tenant, name)
            if value is not None:
                family.add_metric((tenant.name,), value)
        yield family


def _expert_metrics(experts: Sequence[ExpertFigures]) -> Iterator[Metric]:
    """Yield the figures of experts that move, with a value for the layers of each stage."""
    family: GaugeMetricFamily | CounterMetricFamily
    for names, kind in ((EXPERT_GAUGES, GaugeMetricFamily), (EXPERT_COUNTERS, CounterMetricFamily)):
        for name, text in names.items():
            family = kind(f"tokenspeed_experts_{name}", text, labels=("layers",))
            for figures in experts:
                family.add_metric((figures.layers,), getattr(figures, name))
            yield family


class _PlanCollector:
    """Shows what was chosen: `tokenspeed_binding_info`, 1 for each choice of the plan.

    Labels: slot or operator, plugin, version, offer, the plan's digest, and the clauses that were
    forced ("" on a plan that is not tainted).
    """

    def __init__(self, plan: Mapping[str, Any]) -> None:
        self._plan = plan

    def collect(self) -> Iterator[Metric]:
        names = ("slot", "plugin", "version", "offer", "digest", "tainted", "forced")
        family = GaugeMetricFamily(
            "tokenspeed_binding_info", "what was chosen for each slot and operator", labels=names
        )
        tainted = str(self._plan["is_tainted"]).lower()
        for slot, entry in _choices(self._plan):
            labels = (slot, entry["plugin"], entry["version"], entry["offer"])
            forced = ",".join(entry["record"]["forced"])
            family.add_metric((*labels, self._plan["digest"], tainted, forced), 1)
        yield family


def _choices(plan: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return (slot or operator, entry) of a plan; an operator's kernels are named once each."""
    kernels = {
        (entry["record"]["slot"], entry["plugin"], entry["offer"]): entry
        for entry in plan["kernels"]
    }
    return [*plan["slots"].items(), *((key[0], entry) for key, entry in kernels.items())]
