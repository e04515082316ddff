"""One folder a question about results: each computes an answer and says it."""
