"""What plugin authors import. `__all__` is the promise, versioned by `API_VERSION`; no torch here.

Contracts, errors and header readers are plain names; what model files are written with loads when
touched: `ops` (operators), `layers` (shared blocks), `model_fields` (readers of config.json).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenspeed.checkpoint import (
    GgufHeader,
    GgufTensor,
    HfFolder,
    SafetensorsHeader,
    SafetensorsTensor,
    is_hf_folder,
)
from tokenspeed.contracts.attention import (
    AttentionBackend,
    AttentionBatch,
    CacheDemand,
    DecodeRows,
    KVView,
    SharedPrefixes,
    StateView,
)
from tokenspeed.contracts.capability import TRAITS, VOCABULARY_VERSION, Clause, Trait
from tokenspeed.contracts.cli import Command
from tokenspeed.contracts.client_rule import ClientRule, TemplateFacts
from tokenspeed.contracts.communicator import OPTIONAL_METHODS, Communicator
from tokenspeed.contracts.conversation import Conversation, Message, Tool, ToolCall, ToolChoice
from tokenspeed.contracts.device import DeviceFacts, DeviceGraph, DeviceRuntime
from tokenspeed.contracts.faults import Fault, Faults
from tokenspeed.contracts.grammar import (
    CompiledGrammar,
    GrammarEngine,
    GrammarMatcher,
    GrammarSpec,
    GrammarVocabulary,
)
from tokenspeed.contracts.kernel import Band, Case, Domain, KernelBinder, KernelOffer, Operator
from tokenspeed.contracts.kv_store import KEY_BYTES, KVStore, StoreDone, StoreFacts
from tokenspeed.contracts.model import (
    CacheField,
    CacheGroup,
    CausalLM,
    ForwardContext,
    MixtureOfExperts,
    ModelContext,
    StateRows,
    StateStage,
    gqa_fields,
)
from tokenspeed.contracts.moe import (
    ClampedSwiGLU,
    ExpertGroup,
    ExpertWeights,
    MoEBackend,
    MovableMoEBackend,
    Routing,
    RoutingMoEBackend,
)
from tokenspeed.contracts.parser import (
    AnswerParser,
    AnswerStart,
    ParsedDelta,
    Parser,
    ThinkingForm,
    ToolCallDelta,
)
from tokenspeed.contracts.placement import ParallelGroup, Recorder, Shards
from tokenspeed.contracts.policy import Arrival, Keys, Policy
from tokenspeed.contracts.registration import Offer, Registration
from tokenspeed.contracts.sampler import (
    PURPOSE_SAMPLE,
    Penalties,
    Sampler,
    SampleResult,
    SamplingBatch,
    TokenLogprobs,
)
from tokenspeed.contracts.speculator import MAX_DRAFTS, Draft, Speculator, SpeculatorFacts
from tokenspeed.contracts.step import SENTINEL_BLOCK, TOKEN_FROM_DEVICE
from tokenspeed.contracts.weights import LinearWeight, WeightFormat, WeightSource
from tokenspeed.env import cache_dir
from tokenspeed.errors import (
    CapabilityError,
    CapacityError,
    CheckpointError,
    ConfigError,
    EngineError,
    PluginError,
    RequestError,
    TokenSpeedError,
)
from tokenspeed.hookspecs import hookimpl
from tokenspeed.log import LOGGER
from tokenspeed.plugins.slots import API_VERSION
from tokenspeed.plugins.targets import lazy

if TYPE_CHECKING:
    from tokenspeed import layers, ops
    from tokenspeed.models import fields as model_fields
    from tokenspeed_sdk import collectives, portable

__all__ = [
    "API_VERSION",
    "KEY_BYTES",
    "LOGGER",
    "MAX_DRAFTS",
    "OPTIONAL_METHODS",
    "PURPOSE_SAMPLE",
    "SENTINEL_BLOCK",
    "TOKEN_FROM_DEVICE",
    "TRAITS",
    "VOCABULARY_VERSION",
    "AnswerParser",
    "AnswerStart",
    "Arrival",
    "AttentionBackend",
    "AttentionBatch",
    "Band",
    "CacheDemand",
    "CacheField",
    "CacheGroup",
    "CapabilityError",
    "CapacityError",
    "Case",
    "CausalLM",
    "CheckpointError",
    "ClampedSwiGLU",
    "Clause",
    "ClientRule",
    "Command",
    "Communicator",
    "CompiledGrammar",
    "ConfigError",
    "Conversation",
    "DecodeRows",
    "DeviceFacts",
    "DeviceGraph",
    "DeviceRuntime",
    "Domain",
    "Draft",
    "EngineError",
    "ExpertGroup",
    "ExpertWeights",
    "Fault",
    "Faults",
    "ForwardContext",
    "GgufHeader",
    "GgufTensor",
    "GrammarEngine",
    "GrammarMatcher",
    "GrammarSpec",
    "GrammarVocabulary",
    "HfFolder",
    "KVStore",
    "KVView",
    "KernelBinder",
    "KernelOffer",
    "Keys",
    "LinearWeight",
    "Message",
    "MixtureOfExperts",
    "MoEBackend",
    "ModelContext",
    "MovableMoEBackend",
    "Offer",
    "Operator",
    "ParallelGroup",
    "ParsedDelta",
    "Parser",
    "Penalties",
    "PluginError",
    "Policy",
    "Recorder",
    "Registration",
    "RequestError",
    "Routing",
    "RoutingMoEBackend",
    "SafetensorsHeader",
    "SafetensorsTensor",
    "SampleResult",
    "Sampler",
    "SamplingBatch",
    "Shards",
    "SharedPrefixes",
    "Speculator",
    "SpeculatorFacts",
    "StateRows",
    "StateStage",
    "StateView",
    "StoreDone",
    "StoreFacts",
    "TemplateFacts",
    "ThinkingForm",
    "TokenLogprobs",
    "TokenSpeedError",
    "Tool",
    "ToolCall",
    "ToolCallDelta",
    "ToolChoice",
    "Trait",
    "WeightFormat",
    "WeightSource",
    "cache_dir",
    "collectives",
    "gqa_fields",
    "hookimpl",
    "is_hf_folder",
    "layers",
    "lazy",
    "model_fields",
    "ops",
    "portable",
]


_LAZY = {
    "collectives": "tokenspeed_sdk.collectives",
    "portable": "tokenspeed_sdk.portable",
    "layers": "tokenspeed.layers",
    "model_fields": "tokenspeed.models.fields",
    "ops": "tokenspeed.ops",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        import importlib

        return importlib.import_module(_LAZY[name])
    if name == "plugin":
        from tokenspeed_sdk.own_plugin import plugin

        return plugin
    raise AttributeError(f"module 'tokenspeed_sdk' has no attribute {name!r}")
