"""The conformance kit finds faults that were planted, and says where; what is right passes.

Plugins have an offer a fault, so that one run of the kit serves many tests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.plugin_wheels import WheelFolder

from tokenspeed_sdk.conformance import run_conformance

if TYPE_CHECKING:
    from pathlib import Path


COMPUTES = "it-computes-what-its-operator-says"
DETERMINISTIC = "it-is-deterministic-if-it-says-so"

OFFERS = """
from dataclasses import replace

import torch
from tokenspeed_reference.attention import PagedAttention
from tokenspeed_reference.ngram import NgramSpeculator
from tokenspeed_reference.sampler import PhiloxSampler
from tokenspeed_reference.stores.memory import MemoryStore

ANY = {name: ("*",) for name in (
    "device", "arch", "block_tokens", "head_dim", "gqa_ratio", "window")}
ANY |= {"dtype": ("float32",), "deterministic": (True,)}

class Right(PagedAttention):
    def __init__(self, **options):
        super().__init__(**options)
        self.block_tokens = options["block_tokens"]

class WrongAtABlockBoundary(Right):
    def attend(self, q_TNH, kv, metadata, **options):
        out = super().attend(q_TNH, kv, metadata, **options)
        for chunk in metadata.chunks:
            if chunk.num_keys % self.block_tokens == 0:
                out[chunk.query.stop - 1] *= 0.9
        return out

class ClaimsEveryHeadDim(Right):
    def attend(self, q_TNH, kv, metadata, **options):
        q = q_TNH.clone()
        q[..., 100:] = 0
        return super().attend(q, kv, metadata, **options)

class DiffersEachTime(Right):
    def attend(self, q_TNH, kv, metadata, **options):
        out = super().attend(q_TNH, kv, metadata, **options)
        return out * (1 + 1e-6 * torch.rand(1))

class Skewed(PhiloxSampler):
    def sample(self, logits_RV, batch):
        if batch.temperature_R is not None:
            batch = replace(batch, temperature_R=batch.temperature_R * 1.25)
        return super().sample(logits_RV, batch)

class NumbersOfItsOwn(PhiloxSampler):
    def sample(self, logits_RV, batch):
        if batch.temperature_R is not None:
            batch = replace(batch, seeds_R=batch.seeds_R ^ 1)
        return super().sample(logits_RV, batch)

class Corrupting(MemoryStore):
    def get(self, key, tag, into):
        ticket = super().get(key, tag, into)
        if into.nbytes > 4000:
            into[4000] ^= 1
        return ticket

class Writing(NgramSpeculator):
    def start(self, request_id, token_ids):
        super().start(request_id, token_ids)
        token_ids[-1] = 0

class Plugin:
    @hookimpl
    def register_attention_backends(self, context):
        for kind in (Right, WrongAtABlockBoundary, ClaimsEveryHeadDim, DiffersEachTime):
            context.offer(Offer("attention", kind.__name__, kind, requires=ANY))

    @hookimpl
    def register_samplers(self, context):
        for kind in (PhiloxSampler, Skewed, NumbersOfItsOwn):
            context.offer(Offer("sampler", kind.__name__, kind, requires=ANY))

    @hookimpl
    def register_kv_stores(self, context):
        for kind in (MemoryStore, Corrupting):
            context.offer(Offer("kv_store", kind.__name__, kind))

    @hookimpl
    def register_speculators(self, context):
        for kind in (NgramSpeculator, Writing):
            context.offer(Offer("speculator", kind.__name__, kind))

    @hookimpl
    def register_kernels(self, context):
        requires = {"device": ("*",), "arch": ("*",), "dtype": ("float32",)}
        context.offer(KernelOffer("rotary.apply", "silent", lambda: print, requires=requires))

plugin = Plugin()
"""
SLOTS = "\n".join(
    f'{slot} = "1.0"' for slot in ("attention", "sampler", "kv_store", "speculator", "operator")
)

DEVICES = """
from tokenspeed_reference.device import CpuRuntime

class Right(CpuRuntime):
    def __init__(self):
        super().__init__()
        self.facts = DeviceFacts("acme", "Acme One", "a1", 1, self.facts.memory_bytes)

class NotZero(Right):
    def allocate_arena(self, num_bytes):
        return super().allocate_arena(num_bytes).fill_(1)

class OfFloats(Right):
    def allocate_arena(self, num_bytes):
        return super().allocate_arena(num_bytes).float()

class Short(Right):
    def allocate_arena(self, num_bytes):
        return super().allocate_arena(num_bytes)[64:]

class TakesAnySize(Right):
    def allocate_arena(self, num_bytes):
        return super().allocate_arena(min(num_bytes, 1 << 20))

class Plugin:
    @hookimpl
    def register_devices(self, context):
        for kind in (Right, NotZero, OfFloats, Short, TakesAnySize):
            context.offer(Offer("device", kind.__name__, kind, facts={"kind": "acme"}))

plugin = Plugin()
"""

OPERATORS = """
from dataclasses import replace
from tokenspeed_sdk import ops

LINES = {
    "acme.right": "... D!, D! -> ... D!",
    "acme.cut_mean": "... D, D -> ... D",
    "acme.unread": "x, D! -> x",
    "acme.whole": "",
}

