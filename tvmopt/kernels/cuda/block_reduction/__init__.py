"""Few long reductions: one or several thread blocks each."""
