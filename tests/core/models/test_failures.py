"""Errors of model classes name the class, its file and what it was doing."""

from __future__ import annotations

import pytest

from tokenspeed.errors import CapacityError, ConfigError, PluginError, TokenSpeedError
from tokenspeed.models.failures import model_errors


class Model:
    """Stands for a model class."""


def test_an_error_of_the_class_is_told_with_its_module_and_cause() -> None:
    with (
        pytest.raises(
            PluginError, match=r"model Model of .*test_failures failed while it"
        ) as caught,
        model_errors(Model, "it was built"),
    ):
        raise TypeError("missing 1 argument")
    assert caught.value.id == "model-failed"
    assert "TypeError: missing 1 argument; correct its file" in caught.value.message
    assert isinstance(caught.value.__cause__, TypeError)


@pytest.mark.parametrize("error", [ConfigError("a"), CapacityError("b"), MemoryError()])
def test_what_explains_itself_passes(error: TokenSpeedError | MemoryError) -> None:
    with pytest.raises(type(error)) as caught, model_errors(Model, "it was built"):
        raise error
    assert caught.value is error