class Plugin:
    @hookimpl
    def register_operators(self, context):
        for name, line in LINES.items():
            context.offer(replace(ops.norm.rms_norm, name=name, placement=line))

plugin = Plugin()
"""


def failures(folder: Path, body: str, only: str, **manifest: str) -> dict[str, str]:
    """Run C2 on a plugin; return id -> message of what fails."""
    wheels = WheelFolder(folder)
    wheels.install("acme", body, **manifest)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", wheels.environ()["PYTHONPATH"])
        report = run_conformance("acme", level="C2", only=only)
    assert report.problems == ()
    return {check.id: check.message for check in report.checks if check.outcome == "failed"}


@pytest.fixture(scope="module")
def of_offers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return failures(tmp_path_factory.mktemp("offers"), OFFERS, "C2/", slots=SLOTS)


@pytest.fixture(scope="module")
def of_devices(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    manifest = {"slots": 'device = "1.0"', "device_kinds": '["acme"]'}
    return failures(tmp_path_factory.mktemp("devices"), DEVICES, "C2/the-device", **manifest)


@pytest.fixture(scope="module")
def of_operators(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("operators")
    return failures(folder, OPERATORS, "C2/", slots='operator = "1.0"')


def found(failed: dict[str, str], offer: str) -> dict[str, str]:
    """Return the failed checks of an offer: id without the offer -> message."""
    return {name.replace(offer, ""): message for name, message in failed.items() if offer in name}


@pytest.mark.parametrize(
    "offer",
    [
        "attention/Right",
        "sampler/PhiloxSampler",
        "kv_store/MemoryStore",
        "speculator/NgramSpeculator",
    ],
)
def test_what_is_right_passes(of_offers: dict[str, str], offer: str) -> None:
    assert found(of_offers, offer) == {}


@pytest.mark.parametrize(
    ("offer", "check", "words"),
    [
        ("WrongAtABlockBoundary", COMPUTES, "attention.paged in float32"),
        ("ClaimsEveryHeadDim", COMPUTES, "head_dim 128"),
        ("DiffersEachTime", DETERMINISTIC, "attention.paged, case"),
    ],
)
def test_attention_faults_are_found(
    of_offers: dict[str, str], offer: str, check: str, words: str
) -> None:
    failed = found(of_offers, f"attention/{offer}")
    assert list(failed) == [f"C2/{check}[]"]
    assert words in failed[f"C2/{check}[]"]


def test_a_skewed_sampler_is_found(of_offers: dict[str, str]) -> None:
    message = found(of_offers, "sampler/Skewed")[f"C2/{COMPUTES}[]"]
    assert "sampling.distribution" in message
    assert "chi-square" in message


def test_a_sampler_with_numbers_of_its_own_is_found(of_offers: dict[str, str]) -> None:
    failed = found(of_offers, "sampler/NumbersOfItsOwn")
    assert list(failed) == ["C2/the-sampler-is-right[-draws]"]
    assert "and the number is" in failed["C2/the-sampler-is-right[-draws]"]


def test_a_kernel_silent_about_a_trait_of_its_requests_is_told_which(
    of_offers: dict[str, str],
) -> None:
    (message,) = (text for name, text in of_offers.items() if "silent" in name and COMPUTES in name)
    assert "trait.head_dim: wanted" in message
    assert "not declared" in message


def test_a_corrupting_store_is_found(of_offers: dict[str, str]) -> None:
    message = found(of_offers, "kv_store/Corrupting")["C2/the-store-is-right[-round-trip]"]
    assert "other bytes" in message


def test_a_speculator_that_changes_the_text_is_found(of_offers: dict[str, str]) -> None:
    failed = found(of_offers, "speculator/Writing")
    assert "written to" in failed["C2/the-speculator-keeps-its-contract[-inputs-stay]"]


@pytest.mark.parametrize(
    ("offer", "check", "words"),
    [
        ("Right", "", ""),
        ("NotZero", "arena", "it is not zero"),
        ("OfFloats", "arena", "torch.float32"),
        ("Short", "arena", "it gives"),
        ("TakesAnySize", "too-large-an-arena", "DID NOT RAISE"),
    ],
)
def test_faults_of_a_device_are_found(
    of_devices: dict[str, str], offer: str, check: str, words: str
) -> None:
    failed = found(of_devices, f"device/{offer}")
    assert list(failed) == ([f"C2/the-device-is-right[-{check}]"] if check else [])
    assert all(words in message for message in failed.values())


@pytest.mark.parametrize(
    ("offer", "words"),
    [
        ("right", ""),
        ("whole", ""),
        ("cut_mean", "acme.cut_mean with D cut over 2 ranks"),
        ("unread", "found 'x', expected a dimension such as D"),
    ],
)
def test_wrong_placement_lines_of_operators_are_found(
    of_operators: dict[str, str], offer: str, words: str
) -> None:
    failed = found(of_operators, f"operator/acme.{offer}")
    assert list(failed) == (["C2/a-new-operators-placement-line-is-right[]"] if words else [])
    assert all(words in message for message in failed.values())
