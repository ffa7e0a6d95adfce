"""Evaluation of finished models on benchmarks: sampled answers, kept on disk as they are made, and a table."""
