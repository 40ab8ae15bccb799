"""Weight-only int4 GEMV with tensor cores."""
