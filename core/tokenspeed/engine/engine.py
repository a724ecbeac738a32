"""The engine as it stands after building: everything chosen, nothing running yet.

`build.py` makes it, `event_loop.py` runs it. The two Protocols say what the loop needs of the
planes below, and are met by `tokenspeed.scheduler.Scheduler` and `executor.Executor`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from tokenspeed.contracts.communicator import Communicator
    from tokenspeed.contracts.grammar import CompiledGrammar
    from tokenspeed.contracts.policy import Policy
    from tokenspeed.contracts.step import StepPlan, StepResult
    from tokenspeed.engine.drafting import Drafting
    from tokenspeed.engine.expert_loads import ExpertLoads
    from tokenspeed.engine.grammars import Grammars
    from tokenspeed.engine.kv_publisher import KvEventSettings
    from tokenspeed.engine.messages import ModelInfo
    from tokenspeed.engine.ranks.group import RankGroup
    from tokenspeed.engine.reports import StartReport
    from tokenspeed.engine.store_guard import GuardedStore
    from tokenspeed.engine.tenants import Tenants
    from tokenspeed.executor.connections import GroupConnections
    from tokenspeed.executor.graphs import GraphCounts
    from tokenspeed.plugins import BindingPlan, Registry
    from tokenspeed.sampling.params import SamplingParams
    from tokenspeed.scheduler import Scheduler
    from tokenspeed.scheduler.record import RecordWriter


class StepExecutor(Protocol):
    """Carries out plans; decides nothing."""

    def add_request(
        self,
        request_id: int,
        prompt_ids: NDArray[np.int32],
        output_ids: NDArray[np.int32],
        params: SamplingParams,
        stop_token_ids: tuple[int, ...],
        grammar: CompiledGrammar | None = None,
    ) -> None:
        """Remember what sampling a request needs."""
        ...

    def remove_request(self, request_id: int) -> None:
        """Forget a request; no launched step may still hold a row of it."""
        ...

    def launch(self, plan: StepPlan) -> None:
        """Start a step; on a synchronous device it may run here."""
        ...

    def collect(self) -> StepResult:
        """Wait for the oldest launched step and return its result."""
        ...

    def is_device_well(self) -> bool:
        """Say, after a step that failed, whether the device still computes."""
        ...


class Transfers(Protocol):
    """Moves between the tiers: started by the executor with each plan, reported here."""

    def poll(self) -> NDArray[np.int32]:
        """Return (N, 2) (transfer id, ok) of what ended since the last poll."""
        ...

    def is_busy(self) -> bool:
        """Say whether anything started has not been reported."""
        ...

    def lost_keys(self) -> NDArray[np.uint8]:
        """Return (N, 16) keys that the store dropped since the last call."""
        ...

    def close(self) -> None:
        """Finish what the store has under way."""
        ...


@dataclass(frozen=True, slots=True)
class Engine:
    """One replica: a scheduler (decides), an executor (computes) and the frozen choices."""

    info: ModelInfo
    scheduler: Scheduler
    executor: StepExecutor
    policy: Policy
    registry: Registry
    binding_plan: BindingPlan
    report: StartReport
    max_running: int
    depth: int
    tenants: Tenants
    """Those with a floor or a cap of KV cache, and what they have."""
    recorder: RecordWriter | None = None
    """Where the scheduler's input is written to, for `tokenspeed simulate`."""
    cache_groups: tuple[str, ...] = ()
    """Names of the cache groups, in the order that the scheduler counts them."""
    cache_block_bytes: tuple[int, ...] = ()
    """Bytes of one block of each of them."""
    drafting: Drafting | None = None
    """Asks the speculator; None: there is none."""
    transfers: Transfers | None = None
    """Movers between the tiers; None where there is only the device."""
    communicator: Communicator | None = None
    """Collectives between the ranks of this replica."""
    connections: GroupConnections | None = None
    """Those between the ranks of rank 0's groups; None: there are no such groups."""
    group: RankGroup | None = None
    """The other ranks; None: there is one rank."""
    store: GuardedStore | None = None
    """The store behind the host tier; None: there is none."""
    grammars: Grammars | None = None
    """Compiles the languages that answers are kept in; None: no plugin does."""
    kv_events: KvEventSettings | None = None
    """Where changes of the prefix cache are published; None: nowhere."""
    expert_loads: ExpertLoads | None = None
    """Counts of the choices of experts; None: experts stay where they are."""
    graph_counts: GraphCounts | None = None
    """What became of device graphs; None: decode steps are launched kernel by kernel."""
    is_routed: bool = False
    """One of several replicas: routers are told what it has cached."""

    def close(self) -> None:
        """Compile no more, finish what is on its way to a store, and leave the other ranks."""
        if self.grammars is not None:
            self.grammars.close()
        if self.transfers is not None:
            self.transfers.close()
        if self.group is not None:
            self.group.close()  # first: the others leave the communicator when they are told to
        for joined in (self.connections, self.communicator):
            if joined is not None:
                joined.close()
