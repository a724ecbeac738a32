"""Settings: one frozen schema for flags, `TOKENSPEED_*`, YAML and the generated reference page."""

from tokenspeed.config.load import load_config
from tokenspeed.config.ranges import check_settings
from tokenspeed.config.schema import ServeConfig

__all__ = ["ServeConfig", "check_settings", "load_config"]
