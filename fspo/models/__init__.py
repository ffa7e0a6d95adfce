"""Causal language models and tokenizers: loading, the embedded model, its supervised warm-up."""
