"""int4 weights times a few rows."""
