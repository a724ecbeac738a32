"""Messages between API processes and the engine: msgspec structs, msgpack on the wire.

Token ids travel as little-endian int32 bytes: a list of 65k Python ints costs 240 us to cross,
a buffer under 1 us. `WIRE_VERSION` is compared in Hello and Welcome.
"""

from __future__ import annotations

import msgspec

from tokenspeed.contracts.sampler import TokenLogprobs
from tokenspeed.sampling.params import SamplingParams

WIRE_VERSION = 7
NO_POSITION = -2


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What an API process must know of the served model."""

    name: str
    path: str
    architecture: str
    vocab_size: int
    max_context_tokens: int
    max_prompt_tokens: int
    """Longest prompt that can ever fit beside one output token."""
    eos_token_ids: tuple[int, ...]
    has_snapshots: bool = False
    """The cache can be entered only where a snapshot was taken: requests should name places."""
    block_tokens: int = 128
    cache_groups: tuple[tuple[str, int], ...] = (("full", 0),)
    """Kind and window in tokens of each cache group: what a router must know of them."""


# ---- API process -> engine


class Hello(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """First message of an API process, repeated as a heartbeat every second."""

    wire_version: int
    seen_epoch: int
    """Epoch of the last Welcome; 0: none yet."""


class Terms(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a request is to be treated, whatever it asks: its place, its time, its cache.

    Args:
        priority: higher runs first.
        salt: cache namespace; b"" is the shared one.
        tenant: on whose account it runs, for fair shares; "": the nameless one.
        session: conversation that it is a turn of; "": none.
        parent: session that this one was started by, as a sub-agent or to compact it; "": none.
        root: session that all of its ancestors descend from; "": itself.
        owner: who names sessions: turns of two owners are never one session's.
        timeout_s: seconds from arrival to the end of the request; None: none.
        retain_s: seconds to keep the prompt's cache after the end, within the quota.
        reuse_points: at most 3 increasing positions in the prompt after which others will go on.
    """

    priority: int = 0
    salt: bytes = b""
    tenant: str = ""
    session: str = ""
    parent: str = ""
    root: str = ""
    owner: str = ""
    timeout_s: float | None = None
    retain_s: float = 0.0
    reuse_points: tuple[int, ...] = ()


class Submit(Terms, frozen=True, tag=True, kw_only=True):
    """A new or resumed request, on its Terms.

    Args:
        request_id: unique over all API processes and restarts.
        epoch: engine epoch it is meant for; an engine of another epoch drops it.
        prompt_ids: int32 little-endian bytes.
        output_ids: tokens already sent to the client (resume); int32 bytes.
        params: `seed` is set; the front end gives one to requests without.
        stop_token_ids: all ids that end the output: eos unless ignored, and the request's own.
        fatal_position: output index that the last step of another replica was to fill when that
            one died; it runs on trial, alone. NO_POSITION: it was in no such step.
    """

    request_id: str
    epoch: int
    prompt_ids: bytes
    output_ids: bytes = b""
    params: SamplingParams
    stop_token_ids: tuple[int, ...]
    fatal_position: int = NO_POSITION


class Abort(msgspec.Struct, frozen=True, tag=True):
    """The client went away, or the front end gives up: free everything now."""

    request_id: str


class Stop(msgspec.Struct, frozen=True, tag=True):
    """A stop string was found: end the request as finished; its cache stays matchable."""

    request_id: str


class KvWatch(msgspec.Struct, frozen=True, tag=True):
    """Asks for changes of the prefix cache, or says how far they were taken.

    Args:
        epoch: engine epoch it is meant for; an engine of another epoch drops it.
        is_lost: something was missed, or nothing heard yet: tell everything, then what changes.
        taken_bytes: of `KvChanges.blocks` that were taken since everything was told.
    """

    epoch: int
    is_lost: bool = False
    taken_bytes: int = 0


class StateQuery(msgspec.Struct, frozen=True, tag=True):
    """Asks for a picture of the engine's inside; answered by a StateReply of the same number."""

    query_id: int


