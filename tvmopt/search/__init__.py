"""Search over dtype, skip set, layout and tuning effort, on top of Optuna."""
