"""What holds for the whole suite: a hook call after the freeze raises, in children too."""

from __future__ import annotations

import os

os.environ["TOKENSPEED_TEST_STRICT"] = "1"
