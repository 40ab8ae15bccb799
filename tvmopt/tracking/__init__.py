"""MLflow tracking, registry and flavor; the only package that imports MLflow."""
