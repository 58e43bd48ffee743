"""What is predicted and how it executes: schema, data, model, bundle, runtimes."""
