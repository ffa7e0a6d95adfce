"""The engines behind `fspo.sampling.sample.sample`: all but vLLM draw the same tokens from the same keyed uniforms."""
