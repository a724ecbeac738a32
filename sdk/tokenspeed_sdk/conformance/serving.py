"""A real engine on a tiny model with the subject's offers pinned, and answers to compare with.

Greedy answers are compared token by token. Where two engines part, both tokens must be about as
likely in the reference's own scores: a kernel may round otherwise, it may not decide otherwise.
"""

from __future__ import annotations

import dataclasses
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tokenspeed import LLM, SamplingParams
from tokenspeed_sdk import TRAITS, Offer
from tokenspeed_sdk.conformance.construct import needs_another_device, request_of
from tokenspeed_sdk.testkit.tiny_model import TINY, TinyShape, write_tiny_model

if TYPE_CHECKING:
    from pathlib import Path

    from tokenspeed.engine.completion import RequestOutput
    from tokenspeed_sdk import DeviceRuntime
    from tokenspeed_sdk.conformance.subject import Subject, SubjectOffer

VOCAB_SIZE = 256
NEARLY_EQUAL = {"float32": 0.02, "bfloat16": 0.25}
"""dtype -> difference of log probabilities below which either of two tokens may win."""
COMPUTING = ("attention", "moe")
"""Slots whose offers take the model's dtype; samplers always take float32."""
PINNED = ("attention", "moe", "sampler")
BLOCK_TOKENS = (16, 32, 64, 128, 256)
"""Sizes of blocks that can be served with, the preferred one first; prompts grow with them."""
HEAD_DIMS = (16, 32, 64, 80, 96, 128, 192, 256)
GQA_RATIOS = (2, 1, 4, 8)


@dataclass(frozen=True, slots=True)
class Subjects:
    """What of the plugin takes part in an engine.

    Args:
        settings: of the engine: the plugin, its device, the pins.
        offers: the labels of what is pinned.
        shape: of a model that they take.
        scale: tokens of a block they take, by 16: prompts and pools are larger by it.
    """

    settings: dict[str, Any]
    offers: tuple[str, ...]
    needs_experts: bool
    shape: TinyShape = TINY
    scale: int = 1

    def small_pool(self) -> dict[str, Any]:
        """Return sizes so small that requests are cut into chunks, retracted, and evicted."""
        return self._pool(0.00025)

    def ample_pool(self) -> dict[str, Any]:
        """Return sizes with room for all that is asked."""
        return self._pool(0.05)

    @property
    def dtype(self) -> str:
        """Dtype of the model."""
        return str(self.settings["dtype"])

    def _pool(self, kv_gib: float) -> dict[str, Any]:
        width = self.shape.head_dim / TINY.head_dim * (1 if self.dtype == "float32" else 0.5)
        return {
            "block_tokens": 16 * self.scale,
            "kv_gib": kv_gib * self.scale * width,
            "max_running": 8,
            "max_step_tokens": 64 * self.scale,
        }


def engine_settings(
    subject: Subject,
    runtime: DeviceRuntime,
    folder: Path,
    *,
    deterministic: bool = False,
    dtype: str = "float32",
) -> Subjects:
    """Pin the first offer of each slot that this device can take.

    Args:
        deterministic: of those whose results do not depend on the batch.
        dtype: of the model; of those that take it.
    """
    plugin_id = subject.found.id
    settings: dict[str, Any] = {"plugins": plugin_id, "dtype": dtype}
    settings["allow_experimental"] = plugin_id  # whoever runs the kit on it means all of it
    taken: dict[str, SubjectOffer] = {}
    labels: list[str] = []
    pins: list[str] = []
    for slot in PINNED:
        wanted = dtype if slot in COMPUTING else "float32"
        offer = _first(subject, slot, runtime, deterministic=deterministic, dtype=wanted)
        if offer is not None:
            pins.append(f"{slot}={plugin_id}/{offer.offer.name}")
            labels.append(offer.label)
            taken[slot] = offer
    scale = _scale(taken.get("attention"))
    shape = _shape(taken.get("attention"), taken.get("moe"))
    if subject.offers("device"):
        settings["device"] = runtime.facts.kind
        labels.append(subject.offers("device")[0].label)
    settings["deterministic"] = deterministic
    store = _first(subject, "kv_store", runtime)
    if store is not None:
        settings |= {"kv_store": f"{plugin_id}/{store.offer.name}", "host_kv_gib": 0.0003 * scale}
        settings |= {"kv_store_folder": str(folder / "store"), "kv_store_gib": 0.01}
        settings["kv_write"] = "on_commit"
        labels.append(store.label)
    speculator = _first(subject, "speculator", runtime)
    if speculator is not None:
        settings |= {"speculator": f"{plugin_id}/{speculator.offer.name}", "max_drafts": 3}
        labels.append(speculator.label)
    settings["pins"] = tuple(pins)
    return Subjects(settings, tuple(labels), bool(subject.offers("moe")), shape, scale)


def _scale(attention: SubjectOffer | None) -> int:
    """Return how many times 16 tokens a block has that the backend takes."""
    return int(_taken(attention, "block_tokens", BLOCK_TOKENS)) // 16


