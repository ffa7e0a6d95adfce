"""Find what is wrong with a training run. Each issue has evidence (numbers) and a fix (what to change)."""
