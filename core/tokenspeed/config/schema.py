"""Every setting, once: name, type, default, meaning, unit and why that default.

Flags, environment variables, YAML keys and `docs/settings.md` are derived from these fields.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

MAX_CONTEXT_TOKENS = 1 << 24
"""Longest context that can be asked for; the longest published models stop at 10 M tokens."""


def setting(
    default: Any,
    help: str,
    *,
    choices: tuple[str, ...] = (),
    metavar: str = "",
    low: float | None = None,
    high: float | None = None,
) -> Any:
    """Declare one setting; `help` states meaning, unit and the reason for the default.

    Args:
        low: smallest value of a number; every number has both bounds (see `ranges.py`).
        high: largest value.
    """
    bounds = None if low is None or high is None else (low, high)
    metadata = {"help": help, "choices": choices, "metavar": metavar, "range": bounds}
    if isinstance(default, (list, dict)):
        return field(default_factory=lambda: type(default)(default), metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Settings of one engine: model, plugins, memory, scheduling."""

    model: str = setting(
        "", "Hugging Face folder or .gguf file; empty: SmolLM2-135M-Instruct", metavar="MODEL"
    )
    served_model_name: str = setting(
        "", "name in the API; empty: the folder's or file's name without its storage type"
    )
    model_module: tuple[str, ...] = setting(
        (),
        "model files of your own, comma separated: importable modules with an EntryClass, such as "
        "my_pkg.my_model",
        metavar="MODULES",
    )
    plugins: tuple[str, ...] = setting(
        ("auto",),
        "plugin ids to load, comma separated: exactly these plus reference; auto: every "
        "first-party plugin whose device is found",
    )
    plugin_config: tuple[str, ...] = setting((), "PLUGIN.KEY=VALUE, comma separated")
    plugins_lock: str = setting(
        "",
        "lock file that every plugin must be equal to, byte by byte, as `tokenspeed plugins lock` "
        "wrote it; empty: none",
        metavar="FILE",
    )
    allow_experimental: tuple[str, ...] = setting(
        (),
        "ids of third parties' plugins that may fill experimental slots, comma separated; those "
        "slots may change in any release",
    )
    attention: str = setting("auto", "pin the attention backend: PLUGIN/NAME")
    sampler: str = setting("auto", "pin the sampler: PLUGIN/NAME")
    pins: tuple[str, ...] = setting(
        (),
        "further pins, comma separated: SLOT=PLUGIN/NAME or OPERATOR=PLUGIN/NAME, such as "
        "linear.dense=reference/linear_rowwise_any",
        metavar="SLOT=PLUGIN/NAME",
    )
    unsafe_force: tuple[str, ...] = setting(
        (),
        "clause ids, such as trait.sinks, that a pinned offer may fail; the plan is marked tainted "
        "and results may be wrong",
        metavar="CLAUSE",
    )
    prefer: tuple[str, ...] = setting(
        (),
        "wishes that decide between offers of equal band and score: TRAIT=VALUE, such as "
        "graph_safe=true",
        metavar="TRAIT=VALUE",
    )
    objective: str = setting(
        "latency",
        "what offers are scored and measured for; agents wait for each answer, hence latency",
        choices=("latency", "throughput"),
    )
    tune: bool = setting(
        False,
        "time the candidates for kernels, attention and experts on this model's shapes once, and "
        "keep the result in the cache folder; later starts use it",
    )
    fallback: str = setting(
        "warn",
        "what a fallback to a slower band does for automatic choices; pins always fail",
        choices=("error", "warn", "allow"),
    )
    allow_device_fallback: bool = setting(
        False,
        "run on another device kind when the plugin of a device that was found fails; off: the "
        "start fails, since nobody asked for a slower machine",
    )
    device: str = setting("auto", "device kind; auto: the best that a loaded plugin finds")
    dtype: str = setting(
        "auto",
        "activation and weight dtype; auto: float32 on cpu (bfloat16 prefill is 6x slower there), "
        "else the checkpoint's",
        choices=("auto", "float32", "bfloat16", "float16"),
    )
    weights: str = setting(
        "auto",
        "packed keeps low-bit weights packed (faster decode, needs a kernel for the packing), "
        "dense expands them to dtype (the checkpoint's exact values); auto: dense",
        choices=("auto", "dense", "packed"),
    )
    block_tokens: int = setting(
        128,
        "tokens per logical KV block; a power of two; larger hashes less, wastes more",
        low=16,
        high=65536,
    )
    kv_gib: float = setting(
        0.0,
        "KV cache size of each replica, GiB; 0: what max_context x 4 needs, at most 40 % of free "
        "memory, shared out among the replicas",
        low=0,
        high=65536,
    )
    max_context_tokens: int = setting(
        0, "longest prompt + output, tokens; 0: the model's own", low=0, high=MAX_CONTEXT_TOKENS
    )
    max_running: int = setting(
        64, "requests that run at once; each needs a slot", low=1, high=16384
    )
    max_waiting: int = setting(
        4096, "requests that may queue before 429 is answered", low=1, high=1_000_000
    )
    max_queue_s: float = setting(
        0.0,
        "longest wait in the queue, seconds, before 429 is answered; 0: no limit, clients have "
        "their own",
        low=0,
        high=86400,
    )
    min_tps_per_user: float = setting(
        0.0,
        "tokens per second that every running stream keeps: requests that would slow others below "
        "it wait in the queue; 0: no floor",
        low=0,
        high=10_000,
    )
    max_prefill_steps: int = setting(
        3,
        "steps in a row in which a running stream may get no token; fewer smooth decoding, more "
        "fill prompts faster",
        low=1,
        high=1000,
    )
    max_step_tokens: int = setting(
        0,
        "query tokens per step; 0: 512 on cpu, 2048 elsewhere; smaller smooths decode latency",
        low=0,
        high=1 << 20,
    )
    depth: int = setting(
        -1,
        "plans in flight before the first commit: with 1 a step is launched before the results of "
        "the one before are read; -1: 1 on devices that compute beside the host, 0 elsewhere",
        low=-1,
        high=1,
    )
    graphs: str = setting(
        "auto",
        "decode steps as device graphs, see docs/graphs.md; auto: where the device, the "
        "model's kernels and its backends can, and the start report says why where not",
        choices=("auto", "off"),
    )
    graph_rows: int = setting(
        0,
        "most rows of a decode step that is a graph; 0: max_running, up to 512, beyond which "
        "launching costs little beside computing",
        low=0,
        high=1 << 13,
    )
    graph_memory_mib: int = setting(
        2048,
        "device memory that graphs may take beside the cache, in MiB; sizes of step that find no "
        "room are launched without; the default holds the intermediate results of 512 rows of the "
        "widest published models",
        low=1,
        high=1 << 17,
    )
    piecewise_tokens: int = setting(
        0,
        "most tokens of a step with prompts whose work between the calls of attention is replayed "
        "as graphs, captured in a size's second step, see docs/graphs.md; 0: such steps are "
        "launched kernel by kernel, the default while no device's gain is measured",
        low=0,
        high=1 << 13,
    )
    prefix_cache: bool = setting(True, "reuse KV blocks of equal prefixes")
    state_cache_share: float = setting(
        0.3,
        "most of the cache that kept snapshots of recurrent states may take, a share; more starts "
        "more conversations again without recomputing, less keeps longer histories",
        low=0,
        high=1,
    )
    retain_share: float = setting(
        0.25,
        "most of the KV blocks that prefixes kept by request (cache_control and the like) may "
        "hold; the rest stays for everyone",
        low=0,
        high=1,
    )
    host_kv_gib: float = setting(
        0.0,
        "host memory of each replica for KV blocks that leave the device, GiB, shared out among "
        "its ranks; 0: none, evicted blocks are recomputed",
        low=0,
        high=65536,
    )
    kv_write: str = setting(
        "auto",
        "when blocks are copied to the host: on_commit (as soon as they are complete: nothing is "
        "lost when they are evicted), on_eviction (fewest copies), selective (once they were "
        "reused kv_write_min_reuse times); auto: on_commit with a kv_store, else on_eviction",
        choices=("auto", "on_eviction", "on_commit", "selective"),
    )
    kv_write_min_reuse: int = setting(
        2, "hits on a block before kv_write=selective copies it", low=1, high=1_000_000
    )
    kv_store: str = setting(
        "",
        "store behind the host tier, NAME or PLUGIN/NAME, such as disk or memory; empty: none; "
        "needs host_kv_gib",
    )
    kv_store_folder: str = setting("", "folder of a store on disk; one engine a folder")
    kv_store_gib: float = setting(
        16.0,
        "most GiB that the store keeps; least recently used records go first; of several ranks "
        "each keeps an equal part",
        low=0.001,
        high=1_048_576,
    )
    speculator: str = setting(
        "",
        "guesses next tokens, so that one step can bring several: NAME or PLUGIN/NAME, such as "
        "ngram; empty: none; answers are the same either way",
    )
    max_drafts: int = setting(
        8,
        "most tokens that a speculator guesses ahead of a request, per step; fewer are verified "
        "where they do not pay",
        low=1,
        high=64,
    )
    grammar_cache_mib: int = setting(
        256,
        "host memory for compiled grammars that no running request needs, MiB; the least recently "
        "used go first",
        low=1,
        high=1 << 20,
    )
    policy: str = setting(
        "core/return_time",
        "who goes first and whose cached blocks go first: PLUGIN/NAME; core/return_time evicts "
        "whoever is expected back last, core/lru the least recently used",
    )
    kv_events: str = setting(
        "",
        "ZeroMQ address where changes of the prefix cache are published for routers, such as "
        "tcp://*:5557; empty: nowhere",
        metavar="ADDRESS",
    )
    kv_events_replay: str = setting(
        "",
        "ZeroMQ address where subscribers ask for changes they missed, such as tcp://*:5558; "
        "empty: none",
        metavar="ADDRESS",
    )
    kv_events_topic: str = setting("", "topic of the published changes")
    kv_events_format: str = setting(
        "named",
        "shape of the events: named (maps, as vLLM writes them since 0.24) or positional (arrays, "
        "as before); the default is what current consumers read",
        choices=("named", "positional"),
    )
    tenants: str = setting(
        "",
        "TOML file of tenants' floors and caps of KV cache, [tenants.NAME] with floor_mib and "
        "cap_mib; PUT /tenants/NAME changes them while running; empty: nobody has any",
        metavar="FILE",
    )
    record: str = setting(
        "",
        "file that everything the scheduler is told is written to; `tokenspeed simulate FILE` "
        "repeats it plan by plan; it holds all token ids; empty: none",
    )
    tp: int = setting(
        1,
        "ranks that share the heads of attention; one process and one device each",
        low=1,
        high=1024,
    )
    dp: int = setting(
        1, "groups of ranks that share out the running requests in attention", low=1, high=1024
    )
    cp: int = setting(
        1, "ranks that share the query tokens of a step in attention", low=1, high=1024
    )
    pp: int = setting(1, "pipeline stages of layers, each with ranks of its own", low=1, high=1024)
    ep: int = setting(
        1,
        "groups of experts; the features of an expert are spread over the other ranks of a stage",
        low=1,
        high=1024,
    )
    dense_tp: int = setting(
        0, "ranks that share the features of dense MLPs; 0: as tp", low=0, high=1024
    )
    eplb_steps: int = setting(
        0,
        "steps in which each layer's load of experts is looked at once, and experts are moved "
        "between the ranks of --ep where that evens it out; 0: they stay where they were loaded",
        low=0,
        high=10**9,
    )
    eplb_slots: int = setting(
        0,
        "experts that each rank holds beyond its share, copies of those chosen most; with "
        "--eplb-steps",
        low=0,
        high=1024,
    )
    launcher: str = setting(
        "local",
        "who starts the ranks: local (this process, on this host), torchrun (as `torchrun -m "
        "tokenspeed serve ...`), ray (one actor a rank, in a placement group)",
        choices=("local", "torchrun", "ray"),
    )
    rank_timeout_s: float = setting(
        4.0,
        "seconds without progress after which a rank that others wait for counts as hung, and the "
        "replica is restarted; a first compilation that only one rank makes must fit in",
        low=0.5,
        high=3600,
    )
    start_timeout_s: float = setting(
        120.0,
        "seconds that ranks started by torchrun wait for rank 0's address, and that the server "
        "waits for a sign of life of an engine that starts; raise it where hosts are started by "
        "hand",
        low=1,
        high=86400,
    )
    threads: int = setting(
        0,
        "CPU threads for kernels, of each replica; 0: all cores, shared out among the replicas",
        low=0,
        high=1024,
    )
    replicas: int = setting(
        1,
        "engines side by side, each with the whole model, a scheduler and a cache of its own; "
        "every request goes where its first token is expected soonest; for `tokenspeed serve`",
        low=1,
        high=16,
    )
    deterministic: bool = setting(
        False,
        "choose only kernels whose results do not depend on the batch, whatever the objective",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeConfig(EngineConfig):
    """Settings of `tokenspeed serve`: an engine behind HTTP."""

    host: str = setting("127.0.0.1", "address to listen on")
    port: int = setting(8000, "TCP port; 0 takes a free one and prints it", low=0, high=65535)
    api_workers: int = setting(1, "API processes that share the port", low=1, high=256)
    api_key: str = setting("", "clients must send it as a bearer token; empty: open")
    api_keys_file: str = setting(
        "",
        "file of further API keys, a line 'TENANT KEY' each: requests with a key run on its "
        "tenant's account",
        metavar="FILE",
    )
    tool_parser: str = setting(
        "auto",
        "reads the tool calls that the model writes: NAME or PLUGIN/NAME, such as hermes; auto: "
        "by the chat template and the model type; none: requests with tools are refused",
    )
    reasoning_parser: str = setting(
        "auto",
        "splits the model's thinking off chat answers into reasoning_content: NAME or PLUGIN/NAME, "
        "such as think (<think>...</think>); auto: by the chat template and the model type; none: "
        "answers are left as they are",
    )
    client_rules: tuple[str, ...] = setting(
        ("all",),
        "rules against client noise, which would end cached prefixes early: all, or NAME or "
        "PLUGIN/NAME for only these, -NAME to switch one off (all,-order), none",
    )
    turn_memory_mib: int = setting(
        256,
        "host memory of each API process for the token ids of finished chat turns, MiB: a turn "
        "that comes back unchanged is continued from its own tokens, so that none is computed "
        "again; 256 holds about 1,000 agent sessions; 0: off",
        low=0,
        high=1 << 20,
    )
    prompt_cache_mib: int = setting(
        256,
        "host memory of each API process for text and token ids of prompts, MiB: what was encoded "
        "before is not encoded again; 256 holds about 10 prompts of a million tokens",
        low=1,
        high=1 << 20,
    )
    keep_alive_s: float = setting(
        10.0,
        "seconds between comment lines on a silent stream; proxies cut at 30 to 60",
        low=0.01,
        high=3600,
    )
    health_stall_s: float = setting(
        10.0,
        "seconds without a completed step while requests are there, after which /health answers "
        "503; more than the longest step takes, a first compilation included",
        low=2,
        high=86400,
    )
    max_body_mib: int = setting(
        64, "largest request body, MiB; 1M tokens are about 5 MiB", low=1, high=4096
    )
    response_store_mib: int = setting(
        256,
        "disk in the server's temporary folder for stored responses of /v1/responses, MiB; the "
        "least recently used go first; 0: none is stored",
        low=0,
        high=1 << 20,
    )
    log_level: str = setting("info", "log level", choices=("debug", "info", "warning", "error"))


def settings_of(schema: type) -> dict[str, Any]:
    """Return the dataclass fields of a schema by name, in order."""
    return {item.name: item for item in fields(schema)}