def _shape(attention: SubjectOffer | None, experts: SubjectOffer | None) -> TinyShape:
    """Return a shape that the backends take; what they do not mind is as small as ever."""
    shape = TinyShape(
        head_dim=int(_taken(attention, "head_dim", HEAD_DIMS)),
        gqa_ratio=int(_taken(attention, "gqa_ratio", GQA_RATIOS)),
    )
    if experts is None:
        return shape
    names = ("hidden_size", "num_experts", "top_k", "expert_features")
    usual = {name: getattr(TINY, name) for name in names if "*" in _declared(experts, name)}
    return dataclasses.replace(shape, **request_of(experts, usual, *names))


def _taken(offer: SubjectOffer | None, trait: str, samples: tuple[int, ...]) -> Any:
    """Return the first sample that an offer takes, else the least value that it names."""
    if offer is None:
        return samples[0]
    declared = _declared(offer, trait)
    neutral = TRAITS[trait].neutral
    fitting = [item for item in samples if "*" in declared or item in (neutral, *declared)]
    if fitting:
        return fitting[0]
    assert trait != "block_tokens", (
        f"{offer.label} takes blocks of {declared} tokens; powers of two from 16 can be served, "
        f"and this level serves {samples}: declare one of them"
    )
    return min(declared)


def _declared(offer: SubjectOffer, trait: str) -> tuple[Any, ...]:
    assert isinstance(offer.offer, Offer)
    return tuple(offer.offer.requires.get(trait, ()))


def takes(subject: Subject, dtype: str) -> bool:
    """Say whether an offer that computes names a dtype."""
    offers = [item.offer for slot in COMPUTING for item in subject.offers(slot)]
    return any(
        isinstance(item, Offer) and dtype in item.requires.get("dtype", ()) for item in offers
    )


def _first(
    subject: Subject,
    slot: str,
    runtime: DeviceRuntime,
    *,
    deterministic: bool = False,
    dtype: str = "float32",
) -> SubjectOffer | None:
    for item in subject.offers(slot):
        if isinstance(item.offer, Offer) and not needs_another_device(item, runtime):
            dtypes = item.offer.requires.get("dtype", ("float32",))
            is_deterministic = True in item.offer.requires.get("deterministic", ())
            if {dtype, "*"} & set(dtypes) and (is_deterministic or not deterministic):
                return item
    return None


def make_model(folder: Path, subjects: Subjects) -> Path:
    """Write the tiny model that is served."""
    experts = subjects.needs_experts
    return write_tiny_model(folder / "model", experts=experts, shape=subjects.shape)


def make_prompts(count: int, *, seed: int, scale: int = 1) -> list[list[int]]:
    """Return prompts of 1 to 150 tokens, times `scale`; many of them share a beginning."""
    rng = random.Random(seed)
    shared = [rng.randrange(VOCAB_SIZE) for _ in range(70 * scale)]
    prompts = []
    for _ in range(count):
        kept = rng.choice((0, 16, 33, 70)) * scale
        own = [rng.randrange(VOCAB_SIZE) for _ in range(rng.randint(1, 80 * scale))]
        prompts.append(shared[:kept] + own)
    return prompts


def greedy(max_tokens: int = 24) -> SamplingParams:
    """Return parameters of a greedy answer of fixed length, scored with the ten likeliest."""
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, logprobs=10)


def reference_answers(
    model: Path, prompts: list[list[int]], subjects: Subjects
) -> list[RequestOutput]:
    """Answer one at a time with the reference plugin, nothing cached."""
    with LLM(str(model), plugins="reference", dtype=subjects.dtype, prefix_cache=False,
             attention="reference/paged", **subjects.ample_pool()) as llm:  # fmt: skip
        return [llm.generate([prompt], greedy())[0] for prompt in prompts]


def assert_same_answers(
    answers: list[RequestOutput], expected: list[RequestOutput], dtype: str = "float32"
) -> None:
    """Compare up to the first place where two nearly equally likely tokens part.

    Raises:
        AssertionError: names the prompt, the place and how much worse the other token is.
    """
    for number, (answer, right) in enumerate(zip(answers, expected, strict=True)):
        assert answer.error is None, f"prompt {number}: {answer.error}"
        assert len(answer.token_ids) == len(right.token_ids), f"prompt {number}: wrong length"
        for place, (have, wanted) in enumerate(zip(answer.token_ids, right.token_ids, strict=True)):
            if have == wanted:
                continue
            assert right.logprobs is not None
            top = dict(right.logprobs[place].top)
            gap = top[wanted] - top.get(have, float("-inf"))
            assert gap < NEARLY_EQUAL[dtype], (
                f"prompt {number} of {len(right.prompt_token_ids)} tokens: output {place} is {have}"
                f", {wanted} is right and {gap:.3g} more likely (in log probability)"
            )
            break


def random_params(rng: random.Random) -> SamplingParams:
    """Return parameters of a short answer, greedy or sampled."""
    return SamplingParams(
        temperature=rng.choice((0.0, 0.8, 1.0)),
        top_p=rng.choice((1.0, 0.9)),
        max_tokens=rng.randint(1, 40),
        seed=rng.randrange(1 << 30),
        ignore_eos=True,
    )
