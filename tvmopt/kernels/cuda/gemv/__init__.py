"""Matrix times a vector or a few rows."""