class SessionQuery(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Asks for a session's family and sums; answered by a SessionReply of the same number.

    Args:
        owner, session: as in Terms.
    """

    query_id: int
    owner: str
    session: str


class SessionRelease(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """A session is over: what it alone left in the cache goes. Answered by a SessionReply.

    Args:
        owner, session: as in Terms.
        group: release all that descend from it, too.
        abort: end their requests; else one that lives is a reason to refuse.
    """

    query_id: int
    owner: str
    session: str
    group: bool = False
    abort: bool = False


class TenantFigures(msgspec.Struct, frozen=True):
    """A tenant's floor and cap of KV cache on the device, in bytes; None: none."""

    floor_bytes: int | None = None
    cap_bytes: int | None = None

    @property
    def is_none(self) -> bool:
        """Whether there are no figures at all: the tenant shares what is left."""
        return not self.floor_bytes and self.cap_bytes is None

    def share(self, replicas: int) -> TenantFigures:
        """Return the part of one of so many replicas: floors hold in sum, and so do caps."""
        floor, cap = self.floor_bytes, self.cap_bytes
        return TenantFigures(
            None if floor is None else -(-floor // replicas),
            None if cap is None else cap // replicas,
        )


class TenantsQuery(msgspec.Struct, frozen=True, tag=True):
    """Asks what tenants with figures have; answered by a TenantsReply of the same number."""

    query_id: int


class TenantChange(msgspec.Struct, frozen=True, tag=True):
    """Gives a tenant other figures; answered like a query.

    Args:
        epoch: engine epoch it is meant for; an engine of another epoch drops it.
    """

    query_id: int
    epoch: int
    name: str
    figures: TenantFigures


ToEngine = (
    Hello
    | Submit
    | Abort
    | Stop
    | KvWatch
    | StateQuery
    | TenantsQuery
    | TenantChange
    | SessionQuery
    | SessionRelease
)


# ---- engine -> API process


class Welcome(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Answer to a Hello of another epoch: the engine is ready.

    Args:
        epoch: counts engine starts, from 1; a change means all earlier requests are gone.
        suspects: requests that were in an uncommitted step when the last engine died. They are
            resubmitted last and run one at a time; one that is a suspect twice fails.
        suspect_positions: beside each suspect, the output index its fatal step was to fill (-1: a
            prefill chunk); it is cleared of suspicion when its output has grown past that.
    """

    wire_version: int
    epoch: int
    model: ModelInfo
    suspects: tuple[str, ...] = ()
    suspect_positions: tuple[int, ...] = ()
    plan_digest: str = ""


class CacheReport(msgspec.Struct, frozen=True, array_like=True):
    """What the prefix cache did for one prompt; the first three add up to its tokens.

    Args:
        cached: tokens taken from the cache.
        created: tokens computed that were never in it.
        recomputed: tokens computed again, because they had been evicted.
        match_end: position at which the match ended.
        reason: why it ended there, a name of `scheduler.MATCH_ENDS`.
    """

    cached: int
    created: int
    recomputed: int
    match_end: int
    reason: str


class Delta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one step brought for one request.

    Args:
        tokens: newly committed token ids, in order.
        cached_tokens: prompt tokens taken from the cache; set in the first delta, else -1.
        cache: what the cache did for the prompt, beside `cached_tokens`.
        embedding: the hidden state behind the prompt, when asked for; float32 little-endian bytes.
        drafts: how many guessed tokens were verified for it, and how many of them were right.
        finish_reason: None while it goes on; "stop", "length", "abort", "timeout" or "error".
        error: text for the client when finish_reason is "error".
    """

    request_id: str
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] | None = None
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None
    cached_tokens: int = -1
    cache: CacheReport | None = None
    embedding: bytes | None = None
    drafts: tuple[int, int] = (0, 0)
    finish_reason: str | None = None
    error: str | None = None


class TokensOut(msgspec.Struct, frozen=True, tag=True):
    """All deltas of one step for one API process.

    Args:
        epoch: of the sender; what a dead engine still had in a socket is dropped by it.
    """

    deltas: tuple[Delta, ...]
    epoch: int


class Refused(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """A Submit that was not taken; `kind` names a class of `errors.py`."""

    request_id: str
    epoch: int
    kind: str
    message: str
    param: str | None = None
    code: str | None = None
    retry_after_s: int | None = None


class TenantState(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant with figures, and what it has.

    Args:
        held_bytes: KV cache that its requests hold.
        cached_bytes: KV cache of its that nobody holds.
        running, waiting: its requests.
    """

    name: str
    floor_bytes: int | None
    cap_bytes: int | None
    held_bytes: int
    cached_bytes: int
    running: int
    waiting: int


class TenantsReply(msgspec.Struct, frozen=True, tag=True):
    """All tenants with figures, by name; or why a change was not taken.

    Args:
        refused: `request_id` is empty; None: there was no change, or it was taken.
    """

    query_id: int
    tenants: tuple[TenantState, ...]
    refused: Refused | None = None


class ExpertFigures(msgspec.Struct, frozen=True, kw_only=True):
    """How evenly the experts of some layers, those of one pipeline stage, load their ranks.

    Args:
        layers: first and last one, such as "0-46".
        imbalance: choices of the busiest rank over those of the average one, in the last interval,
            of the layer where that is most.
        imbalance_mean: the same, mean of the layers.
        looks: times that a layer's load was looked at.
        rebalances: those after which experts were moved.
        moved: experts' weights that went to another slot.
    """

    layers: str
    imbalance: float
    imbalance_mean: float
    looks: int
    rebalances: int
    moved: int


class EngineStats(msgspec.Struct, frozen=True, tag=True, kw_only=True, omit_defaults=True):
    """Counters and gauges for /metrics and /health, sent about once a second and when idle."""

    epoch: int
    steps: int = 0
    running: int = 0
    waiting: int = 0
    blocks_total: int = 0
    blocks_used: int = 0
    """Blocks held by live requests; cached blocks that can be evicted do not count."""
    blocks_cached: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    retractions: int = 0
    created_tokens: int = 0
    recomputed_tokens: int = 0
    tenants: tuple[TenantState, ...] = ()
    """Those with a floor or a cap."""
    experts: tuple[ExpertFigures, ...] = ()
    """With experts that move between ranks, of each pipeline stage."""
    match_ends: dict[str, int] = {}
    """Why matches ended: reason -> prompts."""
    evictions: int = 0
    loaded_tokens: int = 0
    tier_failures: int = 0
    """Moves between device, host and store that failed; each costs computing again only."""
    tps_floor_violated: int = 0
    host_blocks_total: int = 0
    host_blocks_free: int = 0
    store_records: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    """Drafts that were verified, and those of them that were right."""
    speculator_failures: int = 0
    speculator_detached: int = 0
    """1: the speculator failed too often and is not asked any more."""
    store_failures: int = 0
    store_detached: int = 0
    """1: the KV store failed too often and is not asked any more."""
    graph_steps: int = 0
    graph_sizes_failed: int = 0
    """Decode steps that were graphs; sizes of step that were to be and could not be captured."""
    grammar_bytes: int = 0
    """Host memory of compiled grammars that are kept."""
    hook_calls_after_freeze: int = 0
    queued_tokens: int = 0
    """Prompt tokens of live requests that are not in the cache yet; told to routers only."""
    kv_number: int = -1
    """Of the last KvChanges; -1: nobody watches."""
    step_us_p50: float = 0.0
    overhead_us_p50: float = 0.0
    """Median control and event-loop time per step, the model's own time excluded."""


class KvChanges(msgspec.Struct, frozen=True, tag=True, kw_only=True, omit_defaults=True):
    """What changed in the prefix cache since the last one, for those who watch it.

    Args:
        number: counts up by one; a client that misses one asks for everything.
        is_all: `blocks` is everything that can be reused now, not what changed.
        blocks: as `scheduler.PrefixView` reads them, changes or all.
        turns: requests taken since the last one: number of the session, tokens of the prompt.
    """

    epoch: int
    number: int
    is_all: bool = False
    blocks: bytes = b""
    turns: tuple[tuple[int, int], ...] = ()


class StateReply(msgspec.Struct, frozen=True, tag=True):
    """The inside of the engine, at most a moment old.

    Args:
        state: msgpack of the document that `snapshot.py` builds and docs/http-api.md describes.
    """

    query_id: int
    state: bytes


class SessionReply(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Answer to a SessionQuery or SessionRelease.

    Args:
        outcome: "done"; "unknown": no such session; "busy": requests of it live.
        body: msgpack of what docs/sessions.md describes.
    """

    query_id: int
    outcome: str
    body: bytes


class Unhealthy(msgspec.Struct, frozen=True, tag=True):
    """From the supervisor, in the engine's place: it died too often and is not restarted."""

    reason: str


FromEngine = (
    Welcome
    | TokensOut
    | Refused
    | EngineStats
    | KvChanges
    | StateReply
    | TenantsReply
    | SessionReply
    | Unhealthy
)
