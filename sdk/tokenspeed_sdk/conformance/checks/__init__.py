"""The checks, one file a level. They run under the kit's runner, not with a plugin's own tests."""
