"""GPU templates: TensorIR function + hint -> kernel; one kernel shape a file."""
