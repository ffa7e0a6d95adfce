"""From prompts to the responses of a rollout, their rewards and advantages, and the plan of its minibatches."""
