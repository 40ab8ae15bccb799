"""Profile of a compiled model, kernel by kernel: times, roofline, comparison with float32."""
