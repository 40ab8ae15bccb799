"""A registered model behind a server with MLflow's protocol."""
