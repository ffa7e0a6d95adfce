"""What changes with another setting: counterfactually on one log, or in runs that were trained with it."""
