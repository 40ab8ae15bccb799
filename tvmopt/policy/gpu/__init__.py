"""What GPUs do best: configurations of each template, ranked by a model of the machine."""
