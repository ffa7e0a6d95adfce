"""What another setting changes: counterfactually on one log, or in runs that were trained with that setting."""
