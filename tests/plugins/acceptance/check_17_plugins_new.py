"""Check 17: every set of stable slots renders a valid plugin; a cover is built and serves."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.support.overlay import Overlay
from tests.support.source_tree import ROOT

from tokenspeed_sdk.scaffold import ABOUT, Scaffold, write
from tokenspeed_sdk.validation import validate_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

SLOTS = tuple(ABOUT)
SETS = [slots for size in range(1, len(SLOTS) + 1) for slots in itertools.combinations(SLOTS, size)]


def test_17_plugins_new(tmp_path: Path) -> None:
    assert len(SETS) == 511
    for number, slots in enumerate(SETS):
        folder = tmp_path / str(number)
        write(Scaffold("acme", slots), folder)
        assert validate_folder(folder) == [], slots


def pairwise_cover() -> Iterator[tuple[str, ...]]:
    """Yield sets such that every two slots are together, apart and absent in some of them."""
    pairs = itertools.combinations(SLOTS, 2)
    open_ = {(a, b, x, y) for a, b in pairs for x in (0, 1) for y in (0, 1)}

    def covered(slots: tuple[str, ...]) -> set[tuple[str, str, int, int]]:
        has = {slot: int(slot in slots) for slot in SLOTS}
        return {(a, b, has[a], has[b]) for a, b in itertools.combinations(SLOTS, 2)}

    while open_:
        best = max(SETS, key=lambda slots: (len(covered(slots) & open_), slots))
        new = covered(best) & open_
        if not new:  # only "both absent" of the last pair is left, which no plugin needs
            return
        open_ -= new
        yield best


BUILT = list(dict.fromkeys([*((slot,) for slot in SLOTS), SLOTS, *pairwise_cover()]))

SERVE = """
import sys
from pathlib import Path
from tokenspeed import LLM, SamplingParams
from tokenspeed_sdk.testkit.tiny_model import write_tiny_model

slots, folder = sys.argv[1].split(","), Path(sys.argv[2])
model = write_tiny_model(
    folder / "model",
    architecture="AcmeForCausalLM" if "model" in slots else "LlamaForCausalLM",
    experts="moe" in slots and "model" not in slots,
    weights="weights.acme" if "weight_format" in slots else "model.safetensors",
)
settings = {"plugins": "acme,sim", "device": "acme" if "device" in slots else "sim"}
settings["block_tokens"] = 16
offers = {"attention": "paged", "sampler": "seeded", "moe": "experts", "communicator": "ranks"}
pinned = [slot for slot in slots if slot in offers and not (slot == "moe" and "model" in slots)]
settings["pins"] = [f"{slot}=acme/{offers[slot]}" for slot in pinned]
if "kv_store" in slots:
    settings |= {"kv_store": "acme/memory", "host_kv_gib": 0.001}
if "speculator" in slots:
    settings |= {"speculator": "acme/lookup", "max_drafts": 2}
with LLM(str(model), **settings) as llm:
    answer = llm.generate([[1, 2, 3]], SamplingParams(max_tokens=3, ignore_eos=True))[0]
    print(len(answer.token_ids), llm.stats().hook_calls_after_freeze)
"""


@pytest.mark.slow
@pytest.mark.parametrize("slots", BUILT, ids="+".join)
def test_what_is_rendered_is_built_conforms_and_serves(
    slots: tuple[str, ...], tmp_path: Path
) -> None:
    write(Scaffold("acme", slots, native=slots == SLOTS), tmp_path / "acme")
    overlay = Overlay(tmp_path / "venv")
    overlay.install(tmp_path / "acme")
    overlay.install(ROOT / "tests" / "sim")
    tested = overlay.tokenspeed("plugins", "test", "acme", "--level", "C1", "--json")
    report = json.loads(tested.stdout)
    assert [item for item in report["checks"] if item["outcome"] == "failed"] == []
    assert (tested.returncode, report["problems"]) == (0, [])
    served = overlay.run("-c", SERVE, ",".join(slots), str(tmp_path))
    assert served.stdout.split() == ["3", "0"], served.stderr


def test_the_cover_is_small_and_covers_every_pair() -> None:
    assert len(BUILT) <= 20
    for a, b in itertools.permutations(SLOTS, 2):
        assert any(a in slots and b in slots for slots in BUILT)
        assert any(a in slots and b not in slots for slots in BUILT)
