"""Rollouts: responses to prompts, their rewards and advantages, and the plan of minibatches and microbatches."""
