"""A registered model behind MLflow's scoring server."""
