"""The engines behind `fspo.rollout.sample`: all but vLLM draw the same tokens from the same keyed uniforms."""
