"""The prediction model: schema, data, training, embeddings and their tiers, bundle, runtimes, evaluation."""
