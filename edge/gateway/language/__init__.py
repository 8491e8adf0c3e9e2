"""Language models for many clients at once: continuous batching behind OpenAI's protocol."""
