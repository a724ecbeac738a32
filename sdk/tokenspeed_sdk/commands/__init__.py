"""The authors' commands: `tokenspeed plugins new|validate|test`."""
