"""The search: which combination to try next, what is feasible, which one wins. Needs Optuna."""
