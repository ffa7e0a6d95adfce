"""Find what is wrong with a training run. Each finding has evidence (numbers) and a cure (what to change)."""
