"""Evaluation of finished models on benchmarks: answers that a killed run keeps, accuracy with intervals."""
