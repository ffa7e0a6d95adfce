"""Causal language models and tokenizers: how they are loaded, the embedded model, and its supervised warm-up."""
