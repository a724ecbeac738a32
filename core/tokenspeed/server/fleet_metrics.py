"""Metrics of several replicas: each one's figures under a label, and what the router does.

The sums stand under the names that a single engine has. Tokens that the router promised from the
cache, against those that engines found there, say how good its views are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import Counter
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from tokenspeed.server.metric_names import COUNTERS, GAUGES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

    from tokenspeed.engine.replicas.fleet import Fleet
    from tokenspeed.engine.replicas.router import Routed

VIEW = {
    "blocks": "KV blocks that this API process knows replicas to have",
    "bytes": "host memory of the view of what replicas have",
    "ignored": "blocks that were told of while the view was full",
}


class RouterMetrics:
    """Counts what is routed where, in all API processes."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str) -> Counter:
            return Counter(f"tokenspeed_router_{name}", text, ("replica",), registry=registry)

        self._requests = counter("requests", "requests by the replica that they were sent to")
        self._prompt_tokens = counter("prompt_tokens", "prompt tokens of these requests")
        self._cached_tokens = counter(
            "cached_tokens", "prompt tokens that are cached there, or will be in time"
        )

    def note(self, routed: Routed) -> None:
        """Count a request."""
        replica = str(routed.replica)
        self._requests.labels(replica).inc()
        self._prompt_tokens.labels(replica).inc(routed.num_tokens)
        self._cached_tokens.labels(replica).inc(routed.cached_tokens)


class FleetCollector:
    """Shows the last EngineStats of each replica, and the router's view of their caches."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def collect(self) -> Iterator[Metric]:
        is_here = GaugeMetricFamily(
            "tokenspeed_replica_up", "1: requests are sent to the replica", labels=("replica",)
        )
        for replica in self._fleet.replicas:
            is_here.add_metric((str(replica.number),), int(replica.is_here))
        yield is_here
        for name, text in GAUGES.items():
            yield self._filled(
                name, GaugeMetricFamily(f"tokenspeed_replica_{name}", text, labels=("replica",))
            )
        for name, text in COUNTERS.items():
            yield self._filled(
                name, CounterMetricFamily(f"tokenspeed_replica_{name}", text, labels=("replica",))
            )
        router = self._fleet.router
        if router is not None:
            for name, text in VIEW.items():
                value = getattr(router.view, f"num_{name}")
                yield GaugeMetricFamily(f"tokenspeed_router_view_{name}", text, value=value)

    def _filled(
        self, name: str, family: GaugeMetricFamily | CounterMetricFamily
    ) -> GaugeMetricFamily | CounterMetricFamily:
        for replica in self._fleet.replicas:
            stats = replica.frontend.stats
            if stats is not None:
                family.add_metric((str(replica.number),), getattr(stats, name))
        return family
