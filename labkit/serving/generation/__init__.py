"""Language models: batches by iteration, and how a model is spread over chips."""
