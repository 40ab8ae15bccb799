"""A request, and the pipeline of stages that serves it; the entry points of single stages."""
