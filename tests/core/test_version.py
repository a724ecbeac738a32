"""The wheel, the extension and the package report one version."""

import importlib.metadata

import tokenspeed
from tokenspeed import _core


def test_extension_package_and_wheel_agree_on_the_version() -> None:
    assert _core.__version__ == tokenspeed.__version__
    assert importlib.metadata.version("tokenspeed") == tokenspeed.__version__
