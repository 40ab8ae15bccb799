"""Reports in MLflow and on the terminal: sentences, tables, charts and the page of a search."""
