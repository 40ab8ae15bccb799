"""One reduction with many independent outputs, without a register tile."""
