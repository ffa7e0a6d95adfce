"""Sampling of responses by one of several engines; all but vLLM draw the same tokens from the same keyed uniforms."""
